use super::*;
use crate::class::{ClassId, ExitMode, RecordKind, SiteClass, Tier};
use crate::cost::{CostModel, Price};
use crate::recording::plain_window;
use crate::recording::{
    AgentUse, CallDurations, Charge, FORMAT_VERSION, FrameRow, HistogramRow, LedgerRow, Losses, Meta,
    SampleRow, SlowestAnswer,
};

const S: u64 = 1_000_000_000;
const START: u64 = 50 * S;

/// A run of 10 s on one busy thread at 2 %, prices known exactly, with nothing in it.
pub(in crate::report::build) fn empty() -> Recording {
    let mut cost = CostModel::assumed();
    for p in cost.hit.values_mut() {
        *p = Price::fixed(p.ns);
    }
    Recording {
        meta: Meta {
            format_version: FORMAT_VERSION,
            tithe_version: "0".into(),
            host: "h".into(),
            kernel: "k".into(),
            cpus: 2,
            pid: 42,
            exe: "/bin/x".into(),
            cmdline: vec!["x".into(), "-v".into()],
            start_unix_ns: 0,
            start_ns: START,
            end_ns: Some(START + 10 * S),
            end_reason: Some("duration".into()),
            budget: OverheadBudget::Share(0.02),
            tier: Tier::A,
            cost,
            sample_period_ns: 10_000_000,
            kernel_memory_bytes: 1,
            agent: AgentUse { cpu_ns: S / 10, max_rss_bytes: 5, ..AgentUse::default() },
            measured: None,
            losses: Losses::default(),
            not_observed: vec![],
            warnings: vec![],
            operations: vec![],
            slowest_answer: None,
            private_memory: None,
            forks_held: None,
            calls: None,
            models: None,
            words: vec![],
        },
        classes: vec![],
        event_durations: CallDurations::default(),
        windows: vec![],
        histograms: vec![],
        open_calls: vec![],
        beside: vec![],
        events: vec![],
        samples: vec![],
        trap_samples: vec![],
        stacks: vec![],
        ledger: vec![],
        plans: vec![],
        words: vec![],
        operation_classes: vec![],
        operations: vec![],
        operation_windows: vec![],
        operation_histograms: vec![],
        operation_cycles: vec![],
        changes: vec![],
        damage: vec![],
    }
}

pub(in crate::report::build) fn class(class_id: u32, name: &str) -> ClassRow {
    ClassRow {
        class_id,
        name: name.into(),
        symbol: name.into(),
        aliases: vec![],
        module: "/usr/lib/libx.so".into(),
        build_id: String::new(),
        address: 0,
        size_bytes: 1,
        site: 0,
        site_class: SiteClass::Push,
        exit_mode: ExitMode::ReturnLink,
        kind: RecordKind::Latency,
        weight: 1.0,
        tau_ns: 700.0,
        notes: vec![],
        stamps_ns: None,
        stamps_of: None,
        named: None,
        parameters: None,
        prototype: None,
    }
}

mod beside;
mod cut;
mod durations;
mod hidden;
mod in_place;
mod log;
mod neighbours;
mod operations;
mod resting;
mod rests;
mod rising;
mod rows;

/// A window of class 1 from `from` to `to` seconds of the run.
fn window(kind: WindowKind, from: f64, to: f64, kept: u64) -> WindowRow {
    let at = |s: f64| START + (s * 1e9) as u64;
    plain_window(ClassId(1), kind, (at(from), at(to)), kept)
}

fn row<'r>(report: &'r Report, name: &str) -> &'r Row {
    report.rows.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no row {name}"))
}

fn frame(stack_id: u64, depth: u32, function: &str, class_id: Option<u32>) -> FrameRow {
    FrameRow {
        stack_id,
        depth,
        address: 0,
        module: "/usr/lib/libx.so".into(),
        function: function.into(),
        file: String::new(),
        line: 0,
        inlined: false,
        class_id,
    }
}

pub(in crate::report::build) fn sample(i: u64, stack_id: u64) -> SampleRow {
    SampleRow {
        time_ns: START + i * 10_000_000,
        pid: 42,
        tid: 42,
        cpu: 0,
        stack_id,
        in_kernel: false,
        period_ns: 10_000_000,
        truncated: false,
    }
}

fn ledger(second: u64, charge: Charge, class_id: Option<u32>, cost_ns: u64) -> LedgerRow {
    LedgerRow {
        time_ns: START + second * S,
        interval_ns: S,
        charge,
        class_id,
        units: 1,
        cost_ns,
        target_cpu_ns: S,
        allowed_ns: S / 50,
    }
}

fn assert_no_nan(report: &Report) {
    // JSON has no NaN: serde writes null, which `Estimate` does not read back.
    let text = serde_json::to_string(report).unwrap();
    assert_eq!(&serde_json::from_str::<Report>(&text).unwrap(), report);
}

#[test]
fn an_empty_recording_gives_an_empty_report() {
    let mut r = empty();
    let report = Report::from_recording(&r);
    assert!(report.rows.is_empty() && report.warnings.is_empty(), "{:?}", report.warnings);
    assert_eq!((report.duration_s, report.target.as_str()), (10.0, "x -v"));
    assert_no_nan(&report);
    // Killed before anything was written: a run of no length.
    r.meta.end_ns = None;
    r.classes.push(class(1, "f"));
    let report = Report::from_recording(&r);
    assert_eq!(report.duration_s, 0.0);
    assert_no_nan(&report);
    assert!(report.warnings[0].contains("did not end this recording"));
}

#[test]
fn a_class_attached_all_the_time_is_exact() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    // Two links in turn: a seam is no gap.
    r.windows =
        vec![window(WindowKind::Trace, 4.0, 10.0, 77_000), window(WindowKind::Trace, 0.0, 4.0, 23_456)];
    let report = Report::from_recording(&r);
    let f = row(&report, "f");
    assert_eq!(f.calls, Some(Estimate::exact(100_456.0, 100_456)));
    assert_eq!(f.rate_hz, Some(Estimate::exact(10_045.6, 100_456)));
    assert_eq!((f.watched_share, f.decision.as_str(), f.module.as_str()), (1.0, "trace", "libx.so"));
    assert!(f.notes.is_empty());
    assert_no_nan(&report);
}

#[test]
fn exact_over_the_attached_time_is_said() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    r.windows = vec![window(WindowKind::Trace, 0.04, 9.96, 5_000)];
    let f = &Report::from_recording(&r).rows[0];
    assert_eq!(f.calls, Some(Estimate::exact(5_000.0, 5_000)));
    assert_eq!(f.notes, ["exact over the 99.2 % of the run that it was attached"]);
}

#[test]
fn a_class_attached_in_part_is_scaled_with_an_interval() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    for (i, n) in [95, 105, 110, 90, 100, 97].into_iter().enumerate() {
        r.windows.push(window(WindowKind::Burst, i as f64 * 1.5, i as f64 * 1.5 + 0.5, n));
    }
    let report = Report::from_recording(&r);
    let f = row(&report, "f");
    let calls = f.calls.unwrap();
    assert_eq!(calls.source, Source::Burst);
    assert!((f.watched_share - 0.3).abs() < 1e-9);
    // 597 calls in 3 s of 10.
    assert!((calls.value - 1_990.0).abs() < 1e-6 && calls.low > 1_850.0 && calls.high < 2_150.0, "{calls:?}");
    assert!(calls.low < 1_960.0 && calls.high > 2_020.0, "{calls:?}");
    let rate = f.rate_hz.unwrap();
    assert!((rate.value - 199.0).abs() < 1e-9 && rate.low < 190.0 && rate.high > 207.0, "{rate:?}");
    assert_eq!(f.decision, "burst");
}

#[test]
fn a_gap_or_a_trip_is_not_exact() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    r.windows = vec![window(WindowKind::Trace, 0.0, 5.0, 500), window(WindowKind::Trace, 5.02, 10.0, 498)];
    assert_eq!(Report::from_recording(&r).rows[0].calls.unwrap().source, Source::Burst);
    let mut w = window(WindowKind::Trace, 0.0, 6.0, 500);
    (w.tripped, w.gated, w.attempted) = (true, 40, 540);
    r.windows = vec![w];
    r.meta.slowest_answer = Some(SlowestAnswer { answers: 4, closing_ns: 61_000_000, ..Default::default() });
    let report = Report::from_recording(&r);
    assert_eq!((report.rows[0].calls.unwrap().source, report.receipt.trips), (Source::Burst, 1));
    assert_eq!(report.receipt.slowest_answer, r.meta.slowest_answer);
    // What the used-up quota turned away were calls.
    assert_eq!(report.rows[0].calls.unwrap().n, 540);
    // They came after the window's end: 499 waits of 6 s.
    assert!((report.rows[0].rate_hz.unwrap().value - (0.6 * 500.0 + 0.4 * 499.0) / 6.0).abs() < 1e-9);
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
}

#[test]
fn counts_that_do_not_add_up_are_a_warning() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    let mut w = window(WindowKind::Trace, 0.0, 10.0, 500);
    w.attempted = 501;
    r.windows = vec![w];
    let report = Report::from_recording(&r);
    assert_eq!(report.warnings.len(), 1);
    assert!(
        report.warnings[0].contains("counts of f do not add up in 1 of 1 windows: 501 hits attempted, 500")
    );
}

#[test]
fn losses_widen_counts_means_and_quantiles() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    let mut w = window(WindowKind::Trace, 0.0, 10.0, 1_000);
    (w.returns, w.sum_ns, w.max_ns) = (1_000, 2_000_000, 9_000);
    r.windows = vec![w.clone()];
    r.histograms = vec![HistogramRow { class_id: 1, low_ns: 1_900, high_ns: 2_100, count: 1_000 }];
    let whole = Report::from_recording(&r);
    let mean = whole.rows[0].mean_ns.unwrap();
    assert_eq!((mean, mean.source), (Estimate::exact(2_000.0, 1_000), Source::Exact));
    let median = whole.rows[0].quantiles_ns[0].1;
    assert_eq!((median.low, median.high, median.source), (1_900.0, 2_100.0, Source::Exact));

    // Timed as operations, not as calls.
    r.windows = vec![WindowRow { sum_ns: 0, max_ns: 0, ..w.clone() }];
    r.histograms.clear();
    let bound = Report::from_recording(&r);
    assert_eq!((bound.rows[0].mean_ns, bound.rows[0].calls.unwrap().value), (None, 1_000.0));

    r.histograms = vec![HistogramRow { class_id: 1, low_ns: 1_900, high_ns: 2_100, count: 1_000 }];
    (w.attempted, w.dropped) = (1_100, 100);
    r.windows = vec![w];
    let lossy = Report::from_recording(&r);
    let f = &lossy.rows[0];
    assert_eq!((f.calls.unwrap().value, f.calls.unwrap().low, f.dropped), (1_100.0, 1_000.0, 100));
    let wide = f.mean_ns.unwrap();
    // 1 in 11 calls unknown, between 1.9 and 9 us.
    assert!(wide.high >= 2_000.0 + (9_000.0 - 2_000.0) / 11.0 - 1.0 && wide.low < 2_000.0, "{wide:?}");
    assert_eq!(f.quantiles_ns[2].1.high, f64::INFINITY, "the lost ones may be the slowest");
    assert_no_nan(&lossy);
    assert!(f.notes.iter().any(|n| n == "100 of 1100 hits lost"));
    assert_eq!((lossy.receipt.hits_dropped, lossy.receipt.hits_attempted), (100, 1_100));
    r.meta.losses.no_thread_state = 60;
    let stateless = Report::from_recording(&r);
    let says = |n: &String| n.starts_with("100 of 1100 hits lost, also for want of kernel memory");
    assert!(stateless.rows[0].notes.iter().any(says), "{:?}", stateless.rows[0].notes);
}

#[test]
fn nested_probe_cost_is_taken_out_and_shown() {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    let mut w = window(WindowKind::Trace, 0.0, 10.0, 100);
    (w.returns, w.sum_ns, w.nested_cost_ns, w.max_ns) = (100, 1_000_000, 140_000, 12_000);
    r.windows = vec![w];
    let f = &Report::from_recording(&r).rows[0];
    assert_eq!((f.mean_ns.unwrap().value, f.correction_ns), (8_600.0, 1_400.0));
}

/// 1,000 samples: 300 in `leaf` below `f` below `main`, 100 in `f` itself, recursion in 50 of them.
fn sampled() -> Recording {
    let mut r = empty();
    r.classes.push(class(1, "f"));
    r.stacks = vec![
        frame(1, 0, "leaf", None),
        frame(1, 1, "f", Some(1)),
        frame(1, 2, "main", None),
        frame(2, 0, "f", None), // no class in the frame: found by name
        frame(2, 1, "f", Some(1)),
        frame(2, 2, "main", None),
        frame(3, 0, "main", None),
        frame(4, 0, "f", Some(1)),
    ];
    let mut inlined = frame(5, 0, "f", None);
    inlined.inlined = true;
    r.stacks.push(inlined);
    r.samples = (0..1_000)
        .map(|i| {
            let stack = match i * 7 % 1_000 {
                0..300 => 1,
                300..350 => 2,
                350..400 => 4,
                400..420 => 5,
                420..450 => 0,
                _ => 3,
            };
            sample(i, stack)
        })
        .collect();
    r
}

#[test]
fn shares_count_a_function_once_a_sample_and_self_time_from_the_innermost_frame() {
    let report = Report::from_recording(&sampled());
    let f = report.rows.iter().find(|r| r.class_id == Some(1)).unwrap();
    let (share, own, long) = (f.share.unwrap(), f.self_share.unwrap(), f.share_long_run.unwrap());
    assert!((share.value - 0.4).abs() < 1e-9 && share.n == 400, "{share:?}");
    assert!((own.value - 0.1).abs() < 1e-9);
    assert!(share.low < 0.4 && share.high > 0.4 && long.low <= share.low && long.high >= share.high);
    assert_eq!((share.source, f.decision.as_str()), (Source::Sampled, "sample"));
    let main = row(&report, "main");
    assert!((main.share.unwrap().value - 0.9).abs() < 1e-9 && main.class_id.is_none());
    assert_eq!(row(&report, "leaf").share.unwrap().n, 300);
    // The inlined copy is a row of its own: the class's probe does not see it.
    assert_eq!(report.rows.iter().filter(|r| r.name == "f").count(), 2);
    // Without calls the order is that of self time: 55 % in `main` itself, 30 % in `leaf`.
    let first: Vec<&str> = report.rows.iter().take(2).map(|r| r.name.as_str()).collect();
    assert_eq!(first, ["main", "leaf"]);
    assert!((report.target_cpu.value - 1.0).abs() < 1e-9, "10 s of samples in 10 s");
    assert_no_nan(&report);
}

#[test]
fn mean_on_cpu_time_is_rho_over_f_and_derived() {
    let mut r = sampled();
    r.windows = vec![window(WindowKind::Trace, 0.0, 10.0, 40_000)];
    let report = Report::from_recording(&r);
    let f = report.rows.iter().find(|r| r.class_id == Some(1)).unwrap();
    let on_cpu = f.on_cpu_ns.unwrap();
    // 0.4 CPU s/s at 4,000 calls/s: 100 us.
    assert!((on_cpu.value - 100_000.0).abs() < 1.0 && on_cpu.low < 1e5 && on_cpu.high > 1e5, "{on_cpu:?}");
    assert_eq!(on_cpu.source, Source::Derived);
}

#[test]
fn attached_without_hits_is_not_zero_calls() {
    let mut r = sampled();
    r.windows = vec![window(WindowKind::Trace, 0.0, 10.0, 0)];
    let report = Report::from_recording(&r);
    let f = report.rows.iter().find(|r| r.class_id == Some(1)).unwrap();
    assert!(f.calls.is_none() && f.rate_hz.is_none());
    assert!(f.notes.iter().any(|n| n.starts_with("attached but not firing: no call began")), "{:?}", f.notes);
    // Without samples in it, 0 is what was seen.
    r.samples.clear();
    assert_eq!(Report::from_recording(&r).rows[0].calls, Some(Estimate::exact(0.0, 0)));
}

#[test]
fn the_receipt_adds_up_the_ledger() {
    let mut r = empty();
    for s in 1..=10 {
        r.ledger.push(ledger(s, Charge::Traced, Some(1), 8_000_000));
        r.ledger.push(ledger(s, Charge::Samples, None, if s == 5 { 40_000_000 } else { 2_000_000 }));
        r.ledger.push(ledger(s, Charge::Bystanders, None, 1_000_000));
    }
    r.meta.budget = OverheadBudget::Share(0.01);
    r.ledger.iter_mut().for_each(|row| row.allowed_ns = 10_000_000);
    let report = Report::from_recording(&r);
    let c = &report.receipt;
    assert!((c.spent_s[&Charge::Traced] - 0.08).abs() < 1e-9);
    assert!((c.spent_s[&Charge::Bystanders] - 0.01).abs() < 1e-9);
    let charged = 0.08 + 0.018 + 0.04;
    assert!((c.predicted - charged / (10.0 - charged)).abs() < 1e-9, "bystanders are not the target's");
    assert!((c.worst_second - 0.048 / 0.952).abs() < 1e-9);
    assert!((c.target_cpu_s - (10.0 - charged)).abs() < 1e-9);
    assert!((c.agent_cpu - 0.01).abs() < 1e-12);
    assert!((report.target_cpu.value - (1.0 - charged / 10.0)).abs() < 1e-9);
    assert!(report.warnings.iter().any(|w| w.contains("above the budget of 1%")), "{:?}", report.warnings);
}

#[test]
fn an_idle_target_is_not_over_its_budget_within_what_was_allowed() {
    let mut r = empty();
    r.meta.budget = OverheadBudget::Share(0.01);
    // 1 ms of CPU time per second: 1 % of it would be 10 us, the floor gives 500 us.
    for s in 1..=10 {
        let row = ledger(s, Charge::Samples, None, 400_000);
        r.ledger.push(LedgerRow { target_cpu_ns: 1_400_000, allowed_ns: 500_000, ..row });
    }
    let report = Report::from_recording(&r);
    assert!((report.receipt.predicted - 0.4).abs() < 1e-9);
    assert!(report.warnings.iter().any(|w| w.contains("nearly idle")), "{:?}", report.warnings);
    assert!(!report.warnings.iter().any(|w| w.contains("above the budget")), "{:?}", report.warnings);
    // What was not allowed is above the budget, idle or not.
    r.ledger.iter_mut().for_each(|row| row.cost_ns = 600_000);
    let warnings = Report::from_recording(&r).warnings;
    assert!(warnings.iter().any(|w| w.contains("above the budget of 1%")), "{warnings:?}");
    // A budget per second knows no share.
    r.meta.budget = OverheadBudget::CpuPerSecond(5e-4);
    let warnings = Report::from_recording(&r).warnings;
    assert!(warnings.iter().any(|w| w.contains("above the budget")), "{warnings:?}");
    r.ledger.iter_mut().for_each(|row| row.cost_ns = 400_000);
    assert!(Report::from_recording(&r).warnings.is_empty());
}

#[test]
fn rates_are_undilated() {
    let mut r = empty();
    r.classes.push(class(1, "hot"));
    // 1e6 hits of 0.7 us in 1 s: 0.3 s of own time.
    let mut w = window(WindowKind::Survey, 2.0, 3.0, 1_000_000);
    w.tau_ns = 700.0;
    r.windows = vec![w];
    let rate = Report::from_recording(&r).rows[0].rate_hz.unwrap();
    assert!((rate.value / (1e6 / 0.3) - 1.0).abs() < 1e-9, "{rate:?}");
}

#[test]
fn the_last_plan_decides_and_order_does_not_matter() {
    let plan = |n: u32, decision: &str| PlanRow {
        time_ns: START + u64::from(n),
        plan: n,
        class_id: 1,
        decision: decision.into(),
        duty: 1.0,
        rate_hz: 1.0,
        rate_low_hz: 1.0,
        rate_high_hz: 1.0,
        rho: 0.1,
        weight: 1.0,
        tau_s: 1e-6,
        cost: 1e-6,
        reason: String::new(),
        sampling_hz: 99.0,
        value: 1.0,
        upper_bound: 1.0,
        of_widths: None,
    };
    let mut r = sampled();
    r.windows = vec![window(WindowKind::Trace, 0.0, 2.0, 10), window(WindowKind::Trace, 3.0, 4.0, 9)];
    r.plans = vec![plan(2, "burst"), plan(1, "trace")];
    let a = Report::from_recording(&r);
    assert_eq!(a.rows.iter().find(|r| r.class_id == Some(1)).unwrap().decision, "burst");
    r.windows.reverse();
    r.plans.reverse();
    r.samples.reverse();
    r.stacks.reverse();
    assert_eq!(Report::from_recording(&r), a);
}

#[test]
fn at_most_the_top_functions_are_listed() {
    let mut r = empty();
    for i in 0..300_u64 {
        r.stacks.push(frame(i + 1, 0, &format!("f{i}"), None));
        r.samples.push(sample(i, i + 1));
    }
    let report = Report::from_recording(&r);
    assert_eq!((report.rows.len(), report.samples), (TOP_FUNCTIONS, 300));
}
