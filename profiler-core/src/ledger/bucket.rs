//! The token bucket: how much may be spent right now.

use crate::units::OverheadBudget;

/// CPU seconds per second that a target is taken to use at least, so that an idle service that wakes up is
/// not starved of observation: 50 ms per second. The receipt says so.
pub const FLOOR_CPU_PER_S: f64 = 0.05;

/// Seconds of accrual that the bucket holds: what was not spent earlier than that is forfeited.
pub const HOLD_S: f64 = 0.25;

/// Tokens of monitoring CPU time, ns.
///
/// ```text
/// accrual  = max(B (target CPU - charged), B x 50 ms/s x elapsed) / cut     share budgets
///          = b x elapsed / cut                                              absolute budgets
/// tokens  <- min(tokens + accrual, 0.25 s x accrual rate)
/// ```
/// Whoever spends takes tokens; what had to be paid without asking (the hits between a trip and the detach)
/// makes the tokens negative, and that debt is never forgiven. Hence over any stretch of time
/// *spent <= accrued + what the bucket held before + debt at the end*.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    budget: OverheadBudget,
    tokens_ns: f64,
    /// Accrual rate, smoothed over [`HOLD_S`]; CPU ns per ns.
    rate: Option<f64>,
    accrued_ns: f64,
    spent_ns: f64,
    /// The budget is cut by this.
    cut: f64,
}

impl TokenBucket {
    /// An empty bucket.
    #[must_use]
    pub fn new(budget: OverheadBudget) -> Self {
        Self { budget, tokens_ns: 0.0, rate: None, accrued_ns: 0.0, spent_ns: 0.0, cut: 1.0 }
    }

    /// Adds what an interval of `elapsed_ns` earns, in which the target used `target_cpu_ns` of CPU time of
    /// which `charged_ns` was ours; returns the tokens earned, ns, before the bucket's brim cuts them.
    pub fn accrue(&mut self, elapsed_ns: f64, target_cpu_ns: f64, charged_ns: f64) -> f64 {
        if elapsed_ns <= 0.0 || !elapsed_ns.is_finite() {
            return 0.0;
        }
        let own = (target_cpu_ns - charged_ns).max(0.0);
        let own = if own.is_finite() { own } else { 0.0 };
        let earned = self.allowed(own / elapsed_ns) * elapsed_ns;
        // Ticks jitter, so the brim follows a smoothed rate: weight 1 - e^(-elapsed / hold).
        let now = earned / elapsed_ns;
        let weight = 1.0 - (-elapsed_ns / (HOLD_S * 1e9)).exp();
        let rate = self.rate.map_or(now, |old| old + weight * (now - old));
        self.rate = Some(rate);
        self.accrued_ns += earned;
        self.tokens_ns = (self.tokens_ns + earned).min(self.capacity_ns());
        earned
    }

    /// What the budget, cut as it is, allows while the target uses `cpu_per_s` CPU s/s by itself (or the floor, if that is less):
    /// CPU s/s.
    #[must_use]
    pub fn allowed(&self, cpu_per_s: f64) -> f64 {
        self.budget.cpu_per_second(cpu_per_s.max(FLOOR_CPU_PER_S)) / self.cut
    }

    /// From now on the budget is this many times smaller.
    pub fn cut(&mut self, factor: f64) {
        self.cut = factor.max(1.0);
    }

    /// See [`TokenBucket::cut`]; 1: it is what the user allowed.
    #[must_use]
    pub fn cut_by(&self) -> f64 {
        self.cut
    }

    /// Takes `cost_ns`; the tokens may become negative.
    pub fn spend(&mut self, cost_ns: f64) {
        let cost_ns = if cost_ns.is_finite() { cost_ns.max(0.0) } else { 0.0 };
        self.tokens_ns -= cost_ns;
        self.spent_ns += cost_ns;
    }

    /// Takes `cost_ns` if all of it is there.
    #[must_use]
    pub fn try_spend(&mut self, cost_ns: f64) -> bool {
        let fits = cost_ns <= self.available_ns();
        if fits {
            self.spend(cost_ns);
        }
        fits
    }

    /// What may be spent now, ns; never negative.
    #[must_use]
    pub fn available_ns(&self) -> f64 {
        self.tokens_ns.max(0.0)
    }

    /// What was spent beyond the tokens and is still to be earned, ns.
    #[must_use]
    pub fn debt_ns(&self) -> f64 {
        (-self.tokens_ns).max(0.0)
    }

    /// What the bucket holds when full, ns; 0 before the first accrual.
    #[must_use]
    pub fn capacity_ns(&self) -> f64 {
        self.rate.unwrap_or(0.0) * HOLD_S * 1e9
    }

    /// Tokens earned per second, smoothed: CPU s per s.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate.unwrap_or(0.0)
    }

    /// All tokens earned so far, ns, those that did not fit included.
    #[must_use]
    pub fn accrued_ns(&self) -> f64 {
        self.accrued_ns
    }

    /// All tokens spent so far, ns.
    #[must_use]
    pub fn spent_ns(&self) -> f64 {
        self.spent_ns
    }
}
