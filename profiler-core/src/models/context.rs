//! The loop call graph, and the calling contexts of its kernels (Definition 31, Fig. 2).

use std::collections::BTreeMap;

/// Longest context: recursion ends there.
const DEEPEST: usize = 64;

/// Functions and loops, and what each contains, in the order in which it is executed.
#[derive(Debug, Clone, Default)]
pub struct LoopCallGraph {
    names: Vec<String>,
    numbers: BTreeMap<String, usize>,
    children: Vec<Vec<usize>>,
}

/// A kernel in one calling context: the nodes from the root to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Context(pub Vec<usize>);

impl Context {
    /// The kernel itself.
    #[must_use]
    pub fn kernel(&self) -> Option<usize> {
        self.0.last().copied()
    }

    /// The context that calls it.
    #[must_use]
    pub fn caller(&self) -> &[usize] {
        self.0.split_last().map_or(&[], |(_, rest)| rest)
    }

    /// Nodes in it: the paper's level.
    #[must_use]
    pub fn level(&self) -> usize {
        self.0.len()
    }
}

impl LoopCallGraph {
    /// Number of a node; it is made if there is none with this name.
    pub fn node(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len();
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        self.children.push(Vec::new());
        number
    }

    /// `outer` calls (or contains) `inner`, after what it was already said to call. Said twice, it counts once.
    pub fn contains(&mut self, outer: &str, inner: &str) {
        let (outer, inner) = (self.node(outer), self.node(inner));
        if let Some(children) = self.children.get_mut(outer)
            && !children.contains(&inner)
        {
            children.push(inner);
        }
    }

    /// Name of a node.
    #[must_use]
    pub fn name(&self, node: usize) -> &str {
        self.names.get(node).map_or("?", String::as_str)
    }

    /// What a node contains, in order.
    #[must_use]
    pub fn children(&self, node: usize) -> &[usize] {
        self.children.get(node).map_or(&[], Vec::as_slice)
    }

    /// Contexts of all kernels below `root`, depth first. A node is not entered again inside itself: recursion is one context.
    ///
    /// `most`: no more than these are made; a graph has a number of paths that grows without bound.
    #[must_use]
    pub fn contexts(&self, root: &str, most: usize) -> Vec<Context> {
        let mut found = Vec::new();
        let Some(root) = self.numbers.get(root) else { return found };
        let mut open = vec![vec![*root]];
        while let Some(path) = open.pop() {
            if found.len() >= most {
                break;
            }
            let Some(node) = path.last() else { continue };
            if path.len() < DEEPEST {
                for child in self.children(*node).iter().rev().filter(|c| !path.contains(c)) {
                    let mut longer = path.clone();
                    longer.push(*child);
                    open.push(longer);
                }
            }
            if path.len() > 1 {
                found.push(Context(path));
            }
        }
        found
    }

    /// `main → f1 → f4`.
    #[must_use]
    pub fn text(&self, context: &Context) -> String {
        context.0.iter().map(|n| self.name(*n)).collect::<Vec<_>>().join(" → ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adler_fig2_seven_contexts() {
        let mut graph = LoopCallGraph::default();
        for (outer, inner) in [
            ("main", "f1"),
            ("main", "f2"),
            ("main", "lp1"),
            ("f1", "f4"),
            ("f1", "f5"),
            ("f2", "f5"),
            ("f2", "f6"),
        ] {
            graph.contains(outer, inner);
        }
        let contexts: Vec<String> =
            graph.contexts("main", 100).iter().map(|context| graph.text(context)).collect();
        assert_eq!(
            contexts,
            [
                "main → f1",
                "main → f1 → f4",
                "main → f1 → f5",
                "main → f2",
                "main → f2 → f5",
                "main → f2 → f6",
                "main → lp1",
            ]
        );
    }

    #[test]
    fn recursion_and_many_paths_end() {
        let mut graph = LoopCallGraph::default();
        graph.contains("main", "a");
        graph.contains("a", "b");
        graph.contains("b", "a");
        graph.contains("a", "a");
        assert_eq!(graph.contexts("main", 100).len(), 2);
        let mut wide = LoopCallGraph::default();
        for layer in 0..20 {
            for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                wide.contains(&format!("{layer} {a}"), &format!("{} {b}", layer + 1));
            }
        }
        assert_eq!(wide.contexts("0 0", 1_000).len(), 1_000);
        assert!(graph.contexts("none", 10).is_empty());
    }
}
