//! Calls in order of single operations, for programs.

use super::calls::why;
use crate::calls::{Body, Calls, Chosen};
use profiler_core::calls::{CallTree, Completeness, Kind, Node};
use profiler_core::recording::{StepRow, WordRow, WordStatus};
use serde::Serialize;

/// What is written.
#[derive(Debug, Serialize)]
struct Json<'a> {
    operation: &'a str,
    bounds: &'a str,
    account: JsonAccount,
    slower_incomplete: usize,
    steps: u64,
    steps_outside: u64,
    operations: Vec<JsonOperation<'a>>,
    damage: &'a [String],
}

#[derive(Debug, Serialize)]
struct JsonAccount {
    operations: u64,
    complete: u64,
    incomplete_by_kernel: u64,
    incomplete_by_numbers: u64,
    open: u64,
    unnumbered: u64,
}

#[derive(Debug, Serialize)]
struct JsonOperation<'a> {
    class: &'a str,
    pid: Option<u32>,
    tid: u32,
    begin_ns: u64,
    response_ns: u64,
    off_cpu_ns: Option<u64>,
    monitoring_ns: u64,
    complete: bool,
    why_incomplete: Option<String>,
    steps: u64,
    ambiguous: usize,
    calls: Vec<JsonCall<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    words: Vec<JsonWord<'a>>,
}

/// A word of the target that was taken with an operation.
#[derive(Debug, Serialize)]
struct JsonWord<'a> {
    name: &'a str,
    at_end: bool,
    value: Option<i128>,
    status: WordStatus,
    depth: u32,
}

#[derive(Debug, Serialize)]
struct JsonCall<'a> {
    function: &'a str,
    class_id: u32,
    offset_ns: u64,
    /// Index of the call that it was made in; `null`: the operation itself. Absent where nesting cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<Option<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ambiguous: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    returned_after_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    returned_before_ns: Option<u64>,
}

/// The operations with all their calls.
///
/// # Errors
/// The encoder refuses.
pub fn calls_json(calls: &Calls) -> Result<String, serde_json::Error> {
    let a = &calls.account;
    let json = Json {
        operation: &calls.operation.name,
        bounds: &calls.operation.bounds,
        account: JsonAccount {
            operations: a.operations,
            complete: a.complete,
            incomplete_by_kernel: a.marked,
            incomplete_by_numbers: a.missing,
            open: a.open,
            unnumbered: a.unnumbered,
        },
        slower_incomplete: calls.slower_incomplete,
        steps: calls.steps,
        steps_outside: calls.outside,
        operations: calls.chosen.iter().map(|chosen| json_operation(calls, chosen)).collect(),
        damage: &calls.damage,
    };
    serde_json::to_string_pretty(&json)
}

fn json_operation<'a>(calls: &'a Calls, chosen: &'a Chosen) -> JsonOperation<'a> {
    let row = &chosen.row;
    let is_complete = chosen.completeness == Completeness::Complete;
    let (ambiguous, list) = match &chosen.body {
        Body::Tree(tree) => (tree.ambiguous(), tree_json(calls, tree, row.begin_ns)),
        Body::Steps(steps) => {
            let call = |step: &StepRow| JsonCall {
                function: calls.name(step.class_id),
                class_id: step.class_id,
                offset_ns: step.time_ns.saturating_sub(row.begin_ns),
                parent: None,
                kind: None,
                ambiguous: None,
                returned_after_ns: None,
                returned_before_ns: None,
            };
            (0, steps.iter().map(call).collect())
        }
        Body::TooMany => (0, Vec::new()),
    };
    JsonOperation {
        class: &chosen.class,
        pid: row.pid,
        tid: row.tid,
        begin_ns: row.begin_ns.saturating_sub(calls.meta.start_ns),
        response_ns: row.duration_ns,
        off_cpu_ns: row.off_cpu_ns,
        monitoring_ns: row.cost_ns,
        complete: is_complete,
        why_incomplete: (!is_complete).then(|| why(chosen.completeness)),
        steps: chosen.steps,
        ambiguous,
        calls: list,
        words: chosen.words.iter().filter_map(|row| json_word(calls, row)).collect(),
    }
}

fn json_word<'a>(calls: &'a Calls, row: &WordRow) -> Option<JsonWord<'a>> {
    let word = calls.meta.words.iter().find(|word| word.word == row.word)?;
    let value = |bits: u64| {
        if word.is_signed() { i128::from(bits.cast_signed()) } else { i128::from(bits) }
    };
    let WordRow { at_end, status, depth, .. } = *row;
    Some(JsonWord { name: &word.name, at_end, value: row.value.map(value), status, depth })
}

fn tree_json<'a>(calls: &'a Calls, tree: &CallTree, begin_ns: u64) -> Vec<JsonCall<'a>> {
    let call = |node: &Node| JsonCall {
        function: calls.name(node.class_id),
        class_id: node.class_id,
        offset_ns: node.time_ns.saturating_sub(begin_ns),
        parent: Some(node.link.parent),
        kind: Some(kind_word(node.link.kind)),
        ambiguous: Some(node.link.is_ambiguous),
        returned_after_ns: Some(node.bounds.at_least_ns),
        returned_before_ns: Some(node.bounds.at_most_ns),
    };
    tree.nodes.iter().map(call).collect()
}

/// The word of a kind in files.
pub(super) fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Call => "call",
        Kind::Tail => "tail",
        Kind::Signal => "signal",
    }
}
