/* Preloaded: while `control` says so, half of the reads and writes of files take 50 ms longer. System calls are made here, since the library's own are hidden. */
#include "anomalies.h"
#include <sys/syscall.h>
#include <sys/types.h>

static struct shared *shared;

__attribute__((constructor)) static void begin(void) { shared = open_shared(0); }

static void delay(int file) {
    static __thread uint64_t state;
    if (!shared || shared->control != DELAY || file <= 2)
        return;
    if (!state)
        state = now_ns() | 1;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    if (state >> 63)
        rest_us(50000);
}

ssize_t read(int file, void *to, size_t size) {
    delay(file);
    return syscall(SYS_read, file, to, size);
}

ssize_t write(int file, const void *from, size_t size) {
    delay(file);
    return syscall(SYS_write, file, from, size);
}

ssize_t pread(int file, void *to, size_t size, off_t at) {
    delay(file);
    return syscall(SYS_pread64, file, to, size, at);
}

ssize_t pwrite(int file, const void *from, size_t size, off_t at) {
    delay(file);
    return syscall(SYS_pwrite64, file, from, size, at);
}

/* The same numbers on 64 bits. */
ssize_t pread64(int file, void *to, size_t size, off_t at) { return pread(file, to, size, at); }

ssize_t pwrite64(int file, const void *from, size_t size, off_t at) { return pwrite(file, from, size, at); }
