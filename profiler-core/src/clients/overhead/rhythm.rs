//! How long windows are, and how often everything is detached.

/// Length of a window, ns, or of a part of it where the metric is slow. The target's cost per unit wanders within seconds, so many short
/// windows beat few long ones; below 0.1 s the CPU clock's tick (4 ms per running thread) gets too large a part.
pub(super) const WINDOW_NS: u64 = 100_000_000;
/// Time for caches to warm up again after attaching, ns.
pub(super) const SETTLE_NS: u64 = 20_000_000;
/// Part of the run in which something is detached.
const OFF_PART: f64 = 0.1;
/// Time that taking links off and on is expected to add to a window off, ns.
const FIRST_CHURN_NS: u64 = 40_000_000;
/// Weight of the latest window off in the length of all.
const SPAN_WEIGHT: f64 = 0.2;

/// The lengths.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rhythm {
    /// Of a window, ns.
    pub(super) window_ns: u64,
    /// Mean time from one window off to the next, ns.
    pub(super) cycle_ns: u64,
    /// Time from the first detach to the last attach, ns, smoothed.
    off_span_ns: f64,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self { window_ns: WINDOW_NS, cycle_ns: 0, off_span_ns: (WINDOW_NS + FIRST_CHURN_NS) as f64 }
    }
}

impl Rhythm {
    /// Mean time between windows off: at most a tenth of it off, and at least `churn_ns`, which links take off and on.
    fn cycle(&self, window_ns: u64, churn_ns: f64) -> u64 {
        let span = self.off_span_ns - self.window_ns as f64 + window_ns as f64;
        let least = (3 * window_ns + SETTLE_NS) as f64 + span;
        (span / OFF_PART).max(churn_ns).max(least) as u64
    }

    /// Windows off of so many parts in `left_ns`.
    pub(super) fn planned(&self, parts: usize, churn_ns: f64, left_ns: u64) -> u32 {
        // OK because a run has far fewer than 2^32 windows.
        u32::try_from(left_ns / self.cycle(parts as u64 * WINDOW_NS, churn_ns)).unwrap_or(u32::MAX)
    }

    /// Windows have so many parts.
    pub(super) fn begin(&mut self, parts: usize, churn_ns: f64) {
        self.window_ns = parts as u64 * WINDOW_NS;
        self.renew(churn_ns);
    }

    /// The cycle follows what windows off took.
    pub(super) fn renew(&mut self, churn_ns: f64) {
        self.cycle_ns = self.cycle(self.window_ns, churn_ns);
    }

    /// All links are there again that went from `since_ns` on. Until when caches warm up, ns.
    pub(super) fn settled(&mut self, since_ns: u64, now: u64) -> u64 {
        let span = now.saturating_sub(since_ns) as f64;
        self.off_span_ns += SPAN_WEIGHT * (span - self.off_span_ns);
        now + SETTLE_NS
    }

    /// Time from the end of one comparison to the begin of the next, ns: `part` of the mean.
    pub(super) fn pause_ns(&self, part: f64) -> u64 {
        let active = 2.0 * self.window_ns as f64 + SETTLE_NS as f64 + self.off_span_ns;
        let mean = (self.cycle_ns as f64 - active).max(1.0);
        (part * mean) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_run_is_off_and_less_where_links_cost_more() {
        let mut rhythm = Rhythm::default();
        rhythm.begin(1, 0.0);
        // 100 ms and 40 ms for links.
        assert_eq!(rhythm.cycle_ns, 1_400_000_000);
        rhythm.renew(5e9);
        assert_eq!(rhythm.cycle_ns, 5_000_000_000);
        for _ in 0..100 {
            assert_eq!(rhythm.settled(0, 240_000_000), 260_000_000);
        }
        rhythm.renew(0.0);
        assert!(rhythm.cycle_ns.abs_diff(2_400_000_000) < 1_000, "{rhythm:?}");
        assert_eq!(rhythm.planned(1, 0.0, 24_100_000_000), 10);
        // Windows twice as long, off for 340 ms.
        assert_eq!(rhythm.planned(2, 0.0, 34_100_000_000), 10);
    }

    #[test]
    fn the_pauses_make_the_cycle_whole() {
        let mut rhythm = Rhythm::default();
        rhythm.begin(1, 0.0);
        // Two windows on, the time for caches, and the window off: 360 ms.
        assert_eq!(rhythm.pause_ns(1.0), 1_040_000_000);
        assert_eq!(rhythm.pause_ns(0.0), 0);
    }
}
