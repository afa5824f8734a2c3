/* Has USDT probes, as <sys/sdt.h> makes them, and knows how often each was passed.
 *
 *   serve N THREADS TYPES   each thread serves N requests: request i is of type i mod TYPES; even and odd types pass
 *                           app:request_begin(name, type - 2, 200 + type) at two places with different registers
 *   served TYPE             ok requests=.. broken=..  (broken: requests whose locals were overwritten; 0)
 *   guarded N               app:guarded_begin, app:guarded_end N times, if their semaphores are raised: ok passed=..
 *   semaphores              ok begin=.. end=..
 *   mixed N                 N times the function mixed_begin, then app:mixed_end
 *
 * Probes that cannot be used: app:memory and app:constant (arguments), app:wide (a nop of five bytes), app:inside and
 * app:before_data (an address within an instruction), app:behind_data (behind bytes that are no instruction). */
#define _GNU_SOURCE
#include "protocol.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define MAX_THREADS 16
#define MAX_TYPES 64
#define TRACED __attribute__((noinline, noclone, used))

/* `code` holds the label 990 where the breakpoint goes. */
#define PROBE_AT(code, name, semaphore, arguments, ...)                                                                \
    __asm__ volatile(code ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                                \
                          ".balign 4\n"                                                                                \
                          ".4byte 992f-991f, 994f-993f, 3\n"                                                           \
                          "991: .asciz \"stapsdt\"\n"                                                                  \
                          "992: .balign 4\n"                                                                           \
                          "993: .8byte 990b\n"                                                                         \
                          ".8byte _.stapsdt.base\n"                                                                    \
                          ".8byte " semaphore "\n"                                                                     \
                          ".asciz \"app\"\n"                                                                           \
                          ".asciz \"" name "\"\n"                                                                      \
                          ".asciz \"" arguments "\"\n"                                                                 \
                          "994: .balign 4\n"                                                                           \
                          ".popsection\n"                                                                              \
                          ".ifndef _.stapsdt.base\n"                                                                   \
                          ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                      \
                          ".weak _.stapsdt.base\n"                                                                     \
                          ".hidden _.stapsdt.base\n"                                                                   \
                          "_.stapsdt.base: .space 1\n"                                                                 \
                          ".size _.stapsdt.base, 1\n"                                                                  \
                          ".popsection\n"                                                                              \
                          ".endif\n" ::__VA_ARGS__)
#define PROBE(name, semaphore, arguments, ...) PROBE_AT("990: nop\n", name, semaphore, arguments, __VA_ARGS__)

#define SEMAPHORE __attribute__((section(".probes"), used, visibility("hidden")))
SEMAPHORE volatile unsigned short app_guarded_begin_semaphore = 0;
SEMAPHORE volatile unsigned short app_guarded_end_semaphore = 0;

static atomic_ulong requests[MAX_TYPES], broken[MAX_TYPES];
static char names[MAX_TYPES][32];

/* Leaf functions whose locals lie in the red zone: a probe that pushes onto the stack would overwrite them. */
TRACED unsigned serve_even(const char *name, int code, uint64_t byte) {
    volatile uint64_t low[8];
    unsigned wrong = 0;
    for (unsigned i = 0; i < 8; i++)
        low[i] = byte + i;
    PROBE("request_begin", "0", "8@%q0 -4@%k1 1@%b2", "D"(name), "a"(code), "d"(byte));
    for (unsigned i = 0; i < 8; i++)
        wrong += low[i] != byte + i;
    PROBE("request_end", "0", "", "D"(0));
    for (unsigned i = 0; i < 8; i++)
        wrong += low[i] != byte + i;
    return wrong;
}

TRACED unsigned serve_odd(const char *name, int code, uint64_t byte) {
    volatile uint64_t low[8];
    unsigned wrong = 0;
    register const char *in_r12 __asm__("r12") = name;
    register uint64_t in_r15 __asm__("r15") = byte;
    for (unsigned i = 0; i < 8; i++)
        low[i] = byte + i;
    PROBE("request_begin", "0", "8@%q0 -4@%k1 1@%b2", "r"(in_r12), "b"(code), "r"(in_r15));
    for (unsigned i = 0; i < 8; i++)
        wrong += low[i] != byte + i;
    PROBE("request_end", "0", "", "D"(0));
    for (unsigned i = 0; i < 8; i++)
        wrong += low[i] != byte + i;
    return wrong;
}

TRACED uint64_t mixed_begin(uint64_t n) {
    volatile uint64_t x = n;
    return x + 1;
}

TRACED uint64_t mixed_end(uint64_t n) {
    volatile uint64_t x = n;
    PROBE("mixed_end", "0", "8@%q0", "r"(n));
    return x + 2;
}

/* Never called. */
TRACED uint64_t unusable(uint64_t n) {
    volatile uint64_t x = n;
    PROBE("memory", "0", "8@%0", "m"(x));
    PROBE("constant", "0", "-4@$7", "D"(n));
    PROBE_AT("990: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n", "wide", "0", "", "D"(n));
    /* mov $0x90909090, %eax */
    PROBE_AT(".byte 0xb8\n990: .byte 0x90, 0x90, 0x90, 0x90\n", "inside", "0", "", "D"(n));
    return x;
}

/* Never called. */
TRACED uint64_t undecodable(uint64_t n) {
    volatile uint64_t x = n;
    PROBE_AT(".byte 0xb8\n990: .byte 0x90, 0x90, 0x90, 0x90\n", "before_data", "0", "", "D"(n));
    /* push %es, which no longer exists. */
    __asm__ volatile("jmp 1f\n.byte 0x06\n1:");
    PROBE("behind_data", "0", "", "D"(n));
    return x;
}

static struct {
    uint64_t n;
    int types;
} job;

static void *serve_main(void *data) {
    (void)data;
    for (uint64_t i = 0; i < job.n; i++) {
        int type = (int)(i % (uint64_t)job.types);
        /* Bits above the byte, and above the int, that are not of the value. */
        uint64_t byte = 0xabcd00u | (200u + (unsigned)type);
        unsigned wrong = (type % 2 ? serve_odd : serve_even)(names[type], type - 2, byte);
        atomic_fetch_add(&requests[type], 1);
        atomic_fetch_add(&broken[type], wrong != 0);
    }
    return NULL;
}

static void command_serve(int count, char **words) {
    uint64_t threads = number(count, words, 2, 1), types = number(count, words, 3, 1);
    pthread_t thread[MAX_THREADS];
    job.n = number(count, words, 1, 1);
    job.types = types < 1 ? 1 : types > MAX_TYPES ? MAX_TYPES : (int)types;
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    for (uint64_t i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, serve_main, NULL);
    for (uint64_t i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    reply("done=1");
}

static void command_served(int count, char **words) {
    int type = (int)number(count, words, 1, 0) % MAX_TYPES;
    reply("requests=%lu broken=%lu", atomic_load(&requests[type]), atomic_load(&broken[type]));
}

static void command_guarded(int count, char **words) {
    uint64_t n = number(count, words, 1, 1), passed = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (app_guarded_begin_semaphore) {
            PROBE("guarded_begin", "app_guarded_begin_semaphore", "8@%q0", "r"(i % 4));
            passed++;
        }
        if (app_guarded_end_semaphore)
            PROBE("guarded_end", "app_guarded_end_semaphore", "", "D"(0));
    }
    reply("passed=%lu", (unsigned long)passed);
}

static void command_semaphores(int count, char **words) {
    (void)count, (void)words;
    reply("begin=%u end=%u", app_guarded_begin_semaphore, app_guarded_end_semaphore);
}

static void command_mixed(int count, char **words) {
    uint64_t n = number(count, words, 1, 1), sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += mixed_begin(i) + mixed_end(i);
    reply("sum=%lu", (unsigned long)sum);
}

int main(void) {
    static const struct command commands[] = {
        {"serve", 3, command_serve},           {"served", 1, command_served}, {"guarded", 1, command_guarded},
        {"semaphores", 0, command_semaphores}, {"mixed", 1, command_mixed},   {NULL, 0, NULL},
    };
    for (int type = 0; type < MAX_TYPES; type++)
        snprintf(names[type], sizeof names[type], "GET /%d", type);
    serve(commands);
}
