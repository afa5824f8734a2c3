//! Call graphs against a disassembler: every call and every jump to another function that `objdump` shows is in the graph, and the graph has
//! no other. Against what runs: [`executed`]. Needs no root.

mod executed;
mod stepped;

use profiler_core::graph::{CallSite, EdgeKind, Kinds, NodeId, Transfer, Way};
use profiler_user::inspect::graph::CallGraph;
use profiler_user::inspect::{KernelRules, Pattern};
use regex::Regex;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

fn graph_of(path: &Path) -> CallGraph {
    CallGraph::of(path, KernelRules::for_version(6, 18)).unwrap_or_else(|error| panic!("{error}"))
}

fn named(graph: &CallGraph, pattern: &str) -> NodeId {
    let found = graph.find(&Pattern::parse(pattern).unwrap());
    assert_eq!(
        found.len(),
        1,
        "{pattern}: {found:?} {}",
        graph.why_nothing(&Pattern::parse(pattern).unwrap())
    );
    found[0]
}

/// A direct branch as `objdump` prints it.
#[derive(Debug, Clone)]
struct Branch {
    call: bool,
    to: u64,
    /// The name of a stub: `puts` of `puts@plt`.
    stub: Option<String>,
}

/// The direct branches of a file by address, those of its stubs left out.
fn disassembled(path: &Path) -> BTreeMap<u64, Branch> {
    let output = Command::new("objdump").args(["-d", "-w", "--no-show-raw-insn"]).arg(path).output().unwrap();
    assert!(output.status.success(), "objdump: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let line = Regex::new(
        r"^\s*([0-9a-f]+):\s+(?:[A-Za-z0-9.]+ )*?(call|j[a-z]+|loop[a-z]*|xbegin)\s+(?:0x)?([0-9a-f]+)(?: <([^>]*)>)?$",
    )
    .unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let mut branches = BTreeMap::new();
    let mut in_stubs = false;
    for text in text.lines() {
        if let Some(section) = text.strip_prefix("Disassembly of section ") {
            in_stubs = section.starts_with(".plt") || section.starts_with(".iplt");
        }
        let Some(found) = line.captures(text).filter(|_| !in_stubs) else { continue };
        // A program without symbols has no names.
        let stub = found.get(4).and_then(|name| name.as_str().strip_suffix("@plt"));
        let stub = stub.map(|name| name.split('@').next().unwrap_or(name).to_owned());
        let branch = Branch { call: &found[2] == "call", to: hex(&found[3]), stub };
        branches.insert(hex(&found[1]), branch);
    }
    branches
}

/// What a graph and a disassembly have in common, and what only one of them has.
#[derive(Debug, Default)]
struct Figures {
    calls: usize,
    jumps: usize,
    only_disassembler: Vec<String>,
    only_graph: Vec<String>,
}

/// Compares a file's graph with its disassembly.
fn compare(path: &Path) -> Figures {
    let graph = graph_of(path);
    let g = &graph.graph;
    let expected = disassembled(path);
    let Figures { mut calls, mut jumps, only_disassembler: mut wrong, mut only_graph } = Figures::default();
    for (at, branch) in &expected {
        let Some(caller) = g.covering(*at) else {
            wrong.push(format!("{at:#x}: no function holds {branch:x?}"));
            continue;
        };
        // A call of a weak name that nothing defines: the linker leaves address 0, and the graph says that no code is there.
        if branch.to == 0 && g.node(caller).is_some_and(|node| node.stray_branches > 0) {
            continue;
        }
        let site = g.site(caller, *at);
        let own = g.node(caller).is_some_and(|node| node.contains(branch.to));
        if !branch.call && own && g.at(branch.to).is_none_or(|to| to == caller) {
            if site.is_some() {
                wrong.push(format!("{at:#x}: {site:x?} is a jump inside"));
            }
            continue;
        }
        match site {
            Some(site) if leads(&graph, site, branch) => {
                *(if branch.call { &mut calls } else { &mut jumps }) += 1
            }
            _ => wrong.push(format!("{at:#x}: {branch:x?} is {site:x?}")),
        }
    }
    for site in g.all_sites() {
        let direct = matches!(site.way, Way::Direct | Way::Plt) && site.transfer != Transfer::Fall;
        if direct && !expected.contains_key(&site.at) {
            only_graph.push(format!("{site:x?} is not in the disassembly"));
        }
    }
    println!(
        "{}: {calls} calls and {jumps} jumps agree, {} only objdump has, {} only the graph has",
        path.display(),
        wrong.len(),
        only_graph.len()
    );
    Figures { calls, jumps, only_disassembler: wrong, only_graph }
}

/// Compares a file's graph with its disassembly, which must agree; the numbers of calls and jumps.
fn agree(path: &Path) -> (usize, usize) {
    let Figures { calls, jumps, only_disassembler, only_graph } = compare(path);
    let wrong: Vec<String> = only_disassembler.into_iter().chain(only_graph).collect();
    assert!(
        wrong.is_empty(),
        "{}: {} wrong: {:#?}",
        path.display(),
        wrong.len(),
        &wrong[..wrong.len().min(20)]
    );
    (calls, jumps)
}

/// Whether a site leads where the disassembler says.
fn leads(graph: &CallGraph, site: &CallSite, branch: &Branch) -> bool {
    let Some(node) = site.to.and_then(|to| graph.graph.node(to)) else { return false };
    if (site.transfer == Transfer::Call) != branch.call {
        return false;
    }
    match &branch.stub {
        // The slot of an IFUNC, by the address of its resolver.
        Some(name) if name.starts_with("*ABS*+0x") => {
            let resolver = u64::from_str_radix(name.trim_start_matches("*ABS*+0x"), 16).ok();
            site.way == Way::Plt && node.address() == resolver
        }
        Some(name) => {
            site.way == Way::Plt
                && std::iter::once(&node.symbol).chain(&node.aliases).any(|symbol| symbol == name)
        }
        // In a stripped program the disassembler has no name for a stub.
        None if site.way == Way::Plt => true,
        None if site.inside => node.contains(branch.to),
        None => node.address() == Some(branch.to),
    }
}

#[test]
fn programs_in_c_agree_with_the_disassembler() {
    for (name, calls) in
        [("graph-c", 20), ("graph-c-got", 10), ("graph-c-fixed", 20), ("graph-c-static", 2000)]
    {
        let (found, jumps) = agree(&profiler_tests::program(name));
        assert!(found >= calls && jumps >= 2, "{name}: {found} calls, {jumps} jumps");
    }
}

#[test]
fn programs_in_cpp_and_rust_agree_with_the_disassembler() {
    let (calls, _) = agree(&profiler_tests::program("graph-cpp"));
    assert!(calls > 50, "{calls} calls");
    let (calls, jumps) = agree(&profiler_tests::program("rust-panic"));
    assert!(calls > 1_000 && jumps > 20, "{calls} calls, {jumps} jumps");
}

#[test]
fn sqlite_agrees_with_the_disassembler() {
    let (calls, jumps) = agree(&profiler_tests::program("sqlite-load"));
    assert!(calls > 10_000 && jumps > 20, "{calls} calls, {jumps} jumps");
}

/// What the source says.
#[test]
fn the_graph_of_a_c_program_is_that_of_its_source() {
    let graph = graph_of(&profiler_tests::program("graph-c"));
    let g = &graph.graph;
    let id = |name: &str| named(&graph, name);
    let kinds = |from: &str, to: &str| {
        let edge = g.callees(id(from)).find(|edge| edge.node == id(to));
        edge.map(|edge| edge.kinds.iter().collect::<Vec<_>>()).unwrap_or_default()
    };
    assert_eq!(kinds("tail", "twice"), [EdgeKind::Tail]);
    assert_eq!(kinds("fib", "fib"), [EdgeKind::Call]);
    assert_eq!(kinds("ways", "puts"), [EdgeKind::Plt]);
    assert_eq!(kinds("main", "by_number"), [EdgeKind::Taken]);
    assert_eq!(kinds("with_cold_part", "unlikely"), [EdgeKind::Call], "the cold part is its own");
    assert_eq!(g.node(id("with_cold_part")).unwrap().ranges.len(), 2);
    assert_eq!(kinds("cold_case", "unlikely"), [EdgeKind::Call], "its table alone leads to the part");
    assert_eq!(g.node(id("cold_case")).unwrap().facts.unresolved_jumps, 0);
    let pointer = g.sites(id("through_pointer"));
    assert!(
        matches!(pointer, [site] if site.is_indirect() && site.transfer == Transfer::Call),
        "{pointer:?}"
    );
    let jump = g.sites(id("tail_through_pointer"));
    assert!(matches!(jump, [site] if site.is_indirect() && site.transfer == Transfer::Jump), "{jump:?}");
    assert!(["add", "twice", "minus"].iter().all(|name| g.node(id(name)).unwrap().held));
    assert!(g.sites(id("ways")).iter().all(|site| !site.is_indirect()), "the table is inside");
    assert_eq!(g.node(id("ways")).unwrap().facts.unresolved_jumps, 0);
    let loops = g.loops(id("loops")).unwrap();
    assert_eq!(loops.loops.iter().map(|l| l.depth).collect::<Vec<_>>(), [1, 2, 1]);
    assert!(loops.irreducible.is_empty() && !loops.uncertain);
    let component =
        g.components(Kinds::CALLS).recursive.into_iter().find(|c| c.contains(&id("even"))).unwrap();
    assert!(component.contains(&id("odd")) && component.len() == 2, "{component:?}");
    let unreachable = g.unreachable();
    assert!(!unreachable.contains(&id("add")) && !unreachable.contains(&id("by_number")));
}

#[test]
fn loops_with_exceptions_are_natural() {
    let graph = graph_of(&profiler_tests::program("graph-cpp"));
    let tries = named(&graph, "tries(int)");
    let loops = graph.graph.loops(tries).unwrap();
    // What is caught goes on with the next turn.
    assert!(!loops.loops.is_empty() && loops.irreducible.is_empty() && !loops.uncertain, "{loops:x?}");
    let total = named(&graph, "shapes::total");
    let virtual_call = graph.graph.sites(total).iter().filter(|site| site.is_indirect()).count();
    assert_eq!((virtual_call, graph.graph.loops(total).unwrap().loops.len()), (1, 1));
    assert!(
        graph.graph.node(named(&graph, "shapes::Square::area")).unwrap().held,
        "in the table of its class"
    );
}
