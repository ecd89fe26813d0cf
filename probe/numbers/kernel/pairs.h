/* Sums over the pairs of elements of two tensors: what pair_loop.h adds up for each instruction set, and the interface to Python.
 * Included by kernel.c.
 */
#include <float.h>

#define PAIRS 1024 /* that are widened at a time */
#define NEARLY (1 - 1e-12) /* what a product may be off by, in this direction */
#define ALONE_PAIRS (1 << 14) /* pairs from which on other threads of Python may run meanwhile */

typedef struct {
    double squared, squares_a, squares_b, inner, absolute, largest, share; /* of the differences: their squares, sizes, the largest, … */
    int64_t at, mismatched, count; /* where the largest stands; pairs that are not finite in the same way; all that were taken in */
} PairSums;

typedef void (*Pairs)(const void *, int, const void *, int, int64_t, PairSums *);
static Pairs pairs;

/* Put zeros where one of a pair is not finite; return how many are not so in the same way. */
static int64_t leave_out_nonfinite(double *a, double *b, int64_t count)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(a[i]) && isfinite(b[i])) continue;
        found += a[i] != b[i] && !(isnan(a[i]) && isnan(b[i]));
        a[i] = b[i] = 0;
    }
    return found;
}

static PyObject *sum_pairs(PyObject *module, PyObject *const *args, Py_ssize_t arguments)
{
    if (arguments != 6) return PyErr_Format(PyExc_TypeError, "sum_pairs(address, kind, address, kind, count, share)");
    const void *a = PyLong_AsVoidPtr(args[0]), *b = PyLong_AsVoidPtr(args[2]);
    const int kind_a = (int)PyLong_AsLong(args[1]), kind_b = (int)PyLong_AsLong(args[3]);
    const int64_t count = PyLong_AsLongLong(args[4]);
    PairSums sums = {.share = PyFloat_AsDouble(args[5])};
    if (PyErr_Occurred()) return NULL;
    if (kind_a < 0 || kind_a >= FLOATS || kind_b < 0 || kind_b >= FLOATS)
        return PyErr_Format(PyExc_ValueError, "pairs are of floats, not of kinds %d and %d", kind_a, kind_b);
    PyThreadState *state = count >= ALONE_PAIRS ? PyEval_SaveThread() : NULL;
    pairs(a, kind_a, b, kind_b, count, &sums);
    if (state) PyEval_RestoreThread(state);
    return Py_BuildValue("dddddddLL", sums.squared, sums.squares_a, sums.squares_b, sums.inner, sums.absolute, sums.largest,
                         sums.share, (long long)sums.at, (long long)sums.mismatched);
}
