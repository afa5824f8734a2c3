/* The line protocol of every target program: the test writes a command, the program does it and answers one line.
 *
 * At start the program prints "ready pid=PID". Each command is answered by "ok KEY=VALUE ..." or "error TEXT".
 * End of input or "quit" ends the program, so that a target never outlives its test. */
#pragma once
#include <pthread.h>
#include <stdint.h>

struct command {
    const char *name;
    int min_arguments; /* words after the name */
    void (*run)(int count, char **words);
};

/* Reads commands until "quit" or end of input. `commands` ends with a null name. Does not return. */
void serve(const struct command *commands) __attribute__((noreturn));

/* Answers "ok " and the formatted text. */
void reply(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Answers "error " and the formatted text. */
void reply_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Word `index` as a number, or `otherwise` if the command has fewer words. */
uint64_t number(int count, char **words, int index, uint64_t otherwise);

/* Starts a thread and answers when, "t0_ns=...", or why not. Returns 1 if it runs. `t0` is set before it begins. */
int start_and_reply(pthread_t *thread, void *(*work)(void *), uint64_t *t0);

/* Writes `n` records of `size` bytes to the file and answers "records=n", or why not. */
void write_records(const char *path, const void *records, size_t size, uint64_t n);

/* Nanoseconds of CLOCK_MONOTONIC, and of this thread's CPU time. */
uint64_t wall_ns(void);
uint64_t cpu_ns(void);
