//! Grouping of kernels that share a sampling frequency (§3.2, Grouping of Kernels), and the frequency.

use super::class::Class;
use super::context::{Context, LoopCallGraph};
use std::collections::{BTreeMap, BTreeSet};

/// Difference of two trends up to which they share a frequency (§3.2).
const TREND: f64 = 0.05;

/// What grouping needs of a kernel in its context.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    /// Its class, as the paper or as we tell it.
    pub class: Class,
    /// Names of its critical inputs.
    pub inputs: BTreeSet<String>,
    /// Times predicted for the same runs (sets of input values) for all kernels of a caller, ns: its trend. Empty: not known.
    pub trend_ns: Vec<f64>,
    /// Shortest call, ns.
    pub shortest_ns: f64,
}

/// Kernels of one calling context that share a frequency.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Nodes from the root to the caller.
    pub caller: Vec<usize>,
    /// Its kernels, in the order of execution.
    pub kernels: Vec<usize>,
}

/// Groups, and the places at which the frequency is set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grouping {
    /// Deepest level first, as they are made.
    pub groups: Vec<Group>,
    /// Kernels before which the frequency is set: the paper's `predict_and_setfreq`, as (caller, kernel).
    pub switches: Vec<Context>,
}

/// How kernels are told to be alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// The paper's: one class and the same inputs, or trends that differ by at most 5 %.
    ///
    /// The text applies the 5 % to *different classes (where the inputs are different)*; its example to one class with other inputs, `O(a)` and
    /// `O(a + b)`. Either is a reason here.
    Printed,
    /// Ours: predicted times within this factor in all runs, whatever the class. A class says nothing of coefficients: two linear kernels of
    /// 1 us and 1 ms get data points in the ratio 1 to 1,000 from one frequency.
    Time {
        /// Largest ratio of two times, above 1.
        factor: f64,
    },
}

/// Groups the leaves below each caller: those of the deepest level first, then level by level.
///
/// Kernels without an entry in `kernels` are not grouped. A switch stands before each kernel whose group is another than that of the kernel
/// before it.
#[must_use]
pub fn group(
    graph: &LoopCallGraph,
    contexts: &[Context],
    kernels: &BTreeMap<Context, Kernel>,
    rule: Rule,
) -> Grouping {
    let is_leaf = |c: &&Context| c.kernel().is_some_and(|k| graph.children(k).is_empty());
    let mut leaves: Vec<&Context> =
        contexts.iter().filter(is_leaf).filter(|c| kernels.contains_key(c)).collect();
    // Stable: the order of execution is kept within a caller.
    leaves.sort_by_key(|c| std::cmp::Reverse(c.level()));
    let mut callers: Vec<&[usize]> = Vec::new();
    for leaf in &leaves {
        if !callers.contains(&leaf.caller()) {
            callers.push(leaf.caller());
        }
    }
    let mut grouping = Grouping::default();
    for caller in callers {
        let own: Vec<&Context> = leaves.iter().copied().filter(|l| l.caller() == caller).collect();
        of_caller(caller, &own, kernels, rule, &mut grouping);
    }
    grouping
}

fn of_caller(
    caller: &[usize],
    leaves: &[&Context],
    kernels: &BTreeMap<Context, Kernel>,
    rule: Rule,
    grouping: &mut Grouping,
) {
    let mut groups: Vec<Vec<&Context>> = Vec::new();
    let mut before = None;
    for leaf in leaves {
        let fits = |group: &Vec<&Context>| {
            group.iter().all(|other| match (kernels.get(*leaf), kernels.get(*other)) {
                (Some(a), Some(b)) => are_alike(a, b, rule),
                _ => false,
            })
        };
        // The group of the kernel before it needs no switch.
        let order = before.into_iter().chain(0..groups.len());
        let place = order.into_iter().find(|i| groups.get(*i).is_some_and(fits));
        let place = place.unwrap_or_else(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(place) {
            group.push(leaf);
        }
        if before != Some(place) {
            grouping.switches.push((*leaf).clone());
        }
        before = Some(place);
    }
    grouping.groups.extend(groups.into_iter().map(|group| Group {
        caller: caller.to_vec(),
        kernels: group.iter().filter_map(|c| c.kernel()).collect(),
    }));
}

/// Two kernels may share a frequency.
#[must_use]
pub fn are_alike(a: &Kernel, b: &Kernel, rule: Rule) -> bool {
    match rule {
        Rule::Printed => {
            // Of unknown ones nothing is predicted that could be alike.
            let is_known = a.class != Class::Unknown && b.class != Class::Unknown;
            is_known && (a.class == b.class && a.inputs == b.inputs || ratio(a, b) <= 1.0 / (1.0 - TREND))
        }
        Rule::Time { factor } => ratio(a, b) <= factor,
    }
}

/// Largest ratio of the times of two kernels in the same run; infinite where that is not known. Of two unknown ones the shortest calls are compared.
#[must_use]
pub fn ratio(a: &Kernel, b: &Kernel) -> f64 {
    if a.class == Class::Unknown && b.class == Class::Unknown {
        return (a.shortest_ns / b.shortest_ns).max(b.shortest_ns / a.shortest_ns);
    }
    if a.trend_ns.is_empty() || a.trend_ns.len() != b.trend_ns.len() {
        return f64::INFINITY;
    }
    let ratios = a.trend_ns.iter().zip(&b.trend_ns).map(|(a, b)| (a / b).max(b / a));
    ratios.fold(1.0, |most, r| if r.is_nan() { f64::INFINITY } else { most.max(r) })
}

/// Sampling frequency at which a call of `paced_ns` ([`super::Model::paced_ns`]) has this many data points, Hz (§3.2, Setting the Sampling
/// Frequency):
///
/// ```text
/// f = N / t
/// ```
/// At most `most_hz`. Of an unknown class t is the shortest call's time: no call has fewer points than N.
#[must_use]
pub fn frequency_hz(datapoints: f64, paced_ns: f64, most_hz: f64) -> f64 {
    if paced_ns > 0.0 { (datapoints.max(0.0) * 1e9 / paced_ns).min(most_hz) } else { most_hz }
}

/// Part of the time in which a kernel's calls are recorded, so that N calls are recorded within a horizon: the duty of its bursts.
///
/// ```text
/// d = min(1, N / (F T))
/// ```
/// F: its calls per second; T: seconds. The shared sampler is not slowed for one kernel: thinning it saves data and no CPU time.
#[must_use]
pub fn duty(datapoints: f64, calls_per_s: f64, horizon_s: f64) -> f64 {
    let calls = calls_per_s * horizon_s;
    if calls > 0.0 { (datapoints.max(0.0) / calls).min(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Listing 1.1 and Fig. 3.
    fn listing() -> (LoopCallGraph, Vec<Context>) {
        let mut graph = LoopCallGraph::default();
        for (outer, inner) in [
            ("main", "f1"),
            ("f1", "f4"),
            ("f1", "lp1"),
            ("f1", "f5"),
            ("main", "lp2"),
            ("lp2", "f6"),
            ("main", "lp3"),
        ] {
            graph.contains(outer, inner);
        }
        let contexts = graph.contexts("main", 100);
        (graph, contexts)
    }

    fn kernel(class: Class, inputs: &[&str], time: impl Fn(f64, f64) -> f64) -> Kernel {
        let runs = [(10.0, 3.0), (100.0, 7.0), (1_000.0, 5.0)];
        let trend_ns: Vec<f64> = runs.map(|(a, b)| time(a, b)).to_vec();
        let shortest_ns = trend_ns.iter().copied().fold(f64::INFINITY, f64::min);
        Kernel { class, inputs: inputs.iter().map(|i| (*i).to_owned()).collect(), trend_ns, shortest_ns }
    }

    /// `slope`: what b adds to lp1, so that its trend differs by more or less than 5 % from f4's.
    fn grouped(slope: f64, rule: Rule) -> (Vec<Vec<String>>, Vec<String>) {
        let (graph, contexts) = listing();
        let of = |name: &str| match name {
            "f4" => Some(kernel(Class::Linear, &["a"], |a, _| 10.0 * a)),
            "lp1" => Some(kernel(Class::Linear, &["a", "b"], move |a, b| 10.0 * a + slope * b)),
            "f5" => Some(kernel(Class::Polynomial, &["b"], |_, b| 10.0 * b * b)),
            "f6" => Some(kernel(Class::Unknown, &[], |a, b| a + b)),
            "lp3" => Some(kernel(Class::Polynomial, &["a"], |a, _| a * a)),
            _ => None,
        };
        let kernels = contexts
            .iter()
            .filter_map(|c| Some((c.clone(), of(graph.name(c.kernel()?))?)))
            .collect::<BTreeMap<_, _>>();
        let grouping = group(&graph, &contexts, &kernels, rule);
        let names = |nodes: &[usize]| nodes.iter().map(|n| graph.name(*n).to_owned()).collect::<Vec<_>>();
        let switches = grouping.switches.iter().filter_map(|c| c.kernel()).collect::<Vec<_>>();
        (grouping.groups.iter().map(|g| names(&g.kernels)).collect(), names(&switches))
    }

    #[test]
    fn adler_listing_1_1_four_switches() {
        // b adds at most 3 * 0.3 / 100 to lp1's time.
        let (groups, switches) = grouped(0.3, Rule::Printed);
        assert_eq!(switches, ["f4", "f5", "f6", "lp3"]);
        assert_eq!(groups[0], ["f4", "lp1"]);
        assert_eq!(groups.len(), 4);
    }

    #[test]
    fn adler_listing_1_1_a_trend_that_differs_by_more_than_5_percent_is_a_fifth_switch() {
        let (_, switches) = grouped(3.0, Rule::Printed);
        assert_eq!(switches, ["f4", "lp1", "f5", "f6", "lp3"]);
    }

    #[test]
    fn by_time_kernels_of_one_class_part_and_those_of_like_times_meet() {
        let times = Rule::Time { factor: 2.0 };
        let fast = kernel(Class::Linear, &["a"], |a, _| a);
        let slow = kernel(Class::Linear, &["a"], |a, _| 1_000.0 * a);
        let other = kernel(Class::Linearithmic, &["b"], |a, _| 1.5 * a);
        assert!(are_alike(&fast, &slow, Rule::Printed) && !are_alike(&fast, &slow, times));
        assert!(!are_alike(&fast, &other, Rule::Printed) && are_alike(&fast, &other, times));
        let unknown = kernel(Class::Unknown, &[], |a, _| a);
        assert!(!are_alike(&unknown, &unknown, Rule::Printed), "nothing is predicted of them");
        assert!(are_alike(&unknown, &unknown, times), "their shortest times are alike");
        let without = Kernel { trend_ns: vec![], ..other };
        assert!(!are_alike(&fast, &without, times));
    }

    #[test]
    fn a_frequency_gives_each_kernel_as_many_data_points() {
        for ns in [1e6, 1e7, 1e9] {
            let hz = frequency_hz(20.0, ns, 1e6);
            assert!((hz * ns / 1e9 - 20.0).abs() < 1e-9);
        }
        assert_eq!(frequency_hz(20.0, 100.0, 10_000.0), 10_000.0);
        assert_eq!(frequency_hz(20.0, 0.0, 10_000.0), 10_000.0);
        assert!((duty(500.0, 1_000.0, 10.0) - 0.05).abs() < 1e-12);
        assert_eq!(duty(500.0, 10.0, 10.0), 1.0);
        assert_eq!(duty(500.0, 0.0, 10.0), 1.0);
    }
}
