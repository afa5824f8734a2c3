//! What the controller did, and why, for people.

use crate::class::ClassId;
use crate::controller::{Cause, DetachReason};
use crate::recording::ChangeKind;

/// The cause of a new plan. `names`: of the classes, by id.
pub(super) fn cause(why: Cause, names: &[&str]) -> String {
    let name = |class: ClassId| names.get(class.0 as usize).copied().unwrap_or_default();
    match why {
        Cause::Rate { class, rate_hz, planned_hz } => {
            format!("{} now runs at {rate_hz:.0} calls/s, planned with {planned_hz:.0}", name(class))
        }
        Cause::Fits { class, rate_hz } => {
            format!("{} may fit: a trial showed {rate_hz:.0} calls/s", name(class))
        }
        Cause::Cpu { now, planned } => {
            format!("the target now uses {now:.2} CPUs by itself, planned with {planned:.2}")
        }
        Cause::Spend { spend, income } => format!(
            "monitoring was about to take {:.2} ms of CPU time per second, {:.2} are allowed",
            spend * 1e3,
            income * 1e3
        ),
        Cause::Unspent { spend, income } => format!(
            "monitoring took {:.2} ms of CPU time per second, {:.2} are allowed: there is room for more",
            spend * 1e3,
            income * 1e3
        ),
        Cause::Thread { overhead } => {
            format!("one thread lost {:.1} % of its CPU time", overhead * 100.0)
        }
    }
}

/// Why a class with this rate, calls/s, is detached. `None`: the plan says it.
pub(super) fn stop(reason: DetachReason, rate_hz: f64) -> Option<(ChangeKind, String)> {
    match reason {
        DetachReason::OverBudget => {
            let text = format!(
                "the tokens ran out, and at {rate_hz:.0} calls/s it gave least for its cost of what is traced"
            );
            Some((ChangeKind::Stop, text))
        }
        DetachReason::TrialOver => {
            Some((ChangeKind::Trial, format!("its trial showed {rate_hz:.0} calls/s: not traced for now")))
        }
        DetachReason::Thread => {
            let text = "it took more from one thread than that may lose (--thread-budget)".to_owned();
            Some((ChangeKind::Stop, text))
        }
        DetachReason::Planned => None,
    }
}
