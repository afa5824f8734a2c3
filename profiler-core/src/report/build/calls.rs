//! Windows and histograms of one class to calls, rate and durations.

use super::windows::{RunContext, bursts_of, hits_of};
use crate::class::{RecordKind, Source};
use crate::estimate::Estimate;
use crate::recording::{ClassRow, Recording, WindowRow};
use crate::stats::bursts::{self, Burst};
use crate::stats::means::{self, WindowSum};
use crate::stats::moments::Moments;
use crate::stats::quantile::{Bucket, clustered};
use crate::stats::survival::{Quantile, Spread, Survival};
use crate::stats::{Interval, LEVEL, correct};

/// Quantiles that the report shows.
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

/// A pause between two windows of a traced class up to this is a change of links, not a gap, ns.
const SEAM_NS: u64 = 1_000_000;

/// What was not attached at the ends of the run and still leaves the counts *exact over the attached time*: the
/// time that attaching and detaching take, ns, or one hundredth of the run.
const ENDS_NS: u64 = 100_000_000;

/// Said of a rate that has no upper end.
const HIDDEN_RATE: &str = "called so often, or watched only beside functions that are, that what hits cost, which is known to about a \
                           quarter, hides the time between two calls: the rate is at least the one shown";

/// What the windows of a class say.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub calls: Option<Estimate>,
    pub rate_hz: Option<Estimate>,
    pub mean_ns: Option<Estimate>,
    pub correction_ns: f64,
    pub quantiles_ns: Vec<(f64, Estimate)>,
    pub attached: f64,
    pub dropped: u64,
    pub attempted: u64,
    pub notes: Vec<String>,
}

impl Calls {
    /// `windows` in order of time.
    pub(super) fn of(
        class: &ClassRow,
        windows: &[&WindowRow],
        recording: &Recording,
        run: &RunContext,
    ) -> Self {
        if windows.is_empty() {
            return Self::default();
        }
        let cover = Cover::of(windows, run);
        let mut out = Self {
            attached: cover.share,
            dropped: windows.iter().map(|w| w.dropped).sum(),
            attempted: windows.iter().map(|w| w.attempted).sum(),
            ..Self::default()
        };
        let every_hit: Vec<WindowRow>;
        let every_hit_of: Vec<&WindowRow>;
        let inside = recording.meta.operations.iter().any(|o| o.inner_classes.contains(&class.class_id));
        let all = windows;
        let windows = if inside {
            out.notes.push("durations are of calls inside recorded operations only".to_owned());
            every_hit = windows.iter().map(|w| with_calls_outside(w)).collect();
            every_hit_of = every_hit.iter().collect();
            &every_hit_of
        } else {
            windows
        };
        let counted: u64 = windows.iter().map(|w| hits_of(w)).sum();
        let bursts = bursts_of(class, windows, recording, run);
        let rate = |unseen| bursts::rate_or_bound(&bursts, LEVEL, run.drift.as_ref(), unseen);
        if cover.whole {
            out.calls = Some(with_losses(Estimate::exact(counted as f64, counted), out.dropped));
            out.rate_hz = exact_rate(&bursts, counted);
            if cover.share < 0.9999 {
                out.notes.push(format!(
                    "exact over the {:.1} % of the run that it was attached",
                    cover.share * 100.0
                ));
            }
        } else {
            out.rate_hz = rate(1.0 - cover.share.min(1.0));
            out.calls = rate(1.0).map(|r| {
                with_losses(bursts::run_total(counted, cover.length_s, run.length_s, &r), out.dropped)
            });
        }
        if out.rate_hz.is_some_and(|r| r.high.is_infinite()) {
            out.notes.push(HIDDEN_RATE.to_owned());
        }
        if out.dropped > 0 {
            let mut note = format!("{} of {} hits lost", out.dropped, out.attempted);
            // Which class lost how many of its hits so is not counted.
            if recording.meta.losses.no_thread_state > 0 && class.kind != RecordKind::Count {
                note.push_str(", also for want of kernel memory for the state of their threads");
            }
            out.notes.push(note);
        }
        out.durations(class, all, recording, (&cover, inside));
        out
    }

    /// `inside`: only calls inside recorded operations were timed.
    fn durations(
        &mut self,
        class: &ClassRow,
        windows: &[&WindowRow],
        recording: &Recording,
        (cover, inside): (&Cover, bool),
    ) {
        let sum = |f: fn(&WindowRow) -> u64| windows.iter().map(|w| f(w)).sum::<u64>();
        let returns = sum(|w| w.returns);
        let price = recording.meta.cost.hit_price(class.site_class, class.kind);
        let (total, nested) = (sum(|w| w.sum_ns) as f64, sum(|w| w.nested_cost_ns) as f64);
        let cuts = cut_off(class.class_id, recording);
        // A function that bounds operations is timed by them: see their table.
        if total == 0.0 && cuts.is_empty() {
            return;
        }
        let corrected = correct::nested_cost(total, nested, returns, price.uncertainty());
        if corrected.is_none() && cuts.is_empty() {
            return;
        }
        let buckets = buckets(class.class_id, recording);
        // Calls whose duration is unknown, and of which not even a part was seen: nothing says that they are like the
        // others.
        let turned_away =
            if inside { sum(|w| w.gated) } else { sum(|w| if w.tripped { w.gated } else { 0 }) };
        let open = sum(|w| w.open).saturating_sub(cuts.len() as u64);
        let missing = sum(|w| w.dropped) + sum(|w| w.unwound) + sum(|w| w.omitted) + open + turned_away;
        let known = returns + cuts.len() as u64;
        let lost = missing as f64 / (known + missing) as f64;
        let every_call = cover.whole && missing == 0 && cuts.is_empty();

        let sums: Vec<WindowSum> =
            windows.iter().map(|w| WindowSum { n: w.returns, sum: w.sum_ns as f64 }).collect();
        let within = variance(&buckets);
        let spread = means::spread(&sums, within);
        let factor = match corrected {
            Some(c) if c.raw_ns > 0.0 => c.mean_ns / c.raw_ns,
            _ => 1.0,
        };
        // Only the calls outside the windows, and those cut off, are guessed: the part `1 - d` of a finite run.
        let seen = cover.share.clamp(0.0, 1.0) * returns as f64 / known.max(1) as f64;
        let unseen = (1.0 - seen).sqrt();
        let source = source_of(every_call);
        let survival = if cuts.is_empty() { None } else { Survival::new(&buckets, Some(total), &cuts) };
        let mean = match (&survival, corrected) {
            (Some(survival), _) => {
                let mean = survival.mean(LEVEL, spread);
                self.note_cut_off(survival, mean.at_least, factor);
                let uncertainty_ns = corrected.map_or(0.0, |c| c.uncertainty_ns);
                rescaled(mean.estimate, factor, unseen, uncertainty_ns)
            }
            (None, Some(c)) => {
                let error = if every_call { 0.0 } else { unseen * means::half_width(&sums, within, LEVEL) };
                let half = error.hypot(c.uncertainty_ns);
                let exact = Estimate { source, ..Estimate::exact(c.mean_ns, returns) };
                if half > 0.0 { around(exact, half) } else { exact }
            }
            (None, None) => return,
        };
        let least = buckets.iter().map(|b| b.low).fold(f64::INFINITY, f64::min);
        let most = windows.iter().map(|w| w.max_ns).max().unwrap_or(0) as f64;
        let range = Interval {
            low: if least.is_finite() { least * factor } else { 0.0 },
            high: (most * factor).max(mean.value),
        };
        self.mean_ns = Some(correct::widen_mean_for_loss(mean, lost, range));
        self.correction_ns = corrected.map_or(0.0, |c| c.correction_ns);

        let durations = Durations { buckets, survival, spread, lost, factor, every_call };
        let quantiles = QUANTILES.into_iter().filter_map(|p| Some((p, durations.quantile(p)?)));
        self.quantiles_ns.extend(quantiles);
    }

    /// Says what the calls that had not ended leave unknown.
    fn note_cut_off(&mut self, survival: &Survival, at_least: bool, factor: f64) {
        let cut = survival.cut();
        if !at_least {
            self.notes.push(format!(
                "{cut} calls had not ended when watching them ended; they count as longer than that (Kaplan-Meier)"
            ));
            return;
        }
        let (longest, unit) = readable(survival.longest() * factor);
        self.notes.push(format!(
            "durations are not estimable above {longest:.3} {unit}: {cut} calls had not ended when watching them ended; \
             the mean is at least the one shown"
        ));
    }
}

/// Which durations the calls of a class had.
struct Durations {
    buckets: Vec<Bucket>,
    /// Where calls were cut off.
    survival: Option<Survival>,
    spread: Spread,
    /// Share of the calls whose duration is unknown.
    lost: f64,
    /// Corrected duration / seen one.
    factor: f64,
    /// Every call of the run was seen from its begin to its end.
    every_call: bool,
}

impl Durations {
    /// The quantile `p`, ns.
    fn quantile(&self, p: f64) -> Option<Estimate> {
        let Self { buckets, survival, spread, lost, factor, every_call } = self;
        // Of a run that was seen whole only the bucket's width is unknown: no sampling error.
        let level = if *every_call { 0.0 } else { LEVEL };
        let found = match survival {
            Some(survival) => known_quantile(survival, p, *lost, *spread),
            None => {
                let alike = if *every_call { 1.0 } else { spread.design_effect };
                clustered(buckets, p, level, *lost, alike)
            }
        };
        found.map(|q| Estimate {
            value: q.value * factor,
            low: q.low * factor,
            high: q.high * factor,
            level: if *every_call { 1.0 } else { LEVEL },
            n: q.n,
            source: source_of(*every_call),
        })
    }
}

fn source_of(every_call: bool) -> Source {
    if every_call { Source::Exact } else { Source::Burst }
}

/// A mean of seen durations times `factor`. Only the part `unseen` of its error counts, and the correction's `uncertainty_ns`.
fn rescaled(e: Estimate, factor: f64, unseen: f64, uncertainty_ns: f64) -> Estimate {
    Estimate {
        value: e.value * factor,
        low: (e.value * factor - (unseen * (e.value - e.low) * factor).hypot(uncertainty_ns)).max(0.0),
        high: e.value * factor + (unseen * (e.high - e.value) * factor).hypot(uncertainty_ns),
        ..e
    }
}

/// The estimate with an interval of `half` to either side, ns, but for what lies below 0.
fn around(e: Estimate, half: f64) -> Estimate {
    Estimate { low: (e.value - half).max(0.0), high: e.value + half, level: LEVEL, ..e }
}

/// The quantile where the calls that were cut off allow one; a share `lost` of the calls can lie anywhere.
fn known_quantile(survival: &Survival, p: f64, lost: f64, spread: Spread) -> Option<Estimate> {
    let at = |p: f64| match survival.quantile(p.clamp(0.0, 1.0), LEVEL, spread) {
        Some(Quantile::Known(e)) => Some(e),
        _ => None,
    };
    let middle = at(p)?;
    if lost <= 0.0 {
        return Some(middle);
    }
    let rest = (1.0 - lost).max(0.001);
    let low = if p > lost { at((p - lost) / rest).map_or(middle.low, |e| e.low) } else { 0.0 };
    let high = if p < rest { at(p / rest).map_or(f64::INFINITY, |e| e.high) } else { f64::INFINITY };
    Some(Estimate { low: low.min(middle.low), high: high.max(middle.high), ..middle })
}

/// Elapsed times of the calls of a class that had not ended, ns.
fn cut_off(class_id: u32, recording: &Recording) -> Vec<f64> {
    let of_class = recording.open_calls.iter().filter(|c| c.class_id == class_id && c.elapsed_ns > 0);
    of_class.map(|c| c.elapsed_ns as f64).collect()
}

fn readable(ns: f64) -> (f64, &'static str) {
    match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    }
}

/// Which part of the run the windows cover.
struct Cover {
    length_s: f64,
    share: f64,
    /// Every call between the first attach and the last detach was seen, and these are the ends of the run.
    whole: bool,
}

impl Cover {
    fn of(windows: &[&WindowRow], run: &RunContext) -> Self {
        let (mut covered, mut gap, mut reached) = (0_u64, 0_u64, None::<u64>);
        for w in windows {
            let start = w.start_ns.clamp(run.start_ns, run.end_ns);
            let end = w.end_ns.clamp(start, run.end_ns);
            let from = reached.map_or(start, |r| {
                gap = gap.max(start.saturating_sub(r));
                start.max(r)
            });
            covered += end.saturating_sub(from);
            reached = Some(reached.map_or(end, |r| r.max(end)));
        }
        let length = run.end_ns - run.start_ns;
        let ends = length.saturating_sub(covered);
        Self {
            length_s: covered as f64 * 1e-9,
            share: if length > 0 { covered as f64 / length as f64 } else { 0.0 },
            whole: gap <= SEAM_NS && length > 0 && ends <= ENDS_NS.min(length / 20).max(length / 100),
        }
    }
}

/// Of a function inside operations: every hit is a call, also those outside recorded operations, which are gated.
fn with_calls_outside(w: &WindowRow) -> WindowRow {
    WindowRow { kept: w.kept.saturating_add(w.gated), gated: 0, ..w.clone() }
}

/// Lost hits were seen to happen but not by our program: they may be fewer calls of this class.
fn with_losses(calls: Estimate, dropped: u64) -> Estimate {
    if dropped == 0 {
        return calls;
    }
    Estimate {
        low: (calls.low - dropped as f64).max(0.0),
        level: calls.level.min(LEVEL),
        source: if calls.source == Source::Exact { Source::Burst } else { calls.source },
        ..calls
    }
}

/// The rate of a run that was seen whole: no sampling error, only the price's, through the dilation.
fn exact_rate(bursts: &[Burst], counted: u64) -> Option<Estimate> {
    let per = |f: fn(&Burst) -> f64| counted as f64 / bursts.iter().map(f).sum::<f64>();
    let (value, low, high) = (per(|b| b.time_s), per(|b| b.time_high_s), per(|b| b.time_low_s));
    if !value.is_finite() {
        return None;
    }
    if low == high {
        return Some(Estimate::exact(value, counted));
    }
    let (value, high) = if high > bursts::HIDDEN * low { (low, f64::INFINITY) } else { (value, high) };
    Some(Estimate { value, low, high, level: LEVEL, n: counted, source: Source::Derived })
}

/// Durations of a class: the kernel's histogram, or the recorded calls where there is none.
fn buckets(class_id: u32, recording: &Recording) -> Vec<Bucket> {
    let histogram: Vec<Bucket> = recording
        .histograms
        .iter()
        .filter(|h| h.class_id == class_id)
        .map(|h| Bucket { low: h.low_ns as f64, high: h.high_ns as f64, count: h.count })
        .collect();
    if !histogram.is_empty() {
        return histogram;
    }
    let durations = recording.events.iter().filter(|e| e.class_id == class_id).filter_map(|e| e.duration_ns);
    durations.map(|d| Bucket { low: d as f64, high: d as f64 + 1.0, count: 1 }).collect()
}

/// Variance of the durations, ns^2, from the middles of the buckets; `None` below two calls.
fn variance(buckets: &[Bucket]) -> Option<f64> {
    let mut calls = Moments::default();
    for b in buckets {
        let middle = (b.low + b.high) / 2.0;
        let c = b.count as f64;
        calls.merge(&Moments::from_sums(b.count, c * middle, c * middle * middle));
    }
    calls.variance()
}
