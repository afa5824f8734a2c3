/* Programs that a careless tracer breaks. Each command does its dangerous thing N times and reports that the result
 * was right; a tracer that harms it shows as a dead process or a wrong number.
 *
 *   backtrace N         backtrace() below hazard_outer and hazard_inner; ok seen=N (both frames found)
 *   fibers N            N switches between two stacks inside hazard_fiber; ok switches=N sum=S (S by what its calls return)
 *   sigaltstack N       N signals handled by hazard_handler on an alternate stack; ok handled=N
 *   pthread_exit N      N threads that end inside hazard_exit_thread; ok ended=N
 *   patch               rewrites the first bytes of hazard_patched, text readable and executable again
 *   patch_writable      the same, and leaves the text writable
 *   patched N           calls it; ok calls=N sum=S (S = N before the patch, 2 N after)
 *   dlopen PATH N       loads, calls and unloads a library N times; ok calls=N
 *   load PATH           loads a library for good; ok loaded
 *   threads N M         N threads at once, each calling hazard_call M times; ok calls=N*M
 *   births N            N threads one after the other; ok calls=N
 *   call N              ok calls=N
 *   exec PATH [ARG]     replaces this process */
#define _GNU_SOURCE
#include "protocol.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define TRACED __attribute__((noinline, noclone, used))

static _Atomic uint64_t calls_made;

TRACED uint64_t hazard_call(uint64_t argument) {
    atomic_fetch_add_explicit(&calls_made, 1, memory_order_relaxed);
    return argument + 1;
}

/* --- somebody else's stack walk -------------------------------------------------------------------------------- */

uint64_t hazard_inner(void);
uint64_t hazard_outer(void);

/* The callers are shorter than 64 bytes. */
static int within(void *address, uint64_t (*function)(void)) {
    return (uintptr_t)address > (uintptr_t)function && (uintptr_t)address < (uintptr_t)function + 64;
}

/* 1 if the walk finds both callers, in order. */
TRACED static uint64_t walk(void) {
    void *frames[32];
    int count = backtrace(frames, 32);
    for (int i = 0; i + 1 < count; i++)
        if (within(frames[i], hazard_inner) && within(frames[i + 1], hazard_outer))
            return 1;
    return 0;
}

TRACED uint64_t hazard_inner(void) {
    volatile uint64_t found = walk();
    return found;
}

TRACED uint64_t hazard_outer(void) {
    volatile uint64_t found = hazard_inner();
    return found;
}

static void command_backtrace(int count, char **words) {
    uint64_t rounds = number(count, words, 1, 1), seen = 0;
    for (uint64_t i = 0; i < rounds; i++)
        seen += hazard_outer();
    reply("seen=%lu", seen);
}

/* --- two stacks ------------------------------------------------------------------------------------------------ */

static ucontext_t main_context, fiber_context;
static volatile uint64_t switches, fiber_sum;

/* Leaves its own frame by a switch, and comes back to it by another. What it returns is in its own frame. */
TRACED uint64_t hazard_fiber(ucontext_t *from, ucontext_t *to) {
    volatile uint64_t mine = switches * 3 + 1;
    switches = switches + 1;
    swapcontext(from, to);
    return mine;
}

static void fiber_main(void) {
    for (;;)
        fiber_sum = fiber_sum * 31 + hazard_fiber(&fiber_context, &main_context);
}

static void command_fibers(int count, char **words) {
    static char stack[64 * 1024];
    uint64_t rounds = number(count, words, 1, 2), sum = 0;
    switches = fiber_sum = 0;
    getcontext(&fiber_context);
    fiber_context.uc_stack.ss_sp = stack;
    fiber_context.uc_stack.ss_size = sizeof stack;
    fiber_context.uc_link = NULL;
    makecontext(&fiber_context, fiber_main, 0);
    for (uint64_t i = 0; i < rounds; i += 2)
        sum = sum * 31 + hazard_fiber(&main_context, &fiber_context);
    uint64_t done = switches, both = sum ^ fiber_sum;
    reply("switches=%lu sum=%lu", done, both);
}

/* --- an alternate signal stack ----------------------------------------------------------------------------------- */

static volatile uint64_t handled;

TRACED void hazard_handler(int signal) {
    (void)signal;
    handled = handled + 1;
}

static void command_sigaltstack(int count, char **words) {
    static char stack[64 * 1024];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = hazard_handler, .sa_flags = SA_ONSTACK};
    uint64_t rounds = number(count, words, 1, 1);
    handled = 0;
    sigaltstack(&alternate, NULL);
    sigaction(SIGUSR1, &action, NULL);
    for (uint64_t i = 0; i < rounds; i++)
        raise(SIGUSR1);
    uint64_t done = handled;
    reply("handled=%lu", done);
}

/* --- threads --------------------------------------------------------------------------------------------------- */

TRACED void hazard_exit_thread(void *value) {
    atomic_fetch_add(&calls_made, 1);
    pthread_exit(value);
}

static void *exit_inside(void *value) {
    hazard_exit_thread(value);
    return NULL;
}

static uint64_t calls_per_thread;

static void *call_many(void *value) {
    for (uint64_t i = 0; i < calls_per_thread; i++)
        hazard_call(i);
    return value;
}

/* Starts `total` threads, `at_once` of them before the first is joined; returns how many gave their value back. */
static uint64_t run_threads(uint64_t total, uint64_t at_once, void *(*main)(void *)) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 * 1024);
    pthread_t *threads = calloc(at_once, sizeof *threads);
    uint64_t returned = 0;
    for (uint64_t done = 0; done < total; done += at_once) {
        uint64_t started = 0;
        while (started < at_once && pthread_create(&threads[started], &small, main, &calls_made) == 0)
            started++;
        for (uint64_t i = 0; i < started; i++) {
            void *value = NULL;
            pthread_join(threads[i], &value);
            returned += value == &calls_made;
        }
    }
    free(threads);
    return returned;
}

static void command_pthread_exit(int count, char **words) {
    reply("ended=%lu", run_threads(number(count, words, 1, 1), 1, exit_inside));
}

static void command_threads(int count, char **words) {
    uint64_t before = calls_made, total = number(count, words, 1, 1);
    calls_per_thread = number(count, words, 2, 1);
    uint64_t returned = run_threads(total, total, call_many);
    reply("calls=%lu threads=%lu", calls_made - before, returned);
}

static void command_births(int count, char **words) {
    uint64_t before = calls_made;
    calls_per_thread = 1;
    uint64_t returned = run_threads(number(count, words, 1, 1), 1, call_many);
    reply("calls=%lu threads=%lu", calls_made - before, returned);
}

static void command_call(int count, char **words) {
    uint64_t before = calls_made, rounds = number(count, words, 1, 1);
    for (uint64_t i = 0; i < rounds; i++)
        hazard_call(i);
    reply("calls=%lu", calls_made - before);
}

/* --- text that changes ----------------------------------------------------------------------------------------- */

/* Returns 1; after the patch, 2. A page of its own, so that a writable text harms nothing else. */
__asm__(".pushsection .text.hazard_patched, \"ax\", @progbits\n"
        ".p2align 12\n"
        ".globl hazard_patched\n"
        ".type hazard_patched, @function\n"
        "hazard_patched:\n"
        "    mov $1, %eax\n"
        "    ret\n"
        ".size hazard_patched, . - hazard_patched\n"
        ".p2align 12\n"
        ".popsection\n");
uint64_t hazard_patched(void);

static void patch(int protection) {
    unsigned char *code = (unsigned char *)hazard_patched;
    if (mprotect(code, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
        reply_error("mprotect: %s", strerror(errno));
        return;
    }
    /* push %rbp; mov $2, %eax; pop %rbp; ret: other lengths than before. */
    static const unsigned char two[] = {0x55, 0xb8, 2, 0, 0, 0, 0x5d, 0xc3};
    memcpy(code, two, sizeof two);
    mprotect(code, 4096, protection);
    reply("patched");
}

static void command_patch(int count, char **words) {
    (void)count, (void)words;
    patch(PROT_READ | PROT_EXEC);
}

static void command_patch_writable(int count, char **words) {
    (void)count, (void)words;
    patch(PROT_READ | PROT_WRITE | PROT_EXEC);
}

static void command_patched(int count, char **words) {
    uint64_t rounds = number(count, words, 1, 1), sum = 0;
    for (uint64_t i = 0; i < rounds; i++)
        sum += hazard_patched();
    reply("calls=%lu sum=%lu", rounds, sum);
}

/* --- code that comes and goes ------------------------------------------------------------------------------------ */

static void command_dlopen(int count, char **words) {
    uint64_t rounds = number(count, words, 2, 1), good = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        void *library = dlopen(words[1], RTLD_NOW);
        unsigned long (*run)(unsigned long) = NULL;
        if (library)
            *(void **)&run = dlsym(library, "plugin_function");
        good += run && run(i) == i + 1;
        if (library)
            dlclose(library);
    }
    reply("calls=%lu", good);
}

static void command_load(int count, char **words) {
    (void)count;
    if (dlopen(words[1], RTLD_NOW))
        reply("loaded");
    else
        reply_error("%s", dlerror());
}

static void command_exec(int count, char **words) {
    char *arguments[] = {words[1], count > 2 ? words[2] : NULL, NULL};
    execv(words[1], arguments);
    reply_error("exec %s: %s", words[1], strerror(errno));
}

int main(void) {
    static const struct command commands[] = {
        {"backtrace", 1, command_backtrace},
        {"fibers", 1, command_fibers},
        {"sigaltstack", 1, command_sigaltstack},
        {"pthread_exit", 1, command_pthread_exit},
        {"threads", 2, command_threads},
        {"births", 1, command_births},
        {"call", 1, command_call},
        {"patch", 0, command_patch},
        {"patch_writable", 0, command_patch_writable},
        {"patched", 1, command_patched},
        {"dlopen", 2, command_dlopen},
        {"load", 1, command_load},
        {"exec", 1, command_exec},
        {NULL, 0, NULL},
    };
    serve(commands);
}
