/* Serves requests and knows what it served: operations with a class by name, by number and by neither, nested, on
 * many threads; inner calls and a measure inside them.
 *
 *   serve N THREADS TYPES      each thread serves N requests: request i is of type i mod TYPES, named "GET /TYPE"
 *   start HZ THREADS TYPES     the same in the background, HZ a second a thread (0: as fast as it can), until `stop`
 *   stop                       ok requests=..
 *   served TYPE                ok requests=.. calls=.. bytes=.. wall_ns=..  (sum of the times in `handle`)
 *   pairs N THREADS            N times pair_begin, pair_end
 *   echo HZ THREADS CALLS      each thread reads, calls `step` CALLS times and writes, HZ times a second, until `stop`
 *   stray                      one pair_end without a begin
 *   unended                    a thread calls pair_begin and ends
 *   inside MS                  a thread enters handle("slow") and stays there for MS; answers at once
 *   names N                    N requests, each with a name of its own
 *   load PATH                  loads a library
 *   unload                     unloads the one that was loaded first
 *   slower FACTOR              from now on each step takes so many times as long
 *
 * A request of type T calls `step` T mod 5 + 1 times and `allocate(100 (T + 1))` once, and runs `query` with one more
 * `step`. */
#define _GNU_SOURCE
#include "protocol.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 16
#define MAX_TYPES 128
#define TRACED __attribute__((noinline, noclone, used))

static atomic_ulong requests[MAX_TYPES], steps[MAX_TYPES], bytes[MAX_TYPES], wall[MAX_TYPES];
static char names[MAX_TYPES][32];

static atomic_ulong factor = 1;

TRACED uint64_t step(uint64_t n) {
    volatile uint64_t sum = 0;
    uint64_t rounds = (20 + n) * atomic_load_explicit(&factor, memory_order_relaxed);
    for (uint64_t i = 0; i < rounds; i++)
        sum += i;
    return sum;
}

TRACED uint64_t allocate(uint64_t size) {
    volatile uint64_t touched = size;
    return touched;
}

TRACED uint64_t query(uint64_t type) {
    volatile uint64_t below = step(type);
    return below + 1;
}

TRACED uint64_t handle(const char *name, int type) {
    volatile uint64_t sum = (uint64_t)name[0];
    for (int i = 0; i < type % 5 + 1; i++)
        sum += step((uint64_t)i);
    sum += allocate(100 * ((uint64_t)type + 1));
    sum += query((uint64_t)type);
    return sum;
}

TRACED uint64_t pair_begin(uint64_t n) {
    volatile uint64_t x = n;
    return x + 1;
}

TRACED uint64_t pair_end(uint64_t n) {
    volatile uint64_t x = n;
    return x + 2;
}

static void one(int type) {
    uint64_t begin = wall_ns();
    handle(names[type], type);
    atomic_fetch_add(&wall[type], wall_ns() - begin);
    atomic_fetch_add(&requests[type], 1);
    atomic_fetch_add(&steps[type], (unsigned long)type % 5 + 2);
    atomic_fetch_add(&bytes[type], 100 * ((unsigned long)type + 1));
}

static struct job {
    uint64_t n, hz;
    int types;
    void (*run)(struct job *job);
} job;
static pthread_t threads[MAX_THREADS];
static int thread_count;
static atomic_int stop;
static atomic_ulong background;

static void run_serve(struct job *j) {
    for (uint64_t i = 0; i < j->n; i++)
        one((int)(i % (uint64_t)j->types));
}

static void run_background(struct job *j) {
    struct timespec pause = {0, j->hz ? (long)(1000000000u / j->hz) : 0};
    for (uint64_t i = 0; !atomic_load(&stop); i++) {
        one((int)(i % (uint64_t)j->types));
        atomic_fetch_add(&background, 1);
        if (j->hz)
            nanosleep(&pause, NULL);
    }
}

static void run_echo(struct job *j) {
    struct timespec pause = {0, j->hz ? (long)(1000000000u / j->hz) : 0};
    int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    char byte = 0;
    while (!atomic_load(&stop)) {
        if (read(zero, &byte, 1) != 1)
            break;
        for (int i = 0; i < j->types; i++)
            step((uint64_t)i);
        if (write(null, &byte, 1) != 1)
            break;
        atomic_fetch_add(&background, 1);
        if (j->hz)
            nanosleep(&pause, NULL);
    }
    close(zero);
    close(null);
}

static void run_pairs(struct job *j) {
    for (uint64_t i = 0; i < j->n; i++) {
        pair_begin(i);
        pair_end(i);
    }
}

static void *thread_main(void *data) {
    struct job *j = data;
    j->run(j);
    return NULL;
}

static void start(int count) {
    thread_count = count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
    for (int i = 0; i < thread_count; i++)
        pthread_create(&threads[i], NULL, thread_main, &job);
}

static void join(void) {
    for (int i = 0; i < thread_count; i++)
        pthread_join(threads[i], NULL);
    thread_count = 0;
}

static int types_of(int count, char **words, int index) {
    int types = (int)number(count, words, index, 1);
    return types < 1 ? 1 : types > MAX_TYPES ? MAX_TYPES : types;
}

static void command_serve(int count, char **words) {
    job = (struct job){number(count, words, 1, 1), 0, types_of(count, words, 3), run_serve};
    start((int)number(count, words, 2, 1));
    join();
    reply("done=1");
}

static void start_background(int count, char **words, void (*run)(struct job *)) {
    atomic_store(&stop, 0);
    atomic_store(&background, 0);
    job = (struct job){0, number(count, words, 1, 0), types_of(count, words, 3), run};
    start((int)number(count, words, 2, 1));
    reply("started=1");
}

static void command_start(int count, char **words) {
    start_background(count, words, run_background);
}

static void command_echo(int count, char **words) {
    start_background(count, words, run_echo);
}

static void command_stop(int count, char **words) {
    (void)count, (void)words;
    atomic_store(&stop, 1);
    join();
    reply("requests=%lu", atomic_load(&background));
}

static void command_served(int count, char **words) {
    int type = (int)number(count, words, 1, 0) % MAX_TYPES;
    reply("requests=%lu calls=%lu bytes=%lu wall_ns=%lu", atomic_load(&requests[type]), atomic_load(&steps[type]),
          atomic_load(&bytes[type]), atomic_load(&wall[type]));
}

static void command_pairs(int count, char **words) {
    job = (struct job){number(count, words, 1, 1), 0, 1, run_pairs};
    start((int)number(count, words, 2, 1));
    join();
    reply("done=1");
}

static void command_stray(int count, char **words) {
    (void)count, (void)words;
    reply("sum=%lu", pair_end(1));
}

static void *unended_main(void *data) {
    pair_begin((uint64_t)(uintptr_t)data);
    return NULL;
}

static void command_unended(int count, char **words) {
    (void)count, (void)words;
    pthread_t thread;
    pthread_create(&thread, NULL, unended_main, NULL);
    pthread_join(thread, NULL);
    reply("done=1");
}

static uint64_t slow_ms;

TRACED uint64_t handle_slow(const char *name) {
    struct timespec time = {(time_t)(slow_ms / 1000), (long)(slow_ms % 1000) * 1000000};
    volatile uint64_t sum = (uint64_t)name[0];
    nanosleep(&time, NULL);
    return sum + 1;
}

static void *slow_main(void *data) {
    handle_slow(data);
    return NULL;
}

static void command_inside(int count, char **words) {
    slow_ms = number(count, words, 1, 1000);
    pthread_t thread;
    pthread_create(&thread, NULL, slow_main, names[0]);
    pthread_detach(thread);
    reply("started=1");
}

static void command_names(int count, char **words) {
    uint64_t n = number(count, words, 1, 1);
    char name[48];
    for (uint64_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "GET /user/%lu", (unsigned long)i);
        handle(name, 0);
    }
    reply("done=1");
}

static void command_slower(int count, char **words) {
    atomic_store(&factor, number(count, words, 1, 1));
    reply("done=1");
}

#define MAX_LIBRARIES 1024
static void *libraries[MAX_LIBRARIES];
static int loaded, unloaded;

static void command_load(int count, char **words) {
    (void)count;
    void *library = loaded < MAX_LIBRARIES ? dlopen(words[1], RTLD_NOW) : NULL;
    if (library)
        libraries[loaded++] = library;
    reply("loaded=%d", library != NULL);
}

static void command_unload(int count, char **words) {
    (void)count, (void)words;
    reply("unloaded=%d", unloaded < loaded && dlclose(libraries[unloaded++]) == 0);
}

int main(void) {
    static const struct command commands[] = {
        {"slower", 1, command_slower},   {"load", 1, command_load},     {"unload", 0, command_unload},
        {"serve", 3, command_serve},     {"start", 3, command_start},   {"stop", 0, command_stop},
        {"served", 1, command_served},   {"pairs", 2, command_pairs},   {"stray", 0, command_stray},
        {"unended", 0, command_unended}, {"inside", 1, command_inside}, {"names", 1, command_names},
        {"echo", 3, command_echo},
        {NULL, 0, NULL},
    };
    for (int type = 0; type < MAX_TYPES; type++)
        snprintf(names[type], sizeof names[type], "GET /%d", type);
    serve(commands);
}
