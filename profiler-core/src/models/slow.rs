//! Calls that took longer than their inputs explain, among those that a model was made from.
//!
//! A prediction's interval will not do: it is made of the same calls, and holds as many as it promises, however many are slow.

use super::call::Calls;
use super::cause::{ALIKE, Cause, Used, explain};
use super::cells::{MAD, median};
use super::model::Model;

/// A call is slow if the logarithm of its time over the predicted one is so many spreads above the median of all. Slow calls do not move median and
/// spread as long as they are not half of all.
const SPREADS: f64 = 6.0;
/// Least factor above the usual from which a call is slow: no machine keeps to a form more closely.
const LEAST: f64 = 1.5;
/// The same of calls that are [too short](super::Prediction::is_short) to be told apart.
const LEAST_SHORT: f64 = 10.0;
/// Normal calls that a slow one is compared with.
const COMPARED: usize = 2_000;

/// Calls that took longer than their inputs explain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlowCalls {
    /// How many.
    pub calls: usize,
    /// Those with the largest excess, the largest first.
    pub worst: Vec<SlowCall>,
}

/// A call that took longer than its inputs explain.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowCall {
    /// Number of the call, as it was pushed, from 0.
    pub call: usize,
    /// Its time, ns, without what watching cost.
    pub own_ns: f64,
    /// Predicted time, ns.
    pub predicted_ns: f64,
    /// Longest time that is usual with such inputs, ns.
    pub most_ns: f64,
    /// The resource behind the excess; `None`: nobody knows what it used.
    pub cause: Option<Cause>,
}

/// A call beside what is predicted for it.
#[derive(Debug, Clone, Copy)]
struct Judged {
    call: usize,
    own_ns: f64,
    predicted_ns: f64,
    /// It is predicted to take what can be told.
    is_short: bool,
}

/// The calls that took longer than their inputs explain; of the `told` worst ones with the reason, by `used`: what a call used, by its number, own and
/// predicted time.
///
/// ```text
/// slow:  ln(own / predicted) > median + max(6 s, ln 1.5),   s = 1.4826 MAD of the logarithms
/// ```
/// Calls that are too short to be told apart have no part in median and spread, and are slow at ten times what can be told, at least.
#[must_use]
pub fn slow_calls(
    model: &Model,
    calls: &Calls,
    told: usize,
    used: impl Fn(usize, f64, f64) -> Option<Used>,
) -> SlowCalls {
    let floor_ns = model.basis.floor_ns();
    let judge = |(call, (values, taken)): (usize, (&[_], super::call::Taken))| {
        let (x, curve) = model.x(values)?;
        let (predicted_ns, is_short) = model.time_at(&x, curve);
        // Where none was recorded that is known to be short, what the curve says is told apart no better.
        let (predicted_ns, is_short) = (predicted_ns.max(floor_ns), is_short || predicted_ns <= floor_ns);
        let own_ns = if is_short { taken.left_ns()?.max(predicted_ns) } else { taken.own_ns()? };
        Some(Judged { call, own_ns, predicted_ns, is_short })
    };
    let judged: Vec<Judged> = calls.iter().enumerate().filter_map(judge).collect();
    if judged.is_empty() {
        return SlowCalls::default();
    }
    // Short ones are not told apart, so that they do not scatter either.
    let usual = most_usual(judged.iter().filter(|c| !c.is_short));
    let most = |c: &Judged| if c.is_short { usual.max(LEAST_SHORT) } else { usual };
    let (mut slow, normal): (Vec<Judged>, Vec<Judged>) =
        judged.into_iter().partition(|c| c.own_ns > most(c) * c.predicted_ns);
    slow.sort_by(|a, b| (b.own_ns - b.predicted_ns).total_cmp(&(a.own_ns - a.predicted_ns)));
    let used = |c: &Judged| used(c.call, c.own_ns, c.predicted_ns);
    let tell = |c: &Judged| {
        let near = (c.predicted_ns / ALIKE)..=(c.predicted_ns * ALIKE);
        let like: Vec<&Judged> = normal.iter().filter(|n| near.contains(&n.predicted_ns)).collect();
        // Spread over the run.
        let step = like.len().div_ceil(COMPARED).max(1);
        let cause = used(c).map(|own| {
            let like: Vec<Used> = like.into_iter().step_by(step).filter_map(used).collect();
            explain(&own, &like)
        });
        let Judged { call, own_ns, predicted_ns, .. } = *c;
        SlowCall { call, own_ns, predicted_ns, most_ns: most(c) * predicted_ns, cause }
    };
    SlowCalls { calls: slow.len(), worst: slow.iter().take(told).map(tell).collect() }
}

/// Largest time over the predicted one that is usual.
fn most_usual<'c>(judged: impl Iterator<Item = &'c Judged>) -> f64 {
    let mut logs: Vec<f64> = judged.map(|c| (c.own_ns / c.predicted_ns).ln()).collect();
    let middle = median(&mut logs);
    let mut away: Vec<f64> = logs.iter().map(|log| (log - middle).abs()).collect();
    let spread = MAD * median(&mut away);
    (middle + (SPREADS * spread).max(LEAST.ln())).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Input, Part, Taken, Value, fit};

    /// 2,000 calls of `300 ns + 5 ns n`, 2 % more or less. Every hundredth is 20 times as long: it waits for a CPU.
    fn calls() -> Calls {
        let mut calls = Calls::new(vec![Input::number("n")]);
        for i in 0..2_000_u64 {
            let n = 10 << (i % 10);
            let wave = 1.0 + 0.02 * (i as f64 * 0.7).sin();
            let factor = if i % 100 == 57 { 20.0 } else { 1.0 };
            calls.push(&[Value::Unsigned(n)], Taken::ns((300.0 + 5.0 * n as f64) * wave * factor));
        }
        calls
    }

    fn used(_: usize, own_ns: f64, predicted_ns: f64) -> Option<Used> {
        let runnable_ns = (own_ns - 1.1 * predicted_ns).max(0.0);
        Some(Used { own_ns, predicted_ns, on_cpu_ns: own_ns - runnable_ns, runnable_ns, ..Used::default() })
    }

    #[test]
    fn one_in_a_hundred_is_found_and_no_other_and_its_reason_is_told() {
        let calls = calls();
        let model = fit(&calls, 1).unwrap();
        let slow = slow_calls(&model, &calls, 3, used);
        assert_eq!(slow.calls, 20, "{slow:?}");
        assert_eq!(slow.worst.len(), 3);
        for worst in &slow.worst {
            assert_eq!(worst.call % 100, 57);
            assert!(worst.own_ns > worst.most_ns && worst.most_ns < 2.0 * worst.predicted_ns, "{worst:?}");
            assert_eq!(worst.cause.as_ref().unwrap().part, Some(Part::Runnable), "{worst:?}");
        }
        assert!(slow_calls(&model, &calls, 1, |_, _, _| None).worst[0].cause.is_none());
        assert_eq!(slow_calls(&model, &Calls::new(vec![Input::number("n")]), 3, used), SlowCalls::default());
    }
}
