//! Time of the planner: `cargo bench -p profiler-lab --bench planner`.

use divan::Bencher;
use profiler_core::plan::{Options, Problem, Strategy, solve};
use profiler_lab::problems;

fn main() {
    divan::main();
}

/// Solves instances with new seeds each time.
fn run(bencher: Bencher<'_, '_>, strategy: Strategy, make: impl Fn(u64) -> Problem + Sync) {
    let seed = std::sync::atomic::AtomicU64::new(0);
    bencher
        .with_inputs(|| make(seed.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
        .bench_values(|problem| solve(&problem, strategy, &Options::default()));
}

#[divan::bench(args = [10, 20, 40, 100, 1_000, 10_000, 100_000], sample_count = 40)]
fn certified_heavy_tailed(bencher: Bencher<'_, '_>, n: usize) {
    run(bencher, Strategy::Certified, |seed| problems::heavy_tailed(n, seed));
}

#[divan::bench(args = [1_000_000], sample_count = 5, sample_size = 1)]
fn certified_million(bencher: Bencher<'_, '_>, n: usize) {
    run(bencher, Strategy::Certified, |seed| problems::heavy_tailed(n, seed));
}

#[divan::bench(args = [40, 1_000, 10_000, 100_000, 1_000_000], sample_count = 10)]
fn approximation_heavy_tailed(bencher: Bencher<'_, '_>, n: usize) {
    run(bencher, Strategy::Approximation, |seed| problems::heavy_tailed(n, seed));
}

#[divan::bench(args = [40, 10_000, 1_000_000], sample_count = 10)]
fn continuous_heavy_tailed(bencher: Bencher<'_, '_>, n: usize) {
    run(bencher, Strategy::Continuous, |seed| problems::heavy_tailed(n, seed));
}

#[divan::bench(args = [10, 40, 1_000], sample_count = 20)]
fn mixed_heavy_tailed(bencher: Bencher<'_, '_>, n: usize) {
    run(bencher, Strategy::Mixed, |seed| problems::heavy_tailed(n, seed));
}

#[divan::bench(args = [10, 15, 20], sample_count = 10)]
fn exhaustive_heavy_tailed(bencher: Bencher<'_, '_>, n: usize) {
    run(bencher, Strategy::Exhaustive, |seed| problems::heavy_tailed(n, seed));
}
