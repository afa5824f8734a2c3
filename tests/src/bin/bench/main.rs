//! Benchmarks: side by side in one run, interleaved, medians with spread; prints Markdown. `cargo xtask bench` runs it.
//!
//! A benchmark is not a test: nothing fails because a figure is bad. Where an aim is known it stands beside the figure.

mod attach;
mod demo;
mod hit;
mod measure;
mod programs;
mod sampling;
#[path = "../../../tests/prober/support.rs"]
#[expect(dead_code, reason = "the prober's tests use all of it, the benchmarks some")]
mod support;
mod watch;

use anyhow::{Context, Result, bail};

/// A measurement with a title of its own in the document.
struct Cell {
    name: &'static str,
    title: &'static str,
    run: fn(u32) -> Result<String>,
}

const CELLS: &[Cell] = &[
    Cell { name: "hit", title: "Cost of a hit, against an empty program", run: hit::against_empty },
    Cell { name: "programs", title: "Cost of a hit, program by program", run: programs::cost_per_hit },
    Cell { name: "bpftrace", title: "Cost of a hit, against bpftrace", run: hit::against_bpftrace },
    Cell { name: "attach", title: "Attach and detach", run: attach::attach_and_detach },
    Cell { name: "stall", title: "Longest stall of the target", run: attach::stalls },
    Cell { name: "kill", title: "An agent that is killed", run: attach::killed_agent },
    Cell { name: "sqlite", title: "The agent on SQLite at 2 %", run: demo::sqlite },
    Cell { name: "sampling", title: "Cost of a sample, against perf record", run: sampling::against_perf },
];

fn first_line(path: &str, key: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap_or("unknown");
    line.rsplit(": ").next().unwrap_or(line).trim().to_owned()
}

fn main() -> Result<()> {
    let mut only = Vec::new();
    let mut rounds = 7;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} wants a value"));
        match argument.as_str() {
            "--only" => only.push(value()?),
            "--repeat" => rounds = value()?.parse().context("--repeat wants a number")?,
            // For itself: the process that the cell `kill` kills.
            "--hold" => return attach::hold(value()?.parse().context("--hold wants a process")?),
            "--list" => {
                CELLS.iter().for_each(|cell| println!("{:10} {}", cell.name, cell.title));
                return Ok(());
            }
            _ => bail!("no option {argument}; there are --only CELL, --repeat N, --list"),
        }
    }
    if let Some(unknown) = only.iter().find(|name| CELLS.iter().all(|cell| cell.name != **name)) {
        bail!("no cell {unknown}; --list shows them");
    }
    println!("# Benchmarks\n");
    println!(
        "Written by `cargo xtask bench`. Arms take turns in each round; figures are medians (least to most) over n rounds,"
    );
    println!(
        "ratios are taken within a round. Target and agent are pinned to different CPUs where costs per hit are measured.\n"
    );
    println!(
        "- CPU: {}, {} online",
        first_line("/proc/cpuinfo", "model name"),
        std::thread::available_parallelism()?
    );
    println!("- Kernel: {}", first_line("/proc/sys/kernel/osrelease", ""));
    println!(
        "- Hypervisor: {}",
        if first_line("/proc/cpuinfo", "flags").contains("hypervisor") { "yes" } else { "no" }
    );
    for cell in CELLS.iter().filter(|cell| only.is_empty() || only.iter().any(|name| name == cell.name)) {
        eprintln!("{}: {}", cell.name, cell.title);
        let text = (cell.run)(rounds).with_context(|| format!("the cell {} failed", cell.name))?;
        println!("\n## {}\n\n{}", cell.title, text.trim_end());
    }
    Ok(())
}
