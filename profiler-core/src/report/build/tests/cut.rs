use super::*;
use crate::recording::OpenCallRow;

fn open_call(elapsed_ns: u64) -> OpenCallRow {
    OpenCallRow { time_ns: START + 1_000_000_000, class_id: 1, tid: 7, elapsed_ns }
}

/// Ten windows of 50 ms; 60 calls of 20 to 60 ms ended, 40 had not after 30 to 80 ms.
fn bursts_of_long_calls() -> Recording {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    for i in 0..10_u64 {
        let mut w = window(WindowKind::Burst, i as f64, i as f64 + 0.05, 10);
        (w.returns, w.open, w.sum_ns, w.max_ns) = (6, 4, 6 * 40_000_000, 60_000_000);
        r.windows.push(w);
    }
    let bucket = |i: u64| HistogramRow {
        class_id: 1,
        low_ns: (20 + 4 * i) * 1_000_000,
        high_ns: (24 + 4 * i) * 1_000_000,
        count: 6,
    };
    r.histograms = (0..10).map(bucket).collect();
    r.open_calls = (0..40).map(|i| open_call((30 + i * 50 / 40) * 1_000_000)).collect();
    r
}

#[test]
fn calls_that_had_not_ended_lengthen_mean_and_quantiles() {
    let mut r = bursts_of_long_calls();
    let report = Report::from_recording(&r);
    let f = row(&report, "f");
    let mean = f.mean_ns.unwrap();
    assert!(mean.value > 45e6 && mean.high == f64::INFINITY && mean.n == 100, "{mean:?}");
    assert!(f.notes.iter().any(|n| n.contains("not estimable above 78.000 ms: 40 calls")), "{:?}", f.notes);
    assert!(f.quantiles_ns[0].1.value > 44e6, "{:?}", f.quantiles_ns);
    // What nothing bounds is not shown as if it were the longest call.
    assert!(f.quantiles_ns.iter().all(|(p, _)| *p < 0.99), "{:?}", f.quantiles_ns);
    assert_no_nan(&report);

    // The same without their times, as before: they might have been like the others.
    r.open_calls.clear();
    let before = Report::from_recording(&r);
    let naive = row(&before, "f").mean_ns.unwrap();
    assert!((naive.value - 40e6).abs() < 1.0 && naive.high.is_finite(), "{naive:?}");
}

#[test]
fn a_call_cut_off_in_a_run_seen_whole_leaves_the_count_exact() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    let mut w = window(WindowKind::Trace, 0.0, 10.0, 1_000);
    (w.returns, w.open, w.sum_ns, w.max_ns) = (999, 1, 1_998_000, 9_000);
    r.windows = vec![w];
    r.histograms = vec![HistogramRow { class_id: 1, low_ns: 1_900, high_ns: 2_100, count: 999 }];
    r.open_calls = vec![open_call(500)];
    let report = Report::from_recording(&r);
    let f = row(&report, "f");
    assert_eq!(f.calls.unwrap(), Estimate::exact(1_000.0, 1_000));
    let mean = f.mean_ns.unwrap();
    assert!((mean.value - 2_000.0).abs() < 1.0 && mean.high < 2_010.0, "{mean:?}");
    assert!(f.notes.iter().any(|n| n.contains("Kaplan-Meier")), "{:?}", f.notes);
    // One that was still going after all others had ended: nothing bounds the mean.
    r.open_calls = vec![open_call(5_000_000)];
    let report = Report::from_recording(&r);
    let endless = row(&report, "f").mean_ns.unwrap();
    assert_eq!(endless.high, f64::INFINITY);
    assert!(endless.value >= 2_000.0 && endless.low <= endless.value);
}

#[test]
fn only_calls_that_had_not_ended() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    let mut w = window(WindowKind::Burst, 0.0, 0.05, 3);
    w.open = 3;
    r.windows = vec![w];
    r.open_calls = vec![open_call(40_000_000), open_call(55_000_000), open_call(20_000_000)];
    let report = Report::from_recording(&r);
    let f = row(&report, "f");
    assert!(f.quantiles_ns.is_empty());
    assert!(f.mean_ns.is_some_and(|m| m.low == 0.0 && m.high == f64::INFINITY));
    assert_no_nan(&report);
}
