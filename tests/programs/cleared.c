/* Maps the unwinder and cannot raise, end a thread or walk a stack: return links are used. The C library loads a module for it, by a
 * character set of its name, which can end threads.
 *
 *   work N      N calls of cleared_work; ok calls=N sum=S
 *   load DIR    opens a file in the character set that DIR/gconv-modules names; ok
 *   code        maps a page of executable memory; ok
 *   end N       N threads begin; the module ends each inside cleared_across; ok ended=N */
#define _GNU_SOURCE
#include "protocol.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <wchar.h>

#define TRACED __attribute__((noinline, noclone, used))

static FILE *open_converted(void) {
    return fopen("/proc/self/cmdline", "r,ccs=TITHE");
}

TRACED uint64_t cleared_work(uint64_t argument) {
    volatile uint64_t result = argument * 7 + 1;
    return result;
}

TRACED uint64_t cleared_across(FILE *converted) {
    return (uint64_t)fgetwc_unlocked(converted) + 1;
}

static void command_work(int count, char **words) {
    uint64_t calls = number(count, words, 1, 1), sum = 0;
    for (uint64_t i = 0; i < calls; i++)
        sum = sum * 31 + cleared_work(i);
    reply("calls=%lu sum=%lu", calls, sum);
}

static void command_load(int count, char **words) {
    if (count > 1)
        setenv("GCONV_PATH", words[1], 1);
    FILE *converted = open_converted();
    if (converted == NULL)
        reply_error("there is no such character set");
    else
        reply("loaded");
}

static void command_code(int count, char **words) {
    (void)count, (void)words;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        reply_error("no page");
    else
        reply("mapped");
}

/* The stream is lost with its thread. */
static void *end_inside(void *value) {
    FILE *converted = open_converted();
    if (converted != NULL)
        cleared_across(converted);
    return value;
}

static void command_end(int count, char **words) {
    uint64_t total = number(count, words, 1, 1), ended = 0;
    for (uint64_t i = 0; i < total; i++) {
        pthread_t thread;
        void *value = NULL;
        if (pthread_create(&thread, NULL, end_inside, NULL) != 0)
            break;
        pthread_join(thread, &value);
        ended += value == PTHREAD_CANCELED;
    }
    reply("ended=%lu", ended);
}

int main(void) {
    static const struct command commands[] = {
        {"work", 1, command_work}, {"load", 1, command_load}, {"code", 0, command_code},
        {"end", 1, command_end},   {NULL, 0, NULL},
    };
    serve(commands);
}
