//! Targets from a seed.

use super::chance::Chance;
use super::target::{
    Attachable, Caller, Forks, Function, Life, Metric, Part, SITES, Scenario, Shape, Target, Trouble, Watch,
};
use profiler_core::adapt::PolicyKind;
use profiler_core::plan::Objective;
use profiler_core::units::OverheadBudget;

fn shape(chance: &mut Chance) -> Shape {
    match chance.below(8) {
        0 => Shape::Times {
            from_s: chance.between((2.0, 50.0)),
            until_s: chance.between((20.0, 100.0)),
            factor: chance.decades((1e-3, 1e4)),
        },
        1 => Shape::Seasonal { period_s: chance.decades((0.5, 60.0)), depth: chance.unit() },
        2 => Shape::Bursty { period_s: chance.decades((0.05, 20.0)), part: chance.between((0.02, 0.9)) },
        _ => Shape::Steady,
    }
}

fn function(chance: &mut Chance, threads: usize) -> Function {
    let rate_hz = chance.decades((0.01, 2e6));
    let mut function = Function::new(rate_hz).shape(shape(chance));
    function.hit_ns = SITES[chance.below(SITES.len())].1;
    function.exit_ns = if chance.one_in(3) { function.hit_ns } else { 0.0 };
    function.rho = chance.decades((1e-4, 0.5));
    function.named = chance.one_in(8);
    function.must = function.named && chance.one_in(10) && rate_hz < 1e3;
    function.module = chance.below(3) as u8;
    if chance.one_in(5) {
        function.caller = Caller::One(chance.below(threads));
    }
    function.attachable = match chance.below(30) {
        0 => Attachable::Patched,
        1 => Attachable::ByKernel,
        _ => Attachable::Yes,
    };
    if chance.one_in(12) {
        let from = chance.between((0.0, 50.0));
        function.mapped_s = (from, from + chance.decades((5.0, 100.0)));
    }
    function
}

fn target(chance: &mut Chance) -> Target {
    let threads = if chance.one_in(3) { 1 } else { chance.decades((2.0, 60.0)) as usize };
    let n = chance.decades((2.0, 60.0)) as usize;
    let functions = (0..n).map(|_| function(chance, threads)).collect();
    let forks = chance.one_in(5).then(|| Forks {
        per_s: chance.decades((0.05, 100.0)),
        when_s: (chance.between((0.0, 30.0)), chance.between((10.0, 60.0))),
        life: if chance.one_in(2) {
            Life::Execs(chance.decades((0.001, 1.0)))
        } else {
            Life::Ends(chance.decades((0.01, 5.0)))
        },
        cpu: chance.unit(),
    });
    Target {
        functions,
        cpu: chance.decades((0.005, threads.min(4) as f64)),
        cpu_shape: if chance.one_in(3) { shape(chance) } else { Shape::Steady },
        is_bound: chance.one_in(2),
        threads,
        first_part: if threads == 1 { 1.0 } else { chance.unit() },
        switches_per_s: chance.decades((1.0, 5e4)),
        forks,
        ends_s: if chance.one_in(10) { chance.between((0.5, 59.0)) } else { f64::INFINITY },
        price_factor: if chance.one_in(6) { chance.decades((0.4, 4.0)) } else { 1.0 },
    }
}

fn trouble(chance: &mut Chance) -> Trouble {
    let mut rare = |n: u32, high: f64| if chance.one_in(n) { chance.decades((2.0, high)) as u32 } else { 0 };
    let usual = Trouble::default();
    Trouble {
        slow_open: rare(2, 200.0),
        late_react: rare(2, 50.0),
        lost_alarm: rare(6, 30.0),
        late_report: rare(2, 50.0),
        not_now: rare(6, 30.0),
        slow_close: rare(6, 20.0),
        late_turn: rare(5, 500.0),
        lost_birth: rare(6, 5.0),
        jump_s: chance.one_in(8).then(|| (chance.between((1.0, 55.0)), chance.decades((0.3, 20.0)))),
        ..usual
    }
}

fn watch(chance: &mut Chance, functions: &mut [Function]) -> Watch {
    let budget = if chance.one_in(4) {
        OverheadBudget::CpuPerSecond(chance.decades((5e-4, 0.05)))
    } else {
        OverheadBudget::Share(chance.decades((0.003, 0.1)))
    };
    let names = functions.iter().any(|f| f.named);
    let metric = match chance.below(8) {
        0 | 1 => Metric::Variable,
        2 => {
            functions[0].counts = true;
            functions[0].mapped_s = (0.0, f64::INFINITY);
            (functions[0].named, functions[0].must) = (false, false);
            Metric::Functions
        }
        _ => Metric::None,
    };
    Watch {
        budget,
        seconds: 60.0,
        cpus: [1, 2, 4, 8, 64][chance.below(5)],
        only_named: names && chance.one_in(10),
        plan_only: false,
        objective: Objective::Precision,
        rate_hz: if chance.one_in(10) { Some([0.0, 25.0, 99.0][chance.below(3)]) } else { None },
        slow_links: chance.one_in(12),
        thread_share: chance.one_in(10).then(|| chance.decades((0.005, 0.2))),
        launched: chance.one_in(8) && metric != Metric::Functions,
        metric,
        policy: None,
    }
}

/// Operations, each with a begin, most with an end, and functions inside: after everything else, so that what was drawn before stays.
fn operations(chance: &mut Chance, scenario: &mut Scenario) {
    let shape = shape(chance);
    let mut rate_sum_hz = 0.0;
    for number in 0..chance.below(3) as u32 + 1 {
        let rate_hz = chance.decades((0.5, 2e4));
        rate_sum_hz += rate_hz;
        let hit_ns = SITES[chance.below(SITES.len())].1;
        let bound = Function { hit_ns, ..Function::new(rate_hz).shape(shape) };
        let one = chance.one_in(3);
        let exit_ns = if one { hit_ns } else { 0.0 };
        let functions = &mut scenario.target.functions;
        functions.push(Function { part: Some(Part::Begin(number)), exit_ns, ..bound.clone() });
        if !one {
            functions.push(Function { part: Some(Part::End(number)), ..bound });
        }
    }
    for _ in 0..chance.below(4) {
        let mut inner = Function::new(rate_sum_hz * chance.decades((0.2, 50.0))).shape(shape);
        inner.hit_ns = SITES[chance.below(SITES.len())].1;
        inner.part = Some(Part::Inner);
        inner.module = chance.below(3) as u8;
        if chance.one_in(8) {
            inner.attachable = Attachable::ByKernel;
        }
        scenario.target.functions.push(inner);
    }
    let policies = [PolicyKind::Tithe, PolicyKind::Adp, PolicyKind::Uni, PolicyKind::Full, PolicyKind::None];
    scenario.watch.policy = Some(policies[chance.below(policies.len())]);
}

/// The target of a seed.
#[must_use]
pub fn scenario(seed: u64) -> Scenario {
    let mut chance = Chance::new(seed.wrapping_mul(0x9E37_79B9).wrapping_add(77));
    let mut target = target(&mut chance);
    let watch = watch(&mut chance, &mut target.functions);
    let trouble = trouble(&mut chance);
    let mut scenario = Scenario { name: format!("random {seed}"), seed, target, trouble, watch };
    if seed % 4 == 3 {
        scenario.watch.objective = Objective::Information;
    }
    if chance.one_in(4) {
        operations(&mut chance, &mut scenario);
    }
    scenario
}
