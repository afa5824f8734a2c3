//! Inspecting the target: which functions it has, where each can be instrumented, and what would harm it.
//!
//! Input: a PID. Output: [`Inspection`], from which [`Pattern`]s and sampled addresses become [`Function`]s, and
//! functions become [`SiteChoice`]s: the cheapest entry site, the exit sites, and the reasons where something is
//! refused. Before attaching, [`Inspection::verify`] compares the code in memory with the file, and
//! [`Inspection::return_links`] says whether return links are safe in this process.
//!
//! Everything is lazy: headers, symbols and code of a module are read when something asks for them, and kept small.
//! DWARF is not read. Nothing here attaches, stops or writes to the target; x86-64 only.
//!
//! ```no_run
//! use profiler_user::inspect::{Inspection, Pattern};
//! let inspection = Inspection::of(1234)?;
//! let found = inspection.resolve(&[Pattern::parse("sqlite3_*").unwrap()]);
//! for function in &found.functions {
//!     let sites = inspection.sites(function);
//!     if sites.trace.is_ok() && inspection.verify(function, &sites).is_ok() {
//!         println!("{} at {:#x}: {}", function.name, sites.entry.file_offset, sites.why);
//!     }
//! }
//! # Ok::<(), profiler_user::inspect::InspectError>(())
//! ```

mod arguments;
mod callers;
pub mod cgroup;
mod choice;
mod dwarf;
mod dynamic;
mod elf;
mod error;
mod exits;
mod flow;
pub mod forms;
pub mod graph;
pub mod host;
mod ifunc;
mod insn;
mod landing;
mod link_map;
pub mod mappers;
pub(crate) mod maps;
mod module;
pub mod names;
mod neighbours;
mod parameters;
mod pattern;
pub mod process;
mod prototype;
mod resolve;
mod return_links;
mod runtime;
mod sequences;
mod sites;
mod stack_switch;
mod stacks;
mod symbols;
mod text;
mod timing;
mod unwinding;
mod usdt;
mod variable;
mod verify;

pub use arguments::{ALL_ARGUMENTS, WantedArguments, register_names};
pub use callers::{
    CallContext, CallerBudget, CallerError, CallerSearch, CallerSite, CallerSurvey, CodeSnapshot, FrameRule,
    FunctionAt, Jumps, LedFrom, ReturnSite,
};
pub use choice::{ArgumentSite, ExitObstacle, Site, SiteChoice, SiteObstacle, TraceRefusal, exit_mode};
pub use dwarf::{Effort, NoPrototype};
pub use elf::{ElfInfo, Section, Segment};
pub use error::InspectError;
pub use insn::{KernelRules, Treatment, Unproven, treatment};
pub use maps::{Backing, Mapping};
pub use module::{AttachPath, Module};
pub use neighbours::may_be_jumped_to;
pub use pattern::{Pattern, PatternError};
pub use prototype::{Parameter, ParameterKind, Prototype};
pub use resolve::{Function, Resolution, Unmatched};
pub use runtime::Runtime;
pub use stack_switch::StackSwitch;
pub use symbols::SymbolSource;
#[cfg(test)]
pub(crate) use text::Budget;
pub use text::TextIndex;
pub use timing::TimingSurvey;
pub use unwinding::{Unwinding, UnwindingKind};
pub(crate) use usdt::semaphores_of;
pub use usdt::{ProbeSite, RegisterArgument, register_argument};
pub use variable::VariableError;
pub use verify::Breakpoints;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// A process, looked at.
#[derive(Debug)]
pub struct Inspection {
    pid: i32,
    exe: PathBuf,
    status: process::Status,
    maps: Vec<Mapping>,
    modules: Vec<Module>,
    rules: KernelRules,
    stacks: Mutex<stacks::Stacks>,
    return_links: OnceLock<Result<(), SiteObstacle>>,
    ifuncs: OnceLock<ifunc::Bound>,
    /// What is known of callees, by module.
    parameters: Mutex<parameters::Run>,
    prototypes: Mutex<dwarf::Run>,
}

impl Inspection {
    /// Looks at a process: its state, its mappings, its modules. Symbols and code are read later, when asked for.
    ///
    /// # Errors
    /// There is no such process, it is a zombie, a kernel thread or a 32-bit program, or it may not be read; each is
    /// its own variant of [`InspectError`].
    pub fn of(pid: i32) -> Result<Self, InspectError> {
        let (status, exe) = process::check(pid)?;
        let maps = read_maps(pid)?;
        let modules = Module::all(pid, &maps);
        let mut stacks = stacks::Stacks::default();
        stacks.remap(pid, &maps, |_| true);
        Ok(Self {
            pid,
            exe,
            maps,
            modules,
            rules: KernelRules { calls: !status.shadow_stack, ..KernelRules::host() },
            status,
            stacks: Mutex::new(stacks),
            return_links: OnceLock::new(),
            ifuncs: OnceLock::new(),
            parameters: Mutex::default(),
            prototypes: Mutex::default(),
        })
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its program, as it sees the path.
    #[must_use]
    pub fn exe(&self) -> &std::path::Path {
        &self.exe
    }

    /// What `/proc/PID/status` said.
    #[must_use]
    pub fn status(&self) -> &process::Status {
        &self.status
    }

    /// All mappings, by address.
    #[must_use]
    pub fn maps(&self) -> &[Mapping] {
        &self.maps
    }

    /// The files mapped executable, the main program first. Indices stay valid over [`Inspection::refresh`].
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The instruction rules of this kernel.
    #[must_use]
    pub fn rules(&self) -> KernelRules {
        self.rules
    }

    /// Takes the rules that calibration found on this kernel. Before any site is chosen.
    pub fn use_rules(&mut self, rules: KernelRules) {
        self.rules = KernelRules { calls: self.rules.calls, ..rules };
    }

    /// Looks at the mappings again; true if modules came or went (`dlopen`, `dlclose`). Return links must then be
    /// asked for again; what is known of a module that stays is kept, and
    /// the file of one that went is given back once no function of it is kept.
    ///
    /// # Errors
    /// The process is gone.
    pub fn refresh(&mut self) -> Result<bool, InspectError> {
        self.status =
            process::Status::read(self.pid).map_err(|_| InspectError::NoSuchProcess { pid: self.pid })?;
        self.maps = read_maps(self.pid)?;
        let mut changed = false;
        let mut files = module::MappedFiles::of(&self.maps);
        let mut back = Vec::new();
        for (i, module) in self.modules.iter_mut().enumerate() {
            let now = files.take(module);
            changed |= now.is_empty() != module.mappings.is_empty();
            if module.is_released() && !now.is_empty() {
                back.push((i, now));
                continue;
            }
            module.mappings = now;
            module.release();
        }
        let files = files.rest();
        changed |= !files.is_empty();
        for (i, mappings) in back {
            for again in Module::of_files(self.pid, vec![mappings], &self.modules) {
                if let Err(new) = self.modules[i].take_back(again) {
                    self.modules.push(*new);
                }
            }
        }
        let mut new = Module::of_files(self.pid, files, &self.modules);
        self.modules.append(&mut new);
        let alive: HashSet<i32> = return_links::tasks(self.pid).into_iter().collect();
        self.stacks().remap(self.pid, &self.maps, |tid| alive.contains(&tid));
        self.rules.calls &= !self.status.shadow_stack;
        // Stacks and seccomp filters may have changed even if the modules have not.
        self.return_links = OnceLock::new();
        self.ifuncs = OnceLock::new();
        if changed {
            self.parameters.get_mut().unwrap_or_else(PoisonError::into_inner).forget();
            self.prototypes.get_mut().unwrap_or_else(PoisonError::into_inner).forget();
        }
        Ok(changed)
    }

    /// Turns patterns into functions; patterns that name nothing come back with the reason and similar names.
    #[must_use]
    pub fn resolve(&self, patterns: &[Pattern]) -> Resolution {
        resolve::resolve(self, patterns)
    }

    /// The function that runs at an address of the process, as seen in a sample; `None` for code without a symbol
    /// (JIT, stripped, vDSO). An address in a cold part gives the function that it belongs to.
    #[must_use]
    pub fn function_at(&self, address: u64) -> Option<Function> {
        resolve::function_at(&self.modules, address)
    }

    /// The function of a module that holds a link-time address; else as [`Inspection::function_at`].
    #[must_use]
    pub fn function_in(&self, index: usize, vaddr: u64) -> Option<Function> {
        resolve::function_in(&self.modules, index, vaddr)
    }

    /// Chooses the sites of a function.
    ///
    /// # Cost
    /// The first call for a module scans its code (3 to 7 ns per byte); each call then decodes one function.
    #[must_use]
    pub fn sites(&self, function: &Function) -> SiteChoice {
        let Some(module) = self.modules.get(function.module) else {
            return sites::unusable(
                function,
                TraceRefusal::Unreadable("its module is not mapped any more".into()),
            );
        };
        let mut choice = sites::choose(module, function, self.rules);
        if let (Ok(_), Err(why)) = (&choice.return_link, self.return_links()) {
            choice.return_link = Err(why);
        }
        choice
    }

    /// The sites of a function of a file that no process maps (offline analysis).
    #[must_use]
    pub fn sites_offline(module: &Module, function: &Function, rules: KernelRules) -> SiteChoice {
        sites::choose(module, function, rules)
    }

    /// The argument registers of a function that are parameters, or may be, as [`Site::arguments`], by its code; `None`: that is not known.
    ///
    /// # Cost
    /// Decodes the function and some of its callees: mostly below 1 ms, at most some tens of ms, and about a second for all questions together. Behind
    /// that no function is known. The first question also reads the dynamic symbols of the modules.
    #[must_use]
    pub fn parameters(&self, function: &Function) -> Option<u8> {
        let module = self.modules.get(function.module).filter(|_| !self.is_go(function))?;
        let mut run = self.parameters.lock().unwrap_or_else(PoisonError::into_inner);
        parameters::of(&self.modules, module, function, &mut run)
    }

    /// The same of a function of a file that no process maps (offline analysis).
    #[must_use]
    pub fn parameters_offline(module: &Module, function: &Function) -> Option<u8> {
        let is_go = runtime::is_go_function(module, &function.name);
        (!is_go).then(|| parameters::of(&[], module, function, &mut parameters::Run::default())).flatten()
    }

    /// Every place of a USDT probe, in all modules of the process: one, or several where it was inlined.
    ///
    /// # Errors
    /// There is no such probe (with similar names), or one of its places cannot carry a breakpoint safely; in words.
    pub fn usdt(&self, provider: &str, name: &str) -> Result<Vec<ProbeSite>, String> {
        usdt::find(self, provider, name)
    }

    /// Which functions of a file that no process maps can be timed, and how (offline analysis).
    #[must_use]
    pub fn timing_offline(module: &Module, rules: KernelRules) -> TimingSurvey {
        timing::of(module, rules)
    }

    /// The functions of a file that calls can begin: those with a symbol and a size, and of a stripped file those that only unwind data
    /// tell of (offline analysis).
    #[must_use]
    pub fn functions_offline(module: &Module) -> Vec<Function> {
        timing::functions(module)
    }

    /// Compares the function's code, and its exit sites, with the file; returns remarks (another tool's breakpoint).
    /// Do this right before attaching.
    ///
    /// # Errors
    /// The code was patched, or its mapping takes no breakpoints: the kernel would run the *file's* instruction and
    /// the process would crash, or the breakpoint would never hit.
    pub fn verify(&self, function: &Function, sites: &SiteChoice) -> Result<Vec<String>, TraceRefusal> {
        self.verify_beside(function, sites, &Breakpoints::new())
    }

    /// The same where breakpoints of this agent may stand already.
    ///
    /// # Errors
    /// As [`Inspection::verify`].
    pub fn verify_beside(
        &self,
        function: &Function,
        sites: &SiteChoice,
        own: &Breakpoints,
    ) -> Result<Vec<String>, TraceRefusal> {
        verify::Verifier::new(self)?.check(function, sites, own)
    }

    /// The same for many functions, with the mappings read once.
    #[must_use]
    pub fn verify_all(
        &self,
        functions: &[(&Function, &SiteChoice)],
        own: &Breakpoints,
    ) -> Vec<Result<Vec<String>, TraceRefusal>> {
        match verify::Verifier::new(self) {
            Ok(verifier) => functions.iter().map(|(f, s)| verifier.check(f, s, own)).collect(),
            Err(refusal) => functions.iter().map(|_| Err(refusal.clone())).collect(),
        }
    }

    /// Whether a return link may be made anywhere in this process; computed once, again after
    /// [`Inspection::refresh`]. `--return-links` overrides it at the user's risk, function by function.
    ///
    /// # Errors
    /// What in the process would crash on a replaced return address.
    pub fn return_links(&self) -> Result<(), SiteObstacle> {
        if let Some(why) = self.stacks_switched() {
            return Err(why);
        }
        self.return_links.get_or_init(|| return_links::check(self)).clone()
    }

    /// The same without reading a module: none while one that is mapped has not been looked at ([`Module::return_links`]).
    #[must_use]
    pub fn return_links_known(&self) -> Option<Result<(), SiteObstacle>> {
        if let Some(why) = self.stacks_switched() {
            return Some(Err(why));
        }
        self.return_links.get().cloned().or_else(|| return_links::known(self))
    }

    /// Each thread of the process keeps to one stack, as far as its code tells. Reads modules that nobody has read; with what cannot be
    /// read before `deadline` it may do anything.
    #[must_use]
    pub fn keeps_stacks(&self, deadline: Instant) -> bool {
        return_links::keeps_stacks(self, deadline)
    }

    /// What forbids return links beside the unwinder that is mapped, by index of [`Inspection::modules`] (`None`: the process as a
    /// whole), the plainest first; empty where no unwinder is mapped. Reads the modules that were not looked at yet.
    #[must_use]
    pub fn unwinding(&self) -> Vec<(Option<usize>, Unwinding)> {
        if unwinding::unwinder(self).is_none() {
            return Vec::new();
        }
        unwinding::forbidding(self).into_iter().map(|f| (f.module, f.what)).collect()
    }

    /// The evidence by which return links are allowed beside an unwinder; none where they are refused, or no unwinder is mapped.
    #[must_use]
    pub fn return_link_evidence(&self) -> Option<String> {
        let unwinder = unwinding::unwinder(self)?;
        self.return_links().ok()?;
        let modules = unwinding::mapped(self).count();
        let name = &unwinder.name;
        Some(format!(
            "{name} is mapped, and none of the {modules} modules can raise, end a thread or walk a stack"
        ))
    }

    /// Whether it has code that no file shows: made at run time, or in pages of a file that it may write.
    #[must_use]
    pub fn has_unseen_code(&self) -> bool {
        unwinding::has_unseen_code(&self.maps)
    }

    /// Where a thread's stack pointer was seen. A thread that is seen on two stacks, or outside its own, makes return links
    /// unsafe for as long as this program runs.
    pub fn note_stack_pointer(&self, tid: i32, sp: u64) {
        self.stacks().note(self.pid, &self.maps, tid, sp);
    }

    /// Why return links are unsafe by what was seen of the threads' stacks, if they are.
    #[must_use]
    pub fn stacks_switched(&self) -> Option<SiteObstacle> {
        self.stacks().switched().map(|why| SiteObstacle(why.to_owned()))
    }

    fn stacks(&self) -> MutexGuard<'_, stacks::Stacks> {
        self.stacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What kind of program it is.
    #[must_use]
    pub fn runtime(&self) -> Runtime {
        runtime::detect(self)
    }

    /// A function that Go's compiler made: it passes its arguments in other registers than C does.
    #[must_use]
    pub fn is_go(&self, function: &Function) -> bool {
        self.modules
            .get(function.module)
            .is_some_and(|module| runtime::is_go_function(module, &function.name))
    }

    /// Executable memory that no file backs, bytes: code made at run time, which is sampled, never traced.
    #[must_use]
    pub fn jit_bytes(&self) -> u64 {
        self.maps.iter().filter(|m| m.exec && m.backing == Backing::Anonymous).map(|m| m.end - m.start).sum()
    }

    fn ifunc_targets(&self, module: usize, vaddr: u64, name: &str) -> Vec<(usize, u64)> {
        self.ifuncs.get_or_init(|| ifunc::Bound::read(self)).targets(self, module, vaddr, name)
    }
}

impl Module {
    /// All functions with a symbol and a size, by address (for surveys of a whole file; slow for huge ones).
    #[must_use]
    pub fn functions(&self, module_index: usize) -> Vec<Function> {
        self.functions_step(module_index, 1)
    }

    /// Every `step`-th of them.
    #[must_use]
    pub fn functions_step(&self, module_index: usize, step: usize) -> Vec<Function> {
        self.starts()
            .into_iter()
            .step_by(step.max(1))
            .filter_map(|vaddr| resolve::function_of(self, module_index, vaddr))
            .collect()
    }

    /// How many functions have a symbol and a size.
    #[must_use]
    pub fn function_count(&self) -> usize {
        self.starts().len()
    }

    /// A function of this module that switches stacks; reads all code.
    ///
    /// # Errors
    /// The file cannot be read; in words.
    pub fn stack_switch(&self) -> Result<Option<StackSwitch>, String> {
        let (elf, symbols) = (self.elf()?, self.symbols()?);
        stack_switch::find(elf, symbols, self.searched()).map_err(|e| e.to_string())
    }

    fn starts(&self) -> Vec<u64> {
        let Ok(symbols) = self.symbols() else { return Vec::new() };
        let mut vaddrs: Vec<u64> = symbols.entries().iter().filter(|e| e.size > 0).map(|e| e.vaddr).collect();
        vaddrs.dedup();
        vaddrs
    }
}

fn read_maps(pid: i32) -> Result<Vec<Mapping>, InspectError> {
    let path = PathBuf::from(format!("/proc/{pid}/maps"));
    match std::fs::read(&path) {
        Ok(text) if text.is_empty() => Err(InspectError::Exited { pid, what: path.display().to_string() }),
        Ok(text) => Ok(maps::parse(&text)),
        Err(source) => Err(InspectError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests;
