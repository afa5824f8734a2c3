//! Medians of calls with the same inputs: what models are fitted to, and held to.

use super::call::Calls;
use super::screen::Roles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Fewest calls behind a median.
pub const LEAST_CALLS: usize = 10;
/// Most cells; with more, neighbours are merged.
const MOST_CELLS: usize = 512;
/// Cells per doubling where neighbours are merged: 9 % wide.
const PER_OCTAVE: [f64; 4] = [8.0, 4.0, 2.0, 1.0];
/// A robust estimate of the standard deviation is this times the median absolute deviation (normal distribution).
pub(super) const MAD: f64 = 1.4826;
/// Variance of the median of n values over sigma^2 / n (normal distribution, large n).
const OF_MEDIAN: f64 = std::f64::consts::FRAC_PI_2;
/// A median below so many times what the cost of watching is known to is no duration.
pub(super) const CLEAR: f64 = 2.0;
/// Calls that a cell's own spread must have to count as much as the spread of all cells together.
const SHRINK: f64 = 10.0;

/// Calls with the same inputs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    /// Values of the inputs.
    pub x: Vec<f64>,
    /// Index of the category in [`Table::categories`].
    pub category: usize,
    /// Median duration, ns.
    pub median_ns: f64,
    /// Calls.
    pub calls: u32,
    /// Variance of the median's logarithm: pi / 2 sigma^2 / n.
    pub log_variance: f64,
    /// What the cost of watching is known to, squared, as a part of the median: of all cells the same ns, so that it is no scatter, but the shorter a median is the less it says.
    pub watching_variance: f64,
}

/// Calls that are not behind the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// They did not return.
    pub not_returned: u64,
    /// The median of those with their inputs is below twice what the cost of watching them is known to.
    #[serde(default)]
    pub short: u64,
    /// An input could not be read, was negative, or was 2^40 or more.
    pub unreadable: u64,
    /// Fewer than 10 calls had their inputs, or inputs near them.
    pub few: u64,
    /// Part of all calls' time that is in unreadable and few ones.
    pub share_of_time: f64,
}

/// A call that is in a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Member {
    /// Index of the cell.
    pub cell: usize,
    /// Number of the call, as it was pushed.
    pub call: usize,
    /// What is left of its duration without what watching cost, ns: nothing or less, where that is as much as the call.
    pub ns: f64,
}

/// Calls with the same inputs that are [short](LeftOut::short).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Short {
    /// Values of the inputs.
    pub x: Vec<f64>,
    /// Index of the category in [`Table::categories`].
    pub category: usize,
    /// Number of each call, as it was pushed, and what is left of its duration, ns.
    pub calls: Vec<(usize, f64)>,
}

/// The cells of a function's calls.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub cells: Vec<Cell>,
    /// Values of the categories, of each combination that has calls, sorted.
    pub categories: Vec<Vec<u64>>,
    /// Each call that is in a cell.
    pub members: Vec<Member>,
    pub left_out: LeftOut,
    /// Shortest call, ns; at least what the cost of watching it is known to.
    pub shortest_ns: Option<f64>,
    /// Sets of inputs whose calls are short: no model is made from them.
    pub short: Vec<Short>,
    /// Medians up to twice this are no durations, ns.
    known_to_ns: f64,
}

/// Calls of one cell while it is made.
#[derive(Default)]
struct Pile {
    /// Sums of the logarithms of the inputs, for their geometric means.
    logs: Vec<f64>,
    /// Number and duration of each call.
    calls: Vec<(usize, f64)>,
}

type Key = (usize, Vec<u64>);

impl Table {
    /// The cells of `calls`, whose inputs are what `roles` says.
    pub fn new(calls: &Calls, roles: &Roles) -> Self {
        let mut table = Self { known_to_ns: calls.known_to_ns(), ..Self::default() };
        let mut names: BTreeMap<Vec<u64>, usize> = BTreeMap::new();
        let mut piles: BTreeMap<Key, Vec<(usize, f64)>> = BTreeMap::new();
        let (mut all_ns, mut unreadable_ns) = (0.0, 0.0);
        for (number, (values, taken)) in calls.iter().enumerate() {
            // Where what watching costs is as much as the call, less than nothing is left of half of them. Without these the median would be that of the longer half.
            let Some(ns) = taken.left_ns() else {
                table.left_out.not_returned += 1;
                continue;
            };
            all_ns += ns.max(0.0);
            // What is left of a short call is as much noise as time.
            let ns_at_least = ns.max(table.known_to_ns);
            if ns_at_least > 0.0 {
                let least = |least: f64| least.min(ns_at_least);
                table.shortest_ns = Some(table.shortest_ns.map_or(ns_at_least, least));
            }
            let Some((x, category)) = roles.read(values) else {
                table.left_out.unreadable += 1;
                unreadable_ns += ns.max(0.0);
                continue;
            };
            let count = names.len();
            let category = *names.entry(category).or_insert(count);
            piles.entry((category, x)).or_default().push((number, ns));
        }
        // By value: which category was called first differs from run to run.
        let mut places = vec![0; names.len()];
        for (place, (name, index)) in names.into_iter().enumerate() {
            table.categories.push(name);
            if let Some(slot) = places.get_mut(index) {
                *slot = place;
            }
        }
        let sorted = |((index, x), calls): (Key, Vec<(usize, f64)>)| {
            ((places.get(index).copied().unwrap_or(0), x), calls)
        };
        let piles = piles.into_iter().map(sorted).collect();
        let few_ns = table.fill(piles);
        table.left_out.share_of_time = (few_ns + unreadable_ns) / f64::max(all_ns, f64::MIN_POSITIVE);
        table.smooth_spreads();
        table
    }

    /// Makes the cells; returns the time of the calls that are in none, ns.
    fn fill(&mut self, piles: BTreeMap<Key, Vec<(usize, f64)>>) -> f64 {
        let (large, small): (Vec<_>, Vec<_>) =
            piles.into_iter().partition(|(_, calls)| calls.len() >= LEAST_CALLS);
        let mut kept: Vec<(usize, Pile)> = Vec::new();
        let mut rest = small;
        if large.len() > MOST_CELLS {
            rest.extend(large);
        } else {
            for ((category, x), calls) in large {
                let logs = x.iter().map(|x| calls.len() as f64 * (*x as f64).ln()).collect();
                kept.push((category, Pile { logs, calls }));
            }
        }
        let mut few_ns = 0.0;
        let mut last = Vec::new();
        for per_octave in PER_OCTAVE {
            last = merged(&rest, per_octave);
            let whole = last.iter().filter(|(_, pile)| pile.calls.len() >= LEAST_CALLS).count();
            if kept.len() + whole <= MOST_CELLS {
                break;
            }
        }
        for (category, pile) in last {
            if pile.calls.len() >= LEAST_CALLS {
                kept.push((category, pile));
            } else {
                self.left_out.few += pile.calls.len() as u64;
                few_ns += pile.calls.iter().map(|(_, ns)| ns.max(0.0)).sum::<f64>();
            }
        }
        for (category, pile) in kept {
            self.add(category, pile);
        }
        few_ns
    }

    fn add(&mut self, category: usize, pile: Pile) {
        let n = pile.calls.len() as f64;
        let index = self.cells.len();
        let log = |ns: f64| if ns > 0.0 { ns.ln() } else { f64::NEG_INFINITY };
        let mut logs: Vec<f64> = pile.calls.iter().map(|(_, ns)| log(*ns)).collect();
        let middle = median(&mut logs);
        let x = pile.logs.iter().map(|sum| whole(f64::exp(sum / n))).collect();
        if middle <= log(CLEAR * self.known_to_ns) {
            self.left_out.short += pile.calls.len() as u64;
            self.short.push(Short { x, category, calls: pile.calls });
            return;
        }
        let mut away: Vec<f64> = logs.iter().map(|log| (log - middle).abs()).collect();
        let spread = MAD * median(&mut away);
        self.members.extend(pile.calls.iter().map(|(call, ns)| Member { cell: index, call: *call, ns: *ns }));
        let calls = u32::try_from(pile.calls.len()).unwrap_or(u32::MAX);
        // The spread of single calls for now.
        let (median_ns, log_variance) = (middle.exp(), spread * spread);
        let watching_variance = (self.known_to_ns / median_ns).powi(2);
        self.cells.push(Cell { x, category, median_ns, calls, log_variance, watching_variance });
    }

    /// Makes variances of medians of those of calls; spreads learn from each other.
    ///
    /// ```text
    /// s_i'^2 = (n_i s_i^2 + 10 s^2) / (n_i + 10),   s^2: median over the cells
    /// ```
    fn smooth_spreads(&mut self) {
        let mut all: Vec<f64> = self.cells.iter().map(|c| c.log_variance).collect();
        let pooled = median(&mut all);
        for cell in &mut self.cells {
            let n = f64::from(cell.calls);
            cell.log_variance = (n * cell.log_variance + SHRINK * pooled) / (n + SHRINK) * OF_MEDIAN / n;
        }
    }
}

/// Cells of neighbours: inputs whose logarithms round to the same.
fn merged(piles: &[(Key, Vec<(usize, f64)>)], per_octave: f64) -> Vec<(usize, Pile)> {
    let mut cells: BTreeMap<(usize, Vec<i64>), Pile> = BTreeMap::new();
    for ((category, x), calls) in piles {
        // Zero is a neighbour of nothing. OK because log2 of a u64 is below 64.
        let place = |x: &u64| if *x == 0 { -1 } else { ((*x as f64).log2() * per_octave).round() as i64 };
        let pile = cells.entry((*category, x.iter().map(place).collect())).or_default();
        pile.logs.resize(x.len(), 0.0);
        for (sum, x) in pile.logs.iter_mut().zip(x) {
            *sum += calls.len() as f64 * (*x as f64).ln();
        }
        pile.calls.extend(calls);
    }
    cells.into_iter().map(|((category, _), pile)| (category, pile)).collect()
}

/// A geometric mean of equal whole numbers is that number.
fn whole(x: f64) -> f64 {
    if (x - x.round()).abs() < 1e-9 * x { x.round() } else { x }
}

/// The median; sorts the values. 0 of none.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
    if n % 2 == 1 { at(n / 2) } else { f64::midpoint(at((n / 2).saturating_sub(1)), at(n / 2)) }
}

#[cfg(test)]
mod tests {
    use super::super::call::{Input, Taken, Value};
    use super::super::screen;
    use super::*;

    fn table(rows: impl Iterator<Item = (u64, f64)>) -> Table {
        let mut calls = Calls::new(vec![Input::number("n")]);
        rows.for_each(|(n, ns)| calls.push(&[Value::Unsigned(n)], Taken::ns(ns)));
        let roles = screen::roles(&calls);
        Table::new(&calls, &roles)
    }

    #[test]
    fn a_cell_needs_ten_calls_and_has_their_median() {
        // 10, 20, 40, ... 12 calls each; 1,000,000 nine times.
        let rows = (0..72).map(|i| (10 << (i / 12), f64::from(100 + i % 12)));
        let table = table(rows.chain((0..9).map(|_| (1_000_000, 1e9))));
        assert_eq!(table.cells.len(), 6);
        assert!((table.cells[0].median_ns - 105.5).abs() < 0.01, "{:?}", table.cells[0]);
        assert_eq!(table.cells[3].x, [80.0]);
        assert_eq!(table.left_out.few, 9);
        assert!(table.left_out.share_of_time > 0.99, "one call that dominates is told");
        assert_eq!(table.shortest_ns, Some(100.0));
    }

    #[test]
    fn inputs_that_never_repeat_are_merged_with_their_neighbours() {
        let table = table((1_000..9_000).map(|n| (n, n as f64)));
        assert!((20..40).contains(&table.cells.len()), "{}", table.cells.len());
        for cell in &table.cells {
            // Median of a narrow cell lies near the time at its mean input.
            assert!((cell.median_ns / cell.x[0] - 1.0).abs() < 0.01, "{cell:?}");
        }
    }

    #[test]
    fn the_variance_of_medians_is_what_simulation_gives() {
        let mut random = crate::stats::sim::rng(7);
        let mut normal = || crate::stats::sim::normal(&mut random);
        let rows: Vec<(u64, f64)> = (0..400)
            .flat_map(|cell| (0..20).map(move |_| cell))
            .map(|cell| (1 + cell, 1_000.0 * f64::exp(0.2 * normal())))
            .collect();
        let table = table(rows.into_iter());
        let n = table.cells.len() as f64;
        let seen = table.cells.iter().map(|c| (c.median_ns / 1_000.0).ln().powi(2)).sum::<f64>() / n;
        let told = table.cells.iter().map(|c| c.log_variance).sum::<f64>() / n;
        assert!((seen / told - 1.0).abs() < 0.2, "{seen} {told}");
    }

    /// 20 calls of each of 30 inputs take `0.3 n` ns, and what watching them costs is `1,000 +- 20` ns, known to 10: of the calls of a few ns half are
    /// nothing or less.
    #[test]
    fn calls_of_which_nothing_is_left_count_for_the_median() {
        let mut calls = Calls::new(vec![Input::number("n")]);
        let mut random = crate::stats::sim::rng(7);
        for i in 0..600_u64 {
            let n = 10 << (i % 30 / 2);
            let noise_ns = 20.0 * crate::stats::sim::normal(&mut random);
            let taken = Taken {
                duration_ns: 1_000.0 + noise_ns + 0.3 * n as f64,
                watching_ns: 1_000.0,
                ..Taken::default()
            };
            calls.push(&[Value::Unsigned(n)], taken);
        }
        (0..600).for_each(|_| calls.watching_known_to(10.0));
        let table = Table::new(&calls, &screen::roles(&calls));
        assert!((2..=4).contains(&(table.left_out.short / 40)), "{:?}", table.left_out);
        assert_eq!(table.left_out.not_returned, 0);
        for cell in &table.cells {
            let off_ns = cell.median_ns - 0.3 * cell.x[0];
            assert!(off_ns.abs() < 15.0 && cell.median_ns > 20.0, "{cell:?}");
        }
    }

    #[test]
    fn thousands_of_inputs_become_at_most_512_cells() {
        let table = table((0..20_000_u64).flat_map(|i| (0..10).map(move |_| (1 + i * 7, 5.0))));
        assert!(table.cells.len() <= MOST_CELLS && table.cells.len() > 50, "{}", table.cells.len());
        assert_eq!(table.left_out.few, 0);
    }
}
