//! The comparison of policies over synthetic full traces, in the form of Mertz and Nunes' Table 3:
//! `cargo run -p profiler-lab --example adapt_table [-- RUNS SECONDS]`.
//!
//! Trace and queue are models (`profiler_lab::workload`, `profiler_core::adapt::replay`), and the table says so. All policies replay the same
//! traces with the same draws, so differences are paired: the interval is that of the mean of the logarithm of the quotient.

use profiler_core::adapt::cycle::CycleEnd;
use profiler_core::adapt::replay::score::{score, score_of, thin};
use profiler_core::adapt::replay::{CostModel, Operation, Run, replay};
use profiler_core::adapt::{AdaptConfig, PolicyKind};
use profiler_core::stats::LEVEL;
use profiler_core::stats::moments::Moments;
use profiler_lab::windowed::windowed;
use profiler_lab::workload::{Pattern, Workload};

/// Name in the table, policy, which errors `tithe` allocates for (`allocation_relative`).
const POLICIES: [(&str, PolicyKind, f64); 6] = [
    ("adp", PolicyKind::Adp, 0.0),
    ("inv", PolicyKind::Inv, 0.0),
    ("uni", PolicyKind::Uni, 0.0),
    ("tithe 0", PolicyKind::Tithe, 0.0),
    ("tithe .5", PolicyKind::Tithe, 0.5),
    ("tithe 1", PolicyKind::Tithe, 1.0),
];

#[derive(Default, Clone)]
struct Row {
    rate: Moments,
    overhead: Moments,
    slower: Moments,
    rmse: Vec<f64>,
    relative: Vec<f64>,
    weighted: Vec<f64>,
    equal: Vec<f64>,
    cycle_rmse: Vec<f64>,
    coverage: Moments,
    shares: Moments,
    cycles: Moments,
    length_s: Moments,
    timeouts: u64,
    unobserved: Moments,
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|a| a.parse::<u64>().ok());
    let (runs, seconds) = (arguments.next().unwrap_or(10), arguments.next().unwrap_or(300) as f64);
    let model = CostModel {
        label: "assumed: 50 us + 35 % of the operation, screening 1 us, 4 servers".to_owned(),
        record_s: 50e-6,
        record_share: 0.35,
        screen_s: 1e-6,
        trap_share: 0.0,
        servers: 4,
        trace_carries_cost: false,
    };
    println!(
        "Synthetic traces of {seconds} s, {runs} runs (other classes each run), cost model {}.",
        model.label
    );
    println!(
        "rmse: plain, per class over the run, against full; rel: of relative errors; wtd: post-stratified; equal: plain at equal counts; cycle: plain, per class \
         in adp's cycles; cover: intervals that hold; mix: largest difference of type shares; quotients are paired, 95 %."
    );
    for classes in [8, 120] {
        for load in [0.0, 1.0] {
            for pattern in Pattern::ALL {
                table(classes, load, pattern, runs, seconds, &model);
            }
        }
    }
}

fn table(classes: usize, load: f64, pattern: Pattern, runs: u64, seconds: f64, model: &CostModel) {
    let mut rows = vec![Row::default(); POLICIES.len()];
    for seed in 0..runs {
        let trace = Workload::new(classes, pattern, load, 1_000 + seed).trace(seconds, seed);
        let all: Vec<Run> = POLICIES
            .iter()
            .map(|&(_, kind, allocation_relative)| {
                let config = AdaptConfig { allocation_relative, ..AdaptConfig::default() };
                replay(&trace, kind, &config, model, None, seed).expect("generated traces replay")
            })
            .collect();
        let least = all.iter().map(Run::sample).min().unwrap_or(0);
        for (row, run) in rows.iter_mut().zip(&all) {
            row.add(&trace, run, least, &all[0].cycle_ends_s, seed);
        }
    }
    println!("\n{classes} classes, measure rises with load by {load}, {pattern:?}");
    println!(
        "policy    rate %  cpu s/s  slower %   rmse  rel %    wtd  equal  cycle  cover %  mix %  cycles  mean s  timeouts  unobserved"
    );
    for ((name, ..), row) in POLICIES.iter().zip(&rows) {
        let mean = |v: &[f64]| v.iter().copied().collect::<Moments>().mean();
        println!(
            "{:8} {:7.1} {:8.3} {:9.1} {:6.1} {:6.1} {:6.1} {:6.1} {:6.1} {:8.1} {:6.2} {:7.1} {:7.1} {:9} {:11.1}",
            name,
            100.0 * row.rate.mean(),
            row.overhead.mean(),
            100.0 * row.slower.mean(),
            mean(&row.rmse),
            100.0 * mean(&row.relative),
            mean(&row.weighted),
            mean(&row.equal),
            mean(&row.cycle_rmse),
            100.0 * row.coverage.mean(),
            100.0 * row.shares.mean(),
            row.cycles.mean(),
            row.length_s.mean(),
            row.timeouts,
            row.unobserved.mean(),
        );
    }
    for (name, a, b) in [
        ("adp/inv", 0, 1),
        ("adp/uni", 0, 2),
        ("tithe 0/adp", 3, 0),
        ("tithe .5/adp", 4, 0),
        ("tithe 1/adp", 5, 0),
    ] {
        println!(
            "  {name}: rmse {}, rel {}, wtd {}, equal {}, cycle {}",
            quotient(&rows[a].rmse, &rows[b].rmse),
            quotient(&rows[a].relative, &rows[b].relative),
            quotient(&rows[a].weighted, &rows[b].weighted),
            quotient(&rows[a].equal, &rows[b].equal),
            quotient(&rows[a].cycle_rmse, &rows[b].cycle_rmse),
        );
    }
}

impl Row {
    fn add(&mut self, trace: &[Operation], run: &Run, least: u64, ends_s: &[f64], seed: u64) {
        let s = score(trace, run).expect("the run is of this trace");
        self.rate.push(run.average_rate());
        self.overhead.push(run.overhead());
        self.slower.push(run.mean_response_s / run.bare_response_s - 1.0);
        self.rmse.push(s.rmse_plain);
        self.relative.push(s.relative_plain);
        self.weighted.push(s.rmse_weighted);
        let thinned = thin(&run.recorded, least, seed ^ 0xe9_0a1);
        self.equal.push(score_of(trace, &thinned, None).expect("of this trace").rmse_plain);
        self.cycle_rmse.push(windowed(trace, &run.recorded, ends_s).0);
        self.coverage.push(s.coverage);
        self.shares.push(s.largest_share_difference);
        self.cycles.push(run.cycles.len() as f64);
        run.cycles.iter().for_each(|c| self.length_s.push(c.length_s));
        self.timeouts += run.cycles.iter().filter(|c| c.end == CycleEnd::Timeout).count() as u64;
        self.unobserved.push(s.unobserved.len() as f64);
    }
}

/// Geometric mean of paired quotients with its interval.
fn quotient(a: &[f64], b: &[f64]) -> String {
    let logs: Moments = a.iter().zip(b).map(|(x, y)| (x / y).ln()).collect();
    match logs.mean_interval(LEVEL) {
        Some(i) => format!("{:.2} [{:.2}, {:.2}]", logs.mean().exp(), i.low.exp(), i.high.exp()),
        None => format!("{:.2}", logs.mean().exp()),
    }
}
