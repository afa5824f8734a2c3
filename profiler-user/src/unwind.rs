//! Unwinding copied stacks in user space.
//!
//! What: a sample brings the user registers and the first kilobytes of the stack; [`Unwinder`] follows them
//! to the outermost frame with the module files' `.eh_frame` (framehop), and with frame pointers where a
//! module has none. Why here and not in the kernel: copying costs the target less than walking, and most
//! programs are built without frame pointers. Frames come out as (module, address in the module's file), so
//! that they stay true when the module is unmapped or the process ends; [`StackTable`] gives each distinct
//! stack a number.
//!
//! In: registers, bytes, `/proc/PID/maps` and the files named there. Out: [`Frame`]s. The word on the stack
//! that a return link has replaced is put back through a callback. It knows no names: `symbolize` does.
//! x86-64 only.

mod elf;
mod modules;
mod space;
mod stack_table;

#[cfg(test)]
mod tests;

pub use elf::ElfInfo;
pub use modules::{JIT, KERNEL, ModuleFile, ModuleId, ModuleInfo, ModuleKind, Modules, UNKNOWN};
pub use stack_table::StackTable;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};
use framehop::{FrameAddress, Unwinder as _};
use space::Space;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Deepest stack kept; deeper ones are cut off at the outer end and marked.
pub const MAX_FRAMES: usize = 512;
/// Processes whose mappings are kept; the one unused for longest gives way.
const MAX_SPACES: usize = 64;
/// An unknown address makes us read `/proc/PID/maps` again, but not more often than this: JIT code and
/// garbage must not cost a read per sample.
const REFRESH_EVERY: Duration = Duration::from_millis(250);

/// One frame: where in which module. The address is the one to look up: the instruction pointer of the
/// innermost frame, return address - 1 of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Module.
    pub module: ModuleId,
    /// Virtual address in the module's file; absolute in the kernel, in JIT code and where no module is known.
    pub address: u64,
}

/// What a sample brings.
#[derive(Debug, Clone, Copy)]
pub struct UserStack<'a> {
    /// Process (thread group) in the agent's PID namespace.
    pub pid: u32,
    /// User instruction pointer.
    pub ip: u64,
    /// User stack pointer; `bytes` begin there.
    pub sp: u64,
    /// User frame pointer register.
    pub bp: u64,
    /// The stack from `sp` upwards.
    pub bytes: &'a [u8],
}

/// Counters of the unwinder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnwindCounters {
    /// Stacks unwound.
    pub stacks: u64,
    /// Of these, cut off: copy too short, or no way on.
    pub truncated: u64,
    /// Times that `/proc/PID/maps` was read.
    pub refreshes: u64,
    /// Module files whose unwind tables were loaded.
    pub modules_loaded: u64,
    /// Module files that could not be read, or had to be left out to stay within memory; frame pointers
    /// serve there.
    pub modules_without_tables: u64,
}

/// Unwinds stacks of the target and its children.
pub struct Unwinder {
    modules: Modules,
    spaces: HashMap<u32, Space>,
    cache: CacheX86_64,
    counters: UnwindCounters,
}

impl Default for Unwinder {
    fn default() -> Self {
        Self::new(Modules::default())
    }
}

impl Unwinder {
    /// An unwinder that names its modules in `modules` (shared with the symbolizer).
    #[must_use]
    pub fn new(modules: Modules) -> Self {
        Self {
            modules,
            spaces: HashMap::new(),
            cache: CacheX86_64::new(),
            counters: UnwindCounters::default(),
        }
    }

    /// The modules that frames refer to.
    #[must_use]
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> UnwindCounters {
        self.counters
    }

    /// Reads the process's mappings again at the next sample (after exec, fork, dlopen).
    pub fn invalidate(&mut self, pid: u32) {
        if let Some(space) = self.spaces.get_mut(&pid) {
            space.invalidate();
        }
    }

    /// Forgets a process.
    pub fn forget(&mut self, pid: u32) {
        if let Some(space) = self.spaces.remove(&pid) {
            self.modules.return_tables(space.booked());
        }
    }

    /// Reads the mappings of `pid` now and keeps its executable files open, so that stacks can be unwound and
    /// named even if the process ends at once.
    pub fn prepare(&mut self, pid: u32) {
        self.with_space(pid, |_, _, _| ());
    }

    /// The frame for a user code address of `pid` (not a return address), for instance of a sample without a
    /// stack.
    pub fn frame_at(&mut self, pid: u32, address: u64) -> Frame {
        self.with_space(pid, |space, modules, counters| space.frame(modules, counters, address))
    }

    /// The address lies in code that the kernel maps for probes (`[uprobes]`, `[uprobes-trampoline]`).
    pub fn is_probe_code(&mut self, pid: u32, address: u64) -> bool {
        self.with_space(pid, |space, _, _| space.is_probe_code(address))
    }

    /// Unwinds one stack into `out` (cleared first), innermost frame first. Returns true if the stack is cut
    /// off.
    ///
    /// `fix_return(trampoline, slot)` is asked for each word read at address `slot` that points into
    /// `[uprobes]`: a return link has put it there; the answer is the return address that it replaced.
    ///
    /// # Cost
    /// Measured on a 2-core virtual machine (`examples/agent_cost.rs`): 1.0 us for 8 frames, 1.7 us for 21, once the
    /// modules are loaded. Loading reads a module's `.eh_frame` once: 15 ms for Python and libc, 57 ms for a library of
    /// 150 MB.
    pub fn unwind(
        &mut self,
        stack: &UserStack<'_>,
        mut fix_return: impl FnMut(u64, u64) -> Option<u64>,
        out: &mut Vec<Frame>,
    ) -> bool {
        out.clear();
        self.counters.stacks += 1;
        // The cache is lent out, because the closure needs the rest of `self`.
        let mut cache = std::mem::take(&mut self.cache);
        let truncated = self.with_space(stack.pid, |space, modules, counters| {
            unwind_in(space, modules, counters, &mut cache, stack, &mut fix_return, out)
        });
        self.cache = cache;
        self.counters.truncated += u64::from(truncated);
        truncated
    }

    fn with_space<R>(
        &mut self,
        pid: u32,
        f: impl FnOnce(&mut Space, &Modules, &mut UnwindCounters) -> R,
    ) -> R {
        let now = Instant::now();
        if !self.spaces.contains_key(&pid) && self.spaces.len() >= MAX_SPACES {
            let oldest = self.spaces.iter().min_by_key(|(_, s)| s.last_used).map(|(pid, _)| *pid);
            if let Some(oldest) = oldest {
                self.forget(oldest);
            }
        }
        let space = self.spaces.entry(pid).or_insert_with(|| Space::new(pid));
        space.last_used = now;
        space.refresh_if_stale(&self.modules, &mut self.counters, now);
        f(space, &self.modules, &mut self.counters)
    }
}

fn unwind_in(
    space: &mut Space,
    modules: &Modules,
    counters: &mut UnwindCounters,
    cache: &mut CacheX86_64,
    stack: &UserStack<'_>,
    fix_return: &mut dyn FnMut(u64, u64) -> Option<u64>,
    out: &mut Vec<Frame>,
) -> bool {
    let (ip, sp) = leave_probe_trampoline(space, modules, counters, stack);
    let mut regs = UnwindRegsX86_64::new(ip, sp, stack.bp);
    let mut address = FrameAddress::from_instruction_pointer(ip);
    let trampolines = space.trampolines();
    let mut read = |at: u64| -> Result<u64, ()> {
        let offset = usize::try_from(at.checked_sub(stack.sp).ok_or(())?).map_err(|_| ())?;
        let bytes = stack.bytes.get(offset..offset.checked_add(8).ok_or(())?).ok_or(())?;
        let word = u64::from_le_bytes(bytes.try_into().map_err(|_| ())?);
        if trampolines.contains(&word) { fix_return(word, at).ok_or(()) } else { Ok(word) }
    };
    loop {
        let lookup = address.address_for_lookup();
        out.push(space.frame(modules, counters, lookup));
        if out.len() >= MAX_FRAMES {
            return true;
        }
        space.load(modules, counters, lookup);
        match space.unwinder().unwind_frame(address, &mut regs, cache, &mut read) {
            Ok(Some(return_address)) => match FrameAddress::from_return_address(return_address) {
                // A word that is no code address: the tables do not cover this code, or the stack is odd.
                Some(next) if space.is_code(modules, counters, next.address_for_lookup()) => address = next,
                Some(_) => return true,
                None => return false,
            },
            Ok(None) => return false,
            // Frame pointers end in a null return address; that is the end of the stack.
            Err(framehop::Error::ReturnAddressIsNull) => return false,
            Err(_) => return true,
        }
    }
}

/// The registers that the probed function has while a thread is inside an optimised probe.
///
/// The kernel replaces a 5-byte nop by a call of `uprobe_trampoline_entry` (arch/x86/kernel/uprobes.c), which
/// pushes rcx, r11 and rax and makes a system call. Most samples that fall into the probe are taken in that
/// system call: the return address, the instruction after the nop, is then at sp + 24.
fn leave_probe_trampoline(
    space: &mut Space,
    modules: &Modules,
    counters: &mut UnwindCounters,
    stack: &UserStack<'_>,
) -> (u64, u64) {
    const PUSHED: usize = 24;
    if space.in_probe_trampoline(stack.ip)
        && let Some(word) = stack.bytes.get(PUSHED..PUSHED + 8)
    {
        let ip = u64::from_le_bytes(word.try_into().expect("OK because the slice has 8 bytes"));
        if space.is_code(modules, counters, ip) {
            return (ip, stack.sp.wrapping_add(PUSHED as u64 + 8));
        }
    }
    (stack.ip, stack.sp)
}
