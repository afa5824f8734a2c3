//! What the machine does to all functions together: what others took longer by is granted to each.

use super::super::cells::median;
use super::{ByKernel, Call, Event, LEAST_OTHERS, Seen, Watch};
use std::collections::BTreeMap;

/// Fewest calls of a function in a window that say how the machine is.
const LEAST_CALLS: usize = 5;
/// Part of the functions that must move in the same direction for the machine to be what moved.
const MOST: f64 = 0.75;
/// Change of all functions from which the machine is told to have changed, and below which it is told to be back: ln.
const DRIFT: [f64; 2] = [0.095, 0.049];
/// Standard errors beyond which a change of the machine is no chance.
const CHANCE: f64 = 4.0;
/// Standard error of a median of n values over sigma / sqrt(n), normal distribution.
const OF_MEDIAN: f64 = 1.2533;
/// Part by which the known change of the machine follows what a window shows, where that may be chance.
const FOLLOWS: f64 = 0.2;
/// Windows for which the last known drift holds where too few functions have calls.
const KEPT: u32 = 10;

impl Watch {
    /// How much longer (ln) each function's calls of this window took than before; of functions with enough calls.
    pub(super) fn shifts(&self, calls: &ByKernel) -> BTreeMap<u32, Shift> {
        let with_enough = calls.iter().filter(|(_, calls)| calls.len() >= LEAST_CALLS);
        let shift = |(id, calls): (&u32, &Vec<Call>)| {
            let calibration = &self.kernels.get(id)?.calibration;
            let grants = calibration.grants();
            let calls: Vec<Seen> =
                calls.iter().filter(|call| call.is_drawn()).map(|call| call.seen).collect();
            let calls: Vec<Seen> =
                calls.into_iter().filter(|seen| grants.tells_machine(seen.predicted_ns)).collect();
            if calls.len() < LEAST_CALLS {
                return None;
            }
            let residual = |c: &Seen| (c.own_ns / c.predicted_ns).ln() - calibration.median(c.predicted_ns);
            let value = median(&mut calls.iter().map(residual).collect::<Vec<f64>>());
            let spread =
                median(&mut calls.iter().map(|c| calibration.spread(c.predicted_ns)).collect::<Vec<_>>());
            let independent = (calls.len() as f64 / calibration.dependence()).max(1.0);
            Some((*id, Shift { value, error: OF_MEDIAN * spread / independent.sqrt() }))
        };
        with_enough.filter_map(shift).collect()
    }

    /// Change of the machine as the other functions see it, ln: a function's own calls have no part in what they are held against (its short ones are held against what the others say, too).
    pub(super) fn drift_beside(&mut self, id: u32, shifts: &BTreeMap<u32, Shift>) -> f64 {
        let others: Vec<Shift> = shifts.iter().filter(|(other, _)| **other != id).map(|(_, s)| *s).collect();
        let steps = self.steps;
        let known = self.known.entry(id).or_default();
        if others.len() >= LEAST_OTHERS {
            let Shift { value, error } = common(&others);
            // A jump is taken at once; what may be chance is smoothed.
            let follows = if (value - known.0).abs() > CHANCE * error { 1.0 } else { FOLLOWS / steps as f64 };
            // OK because a window has few steps.
            *known = (known.0 + follows * (value - known.0), KEPT * steps as u32);
        } else if known.1 > 0 {
            known.1 -= 1;
        } else {
            known.0 = 0.0;
        }
        known.0
    }

    pub(super) fn machine(&mut self, shifts: &BTreeMap<u32, Shift>) -> Vec<Event> {
        if shifts.len() <= LEAST_OTHERS {
            return Vec::new();
        }
        let all: Vec<Shift> = shifts.values().copied().collect();
        let Shift { value, error } = common(&all);
        let [begins, ends] = DRIFT;
        let is_moved = |s: &&Shift| s.value.signum() == value.signum() && s.value.abs() > ends;
        let moved = all.iter().filter(is_moved).count();
        let is_common = moved as f64 >= MOST * all.len() as f64;
        if !self.is_changed {
            let is_sure = is_common && value.abs() > begins.max(CHANCE * error);
            self.in_row = if is_sure { self.in_row + 1 } else { 0 };
            if self.in_row < 2 {
                return Vec::new();
            }
            (self.is_changed, self.in_row) = (true, 0);
            return vec![Event::Machine { factor: value.exp(), moved, of: all.len() }];
        }
        self.in_row = if value.abs() < ends { self.in_row + 1 } else { 0 };
        if self.in_row < 2 {
            return Vec::new();
        }
        (self.is_changed, self.in_row) = (false, 0);
        vec![Event::MachineBack]
    }
}

/// Change of a function's times, or of the machine's, ln.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shift {
    value: f64,
    /// Standard error.
    error: f64,
}

/// Median of the changes of several functions.
fn common(shifts: &[Shift]) -> Shift {
    let value = median(&mut shifts.iter().map(|s| s.value).collect::<Vec<f64>>());
    let error = median(&mut shifts.iter().map(|s| s.error).collect::<Vec<f64>>());
    Shift { value, error: OF_MEDIAN * error / (shifts.len() as f64).sqrt() }
}
