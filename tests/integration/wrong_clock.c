/* Preloaded, it moves the wall clock of a process by WRONG_CLOCK_S seconds.
 *
 * The deadlines of waits that were taken from the wall clock are moved back: a real machine's
 * kernel has the same wrong clock. Not libfaketime, under which librdkafka and Python hang.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* Monotonic deadlines are seconds since the start of the machine: far smaller. */
#define WALL_S_MIN 1000000000

static long shift_s(void) {
    const char *text = getenv("WRONG_CLOCK_S");
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

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
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
