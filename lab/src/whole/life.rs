//! Forked children of a simulated target.

use super::chance::Chance;
use super::target::{Forks, Life};
use profiler_core::clients::children::{Event, Found};
use std::collections::BTreeMap;

/// One child.
#[derive(Debug, Clone)]
struct Child {
    /// When it calls exec or ends, ktime ns.
    until_ns: u64,
    cpu_ns: f64,
    /// Since when it carries breakpoints, ktime ns.
    carries_since_ns: Option<u64>,
    has_execed: bool,
}

/// All children.
#[derive(Debug, Clone, Default)]
pub struct Children {
    alive: BTreeMap<u32, Child>,
    born: u32,
    credit: f64,
    events: Vec<Event>,
    /// Those whose birth nobody told of.
    lost: Vec<u32>,
}

impl Children {
    /// The children live for so long; `linked`: they are born with breakpoints. Returns the CPU time that those used which carry
    /// breakpoints, ns.
    pub fn advance(
        &mut self,
        (now_ns, length_ns): (u64, f64),
        forks: Option<&Forks>,
        (start_ns, linked, lost_birth): (u64, bool, u32),
        chance: &mut Chance,
    ) -> f64 {
        let Some(forks) = forks else { return 0.0 };
        let mut carried_ns = 0.0;
        let mut over = Vec::new();
        for (pid, child) in &mut self.alive {
            if !child.has_execed {
                child.cpu_ns += forks.cpu * length_ns;
                carried_ns += if child.carries_since_ns.is_some() { forks.cpu * length_ns } else { 0.0 };
            }
            if now_ns >= child.until_ns {
                over.push(*pid);
            }
        }
        for pid in over {
            let lost = self.lost.contains(&pid);
            match forks.life {
                Life::Execs(_) => self.events.push(Event::Execed { pid, time_ns: now_ns }),
                Life::Ends(_) => self.events.push(Event::Ended { pid, time_ns: now_ns }),
            }
            self.alive.remove(&pid);
            if lost {
                self.events.pop();
            }
        }
        let s = now_ns.saturating_sub(start_ns) as f64 * 1e-9;
        if (forks.when_s.0..forks.when_s.1).contains(&s) {
            for _ in 0..chance.events(forks.per_s * length_ns * 1e-9, &mut self.credit) {
                self.bear(now_ns, forks, linked, chance.one_in(lost_birth));
            }
        }
        carried_ns
    }

    fn bear(&mut self, now_ns: u64, forks: &Forks, linked: bool, lost: bool) {
        self.born += 1;
        let pid = 100_000 + self.born;
        let (Life::Execs(s) | Life::Ends(s)) = forks.life;
        let child = Child {
            until_ns: now_ns + (s * 1e9) as u64,
            cpu_ns: 0.0,
            carries_since_ns: linked.then_some(now_ns),
            has_execed: false,
        };
        self.alive.insert(pid, child);
        if lost {
            self.lost.push(pid);
        } else {
            self.events.push(Event::Forked { child: pid, time_ns: now_ns, found_before: false });
        }
    }

    /// The clock went forward, and nobody ran: nobody could rid them of their breakpoints meanwhile.
    pub fn skip(&mut self, by_ns: u64) {
        let carry = self.alive.values_mut().filter_map(|child| child.carries_since_ns.as_mut());
        carry.for_each(|since_ns| *since_ns += by_ns);
    }

    /// No link is left: breakpoints are gone from all children.
    pub fn clean(&mut self) {
        self.alive.values_mut().for_each(|child| child.carries_since_ns = None);
    }

    /// Since when the child carries breakpoints that has carried them for longest, ktime ns.
    #[must_use]
    pub fn carrying_since_ns(&self) -> Option<u64> {
        self.alive.values().filter_map(|child| child.carries_since_ns).min()
    }

    /// What the kernel told.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Those whose birth nobody told of, as a look finds them.
    pub fn take_lost(&mut self) -> Vec<(u32, Found)> {
        let lost = std::mem::take(&mut self.lost);
        lost.into_iter().map(|pid| (pid, self.found(pid))).collect()
    }

    /// A look at one.
    #[must_use]
    pub fn found(&self, pid: u32) -> Found {
        match self.alive.get(&pid) {
            None => Found::Ended,
            Some(child) if child.has_execed => Found::OtherProgram,
            Some(child) => Found::Runs { cpu_ns: Some(child.cpu_ns as u64) },
        }
    }
}
