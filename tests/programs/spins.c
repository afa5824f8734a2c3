// Calls `spins` for ever; each call goes round an empty loop that begins right behind the function's first instruction.
// Usage: spins ROUNDS [twin]. Each 0.2 s of CPU time it prints how many calls it made in a second of it. With `twin` it calls `spins` and a twin
// of the same code in turns, which nobody watches, and prints how much longer the calls of `spins` took, over the time of both without that.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void spins(uint64_t rounds);
void twin(uint64_t rounds);

#define SPINS(name)                                                                                                    \
    __asm__(".p2align 6\n.globl " #name "\n"                                                                           \
            ".type " #name ", @function\n" #name ":\n"                                                                 \
            "  .cfi_startproc\n"                                                                                       \
            "  push %rbx\n"                                                                                            \
            "  .cfi_adjust_cfa_offset 8\n"                                                                             \
            "1: dec %rdi\n"                                                                                            \
            "  jnz 1b\n"                                                                                               \
            "  pop %rbx\n"                                                                                             \
            "  .cfi_adjust_cfa_offset -8\n"                                                                            \
            "  ret\n"                                                                                                  \
            "  .cfi_endproc\n"                                                                                         \
            ".size " #name ", .-" #name "\n")
SPINS(spins);
SPINS(twin);

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double turn_s(void (*of)(uint64_t), uint64_t rounds) {
    double begin = cpu_s();
    for (int i = 0; i < 8; i++) of(rounds);
    return cpu_s() - begin;
}

static void with_twin(uint64_t rounds) {
    double watched = 0, free = 0;
    for (;;) {
        watched += turn_s(spins, rounds);
        free += turn_s(twin, rounds);
        if (watched + free < 0.2) continue;
        printf("%.5f\n", (watched - free) / (2 * free));
        fflush(stdout);
        watched = free = 0;
    }
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], 0, 10) : 1000;
    if (argc > 2) with_twin(rounds);
    double begin = cpu_s();
    for (uint64_t calls = 0;;) {
        for (uint64_t i = 0; i < 1 + 200000 / rounds; i++, calls++) spins(rounds);
        double now = cpu_s();
        if (now - begin < 0.2) continue;
        printf("%.1f\n", calls / (now - begin));
        fflush(stdout);
        begin = now;
        calls = 0;
    }
}
