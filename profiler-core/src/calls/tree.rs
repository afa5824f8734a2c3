//! The calls of one operation as a tree, and how it is laid out in lines.

use super::bounds::{Bounds, bounds};
use super::code::Code;
use super::nest::{Link, nest};
use crate::recording::StepRow;
use std::collections::HashMap;

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Class of the function.
    pub class_id: u32,
    /// When it was entered, ktime ns.
    pub time_ns: u64,
    /// What it belongs to.
    pub link: Link,
    /// Calls around it.
    pub depth: usize,
    /// Calls made in it, in order.
    pub children: Vec<usize>,
    /// How long it lasted at least and at most.
    pub bounds: Bounds,
    /// Calls with the same shape have the same classes, marks and calls in them.
    shape: usize,
    /// Calls in it, and in those.
    below: usize,
}

/// The calls of an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallTree {
    /// In the order of their begin.
    pub nodes: Vec<Node>,
    /// Those that were called in none of them.
    pub roots: Vec<usize>,
}

/// A line of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Which call; of several that are folded, the first.
    pub node: usize,
    /// So many calls that follow one another and have the same shape.
    pub times: usize,
    /// Calls in it that are not shown, because they lie too deep.
    pub hidden: usize,
}

/// What is left out of the lines of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Levels of calls that are shown, from 1.
    pub levels: usize,
    /// Calls that follow one another and have the same shape become one line.
    pub folds: bool,
}

impl CallTree {
    /// Of the steps of a complete operation, in the order of their numbers; it ends at `end_ns`.
    #[must_use]
    pub fn new(steps: &[StepRow], code: &Code, end_ns: u64) -> Self {
        let nesting = nest(steps, code);
        let bounds = bounds(steps, &nesting, end_ns);
        let mut tree = Self::default();
        for (index, ((step, link), bounds)) in steps.iter().zip(&nesting.links).zip(bounds).enumerate() {
            let parent = link.parent.and_then(|parent| tree.nodes.get_mut(parent));
            let depth = parent.as_ref().map_or(0, |parent| parent.depth + 1);
            match parent {
                Some(parent) => parent.children.push(index),
                None => tree.roots.push(index),
            }
            let (class_id, time_ns) = (step.class_id, step.time_ns);
            let children = Vec::new();
            tree.nodes.push(Node {
                class_id,
                time_ns,
                link: *link,
                depth,
                children,
                bounds,
                shape: 0,
                below: 0,
            });
        }
        tree.shape();
        tree
    }

    /// Gives the same number to calls that look the same. Those in a call come after it.
    fn shape(&mut self) {
        let mut shapes = HashMap::new();
        for index in (0..self.nodes.len()).rev() {
            let Some(node) = self.nodes.get(index) else { continue };
            let inner: Vec<&Node> = node.children.iter().filter_map(|child| self.nodes.get(*child)).collect();
            let below = inner.iter().map(|child| child.below + 1).sum();
            let children: Vec<usize> = inner.iter().map(|child| child.shape).collect();
            let next = shapes.len();
            let key = (node.class_id, node.link.kind, node.link.is_ambiguous, children);
            let shape = *shapes.entry(key).or_insert(next);
            if let Some(node) = self.nodes.get_mut(index) {
                (node.shape, node.below) = (shape, below);
            }
        }
    }

    /// Its lines from top to bottom.
    #[must_use]
    pub fn lines(&self, layout: Layout) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut waiting: Vec<Line> = self.level(&self.roots, layout);
        while let Some(mut line) = waiting.pop() {
            if let Some(node) = self.nodes.get(line.node) {
                if node.depth + 1 >= layout.levels {
                    line.hidden = node.below;
                } else {
                    waiting.extend(self.level(&node.children, layout));
                }
                lines.push(line);
            }
        }
        lines
    }

    /// Lines of calls that were made in the same one, the last one first.
    fn level(&self, calls: &[usize], layout: Layout) -> Vec<Line> {
        let shape = |index: usize| self.nodes.get(index).map(|node| node.shape);
        let mut lines: Vec<Line> = Vec::new();
        for call in calls {
            match lines.last_mut() {
                Some(line) if layout.folds && shape(line.node) == shape(*call) => line.times += 1,
                _ => lines.push(Line { node: *call, times: 1, hidden: 0 }),
            }
        }
        lines.reverse();
        lines
    }

    /// Calls whose link is marked ambiguous.
    #[must_use]
    pub fn ambiguous(&self) -> usize {
        self.nodes.iter().filter(|node| node.link.is_ambiguous).count()
    }
}
