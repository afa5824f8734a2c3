/* Work that uses up CPU time and nothing else. */
#pragma once
#include <stdint.h>

/* Rounds of `burn` in a microsecond; set before anything burns. */
extern uint64_t rounds_per_us;
void calibrate_burn(void);

/* Arithmetic only: reading a clock in the loop would be a system call, and samples pile up where a system call
 * enables interrupts again. */
static inline __attribute__((always_inline)) void burn(uint64_t rounds) {
    for (uint64_t i = 0; i < rounds; i++)
        __asm__ volatile("" : "+r"(i));
}

/* The command `burn N`: N threads burn until the next one. */
void command_burn(int count, char **words);
