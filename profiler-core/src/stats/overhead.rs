//! Overhead by comparison: the target's CPU time per unit of progress with monitoring on and off; and wall time per unit,
//! where that shows more: what is spent inside a lock, others wait for, and no CPU time shows it.
//!
//! On a shared machine the cost of a unit of work wanders by some percent over seconds (other programs, the
//! hypervisor) and jumps now and then. So windows are short and many: each window off is compared with the windows on
//! next to it only, and single wild windows count for little.

use super::{Interval, LEVEL, t_quantile};
use crate::recording::MeasuredOverhead;

/// Share of the differences that is left out at each end. A fifth is the customary choice (Wilcox 2012, section 3.3):
/// near the mean's precision where errors are normal, far better where some windows are wild.
const TRIM: f64 = 0.2;
/// Groups of neighbouring windows that are left out in turn; a group is longer than what correlates windows.
const GROUPS: usize = 30;
/// Below so many comparisons there is no interval.
const FEWEST: usize = 3;
/// Units of progress that a window should hold: one more or less is then 5 %, which averages out.
const FEWEST_UNITS: u64 = 20;

/// One window: progress made and CPU time used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgressWindow {
    /// Units of progress (operations).
    pub progress: u64,
    /// CPU time of the target, monitoring included, ns.
    pub cpu_ns: u64,
    /// Length, ns; 0: not known.
    pub wall_ns: u64,
}

/// Time per unit of progress, ns.
#[derive(Debug, Clone, Copy)]
enum Clock {
    Cpu,
    Wall,
}

impl ProgressWindow {
    /// Logarithm of the CPU ns per unit of progress; `None` where there was none.
    fn log_cost(self) -> Option<f64> {
        self.log_time(Clock::Cpu)
    }

    fn log_time(self, clock: Clock) -> Option<f64> {
        let ns = match clock {
            Clock::Cpu => self.cpu_ns,
            Clock::Wall => self.wall_ns,
        };
        (self.progress > 0 && ns > 0).then(|| (ns as f64 / self.progress as f64).ln())
    }
}

/// A window off between two windows on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// The window on before it.
    pub before: ProgressWindow,
    /// Everything detached.
    pub off: ProgressWindow,
    /// The window on after it.
    pub after: ProgressWindow,
}

impl Comparison {
    /// What the window before and the one after cost more than the one off, as logarithms.
    fn differences(&self, clock: Clock) -> Option<[f64; 2]> {
        let off = self.off.log_time(clock)?;
        Some([self.before.log_time(clock)? - off, self.after.log_time(clock)? - off])
    }
}

/// Overhead from windows off, each between two windows on, placed at random times.
///
/// ```text
/// b_i      = ln(on_before_i) - ln(off_i),  a_i = ln(on_after_i) - ln(off_i)      CPU ns per unit of progress
/// d        = (trimmed mean of b + trimmed mean of a) / 2
/// overhead = e^d - 1,  interval e^(d +- t s_d) - 1,  s_d by leaving out groups of neighbours (block jackknife)
/// ```
/// Without overhead a window on and its neighbour off are exchangeable, so `b` and `a` are symmetric about it however
/// skewed the windows themselves are, and trimming does not shift them (trimming `(a + b) / 2` would). Averaging both
/// takes a linear drift of the load out. The jackknife on groups (Künsch 1989) lets neighbours be correlated.
/// `None` below three comparisons.
#[must_use]
pub fn measured(metric: &str, comparisons: &[Comparison]) -> Option<MeasuredOverhead> {
    let all: Vec<[f64; 2]> = comparisons.iter().filter_map(|c| c.differences(Clock::Cpu)).collect();
    let estimate = estimate(&all)?;
    Some(MeasuredOverhead {
        metric: metric.to_owned(),
        // OK because a run has far fewer than 2^32 windows.
        pairs: u32::try_from(all.len()).unwrap_or(u32::MAX),
        value: estimate.value.exp_m1(),
        low: estimate.low.exp_m1(),
        high: estimate.high.exp_m1(),
        method: "20 % trimmed mean, block jackknife".to_owned(),
        note: String::new(),
    })
}

/// A difference of logarithms of times per unit, and its interval (95 %).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Estimate.
    pub value: f64,
    /// Lower limit.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
}

/// What wall time per unit of progress grows more than CPU time per unit, comparison by comparison (paired, so that what both
/// share cancels out). Above 0 where threads wait for what one of them pays inside a lock; 0 for a target that works by the clock of its
/// clients only if its CPU time does not grow either, so that the caller bounds it by 0 from below. `None` below three comparisons.
#[must_use]
pub fn waiting(comparisons: &[Comparison]) -> Option<Difference> {
    let paired = |c: &Comparison| {
        let (wall, cpu) = (c.differences(Clock::Wall)?, c.differences(Clock::Cpu)?);
        Some([wall[0] - cpu[0], wall[1] - cpu[1]])
    };
    estimate(&comparisons.iter().filter_map(paired).collect::<Vec<_>>())
}

fn estimate(all: &[[f64; 2]]) -> Option<Difference> {
    if all.len() < FEWEST {
        return None;
    }
    let Interval { low, high } = interval(all)?;
    Some(Difference { value: location(all.iter().copied()), low, high })
}

fn location(differences: impl Iterator<Item = [f64; 2]>) -> f64 {
    let (before, after): (Vec<f64>, Vec<f64>) = differences.map(|[b, a]| (b, a)).unzip();
    f64::midpoint(trimmed_mean(before), trimmed_mean(after))
}

/// Mean of the middle. The trimmed part is a fraction of `n`, not a whole number, so that leaving out one value changes it
/// smoothly.
fn trimmed_mean(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let cut = TRIM * n as f64;
    let (mut sum, mut weights) = (0.0, 0.0);
    for (i, value) in values.iter().enumerate() {
        // How much of the i-th of n slots lies inside [cut, n - cut].
        let weight = ((i + 1) as f64).min(n as f64 - cut) - (i as f64).max(cut);
        if weight > 0.0 {
            sum += weight * value;
            weights += weight;
        }
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// Interval of the location by the delete-a-group jackknife: variance (g - 1) / g sum (theta_(k) - mean)^2, t with
/// g - 1 degrees of freedom.
fn interval(all: &[[f64; 2]]) -> Option<Interval> {
    let groups = all.len().min(GROUPS);
    let bounds = |k: usize| k * all.len() / groups..(k + 1) * all.len() / groups;
    let without: Vec<f64> = (0..groups)
        .map(|k| {
            let out = bounds(k);
            location(all[..out.start].iter().chain(&all[out.end..]).copied())
        })
        .collect();
    let g = groups as f64;
    let mean = without.iter().sum::<f64>() / g;
    let variance = without.iter().map(|x| (x - mean).powi(2)).sum::<f64>() * (g - 1.0) / g;
    let half = t_quantile(LEVEL, g - 1.0) * variance.sqrt();
    let value = location(all.iter().copied());
    half.is_finite().then_some(Interval { low: value - half, high: value + half })
}

/// How many of the given windows in a row are to be taken as one, so that most hold enough progress; `None`: even
/// `most` do not.
#[must_use]
pub fn windows_to_join(windows: &[ProgressWindow], most: usize) -> Option<usize> {
    std::iter::successors(Some(1usize), |n| Some(n * 2)).take_while(|n| *n <= most).find(|n| {
        let joined = join(windows, *n);
        let enough = joined.iter().filter(|w| w.progress >= FEWEST_UNITS && w.cpu_ns > 0).count();
        !joined.is_empty() && enough * 10 >= joined.len() * 9
    })
}

fn join(windows: &[ProgressWindow], n: usize) -> Vec<ProgressWindow> {
    let sum = |chunk: &[ProgressWindow]| ProgressWindow {
        progress: chunk.iter().map(|w| w.progress).sum(),
        cpu_ns: chunk.iter().map(|w| w.cpu_ns).sum(),
        wall_ns: chunk.iter().map(|w| w.wall_ns).sum(),
    };
    windows.chunks_exact(n.max(1)).map(sum).collect()
}

/// Half-width of the interval that `comparisons` of windows as long as `joined` of these would give (0.007: 0.7
/// points), from windows in a row during which nothing was switched. `None` below five comparisons.
///
/// `t 1.4826 median |d_i| / sqrt(n)`, `d_i = (x_(i-1) + x_(i+1)) / 2 - x_i`, `x` the logarithm of the cost: the
/// median, because a pilot is short and one wild window must not decide.
#[must_use]
pub fn reachable(windows: &[ProgressWindow], joined: usize, comparisons: u32) -> Option<f64> {
    let costs: Vec<Option<f64>> = join(windows, joined).into_iter().map(ProgressWindow::log_cost).collect();
    let mut d: Vec<f64> =
        costs.windows(3).filter_map(|w| Some((f64::midpoint(w[0]?, w[2]?) - w[1]?).abs())).collect();
    if d.len() < 5 || comparisons < 2 {
        return None;
    }
    d.sort_by(f64::total_cmp);
    let scale = 1.4826 * f64::midpoint(d[(d.len() - 1) / 2], d[d.len() / 2]);
    let n = f64::from(comparisons);
    let df = n.min(GROUPS as f64) - 1.0;
    Some((t_quantile(LEVEL, df) * scale / n.sqrt()).exp_m1())
}

#[cfg(test)]
mod tests;
