//! Targets by name.

use super::target::{
    Attachable, Caller, Forks, Function, Life, Metric, Scenario, Shape, Target, Trouble, Watch,
};
use profiler_core::units::OverheadBudget;

/// Functions whose rates lie between both, evenly by their logarithms.
fn spread(n: usize, (low, high): (f64, f64)) -> Vec<Function> {
    let step = |i: usize| i as f64 / (n.max(2) - 1) as f64;
    (0..n).map(|i| Function::new(low * (high / low).powf(step(i)))).collect()
}

/// The same, every third with an exit, in three modules.
fn mixed(n: usize, rates: (f64, f64)) -> Vec<Function> {
    let of = |(i, function): (usize, Function)| Function {
        exit_ns: if i % 3 == 0 { 800.0 } else { 0.0 },
        module: (i % 3) as u8,
        ..function
    };
    spread(n, rates).into_iter().enumerate().map(of).collect()
}

fn with(functions: Vec<Function>) -> Target {
    Target::new(functions)
}

fn plain(name: &str, target: Target) -> Scenario {
    Scenario::new(name, target)
}

/// Targets that call more, less, in seasons, in bursts.
fn by_load() -> Vec<Scenario> {
    let explode = Shape::Times { from_s: 20.0, until_s: f64::INFINITY, factor: 500.0 };
    let exploding = |n: usize| {
        let mut functions = mixed(30, (1.0, 1e5));
        functions.iter_mut().skip(6).take(n).for_each(|f| f.shape = explode);
        functions
    };
    let shaped = |shape: Shape| -> Vec<Function> {
        mixed(30, (1.0, 1e6)).into_iter().map(|f| f.shape(shape)).collect()
    };
    let all_explode = |n: usize, rates: (f64, f64), hit_ns: f64| -> Vec<Function> {
        let of = |f: Function| Function { hit_ns, rho: 0.02, ..f.shape(explode) };
        spread(n, rates).into_iter().map(of).collect()
    };
    let seasonal = Shape::Seasonal { period_s: 15.0, depth: 0.9 };
    let bursty = Shape::Bursty { period_s: 3.0, part: 0.1 };
    let sleep = Shape::Times { from_s: 15.0, until_s: 40.0, factor: 0.001 };
    let called: Vec<Function> =
        all_explode(30, (0.5, 2.0), 9_300.0).into_iter().map(Function::named).collect();
    let woken = Target { cpu: 0.01, is_bound: false, ..with(called) };
    let idle = Target {
        cpu: 0.004,
        is_bound: false,
        threads: 40,
        first_part: 0.02,
        ..with(mixed(30, (0.01, 50.0)))
    };
    // Windows of many dear functions may be open at once where links are made fast.
    let dear = spread(60, (2e3, 5e3)).into_iter().map(|f| Function { hit_ns: 9_300.0, ..f }).collect();
    let mut dear = plain("60 dear functions, surveyed at once", with(dear));
    dear.trouble.open_ms = (1.0, 3.0);
    vec![
        plain("steady", with(mixed(40, (0.1, 3e6)))),
        plain("one explodes", with(exploding(1))),
        plain("ten explode", with(exploding(10))),
        plain("all explode", with(all_explode(30, (100.0, 2_500.0), 700.0))),
        plain("300 cold functions explode", with(all_explode(300, (0.5, 2.0), 9_300.0))),
        plain("seasonal", Target { cpu_shape: seasonal, ..with(shaped(seasonal)) }),
        plain("bursty", Target { is_bound: false, threads: 4, first_part: 0.25, ..with(shaped(bursty)) }),
        plain("sleeps for a while", Target { cpu_shape: sleep, is_bound: false, ..with(shaped(sleep)) }),
        plain("idle service", idle),
        plain("idle, and all is called at once", woken),
        plain(
            "3,000 cold functions",
            with(mixed(3_000, (0.001, 30.0)).into_iter().map(|f| Function { rho: 0.01, ..f }).collect()),
        ),
        plain("all functions are hot", with(mixed(25, (2e5, 8e6)))),
        dear,
    ]
}

/// Targets with many threads, forks, modules that come, an end.
fn by_life() -> Vec<Scenario> {
    let threads = |n: usize, first: f64| Target {
        threads: n,
        first_part: first,
        cpu: 3.0,
        switches_per_s: 4_000.0,
        ..with(mixed(30, (1.0, 1e6)))
    };
    let mut one_hot = threads(8, 0.3);
    one_hot.functions.iter_mut().skip(15).for_each(|f| f.caller = Caller::One(0));
    let forks = |per_s: f64, when_s: (f64, f64), life: Life| {
        let forks = Forks { per_s, when_s, life, cpu: 0.5 };
        Target { forks: Some(forks), ..with(mixed(30, (1.0, 1e5))) }
    };
    let hot = Forks { per_s: 4.0, when_s: (0.5, 4.0), life: Life::Ends(0.3), cpu: 0.02 };
    let surveyed = Target { forks: Some(hot), ..with(mixed(25, (1e4, 8e6))) };
    let few = Forks { per_s: 3.0, when_s: (5.0, 60.0), life: Life::Ends(0.3), cpu: 0.01 };
    let mut many_bursts =
        plain("children, and many bursts", Target { forks: Some(few), ..with(mixed(40, (5e3, 1e6))) });
    many_bursts.watch.budget = OverheadBudget::Share(0.08);
    many_bursts.trouble.close_ms = (20.0, 40.0);
    let mut comes = with(mixed(40, (1.0, 1e6)));
    comes.functions.iter_mut().skip(20).for_each(|f| f.mapped_s = (25.0, f64::INFINITY));
    let mut execs = with(mixed(40, (1.0, 1e6)));
    for (i, function) in execs.functions.iter_mut().enumerate() {
        function.mapped_s = if i % 2 == 0 { (0.0, 30.0) } else { (30.0, f64::INFINITY) };
        function.named = i < 4;
    }
    vec![
        plain("500 threads", threads(500, 0.002)),
        plain("700 threads", threads(700, 0.001)),
        plain("one hot thread", one_hot),
        plain("fork storm", forks(200.0, (10.0, 25.0), Life::Ends(0.5))),
        plain("children that exec", forks(5.0, (0.0, 60.0), Life::Execs(0.005))),
        plain("children that run on", forks(0.3, (5.0, 60.0), Life::Ends(4.0))),
        plain("forks in the survey", surveyed),
        many_bursts,
        plain("a library comes", comes),
        plain("exec of the target", execs),
        plain("the target ends", Target { ends_s: 23.0, ..with(mixed(30, (1.0, 1e6))) }),
    ]
}

/// Machines that make trouble.
fn by_trouble() -> Vec<Scenario> {
    let troubled = |name: &str, trouble: Trouble| {
        let mut functions = mixed(40, (0.1, 1e6));
        functions[30].shape = Shape::Bursty { period_s: 7.0, part: 0.05 };
        functions[10].named = true;
        Scenario { trouble, ..plain(name, with(functions)) }
    };
    let usual = Trouble::default();
    let refuse = |attachable| {
        let of = |f: Function| Function { attachable, ..f };
        with(mixed(30, (1.0, 1e5)).into_iter().map(of).collect())
    };
    vec![
        troubled("late answers", Trouble { late_react: 2, late_report: 2, slow_open: 5, ..usual }),
        troubled("lost alarms", Trouble { lost_alarm: 2, ..usual }),
        troubled("clock jump", Trouble { jump_s: Some((17.0, 4.0)), ..usual }),
        troubled("late turns", Trouble { late_turn: 40, ..usual }),
        troubled("forks of others", Trouble { not_now: 3, slow_close: 3, ..usual }),
        plain("all functions patched", refuse(Attachable::Patched)),
        plain("all functions refused", refuse(Attachable::ByKernel)),
        plain("prices off by 3", Target { price_factor: 3.0, ..with(mixed(30, (1.0, 1e6))) }),
    ]
}

/// Ways to watch.
fn by_watch() -> Vec<Scenario> {
    let usual = Watch::default();
    let named =
        |n: usize, rates: (f64, f64)| with(mixed(n, rates).into_iter().map(Function::named).collect());
    let watched = |name: &str, target: Target, watch: Watch| Scenario { watch, ..plain(name, target) };
    let absolute = Watch { budget: OverheadBudget::CpuPerSecond(0.005), ..usual };
    let mut counted = mixed(30, (1.0, 1e6));
    counted.push(Function { counts: true, rho: 0.0, ..Function::new(300.0) });
    let mut slow = mixed(30, (1.0, 1e5));
    slow.iter_mut().take(12).for_each(|f| f.named = true);
    let mut must = mixed(30, (1.0, 1e6));
    must[5].must = true;
    must[5].named = true;
    vec![
        watched("slow links", with(slow), Watch { slow_links: true, ..usual }),
        watched("only what was named", named(12, (1.0, 1e5)), Watch { only_named: true, ..usual }),
        watched("launched and held", named(12, (1.0, 1e6)), Watch { launched: true, ..usual }),
        watched("budget in CPU time", with(mixed(30, (1.0, 1e6))), absolute),
        watched(
            "metric by a variable",
            with(mixed(30, (1.0, 1e6))),
            Watch { metric: Metric::Variable, ..usual },
        ),
        watched("metric by a function", with(counted), Watch { metric: Metric::Functions, ..usual }),
        watched("one must be traced", with(must), usual),
        watched("no samples", named(20, (1.0, 1e6)), Watch { rate_hz: Some(0.0), ..usual }),
    ]
}

/// All of them.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    let mut all = by_load();
    all.extend(by_life());
    all.extend(by_trouble());
    all.extend(by_watch());
    all.extend(super::named_operations::scenarios());
    let mut measured = by_trouble().remove(7);
    measured.name = "prices off by 3, and measured".to_owned();
    measured.watch.metric = Metric::Variable;
    all.push(measured);
    all
}
