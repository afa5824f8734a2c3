//! The log of a run.

use super::*;
use crate::recording::{ChangeKind, ChangeRow};

fn plan(plan: u32, at_s: u64, class_id: u32, decision: &str) -> PlanRow {
    PlanRow {
        time_ns: START + at_s * S,
        plan,
        class_id,
        decision: decision.into(),
        duty: 1.0,
        rate_hz: 1.0,
        rate_low_hz: 1.0,
        rate_high_hz: 1.0,
        rho: 0.0,
        weight: 1.0,
        tau_s: 1e-6,
        cost: 0.0,
        reason: String::new(),
        sampling_hz: 49.0,
        value: 1.0,
        upper_bound: 1.0,
        of_widths: None,
    }
}

fn change(at_ms: u64, kind: ChangeKind, class_id: Option<u32>, text: &str) -> ChangeRow {
    ChangeRow { time_ns: START + at_ms * 1_000_000, kind, class_id, plan: None, text: text.into() }
}

#[test]
fn plans_are_told_by_what_changed_and_repeats_are_one_entry() {
    let mut r = empty();
    r.classes = (0..6).map(|i| class(i, &format!("f{i}"))).collect();
    for i in 0..6 {
        r.plans.push(plan(1, 1, i, if i < 5 { "trace" } else { "sample" }));
        r.plans.push(plan(
            2,
            5,
            i,
            if i == 0 {
                "burst"
            } else if i == 5 {
                "sample"
            } else {
                "trace"
            },
        ));
        r.plans.push(plan(
            3,
            8,
            i,
            if i == 0 {
                "burst"
            } else if i == 5 {
                "sample"
            } else {
                "trace"
            },
        ));
    }
    r.changes = vec![
        ChangeRow { plan: Some(2), ..change(5_000, ChangeKind::Plan, None, "f0 now runs at 9,000 calls/s") },
        change(2_000, ChangeKind::Trip, Some(0), "first"),
        change(4_000, ChangeKind::Trip, Some(0), "last"),
        change(3_000, ChangeKind::Trip, Some(0), "second"),
        change(3_500, ChangeKind::Modules, None, "liba.so came"),
        change(6_500, ChangeKind::Modules, None, "liba.so came"),
        change(4_500, ChangeKind::Modules, None, "liba.so went"),
    ];
    let log = Report::from_recording(&r).log;
    let short: Vec<String> = log
        .iter()
        .map(|e| format!("{:.1} {:.1} {} {} {}", e.time_s, e.last_s, e.times, e.subject, e.text))
        .collect();
    assert_eq!(
        short,
        [
            "1.0 1.0 1 plan 1 5 of 6 functions traced, 0 in bursts, 49 samples per CPU second; traced: f0, f1, f2, 2 more",
            "2.0 4.0 3 f0 last",
            "3.5 6.5 2  liba.so came",
            "4.5 4.5 1  liba.so went",
            "5.0 5.0 1 plan 2 4 of 6 functions traced, 1 in bursts, 49 samples per CPU second; now in bursts: f0; because f0 now \
             runs at 9,000 calls/s",
            "8.0 8.0 1 plan 3 4 of 6 functions traced, 1 in bursts, 49 samples per CPU second; the same functions as before",
        ]
    );
}

#[test]
fn what_is_only_sampled_again_is_said_and_names_that_two_classes_have_get_their_module() {
    let mut r = empty();
    r.classes = vec![class(0, "f"), ClassRow { module: "/usr/lib/liby.so".into(), ..class(1, "f") }];
    r.plans = vec![plan(1, 1, 0, "trace"), plan(1, 1, 1, "burst"), plan(2, 2, 0, "sample")];
    let log = Report::from_recording(&r).log;
    assert!(log[0].text.ends_with("; traced: libx.so:f"), "{}", log[0].text);
    assert!(log[1].text.ends_with("; now only sampled: libx.so:f, liby.so:f"), "{}", log[1].text);
}
