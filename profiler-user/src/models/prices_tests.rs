use super::tests::call;
use super::*;
use crate::recording::sample::{classes, meta, recording};
use crate::recording::{Overwrite, Writer};
use profiler_core::class::{ExitMode, RecordKind, SiteClass};
use profiler_core::models::{Class, Value};
use profiler_core::recording::{ClassRow, EventRow, HistogramRow, WindowRow};

/// What calibration found for the probes of a call, and what they take in this target, ns.
const HOST_NS: u64 = 17_584;
const OWN_NS: u64 = 12_200;

/// Calls of eight sizes that take 0.3 ns for each byte, and a pair of sites that measured what their probes take. `is_disturbed`: the function was attached meanwhile.
fn measured(is_disturbed: bool) -> Models {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    let function = ClassRow {
        kind: RecordKind::Record,
        site_class: SiteClass::Stepped,
        exit_mode: ExitMode::ReturnSites,
        stamps_ns: Some(HOST_NS as f64),
        ..classes()[0].clone()
    };
    let pair = ClassRow {
        class_id: 1,
        stamps_of: Some(0),
        kind: RecordKind::Latency,
        exit_mode: ExitMode::ExitSites,
        ..function.clone()
    };
    w.push(&[function, pair]);
    let rows: Vec<EventRow> = (0..3_200_u64)
        .map(|i| {
            let n = 1_000 << (i % 16 / 2);
            // Up to 300 ns more or less than that.
            let noise_ns = (i * 7_919) % 600;
            let row = call(i, 0, [None, Some(n), None, None, None, None], 0);
            let duration_ns = Some(OWN_NS - 300 + noise_ns + 3 * n / 10);
            EventRow { duration_ns, nested_cost_ns: Some(HOST_NS), ..row }
        })
        .collect();
    w.push(&rows);
    let window = |class_id: u32, at_ms: u64, returns: u64, mean_ns: u64| WindowRow {
        class_id,
        start_ns: at_ms * 1_000_000,
        end_ns: (at_ms + 5) * 1_000_000,
        attempted: returns,
        kept: returns,
        returns,
        gated: 0,
        dropped: 0,
        unwound: 0,
        omitted: 0,
        open: 0,
        sum_ns: returns * mean_ns,
        nested_cost_ns: 0,
        ..recording().windows[0].clone()
    };
    let shift_ms = if is_disturbed { 0 } else { 50 };
    let of_pair = (0..4).map(|i| window(1, 1_000 + 100 * i, 100, OWN_NS));
    let of_function = (0..32).map(|i| window(0, 1_000 + 100 * i + shift_ms, 100, OWN_NS + 20_000));
    w.push(&of_pair.chain(of_function).collect::<Vec<_>>());
    w.push(&[HistogramRow { class_id: 1, low_ns: OWN_NS - 150, high_ns: OWN_NS + 150, count: 400 }]);
    w.finish(&meta()).unwrap();
    Models::read(&path, &[]).unwrap()
}

#[test]
fn what_a_pair_measured_in_this_target_is_taken_off_each_call() {
    let models = measured(false);
    let function = &models.functions[0];
    let model = function.found.as_ref().unwrap();
    assert_eq!(model.class, Class::Linear, "{:?}", model.formula());
    let left_out = model.basis.left_out;
    assert_eq!(left_out.not_returned, 0, "{left_out:?}");
    let values = [Value::Unsigned(32_000)];
    let predicted_ns = model.predict(&values, 0.9).unwrap().ns;
    assert!((predicted_ns / 9_600.0 - 1.0).abs() < 0.1, "{predicted_ns}: {:?}", model.formula());
    // Sizes whose calls take less than that price is known to are told, and no more of them than that.
    assert!((400..=4 * 400).contains(&left_out.short), "{left_out:?}");
    // Nothing that was measured while the function's own programs ran counts.
    let disturbed = measured(true);
    let model = disturbed.functions[0].found.as_ref();
    let off_ns = model.ok().and_then(|model| model.predict(&values, 0.9)).map(|told| told.ns);
    assert!(off_ns.is_none_or(|ns| (ns / 9_600.0 - 1.0).abs() > 0.2), "{off_ns:?}");
}
