/* Passes tracepoints of the kernel and knows how often: its threads send themselves signals (signal:signal_generate,
 * signal:signal_deliver) and rename themselves (task:task_rename).
 *
 *   raise N THREADS   N times in each thread: SIGUSR1 or SIGUSR2 in turn, then a new name: ok usr1=.. usr2=.. wall_ns=..
 *                     (handled; sum of the times of both)
 *   rename N          N times: a new name, then SIGUSR1
 *   stray             SIGUSR1 once more
 *   child N           `raise N` in a forked child that ends then
 *   start             renames itself all the time in the background, until `stop`
 *   stop              ok renames=.. */
#define _GNU_SOURCE
#include "protocol.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_THREADS 16

static atomic_ulong handled[2], wall;
static atomic_bool running;
static pthread_t background;
static uint64_t renames;

static void handler(int signal) {
    atomic_fetch_add(&handled[signal == SIGUSR2], 1);
}

static void rename_thread(uint64_t i) {
    const char *names[] = {"events-even", "events-odd"};
    prctl(PR_SET_NAME, names[i % 2]);
}

static void raise_all(uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t begin = wall_ns();
        raise(i % 2 ? SIGUSR2 : SIGUSR1);
        rename_thread(i);
        atomic_fetch_add(&wall, wall_ns() - begin);
    }
}

static void *raise_main(void *n) {
    raise_all(*(uint64_t *)n);
    return NULL;
}

static void reply_handled(void) {
    reply("usr1=%lu usr2=%lu wall_ns=%lu", atomic_exchange(&handled[0], 0), atomic_exchange(&handled[1], 0),
          atomic_exchange(&wall, 0));
}

static void command_raise(int count, char **words) {
    uint64_t n = number(count, words, 1, 1), threads = number(count, words, 2, 1);
    pthread_t thread[MAX_THREADS];
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    for (uint64_t i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, raise_main, &n);
    for (uint64_t i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    reply_handled();
}

static void command_rename(int count, char **words) {
    uint64_t n = number(count, words, 1, 1);
    for (uint64_t i = 0; i < n; i++) {
        rename_thread(i);
        raise(SIGUSR1);
    }
    reply_handled();
}

static void command_stray(int count, char **words) {
    (void)count, (void)words;
    raise(SIGUSR1);
    reply_handled();
}

static void command_child(int count, char **words) {
    uint64_t n = number(count, words, 1, 1);
    pid_t child = fork();
    if (child == 0) {
        raise_all(n);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    reply("status=%d", status);
}

static void *rename_main(void *unused) {
    (void)unused;
    while (atomic_load_explicit(&running, memory_order_relaxed))
        rename_thread(renames++);
    return NULL;
}

static void command_start(int count, char **words) {
    (void)count, (void)words;
    if (atomic_exchange(&running, true)) {
        reply_error("it runs already");
        return;
    }
    renames = 0;
    pthread_create(&background, NULL, rename_main, NULL);
    reply("started=1");
}

static void command_stop(int count, char **words) {
    (void)count, (void)words;
    if (!atomic_exchange(&running, false)) {
        reply_error("it does not run");
        return;
    }
    pthread_join(background, NULL);
    reply("renames=%lu", (unsigned long)renames);
}

int main(void) {
    static const struct command commands[] = {
        {"raise", 2, command_raise}, {"rename", 1, command_rename}, {"stray", 0, command_stray},
        {"child", 1, command_child}, {"start", 0, command_start},   {"stop", 0, command_stop},
        {NULL, 0, NULL},
    };
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    serve(commands);
}
