//! The child's part: run every cell, first as it is, then under probes, and compare.

use super::cell::{self, CELL, SCRATCH, SCRATCH_BYTES, STACK};
use super::machine::{Machine, Seen, hash};
use super::prepare::{self, STATES};
use crate::inspect::forms::Decoded;
use iced_x86::Mnemonic;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// In the place of a verdict: not to be run.
pub(super) const SKIP: u32 = 1 << 31;
/// The kernel put a breakpoint there.
pub(super) const ARMED: u32 = 1 << 30;
/// It could not be run as it is (no sample that fits, no way to set FS).
pub(super) const UNRUN: u32 = 1 << 29;
/// The kernel single-stepped something for the first time.
pub(super) const STEPPED: u32 = 1 << 28;
/// Bit 8 + n: state n ran to its end as it is.
pub(super) const CLEAN_AT: u32 = 8;
/// The signal of the last state that did not, its lowest 4 bits.
pub(super) const SIGNAL_AT: u32 = 16;
/// What differs, as [`Seen::differs`]: the lowest bits.
pub(super) const DIFFERS: u32 = 0x1f;

/// The most bytes below the stack pointer that the optimised five-byte nop overwrites; sites are chosen so that
/// nothing lives there.
const NOP5_RED_ZONE: usize = 128;

/// Memory that parent and child share: progress, a verdict for each cell, what was seen in each state.
pub(super) struct Results {
    base: *mut u8,
    cells: usize,
}

impl Results {
    pub fn bytes(cells: usize) -> usize {
        (4096 + cells * 4).next_multiple_of(64) + cells * STATES * size_of::<Seen>()
    }

    fn progress(&self) -> &AtomicU64 {
        // SAFETY: the first word of the mapping, aligned, never unmapped.
        unsafe { &*self.base.cast::<AtomicU64>() }
    }

    fn verdict(&self, i: usize) -> &AtomicU32 {
        assert!(i < self.cells);
        // SAFETY: inside the mapping, aligned.
        unsafe { &*self.base.add(4096 + i * 4).cast::<AtomicU32>() }
    }

    fn seen(&mut self, i: usize, state: usize) -> &mut Seen {
        assert!(i < self.cells && state < STATES);
        let from = (4096 + self.cells * 4).next_multiple_of(64);
        // SAFETY: inside the mapping, aligned; any bits are a `Seen`; borrowed from us alone.
        unsafe { &mut *self.base.add(from + (i * STATES + state) * size_of::<Seen>()).cast::<Seen>() }
    }
}

/// Maps memory at an address that is free; `fd` -1 for anonymous memory.
pub(super) fn map(at: usize, bytes: usize, protection: i32, fd: i32) -> io::Result<*mut u8> {
    let kind = if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    // SAFETY: a new private mapping that replaces none.
    let base = unsafe {
        libc::mmap(
            at as *mut libc::c_void,
            bytes,
            protection,
            libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE | kind,
            fd,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if base as usize != at {
        return Err(io::Error::other(format!("{at:#x} is taken")));
    }
    Ok(base.cast())
}

/// One order of the parent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    /// Compare with what was seen before, instead of keeping it.
    pub probed: bool,
    pub parent: u64,
    pub code: u64,
    pub results: u64,
    pub cells: usize,
    pub states: usize,
    /// Say which cell was the first that the kernel stepped.
    pub watch_steps: bool,
}

/// Runs forms in this process; made once, when the first order comes.
#[derive(Default)]
pub(crate) struct Forms {
    machine: Option<Machine>,
    templates: Vec<Vec<u8>>,
}

impl Forms {
    /// Carries out an order.
    ///
    /// # Errors
    /// The files or addresses cannot be mapped.
    pub fn obey(&mut self, order: Order) -> io::Result<()> {
        let open = |fd: u64, write: bool| {
            File::options().read(true).write(write).open(format!("/proc/{}/fd/{fd}", order.parent))
        };
        let (code, shared) = (open(order.code, false)?, open(order.results, true)?);
        if self.machine.is_none() {
            map(SCRATCH, SCRATCH_BYTES, libc::PROT_READ | libc::PROT_WRITE, -1)?;
            self.templates = (0..STATES).map(prepare::template).collect();
            self.machine = Some(Machine::new()?);
        }
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let bytes = Results::bytes(order.cells);
        // SAFETY: a new mapping of a file that has that size.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                shared.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut results = Results { base: base.cast(), cells: order.cells };
        let length = (order.cells * CELL).next_multiple_of(4096);
        let text = map(cell::CODE, length, libc::PROT_READ | libc::PROT_EXEC, code.as_raw_fd())?;
        for i in 0..order.cells {
            if results.verdict(i).load(Ordering::Relaxed) & (SKIP | UNRUN) != 0 {
                continue;
            }
            results.progress().store(i as u64 + 1, Ordering::SeqCst);
            run_cell(machine, &self.templates, &mut results, order, text, i);
        }
        results.progress().store(0, Ordering::SeqCst);
        // SAFETY: our own mappings; nothing refers to them any more.
        unsafe {
            libc::munmap(text.cast(), length);
            libc::munmap(base, bytes);
        }
        Ok(())
    }
}

fn run_cell(
    machine: &mut Machine,
    templates: &[Vec<u8>],
    results: &mut Results,
    order: Order,
    text: *const u8,
    i: usize,
) {
    // SAFETY: inside the code that was just mapped.
    let mut bytes = unsafe { ptr::read_volatile(text.add(i * CELL).cast::<[u8; CELL]>()) };
    let mut verdict = results.verdict(i).load(Ordering::Relaxed);
    if order.probed {
        if bytes[0] != 0xcc {
            return;
        }
        verdict |= ARMED;
        // The instruction's first byte was kept when it ran as it is.
        bytes[0] = (verdict >> 20) as u8;
    } else {
        verdict = u32::from(bytes[0]) << 20;
    }
    let at = cell::address(i);
    let length = length(&bytes, at);
    let Some(decoded) = length.and_then(|n| Decoded::of(&bytes[..n], at as u64).ok()) else {
        results.verdict(i).store(verdict | UNRUN, Ordering::Relaxed);
        return;
    };
    let n = length.unwrap_or(0);
    if decoded.insn.segment_prefix() == iced_x86::Register::FS && !Machine::sets_fs() {
        results.verdict(i).store(verdict | UNRUN, Ordering::Relaxed);
        return;
    }
    let nop5 = n == 5 && matches!(decoded.insn.mnemonic(), Mnemonic::Nop | Mnemonic::Pause);
    for (state, template) in templates.iter().enumerate().take(order.states) {
        let start = prepare::start(&decoded, &bytes[..n], at, state, machine);
        // SAFETY: the scratch memory has that size.
        unsafe { ptr::copy_nonoverlapping(template.as_ptr(), SCRATCH as *mut u8, SCRATCH_BYTES) };
        for (address, word) in start.words.iter().flatten() {
            if (SCRATCH..SCRATCH + SCRATCH_BYTES - 8).contains(address) {
                // SAFETY: inside the scratch memory.
                unsafe { ptr::write_unaligned(*address as *mut u64, *word) };
            }
        }
        let mut seen = machine.run(at, &start.registers, start.flags);
        if nop5 {
            // SAFETY: inside the scratch memory.
            unsafe { ptr::write_bytes((STACK - NOP5_RED_ZONE) as *mut u8, 0, NOP5_RED_ZONE) };
        }
        // SAFETY: the scratch memory has that size, and nobody writes to it now.
        seen.memory = hash(unsafe { std::slice::from_raw_parts(SCRATCH as *const u8, SCRATCH_BYTES) });
        if order.probed {
            verdict |= results.seen(i, state).differs(&seen);
        } else {
            *results.seen(i, state) = seen;
            if seen.clean() {
                verdict |= 1 << (CLEAN_AT + state as u32);
            } else {
                verdict = verdict & !(0xf << SIGNAL_AT) | (seen.how as u32 & 0xf) << SIGNAL_AT;
            }
        }
    }
    if order.probed && order.watch_steps && has_step_area() {
        verdict |= STEPPED;
    }
    results.verdict(i).store(verdict, Ordering::Relaxed);
}

fn length(bytes: &[u8; CELL], at: usize) -> Option<usize> {
    let insn = iced_x86::Decoder::with_ip(64, bytes, at as u64, iced_x86::DecoderOptions::NONE).decode();
    (!insn.is_invalid()).then(|| insn.len())
}

/// The kernel maps its area for single-stepping when it needs it first.
fn has_step_area() -> bool {
    std::fs::read_to_string("/proc/self/maps")
        .is_ok_and(|maps| maps.lines().any(|l| l.ends_with("[uprobes]")))
}
