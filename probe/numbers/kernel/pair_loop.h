/* Sums over the pairs of elements of two tensors, for one instruction set. Included by passes.h.
 *
 * What is computed is defined by `Sums` in probe/comparison/distance/sums.py. Both tensors are widened to doubles part by part, into memory
 * that stays in the first cache: so one loop does for all pairs of types. Zeros fill a part up to whole vectors.
 */
#define WIDEN_PART(type, vectors, single)                                                                 \
    do {                                                                                                      \
        const type *x = (const type *)from + first;                                                       \
        for (; i + LANES <= count; i += LANES) *(NAME(unaligned_doubles) *)(to + i) = WIDENF(vectors(x + i)); \
        for (; i < count; i++) to[i] = single(x[i]);                                                      \
    } while (0)
#define FLOATS_AT(p) (*(const NAME(unaligned_floats) *)(p))
#define ITSELF(x) (x)

/* Write elements of a tensor from `first` on as doubles, and zeros behind them. */
TARGET static void NAME(widen_part)(const void *from, int kind, int64_t first, int64_t count, double *to)
{
    typedef double doubles __attribute__((vector_size(8 * LANES), unused)); /* (WIDENF may name it) */
    int64_t i = 0;
    switch (kind) {
    case FLOAT32: WIDEN_PART(float, FLOATS_AT, ITSELF); break;
    case BFLOAT16: WIDEN_PART(uint16_t, NAME(widen_bfloat16), bfloat16); break;
    case FLOAT16: WIDEN_PART(uint16_t, NAME(widen_float16), float16); break;
    default: memcpy(to, (const double *)from + first, count * sizeof *to);
    }
    for (i = count; i % LANES; i++) to[i] = 0;
}
#undef WIDEN_PART
#undef FLOATS_AT
#undef ITSELF

/* Add a part of at most PAIRS pairs; return whether its squares are finite, else nothing is added unless it has to be. */
TARGET static int NAME(add_part)(const double *a, const double *b, int64_t count, double least, int has_to_be, PairSums *sums)
{
    typedef double values __attribute__((vector_size(8 * LANES)));
    typedef int64_t counts __attribute__((vector_size(8 * LANES)));
    const counts magnitude = (counts){0} + INT64_MAX;
    const values tiny = (values){0} + DBL_MIN;
    values squared = {0}, squares_a = {0}, squares_b = {0}, inner = {0}, absolute = {0}, largest = {0}, share = {0};
    counts may_be_larger = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        const values x = *(const NAME(unaligned_doubles) *)(a + i), y = *(const NAME(unaligned_doubles) *)(b + i), error = y - x;
        const values size = (values)((counts)error & magnitude), of_x = (values)((counts)x & magnitude);
        squared += error * error;
        squares_a += x * x;
        squares_b += y * y;
        inner += x * error;
        absolute += size;
        largest = MAXD(size, largest);
        may_be_larger |= size > of_x * least;
    }
    double total = 0, high = 0;
    int64_t candidates = 0;
    for (int lane = 0; lane < LANES; lane++) {
        total += squared[lane];
        high = largest[lane] > high ? largest[lane] : high;
        candidates |= may_be_larger[lane];
    }
    if (!isfinite(total) && !has_to_be) return 0;
    for (int64_t i = 0; candidates && i < count; i += LANES) {
        const values x = *(const NAME(unaligned_doubles) *)(a + i), y = *(const NAME(unaligned_doubles) *)(b + i);
        const values size = (values)((counts)(y - x) & magnitude);
        const values of_x = (values)((counts)x & magnitude), of_y = (values)((counts)y & magnitude);
        values larger = MAXD(of_x, of_y);
        larger = MAXD(larger, tiny);
        const values found = size / larger;
        share = MAXD(found, share);
    }
    if (high > sums->largest) {
        int64_t at = 0;
        while (fabs(b[at] - a[at]) != high) at++;
        sums->largest = high;
        sums->at = sums->count + at;
    }
    for (int lane = 0; lane < LANES; lane++) {
        sums->squared += squared[lane];
        sums->squares_a += squares_a[lane];
        sums->squares_b += squares_b[lane];
        sums->inner += inner[lane];
        sums->absolute += absolute[lane];
        sums->share = share[lane] > sums->share ? share[lane] : sums->share;
    }
    return 1;
}

TARGET static void NAME(pairs)(const void *a, int kind_a, const void *b, int kind_b, int64_t count, PairSums *sums)
{
    double x[PAIRS], y[PAIRS];
    const int is_wide = kind_a == FLOAT64 || kind_b == FLOAT64; /* there the product underflows */
    for (int64_t first = 0; first < count; first += PAIRS) {
        const int64_t size = count - first < PAIRS ? count - first : PAIRS;
        NAME(widen_part)(a, kind_a, first, size, x);
        NAME(widen_part)(b, kind_b, first, size, y);
        const double least = is_wide ? 0 : sums->share * NEARLY;
        if (!NAME(add_part)(x, y, size, least, 0, sums)) {
            sums->mismatched += leave_out_nonfinite(x, y, size);
            NAME(add_part)(x, y, size, least, 1, sums);
        }
        sums->count += size;
    }
}
