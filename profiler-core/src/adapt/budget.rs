//! The governor's hook: what recording operations may cost bounds the rate, whatever the policy wants.

/// What the operation policy may spend, and at which prices; the ledger supplies it with every window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OperationBudget {
    /// CPU seconds per wall second that remain for operations after what else watches.
    pub cpu_per_s: f64,
    /// Mean price of recording one operation, CPU seconds (its inner calls included).
    pub record_s: f64,
    /// Price of screening one operation, recorded or not, CPU seconds.
    pub screen_s: f64,
}

/// A rate after the budget had its say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capped {
    /// Rate, at most the one wanted. May be below the policy's lowest rate: the budget is the stronger promise.
    pub rate: f64,
    /// CPU time that recording may cost in the next window, s: a hard bound, for bursts that no prediction saw.
    pub quota_s: f64,
    /// The budget took something away.
    pub limited: bool,
}

impl OperationBudget {
    /// CPU seconds per wall second left for recording while `operations_hz` are screened.
    #[must_use]
    pub fn left_for_recording(&self, operations_hz: f64) -> f64 {
        (self.cpu_per_s - self.screen_s * operations_hz.max(0.0)).max(0.0)
    }

    /// Caps a rate so that `rate x operations_hz x record_s` keeps to what is left after screening, and gives the quota
    /// of a window of `window_s`. Prices that are 0 or unknown (NaN) cap nothing and everything respectively.
    #[must_use]
    pub fn cap(&self, rate: f64, operations_hz: f64, window_s: f64) -> Capped {
        let left = self.left_for_recording(operations_hz);
        let affordable_hz = match self.record_s {
            price if price > 0.0 => left / price,
            0.0 => f64::INFINITY,
            _ => 0.0,
        };
        let most = if operations_hz > 0.0 { affordable_hz / operations_hz } else { 1.0 };
        Capped { rate: rate.min(most).max(0.0), quota_s: left * window_s.max(0.0), limited: most < rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rate_is_what_is_left_after_screening() {
        let budget = OperationBudget { cpu_per_s: 0.02, record_s: 100e-6, screen_s: 1e-6 };
        // 1,000 op/s: 1 ms screens, 19 ms record 190.
        let capped = budget.cap(0.5, 1_000.0, 1.0);
        assert!(
            (capped.rate - 0.19).abs() < 1e-12 && (capped.quota_s - 0.019).abs() < 1e-12 && capped.limited,
            "{capped:?}"
        );
        let free = budget.cap(0.5, 10.0, 1.0);
        assert!(free.rate == 0.5 && !free.limited && (free.quota_s - 0.01999).abs() < 1e-12, "{free:?}");
        let dear = budget.cap(0.5, 30_000.0, 1.0);
        assert!(dear.rate == 0.0 && dear.quota_s == 0.0, "{dear:?}");
        assert_eq!(OperationBudget { record_s: f64::NAN, ..budget }.cap(0.5, 10.0, 1.0).rate, 0.0);
    }

    proptest! {
        #[test]
        fn the_cost_never_exceeds_the_budget(
            cpu in 0.0f64..0.1, record in 0.0f64..1e-3, screen in 0.0f64..1e-5, hz in 0.0f64..1e6, rate in 0.0f64..=1.0,
        ) {
            let budget = OperationBudget { cpu_per_s: cpu, record_s: record, screen_s: screen };
            let capped = budget.cap(rate, hz, 1.0);
            prop_assert!((0.0..=rate).contains(&capped.rate));
            let left = (cpu - screen * hz).max(0.0);
            prop_assert!(capped.rate * hz * record <= left * (1.0 + 1e-9));
            prop_assert!(capped.quota_s <= left * (1.0 + 1e-9));
        }
    }
}
