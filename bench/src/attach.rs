//! Attaching and detaching many functions: one multi link against perf-event uprobes, target idle.

use crate::measure::{Series, Table};
use crate::scratch;
use crate::watch::{self, Ours, Place};
use anyhow::{Result, ensure};
use profiler_core::class::Tier;
use profiler_tests::support::{Agent, Target, changed_text};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest stall of a running target while we attach and detach, and while nothing happens for as long.
pub fn stalls(rounds: u32) -> Result<String> {
    let kernel = watch::kernel(Tier::A)?;
    let mut target = Target::start("calls");
    target.pin(1);
    profiler_tests::support::pin(0, 0);
    let places: Vec<Place> = (0..1_000).map(|i| watch::place(&mut target, &format!("big{i}"), 0)).collect();
    let mut table = Table::new(&["functions", "longest stall, ms", "nothing attached, ms", "aim", "n"]);
    // A function that is not probed: the stall is that of the process, not the price of a hit.
    target.start_background("inner", 1, 0, 1);
    for count in [1, 100, 1_000] {
        let (mut watched, mut alone) = (Series::default(), Series::default());
        for _ in 0..rounds {
            target.take_stall();
            let start = Instant::now();
            drop(watch::attach(&kernel, &target, Ours::Count, &places[..count])?);
            let took = start.elapsed();
            watched.push(target.take_stall().as_secs_f64() * 1e3);
            std::thread::sleep(took);
            alone.push(target.take_stall().as_secs_f64() * 1e3);
        }
        table.row(&[
            count.to_string(),
            watched.show(2),
            alone.show(2),
            "<= 0.5".to_owned(),
            watched.n().to_string(),
        ]);
    }
    target.stop_background();
    target.assert_text_original();
    Ok(table.to_string())
}

/// Milliseconds from SIGKILL of a process that holds the links to the last changed byte of text.
pub fn killed_agent(rounds: u32) -> Result<String> {
    let mut target = Target::start("calls");
    let offsets: Vec<String> =
        (0..1_000).map(|i| watch::place(&mut target, &format!("big{i}"), 0).offset.to_string()).collect();
    let mut gone = Series::default();
    for _ in 0..rounds {
        let mut holder = Command::new(std::env::current_exe()?)
            .arg("--hold")
            .arg(target.pid().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut input = holder.stdin.take().expect("stdin was piped");
        writeln!(input, "{}", offsets.join(" "))?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("stdout was piped")).read_line(&mut line)?;
        ensure!(line == "attached\n", "the holder said {line:?}");
        let start = Instant::now();
        holder.kill()?;
        // Its own end comes after that of its links, and is waited for later.
        profiler_tests::support::wait_text_original(&target, Duration::from_secs(10));
        gone.push(start.elapsed().as_secs_f64() * 1e3);
        holder.wait()?;
        target.call("big", 1, 1);
    }
    let mut table = Table::new(&["functions", "last instrumentation gone after SIGKILL, ms", "aim", "n"]);
    table.row(&["1000".to_owned(), gone.show(1), "<= 100".to_owned(), gone.n().to_string()]);
    Ok(table.to_string())
}

/// Milliseconds from SIGSTOP of an agent that traces 1,000 functions to the last changed byte of text: the watchdog
/// notices the silence and kills it.
pub fn stopped_agent(rounds: u32) -> Result<String> {
    let mut target = Target::start("calls");
    // The plan counts against the target's CPU time.
    target.command("burn 1");
    let scratch = scratch::new()?;
    let mut gone = Series::default();
    for _ in 0..rounds {
        let mut agent = Agent::start(target.pid(), scratch.path(), &["--count", "big*"]);
        agent.wait_tracing();
        let changed = changed_text(target.pid())?;
        ensure!(!changed.is_empty(), "nothing is attached: {}", agent.messages());
        let start = Instant::now();
        agent.signal(libc::SIGSTOP);
        profiler_tests::support::wait_text_original(&target, Duration::from_secs(10));
        gone.push(start.elapsed().as_secs_f64() * 1e3);
        agent.finish();
        target.call("big", 1, 1);
    }
    let mut table = Table::new(&["functions", "last instrumentation gone after SIGSTOP, ms", "aim", "n"]);
    table.row(&["2000".to_owned(), gone.show(0), "<= 1500".to_owned(), gone.n().to_string()]);
    Ok(table.to_string())
}

/// The process that is killed: attaches to the offsets (one line on standard input), says so, and waits.
pub fn hold(pid: u32) -> Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let path = std::fs::read_link(format!("/proc/{pid}/exe"))?;
    let places: Vec<Place> = line
        .split_whitespace()
        .map(|offset| Ok(Place { path: path.clone(), offset: offset.parse()?, pushed: 0 }))
        .collect::<Result<_>>()?;
    let kernel = watch::kernel(Tier::A)?;
    let _watched = watch::attach_to(&kernel, pid, Ours::Count, &places)?;
    println!("attached");
    // Ends with its parent, if nobody kills it before.
    std::io::stdin().read_line(&mut line)?;
    Ok(())
}

/// Perf-event uprobes take 0.1 s each to close: more than 100 of them would take the day.
const MOST_PERF: usize = 100;

/// Milliseconds to attach and to detach, ours (tier A) and perf-event uprobes (tier D) in turn.
pub fn attach_and_detach(rounds: u32) -> Result<String> {
    let multi = watch::kernel(Tier::A)?;
    let perf = watch::kernel(Tier::D)?;
    let mut target = Target::start("calls");
    let places: Vec<Place> = (0..1_000).map(|i| watch::place(&mut target, &format!("big{i}"), 0)).collect();
    let mut table = Table::new(&[
        "functions",
        "attach, ms",
        "detach, ms",
        "attach, ms (perf-event uprobes)",
        "detach, ms (perf-event uprobes)",
        "detach, ratio",
        "n",
    ]);
    for count in [1, 10, 100, 1_000] {
        // A hundred perf-event uprobes take 10 s.
        let rounds = if count == MOST_PERF { rounds.min(5) } else { rounds };
        let mut figures = [const { Vec::new() }; 4].map(|_: Vec<f64>| Series::default());
        for _ in 0..rounds {
            for (index, kernel) in [&multi, &perf].into_iter().enumerate() {
                if index == 1 && count > MOST_PERF {
                    continue;
                }
                watch::take_hits(kernel);
                let start = Instant::now();
                let link = watch::attach(kernel, &target, Ours::Count, &places[..count])?;
                figures[2 * index].push(start.elapsed().as_secs_f64() * 1e3);
                target.call("big", 1, 1);
                let hits = watch::take_hits(kernel);
                ensure!(hits == count as u64, "{count} functions attached, {hits} hits");
                let start = Instant::now();
                drop(link);
                figures[2 * index + 1].push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        target.assert_text_original();
        let [attach, detach, perf_attach, perf_detach] = &figures;
        table.row(&[
            count.to_string(),
            attach.show(1),
            detach.show(1),
            perf_attach.show(1),
            perf_detach.show(1),
            detach.over(perf_detach).show(4),
            attach.n().to_string(),
        ]);
    }
    Ok(table.to_string())
}
