//! The tables of docs/models.md: `cargo run --release -p profiler-lab --example models [-- seeds]`.

use profiler_core::models::{CLASSES, Class, fit};
use profiler_lab::growth::{OTHERS, TRUTHS, Truth, case};
use std::collections::BTreeMap;

/// What was told of the functions of one truth.
#[derive(Default)]
struct Told {
    /// Class told where the true function's own R^2 is at least 0.97, and below it.
    clear: BTreeMap<Class, u32>,
    noisy: BTreeMap<Class, u32>,
    /// The class was not ruled out.
    kept: u32,
    /// Relative error of the prediction at the inputs, root mean square.
    errors: Vec<f64>,
}

fn main() {
    let seeds: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_000);
    println!(
        "| truth | clear | right | told instead | not ruled out | noisy: right, unknown, wrong | error |"
    );
    println!("|---|---|---|---|---|---|---|");
    let (mut all, mut right) = (0, 0);
    for truth in TRUTHS {
        let told = tell(truth, seeds);
        all += told.clear.values().sum::<u32>();
        right += told.clear.get(&truth.class()).copied().unwrap_or(0);
        row(truth, told);
    }
    println!("| all | {all} | {:.1} % | | | | |", 100.0 * f64::from(right) / f64::from(all));
    for truth in OTHERS {
        row(truth, tell(truth, seeds));
    }
}

fn tell(truth: Truth, seeds: u64) -> Told {
    let mut told = Told::default();
    for seed in 0..seeds {
        let case = case(truth, seed);
        let Ok(model) = fit(&case.calls, seed) else { continue };
        let is_clear = case.ceiling >= 0.97;
        *if is_clear { &mut told.clear } else { &mut told.noisy }.entry(model.class).or_default() += 1;
        let kept = model.form == truth.class() || model.alternatives.contains(&truth.class());
        told.kept += u32::from(is_clear && kept);
        let shape = &model.curves[0].shape;
        let errors = case.truth.iter().map(|(x, ns)| {
            let x: Vec<f64> = x.iter().map(|x| *x as f64).collect();
            (shape.at(&x) / ns).ln().powi(2)
        });
        told.errors.push((errors.sum::<f64>() / case.truth.len() as f64).sqrt());
    }
    told
}

fn row(truth: Truth, mut told: Told) {
    let clear: u32 = told.clear.values().sum();
    let noisy: u32 = told.noisy.values().sum();
    let right = told.clear.get(&truth.class()).copied().unwrap_or(0);
    let percent = |part: u32, of: u32| 100.0 * f64::from(part) / f64::from(of.max(1));
    let others = CLASSES.iter().filter(|c| **c != truth.class()).filter_map(|c| {
        let count = told.clear.get(c)?;
        Some(format!("{} {count}", c.name()))
    });
    let others: Vec<String> = others.collect();
    let noisy_right = told.noisy.get(&truth.class()).copied().unwrap_or(0);
    let unknown = told.noisy.get(&Class::Unknown).copied().unwrap_or(0);
    told.errors.sort_by(f64::total_cmp);
    let error = told.errors.get(told.errors.len() / 2).copied().unwrap_or(f64::NAN);
    println!(
        "| {} | {clear} | {:.1} % | {} | {:.1} % | {noisy_right}, {unknown}, {} | {:.1} % |",
        truth.name(),
        percent(right, clear),
        others.join(", "),
        percent(told.kept, clear),
        noisy - noisy_right - unknown,
        100.0 * error
    );
}
