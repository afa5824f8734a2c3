//! From patterns and addresses to functions.

use super::names::{self, Clone as CloneKind};
use super::pattern::{self, Pattern};
use super::symbols::{Entry, Symbols};
use super::{AttachPath, Inspection, Module, process};
use profiler_core::text::printable;
use std::collections::BTreeSet;

/// One function of the target: all symbols at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The name shown to people (demangled).
    pub name: String,
    /// The symbol as it stands in the file.
    pub symbol: String,
    /// Other symbols at the same address (aliases, or identical code folded by the linker).
    pub aliases: Vec<String>,
    /// Index into [`Inspection::modules`].
    pub module: usize,
    /// File name of the module.
    pub module_name: String,
    /// A path that leads to the mapped file, for attaching; the function holds that file open.
    pub attach_path: AttachPath,
    /// Build id of the module, hexadecimal.
    pub build_id: Option<String>,
    /// Link-time address.
    pub vaddr: u64,
    /// Size, bytes.
    pub size: u64,
    /// Offset in the file, bytes.
    pub file_offset: u64,
    /// Address in the process; `None` if that part of the file is not mapped executable.
    pub address: Option<u64>,
    /// The symbol is that of an IFUNC resolver.
    pub ifunc: bool,
    /// It is the cold part of another function.
    pub cold: bool,
    /// What the user should know: folded functions, partial inlining, clones.
    pub remarks: Vec<String>,
}

/// A pattern that named nothing traceable, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmatched {
    /// The pattern as written.
    pub pattern: String,
    /// Why, and what to do.
    pub reason: String,
    /// Names that look similar, best first.
    pub suggestions: Vec<String>,
}

/// What patterns resolve to.
#[derive(Debug, Clone, Default)]
pub struct Resolution {
    /// The functions, each once, by module and address.
    pub functions: Vec<Function>,
    /// For each function, the index of the first pattern that named it.
    pub pattern_of: Vec<usize>,
    /// Patterns without any function.
    pub unmatched: Vec<Unmatched>,
}

/// Similar names shown at most.
const SUGGESTIONS: usize = 5;

/// Resolves all patterns against all modules.
pub(super) fn resolve(inspection: &Inspection, patterns: &[Pattern]) -> Resolution {
    // (module, address) -> pattern
    let mut found: Vec<(usize, u64, usize)> = Vec::new();
    let mut hits = vec![0_usize; patterns.len()];
    let mut notes = vec![Notes::default(); patterns.len()];
    for (m, module) in inspection.modules().iter().enumerate().filter(|(_, m)| m.is_held()) {
        let wanted: Vec<usize> =
            (0..patterns.len()).filter(|&p| patterns[p].matches_module(&module.name)).collect();
        if wanted.is_empty() {
            continue;
        }
        for &p in &wanted {
            notes[p].modules += 1;
        }
        let symbols = match module.symbols() {
            Ok(symbols) => symbols,
            Err(why) => {
                for &p in &wanted {
                    notes[p].unreadable.push(why.to_owned());
                }
                continue;
            }
        };
        symbols.for_each_name(|_, entry, name| {
            for &p in &wanted {
                if patterns[p].matches_symbol(name) {
                    note(&mut notes[p], symbols, entry, name);
                    match usable(inspection, m, symbols, entry, name) {
                        Some(vaddrs) => {
                            hits[p] += 1;
                            found.extend(vaddrs.into_iter().map(|(m, a)| (m, a, p)));
                        }
                        None => notes[p].refused += 1,
                    }
                } else if hits[p] == 0 {
                    notes[p].consider(&patterns[p], name);
                }
            }
        });
    }
    found.sort_unstable();
    found.dedup_by_key(|f| (f.0, f.1));
    let mut resolution = Resolution::default();
    for (m, vaddr, p) in found {
        if let Some(function) = function(inspection, m, vaddr) {
            resolution.functions.push(function);
            resolution.pattern_of.push(p);
        }
    }
    for (p, pattern) in patterns.iter().enumerate() {
        if hits[p] == 0 {
            resolution.unmatched.push(notes[p].unmatched(inspection, pattern));
        }
    }
    resolution
}

/// The (module, address) of what a matching symbol stands for; `None` if it cannot be traced as such.
fn usable(
    inspection: &Inspection,
    module: usize,
    symbols: &Symbols,
    entry: &Entry,
    name: &str,
) -> Option<Vec<(usize, u64)>> {
    if entry.ifunc {
        let chosen = inspection.ifunc_targets(module, entry.vaddr, name);
        return (!chosen.is_empty()).then_some(chosen);
    }
    let class = symbols.at(entry.vaddr);
    if class.iter().all(|e| e.size == 0) || names::clone_kind(name) == CloneKind::Cold {
        return None;
    }
    Some(vec![(module, entry.vaddr)])
}

fn note(notes: &mut Notes, symbols: &Symbols, entry: &Entry, name: &str) {
    if entry.ifunc {
        notes.ifunc = true;
    } else if names::clone_kind(name) == CloneKind::Cold {
        notes.cold = true;
    } else if symbols.at(entry.vaddr).iter().all(|e| e.size == 0) {
        notes.no_size = true;
    }
}

/// By what the best of several names of one function is chosen, the least first: the name without leading underscores, then the
/// shortest.
pub(super) fn plainness(name: &str) -> (bool, bool, usize) {
    let underscore = name.starts_with('_') && !name.starts_with("_Z") && !name.starts_with("_R");
    (name.starts_with("__"), underscore, name.len())
}

/// Builds the function whose symbols stand at a link-time address.
pub(super) fn function(inspection: &Inspection, module_index: usize, vaddr: u64) -> Option<Function> {
    let module = inspection.modules().get(module_index)?;
    function_of(module, module_index, vaddr)
}

/// The function that runs at an address of the process with these modules; of a cold part, the function that it belongs to.
pub(super) fn function_at(modules: &[Module], address: u64) -> Option<Function> {
    let (index, module) =
        modules.iter().enumerate().find(|(_, m)| m.mappings.iter().any(|x| x.contains(address)))?;
    function_in(modules, index, module.vaddr_of_address(address)?)
}

/// The function of one of these modules that holds a link-time address; else as [`function_at`].
pub(super) fn function_in(modules: &[Module], index: usize, vaddr: u64) -> Option<Function> {
    let module = modules.get(index)?;
    let symbols = module.symbols().ok()?;
    let entry = symbols.covering(vaddr).first()?;
    let function = function_of(module, index, entry.vaddr)?;
    if !function.cold {
        return Some(function);
    }
    let (stem, _) = function.symbol.split_once(".cold")?;
    let mut owner = None;
    symbols.for_each_name(|_, e, name| {
        if name == stem && e.size > 0 {
            owner = Some(e.vaddr);
        }
    });
    function_of(module, index, owner?).or(Some(function))
}

/// The same, of a module that need not belong to a process.
pub(super) fn function_of(module: &Module, module_index: usize, vaddr: u64) -> Option<Function> {
    let symbols = module.symbols().ok()?;
    let class = symbols.at(vaddr);
    let size = class.iter().map(|e| e.size).max()?;
    let file_offset = module.elf().ok()?.offset_of(vaddr)?;
    let mut all: Vec<String> = Vec::new();
    for entry in class {
        let name = symbols.name(entry);
        if !all.contains(&name) {
            all.push(name);
        }
    }
    // Entries come with the best binding first; among equals the name without leading underscores, then the shortest.
    let best_rank = class.iter().map(|e| e.rank).min()?;
    let named = class.iter().filter(|e| e.rank == best_rank).map(|e| symbols.name(e));
    let symbol = named.min_by_key(|n| plainness(n))?;
    all.retain(|n| *n != symbol);
    let name = names::demangle(&symbol);
    let kind = names::clone_kind(&symbol);
    let mut remarks = Vec::new();
    let others: BTreeSet<String> =
        all.iter().map(|a| names::demangle(a)).filter(|a| a.contains("::") && *a != name).collect();
    if name.contains("::") && !others.is_empty() {
        remarks.push(format!(
            "{} functions share this code (folded by the linker or aliases): their calls are counted together",
            others.len() + 1
        ));
    }
    match kind {
        CloneKind::Part => remarks.push(
            "its beginning is inlined into callers: only calls that reach the outlined part are counted"
                .into(),
        ),
        CloneKind::Specialised => {
            remarks.push(
                "a copy that the compiler specialised: calls of other copies are not counted here".into(),
            );
        }
        CloneKind::Whole | CloneKind::Cold => {}
    }
    Some(Function {
        name,
        aliases: all,
        module: module_index,
        module_name: module.name.clone(),
        attach_path: module.attach_path(),
        build_id: module.build_id(),
        vaddr,
        size,
        file_offset,
        address: module.address_of_offset(file_offset),
        ifunc: class.iter().all(|e| e.ifunc),
        cold: kind == CloneKind::Cold,
        remarks,
        symbol,
    })
}

/// A function that has no symbol, by what unwind data say of it.
pub(super) fn without_name(module: &Module, module_index: usize, vaddr: u64, size: u64) -> Option<Function> {
    let file_offset = module.elf().ok()?.offset_of(vaddr)?;
    let name = format!("the function without a name at {vaddr:#x}");
    Some(Function {
        symbol: name.clone(),
        name,
        aliases: Vec::new(),
        module: module_index,
        module_name: module.name.clone(),
        attach_path: module.attach_path(),
        build_id: module.build_id(),
        vaddr,
        size,
        file_offset,
        address: module.address_of_offset(file_offset),
        ifunc: false,
        cold: false,
        remarks: Vec::new(),
    })
}

/// What to write instead, where the pattern names the program as it was started: by a link to its file, or by a script's name.
fn other_name(inspection: &Inspection, pattern: &Pattern) -> Option<String> {
    let main = inspection.modules().iter().find(|module| module.main && module.is_held())?;
    // The kernel's name of it has 15 letters, and the program may have written over both.
    let command = process::command(inspection.pid());
    let names = [inspection.status().name.as_str(), &command];
    let name = names.into_iter().find(|name| pattern.matches_module(name))?;
    let (_, function) = pattern.text().split_once(':')?;
    let file = &main.name;
    let text = format!("{name} is what the process is called, its file is {file}: write '{file}:{function}'");
    Some(printable(&text).into_owned())
}

/// What was seen while a pattern was looked for.
#[derive(Debug, Clone, Default)]
struct Notes {
    modules: usize,
    refused: usize,
    ifunc: bool,
    cold: bool,
    no_size: bool,
    unreadable: Vec<String>,
    /// (distance, name), best first.
    similar: Vec<(usize, String)>,
}

impl Notes {
    fn consider(&mut self, pattern: &Pattern, name: &str) {
        let Some(score) = pattern::unlikeness(pattern.literal(), name) else { return };
        let worst = self.similar.last().map_or(usize::MAX, |s| s.0);
        if self.similar.len() < SUGGESTIONS || score < worst {
            let shown = printable(&names::demangle(name)).into_owned();
            if !self.similar.iter().any(|(_, n)| *n == shown) {
                self.similar.push((score, shown));
                self.similar.sort();
                self.similar.truncate(SUGGESTIONS);
            }
        }
    }

    fn unmatched(&self, inspection: &Inspection, pattern: &Pattern) -> Unmatched {
        let mut reasons = Vec::new();
        if self.modules == 0 {
            let held = inspection.modules().iter().filter(|m| m.is_held());
            let names: Vec<&str> = held.map(|m| m.name.as_str()).take(12).collect();
            reasons.push(format!("no mapped module has that name; mapped are: {}", names.join(", ")));
            reasons.extend(other_name(inspection, pattern));
        }
        if self.ifunc {
            reasons.push(
                "it is chosen at load time (IFUNC), and no call through the process's linkage tables has bound it yet"
                    .into(),
            );
        }
        if self.cold {
            reasons.push("only cold parts of functions match, which are entered by jumps".into());
        }
        if self.no_size {
            reasons.push("the symbols that match state no size, so they may be no functions".into());
        }
        reasons.extend(self.unreadable.iter().cloned());
        if reasons.is_empty() {
            reasons.push(format!("no function symbol matches `{pattern}`"));
            let stripped: Vec<String> = inspection
                .modules()
                .iter()
                .filter(|m| pattern.matches_module(&m.name) && (pattern.names_module() || m.main))
                .filter_map(Module::symbols_missing)
                .collect();
            reasons.extend(stripped);
            if self.similar.is_empty() {
                reasons
                    .push("it may be inlined everywhere, or live in a library that is not loaded yet".into());
            }
        }
        Unmatched {
            pattern: pattern.text().to_owned(),
            reason: reasons.join("; "),
            suggestions: self.similar.iter().map(|s| s.1.clone()).collect(),
        }
    }
}
