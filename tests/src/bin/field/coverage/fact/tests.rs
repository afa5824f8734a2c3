use super::*;
use crate::durations::truth::Counted;
use std::collections::BTreeMap;

/// A reading at a second: calls of `f` and their time, the clock's, the CPU time, and waits.
fn reading(second: f64, calls: f64, total_ns: f64) -> Reading {
    let counted = [
        ("f", Counted { calls, total_ns: Some(total_ns) }),
        (EMPTY, Counted { calls: second * 100.0, total_ns: Some(second * 100.0 * 20.0) }),
        (CPU, Counted { calls: second * 0.5e9, total_ns: None }),
        (WAIT, Counted { calls: second * 0.125e9, total_ns: None }),
    ];
    Reading {
        at_ns: (second * 1e9) as u64,
        counted: counted.map(|(name, counted)| (name.to_owned(), counted)).into(),
    }
}

/// 1,000 calls a second for 30 s; each takes 100 ns, from the twentieth second on 120 ns.
fn readings() -> Vec<Reading> {
    (0..=30)
        .map(|second| {
            let second = f64::from(second);
            reading(second, second * 1e3, second * 1e5 + (second - 20.0).max(0.0) * 2e4)
        })
        .collect()
}

fn sides(readings: &[Reading]) -> Sides<'_> {
    let span = |from: u64, to: u64| (from * 1_000_000_000, to * 1_000_000_000);
    Sides {
        readings,
        stretches: [span(0, 5), span(20, 30)],
        watched: span(10, 20),
        clock_ns: 7.0,
        overhead: 0.02,
    }
}

fn truth(value: f64, within: f64, apart: f64) -> Truth {
    Truth { value, within, apart }
}

fn is_near(one: Truth, two: Truth) {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + a.abs());
    let alike = near(one.value, two.value) && near(one.within, two.within) && near(one.apart, two.apart);
    assert!(alike, "{one:?} and {two:?}");
}

#[test]
fn the_truth_of_times_is_that_of_both_stretches_less_what_the_clock_may_take() {
    let readings = readings();
    let sides = sides(&readings);
    // 80 to 100 ns before, 100 to 120 ns after: its own clock takes 20 ns.
    let mean = sides.beside(&["f"], Stretch::mean_ns).unwrap();
    is_near(mean, truth(100.0, 10.0, 20.0));
    // 0.5 s of CPU time a second; a fifth of the time that it could run it waited: 60 to 100 ns, and 76 to 120 ns.
    let share = sides.beside(&["f"], |s, less| s.on_cpu_ns(less) / s.cpu_ns).unwrap();
    is_near(share, truth(178e-6, 42e-6, 40e-6));
    let rate = sides.beside(&["f"], |s, _| s.calls / s.wall_s).unwrap();
    is_near(rate, truth(1e3, 0.0, 0.0));
    assert_eq!(sides.beside(&["g"], Stretch::mean_ns), None, "no call");
    let short = Sides { stretches: [(0, 1), (0, 5_000_000_000)], ..sides };
    assert_eq!(short.beside(&["f"], |s, _| s.calls), None, "one reading is no stretch");
}

/// Half a second of CPU time a second for 1,000 calls; twice as much while it is watched.
#[test]
fn the_cpu_time_of_a_call_is_compared_with_that_of_the_stretches() {
    let mut readings = readings();
    assert!(sides(&readings).dearer(&["f"]).unwrap().abs() < 1e-9);
    for (second, reading) in readings.iter_mut().enumerate() {
        let extra = (second as f64 - 10.0).clamp(0.0, 10.0) * 0.5e9;
        reading.counted.get_mut(CPU).unwrap().calls += extra;
    }
    assert!((sides(&readings).dearer(&["f"]).unwrap() - 1.0).abs() < 1e-9);
    assert_eq!(sides(&readings).dearer(&["g"]), None, "no call");
}

#[test]
fn counts_of_several_counters_add_up_and_so_do_their_edges() {
    let mut readings = readings();
    for reading in &mut readings {
        let g = Counted { calls: 2.0 * reading.counted["f"].calls, total_ns: None };
        reading.counted.insert("g".to_owned(), g);
    }
    let sides = sides(&readings);
    let (calls, within) = sides.counted(&["f", "g"], (10_500_000_000, 19_500_000_000)).unwrap();
    assert!((calls - 27e3).abs() < 1e-6 && (within - 6e3).abs() < 1e-6, "{calls} {within}");
    assert_eq!(sides.counted(&["f", "h"], sides.watched), None);
}

#[test]
fn a_rate_lies_between_the_count_and_what_the_overhead_may_have_taken() {
    is_near(rate((1e4, 0.0), (0, 10_000_000_000), 0.02), truth(1010.0, 10.0, 0.0));
    is_near(rate((1e4, 50.0), (0, 10_000_000_000), 0.0), truth(1e3, 5.0, 0.0));
}

#[test]
fn an_interval_holds_what_is_in_it_with_what_the_truth_is_known_to() {
    let interval = |low, value, high| Estimate { low, high, level: 0.95, ..Estimate::exact(value, 9) };
    let holds = |told, value, within, apart| {
        let fact = Fact {
            function: String::new(),
            quantity: Quantity::Mean,
            told: Some(told),
            truth: truth(value, within, apart),
        };
        fact.holds(apart).unwrap()
    };
    let ten = interval(7.0, 10.0, 14.0);
    assert!(holds(ten, 7.0, 0.0, 0.0) && holds(ten, 14.0, 0.0, 0.0));
    assert!(!holds(ten, 6.9, 0.0, 0.0) && !holds(ten, 14.1, 0.0, 0.0));
    assert!(holds(ten, 6.9, 0.2, 0.0) && holds(ten, 14.1, 0.2, 0.0));
    // 3 and 4 make 5; 4 and 3 likewise.
    assert!(holds(ten, 5.0, 0.0, 4.0) && !holds(ten, 4.9, 0.0, 4.0));
    assert!(holds(ten, 15.0, 0.0, 3.0) && !holds(ten, 15.1, 0.0, 3.0));
    let at_most = Estimate { at_most: true, ..ten };
    assert!(holds(at_most, 1.0, 0.0, 0.0) && !holds(at_most, 14.1, 0.0, 0.0));
    let at_least = Estimate { high: f64::INFINITY, ..ten };
    assert!(holds(at_least, 99.0, 0.0, 0.0) && !holds(at_least, 6.9, 0.0, 0.0));
    let exact = Estimate::exact(10.0, 9);
    assert!(holds(exact, 10.5, 0.5, 0.0) && !holds(exact, 10.6, 0.5, 0.0));
}

/// A row, and the one window of its class: from 11 to 19 s.
fn told(calls: Estimate) -> ([Row; 1], [Span; 1]) {
    let estimate = |value: f64| Estimate { source: Source::Burst, level: 0.95, ..Estimate::exact(value, 9) };
    let row = serde_json::json!({
        "name": "f", "module": "m", "class_id": 7, "decision": "burst", "share": estimate(2e-4), "share_long_run": null, "self_share": null,
        "calls": calls, "rate_hz": estimate(1e3), "on_cpu_ns": null, "mean_ns": null, "correction_ns": 0.0, "quantiles_ns": [], "watched_share": 1.0,
        "dropped": 0, "attempted": 9, "site_class": null, "kind": null, "notes": [],
    });
    let span = Span { class_id: 7, start_ns: 11_000_000_000, end_ns: 19_000_000_000 };
    ([serde_json::from_value(row).unwrap()], [span])
}

#[test]
fn each_quantity_is_set_beside_its_truth_and_exact_totals_beside_their_windows() {
    let known = Known { function: "f", counters: &["f"], timed: Timed::MeanAndShare };
    let readings = readings();
    let sides = sides(&readings);
    let of = |calls, timed| {
        let (rows, spans) = told(calls);
        let facts = facts(&[Known { timed, ..known }], &rows, &spans, &sides);
        facts.into_iter().map(|fact| (fact.quantity, fact)).collect::<BTreeMap<_, _>>()
    };
    let exact = of(Estimate::exact(8e3, 9), Timed::MeanAndShare);
    assert_eq!(exact.len(), Quantity::ALL.len());
    assert_eq!(exact[&Quantity::Total].truth.value, 8e3);
    // All of the recording counts for a rate, and what 2 % may have taken.
    assert!((exact[&Quantity::Rate].truth.value - 1010.0).abs() < 1e-9);
    assert!(exact[&Quantity::Mean].told.is_none(), "no duration was told");
    assert_eq!(exact[&Quantity::Share].told.unwrap().value, 2e-4);
    let burst = Estimate { source: Source::Burst, ..Estimate::exact(1e4, 9) };
    let estimated = of(burst, Timed::Mean);
    assert_eq!(estimated[&Quantity::Total].truth.value, 1e4);
    assert!(!estimated.contains_key(&Quantity::Share) && estimated.contains_key(&Quantity::OnCpu));
    assert_eq!(of(burst, Timed::No).len(), 3);
}

#[test]
fn a_function_that_the_report_lacks_is_not_told() {
    let known = Known { function: "g", counters: &["f"], timed: Timed::No };
    let readings = readings();
    let (rows, spans) = told(Estimate::exact(8e3, 9));
    let facts = facts(&[known], &rows, &spans, &sides(&readings));
    assert!(facts.len() == 3 && facts.iter().all(|fact| fact.told.is_none()), "{facts:?}");
}
