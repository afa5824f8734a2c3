//! Categories that change nothing: they would only divide the cells, and leave too few calls in each.

use super::call::Calls;
use super::cells::{LEAST_CALLS, MAD, Table, median};
use super::screen::{Roles, Unusable};
use std::collections::BTreeMap;

/// Change of the time up to which a category is idle, ln: 5 %.
const IDLE: f64 = 0.049;
/// Standard errors within which a larger change may be chance.
const CHANCE: f64 = 3.0;
/// Standard error of a median of n values over sigma / sqrt(n), normal distribution.
const OF_MEDIAN: f64 = 1.2533;
/// Ranges of time in each of which a category must change nothing.
const RANGES: usize = 3;
/// Part of the calls that must have others of another category with the same numbers; else nothing can be said.
const SHARED: f64 = 0.5;

/// Takes categories out of `roles` whose calls take as long as others with the same numbers.
pub(super) fn leave_idle(calls: &Calls, roles: &mut Roles) {
    if roles.categories.is_empty() {
        return;
    }
    let numbers_only = Roles { categories: Vec::new(), ..roles.clone() };
    let table = Table::new(calls, &numbers_only);
    let rows: Vec<&[super::Value]> = calls.iter().map(|(values, _)| values).collect();
    let places = places(&table);
    let mut kept = Vec::new();
    for category in std::mem::take(&mut roles.categories) {
        let alone = Roles { numbers: Vec::new(), categories: vec![category], unusable: Vec::new() };
        let name = |call: usize| alone.read(rows.get(call)?).and_then(|(_, names)| names.first().copied());
        if is_idle(&table, &places, name) {
            let input = calls.inputs().get(category).map(|i| i.name.clone()).unwrap_or_default();
            roles.unusable.push((input, Unusable::Idle));
        } else {
            kept.push(category);
        }
    }
    roles.categories = kept;
}

/// The range of time in which each cell lies.
fn places(table: &Table) -> Vec<usize> {
    let mut order: Vec<usize> = (0..table.cells.len()).collect();
    let time = |i: &usize| table.cells.get(*i).map_or(0.0, |c| c.median_ns);
    order.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let mut places = vec![0; order.len()];
    for (rank, i) in order.iter().enumerate() {
        if let Some(place) = places.get_mut(*i) {
            *place = rank * RANGES / order.len().max(1);
        }
    }
    places
}

fn is_idle(table: &Table, places: &[usize], name: impl Fn(usize) -> Option<u64>) -> bool {
    // Which categories each cell has, and the residuals of each category in each range.
    let mut in_cell: BTreeMap<usize, (u64, bool, u64)> = BTreeMap::new();
    let mut residuals: BTreeMap<(u64, usize), Vec<f64>> = BTreeMap::new();
    for member in table.members.iter().filter(|member| member.ns > 0.0) {
        let (Some(cell), Some(name)) = (table.cells.get(member.cell), name(member.call)) else { continue };
        let (first, is_shared, count) = in_cell.entry(member.cell).or_insert((name, false, 0));
        *is_shared |= *first != name;
        *count += 1;
        let place = places.get(member.cell).copied().unwrap_or(0);
        residuals.entry((name, place)).or_default().push((member.ns / cell.median_ns).ln());
    }
    let all: u64 = in_cell.values().map(|(_, _, count)| count).sum();
    let shared: u64 = in_cell.values().filter(|c| c.1).map(|(_, _, count)| count).sum();
    if (shared as f64) < SHARED * all as f64 {
        return false;
    }
    residuals.into_values().filter(|r| r.len() >= LEAST_CALLS).all(|mut r| {
        let middle = median(&mut r);
        let mut away: Vec<f64> = r.iter().map(|r| (r - middle).abs()).collect();
        let error = OF_MEDIAN * MAD * median(&mut away) / (r.len() as f64).sqrt();
        middle.abs() <= IDLE || middle.abs() <= CHANCE * error
    })
}
