//! The parameters of functions as debug information (DWARF) tells of them: names, types, and by these the registers that hold them.
//!
//! Input: a function of a module. Output: its [`Prototype`], or why there is none ([`NoPrototype`]). The debug information is looked for in the file, then
//! in a separate debug file (by build ID, or by `.gnu_debuglink`). Only functions that somebody asks for are looked up: by `.debug_aranges`, else by the
//! address ranges of the units; and of the file only those pages are read that this takes, within an [`Effort`].
//!
//! C and C++ pass arguments as the System V ABI for x86-64 says (`types`). Rust says nothing of how it does; what is known is that scalars and references take
//! one register each, and slices two. So a function of Rust has a prototype only if it takes nothing else. No function of another language has one, nor
//! one that the compiler has made from another by changing its parameters (`f.isra.0`), nor one of which the debug information has a parameter in another
//! register at its begin. Behind a structure that is passed by value only that is told which the debug information of optimised code bears out (`function`).
//!
//! Not read: debug information that several files share (`dwz`), that lies in `.dwo` files, and types in units of their own.

mod classes;
mod function;
mod returned;
mod sections;
#[cfg(test)]
mod tests;
mod types;
mod units;

use super::module::Module;
use super::names::{Clone as CloneKind, clone_kind, is_of_coroutine, is_only_renamed};
use super::prototype::Prototype;
use super::resolve::Function;
use super::{Inspection, runtime};
use function::Unknown;
use gimli::{Dwarf, SectionId};
use sections::{Budget, DebugFile, Piece};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::PoisonError;
use units::{Index, Units};

/// Bytes of debug information that are read or unpacked in a run.
const RUN_BYTES: u64 = 256 << 20;
/// Single figures that are read out of them in a run.
const RUN_READS: u64 = 1 << 26;

/// How much may be spent on one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// While windows are open that have to be closed in time: some tens of ms.
    Little,
    /// Nothing waits, and somebody asked for it by name: up to a second.
    Much,
}

impl Effort {
    /// Bytes that are read or unpacked (memory is a little more), and single figures that are read out of them, some 20 ns each in a release build.
    fn amounts(self) -> (u64, u64) {
        match self {
            Self::Little => (16 << 20, 1 << 21),
            Self::Much => (96 << 20, 1 << 25),
        }
    }
}

/// Why nobody knows the parameters of a function by their names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPrototype {
    /// Its module has no debug information.
    #[error("{module} has no debug information (DWARF), which has the names of parameters; {remedy}")]
    NoDebugInformation {
        /// File name of the module.
        module: String,
        /// What to install.
        remedy: String,
    },
    /// The debug information has nothing of it, or of lines alone.
    #[error("the debug information of {0} says nothing of its parameters")]
    NotThere(String),
    /// It passes arguments in its own way.
    #[error("it is of a language whose way to pass arguments is not known here (C, C++ and Rust are)")]
    Language,
    /// The compiler has changed its parameters.
    #[error("the compiler has changed which parameters it takes, or in which registers")]
    Changed,
    /// A structure of C++ or Rust.
    #[error(
        "it takes or returns a structure by value, and the debug information does not say in which registers"
    )]
    Unsure,
    /// It cannot be read.
    #[error("the debug information of {module} cannot be read: {why}")]
    Read {
        /// File name of the module.
        module: String,
        /// What is wrong.
        why: String,
    },
    /// It is too large.
    #[error("the debug information of {0} is more than is read of it")]
    TooLarge(String),
}

/// The debug information of one module.
#[derive(Debug)]
struct Known {
    /// `None`: it has none.
    file: Option<DebugFile>,
    index: Index,
    /// One function was more than a little effort.
    is_large: bool,
}

/// What is known of the functions of a process, and what may still be spent on others.
#[derive(Debug)]
pub(super) struct Run {
    bytes: u64,
    reads: u64,
    modules: HashMap<usize, Known>,
    /// By module and address.
    answers: HashMap<(usize, u64), Result<Prototype, NoPrototype>>,
}

impl Default for Run {
    fn default() -> Self {
        Self { bytes: RUN_BYTES, reads: RUN_READS, modules: HashMap::new(), answers: HashMap::new() }
    }
}

impl Run {
    /// Modules came or went: one that is mapped again may be another file.
    pub fn forget(&mut self) {
        self.modules.clear();
        self.answers.clear();
    }
}

impl Inspection {
    /// The parameters of a function, by debug information.
    ///
    /// # Errors
    /// [`NoPrototype`].
    ///
    /// # Cost
    /// The first function of a unit takes as long as reading that unit: some milliseconds. Where there is no `.debug_aranges`, the first function of a module takes a
    /// look at all its units; what is packed is unpacked first. In all not more than some seconds, behind which no other function is known.
    pub fn prototype(&self, function: &Function, effort: Effort) -> Result<Prototype, NoPrototype> {
        let module = self.modules.get(function.module);
        let module = module.ok_or_else(|| NoPrototype::NotThere(function.module_name.clone()))?;
        let mut run = self.prototypes.lock().unwrap_or_else(PoisonError::into_inner);
        of(module, function, effort, &mut run)
    }

    /// The same of a function of a file that no process maps (offline analysis).
    ///
    /// # Errors
    /// [`NoPrototype`].
    pub fn prototype_offline(module: &Module, function: &Function) -> Result<Prototype, NoPrototype> {
        of(module, function, Effort::Much, &mut Run::default())
    }

    /// No function is asked for in a while: what was unpacked is given back. Where it is asked for again it is unpacked again, which takes that time but nothing
    /// of what may be spent.
    pub fn rest(&self) {
        let run = self.prototypes.lock().unwrap_or_else(PoisonError::into_inner);
        run.modules.values().filter_map(|known| known.file.as_ref()).for_each(DebugFile::rest);
    }
}

fn of(module: &Module, function: &Function, effort: Effort, run: &mut Run) -> Result<Prototype, NoPrototype> {
    let key = (function.module, function.vaddr);
    if let Some(known) = run.answers.get(&key) {
        return known.clone();
    }
    let answer = read(module, function, effort, run);
    // With more effort it may be known.
    if !matches!(answer, Err(NoPrototype::TooLarge(_))) {
        run.answers.insert(key, answer.clone());
    }
    answer
}

fn read(
    module: &Module,
    function: &Function,
    effort: Effort,
    run: &mut Run,
) -> Result<Prototype, NoPrototype> {
    if runtime::is_go_function(module, &function.name) {
        return Err(NoPrototype::Language);
    }
    let symbol = &function.symbol;
    let is_copy = clone_kind(symbol) != CloneKind::Whole && !is_only_renamed(symbol);
    if is_copy || is_of_coroutine(symbol) {
        return Err(NoPrototype::Changed);
    }
    let known = run.modules.entry(function.module).or_insert_with(|| Known::of(module));
    let Some(file) = &known.file else {
        return Err(NoPrototype::NoDebugInformation { module: module.name.clone(), remedy: module.remedy() });
    };
    if known.is_large && effort == Effort::Little {
        return Err(NoPrototype::TooLarge(module.name.clone()));
    }
    let (bytes, reads) = effort.amounts();
    let budget = Budget::within(bytes, bytes.min(run.bytes), reads.min(run.reads));
    let before = budget.left();
    let answer = ask(file, &mut known.index, function.vaddr, &budget);
    let after = budget.left();
    run.bytes -= before.0 - after.0;
    run.reads -= before.1 - after.1;
    if budget.is_spent() {
        // Its index may be a part of what it should be.
        (known.index, known.is_large) = (Index::default(), true);
    }
    answer.map_err(|unknown| match unknown {
        _ if budget.is_spent() => NoPrototype::TooLarge(module.name.clone()),
        None | Some(Unknown::OnlyLines) => NoPrototype::NotThere(module.name.clone()),
        Some(Unknown::Language) => NoPrototype::Language,
        Some(Unknown::Changed) => NoPrototype::Changed,
        Some(Unknown::Unsure) => NoPrototype::Unsure,
        Some(Unknown::Read(error)) => {
            NoPrototype::Read { module: module.name.clone(), why: error.to_string() }
        }
    })
}

/// Errors: why it is not known; none: it is not there.
fn ask(
    file: &DebugFile,
    index: &mut Index,
    vaddr: u64,
    budget: &Rc<Budget>,
) -> Result<Prototype, Option<Unknown>> {
    let wrong = |error| Some(Unknown::Read(error));
    // Nothing is read or unpacked yet: tables of lines and macros never are.
    let load = |id: SectionId| Ok(file.section(id.name(), budget));
    let dwarf: Dwarf<Piece> = Dwarf::load(load).map_err(wrong)?;
    let mut units = Units::new(&dwarf, index);
    let found = units.function(vaddr).map_err(wrong)?.ok_or(None)?;
    function::prototype(found, vaddr, &mut units).map_err(Some)
}

impl Known {
    fn of(module: &Module) -> Self {
        let elf = module.elf().ok();
        let own = elf.and_then(|elf| DebugFile::of(&elf.file));
        let apart = || DebugFile::of(&module.debug_file(elf?)?.file);
        Self { file: own.or_else(apart), index: Index::default(), is_large: false }
    }
}
