//! The CPU time that a consumer may use: an income, saved up to a bound, and a bound on what one turn may take.
//!
//! ```text
//! tokens := min(tokens + income dt, SAVED income);   left = clamp(tokens, 0, MOST_A_TURN_NS);   tokens := tokens - used
//! ```
//! A piece of work that takes longer than what is left is a debt, and nothing is left until it is paid: over a run a consumer takes no more than its
//! income, by one piece at most.

/// Most that a consumer is given in one turn, ns: a turn comes every 10 ms, and windows have to end on time.
pub(super) const MOST_A_TURN_NS: f64 = 2e6;
/// Income of so long is saved for later, s.
const SAVED_S: f64 = 2.0;

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// CPU s/s.
    income: f64,
    /// ns.
    tokens: f64,
    at_ns: u64,
}

impl Allowance {
    /// `income`: CPU s/s.
    pub fn new(income: f64, now_ns: u64) -> Self {
        Self { income, tokens: 0.5 * SAVED_S * income * 1e9, at_ns: now_ns }
    }

    /// Another income, CPU s/s; what was saved changes with it.
    pub fn set_income(&mut self, income: f64) {
        self.tokens *= income / self.income;
        self.income = income;
    }

    /// What it may use in so long, ns.
    pub fn in_ns(&self, ns: u64) -> f64 {
        self.income * ns as f64
    }

    /// CPU time that it may use now, ns.
    pub fn left_ns(&mut self, now_ns: u64) -> u64 {
        let elapsed = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        self.tokens = (self.tokens + self.income * elapsed as f64).min(self.most());
        // OK because it is neither negative nor large.
        self.tokens.clamp(0.0, MOST_A_TURN_NS) as u64
    }

    /// It used so much, ns.
    pub fn charge(&mut self, used_ns: u64) {
        self.tokens -= used_ns as f64;
    }

    fn most(&self) -> f64 {
        SAVED_S * self.income * 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn over_a_run_no_more_is_used_than_the_income() {
        // A consumer that takes whatever it gets, and pieces of 0.7 ms where it gets anything.
        let mut allowance = Allowance::new(0.005, 0);
        let mut used = 0;
        for turn in 1..=6_000_u64 {
            let left = allowance.left_ns(turn * S / 100);
            assert!(left as f64 <= MOST_A_TURN_NS);
            if left > 0 {
                let took = left.max(700_000);
                used += took;
                allowance.charge(took);
            }
        }
        // 60 s, what was saved at the beginning, and one piece.
        let most = (60.0 * 0.005 + 0.005) * 1e9 + 0.7e6;
        assert!(used as f64 <= most && used as f64 > 0.9 * most, "{used} {most}");
    }

    #[test]
    fn a_debt_is_paid_before_anything_is_left() {
        let mut allowance = Allowance::new(0.01, 0);
        assert_eq!(allowance.left_ns(0), 2_000_000);
        allowance.charge(60_000_000);
        // 50 ms are owed: 5 s of income.
        assert_eq!(allowance.left_ns(4_900_000_000), 0);
        let left = allowance.left_ns(5_100_000_000);
        assert!((900_000..1_100_000).contains(&left), "{left}");
        // Time that goes back brings nothing.
        assert_eq!(allowance.left_ns(S), left);
    }
}
