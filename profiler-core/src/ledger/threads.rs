//! The budget of single threads: one event loop must not pay for the observation of 64 cores.
//!
//! No thread may lose more than its limit (twice the budget unless the user says otherwise) of its own CPU time in a second.
//! [`ThreadBudget`] keeps what each thread used and lost, by class, over a sliding second, and names those above. [`Spread`]
//! keeps how the hits of each class are spread over threads, and [`ThreadBounds`] asks with it which classes of a plan one
//! thread could not bear.

use super::FLOOR_CPU_PER_S;
use crate::class::ClassId;
use std::collections::{BTreeMap, VecDeque};

/// A thread that lost more than its share.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadOver {
    /// Thread.
    pub tid: u32,
    /// Monitoring CPU / own CPU of the thread over the last second.
    pub overhead: f64,
    /// What it lost beyond its limit, CPU s/s.
    pub excess: f64,
    /// What it may lose, CPU s/s.
    pub allowed: f64,
    /// What each class took from it, CPU s/s.
    pub classes: Vec<(ClassId, f64)>,
}

/// Keeps each thread's own CPU time and what it lost, over a sliding second.
#[derive(Debug, Clone, Default)]
pub struct ThreadBudget {
    threads: BTreeMap<u32, VecDeque<Slice>>,
}

/// What one thread used and lost in an interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// End, ktime ns.
    pub end_ns: u64,
    /// Length, ns.
    pub length_ns: u64,
    /// CPU time used, monitoring included, ns.
    pub cpu_ns: f64,
    /// CPU time that samples and switches took, ns.
    pub other_ns: f64,
    /// CPU time that hits took, by class, ns.
    pub classes: Vec<(ClassId, f64)>,
}

impl Slice {
    fn cost_ns(&self) -> f64 {
        self.other_ns + self.classes.iter().map(|(_, ns)| ns).sum::<f64>()
    }
}

/// A thread with less own CPU time than this, CPU s/s, is judged as if it had used so much: at twice the budget it may then
/// lose what the floor of the token bucket allows the process, so that a service that wakes up is not starved.
const LEAST_CPU: f64 = 0.5 * FLOOR_CPU_PER_S;
const WINDOW_NS: u64 = 1_000_000_000;

impl ThreadBudget {
    /// Notes an interval of one thread.
    pub fn note(&mut self, tid: u32, slice: Slice) {
        self.threads.entry(tid).or_default().push_back(slice);
    }

    /// Forgets what is older than a second before `now_ns`, and threads with nothing left.
    pub fn expire(&mut self, now_ns: u64) {
        let oldest = now_ns.saturating_sub(WINDOW_NS);
        self.threads.retain(|_, slices| {
            while slices.front().is_some_and(|s| s.end_ns <= oldest) {
                slices.pop_front();
            }
            !slices.is_empty()
        });
    }

    /// Threads that lost more than `limit` (0.04 for 2 B at B = 2 %) of their own CPU time in the second before `now_ns`,
    /// worst first. What was seen for a part of the second only counts as if nothing had been lost in the rest.
    #[must_use]
    pub fn over(&mut self, now_ns: u64, limit: f64) -> Vec<ThreadOver> {
        self.expire(now_ns);
        let judge = |(&tid, slices): (&u32, &VecDeque<Slice>)| {
            let seen_ns: f64 = slices.iter().map(|s| s.length_ns as f64).sum();
            let cost_ns: f64 = slices.iter().map(Slice::cost_ns).sum();
            let own_ns: f64 = slices.iter().map(|s| (s.cpu_ns - s.cost_ns()).max(0.0)).sum();
            // As much per second as in what was seen.
            let second_ns = WINDOW_NS as f64;
            let own_ns = (own_ns * second_ns / seen_ns.max(1.0)).max(LEAST_CPU * second_ns);
            let overhead = cost_ns / own_ns;
            (overhead > limit).then(|| {
                let mut classes: BTreeMap<ClassId, f64> = BTreeMap::new();
                for (class, ns) in slices.iter().flat_map(|s| &s.classes) {
                    *classes.entry(*class).or_default() += ns / second_ns;
                }
                let allowed = limit * own_ns / second_ns;
                let excess = cost_ns / second_ns - allowed;
                ThreadOver { tid, overhead, excess, allowed, classes: classes.into_iter().collect() }
            })
        };
        let mut over: Vec<ThreadOver> = self.threads.iter().filter_map(judge).collect();
        over.sort_by(|a, b| b.overhead.total_cmp(&a.overhead).then(a.tid.cmp(&b.tid)));
        over
    }
}

/// Lets what is said again and again through ever more rarely: at once, then after pauses of 4 s that double up to 64 s.
#[derive(Debug, Clone, Default)]
pub struct Notices {
    last_ns: Option<u64>,
    pause_ns: u64,
}

impl Notices {
    /// To be asked each time that there is something to say; whether it may be said. After twice the longest pause without a
    /// word all begins anew.
    pub fn due(&mut self, now_ns: u64) -> bool {
        const FIRST_NS: u64 = 4_000_000_000;
        const LONGEST_NS: u64 = 64_000_000_000;
        let since = self.last_ns.map_or(u64::MAX, |last| now_ns.saturating_sub(last));
        if since < self.pause_ns {
            return false;
        }
        self.pause_ns = if since > 2 * LONGEST_NS { FIRST_NS } else { (2 * self.pause_ns).min(LONGEST_NS) };
        self.last_ns = Some(now_ns);
        true
    }
}

/// How the hits of each class are spread over the threads, the last seconds weighing most.
#[derive(Debug, Clone, Default)]
pub struct Spread {
    classes: BTreeMap<ClassId, BTreeMap<u32, f64>>,
}

/// Half-life of what is known of a class, s of the time in which it was hit.
const HALF_LIFE_S: f64 = 5.0;

impl Spread {
    /// Notes the hits of a class by thread in an interval of `elapsed_s`; one without hits changes nothing.
    pub fn note(&mut self, class: ClassId, elapsed_s: f64, hits: &[(u32, u64)]) {
        if hits.iter().all(|(_, n)| *n == 0) {
            return;
        }
        let threads = self.classes.entry(class).or_default();
        let keep = 0.5_f64.powf(elapsed_s / HALF_LIFE_S);
        for weight in threads.values_mut() {
            *weight *= keep;
        }
        for (tid, n) in hits {
            *threads.entry(*tid).or_default() += *n as f64;
        }
        let sum: f64 = threads.values().sum();
        threads.retain(|_, weight| *weight > 1e-4 * sum);
    }

    /// Forgets threads that have ended.
    pub fn keep_threads(&mut self, alive: impl Fn(u32) -> bool) {
        self.classes.retain(|_, threads| {
            threads.retain(|tid, _| alive(*tid));
            !threads.is_empty()
        });
    }

    /// The part of a class's hits that falls on each thread; empty if nothing is known.
    pub fn of(&self, class: ClassId) -> impl Iterator<Item = (u32, f64)> + '_ {
        let threads = self.classes.get(&class);
        let sum: f64 = threads.map_or(0.0, |t| t.values().sum());
        threads.into_iter().flatten().map(move |(tid, weight)| (*tid, weight / sum))
    }
}

/// A class that a plan attaches: what it costs, CPU s/s, and what it is worth per cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Class.
    pub class: ClassId,
    /// CPU s/s.
    pub cost: f64,
    /// Value per cost; what is worth least is given up first.
    pub density: f64,
}

/// What each thread may still lose to hits, with the spread of the classes.
#[derive(Debug, Clone)]
pub struct ThreadBounds<'a> {
    spread: &'a Spread,
    bounds: BTreeMap<u32, f64>,
}

impl<'a> ThreadBounds<'a> {
    /// `threads`: CPU s/s that each uses by itself, and what samples and switches take from it; `limit`: share of its CPU time that
    /// it may lose. A tenth of that is left for hits whatever samples and switches take. Threads that are not named bear what
    /// they must.
    #[must_use]
    pub fn new(spread: &'a Spread, threads: &[(u32, f64, f64)], limit: f64) -> Self {
        let bound = |(tid, cpu, other): &(u32, f64, f64)| {
            let all = limit * cpu.max(LEAST_CPU);
            (*tid, (all - other).max(0.1 * all))
        };
        let bounds = threads.iter().map(bound).collect();
        Self { spread, bounds }
    }

    /// What each thread with a bound would lose to these, CPU s/s.
    fn losses(&self, loads: &[Load]) -> BTreeMap<u32, f64> {
        let mut losses = BTreeMap::new();
        for load in loads {
            for (tid, part) in self.spread.of(load.class).filter(|(tid, _)| self.bounds.contains_key(tid)) {
                *losses.entry(tid).or_insert(0.0) += load.cost * part;
            }
        }
        losses
    }

    /// The class that has to be given up because one thread would lose more than it may to these, and which thread: the
    /// least worth of those that take a tenth of its bound at least. `None`: all is well.
    #[must_use]
    pub fn give_up(&self, loads: &[Load]) -> Option<(ClassId, u32)> {
        self.give_up_all(loads, 1).pop()
    }

    /// The same, one after the other until no thread loses more than it may: `most` at most.
    #[must_use]
    pub fn give_up_all(&self, loads: &[Load], most: usize) -> Vec<(ClassId, u32)> {
        let (mut losses, mut loads) = (self.losses(loads), loads.to_vec());
        let mut given_up = Vec::new();
        while given_up.len() < most {
            let Some((index, tid)) = self.worst(&losses, &loads) else { break };
            let load = loads.remove(index);
            for (tid, part) in self.spread.of(load.class) {
                if let Some(loss) = losses.get_mut(&tid) {
                    *loss -= load.cost * part;
                }
            }
            given_up.push((load.class, tid));
        }
        given_up
    }

    /// By its index, the load that the thread which is furthest beyond its bound should be spared, and that thread.
    fn worst(&self, losses: &BTreeMap<u32, f64>, loads: &[Load]) -> Option<(usize, u32)> {
        let over = losses.iter().filter(|(tid, loss)| **loss > self.bounds[*tid]);
        let (tid, _) = over.max_by(|a, b| (a.1 / self.bounds[a.0]).total_cmp(&(b.1 / self.bounds[b.0])))?;
        let part = |load: &Load| self.spread.of(load.class).find(|(t, _)| t == tid).map_or(0.0, |(_, p)| p);
        let costs: Vec<f64> = loads.iter().map(|load| load.cost * part(load)).collect();
        let matters = |i: &usize| costs[*i] >= 0.1 * self.bounds[tid];
        let all = 0..loads.len();
        let least =
            all.clone().filter(matters).min_by(|a, b| loads[*a].density.total_cmp(&loads[*b].density));
        // Many small ones: the largest of them.
        let largest = || all.max_by(|a, b| costs[*a].total_cmp(&costs[*b]));
        least.or_else(largest).map(|index| (index, *tid))
    }

    /// CPU s that a class may take in one burst so that no thread loses more in it than in a second it may.
    #[must_use]
    pub fn burst_limit_s(&self, class: ClassId) -> f64 {
        let bound = |(tid, part): (u32, f64)| self.bounds.get(&tid).map(|bound| bound / part);
        self.spread.of(class).filter_map(bound).fold(f64::INFINITY, f64::min)
    }

    /// How much rarer each of the `bursts` must be so that no thread loses more than it may to them and to what is traced:
    /// 1 and more; infinite where nothing is left.
    #[must_use]
    pub fn stretch(&self, traced: &[Load], bursts: &[Load]) -> Vec<f64> {
        let (traced, together) = (self.losses(traced), self.losses(bursts));
        let factor = |tid: u32| {
            let (Some(bound), Some(loss)) = (self.bounds.get(&tid), together.get(&tid)) else { return 1.0 };
            let left = bound - traced.get(&tid).copied().unwrap_or(0.0);
            if *loss <= left {
                1.0
            } else if left > 0.0 {
                loss / left
            } else {
                f64::INFINITY
            }
        };
        let worst = |load: &Load| self.spread.of(load.class).map(|(tid, _)| factor(tid)).fold(1.0, f64::max);
        bursts.iter().map(worst).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClassId = ClassId(1);
    const B: ClassId = ClassId(2);

    fn slice(end_ms: u64, cpu_ms: f64, class: ClassId, cost_ms: f64) -> Slice {
        Slice {
            end_ns: end_ms * 1_000_000,
            length_ns: 250_000_000,
            cpu_ns: cpu_ms * 1e6,
            other_ns: 0.0,
            classes: vec![(class, cost_ms * 1e6)],
        }
    }

    #[test]
    fn one_thread_above_its_limit_is_named_with_the_class_that_did_it() {
        let mut budget = ThreadBudget::default();
        for i in 1..=4 {
            // 12.5 % of a CPU each; thread 7 loses 5 ms of 31 in each quarter of a second, thread 8 0.2 ms.
            budget.note(7, slice(250 * i, 31.25, A, 5.0));
            budget.note(8, slice(250 * i, 31.25, B, 0.2));
        }
        let over = budget.over(1_000_000_000, 0.04);
        assert_eq!(over.len(), 1, "{over:?}");
        assert_eq!(over[0].tid, 7);
        // 20 ms of 105 ms own; 4 % of that is 4.2 ms.
        assert!((over[0].overhead - 20.0 / 105.0).abs() < 1e-9, "{over:?}");
        assert!((over[0].excess - 0.0158).abs() < 1e-9, "{over:?}");
        assert_eq!(over[0].classes.len(), 1);
        assert!((over[0].classes[0].1 - 0.020).abs() < 1e-12);
        assert!(budget.over(3_000_000_000, 0.04).is_empty(), "forgotten");
    }

    #[test]
    fn a_part_of_a_second_is_not_taken_for_all_of_it() {
        let mut budget = ThreadBudget::default();
        // A burst of 1 ms in the first quarter: of a thread that uses a whole CPU that is 0.1 % of the second, ...
        budget.note(7, slice(250, 250.0, A, 1.0));
        assert!(budget.over(250_000_000, 0.04).is_empty());
        // ... and of one that uses next to nothing, 8 % of the least that counts.
        budget.note(8, slice(250, 2.0, A, 2.0));
        assert_eq!(budget.over(250_000_000, 0.04).len(), 1);
    }

    fn spread() -> Spread {
        let mut spread = Spread::default();
        spread.note(A, 0.25, &[(7, 1_000)]);
        spread.note(B, 0.25, &[(7, 100), (8, 100), (9, 200)]);
        spread
    }

    #[test]
    fn the_spread_follows_the_hits_and_forgets() {
        let mut spread = spread();
        assert_eq!(spread.of(B).collect::<Vec<_>>(), [(7, 0.25), (8, 0.25), (9, 0.5)]);
        spread.note(A, 5.0, &[(7, 0)]);
        assert_eq!(spread.of(A).collect::<Vec<_>>(), [(7, 1.0)], "no hits, no news");
        spread.note(A, 5.0, &[(8, 1_500)]);
        assert_eq!(spread.of(A).collect::<Vec<_>>(), [(7, 0.25), (8, 0.75)]);
        spread.keep_threads(|tid| tid != 7);
        assert_eq!(spread.of(A).collect::<Vec<_>>(), [(8, 1.0)]);
    }

    fn load(class: ClassId, cost: f64, density: f64) -> Load {
        Load { class, cost, density }
    }

    #[test]
    fn several_are_given_up_until_all_threads_bear_it() {
        let (mut spread, small) = (spread(), ClassId(3));
        spread.note(small, 0.25, &[(7, 100)]);
        let bounds = ThreadBounds::new(&spread, &[(7, 0.125, 0.0), (8, 0.05, 0.0), (9, 0.05, 0.0)], 0.04);
        // Thread 7 may lose 5 ms/s: B takes 4.5 of it, A 20, the small one 4.
        let loads = [load(A, 0.02, 5.0), load(B, 0.018, 1.0), load(small, 0.004, 9.0)];
        assert_eq!(bounds.give_up_all(&loads, 9), [(B, 7), (A, 7)]);
        assert_eq!(bounds.give_up_all(&loads, 1), [(B, 7)]);
        assert_eq!(bounds.give_up_all(&loads[2..], 9), []);
    }

    #[test]
    fn a_plan_gives_up_what_one_thread_cannot_bear() {
        let spread = spread();
        // Thread 7 uses an eighth of a CPU and may lose 0.5 % of one.
        let bounds = ThreadBounds::new(&spread, &[(7, 0.125, 0.0), (8, 1.0, 0.0), (9, 1.0, 0.0)], 0.04);
        assert_eq!(bounds.give_up(&[load(A, 0.004, 5.0)]), None);
        assert_eq!(bounds.give_up(&[load(A, 0.02, 5.0)]), Some((A, 7)));
        // Spread over many threads the same cost is borne.
        assert_eq!(bounds.give_up(&[load(B, 0.018, 1.0)]), None);
        // Together they are too much: the one worth less goes.
        assert_eq!(bounds.give_up(&[load(A, 0.004, 5.0), load(B, 0.018, 1.0)]), Some((B, 7)));
        assert_eq!(bounds.give_up(&[load(A, 0.004, 0.5), load(B, 0.018, 1.0)]), Some((A, 7)));
        // Of a class that nobody has seen nothing is known.
        assert_eq!(bounds.give_up(&[load(ClassId(9), 1.0, 1.0)]), None);
        // Switches take half of what thread 7 may lose.
        let bounds = ThreadBounds::new(&spread, &[(7, 0.125, 0.0025)], 0.04);
        assert_eq!(bounds.give_up(&[load(A, 0.004, 5.0)]), Some((A, 7)));
    }

    #[test]
    fn bursts_are_small_and_rare_enough_for_one_thread() {
        let spread = spread();
        let bounds = ThreadBounds::new(&spread, &[(7, 0.125, 0.0)], 0.04);
        assert_eq!(bounds.burst_limit_s(A), 0.005);
        assert_eq!(bounds.burst_limit_s(B), 0.02);
        assert_eq!(bounds.burst_limit_s(ClassId(9)), f64::INFINITY);
        let stretch =
            bounds.stretch(&[load(B, 0.012, 1.0)], &[load(A, 0.006, 1.0), load(ClassId(9), 1.0, 1.0)]);
        // 0.005 less 0.003 of B is left for 0.006.
        assert!((stretch[0] - 3.0).abs() < 1e-9, "{stretch:?}");
        assert_eq!(stretch[1], 1.0);
        assert_eq!(bounds.stretch(&[load(A, 0.01, 1.0)], &[load(A, 0.001, 1.0)]), [f64::INFINITY]);
    }

    #[test]
    fn what_goes_on_is_said_ever_more_rarely() {
        let mut notices = Notices::default();
        let quarters = |from: u64, to: u64| (4 * from..4 * to).map(|i| i * 250_000_000);
        let said: Vec<u64> =
            quarters(0, 600).filter(|t| notices.due(*t)).map(|t| t / 1_000_000_000).collect();
        assert_eq!(said, [0, 4, 12, 28, 60, 124, 188, 252, 316, 380, 444, 508, 572]);
        assert!(quarters(800, 805).filter(|t| notices.due(*t)).count() == 2, "begins anew");
    }
}
