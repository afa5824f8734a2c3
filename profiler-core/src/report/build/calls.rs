//! Windows and histograms of one class to calls, rate and durations.

use super::durations::{Durations, Watched};
use super::windows::{RunContext, bursts_of, hits_of};
use crate::class::{RecordKind, Source};
use crate::estimate::Estimate;
use crate::recording::{ClassRow, Recording, WindowRow};
use crate::report::precision::Precision;
use crate::stats::added::Ranged;
use crate::stats::bursts::{self, Burst, Of};
use crate::stats::{Interval, LEVEL};

/// A pause between two windows of a traced class up to this is a change of links, not a gap, ns.
const SEAM_NS: u64 = 1_000_000;

/// What was not attached at the ends of the run and still leaves the counts *exact over the attached time*: the
/// time that attaching and detaching take, ns, or one hundredth of the run.
const ENDS_NS: u64 = 100_000_000;

/// Said of a rate that has no upper end.
const HIDDEN_RATE: &str =
    "what hits cost hides the time between two calls: the rate is at least the one shown (≥)";

/// What the windows of a class say.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub calls: Option<Estimate>,
    /// Per second that monitoring left the target.
    pub rate_hz: Option<Estimate>,
    /// Per second of the run as it was, like CPU time that samples show.
    pub per_s: Option<Estimate>,
    /// Part of the half-width of `rate_hz`, over the value, that more windows do not mend: the price of a hit, and whether the target could have rested less.
    pub price_half: f64,
    pub mean_ns: Option<Estimate>,
    pub correction_ns: f64,
    pub quantiles_ns: Vec<(f64, Estimate)>,
    pub precision: Option<Precision>,
    pub counted: Option<u64>,
    pub watched_share: f64,
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
            watched_share: cover.share,
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
        out.counted = Some(windows.iter().map(|w| w.kept).sum());
        let counted: u64 = windows.iter().map(|w| hits_of(w)).sum();
        let bursts = bursts_of(class, windows, recording, run);
        let rate = |of| bursts.rate(run.drift.as_ref(), of);
        if cover.whole {
            out.calls = Some(with_losses(Estimate::exact(counted as f64, counted), out.dropped));
            out.rate_hz = exact_rate(&bursts.by_wall, counted);
            out.per_s = out.calls.map(|calls| calls.divided_by(cover.length_s));
            // Every call was seen: what is unknown is the price.
            out.price_half = out.rate_hz.map_or(0.0, |rate| half_of(&rate));
            if cover.share < 0.9999 {
                out.notes.push(format!(
                    "exact over the {:.1} % of the run that it was attached",
                    cover.share * 100.0
                ));
            }
        } else {
            let unseen = 1.0 - cover.share.min(1.0);
            out.rate_hz = rate(Of::Run { unseen });
            // As if all of the run had been watched; of a reference's rate that is known already.
            let of_all = rate(Of::Run { unseen: 0.0 }).map_or(0.0, |rate| half_of(&rate));
            out.price_half = bursts.beside.map_or(of_all, |beside| beside.price_half);
            let lost = run.lost_beside(windows, cover.length_s);
            out.calls = rate(Of::Rest { unseen })
                .map(|r| with_losses(total(counted, cover.length_s, run.length_s, &lost, &r), out.dropped));
            out.per_s = out.calls.map(|calls| calls.divided_by(run.length_s));
            out.notes.extend(not_watched(windows, run));
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
        let watched = Watched { share: cover.share, whole: cover.whole, inside, beside: run.beside_probes() };
        let durations = Durations::of(class, all, recording, watched);
        out.notes.extend(durations.notes);
        Self {
            mean_ns: durations.mean_ns,
            correction_ns: durations.correction_ns,
            quantiles_ns: durations.quantiles_ns,
            precision: durations.precision,
            ..out
        }
    }
}

/// Half of a rate's interval over its value; 0 where it has none.
fn half_of(rate: &Estimate) -> f64 {
    let known = rate.value > 0.0 && rate.high.is_finite();
    if known { (rate.high - rate.low) / 2.0 / rate.value } else { 0.0 }
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

/// Of a long time at the begin or the end of the run nothing was seen, and what is told of it is an assumption.
fn not_watched(windows: &[&WindowRow], run: &RunContext) -> Option<String> {
    /// Part of the run from which on it is said: the survey's first looks come sooner.
    const LONG: f64 = 0.2;
    let begin_ns = windows.iter().map(|w| w.start_ns).min()?.saturating_sub(run.start_ns);
    let end_ns = run.end_ns.saturating_sub(windows.iter().map(|w| w.end_ns).max()?);
    let told = |ns: u64, which: &str| {
        let seconds = ns as f64 * 1e-9;
        (seconds > LONG * run.length_s).then(|| format!("the {which} {seconds:.1} s"))
    };
    let stretches: Vec<String> =
        [told(begin_ns, "first"), told(end_ns, "last")].into_iter().flatten().collect();
    (!stretches.is_empty()).then(|| {
        format!(
            "not watched in {}: taken to be called as often then as in the windows next to it",
            stretches.join(" and ")
        )
    })
}

/// Of a function inside operations: every hit is a call, also those outside recorded operations, which are gated.
fn with_calls_outside(w: &WindowRow) -> WindowRow {
    WindowRow { kept: w.kept.saturating_add(w.gated), gated: 0, ..w.clone() }
}

/// Calls of the whole run: what was counted, and the rate of undisturbed time over what monitoring left of the rest (`lost`, s).
fn total(counted: u64, covered_s: f64, run_s: f64, lost: &Ranged, rate: &Estimate) -> Estimate {
    let calls = bursts::run_total(counted, covered_s, run_s - lost.value, rate);
    let Interval { low, high } = lost.interval;
    Estimate {
        low: (calls.low - rate.low * (high - lost.value)).max(counted as f64),
        high: if calls.high.is_finite() { calls.high + rate.high * (lost.value - low) } else { calls.high },
        ..calls
    }
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
    Some(Estimate { value, low, high, level: LEVEL, n: counted, source: Source::Derived, at_most: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of 10 s was watched; in the other half watching took 0.2 s from the calls, or up to 0.25, or none where the target gave rest for it.
    #[test]
    fn what_monitoring_took_beside_the_windows_is_no_time_for_calls() {
        let exact = Estimate::exact(200.0, 1_000);
        let lost = Ranged::between(0.0, 0.2, 0.25);
        let calls = total(1_000, 5.0, 10.0, &lost, &exact);
        assert!((calls.value - 1_960.0).abs() < 1e-9, "{calls:?}");
        assert!((calls.low - 1_950.0).abs() < 1e-9 && (calls.high - 2_000.0).abs() < 1e-9, "{calls:?}");
        let limit = Estimate { high: f64::INFINITY, ..exact };
        let calls = total(1_000, 5.0, 10.0, &lost, &limit);
        assert!(calls.high.is_infinite() && (calls.low - 1_950.0).abs() < 1e-9, "{calls:?}");
        assert_eq!(total(1_000, 5.0, 10.0, &Ranged::exact(0.0), &exact).value, 2_000.0);
    }
}
