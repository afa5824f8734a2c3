//! Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open: recorded operations and calls as
//! slices, samples as instants with their stack, the monitoring's own cost as a counter.

use super::stacks::{NO_STACK, Stacks, name};
use profiler_core::recording::{Charge, Meta, OperationRow, Recording};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The trace as JSON. Times are microseconds since the start of the recording.
pub(super) fn trace(recording: &Recording) -> Value {
    let meta = &recording.meta;
    let us = |ns: u64| ns.saturating_sub(meta.start_ns) as f64 / 1e3;
    let names: HashMap<u32, &str> = recording.classes.iter().map(|c| (c.class_id, c.name.as_str())).collect();
    let mut events: Vec<Value> = Vec::new();
    let mut threads: BTreeSet<(u32, u32)> = BTreeSet::new();
    for e in &recording.events {
        threads.insert((e.pid, e.tid));
        let name = names.get(&e.class_id).copied().unwrap_or("?");
        let hex: Vec<Option<String>> = e.args.iter().map(|a| a.map(|a| format!("0x{a:x}"))).collect();
        let mut value = json!({
            "name": name, "cat": "call", "pid": e.pid, "tid": e.tid, "ts": us(e.time_ns), "args": { "registers": hex },
        });
        if let Value::Object(context) = json!(e.context) {
            for (what, known) in context.into_iter().filter(|(_, known)| !known.is_null()) {
                value["args"][what] = known;
            }
        }
        match e.duration_ns {
            Some(d) => {
                value["ph"] = json!("X");
                value["dur"] = json!(d as f64 / 1e3);
            }
            // The end was not seen: an instant, not a slice of an invented length.
            None => {
                value["ph"] = json!("i");
                value["s"] = json!("t");
            }
        }
        events.push(value);
    }
    let classes: HashMap<u32, &str> =
        recording.operation_classes.iter().map(|c| (c.class_id, c.class_name.as_str())).collect();
    for row in &recording.operations {
        threads.insert((row.pid.unwrap_or(meta.pid), row.tid));
        events.push(operation(row, classes.get(&row.class_id).copied().unwrap_or("?"), meta));
    }
    let stacks = Stacks::of(recording);
    for s in &recording.samples {
        threads.insert((s.pid, s.tid));
        let frames = stacks.frames(s);
        let leaf = frames.first().map_or_else(|| NO_STACK.to_owned(), |f| name(f));
        let stack: Vec<String> = frames.iter().map(|f| name(f)).collect();
        events.push(json!({
            "name": leaf, "cat": "sample", "ph": "i", "s": "t", "pid": s.pid, "tid": s.tid, "ts": us(s.time_ns),
            "args": { "stack": stack.join("\n"), "cpu": s.cpu, "in_kernel": s.in_kernel, "cpu_time_ns": s.period_ns },
        }));
    }
    // Overhead by interval: what was charged to the target / the target's CPU time.
    let mut overhead: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for row in recording.ledger.iter().filter(|r| r.charge != Charge::Bystanders) {
        let sum = overhead.entry(row.time_ns).or_default();
        sum.0 += row.cost_ns;
        sum.1 = sum.1.max(row.target_cpu_ns);
    }
    for (time, (cost, cpu)) in overhead {
        let own = cpu.saturating_sub(cost).max(1);
        events.push(json!({
            "name": "monitoring overhead, %", "ph": "C", "pid": meta.pid, "ts": us(time),
            "args": { "predicted": 100.0 * cost as f64 / own as f64 },
        }));
    }
    document(events, &threads, meta)
}

/// A recorded operation: a slice. One that had not ended is an instant.
pub(super) fn operation(row: &OperationRow, class: &str, meta: &Meta) -> Value {
    let mut value = json!({
        "name": class, "cat": "operation", "pid": row.pid.unwrap_or(meta.pid), "tid": row.tid,
        "ts": row.begin_ns.saturating_sub(meta.start_ns) as f64 / 1e3,
        "args": {
            "off_cpu_us": row.off_cpu_ns.map(|ns| ns as f64 / 1e3), "monitoring_us": row.cost_ns as f64 / 1e3,
            "calls": row.calls, "measure": row.measure,
        },
    });
    if row.censored {
        value["ph"] = json!("i");
        value["s"] = json!("t");
        value["args"]["open"] =
            json!(format!("not ended after {} us, when the run ended", row.duration_ns as f64 / 1e3));
    } else {
        value["ph"] = json!("X");
        value["dur"] = json!(row.duration_ns as f64 / 1e3);
    }
    value
}

/// The document around events of these threads, by process and thread.
pub(super) fn document(mut events: Vec<Value>, threads: &BTreeSet<(u32, u32)>, meta: &Meta) -> Value {
    for (pid, tid) in threads {
        events.push(json!({
            "name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": { "name": format!("thread {tid}") },
        }));
    }
    events.push(json!({ "name": "process_name", "ph": "M", "pid": meta.pid, "args": { "name": meta.exe } }));
    json!({ "displayTimeUnit": "ns", "traceEvents": events, "otherData": { "exporter": format!("tithe {}", meta.tithe_version) } })
}
