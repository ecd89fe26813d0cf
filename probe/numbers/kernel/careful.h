/* The pass over a tensor element by element, for all types: integers, and floats with NaN or Inf among them. Included by kernel.c. */

/* One element: its value, and what stands for it in the sketch (an integer's sign; the value of a finite float). */
#define FLOAT_ELEMENT(name, type, load)                                                                               \
    static inline void element_##name(const void *x, const void *y, int64_t i, uint64_t seed, double *value,        \
                                      double *sketched)                                                              \
    {                                                                                                                 \
        (void)seed;                                                                                                   \
        *value = load(((const type *)x)[i]);                                                                          \
        if (y) *value -= load(((const type *)y)[i]);                                                                  \
        *sketched = isfinite(*value) ? *value : 0;                                                                    \
    }
#define INTEGER_ELEMENT(name, type)                                                                                   \
    static inline void element_##name(const void *x, const void *y, int64_t i, uint64_t seed, double *value,        \
                                      double *sketched)                                                              \
    {                                                                                                                 \
        (void)y;                                                                                                      \
        *value = (double)((const type *)x)[i];                                                                        \
        *sketched = splitmix64((uint64_t)((const type *)x)[i] ^ seed) & 1 ? -1 : 1;                                   \
    }
FLOAT_ELEMENT(float32, float, )
FLOAT_ELEMENT(float64, double, )
FLOAT_ELEMENT(bfloat16, uint16_t, bfloat16)
FLOAT_ELEMENT(float16, uint16_t, float16)
INTEGER_ELEMENT(int8, int8_t)
INTEGER_ELEMENT(uint8, uint8_t)
INTEGER_ELEMENT(int16, int16_t)
INTEGER_ELEMENT(uint16, uint16_t)
INTEGER_ELEMENT(int32, int32_t)
INTEGER_ELEMENT(uint32, uint32_t)
INTEGER_ELEMENT(int64, int64_t)
INTEGER_ELEMENT(uint64, uint64_t)

/* One element after the other: integers, and floats with NaN or Inf among them. */
#define CAREFUL_PASS(name)                                                                                            \
    static void careful_##name(const void *x, const void *y, const Plan *plan, uint64_t seed, Sums *sums,            \
                               double *negative, double *positive)                                                    \
    {                                                                                                                 \
        float buffer[MAX_PERIOD];                                                                                     \
        Odometer at;                                                                                                  \
        odometer_start(&at, plan, 0);                                                                                    \
        for (int64_t row = 0, i = 0; row < plan->head.rows; row++) {                                                       \
            double *acc = (at.sign > 0 ? positive : negative) + at.shift * plan->head.inner;                               \
            const float *sign = NULL;                                                                                 \
            for (int64_t j = 0, k = 0; j < plan->head.n; j++, i++, k = k + 1 == plan->head.period ? 0 : k + 1) {      \
                double value, sketched;                                                                               \
                sign = k ? sign : signs_from_plain(plan, j, buffer);                                                    \
                element_##name(x, y, i, seed, &value, &sketched);                                                     \
                acc[k] += sketched * sign[k];                                                                         \
                if (isfinite(value)) {                                                                                \
                    sums->low = value < sums->low ? value : sums->low;                                                \
                    sums->high = value > sums->high ? value : sums->high;                                             \
                    sums->zeros += value == 0;                                                                        \
                    sums->total += value;                                                                             \
                    sums->squares += value * value;                                                                   \
                } else if (isnan(value)) {                                                                            \
                    sums->nan++;                                                                                      \
                } else if (value > 0) {                                                                               \
                    sums->posinf++;                                                                                   \
                } else {                                                                                              \
                    sums->neginf++;                                                                                   \
                }                                                                                                     \
            }                                                                                                         \
            odometer_advance(&at, plan);                                                                              \
        }                                                                                                             \
    }
typedef void (*CarefulPass)(const void *, const void *, const Plan *, uint64_t, Sums *, double *, double *);
CAREFUL_PASS(float32)
CAREFUL_PASS(float64)
CAREFUL_PASS(bfloat16)
CAREFUL_PASS(float16)
CAREFUL_PASS(int8)
CAREFUL_PASS(uint8)
CAREFUL_PASS(int16)
CAREFUL_PASS(uint16)
CAREFUL_PASS(int32)
CAREFUL_PASS(uint32)
CAREFUL_PASS(int64)
CAREFUL_PASS(uint64)
static const CarefulPass careful[KINDS] = {careful_float32, careful_float64, careful_bfloat16, careful_float16,
                                           careful_int8, careful_uint8, careful_int16, careful_uint16,
                                           careful_int32, careful_uint32, careful_int64, careful_uint64};
