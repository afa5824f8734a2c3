//! Return-address sites: the instruction behind a call, in the caller, at which the call's return is seen.
//!
//! The probe at a function's entry learns return addresses. Here each of them becomes a site, or a reason why it becomes
//! none. The same proof is asked for as for any other site: the address must be the begin of an instruction right behind a
//! call, by decoding the caller from its first instruction, and control must come to that call; the instruction's form must be proven ([`super::forms`]); code
//! made at run time, the kernel's own code, writable and shared text, and functions with restartable sequences are refused.
//!
//! Input: addresses in the process. Output: a [`CallerSite`] or a [`CallerError`] for each. Right before attaching,
//! [`Inspection::verify_callers`] compares all code that the proof has read with memory. [`Inspection::returns_to_its_callers`] says whether a
//! function comes back to its return address at all. Nothing here attaches or writes.
//!
//! A search is meant to run beside the event loop: [`Inspection::caller_search`] takes what it needs along.

mod callee;
mod context;
mod frame_rule;
mod judge;
mod place;
mod reached;
mod returns;
mod sources;
mod survey;

pub(super) use callee::stub_name;
pub use context::{CallContext, CodeSnapshot, FunctionAt, Jumps};
pub use frame_rule::FrameRule;
pub use sources::LedFrom;
pub use survey::CallerSurvey;

use super::choice::{Site, SiteChoice, SiteObstacle, TraceRefusal};
use super::insn::KernelRules;
use super::maps::{Backing, Mapping};
use super::resolve::Function;
use super::{Inspection, Module, verify};
use callee::Memory;
use judge::{Judge, Spent};
use profiler_core::class::SiteClass;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Where the return of a call is seen: an instruction of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReturnSite {
    /// Link-time address.
    pub vaddr: u64,
    /// Offset in the module's file, bytes: what the kernel wants.
    pub file_offset: u64,
    /// Length of the instruction, bytes.
    pub length: u8,
    /// Price class.
    pub class: SiteClass,
    /// Bytes from the return address to here; 0: it stands at the return address.
    pub distance: u8,
    /// Words between the stack pointer here and the word that held the return address, as in
    /// [`Site::return_slot`](super::Site::return_slot): -1 at the return address, since the return took that word off.
    pub return_slot: i16,
    /// Control may reach it otherwise than by a return to the return address, or that cannot be told: some hits are no returns.
    /// Of a call that was left by a throw or `longjmp`, the hit may come from what caught it.
    pub joined: bool,
}

/// A call, by its return address, with the sites at which its return is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerSite {
    /// The address that was asked for: where the call returns to, in the process. (Link-time address in a survey.)
    pub return_address: u64,
    /// Index into [`Inspection::modules`] of the caller's module.
    pub module: usize,
    /// Link-time address of the call.
    pub call_vaddr: u64,
    /// Where the call leads, as an address in the process: by its displacement, or through a bound slot of the linkage tables.
    /// `None`: through another pointer, or through a slot that is not bound yet. That function may jump on to another, which
    /// then returns here.
    pub direct: Option<u64>,
    /// The first instruction from the return address on that can be probed.
    pub site: ReturnSite,
    /// Where that one is single-stepped: the next one of the same run that the kernel emulates, a few instructions on.
    pub cheaper: Option<ReturnSite>,
    /// Link-time addresses of all code by which this was proven: of the caller, which begins with the first, and of its parts.
    pub proof: Arc<[Range<u64>]>,
}

impl CallerSite {
    /// The site to use: the emulated one where there is one.
    #[must_use]
    pub fn best(&self) -> ReturnSite {
        self.cheaper.unwrap_or(self.site)
    }
}

/// Why a return address gets no site; shown to people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallerError {
    /// Nothing executable is mapped there, as far as is known.
    #[error("no code is mapped at {0:#x}")]
    NotMapped(u64),
    /// Code that no file backs.
    #[error("its caller is code made at run time, which no file holds: it cannot carry a breakpoint")]
    MadeAtRunTime,
    /// The vDSO and its like.
    #[error("its caller is the kernel's own code ({0})")]
    Kernels(String),
    /// The kernel's trampoline stood in the place of the return address.
    #[error("another tracer's return link stands in the place of its return address")]
    Replaced,
    /// The caller's begin is unknown.
    #[error(
        "may be inside an instruction: neither a symbol nor the unwind table (.eh_frame_hdr) says where its caller begins"
    )]
    NoFunction,
    /// The caller does not decode without gaps, or has nothing there.
    #[error("what stands at +{offset:#x} of its caller {function} may be no instruction: {why}")]
    Undecoded {
        /// The caller.
        function: String,
        /// The return address, from the caller's begin, bytes.
        offset: u64,
        /// Why.
        why: String,
    },
    /// It is no return address.
    #[error("no call ends at +{offset:#x} of {function}")]
    NoCall {
        /// The function that holds the address.
        function: String,
        /// The address, from that function's begin, bytes.
        offset: u64,
    },
    /// Nothing is known to lead to the call.
    #[error("no known way through {function} leads to the call that ends at +{offset:#x}: it may be data")]
    Unreached {
        /// The function that holds the address.
        function: String,
        /// The address, from that function's begin, bytes.
        offset: u64,
    },
    /// The caller's code cannot be read, or must not be traced.
    #[error("its caller: {0}")]
    Refused(TraceRefusal),
    /// No usable instruction.
    #[error("no instruction behind the call at +{offset:#x} of {function} can carry a breakpoint: {why}")]
    NoSite {
        /// The caller.
        function: String,
        /// The call, from the caller's begin, bytes.
        offset: u64,
        /// Why.
        why: String,
    },
    /// The search ended before; it may be asked for again.
    #[error("not looked at: {0}")]
    NotLookedAt(String),
}

/// A module by its number, and link-time addresses of some of its code.
type Code = (usize, Arc<[Range<u64>]>);

/// Remarks about code that is the file's, or what is wrong with it.
type Verdict = Result<Vec<String>, TraceRefusal>;

/// What one search may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerBudget {
    /// Bytes of callers that are decoded.
    pub bytes: u64,
    /// Time after which no further address is looked at. It is outlasted by the decoding of one caller at most (tens of ms), and by
    /// the scan of a module that nobody has looked at before.
    pub time: Duration,
}

impl Default for CallerBudget {
    /// 64 MiB and 2 s: a release build decodes some 100 MiB a second, and all code of PostgreSQL has 6 MiB.
    fn default() -> Self {
        Self { bytes: 64 << 20, time: Duration::from_secs(2) }
    }
}

/// Return addresses with all that is needed to look at them, so that another thread can do it.
#[derive(Debug)]
pub struct CallerSearch {
    pid: i32,
    rules: KernelRules,
    asked: Vec<(u64, Result<usize, CallerError>)>,
    modules: HashMap<usize, Module>,
    /// Begin and end of all executable mappings, by address.
    executable: Vec<(u64, u64)>,
}

impl CallerSearch {
    /// Looks at all of them, by module and function; answers in the order of the addresses.
    ///
    /// # Cost
    /// Each function that holds one is decoded once. The first look at a module scans its code (3 to 7 ns per byte).
    #[must_use]
    pub fn run(self, budget: CallerBudget) -> Vec<Result<CallerSite, CallerError>> {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (position, (_, place)) in self.asked.iter().enumerate() {
            if let Ok(module) = place {
                groups.entry(*module).or_default().push(position);
            }
        }
        let mut found: Vec<Result<CallerSite, CallerError>> = self
            .asked
            .iter()
            .map(|(address, place)| Err(place.clone().err().unwrap_or(CallerError::NotMapped(*address))))
            .collect();
        let memory = Memory::of(self.pid, &self.executable);
        let mut spent = Spent::of(budget);
        for (index, mut positions) in groups {
            let Some(module) = self.modules.get(&index) else { continue };
            positions.sort_by_key(|&position| self.asked[position].0);
            let mut judge = Judge::new(module, index, self.rules);
            for position in positions {
                let address = self.asked[position].0;
                found[position] = judge.at_address(address, &memory, &mut spent);
            }
        }
        found
    }
}

impl Inspection {
    /// What return addresses of this process become: a site each, or why there is none. As
    /// [`Inspection::caller_search`] with the usual budget, at once.
    #[must_use]
    pub fn callers(&self, addresses: &[u64]) -> Vec<Result<CallerSite, CallerError>> {
        self.caller_search(addresses).run(CallerBudget::default())
    }

    /// The same, to be run on another thread. The mappings are read now; modules that have come since [`Inspection::refresh`] are not
    /// known ([`CallerError::NotMapped`]).
    #[must_use]
    pub fn caller_search(&self, addresses: &[u64]) -> CallerSearch {
        let by_start: HashMap<u64, usize> = self
            .modules()
            .iter()
            .enumerate()
            .flat_map(|(index, module)| module.mappings.iter().map(move |map| (map.start, index)))
            .collect();
        // Code is made at run time all the time.
        let now = super::read_maps(self.pid()).ok();
        let mut maps: Vec<&Mapping> = now.as_deref().unwrap_or(self.maps()).iter().collect();
        maps.sort_by_key(|map| map.start);
        let mut modules = HashMap::new();
        let asked: Vec<_> = addresses
            .iter()
            .map(|&address| {
                let place = place_of(&maps, &by_start, address);
                if let Ok(index) = place {
                    modules.entry(index).or_insert_with(|| self.modules()[index].clone());
                }
                (address, place)
            })
            .collect();
        let executable = maps.iter().filter(|map| map.exec).map(|map| (map.start, map.end)).collect();
        CallerSearch { pid: self.pid(), rules: self.rules(), asked, modules, executable }
    }

    /// Compares the code that each was proven by ([`CallerSite::proof`]) with the file, as [`Inspection::verify`]. Do this right
    /// before attaching. Offsets in answers are from the caller's begin.
    #[must_use]
    pub fn verify_callers(&self, callers: &[CallerSite]) -> Vec<Verdict> {
        let verifier = match verify::Verifier::new(self) {
            Ok(verifier) => verifier,
            Err(refusal) => return callers.iter().map(|_| Err(refusal.clone())).collect(),
        };
        // Calls of one function share its code.
        let mut known: HashMap<Code, Verdict> = HashMap::new();
        let mut verdict = |caller: &CallerSite| {
            let code = (caller.module, Arc::clone(&caller.proof));
            known.entry(code).or_insert_with(|| verifier.check_caller(caller)).clone()
        };
        callers.iter().map(&mut verdict).collect()
    }

    /// Whether calls of a function can be matched at their return addresses: it comes back to the address that its caller left
    /// on the stack, with the stack pointer right above it. What it does in between does not matter, nor that it is entered or
    /// left by jumps: the word on the stack stays the same. Of code that cannot be decoded nothing is held against it: a return
    /// that is missed is a call that is not timed.
    ///
    /// # Errors
    /// What it does instead.
    pub fn returns_to_its_callers(&self, function: &Function) -> Result<(), SiteObstacle> {
        if self.is_go(function) {
            return Err(SiteObstacle("Go moves its stacks while calls are open".into()));
        }
        let unknown = || SiteObstacle("its module is not mapped any more".into());
        returns::check(self.modules().get(function.module).ok_or_else(unknown)?, function)
    }

    /// The site at which calls of a function are seen to begin that are matched at their return addresses: the cheapest one at which
    /// the return address can be found.
    ///
    /// # Errors
    /// Why its calls cannot be timed that way: as [`Inspection::returns_to_its_callers`], or there is no such site.
    pub fn entry_for_returns(&self, function: &Function, sites: &SiteChoice) -> Result<Site, SiteObstacle> {
        self.returns_to_its_callers(function)?;
        returns::entry(sites)
    }

    /// The same for a function of a file that no process maps (offline analysis).
    ///
    /// # Errors
    /// As [`Inspection::entry_for_returns`].
    pub fn entry_for_returns_offline(
        module: &Module,
        function: &Function,
        sites: &SiteChoice,
    ) -> Result<Site, SiteObstacle> {
        returns::check(module, function)?;
        returns::entry(sites)
    }

    /// All calls of a file that no process maps, and what share of their return addresses has a site (offline analysis).
    ///
    /// # Errors
    /// Its code cannot be read; in words.
    pub fn callers_offline(module: &Module, rules: KernelRules) -> Result<CallerSurvey, String> {
        survey::of(module, rules)
    }
}

/// The module that is mapped at an address; or what is there instead.
fn place_of(maps: &[&Mapping], by_start: &HashMap<u64, usize>, address: u64) -> Result<usize, CallerError> {
    let before = maps.partition_point(|map| map.start <= address);
    let map = before.checked_sub(1).map(|i| maps[i]).filter(|map| map.contains(address) && map.exec);
    let map = map.ok_or(CallerError::NotMapped(address))?;
    match &map.backing {
        Backing::Anonymous => return Err(CallerError::MadeAtRunTime),
        Backing::Special(name) if name.starts_with("[uprobes") => return Err(CallerError::Replaced),
        Backing::Special(name) if matches!(name.as_str(), "[vdso]" | "[vsyscall]") => {
            return Err(CallerError::Kernels(name.clone()));
        }
        // The heap, a stack, memory with a name of its own.
        Backing::Special(_) => return Err(CallerError::MadeAtRunTime),
        Backing::File { .. } => {}
    }
    if map.write || map.shared {
        let how = if map.write { "writable" } else { "shared" };
        return Err(CallerError::Refused(TraceRefusal::BadMapping(how.into())));
    }
    by_start.get(&map.start).copied().ok_or(CallerError::NotMapped(address))
}

#[cfg(test)]
mod tests;
