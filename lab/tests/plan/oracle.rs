//! An independent value function and brute force, straight from the definitions: no code shared with the solvers.

use profiler_core::plan::{Decision, Plan, Problem};

/// The group that each class's count follows from.
fn group_of(problem: &Problem) -> Vec<usize> {
    let mut group: Vec<usize> = (0..problem.classes.len()).collect();
    loop {
        let mut changed = false;
        for i in 0..group.len() {
            if let Some(from) = problem.classes[i].derived_from {
                let least = group[i].min(group[from]);
                changed |= group[i] != least || group[from] != least;
                (group[i], group[from]) = (least, least);
            }
        }
        if !changed {
            return group;
        }
    }
}

/// Value and sampling rate of the split that traces `set`; `None` if it breaks a rule.
pub(super) fn split_value(problem: &Problem, set: &[bool]) -> Option<(f64, f64)> {
    let group = group_of(problem);
    let derived = |i: usize| !set[i] && (0..set.len()).any(|j| set[j] && group[j] == group[i]);
    let mut cost = 0.0;
    let mut s_min = problem.sampling.min_hz;
    for (i, class) in problem.classes.iter().enumerate() {
        if set[i] {
            cost += (class.rate_hz.value + class.interruptions_hz) * (class.tau_s + class.detect_s);
            if class.never_trace {
                return None;
            }
        } else {
            let wanted = class.min_rate_hz.min(class.rate_hz.value + class.interruptions_hz);
            if class.must_trace {
                return None;
            }
            if wanted > 0.0 && !derived(i) {
                s_min = f64::max(s_min, wanted / class.rho.value);
            }
        }
    }
    let budget = problem.budget * (1.0 + 1e-12);
    let price = problem.sampling.price_s * problem.target_cpu;
    if s_min > problem.sampling.max_hz || cost + s_min * price > budget {
        return None;
    }
    let s = ((problem.budget - cost) / price).min(problem.sampling.max_hz).max(s_min);
    let value = problem.classes.iter().enumerate().map(|(i, class)| {
        let full = class.weight * (class.rate_hz.value + class.interruptions_hz);
        let sampled = s * class.weight * class.rho.value;
        if set[i] {
            full
        } else if derived(i) {
            full.max(sampled)
        } else {
            sampled
        }
    });
    Some((value.sum(), s))
}

/// Values of all distinct splits, best first. In each group of classes only the cheapest that may be is traced
/// (besides must-trace classes); splits that differ in which of identical classes they trace are one.
pub(super) fn brute_force(problem: &Problem) -> Vec<f64> {
    let n = problem.classes.len();
    let group = group_of(problem);
    let cost = |i: usize| problem.classes[i].trace_cost();
    let cheapest = |i: usize| {
        let members = (0..n).filter(|&j| group[j] == group[i]);
        let pinned = members.clone().any(|j| problem.classes[j].must_trace);
        let first =
            members.filter(|&j| !problem.classes[j].never_trace).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
        !pinned && first == Some(i)
    };
    let may: Vec<bool> = (0..n).map(|i| problem.classes[i].must_trace || cheapest(i)).collect();
    let mut values: Vec<(Vec<[u64; 5]>, f64)> = Vec::new();
    for bits in 0..1u32 << n {
        let set: Vec<bool> = (0..n).map(|i| bits >> i & 1 == 1).collect();
        if (0..n).any(|i| set[i] && !may[i]) {
            continue;
        }
        if let Some((value, _)) = split_value(problem, &set) {
            let mut key: Vec<[u64; 5]> = (0..n)
                .filter(|&i| set[i])
                .map(|i| {
                    let c = &problem.classes[i];
                    let alone = (0..n).filter(|&j| group[j] == group[i]).count() == 1;
                    // Classes with the same price, value and rules are the same; groups never are.
                    [
                        c.trace_cost().to_bits(),
                        (c.weight * c.traced_hz()).to_bits(),
                        (c.weight * c.rho.value).to_bits(),
                        if c.min_rate_hz > 0.0 { (c.min_rate_hz / c.rho.value).to_bits() } else { 0 },
                        if alone { 0 } else { 1 + i as u64 },
                    ]
                })
                .collect();
            key.sort_unstable();
            values.push((key, value));
        }
    }
    values.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
    values.dedup_by(|a, b| a.0 == b.0);
    let mut values: Vec<f64> = values.into_iter().map(|v| v.1).collect();
    values.sort_by(|a, b| b.total_cmp(a));
    values
}

/// Checks that a plan's own figures follow from its decisions, and that it keeps every rule.
pub(super) fn check(problem: &Problem, plan: &Plan) {
    let s = plan.sampling_hz;
    assert!(plan.cost <= problem.budget, "cost {} above {}", plan.cost, problem.budget);
    assert!(plan.value.is_finite() && plan.gap.is_finite() && plan.upper_bound >= plan.value);
    assert!((0.0..=1.0).contains(&plan.gap), "{}", plan.gap);
    assert!(s >= problem.sampling.min_hz * (1.0 - 1e-9) && s <= problem.sampling.max_hz * (1.0 + 1e-9));
    let mut cost = s * problem.sample_cost();
    let mut value = 0.0;
    for (class, planned) in problem.classes.iter().zip(&plan.classes) {
        let duty = planned.decision.duty();
        let (full, sampled) = (class.weight * class.traced_hz(), s * class.weight * class.rho.value);
        if let Decision::Burst { duty } = planned.decision {
            assert!(duty > 0.0 && duty < 1.0 && duty >= problem.burst_rules().min_duty() * (1.0 - 1e-12));
            cost += problem.burst_rules().charge();
        }
        cost += duty * class.trace_cost();
        let expected = match planned.decision {
            Decision::Derived { from } => {
                let d = plan.classes[from].decision.duty();
                assert!(d > 0.0);
                d * full.max(sampled) + (1.0 - d) * sampled
            }
            _ => duty * full + (1.0 - duty) * sampled,
        };
        value += expected;
        assert!((planned.value - expected).abs() <= 1e-9 * expected.abs().max(1e-9));
        assert!(!class.must_trace || planned.decision == Decision::Trace);
        assert!(!class.never_trace || duty == 0.0);
        let wanted = class.min_rate_hz.min(class.traced_hz());
        let seen = duty * class.traced_hz() + (1.0 - duty) * s * class.rho.value;
        let derived = matches!(planned.decision, Decision::Derived { .. });
        assert!(derived || seen >= wanted * (1.0 - 1e-9), "{}: sees {seen} of {wanted}", class.name);
    }
    assert!((value - plan.value).abs() <= 1e-9 * value.abs().max(1e-9), "{value} {}", plan.value);
    let slack = 1e-9 * problem.budget;
    assert!((cost - plan.cost).abs() <= slack, "{cost} {}", plan.cost);
}
