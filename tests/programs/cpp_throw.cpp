// A C++ program whose exceptions pass through traced frames. A replaced return address there ends the process.
//
//   throw N    N exceptions from `cpp_thrower` through `cpp_middle`, each caught; ok caught=N thrown=N
//   plain N    N calls of the same functions that return; ok returned=N
//   exit N     N threads end by pthread_exit inside `cpp_exit`; ok caught=N (by catch (...)) destroyed=2N
//   cancel N   N threads are cancelled inside `cpp_wait`; the same answer
extern "C" {
#include "protocol.h"
}
#include <pthread.h>
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

static volatile uint64_t destroyed, unwound;

struct Guard {
    ~Guard() { destroyed = destroyed + 1; }
};

TRACED void cpp_exit() {
    Guard inner;
    pthread_exit(nullptr);
}

TRACED void cpp_wait() {
    Guard inner;
    for (;;)
        pthread_testcancel();
}

// The destructors and the handler run while the thread's stack is unwound.
template <void (*inside)()> static void *end_inside(void *) {
    Guard outer;
    try {
        inside();
    } catch (...) {
        unwound = unwound + 1;
        throw;
    }
    return nullptr;
}

static void end_threads(uint64_t total, void *(*main)(void *), bool cancel) {
    destroyed = unwound = 0;
    for (uint64_t i = 0; i < total; i++) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, main, nullptr) != 0)
            break;
        if (cancel)
            pthread_cancel(thread);
        pthread_join(thread, nullptr);
    }
    uint64_t caught = unwound, ended = destroyed;
    reply("caught=%lu destroyed=%lu", caught, ended);
}

static void command_exit(int count, char **words) {
    end_threads(number(count, words, 1, 1), end_inside<cpp_exit>, false);
}

static void command_cancel(int count, char **words) {
    end_threads(number(count, words, 1, 1), end_inside<cpp_wait>, true);
}

int main() {
    static const struct command commands[] = {{"throw", 1, command_throw},
                                              {"plain", 1, command_plain},
                                              {"exit", 1, command_exit},
                                              {"cancel", 1, command_cancel},
                                              {nullptr, 0, nullptr}};
    serve(commands);
}
