//! The relaxation that bounds every plan of a subproblem.
//!
//! For any multiplier `lambda >= 0`, and with `p_i(s) = t_i(s) - u_i(s)`,
//!
//! ```text
//! L(s, lambda) = K(s) + lambda (room - s sample_cost) + sum_i max(0, p_i(s) - lambda c_i)
//! ```
//!
//! is at least the value of every plan with sampling rate `s`, also of plans with bursts: it is the Lagrangian
//! of the budget, and the best duty for a linear value is 0 or 1. For fixed `lambda` it is a sum of maxima of
//! functions that are linear or convex in `s`, hence convex, so over `lo <= s <= hi` it is largest at an end:
//!
//! ```text
//! UB(lo, hi) = min over lambda of max(L(lo, lambda), L(hi, lambda))
//! ```
//!
//! This is at most the textbook bound with `hi` in both profit terms and `lo` in the capacity (each of its
//! terms is `max(hi W rho, W F - lambda c)`), and it closes with the square of the interval's width around a
//! smooth maximum. `min over lambda of L(s, .)` is the continuous knapsack at `s`, found by selection in O(n).

use super::super::selection::critical_density;

/// A class whose duty has a floor: it may not be off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floored {
    pub p: [f64; 2],
    pub cost: f64,
    /// Least duty, anywhere in the interval.
    pub floor: f64,
    /// Whether it may be traced all the time, without the charge.
    pub may_trace: bool,
    /// Whether a burst may be longer than its floor.
    pub interior: bool,
}

impl Floored {
    /// Best of its options at end `e`, and what that costs.
    fn best(&self, e: usize, lambda: f64, charge: f64) -> (f64, f64) {
        let gain = self.p[e] - lambda * self.cost;
        let mut best = (self.floor * gain - lambda * charge, self.floor * self.cost + charge);
        if self.interior && gain > 0.0 {
            best = (gain - lambda * charge, self.cost + charge);
        }
        if self.may_trace && gain > best.0 {
            best = (gain, self.cost);
        }
        best
    }
}

/// One subproblem, as arrays over its free items. Index 0 is the lower end of `s`, 1 the upper.
#[derive(Debug, Default)]
pub(super) struct Relaxation {
    /// Profits at both ends, and costs, of the free items.
    pub p: [Vec<f64>; 2],
    pub cost: Vec<f64>,
    pub floored: Vec<Floored>,
    /// Value with every free item sampled.
    pub constant: [f64; 2],
    /// Budget left for tracing.
    pub room: [f64; 2],
    /// Fixed charge of a burst.
    pub charge: f64,
    /// Scratch of the selection: (density, cost).
    keyed: Vec<(f64, f64)>,
    /// Items looked at.
    pub work: u64,
}

/// The bound with its multiplier.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub lambda: f64,
    /// `L` at both ends for that multiplier.
    pub at: [f64; 2],
    /// The continuous knapsack's value at each end, and its multiplier.
    pub relaxed: [f64; 2],
    pub critical: [f64; 2],
}

impl Bound {
    pub fn value(&self) -> f64 {
        self.at[0].max(self.at[1])
    }
}

impl Relaxation {
    /// The bound, to within `slack` of the best multiplier's.
    pub fn bound(&mut self, slack: f64) -> Bound {
        let critical = [self.critical(0), self.critical(1)];
        let first = self.evaluate(critical[0]);
        let second = self.evaluate(critical[1]);
        let relaxed = [first[0], second[1]];
        let mut best = if first[0].max(first[1]) <= second[0].max(second[1]) {
            (critical[0], first)
        } else {
            (critical[1], second)
        };
        // If one end's optimum lies above the other curve it is the minimum of the maximum; otherwise the curves
        // cross between the two multipliers: false position on their difference (Illinois).
        if first[1] > first[0] && second[0] > second[1] {
            let (mut a, mut fa) = (critical[0], first[0] - first[1]);
            let (mut b, mut fb) = (critical[1], second[0] - second[1]);
            for _ in 0..40 {
                let c = if fb == fa { 0.5 * (a + b) } else { (a * fb - b * fa) / (fb - fa) };
                if !c.is_finite() || c == a || c == b {
                    break;
                }
                let at = self.evaluate(c);
                if at[0].max(at[1]) < best.1[0].max(best.1[1]) {
                    best = (c, at);
                }
                let fc = at[0] - at[1];
                if fc.abs() <= slack {
                    break;
                }
                if (fc > 0.0) == (fb > 0.0) {
                    (b, fb) = (c, fc);
                    fa *= 0.5;
                } else {
                    (a, fa) = (c, fc);
                    fb *= 0.5;
                }
            }
        }
        Bound { lambda: best.0, at: best.1, relaxed, critical }
    }

    /// `L` at both ends.
    pub fn evaluate(&mut self, lambda: f64) -> [f64; 2] {
        self.work += self.cost.len() as u64 + 1;
        let [p0, p1] = &self.p;
        let (mut sum0, mut sum1) = (0.0, 0.0);
        for ((&a, &b), &c) in p0.iter().zip(p1).zip(&self.cost) {
            let price = lambda * c;
            sum0 += (a - price).max(0.0);
            sum1 += (b - price).max(0.0);
        }
        for item in &self.floored {
            sum0 += item.best(0, lambda, self.charge).0;
            sum1 += item.best(1, lambda, self.charge).0;
        }
        [self.constant[0] + lambda * self.room[0] + sum0, self.constant[1] + lambda * self.room[1] + sum1]
    }

    /// The multiplier that minimises `L` at end `e`: the density at which the budget is used up.
    fn critical(&mut self, e: usize) -> f64 {
        if !self.floored.is_empty() {
            return self.critical_by_bisection(e);
        }
        self.work += 4 * self.cost.len() as u64 + 1;
        let room = self.room[e];
        self.keyed.clear();
        let mut total = 0.0;
        for (&p, &c) in self.p[e].iter().zip(&self.cost) {
            if p > 0.0 && c > 0.0 {
                total += c;
                self.keyed.push((p / c, c));
            }
        }
        if total <= room { 0.0 } else { critical_density(&mut self.keyed, room) }
    }

    fn critical_by_bisection(&mut self, e: usize) -> f64 {
        let mut low = 0.0;
        if self.used(e, low) <= self.room[e] {
            return low;
        }
        let densest = self.p[e].iter().zip(&self.cost).filter(|&(&p, &c)| p > 0.0 && c > 0.0);
        let mut high = densest.map(|(&p, &c)| p / c).fold(0.0, f64::max);
        high = self.floored.iter().filter(|i| i.cost > 0.0).map(|i| i.p[e] / i.cost).fold(high, f64::max);
        high = if high > 0.0 { high.min(1e200) } else { 1.0 };
        for _ in 0..200 {
            if self.used(e, high) <= self.room[e] {
                break;
            }
            low = high;
            high *= 2.0;
        }
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if self.used(e, middle) <= self.room[e] {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    /// What the relaxed solution at `lambda` costs.
    fn used(&mut self, e: usize, lambda: f64) -> f64 {
        self.work += self.cost.len() as u64 + 1;
        let free: f64 =
            self.p[e].iter().zip(&self.cost).filter(|&(&p, &c)| p > lambda * c).map(|(_, &c)| c).sum();
        free + self.floored.iter().map(|i| i.best(e, lambda, self.charge).1).sum::<f64>()
    }
}
