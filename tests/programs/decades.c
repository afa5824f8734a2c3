/* 100 functions, dec00 to dec99, whose rates lie evenly over 7 decades, from 0.1 to a million calls a second, and one thread
 * that calls them in a closed loop: what watching takes slows the loop, as it does in programs that work.
 *
 *   start [PHASES]      works; PHASES 1: the rates change between a half and one and a half times every 0.3 s on average;
 *                       2: no function takes time, so that calls come evenly from millisecond to millisecond
 *   stop                ends it
 *   between A B         what was done in whole slots of 10 ms between two instants of CLOCK_MONOTONIC:
 *                       ok from_ns=.. to_ns=.. calls=N,N,.. spent_ns=N,N,.. (CPU time in each function, by its turns)
 *   rates               ok rates=F,F,.. : calls per second of undisturbed work, as they are drawn
 *
 * dec05, dec15, .. dec95 take about 4 % of the CPU time each, in calls of 0.5 to 1.5 of their mean; the others only return. */
#define _GNU_SOURCE
#include "adversary.h"
#include "protocol.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CLASSES 100
#define ROUND_US 20
#define SLOT_NS 10000000u
#define SLOTS 12000
/* CPU time share of each function that takes some. */
#define SHARE 0.04

typedef void function(uint64_t rounds);
/* A clobbered register makes each begin with a push, which costs least to trace. */
#define BODY { __asm__ volatile("" ::: "rbx"); burn_rounds(rounds); }
#define ONE(n) TRACED void dec##n(uint64_t rounds) BODY
#define TEN(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7) ONE(n##8) ONE(n##9)
TEN(0) TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9)
#define NAME(n) dec##n,
#define NAMES(n) \
    NAME(n##0) NAME(n##1) NAME(n##2) NAME(n##3) NAME(n##4) NAME(n##5) NAME(n##6) NAME(n##7) NAME(n##8) NAME(n##9)
static function *const functions[CLASSES] = {
    NAMES(0) NAMES(1) NAMES(2) NAMES(3) NAMES(4) NAMES(5) NAMES(6) NAMES(7) NAMES(8) NAMES(9)};

uint64_t rounds_per_us;
static uint64_t t0;
static double rates[CLASSES], per_round[CLASSES];
static uint64_t work_rounds[CLASSES];
static uint32_t calls[CLASSES][SLOTS], spent[CLASSES][SLOTS]; /* spent: in turns */
/* Turns that nobody interrupted, and how long they took: what a turn costs depends on what else the machine does. */
static uint32_t pause_turns[SLOTS], pause_ns[SLOTS];
static pthread_t thread;
static int running, phases, even;
static atomic_int stop_now;

static uint64_t state = 88172645463325252u;
static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}
/* Uniform in [0, 1). */
static double uniform(void) { return (double)(next_random() >> 11) * 0x1p-53; }

static int slot_now(void) {
    uint64_t slot = (wall_ns() - t0) / SLOT_NS;
    return slot < SLOTS ? (int)slot : SLOTS - 1;
}

static void one_round(int slot, double factor) {
    uint64_t begin = wall_ns();
    burn_rounds(ROUND_US * rounds_per_us);
    uint64_t took = wall_ns() - begin;
    if (took < 2 * ROUND_US * 1000) {
        pause_turns[slot] += (uint32_t)(ROUND_US * rounds_per_us);
        pause_ns[slot] += (uint32_t)took;
    }
    for (int i = 0; i < CLASSES; i++) {
        /* Rounded at random, so that the mean is right: for rare functions that is a Poisson process. */
        double expected = per_round[i] * factor;
        int n = (int)(expected + uniform());
        for (int k = 0; k < n; k++) {
            uint64_t rounds = work_rounds[i] && !even ? (uint64_t)((double)work_rounds[i] * (0.5 + uniform())) : 0;
            functions[i](rounds);
            spent[i][slot] += (uint32_t)rounds;
        }
        calls[i][slot] += (uint32_t)n;
    }
}

static void *work(void *data) {
    uint64_t turn = 0;
    double factor = phases ? 0.5 : 1.0;
    while (!atomic_load_explicit(&stop_now, memory_order_relaxed)) {
        int slot = slot_now();
        uint64_t now = wall_ns();
        if (phases && now >= turn) {
            if (turn)
                factor = 2.0 - factor;
            turn = now + (uint64_t)(-log(1.0 - uniform()) * 3e8);
        }
        one_round(slot, factor);
    }
    return data;
}

static void begin(void) {
    memset(calls, 0, sizeof calls);
    memset(spent, 0, sizeof spent);
    memset(pause_turns, 0, sizeof pause_turns);
    memset(pause_ns, 0, sizeof pause_ns);
    atomic_store(&stop_now, 0);
    running = start_and_reply(&thread, work, &t0);
}

static void command_start(int count, char **words) {
    if (running) {
        reply_error("already running");
        return;
    }
    phases = number(count, words, 1, 0) == 1;
    even = number(count, words, 1, 0) == 2;
    begin();
}

static void command_stop(int count, char **words) {
    (void)count, (void)words;
    atomic_store(&stop_now, 1);
    if (running)
        pthread_join(thread, NULL);
    running = 0;
    reply("stopped=1");
}

static size_t list(char *text, size_t length, const char *key, uint64_t values[CLASSES]) {
    length += (size_t)sprintf(text + length, "%s=", key);
    for (int i = 0; i < CLASSES; i++)
        length += (size_t)sprintf(text + length, "%s%lu", i ? "," : "", values[i]);
    length += (size_t)sprintf(text + length, " ");
    return length;
}

static void command_between(int count, char **words) {
    static char text[CLASSES * 48];
    uint64_t made[CLASSES] = {0}, ns[CLASSES] = {0};
    uint64_t a = number(count, words, 1, 0), b = number(count, words, 2, 0);
    uint64_t from = a > t0 ? (a - t0 + SLOT_NS - 1) / SLOT_NS : 0, to = b > t0 ? (b - t0) / SLOT_NS : 0;
    to = to < SLOTS ? to : SLOTS;
    uint64_t turns = 0, turns_ns = 0;
    for (uint64_t s = from; s < to; s++) {
        turns += pause_turns[s];
        turns_ns += pause_ns[s];
    }
    double ns_per_turn = turns ? (double)turns_ns / (double)turns : 1000.0 / (double)rounds_per_us;
    for (int i = 0; i < CLASSES; i++) {
        for (uint64_t s = from; s < to; s++) {
            made[i] += calls[i][s];
            ns[i] += spent[i][s];
        }
        ns[i] = (uint64_t)((double)ns[i] * ns_per_turn);
    }
    size_t length = list(text, 0, "calls", made);
    list(text, length, "spent_ns", ns);
    reply("from_ns=%lu to_ns=%lu %s", t0 + from * SLOT_NS, t0 + to * SLOT_NS, text);
}

static void command_rates(int count, char **words) {
    (void)count, (void)words;
    static char text[CLASSES * 24];
    size_t length = 0;
    for (int i = 0; i < CLASSES; i++)
        length += (size_t)sprintf(text + length, "%s%.6g", i ? "," : "", rates[i]);
    reply("rates=%s", text);
}

int main(void) {
    rounds_per_us = fastest_rounds_per_us();
    /* A round takes longer than its pause by the work in functions and by the calls themselves. */
    double seconds = ROUND_US * 1e-6 / (1.0 - 8 * SHARE - 0.15);
    for (int i = 0; i < CLASSES; i++) {
        rates[i] = pow(10.0, 7.0 * i / (CLASSES - 1) - 1.0);
        per_round[i] = rates[i] * seconds;
        if (i % 10 == 5)
            work_rounds[i] = (uint64_t)(SHARE / rates[i] * 1e6 * (double)rounds_per_us);
    }
    /* 40 % of a second in one call of dec05 would be a stop, not a load. */
    work_rounds[5] = work_rounds[15] = 0;
    static const struct command commands[] = {
        {"start", 0, command_start}, {"stop", 0, command_stop},
        {"between", 2, command_between}, {"rates", 0, command_rates}, {NULL, 0, NULL},
    };
    serve(commands);
}
