use super::*;
use crate::stats::sim::{normal, rng};

#[test]
fn a_call_is_bet_on_once_in_flight_or_at_its_end() {
    let mut random = rng(4);
    let calibration = Calibration::new((0..3_000).map(|_| (1e6, 0.2 * normal(&mut random))).collect());
    let new = || {
        let mut watch = Watch::new(Settings::default());
        watch.add_calibrated(0, calibration.clone());
        watch
    };
    let call = |tid: u32, own_ns: f64| Call {
        seen: Seen { kernel: 0, time_ns: 9_000_000_000, predicted_ns: 1e6, own_ns },
        tid,
        waits: false,
    };
    let (mut at_end, mut in_flight) = (new(), new());
    let before = [Call { seen: Seen { time_ns: 8_990_000_000, ..call(1, 1e6).seen }, ..call(1, 1e6) }];
    assert_eq!((at_end.step(&before, &[]), in_flight.step(&before, &[])), (vec![], vec![]));
    assert_eq!(at_end.step(&[call(1, 3e8)], &[]), []);
    // Not long enough to be bet on; then three looks, the last of which comes with its end.
    assert_eq!(in_flight.step(&[], &[call(1, 1.2e6)]), []);
    assert!(!in_flight.is_judged(&call(1, 1.2e6)));
    for so_far in [1e8, 2e8, 2.5e8] {
        assert_eq!(in_flight.step(&[], &[call(1, so_far)]), []);
        assert!(in_flight.is_judged(&call(1, so_far)));
    }
    assert_eq!(in_flight.step(&[call(1, 3e8)], &[call(1, 2.9e8)]), []);
    let of = |watch: &Watch| watch.kernels.get(&0).map(|kernel| (kernel.bets.clone(), kernel.alone.clone()));
    assert_eq!(of(&in_flight), of(&at_end));
    // That of another thread at the same time is another one.
    in_flight.step(&[], &[call(2, 1e8)]);
    assert_ne!(of(&in_flight), of(&at_end));
}

#[test]
fn where_calls_are_missed_or_cut_off_a_call_in_flight_is_bet_on_at_its_end() {
    let mut random = rng(4);
    let calibration = Calibration::new((0..3_000).map(|_| (1e6, 0.2 * normal(&mut random))).collect());
    let call = |begin_s: u64, own_ns: f64, waits: bool| Call {
        seen: Seen { kernel: 0, time_ns: begin_s * 1_000_000_000, predicted_ns: 1e6, own_ns },
        tid: 1,
        waits,
    };
    let bets = |watch: &Watch| watch.kernels.get(&0).map(|kernel| kernel.bets.clone());
    for (missed, waits) in [(false, false), (true, false), (false, true)] {
        let mut watch = Watch::new(Settings::default());
        watch.add_calibrated(0, calibration.clone());
        watch.step(&[call(1, 1e6, false)], &[]);
        if missed {
            watch.missed(0, 3);
            watch.step(&[], &[]);
        }
        let before = bets(&watch);
        // The step after the one in which some were missed.
        watch.step(&[], &[call(2, 2e8, waits)]);
        assert!(watch.is_judged(&call(2, 2e8, waits)));
        let is_bet = bets(&watch) != before;
        assert_eq!(is_bet, !missed && !waits);
        let in_flight = bets(&watch);
        watch.step(&[], &[call(2, 3e8, waits)]);
        assert_eq!(bets(&watch), in_flight);
        watch.step(&[call(2, 4e8, false)], &[]);
        assert_eq!(bets(&watch) != in_flight, !is_bet);
    }
}
