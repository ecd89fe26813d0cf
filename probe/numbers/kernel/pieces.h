/* A tensor is measured piece by piece. Included by kernel.c.
 *
 * The shape alone decides where a tensor is cut, and the sums of pieces are added up in their order: so the numbers are the same whether
 * one thread takes all of them or several do. Threads are those of the OpenMP that the training computes with, which wait for its next
 * operation meanwhile; threads of another pool would wait for the cores that these hold.
 */
#define LEAST (1 << 14) /* elements of a piece: a smaller one costs as much to begin with as to read */
#define USUAL (1 << 16) /* of a piece, where that makes four and more */
#define MOST 64         /* pieces, where rows do not cut them short */

/* What is known of a piece, or of all of them. */
typedef struct {
    Sums sums;
    double sketch[WIDTH];
} Part;

static const Sums EMPTY = {INFINITY, -INFINITY, 0, 0, 0, 0, 0, 0};

/* How a tensor is cut: into pieces of whole rows, or rows into pieces of whole periods. */
typedef struct {
    int64_t count, rows, elements; /* pieces; rows of each, or, where there are none, elements of a row */
} Cut;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t in_whole(int64_t size, int64_t unit)
{
    return (size + unit - 1) / unit;
}

static Cut cut_of(const Plan *plan)
{
    const int64_t n = plan->head.n, rows = plan->head.rows, period = plan->head.period, all = n * rows;
    const int64_t wanted = larger(larger(smaller(all / 4, USUAL), LEAST), all / MOST);
    if (all < 2 * wanted) return (Cut){1, rows ? rows : 1, 0};
    if (n <= wanted) return (Cut){in_whole(rows, wanted / n), wanted / n, 0};
    const int64_t elements = in_whole(wanted, period) * period;
    return (Cut){rows * in_whole(n, elements), 0, elements};
}

/* acc[k] belongs to inner element k mod inner and index k / inner of the axis before it: what lies 61 indices apart is of one bucket.
 * Fold it into 61 buckets. */
static void fold(const Plan *plan, double *negative, double *positive, double *sketch)
{
    const int64_t inner = plan->head.inner, cycle = WIDTH * inner, size = plan->head.period + cycle;
    for (int64_t k = 0; k < size; k++) positive[k] -= negative[k];
    for (int64_t k = cycle; k < size; k += cycle)
        for (int64_t i = 0; i < smaller(cycle, size - k); i++) positive[i] += positive[k + i];
    memset(sketch, 0, WIDTH * sizeof *sketch);
    int64_t moved = 0; /* stride * index mod 61 */
    for (const double *at = positive; at < positive + cycle; at += inner) {
        for (int64_t i = 0; i < inner; i++) {
            const int64_t bucket = moved + plan->buckets[i];
            sketch[bucket >= WIDTH ? bucket - WIDTH : bucket] += at[i];
        }
        moved += plan->head.stride;
        moved -= moved >= WIDTH ? WIDTH : 0;
    }
}

/* Room for the sums of a pass, on the stack where it is enough. */
typedef struct {
    double small[2 * (1024 + WIDTH)], *memory;
} Room;

static int start(Progress *at, const Plan *plan, Room *room)
{
    const int64_t size = plan->head.period + WIDTH * plan->head.inner;
    room->memory = size <= 1024 + WIDTH ? room->small : malloc(2 * size * sizeof(double));
    at->negative = room->memory;
    at->positive = room->memory + size;
    return !!room->memory;
}

static void end(Room *room)
{
    if (room->memory != room->small) free(room->memory);
}

static int64_t room_size(const Progress *at)
{
    return 2 * (at->positive - at->negative) * sizeof(double);
}

/* Begin with a piece; return its first element. */
static int64_t begin(Progress *at, const Plan *plan, Cut cut, int64_t piece)
{
    const int64_t n = plan->head.n, rows = plan->head.rows, in_row = cut.rows ? 1 : in_whole(n, cut.elements);
    memset(at->negative, 0, room_size(at));
    at->sums = EMPTY;
    at->row = cut.rows ? piece * cut.rows : piece / in_row;
    at->first = piece % in_row * cut.elements;
    at->until = cut.rows ? smaller(cut.rows, rows - at->row) * n : smaller(cut.elements, n - at->first);
    at->done = at->since = at->rest_zeros = 0;
    at->rest = at->rest_squares = 0;
    odometer_start(&at->odometer, plan, at->row);
    return at->row * n + at->first;
}

static void add(Part *to, const Part *from)
{
    const Sums *sums = &from->sums;
    to->sums.low = sums->low < to->sums.low ? sums->low : to->sums.low;
    to->sums.high = sums->high > to->sums.high ? sums->high : to->sums.high;
    to->sums.total += sums->total;
    to->sums.squares += sums->squares;
    to->sums.zeros += sums->zeros;
    for (int i = 0; i < WIDTH; i++) to->sketch[i] += from->sketch[i];
}

/* A tensor, or one and what it is a change of, to be measured and hashed. */
typedef struct {
    const Plan *plan;
    int kind;
    uint64_t seed;
    Window *x, *y;        /* y: NULL where there is no change */
    Digest *of_x, *of_y; /* NULL where it is not hashed */
    Part plain, change;  /* x, and x - y */
    Cut cut;
    Part *parts; /* where several threads measure: of each piece of x, then of each of x - y */
    int64_t next; /* what no thread has taken yet */
} Work;

static void step(Window *window, int64_t size, Hash *hash)
{
    window->at += size;
    if (hash) hash_until(hash, window->at, size);
}

/* Pass over a piece of x, and of x - y where there is y, and hash either: each what the one before has brought into the cache. */
static void sweep(Window *x, Window *y, int kind, const Plan *plan, Progress *plain, Progress *change, Hash *of_x, Hash *of_y)
{
    const int64_t size = bytes_of[kind], period = plan->head.period;
    int64_t done = 0;
    do {
        int64_t count = smaller(smaller(AT_ONCE / size, plain->until - done), window_ready(x, size, period));
        if (y) count = smaller(count, window_ready(y, size, period));
        passes[0][kind](x->at, x->at, plan, plain, count);
        if (y) passes[1][kind](x->at, y->at, plan, change, count);
        step(x, (plain->done - done) * size, of_x);
        if (y) step(y, (plain->done - done) * size, of_y);
        done = plain->done;
    } while (done < plain->until);
}

static void finish(const Plan *plan, Progress *at, Part *part)
{
    part->sums = at->sums;
    fold(plan, at->negative, at->positive, part->sketch);
}

static int measure_in_turn(Work *work)
{
    Room rooms[2];
    Progress plain, change;
    if (!start(&plain, work->plan, &rooms[0])) return 0;
    if (!start(&change, work->plan, &rooms[1])) return end(&rooms[0]), 0;
    Hash hashes[2];
    Window *windows[2] = {work->x, work->y};
    Digest *digests[2] = {work->of_x, work->of_y};
    for (int i = 0; i < 2; i++) {
        if (windows[i]) window_start(windows[i]);
        if (digests[i]) hash_start(&hashes[i], windows[i]->nbytes);
    }
    for (int64_t piece = 0; piece < work->cut.count; piece++) {
        Part part;
        begin(&plain, work->plan, work->cut, piece);
        if (work->y) begin(&change, work->plan, work->cut, piece);
        sweep(work->x, work->y, work->kind, work->plan, &plain, &change, work->of_x ? &hashes[0] : NULL, work->of_y ? &hashes[1] : NULL);
        finish(work->plan, &plain, &part);
        add(&work->plain, &part);
        if (!work->y) continue;
        finish(work->plan, &change, &part);
        add(&work->change, &part);
    }
    for (int i = 0; i < 2; i++) {
        if (digests[i]) *digests[i] = hash_end(&hashes[i], windows[i]->at);
        end(&rooms[i]);
    }
    return 1;
}

typedef void (*RunInThreads)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*Ask)(void);
static RunInThreads run_in_threads;
static Ask count_threads, is_inside;
static int cores;

/* Measure one piece in its place. */
static void take_piece(const Work *work, int64_t piece, int is_change, Progress *at)
{
    const int64_t first = begin(at, work->plan, work->cut, piece) * bytes_of[work->kind];
    const char *x = work->x->tensor + first, *y = is_change ? work->y->tensor + first : x;
    passes[is_change][work->kind](x, y, work->plan, at, at->until);
    finish(work->plan, at, work->parts + is_change * work->cut.count + piece);
}

/* What every thread does: take what is next, a hash or a piece, until there is none left. */
static void take(void *of)
{
    Work *work = of;
    const int64_t hashes = !!work->of_x + !!work->of_y;
    Room room;
    Progress at;
    if (!start(&at, work->plan, &room)) return; /* the others take what this one does not */
    for (int64_t each; (each = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < hashes + work->cut.count;) {
        if (each < hashes) {
            const Window *window = each ? work->y : work->x;
            *(each ? work->of_y : work->of_x) = digest_of(window->tensor, window->nbytes);
        } else {
            take_piece(work, each - hashes, 0, &at);
            if (work->y) take_piece(work, each - hashes, 1, &at);
        }
    }
    end(&room);
}

/* Tell whether the threads are worth calling: each has a core, and something to do, and they are not at work already. */
static int is_worth(const Plan *plan)
{
    const int threads = count_threads();
    return threads > 1 && threads <= cores && plan->head.n * plan->head.rows >= (int64_t)threads * LEAST && !is_inside();
}

/* Measure in several threads, where a tensor is large and lies as it is read; return whether it was done. */
static int measure_at_once(Work *work)
{
    const int64_t count = work->cut.count;
    const RunInThreads run = __atomic_load_n(&run_in_threads, __ATOMIC_ACQUIRE);
    if (!run || count == 1 || work->x->step || (work->y && work->y->step) || !is_worth(work->plan)) return 0;
    work->parts = malloc((work->y ? 2 : 1) * count * sizeof(Part));
    if (!work->parts) return 0;
    run(take, work, 0, 0);
    const int is_done = work->next > count; /* every one of them was taken by a thread that ended */
    for (int64_t piece = 0; is_done && piece < count; piece++) {
        add(&work->plain, work->parts + piece);
        if (work->y) add(&work->change, work->parts + count + piece);
    }
    free(work->parts);
    return is_done;
}

/* Measure x, or x - y, once more, element by element, where it holds NaN or Inf; return whether there was memory for it. */
static int mend(const Work *work, int is_change, Part *part)
{
    Window *y = is_change ? work->y : NULL;
    if (work->kind < FLOATS && isfinite(part->sums.squares)) return 1;
    Room room;
    Progress at;
    if (!window_all(work->x) || (y && !window_all(y)) || !start(&at, work->plan, &room)) return 0;
    memset(at.negative, 0, room_size(&at));
    at.sums = EMPTY;
    careful[work->kind](work->x->tensor, y ? y->tensor : NULL, work->plan, work->seed, &at.sums, at.negative, at.positive);
    finish(work->plan, &at, part);
    end(&room);
    return 1;
}

/* Measure and hash; return whether there was memory for it. */
static int measure_pieces(Work *work)
{
    work->plain = work->change = (Part){.sums = EMPTY};
    work->cut = cut_of(work->plan);
    const int is_measured = work->kind >= FLOATS || measure_at_once(work) || measure_in_turn(work);
    return is_measured && mend(work, 0, &work->plain) && (!work->y || mend(work, 1, &work->change));
}
