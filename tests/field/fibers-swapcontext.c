/* Fibers by the C library's swapcontext. */
#include "fibers.h"
#include <ucontext.h>

static ucontext_t scheduler, contexts[FIBERS];
static char stacks[FIBERS][FIBER_STACK] __attribute__((aligned(64)));
static int current, ended[FIBERS];
static uint64_t now_seed, *now_sums;

void fiber_yield(void) { swapcontext(&contexts[current], &scheduler); }

static void body(int fiber) {
    now_sums[fiber] = fiber_sum(now_seed, fiber);
    ended[fiber] = 1;
}

static void run_fibers(uint64_t seed, uint64_t *sums) {
    now_seed = seed;
    now_sums = sums;
    for (int fiber = 0; fiber < FIBERS; fiber++) {
        getcontext(&contexts[fiber]);
        contexts[fiber].uc_stack.ss_sp = stacks[fiber];
        contexts[fiber].uc_stack.ss_size = FIBER_STACK;
        contexts[fiber].uc_link = &scheduler;
        ended[fiber] = 0;
        makecontext(&contexts[fiber], (void (*)(void))body, 1, fiber);
    }
    for (int left = FIBERS; left > 0;) {
        left = 0;
        for (current = 0; current < FIBERS; current++) {
            if (ended[current])
                continue;
            swapcontext(&scheduler, &contexts[current]);
            left += !ended[current];
        }
    }
}
