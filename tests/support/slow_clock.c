/* The time of day passes at 0.8 of its speed since SLOW_SINCE, in seconds since 1970. A wait for a time of day lasts as
   long as it would by such a clock. The monotonic clock is left as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SPEED 0.8
#define BILLION 1000000000LL

static long long since(void) {
    const char *text = getenv("SLOW_SINCE");
    return text ? atoll(text) * BILLION : 0;
}

static struct timespec of(long long nanoseconds) {
    return (struct timespec){nanoseconds / BILLION, nanoseconds % BILLION};
}

static long long nanoseconds(const struct timespec *at) {
    return at->tv_sec * BILLION + at->tv_nsec;
}

/* A deadline by the monotonic clock is a small number. */
static struct timespec machine_time(const struct timespec *at) {
    return at->tv_sec < 1000000000 ? *at : of(since() + (long long)((nanoseconds(at) - since()) / SPEED));
}

int clock_gettime(clockid_t id, struct timespec *at) {
    long result = syscall(SYS_clock_gettime, id, at);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        *at = of(since() + (long long)((nanoseconds(at) - since()) * SPEED));
    return (int)result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
    clock_gettime(CLOCK_REALTIME, at);
    return base;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict at) {
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec deadline = machine_time(at);
    if (!wait)
        wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return wait(condition, mutex, &deadline);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict at) {
    static int (*wait)(cnd_t *, mtx_t *, const struct timespec *);
    struct timespec deadline = machine_time(at);
    if (!wait)
        wait = dlsym(RTLD_NEXT, "cnd_timedwait");
    return wait(condition, mutex, &deadline);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict at) {
    static int (*wait)(sem_t *, const struct timespec *);
    struct timespec deadline = machine_time(at);
    if (!wait)
        wait = dlsym(RTLD_NEXT, "sem_timedwait");
    return wait(semaphore, &deadline);
}
