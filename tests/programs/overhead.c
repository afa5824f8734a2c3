/* One thread that does the same work three times over, in turns of some 10 us: with functions that are watched, and twice with twins of the
 * same code that nobody watches. It times each turn by its own CPU clock, so that what watching takes is what the first takes longer.
 *
 *   start [WIDE]  ok t0_ns=N; WIDE 1: with work that fills the caches
 *   stop          ends it; ok records=N lost=N
 *   address NAME  where a function stands
 *   dump PATH     writes the records, one for each cycle of three turns, in the machine's byte order: begin_ns u64 of CLOCK_MONOTONIC, then CPU
 *                 time, ns, u32 each: watched turn, first turn of the twins, second, what lay between the last cycle and this one
 *
 * A turn calls hot_push three times, hot_nop5 twice, hot_sub once (single-stepped), and one more function by lot: of 512 cycles 64
 * some_push, 32 timed_push, 16 some_sub, 1 rare_sub, else one that is not watched in either. So each turn has as much work as any other.
 *
 * The functions spin: what a trap drives out of the caches they do not miss. With WIDE they return at once, and behind each call comes work of the same
 * length that reads 24 KiB again and again and 256 KiB now and then, and calls by a table in an order that takes the branch predictor's memory. */
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

#define NEAR_WORDS 3072u
#define FAR_WORDS 32768u
#define OPERATIONS(macro) macro(0) macro(1) macro(2) macro(3) macro(4) macro(5) macro(6) macro(7)
#define OPERATION(n) \
    static __attribute__((noinline)) uint64_t operation_##n(uint64_t x) { \
        return x * (2 * n + 3) + ((x & (1u << n)) ? 17 : n); \
    }
OPERATIONS(OPERATION)
#define NAME(n) operation_##n,
static uint64_t (*const operations[])(uint64_t) = {OPERATIONS(NAME)};
static uint64_t memory[FAR_WORDS], wide_steps, wide_near, wide_far, wide_state = 88172645463325252u, wide_sum;

/* The state is that of the program, so that each turn goes on where the last one was. */
static __attribute__((noinline)) void wide(uint64_t steps) {
    while (steps--) {
        for (int i = 0; i < 4; i++) {
            wide_near = (wide_near + 8 * 101) % NEAR_WORDS;
            memory[wide_near] *= 3;
        }
        wide_far = (wide_far + 8 * 1009) % FAR_WORDS;
        memory[wide_far] *= 3;
        wide_state ^= wide_state << 13;
        wide_state ^= wide_state >> 7;
        wide_state ^= wide_state << 17;
        for (uint64_t i = 0, order = wide_state & 07777; i < 4; i++, order >>= 3)
            wide_sum = operations[order & 7](wide_sum);
    }
}

#define CALL(called) (called(call_turns), wide(wide_steps))

/* The code of both turns, once for each: a probe behind the call of a watched function is not one behind that of a twin. */
#define TURN(turn, prefix) \
    static __attribute__((noinline, noclone, aligned(64))) void turn(unsigned lot) { \
        for (int i = 0; i < 3; i++) \
            CALL(prefix##hot_push); \
        for (int i = 0; i < 2; i++) \
            CALL(prefix##hot_nop5); \
        CALL(prefix##hot_sub); \
        if (lot < 64) \
            CALL(prefix##some_push); \
        else if (lot < 96) \
            CALL(prefix##timed_push); \
        else if (lot < 112) \
            CALL(prefix##some_sub); \
        else if (lot < 113) \
            CALL(prefix##rare_sub); \
        else \
            CALL(filler); \
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

/* Turns per ns, of the fastest of five, since an interrupted one reads too slow. */
static double speed_of(void (*work)(uint64_t), uint64_t turns) {
    double speed = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t begin = cpu_ns();
        work(turns);
        uint64_t took = cpu_ns() - begin;
        double now = (double)turns / (double)(took ? took : 1);
        speed = now > speed ? now : speed;
    }
    return speed;
}

static void spin_for(uint64_t turns) { spin(turns); }

static void calibrate(int is_wide) {
    double spins = speed_of(spin_for, 3000000);
    rest_turns = (uint64_t)(REST_NS * spins) + 1;
    call_turns = is_wide ? 1 : (uint64_t)(CALL_NS * spins) + 1;
    wide_steps = is_wide ? (uint64_t)(CALL_NS * speed_of(wide, 20000)) + 1 : 0;
}

static void command_start(int count, char **words) {
    if (running) {
        reply_error("already running");
        return;
    }
    calibrate(number(count, words, 1, 0) != 0);
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
