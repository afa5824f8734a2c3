//! What comes in and is not spent: calls that could be counted within the budget, and are not.
//!
//! A budget that is not used is no virtue: the user has allowed it for what it buys. A plan is made with less than the budget, and
//! what is spent may be less again (rates fell, the target uses more CPU time than it did, bursts that waited for tokens). So
//! what is spent is compared with what came in over seconds, and where too little is, the plan is made anew, with more of the budget.

use super::types::{Action, Cause, Tick};
use super::{Controller, Entry, Mode};
use crate::run::arbiter::{PLAN_BURSTS_SHARE, PLANNED_SHARE};

/// Seconds that a plan runs before its spending is judged; twice as long after each plan that was made for it, until the target uses
/// another amount of CPU time.
const FIRST_S: f64 = 4.0;
/// Longest time between two judgements, s.
const LONGEST_S: f64 = 64.0;
/// Windows are never planned with fewer than this part of what links allow.
const LEAST_WINDOWS: f64 = 0.05;
/// Less than this part of what came in is too little, and of the planned bursts too few.
const ENOUGH: f64 = 0.88;
/// A period that is longer than the one that was asked for by less than this factor is that.
const SLOWER: f64 = 1.01;
/// Bursts begin at random times: too few are fewer by so many roots of their number.
const BY_CHANCE: f64 = 3.0;
/// Of at least this part of the planned bursts nothing says that links do not allow more.
const ALL_BEGUN: f64 = 0.95;
/// More windows are then planned with by this factor.
const MORE_WINDOWS: f64 = 1.5;

/// Parts of the budget that a plan may count on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanShares {
    /// Of the budget, for plan and bursts.
    pub planned: f64,
    /// Of that, kept for bursts of what is not traced, beside what the plan leaves.
    pub bursts: f64,
    /// Of the windows that links allow per second: where fewer were begun than planned, bursts are to be longer instead.
    pub windows: f64,
}

impl PlanShares {
    /// Before anything is known of how the target spends.
    pub const FIRST: Self = Self { planned: PLANNED_SHARE.0, bursts: PLAN_BURSTS_SHARE.0, windows: 1.0 };
    /// Where less is spent than planned.
    pub const MOST: Self = Self { planned: PLANNED_SHARE.1, bursts: PLAN_BURSTS_SHARE.1, windows: 1.0 };
}

/// What has come in and gone out since the last judgement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    seconds: f64,
    earned_s: f64,
    spent_s: f64,
    /// Of that, for samples.
    sampled_s: f64,
    wait_s: f64,
    /// Bursts that were planned and that began.
    planned: f64,
    begun: f64,
    pub shares: PlanShares,
}

/// What the last seconds showed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Judged {
    /// CPU s/s.
    spent: f64,
    /// CPU s/s.
    earned: f64,
    /// Of what was spent, for samples, CPU s/s.
    sampled: f64,
    /// Too little was spent.
    is_too_little: bool,
    /// Part of the windows that links seem to allow.
    windows: f64,
}

impl Use {
    pub const fn new() -> Self {
        let shares = PlanShares::FIRST;
        Self {
            seconds: 0.0,
            earned_s: 0.0,
            spent_s: 0.0,
            sampled_s: 0.0,
            wait_s: FIRST_S,
            planned: 0.0,
            begun: 0.0,
            shares,
        }
    }

    /// A new plan: what was spent on the old one says nothing.
    pub fn restart(&mut self) {
        (self.seconds, self.earned_s, self.spent_s, self.sampled_s) = (0.0, 0.0, 0.0, 0.0);
        (self.planned, self.begun) = (0.0, 0.0);
    }

    /// The target is another one than before.
    pub fn begin_anew(&mut self) {
        self.wait_s = FIRST_S;
        self.shares.windows = PlanShares::FIRST.windows;
    }

    /// More went out than came in: back to the first shares. Links are no faster for it.
    pub fn overspent(&mut self) {
        self.shares = PlanShares { windows: self.shares.windows, ..PlanShares::FIRST };
    }

    /// Part of the windows that the next plan may count on: fewer where fewer began than chance explains, more where all began.
    fn windows(&self) -> f64 {
        let Self { planned, begun, shares: PlanShares { windows: before, .. }, .. } = *self;
        let missing = planned - begun;
        if begun < ENOUGH * planned && missing > BY_CHANCE * planned.sqrt().max(1.0) {
            return (before * begun / planned).max(LEAST_WINDOWS);
        }
        if planned > 0.0 && begun >= ALL_BEGUN * planned { (MORE_WINDOWS * before).min(1.0) } else { before }
    }

    /// When it is time to judge.
    fn judge(&mut self, tick: &Tick<'_>) -> Option<Judged> {
        let dt = tick.elapsed_ns as f64 * 1e-9;
        self.seconds += dt;
        self.earned_s += tick.income * dt;
        self.spent_s += tick.spent * dt;
        self.sampled_s += tick.sample_cost * dt;
        if self.seconds < self.wait_s {
            return None;
        }
        let [spent, earned, sampled] =
            [self.spent_s, self.earned_s, self.sampled_s].map(|s| s / self.seconds);
        let windows = self.windows();
        self.restart();
        // A bucket that is not even half full has nothing left: a debt is being paid back, or bursts wait.
        let full = tick.tokens_ns >= 0.5 * tick.capacity_ns;
        Some(Judged { spent, earned, sampled, is_too_little: full && spent < ENOUGH * earned, windows })
    }
}

impl Controller {
    /// Parts of the budget that the next plan may count on.
    #[must_use]
    pub fn shares(&self) -> PlanShares {
        self.spending.shares
    }

    /// Asks for a new plan where too little is spent and a class is at hand that what is left would pay for, or samples at the rate that was asked for.
    pub(super) fn use_what_is_left(&mut self, tick: &Tick<'_>, actions: &mut Vec<Action>) {
        let dt = tick.elapsed_ns as f64 * 1e-9;
        let planned: f64 = self.planned_bursts_hz().map(|(hz, rarer)| dt * hz / rarer).sum();
        self.spending.planned += planned;
        self.spending.begun += actions.iter().filter(|a| matches!(a, Action::Burst { .. })).count() as f64;
        let Some(found) = self.spending.judge(tick) else { return };
        let before = self.spending.shares.windows;
        // Known to whatever plan comes next.
        self.spending.shares.windows = before.max(found.windows);
        if !found.is_too_little {
            return;
        }
        let (spend, income) = (found.spent, found.earned);
        let left = income - spend;
        let fits = |e: &Entry| {
            matches!(e.mode, Mode::Sampled | Mode::Stopped { .. })
                && !e.order.trace
                && e.rate_hz > 0.0
                && e.cost() <= left
                && e.density(tick.sampling_hz) > 0.0
        };
        // Of more of the budget bursts are longer, and more of them; where links allow fewer than planned, or more, they are to be longer or shorter.
        let others = self.spending.shares.planned < PlanShares::MOST.planned || found.windows != before;
        let grows = others && self.classes.values().any(|e| e.order.burst.is_some());
        // Samples come more seldom than was asked for, and not for the agent's sake: what switches took, or the target's load, may be less by now.
        let slower = self.planned_period_ns as f64 / self.config.asked_period_ns.max(1) as f64;
        let is_asked = self.config.asked_period_ns > 0 && slower > SLOWER && tick.slowdown <= 1.0;
        let is_slower = is_asked && found.sampled * (slower - 1.0) <= left;
        if !grows && !is_slower && !self.classes.values().any(fits) {
            return;
        }
        let before = actions.len();
        self.ask_for_plan(tick.now_ns, Some(Cause::Unspent { spend, income }), actions);
        if actions.len() > before {
            self.spending.shares = PlanShares { windows: found.windows, ..PlanShares::MOST };
            self.spending.wait_s = (2.0 * self.spending.wait_s).min(LONGEST_S);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::BurstOrder;
    use crate::class::ClassId;
    use crate::controller::tests::dry;
    use crate::controller::{ClassOrder, ControllerConfig};

    fn order(class: u32, rate_hz: f64, trace: bool) -> ClassOrder {
        ClassOrder {
            class: ClassId(class),
            tau_ns: 1_000.0,
            weight: 1.0,
            rate_hz: (rate_hz, rate_hz, rate_hz),
            rho: 0.0,
            must: false,
            named: false,
            trace,
            trial: false,
            burst: None,
        }
    }

    /// Seconds at which a plan was asked for because too little is spent: 10 of 20 ms/s come from class 0, class 1
    /// would take `rate_hz` calls/s at 1 us each. Each plan is taken over, as it was.
    fn asked(rate_hz: f64, spent: f64, tokens_ns: f64, seconds: u64) -> Vec<u64> {
        let mut controller = Controller::new(ControllerConfig::default());
        let orders = [order(0, 1e4, true), order(1, rate_hz, false)];
        controller.take_plan(0, &orders, 0, 5e6);
        let mut times = Vec::new();
        for i in 1..=seconds * 10 {
            let hits = [(ClassId(0), 1_000)];
            let actions = controller.tick(&Tick { now_ns: i * 100_000_000, tokens_ns, spent, ..dry(&hits) });
            if actions.iter().any(|a| matches!(a, Action::Replan { why: Cause::Unspent { .. } })) {
                times.push(i / 10);
                controller.take_plan(i * 100_000_000, &orders, 0, 5e6);
            }
        }
        assert_eq!(controller.shares() == PlanShares::MOST, !times.is_empty());
        times
    }

    #[test]
    fn what_is_left_is_used_and_asked_for_less_often_in_vain() {
        assert_eq!(asked(5e3, 0.01, 5e6, 30), [4, 12, 28]);
    }

    #[test]
    fn samples_at_the_rate_that_was_asked_for_are_tried_again_where_they_fit() {
        // 200 Hz are planned, and take 4 of 20 ms/s; 10 are left.
        let asked = |asked_period_ns: u64, slowdown: f64| {
            let config = ControllerConfig { asked_period_ns, ..ControllerConfig::default() };
            let mut controller = Controller::new(config);
            controller.take_plan(0, &[], 5_000_000, 5e6);
            // A tick shows those samples that fell into it, here none in nine of ten.
            let tick = |i: u64| {
                let sample_cost = if i.is_multiple_of(10) { 0.04 } else { 0.0 };
                let now_ns = i * 100_000_000;
                Tick { now_ns, tokens_ns: 5e6, spent: 0.01, sample_cost, slowdown, ..dry(&[]) }
            };
            let mut all = (1..=65).flat_map(|i| controller.tick(&tick(i)));
            all.any(|a| matches!(a, Action::Replan { why: Cause::Unspent { .. } }))
        };
        assert!(asked(4_000_000, 1.0), "250 Hz");
        assert!(!asked(5_000_000, 1.0) && !asked(4_990_000, 1.0) && !asked(0, 1.0));
        assert!(!asked(500_000, 1.0), "36 ms/s more");
        assert!(!asked(1_200_000, 1.0), "12.7 ms/s more");
        assert!(!asked(4_000_000, 4.0), "the agent has no time for it");
    }

    /// Bursts of ten classes, each so far apart.
    fn in_bursts(every_ns: u64) -> Controller {
        let burst = BurstOrder { quota: 100, window_ns: 1, every_ns, cost_ns: 1e5, duty: 0.01 };
        let orders: Vec<ClassOrder> =
            (0..10).map(|i| ClassOrder { burst: Some(burst), ..order(i, 1e6, false) }).collect();
        let mut controller = Controller::new(ControllerConfig::default());
        controller.take_plan(0, &orders, 0, 5e6);
        controller
    }

    /// Runs for `ticks` of 100 ms; each burst ends after `last` ticks. Bursts that began.
    fn run(controller: &mut Controller, from: u64, ticks: u64, last: u64) -> usize {
        let mut begun = 0;
        for i in from + 1..=from + ticks {
            let now_ns = i * 100_000_000;
            let actions = controller.tick(&Tick { now_ns, tokens_ns: 5e6, spent: 0.005, ..dry(&[]) });
            begun += actions.iter().filter(|a| matches!(a, Action::Burst { .. })).count();
            for class in (0..10).filter(|_| i % last == 0) {
                controller.window_ended(ClassId(class), now_ns, 50, 1_000_000, false);
            }
        }
        begun
    }

    /// Links that take long, or an agent that is to take less: a plan has longer bursts then, and shorter ones again where they do not any more.
    #[test]
    fn where_fewer_bursts_begin_than_planned_they_are_to_be_longer_and_not_for_ever() {
        // Twenty a second are planned, and each ends in a second.
        let mut controller = in_bursts(500_000_000);
        run(&mut controller, 0, 45, 10);
        let shares = controller.shares();
        assert_eq!(shares.planned, PlanShares::MOST.planned);
        assert!((0.5..0.65).contains(&shares.windows), "10 of 20 a second: {shares:?}");
        // Ten a second are planned then, and they begin.
        let orders: Vec<ClassOrder> = controller.classes.values().map(|e| e.order).collect();
        let rarer = |o: ClassOrder| ClassOrder { burst: o.burst.map(|b| b.rarer(4.0)), ..o };
        let orders: Vec<ClassOrder> = orders.into_iter().map(rarer).collect();
        controller.take_plan(4_500_000_000, &orders, 0, 5e6);
        run(&mut controller, 45, 350, 1);
        assert_eq!(controller.shares().windows, 1.0);
    }

    /// Ticks of 100 ms delay what is due, and what is due next is drawn from when it was due, not from when it began.
    #[test]
    fn ticks_take_no_bursts_away() {
        for every_ms in [150, 200, 300, 500] {
            let mut controller = in_bursts(every_ms * 1_000_000);
            // Four a tick begin at most: of two classes.
            controller.classes.retain(|class, _| class.0 < 2);
            let begun = run(&mut controller, 0, 600, 1);
            let planned = 2.0 * 60_000.0 / every_ms as f64;
            assert!(begun as f64 > ALL_BEGUN * planned, "{every_ms} ms: {begun} of {planned}");
        }
    }

    #[test]
    fn what_chance_explains_and_what_the_agent_does_more_rarely_is_no_sign_of_slow_links() {
        let mut controller = in_bursts(10_000_000_000);
        controller.spending.planned = 9.0;
        controller.spending.begun = 5.0;
        assert_eq!(controller.spending.windows(), 1.0);
        (controller.spending.planned, controller.spending.begun) = (90.0, 50.0);
        assert_eq!(controller.spending.windows(), 50.0 / 90.0);
        controller.spending.restart();
        // A burst is due eight times as rarely: so is it planned.
        controller.slowdown = 64.0;
        let tick = Tick { now_ns: 100_000_000, elapsed_ns: 2_000_000_000, ..dry(&[]) };
        controller.use_what_is_left(&tick, &mut Vec::new());
        assert!((controller.spending.planned - 0.25).abs() < 0.02, "{}", controller.spending.planned);
    }

    #[test]
    fn nothing_is_asked_where_nothing_fits_or_enough_is_spent() {
        assert_eq!(asked(2e4, 0.01, 5e6, 30), [] as [u64; 0], "20 ms/s into 10 ms/s that are left");
        assert_eq!(asked(1e3, 0.019, 5e6, 30), [] as [u64; 0]);
        assert_eq!(asked(5e3, 0.01, -5e6, 30), [] as [u64; 0], "a debt comes first");
    }

    #[test]
    fn a_run_whose_tokens_ran_out_plans_with_less_again() {
        let mut controller = Controller::new(ControllerConfig::default());
        controller.take_plan(0, &[order(0, 1e4, true)], 0, 5e6);
        controller.spending.shares = PlanShares::MOST;
        let hits = [(ClassId(0), 1_000)];
        controller.tick(&Tick { now_ns: 100_000_000, spent: 0.03, other_cost: 0.02, ..dry(&hits) });
        assert_eq!(controller.shares(), PlanShares::FIRST);
    }
}
