//! What a program says of its own calls, and what follows from it.

use std::collections::BTreeMap;

/// Calls of a function since the program began, by the program's own count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Calls.
    pub calls: f64,
    /// Time in them, ns. `None`: the program does not time them.
    pub total_ns: Option<f64>,
}

/// The name of a pair of readings of the program's own clock with nothing between them.
pub const EMPTY: &str = "(empty)";

/// All that a program says of itself at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// When: `CLOCK_MONOTONIC`, ns.
    pub at_ns: u64,
    /// Its counts by function.
    pub counted: BTreeMap<String, Counted>,
}

/// A count, and how far it may be off because it was read a moment before or after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// Calls.
    pub calls: f64,
    /// Most that it is off, calls.
    pub within: f64,
}

/// Calls between two moments, interpolated between the readings around them. `None`: there is no reading before the first or after the last
/// moment, or none of this function.
pub fn calls_between(readings: &[Reading], name: &str, from_ns: u64, to_ns: u64) -> Option<Count> {
    let at = |ns: u64| -> Option<(f64, f64)> {
        let after = readings.iter().position(|reading| reading.at_ns >= ns)?;
        let (one, two) = (readings.get(after.checked_sub(1)?)?, &readings[after]);
        let (low, high) = (one.counted.get(name)?.calls, two.counted.get(name)?.calls);
        let part = (ns - one.at_ns) as f64 / (two.at_ns - one.at_ns).max(1) as f64;
        Some((low + (high - low) * part, high - low))
    };
    let ((first, before), (last, after)) = (at(from_ns)?, at(to_ns)?);
    Some(Count { calls: last - first, within: before + after })
}

/// Mean time of the calls between pairs of readings, ns. `None`: there were none, or they are not timed.
pub fn mean_ns(stretches: &[[Reading; 2]], name: &str) -> Option<f64> {
    let (mut calls, mut total_ns) = (0.0, 0.0);
    for [one, two] in stretches {
        let (one, two) = (one.counted.get(name)?, two.counted.get(name)?);
        calls += two.calls - one.calls;
        total_ns += two.total_ns? - one.total_ns?;
    }
    (calls > 0.0).then(|| total_ns / calls)
}

/// `CLOCK_MONOTONIC`, ns.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// What two readings of the clock with nothing between them are apart here, ns: median of the means of 1,000 pairs each.
pub fn clock_ns() -> f64 {
    let mut means: Vec<u64> = (0..201)
        .map(|_| {
            (0..1000)
                .map(|_| {
                    let begin = now_ns();
                    now_ns() - begin
                })
                .sum()
        })
        .collect();
    means.sort_unstable();
    means[means.len() / 2] as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_ns: u64, calls: f64, total_ns: Option<f64>) -> Reading {
        Reading { at_ns, counted: BTreeMap::from([("f".to_owned(), Counted { calls, total_ns })]) }
    }

    #[test]
    fn calls_are_those_between_two_moments_and_no_reading_is_made_up() {
        let readings = [reading(100, 10.0, None), reading(200, 30.0, None), reading(300, 40.0, None)];
        let count = calls_between(&readings, "f", 150, 280).unwrap();
        assert_eq!((count.calls, count.within), (38.0 - 20.0, 30.0));
        assert_eq!(calls_between(&readings, "f", 90, 280), None, "before the first reading");
        assert_eq!(calls_between(&readings, "f", 150, 301), None, "after the last");
        assert_eq!(calls_between(&readings, "g", 150, 280), None);
    }

    #[test]
    fn the_mean_of_stretches_is_that_of_all_their_calls() {
        let stretch = |calls, total| [reading(0, 5.0, Some(7.0)), reading(1, 5.0 + calls, Some(7.0 + total))];
        let all = [stretch(10.0, 100.0), stretch(30.0, 900.0)];
        assert_eq!(mean_ns(&all, "f"), Some(25.0));
        assert_eq!(mean_ns(&all[..1], "f"), Some(10.0));
        assert_eq!(mean_ns(&[[reading(0, 0.0, None), reading(1, 9.0, None)]], "f"), None);
        assert_eq!(mean_ns(&[stretch(0.0, 0.0)], "f"), None, "no call");
    }

    #[test]
    fn the_clock_goes_on() {
        let one = now_ns();
        assert!(clock_ns() < 1e5 && now_ns() > one);
    }
}
