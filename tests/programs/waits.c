/* Waits of a known length inside a function whose ways out cannot be found (waits.S), called from several places. The unwinder is mapped,
 * so no return link may be used.
 *
 *   run CALLER N NS   N calls from that caller, each waits NS; ok calls=N, all calls so far
 *   jit N NS          the same from code made at run time
 *   leap N NS         N calls of which none comes back: the wait is left by longjmp */
#include "protocol.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TRACED __attribute__((noinline, noclone, used))

typedef uint64_t wait(uint64_t ns);
wait waits_oddly, waits_beyond;

/* Tells an unwinder from none: it is linked. */
extern void *_Unwind_FindEnclosingFunction(void *pc);

static uint64_t calls;
static jmp_buf back;
static int leap;

TRACED uint64_t wait_ns(uint64_t ns) {
    uint64_t end = wall_ns() + ns, now;
    calls++;
    while ((now = wall_ns()) < end)
        ;
    if (leap)
        longjmp(back, 1);
    return now;
}

TRACED uint64_t caller_one(uint64_t ns) { return waits_oddly(ns) + 1; }
TRACED uint64_t caller_two(uint64_t ns) { return waits_oddly(ns) ^ waits_oddly(ns); }
TRACED uint64_t caller_beyond(uint64_t ns) { return waits_beyond(ns) + 2; }
static wait *volatile pointer = waits_oddly;
TRACED uint64_t caller_pointer(uint64_t ns) { return pointer(ns) + 3; }

/* Its one way out is known. */
TRACED uint64_t waits_plainly(uint64_t ns) { return wait_ns(ns) + 1; }
/* Behind the call stands a branch, which is emulated. */
TRACED uint64_t caller_plain(uint64_t ns) {
    if (waits_plainly(ns) == 0)
        abort();
    return ns;
}

static const struct {
    const char *name;
    wait *caller;
} callers[] = {{"one", caller_one}, {"two", caller_two}, {"beyond", caller_beyond}, {"pointer", caller_pointer}, {"plain", caller_plain}};

static void run(wait *caller, uint64_t total, uint64_t ns) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < total; i++)
        sum += caller(ns);
    reply("calls=%lu sum=%lu", calls, sum);
}

static void command_run(int count, char **words) {
    for (size_t i = 0; i < sizeof callers / sizeof *callers; i++)
        if (strcmp(callers[i].name, words[1]) == 0) {
            run(callers[i].caller, number(count, words, 2, 1), number(count, words, 3, 0));
            return;
        }
    reply_error("no caller %s", words[1]);
}

static void command_jit(int count, char **words) {
    /* sub $8, %rsp; movabs $waits_oddly, %rax; call *%rax; add $8, %rsp; ret */
    unsigned char code[] = {0x48, 0x83, 0xec, 8, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xc3};
    enum { TO = 6 };
    uint64_t address = (uintptr_t)waits_oddly;
    memcpy(code + TO, &address, 8);
    unsigned char *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, code, sizeof code);
    mprotect(made, 4096, PROT_READ | PROT_EXEC);
    wait *caller;
    memcpy(&caller, &made, sizeof caller);
    run(caller, number(count, words, 1, 1), number(count, words, 2, 0));
}

static void command_leap(int count, char **words) {
    volatile uint64_t left = number(count, words, 1, 1);
    leap = 1;
    if (setjmp(back) != 0)
        left--;
    if (left > 0)
        caller_one(number(count, words, 2, 0));
    leap = 0;
    reply("calls=%lu", calls);
}

int main(void) {
    static const struct command commands[] = {
        {"run", 2, command_run}, {"jit", 1, command_jit}, {"leap", 1, command_leap}, {NULL, 0, NULL}};
    calls = _Unwind_FindEnclosingFunction((void *)main) == NULL;
    calls = 0;
    serve(commands);
}
