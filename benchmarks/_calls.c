/* The seam between a program and its operating system, for LD_PRELOAD.

   Counted are calls that touch one folder: by a path that is relative or in the folder, or by a
   descriptor of such a path; requests for random numbers; and sleeps. After `fail_call`, the n-th
   of them does nothing and returns an error, except that a close does close. After `join_world`,
   each of them asks a scheduler over a socket (`_world.py`), tells it what came of it, and sees the
   scheduler's clock. Each call itself is the system's own. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST 65536
static const char *folder;
static atomic_char mine[MOST];

/* One call that fails. */
static const char *only;
static long number;
static int error, report;
static atomic_long calls;

/* A world. */
static int world = -1;
static pid_t process;
static const volatile int64_t *now; /* nanoseconds */
struct verdict {
  int32_t error; /* 0: the call is made */
  int32_t most;  /* bytes of a write, or -1 */
  uint64_t seed; /* of random numbers */
};

void fail_call(const char *at, long which, int with, const char *names, int told) {
  calls = 0;
  folder = strdup(at);
  number = which;
  error = with;
  only = *names ? strdup(names) : NULL;
  report = told;
}

void join_world(const char *at, int by, int as, const int64_t *clock) {
  world = by;
  process = as;
  now = clock;
  folder = strdup(at);
}

static int in(const char *path) {
  return folder && path && (path[0] != '/' || !strncmp(path, folder, strlen(folder)));
}

static int held(int file) { return folder && file >= 0 && file < MOST && mine[file]; }

static int at(int place, const char *path) {
  return in(path) && (path[0] == '/' || place == AT_FDCWD || held(place));
}

static int keep(int file, int is_mine) {
  if (file >= 0 && file < MOST) mine[file] = is_mine;
  return file;
}

struct call {
  const char *name;
  int counts;
  int place;         /* descriptor of a file, or of the folder of `path`, or AT_FDCWD */
  const char *path;  /* or NULL */
  int other_place;
  const char *other; /* or NULL */
  long size;
  struct verdict got;
};

/* Write the path of a descriptor, or of a name in its folder. */
static void spell(char *to, size_t most, int place, const char *path) {
  char link[64], base[PATH_MAX] = "";
  if (place >= 0 && !(path && path[0] == '/')) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", place);
    ssize_t size = syscall(SYS_readlink, link, base, sizeof base - 1);
    base[size < 0 ? 0 : size] = 0;
  }
  snprintf(to, most, "%s%s%s", base, *base && path ? "/" : "", path ? path : "");
}

static int ask(struct call *call) {
  char one[PATH_MAX], two[PATH_MAX], words[3 * PATH_MAX];
  spell(one, sizeof one, call->place, call->path);
  spell(two, sizeof two, call->other_place, call->other);
  int size = snprintf(words, sizeof words, "%s\t%ld\t%s\t%s", call->name, call->size, one,
                      call->other ? two : "");
  if (send(world, words, size, 0) < 0 || recv(world, &call->got, sizeof call->got, 0) <= 0)
    _exit(99);
  return call->got.error;
}

static void tell(struct call *call, long result) {
  if (world < 0 || !call->counts) return;
  int told = errno;
  char words[64];
  int size = snprintf(words, sizeof words, "=\t%ld\t%d", result, result < 0 ? told : 0);
  if (send(world, words, size, 0) < 0) _exit(99);
  errno = told;
}

/* Return 1, with errno, if a call fails instead of being made. */
static int fails(struct call *call) {
  call->got.most = -1;
  if (!call->counts) return 0;
  int with = 0;
  if (world >= 0) {
    with = ask(call);
  } else if (!only || strstr(only, call->name)) {
    if (++calls == number) {
      dprintf(report, "%s", call->name);
      with = error;
    }
  }
  if (with) errno = with;
  return with != 0;
}

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, #name))
#define CALL(result, name, counts, about, parameters, values)               \
  result name parameters {                                                 \
    struct call call = {#name, counts, UNPACK about, 0, {0}};            \
    result done = (result)-1;                                              \
    if (!fails(&call)) done = REAL(name, result(*) parameters) values;     \
    tell(&call, (long)done);                                               \
    return done;                                                           \
  }
#define UNPACK(place, path, other_place, other) place, path, other_place, other
#define FILE_ONLY (file, NULL, -1, NULL)
#define PATH_ONLY (AT_FDCWD, path, -1, NULL)

static int opened(const char *name, int place, const char *path, int flags, mode_t mode,
                  int (*real)(int, const char *, int, mode_t)) {
  struct call call = {flags & (O_CREAT | O_TRUNC) ? "create" : name, at(place, path), place, path,
                      -1, NULL, 0, {0}};
  int done = -1;
  if (!fails(&call)) done = keep(real(place, path, flags, mode), call.counts);
  tell(&call, done);
  return done;
}

static int really_open(int place, const char *path, int flags, mode_t mode) {
  return REAL(openat64, int (*)(int, const char *, int, ...))(place, path, flags, mode);
}

#define MODE                       \
  va_list more;                    \
  va_start(more, flags);           \
  mode_t mode = va_arg(more, mode_t); \
  va_end(more);
int open(const char *path, int flags, ...) {
  MODE return opened("open", AT_FDCWD, path, flags, mode, really_open);
}
int open64(const char *path, int flags, ...) {
  MODE return opened("open", AT_FDCWD, path, flags | O_LARGEFILE, mode, really_open);
}
int openat(int place, const char *path, int flags, ...) {
  MODE return opened("openat", place, path, flags, mode, really_open);
}
int openat64(int place, const char *path, int flags, ...) {
  MODE return opened("openat", place, path, flags | O_LARGEFILE, mode, really_open);
}

int close(int file) {
  struct call call = {"close", held(file), file, NULL, -1, NULL, 0, {0}};
  int failed = fails(&call), why = errno;
  keep(file, 0);
  int done = REAL(close, int (*)(int))(file);
  if (failed) {
    done = -1;
    errno = why;
  }
  tell(&call, done);
  return done;
}

ssize_t write(int file, const void *from, size_t size) {
  struct call call = {"write", held(file), file, NULL, -1, NULL, size, {0}};
  ssize_t done = -1;
  if (!fails(&call)) {
    if (call.got.most >= 0 && (size_t)call.got.most < size) size = call.got.most;
    done = REAL(write, ssize_t(*)(int, const void *, size_t))(file, from, size);
  }
  tell(&call, done);
  return done;
}

int posix_fallocate64(int file, off64_t start, off64_t size) {
  struct call call = {"posix_fallocate", held(file), file, NULL, -1, NULL, size, {0}};
  int done = fails(&call) ? errno
                          : REAL(posix_fallocate64, int (*)(int, off64_t, off64_t))(file, start, size);
  tell(&call, done ? -1 : 0);
  return done;
}

ssize_t getrandom(void *bytes, size_t count, unsigned flags) {
  struct call call = {"getrandom", folder != NULL, -1, NULL, -1, NULL, count, {0}};
  ssize_t done = -1;
  if (!fails(&call)) {
    done = REAL(getrandom, ssize_t(*)(void *, size_t, unsigned))(bytes, count, flags);
    uint64_t state = call.got.seed;
    for (size_t i = 0; world >= 0 && i < count; i++) { /* SplitMix64 */
      uint64_t mixed = state += 0x9e3779b97f4a7c15u;
      mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
      mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
      ((unsigned char *)bytes)[i] = mixed >> 56;
    }
  }
  tell(&call, done);
  return done;
}

/* A scheduler sees a lock that is waited for as one that is tried again and again. */
int flock(int file, int operation) {
  while (1) {
    struct call call = {"flock", held(file), file, NULL, -1, NULL, operation, {0}};
    int done = -1, waits = world >= 0 && call.counts;
    if (!fails(&call))
      done = REAL(flock, int (*)(int, int))(file, operation | (waits ? LOCK_NB : 0));
    int busy = done < 0 && waits && errno == EWOULDBLOCK && !(operation & LOCK_NB);
    tell(&call, busy ? -2 : done);
    if (!busy) return done;
  }
}

DIR *opendir(const char *path) {
  struct call call = {"opendir", in(path), AT_FDCWD, path, -1, NULL, 0, {0}};
  DIR *done = fails(&call) ? NULL : REAL(opendir, DIR * (*)(const char *))(path);
  tell(&call, done ? 0 : -1);
  return done;
}

void *mmap64(void *address, size_t size, int protection, int flags, int file, off64_t start) {
  struct call call = {"mmap", held(file), file, NULL, -1, NULL, size, {0}};
  void *done = MAP_FAILED;
  if (!fails(&call))
    done = (void *)syscall(SYS_mmap, address, size, protection, flags, file, start);
  tell(&call, done == MAP_FAILED ? -1 : 0);
  return done;
}

void *mmap(void *address, size_t size, int protection, int flags, int file, off_t start) {
  return mmap64(address, size, protection, flags, file, start);
}

/* Clock and number of a process in a world. */

int clock_gettime(clockid_t kind, struct timespec *time) {
  int wall = kind == CLOCK_REALTIME || kind == CLOCK_MONOTONIC;
  if (!now || !wall) return syscall(SYS_clock_gettime, kind, time);
  time->tv_sec = *now / 1000000000;
  time->tv_nsec = *now % 1000000000;
  return 0;
}

int clock_nanosleep(clockid_t kind, int flags, const struct timespec *time, struct timespec *left) {
  if (!now) return REAL(clock_nanosleep, int (*)(clockid_t, int, const struct timespec *,
                                                  struct timespec *))(kind, flags, time, left);
  int64_t until = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
  struct call call = {"sleep", 1, -1, NULL, -1, NULL, 0, {0}};
  call.size = flags & TIMER_ABSTIME ? until : *now + until;
  fails(&call);
  tell(&call, 0);
  return 0;
}

pid_t getpid(void) { return process ? process : (pid_t)syscall(SYS_getpid); }

/* All others. */

#define STATS struct stat64 *found
CALL(int, stat64, in(path), PATH_ONLY, (const char *path, STATS), (path, found))
CALL(int, lstat64, in(path), PATH_ONLY, (const char *path, STATS), (path, found))
CALL(int, fstat64, held(file), FILE_ONLY, (int file, STATS), (file, found))
CALL(int, fstatat64, at(place, path), (place, path, -1, NULL),
     (int place, const char *path, STATS, int flags), (place, path, found, flags))
CALL(int, statvfs64, in(path), PATH_ONLY, (const char *path, struct statvfs64 *found), (path, found))
CALL(int, access, in(path), PATH_ONLY, (const char *path, int mode), (path, mode))
CALL(ssize_t, readlink, in(path), PATH_ONLY, (const char *path, char *to, size_t size),
     (path, to, size))

CALL(ssize_t, read, held(file), FILE_ONLY, (int file, void *to, size_t size), (file, to, size))
CALL(ssize_t, pread64, held(file), FILE_ONLY, (int file, void *to, size_t size, off64_t start),
     (file, to, size, start))
CALL(ssize_t, pread, held(file), FILE_ONLY, (int file, void *to, size_t size, off_t start),
     (file, to, size, start))
CALL(ssize_t, readv, held(file), FILE_ONLY, (int file, const struct iovec *to, int count),
     (file, to, count))
CALL(ssize_t, pwrite64, held(file), FILE_ONLY,
     (int file, const void *from, size_t size, off64_t start), (file, from, size, start))
CALL(ssize_t, writev, held(file), FILE_ONLY, (int file, const struct iovec *from, int count),
     (file, from, count))

CALL(int, fsync, held(file), FILE_ONLY, (int file), (file))
CALL(int, fdatasync, held(file), FILE_ONLY, (int file), (file))
CALL(int, ftruncate64, held(file), FILE_ONLY, (int file, off64_t size), (file, size))
CALL(int, truncate64, in(path), PATH_ONLY, (const char *path, off64_t size), (path, size))

CALL(int, mkdir, in(path), PATH_ONLY, (const char *path, mode_t mode), (path, mode))
CALL(int, rmdir, in(path), PATH_ONLY, (const char *path), (path))
CALL(int, unlink, in(path), PATH_ONLY, (const char *path), (path))
CALL(int, unlinkat, at(place, path), (place, path, -1, NULL),
     (int place, const char *path, int flags), (place, path, flags))
CALL(int, link, in(path), (AT_FDCWD, path, AT_FDCWD, new), (const char *path, const char *new),
     (path, new))
CALL(int, linkat, at(one, path), (one, path, two, new),
     (int one, const char *path, int two, const char *new, int flags), (one, path, two, new, flags))
CALL(int, rename, in(path), (AT_FDCWD, path, AT_FDCWD, new), (const char *path, const char *new),
     (path, new))
CALL(int, renameat, at(one, path), (one, path, two, new),
     (int one, const char *path, int two, const char *new), (one, path, two, new))
CALL(int, chmod, in(path), PATH_ONLY, (const char *path, mode_t mode), (path, mode))
CALL(int, fchmod, held(file), FILE_ONLY, (int file, mode_t mode), (file, mode))
CALL(int, utimensat, at(place, path), (place, path, -1, NULL),
     (int place, const char *path, const struct timespec times[2], int flags),
     (place, path, times, flags))
