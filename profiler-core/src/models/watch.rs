//! Anomaly detection (§5.2): calls that take longer than their inputs explain, over many functions, live.
//!
//! The paper compares the predicted with the actual time of a call. Here the comparison has an interval for each call, and an alarm
//! needs evidence over calls, so that its rate of false alarms can be stated ([`Settings::false_alarms_per_hour`]).

mod machine;

#[cfg(test)]
mod tests;

use super::alone::{self, Alone};
use super::bets::{Bets, Raised};
use super::calibration::Calibration;
use super::cells::median;
use super::flight::Flights;
use super::model::Model;
use crate::stats::Interval;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Fewest other functions that say how the machine is.
const LEAST_OTHERS: usize = 3;

/// Steps in which a call that goes on is not told alone because others of its function are told together, at most.
const HELD_BACK: u32 = 8;

/// Calls of a function that are not looked at and are put in the order of their begins: more of a step spend at once.
const MOST_PASSED: usize = 16_384;

/// Part of the false alarms that single calls may raise alone.
const PART_ALONE: f64 = 0.25;

/// What is promised, and what is not worth an alarm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Expected false alarms an hour, of all functions together, at most.
    pub false_alarms_per_hour: f64,
    /// Longer by this part is no alarm: 0.05 is 5 %. Machines change that much by themselves.
    pub tolerated: f64,
}

impl Default for Settings {
    /// One false alarm an hour; 5 % are tolerated.
    fn default() -> Self {
        Self { false_alarms_per_hour: 1.0, tolerated: 0.05 }
    }
}

/// A call that has returned, or its time so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// Number of the function (in its context), as given to [`Watch::add`].
    pub kernel: u32,
    /// When it began, ns.
    pub time_ns: u64,
    /// What its model predicted for its inputs, ns: [`super::Prediction::ns`].
    pub predicted_ns: f64,
    /// What it took, without what watching cost, ns.
    pub own_ns: f64,
}

/// A call that is told from others: it may be seen in flight, and when it has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    /// The call.
    pub seen: Seen,
    /// Its thread.
    pub tid: u32,
    /// Of a call in flight: it is bet on when it ends, since calls like it are not always seen to end (bursts). It may be told alone.
    pub waits: bool,
    /// Of a call that has ended: what was [missed](Watch::missed_ns) before it was shown, ns. It is not bet on if it began before then. [`NOT_DRAWN`]: it is shown because it took long.
    pub missed_ns: u64,
}

/// [`Call::missed_ns`] of a call that was not drawn when it began: it may be told alone, and says nothing of others.
pub const NOT_DRAWN: u64 = u64::MAX;

impl Call {
    fn is_drawn(&self) -> bool {
        self.missed_ns != NOT_DRAWN
    }
}

/// What is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A function's calls take longer than their inputs explain.
    Slower(Slower),
    /// All functions take longer, or shorter: told once, when it begins.
    Machine {
        /// Time over the time before: 1.2 is a fifth longer.
        factor: f64,
        /// Functions that moved in this direction, and all that had calls.
        moved: usize,
        /// All that had calls.
        of: usize,
    },
    /// The machine is back to what it was.
    MachineBack,
}

/// Evidence that a function has become slower.
#[derive(Debug, Clone, PartialEq)]
pub struct Slower {
    /// Number of the function.
    pub kernel: u32,
    /// Since when, ns.
    pub since_ns: u64,
    /// Calls since then; of [one alone](Self::is_alone): calls of this step that are told alone, with it.
    pub calls: u64,
    /// Of the calls of this window (at most those since then): how many took longer than the interval of 95 % allows.
    pub beyond: usize,
    /// Of how many.
    pub of: usize,
    /// Median of their time over the predicted one.
    pub factor: f64,
    /// The call that took longest for its inputs.
    pub longest: Seen,
    /// Interval of 95 % of that call, ns.
    pub expected_ns: Interval,
    /// Expected false alarms an hour of all functions together.
    pub false_alarms_per_hour: f64,
    /// One call took so long that it is told alone, whatever others do.
    pub is_alone: bool,
}

#[derive(Debug, Clone)]
struct Kernel {
    calibration: Calibration,
    bets: Bets,
    alone: Alone,
    /// When the last call ended that is not known: of this step, and of those before; ns.
    missed_ns: [u64; 2],
    /// Begins of the calls of this step that are not looked at, ns; sorted by [`Kernel::sort_passed`].
    passed: VecDeque<u64>,
}

impl Kernel {
    /// Bets on a call, after what is granted.
    fn bet(&mut self, seen: &Seen, residual: f64, threshold_h: f64) -> Option<Raised> {
        let Self { calibration, bets, .. } = self;
        let now_h = seen.time_ns as f64 / 3.6e12;
        let p = calibration.tail_bound(seen.predicted_ns, residual);
        bets.take(now_h, p, |part: f64| calibration.dependence_at(part), threshold_h / (1.0 - PART_ALONE))
    }

    /// What a call may spend of the alarms of single calls, hours. Calls that began before it and are not looked at spend first, as if they were.
    fn spend(&mut self, seen: &Seen) -> f64 {
        while let Some(begin_ns) = self.passed.pop_front_if(|begin_ns| *begin_ns <= seen.time_ns) {
            self.alone.spend(begin_ns as f64 / 3.6e12);
        }
        self.alone.spend(seen.time_ns as f64 / 3.6e12)
    }

    fn sort_passed(&mut self) {
        self.passed.make_contiguous().sort_unstable();
    }

    /// Those that are left spend, too.
    fn spend_passed(&mut self) {
        self.sort_passed();
        for begin_ns in std::mem::take(&mut self.passed) {
            self.alone.spend(begin_ns as f64 / 3.6e12);
        }
    }

    /// A call is told alone.
    fn is_alone(&self, seen: &Seen, residual: f64, spent_h: f64, threshold_h: f64) -> bool {
        let Self { calibration, .. } = self;
        // Most are not so long, which is told in less.
        calibration.is_beyond(seen.predicted_ns, residual) && {
            let mean_square = calibration.mean_square(seen.predicted_ns);
            alone::is_told(residual, spent_h, mean_square, threshold_h / PART_ALONE)
        }
    }
}

/// What a step says of a function.
#[derive(Debug, Clone, Copy, Default)]
struct Verdict {
    raised: Option<Raised>,
    /// Of the calls that took so long that each is told alone, the one that took longest for its inputs, and how many they are.
    alone: Option<(Seen, u64)>,
}

impl Verdict {
    fn add_alone(&mut self, seen: &Seen) {
        let ratio = |seen: &Seen| seen.own_ns / seen.predicted_ns;
        let (longest, count) = self.alone.unwrap_or((*seen, 0));
        self.alone = Some((if ratio(seen) > ratio(&longest) { *seen } else { longest }, count + 1));
    }
}

/// All functions that are held against their models.
#[derive(Debug, Clone)]
pub struct Watch {
    settings: Settings,
    kernels: BTreeMap<u32, Kernel>,
    flights: Flights,
    /// The machine's last known change for each function, ln, and for how many windows it still holds.
    known: BTreeMap<u32, (f64, u32)>,
    is_changed: bool,
    /// Windows in a row in which the machine was changed.
    in_row: u32,
    /// Steps of a window, at least 1.
    steps: usize,
    /// Calls of the last steps, one fewer than a window has.
    past: VecDeque<ByKernel>,
    /// Steps of the present window.
    step: usize,
}

type ByKernel = BTreeMap<u32, Vec<Call>>;

impl Watch {
    /// Watches nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            kernels: BTreeMap::new(),
            flights: Flights::default(),
            known: BTreeMap::new(),
            is_changed: false,
            in_row: 0,
            steps: 1,
            past: VecDeque::new(),
            step: 0,
        }
    }

    /// The same, where [`Watch::window`] is told of a part of a window at a time: so many of them are one. An alarm need not wait for the end of the window, and
    /// what is said of the machine rests on all of it.
    #[must_use]
    pub fn in_steps(self, steps: usize) -> Self {
        Self { steps: steps.max(1), ..self }
    }

    /// Holds the calls of a function against its model from now on.
    pub fn add(&mut self, kernel: u32, model: &Model) {
        self.add_calibrated(kernel, model.calibration.clone());
    }

    /// Holds calls of a function that are [too short](super::Prediction::is_short) to be told apart against what can be, from now on, as those of another function: they say
    /// nothing of how fast the machine is. Nothing is done where none were recorded.
    pub fn add_short(&mut self, kernel: u32, model: &Model) {
        if let Some(short) = model.calibration.short() {
            self.add_calibrated(kernel, short.calibration.clone());
        }
    }

    /// The same of something else than calls, of which it is known how far it lies from what is predicted: shares of samples, say.
    pub fn add_calibrated(&mut self, kernel: u32, calibration: Calibration) {
        self.kernels.insert(
            kernel,
            Kernel {
                calibration,
                bets: Bets::new(),
                alone: Alone::default(),
                missed_ns: [0; 2],
                passed: VecDeque::new(),
            },
        );
    }

    /// So many calls of the function that have ended in this step, the last of them at `ended_ns`, are not among those of the [step](Self::step). No call is bet on that began before
    /// then and goes on behind this step, or is shown behind it: of the calls that were there those that take long would be bet on more often than the others.
    pub fn missed(&mut self, kernel: u32, calls: u64, ended_ns: u64) {
        if let Some(kernel) = self.kernels.get_mut(&kernel) {
            kernel.missed_ns[0] = kernel.missed_ns[0].max(ended_ns);
            kernel.alone.miss(calls);
        }
    }

    /// A call of the function that began then is not looked at, because it took no longer than others do. It spends what it would have spent of the alarms of
    /// single calls had it taken long: else long calls alone would spend, and more than there is.
    pub fn passed_over(&mut self, kernel: u32, begin_ns: u64) {
        if let Some(kernel) = self.kernels.get_mut(&kernel) {
            if kernel.passed.len() >= MOST_PASSED {
                kernel.spend_passed();
            }
            kernel.passed.push_back(begin_ns);
        }
    }

    /// When the last call of the function ended that is not known, ns; 0: all are.
    #[must_use]
    pub fn missed_ns(&self, kernel: u32) -> u64 {
        self.kernels.get(&kernel).map_or(0, |kernel| kernel.missed_ns[0].max(kernel.missed_ns[1]))
    }

    /// Takes the calls of one window (a second, say) or one [step](Self::in_steps) of it, in the order in which they began. Calls of functions that were not added are
    /// ignored.
    ///
    /// # Cost
    /// Tens of operations and a search in a table of up to 512 residuals for each call.
    pub fn window(&mut self, calls: &[Seen]) -> Vec<Event> {
        self.step(
            &calls
                .iter()
                .map(|seen| Call { seen: *seen, tid: 0, waits: false, missed_ns: 0 })
                .collect::<Vec<Call>>(),
            &[],
        )
    }

    /// The same, with the calls that are in flight at its end, and the time that each has taken so far. Each is bet on once (`flight.rs`): `ended` has those that
    /// were in flight before as well.
    pub fn step(&mut self, ended: &[Call], running: &[Call]) -> Vec<Event> {
        self.flights.next_step();
        let by_kernel = self.by_kernel(ended);
        let over: BTreeSet<(u32, u64)> = ended.iter().map(|call| (call.tid, call.seen.time_ns)).collect();
        let mut running = self.by_kernel(running);
        running.values_mut().for_each(|own| own.retain(|c| !over.contains(&(c.tid, c.seen.time_ns))));
        let window = self.window_with(&by_kernel);
        let of_window = self.shifts(&window);
        self.step = (self.step + 1) % self.steps;
        let mut events = if self.step == 0 { self.machine(&of_window) } else { Vec::new() };
        // What changed just now shows in the last calls first, where there are enough of them.
        let of_step = self.shifts(&by_kernel);
        let shifts = if of_step.len() > LEAST_OTHERS { of_step } else { of_window };
        let none = Vec::new();
        for id in by_kernel.keys().chain(running.keys()).copied().collect::<BTreeSet<u32>>() {
            let own = [&by_kernel, &running].map(|calls| calls.get(&id).unwrap_or(&none));
            let drift = self.drift_beside(id, &shifts);
            let Verdict { raised, alone } = self.judge(id, own, drift);
            let Some(kernel) = self.kernels.get(&id) else { continue };
            let false_alarms_per_hour = self.settings.false_alarms_per_hour;
            let of_calls = raised.and_then(|raised| {
                let since_ns = (raised.since_h * 3.6e12) as u64;
                let calls =
                    window.get(&id).into_iter().flatten().chain(own[1]).filter(|call| call.is_drawn());
                let calls: Vec<Seen> = calls.map(|call| call.seen).collect();
                evidence(id, kernel, &calls, since_ns, raised.calls)
            });
            let of_one = alone.and_then(|(seen, count)| {
                let slower = evidence(id, kernel, &[seen], seen.time_ns, count)?;
                Some(Slower { is_alone: true, ..slower })
            });
            let told = of_calls.into_iter().chain(of_one);
            events.extend(told.map(|slower| Event::Slower(Slower { false_alarms_per_hour, ..slower })));
        }
        if self.steps > 1 {
            self.past.push_back(by_kernel);
        }
        for kernel in self.kernels.values_mut() {
            kernel.missed_ns = [0, kernel.missed_ns[0].max(kernel.missed_ns[1])];
            kernel.spend_passed();
        }
        events
    }

    /// A call was judged while it was in flight.
    #[must_use]
    pub fn is_judged(&self, call: &Call) -> bool {
        self.flights.has(call)
    }

    fn by_kernel(&self, calls: &[Call]) -> ByKernel {
        let mut by_kernel = ByKernel::new();
        for call in calls.iter().filter(|call| self.kernels.contains_key(&call.seen.kernel)) {
            if call.seen.predicted_ns > 0.0 && call.seen.own_ns > 0.0 {
                by_kernel.entry(call.seen.kernel).or_default().push(*call);
            }
        }
        by_kernel
    }

    /// What evidence of many calls must reach, and that of single ones, hours: each function has its part of the alarms.
    fn thresholds_h(&self) -> [f64; 2] {
        let may_bet = |kernel: &&Kernel| !kernel.calibration.grants().says_nothing_together();
        let betting = self.kernels.values().filter(may_bet).count();
        [betting, self.kernels.len()].map(|n| n as f64 / self.settings.false_alarms_per_hour.max(1e-9))
    }

    /// Bets on the calls of a function that have ended and were not bet on before, and on those in flight that took longer than any.
    fn judge(&mut self, id: u32, [ended, running]: [&Vec<Call>; 2], drift: f64) -> Verdict {
        let [bets_h, alone_h] = self.thresholds_h();
        let Some(kernel) = self.kernels.get_mut(&id) else { return Verdict::default() };
        kernel.sort_passed();
        let (mut verdict, mut goes_on) = (Verdict::default(), Vec::new());
        let (grants, tolerated) =
            (kernel.calibration.grants(), (1.0 + self.settings.tolerated.max(0.0)).ln());
        let residual = |seen: &Seen, drift: f64| {
            (seen.own_ns / seen.predicted_ns).ln() - grants.at(seen.predicted_ns, [drift, tolerated])
        };
        for call in ended {
            let (seen, flight) = (&call.seen, self.flights.end(call));
            let residual = residual(seen, flight.map_or(drift, |flight| flight.drift));
            // Of an earlier step, or before it was shown.
            let is_drawn_by_chance = seen.time_ns >= kernel.missed_ns[1].max(call.missed_ns);
            let is_bet = flight.is_some_and(|flight| flight.is_bet) || grants.says_nothing_together();
            if is_drawn_by_chance && !is_bet {
                verdict.raised = kernel.bet(seen, residual, bets_h).or(verdict.raised);
            }
            let spent_h = flight.map_or_else(|| kernel.spend(seen), |flight| flight.spent_h);
            let is_told = flight.is_some_and(|flight| flight.is_told);
            if !is_told && kernel.is_alone(seen, residual, spent_h, alone_h) {
                verdict.add_alone(seen);
            }
        }
        for call in running {
            let seen = &call.seen;
            if self.flights.again(call).is_none() {
                let is_beyond = kernel.calibration.is_beyond(seen.predicted_ns, residual(seen, drift));
                if !is_beyond || !self.flights.make_room() {
                    continue;
                }
                let [now, before] = kernel.missed_ns;
                let may_bet = !call.waits && !grants.says_nothing_together();
                let is_bet = may_bet && seen.time_ns >= now.max(before);
                if is_bet {
                    let raised = kernel.bet(seen, residual(seen, drift), bets_h);
                    verdict.raised = raised.or(verdict.raised);
                }
                self.flights.begin(call, (kernel.spend(seen), drift, is_bet));
            }
            let Some(flight) = self.flights.again(call) else { continue };
            let residual = residual(seen, flight.drift);
            if !flight.is_told && kernel.is_alone(seen, residual, flight.spent_h, alone_h) {
                goes_on.push(call);
                verdict.add_alone(seen);
            }
        }
        // What calls say that began before others were known.
        verdict.raised = kernel.bets.raised(bets_h / (1.0 - PART_ALONE)).or(verdict.raised);
        // They are part of what is told together; those that go on are told when nothing else is, or after some steps.
        let is_together = verdict.raised.is_some();
        if is_together {
            verdict.alone = None;
        }
        for call in goes_on {
            let Some(flight) = self.flights.again(call) else { continue };
            flight.held_back += 1;
            if !is_together || flight.held_back > HELD_BACK {
                flight.is_told = true;
                if is_together {
                    verdict.add_alone(&call.seen);
                }
            }
        }
        verdict
    }

    /// The calls of a window of which these are the last step.
    fn window_with(&mut self, last: &ByKernel) -> ByKernel {
        while self.past.len() >= self.steps {
            self.past.pop_front();
        }
        let mut all = ByKernel::new();
        for (id, calls) in self.past.iter().flatten().chain(last) {
            all.entry(*id).or_default().extend(calls);
        }
        all
    }
}

fn evidence(id: u32, kernel: &Kernel, calls: &[Seen], since_ns: u64, count: u64) -> Option<Slower> {
    // A call that began before and ended since then is part of it: it may be the one that waited.
    let ended_since = |c: &&Seen| c.time_ns as f64 + c.own_ns >= since_ns as f64;
    let recent: Vec<&Seen> = calls.iter().filter(ended_since).collect();
    let expected = |c: &Seen| {
        let r = kernel.calibration.interval(c.predicted_ns, 0.95);
        Interval { low: c.predicted_ns * r.low.exp(), high: c.predicted_ns * r.high.exp() }
    };
    let ratio = |c: &Seen| c.own_ns / c.predicted_ns;
    let longest = **recent.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    Some(Slower {
        kernel: id,
        since_ns,
        calls: count,
        beyond: recent.iter().filter(|c| c.own_ns > expected(c).high).count(),
        of: recent.len(),
        factor: median(&mut recent.iter().map(|c| ratio(c)).collect::<Vec<f64>>()),
        longest,
        expected_ns: expected(&longest),
        false_alarms_per_hour: 0.0,
        is_alone: false,
    })
}
