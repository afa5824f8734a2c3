//! What bounds and inner functions take together, and what each of them may take.

/// What is dear by less than so many times is left to the policy, which looks once a revision.
pub(super) const TOLERANCE: f64 = 1.5;
/// Part of what may be spent that every class may take, whatever it took so far; of few classes each its equal part.
const LEAST_PART: f64 = 1.0 / 16.0;

/// What recording an operation costs besides its inner calls (the thread's account read twice, the record written), in counted hits. Measured with
/// a pair of functions on `push` sites: two counted hits 1,585 ns, an operation that is not recorded 1,830, one that is 2,310 (medians of 40 x 2,000
/// operations, n = 3, spread 3 %). The 1,830 are two hits that record, which is what screening is charged with.
const RECORD_HITS: f64 = 0.6;

/// That, ns, where a counted hit costs `count_ns`.
pub(super) fn record_own_ns(count_ns: f64) -> f64 {
    RECORD_HITS * count_ns
}

/// For how many times the span that was added up inner functions stay off, so that on average they took half of what is
/// allowed; 0: they did not take too much. `inside_ns` is their part of `spent_ns`; `most_ns` may fall into one span, where
/// `allowed_ns` are allowed on average.
pub(super) fn pause_spans((spent_ns, inside_ns): (f64, f64), most_ns: f64, allowed_ns: f64) -> f64 {
    if spent_ns <= TOLERANCE * most_ns || inside_ns <= 0.0 {
        return 0.0;
    }
    inside_ns / (0.5 * allowed_ns).max(1.0)
}

/// For how long the bounds of an operation stay off of which one has used up its quota, worth `least_s` of what is allowed at most, ns: so
/// that on average they take half of that. They took `took_ns` of late; `allowed_ns` a second. At most a minute.
pub(super) fn pause_ns(took_ns: f64, allowed_ns: f64, least_s: f64) -> u64 {
    let worth_s = (took_ns / allowed_ns.max(1.0)).clamp(least_s, 30.0);
    // OK because the cast saturates.
    (2.0 * worth_s * 1e9) as u64
}

/// Parts of what may be spent, by what each took: the sum is at most 2, or `1 + n / 16` of more than 16.
pub(super) fn parts(took_ns: &[f64]) -> Vec<f64> {
    let all: f64 = took_ns.iter().sum();
    let least = (1.0 / took_ns.len().max(1) as f64).max(LEAST_PART);
    took_ns.iter().map(|took| (least + if all > 0.0 { took / all } else { 0.0 }).min(1.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_take_a_little_each_are_stopped_by_their_sum() {
        // 500 functions, each far below the 16 ms.
        let took = vec![0.1e6; 500];
        let spent: f64 = took.iter().sum();
        // 50 ms where 16 are allowed: at half of the budget that is 6.25 seconds' worth.
        assert!((pause_spans((spent, spent), 16e6, 16e6) - 6.25).abs() < 1e-9);
        // It grows with the overspend, without an end.
        assert!((pause_spans((100.0 * spent, 100.0 * spent), 16e6, 16e6) - 625.0).abs() < 1e-6);
        assert_eq!(pause_spans((20e6, 20e6), 16e6, 16e6), 0.0);
        // In slices twice as much may fall into a second; on average it is as little as ever.
        assert_eq!(pause_spans((spent * 0.9, spent * 0.9), 32e6, 16e6), 0.0);
        assert!((pause_spans((spent, spent), 32e6, 16e6) - 6.25).abs() < 1e-9);
        // Bounds alone are not mended by it.
        assert_eq!(pause_spans((50e6, 0.0), 16e6, 16e6), 0.0);
    }

    #[test]
    fn a_bound_that_trips_takes_half_of_what_it_may() {
        // 20 ms a second are allowed: a quota was worth 5, and with the tail it took 8.
        assert_eq!(pause_ns(8e6, 20e6, 0.25), 800_000_000);
        // Not added up yet.
        assert_eq!(pause_ns(0.0, 20e6, 0.25), 500_000_000);
        assert_eq!((pause_ns(1e12, 20e6, 0.25), pause_ns(1.0, 0.0, 0.25)), (60_000_000_000, 2_000_000_000));
    }

    #[test]
    fn recording_is_priced_by_this_machines_hits() {
        assert!((record_own_ns(792.5) - 480.0).abs() < 10.0);
    }

    #[test]
    fn each_may_take_what_it_took_and_a_floor() {
        assert_eq!(parts(&[0.0, 0.0]), [0.5, 0.5]);
        assert_eq!(parts(&[3.0, 1.0]), [1.0, 0.75]);
        let many = parts(&vec![1.0; 500]);
        assert!(many.iter().all(|p| (p - (1.0 / 16.0 + 1.0 / 500.0)).abs() < 1e-12));
        assert_eq!(parts(&[5.0]), [1.0]);
        assert!(parts(&[]).is_empty());
    }
}
