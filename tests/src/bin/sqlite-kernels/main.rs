//! Real SQLite (its own C code, with symbols) under the parameterised load of [`profiler_tests::kernels`]: a run makes a database in memory, fills a table, asks, and
//! throws the database away. All runs are in this one process.
//!
//! Prints `ready` after the first run. To each line of its standard input it answers with one: how often each combination was run so far. It ends with its
//! input. The parameters of the current run are in global variables, which a profiler may read along.

#[path = "../sqlite-load/database.rs"]
#[expect(dead_code, reason = "SQLite's count of sorts is the other load's")]
mod database;
#[path = "../sqlite-load/own.rs"]
#[expect(dead_code, reason = "this load counts nothing by them")]
mod own;

use anyhow::{Result, ensure};
use database::Database;
use profiler_tests::kernels::{COMBINATIONS, Combination, Letters, combinations, order};
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Rows of the current run.
#[unsafe(no_mangle)]
pub static SQLITE_KERNELS_ROWS: AtomicU64 = AtomicU64::new(0);
/// Columns with texts.
#[unsafe(no_mangle)]
pub static SQLITE_KERNELS_COLUMNS: AtomicU64 = AtomicU64::new(0);
/// Length of a text, bytes.
#[unsafe(no_mangle)]
pub static SQLITE_KERNELS_TEXT: AtomicU64 = AtomicU64::new(0);
/// Indexes.
#[unsafe(no_mangle)]
pub static SQLITE_KERNELS_INDEXES: AtomicU64 = AtomicU64::new(0);
/// What is asked.
#[unsafe(no_mangle)]
pub static SQLITE_KERNELS_KIND: AtomicU64 = AtomicU64::new(0);

/// Indexes, in the order in which they are made.
const INDEXES: [&str; 3] =
    ["CREATE INDEX by_key ON t (k)", "CREATE INDEX by_text ON t (c0)", "CREATE INDEX by_both ON t (k, c0)"];

/// Says what the current run is.
fn publish(combination: &Combination) {
    let all = [
        &SQLITE_KERNELS_ROWS,
        &SQLITE_KERNELS_COLUMNS,
        &SQLITE_KERNELS_TEXT,
        &SQLITE_KERNELS_INDEXES,
        &SQLITE_KERNELS_KIND,
    ];
    all.iter()
        .zip(combination.values())
        .for_each(|(variable, value)| variable.store(value, Ordering::Relaxed));
}

/// Distinct keys: each is that of four rows.
fn keys(rows: u64) -> u64 {
    (rows / 4).max(1)
}

/// The key of a row.
fn key(row: u64, rows: u64) -> i64 {
    // OK because there are few rows.
    (row.wrapping_mul(7_919) % keys(rows)) as i64
}

fn fill(database: &Database, combination: &Combination, letters: &Letters) -> Result<()> {
    let names: Vec<String> = (0..combination.columns).map(|i| format!("c{i} TEXT")).collect();
    database.run(&format!("CREATE TABLE t (id INTEGER PRIMARY KEY, k INTEGER, {})", names.join(", ")))?;
    for index in INDEXES.iter().take(usize::try_from(combination.indexes)?) {
        database.run(index)?;
    }
    database.run("BEGIN")?;
    let places = vec!["?"; names.len() + 2].join(", ");
    let mut insert = database.prepare(&format!("INSERT INTO t VALUES ({places})"))?;
    for row in 0..combination.rows {
        insert.bind(1, i64::try_from(row)?)?;
        insert.bind(2, key(row, combination.rows))?;
        for column in 0..combination.columns {
            let number = row * combination.columns + column;
            insert.bind_text(i32::try_from(column)? + 3, letters.text(number, combination.text))?;
        }
        insert.rows()?;
    }
    drop(insert);
    database.run("COMMIT")
}

/// Asks, and returns the answer beside what it should be.
fn ask(database: &Database, combination: &Combination) -> Result<(i64, i64)> {
    let rows = i64::try_from(combination.rows)?;
    let sum = |sql: &str| database.prepare(sql)?.rows();
    Ok(match combination.kind {
        0 => (sum("SELECT id FROM t ORDER BY c0, k")?, rows * (rows - 1) / 2),
        1 => {
            let mut of_key = vec![0_i64; usize::try_from(keys(combination.rows))?];
            (0..combination.rows).for_each(|row| of_key[key(row, combination.rows) as usize] += 1);
            let pairs = of_key.iter().map(|n| n * n).sum();
            (sum("SELECT count(*) FROM t a JOIN t b ON a.k = b.k")?, pairs)
        }
        2 => (sum("SELECT count(*), max(c0), avg(id) FROM t GROUP BY k")?, rows),
        3 => {
            let sql =
                "SELECT count(*) FROM t WHERE upper(c0) LIKE '%_' AND length(replace(c0, 'a', 'bb')) > 0";
            (sum(sql)?, rows)
        }
        _ => {
            database.run("UPDATE t SET k = k + 1, c0 = c0 || 'x' WHERE id % 2 = 0")?;
            database.run("DELETE FROM t WHERE id % 3 = 0")?;
            (sum("SELECT count(*) FROM t")?, rows - (rows + 2) / 3)
        }
    })
}

fn run(combination: &Combination, letters: &Letters) -> Result<()> {
    publish(combination);
    let database = Database::open(":memory:")?;
    fill(&database, combination, letters)?;
    let (answer, expected) = ask(&database, combination)?;
    ensure!(answer == expected, "SQLite answered {answer} and not {expected} to {combination:?}");
    Ok(())
}

/// The lines of the standard input; the channel ends with it.
fn asked() -> Receiver<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() || sender.send(()).is_err() {
                return;
            }
        }
    });
    receiver
}

fn main() -> Result<()> {
    let (combinations, letters, asked) = (combinations(), Letters::default(), asked());
    let mut out = std::io::stdout();
    let mut runs = vec![0_u64; COMBINATIONS];
    for pass in 0.. {
        for number in order(pass) {
            run(&combinations[number], &letters)?;
            runs[number] += 1;
            if runs.iter().sum::<u64>() == 1 {
                writeln!(out, "ready")?;
            }
            match asked.try_recv() {
                Ok(()) => {
                    let all: Vec<String> = runs.iter().map(u64::to_string).collect();
                    writeln!(out, "{}", all.join(" "))?;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
            out.flush()?;
        }
    }
    Ok(())
}
