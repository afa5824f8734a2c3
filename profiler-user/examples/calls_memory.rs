//! Writes a recording of ten million steps, to measure what reading single operations of it takes.
//!
//! `cargo run --release -p profiler-user --example calls_memory -- big.tithe [STEPS] [STEPS OF AN OPERATION]`, then
//! `/usr/bin/time -v tithe calls big.tithe --operation NAME --slowest 10`. What it says of the run is taken from `big.meta.json`, the `meta.json` of any recording with
//! an operation.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use profiler_core::recording::{
    CallSiteRow, CallerRule, CallsMeta, Meta, OperationClassRow, OperationRow, StepRow,
};
use profiler_user::recording::{Overwrite, Writer};
use std::path::PathBuf;

/// Threads that take steps.
const THREADS: u64 = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().ok_or("say where: calls_memory big.tithe")?);
    let steps: u64 = args.next().map_or(Ok(10_000_000), |n| n.parse())?;
    let inner: u64 = args.next().map_or(Ok(100), |n| n.parse())?;
    let mut meta: Meta = serde_json::from_slice(&std::fs::read(path.with_extension("meta.json"))?)?;
    let operation = meta.operations.first().ok_or("meta.json has no operation")?.clone();
    meta.start_ns = 1_000_000_000;
    let classes: Vec<u32> = (0..8).collect();
    meta.calls = Some(CallsMeta {
        asked: vec!["*".into()],
        tails_known: classes.clone(),
        classes,
        stack_span_bytes: 8 << 20,
    });
    let mut writer = Writer::create(&path, None, Overwrite::Recording, &meta)?;
    writer.push(&[OperationClassRow {
        operation: operation.operation,
        class_id: 100,
        operation_name: operation.name.clone(),
        class_name: operation.name.clone(),
    }]);
    writer.push(&(0..8).map(site).collect::<Vec<_>>());
    let mut noise = 1_u64;
    for number in 0..steps / THREADS / inner {
        for tid in 0..THREADS {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let begin_ns = meta.start_ns + (number * THREADS + tid) * 300_000;
            let before = number * inner;
            let duration_ns = 200_000 + (noise >> 47);
            // Noise as in a real run: what compresses to nothing costs nothing to read.
            writer.push(
                &(0..inner)
                    .map(|i| {
                        step(
                            tid,
                            before + i + 1,
                            begin_ns + 100 + i * 1_500 + ((noise >> 20).rotate_left(i as u32) & 0x3ff),
                            i,
                        )
                    })
                    .collect::<Vec<_>>(),
            );
            writer.push(&[row(
                operation.operation,
                tid,
                begin_ns,
                duration_ns.max(inner * 1_600),
                before,
                inner,
            )]);
        }
    }
    let finished = writer.finish(&meta)?;
    println!("{} rows, {:.1} bytes each", finished.rows, finished.bytes as f64 / finished.rows as f64);
    Ok(())
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

fn row(operation: u32, tid: u64, begin_ns: u64, duration_ns: u64, before: u64, inner: u64) -> OperationRow {
    OperationRow {
        operation,
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
