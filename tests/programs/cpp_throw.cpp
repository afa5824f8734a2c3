// A C++ program whose exceptions pass through traced frames. A replaced return address there ends the process.
//
//   throw N    N exceptions from `cpp_thrower` through `cpp_middle`, each caught; ok caught=N thrown=N
//   plain N    N calls of the same functions that return; ok returned=N
extern "C" {
#include "protocol.h"
}
#include <stdexcept>

#define TRACED extern "C" __attribute__((noinline, noclone, used))

static volatile uint64_t thrown;

TRACED uint64_t cpp_thrower(uint64_t argument) {
    if (argument & 1) {
        thrown = thrown + 1;
        throw std::runtime_error("odd");
    }
    return argument + 1;
}

TRACED uint64_t cpp_middle(uint64_t argument) {
    volatile uint64_t result = cpp_thrower(argument);
    return result + 1;
}

static void command_throw(int count, char **words) {
    uint64_t calls = number(count, words, 1, 1), caught = 0;
    thrown = 0;
    for (uint64_t i = 0; i < calls; i++) {
        try {
            cpp_middle(1);
        } catch (const std::runtime_error &) {
            caught++;
        }
    }
    uint64_t total = thrown;
    reply("caught=%lu thrown=%lu", caught, total);
}

static void command_plain(int count, char **words) {
    uint64_t calls = number(count, words, 1, 1), returned = 0;
    for (uint64_t i = 0; i < calls; i++)
        returned += cpp_middle(2) == 4;
    reply("returned=%lu", returned);
}

int main() {
    static const struct command commands[] = {
        {"throw", 1, command_throw}, {"plain", 1, command_plain}, {nullptr, 0, nullptr}};
    serve(commands);
}
