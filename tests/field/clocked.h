/*
 * A program that counts and times some calls of its own, in a file that others read while it runs (`CLOCKED` names it): pairs of numbers, calls and
 * nanoseconds in them. The first pair is that of the clock itself: two readings with nothing between them.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct slot {
    volatile uint64_t calls, ns;
};

static struct slot *slots;
static volatile sig_atomic_t stopped;

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* One thread alone adds to a slot. */
static inline void add(int slot, uint64_t ns) {
    slots[slot].ns += ns;
    slots[slot].calls += 1;
}

#define CLOCKED(slot, call)                                                                                                                 \
    ({                                                                                                                                      \
        uint64_t begin_ = now_ns();                                                                                                         \
        __typeof__(call) result_ = (call);                                                                                                  \
        uint64_t end_ = now_ns();                                                                                                           \
        add(slot, end_ - begin_);                                                                                                           \
        result_;                                                                                                                            \
    })

static inline void clock_itself(void) {
    uint64_t begin = now_ns();
    add(0, now_ns() - begin);
}

static void fail(const char *what) {
    fprintf(stderr, "wrong: %s\n", what);
    exit(1);
}

static void on_term(int signal) {
    (void)signal;
    stopped = 1;
}

static void open_slots(void) {
    const char *path = getenv("CLOCKED");
    int file = path ? open(path, O_RDWR | O_CREAT, 0644) : -1;
    if (file < 0 || ftruncate(file, 4096) != 0)
        fail("CLOCKED names no file");
    slots = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (slots == MAP_FAILED)
        fail("cannot map the file");
}

/* After 3 ms of work, 7 ms of rest: a program that is not always busy, and does not take a whole CPU from the machine. */
static inline void rest(void) {
    static uint64_t begun;
    uint64_t now = now_ns();
    struct timespec pause = {0, 7000000};
    if (now - begun < 3000000)
        return;
    nanosleep(&pause, NULL);
    begun = now_ns();
}

/* The same number for the same step: splitmix64. */
static inline uint64_t mixed(uint64_t number) {
    uint64_t z = (number + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
