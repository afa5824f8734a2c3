/* A function whose time is known: `grow(data, n)` adds up n words, some thousand of them again and again. One thread calls it with 16 sizes over three
 * decades, `hz` times a second. `grow_too` does the same, and a quarter more.
 *
 *   start HZ           begins the calls
 *   delay US EVERY     from now on every EVERY-th call sleeps for US microseconds (0 0: none)
 *   spin US EVERY      the same on the CPU
 *   both               from now on `grow_too` is called after each call of `grow`, with the same sizes
 *   stop               ends the calls; ok calls=N */
#include "protocol.h"

#include <stdatomic.h>
#include <time.h>

#define WORDS 4096
#define SIZES 16

static uint64_t words[WORDS];
static atomic_int stop_now;
static _Atomic uint64_t delay_us, spin_us, every;
static atomic_int calls_both;
static uint64_t hz, calls, sum, state = 88172645463325252u;
static int running;
static pthread_t thread;

static void sleep_ns(uint64_t ns) {
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&time, 0);
}

__attribute__((noinline, noclone)) uint64_t grow(const uint64_t *data, uint64_t n) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < n; i++) {
        total += data[i % WORDS];
        /* One addition after the other. */
        __asm__ volatile("" : "+r"(total));
    }
    uint64_t often = every;
    if (often && calls % often == often - 1) {
        if (delay_us)
            sleep_ns(delay_us * 1000);
        uint64_t until = wall_ns() + spin_us * 1000;
        while (spin_us && wall_ns() < until)
            ;
    }
    return total;
}

__attribute__((noinline, noclone)) uint64_t grow_too(const uint64_t *data, uint64_t n) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < n + n / 4; i++) {
        total += data[i % WORDS];
        __asm__ volatile("" : "+r"(total));
    }
    return total;
}

static void *work(void *data) {
    while (!stop_now) {
        /* 1,000 to some 900,000, each 1.57 times the one before, in no order: of one call nothing follows for the next. */
        double n = 1000;
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        for (uint64_t i = state % SIZES; i > 0; i--)
            n *= 1.57;
        sum += grow(words, (uint64_t)n);
        calls++;
        if (calls_both)
            sum += grow_too(words, (uint64_t)n);
        sleep_ns(1000000000 / hz);
    }
    return data;
}

static void start(int count, char **arguments) {
    if (running) {
        reply_error("it works already");
        return;
    }
    uint64_t t0;
    hz = number(count, arguments, 1, 200);
    stop_now = 0;
    running = start_and_reply(&thread, work, &t0);
}

static void slow(int count, char **arguments) {
    int spins = arguments[0][0] == 's';
    uint64_t us = number(count, arguments, 1, 0);
    delay_us = spins ? 0 : us;
    spin_us = spins ? us : 0;
    every = number(count, arguments, 2, 0);
    reply("us=%llu", (unsigned long long)us);
}

static void both(int count, char **arguments) {
    (void)count, (void)arguments;
    calls_both = 1;
    reply("both=1");
}

static void stop(int count, char **arguments) {
    (void)count, (void)arguments;
    if (running) {
        stop_now = 1;
        pthread_join(thread, 0);
        running = 0;
    }
    reply("calls=%llu sum=%llu", (unsigned long long)calls, (unsigned long long)sum);
}

int main(void) {
    static const struct command commands[] = {
        {"start", 1, start}, {"delay", 2, slow}, {"spin", 2, slow}, {"both", 0, both}, {"stop", 0, stop}, {0, 0, 0}};
    serve(commands);
}
