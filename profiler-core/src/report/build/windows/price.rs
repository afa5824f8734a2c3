//! What a hit costs in this target: the price of the host, what cold caches add, and what samples saw of it.

use super::super::stamps;
use super::RunContext;
use super::by_cpu::BUSY;
use crate::class::{ExitMode, SiteClass};
use crate::cost::{self, PRICE_DRIFT, Price};
use crate::recording::{ClassRow, Recording, WindowKind, WindowRow};
use std::collections::BTreeSet;

/// What cold caches add to a trap of a program that works between two of them, in units of what they add in calibration's own load: between nothing
/// and [`stamps::MOST_COLD`].
const LIKELY_COLD: f64 = 2.0;

/// What traps cost in this target, as far as the run itself knows.
#[derive(Debug, Clone)]
pub(super) struct TrapPrice {
    likely: Likely,
    /// CPU seconds of the target's own per second.
    cpu_per_s: f64,
    /// Classes of which a call has two traps.
    timed: BTreeSet<u32>,
}

/// What is likely of a trap.
#[derive(Debug, Clone, Copy)]
struct Likely {
    /// What it costs over what is expected.
    factor: f64,
    /// What cold caches are expected to add, ns.
    cold_ns: f64,
}

impl Likely {
    /// CPU time of `traps` traps that are charged `charged_s` and run cold after `gap_s` of the target's own CPU time each, s.
    fn cost_s(&self, charged_s: f64, traps: f64, gap_s: f64) -> f64 {
        (charged_s + traps * cost::cold_ns(Price::fixed(self.cold_ns), gap_s) * 1e-9) * self.factor
    }
}

impl TrapPrice {
    /// By the samples that fell into traps, and what is known of other programs (a gamma prior of the factor, conjugate to Poisson counts):
    ///
    /// ```text
    /// factor = (A + k) / (A + E),   k: samples in traps,  E: expected of them, traps x (price + seen part of likely cold) / period
    /// ```
    /// `A` = 4 is a spread of a half: beside other work traps of real programs cost 1 to 4 times what is expected (log.md, M46).
    pub(super) fn of(recording: &Recording, cpu_per_s: f64) -> Self {
        const PRIOR: f64 = 4.0;
        /// Of what cold caches add, a fifth to a third comes when the trap is over, where no sample sees it.
        const SEEN: f64 = 0.75;
        let is_timed = |c: &&ClassRow| c.exit_mode != ExitMode::None;
        let timed = recording.classes.iter().filter(is_timed).map(|c| c.class_id).collect();
        let cold_ns = LIKELY_COLD * recording.meta.cost.cold.ns;
        let prior = Self { likely: Likely { factor: 1.0, cold_ns }, cpu_per_s, timed };
        // Older recordings have samples in traps among the others.
        if recording.meta.agent.until_begin_ns.is_none() || recording.samples.is_empty() {
            return prior;
        }
        let seen = Self { likely: Likely { cold_ns: SEEN * cold_ns, ..prior.likely }, ..prior.clone() };
        let expected_s: f64 = recording.windows.iter().map(|w| seen.hits_s(w, w.attempted)).sum();
        let asked = recording.meta.sample_period_ns.max(1);
        let period = |ns: u64| if ns > 0 { ns } else { asked } as f64;
        let seen_ns: f64 = recording.samples.iter().map(|s| period(s.period_ns)).sum();
        let in_traps_ns: f64 = recording.trap_samples.iter().map(|s| period(s.period_ns)).sum();
        let n = (recording.samples.len() + recording.trap_samples.len()) as f64;
        let mean_period_s = (seen_ns + in_traps_ns) * 1e-9 / n;
        let k = in_traps_ns * 1e-9 / mean_period_s;
        let factor = (PRIOR + k) / (PRIOR + expected_s / mean_period_s);
        Self { likely: Likely { factor, cold_ns }, ..prior }
    }

    /// Likely cost of the hits within a window, CPU s. In a long one some are turned away all the time, those of a short one came after its end.
    pub(super) fn window_s(&self, w: &WindowRow) -> f64 {
        let short = w.tripped || w.kind != WindowKind::Trace;
        self.hits_s(w, if short { w.kept.saturating_add(w.dropped) } else { w.attempted })
    }

    fn hits_s(&self, w: &WindowRow, hits: u64) -> f64 {
        let charged_s = hits as f64 * w.tau_ns.max(0.0) * 1e-9;
        // A traced class is charged what cold caches add in calibration; an exit is watched in no survey.
        let traps = match w.kind {
            WindowKind::Trace => 0.0,
            WindowKind::Survey => hits as f64,
            _ => hits as f64 * if self.timed.contains(&w.class_id) { 2.0 } else { 1.0 },
        };
        let own_s = w.end_ns.saturating_sub(w.start_ns) as f64 * 1e-9 * self.cpu_per_s - charged_s;
        self.likely.cost_s(charged_s, traps, own_s / (hits as f64).max(1.0))
    }
}

/// Shortest mean time from hit to hit in a window that its quota ended, ns: no hit costs more, whatever calibration says. `factor`: what a hit
/// costs over what was charged.
fn least_gap_ns(windows: &[&WindowRow], factor: f64, run: &RunContext) -> f64 {
    /// Fewer hits say too little.
    const ENOUGH: u64 = 30;
    let ended = windows.iter().filter(|w| w.tripped && w.kept >= ENOUGH && w.end_ns > w.start_ns);
    // Of several threads others' windows lie beside these.
    let sole = run.by_thread.sole();
    let ran_s = |w: &WindowRow| run.ran_s(w, w.tau_ns.max(0.0) * 1e-9 * factor, sole.as_ref()?);
    let gap_ns = |w: &&WindowRow| match ran_s(w) {
        Some(ran_s) => ran_s * 1e9 / (w.kept - 1) as f64,
        None => (w.end_ns - w.start_ns) as f64 / w.kept as f64,
    };
    ended.map(gap_ns).fold(f64::INFINITY, f64::min)
}

/// What a hit of a class costs in this target, over what the recording charged for it.
pub(super) struct HitPrice {
    /// Value, smallest, largest.
    factor: (f64, f64, f64),
    /// By the class's pair.
    in_place: bool,
    /// Part of the charged price that is that of a tight loop: how far the target used the caches between two hits is a guess.
    warm: f64,
    /// Most that cold caches add to a hit in a burst, ns.
    cold: Price,
    /// What is likely; `None`: the price was given as exact.
    likely: Option<Likely>,
    /// Traps of a hit.
    traps: f64,
    /// No hit costs more, CPU s.
    most_s: f64,
    /// Threads that hit side by side share the time.
    threads: f64,
}

impl HitPrice {
    /// By the class's pair where it has one ([`stamps::hit_factor`]), else the host's price, which is believed to [`PRICE_DRIFT`].
    pub(super) fn of(
        class: &ClassRow,
        windows: &[&WindowRow],
        recording: &Recording,
        run: &RunContext,
    ) -> Self {
        /// What a trap of a program that does much between two calls leaves behind at most, in units of what calibration's own load adds: some 0.4 us
        /// a trap here. memcached, redis and SQLite paid 0.2 to 0.8 (log.md, M38, M44 and M58): what is more the drift of the price holds, or the clocks' two ends.
        const MOST_BEHIND: f64 = 2.4;
        /// The same of a target, or of the thread that calls, where that rests and others use the caches meanwhile: memcached paid 0.5 to 0.9 us a hit (log.md, M57).
        const MOST_BEHIND_RESTED: f64 = 4.8;
        let cost = &recording.meta.cost;
        let price = cost.hit_price(class.site_class, class.kind);
        let part = |ns: f64| if price.ns > 0.0 { ns / price.ns } else { 1.0 };
        // Given as exact, and not measured.
        let drift = if price.min_ns == price.max_ns { 0.0 } else { PRICE_DRIFT };
        let host = (1.0, part(price.min_ns) * (1.0 - drift), part(price.max_ns) * (1.0 + drift));
        let in_place = stamps::hit_factor(class, recording);
        let factor = in_place.unwrap_or(host);
        // What a trap leaves behind comes after it, and no pair sees it. A price that was given as exact has none added.
        let traps = if class.exit_mode == ExitMode::None { 1.0 } else { 2.0 };
        let stepped_ns =
            if class.site_class == SiteClass::Stepped { stamps::STEPPED_BEHIND.1 * price.ns } else { 0.0 };
        let most_behind =
            if run.busy_where_called(windows) < BUSY { MOST_BEHIND_RESTED } else { MOST_BEHIND };
        let cold_ns = if drift == 0.0 { 0.0 } else { traps * most_behind * cost.cold.max_ns + stepped_ns };
        Self {
            factor,
            in_place: in_place.is_some(),
            cold: Price::fixed(cold_ns),
            // What a pair has measured holds what samples say of its traps.
            likely: (drift != 0.0).then_some(Likely {
                factor: if in_place.is_some() { 1.0 } else { run.traps.likely.factor },
                ..run.traps.likely
            }),
            traps,
            warm: (price.ns / (price.ns + cost.cold.ns).max(1e-9)).min(1.0),
            most_s: least_gap_ns(windows, factor.0, run) * 1e-9 * f64::from(run.threads.max(1)),
            threads: f64::from(run.threads.max(1)),
        }
    }

    /// Value, smallest and largest price of a hit of a window, s.
    pub(super) fn of_window(&self, w: &WindowRow) -> (f64, f64, f64) {
        /// Own time between two hits up to which the function runs in a loop, s.
        const LOOP_S: f64 = 2e-6;
        let charged_s = w.tau_ns.max(0.0) * 1e-9;
        // That of a traced class is at least the price of a tight loop. That of a burst is the price of a tight loop.
        let warm = if w.kind == WindowKind::Trace { self.warm } else { 1.0 };
        let (value, low, high) = self.factor;
        let (value_s, low_s, high_s) = (charged_s * value, charged_s * low, charged_s * high);
        let elapsed_s = w.end_ns.saturating_sub(w.start_ns) as f64 * 1e-9;
        let gap_s = elapsed_s * self.threads / w.kept.max(1) as f64 - charged_s;
        // What its pair measured runs in the same loop. What its hits leave behind no pair sees: in an interpreter a function's own 130 ns took 300 more
        // (log.md, M53), however little time lies between two hits.
        let is_loop = self.in_place && gap_s < LOOP_S;
        let behind_gap_s = if is_loop { f64::INFINITY } else { gap_s };
        let cold_s = match w.kind {
            WindowKind::Trace => 0.0,
            _ => cost::cold_ns(self.cold, behind_gap_s) * 1e-9,
        };
        let (low_s, high_s) = (low_s.min(self.most_s * low / value) * warm, high_s + cold_s);
        let likely_s = self.likely_s(value_s, gap_s, is_loop || w.kind == WindowKind::Trace);
        // Where samples say that traps are dearer than the host's price can be, they are known no better than it.
        let dear_s = if likely_s > high_s { likely_s * (1.0 + PRICE_DRIFT) } else { high_s };
        (likely_s, low_s.min(likely_s), dear_s)
    }

    /// The likely price of a hit that is charged `charged_s`, s.
    fn likely_s(&self, charged_s: f64, gap_s: f64, is_warm: bool) -> f64 {
        /// Of the time from hit to hit something is the target's own.
        const MOST_PART: f64 = 0.9;
        let Some(likely) = self.likely else { return charged_s };
        let traps = if is_warm { 0.0 } else { self.traps };
        likely.cost_s(charged_s, traps, gap_s).min((MOST_PART * self.most_s).max(charged_s))
    }
}
