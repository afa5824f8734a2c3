//! Measuring what watching costs: short windows with everything detached, each between two windows with everything on,
//! at random times, on a progress metric.
//!
//! ```text
//! Pilot ── metric, window length ──► Waiting ─ Before ─ Detaching ─ Off ─ Settling ─ After ─► Waiting …
//! ```
//! The pilot runs beside warm-up and survey: it finds a metric where none was named (the system call whose number per CPU
//! second is steadiest) and foretells how narrow the interval can get. How the windows are compared:
//! [`profiler_core::stats::overhead`].

mod cost;
mod result;

use super::attach::now_ns;
use super::class::Ending;
use super::metric::Metric;
use super::{Phase, Session};
use crate::target::syscalls;
use profiler_core::class::ClassId;
use profiler_core::ledger::waiting_factor;
use profiler_core::recording::NotObserved;
use profiler_core::stats::overhead::{self as estimate, ProgressWindow};
use rand::{RngExt, SeedableRng};

/// Length of a window, ns, or of a part of it where the metric is slow. The target's cost per unit wanders within seconds, so many short
/// windows beat few long ones; below 0.1 s the CPU clock's tick (4 ms per running thread) gets too large a part.
const WINDOW_NS: u64 = 100_000_000;
/// Parts of the longest window.
const MOST_PARTS: usize = 8;
/// Windows of the pilot: the last so many count.
const PILOT: std::ops::RangeInclusive<usize> = 15..=60;
/// Time for caches to warm up again after attaching, ns.
const SETTLE_NS: u64 = 20_000_000;
/// Share of the run in which something is detached.
const OFF_SHARE: f64 = 0.1;
/// A window off that has not begun so long after its detaching is given up, ns.
const DETACH_LIMIT_NS: u64 = 2_000_000_000;
/// What the half-width is foretold for where the run has no end, ns.
const HORIZON_NS: u64 = 60_000_000_000;
/// Smaller changes of the cut budget are noise.
const CUT_STEP: f64 = 0.1;
/// A reading of CPU time and progress that took longer was interrupted and is taken again, ns of target CPU time.
const TORN_NS: u64 = 20_000;

/// Where both stood at one moment.
#[derive(Debug, Clone, Copy)]
struct Mark {
    progress: u64,
    cpu_ns: u64,
    time_ns: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Pilot { next_ns: u64 },
    Waiting { until_ns: u64 },
    Before { mark: Mark, until_ns: u64 },
    Detaching { before: ProgressWindow, since_ns: u64 },
    Off { before: ProgressWindow, since_ns: u64, mark: Mark, until_ns: u64 },
    Settling { before: ProgressWindow, off: ProgressWindow, since_ns: u64, until_ns: u64 },
    After { before: ProgressWindow, off: ProgressWindow, mark: Mark, until_ns: u64 },
}

/// What the pilot saw in one part of a window.
struct Piece {
    cpu_ns: u64,
    /// One count, or that of each system call.
    counts: Vec<u64>,
}

/// The comparison of this run.
pub struct Comparison {
    metric: Metric,
    /// Named by the user, and not found by itself.
    named: bool,
    state: State,
    pilot: Vec<Piece>,
    last: Option<(u64, Vec<u64>)>,
    window_ns: u64,
    /// Mean time from one window off to the next, ns.
    cycle_ns: u64,
    /// Time from the first detach to the last attach, ns, smoothed.
    off_span_ns: f64,
    comparisons: Vec<estimate::Comparison>,
    /// Classes to be attached again, with their quotas.
    again: Vec<(ClassId, u64)>,
    /// Those that stay attached in a window off: the metric's, and functions of operations that would be cut.
    staying: Vec<ClassId>,
    /// Functions of operations did.
    stayed: bool,
    /// Now.
    reopen: bool,
    random: rand::rngs::StdRng,
    cost: cost::MetricCost,
}

impl Comparison {
    /// A comparison whose pilot begins now.
    #[must_use]
    pub fn new(metric: Metric, named: bool, now: u64) -> Self {
        Self {
            cost: cost::MetricCost::new(&metric),
            metric,
            named,
            state: State::Pilot { next_ns: now },
            pilot: Vec::new(),
            last: None,
            window_ns: WINDOW_NS,
            cycle_ns: 0,
            off_span_ns: (WINDOW_NS + 40_000_000) as f64,
            comparisons: Vec::new(),
            again: Vec::new(),
            staying: Vec::new(),
            stayed: false,
            reopen: false,
            // The seed makes runs differ; nothing has to be secret.
            random: rand::rngs::StdRng::seed_from_u64(now),
        }
    }

    /// Everything is detached, or on its way: the controller must keep its hands off.
    pub fn is_off(&self) -> bool {
        matches!(self.state, State::Detaching { .. } | State::Off { .. })
    }

    /// Links were taken off in the middle of a window: it does not count.
    pub fn void(&mut self, now: u64) {
        if !matches!(self.state, State::Pilot { .. }) && !self.is_off() {
            self.state = State::Waiting { until_ns: now + self.cycle_ns / 2 };
        }
    }

    /// The metric's own classes: neither planned nor detached in windows off.
    #[must_use]
    pub fn classes(&self) -> &[ClassId] {
        self.metric.classes()
    }

    /// This class stays attached in windows off, as of the last one.
    #[must_use]
    pub fn leaves(&self, id: ClassId) -> bool {
        self.staying.contains(&id)
    }

    fn window(&self, piece: &Piece, slot: usize) -> ProgressWindow {
        let progress = piece.counts.get(slot).copied().unwrap_or(0);
        // Only CPU time is asked for of the pilot.
        ProgressWindow { progress, cpu_ns: piece.cpu_ns, wall_ns: 0 }
    }

    fn windows(&self, slot: usize) -> Vec<ProgressWindow> {
        self.pilot.iter().map(|piece| self.window(piece, slot)).collect()
    }
}

impl Session {
    /// A class that counts the progress metric.
    pub(super) fn is_metric(&self, id: ClassId) -> bool {
        self.comparison.as_ref().is_some_and(|c| c.classes().contains(&id))
    }

    /// Nothing more is counted; the result goes into the receipt.
    pub(super) fn end_comparison(&mut self) {
        let cpu_ns = self.ledger.target_cpu_ns() - self.ledger.charged_ns();
        if let Some(comparison) = self.comparison.take() {
            self.meta.measured = comparison.result(cpu_ns);
        }
        let cut = self.ledger.cut();
        if cut > 1.0 {
            self.meta.warnings.push(format!(
                "the target lost {cut:.1} times what its CPU time shows, because threads wait for each other: the budget was cut by that"
            ));
        }
        let factor = self.correction.factor();
        if factor != 1.0 {
            self.meta.warnings.push(format!(
                "hits, samples and switches cost this target {factor:.1} times what they cost the calibration's child, by the measured overhead: the plan and the ledger followed"
            ));
        }
    }

    /// One turn of the comparison.
    pub(super) fn compare(&mut self) {
        let Some(mut comparison) = self.comparison.take() else { return };
        let verdict = match comparison.state {
            State::Pilot { next_ns } => self.pilot(&mut comparison, next_ns),
            _ => self.compare_step(&mut comparison),
        };
        // Back before anything is opened: meanwhile costs are charged, and those of the metric to it.
        self.comparison = Some(comparison);
        if let Err(why) = verdict.and_then(|()| self.keep_metric()) {
            self.give_up(why);
        }
        self.reopen();
    }

    /// Attaches again what a window off had detached.
    fn reopen(&mut self) {
        if let Some(comparison) = self.comparison.as_mut().filter(|c| c.reopen) {
            comparison.reopen = false;
            let again = std::mem::take(&mut comparison.again);
            self.sampling.resume();
            self.open_wanted(&again);
        }
        let now = now_ns();
        if self.attach.is_settled()
            && let Some(comparison) = &mut self.comparison
            && let State::Settling { since_ns, until_ns: until_ns @ u64::MAX, .. } = &mut comparison.state
        {
            *until_ns = now + SETTLE_NS;
            let span = now.saturating_sub(*since_ns) as f64;
            comparison.off_span_ns += 0.2 * (span - comparison.off_span_ns);
        }
    }

    /// No more comparison; what has been measured so far is kept.
    fn give_up(&mut self, why: String) {
        let Some(comparison) = self.comparison.take() else { return };
        let cpu_ns = self.ledger.target_cpu_ns() - self.ledger.charged_ns();
        self.meta.measured = comparison.result(cpu_ns);
        self.progress.note(&format!("the overhead is not measured: {why}"));
        self.meta.not_observed.push(NotObserved { what: "measured overhead".to_owned(), why });
        for id in comparison.classes() {
            self.attach.close(&self.target, *id, Ending::Drain);
        }
        if !comparison.again.is_empty() || comparison.is_off() {
            self.sampling.resume();
            self.open_wanted(&comparison.again);
        }
    }

    /// CPU time and progress at one moment. `None`: the target is ending.
    fn mark(&self, metric: &Metric) -> Option<Mark> {
        let mut mark = None;
        for _ in 0..4 {
            let before = self.target.cpu_time_ns().ok()?;
            let progress = metric.read(self.attach.kernel())?;
            let after = self.target.cpu_time_ns().ok()?;
            mark = Some(Mark { progress, cpu_ns: u64::midpoint(before, after), time_ns: now_ns() });
            if after - before <= TORN_NS {
                break;
            }
        }
        mark
    }

    /// A part of a window goes by; after enough of them the metric is judged.
    fn pilot(&mut self, c: &mut Comparison, next_ns: u64) -> Result<(), String> {
        let now = now_ns();
        if now < next_ns {
            return Ok(());
        }
        c.state = State::Pilot { next_ns: now + WINDOW_NS };
        let Ok(cpu_ns) = self.target.cpu_time_ns() else { return Ok(()) };
        let counts = match &c.metric {
            Metric::Syscall(probe, None) => probe.counts(),
            metric => metric.read(self.attach.kernel()).into_iter().collect(),
        };
        if let Some((last_cpu_ns, last)) = c.last.replace((cpu_ns, counts.clone())) {
            let counts = counts.iter().zip(&last).map(|(now, last)| now.wrapping_sub(*last)).collect();
            c.pilot.push(Piece { cpu_ns: cpu_ns.saturating_sub(last_cpu_ns), counts });
        }
        let (fewest, most) = (*PILOT.start(), *PILOT.end());
        if c.pilot.len() > most {
            c.pilot.remove(0);
        }
        if !matches!(self.phase, Phase::Run) || c.pilot.len() < fewest {
            return Ok(());
        }
        self.judge(c, now)
    }

    /// Chooses metric and window length, and says what can be reached.
    fn judge(&mut self, c: &mut Comparison, now: u64) -> Result<(), String> {
        let slots: Vec<usize> = match &c.metric {
            Metric::Syscall(_, None) => (0..crate::prober::PROGRESS_OTHERS)
                .filter(|n| !syscalls::waits(*n) && c.pilot.iter().any(|piece| piece.counts[*n] > 0))
                .collect(),
            _ => vec![0],
        };
        let mut best: Option<(f64, usize, usize)> = None;
        let mut slow = false;
        for slot in slots {
            let windows = c.windows(slot);
            let Some(parts) = estimate::windows_to_join(&windows, MOST_PARTS) else {
                slow = true;
                continue;
            };
            let Some(half) = estimate::reachable(&windows, parts, self.planned(c, parts, now)) else {
                continue;
            };
            if best.is_none_or(|(least, ..)| half < least) {
                best = Some((half, slot, parts));
            }
        }
        let Some((half, slot, parts)) = best else {
            // A slow metric may need a longer pilot.
            if c.pilot.len() < *PILOT.end() && (slow || c.named) {
                return Ok(());
            }
            return Err(if c.named {
                format!("{} makes too little progress for windows of 0.8 s", c.metric.name())
            } else {
                "no progress metric: the target makes no steady system calls; name one with --progress"
                    .to_owned()
            });
        };
        let share = self.arbiter().allowed() / self.own_cpu.max(profiler_core::ledger::FLOOR_CPU_PER_S);
        if let Metric::Syscall(_, number @ None) = &mut c.metric {
            if half > share {
                return Err(format!(
                    "no progress metric: the steadiest system call, {}, would give +-{:.2} points, more than the budget; \
                     name a metric with --progress",
                    syscalls::name(slot),
                    half * 100.0
                ));
            }
            *number = Some(slot);
        }
        c.window_ns = parts as u64 * WINDOW_NS;
        c.cycle_ns = self.cycle_ns(c, c.window_ns);
        self.progress.note(&format!(
            "overhead is measured on {}{}: windows of {} ms off, one per {:.1} s; reachable {}: +-{:.2} points (95 %)",
            c.metric.name(),
            if c.named { "" } else { " (found by itself)" },
            c.window_ns / 1_000_000,
            c.cycle_ns as f64 * 1e-9,
            if self.end_ns.is_some() { "by the end" } else { "after a minute" },
            half * 100.0
        ));
        c.pilot.clear();
        c.state = State::Waiting { until_ns: now };
        Ok(())
    }

    /// Windows off in what is left of the run, or in a minute.
    fn planned(&self, c: &Comparison, parts: usize, now: u64) -> u32 {
        let left = self.end_ns.map_or(HORIZON_NS, |end| end.saturating_sub(now));
        // OK because a run has far fewer than 2^32 windows.
        u32::try_from(left / self.cycle_ns(c, parts as u64 * WINDOW_NS)).unwrap_or(u32::MAX)
    }

    /// Mean time between windows off: at most a tenth of it off, at most a tenth of the budget for taking links off and on.
    fn cycle_ns(&self, c: &Comparison, window_ns: u64) -> u64 {
        let span = c.off_span_ns - c.window_ns as f64 + window_ns as f64;
        let open =
            self.attach.classes().iter().filter(|x| x.is_open() && !c.classes().contains(&x.id)).count();
        let churn_s = 2.0 * open as f64 * self.cost.attach.seconds();
        let churn_ns = churn_s * 1e9 / self.arbiter().churn().max(1e-9);
        let least = (3 * window_ns + SETTLE_NS) as f64 + span;
        (span / OFF_SHARE).max(churn_ns).max(least) as u64
    }

    /// Where measured and predicted overhead disagree beyond the interval, prices follow what was measured, and a new plan
    /// is made with them.
    fn correct_prices(&mut self, c: &Comparison) {
        let Some(measured) = c.result(self.ledger.target_cpu_ns() - self.ledger.charged_ns()) else { return };
        if let Some(factor) = self.correction.update(self.ledger.compared(), &measured) {
            self.ledger.set_factor(factor);
            self.want_plan(None);
            self.warn_verbose(&format!(
                "prices are taken {factor:.2} times as calibrated: measured {:.1} % ({:.1} to {:.1})",
                measured.value * 100.0,
                measured.low * 100.0,
                measured.high * 100.0
            ));
        }
    }

    /// Where the target loses more than CPU time shows, the budget is cut by that.
    fn cut_budget(&mut self, c: &Comparison) {
        let Some(more) = estimate::waiting(&c.comparisons) else { return };
        let predicted = self.ledger.compared() * self.ledger.factor();
        let factor = waiting_factor(predicted, &more, c.comparisons.len());
        if (factor / self.ledger.cut() - 1.0).abs() < CUT_STEP {
            return;
        }
        self.ledger.cut_budget(factor);
        self.want_plan(Some(format!(
            "the target loses {factor:.1} times what its CPU time shows: the budget is cut by that"
        )));
    }

    fn compare_step(&mut self, c: &mut Comparison) -> Result<(), String> {
        let now = now_ns();
        // A survey attaches and detaches by itself, in a storm of forks nothing is attached: what was begun is void.
        if (!matches!(self.phase, Phase::Run) || self.children.is_storm()) && !c.is_off() {
            c.state = State::Waiting { until_ns: now + c.cycle_ns / 2 };
            return Ok(());
        }
        if !is_due(&c.state, now) {
            return Ok(());
        }
        let Some(here) = self.mark(&c.metric) else { return Ok(()) };
        c.state = match c.state {
            State::Waiting { until_ns } if now >= until_ns && !self.children.is_rearming() => {
                State::Before { mark: here, until_ns: now + c.window_ns }
            }
            // What is just being attached would come in the middle of the window off.
            State::Before { mark, until_ns } if now >= until_ns && self.attach.is_settled() => {
                let open: Vec<ClassId> =
                    self.attach.classes().iter().filter(|x| x.is_open()).map(|x| x.id).collect();
                c.staying = self.staying_bounds();
                c.stayed |= !c.staying.is_empty();
                c.staying.extend(c.metric.classes());
                let others = open.iter().filter(|id| !c.staying.contains(id));
                c.again = others.map(|id| (*id, self.attach.quota(*id))).collect();
                self.hold_operations();
                for (id, _) in &c.again {
                    self.attach.close(&self.target, *id, Ending::Drain);
                }
                self.sampling.pause();
                State::Detaching { before: window(mark, here), since_ns: now }
            }
            State::Detaching { since_ns, .. } if now.saturating_sub(since_ns) > DETACH_LIMIT_NS => {
                // Something does not go, or was opened meanwhile: no comparison is worth a run without controller.
                c.reopen = true;
                State::Waiting { until_ns: now + c.cycle_ns }
            }
            State::Detaching { before, since_ns } if !self.attach.busy_but(&c.staying) => {
                State::Off { before, since_ns, mark: here, until_ns: now + c.window_ns }
            }
            State::Off { before, since_ns, mark, until_ns } if now >= until_ns => {
                c.reopen = true;
                State::Settling { before, off: window(mark, here), since_ns, until_ns: u64::MAX }
            }
            State::Settling { before, off, until_ns, .. } if now >= until_ns => {
                State::After { before, off, mark: here, until_ns: now + c.window_ns }
            }
            State::After { before, off, mark, until_ns } if now >= until_ns => {
                c.comparisons.push(estimate::Comparison { before, off, after: window(mark, here) });
                self.correct_prices(c);
                self.cut_budget(c);
                c.cycle_ns = self.cycle_ns(c, c.window_ns);
                // Uniform, so that no period of the target falls in step.
                let active = 2.0 * c.window_ns as f64 + SETTLE_NS as f64 + c.off_span_ns;
                let mean = (c.cycle_ns as f64 - active).max(1.0);
                State::Waiting { until_ns: now + (c.random.random_range(0.0..2.0) * mean) as u64 }
            }
            state => state,
        };
        Ok(())
    }
}

/// Something may be over. Before, nothing is read: each reading asks the clocks of all threads and locks the target's memory map, and
/// there are up to a hundred turns a second.
fn is_due(state: &State, now: u64) -> bool {
    match state {
        State::Pilot { next_ns: until_ns }
        | State::Waiting { until_ns }
        | State::Before { until_ns, .. }
        | State::Off { until_ns, .. }
        | State::Settling { until_ns, .. }
        | State::After { until_ns, .. } => now >= *until_ns,
        State::Detaching { .. } => true,
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
mod tests {
    use super::*;

    #[test]
    fn the_target_is_read_when_something_may_be_over() {
        let mark = Mark { progress: 0, cpu_ns: 0, time_ns: 0 };
        let before = window(mark, mark);
        let waiting = State::Waiting { until_ns: 100 };
        let open = State::Before { mark, until_ns: 100 };
        let off = State::Off { before, since_ns: 0, mark, until_ns: 100 };
        for state in [waiting, open, off] {
            assert_eq!((is_due(&state, 99), is_due(&state, 100)), (false, true), "{state:?}");
        }
        // Nobody knows when the links will be gone.
        assert!(is_due(&State::Detaching { before, since_ns: 50 }, 50));
    }
}
