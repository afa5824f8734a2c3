/* The adversarial target: loads that were built to break a profiler's promises. One program, one mode a process:
 *
 *   adversary MODE
 *
 *   start [MS]          the mode's threads work as fast as they can; MS: when `exploding` explodes (ms after the start)
 *   stop                ends them; ok as `times`
 *   times               since the start or the last `times`: ok operations=.. wall_ns=.. cpu_ns=.. (of the process)
 *                       errors=.. (operations whose result was wrong) p50_ns=.. p99_ns=.. (of operations that are due
 *                       at a time: from then to their end)
 *   slots               operations in each 100 ms since the start: ok t0_ns=.. slots=N,N,..
 *   between NAME A B    calls of a function between two instants of CLOCK_MONOTONIC: ok least=.. most=..
 *   history             calls of adv_call in each ms of the first thread's CPU time since the change: ok calls=N,N,..
 *   count NAME          calls of a function so far
 *   address NAME        ok address=0x..
 *   modes               ok modes=NAME,NAME,..
 *
 * NAME is a function of adversary_modes.c. Operations are all alike within a mode, or alike at the same time
 * after the start: the judge of a profiler is their number per second. Functions count their own calls. */
#define _GNU_SOURCE
#include "adversary.h"
#include "protocol.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOT_NS 100000000u
#define SLOTS 1200
#define TRUTH_NS 1000000u
#define TRUTHS 120000
#define HISTORY 1000
#define MAX_THREADS 200
/* Latencies: 8 buckets for each power of two. */
#define BUCKETS 512

__thread uint64_t call_counts[COUNTERS];
uint64_t change_ns, rounds_per_us;

/* How far the work is: for `record --progress`. */
volatile uint64_t ADVERSARY_OPERATIONS;

extern char adv_call[], adv_middle[], adv_slow[], adv_special[], adv_recurse[], adv_jump[], adv_jump_middle[],
    adv_fiber[];
static const struct {
    const char *name;
    const void *address;
} functions[COUNTERS] = {
    [CALL] = {"adv_call", adv_call},
    [MIDDLE] = {"adv_middle", adv_middle},
    [SLOW] = {"adv_slow", adv_slow},
    [SPECIAL] = {"adv_special", adv_special},
    [RECURSE] = {"adv_recurse", adv_recurse},
    [JUMP] = {"adv_jump", adv_jump},
    [JUMP_MIDDLE] = {"adv_jump_middle", adv_jump_middle},
    [FIBER] = {"adv_fiber", adv_fiber},
};

static const struct mode *mode;
static uint64_t t0;
static atomic_int stop_now;
static atomic_ulong slots[SLOTS], truth[COUNTERS][TRUTHS], latencies[BUCKETS];
static atomic_ulong operations, errors;
/* Of the first worker: calls of adv_call in each ms of its CPU time since the change. */
static uint64_t history[HISTORY], history_ns, change_cpu;
static struct worker workers[MAX_THREADS];
static pthread_t threads[MAX_THREADS];
static int running;

static uint64_t process_cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int bucket(uint64_t ns) {
    int power = 63 - __builtin_clzl(ns | 8);
    return power * 8 + (int)((ns >> (power - 3)) & 7);
}

static uint64_t bucket_ns(int bucket) { return (8ull + (unsigned)bucket % 8) << (bucket / 8 - 3); }

static void add(atomic_ulong *counter, uint64_t n) { atomic_fetch_add_explicit(counter, n, memory_order_relaxed); }

/* Only while it is filled: it costs a system call. */
static void file_history(uint64_t made) {
    uint64_t cpu = cpu_ns();
    if (!change_cpu)
        change_cpu = cpu;
    history_ns = cpu - change_cpu;
    if (history_ns / TRUTH_NS < HISTORY)
        history[history_ns / TRUTH_NS] += made;
}

/* Files an operation under the time of its end. */
static void file(struct worker *self, uint64_t *before, int right) {
    uint64_t end = wall_ns(), elapsed = end - t0;
    if (!right)
        add(&errors, 1);
    if (self->index == 0 && self->now >= change_ns && history_ns / TRUTH_NS < HISTORY)
        file_history(call_counts[CALL] - before[CALL]);
    for (int i = 0; i < COUNTERS; i++) {
        uint64_t made = call_counts[i] - before[i];
        before[i] = call_counts[i];
        if (made && elapsed / TRUTH_NS < TRUTHS)
            add(&truth[i][elapsed / TRUTH_NS], made);
    }
    if (self->index == 0 || !mode->first_only) {
        add(&operations, 1);
        __atomic_fetch_add(&ADVERSARY_OPERATIONS, 1, __ATOMIC_RELAXED);
        if (elapsed / SLOT_NS < SLOTS)
            add(&slots[elapsed / SLOT_NS], 1);
        if (self->due)
            add(&latencies[bucket(end - self->due)], 1);
    }
    self->operations++;
    self->now = elapsed;
}

static void *work(void *data) {
    struct worker *self = data;
    uint64_t before[COUNTERS];
    memcpy(before, call_counts, sizeof before);
    self->now = wall_ns() - t0;
    while (!atomic_load_explicit(&stop_now, memory_order_relaxed))
        file(self, before, mode->operation(self));
    return NULL;
}

/* What `times` subtracts. */
static struct {
    uint64_t operations, wall, cpu, errors;
} last;

static void take_last(void) {
    last.operations = operations;
    last.wall = wall_ns();
    last.cpu = process_cpu_ns();
    last.errors = errors;
    for (int i = 0; i < BUCKETS; i++)
        latencies[i] = 0;
}

static uint64_t quantile(double q) {
    uint64_t total = 0, seen = 0;
    for (int i = 0; i < BUCKETS; i++)
        total += latencies[i];
    for (int i = 24; i < BUCKETS && total; i++) {
        seen += latencies[i];
        if ((double)seen >= q * (double)total)
            return bucket_ns(i);
    }
    return 0;
}

static void command_times(int count, char **words) {
    (void)count, (void)words;
    uint64_t made = operations - last.operations, cpu = process_cpu_ns() - last.cpu, p50 = quantile(0.5);
    reply("operations=%lu wall_ns=%lu cpu_ns=%lu errors=%lu p50_ns=%lu p99_ns=%lu", made, wall_ns() - last.wall, cpu,
          errors - last.errors, p50, quantile(0.99));
    take_last();
}

static void command_start(int count, char **words) {
    if (running) {
        reply_error("already running");
        return;
    }
    change_ns = number(count, words, 1, 5000) * 1000000u;
    memset(slots, 0, sizeof slots);
    memset(truth, 0, sizeof truth);
    memset(history, 0, sizeof history);
    history_ns = change_cpu = 0;
    atomic_store(&stop_now, 0);
    t0 = wall_ns();
    take_last();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 2u << 20);
    for (running = 0; running < mode->threads; running++) {
        workers[running] = (struct worker){.index = running, .random = 88172645463325252u + (unsigned)running};
        int error = pthread_create(&threads[running], &attributes, work, &workers[running]);
        if (error) {
            fprintf(stderr, "thread %d not started: %s\n", running, strerror(error));
            exit(1);
        }
    }
    pthread_attr_destroy(&attributes);
    reply("t0_ns=%lu threads=%d", t0, running);
}

static void command_stop(int count, char **words) {
    atomic_store(&stop_now, 1);
    while (running > 0)
        pthread_join(threads[--running], NULL);
    command_times(count, words);
}

static void command_slots(int count, char **words) {
    (void)count, (void)words;
    static char text[SLOTS * 12];
    uint64_t whole = (wall_ns() - t0) / SLOT_NS;
    size_t length = 0;
    for (uint64_t i = 0; i < whole && i < SLOTS; i++)
        length += (size_t)sprintf(text + length, "%s%lu", i ? "," : "", (unsigned long)slots[i]);
    text[length] = 0;
    reply("t0_ns=%lu slots=%s", t0, text);
}

static int find(const char *name) {
    for (int i = 0; i < COUNTERS; i++)
        if (strcmp(name, functions[i].name) == 0)
            return i;
    reply_error("no function %s", name);
    return -1;
}

/* Calls of the operations that ended in whole slots between two slots, both included. */
static uint64_t ended_in(int function, int64_t first, int64_t last_slot) {
    uint64_t sum = 0;
    for (int64_t i = first < 0 ? 0 : first; i <= last_slot && i < TRUTHS; i++)
        sum += truth[function][i];
    return sum;
}

static void command_history(int count, char **words) {
    (void)count, (void)words;
    static char text[HISTORY * 12];
    size_t length = 0;
    uint64_t whole = history_ns / TRUTH_NS;
    for (uint64_t i = 0; i < whole && i < HISTORY; i++)
        length += (size_t)sprintf(text + length, "%s%lu", i ? "," : "", history[i]);
    text[length] = 0;
    reply("calls=%s", text);
}

/* An operation that was under way at an edge counts in neither or in both: at most one a thread. */
static void command_between(int count, char **words) {
    int function = find(words[1]);
    if (function < 0)
        return;
    int64_t from = (int64_t)(number(count, words, 2, 0) - t0) / TRUTH_NS;
    int64_t to = (int64_t)(number(count, words, 3, 0) - t0) / TRUTH_NS;
    uint64_t under_way = (uint64_t)mode->threads * mode->most_calls;
    uint64_t within = ended_in(function, from + 1, to - 1);
    reply("least=%lu most=%lu", within > under_way ? within - under_way : 0,
          ended_in(function, from, to) + under_way);
}

static void command_count(int count, char **words) {
    (void)count;
    int function = find(words[1]);
    if (function >= 0)
        reply("calls=%lu", ended_in(function, 0, TRUTHS));
}

static void command_address(int count, char **words) {
    (void)count;
    int function = find(words[1]);
    if (function >= 0)
        reply("address=%#lx", (uint64_t)functions[function].address);
}

static void command_modes(int count, char **words) {
    (void)count, (void)words;
    char text[1024] = "";
    for (const struct mode *each = modes; each->name; each++) {
        strcat(text, *text ? "," : "");
        strcat(text, each->name);
    }
    reply("modes=%s", text);
}

int main(int count, char **words) {
    const char *wanted = count > 1 ? words[1] : "steady";
    for (mode = modes; mode->name && strcmp(mode->name, wanted) != 0;)
        mode++;
    if (!mode->name) {
        fprintf(stderr, "no mode %s\n", wanted);
        return 2;
    }
    rounds_per_us = fastest_rounds_per_us();
    static const struct command commands[] = {
        {"start", 0, command_start}, {"stop", 0, command_stop},       {"times", 0, command_times},
        {"slots", 0, command_slots}, {"between", 3, command_between}, {"history", 0, command_history}, {"count", 1, command_count},
        {"address", 1, command_address}, {"modes", 0, command_modes}, {NULL, 0, NULL},
    };
    serve(commands);
}
