use super::super::{Of, Stop, rate, rate_over};
use super::*;
use crate::estimate::Estimate;
use crate::stats::sim::{Coverage, normal, rng};
use crate::stats::{Interval, LEVEL};
use proptest::prelude::*;

/// A window of `time_s` with so many hits.
fn window(hits: u64, time_s: f64) -> Burst {
    Burst {
        hits,
        stop: Stop::Window,
        time_s,
        time_low_s: time_s,
        time_high_s: time_s,
        quota: Some(100),
        window_s: Some(1e9),
        busy: 1.0,
    }
}

fn at(times: &[f64], run_s: f64) -> Vec<Cell> {
    let spans: Vec<(f64, f64)> = times.iter().map(|s| (*s, s + 0.01)).collect();
    cells(&spans, run_s, |from, to| to - from)
}

#[test]
fn a_burst_stands_for_half_of_the_gaps_beside_it() {
    let cells = cells(&[(1.0, 2.0), (4.0, 4.5), (9.0, 10.0)], 12.0, |from, to| to - from);
    let stands_for: Vec<f64> = cells.iter().map(|c| c.stands_for_s).collect();
    assert_eq!(stands_for, [2.0, 3.25, 4.25]);
    assert_eq!(cells[0].at, 0.125);
}

/// Of CPU time: every other burst lies in a time in which a third as much was used.
#[test]
fn bursts_weigh_by_what_was_used_around_them() {
    let times: Vec<f64> = (0..10).map(|i| 1.0 + 2.0 * f64::from(i)).collect();
    let mut cells = at(&times, 20.0);
    cells.iter_mut().enumerate().for_each(|(i, c)| c.used = [1.5, 0.5][i % 2]);
    let of = |hits: fn(usize) -> u64| {
        let bursts: Vec<Burst> = (0..10).map(|i| window(hits(i), 0.01)).collect();
        rate_over(&bursts, &cells, LEVEL, None, Of::LONG).unwrap().value
    };
    // It goes up and down; it changes once, after four bursts.
    assert!((of(|i| [120, 80][i % 2]) - 11_000.0).abs() < 1e-6);
    assert!((of(|i| if i < 4 { 100 } else { 900 }) / 58_000.0 - 1.0).abs() < 0.03);
}

/// All of the run was watched, and one window after the next one's begin.
#[test]
fn windows_that_leave_nothing_unwatched_stand_for_nothing() {
    let cells = cells(&[(0.0, 3.0), (2.0, 4.0), (4.0, 10.0)], 10.0, |from, to| to - from);
    assert!(cells.iter().all(|c| c.stands_for_s == 0.0), "{cells:?}");
    let bursts = [window(30, 3.0), window(20, 2.0), window(60, 6.0)];
    let e = rate_over(&bursts, &cells, LEVEL, None, Of::LONG).unwrap();
    assert!((e.value - 10.0).abs() < 1e-9, "{e:?}");
}

#[test]
fn of_bursts_that_lie_evenly_nothing_changes() {
    let times: Vec<f64> = (0..3).map(|i| 0.495 + f64::from(i)).collect();
    let bursts = [window(90, 0.01), window(113, 0.01), window(100, 0.01)];
    let (by_time, alike) =
        (rate_over(&bursts, &at(&times, 3.0), LEVEL, None, Of::LONG), rate(&bursts, LEVEL));
    let (by_time, alike) = (by_time.unwrap(), alike.unwrap());
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    assert!(
        near(by_time.value, alike.value) && near(by_time.low, alike.low) && near(by_time.high, alike.high)
    );
}

/// Twenty bursts in the first half, of 1,000 hits a second, four in the second, of 10,000.
#[test]
fn a_time_with_few_bursts_counts_by_its_length() {
    let mut times: Vec<f64> = (0..20).map(|i| 0.25 + 0.5 * f64::from(i)).collect();
    times.extend([11.25, 13.75, 16.25, 18.75]);
    let bursts: Vec<Burst> = times.iter().map(|s| window(if *s < 10.0 { 10 } else { 100 }, 0.01)).collect();
    let alike = rate(&bursts, LEVEL).unwrap();
    let by_time = rate_over(&bursts, &at(&times, 20.0), LEVEL, None, Of::LONG).unwrap();
    assert!(alike.value < 2_600.0, "what this is for: {alike:?}");
    // Half of the gap in which it changed counts as it was before.
    assert!((by_time.value / 5_500.0 - 1.0).abs() < 0.07, "{by_time:?}");
    // The change itself is hardly chance: both times are known well.
    let relative = |e: &Estimate| e.half_width() / e.value;
    assert!(relative(&by_time) < 0.6 * relative(&alike), "{by_time:?} {alike:?}");
}

/// Nothing was seen of five bursts in the second half; that bounds the rate, and does not say that it is 0.
#[test]
fn a_time_without_hits_has_an_upper_end() {
    let times: Vec<f64> = (0..10).map(|i| 1.0 + 2.0 * f64::from(i)).collect();
    let bursts: Vec<Burst> = (0..10).map(|i| window(if i < 5 { 100 } else { 0 }, 0.01)).collect();
    let e = rate_over(&bursts, &at(&times, 20.0), LEVEL, None, Of::LONG).unwrap();
    assert!((e.value / 5_000.0 - 1.0).abs() < 1e-3 && e.high > 5_000.0 + 10.0, "{e:?}");
}

/// Bursts at `times` of a run of 20 s in which everything is known: their rates, but for what lies between them.
fn without_noise(times: &[f64], rate: impl Fn(f64) -> f64) -> Estimate {
    // A million hits a burst.
    let bursts: Vec<Burst> = times.iter().map(|s| window((rate(*s) * 1e4).round() as u64, 1e4)).collect();
    rate_over(&bursts, &at(times, 20.0), LEVEL, None, Of::LONG).unwrap()
}

/// What lies between bursts is not known, however well each of them is: where in a gap a rate changes.
#[test]
fn bursts_without_noise_leave_what_lies_between_them() {
    let mut rng = rng(71);
    for (name, ratio, width_s) in [("step", 5.0_f64, 1e-6), ("soon", 5.0, 0.5), ("slowly", 10.0, 5.0)] {
        let (mut c, mut off) = (Coverage::default(), 0.0);
        for _ in 0..400 {
            let turn = rng.random_range(4.0..16.0);
            let rate = |s: f64| 100.0 * ratio.powf(1.0 / (1.0 + ((turn - s) / width_s).exp()));
            let (mut times, mut now) = (Vec::new(), rng.random_range(0.1..0.5));
            while now < 19.9 {
                times.push(now);
                now += if now < turn { 0.5 } else { 2.0 } * rng.random_range(0.5..1.5);
            }
            let truth = (0..20_000).map(|i| rate(f64::from(i) * 1e-3 + 5e-4)).sum::<f64>() / 20_000.0;
            let e = without_noise(&times, rate);
            c.note(Interval { low: e.low, high: e.high }, truth);
            off += (e.value / truth - 1.0) / 400.0;
        }
        c.check(0.93, 1.0, name);
        assert!(f64::abs(off) < 0.05, "{name}: {off}");
    }
}

/// Fourteen bursts in the first 5 s, and one that stands for most of the run: seen of a plan that had no tokens left. If that is called alike, all of them
/// say what its rate is.
#[test]
fn bursts_that_show_no_change_count_alike_wherever_they_lie() {
    let mut rng = rng(72);
    let (mut c, mut wider) = (Coverage::default(), Vec::new());
    let mut times: Vec<f64> = (0..14).map(|i| 0.2 + 0.35 * f64::from(i)).collect();
    times.push(13.0);
    for _ in 0..1_000 {
        let bursts: Vec<Burst> =
            times.iter().map(|_| window((1e6 * (0.2 * normal(&mut rng)).exp()) as u64, 1.0)).collect();
        let by_time = rate_over(&bursts, &at(&times, 20.0), LEVEL, None, Of::LONG).unwrap();
        c.note(Interval { low: by_time.low, high: by_time.high }, 1e6 * 0.02_f64.exp());
        wider.push(by_time.half_width() / rate(&bursts, LEVEL).unwrap().half_width());
    }
    wider.sort_by(f64::total_cmp);
    c.check(0.92, 0.98, "no change");
    // The one alone would make it more than twice as wide.
    assert!(wider[500] < 1.1 && wider[900] < 2.0, "{} {}", wider[500], wider[900]);
}

/// `k` of windows of a second with so many hits.
fn part(hits: &[u64]) -> f64 {
    let bursts: Vec<Burst> = hits.iter().map(|n| window(*n, 1.0)).collect();
    let refs: Vec<&Burst> = bursts.iter().collect();
    change(&refs, &vec![1.0; hits.len()], 100.0, |b| b.time_s)
}

#[test]
fn a_change_is_told_from_noise_by_the_order_of_bursts() {
    assert_eq!(part(&[100; 9]), 0.0);
    assert_eq!(part(&[80, 120, 90, 130, 70, 110, 100, 120, 80]), 0.0);
    let step = part(&[100, 104, 97, 101, 99, 500, 485, 510, 505]);
    assert!(step > 0.7, "{step}");
    // One that is unlike may be either.
    let last = part(&[100, 104, 97, 101, 99, 102, 98, 100, 500]);
    assert!(last > 0.4, "{last}");
    let slowly = part(&[100, 120, 144, 173, 207, 249, 299, 358, 430]);
    assert!(slowly > 0.8, "{slowly}");
    // The same rates in another order.
    assert!(part(&[430, 100, 358, 120, 299, 144, 249, 173, 207]) < 0.3);
}

/// Calls that come in clusters: one burst of twenty meets one and sees ten times the rate, wherever it lies. That is noise, and most bursts lie in the first third.
#[test]
fn clusters_of_calls_are_no_change() {
    let mut rng = rng(73);
    let times: Vec<f64> = (0..30).map(f64::from).chain((0..10).map(|i| 33.0 + 9.0 * f64::from(i))).collect();
    let (mut mean, mut wider) = (0.0, Vec::new());
    for _ in 0..400 {
        let mut of = || if rng.random::<f64>() < 0.05 { 1_000 } else { 95 + rng.random_range(0..10) };
        let hits: Vec<u64> = times.iter().map(|_| of()).collect();
        mean += part(&hits) / 400.0;
        let bursts: Vec<Burst> = hits.iter().map(|n| window(*n, 1.0)).collect();
        let by_time = rate_over(&bursts, &at(&times, 120.0), LEVEL, None, Of::LONG).unwrap();
        wider.push(by_time.half_width() / rate(&bursts, LEVEL).unwrap().half_width());
    }
    wider.sort_by(f64::total_cmp);
    assert!(mean < 0.1 && wider[200] < 1.1, "{mean} {}", wider[200]);
}

/// Half of the run, in which 0.05 s were watched: at one hit in that, 20 calls a second of half of the run.
#[test]
fn of_strata_without_hits_one_may_have_been_missed() {
    let strata =
        [Stratum { bursts: 0..3, mean: 5.0, likely: 5.0 }, Stratum { bursts: 3..6, mean: 0.0, likely: 20.0 }];
    assert!((without_hits(&strata, &[1.0 / 6.0; 6]) - 100.0).abs() < 1e-9);
}

proptest! {
    #[test]
    fn weights_are_the_times_and_the_mean_lies_among_the_rates(
        bursts in prop::collection::vec((0u64..200, 1e-4f64..0.5, 0.0f64..2.0, 0.0f64..2.0), 1..60),
    ) {
        let (mut spans, mut now_s, mut of) = (Vec::new(), 0.0, Vec::new());
        for (hits, time_s, gap_s, _) in &bursts {
            now_s += gap_s;
            spans.push((now_s, now_s + time_s));
            now_s += time_s;
            of.push(window(*hits, *time_s));
        }
        let run_s = now_s + 0.5;
        let mut cells = cells(&spans, run_s, |from, to| to - from);
        cells.iter_mut().zip(&bursts).for_each(|(c, (.., used))| c.used = *used);
        let sum: f64 = cells.iter().map(|c| c.stands_for_s).sum();
        let watched_s: f64 = spans.iter().map(|(begin, end)| end - begin).sum();
        prop_assert!(((sum + watched_s) / run_s - 1.0).abs() < 1e-9);
        let strata = strata(&cells);
        prop_assert_eq!(strata.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..of.len()).collect::<Vec<_>>());
        prop_assert!(strata.len() == 1 || strata.iter().all(|s| s.len() >= LEAST));
        let refs: Vec<&Burst> = of.iter().collect();
        let weighed = Weighed::of(&refs, &cells, |b| b.time_s);
        prop_assert!((weighed.weights.iter().sum::<f64>() - 1.0).abs() < 1e-6);
        let rates = || of.iter().map(|b| b.hits as f64 / b.time_s);
        let (low, high) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
        prop_assert!(low * (1.0 - 1e-9) <= weighed.mean && weighed.mean <= high * (1.0 + 1e-9));
        let e = rate_over(&of, &cells, LEVEL, None, Of::Run { unseen: 0.9 }).unwrap();
        prop_assert!(e.low <= e.value && e.value <= e.high && e.high.is_finite(), "{e:?}");
    }
}
