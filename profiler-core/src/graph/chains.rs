//! Chains of calls between functions.

use super::call_graph::Graph;
use super::node::NodeId;
use super::site::Kinds;
use std::collections::VecDeque;

/// How far chains are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainLimits {
    /// Calls in a chain, at most.
    pub calls: usize,
    /// Chains, at most.
    pub chains: usize,
    /// Functions that are looked at on the way, at most: in graphs with much recursion most ways lead back.
    pub steps: usize,
}

impl Default for ChainLimits {
    /// 12 calls, 100 chains, 2 million steps: some tens of milliseconds.
    fn default() -> Self {
        Self { calls: 12, chains: 100, steps: 2_000_000 }
    }
}

/// Chains of calls, the shortest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chains {
    /// From caller to callee, both ends included; no function is twice in one chain.
    pub chains: Vec<Vec<NodeId>>,
    /// There may be longer ones.
    pub cut_by_calls: bool,
    /// There are more of the lengths told.
    pub cut_by_number: bool,
    /// The search was given up.
    pub cut_by_steps: bool,
}

impl Graph {
    /// The chains of calls from one of some functions to one of some others, by edges of these kinds. Chains of one length are in the order of
    /// call sites.
    #[must_use]
    pub fn chains(&self, from: &[NodeId], to: &[NodeId], kinds: Kinds, limits: ChainLimits) -> Chains {
        let distance = self.distances(to, kinds);
        let far = |id: NodeId| distance.get(id.index()).copied().flatten();
        let mut search = Search {
            graph: self,
            kinds,
            limits,
            far: &far,
            found: Chains::default(),
            steps: 0,
            on_chain: vec![false; self.len()],
            longer: false,
        };
        let mut starts: Vec<NodeId> = Vec::new();
        for id in from {
            if id.index() < self.len() && !starts.contains(id) {
                starts.push(*id);
            }
        }
        let nearest = starts.iter().filter_map(|id| far(*id)).min();
        for calls in nearest.unwrap_or(usize::MAX)..=limits.calls {
            search.longer = false;
            for start in &starts {
                search.of_length(*start, calls);
            }
            // Every way that was left is a dead end.
            if !search.longer || search.found.cut_by_number || search.found.cut_by_steps {
                break;
            }
        }
        let Search { mut found, longer, .. } = search;
        found.cut_by_calls = longer || nearest.is_some_and(|nearest| nearest > limits.calls);
        found
    }

    /// The least number of calls from each function to one of some.
    fn distances(&self, to: &[NodeId], kinds: Kinds) -> Vec<Option<usize>> {
        let mut distance: Vec<Option<usize>> = vec![None; self.len()];
        let mut queue: VecDeque<(NodeId, usize)> = to.iter().map(|id| (*id, 0)).collect();
        while let Some((id, far)) = queue.pop_front() {
            match distance.get_mut(id.index()) {
                Some(known @ None) => *known = Some(far),
                _ => continue,
            }
            let callers = self.callers(id).filter(|edge| edge.kinds.meets(kinds));
            queue.extend(callers.map(|edge| (edge.node, far.saturating_add(1))));
        }
        distance
    }
}

struct Search<'a, F: Fn(NodeId) -> Option<usize>> {
    graph: &'a Graph,
    kinds: Kinds,
    limits: ChainLimits,
    far: &'a F,
    found: Chains,
    steps: usize,
    on_chain: Vec<bool>,
    /// A way was left because it would be longer.
    longer: bool,
}

impl<F: Fn(NodeId) -> Option<usize>> Search<'_, F> {
    /// Finds the chains of exactly so many calls.
    fn of_length(&mut self, start: NodeId, calls: usize) {
        let (graph, kinds) = (self.graph, self.kinds);
        let next = |id: NodeId| graph.callees(id).filter(move |e| e.kinds.meets(kinds)).map(|e| e.node);
        if calls == 0 {
            if (self.far)(start) == Some(0) {
                self.keep(vec![start]);
            }
            self.longer |= next(start).any(|callee| (self.far)(callee).is_some());
            return;
        }
        let mut chain = vec![start];
        let mut ways = vec![next(start)];
        self.mark(start, true);
        while let Some(way) = ways.last_mut() {
            let Some(callee) = way.next() else {
                ways.pop();
                if let Some(done) = chain.pop() {
                    self.mark(done, false);
                }
                continue;
            };
            self.steps += 1;
            if self.steps > self.limits.steps {
                self.found.cut_by_steps = true;
            }
            if self.found.cut_by_steps || self.found.cut_by_number {
                break;
            }
            let Some(far) = (self.far)(callee) else { continue };
            if self.on_chain.get(callee.index()).is_none_or(|on| *on) {
                continue;
            }
            // With the call to it: the chain's calls so far, and those that are still needed.
            let (done, left) = (chain.len(), calls.saturating_sub(chain.len()));
            if done == calls {
                if far == 0 {
                    self.keep(chain.iter().copied().chain([callee]).collect());
                }
                // What ends here may go on.
                self.longer |= far > 0 || next(callee).any(|callee| (self.far)(callee).is_some());
            } else if far <= left {
                chain.push(callee);
                self.mark(callee, true);
                ways.push(next(callee));
            } else {
                self.longer = true;
            }
        }
        chain.into_iter().for_each(|id| self.mark(id, false));
    }

    fn mark(&mut self, id: NodeId, on: bool) {
        if let Some(mark) = self.on_chain.get_mut(id.index()) {
            *mark = on;
        }
    }

    fn keep(&mut self, chain: Vec<NodeId>) {
        if self.found.chains.len() >= self.limits.chains {
            self.found.cut_by_number = true;
        } else {
            self.found.chains.push(chain);
        }
    }
}
