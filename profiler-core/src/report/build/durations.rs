//! Durations of the calls of one class: mean, quantiles and the largest, without what timing them cost.
//!
//! Two things are taken out of a measured duration. *Its own probes*: what lies between its two time stamps (`build/stamps.rs`). *Nested
//! probes*: hits inside the call, as the kernel added them up; of recorded calls each has its own sum, of a histogram only the sum of
//! all calls is known. What both are known to is in every interval, and what lies below its own uncertainty is a limit
//! ([`Estimate::at_most`]).

use super::stamps::Own;
use crate::class::{RecordKind, Source};
use crate::cost::Price;
use crate::estimate::Estimate;
use crate::recording::{Binned, ClassRow, Recording, WindowRow, without_nested_ns};
use crate::report::precision::{Known, Precision};
use crate::stats::added::{Ranged, difference};
use crate::stats::means::{self, WindowSum};
use crate::stats::moments::Moments;
use crate::stats::quantile::{Bucket, clustered, quantile};
use crate::stats::survival::{Quantile, Spread, Survival};
use crate::stats::{Interval, LEVEL, correct};

/// Quantiles that the report shows, beside the largest duration seen, which stands for 1.
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

/// Said where a limit is told.
const LIMIT: &str = "calls are shorter than what the cost of timing them is known to: only an upper limit of their time is known (≤)";

/// What the windows of a class say of durations.
#[derive(Debug, Default)]
pub(super) struct Durations {
    pub mean_ns: Option<Estimate>,
    /// Taken out of the mean, ns per call.
    pub correction_ns: f64,
    pub quantiles_ns: Vec<(f64, Estimate)>,
    pub precision: Option<Precision>,
    pub notes: Vec<String>,
}

/// How much of the run the windows of the class show.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    /// Part of the run, 0 to 1.
    pub share: f64,
    /// All of it.
    pub whole: bool,
    /// Only calls inside recorded operations were timed.
    pub inside: bool,
    /// Part by which calls take longer for what monitoring does beside the probes.
    pub beside: Ranged,
}

impl Durations {
    pub(super) fn of(
        class: &ClassRow,
        windows: &[&WindowRow],
        recording: &Recording,
        watched: Watched,
    ) -> Self {
        let cuts = cut_off(class.class_id, recording);
        let sum = |f: fn(&WindowRow) -> u64| windows.iter().map(|w| f(w)).sum::<u64>();
        let returns = sum(|w| w.returns);
        // A function that bounds operations is timed by them: see their table.
        if (sum(|w| w.sum_ns) == 0 || returns == 0) && cuts.is_empty() {
            return Self::default();
        }
        let shape = Shape::of(class, windows, recording);
        // Calls whose duration is unknown, and of which not even a part was seen: nothing says that they are like the
        // others.
        let outside = if watched.inside { sum(|w| w.gated) } else { 0 };
        let open = sum(|w| w.open).saturating_sub(cuts.len() as u64);
        let unwound = sum(|w| w.unwound).saturating_sub(hidden_by_pair(class.class_id, windows, recording));
        let missing = sum(|w| w.dropped) + unwound + sum(|w| w.omitted) + open + outside;
        let known = returns + cuts.len() as u64;
        // What came after a quota was used up is like what came between windows: when it is used up does not hang on how long they took.
        let turned_away = sum(|w| if w.tripped { w.gated } else { 0 });
        let every_call = watched.whole && missing + turned_away == 0 && cuts.is_empty();
        let sums: Vec<WindowSum> =
            windows.iter().map(|w| WindowSum { n: w.returns, sum: w.sum_ns as f64 }).collect();
        let within = variance(&shape.buckets);
        let survival = if cuts.is_empty() {
            None
        } else {
            Survival::new(&shape.buckets, Some(shape.mean_ns * returns as f64), &cuts)
        };
        let calls = Calls {
            spread: means::spread(&sums, within),
            lost: missing as f64 / (known + missing) as f64,
            // Only the calls outside the windows, and those cut off, are guessed: the part `1 - d` of a finite run.
            unseen: (1.0
                - watched.share.clamp(0.0, 1.0) * returns as f64 / (known + turned_away).max(1) as f64)
                .sqrt(),
            half_ns: means::half_width(&sums, within, LEVEL),
            most_ns: shape.most_ns,
            returns,
            longest_cut_ns: cuts.iter().copied().fold(0.0, f64::max),
            every_call,
            beside: watched.beside,
            survival,
            shape,
        };
        let mut out = Self { correction_ns: calls.taken_ns(), ..Self::default() };
        if let Some(survival) = &calls.survival {
            out.note_cut_off(survival, calls.shape.factor());
        }
        out.mean_ns = calls.mean();
        out.quantiles_ns = calls.quantiles();
        out.precision = calls.precision(&out);
        let limits = out.mean_ns.iter().chain(out.quantiles_ns.iter().map(|(_, e)| e));
        if limits.filter(|e| e.at_most).count() > 0 {
            out.notes.push(LIMIT.to_owned());
        }
        out
    }

    /// Says what the calls that had not ended leave unknown.
    fn note_cut_off(&mut self, survival: &Survival, factor: f64) {
        let cut = survival.cut();
        if !survival.mean(LEVEL, Spread::INDEPENDENT).at_least {
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

/// Measured durations, and what is to be taken out of them.
pub(in crate::report) struct Shape {
    /// Durations; those of recorded calls without their nested probes.
    pub buckets: Vec<Bucket>,
    /// Mean, likewise, ns.
    pub mean_ns: f64,
    /// The largest, likewise, ns; 0: there is none.
    most_ns: f64,
    /// What each call's own probes put between its time stamps.
    pub own: Own,
    /// Nested probes, ns per call: what is still in the durations, and between what it lies.
    nested: Ranged,
    /// What was taken out already, ns per call.
    out_ns: f64,
    /// Calls, at least 1.
    n: f64,
}

impl Shape {
    pub(in crate::report) fn of(class: &ClassRow, windows: &[&WindowRow], recording: &Recording) -> Self {
        let sum = |f: fn(&WindowRow) -> u64| windows.iter().map(|w| f(w)).sum::<u64>() as f64;
        let n = sum(|w| w.returns).max(1.0);
        let raw_ns = sum(|w| w.sum_ns) / n;
        // The kernel's sum holds once for each call what was taken for its own part.
        let own_ns = class.stamps_ns.unwrap_or(0.0);
        let nested_ns = (sum(|w| w.nested_cost_ns) / n - own_ns).clamp(0.0, raw_ns);
        let histogram = histogram(class.class_id, recording);
        let raw = if histogram.is_empty() { recorded(class.class_id, recording) } else { histogram };
        let own = Own::of(class, recording, &raw, raw_ns);
        let price = recording.meta.cost.hit_price(class.site_class, class.kind);
        let nested = nested_price(nested_ns, price);
        let each = class.kind == RecordKind::Record && class.stamps_ns.is_some();
        let (without, longest_ns) =
            if each { without_nested(class.class_id, recording, own_ns) } else { (Vec::new(), 0.0) };
        if without.is_empty() {
            let most_ns = windows.iter().map(|w| w.max_ns).max().unwrap_or(0) as f64;
            return Self { buckets: raw, mean_ns: raw_ns, most_ns, own, nested, out_ns: 0.0, n };
        }
        let most_ns = longest_ns;
        // The kernel's sum lacks what words of operations took inside: the agent charged that to the calls.
        let has_words = recording.meta.words.iter().any(|word| word.operation.is_some());
        let part = if has_words { 1.0 - mean(&without) / mean(&raw).max(1.0) } else { 0.0 };
        let nested_ns = nested_ns.max((raw_ns * part).clamp(0.0, raw_ns));
        let nested = nested_price(nested_ns, price);
        let known = Interval { low: nested.interval.low - nested_ns, high: nested.interval.high - nested_ns };
        Self {
            buckets: without,
            mean_ns: raw_ns - nested_ns,
            most_ns,
            own,
            nested: Ranged { value: 0.0, interval: known },
            out_ns: nested_ns,
            n,
        }
    }

    /// All that is taken out of the mean, ns per call.
    pub(in crate::report) fn taken_ns(&self) -> f64 {
        self.out_ns + self.of_mean(self.mean_ns).value.min(self.mean_ns)
    }

    /// All that is taken out of a mean of `seen_ns`, ns per call.
    fn of_mean(&self, seen_ns: f64) -> Ranged {
        let longer = if self.mean_ns > 0.0 { seen_ns / self.mean_ns } else { 1.0 };
        // A host that is slower than thought makes both dearer.
        let probes = self.own.mean().plus(self.nested.scaled(longer));
        // A function that spins meets nothing of what the trap leaves behind, in every call: the end of a range is no chance that seldom comes.
        probes.plus(self.own.left_behind_of(&self.buckets, seen_ns, probes.value))
    }

    /// Corrected duration / seen one, of the mean.
    fn factor(&self) -> f64 {
        if self.mean_ns > 0.0 {
            1.0 - self.of_mean(self.mean_ns).value.min(self.mean_ns) / self.mean_ns
        } else {
            1.0
        }
    }

    /// Nested probes in the call at quantile `p`, which took `seen_ns`, of which its own probes `own_ns`. Only the sum of all calls is known. Longer
    /// calls are taken to hold more of them. But they may lie in any of the calls: in none of those up to this one, or in this one and the longer
    /// ones alone (a fast path without probes, a slow one with many):
    /// ```text
    /// 0 <= nested(p) <= nested / (1 - p), of the longest of n calls n nested, and no more than the call took
    /// ```
    fn nested_in(&self, p: f64, seen_ns: f64, own_ns: f64) -> Ranged {
        let rest = self.mean_ns - self.own.mean().value;
        let left = (seen_ns - own_ns).max(0.0);
        if self.nested.value <= 0.0 || rest <= 0.0 {
            return self.nested;
        }
        let grown = self.nested.scaled((left / rest).min(left / self.nested.value));
        let most = (self.nested.interval.high / (1.0 - p).max(1.0 / self.n)).min(left);
        Ranged::between(0.0, grown.value.min(most), most)
    }

    /// All that is taken out of the quantile `p` of `seen_ns`, ns.
    fn of_quantile(&self, p: f64, seen_ns: f64, median_ns: f64) -> Ranged {
        let own = self.own.quantile(p, seen_ns - median_ns);
        let probes = own.plus(self.nested_in(p, seen_ns, own.value));
        probes.plus(self.own.left_behind(seen_ns - probes.value))
    }

    /// What is taken out of the median call is known to so much, ns: shorter durations cannot be told apart.
    pub(in crate::report) fn known_to_ns(&self) -> f64 {
        let Some(median) = quantile(&self.buckets, 0.5, 0.0, 0.0) else { return 0.0 };
        let Interval { low, high } = self.of_quantile(0.5, median.value, median.value).interval;
        high - low
    }

    /// The typical duration without probes of a call that took `seen_ns`, ns.
    pub(in crate::report) fn corrected_ns(&self, seen_ns: f64) -> f64 {
        (seen_ns - self.of_quantile(0.5, seen_ns, seen_ns).value).max(0.0)
    }
}

/// Calls that count as unwound, and did not unwind: the class's pair of sites for time stamps opened an interval at the same place of the stack. They
/// are watched at once for a moment where one comes as the other goes.
fn hidden_by_pair(class_id: u32, windows: &[&WindowRow], recording: &Recording) -> u64 {
    let Some(pair) = recording.classes.iter().find(|c| c.stamps_of == Some(class_id)) else { return 0 };
    let of_pairs: Vec<&WindowRow> =
        recording.windows.iter().filter(|w| w.class_id == pair.class_id).collect();
    let of_pair = |own: &WindowRow| -> u64 {
        let beside = of_pairs.iter().filter(|w| w.start_ns < own.end_ns && own.start_ns < w.end_ns);
        beside.map(|w| w.returns).sum()
    };
    windows.iter().filter(|w| w.unwound > 0).map(|w| w.unwound.min(of_pair(w))).sum()
}

/// Nested probes at the price that they were charged at, and what that price is known to.
fn nested_price(nested_ns: f64, price: Price) -> Ranged {
    let (low, high) = price.drifted();
    let of = |ns: f64| if price.ns > 0.0 { nested_ns * ns / price.ns } else { nested_ns };
    Ranged::between(of(low), nested_ns, of(high))
}

/// The calls of a class whose durations are known, ready to be estimated from.
struct Calls {
    shape: Shape,
    /// Where calls were cut off.
    survival: Option<Survival>,
    spread: Spread,
    /// Share of the calls whose duration is unknown.
    lost: f64,
    /// Part of the sampling error that counts.
    unseen: f64,
    /// Half-width of the mean's interval were nothing known of the run, ns.
    half_ns: f64,
    most_ns: f64,
    returns: u64,
    longest_cut_ns: f64,
    /// Every call of the run was seen from its begin to its end.
    every_call: bool,
    /// Part by which calls take longer for what monitoring does beside the probes.
    beside: Ranged,
}

impl Calls {
    fn mean(&self) -> Option<Estimate> {
        let shape = &self.shape;
        let seen = match &self.survival {
            Some(survival) => {
                let e = survival.mean(LEVEL, self.spread).estimate;
                let (down, up) = (self.unseen * (e.value - e.low), self.unseen * (e.high - e.value));
                Estimate { low: (e.value - down).max(0.0), high: e.value + up, ..e }
            }
            None => {
                let half = if self.every_call { 0.0 } else { self.unseen * self.half_ns };
                let exact =
                    Estimate { source: self.source(), ..Estimate::exact(shape.mean_ns, self.returns) };
                let ends =
                    Estimate { low: exact.value - half, high: exact.value + half, level: LEVEL, ..exact };
                if half > 0.0 { ends } else { exact }
            }
        };
        let least = shape.buckets.iter().map(|b| b.low).fold(f64::INFINITY, f64::min);
        let range =
            Interval { low: if least.is_finite() { least } else { 0.0 }, high: self.most_ns.max(seen.value) };
        let seen = correct::widen_mean_for_loss(seen, self.lost, range);
        told(seen, self.with_beside(shape.of_mean(seen.value), seen.value))
    }

    fn quantiles(&self) -> Vec<(f64, Estimate)> {
        let Some(median) = self.seen_quantile(0.5) else { return Vec::new() };
        let at = |p: f64| {
            let seen = self.seen_quantile(p)?;
            Some((p, self.told_quantile(p, seen, median.value)?))
        };
        let mut found: Vec<(f64, Estimate)> = QUANTILES.into_iter().filter_map(at).collect();
        // Where a call that was cut off may be the longest, nobody knows the longest.
        if self.most_ns > 0.0 && self.longest_cut_ns <= self.most_ns {
            let seen = Estimate { source: self.source(), ..Estimate::exact(self.most_ns, self.returns) };
            found.extend(self.told_quantile(1.0, seen, median.value).map(|e| (1.0, e)));
        }
        // More of the price is in the upper ones by guess: they are not below the lower ones.
        for i in 1..found.len() {
            let before = found[i - 1].1.value;
            let e = &mut found[i].1;
            e.value = e.value.max(before.min(e.high));
        }
        found
    }

    /// The quantile `p` of durations as they were seen, ns.
    fn seen_quantile(&self, p: f64) -> Option<Estimate> {
        // Of a run that was seen whole only the bucket's width is unknown: no sampling error.
        let level = if self.every_call { 0.0 } else { LEVEL };
        let found = match &self.survival {
            Some(survival) => known_quantile(survival, p, self.lost, self.spread),
            None => {
                let alike = if self.every_call { 1.0 } else { self.spread.design_effect };
                clustered(&self.shape.buckets, p, level, self.lost, alike)
            }
        };
        let level = if self.every_call { 1.0 } else { LEVEL };
        found.map(|q| Estimate { level, source: self.source(), ..q })
    }

    fn told_quantile(&self, p: f64, seen: Estimate, median_ns: f64) -> Option<Estimate> {
        // Short calls seldom meet what comes beside the probes, long ones all do.
        let taken = self.shape.of_quantile(p, seen.value, median_ns);
        told(seen, Ranged { value: taken.value, ..self.with_beside(taken, seen.value) })
    }

    /// All that is taken out of the mean, ns per call.
    fn taken_ns(&self) -> f64 {
        let shape = &self.shape;
        let probes = shape.of_mean(shape.mean_ns);
        shape.out_ns + self.with_beside(probes, shape.mean_ns).value.min(shape.mean_ns)
    }

    /// What is taken out of a duration of `seen_ns`, with what monitoring did beside the probes: `p / (1 + p)` of what is left.
    fn with_beside(&self, taken: Ranged, seen_ns: f64) -> Ranged {
        let left_ns = (seen_ns - taken.value).max(0.0);
        let of = |part: f64| left_ns * part / (1.0 + part);
        let Interval { low, high } = self.beside.interval;
        taken.plus(Ranged::between(of(low), of(self.beside.value), of(high)))
    }

    /// How well median and mean are known. `None` without either.
    fn precision(&self, found: &Durations) -> Option<Precision> {
        let shape = &self.shape;
        let seen_ns = self.seen_quantile(0.5)?.value;
        let half = |taken: Ranged| (taken.interval.high - taken.interval.low) / 2.0;
        let (_, median) = found.quantiles_ns.iter().find(|(p, _)| *p == 0.5)?;
        Some(Precision {
            p50: Known::of(median, half(self.with_beside(shape.of_quantile(0.5, seen_ns, seen_ns), seen_ns))),
            mean: Known::of(
                found.mean_ns.as_ref()?,
                half(self.with_beside(shape.of_mean(shape.mean_ns), shape.mean_ns)),
            ),
        })
    }

    fn source(&self) -> Source {
        if self.every_call { Source::Exact } else { Source::Burst }
    }
}

/// A duration as it was seen, less what is taken out of it; `None` where nothing is known of what is left.
fn told(seen: Estimate, taken: Ranged) -> Option<Estimate> {
    let left = difference(Ranged::between(seen.low, seen.value, seen.high), &[taken]);
    let Interval { low, high } = left.interval;
    let sure = low == high && high > 0.0;
    // More was taken out than there was: at most all that was seen.
    let high = if high > 0.0 { high } else { seen.high };
    // A limit where what was taken out may be all of it. What only few calls leave unknown is no limit: the interval says it.
    let swallowed = seen.value <= taken.interval.high;
    let at_most = (swallowed || left.value <= 0.0) && high.is_finite();
    let value = left.value.max(0.0);
    let level = if sure { seen.level } else { seen.level.min(LEVEL) };
    (value > 0.0 || high.is_finite()).then_some(Estimate {
        value,
        low: low.max(0.0),
        high,
        level,
        at_most,
        ..seen
    })
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

/// Durations of a class from the kernel's histogram.
fn histogram(class_id: u32, recording: &Recording) -> Vec<Bucket> {
    let of_class = recording.histograms.iter().filter(|h| h.class_id == class_id);
    of_class.map(|h| Bucket { low: h.low_ns as f64, high: h.high_ns as f64, count: h.count }).collect()
}

/// Durations of a class from its recorded calls.
fn recorded(class_id: u32, recording: &Recording) -> Vec<Bucket> {
    if recording.events.is_empty() {
        return buckets(&recording.event_durations.raw(class_id));
    }
    let calls = recording.events.iter().filter(|e| e.class_id == class_id);
    calls.filter_map(|e| e.duration_ns).map(|d| one(d as f64)).collect()
}

/// The same, each without its nested probes, and the longest of them, ns. `own_ns`: what was taken for a call's own part. Empty if a call does not say them.
fn without_nested(class_id: u32, recording: &Recording, own_ns: f64) -> (Vec<Bucket>, f64) {
    if recording.events.is_empty() {
        let (binned, most_ns) = recording.event_durations.without_nested(class_id);
        return (buckets(&binned), most_ns);
    }
    let calls = recording.events.iter().filter(|e| e.class_id == class_id);
    let durations = calls.filter_map(|e| e.duration_ns.map(|d| (d, e.nested_cost_ns)));
    let without = durations.map(|(duration, nested)| Some(without_nested_ns(duration, nested?, own_ns)));
    let all: Option<Vec<f64>> = without.collect();
    let all = all.unwrap_or_default();
    let most_ns = all.iter().copied().fold(0.0, f64::max);
    (all.into_iter().map(one).collect(), most_ns)
}

/// A bucket of one call, ns.
fn one(ns: f64) -> Bucket {
    Bucket { low: ns, high: ns + 1.0, count: 1 }
}

fn buckets(binned: &Binned) -> Vec<Bucket> {
    let bucket =
        |(low, high, count): &(u64, u64, u64)| Bucket { low: *low as f64, high: *high as f64, count: *count };
    binned.iter().map(bucket).collect()
}

/// Mean of the durations, ns, from the middles of the whole numbers that lie in the buckets; 0: there are none.
fn mean(buckets: &[Bucket]) -> f64 {
    let calls: u64 = buckets.iter().map(|b| b.count).sum();
    let sum: f64 = buckets.iter().map(|b| (b.low + b.high - 1.0) / 2.0 * b.count as f64).sum();
    sum / calls.max(1) as f64
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
