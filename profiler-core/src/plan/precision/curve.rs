//! What one class's interval can be narrowed to, and for how much.
//!
//! The class has one choice for each length of a window, and in each the number of windows per second `x` is free. With `q` of [`mod@super::width`],
//! `k = H - q a t`, the weight `w` and the price `c` of one window
//!
//! ```text
//! worth(x) = w/2 ln(1 + H x / (q a (1 - t x)))               minus the log of the width, but for a constant
//! worth'   = w/2 (k / (q a + k x) + t / (1 - t x))
//! ```
//! falls up to a duty of one half and grows beyond: the class is in bursts on the first part, or traced. Where a is
//! small `worth'` is `w / (2 x (1 - t x))`: at a common price `mu` of the budget every class spends `w / 2 mu`, whatever it spreads and costs.

use super::super::{PlanClass, Problem, WindowRules};
use super::width::{NOTHING_KNOWN, knowledge, knowledge_at, window_variance};
use crate::burst::{self, LARGEST_DUTY};

/// Windows of one length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub shape: burst::Shape,
    /// `a`.
    variance: f64,
    /// Bound of `x`, 1/s.
    most_per_s: f64,
}

impl Choice {
    /// Expected length, s.
    fn t(&self) -> f64 {
        self.shape.mean_s
    }

    fn k(&self, horizon_s: f64) -> f64 {
        horizon_s - NOTHING_KNOWN * self.variance * self.t()
    }
}

/// What is done with a class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Pick {
    Sample,
    Trace,
    /// Windows of the choice of this index, so many per second.
    Burst(usize, f64),
}

/// A pick with what it brings and costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offer {
    pub pick: Pick,
    pub worth: f64,
    pub cost: f64,
}

const NOTHING: Offer = Offer { pick: Pick::Sample, worth: 0.0, cost: 0.0 };

/// One class.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    /// `w`, all classes and the sampler sum to one.
    pub weight: f64,
    horizon_s: f64,
    /// Knowledge at the floor of the width: more is worth nothing.
    enough: f64,
    /// Cost of tracing it, if it may be traced, CPU s/s.
    trace: Option<f64>,
    pub choices: Vec<Choice>,
}

impl Curve {
    /// The curve of a class whose windows begin `closest_s` apart at least. `is_known`: bursts of it are possible.
    pub fn new(problem: &Problem, class: &PlanClass, weight: f64, closest_s: f64) -> Self {
        let rules = problem.window_rules();
        let may_burst = !class.must_trace && (!class.never_trace || class.windows.only);
        let choices = if may_burst { choices(class, &rules, closest_s) } else { Vec::new() };
        Self {
            weight,
            horizon_s: problem.horizon_s,
            enough: knowledge_at(class.windows.floor()),
            trace: (!class.never_trace && class.traced_hz() > 0.0).then(|| class.trace_cost()),
            choices,
        }
    }

    /// What a class is worth that is traced all the time.
    pub fn full(&self) -> f64 {
        0.5 * self.weight * (self.enough / NOTHING_KNOWN).ln()
    }

    /// `1 / V'` of windows of a choice.
    pub fn knowledge(&self, choice: usize, per_s: f64) -> f64 {
        let c = &self.choices[choice];
        knowledge(per_s * self.horizon_s, c.variance, per_s * c.t())
    }

    fn burst(&self, choice: usize, per_s: f64) -> Offer {
        let worth = 0.5 * self.weight * (self.knowledge(choice, per_s).min(self.enough) / NOTHING_KNOWN).ln();
        let cost = per_s * self.choices[choice].shape.mean_cost_s;
        Offer { pick: Pick::Burst(choice, per_s), worth, cost }
    }

    /// More windows than these bring nothing, or are not possible: 1/s.
    fn most_per_s(&self, c: &Choice) -> f64 {
        // knowledge(x) = enough.
        let a = c.variance * (self.enough - NOTHING_KNOWN);
        c.most_per_s.min(a / (self.horizon_s + a * c.t()))
    }

    /// The windows of a choice at which one CPU s/s more brings `mu`.
    fn at_price(&self, c: &Choice, mu: f64) -> f64 {
        let most = self.most_per_s(c);
        let (t, a, k) = (c.t(), NOTHING_KNOWN * c.variance, c.k(self.horizon_s));
        if k <= 0.0 || self.weight <= 0.0 {
            return most;
        }
        // With a for q a: p k t x^2 - p (k - a t) x + (H - p a) = 0: the smaller root.
        let p = 2.0 * mu * c.shape.mean_cost_s / self.weight;
        let (square, linear, rest) = (p * k * t, p * (k - a * t), self.horizon_s - p * a);
        if rest <= 0.0 {
            return 0.0;
        }
        let under = linear * linear - 4.0 * square * rest;
        if under <= 0.0 || linear <= 0.0 {
            return most;
        }
        (2.0 * rest / (linear + under.sqrt())).min(most)
    }

    /// The best offer less `mu` times its cost.
    pub fn best(&self, mu: f64) -> Offer {
        let net = |o: &Offer| o.worth - mu * o.cost;
        let mut best = NOTHING;
        let mut consider = |offer: Offer| {
            if net(&offer) > net(&best) {
                best = offer;
            }
        };
        if let Some(cost) = self.trace {
            consider(Offer { pick: Pick::Trace, worth: self.full(), cost });
        }
        for (i, choice) in self.choices.iter().enumerate() {
            consider(self.burst(i, self.at_price(choice, mu)));
            // Where the worth is not concave an end may be better.
            if choice.k(self.horizon_s) <= 0.0 || choice.most_per_s * choice.t() > 0.49 {
                consider(self.burst(i, self.most_per_s(choice)));
            }
        }
        best
    }

    /// The best offer for `room` CPU s/s.
    pub fn within(&self, room: f64) -> Offer {
        let mut best = NOTHING;
        if let Some(cost) = self.trace.filter(|cost| *cost <= room) {
            best = Offer { pick: Pick::Trace, worth: self.full(), cost };
        }
        for (i, choice) in self.choices.iter().enumerate() {
            let per_s = (room / choice.shape.mean_cost_s).min(self.most_per_s(choice));
            let offer = self.burst(i, per_s.max(0.0));
            let is_better = offer.worth > best.worth * (1.0 + 1e-12)
                || offer.worth >= best.worth && offer.cost < best.cost;
            if is_better {
                best = offer;
            }
        }
        best
    }
}

/// The lengths that a window of the class may have.
fn choices(class: &PlanClass, rules: &WindowRules, closest_s: f64) -> Vec<Choice> {
    let limit_s = class.windows.limit_s.unwrap_or(f64::INFINITY).min(rules.limit_s.unwrap_or(f64::INFINITY));
    let (rate, tau) = (class.traced_hz(), class.tau_s + class.detect_s);
    burst::lengths(rate, tau, class.windows.first, &rules.prices, (rules.shortest_s, limit_s))
        .into_iter()
        .map(|shape| Choice {
            shape,
            variance: window_variance(class, rules, shape.mean_s, rate * shape.mean_s),
            most_per_s: (1.0 / closest_s).min(LARGEST_DUTY / shape.length_s),
        })
        .collect()
}
