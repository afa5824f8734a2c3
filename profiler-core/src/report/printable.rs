//! The report for people: what the target's owner has named is made printable, once, for all faces that are text.

use super::{LogEntry, OperationClassReport, OperationReport, Receipt, Report, Row};
use crate::recording::{
    ExpectedFunction, ExpectedMeta, ForksHeld, Incident, MeasuredOverhead, NotObserved, PrivateMemory,
};
use crate::text::make_printable;

impl Report {
    /// A copy whose texts are one line each, without hidden characters ([`crate::text`]).
    #[must_use]
    pub fn printable(&self) -> Self {
        let mut report = self.clone();
        report.texts().into_iter().for_each(make_printable);
        report
    }

    /// Every text in the report. Taken apart field by field, so that a new one cannot be forgotten.
    fn texts(&mut self) -> Vec<&mut String> {
        let Self {
            target,
            pid: _,
            duration_s: _,
            target_cpu: _,
            samples: _,
            cpu_not_sampled: _,
            rows,
            operations,
            sharper,
            expected,
            receipt,
            log,
            warnings,
            // What the user wrote; printed as any other text.
            words: _,
        } = self;
        let mut texts = vec![target];
        texts.extend(warnings);
        texts.extend(rows.iter_mut().flat_map(row));
        texts.extend(operations.iter_mut().flat_map(operation));
        texts.extend(sharper.iter_mut().map(|s| &mut s.name));
        texts.extend(expected.iter_mut().flat_map(expected_texts));
        texts.extend(receipt_texts(receipt));
        for LogEntry { time_s: _, last_s: _, times: _, kind: _, subject, text } in log {
            texts.extend([subject, text]);
        }
        texts
    }
}

fn expected_texts(expected: &mut ExpectedMeta) -> Vec<&mut String> {
    let ExpectedMeta { recording, functions, not_looked_at: _, machine_changes: _, incidents: _, told } =
        expected;
    let mut texts = vec![recording];
    for function in functions {
        let ExpectedFunction {
            function,
            context,
            not_judged,
            no_inputs,
            calls: _,
            beyond: _,
            outside: _,
            alarms: _,
            told: _,
        } = function;
        texts.push(function);
        texts.extend([context, not_judged, no_inputs].into_iter().flatten());
    }
    for Incident { from_ns: _, to_ns: _, alarms: _, lines } in told {
        texts.extend(lines);
    }
    texts
}

fn row(row: &mut Row) -> Vec<&mut String> {
    let Row {
        name,
        short_name,
        named: _,
        module,
        class_id: _,
        decision,
        share: _,
        share_long_run: _,
        self_share: _,
        calls: _,
        rate_hz: _,
        on_cpu_ns: _,
        mean_ns: _,
        correction_ns: _,
        quantiles_ns: _,
        precision: _,
        counted: _,
        watched_share: _,
        dropped: _,
        attempted: _,
        site_class: _,
        kind: _,
        notes,
    } = row;
    let mut texts = vec![name, short_name, module, decision];
    texts.extend(notes);
    texts
}

fn operation(operation: &mut OperationReport) -> Vec<&mut String> {
    let OperationReport {
        name,
        bounds,
        policy,
        measure,
        classes,
        population: _,
        recorded: _,
        quantiles_ns: _,
        untimed: _,
        rate_hz: _,
        watched_s: _,
        watched_share: _,
        average_rate: _,
        mix_difference: _,
        cycles: _,
        timeouts: _,
        cycle_s: _,
        unmatched: _,
        without_end: _,
        without_begin: _,
        censored: _,
        dropped: _,
        screening_s: _,
        recording_s: _,
    } = operation;
    let mut texts = vec![name, bounds, policy, measure];
    for OperationClassReport {
        name,
        population: _,
        mean_ns: _,
        quantiles_ns: _,
        deviation_ns: _,
        recorded: _,
        measure: _,
        off_cpu_ns: _,
        unobserved: _,
        calls: _,
        inner_ns: _,
    } in classes
    {
        texts.push(name);
    }
    texts
}

fn receipt_texts(receipt: &mut Receipt) -> Vec<&mut String> {
    let Receipt {
        budget: _,
        predicted: _,
        in_place: _,
        measured,
        target_cpu_s: _,
        spent_s: _,
        worst_second: _,
        worst_second_own: _,
        trips: _,
        slowest_answer: _,
        losses: _,
        hits_dropped: _,
        hits_attempted: _,
        agent_cpu: _,
        agent_limit: _,
        agent_rss_bytes: _,
        kernel_memory_bytes: _,
        private_memory,
        forks_held,
        tier: _,
        prices,
        plan: _,
        not_observed,
    } = receipt;
    let mut texts = vec![prices];
    if let Some(measured) = measured {
        let MeasuredOverhead { metric, pairs: _, value: _, low: _, high: _, method, note } = measured;
        texts.extend([metric, method, note]);
    }
    if let Some(private_memory) = private_memory {
        let PrivateMemory { pages: _, bytes: _, headroom_bytes: _, headroom_path, refused: _ } =
            private_memory;
        texts.push(headroom_path);
    }
    if let Some(forks_held) = forks_held {
        let ForksHeld { mappers: _, module, registrations: _, held_ns: _, longest_ns: _, refused: _ } =
            forks_held;
        texts.push(module);
    }
    for NotObserved { what, why } in not_observed {
        texts.extend([what, why]);
    }
    texts
}
