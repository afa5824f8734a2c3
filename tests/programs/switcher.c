/* Two stacks, switched by ten lines of assembly of its own: no library and no known name tells of it. Between commands the
 * thread sleeps on its own stack, so that a look at the process shows nothing either.
 *
 *   run N    N round trips between the stacks, each inside switched_work on both; ok sum=S */
#include "protocol.h"

#include <stdlib.h>

#define TRACED __attribute__((noinline, noclone, used))

#ifdef WITH_HELPER
/* Looks like a switch at first, is none, and ends in bytes that are no instruction. */
__asm__(".pushsection .text\n"
        "own_helper:\n"
        "    push %rbp; mov %rsi, %rbp; mov %rsp, %rbp; leave; ret\n"
        "    .byte 6, 6, 6, 6\n"
        "    .balign 16\n"
        ".popsection\n");
#endif

/* Keeps the stack pointer in *rdi, and goes on with the one in rsi. */
__asm__(".pushsection .text\n"
        ".globl own_switch\n"
        "own_switch:\n"
        "    push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
        "    ret\n"
        ".popsection\n");
void own_switch(void **keep, void *other);

static void *main_stack, *fiber_stack;
static uint64_t fiber_sum;

/* Leaves its own frame by a switch, and comes back to it by another: what it returns depends on its own frame. */
TRACED uint64_t switched_work(uint64_t argument, void **keep, void **other) {
    volatile uint64_t mine = argument * 3 + 1;
    own_switch(keep, *other);
    return mine + argument;
}

static void fiber_main(void) {
    for (uint64_t i = 0;; i++)
        fiber_sum += switched_work(i, &fiber_stack, &main_stack);
}

static void command_run(int count, char **words) {
    enum { SIZE = 64 * 1024 };
    static char *memory;
    uint64_t rounds = number(count, words, 1, 1), sum = 0;
    if (!memory) {
        memory = aligned_alloc(16, SIZE);
        /* Six registers, and where to go; the stack is aligned there as after a call. */
        uint64_t *top = (uint64_t *)(memory + SIZE) - 2;
        *top = (uint64_t)(uintptr_t)fiber_main;
        fiber_stack = top - 6;
    }
    for (uint64_t i = 0; i < rounds; i++)
        sum += switched_work(i, &main_stack, &fiber_stack);
    reply("sum=%lu", sum * 31 + fiber_sum);
}

int main(void) {
    static const struct command commands[] = {{"run", 1, command_run}, {NULL, 0, NULL}};
    serve(commands);
}
