//! The brake on screens: programs on tracepoints and system calls, which every process of the host runs and no quota in the kernel stops.

/// Time constant of what is spent now, ns, and time before it is judged.
const RECENT_NS: f64 = 2e9;
const JUDGED_NS: f64 = 1e9;

/// Exponentially weighted CPU time per second: of the target, of others.
#[derive(Debug, Default, Clone)]
pub struct SpendingRate {
    rate: (f64, f64),
    weight: f64,
    watched_ns: f64,
}

impl SpendingRate {
    /// Adds what an interval cost: the target, others; ns.
    pub fn push(&mut self, elapsed_ns: f64, cost_ns: (f64, f64)) {
        let elapsed_ns = elapsed_ns.max(1.0);
        let share = 1.0 - (-elapsed_ns / RECENT_NS).exp();
        self.rate.0 += share * (cost_ns.0 / elapsed_ns - self.rate.0);
        self.rate.1 += share * (cost_ns.1 / elapsed_ns - self.rate.1);
        self.weight += share * (1.0 - self.weight);
        self.watched_ns += elapsed_ns;
    }

    /// The sums started from 0, hence the weight.
    fn mean(&self) -> (f64, f64) {
        let weight = self.weight.max(1e-9);
        (self.rate.0 / weight, self.rate.1 / weight)
    }
}

/// What is too dear, CPU s/s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dear {
    /// The dearest.
    pub which: usize,
    /// It takes this, ...
    pub cost: f64,
    /// ... and all take this.
    pub all: f64,
}

/// What follows from what screens cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScreenVerdict {
    /// Nothing.
    Cheap,
    /// To the target.
    Own(Dear),
    /// To other processes.
    Others(Dear),
}

/// Whether all together are too dear, and which of them is the dearest. `allowed`: to the target, to others, CPU s/s.
pub fn verdict<'a>(
    rates: impl Iterator<Item = &'a SpendingRate> + Clone,
    allowed: (f64, f64),
) -> ScreenVerdict {
    if rates.clone().any(|r| r.watched_ns < JUDGED_NS) {
        return ScreenVerdict::Cheap;
    }
    let dear = |cost: fn((f64, f64)) -> f64, allowed: f64| {
        let costs = rates.clone().map(|r| cost(r.mean()));
        let all: f64 = costs.clone().sum();
        let dearest = costs.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        dearest.filter(|_| all > allowed).map(|(which, cost)| Dear { which, cost, all })
    };
    match (dear(|c| c.1, allowed.1), dear(|c| c.0, allowed.0)) {
        (Some(others), _) => ScreenVerdict::Others(others),
        (None, Some(own)) => ScreenVerdict::Own(own),
        (None, None) => ScreenVerdict::Cheap,
    }
}

impl Dear {
    /// In words; `screens`: how many there are.
    pub fn in_words(self, screens: usize, digits: usize) -> String {
        let percent = |cost: f64| format!("{:.digits$} %", cost * 100.0);
        if screens > 1 {
            format!(
                "{} of a CPU ({} with the others that are screened)",
                percent(self.cost),
                percent(self.all)
            )
        } else {
            format!("{} of a CPU", percent(self.cost))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_one(rate: &SpendingRate, allowed: (f64, f64)) -> ScreenVerdict {
        verdict(std::iter::once(rate), allowed)
    }

    #[test]
    fn what_is_dear_for_long_is_stopped_and_a_dear_moment_is_not() {
        let allowed = (0.016, 0.02);
        let mut rate = SpendingRate::default();
        rate.push(100e6, (50e6, 0.0));
        // 50 % of a CPU, but for a tenth of a second: not judged yet.
        assert_eq!(of_one(&rate, allowed), ScreenVerdict::Cheap);
        for _ in 0..10 {
            rate.push(100e6, (1e6, 1e6));
        }
        assert!(matches!(of_one(&rate, allowed), ScreenVerdict::Own(dear) if dear.cost > 0.016), "{rate:?}");
        for _ in 0..100 {
            rate.push(100e6, (1e6, 1e6));
        }
        assert_eq!(of_one(&rate, allowed), ScreenVerdict::Cheap, "{rate:?}");
        for _ in 0..100 {
            rate.push(100e6, (1e6, 3e6));
        }
        assert!(
            matches!(of_one(&rate, allowed), ScreenVerdict::Others(dear) if (dear.cost - 0.03).abs() < 1e-3)
        );
    }

    #[test]
    fn of_several_that_are_too_dear_together_the_dearest_goes() {
        let steady = |own: f64, others: f64| {
            let mut rate = SpendingRate::default();
            for _ in 0..20 {
                rate.push(100e6, (own * 100e6, others * 100e6));
            }
            rate
        };
        let rates = [steady(0.006, 0.0), steady(0.009, 0.001), steady(0.004, 0.004)];
        let of = |allowed| verdict(rates.iter(), allowed);
        assert_eq!(of((0.02, 0.02)), ScreenVerdict::Cheap);
        let ScreenVerdict::Own(dear) = of((0.016, 0.02)) else { panic!("{:?}", of((0.016, 0.02))) };
        assert!(dear.which == 1 && (dear.all - 0.019).abs() < 1e-9, "{dear:?}");
        assert_eq!(dear.in_words(3, 2), "0.90 % of a CPU (1.90 % with the others that are screened)");
        assert_eq!(dear.in_words(1, 1), "0.9 % of a CPU");
        // Others come first: the target has agreed to pay.
        assert!(matches!(of((0.016, 0.004)), ScreenVerdict::Others(dear) if dear.which == 2));
        assert_eq!(verdict([].iter(), (0.0, 0.0)), ScreenVerdict::Cheap);
        // One that has just begun is waited for.
        let young = SpendingRate { watched_ns: 1e8, ..steady(0.5, 0.5) };
        assert_eq!(verdict([young].iter(), (0.0, 0.0)), ScreenVerdict::Cheap);
    }
}
