//! Calls that take less than what the price of timing them is known to: they are in no model, and held against it.

use super::*;
use rand::rngs::StdRng;

/// What the price is known to, ns.
const KNOWN_TO_NS: f64 = 500.0;
/// Up to here times are not told apart.
const FLOOR_NS: f64 = 2.0 * KNOWN_TO_NS;
/// Standard deviation of the price from call to call, ns.
const JITTER_NS: f64 = 150.0;
const PRICE_NS: f64 = 9_000.0;

/// A call of `ns`; the price that is taken off is off by this.
fn taken(random: &mut StdRng, ns: f64, noise: f64, off_ns: f64) -> Taken {
    let own_ns = ns * (noise * normal(random)).exp();
    let price_ns = PRICE_NS + JITTER_NS * normal(random);
    Taken { duration_ns: own_ns + price_ns, watching_ns: PRICE_NS + off_ns, ..Taken::default() }
}

/// 20 to 100,000, of which those up to some 1,000 take less than can be told.
fn sizes() -> impl Iterator<Item = u64> {
    (0..40).map(|i| (20.0 * 5_000_f64.powf(f64::from(i) / 39.0)).round() as u64)
}

/// Of a function that takes n ns, `short` times as many short calls as others of each size.
fn calls(seed: u64, noise: f64, short: usize) -> Calls {
    let mut random = rng(seed);
    let mut calls = Calls::new(vec![Input::number("n")]);
    for n in sizes().flat_map(|n| vec![n; if n < 900 { 30 * short } else { 30 }]) {
        calls.push(&[Value::Unsigned(n)], taken(&mut random, n as f64, noise, 0.0));
        calls.watching_known_to(KNOWN_TO_NS);
    }
    calls
}

fn model(seed: u64, noise: f64, short: usize) -> Model {
    let calls = calls(seed, noise, short);
    let model = fit(&calls, 1).unwrap();
    assert!(model.basis.left_out.short >= 15 * 30 && model.basis.left_out.few == 0, "{:?}", model.basis);
    model
}

/// A second of calls of one model: those of these sizes, `times` each.
struct Second<'m> {
    kernel: u32,
    model: &'m Model,
    noise: f64,
    off_ns: f64,
}

impl Second<'_> {
    fn calls(&self, random: &mut StdRng, second: u64, ns: &[(u64, f64)]) -> Vec<Seen> {
        let one = |(i, (n, ns)): (usize, &(u64, f64))| {
            let values = [Value::Unsigned(*n)];
            assert!(!self.model.is_outside(&values), "{n}");
            let predicted = self.model.predict(&values, 0.95).unwrap();
            let own_ns = predicted.own_ns(taken(random, *ns, self.noise, self.off_ns))?;
            let kernel = 2 * self.kernel + u32::from(predicted.is_short);
            let time_ns = second * 1_000_000_000 + i as u64 * 4_000_000;
            Some(Seen { kernel, time_ns, predicted_ns: predicted.ns, own_ns })
        };
        ns.iter().enumerate().filter_map(one).collect()
    }
}

fn watch<'m>(models: impl IntoIterator<Item = &'m Model>) -> Watch {
    let mut watch = Watch::new(WatchSettings::default());
    for (k, model) in (0..).zip(models) {
        watch.add(2 * k, model);
        watch.add_short(2 * k + 1, model);
    }
    watch
}

/// Events of seconds in which each size is called five times; `more`: ns that a call of a size takes longer in a second.
fn watched(
    model: &Model,
    seed: u64,
    seconds: u64,
    off_ns: f64,
    more: impl Fn(u64, u64) -> f64,
) -> Vec<(u64, Slower)> {
    let (mut random, mut watch) = (rng(seed), watch([model]));
    let of = Second { kernel: 0, model, noise: 0.1, off_ns };
    let mut events = Vec::new();
    for second in 0..seconds {
        let ns: Vec<(u64, f64)> =
            sizes().flat_map(|n| [n; 5]).map(|n| (n, n as f64 + more(n, second))).collect();
        for event in watch.window(&of.calls(&mut random, second, &ns)) {
            let Event::Slower(slower) = event else { panic!("{event:?}") };
            events.push((second, slower));
        }
    }
    events
}

#[test]
fn short_calls_are_predicted_at_what_can_be_told() {
    let model = model(1, 0.1, 1);
    assert!(model.range[0].0 > 900.0, "{:?}", model.range);
    let short = model.predict(&[Value::Unsigned(40)], 0.95).unwrap();
    assert!(short.is_short && !short.is_extrapolated, "{short:?}");
    assert!((short.ns - FLOOR_NS).abs() < 1e-9 && short.interval_ns.low == 0.0, "{short:?}");
    assert!((2.0 * FLOOR_NS - 1e-6..3.0 * FLOOR_NS).contains(&short.interval_ns.high), "{short:?}");
    let long = model.predict(&[Value::Unsigned(50_000)], 0.95).unwrap();
    assert!((long.ns / 50_000.0 - 1.0).abs() < 0.1 && long.interval_ns.high < 1.4 * long.ns, "{long:?}");
    assert!(!long.is_short && long.interval_ns.low > 0.6 * long.ns, "{long:?}");
    assert!(model.is_outside(&[Value::Unsigned(10)]) && model.is_outside(&[Value::Unsigned(150_000)]));
    assert!(model.is_outside(&[Value::Missing]) && !model.is_outside(&[Value::Unsigned(40)]));
    // A call that took no time, or less.
    let nothing = Taken { duration_ns: PRICE_NS, watching_ns: PRICE_NS + 300.0, ..Taken::default() };
    assert_eq!((short.own_ns(nothing), long.own_ns(nothing)), (Some(FLOOR_NS), None));
    assert_eq!(short.own_ns(Taken { end: End::Cut, ..nothing }), None);
    assert_eq!(short.own_ns(Taken::ns(70_000.0)), Some(70_000.0));
    assert!(model.is_beyond(FLOOR_NS, 1e6) && !model.is_beyond(FLOOR_NS, FLOOR_NS));
    let text = serde_json::to_string(&model).unwrap();
    assert_eq!(serde_json::from_str::<Model>(&text).unwrap(), model);
}

#[test]
fn short_calls_change_nothing_of_the_others() {
    let (few, many) = (model(1, 0.1, 1), model(1, 0.1, 20));
    assert_eq!(few.calibration.calls(), many.calibration.calls());
    let short = |model: &Model| model.calibration.short().unwrap().calibration.calls();
    assert!(short(&many) > 15 * short(&few), "{} {}", short(&few), short(&many));
    // Where the price is known exactly nothing is short.
    assert!(fit(&super::calls(1, 0.1, |n| 4.0 * n), 1).unwrap().calibration.short().is_none());
    assert_eq!(slow_calls(&few, &calls(1, 0.1, 1), 9, |_, _, _| None).calls, 0);
}

#[test]
fn a_price_that_is_off_is_no_alarm() {
    // The price is off by as much as it is known to, one way when the model was made and the other way now.
    let mut events = Vec::new();
    for (seed, off_ns) in [(1, -2.0 * KNOWN_TO_NS), (2, 0.0), (3, 2.0 * KNOWN_TO_NS)] {
        events.extend(watched(&model(seed, 0.1, 1), 10 + seed, 1_800, off_ns, |_, _| 0.0));
    }
    assert!(events.len() <= 1, "{events:?}");
}

#[test]
fn short_calls_that_take_long_are_told() {
    let slow = |n: u64, second: u64| if n < 500 && second >= 30 { 200_000.0 } else { 0.0 };
    let events = watched(&model(1, 0.1, 1), 20, 60, 0.0, slow);
    let (second, slower) = events.first().unwrap();
    assert!((30..=32).contains(second) && slower.kernel == 1, "{second} {slower:?}");
    assert!(slower.longest.own_ns > 150_000.0 && slower.expected_ns.low == 0.0, "{slower:?}");
    assert!(slower.expected_ns.high >= 2.0 * FLOOR_NS && slower.beyond > 0, "{slower:?}");
    // One call that hangs for seconds is told alone.
    let model = model(1, 0.1, 1);
    let (mut random, mut watch) = (rng(21), watch([&model]));
    let of = Second { kernel: 0, model: &model, noise: 0.1, off_ns: 0.0 };
    for second in 0..40 {
        let mut ns: Vec<(u64, f64)> = sizes().flat_map(|n| [n; 5]).map(|n| (n, n as f64)).collect();
        ns[3].1 += if second == 30 { 2e9 } else { 0.0 };
        let events = watch.window(&of.calls(&mut random, second, &ns));
        let is_alone =
            |e: &Event| matches!(e, Event::Slower(s) if s.is_alone && s.kernel == 1 && s.calls == 1);
        assert_eq!(
            (events.len(), events.iter().any(is_alone)),
            (usize::from(second == 30), second == 30),
            "{second}: {events:?}"
        );
    }
}

/// Nine of ten recorded calls were short. A phase of long ones alone, which scatter by 30 %, is no news, and one in which they take half as long again is.
#[test]
fn a_phase_of_long_calls_is_no_alarm() {
    let model = model(4, 0.3, 9);
    let of = Second { kernel: 0, model: &model, noise: 0.3, off_ns: 0.0 };
    let long: Vec<(u64, f64)> =
        sizes().filter(|n| *n > 5_000).flat_map(|n| [n; 5]).map(|n| (n, n as f64)).collect();
    let (mut random, mut watch) = (rng(40), watch([&model]));
    let quiet: usize = (0..1_800).map(|s| watch.window(&of.calls(&mut random, s, &long)).len()).sum();
    assert!(quiet <= 2, "{quiet}");
    let slow: Vec<(u64, f64)> = long.iter().map(|(n, ns)| (*n, 1.5 * ns)).collect();
    let told = (1_800..1_830).find(|s| !watch.window(&of.calls(&mut random, *s, &slow)).is_empty());
    assert!(told.is_some_and(|second| second <= 1_805), "{told:?}");
}

/// Calls at the floor take no less on a faster machine, and no more on a slower one: they do not say how fast it is.
#[test]
fn the_machine_is_told_from_calls_that_are_not_short() {
    let models: Vec<Model> = (0..5).map(|k| model(50 + k, 0.1, 5)).collect();
    for (factor, news) in [(0.7, true), (1.4, true), (1.0, false)] {
        let (mut random, mut watch) = (rng(60), watch(&models));
        let mut told = Vec::new();
        for second in 0..60 {
            let factor = if second < 20 { 1.0 } else { factor };
            let of = |n: u64| vec![(n, factor * n as f64); if n < 600 { 4 } else { usize::from(n > 4_000) }];
            let ns: Vec<(u64, f64)> = sizes().flat_map(of).collect();
            let calls: Vec<Seen> = (0..)
                .zip(&models)
                .flat_map(|(kernel, model)| {
                    Second { kernel, model, noise: 0.1, off_ns: 0.0 }.calls(&mut random, second, &ns)
                })
                .collect();
            told.extend(watch.window(&calls));
        }
        let is_news = matches!(told.as_slice(), [Event::Machine { of: 5, .. }]);
        assert_eq!((is_news, told.len()), (news, usize::from(news)), "{factor}: {told:?}");
    }
}

/// Inputs of short and of long calls lie in opposite corners: nothing is known of the others.
#[test]
fn inputs_that_no_call_had_are_outside() {
    let mut calls = Calls::new(vec![Input::number("n"), Input::number("m")]);
    let mut random = rng(7);
    for i in 0..12_u32 {
        let large = (2_000.0 * 1.5_f64.powf(f64::from(i))).round();
        for m in [1_u64, 2, 4, 8] {
            for _ in 0..15 {
                let long = taken(&mut random, large * (m as f64).sqrt(), 0.05, 0.0);
                calls.push(&[Value::Unsigned(large as u64), Value::Unsigned(m)], long);
                let short = taken(&mut random, 20.0, 0.05, 0.0);
                calls.push(&[Value::Unsigned(5 + u64::from(i)), Value::Unsigned(100 * m)], short);
            }
        }
    }
    (0..calls.len()).for_each(|_| calls.watching_known_to(KNOWN_TO_NS));
    let model = fit(&calls, 1).unwrap();
    let is_outside = |n: u64, m: u64| model.is_outside(&[Value::Unsigned(n), Value::Unsigned(m)]);
    // Nobody called it with both large, or with both small.
    assert!(is_outside(100_000, 800), "{:?}", model.formula());
    assert!(is_outside(5, 2), "{:?}", model.formula());
    assert!(!is_outside(100_000, 8) && !is_outside(2_000, 1));
}
