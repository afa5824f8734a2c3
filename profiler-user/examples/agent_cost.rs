//! What the agent's own work costs: writing events, unwinding, naming. Prints figures; judges nothing.
//!
//! `cargo run --release -p profiler-user --example agent_cost [-- PID]`; with a PID (root) it unwinds and
//! names the stacks of that process's sleeping threads instead of its own.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use profiler_core::class::Tier;
use profiler_core::cost::{CostModel, Price};
use profiler_core::recording::{AgentUse, CallContext, CallPlace, EventRow, FORMAT_VERSION, Losses, Meta};
use profiler_core::units::OverheadBudget;
use profiler_user::recording::{Overwrite, Writer, open};
use profiler_user::symbolize::{Detail, Symbolizer};
use profiler_user::unwind::{Frame, Unwinder, UserStack};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1) {
        Some(pid) => stacks(pid.parse()?),
        None => events(Path::new("agent-cost.tithe")),
    }
}

/// Ten million events into a recording that stays for a look with other readers.
fn events(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut writer = Writer::create(path, None, Overwrite::Recording, &meta())?;
    let mut noise = 1_u64;
    let mut batch = Vec::with_capacity(10_000);
    let n = 10_000_000_u64;
    let begin = Instant::now();
    for i in 0..n {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        batch.push(EventRow {
            time_ns: 1_000_000_000 + i * 977 + (noise >> 56),
            class_id: (noise >> 60) as u32,
            pid: 1234,
            tid: 1234 + (i % 8) as u32,
            duration_ns: Some(noise >> 50),
            args: [0x7f00_0000_0000 + (noise >> 40), i, 4096, 0, 0, noise].map(Some),
            nested_cost_ns: Some(noise >> 60),
            place: CallPlace::default(),
            context: CallContext::default(),
        });
        if batch.len() == batch.capacity() {
            writer.push(&batch);
            batch.clear();
        }
    }
    let finished = writer.finish(&meta())?;
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "wrote {n} events in {seconds:.1} s: {:.2} M rows/s, {:.1} bytes a row, at most {} MiB resident",
        n as f64 / seconds / 1e6,
        finished.bytes as f64 / n as f64,
        peak_rss_mib()
    );
    let begin = Instant::now();
    let rows = open(path)?.events.len();
    println!("read {rows} events in {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Unwinds and names the stacks of the sleeping threads of `pid`.
fn stacks(pid: u32) -> Result<(), Box<dyn std::error::Error>> {
    let mut unwinder = Unwinder::default();
    let mut all: Vec<Vec<Frame>> = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let tid = entry?.file_name().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"))?;
        let fields: Vec<u64> = text
            .split_whitespace()
            .filter_map(|f| u64::from_str_radix(f.trim_start_matches("0x"), 16).ok())
            .collect();
        let [.., sp, ip] = fields[..] else { continue };
        let mut bytes = vec![0; 16_384];
        let n = std::fs::File::open(format!("/proc/{pid}/mem"))?.read_at(&mut bytes, sp)?;
        // The frame pointer is not to be had this way; code that needs it shows as cut off.
        let stack = UserStack { pid, ip, sp, bp: 0, bytes: &bytes[..n] };
        let mut frames = Vec::new();
        let begin = Instant::now();
        let cut = unwinder.unwind(&stack, |_, _| None, &mut frames);
        let first = begin.elapsed();
        let begin = Instant::now();
        for _ in 0..1_000 {
            unwinder.unwind(&stack, |_, _| None, &mut frames);
        }
        println!(
            "thread {tid}: {} frames{}, first {first:?}, then {:?}",
            frames.len(),
            if cut { " (cut off)" } else { "" },
            begin.elapsed() / 1_000
        );
        all.push(frames);
    }
    println!("{:?}, {} MiB resident", unwinder.counters(), peak_rss_mib());
    for detail in [Detail::Names, Detail::Lines] {
        let mut symbolizer = Symbolizer::new(unwinder.modules().clone(), detail);
        let begin = Instant::now();
        let rows: Vec<_> =
            all.iter().enumerate().flat_map(|(i, f)| symbolizer.rows(i as u64 + 1, f)).collect();
        let first = begin.elapsed();
        let begin = Instant::now();
        all.iter().for_each(|f| drop(symbolizer.rows(1, f)));
        println!(
            "{detail:?}: {} rows, first {first:?}, again {:?}, {} MiB resident",
            rows.len(),
            begin.elapsed(),
            peak_rss_mib()
        );
        for row in rows.iter().filter(|r| r.stack_id == 1) {
            println!(
                "  {} {}:{}{}",
                row.function,
                row.file,
                row.line,
                if row.inlined { " (inlined)" } else { "" }
            );
        }
    }
    Ok(())
}

fn peak_rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn meta() -> Meta {
    let none = Price { ns: 0.0, min_ns: 0.0, max_ns: 0.0, n: 0 };
    Meta {
        format_version: FORMAT_VERSION,
        tithe_version: env!("CARGO_PKG_VERSION").into(),
        host: String::new(),
        kernel: String::new(),
        cpus: 1,
        pid: 1234,
        exe: "agent_cost".into(),
        cmdline: vec![],
        start_unix_ns: 0,
        start_ns: 0,
        end_ns: None,
        end_reason: None,
        budget: OverheadBudget::Share(0.02),
        tier: Tier::A,
        cost: CostModel {
            hit: BTreeMap::new(),
            pair: BTreeMap::new(),
            concurrency: vec![],
            cold: none,
            behind: None,
            rested: none,
            stamps: BTreeMap::new(),
            sample_base: none,
            sample_per_kib: none,
            switch: none,
            tracepoint: none,
            attach: none,
            detach_delay: none,
            origin: "assumed".into(),
        },
        sample_period_ns: 0,
        kernel_memory_bytes: 0,
        agent: AgentUse::default(),
        measured: None,
        losses: Losses::default(),
        not_observed: vec![],
        warnings: vec![],
        operations: vec![],
        slowest_answer: None,
        private_memory: None,
        forks_held: None,
        calls: None,
        models: None,
        words: Vec::new(),
    }
}
