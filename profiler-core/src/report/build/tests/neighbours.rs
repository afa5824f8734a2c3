//! Windows in which several classes were watched at once: what the others' hits cost is no time of the target's own.

use super::*;

/// A survey window of 1 ms in which a class has `hits` hits at 1 us each.
fn together(class_id: u32, hits: u64) -> WindowRow {
    WindowRow { class_id, tau_ns: 1_000.0, ..window(WindowKind::Survey, 1.0, 1.001, hits) }
}

fn with_prices_known() -> Recording {
    let mut r = empty();
    for p in r.meta.cost.hit.values_mut() {
        *p = Price::fixed(1_000.0);
    }
    for (id, name) in [(1, "f"), (2, "g"), (3, "h")] {
        r.classes.push(class(id, name));
    }
    r
}

#[test]
fn hits_of_others_in_the_same_window_are_no_time_of_the_target() {
    let mut r = with_prices_known();
    r.windows = vec![together(1, 100), together(2, 200), together(3, 300)];
    // Long before: costs nobody else anything.
    r.windows.push(WindowRow { class_id: 3, tau_ns: 1_000.0, ..window(WindowKind::Survey, 0.1, 0.2, 5_000) });
    let report = Report::from_recording(&r);
    // 1 ms less 600 us is what the target had for itself.
    for (name, hits) in [("f", 100.0), ("g", 200.0)] {
        let rate = row(&report, name).rate_hz.unwrap();
        assert!((rate.value / (hits / 0.4e-3) - 1.0).abs() < 0.01, "{name}: {rate:?}");
    }
}

#[test]
fn others_that_overlap_count_by_the_part_that_they_share() {
    let mut r = with_prices_known();
    r.windows = vec![together(1, 100)];
    // The second half of the window, and as long after it.
    let w = window(WindowKind::Survey, 1.0005, 1.0015, 400);
    r.windows.push(WindowRow { class_id: 2, tau_ns: 1_000.0, ..w });
    let rate = row(&Report::from_recording(&r), "f").rate_hz.unwrap();
    assert!((rate.value / (100.0 / 0.7e-3) - 1.0).abs() < 0.01, "{rate:?}");
}

/// The link is in the text for some milliseconds after the window: those hits are nobody's time within it, and no calls of it.
#[test]
fn hits_after_the_end_of_a_short_window_do_not_count() {
    let mut r = with_prices_known();
    r.windows = vec![
        WindowRow { kept: 100, gated: 69, attempted: 169, ..together(1, 0) },
        WindowRow { kept: 100, gated: 500, attempted: 600, ..together(2, 0) },
    ];
    let rate = row(&Report::from_recording(&r), "f").rate_hz.unwrap();
    assert!((rate.value / (100.0 / 0.8e-3) - 1.0).abs() < 0.01, "{rate:?}");
}

/// One look that its neighbours swallowed says little; it must not take the upper end from what was watched for seconds.
#[test]
fn a_look_that_neighbours_swallowed_does_not_unmake_a_rate() {
    let mut r = with_prices_known();
    r.windows = vec![
        WindowRow { tau_ns: 1_000.0, ..window(WindowKind::Trace, 2.0, 6.0, 4_000) },
        together(1, 1),
        together(2, 980),
    ];
    let rate = row(&Report::from_recording(&r), "f").rate_hz.unwrap();
    assert!(rate.high.is_finite() && (rate.value / 1_000.0 - 1.0).abs() < 0.5, "{rate:?}");
}

/// While hits of the one that tripped were turned away the others were watched on, and it cost as much as before.
#[test]
fn what_the_tripped_one_had_turned_away_is_cost_of_its_neighbours() {
    let mut r = with_prices_known();
    let tripped = WindowRow { kept: 200, gated: 200, attempted: 400, tripped: true, ..together(2, 0) };
    r.windows = vec![
        // Twice as long as that of the tripped one.
        WindowRow { tau_ns: 1_000.0, ..window(WindowKind::Survey, 1.0, 1.002, 100) },
        tripped,
    ];
    let rate = row(&Report::from_recording(&r), "f").rate_hz.unwrap();
    assert!((rate.value / (100.0 / 1.5e-3) - 1.0).abs() < 0.01, "{rate:?}");
}

/// The thread that calls one function may not be the one that pays for another.
#[test]
fn of_several_threads_the_others_cost_is_not_sure() {
    let mut r = with_prices_known();
    r.stacks.push(frame(1, 0, "f", None));
    r.samples = (0..100).map(|i| SampleRow { tid: 42 + (i % 4) as u32, ..sample(i, 1) }).collect();
    r.windows = vec![together(1, 100), together(2, 700)];
    let rate = row(&Report::from_recording(&r), "f").rate_hz.unwrap();
    let unwatched = 100.0 / 0.9e-3;
    assert!(rate.low < unwatched && rate.value > unwatched, "{rate:?}");
}
