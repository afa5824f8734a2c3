//! How often a kernel is recorded so that it has N data points of each decade of its inputs on average (§3.2, Setting the Sampling Frequency).
//!
//! The paper samples a call N times. A recorded call is one data point, however long it takes, so a frequency is here that of recorded calls:
//!
//! ```text
//! f = N D / T,    duty of bursts = f / F
//! ```
//! D: decades of the inputs; T: [`PERIOD_S`]; F: calls per second. Kernels of a group share f. Bursts take calls as they come: N is the mean over the
//! decades, and a decade that holds the part q of the calls gets `q D N`, rare ones fewer than N.

use super::call::Calls;
use super::model::Model;
use std::collections::HashMap;

/// N data points of each decade on average are wanted anew in so long, s: functions change while they are watched.
pub const PERIOD_S: f64 = 10.0;

/// A decade that holds less than this part of the calls is of rare inputs: waiting for it would have all calls recorded.
pub const LEAST_PART: f64 = 0.01;

/// Combinations of the decades of a model's inputs that hold a hundredth of its calls at least; 1 where it has no inputs.
#[must_use]
pub fn decades(model: &Model, calls: &Calls) -> u32 {
    let mut found: HashMap<Vec<u32>, u64> = HashMap::new();
    let mut all = 0_u64;
    for (values, _) in calls.iter() {
        let Some((x, _)) = model.x(values) else { continue };
        // OK because x is at most 2^64.
        let decade = |x: &f64| if *x >= 1.0 { x.log10().floor() as u32 + 1 } else { 0 };
        *found.entry(x.iter().map(decade).collect()).or_default() += 1;
        all += 1;
    }
    let least = LEAST_PART * all as f64;
    let usual = found.values().filter(|calls| **calls as f64 >= least).count();
    u32::try_from(usual).unwrap_or(u32::MAX).max(1)
}

/// Frequency of recorded calls that the kernels of a group share, Hz: so high that none has fewer than N data points for each of its decades in
/// [`PERIOD_S`], all decades together. `decades`: of each kernel.
#[must_use]
pub fn shared_hz(datapoints: u32, decades: impl IntoIterator<Item = u32>) -> f64 {
    let most = decades.into_iter().max().unwrap_or(0);
    f64::from(datapoints) * f64::from(most) / PERIOD_S
}

#[cfg(test)]
mod tests {
    use super::super::call::{Input, Taken, Value};
    use super::*;

    #[test]
    fn decades_with_a_hundredth_of_the_calls_count_and_the_widest_kernel_sets_the_pace() {
        // 12 sizes from 10 to 30,000; two calls of a million.
        let mut calls = Calls::new(vec![Input::number("n")]);
        for i in 0..1_200_u64 {
            let n = 10.0 * 2.07_f64.powi((i % 12) as i32);
            calls.push(&[Value::Unsigned(n as u64)], Taken::ns(100.0 + 3.0 * n));
        }
        let model = super::super::fit(&calls, 1).unwrap();
        assert_eq!(decades(&model, &calls), 4);
        (0..2).for_each(|_| calls.push(&[Value::Unsigned(1_000_000)], Taken::ns(3e6)));
        assert_eq!(decades(&model, &calls), 4, "what is rare is not waited for");
        assert_eq!(shared_hz(200, [1, 4, 3]), 80.0);
        assert_eq!((shared_hz(200, []), shared_hz(0, [4])), (0.0, 0.0));
    }
}
