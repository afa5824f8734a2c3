//! Looks at forked children for [`Children`], which decides everything: binds to them, reads their CPU clocks and program links, passes on
//! what the kernel told.
//!
//! [`Children`]: profiler_core::clients::children::Children

use super::Agent;
use super::clock::now_ns;
use super::sampling::SamplingEvents;
use crate::prober::LifecycleEvent;
use crate::target::Target;
use profiler_core::clients::children::{Event, Found, Look};
use std::collections::HashMap;
use std::path::PathBuf;

/// The processes that were forked, as far as the agent is bound to them.
#[derive(Debug)]
pub struct ChildProcesses {
    /// The target's program, to tell children that have called exec.
    exe: Option<PathBuf>,
    bound: HashMap<u32, Target>,
    /// The target itself has loaded a new program.
    target_execed: bool,
}

impl ChildProcesses {
    /// None yet. `exe`: the target's program.
    #[must_use]
    pub fn new(exe: Option<PathBuf>) -> Self {
        Self { exe, bound: HashMap::new(), target_execed: false }
    }

    /// Takes a record of the kernel: what concerns the target `pid` itself is heeded here, the rest is for the children.
    pub fn note(&mut self, event: &LifecycleEvent, sampling: &mut SamplingEvents, pid: u32) -> Option<Event> {
        match *event {
            LifecycleEvent::ThreadBorn { tid, pid: of, .. } if of == pid => sampling.add_thread(tid),
            LifecycleEvent::ThreadExited { tid, pid: of, .. } if of == pid => sampling.remove_thread(tid),
            LifecycleEvent::Execed { pid: of, .. } if of == pid => self.target_execed = true,
            LifecycleEvent::Forked { child, time_ns, .. } => {
                let found_before = self.bind(child);
                return Some(Event::Forked { child, time_ns, found_before });
            }
            LifecycleEvent::Execed { pid, time_ns } => return Some(Event::Execed { pid, time_ns }),
            LifecycleEvent::ThreadExited { tid, pid, time_ns } if tid == pid => {
                return Some(Event::Ended { pid, time_ns });
            }
            LifecycleEvent::ThreadBorn { .. } | LifecycleEvent::ThreadExited { .. } => {}
        }
        None
    }

    /// The target itself has loaded a new program: its breakpoints are gone with the old one.
    #[must_use]
    pub fn take_target_execed(&mut self) -> bool {
        std::mem::take(&mut self.target_execed)
    }

    /// Binds to a process. True: that was done before, and it lives.
    fn bind(&mut self, pid: u32) -> bool {
        if self.bound.get(&pid).is_some_and(Target::is_alive) {
            return true;
        }
        self.bound.remove(&pid);
        let target = i32::try_from(pid).ok().and_then(|p| Target::attach(p).ok());
        self.bound.extend(target.map(|target| (pid, target)));
        false
    }

    fn find(&self, pid: u32) -> Found {
        match self.bound.get(&pid).filter(|target| target.is_alive()) {
            None => Found::Ended,
            Some(target) if target.exe().ok() != self.exe => Found::OtherProgram,
            Some(target) => Found::Runs { cpu_ns: target.cpu_time_ns().ok() },
        }
    }

    /// Looks at these. `linked`: links are there.
    pub fn look(&self, pids: impl IntoIterator<Item = u32>, linked: bool) -> Look {
        let at_ns = now_ns();
        Look { at_ns, linked, found: pids.into_iter().map(|pid| (pid, self.find(pid))).collect() }
    }

    /// These are not looked at any more.
    pub fn let_go(&mut self, pids: &[u32]) {
        for pid in pids {
            self.bound.remove(pid);
        }
    }
}

impl Agent {
    /// Records of births were lost: looks at those of the processes that the kernel watches that nobody told of. `known`: those that are
    /// looked at anyway.
    pub(super) fn find_lost_children(&mut self, known: &[u32]) -> Look {
        let watched = self.attach.kernel().targets();
        let new = |pid: &u32| *pid != self.journal.meta.pid && !known.contains(pid);
        let unknown: Vec<u32> = watched.into_iter().filter(new).collect();
        for pid in &unknown {
            self.processes.bind(*pid);
        }
        self.processes.look(unknown, self.attach.busy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_as_what_it_is() {
        let mut program = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let child = program.id();
        let exe = Target::attach(i32::try_from(child).unwrap()).unwrap().exe().ok();
        let mut ended = std::process::Command::new("/bin/true").spawn().unwrap();
        ended.wait().unwrap();
        let mut processes = ChildProcesses::new(exe);
        assert_eq!([child, ended.id(), child].map(|pid| processes.bind(pid)), [false, false, true]);
        let found = |processes: &ChildProcesses| processes.look([child, ended.id()], false).found;
        let seen = found(&processes);
        assert!(matches!(seen[0], (pid, Found::Runs { cpu_ns: Some(_) }) if pid == child), "{seen:?}");
        assert_eq!(seen[1], (ended.id(), Found::Ended));
        // Another program: it has called exec.
        let mut others = ChildProcesses::new(Some("/bin/true".into()));
        others.bind(child);
        assert_eq!(found(&others)[0], (child, Found::OtherProgram));
        others.let_go(&[child]);
        assert_eq!(found(&others)[0], (child, Found::Ended));
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(found(&processes)[0], (child, Found::Ended));
        assert!(!processes.bind(child), "what has ended was not found before");
    }
}
