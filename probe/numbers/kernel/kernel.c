/* Statistics and sketch of a tensor in one pass over its memory (docs/evidence/performance.md).
 *
 * What is computed is defined in probe/numbers/statistics.py and probe/numbers/sketch.py, and docs/reference/file-format.md. All integer
 * formulas (signs, buckets) are Python's: they come as a plan, made once per shape (probe/numbers/kernel/__init__.py).
 * rows.h is the loop, passes.h has it for every type of floats; here are the choice of the instruction set, integers,
 * tensors with Inf or NaN, and the interface to Python.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 61
#define FLUSH 65536
#define ALONE (1 << 18) /* elements from which on other threads of Python may run meanwhile */

enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, FLOATS, INT8 = FLOATS, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64,
       KINDS };

#define MAX_AXES 64
#define MAX_PERIOD (WIDTH * WIDTH)

/* As probe/numbers/kernel/__init__.py lays it out: this head, then the sizes of the axes that are counted (outermost first),
 * the signs of a row's elements (none where a row is long), signs and buckets of the inner block, and for each counted
 * axis its signs and shifts. */
typedef struct {
    int64_t n, rows, axes, inner, period, stride, has_signs;
    uint64_t seed; /* of the row's axis */
} Head;

typedef struct {
    Head head;
    const int64_t *sizes;
    const float *signs, *inner_signs;
    const uint8_t *buckets;
    const int8_t *axis_signs[MAX_AXES];
    const uint8_t *axis_shifts[MAX_AXES];
} Plan;

typedef struct {
    double low, high, total, squares;
    int64_t nan, posinf, neginf, zeros;
} Sums;

typedef void (*Pass)(const void *, const void *, const Plan *, Sums *, double *, double *);

/* Which row it is: its sign and the shift of its buckets, the product and the sum of those of its indices. */
typedef struct {
    int64_t index[MAX_AXES];
    int outer_sign, outer_shift, sign, shift;
} Odometer;

static void odometer_turn(Odometer *at, const Plan *plan)
{
    at->outer_sign = 1;
    at->outer_shift = 0;
    for (int64_t axis = 0; axis + 1 < plan->head.axes; axis++) {
        at->outer_sign *= plan->axis_signs[axis][at->index[axis]];
        at->outer_shift = (at->outer_shift + plan->axis_shifts[axis][at->index[axis]]) % WIDTH;
    }
}

static inline void odometer_set(Odometer *at, const Plan *plan)
{
    at->sign = at->outer_sign;
    at->shift = at->outer_shift;
    if (plan->head.axes) {
        const int64_t last = plan->head.axes - 1, index = at->index[last];
        at->sign *= plan->axis_signs[last][index];
        at->shift += plan->axis_shifts[last][index];
        at->shift -= at->shift >= WIDTH ? WIDTH : 0;
    }
}

static void odometer_start(Odometer *at, const Plan *plan)
{
    memset(at->index, 0, sizeof at->index);
    odometer_turn(at, plan);
    odometer_set(at, plan);
}

static inline void odometer_advance(Odometer *at, const Plan *plan)
{
    int64_t axis = plan->head.axes - 1;
    if (axis < 0) return;
    if (++at->index[axis] == plan->sizes[axis]) {
        while (axis >= 0 && at->index[axis] == plan->sizes[axis]) {
            at->index[axis] = 0;
            if (--axis >= 0) at->index[axis]++;
        }
        odometer_turn(at, plan);
    }
    odometer_set(at, plan);
}

static inline uint64_t splitmix64(uint64_t x)
{
    uint64_t z = x + 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline float bfloat16(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static inline float float16(uint16_t bits)
{
    const uint32_t magnitude = (uint32_t)(bits & 0x7FFF) << 13;
    float scaled;
    memcpy(&scaled, &magnitude, 4);
    scaled *= 0x1p112f;
    uint32_t word;
    memcpy(&word, &scaled, 4);
    word |= (magnitude >= 0x0F800000 ? 0x7F800000 : 0) | (uint32_t)(bits & 0x8000) << 16;
    memcpy(&scaled, &word, 4);
    return scaled;
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define COUNT_float int32_t
#define COUNT_double int64_t
#define BITS_(type) COUNT_##type
#define BITS(type) BITS_(type)

/* (a chosen by a mask, for machines whose vector minimum the compiler is not told of below) */
#define CHOOSE(kind, a, b, mask) ((kind)(((counts)(a) & (mask)) | ((counts)(b) & ~(mask))))

#define NAME(base) base##_plain
#define TARGET
#define LANES 2
#define MINF(v, low) CHOOSE(values, v, low, v < low)
#define MAXF(v, high) CHOOSE(values, v, high, v > high)
#define MIND MINF
#define MAXD MAXF
#define WIDENF(v) __builtin_convertvector(v, doubles)
#include "passes.h"
#undef NAME
#undef TARGET
#undef LANES

#if defined(__x86_64__)
#include <immintrin.h>

#define NAME(base) base##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 4
#define MINF _mm_min_ps
#define MAXF _mm_max_ps
#define WIDENF _mm256_cvtps_pd
#define MIND _mm256_min_pd
#define MAXD _mm256_max_pd
#include "passes.h"
#undef NAME
#undef TARGET
#undef LANES

#define NAME(base) base##_avx512
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512dq,avx512vl,avx512bw")))
#define LANES 8
#define MINF _mm256_min_ps
#define MAXF _mm256_max_ps
#define WIDENF _mm512_cvtps_pd
#define MIND _mm512_min_pd
#define MAXD _mm512_max_pd
#include "passes.h"
#endif

static const Pass (*passes)[FLOATS] = passes_plain;
static const char *instructions = "plain";

/* Take the best instruction set that the machine has, or the one that is named; tell whether it has it. */
static int choose_instructions(const char *wanted)
{
    const char *const names[] = {"avx512", "avx2", "plain"};
    const Pass (*const all[])[FLOATS] = {
#if defined(__x86_64__)
        passes_avx512, passes_avx2,
#else
        NULL, NULL,
#endif
        passes_plain};
    int has[] = {0, 0, 1};
#if defined(__x86_64__)
    __builtin_cpu_init();
    has[1] = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    has[0] = has[1] && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
             && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#endif
    for (int i = 0; i < 3; i++) {
        if (has[i] && (!wanted || !strcmp(wanted, names[i]))) {
            passes = all[i];
            instructions = names[i];
            return 1;
        }
    }
    return 0;
}

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
        odometer_start(&at, plan);                                                                                    \
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

/* acc[k] belongs to inner element k mod inner and index k / inner of the axis before it; fold it into 61 buckets. */
static void fold(const Plan *plan, const double *negative, const double *positive, double *sketch)
{
    const int64_t size = plan->head.period + WIDTH * plan->head.inner;
    memset(sketch, 0, WIDTH * sizeof *sketch);
    int64_t inner = 0, moved = 0; /* k mod inner; stride * (k / inner) mod 61 */
    for (int64_t k = 0; k < size; k++) {
        const int64_t bucket = moved + plan->buckets[inner];
        sketch[bucket >= WIDTH ? bucket - WIDTH : bucket] += positive[k] - negative[k];
        if (++inner == plan->head.inner) {
            inner = 0;
            moved += plan->head.stride;
            moved -= moved >= WIDTH ? WIDTH : 0;
        }
    }
}

/* Fill in sums and sketch of x, or of x - y; memory is room for two times (period + 61 inner) doubles. */
static void run(const void *x, const void *y, int kind, const Plan *plan, uint64_t seed, Sums *sums, double *sketch,
                double *memory)
{
    const int64_t size = plan->head.period + WIDTH * plan->head.inner;
    const Sums empty = {INFINITY, -INFINITY, 0, 0, 0, 0, 0, 0};
    double *negative = memory, *positive = memory + size;
    memset(memory, 0, 2 * size * sizeof *memory);
    *sums = empty;
    if (kind < FLOATS) passes[y != NULL][kind](x, y ? y : x, plan, sums, negative, positive);
    if (kind >= FLOATS || !isfinite(sums->squares)) {
        memset(memory, 0, 2 * size * sizeof *memory);
        *sums = empty;
        careful[kind](x, y, plan, seed, sums, negative, positive);
    }
    fold(plan, negative, positive, sketch);
}

/* Point into the bytes of a plan. */
static int read_plan(PyObject *bytes, Plan *plan)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) return -1;
    memcpy(&plan->head, data, sizeof(Head));
    if (plan->head.axes > MAX_AXES || plan->head.period > MAX_PERIOD) {
        PyErr_SetString(PyExc_ValueError, "more axes than the kernel knows");
        return -1;
    }
    data += sizeof(Head);
    plan->sizes = (const int64_t *)data;
    data += plan->head.axes * 8;
    plan->signs = (const float *)data;
    data += plan->head.has_signs ? plan->head.n * 4 : 0;
    plan->inner_signs = (const float *)data;
    data += plan->head.inner * 4;
    plan->buckets = (const uint8_t *)data;
    data += plan->head.inner;
    for (int64_t axis = 0; axis < plan->head.axes; axis++) {
        plan->axis_signs[axis] = (const int8_t *)data;
        plan->axis_shifts[axis] = (const uint8_t *)data + plan->sizes[axis];
        data += 2 * plan->sizes[axis];
    }
    return 0;
}

/* Eight bytes, the first of which counts most. */
static unsigned long long half(const char *bytes)
{
    unsigned long long value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | (uint8_t)bytes[i];
    return value;
}

static PyObject *measure(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 7)
        return PyErr_Format(PyExc_TypeError, "measure(address, kind, plan, seed, subtracted, digest, hash_kind)");
    const void *x = PyLong_AsVoidPtr(args[0]), *y = PyLong_AsVoidPtr(args[4]);
    const long kind = PyLong_AsLong(args[1]);
    const uint64_t seed = PyLong_AsUnsignedLongLong(args[3]);
    Plan plan;
    char *digest;
    Py_ssize_t length;
    if (PyErr_Occurred() || read_plan(args[2], &plan) < 0) return NULL;
    if (PyBytes_AsStringAndSize(args[5], &digest, &length) < 0) return NULL;
    if (length != 16) return PyErr_Format(PyExc_ValueError, "a digest of %zd bytes", length);
    if (kind < 0 || kind >= KINDS) return PyErr_Format(PyExc_ValueError, "kind %ld", kind);
    const int64_t size = plan.head.period + WIDTH * plan.head.inner, elements = plan.head.n * plan.head.rows;
    double small[2 * (1024 + WIDTH)], sketch[WIDTH], *memory = small;
    if (size > 1024 + WIDTH && !(memory = malloc(2 * size * sizeof *memory))) return PyErr_NoMemory();
    Sums s;
    PyThreadState *state = elements >= ALONE ? PyEval_SaveThread() : NULL;
    run(x, y, (int)kind, &plan, seed, &s, sketch, memory);
    if (state) PyEval_RestoreThread(state);
    if (memory != small) free(memory);
    const double finite = (double)(elements - s.nan - s.posinf - s.neginf), nothing = NAN;
    return Py_BuildValue("(dddddLLLLKKO)y#", finite ? s.low : nothing, finite ? s.high : nothing, s.total / finite,
                         sqrt(s.squares / finite), sqrt(s.squares), (long long)s.nan, (long long)s.posinf,
                         (long long)s.neginf, (long long)s.zeros, half(digest + 8), half(digest), args[6],
                         (char *)sketch, (Py_ssize_t)sizeof sketch);
}

static PyObject *xxh3_128_digest; /* of the package xxhash */

static PyObject *digest(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) return PyErr_Format(PyExc_TypeError, "digest(address, nbytes)");
    char nothing, *address = PyLong_AsVoidPtr(args[0]);
    const Py_ssize_t size = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) return NULL;
    PyObject *view = PyMemoryView_FromMemory(size ? address : &nothing, size, PyBUF_READ);
    if (!view) return NULL;
    PyObject *found = PyObject_CallFunctionObjArgs(xxh3_128_digest, view, NULL);
    Py_DECREF(view);
    return found;
}

static PyObject *use(PyObject *module, PyObject *name)
{
    PyObject *bytes = PyUnicode_AsUTF8String(name);
    if (!bytes) return NULL;
    const int found = choose_instructions(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    return PyBool_FromLong(found);
}

static PyMethodDef methods[] = {
    {"measure", (PyCFunction)(void (*)(void))measure, METH_FASTCALL,
     "measure(address, kind, plan, seed, subtracted, digest, hash_kind) -> (the fields of TensorStats), sketch"},
    {"digest", (PyCFunction)(void (*)(void))digest, METH_FASTCALL, "digest(address, nbytes) -> xxh3_128, big-endian"},
    {"use", use, METH_O, "use(name) -> whether the machine has this instruction set; it is used from now on"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernel", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void)
{
    choose_instructions(NULL);
    PyObject *xxhash = PyImport_ImportModule("xxhash");
    if (!xxhash || !(xxh3_128_digest = PyObject_GetAttrString(xxhash, "xxh3_128_digest"))) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "instructions", instructions) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
