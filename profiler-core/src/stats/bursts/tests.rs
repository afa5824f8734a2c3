use super::super::LEVEL;
use super::super::sim::{Coverage, exponential, poisson, rng, unit_gamma};
use super::*;
use rand::RngExt as _;
use rand::rngs::StdRng;

/// A burst on a Poisson process of `rate` per undilated second, ended by quota or window (dilated by `tau`).
fn burst(rng: &mut StdRng, rate: f64, quota: u64, window_s: f64, tau: f64) -> Burst {
    let (mut own, mut hits) = (0.0, 0);
    let (stop, elapsed_s) = loop {
        let gap = exponential(rng, 1.0 / rate);
        if own + gap + hits as f64 * tau > window_s {
            break (Stop::Window, window_s);
        }
        own += gap;
        hits += 1;
        if hits == quota {
            break (Stop::Quota, own + hits as f64 * tau);
        }
    };
    let time = BurstTime { elapsed_s, target_cpu_s: 0.0, threads: 1, other_cost_s: 0.0, cpu_per_s: 1.0 };
    Burst { quota: Some(quota), window_s: Some(window_s), ..Burst::new(&time, hits, stop, (tau, tau, tau)) }
}

#[test]
fn unbiased_and_covering_for_every_stopping_rule() {
    // (rate, quota, window, bursts): by window only, by quota only, by both, one burst, few hits.
    let cells = [
        (1_000.0, 1_000_000, 0.05, 10),
        (1e6, 100, 0.05, 10),
        (2_000.0, 100, 0.05, 8),
        (5e4, 200, 0.05, 1),
        (300.0, 50, 0.05, 1),
        (20.0, 50, 0.05, 12),
        (1e5, 8, 0.05, 20),
    ];
    let mut rng = rng(51);
    for (rate_hz, quota, window, m) in cells {
        let (mut c, mut bias) = (Coverage::default(), 0.0);
        for _ in 0..2_000 {
            let bursts: Vec<Burst> = (0..m).map(|_| burst(&mut rng, rate_hz, quota, window, 7e-7)).collect();
            let e = rate(&bursts, LEVEL).unwrap();
            bias += (e.value / rate_hz - 1.0) / 2_000.0;
            c.note(Interval { low: e.low, high: e.high }, rate_hz);
        }
        let what = format!("rate {rate_hz}, quota {quota}, {m} bursts");
        assert!(bias.abs() < 0.012, "{what}: bias {bias}");
        // Few hits, or quotas of few: conservative on purpose.
        let few = quota < 20 || rate_hz * window * f64::from(m) < 20.0;
        c.check(0.93, if few { 0.995 } else { 0.975 }, &what);
    }
}

#[test]
fn few_bursts_are_wide_but_hold() {
    let mut rng = rng(52);
    for m in [2, 3, 4] {
        let mut c = Coverage::default();
        for _ in 0..2_000 {
            let bursts: Vec<Burst> = (0..m).map(|_| burst(&mut rng, 1e5, 200, 0.05, 7e-7)).collect();
            let e = rate(&bursts, LEVEL).unwrap();
            c.note(Interval { low: e.low, high: e.high }, 1e5);
        }
        c.check(0.94, 1.0, "few bursts");
    }
}

#[test]
fn the_spread_between_bursts_decides_when_the_load_varies() {
    let mut rng = rng(53);
    let (mut c, mut plain, mut bias) = (Coverage::default(), Coverage::default(), 0.0);
    for _ in 0..2_000 {
        // Each burst meets its own rate: coefficient of variation 0.5.
        let bursts: Vec<Burst> = (0..15)
            .map(|_| {
                let f = 1e5 * unit_gamma(&mut rng, 4);
                burst(&mut rng, f, 1_000_000, 0.02, 7e-7)
            })
            .collect();
        let e = rate(&bursts, LEVEL).unwrap();
        bias += (e.value / 1e5 - 1.0) / 2_000.0;
        c.note(Interval { low: e.low, high: e.high }, 1e5);
        let time: f64 = bursts.iter().map(|b| b.time_s).sum();
        plain.note(garwood(e.n as f64, LEVEL).scaled(1.0 / time), 1e5);
    }
    c.check(0.92, 0.97, "varying load");
    assert!(plain.share() < 0.3, "Poisson would have done: {}", plain.share());
    assert!(bias.abs() < 0.02, "{bias}");
}

#[test]
fn quotas_do_not_make_hot_moments_count_less() {
    // Half of the time 1e4/s, half 1e6/s; all bursts end by quota. Summed hits over summed time would say 2e4.
    let mut rng = rng(54);
    let mut mean = 0.0;
    for _ in 0..200 {
        let bursts: Vec<Burst> =
            (0..40).map(|i| burst(&mut rng, if i % 2 == 0 { 1e4 } else { 1e6 }, 100, 0.05, 7e-7)).collect();
        mean += rate(&bursts, LEVEL).unwrap().value / 200.0;
    }
    assert!((mean / 505_000.0 - 1.0).abs() < 0.01, "{mean}");
}

#[test]
fn dilation_is_taken_out_from_1e2_to_1e7_calls_a_second() {
    let mut rng = rng(55);
    for tau in [7e-7, 9.3e-6] {
        for decade in 2..=7 {
            let truth = 10f64.powi(decade);
            let mean: f64 = (0..200)
                .map(|_| rate(&[burst(&mut rng, truth, 2_000, 1.0, tau)], LEVEL).unwrap().value)
                .sum::<f64>()
                / 200.0;
            assert!((mean / truth - 1.0).abs() < 0.02, "tau {tau}, rate {truth}: {mean}");
        }
    }
    // Without the correction 1e7/s on a stepped site would read a hundredfold low.
    let b = burst(&mut rng, 1e7, 2_000, 1.0, 9.3e-6);
    assert!(b.hits as f64 / (b.time_s + b.hits as f64 * 9.3e-6) < 1.2e5);
}

#[test]
fn many_threads_use_cpu_time() {
    // 4 threads busy, 8 s of CPU in 2 s of wall time, of which 2 s were ours: 6 s of own time at U = 4.
    let time = BurstTime { elapsed_s: 2.0, target_cpu_s: 8.0, threads: 4, other_cost_s: 0.5, cpu_per_s: 4.0 };
    assert_eq!(undilated_s(&time, 1_500_000, 1e-6), 1.5);
    // No CPU time measured: the cost is spread over the threads that run.
    assert_eq!(undilated_s(&BurstTime { target_cpu_s: 0.0, ..time }, 1_500_000, 1e-6), 1.5);
    // CPU time read long after the quota ended the burst (0.1 s of 4 threads cannot use 8 s): not used.
    let late = BurstTime { elapsed_s: 0.1, other_cost_s: 0.0, ..time };
    assert!((undilated_s(&late, 40_000, 1e-6) - 0.09).abs() < 1e-12);
    // A price that exceeds the time leaves a nanosecond a call.
    assert_eq!(undilated_s(&time, 10_000_000, 1e-6), 0.01);
}

#[test]
fn one_short_burst_of_a_thread_that_mostly_waits_is_wide() {
    let time =
        BurstTime { elapsed_s: 2e-3, target_cpu_s: 0.0, threads: 1, other_cost_s: 0.0, cpu_per_s: 0.25 };
    let tau = (1e-6, 1e-6, 1e-6);
    let of = |time: BurstTime| rate(&[Burst::new(&time, 1_000, Stop::Quota, tau)], LEVEL).unwrap();
    let (waits, runs) = (of(time), of(BurstTime { cpu_per_s: 1.0, ..time }));
    assert!((waits.low / runs.low - 0.25).abs() < 0.01, "{waits:?} {runs:?}");
    assert!((waits.high / runs.high - 4.0).abs() < 0.1, "{waits:?} {runs:?}");
}

#[test]
fn the_price_s_uncertainty_is_in_the_interval() {
    let mut rng = rng(56);
    let mut c = Coverage::default();
    let truth = 1e6;
    for _ in 0..2_000 {
        // The hit really costs 0.7 us; the model says 0.665 to 0.735 around a value that errs uniformly.
        let mut b = burst(&mut rng, truth, 4_000, 1.0, 7e-7);
        let elapsed_s = b.time_s + b.hits as f64 * 7e-7;
        let tau = 7e-7 * (1.0 + 0.05 * (2.0 * rand::RngExt::random::<f64>(&mut rng) - 1.0));
        let time = BurstTime { elapsed_s, target_cpu_s: 0.0, threads: 1, other_cost_s: 0.0, cpu_per_s: 1.0 };
        b = Burst::new(&time, b.hits, b.stop, (tau, tau * 0.95, tau * 1.05));
        let e = rate(&[b], LEVEL).unwrap();
        c.note(Interval { low: e.low, high: e.high }, truth);
    }
    c.check(0.93, 0.98, "uncertain price");
}

#[test]
fn totals_of_a_run_cover_and_shrink_to_exact() {
    let mut rng = rng(57);
    let mut c = Coverage::default();
    for _ in 0..2_000 {
        // 100 slots of 0.1 s, each with its own rate; a random 30 of them watched.
        let counts: Vec<f64> = (0..100)
            .map(|_| {
                let f = 2_000.0 * unit_gamma(&mut rng, 4);
                poisson(&mut rng, f * 0.1)
            })
            .collect();
        let total: f64 = counts.iter().sum();
        let mut order: Vec<usize> = (0..100).collect();
        for i in 0..30 {
            let j = rand::RngExt::random_range(&mut rng, i..100);
            order.swap(i, j);
        }
        let bursts: Vec<Burst> = order[..30]
            .iter()
            .map(|&i| Burst {
                hits: counts[i] as u64,
                stop: Stop::Window,
                time_s: 0.1,
                time_low_s: 0.1,
                time_high_s: 0.1,
                quota: None,
                window_s: None,
                busy: 1.0,
            })
            .collect();
        let e = rate_of(&bursts, LEVEL, None, Of::Rest { unseen: 0.7 }).unwrap();
        let t = run_total(e.n, 3.0, 10.0, &e);
        c.note(Interval { low: t.low, high: t.high }, total);
    }
    c.check(0.93, 0.97, "run total");
    let e = Estimate {
        value: 10.0,
        low: 5.0,
        high: 15.0,
        level: 0.95,
        n: 100,
        source: Source::Burst,
        at_most: false,
    };
    assert_eq!(run_total(100, 10.0, 10.0, &e), Estimate::exact(100.0, 100));
    let t = run_total(100, 9.0, 10.0, &e);
    assert_eq!((t.value, t.low, t.high), (110.0, 105.0, 115.0));
}

/// What is unknown of the price is as unknown in all of the rest, and of what was counted nothing; chance shrinks with the root.
#[test]
fn of_a_total_the_price_s_part_shrinks_faster_than_chance() {
    let half = |price: f64, unseen: f64| {
        let bursts: Vec<Burst> = (0..20)
            .map(|i| {
                let time_s = if i % 2 == 0 { 0.09 } else { 0.11 };
                let (time_low_s, time_high_s) = (time_s * (1.0 - price), time_s * (1.0 + price));
                Burst { time_s, time_low_s, time_high_s, ..window_of(1_000, 0.1) }
            })
            .collect();
        let rest = rate_of(&bursts, LEVEL, None, Of::Rest { unseen }).unwrap();
        let t = run_total(rest.n, 1.0 - unseen, 1.0, &rest);
        (t.high - t.low) / 2.0 / rest.value
    };
    let by_chance = |unseen: f64| half(0.0, unseen);
    assert!(
        (by_chance(0.04) / by_chance(0.64) - 0.25).abs() < 0.01,
        "{} {}",
        by_chance(0.04),
        by_chance(0.64)
    );
    let by_price = |unseen: f64| (half(0.3, unseen).powi(2) - by_chance(unseen).powi(2)).sqrt();
    // All of it: 0.3 of the rest, and somewhat more upwards.
    assert!((0.29..0.36).contains(&by_price(1.0)), "{}", by_price(1.0));
    assert!((by_price(0.04) / by_price(1.0) - 0.04).abs() < 0.002, "{} {}", by_price(0.04), by_price(1.0));
    // Nothing was seen, in half of the run or nearly all: the upper limit is the same share of the rest, and of the run less.
    let none = |of| rate_of(&[window_of(0, 1.0)], LEVEL, None, of).unwrap().high;
    assert!((none(Of::Run { unseen: 0.25 }) / none(Of::LONG) - 0.5).abs() < 1e-9);
    assert!((none(Of::Rest { unseen: 0.25 }) / none(Of::LONG) - 2.0).abs() < 1e-9);
}

/// A window that saw so many hits.
fn window_of(hits: u64, time_s: f64) -> Burst {
    Burst {
        hits,
        stop: Stop::Window,
        time_s,
        time_low_s: time_s,
        time_high_s: time_s,
        quota: None,
        window_s: None,
        busy: 1.0,
    }
}

#[test]
fn nothing_seen_is_not_nothing_there() {
    let still = Burst {
        hits: 0,
        stop: Stop::Window,
        time_s: 2.0,
        time_low_s: 2.0,
        time_high_s: 2.0,
        quota: None,
        window_s: None,
        busy: 1.0,
    };
    let e = rate(&[still], LEVEL).unwrap();
    assert_eq!((e.value, e.low), (0.0, 0.0));
    assert!((e.high - 3.6889 / 2.0).abs() < 1e-3);
    assert!(rate(&[], LEVEL).is_none());
    assert!(rate(&[Burst { time_s: 0.0, ..still }], LEVEL).is_none());
    // Quotas of one hit: no rate, but a bound.
    let single = Burst { hits: 1, stop: Stop::Quota, quota: Some(1), ..still };
    let e = rate(&[single, single], LEVEL).unwrap();
    assert!(e.high.is_finite() && e.high > 0.5 && !e.value.is_nan());
}

/// Bursts of 500 hits on a trap that costs `true_tau`, with a price that is believed to be 700 ns and lie within a quarter of it.
fn with_wrong_price(rng: &mut StdRng, rate_hz: f64, true_tau: f64) -> Vec<Burst> {
    let one = |rng: &mut StdRng| {
        let own: f64 = (0..500).map(|_| exponential(rng, 1.0 / rate_hz)).sum();
        let elapsed_s = own + 500.0 * true_tau;
        let time = BurstTime { elapsed_s, target_cpu_s: 0.0, threads: 1, other_cost_s: 0.0, cpu_per_s: 1.0 };
        Burst::new(&time, 500, Stop::Quota, (7e-7, 5.25e-7, 8.75e-7))
    };
    (0..10).map(|_| one(rng)).collect()
}

#[test]
fn a_rate_that_the_price_hides_is_bounded_from_below() {
    let mut rng = rng(56);
    for true_tau in [6e-7, 7e-7, 8.4e-7] {
        for rate_hz in [3e6, 1e7] {
            let bursts = with_wrong_price(&mut rng, rate_hz, true_tau);
            let e = rate_or_bound(&bursts, &[], LEVEL, None, Of::LONG).unwrap();
            assert!(e.high.is_infinite() && e.low < rate_hz, "{rate_hz} at {true_tau}: {e:?}");
            // A bound that says something: without any correction it would be 1 / (tau + 1 / F).
            assert!(e.low > 0.95 / (true_tau + 1.0 / rate_hz), "{rate_hz} at {true_tau}: {e:?}");
            assert!((e.low..=e.high).contains(&e.value));
        }
    }
    // A confident value there was 70 % too low: the trap cost 20 % more than its price.
    let plain = rate(&with_wrong_price(&mut rng, 1e7, 8.4e-7), LEVEL).unwrap();
    assert!(plain.value < 0.45e7, "{plain:?}");
}

#[test]
fn a_rate_that_the_price_only_blurs_keeps_two_ends() {
    let mut rng = rng(57);
    for true_tau in [6e-7, 7e-7, 8.4e-7] {
        for rate_hz in [1e3, 1e5, 5e5] {
            let bursts = with_wrong_price(&mut rng, rate_hz, true_tau);
            let e = rate_or_bound(&bursts, &[], LEVEL, None, Of::LONG).unwrap();
            assert_eq!(Some(e), rate(&bursts, LEVEL));
            assert!(e.high.is_finite());
            if rate_hz > 1e4 {
                assert!((e.low..=e.high).contains(&rate_hz), "{rate_hz} at {true_tau}: {e:?}");
            }
        }
    }
    assert_eq!(rate_or_bound(&[], &[], LEVEL, None, Of::LONG), None);
}

/// Seen on a target whose neighbours' cost may have swallowed all of a first look: the run ended with a rate of NaN.
#[test]
fn a_window_without_hits_and_perhaps_without_time_is_no_nan() {
    let empty = Burst {
        hits: 0,
        stop: Stop::Window,
        time_s: 1e-5,
        time_low_s: 0.0,
        time_high_s: 1e-4,
        quota: Some(31),
        window_s: Some(1e-3),
        busy: 1.0,
    };
    let full =
        Burst { hits: 127, time_s: 5e-4, time_low_s: 4e-4, time_high_s: 6e-4, stop: Stop::Quota, ..empty };
    for drift in [None, Some(Drift { variance: 0.1, apart_s: 0.1, brief_s: 1e-4, ..Drift::default() })] {
        let e = rate_with(&[empty, full], LEVEL, drift.as_ref()).unwrap();
        assert!(e.low <= e.value && e.value <= e.high && e.high.is_finite(), "{e:?}");
    }
}

/// Batches of 50 calls, one every 1000 units: windows that begin at any time and end with the same hit see too many of them, windows whose quotas
/// differ do not.
#[test]
fn batches_of_calls_are_counted_without_bias_where_quotas_differ() {
    use crate::burst::{MEAN_QUOTA_PART, quota_part};
    let mut rng = rng(47);
    let mut told = |quota: u64, differ: bool| {
        let bursts: Vec<Burst> = (0..4_000)
            .map(|i| {
                let q = if differ { (quota as f64 * quota_part(i) / MEAN_QUOTA_PART) as u64 } else { quota };
                // The first batch comes after a part of 1000; hit q lies in batch (q - 1) / 50, at its own unit.
                let first = rng.random::<f64>() * 1_000.0;
                let elapsed_s = first + ((q - 1) / 50) as f64 * 1_000.0 + ((q - 1) % 50) as f64;
                let time =
                    BurstTime { elapsed_s, target_cpu_s: 0.0, threads: 1, other_cost_s: 0.0, cpu_per_s: 1.0 };
                Burst::new(&time, q, Stop::Quota, (0.0, 0.0, 0.0))
            })
            .collect();
        rate(&bursts, 0.95).unwrap().value * 1_000.0 / 50.0
    };
    for (quota, fixed) in [(250, 1.1), (500, 1.05), (1_000, 1.025)] {
        let (same, different) = (told(quota, false), told(quota, true));
        assert!((same - fixed).abs() < 0.02, "{quota}: {same}");
        assert!((different - 1.0).abs() < 0.02, "{quota}: {different}");
    }
}

/// 1,000 hits in 1 ms, and what the smallest price, the value and the largest leave of it.
#[test]
fn a_swallowed_burst_is_no_rate_of_a_call_a_nanosecond() {
    let burst = |price_s: (f64, f64, f64)| {
        let time =
            BurstTime { elapsed_s: 1e-3, target_cpu_s: 0.0, threads: 1, other_cost_s: 0.0, cpu_per_s: 1.0 };
        Burst::new(&time, 1_000, Stop::Quota, price_s)
    };
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    // What prices leave is believed from a twentieth of the time on.
    for believed in [burst((0.5e-6, 0.4e-6, 0.6e-6)), burst((0.95e-6, 0.9e-6, 0.99e-6))] {
        assert_eq!(believed.swallowed(1e-3), believed);
    }
    let at_value = burst((1.1e-6, 0.8e-6, 1.2e-6)).swallowed(1e-3);
    assert!(near(at_value.time_s, 0.05e-3) && near(at_value.time_high_s, 0.2e-3), "{at_value:?}");
    assert_eq!(at_value.time_low_s, 1_000.0 * LEAST_CALL_S);
    let all = burst((1.3e-6, 1.2e-6, 1.4e-6)).swallowed(1e-3);
    assert!(near(all.time_s, 0.05e-3) && near(all.time_high_s, 1e-3), "{all:?}");
    // Between the two nothing jumps: less left is never a shorter time.
    let mut before = 1.1e-3;
    for left_ns in [-400.0, -1.0, 0.5, 1.5, 5.0, 20.0, 45.0, 49.9, 50.0] {
        let cheap_s = (1_000.0 - left_ns) * 1e-9;
        let of = burst((cheap_s + 0.05e-6, cheap_s, cheap_s + 0.1e-6)).swallowed(1e-3);
        assert!(of.time_high_s <= before + 1e-9 && of.time_s >= 0.05e-3 - 1e-12, "{left_ns}: {of:?}");
        assert!(of.time_low_s <= of.time_s && of.time_s <= of.time_high_s, "{left_ns}: {of:?}");
        before = of.time_high_s;
    }
    assert!(near(before, 0.05e-3), "{before}");
    // A price that is exact is believed.
    let exact = burst((0.99e-6, 0.99e-6, 0.99e-6));
    assert_eq!(exact.swallowed(1e-3), exact);
    // Without a hit nothing was swallowed, whatever others cost.
    let time =
        BurstTime { elapsed_s: 1e-3, target_cpu_s: 0.0, threads: 1, other_cost_s: 2e-3, cpu_per_s: 1.0 };
    let empty = Burst::new(&time, 0, Stop::Window, (0.0, 0.0, 0.0));
    assert_eq!(empty.swallowed(1e-3), empty);
}
