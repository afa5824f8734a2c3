//! What is spent beside a survey, and what that leaves to it.
//!
//! One list of who spends ([`Spenders`]) for all who have to know: the controller, the plan, the survey.

use super::attach::now_ns;
use super::{Phase, Session};
use profiler_core::ledger::Ledger;
use profiler_core::survey::Means;

/// The part of what is granted at most that one burst of a survey may take.
const BURST_PART: f64 = 0.7;
/// The part of what others leave of the budget that a survey counts on.
const SURVEY_SHARE: f64 = 0.9;
/// A bucket that is emptier than this part is never taken for full.
const LEAST_FULL: f64 = 0.1;

/// Who spends what at present rates, as the ledger will charge it, CPU s/s; a survey is not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Spenders {
    /// Samples.
    pub samples: f64,
    /// The plan: classes that are traced all the time, and its bursts.
    pub plan: f64,
    /// Switches of threads that have an event of their own.
    pub switches: f64,
    /// Counting the progress metric.
    pub metric: f64,
    /// What comes in lumps: links that are made anew after forks, children.
    pub misc: f64,
    /// Operations.
    pub operations: f64,
}

impl Spenders {
    /// What the controller has no hand in: all but plan and samples.
    pub(super) fn fixed(&self) -> f64 {
        self.switches + self.metric + self.misc + self.operations
    }

    /// All of them.
    pub(super) fn sum(&self) -> f64 {
        self.samples + self.plan + self.fixed()
    }
}

impl Session {
    /// What is spent by others than surveys; see [`Spenders`].
    pub(super) fn spent_by_others(&self) -> Spenders {
        let factor = self.ledger.factor();
        let switching = !self.sampling.is_per_cpu() && self.sampling.threads() > 0;
        let switch_s = if switching { self.cost.switch.seconds() } else { 0.0 };
        let sample_s = self.sampling.price(&self.cost).seconds() * factor;
        Spenders {
            samples: self.sampling.rate_hz() * sample_s * self.own_cpu,
            plan: self.controller.traced_cost() + self.planned_bursts,
            switches: self.switches_per_s * switch_s * factor,
            metric: self.metric_cost(),
            misc: self.misc_cost,
            operations: self.operations_cost(),
        }
    }

    /// What a survey has to spend.
    pub(super) fn survey_means(&self) -> Means {
        let others = self.spent_by_others().sum();
        means(&self.ledger, self.allowed(self.own_cpu), others, self.survey_limit_s())
    }

    /// What the windows of a survey may still take, ns.
    pub(super) fn survey_reserved_ns(&self) -> f64 {
        if let Phase::Survey { survey, .. } = &self.phase { survey.reserved_s() * 1e9 } else { 0.0 }
    }

    /// What a survey may take now, CPU s.
    pub(super) fn survey_tokens_s(&self) -> f64 {
        let held_ns = self.controller.held_ns(now_ns());
        tokens_s(&self.ledger, self.spent_by_others().sum(), held_ns).min(self.survey_limit_s())
    }
}

/// What a survey has to spend of what is `allowed`, while `others` go on (CPU s/s), and no single thread may lose more than
/// `thread_s` at once, CPU s.
fn means(ledger: &Ledger, allowed: f64, others: f64, thread_s: f64) -> Means {
    let granted_s = (ledger.most_grantable_ns(others) * 1e-9).min(thread_s);
    Means {
        burst_limit_s: BURST_PART * granted_s,
        most_granted_s: granted_s,
        least_full_s: (LEAST_FULL * ledger.bucket().capacity_ns() * 1e-9).min(thread_s),
        income: (SURVEY_SHARE * (allowed - others)).max(0.0),
    }
}

/// What bucket and second grant now, CPU s; of the bucket, `held_ns` are granted to windows of the plan.
fn tokens_s(ledger: &Ledger, others: f64, held_ns: f64) -> f64 {
    (ledger.available_ns() - held_ns).max(0.0).min(ledger.left_in_second_ns(others)) * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_core::recording::Charge;
    use profiler_core::units::OverheadBudget;

    /// The parts of a budget of 20 ms/s that these spend, which a survey asks 200 times beside them, in ticks of 105 ms: its means,
    /// and the most that it is granted at once.
    fn beside(parts: Spenders) -> (Means, f64) {
        let part = |p: f64| 0.02 * p;
        let charges = [
            (Charge::Samples, parts.samples),
            (Charge::Traced, parts.plan),
            (Charge::Switches, parts.switches),
            (Charge::Progress, parts.metric),
            (Charge::Children, parts.misc),
            (Charge::Traced, parts.operations),
        ];
        let mut ledger = Ledger::new(OverheadBudget::Share(0.02), 0);
        let (mut best_s, tick_ns) = (0.0_f64, 105_000_000_u64);
        let others = part(parts.sum());
        for i in 1..=200 {
            for (charge, p) in charges {
                ledger.charge(charge, None, 1, part(p) * tick_ns as f64);
            }
            ledger.close_interval(i * tick_ns, tick_ns + (others * tick_ns as f64) as u64);
            if i > 100 {
                best_s = best_s.max(tokens_s(&ledger, others, 0.0));
            }
        }
        (means(&ledger, ledger.allowed(1.0), others, f64::INFINITY), best_s)
    }

    #[test]
    fn a_survey_expects_no_more_than_others_leave_whoever_they_are() {
        let none = Spenders::default();
        for (parts, part_of_second) in [
            (Spenders { samples: 0.1, operations: 0.8, ..none }, 0.1),
            (Spenders { samples: 0.1, plan: 0.4, switches: 0.2, metric: 0.1, misc: 0.1, ..none }, 0.1),
            // As much as a plan may ever count on.
            (Spenders { samples: 0.1, plan: 0.87, ..none }, 0.03),
        ] {
            let (means, best_s) = beside(parts);
            let most_s = 0.95 * part_of_second * 0.02;
            assert!((means.most_granted_s - most_s).abs() < 1e-6, "{parts:?}: {means:?}");
            assert!((best_s - most_s).abs() < 1e-6, "{parts:?}: {best_s} of {most_s}");
            assert!((means.income - 0.9 * part_of_second * 0.02).abs() < 1e-9, "{parts:?}: {means:?}");
            assert!(means.burst_limit_s < best_s && means.least_full_s <= 0.5e-3 + 1e-9, "{means:?}");
        }
        // They leave nothing: what it takes for a full bucket is a part of a real one.
        let (means, best_s) = beside(Spenders { operations: 0.8, plan: 0.3, ..none });
        assert_eq!((means.most_granted_s, best_s, means.income), (0.0, 0.0, 0.0));
        assert!((means.least_full_s - 0.5e-3).abs() < 1e-6, "{means:?}");
    }

    #[test]
    fn what_windows_of_the_plan_were_granted_is_not_granted_again() {
        let mut ledger = Ledger::new(OverheadBudget::Share(0.02), 0);
        for i in 1..=20 {
            ledger.close_interval(i * 100_000_000, 100_000_000);
        }
        let granted_s = |held_ns| tokens_s(&ledger, 0.0, held_ns);
        assert!((granted_s(0.0) - 5e-3).abs() < 1e-9);
        assert!((granted_s(3e6) - 2e-3).abs() < 1e-9);
        assert_eq!(granted_s(6e6), 0.0);
    }

    #[test]
    fn all_who_spend_are_in_the_sum() {
        let all =
            Spenders { samples: 1.0, plan: 2.0, switches: 4.0, metric: 8.0, misc: 16.0, operations: 32.0 };
        assert_eq!((all.sum(), all.fixed()), (63.0, 60.0));
    }
}
