//! The search: Lagrange's multipliers of what may be spent and of windows per second.
//!
//! ```text
//! g(mu, nu) = sum (worth - mu cost - nu windows) + mu b + nu m  >=  any plan         each class has its best offer by itself
//! ```
//! `g` is convex. Where windows are no limit, `nu = 0` and `mu` is found by bisection; else both by cutting planes: as no class is worth less than
//! nothing, `mu b + nu m <= g(mu, nu) <= g(0, 0)` at the best prices, a triangle, of which each look cuts off the side on which `g` is larger (through
//! the centre of gravity: 1 - 1/e of it stays at most, whatever its form; Levin 1965).
//!
//! Each choice that is looked at is counted as a step. Where steps are limited, prices are looked for with fewer lengths, and the lightest classes
//! have no windows at all; `g` at the prices found is then taken once more over all lengths, and over an outline of those classes. It is a bound at any
//! prices, so the bound holds for the problem that was asked; what was not looked at is in the gap.

use super::super::model::SLACK;
use super::super::{PlanClass, PlanError, Problem};
use super::curve::{Curve, Offer, Pick, Prices};
use super::sampler::Sampler;
use super::steps::{ALL_SPLITS, GIVING, PRICES, Steps};
use super::{cheap, weights};

/// Looks at all classes in which `mu` is found, and both prices.
pub(super) const HALVINGS: usize = 32;
pub(super) const CUTS: usize = 48;
/// Looks until a plan that keeps both limits is found near the best prices.
const STEPS: usize = 12;
/// All of these, the one at no price and the last two of the bisection.
pub(super) const LOOKS: usize = HALVINGS + CUTS + STEPS + 3;
/// With fewer than these no prices are looked for.
const FEWEST: usize = 10;
/// With fewer a split is not looked at.
const FEWEST_OF_SPLIT: usize = 24;
/// Of a limit on steps there is one class with windows for so many; its lengths are some 30.
const STEPS_OF_CLASS: usize = 600;
/// Prices are looked for down to this part of the largest.
const LEAST_PRICE: f64 = 1e-12;
/// Ways to split classes into traced, sampled and lengths of windows that are looked at closer, those of the lowest bounds.
const SPLITS: usize = 6;
/// A plan this near its bound is looked at no closer.
const NEAR: f64 = 1e-4;

/// A plan in the making.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub offers: Vec<Offer>,
    /// Sampling rate, Hz.
    pub s: f64,
}

pub(super) struct Search<'a> {
    pub problem: &'a Problem,
    /// Of each class, with the lengths that are tried.
    pub curves: Vec<Curve>,
    /// The same with all lengths, where fewer are tried; else empty.
    whole: Vec<Curve>,
    /// It is counted in full, whatever the price.
    pub is_full: Vec<bool>,
    pub sampler: Sampler,
    /// What is not for classes that are counted in full, CPU s/s; with the least samples.
    pub room: f64,
    /// Windows per second of all classes.
    pub windows: f64,
    pub steps: &'a Steps,
}

impl<'a> Search<'a> {
    /// `exact`: what costs next to nothing is counted in full.
    pub fn new(problem: &'a Problem, steps: &'a Steps, exact: bool) -> Result<Self, PlanError> {
        let sampler = Sampler::new(problem);
        let must: f64 = problem.classes.iter().filter(|c| c.must_trace).map(PlanClass::trace_cost).sum();
        let least = must + sampler.range.0 * sampler.price;
        let room = problem.room() * (1.0 + SLACK);
        if least > room {
            return Err(PlanError::infeasible(problem, least));
        }
        let is_cheap = if exact { cheap(problem, room - least) } else { vec![false; problem.classes.len()] };
        let is_full: Vec<bool> =
            problem.classes.iter().zip(&is_cheap).map(|(c, cheap)| c.must_trace || *cheap).collect();
        let weights: Vec<f64> = weights(problem).iter().map(|w| w * (1.0 - sampler.weight)).collect();
        let full: f64 =
            (0..is_full.len()).filter(|&i| is_full[i]).map(|i| problem.classes[i].trace_cost()).sum();
        let room = room - full;
        // What is left for one class, once the least samples are taken.
        let free = room - sampler.range.0 * sampler.price;
        let may_have_windows = heaviest(&weights, &is_full, steps.limit / STEPS_OF_CLASS);
        let curve = |i: usize| {
            let class = &problem.classes[i];
            let mut curve = Curve::new(problem, class, weights[i]);
            curve.trace = curve.trace.filter(|cost| *cost <= free);
            match (is_full[i], may_have_windows[i]) {
                // No need of windows where every call is counted.
                (true, _) => curve,
                (false, true) => curve.with_lengths(problem, class),
                (false, false) => curve.outline(problem, class),
            }
        };
        let whole: Vec<Curve> = (0..problem.classes.len()).map(curve).collect();
        steps.take(size(&whole));
        // Coarser lengths rather than fewer looks.
        let every = size(&whole).saturating_mul(LOOKS).div_ceil(steps.part(PRICES).max(1)).max(1);
        let windows = problem.window_rules().most_per_s;
        let (curves, whole) = match every == 1 && may_have_windows.iter().all(|may| *may) {
            true => (whole, Vec::new()),
            false => (whole.iter().map(|curve| curve.thinned(every)).collect(), whole),
        };
        Ok(Self { problem, curves, whole, is_full, sampler, room, windows, steps })
    }

    /// Every class's best offer at these prices.
    fn at(&self, curves: &[Curve], prices: Prices) -> Draft {
        self.steps.take(size(curves));
        let offers = curves
            .iter()
            .zip(&self.is_full)
            .map(|(curve, full)| if *full { Offer::trace(curve.full(), 0.0) } else { curve.best(prices) });
        Draft { offers: offers.collect(), s: self.sampler.best(prices.mu) }
    }

    /// Nothing but what is counted in full.
    fn least(&self) -> Draft {
        let offers = self
            .curves
            .iter()
            .zip(&self.is_full)
            .map(|(curve, full)| if *full { Offer::trace(curve.full(), 0.0) } else { Offer::NOTHING });
        Draft { offers: offers.collect(), s: self.sampler.range.0 }
    }

    /// What is left of the room and of windows per second.
    pub fn left(&self, draft: &Draft) -> (f64, f64) {
        let cost = draft.offers.iter().map(|o| o.cost).sum::<f64>() + draft.s * self.sampler.price;
        (self.room - cost, self.windows - draft.offers.iter().map(|o| o.per_s).sum::<f64>())
    }

    pub fn value(&self, draft: &Draft) -> f64 {
        draft.offers.iter().map(|o| o.worth).sum::<f64>() + self.sampler.worth(draft.s)
    }

    /// A plan near the best, and the bound on any.
    ///
    /// Between two prices a class jumps from one length to another, and leaves what nobody wants at that price. With each class's length held fast
    /// nothing jumps, so the splits near the best prices are each solved so.
    pub fn run(&self) -> (Draft, f64) {
        self.steps.allow(PRICES);
        let looker = self.look();
        let bound = self.proven(looker.bound);
        let (lowest, mut best, splits) = (looker.bound.0, looker.best.1, looker.splits);
        self.steps.allow(GIVING);
        self.fill(&mut best);
        self.steps.allow(ALL_SPLITS);
        for (_, split) in splits {
            let held = self.held(&split);
            if lowest - self.value(&best) <= NEAR || self.steps.left() < FEWEST_OF_SPLIT * size(&held.curves)
            {
                break;
            }
            let mut other = held.look().best.1;
            for (offer, of) in other.offers.iter_mut().zip(&split.offers) {
                if let (Pick::Burst(held, _), Pick::Burst(choice, _)) = (&mut offer.pick, of.pick) {
                    *held = choice;
                }
            }
            self.fill(&mut other);
            if self.value(&other) > self.value(&best) {
                best = other;
            }
        }
        (best, bound)
    }

    /// The same with one choice for each class.
    fn held(&self, split: &Draft) -> Search<'_> {
        let curves =
            self.curves.iter().zip(&split.offers).map(|(curve, offer)| curve.held(offer.pick)).collect();
        Search { curves, whole: Vec::new(), is_full: self.is_full.clone(), ..*self }
    }

    /// The bound on any plan.
    pub fn bound(&self) -> f64 {
        self.steps.allow(PRICES);
        self.proven(self.look().bound)
    }

    /// The bound on any plan with windows of any length, from the best prices of those that were tried.
    fn proven(&self, (bound, prices): (f64, Prices)) -> f64 {
        if self.whole.is_empty() { bound } else { self.bound_at(&self.at(&self.whole, prices), prices) }
    }

    /// `g`, of every class's best offer at these prices.
    fn bound_at(&self, best: &Draft, prices: Prices) -> f64 {
        let (room, windows) = self.left(best);
        // Windows may be without limit: then their price is 0.
        let priced = if prices.nu > 0.0 { prices.nu * windows } else { 0.0 };
        self.value(best) + prices.mu * room + priced
    }

    /// Looks for the best prices.
    fn look(&self) -> Looker<'_> {
        let least = self.least();
        let best = (self.value(&least), least);
        let bound = (f64::INFINITY, Prices { mu: 0.0, nu: 0.0 });
        let mut looker = Looker { search: self, bound, best, splits: Vec::new() };
        let (room, windows) = looker.look(Prices { mu: 0.0, nu: 0.0 });
        let looks = self.steps.left() / size(&self.curves);
        if (room < 0.0 || windows < 0.0) && looks >= FEWEST {
            let part = |of: usize| of.min(looks.saturating_mul(of) / LOOKS);
            // What all prices together may be: g(0, 0) less what is had for nothing.
            let scale = looker.bound.0 - self.value(&self.least());
            let free = (self.room - self.sampler.range.0 * self.sampler.price).max(1e-12 * self.room);
            if looker.bisect(scale / free.max(1e-300), part(HALVINGS)) {
                looker.cut(scale, (free.max(1e-300), self.windows), part(CUTS));
                looker.step(part(STEPS));
            }
        }
        looker
    }
}

/// Steps of one look: choices, and classes that have some; eight classes without any are one.
pub(super) fn size(curves: &[Curve]) -> usize {
    let of = |curve: &Curve| if curve.choices.is_empty() { 1 } else { 8 * (curve.choices.len() + 1) };
    (curves.iter().map(of).sum::<usize>() / 8).max(1)
}

/// Of each class: it is one of so many of the largest weights that are not counted in full.
fn heaviest(weights: &[f64], is_full: &[bool], most: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..weights.len()).filter(|&i| !is_full[i]).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    let mut is_one = is_full.to_vec();
    order.into_iter().take(most).for_each(|i| is_one[i] = true);
    is_one
}

/// Looks at prices and keeps what they showed.
struct Looker<'a> {
    search: &'a Search<'a>,
    /// The lowest bound, and the prices that gave it.
    bound: (f64, Prices),
    /// The best plan that keeps both limits, and its value.
    best: (f64, Draft),
    /// Splits of the lowest bounds, and these.
    splits: Vec<(f64, Draft)>,
}

impl Looker<'_> {
    /// What is left at these prices.
    fn look(&mut self, prices: Prices) -> (f64, f64) {
        let draft = self.search.at(&self.search.curves, prices);
        let value = self.search.value(&draft);
        let (room, windows) = self.search.left(&draft);
        let bound = self.search.bound_at(&draft, prices);
        if bound < self.bound.0 {
            self.bound = (bound, prices);
        }
        self.keep(bound, &draft);
        if room >= 0.0 && windows >= 0.0 && value > self.best.0 {
            self.best = (value, draft);
        }
        (room, windows)
    }

    /// Keeps a split, if it is one of the lowest bounds.
    fn keep(&mut self, bound: f64, draft: &Draft) {
        let is_like = |other: &Draft| {
            let mut pairs = draft.offers.iter().zip(&other.offers);
            pairs.all(|(a, b)| a.pick.is_like(b.pick))
        };
        if let Some(same) = self.splits.iter_mut().find(|(_, other)| is_like(other)) {
            same.0 = same.0.min(bound);
        } else if self.splits.len() < SPLITS {
            self.splits.push((bound, draft.clone()));
        } else if let Some(last) = self.splits.last_mut().filter(|last| bound < last.0) {
            *last = (bound, draft.clone());
        }
        self.splits.sort_by(|a, b| a.0.total_cmp(&b.0));
    }

    /// `mu`, at most `most`, where windows cost nothing. True: more of them are wanted than can be made.
    fn bisect(&mut self, most: f64, looks: usize) -> bool {
        let (mut low, mut high) = (LEAST_PRICE * most, most);
        for _ in 0..looks {
            let mu = (low * high).sqrt();
            if self.look(Prices { mu, nu: 0.0 }).0 >= 0.0 { high = mu } else { low = mu }
        }
        [high, low].map(|mu| self.look(Prices { mu, nu: 0.0 }).1 < 0.0).contains(&true)
    }

    /// Both prices, in the triangle `mu room + nu windows <= scale`.
    fn cut(&mut self, scale: f64, (room, windows): (f64, f64), looks: usize) {
        let mut area = vec![(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)];
        for _ in 0..looks {
            let Some((u, v)) = centre(&area) else { break };
            let left = self.look(Prices { mu: u * scale / room, nu: v * scale / windows });
            let slope = (left.0 / room, left.1 / windows);
            area = kept(&area, slope, slope.0 * u + slope.1 * v);
        }
    }

    /// From the best prices to dearer ones, until a plan keeps both limits.
    fn step(&mut self, looks: usize) {
        let Prices { mu, nu } = self.bound.1;
        let mut more = 1e-7;
        for _ in 0..looks {
            let (room, windows) = self.look(Prices { mu: mu * (1.0 + more), nu: nu * (1.0 + more) });
            if room >= 0.0 && windows >= 0.0 {
                break;
            }
            more *= 4.0;
        }
    }
}

/// Centre of gravity of a convex polygon; `None` where nothing is left of it.
fn centre(area: &[(f64, f64)]) -> Option<(f64, f64)> {
    let &(x0, y0) = area.first()?;
    let (mut sum, mut x, mut y) = (0.0, 0.0, 0.0);
    for pair in area.windows(2).skip(1) {
        let [(ax, ay), (bx, by)] = [0, 1].map(|i| (pair[i].0 - x0, pair[i].1 - y0));
        let twice = (ax * by - ay * bx).abs();
        sum += twice;
        x += twice * (ax + bx) / 3.0;
        y += twice * (ay + by) / 3.0;
    }
    (sum > 1e-30).then(|| (x0 + x / sum, y0 + y / sum))
}

/// The part of a convex polygon in which `slope . p <= at`.
fn kept(area: &[(f64, f64)], slope: (f64, f64), at: f64) -> Vec<(f64, f64)> {
    let over = |p: (f64, f64)| slope.0 * p.0 + slope.1 * p.1 - at;
    let mut out = Vec::with_capacity(area.len() + 1);
    for (i, &p) in area.iter().enumerate() {
        let q = area[(i + 1) % area.len()];
        let (a, b) = (over(p), over(q));
        if a <= 0.0 {
            out.push(p);
        }
        if (a < 0.0 && b > 0.0) || (a > 0.0 && b < 0.0) {
            let t = a / (a - b);
            out.push((p.0 + t * (q.0 - p.0), p.1 + t * (q.1 - p.1)));
        }
    }
    out
}
