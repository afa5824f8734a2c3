//! Operations: populations exact, measures post-stratified, what was not recorded not filled in.

use super::*;
use crate::adapt::AdaptConfig;
use crate::recording::{
    OperationClassRow, OperationCycleEnd, OperationCycleRow, OperationHistogramRow, OperationMeta,
    OperationRow, OperationWindowRow,
};

const A: u32 = 2;
const B: u32 = 3;

fn window(
    class_id: u32,
    second: u64,
    (population, mean_ns): (u64, f64),
    recorded: u64,
    stretch: u64,
) -> OperationWindowRow {
    let n = population as f64;
    OperationWindowRow {
        operation: 0,
        class_id,
        start_ns: START + second * S,
        end_ns: START + (second + 1) * S,
        watched_ns: S,
        monitoring: recorded > 0,
        rate: 0.5,
        stretch,
        cycle: 0,
        population,
        population_sum_ns: n * mean_ns,
        population_squares_ns2: n * mean_ns * mean_ns * 1.01,
        sample: recorded,
        sample_sum_ns: recorded as f64 * mean_ns,
        sample_squares_ns2: recorded as f64 * mean_ns * mean_ns,
        measure_sum: 0.0,
        measure_squares: 0.0,
        cost_ns: recorded * 1_000,
        begun: population,
        recorded,
        off: if recorded == 0 { population } else { 0 },
        not_drawn: if recorded == 0 { 0 } else { population - recorded },
        balanced: 0,
        no_quota: 0,
        unmatched: u64::from(class_id == A),
        dropped: 0,
        sliced: Some(false),
    }
}

fn rows(class_id: u32, n: u64, measure: u64, stretch: u64) -> Vec<OperationRow> {
    let row = |i| OperationRow {
        operation: 0,
        class_id,
        tid: 7,
        begin_ns: START + i,
        duration_ns: 1_000_000,
        calls: 4,
        inner_ns: 10,
        // Scattered around the mean.
        measure: if i % 2 == 0 { measure - 1 } else { measure + 1 },
        cost_ns: 1_000,
        off_cpu_ns: (class_id == A).then_some(measure * 1_000 + i % 2),
        cycle: 0,
        stretch,
        censored: false,
        pid: None,
        steps_before: None,
        steps_after: None,
        incomplete: None,
    };
    (0..n).map(row).collect()
}

/// Class A: 50 of 100 recorded at a measure of 10, then 10 of 1,000 at 100, then 400 with recording off. Class B: 5, none recorded.
fn recording() -> Recording {
    let mut r = empty();
    r.meta.operations = vec![OperationMeta {
        operation: 0,
        name: "req".into(),
        bounds: "req=handle,class=arg0:str".into(),
        policy: "adp".into(),
        config: AdaptConfig::default(),
        measure: "calls of malloc".into(),
        screen_ns: 2_000.0,
        by_functions: false,
        inner_hit_ns: 0.0,
        inner_classes: vec![],
        open_at_end: None,
    }];
    let class = |class_id, class_name: &str| OperationClassRow {
        operation: 0,
        class_id,
        operation_name: "req".into(),
        class_name: class_name.into(),
    };
    r.operation_classes = vec![class(A, "GET /a"), class(B, "GET /b")];
    r.operation_windows = vec![
        window(A, 0, (100, 1e6), 50, 1),
        window(A, 1, (1_000, 3e6), 10, 2),
        window(A, 2, (400, 3e6), 0, 2),
        OperationWindowRow { monitoring: true, ..window(B, 0, (5, 2e6), 0, 1) },
    ];
    r.operations = [rows(A, 50, 10, 1), rows(A, 10, 100, 2)].concat();
    let mut open = r.operations[0];
    open.censored = true;
    open.measure = 1_000_000;
    r.operations.push(open);
    let cycle = |number, length: u64, end| OperationCycleRow {
        operation: 0,
        number,
        start_ns: START,
        end_ns: START + length * S,
        end,
        population: 500,
        sample: 20,
        z: 0.9,
        needed: 10.0,
        large_enough: true,
        same_times: true,
        difference_ns: 0.0,
        same_shares: true,
        largest_share_difference: 0.01,
        unobserved: vec![],
    };
    r.operation_cycles = vec![
        cycle(0, 10, OperationCycleEnd::Representative),
        cycle(1, 30, OperationCycleEnd::Timeout),
        cycle(2, 2, OperationCycleEnd::RunEnd),
    ];
    r
}

#[test]
fn begins_without_an_end_are_told_apart_from_ends_without_a_begin() {
    let of = |open_at_end, more_begun: u64, unmatched: u64| {
        let mut recording = recording();
        recording.meta.operations[0].open_at_end = open_at_end;
        recording.operation_windows[0].begun += more_begun;
        recording.operation_windows[0].unmatched = unmatched;
        recording.operation_windows[1..].iter_mut().for_each(|w| w.unmatched = 0);
        let report = Report::from_recording(&recording);
        let o = &report.operations[0];
        (o.unmatched, o.without_end, o.without_begin)
    };
    // Of nine that began and did not end two are open, and three ends had no begin.
    assert_eq!(of(Some(2), 9, 10), (10, Some(7), Some(3)));
    // Threads that ended inside are counted nowhere else.
    assert_eq!(of(Some(0), 4, 1), (1, Some(4), Some(0)));
    assert_eq!(of(Some(1), 0, 5), (5, Some(0), Some(5)));
    // It is not known how many were open.
    assert_eq!(of(None, 9, 10), (10, None, None));
}

#[test]
fn populations_are_exact_and_measures_weigh_as_their_stretches_do() {
    let report = Report::from_recording(&recording());
    let [o] = report.operations.as_slice() else { panic!("{:?}", report.operations) };
    assert_eq!((o.population, o.recorded, o.unmatched, o.censored), (1_505, 60, 3, 1));
    let a = &o.classes[0];
    assert_eq!((a.name.as_str(), a.population, a.recorded), ("GET /a", 1_500, 60));
    // Less half of what screening costs, 2 us.
    let mean = (100.0 * 1e6 + 1_400.0 * 3e6) / 1_500.0;
    assert!((a.mean_ns.value / (mean - 1_000.0) - 1.0).abs() < 1e-12 && a.mean_ns.source == Source::Exact);
    assert!((a.mean_ns.low - (mean - 2_500.0)).abs() < 1e-6 && (a.mean_ns.high - mean).abs() < 1e-6);
    // 100 of the stretch at 10 and 1,000 of that at 100; the 400 without recording are not spoken of.
    let measure = a.measure.unwrap();
    assert!((measure.value - (100.0 * 10.0 + 1_000.0 * 100.0) / 1_100.0).abs() < 1e-9, "{measure:?}");
    assert!(measure.low < measure.value && measure.high > measure.value && measure.n == 60);
    let off_cpu = a.off_cpu_ns.unwrap();
    // Means of 10,000.5 and 100,000.5 ns.
    assert!((off_cpu.value - 1_000.0 * measure.value - 0.5).abs() < 1e-6 && off_cpu.n == 60, "{off_cpu:?}");
    assert_eq!(a.unobserved, 400);
    assert_eq!((a.calls, a.inner_ns), (Some(4.0), Some(10.0)));
    let b = &o.classes[1];
    assert_eq!((b.population, b.recorded, b.measure, b.off_cpu_ns, b.unobserved), (5, 0, None, None, 5));
    assert!((o.mix_difference.unwrap() - 5.0 / 1_505.0).abs() < 1e-12);
    // Recording was on for 1,105.
    assert!((o.average_rate - 60.0 / 1_105.0).abs() < 1e-12);
    assert!((o.rate_hz - 1_505.0 / 3.0).abs() < 1e-9 && o.watched_s == 3.0, "{}", o.rate_hz);
    assert_eq!((o.cycles, o.timeouts, o.cycle_s), (2, 1, Some((10.0, 20.0, 30.0))));
    assert!((o.screening_s - 1_505.0 * 2e-6).abs() < 1e-12 && (o.recording_s - 60e-6).abs() < 1e-12);
}

/// Buckets of 100 ns width.
fn times(class_id: u32, buckets: &[(u64, u64)]) -> Vec<OperationHistogramRow> {
    let row = |(low_ns, count): &(u64, u64)| OperationHistogramRow {
        operation: 0,
        class_id,
        low_ns: *low_ns,
        high_ns: low_ns + 100,
        count: *count,
    };
    buckets.iter().map(row).collect()
}

#[test]
fn quantiles_are_those_of_all_operations_up_to_the_width_of_a_bucket() {
    let mut r = recording();
    r.meta.operations[0].screen_ns = 0.0;
    // A: of 1,500 the 750th lies among the first 1,000, the 1,485th among the next 490, the 1,498.5th in the last bucket.
    r.operation_histograms = times(A, &[(1_000, 1_000), (5_000, 490), (70_000, 10)]);
    r.operation_histograms.extend(times(B, &[(90_000, 5)]));
    // Of another operation.
    r.operation_histograms.push(OperationHistogramRow { operation: 1, ..r.operation_histograms[0] });
    let o = &Report::from_recording(&r).operations[0];
    let [p50, p99, p999] = o.classes[0].quantiles_ns[..] else { panic!("{:?}", o.classes[0].quantiles_ns) };
    assert_eq!([p50.0, p99.0, p999.0], [0.5, 0.99, 0.999]);
    for ((_, e), low) in [(p50, 1_000.0), (p99, 5_000.0), (p999, 70_000.0)] {
        assert_eq!((e.low, e.high, e.level, e.n, e.source), (low, low + 100.0, 1.0, 1_500, Source::Exact));
        assert!(e.low <= e.value && e.value <= e.high, "{e:?}");
    }
    assert_eq!(o.classes[1].quantiles_ns[0].1.low, 90_000.0);
    // Of all 1,505: 1,489.95 is the last that takes 5 us, 1,503.5 is of class B.
    let ends: Vec<f64> = o.quantiles_ns.iter().map(|(_, e)| e.low).collect();
    assert_eq!((ends, o.quantiles_ns[0].1.n), (vec![1_000.0, 5_000.0, 90_000.0], 1_505));
    let text = serde_json::to_string(o).unwrap();
    assert!(text.contains(r#""quantiles_ns":[[0.5,"#), "{text}");
}

/// Screening costs 2 us: about half of it lies between the time stamps, between nothing and all of it, a quarter dearer.
#[test]
fn what_screening_puts_into_a_response_time_is_taken_out() {
    let mut r = recording();
    r.operation_histograms = times(A, &[(1_000, 800), (70_000, 700)]);
    let o = &Report::from_recording(&r).operations[0];
    let [(_, p50), (_, p99), _] = o.classes[0].quantiles_ns[..] else { panic!() };
    assert_eq!((p50.low, p50.high, p99.low, p99.high), (0.0, 1_100.0, 67_500.0, 70_100.0));
    assert!(
        (0.0..200.0).contains(&p50.value) && (69_000.0..69_200.0).contains(&p99.value),
        "{p50:?} {p99:?}"
    );
}

#[test]
fn operations_in_no_histogram_can_have_taken_any_time() {
    let mut r = recording();
    r.meta.operations[0].screen_ns = 0.0;
    // 15 of A (1 %) are in none, nor is B.
    r.operation_histograms = times(A, &[(1_000, 1_000), (5_000, 485)]);
    let o = &Report::from_recording(&r).operations[0];
    assert_eq!(o.classes[1].quantiles_ns, []);
    let [(_, p50), (_, p99), (_, p999)] = o.classes[0].quantiles_ns[..] else { panic!() };
    assert_eq!((p50.low, p50.high), (1_000.0, 1_100.0));
    assert_eq!((p99.low, p99.high), (5_000.0, f64::INFINITY));
    assert_eq!((p999.low, p999.high), (5_000.0, f64::INFINITY));
    assert_eq!(o.quantiles_ns[0].1.high, 1_100.0);
}

#[test]
fn operations_whose_end_was_not_seen_can_have_taken_any_time() {
    let mut r = recording();
    r.meta.operations[0].screen_ns = 0.0;
    r.operation_histograms = times(A, &[(1_000, 760), (5_000, 730), (70_000, 10)]);
    let quantiles = |r: &Recording| Report::from_recording(r).operations[0].classes[0].quantiles_ns.clone();
    assert_eq!((quantiles(&r)[0].1.low, quantiles(&r)[0].1.high), (1_000.0, 1_100.0));
    // 30 more began (2 %): were they all long, the median would lie among those of 5 us.
    r.operation_windows[1].begun += 30;
    let [(_, p50), (_, p99), _] = quantiles(&r)[..] else { panic!() };
    assert_eq!((p50.low, p50.high, p99.low, p99.high), (1_000.0, 5_100.0, 5_000.0, f64::INFINITY));
    assert_eq!(
        Report::from_recording(&r).operations[0].untimed,
        35,
        "with the five of B, which have no histogram"
    );
}

#[test]
fn a_class_with_one_recorded_operation_is_open_upwards_and_survives_json() {
    let mut r = recording();
    r.operations.truncate(1);
    let report = Report::from_recording(&r);
    let measure = report.operations[0].classes[0].measure.unwrap();
    assert_eq!((measure.low, measure.high), (0.0, f64::INFINITY));
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap().operations, report.operations);
}

#[test]
fn operations_that_never_came_are_listed_without_classes() {
    let mut r = recording();
    r.operation_windows.clear();
    r.operations.clear();
    r.operation_cycles.clear();
    let report = Report::from_recording(&r);
    let o = &report.operations[0];
    assert_eq!((o.population, o.classes.len(), o.mix_difference, o.cycle_s), (0, 0, None, None));
    assert_eq!((o.average_rate, o.rate_hz), (0.0, 0.0));
}

#[test]
fn operations_begun_without_recording_are_in_no_stratum() {
    let mut r = recording();
    // Of 1,000 that began at a rate of a half, 300 found recording off, and 50 that were drawn found no quota: with
    // those that would not have been drawn 100.
    let w = &mut r.operation_windows[1];
    (w.rate, w.off, w.no_quota, w.not_drawn) = (0.5, 300, 50, 640);
    let a = &Report::from_recording(&r).operations[0].classes[0];
    assert_eq!(a.unobserved, 400 + 300 + 100);
    let measure = a.measure.unwrap();
    assert!((measure.value - (100.0 * 10.0 + 600.0 * 100.0) / 700.0).abs() < 1e-9, "{measure:?}");
}

/// Class A: slices of 10 operations each, at 12, 16 and 20 on average, of 100 in each of three seconds; two in five are recorded.
fn sliced() -> Recording {
    let mut r = recording();
    r.meta.operations[0].inner_classes = vec![1, 2];
    let mut windows = Vec::new();
    for second in 0..3 {
        // Two functions inside: the second one is attached later.
        for (class_id, begins) in [(1, 0.1), (2, 0.12)] {
            let second = f64::from(second);
            windows.push(crate::recording::WindowRow {
                class_id,
                ..super::window(WindowKind::Trace, second + begins, second + 0.2, 100)
            });
        }
    }
    r.windows = windows;
    let in_second = |second: u64| OperationWindowRow {
        off: 90,
        not_drawn: 6,
        sliced: Some(true),
        ..window(A, second, (100, 1e6), 4, 1)
    };
    r.operation_windows = (0..3).map(in_second).collect();
    let taken = |second: u64| {
        let mut rows = rows(A, 4, 12 + 4 * second, 1);
        rows.iter_mut().for_each(|row| row.begin_ns += second * S + S / 7);
        rows
    };
    r.operations = (0..3).flat_map(taken).collect();
    r
}

#[test]
fn slices_are_units_and_stand_for_what_began_between_them() {
    let a = &Report::from_recording(&sliced()).operations[0].classes[0];
    assert_eq!((a.population, a.recorded, a.unobserved), (300, 12, 0));
    let measure = a.measure.unwrap();
    // Between three slices at 12, 16 and 20: 0.9 * 16 / 3. In them, where two in five are recorded: the squares of 12 deviations from 16 are
    // 2 (25 + 9) + 4 + 2 (9 + 25).
    let (between, within): (f64, f64) = (0.9 * 16.0 / 3.0, 0.1 * 0.6 * (140.0 / 11.0) / 12.0);
    let df = (between + within).powi(2) / (between.powi(2) / 2.0 + within.powi(2) / 11.0);
    let half = crate::stats::t_quantile(0.95, df) * (between + within).sqrt();
    assert!((measure.value - 16.0).abs() < 1e-9, "{measure:?}");
    assert!(
        (measure.high - 16.0 - half).abs() < 1e-9 && (16.0 - half - measure.low).abs() < 1e-9,
        "{measure:?}"
    );
    // Time off CPU likewise.
    assert!(a.off_cpu_ns.unwrap().high > 20_000.0, "{a:?}");
}

#[test]
fn what_began_between_slices_is_unobserved_where_the_recording_does_not_tell_of_slices() {
    for told in [None, Some(false)] {
        let mut r = sliced();
        r.operation_windows.iter_mut().for_each(|w| w.sliced = told);
        let a = &Report::from_recording(&r).operations[0].classes[0];
        assert_eq!((a.unobserved, a.measure.unwrap().value), (270, 16.0));
    }
    // Nobody knows of what could not be paid for.
    let mut r = sliced();
    let w = &mut r.operation_windows[0];
    (w.rate, w.not_drawn, w.no_quota) = (0.5, 4, 2);
    assert_eq!(Report::from_recording(&r).operations[0].classes[0].unobserved, 4);
}

/// The slices are those of another operation: this one's stretch began while all was attached.
#[test]
fn what_began_between_slices_of_another_operation_is_unobserved() {
    let mut r = sliced();
    let stretches: Vec<u64> = r.operation_windows.iter().map(|w| w.stretch).collect();
    assert_eq!(stretches[0], stretches[1]);
    (r.operation_windows[0].off, r.operation_windows[0].sliced) = (0, Some(false));
    let all = Report::from_recording(&r).operations[0].classes[0].unobserved;
    assert_eq!(all, 180);
}

#[test]
fn a_single_slice_bounds_no_mean() {
    let mut r = sliced();
    r.operations.truncate(4);
    let measure = Report::from_recording(&r).operations[0].classes[0].measure.unwrap();
    assert_eq!((measure.value, measure.low, measure.high), (12.0, 0.0, f64::INFINITY));
}

#[test]
fn functions_inside_operations_count_every_call_and_time_some() {
    let mut r = recording();
    r.meta.operations[0].inner_classes = vec![1];
    r.classes.push(class(1, "f"));
    let mut w = super::window(WindowKind::Trace, 0.0, 10.0, 100);
    // 100 of 1,000 calls were inside recorded operations.
    (w.attempted, w.gated, w.returns, w.sum_ns, w.max_ns) = (1_000, 900, 100, 1_000_000, 20_000);
    r.windows = vec![w];
    let report = Report::from_recording(&r);
    let f = row(&report, "f");
    assert_eq!((f.calls, f.counted), (Some(Estimate::exact(1_000.0, 1_000)), Some(1_000)));
    let mean = f.mean_ns.unwrap();
    assert!(mean.source != Source::Exact && mean.high > mean.value, "{mean:?}");
    assert!(f.notes.iter().any(|n| n.contains("inside recorded operations")), "{:?}", f.notes);
}

/// Traps in a program that sleeps between its operations are dearer than in a tight loop.
#[test]
fn what_is_ours_in_a_response_time_holds_cold_traps_of_functions() {
    let mut r = sliced();
    r.meta.cost.cold = Price { ns: 200.0, min_ns: 100.0, max_ns: 300.0, n: 7 };
    let mean = |r: &Recording| Report::from_recording(r).operations[0].classes[0].mean_ns;
    r.meta.operations[0].screen_ns = 0.0;
    let whole = mean(&r);
    r.meta.operations[0].screen_ns = 100.0;
    let by_tracepoints = mean(&r);
    assert_eq!((whole.value - by_tracepoints.value, whole.low - by_tracepoints.low), (50.0, 125.0));
    r.meta.operations[0].by_functions = true;
    let by_functions = mean(&r);
    // Half of the price, and what is cold after so long an operation; twice the price and 4.8 times the most that is cold.
    let cold_ns = 200.0 * (1.0 - (-(whole.value - 50.0) / 1_000.0).exp());
    assert!((whole.value - by_functions.value - 50.0 - cold_ns).abs() < 1e-6, "{whole:?} {by_functions:?}");
    assert_eq!(by_functions.low, (whole.low - 1_640.0).max(0.0));
    assert_eq!(by_functions.high, whole.high);
    // A short operation meets little of cold caches.
    for w in &mut r.operation_windows {
        (w.population_sum_ns, w.population_squares_ns2) =
            (w.population as f64 * 150.0, w.population as f64 * 22_500.0);
    }
    let short = mean(&r).value;
    assert!((80.0..95.0).contains(&short), "{short}");
}
