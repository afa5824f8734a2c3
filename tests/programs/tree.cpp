/* Calls functions in trees that it knows: each entry of a watched function is logged with the call that it lies in.
 *
 *   tree N THREADS SEED PATH   each thread does N operations; every way of calling at random
 *   recurse DEPTH PATH         one operation that calls `deep` DEPTH times inside itself
 *   only MODE N PATH           N operations of one way: loops, tails, jumps (longjmp), throws, signals, altstack, coroutines,
 *                              made (code made at run time)
 *   swap A B N PATH            N operations through library A, then as many through B in its place; says whether it was the same place
 *   forked N SEED PATH         a child does N operations, then the program does; the log has the program's
 *
 * All answer "ok operations=.. steps=..", and leave the log at PATH: records of 16 bytes, {thread, operation, function,
 * parent}. `operation` counts from 1 over all threads and is what `mark` is called with; `parent` is the number of the entry within the
 * operation in whose call this one lies (-1: none), and that of the function that jumped to it where it was jumped to. When each
 * operation was made lies at PATH.times: records of 24 bytes, {thread, operation, ns before, ns after} of CLOCK_MONOTONIC. */
extern "C" {
#include "protocol.h"
}

#include <alloca.h>
#include <atomic>
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdexcept>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#define TRACED extern "C" __attribute__((noinline, noclone, used))
#define PLAIN static __attribute__((noinline, noclone))
#define JUMPS __attribute__((optimize("optimize-sibling-calls")))

struct entry {
    uint32_t thread, operation, function;
    int32_t parent;
};

/* An operation: `handle` was entered and left between these times, ns. */
struct span {
    uint32_t thread, operation;
    uint64_t before_ns, after_ns;
};

/* What a thread does now. Volatile where a handler or a jump comes between. */
struct context {
    std::vector<entry> log;
    std::vector<span> spans;
    uint64_t random;
    uint32_t thread, operation;
    size_t first; /* of the operation, in the log */
    volatile int32_t current;
    int left; /* calls that the operation may still make */
    jmp_buf *back;
};

static thread_local struct context *self;
static std::atomic<uint32_t> operations;

static uint64_t draw(struct context *c, uint64_t below) {
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    c->random ^= c->random << 17;
    return (c->random >> 11) % below;
}

/* The entry of function `function`; returns its number. */
static inline int32_t enter(struct context *c, uint32_t function) {
    int32_t number = (int32_t)(c->log.size() - c->first);
    c->log.push_back({c->thread, c->operation, function, c->current});
    c->current = number;
    return number;
}

TRACED uint64_t mark(uint64_t operation) {
    volatile uint64_t seen = operation;
    return seen;
}

typedef uint64_t (*step)(struct context *c, int depth);
PLAIN void children(struct context *c, int depth, int32_t me);

/* Frames of different sizes; each restores `current` after what it calls. */
#define FUNCTION(number, name, words)                                                                                  \
    TRACED uint64_t name(struct context *c, int depth) {                                                               \
        int32_t me = enter(c, number);                                                                                 \
        volatile uint64_t room[words];                                                                                 \
        room[0] = (uint64_t)depth;                                                                                     \
        children(c, depth, me);                                                                                        \
        c->current = me;                                                                                               \
        return room[0];                                                                                                \
    }
FUNCTION(0, small, 1)
FUNCTION(1, middle, 12)
FUNCTION(2, large, 200)

/* With two arguments on the stack, so that what is called later may have a lower slot than what was called before. */
TRACED uint64_t many(struct context *c, int depth, uint64_t a, uint64_t b, uint64_t d, uint64_t e, uint64_t f, uint64_t g) {
    int32_t me = enter(c, 3);
    children(c, depth, me);
    c->current = me;
    volatile uint64_t sum = a + b + d + e + f + g;
    return sum;
}

TRACED uint64_t leaf(struct context *c, int depth) {
    enter(c, 4);
    volatile uint64_t x = (uint64_t)depth;
    return x;
}

TRACED uint64_t deep(struct context *c, int depth) {
    int32_t me = enter(c, 5);
    uint64_t sum = 1;
    if (depth > 1)
        sum += deep(c, depth - 1);
    c->current = me;
    return sum;
}

/* The same function under a name that the compiler does not know: it makes a loop of a function that ends in a call of itself. */
uint64_t hop_by_jump(struct context *, int) __asm__("hop");

/* Hands over to `leaf`, `hop` or `large` by a jump. */
TRACED JUMPS uint64_t hop(struct context *c, int depth) {
    enter(c, 6);
    switch (draw(c, 3)) {
    case 0:
        return leaf(c, depth);
    case 1:
        if (depth > 0 && c->left-- > 0)
            return hop_by_jump(c, depth - 1);
        return leaf(c, depth);
    default:
        return large(c, depth - 1);
    }
}

/* Leaves by longjmp or by a throw, through functions that are not watched. */
TRACED uint64_t leaves(struct context *c, int depth) {
    enter(c, 7);
    leaf(c, depth);
    if (c->back)
        longjmp(*c->back, 1);
    throw std::runtime_error("left");
}

static step const steps[] = {small, middle, large, leaf, hop};

PLAIN uint64_t through(struct context *c, int depth, step to) {
    volatile uint64_t room[20];
    room[0] = to(c, depth);
    return room[0];
}

PLAIN uint64_t on_stack_of_unknown_size(struct context *c, int depth, step to) {
    volatile char *room = (volatile char *)alloca(16 + draw(c, 400));
    room[0] = 1;
    return to(c, depth) + (uint64_t)room[0];
}

PLAIN void jump_back(struct context *c, int depth) {
    int32_t me = c->current;
    jmp_buf back, *outer = c->back;
    if (setjmp(back) == 0) {
        c->back = &back;
        volatile uint64_t room[8];
        room[0] = leaves(c, depth);
        (void)room[0];
    }
    c->back = outer;
    c->current = me;
}

PLAIN void catch_one(struct context *c, int depth) {
    int32_t me = c->current;
    jmp_buf *outer = c->back;
    c->back = nullptr;
    try {
        volatile uint64_t room[8];
        room[0] = leaves(c, depth);
        (void)room[0];
    } catch (const std::runtime_error &) {
    }
    c->back = outer;
    c->current = me;
}

PLAIN void one_child(struct context *c, int depth, int32_t me) {
    step to = steps[draw(c, sizeof steps / sizeof *steps)];
    switch (draw(c, 12)) {
    case 0:
        small(c, depth);
        break;
    case 1:
        middle(c, depth);
        break;
    case 2:
        large(c, depth);
        break;
    case 3:
        many(c, depth, 1, 2, 3, 4, 5, 6);
        break;
    case 4:
        leaf(c, depth);
        break;
    case 5:
        to(c, depth);
        break;
    case 6:
        through(c, depth, to);
        break;
    case 7:
        on_stack_of_unknown_size(c, depth, to);
        break;
    case 8:
        hop(c, depth);
        break;
    case 9:
        jump_back(c, depth);
        break;
    case 10:
        catch_one(c, depth);
        break;
    default:
        for (uint64_t i = draw(c, 4); i > 0; i--) {
            leaf(c, depth);
            c->current = me;
        }
    }
    c->current = me;
}

PLAIN void children(struct context *c, int depth, int32_t me) {
    if (depth <= 0)
        return;
    for (uint64_t i = draw(c, 4); i > 0 && c->left > 0; i--) {
        c->left--;
        one_child(c, depth - 1, me);
        c->current = me;
    }
}

/* The operation. */
TRACED uint64_t handle(struct context *c, void (*work)(struct context *c)) {
    mark(c->operation);
    work(c);
    volatile uint64_t done = c->operation;
    return done;
}

static void operate(struct context *c, void (*work)(struct context *c)) {
    c->operation = operations.fetch_add(1) + 1;
    c->first = c->log.size();
    c->current = -1;
    c->left = 200;
    c->back = nullptr;
    uint64_t before_ns = wall_ns();
    handle(c, work);
    c->spans.push_back({c->thread, c->operation, before_ns, wall_ns()});
}

PLAIN void any(struct context *c) {
    for (int i = 0; i < 3; i++)
        one_child(c, 6, -1);
}

PLAIN void loops(struct context *c) {
    for (int i = 0; i < 20; i++) {
        leaf(c, 0);
        c->current = -1;
    }
}

PLAIN void tails(struct context *c) {
    for (int i = 0; i < 10; i++) {
        hop(c, 3);
        c->current = -1;
    }
}

PLAIN void jumps(struct context *c) {
    for (int i = 0; i < 5; i++) {
        jump_back(c, 2);
        middle(c, 1);
        c->current = -1;
    }
}

PLAIN void throws(struct context *c) {
    for (int i = 0; i < 5; i++) {
        catch_one(c, 2);
        middle(c, 1);
        c->current = -1;
    }
}

TRACED void handler(int) {
    struct context *c = self;
    int32_t interrupted_in = c->current;
    enter(c, 9);
    middle(c, 1);
    c->current = interrupted_in;
}

TRACED uint64_t interrupted(struct context *c, int depth) {
    int32_t me = enter(c, 8);
    raise(SIGUSR1);
    c->current = me;
    return (uint64_t)depth + small(c, 1);
}

PLAIN void signals(struct context *c) {
    for (int i = 0; i < 4; i++) {
        interrupted(c, 2);
        c->current = -1;
    }
}

/* Two stacks that take turns. */
static ucontext_t main_stack, other_stack;
static char room_of_other[256 * 1024];
static volatile int32_t other_current;

static void other(void) {
    struct context *c = self;
    for (;;) {
        c->current = -1;
        middle(c, 2);
        other_current = c->current;
        swapcontext(&other_stack, &main_stack);
    }
}

PLAIN void coroutines(struct context *c) {
    getcontext(&other_stack);
    other_stack.uc_stack.ss_sp = room_of_other;
    other_stack.uc_stack.ss_size = sizeof room_of_other;
    other_stack.uc_link = &main_stack;
    makecontext(&other_stack, other, 0);
    for (int i = 0; i < 4; i++) {
        c->current = -1;
        small(c, 2);
        c->current = -1;
        swapcontext(&main_stack, &other_stack);
    }
    c->current = -1;
}

/* Code that no file holds: sub $24, %rsp; call *%rdx; add $24, %rsp; ret. */
static uint64_t (*made)(struct context *c, int depth, step to);

static void make(void) {
    static const unsigned char code[] = {0x48, 0x83, 0xec, 0x18, 0xff, 0xd2, 0x48, 0x83, 0xc4, 0x18, 0xc3};
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    made = (uint64_t (*)(struct context *, int, step))page;
}

PLAIN void through_made(struct context *c) {
    for (int i = 0; i < 5; i++) {
        made(c, 2, middle);
        c->current = -1;
        middle(c, 1);
        c->current = -1;
        made(c, 0, leaf);
        c->current = -1;
    }
}

/* What the library calls lies in this one, whose frame is small: the size of the library's own decides where it begins. */
static uint64_t (*library)(struct context *c, int depth, step to);

TRACED uint64_t carries(struct context *c, int depth) {
    int32_t me = enter(c, 10);
    uint64_t sum = library(c, depth, leaf);
    c->current = me;
    return sum + library(c, depth, leaf);
}

PLAIN void through_library(struct context *c) {
    for (int i = 0; i < 3; i++) {
        carries(c, 1);
        c->current = -1;
    }
}

struct job {
    pthread_t thread;
    struct context context;
    uint64_t n;
    void (*work)(struct context *c);
};

static void *run(void *argument) {
    struct job *job = (struct job *)argument;
    self = &job->context;
    job->context.thread = (uint32_t)syscall(SYS_gettid);
    for (uint64_t i = 0; i < job->n; i++)
        operate(&job->context, job->work);
    return nullptr;
}

template <typename T> static bool write_all(const std::vector<T> &records, const std::string &path) {
    FILE *file = fopen(path.c_str(), "wb");
    if (file && fwrite(records.data(), sizeof(T), records.size(), file) == records.size() && fclose(file) == 0)
        return true;
    reply_error("cannot write %s", path.c_str());
    return false;
}

static bool write_log(const std::vector<entry> &log, const std::vector<span> &spans, const char *path) {
    return write_all(log, path) && write_all(spans, std::string(path) + ".times");
}

static void finish(const std::vector<entry> &log, const std::vector<span> &spans, uint64_t n, const char *path) {
    if (!write_log(log, spans, path))
        return;
    reply("operations=%lu steps=%lu", (unsigned long)n, (unsigned long)log.size());
}

static void do_threads(uint64_t n, uint64_t threads, uint64_t seed, void (*work)(struct context *c), const char *path) {
    std::vector<struct job> jobs(threads);
    for (uint64_t i = 0; i < threads; i++) {
        jobs[i].context.random = (seed + i) * 0x9e3779b97f4a7c15u + 1;
        jobs[i].n = n;
        jobs[i].work = work;
        pthread_create(&jobs[i].thread, nullptr, run, &jobs[i]);
    }
    std::vector<entry> log;
    std::vector<span> spans;
    for (struct job &job : jobs) {
        pthread_join(job.thread, nullptr);
        log.insert(log.end(), job.context.log.begin(), job.context.log.end());
        spans.insert(spans.end(), job.context.spans.begin(), job.context.spans.end());
    }
    finish(log, spans, n * threads, path);
}

static void do_tree(int count, char **words) {
    do_threads(number(count, words, 1, 1), number(count, words, 2, 1), number(count, words, 3, 1), any, words[4]);
}

static int depth_of_recursion;

PLAIN void recursion(struct context *c) {
    deep(c, depth_of_recursion);
    c->current = -1;
}

static void do_recurse(int count, char **words) {
    depth_of_recursion = (int)number(count, words, 1, 1);
    do_threads(1, 1, 1, recursion, words[2]);
}

static void do_only(int count, char **words) {
    static const struct {
        const char *name;
        void (*work)(struct context *c);
    } ways[] = {{"loops", loops},     {"tails", tails},     {"jumps", jumps},           {"throws", throws},
                {"signals", signals}, {"altstack", signals}, {"coroutines", coroutines}, {"made", through_made}};
    make();
    for (const auto &way : ways) {
        if (strcmp(words[1], way.name) != 0)
            continue;
        bool alternate = strcmp(way.name, "altstack") == 0;
        struct sigaction action = {};
        action.sa_handler = handler;
        action.sa_flags = alternate ? SA_ONSTACK : 0;
        sigaction(SIGUSR1, &action, nullptr);
        struct job job = {};
        job.context.random = 12345;
        job.n = number(count, words, 2, 1);
        job.work = way.work;
        static char room[64 * 1024];
        stack_t stack = {};
        stack.ss_sp = room;
        stack.ss_size = sizeof room;
        if (alternate)
            sigaltstack(&stack, nullptr);
        run(&job);
        finish(job.context.log, job.context.spans, job.n, words[3]);
        return;
    }
    reply_error("no way %s", words[1]);
}

/* The agent looks at the mappings once a second: it sees each of the two before and after its operations. */
static void do_swap(int count, char **words) {
    uint64_t n = number(count, words, 3, 1);
    struct job job = {};
    job.context.random = 12345;
    job.n = n;
    job.work = through_library;
    void *at[2];
    for (int i = 0; i < 2; i++) {
        void *handle = dlopen(words[1 + i], RTLD_NOW | RTLD_LOCAL);
        void *found = handle ? dlsym(handle, "through_library") : nullptr;
        if (!found) {
            reply_error("cannot load %s", words[1 + i]);
            return;
        }
        at[i] = found;
        library = (uint64_t (*)(struct context *, int, step))found;
        usleep(2500 * 1000);
        run(&job);
        usleep(2500 * 1000);
        dlclose(handle);
    }
    if (!write_log(job.context.log, job.context.spans, words[4]))
        return;
    reply("operations=%lu same=%d", (unsigned long)(2 * n), at[0] == at[1]);
}

static void do_forked(int count, char **words) {
    uint64_t n = number(count, words, 1, 1), seed = number(count, words, 2, 1);
    pid_t child = fork();
    struct job job = {};
    job.context.random = seed * 0x9e3779b97f4a7c15u + 1;
    job.n = n;
    job.work = any;
    if (child == 0) {
        run(&job);
        _exit(0);
    }
    run(&job);
    waitpid(child, nullptr, 0);
    finish(job.context.log, job.context.spans, n, words[3]);
}

int main() {
    static const struct command commands[] = {
        {"tree", 4, do_tree}, {"recurse", 2, do_recurse}, {"only", 3, do_only}, {"forked", 3, do_forked}, {"swap", 4, do_swap}, {nullptr, 0, nullptr}};
    serve(commands);
}
