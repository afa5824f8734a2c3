//! Recordings of any size, with the noise of real ones: what compresses to nothing costs nothing to read.

use profiler_core::adapt::AdaptConfig;
use profiler_core::recording::{
    CallContext, CallPlace, CallSiteRow, CallerRule, CallsMeta, EventRow, Meta, OperationClassRow,
    OperationMeta, OperationRow, StepRow,
};
use profiler_user::recording::{Finished, Overwrite, RecordingError, Writer};
use std::path::Path;

/// Threads that call.
const THREADS: u64 = 8;
/// Start of the recording, ktime ns.
const START_NS: u64 = 1_000_000_000;

/// What its rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Steps of operations.
    Steps,
    /// Recorded calls.
    Calls,
}

/// Writes a recording with so many rows, and of steps so many in an operation.
pub fn write(
    path: &Path,
    mut meta: Meta,
    kind: Kind,
    (rows, inner): (u64, u64),
) -> Result<Finished, RecordingError> {
    meta.start_ns = START_NS;
    meta.operations = vec![operation()];
    let classes: Vec<u32> = (0..8).collect();
    meta.calls = (kind == Kind::Steps).then(|| CallsMeta {
        asked: vec!["*".into()],
        tails_known: classes.clone(),
        classes,
        stack_span_bytes: 8 << 20,
        notes: Vec::new(),
    });
    let mut writer = Writer::create(path, None, Overwrite::Recording, &meta)?;
    writer.push(&[OperationClassRow {
        operation: 0,
        class_id: 100,
        operation_name: "request".into(),
        class_name: "request".into(),
    }]);
    match kind {
        Kind::Steps => steps(&mut writer, rows, inner),
        Kind::Calls => calls(&mut writer, rows),
    }
    writer.finish(&meta)
}

fn operation() -> OperationMeta {
    OperationMeta {
        operation: 0,
        name: "request".into(),
        bounds: "request=handle".into(),
        policy: "tithe".into(),
        config: AdaptConfig::default(),
        measure: String::new(),
        screen_ns: 1_000.0,
        by_functions: true,
        inner_hit_ns: 700.0,
        inner_classes: Vec::new(),
        open_at_end: Some(0),
    }
}

/// The next number (Knuth's MMIX generator).
fn next(noise: &mut u64) -> u64 {
    *noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *noise >> 17
}

fn steps(writer: &mut Writer, steps: u64, inner: u64) {
    writer.push(&(0..8).map(site).collect::<Vec<_>>());
    let mut noise = 1_u64;
    for number in 0..steps / THREADS / inner {
        for tid in 0..THREADS {
            let begin_ns = START_NS + (number * THREADS + tid) * 300_000;
            let before = number * inner;
            let duration_ns = (200_000 + next(&mut noise) % 100_000).max(inner * 1_600);
            let rows: Vec<StepRow> = (0..inner)
                .map(|i| step(tid, before + i + 1, begin_ns + 100 + i * 1_500 + next(&mut noise) % 1_024, i))
                .collect();
            writer.push(&rows);
            writer.push(&[row(tid, begin_ns, duration_ns, before, inner)]);
        }
    }
}

fn calls(writer: &mut Writer, calls: u64) {
    let mut noise = 1_u64;
    for piece in 0..calls / 1_000 {
        let rows: Vec<EventRow> = (0..1_000)
            .map(|i| {
                let duration_ns = 300 + (next(&mut noise) % 10_000_000) / (1 + next(&mut noise) % 10_000);
                EventRow {
                    time_ns: START_NS + (piece * 1_000 + i) * 2_000 + next(&mut noise) % 1_000,
                    class_id: (i % 8) as u32,
                    pid: 1234,
                    tid: 1234 + (piece % THREADS) as u32,
                    duration_ns: Some(duration_ns),
                    args: [Some(next(&mut noise)), Some(i), None, None, None, None],
                    nested_cost_ns: Some(next(&mut noise) % 300),
                    place: CallPlace {
                        return_address: Some(0x40_0000 + 16 * (next(&mut noise) % 100)),
                        ..CallPlace::default()
                    },
                    context: CallContext::default(),
                }
            })
            .collect();
        writer.push(&rows);
    }
}

/// Function `class` calls the next one, in a frame of 0x40 bytes.
fn site(class: u32) -> CallSiteRow {
    CallSiteRow {
        return_address: 0x40_0000 + u64::from(class) * 0x100,
        pid: 1234,
        module: "/usr/bin/server".into(),
        offset: u64::from(class) * 0x100,
        function: format!("f{class}"),
        function_class: Some(class),
        caller: CallerRule::Sp,
        caller_value: 0x40,
        target_class: Some((class + 1) % 8),
        is_direct: Some(true),
        jumps_from: Some(vec![]),
        reached_from: None,
        since_ns: None,
        until_ns: None,
    }
}

/// Eight deep, again and again.
fn step(tid: u64, number: u64, time_ns: u64, i: u64) -> StepRow {
    let class = i % 8;
    let frame = time_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17;
    StepRow {
        time_ns,
        number,
        class_id: class as u32,
        pid: 1234,
        tid: tid as u32,
        slot: 0x7ffd_0000_0000 + (tid << 24) - 0x40 * class,
        return_address: 0x40_0000 + (class + 7) % 8 * 0x100,
        frame,
    }
}

fn row(tid: u64, begin_ns: u64, duration_ns: u64, before: u64, inner: u64) -> OperationRow {
    OperationRow {
        operation: 0,
        class_id: 100,
        tid: tid as u32,
        begin_ns,
        duration_ns,
        calls: inner,
        inner_ns: 0,
        measure: inner,
        cost_ns: 1_000,
        off_cpu_ns: None,
        cycle: 0,
        stretch: 0,
        censored: false,
        pid: Some(1234),
        steps_before: Some(before),
        steps_after: Some(before + inner),
        incomplete: Some(false),
    }
}
