//! Measuring what watching costs: short windows with everything detached, each between two windows with everything on, at random times, on a
//! progress metric.
//!
//! ```text
//! Pilot ── metric, window length ──► Waiting ─ Before ─ Detaching ─ Off ─ Settling ─ After ─► Waiting …
//! ```
//! The pilot runs beside warm-up and survey. It finds a metric where none was named: the system call whose number per CPU second is
//! steadiest. It foretells how narrow the interval can get. How the windows are compared: [`crate::stats::overhead`].
//!
//! The client reads nothing. [`Overhead::wants`] says at each turn what a step needs; a reading is expensive, and most turns need none.

mod pilot;
mod result;
mod rhythm;
mod types;

pub use result::warnings;
pub use types::{Grant, Input, LedgerSummary, Mark, Reading, Subject, Wanted};

use crate::class::ClassId;
use crate::clients::Client;
use crate::ledger::{Correction, waiting_factor};
use crate::run::order::{Ending, Order};
use crate::run::suspension::{Reason, Suspension};
use crate::run::view::View;
use crate::stats::overhead::{self as estimate, Comparison, ProgressWindow};
use pilot::Pilot;
use rand::{RngExt, SeedableRng};
use rhythm::{Rhythm, WINDOW_NS};

/// A window off that has not begun so long after its detaching is given up, ns.
const DETACH_LIMIT_NS: u64 = 2_000_000_000;
/// The clock went forward by more than this between two turns: it jumped, or the agent was held up, ns.
const LONGEST_TURN_NS: u64 = 2_000_000_000;
/// Smaller changes of the cut budget are noise.
const CUT_STEP: f64 = 0.1;

#[derive(Debug, Clone, Copy)]
enum State {
    Pilot {
        next_ns: u64,
    },
    Waiting {
        until_ns: u64,
    },
    Before {
        mark: Mark,
        until_ns: u64,
    },
    Detaching {
        before: ProgressWindow,
        since_ns: u64,
    },
    Off {
        before: ProgressWindow,
        since_ns: u64,
        mark: Mark,
        until_ns: u64,
    },
    /// `until_ns`: `None` while links are made.
    Settling {
        before: ProgressWindow,
        off: ProgressWindow,
        since_ns: u64,
        until_ns: Option<u64>,
    },
    After {
        before: ProgressWindow,
        off: ProgressWindow,
        mark: Mark,
        until_ns: u64,
    },
    /// Given up.
    Over,
}

/// The comparison of a run with itself.
#[derive(Debug)]
pub struct Overhead {
    subject: Subject,
    /// Number of the system call that was found.
    chosen: Option<usize>,
    state: State,
    pilot: Pilot,
    rhythm: Rhythm,
    comparisons: Vec<Comparison>,
    /// Classes to be attached again, with their quotas.
    again: Vec<(ClassId, u64)>,
    /// Those that stay attached in a window off: the metric's, and functions of operations that would be cut.
    staying: Vec<ClassId>,
    /// Functions of operations did.
    stayed: bool,
    correction: Correction,
    /// The budget is cut by this.
    cut: f64,
    random: rand::rngs::StdRng,
    /// The last time that it was told, ktime ns.
    seen_ns: u64,
    /// What taking links off and on costs, CPU s/s.
    churn: f64,
}

impl Overhead {
    /// A comparison whose pilot begins `now`, ktime ns. The `seed` makes runs differ.
    #[must_use]
    pub fn new(subject: Subject, now: u64, seed: u64) -> Self {
        Self {
            subject,
            chosen: None,
            state: State::Pilot { next_ns: now },
            pilot: Pilot::default(),
            rhythm: Rhythm::default(),
            comparisons: Vec::new(),
            again: Vec::new(),
            staying: Vec::new(),
            stayed: false,
            correction: Correction::default(),
            cut: 1.0,
            random: rand::rngs::StdRng::seed_from_u64(seed),
            seen_ns: now,
            churn: 0.0,
        }
    }

    /// Everything is detached, or on its way: nothing may be attached.
    #[must_use]
    pub fn is_off(&self) -> bool {
        matches!(self.state, State::Detaching { .. } | State::Off { .. })
    }

    /// It was given up.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Number of the system call that was found.
    #[must_use]
    pub fn chosen(&self) -> Option<usize> {
        self.chosen
    }

    /// What progress is measured by, in words.
    #[must_use]
    pub fn metric(&self) -> &str {
        &self.subject.name
    }

    /// This class stays attached in windows off, as of the last one.
    #[must_use]
    pub fn leaves(&self, id: ClassId) -> bool {
        self.staying.contains(&id)
    }

    /// Links were taken off in the middle of a window: it does not count.
    pub fn void(&mut self, now: u64) {
        match &mut self.state {
            State::Pilot { .. } | State::Detaching { .. } | State::Off { .. } | State::Over => {}
            state => *state = State::Waiting { until_ns: now + self.rhythm.cycle_ns / 2 },
        }
    }

    /// What the next step needs. In a survey and in a storm of forks what was begun is void: surveys attach and detach by themselves, and
    /// in a storm nothing is attached.
    pub fn wants(&mut self, now: u64, running: bool, suspension: Suspension) -> Wanted {
        let seen_ns = std::mem::replace(&mut self.seen_ns, now);
        let jumped = now < seen_ns || now - seen_ns > LONGEST_TURN_NS;
        if jumped {
            self.clock_jumped(now);
        }
        if !running || suspension.is(Reason::ForkStorm) || jumped {
            self.void(now);
        }
        self.wanted_at(now)
    }

    /// No time of before can be compared with the present.
    fn clock_jumped(&mut self, now: u64) {
        match &mut self.state {
            State::Pilot { next_ns } => *next_ns = now,
            // The next step ends the window.
            State::Detaching { since_ns, .. } | State::Off { since_ns, .. } => *since_ns = u64::MAX,
            _ => {}
        }
    }

    /// Something may be over. Before, nothing is read: each reading asks the clocks of all threads and locks the target's memory map, and there
    /// are up to a hundred turns a second.
    fn wanted_at(&self, now: u64) -> Wanted {
        let due = |until_ns: u64| if now >= until_ns { Wanted::Mark } else { Wanted::Nothing };
        match &self.state {
            State::Pilot { next_ns } => {
                if now >= *next_ns {
                    Wanted::Counts
                } else {
                    Wanted::Nothing
                }
            }
            State::Settling { until_ns: None, .. } => Wanted::View,
            State::Off { since_ns, .. } if now < *since_ns => Wanted::View,
            State::Settling { until_ns: Some(until_ns), .. }
            | State::Waiting { until_ns }
            | State::Before { until_ns, .. }
            | State::Off { until_ns, .. }
            | State::After { until_ns, .. } => due(*until_ns),
            // When the links will be gone is not known.
            State::Detaching { .. } => Wanted::Mark,
            State::Over => Wanted::Nothing,
        }
    }

    /// No more comparison; what was measured so far is kept. `why`: in words.
    pub fn give_up(&mut self, why: String, orders: &mut Vec<Order>) {
        if self.is_over() {
            return;
        }
        orders.push(Order::Note(format!("the overhead is not checked by a progress metric: {why}")));
        orders.push(Order::NotObserved("check of the overhead".to_owned(), why));
        orders.extend(self.subject.classes.iter().map(|id| Order::Close(*id, Ending::Drain)));
        if self.is_off() {
            self.restore(orders);
        }
        self.state = State::Over;
        self.churn = 0.0;
    }

    /// Everything that a window off took away comes back.
    fn restore(&mut self, orders: &mut Vec<Order>) {
        orders.push(Order::ResumeSampling);
        if !self.again.is_empty() {
            orders.push(Order::Restore(std::mem::take(&mut self.again)));
        }
    }

    /// A part of a pilot's window went by; after enough of them the metric is judged.
    fn pilot_step(&mut self, input: &Input, grant: &Grant, view: &View, orders: &mut Vec<Order>) {
        let now = view.now_ns;
        self.state = State::Pilot { next_ns: now + WINDOW_NS };
        let Some(Reading::Counts { cpu_ns, counts }) = &input.reading else { return };
        self.pilot.add(*cpu_ns, counts);
        if !input.running || !self.pilot.is_long_enough() {
            return;
        }
        let churn_ns = self.churn_ns(input, grant, view);
        let left_ns = input.end_ns.map_or(pilot::HORIZON_NS, |end| end.saturating_sub(now));
        let planned = |parts: usize| self.rhythm.planned(parts, churn_ns, left_ns);
        let share = grant.allowed / view.target.own_cpu.max(crate::ledger::FLOOR_CPU_PER_S);
        let choice = match self.pilot.judge(&self.subject, planned, share) {
            Ok(None) => return,
            Ok(Some(choice)) => choice,
            Err(why) => return self.give_up(why, orders),
        };
        let found = self.subject.choices.as_ref().and_then(|all| all.get(choice.slot)).cloned().flatten();
        if let Some(name) = &found {
            self.chosen = Some(choice.slot);
            self.subject.name = format!("the system call {name}");
        }
        self.rhythm.begin(choice.parts, churn_ns);
        self.note_churn(input, view);
        orders.push(Order::Note(format!(
            "overhead is checked on {}{}: windows of {} ms off, one per {:.1} s; reachable {}: +-{:.2} points (95 %)",
            self.subject.name,
            if self.subject.is_named() { "" } else { " (found by itself)" },
            self.rhythm.window_ns / 1_000_000,
            self.rhythm.cycle_ns as f64 * 1e-9,
            if input.end_ns.is_some() { "by the end" } else { "after a minute" },
            choice.half * 100.0
        )));
        self.pilot = Pilot::default();
        self.state = State::Waiting { until_ns: now };
    }

    /// Links that a window off takes off and on.
    fn links(&self, view: &View) -> usize {
        view.open().filter(|c| !self.subject.classes.contains(&c.id)).count()
    }

    /// CPU time that one window off takes for links, s.
    fn churn_s(&self, input: &Input, view: &View) -> f64 {
        2.0 * self.links(view) as f64 * input.attach_s
    }

    /// The shortest cycle that the grant for links affords, ns.
    fn churn_ns(&self, input: &Input, grant: &Grant, view: &View) -> f64 {
        self.churn_s(input, view) * 1e9 / grant.churn.max(1e-9)
    }

    fn note_churn(&mut self, input: &Input, view: &View) {
        self.churn = self.churn_s(input, view) * 1e9 / self.rhythm.cycle_ns.max(1) as f64;
    }

    /// Where nothing is read: what needs none goes on, and nothing stays off for long.
    fn step_unread(&mut self, view: &View, orders: &mut Vec<Order>) {
        let now = view.now_ns;
        match &mut self.state {
            State::Settling { since_ns, until_ns: until_ns @ None, .. } if view.is_settled() => {
                *until_ns = Some(self.rhythm.settled(*since_ns, now));
            }
            State::Detaching { since_ns, .. } | State::Off { since_ns, .. } => {
                let longest_ns = 2 * DETACH_LIMIT_NS + self.rhythm.window_ns;
                if now < *since_ns || now - *since_ns > longest_ns {
                    self.restore(orders);
                    self.state = State::Waiting { until_ns: now + self.rhythm.cycle_ns };
                }
            }
            _ => {}
        }
    }

    fn step_read(&mut self, here: Mark, input: &Input, grant: &Grant, view: &View, orders: &mut Vec<Order>) {
        let now = view.now_ns;
        let window_ns = self.rhythm.window_ns;
        self.state = match self.state {
            State::Waiting { until_ns } if now >= until_ns && input.suspension.may_compare() => {
                State::Before { mark: here, until_ns: now + window_ns }
            }
            // What is just being attached would come in the middle of the window off.
            State::Before { mark, until_ns } if now >= until_ns && view.is_settled() => {
                self.detach(input, view, orders);
                State::Detaching { before: window(mark, here), since_ns: now }
            }
            State::Detaching { since_ns, .. } if now < since_ns || now - since_ns > DETACH_LIMIT_NS => {
                // Something does not go, or was opened meanwhile: no comparison is worth a run without controller.
                self.restore(orders);
                State::Waiting { until_ns: now + self.rhythm.cycle_ns }
            }
            State::Detaching { before, since_ns } if view.is_detached_but(&self.staying) => {
                State::Off { before, since_ns, mark: here, until_ns: now + window_ns }
            }
            State::Off { before, since_ns, mark, until_ns } if now >= until_ns => {
                let at_once = self.again.is_empty() && view.is_settled();
                self.restore(orders);
                let until_ns = at_once.then(|| self.rhythm.settled(since_ns, now));
                State::Settling { before, off: window(mark, here), since_ns, until_ns }
            }
            State::Settling { before, off, until_ns: Some(until_ns), .. } if now >= until_ns => {
                State::After { before, off, mark: here, until_ns: now + window_ns }
            }
            State::After { before, off, mark, until_ns } if now >= until_ns => {
                self.comparisons.push(Comparison { before, off, after: window(mark, here) });
                self.correct_prices(&input.account, orders);
                self.cut_budget(&input.account, orders);
                self.rhythm.renew(self.churn_ns(input, grant, view));
                self.note_churn(input, view);
                // Uniform, so that no period of the target falls in step.
                let part = self.random.random_range(0.0..2.0);
                State::Waiting { until_ns: now + self.rhythm.pause_ns(part) }
            }
            state => state,
        };
    }

    /// Everything goes but what has to stay.
    fn detach(&mut self, input: &Input, view: &View, orders: &mut Vec<Order>) {
        self.staying.clone_from(&input.staying);
        self.stayed |= !self.staying.is_empty();
        self.staying.extend(&self.subject.classes);
        self.again = view.open().filter(|c| !self.staying.contains(&c.id)).map(|c| (c.id, c.quota)).collect();
        orders.push(Order::HoldOperations);
        orders.extend(self.again.iter().map(|(id, _)| Order::Close(*id, Ending::Drain)));
        orders.push(Order::PauseSampling);
    }

    /// Where measured and predicted overhead disagree beyond the interval, prices follow what was measured, and a new plan is made with
    /// them.
    fn correct_prices(&mut self, account: &LedgerSummary, orders: &mut Vec<Order>) {
        let Some(measured) = self.result(account) else { return };
        if let Some(factor) = self.correction.update(account.compared, &measured) {
            orders.push(Order::Prices(factor));
            orders.push(Order::Replan(None));
            orders.push(Order::Detail(format!(
                "prices are taken {factor:.2} times as calibrated: measured {:.1} % ({:.1} to {:.1})",
                measured.value * 100.0,
                measured.low * 100.0,
                measured.high * 100.0
            )));
        }
    }

    /// Where the target loses more than CPU time shows, the budget is cut by that.
    fn cut_budget(&mut self, account: &LedgerSummary, orders: &mut Vec<Order>) {
        let Some(more) = estimate::waiting(&self.comparisons) else { return };
        let factor = waiting_factor(account.predicted, &more, self.comparisons.len());
        if (factor / self.cut - 1.0).abs() < CUT_STEP {
            return;
        }
        self.cut = factor;
        orders.push(Order::CutBudget(factor));
        orders.push(Order::Replan(Some(format!(
            "the target loses {factor:.1} times what its CPU time shows: the budget is cut by that"
        ))));
    }
}

impl Client for Overhead {
    type Input = Input;
    type Grant = Grant;

    /// Links taken off and on. In the ledger they come in lumps: [`crate::run::arbiter::Claims::misc`] holds them.
    fn claim(&self) -> f64 {
        self.churn
    }

    fn step(&mut self, input: Input, grant: &Grant, view: &View, orders: &mut Vec<Order>) {
        match (self.wants(view.now_ns, input.running, input.suspension), &input.reading) {
            (Wanted::Nothing, _) => {}
            (Wanted::Counts, _) => self.pilot_step(&input, grant, view, orders),
            (Wanted::Mark, Some(Reading::Mark(here))) => {
                self.step_read(*here, &input, grant, view, orders);
            }
            (Wanted::View | Wanted::Mark, _) => self.step_unread(view, orders),
        }
    }
}

fn window(from: Mark, to: Mark) -> ProgressWindow {
    ProgressWindow {
        progress: to.progress.wrapping_sub(from.progress),
        cpu_ns: to.cpu_ns.saturating_sub(from.cpu_ns),
        wall_ns: to.time_ns.saturating_sub(from.time_ns),
    }
}

#[cfg(test)]
mod tests;
