//! Every program of the object, offered to the running kernel: what `tithe doctor` and tests on other kernels ask.

use super::object::Flavour;
use super::tracepoints::trial_values;
use super::{Kernel, KernelError, Tier, sys};
use std::os::fd::AsFd;

/// The kernel's answer to one program for one kind of link.
#[derive(Debug)]
pub struct ProgramTrial {
    /// The program.
    pub name: &'static str,
    /// The kind of link: `uprobe`, `uprobe.multi`, `uprobe.session`, `perf event` or `raw tracepoint`.
    pub link: &'static str,
    /// Instructions that the verifier looked at, or why the program was refused.
    pub outcome: Result<u32, KernelError>,
}

/// Entries of functions, ends of functions, and bounds of operations.
const UPROBES: &[Flavour] = &[Flavour::PerfUprobe, Flavour::Multi];
const SESSIONS: &[Flavour] = &[Flavour::Session];
const EVENTS: &[Flavour] = &[Flavour::PerfEvent];
const TRACEPOINTS: &[Flavour] = &[Flavour::RawTracepoint];

/// All programs of the object, each with the links that it is used for.
const PROGRAMS: [(&str, &[Flavour]); 25] = [
    ("count", UPROBES),
    ("record", UPROBES),
    ("step", UPROBES),
    ("enter", UPROBES),
    ("leave", UPROBES),
    ("enter_caller", UPROBES),
    ("leave_caller", UPROBES),
    ("operation_begin", UPROBES),
    ("operation_end", UPROBES),
    ("operation_end_function", UPROBES),
    ("empty", &[Flavour::PerfUprobe, Flavour::Multi, Flavour::Session]),
    ("plain_enter", UPROBES),
    ("plain_leave", UPROBES),
    ("session", SESSIONS),
    ("session_ip", SESSIONS),
    ("sample", EVENTS),
    ("sample_empty", EVENTS),
    ("fork", TRACEPOINTS),
    ("exec", TRACEPOINTS),
    ("exit_task", TRACEPOINTS),
    ("progress_syscall", TRACEPOINTS),
    ("progress_tracepoint", TRACEPOINTS),
    ("operation_sys_enter", TRACEPOINTS),
    ("operation_sys_exit", TRACEPOINTS),
    ("operation_tracepoint", TRACEPOINTS),
];

/// How a kind of link is called, and whether this tier uses it.
fn link(flavour: Flavour, tier: Tier) -> (&'static str, bool) {
    match flavour {
        Flavour::PerfUprobe => ("uprobe", true),
        Flavour::Multi => ("uprobe.multi", tier != Tier::D),
        Flavour::Session => ("uprobe.session", tier == Tier::A),
        Flavour::PerfEvent => ("perf event", true),
        Flavour::RawTracepoint => ("raw tracepoint", true),
    }
}

impl Kernel {
    /// Loads every program for every kind of link that the tier has, and lets it go again. Takes a second or two.
    #[must_use]
    pub fn try_programs(&self) -> Vec<ProgramTrial> {
        let mut trials = Vec::new();
        for (name, flavours) in PROGRAMS {
            for flavour in flavours {
                let (link, used) = link(*flavour, self.tier);
                if used {
                    let loaded = self.programs.load_copy(name, *flavour, &trial_values());
                    // The kernel knows each program that it loaded; 0 would be its own error.
                    let outcome = loaded
                        .map(|fd| sys::program_info(fd.as_fd()).map_or(0, |info| info.verified_instructions));
                    trials.push(ProgramTrial { name, link, outcome });
                }
            }
        }
        trials
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prober::object::OBJECT;
    use std::collections::BTreeSet;

    #[test]
    fn no_program_of_the_object_is_forgotten() {
        let object = aya_obj::Object::parse(OBJECT).unwrap();
        let there: BTreeSet<&str> = object.programs.keys().map(String::as_str).collect();
        let tried: BTreeSet<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
        assert_eq!(tried, there);
    }
}
