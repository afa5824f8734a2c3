//! Replays of a small synthetic recording that goes through files; offline.

use super::*;
use crate::recording::sample::meta;
use crate::recording::{Overwrite, Writer};
use clap::Parser;
use expect_test::expect;
use profiler_core::recording::{Meta, OperationClassRow, OperationRow, OperationWindowRow};
use profiler_lab::workload::{Pattern, Workload};
use std::path::Path;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ReplayArgs,
}

/// The answer to a command line, or its error.
fn ask(path: &Path, line: &str) -> String {
    let words = ["replay", path.to_str().unwrap()].into_iter().chain(line.split_whitespace());
    match answer(&Line::parse_from(words).args) {
        Ok(text) => text,
        Err(failure) => {
            assert_eq!(failure.exit_code(), 2, "{failure}");
            failure.to_string().replace(path.to_str().unwrap(), "run.tithe")
        }
    }
}

/// What is wrong with a recording.
#[derive(Default)]
struct Flaws {
    /// Rows that are left out.
    lost: usize,
    /// The agent was killed.
    killed: bool,
    policy: Option<&'static str>,
    no_operation: bool,
}

/// When the recording begins, ns.
const ORIGIN_NS: u64 = 5_000_000_000;

/// 20 s of five types; recording costs 20 us and 25 % of the operation, all inside it, and its last operation had not ended.
fn record(path: &Path, flaws: &Flaws) {
    let trace = Workload::new(5, Pattern::Bursty, 0.5, 3).trace(20.0, 1);
    let mut rows: Vec<OperationRow> = trace
        .iter()
        .map(|o| {
            let bare_ns = (o.duration_s * 1e9).round();
            let cost_ns = 20_000.0 + 0.25 * bare_ns;
            OperationRow {
                operation: 0,
                class_id: 2 + o.class.0,
                tid: 7,
                begin_ns: ORIGIN_NS + (o.begin_s * 1e9) as u64,
                duration_ns: (bare_ns + cost_ns) as u64,
                calls: 10,
                inner_ns: 0,
                measure: o.measure as u64,
                cost_ns: cost_ns as u64,
                off_cpu_ns: None,
                cycle: 0,
                stretch: 0,
                censored: false,
                pid: None,
                steps_before: None,
                steps_after: None,
                incomplete: None,
            }
        })
        .collect();
    rows.last_mut().unwrap().censored = true;
    let ended = rows.len() - 1;
    rows.drain(0..flaws.lost);
    // In the order of their ends, as the agent writes them.
    rows.sort_by_key(|r| r.begin_ns + r.duration_ns);
    let names = ["read", "list", "buy", "pay", "report"];
    let classes: Vec<OperationClassRow> = (2..)
        .zip(names)
        .map(|(class_id, name)| OperationClassRow {
            operation: 0,
            class_id,
            operation_name: "req".to_owned(),
            class_name: name.to_owned(),
        })
        .collect();
    let mut meta: Meta = meta();
    let operation = &mut meta.operations[0];
    operation.policy = flaws.policy.unwrap_or("full").to_owned();
    operation.config.max_cycle_s = 10.0;
    operation.config.baseline_s = 1.0;
    operation.measure = "sum of argument 0 of allocate".to_owned();
    if flaws.killed {
        meta.end_ns = None;
    }
    if flaws.no_operation {
        meta.operations.clear();
    }
    let mut writer = Writer::create(path, None, Overwrite::Recording, &meta).unwrap();
    writer.push(&classes);
    writer.push(&rows);
    let window = |class_id| window(class_id, ended as u64, flaws.lost as u64);
    writer.push(&(2..7).map(window).collect::<Vec<_>>());
    writer.finish(&meta).unwrap();
}

/// The whole run as one window. All operations, `ended` and `lost`, are counted in the first type.
fn window(class_id: u32, ended: u64, lost: u64) -> OperationWindowRow {
    OperationWindowRow {
        operation: 0,
        class_id,
        start_ns: ORIGIN_NS,
        end_ns: ORIGIN_NS + 21_000_000_000,
        watched_ns: 21_000_000_000,
        monitoring: true,
        rate: 1.0,
        stretch: 0,
        cycle: 0,
        population: if class_id == 2 { ended } else { 0 },
        population_sum_ns: 0.0,
        population_squares_ns2: 0.0,
        sample: 0,
        sample_sum_ns: 0.0,
        sample_squares_ns2: 0.0,
        measure_sum: 0.0,
        measure_squares: 0.0,
        cost_ns: 0,
        begun: ended,
        recorded: ended,
        off: 0,
        not_drawn: 0,
        balanced: 0,
        no_quota: 0,
        unmatched: 0,
        dropped: if class_id == 2 { lost } else { 0 },
        sliced: Some(false),
    }
}

#[test]
fn all_policies_over_a_recorded_full_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    record(&path, &Flaws::default());
    let text = ask(&path, "--runs 3 --seed 7 --rows 2 --servers 4 --adapt inv_reference_s=10");
    expect![[r#"
        operation req: 3257 operations of 5 types in 19.9 s, all recorded; measure: sum of argument 0 of allocate
        left out: 1 that had not ended, 0 lost while recording
        cost and queue: a model, by the prices of host over 3257 operations: recording 20.00 us + 25.00 % of the operation, screening 2.40 us; while recording is on the functions inside are attached all the time (as with attach_share=false), and the others pay 0 % of recording's price in traps; 4 servers, arrivals as recorded
        3 runs from seed 7 on, the same draws for all policies; means over runs with 95 % intervals

        policy  recorded %         CPU s/s    slower %          RMSE    relative %      weighted  equal counts      held %        mix %  unobserved  cycles  of s  sample  timeouts
        none      0.0 ±0.0  0.0004 ±0.0000    0.0 ±0.0             -             -             -             -           -            -         5.0     1.0  10.0     0.0       1.0
        full    100.0 ±0.0  0.4932 ±0.0000  455.5 ±0.0          0 ±0    0.00 ±0.00          0 ±0  80.75 ±81.47  100.0 ±0.0   0.00 ±0.00         0.0    19.0   1.0   164.7       0.0
        uni      49.4 ±2.2  0.2431 ±0.0060   47.7 ±5.2  47.34 ±60.34    5.75 ±9.43  47.34 ±60.34  79.44 ±249.6  100.0 ±0.0   0.61 ±0.34         0.0    10.3   1.8   146.4       0.0
        inv      49.4 ±2.2  0.2431 ±0.0060   47.7 ±5.2  47.34 ±60.34    5.75 ±9.43  47.34 ±60.34  79.44 ±249.6  100.0 ±0.0   0.61 ±0.34         0.0    10.3   1.8   146.4       0.0
        adp      28.5 ±2.2  0.1367 ±0.0120   13.7 ±4.2  145.7 ±166.3  15.04 ±21.37  144.2 ±174.9  145.7 ±166.3  93.3 ±28.7   0.27 ±0.29         0.0     6.0   2.9   136.4       0.0
        tithe    32.0 ±1.3  0.1099 ±0.0086   14.2 ±3.9  265.6 ±177.0    6.64 ±7.23  78.81 ±38.71  269.2 ±181.7  93.3 ±28.7  36.59 ±1.35         0.0     2.0   7.3   413.2       0.3

        CPU s/s and slower: by the model. RMSE: plain mean of each type against all its operations, in the measure's unit; weighted:
        post-stratified means; equal counts: samples thinned to the smallest; held: intervals that hold the truth; mix: largest
        difference of a type's shares; cycles: how many, their mean length and sample, timeouts

        paired quotients, geometric mean [95 %]
        of                       RMSE            relative         equal counts
        adp/inv    3.25 [0.90, 11.75]  2.90 [0.25, 33.57]   3.13 [0.32, 30.30]
        adp/uni    3.25 [0.90, 11.75]  2.90 [0.25, 33.57]   3.13 [0.32, 30.30]
        tithe/adp   1.89 [0.92, 3.90]   0.46 [0.06, 3.70]    1.91 [0.80, 4.57]
        tithe/inv  6.16 [2.48, 15.32]   1.32 [0.49, 3.59]  5.99 [0.28, 127.55]
        tithe/uni  6.16 [2.48, 15.32]   1.32 [0.49, 3.59]  5.99 [0.28, 127.55]

        2 of 5 types, post-stratified means of run 1: mean ±half interval (recorded)
        type  operations  truth   none            full                 uni                 inv                 adp               tithe
        read        1402   6219  - (0)  6219 ±0 (1402)   6195 ±78.69 (693)   6195 ±78.69 (693)   6062 ±103.5 (386)    6266 ±781.9 (71)
        list         706  26.45  - (0)  26.45 ±0 (706)  24.87 ±2.814 (356)  24.87 ±2.814 (356)  25.73 ±5.597 (193)  26.06 ±2.236 (480)
    "#]].assert_eq(&text);
    assert_eq!(
        text,
        ask(&path, "--runs 3 --seed 7 --rows 2 --servers 4 --adapt inv_reference_s=10"),
        "a replay repeats"
    );
    assert_ne!(text, ask(&path, "--runs 3 --seed 8 --rows 2 --servers 4 --adapt inv_reference_s=10"));
}

#[test]
fn json_has_the_figures_of_one_policy_and_its_settings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    record(&path, &Flaws::default());
    let text =
        ask(&path, "--policy inv --runs 1 --adapt max_rate=0.2 --adapt rate=0.2 --servers 4 --format json");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["operation"], &json["runs"], &json["censored"]), (&"req".into(), &1.into(), &1.into()));
    assert_eq!(json["types"].as_array().unwrap().len(), 5);
    assert_eq!((&json["config"]["max_rate"], &json["config"]["max_cycle_s"]), (&0.2.into(), &10.0.into()));
    let policy = &json["policies"][0];
    assert_eq!((&policy["policy"], json["policies"].as_array().unwrap().len()), (&"inv".into(), 1));
    let rate = policy["rate"]["value"].as_f64().unwrap();
    assert!((rate - 0.2).abs() < 0.03, "{rate}");
    assert!(json["model"].as_str().unwrap().contains("4 servers"), "{text}");
}

#[test]
fn a_budget_bounds_what_recording_costs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    record(&path, &Flaws::default());
    let text = ask(&path, "--policy uni,tithe --runs 2 --budget 10ms/s --format json");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    for policy in json["policies"].as_array().unwrap() {
        let spent = policy["cpu_per_s"]["value"].as_f64().unwrap();
        assert!(spent > 0.002 && spent < 0.0125, "{policy}");
    }
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let error = |name: &str, flaws: &Flaws, line: &str| {
        let path = dir.path().join(name);
        record(&path, flaws);
        ask(&path, line)
    };
    let none = error("none.tithe", &Flaws { no_operation: true, ..Flaws::default() }, "");
    assert!(
        none.contains("the recording has no operation; record one with: tithe record")
            && none.contains("--policy full"),
        "{none}"
    );
    let other = error("adp.tithe", &Flaws { policy: Some("adp"), ..Flaws::default() }, "");
    assert!(other.contains("operation 'req' was recorded with policy 'adp'"), "{other}");
    let killed = error("killed.tithe", &Flaws { killed: true, ..Flaws::default() }, "");
    assert!(killed.contains("the agent was killed before the end of the run"), "{killed}");
    let lost = error("lost.tithe", &Flaws { lost: 200, ..Flaws::default() }, "");
    assert!(lost.contains(" 200 were not recorded") && lost.contains("200 the ring full"), "{lost}");
    let few = error("few.tithe", &Flaws { lost: 2, ..Flaws::default() }, "--policy uni --runs 1");
    assert!(few.contains("left out: 1 that had not ended, 2 lost while recording"), "{few}");
    let fine = Flaws::default();
    assert!(error("a", &fine, "--operation x").contains("no operation 'x', it has req"));
    assert!(error("b", &fine, "--adapt rat=1").contains("no setting 'rat'"));
    assert!(error("c", &fine, "--adapt max_cycle_s=0").contains("a time above 0 s"));
    assert!(error("d", &fine, "--budget 2%").contains("--budget 2%: a recording does not say"));
    assert!(ask(&dir.path().join("nowhere"), "").contains("cannot open the recording 'run.tithe'"));
}

#[test]
fn a_truncated_segment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    record(&path, &Flaws::default());
    let segment = path.join("operations-00001.parquet");
    let bytes = std::fs::read(&segment).unwrap();
    std::fs::write(&segment, &bytes[..bytes.len() / 2]).unwrap();
    let error = ask(&path, "");
    assert!(error.contains("the recording is not whole (operations-00001.parquet: not read"), "{error}");
}

#[test]
fn a_replay_that_is_described_by_hand_gives_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    record(&path, &Flaws::default());
    let config = ReplayConfig {
        recording: path.clone(),
        operation: None,
        policies: vec![PolicyKind::Inv],
        runs: 1,
        seed: 1,
        settings: vec!["max_rate=0.2".to_owned(), "rate=0.2".to_owned()],
        servers: Some(4),
        budget: None,
    };
    let line = "--policy inv --runs 1 --adapt max_rate=0.2 --adapt rate=0.2 --servers 4 --rows 2";
    assert_eq!(render_text(&replay(&config).unwrap(), 2), ask(&path, line));
}
