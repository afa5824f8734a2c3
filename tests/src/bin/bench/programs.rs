//! Nanoseconds per hit of each program, and of what it may be asked to do besides, against an empty program on the
//! same kind of link: in this process, in batches of a millisecond that take turns.

use crate::measure::Table;
use crate::support::*;
use anyhow::Result;
use profiler_core::class::ClassId;
use profiler_user::prober::{
    ClassControl, ClassKind, FLAG_BY_THREAD, FLAG_NO_QUOTA, Kernel, KernelOptions, LinkKind, Settings, Site,
    Tier,
};
use std::time::Instant;

function!(p0);
function!(p1);
function!(p2);
function!(p3);
function!(p4);
function!(p5);
function!(p6);

const FUNCTIONS: [Function; 7] = [p0, p1, p2, p3, p4, p5, p6];
/// Calls in one batch, about a millisecond: most batches see no interruption.
const CALLS: u64 = 1_000;
const BATCHES: usize = 400;

fn ns_per_call(f: Function) -> f64 {
    let begin = Instant::now();
    for _ in 0..CALLS {
        f.call(None, 0);
    }
    begin.elapsed().as_nanos() as f64 / CALLS as f64
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() as f64 * q) as usize]
}

struct Case<'a> {
    name: &'static str,
    kernel: &'a Kernel,
    kind: LinkKind,
    exit: Option<fn(Function, ClassId) -> Site>,
    control: ClassControl,
}

/// All cases are attached at once, each to a function of its own, and called in turns.
fn measure(table: &mut Table, cases: &[Case<'_>], calls: u64) {
    let mut links = Vec::new();
    for (i, (case, f)) in cases.iter().zip(FUNCTIONS).enumerate() {
        let class = ClassId(100 + i as u32);
        case.kernel.classes().configure(class, case.control);
        case.kernel.classes().set_quota(class, i64::MAX);
        let mut sites = vec![f.entry(class)];
        sites.extend(case.exit.map(|exit| exit(f, class)));
        links.push(case.kernel.attach(&group(case.kind, sites)).unwrap());
    }
    let mut times = vec![Vec::new(); cases.len()];
    for batch in 0..BATCHES / calls as usize {
        for (f, times) in FUNCTIONS.iter().zip(&mut times) {
            let ns = ns_per_call(*f);
            if batch > 2 {
                times.push(ns);
            }
        }
    }
    let mut first = (0.0, 0.0);
    for (case, times) in cases.iter().zip(&mut times) {
        let (low, median) = (quantile(times, 0.1), quantile(times, 0.5));
        if first.1 == 0.0 {
            first = (low, median);
        }
        table.row(&[
            case.name.to_owned(),
            format!("{median:.0}"),
            format!("{low:.0}"),
            format!("{:.3}", median / first.1),
            format!("{:.3}", low / first.0),
            times.len().to_string(),
        ]);
    }
}

/// All programs, on function entries `push`.
pub fn cost_per_hit(_: u32) -> Result<String> {
    profiler_tests::support::pin(0, 1);
    let mut table = Table::new(&[
        "program",
        "ns, median",
        "ns, lowest tenth",
        "median over the first",
        "lowest tenth over it",
        "batches",
    ]);
    let best = kernel(None);
    let d = Kernel::load(&KernelOptions { forced_tier: Some(Tier::D), ..KernelOptions::default() }).unwrap();
    let lease = best.classes().lease_histogram().unwrap();
    let quota = |kind| ClassControl { flags: 0, ..ungated(kind) };
    let histogram = ClassControl { histogram: lease.first_slot(), flags: 0, ..ungated(ClassKind::Latency) };
    let costed = ClassControl { hit_cost_ns: 700, return_cost_ns: 500, own_cost_ns: 200, ..histogram };
    let case = |name, kind, control| Case { name, kernel: &best, kind, exit: None, control };
    let pair = |name, exit, control| Case {
        name,
        kernel: &best,
        kind: LinkKind::ExitPair,
        exit: Some(exit),
        control,
    };
    measure(
        &mut table,
        &[
            case("multi, empty", LinkKind::Empty, ungated(ClassKind::Count)),
            case("multi, count, no quota", LinkKind::Count, ungated(ClassKind::Count)),
            case("multi, count", LinkKind::Count, quota(ClassKind::Count)),
            case(
                "multi, count, cost kept",
                LinkKind::Count,
                ClassControl { hit_cost_ns: 700, ..quota(ClassKind::Count) },
            ),
            case(
                "multi, count, by thread",
                LinkKind::Count,
                ClassControl { flags: FLAG_BY_THREAD, ..quota(ClassKind::Count) },
            ),
            case(
                "multi, count, gated",
                LinkKind::Count,
                ClassControl { flags: FLAG_NO_QUOTA, ..ClassControl::new(ClassKind::Off) },
            ),
            case("multi, record, ring full", LinkKind::Record, quota(ClassKind::Record)),
        ],
        1,
    );
    measure(
        &mut table,
        &[
            case("session, empty", LinkKind::EmptyReturnPair, ungated(ClassKind::Count)),
            case("session, latency", LinkKind::ReturnPair, quota(ClassKind::Latency)),
            case("session, latency, histogram", LinkKind::ReturnPair, histogram),
            case("session, latency, histogram, cost kept", LinkKind::ReturnPair, costed),
            case("session, gated", LinkKind::ReturnPair, ClassControl::new(ClassKind::Off)),
        ],
        1,
    );
    // Return addresses are kept for samples.
    best.classes().set_settings(Settings { sample_period_ns: 10_000_000, ..best.classes().settings() });
    measure(
        &mut table,
        &[
            case("session, empty", LinkKind::EmptyReturnPair, ungated(ClassKind::Count)),
            case("session, latency, while sampling", LinkKind::ReturnPair, quota(ClassKind::Latency)),
            case("session, latency, histogram, while sampling", LinkKind::ReturnPair, histogram),
        ],
        1,
    );
    best.classes().set_settings(Settings { sample_period_ns: 0, ..best.classes().settings() });
    measure(
        &mut table,
        &[
            pair("exit pair at ret, latency", Function::exit, histogram),
            pair("exit pair at pop, latency", Function::early_exit, histogram),
        ],
        10,
    );
    let case = |name, kind, control| Case { name, kernel: &d, kind, exit: None, control };
    measure(
        &mut table,
        &[
            case("perf uprobe, empty", LinkKind::Empty, ungated(ClassKind::Count)),
            case("perf uprobe, count", LinkKind::Count, quota(ClassKind::Count)),
        ],
        1,
    );
    Ok(table.to_string())
}
