//! The demo target: real SQLite (its own C code, with symbols and frame pointers) under mixed reads and writes.
//!
//! Prints `pid PID` first, then `ready` when the tables are filled, then each second its own throughput
//! (`operations_per_second X`), and at the end the total. With `--threads 0` nothing runs. Each worker has a
//! database of its own in memory, or with `--file PATH` all share one file in WAL mode. With `--counters PATH` it says how often it called what,
//! and how long that took by its own clock.

mod database;
mod own;
mod work;

use anyhow::{Context, Result, bail, ensure};
use database::Database;
use own::Slot;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const USAGE: &str =
    "usage: sqlite-load [--seconds N] [--threads N] [--file PATH] [--seed N] [--counters PATH]
  --seconds N   run for N seconds (default: until killed)
  --threads N   worker threads (default 2)
  --file PATH   one shared database file in WAL mode (default: a database in memory for each worker)
  --seed N      seed of the random choices (default 1)
  --counters PATH  count and clock calls of the one thread, and keep them in this file (wants --threads 1)";

struct Options {
    seconds: Option<u64>,
    threads: u64,
    file: Option<String>,
    seed: u64,
    counters: Option<PathBuf>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options { seconds: None, threads: 2, file: None, seed: 1, counters: None };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{name} wants a value\n{USAGE}"));
        match name.as_str() {
            "--seconds" => options.seconds = Some(value()?.parse().context("--seconds wants a number")?),
            "--threads" => options.threads = value()?.parse().context("--threads wants a number")?,
            "--file" => options.file = Some(value()?),
            "--seed" => options.seed = value()?.parse().context("--seed wants a number")?,
            "--counters" => options.counters = Some(value()?.into()),
            _ => bail!("no option {name}\n{USAGE}"),
        }
    }
    ensure!(options.counters.is_none() || options.threads == 1, "--counters wants --threads 1\n{USAGE}");
    Ok(options)
}

/// What the workers and the reporting thread share.
#[derive(Default)]
struct Progress {
    operations: AtomicU64,
    ready: AtomicU64,
    stop: AtomicBool,
}

fn worker(options: &Options, number: u64, progress: &Progress) -> Result<()> {
    let database = Database::open(options.file.as_deref().unwrap_or(":memory:"))?;
    if options.file.is_some() {
        database.run("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF")?;
    } else {
        work::fill(&database, options.seed)?;
    }
    let mut worker = work::Worker::new(&database, number, options.seed)?;
    let mut kept = options.counters.as_deref().map(own::Kept::begin).transpose()?;
    progress.ready.fetch_add(1, Ordering::Release);
    while !progress.stop.load(Ordering::Relaxed) {
        own::clocked(Slot::Operation, || worker.operation())?;
        work::sqlite_load_operation_done(progress.operations.fetch_add(1, Ordering::Relaxed));
        if let Some(kept) = &mut kept {
            kept.after_operation(|| worker.sorts())?;
        }
    }
    Ok(())
}

/// Prints a line each second until the time is over; a worker that ends early ends the program.
fn report(options: &Options, progress: &Progress, ended: impl Fn() -> bool) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    while progress.ready.load(Ordering::Acquire) < options.threads && !ended() {
        std::thread::sleep(Duration::from_millis(5));
    }
    writeln!(out, "ready")?;
    out.flush()?;
    let start = Instant::now();
    let before = progress.operations.load(Ordering::Relaxed);
    let (mut last_time, mut last) = (start, before);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let (time, operations) = (Instant::now(), progress.operations.load(Ordering::Relaxed));
        let rate = (operations - last) as f64 / (time - last_time).as_secs_f64();
        (last_time, last) = (time, operations);
        writeln!(out, "operations_per_second {rate:.0}")?;
        out.flush()?;
        let elapsed = (time - start).as_secs_f64();
        if ended() || options.seconds.is_some_and(|seconds| elapsed >= seconds as f64) {
            let total = operations - before;
            writeln!(
                out,
                "total operations {total} seconds {elapsed:.3} operations_per_second {:.0}",
                total as f64 / elapsed
            )?;
            return out.flush();
        }
    }
}

fn main() -> Result<()> {
    let options = parse(std::env::args().skip(1))?;
    println!("pid {}", std::process::id());
    std::io::stdout().flush()?;
    if let Some(path) = &options.file {
        work::fill(&Database::open(path)?, options.seed)?;
    }
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.threads)
            .map(|number| {
                let (options, progress) = (&options, &progress);
                std::thread::Builder::new()
                    .name(format!("load-{number}"))
                    .spawn_scoped(scope, move || worker(options, number, progress))
                    .context("cannot start a worker thread")
            })
            .collect::<Result<_>>()?;
        let reported = report(&options, &progress, || workers.iter().any(|worker| worker.is_finished()));
        progress.stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
        }
        match reported {
            // A reader that has gone is the usual end of a demo.
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(()),
        }
    })
}
