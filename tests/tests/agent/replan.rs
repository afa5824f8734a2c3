//! The plan of a recording can be had again from its table, by anybody, without root: same decisions.

use super::{recording, start};
use profiler_core::plan::Output;
use profiler_core::recording::PlanRow;
use profiler_tests::program;
use profiler_tests::support::{Agent, Target, output_of};
use std::collections::BTreeMap;

#[test]
fn the_recorded_plan_is_the_solvers_answer() {
    let Some(folder) = start("the_recorded_plan_is_the_solvers_answer") else { return };
    let mut target = Target::start("calls");
    target.start_background("mix", 1, 0, 1);
    let agent = Agent::start_plain(target.pid(), folder.path(), &["--budget", "5%", "--duration", "7s"]);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let recorded = recording(&path);
    let plans: BTreeMap<u32, Vec<&PlanRow>> = recorded.plans.iter().fold(BTreeMap::new(), |mut map, row| {
        map.entry(row.plan).or_insert_with(Vec::new).push(row);
        map
    });
    assert!(!plans.is_empty(), "no plan was made: {}", finished.messages);
    for (number, rows) in plans {
        let table = path.join(format!("plan-{number:04}.toml"));
        let table = table.to_str().expect("the temporary folder is UTF-8");
        let output = output_of(program("tithe"), &["plan", "--classes", table, "--format", "json"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let again: Output =
            serde_json::from_slice(&output.stdout).expect("JSON of the form that is documented");
        let best = &again.plans[0];
        let name = |id: u32| {
            let class = recorded.classes.iter().find(|c| c.class_id == id);
            class.unwrap_or_else(|| panic!("class {id} of plan {number} is not recorded")).name.clone()
        };
        let then: Vec<(String, &str)> =
            rows.iter().map(|r| (name(r.class_id), r.decision.as_str())).collect();
        let now: Vec<(String, &str)> =
            best.classes.iter().map(|c| (c.name.clone(), c.decision.as_str())).collect();
        assert_eq!(then, now, "plan {number}");
        for (row, class) in rows.iter().zip(&best.classes) {
            let burst = row.decision == "burst" && row.duty > 0.0 && row.duty <= 0.5;
            assert!(burst || (row.duty - class.duty).abs() < 1e-6, "{row:?} {class:?}");
        }
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1e-9);
        assert!(close(rows[0].sampling_hz, best.sampling_hz), "{} {}", rows[0].sampling_hz, best.sampling_hz);
        assert!(close(rows[0].value, best.value), "{} {}", rows[0].value, best.value);
    }
    let named: Vec<_> = finished.report().rows.iter().map(|r| r.name.as_str()).collect();
    assert!(named.contains(&"mix_slow"), "{named:?}");
}
