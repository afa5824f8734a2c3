//! Bad inputs, categories, several inputs.

use super::*;

fn reason(inputs: Vec<Input>, rows: impl Iterator<Item = (Vec<Value>, f64)>) -> NoModel {
    let mut calls = Calls::new(inputs);
    rows.for_each(|(values, ns)| calls.push(&values, Taken::ns(ns)));
    fit(&calls, 1).unwrap_err()
}

#[test]
fn each_reason_for_no_model_is_told() {
    let n = || vec![Input::number("n")];
    let one = |v| vec![Value::Unsigned(v)];
    assert_eq!(reason(n(), std::iter::empty()).reason, Reason::NoCalls);
    assert_eq!(reason(vec![], (0..99).map(|_| (vec![], 5.0))).reason, Reason::NoInputs);
    let float = vec![Input { name: "x".into(), kind: Kind::Float }];
    let told = reason(float, (0..99).map(|i| (one(i), 5.0))).to_string();
    assert_eq!(told, "no model: no input can be a predictor; x: a floating-point number is not recorded");
    let structure = vec![Input { name: "s".into(), kind: Kind::Structure }];
    assert_eq!(reason(structure, (0..99).map(|i| (one(i), 5.0))).reason, Reason::NoUsableInput);
    let same = reason(n(), (0..99).map(|_| (one(7), 5.0)));
    assert_eq!(same.inputs, [("n".to_owned(), Unusable::NotVarying)]);
    let few = reason(n(), (0..99).map(|i| (one(1 + i % 4), 5.0)));
    assert_eq!(few.inputs, [("n".to_owned(), Unusable::FewValues { values: 4 })]);
    let huge = reason(n(), (0..99).map(|i| (one((1 << 63) + i), 5.0)));
    assert_eq!(huge.inputs, [("n".to_owned(), Unusable::Huge { share: 1.0 })]);
    let negative = reason(n(), (0..99).map(|i| (vec![Value::Signed(-i)], 5.0)));
    assert!(matches!(negative.inputs[0].1, Unusable::Negative { .. }), "{negative:?}");
    // 40 calls, all with other inputs, no two of them near.
    let scattered = reason(n(), (0..40).map(|i| (one(1 << i), 5.0)));
    assert_eq!(scattered.reason, Reason::FewInputs { distinct: 0 });
    assert_eq!(scattered.shortest_ns, Some(5.0));
}

#[test]
fn a_level_alone_is_no_predictor() {
    let rows = (0..900_u64).map(|i| (vec![Value::Category(i % 9)], 100.0 * (1 + i % 9) as f64));
    let told = reason(vec![Input::category("level")], rows).to_string();
    assert!(told.ends_with("level: a category has no size, and no other input is a number"), "{told}");
}

#[test]
fn each_category_has_its_slope() {
    let mut random = rng(6);
    let mut calls = Calls::new(vec![Input::category("level"), Input::number("n")]);
    for level in [1_u64, 6, 9] {
        for i in 0..20 {
            let n = (10.0 * 1_000_f64.powf(f64::from(i) / 19.0)).round();
            for _ in 0..15 {
                let ns = (level * level) as f64 * n * (0.1 * normal(&mut random)).exp();
                calls.push(&[Value::Category(level), Value::Unsigned(n as u64)], Taken::ns(ns));
            }
        }
    }
    let model = fit(&calls, 1).unwrap();
    assert_eq!((model.class, model.curves.len()), (Class::Linear, 3), "{:?}", model.formula());
    for (level, slope) in [(1, 1.0), (6, 36.0), (9, 81.0)] {
        let ns = model.predict(&[Value::Category(level), Value::Unsigned(5_000)], 0.9).unwrap().ns;
        assert!((ns / (slope * 5_000.0) - 1.0).abs() < 0.06, "{level}: {ns}");
    }
    assert!(model.predict(&[Value::Category(2), Value::Unsigned(5_000)], 0.9).is_none(), "never seen");
    assert!(model.formula()[1].starts_with("level = 6: "), "{:?}", model.formula());
}

#[test]
fn a_category_that_changes_nothing_has_no_curves_of_its_own() {
    let mut random = rng(7);
    let mut calls = Calls::new(vec![Input::category("mode"), Input::number("n")]);
    for i in 0..1_200_u64 {
        let n = (10.0 * 1_000_f64.powf((i % 40) as f64 / 39.0)).round();
        let ns = 7.0 * n * (0.1 * normal(&mut random)).exp();
        calls.push(&[Value::Category(i % 3 % 2), Value::Unsigned(n as u64)], Taken::ns(ns));
    }
    let model = fit(&calls, 1).unwrap();
    assert_eq!((model.curves.len(), model.categories.len()), (1, 0), "{:?}", model.formula());
}

#[test]
fn of_two_inputs_those_that_matter_are_critical() {
    let mut random = rng(9);
    let names = ["m", "n", "flags"];
    let mut calls = Calls::new(names.map(Input::number).to_vec());
    for i in 0..50_u64 {
        let m = 10 + (i * 37 % 50) * 20;
        let n = 10 + (i * 11 % 50) * 20;
        for k in 0..15 {
            let ns = 3.0 * (m * n) as f64 * (0.1 * normal(&mut random)).exp();
            calls.push(&[m, n, k % 3].map(Value::Unsigned), Taken::ns(ns));
        }
    }
    let model = fit(&calls, 1).unwrap();
    let critical: Vec<&str> = model.critical.iter().map(|c| c.name.as_str()).collect();
    assert!(critical.len() == 2 && critical.contains(&"m") && critical.contains(&"n"), "{critical:?}");
    assert_eq!(model.class, Class::Polynomial, "{:?}", model.formula());
    assert_eq!(model.unusable(), [("flags".to_owned(), Unusable::Idle)]);
}

#[test]
fn one_call_that_dominates_is_left_out_and_told() {
    let mut all = calls(3, 0.1, |n| 50.0 * n);
    all.push(&[Value::Unsigned(90_000)], Taken::ns(1e12));
    let model = fit(&all, 1).unwrap();
    assert_eq!(model.class, Class::Linear);
    assert_eq!(model.basis.left_out.few, 1);
    assert!(model.basis.left_out.share_of_time > 0.99);
}

#[test]
fn an_input_of_zero_is_a_size() {
    let mut all = calls(3, 0.1, |n| 200.0 + 50.0 * n);
    for _ in 0..20 {
        all.push(&[Value::Unsigned(0)], Taken::ns(200.0));
    }
    let model = fit(&all, 1).unwrap();
    assert_eq!(model.class, Class::Linear);
    let ns = model.predict(&[Value::Unsigned(0)], 0.9).unwrap().ns;
    assert!((100.0..350.0).contains(&ns), "{ns} {:?}", model.formula());
}

#[test]
fn values_at_the_ends_of_their_types_are_told_and_are_no_sizes() {
    let n = || vec![Input::number("n")];
    let cases: [(Value, Unusable); 8] = [
        (Value::Unsigned(0), Unusable::NotVarying),
        (Value::Signed(0), Unusable::NotVarying),
        (Value::Signed(i64::MIN), Unusable::Negative { share: 1.0 }),
        (Value::Signed(i64::MAX), Unusable::Huge { share: 1.0 }),
        (Value::Unsigned(1 << 63), Unusable::Huge { share: 1.0 }),
        (Value::Unsigned(u64::MAX), Unusable::Huge { share: 1.0 }),
        (Value::Unsigned(0x5555_5555_4000), Unusable::Huge { share: 1.0 }),
        (Value::Unsigned((1 << 40) - 1), Unusable::NotVarying),
    ];
    for (value, why) in cases {
        let told = reason(n(), (0..99).map(|_| (vec![value], 5.0)));
        assert_eq!(
            (told.reason, told.inputs),
            (Reason::NoUsableInput, vec![("n".to_owned(), why)]),
            "{value:?}"
        );
    }
    // 2^40 is the first that is no size: code of a PIE lies at 0x55.., libraries and stacks at 0x7f... A value that is a mark in one call of 50 leaves out that call alone.
    let size = |i: u64| if i.is_multiple_of(50) { u64::MAX } else { 1 << (i % 10) };
    let mut calls = Calls::new(n());
    (0..2_000).for_each(|i| {
        calls.push(&[Value::Unsigned(size(i))], Taken::ns(100.0 + 10.0 * (1 << (i % 10)) as f64))
    });
    let model = fit(&calls, 1).unwrap();
    assert_eq!((model.class, model.basis.left_out.unreadable), (Class::Linear, 40));
    assert!(model.predict(&[Value::Unsigned(u64::MAX)], 0.9).is_none());
}

/// Four sizes have ten calls; the fifth has one, which takes nearly all of the time.
#[test]
fn a_call_that_dominates_a_function_of_few_inputs_leaves_no_model_and_the_reason_says_so() {
    let rows = (0..40_u64).map(|i| (vec![Value::Unsigned(10 << (3 * (i % 4)))], 100.0));
    let told = reason(vec![Input::number("n")], rows.chain([(vec![Value::Unsigned(1 << 20)], 1e12)]));
    assert_eq!(told.reason, Reason::FewInputs { distinct: 4 }, "{told}");
    assert!(
        told.to_string().contains("4 distinct inputs have 10 calls, 5 are needed (41 calls in all)"),
        "{told}"
    );
}

#[test]
fn floats_and_structures_beside_a_number_are_left_out_with_a_reason() {
    let inputs = vec![
        Input { name: "x".into(), kind: Kind::Float },
        Input { name: "s".into(), kind: Kind::Structure },
        Input::number("n"),
    ];
    let mut calls = Calls::new(inputs.clone());
    for i in 0..800_u64 {
        let n = 10 << (i % 8);
        calls.push(&[Value::Missing, Value::Missing, Value::Unsigned(n)], Taken::ns(50.0 + 3.0 * n as f64));
    }
    let model = fit(&calls, 1).unwrap();
    assert_eq!(model.inputs, ["n"]);
    assert_eq!(model.unusable(), [("x".to_owned(), Unusable::Float), ("s".to_owned(), Unusable::Structure)]);
    let alone = reason(inputs[..2].to_vec(), (0..99).map(|_| (vec![Value::Missing; 2], 5.0)));
    assert_eq!((alone.reason, alone.inputs.len()), (Reason::NoUsableInput, 2));
}

#[test]
fn categories_are_in_the_order_of_their_values_whichever_is_called_first() {
    let model = |levels: [u64; 3]| {
        let mut random = rng(3);
        let mut calls = Calls::new(vec![Input::number("n"), Input::category("level")]);
        for i in 0..3 * 16 * 20 {
            let (n, level) = (10 << (i / 3 % 16), levels[i % 3]);
            let ns = 300.0 * level as f64 * n as f64 * (0.05 * normal(&mut random)).exp();
            calls.push(&[Value::Unsigned(n), Value::Category(level)], Taken::ns(ns));
        }
        fit(&calls, 1).unwrap()
    };
    for levels in [[9, 1, 6], [1, 6, 9], [6, 9, 1]] {
        let model = model(levels);
        let order: Vec<u64> = model.curves.iter().map(|curve| curve.category[0]).collect();
        assert_eq!(order, [1, 6, 9], "{:?}", model.formula());
        let (values, all) = ([Value::Unsigned(640), Value::Category(6)], model.formula());
        let ns = model.predict(&values, 0.9).unwrap().ns;
        assert!((ns / (300.0 * 6.0 * 640.0) - 1.0).abs() < 0.1, "each has its own curve: {ns} {all:?}");
    }
}

#[test]
fn calls_that_are_too_short_for_what_timing_them_costs_are_told_to_be_that() {
    let of = |known_ns: f64| {
        let mut calls = Calls::new(vec![Input::number("n")]);
        for i in 0..400_u64 {
            let watching_ns = 1_000.0 + (i % 7) as f64 * 10.0 - 30.0;
            let n = 100 << (i % 8);
            let taken = Taken { duration_ns: 1_000.0 + 0.001 * n as f64, watching_ns, ..Taken::default() };
            calls.push(&[Value::Unsigned(n)], taken);
            calls.watching_known_to(known_ns);
        }
        fit(&calls, 1).unwrap_err()
    };
    let told = of(50.0);
    assert_eq!(told.reason, Reason::Short { calls: 400 }, "{told}");
    assert_eq!(told.shortest_ns, Some(50.0));
    assert!(
        told.to_string().contains("400 of 400 calls have inputs for which a call takes less than twice"),
        "{told}"
    );
}
