//! Calls in order of single operations as Chrome trace events: slices inside the operation's.
//!
//! Exits are not recorded. A slice is drawn as far as the call can have lasted: to the step that proves that it had returned, cut where the next call in the same
//! one begins, so that slices nest. Its arguments say so, and what is known.

use super::calls_json::kind_word;
use super::chrome;
use crate::calls::{Body, Calls, Chosen};
use profiler_core::calls::CallTree;
use profiler_core::recording::OperationRow;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The trace as JSON. Times are microseconds since the start of the recording.
pub(super) fn trace(calls: &Calls) -> Value {
    let (mut events, mut threads) = (Vec::new(), BTreeSet::new());
    for chosen in &calls.chosen {
        let row = &chosen.row;
        threads.insert((row.pid.unwrap_or(calls.meta.pid), row.tid));
        let mut slice = chrome::operation(row, &chosen.class, &calls.meta);
        slice["args"]["complete"] = json!(matches!(chosen.body, Body::Tree(_)));
        events.push(slice);
        events.extend(inner(calls, chosen));
    }
    chrome::document(events, &threads, &calls.meta)
}

fn inner(calls: &Calls, chosen: &Chosen) -> Vec<Value> {
    let row = &chosen.row;
    match &chosen.body {
        Body::Tree(tree) => slices(calls, tree, row),
        Body::Steps(steps) => {
            let instant = |step: &profiler_core::recording::StepRow| {
                let mut event = event(calls, step.class_id, step.time_ns, row);
                event["ph"] = json!("i");
                event["s"] = json!("t");
                event["args"] = json!({ "nesting": "not known: steps of the operation are missing" });
                event
            };
            steps.iter().map(instant).collect()
        }
        Body::TooMany => Vec::new(),
    }
}

fn event(calls: &Calls, class_id: u32, time_ns: u64, row: &OperationRow) -> Value {
    json!({
        "name": calls.name(class_id), "cat": "step", "pid": row.pid.unwrap_or(calls.meta.pid), "tid": row.tid,
        "ts": time_ns.saturating_sub(calls.meta.start_ns) as f64 / 1e3,
    })
}

fn slices(calls: &Calls, tree: &CallTree, row: &OperationRow) -> Vec<Value> {
    let ends = ends(tree, row.begin_ns.saturating_add(row.duration_ns));
    let slice = |(node, end_ns): (&profiler_core::calls::Node, u64)| {
        let mut event = event(calls, node.class_id, node.time_ns, row);
        event["ph"] = json!("X");
        event["dur"] = json!(end_ns.saturating_sub(node.time_ns) as f64 / 1e3);
        event["args"] = json!({
            "end": "upper bound: exits are not recorded",
            "returned_after_us": node.bounds.at_least_ns as f64 / 1e3,
            "returned_before_us": node.bounds.at_most_ns as f64 / 1e3,
            "kind": kind_word(node.link.kind), "ambiguous": node.link.is_ambiguous,
        });
        event
    };
    tree.nodes.iter().zip(ends).map(slice).collect()
}

/// Where slices end, ns: those of calls in the same one follow one another, and all lie inside it.
fn ends(tree: &CallTree, end_ns: u64) -> Vec<u64> {
    let mut ends = vec![end_ns; tree.nodes.len()];
    let level = |calls: &[usize], limit: u64, ends: &mut Vec<u64>| {
        let begins = calls.iter().skip(1).map(|next| tree.nodes.get(*next).map(|node| node.time_ns));
        for (call, next) in calls.iter().zip(begins.chain([None])) {
            let (Some(node), Some(end)) = (tree.nodes.get(*call), ends.get_mut(*call)) else { continue };
            let bound = node.time_ns.saturating_add(node.bounds.at_most_ns);
            *end = bound.min(limit).min(next.unwrap_or(u64::MAX));
        }
    };
    level(&tree.roots, end_ns, &mut ends);
    // Calls in a call come after it.
    for (index, node) in tree.nodes.iter().enumerate() {
        let limit = ends.get(index).copied().unwrap_or(end_ns);
        level(&node.children, limit, &mut ends);
    }
    ends
}
