//! Forked children. A child that has not called exec inherits the target's breakpoints and pays every trap, although
//! the PID filter hides its hits. So its cost is charged from its CPU time, and the links are made anew, which
//! removes the breakpoints from every process that no link wants.

use super::class::LiveClass;
use super::sampling::Sampling;
use crate::prober::LifecycleEvent;
use crate::target::Target;
use profiler_core::class::ClassId;
use std::path::PathBuf;

/// A child gets so long to call exec before the links are made anew, ns: most do within a few ms.
const GRACE_NS: u64 = 50_000_000;
/// The links are made anew at most this often, ns: a fork storm must not become an attach storm.
const REARM_NS: u64 = 1_000_000_000;

/// A child that carries inherited breakpoints.
#[derive(Debug)]
struct Child {
    target: Target,
    born_ns: u64,
    cpu_ns: u64,
}

/// What children cost in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ChildCost {
    /// Hits, estimated.
    pub hits: u64,
    /// ns of CPU time.
    pub cost_ns: f64,
}

/// The children of the target that may carry breakpoints.
#[derive(Debug)]
pub struct Children {
    /// The target's program, to tell children that have called exec.
    exe: Option<PathBuf>,
    carrying: Vec<Child>,
    /// CPU time of the target while it was charged, ns.
    target_cpu_ns: u64,
    /// CPU time of children that is not charged yet, ns.
    uncharged_cpu_ns: u64,
    last_rearm_ns: u64,
    forks: u64,
    execed: bool,
}

impl Children {
    /// None yet. `exe`: the target's program.
    #[must_use]
    pub fn new(exe: Option<PathBuf>) -> Self {
        Self {
            exe,
            carrying: Vec::new(),
            target_cpu_ns: 0,
            uncharged_cpu_ns: 0,
            last_rearm_ns: 0,
            forks: 0,
            execed: false,
        }
    }

    /// Takes note of a birth or death.
    pub fn note(&mut self, event: &LifecycleEvent, sampling: &mut Sampling, pid: u32) {
        match *event {
            LifecycleEvent::ThreadBorn { tid, pid: of, .. } if of == pid => sampling.add_thread(tid),
            LifecycleEvent::ThreadExited { tid, pid: of, .. } if of == pid => sampling.remove_thread(tid),
            LifecycleEvent::Forked { child, parent, time_ns } if parent == pid => {
                self.forks += 1;
                // One that cannot be bound to has ended already.
                if let Ok(target) =
                    i32::try_from(child).map_err(|_| ()).and_then(|p| Target::attach(p).map_err(|_| ()))
                {
                    let cpu_ns = target.cpu_time_ns().unwrap_or(0);
                    self.carrying.push(Child { target, born_ns: time_ns, cpu_ns });
                }
            }
            LifecycleEvent::Execed { pid: of, .. } if of == pid => self.execed = true,
            _ => {}
        }
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

    /// Charges the children for the last interval: they are taken to call what the target calls per CPU second, now or
    /// over the run so far, whichever is more. They cannot pay more than they used.
    ///
    /// `hits_child = CPU_child max(hits_target / CPU_target, hits of the run / CPU of the run)`
    pub fn charge(
        &mut self,
        hits: &[(ClassId, u64)],
        target_cpu_ns: u64,
        classes: &[LiveClass],
    ) -> ChildCost {
        let exe = &self.exe;
        // A child that runs another program is clean.
        self.carrying.retain(|c| c.target.is_alive() && c.target.exe().ok() == *exe);
        self.note_cpu();
        let child_cpu = std::mem::take(&mut self.uncharged_cpu_ns);
        self.target_cpu_ns += target_cpu_ns;
        if child_cpu == 0 {
            return ChildCost::default();
        }
        let per_cpu = |hits: u64, cpu_ns: u64| if cpu_ns == 0 { 0.0 } else { hits as f64 / cpu_ns as f64 };
        let mut cost = ChildCost::default();
        for (id, n) in hits {
            let class = &classes[id.0 as usize];
            let now = per_cpu(*n, target_cpu_ns);
            let child_hits = child_cpu as f64 * now.max(per_cpu(class.charged.attempted, self.target_cpu_ns));
            cost.hits += child_hits as u64;
            cost.cost_ns += child_hits * class.hit_price.ns;
        }
        cost.cost_ns = cost.cost_ns.min(child_cpu as f64);
        cost
    }

    /// Takes note of the CPU time that the children have used since the last time.
    fn note_cpu(&mut self) {
        for child in &mut self.carrying {
            let cpu = child.target.cpu_time_ns().unwrap_or(child.cpu_ns);
            self.uncharged_cpu_ns += cpu.saturating_sub(child.cpu_ns);
            child.cpu_ns = cpu;
        }
    }

    /// Whether the links have to be made anew now; if so, the children count as clean from here on.
    pub fn rearm_due(&mut self, now_ns: u64) -> bool {
        let due =
            self.carrying.iter().any(|c| now_ns.saturating_sub(c.born_ns) > GRACE_NS && c.target.is_alive())
                && now_ns.saturating_sub(self.last_rearm_ns) > REARM_NS;
        if due {
            self.last_rearm_ns = now_ns;
            self.note_cpu();
            self.carrying.clear();
        }
        due
    }
}
