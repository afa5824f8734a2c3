//! All `2^n` splits (Metz et al. §4.2: the paper's exact method). The oracle for everything else.

use super::model::{Candidate, Derived, Item, Model};
use super::{Options, Plan, PlanError, Strategy};

/// More free classes than this take too long.
pub(super) const MAX_ITEMS: usize = 20;

/// The best `options.top` distinct splits, proven.
pub(super) fn solve(model: &Model<'_>, options: &Options) -> Result<Vec<Plan>, PlanError> {
    let n = model.items.len();
    if n > MAX_ITEMS {
        return Err(PlanError::NotApplicable {
            strategy: Strategy::Exhaustive,
            why: format!("{n} free classes, at most {MAX_ITEMS} are tried out; use certified"),
        });
    }
    model.cases()?;
    let mut walk = Walk {
        model,
        top: options.top.max(1),
        twin: (0..n).map(|i| (0..i).rev().find(|&j| identical(&model.items[i], &model.items[j]))).collect(),
        best: Vec::new(),
    };
    walk.descend(0, 0, Sums { cost: model.base_cost, ..Sums::default() });
    let found: Vec<Candidate> =
        walk.best.iter().filter_map(|&(_, set)| model.candidate(members(set))).collect();
    let bound = found.iter().map(|c| c.value).fold(0.0, f64::max);
    Ok(found.iter().map(|c| model.plan(c, Strategy::Exhaustive, bound.max(c.value))).collect())
}

/// Whether two items can be exchanged without changing anything but names.
pub(super) fn identical(a: &Item, b: &Item) -> bool {
    a.cost == b.cost
        && a.full == b.full
        && a.slope == b.slope
        && a.min_s == b.min_s
        && a.derived.is_empty()
        && b.derived.is_empty()
}

fn members(set: u32) -> Vec<u32> {
    (0..32).filter(|i| set >> i & 1 == 1).collect()
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    cost: f64,
    full: f64,
    slope: f64,
    min_s: f64,
}

struct Walk<'a> {
    model: &'a Model<'a>,
    top: usize,
    /// The nearest earlier identical item: it is traced first, so that a split is met once.
    twin: Vec<Option<usize>>,
    best: Vec<(f64, u32)>,
}

impl Walk<'_> {
    fn descend(&mut self, index: usize, set: u32, sums: Sums) {
        let Some(item) = self.model.items.get(index) else {
            self.offer(set, sums);
            return;
        };
        let without = Sums { slope: sums.slope + item.slope, min_s: sums.min_s.max(item.min_s), ..sums };
        self.descend(index + 1, set, without);
        let cost = sums.cost + item.cost;
        let twin_traced = self.twin[index].is_none_or(|twin| set >> twin & 1 == 1);
        if twin_traced && self.model.fits(cost + self.model.s_min * self.model.sample_cost) {
            self.descend(index + 1, set | 1 << index, Sums { cost, full: sums.full + item.full, ..sums });
        }
    }

    fn offer(&mut self, set: u32, sums: Sums) {
        let model = self.model;
        let s_min = sums.min_s.max(model.s_min);
        if s_min > model.s_max || !model.fits(sums.cost + s_min * model.sample_cost) {
            return;
        }
        let derived: Vec<Derived> =
            members(set).iter().flat_map(|&i| model.items[i as usize].derived.iter().copied()).collect();
        let slope = model.base_slope + sums.slope;
        let any = slope + model.derived_slope() + derived.iter().map(|d| d.slope).sum::<f64>();
        let s = model.best_s(sums.cost, any, s_min);
        let value =
            model.base_value(s) + sums.full + derived.iter().map(|d| d.value(s)).sum::<f64>() + s * slope;
        if self.best.len() == self.top && self.best.last().is_some_and(|last| value <= last.0) {
            return;
        }
        let place = self.best.partition_point(|other| other.0 >= value);
        self.best.insert(place, (value, set));
        self.best.truncate(self.top);
    }
}
