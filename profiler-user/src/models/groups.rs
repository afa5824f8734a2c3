//! Kernels that share a frequency (ADLER §3.2): of a recording, in both readings of the rule, and of a run that goes on.
//!
//! What is alike, and how often that is to be recorded, `profiler_core::models` says; here are the kernels, their callers as far as they were recorded,
//! and the runs in which their times are compared.

mod kernel;
mod shared;

pub use shared::{Frequencies, Modelled, SharedGroup, frequencies, shared_groups};

use super::piles::{PileKey, Piles};
use super::{Key, Models, ModelsError};
use crate::recording::Stream;
use kernel::{Found, Known};
use profiler_core::burst::LARGEST_DUTY;
use profiler_core::models::{self, Class, Context, LoopCallGraph, Rule};
use profiler_core::recording::WindowRow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Times within this factor are alike, by the reading of ours.
pub const ALIKE: f64 = 2.0;

/// What is around everything that was recorded.
const OUTSIDE: &str = "";
/// Contexts are followed outwards so far.
const DEEPEST: usize = 32;

/// What is known of the calls of a function in a context, beside its model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Combinations of the decades of its inputs, as [`models::decades`].
    pub decades: u32,
    /// Calls per second while it was recorded, in this context. `None`: the recording has no window of it.
    pub calls_per_s: Option<f64>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { decades: 1, calls_per_s: None }
    }
}

/// A function or a loop in a calling context, as it is grouped.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupedKernel {
    /// Name.
    pub name: String,
    /// The timed call around it; of a loop its function's. `None`: there was none.
    pub context: Option<String>,
    /// It is a loop: it has no probe, and its data points are samples.
    pub is_loop: bool,
    /// Class by which it is grouped: the paper's where that is read as printed and has one.
    pub class: Class,
    /// Inputs that its time depends on.
    pub inputs: Vec<String>,
    /// Predicted times at the smallest, the middle (by logarithms) and the largest inputs that were seen, ns; of an unknown class the shortest call's.
    pub ns: [f64; 3],
    /// Of its calls.
    pub pace: Pace,
}

/// Kernels of one caller that share a frequency.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelGroup {
    /// The caller. `None`: there was no timed call around them.
    pub caller: Option<String>,
    /// The kernels.
    pub kernels: Vec<GroupedKernel>,
    /// Why they are together.
    pub why: String,
    /// The paper's frequency, N data points in a call of the kernel that takes least: at its smallest, middle and largest inputs, Hz.
    pub sampling_hz: [f64; 3],
    /// Recorded calls per second of each of its functions, Hz.
    pub calls_hz: f64,
}

/// The groups of a recording.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Groups {
    /// N: data points.
    pub datapoints: u32,
    /// As the paper prints the rule: leaves, loops among them.
    pub printed: Vec<KernelGroup>,
    /// Kernels that the printed rule does not group, because they contain others.
    pub containers: Vec<String>,
    /// Ours: functions whose predicted times are within a factor of [`ALIKE`].
    pub by_time: Vec<KernelGroup>,
}

impl KernelGroup {
    /// Duty of the bursts of a kernel: part of the time in which its calls are recorded. 1: all of the time. `None`: it has no probe, or its rate is
    /// not known.
    #[must_use]
    pub fn duty(&self, kernel: &GroupedKernel) -> Option<f64> {
        let rate = kernel.pace.calls_per_s.filter(|_| !kernel.is_loop)?;
        // More is no burst: it is traced.
        Some(models::duty(self.calls_hz, rate, 1.0)).map(|duty| if duty < LARGEST_DUTY { duty } else { 1.0 })
    }
}

/// A kernel, and where it stands.
struct Node<'a> {
    name: String,
    context: Option<String>,
    /// Names of the nodes from [`OUTSIDE`] to it, which are unique.
    path: Vec<String>,
    /// The caller, as it is told.
    caller: Option<String>,
    known: Known<'a>,
    pace: Pace,
}

impl Models {
    /// Kernels that share a frequency, for so many data points each. Empty for 0.
    #[must_use]
    pub fn groups(&self, datapoints: u32) -> Groups {
        if datapoints == 0 {
            return Groups::default();
        }
        let functions = self.function_nodes();
        let by_time = grouped(&functions, Rule::Time { factor: ALIKE }, datapoints).0;
        let mut all = functions;
        all.extend(self.loop_nodes());
        let (printed, containers) = grouped(&all, Rule::Printed, datapoints);
        Groups { datapoints, printed, containers, by_time }
    }

    fn function_nodes(&self) -> Vec<Node<'_>> {
        let rows = self.functions.iter().zip(self.paths()).filter_map(|(f, path)| {
            let found = match &f.found {
                Ok(model) => Found::Model(model),
                Err(none) => Found::Nothing { shortest_ns: none.shortest_ns? },
            };
            let known = Known { of: id(&f.key.0), found };
            Some(Node {
                name: f.name.clone(),
                context: f.context.clone(),
                path,
                caller: f.context.clone(),
                known,
                pace: f.pace,
            })
        });
        rows.collect()
    }

    /// The path of each function in its context. Functions of one name in one module are numbered: no two have the same path.
    fn paths(&self) -> Vec<Vec<String>> {
        let callers = Callers::new(self.functions.iter().map(|f| &f.key));
        let mut before: HashMap<&Key, u32> = HashMap::new();
        let mut paths = Vec::new();
        for function in &self.functions {
            let mut path = callers.path(&function.key);
            let number = before.entry(&function.key).or_default();
            if let Some(last) = path.last_mut().filter(|_| *number > 0) {
                *last = format!("{last} ({number})");
            }
            *number += 1;
            paths.push(path);
        }
        paths
    }

    /// Loops with a model, below their functions.
    fn loop_nodes(&self) -> Vec<Node<'_>> {
        let mut nodes = Vec::new();
        for (function, own_path) in self.functions.iter().zip(self.paths()) {
            let (Some(loops), Ok(model)) = (&function.loops, &function.found) else { continue };
            let told = |header: u64| loops.loops.iter().find(|l| l.header == header && l.found.is_ok());
            for own in &loops.loops {
                let Ok(found) = &own.found else { continue };
                let up = |header: &u64| loops.loops.iter().find(|l| l.header == *header)?.inside;
                let around = std::iter::successors(own.inside, up).take(loops.loops.len());
                let mut around: Vec<_> = around.filter_map(told).collect();
                around.reverse();
                let mut path = own_path.clone();
                let of = id(&function.key.0);
                path.extend(around.iter().chain([&own]).map(|l| format!("{of} loop {:x}", l.header)));
                nodes.push(Node {
                    name: format!("loop {}", own.name),
                    context: function.context.clone(),
                    path,
                    caller: Some(around.last().map_or_else(|| function.name.clone(), |l| l.name.clone())),
                    known: Known { of, found: Found::Loop(found, &loops.inputs, model) },
                    pace: Pace { calls_per_s: None, ..function.pace },
                });
            }
        }
        nodes
    }
}

/// What tells a function apart.
fn id((module, symbol): &Symbol) -> String {
    format!("{module}:{symbol}")
}

/// Who calls whom, as far as it was recorded: of a call the timed call around it.
struct Callers<'a>(HashMap<&'a Symbol, Vec<Option<&'a Symbol>>>);

/// Module and symbol.
type Symbol = (String, String);

impl<'a> Callers<'a> {
    fn new(keys: impl Iterator<Item = &'a Key>) -> Self {
        let mut of: HashMap<&Symbol, Vec<Option<&Symbol>>> = HashMap::new();
        keys.for_each(|(own, outer)| of.entry(own).or_default().push(outer.as_ref()));
        Self(of)
    }

    /// From outside to a function in a context. A caller that was itself seen in one context only stands in it. A function inside itself is another
    /// node than outside of it.
    fn path(&self, (own, outer): &Key) -> Vec<String> {
        let inside = outer.as_ref() == Some(own);
        let mut path = vec![if inside { format!("{} in itself", id(own)) } else { id(own) }];
        let mut next = outer.as_ref();
        while let Some(caller) = next.filter(|caller| !path.contains(&id(caller)) && path.len() < DEEPEST) {
            path.push(id(caller));
            next = self.0.get(caller).and_then(|all| <[_; 1]>::try_from(all.as_slice()).ok()?[0]);
        }
        path.push(OUTSIDE.to_owned());
        path.reverse();
        path
    }
}

/// Groups of the leaves, and the names of the kernels that are none.
fn grouped(nodes: &[Node<'_>], rule: Rule, datapoints: u32) -> (Vec<KernelGroup>, Vec<String>) {
    let mut graph = LoopCallGraph::default();
    let mut places: BTreeMap<Context, &Node<'_>> = BTreeMap::new();
    let mut contexts: Vec<Context> = Vec::new();
    for node in nodes {
        let path = match rule {
            Rule::Printed => node.path.clone(),
            // What contains others has a probe of its own: it is grouped as well.
            Rule::Time { .. } => {
                let (last, before) = node.path.split_last().map_or((OUTSIDE, &[][..]), |(l, b)| (l, b));
                before.iter().cloned().chain([format!("kernel {last}")]).collect()
            }
        };
        for pair in path.windows(2) {
            if let [outer, inner] = pair {
                graph.contains(outer, inner);
            }
        }
        let context = Context(path.iter().map(|name| graph.node(name)).collect());
        let before = places.insert(context.clone(), node);
        debug_assert!(before.is_none(), "two kernels have the path {:?}", node.path);
        if before.is_none() {
            contexts.push(context);
        }
    }
    if rule == Rule::Printed {
        nodes.iter().for_each(|node| may_contain(&mut graph, node));
    }
    let mut kernels: BTreeMap<Context, models::Kernel> = BTreeMap::new();
    for (caller, own) in by_caller(&places) {
        let runs = kernel::common_ranges(own.iter().map(|(_, node)| &node.known));
        for (context, node) in own {
            debug_assert_eq!(context.caller(), caller);
            kernels.insert(context.clone(), node.known.kernel(rule, &runs));
        }
    }
    let grouping = models::group(&graph, &contexts, &kernels, rule);
    let mut is_grouped: HashSet<&Context> = HashSet::new();
    let mut groups = Vec::new();
    for group in &grouping.groups {
        let of = |kernel: &usize| {
            let context = Context(group.caller.iter().copied().chain([*kernel]).collect());
            let (context, node) = places.get_key_value(&context)?;
            Some((context, *node, kernels.get(context)?))
        };
        let members: Vec<(&Context, &Node<'_>, &models::Kernel)> =
            group.kernels.iter().filter_map(of).collect();
        is_grouped.extend(members.iter().map(|(context, ..)| *context));
        groups.push(told(&members, rule, datapoints));
    }
    let others = contexts.iter().filter(|context| !is_grouped.contains(context));
    let containers = others.filter_map(|context| places.get(context)).map(|node| node.title()).collect();
    (groups, containers)
}

/// What is called in a function is called in any of that name, and in it inside itself, as far as it is known: none of them is a leaf.
fn may_contain(graph: &mut LoopCallGraph, node: &Node<'_>) {
    let of = &node.known.of;
    let Some(own) = node.path.last().filter(|own| *own != of && !node.is_loop()) else { return };
    // Its own other nodes and its loops have names that begin with its own.
    let prefix = format!("{of} ");
    let first = graph.node(of);
    let called = |child: &&usize| !graph.name(**child).starts_with(&prefix);
    let child = graph.children(first).iter().find(called).map(|child| graph.name(*child).to_owned());
    if let Some(child) = child {
        graph.contains(own, &child);
    }
}

type Own<'a, 'n> = Vec<(&'a Context, &'a Node<'n>)>;

fn by_caller<'a, 'n>(places: &'a BTreeMap<Context, &'a Node<'n>>) -> BTreeMap<&'a [usize], Own<'a, 'n>> {
    let mut all: BTreeMap<&[usize], Own<'a, 'n>> = BTreeMap::new();
    for (context, node) in places {
        all.entry(context.caller()).or_default().push((context, node));
    }
    all
}

impl Node<'_> {
    fn title(&self) -> String {
        self.context.as_ref().map_or_else(|| self.name.clone(), |outer| format!("{} in {outer}", self.name))
    }

    fn is_loop(&self) -> bool {
        matches!(self.known.found, Found::Loop(..))
    }

    fn grouped(&self, rule: Rule) -> GroupedKernel {
        GroupedKernel {
            name: self.name.clone(),
            context: self.context.clone(),
            is_loop: self.is_loop(),
            class: self.known.class(rule),
            inputs: self.known.critical(),
            ns: self.known.own_ns(),
            pace: self.pace,
        }
    }
}

/// A group of these, as it is told.
fn told(members: &[(&Context, &Node<'_>, &models::Kernel)], rule: Rule, datapoints: u32) -> KernelGroup {
    let kernels: Vec<GroupedKernel> = members.iter().map(|(_, node, _)| node.grouped(rule)).collect();
    let alike: Vec<&models::Kernel> = members.iter().map(|(.., kernel)| *kernel).collect();
    let shortest = |at: usize| {
        let ns = kernels.iter().filter_map(|k| k.ns.get(at).copied()).fold(f64::INFINITY, f64::min).max(1.0);
        models::frequency_hz(f64::from(datapoints), ns, f64::MAX)
    };
    let functions = kernels.iter().filter(|kernel| !kernel.is_loop);
    KernelGroup {
        caller: members.first().and_then(|(_, node, _)| node.caller.clone()),
        why: why(&alike, rule),
        sampling_hz: [shortest(0), shortest(1), shortest(2)],
        calls_hz: models::shared_hz(datapoints, functions.map(|kernel| kernel.pace.decades)),
        kernels,
    }
}

/// Why kernels are in one group.
fn why(kernels: &[&models::Kernel], rule: Rule) -> String {
    let Some((first, others)) = kernels.split_first() else { return String::new() };
    let class = first.class.name();
    let inputs: Vec<&str> =
        first.inputs.iter().map(|key| key.rsplit(": ").next().unwrap_or_default()).collect();
    let inputs = if inputs.is_empty() { "none".to_owned() } else { inputs.join(", ") };
    if others.is_empty() {
        return match first.class {
            Class::Unknown => "alone; of an unknown class: its shortest call counts".to_owned(),
            _ if rule == Rule::Printed => format!("alone; class {class}, inputs {inputs}"),
            _ => "alone".to_owned(),
        };
    }
    let is_same = |k: &&&models::Kernel| k.class == first.class && k.inputs == first.inputs;
    if rule == Rule::Printed && others.iter().filter(is_same).count() == others.len() {
        return format!("one class ({class}) and the same inputs ({inputs})");
    }
    let pairs = kernels.iter().enumerate();
    let pairs = pairs.flat_map(|(i, a)| kernels.iter().skip(i + 1).map(move |b| models::ratio(a, b)));
    let most = pairs.filter(|ratio| ratio.is_finite()).fold(1.0, f64::max);
    match rule {
        Rule::Printed => format!(
            "times that differ by at most 5 % (here {:.1} %), or one class and the same inputs",
            100.0 * (1.0 - 1.0 / most)
        ),
        Rule::Time { .. } => format!("times within a factor of {most:.2}"),
    }
}

/// Writes into functions how often they were called: hits in all windows over the time of these, by the part of its recorded calls that was in this
/// context.
///
/// # Errors
/// The recording cannot be opened, or a segment is of a later format.
pub(super) fn add_rates(
    path: &Path,
    piles: &Piles,
    functions: &mut [(PileKey, super::FunctionModel)],
) -> Result<(), ModelsError> {
    let of = |id: u32| piles.classes.get(&id).map(|class| (class.module.as_str(), class.address));
    let mut windows: HashMap<(&str, u64), (u64, u64)> = HashMap::new();
    Stream::open(path)?.each(|row: WindowRow| {
        let Some(function) = of(row.class_id) else { return };
        let (hits, ns) = windows.entry(function).or_default();
        *hits += row.attempted;
        *ns += row.end_ns.saturating_sub(row.start_ns);
    })?;
    let mut calls: HashMap<u32, u64> = HashMap::new();
    functions.iter().for_each(|((class, _), f)| *calls.entry(*class).or_default() += f.calls);
    for ((class, _), function) in functions {
        let Some((hits, ns)) = of(*class).and_then(|of| windows.get(&of)).filter(|(_, ns)| *ns > 0) else {
            continue;
        };
        let part = function.calls as f64 / calls.get(class).copied().unwrap_or(1).max(1) as f64;
        function.pace.calls_per_s = Some(part * *hits as f64 / (*ns as f64 / 1e9));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
