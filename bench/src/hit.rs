//! What a hit costs the target: CPU time of a call with the probe less that of a call without, in the same round.

use crate::measure::{Series, Table, interleave};
use crate::watch::{self, Bpftrace, Ours};
use anyhow::{Result, ensure};
use profiler_core::class::Tier;
use profiler_tests::support::Target;
use profiler_user::prober::Kernel;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Calls of one run.
pub const CALLS: u64 = 100_000;
/// Between two looks into a ring, which holds twice what comes meanwhile.
const PAUSE: Duration = Duration::from_millis(1);
const STEPPED: &str = "sub (single-stepped)";

/// CPU nanoseconds of a call, after a short warm-up.
pub fn call_ns(target: &mut Target, function: &str, calls: u64) -> f64 {
    target.call(function, calls / 20, 1);
    target.call(function, calls, 1).cpu_ns_per_call()
}

/// One row: an arm's cost, and its ratio to another's.
fn row(table: &mut Table, name: &str, cost: &Series, against: Option<(&Series, f64)>) {
    let (ratio, wanted) = match against {
        Some((other, limit)) => (cost.over(other).show(3), format!("<= {limit}")),
        None => (String::new(), String::new()),
    };
    table.row(&[name.to_owned(), cost.show(0), ratio, wanted, cost.n().to_string()]);
}

/// Our programs against empty programs on links of the same kind.
pub fn against_empty(rounds: u32) -> Result<String> {
    let kernel = watch::kernel(Tier::A)?;
    let mut target = Target::start("calls");
    target.pin(1);
    profiler_tests::support::pin(0, 0);
    let mut text = String::new();
    for (title, function, skip) in [
        ("push", "entry_push", 0),
        ("nop5 (optimised uprobe)", "entry_nop5", 0),
        ("sub (single-stepped)", "entry_sub", 0),
    ] {
        let calls = if function == "entry_sub" { CALLS / 5 } else { CALLS };
        let place = watch::place(&mut target, function, skip);
        let arms = [None, Some(Ours::Empty), Some(Ours::Count), Some(Ours::EmptyPair), Some(Ours::Latency)];
        let series = interleave(rounds, arms.len(), |arm| {
            let link = match arms[arm] {
                Some(what) => Some(watch::attach(&kernel, &target, what, std::slice::from_ref(&place))?),
                None => None,
            };
            let ns = call_ns(&mut target, function, calls);
            drop(link);
            anyhow::Ok(ns)
        })?;
        let cost: Vec<Series> = series[1..].iter().map(|arm| arm.less(&series[0])).collect();
        let mut table = Table::new(&["on", "ns per call", "over the empty program", "aim", "n"]);
        row(&mut table, &format!("{title}: empty"), &cost[0], None);
        row(&mut table, &format!("{title}: count"), &cost[1], Some((&cost[0], 1.05)));
        row(&mut table, &format!("{title}: empty pair (session)"), &cost[2], None);
        row(&mut table, &format!("{title}: latency (session)"), &cost[3], Some((&cost[2], 1.20)));
        writeln!(text, "{table}")?;
    }
    target.assert_text_original();
    Ok(text)
}

/// A step against a count. Somebody reads the steps meanwhile, on the other CPU, as the agent does.
pub fn steps(rounds: u32) -> Result<String> {
    let kernel = watch::kernel(Tier::A)?;
    let mut reader = kernel.step_reader()?;
    let rows = [
        ("push", "entry_push", 1.35),
        ("nop5 (optimised uprobe)", "entry_nop5", 1.5),
        (STEPPED, "entry_sub", 1.35),
    ];
    let arms = [("count", Ours::Count), ("step", Ours::Step)];
    let (table, read) = while_read(
        || reader.drain(usize::MAX, |_| {}),
        |target| one_against_other(rounds, &kernel, target, rows, arms),
    )?;
    let taken = 3 * u64::from(rounds) * (CALLS + CALLS / 20);
    ensure!(read > taken / 2, "{read} steps were read; the ring was full for the rest");
    Ok(format!("{table}\n{read} steps were read.\n"))
}

/// A recorded call with its context against one without, likewise.
pub fn records(rounds: u32) -> Result<String> {
    let kernel = watch::kernel(Tier::A)?;
    let mut reader = kernel.call_reader()?;
    let rows = [
        ("push", "entry_push", 1.15),
        ("nop5 (optimised uprobe)", "entry_nop5", 1.15),
        (STEPPED, "entry_sub", 1.15),
    ];
    let arms = [("record", Ours::Record), ("with its context", Ours::RecordContext)];
    let (table, read) = while_read(
        || reader.drain(usize::MAX, |_| {}),
        |target| one_against_other(rounds, &kernel, target, rows, arms),
    )?;
    let taken = 6 * u64::from(rounds) * (CALLS + CALLS / 20);
    ensure!(read > taken / 2, "{read} records were read; the ring was full for the rest");
    Ok(format!("{table}\n{read} records were read.\n"))
}

/// Measures on CPU 1 while a ring is drained on the other; what was read from it.
pub fn while_read(
    mut drain: impl FnMut() -> usize + Send,
    measure: impl FnOnce(&mut Target) -> Result<Table>,
) -> Result<(Table, u64)> {
    let mut target = Target::start("calls");
    target.pin(1);
    profiler_tests::support::pin(0, 0);
    let (read, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let table = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                read.fetch_add(drain() as u64, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        });
        let table = measure(&mut target);
        over.store(true, Ordering::Relaxed);
        table
    })?;
    target.assert_text_original();
    Ok((table, read.into_inner()))
}

/// One way of watching against the next one, on each kind of site; with the limit that is aimed at.
fn one_against_other(
    rounds: u32,
    kernel: &Kernel,
    target: &mut Target,
    rows: [(&str, &str, f64); 3],
    [first, second]: [(&str, Ours); 2],
) -> Result<Table> {
    let over = format!("over a {}", first.0);
    let mut table = Table::new(&["on", "ns per call", &over, "aim", "n"]);
    for (title, function, limit) in rows {
        let place = watch::place(target, function, 0);
        let arms = [None, Some(first.1), Some(second.1)];
        let series = interleave(rounds, arms.len(), |arm| {
            let link = match arms[arm] {
                Some(what) => Some(watch::attach(kernel, target, what, std::slice::from_ref(&place))?),
                None => None,
            };
            let ns = call_ns(target, function, CALLS);
            drop(link);
            anyhow::Ok(ns)
        })?;
        let [one, other] = [1, 2].map(|arm| series[arm].less(&series[0]));
        row(&mut table, &format!("{title}: {}", first.0), &one, None);
        row(&mut table, &format!("{title}: {}", second.0), &other, Some((&one, limit)));
    }
    Ok(table)
}

const BPFTRACE_COUNT: &str = "uprobe:F { @ = count(); }";
const BPFTRACE_LATENCY: &str = "uprobe:F { @start[tid] = nsecs; } \
    uretprobe:F /@start[tid]/ { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }";

/// The same function by us (at the site that we choose) and by bpftrace (at its first instruction).
pub fn against_bpftrace(rounds: u32) -> Result<String> {
    let Some(version) = Bpftrace::version() else {
        return Ok("SKIP: bpftrace is not installed\n".to_owned());
    };
    let kernel = watch::kernel(Tier::A)?;
    let mut target = Target::start("calls");
    target.pin(1);
    profiler_tests::support::pin(0, 0);
    let mut table = Table::new(&["function", "ours, ns per call", &version, "ratio", "aim", "n"]);
    for (title, function, skip, calls, limits) in [
        ("push", "entry_push", 0, 100_000, [1.0, 0.8]),
        ("endbr64; push", "entry_endbr_push", 4, 20_000, [0.2, 0.2]),
    ] {
        let place = watch::place(&mut target, function, skip);
        for (what, body, limit) in
            [(Ours::Count, BPFTRACE_COUNT, limits[0]), (Ours::Latency, BPFTRACE_LATENCY, limits[1])]
        {
            let series = interleave(rounds, 3, |arm| {
                let ours = if arm == 1 {
                    Some(watch::attach(&kernel, &target, what, std::slice::from_ref(&place))?)
                } else {
                    None
                };
                let theirs = if arm == 2 {
                    let path = profiler_tests::program("calls");
                    Some(Bpftrace::start(&mut target, &path, function, body)?)
                } else {
                    None
                };
                let ns = call_ns(&mut target, function, calls);
                drop((ours, theirs));
                std::thread::sleep(Duration::from_millis(50));
                anyhow::Ok(ns)
            })?;
            let ours = series[1].less(&series[0]);
            let theirs = series[2].less(&series[0]);
            table.row(&[
                format!("{title}: {what:?}").to_lowercase(),
                ours.show(0),
                theirs.show(0),
                ours.over(&theirs).show(3),
                format!("<= {limit}"),
                ours.n().to_string(),
            ]);
        }
    }
    target.assert_text_original();
    Ok(table.to_string())
}
