/*
 * What the program of the evaluation of anomalies, its preloaded library and the field suite share: a file that all of them map or read (`ANOMALIES`
 * names it). The suite writes `control`; the program writes the rest.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* What is wrong. The other anomalies come from outside of the program. */
enum { NOTHING, DELAY, LOCK, MEMORY };
/* Calls of modelled functions that there is room for: more than an hour of them. */
enum { CALLS = 1 << 18 };

struct call {
    /* CLOCK_MONOTONIC, ns. The end is written last: 0 is a call that is being written. */
    uint64_t begin_ns, end_ns;
    /* Number of the function, and its size above that: size << 8 | function. */
    uint64_t what;
};

struct shared {
    volatile uint64_t control;
    /* What the program has seen of `control`, and since when. */
    volatile uint64_t seen, since_ns;
    /* Calls that were logged. */
    volatile uint64_t logged;
    struct call calls[CALLS];
};

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void rest_us(long us) {
    struct timespec pause = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

/* NULL: there is no such file. */
static inline struct shared *open_shared(int flags) {
    const char *path = getenv("ANOMALIES");
    int file = path ? open(path, O_RDWR | flags, 0644) : -1;
    if (file < 0 || ((flags & O_CREAT) && ftruncate(file, sizeof(struct shared)) != 0))
        return NULL;
    void *shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return shared == MAP_FAILED ? NULL : shared;
}
