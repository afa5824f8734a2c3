//! How many slow operations are told: five at once, then one a second.

/// Told at once, where none was for as many seconds.
const BURST: f64 = 5.0;
/// Told in a second.
const A_SECOND: f64 = 1.0;

/// See the [module](self). Time is what it is told: that of the operations' ends.
#[derive(Debug, Clone, Copy)]
pub struct Pacing {
    tokens: f64,
    at_ns: u64,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { tokens: BURST, at_ns: 0 }
    }
}

impl Pacing {
    /// One that ended at this time is told.
    pub fn admits(&mut self, end_ns: u64) -> bool {
        let elapsed_s = end_ns.saturating_sub(self.at_ns) as f64 * 1e-9;
        self.at_ns = self.at_ns.max(end_ns);
        self.tokens = (self.tokens + elapsed_s * A_SECOND).min(BURST);
        let admits = self.tokens >= 1.0;
        if admits {
            self.tokens -= 1.0;
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_at_once_then_one_a_second() {
        let mut pacing = Pacing::default();
        let start = 5_000_000_000;
        let told = (0..100).filter(|i| pacing.admits(start + i)).count();
        assert_eq!(told, 5);
        // A hundred a second for a minute.
        let told = (1..=6_000).filter(|i| pacing.admits(start + i * 10_000_000)).count();
        assert!((59..=61).contains(&told), "{told}");
        // After a pause, and for one that ended before the last.
        assert!(pacing.admits(200_000_000_000));
        assert!(pacing.admits(1));
    }
}
