//! Rates of functions that were watched beside a reference ([`crate::clients::reference`]): by how often they were called for each call of it.
//!
//! Hits slow both alike, so that no price is in how often one is called for a call of the other:
//! ```text
//! rate = R G,   R = mean N_w / (M_w + 1)
//! ```
//! `N`: calls of the function in window `w`, `M`: calls of the reference in the same time, `G`: the reference's own rate, which hangs little on what its hits cost. The
//! windows are bursts of the plan, at random moments, and each weighs alike, as bursts do. `1 / (M + 1)` has the mean `1 / m` where calls come by Poisson's law with mean
//! `m`, but for a part of `e^-m`. Where the function is called more often its windows are shorter; a ratio of the sums weighs moments by the reference's calls in them. The interval holds both.

use super::{RunContext, bursts_of};
use crate::class::Source;
use crate::estimate::Estimate;
use crate::recording::{ClassRow, Recording, WindowKind, WindowRow};
use crate::stats::bursts::Of;
use crate::stats::{LEVEL, t_quantile};
use std::collections::BTreeMap;

/// Windows that say how much they differ.
const LEAST_WINDOWS: usize = 4;
/// Calls of the reference in a window, in the mean.
const LEAST_CALLS: f64 = 3.0;

/// A value, and the ends of its interval.
type Known = (f64, f64, f64);

/// It is a window of a reference on a function's link: the function ended it, so that it is no burst of its own.
pub(in crate::report::build) fn is_lent(w: &WindowRow) -> bool {
    w.kind == WindowKind::Burst && w.link.is_some_and(|link| link != w.class_id)
}

/// Functions with their references, and the calls of both in the windows that they shared.
type Pairs = BTreeMap<(u32, u32), Vec<(f64, f64)>>;

fn pairs(recording: &Recording) -> Pairs {
    let mut shared: BTreeMap<u32, Vec<&WindowRow>> = BTreeMap::new();
    for w in recording.windows.iter().filter(|w| w.kind == WindowKind::Burst) {
        if let Some(link) = w.link {
            shared.entry(link).or_default().push(w);
        }
    }
    let mut pairs = Pairs::new();
    for (link, windows) in &mut shared {
        windows.sort_by_key(|w| w.start_ns);
        for on_link in windows.chunk_by(|a, b| b.start_ns < a.end_ns) {
            let [a, b] = *on_link else { continue };
            let (function, reference) = if a.class_id == *link { (a, b) } else { (b, a) };
            if function.class_id == *link && reference.class_id != *link {
                pairs.entry((*link, reference.class_id)).or_default().extend(calls(function, reference));
            }
        }
    }
    pairs
}

/// Calls of both in the function's window.
fn calls(function: &WindowRow, reference: &WindowRow) -> Option<(f64, f64)> {
    let length_ns = |w: &WindowRow| w.end_ns.saturating_sub(w.start_ns) as f64;
    // Where the function's quota ended the window, its link, and with it the reference's window, went on for a moment.
    let part = length_ns(function) / length_ns(reference);
    let hits = function.kept.saturating_add(function.dropped) as f64;
    (hits > 0.0 && part.is_finite() && part > 0.0).then_some((hits, reference.kept as f64 * part))
}

/// The rates of those functions that have a reference, calls per second that monitoring left the target. Of several references that which knows it best counts.
pub(super) fn rates(
    recording: &Recording,
    windows: &BTreeMap<u32, Vec<&WindowRow>>,
    run: &RunContext,
) -> BTreeMap<u32, Estimate> {
    let class = |id: u32| recording.classes.iter().find(|c| c.class_id == id);
    let mut rates: BTreeMap<u32, Estimate> = BTreeMap::new();
    for ((function, reference), of_pair) in pairs(recording) {
        let Some((class, own)) = class(reference).zip(windows.get(&reference)) else { continue };
        let Some(of_reference) = of_reference(class, own, recording, run) else { continue };
        let Some(ratio) = ratio(&of_pair) else { continue };
        let n = of_pair.iter().map(|(hits, _)| *hits).sum::<f64>();
        // OK because they were counted.
        let rate = times(ratio, of_reference, n as u64);
        if rates.get(&function).is_none_or(|old| rate.half_width() < old.half_width()) {
            rates.insert(function, rate);
        }
    }
    rates
}

/// The reference's own rate, Hz.
fn of_reference(
    class: &ClassRow,
    windows: &[&WindowRow],
    recording: &Recording,
    run: &RunContext,
) -> Option<Known> {
    let bursts = bursts_of(class, windows, recording, run);
    let rate = bursts.rate(run.drift.as_ref(), Of::Run { unseen: 1.0 })?;
    (rate.low > 0.0 && rate.high.is_finite()).then_some((rate.value, rate.low, rate.high))
}

/// See above: `R`, with its interval.
fn ratio(windows: &[(f64, f64)]) -> Option<Known> {
    let n = windows.len() as f64;
    let (hits, calls) = windows.iter().fold((0.0, 0.0), |(h, c), (hits, calls)| (h + hits, c + calls));
    if windows.len() < LEAST_WINDOWS || calls < LEAST_CALLS * n {
        return None;
    }
    let each = || windows.iter().map(|(hits, calls)| hits / (calls + 1.0));
    let mean = each().sum::<f64>() / n;
    let between = each().map(|own| (own - mean).powi(2)).sum::<f64>() / (n - 1.0);
    // Few windows are alike by chance: not less than calls of the reference at random differ by.
    let variance = (between / n).max(mean * mean / calls);
    let half = t_quantile(LEVEL, n - 1.0) * variance.sqrt();
    let of_sums = hits / calls;
    Some((mean, (mean - half).max(0.0).min(of_sums), (mean + half).max(of_sums)))
}

/// The product of two independent estimates, whose relative errors add by their squares.
fn times(a: Known, b: Known, n: u64) -> Estimate {
    let value = a.0 * b.0;
    let below = (1.0 - a.1 / a.0).hypot(1.0 - b.1 / b.0);
    let above = (a.2 / a.0 - 1.0).hypot(b.2 / b.0 - 1.0);
    Estimate {
        value,
        low: value * (1.0 - below).max(0.0),
        high: value * (1.0 + above),
        level: LEVEL,
        n,
        source: Source::Burst,
        at_most: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Windows of 2,000 calls of a function that is called 100 times for each call of the reference, which come by chance; from window to window that differs by `spread`.
    fn windows(random: &mut StdRng, n: usize, spread: f64) -> Vec<(f64, f64)> {
        let mut window = || {
            let ratio = 100.0 * (1.0 + spread * (2.0 * random.random::<f64>() - 1.0));
            let mean = 2_000.0 / ratio;
            // Exponential times from call to call.
            let (mut at, mut calls) = (0.0, 0.0);
            loop {
                at -= (1.0 - random.random::<f64>()).ln();
                if at > mean {
                    return (2_000.0, calls);
                }
                calls += 1.0;
            }
        };
        (0..n).map(|_| window()).collect()
    }

    #[test]
    fn the_ratio_is_true_on_average_and_its_interval_holds_it() {
        let mut random = StdRng::seed_from_u64(7);
        let (mut sum, mut held) = (0.0, 0);
        for _ in 0..400 {
            let (value, low, high) = ratio(&windows(&mut random, 12, 0.5)).unwrap();
            sum += value;
            held += u32::from(low <= 100.0 && 100.0 <= high);
        }
        assert!((sum / 400.0 - 100.0).abs() < 2.0, "{}", sum / 400.0);
        assert!((372..=400).contains(&held), "{held} of 400");
    }

    #[test]
    fn few_windows_and_few_calls_say_nothing() {
        let mut random = StdRng::seed_from_u64(8);
        let all = windows(&mut random, 12, 0.0);
        assert!(ratio(&all[..3]).is_none());
        let few: Vec<(f64, f64)> = all.iter().map(|(hits, _)| (*hits, 2.0)).collect();
        assert!(ratio(&few).is_none());
    }

    #[test]
    fn relative_errors_of_ratio_and_reference_add_by_their_squares() {
        let rate = times((100.0, 97.0, 104.0), (1e4, 0.96e4, 1.03e4), 5);
        assert_eq!((rate.value, rate.n), (1e6, 5));
        assert!((rate.low - 0.95e6).abs() < 1.0 && (rate.high - 1.05e6).abs() < 1.0, "{rate:?}");
    }
}
