//! Shares of CPU time from periodic samples, with the two intervals that they have.
//!
//! - *This recording*: what share of the CPU time of this very run was in the class? The sampler looks once per
//!   period of each thread's CPU time, at a jittered instant: a stratified sample with one draw per stratum. Its
//!   variance comes from differences of neighbouring samples of one thread, because slow changes of the load
//!   are *known*, not error.
//! - *Long run*: what share would another run of the same load show? Here the changes are the error: batch
//!   means over time, in which threads sampled at the same instant fall into the same batch (one cluster).
//!
//! Plain Wilson is right for neither: too wide for the first when the load has phases, too narrow for the
//! second.

use super::counts::{jeffreys, wilson};
use super::{Interval, t_quantile, z_quantile};

/// When, on which thread, and for how much CPU time a sample stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplePoint {
    /// Time of the sample, ns.
    pub time_ns: u64,
    /// Thread.
    pub tid: u32,
    /// CPU time that it stands for, ns; samples of weight 0 or less are not counted.
    pub weight: f64,
}

/// A share with both intervals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Weighted share of the samples, 0 to 1.
    pub value: f64,
    /// Samples in the class.
    pub hits: u64,
    /// All samples.
    pub n: u64,
    /// Interval of the share of this run's CPU time.
    pub this_recording: Interval,
    /// Interval of the share that the same load has in the long run.
    pub long_run: Interval,
}

/// Fewer samples than this inside (or outside) a class say too little about their own variance: the binomial
/// one is then taken as the least.
const FEW: f64 = 10.0;

/// The order of all samples in threads and in time: made once, asked for every class.
#[derive(Debug, Clone)]
pub struct SampleDesign {
    level: f64,
    weight: Vec<f64>,
    total: f64,
    /// Effective number of samples of unequal weight (Kish 1965): (sum w)^2 / sum w^2.
    kish: f64,
    /// Sample -> its place in the order of (thread, time).
    place: Vec<u32>,
    /// Place -> sample.
    at: Vec<u32>,
    /// Place -> first place and number of places of its thread.
    thread: Vec<(u32, u32)>,
    /// Sum of squared weights of threads with fewer than three samples, which have no second difference.
    short_w2: f64,
    batch: Vec<u32>,
    batch_weight: Vec<f64>,
    /// Membership by place, cleared after each class.
    inside: Vec<bool>,
}

impl SampleDesign {
    /// Orders the samples. At most 2^32 of them are taken.
    #[must_use]
    pub fn new(points: &[SamplePoint], level: f64) -> Self {
        let points = &points[..points.len().min(u32::MAX as usize)];
        let good = |w: f64| if w.is_finite() && w > 0.0 { w } else { 0.0 };
        let weight: Vec<f64> = points.iter().map(|p| good(p.weight)).collect();
        let total: f64 = weight.iter().sum();
        let squares: f64 = weight.iter().map(|w| w * w).sum();

        // Casts are exact: at most 2^32 samples.
        let mut at: Vec<u32> = (0..points.len() as u32).collect();
        at.sort_by_key(|&i| (points[i as usize].tid, points[i as usize].time_ns, i));
        let mut place = vec![0; points.len()];
        for (p, &i) in at.iter().enumerate() {
            place[i as usize] = p as u32;
        }
        let mut thread = Vec::with_capacity(at.len());
        let mut short_w2 = 0.0;
        for run in at.chunk_by(|&a, &b| points[a as usize].tid == points[b as usize].tid) {
            let first = thread.len() as u32;
            thread.extend(std::iter::repeat_n((first, run.len() as u32), run.len()));
            if run.len() < 3 {
                short_w2 += run.iter().map(|&i| weight[i as usize].powi(2)).sum::<f64>();
            }
        }

        let batches = batch_count(points.len());
        let mut by_time: Vec<u32> = (0..points.len() as u32).collect();
        by_time.sort_by_key(|&i| (points[i as usize].time_ns, i));
        let mut batch = vec![0_u32; points.len()];
        let mut batch_weight = vec![0.0; batches];
        let mut last = (0_u64, 0_u32);
        for (rank, &i) in by_time.iter().enumerate() {
            let i = i as usize;
            let mut b = (rank * batches / points.len().max(1)) as u32;
            // One instant is one cluster: never cut between samples of the same time.
            if rank > 0 && points[i].time_ns == last.0 {
                b = last.1;
            }
            last = (points[i].time_ns, b);
            batch[i] = b;
            batch_weight[b as usize] += weight[i];
        }
        let kish = if squares > 0.0 { total * total / squares } else { 0.0 };
        let inside = vec![false; points.len()];
        Self { level, weight, total, kish, place, at, thread, short_w2, batch, batch_weight, inside }
    }

    /// CPU time that all samples stand for, ns.
    #[must_use]
    pub fn total_weight(&self) -> f64 {
        self.total
    }

    /// Samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weight.len()
    }

    /// There are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weight.is_empty()
    }

    /// The share of a class whose samples are `hits`: indices into the points given to [`Self::new`], each once,
    /// in any order (others are ignored). `None` without samples.
    ///
    /// # Cost
    /// O(k + batches) for k hits.
    #[must_use]
    pub fn share(&mut self, hits: &[usize]) -> Option<Share> {
        self.share_by(hits, wilson)
    }

    /// The same with [limits](jeffreys) that miss a small share above as often as below.
    #[must_use]
    pub fn balanced_share(&mut self, hits: &[usize]) -> Option<Share> {
        self.share_by(hits, jeffreys)
    }

    /// `limits`: of so many of so many, by a critical value.
    fn share_by(&mut self, hits: &[usize], limits: fn(f64, f64, f64) -> Interval) -> Option<Share> {
        if self.total <= 0.0 {
            return None;
        }
        let hits: Vec<usize> = hits.iter().copied().filter(|&i| i < self.weight.len()).collect();
        let inside: f64 = hits.iter().map(|&i| self.weight[i]).sum();
        let p = (inside / self.total).clamp(0.0, 1.0);
        let binomial = p * (1.0 - p) / self.kish;
        let n = self.kish;
        let few = (p * n).min((1.0 - p) * n) < FEW;
        let z = z_quantile(self.level);
        // With the effective number of samples n / deff, deff = variance / binomial variance.
        let interval = |variance: f64, crit: f64| {
            let deff = if binomial > 0.0 { variance / binomial } else { 1.0 };
            let least = if few { 1.0 } else { 0.02 };
            let n = n / deff.clamp(least, n.max(least));
            limits(p * n, n, crit)
        };
        let this_recording = interval(self.stratified_variance(&hits, p), z);
        let (variance, df) = self.batch_variance(&hits, p).unwrap_or((binomial, f64::INFINITY));
        let batches = interval(variance, t_quantile(self.level, df));
        // What holds for the process cannot be known better than what held for this run.
        let long_run = Interval {
            low: batches.low.min(this_recording.low),
            high: batches.high.max(this_recording.high),
        };
        Some(Share {
            value: p,
            hits: hits.len() as u64,
            n: self.weight.len() as u64,
            this_recording,
            long_run,
        })
    }

    /// Variance of the share under one jittered draw per stratum, from second differences of neighbours:
    /// ```text
    /// Var = sum over threads of n/(n-2) sum_i w_i^2 (x_{i-1} - 2 x_i + x_{i+1})^2 / 6  /  (sum w)^2
    /// ```
    /// Successive differences after von Neumann et al. 1941; Wolter, Introduction to Variance Estimation, ch. 8,
    /// for systematic samples. Second differences are as unbiased as first ones when calls are short, and when
    /// calls are longer than the period they overstate the error less (by 1.4 instead of 1.7).
    fn stratified_variance(&mut self, hits: &[usize], p: f64) -> f64 {
        let mut places: Vec<u32> = hits.iter().map(|&i| self.place[i]).collect();
        places.sort_unstable();
        for &q in &places {
            self.inside[q as usize] = true;
        }
        let mut sum = 0.0;
        let mut next = 0_u32;
        for &q in &places {
            let (first, length) = self.thread[q as usize];
            if length < 3 {
                continue;
            }
            // Only centres next to a hit have a difference; each is looked at once.
            let from = q.saturating_sub(1).max(first + 1).max(next);
            let to = (q + 1).min(first + length - 2);
            for c in from..=to.max(from) {
                if c > to {
                    break;
                }
                let x = |at: u32| f64::from(u8::from(self.inside[at as usize]));
                let d = x(c - 1) - 2.0 * x(c) + x(c + 1);
                let w = self.weight[self.at[c as usize] as usize];
                let n = f64::from(length);
                sum += n / (n - 2.0) * w * w * d * d / 6.0;
            }
            next = next.max(to + 1);
        }
        for &q in &places {
            self.inside[q as usize] = false;
        }
        (sum + self.short_w2 * p * (1.0 - p)) / (self.total * self.total)
    }

    /// Variance of the share as a ratio over batches of time, and its degrees of freedom:
    /// ```text
    /// Var = B/(B-1) sum_b (X_b - p W_b)^2 / W^2
    /// ```
    /// Neighbouring batches are joined while they are correlated (batches shorter than the load's phases), down
    /// to eight. `None` if there are too few samples for batches.
    fn batch_variance(&self, hits: &[usize], p: f64) -> Option<(f64, f64)> {
        if self.batch_weight.len() < 2 {
            return None;
        }
        let mut deviation: Vec<f64> = self.batch_weight.iter().map(|w| -p * w).collect();
        for &i in hits {
            deviation[self.batch[i] as usize] += self.weight[i];
        }
        while deviation.len() >= 16 && correlated(&deviation) {
            deviation = deviation.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        let b = deviation.len() as f64;
        let squares: f64 = deviation.iter().map(|d| d * d).sum();
        Some((b / (b - 1.0) * squares / (self.total * self.total), b - 1.0))
    }
}

/// A power of two, so that batches can be joined in pairs; at least five samples each; none below 20 samples.
fn batch_count(samples: usize) -> usize {
    match samples {
        0..20 => 1,
        20..40 => 4,
        40..160 => 8,
        160..640 => 16,
        _ => 32,
    }
}

/// The lag-1 autocorrelation of the batches is above what chance explains one time in twenty.
fn correlated(deviation: &[f64]) -> bool {
    let squares: f64 = deviation.iter().map(|d| d * d).sum();
    let lagged: f64 = deviation.windows(2).map(|w| w[0] * w[1]).sum();
    squares > 0.0 && lagged / squares > 1.645 / (deviation.len() as f64).sqrt()
}

#[cfg(test)]
mod tests;
