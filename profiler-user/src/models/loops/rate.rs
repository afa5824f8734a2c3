//! How often samples were taken, over the run.

/// Samples per second of CPU time, from each time on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rate {
    /// From when on, ktime ns; the last is 0 from the last sample on.
    steps: Vec<(u64, f64)>,
}

/// What is gathered of samples.
#[derive(Debug, Clone, Default)]
pub struct Periods {
    /// Times at which the period was another than in the sample before, and the period, ns.
    changes: Vec<(u64, u64)>,
    first_ns: Option<u64>,
    last_ns: u64,
    samples: u64,
    in_traps: u64,
}

impl Periods {
    /// A sample was taken. They come nearly in the order of time.
    pub fn push(&mut self, time_ns: u64, period_ns: u64) {
        if self.changes.last().is_none_or(|(_, last)| *last != period_ns) {
            self.changes.push((time_ns, period_ns));
        }
        self.first_ns = Some(self.first_ns.map_or(time_ns, |first| first.min(time_ns)));
        self.last_ns = self.last_ns.max(time_ns);
        self.samples += 1;
    }

    /// A sample fell into one of our own traps: it was taken, and is in no call.
    pub fn push_in_trap(&mut self) {
        self.in_traps += 1;
    }

    /// Samples so far, without those in traps.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The rate, of which so many samples were lost, any of those that were taken. Before the first sample, and from the last on, there is none.
    pub fn rate(mut self, lost: u64) -> Rate {
        let there = self.samples.saturating_add(self.in_traps);
        let kept = there as f64 / there.saturating_add(lost).max(1) as f64;
        self.changes.sort_unstable();
        if let (Some(first), Some(first_ns)) = (self.changes.first_mut(), self.first_ns) {
            first.0 = first_ns;
        }
        let hz = |period_ns: u64| if period_ns == 0 { 0.0 } else { kept * 1e9 / period_ns as f64 };
        let mut steps: Vec<(u64, f64)> =
            self.changes.iter().map(|(from, period_ns)| (*from, hz(*period_ns))).collect();
        steps.push((self.last_ns, 0.0));
        Rate { steps }
    }
}

impl Rate {
    /// The mean rate from `begin_ns` to `end_ns`, Hz.
    pub fn mean_hz(&self, begin_ns: u64, end_ns: u64) -> f64 {
        let end_ns = end_ns.max(begin_ns.saturating_add(1));
        let from = self.steps.partition_point(|(step, _)| *step <= begin_ns).saturating_sub(1);
        let ends = self.steps.iter().skip(from + 1).map(|(step, _)| *step).chain([u64::MAX]);
        let mut samples = 0.0;
        for ((step, hz), until) in self.steps.iter().skip(from).zip(ends) {
            if *step >= end_ns {
                break;
            }
            let overlap = until.min(end_ns).saturating_sub((*step).max(begin_ns));
            samples += hz * overlap as f64;
        }
        samples / (end_ns - begin_ns) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_changes_during_the_run_and_is_none_outside_of_it() {
        let mut periods = Periods::default();
        // The second came late.
        for (time, period) in [(1_010, 1_000_000), (1_000, 1_000_000), (2_000, 1_000_000), (3_000, 4_000_000)]
        {
            periods.push(time, period);
        }
        periods.push(5_000, 4_000_000);
        let rate = periods.clone().rate(0);
        assert_eq!((rate.mean_hz(1_000, 1_100), rate.mean_hz(3_000, 3_001)), (1_000.0, 250.0));
        // A quarter of it behind the change: 3/4 of 1,000 and 1/4 of 250.
        assert_eq!(rate.mean_hz(2_700, 3_100), 812.5);
        assert_eq!(
            (rate.mean_hz(500, 900), rate.mean_hz(500, 1_500), rate.mean_hz(6_000, 7_000)),
            (0.0, 500.0, 0.0)
        );
        assert_eq!(rate.mean_hz(4_000, 6_000), 125.0);
        // Five of six were kept.
        assert!((periods.clone().rate(1).mean_hz(1_000, 1_000) - 5_000.0 / 6.0).abs() < 1e-9);
        // Eight of nine: three more were in traps.
        (0..3).for_each(|_| periods.push_in_trap());
        assert_eq!(periods.samples(), 5);
        assert!((periods.rate(1).mean_hz(1_000, 1_000) - 8_000.0 / 9.0).abs() < 1e-9);
        assert_eq!(Periods::default().rate(3).mean_hz(1, 2), 0.0);
    }
}
