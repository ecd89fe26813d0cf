/* The pass over one tensor, for one element type and one instruction set.
 *
 * Included by passes.h with FUNCTION (the name), ELEMENT (the type in memory), VALUE (float or double: a type that
 * holds what is measured exactly), LOAD(i) (element i of the row, as VALUE), LOADV(i) (LANES of them), and MIN, MAX and
 * WIDEN (to doubles) of such vectors. Measured is x, or x - y where LOAD says so.
 *
 * A row is what lies behind the axes that the odometer counts. Element j of a row goes to acc[j mod period], moved
 * by the row's shift; rows with a negative sign have sums of their own. So nothing is folded until the end. The sums
 * over lanes are added up every FLUSH elements: short sums lose less, and a lane's count cannot overflow.
 */
TARGET static void FUNCTION(const ELEMENT *x, const ELEMENT *y, const Plan *plan, Sums *sums, double *negative, double *positive)
{
    typedef VALUE values __attribute__((vector_size(sizeof(VALUE) * LANES)));
    typedef double doubles __attribute__((vector_size(8 * LANES)));
    typedef double unaligned __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
    typedef float signs_of __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
    typedef BITS(VALUE) counts __attribute__((vector_size(sizeof(VALUE) * LANES)));

    values low, high;
    doubles total = {0}, squares = {0};
    counts zeros = {0};
    for (int lane = 0; lane < LANES; lane++) {
        low[lane] = INFINITY;
        high[lane] = -INFINITY;
    }
    double rest = 0, rest_squares = 0;
    int64_t rest_zeros = 0, since = 0;
    const int64_t n = plan->head.n, period = plan->head.period;
    float buffer[MAX_PERIOD];
    Odometer at;
    odometer_start(&at, plan);
    for (int64_t row = 0; row < plan->head.rows; row++, x += n, y += n) {
        double *acc = (at.sign > 0 ? positive : negative) + at.shift * plan->head.inner;
        for (int64_t first = 0; first < n; first += period) {
            const int64_t size = first + period <= n ? period : n - first;
            const float *sign = NAME(signs_from)(plan, first, buffer);
            int64_t k = 0;
            for (; k + LANES <= size; k += LANES) {
                const values v = LOADV(first + k);
                PREFETCH(x + first + k);
                low = MIN(v, low);
                high = MAX(v, high);
                zeros += v == 0;
                const doubles d = WIDEN(v);
                total += d;
                squares += d * d;
                *(unaligned *)(acc + k) += d * WIDENF(*(const signs_of *)(sign + k));
            }
            for (; k < size; k++) {
                const double d = LOAD(first + k);
                low[0] = d < low[0] ? d : low[0];
                high[0] = d > high[0] ? d : high[0];
                rest_zeros += d == 0;
                rest += d;
                rest_squares += d * d;
                acc[k] += d * sign[k];
            }
            since += size;
            if (since >= FLUSH) {
                for (int lane = 0; lane < LANES; lane++) {
                    rest += total[lane];
                    rest_squares += squares[lane];
                    rest_zeros -= zeros[lane];
                }
                total = squares = (doubles){0};
                zeros = (counts){0};
                since = 0;
            }
        }
        odometer_advance(&at, plan);
    }
    for (int lane = 0; lane < LANES; lane++) {
        rest += total[lane];
        rest_squares += squares[lane];
        rest_zeros -= zeros[lane];
        sums->low = low[lane] < sums->low ? low[lane] : sums->low;
        sums->high = high[lane] > sums->high ? high[lane] : sums->high;
    }
    sums->total = rest;
    sums->squares = rest_squares;
    sums->zeros = rest_zeros;
}
