//! Measures in the target what lies between the two time stamps of a call, where the host's price is not good enough.
//!
//! A function may have a *pair*: a class with a site at the function's own entry and one at an instruction right behind it. The durations
//! that it shows are the price and next to nothing else. This client opens windows of pairs, some tens of calls each, and only while
//! nothing of the function itself is attached: neither measures the other, and no call of the function goes unseen for it.
//!
//! It asks for a pair where calls are short against the price and often enough to be worth it, where a function is called so often that its
//! rate is known no better than what its hits cost ([`hides_rate`]), and where the plan waits for it before it traces a function; it stops when there are
//! enough intervals. What they say is the report's business.

use super::{Activity, Notice, Share};
use crate::class::{ClassId, ExitMode};
use crate::clients::Client;
use crate::recording::{WindowKind, WindowRow};
use crate::run::order::{Ending, Order, Purpose};
use crate::run::pairs::{AWAITED, FEWEST_CALLS, FEWEST_DURATIONS};
use crate::run::view::{ClassView, LinkView, View};
use std::collections::{BTreeMap, VecDeque};

/// Calls of more than so many times the price are known well enough without a pair.
const LONG_CALLS: f64 = 20.0;
/// Part of a window's time that its hits may cost without hiding the rate.
const HIDING_PART: f64 = 0.2;
/// Intervals that a window must show, or it was in vain.
const FEWEST_INTERVALS: u64 = 5;
/// Intervals that are enough.
const ENOUGH: u64 = 300;
/// Hits of a window.
const WINDOW_HITS: u64 = 100;
/// The same where a link waits.
const AWAITED_HITS: u64 = 40;
/// Pairs that links wait for, at once.
const AWAITED_AT_ONCE: usize = 4;
/// Longest window, ns.
const WINDOW_NS: u64 = 500_000_000;
/// From the end of a window of a pair to its next, ns: other moments may have another price.
const PAUSE_NS: u64 = 700_000_000;
/// Windows in vain, one after the other, after which a pair is given up.
const VAIN_WINDOWS: u32 = 3;

/// What is known of a pair.
#[derive(Debug, Default)]
struct Pair {
    intervals: u64,
    /// Windows in a row that showed next to none.
    vain: u32,
    /// It was asked for, or is open.
    asked: bool,
    /// When its window is to end, ktime ns.
    until_ns: Option<u64>,
    /// Before this it is not asked for again, ktime ns.
    not_before_ns: u64,
    refused: bool,
}

/// The client.
#[derive(Debug, Default)]
pub struct StampPairs {
    pairs: BTreeMap<ClassId, Pair>,
    /// When windows of the last [`PAUSE_NS`] ended, ktime ns, and the CPU s that each took.
    recent: VecDeque<(u64, f64)>,
    /// CPU s/s at present.
    cost: f64,
}

impl StampPairs {
    /// None is known yet: they come with the view.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn interval(&mut self, share: &Share, view: &View, orders: &mut Vec<Order>) {
        let now = view.now_ns;
        self.recent.retain(|(ended_ns, _)| now.saturating_sub(*ended_ns) < PAUSE_NS);
        self.cost = self.recent.iter().map(|(_, cost_s)| cost_s).sum::<f64>() * 1e9 / PAUSE_NS as f64;
        let mut asked = 0;
        for class in &view.classes {
            let Some(of) = class.traits.stamps_of else { continue };
            let function = view.class(of);
            let pair = self.pairs.entry(class.id).or_default();
            if !pair.asked {
                continue;
            }
            asked += 1;
            let over = pair.until_ns.is_some_and(|until| now >= until);
            // The function's own programs would run between the pair's stamps.
            if over || function.link != LinkView::Off {
                pair.until_ns = None;
                orders.push(Order::Close(class.id, Ending::AtOnce));
            }
        }
        if !share.suspension.may_ask() {
            return;
        }
        let mut due: Vec<(Urgency, &ClassView)> = view
            .classes
            .iter()
            .filter_map(|class| {
                let function = view.class(class.traits.stamps_of?);
                let pair = self.pairs.get(&class.id)?;
                let urgency = matters(function, class).filter(|_| class.may_open())?;
                let (enough, pauses) = match urgency {
                    Urgency::Awaited => (AWAITED, false),
                    Urgency::Known => (ENOUGH, true),
                };
                let is_due =
                    !pair.refused && pair.vain < VAIN_WINDOWS && (!pauses || now >= pair.not_before_ns);
                (is_due && !pair.asked && pair.intervals < enough).then_some((urgency, class))
            })
            .collect();
        due.sort_by_key(|(urgency, _)| *urgency);
        for (urgency, class) in due {
            let at_once = if urgency == Urgency::Awaited { AWAITED_AT_ONCE } else { 1 };
            if asked < at_once {
                asked += usize::from(self.open(class, urgency, share, orders));
            }
        }
    }

    /// Asks for a window of this pair, if one may be had for what may be spent.
    fn open(&mut self, class: &ClassView, urgency: Urgency, share: &Share, orders: &mut Vec<Order>) -> bool {
        let (most, at_once) = match urgency {
            Urgency::Awaited => (AWAITED_HITS, AWAITED_AT_ONCE),
            Urgency::Known => (WINDOW_HITS, 1),
        };
        // What it is allowed in a window and the pause after it.
        let allowed_ns = share.allowed * (WINDOW_NS + PAUSE_NS) as f64 / at_once as f64;
        // OK because the cast saturates.
        let hits = (2.0 * allowed_ns / (class.tau_ns(f64::INFINITY) * share.factor).max(1.0)) as u64;
        let quota = hits.min(most);
        if quota < 2 {
            return false;
        }
        if let Some(pair) = self.pairs.get_mut(&class.id) {
            pair.asked = true;
        }
        orders.push(Order::Open {
            class: class.id,
            kind: WindowKind::Burst,
            quota,
            purpose: Purpose::Activity(share.number),
        });
        true
    }
}

/// What hits cost was so large a part of the time of this window that the rate which it shows depends on the price: with a price known to a
/// quarter, it is off by more than a twentieth.
#[must_use]
pub fn hides_rate(window: &WindowRow) -> bool {
    let hits = window.kept.saturating_add(window.dropped);
    let length_ns = window.end_ns.saturating_sub(window.start_ns) as f64;
    hits >= FEWEST_CALLS && hits as f64 * window.tau_ns > HIDING_PART * length_ns
}

/// Why a pair is wanted, the best reason first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// The plan traces the function as soon as this is measured; from then on it is never idle.
    Awaited,
    /// Calls are short against the price, or so frequent that it hides their rate.
    Known,
}

/// Whether a pair is wanted: the function is idle now, and its calls are frequent and not known to be long. One that is only counted has a pair because
/// it is called too often.
fn matters(function: &ClassView, pair: &ClassView) -> Option<Urgency> {
    if function.link != LinkView::Off {
        return None;
    }
    if function.traits.exit == ExitMode::None {
        return Some(Urgency::Known);
    }
    if function.attempted < FEWEST_CALLS {
        return None;
    }
    if function.ends < FEWEST_DURATIONS {
        return function.traits.held_by_plan.then_some(Urgency::Awaited);
    }
    let mean_ns = function.timed_ns as f64 / function.ends as f64;
    (mean_ns < (LONG_CALLS + 1.0) * pair.prices.stamps.ns).then_some(Urgency::Known)
}

impl Client for StampPairs {
    type Input = Notice;
    type Grant = Share;

    fn claim(&self) -> f64 {
        self.cost
    }

    fn step(&mut self, notice: Notice, share: &Share, view: &View, orders: &mut Vec<Order>) {
        match notice {
            Notice::Interval => self.interval(share, view, orders),
            Notice::Outcome(outcome) => {
                let Some(pair) = self.pairs.get_mut(&outcome.class) else { return };
                match outcome.opened {
                    Ok(start_ns) => pair.until_ns = Some(start_ns + WINDOW_NS),
                    Err(why) => {
                        pair.asked = false;
                        pair.refused = !why.is_for_now();
                        pair.not_before_ns = view.now_ns + PAUSE_NS;
                    }
                }
            }
            Notice::Ended(row) => {
                let id = ClassId(row.class_id);
                let Some(pair) = self.pairs.get_mut(&id) else { return };
                pair.asked = false;
                pair.until_ns = None;
                pair.not_before_ns = view.now_ns + PAUSE_NS;
                pair.intervals += row.returns;
                pair.vain = if row.returns < FEWEST_INTERVALS { pair.vain + 1 } else { 0 };
                let tau_ns = view.class(id).tau_ns(f64::INFINITY);
                let cost_s = row.attempted as f64 * tau_ns * share.factor * 1e-9;
                self.recent.push_back((view.now_ns, cost_s));
            }
        }
    }
}

impl Activity for StampPairs {
    fn owns(&self, class: ClassId) -> bool {
        self.pairs.contains_key(&class)
    }
}

#[cfg(test)]
#[path = "stamps_tests.rs"]
mod tests;
