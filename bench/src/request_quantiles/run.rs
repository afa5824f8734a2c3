//! One run: the program serves its users, the agent watches one of two functions of the same code, and both are asked.

use super::truth::{Both, Bounded, of_twins, pairs, quantile};
use crate::decades::record;
use crate::durations::{Told, start_before_others};
use crate::scratch;
use anyhow::{Context, Result};
use profiler_core::recording::Charge;
use profiler_core::report::OperationReport;
use profiler_tests::requests::Call;
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::Duration;

/// Orders of the quantiles.
pub const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];
/// All classes together.
pub const ALL: &str = "all";
/// Of the work before the agent comes.
const WARM_UP: Duration = Duration::from_millis(500);
/// Between that and the agent: what nobody watches.
const UNWATCHED: Duration = Duration::from_millis(1500);
/// Users, and their mean pause, us: some 7,000 requests a second, half of them through the function that is watched. One user waits for no
/// other; of eight the slowest requests are those that wait for a lock or a CPU.
pub const USERS: [(u32, u32); 2] = [(1, 50), (8, 1000)];

/// One quantile of a class in one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Name of the class.
    pub class: String,
    /// Order of the quantile.
    pub p: f64,
    /// Pairs of requests in the recorded span.
    pub n: usize,
    /// What the report says; `None`: nothing.
    pub told: Option<Told>,
    /// What is true.
    pub truth: Bounded,
    /// Price of screening a request, ns.
    pub price_ns: f64,
    /// By the program's own clock, which counts all of the traps, ns.
    pub own_ns: f64,
    /// The same before the agent came.
    pub before: Option<Before>,
}

/// A quantile that nobody watched: what is true by the twin is true of the function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Before {
    /// By the program's own clock, ns.
    pub own_ns: f64,
    /// By the twin.
    pub twin: Bounded,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Users of the program.
    pub users: u32,
    /// Each class and quantile.
    pub seen: Vec<Seen>,
    /// Screening's CPU time over the program's own.
    pub screening: f64,
    /// Price of screening a request, ns.
    pub price_ns: f64,
    /// What a request takes more than its twin by the program's own clock: median of the pairs, ns.
    pub added_ns: f64,
    /// The same before the agent came.
    pub added_before_ns: f64,
    /// All that monitoring took over the program's own CPU time.
    pub spent: f64,
    /// Requests that the agent timed over those that the program served in the recorded span.
    pub timed: f64,
    /// Requests that are in no histogram.
    pub untimed: u64,
}

/// A run of so many seconds at a budget in percent, with users as number `made` of the runs has them.
///
/// # Errors
///
/// If the agent fails, or the program's records are not whole.
pub fn one_run(made: usize, budget: f64, seconds: u64) -> Result<Run> {
    let (users, pause_us) = USERS[made % USERS.len()];
    let mut command = Command::new(profiler_tests::program("sqlite-requests"));
    command.args(["--twins", "--pattern", "stationary", "--users", &users.to_string()]);
    // Every run asks for something else.
    command.args(["--think-us", &pause_us.to_string(), "--seed", &(made + 1).to_string()]);
    let mut target = start_before_others(&mut command);
    target.command("run 600");
    std::thread::sleep(WARM_UP);
    let unwatched_ns = profiler_tests::support::monotonic_ns();
    std::thread::sleep(UNWATCHED);
    let before = (unwatched_ns, profiler_tests::support::monotonic_ns());
    let more = ["--operation", "req=serve_request..request_served,class=arg0:str", "--policy", "none"];
    let more = more.into_iter().chain(["--only-named", "--sample-rate", "0"]).map(str::to_owned);
    let (report, recording) = record(target.pid(), budget, seconds, &more.collect::<Vec<_>>())?;
    target.command("stop");
    let scratch = scratch::new()?;
    let path = scratch.path().join("calls");
    let reply = target.command(&format!("dump {}", path.display()));
    let calls = Call::read(&path)?;
    drop(scratch);
    let operation = report.operations.first().context("the report has no operation")?;
    let windows = || recording.operation_windows.iter();
    let first_ns = windows().map(|w| w.start_ns).min().context("the recording has no window")?;
    let last_ns = windows().map(|w| w.end_ns).max().unwrap_or(first_ns);
    let span = (first_ns, last_ns);
    let clock_ns = reply.number("clock_ns") as f64;
    let kinds: Vec<&str> = reply.text("kinds").unwrap_or("").split(',').collect();
    let named = calls.iter().filter(|c| !c.is_twin && (first_ns..last_ns).contains(&c.begin_ns)).count();
    let own_s = report.receipt.target_cpu_s.max(1e-9);
    let all_spent = report.receipt.spent_s.iter().filter(|(charge, _)| **charge != Charge::Bystanders);
    let price_ns = recording.meta.operations.first().map_or(f64::NAN, |meta| meta.screen_ns);
    let recorded = pairs(&calls, span, clock_ns);
    let before = pairs(&calls, before, clock_ns);
    let added = |of: &[Both]| {
        quantile(of.iter().map(|both| both.named_ns - both.twin_ns), 0.5).context("nothing was requested")
    };
    Ok(Run {
        users,
        added_ns: added(&recorded)?,
        added_before_ns: added(&before)?,
        seen: seen(operation, price_ns, &kinds, &recorded, &before),
        screening: operation.screening_s / own_s,
        price_ns,
        spent: all_spent.map(|(_, s)| s).sum::<f64>() / own_s,
        timed: operation.population as f64 / named.max(1) as f64,
        untimed: operation.untimed,
    })
}

/// Each class and all together, each quantile.
fn seen(
    operation: &OperationReport,
    price_ns: f64,
    kinds: &[&str],
    recorded: &[Both],
    before: &[Both],
) -> Vec<Seen> {
    let numbered = kinds.iter().enumerate().map(|(kind, name)| (Some(kind), *name));
    let classes = std::iter::once((None, ALL)).chain(numbered);
    let of = |all: &[Both], kind: Option<usize>| -> Vec<Both> {
        all.iter().filter(|b| kind.is_none_or(|kind| usize::from(b.kind) == kind)).copied().collect()
    };
    let mut found = Vec::new();
    for (kind, name) in classes {
        let quantiles = match kind {
            None => Some(&operation.quantiles_ns),
            Some(_) => operation.classes.iter().find(|c| c.name == name).map(|c| &c.quantiles_ns),
        };
        let (recorded, before) = (of(recorded, kind), of(before, kind));
        for p in QUANTILES {
            let told = quantiles.and_then(|list| list.iter().find(|(order, _)| *order == p));
            let own = quantile(recorded.iter().map(|b| b.named_ns), p);
            let (Some(truth), Some(own_ns)) = (of_twins(&recorded, p), own) else { continue };
            let unwatched = quantile(before.iter().map(|b| b.named_ns), p).zip(of_twins(&before, p));
            found.push(Seen {
                class: name.to_owned(),
                p,
                n: recorded.len(),
                told: told.map(|(_, e)| Told::of(e)),
                truth,
                price_ns,
                own_ns,
                before: unwatched.map(|(own_ns, twin)| Before { own_ns, twin }),
            });
        }
    }
    found
}
