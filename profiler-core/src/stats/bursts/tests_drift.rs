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

/// Drift of these classes, of whose windows it is not known when they were.
fn pooled(classes: &[Vec<Burst>]) -> Drift {
    Drift::pooled(classes.iter().map(|bursts| Seen { bursts, cells: &[] }), 1.0, 1.0).unwrap()
}

/// Windows of 0.1 s in equal parts of a run of 30 s; drawn, of one class, as these factors say.
fn placed(rng: &mut StdRng, hz: f64, factors: &[f64]) -> (Vec<Burst>, Vec<Cell>) {
    let apart_s = 30.0 / factors.len() as f64;
    let begin = |i: usize| (i as f64 + 0.5) * apart_s;
    let spans: Vec<(f64, f64)> = (0..factors.len()).map(|i| (begin(i), begin(i) + 0.1)).collect();
    let bursts = factors
        .iter()
        .map(|f| Burst { hits: poisson(rng, hz * f * 0.1) as u64, ..window(rng, 0.1, 1.0) })
        .collect();
    (bursts, cells(&spans, 30.0, |from_s, to_s| to_s - from_s))
}

/// What is told of the first class, with what all say; over the estimate, half of its interval.
fn told(classes: &[(Vec<Burst>, Vec<Cell>)]) -> (Interval, f64) {
    let moments = classes[0].0.len() as f64;
    let seen = classes.iter().map(|(bursts, cells)| Seen { bursts, cells });
    let drift = Drift::pooled(seen, 30.0 / moments, moments).unwrap();
    let (bursts, cells) = &classes[0];
    let e = rate_over(bursts, cells, LEVEL, Some(&drift), Of::LONG).unwrap();
    (Interval { low: e.low, high: e.high }, (e.high - e.low) / 2.0 / e.value)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
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
        let drift = pooled(&classes);
        // Of a class that is called more often, so that it is not Poisson's variance that makes the interval wide.
        let factor = (0.4 * normal(&mut rng) - 0.08).exp();
        let hot =
            Burst { hits: poisson(&mut rng, 1e6 * factor * 0.005) as u64, ..window(&mut rng, 0.005, 1.0) };
        let hold = |e: Estimate| Interval { low: e.low, high: e.high };
        learned.note(hold(rate_with(&[hot], LEVEL, Some(&drift)).unwrap()), 1e6);
        let forgotten = Drift { brief_s: 0.0, ..drift.clone() };
        alone.note(hold(rate_with(&[hot], LEVEL, Some(&forgotten)).unwrap()), 1e6);
    }
    // The lognormal's tail is longer than its median says.
    learned.check(0.90, 1.0, "learned");
    assert!(alone.share() < 0.5, "nothing to learn: {}", alone.share());
}

/// All classes are watched in the same four moments, each of which has a speed of its own: 20 classes saw four speeds, and no more.
#[test]
fn what_all_classes_do_in_a_moment_is_one_witness() {
    let mut rng = rng(62);
    let (mut honest, mut naive, mut widths) = (Coverage::default(), Coverage::default(), Vec::new());
    for _ in 0..2_000 {
        let speeds: Vec<f64> = (0..4).map(|_| 1.0 + 0.15 * normal(&mut rng)).collect();
        let classes: Vec<_> = (0..20).map(|_| placed(&mut rng, 1e5, &speeds)).collect();
        let (interval, width) = told(&classes);
        honest.note(interval, 1e5);
        widths.push(width);
        // As if each were a witness of its own.
        let drift = pooled(&classes.iter().map(|(bursts, _)| bursts.clone()).collect::<Vec<_>>());
        let e = rate_with(&classes[0].0, LEVEL, Some(&drift)).unwrap();
        naive.note(Interval { low: e.low, high: e.high }, 1e5);
    }
    honest.check(0.93, 0.97, "four moments");
    assert!(naive.share() < 0.91, "nothing to mend: {}", naive.share());
    // Of four values nobody knows more than t with three degrees of freedom: 3.18 instead of 1.96, and of their spread the median is 0.89.
    let ideal = 3.18 * 0.89 * 0.15 / 2.0;
    assert!((0.85..1.15).contains(&(median(widths.clone()) / ideal)), "{}", median(widths));
}

/// The reverse: each class's moments have speeds of their own, and all say the same of how unlike those are.
#[test]
fn what_each_class_does_by_itself_is_many_witnesses() {
    let mut rng = rng(66);
    let (mut c, mut widths) = (Coverage::default(), Vec::new());
    for _ in 0..2_000 {
        let mut class = || {
            let speeds: Vec<f64> = (0..4).map(|_| 1.0 + 0.15 * normal(&mut rng)).collect();
            placed(&mut rng, 1e5, &speeds)
        };
        let classes: Vec<_> = (0..20).map(|_| class()).collect();
        let (interval, width) = told(&classes);
        c.note(interval, 1e5);
        widths.push(width);
    }
    c.check(0.93, 0.97, "own speeds");
    // As if it were known how unlike moments are. Four bursts alone would be 1.45 times as wide.
    let ideal = 1.96 * (0.15_f64.powi(2) + 1e-4).sqrt() / 2.0;
    assert!((0.93..1.15).contains(&(median(widths.clone()) / ideal)), "{}", median(widths));
}

/// The load doubles: a change that all classes share, and that bursts show, is no noise of any of them.
#[test]
fn a_load_that_doubles_is_no_noise_of_each() {
    let mut rng = rng(67);
    let (mut c, mut widths) = (Coverage::default(), Vec::new());
    for i in 0..2_000 {
        let turn = 3 + i % 7;
        let factors: Vec<f64> = (0..12).map(|j| if j < turn { 1.0 } else { 2.0 }).collect();
        let classes: Vec<_> = (0..20).map(|_| placed(&mut rng, 1e5, &factors)).collect();
        let (interval, width) = told(&classes);
        // It changed anywhere between two windows.
        let truth = 1e5 * (2.0 - (turn as f64 - 0.5 + rand::RngExt::random::<f64>(&mut rng)) / 12.0);
        c.note(interval, truth);
        widths.push(width);
    }
    c.check(0.93, 1.0, "doubled");
    // A twelfth of the run in which it changed anywhere, of a mean of 1.5; taken for noise of each it was 22 %.
    let ideal = 1.96 / 12.0 / 12_f64.sqrt() / 1.5;
    let width = median(widths);
    assert!((0.9..2.0).contains(&(width / ideal)), "{width} {ideal}");
}

/// A class whose calls come in clusters is believed the sooner, the more the classes differ anyway.
#[test]
fn classes_that_differ_are_told_so() {
    let mut rng = rng(68);
    let mut c = Coverage::default();
    for _ in 0..2_000 {
        let mut class = || {
            // The variance of each class is 4 / chi^2(4) times as large.
            let spread = 0.15 / super::super::sim::unit_gamma(&mut rng, 2).sqrt();
            let sigma = (spread * spread).ln_1p().sqrt();
            let speeds: Vec<f64> =
                (0..4).map(|_| (sigma * normal(&mut rng) - sigma * sigma / 2.0).exp()).collect();
            placed(&mut rng, 1e5, &speeds)
        };
        let classes: Vec<_> = (0..20).map(|_| class()).collect();
        c.note(told(&classes).0, 1e5);
    }
    c.check(0.925, 0.97, "unlike classes");
}

#[test]
fn a_window_that_outweighs_all_others_is_no_spread_of_one_degree() {
    let mut rng = rng(63);
    let (mut c, mut widths) = (Coverage::default(), Vec::new());
    for _ in 0..500 {
        let classes: Vec<Vec<Burst>> =
            (0..20).map(|_| vec![window(&mut rng, 0.1, 1.0), window(&mut rng, 2.0, 1.0)]).collect();
        let drift = pooled(&classes);
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
    let drift = pooled(&classes);
    assert_eq!(drift.brief_s, 0.0);
}

/// One short and one long window of each, neither of them brief: the drift between moments is found all the same.
#[test]
fn unequal_windows_tell_the_drift_between_them() {
    let mut rng = rng(65);
    // At 1,000 Hz most of what the windows differ by is Poisson's.
    for (share, true_variance, hz) in
        [(0.07, 0.04_f64, 1e5), (0.07, 0.0, 1e5), (0.2, 0.09, 1e5), (0.07, 0.04, 1e3)]
    {
        let classes: Vec<Vec<Burst>> = (0..400)
            .map(|_| {
                let mut of = |time_s: f64| {
                    let factor = (1.0 + true_variance.sqrt() * normal(&mut rng)).max(0.05);
                    Burst {
                        hits: poisson(&mut rng, hz * factor * time_s) as u64,
                        ..window(&mut rng, time_s, 1.0)
                    }
                };
                vec![of(share), of(1.0)]
            })
            .collect();
        let found = pooled(&classes).variance;
        assert!(
            (found - true_variance).abs() < 0.3 * true_variance + 1e-3,
            "{share}: {found} for {true_variance}"
        );
    }
}

/// Bursts that are all alike say as much as bursts that differ by a hit.
#[test]
fn steady_bursts_are_no_wider_than_nearly_steady_ones() {
    let mut rng = rng(67);
    let mut varied = || {
        let factor = (0.1 * normal(&mut rng)).exp();
        window(&mut rng, 0.1, factor)
    };
    let mut classes: Vec<Vec<Burst>> = (0..20).map(|_| (0..4).map(|_| varied()).collect()).collect();
    // A few that nobody is like, so that being an outlier is likely.
    for class in classes.iter_mut().take(4) {
        class[0].hits *= 5;
    }
    let drift = pooled(&classes);
    let half = |hits: [u64; 4]| {
        let bursts: Vec<Burst> = hits
            .iter()
            .map(|hits| Burst { hits: *hits, ..window(&mut super::super::sim::rng(1), 0.1, 1.0) })
            .collect();
        let e = rate_over(&bursts, &[], LEVEL, Some(&drift), Of::LONG).unwrap();
        (e.high - e.low) / e.value
    };
    let (steady, nearly) = (half([2_000; 4]), half([1_999, 2_000, 2_000, 2_001]));
    assert!(steady < 1.001 * nearly, "{steady} {nearly}");
}
