//! Rates of functions that were watched beside a reference ([`crate::clients::reference`]): by how many of their calls come on one of its.
//!
//! Hits slow both alike where one thread calls both, so that no price is in how many calls of the one come on one of the other:
//! ```text
//! rate = R G,   R = sum N_w / sum M_w
//! ```
//! `N`: calls of the function in window `w`, `M`: calls of the reference in the same time, `G`: the reference's own rate, which hangs little on what its hits cost.
//!
//! `R` is a ratio estimate (Cochran 1977, §6.4), whose error is the scatter of `N_w - R M_w`, and not less than that of the calls of the reference were they independent. A window that
//! the function's quota ends is shorter where the function is called more often: moments count by the reference's calls in them, and `R` is low by up to `v^2`, where `v` is how much the
//! ratio differs from window to window beyond chance. The value is raised by half of that, and the interval holds both ends. Where `v` is above a half the program has phases in
//! which the ratio says little of the rates, and nothing is told.

use super::callers::Callers;
use super::{RunContext, bursts_of};
use crate::class::Source;
use crate::estimate::Estimate;
use crate::recording::{ClassRow, Recording, WindowKind, WindowRow};
use crate::stats::bursts::Of;
use crate::stats::{LEVEL, t_quantile};
use std::collections::BTreeMap;

/// Windows that say how much they differ.
const LEAST_WINDOWS: usize = 4;
/// Calls of the reference in all of them.
const LEAST_CALLS: f64 = 20.0;
/// Largest `v^2`.
const MOST_UNLIKE: f64 = 0.25;

/// What a reference tells of a function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::report::build) struct Beside {
    /// Calls per second that monitoring left the target.
    pub rate: Estimate,
    /// Part of its half-width, over the value, that more windows do not mend: what a hit of the reference costs.
    pub price_half: f64,
}

/// A value, and the parts of it by which its interval reaches below and above.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relative {
    pub value: f64,
    pub below: f64,
    pub above: f64,
}

/// It is a window of a reference on a function's link: the function ended it, so that it is no burst of its own.
pub(in crate::report::build) fn is_lent(w: &WindowRow) -> bool {
    w.link.is_some()
}

/// Functions with their references, and the windows that they shared.
type Pairs<'w> = BTreeMap<(u32, u32), Vec<(&'w WindowRow, &'w WindowRow)>>;

fn pairs<'w>(recording: &'w Recording, windows: &BTreeMap<u32, Vec<&'w WindowRow>>) -> Pairs<'w> {
    let mut pairs = Pairs::new();
    for lent in recording.windows.iter().filter(|w| is_lent(w)) {
        let of_function =
            lent.link.filter(|id| *id != lent.class_id).and_then(|id| Some((id, windows.get(&id)?)));
        let Some((function, own)) = of_function else { continue };
        // In order of time: the last one that begins before its end.
        let end = own.partition_point(|w| w.start_ns < lent.end_ns);
        let beside = end.checked_sub(1).map(|i| own[i]).filter(|w| lent.start_ns < w.end_ns);
        if let Some(w) = beside.filter(|w| w.kind == WindowKind::Burst) {
            pairs.entry((function, lent.class_id)).or_default().push((w, lent));
        }
    }
    pairs
}

/// Calls of both from the opening of their gates until their link was gone, those that a used-up quota turned away with the others: a link goes on for a moment after
/// the trip that ends its windows.
fn calls(function: &WindowRow, reference: &WindowRow) -> Option<(f64, f64)> {
    let saw_something = function.end_ns > function.start_ns && reference.end_ns > reference.start_ns;
    saw_something.then_some((function.attempted as f64, reference.attempted as f64))
}

/// What is told of a function: what its reference says, where that is known better than the rate by the price, in relation to its value, or contradicts it clearly. Then the price is wrong, for
/// what hits leave behind makes a function's own code slower (log.md, M53). Where the two are only just apart it may be chance, and the interval holds both.
pub(super) fn better(by_price: Option<Estimate>, beside: Beside) -> Option<Beside> {
    /// So many times lies between intervals that contradict each other clearly.
    const CLEARLY: f64 = 1.25;
    let Some(by_price) = by_price else { return Some(beside) };
    let rate = beside.rate;
    let part = |rate: &Estimate| rate.half_width() / rate.value;
    let apart = (rate.low / by_price.high).max(by_price.low / rate.high);
    if apart > CLEARLY || part(&rate) < part(&by_price) {
        return Some(beside);
    }
    let hull = Estimate { low: rate.low.min(by_price.low), high: rate.high.max(by_price.high), ..rate };
    (apart > 1.0).then_some(Beside { rate: hull, ..beside })
}

/// A reference of a function, and what it saw.
struct Known {
    /// Calls a second of the target's own time.
    rate: Relative,
    /// Part of its half-width, over the value, that its price leaves.
    price_half: f64,
    /// Of each burst that both were in: calls of the function and of the reference.
    seen: Vec<(f64, f64)>,
}

/// What references tell of functions.
pub(super) fn told(
    recording: &Recording,
    windows: &BTreeMap<u32, Vec<&WindowRow>>,
    callers: &Callers<'_>,
    run: &RunContext,
) -> BTreeMap<u32, Beside> {
    let class = |id: u32| recording.classes.iter().find(|c| c.class_id == id);
    let mut references: BTreeMap<u32, Vec<Known>> = BTreeMap::new();
    for ((function, reference), of_pair) in pairs(recording, windows) {
        let Some((class, own)) = class(reference).zip(windows.get(&reference)) else { continue };
        let of_function = windows.get(&function).map_or(&[][..], Vec::as_slice);
        if !callers.have_one((function, of_function), (reference, own)) {
            continue;
        }
        let seen = of_pair.iter().filter_map(|(w, lent)| calls(w, lent)).collect();
        if let Some((rate, price_half)) = rate_of((class, own), 1.0, recording, run) {
            references.entry(function).or_default().push(Known { rate, price_half, seen });
        }
    }
    references.into_iter().filter_map(|(function, of)| Some((function, by_references(of)?))).collect()
}

/// The rate by the references of a function: by each alone, and by those together whose own rates are known best, then second best, and so on. The narrowest counts, and where others contradict it its
/// interval holds both: how unlike references are is no matter of chance, however many bursts they have.
fn by_references(mut of: Vec<Known>) -> Option<Beside> {
    of.retain(|known| known.rate.value > 0.0);
    of.sort_by(|a, b| a.error().total_cmp(&b.error()));
    let alone = of.iter().map(std::slice::from_ref);
    let together = (2..=of.len()).map(|n| &of[..n]);
    let told: Vec<Beside> = alone.chain(together).filter_map(by_all).collect();
    let part = |of: &Beside| of.rate.half_width() / of.rate.value;
    let best = *told.iter().min_by(|a, b| part(a).total_cmp(&part(b)))?;
    let held = told.iter().filter(|other| are_apart(&other.rate, &best.rate)).fold(best.rate, hull);
    Some(Beside { rate: held, ..best })
}

/// An estimate whose interval holds the other's, too.
fn hull(of: Estimate, other: &Beside) -> Estimate {
    Estimate { low: of.low.min(other.rate.low), high: of.high.max(other.rate.high), ..of }
}

fn are_apart(a: &Estimate, b: &Estimate) -> bool {
    a.low > b.high || b.low > a.high
}

impl Known {
    fn error(&self) -> f64 {
        self.rate.below + self.rate.above
    }

    /// Its calls in bursts of the function.
    fn calls(&self) -> f64 {
        self.seen.iter().map(|(_, calls)| calls).sum()
    }

    /// The target's own time in those, as they tell it, s.
    fn time_s(&self) -> f64 {
        self.calls() / self.rate.value
    }
}

/// The rate by these references. Bursts with each of them count together, by the target's own time that it tells:
/// ```text
/// T_w = M_w / G,   rate = sum N_w / sum T_w,   chance: sum M / G^2 of (sum T)^2, M at least one call of each reference
/// ```
fn by_all(of: &[Known]) -> Option<Beside> {
    let all: f64 = of.iter().map(Known::calls).sum();
    if all < LEAST_CALLS {
        return None;
    }
    let sum_s: f64 = of.iter().map(Known::time_s).sum();
    let seen: Vec<(f64, f64)> = of
        .iter()
        .flat_map(|known| known.seen.iter().map(|(hits, calls)| (*hits, calls / known.rate.value)))
        .collect();
    let chance = of.iter().map(|known| known.calls().max(1.0) / known.rate.value.powi(2)).sum::<f64>();
    let ratio = ratio(&seen, chance / (sum_s * sum_s), None)?;
    // Prices of all are wrong alike, if they are.
    let part = |error: fn(&Known) -> f64| of.iter().map(|k| k.time_s() * error(k)).sum::<f64>() / sum_s;
    let of_references = Relative { value: 1.0, below: part(|k| k.rate.below), above: part(|k| k.rate.above) };
    // OK because they were counted.
    let rate = times(ratio, of_references, all as u64);
    Some(Beside { rate, price_half: part(|k| k.price_half) })
}

/// Of two that tell of one function, the one that knows it better; where they contradict each other, with an interval that holds both.
pub(super) fn sharper(a: Beside, b: Beside) -> Beside {
    let part = |of: &Beside| of.rate.half_width() / of.rate.value;
    let best = if part(&a) <= part(&b) { a } else { b };
    if are_apart(&a.rate, &b.rate) { Beside { rate: hull(hull(best.rate, &a), &b), ..best } } else { best }
}

/// A reference's own rate, Hz, and the part of its half-width that its price leaves. `unseen`: part of the run that its windows are to speak for.
pub(super) fn rate_of(
    (class, windows): (&ClassRow, &[&WindowRow]),
    unseen: f64,
    recording: &Recording,
    run: &RunContext,
) -> Option<(Relative, f64)> {
    let bursts = bursts_of(class, windows, recording, run);
    let rate = |unseen| bursts.rate(run.drift.as_ref(), Of::Run { unseen });
    let (part, whole) = (rate(unseen)?, rate(0.0)?);
    let is_known = part.low > 0.0 && part.high.is_finite();
    let of_price = if whole.high.is_finite() { whole.half_width() / whole.value } else { 0.0 };
    let half = bursts.beside.map_or(of_price, |beside| beside.price_half);
    let relative = Relative {
        value: part.value,
        below: 1.0 - part.low / part.value,
        above: part.high / part.value - 1.0,
    };
    is_known.then_some((relative, half))
}

/// See above: `R`, with its interval, of what the function was called and its reference was, or of the time that this tells. `chance`: relative variance of the sum of the latter, were calls independent.
/// `most`: `v^2` is no larger, by how long windows took for a call. Where the reference is called once in a window or less, chance makes nearly all of what ratios differ by, and says little of it.
pub(super) fn ratio(windows: &[(f64, f64)], chance: f64, most: Option<f64>) -> Option<Relative> {
    let n = windows.len() as f64;
    let (hits, calls) = windows.iter().fold((0.0, 0.0), |(h, c), (hits, calls)| (h + hits, c + calls));
    if windows.len() < LEAST_WINDOWS || calls <= 0.0 || hits <= 0.0 {
        return None;
    }
    let of_sums = hits / calls;
    let squares: f64 = windows.iter().map(|(hits, calls)| (hits - of_sums * calls).powi(2)).sum();
    // Over the mean number of hits: of one window, and of the sum.
    let of_window = squares / (n - 1.0) / (hits / n).powi(2);
    let variance = (of_window / n).max(chance);
    let unlike = (of_window - n * chance).max(0.0).min(most.unwrap_or(f64::INFINITY));
    if unlike > MOST_UNLIKE {
        return None;
    }
    let half = t_quantile(LEVEL, n - 1.0) * variance.sqrt();
    let value = of_sums * (1.0 + unlike / 2.0);
    let end = |of: f64| of * of_sums / value;
    // Where the reference is called as evenly as in a loop chance has no part in what windows differ by.
    let most_unlike = of_window.min(MOST_UNLIKE + n * chance).min(most.unwrap_or(f64::INFINITY));
    Some(Relative {
        value,
        below: 1.0 - end((1.0 - half).max(0.0)),
        above: end((1.0 + most_unlike) * (1.0 + half)) - 1.0,
    })
}

/// The product of two independent estimates, whose relative errors add by their squares. `n`: calls that it was seen from.
pub(super) fn times(a: Relative, b: Relative, n: u64) -> Estimate {
    let value = a.value * b.value;
    Estimate {
        value,
        low: value * (1.0 - a.below.hypot(b.below)).max(0.0),
        high: value * (1.0 + a.above.hypot(b.above)),
        level: LEVEL,
        n,
        source: Source::Burst,
        at_most: false,
    }
}

#[cfg(test)]
#[path = "../tests/reference.rs"]
pub(super) mod tests;
