/* Callers of one function, whose return addresses are known: most stand in callers.S.
 *
 *   call NAME N    caller NAME is called N times with 0, 1, 2, ...; ok calls=C sum=S: how often `callee` was called meanwhile,
 *                  and the sum of what came back (each returns its argument plus one)
 *   site NAME      ok address=0x..: what stands behind its call
 *   seen           ok seen=K addresses=0x..:N,0x..:N ...: the return addresses that `callee` has had, and how often
 *   jit N          N calls from code that is made now; ok address=0x..
 *   patch [begin]  what stands behind the call of caller_patched becomes another instruction; or one before it; ok */
#define _GNU_SOURCE
#include "protocol.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TRACED __attribute__((noinline, noclone, used))
#define MOST 64

typedef uint64_t function(uint64_t argument);

static struct {
    uintptr_t address;
    uint64_t calls;
} seen[MOST];
static volatile uint64_t calls;

TRACED uint64_t callee(uint64_t argument) {
    uintptr_t address = (uintptr_t)__builtin_return_address(0);
    for (int i = 0; i < MOST; i++) {
        if (seen[i].address == 0)
            seen[i].address = address;
        if (seen[i].address == address) {
            seen[i].calls++;
            break;
        }
    }
    calls = calls + 1;
    return argument + 3;
}

/* Its return address is known by what `callee` sees. */
TRACED uint64_t caller_loop(uint64_t argument) {
    volatile uint64_t sum = 0;
    for (uint64_t i = 0; i < 2; i++)
        sum += callee(argument);
    return sum - argument - 5;
}

/* Where the argument is odd it calls from its cold part, which lies in another section. */
extern function caller_cold;

#define IN_ASSEMBLY(name)                                                                                              \
    extern function name;                                                                                              \
    extern const uint32_t name##_behind;
#define CALLERS(one)                                                                                                   \
    one(caller_plain) one(caller_push) one(caller_locked) one(caller_flags) one(caller_joined) one(caller_pointer)    \
        one(caller_relaxed) one(caller_slot) one(caller_stub) one(caller_twice) one(caller_nop5) one(caller_moved)    \
            one(caller_hop) one(caller_data) one(caller_far) one(caller_sequence) one(caller_pushed)                   \
                one(caller_patched)
CALLERS(IN_ASSEMBLY)

static const struct {
    const char *name;
    function *caller;
    const uint32_t *behind;
} callers[] = {
#define ROW(name) {#name, name, &name##_behind},
    CALLERS(ROW){"caller_loop", caller_loop, NULL}, {"caller_cold", caller_cold, NULL},
};

static int find(const char *name) {
    for (unsigned i = 0; i < sizeof callers / sizeof *callers; i++)
        if (strcmp(callers[i].name, name) == 0)
            return (int)i;
    return -1;
}

static void command_call(int count, char **words) {
    int which = find(words[1]);
    uint64_t total = number(count, words, 2, 1), before = calls, sum = 0;
    if (which < 0) {
        reply_error("no caller %s", words[1]);
        return;
    }
    for (uint64_t i = 0; i < total; i++)
        sum += callers[which].caller(i);
    uint64_t made = calls - before;
    reply("calls=%lu sum=%lu", made, sum);
}

static void command_site(int count, char **words) {
    (void)count;
    int which = find(words[1]);
    if (which < 0 || !callers[which].behind)
        reply_error("no caller %s", words[1]);
    else
        reply("address=%#lx", (uintptr_t)callers[which].caller + *callers[which].behind);
}

static void command_seen(int count, char **words) {
    (void)count, (void)words;
    char text[MOST * 40] = "";
    int all = 0;
    for (size_t at = 0; all < MOST && seen[all].address; all++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%#lx:%lu", all ? "," : "", seen[all].address,
                               seen[all].calls);
    reply("seen=%d addresses=%s", all, text);
}

static void command_jit(int count, char **words) {
    /* sub $8, %rsp; movabs $callee, %rax; call *%rax; add $8, %rsp; ret */
    unsigned char code[] = {0x48, 0x83, 0xec, 8, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xc3};
    enum { TO = 6, BEHIND = 16 };
    uint64_t address = (uintptr_t)callee;
    memcpy(code + TO, &address, 8);
    unsigned char *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, code, sizeof code);
    mprotect(made, 4096, PROT_READ | PROT_EXEC);
    function *caller;
    memcpy(&caller, &made, sizeof caller);
    for (uint64_t i = 0; i < number(count, words, 1, 1); i++)
        caller(i);
    reply("address=%#lx", (uintptr_t)made + BEHIND);
}

static void command_patch(int count, char **words) {
    /* push %rbx; mov %rdi, %rbx; mov $1, %ecx; call; mov $1, %ecx */
    enum { FIRST = 4 };
    unsigned char *caller = (unsigned char *)(uintptr_t)caller_patched;
    int begin = count > 1 && strcmp(words[1], "begin") == 0;
    uintptr_t page = (uintptr_t)caller & ~4095ul;
    mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    caller[(begin ? FIRST : caller_patched_behind) + 1] = 2; /* mov $2, %ecx */
    mprotect((void *)page, 8192, PROT_READ | PROT_EXEC);
    reply("patched=1");
}

int main(void) {
    static const struct command commands[] = {
        {"call", 2, command_call}, {"site", 1, command_site},   {"seen", 0, command_seen},
        {"jit", 0, command_jit},   {"patch", 0, command_patch}, {NULL, 0, NULL},
    };
    serve(commands);
}
