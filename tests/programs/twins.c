/* Pairs of functions of the same code, of which one is watched. One thread calls the two in turns, in slices of some 10 us, and times
 * the twin's: how fast the machine was in the very moments in which the other was watched.
 *
 *   start NAME RATE [NS [EVERY]]
 *                         calls calls_NAME and twin_NAME (push, stepped), each so often a second; with NS a call of calls_push takes so
 *                         many ns more, as if it were watched; with EVERY one system call, getppid, comes after so many pairs of slices
 *   stop                  ends it
 *   between A B           pairs of slices that began in whole slots of 1 ms between two instants of CLOCK_MONOTONIC: ok from_ns=.. to_ns=..
 *                         calls=.. twin_calls=.. timed=.. timed_ns=.. waited_ns=.. ratio=F
 *   address NAME          where a function stands
 *
 * `timed` twin calls took `timed_ns` of CPU time: the first of each slice are left out, because what a trap leaves behind (caches,
 * predictors) is in them. For `waited_ns` the thread had no CPU; that is counted apart, because whoever is to run next gets the CPU at the
 * next trap, which is in the function that is watched. `ratio`: time of a call of calls_NAME over that of a timed call of twin_NAME, the
 * median of the slots. All with the pause after the call. */
#define _GNU_SOURCE
#include "adversary.h"
#include "protocol.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 10000u
#define SLOT_NS 1000000u
#define SLOTS 60000
/* A slice up to this is timed by the wall clock, and not used if it took longer by the second; a longer one by the CPU clock, which takes
 * a system call. */
#define SHORT_NS 20000u
#define SWITCHED_NS 100000u

typedef void function(uint64_t rounds);
/* Of a cache line's alignment, so that loops in them take the same time. */
#define SITE TRACED __attribute__((aligned(64)))
/* A clobbered register makes each begin with a push, which costs least to trace. */
#define PUSH(name) \
    SITE void name(uint64_t rounds) { \
        __asm__ volatile("" ::: "rbx"); \
        burn_rounds(rounds); \
    }
/* Begins with an instruction that the kernel has to step over. */
#define STEPPED(name) \
    function name; \
    __asm__(".text\n.p2align 6\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" \
            "sub $8,%rsp\nadd $8,%rsp\nret\n.size " #name ",.-" #name "\n");
PUSH(calls_push)
PUSH(twin_push)
STEPPED(calls_stepped)
STEPPED(twin_stepped)

static const struct pair {
    const char *name;
    function *called, *twin;
} pairs[] = {{"push", calls_push, twin_push}, {"stepped", calls_stepped, twin_stepped}};
#define PAIRS (sizeof pairs / sizeof *pairs)

uint64_t rounds_per_us;
static const struct pair *pair;
/* Calls in a slice, and those of them that are not timed in the twin's. */
static uint64_t per_slice, untimed;
static uint64_t pause_rounds, slower_rounds, pairs_per_syscall;
static uint64_t (*clock_of_twin)(void);
static uint64_t t0;
static struct slot {
    uint64_t pairs, whole, watched_ns, timed_pairs, timed_ns, waited_ns;
} slots[SLOTS];
static pthread_t thread;
static int running;
static atomic_int stop_now;

/* Aligned as the functions are: a turn of this loop took twice as long where its jump lay across a cache line. */
static SITE void pause_for(uint64_t rounds) { burn_rounds(rounds); }

/* The code of both slices. */
static SITE void slice(function *called, uint64_t calls, uint64_t rounds) {
    for (uint64_t i = 0; i < calls; i++) {
        called(rounds);
        pause_for(pause_rounds);
    }
}

static void *work(void *data) {
    uint64_t begun = wall_ns(), cpu = cpu_ns(), since = begun, last = 0, silent = 0;
    while (!atomic_load_explicit(&stop_now, memory_order_relaxed)) {
        uint64_t own = clock_of_twin == wall_ns ? begun : clock_of_twin();
        slice(pair->called, per_slice, slower_rounds);
        own = clock_of_twin() - own;
        slice(pair->twin, untimed, 0);
        uint64_t from = clock_of_twin();
        slice(pair->twin, per_slice - untimed, 0);
        uint64_t timed = clock_of_twin() - from, end = wall_ns(), slot = (begun - t0) / SLOT_NS;
        if (slot < SLOTS) {
            slots[slot].pairs++;
            if (clock_of_twin == cpu_ns || own < SHORT_NS + SWITCHED_NS) {
                slots[slot].whole++;
                slots[slot].watched_ns += own;
            }
            if (clock_of_twin == cpu_ns || timed < SHORT_NS + SWITCHED_NS) {
                slots[slot].timed_pairs++;
                slots[slot].timed_ns += timed;
            }
            if (slot != last) {
                uint64_t now_cpu = cpu_ns(), now = wall_ns(), ran = now_cpu - cpu;
                slots[last].waited_ns += now - since > ran ? now - since - ran : 0;
                cpu = now_cpu, since = now, last = slot;
            }
        }
        if (pairs_per_syscall && ++silent == pairs_per_syscall) {
            syscall(SYS_getppid);
            silent = 0;
        }
        begun = end;
    }
    return data;
}

/* Time of a call without its pause, ns: the least of five times a thousand. */
static double call_ns(function *called) {
    uint64_t best = UINT64_MAX;
    pause_rounds = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t begun = wall_ns();
        slice(called, 1000, 0);
        uint64_t took = wall_ns() - begun;
        best = took < best ? took : best;
    }
    return (double)best / 1000.0;
}

static void command_start(int count, char **words) {
    uint64_t hz = number(count, words, 2, 0);
    pair = NULL;
    for (size_t i = 0; i < PAIRS; i++)
        if (strcmp(words[1], pairs[i].name) == 0)
            pair = &pairs[i];
    if (running || !pair || hz == 0) {
        reply_error("already running, or no such pair, or no rate");
        return;
    }
    /* A call of either, with the pause after it. */
    uint64_t ns = 500000000u / hz;
    double pause_ns = (double)ns - call_ns(pair->twin);
    pause_rounds = pause_ns > 0 ? (uint64_t)(pause_ns * (double)rounds_per_us / 1000.0) : 0;
    slower_rounds = number(count, words, 3, 0) * rounds_per_us / 1000;
    pairs_per_syscall = number(count, words, 4, 0);
    per_slice = ns && SLICE_NS / ns > 1 ? SLICE_NS / ns : 1;
    untimed = per_slice > 1 ? (per_slice + 3) / 4 : 0;
    clock_of_twin = per_slice * ns <= SHORT_NS ? wall_ns : cpu_ns;
    memset(slots, 0, sizeof slots);
    atomic_store(&stop_now, 0);
    running = start_and_reply(&thread, work, &t0);
}

static void command_stop(int count, char **words) {
    (void)count, (void)words;
    atomic_store(&stop_now, 1);
    if (running)
        pthread_join(thread, NULL);
    running = 0;
    reply("stopped=1");
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void command_between(int count, char **words) {
    static double ratios[SLOTS];
    uint64_t a = number(count, words, 1, 0), b = number(count, words, 2, 0);
    uint64_t from = a > t0 ? (a - t0 + SLOT_NS - 1) / SLOT_NS : 0, to = b > t0 ? (b - t0) / SLOT_NS : 0;
    to = to < SLOTS ? to : SLOTS;
    from = from < to ? from : to;
    uint64_t made = 0, timed_ns = 0, timed_calls = 0, waited_ns = 0;
    size_t n = 0;
    for (uint64_t i = from; i < to; i++) {
        made += slots[i].pairs;
        timed_ns += slots[i].timed_ns;
        waited_ns += slots[i].waited_ns;
        uint64_t timed = slots[i].timed_pairs * (per_slice - untimed), called = slots[i].whole * per_slice;
        timed_calls += timed;
        if (timed && called)
            ratios[n++] = (double)slots[i].watched_ns / (double)called / ((double)slots[i].timed_ns / (double)timed);
    }
    qsort(ratios, n, sizeof *ratios, ascending);
    reply("from_ns=%lu to_ns=%lu calls=%lu twin_calls=%lu timed=%lu timed_ns=%lu waited_ns=%lu ratio=%.6f", t0 + from * SLOT_NS,
          t0 + to * SLOT_NS, made * per_slice, made * per_slice, timed_calls, timed_ns, waited_ns, n ? ratios[n / 2] : 0.0);
}

static void command_address(int count, char **words) {
    (void)count;
    static const struct {
        const char *name;
        function *function;
    } all[] = {{"calls_push", calls_push}, {"twin_push", twin_push}, {"calls_stepped", calls_stepped}, {"twin_stepped", twin_stepped}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(words[1], all[i].name) == 0) {
            reply("address=%#lx", (unsigned long)all[i].function);
            return;
        }
    reply_error("no function %s", words[1]);
}

int main(void) {
    rounds_per_us = fastest_rounds_per_us();
    static const struct command commands[] = {
        {"start", 2, command_start},     {"stop", 0, command_stop}, {"between", 2, command_between},
        {"address", 1, command_address}, {NULL, 0, NULL},
    };
    serve(commands);
}
