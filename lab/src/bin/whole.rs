//! Simulates whole runs, and says which of them went wrong and how to repeat one.
//!
//! ```text
//! cargo run --release -p profiler-lab --bin whole -- [--runs N] [--first SEED] [--threads N] [--named [NAME]] [--verbose]
//! ```

use profiler_lab::whole::{Judgement, Scenario, named, random, simulate};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What was asked for.
struct Options {
    runs: u64,
    first: u64,
    threads: usize,
    name: Option<String>,
    is_verbose: bool,
}

fn options() -> Options {
    let mut options = Options { runs: 1_000, first: 0, threads: 2, name: None, is_verbose: false };
    let mut words = std::env::args().skip(1).peekable();
    while let Some(word) = words.next() {
        let mut number = |default: u64| words.peek().and_then(|w| w.parse().ok()).unwrap_or(default);
        match word.as_str() {
            "--runs" => options.runs = number(1_000),
            "--first" => options.first = number(0),
            "--threads" => options.threads = number(2) as usize,
            "--named" => {
                options.name =
                    Some(words.peek().filter(|w| !w.starts_with("--")).cloned().unwrap_or_default())
            }
            "--verbose" => options.is_verbose = true,
            _ => {}
        }
    }
    options
}

fn scenarios(options: &Options) -> Vec<Scenario> {
    match &options.name {
        Some(name) => named::scenarios().into_iter().filter(|s| s.name.contains(name)).collect(),
        None => (options.first..options.first + options.runs).map(random::scenario).collect(),
    }
}

fn say(judgement: &Judgement, options: &Options) {
    if judgement.faults.is_empty() && !options.is_verbose {
        return;
    }
    let Judgement { name, seed, faults, worst, counts, idle, .. } = judgement;
    println!(
        "{name} (seed {seed}): worst second {worst:.2}, plans, windows, trips, commands {counts:?}, {idle:?}"
    );
    faults.iter().for_each(|fault| println!("    {fault}"));
    if !faults.is_empty() && options.name.is_none() {
        println!("    again: --first {seed} --runs 1 --verbose");
    }
}

fn main() -> ExitCode {
    let options = options();
    let scenarios = scenarios(&options);
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let (failed, judged) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    let judgement = simulate(scenario);
                    failed.fetch_add(usize::from(!judgement.faults.is_empty()), Ordering::Relaxed);
                    say(&judgement, &options);
                    if let Ok(mut judged) = judged.lock() {
                        judged.push((begun.elapsed(), judgement.worst, judgement.name));
                    }
                }
            });
        }
    });
    let mut judged = judged.into_inner().unwrap_or_default();
    judged.sort_by_key(|(took, ..)| *took);
    let slowest = judged
        .last()
        .map_or_else(String::new, |(took, _, name)| format!("{name} {:.2} s", took.as_secs_f64()));
    let worst = judged.iter().map(|(_, worst, _)| *worst).fold(0.0, f64::max);
    let failed = failed.into_inner();
    println!(
        "{} runs of 60 s in {:.1} s, {failed} failed; worst second {worst:.2} of its bound; slowest {slowest}",
        judged.len(),
        begun.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
