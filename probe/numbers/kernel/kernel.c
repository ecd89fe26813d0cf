/* Statistics and sketch of a tensor in one pass over its memory (docs/evidence/performance.md).
 *
 * What is computed is defined in probe/numbers/statistics.py and probe/numbers/sketch.py, and docs/reference/file-format.md. All integer
 * formulas (signs, buckets) are Python's: they come as a plan, made once per shape (probe/numbers/kernel/__init__.py).
 * rows.h is the loop, passes.h has it for every type of floats, careful.h for integers and tensors with Inf or NaN; hash.h hashes;
 * packing.h reads tensors that lie in another order; pieces.h says who reads which part of memory when, and in which thread; pairs.h sums over
 * two tensors.
 * Here are the choice of the instruction set, and the interface to Python.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "plans, rows and hashes are read and written as they lie in memory: the lowest byte first"
#endif

#define WIDTH 61
#define FLUSH 65536
#define ALONE (1 << 18) /* elements from which on other threads of Python may run meanwhile */
#define AT_ONCE 16384 /* bytes that are in the cache when the next one reads them */

enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, FLOATS, INT8 = FLOATS, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64,
       KINDS };

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "hash.h"

#define MAX_AXES 64
#define MAX_PERIOD (WIDTH * WIDTH)

/* As probe/numbers/kernel/__init__.py lays it out: this head, then the sizes of the axes that are counted (outermost first),
 * the signs of a row's elements (none where a row is long), signs and buckets of the inner block, and for each counted
 * axis its signs and shifts. */
typedef struct {
    int64_t n, rows, axes, inner, period, stride, has_signs;
    uint64_t seed; /* of the row's axis */
    int64_t number; /* no other plan has it */
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

static void odometer_start(Odometer *at, const Plan *plan, int64_t row)
{
    for (int64_t axis = plan->head.axes - 1; axis >= 0; axis--) {
        at->index[axis] = row ? row % plan->sizes[axis] : 0;
        row = row ? row / plan->sizes[axis] : 0;
    }
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

/* How far a pass over a piece of a tensor is (rows.h); at its end, the sums. */
typedef struct {
    Sums sums;
    double *negative, *positive; /* by element of a period, moved by up to 61 buckets: what is folded into the sketch */
    Odometer odometer;
    int64_t until, done, row, first, since, rest_zeros; /* elements of the piece, and of those what is done; the row, and where in it */
    double rest, rest_squares;
    char low[64], high[64], total[64], squares[64], zeros[64]; /* of each lane */
} Progress;

typedef void (*Pass)(const void *, const void *, const Plan *, Progress *, int64_t);

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

#include "pairs.h"

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
#if defined(__x86_64__)
    const Pass (*const all[])[FLOATS] = {passes_avx512, passes_avx2, passes_plain};
    const Blocks all_blocks[] = {blocks_avx512, blocks_avx2, blocks_plain};
    const Pairs all_pairs[] = {pairs_avx512, pairs_avx2, pairs_plain};
#else
    const Pass (*const all[])[FLOATS] = {NULL, NULL, passes_plain};
    const Blocks all_blocks[] = {NULL, NULL, blocks_plain};
    const Pairs all_pairs[] = {NULL, NULL, pairs_plain};
#endif
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
            blocks = all_blocks[i];
            pairs = all_pairs[i];
            instructions = names[i];
            return 1;
        }
    }
    return 0;
}

#include "careful.h"
#include "packing.h"

static const int64_t bytes_of[KINDS] = {4, 8, 2, 2, 1, 1, 2, 2, 4, 4, 8, 8};

#include "pieces.h"

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

/* What is returned of a tensor: the columns of a record from its smallest value to the kind of its hash, without gaps, its sketch,
 * and of which kind and shape it was. */
typedef struct __attribute__((packed)) {
    double low, high, mean, rms, norm;
    int64_t nan, posinf, neginf, zeros;
    Digest digest;
    uint8_t hash_kind;
    double sketch[WIDTH];
    int64_t kind;
} Packed;

static PyObject *packed(const Plan *plan, int kind, const Part *all_of_it, Digest digest, int hash_kind)
{
    const Sums *s = &all_of_it->sums;
    const double finite = (double)(plan->head.n * plan->head.rows - s->nan - s->posinf - s->neginf), nothing = NAN;
    Packed all = {finite ? s->low : nothing, finite ? s->high : nothing, s->total / finite, sqrt(s->squares / finite),
                  sqrt(s->squares), s->nan, s->posinf, s->neginf, s->zeros, digest, (uint8_t)hash_kind, {0},
                  plan->head.number * KINDS + kind};
    memcpy((char *)&all + offsetof(Packed, sketch), all_of_it->sketch, sizeof all_of_it->sketch);
    return PyBytes_FromStringAndSize((const char *)&all, sizeof all);
}

/* The arguments that all have: where, how many bytes, of which kind and shape. */
static int read_place(PyObject *const *args, int64_t *nbytes, int *kind, Plan *plan, uint64_t *seed)
{
    *nbytes = PyLong_AsLongLong(args[0]);
    *kind = (int)PyLong_AsLong(args[1]);
    *seed = PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred() || read_plan(args[2], plan) < 0) return -1;
    if (*kind < 0 || *kind >= KINDS || *nbytes != plan->head.n * plan->head.rows * bytes_of[*kind])
        return PyErr_Format(PyExc_ValueError, "%lld bytes of kind %d are not of this shape", (long long)*nbytes, *kind), -1;
    return 0;
}

static PyObject *measure(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 8) return PyErr_Format(PyExc_TypeError, "measure(address, nbytes, kind, plan, seed, hash_kind, known, layout)");
    const void *x = PyLong_AsVoidPtr(args[0]);
    const int hash_kind = (int)PyLong_AsLong(args[5]);
    int64_t nbytes;
    int kind;
    uint64_t seed;
    Plan plan;
    if (read_place(args + 1, &nbytes, &kind, &plan, &seed) < 0) return NULL;
    const Packed *known = PyBytes_Check(args[6]) && PyBytes_Size(args[6]) == sizeof *known ? (void *)PyBytes_AsString(args[6]) : NULL;
    const int is_alike = hash_kind && known && known->hash_kind && known->kind == plan.head.number * KINDS + kind;
    Window window;
    if (window_open(&window, x, nbytes, bytes_of[kind], args[7], plan.head.period) < 0) return NULL;
    Digest digest = {0, 0};
    PyThreadState *state = plan.head.n * plan.head.rows >= ALONE ? PyEval_SaveThread() : NULL;
    const int is_first = hash_kind && (is_alike || kind >= FLOATS);
    if (is_first) digest = window_digest(&window);
    const int is_same = is_alike && digest.low == known->digest.low && digest.high == known->digest.high;
    Work work = {.plan = &plan, .kind = kind, .seed = seed, .x = &window};
    if (!is_same && hash_kind && !is_first) work.of_x = &digest;
    const int is_whole = is_same || measure_pieces(&work);
    if (state) PyEval_RestoreThread(state);
    PyObject *found = !is_whole ? PyErr_NoMemory()
                      : is_same ? Py_NewRef(args[6])
                                : packed(&plan, kind, &work.plain, digest, hash_kind);
    window_close(&window);
    return found;
}

static PyObject *measure_update(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 9)
        return PyErr_Format(PyExc_TypeError, "measure_update(after, before, nbytes, kind, plan, seed, hash_kind, layout, layout)");
    const void *x = PyLong_AsVoidPtr(args[0]), *y = PyLong_AsVoidPtr(args[1]);
    const int hash_kind = (int)PyLong_AsLong(args[6]);
    int64_t nbytes;
    int kind;
    uint64_t seed;
    Plan plan;
    if (read_place(args + 2, &nbytes, &kind, &plan, &seed) < 0) return NULL;
    if (kind >= FLOATS) return PyErr_Format(PyExc_ValueError, "updates are those of floats, not of kind %d", kind);
    const int64_t size = bytes_of[kind], period = plan.head.period;
    Window windows[2];
    if (window_open(&windows[0], x, nbytes, size, args[7], period) < 0) return NULL;
    if (window_open(&windows[1], y, nbytes, size, args[8], period) < 0) return window_close(&windows[0]), NULL;
    Digest both[2]; /* (before, after) */
    Work work = {.plan = &plan, .kind = kind, .seed = seed, .x = &windows[0], .y = &windows[1], .of_x = &both[1], .of_y = &both[0]};
    PyThreadState *state = plan.head.n * plan.head.rows >= ALONE ? PyEval_SaveThread() : NULL;
    const int is_whole = measure_pieces(&work);
    if (state) PyEval_RestoreThread(state);
    PyObject *found = is_whole ? Py_BuildValue("(NN)", packed(&plan, kind, &work.change, digest_of(both, sizeof both), hash_kind),
                                               packed(&plan, kind, &work.plain, both[1], hash_kind))
                               : PyErr_NoMemory();
    for (int i = 0; i < 2; i++) window_close(&windows[i]);
    return found;
}

/* What of the training's own OpenMP runs a function in all of its threads, says how many they are, and whether they run (addresses, or 0);
 * and how many cores there are for them. */
static PyObject *share(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) return PyErr_Format(PyExc_TypeError, "share(parallel, threads, is_inside, cores)");
    void *found[3];
    for (int i = 0; i < 3; i++) found[i] = PyLong_AsVoidPtr(args[i]);
    const int available = (int)PyLong_AsLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    const int is_whole = found[0] && found[1] && found[2];
    if (is_whole) {
        count_threads = (Ask)found[1];
        is_inside = (Ask)found[2];
        cores = available;
    }
    /* the last: another thread may be about to measure */
    __atomic_store_n(&run_in_threads, is_whole ? (RunInThreads)found[0] : NULL, __ATOMIC_RELEASE);
    return PyBool_FromLong(is_whole);
}

static PyObject *digest(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) return PyErr_Format(PyExc_TypeError, "digest(address, nbytes)");
    const void *address = PyLong_AsVoidPtr(args[0]);
    const Py_ssize_t size = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) return NULL;
    PyThreadState *state = size >= ALONE ? PyEval_SaveThread() : NULL;
    const Digest found = digest_of(address, size);
    if (state) PyEval_RestoreThread(state);
    return Py_BuildValue("KK", (unsigned long long)found.low, (unsigned long long)found.high);
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
     "measure(address, nbytes, kind, plan, seed, hash_kind, known, layout) -> all that is known of a tensor, packed; known, if it is that"},
    {"measure_update", (PyCFunction)(void (*)(void))measure_update, METH_FASTCALL,
     "measure_update(after, before, nbytes, kind, plan, seed, hash_kind, layout of after, of before) -> (after - before, after), packed"},
    {"digest", (PyCFunction)(void (*)(void))digest, METH_FASTCALL, "digest(address, nbytes) -> (low, high) of xxh3_128"},
    {"share", (PyCFunction)(void (*)(void))share, METH_FASTCALL,
     "share(GOMP_parallel, omp_get_max_threads, omp_in_parallel, cores) -> whether large tensors are measured by these threads from now on"},
    {"sum_pairs", (PyCFunction)(void (*)(void))sum_pairs, METH_FASTCALL,
     "sum_pairs(address, kind, address, kind, count, share) -> sums over pairs of elements; share: of the pairs before"},
    {"use", use, METH_O, "use(name) -> whether the machine has this instruction set; it is used from now on"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernel", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void)
{
    choose_instructions(NULL);
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "instructions", instructions) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
