/* What the adversarial target's modes and its frame share, and what other targets take from it. */
#pragma once
#include "protocol.h"

#include <stdatomic.h>
#include <stdint.h>

#define TRACED __attribute__((noinline, noclone, used))

/* The functions, each with a truth of its own. */
enum counter { CALL, MIDDLE, SLOW, SPECIAL, RECURSE, JUMP, JUMP_MIDDLE, FIBER, COUNTERS };

/* A thread's own counts; functions add to them, the frame reads them after each operation. */
extern __thread uint64_t call_counts[COUNTERS];
#define COUNT_CALL(id) (*(volatile uint64_t *)&call_counts[id])++

struct worker {
    int index;          /* 0 is the first */
    uint64_t now;       /* when the operation begins, ns since `start` */
    uint64_t due;       /* modes that sleep: when this operation was due, ns of CLOCK_MONOTONIC; 0: none */
    uint64_t random;    /* state of a small generator */
    uint64_t operations; /* made by this worker */
};

struct mode {
    const char *name;
    int threads;
    /* One operation: true if its result was right. */
    int (*operation)(struct worker *self);
    /* Most calls of one function that one operation makes: how far a count can be off at the edge of a window. */
    uint64_t most_calls;
    /* Only the first worker's operations are counted. */
    int first_only;
};

/* Ends with a null name. */
extern const struct mode modes[];

/* `start` got this argument: when a mode changes, ns after the start. */
extern uint64_t change_ns;

/* The right number of turns for so many microseconds on this machine. */
extern uint64_t rounds_per_us;

/* Arithmetic only; in the caller's frame. */
static inline __attribute__((always_inline)) void burn_rounds(uint64_t rounds) {
    for (uint64_t i = 0; i < rounds; i++)
        __asm__ volatile("" : "+r"(i));
}

/* Of five runs: an interrupted run reads too slow. */
static inline uint64_t fastest_rounds_per_us(void) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t start = cpu_ns();
        burn_rounds(1000000);
        uint64_t ns = cpu_ns() - start;
        best = ns < best ? ns : best;
    }
    return 1000000000u / (best ? best : 1);
}
