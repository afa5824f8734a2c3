/* Functions of five durations, ns, in four entry forms, each with a twin: dNS_FORM and tNS_FORM. */
#pragma once
#include <stdint.h>

typedef void timed_function(uint64_t turns);

/* A chain of multiplications that wait for each other: as long, whatever runs on the other thread of the core. (`dec; jne` alone took 17 to
 * 38 ms for the same turns on an AMD EPYC, as neighbours of the virtual machine came and went.) */
static inline __attribute__((always_inline)) void turn(uint64_t turns) {
    __asm__ volatile("1: imul %%rax, %%rax\n\timul %%rax, %%rax\n\tdec %0\n\tjne 1b" : "+r"(turns) : : "rax", "cc");
}

#define FOR_FORMS(macro, ns) macro(ns, push) macro(ns, nop5) macro(ns, endbr) macro(ns, sub)
#define FOR_ALL(macro) \
    FOR_FORMS(macro, 100) FOR_FORMS(macro, 300) FOR_FORMS(macro, 1000) FOR_FORMS(macro, 10000) FOR_FORMS(macro, 1000000)
