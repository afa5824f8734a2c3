/* Return links are allowed in this program. Calls are left by longjmp, and a signal handler runs on a stack of its own that is
 * set by a plain system call, which nothing shows but the stack pointer. Libraries come later, one of them switches stacks.
 *
 *   work N       N calls of leaver_work; ok calls=N sum=S
 *   leave N D    N times: leaver_deep calls itself D times and goes back by longjmp; ok left=N sum=S
 *   signal MS    a handler on a stack of its own uses up MS milliseconds of CPU time; ok handled=K
 *   load PATH    loads a library; ok
 *   switch N     N round trips between two stacks by own_switch of the library, each inside leaver_across on both; ok sum=S */
#define _GNU_SOURCE
#include "protocol.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRACED __attribute__((noinline, noclone, used))

static jmp_buf back;
static volatile uint64_t handled, handler_ns;

TRACED uint64_t leaver_work(uint64_t argument) {
    volatile uint64_t result = argument * 7 + 1;
    return result;
}

TRACED uint64_t leaver_deep(uint64_t depth) {
    volatile uint64_t here = depth;
    if (depth == 0)
        return here;
    if (depth == 1)
        longjmp(back, 1);
    return leaver_deep(depth - 1) + here;
}

static void command_work(int count, char **words) {
    uint64_t calls = number(count, words, 1, 1), sum = 0;
    for (uint64_t i = 0; i < calls; i++)
        sum = sum * 31 + leaver_work(i);
    reply("calls=%lu sum=%lu", calls, sum);
}

static void command_leave(int count, char **words) {
    static volatile uint64_t left, sum;
    uint64_t rounds = number(count, words, 1, 1), depth = number(count, words, 2, 1);
    sum = 0;
    for (left = 0; left < rounds;) {
        if (setjmp(back) == 0)
            sum += leaver_deep(depth);
        left = left + 1;
        sum = sum * 31 + left;
    }
    uint64_t all = sum, times = left;
    reply("left=%lu sum=%lu", times, all);
}

static void on_signal(int number) {
    (void)number;
    uint64_t until = cpu_ns() + handler_ns;
    while (cpu_ns() < until)
        ;
    handled = handled + 1;
}

static void command_signal(int count, char **words) {
    static char stack[64 * 1024];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    handler_ns = number(count, words, 1, 1) * 1000000;
    syscall(SYS_sigaltstack, &alternate, NULL);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    uint64_t done = handled;
    reply("handled=%lu", done);
}

static void *library, *main_stack, *other_stack;
static void (*own_switch)(void **keep, void *other);
static uint64_t other_sum;

/* Leaves its own frame by a switch, and comes back to it by another. */
TRACED uint64_t leaver_across(uint64_t argument, void **keep, void **other) {
    volatile uint64_t mine = argument * 3 + 1;
    own_switch(keep, *other);
    return mine + argument;
}

static void other_main(void) {
    for (uint64_t i = 0;; i++)
        other_sum += leaver_across(i, &other_stack, &main_stack);
}

static void command_load(int count, char **words) {
    (void)count;
    library = dlopen(words[1], RTLD_NOW);
    if (library)
        reply("loaded");
    else
        reply_error("%s", dlerror());
}

static void command_switch(int count, char **words) {
    enum { SIZE = 64 * 1024 };
    uint64_t rounds = number(count, words, 1, 1), sum = 0;
    if (!library || !(*(void **)&own_switch = dlsym(library, "own_switch"))) {
        reply_error("no library with own_switch was loaded");
        return;
    }
    if (!other_stack) {
        char *memory = aligned_alloc(16, SIZE);
        /* Six registers, and where to go; the stack is aligned there as after a call. */
        uint64_t *top = (uint64_t *)(memory + SIZE) - 2;
        *top = (uint64_t)(uintptr_t)other_main;
        other_stack = top - 6;
    }
    for (uint64_t i = 0; i < rounds; i++)
        sum += leaver_across(i, &main_stack, &other_stack);
    reply("sum=%lu", sum * 31 + other_sum);
}

int main(void) {
    static const struct command commands[] = {
        {"work", 1, command_work}, {"leave", 2, command_leave},   {"signal", 1, command_signal},
        {"load", 1, command_load}, {"switch", 1, command_switch}, {NULL, 0, NULL},
    };
    serve(commands);
}
