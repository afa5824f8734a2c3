//! Benchmarks: side by side in one run, interleaved, medians with spread; prints Markdown. `cargo xtask bench` runs it.
//!
//! A benchmark is not a test: nothing fails because a figure is bad. Where an aim is known it stands beside the figure.

mod against;
mod attach;
mod bystanders;
mod coverage;
mod decades;
mod demo;
mod dilation;
mod durations;
mod explosion;
mod governor;
mod hit;
mod measure;
mod operations;
mod overhead;
mod request_quantiles;
mod sampling;
mod scratch;
mod soak;
mod watch;
mod ways;
mod words;
mod worth;

use anyhow::{Context, Result, bail};

/// A measurement with a title of its own in the document.
struct Cell {
    name: &'static str,
    title: &'static str,
    run: fn(&Options) -> Result<String>,
}

/// What the command line asks of the cells.
struct Options {
    /// Repetitions of each arm.
    rounds: u32,
    /// The number of them that was asked for.
    repeat: Option<u32>,
    /// The part of a cell that is wanted (`--only CELL:PART`).
    part: Option<String>,
    /// Length of a run of the cells that watch a whole run, s; each has its own default.
    seconds: Option<u64>,
    /// Its budgets, percent, in place of each target's own.
    budgets: Option<Vec<f64>>,
    /// Forget the rounds that are finished.
    fresh: bool,
    /// Judge kept recordings by the reports that this build makes of them.
    again: bool,
}

impl Options {
    /// Length of a run, s.
    fn seconds_or(&self, default: u64) -> u64 {
        self.seconds.unwrap_or(default)
    }
}

const CELLS: &[Cell] = &[
    Cell {
        name: "hit",
        title: "Cost of a hit, against an empty program",
        run: |o| hit::against_empty(o.rounds),
    },
    Cell {
        name: "bpftrace",
        title: "Cost of a hit, against bpftrace",
        run: |o| hit::against_bpftrace(o.rounds),
    },
    Cell { name: "step", title: "Cost of a step, against a count", run: |o| hit::steps(o.rounds) },
    Cell {
        name: "record",
        title: "Cost of a recorded call with what the kernel counted inside it, against one without",
        run: |o| hit::records(o.rounds),
    },
    Cell { name: "words", title: "Words of the target", run: |o| words::words(o.rounds) },
    Cell { name: "ways", title: "Cost of a timed call, by way", run: ways::ways },
    Cell { name: "attach", title: "Attach and detach", run: |o| attach::attach_and_detach(o.rounds) },
    Cell { name: "stall", title: "Longest stall of the target", run: |o| attach::stalls(o.rounds) },
    Cell { name: "kill", title: "An agent that is killed", run: |o| attach::killed_agent(o.rounds) },
    Cell { name: "stop", title: "An agent that is stopped", run: |o| attach::stopped_agent(o.rounds) },
    Cell { name: "bystanders", title: "What others pay for attaching", run: bystanders::bystanders },
    Cell { name: "sqlite", title: "The agent on SQLite at 2 %", run: |o| demo::sqlite(o.rounds) },
    Cell { name: "governor", title: "The budget, whatever the target does", run: governor::governor },
    Cell { name: "survey", title: "Survey of 100 functions over 7 decades", run: worth::survey },
    Cell { name: "budget-use", title: "What the budget is used for", run: worth::budget_use },
    Cell {
        name: "dilation",
        title: "Rates of functions that slow the target when watched",
        run: dilation::dilation,
    },
    Cell { name: "coverage", title: "Interval coverage on real runs", run: coverage::coverage },
    Cell { name: "durations", title: "Durations whose truth is known", run: durations::durations },
    Cell { name: "explosion", title: "A function that explodes", run: |o| explosion::explosion(o.rounds) },
    Cell { name: "operations", title: "Policies that sample operations", run: operations::operations },
    Cell {
        name: "overhead",
        title: "The measured overhead against the target's own",
        run: overhead::overhead,
    },
    Cell {
        name: "quantiles",
        title: "Quantiles per class of request",
        run: request_quantiles::request_quantiles,
    },
    Cell {
        name: "sampling",
        title: "Cost of a sample, against perf record",
        run: |o| sampling::against_perf(o.rounds),
    },
    Cell { name: "against", title: "This build against another", run: against::against },
    Cell { name: "soak", title: "Twenty minutes", run: soak::soak },
];

/// Too long, or in want of a part, to be run without being asked for by name.
const ONLY_BY_NAME: [&str; 5] = ["against", "durations", "overhead", "quantiles", "soak"];

fn first_line(path: &str, key: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap_or("unknown");
    line.rsplit(": ").next().unwrap_or(line).trim().to_owned()
}

/// How, and on which machine.
fn print_head() -> Result<()> {
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
    Ok(())
}

fn main() -> Result<()> {
    let mut only = Vec::new();
    let mut options = Options {
        rounds: 7,
        repeat: None,
        part: None,
        seconds: None,
        budgets: None,
        fresh: false,
        again: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} wants a value"));
        match argument.as_str() {
            "--only" => only.push(value()?),
            "--repeat" => {
                options.rounds = value()?.parse().context("--repeat wants a number")?;
                options.repeat = Some(options.rounds);
            }
            "--seconds" => {
                options.seconds = Some(value()?.parse().context("--seconds wants a number")?);
            }
            "--budgets" => {
                let list: Result<_, _> = value()?.split(',').map(str::parse).collect();
                options.budgets = Some(list.context("--budgets wants percents, as in 1,2")?);
            }
            "--fresh" => options.fresh = true,
            "--again" => options.again = true,
            // For itself: the process that the cell `kill` kills.
            "--hold" => return attach::hold(value()?.parse().context("--hold wants a process")?),
            "--list" => {
                CELLS.iter().for_each(|cell| println!("{:10} {}", cell.name, cell.title));
                governor::parts().for_each(|part| println!("governor:{part}"));
                durations::parts().for_each(|part| println!("durations:{part}"));
                operations::parts().for_each(|part| println!("operations:{part}"));
                println!("ways:{}", ways::MEAN);
                return Ok(());
            }
            _ => bail!(
                "no option {argument}; there are --only CELL[:PART], --repeat N, --seconds N, --budgets 1,2, --fresh, --again, --list"
            ),
        }
    }
    let only: Vec<(&str, Option<&str>)> = only
        .iter()
        .map(|name| name.split_once(':').map_or((&**name, None), |(cell, part)| (cell, Some(part))))
        .collect();
    if let Some((unknown, _)) = only.iter().find(|(name, _)| CELLS.iter().all(|cell| cell.name != *name)) {
        bail!("no cell {unknown}; --list shows them");
    }
    print_head()?;
    let all = CELLS.iter().map(|cell| (cell, None));
    let chosen: Vec<(&Cell, Option<&str>)> = if only.is_empty() {
        all.filter(|(cell, _)| !ONLY_BY_NAME.contains(&cell.name)).collect()
    } else {
        all.flat_map(|(cell, _)| {
            only.iter().filter(|(name, _)| *name == cell.name).map(move |(_, part)| (cell, *part))
        })
        .collect()
    };
    for (cell, part) in chosen {
        eprintln!("{}: {}", cell.name, cell.title);
        options.part = part.map(str::to_owned);
        let text = (cell.run)(&options).with_context(|| format!("the cell {} failed", cell.name))?;
        println!("\n## {}\n\n{}", cell.title, text.trim_end());
    }
    Ok(())
}
