//! What classes learn from one another: how unlike moments are.

use super::super::LEVEL;
use super::super::sim::{Coverage, normal, poisson, rng};
use super::*;
use rand::rngs::StdRng;

const RATE: f64 = 2_000.0;

/// A window of `time_s` that met `factor` times the usual rate.
fn window(rng: &mut StdRng, time_s: f64, factor: f64) -> Burst {
    Burst {
        hits: poisson(rng, RATE * factor * time_s) as u64,
        stop: Stop::Window,
        time_s,
        time_low_s: time_s,
        time_high_s: time_s,
        quota: None,
        window_s: None,
        busy: 1.0,
    }
}

/// A brief window of 5 ms sees 0.4 of the logarithm more or less.
fn brief(rng: &mut StdRng) -> Burst {
    let factor = (0.4 * normal(rng) - 0.08).exp();
    window(rng, 0.005, factor)
}

#[test]
fn a_class_with_one_brief_window_learns_from_those_that_were_watched_for_longer() {
    let mut rng = rng(61);
    let (mut learned, mut alone) = (Coverage::default(), Coverage::default());
    for _ in 0..1_000 {
        let classes: Vec<Vec<Burst>> = (0..20)
            .map(|_| vec![brief(&mut rng), window(&mut rng, 1.0, 1.0), window(&mut rng, 1.0, 1.0)])
            .collect();
        let drift = Drift::pooled(classes.iter().map(Vec::as_slice), 1.0, 100.0).unwrap();
        // Of a class that is called more often, so that it is not Poisson's variance that makes the interval wide.
        let factor = (0.4 * normal(&mut rng) - 0.08).exp();
        let hot =
            Burst { hits: poisson(&mut rng, 1e6 * factor * 0.005) as u64, ..window(&mut rng, 0.005, 1.0) };
        let hold = |e: Estimate| Interval { low: e.low, high: e.high };
        learned.note(hold(rate_with(&[hot], LEVEL, Some(&drift)).unwrap()), 1e6);
        let forgotten = Drift { brief_s: 0.0, ..drift };
        alone.note(hold(rate_with(&[hot], LEVEL, Some(&forgotten)).unwrap()), 1e6);
    }
    // The lognormal's tail is longer than its median says.
    learned.check(0.90, 1.0, "learned");
    assert!(alone.share() < 0.5, "nothing to learn: {}", alone.share());
}

/// All classes are watched in the same three moments, each of which has a speed of its own.
#[test]
fn classes_that_were_watched_in_the_same_moments_say_the_same_of_them() {
    let mut rng = rng(62);
    let (mut honest, mut naive) = (Coverage::default(), Coverage::default());
    for _ in 0..1_000 {
        let speeds: Vec<f64> = (0..3).map(|_| 1.0 + 0.15 * normal(&mut rng)).collect();
        let classes: Vec<Vec<Burst>> =
            (0..20).map(|_| speeds.iter().map(|speed| window(&mut rng, 1.0, *speed)).collect()).collect();
        for (moments, coverage) in [(3.0, &mut honest), (100.0, &mut naive)] {
            let drift = Drift::pooled(classes.iter().map(Vec::as_slice), 1.0, moments).unwrap();
            let e = rate_with(&classes[0], LEVEL, Some(&drift)).unwrap();
            coverage.note(Interval { low: e.low, high: e.high }, RATE);
        }
    }
    honest.check(0.92, 0.99, "three moments");
    assert!(naive.share() < honest.share() - 0.02, "{} and {}", naive.share(), honest.share());
}

#[test]
fn a_window_that_outweighs_all_others_is_no_spread_of_one_degree() {
    let mut rng = rng(63);
    let (mut c, mut widths) = (Coverage::default(), Vec::new());
    for _ in 0..500 {
        let classes: Vec<Vec<Burst>> =
            (0..20).map(|_| vec![window(&mut rng, 0.1, 1.0), window(&mut rng, 2.0, 1.0)]).collect();
        let drift = Drift::pooled(classes.iter().map(Vec::as_slice), 1.0, 100.0).unwrap();
        let e = rate_with(&classes[0], LEVEL, Some(&drift)).unwrap();
        c.note(Interval { low: e.low, high: e.high }, RATE);
        widths.push((e.high - e.low) / (2.0 * 1.96 * e.value / (e.n as f64).sqrt()));
    }
    c.check(0.93, 1.0, "one long window");
    widths.sort_by(f64::total_cmp);
    // By its own spread alone it is wider by t with one degree of freedom, 12.7, over 1.96.
    assert!(widths[250] < 1.6, "{}", widths[250]);
}

/// What was watched of a run is known: only the rest is guessed.
#[test]
fn the_rate_of_a_run_shrinks_with_what_is_unseen() {
    let mut rng = rng(64);
    let mut c = Coverage::default();
    for _ in 0..2_000 {
        // 20 parts of 0.1 s; a random 14 of them watched.
        let mut parts: Vec<Burst> = (0..20)
            .map(|_| {
                let factor = 1.0 + 0.2 * normal(&mut rng);
                window(&mut rng, 0.1, factor)
            })
            .collect();
        let truth = parts.iter().map(|b| b.hits as f64).sum::<f64>() / 2.0;
        for i in 0..14 {
            let j = rand::RngExt::random_range(&mut rng, i..20);
            parts.swap(i, j);
        }
        let e = rate_of(&parts[..14], LEVEL, None, Of::Run { unseen: 0.3 }).unwrap();
        c.note(Interval { low: e.low, high: e.high }, truth);
    }
    c.check(0.93, 0.97, "rate of a run");
}

/// Bursts that a quota ended weigh alike, but what they saw of the run lasted as long as it did.
#[test]
fn what_was_seen_of_a_run_counts_by_its_length() {
    let quota = |rate: f64| Burst {
        hits: 1_000,
        stop: Stop::Quota,
        time_s: 1_000.0 / rate,
        time_low_s: 1_000.0 / rate,
        time_high_s: 1_000.0 / rate,
        quota: Some(1_000),
        window_s: None,
        busy: 1.0,
    };
    let bursts: Vec<Burst> = (0..20).map(|i| quota(if i % 2 == 0 { 1_000.0 } else { 3_000.0 })).collect();
    let of = |unseen| rate_of(&bursts, LEVEL, None, Of::Run { unseen }).unwrap();
    assert!((of(1.0).value / 2_000.0 - 1.0).abs() < 0.01, "{:?}", of(1.0));
    let known = of(0.0);
    assert!((known.value / 1_500.0 - 1.0).abs() < 1e-9 && known.low == known.high, "{known:?}");
}

/// Windows that are expected to see next to nothing say nothing of how unlike moments are, least of all those that saw something.
#[test]
fn brief_windows_without_hits_to_expect_teach_nothing() {
    let mut rng = rng(65);
    let rare = |rng: &mut StdRng, time_s: f64| Burst {
        hits: poisson(rng, 20.0 * time_s) as u64,
        ..window(rng, time_s, 1.0)
    };
    let classes: Vec<Vec<Burst>> =
        (0..200).map(|_| vec![rare(&mut rng, 0.005), rare(&mut rng, 2.0), rare(&mut rng, 2.0)]).collect();
    let drift = Drift::pooled(classes.iter().map(Vec::as_slice), 1.0, 100.0).unwrap();
    assert_eq!(drift.brief_s, 0.0);
}
