/* Preloaded, it makes each sync of a file take SLOW_DISK_MS ms more while the file SLOW_DISK_WHILE
 * exists, and adds a byte to that file each time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void wait_if_slow(void) {
    const char *path = getenv("SLOW_DISK_WHILE"), *text = getenv("SLOW_DISK_MS");
    if (!path || !text)
        return;
    int hits = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (hits < 0)
        return;
    ssize_t written = write(hits, "x", 1);
    (void)written;
    close(hits);
    struct timespec left = {atol(text) / 1000, atol(text) % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0)
        ;
}

int fsync(int file) {
    wait_if_slow();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}

int fdatasync(int file) {
    wait_if_slow();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file);
}
