/* What the three fiber programs share: fibers that walk a recursion and switch back in the middle of each call of
 * `fiber_work`, so that calls of several stacks interleave on one thread. Each fiber's sum is known. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define FIBERS 8
#define ROUNDS 200
#define FIBER_STACK (64 * 1024)

/* Back to the scheduler; given by the program. */
#ifdef __cplusplus
extern "C"
#endif
void fiber_yield(void);

#ifdef __cplusplus
extern "C"
#endif
__attribute__((noinline, noclone, used)) uint64_t fiber_work(uint64_t depth, uint64_t value) {
    if (depth == 0) {
        fiber_yield();
        return value * 2654435761u;
    }
    uint64_t below = fiber_work(depth - 1, value + depth);
    if (depth == 2)
        fiber_yield();
    return below ^ (value * depth);
}

/* The same without any switch: what a fiber's sum must be. */
static uint64_t fiber_plain(uint64_t depth, uint64_t value) {
    if (depth == 0)
        return value * 2654435761u;
    return fiber_plain(depth - 1, value + depth) ^ (value * depth);
}

static uint64_t fiber_start(uint64_t seed, uint64_t fiber) { return seed * 1000003 + fiber * 101; }

static uint64_t fiber_sum_expected(uint64_t seed, uint64_t fiber) {
    uint64_t sum = 0;
    for (uint64_t round = 0; round < ROUNDS; round++)
        sum += fiber_plain(4, fiber_start(seed, fiber) + round);
    return sum;
}

static uint64_t fiber_sum(uint64_t seed, uint64_t fiber) {
    uint64_t sum = 0;
    for (uint64_t round = 0; round < ROUNDS; round++)
        sum += fiber_work(4, fiber_start(seed, fiber) + round);
    return sum;
}

/* Runs all fibers to their ends and fills in their sums; given by the program. */
static void run_fibers(uint64_t seed, uint64_t *sums);

int main(void) {
    char line[64];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        uint64_t seed = strtoull(line, NULL, 10), sums[FIBERS] = {0}, all = 0;
        int wrong = -1;
        run_fibers(seed, sums);
        for (int fiber = 0; fiber < FIBERS; fiber++) {
            if (sums[fiber] != fiber_sum_expected(seed, fiber))
                wrong = fiber;
            all ^= sums[fiber];
        }
        if (wrong >= 0)
            printf("wrong: the sum of fiber %d is %lu and not %lu\n", wrong, sums[wrong], fiber_sum_expected(seed, wrong));
        else
            printf("ok %lu\n", all);
        fflush(stdout);
    }
    return 0;
}
