//! Plans out of subproblems: what is found on the way is kept here.

use super::super::model::{Model, SLACK};
use super::search::Bursts;

/// Value, sampling rate, and the attached items with their duties, ascending by item.
pub(super) type Duties = (f64, f64, Vec<(u32, f64)>);

/// A plan on items.
#[derive(Debug, Clone)]
pub(super) struct Solution {
    pub value: f64,
    pub s: f64,
    /// Attached items with their duties, ascending by item.
    pub duties: Vec<(u32, f64)>,
    /// Hash of the traced items, and of those in bursts.
    pub hash: (u64, u64),
}

/// The best few distinct solutions, best first.
#[derive(Debug)]
pub(super) struct Best {
    pub top: usize,
    pub list: Vec<Solution>,
}

impl Best {
    /// What a solution must be worth more than, to be kept.
    pub fn threshold(&self) -> f64 {
        if self.list.len() < self.top { f64::NEG_INFINITY } else { self.list[self.top - 1].value }
    }

    pub fn value(&self) -> f64 {
        self.list.first().map_or(f64::NEG_INFINITY, |s| s.value)
    }

    pub fn knows(&self, hash: (u64, u64), value: f64) -> bool {
        self.list.iter().any(|s| s.hash == hash && s.value >= value)
    }

    /// Keeps the solution if it is among the best; one plan per set of traced and burst items.
    pub fn keep(&mut self, solution: Solution) {
        if let Some(known) = self.list.iter().position(|s| s.hash == solution.hash) {
            if self.list[known].value >= solution.value {
                return;
            }
            self.list.remove(known);
        }
        let place = self.list.partition_point(|s| s.value >= solution.value);
        self.list.insert(place, solution);
        self.list.truncate(self.top);
    }
}

/// Least duty of an item in a burst at sampling rate `s`, and at least `min_duty`.
///
/// `d F + (1 - d) s rho >= F_min` for each class of the item, so `d >= (F_min - s rho) / (F - s rho)`.
pub(crate) fn duty_floor(model: &Model<'_>, min_duty: f64, item: u32, s: f64) -> f64 {
    let item = &model.items[item as usize];
    if item.min_s <= s {
        return min_duty;
    }
    let members = std::iter::once(item.rep).chain(item.derived.iter().map(|d| d.class));
    let floors = members.map(|index| {
        let class = &model.problem.classes[index as usize];
        let (all, sampled) = (class.traced_hz(), s * class.rho.value);
        let wanted = class.min_rate_hz.min(all);
        if wanted > sampled { (wanted - sampled) / (all - sampled) } else { 0.0 }
    });
    floors.fold(min_duty, f64::max).min(1.0)
}

/// [`duty_floor`] by this search's rules.
pub(super) fn floor(model: &Model<'_>, bursts: Bursts, item: u32, s: f64) -> f64 {
    duty_floor(model, bursts.min_duty, item, s)
}

/// The best duties of the `burst` items when `traced` ones are traced and all others sampled, with `s` between `lo`
/// and `hi`; `None` if the rules cannot be kept there.
pub(super) fn complete(
    model: &Model<'_>,
    bursts: Bursts,
    traced: &[u32],
    burst: &[u32],
    (lo, hi): (f64, f64),
) -> Option<Duties> {
    let attached = Attached::new(model, bursts, traced, burst);
    let lo = lo.max(attached.min_s);
    if lo > hi || !attached.fits(attached.floor_cost(lo)) {
        // The floors' cost is concave in `s`: it may fit at the upper end alone.
        return (lo <= hi && attached.fits(attached.floor_cost(hi))).then(|| attached.filled(hi));
    }
    let mut s = hi;
    if !attached.fits(attached.floor_cost(s)) {
        let (mut low, mut high) = (lo, hi);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if attached.fits(attached.floor_cost(middle)) {
                low = middle;
            } else {
                high = middle;
            }
        }
        s = low;
    }
    let mut best = attached.filled(s);
    if bursts.interior {
        for end in [lo, hi] {
            if attached.fits(attached.floor_cost(end)) {
                let other = attached.filled(end);
                if other.0 > best.0 {
                    best = other;
                }
            }
        }
    }
    Some(best)
}

struct Attached<'a> {
    model: &'a Model<'a>,
    bursts: Bursts,
    traced: &'a [u32],
    burst: &'a [u32],
    traced_cost: f64,
    /// `W rho` of what is only sampled.
    slope: f64,
    /// Sampling rate that the sampled classes need.
    min_s: f64,
}

impl<'a> Attached<'a> {
    fn new(model: &'a Model<'a>, bursts: Bursts, traced: &'a [u32], burst: &'a [u32]) -> Self {
        let mut on = vec![false; model.items.len()];
        for &i in traced.iter().chain(burst) {
            on[i as usize] = true;
        }
        let off = model.items.iter().zip(&on).filter(|&(_, &on)| !on).map(|(item, _)| item);
        let (slope, min_s) =
            off.fold((model.base_slope, model.s_min), |(w, s), i| (w + i.slope, s.max(i.min_s)));
        let traced_cost = model.base_cost + traced.iter().map(|&i| model.items[i as usize].cost).sum::<f64>();
        Self { model, bursts, traced, burst, traced_cost, slope, min_s }
    }

    fn fits(&self, cost: f64) -> bool {
        cost <= self.model.budget * (1.0 + 2.0 * SLACK)
    }

    fn floor(&self, item: u32, s: f64) -> f64 {
        floor(self.model, self.bursts, item, s)
    }

    /// What everything costs at `s` with the bursts at their floors.
    fn floor_cost(&self, s: f64) -> f64 {
        let items = &self.model.items;
        let one = |&i: &u32| self.floor(i, s) * items[i as usize].cost + self.bursts.charge;
        self.traced_cost + s * self.model.sample_cost + self.burst.iter().map(one).sum::<f64>()
    }

    /// The plan at `s`: floors, then (where bursts may be longer) the budget left to the densest bursts first.
    fn filled(&self, s: f64) -> Duties {
        let items = &self.model.items;
        let mut duties: Vec<(u32, f64)> = self.burst.iter().map(|&i| (i, self.floor(i, s))).collect();
        if self.bursts.interior {
            let mut room = self.model.budget - self.floor_cost(s);
            let density = |i: u32| {
                let item = &items[i as usize];
                let profit = item.profit(s);
                if item.cost > 0.0 { profit / item.cost } else { profit * 1e200 }
            };
            duties.sort_by(|a, b| density(b.0).total_cmp(&density(a.0)).then(a.0.cmp(&b.0)));
            for (i, duty) in &mut duties {
                let item = &items[*i as usize];
                if item.profit(s) <= 0.0 || room <= 0.0 {
                    break;
                }
                let more = if item.cost > 0.0 { (room / item.cost).min(1.0 - *duty) } else { 1.0 - *duty };
                *duty += more;
                room -= more * item.cost;
            }
        }
        let value = self.model.base_value(s)
            + s * self.slope
            + self.traced.iter().map(|&i| items[i as usize].traced_value(s)).sum::<f64>()
            + duties.iter().map(|&(i, d)| blend(self.model, i, d, s)).sum::<f64>();
        duties.retain(|d| d.1 > 0.0);
        duties.extend(self.traced.iter().map(|&i| (i, 1.0)));
        duties.sort_unstable_by_key(|d| d.0);
        (value, s, duties)
    }
}

/// `d t(s) + (1 - d) u(s)`.
fn blend(model: &Model<'_>, item: u32, duty: f64, s: f64) -> f64 {
    let item = &model.items[item as usize];
    duty * item.traced_value(s) + (1.0 - duty) * s * item.slope
}
