/* Queries of SQLite's library, each answer checked: rows by their key, sums of ranges, statements made and thrown away. */
#include "clocked.h"
#include <string.h>

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;
int sqlite3_open(const char *, sqlite3 **);
int sqlite3_exec(sqlite3 *, const char *, void *, void *, char **);
int sqlite3_prepare_v2(sqlite3 *, const char *, int, sqlite3_stmt **, const char **);
int sqlite3_bind_int64(sqlite3_stmt *, int, long long);
int sqlite3_step(sqlite3_stmt *);
int sqlite3_reset(sqlite3_stmt *);
int sqlite3_finalize(sqlite3_stmt *);
long long sqlite3_column_int64(sqlite3_stmt *, int);

enum { ROW = 100, DONE = 101, ROWS = 10000, RANGE = 50 };
enum { EMPTY, STEP, RESET, PREPARE };

static long long value(long long id) { return (long long)(mixed((uint64_t)id) % 1000000); }

static sqlite3_stmt *prepared(sqlite3 *db, const char *sql) {
    sqlite3_stmt *statement;
    if (CLOCKED(PREPARE, sqlite3_prepare_v2(db, sql, -1, &statement, NULL)) != 0)
        fail(sql);
    return statement;
}

/* The one row of a statement; then it is reset. */
static long long only(sqlite3_stmt *statement) {
    if (CLOCKED(STEP, sqlite3_step(statement)) != ROW)
        fail("no row");
    long long found = sqlite3_column_int64(statement, 0);
    if (CLOCKED(RESET, sqlite3_reset(statement)) != 0)
        fail("no reset");
    return found;
}

int main(void) {
    sqlite3 *db;
    open_slots();
    signal(SIGTERM, on_term);
    if (sqlite3_open(":memory:", &db) != 0 || sqlite3_exec(db, "CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER)", 0, 0, 0) != 0)
        fail("no database");
    sqlite3_stmt *insert = prepared(db, "INSERT INTO t VALUES(?,?)");
    for (long long id = 0; id < ROWS; id++) {
        sqlite3_bind_int64(insert, 1, id);
        sqlite3_bind_int64(insert, 2, value(id));
        if (sqlite3_step(insert) != DONE || sqlite3_reset(insert) != 0)
            fail("no insert");
    }
    sqlite3_finalize(insert);
    sqlite3_stmt *row = prepared(db, "SELECT k FROM t WHERE id = ?");
    sqlite3_stmt *range = prepared(db, "SELECT sum(k) FROM t WHERE id BETWEEN ? AND ?");
    puts("begun");
    fflush(stdout);
    for (uint64_t step = 0; !stopped; step++) {
        rest();
        clock_itself();
        for (int i = 0; i < 7; i++) {
            long long id = (long long)(mixed(step * 8 + (uint64_t)i) % ROWS);
            sqlite3_bind_int64(row, 1, id);
            if (only(row) != value(id))
                fail("a row");
        }
        long long first = (long long)(mixed(step * 8 + 7) % (ROWS - RANGE)), sum = 0;
        sqlite3_bind_int64(range, 1, first);
        sqlite3_bind_int64(range, 2, first + RANGE - 1);
        for (long long id = first; id < first + RANGE; id++)
            sum += value(id);
        if (only(range) != sum)
            fail("a sum");
        sqlite3_finalize(prepared(db, "SELECT count(*) FROM t WHERE k > ? AND id < ? ORDER BY k"));
    }
    return 0;
}
