//! Addresses to names: functions, source lines, inlined calls.
//!
//! What: turns the [`Frame`]s of a stack into the rows of table `stacks`. ELF symbols, DWARF lines and
//! inlined calls come from blazesym, which sees private copies of the files; kernel symbols from `/proc/kallsyms`; names of JIT code
//! from the perf map that the runtime writes; `module+0xaddress` stands where there is no name. Why two levels of
//! [`Detail`]: symbol tables cost milliseconds and little memory, DWARF of a large program seconds and
//! hundreds of MiB. So stacks are written with names while the run lasts, and once more with lines and inlined calls at its end.
//!
//! In: frames and the shared list of modules (files are held open there, so that names can be had after the
//! target is gone). Out: rows. Answers are kept per (module, address), bounded. [`Worker`] does it on a
//! thread of its own. It does not unwind.

mod classes;
mod copies;
mod elf_copy;
mod kernel;
mod perf_map;
mod worker;

#[cfg(test)]
mod tests;

pub use classes::ClassIndex;
pub use worker::{Job, Worker};

use crate::target_file::TargetFile;
use crate::unwind::{Frame, KERNEL, ModuleFile, ModuleId, ModuleInfo, ModuleKind, Modules};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer as Blazesym};
use copies::{BUDGET_BYTES, Copies, Held, Reader};
use elf_copy::{ElfCopy, Plan, What};
use kernel::KernelNames;
use object::{Object, ObjectSymbol};
use perf_map::PerfMaps;
use profiler_core::recording::FrameRow;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Distinct addresses kept; at about 150 bytes each, 20 MiB. Then all are forgotten, which costs a look-up
/// each to have again.
const MAX_CACHED: usize = 1 << 17;

/// How much is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Function names from symbol tables. For the run.
    Names,
    /// Also source lines and inlined calls, from DWARF. For the end of the run.
    Lines,
}

/// One function at an address; several where calls are inlined.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    function: Rc<str>,
    file: Rc<str>,
    line: u32,
    inlined: bool,
}

/// Looks names up. Not `Send`: make it on the thread that uses it.
pub struct Symbolizer {
    modules: Modules,
    classes: ClassIndex,
    detail: Detail,
    kernel: KernelNames,
    copies: Held,
    cache: HashMap<Frame, Rc<[Name]>>,
    perf_maps: PerfMaps,
    /// Symbols of ELF images in memory (the vDSO): start, size, name.
    images: HashMap<ModuleId, Vec<(u64, u64, Rc<str>)>>,
    notes: Vec<String>,
}

impl Symbolizer {
    /// A symbolizer of the modules in `modules`.
    #[must_use]
    pub fn new(modules: Modules, detail: Detail) -> Self {
        Self {
            modules,
            classes: ClassIndex::default(),
            detail,
            kernel: KernelNames::default(),
            copies: Held::new(BUDGET_BYTES),
            cache: HashMap::new(),
            perf_maps: PerfMaps::default(),
            images: HashMap::new(),
            notes: Vec::new(),
        }
    }

    /// The classes of the session: their functions get `class_id`, and the class's name.
    pub fn set_classes(&mut self, classes: ClassIndex) {
        self.classes = classes;
    }

    /// What could not be looked up, in words, since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Looks the frames of many stacks up, module by module: rows then come from memory, and no module's files are copied
    /// twice for them.
    pub fn prepare(&mut self, frames: impl IntoIterator<Item = Frame>) {
        let mut new: Vec<Frame> = frames.into_iter().filter(|f| !self.cache.contains_key(f)).collect();
        new.sort_unstable_by_key(|frame| (frame.module, frame.address));
        new.dedup();
        new.truncate(MAX_CACHED);
        self.kernel.read(new.iter().filter(|frame| frame.module == KERNEL).map(|frame| frame.address));
        for frames in new.chunk_by(|a, b| a.module == b.module) {
            let module = self.modules.get(frames[0].module);
            if matches!(module.kind, ModuleKind::File(_)) {
                frames.iter().for_each(|frame| drop(self.look_up(*frame, &module)));
                if self.detail == Detail::Lines {
                    // DWARF is large, and the end of a run asks for each module once.
                    self.copies.give_up();
                }
            }
        }
    }

    /// The rows of a stack, innermost first.
    ///
    /// # Cost
    /// Measured (`examples/agent_cost.rs`): 0.3 us per frame whose address is known. A new module costs once: names of a
    /// Python interpreter with libc 150 ms and 17 MiB, with lines and inlined calls 125 ms and 8 MiB more; a library of
    /// 150 MB 220 ms and 15 MiB.
    pub fn rows(&mut self, stack_id: u64, frames: &[Frame]) -> Vec<FrameRow> {
        let mut rows = Vec::with_capacity(frames.len());
        for frame in frames {
            let module = self.modules.get(frame.module);
            let names = self.look_up(*frame, &module);
            for name in names.iter() {
                let class = if name.inlined { None } else { self.classes.find(&module.name, frame.address) };
                rows.push(FrameRow {
                    stack_id,
                    depth: u32::try_from(rows.len()).unwrap_or(u32::MAX),
                    address: frame.address,
                    module: module.name.clone(),
                    function: class.map_or_else(|| name.function.to_string(), |c| c.name.clone()),
                    file: name.file.to_string(),
                    line: name.line,
                    inlined: name.inlined,
                    class_id: class.map(|c| c.class_id),
                });
            }
        }
        rows
    }

    fn look_up(&mut self, frame: Frame, module: &ModuleInfo) -> Rc<[Name]> {
        if let Some(names) = self.cache.get(&frame) {
            return Rc::clone(names);
        }
        let names: Rc<[Name]> = match self.names_of(frame, module) {
            Some(names) => names.into(),
            None => [Name::plain(&nameless(&module.name, frame.address))].into(),
        };
        if self.cache.len() >= MAX_CACHED {
            self.cache.clear();
        }
        // A JIT may still be about to name this address.
        if !matches!(module.kind, ModuleKind::Jit { .. }) {
            self.cache.insert(frame, Rc::clone(&names));
        }
        names
    }

    fn names_of(&mut self, frame: Frame, module: &ModuleInfo) -> Option<Vec<Name>> {
        match &module.kind {
            ModuleKind::Unknown => None,
            ModuleKind::Kernel => {
                // Not vmlinux, which has hundreds of MiB of DWARF, for one frame per sample.
                self.kernel.find(frame.address).map(|name| vec![Name::plain(&name)])
            }
            ModuleKind::Jit { pid } => self.perf_maps.find(*pid, frame.address).map(|n| vec![Name::plain(n)]),
            ModuleKind::Image(bytes) => {
                let symbols = self.images.entry(frame.module).or_insert_with(|| image_symbols(bytes));
                let i = symbols.partition_point(|s| s.0 <= frame.address).checked_sub(1)?;
                let (start, size, name) = &symbols[i];
                (frame.address - start < (*size).max(1)).then(|| vec![Name::plain(name)])
            }
            ModuleKind::File(file) => {
                let copies = self.copies(frame.module, module, file);
                let look = |reader: &Option<Reader>, debug_syms| {
                    let reader = reader.as_ref()?;
                    let mut elf = Elf::new(reader.path());
                    elf.debug_syms = debug_syms;
                    let source = Source::Elf(elf);
                    let symbol = symbol(&reader.blaze, &source, Input::VirtOffset(frame.address));
                    symbol.map(Sym::into_owned)
                };
                let debug = look(&copies.debug, self.detail == Detail::Lines);
                let plain = look(&copies.plain, false);
                names_from(plain.as_ref(), debug.as_ref())
            }
        }
    }

    /// The copies of a module's files, made when it is first asked for.
    fn copies(&mut self, id: ModuleId, module: &ModuleInfo, file: &ModuleFile) -> Rc<Copies> {
        if let Some(copies) = self.copies.get(id) {
            return copies;
        }
        let copied = if self.copies.is_spent(id) {
            Err("its symbols do not stay in the agent's memory beside those of the other modules".to_owned())
        } else {
            self.copy(module, file)
        };
        let copies = match copied {
            Ok(copies) => copies,
            Err(why) => {
                self.notes.push(format!("no names for '{}': {why}", module.name));
                Copies::default()
            }
        };
        self.copies.insert(id, copies)
    }

    fn copy(&mut self, module: &ModuleInfo, file: &ModuleFile) -> Result<Copies, String> {
        let elf = module.elf()?;
        let open = file.open()?;
        let plain = self.copy_within(Plan::of(&open, What::Symbols)?, 0, "symbols")?;
        let lines = self.detail == Detail::Lines;
        let separate = if lines && elf.debug_bytes > 0 || !lines && elf.has_symtab {
            None
        } else {
            elf.debug.find(file.path(), file.root(), |candidate| {
                let found = crate::unwind::ElfInfo::read(&candidate).ok()?;
                (found.debug.build_id == elf.debug.build_id).then_some(candidate)
            })
        };
        let debug = match &separate {
            Some(separate) => self.copy_debug(&module.name, separate, plain.bytes(), true),
            None if lines && elf.debug_bytes > 0 => {
                self.copy_debug(&module.name, &open, plain.bytes(), false)
            }
            None => None,
        };
        let debug = debug.map(|copy| Reader::new(copy, reader(self.detail)));
        Ok(Copies { plain: Some(Reader::new(plain, reader(Detail::Names))), debug })
    }

    /// Copies the DWARF of a file for lines, or its symbols, beside a copy of `held` bytes. Where there is no room for DWARF the
    /// user is told, and `or_symbols` are copied.
    fn copy_debug(
        &mut self,
        module: &str,
        file: &TargetFile,
        held: u64,
        or_symbols: bool,
    ) -> Option<ElfCopy> {
        let lines = self.detail == Detail::Lines;
        let mut copy = |what, name| self.copy_within(Plan::of(file, what)?, held, name);
        let found =
            if lines { copy(What::Dwarf, "debug information") } else { copy(What::Symbols, "symbols") };
        let why = match found {
            Ok(copy) => return Some(copy),
            Err(why) => why,
        };
        let symbols = (lines && or_symbols).then(|| copy(What::Symbols, "symbols").ok()).flatten();
        self.notes.push(format!("no source lines for '{module}': {why}"));
        symbols
    }

    /// Makes a copy that is held beside one of `held` bytes, after others have made room for both.
    fn copy_within(&mut self, plan: Plan<'_>, held: u64, what: &str) -> Result<ElfCopy, String> {
        let (bytes, room) = (plan.bytes(), self.copies.room_beside(held));
        if bytes > room {
            return Err(format!(
                "its {what} would take {} MiB of the agent's memory, and {} MiB are left of the {} MiB for symbols",
                bytes.div_ceil(1 << 20),
                room >> 20,
                self.copies.room_beside(0) >> 20
            ));
        }
        self.copies.make_room(held.saturating_add(bytes));
        plan.copy()
    }
}

impl Name {
    fn plain(function: &str) -> Self {
        Self { function: function.into(), file: "".into(), line: 0, inlined: false }
    }

    fn new(function: &str, code: Option<&CodeInfo<'_>>, inlined: bool) -> Self {
        let file = code.map(|c| c.to_path().to_string_lossy().into_owned()).unwrap_or_default();
        let line = code.and_then(|c| c.line).unwrap_or(0);
        Self { function: function.into(), file: file.into(), line, inlined }
    }
}

/// The name where there is none: `libc.so.6+0x1234`, `0x1234`.
#[must_use]
pub fn nameless(module: &str, address: u64) -> String {
    let file = module.rsplit('/').next().unwrap_or(module);
    if file.is_empty() { format!("0x{address:x}") } else { format!("{file}+0x{address:x}") }
}

/// A reader that opens each file once.
fn reader(detail: Detail) -> Blazesym {
    Blazesym::builder()
        .enable_auto_reload(false)
        .enable_code_info(detail == Detail::Lines)
        .enable_inlined_fns(detail == Detail::Lines)
        .build()
}

fn symbol<'a>(blaze: &'a Blazesym, source: &'a Source<'_>, input: Input<u64>) -> Option<Sym<'a>> {
    // An unreadable file is no reason to stop, nor is DWARF made to break its reader: the frame stays nameless.
    let look = AssertUnwindSafe(|| blaze.symbolize_single(source, input).ok()?.into_sym());
    catch_unwind(look).ok().flatten()
}

/// Inlined calls first, innermost first, then the function that holds them. The holder's name is the symbol
/// table's where there is one, so that it is the same at both levels of detail.
fn names_from(plain: Option<&Sym<'_>>, debug: Option<&Sym<'_>>) -> Option<Vec<Name>> {
    let holder = plain.or(debug)?;
    let mut names = Vec::new();
    if let Some(debug) = debug {
        for inlined in debug.inlined.iter().rev() {
            names.push(Name::new(&inlined.name, inlined.code_info.as_ref(), true));
        }
    }
    names.push(Name::new(&holder.name, debug.and_then(|d| d.code_info.as_deref()), false));
    Some(names)
}

fn image_symbols(bytes: &[u8]) -> Vec<(u64, u64, Rc<str>)> {
    let Ok(file) = object::File::parse(bytes) else { return Vec::new() };
    let mut symbols: Vec<(u64, u64, Rc<str>)> = file
        .dynamic_symbols()
        .filter(|s| s.is_definition() && s.size() > 0)
        .filter_map(|s| Some((s.address(), s.size(), s.name().ok()?.into())))
        .collect();
    // Of several names at one address the one without underscores comes last, and is found.
    symbols.sort_by(|a, b| a.0.cmp(&b.0).then(b.2.starts_with('_').cmp(&a.2.starts_with('_'))));
    symbols
}
