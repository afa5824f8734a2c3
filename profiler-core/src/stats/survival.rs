//! Durations of calls of which some were cut off: the product-limit estimator (Kaplan and Meier 1958).
//!
//! A window that keeps only complete calls shows a function of 50 ms as one of 14 ms, because the long calls are those
//! that do not end in time. A call that was cut off says at least that it took longer than it had when it was; the
//! estimator uses just that. It needs that what cut a call off does not depend on how long the call would have taken,
//! which holds for the end of a window.
//!
//! Complete calls come in histogram buckets, cut-off ones with their elapsed time. Within a bucket the calls are taken to
//! be spread evenly, and a call that was cut off within it counts as exposed for the part that it had passed (the
//! actuarial method, Cutler and Ederer 1958, with the true part in place of one half). Where an end and a cut fall on the
//! same value, the end comes first.
//!
//! What it does not do: where the longest time seen is that of a call that was cut off, or so few calls were watched for
//! so long that they would stand for many (`THIN_CALLS`), nothing is known beyond it. The
//! mean is then *at least* the restricted one, and upper quantiles are [`Quantile::Above`] that time.

use super::quantile::{self, Bucket};
use super::{Interval, t_quantile, z_quantile};
use crate::class::Source;
use crate::estimate::Estimate;

/// The tail is not believed from where fewer calls than this are left, and these
const THIN_CALLS: f64 = 10.0;
/// are a smaller part than this of the calls for which they stand: in windows of 50 ms the one call that happens to end at 49.9 ms would
/// stand for all that take longer, and the curve would seem to reach 0.
const THIN_PART: f64 = 0.25;

/// How sure the calls are of what they say: bursts are the sampling unit, and the calls of one may be alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Variance of the mean over what it were if the calls were independent; below 1 is taken as 1.
    pub design_effect: f64,
    /// Degrees of freedom of that factor; infinite if it is known.
    pub df: f64,
}

impl Spread {
    /// Calls that are independent of one another.
    pub const INDEPENDENT: Self = Self { design_effect: 1.0, df: f64::INFINITY };

    pub(super) fn factor(self) -> f64 {
        if self.design_effect.is_finite() { self.design_effect.max(1.0) } else { 1.0 }
    }
}

/// A quantile, or what is known of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantile {
    /// Estimated; the upper end may be infinite.
    Known(Estimate),
    /// Not estimable: it lies above this ([`Survival::longest`]).
    Above(f64),
}

/// A mean duration, or what is known of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean; if `at_least`, restricted to [`Survival::longest`], with an infinite upper end.
    pub estimate: Estimate,
    /// Not all calls end within [`Survival::longest`]: the mean lies above the restricted one.
    pub at_least: bool,
}

/// One bucket in which calls ended.
#[derive(Debug, Clone, Copy)]
struct Step {
    low: f64,
    high: f64,
    /// Mean duration of the calls in it.
    middle: f64,
    count: f64,
    /// Calls that could have ended in it.
    at_risk: f64,
    /// Share of the calls that take longer than `low`, and than `high`.
    before: f64,
    after: f64,
    /// Greenwood's sum up to `high`: `sum d / (n (n - d))`; infinite when nothing is left.
    greenwood: f64,
}

/// The estimated distribution of durations, in the unit of the values given.
#[derive(Debug, Clone)]
pub struct Survival {
    steps: Vec<Step>,
    /// Complete calls, in order; what the plain quantile takes.
    complete: Vec<Bucket>,
    /// Calls that ended.
    ended: u64,
    /// Calls that were cut off.
    cut: u64,
    longest: f64,
    /// Not all calls end within `longest`.
    open_ended: bool,
}

impl Survival {
    /// From complete calls in buckets and the elapsed times of calls that were cut off (values that are no number, or
    /// not above 0, say nothing and are left out). `None` without any call.
    ///
    /// `sum` is the exact sum of the complete calls' durations, if it is known: the buckets' means are then scaled to it.
    ///
    /// ```text
    /// S(t) = prod over buckets up to t of (1 - d_i / n_i)
    /// ```
    ///
    /// # Cost
    /// O((b + c) log(b + c)) for b buckets and c calls cut off.
    #[must_use]
    pub fn new(complete: &[Bucket], sum: Option<f64>, censored: &[f64]) -> Option<Self> {
        let mut sorted: Vec<Bucket> = complete
            .iter()
            .copied()
            .filter(|b| b.count > 0 && b.low.is_finite() && b.high.is_finite())
            .collect();
        sorted.sort_by(|a, b| a.low.total_cmp(&b.low).then(a.high.total_cmp(&b.high)));
        let mut cuts: Vec<f64> = censored.iter().copied().filter(|c| c.is_finite() && *c > 0.0).collect();
        cuts.sort_by(f64::total_cmp);
        let ended: u64 = sorted.iter().map(|b| b.count).sum();
        if ended == 0 && cuts.is_empty() {
            return None;
        }
        let last_end = sorted.iter().map(|b| b.high).fold(0.0, f64::max);
        let last_cut = cuts.last().copied().unwrap_or(0.0);
        let mut open_ended = last_cut > last_end || ended == 0;
        let mut longest = last_end.max(last_cut);
        let scale = middle_scale(&sorted, sum);

        let (mut left, mut alive, mut greenwood) = (ended as f64, 1.0, 0.0);
        let mut steps = Vec::with_capacity(sorted.len());
        for (i, b) in sorted.iter().enumerate() {
            let d = b.count as f64;
            let n = left + exposed(&cuts, b);
            if n < THIN_CALLS && n < THIN_PART * alive * (ended as f64 + cuts.len() as f64) {
                (open_ended, longest) = (true, b.low);
                break;
            }
            let last = i + 1 == sorted.len() && !open_ended;
            let after = if last { 0.0 } else { alive * (1.0 - d / n) };
            greenwood += if after > 0.0 { d / (n * (n - d)) } else { f64::INFINITY };
            let middle = ((b.low + b.high) / 2.0 * scale).clamp(b.low, b.high);
            let (low, high) = (b.low, b.high);
            steps.push(Step { low, high, middle, count: d, at_risk: n, before: alive, after, greenwood });
            (left, alive) = (left - d, after);
        }
        Some(Self { steps, complete: sorted, ended, cut: cuts.len() as u64, longest, open_ended })
    }

    /// Longest time up to which the distribution is known.
    #[must_use]
    pub fn longest(&self) -> f64 {
        self.longest
    }

    /// Calls that were cut off.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Share of the calls that take longer than `t`.
    #[must_use]
    pub fn at(&self, t: f64) -> f64 {
        let mut alive = 1.0;
        for s in &self.steps {
            if t < s.low {
                break;
            }
            let within = if s.high > s.low { ((t - s.low) / (s.high - s.low)).min(1.0) } else { 1.0 };
            alive = s.before + within * (s.after - s.before);
        }
        alive
    }

    /// The mean, or the mean of `min(duration, longest)` where some calls outlast all that was seen.
    ///
    /// ```text
    /// mean = integral of S from 0 to the longest time
    /// Var  = m/(m-1) sum_i A_i^2 d_i / (n_i (n_i - d_i)),   A_i = integral of S from t_i on
    /// ```
    /// (Kaplan and Meier 1958, §2.3 and §6.2; m calls ended. Without cuts it is the mean and s^2/m.) To the interval is
    /// added what the buckets leave open: `sum |mass_i - d_i/m| x half of the bucket`. Where at most one call ended the
    /// lower end is 0.
    #[must_use]
    pub fn mean(&self, level: f64, spread: Spread) -> Mean {
        let rest = self.steps.last().map_or(1.0, |s| s.after);
        let value =
            self.steps.iter().map(|s| (s.before - s.after) * s.middle).sum::<f64>() + rest * self.longest;
        let m = self.ended as f64;
        // A_i from the last bucket backwards: A_{i-1} = A_i + S_{i-1} (t_i - t_{i-1}).
        let (mut area, mut variance) = (0.0, 0.0);
        let mut next = self.longest;
        let mut unplaced = 0.0;
        for s in self.steps.iter().rev() {
            area += s.after * (next - s.middle);
            next = s.middle;
            if s.after > 0.0 {
                variance += area * area * s.count / (s.at_risk * (s.at_risk - s.count));
            }
            unplaced += ((s.before - s.after) - s.count / m).abs() * (s.high - s.low) / 2.0;
        }
        let small = if self.ended > 1 { m / (m - 1.0) } else { 1.0 };
        // A single call may be anything up to twice what it was; so may calls of which none ended.
        let error = if self.ended > 1 && !self.steps.is_empty() {
            t_quantile(level, spread.df.min(m - 1.0)) * (small * variance * spread.factor()).sqrt()
        } else {
            value
        };
        let half = error.hypot(unplaced);
        let high = if self.open_ended { f64::INFINITY } else { value + half };
        let n = self.ended + self.cut;
        let low = (value - half).max(0.0);
        Mean {
            estimate: Estimate { value, low, high, level, n, source: Source::Burst, at_most: false },
            at_least: self.open_ended,
        }
    }

    /// The `p` quantile; `None` if p is not between 0 and 1.
    ///
    /// The interval holds those t at which the interval of S(t) on the scale of log(-log S) holds 1 - p (Brookmeyer and
    /// Crowley 1982; Kalbfleisch and Prentice 1980, §1.3), with Greenwood's variance, widened to the outer ends of the
    /// buckets:
    /// ```text
    /// S^exp(-+ z sqrt(G) / |ln S|),   G = sum d / (n (n - d))
    /// ```
    /// Where S is 1 or 0 it says nothing; there the exact limits of none of n hold. Without cuts it is
    /// [`quantile::quantile`].
    #[must_use]
    pub fn quantile(&self, p: f64, level: f64, spread: Spread) -> Option<Quantile> {
        if !(0.0..=1.0).contains(&p) {
            return None;
        }
        if self.cut == 0 {
            return quantile::clustered(&self.complete, p, level, 0.0, spread.factor()).map(Quantile::Known);
        }
        let Some(at) = self.steps.iter().find(|s| s.after <= 1.0 - p) else {
            return Some(Quantile::Above(self.longest));
        };
        let drop = at.before - at.after;
        let within = if drop > 0.0 { ((at.before - (1.0 - p)) / drop).clamp(0.0, 1.0) } else { 1.0 };
        let value = at.low + within * (at.high - at.low);
        let interval = self.quantile_limits(p, level, spread);
        Some(Quantile::Known(Estimate {
            value,
            low: interval.low.min(value),
            high: interval.high.max(value),
            level,
            n: self.ended + self.cut,
            source: Source::Burst,
            at_most: false,
        }))
    }

    fn quantile_limits(&self, p: f64, level: f64, spread: Spread) -> Interval {
        let alpha = (1.0 - level) / 2.0;
        let z = z_quantile(level);
        let band = |s: &Step| {
            let n = s.at_risk / spread.factor();
            if s.after <= 0.0 {
                return Interval { low: 0.0, high: 1.0 - alpha.powf(1.0 / n) };
            }
            let width = z * (s.greenwood * spread.factor()).sqrt() / s.after.ln().abs();
            // S < 1, so the larger power is the smaller share.
            Interval { low: s.after.powf(width.exp()), high: s.after.powf((-width).exp()) }
        };
        let least = self.steps.first().map_or(0.0, |s| alpha.powf(spread.factor() / s.at_risk));
        let low = if least <= 1.0 - p {
            0.0
        } else {
            self.steps.iter().find(|s| band(s).low <= 1.0 - p).map_or(self.longest, |s| s.low)
        };
        let high = self.steps.iter().find(|s| band(s).high <= 1.0 - p).map_or(f64::INFINITY, |s| s.high);
        Interval { low, high }
    }
}

/// By what the middles of the buckets are to be multiplied so that the complete calls add up to `sum`.
fn middle_scale(buckets: &[Bucket], sum: Option<f64>) -> f64 {
    let middles: f64 = buckets.iter().map(|b| (b.low + b.high) / 2.0 * b.count as f64).sum();
    match sum {
        Some(sum) if sum.is_finite() && sum > 0.0 && middles > 0.0 => sum / middles,
        _ => 1.0,
    }
}

/// Calls cut off later than the bucket, and of those cut off within it the part that they had passed. `cuts` ascend.
fn exposed(cuts: &[f64], b: &Bucket) -> f64 {
    let from = cuts.partition_point(|c| *c < b.low);
    let to = cuts.partition_point(|c| *c < b.high).max(from);
    let width = b.high - b.low;
    let within: f64 = cuts[from..to].iter().map(|c| (c - b.low) / width).sum();
    within + (cuts.len() - to) as f64
}

#[cfg(test)]
mod tests;
