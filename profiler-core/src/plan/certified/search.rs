//! Best-first search over subproblems.

use super::super::exhaustive::identical;
use super::super::model::{Candidate, Model, SLACK};
use super::super::{Options, Plan, Strategy};
use super::bound::{Bound, Floored, Relaxation};
use super::node::{Node, hash};
use super::primal::{Best, Solution, floor};
use std::collections::BinaryHeap;

/// How bursts may be made in this search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bursts {
    /// `d_min`.
    pub min_duty: f64,
    /// Fixed charge of a burst class, CPU s/s.
    pub charge: f64,
    /// Whether a burst may be longer than its floor.
    pub interior: bool,
}

/// Free lists of open subproblems may hold so many entries (4 bytes each).
const MAX_STORED: usize = 50_000_000;

/// No fixings yet.
const ROOT: u32 = u32::MAX;

pub(super) struct Search<'a> {
    pub model: &'a Model<'a>,
    pub bursts: Option<Bursts>,
    gap: f64,
    work_limit: u64,
    pub best: Best,
    open: BinaryHeap<Node>,
    stored: usize,
    /// Traced items fixed at each step: (step before, items).
    fixings: Vec<(u32, Vec<u32>)>,
    pub relaxation: Relaxation,
    pub work: u64,
    /// Largest bound of what was given up within the tolerance or for want of work.
    given_up: f64,
}

impl<'a> Search<'a> {
    pub fn new(model: &'a Model<'a>, bursts: Option<Bursts>, options: &Options, work_limit: u64) -> Self {
        Self {
            model,
            bursts,
            gap: options.gap.max(4.0 * SLACK),
            work_limit: options.work_limit.unwrap_or(work_limit),
            best: Best { top: options.top.max(1), list: Vec::new() },
            open: BinaryHeap::new(),
            stored: 0,
            fixings: Vec::new(),
            relaxation: Relaxation::default(),
            work: 0,
            given_up: f64::NEG_INFINITY,
        }
    }

    pub fn set_interior(&mut self, interior: bool) {
        if let Some(bursts) = &mut self.bursts {
            bursts.interior = interior;
        }
    }

    pub fn found_nothing(&self) -> bool {
        self.best.list.is_empty()
    }

    /// Takes a split found elsewhere.
    pub fn offer_candidate(&mut self, candidate: Candidate) {
        let key = candidate.traced.iter().fold(0, |h, &i| h ^ hash(i));
        let duties = candidate.traced.into_iter().map(|i| (i, 1.0)).collect();
        self.best.keep(Solution { value: candidate.value, s: candidate.s, duties, hash: (key, 0) });
    }

    /// Searches all plans with sampling rates from `lo` to `hi`.
    pub fn run(&mut self, lo: f64, hi: f64) {
        let model = self.model;
        #[expect(clippy::cast_possible_truncation, reason = "class indexes are below 2^32")]
        let free = (0..model.items.len() as u32).collect();
        self.push(Node {
            bound: f64::INFINITY,
            lo,
            hi,
            free,
            either: Vec::new(),
            burst: Vec::new(),
            complex: Vec::new(),
            cost: model.base_cost,
            full: 0.0,
            slope: model.base_slope,
            min_s: model.s_min,
            path: ROOT,
            hash: 0,
        });
        while let Some(node) = self.open.pop() {
            self.stored -= node.free.len();
            if self.closed(node.bound) {
                continue;
            }
            if self.spent() && node.bound.is_finite() {
                // The heap gives the largest bound first: it holds for everything that is still open.
                self.given_up = self.given_up.max(node.bound);
                self.open.clear();
                self.stored = 0;
                return;
            }
            // Down to a leaf along the likelier children: that is where good plans are found.
            let mut next = Some(node);
            while let Some(node) = next {
                next = self.visit(node);
                if next.as_ref().is_some_and(|node| self.closed(node.bound)) {
                    next = None;
                }
                if self.spent()
                    && let Some(node) = next.take()
                {
                    self.push(node);
                }
            }
        }
    }

    /// Whether the search has used up its work or its memory.
    fn spent(&self) -> bool {
        self.work > self.work_limit || self.stored > MAX_STORED
    }

    /// The best plans found. The bound is on *every* plan, so it is also that of the second best.
    pub fn plans(&self, strategy: Strategy) -> Vec<Plan> {
        let bound = self.best.value().max(self.given_up);
        let plan = |s: &Solution| self.model.plan_with_duties(&s.duties, s.s, strategy, bound);
        self.best.list.iter().map(plan).collect()
    }

    /// Whether a subproblem with this bound need not be looked at. Remembers what the tolerance let go.
    fn closed(&mut self, bound: f64) -> bool {
        let threshold = self.best.threshold();
        if bound <= threshold + self.gap * threshold.abs() {
            if bound > self.best.value() {
                self.given_up = self.given_up.max(bound);
            }
            return true;
        }
        false
    }

    fn push(&mut self, node: Node) {
        self.stored += node.free.len();
        self.open.push(node);
    }

    /// Bounds a subproblem, and splits it; the likeliest part is returned, the others are put aside.
    fn visit(&mut self, mut node: Node) -> Option<Node> {
        if !self.tighten(&mut node) {
            return None;
        }
        self.fill_relaxation(&node);
        let threshold = self.best.threshold();
        let slack = if threshold.is_finite() { 0.01 * (node.bound - threshold).abs() } else { f64::INFINITY };
        let slack = if slack.is_finite() { slack } else { 1e-3 * self.relaxation.constant[1].abs() };
        let bound = self.relaxation.bound(slack);
        self.work += std::mem::take(&mut self.relaxation.work);
        node.bound = node.bound.min(bound.value());
        self.round(&node, &bound);
        if self.closed(node.bound) {
            return None;
        }
        self.fix(&mut node, &bound);
        self.branch(node, &bound)
    }

    /// Narrows the interval to what the fixings allow and fixes what cannot be otherwise; false if nothing is left.
    fn tighten(&mut self, node: &mut Node) -> bool {
        let model = self.model;
        let price = model.sample_cost;
        let budget = model.budget * (1.0 + SLACK);
        loop {
            let mut room = budget - node.cost;
            if let Some(bursts) = self.bursts {
                for &i in node.burst.iter().chain(&node.either) {
                    let item = &model.items[i as usize];
                    let least = floor(model, bursts, i, node.hi) * item.cost + bursts.charge;
                    room -= if node.either.contains(&i) { least.min(item.cost) } else { least };
                }
            }
            if room < 0.0 {
                return false;
            }
            node.lo = node.lo.max(node.min_s);
            if price > 0.0 {
                node.hi = node.hi.min(room / price);
            }
            if node.lo > node.hi {
                // A last bit of rounding is no reason to lose the end of the interval.
                if node.lo > node.hi * (1.0 + SLACK) {
                    return false;
                }
                node.hi = node.lo;
            }
            let most = room - node.lo * price;
            self.work += node.free.len() as u64;
            let mut sum = 0.0;
            let mut changed = false;
            let (mut off, mut full, mut either) = (Vec::new(), Vec::new(), Vec::new());
            for &i in &node.free {
                let item = &model.items[i as usize];
                sum += item.cost;
                if item.min_s > node.hi {
                    changed = true;
                    if self.bursts.is_some() { either.push(i) } else { full.push(i) }
                } else if item.cost > most && self.bursts.is_none() {
                    off.push(i);
                    sum -= item.cost;
                }
            }
            changed |= off.iter().any(|&i| model.items[i as usize].min_s > node.lo);
            if !off.is_empty() || !full.is_empty() || !either.is_empty() {
                self.set(node, &off, &full);
                node.free.retain(|i| either.binary_search(i).is_err());
                node.either.extend(either);
            }
            // With everything affordable traced, `s` is as small as it gets.
            if self.bursts.is_none() && price > 0.0 {
                let least = ((model.budget - node.cost - sum) / price * (1.0 - SLACK)).min(model.s_max);
                if least > node.hi * (1.0 + 4.0 * SLACK) {
                    return false;
                }
                node.lo = node.lo.max(least.min(node.hi));
            }
            if !changed {
                return true;
            }
        }
    }

    /// Fixes items: sampled only, or traced.
    fn set(&mut self, node: &mut Node, off: &[u32], full: &[u32]) {
        for &i in off {
            let item = &self.model.items[i as usize];
            node.slope += item.slope;
            node.min_s = node.min_s.max(item.min_s);
        }
        for &i in full {
            let item = &self.model.items[i as usize];
            node.cost += item.cost;
            node.full += item.full;
            node.hash ^= hash(i);
            if !item.derived.is_empty() {
                node.complex.push(i);
            }
        }
        if !full.is_empty() {
            self.fixings.push((node.path, full.to_vec()));
            #[expect(clippy::cast_possible_truncation, reason = "the work limit is reached long before")]
            let path = (self.fixings.len() - 1) as u32;
            node.path = path;
        }
        // Both lists are in the order of `free`.
        let (mut off, mut full) = (off.iter().peekable(), full.iter().peekable());
        node.free.retain(|i| off.next_if_eq(&i).is_none() && full.next_if_eq(&i).is_none());
    }

    fn fill_relaxation(&mut self, node: &Node) {
        let model = self.model;
        let ends = [node.lo, node.hi];
        let relaxation = &mut self.relaxation;
        self.work += 2 * node.free.len() as u64;
        relaxation.cost.clear();
        relaxation.floored.clear();
        let mut slope = node.slope;
        for e in 0..2 {
            relaxation.p[e].clear();
        }
        for &i in &node.free {
            let item = &model.items[i as usize];
            slope += item.slope;
            relaxation.p[0].push(item.profit(ends[0]));
            relaxation.p[1].push(item.profit(ends[1]));
            relaxation.cost.push(item.cost);
        }
        if let Some(bursts) = self.bursts {
            relaxation.charge = bursts.charge;
            for (list, may_trace) in [(&node.either, true), (&node.burst, false)] {
                for &i in list {
                    let item = &model.items[i as usize];
                    slope += item.slope;
                    relaxation.floored.push(Floored {
                        p: ends.map(|s| item.profit(s)),
                        cost: item.cost,
                        floor: floor(model, bursts, i, node.hi),
                        may_trace,
                        interior: bursts.interior,
                    });
                }
            }
        }
        for (e, s) in ends.into_iter().enumerate() {
            let derived: f64 =
                node.complex.iter().flat_map(|&i| &model.items[i as usize].derived).map(|d| d.value(s)).sum();
            relaxation.constant[e] = model.base_value(s) + node.full + derived + s * slope;
            relaxation.room[e] = (model.budget * (1.0 + SLACK) - node.cost - s * model.sample_cost).max(0.0);
        }
    }

    /// The items that the node traces.
    pub fn traced(&self, node: &Node) -> Vec<u32> {
        let mut all = Vec::new();
        let mut step = node.path;
        while step != ROOT {
            let (before, items) = &self.fixings[step as usize];
            all.extend_from_slice(items);
            step = *before;
        }
        all
    }

    /// Fixes every free item whose other choice would push the bound below what is known.
    fn fix(&mut self, node: &mut Node, bound: &Bound) {
        let threshold = self.best.threshold();
        if !threshold.is_finite() {
            return;
        }
        let limit = threshold + self.gap * threshold.abs();
        let (mut off, mut full) = (Vec::new(), Vec::new());
        let mut let_go = f64::NEG_INFINITY;
        self.work += node.free.len() as u64;
        for (k, &i) in node.free.iter().enumerate() {
            let c = self.relaxation.cost[k];
            let gain = [0, 1].map(|e| self.relaxation.p[e][k] - bound.lambda * c);
            // What is lost, at each end, by tracing, by a burst, and by neither.
            let flipped = |loss: [f64; 2]| (bound.at[0] - loss[0]).max(bound.at[1] - loss[1]);
            let if_full = flipped(gain.map(|g| (-g).max(0.0)));
            let if_off = flipped(gain.map(|g| g.max(0.0)));
            let if_burst = self.bursts.map_or(f64::NEG_INFINITY, |b| {
                let charge = bound.lambda * b.charge;
                flipped(gain.map(|g| {
                    let longest = if b.interior && g > 0.0 { 1.0 } else { b.min_duty };
                    g.max(0.0) - longest * g + charge
                }))
            });
            if if_full.max(if_burst) <= limit {
                off.push(i);
                let_go = let_go.max(if_full).max(if_burst);
            } else if if_off.max(if_burst) <= limit {
                full.push(i);
                let_go = let_go.max(if_off).max(if_burst);
            }
        }
        if let_go > self.best.value() {
            self.given_up = self.given_up.max(let_go);
        }
        if !off.is_empty() || !full.is_empty() {
            self.set(node, &off, &full);
        }
    }

    fn branch(&mut self, node: Node, bound: &Bound) -> Option<Node> {
        if node.free.is_empty() && node.either.is_empty() {
            return self.leaf(node, bound);
        }
        let ends = bound.relaxed[0].max(bound.relaxed[1]);
        let by_interval = bound.value() - ends;
        let known = self.best.threshold().max(0.0);
        let wide = node.hi - node.lo > 1e-13 * node.hi;
        if wide && by_interval > 0.25 * (bound.value() - known) {
            return Some(self.halve(node, bound));
        }
        if let Some(&i) = node.either.first() {
            let mut traced = node.clone();
            traced.either.remove(0);
            // `set` takes free items only; this one never was.
            traced.free.insert(traced.free.partition_point(|&j| j < i), i);
            self.set(&mut traced, &[], &[i]);
            self.push(traced);
            let mut burst = node;
            burst.either.remove(0);
            burst.burst.push(i);
            return Some(burst);
        }
        self.branch_on_item(node, bound)
    }

    fn halve(&mut self, node: Node, bound: &Bound) -> Node {
        let middle = 0.5 * (node.lo + node.hi);
        let low = Node { hi: middle, ..node.clone() };
        let high = Node { lo: middle, ..node };
        let (likely, other) = if bound.relaxed[0] >= bound.relaxed[1] { (low, high) } else { (high, low) };
        self.push(other);
        likely
    }

    /// Everything is decided but the sampling rate and the length of bursts.
    fn leaf(&mut self, node: Node, bound: &Bound) -> Option<Node> {
        match self.bursts {
            None => {
                self.offer_split(&node, &[]);
                None
            }
            Some(bursts) => {
                self.offer(&node, &[], None, bursts);
                let wide = node.hi - node.lo > 1e-12 * node.hi;
                let settled = !bursts.interior || node.burst.is_empty();
                if settled || self.closed(node.bound.min(bound.value())) {
                    return None;
                }
                if wide {
                    return Some(self.halve(node, bound));
                }
                self.given_up = self.given_up.max(node.bound);
                None
            }
        }
    }

    /// Branches on the item that is least settled: the largest among those whose change costs little.
    fn branch_on_item(&mut self, node: Node, bound: &Bound) -> Option<Node> {
        let model = self.model;
        let e = usize::from(bound.at[1] > bound.at[0]);
        let s = [node.lo, node.hi][e];
        let lambda = bound.lambda;
        let threshold = self.best.threshold();
        let gap = if threshold.is_finite() { bound.value() - threshold } else { bound.value() };
        let gain = |i: u32| model.items[i as usize].profit(s) - lambda * model.items[i as usize].cost;
        let unsettled = |i: u32| {
            let item = &model.items[i as usize];
            let size = lambda * item.cost + item.profit(s).abs();
            size / (gain(i).abs() + 0.1 * gap).max(f64::MIN_POSITIVE)
        };
        self.work += 2 * node.free.len() as u64;
        let pivot = node.free.iter().copied().max_by(|&a, &b| unsettled(a).total_cmp(&unsettled(b)))?;
        let like = &model.items[pivot as usize];
        let alike = |&i: &u32| i == pivot || identical(like, &model.items[i as usize]);
        let mut twins: Vec<u32> = node.free.iter().copied().filter(alike).collect();
        if self.bursts.is_some() {
            // Bursts break the order among twins: each on its own.
            twins = vec![pivot];
            let mut burst = node.clone();
            burst.free.retain(|&i| i != pivot);
            burst.burst.push(pivot);
            self.push(burst);
        }
        // Among identical items the first ones are traced: branch in the middle of their number.
        let place = twins.len() / 2;
        let likely_traced = gain(pivot) > 0.0;
        let mut off = node.clone();
        self.set(&mut off, &twins[place..], &[]);
        let mut full = node;
        self.set(&mut full, &[], &twins[..=place]);
        let (likely, other) = if likely_traced { (full, off) } else { (off, full) };
        self.push(other);
        Some(likely)
    }
}
