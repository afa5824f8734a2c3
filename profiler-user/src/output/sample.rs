//! A report made by hand, for the golden tests: one traced, one burst, one sampled function.

use profiler_core::class::{RecordKind, SiteClass, Source, Tier};
use profiler_core::estimate::Estimate;
use profiler_core::recording::{
    ChangeKind, Charge, ExpectedMeta, Incident, Meta, NotObserved, SlowestAnswer,
};
use profiler_core::report::precision::{Known, Limit, Precision};
use profiler_core::report::sharper::{self, Sharper};
use profiler_core::report::{InPlace, LimitKept, LogEntry, PlanWorth, Receipt, Report, Row};
use profiler_core::units::OverheadBudget;
use std::collections::BTreeMap;

fn estimate(value: f64, half: f64, n: u64, source: Source) -> Option<Estimate> {
    Some(Estimate { value, low: value - half, high: value + half, level: 0.95, n, source, at_most: false })
}

fn row(name: &str, decision: &str) -> Row {
    Row {
        name: name.into(),
        short_name: String::new(),
        named: false,
        module: "server".into(),
        class_id: None,
        decision: decision.into(),
        share: None,
        share_long_run: None,
        self_share: None,
        calls: None,
        rate_hz: None,
        on_cpu_ns: None,
        mean_ns: None,
        correction_ns: 0.0,
        quantiles_ns: vec![],
        precision: None,
        counted: None,
        watched_share: 0.0,
        dropped: 0,
        attempted: 0,
        site_class: None,
        kind: None,
        notes: vec![],
    }
}

pub(super) fn report() -> Report {
    let meta = crate::recording::sample::meta();
    let mut report = Report {
        target: "server".into(),
        pid: 1234,
        duration_s: 10.0,
        target_cpu: estimate(0.81, 0.008, 990, Source::Sampled).unwrap(),
        samples: 990,
        cpu_not_sampled: 0.0,
        rows: rows(),
        operations: vec![],
        words: vec![],
        expected: None,
        sharper: vec![Sharper {
            name: "server::handle_request".into(),
            half_width: Some(0.32),
            then: Some(0.16),
            watched_share: 0.03,
            limit: sharper::Limit::Watched,
        }],
        receipt: receipt(&meta),
        log: log(),
        warnings: meta.warnings.clone(),
    };
    report.shorten_names();
    report
}

/// Gives a report a name that a target chose, wherever one can stand.
pub(super) fn named_by_target(report: &mut Report, name: &str) {
    let row = &mut report.rows[0];
    (row.name, row.short_name, row.module) = (name.into(), name.into(), name.into());
    row.notes.push(name.into());
    (report.log[0].subject, report.log[0].text) = (name.into(), name.into());
    report.target = name.into();
    report.warnings.push(name.into());
    report.expected = Some(ExpectedMeta {
        recording: name.into(),
        incidents: 1,
        told: vec![Incident { lines: vec![name.into()], ..Incident::default() }],
        ..ExpectedMeta::default()
    });
    report.receipt.prices = name.into();
    report.receipt.not_observed.push(NotObserved { what: name.into(), why: name.into() });
}

const REACHED: Known = Known { half_width: Some(0.02), limit: Limit::Reached };

fn rows() -> Vec<Row> {
    use Source::{Burst, Derived, Exact, Sampled};
    vec![
        Row {
            class_id: Some(0),
            named: true,
            share: estimate(0.421, 0.021, 417, Sampled),
            self_share: estimate(0.101, 0.012, 100, Sampled),
            calls: Some(Estimate::exact(5_010.0, 5_010)),
            rate_hz: Some(Estimate::exact(501.0, 5_010)),
            on_cpu_ns: estimate(68_100.0, 3_400.0, 417, Derived),
            mean_ns: estimate(80_200.0, 700.0, 4_990, Exact),
            correction_ns: 200.0,
            quantiles_ns: vec![
                (0.5, estimate(66_600.0, 1_000.0, 4_990, Exact).unwrap()),
                (0.9, estimate(120_000.0, 2_400.0, 4_990, Exact).unwrap()),
                (0.99, estimate(1.2e6, 1e5, 4_990, Exact).unwrap()),
                (1.0, estimate(9e6, 100.0, 4_990, Exact).unwrap()),
            ],
            precision: Some(Precision { p50: REACHED, mean: REACHED }),
            counted: Some(5_004),
            watched_share: 1.0,
            dropped: 6,
            attempted: 5_010,
            site_class: Some(SiteClass::Push),
            kind: Some(RecordKind::Latency),
            ..row("db::query", "trace")
        },
        Row {
            class_id: Some(1),
            share: estimate(0.31, 0.019, 307, Sampled),
            self_share: estimate(0.3, 0.019, 297, Sampled),
            calls: estimate(12.3e6, 3.6e5, 369_000, Burst),
            rate_hz: estimate(1.23e6, 3.6e4, 369_000, Burst),
            on_cpu_ns: estimate(204.0, 14.0, 307, Derived),
            counted: Some(369_000),
            watched_share: 0.03,
            attempted: 369_000,
            site_class: Some(SiteClass::Nop5),
            kind: Some(RecordKind::Count),
            notes: vec!["inlined copies are not counted".into()],
            ..row("parse", "burst")
        },
        Row {
            share: estimate(0.012, 0.006, 12, Sampled),
            self_share: estimate(0.002, 0.003, 2, Sampled),
            ..row(
                "core::iter::traits::iterator::Iterator::for_each::<alloc::vec::Vec<http::header::HeaderValue>>",
                "sample",
            )
        },
    ]
}

fn in_place() -> Option<InPlace> {
    let part = |value: f64, half| estimate(value, half, 1_000, Source::Sampled);
    Some(InPlace {
        overhead: part(0.0135, 0.0062)?,
        traps: part(0.0101, 0.006)?,
        beside: part(0.0027, 0.0007)?,
        priced_at_end: true,
        behind: part(0.0007, 0.0007)?,
        own_s: 8.0,
        samples: 1_000,
        in_traps: 10,
        by_class: vec![(Some(0), 8), (None, 2)],
    })
}

fn receipt(meta: &Meta) -> Receipt {
    Receipt {
        budget: OverheadBudget::Share(0.02),
        predicted: 0.0085,
        in_place: in_place(),
        measured: meta.measured.clone(),
        target_cpu_s: 8.0,
        spent_s: BTreeMap::from([
            (Charge::Traced, 0.031),
            (Charge::Burst, 0.012),
            (Charge::Survey, 0.003),
            (Charge::Samples, 0.0198),
            (Charge::Switches, 0.0012),
            (Charge::Attach, 0.001),
            (Charge::Children, 0.0),
            (Charge::Bystanders, 0.0004),
        ]),
        worst_second: 0.017,
        worst_second_own: 0.0,
        trips: 1,
        slowest_answer: Some(SlowestAnswer {
            answers: 1_204,
            governor_ns: 60_800_000,
            closing_ns: 61_000_000,
            stolen_ns: 70_000_000,
            stolen_over_ns: 1_200_000_000,
        }),
        losses: meta.losses,
        hits_dropped: 6,
        hits_attempted: 374_010,
        agent_cpu: 0.006,
        agent_limit: Some(LimitKept { limit: 0.02, used: 0.0042, samples_cut: 0, bursts_cut: 0 }),
        agent_rss_bytes: 41 << 20,
        kernel_memory_bytes: 12 << 20,
        private_memory: meta.private_memory.clone(),
        forks_held: meta.forks_held.clone(),
        tier: Tier::A,
        prices: "calibrated".into(),
        plan: Some(PlanWorth { value: 2.0, upper_bound: 2.01, of_widths: true }),
        not_observed: meta.not_observed.clone(),
    }
}

fn log() -> Vec<LogEntry> {
    vec![
        LogEntry {
            time_s: 1.9,
            last_s: 1.9,
            times: 1,
            kind: ChangeKind::Plan,
            subject: "plan 1".into(),
            text: "1 of 3 functions traced, 1 in bursts, 99 samples per CPU second; traced: db::query; because 3 functions \
                   were surveyed"
                .into(),
        },
        LogEntry {
            time_s: 3.0,
            last_s: 7.25,
            times: 1_204,
            kind: ChangeKind::Trip,
            subject: "parse".into(),
            text: "1,000 calls in 0.20 ms used up its quota".into(),
        },
        LogEntry {
            time_s: 4.0,
            last_s: 4.0,
            times: 1,
            kind: ChangeKind::Modules,
            subject: String::new(),
            text: "libplugin.so came".into(),
        },
    ]
}
