//! Who may spend which part of the budget: the one table, and what follows from it at present rates.
//!
//! ```text
//! budget ─┬─ plan: traced classes and bursts, at most PLANNED_SHARE ─────────────────┐
//!         ├─ operations: OPERATIONS_SHARE, reserved whole while operations are followed │  all of it by
//!         ├─ progress metric: at most METRIC_SHARE                                      │  the ledger's
//!         ├─ further activities: ACTIVITIES_SHARE                                       │
//!         ├─ comparison: links taken off and on for it, at most CHURN_SHARE             │  bucket
//!         ├─ samples: their price is the plan's; switches come with them                │
//!         └─ survey: SURVEY_SHARE of what the others leave, a burst at most BURST_SHARE ┘
//! ```
//! Claims are what activities spend at present, in CPU s/s as the ledger will charge it; grants are what they may.

use crate::ledger::{HOLD_S, Ledger};
use crate::survey::SurveyFunds;

/// Operations with all that belongs to them: bounds, inner functions, screens, recording.
pub const OPERATIONS_SHARE: f64 = 0.8;
/// Of that, functions of others stay attached while the overhead is compared: they are not in its figure.
pub const STAYING_SHARE: f64 = 0.1;
/// Of what operations may spend: screening leaves it to recording.
pub const RECORDING_SHARE: f64 = 0.1;
/// Of what records: everyone has it for certain; the other part goes where there is most to record. Who has nothing to record in this
/// window may in the next.
pub const EVEN_RECORDING_SHARE: f64 = 0.5;
/// Of what operations may spend in a span: what was paused comes back when so much is left by all who spend.
pub const LEAST_LEFT_SHARE: f64 = 0.2;
/// Of what operations may spend: functions have it for screening even where system calls and tracepoints take all of it, which are dropped
/// when they go on to.
pub const LEAST_SCREENING_SHARE: f64 = 0.05;
/// Of what operations may spend in a span: one slice of the functions inside them may take it at once. It is planned for
/// less, and waits until that is left.
pub const SLICE_SHARE: f64 = 0.4;
/// Plan and bursts: before anything is known of how the target spends, and where less is spent than planned. Always below the budget: the
/// rest is for what the plan does not know (attaching, trials, rates that grow), and the bucket must not run dry by chance.
pub const PLANNED_SHARE: (f64, f64) = (0.9, 0.97);
/// Of that, kept for bursts of what is not traced, beside what the plan leaves: the same two.
pub const PLAN_BURSTS_SHARE: (f64, f64) = (0.1, 0.06);
/// Counting the progress metric.
pub const METRIC_SHARE: f64 = 0.1;
/// Further activities, all of them together.
pub const ACTIVITIES_SHARE: f64 = 0.1;
/// Taking links off and on for comparisons.
pub const CHURN_SHARE: f64 = 0.1;
/// Of what others leave: a survey counts on it.
pub const SURVEY_SHARE: f64 = 0.9;
/// Of what a survey is granted at most: one of its bursts may take it.
pub const BURST_SHARE: f64 = 0.7;
/// Of the bucket: one that is emptier is never taken for full by a survey.
pub const LEAST_FULL_SHARE: f64 = 0.1;
/// Context switches of threads with an event of their own; above that samples come from one event per CPU.
pub const SWITCHING_SHARE: f64 = 0.25;
/// Samples at the lowest rate: above that they are taken less often.
pub const LEAST_SAMPLING_SHARE: f64 = 0.5;
/// What the bucket will hold: so much of it is lent to the first plan, which may come before the first tokens.
pub const LENT_SHARE: f64 = 0.5;
/// Of the bucket: one burst of the plan may take it, nearly all that bursts leave of it for what is traced (`KEEP`). With half of it the smallest burst of a program that uses
/// a tenth of a CPU did not fit at 2 %, since links cost as much.
pub const PLAN_BURST_SHARE: f64 = 0.65;
/// Of the bucket: slack of traced classes may take it although there is a debt.
pub const SLACK_SHARE: f64 = 0.5;
/// Children that carry breakpoints: nothing is attached above the first, until they are below the second.
pub const STORM_SHARE: (f64, f64) = (0.5, 0.2);
/// Of all CPUs, not of the budget: what samples, or counting a metric, may take from processes that are not watched.
pub const BYSTANDER_SHARE: f64 = 0.01;
/// Of a thread's own bound: a plan counts on it.
pub const THREAD_PLAN_SHARE: f64 = 0.9;

/// Who spends what at present rates, as the ledger will charge it, CPU s/s; a survey is not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Claims {
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
    /// Further activities.
    pub activities: f64,
}

impl Claims {
    /// What the controller has no hand in: all but plan and samples.
    #[must_use]
    pub fn fixed(&self) -> f64 {
        self.switches + self.metric + self.misc + self.operations + self.activities
    }

    /// All of them.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.samples + self.plan + self.fixed()
    }
}

/// What children that carry breakpoints may use, CPU s/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StormBounds {
    /// Above it a storm begins: nothing is attached that they would inherit.
    pub begins: f64,
    /// Below it the storm is over.
    pub ends: f64,
}

/// What each activity may spend now.
#[derive(Debug, Clone, Copy)]
pub struct Arbiter<'a> {
    ledger: &'a Ledger,
    own_cpu: f64,
}

impl<'a> Arbiter<'a> {
    /// `own_cpu`: what the target uses by itself, CPU s/s.
    #[must_use]
    pub fn new(ledger: &'a Ledger, own_cpu: f64) -> Self {
        Self { ledger, own_cpu }
    }

    /// What may be spent in all, CPU s/s.
    #[must_use]
    pub fn allowed(&self) -> f64 {
        self.ledger.allowed(self.own_cpu)
    }

    /// What is charged is so many times what the calibrated prices say.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.ledger.factor()
    }

    /// The same of hits.
    #[must_use]
    pub fn hit_factor(&self) -> f64 {
        self.ledger.hit_factor()
    }

    /// What plan and bursts may spend, CPU s/s. `share`: what a plan counts on at most; `operations`: they are followed, and count by what
    /// they may take, not by what they take at present. What comes in lumps is for the rest.
    #[must_use]
    pub fn planned(&self, share: f64, claims: &Claims, operations: bool) -> f64 {
        let reserved = if operations { self.operations() } else { 0.0 };
        self.allowed() * share - claims.switches - claims.metric - claims.activities - reserved
    }

    /// Tokens for the first quotas of a plan, ns: what the bucket lends, less what is owed.
    #[must_use]
    pub fn lent_ns(&self) -> f64 {
        let lent = LENT_SHARE * self.allowed() * HOLD_S * 1e9;
        self.ledger.available_ns().max(lent - self.ledger.bucket().debt_ns())
    }

    /// What one burst of the plan may take, CPU s.
    #[must_use]
    pub fn plan_burst_s(&self) -> f64 {
        PLAN_BURST_SHARE * self.ledger.bucket().capacity_ns() * 1e-9
    }

    /// What operations may cost, CPU s/s.
    #[must_use]
    pub fn operations(&self) -> f64 {
        OPERATIONS_SHARE * self.allowed()
    }

    /// The same at the CPU time of the last second.
    #[must_use]
    pub fn operations_in_second(&self) -> f64 {
        OPERATIONS_SHARE * self.allowed().min(self.ledger.allowed_in_second())
    }

    /// What the budget leaves of the present second, ns.
    #[must_use]
    pub fn left_of_second_ns(&self) -> f64 {
        self.ledger.left_of_second_ns(self.allowed().min(self.ledger.allowed_in_second()))
    }

    /// What operations may take while the overhead is compared, CPU s/s.
    #[must_use]
    pub fn staying(&self) -> f64 {
        STAYING_SHARE * self.operations()
    }

    /// What taking links off and on for comparisons may take, CPU s/s.
    #[must_use]
    pub fn churn(&self) -> f64 {
        CHURN_SHARE * self.allowed()
    }

    /// What switches of threads with events of their own may take, CPU s/s.
    #[must_use]
    pub fn switching(&self) -> f64 {
        SWITCHING_SHARE * self.allowed()
    }

    /// What children that carry breakpoints may use before nothing is attached for their sake.
    #[must_use]
    pub fn storm(&self) -> StormBounds {
        let allowed = self.allowed();
        StormBounds { begins: STORM_SHARE.0 * allowed, ends: STORM_SHARE.1 * allowed }
    }

    /// What a survey has to spend beside these, where no single thread may lose more than `thread_s` at once, CPU s.
    #[must_use]
    pub fn survey(&self, claims: &Claims, thread_s: f64) -> SurveyFunds {
        let others = claims.sum();
        let granted_s = (self.ledger.most_grantable_ns(others) * 1e-9).min(thread_s);
        SurveyFunds {
            burst_limit_s: BURST_SHARE * granted_s,
            most_granted_s: granted_s,
            least_full_s: (LEAST_FULL_SHARE * self.ledger.bucket().capacity_ns() * 1e-9).min(thread_s),
            income: (SURVEY_SHARE * (self.allowed() - others)).max(0.0),
        }
    }

    /// What bucket and second grant a survey now, CPU s; of the bucket, `held_ns` are granted to windows of the plan.
    #[must_use]
    pub fn survey_now_s(&self, claims: &Claims, held_ns: f64, thread_s: f64) -> f64 {
        let bucket_ns = (self.ledger.available_ns() - held_ns).max(0.0);
        (bucket_ns.min(self.ledger.left_in_second_ns(claims.sum())) * 1e-9).min(thread_s)
    }
}

/// What may be taken from processes that are not watched, CPU s/s on so many CPUs.
#[must_use]
pub fn bystanders(cpus: u32) -> f64 {
    BYSTANDER_SHARE * f64::from(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Charge;
    use crate::units::OverheadBudget;

    /// The parts of a budget of 20 ms/s that these spend, which a survey asks 200 times beside them, in ticks of 105 ms: its funds,
    /// and the most that it is granted at once.
    fn beside(parts: Claims) -> (SurveyFunds, f64) {
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
        let claims = Claims { plan: others, ..Claims::default() };
        for i in 1..=200 {
            for (charge, p) in charges {
                ledger.charge(charge, None, 1, part(p) * tick_ns as f64);
            }
            ledger.close_interval(i * tick_ns, tick_ns + (others * tick_ns as f64) as u64);
            if i > 100 {
                best_s = best_s.max(Arbiter::new(&ledger, 1.0).survey_now_s(&claims, 0.0, f64::INFINITY));
            }
        }
        (Arbiter::new(&ledger, 1.0).survey(&claims, f64::INFINITY), best_s)
    }

    #[test]
    fn a_survey_expects_no_more_than_others_leave_whoever_they_are() {
        let none = Claims::default();
        for (parts, part_of_second) in [
            (Claims { samples: 0.1, operations: 0.8, ..none }, 0.1),
            (Claims { samples: 0.1, plan: 0.4, switches: 0.2, metric: 0.1, misc: 0.1, ..none }, 0.1),
            // As much as a plan may ever count on.
            (Claims { samples: 0.1, plan: 0.87, ..none }, 0.03),
        ] {
            let (funds, best_s) = beside(parts);
            let most_s = 0.95 * part_of_second * 0.02;
            assert!((funds.most_granted_s - most_s).abs() < 1e-6, "{parts:?}: {funds:?}");
            assert!((best_s - most_s).abs() < 1e-6, "{parts:?}: {best_s} of {most_s}");
            assert!((funds.income - 0.9 * part_of_second * 0.02).abs() < 1e-9, "{parts:?}: {funds:?}");
            assert!(funds.burst_limit_s < best_s && funds.least_full_s <= 0.5e-3 + 1e-9, "{funds:?}");
        }
        // They leave nothing: what it takes for a full bucket is a part of a real one.
        let (funds, best_s) = beside(Claims { operations: 0.8, plan: 0.3, ..none });
        assert_eq!((funds.most_granted_s, best_s, funds.income), (0.0, 0.0, 0.0));
        assert!((funds.least_full_s - 0.5e-3).abs() < 1e-6, "{funds:?}");
    }

    /// A ledger of 20 ms/s whose bucket is full.
    fn full() -> Ledger {
        let mut ledger = Ledger::new(OverheadBudget::Share(0.02), 0);
        for i in 1..=20 {
            ledger.close_interval(i * 100_000_000, 100_000_000);
        }
        ledger
    }

    #[test]
    fn what_windows_of_the_plan_were_granted_is_not_granted_again() {
        let ledger = full();
        let arbiter = Arbiter::new(&ledger, 1.0);
        let granted_s = |held_ns| arbiter.survey_now_s(&Claims::default(), held_ns, f64::INFINITY);
        assert!((granted_s(0.0) - 5e-3).abs() < 1e-9);
        assert!((granted_s(3e6) - 2e-3).abs() < 1e-9);
        assert_eq!(granted_s(6e6), 0.0);
    }

    #[test]
    fn all_who_spend_are_in_the_sum() {
        let all = Claims {
            samples: 1.0,
            plan: 2.0,
            switches: 4.0,
            metric: 8.0,
            misc: 16.0,
            operations: 32.0,
            activities: 64.0,
        };
        assert_eq!((all.sum(), all.fixed()), (127.0, 124.0));
    }

    #[test]
    fn reservations_come_before_the_plan() {
        let ledger = full();
        let arbiter = Arbiter::new(&ledger, 1.0);
        let claims = Claims {
            switches: 0.001,
            metric: 0.0015,
            activities: 0.0005,
            operations: 1.0,
            misc: 1.0,
            ..Claims::default()
        };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        near(arbiter.planned(0.9, &claims, false), 0.018 - 0.003);
        // By what they may take, not by what they take.
        near(arbiter.planned(0.9, &claims, true), 0.018 - 0.003 - 0.016);
        near(arbiter.operations(), 0.016);
        near(arbiter.staying(), 0.0016);
        near(arbiter.churn(), 0.002);
        near(arbiter.switching(), 0.005);
        near(arbiter.storm().begins, 0.01);
        near(arbiter.storm().ends, 0.004);
        near(arbiter.plan_burst_s(), 0.65 * 5e-3);
        near(bystanders(8), 0.08);
    }

    #[test]
    fn operations_follow_the_last_second_where_it_had_less_cpu_time() {
        // A CPU by the smoothed figure, a quarter of one in the last second, of which 3 ms were charged.
        let mut ledger = full();
        for i in 21..=40 {
            ledger.charge(Charge::Traced, None, 1, 0.3e6);
            ledger.close_interval(i * 100_000_000, 25_300_000);
        }
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        near(Arbiter::new(&ledger, 1.0).operations_in_second(), 0.8 * 0.02 * 0.25);
        near(Arbiter::new(&ledger, 0.1).operations_in_second(), 0.8 * 0.02 * 0.1);
        near(Arbiter::new(&ledger, 1.0).left_of_second_ns(), 2e6);
        assert_eq!(Arbiter::new(&ledger, 0.1).left_of_second_ns(), 0.0);
        near(Arbiter::new(&full(), 1.0).left_of_second_ns(), 20e6);
    }

    #[test]
    fn prices_that_are_taken_higher_are_said() {
        let mut ledger = full();
        ledger.set_factor(1.5);
        assert_eq!(Arbiter::new(&ledger, 1.0).factor(), 1.5);
    }

    #[test]
    fn a_survey_takes_no_more_than_a_thread_may_lose_at_once() {
        let ledger = full();
        let arbiter = Arbiter::new(&ledger, 1.0);
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        let funds = arbiter.survey(&Claims::default(), 2e-4);
        near(funds.most_granted_s, 2e-4);
        near(funds.burst_limit_s, 1.4e-4);
        near(funds.least_full_s, 2e-4);
        near(funds.income, 0.018);
        near(arbiter.survey_now_s(&Claims::default(), 0.0, 2e-4), 2e-4);
        // Where a thread may lose all: the bucket of 5 ms, a tenth of it for full.
        let funds = arbiter.survey(&Claims::default(), f64::INFINITY);
        near(funds.most_granted_s, 5e-3);
        near(funds.least_full_s, 0.5e-3);
    }

    #[test]
    fn the_bucket_lends_what_it_will_hold_and_no_more_than_is_not_owed() {
        let empty = Ledger::new(OverheadBudget::Share(0.02), 0);
        let lent = |ledger: &Ledger| Arbiter::new(ledger, 1.0).lent_ns();
        assert!((lent(&empty) - 0.5 * 0.02 * HOLD_S * 1e9).abs() < 1e-6);
        // Where more is there, that.
        assert!((lent(&full()) - 5e6).abs() < 1.0);
        let mut indebted = Ledger::new(OverheadBudget::Share(0.02), 0);
        indebted.charge(Charge::Attach, None, 1, 1e6);
        indebted.close_interval(1, 0);
        assert!((lent(&indebted) - (2.5e6 - 1e6)).abs() < 1e3, "{}", lent(&indebted));
    }
}
