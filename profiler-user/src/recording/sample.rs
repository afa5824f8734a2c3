//! A small recording made by hand, for the tests of this crate: two functions of a program, one traced with
//! latencies, one sampled, with a kernel frame and an inlined call.

use profiler_core::adapt::AdaptConfig;
use profiler_core::class::{ExitMode, RecordKind, SiteClass, Tier};
use profiler_core::cost::{CostModel, Price, Stamps};
use profiler_core::recording::*;
use profiler_core::units::OverheadBudget;
use std::collections::BTreeMap;

mod calls;

pub(crate) use calls::{call_sites, steps, words};

pub(crate) fn meta() -> Meta {
    Meta {
        format_version: FORMAT_VERSION,
        tithe_version: "0.1.0".into(),
        host: "host".into(),
        kernel: "6.18.0".into(),
        cpus: 2,
        pid: 1234,
        exe: "/usr/bin/server".into(),
        cmdline: vec!["server".into(), "--port=80".into()],
        start_unix_ns: 1_700_000_000_000_000_000,
        start_ns: 1_000_000_000,
        end_ns: Some(11_000_000_000),
        end_reason: Some("duration".into()),
        budget: OverheadBudget::Share(0.02),
        tier: Tier::A,
        cost: cost(),
        sample_period_ns: 10_101_010,
        kernel_memory_bytes: 12 << 20,
        agent: AgentUse {
            cpu_ns: 60_000_000,
            max_rss_bytes: 41 << 20,
            prices_at_end: Some(PricesAtEnd { sample: Price::fixed(14_000.0), switch: Price::fixed(600.0) }),
            ..AgentUse::default()
        },
        measured: Some(MeasuredOverhead {
            metric: "system calls".into(),
            pairs: 20,
            value: 0.011,
            low: 0.006,
            high: 0.016,
            method: "20 % trimmed mean, block jackknife".into(),
            note: String::new(),
        }),
        losses: Losses { samples_ring_full: 1, ..Losses::default() },
        not_observed: vec![NotObserved {
            what: "libc.so.6:memcpy".into(),
            why: "IFUNC not resolved in the target".into(),
        }],
        warnings: vec!["the timer interrupt is late in the kernel".into()],
        operations: vec![OperationMeta {
            operation: 0,
            name: "req".into(),
            bounds: "req=handle,class=arg0:str".into(),
            policy: "tithe".into(),
            config: AdaptConfig::default(),
            measure: "calls of inner functions".into(),
            by_functions: true,
            screen_ns: 2_400.0,
            inner_hit_ns: 700.0,
            inner_classes: vec![1],
            open_at_end: Some(0),
        }],
        private_memory: Some(PrivateMemory {
            pages: 37,
            bytes: 164_000,
            headroom_bytes: 48 << 20,
            headroom_path: "/sys/fs/cgroup/web".into(),
            refused: 2,
        }),
        forks_held: Some(ForksHeld {
            mappers: 1_500,
            module: "/lib/libc.so.6".into(),
            registrations: 270,
            held_ns: 81_000_000,
            longest_ns: 900_000,
            refused: 1,
        }),
        slowest_answer: Some(SlowestAnswer {
            answers: 3,
            governor_ns: 90_000,
            closing_ns: 120_000,
            stolen_ns: 0,
            stolen_over_ns: 0,
        }),
        calls: Some(calls::meta()),
        models: None,
        words: vec![calls::word_meta()],
    }
}

fn cost() -> CostModel {
    let price = |ns| Price { ns, min_ns: ns * 0.9, max_ns: ns * 1.1, n: 9 };
    CostModel {
        hit: BTreeMap::from([("push/latency".to_owned(), price(700.0))]),
        pair: BTreeMap::from([("push/latency".to_owned(), price(1300.0))]),
        concurrency: vec![1.0, 1.05],
        cold: price(250.0),
        behind: Some(price(60.0)),
        rested: Price::fixed(2_400.0),
        stamps: BTreeMap::from([("push/return_link".to_owned(), Stamps::guessed(price(200.0)))]),
        sample_base: price(12_300.0),
        sample_per_kib: price(200.0),
        switch: price(2_000.0),
        tracepoint: price(72.0),
        attach: price(9e6),
        detach_delay: price(6e3),
        origin: "calibrated".into(),
    }
}

pub(crate) fn classes() -> Vec<ClassRow> {
    vec![
        ClassRow {
            class_id: 0,
            name: "db::query".into(),
            symbol: "_ZN2db5queryEv".into(),
            aliases: vec!["_ZN2db6query2Ev".into()],
            module: "/usr/bin/server".into(),
            build_id: "00ff".into(),
            address: 0x1130,
            size_bytes: 64,
            site: 0x1134,
            site_class: SiteClass::Push,
            exit_mode: ExitMode::ReturnLink,
            kind: RecordKind::Latency,
            weight: 2.0,
            tau_ns: 1300.0,
            notes: vec![],
            stamps_ns: Some(200.0),
            stamps_of: None,
            named: Some(true),
            parameters: Some(0b00_0011),
            prototype: None,
        },
        ClassRow {
            class_id: 1,
            name: "parse".into(),
            symbol: "parse".into(),
            aliases: vec![],
            module: "/usr/bin/server".into(),
            build_id: String::new(),
            address: 0x2000,
            size_bytes: 32,
            site: 0x2000,
            site_class: SiteClass::Stepped,
            exit_mode: ExitMode::None,
            kind: RecordKind::Count,
            weight: 1.0,
            tau_ns: 9300.0,
            notes: vec!["inlined copies are not counted".into()],
            stamps_ns: None,
            stamps_of: None,
            named: None,
            parameters: None,
            prototype: Some("text=arg0:pointer,n=arg1:size".into()),
        },
    ]
}

pub(crate) fn frame(stack_id: u64, depth: u32, address: u64, module: &str, function: &str) -> FrameRow {
    FrameRow {
        stack_id,
        depth,
        address,
        module: module.into(),
        function: function.into(),
        file: String::new(),
        line: 0,
        inlined: false,
        class_id: None,
    }
}

/// Stack 7: parse < db::query < main. Stack 9: kernel copy < db::query (with an inlined call) < main.
pub(crate) fn stacks() -> Vec<FrameRow> {
    let exe = "/usr/bin/server";
    let mut rows = vec![
        frame(7, 0, 0x2008, exe, "parse"),
        frame(7, 1, 0x1140, exe, "db::query"),
        frame(7, 2, 0x3000, exe, "main"),
        frame(9, 0, 0xffff_ffff_8100_0010, "[kernel]", "copy_to_user"),
        frame(9, 1, 0x1150, exe, "db::read"),
        frame(9, 2, 0x1150, exe, "db::query"),
        frame(9, 3, 0x3000, exe, "main"),
    ];
    rows[0].class_id = Some(1);
    rows[1].class_id = Some(0);
    rows[4].inlined = true;
    rows[5].class_id = Some(0);
    rows[5].file = "src/db.rs".into();
    rows[5].line = 42;
    rows
}

pub(crate) fn samples() -> Vec<SampleRow> {
    (0..10)
        .map(|i| SampleRow {
            time_ns: 1_000_000_000 + i * 10_101_010,
            pid: 1234,
            tid: 1234 + u32::from(i % 3 == 0),
            cpu: u32::from(i % 2 == 1),
            stack_id: if i < 6 { 7 } else { 9 },
            in_kernel: i >= 6,
            period_ns: 10_101_010,
            truncated: i == 9,
        })
        .collect()
}

pub(crate) fn recording() -> Recording {
    Recording {
        meta: meta(),
        classes: classes(),
        windows: windows(),
        histograms: vec![HistogramRow { class_id: 0, low_ns: 65_536, high_ns: 67_584, count: 4_990 }],
        events: events(),
        event_durations: CallDurations::default(),
        samples: samples(),
        trap_samples: vec![TrapSampleRow {
            time_ns: 1_500_000_000,
            tid: 4242,
            cpu: 1,
            class_id: Some(0),
            in_kernel: true,
            is_sure: true,
            period_ns: 10_000_000,
        }],
        stacks: stacks(),
        ledger: ledger(),
        open_calls: vec![OpenCallRow {
            time_ns: 2_000_000_000,
            class_id: 0,
            tid: 4243,
            elapsed_ns: 1_500_000,
        }],
        beside: calls::beside(),
        plans: plans(),
        words: calls::word_tallies(),
        operation_classes: vec![OperationClassRow {
            operation: 0,
            class_id: 2,
            operation_name: "req".into(),
            class_name: "GET /a".into(),
        }],
        operations: operations(),
        operation_windows: operation_windows(),
        operation_histograms: operation_histograms(),
        operation_cycles: operation_cycles(),
        changes: changes(),
        damage: vec![],
    }
}

fn windows() -> Vec<WindowRow> {
    vec![WindowRow {
        class_id: 0,
        kind: WindowKind::Trace,
        start_ns: 1_000_000_000,
        end_ns: 11_000_000_000,
        target_cpu_ns: 8_000_000_000,
        attempted: 5_010,
        kept: 5_000,
        gated: 4,
        dropped: 6,
        returns: 4_990,
        unwound: 5,
        omitted: 3,
        open: 2,
        sum_ns: 400_000_000,
        nested_cost_ns: 1_000_000,
        max_ns: 9_000_000,
        tripped: false,
        tau_ns: 1300.0,
        ran_ns: Some(7_000_000),
        ran_tid: Some(4_242),
        link: Some(3),
    }]
}

fn events() -> Vec<EventRow> {
    vec![
        EventRow {
            time_ns: 1_100_000_000,
            class_id: 0,
            pid: 1234,
            tid: 1235,
            duration_ns: Some(80_000),
            args: [Some(1), Some(u64::MAX), Some(0xffff_8000_0000_0000), Some(0), None, Some(6)],
            nested_cost_ns: Some(200),
            place: CallPlace::default(),
            context: CallContext {
                off_cpu_ns: Some(30_000),
                runnable_ns: Some(10_000),
                blocked_ns: Some(20_000),
                io_wait_ns: None,
                minor_faults: Some(3),
                major_faults: Some(0),
                read_bytes: Some(4_096),
                written_bytes: Some(1 << 40),
            },
        },
        EventRow {
            time_ns: 1_200_000_000,
            class_id: 0,
            pid: 1234,
            tid: 1234,
            duration_ns: None,
            args: [None; 6],
            nested_cost_ns: None,
            place: CallPlace::default(),
            context: CallContext::default(),
        },
    ]
}

fn ledger() -> Vec<LedgerRow> {
    vec![
        LedgerRow {
            time_ns: 2_000_000_000,
            interval_ns: 1_000_000_000,
            charge: Charge::Traced,
            class_id: Some(0),
            units: 501,
            cost_ns: 651_300,
            target_cpu_ns: 800_000_000,
            allowed_ns: 16_000_000,
        },
        LedgerRow {
            time_ns: 2_000_000_000,
            interval_ns: 1_000_000_000,
            charge: Charge::Samples,
            class_id: None,
            units: 99,
            cost_ns: 1_217_700,
            target_cpu_ns: 800_000_000,
            allowed_ns: 16_000_000,
        },
    ]
}

fn plans() -> Vec<PlanRow> {
    vec![PlanRow {
        time_ns: 1_000_000_000,
        plan: 1,
        class_id: 0,
        decision: "trace".into(),
        duty: 1.0,
        rate_hz: 500.0,
        rate_low_hz: 480.0,
        rate_high_hz: 520.0,
        rho: 0.04,
        weight: 2.0,
        tau_s: 1.3e-6,
        cost: 6.5e-4,
        reason: "cheap for its weight".into(),
        sampling_hz: 99.0,
        value: 1256.48,
        upper_bound: 1300.0,
        of_widths: Some(false),
    }]
}

fn operations() -> Vec<OperationRow> {
    vec![
        OperationRow {
            operation: 0,
            class_id: 2,
            tid: 1235,
            begin_ns: 1_100_000_000,
            duration_ns: 2_000_000,
            calls: 12,
            inner_ns: 1_500_000,
            measure: 4_096,
            cost_ns: 15_600,
            off_cpu_ns: Some(200_000),
            cycle: 0,
            stretch: 3,
            censored: false,
            pid: Some(1234),
            steps_before: Some(7),
            steps_after: Some(10),
            incomplete: Some(false),
        },
        OperationRow {
            operation: 0,
            class_id: 2,
            tid: 1236,
            begin_ns: 10_900_000_000,
            duration_ns: 100_000_000,
            calls: 1,
            inner_ns: 0,
            measure: 0,
            cost_ns: 1_300,
            off_cpu_ns: None,
            cycle: 1,
            stretch: 7,
            censored: true,
            pid: None,
            steps_before: None,
            steps_after: None,
            incomplete: None,
        },
    ]
}

fn operation_windows() -> Vec<OperationWindowRow> {
    vec![OperationWindowRow {
        operation: 0,
        class_id: 2,
        start_ns: 1_000_000_000,
        end_ns: 2_000_000_000,
        watched_ns: 900_000_000,
        monitoring: true,
        rate: 0.25,
        stretch: 3,
        cycle: 0,
        population: 100,
        population_sum_ns: 2.5e8,
        population_squares_ns2: 6.5e14,
        sample: 24,
        sample_sum_ns: 6.1e7,
        sample_squares_ns2: 1.6e14,
        measure_sum: 98_304.0,
        measure_squares: 4.1e8,
        cost_ns: 374_400,
        begun: 101,
        recorded: 24,
        off: 1,
        not_drawn: 70,
        balanced: 4,
        no_quota: 2,
        unmatched: 5,
        dropped: 3,
        sliced: Some(true),
    }]
}

/// All 100 operations of the window.
fn operation_histograms() -> Vec<OperationHistogramRow> {
    [(1_966_080, 2_031_616, 60), (2_883_584, 2_949_120, 38), (5_242_880, 5_373_952, 2)]
        .map(|(low_ns, high_ns, count)| OperationHistogramRow {
            operation: 0,
            class_id: 2,
            low_ns,
            high_ns,
            count,
        })
        .to_vec()
}

fn operation_cycles() -> Vec<OperationCycleRow> {
    vec![OperationCycleRow {
        operation: 0,
        number: 1,
        start_ns: 1_000_000_000,
        end_ns: 9_000_000_000,
        end: OperationCycleEnd::Timeout,
        population: 800,
        sample: 190,
        z: 0.37,
        needed: 188.5,
        large_enough: true,
        same_times: false,
        difference_ns: -1_200.5,
        same_shares: true,
        largest_share_difference: 0.012,
        unobserved: vec!["GET /rare".into()],
    }]
}

fn changes() -> Vec<ChangeRow> {
    vec![
        ChangeRow {
            time_ns: 1_000_000_000,
            kind: ChangeKind::Plan,
            class_id: None,
            plan: Some(1),
            text: "2 functions were surveyed".into(),
        },
        ChangeRow {
            time_ns: 3_000_000_000,
            kind: ChangeKind::Trip,
            class_id: Some(1),
            plan: None,
            text: "1,000 calls in 0.20 ms".into(),
        },
    ]
}
