use super::*;
use crate::class::ClassId;
use crate::estimate::Estimate;
use crate::recording::{WindowKind, plain_window};

/// A row of this share, whose rate is known to `half` of it from so many calls.
fn row(name: &str, share: f64, half: f64, counted: u64) -> Row {
    let estimate = |value: f64, half: f64| Estimate {
        low: value * (1.0 - half),
        high: value * (1.0 + half),
        level: 0.95,
        ..Estimate::exact(value, counted)
    };
    Row {
        name: name.to_owned(),
        short_name: String::new(),
        named: false,
        module: String::new(),
        class_id: Some(1),
        decision: "burst".to_owned(),
        share: Some(estimate(share, 0.1)),
        share_long_run: None,
        self_share: None,
        calls: None,
        rate_hz: Some(estimate(1e5, half)),
        on_cpu_ns: None,
        mean_ns: None,
        correction_ns: 0.0,
        quantiles_ns: Vec::new(),
        precision: None,
        counted: Some(counted),
        watched_share: 0.01,
        dropped: 0,
        attempted: counted,
        site_class: None,
        kind: None,
        notes: Vec::new(),
    }
}

/// A run of 10 s.
const RUN: RunUse = RunUse { length_s: 10.0, bursts_cut: 0, charged_s: 0.19, allowed_s: 0.2 };

/// What is said of these rows of a run of 10 s with so many windows.
fn said(rows: &[Row], windows: usize) -> Vec<(String, Limit)> {
    let window = plain_window(ClassId(1), WindowKind::Burst, (0, 1_000_000), 10);
    let windows = BTreeMap::from([(1, vec![&window; windows])]);
    of(rows, &windows, &BTreeMap::new(), RUN).into_iter().map(|s| (s.name, s.limit)).collect()
}

#[test]
fn three_rows_by_share_and_width_and_what_was_named_before() {
    let mut rows = vec![
        row("narrow", 0.9, 0.04, 10_000),
        row("small", 0.01, 0.5, 100),
        row("wide", 0.5, 0.4, 100),
        row("wider", 0.5, 0.6, 100),
        row("named", 0.001, 0.2, 1_000),
    ];
    rows[4].named = true;
    let watched = |name: &str| (name.to_owned(), Limit::Watched);
    assert_eq!(said(&rows, 10), ["named", "wider", "wide"].map(watched));
    assert!(said(&rows[..1], 10).is_empty());
}

#[test]
fn nothing_is_promised_that_plans_do_not_aim_at() {
    let windows = BTreeMap::new();
    let of = |row: Row| of(&[row], &windows, &BTreeMap::new(), RUN);
    // A quarter of the variance would be 3.5 %: plans stop at 5.
    assert_eq!(of(row("f", 0.5, 0.07, 10_000))[0].then, Some(0.05));
    assert!(of(row("f", 0.5, 0.054, 10_000)).is_empty());
    let named = of(Row { named: true, ..row("f", 0.5, 0.07, 10_000) });
    assert!((named[0].then.unwrap() - 0.035).abs() < 1e-12, "{named:?}");
}

#[test]
fn what_more_of_the_budget_does_not_mend_is_told_apart() {
    // 400 calls alone would leave 10 %: windows differ.
    let rows = [row("spread", 0.5, 0.4, 400), row("chance", 0.4, 0.1, 400)];
    let limits =
        |rows: &[Row], windows| -> Vec<Limit> { said(rows, windows).into_iter().map(|s| s.1).collect() };
    assert_eq!(limits(&rows, 150), [Limit::Windows, Limit::Watched]);
    assert_eq!(limits(&rows, 50), [Limit::Watched, Limit::Watched], "more windows can be made");
    // Chance makes 9.8 of 12 %: four times the calls would leave 8.5, not 6.
    assert_eq!(limits(&[row("both", 0.5, 0.12, 400)], 150), [Limit::Windows]);
    assert_eq!(limits(&rows, 80)[0], Limit::Windows, "of one function there are no more than ten a second");
    let mut hidden = row("hidden", 0.5, 0.1, 400);
    if let Some(rate) = &mut hidden.rate_hz {
        rate.high = f64::INFINITY;
    }
    assert_eq!(limits(&[hidden], 50), [Limit::Price]);
}

#[test]
fn what_the_agent_s_limit_cut_is_said() {
    let window = plain_window(ClassId(1), WindowKind::Burst, (0, 1_000_000), 10);
    let windows = BTreeMap::from([(1, vec![&window; 20])]);
    let limit = |cut| {
        of(&[row("f", 0.5, 0.4, 400)], &windows, &BTreeMap::new(), RunUse { bursts_cut: cut, ..RUN })[0].limit
    };
    assert_eq!((limit(5), limit(30)), (Limit::Watched, Limit::Agent));
}

#[test]
fn a_budget_that_was_not_spent_is_no_limit() {
    let windows = BTreeMap::new();
    let limit = |charged_s: f64| {
        of(&[row("f", 0.5, 0.4, 400)], &windows, &BTreeMap::new(), RunUse { charged_s, ..RUN })[0].limit
    };
    assert_eq!((limit(0.13), limit(0.1)), (Limit::Watched, Limit::Unspent));
}

#[test]
fn what_the_price_leaves_unknown_stays() {
    let windows = BTreeMap::new();
    let of =
        |price: f64| of(&[row("f", 0.5, 0.2, 400)], &windows, &BTreeMap::from([(1, price)]), RUN).remove(0);
    assert_eq!((of(0.0).limit, of(0.0).then), (Limit::Watched, Some(0.1)));
    // 0.16 of 0.2: of the 0.12 that windows leave, 0.06 go.
    let limited = of(0.16);
    assert!((limited.then.unwrap() - 0.16f64.hypot(0.06)).abs() < 1e-9, "{limited:?}");
    assert_eq!(limited.limit, Limit::Price);
}
