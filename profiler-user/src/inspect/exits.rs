//! Exit sites: an address on every way out of a function, so that its end can be seen without touching the
//! return address on the stack.
//!
//! The way out is `ret`, in the function and in its split-off parts. A call that does not return (`abort`, a throw, a panic) is
//! no way out: the agent counts such calls as *unwound*. Each way is taken at the cheapest instruction of its last straight run:
//! after the last call and after the last address that anything jumps to, so that exactly the runs that leave this way execute
//! it, once; and at most [`NEAR`] instructions before the end, so that next to nothing of the call is missed.
//!
//! A jump to another function (a tail call) ends nothing: the caller waits until that one returns. Sites at its exits would trap
//! all of its callers (`jmp free@plt`), so such a function has no exit sites.
//!
//! If any way is uncertain the answer is an error that says which.

use super::callers;
use super::choice::{ExitObstacle, Site};
use super::flow::{self, Edge, IndirectTo, Region};
use super::insn::{self, KernelRules, Treatment};
use super::landing;
use super::module::Module;
use super::names;
use super::resolve::Function;
use super::sites::Body;

/// How many instructions before the way out its site may stand.
const NEAR: usize = 8;

/// All ways out of a function. Sites stand behind `floor`, the last address at which an entry may be taken.
pub(super) fn find(
    module: &Module,
    function: &Function,
    body: &Body,
    rules: KernelRules,
    floor: u64,
) -> Result<Vec<Site>, ExitObstacle> {
    if let Some(unknown) = &body.unknown {
        return Err(ExitObstacle::Unknown(format!("not all ways out are known: {unknown}")));
    }
    let elf = module.elf().map_err(|e| ExitObstacle::Unknown(e.to_owned()))?;
    let mut sites = Vec::new();
    for region in body.regions() {
        for (i, insn) in region.insns.iter().enumerate() {
            let at = insn.ip().wrapping_sub(function.vaddr);
            let leaves = match flow::edge(insn) {
                Edge::Return => true,
                Edge::Jump(to) | Edge::Branch(to) if !body.contains(to) => {
                    return Err(tail_call(module, at, to));
                }
                Edge::Indirect => match body.indirect.iter().find(|(ip, _)| *ip == insn.ip()) {
                    Some((_, Some(IndirectTo::Out))) => {
                        let name = "another function, through a pointer".to_owned();
                        return Err(ExitObstacle::TailCall { at, to: None, name });
                    }
                    Some((_, Some(IndirectTo::Table(_)))) => false,
                    _ => {
                        return Err(ExitObstacle::Unknown(format!(
                            "the indirect jump at +{at:#x} may stay in the function or leave it"
                        )));
                    }
                },
                _ => false,
            };
            if leaves {
                let site = cheapest(region, body, i, rules, floor).ok_or_else(|| {
                    ExitObstacle::NoSite(format!("no instruction before +{at:#x} can carry a breakpoint"))
                })?;
                let file_offset = elf.offset_of(site.vaddr).ok_or_else(|| {
                    ExitObstacle::NoSite(format!("the code at +{at:#x} is not in the file"))
                })?;
                sites.push(Site { file_offset, ..site });
            }
        }
        falls_through(region, function)?;
    }
    Ok(sites)
}

/// The cheapest instruction of the straight run that ends with the exit at `exit`; the last one on a tie.
/// (The file offset is filled in by the caller.)
fn cheapest(region: &Region, body: &Body, exit: usize, rules: KernelRules, floor: u64) -> Option<Site> {
    let mut best: Option<Site> = None;
    // At the exit itself the stack pointer is at the return address; before each instruction, by as much lower as that
    // instruction raises it.
    let mut depth = Some(0);
    let mut i = exit;
    loop {
        let insn = &region.insns[i];
        // Two breakpoints at one address, or an exit before its entry, would make no call.
        if region.start == body.main.start && insn.ip() <= floor {
            return best;
        }
        match insn::treatment(region.bytes_of(insn), insn.ip(), rules) {
            // An optimised five-byte nop would overwrite the red zone, which may be in use here.
            Treatment::Refused(_) => {}
            Treatment::Probe(_) if insn::overwrites_red_zone(region.bytes_of(insn), insn.ip(), rules) => {}
            Treatment::Probe(class) => {
                if best.is_none_or(|cheapest| class < cheapest.class) {
                    best = Some(Site {
                        vaddr: insn.ip(),
                        file_offset: 0,
                        offset: insn.ip() - region.start,
                        class,
                        arguments: 0,
                        unread: 0,
                        at_entry_stack: depth == Some(0),
                        return_slot: depth.and_then(|bytes: i64| i16::try_from(bytes / 8).ok()),
                        keeps_frame: false,
                    });
                }
            }
        }
        // Something jumps here: what stands before is not on that way. At the function's start the run ends too.
        if body.leaders.contains(&insn.ip()) || i == 0 || exit - i >= NEAR {
            return best;
        }
        i -= 1;
        let before = &region.insns[i];
        // A repeated string instruction may be most of the call.
        if !matches!(flow::edge(before), Edge::Next) || before.has_rep_prefix() || before.has_repne_prefix() {
            return best;
        }
        depth = depth.zip(flow::stack_change(&region.insns[i])).map(|(depth, change)| depth + change);
    }
}

/// What a jump out of the function leads to: another function, or a stub of the procedure linkage table; else nothing is known
/// to begin there.
fn tail_call(module: &Module, at: u64, to: u64) -> ExitObstacle {
    let (Ok(elf), Ok(symbols)) = (module.elf(), module.symbols()) else {
        return ExitObstacle::Unknown(format!("the jump at +{at:#x} leaves the function"));
    };
    if elf.section_at(to).is_some_and(|s| s.name.starts_with(".plt")) {
        let name = callers::stub_name(elf, to).map_or_else(
            || "another module's function".to_owned(),
            |name| format!("{}@plt", names::demangle(&name)),
        );
        return ExitObstacle::TailCall { at, to: Some(to), name };
    }
    if let Some(entry) = symbols.at(to).first() {
        let name = names::demangle(&symbols.name(entry));
        return ExitObstacle::TailCall { at, to: Some(to), name };
    }
    let begins = landing::function_at(elf, to).ok().flatten().is_some_and(|(start, _)| start == to);
    if begins {
        let name = format!("the function without a name at {to:#x}");
        return ExitObstacle::TailCall { at, to: Some(to), name };
    }
    ExitObstacle::Unknown(format!(
        "the jump at +{at:#x} leads to {to:#x}, where no function is known to begin: it may be a split-off part of this one{}",
        if module.symbols_missing().is_some() { " (the module is stripped)" } else { "" }
    ))
}

/// Whether control can run over the end of a region. A call there does not return.
fn falls_through(region: &Region, function: &Function) -> Result<(), ExitObstacle> {
    let last = region.insns.iter().rev().find(|i| i.mnemonic() != iced_x86::Mnemonic::Nop);
    match last.map(flow::edge) {
        Some(Edge::Next | Edge::Branch(_) | Edge::Other) => Err(ExitObstacle::Unknown(format!(
            "control runs over its end at +{:#x}",
            region.end().wrapping_sub(function.vaddr)
        ))),
        _ => Ok(()),
    }
}

/// What a function does with its return address besides returning there once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Oddity {
    /// It keeps it, to return again later.
    Twice,
    /// It never returns to its caller, or to somewhere else.
    Away,
    /// It finds its caller by it.
    Reads,
}

impl Oddity {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Twice => "it saves its return address (it can return twice)",
            Self::Away => "it does not return to its caller in the usual way",
            Self::Reads => "it looks at its return address",
        }
    }
}

/// Functions that look at their return address, return twice, or leave in another way, by name: a return link breaks them.
pub(super) fn oddity(symbol: &str, aliases: &[String]) -> Option<Oddity> {
    /// Saves the return address, to be jumped to later.
    const TWICE: [&str; 12] = [
        "setjmp",
        "_setjmp",
        "__setjmp",
        "sigsetjmp",
        "__sigsetjmp",
        "getcontext",
        "setcontext",
        "swapcontext",
        "makecontext",
        "vfork",
        "__vfork",
        "savectx",
    ];
    /// Never returns to its caller, or to somewhere else.
    const AWAY: [&str; 11] = [
        "longjmp",
        "_longjmp",
        "siglongjmp",
        "__longjmp_chk",
        "__longjmp",
        "clone",
        "__clone",
        "__clone3",
        "__restore_rt",
        "_start",
        "_dl_runtime_resolve",
    ];
    /// Finds its caller's module, or walks the stack, by the return address.
    const CALLER: [&str; 16] = [
        "dlopen",
        "dlmopen",
        "dlsym",
        "dlvsym",
        "__dlopen",
        "__dlsym",
        "_dl_open",
        "backtrace",
        "__backtrace",
        "mcount",
        "_mcount",
        "__fentry__",
        "__cyg_profile_func_enter",
        "__cyg_profile_func_exit",
        "__gxx_personality_v0",
        "dl_iterate_phdr",
    ];
    std::iter::once(symbol).chain(aliases.iter().map(String::as_str)).find_map(|name| {
        let name = name.split('@').next().unwrap_or(name);
        if TWICE.contains(&name) {
            Some(Oddity::Twice)
        } else if AWAY.contains(&name)
            || name.starts_with("_dl_runtime_resolve")
            || name.contains("_fcontext")
        {
            Some(Oddity::Away)
        } else if CALLER.contains(&name) || name.starts_with("_Unwind_") || name.starts_with("unw_") {
            Some(Oddity::Reads)
        } else {
            None
        }
    })
}
