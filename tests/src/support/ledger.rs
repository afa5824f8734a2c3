//! The worst second of a recording, told so that its cause can be read from a failed test.

use profiler_core::recording::{LedgerRow, Recording};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Room on both sides of the worst interval, ns.
const AROUND_NS: u64 = 1_500_000_000;

/// What an interval cost over the CPU time that the target had for itself.
fn overhead(rows: &[&LedgerRow]) -> f64 {
    let charged: f64 = rows.iter().filter(|r| r.charge.counts()).map(|r| r.cost_ns as f64).sum();
    let cpu = rows.first().map_or(0.0, |r| r.target_cpu_ns as f64);
    charged / (cpu - charged).max(1.0)
}

/// The ledger's dearest interval and its neighbours line by line, the windows that touch them, and what was decided meanwhile.
pub fn worst_second_in_words(recorded: &Recording) -> String {
    let mut intervals: BTreeMap<u64, Vec<&LedgerRow>> = BTreeMap::new();
    for row in &recorded.ledger {
        intervals.entry(row.time_ns).or_default().push(row);
    }
    let worst = intervals.iter().max_by(|a, b| overhead(a.1).total_cmp(&overhead(b.1)));
    let Some((worst_ns, rows)) = worst else { return "the ledger is empty".to_owned() };
    let begin_ns = worst_ns.saturating_sub(rows[0].interval_ns);
    let (from_ns, to_ns) = (begin_ns.saturating_sub(AROUND_NS), worst_ns + AROUND_NS);
    let name = |id: Option<u32>| {
        let class = id.and_then(|id| recorded.classes.iter().find(|c| c.class_id == id));
        class.map_or("-", |c| c.name.as_str())
    };
    let start_ns = recorded.meta.start_ns;
    let at = |ns: u64| ns.saturating_sub(start_ns) as f64 * 1e-9;
    let mut text = String::new();
    // Writing into a string does not fail.
    for (end_ns, rows) in intervals.range(from_ns..=to_ns) {
        let first = rows[0];
        let _ = writeln!(
            text,
            "{:.3} to {:.3} s: {:.1} %, CPU {:.1} ms, allowed {:.1} ms",
            at(end_ns.saturating_sub(first.interval_ns)),
            at(*end_ns),
            100.0 * overhead(rows),
            first.target_cpu_ns as f64 * 1e-6,
            first.allowed_ns as f64 * 1e-6
        );
        for row in rows {
            let ms = row.cost_ns as f64 * 1e-6;
            let _ =
                writeln!(text, "    {:?} {}: {} for {ms:.2} ms", row.charge, name(row.class_id), row.units);
        }
    }
    for w in recorded.windows.iter().filter(|w| w.end_ns >= from_ns && w.start_ns <= to_ns) {
        let _ = writeln!(
            text,
            "  window {:.4} to {:.4} s: {} {} of {} kept, {} gated, {} ended, at {:.0} ns{}",
            at(w.start_ns),
            at(w.end_ns),
            name(Some(w.class_id)),
            w.kept,
            w.attempted,
            w.gated,
            w.returns,
            w.tau_ns,
            if w.tripped { ", tripped" } else { "" }
        );
    }
    for c in recorded.changes.iter().filter(|c| (from_ns..=to_ns).contains(&c.time_ns)) {
        let _ = writeln!(text, "  {:.4} s: {:?} {}: {}", at(c.time_ns), c.kind, name(c.class_id), c.text);
    }
    text
}
