//! Tables of `docs/benchmarks-planner.md`: `cargo bench -p profiler-lab --bench planner_tables`.
//!
//! Times and gaps of the certified optimum over many draws and on the hard families, and the information that
//! simpler strategies leave on the table. The surveys of real programs in `lab/surveys` are in both; class
//! tables given as arguments (`*.toml`) are added to the latter:
//! `cargo bench -p profiler-lab --bench planner_tables -- survey1.toml survey2.toml`.

use profiler_core::plan::{BurstRules, Options, Problem, Strategy, solve, table};
use profiler_lab::problems;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn main() {
    // `cargo test --benches` and `cargo bench -- --list` want no figures.
    if std::env::args().any(|a| a == "--test" || a == "--list") {
        return;
    }
    draws();
    sizes();
    hard_families();
    bursts();
    let mut problems: Vec<(String, Vec<Problem>)> = vec![
        ("random, n = 10".to_owned(), (0..2_000).map(|s| problems::heavy_tailed(10, s)).collect()),
        ("random, n = 40".to_owned(), (0..2_000).map(|s| problems::heavy_tailed(40, s)).collect()),
        ("random, n = 1,000".to_owned(), (0..100).map(|s| problems::heavy_tailed(1_000, s)).collect()),
        ("random with rules, n = 40".to_owned(), feasible(40, 500)),
    ];
    for (name, survey) in surveys() {
        let draws = (0..500).map(|seed| problems::within_intervals(&survey, seed)).collect();
        problems.push((format!("{name}, n = {}", survey.classes.len()), draws));
    }
    for path in std::env::args().skip(1).filter(|a| a.ends_with(".toml")) {
        let problem = read(Path::new(&path));
        problems.push((path, vec![problem]));
    }
    information_lost(&problems);
}

fn read(path: &Path) -> Problem {
    let path = path.display();
    let text = std::fs::read_to_string(path.to_string())
        .unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
    table::parse(&text).unwrap_or_else(|errors| panic!("{path}, {}", errors[0])).problem
}

/// The surveys of real programs, by name.
fn surveys() -> Vec<(String, Problem)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("surveys");
    let entries = std::fs::read_dir(&folder).expect("the surveys are in the repository");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "toml"));
    files.sort();
    let name =
        |file: &PathBuf| file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    files.iter().map(|file| (name(file), read(file))).collect()
}

/// Random problems with rules that have a solution, from tables in which half of the classes would fit.
fn feasible(n: usize, count: usize) -> Vec<Problem> {
    let all = (0..).map(|seed| {
        let mut problem = problems::with_rules(n, seed);
        for class in &mut problem.classes {
            class.min_rate_hz = 0.0;
        }
        problem
    });
    all.filter(|p| solve(p, Strategy::SampleAll, &Options::default()).is_ok()).take(count).collect()
}

/// Time (the least of three runs: the machine may be shared), gap and value.
fn timed(problem: &Problem, strategy: Strategy) -> (Duration, f64, f64) {
    let run = || {
        let start = Instant::now();
        let plan = solve(problem, strategy, &Options::default()).expect("the problem is feasible");
        (start.elapsed(), plan.gap, plan.value)
    };
    let (first, gap, value) = run();
    (first.min(run().0).min(run().0), gap, value)
}

fn percentile(sorted: &[Duration], p: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * p).round() as usize]
}

fn draws() {
    println!(
        "\n| problems | draws | median | 99th percentile | largest | gap above 1e-9 |\n|---|---|---|---|---|---|"
    );
    let row = |name: &str, draw: &dyn Fn(u64) -> Problem| {
        let mut open = 0;
        let mut times: Vec<Duration> = (0..10_000)
            .map(|seed| {
                let (time, gap, _) = timed(&draw(seed), Strategy::Certified);
                open += usize::from(gap > 1e-9);
                time
            })
            .collect();
        times.sort();
        println!(
            "| {name} | 10,000 | {:.3?} | {:.3?} | {:.3?} | {open} |",
            percentile(&times, 0.5),
            percentile(&times, 0.99),
            percentile(&times, 1.0)
        );
    };
    for n in [5, 10, 20, 30, 40] {
        row(&format!("random, n = {n}"), &|seed| problems::heavy_tailed(n, seed));
    }
    let surveys = surveys();
    row(
        &format!("surveys, n = 1 to {}", surveys.iter().map(|s| s.1.classes.len()).max().unwrap_or(0)),
        &|seed| {
            let (_, survey) = &surveys[usize::try_from(seed).expect("small") % surveys.len()];
            problems::within_intervals(survey, seed)
        },
    );
}

fn sizes() {
    println!(
        "\n| n | draws | certified, median | largest | largest gap | approximation, median |\n|---|---|---|---|---|---|"
    );
    for (n, draws) in [(100, 200), (1_000, 200), (10_000, 50), (100_000, 10), (1_000_000, 5)] {
        let mut gap: f64 = 0.0;
        let mut times = Vec::new();
        let mut approximate = Vec::new();
        for seed in 0..draws {
            let problem = problems::heavy_tailed(n, seed);
            let (time, g, _) = timed(&problem, Strategy::Certified);
            times.push(time);
            gap = gap.max(g);
            approximate.push(timed(&problem, Strategy::Approximation).0);
        }
        times.sort();
        approximate.sort();
        println!(
            "| {n} | {draws} | {:.3?} | {:.3?} | {gap:.1e} | {:.3?} |",
            percentile(&times, 0.5),
            percentile(&times, 1.0),
            percentile(&approximate, 0.5)
        );
    }
}

fn hard_families() {
    println!("\n| family | n | time | gap |\n|---|---|---|---|");
    type Family = (&'static str, fn(usize) -> Problem);
    let families: [Family; 3] = [
        ("identical", problems::identical),
        ("near-equal", |n| problems::near_equal(n, 1)),
        ("subset sum, even sizes, odd capacity", |n| problems::subset_sum(n, 1)),
    ];
    for (name, make) in families {
        for n in [20, 40, 1_000, 10_000] {
            let (time, gap, _) = timed(&make(n), Strategy::Certified);
            println!("| {name} | {n} | {time:.3?} | {gap:.1e} |");
        }
    }
}

fn bursts() {
    println!(
        "\n| mixed problem | n | draws | median | 99th percentile | gap above 1e-9 | largest gap | gain over binary, median | 90th percentile |\n|---|---|---|---|---|---|---|---|---|"
    );
    for n in [10, 40] {
        let (mut times, mut gains, mut open, mut worst) = (Vec::new(), Vec::new(), 0, 0.0f64);
        for seed in 0..1_000 {
            let mut problem = problems::heavy_tailed(n, seed);
            problem.burst = Some(BurstRules { min_s: 0.05, cycle_s: 1.0, attach_cost_s: 20e-6 });
            let (time, gap, value) = timed(&problem, Strategy::Mixed);
            times.push(time);
            open += usize::from(gap > 1e-9);
            worst = worst.max(gap);
            gains.push(value / timed(&problem, Strategy::Certified).2 - 1.0);
        }
        times.sort();
        gains.sort_by(f64::total_cmp);
        println!(
            "| 50 ms a second at least, 20 us to attach | {n} | 1,000 | {:.3?} | {:.3?} | {open} | {worst:.1e} | {:.2} % | {:.2} % |",
            percentile(&times, 0.5),
            percentile(&times, 0.99),
            gains[gains.len() / 2] * 100.0,
            gains[gains.len() * 9 / 10] * 100.0
        );
    }
}

fn information_lost(problems: &[(String, Vec<Problem>)]) {
    let strategies = [Strategy::Approximation, Strategy::Hottest, Strategy::SampleAll, Strategy::ByWeight];
    println!("\nInformation lost against the certified plan: mean (median; largest)\n");
    println!(
        "| problems | draws | approximation | hottest first | sample everything | by weight |\n|---|---|---|---|---|---|"
    );
    for (name, list) in problems {
        let mut cells = Vec::new();
        for strategy in strategies {
            let mut lost: Vec<f64> = list
                .iter()
                .map(|problem| {
                    let best = timed(problem, Strategy::Certified).2;
                    if best > 0.0 { (1.0 - timed(problem, strategy).2 / best).max(0.0) } else { 0.0 }
                })
                .collect();
            lost.sort_by(f64::total_cmp);
            let mean = lost.iter().sum::<f64>() / lost.len() as f64;
            let (middle, worst) = (lost[lost.len() / 2], lost[lost.len() - 1]);
            cells.push(format!("{:.2} % ({:.2}; {:.1})", mean * 100.0, middle * 100.0, worst * 100.0));
        }
        println!("| {name} | {} | {} |", list.len(), cells.join(" | "));
    }
}
