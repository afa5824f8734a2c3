//! Rates of targets that work and rest by chance, simulated: how often the interval holds the truth, and how far off the value is.

use super::*;
use crate::stats::sim::{exponential, rng};
use rand::{RngExt as _, rngs::StdRng};

/// Length of a run, s.
const RUN_S: f64 = 10.0;
/// Windows of a run, each in a part of its own, and when the clock ends them, s.
const WINDOWS: u32 = 20;
const LONGEST_S: f64 = 0.05;
/// What calibration says of a hit, s.
const TAU_S: f64 = 1e-6;
/// So far the CPU clock of another process lags at most while that runs, s.
const TICK_S: f64 = 4e-3;
const RUNS: u32 = 200;

/// One thread that works and rests in turn, for exponential times.
#[derive(Clone, Copy)]
struct Target {
    /// Mean stretch of work and of rest, s.
    work_s: f64,
    rest_s: f64,
    /// Mean CPU time from one call to the next, exponential, s.
    call_s: f64,
    /// Work comes by the clock: what monitoring took is rest that is missing. Else it rests as long as ever.
    by_the_clock: bool,
    /// CPU time that a hit takes beyond its price, s.
    left_s: f64,
    /// Of a window, in hits.
    quota: u64,
}

impl Target {
    fn new(used: f64, cycle_s: f64) -> Self {
        let (work_s, rest_s) = (used * cycle_s, (1.0 - used) * cycle_s);
        Self { work_s, rest_s, call_s: 5e-6, by_the_clock: false, left_s: 0.0, quota: 500 }
    }

    /// Stretches of work, begin and end, s.
    fn stretches(&self, rng: &mut StdRng) -> Vec<(f64, f64)> {
        let mut works = rng.random::<f64>() < self.work_s / (self.work_s + self.rest_s);
        let (mut s, mut all) = (0.0, Vec::new());
        while s < RUN_S + 1.0 {
            let end = s + exponential(rng, if works { self.work_s } else { self.rest_s });
            if works {
                all.push((s, end));
            }
            (s, works) = (end, !works);
        }
        all
    }

    /// A window that opens at `from` s: its row, and the hits in it.
    fn window(&self, rng: &mut StdRng, stretches: &[(f64, f64)], from: f64) -> WindowRow {
        // Wall time and CPU time of the thread since the gate opened, and by how much the clock runs ahead of the undisturbed target.
        let (mut wall, mut ran, mut behind, mut hits) = (0.0_f64, 0.0_f64, 0.0_f64, 0_u64);
        let mut first_ran = 0.0;
        let mut until_call = exponential(rng, self.call_s);
        let next = stretches.partition_point(|(_, end)| *end <= from);
        let begins_in_work = stretches.get(next).is_some_and(|(begin, _)| *begin <= from);
        'all: for (begin, end) in &stretches[next..] {
            let (begin, end) = (begin.max(from) - from, end - from);
            // Where work comes by the clock, it begins late by no more than rest cannot give.
            wall = if self.by_the_clock { wall.max(begin) } else { begin + behind };
            if wall >= LONGEST_S {
                wall = LONGEST_S;
                break;
            }
            let mut left = end - begin;
            while left > until_call {
                left -= until_call;
                (wall, ran) = (wall + until_call, ran + until_call);
                if wall >= LONGEST_S {
                    break 'all;
                }
                until_call = exponential(rng, self.call_s);
                hits += 1;
                if hits == 1 {
                    first_ran = ran;
                }
                let cost = TAU_S + self.left_s;
                wall += cost;
                if hits == self.quota {
                    break 'all;
                }
                (ran, behind) = (ran + cost, behind + cost);
            }
            until_call -= left;
            (wall, ran) = (wall + left, ran + left);
        }
        let tripped = hits == self.quota;
        let ran = ran - (wall - LONGEST_S).max(0.0);
        let wall = if tripped { wall } else { LONGEST_S };
        let lag = |works: bool, rng: &mut StdRng| if works { TICK_S * rng.random::<f64>() } else { 0.0 };
        let works = |s: f64| stretches.iter().any(|(begin, end)| (*begin..*end).contains(&s));
        let lag_s = lag(begins_in_work, rng) - lag(works(from + LONGEST_S - behind), rng);
        WindowRow {
            tripped,
            tau_ns: TAU_S * 1e9,
            target_cpu_ns: ((ran + lag_s).max(0.0) * 1e9) as u64,
            ran_ns: tripped.then_some(((ran - first_ran) * 1e9) as u64),
            ran_tid: tripped.then_some(42),
            ..window(WindowKind::Burst, from, from + wall, hits)
        }
    }

    /// A run, and the calls a second of it, had nobody watched.
    fn run(&self, rng: &mut StdRng) -> (Recording, f64) {
        let mut r = empty();
        // Calibration finds what a trap leaves behind in its own load.
        r.meta.cost.cold = Price { ns: 0.3e9 * self.left_s, min_ns: 0.0, max_ns: 0.3e9 * self.left_s, n: 7 };
        for p in r.meta.cost.hit.values_mut() {
            *p = Price { ns: 1_000.0, min_ns: 990.0, max_ns: 1_010.0, n: 7 };
        }
        r.classes.push(class(1, "f"));
        r.stacks.push(frame(0, 0, "f", Some(1)));
        r.samples.extend((0..100).map(|i| sample(i, 0)));
        let stretches = self.stretches(rng);
        let part_s = RUN_S / f64::from(WINDOWS);
        for i in 0..WINDOWS {
            let from = part_s * (f64::from(i) + 0.8 * rng.random::<f64>());
            r.windows.push(self.window(rng, &stretches, from));
        }
        let worked = |from: f64, to: f64| -> f64 {
            stretches.iter().map(|(begin, end)| (end.min(to) - begin.max(from)).max(0.0)).sum()
        };
        for second in 1..=10_u64 {
            let (from, to) = (START + (second - 1) * S, START + second * S);
            let within = r.windows.iter().filter(|w| (from..to).contains(&w.start_ns));
            let hits: u64 = within.map(|w| w.kept).sum();
            let own_s = worked(second as f64 - 1.0, second as f64) + hits as f64 * self.left_s;
            let cost_ns = (hits as f64 * TAU_S * 1e9) as u64;
            let target_cpu_ns = (own_s * 1e9) as u64 + cost_ns;
            r.ledger.push(LedgerRow { target_cpu_ns, ..ledger(second, Charge::Burst, Some(1), cost_ns) });
        }
        (r, worked(0.0, RUN_S) / RUN_S / self.call_s)
    }
}

/// What the runs of a target gave.
#[derive(Debug)]
struct Found {
    /// Part of the runs whose interval holds the truth.
    holds: f64,
    /// Mean of value / truth, less 1.
    bias: f64,
    /// Part of the runs whose rate is a limit.
    limits: f64,
}

fn simulate(target: Target) -> Found {
    let mut rng = rng(71);
    let mut found = Found { holds: 0.0, bias: 0.0, limits: 0.0 };
    let mut n = 0.0;
    for _ in 0..RUNS {
        let (recording, truth) = target.run(&mut rng);
        // Where all windows lay in waits, the report tells no rate.
        if recording.windows.iter().all(|w| w.kept == 0) {
            continue;
        }
        let rate = row(&Report::from_recording(&recording), "f").rate_hz.unwrap();
        n += 1.0;
        found.holds += f64::from(u8::from((rate.low..=rate.high).contains(&truth)));
        found.bias += rate.value / truth - 1.0;
        found.limits += f64::from(u8::from(rate.high.is_infinite()));
    }
    assert!(n > 0.0, "no window saw anything");
    let Found { holds, bias, limits } = found;
    Found { holds: holds / n, bias: bias / n, limits: limits / n }
}

/// A thread that works all the time does not rest because another one was seen once.
#[test]
fn another_thread_that_was_seen_once_makes_no_hit_dearer() {
    let target = Target { call_s: 3e-6, ..Target::new(1.0, 0.1) };
    let ends_on = |cpus: u32, others: u64, caller: u32| {
        let (mut r, _) = target.run(&mut rng(3));
        r.meta.cpus = cpus;
        r.meta.cost.cold = Price { ns: 100.0, min_ns: 50.0, max_ns: 200.0, n: 7 };
        for s in &mut r.samples {
            s.tid = 42;
        }
        for w in &mut r.windows {
            w.ran_tid = w.ran_tid.map(|_| caller);
        }
        r.samples.extend((0..others).map(|i| SampleRow { tid: 43 + i as u32, ..sample(100 + i, 0) }));
        let rate = row(&Report::from_recording(&r), "f").rate_hz.unwrap();
        (rate.low / rate.value, rate.high / rate.value)
    };
    let ends = |others, caller| ends_on(2, others, caller);
    let ((low, high), (beside_low, beside_high)) = (ends(0, 42), ends(1, 42));
    assert!(
        high.is_finite() && beside_high <= 1.05 * high && beside_low >= 0.95 * low,
        "{low} {high}, {beside_low} {beside_high}"
    );
    // Where it is that one which calls, nobody knows that it works all the time.
    for cpus in [1, 2] {
        let rests = ends_on(cpus, 1, 43);
        assert!(rests.1 > 1.1 * beside_high, "{cpus}: {rests:?}");
    }
}

/// A burst of 500 hits uses 2.5 ms of the target's own time. Cycles of work and rest are far shorter than that, about as long, and far longer than
/// any window.
#[test]
fn values_are_near_and_intervals_hold_however_long_work_and_rest_are() {
    let mut bad = Vec::new();
    for used in [0.3, 0.6, 0.9] {
        for cycle_s in [1e-3, 1e-2, 0.1, 1.0] {
            for (by_the_clock, left_s) in [(false, 0.0), (true, 0.0), (true, 7e-7)] {
                let target = Target { by_the_clock, left_s, ..Target::new(used, cycle_s) };
                let found = simulate(target);
                if found.holds < 0.95 || found.limits > 0.0 || found.bias.abs() > 0.18 {
                    bad.push(format!("{used} {cycle_s} {by_the_clock} {left_s}: {found:?}"));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Of N hits from the first to the last, (N - 2) / T is the rate; from the opening of the gate, (N - 1) / T.
#[test]
fn few_hits_are_not_too_many() {
    for quota in [4, 8] {
        let found = simulate(Target { quota, ..Target::new(1.0, 1.0) });
        assert!(found.bias.abs() < 0.03, "{quota}: {found:?}");
    }
}
