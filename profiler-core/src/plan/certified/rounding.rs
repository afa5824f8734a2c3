//! Plans near the relaxation's solutions: what the search prunes with.

use super::super::model::{Item, SLACK};
use super::bound::Bound;
use super::node::{Node, hash};
use super::primal::{Solution, complete, floor};
use super::search::{Bursts, Search};

impl Search<'_> {
    /// Offers plans near the relaxation's solutions.
    pub fn round(&mut self, node: &Node, bound: &Bound) {
        for (picked, extra) in self.roundings(node, bound) {
            match self.bursts {
                Some(bursts) => self.offer(node, &picked, extra, bursts),
                None => self.offer_split(node, &picked),
            }
        }
    }

    /// At both ends: what the relaxation traces whole; the same and what else fits; with bursts also the item at
    /// which it stops, as a burst.
    fn roundings(&mut self, node: &Node, bound: &Bound) -> Vec<(Vec<u32>, Option<u32>)> {
        let mut found = Vec::new();
        for e in 0..2 {
            let lambda = bound.critical[e];
            let (p, c) = (&self.relaxation.p[e], &self.relaxation.cost);
            let mut room = self.relaxation.room[e];
            let mut whole = Vec::new();
            let mut rest = Vec::new();
            for (k, &i) in node.free.iter().enumerate() {
                if p[k] > lambda * c[k] && c[k] <= room {
                    whole.push(i);
                    room -= c[k];
                } else if p[k] > 0.0 {
                    rest.push(k);
                }
            }
            self.work += node.free.len() as u64;
            // The densest of the rest, in order; a few are enough. Classes of one price and weight have one density
            // but for the last bits: the largest of those first, it leaves the small ones to fill up with.
            let density = |k: usize| if c[k] > 0.0 { (p[k] / c[k]) as f32 } else { f32::INFINITY };
            let by_density = |a: &usize, b: &usize| {
                density(*b).total_cmp(&density(*a)).then(c[*b].total_cmp(&c[*a])).then(a.cmp(b))
            };
            if rest.len() > 256 {
                rest.select_nth_unstable_by(255, by_density);
                rest.truncate(256);
            }
            rest.sort_unstable_by(by_density);
            if let (Some(_), Some(&k)) = (self.bursts, rest.first()) {
                found.push((whole.clone(), Some(node.free[k])));
            }
            let mut more = whole.clone();
            for k in rest {
                if c[k] <= room {
                    room -= c[k];
                    more.push(node.free[k]);
                }
            }
            if more.len() > whole.len() {
                more.sort_unstable();
                found.push((more, None));
            }
            found.push((whole, None));
        }
        found
    }

    /// Offers the split that traces the node's traced items and these.
    pub fn offer_split(&mut self, node: &Node, picked: &[u32]) {
        let model = self.model;
        let (mut cost, mut full, mut key) = (node.cost, node.full, node.hash);
        for &i in picked {
            let item = &model.items[i as usize];
            cost += item.cost;
            full += item.full;
            key ^= hash(i);
        }
        // The slope of the rest: the sampled, and the free that are not picked.
        let mut slope = node.slope;
        let mut chosen = picked.iter().peekable();
        for i in &node.free {
            if chosen.next_if_eq(&i).is_none() {
                slope += model.items[*i as usize].slope;
            }
        }
        self.work += node.free.len() as u64;
        let attached = || node.complex.iter().chain(picked).map(|&i| &model.items[i as usize]);
        let any = slope + model.derived_slope() + attached().map(Item::derived_slope).sum::<f64>();
        let s = model.best_s(cost, any, node.min_s);
        let derived: f64 = attached().flat_map(|item| &item.derived).map(|d| d.value(s)).sum();
        let value = model.base_value(s) + full + derived + s * slope;
        if value * (1.0 + SLACK) <= self.best.threshold() || self.best.knows((key, 0), f64::NEG_INFINITY) {
            return;
        }
        let mut traced = self.traced(node);
        traced.extend_from_slice(picked);
        self.work += model.items.len() as u64;
        if let Some(candidate) = model.candidate(traced) {
            self.offer_candidate(candidate);
        }
    }

    /// Offers the plan that traces the node's traced items and these, with the node's bursts and one more.
    pub fn offer(&mut self, node: &Node, picked: &[u32], extra: Option<u32>, bursts: Bursts) {
        let mut traced = self.traced(node);
        traced.extend_from_slice(picked);
        let mut burst = node.burst.clone();
        burst.extend(extra);
        // Items that may choose: all traced, or all in bursts (tracing them may leave no room).
        burst.extend_from_slice(&node.either);
        self.offer_duties(&traced, &burst, (node.lo, node.hi), bursts);
        if !node.either.is_empty() {
            burst.truncate(burst.len() - node.either.len());
            traced.extend_from_slice(&node.either);
            self.offer_duties(&traced, &burst, (node.lo, node.hi), bursts);
        }
    }

    /// Offers the plan that keeps the minimum rates at `s` as cheaply as can be, and nothing else.
    pub fn offer_cheapest(&mut self, s: f64, bursts: Bursts) {
        let (mut traced, mut burst) = (Vec::new(), Vec::new());
        for (i, item) in (0u32..).zip(&self.model.items) {
            if item.min_s > s {
                let duty = floor(self.model, bursts, i, s);
                let cheaper = duty < 1.0 && duty * item.cost + bursts.charge < item.cost;
                if cheaper { burst.push(i) } else { traced.push(i) }
            }
        }
        self.offer_duties(&traced, &burst, (s, s), bursts);
    }

    fn offer_duties(&mut self, traced: &[u32], burst: &[u32], interval: (f64, f64), bursts: Bursts) {
        self.work += self.model.items.len() as u64;
        let Some((value, s, duties)) = complete(self.model, bursts, traced, burst, interval) else { return };
        if value <= self.best.threshold() {
            return;
        }
        let key = |whole| duties.iter().filter(|d| (d.1 >= 1.0) == whole).fold(0, |h, d| h ^ hash(d.0));
        let hash = (key(true), key(false));
        self.best.keep(Solution { value, s, duties, hash });
    }
}
