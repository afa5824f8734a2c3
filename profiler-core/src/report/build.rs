//! From a recording to the report: the one place where rows become numbers.
//!
//! What it is: [`Report::from_recording`], a pure function of the tables, so that the report made live and the
//! one made a year later are the same. Samples become shares (`build/samples.rs`), windows become calls, rates
//! and durations (`build/calls.rs`), the ledger becomes the receipt.
//! What it does not do: no text, no layout; it reads no file and decides nothing.

mod calls;
pub(super) mod durations;
mod in_place;
mod log;
mod samples;
pub(super) mod stamps;
mod threads;
mod unseen;
mod windows;

use super::{LimitKept, PlanWorth, Receipt, Report, Row, sharper};
use crate::class::Source;
use crate::estimate::Estimate;
use crate::ledger::{FLOOR_CPU_PER_S, LedgerSummary};
use crate::recording::{AgentUse, ClassRow, PlanRow, Recording, WindowKind, WindowRow};
use crate::run::agent_limit::FROM_NS;
use crate::stats::{LEVEL, ratio};
use crate::units::OverheadBudget;
use calls::Calls;
use samples::{FunctionShares, Key, Shares};
use std::collections::{BTreeMap, BTreeSet};
use windows::RunContext;

/// Functions without a class that the report lists, by inclusive share; below these, noise is listed.
const TOP_FUNCTIONS: usize = 100;

/// The note on a class that samples show and no probe saw.
pub const NOT_FIRING: &str = "attached but not firing: no call began, though samples fall into it; it was entered before \
                              the watching began, or its probe does not fire";

/// Samples that must fall into an attached class without hits before it is called *not firing*.
const NOT_FIRING_SAMPLES: u64 = 3;

impl Report {
    /// Computes the report of a recording.
    ///
    /// Every number has a source: *exact* if every call of the run was seen, *burst* if some windows were and
    /// were scaled, *sampled*, or *derived* from others. An empty recording gives an empty report, no NaN.
    #[must_use]
    pub fn from_recording(recording: &Recording) -> Self {
        let ledger = LedgerSummary::from_rows(&recording.ledger);
        let shares = Shares::of(recording, &ledger);
        let mut run = RunContext::of(recording, &ledger, &shares);
        let target_cpu = target_cpu(&ledger, &shares, &run, recording);
        let mut warnings = recording.meta.warnings.clone();
        warnings.extend(recording.damage.iter().cloned());

        let (mut rows, mut price_halves) = (Vec::new(), BTreeMap::new());
        let windows = by_class(&recording.windows);
        run.learn(recording, &windows);
        let plans = last_plans(&recording.plans);
        // Pairs of time stamps are no functions.
        for class in recording.classes.iter().filter(|c| c.stamps_of.is_none()) {
            let of_class = windows.get(&class.class_id).map_or(&[][..], Vec::as_slice);
            check_counts(class, of_class, &mut warnings);
            let calls = Calls::of(class, of_class, recording, &run);
            price_halves.insert(class.class_id, calls.price_half);
            let plan = plans.get(&class.class_id).copied();
            rows.push(class_row(
                class,
                of_class,
                plan,
                calls,
                shares.get(Key::Class(class.class_id)),
                &target_cpu,
            ));
        }
        rows.extend(
            shares.top_functions(TOP_FUNCTIONS).map(|(module, name, s)| function_row(module, name, s)),
        );
        rows.sort_by(named_and_hottest_first);

        let receipt = receipt(recording, &ledger, &run);
        if recording.meta.end_ns.is_none() {
            warnings.push(
                "the agent did not end this recording (it was killed or crashed): the report covers what was written"
                    .to_owned(),
            );
        }
        warnings.extend(over_budget(&receipt, &ledger));
        let meta = &recording.meta;
        let command = meta.cmdline.join(" ");
        let mut report = Self {
            target: if command.is_empty() { meta.exe.clone() } else { command },
            pid: meta.pid,
            duration_s: run.length_s,
            target_cpu,
            samples: recording.samples.len() as u64,
            cpu_not_sampled: shares.missed(),
            rows,
            operations: super::operations::of(recording),
            words: recording.words.clone(),
            expected: meta.models.as_ref().and_then(|models| models.expected.clone()),
            sharper: Vec::new(),
            receipt,
            log: log::entries(recording),
            warnings,
        };
        report.shorten_names();
        let run = sharper::RunUse {
            length_s: run.length_s,
            bursts_cut: recording.meta.agent.bursts_cut,
            charged_s: ledger.charged_s,
            allowed_s: ledger.allowed_s,
        };
        report.sharper = sharper::of(&report.rows, &windows, &price_halves, run);
        report
    }
}

/// More was spent than the budget gave, or more than the share that the user named because the target is nearly idle
/// (the budget of a share never falls below that share of [`FLOOR_CPU_PER_S`]).
fn over_budget(receipt: &Receipt, ledger: &LedgerSummary) -> Option<String> {
    /// Rounding, and the hits of the last milliseconds.
    const SLACK: f64 = 1.01;
    let above_share = match receipt.budget {
        OverheadBudget::Share(share) => ledger.charged_s > share * ledger.own_cpu_s * SLACK,
        OverheadBudget::CpuPerSecond(_) => true,
    };
    if !above_share {
        return None;
    }
    if ledger.charged_s > ledger.allowed_s * SLACK {
        return Some(format!(
            "the predicted overhead, {:.2} %, is above the budget of {}: {:.1} ms were spent and {:.1} ms allowed",
            receipt.predicted * 100.0,
            receipt.budget,
            ledger.charged_s * 1e3,
            ledger.allowed_s * 1e3
        ));
    }
    matches!(receipt.budget, OverheadBudget::Share(_)).then(|| {
        format!(
            "the target was nearly idle: {} of its CPU time would be too little to see anything, so it was allowed \
             {:.1} ms (as if it used {:.0} ms of CPU time per second), of which {:.1} ms were spent",
            receipt.budget,
            ledger.allowed_s * 1e3,
            FLOOR_CPU_PER_S * 1e3,
            ledger.charged_s * 1e3
        )
    })
}

/// Windows of each class in order of time.
fn by_class(windows: &[WindowRow]) -> BTreeMap<u32, Vec<&WindowRow>> {
    let mut map: BTreeMap<u32, Vec<&WindowRow>> = BTreeMap::new();
    for w in windows.iter().filter(|w| !windows::is_lent(w)) {
        map.entry(w.class_id).or_default().push(w);
    }
    for list in map.values_mut() {
        list.sort_by_key(|w| (w.start_ns, w.end_ns));
    }
    map
}

/// The last plan's row of each class.
fn last_plans(plans: &[PlanRow]) -> BTreeMap<u32, &PlanRow> {
    let mut map: BTreeMap<u32, &PlanRow> = BTreeMap::new();
    for p in plans {
        let newer = map.get(&p.class_id).is_none_or(|old| (p.plan, p.time_ns) >= (old.plan, old.time_ns));
        if newer {
            map.insert(p.class_id, p);
        }
    }
    map
}

/// Invariant I4: attempted = kept + gated + dropped, window by window.
fn check_counts(class: &ClassRow, windows: &[&WindowRow], warnings: &mut Vec<String>) {
    let sum = |w: &WindowRow| w.kept.saturating_add(w.gated).saturating_add(w.dropped);
    let bad: Vec<&&WindowRow> = windows.iter().filter(|w| w.attempted != sum(w)).collect();
    if let Some(w) = bad.first() {
        warnings.push(format!(
            "counts of {} do not add up in {} of {} windows: {} hits attempted, {} kept + gated + dropped; \
             its numbers are not to be trusted",
            class.name,
            bad.len(),
            windows.len(),
            w.attempted,
            sum(w)
        ));
    }
}

fn class_row(
    class: &ClassRow,
    windows: &[&WindowRow],
    plan: Option<&PlanRow>,
    mut calls: Calls,
    shares: Option<&FunctionShares>,
    target_cpu: &Estimate,
) -> Row {
    let mut notes = class.notes.clone();
    notes.append(&mut calls.notes);
    let sampled = shares.map_or(0, |s| s.share.n);
    if !windows.is_empty() && calls.attempted == 0 && sampled >= NOT_FIRING_SAMPLES {
        // Entered before we came and never left, or not really attached: in no case "0 calls".
        notes.push(NOT_FIRING.to_owned());
        (calls.calls, calls.rate_hz, calls.per_s) = (None, None, None);
    }
    // rho = share x U: on-CPU seconds per wall second with the function on the stack.
    let rho = shares.map(|s| Estimate {
        value: s.share.value * target_cpu.value,
        low: s.share.low * target_cpu.value,
        high: s.share.high * target_cpu.value,
        ..s.share
    });
    let on_cpu_ns = rho.zip(calls.per_s).and_then(|(rho, rate)| ratio::on_cpu_per_call_ns(&rho, &rate));
    Row {
        name: class.name.clone(),
        short_name: String::new(),
        named: class.named == Some(true),
        module: file_name(&class.module),
        class_id: Some(class.class_id),
        decision: decision(plan, windows),
        share: shares.map(|s| s.share),
        share_long_run: shares.map(|s| s.long_run),
        self_share: shares.and_then(|s| s.own),
        calls: calls.calls,
        rate_hz: calls.rate_hz,
        on_cpu_ns,
        mean_ns: calls.mean_ns,
        correction_ns: calls.correction_ns,
        quantiles_ns: calls.quantiles_ns,
        precision: calls.precision,
        counted: calls.counted,
        watched_share: calls.watched_share,
        dropped: calls.dropped,
        attempted: calls.attempted,
        site_class: Some(class.site_class),
        kind: Some(class.kind),
        notes,
    }
}

fn function_row(module: &str, name: &str, shares: &FunctionShares) -> Row {
    Row {
        name: name.to_owned(),
        short_name: String::new(),
        named: false,
        module: file_name(module),
        class_id: None,
        decision: "sample".to_owned(),
        share: Some(shares.share),
        share_long_run: Some(shares.long_run),
        self_share: shares.own,
        calls: None,
        rate_hz: None,
        on_cpu_ns: None,
        mean_ns: None,
        correction_ns: 0.0,
        quantiles_ns: Vec::new(),
        precision: None,
        counted: None,
        watched_share: 0.0,
        dropped: 0,
        attempted: 0,
        site_class: None,
        kind: None,
        notes: Vec::new(),
    }
}

/// The last plan's word; without a plan what was really done.
fn decision(plan: Option<&PlanRow>, windows: &[&WindowRow]) -> String {
    let did = |kind| windows.iter().any(|w| w.kind == kind);
    match plan {
        Some(p) => p.decision.clone(),
        None if did(WindowKind::Trace) => "trace".to_owned(),
        None if did(WindowKind::Burst) => "burst".to_owned(),
        None => "sample".to_owned(),
    }
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// What the user named comes first. Then what has calls, by inclusive share; then what has only samples, by self share: functions that merely hold
/// others (`main`, a thread's entry) come last. The same order for the same recording.
fn named_and_hottest_first(a: &Row, b: &Row) -> std::cmp::Ordering {
    let value = |e: &Option<Estimate>| e.map_or(0.0, |e| e.value);
    let rank = |r: &Row| if r.calls.is_some() { value(&r.share) } else { value(&r.self_share) };
    b.named
        .cmp(&a.named)
        .then(b.calls.is_some().cmp(&a.calls.is_some()))
        .then(rank(b).total_cmp(&rank(a)))
        .then(value(&b.share).total_cmp(&value(&a.share)))
        .then(value(&b.calls).total_cmp(&value(&a.calls)))
        .then_with(|| a.name.cmp(&b.name))
        .then_with(|| a.module.cmp(&b.module))
        .then(a.class_id.cmp(&b.class_id))
}

/// `U`: CPU seconds per wall second that the target uses by itself; the interval is that of our own cost.
fn target_cpu(ledger: &LedgerSummary, shares: &Shares, run: &RunContext, recording: &Recording) -> Estimate {
    if ledger.length_s > 0.0 {
        let value = ledger.own_cpu_s / ledger.length_s;
        let error = ledger.charged_s * recording.meta.cost.worst_uncertainty() / ledger.length_s;
        return Estimate {
            value,
            low: (value - error).max(0.0),
            high: value + error,
            level: LEVEL,
            n: recording.ledger.len() as u64,
            source: Source::Derived,
            at_most: false,
        };
    }
    // Each thread's last, unfinished period is what samples cannot see.
    let (sampled_s, unseen_s) = (shares.cpu_s(), shares.unseen_s());
    let per_s = |s: f64| if run.length_s > 0.0 { s / run.length_s } else { 0.0 };
    Estimate {
        value: per_s(sampled_s),
        low: per_s(sampled_s),
        high: per_s(sampled_s + unseen_s),
        level: LEVEL,
        n: recording.samples.len() as u64,
        source: Source::Sampled,
        at_most: false,
    }
}

/// How the agent's own limit was kept; `None`: the run ended too soon after it began to hold.
fn agent_limit(agent: &AgentUse, run: &RunContext) -> Option<LimitKept> {
    /// One lump of work would be most of less, s.
    const LEAST_S: f64 = 1.0;
    let since_s = run.length_s - FROM_NS as f64 * 1e-9;
    let used_ns = agent.until_end_ns?.saturating_sub(agent.until_limit_ns?);
    (since_s >= LEAST_S).then_some(LimitKept {
        limit: agent.limit?,
        used: used_ns as f64 * 1e-9 / since_s,
        samples_cut: agent.samples_cut,
        bursts_cut: agent.bursts_cut,
    })
}

fn receipt(recording: &Recording, ledger: &LedgerSummary, run: &RunContext) -> Receipt {
    let meta = &recording.meta;
    // A quota ends bursts of a hot function by design; only the end of a traced window is an alarm.
    let tripped: BTreeSet<u32> = recording
        .windows
        .iter()
        .filter(|w| w.tripped && w.kind == WindowKind::Trace)
        .map(|w| w.class_id)
        .collect();
    let run_ns = run.length_s * 1e9;
    Receipt {
        budget: meta.budget,
        predicted: ledger.predicted,
        in_place: in_place::of(recording, ledger),
        plan: recording.plans.iter().max_by_key(|row| row.plan).map(|row| PlanWorth {
            value: row.value,
            upper_bound: row.upper_bound,
            of_widths: row.of_widths == Some(true),
        }),
        measured: meta.measured.clone(),
        target_cpu_s: ledger.own_cpu_s,
        spent_s: ledger.spent_s.clone(),
        worst_second: ledger.worst_second,
        worst_second_own: ledger.worst_second_own,
        trips: tripped.len() as u32,
        slowest_answer: meta.slowest_answer,
        losses: meta.losses,
        hits_dropped: recording.windows.iter().map(|w| w.dropped).sum(),
        hits_attempted: recording.windows.iter().map(|w| w.attempted).sum(),
        agent_cpu: if run_ns > 0.0 { meta.agent.cpu_ns as f64 / run_ns } else { 0.0 },
        agent_limit: agent_limit(&meta.agent, run),
        agent_rss_bytes: meta.agent.max_rss_bytes,
        kernel_memory_bytes: meta.kernel_memory_bytes,
        private_memory: meta.private_memory.clone(),
        forks_held: meta.forks_held.clone(),
        tier: meta.tier,
        prices: meta.cost.origin.clone(),
        not_observed: meta.not_observed.clone(),
    }
}

#[cfg(test)]
mod tests;
