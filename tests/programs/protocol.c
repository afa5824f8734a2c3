#include "protocol.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORDS 8

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t wall_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

static void answer(const char *kind, const char *format, va_list values) {
    printf("%s ", kind);
    vprintf(format, values);
    printf("\n");
    fflush(stdout);
}

void reply(const char *format, ...) {
    va_list values;
    va_start(values, format);
    answer("ok", format, values);
    va_end(values);
}

void reply_error(const char *format, ...) {
    va_list values;
    va_start(values, format);
    answer("error", format, values);
    va_end(values);
}

int start_and_reply(pthread_t *thread, void *(*work)(void *), uint64_t *t0) {
    *t0 = wall_ns();
    int error = pthread_create(thread, NULL, work, NULL);
    if (error)
        reply_error("no thread: %s", strerror(error));
    else
        reply("t0_ns=%lu", *t0);
    return error == 0;
}

uint64_t number(int count, char **words, int index, uint64_t otherwise) {
    return index < count ? strtoull(words[index], NULL, 0) : otherwise;
}

static void run_line(const struct command *commands, char *line) {
    char *words[MAX_WORDS];
    int count = 0;
    for (char *word = strtok(line, " \n"); word && count < MAX_WORDS; word = strtok(NULL, " \n"))
        words[count++] = word;
    if (count == 0)
        return;
    if (strcmp(words[0], "quit") == 0) {
        reply("bye");
        exit(0);
    }
    for (const struct command *command = commands; command->name; command++) {
        if (strcmp(words[0], command->name) != 0)
            continue;
        if (count - 1 < command->min_arguments)
            reply_error("%s wants %d words, got %d", words[0], command->min_arguments, count - 1);
        else
            command->run(count, words);
        return;
    }
    reply_error("no command %s", words[0]);
}

void serve(const struct command *commands) {
    char line[4096];
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        run_line(commands, line);
    exit(0);
}

void write_records(const char *path, const void *records, size_t size, uint64_t n) {
    FILE *file = fopen(path, "wb");
    int written = file && fwrite(records, size, n, file) == n;
    if (file && fclose(file) != 0)
        written = 0;
    if (written)
        reply("records=%lu", n);
    else
        reply_error("cannot write %s", path);
}
