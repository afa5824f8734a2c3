//! How well a rate is known from windows: the width of its interval.
//!
//! ```text
//! a      = spread^2 + brief / t + 1 / hits                     relative variance of one window of t s
//! V(n)   = a (1 - n t / H) / n                                 of n windows in H s; what was watched is known
//! 1 / V' = q + 1 / V                                           q: nothing known
//! width  = t_{0.95} sqrt(V')                                   half of the 95 % interval over the value
//! ```
//! `spread` and `brief` are those of [`crate::stats::bursts::Drift`], and the last line is its interval's: `a` is known with the degrees of
//! freedom of n windows and of what other classes show.

use super::super::{PlanClass, WindowRules};
use crate::stats::{LEVEL, t_quantile, z_quantile};

/// What other classes show of the spread counts as so many windows.
const PRIOR_DF: f64 = 4.0;

/// `a`: relative variance of one window of `length_s` with `hits`.
#[must_use]
pub(super) fn window_variance(class: &PlanClass, rules: &WindowRules, length_s: f64, hits: f64) -> f64 {
    class.windows.spread.powi(2) + rules.brief_s / length_s.max(1e-9) + 1.0 / hits.max(1e-9)
}

/// `q`: what is known of a rate without windows: nearly nothing, +-980 %.
pub(super) const NOTHING_KNOWN: f64 = 0.04;

/// `1 / V'` of `n` windows that lie in the part `watched` of the time, of a relative variance of `a` each.
#[must_use]
pub(super) fn knowledge(n: f64, a: f64, watched: f64) -> f64 {
    if n <= 0.0 { NOTHING_KNOWN } else { NOTHING_KNOWN + n / (a * (1.0 - watched).max(1e-12)) }
}

/// `1 / V'` at which the width is `width`, for many windows.
#[must_use]
pub(super) fn knowledge_at(width: f64) -> f64 {
    (z_quantile(LEVEL) / width).powi(2)
}

/// The width of `n` windows with this `1 / V'`.
#[must_use]
pub(super) fn width(n: f64, knowledge: f64) -> f64 {
    let df = (n - 1.0).max(0.0) + PRIOR_DF;
    let quantile = if n > 0.0 { t_quantile(LEVEL, df) } else { z_quantile(LEVEL) };
    quantile / knowledge.sqrt()
}
