/* Functions of 100 ns to 1 ms that are called in batches and timed by the program, each next to a twin of the same code that nobody
 * watches (durations_form.c). Built as C and as C++; `src/bin/durations-rust.rs` does the same in Rust.
 *
 *   start THREADS   one thread never waits, so that what watching takes slows it; more of them sleep in between and use some 0.8 of a CPU
 *                   together, so that next to none waits for another
 *   stop            ends it; ok records=N lost=N clock_ns=N (what reading the clock puts into each record)
 *   address NAME    where a function stands
 *   dump PATH       writes the records, one for each batch, in the machine's byte order: begin_ns u64 of CLOCK_MONOTONIC, took_ns u32, calls u16,
 *                   function u8, thread u8. Function: (duration x 4 + form) x 2 + 1 for a twin, in the order of durations.h */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "durations.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "protocol.h"
#ifdef __cplusplus
}
#include <stdexcept>
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FORMS 4
#define SHORT_PAIRS 16
#define PAIRS 20
/* A round on average, were there one thread; what of it is burned outside of the functions, and what more if the thread never sleeps. */
#define ROUND_NS 2500000u
#define REST_US 800u
#define INSTEAD_OF_SLEEP_US 500u
#define RECORDS 2000000u

#ifdef __cplusplus
extern "C" {
#endif
#define DECLARE(ns, form) timed_function d##ns##_##form, t##ns##_##form;
FOR_ALL(DECLARE)
#ifdef __cplusplus
}
#endif

#define ENTRY(ns, form) {d##ns##_##form, t##ns##_##form, ns, "d" #ns "_" #form},
static const struct {
    timed_function *watched, *twin;
    uint64_t ns;
    const char *name; /* of the one that is watched; its twin has a t for the d */
} pairs[PAIRS] = {FOR_ALL(ENTRY)};
/* Calls of a batch, by duration: some 5 us, but for the longest. */
static const uint16_t batch_of[PAIRS / FORMS] = {50, 17, 5, 1, 1};

struct record {
    uint64_t begin_ns;
    uint32_t took_ns;
    uint16_t calls;
    uint8_t function, thread;
};

static double turns_per_ns;
static uint64_t clock_cost_ns, t0;
static struct record *records;
static uint64_t made;
static pthread_t threads[64];
static uint64_t running;
static int stop_now;

static void keep(uint64_t begin, uint64_t end, uint16_t calls, unsigned function, unsigned thread) {
    uint64_t at = __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
    if (at < RECORDS) {
        struct record r = {begin, (uint32_t)(end - begin), calls, (uint8_t)function, (uint8_t)thread};
        records[at] = r;
    }
}

/* Two call sites: a probe behind the call of a watched function is not one behind that of a twin. */
#define BATCH(name) \
    static __attribute__((noinline, noclone)) void name(timed_function *called, uint64_t turns, unsigned id, unsigned thread) { \
        uint16_t calls = batch_of[id / 2 / FORMS]; \
        uint64_t begin = wall_ns(); \
        for (uint16_t i = 0; i < calls; i++) \
            called(turns); \
        keep(begin, wall_ns(), calls, id, thread); \
    }
BATCH(batch_watched)
BATCH(batch_twin)

static void one(unsigned pair, int twin, unsigned thread) {
    uint64_t turns = (uint64_t)((double)pairs[pair].ns * turns_per_ns);
    if (twin)
        batch_twin(pairs[pair].twin, turns, pair * 2 + 1, thread);
    else
        batch_watched(pairs[pair].watched, turns, pair * 2, thread);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 11;
}

/* Every short pair once, in another order each time, and one of the long functions. */
static void one_round(unsigned thread, uint64_t number, uint64_t *state) {
    unsigned first = (unsigned)(next_random(state) % SHORT_PAIRS);
    for (unsigned i = 0; i < SHORT_PAIRS; i++) {
        unsigned pair = (first + 7 * i) % SHORT_PAIRS;
        int twin_first = (int)(next_random(state) & 1);
        one(pair, twin_first, thread);
        one(pair, !twin_first, thread);
    }
    unsigned of_long = (unsigned)(number % (2 * FORMS));
    one(SHORT_PAIRS + of_long / 2, (int)(of_long & 1), thread);
    turn((uint64_t)(REST_US * 1e3 * turns_per_ns));
}

static void *work(void *data) {
    unsigned thread = (unsigned)(uintptr_t)data;
    uint64_t state = 88172645463325252u + 7919u * thread, due = wall_ns();
    for (uint64_t number = thread; !__atomic_load_n(&stop_now, __ATOMIC_RELAXED); number++) {
        one_round(thread, number, &state);
        if (running == 1) {
            turn((uint64_t)(INSTEAD_OF_SLEEP_US * 1e3 * turns_per_ns));
            continue;
        }
        /* Half to one and a half times the period: no beat with anything of the agent's. */
        uint64_t period = ROUND_NS * running, now = wall_ns();
        due += period / 2 + next_random(&state) % period;
        if (due <= now) {
            due = now;
            continue;
        }
        struct timespec until;
        until.tv_sec = (time_t)(due / 1000000000u);
        until.tv_nsec = (long)(due % 1000000000u);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
    return NULL;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Turns in a ns: of the fastest of five, since an interrupted one reads too slow. And the median of two readings of the clock with nothing
 * between them. */
static void calibrate(void) {
    for (int i = 0; i < 5; i++) {
        uint64_t begin = cpu_ns();
        turn(3000000);
        uint64_t took = cpu_ns() - begin;
        double speed = 3e6 / (double)(took ? took : 1);
        turns_per_ns = speed > turns_per_ns ? speed : turns_per_ns;
    }
    static uint64_t costs[1001];
    for (int i = 0; i < 1001; i++) {
        uint64_t begin = wall_ns();
        costs[i] = wall_ns() - begin;
    }
    qsort(costs, 1001, sizeof *costs, ascending);
    clock_cost_ns = costs[500];
}

static void command_start(int count, char **words) {
    uint64_t wanted = number(count, words, 1, 1);
    if (running || wanted == 0 || wanted > sizeof threads / sizeof *threads) {
        reply_error("already running, or 1 to 64 threads are possible");
        return;
    }
    made = 0;
    running = wanted;
    __atomic_store_n(&stop_now, 0, __ATOMIC_RELAXED);
    t0 = wall_ns();
    for (uint64_t i = 0; i < wanted; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) != 0)
            abort();
    reply("t0_ns=%lu", t0);
}

static void command_stop(int count, char **words) {
    (void)count, (void)words;
    __atomic_store_n(&stop_now, 1, __ATOMIC_RELAXED);
    for (uint64_t i = 0; i < running; i++)
        pthread_join(threads[i], NULL);
    running = 0;
    uint64_t kept = made < RECORDS ? made : RECORDS;
    reply("records=%lu lost=%lu clock_ns=%lu", kept, made - kept, clock_cost_ns);
}

static void command_address(int count, char **words) {
    (void)count;
    for (unsigned i = 0; i < PAIRS; i++)
        if (strcmp(words[1] + 1, pairs[i].name + 1) == 0) {
            reply("address=%#lx", (unsigned long)(words[1][0] == 't' ? pairs[i].twin : pairs[i].watched));
            return;
        }
    reply_error("no function %s", words[1]);
}

static void command_dump(int count, char **words) {
    (void)count;
    write_records(words[1], records, sizeof *records, made < RECORDS ? made : RECORDS);
}

int main(void) {
    calibrate();
    records = (struct record *)malloc(RECORDS * sizeof *records);
    if (!records)
        abort();
    /* Every page is there before anything is timed. */
    memset(records, 1, RECORDS * sizeof *records);
#ifdef __cplusplus
    /* An unwinder is mapped, and used. */
    try {
        throw std::runtime_error("as programs do");
    } catch (const std::exception &) {
    }
#endif
    static const struct command commands[] = {
        {"start", 1, command_start}, {"stop", 0, command_stop}, {"dump", 1, command_dump},
        {"address", 1, command_address}, {NULL, 0, NULL},
    };
    serve(commands);
}
