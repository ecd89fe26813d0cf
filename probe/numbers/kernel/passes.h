/* The passes for every element type, for one instruction set.
 *
 * Included by kernel.c with NAME(base), TARGET (an attribute), LANES (doubles in a register) and the functions MINF,
 * MAXF, WIDENF (of float vectors) and MIND, MAXD (of double ones) defined.
 */
/* Return the signs of a period of a row from element `first` on: the plan's, or made into the buffer. */
TARGET static const float *NAME(signs_from)(const Plan *plan, int64_t first, float *buffer)
{
    if (plan->head.has_signs) return plan->signs + first;
    const int64_t inner = plan->head.inner, left = plan->head.n - first;
    const int64_t size = (left < plan->head.period ? left : plan->head.period) / inner;
    const uint64_t index = (uint64_t)(first / inner), seed = plan->head.seed;
    for (int64_t i = size - 1; i >= 0; i--) buffer[i] = 1 - 2 * (int32_t)(splitmix64((index + i) ^ seed) & 1);
    for (int64_t i = size - 1; i >= 0 && inner > 1; i--) /* from behind: what is written lies behind what is read */
        for (int64_t j = inner - 1; j >= 0; j--) buffer[i * inner + j] = buffer[i] * plan->inner_signs[j];
    return buffer;
}

typedef uint16_t NAME(halves) __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t NAME(words) __attribute__((vector_size(4 * LANES)));
typedef float NAME(floats) __attribute__((vector_size(4 * LANES)));
typedef float NAME(unaligned_floats) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef double NAME(unaligned_doubles) __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

TARGET static inline NAME(floats) NAME(widen_bfloat16)(const uint16_t *p)
{
    return (NAME(floats))(__builtin_convertvector(*(const NAME(halves) *)p, NAME(words)) << 16);
}

/* Exponent and mantissa are moved to where a float has them, and the exponent's bias is mended by a product;
 * an exponent of all ones (Inf, NaN) stays one. */
TARGET static inline NAME(floats) NAME(widen_float16)(const uint16_t *p)
{
    const NAME(words) h = __builtin_convertvector(*(const NAME(halves) *)p, NAME(words));
    const NAME(words) magnitude = (h & 0x7FFF) << 13;
    const NAME(words) special = (NAME(words))(magnitude >= 0x0F800000) & 0x7F800000;
    const NAME(words) scaled = (NAME(words))((NAME(floats))magnitude * 0x1p112f);
    return (NAME(floats))(scaled | special | (h & 0x8000) << 16);
}

#define ELEMENT float
#define VALUE float
#define MIN MINF
#define MAX MAXF
#define WIDEN WIDENF
#define FUNCTION NAME(pass_float32)
#define LOAD(i) x[i]
#define LOADV(i) (*(const NAME(unaligned_floats) *)(x + (i)))
#define PREFETCH(p) __builtin_prefetch((p) + 512)
#include "rows.h"
#undef ELEMENT
#undef FUNCTION
#undef LOAD
#undef LOADV

#define ELEMENT uint16_t
#define FUNCTION NAME(pass_bfloat16)
#define LOAD(i) bfloat16(x[i])
#define LOADV(i) NAME(widen_bfloat16)(x + (i))
#include "rows.h"
#undef FUNCTION
#undef LOAD
#undef LOADV

#define FUNCTION NAME(pass_float16)
#define LOAD(i) float16(x[i])
#define LOADV(i) NAME(widen_float16)(x + (i))
#include "rows.h"
#undef ELEMENT
#undef VALUE
#undef FUNCTION
#undef LOAD
#undef LOADV
#undef MIN
#undef MAX
#undef WIDEN

#define VALUE double
#define MIN MIND
#define MAX MAXD
#define WIDEN(v) (v)
#define ELEMENT double
#define FUNCTION NAME(pass_float64)
#define LOAD(i) x[i]
#define LOADV(i) (*(const NAME(unaligned_doubles) *)(x + (i)))
#include "rows.h"
#undef FUNCTION
#undef LOAD
#undef LOADV

#define FUNCTION NAME(change_float64)
#define LOAD(i) (x[i] - y[i])
#define LOADV(i) (*(const NAME(unaligned_doubles) *)(x + (i)) - *(const NAME(unaligned_doubles) *)(y + (i)))
#include "rows.h"
#undef ELEMENT
#undef FUNCTION
#undef LOAD
#undef LOADV

#define ELEMENT float
#define FUNCTION NAME(change_float32)
#define LOAD(i) ((double)x[i] - (double)y[i])
#define LOADV(i) \
    (WIDENF(*(const NAME(unaligned_floats) *)(x + (i))) - WIDENF(*(const NAME(unaligned_floats) *)(y + (i))))
#include "rows.h"
#undef ELEMENT
#undef FUNCTION
#undef LOAD
#undef LOADV

#define ELEMENT uint16_t
#define FUNCTION NAME(change_bfloat16)
#define LOAD(i) ((double)bfloat16(x[i]) - (double)bfloat16(y[i]))
#define LOADV(i) (WIDENF(NAME(widen_bfloat16)(x + (i))) - WIDENF(NAME(widen_bfloat16)(y + (i))))
#include "rows.h"
#undef FUNCTION
#undef LOAD
#undef LOADV

#define FUNCTION NAME(change_float16)
#define LOAD(i) ((double)float16(x[i]) - (double)float16(y[i]))
#define LOADV(i) (WIDENF(NAME(widen_float16)(x + (i))) - WIDENF(NAME(widen_float16)(y + (i))))
#include "rows.h"
#undef ELEMENT
#undef FUNCTION
#undef LOAD
#undef LOADV
#undef VALUE
#undef MIN
#undef MAX
#undef WIDEN
#undef PREFETCH
#include "pair_loop.h"
#undef MINF
#undef MAXF
#undef WIDENF
#undef MIND
#undef MAXD

/* What measures a tensor, and what measures a difference. */
static const Pass NAME(passes)[2][FLOATS] = {
    {
        [FLOAT32] = (Pass)NAME(pass_float32),
        [FLOAT64] = (Pass)NAME(pass_float64),
        [BFLOAT16] = (Pass)NAME(pass_bfloat16),
        [FLOAT16] = (Pass)NAME(pass_float16),
    },
    {
        [FLOAT32] = (Pass)NAME(change_float32),
        [FLOAT64] = (Pass)NAME(change_float64),
        [BFLOAT16] = (Pass)NAME(change_bfloat16),
        [FLOAT16] = (Pass)NAME(change_float16),
    },
};
