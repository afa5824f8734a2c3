//! One operation that is followed: its state, and for how long it was watched.

use super::moment::Moment;
use super::starved::Starved;
use super::{BoundBy, Operations};
use crate::adapt::Adapter;
use crate::adapt::portions::Demand;
use crate::adapt::spending::Span;
use crate::recording::ChangeKind;
use crate::run::order::Order;
use crate::run::order::operations::OperationOrder;
use crate::run::view::LinkView;
use crate::run::view::operations::OperationClassView;
use profiler_common::operation::OperationCounters;
use std::ops::Range;

/// An operation as it was asked for.
#[derive(Debug)]
pub struct Followed {
    /// Its name.
    pub name: String,
    /// What bounds it.
    pub bound_by: BoundBy,
    /// Its classes: the first is its own, the second `(other)`.
    pub classes: Range<u32>,
    /// The policy.
    pub adapter: Adapter,
    /// Price of screening one operation with warm caches, ns.
    pub screen_ns: f64,
}

/// One operation that is followed.
#[derive(Debug)]
pub(super) struct Operation {
    /// Number, everywhere.
    pub number: u32,
    pub name: String,
    pub bound_by: BoundBy,
    pub classes: Range<u32>,
    pub adapter: Adapter,
    /// Recording is on, as far as the policy is concerned.
    pub monitoring: bool,
    pub watch: Watch,
    pub tally: Tally,
    pub cycle: CycleClock,
    pub prices: Prices,
    pub portion: Portion,
}

/// When it is watched.
#[derive(Debug)]
pub(super) struct Watch {
    /// Start of the present window, ktime ns.
    pub since_ns: u64,
    /// Part of the present window in which bounds were attached, ns, and until when it was looked at.
    pub watched_ns: u64,
    pub looked_ns: u64,
    /// Bounds were attached when they were last looked at.
    pub attached: bool,
    /// They have been detached since operations began that are still open, and ends are no longer watched for.
    pub stale: bool,
    /// Its bounds stay off until this time, ktime ns: one of them has used up its quota, or cannot be paid for. 0: they do not.
    pub off_until_ns: u64,
    /// It is not watched any more: its system calls or tracepoints were too expensive, or no begin or no end of it can be attached.
    pub lost: bool,
}

/// What was counted.
#[derive(Debug)]
pub(super) struct Tally {
    /// Counters of its classes at the last cut.
    pub last: Vec<OperationCounters>,
    /// About the longest response time, s; 0: none has ended yet.
    pub longest_s: f64,
    /// Operations per second, and the share of them that was recorded, in the last window.
    pub rate_hz: f64,
    pub recorded_share: f64,
    /// Operations and recorded ones so far.
    pub population: u64,
    pub sample: u64,
}

/// The monitoring cycle in progress.
#[derive(Debug)]
pub(super) struct CycleClock {
    pub number: u64,
    /// Its start, ktime ns.
    pub since_ns: u64,
}

/// What one operation costs, ns.
#[derive(Debug)]
pub(super) struct Prices {
    /// Mean cost of a recorded one, smoothed; 0: none was seen.
    pub record_ns: f64,
    /// Screening one with warm caches, and what that costs more as cold as they are.
    pub screen_ns: f64,
    pub screen_cold_ns: f64,
}

/// What it takes of what operations may cost.
#[derive(Debug)]
pub(super) struct Portion {
    /// What it took in the last window in which it was watched.
    pub demand: Demand,
    pub starved: Starved,
    /// What screening it may cost, CPU s/s, and what its bounds took of late.
    pub most_screening: f64,
    pub span: Span,
    /// It was told that it is watched for a part of the time.
    pub said_expensive: bool,
}

impl Operation {
    pub fn new(number: u32, asked: Followed, now: u64) -> Self {
        let Followed { name, bound_by, classes, adapter, screen_ns } = asked;
        Self {
            number,
            name,
            bound_by,
            adapter,
            monitoring: false,
            watch: Watch {
                since_ns: now,
                watched_ns: 0,
                looked_ns: now,
                attached: false,
                stale: false,
                off_until_ns: 0,
                lost: false,
            },
            tally: Tally {
                last: vec![OperationCounters::default(); classes.len()],
                longest_s: 0.0,
                rate_hz: 0.0,
                recorded_share: 0.0,
                population: 0,
                sample: 0,
            },
            classes,
            cycle: CycleClock { number: 0, since_ns: now },
            prices: Prices { record_ns: 0.0, screen_ns, screen_cold_ns: 0.0 },
            portion: Portion {
                demand: Demand::default(),
                starved: Starved::default(),
                most_screening: f64::INFINITY,
                span: Span::default(),
                said_expensive: false,
            },
        }
    }

    pub fn by_functions(&self) -> bool {
        self.bound_by == BoundBy::Functions
    }

    pub fn by_syscalls(&self) -> bool {
        self.bound_by == BoundBy::Syscalls
    }

    pub fn by_tracepoints(&self) -> bool {
        self.bound_by == BoundBy::Tracepoints
    }

    /// Calibrated price of screening one operation as the ledger charges it, ns.
    pub fn screened_ns(&self) -> f64 {
        self.prices.screen_ns + self.prices.screen_cold_ns
    }

    /// On the calibrated price of screening. That of tracepoints is not compared in windows off, which leave them on.
    pub fn screen_factor(&self, factor: f64) -> f64 {
        if self.by_functions() { factor } else { 1.0 }
    }

    /// Its bounds stay off: one of them has used up its quota, or cannot be paid for.
    pub fn is_paused(&self) -> bool {
        self.watch.off_until_ns > 0
    }

    /// What screening it may cost, CPU s/s.
    pub fn most_screening(&self, allowed: f64) -> f64 {
        self.portion.most_screening.min(allowed)
    }

    /// For the live line.
    pub fn line(&self, is_inner_paused: bool) -> String {
        let state = if self.watch.lost || !self.watch.attached {
            ", not watched now"
        } else if is_inner_paused {
            ", details off"
        } else if !self.monitoring {
            ", baseline"
        } else {
            ""
        };
        let Tally { rate_hz, recorded_share, sample, population, .. } = &self.tally;
        format!(
            "; {}: {rate_hz:.0}/s, {:.1} % recorded now, {sample} of {population}{state}",
            self.name,
            recorded_share * 100.0
        )
    }

    /// Looks at its bounds, of which each is the class and whether it ends operations: adds up for how long all of them were watched. True:
    /// it cannot be watched from now on.
    fn look(&mut self, now: u64, bounds: &[(&OperationClassView, bool)]) -> bool {
        let watch = &mut self.watch;
        let before = watch.lost;
        // One of several places that the kernel refuses is missing, and was told.
        let here = || bounds.iter().filter(|(class, _)| !class.obstacle.refused);
        let is_paired = bounds.iter().any(|(_, ends)| *ends);
        watch.lost |= !bounds.is_empty()
            && (here().all(|(_, ends)| *ends) || (is_paired && !here().any(|(_, ends)| *ends)));
        let attached = !watch.lost && here().all(|(class, _)| matches!(class.link, LinkView::Open(_)));
        let (mut begin_ns, mut end_ns) = (0, if watch.lost { watch.looked_ns } else { now });
        for (class, _) in here() {
            begin_ns = begin_ns.max(class.span_ns.0);
            end_ns = end_ns.min(class.span_ns.1);
        }
        watch.watched_ns = watched(watch.watched_ns, (watch.looked_ns, watch.attached), (begin_ns, end_ns));
        watch.stale |= watch.attached && (!attached || begin_ns > watch.looked_ns);
        (watch.looked_ns, watch.attached) = (now, attached);
        watch.lost && !before
    }
}

/// Watched time by now, ns, where it was `watched_ns` when it was looked at last, with the bounds attached or not, and the bounds'
/// last window in common lasts or lasted over `span`.
fn watched(watched_ns: u64, (looked_ns, attached): (u64, bool), (begin_ns, end_ns): (u64, u64)) -> u64 {
    if attached && begin_ns <= looked_ns && end_ns < looked_ns {
        // It was over when it was still thought to be open.
        return watched_ns.saturating_sub(looked_ns - end_ns);
    }
    watched_ns + end_ns.saturating_sub(begin_ns.max(looked_ns))
}

impl Operations {
    /// Adds up for how long all bounds of an operation were watched: from when the gate of the last one opened to when the
    /// first one ended, which of a trip is heard of later.
    pub(super) fn look_at_time(&mut self, at: &mut Moment<'_>) {
        let now = at.now();
        let view = at.view;
        let mut lost = Vec::new();
        for o in &mut self.list {
            let bounds: Vec<(&OperationClassView, bool)> = self
                .bounds
                .iter()
                .zip(&view.operations.bounds)
                .filter(|(kept, _)| kept.bounds(o.number))
                .map(|(kept, class)| (class, kept.ends()))
                .collect();
            if o.look(now, &bounds) {
                lost.push(o.name.clone());
            }
            let is_draining = bounds.iter().any(|(class, _)| !class.obstacle.refused && class.is_draining);
            if o.watch.stale && !is_draining {
                // What is open now may have lost its end.
                at.order(OperationOrder::NewGeneration(o.number));
                o.watch.stale = false;
            }
        }
        for name in lost {
            // No begin or no end of it can be attached: the other is of no use.
            let why = "none of its begins, or none of its ends, can be attached (see above)";
            let text = format!("operation '{name}' is not watched: {why}");
            at.orders.push(Order::Note(text.clone()));
            at.orders.push(Order::Change(ChangeKind::Stop, None, text));
            at.orders.push(Order::NotObserved(format!("operation '{name}'"), why.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::watched;

    #[test]
    fn what_was_watched_is_counted_between_gates() {
        // Opened 30 ms before this look, which was 100 ms after the last one.
        assert_eq!(watched(0, (1_000, false), (1_070, 1_100)), 30);
        // Open all the time.
        assert_eq!(watched(30, (1_100, true), (1_070, 1_200)), 130);
        // Tripped since the last look, ...
        assert_eq!(watched(130, (1_200, true), (1_070, 1_205)), 135);
        // ... or before it, which is heard of only now.
        assert_eq!(watched(130, (1_200, true), (1_070, 1_150)), 80);
        // Looked at again later: nothing new.
        assert_eq!(watched(80, (1_300, false), (1_070, 1_150)), 80);
        // Opened and tripped between two looks.
        assert_eq!(watched(80, (1_300, false), (1_310, 1_315)), 85);
        // Opened again before anybody saw that it had been off.
        assert_eq!(watched(80, (1_300, true), (1_350, 1_400)), 130);
        // Two bounds that were never attached together.
        assert_eq!(watched(0, (1_000, false), (1_070, 1_050)), 0);
    }
}
