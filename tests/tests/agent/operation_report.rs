//! Operations in the report, against what was recorded of each.

use super::operations::{WITH_ALL, follow, rows, stop};
use super::{sleep_ms, start};
use profiler_tests::support::Target;

#[test]
fn operations_are_in_the_report() {
    let Some(folder) = start("operations_are_in_the_report") else { return };
    let mut target = Target::start("requests");
    let agent = follow(&target, &folder, &WITH_ALL);
    target.command("serve 600 2 3");
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    let report = finished.report();
    let operation = &report.operations[0];
    assert_eq!((operation.name.as_str(), operation.population, operation.recorded), ("req", 1_200, 1_200));
    for (type_, class) in (0u64..).zip(["GET /0", "GET /1", "GET /2"]) {
        let class = operation.classes.iter().find(|c| c.name == class).expect("three types");
        let measure = class.measure.expect("all were recorded");
        assert_eq!(
            (measure.value, measure.low, measure.high),
            (100.0 * (type_ + 1) as f64, measure.value, measure.value)
        );
        assert_eq!((class.population, class.calls), (400, Some((type_ % 5 + 2) as f64)));
        // All were recorded, one by one: the order statistics lie where the quantiles say.
        let mut times: Vec<f64> = rows(&recorded, &class.name).iter().map(|r| r.duration_ns as f64).collect();
        times.sort_by(f64::total_cmp);
        assert_eq!((times.len(), class.quantiles_ns.len()), (400, 3));
        for (p, e) in &class.quantiles_ns {
            let rank = (p * 400.0).ceil() as usize;
            let (truth, next) = (times[rank - 1], times[rank.min(399)]);
            assert!(e.low <= truth && truth < e.high && e.n == 400, "P{}: {truth} ns, {e:?}", p * 100.0);
            // Buckets are 1/32 wide. Below is all that may be ours between the two stamps: twice what screening costs, and four times what cold caches add at most;
            // half of the one and what cold caches add is taken out.
            let (screen_ns, cold) = (recorded.meta.operations[0].screen_ns, recorded.meta.cost.cold);
            assert!(recorded.meta.operations[0].by_functions);
            let most_ns = 2.0 * screen_ns + 4.8 * cold.max_ns;
            let bucket_ns = if e.low > 0.0 { e.low + most_ns } else { truth / 1.032 };
            assert!(bucket_ns * 1.032 >= truth && e.high <= next * 1.032, "{truth} and {next} ns, {e:?}");
            let value_ns = e.value + 0.5 * screen_ns + cold.ns;
            assert!(
                e.value == e.low || (bucket_ns - 1e-6..=e.high + 1e-6).contains(&value_ns),
                "{screen_ns} ns, {cold:?}, {e:?}"
            );
        }
    }
    assert_eq!(report.operations[1].population, 1_200);
    assert_eq!(operation.mix_difference, Some(0.0));
}
