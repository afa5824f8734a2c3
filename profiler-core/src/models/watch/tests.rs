use super::*;
use crate::stats::sim::{normal, rng};
use rand::RngExt as _;
use rand::rngs::StdRng;

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
        missed_ns: 0,
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
fn a_call_in_flight_is_bet_on_at_its_end_in_bursts_and_never_where_calls_were_missed() {
    let mut random = rng(4);
    let calibration = Calibration::new((0..3_000).map(|_| (1e6, 0.2 * normal(&mut random))).collect());
    let call = |begin_s: u64, own_ns: f64, waits: bool| Call {
        seen: Seen { kernel: 0, time_ns: begin_s * 1_000_000_000, predicted_ns: 1e6, own_ns },
        tid: 1,
        waits,
        missed_ns: 0,
    };
    let bets = |watch: &Watch| watch.kernels.get(&0).map(|kernel| kernel.bets.clone());
    for (missed, waits) in [(false, false), (true, false), (false, true)] {
        let mut watch = Watch::new(Settings::default());
        watch.add_calibrated(0, calibration.clone());
        watch.step(&[call(1, 1e6, false)], &[]);
        if missed {
            watch.missed(0, 3, 2_500_000_000);
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
        assert_eq!(bets(&watch) != in_flight, waits);
        // Shown behind those that were missed in its own step.
        let before = bets(&watch);
        watch.step(&[Call { missed_ns: 3_000_000_001, ..call(3, 1e6, false) }], &[]);
        assert_eq!(bets(&watch), before);
        // What began behind those that were missed is bet on as ever.
        watch.step(&[call(3, 1e6, false)], &[]);
        assert_ne!(bets(&watch), before);
    }
}

/// A thousand calls come within 0.1 s, once a second; one in a hundred takes 0.3 to 0.9 s, as when they were recorded. Of a step 256 are looked at, so that of the short
/// calls a quarter is, and of the long ones, which end in the quiet after that, each.
#[test]
fn long_calls_that_are_looked_at_more_often_than_short_ones_raise_no_alarm() {
    const STEP_NS: f64 = 250e6;
    let mut random = rng(8);
    let own_ns = |random: &mut StdRng| {
        if random.random_bool(0.01) {
            random.random_range(0.3e9..0.9e9)
        } else {
            1e6 * (0.2 * normal(random)).exp()
        }
    };
    let recorded = (0..10_000).map(|_| (1e6, (own_ns(&mut random) / 1e6_f64).ln())).collect();
    let mut watch = Watch::new(Settings::default()).in_steps(4);
    watch.add_calibrated(0, Calibration::new(recorded));
    let (mut open, mut alarms): (Vec<Seen>, usize) = (Vec::new(), 0);
    for step in 0..4 * 360 {
        let from_ns = f64::from(step) * STEP_NS;
        if step % 4 == 0 {
            open.extend((0..1_000).map(|_| {
                let time_ns = (from_ns + random.random_range(0.0..0.1e9)) as u64;
                Seen { kernel: 0, time_ns, predicted_ns: 1e6, own_ns: own_ns(&mut random) }
            }));
        }
        let end_ns = |seen: &Seen| seen.time_ns as f64 + seen.own_ns;
        let (mut ended, rest): (Vec<Seen>, Vec<Seen>) =
            open.into_iter().partition(|seen| end_ns(seen) < from_ns + STEP_NS);
        open = rest;
        ended.sort_by(|a, b| end_ns(a).total_cmp(&end_ns(b)));
        let not_looked_at = ended.split_off(ended.len().min(256));
        not_looked_at.iter().for_each(|seen| watch.missed(0, 1, end_ns(seen) as u64));
        ended.sort_by_key(|seen| seen.time_ns);
        alarms += watch.window(&ended).iter().filter(|event| matches!(event, Event::Slower(_))).count();
    }
    // In a tenth of an hour, of one function: one alarm an hour is allowed.
    assert_eq!(alarms, 0);
}

/// 5,000 calls a second, of which one in 26 is drawn. Of the others one is shown because it took long: what it spends is what each of them would have.
#[test]
fn calls_spend_of_the_alarms_of_single_calls_whether_they_are_shown_or_not() {
    const CALLS: u64 = 500_000;
    // What drawn calls spend, and the long one, hours.
    let spent = |long: u64| {
        // As a step of the test does.
        let mut watch = Watch::new(Settings::default());
        watch.add_calibrated(0, Calibration::default());
        let seen = |call: u64| Seen { kernel: 0, time_ns: call * 200_000, predicted_ns: 1.0, own_ns: 1.0 };
        let (mut of_drawn, mut of_long) = (0.0, 0.0);
        for first in (0..CALLS).step_by(1_250) {
            let is_shown = |call: &u64| call.is_multiple_of(26) || *call == long;
            let step = first..first + 1_250;
            step.clone().filter(|c| !is_shown(c)).for_each(|c| watch.passed_over(0, seen(c).time_ns));
            let kernel = watch.kernels.get_mut(&0).unwrap();
            kernel.sort_passed();
            for call in step.filter(is_shown) {
                *if call == long { &mut of_long } else { &mut of_drawn } += kernel.spend(&seen(call));
            }
            kernel.spend_passed();
        }
        (of_drawn, of_long)
    };
    let others = [30_001, 101_203, 255_255, 400_001];
    let of_long = others.map(|long| spent(long).1).iter().sum::<f64>() / others.len() as f64;
    let (of_drawn, passed_h) = (spent(u64::MAX).0, 100.0 / 3_600.0);
    let all_h = of_drawn + of_long * CALLS as f64 * 25.0 / 26.0;
    assert!(
        (0.8 * passed_h..1.1 * passed_h).contains(&all_h),
        "{all_h} of {passed_h}, one of them {of_long}"
    );
    // Those that are looked at are not behind the others.
    assert!(of_drawn * 26.0 > 0.8 * passed_h, "{of_drawn} of {passed_h}");
}
