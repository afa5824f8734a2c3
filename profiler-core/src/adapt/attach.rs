//! The other lever of the rate: the share of time in which the functions inside operations are attached.
//!
//! With uprobes an operation that is not recorded pays the traps of every attached inner function all the same. So a rate r is
//! reached by two levers: inner functions are attached in slices of a share s of the time, placed at random, and in them an
//! operation is drawn with r / s. What is paid for the same sample:
//! ```text
//! always attached:  A                          slices:  s A + (linger A + churn) / period
//! ```
//! with A the CPU time per second that traps cost while they are attached, `linger` the time for which they stay so that operations
//! in flight end with all their calls, and `churn` what attaching and detaching costs the target. s = r is the least that
//! can pay for r. A slice is a cluster: operations of neighbouring moments come together into the sample.

/// Smallest share: below it the draw does the rest.
const LEAST_PART: f64 = 0.01;
/// From this share on they stay attached: little is saved.
const MOST_PART: f64 = 0.9;
/// A slice comes once in so many seconds: attaching takes 10 to 125 ms when nothing was attached just before.
const PERIOD_S: f64 = 1.0;
/// Shortest slice, s, and with it the longest period of the smallest share. Slices are begun and ended by a turn of 10 ms.
const LEAST_SLICE_S: f64 = 0.02;
/// The same where one of that length costs more than a second may; a quota ends it, too.
const SHORTEST_S: f64 = 0.005;
/// Operations that take longer are not cut by slices, s: too many would be lost at the ends, and always the long ones.
const LONGEST_S: f64 = 0.025;
/// Shortest time for which inner functions stay after a slice, s.
const LEAST_LINGER_S: f64 = 0.005;
/// What is saved must be so many times what slices cost.
const WORTH: f64 = 2.0;
/// Limits are so many times wider for what is sliced already.
const HYSTERESIS: f64 = 1.5;
/// Longest period, s.
const MOST_PERIOD_S: f64 = 60.0;

/// What the functions inside operations cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InnerCost {
    /// CPU seconds per second while they are attached.
    pub attached: f64,
    /// CPU seconds of the target for attaching and detaching them all once.
    pub churn_s: f64,
    /// Nearly the longest response time of an operation, s.
    pub longest_s: f64,
    /// What they may cost, CPU seconds per second; infinite without a budget.
    pub allowed: f64,
    /// What one slice may cost, CPU seconds: it falls into one second. Infinite without a budget.
    pub most_s: f64,
    /// Part of the time in which operations are watched: slices are cut from that, and nothing is attached in the rest.
    pub watched: f64,
    /// They are attached in slices now: what hovers about a limit stays as it is.
    pub sliced: bool,
}

/// When inner functions are attached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slices {
    /// Part of the time, in (0, 1]; 1: always.
    pub share: f64,
    /// One slice in so many seconds in which operations are watched.
    pub period_s: f64,
    /// For so long they stay after a slice, so that operations in flight end with all their calls, s.
    pub linger_s: f64,
}

impl InnerCost {
    /// Slices of half of the time would cost less than being attached always.
    #[must_use]
    pub fn is_worth_slicing(&self) -> bool {
        let paid_s = self.linger_s() * self.attached + self.churn_s;
        let (longest_s, worth) =
            if self.sliced { (LONGEST_S * HYSTERESIS, WORTH / HYSTERESIS) } else { (LONGEST_S, WORTH) };
        self.attached > 0.0 && self.longest_s <= longest_s && 0.5 * PERIOD_S * self.attached >= worth * paid_s
    }

    fn linger_s(&self) -> f64 {
        // Twice, because it is only nearly the longest.
        (2.0 * self.longest_s).max(LEAST_LINGER_S)
    }

    /// What the shortest slice costs, CPU s.
    #[must_use]
    pub fn shortest_s(&self) -> f64 {
        (SHORTEST_S + self.linger_s()) * self.attached + self.churn_s
    }

    /// Slices for a rate (recorded / all operations).
    #[must_use]
    pub fn slices(&self, rate: f64) -> Slices {
        if rate.is_nan() || rate > MOST_PART || !self.is_worth_slicing() {
            return Slices::ALWAYS;
        }
        let share = rate.max(LEAST_PART);
        let linger_s = self.linger_s();
        let period_s = (PERIOD_S * self.watched).max(LEAST_SLICE_S / share);
        let most_s = (self.most_s - self.churn_s) / self.attached - linger_s;
        let length_s = (share * period_s).min(most_s.max(SHORTEST_S));
        // What the rate is worth is not all that a slice costs: it comes as seldom as the budget wants.
        let paid_s = (length_s + linger_s) * self.attached + self.churn_s;
        let period_s = period_s.max(paid_s / self.allowed.max(0.0) * self.watched).min(MOST_PERIOD_S);
        Slices { share: length_s / period_s, period_s, linger_s }
    }
}

impl Slices {
    /// Attached all the time. After recording was switched off they stay for 50 ms.
    pub const ALWAYS: Self = Self { share: 1.0, period_s: PERIOD_S, linger_s: 0.05 };

    /// Inner functions are attached all the time.
    #[must_use]
    pub fn are_always(&self) -> bool {
        self.share >= 1.0
    }

    /// Length of a slice, s.
    #[must_use]
    pub fn length_s(&self) -> f64 {
        self.share * self.period_s
    }

    /// With which probability an operation in a slice is drawn, so that of all operations `rate` are.
    #[must_use]
    pub fn draw(&self, rate: f64) -> f64 {
        (rate / self.share).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOT: InnerCost = InnerCost {
        attached: 0.3,
        churn_s: 200e-6,
        longest_s: 100e-6,
        allowed: f64::INFINITY,
        most_s: f64::INFINITY,
        watched: 1.0,
        sliced: false,
    };

    #[test]
    fn a_rate_of_a_half_is_attached_half_of_the_time_and_draws_all() {
        let s = HOT.slices(0.5);
        assert_eq!((s.share, s.period_s, s.length_s(), s.draw(0.5)), (0.5, 1.0, 0.5, 1.0));
        // A class that wants less than the others is drawn less often.
        assert_eq!(s.draw(0.1), 0.2);
    }

    #[test]
    fn rare_slices_come_less_often_rather_than_get_shorter() {
        let s = HOT.slices(0.001);
        assert_eq!((s.share, s.period_s), (0.01, 2.0));
        assert!((s.length_s() - 0.02).abs() < 1e-12 && (s.draw(0.001) - 0.1).abs() < 1e-12);
    }

    #[test]
    fn nothing_is_cut_where_little_is_saved_or_operations_are_long() {
        assert!(HOT.slices(0.95).are_always() && HOT.slices(1.0).are_always());
        assert!(HOT.slices(f64::NAN).are_always());
        // 0.4 ms saved in a slice of half a second, 0.2 paid.
        assert!(InnerCost { attached: 0.0008, ..HOT }.slices(0.5).are_always());
        assert!(InnerCost { attached: 0.0, ..HOT }.slices(0.5).are_always());
        assert!(InnerCost { longest_s: 0.03, ..HOT }.slices(0.5).are_always());
        assert_eq!(InnerCost { longest_s: 0.02, ..HOT }.slices(0.5).linger_s, 0.04);
        // What is sliced stays so a little longer.
        assert!(!InnerCost { longest_s: 0.03, sliced: true, ..HOT }.slices(0.5).are_always());
        assert!(InnerCost { longest_s: 0.04, sliced: true, ..HOT }.slices(0.5).are_always());
    }

    #[test]
    fn a_slice_costs_no_more_than_a_second_may() {
        // 20 ms would cost 12.5 with the time for which they linger.
        let inner = InnerCost { attached: 0.5, allowed: 0.004, most_s: 0.008, churn_s: 0.0, ..HOT };
        let s = inner.slices(0.01);
        assert!((s.length_s() - 0.011).abs() < 1e-9 && (s.period_s - 2.0).abs() < 1e-9, "{s:?}");
        // Watched for a tenth of the time: ten times as often in that.
        let s = InnerCost { watched: 0.1, ..inner }.slices(0.2);
        assert!((s.length_s() - 0.011).abs() < 1e-9 && (s.period_s - 0.2).abs() < 1e-9, "{s:?}");
        // A turn of the agent is as short as it gets.
        let s = InnerCost { most_s: 0.001, ..inner }.slices(0.01);
        assert!((s.length_s() - SHORTEST_S).abs() < 1e-9, "{s:?}");
    }

    proptest! {
        #[test]
        fn slices_cost_less_than_always_and_give_the_rate(
            attached in 0.0f64..2.0, churn_s in 0.0f64..0.1, longest_s in 0.0f64..0.1, rate in 0.0f64..=1.0,
            allowed in 0.001f64..0.1,
        ) {
            let inner = InnerCost { attached, churn_s, longest_s, allowed: f64::INFINITY, most_s: f64::INFINITY,
                watched: 1.0, sliced: false };
            let s = inner.slices(rate);
            prop_assert!(s.share > 0.0 && s.share <= 1.0 && s.length_s() <= s.period_s);
            prop_assert!((s.share * s.draw(rate) - rate).abs() <= 1e-9);
            if !s.are_always() {
                let paid = s.share * attached + (s.linger_s * attached + churn_s) / s.period_s;
                prop_assert!(rate > 0.75 || paid <= attached, "{paid} of {attached}: {s:?}");
                // With a budget all of it fits, unless a slice a minute is too much.
                let s = InnerCost { allowed, ..inner }.slices(rate.min(allowed / attached));
                let paid = s.share * attached + (s.linger_s * attached + churn_s) / s.period_s;
                prop_assert!(paid <= allowed * (1.0 + 1e-9) || s.period_s >= MOST_PERIOD_S, "{paid} of {allowed}: {s:?}");
            }
        }
    }
}
