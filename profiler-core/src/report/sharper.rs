//! What a longer run or a larger budget would tell better: calls per second of the rows that matter most.
//!
//! The width of an interval falls with the root of the time watched, where chance makes it: four times as much halves it. Two things it does not
//! mend: what the price of a hit leaves unknown, and, with more budget alone, windows that differ more than chance lets them, where no more windows can be made.

use super::Row;
use crate::recording::WindowRow;
use crate::stats::{LEVEL, z_quantile};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rows that are spoken of.
const ROWS: usize = 3;
/// An interval this narrow needs no more: half of it over the value, that of [`crate::plan::WIDTH_FLOOR`].
const NARROW: f64 = crate::plan::WIDTH_FLOOR;
/// So many times the time watched halves an interval.
pub const TIMES: f64 = 4.0;
/// An interval that keeps this part of its width is limited by the price.
const KEPT: f64 = 0.8;
/// A promise to keep this part of the width is none.
const NO_NEWS: f64 = 0.9;
/// A larger budget that leaves an interval so many times as wide as a longer run does is no substitute for it.
const AS_GOOD: f64 = 1.1;
/// The agent's limit holds windows back where it cut more than this part of those there were.
const CUT_PART: f64 = 0.5;
/// Where less than this part of the budget was spent, a larger one would not be either.
const USED_PART: f64 = 0.6;
/// Windows of all classes per second at which a larger budget makes longer ones, not more, ...
const MANY_WINDOWS_HZ: f64 = 0.6 * crate::burst::MOST_WINDOWS_HZ;
/// ... and of one class.
const MANY_OF_ONE_HZ: f64 = 0.6 / crate::burst::CLOSEST_WINDOWS_S;

/// Why an interval is no narrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// What was watched: a longer run or a larger budget narrows it.
    Watched,
    /// How many windows there were: a longer run narrows it.
    Windows,
    /// Bursts that the agent's own limit cut: a larger one narrows it, or a longer run.
    Agent,
    /// Not the budget, of which much was left: a longer run narrows it.
    Unspent,
    /// What the price of a hit leaves unknown: nothing narrows it.
    Price,
}

/// How well the calls per second of one row are known, and what would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sharper {
    /// The row, as tables show it.
    pub name: String,
    /// Half of the interval over the value; `None`: it has no upper end.
    pub half_width: Option<f64>,
    /// The same of a run of [`TIMES`] the length: `sqrt((h^2 - p^2) / TIMES + p^2)`, where the price leaves `p` unknown; of what was not named no
    /// less than plans narrow it to.
    pub then: Option<f64>,
    /// Part of the run in which it was watched, 0 to 1.
    pub watched_share: f64,
    /// Why it is no narrower.
    pub limit: Limit,
}

/// What a run had and did with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunUse {
    /// Its length, s.
    pub length_s: f64,
    /// Bursts that the agent's own limit cut.
    pub bursts_cut: u64,
    /// CPU s that were charged, and that the budget allowed.
    pub charged_s: f64,
    pub allowed_s: f64,
}

/// The rows that matter most and could be known better: what was named, then by share and width.
#[must_use]
pub(super) fn of(
    rows: &[Row],
    windows: &BTreeMap<u32, Vec<&WindowRow>>,
    price_halves: &BTreeMap<u32, f64>,
    run: RunUse,
) -> Vec<Sharper> {
    let RunUse { length_s, bursts_cut, .. } = run;
    let all: usize = windows.values().map(Vec::len).sum();
    let bounds = Bounds {
        are_many: all as f64 > MANY_WINDOWS_HZ * length_s,
        are_cut: bursts_cut as f64 > CUT_PART * all as f64,
        is_unspent: run.charged_s < USED_PART * run.allowed_s,
    };
    let mut found: Vec<(bool, f64, Sharper)> = rows
        .iter()
        .filter_map(|row| {
            let price = row.class_id.and_then(|id| price_halves.get(&id)).copied().unwrap_or(0.0);
            let own = row.class_id.and_then(|id| windows.get(&id)).map_or(0, Vec::len);
            let are_many = bounds.are_many || own as f64 > MANY_OF_ONE_HZ * length_s;
            one(row, price, Bounds { are_many, ..bounds })
        })
        .collect();
    found.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)));
    found.into_iter().take(ROWS).map(|(_, _, sharper)| sharper).collect()
}

/// What holds windows of all classes back.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// There are as many as links allow, of all classes or of this one.
    are_many: bool,
    /// The agent's own limit cut many.
    are_cut: bool,
    /// Much of the budget was left.
    is_unspent: bool,
}

/// Whether a row was named, how much it matters, and what is to be said of it. `price`: what the price leaves unknown, over the value.
fn one(row: &Row, price: f64, bounds: Bounds) -> Option<(bool, f64, Sharper)> {
    let rate = row.rate_hz.filter(|rate| rate.value > 0.0)?;
    let share = row.share.map_or(0.0, |share| share.value);
    let half = (rate.high - rate.low) / 2.0 / rate.value;
    let hides = rate.high.is_infinite();
    if !hides && half <= NARROW {
        return None;
    }
    let chance = z_quantile(LEVEL) / (row.counted.unwrap_or(0).max(1) as f64).sqrt();
    let price = price.min(half);
    let then = ((half.powi(2) - price.powi(2)) / TIMES + price.powi(2)).sqrt();
    let is_price = hides || then > KEPT * half;
    // Longer windows, and not more of them, have more calls and differ as much.
    let chance = chance.min((half.powi(2) - price.powi(2)).sqrt());
    let of_longer = (half.powi(2) - chance.powi(2) + chance.powi(2) / TIMES).sqrt();
    let is_of_number = bounds.are_many && of_longer > AS_GOOD * then;
    // Of what was not named plans spend on others from there on.
    let then = if row.named { then } else { then.max(NARROW.min(half)) };
    if !is_price && then > NO_NEWS * half {
        return None;
    }
    let limits = [
        (is_price, Limit::Price),
        (bounds.are_cut, Limit::Agent),
        (is_of_number, Limit::Windows),
        (bounds.is_unspent, Limit::Unspent),
    ];
    let limit = limits.into_iter().find(|limit| limit.0).map_or(Limit::Watched, |limit| limit.1);
    let matters = share * (half.min(10.0) / NARROW).ln();
    let sharper = Sharper {
        name: row.shown_name().to_owned(),
        half_width: (!hides).then_some(half),
        then: (!hides).then_some(then),
        watched_share: row.watched_share,
        limit,
    };
    Some((row.named, matters, sharper))
}

#[cfg(test)]
#[path = "build/tests/sharper.rs"]
mod tests;
