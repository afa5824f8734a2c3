//! The candidates of the paper's approximation (Metz et al. §4.2): plans that are made fast, for searches to begin with.
//!
//! `S_{i,0}`: only `i` traced, for each `i` that fits. `S_{0,j}`: in order of `W_i F_i / c_i`, add a class if it fits, else *skip it and
//! go on*. What the best of them is worth is proven in [`super::approximation`].

use super::PlanError;
use super::model::{Candidate, Case, Model, SLACK};
use super::selection::critical_density;

/// More cases than this (distinct thresholds of minimum rates) are thinned out evenly, to stay near O(n log n). The
/// plan is then not proven to be worth half of the optimum.
pub(super) const MAX_CASES: usize = 64;

/// The best distinct candidates, best first; at least one.
pub(super) fn candidates(model: &Model<'_>, top: usize) -> Result<Vec<Candidate>, PlanError> {
    let cases = model.cases()?;
    let order = match cases.as_slice() {
        [case] => by_density(model, Some(case)),
        _ => by_density(model, None),
    };
    let step = cases.len().div_ceil(MAX_CASES);
    let mut found: Vec<Candidate> = Vec::new();
    let twins = if top > 1 { model.twins() } else { Vec::new() };
    // The last case (trace every class with a minimum rate, or there are none) is always looked at.
    for case in cases.iter().rev().step_by(step) {
        for traced in best_of_case(model, case, &order, top) {
            let traced = if top > 1 { Model::canonical(&traced, &twins) } else { traced };
            if found.iter().all(|c| c.traced != traced) {
                found.extend(model.candidate(traced));
            }
        }
    }
    found.sort_by(|a, b| b.value.total_cmp(&a.value));
    found.truncate(top);
    debug_assert!(!found.is_empty(), "a case that fits has a solution");
    Ok(found)
}

/// Items by `W F / c`, best first; what costs nothing comes first, what is worth nothing last.
///
/// If there is one case only, items that the greedy cannot take in it are left out before sorting, which is nearly
/// all of them where the budget is small: everything denser than the first item that does not fit is taken, and of the
/// rest only what costs no more than the room that is left then.
fn by_density(model: &Model<'_>, only: Option<&Case>) -> Vec<u32> {
    let mut keyed: Vec<(f64, f64, u32)> = (0u32..)
        .zip(&model.items)
        .map(|(index, item)| {
            let full = item.full_at_least();
            let density: f64 = match (full > 0.0, item.cost > 0.0) {
                (false, _) => 0.0,
                (true, false) => f64::INFINITY,
                (true, true) => full / item.cost,
            };
            (density, item.cost, index)
        })
        .collect();
    let total: f64 = keyed.iter().map(|k| k.1).sum();
    if let Some(case) = only.filter(|case| case.forced.is_empty()) {
        let room = model.budget * (1.0 + SLACK) - model.base_cost - case.s_min * model.sample_cost;
        if total > room && room > 0.0 {
            let mut pairs: Vec<(f64, f64)> = keyed.iter().filter(|k| k.1 > 0.0).map(|k| (k.0, k.1)).collect();
            let critical = critical_density(&mut pairs, room);
            let denser: f64 = keyed.iter().filter(|k| k.0 > critical).map(|k| k.1).sum();
            // A little more than what is left: sums in another order differ in their last bits.
            let left = (room - denser).max(0.0) + 1e-9 * model.budget;
            keyed.retain(|k| k.0 > critical || k.1 <= left);
        }
    }
    keyed.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
    keyed.into_iter().map(|k| k.2).collect()
}

/// What a candidate traces besides the forced items, without writing the list out.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// `S_{i,0}`.
    Single(u32),
    /// `S_{0,j}`: the greedy after position `j` of the order.
    Prefix(usize),
}

fn best_of_case(model: &Model<'_>, case: &Case, order: &[u32], top: usize) -> Vec<Vec<u32>> {
    let mut forced = vec![false; model.items.len()];
    let mut cost = model.base_cost;
    let mut full = 0.0;
    let mut slope = model.total_slope();
    let mut derived = model.derived_slope();
    for &i in &case.forced {
        let item = &model.items[i as usize];
        forced[i as usize] = true;
        cost += item.cost;
        full += item.full_at_least();
        slope -= item.slope;
        derived += item.derived_slope();
    }
    let reserve = case.s_min * model.sample_cost;
    let mut best = Best { top, shapes: Vec::new() };
    // Derived classes count with their events here; the few candidates kept are valued in full later.
    let value = |cost: f64, full: f64, slope: f64, derived: f64| {
        let s = model.best_s(cost, slope + derived, case.s_min);
        model.base_value(s) + full + s * slope.max(0.0)
    };
    best.offer(value(cost, full, slope, derived), Shape::Prefix(0));
    for (index, item) in (0u32..).zip(&model.items) {
        let with = cost + item.cost;
        if !forced[index as usize] && model.fits(with + reserve) {
            let any = slope - item.slope + derived + item.derived_slope();
            let s = model.best_s(with, any, case.s_min);
            let v = model.base_value(s) + full + item.traced_value(s) + s * (slope - item.slope).max(0.0);
            best.offer(v, Shape::Single(index));
        }
    }
    for (position, &index) in order.iter().enumerate() {
        let item = &model.items[index as usize];
        if !forced[index as usize] && model.fits(cost + item.cost + reserve) {
            cost += item.cost;
            full += item.full_at_least();
            slope -= item.slope;
            derived += item.derived_slope();
            best.offer(value(cost, full, slope, derived), Shape::Prefix(position + 1));
        }
    }
    best.shapes.iter().map(|&(_, shape)| write_out(model, case, order, shape)).collect()
}

/// The items that a shape traces, ascending.
fn write_out(model: &Model<'_>, case: &Case, order: &[u32], shape: Shape) -> Vec<u32> {
    let mut traced = case.forced.clone();
    match shape {
        Shape::Single(index) => traced.push(index),
        Shape::Prefix(end) => {
            traced = greedy(model, case, &order[..end]);
        }
    }
    traced.sort_unstable();
    traced
}

/// The forced items and those of `order`, in its order, that fit.
pub(super) fn greedy(model: &Model<'_>, case: &Case, order: &[u32]) -> Vec<u32> {
    let mut forced = vec![false; model.items.len()];
    let mut cost = model.base_cost;
    for &i in &case.forced {
        forced[i as usize] = true;
        cost += model.items[i as usize].cost;
    }
    let reserve = case.s_min * model.sample_cost;
    let mut traced = case.forced.clone();
    for &index in order {
        let item = &model.items[index as usize];
        if !forced[index as usize] && model.fits(cost + item.cost + reserve) {
            cost += item.cost;
            traced.push(index);
        }
    }
    traced.sort_unstable();
    traced
}

/// The best few shapes seen, best first.
struct Best {
    top: usize,
    shapes: Vec<(f64, Shape)>,
}

impl Best {
    fn offer(&mut self, value: f64, shape: Shape) {
        // A prefix of one class is also a single: room for twice as many, told apart when written out.
        if self.shapes.len() == 2 * self.top && self.shapes.last().is_some_and(|last| value <= last.0) {
            return;
        }
        let place = self.shapes.partition_point(|other| other.0 >= value);
        self.shapes.insert(place, (value, shape));
        self.shapes.truncate(2 * self.top);
    }
}
