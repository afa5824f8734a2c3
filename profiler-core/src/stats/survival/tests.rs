use super::super::LEVEL;
use super::super::sim::{Coverage, exponential, rng};
use super::*;
use proptest::prelude::*;

fn exact(values: &[f64]) -> Vec<Bucket> {
    values.iter().map(|&v| Bucket { low: v, high: v, count: 1 }).collect()
}

fn known(q: Option<Quantile>) -> Estimate {
    match q {
        Some(Quantile::Known(e)) => e,
        other => panic!("{other:?}"),
    }
}

#[test]
fn kaplan_and_meier_1958_worked_example() {
    // §1.2: ends at 0.8, 3.1, 5.4, 9.2 months, losses at 1.0, 2.7, 7.0, 12.1: S = 7/8, 7/10, 21/40, 21/80.
    let s = Survival::new(&exact(&[0.8, 3.1, 5.4, 9.2]), None, &[1.0, 2.7, 7.0, 12.1]).unwrap();
    for (t, share) in [(0.5, 1.0), (0.8, 0.875), (3.1, 0.7), (5.4, 0.525), (9.2, 0.2625), (12.0, 0.2625)] {
        assert!((s.at(t) - share).abs() < 1e-12, "S({t}) = {}", s.at(t));
    }
    let mean = s.mean(LEVEL, Spread::INDEPENDENT);
    let area = 0.8 + 0.875 * 2.3 + 0.7 * 2.3 + 0.525 * 3.8 + 0.2625 * 2.9;
    assert!(mean.at_least && (mean.estimate.value - area).abs() < 1e-12, "{mean:?}");
    assert_eq!(mean.estimate.high, f64::INFINITY);
    assert_eq!(known(s.quantile(0.5, LEVEL, Spread::INDEPENDENT)).value, 9.2);
    assert_eq!(s.quantile(0.9, LEVEL, Spread::INDEPENDENT), Some(Quantile::Above(12.1)));
}

#[test]
fn a_window_as_long_as_its_calls() {
    // Calls of 30 to 70 ms begin anywhere in windows of 50 ms with exits kept for 50 ms more.
    let mut rng = rng(71);
    let (mut of_mean, mut of_median) = (Coverage::default(), Coverage::default());
    let (mut naive, mut mean) = (0.0, 0.0);
    for _ in 0..1_000 {
        let (mut complete, mut cut, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..120 {
            let (begin, length) = (50.0 * rng.random::<f64>(), 30.0 + 40.0 * rng.random::<f64>());
            if length <= 100.0 - begin {
                complete.push(length)
            } else {
                cut.push(100.0 - begin)
            }
            if length <= 50.0 - begin {
                plain.push(length);
            }
        }
        naive += plain.iter().sum::<f64>() / plain.len().max(1) as f64 / 1_000.0;
        let s = Survival::new(&exact(&complete), None, &cut).unwrap();
        let m = s.mean(LEVEL, Spread::INDEPENDENT).estimate;
        mean += m.value / 1_000.0;
        of_mean.note(Interval { low: m.low, high: m.high }, 50.0);
        let q = known(s.quantile(0.5, LEVEL, Spread::INDEPENDENT));
        of_median.note(Interval { low: q.low, high: q.high }, 50.0);
    }
    of_mean.check(0.93, 0.98, "mean of calls as long as the window");
    of_median.check(0.93, 0.98, "median of calls as long as the window");
    assert!((mean / 50.0 - 1.0).abs() < 0.01 && naive < 40.0, "{mean}, complete calls only {naive}");
}

#[test]
fn complete_calls_of_50_ms_windows_show_14_ms_and_the_truth_is_50() {
    // Exponential calls of mean 50 ms in windows of 50 ms, no draining at all: what ended within the window has a mean
    // of 13 to 14 ms. Beyond 50 ms nothing is known, and it is said.
    let mut rng = rng(72);
    let (mut naive, mut of_mean, mut of_median) = (0.0, Coverage::default(), Coverage::default());
    for _ in 0..1_000 {
        let (mut complete, mut cut) = (Vec::new(), Vec::new());
        for _ in 0..1_000 {
            let (left, length) = (50.0 * rng.random::<f64>(), exponential(&mut rng, 50.0));
            if length <= left { complete.push(length) } else { cut.push(left) }
        }
        naive += complete.iter().sum::<f64>() / complete.len() as f64 / 1_000.0;
        let s = Survival::new(&exact(&complete), None, &cut).unwrap();
        let mean = s.mean(LEVEL, Spread::INDEPENDENT);
        // The mean restricted to 50 ms is 50 (1 - 1/e) = 31.6 ms; the last cut is a little before that.
        assert!(
            mean.at_least && mean.estimate.high == f64::INFINITY && mean.estimate.value > 24.0,
            "{mean:?}"
        );
        let restricted = 50.0 * (1.0 - (-s.longest() / 50.0).exp());
        let half = mean.estimate.value - mean.estimate.low;
        of_mean.note(Interval { low: mean.estimate.low, high: mean.estimate.value + half }, restricted);
        // One time in a thousand more than half of the calls seem to outlast the window.
        let median = match s.quantile(0.5, LEVEL, Spread::INDEPENDENT).unwrap() {
            Quantile::Known(e) => Interval { low: e.low, high: e.high },
            Quantile::Above(low) => Interval { low, high: f64::INFINITY },
        };
        of_median.note(median, 50.0 * std::f64::consts::LN_2);
        assert!(matches!(s.quantile(0.9, LEVEL, Spread::INDEPENDENT), Some(Quantile::Above(x)) if x > 40.0));
    }
    assert!((13.0..15.0).contains(&naive), "{naive}");
    of_mean.check(0.93, 0.97, "restricted mean");
    of_median.check(0.93, 0.97, "median");
}

#[test]
fn nothing_ended() {
    let s = Survival::new(&[], None, &[5.0, 40.0, 20.0]).unwrap();
    let mean = s.mean(LEVEL, Spread::INDEPENDENT);
    assert!(mean.at_least);
    assert_eq!((mean.estimate.value, mean.estimate.low, mean.estimate.n), (40.0, 0.0, 3));
    assert_eq!(s.quantile(0.5, LEVEL, Spread::INDEPENDENT), Some(Quantile::Above(40.0)));
    assert_eq!(s.at(39.0), 1.0);
}

#[test]
fn an_end_comes_before_a_cut_at_the_same_value() {
    let s = Survival::new(&exact(&[10.0, 20.0]), None, &[10.0]).unwrap();
    // Three at risk at 10, one at 20.
    assert!((s.at(10.0) - 2.0 / 3.0).abs() < 1e-12 && s.at(20.0) == 0.0);
    assert!(!s.mean(LEVEL, Spread::INDEPENDENT).at_least);
    // The same value once more: the longest is an end.
    let s = Survival::new(&exact(&[10.0]), None, &[10.0]).unwrap();
    assert!(!s.mean(LEVEL, Spread::INDEPENDENT).at_least);
    // In a bucket a cut counts for the part that it had passed.
    let bucket = [Bucket { low: 10.0, high: 12.0, count: 3 }, Bucket { low: 20.0, high: 22.0, count: 1 }];
    let s = Survival::new(&bucket, None, &[10.5]).unwrap();
    assert!((s.at(12.0) - (1.0 - 3.0 / 4.25)).abs() < 1e-12, "{}", s.at(12.0));
}

#[test]
fn nothing_at_all_and_nonsense() {
    assert!(Survival::new(&[], None, &[]).is_none());
    assert!(Survival::new(&[], None, &[f64::NAN, 0.0, -3.0]).is_none());
    let s = Survival::new(&exact(&[10.0]), None, &[f64::INFINITY]).unwrap();
    assert_eq!((s.cut(), s.longest()), (0, 10.0));
    assert!(s.quantile(f64::NAN, LEVEL, Spread::INDEPENDENT).is_none());
    let one = s.mean(LEVEL, Spread::INDEPENDENT).estimate;
    assert_eq!((one.low, one.high), (0.0, 20.0));
}

#[test]
fn the_exact_sum_moves_the_mean_off_the_buckets_middle() {
    let bucket = [Bucket { low: 49_000.0, high: 51_000.0, count: 10 }];
    let mean = |sum| Survival::new(&bucket, sum, &[1_000.0]).unwrap().mean(LEVEL, Spread::INDEPENDENT);
    assert!((mean(Some(505_000.0)).estimate.value - 50_500.0).abs() < 1e-6);
    assert!((mean(None).estimate.value - 50_000.0).abs() < 1e-6);
}

#[test]
fn calls_alike_within_a_burst_widen_both_intervals() {
    let values: Vec<f64> = (1..=400).map(f64::from).collect();
    let s = Survival::new(&exact(&values), None, &[50.5, 120.5, 300.5]).unwrap();
    let wide = Spread { design_effect: 9.0, df: f64::INFINITY };
    let of = |spread| {
        let mean = s.mean(LEVEL, spread).estimate.half_width();
        (mean, known(s.quantile(0.5, LEVEL, spread)).half_width())
    };
    let (a, b) = (of(Spread::INDEPENDENT), of(wide));
    assert!((b.0 / a.0 - 3.0).abs() < 0.01 && b.1 / a.1 > 2.5, "{a:?} {b:?}");
}

proptest! {
    #[test]
    fn without_cuts_it_is_the_mean_and_the_plain_quantile(
        values in prop::collection::vec(1.0..1e6_f64, 1..60), p in 0.0..=1.0_f64,
    ) {
        let s = Survival::new(&exact(&values), None, &[]).unwrap();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let estimate = s.mean(LEVEL, Spread::INDEPENDENT).estimate;
        prop_assert!((estimate.value / mean - 1.0).abs() < 1e-9);
        if values.len() > 1 {
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let half = t_quantile(LEVEL, n - 1.0) * (variance / n).sqrt();
            prop_assert!((estimate.high - estimate.value - half).abs() < 1e-6 * half.max(1.0));
        }
        let plain = quantile::quantile(&exact(&values), p, LEVEL, 0.0).unwrap();
        prop_assert_eq!(s.quantile(p, LEVEL, Spread::INDEPENDENT), Some(Quantile::Known(plain)));
    }

    #[test]
    fn a_cut_that_says_nothing_changes_next_to_nothing(
        values in prop::collection::vec(10.0..1e6_f64, 5..60), p in 0.02..0.98_f64,
    ) {
        // Cut off before any call ended: the product-limit path must give what the plain one gives.
        let plain = Survival::new(&exact(&values), None, &[]).unwrap();
        let cut = Survival::new(&exact(&values), None, &[1.0]).unwrap();
        for t in &values {
            prop_assert!((plain.at(*t) - cut.at(*t)).abs() < 1e-9);
        }
        let mean = |s: &Survival| s.mean(LEVEL, Spread::INDEPENDENT).estimate;
        prop_assert!((mean(&plain).value / mean(&cut).value - 1.0).abs() < 1e-9);
        let (a, b) = (known(plain.quantile(p, LEVEL, Spread::INDEPENDENT)), known(cut.quantile(p, LEVEL, Spread::INDEPENDENT)));
        prop_assert!(b.low <= b.value && b.value <= b.high);
        // One rank apart at most: p x n may be whole.
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = |v: f64| sorted.iter().filter(|x| **x <= v).count() as i64;
        prop_assert!((rank(a.value) - rank(b.value)).abs() <= 1, "{} {}", a.value, b.value);
    }

    #[test]
    fn the_curve_falls_and_cuts_only_raise_it(
        values in prop::collection::vec(1.0..1e3_f64, 1..40), cuts in prop::collection::vec(1.0..1e3_f64, 0..40),
    ) {
        let s = Survival::new(&exact(&values), None, &cuts).unwrap();
        let without = Survival::new(&exact(&values), None, &[]).unwrap();
        let mut last = 1.0;
        for t in 0..1_000 {
            let now = s.at(f64::from(t));
            prop_assert!((0.0..=last + 1e-12).contains(&now));
            prop_assert!(now >= without.at(f64::from(t)) - 1e-12, "{t}");
            last = now;
        }
        let mean = s.mean(LEVEL, Spread::INDEPENDENT);
        prop_assert!(mean.estimate.low <= mean.estimate.value && mean.estimate.value <= mean.estimate.high);
        prop_assert!(mean.estimate.value <= s.longest() + 1e-9);
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        prop_assert!(mean.at_least || most(&cuts) <= most(&values));
    }
}
