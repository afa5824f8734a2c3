//! Would a replaced return address kill this process?
//!
//! A return link (uretprobe, session) puts the address of a trampoline where the return address was. Whatever walks
//! or moves the stack finds it: a C++ exception or a Rust panic passing through ends the process (measured: SIGABRT),
//! switching to another stack or returning on an alternate signal stack as well (measured: SIGILL); from Linux 6.11 on
//! the trampoline makes a system call, which a seccomp filter kills. So return links are allowed only where none of
//! that is possible, judged by what is mapped, imported, decoded ([`super::stack_switch`]) and seen ([`super::stacks`]); everything
//! else uses exit sites. An unwinder that is mapped forbids them unless nothing could send it on its way ([`super::unwinding`]).
//!
//! Judged from outside: an unwinder linked statically into a stripped program cannot be seen, so such a program with
//! exception tables is refused.

use super::choice::SiteObstacle;
use super::unwinding::{self, Forbidding, is_c_library, is_unwinder, mapped};
use super::{Inspection, Module, SymbolSource};
use std::time::Instant;

/// Libraries that unwind or switch stacks. Of unwinders those that [`unwinding`] does not judge.
const LIBRARIES: [(&str, &str); 11] = [
    ("libunwind", "an unwinder"),
    ("libc++abi", "the C++ unwinder"),
    ("libboost_context", "stackful coroutines"),
    ("libboost_coroutine", "stackful coroutines"),
    ("_greenlet", "greenlets, which copy stacks"),
    ("libpth.so", "user-level threads"),
    ("libst.so", "user-level threads"),
    ("libffcall", "stack tricks"),
    ("libasan.so", "a sanitizer, which unwinds"),
    ("libtsan.so", "a sanitizer, which unwinds"),
    ("libprofiler.so", "a profiler that unwinds"),
];

/// Imported or defined functions that switch stacks or unwind.
const FUNCTIONS: [&str; 14] = [
    "swapcontext",
    "setcontext",
    "makecontext",
    "jump_fcontext",
    "make_fcontext",
    "ontop_fcontext",
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Backtrace",
    "_Unwind_ForcedUnwind",
    "unw_step",
    "sigaltstack",
    "backtrace",
    "co_switch",
];

/// Parts of names of functions that switch stacks, whatever a library put before and behind them.
const PARTS: [&str; 5] = ["_fcontext", "swapcontext", "switch_stack", "stack_switch", "switch_to_stack"];

/// Imports after which a thread may unwind its stack at any moment: the unwinder is loaded only then.
const THREAD_ENDS: [&str; 3] = ["pthread_exit", "pthread_cancel", "thrd_exit"];

/// All checks; the first refusal is the answer. Modules that were not looked at yet are looked at.
pub(super) fn check(inspection: &Inspection) -> Result<(), SiteObstacle> {
    at_once(inspection)?;
    if let Some(unwinder) = unwinding::unwinder(inspection)
        && let Some(first) = unwinding::forbidding(inspection).first()
    {
        return Err(beside(unwinder, first));
    }
    mapped(inspection).try_for_each(Module::return_links)?;
    look(inspection);
    inspection.stacks_switched().map_or(Ok(()), Err)
}

/// The same without reading a module: none where that would be needed.
pub(super) fn known(inspection: &Inspection) -> Option<Result<(), SiteObstacle>> {
    // What the runtime is is told by its symbols.
    if !inspection.modules().first().is_none_or(Module::has_symbols) {
        return None;
    }
    if let Err(why) = at_once(inspection) {
        return Some(Err(why));
    }
    if let Some(unwinder) = unwinding::unwinder(inspection)
        && let Some(first) = unwinding::forbidding_known(inspection)?.first()
    {
        return Some(Err(beside(unwinder, first)));
    }
    let verdicts: Vec<_> = mapped(inspection).map(Module::return_links_known).collect();
    let refused = verdicts.iter().flatten().find(|verdict| verdict.is_err());
    refused.cloned().or_else(|| verdicts.iter().all(Option::is_some).then(|| inspection.return_links()))
}

/// Refused for what a module could do beside the unwinder.
fn beside(unwinder: &Module, first: &Forbidding) -> SiteObstacle {
    SiteObstacle(format!(
        "{} is mapped ({}), and {first}",
        unwinder.name,
        unwinding::what_it_is(&unwinder.name)
    ))
}

/// Each thread of the process keeps to one stack, as far as code tells. Reads modules that nobody has read; what is not read before `deadline` may
/// do anything.
pub(super) fn keeps_stacks(inspection: &Inspection, deadline: Instant) -> bool {
    inspection.stacks_switched().is_none()
        && at_once(inspection).is_ok()
        && mapped(inspection).all(|module| match module.return_links_known() {
            Some(known) => known.is_ok(),
            None => Instant::now() < deadline && module.return_links().is_ok(),
        })
}

/// What needs no module to be read.
fn at_once(inspection: &Inspection) -> Result<(), SiteObstacle> {
    if let Some(why) = inspection.runtime().forbids_return_links() {
        return Err(SiteObstacle(why.to_owned()));
    }
    for module in mapped(inspection) {
        if is_unwinder(&module.name) {
            continue;
        }
        if let Some((_, what)) = LIBRARIES.iter().find(|(library, _)| module.name.starts_with(library)) {
            return Err(SiteObstacle(format!("{} is mapped ({what})", module.name)));
        }
    }
    threads(inspection)
}

/// What one module forbids; reads all its code ([`Module::return_links`] keeps the answer).
pub(super) fn check_module(module: &Module) -> Result<(), SiteObstacle> {
    let name = &module.name;
    // The C library defines all of these; what matters is who uses them. It unwinds only through libgcc_s, which it
    // loads when a thread is cancelled, and which is noticed then.
    // What an unwinder is asked for is judged by who could ask (`unwinding`).
    if is_c_library(name) || is_unwinder(name) {
        return Ok(());
    }
    let elf = module.elf().map_err(|e| SiteObstacle(format!("{name} cannot be read: {e}")))?;
    let switches = |n: &str| FUNCTIONS.contains(&n) || PARTS.iter().any(|part| n.contains(part));
    if let Some(import) = elf.imports().into_iter().find(|i| switches(i) || THREAD_ENDS.contains(&i.as_str()))
    {
        return Err(SiteObstacle(format!("{name} imports {import}")));
    }
    let symbols = module.symbols().map_err(|e| SiteObstacle(format!("{name} cannot be read: {e}")))?;
    // A static program defines sigaltstack and backtrace as part of its C library, used or not.
    let harmless = |n: &str| !elf.dynamic && matches!(n, "sigaltstack");
    let mut defined = None;
    symbols.for_each_name(|_, _, n| {
        if defined.is_none() && switches(n) && !harmless(n) {
            defined = Some(n.to_owned());
        }
    });
    if let Some(n) = defined {
        return Err(SiteObstacle(format!("{name} contains {n}")));
    }
    let stripped = !matches!(symbols.source, SymbolSource::Full | SymbolSource::DebugFile);
    if stripped && (elf.has_section(".gcc_except_table") || elf.sections.is_empty()) {
        return Err(SiteObstacle(format!(
            "{name} is stripped and has exception tables: an unwinder may be linked into it"
        )));
    }
    if stripped && !elf.dynamic && module.main {
        return Err(SiteObstacle(format!("{name} is static and stripped: what it contains cannot be seen")));
    }
    match module.stack_switch() {
        Ok(None) => Ok(()),
        Ok(Some(found)) => Err(SiteObstacle(format!(
            "{} in {name} loads the stack pointer from {} (at {:#x}): it may switch stacks",
            found.function, found.from, found.vaddr
        ))),
        Err(why) => Err(SiteObstacle(format!("the code of {name} cannot be read: {why}"))),
    }
}

/// What single threads forbid.
fn threads(inspection: &Inspection) -> Result<(), SiteObstacle> {
    let kernel = super::host::kernel_version();
    for tid in tasks(inspection.pid()) {
        let path = format!("/proc/{}/task/{tid}/status", inspection.pid());
        if let Ok(text) = std::fs::read_to_string(path) {
            thread(tid, &super::process::Status::parse(&text), kernel)?;
        }
    }
    Ok(())
}

fn thread(tid: i32, status: &super::process::Status, kernel: (u32, u32)) -> Result<(), SiteObstacle> {
    if status.shadow_stack {
        return Err(SiteObstacle(format!(
            "thread {tid} has a shadow stack: the CPU would end it at a replaced return address"
        )));
    }
    // From 6.11 on the return trampoline makes the system call `uretprobe`, which filters do not know.
    if status.seccomp != 0 && kernel >= (6, 11) {
        return Err(SiteObstacle(format!(
            "thread {tid} has a seccomp filter, which may kill it on the uretprobe system call"
        )));
    }
    Ok(())
}

/// Looks where each blocked thread's stack pointer is.
fn look(inspection: &Inspection) {
    let pid = inspection.pid();
    for tid in tasks(pid) {
        if let Some(sp) = stack_pointer(pid, tid) {
            inspection.note_stack_pointer(tid, sp);
        }
    }
}

/// The threads of a process.
pub(super) fn tasks(pid: i32) -> Vec<i32> {
    let Ok(dir) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// From `/proc/PID/task/TID/syscall`: `NR ARGS… SP PC`, or `-1 SP PC`, or `running`.
fn stack_pointer(pid: i32, tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let fields: Vec<&str> = text.split_whitespace().collect();
    let sp = fields.get(fields.len().checked_sub(2)?)?;
    u64::from_str_radix(sp.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::super::process::Status;
    use super::thread;

    #[test]
    fn shadow_stacks_and_filters_forbid_return_links() {
        let status = |more: &str| Status::parse(&format!("Name:\tx\nTgid:\t1\n{more}"));
        assert!(thread(1, &status("x86_Thread_features:\t\n"), (6, 18)).is_ok());
        let why = thread(7, &status("x86_Thread_features:\tshstk \n"), (6, 6)).unwrap_err();
        assert!(why.0.starts_with("thread 7 has a shadow stack"), "{why}");
        assert!(thread(1, &status("Seccomp:\t2\n"), (6, 11)).is_err());
        assert!(thread(1, &status("Seccomp:\t2\n"), (6, 10)).is_ok());
    }
}
