//! speedscope's file format: one sampled profile per thread, samples in order of time.

use super::stacks::{NO_STACK, Stacks, name};
use profiler_core::recording::{FrameRow, Recording};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// The profile as JSON. Schema: <https://www.speedscope.app/file-format-schema.json>.
pub(super) fn profile(recording: &Recording) -> Value {
    let stacks = Stacks::of(recording);
    let mut frames: Vec<Value> = vec![json!({ "name": NO_STACK })];
    let mut index: HashMap<(String, String, u32), usize> = HashMap::new();
    let mut frame = |f: &FrameRow| -> usize {
        *index.entry((name(f), f.file.clone(), f.line)).or_insert_with(|| {
            let mut value = json!({ "name": name(f) });
            if !f.file.is_empty() {
                value["file"] = json!(f.file);
                value["line"] = json!(f.line);
            }
            frames.push(value);
            frames.len() - 1
        })
    };
    // Thread to (samples, weights).
    let mut threads: BTreeMap<u32, (Vec<Vec<usize>>, Vec<u64>)> = BTreeMap::new();
    let mut samples: Vec<_> = recording.samples.iter().collect();
    samples.sort_by_key(|s| s.time_ns);
    for s in samples {
        let mut stack: Vec<usize> = stacks.frames(s).iter().rev().map(|f| frame(f)).collect();
        if stack.is_empty() {
            stack.push(0);
        }
        let thread = threads.entry(s.tid).or_default();
        thread.0.push(stack);
        thread.1.push(s.period_ns);
    }
    let profiles: Vec<Value> = threads
        .into_iter()
        .map(|(tid, (samples, weights))| {
            let end: u64 = weights.iter().sum();
            json!({
                "type": "sampled", "name": format!("thread {tid} (CPU time)"), "unit": "nanoseconds",
                "startValue": 0, "endValue": end, "samples": samples, "weights": weights,
            })
        })
        .collect();
    json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": format!("{} (pid {})", recording.meta.exe, recording.meta.pid),
        "exporter": format!("tithe {}", recording.meta.tithe_version),
        "activeProfileIndex": 0,
        "shared": { "frames": frames },
        "profiles": profiles,
    })
}
