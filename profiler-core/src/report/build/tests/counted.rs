use super::*;
use crate::class::{ClassId, ExitMode, RecordKind};
use crate::cost::Price;
use crate::recording::{ClassRow, plain_window};
use crate::report::build::tests as run;
use crate::report::{Report, Row};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const S: u64 = 1_000_000_000;
const START: u64 = 50 * S;
const LENGTH: u64 = 60 * S;

/// What a run is like.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Own time between two calls of the function, ns.
    gap_ns: f64,
    /// What a hit takes, ns; by calibration it takes 800.
    trap_ns: f64,
    /// Calls of the traced function per second of the target's own time.
    hz: f64,
    /// A timer calls it, whatever hits take.
    by_clock: bool,
    /// Bursts of the function, and hits of each.
    bursts: u64,
    hits: u64,
}

const USUAL: Run =
    Run { gap_ns: 200.0, trap_ns: 800.0, hz: 1_000.0, by_clock: false, bursts: 100, hits: 10_000 };

/// So many calls by chance.
fn poisson(random: &mut StdRng, mean: f64) -> u64 {
    // OK because it is a whole number.
    crate::report::build::windows::reference::tests::poisson(random, mean) as u64
}

/// A minute of one busy thread: class 1 in bursts, class 2 traced.
fn recorded(of: Run, seed: u64) -> Recording {
    let mut random = StdRng::seed_from_u64(seed);
    let mut r = run::empty();
    r.meta.end_ns = Some(START + LENGTH);
    r.meta.cost.hit.values_mut().for_each(|p| *p = Price { ns: 800.0, min_ns: 780.0, max_ns: 820.0, n: 7 });
    let counted = |id: u32| {
        let class = run::class(id, ["", "f", "g"][id as usize]);
        ClassRow { exit_mode: ExitMode::None, kind: RecordKind::Count, ..class }
    };
    r.classes.extend([counted(1), counted(2)]);
    r.samples = (0..900).map(|i| run::sample(i, 1)).collect();
    for i in 0..of.bursts {
        // More and less often by a tenth from burst to burst.
        let gap_ns = of.gap_ns * (0.9 + 0.2 * random.random::<f64>());
        let own_s = of.hits as f64 * gap_ns * 1e-9;
        let wall_s = of.hits as f64 * (gap_ns + of.trap_ns) * 1e-9;
        let start_ns = START + i * LENGTH / of.bursts;
        let end_ns = start_ns + (wall_s * 1e9) as u64;
        let w = plain_window(ClassId(1), WindowKind::Burst, (start_ns, end_ns), of.hits);
        r.windows.push(WindowRow { tripped: true, tau_ns: 800.0, ..w });
        let mean = of.hz * if of.by_clock { wall_s } else { own_s };
        let beside_calls = poisson(&mut random, mean);
        r.beside.push(row(start_ns, end_ns, of.hits, beside_calls));
    }
    let taken_s = if of.by_clock { 0.0 } else { (of.bursts * of.hits) as f64 * of.trap_ns * 1e-9 };
    let calls = of.hz * (LENGTH as f64 * 1e-9 - taken_s);
    let traced = plain_window(ClassId(2), WindowKind::Trace, (START, START + LENGTH), calls as u64);
    r.windows.push(WindowRow { tau_ns: 800.0, ..traced });
    r
}

fn row(start_ns: u64, end_ns: u64, calls: u64, beside_calls: u64) -> BesideRow {
    BesideRow { class_id: 1, start_ns, begin_ns: start_ns, end_ns, calls, beside_id: 2, beside_calls }
}

fn f(r: &Recording) -> Row {
    let report = Report::from_recording(r);
    report.rows.iter().find(|row| row.name == "f").expect("it was watched").clone()
}

/// Half of the interval over the value.
fn half(row: &Row) -> f64 {
    row.rate_hz.map_or(f64::INFINITY, |rate| rate.half_width() / rate.value)
}

/// Hits that take more than calibration says, or less, on functions that are called every 200 ns, and every 4 us.
#[test]
fn rates_are_known_whatever_hits_cost() {
    for (gap_ns, hits, traps_ns) in
        [(200.0, 10_000, [600.0, 800.0, 1_200.0]), (4_000.0, 1_000, [650.0, 800.0, 1_000.0])]
    {
        for trap_ns in traps_ns {
            let of = Run { gap_ns, trap_ns, hits, ..USUAL };
            let mut held = 0;
            for seed in 0..100 {
                let row = f(&recorded(of, seed));
                let rate = row.rate_hz.unwrap();
                held += u32::from((rate.low..=rate.high).contains(&(1e9 / gap_ns)));
                if gap_ns < 1_000.0 {
                    // 200 calls of the traced one, and the exact rate of it: 14 %, and 10 % for what bursts differ by.
                    assert!(half(&row) < 0.25, "{trap_ns}: {rate:?}");
                }
            }
            assert!(held >= 93, "{of:?}: {held} of 100");
        }
    }
}

#[test]
fn without_those_that_are_traced_the_price_hides_the_rate() {
    let mut r = recorded(USUAL, 1);
    r.beside.clear();
    assert!(half(&f(&r)).is_infinite() || half(&f(&r)) > 0.5, "{:?}", f(&r).rate_hz);
}

/// As often per second of the wall clock as ever: were it taken for slowed, the rate would be a fifth of the truth.
#[test]
fn a_timer_tells_nothing() {
    let mut r = recorded(Run { by_clock: true, ..USUAL }, 3);
    let with = f(&r);
    r.beside.clear();
    assert_eq!(with, f(&r));
}

const EXACT: Relative = Relative { value: 100.0, below: 0.0, above: 0.0 };

fn slowing_of(calls: f64, own_s: (f64, f64), squares: f64) -> Slowing {
    Slowing { calls, wall_s: 1.0, own_s, squares }
}

#[test]
fn what_is_slowed_was_seen_to_be() {
    let is =
        |calls: f64, own_s: (f64, f64), squares: f64| is_slowed(&slowing_of(calls, own_s, squares), &EXACT);
    // 100 calls a second by the wall clock; prices leave 0.3 to 0.5 s.
    assert!(is(40.0, (0.3, 0.5), 1.0));
    // Fewer than any price leaves: hits leave more behind than prices hold.
    assert!(is(20.0, (0.3, 0.5), 1.0));
    assert!(!is(100.0, (0.3, 0.5), 1.0), "a timer");
    assert!(!is(70.0, (0.3, 0.5), 1.0), "something between the two");
    assert!(!is(90.0, (0.85, 0.95), 1.0), "hardly anything was slowed");
    assert!(!is(40.0, (0.3, 0.5), 20.0), "it comes in clusters");
    assert!(!is(5.0, (0.0, 0.0), 1.0) && !is(0.0, (0.0, 0.5), 20.0));
    // So many calls, and none of them where 27 are the least: it comes when the function does not.
    assert!(!is(0.0, (0.9, 0.95), 1.0));
    let few = Relative { value: 5.0, ..EXACT };
    assert!(!is_slowed(&slowing_of(2.0, (0.3, 0.5), 1.0), &few), "too few");
}

/// A timer of a run of which its rate is known to 6 % only, in a hundred bursts that hardly slow anything.
#[test]
fn an_error_of_its_rate_is_no_slowing() {
    let of = Slowing { calls: 9_430.0, wall_s: 100.0, own_s: (85.0, 95.0), squares: 1.0 };
    assert!(is_slowed(&of, &EXACT));
    assert!(!is_slowed(&of, &Relative { below: 0.06, ..EXACT }));
}

#[test]
fn it_was_called_in_the_bursts_of_the_function_as_prices_say() {
    let is = |calls: f64| is_like(&slowing_of(calls, (0.3, 0.5), 1.0), &EXACT);
    assert!(is(40.0) && is(15.0) && is(60.0));
    assert!(!is(75.0) && !is(1.0));
    assert!(is_like(&slowing_of(0.0, (0.01, 0.02), 1.0), &EXACT), "of few nothing is said");
}

/// For that part of the time the function is called every 20 us, where the clock ends its bursts, else every 200 ns.
fn in_phases(seed: u64, slow: usize) -> Recording {
    let mut r = recorded(USUAL, seed);
    let mut random = StdRng::seed_from_u64(seed);
    for i in (0..r.beside.len()).filter(|i| i % 100 * slow % 100 < slow) {
        let (start_ns, calls) = (r.beside[i].start_ns, 960);
        let end_ns = start_ns + 20_000_000;
        let w = plain_window(ClassId(1), WindowKind::Burst, (start_ns, end_ns), calls);
        r.windows[i] = WindowRow { tau_ns: 800.0, ..w };
        r.beside[i] = row(start_ns, end_ns, calls, poisson(&mut random, USUAL.hz * 19.2e-3));
    }
    r
}

#[test]
fn of_a_function_with_phases_nothing_is_told_or_what_is_true() {
    for slow in [1, 3, 5, 9, 20, 50] {
        let part = slow as f64 / 100.0;
        let truth = (1.0 - part) * 5e6 + part * 5e4;
        let mut wrong = 0;
        for seed in 0..20 {
            let mut r = in_phases(seed, slow);
            let by_clock = r.windows.iter().filter(|w| w.class_id == 1 && !w.tripped).count();
            assert_eq!(by_clock, slow);
            let with = f(&r);
            r.beside.clear();
            let rate = with.rate_hz.unwrap();
            wrong += u32::from(with != f(&r) && !(rate.low..=rate.high).contains(&truth));
        }
        assert!(wrong <= 1, "{slow} %: {wrong} of 20");
    }
}

/// At a few moments it is called ten times as often as else, and those that are traced are called so seldom that nobody sees whether they are fast or hits cost less there.
#[test]
fn a_few_fast_moments_are_in_the_interval() {
    for (part, hz) in [(0.05, 150.0), (0.05, 500.0), (0.05, 1_000.0), (0.1, 150.0), (0.1, 500.0)] {
        let truth = (1.0 - part) * 5e6 + part * 5e7;
        let (mut told, mut held) = (0, 0);
        let mut above = Vec::new();
        for seed in 0..100 {
            let of = Run { hz, ..USUAL };
            let mut r = recorded(of, seed);
            let mut random = StdRng::seed_from_u64(seed);
            for i in 0..r.beside.len() {
                if random.random::<f64>() >= part {
                    continue;
                }
                let (start_ns, own_s) = (r.beside[i].start_ns, of.hits as f64 * 20e-9);
                let end_ns = start_ns + of.hits * 820;
                let w = plain_window(ClassId(1), WindowKind::Burst, (start_ns, end_ns), of.hits);
                r.windows[i] = WindowRow { tripped: true, tau_ns: 800.0, ..w };
                r.beside[i] = row(start_ns, end_ns, of.hits, poisson(&mut random, hz * own_s));
            }
            let rate = f(&r).rate_hz.unwrap();
            if rate.high.is_finite() {
                told += 1;
                held += u32::from((rate.low..=rate.high).contains(&truth));
                above.push(rate.high / truth);
            }
        }
        above.sort_by(f64::total_cmp);
        assert!(told >= 30 && 10 * (told - held) <= told, "{part} {hz}: {held} of {told}");
        assert!(above[above.len() / 2] < 6.0, "{part} {hz}: {}", above[above.len() / 2]);
    }
}

/// A second one that is traced, four times as often, for half of the run: the bursts with both count.
#[test]
fn of_several_that_are_traced_the_set_that_is_called_most_counts() {
    let mut r = recorded(USUAL, 5);
    let mut random = StdRng::seed_from_u64(9);
    r.classes.push(ClassRow { class_id: 3, name: "h".into(), ..r.classes[1].clone() });
    let half = r.beside.len() / 2;
    let from = r.beside[half].start_ns;
    for i in half..r.beside.len() {
        let of = r.beside[i];
        let own_s = length_s(&of) - of.calls as f64 * 800e-9;
        let beside_calls = poisson(&mut random, 4.0 * USUAL.hz * own_s);
        r.beside.push(BesideRow { beside_id: 3, beside_calls, ..of });
    }
    let end = START + LENGTH;
    let calls = (4.0 * USUAL.hz * ((end - from) as f64 * 1e-9 - 0.4)) as u64;
    let traced = plain_window(ClassId(3), WindowKind::Trace, (from, end), calls);
    r.windows.push(WindowRow { tau_ns: 800.0, ..traced });
    let rate = f(&r).rate_hz.unwrap();
    // Some 100 calls of the one and 400 of the other.
    assert!((400..600).contains(&rate.n) && (rate.low..=rate.high).contains(&5e6), "{rate:?}");
    assert!(rate.half_width() / rate.value < 0.2, "{rate:?}");
}

/// One that calls the other: each of its calls is told twice, and is no more than one.
#[test]
fn functions_that_call_each_other_count_once() {
    let mut r = recorded(USUAL, 5);
    let once = f(&r);
    r.classes.push(ClassRow { class_id: 3, name: "h".into(), ..r.classes[1].clone() });
    let traced = r.windows.iter().find(|w| w.class_id == 2).unwrap().clone();
    r.windows.push(WindowRow { class_id: 3, ..traced });
    let again: Vec<BesideRow> = r.beside.iter().map(|of| BesideRow { beside_id: 3, ..*of }).collect();
    // A call at the end of every tenth burst had reached one of them only.
    r.beside.extend(again.iter().enumerate().map(|(i, of)| BesideRow {
        beside_calls: of.beside_calls.saturating_sub(u64::from(i % 10 == 0)),
        ..*of
    }));
    let (once, twice) = (once.rate_hz.unwrap(), f(&r).rate_hz.unwrap());
    // What its hits take is another's own time.
    assert!(
        once.n == twice.n && (twice.half_width() / once.half_width() - 1.0).abs() < 0.01,
        "{once:?} {twice:?}"
    );
}

/// One that is called by the other, and by others, too: each has its own rate.
#[test]
fn of_functions_that_call_each_other_each_has_its_own_rate() {
    let mut random = StdRng::seed_from_u64(4);
    let rate = |seed| {
        let mut r = recorded(Run { hz: 225.0, ..USUAL }, seed);
        r.classes.push(ClassRow { class_id: 3, name: "h".into(), ..r.classes[1].clone() });
        let traced = r.windows.iter().find(|w| w.class_id == 2).unwrap().clone();
        let calls = traced.attempted + traced.attempted / 4;
        r.windows.push(WindowRow { class_id: 3, kept: calls, attempted: calls, ..traced });
        // As the agent notes them: those that are called most first.
        let own: Vec<BesideRow> = r.beside.drain(..).collect();
        for (i, of) in own.into_iter().enumerate() {
            let more = poisson(&mut random, 0.25 * 225.0 * 2e-3);
            r.beside.push(BesideRow { beside_id: 3, beside_calls: of.beside_calls + more, ..of });
            // Of some bursts there is only the one, of some the other.
            if i % 3 == 0 {
                continue;
            }
            r.beside.push(of);
            if i % 3 == 1 {
                r.beside.swap_remove(r.beside.len() - 2);
            }
        }
        f(&r).rate_hz.unwrap().value
    };
    let mut rates: Vec<f64> = (0..100).map(rate).collect();
    rates.sort_by(f64::total_cmp);
    // Chance makes 15 % in one run.
    assert!((4.7e6..5.3e6).contains(&rates[50]), "{rates:?}");
}

/// Of a burst only one of the two has a row: it stands for both.
#[test]
fn bursts_with_one_of_two_that_call_each_other_count() {
    let mut r = recorded(USUAL, 5);
    let n = f(&r).rate_hz.unwrap().n;
    r.classes.push(ClassRow { class_id: 3, name: "h".into(), ..r.classes[1].clone() });
    let traced = r.windows.iter().find(|w| w.class_id == 2).unwrap().clone();
    r.windows.push(WindowRow { class_id: 3, ..traced });
    let again: Vec<BesideRow> = r.beside.iter().map(|of| BesideRow { beside_id: 3, ..*of }).collect();
    r.beside = r.beside.iter().enumerate().filter(|(i, _)| i % 3 != 0).map(|(_, of)| *of).collect();
    r.beside.extend(again.iter().enumerate().filter(|(i, _)| i % 3 != 1).map(|(_, of)| *of));
    assert_eq!(f(&r).rate_hz.unwrap().n, n);
}

/// As the report merges two estimates of one rate.
#[test]
fn two_that_contradict_each_other_are_both_held() {
    use crate::report::build::windows::reference::sharper;
    let of = |low: f64, value: f64, high: f64| Beside {
        rate: crate::estimate::Estimate { low, value, high, ..f(&recorded(USUAL, 1)).rate_hz.unwrap() },
        price_half: 0.01,
    };
    let (narrow, wide, other) = (of(9.0, 10.0, 11.0), of(5.0, 11.0, 15.0), of(20.0, 25.0, 30.0));
    assert_eq!((sharper(narrow, wide), sharper(wide, narrow)), (narrow, narrow));
    let both = sharper(other, narrow).rate;
    assert_eq!((both.low, both.value, both.high), (9.0, 10.0, 30.0));
}

/// Windows that were not recorded, or are no bursts, and rows of no length.
#[test]
fn rows_without_a_burst_are_left_out() {
    let mut r = recorded(USUAL, 4);
    let good = r.beside.len();
    let first = r.beside[0];
    r.beside.push(BesideRow { start_ns: first.start_ns + 1, ..first });
    r.beside.push(BesideRow { end_ns: first.begin_ns, ..first });
    r.beside.push(BesideRow { calls: u64::MAX, ..first });
    r.beside.push(BesideRow { class_id: 2, start_ns: START, ..first });
    r.beside.push(BesideRow { class_id: 9, ..first });
    let mut windows: BTreeMap<u32, Vec<&WindowRow>> = BTreeMap::new();
    r.windows.iter().for_each(|w| windows.entry(w.class_id).or_default().push(w));
    assert_eq!(beheld(&r.beside, &windows).len(), good);
}
