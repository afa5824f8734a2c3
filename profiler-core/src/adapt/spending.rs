//! What operations may take in one second, and what each of their functions may take until the next look.
//!
//! A budget that holds on average is no promise for a second: functions that bound operations may cost three times the budget while they are
//! attached, and a slice of inner functions ten times. So what was taken is remembered look by look, and what is granted until the next look is what
//! the last [`SPAN_S`] and the last [`LONG_S`] leave:
//! ```text
//! left(now) = min(PEAK x allowed x SPAN_S - taken(now - SPAN_S, now),    allowed x LONG_S - taken(now - LONG_S, now))
//! sum of grants <= left(now)
//! ```
//! Hits are granted as quotas that the kernel takes down. A span that ends before the next look holds what was taken before it and, at most, the
//! grants, so that none costs more, whenever the hits come; what is hit until a link is gone comes on top. With the short span alone what takes a
//! little more than is allowed would be watched for three fifths of the time: it is off until half of the span is free.
//!
//! Inputs: looks and prices; outputs: ns of CPU time. What it does not do: it reads no counter and attaches nothing.

use super::portions::level;
use crate::run::arbiter::RECORDING_SHARE;
use std::collections::VecDeque;

/// Length of what is added up, s: the ledger's worst second spans up to one of its intervals (0.1 s) more than a second.
pub const SPAN_S: f64 = 1.1;
/// In it so many times what is allowed may be taken, ...
pub const PEAK: f64 = 1.15;
/// ... and in so many seconds what is allowed.
pub const LONG_S: f64 = 4.4;
/// Length of a span, s, and what may be taken in it over what is allowed.
const SPANS: [(f64, f64); 2] = [(SPAN_S, PEAK), (LONG_S, 1.0)];
/// What was paused comes back when this part of a span's worth is free again.
const RESTART_PART: f64 = 0.5;
/// Part of what is left that bounds have for certain, whatever is inside wants.
const BOUNDS_PART: f64 = 0.5;
/// Part of what a slice may take that it is planned to.
const SLICE_PLAN: f64 = 0.55;
/// Part of what bounds leave that a slice is planned for: they do not take the same in each look.
const LEFT_PART: f64 = 0.9;
/// Length of a look, s.
const LOOK_S: f64 = 0.1;
/// A function may take so many times what it took in its dearest look of late, ...
const SLACK: f64 = 1.5;
/// ... and so many hits beyond that.
const FIRST_HITS: f64 = 8.0;
/// Part of the dearest look that counts in the next one: 63 % are forgotten in 50 looks, 5 s while it is attached.
const KEPT: f64 = 0.98;

/// What recording an operation costs besides its inner calls (the thread's account read twice, the record written), in counted hits. Measured with
/// a pair of functions on `push` sites: two counted hits 1,585 ns, an operation that is not recorded 1,830, one that is 2,310 (medians of 40 x 2,000
/// operations, n = 3, spread 3 %). The 1,830 are two hits that record, which is what screening is charged with.
const RECORD_HITS: f64 = 0.6;

/// That, ns, where a counted hit costs `count_ns`.
#[must_use]
pub fn record_own_ns(count_ns: f64) -> f64 {
    RECORD_HITS * count_ns
}

/// What was taken of late.
#[derive(Debug, Clone, Default)]
pub struct Span {
    /// End of a look, ktime ns, and what was taken since the one before, ns of CPU time.
    looks: VecDeque<(u64, f64)>,
}

/// OK because the cast saturates.
fn ns(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl Span {
    /// `took_ns` of CPU time were taken since the last look.
    pub fn note(&mut self, now_ns: u64, took_ns: f64) {
        let old = |(end_ns, _): &(u64, f64)| end_ns.saturating_add(ns(LONG_S)) <= now_ns;
        while self.looks.front().is_some_and(old) {
            self.looks.pop_front();
        }
        if took_ns > 0.0 && took_ns.is_finite() {
            self.looks.push_back((now_ns, took_ns));
        }
    }

    /// What was taken in the `length_s` that end now, at most [`LONG_S`], ns.
    #[must_use]
    pub fn taken_ns(&self, now_ns: u64, length_s: f64) -> f64 {
        let of_span = |(end_ns, _): &&(u64, f64)| end_ns.saturating_add(ns(length_s)) > now_ns;
        self.looks.iter().filter(of_span).map(|(_, ns)| ns).sum()
    }

    /// What may be taken until the next look where `allowed` CPU s/s may be spent, ns; never negative.
    #[must_use]
    pub fn left_ns(&self, now_ns: u64, allowed: f64) -> f64 {
        let of = |(length_s, times): (f64, f64)| {
            times * allowed * length_s * 1e9 - self.taken_ns(now_ns, length_s)
        };
        SPANS.into_iter().map(of).fold(f64::INFINITY, f64::min).max(0.0)
    }

    /// When `want_ns` will be left if nothing is taken until then, ktime ns; `now_ns` if they are. More than a span's worth is never left: then
    /// when all of it is.
    #[must_use]
    pub fn room_at_ns(&self, now_ns: u64, allowed: f64, want_ns: f64) -> u64 {
        let of = |(length_s, times): (f64, f64)| {
            let most_ns = (times * allowed.max(0.0) * length_s * 1e9 - want_ns).max(0.0);
            let mut taken_ns = self.taken_ns(now_ns, length_s);
            let mut at_ns = now_ns;
            for (end_ns, took_ns) in &self.looks {
                if taken_ns <= most_ns {
                    break;
                }
                let gone_ns = end_ns.saturating_add(ns(length_s));
                if gone_ns > now_ns {
                    (taken_ns, at_ns) = (taken_ns - took_ns, gone_ns);
                }
            }
            at_ns
        };
        SPANS.into_iter().map(of).fold(now_ns, u64::max)
    }

    /// When what was paused because `allowed` CPU s/s were taken comes back, ktime ns.
    #[must_use]
    pub fn restart_at_ns(&self, now_ns: u64, allowed: f64) -> u64 {
        self.room_at_ns(now_ns, allowed, restart_ns(allowed))
    }
}

/// So much is left when what was paused comes back, ns.
#[must_use]
pub fn restart_ns(allowed: f64) -> f64 {
    RESTART_PART * PEAK * allowed * SPAN_S * 1e9
}

/// What one slice of inner functions may be planned to cost so that its quotas do not end it, where it may take `most`: a function that takes
/// all of it has four fifths of the quotas, and they are uneven.
#[must_use]
pub fn slice_plan(most: f64) -> f64 {
    SLICE_PLAN * most
}

/// What the quotas of a slice may be together where bounds take `bounds` CPU s/s all the time and operations may `allowed`, CPU s.
fn slice_quotas_s(bounds: f64, allowed: f64) -> f64 {
    let free_s = LEFT_PART * (PEAK * allowed - bounds).max(0.0) * SPAN_S;
    (free_s - SLACK * bounds * LOOK_S).max(BOUNDS_PART * free_s)
}

/// What one slice may be planned to cost beside such bounds, CPU s: more is never left.
#[must_use]
pub fn slice_most_s(bounds: f64, allowed: f64) -> f64 {
    slice_plan(slice_quotas_s(bounds.max(0.0), allowed))
}

/// The least that operations must be allowed so that bounds that take `bounds` CPU s/s are watched all the time, and slices of `slice_s` CPU s
/// fit beside them, CPU s/s.
#[must_use]
pub fn allowed_for_slices(bounds: f64, slice_s: f64) -> f64 {
    let quotas_s = slice_s / SLICE_PLAN;
    let free_s = (quotas_s + SLACK * bounds * LOOK_S).min(quotas_s / BOUNDS_PART);
    ((free_s / (LEFT_PART * SPAN_S) + bounds) / PEAK).max(bounds / (1.0 - RECORDING_SHARE))
}

/// What must be left before a slice begins that should cost `worth_ns`, while bounds want `bounds_ns` until the next look, ns: they may have half
/// of it.
#[must_use]
pub fn slice_room_ns(worth_ns: f64, bounds_ns: f64, allowed: f64) -> f64 {
    let quotas_ns = worth_ns / SLICE_PLAN;
    (quotas_ns + bounds_ns).min(quotas_ns / (1.0 - BOUNDS_PART)).min(restart_ns(allowed))
}

/// What one function takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TakenTime {
    /// In the last look, ns.
    pub last_ns: f64,
    /// In its dearest look of late, ns.
    most_ns: f64,
}

impl TakenTime {
    /// It took this since the last look, ns. What is not attached says nothing of what it takes when it is.
    pub fn note(&mut self, took_ns: f64, attached: bool) {
        let kept = if attached { KEPT } else { 1.0 };
        *self = Self { last_ns: took_ns, most_ns: took_ns.max(kept * self.most_ns) };
    }

    /// What it should be able to take until the next look, where a hit costs `tau_ns`, ns.
    #[must_use]
    pub fn want_ns(&self, tau_ns: f64) -> f64 {
        SLACK * self.most_ns + FIRST_HITS * tau_ns
    }
}

/// Functions that bound one operation, or all inner functions.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// What each should be able to take, ns.
    pub wants_ns: Vec<f64>,
    /// What all of it may take, ns.
    pub most_ns: f64,
    /// They bound an operation.
    pub bounds: bool,
}

impl Group {
    /// What it should be able to take together, ns.
    #[must_use]
    pub fn want_ns(&self) -> f64 {
        self.wants_ns.iter().sum::<f64>().min(self.most_ns)
    }
}

/// Divides `left_ns`: for each function of each group what it may take until the next look, ns. The sum is never more than `left_ns`.
///
/// Bounds get what they want, or half of what is left if that is less, the cheap ones before the dear ones; inner functions get what bounds leave. What
/// nobody wants is divided by what they want and evenly, half each.
#[must_use]
pub fn grants(left_ns: f64, groups: &[Group]) -> Vec<Vec<f64>> {
    let left_ns = left_ns.max(0.0);
    let sum =
        |bounds: bool| -> f64 { groups.iter().filter(|g| g.bounds == bounds).map(Group::want_ns).sum() };
    let (outside, inside) = (sum(true), sum(false));
    let bounds_ns = outside.min((BOUNDS_PART * left_ns).max(left_ns - inside));
    let inner_ns = inside.min(left_ns - bounds_ns);
    let wants: Vec<f64> = groups.iter().filter(|g| g.bounds).map(Group::want_ns).collect();
    let most_ns = level(bounds_ns, &wants);
    let given: Vec<f64> = groups
        .iter()
        .map(|g| {
            let scale = if inside > 0.0 { inner_ns / inside } else { 0.0 };
            if g.bounds { g.want_ns().min(most_ns) } else { g.want_ns() * scale }
        })
        .collect();
    let spare_ns = (left_ns - given.iter().sum::<f64>()).max(0.0);
    let wanted = (outside + inside).max(f64::MIN_POSITIVE);
    let all: usize = groups.iter().map(|g| g.wants_ns.len()).sum();
    groups
        .iter()
        .zip(given)
        .map(|(g, given)| {
            let n = g.wants_ns.len() as f64;
            let of_all = 0.5 * (g.want_ns() / wanted) + 0.5 * (n / all.max(1) as f64);
            let group_ns = (given + spare_ns * of_all).min(g.most_ns.max(0.0));
            let wants: f64 = g.wants_ns.iter().sum::<f64>().max(f64::MIN_POSITIVE);
            // Most of it by what they want, a fifth evenly: who was never called may be.
            g.wants_ns.iter().map(|want| group_ns * (0.8 * want / wants + 0.2 / n)).collect()
        })
        .collect()
}

#[cfg(test)]
#[path = "spending_tests.rs"]
mod tests;
