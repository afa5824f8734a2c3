//! Which capability tier this kernel has, found by trying: load, attach to children of our own, let them hit, count.
//!
//! Versions mislead (backports, disabled features), and a link that is created may still count wrongly: Linux 6.6 to
//! 6.9 take a PID and then miss the threads of the process. So a child with two threads and a stranger with the same
//! program call one site a known number of times, and a tier works if exactly the child's calls are counted.

use super::child::{self, ProbeChild};
use super::group::{AttachGroup, LinkKind, Site};
use super::links::Attacher;
use super::object::Programs;
use super::vmlinux::Vmlinux;
use super::{ClassControl, ClassKind, ClassTable, FLAG_NO_QUOTA, KernelError, Tier};
use aya::maps::{HashMap as BpfHashMap, MapData};
use profiler_core::class::ClassId;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// What the probe found about one tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierFinding {
    /// The tier tried.
    pub tier: Tier,
    /// `None`: it works. Otherwise why not.
    pub refused: Option<String>,
    /// For tier A: the session program used.
    pub program: &'static str,
}

impl TierFinding {
    /// This tier, if it may be believed later on this boot: it works with the usual program, and the better ones were refused for what the kernel lacks. A
    /// trial that failed for want of memory or time is none.
    pub(super) fn lasting(findings: &[Self], vmlinux: &Vmlinux) -> Option<Tier> {
        let (found, refused) = findings.split_last()?;
        let lasts = refused.iter().all(|f| absent(f.tier, vmlinux).is_some());
        (lasts && found.refused.is_none() && found.program == SESSION).then_some(found.tier)
    }
}

/// The session program.
const SESSION: &str = "session";

/// The class that the probe uses; nobody else runs yet.
const CLASS: ClassId = ClassId(0);

/// The stage for all trials.
pub(super) struct Probe<'a> {
    pub programs: &'a Programs,
    pub classes: &'a ClassTable,
    /// Enters (true) or removes a process in the target set.
    pub target: &'a dyn Fn(u32, bool),
    child: ProbeChild,
    stranger: ProbeChild,
    module: PathBuf,
    offset: u64,
}

impl<'a> Probe<'a> {
    pub fn new(
        programs: &'a Programs,
        classes: &'a ClassTable,
        target: &'a dyn Fn(u32, bool),
    ) -> io::Result<Self> {
        let (module, offset) = child::site()?;
        Ok(Self {
            programs,
            classes,
            target,
            child: ProbeChild::spawn(2)?,
            stranger: ProbeChild::spawn(1)?,
            module,
            offset,
        })
    }

    /// Tries a tier; for A both variants of the session program.
    pub fn try_tier(&self, tier: Tier) -> TierFinding {
        let programs: &[&'static str] = if tier == Tier::A { &[SESSION, "session_ip"] } else { &[SESSION] };
        let mut refused = Vec::new();
        for program in programs {
            match self.trial(tier, program) {
                Ok(()) => return TierFinding { tier, refused: None, program },
                Err(why) => refused.push(why),
            }
        }
        TierFinding { tier, refused: Some(refused.join("; without kernel functions: ")), program: SESSION }
    }

    fn trial(&self, tier: Tier, session_program: &'static str) -> Result<(), String> {
        let (kind, class_kind) = match tier {
            Tier::A => (LinkKind::ReturnPair, ClassKind::Latency),
            _ => (LinkKind::Count, ClassKind::Count),
        };
        self.classes.filter_in_programs(tier == Tier::C);
        self.classes.reset(CLASS);
        self.classes.configure(CLASS, ClassControl { flags: FLAG_NO_QUOTA, ..ClassControl::new(class_kind) });
        (self.target)(self.child.pid(), true);
        let result = self.hit(tier, kind, session_program);
        (self.target)(self.child.pid(), false);
        self.classes.filter_in_programs(false);
        self.classes.configure(CLASS, ClassControl::new(ClassKind::Off));
        let counted = self.classes.counters(CLASS);
        self.classes.reset(CLASS);
        result?;

        let (ours, strangers) = (self.child.calls(), self.stranger.calls());
        let filtered = if tier == Tier::C { strangers } else { 0 };
        let returns = if tier == Tier::A { ours } else { 0 };
        if (counted.kept, counted.gated, counted.returns) != (ours, filtered, returns) {
            return Err(format!(
                "of {ours} calls of two threads {} were counted and {} returns seen; of {strangers} calls of a stranger {} were turned away",
                counted.kept, counted.returns, counted.gated
            ));
        }
        Ok(())
    }

    fn hit(&self, tier: Tier, kind: LinkKind, session_program: &'static str) -> Result<(), String> {
        let group = AttachGroup {
            module: self.module.clone(),
            pid: self.child.pid(),
            kind,
            sites: vec![Site::entry(CLASS, self.offset)],
        };
        let attacher = Attacher { programs: self.programs, tier, session_program };
        let attached = attacher.attach(&group).map_err(|e| e.to_string())?;
        self.child.round().map_err(|e| e.to_string())?;
        self.stranger.round().map_err(|e| e.to_string())?;
        drop(attached);
        Ok(())
    }
}

/// What a kernel without this function cannot have, in words: a refusal of its own would be a bare error number.
const SIGNS: [(Tier, &str, &str); 3] = [
    (Tier::A, "bpf_session_is_return", "this kernel has no uprobe.session links, which came with Linux 6.13"),
    (
        Tier::B,
        "bpf_uprobe_multi_link_attach",
        "this kernel has no uprobe.multi links, which came with Linux 6.6",
    ),
    (
        Tier::C,
        "bpf_uprobe_multi_link_attach",
        "this kernel has no uprobe.multi links, which came with Linux 6.6",
    ),
];

/// Why a tier that was tried and refused cannot be here, if the kernel's type information tells; what it says of itself is no reason
/// to leave the trial out.
fn absent(tier: Tier, vmlinux: &Vmlinux) -> Option<&'static str> {
    let (_, function, words) = SIGNS.iter().find(|(of, _, _)| *of == tier)?;
    matches!(vmlinux.function(function), Ok(None)).then_some(*words)
}

/// Tries the tiers from the best on, or only the forced one, if none is known; the last finding is the first that works.
pub(super) fn find(
    forced: Option<Tier>,
    known: Option<Tier>,
    vmlinux: &Vmlinux,
    programs: &Programs,
    classes: &ClassTable,
    targets: &Mutex<BpfHashMap<MapData, u32, u32>>,
) -> Result<Vec<TierFinding>, KernelError> {
    if let Some(tier) = known.filter(|_| forced.is_none()) {
        return Ok(vec![TierFinding { tier, refused: None, program: SESSION }]);
    }
    let target = |pid: u32, enter: bool| {
        let mut targets = targets.lock().unwrap_or_else(PoisonError::into_inner);
        // OK to ignore: a failure shows in the counts that the probe compares.
        let _ = if enter { targets.insert(pid, 1, 0) } else { targets.remove(&pid) };
    };
    let probe = Probe::new(programs, classes, &target).map_err(KernelError::Probe)?;
    let all = [Tier::A, Tier::B, Tier::C, Tier::D];
    let tried = forced.as_ref().map_or(&all[..], std::slice::from_ref);
    let mut findings: Vec<TierFinding> = Vec::new();
    for tier in tried {
        let mut finding = probe.try_tier(*tier);
        if let (Some(why), Some(absent)) = (&mut finding.refused, absent(*tier, vmlinux)) {
            absent.clone_into(why);
        }
        let works = finding.refused.is_none();
        findings.push(finding);
        if works {
            return Ok(findings);
        }
    }
    let reasons: Vec<String> = findings
        .iter()
        .filter_map(|f| f.refused.as_ref().map(|why| format!("tier {:?}: {why}", f.tier)))
        .collect();
    Err(KernelError::NoTier(reasons.join("; ")))
}
