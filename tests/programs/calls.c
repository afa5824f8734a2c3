/* The main target: functions that count and time their own calls, on 1 to 64 threads.
 *
 *   call NAME N THREADS [ARG]     N calls on each thread; ok calls=.. wall_ns=.. cpu_ns=..
 *   start NAME THREADS HZ [ARG]   the same in the background at HZ calls a second a thread (0: as fast as it can)
 *   pace HZ                       changes the rate of what runs in the background
 *   stop                          ends it; ok calls=.. wall_ns=.. cpu_ns=.. stall_ns=.. (longest time from the end of
 *                                 one call to the end of the next on a thread, since the start or the last `stall`)
 *   stall                         ok stall_ns=.., and starts that anew
 *   count NAME                    calls so far, of all threads
 *   address NAME                  ok address=0x..
 *   burn N                        N threads use up CPU time and call nothing, until `burn 0`
 *   fork NAME N [ARG]             a child without exec makes the calls; answers when it has ended
 *   storm N                       N threads, one after the other, begin and end at once
 *
 * NAME is the symbol; `big` stands for all functions big0 to big1999, one after the other. */
#define _GNU_SOURCE
#include "burn.h"
#include "counters.h"
#include "protocol.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 64
#define TRACED __attribute__((noinline, noclone, used))

/* Entries.S addresses it relative to the thread pointer. */
__thread uint64_t call_counts[COUNTERS] __attribute__((tls_model("local-exec")));
#define COUNT_CALL(id) (*(volatile uint64_t *)&call_counts[id])++

typedef uint64_t function(uint64_t argument);
function entry_push, entry_nop, entry_nop5, entry_endbr_push, entry_mov, entry_sub, entry_test_je;
function exits_two, exits_tail_jump, entry_loop_head;
extern function *const big_functions[BIG_FUNCTIONS];

/* --- functions in C ------------------------------------------------------------------------------------------- */

/* `depth` calls, the deepest with depth 1. The addition after the call keeps it from becoming a loop. */
TRACED uint64_t recurse(uint64_t depth) {
    COUNT_CALL(COUNT_RECURSE);
    volatile uint64_t below = depth > 1 ? recurse(depth - 1) : 0;
    return below + 1;
}

/* Sleeps for `us` microseconds: time off the CPU. */
TRACED uint64_t sleep_us(uint64_t us) {
    COUNT_CALL(COUNT_SLEEP);
    struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&time, NULL);
    return us + 1;
}

/* Sleeps for a time between 0 and 2 `us`, uniformly: a call as long as a window, in the mean. */
TRACED uint64_t sleep_uneven_us(uint64_t us) {
    static _Thread_local uint64_t state;
    if (state == 0)
        state = (uint64_t)(uintptr_t)&state;
    /* Knuth's MMIX generator; the upper bits are the good ones. */
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t length = (state >> 33) % (2 * us + 1);
    struct timespec time = {(time_t)(length / 1000000), (long)(length % 1000000) * 1000};
    COUNT_CALL(COUNT_SLEEP);
    nanosleep(&time, NULL);
    return length;
}

/* Keeps the CPU busy for about `us` microseconds: always the same work, however slow the CPU is just now. */
TRACED uint64_t spin_us(uint64_t us) {
    COUNT_CALL(COUNT_SPIN);
    burn(us * rounds_per_us);
    return us + 1;
}

TRACED uint64_t inner(uint64_t argument) {
    COUNT_CALL(COUNT_INNER);
    return argument + 1;
}

/* Calls `inner` as often as it is told: the cost of the inner probes must not count as the outer's time. */
TRACED uint64_t outer(uint64_t inner_calls) {
    COUNT_CALL(COUNT_OUTER);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < inner_calls; i++)
        sum += inner(i);
    return sum;
}

/* Called once at the end of each operation: a progress metric. */
TRACED uint64_t operation_done(uint64_t argument) {
    COUNT_CALL(COUNT_OPERATION_DONE);
    return argument;
}

/* One unit of work: about `us` microseconds of CPU time. */
TRACED uint64_t operation(uint64_t us) {
    COUNT_CALL(COUNT_OPERATION);
    burn(us * rounds_per_us);
    return operation_done(us);
}

TRACED uint64_t mix_slow(uint64_t argument) {
    COUNT_CALL(COUNT_MIX_SLOW);
    burn(1000 * rounds_per_us);
    return argument;
}

TRACED uint64_t mix_middle(uint64_t argument) {
    COUNT_CALL(COUNT_MIX_MIDDLE);
    burn(50 * rounds_per_us);
    return argument;
}

TRACED uint64_t mix_fast(uint64_t argument) {
    COUNT_CALL(COUNT_MIX_FAST);
    volatile uint64_t sum = 0;
    for (uint64_t i = 0; i < 100; i++)
        sum += i;
    return sum + argument;
}

/* Known shares: one slow call of 1 ms, ten of 50 us, and 2,000 short ones. */
TRACED uint64_t mix(uint64_t argument) {
    COUNT_CALL(COUNT_MIX);
    uint64_t sum = mix_slow(argument);
    for (int i = 0; i < 10; i++)
        sum += mix_middle(argument);
    for (int i = 0; i < 2000; i++)
        sum += mix_fast(argument);
    return sum;
}

TRACED uint64_t woven_fast(uint64_t argument) {
    COUNT_CALL(COUNT_WOVEN_FAST);
    volatile uint64_t sum = 0;
    for (uint64_t i = 0; i < 100; i++)
        sum += i;
    return sum + argument;
}

/* Two hundred short calls: a slower function beside one whose hits are dear against the time between two calls. */
TRACED uint64_t woven(uint64_t argument) {
    COUNT_CALL(COUNT_WOVEN);
    uint64_t sum = 0;
    for (int i = 0; i < 200; i++)
        sum += woven_fast(argument);
    return sum;
}

/* A hundred of those: slow enough to be traced all the time. */
TRACED uint64_t woven_slow(uint64_t argument) {
    COUNT_CALL(COUNT_WOVEN_SLOW);
    uint64_t sum = 0;
    for (int i = 0; i < 100; i++)
        sum += woven(argument);
    return sum;
}

TRACED static uint64_t big(uint64_t argument) {
    for (int i = 0; i < BIG_FUNCTIONS; i++)
        big_functions[i](argument);
    return argument;
}

static const struct target_function {
    const char *name;
    function *run;
    int counter;
} functions[] = {
    {"entry_push", entry_push, COUNT_PUSH},
    {"entry_nop", entry_nop, COUNT_NOP},
    {"entry_nop5", entry_nop5, COUNT_NOP5},
    {"entry_endbr_push", entry_endbr_push, COUNT_ENDBR_PUSH},
    {"entry_mov", entry_mov, COUNT_MOV},
    {"entry_sub", entry_sub, COUNT_SUB},
    {"entry_test_je", entry_test_je, COUNT_TEST_JE},
    {"exits_two", exits_two, COUNT_TWO_EXITS},
    {"exits_tail_jump", exits_tail_jump, COUNT_TAIL_JUMP},
    {"entry_loop_head", entry_loop_head, COUNT_LOOP_HEAD},
    {"recurse", recurse, COUNT_RECURSE},
    {"sleep_us", sleep_us, COUNT_SLEEP},
    {"sleep_uneven_us", sleep_uneven_us, COUNT_SLEEP},
    {"spin_us", spin_us, COUNT_SPIN},
    {"inner", inner, COUNT_INNER},
    {"outer", outer, COUNT_OUTER},
    {"operation", operation, COUNT_OPERATION},
    {"operation_done", operation_done, COUNT_OPERATION_DONE},
    {"mix", mix, COUNT_MIX},
    {"mix_slow", mix_slow, COUNT_MIX_SLOW},
    {"mix_middle", mix_middle, COUNT_MIX_MIDDLE},
    {"mix_fast", mix_fast, COUNT_MIX_FAST},
    {"woven", woven, COUNT_WOVEN},
    {"woven_fast", woven_fast, COUNT_WOVEN_FAST},
    {"woven_slow", woven_slow, COUNT_WOVEN_SLOW},
    {"big", big, COUNT_BIG},
};

static int find(const char *name, struct target_function *found) {
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(name, functions[i].name) == 0) {
            *found = functions[i];
            return 1;
        }
    int index;
    if (sscanf(name, "big%d", &index) == 1 && index >= 0 && index < BIG_FUNCTIONS) {
        *found = (struct target_function){name, big_functions[index], COUNT_BIG};
        return 1;
    }
    reply_error("no function %s", name);
    return 0;
}

/* --- threads -------------------------------------------------------------------------------------------------- */

static struct {
    function *run;
    uint64_t calls; /* per thread; UINT64_MAX: until stopped */
    uint64_t argument;
    atomic_ulong hz; /* per thread; 0: no pause */
    atomic_int waiting, released, stop;
    int threads;
} job;

static struct worker {
    pthread_t thread;
    sem_t go, done;
    uint64_t *counts;
    uint64_t start_ns, end_ns, cpu;
    atomic_ulong stall_ns;
} workers[MAX_THREADS]; /* 0 is the main thread */
static int worker_count = 1;
static int background;

static void pause_until(uint64_t *next, uint64_t period) {
    uint64_t now = wall_ns();
    *next = *next + period > now ? *next + period : now;
    struct timespec time = {(time_t)(*next / 1000000000u), (long)(*next % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

static int stopped(void) { return atomic_load_explicit(&job.stop, memory_order_relaxed); }

/* Above 1,000 calls a second a thread makes them in batches, one each millisecond. */
static void call_paced(struct worker *self) {
    uint64_t next = wall_ns(), last = next;
    while (!stopped()) {
        uint64_t hz = atomic_load_explicit(&job.hz, memory_order_relaxed);
        uint64_t batch = hz == 0 ? 64 : hz <= 1000 ? 1 : hz / 1000;
        for (uint64_t i = 0; i < batch && !stopped(); i++) {
            job.run(job.argument);
            uint64_t now = wall_ns();
            if (now - last > atomic_load_explicit(&self->stall_ns, memory_order_relaxed))
                atomic_store_explicit(&self->stall_ns, now - last, memory_order_relaxed);
            last = now;
        }
        if (hz) {
            pause_until(&next, hz <= 1000 ? 1000000000u / hz : 1000000u);
            last = wall_ns();
        } else {
            next = last;
        }
    }
}

static void work(struct worker *self) {
    atomic_fetch_add(&job.waiting, 1);
    while (!atomic_load(&job.released))
        sched_yield();
    uint64_t cpu = cpu_ns();
    self->start_ns = wall_ns();
    atomic_store(&self->stall_ns, 0);
    if (job.calls == UINT64_MAX)
        call_paced(self);
    else
        for (uint64_t i = 0; i < job.calls; i++)
            job.run(job.argument);
    self->end_ns = wall_ns();
    self->cpu = cpu_ns() - cpu;
}

static void *worker_main(void *data) {
    struct worker *self = data;
    self->counts = call_counts;
    sem_post(&self->done);
    for (;;) {
        sem_wait(&self->go);
        work(self);
        sem_post(&self->done);
    }
    return NULL;
}

static int ensure_workers(int count) {
    for (; worker_count < count; worker_count++) {
        struct worker *worker = &workers[worker_count];
        sem_init(&worker->go, 0, 0);
        sem_init(&worker->done, 0, 0);
        int error = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (error) {
            reply_error("thread %d not started: %s", worker_count, strerror(error));
            return 0;
        }
        sem_wait(&worker->done);
    }
    return 1;
}

static uint64_t total(int counter) {
    uint64_t sum = 0;
    for (int i = 0; i < worker_count; i++)
        sum += *(volatile uint64_t *)&workers[i].counts[counter];
    return sum;
}

static void prepare(struct target_function function, uint64_t calls, uint64_t argument, uint64_t hz, int threads) {
    job.run = function.run;
    job.calls = calls;
    job.argument = argument;
    job.threads = threads;
    atomic_store(&job.hz, hz);
    atomic_store(&job.waiting, 0);
    atomic_store(&job.released, 0);
    atomic_store(&job.stop, 0);
}

static void release(void) {
    while (atomic_load(&job.waiting) < job.threads)
        sched_yield();
    atomic_store(&job.released, 1);
}

static uint64_t take_stall(int first, int last) {
    uint64_t longest = 0;
    for (int i = first; i <= last; i++) {
        uint64_t stall = atomic_exchange(&workers[i].stall_ns, 0);
        longest = stall > longest ? stall : longest;
    }
    return longest;
}

/* Answers with the calls, the wall time from the first start to the last end, the threads' CPU time, and the longest
 * stall of background calls. */
static void reply_times(int first, int last, uint64_t calls) {
    uint64_t start = UINT64_MAX, end = 0, cpu = 0;
    for (int i = first; i <= last; i++) {
        start = workers[i].start_ns < start ? workers[i].start_ns : start;
        end = workers[i].end_ns > end ? workers[i].end_ns : end;
        cpu += workers[i].cpu;
    }
    reply("calls=%lu wall_ns=%lu cpu_ns=%lu stall_ns=%lu", calls, end - start, cpu, take_stall(first, last));
}

static int threads_allowed(uint64_t threads) {
    if (threads >= 1 && threads < MAX_THREADS)
        return 1;
    reply_error("threads must be 1 to %d, got %lu", MAX_THREADS - 1, threads);
    return 0;
}

/* The main thread is the first of them, so that one thread means a process with no other. */
static void command_call(int count, char **words) {
    struct target_function function;
    uint64_t threads = number(count, words, 3, 1);
    if (!find(words[1], &function) || !threads_allowed(threads) || !ensure_workers((int)threads))
        return;
    if (background) {
        reply_error("stop the background calls first");
        return;
    }
    uint64_t before = total(function.counter);
    prepare(function, number(count, words, 2, 1), number(count, words, 4, 1), 0, (int)threads);
    for (uint64_t i = 1; i < threads; i++)
        sem_post(&workers[i].go);
    while (atomic_load(&job.waiting) < (int)threads - 1)
        sched_yield();
    atomic_store(&job.released, 1);
    work(&workers[0]);
    for (uint64_t i = 1; i < threads; i++)
        sem_wait(&workers[i].done);
    reply_times(0, (int)threads - 1, total(function.counter) - before);
}

static int background_counter;
static uint64_t background_before;

static void command_start(int count, char **words) {
    struct target_function function;
    uint64_t threads = number(count, words, 2, 1);
    if (!find(words[1], &function) || !threads_allowed(threads) || !ensure_workers((int)threads + 1))
        return;
    if (background) {
        reply_error("already running in the background");
        return;
    }
    background = 1;
    background_counter = function.counter;
    background_before = total(function.counter);
    prepare(function, UINT64_MAX, number(count, words, 4, 1), number(count, words, 3, 0), (int)threads);
    for (uint64_t i = 1; i <= threads; i++)
        sem_post(&workers[i].go);
    release();
    reply("started");
}

static void command_pace(int count, char **words) {
    atomic_store(&job.hz, number(count, words, 1, 0));
    reply("paced");
}

static void command_stall(int count, char **words) {
    (void)count, (void)words;
    if (background)
        reply("stall_ns=%lu", take_stall(1, job.threads));
    else
        reply_error("nothing runs in the background");
}

static void command_stop(int count, char **words) {
    (void)count, (void)words;
    if (!background) {
        reply_error("nothing runs in the background");
        return;
    }
    atomic_store(&job.stop, 1);
    for (int i = 1; i <= job.threads; i++)
        sem_wait(&workers[i].done);
    background = 0;
    reply_times(1, job.threads, total(background_counter) - background_before);
}

static void command_count(int count, char **words) {
    (void)count;
    struct target_function function;
    if (find(words[1], &function))
        reply("calls=%lu", total(function.counter));
}

static void command_address(int count, char **words) {
    (void)count;
    struct target_function function;
    if (find(words[1], &function))
        reply("address=%#lx", (uint64_t)function.run);
}

static void command_load(int count, char **words) {
    (void)count;
    if (dlopen(words[1], RTLD_NOW))
        reply("loaded=1");
    else
        reply_error("%s", dlerror());
}

/* The child answers through a pipe, so that the parent's output stays one line. */
static void command_fork(int count, char **words) {
    struct target_function function;
    if (!find(words[1], &function))
        return;
    uint64_t calls = number(count, words, 2, 1), argument = number(count, words, 3, 1);
    int ends[2];
    if (pipe(ends) != 0) {
        reply_error("pipe failed");
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        uint64_t before = call_counts[function.counter], wall = wall_ns(), cpu = cpu_ns();
        for (uint64_t i = 0; i < calls; i++)
            function.run(argument);
        uint64_t answer[3] = {call_counts[function.counter] - before, wall_ns() - wall, cpu_ns() - cpu};
        _exit(write(ends[1], answer, sizeof answer) == sizeof answer ? 0 : 1);
    }
    close(ends[1]);
    uint64_t answer[3] = {0, 0, 0};
    ssize_t got = read(ends[0], answer, sizeof answer);
    close(ends[0]);
    int status = -1;
    waitpid(child, &status, 0);
    if (got != sizeof answer || status != 0)
        reply_error("the forked child ended with status %#x", status);
    else
        reply("calls=%lu wall_ns=%lu cpu_ns=%lu child=%d", answer[0], answer[1], answer[2], (int)child);
}

static void *ends_at_once(void *data) { return data; }

static void command_storm(int count, char **words) {
    uint64_t threads = number(count, words, 1, 1);
    for (uint64_t i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, ends_at_once, NULL) != 0) {
            reply_error("thread %lu not started", i);
            return;
        }
        pthread_join(thread, NULL);
    }
    reply("threads=%lu", threads);
}

int main(void) {
    calibrate_burn();
    static const struct command commands[] = {
        {"call", 3, command_call},   {"start", 3, command_start}, {"pace", 1, command_pace},
        {"stop", 0, command_stop},   {"count", 1, command_count}, {"address", 1, command_address},
        {"fork", 2, command_fork},   {"storm", 1, command_storm}, {"stall", 0, command_stall}, {"burn", 1, command_burn},
        {"load", 1, command_load},
        {NULL, 0, NULL},
    };
    workers[0].counts = call_counts;
    serve(commands);
}
