//! Rates from bursts: windows of complete counting that a quota or a clock ended.
//!
//! Three things stand between "N hits in t seconds" and a rate:
//! 1. *Dilation*: each hit slows the target, so the time in the denominator is t less what monitoring took.
//! 2. *The stopping rule*: a burst that the quota ended is a waiting time, one that the clock ended is a count.
//!    (N-1)/t and N/t are both unbiased for their rule, and so is the mixture: for events of rate F,
//!    `E[(Q-1)/T_Q; T_Q < W] + E[N/W; N < Q] = F (P(N(W) >= Q-1) + P(N(W) <= Q-2)) = F`, for Q >= 2.
//! 3. *The load*: bursts are the sampling unit; their spread, not Poisson's, says how sure the mean is.
//!    Bursts are weighted by what they were designed to see, not by what they saw, because hot moments use up
//!    a quota sooner and would count less.

mod course;
mod drift;
mod weighing;

pub use drift::{Drift, Seen};
use weighing::Weighed;
pub use weighing::{Cell, cells};

use super::counts::{garwood, waiting_time};
use super::{Interval, t_quantile, z_quantile};
use crate::class::Source;
use crate::estimate::Estimate;

/// What ended a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The hit that used up the quota; the time runs up to it.
    Quota,
    /// The end of the window.
    Window,
}

/// The time of a burst, as measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurstTime {
    /// Wall time, s.
    pub elapsed_s: f64,
    /// CPU time of the target, monitoring included, s; 0 if it could not be measured.
    pub target_cpu_s: f64,
    /// Threads of the target that could hit at once: min(threads, CPUs).
    pub threads: u32,
    /// Cost of everything else that watched the target in this time (other classes, samples), CPU s.
    pub other_cost_s: f64,
    /// CPU seconds that the target uses per wall second outside bursts (`U`).
    pub cpu_per_s: f64,
}

/// No call takes less than a nanosecond: the bound on a rate where the price's error swallows all of the time.
pub(crate) const LEAST_CALL_S: f64 = 1e-9;

/// Part of a window's time below which no price is believed to leave so little: prices are known to some percent at best.
const SWALLOWED: f64 = 0.05;

/// Below so much CPU time per thread the process's CPU clock says nothing, s: read from outside it lags behind by up to a tick
/// of the scheduler (4 ms where HZ is 250) for each thread that runs (`kernel/sched/cputime.c`, `thread_group_cputime`).
const LEAST_CPU_S: f64 = 50e-3;
/// A rate that moves by more than this factor between the smallest and the largest price is not measured, but bounded.
pub const HIDDEN: f64 = 2.0;
/// What other classes cost within a burst is known to this part of it.
pub const NEIGHBOUR_ERROR: f64 = 0.25;
/// With fewer bursts their spread does not show whether the target ran or waited while they were open.
const FEW_BURSTS: usize = 5;
/// Bursts that together are longer have seen the target run and wait, s.
const LONG_S: f64 = 0.2;

impl BurstTime {
    /// Part of the time for which the target's threads run: of a burst shorter than a time slice nobody knows whether it
    /// lay in one or waited for one.
    #[must_use]
    pub fn busy(&self) -> f64 {
        let share = self.cpu_per_s / f64::from(self.threads.max(1));
        if share > 0.0 { share.clamp(0.01, 1.0) } else { 1.0 }
    }
}

/// Seconds of wall time that the burst would have taken had nobody watched, with `hits` hits at `tau_s`.
///
/// ```text
/// one thread:                      t - N tau - other
/// many threads, CPU time known:    t (CPU - N tau - other) / CPU
/// many threads, unknown:           t - (N tau + other) / max(U, 1)
/// ```
/// It stays wall time: a rate per CPU second times U would weigh moments by how busy they are. A CPU time that so many
/// threads cannot have used in the time, or too little for its clock, is taken as unknown. Never below 1 ns per hit.
#[must_use]
pub fn undilated_s(time: &BurstTime, hits: u64, tau_s: f64) -> f64 {
    let cost = hits as f64 * tau_s + time.other_cost_s;
    let threads = f64::from(time.threads);
    let cpu = time.target_cpu_s;
    let known = cpu >= LEAST_CPU_S * threads && cpu <= time.elapsed_s * threads * 1.1;
    let left = match (time.threads, known) {
        (0 | 1, _) => time.elapsed_s - cost,
        (_, true) => time.elapsed_s * (cpu - cost) / cpu,
        (_, false) => time.elapsed_s - cost / time.cpu_per_s.max(1.0),
    };
    left.max(hits as f64 * LEAST_CALL_S).max(0.0)
}

/// One burst, ready to be estimated from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Burst {
    /// Hits up to the end of the burst.
    pub hits: u64,
    /// What ended it.
    pub stop: Stop,
    /// Undilated time at the price's value, s.
    pub time_s: f64,
    /// Undilated time at the largest price: the shortest time, the highest rate.
    pub time_low_s: f64,
    /// Undilated time at the smallest price.
    pub time_high_s: f64,
    /// Quota of hits that the burst was given, if it had one.
    pub quota: Option<u64>,
    /// Time that the burst was given, s, if it had an end.
    pub window_s: Option<f64>,
    /// See [`BurstTime::busy`].
    pub busy: f64,
}

impl Burst {
    /// A burst from what was measured, with the price as (value, smallest, largest), s.
    #[must_use]
    pub fn new(time: &BurstTime, hits: u64, stop: Stop, tau_s: (f64, f64, f64)) -> Self {
        let time_s = undilated_s(time, hits, tau_s.0);
        Self {
            hits,
            stop,
            time_s,
            time_low_s: undilated_s(time, hits, tau_s.2).min(time_s),
            time_high_s: undilated_s(time, hits, tau_s.1).max(time_s),
            quota: (stop == Stop::Quota).then_some(hits),
            window_s: None,
            busy: time.busy(),
        }
    }

    /// Where prices leave next to nothing of the `elapsed_s` in which the hits came, they are wrong rather than the rate a call a nanosecond, in which
    /// all other bursts drown. With `h` what the smallest price leaves, and `s` = [`SWALLOWED`] of the time below which it is not believed:
    /// ```text
    /// at most    h + (elapsed - h) (1 - h / s)   where h < s: all of the time where it leaves nothing
    /// value      s at least
    /// ```
    /// A price that is given as exact is believed as long as it leaves anything.
    #[must_use]
    pub(crate) fn swallowed(self, elapsed_s: f64) -> Self {
        let floor_s = self.hits as f64 * LEAST_CALL_S;
        let least_s = (SWALLOWED * elapsed_s).max(floor_s);
        let is_exact = self.time_low_s >= self.time_high_s && self.time_s > floor_s;
        if self.hits == 0 || self.time_s >= least_s || elapsed_s <= floor_s || is_exact {
            return self;
        }
        let left_s = if self.time_high_s > floor_s { self.time_high_s } else { 0.0 };
        let doubt = (1.0 - left_s / least_s).max(0.0);
        Self { time_s: least_s, time_high_s: (left_s + (elapsed_s - left_s) * doubt).max(least_s), ..self }
    }

    /// Events that carry information on the rate: N - 1 of a waiting time, N of a count.
    fn events(&self) -> f64 {
        match self.stop {
            Stop::Quota => self.hits.saturating_sub(1) as f64,
            Stop::Window => self.hits as f64,
        }
    }

    /// Hits that the burst was designed to see at the rate `pilot`.
    fn design(&self, pilot: f64) -> f64 {
        let by_window = pilot * self.window_s.unwrap_or(self.time_s);
        match self.quota {
            Some(q) if self.stop == Stop::Quota && self.window_s.is_none() => q as f64,
            Some(q) => by_window.min(q as f64),
            None => by_window,
        }
    }
}

/// The mean rate of events per undilated second over the time from which the bursts were drawn, with its
/// interval. `None` without any time.
///
/// ```text
/// R = sum w_j r_j / sum w_j,   r_j = (N_j - 1)/T_j (quota) or N_j/T_j (window),   w_j = min(Q_j, R W_j)
/// ```
/// One burst: exact Poisson limits. Several: `V = m/(m-1) sum w_j^2 (r_j - R)^2 / (sum w_j)^2`, and the limits of
/// a gamma variable with that relative variance, adjusted for `(sum w)^2/sum w^2 - 1` degrees of freedom (as Korn
/// and Graubard 1998 do for proportions): they are right for few hits as for many, and never below 0. With fewer
/// than five bursts, or 20 hits in the average one, the spread is itself a guess: V is then not taken below
/// Poisson's.
/// The price's own uncertainty is added in quadrature on each side.
///
/// All of the time counts alike here; see [`rate_over`] for a run in which bursts do not lie evenly.
#[must_use]
pub fn rate(bursts: &[Burst], level: f64) -> Option<Estimate> {
    rate_with(bursts, level, None)
}

/// [`rate`], where it is known how much bursts of this target's other classes differ.
#[must_use]
pub fn rate_with(bursts: &[Burst], level: f64, drift: Option<&Drift>) -> Option<Estimate> {
    rate_of(bursts, level, drift, Of::LONG)
}

/// Which time a rate is told of, where the part `unseen` (0 to 1) of the run lies outside the bursts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Of {
    /// The whole run. What bursts saw of it is known, so the rate is `(1 - unseen) N/T + unseen R`, and the statistical part of its interval
    /// narrower by `sqrt(unseen)` (Cochran 1977, §2.6).
    Run {
        /// Part of the run.
        unseen: f64,
    },
    /// What lies outside the bursts. It is a finite time, too, so the rate in it differs from R as those of bursts do: the statistical part is wider by
    /// `1 / sqrt(unseen)`. With `f = 1 - unseen` watched: `S^2/fM + S^2/(1-f)M = (S^2/fM) / (1-f)`, of M moments that vary by `S^2`.
    Rest {
        /// Part of the run.
        unseen: f64,
    },
}

impl Of {
    /// Time that is long beside the bursts: they are a sample of it, and no more.
    pub const LONG: Self = Self::Run { unseen: 1.0 };

    /// Factor of the statistical part of an interval. The price's part has none: it is the same error in all of the time.
    fn factor(self) -> f64 {
        match self {
            Self::Run { unseen } => unseen.clamp(0.0, 1.0).sqrt(),
            Self::Rest { unseen } => 1.0 / unseen.clamp(1e-9, 1.0).sqrt(),
        }
    }

    /// Part of the time that the bursts saw.
    fn seen(self) -> f64 {
        match self {
            Self::Run { unseen } => 1.0 - unseen.clamp(0.0, 1.0),
            Self::Rest { .. } => 0.0,
        }
    }
}

/// [`rate_with`], of a run or of what of it lies outside the bursts.
#[must_use]
pub fn rate_of(bursts: &[Burst], level: f64, drift: Option<&Drift>, of: Of) -> Option<Estimate> {
    rate_over(bursts, &[], level, drift, of)
}

/// [`rate_of`], where each burst counts by the time of the run that it stands for; bursts in order of time, with a [`Cell`] each (or none at all). See
/// `bursts/weighing.rs` for the formula.
#[must_use]
pub fn rate_over(
    bursts: &[Burst],
    cells: &[Cell],
    level: f64,
    drift: Option<&Drift>,
    of: Of,
) -> Option<Estimate> {
    let (bursts, cells) = usable(bursts, cells);
    let time: f64 = bursts.iter().map(|b| b.time_s).sum();
    if time <= 0.0 {
        return None;
    }
    let hits: u64 = bursts.iter().map(|b| b.hits).sum();
    let estimate = |value: f64, i: Interval| Estimate {
        value,
        low: i.low,
        high: i.high,
        level,
        n: hits,
        source: Source::Burst,
        at_most: false,
    };
    if hits == 0 {
        return Some(estimate(0.0, garwood(0.0, level).scaled(of.factor() / time)));
    }
    let weighed = Weighed::of(&bursts, &cells, |b| b.time_s);
    let value = weighed.mean;
    let statistical = if let [one] = bursts[..] {
        let counts = match one.stop {
            Stop::Quota => waiting_time(one.hits as f64, level),
            Stop::Window => garwood(one.hits as f64, level),
        };
        let poisson = counts.scaled(1.0 / time);
        drift.map_or(poisson, |drift| drift.widened(one, value, poisson, level))
    } else {
        let moderated = drift.and_then(|drift| drift.interval(&bursts, &cells, &weighed, level));
        moderated.unwrap_or_else(|| spread_interval(&bursts, &weighed, hits, level))
    };
    let busy = bursts.iter().map(|b| b.busy).sum::<f64>() / bursts.len() as f64;
    let statistical = if bursts.len() < FEW_BURSTS && time < LONG_S {
        Interval { low: statistical.low * busy, high: statistical.high / busy }
    } else {
        statistical
    };
    let seen = of.seen() * (hits as f64 / time - value);
    // A dearer hit means less undilated time and a higher rate.
    let dear = weighed.mean_at(&bursts, |b| b.time_low_s);
    let cheap = weighed.mean_at(&bursts, |b| b.time_high_s);
    let down = (of.factor() * (value - statistical.low)).hypot(value - cheap);
    let up = (of.factor() * (statistical.high - value)).hypot(dear - value);
    let value = value + seen;
    Some(estimate(value, Interval { low: (value - down).max(0.0), high: value + up }))
}

/// [`rate_over`], or what is left of it where the price hides it: a function that is called every 100 ns and pays 800 ns for each call takes
/// 900, and of the difference nothing is known that is smaller than the price's error. Where the price's range moves the rate
/// by more than [`HIDDEN`], the estimate is the rate at the smallest price, which is a lower limit, and its interval has no upper end.
#[must_use]
pub fn rate_or_bound(
    bursts: &[Burst],
    cells: &[Cell],
    level: f64,
    drift: Option<&Drift>,
    of: Of,
) -> Option<Estimate> {
    let both = rate_over(bursts, cells, level, drift, of)?;
    let (used, of_used) = usable(bursts, cells);
    let weighed = Weighed::of(&used, &of_used, |b| b.time_s);
    let dear = weighed.mean_at(&used, |b| b.time_low_s);
    let cheap = weighed.mean_at(&used, |b| b.time_high_s);
    if both.n == 0 || dear <= HIDDEN * cheap {
        return Some(both);
    }
    let longest = |b: &Burst| Burst { time_s: b.time_high_s, time_low_s: b.time_high_s, ..*b };
    let least: Vec<Burst> = bursts.iter().map(longest).collect();
    Some(Estimate { high: f64::INFINITY, ..rate_over(&least, cells, level, drift, of)? })
}

/// Bursts that have a length, with their cells.
fn usable<'b>(bursts: &'b [Burst], cells: &[Cell]) -> (Vec<&'b Burst>, Vec<Cell>) {
    let usable = |b: &&Burst| b.time_s.is_finite() && b.time_s > 0.0;
    let of_usable = |(_, c): (&Burst, &Cell)| *c;
    let cells = bursts.iter().zip(cells).filter(|(b, _)| usable(b)).map(of_usable).collect();
    (bursts.iter().filter(usable).collect(), cells)
}

fn spread_interval(bursts: &[&Burst], weighed: &Weighed, hits: u64, level: f64) -> Interval {
    let time: f64 = bursts.iter().map(|b| b.time_s).sum();
    let value = weighed.mean;
    // All bursts ended with their first hit: nothing but a waiting time is known.
    if value <= 0.0 {
        return waiting_time(hits as f64, level).scaled(1.0 / time);
    }
    let between = weighed.spread;
    // Variance of r_j were events independent: R^2/(Q-2) for a waiting time, R/T for a count.
    let poisson = weighed.squares(bursts, |b, rate| match b.stop {
        Stop::Quota => rate * rate / (b.hits as f64 - 2.0).max(1.0),
        Stop::Window => rate / b.time_s,
    });
    let m = bursts.len() as f64;
    let guess = m < 5.0 || (hits as f64) < 20.0 * m;
    let variance = if guess { between.max(poisson) } else { between } + weighed.apart;
    // The gamma with mean R and variance V (t/z)^2 has shape k.
    let adjust = z_quantile(level) / t_quantile(level, weighed.df.max(1.0));
    let k = value * value / variance.max(f64::MIN_POSITIVE) * adjust * adjust;
    if !k.is_finite() || k > 1e15 {
        return Interval { low: value, high: value };
    }
    garwood(k, level).scaled(value / k)
}

/// Events in the whole run of `run_s` undilated seconds, of which `covered_s` were watched and showed `counted`
/// events: what was counted plus the prediction for the rest, whose rate `rest` is ([`Of::Rest`]).
///
/// ```text
/// total = K + R (T - t);   Var = (T - t)^2 [Var_price(R) + Var(R) / (1 - t/T)] = T^2 [(1 - t/T)^2 Var_price(R) + (1 - t/T) Var(R)]
/// ```
/// The statistical part has the factor `1 - t/T` of a sample from a finite population (Cochran 1977, §2.6); the price's part has its square: of
/// what was counted no price is needed, and in all of the rest its error is the same.
#[must_use]
pub fn run_total(counted: u64, covered_s: f64, run_s: f64, rest: &Estimate) -> Estimate {
    let counted_f = counted as f64;
    let rest_s = (run_s - covered_s).max(0.0);
    if rest_s <= 0.0 || run_s <= 0.0 {
        return Estimate::exact(counted_f, counted);
    }
    Estimate {
        value: counted_f + rest.value * rest_s,
        low: counted_f + rest.low.max(0.0) * rest_s,
        high: counted_f + rest.high * rest_s,
        level: rest.level,
        n: counted,
        source: Source::Burst,
        at_most: false,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_drift;
