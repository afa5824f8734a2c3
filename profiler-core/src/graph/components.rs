//! Strongly connected components: functions that can all reach one another (recursion).
//!
//! R. E. Tarjan, "Depth-first Search and Linear Graph Algorithms", SIAM J. Comput. 1(2), 1972; without recursion of ours.

use super::call_graph::Graph;
use super::csr::Csr;
use super::node::NodeId;
use super::site::Kinds;

/// The recursive parts of a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Components {
    /// Functions that can all reach one another, the largest component first; a function that only calls itself is one, too. Functions
    /// without recursion are left out.
    pub recursive: Vec<Vec<NodeId>>,
}

impl Graph {
    /// The components by edges of these kinds.
    #[must_use]
    pub fn components(&self, kinds: Kinds) -> Components {
        let edges = self.edges().filter(|(_, edge)| edge.kinds.meets(kinds));
        let edges: Vec<(u32, u32)> = edges.map(|(from, edge)| (from.0, edge.node.0)).collect();
        let mut recursive: Vec<Vec<NodeId>> = strong(self.len(), &edges)
            .into_iter()
            .map(|component| component.into_iter().map(NodeId).collect())
            .collect();
        recursive.sort_by_key(|c: &Vec<NodeId>| (std::cmp::Reverse(c.len()), c.first().copied()));
        Components { recursive }
    }
}

/// The components of a graph of `n` vertices that have an edge inside: several vertices, or one that leads to itself. Vertices in order.
pub(super) fn strong(n: usize, edges: &[(u32, u32)]) -> Vec<Vec<u32>> {
    const NONE: u32 = u32::MAX;
    let next = Csr::new(n, edges);
    // Indices are numbers of vertices, below n: edges of others are skipped.
    let mut number = vec![NONE; n];
    let mut low = vec![NONE; n];
    let mut on_stack = vec![false; n];
    let mut stack: Vec<u32> = Vec::new();
    let mut found = Vec::new();
    let mut count = 0;
    // A vertex, and how many of its edges were followed.
    let mut walk: Vec<(u32, usize)> = Vec::new();
    for root in 0..n {
        if number[root] != NONE {
            continue;
        }
        walk.push((root as u32, 0)); // OK because there are no more vertices than u32 counts
        while let Some((v, followed)) = walk.pop() {
            let at = v as usize;
            if followed == 0 {
                (number[at], low[at]) = (count, count);
                count += 1;
                stack.push(v);
                on_stack[at] = true;
            }
            if let Some(w) = next.of(v).get(followed).copied() {
                walk.push((v, followed + 1));
                match number.get(w as usize) {
                    Some(&NONE) => walk.push((w, 0)),
                    Some(&number) if on_stack[w as usize] => low[at] = low[at].min(number),
                    _ => {}
                }
                continue;
            }
            if let Some((parent, _)) = walk.last() {
                let parent = *parent as usize;
                low[parent] = low[parent].min(low[at]);
            }
            if low[at] == number[at] {
                let from = stack.iter().rposition(|w| *w == v).unwrap_or(0);
                let mut component = stack.split_off(from);
                component.iter().for_each(|w| on_stack[*w as usize] = false);
                component.sort_unstable();
                if component.len() > 1 || next.of(v).contains(&v) {
                    found.push(component);
                }
            }
        }
    }
    found
}
