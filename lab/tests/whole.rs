//! Whole runs without a kernel: the real run with every client, against simulated targets (`profiler_lab::whole`).
//!
//! More of them: `cargo run --release -p profiler-lab --bin whole -- --runs 10000`, which says how to repeat one.

use profiler_core::class::ClassId;
use profiler_lab::whole::tenth::TenthSecond;
use profiler_lab::whole::world::START_NS;
use profiler_lab::whole::{Judgement, named, random, simulate, simulate_with};
use std::sync::mpsc::channel;

/// Random runs of all tests together.
const RUNS: u64 = 200;

fn judge(judgement: &Judgement) {
    let Judgement { name, seed, faults, .. } = judgement;
    assert!(faults.is_empty(), "{name} (seed {seed}):\n{}", faults.join("\n"));
}

fn random_runs(part: u64) {
    let of = RUNS / 4;
    (part * of..(part + 1) * of).for_each(|seed| judge(&simulate(&random::scenario(seed))));
}

#[test]
fn targets_by_name() {
    let scenarios = named::scenarios();
    assert!(scenarios.len() >= 20);
    let judgements: Vec<Judgement> = scenarios.iter().map(simulate).collect();
    judgements.iter().for_each(judge);
    // They are worth looking at: plans are made, windows open, quotas are used up, the overhead is measured.
    let windows: u64 = judgements.iter().map(|j| j.counts[1]).sum();
    let trips: u64 = judgements.iter().map(|j| j.counts[2]).sum();
    assert!(judgements.iter().all(|j| j.counts[0] > 0), "each has a plan");
    assert!(windows > 2_000 && trips > 500, "{windows} windows, {trips} trips");
    assert!(judgements.iter().any(|j| j.is_measured));
}

#[test]
fn random_targets_first_quarter() {
    random_runs(0);
}

#[test]
fn random_targets_second_quarter() {
    random_runs(1);
}

#[test]
fn random_targets_third_quarter() {
    random_runs(2);
}

#[test]
fn random_targets_last_quarter() {
    random_runs(3);
}

/// The same seed gives the same commands at the same times.
#[test]
fn a_run_can_be_repeated() {
    let hash = |seed| simulate(&random::scenario(seed)).hash;
    for seed in 300..310 {
        assert_eq!(hash(seed), hash(seed), "seed {seed}");
    }
    assert_ne!(hash(300), hash(301));
}

/// The example of docs/example-client.md.
#[test]
fn an_activity_counts_a_function_in_every_tenth_second() {
    let mut scenario = named::scenarios().swap_remove(0);
    let function = &mut scenario.target.functions[20];
    function.counts = true;
    let hz = function.rate_hz;
    let (sender, rates) = channel();
    let judgement = simulate_with(&scenario, |run, world| {
        world.find_counting();
        run.add_activity(Box::new(TenthSecond::new(ClassId(0), START_NS, sender)));
    });
    judge(&judgement);
    let rates: Vec<f64> = rates.iter().collect();
    assert!((5..=7).contains(&rates.len()), "{rates:?}");
    assert!(rates.iter().all(|rate| (rate / hz - 1.0).abs() < 0.2), "{rates:?}, {hz} Hz");
}
