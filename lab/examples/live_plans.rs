//! How long a run's event loop waits for a plan, docs/benchmarks-planner.md: `cargo run -p profiler-lab --example live_plans`.
//!
//! The whole of `planning::make`: the problem, the solver under its limit on work, single threads, reasons and rows of the recording.

use profiler_core::burst::BurstPrices;
use profiler_core::class::{ClassId, ExitMode, RecordKind};
use profiler_core::clients::trace::planning::make;
use profiler_core::clients::trace::problem::{Known, Settings};
use profiler_core::clients::trace::rate::{Rate, Rates};
use profiler_core::clients::trace::spread::Spreads;
use profiler_core::clients::trace::timed::TimedClasses;
use profiler_core::controller::PlanShares;
use profiler_core::cost::{Price, Rests};
use profiler_core::ledger::{Ledger, Spread, ThreadBounds};
use profiler_core::plan::Objective;
use profiler_core::run::arbiter::{Arbiter, Claims};
use profiler_core::run::links::Role;
use profiler_core::run::view::{
    ClassPrices, ClassTraits, ClassView, LinkView, PointsView, SamplesView, TargetView, View,
};
use profiler_core::units::OverheadBudget;
use std::time::Instant;

/// Kinds of targets.
const KINDS: [&str; 5] = ["equal", "nearly equal", "log-uniform", "cheap", "heavy for one thread"];

fn class(id: u32, hit_ns: f64, sampled_ns: u64) -> ClassView {
    let price = Price::fixed(0.0);
    let traits = ClassTraits {
        kind: RecordKind::Count,
        exit: ExitMode::None,
        weight: 1.0,
        role: Role::None,
        module: 0,
        named: false,
        must: false,
        apart: false,
        stamps_of: None,
        held_by_plan: false,
        dormant: false,
        refused: false,
    };
    ClassView {
        id: ClassId(id),
        link: LinkView::Off,
        quota: 0,
        start_ns: 0,
        attempted: 0,
        ends: 0,
        timed_ns: 0,
        bystanders: 0,
        traits,
        prices: ClassPrices {
            hit: Price::fixed(hit_ns),
            exit: price,
            cold: price,
            stamps: price,
            rests: Rests::default(),
        },
        samples: 1 + sampled_ns / 10_000_000,
        sampled_ns,
        points: PointsView::default(),
    }
}

/// `n` functions of a target of one CPU, and their calls/s.
fn target(kind: &str, n: u32) -> (View, Rates) {
    let part = |i: u32| f64::from(i) / f64::from(n.max(2) - 1);
    let of = |i: u32| match kind {
        "equal" => (1e5, 700.0),
        "nearly equal" => (1e5 * (1.0 + 1e-3 * part(i)), 700.0),
        // In an order that is not that of the rates.
        "log-uniform" => {
            (10f64.powf(1.0 + 5.5 * (f64::from(i) * 0.618_034).fract()), 500.0 + 1_500.0 * part(i))
        }
        "cheap" => (1.0 + part(i), 700.0),
        _ => (2_000.0, 700.0),
    };
    let each_ns = 1_000_000_000 / u64::from(n);
    let view = View {
        now_ns: 7,
        classes: (0..n).map(|i| class(i, of(i).1, each_ns)).collect(),
        target: TargetView {
            cpu_ns: 1_000_000_000,
            own_cpu: 1.0,
            cpus: 4,
            working_threads: 2,
            is_held: false,
        },
        samples: SamplesView {
            n: 100,
            cpu_ns: 1_000_000_000,
            rate_hz: 99.0,
            price_s: 10e-6,
            ..SamplesView::default()
        },
        ..View::default()
    };
    (view, (0..n).map(|i| (ClassId(i), Rate::seen(of(i).0, 1_000))).collect())
}

fn main() {
    let mut ledger = Ledger::new(OverheadBudget::Share(0.02), 0);
    for i in 1..=20 {
        ledger.close_interval(i * 100_000_000, 100_000_000);
    }
    let prices =
        BurstPrices { attach_s: 60e-6, delay_s: 8e-3, fresh_delay_s: 100e-6, fresh_s: 5e-3, cpus: 4 };
    println!("| objective | functions | n | ms, median (worst of 7) | gap | of it exact counts |");
    println!("|---|---|---|---|---|---|");
    for objective in [Objective::Precision, Objective::Information] {
        for kind in KINDS {
            for n in [20, 100, 500, 5_000] {
                let (view, rates) = target(kind, n);
                let mut spread = Spread::default();
                (0..n).for_each(|i| spread.note(ClassId(i), 1.0, &[(7, 1_000), (8, 10)]));
                // Thread 7 may lose next to nothing.
                let bounds = ThreadBounds::new(&spread, &[(7, 0.002, 0.0), (8, 1.0, 0.0)], 0.02);
                let names: Vec<String> = (0..n).map(|i| format!("f{i}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let known = Known {
                    view: &view,
                    names: &names,
                    arbiter: Arbiter::new(&ledger, 1.0),
                    claims: &Claims::default(),
                    operations: false,
                    bounds: (kind == KINDS[4]).then_some(&bounds),
                    settings: &Settings {
                        only_named: false,
                        fixed_rate_hz: None,
                        slow_links: false,
                        links_wait: true,
                        prices,
                        objective,
                        horizon_s: 60.0,
                    },
                    shares: PlanShares::FIRST,
                    timed: &TimedClasses::default(),
                    spreads: &Spreads::default(),
                    hung: &[],
                };
                let mut last = None;
                let mut times: Vec<f64> = (0..7)
                    .map(|_| {
                        let start = Instant::now();
                        last = make(&known, &rates, 1).ok();
                        start.elapsed().as_secs_f64() * 1e3
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                let Some(planned) = last else { panic!("{kind}, {n}: no plan") };
                println!(
                    "| {} | {kind} | {n} | {:.1} ({:.1}) | {:.4} | {:.4} |",
                    objective.name(),
                    times[3],
                    times[6],
                    planned.plan.gap,
                    planned.plan.exact_counts
                );
            }
        }
    }
}
