//! From windows to bursts: what each saw, in which time of the target's own, and how unlike the moments of a run are.

mod by_cpu;
mod callers;
mod counted;
mod price;
mod reference;

use super::samples::Shares;
use super::threads::{Caller, Threads};
use crate::ledger::LedgerSummary;
use crate::recording::{ClassRow, LedgerRow, Recording, WindowKind, WindowRow};
use crate::stats::added::Ranged;
use crate::stats::bursts::{self, Burst, BurstTime, Cell, Drift, NEIGHBOUR_ERROR, Seen, Stop, undilated_s};
pub(super) use by_cpu::Bursts;
use callers::Callers;
use price::{HitPrice, TrapPrice};
pub(super) use reference::is_lent;
use std::collections::{BTreeMap, BTreeSet};

/// Largest part of a window's time that others' hits are taken to have used.
const MOST_OF_OTHERS: f64 = 0.9;
/// After a trip in the survey the link is hit for so long at most, ns.
const TAIL_NS: f64 = 10e6;

/// What all classes of a run share.
pub(super) struct RunContext {
    /// Begin, ktime ns.
    pub start_ns: u64,
    /// End, ktime ns.
    pub end_ns: u64,
    /// Length of the run, s.
    pub length_s: f64,
    cpu_per_s: f64,
    /// The ledger's intervals: begin and end, ktime ns, and CPU seconds of the target's own per second.
    busy: Vec<(u64, u64, f64)>,
    /// What watching cost beside the hits in windows (samples, attaching), CPU s/s, on average: the ledger has no finer account.
    rest_per_s: f64,
    /// What all watching cost, CPU s/s, on average.
    charged_per_s: f64,
    /// What samples, switches, attaching and screening cost, CPU s/s: what interrupts calls without a probe of theirs.
    interrupts_per_s: f64,
    /// CPU time of the agent, CPU s/s: nobody knows how much of it was on the CPU of the one thread that calls.
    agent_part: f64,
    costs: Costs,
    /// What traps cost in this target.
    traps: TrapPrice,
    /// At most one for each CPU.
    threads: u32,
    by_thread: Threads,
    /// See [`drift`].
    pub drift: Option<Drift>,
    /// Rates of functions that were watched beside a reference.
    beside: BTreeMap<u32, reference::Beside>,
}

/// What the hits of all classes cost by when, taken as even within each window.
struct Costs {
    /// Begins and ends of windows, ktime ns, sorted.
    times: Vec<u64>,
    /// CPU s up to each of them.
    until_s: Vec<f64>,
    /// CPU s per ns after each of them.
    per_ns: Vec<f64>,
}

/// What was charged for the hits within a window, CPU s. In a long one some are turned away all the time, those of a short one came after its end.
fn cost_s(w: &WindowRow) -> f64 {
    let short = w.tripped || w.kind != WindowKind::Trace;
    let hits = if short { w.kept.saturating_add(w.dropped) } else { w.attempted };
    hits as f64 * w.tau_ns.max(0.0) * 1e-9
}

impl Costs {
    fn of(windows: &[WindowRow], traps: &TrapPrice) -> Self {
        let mut turns: Vec<(u64, f64)> = windows
            .iter()
            .filter(|w| w.end_ns > w.start_ns)
            .flat_map(|w| {
                let length_ns = (w.end_ns - w.start_ns) as f64;
                let per_ns = traps.window_s(w) / length_ns;
                // The others on the link were watched on while hits of the one that tripped were turned away.
                let tripped = w.tripped && w.kind == WindowKind::Survey && w.kept > 0;
                let tail = if tripped { length_ns * w.gated as f64 / w.kept as f64 } else { 0.0 };
                // OK because it lies between 0 and the tail's limit.
                [(w.start_ns, per_ns), (w.end_ns + tail.min(TAIL_NS) as u64, -per_ns)]
            })
            .collect();
        turns.sort_by_key(|(time, _)| *time);
        let mut costs = Self { times: Vec::new(), until_s: Vec::new(), per_ns: Vec::new() };
        let (mut until_s, mut per_ns, mut last) = (0.0, 0.0_f64, 0);
        for (time, turn) in turns {
            until_s += per_ns * time.saturating_sub(last) as f64;
            per_ns = (per_ns + turn).max(0.0);
            last = time;
            costs.times.push(time);
            costs.until_s.push(until_s);
            costs.per_ns.push(per_ns);
        }
        costs
    }

    fn until(&self, time: u64) -> f64 {
        match self.times.partition_point(|t| *t <= time).checked_sub(1) {
            Some(i) => self.until_s[i] + self.per_ns[i] * (time - self.times[i]) as f64,
            None => 0.0,
        }
    }

    /// What other classes cost in the last `last_s` of a window, CPU s.
    fn of_others(&self, w: &WindowRow, last_s: f64, traps: &TrapPrice) -> f64 {
        let length_ns = w.end_ns.saturating_sub(w.start_ns);
        // OK because a float beyond the type's range becomes its end.
        let last_ns = ((last_s * 1e9).round() as u64).min(length_ns);
        let own_s = traps.window_s(w) * last_ns as f64 / (length_ns as f64).max(1.0);
        (self.until(w.end_ns) - self.until(w.end_ns - last_ns) - own_s).max(0.0)
    }
}

impl RunContext {
    pub(super) fn of(recording: &Recording, ledger: &LedgerSummary, shares: &Shares<'_>) -> Self {
        let start_ns = recording.meta.start_ns;
        // The agent died: the run ends with the last thing that was written.
        let last = || {
            let windows = recording.windows.iter().map(|w| w.end_ns);
            let samples = recording.samples.iter().map(|s| s.time_ns);
            let ledger = recording.ledger.iter().map(|l| l.time_ns);
            let traps = recording.trap_samples.iter().map(|s| s.time_ns);
            windows.chain(samples).chain(traps).chain(ledger).max().unwrap_or(start_ns)
        };
        let end_ns = recording.meta.end_ns.unwrap_or_else(last).max(start_ns);
        let per_s = |s: f64| if ledger.length_s > 0.0 { s / ledger.length_s } else { 0.0 };
        let traps = TrapPrice::of(recording, per_s(ledger.own_cpu_s));
        Self {
            start_ns,
            end_ns,
            length_s: (end_ns - start_ns) as f64 * 1e-9,
            cpu_per_s: per_s(ledger.own_cpu_s),
            busy: own_cpu(&recording.ledger),
            rest_per_s: per_s(ledger.charged_s - recording.windows.iter().map(cost_s).sum::<f64>()).max(0.0),
            charged_per_s: per_s(ledger.charged_s),
            interrupts_per_s: per_s(ledger.interrupts_s()),
            agent_part: per_s(recording.meta.agent.in_run_ns() as f64 * 1e-9),
            costs: Costs::of(&recording.windows, &traps),
            traps,
            threads: shares.threads().count().min(recording.meta.cpus.max(1)),
            by_thread: shares.threads().clone(),
            drift: None,
            beside: BTreeMap::new(),
        }
    }

    /// Learns how unlike the moments of the run were, and then the rates of functions that were watched beside a reference.
    pub(super) fn learn(&mut self, recording: &Recording, windows: &BTreeMap<u32, Vec<&WindowRow>>) {
        self.drift = drift(&recording.classes, windows, recording, self);
        // A reference's own rate may be one that those tell.
        let by_thread = self.by_thread.clone();
        let callers = Callers::of(recording, &by_thread);
        self.beside = counted::told(recording, windows, &callers, self);
        for (function, told) in reference::told(recording, windows, &callers, self) {
            let by_counted = self.beside.get(&function).copied();
            self.beside.insert(function, by_counted.map_or(told, |other| reference::sharper(told, other)));
        }
    }

    /// Wall time that monitoring took from the target's threads while these windows of a class, which cover `covered_s`, were not open, s. A thread that
    /// rests may have given rest for it, as far as it has any; of several threads nobody knows which paid.
    pub(super) fn lost_beside(&self, windows: &[&WindowRow], covered_s: f64) -> Ranged {
        let own_s: f64 = windows.iter().map(|w| cost_s(w)).sum();
        let beside_s = (self.charged_per_s * self.length_s - own_s).max(0.0);
        let part = if self.length_s > 0.0 { (1.0 - covered_s / self.length_s).clamp(0.0, 1.0) } else { 0.0 };
        let lost_s = beside_s * part;
        let even_s = lost_s / self.cpu_per_s.max(1.0);
        if self.threads > 1 {
            return Ranged::between(0.0, self.busy() * even_s, lost_s.min(self.length_s * part));
        }
        let rest_s = (1.0 - self.busy()) * self.length_s * part;
        Ranged::between((even_s - rest_s).max(0.0), self.busy() * even_s, even_s)
    }

    /// CPU seconds of a thread's own per second of the run that monitoring left it: what rates per CPU second of its are multiplied by, so that they are per
    /// undilated second as those by the wall clock are. Monitoring is taken to be divided as CPU time is.
    fn cpu_per_own_s(&self, caller: &Caller) -> f64 {
        /// More than that no budget takes; a ledger that says so is wrong.
        const MOST: f64 = 0.5;
        let own_per_s = self.cpu_per_s * caller.part;
        let lost = self.busy_of(caller) * self.charged_per_s * caller.part / own_per_s.max(1.0);
        own_per_s / (1.0 - lost.min(MOST))
    }

    /// Part of the time for which a thread runs, monitoring included.
    fn busy_of(&self, caller: &Caller) -> f64 {
        ((self.cpu_per_s + self.charged_per_s) * caller.part).clamp(0.0, 1.0)
    }

    /// The same of the thread that makes the calls of these windows, or of those that may; else of all.
    fn busy_where_called(&self, windows: &[&WindowRow]) -> f64 {
        let part = self.by_thread.part_where_called(windows);
        part.map_or(self.busy(), |part| ((self.cpu_per_s + self.charged_per_s) * part).clamp(0.0, 1.0))
    }

    /// What other classes cost in the last `last_s` of a window, CPU s.
    fn others_s(&self, w: &WindowRow, last_s: f64) -> f64 {
        self.costs.of_others(w, last_s, &self.traps)
    }

    /// Which unwatched time of the target's own each window of a class, in order of time, stands for: half of the gaps beside it.
    fn cells(&self, windows: &[&WindowRow]) -> Vec<Cell> {
        let time_ns = |s: f64| self.start_ns + (s.max(0.0) * 1e9) as u64;
        let second =
            |ns: u64| ns.clamp(self.start_ns, self.end_ns).saturating_sub(self.start_ns) as f64 * 1e-9;
        let spans: Vec<(f64, f64)> =
            windows.iter().map(|w| (second(w.start_ns), second(w.end_ns.max(w.start_ns)))).collect();
        bursts::cells(&spans, self.length_s, |from_s, to_s| {
            let hits_s = self.costs.until(time_ns(to_s)) - self.costs.until(time_ns(from_s));
            let cost_s = hits_s + self.rest_per_s * (to_s - from_s);
            let lost_s = self.busy() * cost_s / self.cpu_per_s.max(1.0);
            (to_s - from_s - lost_s).max((1.0 - MOST_OF_OTHERS) * (to_s - from_s))
        })
    }

    /// Part of the time for which the target's threads run, monitoring included.
    fn busy(&self) -> f64 {
        ((self.cpu_per_s + self.charged_per_s) / f64::from(self.threads.max(1))).clamp(0.0, 1.0)
    }

    /// Part by which calls take longer for what monitoring does beside the probes: samples and attaching interrupt whoever runs, and the agent takes its
    /// CPU time from whatever CPU it is on. `p = rest / own` of the time for which a call runs; what an interrupt leaves behind in the caches is as much
    /// again.
    pub(super) fn beside_probes(&self) -> Ranged {
        let rest = if self.cpu_per_s > 0.0 { (self.interrupts_per_s / self.cpu_per_s).min(1.0) } else { 0.0 };
        Ranged::between(0.0, rest * self.busy(), (2.0 * rest + self.agent_part).min(1.0))
    }

    /// CPU seconds of the target's own per second when a window was open: those of the ledger's interval in which it ended.
    fn own_per_s(&self, w: &WindowRow) -> f64 {
        let i = self.busy.partition_point(|(_, end_ns, _)| *end_ns < w.end_ns);
        let interval = self.busy.get(i).filter(|(start_ns, ..)| *start_ns <= w.end_ns);
        interval.map_or(self.cpu_per_s, |(_, _, own)| *own)
    }

    /// The same of a window in which the target ran: where nothing is left beside what monitoring was charged, the run's.
    fn used_around(&self, w: &WindowRow) -> f64 {
        let own_per_s = self.own_per_s(w);
        if own_per_s > 0.0 { own_per_s } else { self.cpu_per_s }
    }

    /// How long the thread that makes the calls ran from the first hit of a quota, at `tau_s` each, to the one that used it up, s. `None` if others took them, or if
    /// that is absurd.
    fn ran_s(&self, w: &WindowRow, tau_s: f64, caller: &Caller) -> Option<f64> {
        /// Prices are known far better than that.
        const LEAST_PART: f64 = 0.5;
        let least_s = LEAST_PART * tau_s * w.kept.saturating_sub(1) as f64;
        let ran_s = w.ran_ns? as f64 * 1e-9;
        // A thread that samples did not show has no part in what they say of the process.
        let is_its = w.ran_tid == Some(caller.tid);
        (is_its && w.tripped && ran_s > 0.0 && ran_s >= least_s).then_some(ran_s)
    }
}

/// See [`RunContext::busy`].
fn own_cpu(ledger: &[LedgerRow]) -> Vec<(u64, u64, f64)> {
    /// The CPU clock of another process lags by up to a tick (4 ms): of shorter intervals it says too little, ns.
    const LEAST_NS: u64 = 200_000_000;
    let mut intervals: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
    for row in ledger.iter().filter(|row| row.interval_ns >= LEAST_NS) {
        let (.., charged_ns) =
            intervals.entry(row.time_ns).or_insert((row.interval_ns, row.target_cpu_ns, 0));
        *charged_ns += if row.charge.counts() { row.cost_ns } else { 0 };
    }
    let own = |(end_ns, (length_ns, cpu_ns, charged_ns)): (u64, (u64, u64, u64))| {
        let own_ns = cpu_ns.saturating_sub(charged_ns);
        (end_ns.saturating_sub(length_ns), end_ns, own_ns as f64 / length_ns as f64)
    };
    intervals.into_iter().map(own).collect()
}

/// Calls in a window: what was kept, what was lost, and after a trip also what the used-up quota turned away.
pub(super) fn hits_of(w: &WindowRow) -> u64 {
    w.kept.saturating_add(w.dropped).saturating_add(if w.tripped { w.gated } else { 0 })
}

/// What the windows of a class, in order of time, say of its rate.
pub(super) fn bursts_of(
    class: &ClassRow,
    windows: &[&WindowRow],
    recording: &Recording,
    run: &RunContext,
) -> Bursts {
    let beside = run.beside.get(&class.class_id).copied();
    let bursts = Bursts::of(windows, &HitPrice::of(class, windows, recording, run), run);
    bursts.with_reference(beside, run.drift.as_ref())
}

/// How unlike the moments of this run were, learned from all classes that were watched in several; `None` of too few. Functions inside
/// operations are left out: they are watched when those are.
fn drift(
    classes: &[ClassRow],
    windows: &BTreeMap<u32, Vec<&WindowRow>>,
    recording: &Recording,
    run: &RunContext,
) -> Option<Drift> {
    let inside: BTreeSet<u32> =
        recording.meta.operations.iter().flat_map(|o| o.inner_classes.iter().copied()).collect();
    let of_class = |c: &ClassRow| {
        windows.get(&c.class_id).filter(|_| c.stamps_of.is_none() && !inside.contains(&c.class_id))
    };
    let mut apart: Vec<u64> = classes
        .iter()
        .filter_map(of_class)
        .flat_map(|windows| windows.windows(2).map(|pair| pair[1].start_ns.saturating_sub(pair[0].start_ns)))
        .collect();
    apart.sort_unstable();
    let apart_s = *apart.get(apart.len() / 2)? as f64 * 1e-9;
    let bursts: Vec<Bursts> = classes
        .iter()
        .filter_map(|c| of_class(c).map(|windows| bursts_of(c, windows, recording, run)))
        .collect();
    let seen = bursts.iter().map(|b| Seen { bursts: &b.by_wall, cells: &b.cells });
    Drift::pooled(seen, apart_s, run.length_s / apart_s)
}

/// Bursts of a plan were designed alike, so they weigh alike, whatever each saw: hot moments use up a quota sooner, and
/// by what they saw they would count more. Looks of the survey grow from one to the next, so each weighs what it could have seen; no more than
/// the largest quota that was used up, or cold moments, which last until the clock ends them, would count more. A long window that traced weighs no more than
/// a burst: what it saw is counted, and of the time that nobody watched it says as much as any.
fn weigh_alike(bursts: &mut [Burst], windows: &[&WindowRow]) {
    /// Longer than any window: the quota is what counts.
    const NO_CLOCK_S: f64 = 1e9;
    let of = |kind| windows.iter().enumerate().filter(move |(_, w)| w.kind == kind).map(|(i, _)| i);
    let (n, hits) = of(WindowKind::Burst).fold((0_u64, 0_u64), |(n, hits), i| (n + 1, hits + bursts[i].hits));
    for i in of(WindowKind::Burst) {
        bursts[i].quota = Some((hits / n).max(1));
        bursts[i].window_s = Some(NO_CLOCK_S);
    }
    let largest = of(WindowKind::Survey).filter(|i| windows[*i].tripped).map(|i| bursts[i].hits).max();
    for i in of(WindowKind::Survey).filter(|i| !windows[*i].tripped) {
        bursts[i].quota = largest;
        bursts[i].window_s = Some(bursts[i].time_s);
    }
    let alike = (n > 0).then(|| (hits / n).max(1)).or(largest);
    for i in of(WindowKind::Trace) {
        bursts[i].quota = alike;
        bursts[i].window_s = Some(bursts[i].time_s);
    }
}

/// What others' hits cost at most, over what is taken: what makes this class's hits dear in this target makes theirs dear, too. In the windows of memcached more
/// than half of all hits are others', and all cost twice their price (log.md, M50).
fn dear_neighbours(tau_s: f64, dear_s: f64) -> f64 {
    /// Where others' sites are of another kind, no more follows.
    const MOST: f64 = 2.0;
    let ratio = if tau_s > 0.0 { dear_s / tau_s } else { 1.0 };
    ratio.clamp(1.0 + NEIGHBOUR_ERROR, MOST)
}

/// A window in wall time.
fn burst_by_wall(w: &WindowRow, price: &HitPrice, run: &RunContext) -> Burst {
    // What was turned away came after the end of the window.
    let hits = w.kept.saturating_add(w.dropped);
    let elapsed_s = w.end_ns.saturating_sub(w.start_ns) as f64 * 1e-9;
    let (tau_s, cheap, dear) = price.of_window(w);
    // Others' hits slow the target in this window as its own do. Where they swallow all of its time, a tenth is as good a guess as any, and no
    // more than that: such a window must not stand for a rate without end.
    let rest_s = run.rest_per_s * elapsed_s;
    let cpus = if run.threads <= 1 { 1.0 } else { run.cpu_per_s.max(1.0) };
    let most_s = MOST_OF_OTHERS * (elapsed_s * cpus - hits as f64 * tau_s).max(0.0);
    let others_s = run.others_s(w, elapsed_s);
    let time = |part: f64| BurstTime {
        elapsed_s,
        // A quota ends a window at a hit, and CPU time is read tens of milliseconds later.
        target_cpu_s: if w.tripped { 0.0 } else { w.target_cpu_ns as f64 * 1e-9 },
        threads: run.threads,
        other_cost_s: (rest_s + part * others_s).min(most_s.max(rest_s)),
        cpu_per_s: run.cpu_per_s,
    };
    let stop = if w.tripped { Stop::Quota } else { Stop::Window };
    let burst = Burst::new(&time(1.0), hits, stop, (tau_s, cheap, dear));
    Burst {
        time_low_s: undilated_s(&time(dear_neighbours(tau_s, dear)), hits, dear).min(burst.time_s),
        // Of several threads nobody knows whether the one that calls this class paid for the others' hits.
        time_high_s: undilated_s(
            &time(if run.threads <= 1 { 1.0 - NEIGHBOUR_ERROR } else { 0.0 }),
            hits,
            cheap,
        )
        .max(burst.time_s),
        ..burst
    }
    .swallowed(elapsed_s)
}
