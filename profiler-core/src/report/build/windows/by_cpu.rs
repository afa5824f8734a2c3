//! Rates between two ends: by the wall clock, and by the CPU time of the thread that calls, where one does.
//!
//! A burst that its quota ends is shorter than the waits of a target that rests, and what monitoring took counts as if the target could not have
//! rested less: by the wall clock the rate is too high (or too low, where it waits longer in a window: for a client that waits for it, log.md, M50), by its CPU time too low, because what a hit leaves behind in caches and predictors,
//! beyond its price, counts as the target's own. Each list of bursts is estimated by itself, so that how far the two are apart is not taken for an
//! error of the price.

use super::super::threads::Caller;
use super::reference::{Beside, better};
use super::{HitPrice, MOST_OF_OTHERS, RunContext, burst_by_wall, dear_neighbours, weigh_alike};
use crate::estimate::Estimate;
use crate::recording::{WindowKind, WindowRow};
use crate::stats::LEVEL;
use crate::stats::bursts::{
    Burst, Cell, Drift, HIDDEN, LEAST_CALL_S, NEIGHBOUR_ERROR, Of, Stop, rate_or_bound, rate_over,
};

/// A target that runs for at least this part of the time does not rest.
pub(super) const BUSY: f64 = 0.9;
/// In a shorter window the process's CPU clock, which lags by up to 4 ms, does not say whether the target worked, s.
const LEAST_S: f64 = 20e-3;

/// The windows of a class in order of time, ready to be estimated from.
pub(in crate::report::build) struct Bursts {
    /// In wall time.
    pub by_wall: Vec<Burst>,
    /// What each of them stands for.
    pub cells: Vec<Cell>,
    /// In the thread's CPU time, where that of any window is known, and what each stands for.
    pub by_cpu: Option<(Vec<Burst>, Vec<Cell>)>,
    /// The target, or that thread, rests for a part of the time that matters.
    pub rests: bool,
    /// The rate that a reference tells, if that is told.
    pub beside: Option<Beside>,
}

impl Bursts {
    pub(super) fn of(windows: &[&WindowRow], price: &HitPrice, run: &RunContext) -> Self {
        let mut by_wall: Vec<Burst> = windows.iter().map(|w| burst_by_wall(w, price, run)).collect();
        let caller = run.by_thread.caller(windows);
        let by_cpu = caller.and_then(|caller| by_cpu(windows, &mut by_wall, price, (run, &caller)));
        weigh_alike(&mut by_wall, windows);
        let busy = caller.map_or_else(|| run.busy(), |caller| run.busy_of(&caller));
        Self { by_wall, cells: run.cells(windows), by_cpu, rests: busy < BUSY, beside: None }
    }

    /// Calls a second of the target's own time: by a reference where that knows it better, else by what hits cost.
    pub(in crate::report::build) fn rate(&self, drift: Option<&Drift>, told_of: Of) -> Option<Estimate> {
        self.beside.map_or_else(|| self.rate_by_price(drift, told_of), |beside| Some(beside.rate))
    }

    /// With what a reference tells, where that is told.
    pub(super) fn with_reference(self, beside: Option<Beside>, drift: Option<&Drift>) -> Self {
        let Some(beside) = beside else { return self };
        let by_price = self.rate_by_price(drift, Of::Run { unseen: 1.0 });
        Self { beside: better(by_price, beside), ..self }
    }

    /// The same by what hits cost.
    fn rate_by_price(&self, drift: Option<&Drift>, told_of: Of) -> Option<Estimate> {
        let of = |bursts: &[Burst], cells: &[Cell], drift: Option<&Drift>| {
            rate_or_bound(bursts, cells, LEVEL, drift, told_of)
        };
        let by_wall = of(&self.by_wall, &self.cells, drift);
        let Some((bursts, cells)) = &self.by_cpu else { return by_wall };
        // What all functions do together by the wall clock is how much the target works, of which CPU time shows less.
        let drift = drift.map(Drift::without_course);
        match (by_wall, of(bursts, cells, drift.as_ref())) {
            (Some(by_wall), Some(by_cpu)) if by_cpu.high.is_infinite() && by_wall.high.is_finite() => {
                let at_value = rate_over(bursts, cells, LEVEL, drift.as_ref(), told_of);
                Some(hidden_by_cpu(by_wall, by_cpu, at_value.map_or(0.0, |rate| rate.value), self.rests))
            }
            (Some(by_wall), Some(by_cpu)) => Some(between(by_wall, by_cpu)),
            (by_wall, by_cpu) => by_wall.or(by_cpu),
        }
    }
}

/// Where the price hides the rate by CPU time only, `by_cpu` is that at the smallest price: the value is the wall clock's, and the interval begins with the lower of
/// both.
///
/// Of a target that rests the wall clock's upper end is no bound: a window that a quota ends in the middle of work sees the price against the rest before it. There
/// the end lies at least at [`HIDDEN`] times what CPU time says at the price's value, which is taken for [`HIDDEN`] times that at the smallest price at most. That is a
/// rule of thumb; real programs' counts are inside (log.md, M44). One that never rests calls in batches where the two differ: between the first and the last hit of
/// a window lies nothing of the time to the next batch, and the wall clock is right.
fn hidden_by_cpu(by_wall: Estimate, by_cpu: Estimate, at_value: f64, rests: bool) -> Estimate {
    let end = if rests { HIDDEN * at_value.min(HIDDEN * by_cpu.value) } else { 0.0 };
    Estimate { low: by_wall.low.min(by_cpu.low), high: by_wall.high.max(end), ..by_wall }
}

/// The mean of both, and an interval that holds both. By the wall clock more time is left to the target, so where the price hides that rate,
/// nothing bounds it from above.
fn between(by_wall: Estimate, by_cpu: Estimate) -> Estimate {
    let high = by_wall.high.max(by_cpu.high);
    let value = if high.is_infinite() {
        by_wall.value.min(by_cpu.value)
    } else {
        (by_wall.value + by_cpu.value) / 2.0
    };
    Estimate { value, low: by_wall.low.min(by_cpu.low), high, ..by_wall }
}

/// Rates per CPU second of the thread times what it uses of a CPU in the time that monitoring leaves it, `U`; each weighs by what the target used around that
/// window (`u_j`), and as far as rates change by the time that it stands for (`l_j`):
/// ```text
/// R = U sum l_j u_j r_j / sum l_j u_j,   or with l_j alike
/// ```
/// `None` if no window's CPU time is known.
fn by_cpu(
    windows: &[&WindowRow],
    by_wall: &mut [Burst],
    price: &HitPrice,
    (run, caller): (&RunContext, &Caller),
) -> Option<(Vec<Burst>, Vec<Cell>)> {
    let ended: Vec<Option<Burst>> = windows.iter().map(|w| ended_by_quota(w, price, run, caller)).collect();
    if ended.iter().all(Option::is_none) {
        return None;
    }
    let (mut used, mut weights, mut bursts) = (Vec::new(), Vec::new(), Vec::new());
    for ((w, of_wall), ended) in windows.iter().zip(by_wall).zip(ended) {
        let (burst, weight) = match ended {
            Some(burst) => {
                // Whether it lay in a time slice or waited for one is known.
                of_wall.busy = 1.0;
                (burst, run.used_around(w) / run.cpu_per_s)
            }
            // Long ones meet waits as often as any moment does.
            None if w.kind == WindowKind::Trace => (*of_wall, 1.0),
            // Its wall time lies in work more often than not: beside CPU times it would count waits twice.
            None if w.tripped => continue,
            None => ended_by_clock(w, of_wall, run, caller),
        };
        used.push(*w);
        bursts.push(burst);
        weights.push(weight);
    }
    weigh_alike(&mut bursts, &used);
    let mut cells = run.cells(&used);
    cells.iter_mut().zip(weights).for_each(|(cell, used)| cell.used = used);
    Some((bursts, cells))
}

/// A window that its quota ended, in time that the thread ran:
/// ```text
/// T = (ran - (N - 1) tau - other) / U,   rate = (N - 2) / T
/// ```
/// U: CPU seconds of the thread's own per second that monitoring leaves it. From the first hit to the last of N there are N - 1 calls, of which the last ended it.
/// Of others' hits it is taken to pay the part that it has of the CPU time: of those of a target with several threads, between none and all.
fn ended_by_quota(w: &WindowRow, price: &HitPrice, run: &RunContext, caller: &Caller) -> Option<Burst> {
    let hits = w.kept.saturating_add(w.dropped);
    let (tau_s, cheap, dear) = price.of_window(w);
    let ran_s = run.ran_s(w, tau_s, caller).filter(|_| w.kind != WindowKind::Trace && hits > 2)?;
    if run.cpu_per_s <= 0.0 {
        return None;
    }
    let calls = hits - 1;
    let most_s = MOST_OF_OTHERS * (ran_s - calls as f64 * tau_s).max(0.0);
    // A thread that ran so long did so in more time, and monitoring ran on it, too.
    let rest_s = run.rest_per_s * caller.part * ran_s / run.busy_of(caller).max(f64::MIN_POSITIVE);
    let others_s = run.others_s(w, ran_s / (run.used_around(w) * caller.part));
    let left_s = |part: f64, tau_s: f64| {
        let cost_s = calls as f64 * tau_s + (rest_s + part * others_s).min(most_s);
        (ran_s - cost_s).max(calls as f64 * LEAST_CALL_S)
    };
    let most = dear_neighbours(tau_s, dear);
    let least = if caller.is_sole { 1.0 - NEIGHBOUR_ERROR } else { 0.0 };
    let value_s = left_s(caller.part, tau_s);
    let own = Burst {
        hits: calls,
        stop: Stop::Quota,
        time_s: value_s,
        time_low_s: left_s(most, dear).min(value_s),
        time_high_s: left_s(least, cheap).max(value_s),
        quota: Some(calls),
        window_s: None,
        // It ran all the time.
        busy: 1.0,
    }
    .swallowed(ran_s);
    let per_s = run.cpu_per_own_s(caller);
    let value_s = own.time_s / per_s;
    Some(Burst {
        time_s: value_s,
        time_low_s: (own.time_low_s / per_s * (1.0 - caller.error).max(0.1)).min(value_s),
        time_high_s: (own.time_high_s / per_s * (1.0 + caller.error)).max(value_s),
        ..own
    })
}

/// A window that the clock ended, and what it weighs: one that lay in a wait says nothing of how often a target that works calls. Of the CPU time of a process with
/// several threads the one that calls is taken to have its part.
fn ended_by_clock(w: &WindowRow, by_wall: &Burst, run: &RunContext, caller: &Caller) -> (Burst, f64) {
    let elapsed_s = w.end_ns.saturating_sub(w.start_ns) as f64 * 1e-9;
    let used_per_s = run.own_per_s(w) * caller.part;
    // A CPU time of 0 is one that could not be read, where there are hits.
    let is_known = elapsed_s >= LEAST_S && (w.target_cpu_ns > 0 || w.kept == 0);
    let own_s = if !is_known {
        used_per_s * by_wall.time_s
    } else {
        let cost_s = run.traps.window_s(w) + run.others_s(w, elapsed_s);
        ((w.target_cpu_ns as f64 * 1e-9 - cost_s) * caller.part).clamp(0.0, by_wall.time_s)
    };
    // Of an empty one both are 0.
    let worked = own_s / by_wall.time_s.max(f64::MIN_POSITIVE);
    let part = worked / run.cpu_per_own_s(caller);
    let burst = Burst {
        time_s: by_wall.time_s * part,
        time_low_s: by_wall.time_low_s * part * (1.0 - caller.error).max(0.1),
        time_high_s: by_wall.time_high_s * part * (1.0 + caller.error),
        ..*by_wall
    };
    (burst, worked.min(used_per_s) / (run.cpu_per_s * caller.part))
}
