/* Calls of the functions in arguments.S, with six known arguments.
 *
 *   call NAME TIMES   calls takes_NAME so often, some 5,000 times a second: ok calls=N of it so far
 *
 * Argument K of every call is 0xa0000000000000K8. With WITH_THREAD_ENDS the program imports what forbids return links. */
#include "protocol.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

typedef uint64_t function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
function takes_push, takes_fourth, takes_unread, takes_second, takes_rounds;

static struct {
    const char *name;
    function *function;
    uint64_t calls;
} all[] = {{"push", takes_push, 0},
           {"fourth", takes_fourth, 0},
           {"unread", takes_unread, 0},
           {"second", takes_second, 0},
           {"rounds", takes_rounds, 0}};

#ifdef WITH_THREAD_ENDS
void (*volatile ends_a_thread)(void *) = pthread_exit;
#endif

static uint64_t argument(uint64_t k) { return 0xa000000000000008u + 16 * k; }

static void command_call(int count, char **words) {
    struct timespec pause = {0, 200000};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(words[1], all[i].name) != 0)
            continue;
        for (uint64_t times = number(count, words, 2, 1); times > 0; times--) {
            all[i].function(argument(0), argument(1), argument(2), argument(3), argument(4), argument(5));
            all[i].calls++;
            nanosleep(&pause, NULL);
        }
        reply("calls=%lu", all[i].calls);
        return;
    }
    reply_error("no function %s", words[1]);
}

int main(void) {
    static const struct command commands[] = {{"call", 2, command_call}, {NULL, 0, NULL}};
    serve(commands);
}
