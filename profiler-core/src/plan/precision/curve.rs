//! What one class's interval can be narrowed to, and for how much.
//!
//! The class has one choice for each length of a window, and in each the number of windows per second `x` is free. With `q` of [`mod@super::width`],
//! `k = H - q a t`, the weight `w` and the price `c` of one window
//!
//! ```text
//! worth(x) = w/2 ln(1 + H x / (q a (1 - t x)))               minus the log of the width, but for a constant
//! worth'   = w/2 (k / (q a + k x) + t / (1 - t x))
//! ```
//! falls up to a duty of one half at most and grows beyond: the class is in bursts on the first part, or at its most windows, or traced. Where a is
//! small `worth'` is `w / (2 x (1 - t x))`: at a common price `mu` of the budget every class spends `w / 2 mu`, whatever it spreads and costs.
//! Windows are scarce, too: at a price `nu` of one per second a window costs `mu c + nu`.

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
    pub most_per_s: f64,
}

impl Choice {
    /// Expected length, s.
    fn t(&self) -> f64 {
        self.shape.mean_s
    }

    fn k(&self, horizon_s: f64) -> f64 {
        horizon_s - NOTHING_KNOWN * self.variance * self.t()
    }

    /// Up to so many windows per second the worth is concave, from there on convex.
    fn turn(&self, horizon_s: f64) -> f64 {
        let (t, k) = (self.t(), self.k(horizon_s));
        if k <= 0.0 { 0.0 } else { (k - t * NOTHING_KNOWN * self.variance) / (2.0 * k * t) }
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

impl Pick {
    /// The same, however many windows.
    pub fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Burst(a, _), Self::Burst(b, _)) => a == b,
            _ => self == other,
        }
    }
}

/// A pick with what it brings and takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offer {
    pub pick: Pick,
    pub worth: f64,
    /// CPU s/s.
    pub cost: f64,
    /// Windows per second.
    pub per_s: f64,
}

impl Offer {
    pub const NOTHING: Self = Self { pick: Pick::Sample, worth: 0.0, cost: 0.0, per_s: 0.0 };

    /// Every call is counted.
    pub const fn trace(worth: f64, cost: f64) -> Self {
        Self { pick: Pick::Trace, worth, cost, per_s: 0.0 }
    }
}

/// What the two things that are scarce are worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prices {
    /// `mu`: of one CPU s/s.
    pub mu: f64,
    /// `nu`: of one window per second.
    pub nu: f64,
}

/// One class.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    /// `w`, all classes and the sampler sum to one.
    pub weight: f64,
    horizon_s: f64,
    /// Knowledge at the floor of the width: more is worth nothing.
    enough: f64,
    /// Worth of tracing it over its weight.
    full: f64,
    /// Cost of tracing it, if it may be traced, CPU s/s.
    pub trace: Option<f64>,
    pub choices: Vec<Choice>,
    /// Its one choice is none that there is: see [`Curve::outline`].
    is_outline: bool,
}

impl Curve {
    /// The curve of a class without windows.
    pub fn new(problem: &Problem, class: &PlanClass, weight: f64) -> Self {
        let enough = knowledge_at(class.windows.floor());
        Self {
            weight,
            horizon_s: problem.horizon_s,
            enough,
            full: 0.5 * (enough / NOTHING_KNOWN).ln(),
            trace: (!class.never_trace && class.traced_hz() > 0.0).then(|| class.trace_cost()),
            choices: Vec::new(),
            is_outline: false,
        }
    }

    /// The same with windows of all lengths.
    pub fn with_lengths(mut self, problem: &Problem, class: &PlanClass) -> Self {
        if may_burst(problem, class) {
            self.choices = choices(class, &problem.window_rules());
        }
        self
    }

    /// The same with windows that are better than those of any length, for bounds only: as cheap and as often as the shortest, and as telling as the
    /// longest.
    pub fn outline(mut self, problem: &Problem, class: &PlanClass) -> Self {
        self.is_outline = true;
        if may_burst(problem, class) {
            self.choices.extend(outline(class, &problem.window_rules()));
        }
        self
    }

    /// The same with every `every`-th length only, and the longest; of an outline none.
    pub fn thinned(&self, every: usize) -> Self {
        let last = self.choices.len().saturating_sub(1);
        let is_kept = |i: usize| !self.is_outline && (i.is_multiple_of(every) || i == last);
        let kept = self.choices.iter().enumerate().filter(|(i, _)| is_kept(*i));
        Self { choices: kept.map(|(_, choice)| *choice).collect(), is_outline: false, ..*self }
    }

    /// The same with this pick or nothing.
    pub fn held(&self, pick: Pick) -> Self {
        let choices = match pick {
            Pick::Burst(choice, _) => vec![self.choices[choice]],
            Pick::Sample | Pick::Trace => Vec::new(),
        };
        Self { choices, trace: self.trace.filter(|_| pick == Pick::Trace), ..*self }
    }

    /// The same without an end of what is worth knowing, in bursts only.
    pub fn beyond(&self) -> Self {
        Self { enough: f64::INFINITY, trace: None, ..self.clone() }
    }

    /// What a class is worth that is traced all the time.
    pub fn full(&self) -> f64 {
        self.weight * self.full
    }

    /// `1 / V'` of windows of a choice.
    pub fn knowledge(&self, choice: usize, per_s: f64) -> f64 {
        let c = &self.choices[choice];
        knowledge(per_s * self.horizon_s, c.variance, per_s * c.t())
    }

    /// So many windows of a choice.
    pub fn burst(&self, choice: usize, per_s: f64) -> Offer {
        let worth = 0.5 * self.weight * (self.knowledge(choice, per_s).min(self.enough) / NOTHING_KNOWN).ln();
        let cost = per_s * self.choices[choice].shape.mean_cost_s;
        Offer { pick: Pick::Burst(choice, per_s), worth, cost, per_s }
    }

    /// More windows than these bring nothing, or are not possible: 1/s.
    fn most_per_s(&self, c: &Choice) -> f64 {
        if self.enough.is_infinite() {
            return c.most_per_s;
        }
        // knowledge(x) = enough.
        let a = c.variance * (self.enough - NOTHING_KNOWN);
        c.most_per_s.min(a / (self.horizon_s + a * c.t()))
    }

    /// The windows of a choice at which one more brings what it costs at these prices, 1/s.
    fn at_price(&self, c: &Choice, prices: Prices) -> f64 {
        let most = self.most_per_s(c);
        let (t, a, k) = (c.t(), NOTHING_KNOWN * c.variance, c.k(self.horizon_s));
        if k <= 0.0 || self.weight <= 0.0 {
            return most;
        }
        // With a for q a: p k t x^2 - p (k - a t) x + (H - p a) = 0: the smaller root.
        let p = 2.0 * (prices.mu * c.shape.mean_cost_s + prices.nu) / self.weight;
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

    /// The best offer less what it takes at these prices.
    pub fn best(&self, prices: Prices) -> Offer {
        let net = |o: &Offer| o.worth - prices.mu * o.cost - prices.nu * o.per_s;
        let mut best = Offer::NOTHING;
        let mut consider = |offer: Offer| {
            if net(&offer) > net(&best) {
                best = offer;
            }
        };
        if let Some(cost) = self.trace {
            consider(Offer::trace(self.full(), cost));
        }
        for (i, choice) in self.choices.iter().enumerate() {
            let (per_s, most) = (self.at_price(choice, prices), self.most_per_s(choice));
            consider(self.burst(i, per_s));
            // The worth is not concave everywhere: beyond its turn the end may be better.
            if per_s < most && most > choice.turn(self.horizon_s) {
                consider(self.burst(i, most));
            }
        }
        best
    }

    /// The best offer for `room` CPU s/s and so many windows per second.
    pub fn within(&self, room: f64, windows: f64) -> Offer {
        let mut best = Offer::NOTHING;
        if let Some(cost) = self.trace.filter(|cost| *cost <= room) {
            best = Offer::trace(self.full(), cost);
        }
        for (i, choice) in self.choices.iter().enumerate() {
            let per_s = (room / choice.shape.mean_cost_s).min(windows).min(self.most_per_s(choice));
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

/// The class may be observed in windows. Where the problem says nothing of them there are none.
pub(super) fn may_burst(problem: &Problem, class: &PlanClass) -> bool {
    let possible = problem.windows.is_some() || problem.burst.is_some();
    possible && !class.must_trace && (!class.never_trace || class.windows.only)
}

/// A window of the class is possible.
pub(super) fn has_window(problem: &Problem, class: &PlanClass) -> bool {
    let ends = |rules: &WindowRules| {
        let (rate, tau) = (class.traced_hz(), class.tau_s + class.detect_s);
        burst::ends(rate, tau, class.windows.first, &rules.prices, bounds_s(class, rules))
    };
    may_burst(problem, class) && ends(&problem.window_rules()).is_some()
}

/// Least length of a window, s, and most that one may cost, CPU s.
fn bounds_s(class: &PlanClass, rules: &WindowRules) -> (f64, f64) {
    let limit_s = class.windows.limit_s.unwrap_or(f64::INFINITY).min(rules.limit_s.unwrap_or(f64::INFINITY));
    (rules.shortest_s, limit_s)
}

/// The lengths that a window of the class may have.
fn shapes(class: &PlanClass, rules: &WindowRules) -> Vec<burst::Shape> {
    let (rate, tau) = (class.traced_hz(), class.tau_s + class.detect_s);
    burst::lengths(rate, tau, class.windows.first, &rules.prices, bounds_s(class, rules))
}

/// See [`Curve::outline`].
fn outline(class: &PlanClass, rules: &WindowRules) -> Option<Choice> {
    let (rate, tau) = (class.traced_hz(), class.tau_s + class.detect_s);
    let (shortest, longest) =
        burst::ends(rate, tau, class.windows.first, &rules.prices, bounds_s(class, rules))?;
    // Costs grow with lengths, but for where links need not wait any more.
    let later = burst::Shape::new(rate, tau, &rules.prices, shortest.length_s.max(rules.prices.fresh_s));
    let mean_cost_s = shortest.mean_cost_s.min(later.mean_cost_s);
    let shape = burst::Shape { mean_s: longest.mean_s, mean_cost_s, ..shortest };
    let wanted = class.windows.most_per_s(shortest.mean_s);
    Some(Choice {
        shape,
        variance: window_variance(class, rules, longest.mean_s, rate * longest.mean_s),
        most_per_s: (1.0 / rules.closest_s).min(LARGEST_DUTY / shortest.length_s).min(wanted),
    })
}

fn choices(class: &PlanClass, rules: &WindowRules) -> Vec<Choice> {
    let of = |shape: burst::Shape| Choice {
        shape,
        variance: window_variance(class, rules, shape.mean_s, class.traced_hz() * shape.mean_s),
        most_per_s: (1.0 / rules.closest_s)
            .min(LARGEST_DUTY / shape.length_s)
            .min(class.windows.most_per_s(shape.mean_s)),
    };
    shapes(class, rules).into_iter().map(of).collect()
}
