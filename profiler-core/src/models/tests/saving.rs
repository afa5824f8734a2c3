//! Lines whose first units cost less: deflate, whose window fills first.

use super::*;

/// `compress2` of zlib 1.2.13 on a Xeon, without a profiler: bytes, and the CPU time of the median of 7 to 22 calls, us, at levels 1 and 6. Text of log lines and the 36
/// sizes of `tests/field/grows.c`.
const COMPRESS2: [(u64, f64, f64); 36] = [
    (60000, 616.2, 2703.3),
    (66322, 730.1, 3118.5),
    (73311, 798.8, 3481.4),
    (81037, 869.5, 3897.1),
    (89576, 954.1, 4324.1),
    (99015, 1099.6, 4891.1),
    (109450, 1207.9, 5434.9),
    (120983, 1317.5, 6070.8),
    (133732, 1493.1, 6784.2),
    (147825, 1628.3, 7516.7),
    (163402, 1777.9, 8303.8),
    (180621, 1998.2, 9363.2),
    (199655, 2231.9, 10372.9),
    (220694, 2448.1, 11464.3),
    (243951, 2706.4, 12744.8),
    (269658, 3013.5, 14149.7),
    (298074, 3353.4, 15724.0),
    (329484, 3688.9, 17370.6),
    (364205, 4084.0, 19228.4),
    (402584, 4515.7, 21269.2),
    (445007, 4964.4, 23584.4),
    (491901, 5538.6, 26094.5),
    (543737, 6136.2, 28858.8),
    (601035, 6719.1, 31934.6),
    (664371, 7447.5, 35396.1),
    (734381, 8261.3, 39354.6),
    (811769, 9115.1, 43342.6),
    (897311, 10066.4, 48257.8),
    (991868, 11143.4, 53286.4),
    (1096390, 12286.5, 58809.9),
    (1211925, 13604.1, 65041.0),
    (1339635, 15029.5, 72216.0),
    (1480803, 16675.9, 80038.1),
    (1636848, 18347.2, 88417.6),
    (1809335, 20509.0, 97481.1),
    (2000000, 22553.3, 108411.0),
];

/// Calls of these sizes: 12 of each, and category, that scatter by 1 %.
fn by_level(times: impl Iterator<Item = (u64, [f64; 2])>) -> Calls {
    let mut random = rng(6);
    let mut calls = Calls::new(vec![Input::number("n"), Input::category("level")]);
    for (n, of_level) in times {
        for (level, us) in [1, 6].into_iter().zip(of_level) {
            for _ in 0..12 {
                let ns = 1e3 * us * (0.01 * normal(&mut random)).exp();
                calls.push(&[Value::Unsigned(n), Value::Unsigned(level)], Taken::ns(ns));
            }
        }
    }
    calls
}

#[test]
fn zlibs_compress2_is_linear_at_each_level_and_saves_at_its_begin() {
    let model = fit(&by_level(COMPRESS2.into_iter().map(|(n, fast, usual)| (n, [fast, usual]))), 1).unwrap();
    let formula = model.formula();
    assert_eq!((model.class, model.form), (Class::Linear, Class::Linear), "{formula:?}");
    assert!(formula.len() == 2 && formula.iter().all(|line| line.contains(" ns · n - ")), "{formula:?}");
    assert!(!model.alternatives.contains(&Class::Linearithmic), "{:?}", model.alternatives);
    assert!(model.goodness.relative_error < 0.02, "{:?}", model.goodness);
    // Some 9 KiB of the window cost nothing at level 6.
    let Shape::Sum(sum) = &model.curves[1].shape else { panic!("{formula:?}") };
    let saved = -sum.intercept_ns / sum.terms[0].1;
    assert!((7_000.0..12_000.0).contains(&saved), "{saved} bytes");
    // Below the sizes that were seen it takes less, but not less than nothing.
    let at = |n: f64| sum.at(&[n]);
    assert!(at(0.0) == 0.0 && at(5_000.0) > 0.0 && at(5_000.0) < at(20_000.0), "{}", at(5_000.0));
}

/// The same sizes, where a line with a saving comes within 3 %: `n log n` stays, and so does what is no line.
#[test]
fn what_grows_faster_is_no_line_with_a_saving() {
    let sizes = || COMPRESS2.into_iter().map(|(n, ..)| n);
    let times = |ns: fn(f64) -> f64| sizes().map(move |n| (n, [ns(n as f64) / 5e3, ns(n as f64) / 1e3]));
    let model = fit(&by_level(times(|n| 8.0 * n * n.log2())), 1).unwrap();
    assert_eq!(model.class, Class::Linearithmic, "{:?}", model.formula());
    let model = fit(&by_level(times(|n| 0.1 * n.powf(1.5))), 1).unwrap();
    assert_eq!(model.class, Class::ThreeHalves, "{:?}", model.formula());
    // A saving of three quarters of the shortest call would be a curve.
    let model = fit(&by_level(times(|n| 8.0 * (n - 45_000.0))), 1).unwrap();
    assert!(model.formula().iter().all(|line| !line.contains(" - ")), "{:?}", model.formula());
    // A line through 0 has none, whatever chance says of it.
    for seed in 1..=5 {
        let model = fit(&calls(seed, 0.1, |n| 4.0 * n), seed).unwrap();
        assert_eq!(
            (model.class, model.formula()[0].contains(" - ")),
            (Class::Linear, false),
            "{:?}",
            model.formula()
        );
    }
}
