//! Can anything in this process send its unwinder over a replaced return address?
//!
//! Where libgcc_s or libunwind is mapped, a throw, a panic or the end of a thread may walk the stack. Return links are
//! allowed there only if each mapped module but the C library is shown unable to raise, to end a thread, to walk a stack, and
//! to get at a function that does: by what it imports (what the dynamic linker binds, [`super::dynamic`]) and by what its
//! symbols define. What cannot be read is taken to forbid them.
//!
//! `_Unwind_Resume` alone forbids them, too. It runs only when an unwinding is under way, but it tells that the module was
//! built to be unwound. The C library is taken to begin no unwinding that nobody asks it for; where nobody needs the
//! unwinder, the C library has loaded it for a thread that ends.

use super::dynamic::Dynamic;
use super::maps::{Backing, Mapping};
use super::{Inspection, Module};
use serde::Serialize;
use std::fmt;

/// File names of unwinders begin so. They define what raises and walks, and do neither unasked.
const UNWINDERS: [&str; 2] = ["libgcc_s.so", "libunwind.so"];
/// Each unwinder exports it.
const RAISE: &str = "_Unwind_RaiseException";
/// Of an unwinder that came without being needed.
const LOADED: &str = "is needed by no mapped module: the C library may have loaded it to end a thread";
/// Mappings that the kernel makes: their code is its own.
const OF_KERNEL: [&str; 4] = ["[vdso]", "[vsyscall]", "[uprobes]", "[uprobes-trampoline]"];

/// What a module may do, the plainest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnwindingKind {
    /// It raises exceptions, or lets them pass.
    Raises,
    /// It ends threads, whose stacks are then unwound.
    EndsThreads,
    /// It walks stacks.
    Walks,
    /// It looks functions up by name, or loads modules: what it gets is not known.
    LooksUp,
    /// Its file is not what is on disk.
    Replaced,
    /// What it may do cannot be seen.
    Unseen,
}

/// Why one module forbids return links beside an unwinder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unwinding {
    /// What it may do.
    pub kind: UnwindingKind,
    /// By what that is told, as a predicate (`imports _Unwind_Backtrace`).
    pub why: String,
    /// What would change that, for people.
    pub remedy: &'static str,
}

/// What the dynamic linker is told by a module that cannot unwind.
#[derive(Debug, Clone, Default)]
pub(super) struct Links {
    soname: Option<String>,
    needed: Vec<String>,
}

/// One reason why return links are refused beside an unwinder.
#[derive(Debug, Clone)]
pub(super) struct Forbidding {
    /// The module; `None` for the process as a whole.
    pub module: Option<usize>,
    /// Its name.
    pub name: String,
    /// What it may do.
    pub what: Unwinding,
}

impl UnwindingKind {
    /// What would change it.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Raises => "only a build of it without exceptions would change that",
            Self::EndsThreads => "only threads that all end by returning would change that",
            Self::Walks => "only a build of it that walks no stacks would change that",
            Self::LooksUp => "only a build of it that looks nothing up and loads nothing would change that",
            Self::Replaced => "a restart, so that it runs what is installed, would change that",
            Self::Unseen => "only code in files that can be read would change that",
        }
    }
}

impl Unwinding {
    fn new(kind: UnwindingKind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into(), remedy: kind.remedy() }
    }

    fn unseen(why: impl Into<String>) -> Self {
        Self::new(UnwindingKind::Unseen, why)
    }
}

impl Module {
    /// Looks at all that return links depend on, what takes longest last.
    pub fn look_for_return_links(&self) {
        let _ = self.unwinding();
        let _ = self.return_links();
    }

    /// Whether that was done.
    #[must_use]
    pub fn was_looked_at_for_return_links(&self) -> bool {
        self.unwinding_known().is_some() && self.return_links_known().is_some()
    }
}

impl fmt::Display for Forbidding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.what.why)
    }
}

/// Whether a file of this name is taken for an unwinder. Whether it is one, [`of_module`] looks.
pub(super) fn is_unwinder(name: &str) -> bool {
    UNWINDERS.iter().any(|stem| name.starts_with(stem))
}

/// What an unwinder is, in words.
pub(super) fn what_it_is(name: &str) -> &'static str {
    if name.starts_with("libgcc_s") { "the C++ and Rust unwinder" } else { "an unwinder" }
}

/// What a function of this name does, if it forbids return links beside an unwinder.
fn kind_of(name: &str) -> Option<UnwindingKind> {
    let begins = |stems: &[&str]| stems.iter().any(|stem| name.starts_with(stem));
    let raises =
        ["_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_ForcedUnwind", "__cxa_throw", "__cxa_rethrow"];
    if begins(&raises)
        || matches!(name, "__cxa_bad_cast" | "__cxa_bad_typeid" | "__cxa_call_unexpected")
        || name.starts_with("_ZSt") && name.contains("__throw_")
        || name.contains("_personality_")
    {
        return Some(UnwindingKind::Raises);
    }
    let ends =
        ["pthread_exit", "pthread_cancel", "thrd_exit", "__pthread_unwind", "__pthread_register_cancel"];
    if begins(&ends) {
        return Some(UnwindingKind::EndsThreads);
    }
    let walks = ["_Unwind_", "unw_", "_Ux86_64_", "_ULx86_64_", "__register_frame", "__deregister_frame"];
    if begins(&walks) || matches!(name, "backtrace" | "dl_iterate_phdr" | "_dl_find_object") {
        return Some(UnwindingKind::Walks);
    }
    let looks_up = ["dlsym", "dlvsym", "dlopen", "dlmopen", "dlinfo", "__libc_dlopen_mode", "__libc_dlsym"];
    (looks_up.contains(&name) || makes_c_library_load(name)).then_some(UnwindingKind::LooksUp)
}

/// Has the C library load a module, of the system's choice: for a character set, or to look up a user, a group, a host, a service (name service
/// switch; glibc `nss/`, `iconv/`).
fn makes_c_library_load(name: &str) -> bool {
    let stems = [
        "iconv_open",
        "getaddrinfo",
        "getnameinfo",
        "gethostby",
        "gethostent",
        "getpw",
        "getgr",
        "getserv",
        "getproto",
        "getnet",
        "getspnam",
        "getspent",
        "getrpc",
        "getalias",
        "initgroups",
        "innetgr",
        "setnetgrent",
        "setpwent",
        "setgrent",
    ];
    name != "getgroups" && stems.iter().any(|stem| name.starts_with(stem))
}

/// What one module shows; reads its dynamic table and, if that shows nothing, its relocations and symbols
/// ([`Module::unwinding`] keeps the answer).
pub(super) fn of_module(module: &Module) -> Result<Links, Unwinding> {
    // As in return_links: the C library defines all of these; what matters is who asks for them.
    if is_c_library(&module.name) {
        return Ok(Links::default());
    }
    let elf = module.elf().map_err(|why| Unwinding::unseen(format!("cannot be read: {why}")))?;
    let dynamic = Dynamic::read(elf).map_err(|why| Unwinding::unseen(format!("cannot be judged: {why}")))?;
    let dynamic = dynamic.ok_or_else(|| Unwinding::unseen("is static: what it contains cannot be seen"))?;
    let unwinder = is_unwinder(&module.name);
    // An unwinder consists of such functions, and calls its own.
    let own = |kind| unwinder && matches!(kind, UnwindingKind::Raises | UnwindingKind::Walks);
    let kind = |name: &str| kind_of(name).filter(|kind| !own(*kind));
    let odd = |why| Unwinding::unseen(format!("cannot be judged: {why}"));
    let mut found: Option<Unwinding> = None;
    let mut raise = false;
    let all = |name: &str, import: bool| -> Option<()> {
        raise |= !import && name == RAISE;
        if let Some(kind) = kind(name)
            && found.as_ref().is_none_or(|f| kind < f.kind)
        {
            let how = if import { "imports" } else { "contains" };
            found = Some(Unwinding::new(kind, format!("{how} {name}")));
        }
        None
    };
    dynamic.find(all).map_err(odd)?;
    if unwinder && !raise {
        return Err(Unwinding::unseen(format!("is named like an unwinder and does not export {RAISE}")));
    }
    if let Some(found) = found {
        return Err(found);
    }
    dynamic.check_relocations(elf).map_err(odd)?;
    if !unwinder {
        let symbols = module.symbols().map_err(|why| Unwinding::unseen(format!("cannot be read: {why}")))?;
        let mut defined = None;
        symbols.for_each_name(|_, _, name| {
            if defined.is_none() {
                defined = kind(name).map(|kind| Unwinding::new(kind, format!("contains {name}")));
            }
        });
        if let Some(defined) = defined {
            return Err(defined);
        }
    }
    Ok(Links { soname: dynamic.soname, needed: dynamic.needed })
}

/// The unwinder that is mapped.
pub(super) fn unwinder(inspection: &Inspection) -> Option<&Module> {
    mapped(inspection).find(|module| is_unwinder(&module.name))
}

/// Whether the process has code that no file shows: made at run time, or in a file's pages that it may write.
pub(super) fn has_unseen_code(maps: &[Mapping]) -> bool {
    maps.iter().any(|map| {
        map.exec
            && match &map.backing {
                Backing::File { .. } => map.write,
                Backing::Anonymous => true,
                Backing::Special(name) => !OF_KERNEL.contains(&name.as_str()),
            }
    })
}

/// What the mappings alone forbid.
fn unseen_code(inspection: &Inspection) -> Option<Forbidding> {
    has_unseen_code(inspection.maps()).then(|| Forbidding {
        module: None,
        name: "the process".to_owned(),
        what: Unwinding::unseen("has executable memory that no file shows"),
    })
}

/// The modules that are mapped.
pub(super) fn mapped(inspection: &Inspection) -> impl Iterator<Item = &Module> {
    inspection.modules().iter().filter(|m| !m.mappings.is_empty())
}

/// Whether a file of this name is a part of the C library.
pub(super) fn is_c_library(name: &str) -> bool {
    [
        "libc.so",
        "libc-2.",
        "libpthread.so",
        "libpthread-2.",
        "ld-linux",
        "ld-2.",
        "ld-musl",
        "libc.musl",
        "libm.so",
        "libdl.so",
        "librt.so",
    ]
    .iter()
    .any(|stem| name.starts_with(stem))
}

/// All that forbids return links beside the unwinder, the plainest first. Modules that were not looked at yet are looked at.
pub(super) fn forbidding(inspection: &Inspection) -> Vec<Forbidding> {
    judge(inspection, |module| Some(module.unwinding())).unwrap_or_default()
}

/// The same without reading a module: none where nothing is known to forbid them, and some module was not looked at.
pub(super) fn forbidding_known(inspection: &Inspection) -> Option<Vec<Forbidding>> {
    judge(inspection, Module::unwinding_known)
}

type Told<'a> = Result<&'a Links, &'a Unwinding>;

fn judge<'a>(
    inspection: &'a Inspection,
    look: impl Fn(&'a Module) -> Option<Told<'a>>,
) -> Option<Vec<Forbidding>> {
    let mut all: Vec<_> = unseen_code(inspection).into_iter().collect();
    let mut unknown = false;
    let mut links = Vec::new();
    for (index, module) in inspection.modules().iter().enumerate().filter(|(_, m)| !m.mappings.is_empty()) {
        let forbids = |what| Forbidding { module: Some(index), name: module.name.clone(), what };
        if is_replaced(module) {
            all.push(forbids(Unwinding::new(UnwindingKind::Replaced, "was deleted or replaced on disk")));
            continue;
        }
        match look(module) {
            Some(Ok(told)) => links.push((index, module, told)),
            Some(Err(what)) => all.push(forbids(what.clone())),
            None => unknown = true,
        }
    }
    // Where a module forbids them anyhow, it may be the one that needs the unwinder.
    if all.is_empty() && !unknown {
        let is_needed = |module: &Module, told: &Links| {
            let is_it = |name: &String| *name == module.name || told.soname.as_ref() == Some(name);
            links.iter().any(|(.., other)| other.needed.iter().any(is_it))
        };
        let lone = links.iter().find(|(_, m, told)| is_unwinder(&m.name) && !is_needed(m, told));
        all.extend(lone.map(|(index, module, _)| Forbidding {
            module: Some(*index),
            name: module.name.clone(),
            what: Unwinding::new(UnwindingKind::EndsThreads, LOADED),
        }));
    }
    all.sort_by_key(|forbidding| forbidding.what.kind);
    (!all.is_empty() || !unknown).then_some(all)
}

/// What is mapped is not what its path names. Of the C library that does not matter.
fn is_replaced(module: &Module) -> bool {
    let deleted = |m: &Mapping| matches!(m.backing, Backing::File { deleted: true, .. });
    !is_c_library(&module.name) && (module.replaced || module.mappings.iter().any(deleted))
}

#[cfg(test)]
mod tests;
