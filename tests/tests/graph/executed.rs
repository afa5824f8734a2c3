//! Call graphs against what runs: whatever leads from one function of a program to another, or out of it, while it is stepped
//! through must be an edge of its graph, or a site that is listed as indirect.

use super::graph_of;
use super::stepped::{self, Executed, Step};
use iced_x86::FlowControl;
use profiler_core::graph::{CallSite, NodeId, Way};
use profiler_user::inspect::graph::CallGraph;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

/// What was executed, each pair of call site and callee once.
#[derive(Debug, Default)]
struct Figures {
    /// Edges of the graph.
    edges: usize,
    /// From sites that are listed as indirect, or by IFUNC.
    indirect: usize,
    /// Neither.
    missing: Vec<String>,
}

/// Where control went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Callee {
    Function(NodeId),
    /// A function of another module.
    Outside,
}

struct Checked<'a> {
    graph: &'a CallGraph,
    sites: HashMap<u64, Vec<CallSite>>,
    /// Where the steps from an address led.
    next: BTreeMap<u64, BTreeSet<Option<u64>>>,
}

impl Checked<'_> {
    /// What is behind an address: through stubs, which are in no function.
    fn callee(&self, mut to: Option<u64>) -> Option<Callee> {
        let graph = &self.graph.graph;
        for _ in 0..8 {
            let Some(at) = to else { return Some(Callee::Outside) };
            if let Some(id) = graph.at(at).or_else(|| graph.covering(at)) {
                return Some(Callee::Function(id));
            }
            // A stub leads to one place.
            to = *self.next.get(&at)?.first()?;
        }
        None
    }

    /// The callee of a step that must have a site.
    fn leaves(&self, executed: &Executed, to: Option<u64>) -> Option<Callee> {
        let graph = &self.graph.graph;
        let caller = graph.covering(executed.at)?;
        let call = matches!(executed.flow, FlowControl::Call | FlowControl::IndirectCall);
        match executed.flow {
            FlowControl::Return | FlowControl::Interrupt | FlowControl::Exception => None,
            // The rest of a signal, or of a step that the tracer did not see whole.
            FlowControl::Next if to != Some(executed.next) => None,
            _ if call && to != Some(executed.next) => self.callee(to),
            _ => {
                let at_start = to.is_some_and(|to| graph.at(to).is_some_and(|id| id != caller));
                let own = to.is_some_and(|to| graph.node(caller).is_some_and(|node| node.contains(to)));
                if own && !at_start { None } else { self.callee(to) }
            }
        }
    }

    fn check(&self, (executed, to): &Step, figures: &mut Figures, once: &mut HashSet<(u64, Callee)>) {
        let Some(callee) = self.leaves(executed, *to) else { return };
        if !once.insert((executed.at, callee)) {
            return;
        }
        let graph = &self.graph.graph;
        let sites = self.sites.get(&executed.at).map_or(&[][..], Vec::as_slice);
        let node = |site: &CallSite| site.to.and_then(|to| graph.node(to));
        let edge = |site: &CallSite| match callee {
            Callee::Function(id) => site.to == Some(id),
            // The loader may have bound a name to another module's function.
            Callee::Outside => {
                node(site).is_some_and(|node| node.is_import() || matches!(site.way, Way::Plt | Way::Got))
            }
        };
        if sites.iter().any(edge) {
            figures.edges += 1;
        } else if sites.iter().any(|site| site.is_indirect() || node(site).is_some_and(|node| node.ifunc)) {
            figures.indirect += 1;
        } else {
            figures
                .missing
                .push(format!("{executed:x?} led to {to:x?} ({callee:?}), the graph has {sites:x?}"));
        }
    }
}

/// Steps through a program and asks the graph for each edge.
fn executed(program: &Path, arguments: &[&str], stdin: &str, most: u64) -> Figures {
    let graph = graph_of(program);
    let (steps, ran) = stepped::run(program, arguments, stdin.as_bytes(), most);
    let mut sites: HashMap<u64, Vec<CallSite>> = HashMap::new();
    for site in graph.graph.all_sites() {
        sites.entry(site.at).or_default().push(*site);
    }
    let mut next: BTreeMap<u64, BTreeSet<Option<u64>>> = BTreeMap::new();
    for (executed, to) in &steps {
        next.entry(executed.at).or_default().insert(*to);
    }
    let checked = Checked { graph: &graph, sites, next };
    let (mut figures, mut once) = (Figures::default(), HashSet::new());
    for step in &steps {
        checked.check(step, &mut figures, &mut once);
    }
    println!(
        "{}: {ran} instructions, {} different ones of the file; {} executed edges are in the graph, {} are listed as indirect, {} are missing",
        program.display(),
        checked.next.len(),
        figures.edges,
        figures.indirect,
        figures.missing.len()
    );
    assert!(figures.missing.is_empty(), "{}: {:#?}", program.display(), figures.missing);
    figures
}

#[test]
fn executed_edges_of_c_programs_are_in_the_graph() {
    for name in ["graph-c", "graph-c-got", "graph-c-fixed", "graph-c-static"] {
        let figures = executed(&profiler_tests::program(name), &["1", "2"], "", 1_000_000);
        assert!(figures.edges >= 15 && figures.indirect >= 2, "{name}: {figures:?}");
    }
}

#[test]
fn executed_edges_of_a_cpp_and_a_rust_program_are_in_the_graph() {
    let figures = executed(&profiler_tests::program("graph-cpp"), &["1", "2"], "", 1_000_000);
    assert!(figures.edges >= 50 && figures.indirect >= 2, "{figures:?}");
    let figures = executed(&profiler_tests::program("rust-panic"), &[], "panic 3\nplain 2\n", 1_000_000);
    assert!(figures.edges >= 100 && figures.indirect >= 5, "{figures:?}");
}

#[test]
fn executed_edges_of_sqlite_are_in_the_graph() {
    let program = profiler_tests::program("sqlite-load");
    let figures = executed(&program, &["--threads", "1", "--seconds", "600"], "", 1_000_000);
    assert!(figures.edges >= 500 && figures.indirect >= 30, "{figures:?}");
}
