/* Preloaded, it moves the wall clock of a process by WRONG_CLOCK_S seconds, or by as many as the
 * file WRONG_CLOCK_FILE holds at that moment (a long, as the machine has it).
 *
 * The deadlines of waits that were taken from the wall clock are moved back: a real machine's
 * kernel has the same wrong clock. Not libfaketime, under which librdkafka and Python hang.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* Monotonic deadlines are seconds since the start of the machine: far smaller. */
#define WALL_S_MIN 1000000000

/* Set before any other thread is there. */
static volatile long *shared_shift_s;

__attribute__((constructor)) static void share_shift(void) {
    const char *path = getenv("WRONG_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    void *found;
    if (file < 0)
        return;
    found = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED)
        shared_shift_s = found;
    close(file);
}

static long shift_s(void) {
    const char *text;
    if (shared_shift_s)
        return *shared_shift_s;
    text = getenv("WRONG_CLOCK_S");
    return text ? atol(text) : 0;
}

static struct timespec in_kernel_time(const struct timespec *deadline) {
    struct timespec moved = *deadline;
    if (moved.tv_sec > WALL_S_MIN)
        moved.tv_sec -= shift_s();
    return moved;
}

static void *next(const char *name) {
    /* x86-64 has an older function of that name too, which dlsym might return. */
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return found ? found : dlsym(RTLD_NEXT, name);
}

/* Not the system call: brokers ask a million times a second. */
static int (*true_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void find_true_clock(void) {
    true_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = true_clock_gettime ? true_clock_gettime(clock, now)
                                    : (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift_s();
    return failed;
}

int timespec_get(struct timespec *now, int base) {
    return clock_gettime(CLOCK_REALTIME, now) ? 0 : base;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result)
        *result = exact.tv_sec;
    return exact.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    static int (*original)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec moved = in_kernel_time(deadline);
    if (!original)
        original = next("pthread_cond_timedwait");
    return original(condition, mutex, &moved);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
                  const struct timespec *restrict deadline) {
    static int (*original)(cnd_t *, mtx_t *, const struct timespec *);
    struct timespec moved = in_kernel_time(deadline);
    if (!original)
        original = next("cnd_timedwait");
    return original(condition, mutex, &moved);
}
