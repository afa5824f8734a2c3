//! What windows that were granted may still take: nobody else may spend it.
//!
//! A burst or a trial is granted hits that come later. First its link has to be made (10 to 50 ms; behind hundreds of others it waits for
//! seconds), and the ledger is charged as the hits come. Until then its tokens still lie in the bucket, where whoever asks for tokens would
//! find them again: 24 bursts that are due at once, four in a tick, could be granted 22 ms from a bucket of 5. So what a window may still
//! take is reserved from its grant until it ends.
//!
//! A window that a clock ends takes its hits over its length, while tokens come in, and bursts may be longer than the bucket is deep. So
//! what comes in and is not for traced classes may back it. Whatever is due by a time t is there or comes in by then:
//!
//! ```text
//! sum of what windows that end by t may still take <= tokens + income x (t - now)      for every t
//! ```
//! If all hits come at once, the debt is at most `income x longest window`, and is paid back when that would have been over.

use super::types::{Action, Tick};
use super::{Controller, Mode};

/// What windows may still take: (end in ktime ns, ns of CPU time), by their ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Reserved(Vec<(u64, f64)>);

impl Reserved {
    /// A window that ends at `until_ns` may take `ns`.
    pub fn add(&mut self, until_ns: u64, ns: f64) {
        let at = self.0.partition_point(|(end, _)| *end <= until_ns);
        self.0.insert(at, (until_ns, ns.max(0.0)));
    }

    /// What one more window may take that ends at `until_ns`, where there are tokens and an income (CPU s/s), ns; negative: nothing.
    pub fn room_ns(&self, tokens_ns: f64, income: f64, now_ns: u64, until_ns: u64) -> f64 {
        // A window that should have ended may take what it has left at any moment.
        let coming = |end_ns: u64| tokens_ns + income * end_ns.saturating_sub(now_ns) as f64;
        let (mut due, mut earlier, mut room) = (0.0, 0.0, f64::INFINITY);
        for (end_ns, ns) in &self.0 {
            due += ns;
            if *end_ns <= until_ns {
                earlier = due;
            } else {
                room = f64::min(room, coming(*end_ns) - due);
            }
        }
        room.min(coming(until_ns) - earlier)
    }

    /// The part that the income until their ends does not pay for: so much of the bucket is spoken for, ns.
    pub fn held_ns(&self, income: f64, now_ns: u64) -> f64 {
        (-self.room_ns(0.0, income, now_ns, now_ns)).max(0.0)
    }

    /// The part that is taken within `horizon_ns`, if hits come evenly, ns.
    pub fn within_ns(&self, now_ns: u64, horizon_ns: f64) -> f64 {
        let part = |end_ns: u64| (horizon_ns / end_ns.saturating_sub(now_ns).max(1) as f64).min(1.0);
        self.0.iter().map(|(end_ns, ns)| ns * part(*end_ns)).sum()
    }
}

impl Controller {
    /// What bursts and trials may still take.
    pub(super) fn reserved(&self) -> Reserved {
        let mut reserved = Reserved::default();
        for entry in self.classes.values() {
            if let Mode::Trial { until_ns, .. } | Mode::Burst { until_ns } = entry.mode {
                reserved.add(until_ns, entry.reserved_ns);
            }
        }
        reserved
    }

    /// So much of the bucket is spoken for by bursts and trials at `now_ns`, beyond what will come in for them, ns.
    #[must_use]
    pub fn held_ns(&self, now_ns: u64) -> f64 {
        self.reserved().held_ns(self.income_left, now_ns)
    }

    /// What comes in and is taken by nothing but windows: to be asked when it is known what stays traced.
    pub(super) fn note_income(&mut self, tick: &Tick<'_>) {
        self.income_left = (tick.income - tick.other_cost - self.traced_cost()).max(0.0);
    }

    /// Tokens that nobody has been granted yet, ns; negative: debt.
    pub(super) fn free_ns(&self, tick: &Tick<'_>) -> f64 {
        tick.tokens_ns - tick.reserved_ns - self.held_ns(tick.now_ns)
    }

    /// Whether an action that had to wait is still to be obeyed: a window that was given up meanwhile has no tokens any more, and nobody
    /// would end it.
    #[must_use]
    pub fn still_wants(&self, action: &Action) -> bool {
        let mode = |class| self.classes.get(class).map(|entry| entry.mode);
        match action {
            Action::Trial { class, .. } => matches!(mode(class), Some(Mode::Trial { .. })),
            Action::Burst { class, .. } => matches!(mode(class), Some(Mode::Burst { .. })),
            Action::Trace { class, .. } => self.is_attached(*class),
            _ => true,
        }
    }
}

#[cfg(test)]
#[path = "tests/reserve.rs"]
mod tests;
