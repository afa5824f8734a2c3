//! Forked children. A child that has not called exec inherits the target's breakpoints and pays every trap, although
//! the PID filter hides its hits. Its cost is charged, and the links are made anew, which removes the breakpoints from
//! every process that no link wants.
//!
//! Nobody counts a child's hits, so what is charged is a bound: **all CPU time that the child used** from its birth until
//! it ended, called exec or the links were gone. A child cannot pay more, and one that calls traced functions in a loop
//! pays nearly that. Time since the last reading of its CPU clock (10 ms at most) counts as used. A child that calls exec
//! is different: between fork and exec nearly nothing is called, and it is taken to call what the target calls per
//! CPU second.

use super::class::LiveClass;
use super::sampling::Sampling;
use crate::prober::LifecycleEvent;
use crate::target::Target;
use profiler_core::class::ClassId;
use profiler_core::run::arbiter::STORM_SHARE;
use std::collections::HashMap;
use std::path::PathBuf;

/// A child gets so long to call exec before the links are made anew, ns: most do within a few ms.
const GRACE_NS: u64 = 50_000_000;
/// A child that was born while nothing was attached is clean; it is looked at for so long to see what a storm would cost, ns.
const WATCHED_NS: u64 = 1_000_000_000;
/// Time constant of what children would cost, ns.
const STORM_TIME_NS: f64 = 1e9;
/// The links are made anew at most this often, ns: a fork storm must not become an attach storm.
const REARM_NS: u64 = 1_000_000_000;

/// A child that carries inherited breakpoints.
#[derive(Debug)]
struct Child {
    /// `None`: it had ended before it could be looked at.
    target: Option<Target>,
    born_ns: u64,
    /// When its CPU clock was read last, ktime ns, and what it said.
    read_ns: u64,
    cpu_ns: u64,
}

impl Child {
    /// Reads its CPU clock; returns the CPU time since the last reading.
    fn read(&mut self, now_ns: u64) -> u64 {
        let Some(cpu_ns) = self.target.as_ref().and_then(|t| t.cpu_time_ns().ok()) else { return 0 };
        let used = cpu_ns.saturating_sub(self.cpu_ns);
        (self.read_ns, self.cpu_ns) = (now_ns, self.cpu_ns.max(cpu_ns));
        used
    }

    fn is_alive(&self) -> bool {
        self.target.as_ref().is_some_and(Target::is_alive)
    }
}

/// What children cost in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ChildCost {
    /// Hits, at most.
    pub hits: u64,
    /// ns of CPU time, at most.
    pub cost_ns: f64,
    /// A storm has begun or ended ([`Children::is_storm`]).
    pub turned: bool,
}

/// The children of the target that may carry breakpoints.
#[derive(Debug)]
pub struct Children {
    /// The target's program, to tell children that have called exec.
    exe: Option<PathBuf>,
    carrying: HashMap<u32, Child>,
    /// Processes whose lifecycle need not be watched any more.
    left: Vec<u32>,
    /// CPU time of the target while it was charged, ns.
    target_cpu_ns: u64,
    /// CPU time that is not charged yet, ns: of children that ran the target's program, and before an exec.
    uncharged_ns: u64,
    before_exec_ns: u64,
    last_rearm_ns: u64,
    forks: u64,
    execed: bool,
    /// What children cost, or would cost if something were attached, CPU s/s, smoothed.
    potential: f64,
    storm: bool,
}

impl Children {
    /// None yet. `exe`: the target's program.
    #[must_use]
    pub fn new(exe: Option<PathBuf>) -> Self {
        Self {
            exe,
            carrying: HashMap::new(),
            left: Vec::new(),
            target_cpu_ns: 0,
            uncharged_ns: 0,
            before_exec_ns: 0,
            last_rearm_ns: 0,
            forks: 0,
            execed: false,
            potential: 0.0,
            storm: false,
        }
    }

    /// Takes note of a birth or death.
    pub fn note(&mut self, event: &LifecycleEvent, sampling: &mut Sampling, pid: u32) {
        match *event {
            LifecycleEvent::ThreadBorn { tid, pid: of, .. } if of == pid => sampling.add_thread(tid),
            LifecycleEvent::ThreadExited { tid, pid: of, .. } if of == pid => sampling.remove_thread(tid),
            LifecycleEvent::Execed { pid: of, .. } if of == pid => self.execed = true,
            // Children of children carry the breakpoints, too.
            LifecycleEvent::Forked { child, time_ns, .. } => {
                // Found before its record was read.
                if self.carrying.get(&child).is_some_and(Child::is_alive) {
                    return;
                }
                self.forks += 1;
                let target = i32::try_from(child).ok().and_then(|p| Target::attach(p).ok());
                // Its CPU clock began with it.
                let new = Child { target, born_ns: time_ns, read_ns: time_ns, cpu_ns: 0 };
                self.carrying.insert(child, new);
            }
            LifecycleEvent::Execed { pid: of, time_ns } => self.ended(of, time_ns, true),
            LifecycleEvent::ThreadExited { tid, pid: of, time_ns } if tid == of => {
                self.ended(of, time_ns, false);
            }
            LifecycleEvent::ThreadBorn { .. } | LifecycleEvent::ThreadExited { .. } => {}
        }
    }

    /// Records of births were lost: takes those of the processes that the kernel watches (`watched`) that are children
    /// nobody told of. They are charged with what they used since their birth. Those that have ended or called exec
    /// meanwhile are let go; what they used is not known.
    pub fn find_lost(&mut self, watched: impl IntoIterator<Item = u32>, pid: u32, now_ns: u64) {
        for child in watched {
            // Those that are let go are still in the kernel's set until the turn is over.
            if child == pid || self.carrying.contains_key(&child) || self.left.contains(&child) {
                continue;
            }
            self.forks += 1;
            let target = i32::try_from(child).ok().and_then(|p| Target::attach(p).ok());
            match target {
                Some(target) if target.exe().ok() == self.exe => {
                    let found = Child { target: Some(target), born_ns: now_ns, read_ns: now_ns, cpu_ns: 0 };
                    self.carrying.insert(child, found);
                }
                _ => self.left.push(child),
            }
        }
    }

    /// A child has ended, or runs another program, which is clean.
    fn ended(&mut self, pid: u32, time_ns: u64, by_exec: bool) {
        let Some(child) = self.carrying.remove(&pid) else { return };
        self.left.push(pid);
        let rest = time_ns.saturating_sub(child.read_ns);
        if by_exec {
            self.before_exec_ns += rest;
        } else {
            self.uncharged_ns += rest;
        }
    }

    /// None is looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.carrying.is_empty()
    }

    /// The target forks so much that its children alone could use up the budget: nothing must be attached that they would
    /// inherit.
    #[must_use]
    pub fn is_storm(&self) -> bool {
        self.storm
    }

    /// Takes note of what children used in the last interval, and whether a storm has begun or ended with it: true if so.
    fn note_potential(&mut self, used_ns: f64, elapsed_ns: u64, budget: f64) -> bool {
        let weight = 1.0 - (-(elapsed_ns as f64) / STORM_TIME_NS).exp();
        self.potential += weight * (used_ns / elapsed_ns.max(1) as f64 - self.potential);
        let bound = if self.storm { STORM_SHARE.1 } else { STORM_SHARE.0 };
        let storm = self.potential > bound * budget;
        std::mem::replace(&mut self.storm, storm) != storm
    }

    /// Nothing is attached: who was born meanwhile is clean.
    pub fn forget_clean(&mut self, now_ns: u64) {
        let Self { carrying, left, .. } = self;
        left.extend(
            carrying
                .extract_if(|_, child| now_ns.saturating_sub(child.born_ns) > WATCHED_NS)
                .map(|(pid, _)| pid),
        );
    }

    /// Reads the children's CPU clocks. Every turn, so that little is left to be bounded.
    pub fn poll(&mut self, now_ns: u64) {
        let mut gone = Vec::new();
        for (pid, child) in &mut self.carrying {
            if !child.is_alive() {
                gone.push((*pid, false));
            } else if child.target.as_ref().and_then(|t| t.exe().ok()) != self.exe {
                gone.push((*pid, true));
            } else {
                self.uncharged_ns += child.read(now_ns);
            }
        }
        // Where the kernel told of the end it has been taken note of; this is for the rest.
        for (pid, by_exec) in gone {
            self.ended(pid, now_ns, by_exec);
        }
    }

    /// Processes that were children and are not any more, to be taken out of the kernel's set.
    pub fn take_left(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.left)
    }

    /// Forks seen.
    #[must_use]
    pub fn forks(&self) -> u64 {
        self.forks
    }

    /// The target itself has loaded a new program: its breakpoints are gone with the old one.
    #[must_use]
    pub fn take_execed(&mut self) -> bool {
        std::mem::take(&mut self.execed)
    }

    /// Charges the children for the last interval, in which the target had `hits` and used `target_cpu_ns`.
    ///
    /// The interval took `elapsed_ns`; the budget is given in CPU s/s.
    ///
    /// `cost = CPU_child + min(CPU before exec, CPU before exec x sum tau max(hits / CPU now, hits / CPU of the run))`
    pub fn charge(
        &mut self,
        hits: &[(ClassId, u64)],
        target_cpu_ns: u64,
        classes: &[LiveClass],
        (elapsed_ns, budget): (u64, f64),
    ) -> ChildCost {
        let used = std::mem::take(&mut self.uncharged_ns) as f64;
        let before_exec = std::mem::take(&mut self.before_exec_ns) as f64;
        let turned = self.note_potential(used, elapsed_ns, budget);
        self.target_cpu_ns += target_cpu_ns;
        // Nothing was attached that could be inherited.
        if hits.is_empty() || used + before_exec == 0.0 {
            return ChildCost { turned, ..ChildCost::default() };
        }
        let per_cpu = |hits: u64, cpu_ns: u64| if cpu_ns == 0 { 0.0 } else { hits as f64 / cpu_ns as f64 };
        let (mut rate, mut price, mut cheapest) = (0.0, 0.0, f64::INFINITY);
        for (id, n) in hits {
            let class = &classes[id.0 as usize];
            let now = per_cpu(*n, target_cpu_ns);
            let often = now.max(per_cpu(class.charged.attempted, self.target_cpu_ns));
            rate += often;
            price += often * class.hit_price.ns;
            cheapest = f64::min(cheapest, class.hit_price.ns);
        }
        ChildCost {
            hits: (used / cheapest.max(1.0) + before_exec * rate) as u64,
            cost_ns: used + before_exec * price.min(1.0),
            turned,
        }
    }

    /// Whether the links have to be made anew now. Until [`Children::cleaned`] the children go on paying.
    pub fn rearm_due(&mut self, now_ns: u64) -> bool {
        let old = |c: &Child| now_ns.saturating_sub(c.born_ns) > GRACE_NS && c.is_alive();
        let due = now_ns.saturating_sub(self.last_rearm_ns) > REARM_NS && self.carrying.values().any(old);
        if due {
            self.last_rearm_ns = now_ns;
        }
        due
    }

    /// All links are gone, and with them the breakpoints of every child.
    pub fn cleaned(&mut self, now_ns: u64) {
        self.poll(now_ns);
        self.left.extend(self.carrying.drain().map(|(pid, _)| pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_whose_birth_was_lost_are_found_once() {
        let mut program = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let child = program.id();
        let exe = Target::attach(i32::try_from(child).unwrap()).unwrap().exe().ok();
        let mut ended = std::process::Command::new("/bin/true").spawn().unwrap();
        ended.wait().unwrap();
        let me = std::process::id();
        let mut children = Children::new(exe);
        let watched = [me, child, ended.id()];
        children.find_lost(watched, me, 1);
        children.find_lost(watched, me, 2);
        assert_eq!(children.carrying.keys().collect::<Vec<_>>(), [&child]);
        assert_eq!((children.forks(), children.take_left()), (2, vec![ended.id()]));
        // Another program: it has called exec, and is clean.
        let mut others = Children::new(Some("/bin/true".into()));
        others.find_lost([child], me, 1);
        assert_eq!((others.is_empty(), others.take_left()), (true, vec![child]));
        program.kill().unwrap();
        program.wait().unwrap();
        children.poll(3);
        assert_eq!((children.is_empty(), children.take_left()), (true, vec![child]));
    }

    #[test]
    fn a_storm_begins_above_half_of_the_budget_and_ends_below_a_fifth() {
        const TICK_NS: u64 = 100_000_000;
        let mut children = Children::new(None);
        // Children that use a tenth of a CPU, at 2 % of one.
        let turned: Vec<usize> = (0..10).filter(|_| children.note_potential(1e7, TICK_NS, 0.02)).collect();
        assert_eq!(turned, [1], "after 0.2 s");
        assert!(children.is_storm());
        let quiet = (0..100).find(|_| children.note_potential(0.0, TICK_NS, 0.02));
        // From a twentieth of a CPU and more to 0.004 of it: some time constants.
        assert!(quiet.is_some_and(|tick| (15..40).contains(&tick)), "{quiet:?}");
        assert!(!children.is_storm());
        // One child now and then is none.
        assert!(!(0..100).any(|tick| children.note_potential(
            if tick % 50 == 0 { 5e6 } else { 0.0 },
            TICK_NS,
            0.02
        )));
    }
}
