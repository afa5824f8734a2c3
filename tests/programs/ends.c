/* Threads that end inside a function: the C library loads its unwinder only then, and unwinds the thread's stack.
 *
 *   exit N      N threads end by pthread_exit inside ends_exit; ok ended=N cleaned=N
 *   cancel N    N threads are cancelled inside ends_wait; ok ended=N cleaned=N */
#include "protocol.h"

#include <pthread.h>
#include <stddef.h>

#define TRACED __attribute__((noinline, noclone, used))

static uint64_t cleaned;

static void clean(void *by) { cleaned += (uint64_t)(uintptr_t)by; }

TRACED void ends_exit(void *value) {
    pthread_exit(value);
}

TRACED uint64_t ends_wait(void) {
    for (;;)
        pthread_testcancel();
}

static void *exit_inside(void *value) {
    pthread_cleanup_push(clean, (void *)1);
    ends_exit(value);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *wait_inside(void *value) {
    pthread_cleanup_push(clean, (void *)1);
    ends_wait();
    pthread_cleanup_pop(0);
    return value;
}

static void run(uint64_t total, void *(*main)(void *), int cancel) {
    uint64_t ended = 0;
    cleaned = 0;
    for (uint64_t i = 0; i < total; i++) {
        pthread_t thread;
        void *value = NULL;
        if (pthread_create(&thread, NULL, main, &cleaned) != 0)
            break;
        if (cancel)
            pthread_cancel(thread);
        pthread_join(thread, &value);
        ended += value == (cancel ? PTHREAD_CANCELED : (void *)&cleaned);
    }
    reply("ended=%lu cleaned=%lu", ended, cleaned);
}

static void command_exit(int count, char **words) { run(number(count, words, 1, 1), exit_inside, 0); }
static void command_cancel(int count, char **words) { run(number(count, words, 1, 1), wait_inside, 1); }

int main(void) {
    static const struct command commands[] = {
        {"exit", 1, command_exit}, {"cancel", 1, command_cancel}, {NULL, 0, NULL}};
    serve(commands);
}
