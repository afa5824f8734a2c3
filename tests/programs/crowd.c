/* Processes that others have to live with.
 *
 *   load PATH    maps a shared library: ok loaded=1
 *   sleepers N   so many children that sleep; they map what this process maps, and end with it: ok sleepers=N
 *   fork MS      forks and waits for the child, again and again, 200 us apart, for so long: ok n=.. p50_ns=.. p99_ns=.. worst_p99_ns=..
 *                max_ns=..
 *
 * `worst_p99_ns`: of the seconds of that time, each begun a quarter of a second after the last, the one with the highest 99th percentile. */
#define _GNU_SOURCE
#include "protocol.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 400000u
static struct fork {
    uint64_t at_ns, took_ns;
} forks[MOST];
static uint64_t times[MOST];

static void command_load(int count, char **words) {
    (void)count;
    if (dlopen(words[1], RTLD_NOW) == NULL)
        reply_error("%s", dlerror());
    else
        reply("loaded=1");
}

static void command_sleepers(int count, char **words) {
    uint64_t wanted = number(count, words, 1, 1);
    pid_t parent = getpid();
    for (uint64_t i = 0; i < wanted; i++) {
        pid_t child = fork();
        if (child < 0) {
            reply_error("fork %llu failed", (unsigned long long)i);
            return;
        }
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(0);
            for (;;) pause();
        }
    }
    reply("sleepers=%llu", (unsigned long long)wanted);
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The sorted times of the forks that began between two instants. */
static unsigned sorted(unsigned n, uint64_t from_ns, uint64_t to_ns) {
    unsigned kept = 0;
    for (unsigned i = 0; i < n; i++)
        if (forks[i].at_ns >= from_ns && forks[i].at_ns < to_ns) times[kept++] = forks[i].took_ns;
    qsort(times, kept, sizeof *times, by_size);
    return kept;
}

static void command_fork(int count, char **words) {
    uint64_t begun = wall_ns(), end = begun + number(count, words, 1, 1000) * 1000000u;
    unsigned n = 0;
    while (n < MOST && wall_ns() < end) {
        uint64_t at = wall_ns();
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child < 0 || waitpid(child, NULL, 0) != child) {
            reply_error("fork or wait failed");
            return;
        }
        forks[n++] = (struct fork){at, wall_ns() - at};
        usleep(200);
    }
    uint64_t worst = 0;
    for (uint64_t from = begun; from + 1000000000u <= end; from += 250000000u) {
        unsigned kept = sorted(n, from, from + 1000000000u);
        uint64_t p99 = kept > 0 ? times[(uint64_t)kept * 99 / 100] : 0;
        if (p99 > worst) worst = p99;
    }
    unsigned kept = sorted(n, 0, UINT64_MAX);
    if (kept == 0) {
        reply_error("no fork");
        return;
    }
    reply("n=%u p50_ns=%llu p99_ns=%llu worst_p99_ns=%llu max_ns=%llu", kept, (unsigned long long)times[kept / 2],
          (unsigned long long)times[(uint64_t)kept * 99 / 100], (unsigned long long)worst,
          (unsigned long long)times[kept - 1]);
}

int main(void) {
    static const struct command commands[] = {
        {"load", 1, command_load},
        {"sleepers", 1, command_sleepers},
        {"fork", 1, command_fork},
        {NULL, 0, NULL},
    };
    serve(commands);
}
