//! Models of functions whose inputs explain nothing that is known: the median of all calls, or of each value of one input of few values.
//!
//! They have no class, since nobody knows how such functions grow. They are there to hold single calls against ([`super::Watch`]), which is better than nothing: most functions of a
//! service take addresses of structures. That many calls take longer is no evidence: their inputs may be others today. The paper has none (§3.2 predicts the shortest time for an unknown kernel, which is a bound, and no expectation).

use super::calibration::Calibration;
use super::call::{Calls, Input, Kind, Value};
use super::cells::{CLEAR, LeftOut, median};
use super::class::{Class, Printed};
use super::goodness::Goodness;
use super::model::{Basis, Curve, Doubt, Model};
use super::screen::{Roles, Unusable, name_of, number, roles};
use super::shape::Shape;
use super::sum::Sum;
use std::collections::BTreeMap;

/// Fewest calls of such a model.
const LEAST: usize = 100;
/// Fewest calls of a value of the input: calls of others are outside of what the model knows.
const LEAST_OF_VALUE: usize = 20;
/// An input tells calls apart if they lie nearer to the medians of its values than to that of all, on average, by this factor.
const NEARER: f64 = 0.9;
/// What a median of n values is off by, over their spread by sqrt(n).
const OF_MEDIAN: f64 = 1.2533;

/// The model, for calls that [have no other](super::fit()). The same calls give the same one. Numbers that nothing could be made of, but that were read, bound what the model
/// knows: a length that was 4096 in all calls is not to be 1 GiB.
///
/// `None`: there are fewer than 100 that returned, or the median is below twice what the cost of watching a call is known to.
#[must_use]
pub fn constant(calls: &Calls) -> Option<Model> {
    let floor_ns = CLEAR * calls.known_to_ns();
    let returned: Vec<(&[Value], f64)> =
        calls.iter().filter_map(|(values, taken)| Some((values, taken.left_ns()?))).collect();
    if returned.len() < LEAST {
        return None;
    }
    let found = roles(calls);
    let split = best(&of_few_values(calls, &found), &returned, floor_ns);
    let (input, medians) = split.or_else(|| Some((None, of_all(&returned, floor_ns)?)))?;
    let mut known: Vec<(f64, f64)> = Vec::with_capacity(returned.len());
    for (values, ns) in &returned {
        let own = input.and_then(|input| name(values, input));
        if let Some(median_ns) = medians.get(&own).filter(|_| *ns > 0.0) {
            known.push((*median_ns, (ns / median_ns).ln()));
        }
    }
    let shortest_ns = returned.iter().map(|(_, ns)| *ns).filter(|ns| *ns > 0.0).fold(f64::INFINITY, f64::min);
    let calibration = Calibration::new(known).of_any_inputs().watched(calls.known_to_ns(), None);
    let (numbers, range): (Vec<usize>, Vec<(f64, f64)>) =
        numbers(calls, &returned, input).into_iter().unzip();
    let names =
        |of: &[usize]| of.iter().filter_map(|i| calls.inputs().get(*i)).map(|i| i.name.clone()).collect();
    let categories: Vec<usize> = input.into_iter().collect();
    let curve = |(value, ns): (&Option<u64>, &f64)| Curve {
        category: value.iter().copied().collect(),
        shape: Shape::Sum(flat(*ns, &calibration)),
    };
    Some(Model {
        inputs: names(&numbers),
        categories: names(&categories),
        curves: medians.iter().map(curve).collect(),
        class: Class::Unknown,
        printed: Printed::Unknown,
        form: Class::Unknown,
        alternatives: Vec::new(),
        is_simplified: false,
        doubt: Some(Doubt::Unexplained),
        goodness: NONE,
        critical: Vec::new(),
        range,
        exponent: None,
        basis: Basis {
            calls: calibration.calls(),
            distinct: medians.len(),
            left_out: LeftOut {
                not_returned: (calls.len() - returned.len()) as u64,
                few: returned.len() as u64 - calibration.calls(),
                ..LeftOut::default()
            },
            shortest_ns,
            known_to_ns: calls.known_to_ns(),
        },
        calibration,
        roles: Roles { numbers, categories, unusable: found.unusable },
    })
}

/// Of a model that predicts one time.
const NONE: Goodness =
    Goodness { adjusted_r2: 0.0, r2: 0.0, ceiling: 0.0, relative_error: 0.0, medians: 0, parameters: 0 };

/// Medians by value of an input; that of all calls is [`None`]'s.
type Medians = BTreeMap<Option<u64>, f64>;

/// The median of all calls, if it can be told.
fn of_all(returned: &[(&[Value], f64)], floor_ns: f64) -> Option<Medians> {
    let median_ns = median(&mut returned.iter().map(|(_, ns)| *ns).collect::<Vec<f64>>());
    (median_ns > floor_ns).then(|| [(None, median_ns)].into())
}

/// The one of these inputs that tells calls apart best, and the median of each of its values; `None`: none does.
fn best(inputs: &[usize], returned: &[(&[Value], f64)], floor_ns: f64) -> Option<(Option<usize>, Medians)> {
    let mut least = NEARER;
    let mut found = None;
    for input in inputs {
        let mut of: BTreeMap<Option<u64>, Vec<f64>> = BTreeMap::new();
        for (values, ns) in returned {
            of.entry(name(values, *input)).or_default().push(*ns);
        }
        of.retain(|value, own| value.is_some() && own.len() >= LEAST_OF_VALUE);
        let mut medians: Medians = of.iter_mut().map(|(value, own)| (*value, median(own))).collect();
        // Of calls that are too short nothing is told, not even that they are.
        let values = medians.len();
        medians.retain(|_, ns| *ns > floor_ns);
        let parts_short_ones = medians.len() < values && !medians.is_empty();
        of.retain(|value, _| medians.contains_key(value));
        // The same calls without it.
        let mut all: Vec<f64> = of.values().flatten().copied().collect();
        let plain = median(&mut all);
        let near = |ns: f64, median_ns: f64| if ns > 0.0 { (ns / median_ns).ln().abs() } else { 0.0 };
        let to_all: f64 = all.iter().map(|ns| near(*ns, plain)).sum();
        let to_own = of.iter().flat_map(|(value, own)| own.iter().map(move |ns| (value, ns)));
        let to_own: f64 = to_own.filter_map(|(value, ns)| Some(near(*ns, *medians.get(value)?))).sum();
        if medians.len() > 1 && to_own < least * to_all {
            (least, found) = (to_own / to_all, Some((Some(*input), medians)));
        } else if found.is_none() && parts_short_ones {
            found = Some((Some(*input), medians));
        }
    }
    found
}

/// Inputs that are no predictors because they have few values.
fn of_few_values(calls: &Calls, found: &Roles) -> Vec<usize> {
    let is_few = |why: &Unusable| matches!(why, Unusable::FewValues { .. } | Unusable::CategoryOnly);
    let has = |name: &String| found.unusable.iter().any(|(own, why)| own == name && is_few(why));
    let named = calls.inputs().iter().enumerate().filter(|(_, input)| has(&input.name));
    found.categories.iter().copied().chain(named.map(|(index, _)| index)).collect()
}

/// Inputs that are numbers and were read in all calls, but for that one, with the smallest and largest value of each.
fn numbers(calls: &Calls, returned: &[(&[Value], f64)], but: Option<usize>) -> Vec<(usize, (f64, f64))> {
    let range = |input: usize| {
        let mut ends = (f64::INFINITY, 0.0_f64);
        for (values, _) in returned {
            let x = number(values.get(input).copied().unwrap_or(Value::Missing)).ok()? as f64;
            ends = (ends.0.min(x), ends.1.max(x));
        }
        Some(ends)
    };
    let is_number = |input: &&(usize, &Input)| input.1.kind == Kind::Number && Some(input.0) != but;
    let all: Vec<(usize, &Input)> = calls.inputs().iter().enumerate().collect();
    all.iter().filter(is_number).filter_map(|(index, _)| Some((*index, range(*index)?))).collect()
}

fn name(values: &[Value], input: usize) -> Option<u64> {
    name_of(values.get(input).copied().unwrap_or(Value::Missing))
}

/// A curve that does not grow.
fn flat(ns: f64, calibration: &Calibration) -> Sum {
    let independent = (calibration.calls() as f64 / calibration.dependence()).max(1.0);
    let error_ns = OF_MEDIAN * calibration.spread(ns) * ns / independent.sqrt();
    Sum { intercept_ns: ns, terms: Vec::new(), covariance: vec![vec![error_ns * error_ns]] }
}

#[cfg(test)]
mod tests {
    use super::super::call::Taken;
    use super::super::watch::{Call, Event, Seen, Settings, Slower, Watch};
    use super::*;
    use crate::stats::Interval;
    use crate::stats::sim::{normal, rng};

    fn pointer(name: &str) -> Input {
        Input { name: name.into(), kind: Kind::Pointer }
    }

    fn of(inputs: &[Input], calls: impl IntoIterator<Item = (Vec<Value>, f64)>) -> Calls {
        let mut all = Calls::new(inputs.to_vec());
        calls.into_iter().for_each(|(values, ns)| all.push(&values, Taken::ns(ns)));
        all
    }

    /// A time of some 10 us; of one call in `1 / long` it is 20 times that.
    fn time(random: &mut rand::rngs::StdRng, spread: f64, long: f64) -> f64 {
        use rand::RngExt as _;
        let factor = if random.random_bool(long) { 20.0 } else { 1.0 };
        1e4 * factor * (spread * normal(random)).exp()
    }

    /// Calls on an address.
    fn requests(seed: u64, spread: f64, long: f64) -> Calls {
        let mut random = rng(seed);
        let one = |i: u64| (vec![Value::Unsigned(0x7f00_0000_0000 + i)], time(&mut random, spread, long));
        of(&[pointer("request")], (0..1_000).map(one))
    }

    #[test]
    fn a_function_of_addresses_is_held_against_the_median_of_its_calls() {
        let calls = requests(1, 0.05, 0.0);
        assert!(super::super::fit(&calls, 1).is_err());
        let model = constant(&calls).unwrap();
        let predicted = model.predict(&[Value::Unsigned(1)], 0.95).unwrap();
        assert!((predicted.ns / 1e4 - 1.0).abs() < 0.01, "{predicted:?}");
        let Interval { low, high } = predicted.interval_ns;
        assert!((8.8e3..9.3e3).contains(&low) && (1.08e4..1.14e4).contains(&high), "{predicted:?}");
        assert_eq!((model.class, model.basis.calls), (Class::Unknown, 1_000));
        assert!(!model.is_outside(&[Value::Missing]));
    }

    #[test]
    fn an_input_of_few_values_tells_calls_apart_where_their_times_differ() {
        let mut random = rng(2);
        let mut one = |i: u64| {
            let (op, idle) = (i % 3, i % 2);
            let ns = [1e3, 1e5, 2e3].get(op as usize).copied().unwrap_or(0.0);
            (vec![Value::Unsigned(idle), Value::Unsigned(op)], ns * (0.05 * normal(&mut random)).exp())
        };
        let inputs = [Input::number("idle"), Input::number("op")];
        let mut calls: Vec<(Vec<Value>, f64)> = (0..900).map(&mut one).collect();
        // Of a value with few calls nothing is known.
        calls.extend((0..9).map(|_| (vec![Value::Unsigned(0), Value::Unsigned(7)], 5e6)));
        let model = constant(&of(&inputs, calls)).unwrap();
        assert_eq!(model.categories, ["op"]);
        let at = |op: u64| model.predict(&[Value::Unsigned(1), Value::Unsigned(op)], 0.95).map(|p| p.ns);
        assert!((at(1).unwrap() / 1e5 - 1.0).abs() < 0.02 && (at(2).unwrap() / 2e3 - 1.0).abs() < 0.02);
        assert_eq!(at(7), None);
        assert!(model.is_outside(&[Value::Unsigned(0), Value::Unsigned(7)]));
        assert_eq!(model.basis.left_out.few, 9);
    }

    /// The time is that of the rare value, which would be left out, and not of the input.
    #[test]
    fn an_input_is_not_chosen_for_what_its_rare_values_hold() {
        let mut random = rng(3);
        let mut calls: Vec<(Vec<Value>, f64)> =
            (0..900).map(|i| (vec![Value::Unsigned(i % 2)], time(&mut random, 0.05, 0.0))).collect();
        calls.extend((0..19).map(|_| (vec![Value::Unsigned(2)], 5e6)));
        let model = constant(&of(&[Input::number("op")], calls)).unwrap();
        assert!(model.categories.is_empty() && model.basis.left_out.few == 0, "{model:?}");
    }

    #[test]
    fn a_number_that_was_read_bounds_what_is_known() {
        let mut random = rng(4);
        let mut one = |i: u64| {
            let values = vec![Value::Unsigned(i << 41), Value::Unsigned(4_096), Value::Unsigned(1_000 + i)];
            (values, time(&mut random, 0.05, 0.0))
        };
        let inputs = [Input::number("huge"), Input::number("length"), Input::number("n")];
        let model = constant(&of(&inputs, (1..1_000).map(&mut one))).unwrap();
        assert_eq!(
            (model.inputs.len(), &model.range[..]),
            (2, &[(4_096.0, 4_096.0), (1_001.0, 1_999.0)][..])
        );
        let outside = |length: u64, n: u64| {
            model.is_outside(&[Value::Unsigned(1), Value::Unsigned(length), Value::Unsigned(n)])
        };
        assert!(!outside(4_096, 2_000) && outside(1 << 30, 1_500) && outside(4_096, 3_000));
    }

    #[test]
    fn few_calls_and_calls_that_are_too_short_have_none() {
        assert!(constant(&of(&[], (0..99).map(|_| (vec![], 100.0)))).is_none());
        let mut calls = of(&[], (0..100).map(|_| (vec![], 100.0)));
        assert_eq!(constant(&calls).unwrap().predict(&[], 0.5).unwrap().ns, 100.0);
        (0..100).for_each(|_| calls.watching_known_to(60.0));
        assert!(constant(&calls).is_none());
        // A short way through hides no long one.
        let two = (0..200).map(|i| (vec![Value::Unsigned(i % 2)], if i % 2 == 0 { 100.0 } else { 1e5 }));
        let mut calls = of(&[Input::number("op")], two);
        (0..200).for_each(|_| calls.watching_known_to(60.0));
        let model = constant(&calls).unwrap();
        assert_eq!((&model.categories[..], model.basis.calls), (&["op".to_owned()][..], 100));
    }

    /// Alarms of ten minutes of calls that take so many times as long; `one`: a single call in between does.
    fn alarms((change, one): (f64, f64), seed: u64) -> Vec<Slower> {
        let mut watch = Watch::new(Settings::default());
        watch.add(0, &constant(&requests(seed, 0.05, 0.02)).unwrap());
        let mut random = rng(seed + 1_000);
        let mut alarms = Vec::new();
        for second in 0..600_u64 {
            let call = |i: u64| {
                let change = if second == 300 && i == 7 { one } else { change };
                let own_ns = change * time(&mut random, 0.05, 0.02);
                Seen { kernel: 0, time_ns: second * 1_000_000_000 + i * 1_000_000, predicted_ns: 1e4, own_ns }
            };
            let calls: Vec<Seen> = (0..20).map(call).collect();
            let told = watch.window(&calls).into_iter();
            alarms.extend(
                told.filter_map(|event| if let Event::Slower(slower) = event { Some(slower) } else { None }),
            );
        }
        alarms
    }

    /// Bets are made on calls in flight as well, where their inputs are known.
    #[test]
    fn many_calls_in_flight_are_told_one_by_one_or_not_at_all() {
        let mut watch = Watch::new(Settings::default()).in_steps(4);
        watch.add(0, &constant(&requests(1, 0.05, 0.02)).unwrap());
        let call = |step: u64, i: u32, own_ns: f64| {
            let time_ns = step * 250_000_000 + u64::from(i);
            let seen = Seen { kernel: 0, time_ns, predicted_ns: 1e4, own_ns };
            Call { seen, tid: i, waits: false, missed_ns: 0 }
        };
        let told = |watch: &mut Watch, own_ns: f64, step: u64| {
            let running: Vec<Call> = (0..50).map(|i| call(step, i, own_ns)).collect();
            watch.step(&[], &running)
        };
        for step in 1..400 {
            assert_eq!(told(&mut watch, 2e6, step), [], "ten times as long as the longest that was recorded");
        }
        let events = told(&mut watch, 1e12, 400);
        assert!(matches!(events.as_slice(), [Event::Slower(slower)] if slower.is_alone), "{events:?}");
    }

    /// They have no part in what many calls may raise.
    #[test]
    fn functions_whose_inputs_say_nothing_do_not_make_others_wait() {
        let of = |more: u32| {
            let mut calls = Calls::new(vec![Input::number("n")]);
            let mut random = rng(9);
            for i in 0..2_000_u64 {
                let n = 100 << (i % 8);
                calls.push(
                    &[Value::Unsigned(n)],
                    Taken::ns(10.0 * n as f64 * (0.05 * normal(&mut random)).exp()),
                );
            }
            let mut watch = Watch::new(Settings::default());
            watch.add(0, &super::super::fit(&calls, 1).unwrap());
            let constant = constant(&requests(1, 0.05, 0.02)).unwrap();
            (1..=more).for_each(|kernel| watch.add(kernel, &constant));
            let slow = |second: u64, i: u64| Seen {
                kernel: 0,
                time_ns: second * 1_000_000_000 + i * 1_000_000,
                predicted_ns: 1e4,
                own_ns: 1.12e4,
            };
            let is_told = |second: &u64| {
                !watch.window(&(0..3).map(|i| slow(*second, i)).collect::<Vec<Seen>>()).is_empty()
            };
            (0..600_u64).find(is_told)
        };
        assert!(of(0).is_some_and(|seconds| seconds > 1), "{:?}", of(0));
        assert_eq!(of(200), of(0));
    }

    /// All calls may have other inputs today; no input makes one of them take a million times as long.
    #[test]
    fn that_all_calls_take_longer_is_no_evidence_and_a_call_that_hangs_is() {
        for seed in 0..10 {
            assert_eq!(alarms((5.0, 5.0), seed), []);
            let told = alarms((1.0, 1e6), seed);
            assert!(matches!(told.as_slice(), [one] if one.is_alone && one.calls == 1), "{told:?}");
        }
    }
}
