//! Trees of calls and chains of calls, for people.

use super::super::{TextOptions, count, shorten};
use super::summary;
use super::{Labels, Query, plural};
use crate::inspect::graph::CallGraph;
use profiler_core::graph::{ChainLimits, Edge, EdgeKind, NodeId, Transfer};
use profiler_core::text::printable;
use std::collections::HashSet;
use std::fmt::Write as _;

/// Levels of a tree unless the user says otherwise.
const LEVELS: usize = 4;
/// Least columns of a name.
const LEAST_NAME: usize = 24;

/// The text for people: a tree of callees, of callers, chains, or the summary.
#[must_use]
pub fn text(graph: &CallGraph, query: &Query, options: TextOptions) -> String {
    match (query.from.is_empty(), query.to.is_empty()) {
        (true, true) => summary::summary(graph, options),
        (false, false) => chains(graph, query),
        (false, true) => Tree::new(graph, query, options, false).draw(),
        (true, false) => Tree::new(graph, query, options, true).draw(),
    }
}

fn chains(call_graph: &CallGraph, query: &Query) -> String {
    let defaults = ChainLimits::default();
    let limits = ChainLimits { calls: query.depth.unwrap_or(defaults.calls), chains: query.rows, ..defaults };
    let found = call_graph.graph.chains(&query.from, &query.to, query.kinds(), limits);
    let labels = Labels::of(call_graph, found.chains.iter().flatten().copied());
    let mut out = String::new();
    for chain in &found.chains {
        let names: Vec<&str> = chain.iter().map(|id| labels.get(*id)).collect();
        let _ = writeln!(out, "{}", names.join(" -> "));
    }
    if !out.is_empty() {
        out.push('\n');
    }
    let calls = |chain: Option<&Vec<NodeId>>| chain.map_or(0, |chain| chain.len().saturating_sub(1));
    let _ = match found.chains.as_slice() {
        [] => writeln!(out, "no chain of at most {}", plural(limits.calls, "call")),
        all => {
            let (shortest, longest) = (calls(all.first()), plural(calls(all.last()), "call"));
            let from = if all.len() > 1 { format!("{shortest} to ") } else { String::new() };
            writeln!(out, "{} of {from}{longest}", plural(all.len(), "chain"))
        }
    };
    if found.cut_by_number {
        let _ = writeln!(out, "there are more than {} (--rows)", count(limits.chains as f64));
    }
    if found.cut_by_calls {
        let _ = writeln!(
            out,
            "chains of more than {} were not looked for (--depth)",
            plural(limits.calls, "call")
        );
    }
    if found.cut_by_steps {
        let _ = writeln!(
            out,
            "the search was given up after {} steps: a smaller --depth ends",
            count(limits.steps as f64)
        );
    }
    if !query.addresses_taken {
        out.push_str("calls through pointers are not among them (--addresses-taken guesses some)\n");
    }
    out
}

/// A line of a tree before it has names.
struct Row {
    /// What stands before the name.
    lead: String,
    what: What,
}

enum What {
    Function { id: NodeId, marks: String },
    Text(String),
}

struct Tree<'a> {
    graph: &'a CallGraph,
    query: &'a Query,
    options: TextOptions,
    /// Callers instead of callees.
    upwards: bool,
    levels: usize,
    rows: Vec<Row>,
    /// Functions whose calls were listed.
    listed: HashSet<NodeId>,
    /// Lines that did not fit.
    left_out: usize,
}

impl<'a> Tree<'a> {
    fn new(graph: &'a CallGraph, query: &'a Query, options: TextOptions, upwards: bool) -> Self {
        let levels = query.depth.unwrap_or(LEVELS);
        Self { graph, query, options, upwards, levels, rows: Vec::new(), listed: HashSet::new(), left_out: 0 }
    }

    fn draw(mut self) -> String {
        let roots = if self.upwards { &self.query.to } else { &self.query.from };
        for root in roots {
            self.walk(*root);
        }
        let ids: Vec<NodeId> = self.rows.iter().filter_map(Row::id).collect();
        let labels = Labels::of(self.graph, ids);
        let mut out = String::new();
        for row in &self.rows {
            let _ = match &row.what {
                What::Function { id, marks } => {
                    let room = self.options.width.saturating_sub(length(&row.lead) + length(marks) + 2);
                    let name = shorten(labels.get(*id), room.max(LEAST_NAME));
                    let gap = if marks.is_empty() { "" } else { "  " };
                    writeln!(out, "{}{name}{gap}{marks}", row.lead)
                }
                What::Text(text) => writeln!(out, "{}{text}", row.lead),
            };
        }
        if self.left_out > 0 {
            let _ = writeln!(out, "… and {} more lines (--rows)", count(self.left_out as f64));
        }
        out.push('\n');
        out.push_str(&self.totals());
        out
    }

    /// Lists a function and what it calls, each function's calls once.
    fn walk(&mut self, root: NodeId) {
        /// A function whose edges are being listed.
        struct Level {
            edges: Vec<Edge>,
            next: usize,
            indent: String,
        }
        let kinds = self.query.kinds();
        let edges = |tree: &Self, id: NodeId| -> Vec<Edge> {
            let graph = &tree.graph.graph;
            let all: Vec<Edge> = match tree.upwards {
                true => graph.callers(id).copied().collect(),
                false => graph.callees(id).copied().collect(),
            };
            all.into_iter().filter(|edge| edge.kinds.meets(kinds)).collect()
        };
        let marks = self.marks(root, None, "");
        self.push(String::new(), What::Function { id: root, marks });
        if !self.listed.insert(root) {
            return;
        }
        self.indirect(root, "", edges(self, root).is_empty());
        let mut path = vec![root];
        let mut levels = vec![Level { edges: edges(self, root), next: 0, indent: String::new() }];
        while let Some(level) = levels.last_mut() {
            let Some(edge) = level.edges.get(level.next).copied() else {
                levels.pop();
                path.pop();
                continue;
            };
            level.next += 1;
            let last = level.next == level.edges.len();
            let (indent, depth) = (level.indent.clone(), path.len());
            let lead = format!("{indent}{}", if last { "└─ " } else { "├─ " });
            let below = format!("{indent}{}", if last { "   " } else { "│  " });
            let inner = edges(self, edge.node);
            let state = match () {
                () if path.contains(&edge.node) => "recursive",
                () if inner.is_empty() && self.count_indirect(edge.node) == (0, 0) => "",
                () if self.listed.contains(&edge.node) => "see above",
                () if depth >= self.levels && !inner.is_empty() => "goes on",
                () => "",
            };
            let marks = self.marks(edge.node, Some(edge), state);
            self.push(lead, What::Function { id: edge.node, marks });
            let expand = state.is_empty() && depth < self.levels && self.listed.insert(edge.node);
            if expand {
                self.indirect(edge.node, &below, inner.is_empty());
                path.push(edge.node);
                levels.push(Level { edges: inner, next: 0, indent: below });
            }
        }
    }

    fn push(&mut self, lead: String, what: What) {
        if self.rows.len() < self.query.rows {
            self.rows.push(Row { lead, what });
        } else {
            self.left_out += 1;
        }
    }

    /// Indirect calls and indirect jumps of a function of which nothing was seen.
    fn count_indirect(&self, id: NodeId) -> (usize, usize) {
        if self.upwards {
            return (0, 0);
        }
        let graph = &self.graph.graph;
        let sites =
            graph.sites(id).iter().filter(|s| s.is_indirect() && graph.seen(id, s.at).next().is_none());
        let calls = sites.clone().filter(|site| site.transfer == Transfer::Call).count();
        (calls, sites.count() - calls)
    }

    /// A line for what a function calls through pointers.
    fn indirect(&mut self, id: NodeId, indent: &str, last: bool) {
        let (calls, jumps) = self.count_indirect(id);
        let mut parts = Vec::new();
        if calls > 0 {
            parts.push(plural(calls, "indirect call"));
        }
        if jumps > 0 {
            parts.push(plural(jumps, "indirect jump"));
        }
        if !parts.is_empty() {
            let lead = format!("{indent}{}", if last { "└─ " } else { "├─ " });
            self.push(lead, What::Text(format!("({})", parts.join(", "))));
        }
    }

    /// What is said behind a name.
    fn marks(&self, id: NodeId, edge: Option<Edge>, state: &str) -> String {
        let graph = &self.graph.graph;
        let mut marks: Vec<String> = Vec::new();
        if let Some(edge) = edge {
            if edge.sites > 1 {
                marks.push(format!("×{}", edge.sites));
            }
            let said = |kind: &EdgeKind| !matches!(kind, EdgeKind::Call | EdgeKind::Plt | EdgeKind::Got);
            marks.extend(edge.kinds.iter().filter(said).map(|kind| kind_word(kind).to_owned()));
        }
        if let Some(node) = graph.node(id) {
            if node.is_import() {
                marks.push("import".to_owned());
            }
            if node.ifunc {
                marks.push("chosen at load time".to_owned());
            }
            if node.facts.undecoded_bytes > 0 {
                marks.push("not all decoded".to_owned());
            }
        }
        if let Some(loops) = graph.loops(id).filter(|_| !self.upwards) {
            let deep =
                if loops.deepest() > 1 { format!(", {} deep", loops.deepest()) } else { String::new() };
            if !loops.loops.is_empty() {
                marks.push(format!("{}{deep}", plural(loops.loops.len(), "loop")));
            }
            if !loops.irreducible.is_empty() {
                marks.push("irreducible".to_owned());
            }
        }
        if !state.is_empty() {
            marks.push(state.to_owned());
        }
        marks.join(", ")
    }

    /// What is reached, or reaches, in all.
    fn totals(&self) -> String {
        let (graph, kinds) = (&self.graph.graph, self.query.kinds());
        let reached = match self.upwards {
            true => graph.reaching(&self.query.to, kinds, usize::MAX),
            false => graph.reachable(&self.query.from, kinds, usize::MAX),
        };
        let imports = reached
            .nodes
            .iter()
            .filter(|(id, _)| graph.node(*id).is_some_and(|node| node.is_import()))
            .count();
        let functions = reached.nodes.len() - imports;
        let deepest = reached.nodes.last().map_or(0, |(_, depth)| *depth);
        if self.upwards {
            return format!(
                "{} can get there, these included, in at most {}; calls through pointers are not among them\n",
                plural(functions, "function"),
                plural(deepest as usize, "call")
            );
        }
        let sites = || reached.nodes.iter().flat_map(|(id, _)| graph.sites(*id));
        let loops: usize =
            reached.nodes.iter().filter_map(|(id, _)| graph.loops(*id)).map(|loops| loops.loops.len()).sum();
        let indirect = sites().filter(|site| site.is_indirect()).count();
        let mut out = format!(
            "{} and {} of {} reached in at most {}: {}, {} through pointers, {}\n",
            plural(functions, "function"),
            plural(imports, "import"),
            printable(&self.graph.module),
            plural(deepest as usize, "call"),
            plural(sites().count(), "call site"),
            count(indirect as f64),
            plural(loops, "loop")
        );
        let taken = self.query.addresses_taken;
        if indirect > 0 && !taken {
            out.push_str(
                "what is called through pointers is not followed (--addresses-taken guesses some)\n",
            );
        }
        out
    }
}

impl Row {
    fn id(&self) -> Option<NodeId> {
        match &self.what {
            What::Function { id, .. } => Some(*id),
            What::Text(_) => None,
        }
    }
}

fn kind_word(kind: EdgeKind) -> &'static str {
    match kind {
        EdgeKind::Tail => "tail jump",
        EdgeKind::Fall => "runs on",
        EdgeKind::Taken => "address taken",
        other => other.name(),
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}
