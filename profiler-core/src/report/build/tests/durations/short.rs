//! Calls of very different lengths, most of them short.

use super::*;

/// Of 99 calls of 50 ns and one of 100 us the mean is 1 us: but next to none of them is long enough to meet what one of 1 us meets.
#[test]
fn many_short_calls_and_few_long_ones_meet_little_of_what_a_trap_leaves_behind() {
    const COLD_NS: f64 = 180.0;
    let behind = |own_ns: f64| 1.6 * COLD_NS * (1.0 - (-own_ns / 300.0).exp());
    let mut rng = rng(29);
    // Long calls that take less and less of the time: what is taken out changes without a jump, to that of one call as long as the mean.
    let taken = |long_ns: f64, in_hundred: u64| {
        let mut r = timed(0.02);
        r.meta.cost.cold = Price { ns: COLD_NS, min_ns: 170.0, max_ns: 190.0, n: 7 };
        let mut number = 0;
        watched(&mut r, 5_000, || {
            number += 1;
            (HOST_NS + if number % 100 < in_hundred { long_ns } else { 100.0 }, 0.0)
        });
        let part = in_hundred as f64 / 100.0;
        (1.0 - part) * 100.0 + part * long_ns - row_of(&r).mean_ns.unwrap().value
    };
    let by_length: Vec<f64> = (0..=40).map(|step| taken(2_000.0 * 1.12_f64.powi(step), 1)).collect();
    let (first, last) = (by_length[0], by_length[40]);
    assert!(by_length.windows(2).all(|pair| (pair[1] - pair[0]).abs() < 20.0), "{by_length:.0?}");
    let largest = by_length.iter().copied().fold(0.0, f64::max);
    assert!(first > 88.0 && first < 100.0 && last > 80.0 && last < 120.0, "{by_length:.0?}");
    assert!(largest > 130.0, "as one call while long ones take less than 0.6 of the time: {by_length:.0?}");
    // Many long calls that cross the limit at once.
    let by_length: Vec<f64> = (0..=60).map(|step| taken(400.0 * 1.05_f64.powi(step), 15)).collect();
    assert!(by_length.windows(2).all(|pair| (pair[1] - pair[0]).abs() < 20.0), "{by_length:.0?}");
    let mut r = timed(0.02);
    r.meta.cost.cold = Price { ns: COLD_NS, min_ns: 170.0, max_ns: 190.0, n: 7 };
    let mut number = 0;
    watched(&mut r, 5_000, || {
        number += 1;
        let own_ns = if number % 100 == 0 { 100_000.0 } else { 50.0 };
        (own_ns + behind(own_ns) + price(&mut rng, HOST_NS), 0.0)
    });
    let mean = row_of(&r).mean_ns.unwrap();
    let truth_ns = 0.99 * 50.0 + 0.01 * 100_000.0;
    // That a short call looks as long as it is with what it met takes out some 30 ns more.
    assert!((mean.value - truth_ns).abs() < 0.05 * truth_ns, "{mean:?} of {truth_ns}");
    assert!(mean.low <= truth_ns && truth_ns <= mean.high, "{mean:?} of {truth_ns}");
}
