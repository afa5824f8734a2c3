use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// So many calls come by chance where `mean` do on average.
pub(in crate::report::build) fn poisson(random: &mut StdRng, mean: f64) -> f64 {
    let (mut at, mut calls) = (0.0, 0.0);
    loop {
        at -= (1.0 - random.random::<f64>()).ln();
        if at > mean {
            return calls;
        }
        calls += 1.0;
    }
}

/// `n` windows that a quota of `quota` calls of a function ends. On one call of the reference come 100, more or less by `spread` from window to window.
fn by_quota(random: &mut StdRng, n: usize, quota: f64, spread: f64) -> Vec<(f64, f64)> {
    let window = |random: &mut StdRng| {
        let ratio = 100.0 * (1.0 + spread * (2.0 * random.random::<f64>() - 1.0));
        (quota, poisson(random, quota / ratio))
    };
    (0..n).map(|_| window(random)).collect()
}

/// The ratio to one reference.
fn of_calls(windows: &[(f64, f64)]) -> Option<Relative> {
    let calls: f64 = windows.iter().map(|(_, calls)| calls).sum();
    if calls < LEAST_CALLS { None } else { ratio(windows, 1.0 / calls, NO_CLOCK) }
}

/// Of 400 runs those whose interval holds 100, and the mean value of those that tell one.
fn held(windows: impl Fn(&mut StdRng) -> Vec<(f64, f64)>) -> (usize, f64) {
    let mut random = StdRng::seed_from_u64(7);
    let told: Vec<Relative> = (0..400).filter_map(|_| of_calls(&windows(&mut random))).collect();
    let holds = |r: &&Relative| r.value * (1.0 - r.below) <= 100.0 && 100.0 <= r.value * (1.0 + r.above);
    let mean = told.iter().map(|r| r.value).sum::<f64>() / told.len() as f64;
    assert!(told.len() > 380, "{} told", told.len());
    (400 * told.iter().filter(holds).count() / told.len(), mean)
}

#[test]
fn the_interval_of_a_ratio_holds_it() {
    for (n, quota, spread) in [(5, 2_000.0, 0.0), (12, 2_000.0, 0.0), (12, 2_000.0, 0.5), (40, 500.0, 0.3)] {
        let (held, mean) = held(|random| by_quota(random, n, quota, spread));
        assert!(held >= 372, "{n} windows of {quota} calls, {spread}: {held} of 400");
        assert!((mean - 100.0).abs() < 5.0, "{n} windows of {quota} calls, {spread}: {mean}");
    }
    // As regular as a loop, three or four calls in each of a hundred windows.
    let (held, mean) =
        held(|random| (0..100).map(|_| (350.0, if random.random::<bool>() { 3.0 } else { 4.0 })).collect());
    assert!(held == 400 && (mean - 100.0).abs() < 1.0, "{held} of 400, {mean}");
}

/// Of half of the windows, which the clock ended, the function saw none of its calls.
#[test]
fn windows_without_a_call_count() {
    let windows: Vec<(f64, f64)> = (0..40).map(|i| (f64::from(i % 4 / 2) * 2_000.0, 20.0)).collect();
    // That unlike they are, that nothing is told; where every fourth is empty they are not.
    assert!(of_calls(&windows).is_none());
    let windows: Vec<(f64, f64)> = (0..40).map(|i| (if i % 8 == 0 { 0.0 } else { 2_000.0 }, 20.0)).collect();
    let told = of_calls(&windows).unwrap();
    assert!((told.value * (1.0 - told.below)..=told.value * (1.0 + told.above)).contains(&87.5), "{told:?}");
}

#[test]
fn few_windows_few_calls_and_phases_say_nothing() {
    let mut random = StdRng::seed_from_u64(8);
    let all = by_quota(&mut random, 12, 2_000.0, 0.0);
    assert!(of_calls(&all[..4]).is_none());
    let few: Vec<(f64, f64)> = all.iter().map(|(hits, _)| (*hits, 1.5)).collect();
    assert!(of_calls(&few).is_none());
    // Now 10 on one call of the reference, now 100.
    let phases: Vec<(f64, f64)> = (0..16).map(|i| (1_000.0, if i % 2 == 0 { 10.0 } else { 100.0 })).collect();
    assert!(of_calls(&phases).is_none());
}

#[test]
fn relative_errors_of_ratio_and_reference_add_by_their_squares() {
    let of = |value: f64, below: f64, above: f64| Relative { value, below, above };
    let rate = times(of(100.0, 0.03, 0.04), of(1e4, 0.04, 0.03), 5);
    assert_eq!((rate.value, rate.n), (1e6, 5));
    assert!((rate.low - 0.95e6).abs() < 1.0 && (rate.high - 1.05e6).abs() < 1.0, "{rate:?}");
}

/// A reference that is called as evenly as in a loop, and a ratio that differs from window to window by up to a half: all of it is in the interval.
#[test]
fn even_references_do_not_hide_how_unlike_windows_are() {
    let (held, _) = held(|random| {
        let window = |random: &mut StdRng| {
            let ratio = 100.0 * (1.0 + 0.6 * (2.0 * random.random::<f64>() - 1.0));
            let calls = 400.0 / ratio;
            (400.0, calls.floor() + f64::from(u8::from(random.random::<f64>() < calls.fract())))
        };
        (0..100).map(|_| window(random)).collect()
    });
    assert!(held >= 380, "{held} of 400");
}

/// Both are hit until the link is gone: what the function's used-up quota turned away counts, and what the reference's did.
#[test]
fn calls_of_both_are_those_of_the_link() {
    use crate::class::ClassId;
    use crate::recording::plain_window;
    let window = |id: u32, span, hits| plain_window(ClassId(id), WindowKind::Burst, span, hits);
    let function = WindowRow { attempted: 1_500, gated: 1_000, ..window(1, (1_000, 3_000), 500) };
    let lent = |span, hits| WindowRow { link: Some(1), ..window(2, span, hits) };
    let reference = WindowRow { attempted: 75, gated: 35, ..lent((1_000, 5_000), 40) };
    assert!(is_lent(&reference) && !is_lent(&function));
    let seen = |calls, (ran_s, hits)| {
        Some(Seen { calls, clock: Clocked { ran_s, hits, by_quota: function.tripped, told: 0.0 } })
    };
    assert_eq!(calls(&function, &reference), seen((1_500.0, 75.0), (2e-6, 500.0)));
    assert_eq!(calls(&window(1, (1_000, 1_000), 0), &reference), None, "it saw nothing");
    assert_eq!(calls(&window(1, (1_000, 5_000), 0), &reference), seen((0.0, 75.0), (4e-6, 0.0)));
    // One that lies beside no window of the function, and one that led its link.
    let alone = WindowRow { link: Some(2), ..reference.clone() };
    let rows = vec![reference, lent((9_000, 9_500), 40), alone];
    let recording = Recording { windows: rows, ..crate::report::build::tests::empty() };
    let windows = BTreeMap::from([(1, vec![&function]), (2, Vec::new())]);
    let pairs = pairs(&recording, &windows);
    assert_eq!(pairs.values().map(Vec::len).collect::<Vec<_>>(), [1], "{pairs:?}");
}

fn estimate(low: f64, value: f64, high: f64) -> Estimate {
    Estimate { value, low, high, level: LEVEL, n: 100, source: Source::Burst, at_most: false }
}

#[test]
fn a_reference_is_told_where_it_knows_more_or_contradicts_clearly() {
    let beside = |low, value, high| Beside { rate: estimate(low, value, high), price_half: 0.02 };
    let wide = beside(400.0, 500.0, 600.0);
    // Hidden by the price; known no better; known better; a limit that says more.
    assert_eq!(better(Some(estimate(150.0, 150.0, f64::INFINITY)), wide), Some(wide));
    assert_eq!(better(None, wide), Some(wide));
    assert_eq!(better(Some(estimate(450.0, 500.0, 550.0)), wide), None);
    assert_eq!(better(Some(estimate(100.0, 500.0, 900.0)), wide), Some(wide));
    let limit = better(Some(estimate(700.0, 700.0, f64::INFINITY)), wide).unwrap().rate;
    assert_eq!((limit.low, limit.value, limit.high), (400.0, 400.0, f64::INFINITY));
    // As CPython's: 127 against 499 million calls.
    assert_eq!(better(Some(estimate(109.0, 127.0, 145.0)), wide), Some(wide));
    // Just apart: chance, perhaps.
    let both = better(Some(estimate(340.0, 360.0, 380.0)), wide).unwrap().rate;
    assert_eq!((both.low, both.value, both.high), (340.0, 500.0, 600.0));
    let both = better(Some(estimate(620.0, 630.0, 640.0)), wide).unwrap();
    assert_eq!((both.rate.low, both.rate.value, both.rate.high), (400.0, 500.0, 640.0));
    assert_eq!(both.price_half, 0.24);
    // What a price says too much of is no matter of what hits leave behind.
    let both = better(Some(estimate(950.0, 1_000.0, 1_050.0)), wide).unwrap().rate;
    assert_eq!((both.low, both.high), (400.0, 1_050.0));
    // Known better, and just apart.
    let both = better(Some(estimate(400.0, 500.0, 600.0)), beside(200.0, 380.0, 399.0)).unwrap().rate;
    assert_eq!((both.low, both.value, both.high), (200.0, 380.0, 600.0));
}

/// A window that so many hits end, each of which comes after so long.
fn quota(hits: f64, per_hit_s: f64) -> Clocked {
    Clocked { ran_s: hits * per_hit_s, hits, by_quota: true, told: 0.0 }
}

fn known(rate: f64, error: f64, seen: Vec<(f64, f64)>) -> Known {
    let rate = Relative { value: rate, below: error, above: error };
    // A call every microsecond, and as long for a hit.
    let seen = seen.into_iter().map(|calls| Seen { calls, clock: quota(calls.0, 2e-6) }).collect();
    Known { rate, price_half: 0.5 * error, seen }
}

/// `n` bursts with a reference that is called 10,000 times a second, each of so many hits as its quota is: of `part` of them every 0.2 us, of the others every 2 us. A hit takes 0.8 us.
fn fast_and_slow(random: &mut StdRng, (n, hits): (usize, f64), part: f64) -> Known {
    let one = |random: &mut StdRng| {
        let gap_s = if random.random::<f64>() < part { 0.2e-6 } else { 2e-6 };
        let calls = (hits, poisson(random, hits * gap_s * 1e4));
        Seen { calls, clock: quota(hits, gap_s + 0.8e-6) }
    };
    let seen = (0..n).map(|_| one(random)).collect();
    Known { rate: Relative { value: 1e4, below: 0.0, above: 0.0 }, price_half: 0.0, seen }
}

/// At a few moments it is called ten times as often as else: quotas end those bursts soonest, and their time is next to nothing of all.
#[test]
fn a_few_fast_moments_are_in_the_interval() {
    let mut random = StdRng::seed_from_u64(3);
    for (part, hits) in [(0.02, 5_000.0), (0.05, 5_000.0), (0.1, 5_000.0), (0.2, 500.0), (0.5, 5_000.0)] {
        let truth = 1e6 * (part / 0.2 + (1.0 - part) / 2.0);
        let (mut told, mut held) = (0, 0);
        for _ in 0..200 {
            let Some(of) = by_references(vec![fast_and_slow(&mut random, (100, hits), part)]) else {
                continue;
            };
            told += 1;
            held += u32::from((of.rate.low..=of.rate.high).contains(&truth));
        }
        // Where few of a hundred are fast it is chance how many, and where none is (13 of 100 runs) nobody sees it.
        // Of more nothing is told but in runs that drew few of them: one in twenty of all runs.
        let chance = if part < 0.03 { told / 5 } else { 10 };
        assert!(told - held <= chance.min(told.div_ceil(3) + 1), "{part}: {held} of {told}");
        assert!(if part > 0.04 { told < 40 } else { told > 100 }, "{part}: {told} told");
    }
}

/// Two phases of like length, and three references with a few bursts each: one alone may have been in one phase only.
#[test]
fn several_references_see_phases_that_one_alone_does_not() {
    let mut random = StdRng::seed_from_u64(5);
    for n in [4, 5, 6] {
        let wrong = (0..500).filter(|_| {
            let mut one = |rate: f64| {
                let window = |random: &mut StdRng| {
                    let hz = if random.random::<bool>() { 1e6 } else { 1e5 };
                    let calls = (2_000.0, poisson(random, 2_000.0 / hz * rate));
                    Seen { calls, clock: quota(2_000.0, 1.0 / hz + 1e-6) }
                };
                let seen = (0..n).map(|_| window(&mut random)).collect();
                Known { seen, ..known(rate, 0.05, vec![]) }
            };
            let told = by_references(vec![one(1e4), one(2e4), one(4e4)]);
            told.is_some_and(|told| !(told.rate.low..=told.rate.high).contains(&5.5e5))
        });
        let wrong = wrong.count();
        assert!(wrong <= 15, "{n} bursts with each: {wrong} of 500");
    }
    // Without phases it is told, also where the calls of one reference come in clusters.
    let told = (0..200).filter(|_| {
        let mut one = |rate: f64, n: usize| {
            known(rate, 0.05, (0..n).map(|_| (2_000.0, poisson(&mut random, 2_000.0 / 1e6 * rate))).collect())
        };
        let clustered =
            known(1e4, 0.05, [0.0, 0.0, 60.0].repeat(3).into_iter().map(|m| (2_000.0, m)).collect());
        let told = by_references(vec![one(1e4, 8), one(2e4, 8), clustered]);
        told.is_some_and(|told| (told.rate.low..=told.rate.high).contains(&1e6))
    });
    assert!(told.count() >= 185);
}

/// Hits that cost a tenth less at one moment in seven: where the function's own time is as much, windows are as short as fast ones, and the reference says that they are not.
#[test]
fn hits_that_cost_less_at_some_moments_are_no_fast_ones() {
    let mut random = StdRng::seed_from_u64(12);
    let told = (0..200).filter(|_| {
        let window = |random: &mut StdRng| {
            let hit_s = if random.random::<f64>() < 0.15 { 1.0e-6 } else { 1.11e-6 };
            let calls = (5_000.0, poisson(random, 5_000.0 * 0.13e-6 * 2e4));
            Seen { calls, clock: quota(5_000.0, 0.13e-6 + hit_s) }
        };
        let seen = (0..60).map(|_| window(&mut random)).collect();
        let rate = Relative { value: 2e4, below: 0.0, above: 0.0 };
        let told = by_references(vec![Known { rate, price_half: 0.0, seen }]);
        told.is_some_and(|told| (told.rate.low..=told.rate.high).contains(&(1e6 / 0.13)))
    });
    assert!(told.count() >= 185);
}

/// Windows that the clock ends are as long whatever is called: the ratio of their sums is the mean.
#[test]
fn windows_that_the_clock_ends_have_no_fast_moments() {
    let clock = Clocked { by_quota: false, ..quota(100.0, 2e-6) };
    let fast = Clocked { by_quota: false, ..quota(1_000.0, 0.9e-6) };
    // By its calls the reference was there for as long in every one, or for a tenth in some.
    let told = |of_fast: f64, by_quota: bool| -> ByClock {
        let one = |i: usize| {
            let (w, told) = if i.is_multiple_of(10) { (fast, of_fast) } else { (clock, 1.0) };
            Clocked { told: w.hits / 10.0 * told, by_quota, ..w }
        };
        by_clock(&(0..60).map(one).collect::<Vec<_>>(), 1e-6, 1.0)
    };
    assert_eq!((told(1.0, false), told(0.1, false)), (NO_CLOCK, NO_CLOCK));
    assert!(told(0.1, true).fast.0 > 0.5, "{:?}", told(0.1, true));
    let cheap = told(1.0, true);
    assert_eq!(ByClock { may_be: 0.0, ..cheap }, NO_CLOCK, "their calls are not those of fast ones");
}

/// Two windows of 42 that their quotas ended, one of them shorter: what nobody can exclude of the two is a small part of all.
#[test]
fn few_windows_that_quotas_ended_say_little_of_all() {
    let of = |hit_s: f64, told: f64, by_quota: bool| Clocked { told, by_quota, ..quota(1_000.0, hit_s) };
    let quotas = [of(2.0e-6, 3.0, true), of(1.3e-6, 2.0, true)];
    let two = by_clock(&quotas, 1e-6, 1.0);
    let windows: Vec<Clocked> = quotas.into_iter().chain((0..40).map(|_| of(2.0e-6, 3.0, false))).collect();
    let all = by_clock(&windows, 1e-6, 1.0);
    assert!(two.may_be > 1.0 && all.may_be > 0.0 && all.may_be < 0.1 * two.may_be, "{two:?} {all:?}");
}

/// One short window may be one of 5.6 by chance (Garwood 1936), where Student's t says 3; of forty both say a third more.
#[test]
fn what_one_short_window_says_reaches_to_its_poisson_limit() {
    let most = |short: f64| most_of((1.0, 1.0 / short.sqrt()), 60.0);
    assert!((most(1.0) - 5.57).abs() < 0.01 && (most(2.0) - 7.225 / 2.0).abs() < 0.01, "{}", most(1.0));
    assert!((most(40.0) - 1.33).abs() < 0.04, "{}", most(40.0));
    assert!(most_of((0.0, 0.0), 60.0).abs() < 1e-12);
}

/// So few calls of the reference that chance decides whether anything is told: who is told has seen many.
#[test]
fn few_calls_of_a_reference_are_no_higher_than_they_are() {
    let mut random = StdRng::seed_from_u64(6);
    let clock = ByClock { most: 0.01, ..NO_CLOCK };
    for (mean, least) in [(16.0, 0.9), (20.0, 0.94), (25.0, 0.94), (40.0, 0.94)] {
        let (mut told, mut held) = (0, 0);
        for _ in 0..1_000 {
            let windows: Vec<(f64, f64)> =
                (0..60).map(|_| (2_000.0, poisson(&mut random, mean / 60.0))).collect();
            let calls: f64 = windows.iter().map(|(_, calls)| calls).sum();
            let of = (calls >= LEAST_CALLS).then(|| ratio(&windows, 1.0 / calls, clock)).flatten();
            let Some(of) = of else { continue };
            told += 1;
            let truth = 60.0 * 2_000.0 / mean;
            let ends = of.value * (1.0 - of.below)..=of.value * (1.0 + of.above);
            held += u32::from(ends.contains(&truth));
        }
        let held = f64::from(held) / f64::from(told);
        assert!(held >= least, "{mean}: {held} of {told}");
    }
}

/// Three references of other rates, with three bursts each: too few of any one.
#[test]
fn bursts_with_all_references_count_together() {
    let mut random = StdRng::seed_from_u64(11);
    let mut held = 0;
    for _ in 0..200 {
        let mut bursts = |rate: f64| {
            (0..3).map(|_| (2_000.0, poisson(&mut random, 2_000.0 / 1e6 * rate))).collect::<Vec<_>>()
        };
        let of = vec![
            known(1e4, 0.05, bursts(1e4)),
            known(4e4, 0.05, bursts(4e4)),
            known(2e4, 0.06, bursts(2e4)),
            // Known too badly to be of use.
            known(2e4, 0.5, bursts(1e3)),
        ];
        let told = by_references(of).unwrap();
        held += u32::from((told.rate.low..=told.rate.high).contains(&1e6));
        // 420 calls, of which chance and what references are known to leave 8 %.
        assert!((250..600).contains(&told.rate.n) && told.price_half < 0.03, "{told:?}");
    }
    assert!(held >= 190, "{held} of 200");
    assert!(by_references(vec![]).is_none());
    // One that is known best and saw next to nothing does not stand in the way of another.
    let told = by_references(vec![
        known(1e4, 0.05, vec![(2_000.0, 1.0)]),
        known(1e4, 0.1, vec![(2_000.0, 20.0); 30]),
    ]);
    assert!(
        told.is_some_and(|told| told.rate.n >= 600 && (0.9e6..1.1e6).contains(&told.rate.value)),
        "{told:?}"
    );
    assert!(by_references(vec![known(1e4, 0.05, vec![(2_000.0, 0.0); 9])]).is_none());
}

/// One tells 1.0 M and the other 0.6 M, each of sixty bursts: one of them is wrong.
#[test]
fn references_that_contradict_each_other_are_both_held() {
    let bursts = |calls: f64| vec![(2_000.0, calls); 60];
    let told = by_references(vec![known(1e4, 0.05, bursts(20.0)), known(1e4, 0.06, bursts(33.3))]).unwrap();
    assert!(told.rate.low < 0.6e6 && told.rate.high > 1.0e6, "{told:?}");
}
