/*
 * A program on SQLite's library that reads and writes a database in a file and adds up under a mutex, with sizes over two decades; what it reads is checked.
 * anomalies DATABASE CPU: runs on that CPU, says "ready" once it works, and ends with its standard input. anomalies burn CPU: takes that CPU.
 * anomalies fill CPU: takes what others leave of it, so that it is never idle. Not a part of the program: samples of its CPU time would be of that.
 *
 * Modelled are sqlite3_blob_read (n = arg2), store (n = arg1) and tally (n = arg1). Each logs its calls (`anomalies.h`). What goes wrong is switched by a
 * word of that file: reads and writes take longer (a preloaded library, anomalies-delay.c), another thread holds the mutex, tally touches new memory.
 */
#define _GNU_SOURCE
#include "anomalies.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_blob sqlite3_blob;
int sqlite3_open(const char *, sqlite3 **);
int sqlite3_exec(sqlite3 *, const char *, void *, void *, char **);
int sqlite3_busy_timeout(sqlite3 *, int);
const char *sqlite3_errmsg(sqlite3 *);
int sqlite3_blob_open(sqlite3 *, const char *, const char *, const char *, long long, int, sqlite3_blob **);
int sqlite3_blob_read(sqlite3_blob *, void *, int, int);
int sqlite3_blob_write(sqlite3_blob *, const void *, int, int);
int sqlite3_blob_close(sqlite3_blob *);

enum { READ, STORE, TALLY };
/*
 * An overflow page holds 16380 bytes; of these blobs 2031 lie beside the row. A size is so many whole overflow pages: 1 to 100, at 16 sizes evenly on a
 * logarithmic scale.
 */
enum { PAGE = 16380, BESIDE = 2031, MOST_PAGES = 100, SIZES = 16, BLOB = BESIDE + MOST_PAGES * PAGE };
enum { READ_ROWS = 32, STORE_ROWS = 4, WORKERS = 4 };
/* tally: words for each page's worth of size, passes over them, and how much of the new memory is kept. */
enum { WORDS = 16000, PASSES = 4, KEPT = 1 << 30, GROWS = 4, KEPT_PIECES = 4096 };

static const int page_sizes[SIZES] = {1, 2, 3, 4, 5, 7, 9, 12, 16, 22, 30, 39, 53, 70, 84, 100};
static struct shared *shared;
static const char *path;
static uint64_t *words;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t total;
static volatile uint64_t sink;

static void fail(const char *what) {
    fprintf(stderr, "wrong: %s\n", what);
    exit(1);
}

static uint64_t mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int pages(uint64_t *random) { return page_sizes[(*random = mixed(*random + 0x9e3779b97f4a7c15u)) % SIZES]; }

static void log_call(int function, long size, uint64_t begin, uint64_t end) {
    uint64_t at = __atomic_fetch_add(&shared->logged, 1, __ATOMIC_RELAXED);
    if (at >= CALLS)
        fail("no room for calls");
    shared->calls[at].begin_ns = begin;
    shared->calls[at].what = (uint64_t)size << 8 | (uint64_t)function;
    __atomic_store_n(&shared->calls[at].end_ns, end, __ATOMIC_RELEASE);
}

static void run(sqlite3 *db, const char *sql) {
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != 0)
        fail(sqlite3_errmsg(db));
}

static sqlite3 *opened(void) {
    sqlite3 *db;
    if (sqlite3_open(path, &db) != 0)
        fail("no database");
    /* Delayed writers hold their lock for seconds. */
    sqlite3_busy_timeout(db, 60000);
    /* Of 100 pages that a large read needs few are in its own cache. */
    run(db, "PRAGMA cache_size=16; PRAGMA synchronous=NORMAL; PRAGMA mmap_size=0");
    return db;
}

static sqlite3_blob *blob(sqlite3 *db, long long row, int for_writing) {
    sqlite3_blob *blob;
    if (sqlite3_blob_open(db, "main", "t", "b", row, for_writing, &blob) != 0)
        fail(sqlite3_errmsg(db));
    return blob;
}

/* A transaction of n bytes. */
__attribute__((noinline, noclone)) void store(sqlite3 *db, long n, const unsigned char *from, long long row) {
    run(db, "BEGIN IMMEDIATE");
    sqlite3_blob *to = blob(db, row, 1);
    if (sqlite3_blob_write(to, from, (int)n, 0) != 0 || sqlite3_blob_close(to) != 0)
        fail(sqlite3_errmsg(db));
    run(db, "COMMIT");
}

/* New memory that is not given back at once. */
struct piece {
    void *at;
    size_t bytes;
};
static struct piece kept[KEPT_PIECES];
static size_t kept_bytes;
static unsigned first_kept, last_kept;
static pthread_mutex_t kept_mutex = PTHREAD_MUTEX_INITIALIZER;

static void grow(long n) {
    size_t bytes = (size_t)n * sizeof *words * GROWS;
    volatile char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        fail("no memory");
    /* Pages of 4 KiB, as everywhere. */
    madvise((void *)at, bytes, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < bytes; i += 4096)
        at[i] = 1;
    pthread_mutex_lock(&kept_mutex);
    kept[last_kept++ % KEPT_PIECES] = (struct piece){(void *)at, bytes};
    kept_bytes += bytes;
    pthread_mutex_unlock(&kept_mutex);
}

/* What is kept beyond `most` bytes, outside of modelled functions: other programs need memory, too. */
static void give_back(size_t most) {
    for (;;) {
        struct piece piece = {NULL, 0};
        pthread_mutex_lock(&kept_mutex);
        if (first_kept != last_kept && (kept_bytes > most || last_kept - first_kept > KEPT_PIECES / 2)) {
            piece = kept[first_kept++ % KEPT_PIECES];
            kept_bytes -= piece.bytes;
        }
        pthread_mutex_unlock(&kept_mutex);
        if (!piece.at)
            return;
        munmap(piece.at, piece.bytes);
    }
}

/* Passes over n words; the result is added under the mutex. */
__attribute__((noinline, noclone)) uint64_t tally(const uint64_t *of, long n) {
    uint64_t sum = 0;
    for (int pass = 0; pass < PASSES; pass++)
        for (long i = 0; i < n; i++)
            sum = (sum ^ of[i]) * 0x9e3779b97f4a7c15u;
    pthread_mutex_lock(&mutex);
    total += sum;
    pthread_mutex_unlock(&mutex);
    if (shared->control == MEMORY)
        grow(n);
    return sum;
}

static void check(const unsigned char *bytes, long n, long long row) {
    for (long i = 0; i < n; i++)
        if (bytes[i] != (unsigned char)row)
            fail("a blob");
}

static void *work(void *number) {
    sqlite3 *db = opened();
    unsigned char *to = malloc(BLOB);
    uint64_t random = mixed((uint64_t)number + 77);
    for (;;) {
        long long row = 1 + (long long)((random = mixed(random + 0x9e3779b97f4a7c15u)) % READ_ROWS);
        long n = BESIDE + (long)pages(&random) * PAGE;
        sqlite3_blob *from = blob(db, row, 0);
        uint64_t begin = now_ns();
        if (sqlite3_blob_read(from, to, (int)n, 0) != 0)
            fail(sqlite3_errmsg(db));
        log_call(READ, n, begin, now_ns());
        sqlite3_blob_close(from);
        check(to, n, row);
        n = (long)pages(&random) * WORDS;
        begin = now_ns();
        uint64_t sum = tally(words, n);
        log_call(TALLY, n, begin, now_ns());
        sink = sum;
        give_back(shared->control == MEMORY ? KEPT : 0);
        rest_us(150000 + (long)(random % 100000));
    }
    return NULL;
}

static void *write_blobs(void *unused) {
    (void)unused;
    sqlite3 *db = opened();
    unsigned char *from = malloc(BLOB);
    uint64_t random = 4711;
    for (;;) {
        long n = BESIDE + (long)pages(&random) * PAGE;
        long long row = READ_ROWS + 1 + (long long)(random % STORE_ROWS);
        memset(from, (int)row, BLOB);
        uint64_t begin = now_ns();
        store(db, n, from, row);
        log_call(STORE, n, begin, now_ns());
        rest_us(50000 + (long)(random % 30000));
    }
    return NULL;
}

/* Says what it has seen of `control`, and holds the mutex for 30 of each 40 ms if that is it. */
static void *go_wrong(void *unused) {
    (void)unused;
    for (;;) {
        if (shared->seen != shared->control) {
            shared->since_ns = now_ns();
            shared->seen = shared->control;
        }
        if (shared->control != LOCK) {
            /* A look a millisecond would be most of the program's context switches, which are charged. */
            rest_us(10000);
            continue;
        }
        pthread_mutex_lock(&mutex);
        rest_us(30000);
        pthread_mutex_unlock(&mutex);
        rest_us(10000);
    }
    return NULL;
}

static void make_database(void) {
    sqlite3 *db;
    if (sqlite3_open(path, &db) != 0)
        fail("no database");
    run(db, "PRAGMA page_size=16384; PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, b BLOB)");
    unsigned char *bytes = malloc(BLOB);
    for (int row = 1; row <= READ_ROWS + STORE_ROWS; row++) {
        char sql[80];
        snprintf(sql, sizeof sql, "INSERT INTO t VALUES(%d, zeroblob(%d))", row, BLOB);
        run(db, sql);
        memset(bytes, row, BLOB);
        sqlite3_blob *to = blob(db, row, 1);
        if (sqlite3_blob_write(to, bytes, BLOB, 0) != 0 || sqlite3_blob_close(to) != 0)
            fail(sqlite3_errmsg(db));
    }
    free(bytes);
    run(db, "PRAGMA wal_checkpoint(TRUNCATE)");
}

static void start(void *(*of)(void *), long number) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, of, (void *)number) != 0)
        fail("no thread");
}

int main(int count, char **arguments) {
    if (count != 3)
        fail("anomalies DATABASE CPU, anomalies burn CPU, or anomalies fill CPU");
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(atoi(arguments[2]), &cpu);
    if (sched_setaffinity(0, sizeof cpu, &cpu) != 0)
        fail("no such CPU");
    int fills = !strcmp(arguments[1], "fill");
    /* Not SCHED_IDLE: beside a thread of that class this kernel (6.18) left a CPU's workers without time for 30 s. */
    if (fills && setpriority(PRIO_PROCESS, 0, 19) != 0)
        fail("no lowest priority");
    if (fills || !strcmp(arguments[1], "burn"))
        for (;;)
            sink++;
    shared = open_shared(O_CREAT);
    if (!shared)
        fail("ANOMALIES names no file");
    path = arguments[1];
    make_database();
    words = malloc(sizeof *words * MOST_PAGES * WORDS);
    for (long i = 0; i < MOST_PAGES * WORDS; i++)
        words[i] = mixed((uint64_t)i);
    start(write_blobs, 0);
    for (long i = 0; i < WORKERS; i++)
        start(work, i);
    start(go_wrong, 0);
    while (shared->logged < 50)
        rest_us(1000);
    puts("ready");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    poll(&input, 1, -1);
    return 0;
}
