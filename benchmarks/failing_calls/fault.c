/* Loaded in front of the C library: lets the n-th system call fail that concerns a file below one folder.

   What happened lies in memory that a forked process shares with its parent, so that it can be read when it was killed. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 100000
#define FILES 65536

enum kind { OPEN, CLOSE, STAT, FSTAT, FTRUNCATE, PREAD, READ, PWRITE, PWRITEV, WRITE, LSEEK, RENAME, UNLINK, STATVFS,
            FSYNC, FALLOCATE, MMAP, THREAD };
enum share { NOTHING, HALF, ALL };

struct state {
    int armed, error, share, is_short, lasting, fired, killed;
    long at, kill_after, calls, since, commits, commits_before;
    unsigned char kinds[MOST];
};

static struct state *state;
static char folder[4096];
static unsigned char concerned[FILES];

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__)) dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void)
{
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void fault_arm(const char *below, long at, int error, int share, int is_short, int lasting, long kill_after)
{
    memset(state, 0, sizeof *state);
    strncpy(folder, below, sizeof folder - 1);
    *state = (struct state) {.armed = 1, .at = at, .error = error, .share = share, .is_short = is_short,
                             .lasting = lasting, .kill_after = kill_after};
}
void fault_disarm(void) { state->armed = 0; }
void fault_committed(void) { state->commits++; }
long fault_commits_before(void) { return state->commits_before; }
long fault_calls(void) { return state->calls; }
int fault_kind(long number) { return state->kinds[number]; }
int fault_fired(void) { return state->fired; }
int fault_killed(void) { return state->killed; }

/* A call that changes nothing: to be killed in it is to be killed before the next one. */
static int only_looks(enum kind kind)
{
    return kind == STAT || kind == FSTAT || kind == STATVFS || kind == PREAD || kind == READ || kind == LSEEK;
}

/* Count a call; say whether it fails. Kills the process where that was asked for. */
static int fails(enum kind kind)
{
    long number = __sync_fetch_and_add(&state->calls, 1);
    if (number < MOST) state->kinds[number] = kind;
    if (state->fired) {
        if (state->kill_after >= 0 && !only_looks(kind) && state->since++ == state->kill_after) {
            state->killed = 1;
            kill(getpid(), SIGKILL);
        }
        return state->lasting;
    }
    if (number != state->at) return 0;
    state->commits_before = state->commits;
    state->fired = 1;
    return 1;
}
static int below(const char *path) { return state && state->armed && path && !strncmp(path, folder, strlen(folder)); }
static int known(int file) { return state && state->armed && file >= 0 && file < FILES && concerned[file]; }
static int opened(int file, const char *path)
{
    if (file >= 0 && file < FILES) concerned[file] = below(path);
    return file;
}
static int failed(void) { errno = state->error; return -1; }
static size_t part(size_t size) { return state->share == ALL ? size : size < 2 ? size : size / 2; }

#define OPENING(name, kind_of, before, ...) \
    int name(__VA_ARGS__, int flags, ...) { \
        va_list more; va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; va_end(more); \
        kind_of \
        if (below(path) && fails(OPEN) && !state->is_short) return failed(); \
        return opened(real(before path, flags, mode), path); }
OPENING(open, REAL(int, "open", const char *, int, ...);, , const char *path)
OPENING(open64, REAL(int, "open64", const char *, int, ...);, , const char *path)
#define AT at,
OPENING(openat, REAL(int, "openat", int, const char *, int, ...);, AT, int at, const char *path)
OPENING(openat64, REAL(int, "openat64", int, const char *, int, ...);, AT, int at, const char *path)

/* A file is closed even where that fails, as with Linux. */
int close(int file)
{
    REAL(int, "close", int);
    int is_known = known(file), fail = is_known && fails(CLOSE) && !state->is_short;
    if (is_known) concerned[file] = 0;
    int done = real(file);
    return fail ? failed() : done;
}

#define OF_PATH(name, kind, args, pass) \
    int name args { REAL(int, #name, TYPES args); \
        if (below(path) && fails(kind) && !state->is_short) return failed(); \
        return real pass; }
#define TYPES(...) __VA_ARGS__
OF_PATH(stat, STAT, (const char *path, struct stat *found), (path, found))
OF_PATH(stat64, STAT, (const char *path, struct stat64 *found), (path, found))
OF_PATH(lstat, STAT, (const char *path, struct stat *found), (path, found))
OF_PATH(lstat64, STAT, (const char *path, struct stat64 *found), (path, found))
OF_PATH(__xstat64, STAT, (int version, const char *path, struct stat64 *found), (version, path, found))
OF_PATH(unlink, UNLINK, (const char *path), (path))
OF_PATH(rename, RENAME, (const char *path, const char *other), (path, other))
OF_PATH(statvfs, STATVFS, (const char *path, struct statvfs *found), (path, found))
OF_PATH(statvfs64, STATVFS, (const char *path, struct statvfs64 *found), (path, found))

#define OF_FILE(type, name, kind, args, pass) \
    type name args { REAL(type, #name, TYPES args); \
        if (known(file) && fails(kind) && !state->is_short) { if (state->share == ALL) real pass; return failed(); } \
        return real pass; }
OF_FILE(int, fstat, FSTAT, (int file, struct stat *found), (file, found))
OF_FILE(int, __fxstat64, FSTAT, (int version, int file, struct stat64 *found), (version, file, found))
OF_FILE(int, fstat64, FSTAT, (int file, struct stat64 *found), (file, found))
OF_FILE(int, ftruncate, FTRUNCATE, (int file, off_t size), (file, size))
OF_FILE(int, ftruncate64, FTRUNCATE, (int file, off64_t size), (file, size))
OF_FILE(off_t, lseek, LSEEK, (int file, off_t offset, int whence), (file, offset, whence))
OF_FILE(off64_t, lseek64, LSEEK, (int file, off64_t offset, int whence), (file, offset, whence))
OF_FILE(int, fsync, FSYNC, (int file), (file))
OF_FILE(int, fdatasync, FSYNC, (int file), (file))
OF_FILE(int, fallocate, FALLOCATE, (int file, int mode, off_t offset, off_t size), (file, mode, offset, size))
OF_FILE(int, fallocate64, FALLOCATE, (int file, int mode, off64_t offset, off64_t size), (file, mode, offset, size))

/* One that moves bytes may do a part: and fail, or say so. */
#define MOVING(name, kind, buffer, ...) \
    ssize_t name(int file, buffer, size_t size __VA_OPT__(,) __VA_ARGS__) { \
        REAL(ssize_t, #name, int, buffer, size_t __VA_OPT__(,) __VA_ARGS__); \
        if (!known(file) || !fails(kind)) return real(file, data, size PASSED); \
        ssize_t done = state->share == NOTHING ? 0 : real(file, data, part(size) PASSED); \
        return state->is_short ? done : failed(); }
#define PASSED , offset
MOVING(pread, PREAD, void *data, off_t offset)
MOVING(pread64, PREAD, void *data, off64_t offset)
MOVING(pwrite, PWRITE, const void *data, off_t offset)
MOVING(pwrite64, PWRITE, const void *data, off64_t offset)
#undef PASSED
#define PASSED
MOVING(read, READ, void *data)
MOVING(write, WRITE, const void *data)

/* The first half of several parts; of a single one its first bytes. */
ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off64_t offset, int flags)
{
    REAL(ssize_t, "pwritev64v2", int, const struct iovec *, int, off64_t, int);
    if (!known(file) || !fails(PWRITEV)) return real(file, parts, count, offset, flags);
    struct iovec first = {parts[0].iov_base, part(parts[0].iov_len)};
    ssize_t done = state->share == NOTHING ? 0 : state->share == ALL ? real(file, parts, count, offset, flags)
        : count > 1 ? real(file, parts, count / 2, offset, flags) : real(file, &first, 1, offset, flags);
    return state->is_short ? done : failed();
}

/* Of what concerns no file: memory that Python's module mmap asks for, and threads that Python starts. */
static int called_from(void *address, const char *name)
{
    Dl_info found;
    return dladdr(address, &found) && found.dli_fname && strstr(found.dli_fname, name);
}
#define MAPPING(name, type) \
    void *name(void *address, size_t size, int access, int flags, int file, type offset) { \
        REAL(void *, #name, void *, size_t, int, int, int, type); \
        if (state && state->armed && called_from(__builtin_return_address(0), "/mmap.") && fails(MMAP) && !state->is_short) { \
            failed(); return MAP_FAILED; } \
        return real(address, size, access, flags, file, offset); }
MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*work)(void *), void *given)
{
    REAL(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (state && state->armed && called_from(__builtin_return_address(0), "python") && fails(THREAD) && !state->is_short)
        return EAGAIN;
    return real(thread, how, work, given);
}
