/* 600 functions, page000 to page599, each on a page of its own: probing them all makes 600 pages
 * private.
 *
 *   hold N  touches N MiB of anonymous memory, so that a memory limit has something to hold: ok bytes=..
 *   call N  calls page000 so often: ok calls=.. */
#include "protocol.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define ONE(n) __attribute__((noipa, aligned(4096))) void page##n(void) { __asm__ volatile(""); }
#define TEN(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7) ONE(n##8) ONE(n##9)
#define HUNDRED(n) TEN(n##0) TEN(n##1) TEN(n##2) TEN(n##3) TEN(n##4) TEN(n##5) TEN(n##6) TEN(n##7) TEN(n##8) TEN(n##9)
HUNDRED(0) HUNDRED(1) HUNDRED(2) HUNDRED(3) HUNDRED(4) HUNDRED(5)

/* Holds so many MiB, each page touched. */
static void command_hold(int count, char **words) {
    size_t size = (size_t)number(count, words, 1, 1) << 20;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        reply_error("no memory");
        return;
    }
    memset(memory, 1, size);
    reply("bytes=%zu", size);
}

/* Calls the first function so often. */
static void command_call(int count, char **words) {
    uint64_t calls = number(count, words, 1, 1);
    for (uint64_t i = 0; i < calls; i++) page000();
    reply("calls=%llu", (unsigned long long)calls);
}

int main(void) {
    static const struct command commands[] = {
        {"hold", 1, command_hold},
        {"call", 1, command_call},
        {NULL, 0, NULL},
    };
    serve(commands);
}
