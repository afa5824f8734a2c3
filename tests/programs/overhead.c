/* One thread that does the same work three times over, in turns of some 10 us: with functions that are watched, and twice with twins of the
 * same code that nobody watches. It times each turn by its own CPU clock, so that what watching takes is what the first takes longer.
 *
 *   start         ok t0_ns=N
 *   stop          ends it; ok records=N lost=N
 *   address NAME  where a function stands
 *   dump PATH     writes the records, one for each cycle of three turns, in the machine's byte order: begin_ns u64 of CLOCK_MONOTONIC, then CPU
 *                 time, ns, u32 each: watched turn, first turn of the twins, second, what lay between the last cycle and this one
 *
 * A turn calls hot_push three times, hot_nop5 twice, hot_sub once (single-stepped), and one more function by lot: of 512 cycles 64
 * some_push, 32 timed_push, 16 some_sub, 1 rare_sub, else one that is not watched in either. So each turn has as much work as any other. */
#define _GNU_SOURCE
#include "protocol.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS 1500000u
#define CALL_NS 1000.0
#define REST_NS 2500.0

typedef void function(uint64_t turns);
#define FUNCTION(name, begin, end) \
    function name; \
    __asm__(".text\n.p2align 6\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" begin \
            "\tmov %rdi, %rax\n1:\tdec %rax\n\tjne 1b\n" end "\tret\n.size " #name ",.-" #name "\n");
#define PUSH(name) FUNCTION(name, "\tpush %rbp\n\tmov %rsp, %rbp\n", "\tpop %rbp\n")
#define NOP5(name) FUNCTION(name, "\t.byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n\tpush %rbx\n", "\tpop %rbx\n")
/* The kernel has to step over its first instruction. */
#define SUB(name) FUNCTION(name, "\tsub $24, %rsp\n", "\tadd $24, %rsp\n")
#define FOR_ALL(macro) \
    macro(PUSH, hot_push) macro(NOP5, hot_nop5) macro(SUB, hot_sub) macro(PUSH, some_push) macro(PUSH, timed_push) macro(SUB, some_sub) macro(SUB, rare_sub)
#define DEFINE(form, name) form(name) form(twin_##name)
FOR_ALL(DEFINE)
PUSH(filler)

static const struct {
    const char *name;
    function *function;
} all[] = {
#define ENTRY(form, name) {#name, name}, {"twin_" #name, twin_##name},
    FOR_ALL(ENTRY)};

struct record {
    uint64_t begin_ns;
    uint32_t watched, first, second, between;
};

static uint64_t call_turns, rest_turns, t0, made;
static struct record *records;
static pthread_t thread;
static int running, stop_now;

static inline __attribute__((always_inline)) void spin(uint64_t turns) {
    __asm__ volatile("1: dec %0\n\tjne 1b" : "+r"(turns) : : "cc");
}

/* The code of both turns, once for each: a probe behind the call of a watched function is not one behind that of a twin. */
#define TURN(turn, prefix) \
    static __attribute__((noinline, noclone, aligned(64))) void turn(unsigned lot) { \
        for (int i = 0; i < 3; i++) \
            prefix##hot_push(call_turns); \
        for (int i = 0; i < 2; i++) \
            prefix##hot_nop5(call_turns); \
        prefix##hot_sub(call_turns); \
        if (lot < 64) \
            prefix##some_push(call_turns); \
        else if (lot < 96) \
            prefix##timed_push(call_turns); \
        else if (lot < 112) \
            prefix##some_sub(call_turns); \
        else if (lot < 113) \
            prefix##rare_sub(call_turns); \
        else \
            filler(call_turns); \
        spin(rest_turns); \
    }
TURN(turn_watched, )
TURN(turn_twin, twin_)

static void *work(void *data) {
    uint64_t state = 88172645463325252u, last = cpu_ns();
    while (!__atomic_load_n(&stop_now, __ATOMIC_RELAXED)) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        unsigned lot = (unsigned)(state >> 20) & 511;
        uint64_t begin = wall_ns(), at[4];
        at[0] = cpu_ns();
        turn_watched(lot);
        at[1] = cpu_ns();
        turn_twin(lot);
        at[2] = cpu_ns();
        turn_twin(lot);
        at[3] = cpu_ns();
        if (made < RECORDS) {
            struct record r = {begin, (uint32_t)(at[1] - at[0]), (uint32_t)(at[2] - at[1]), (uint32_t)(at[3] - at[2]), (uint32_t)(at[0] - last)};
            records[made] = r;
        }
        made++;
        last = at[3];
    }
    return data;
}

/* Of the fastest of five, since an interrupted one reads too slow. */
static void calibrate(void) {
    double turns_per_ns = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t begin = cpu_ns();
        spin(3000000);
        uint64_t took = cpu_ns() - begin;
        double speed = 3e6 / (double)(took ? took : 1);
        turns_per_ns = speed > turns_per_ns ? speed : turns_per_ns;
    }
    call_turns = (uint64_t)(CALL_NS * turns_per_ns) + 1;
    rest_turns = (uint64_t)(REST_NS * turns_per_ns) + 1;
}

static void command_start(int count, char **words) {
    (void)count, (void)words;
    if (running) {
        reply_error("already running");
        return;
    }
    made = 0;
    __atomic_store_n(&stop_now, 0, __ATOMIC_RELAXED);
    running = start_and_reply(&thread, work, &t0);
}

static void command_stop(int count, char **words) {
    (void)count, (void)words;
    __atomic_store_n(&stop_now, 1, __ATOMIC_RELAXED);
    if (running)
        pthread_join(thread, NULL);
    running = 0;
    uint64_t kept = made < RECORDS ? made : RECORDS;
    reply("records=%lu lost=%lu", kept, made - kept);
}

static void command_address(int count, char **words) {
    (void)count;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(words[1], all[i].name) == 0) {
            reply("address=%#lx", (unsigned long)all[i].function);
            return;
        }
    reply_error("no function %s", words[1]);
}

static void command_dump(int count, char **words) {
    (void)count;
    write_records(words[1], records, sizeof *records, made < RECORDS ? made : RECORDS);
}

int main(void) {
    calibrate();
    records = malloc(RECORDS * sizeof *records);
    if (!records)
        abort();
    /* Every page is there before anything is timed. */
    memset(records, 1, RECORDS * sizeof *records);
    static const struct command commands[] = {
        {"start", 0, command_start}, {"stop", 0, command_stop}, {"address", 1, command_address}, {"dump", 1, command_dump}, {NULL, 0, NULL},
    };
    serve(commands);
}
