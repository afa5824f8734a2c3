//! The example of docs/example-client.md: an activity that counts one function in every tenth second.
//!
//! ```text
//! interval in second 10, 20, …, 60 ─► Open ─► second 11, 21, … ─► Close ─► Ended: so many calls in one second
//! ```

use profiler_core::class::ClassId;
use profiler_core::clients::Client;
use profiler_core::clients::activity::{Activity, Notice, Share};
use profiler_core::recording::WindowKind;
use profiler_core::run::order::{Ending, Order, Purpose};
use profiler_core::run::view::View;
use std::sync::mpsc::Sender;

/// The period, ns.
const PERIOD_NS: u64 = 10_000_000_000;
/// Length of a window, ns.
const WINDOW_NS: u64 = 1_000_000_000;

/// Counts a class for a second of every ten.
#[derive(Debug)]
pub struct TenthSecond {
    class: ClassId,
    /// When the present period began, ktime ns, and whether its window was asked for.
    period_ns: u64,
    is_asked: bool,
    /// When the open window is to end, ktime ns.
    until_ns: Option<u64>,
    /// CPU s/s that the last window took, over a whole period.
    cost: f64,
    tau_ns: f64,
    /// Where calls per second go, one figure for each window.
    rates_hz: Sender<f64>,
}

impl TenthSecond {
    /// Counts this class, from `now_ns` on, ktime. `rates_hz` gets the calls per second of each window.
    #[must_use]
    pub fn new(class: ClassId, now_ns: u64, rates_hz: Sender<f64>) -> Self {
        Self { class, period_ns: now_ns, is_asked: false, until_ns: None, cost: 0.0, tau_ns: 0.0, rates_hz }
    }

    /// What it is allowed in the length of a window. What was not spent in the other nine seconds, others have spent.
    fn quota(&self, share: &Share) -> u64 {
        let ns = share.allowed * WINDOW_NS as f64;
        // OK because the cast saturates.
        ((ns / (self.tau_ns * share.factor).max(1.0)) as u64).max(1)
    }

    fn interval(&mut self, share: &Share, view: &View, orders: &mut Vec<Order>) {
        let (now, class) = (view.now_ns, view.class(self.class));
        self.tau_ns = class.tau_ns(f64::INFINITY);
        if now.saturating_sub(self.period_ns) >= PERIOD_NS {
            (self.period_ns, self.is_asked) = (now, false);
        }
        if self.until_ns.is_some_and(|until_ns| now >= until_ns) {
            self.until_ns = None;
            orders.push(Order::Close(self.class, Ending::Soon));
        } else if !self.is_asked && class.may_open() && share.suspension.may_ask() {
            self.is_asked = true;
            orders.push(Order::Open {
                class: self.class,
                kind: WindowKind::Burst,
                quota: self.quota(share),
                purpose: Purpose::Activity(share.number),
            });
        }
    }
}

impl Client for TenthSecond {
    type Input = Notice;
    type Grant = Share;

    fn claim(&self) -> f64 {
        self.cost
    }

    fn step(&mut self, notice: Notice, share: &Share, view: &View, orders: &mut Vec<Order>) {
        match notice {
            Notice::Interval => self.interval(share, view, orders),
            Notice::Outcome(outcome) => match outcome.opened {
                Ok(start_ns) => self.until_ns = Some(start_ns + WINDOW_NS),
                // It is asked for again at the next interval.
                Err(why) if why.is_for_now() => self.is_asked = false,
                Err(_) => {}
            },
            Notice::Ended(row) => {
                self.until_ns = None;
                let length_s = row.end_ns.saturating_sub(row.start_ns) as f64 * 1e-9;
                // One that the breaker ended while it was being opened has no length.
                if length_s > 0.0 {
                    // Nobody listens any more: that is no matter of the target's.
                    let _ = self.rates_hz.send(row.kept as f64 / length_s);
                }
                self.cost = row.attempted as f64 * self.tau_ns * share.factor / PERIOD_NS as f64;
            }
        }
    }
}

impl Activity for TenthSecond {
    fn owns(&self, class: ClassId) -> bool {
        class == self.class
    }
}
