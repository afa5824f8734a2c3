//! Bursts as a mode of the plan: how long a window of complete counting is, and how often one is opened.
//!
//! What: a class that is too dear to be traced all the time is traced in short windows at random times, so that its
//! rate is known with an interval that shrinks while the run goes on. Two questions are answered here, both from
//! prices: the *shape* of one burst, and the *schedule* of all classes under what the plan has left.
//! What it does not do: it opens nothing and keeps no time (the controller does).

mod schedule;

pub use schedule::{BurstClass, schedule};

use crate::cost::CostModel;
use serde::{Deserialize, Serialize};

/// Hits that a burst is good for at least: its rate then has an error of a tenth, were the events independent.
const LEAST_HITS: f64 = 100.0;
/// A burst with fewer hits is not worth its attaching.
const FEWEST_HITS: f64 = 30.0;
/// The same of a class that comes [first](BurstClass::first): a dear one would else have trials only, which are as short and ever rarer.
const FEWEST_OF_FIRST: f64 = 8.0;
/// Attaching, detaching and the hits after the end may take this part of what a burst costs, where the bucket allows.
const CHURN: f64 = 0.1;
/// A clock ends windows of at least this length; shorter ones end with their quota, s.
const CLOCKED_S: f64 = 0.02;
/// No window is longer, s: bursts are the sampling unit, and a few long ones say little about how much they differ.
const LONGEST_S: f64 = 1.0;
/// Bursts of a class begin at least so far apart on average, s.
const CLOSEST_S: f64 = 0.5;
/// The same of a class that comes [first](BurstClass::first), s. The bucket bounds one burst of a hot class to some milliseconds; only with more of them
/// is its part of the budget used. Of several classes each has its part of those ten a second: links are made one after the other, in 10 to 50 ms.
pub const CLOSEST_OF_FIRST_S: f64 = 0.1;
/// Windows of one class begin so far apart at least, s, with the objective *precision*. The bucket bounds one of them: were they rarer, what takes most
/// of the CPU time could not have its part of the budget.
pub const CLOSEST_WINDOWS_S: f64 = 0.1;
/// Windows of all classes that a plan's bursts may take per second: a link takes 10 to 50 ms to make, one after the other.
pub const MOST_WINDOWS_HZ: f64 = 16.0;
/// Of the lengths that a burst may have, each is at most so many times the one before.
const LENGTH_STEP: f64 = 1.5;
/// A class that would be attached for more than this part of the time gets no more bursts.
pub const LARGEST_DUTY: f64 = 0.5;
/// Part of the bursts' budget that goes to what was asked for by name, where others want some, too.
pub const FIRST_PART: f64 = 0.75;

/// Part of its largest quota that the `number`-th window of a class gets, if it is to end with it: spread evenly over 0.5 to 1, like no period of a
/// target (multiples of the golden ratio, modulo 1). The first gets all of it.
///
/// Calls come in batches. A window that begins at any time and ends with hit Q counts, of batches of b calls every T s, `Q / (Q / b - 1/2)` calls
/// in T where Q is a multiple of b: too many by the part `b / 2Q`, however many windows there are. Where all remainders of Q by b are alike
/// seldom, `(Q - 1) / t` is unbiased: what the begin adds, half a T, is what the end takes away.
#[must_use]
pub fn quota_part(number: u64) -> f64 {
    /// (sqrt(5) - 1) / 2.
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    // OK because a run has far fewer than 2^53 windows.
    1.0 - 0.5 * (number as f64 * GOLDEN).fract()
}

/// What [`quota_part`] is on average.
pub const MEAN_QUOTA_PART: f64 = 0.75;

/// What attaching for a short time costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BurstPrices {
    /// CPU s that the target loses when a link is made or taken away.
    pub attach_s: f64,
    /// Time for which the breakpoint outlives the window, s.
    pub delay_s: f64,
    /// The same when the window was opened less than `fresh_s` ago, s.
    pub fresh_delay_s: f64,
    /// See `fresh_delay_s`, s.
    pub fresh_s: f64,
    /// CPUs that can run the target.
    pub cpus: u32,
}

impl BurstPrices {
    /// Prices on the host that the model was calibrated on.
    ///
    /// `fresh_*`: a breakpoint goes with a grace period that need not be waited for again within 5 ms of another
    /// attach or detach (`kernel/rcu/sync.c`); measured 0.07 to 0.09 ms then.
    #[must_use]
    pub fn new(model: &CostModel, cpus: u32) -> Self {
        Self {
            attach_s: model.attach.seconds(),
            delay_s: model.detach_delay.seconds(),
            fresh_delay_s: FRESH_DELAY_NS * 1e-9,
            fresh_s: FRESH_NS as f64 * 1e-9,
            cpus: cpus.max(1),
        }
    }

    /// CPU s lost to attaching, detaching and the hits after the end, for a class that keeps `busy` CPUs trapping.
    #[must_use]
    pub fn churn_s(&self, busy: f64, window_s: f64) -> f64 {
        let delay = if window_s < self.fresh_s { self.fresh_delay_s } else { self.delay_s };
        2.0 * self.attach_s + busy.min(f64::from(self.cpus)) * delay
    }
}

/// So long after an attach the next detach need not wait for a grace period, ns.
pub const FRESH_NS: u64 = 5_000_000;
/// Detach delay then, ns: measured 0.07 to 0.09 ms.
pub const FRESH_DELAY_NS: f64 = 100_000.0;

/// Bursts of a class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BurstOrder {
    /// Hits after which a burst ends.
    pub quota: u64,
    /// Time after which it ends, ns.
    pub window_ns: u64,
    /// Mean time between the begins of two bursts, ns.
    pub every_ns: u64,
    /// What one burst is expected to cost the target, CPU ns.
    pub cost_ns: f64,
    /// Part of the time for which the class is attached.
    pub duty: f64,
}

impl BurstOrder {
    /// The same bursts, `factor` times as far apart.
    #[must_use]
    pub fn rarer(self, factor: f64) -> Self {
        let every_ns = (self.every_ns as f64 * factor) as u64;
        Self { every_ns, duty: self.duty / factor, ..self }
    }

    /// A window ends with its quota, not with the clock.
    #[must_use]
    pub fn ends_by_quota(&self) -> bool {
        self.window_ns as f64 <= CLOCKED_S * 1e9
    }

    /// How long a burst is that takes all of its hits, s: what detaching it costs goes by that.
    #[must_use]
    pub fn length_s(&self) -> f64 {
        let mean_s = self.duty * self.every_ns as f64 * 1e-9;
        if self.ends_by_quota() { mean_s / MEAN_QUOTA_PART } else { mean_s }
    }

    /// For people.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!(
            "bursts of at most {} calls or {:.0} ms, every {:.1} s",
            self.quota,
            self.window_ns as f64 * 1e-6,
            self.every_ns as f64 * 1e-9
        )
    }

    /// CPU s per s.
    #[must_use]
    pub fn cost_per_s(&self) -> f64 {
        self.cost_ns / self.every_ns.max(1) as f64
    }
}

/// One burst of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Hits after which it ends.
    pub quota: u64,
    /// Time after which it ends, s.
    pub window_s: f64,
    /// Its length if it takes all of its hits, s.
    pub length_s: f64,
    /// Its length on average, s: see [`quota_part`].
    pub mean_s: f64,
    /// What it costs if it takes all of its hits, with attaching and detaching, CPU s.
    pub cost_s: f64,
    /// What it costs on average, CPU s.
    pub mean_cost_s: f64,
}

impl Shape {
    /// The burst of this length, of a class with this rate (events/s) and price of a hit (s).
    #[must_use]
    pub fn new(rate_hz: f64, tau_s: f64, prices: &BurstPrices, length_s: f64) -> Self {
        let clocked = length_s >= CLOCKED_S;
        let expected = rate_hz * length_s;
        let quota = if clocked { expected + 4.0 * expected.sqrt() + 8.0 } else { expected };
        let churn_s = prices.churn_s(rate_hz * tau_s, length_s);
        let part = if clocked { 1.0 } else { MEAN_QUOTA_PART };
        Self {
            quota: quota.ceil() as u64,
            window_s: length_s.max(CLOCKED_S),
            length_s,
            mean_s: part * length_s,
            cost_s: expected * tau_s + churn_s,
            mean_cost_s: part * expected * tau_s + churn_s,
        }
    }

    /// So many of it per second.
    #[must_use]
    pub fn order(&self, per_s: f64) -> BurstOrder {
        BurstOrder {
            quota: self.quota,
            window_ns: (self.window_s * 1e9) as u64,
            every_ns: (1e9 / per_s) as u64,
            cost_ns: self.cost_s * 1e9,
            duty: (per_s * self.mean_s).min(1.0),
        }
    }
}

/// The bursts that a class may have, of lengths from that of its fewest hits to a second, each at most `LENGTH_STEP` times as long as the one before, and
/// none dearer than `limit_s` CPU s or shorter than `shortest_s`; empty where no burst is possible (no rate, free hits, too dear).
#[must_use]
pub fn lengths(
    rate_hz: f64,
    tau_s: f64,
    is_first: bool,
    prices: &BurstPrices,
    (shortest_s, limit_s): (f64, f64),
) -> Vec<Shape> {
    let usable = rate_hz > 0.0 && rate_hz.is_finite() && tau_s > 0.0 && tau_s.is_finite();
    if !usable {
        return Vec::new();
    }
    let busy = rate_hz * tau_s;
    let fewest = if is_first { FEWEST_OF_FIRST } else { FEWEST_HITS };
    // As long as was asked for.
    let longest_s = LONGEST_S.max(shortest_s);
    let shortest_s = (fewest / rate_hz).max(shortest_s).min(longest_s);
    let affordable_s = |length_s: f64| ((limit_s - prices.churn_s(busy, length_s)) / busy).min(longest_s);
    let fresh_s = 0.999 * prices.fresh_s;
    let mut all = vec![affordable_s(0.0).min(fresh_s), affordable_s(f64::INFINITY), shortest_s];
    let mut length_s = shortest_s;
    while length_s * LENGTH_STEP < longest_s {
        length_s *= LENGTH_STEP;
        all.push(length_s);
    }
    all.retain(|s| *s >= shortest_s);
    all.sort_by(f64::total_cmp);
    all.dedup();
    let shapes = all.into_iter().map(|s| Shape::new(rate_hz, tau_s, prices, s));
    shapes.filter(|shape| shape.cost_s <= limit_s * (1.0 + 1e-9)).collect()
}

/// The shortest burst that a class may have, and one that none of [`lengths`] is longer than, whatever that costs; `None` where `lengths` is empty.
#[must_use]
pub fn ends(
    rate_hz: f64,
    tau_s: f64,
    is_first: bool,
    prices: &BurstPrices,
    (shortest_s, limit_s): (f64, f64),
) -> Option<(Shape, Shape)> {
    let usable = rate_hz > 0.0 && rate_hz.is_finite() && tau_s > 0.0 && tau_s.is_finite();
    if !usable {
        return None;
    }
    let longest_s = LONGEST_S.max(shortest_s);
    let fewest = if is_first { FEWEST_OF_FIRST } else { FEWEST_HITS };
    let least_s = (fewest / rate_hz).max(shortest_s).min(longest_s);
    let of = |length_s: f64| Shape::new(rate_hz, tau_s, prices, length_s);
    let shortest = of(least_s);
    // Where a late link is cheaper than a fresh one a longer burst may cost less.
    let is_possible = shortest.cost_s <= limit_s * (1.0 + 1e-9)
        || prices.delay_s < prices.fresh_delay_s
            && !lengths(rate_hz, tau_s, is_first, prices, (shortest_s, limit_s)).is_empty();
    is_possible.then(|| (shortest, of(longest_s)))
}

/// How far apart the bursts of one of so many classes that come first begin at least, s.
#[must_use]
pub fn least_apart_of_first(classes: usize) -> f64 {
    (CLOSEST_OF_FIRST_S * classes as f64).clamp(CLOSEST_OF_FIRST_S, CLOSEST_S)
}
