/* The loads of the adversarial target. An operation takes from 20 us to a few ms. */
#define _GNU_SOURCE
#include "adversary.h"
#include "protocol.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

/* --- the functions that a profiler sees -------------------------------------------------------------------------- */

/* About 20 ns. */
TRACED uint64_t adv_call(uint64_t argument) {
    COUNT_CALL(CALL);
    burn_rounds(rounds_per_us / 64);
    return argument + 1;
}

/* About 1 us. */
TRACED uint64_t adv_middle(uint64_t argument) {
    COUNT_CALL(MIDDLE);
    burn_rounds(rounds_per_us);
    return argument + 1;
}

/* `us` microseconds. */
TRACED uint64_t adv_slow(uint64_t us) {
    COUNT_CALL(SLOW);
    burn_rounds(us * rounds_per_us);
    return us + 1;
}

/* The same, under another name. */
TRACED uint64_t adv_special(uint64_t us) {
    COUNT_CALL(SPECIAL);
    burn_rounds(us * rounds_per_us);
    return us + 1;
}

/* Calls of 20 ns with `pause` rounds between them. */
static inline __attribute__((always_inline)) int call_many(uint64_t calls, uint64_t pause) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < calls; i++) {
        sum += adv_call(i) - i;
        burn_rounds(pause);
    }
    return sum == calls;
}

/* --- loads that change ------------------------------------------------------------------------------------------- */

static int steady(struct worker *self) {
    (void)self;
    int right = adv_slow(50) == 51;
    for (uint64_t i = 0; i < 10; i++)
        right &= adv_middle(i) == i + 1;
    return right & call_many(20, 0);
}

/* 2.5 s with 20,000 calls a second, 2.5 s with 2 million. */
static int seasonal(struct worker *self) {
    int hot = self->now / 2500000000u % 2;
    return (adv_slow(hot ? 45 : 50) > 0) & call_many(hot ? 100 : 1, 0);
}

/* 1,000 calls of 100 ns, pause included: ten million a second. */
static int explosion(void) { return call_many(1000, rounds_per_us * 8 / 100); }

static int exploding(struct worker *self) {
    static uint64_t calls_before;
    if (self->operations == 0)
        calls_before = 0;
    if (self->now >= change_ns)
        return explosion();
    int right = adv_slow(100) == 101;
    if (self->now / 100000000u > calls_before) {
        calls_before = self->now / 100000000u;
        right &= adv_call(1) == 2;
    }
    return right;
}

static int hot(struct worker *self) {
    (void)self;
    return explosion();
}

/* Phases of 150 ms: far shorter than a plan lives. */
static int alternating(struct worker *self) {
    return self->now / 150000000u % 2 ? explosion() : adv_slow(100) == 101;
}

/* In step with a timer of 10 ms of CPU time: the first 3 ms in one function, the rest in another. A sampler with such a
 * period would see only one of them. */
static int lockstep(struct worker *self) {
    (void)self;
    uint64_t phase = cpu_ns() % 10000000u;
    return phase < 3000000u ? adv_slow(20) == 21 : adv_special(20) == 21;
}

/* --- many threads ------------------------------------------------------------------------------------------------- */

static int crowd(struct worker *self) {
    (void)self;
    return (adv_slow(20) == 21) & call_many(100, 0);
}

static int tiny(struct worker *self) {
    (void)self;
    return call_many(2000, 0);
}

static void sleep_ns(uint64_t ns) {
    struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&time, NULL);
}

/* One that calls and calls, 15 that work 100 us every 20 ms. */
static int one_hot(struct worker *self) {
    if (self->index == 0)
        return (adv_slow(20) == 21) & call_many(200, 0);
    sleep_ns(20000000);
    int right = 1;
    for (uint64_t i = 0; i < 100; i++)
        right &= adv_middle(i) == i + 1;
    return right;
}

/* 16 that work all the time on however few CPUs there are; only the first calls adv_call and adv_slow: what the hits cost is
 * little of the process's CPU time and much of its own. */
static int crowded(struct worker *self) {
    if (self->index == 0)
        return (adv_slow(30) == 31) & call_many(5, 0);
    return adv_special(100) == 101;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile uint64_t guarded;

/* The calls are made inside the lock: what a hit costs, all wait for. */
static int locked(struct worker *self) {
    (void)self;
    pthread_mutex_lock(&lock);
    uint64_t before = guarded;
    int right = call_many(100, 0) & (adv_middle(1) == 2);
    guarded = before + 1;
    right &= guarded == before + 1;
    pthread_mutex_unlock(&lock);
    return right & (adv_slow(5) == 6);
}

static void *born(void *data) {
    adv_call(0);
    return data;
}

/* About 1,000 births and deaths a second. */
static int births(struct worker *self) {
    pthread_t thread;
    void *value = NULL;
    int right = pthread_create(&thread, NULL, born, self) == 0 && pthread_join(thread, &value) == 0;
    call_counts[CALL]++; /* the thread's own count went with it */
    return right & (value == self) & (adv_slow(850) == 851);
}

static int forks(struct worker *self) {
    (void)self;
    pid_t child = fork();
    if (child == 0) {
        int right = call_many(100, 0);
        _exit(right ? 7 : 1);
    }
    int status = 0;
    int right = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
    return right & call_many(100, 0) & (adv_slow(300) == 301);
}

/* --- frames that end in other ways ------------------------------------------------------------------------------ */

TRACED uint64_t adv_recurse(uint64_t depth) {
    COUNT_CALL(RECURSE);
    volatile uint64_t below = depth > 1 ? adv_recurse(depth - 1) : 0;
    return below + 1;
}

static int recursion(struct worker *self) {
    (void)self;
    return (adv_recurse(10000) == 10000) & (adv_slow(50) == 51);
}

static __thread jmp_buf back;

TRACED uint64_t adv_jump(uint64_t argument) {
    COUNT_CALL(JUMP);
    longjmp(back, (int)argument);
}

TRACED uint64_t adv_jump_middle(uint64_t argument) {
    COUNT_CALL(JUMP_MIDDLE);
    volatile uint64_t result = adv_jump(argument);
    return result + 1;
}

static int jump(struct worker *self) {
    (void)self;
    int value = setjmp(back);
    if (value == 0)
        adv_jump_middle(5);
    return (value == 5) & (adv_slow(20) == 21);
}

static ucontext_t main_context, fiber_context;
static volatile uint64_t switches;

TRACED uint64_t adv_fiber(ucontext_t *from, ucontext_t *to) {
    COUNT_CALL(FIBER);
    switches = switches + 1;
    swapcontext(from, to);
    return switches;
}

static void fiber_main(void) {
    for (;;)
        adv_fiber(&fiber_context, &main_context);
}

static int fibers(struct worker *self) {
    static char stack[64 * 1024];
    if (self->operations == 0) {
        getcontext(&fiber_context);
        fiber_context.uc_stack.ss_sp = stack;
        fiber_context.uc_stack.ss_size = sizeof stack;
        fiber_context.uc_link = NULL;
        makecontext(&fiber_context, fiber_main, 0);
    }
    uint64_t before = switches;
    for (int i = 0; i < 10; i++)
        adv_fiber(&main_context, &fiber_context);
    return (switches == before + 20) & (adv_slow(20) == 21);
}

/* --- code that comes and goes ------------------------------------------------------------------------------------ */

static int library(struct worker *self) {
    static char path[4096];
    if (self->operations == 0) {
        ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
        path[length > 0 ? length : 0] = 0;
        char *slash = strrchr(path, '/');
        strcpy(slash ? slash + 1 : path, "libplugin.so");
    }
    void *handle = dlopen(path, RTLD_NOW);
    uint64_t (*run)(uint64_t) = NULL;
    if (handle)
        *(void **)&run = dlsym(handle, "plugin_function");
    int right = run != NULL;
    for (uint64_t i = 0; right && i < 100; i++)
        right &= run(i) == i + 1;
    return right & (handle && dlclose(handle) == 0) & (adv_slow(100) == 101) & call_many(10, 0);
}

/* --- sleepers ---------------------------------------------------------------------------------------------------- */

static uint64_t next_random(struct worker *self) {
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return self->random;
}

/* 2 s asleep, then 2 s with 100 operations a second of 100 us, at uneven times. */
static int idle(struct worker *self) {
    if (self->now / 2000000000u % 2 == 0)
        sleep_ns(2000000000u - self->now % 2000000000u);
    uint64_t wait = 2000000 + next_random(self) % 16000000;
    self->due = wall_ns() + wait;
    sleep_ns(wait);
    int right = call_many(100, 0);
    for (uint64_t i = 0; i < 20; i++)
        right &= adv_middle(i) == i + 1;
    return right & (adv_slow(78) == 79);
}

const struct mode modes[] = {
    {"steady", 1, steady, 20, 0},     {"seasonal", 1, seasonal, 100, 0}, {"exploding", 1, exploding, 1000, 0},
    {"hot", 1, hot, 1000, 0},         {"alternating", 1, alternating, 1000, 0},
    {"lockstep", 1, lockstep, 1, 0},  {"threads200", 200, crowd, 100, 0}, {"tiny", 1, tiny, 2000, 0},
    {"recursion", 1, recursion, 10000, 0}, {"longjmp", 1, jump, 1, 0},   {"fibers", 1, fibers, 20, 0},
    {"births", 1, births, 1, 0},      {"dlopen", 1, library, 10, 0},      {"forks", 1, forks, 100, 0},
    {"idle", 1, idle, 100, 0},        {"onehot16", 16, one_hot, 200, 1},  {"lock", 4, locked, 100, 0},
    {"crowded16", 16, crowded, 5, 1},
    {NULL, 0, NULL, 0, 0},
};
