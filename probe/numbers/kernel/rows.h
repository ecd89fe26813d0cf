/* The pass over a piece of a tensor, for one element type and one instruction set.
 *
 * Included by passes.h with FUNCTION (the name), ELEMENT (the type in memory), VALUE (float or double: a type that
 * holds what is measured exactly), LOAD(i) (element i from x on, as VALUE), LOADV(i) (LANES of them), and MIN, MAX and
 * WIDEN (to doubles) of such vectors. Measured is x, or x - y where LOAD says so.
 *
 * A row is what lies behind the axes that the odometer counts. Element j of a row goes to acc[j mod period], moved
 * by the row's shift; rows with a negative sign have sums of their own. So nothing is folded until the end. The sums
 * over lanes are added up every FLUSH elements: short sums lose less, and a lane's count cannot overflow.
 *
 * The pass goes on where it was, with x (and y) there, and stops behind `count` elements, at the end of a period: so others can read the same
 * memory while it is in the cache, and the sums are those of a pass in one go. With the last element of a piece (pieces.h) they are added up.
 */
TARGET static void FUNCTION(const ELEMENT *x, const ELEMENT *y, const Plan *plan, Progress *at, int64_t count)
{
    typedef VALUE values __attribute__((vector_size(sizeof(VALUE) * LANES)));
    typedef double doubles __attribute__((vector_size(8 * LANES)));
    typedef double unaligned __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
    typedef float signs_of __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
    typedef BITS(VALUE) counts __attribute__((vector_size(sizeof(VALUE) * LANES)));

    values low, high;
    doubles total, squares;
    counts zeros;
    if (!at->done) {
        for (int lane = 0; lane < LANES; lane++) {
            low[lane] = INFINITY;
            high[lane] = -INFINITY;
        }
        total = squares = (doubles){0};
        zeros = (counts){0};
    } else {
        memcpy(&low, at->low, sizeof low);
        memcpy(&high, at->high, sizeof high);
        memcpy(&total, at->total, sizeof total);
        memcpy(&squares, at->squares, sizeof squares);
        memcpy(&zeros, at->zeros, sizeof zeros);
    }
    double rest = at->rest, rest_squares = at->rest_squares;
    int64_t rest_zeros = at->rest_zeros, since = at->since, done = at->done, row = at->row, first = at->first;
    const int64_t n = plan->head.n, period = plan->head.period, stop = done + count;
    float buffer[MAX_PERIOD];
    while (done < stop) {
        double *acc = (at->odometer.sign > 0 ? at->positive : at->negative) + at->odometer.shift * plan->head.inner;
        while (first < n && done < stop) {
            const int64_t size = first + period <= n ? period : n - first;
            const float *sign = NAME(signs_from)(plan, first, buffer);
            int64_t k = 0;
            for (; k + LANES <= size; k += LANES) {
                const values v = LOADV(k);
                PREFETCH(x + k);
                low = MIN(v, low);
                high = MAX(v, high);
                zeros += v == 0;
                const doubles d = WIDEN(v);
                total += d;
                squares += d * d;
                *(unaligned *)(acc + k) += d * WIDENF(*(const signs_of *)(sign + k));
            }
            for (; k < size; k++) {
                const double d = LOAD(k);
                low[0] = d < low[0] ? d : low[0];
                high[0] = d > high[0] ? d : high[0];
                rest_zeros += d == 0;
                rest += d;
                rest_squares += d * d;
                acc[k] += d * sign[k];
            }
            since += size;
            first += size;
            done += size;
            x += size;
            y += size;
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
        if (first >= n) {
            first = 0;
            row++;
            odometer_advance(&at->odometer, plan);
        }
    }
    at->done = done;
    if (done < at->until) {
        memcpy(at->low, &low, sizeof low);
        memcpy(at->high, &high, sizeof high);
        memcpy(at->total, &total, sizeof total);
        memcpy(at->squares, &squares, sizeof squares);
        memcpy(at->zeros, &zeros, sizeof zeros);
        at->rest = rest;
        at->rest_squares = rest_squares;
        at->rest_zeros = rest_zeros;
        at->since = since;
        at->row = row;
        at->first = first;
        return;
    }
    Sums *sums = &at->sums;
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
