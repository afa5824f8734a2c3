//! What is taken out of durations, and what is then known of them.

use super::*;
use crate::cost::Stamps;
use crate::recording::{CallContext, CallPlace, EventRow};
use crate::stats::Interval;
use crate::stats::sim::{Coverage, exponential, normal, rng};
use rand::rngs::StdRng;

mod short;
mod words;

/// The host's price between two time stamps of `f`, ns.
const HOST_NS: f64 = 600.0;

/// A recording whose host price is known to `spread`, and whose class `f` is timed at it.
fn timed(spread: f64) -> Recording {
    let mut r = empty();
    let spread = |ns: f64| Price { ns, min_ns: ns * (1.0 - spread), max_ns: ns * (1.0 + spread), n: 7 };
    let mean = spread(HOST_NS);
    r.meta.cost.hit.values_mut().for_each(|p| *p = spread(p.ns));
    // The quantiles of `price`.
    let at = |factor: f64| factor * HOST_NS;
    let stamps = Stamps { mean, p05_ns: at(0.85), p50_ns: at(0.98), p90_ns: at(1.1), p99_ns: at(2.0) };
    r.meta.cost.stamps.insert("push/return_link".into(), stamps);
    // A tight loop meets nothing of what a trap leaves behind.
    r.meta.cost.cold = Price::fixed(0.0);
    r.classes.push(ClassRow { stamps_ns: Some(HOST_NS), ..class(1, "f") });
    r
}

/// The kernel's buckets: 32 per octave.
fn buckets(durations: &[f64]) -> Vec<HistogramRow> {
    let mut counts = std::collections::BTreeMap::new();
    for d in durations {
        let octave = d.max(64.0).log2().floor();
        let within = ((d.max(64.0) / octave.exp2() - 1.0) * 32.0).floor();
        *counts.entry((octave as u32, within as u32)).or_insert(0) += 1;
    }
    let edge =
        |octave: u32, within: u32| (f64::from(octave).exp2() * (1.0 + f64::from(within) / 32.0)) as u64;
    counts
        .into_iter()
        .map(|((o, w), count)| HistogramRow {
            class_id: 1,
            low_ns: edge(o, w),
            high_ns: edge(o, w + 1),
            count,
        })
        .collect()
}

/// Calls of `f` in windows of 50, watched for a tenth of the run: `call` gives duration and probes inside it, ns.
fn watched(r: &mut Recording, n: usize, mut call: impl FnMut() -> (f64, f64)) {
    let calls: Vec<(f64, f64)> = (0..n).map(|_| call()).collect();
    let durations: Vec<f64> = calls.iter().map(|c| c.0).collect();
    for (i, of_window) in calls.chunks(50).enumerate() {
        let at = i as f64 * 9.0 / (n as f64 / 50.0);
        let mut w = window(WindowKind::Burst, at, at + 50.0 / n as f64, of_window.len() as u64);
        w.returns = of_window.len() as u64;
        w.sum_ns = of_window.iter().map(|c| c.0).sum::<f64>() as u64;
        w.nested_cost_ns = of_window.iter().map(|c| c.1 + HOST_NS).sum::<f64>() as u64;
        w.max_ns = of_window.iter().map(|c| c.0).fold(0.0, f64::max) as u64;
        r.windows.push(w);
    }
    r.histograms = buckets(&durations);
}

/// A price of one call: it spreads by a tenth, and one in fifty takes as long again.
fn price(rng: &mut StdRng, mean: f64) -> f64 {
    let tail = if exponential(rng, 1.0) > 3.9 { mean } else { 0.0 };
    (mean * (1.0 + 0.08 * normal(rng))).max(mean * 0.7) + tail - mean * 0.02
}

fn row_of(r: &Recording) -> Row {
    let report = Report::from_recording(r);
    assert_no_nan(&report);
    row(&report, "f").clone()
}

fn at(row: &Row, p: f64) -> Estimate {
    row.quantiles_ns.iter().find(|(q, _)| *q == p).unwrap_or_else(|| panic!("no {p}: {row:?}")).1
}

#[test]
fn a_call_far_shorter_than_its_price_is_a_limit() {
    let mut r = timed(0.03);
    let mut rng = rng(3);
    watched(&mut r, 2_000, || (price(&mut rng, 610.0) + 20.0, 0.0));
    let f = row_of(&r);
    let mean = f.mean_ns.unwrap();
    assert!(mean.at_most && mean.low == 0.0 && mean.high > 30.0 && mean.high < 400.0, "{mean:?}");
    for p in [0.5, 0.9, 0.99, 1.0] {
        let q = at(&f, p);
        assert!(q.high > 20.0 && (q.at_most || q.value > 0.0), "{p}: {q:?}");
    }
    assert!(at(&f, 0.5).at_most);
    assert!(f.notes.iter().any(|n| n.contains("only an upper limit")), "{:?}", f.notes);
}

#[test]
fn a_price_that_swallows_more_than_was_seen_leaves_a_limit_above_nothing() {
    let mut r = timed(0.01);
    // Ten calls of 300 ns: the price is believed to be 450 at least, and too few calls say otherwise.
    watched(&mut r, 10, || (300.0, 0.0));
    let f = row_of(&r);
    let mean = f.mean_ns.unwrap();
    assert!(mean.at_most && mean.value == 0.0 && mean.high > 0.0, "{mean:?}");
    assert!(f.quantiles_ns.iter().all(|(_, q)| q.value > 0.0 || q.high > 0.0), "{:?}", f.quantiles_ns);
    // A hundred of them do say otherwise: no price is above the smallest of them.
    r.windows.clear();
    watched(&mut r, 100, || (300.0, 0.0));
    let f = row_of(&r);
    assert!(f.correction_ns <= 300.0 && f.mean_ns.unwrap().high < 300.0, "{f:?}");
}

#[test]
fn an_exact_price_leaves_exact_durations() {
    let mut r = timed(0.0);
    let mut w = window(WindowKind::Trace, 0.0, 10.0, 1_000);
    (w.returns, w.sum_ns, w.max_ns) = (1_000, 2_000_000, 9_000);
    w.nested_cost_ns = 1_000 * HOST_NS as u64;
    r.windows = vec![w];
    r.histograms = vec![HistogramRow { class_id: 1, low_ns: 1_990, high_ns: 2_010, count: 1_000 }];
    let f = row_of(&r);
    assert_eq!((f.mean_ns.unwrap().value, f.correction_ns), (1_400.0, 600.0));
    assert_eq!(f.mean_ns.unwrap().low, f.mean_ns.unwrap().high);
    let median = at(&f, 0.5);
    assert!((median.value - (2_000.0 - 0.98 * 600.0)).abs() < 1e-9 && !median.at_most, "{median:?}");
    // The longest, too, is told without its probes.
    let longest = at(&f, 1.0);
    assert!(longest.value < 9_000.0 - 500.0 && longest.high < 9_000.0 && longest.n == 1_000, "{longest:?}");
}

/// The target's price lies anywhere that the host's is believed to reach: mean and quantiles of what the function itself takes are covered.
#[test]
fn intervals_hold_the_truth_at_any_price_that_the_target_may_have() {
    for (own_ns, nested_ns) in [(100.0, 0.0), (1_000.0, 0.0), (1_000.0, 400.0), (10_000.0, 2_000.0)] {
        let mut rng = rng(17);
        let (mut means, mut medians, mut tails) =
            (Coverage::default(), Coverage::default(), Coverage::default());
        for run in 0..300 {
            let factor = 0.8 + 0.4 * f64::from(run) / 300.0;
            let mut r = timed(0.02);
            let mut truth = Vec::new();
            watched(&mut r, 1_000, || {
                let own = own_ns * (0.5 + exponential(&mut rng, 0.5));
                truth.push(own);
                // Longer calls hold more nested probes; each is charged at the price, and costs what it costs here.
                let charged = nested_ns * own / own_ns;
                (own + factor * charged + price(&mut rng, factor * HOST_NS), charged)
            });
            let f = row_of(&r);
            let hold = |e: Estimate| Interval { low: e.low, high: e.high };
            means.note(hold(f.mean_ns.unwrap()), own_ns);
            medians.note(hold(at(&f, 0.5)), own_ns * (0.5 + 0.5 * 2.0_f64.ln()));
            tails.note(hold(at(&f, 0.99)), own_ns * (0.5 + 0.5 * 100.0_f64.ln()));
            let largest = truth.into_iter().fold(0.0, f64::max);
            assert!(at(&f, 1.0).high >= largest * 0.97, "{:?} of {largest}", at(&f, 1.0));
        }
        means.check(0.95, 1.0, "mean");
        medians.check(0.95, 1.0, "median");
        tails.check(0.94, 1.0, "99th percentile");
    }
}

/// A call runs in caches that the trap at its entry has used: all of it in a program that does much between its calls, none in a tight loop.
#[test]
fn what_a_trap_leaves_behind_in_a_call_is_in_its_interval() {
    for (cold_ns, own_ns) in
        [(180.0, 50.0), (180.0, 300.0), (180.0, 2_000.0), (180.0, 20_000.0), (250.0, 50.0), (250.0, 300.0)]
    {
        let met = |ns: f64| cold_ns * (1.0 - (-ns / 300.0_f64).exp());
        let behind_ns = met(own_ns);
        // Traps may be cheaper or dearer here than the host's, too, and both errors may add up.
        for (part, factor) in [(0.0, 1.0), (0.7, 1.0), (1.6, 1.0), (2.4, 1.0), (0.0, 0.8), (2.4, 1.2)] {
            let mut rng = rng(23);
            let mut r = timed(0.02);
            r.meta.cost.cold = Price { ns: cold_ns, min_ns: 170.0, max_ns: 1.05 * cold_ns, n: 7 };
            watched(&mut r, 3_000, || {
                let own = own_ns * (1.0 + 0.05 * normal(&mut rng));
                (own + part * behind_ns + price(&mut rng, factor * HOST_NS), 0.0)
            });
            let f = row_of(&r);
            for e in [f.mean_ns.unwrap(), at(&f, 0.5)] {
                assert!(e.low <= own_ns && own_ns <= e.high, "{own_ns} {part} {factor}: {e:?}");
                if factor != 1.0 {
                    continue;
                }
                // 1.6 times what calibration's own load meets is what is told, 0.3 us at most, so that something is left of short calls; of a call of 20 us it is next to nothing either way.
                let seen_ns = own_ns + part * behind_ns;
                let off_ns = seen_ns - 1.6_f64.min(300.0 / cold_ns) * met(seen_ns);
                assert!((e.value - off_ns).abs() < 0.03 * own_ns + 20.0, "{own_ns} {part}: {e:?}");
            }
        }
    }
}

/// Recorded calls say each what was nested in it: a fast path without probes and a slow one with many keep their quantiles.
#[test]
fn nested_probes_are_taken_out_of_the_calls_that_they_were_in() {
    let mut r = timed(0.0);
    r.classes[0].kind = RecordKind::Record;
    // 60 of 100 calls take 1 us; the others take 2 us and hold probes of 8 us.
    let call = |i: u64| if i % 10 < 6 { (1_600, 600) } else { (10_600, 8_600) };
    let mut w = window(WindowKind::Trace, 0.0, 10.0, 1_000);
    (w.returns, w.max_ns) = (1_000, 10_600);
    w.sum_ns = (0..1_000).map(|i| call(i).0).sum();
    w.nested_cost_ns = (0..1_000).map(|i| call(i).1).sum();
    r.windows = vec![w];
    r.events = (0..1_000)
        .map(|i| EventRow {
            time_ns: START + i,
            class_id: 1,
            pid: 42,
            tid: 42,
            duration_ns: Some(call(i).0),
            args: [None; 6],
            nested_cost_ns: Some(call(i).1),
            place: CallPlace::default(),
            context: CallContext::default(),
        })
        .collect();
    let f = row_of(&r);
    assert!((f.mean_ns.unwrap().value - 1_400.0).abs() < 1e-6, "{:?}", f.mean_ns);
    assert!((f.correction_ns - 3_800.0).abs() < 1e-6, "{}", f.correction_ns);
    let (median, upper, longest) = (at(&f, 0.5), at(&f, 0.9), at(&f, 1.0));
    assert!((median.value - 1_000.0).abs() < 40.0, "{median:?}");
    assert!(
        (upper.value - 2_000.0).abs() < 40.0 && longest.low < 2_000.0 && longest.high > 2_000.0,
        "{upper:?} {longest:?}"
    );

    // An older recording has only the sum: the mean is the same, and the quantiles lie in wider intervals that hold them.
    for e in &mut r.events {
        e.nested_cost_ns = None;
    }
    let f = row_of(&r);
    assert!((f.mean_ns.unwrap().value - 1_400.0).abs() < 1e-6);
    let (median, upper) = (at(&f, 0.5), at(&f, 0.9));
    let holds = |e: Estimate, ns: f64| e.low <= ns && ns <= e.high;
    assert!(holds(median, 1_000.0) && holds(upper, 2_000.0), "{median:?} {upper:?}");
    assert!(median.high - median.low > 100.0, "{median:?}");
}

/// Few calls that differ leave the mean wide. That is no matter of the price, and no limit.
#[test]
fn few_calls_that_differ_are_no_limit() {
    let mut r = timed(0.02);
    let mut calls = [1e6, 2e6, 3e6].into_iter();
    watched(&mut r, 3, || (calls.next().unwrap(), 0.0));
    // A burst each.
    let whole = r.windows.remove(0);
    for (i, ns) in [1_000_000, 2_000_000, 3_000_000].into_iter().enumerate() {
        let mut w = whole.clone();
        (w.start_ns, w.end_ns) = (w.start_ns + i as u64 * 1_000_000_000, w.end_ns + i as u64 * 1_000_000_000);
        (w.attempted, w.kept, w.returns, w.sum_ns, w.nested_cost_ns) = (1, 1, 1, ns, HOST_NS as u64);
        r.windows.push(w);
    }
    let mean = row_of(&r).mean_ns.unwrap();
    assert!(!mean.at_most && (mean.value - 2e6).abs() < 2e3, "{mean:?}");
}

#[test]
fn the_distribution_of_a_function_is_that_of_its_quantiles() {
    use crate::report::Distribution;
    let mut r = timed(0.02);
    let mut rng = rng(5);
    watched(&mut r, 2_000, || (5_000.0 * (1.0 + 0.1 * normal(&mut rng)) + price(&mut rng, 600.0), 0.0));
    let found = Distribution::of(&r, "f");
    assert_eq!((found.len(), found[0].n, found[0].sampled), (1, 2_000, false));
    assert!((found[0].taken_ns - 600.0).abs() < 1.0, "{}", found[0].taken_ns);
    let median = at(&row_of(&r), 0.5).value;
    let until: f64 = found[0].bins.iter().filter(|b| b.high_ns <= median).map(|b| b.count).sum();
    let within = found[0].bins.iter().find(|b| b.low_ns <= median && median < b.high_ns).unwrap();
    assert!(until <= 1_000.0 && until + within.count >= 1_000.0, "{median}: {found:?}");
    assert_eq!(Distribution::names(&r), ["f"]);
    assert!(Distribution::of(&r, "g").is_empty());
}

/// A pair of sites beside `f`: `windows` windows of `n` intervals at about `price_ns`, in the second after `f` was last watched.
pub(super) fn pair(r: &mut Recording, windows: u64, n: u64, price_ns: f64) {
    let mut rng = rng(23);
    r.classes.push(ClassRow {
        class_id: 2,
        stamps_of: Some(1),
        exit_mode: ExitMode::ExitSites,
        ..class(2, "[time stamps of] f")
    });
    let mut all = Vec::new();
    for i in 0..windows {
        let seen: Vec<f64> = (0..n).map(|_| price_ns * (1.0 + 0.05 * normal(&mut rng))).collect();
        let from = 9.5 + 0.05 * i as f64;
        let mut w = window(WindowKind::Burst, from, from + 0.01, 2 * n);
        (w.class_id, w.returns, w.sum_ns) = (2, n, seen.iter().sum::<f64>() as u64);
        r.windows.push(w);
        all.extend(seen);
    }
    r.histograms.extend(buckets(&all).into_iter().map(|h| HistogramRow { class_id: 2, ..h }));
}

/// The target's price is twice the host's: with a pair the short function has a time, without it has a limit.
#[test]
fn a_pair_gives_the_price_of_this_target() {
    let short = |r: &mut Recording| {
        r.classes[0].exit_mode = ExitMode::ExitSites;
        let host = r.meta.cost.stamps["push/return_link"];
        r.meta.cost.stamps.insert("push/exit".into(), host);
        let mut rng = rng(29);
        watched(r, 2_000, || (300.0 + price(&mut rng, 2.0 * HOST_NS), 0.0));
    };
    let mut r = timed(0.02);
    short(&mut r);
    let without = row_of(&r);
    // The host's price says nothing of this target: the limit is far above the 300 ns.
    assert!(without.mean_ns.unwrap().high > 600.0, "{:?}", without.mean_ns);
    pair(&mut r, 4, 50, 2.0 * HOST_NS);
    let f = row_of(&r);
    let (mean, median) = (f.mean_ns.unwrap(), at(&f, 0.5));
    for e in [mean, median] {
        assert!((e.value - 300.0).abs() < 60.0 && e.low < 300.0 && e.high > 300.0 && !e.at_most, "{e:?}");
        // Above by 15 % of the pair's 1,200 ns, below to half of the way to the host's 600 less 15 %.
        let (up, down) = (e.high - e.value, e.value - e.low);
        assert!((350.0..520.0).contains(&up) && (150.0..260.0).contains(&down), "{e:?}");
    }
    // A host price that is a guess is no witness.
    let mut guessed = r.clone();
    guessed.meta.cost.stamps.clear();
    let e = row_of(&guessed).mean_ns.unwrap();
    assert!(e.high - e.value < 260.0 && e.low < 300.0 && e.high > 300.0, "{e:?}");
    let report = Report::from_recording(&r);
    assert!(report.rows.iter().all(|row| row.class_id != Some(2)), "a pair is no function");
    assert_eq!(crate::report::Distribution::names(&r), ["f"]);

    // Measured while `f` was attached: its programs ran between the pair's stamps.
    let beside = r.windows.iter().filter(|w| w.class_id == 1).map(|w| w.start_ns).max().unwrap();
    let mut disturbed = r.clone();
    for w in disturbed.windows.iter_mut().filter(|w| w.class_id == 2) {
        (w.start_ns, w.end_ns) = (beside, beside + 1_000);
    }
    assert_eq!(row_of(&disturbed).mean_ns, without.mean_ns);
    // Too few intervals.
    let mut few = timed(0.02);
    short(&mut few);
    pair(&mut few, 1, 20, 2.0 * HOST_NS);
    assert_eq!(row_of(&few).mean_ns, without.mean_ns);
    // Windows that do not agree: the price lies anywhere between them.
    for (w, factor) in r.windows.iter_mut().filter(|w| w.class_id == 2).zip([0.7, 1.0, 1.0, 1.3]) {
        w.sum_ns = (w.sum_ns as f64 * factor) as u64;
    }
    assert!(row_of(&r).mean_ns.unwrap().half_width() > 250.0);
}

/// A function that is attached all the time has no pair of its own: those of others say what a trap at such an entry costs here.
#[test]
fn a_function_without_a_pair_borrows_those_of_entries_like_its_own() {
    let with = |entry: SiteClass| {
        let mut r = timed(0.02);
        r.classes[0].exit_mode = ExitMode::ExitSites;
        let host = r.meta.cost.stamps["push/return_link"];
        r.meta.cost.stamps.insert("push/exit".into(), host);
        r.meta.cost.cold = Price::fixed(20.0);
        let mut rng = rng(59);
        watched(&mut r, 2_000, || (1_000.0 + price(&mut rng, 2.0 * HOST_NS), 0.0));
        pair(&mut r, 4, 50, 2.0 * HOST_NS);
        // It is the pair of `g`.
        r.classes.push(ClassRow { site_class: entry, ..class(3, "g") });
        r.classes[1].stamps_of = Some(3);
        row_of(&r).mean_ns.unwrap()
    };
    let (own, other) = (with(SiteClass::Push), with(SiteClass::Nop5));
    assert!((own.value - 1_000.0).abs() < 60.0 && own.low < 1_000.0 && own.high > 1_000.0, "{own:?}");
    // The host's price of 600 is taken out in place of 1,200.
    assert!((other.value - 1_600.0).abs() < 60.0, "{other:?}");
}

/// The end of a return link is another trap: how far it follows a target whose sites cost twice what they cost in calibration is not known.
#[test]
fn a_pair_scales_the_price_of_a_return_link() {
    for (times, told_ns) in [(2.0, 1_200.0), (1.0, 600.0)] {
        let mut r = timed(0.02);
        let host = r.meta.cost.stamps["push/return_link"];
        r.meta.cost.stamps.insert("push/exit".into(), host.scaled(0.5));
        let mut rng = rng(31);
        watched(&mut r, 2_000, || (900.0 + price(&mut rng, times * HOST_NS), 0.0));
        // Twice the 300 ns that an exit site's trap costs in a tight loop here.
        pair(&mut r, 4, 50, HOST_NS);
        let mean = row_of(&r).mean_ns.unwrap();
        assert!(mean.low < 900.0 && mean.high > 900.0 && mean.half_width() < 500.0, "{times}: {mean:?}");
        // Half of the way from the host's price to twice that is taken out.
        assert!((mean.value - told_ns).abs() < 60.0, "{times}: {mean:?}");
    }
}

/// One interval of a pair in some hundred is interrupted for tens of microseconds: that is no price, and no difference between moments.
#[test]
fn an_interrupted_interval_of_a_pair_is_no_price() {
    let with = |interrupted: Option<f64>| {
        let mut r = timed(0.02);
        r.classes[0].exit_mode = ExitMode::ExitSites;
        let host = r.meta.cost.stamps["push/return_link"];
        r.meta.cost.stamps.insert("push/exit".into(), host);
        let mut rng = rng(37);
        watched(&mut r, 2_000, || (300.0 + price(&mut rng, 2.0 * HOST_NS), 0.0));
        pair(&mut r, 4, 50, 2.0 * HOST_NS);
        if let Some(ns) = interrupted {
            let w = r.windows.iter_mut().rfind(|w| w.class_id == 2).unwrap();
            (w.returns, w.sum_ns, w.max_ns) = (w.returns + 1, w.sum_ns + ns as u64, ns as u64);
            r.histograms.extend(buckets(&[ns]).into_iter().map(|h| HistogramRow { class_id: 2, ..h }));
        }
        row_of(&r).mean_ns.unwrap()
    };
    let (calm, mean) = (with(None), with(Some(40_000.0)));
    assert!((mean.value - calm.value).abs() < 10.0, "{mean:?} {calm:?}");
    assert!(mean.half_width() < 1.2 * calm.half_width() && !mean.at_most, "{mean:?} {calm:?}");
}

/// Where some calls are interrupted for long, their price was, too: the mean may hold the price's part of it, and the median does not.
#[test]
fn what_interrupts_calls_interrupts_their_price() {
    let with = |interrupted_ns: f64| {
        let mut r = timed(0.02);
        r.classes[0].exit_mode = ExitMode::ExitSites;
        let host = r.meta.cost.stamps["push/return_link"];
        r.meta.cost.stamps.insert("push/exit".into(), host);
        let (mut rng, mut n) = (rng(41), 0);
        watched(&mut r, 2_000, || {
            n += 1;
            let interrupted = if n % 100 == 0 { interrupted_ns } else { 0.0 };
            (300.0 + price(&mut rng, 2.0 * HOST_NS) + interrupted, 0.0)
        });
        pair(&mut r, 4, 50, 2.0 * HOST_NS);
        row_of(&r)
    };
    // 200 ns a call on average, of which the price's part is four fifths.
    let (calm, row) = (with(0.0), with(20_000.0));
    let below = |row: &Row| row.mean_ns.unwrap().value - row.mean_ns.unwrap().low;
    assert!(below(&row) > 140.0 && below(&row) > below(&calm) + 60.0, "{:?} {:?}", row.mean_ns, calm.mean_ns);
    assert!((at(&row, 0.5).half_width() - at(&calm, 0.5).half_width()).abs() < 20.0);
}

/// What came after a quota was used up says nothing of the calls before, and calls that the pair's own probes hid did not unwind.
#[test]
fn calls_turned_away_or_hidden_by_the_pair_are_not_lost() {
    let with = |change: &dyn Fn(&mut Recording)| {
        let mut r = timed(0.02);
        let mut rng = rng(43);
        watched(&mut r, 2_000, || (5_000.0 + price(&mut rng, HOST_NS), 0.0));
        pair(&mut r, 4, 50, HOST_NS);
        // The longest call says what a lost one may have taken.
        r.windows[3].max_ns = 10_000_000;
        change(&mut r);
        row_of(&r).mean_ns.unwrap()
    };
    let calm = with(&|_| {});
    let turned_away = with(&|r| {
        for w in &mut r.windows[..40] {
            (w.tripped, w.gated, w.attempted) = (true, 5, w.attempted + 5);
        }
    });
    assert!((turned_away.high / calm.high - 1.0).abs() < 0.01, "{turned_away:?} {calm:?}");
    let unwound = |r: &mut Recording| (r.windows[7].unwound, r.windows[7].returns) = (20, 30);
    let lost = with(&unwound);
    assert!(lost.high > 2.0 * calm.high, "{lost:?} {calm:?}");
    let hidden = with(&|r| {
        unwound(r);
        let (start_ns, end_ns) = (r.windows[7].start_ns, r.windows[7].end_ns);
        let beside = r.windows.iter_mut().rfind(|w| w.class_id == 2).unwrap();
        (beside.start_ns, beside.end_ns) = (start_ns, end_ns);
    });
    assert!(hidden.high < 1.2 * calm.high, "{hidden:?} {calm:?}");
}
