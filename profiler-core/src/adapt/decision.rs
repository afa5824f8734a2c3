//! Algorithm 1 (Mertz and Nunes §3.2): is this operation recorded?
//!
//! The kernel program takes the decision at the operation's begin from the integers below, which user space
//! computes, with [`choose`]; [`decide`] is the same with the counting, for replay.
//!
//! Our reading: the operation is counted in the population before it is looked at (line 1 stands first; the /vets
//! example of Table 1 needs it, as the table shows the state after line 1), and an empty sample counts as a
//! share of 0, so that the first drawn operation is recorded.

pub use profiler_common::operation::{ClassNumbers, Decision, Switch, Totals, choose};

/// Slack of the balance test as an integer.
#[must_use]
pub fn slack_q16(slack: f64) -> u32 {
    // OK because the cast saturates and the product is at most 65,536; NaN gives 0.
    (slack.clamp(0.0, 1.0) * 65_536.0).round() as u32
}

/// Bernoulli(rate) as a bound for a 32-bit random number: 0 is never, 2^32 always. NaN gives 0.
#[must_use]
pub fn threshold(rate: f64) -> u64 {
    // OK because the cast saturates and the product is at most 2^32.
    (rate.clamp(0.0, 1.0) * 4_294_967_296.0).round() as u64
}

/// Takes the decision and counts the operation.
///
/// # Cost
/// In the kernel: two lookups, four products, no division.
#[must_use]
pub fn decide(switch: &mut Switch, totals: &mut Totals, class: &mut ClassNumbers, draw: u32) -> Decision {
    totals.population = totals.population.saturating_add(1);
    class.population = class.population.saturating_add(1);
    let decision = choose(switch, totals, class, draw);
    if decision == Decision::Record {
        switch.quota_ns -= class.price_ns;
        totals.sample = totals.sample.saturating_add(1);
        class.sample = class.sample.saturating_add(1);
    }
    decision
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::operation::lacks;
    use proptest::prelude::*;

    fn on(balance: bool) -> Switch {
        Switch { monitoring: true, balance, slack_q16: 0, quota_ns: u64::MAX }
    }

    #[test]
    fn rates_of_zero_and_one_are_never_and_always() {
        let mut totals = Totals::default();
        for (rate, expected) in
            [(0.0, Decision::NotDrawn), (1.0, Decision::Record), (f64::NAN, Decision::NotDrawn)]
        {
            for draw in [0, 1, u32::MAX / 2, u32::MAX] {
                let mut class =
                    ClassNumbers { threshold: threshold(rate), price_ns: 0, population: 0, sample: 0 };
                assert_eq!(decide(&mut on(false), &mut totals, &mut class, draw), expected, "{rate} {draw}");
            }
        }
    }

    #[test]
    fn the_population_counts_with_monitoring_off_and_the_first_drawn_is_recorded() {
        let (mut totals, mut class) = (
            Totals::default(),
            ClassNumbers { threshold: threshold(0.5), price_ns: 0, population: 0, sample: 0 },
        );
        let mut off = Switch { monitoring: false, ..on(true) };
        assert_eq!(decide(&mut off, &mut totals, &mut class, 0), Decision::Off);
        assert_eq!((totals.population, class.population, class.sample), (1, 1, 0));
        assert_eq!(decide(&mut on(true), &mut totals, &mut class, 0), Decision::Record);
        assert_eq!((totals, class.population, class.sample), (Totals { population: 2, sample: 1 }, 2, 1));
    }

    #[test]
    fn the_quota_is_a_hard_bound() {
        let (mut totals, mut switch) = (Totals::default(), Switch { quota_ns: 350, ..on(false) });
        let mut class = ClassNumbers { threshold: threshold(1.0), price_ns: 100, population: 0, sample: 0 };
        let recorded =
            (0..100).filter(|_| decide(&mut switch, &mut totals, &mut class, 0) == Decision::Record).count();
        assert_eq!((recorded, totals), (3, Totals { population: 100, sample: 3 }));
    }

    #[test]
    fn slack_lets_a_class_run_ahead() {
        // 43 of 220 against 22 of 111: ahead by 0.275 points.
        let (totals, class) = (
            Totals { population: 220, sample: 111 },
            ClassNumbers { threshold: 0, price_ns: 0, population: 43, sample: 22 },
        );
        assert!(!lacks(slack_q16(0.0), &totals, &class));
        assert!(!lacks(slack_q16(0.002), &totals, &class));
        assert!(lacks(slack_q16(0.003), &totals, &class));
    }

    proptest! {
        /// The integers decide as the formula does, up to the rounding of the slack, over all sizes of counts.
        #[test]
        fn integers_agree_with_the_formula(
            p in 1u32.., s_share in 0.0f64..1.0, ep_share in 0.0f64..1.0, es_share in 0.0f64..1.0, slack in 0.0f64..0.5,
        ) {
            let s = (f64::from(p) * s_share) as u32;
            let class = ClassNumbers {
                threshold: 0,
                price_ns: 0,
                population: (f64::from(p) * ep_share) as u32,
                sample: (f64::from(s) * es_share) as u32,
            };
            let q = slack_q16(slack);
            let got = lacks(q, &Totals { population: p, sample: s }, &class);
            let sampled = if s == 0 { 0.0 } else { f64::from(class.sample) / f64::from(s) };
            let distance = f64::from(class.population) / f64::from(p) - sampled + f64::from(q) / 65_536.0;
            // Within rounding of equality either answer is right.
            let unit = 1.0 / (f64::from(p) * f64::from(s).max(1.0)) + 1e-9;
            prop_assert!(distance.abs() <= unit || got == (distance > 0.0), "{distance} {got}");
        }
    }
}
