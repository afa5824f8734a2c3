// Throws exceptions through frames with destructors, and catches them: 1,000 a question, of each of which the way is
// known. Questions come one a line. At full speed it throws some 100,000 a second; each thousand is followed by a
// pause that leaves 10,000.
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <time.h>
#include <vector>

#define OUT __attribute__((noinline, noclone, used))

static uint64_t destroyed;

struct Guard {
    uint64_t weight;
    ~Guard() { destroyed += weight; }
};

struct Odd : std::runtime_error {
    uint64_t value;
    explicit Odd(uint64_t value) : std::runtime_error("odd " + std::to_string(value)), value(value) {}
};

extern "C" OUT uint64_t throws_thrower(uint64_t argument) {
    std::vector<uint64_t> owned(4, argument);
    if (argument & 1)
        throw Odd(argument);
    return owned[argument % 4] + 1;
}

extern "C" OUT uint64_t throws_middle(uint64_t argument) {
    Guard guard{argument};
    volatile uint64_t result = throws_thrower(argument);
    return result + guard.weight;
}

extern "C" OUT uint64_t throws_again(uint64_t argument) {
    Guard guard{1};
    try {
        return throws_middle(argument);
    } catch (const Odd &odd) {
        if (odd.value % 4 == 3)
            throw;
        return odd.value;
    }
}

int main() {
    char line[64];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        uint64_t seed = std::stoull(line), caught = 0, sum = 0, expected = 0, guards = 0;
        destroyed = 0;
        struct timespec start, now;
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (uint64_t i = 0; i < 1000; i++) {
            uint64_t argument = 2 * (i * 7919 + seed) + 1;
            expected += argument;
            guards += argument + 1;
            try {
                sum += throws_again(argument);
            } catch (const std::exception &error) {
                caught++;
                sum += std::stoull(error.what() + 4);
            }
        }
        if (sum != expected || destroyed != guards || caught != 500)
            printf("wrong: sum %lu of %lu, guards %lu of %lu, caught %lu of 500\n", sum, expected, destroyed, guards, caught);
        else
            printf("ok %lu\n", sum);
        fflush(stdout);
        do {
            clock_gettime(CLOCK_MONOTONIC, &now);
            struct timespec pause = {0, 1000000};
            if ((now.tv_sec - start.tv_sec) * 1000000000 + now.tv_nsec - start.tv_nsec >= 99000000)
                break;
            nanosleep(&pause, nullptr);
        } while (true);
    }
}
