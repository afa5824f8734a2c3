//! The log: what the run changed of what it does, when and why. Plans are told by what they changed; other changes of one
//! kind and class are one entry, which says how often, when first and when last.

use super::{Recording, file_name};
use crate::recording::{ChangeKind, PlanRow};
use crate::report::LogEntry;
use std::collections::BTreeMap;

/// Names in one list.
const NAMES: usize = 3;

/// The entries, by the time of their first change.
pub(super) fn entries(recording: &Recording) -> Vec<LogEntry> {
    let at = |time_ns: u64| time_ns.saturating_sub(recording.meta.start_ns) as f64 * 1e-9;
    let mut merged: BTreeMap<(ChangeKind, Option<u32>, &str), LogEntry> = BTreeMap::new();
    let mut why: BTreeMap<u32, &str> = BTreeMap::new();
    for change in &recording.changes {
        if let (ChangeKind::Plan, Some(plan)) = (change.kind, change.plan) {
            why.insert(plan, &change.text);
            continue;
        }
        let time_s = at(change.time_ns);
        // Of a class the last reason stands for all of them.
        let told_apart = if change.class_id.is_some() { "" } else { change.text.as_str() };
        let entry = merged.entry((change.kind, change.class_id, told_apart)).or_insert_with(|| LogEntry {
            time_s,
            last_s: time_s,
            times: 0,
            kind: change.kind,
            subject: change.class_id.map(|id| name_of(recording, id)).unwrap_or_default(),
            text: String::new(),
        });
        entry.times += 1;
        entry.time_s = entry.time_s.min(time_s);
        if time_s >= entry.last_s {
            entry.last_s = time_s;
            entry.text.clone_from(&change.text);
        } else if entry.text.is_empty() {
            entry.text.clone_from(&change.text);
        }
    }
    let mut entries: Vec<LogEntry> = merged.into_values().collect();
    let mut plans: BTreeMap<u32, BTreeMap<u32, &PlanRow>> = BTreeMap::new();
    for row in &recording.plans {
        plans.entry(row.plan).or_default().insert(row.class_id, row);
    }
    let mut before = None;
    for (number, rows) in &plans {
        let Some(first) = rows.values().next() else { continue };
        let time_s = at(first.time_ns);
        let mut text = describe(recording, rows, before);
        if let Some(why) = why.get(number) {
            text.push_str(&format!("; because {why}"));
        }
        entries.push(LogEntry {
            time_s,
            last_s: time_s,
            times: 1,
            kind: ChangeKind::Plan,
            subject: format!("plan {number}"),
            text,
        });
        before = Some(rows);
    }
    entries.sort_by(|a, b| a.time_s.total_cmp(&b.time_s).then(a.kind.cmp(&b.kind)));
    entries
}

/// What a plan does, and what of it is new.
fn describe(
    recording: &Recording,
    rows: &BTreeMap<u32, &PlanRow>,
    before: Option<&BTreeMap<u32, &PlanRow>>,
) -> String {
    let count = |decision: &str| rows.values().filter(|r| r.decision == decision).count();
    let hz = rows.values().next().map_or(0.0, |r| r.sampling_hz);
    let (traced, bursts) = (count("trace"), count("burst"));
    let mut text = format!(
        "{traced} of {} functions traced, {bursts} in bursts, {hz:.0} samples per CPU second",
        rows.len()
    );
    let is = |rows: &BTreeMap<u32, &PlanRow>, id: u32, decision: &str| {
        rows.get(&id).is_some_and(|r| r.decision == decision)
    };
    let mut list = |label: &str, ids: Vec<u32>| {
        if !ids.is_empty() {
            text.push_str(&format!("; {label}: {}", names(recording, &ids)));
        }
    };
    match before {
        None => list("traced", rows.keys().copied().filter(|id| is(rows, *id, "trace")).collect()),
        Some(old) => {
            let now = |decision: &str| -> Vec<u32> {
                rows.keys().copied().filter(|id| is(rows, *id, decision) && !is(old, *id, decision)).collect()
            };
            let (trace, burst) = (now("trace"), now("burst"));
            let dropped: Vec<u32> = old
                .keys()
                .copied()
                .filter(|id| !is(old, *id, "sample"))
                .filter(|id| !is(rows, *id, "trace") && !is(rows, *id, "burst"))
                .collect();
            let same = trace.is_empty() && burst.is_empty() && dropped.is_empty();
            list("now traced", trace);
            list("now in bursts", burst);
            list("now only sampled", dropped);
            if same {
                text.push_str("; the same functions as before");
            }
        }
    }
    text
}

fn names(recording: &Recording, ids: &[u32]) -> String {
    let mut text: Vec<String> = ids.iter().take(NAMES).map(|id| name_of(recording, *id)).collect();
    if ids.len() > NAMES {
        text.push(format!("{} more", ids.len() - NAMES));
    }
    text.join(", ")
}

/// Name of a class; with its module where another class has the same.
fn name_of(recording: &Recording, id: u32) -> String {
    let Some(class) = recording.classes.iter().find(|c| c.class_id == id) else {
        return format!("class {id}");
    };
    let shared = recording.classes.iter().any(|c| c.class_id != id && c.name == class.name);
    if shared { format!("{}:{}", file_name(&class.module), class.name) } else { class.name.clone() }
}
