//! Rates of a target that waits for work: bursts that a quota ends show it at work.

use super::super::windows::{Bursts, bursts_of};
use super::*;

/// A target that runs for 0.6 s of each second, and calls a function every 5 us of it; a hit takes 1 us. Bursts of 500 hits, each within one
/// stretch of work but for some that meet a wait.
fn rests(ran: bool) -> Recording {
    let mut r = empty();
    for p in r.meta.cost.hit.values_mut() {
        *p = Price::fixed(1_000.0);
    }
    r.classes.push(class(1, "f"));
    for i in 0..20 {
        let ran_s = 499.0 * (5.9 + 0.05 * f64::from(i % 5)) * 1e-6;
        let waited_s = if i % 4 == 0 { 2e-3 } else { 0.0 };
        let from = 0.25 + 0.5 * f64::from(i);
        let w = window(WindowKind::Burst, from, from + 6e-6 + ran_s + waited_s, 500);
        let ran_ns = ran.then_some((ran_s * 1e9) as u64);
        let ran_tid = ran.then_some(42);
        r.windows.push(WindowRow { tripped: true, tau_ns: 1_000.0, ran_ns, ran_tid, ..w });
    }
    r.stacks.push(frame(0, 0, "f", Some(1)));
    r.samples.extend((0..600).map(|i| sample(i, 0)));
    for second in 1..=10 {
        let cost_ns = 1_000_000;
        let target_cpu_ns = 601_000_000;
        r.ledger.push(LedgerRow { target_cpu_ns, ..ledger(second, Charge::Burst, Some(1), cost_ns) });
    }
    r
}

fn rate(r: &Recording) -> crate::estimate::Estimate {
    row(&Report::from_recording(r), "f").rate_hz.unwrap()
}

fn lists(r: &Recording) -> Bursts {
    let ledger = LedgerSummary::from_rows(&r.ledger);
    let run = RunContext::of(r, &ledger, &Shares::of(r, &ledger));
    let windows: Vec<&WindowRow> = r.windows.iter().filter(|w| w.class_id == 1).collect();
    bursts_of(&r.classes[0], &windows, r, &run)
}

#[test]
fn the_rate_lies_between_that_of_its_cpu_time_and_that_of_the_moments_at_work() {
    let of_wall = rate(&rests(false));
    assert!(of_wall.low > 120_000.0, "what this is for: {of_wall:?}");
    let both = rate(&rests(true));
    assert!(both.low <= 121_000.0 && both.high >= of_wall.value, "{both:?}");
    assert!(both.value > 130_000.0 && both.value < of_wall.value - 20_000.0, "{both:?}");
}

/// In the last burst the thread ran for less than its hits' smallest price.
#[test]
fn cpu_time_that_prices_swallow_is_no_call_a_nanosecond() {
    let mut r = rests(true);
    for p in r.meta.cost.hit.values_mut() {
        *p = Price { ns: 1_000.0, min_ns: 990.0, max_ns: 1_010.0, n: 7 };
    }
    // Of several threads the window does not bound the price.
    r.samples.iter_mut().step_by(4).for_each(|s| s.tid = 43);
    r.meta.cpus = 2;
    let last = r.windows.last_mut().unwrap();
    // The smallest price is 990 ns less a quarter.
    let ran_ns = 499 * 730;
    (last.ran_ns, last.end_ns) = (Some(ran_ns), last.start_ns + ran_ns + 6_000);
    let (bursts, _) = lists(&r).by_cpu.expect("one thread calls");
    let swallowed = bursts.last().unwrap();
    let ran_s = ran_ns as f64 * 1e-9;
    assert!(swallowed.time_s >= 0.05 * ran_s && swallowed.time_high_s >= ran_s, "{swallowed:?}");
    assert!(swallowed.time_low_s < 2e-6 && bursts[0].time_s > 1e-3, "{swallowed:?} {:?}", bursts[0]);
}

#[test]
fn of_a_target_that_never_rests_both_are_the_same() {
    let mut r = rests(true);
    for row in &mut r.ledger {
        row.target_cpu_ns = S;
    }
    for w in &mut r.windows {
        w.end_ns = w.start_ns + w.ran_ns.unwrap() + 6_000;
    }
    let rate = rate(&r);
    assert!((rate.value / 200_000.0 - 1.0).abs() < 0.01 && rate.half_width() < 4_000.0, "{rate:?}");
}

#[test]
fn seconds_of_rest_count_as_such() {
    // It works in the first five seconds only: windows in the others see no hit and end by the clock.
    let mut r = rests(true);
    for row in r.ledger.iter_mut().filter(|row| row.time_ns > START + 5 * S) {
        row.target_cpu_ns = 0;
        row.cost_ns = 0;
    }
    for w in r.windows.iter_mut().filter(|w| w.start_ns > START + 5 * S) {
        w.end_ns = w.start_ns + S / 10;
        (w.kept, w.attempted, w.tripped, w.ran_ns) = (0, 0, false, None);
    }
    let sole = rate(&r);
    assert!(sole.low < 60_000.0 && sole.high > 60_000.0 && sole.value < 90_000.0, "{sole:?}");
    // The same beside a thread that uses a tenth of the CPU time: waits do not count twice.
    r.samples.iter_mut().step_by(10).for_each(|s| s.tid = 43);
    let worker = rate(&r);
    let expected = 0.9 * sole.value;
    assert!((worker.value / expected - 1.0).abs() < 0.1, "{worker:?} {sole:?}");
}

#[test]
fn of_several_threads_nobody_knows_whose_time_it_was() {
    let of_wall = rate(&rests(false));
    let mut r = rests(true);
    for (i, s) in r.samples.iter_mut().enumerate() {
        s.tid = 42 + (i % 2) as u32;
    }
    for (i, w) in r.windows.iter_mut().enumerate() {
        w.ran_tid = Some(42 + (i % 2) as u32);
    }
    // Not on one CPU either, where no more than one of them runs at a time; nor where nobody looked.
    for cpus in [2, 1] {
        r.meta.cpus = cpus;
        assert!((rate(&r).value / of_wall.value - 1.0).abs() < 0.05, "{cpus}: {:?} {of_wall:?}", rate(&r));
    }
    r.samples.clear();
    assert!((rate(&r).value / of_wall.value - 1.0).abs() < 0.05, "{:?} {of_wall:?}", rate(&r));
}

#[test]
fn of_one_thread_that_makes_all_calls_its_own_time_counts() {
    let of_wall = rate(&rests(false));
    // memcached: a worker that makes the calls, and a thread beside it that uses a tenth of the CPU time.
    let mut r = rests(true);
    r.samples.iter_mut().step_by(10).for_each(|s| s.tid = 43);
    let (worker, sole) = (rate(&r), rate(&rests(true)));
    // 0.54 s of each second, a call every 5 us of it.
    assert!(worker.low < 108_000.0 && worker.value < sole.value - 4_000.0, "{worker:?} {sole:?}");
    assert!(worker.high >= of_wall.value, "{worker:?} {of_wall:?}");
    let (bursts, _) = lists(&r).by_cpu.unwrap();
    assert_eq!(bursts.len(), 20);
    assert!(bursts.iter().all(|b| b.time_low_s < b.time_s && b.time_s < b.time_high_s), "{bursts:?}");
}

/// A neighbour that costs so much beside each of the windows, from so many ns after its begin on.
fn beside(r: &mut Recording, cost_s: f64, from_ns: u64, to: impl Fn(&WindowRow) -> u64) {
    r.classes.push(class(2, "g"));
    let neighbours: Vec<WindowRow> = r
        .windows
        .iter()
        .map(|w| {
            let hits = (cost_s * 1e6) as u64;
            let span = WindowRow { start_ns: w.start_ns + from_ns, end_ns: to(w), ..w.clone() };
            WindowRow { class_id: 2, kept: hits, attempted: hits, tripped: false, ran_ns: None, ..span }
        })
        .collect();
    r.windows.extend(neighbours);
}

#[test]
fn hits_and_neighbours_together_take_no_more_than_the_thread_ran() {
    let mut r = rests(true);
    // Of some 3 ms that it ran, 0.5 are its own hits'.
    beside(&mut r, 4.4e-3, 0, |w| w.end_ns);
    let rate = rate(&r);
    // A tenth of the rest, over 499 calls.
    assert!(rate.value < 2.5e6, "{rate:?}");
}

/// How far wall time and CPU time are apart is no error of the price: each of the two rates may be hidden by that, or not.
#[test]
fn what_the_price_hides_is_told_apart_from_what_waits_do() {
    let hidden = |waits_ns: u64, used_ns: u64| {
        let mut r = rests(true);
        r.ledger.iter_mut().for_each(|row| row.target_cpu_ns = used_ns + row.cost_ns);
        for p in r.meta.cost.hit.values_mut() {
            *p = Price { ns: 4_800.0, min_ns: 4_790.0, max_ns: 4_810.0, n: 7 };
        }
        for w in &mut r.windows {
            (w.tau_ns, w.end_ns) = (4_800.0, w.end_ns + waits_ns);
        }
        (rate(&r), lists(&r))
    };
    let (both, _) = hidden(0, 600_000_000);
    assert!(both.high.is_infinite() && both.low < both.value, "{both:?}");
    // 10 ms of rest in each window: by the wall clock the price is small.
    let (by_cpu_only, bursts) = hidden(10_000_000, 60_000_000);
    let by_wall = crate::stats::bursts::rate(&bursts.by_wall, LEVEL).unwrap();
    // But for the part of the run that was seen.
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.02;
    let e = by_cpu_only;
    // By CPU time nothing is known but that the price swallows most of it: that makes no value.
    assert!(near(e.value, by_wall.value), "{e:?} {by_wall:?}");
    assert!(e.low < 0.9 * by_wall.low, "{e:?} {by_wall:?}");
    // In a target that rests the wall clock's end is no bound: the interval goes on to twice what CPU time says.
    let rate_of = |bursts: Vec<_>| crate::stats::bursts::rate(&bursts, LEVEL).unwrap().value;
    let (by_cpu, _) = bursts.by_cpu.clone().unwrap();
    let at_value = rate_of(by_cpu.clone());
    let cheap = rate_of(
        by_cpu.into_iter().map(|b| crate::stats::bursts::Burst { time_s: b.time_high_s, ..b }).collect(),
    );
    assert!(bursts.rests);
    let end = 2.0 * at_value.min(2.0 * cheap);
    assert!(end > by_wall.high && near(e.high, end), "{e:?} {by_wall:?} {at_value} {cheap}");
    // One that never rests calls in batches where the two differ.
    let busy = Bursts { rests: false, ..bursts }.rate(None, crate::stats::bursts::Of::LONG).unwrap();
    assert!(near(busy.high, by_wall.high) && near(busy.value, by_wall.value), "{busy:?} {by_wall:?}");
}

#[test]
fn what_neighbours_cost_before_the_first_hit_is_not_in_the_time_that_the_thread_ran() {
    let mut r = rests(true);
    for w in &mut r.windows {
        w.start_ns -= 20_000_000;
    }
    let before: Vec<f64> = lists(&r).by_cpu.unwrap().0.iter().map(|b| b.time_s).collect();
    beside(&mut r, 5e-4, 0, |w| w.start_ns + 10_000_000);
    let after: Vec<f64> = lists(&r).by_cpu.unwrap().0.iter().map(|b| b.time_s).collect();
    // But for what the hits of the neighbour are charged for in the run's rest: nothing here.
    assert!(before.iter().zip(&after).all(|(b, a)| (a / b - 1.0).abs() < 0.01), "{before:?} {after:?}");
}

#[test]
fn a_second_that_was_charged_more_than_it_ran_does_not_unmake_its_bursts() {
    let mut r = rests(true);
    r.ledger[3].cost_ns = r.ledger[3].target_cpu_ns;
    let bursts = lists(&r);
    let (by_cpu, _) = bursts.by_cpu.unwrap();
    assert!(by_cpu.iter().zip(&bursts.by_wall).all(|(cpu, wall)| cpu.hits + 1 == wall.hits), "{by_cpu:?}");
}

#[test]
fn a_thread_that_shares_its_cpu_waited_from_hit_to_hit() {
    let (mut shared, mut unknown) = (rests(true), rests(false));
    for r in [&mut shared, &mut unknown] {
        r.meta.cpus = 1;
        for (i, s) in r.samples.iter_mut().enumerate() {
            s.tid = 42 + (i % 8) as u32;
        }
    }
    for w in &mut shared.windows {
        w.ran_ns = w.ran_ns.map(|ns| ns / 8);
    }
    assert_eq!(rate(&shared), rate(&unknown));
}

/// A thread that hardly runs and that samples do not show calls the function: its time says nothing of what the process uses.
#[test]
fn the_time_of_a_thread_without_samples_is_no_time_of_the_process() {
    let (mut other, unknown) = (rests(true), rests(false));
    other.windows.iter_mut().for_each(|w| w.ran_tid = Some(43));
    assert_eq!(rate(&other), rate(&unknown));
}

#[test]
fn a_time_shorter_than_its_hits_is_no_time() {
    let unknown = rate(&rests(false));
    for absurd_ns in [0, 200_000] {
        let mut r = rests(true);
        r.windows.iter_mut().for_each(|w| w.ran_ns = Some(absurd_ns));
        assert_eq!(rate(&r), unknown, "{absurd_ns}");
        // One such window does not change what the others say of the price.
        let (all, mut r) = (rate(&rests(true)), rests(true));
        r.windows[7].ran_ns = Some(absurd_ns);
        assert!((rate(&r).high / all.high - 1.0).abs() < 0.1, "{:?} {all:?}", rate(&r));
        assert!((rate(&r).low / all.low - 1.0).abs() < 0.1, "{:?} {all:?}", rate(&r));
    }
}

/// Every other second it works all the time and calls 1e4 times a CPU second; else it works a tenth of the time and calls 1e3 times. No change in time is seen, and yet
/// a burst of a second of work counts ten times as much as one of a second of rest.
#[test]
fn moments_count_by_what_the_target_used_where_no_change_in_time_is_seen() {
    let mut r = empty();
    r.meta.end_ns = Some(START + 20 * S);
    for p in r.meta.cost.hit.values_mut() {
        *p = Price::fixed(0.0);
    }
    r.classes.push(class(1, "f"));
    r.stacks.push(frame(0, 0, "f", Some(1)));
    r.samples.extend((0..1_100).map(|i| sample(i, 0)));
    for second in 0..20 {
        let (used, per_cpu_s) = if second % 2 == 0 { (1.0, 1e4) } else { (0.1, 1e3) };
        let ran_s = 50.0 / per_cpu_s;
        let from = f64::from(second) + 0.2;
        let w = window(WindowKind::Burst, from, from + ran_s / used, 52);
        let ran_ns = Some((ran_s * 1e9) as u64);
        r.windows.push(WindowRow { tripped: true, tau_ns: 0.0, ran_ns, ran_tid: Some(42), ..w });
        let row = ledger(second as u64 + 1, Charge::Burst, Some(1), 0);
        r.ledger.push(LedgerRow { target_cpu_ns: (used * 1e9) as u64, ..row });
    }
    let (bursts, cells) = lists(&r).by_cpu.unwrap();
    let rate = crate::stats::bursts::rate_over(&bursts, &cells, LEVEL, None, crate::stats::bursts::Of::LONG)
        .unwrap();
    // Were all bursts alike, 0.60 of it.
    assert!((rate.value / 5_050.0 - 1.0).abs() < 0.01, "{rate:?}");
    assert!(rate.low < 5_050.0 && 5_050.0 < rate.high, "{rate:?}");
}
