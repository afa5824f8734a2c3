//! Targets with operations, by name.

use super::target::{Forks, Function, Life, Metric, Part, Scenario, Shape, Target, Watch};
use profiler_core::adapt::PolicyKind;
use profiler_core::units::OverheadBudget;

/// Operations so many times a second, each with so many calls of each of these functions inside, beside other functions. Prices of bounds
/// and of inner functions, ns.
fn target(rate_hz: f64, bound_ns: f64, inner: &[(f64, f64)]) -> Target {
    let mut functions: Vec<Function> =
        (0..12).map(|i| Function::new(10_f64.powf(0.4 * f64::from(i)))).collect();
    let bound = Function { hit_ns: bound_ns, ..Function::new(rate_hz) };
    functions.push(Function { part: Some(Part::Begin(0)), ..bound.clone() });
    functions.push(Function { part: Some(Part::End(0)), ..bound });
    for (calls, hit_ns) in inner {
        let called = Function { hit_ns: *hit_ns, ..Function::new(rate_hz * calls) };
        functions.push(Function { part: Some(Part::Inner), ..called });
    }
    Target::new(functions)
}

fn followed(name: &str, target: Target, policy: PolicyKind, share: f64) -> Scenario {
    let watch = Watch { budget: OverheadBudget::Share(share), policy: Some(policy), ..Watch::default() };
    Scenario { watch, ..Scenario::new(name, target) }
}

/// All of them.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    let fits = [(1.0, 700.0), (3.0, 700.0)];
    let dear = [(2.0, 9_300.0), (20.0, 700.0)];
    let mut explodes = target(200.0, 700.0, &fits);
    let shape = Shape::Times { from_s: 20.0, until_s: 40.0, factor: 300.0 };
    explodes.functions.iter_mut().filter(|f| f.part.is_some()).for_each(|f| f.shape = shape);
    let mut leaves = target(300.0, 700.0, &fits);
    for function in leaves.functions.iter_mut().filter(|f| f.part == Some(Part::Inner)) {
        (function.away_s, function.module) = (Some((20.0, 40.0)), 1);
    }
    let mut compared = followed("operations, compared", target(300.0, 700.0, &fits), PolicyKind::Tithe, 0.05);
    compared.watch.metric = Metric::Variable;
    let storm = Forks { per_s: 200.0, when_s: (15.0, 25.0), life: Life::Ends(0.5), cpu: 0.5 };
    let forks = Target { forks: Some(storm), ..target(300.0, 700.0, &fits) };
    let mut launched = followed("operations, launched", target(300.0, 700.0, &fits), PolicyKind::Full, 0.05);
    launched.watch.launched = true;
    let fit = |policy: PolicyKind| {
        followed(&format!("operations, {}", policy.name()), target(300.0, 700.0, &fits), policy, 0.05)
    };
    vec![
        followed("operations without details", target(500.0, 700.0, &[]), PolicyKind::Tithe, 0.02),
        fit(PolicyKind::Tithe),
        fit(PolicyKind::Adp),
        fit(PolicyKind::Uni),
        followed("hot operations, dear details, 1 %", target(5e3, 700.0, &dear), PolicyKind::Tithe, 0.01),
        followed("hot operations, dear details, 5 %", target(5e3, 700.0, &dear), PolicyKind::Tithe, 0.05),
        followed("hot operations, all recorded", target(5e3, 700.0, &dear), PolicyKind::Full, 0.05),
        followed("bounds explode", explodes, PolicyKind::Adp, 0.02),
        followed("a library with details goes and comes", leaves, PolicyKind::Tithe, 0.05),
        compared,
        followed("operations in a fork storm", forks, PolicyKind::Tithe, 0.05),
        launched,
    ]
}
