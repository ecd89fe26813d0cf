/* Tensors that lie in memory in another order than C's. Included by kernel.c.
 *
 * A window goes over a tensor in C order. What is in it lies one behind the other: the tensor itself where it lies so, else blocks that
 * are packed into memory that stays in the cache. A block is some indices of one axis, with all of the axes behind it. Where
 * another axis than the last is the one along which memory is dense, blocks have cache lines of its indices, and are transposed: each
 * line is read once.
 */
#define LINE 64
#define WIDEST 16 /* bytes of what is moved as one */
#define KEPT (BLOCK + LINE) /* bytes before what is read next, for the hash */
#define PAGE 4096
#define NEAR (1 << 17) /* bytes of a block, where a line must not make it more */
#define FAR (1 << 21)  /* of one whose lines lie in pages of their own: several lines of a page at a time take a third less */

/* An axis: its size, and the bytes between two of its indices where they are read and where they are written. */
typedef struct {
    int64_t size, from, to;
} Along;

typedef struct {
    const char *at, *end; /* what is read next, and the end of what is there */
    const char *tensor;
    int64_t nbytes, left; /* of the tensor; of it what is not there yet */
    char *memory;
    int64_t width, split, step; /* bytes of an element; the axis of a block's indices, and how many; no step: nothing is packed */
    int64_t count, levels;
    Along axes[MAX_AXES], loops[MAX_AXES + 1], *stepped; /* the tensor's, in C order; those of a block, the two of a plane last */
} Window;

#if defined(__clang__)
#define SHUFFLE(kind, a, b, ...) (Vector) __builtin_shufflevector((kind)(a), (kind)(b), __VA_ARGS__)
#else
#define SHUFFLE(kind, a, b, ...) (Vector) __builtin_shuffle((kind)(a), (kind)(b), (kind){__VA_ARGS__})
#endif
typedef uint8_t Vector __attribute__((vector_size(WIDEST)));
typedef uint16_t Vector16 __attribute__((vector_size(WIDEST)));
typedef uint32_t Vector32 __attribute__((vector_size(WIDEST)));
typedef uint64_t Vector64 __attribute__((vector_size(WIDEST)));
#define INLINE static inline __attribute__((always_inline)) /* (for every width its own: what is known of it is computed by the compiler) */

/* The elements of the lower halves of two vectors in turn, then those of the upper ones. */
INLINE void interleave(int64_t width, Vector a, Vector b, Vector *both)
{
    if (width == 1) {
        both[0] = SHUFFLE(Vector, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        both[1] = SHUFFLE(Vector, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    } else if (width == 2) {
        both[0] = SHUFFLE(Vector16, a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        both[1] = SHUFFLE(Vector16, a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    } else if (width == 4) {
        both[0] = SHUFFLE(Vector32, a, b, 0, 4, 1, 5);
        both[1] = SHUFFLE(Vector32, a, b, 2, 6, 3, 7);
    } else {
        both[0] = SHUFFLE(Vector64, a, b, 0, 2);
        both[1] = SHUFFLE(Vector64, a, b, 1, 3);
    }
}

/* Transpose as many lines as a vector has elements, of as many elements: interleaving the first half with the second, again and again. */
INLINE void transpose_vectors(int64_t width, const char *from, char *to, int64_t to_row)
{
    enum { MOST = WIDEST };
    const int64_t lanes = WIDEST / width;
    Vector now[MOST], next[MOST];
    for (int64_t i = 0; i < lanes; i++) memcpy(&now[i], from + i * LINE, WIDEST);
    for (int64_t round = 1; round < lanes; round *= 2) {
        for (int64_t i = 0; i < lanes / 2; i++) interleave(width, now[i], now[i + lanes / 2], next + 2 * i);
        for (int64_t i = 0; i < lanes; i++) now[i] = next[i];
    }
    for (int64_t i = 0; i < lanes; i++) memcpy(to + i * to_row, &now[i], WIDEST);
}

/* Transpose up to a line of rows and as many columns, by way of memory in the first cache: lines may be far apart, in one set of it. */
INLINE void transpose_tile(int64_t width, Along rows, Along columns, const char *from, char *to)
{
    const int64_t lanes = WIDEST / width, ahead = LINE / width * columns.from;
    char tile[LINE / width][LINE];
    if (rows.from == width && rows.size * width == LINE) {
        for (int64_t c = 0; c < columns.size; c++, from += columns.from) {
            __builtin_prefetch(from + ahead);
            memcpy(tile[c], from, LINE);
        }
    } else {
        for (int64_t c = 0; c < columns.size; c++)
            for (int64_t r = 0; r < rows.size; r++) memcpy(tile[c] + r * width, from + c * columns.from + r * rows.from, width);
    }
    const int64_t whole_rows = rows.size / lanes * lanes, whole_columns = columns.size / lanes * lanes;
    for (int64_t r = 0; r < whole_rows; r += lanes)
        for (int64_t c = 0; c < whole_columns; c += lanes)
            transpose_vectors(width, tile[c] + r * width, to + r * rows.to + c * width, rows.to);
    for (int64_t r = 0; r < rows.size; r++)
        for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns.size; c++)
            memcpy(to + r * rows.to + c * width, tile[c] + r * width, width);
}

/* Copy a plane, of which a row's elements are written one behind the other. */
INLINE void copy_plane(int64_t width, Along rows, Along columns, const char *from, char *to)
{
    const int64_t side = LINE / width;
    if (rows.from > 0 && rows.from < columns.from) {
        for (int64_t c = 0; c < columns.size; c += side) {
            for (int64_t r = 0; r < rows.size; r += side) {
                const char *first = from + r * rows.from + c * columns.from;
                const Along some = {rows.size - r < side ? rows.size - r : side, rows.from, rows.to};
                const Along others = {columns.size - c < side ? columns.size - c : side, columns.from, width};
                transpose_tile(width, some, others, first, to + r * rows.to + c * width);
            }
        }
        return;
    }
    for (int64_t r = 0; r < rows.size; r++, from += rows.from, to += rows.to) {
        if (columns.from == width) memcpy(to, from, columns.size * width);
        else
            for (int64_t c = 0; c < columns.size; c++) memcpy(to + c * width, from + c * columns.from, width);
    }
}

static void copy(const Window *window, const Along *loop, const char *from, char *to)
{
    if (loop - window->loops < window->levels - 2) {
        for (int64_t i = 0; i < loop->size; i++) copy(window, loop + 1, from + i * loop->from, to + i * loop->to);
        return;
    }
    switch (window->width) {
    case 1: copy_plane(1, loop[0], loop[1], from, to); return;
    case 2: copy_plane(2, loop[0], loop[1], from, to); return;
    case 4: copy_plane(4, loop[0], loop[1], from, to); return;
    case 8: copy_plane(8, loop[0], loop[1], from, to); return;
    default: copy_plane(16, loop[0], loop[1], from, to);
    }
}

/* Pack the next block; return its end. */
static char *pack(Window *window, char *to)
{
    const char *from = window->tensor;
    int64_t rest = window->nbytes - window->left, index = 0;
    for (int64_t axis = 0; axis <= window->split; axis++) {
        index = rest / window->axes[axis].to;
        rest %= window->axes[axis].to;
        from += index * window->axes[axis].from;
    }
    const int64_t behind = window->axes[window->split].size - index;
    window->stepped->size = behind < window->step ? behind : window->step;
    copy(window, window->loops, from, to);
    const int64_t size = window->stepped->size * window->axes[window->split].to;
    window->left -= size;
    return to + size;
}

static void window_start(Window *window)
{
    window->at = window->step ? window->memory + KEPT : window->tensor;
    window->end = window->step ? window->at : window->tensor + window->nbytes;
    window->left = window->step ? window->nbytes : 0;
}

static void window_more(Window *window)
{
    const int64_t size = KEPT + (window->end - window->at);
    memmove(window->memory, window->at - KEPT, size);
    window->at = window->memory + KEPT;
    window->end = pack(window, window->memory + size);
}

/* Return how many elements a pass may be asked for, which stops at the end of a period: it must be there. */
static int64_t window_ready(Window *window, int64_t size, int64_t period)
{
    while (window->left && window->end - window->at < period * size) window_more(window);
    return window->left ? (window->end - window->at) / size - period + 1 : INT64_MAX;
}

/* Have all of the tensor in C order, at window->tensor; return whether there was memory for it. */
static int window_all(Window *window)
{
    if (!window->step) return 1;
    char *all = malloc(window->nbytes);
    if (!all) return 0;
    window->left = window->nbytes;
    for (char *end = all; window->left;) end = pack(window, end);
    free(window->memory);
    window->tensor = window->memory = all;
    window->step = 0;
    window_start(window);
    return 1;
}

static void window_close(Window *window)
{
    free(window->memory);
}

static Digest window_digest(Window *window)
{
    Hash hash;
    hash_start(&hash, window->nbytes);
    for (window_start(window);; window_more(window)) {
        hash_until(&hash, window->end, window->end - window->at);
        window->at = window->end;
        if (!window->left) return hash_end(&hash, window->end);
    }
}

/* The axes of a tensor of elements of this size, of which the layout has the sizes and then the strides: without those of size 1, and
 * those that lie behind one another as one. */
static int read_layout(Window *window, PyObject *layout, int64_t size)
{
    const Py_ssize_t count = PyTuple_Size(layout) / 2;
    for (Py_ssize_t i = 0; i < count; i++) {
        const int64_t indices = PyLong_AsLongLong(PyTuple_GetItem(layout, i));
        const int64_t from = size * PyLong_AsLongLong(PyTuple_GetItem(layout, count + i));
        Along *last = window->axes + window->count - 1;
        if (indices == 1) continue;
        if (window->count && last->from == indices * from) *last = (Along){last->size * indices, from, 0};
        else if (window->count < MAX_AXES) window->axes[window->count++] = (Along){indices, from, 0};
        else PyErr_SetString(PyExc_ValueError, "more axes than the kernel knows");
    }
    for (int64_t axis = window->count - 1; axis >= 0; axis--) {
        window->axes[axis].to = size;
        size *= window->axes[axis].size;
    }
    if (!PyErr_Occurred() && size != window->nbytes) PyErr_SetString(PyExc_ValueError, "a layout of another shape than the plan's");
    return PyErr_Occurred() ? -1 : 0;
}

/* Choose how blocks are cut and in which order they are read. */
static void plan_blocks(Window *window)
{
    const Along *axes = window->axes;
    const int64_t last = window->count - 1;
    int64_t dense = last, split;
    for (int64_t axis = last - 1; axis >= 0; axis--)
        dense = axes[axis].from > 0 && axes[axis].from < axes[dense].from ? axis : dense;
    const int64_t room = dense != last && axes[last].from >= PAGE ? FAR : NEAR;
    for (split = dense; split > 0 && axes[split].size * axes[split].to < room; split--) {}
    const int64_t least = split == dense && dense != last ? LINE / window->width : 1;
    const int64_t fitting = room / axes[split].to / least * least, step = fitting > least ? fitting : least;
    window->split = split;
    window->step = step < axes[split].size ? step : axes[split].size;
    window->levels = 0;
    if (split == last) window->loops[window->levels++] = (Along){1, 0, 0}; /* a plane has two */
    for (int64_t axis = split; axis <= last; axis++)
        if (axis == last || axis != dense) window->loops[window->levels++] = axes[axis];
    if (dense != last) {
        window->loops[window->levels] = window->loops[window->levels - 1];
        window->loops[window->levels++ - 1] = axes[dense];
    }
    window->stepped = window->loops + (split == last ? 1 : split == dense ? window->levels - 2 : 0);
}

/* Go over a tensor in memory that lies as the layout says, or in C order (None). */
static int window_open(Window *window, const void *tensor, int64_t nbytes, int64_t size, PyObject *layout, int64_t period)
{
    window->tensor = tensor;
    window->nbytes = nbytes;
    window->width = size;
    window->count = window->step = 0;
    window->memory = NULL;
    if (layout != Py_None && nbytes) {
        if (read_layout(window, layout, size) < 0) return -1;
        const Along *last = window->axes + window->count - 1;
        const int64_t run = window->count && last->from == size ? last->size * size : 0;
        if (run && run <= WIDEST && !(run & (run - 1))) { /* moved as one: (real, imaginary), for example */
            window->width = run;
            window->count--;
        }
        if (window->count && run != nbytes) {
            plan_blocks(window);
            const int64_t carried = period * size < nbytes ? period * size : nbytes;
            window->memory = malloc(KEPT + carried + window->step * window->axes[window->split].to);
            if (!window->memory) return PyErr_NoMemory(), -1;
        }
    }
    window_start(window);
    return 0;
}
