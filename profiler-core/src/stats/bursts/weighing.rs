//! How much each burst counts in the mean rate of a run: bursts are not spread evenly over it.
//!
//! A function that is called more often has dearer bursts, so they lie farther apart: of a run in which its rate rises on the way most bursts show
//! the time before. Where bursts lie is known, so each could count by the unwatched time of the run that it stands for, half of the gap to
//! either neighbour (`t_j`; what was watched is counted, and needs no rate; a post-stratified mean, Cochran 1977, §5A.9). Where the rate does not change that only loses: a burst that stands alone for
//! most of a run brings its noise to all of it. So bursts count by time as far as they show a change in time, and alike (`e_j`) as far as they do not,
//! which is the best linear prediction of strata's means (Robinson 1991, Stat. Sci. 6, 15):
//! ```text
//! R = sum a_j r_j,   a_j = (1 - sum_h k_h L_h) e_j + k_h t_j
//! e_j = w_j / sum w,   t_j = L_h l_j w_j / sum_h l w,   L_h = sum_h l u / sum l u
//! k_h = n_h k / (1 + (n_h - 1) k),   n_h = (sum_h t)^2 / sum_h t^2          (Spearman 1910, Brown 1910)
//! k = max(0, 1 - n^2 / s^2),   n^2 = mean (x_(j+1) - x_j)^2 / 2,   x_j = ln((N_j + 1) / (T_j + 1/R))
//! ```
//! `l_j`: unwatched time that burst j stands for; `u_j`: what a second of it counts (1 by the wall clock, CPU time used by CPU time); `w_j`: hits that it was designed to
//! see, so that a glance and a second beside one another do not count alike, times `u_j`; `s^2`: the variance of all `x_j`. `k` is von Neumann's ratio of successive differences (1941, Ann. Math. Stat. 12, 367), whose mean is 1 for independent bursts whatever their
//! distribution: absolute differences are less of noise with long tails, and take that for change. Strata `h` are parts of the run of equal length, joined from its begin on until each holds [`LEAST`] bursts: they do not depend on
//! what the bursts saw. The variance of R:
//! ```text
//! V = (1-k)^2 v sum (a_j c_j)^2 + (1 - (1-k)^2) sum_h v_h sum_h (a_j c_j)^2 + A,   c_j = (1 - k_h) R + k_h R_h
//! v_h = m_h/(m_h-1) sum_h w^2 (r - R_h)^2 / (R_h^2 sum_h w^2);   v: the same of all bursts as one stratum
//! A = k v R^2 max(sum d_j^2, sum_h (sum_h d_j)^2) + k sum (g_j (r_(j+1) - r_j))^2 / 12 + k^2 sum_h' (sum_h' t / time watched)^2,   d_j = t_j - a_j
//! ```
//! A: what is left of changes because bursts count alike; where in the gap `g_j` (part of the run) between two bursts the rate changed, which is
//! anywhere (variance of a uniform variable); a hit that may have been missed in strata without any (`h'`). Degrees of freedom: Satterthwaite's (1946), as if relative
//! variances were alike, between those of all bursts and those of strata as V is. With `k` = 0 all of it is the mean of bursts that count alike.

use super::Burst;
use std::ops::Range;

/// Fewest bursts of a stratum.
pub(super) const LEAST: usize = 3;

/// Where a burst lies in its run, and what it stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// Its middle, 0 (begin of the run) to 1 (end).
    pub at: f64,
    /// Unwatched time of the target's own that it stands for, s; relative to other bursts' of the list.
    pub stands_for_s: f64,
    /// What a second of that time counts: 1 by the wall clock; by CPU time what the target used around the burst, over its mean.
    pub used: f64,
}

/// Cells of bursts from their begins and ends, s from the begin of a run of `run_s`, in order of time; `own_s`: time of the target's own between two times.
/// What was watched is known, so each burst stands for half of the gaps beside it, and not for its own time.
#[must_use]
pub fn cells(spans: &[(f64, f64)], run_s: f64, own_s: impl Fn(f64, f64) -> f64) -> Vec<Cell> {
    let mut from_s = 0.0_f64;
    let mut cells = Vec::with_capacity(spans.len());
    for (i, (begin_s, end_s)) in spans.iter().enumerate() {
        let until_s = spans.get(i + 1).map_or(run_s, |(next_s, _)| (end_s + next_s) / 2.0).max(from_s);
        let at = ((begin_s + end_s) / 2.0 / run_s.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        let from_own_s = begin_s.max(from_s);
        let watched_s = own_s(from_own_s, end_s.min(until_s).max(from_own_s));
        let stands_for_s = (own_s(from_s, until_s) - watched_s).max(0.0);
        cells.push(Cell { at, stands_for_s, used: 1.0 });
        from_s = until_s;
    }
    cells
}

/// A part of the run.
struct Stratum {
    bursts: Range<usize>,
    /// Their mean rate, each weighed by its design.
    mean: f64,
    /// The rate that Poisson's variance is taken from: that of one hit where there was none.
    likely: f64,
}

/// Bursts with what each counts.
pub(super) struct Weighed {
    /// Weighted mean of the bursts' rates.
    pub mean: f64,
    /// Weight of each burst; their sum is 1.
    pub weights: Vec<f64>,
    /// What the bursts' spread does not show of the mean's variance, Hz^2: changes of the rate.
    pub apart: f64,
    /// The mean's variance by the spread of bursts, Hz^2, and its degrees of freedom.
    pub spread: f64,
    pub df: f64,
    /// Part of the bursts' variance that is change in time (`k`).
    pub change: f64,
    /// The rate from which each burst's variance is taken, Hz.
    likely: Vec<f64>,
}

impl Stratum {
    /// Variance of a burst relative to the squared mean rate, and its degrees of freedom. Of a part without hits bursts are all alike, which says nothing.
    fn spread(&self, design: &[f64], rates: &[f64]) -> (f64, f64) {
        let (w, r, m) = (&design[self.bursts.clone()], &rates[self.bursts.clone()], self.bursts.len() as f64);
        let unlike: f64 = w.iter().zip(r).map(|(w, r)| (w * (r - self.mean)).powi(2)).sum();
        let square: f64 = w.iter().map(|w| w * w).sum::<f64>().max(f64::MIN_POSITIVE);
        // What one burst outweighs does not show.
        let df = (w.iter().sum::<f64>().powi(2) / square - 1.0).clamp(1e-9, (m - 1.0).max(1e-9));
        let relative = m / (m - 1.0).max(1.0) * unlike / square / (self.mean * self.mean);
        (if self.mean > 0.0 { relative } else { 0.0 }, df)
    }
}

/// The mean's variance by the spread of bursts within strata, and its degrees of freedom; `likely`: the rates to which those are relative.
fn within(strata: &[(&Stratum, (f64, f64))], weights: &[f64], likely: &[f64]) -> (f64, f64) {
    let (mut variance, mut sum, mut inverse) = (0.0, 0.0, 0.0);
    for (s, (relative, df)) in strata {
        let of = weights[s.bursts.clone()].iter().zip(&likely[s.bursts.clone()]);
        let q: f64 = of.map(|(a, r)| (a * r).powi(2)).sum();
        variance += relative * q;
        sum += q;
        inverse += q * q / df;
    }
    (variance, sum * sum / inverse.max(f64::MIN_POSITIVE))
}

/// Part of the bursts' variance that is change in time; see the head of the module.
fn change(bursts: &[&Burst], design: &[f64], pilot: f64, time: impl Fn(&Burst) -> f64) -> f64 {
    // As if one more hit of the mean rate had been seen: a window too short for any says nothing.
    let log = |b: &&Burst| ((b.events() + 1.0) / (time(b) + 1.0 / pilot)).ln();
    let logs: Vec<f64> = bursts.iter().map(log).collect();
    let sum: f64 = design.iter().sum();
    let mean = design.iter().zip(&logs).map(|(w, u)| w * u).sum::<f64>() / sum;
    let all = design.iter().zip(&logs).map(|(w, u)| w * (u - mean).powi(2)).sum::<f64>();
    let squares: f64 = design.iter().map(|w| w * w).sum();
    let variance = all / (sum - squares / sum).max(f64::MIN_POSITIVE);
    let (mut steps, mut weights) = (0.0, 0.0);
    for (w, u) in design.windows(2).zip(logs.windows(2)) {
        let weight = w[0].min(w[1]);
        steps += weight * (u[1] - u[0]).powi(2);
        weights += weight;
    }
    let noise = steps / (2.0 * weights.max(f64::MIN_POSITIVE));
    // Less is rounding: bursts that are all alike.
    if variance > 1e-12 && pilot > 0.0 { (1.0 - noise / variance).clamp(0.0, 1.0) } else { 0.0 }
}

impl Weighed {
    /// `cells`: one for each burst, or none where all of the run is alike to them. `time`: a burst's time, s.
    pub fn of(bursts: &[&Burst], cells: &[Cell], time: impl Fn(&Burst) -> f64) -> Self {
        let hits: f64 = bursts.iter().map(|b| b.hits as f64).sum();
        let pilot = hits / bursts.iter().map(|b| time(b)).sum::<f64>();
        // A window without hits has none in however little time its neighbours left it.
        let rate = |b: &&Burst| if b.events() > 0.0 { b.events() / time(b) } else { 0.0 };
        let rates: Vec<f64> = bursts.iter().map(rate).collect();
        let mut design: Vec<f64> = bursts.iter().map(|b| b.design(pilot).max(f64::MIN_POSITIVE)).collect();
        let run_s: f64 = cells.iter().map(|c| c.stands_for_s * c.used).sum();
        let is_placed = cells.len() == bursts.len() && run_s > 0.0;
        if is_placed {
            design.iter_mut().zip(cells).for_each(|(w, c)| *w *= c.used);
        }
        let sum: f64 = design.iter().sum();
        // None so little that its square is 0.
        design.iter_mut().for_each(|w| *w = (*w / sum).max(1e-100));
        let stratum = |part: Range<usize>| {
            let (w, r) = (&design[part.clone()], &rates[part.clone()]);
            let mean = w.iter().zip(r).map(|(w, r)| w * r).sum::<f64>() / w.iter().sum::<f64>();
            let watched_s: f64 = bursts[part.clone()].iter().map(|b| time(b)).sum();
            Stratum { bursts: part, mean, likely: if mean > 0.0 { mean } else { 1.0 / watched_s } }
        };
        let whole = stratum(0..bursts.len());
        let of_whole = whole.spread(&design, &rates);
        let mean_of = |weights: &[f64]| weights.iter().zip(&rates).map(|(a, r)| a * r).sum::<f64>();
        let mean = mean_of(&design);
        let part = if is_placed { change(bursts, &design, pilot, &time) } else { 0.0 };
        if part <= 0.0 {
            let likely = vec![whole.likely; bursts.len()];
            let (spread, df) = within(&[(&whole, of_whole)], &design, &likely);
            return Self { mean, weights: design, apart: 0.0, spread, df, change: 0.0, likely };
        }
        let strata: Vec<Stratum> = strata(cells).into_iter().map(stratum).collect();
        let by_time = by_time(&strata, cells, &design, run_s);
        let parts = believed(&strata, &by_time, part);
        let own = |s: &Stratum| by_time[s.bursts.clone()].iter().sum::<f64>();
        let alike = 1.0 - strata.iter().zip(&parts).map(|(s, k)| k * own(s)).sum::<f64>();
        let (mut weights, mut likely) = (Vec::new(), Vec::new());
        for (s, k) in strata.iter().zip(&parts) {
            weights.extend(s.bursts.clone().map(|j| alike * design[j] + k * by_time[j]));
            likely.extend(s.bursts.clone().map(|_| (1.0 - k) * whole.likely + k * s.likely));
        }
        let spreads: Vec<_> = strata.iter().map(|s| (s, s.spread(&design, &rates))).collect();
        let (all, df_all) = within(&[(&whole, of_whole)], &weights, &likely);
        let (within, df_within) = within(&spreads, &weights, &likely);
        // The spread around one mean holds the changes, too, and is right where there are none.
        let blend = |all: f64, within: f64| (1.0 - part).powi(2) * (all - within) + within;
        Self {
            mean: mean_of(&weights),
            apart: part * of_whole.0 * mean * mean * left_alike(&strata, &weights, &by_time)
                + part * between(cells, &rates)
                + part * part * without_hits(&strata, &by_time),
            spread: blend(all, within),
            df: blend(df_all, df_within),
            change: part,
            weights,
            likely,
        }
    }

    /// The mean at other times of the bursts, each counting as it does here.
    pub fn mean_at(&self, bursts: &[&Burst], time: impl Fn(&Burst) -> f64) -> f64 {
        let rate = |b: &Burst| if b.events() > 0.0 { b.events() / time(b) } else { 0.0 };
        self.weights.iter().zip(bursts).map(|(a, b)| a * rate(b)).sum()
    }

    /// What each burst brings to the mean, over it.
    pub fn shares(&self) -> impl Iterator<Item = f64> {
        self.weights.iter().zip(&self.likely).map(|(a, rate)| a * rate / self.mean.max(f64::MIN_POSITIVE))
    }

    /// `sum a^2 f(burst, rate at its time)`.
    pub fn squares(&self, bursts: &[&Burst], f: impl Fn(&Burst, f64) -> f64) -> f64 {
        let of = |((a, b), rate): ((&f64, &&Burst), &f64)| a * a * f(b, *rate);
        self.weights.iter().zip(bursts).zip(&self.likely).map(of).sum()
    }
}

/// `t_j`: the part of the run that each burst stands for.
fn by_time(strata: &[Stratum], cells: &[Cell], design: &[f64], run_s: f64) -> Vec<f64> {
    let mut weights = Vec::with_capacity(cells.len());
    for Stratum { bursts, .. } in strata {
        let cells = &cells[bursts.clone()];
        let stands_for: f64 = cells.iter().map(|c| c.stands_for_s * c.used).sum();
        let of = cells.iter().zip(&design[bursts.clone()]).map(|(c, w)| w * c.stands_for_s);
        let sum: f64 = of.clone().sum();
        let scale = if sum > 0.0 { stands_for / run_s / sum } else { 0.0 };
        weights.extend(of.map(|w| w * scale));
    }
    weights
}

/// `k_h`: part of each stratum's difference from the mean that is change, by the bursts that its mean is made of.
fn believed(strata: &[Stratum], by_time: &[f64], part: f64) -> Vec<f64> {
    let of = |s: &Stratum| {
        let t = &by_time[s.bursts.clone()];
        let squares: f64 = t.iter().map(|t| t * t).sum();
        let n = (t.iter().sum::<f64>().powi(2) / squares.max(f64::MIN_POSITIVE)).max(1.0);
        n * part / (1.0 + (n - 1.0) * part)
    };
    strata.iter().map(of).collect()
}

/// Squared times that count for too little or too much: of each burst, or of a stratum if that is more.
fn left_alike(strata: &[Stratum], weights: &[f64], by_time: &[f64]) -> f64 {
    let unlike: Vec<f64> = by_time.iter().zip(weights).map(|(t, a)| t - a).collect();
    let each: f64 = unlike.iter().map(|d| d * d).sum();
    let of = |s: &Stratum| unlike[s.bursts.clone()].iter().sum::<f64>().powi(2);
    each.max(strata.iter().map(of).sum())
}

/// When between two bursts the rate changed: anywhere.
fn between(cells: &[Cell], rates: &[f64]) -> f64 {
    let of = |(c, r): (&[Cell], &[f64])| ((c[1].at - c[0].at) * (r[1] - r[0])).powi(2) / 12.0;
    cells.windows(2).zip(rates.windows(2)).map(of).sum()
}

/// Of strata without any hit one may have been missed.
fn without_hits(strata: &[Stratum], by_time: &[f64]) -> f64 {
    let of = |s: &Stratum| (by_time[s.bursts.clone()].iter().sum::<f64>() * s.likely).powi(2);
    strata.iter().filter(|s| s.mean <= 0.0).map(of).sum()
}

/// See the head of the module.
fn strata(cells: &[Cell]) -> Vec<Range<usize>> {
    let parts = (cells.len() / LEAST).max(1) as f64;
    // OK because it lies between 0 and the number of parts.
    let part = |c: &Cell| (c.at * parts).min(parts - 1.0) as usize;
    let (mut strata, mut from): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
    for i in 1..=cells.len() {
        let ends = i == cells.len() || part(&cells[i]) != part(&cells[i - 1]);
        if ends && i - from >= LEAST {
            strata.push(from..i);
            from = i;
        }
    }
    match strata.last_mut() {
        Some(last) => last.end = cells.len(),
        None => strata.push(0..cells.len()),
    }
    strata
}

#[cfg(test)]
mod tests;
