//! Calls that take far longer than any that was recorded. How rare such a call is the recorded ones cannot say, so that one of them is no alarm; but who looks for what is wrong wants to
//! see it. Pure.
//!
//! How many are told is bounded without any statistics: each takes [`STEP`] times as long for its inputs as the one that was told before.

use super::judge::Judged;
use profiler_core::models::Model;
use std::collections::BTreeMap;

/// Fewest times that a call must take what was expected, and ns that it must take longer: what a host does to any call is no news.
const LEAST: f64 = 100.0;
const LEAST_NS: f64 = 10e6;
/// A further one is told if it took so many times as long for its inputs.
const STEP: f64 = 4.0;
/// Calls in flight that are known, at most: one that is forgotten counts twice.
const MOST: usize = 1_024;

/// Of a function.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Slowest {
    /// Calls that were so long, or are by now.
    pub calls: u64,
    /// Begin and thread of those that were counted in flight, and when each was seen last, ktime ns: of some the end is never seen.
    in_flight: BTreeMap<(u64, u32), u64>,
    /// The longest of them, ns.
    pub longest_ns: f64,
    /// Time over the predicted one of the last that was told; 0: none was.
    told: f64,
}

impl Slowest {
    /// Of a call, or of what it took so far: its time over the predicted one, if it is news.
    pub fn note(&mut self, model: &Model, call: &Judged, now_ns: u64) -> Option<f64> {
        let (predicted_ns, own_ns) = (call.seen.predicted_ns, call.seen.own_ns);
        let ratio = own_ns / predicted_ns;
        let is_long = ratio >= LEAST && own_ns - predicted_ns >= LEAST_NS;
        if !is_long || !model.is_beyond(predicted_ns, own_ns) {
            return None;
        }
        let id = (call.row.time_ns, call.row.tid);
        let is_new =
            if call.is_running { self.flies(id, now_ns) } else { self.in_flight.remove(&id).is_none() };
        self.calls += u64::from(is_new);
        self.longest_ns = self.longest_ns.max(own_ns);
        (ratio >= STEP * self.told).then_some(ratio)
    }

    /// It is in flight; whether that was not known.
    fn flies(&mut self, id: (u64, u32), now_ns: u64) -> bool {
        if self.in_flight.len() >= MOST && !self.in_flight.contains_key(&id) {
            let oldest = self.in_flight.iter().min_by_key(|(_, seen_ns)| **seen_ns).map(|(id, _)| *id);
            oldest.map(|oldest| self.in_flight.remove(&oldest));
        }
        self.in_flight.insert(id, now_ns).is_none()
    }

    /// One of that ratio was told.
    pub fn tell(&mut self, ratio: f64) {
        self.told = ratio;
    }
}
