// Calls `spins` for ever; each call goes round an empty loop that begins right behind the function's first instruction.
// Usage: spins ROUNDS. Each 0.2 s of CPU time it prints how many calls it made in a second of it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void spins(uint64_t rounds);

__asm__(".globl spins\n"
        ".type spins, @function\n"
        "spins:\n"
        "  .cfi_startproc\n"
        "  push %rbx\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "1: dec %rdi\n"
        "  jnz 1b\n"
        "  pop %rbx\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  ret\n"
        "  .cfi_endproc\n"
        ".size spins, . - spins\n");

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], 0, 10) : 1000;
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
