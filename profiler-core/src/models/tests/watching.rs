//! Alarms, false alarms, and the machine as a whole.

use super::*;
use rand::RngExt as _;
use rand::rngs::StdRng;

const KERNELS: u32 = 6;
const PER_SECOND: usize = 20;

fn models() -> Vec<Model> {
    let slope = |k: u32| f64::from(1 + k) * 10.0;
    (0..KERNELS).map(|k| fit(&calls(u64::from(k), 0.2, |n| slope(k) * n), 1).unwrap()).collect()
}

/// Seconds of calls; `slower`: factor of a kernel's time at a second, and part of its calls that it holds for.
fn watched(
    models: &[Model],
    seed: u64,
    seconds: u64,
    slower: impl Fn(u32, u64) -> (f64, f64),
) -> Vec<(u64, Event)> {
    let watch = Watch::new(WatchSettings::default());
    in_steps(watch, 1, models, seed, seconds, slower)
}

/// The same, with so many steps in a second; with the number of the step.
fn in_steps(
    watch: Watch,
    steps: usize,
    models: &[Model],
    seed: u64,
    seconds: u64,
    slower: impl Fn(u32, u64) -> (f64, f64),
) -> Vec<(u64, Event)> {
    let mut watch = watch.in_steps(steps);
    models.iter().enumerate().for_each(|(k, model)| watch.add(k as u32, model));
    let mut random = rng(seed);
    let mut events = Vec::new();
    for second in 0..seconds {
        let mut calls = Vec::new();
        for i in 0..PER_SECOND {
            for (kernel, model) in (0..KERNELS).zip(models) {
                calls.push(one(kernel, model, second, i, &mut random, slower(kernel, second)));
            }
        }
        for (step, calls) in (0..).zip(calls.chunks(calls.len().div_ceil(steps))) {
            events.extend(watch.window(calls).into_iter().map(|event| (second * steps as u64 + step, event)));
        }
    }
    events
}

fn one(
    kernel: u32,
    model: &Model,
    second: u64,
    i: usize,
    random: &mut StdRng,
    (factor, part): (f64, f64),
) -> Seen {
    let n = (10.0 * 1_000_f64.powf(random.random::<f64>())).round();
    let predicted_ns = model.predict(&[Value::Unsigned(n as u64)], 0.95).unwrap().ns;
    let factor = if random.random::<f64>() < part { factor } else { 1.0 };
    let own_ns = f64::from(1 + kernel) * 10.0 * n * (0.2 * normal(random)).exp() * factor;
    let time_ns = second * 1_000_000_000 + i as u64 * 50_000_000;
    Seen { kernel, time_ns, predicted_ns, own_ns }
}

#[test]
fn false_alarms_keep_to_the_rate() {
    let models = models();
    let hours = 3;
    let events = watched(&models, 1, hours * 3_600, |_, _| (1.0, 1.0));
    // At most one an hour is expected; twice that and 3 would be chance of 1 in 100.
    assert!(events.len() <= 8, "{}", events.len());
}

#[test]
fn a_slow_function_is_told_within_seconds_and_no_other() {
    let models = models();
    // From second 60 on kernel 2 takes twice as long in one call of five.
    let events = watched(&models, 2, 120, |k, s| if k == 2 && s >= 60 { (2.0, 0.2) } else { (1.0, 1.0) });
    let Some((second, Event::Slower(slower))) = events.first() else { panic!("{events:?}") };
    assert!(slower.kernel == 2 && (60..75).contains(second), "{second} {slower:?}");
    assert!(slower.since_ns >= 55_000_000_000 && slower.calls > 3, "{slower:?}");
    assert!(slower.longest.own_ns > slower.expected_ns.high, "{slower:?}");
    assert!(events.iter().all(|(_, e)| matches!(e, Event::Slower(s) if s.kernel == 2)), "{events:?}");
}

#[test]
fn quarters_of_a_window_tell_sooner_and_raise_no_more() {
    let models = models();
    let watch = || Watch::new(WatchSettings::default());
    let twice = |k: u32, s: u64| if k == 2 && s >= 30 { (3.0, 1.0) } else { (1.0, 1.0) };
    let events = in_steps(watch(), 4, &models, 6, 60, twice);
    let Some((quarter, Event::Slower(slower))) = events.first() else { panic!("{events:?}") };
    // Five calls in a quarter.
    assert!(slower.kernel == 2 && (120..122).contains(quarter), "{quarter} {slower:?}");
    let quiet = in_steps(watch(), 4, &models, 7, 3 * 3_600, |_, _| (1.0, 1.0));
    assert!(quiet.len() <= 8, "{}", quiet.len());
    // The machine's changes are told by whole windows, and are no function's.
    let slow_machine = |_, s| if (60..140).contains(&s) { (1.3, 1.0) } else { (1.0, 1.0) };
    let told = in_steps(watch(), 4, &models, 8, 200, slow_machine);
    let at: Vec<u64> = told.iter().map(|(quarter, _)| quarter / 4).collect();
    assert!(matches!(told[..], [(_, Event::Machine { .. }), (_, Event::MachineBack)]), "{told:?}");
    assert!((60..64).contains(&at[0]) && (140..146).contains(&at[1]), "{at:?}");
}

#[test]
fn a_call_of_twenty_times_its_time_needs_company() {
    let models = models();
    // Once: by chance one in 800 calls could be as long, as far as 800 calls tell.
    let once = watched(&models, 3, 60, |k, s| if k == 1 && s == 30 { (20.0, 0.05) } else { (1.0, 1.0) });
    assert!(once.len() <= 1, "{once:?}");
    let all = watched(&models, 3, 60, |k, s| if k == 1 && s >= 30 { (20.0, 1.0) } else { (1.0, 1.0) });
    assert_eq!(all.first().map(|(second, _)| *second), Some(30));
}

#[test]
fn a_slow_machine_is_told_once_and_no_function_is() {
    let models = models();
    let events =
        watched(&models, 4, 200, |_, s| if (60..140).contains(&s) { (1.3, 1.0) } else { (1.0, 1.0) });
    let told: Vec<&(u64, Event)> = events.iter().collect();
    assert_eq!(told.len(), 2, "{told:?}");
    let (second, Event::Machine { factor, moved, of }) = told[0] else { panic!("{told:?}") };
    assert!((60..63).contains(second) && (factor - 1.3).abs() < 0.1 && *moved >= 5 && *of == 6, "{told:?}");
    assert!(matches!(told[1], (140..145, Event::MachineBack)), "{told:?}");
}

#[test]
fn a_function_that_is_slower_than_the_machine_is_still_told() {
    let models = models();
    let slower = |k: u32, s: u64| match (k, s >= 60) {
        (2, true) => (3.0, 1.0),
        (_, true) => (1.3, 1.0),
        _ => (1.0, 1.0),
    };
    let events = watched(&models, 5, 120, slower);
    let functions: Vec<u32> = events
        .iter()
        .filter_map(|(_, e)| if let Event::Slower(s) = e { Some(s.kernel) } else { None })
        .collect();
    assert!(functions.contains(&2) && functions.iter().all(|k| *k == 2), "{events:?}");
}

/// Slow phases of ten calls: each call is like the one before it, when the model is made and when it is used.
#[test]
fn slow_phases_that_were_there_before_are_no_alarms() {
    let models: Vec<Model> = (0..KERNELS)
        .map(|k| fit(&shuffled(&calls_alike(u64::from(k), 0.2, 0.9, |n| 10.0 * n)), 1).unwrap())
        .collect();
    let mut watch = Watch::new(WatchSettings::default());
    (0..KERNELS).zip(&models).for_each(|(k, model)| watch.add(k, model));
    let mut random = rng(12);
    let mut last = [0.0; KERNELS as usize];
    let mut alarms = Vec::new();
    for second in 0..3_600 {
        let mut calls = Vec::new();
        for i in 0..PER_SECOND {
            for (kernel, last) in (0..KERNELS).zip(&mut last) {
                *last = 0.9 * *last + 0.19_f64.sqrt() * normal(&mut random);
                let time_ns = second * 1_000_000_000 + i as u64 * 50_000_000;
                let own_ns = 10_000.0 * (0.2 * *last).exp();
                calls.push(Seen { kernel, time_ns, predicted_ns: 10_000.0, own_ns });
            }
        }
        alarms.extend(watch.window(&calls));
    }
    assert!(alarms.len() <= 5, "{}: {alarms:?}", alarms.len());
}

/// Inputs in another order, the noise of each call in the order in which it came: a phase has many inputs.
fn shuffled(calls: &Calls) -> Calls {
    let rows: Vec<(u64, f64)> = calls
        .iter()
        .filter_map(|(values, taken)| match values {
            [Value::Unsigned(n)] => Some((*n, taken.duration_ns / *n as f64)),
            _ => None,
        })
        .collect();
    let mut mixed = Calls::new(calls.inputs().to_vec());
    for (i, (_, noise)) in rows.iter().enumerate() {
        let (n, _) = rows[i * 307 % rows.len()];
        mixed.push(&[Value::Unsigned(n)], Taken::ns(noise * n as f64));
    }
    mixed
}
