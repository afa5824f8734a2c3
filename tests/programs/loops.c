/* A function with two loops whose growth is known: `twofold(data, n)` calls `step` n times in one, and adds up n * n words in the other. One thread calls
 * it with 16 sizes from 32 to some 1,150, `hz` times a second.
 *
 *   start HZ           begins the calls
 *   stop               ends the calls; ok calls=N */
#include "protocol.h"

#include <stdatomic.h>
#include <time.h>

#define WORDS 4096
#define SIZES 16

static uint64_t words[WORDS];
static atomic_int stop_now;
static uint64_t hz, calls, sum, state = 88172645463325252u;
static int running;
static pthread_t thread;

/* Some 300 ns, whatever it is given: a loop of its own, which is none of its caller. */
__attribute__((noinline, noclone)) uint64_t step(uint64_t total) {
    for (int i = 0; i < 300; i++) {
        total = total * 5 + 1;
        /* One after the other. */
        __asm__ volatile("" : "+r"(total));
    }
    return total;
}

__attribute__((noinline, noclone)) uint64_t twofold(const uint64_t *data, uint64_t n) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < n; i++)
        total += step(total);
    for (uint64_t i = 0; i < n; i++) {
        for (uint64_t j = 0; j < n; j++) {
            total += data[(i + j) % WORDS];
            __asm__ volatile("" : "+r"(total));
        }
    }
    return total;
}

static void *work(void *data) {
    while (!stop_now) {
        /* In no order: of one call nothing follows for the next. */
        double n = 32;
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        for (uint64_t i = state % SIZES; i > 0; i--)
            n *= 1.27;
        sum += twofold(words, (uint64_t)n);
        calls++;
        struct timespec time = {.tv_nsec = (long)(1000000000 / hz)};
        nanosleep(&time, 0);
    }
    return data;
}

static void start(int count, char **arguments) {
    if (running) {
        reply_error("it works already");
        return;
    }
    uint64_t t0;
    hz = number(count, arguments, 1, 2000);
    stop_now = 0;
    running = start_and_reply(&thread, work, &t0);
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
    static const struct command commands[] = {{"start", 1, start}, {"stop", 0, stop}, {0, 0, 0}};
    serve(commands);
}
