//! Quotients of two estimates.

use super::Interval;
use crate::class::Source;
use crate::estimate::Estimate;

/// Mean on-CPU time per call, ns: rho / F (Little 1961: the mean number inside is the rate times the mean
/// time inside), from `rho` in on-CPU s/s and `rate_hz` in calls/s. It is *on-CPU* time: what a call spends
/// waiting is in neither number.
///
/// `None` if nothing was sampled or counted.
#[must_use]
pub fn on_cpu_per_call_ns(rho: &Estimate, rate_hz: &Estimate) -> Option<Estimate> {
    let (value, interval) = quotient(rho, rate_hz)?;
    Some(Estimate {
        value: value * 1e9,
        low: interval.low * 1e9,
        high: interval.high * 1e9,
        level: rho.level.min(rate_hz.level),
        n: rho.n.min(rate_hz.n),
        source: Source::Derived,
        at_most: false,
    })
}

/// Quotient of two independent positive estimates, with the interval that their own intervals imply.
///
/// Squared distances from the estimates to their limits are variances at the limits; on the log scale they
/// add (MOVER, the method of variance estimates recovery; Zou and Donner 2008, Donner and Zou 2012):
/// ```text
/// ln low  = ln(a/b) - sqrt(ln^2(a/a_low)  + ln^2(b_high/b))
/// ln high = ln(a/b) + sqrt(ln^2(a_high/a) + ln^2(b/b_low))
/// ```
/// Unlike Fieller's (1954) it always is an interval, and skewed limits stay skewed. A limit that is 0 or infinite
/// makes the end 0 or infinite.
#[must_use]
pub fn quotient(a: &Estimate, b: &Estimate) -> Option<(f64, Interval)> {
    let usable = |e: &Estimate| e.value.is_finite() && e.value > 0.0 && !e.low.is_nan() && !e.high.is_nan();
    if !usable(a) || !usable(b) {
        return None;
    }
    let value = a.value / b.value;
    // ln of a quotient of limits; a limit of 0 gives infinity, and exp(-inf) = 0 below.
    let down = (a.value / a.low.max(0.0)).ln().hypot((b.high / b.value).ln());
    let up = (a.high / a.value).ln().hypot((b.value / b.low.max(0.0)).ln());
    Some((value, Interval { low: value * (-down).exp(), high: value * up.exp() }))
}

#[cfg(test)]
mod tests {
    use super::super::counts::{garwood, wilson};
    use super::super::sim::{Coverage, poisson, rng};
    use super::super::z_quantile;
    use super::*;
    use rand::RngExt as _;

    fn estimate(value: f64, i: Interval, n: u64) -> Estimate {
        Estimate { value, low: i.low, high: i.high, level: 0.95, n, source: Source::Sampled, at_most: false }
    }

    #[test]
    fn rho_over_f_covers_the_true_mean_time() {
        let (rho, rate, mut rng) = (0.08, 4_000.0, rng(2));
        let mut c = Coverage::default();
        let mut mean = 0.0;
        for _ in 0..3_000 {
            let k = (0..2_000).filter(|_| rng.random::<f64>() < rho).count() as f64;
            let share = estimate(k / 2_000.0, wilson(k, 2_000.0, z_quantile(0.95)), k as u64);
            let hits = poisson(&mut rng, rate * 0.1);
            let f = estimate(hits / 0.1, garwood(hits, 0.95).scaled(10.0), hits as u64);
            let on_cpu = on_cpu_per_call_ns(&share, &f).unwrap();
            mean += on_cpu.value / 3_000.0;
            c.note(Interval { low: on_cpu.low, high: on_cpu.high }, 1e9 * rho / rate);
        }
        c.check(0.94, 0.97, "rho / F");
        assert!((mean / (1e9 * rho / rate) - 1.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn zero_and_infinite_limits_stay_limits() {
        let a = estimate(2.0, Interval { low: 0.0, high: 4.0 }, 1);
        let b = estimate(4.0, Interval { low: 0.0, high: f64::INFINITY }, 1);
        let (value, i) = quotient(&a, &b).unwrap();
        assert_eq!((value, i.low, i.high), (0.5, 0.0, f64::INFINITY));
        assert!(quotient(&estimate(0.0, Interval { low: 0.0, high: 1.0 }, 0), &b).is_none());
        let exact = Estimate::exact(4.0, 4);
        assert_eq!(quotient(&exact, &exact).unwrap().1, Interval { low: 1.0, high: 1.0 });
    }
}
