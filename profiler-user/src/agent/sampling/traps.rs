//! Which samples found the target in one of our own traps: those are monitoring, not work.
//!
//! A trap is seen by the user address of a sample alone, without a walk of the stack:
//!
//! | address | when |
//! |---|---|
//! | a site, or the byte behind it | the breakpoint is being handled |
//! | the instruction behind it, or where it jumps to | interrupts were off in the handler: the sample comes as soon as they are on again |
//! | `[uprobes]`, `[uprobes-trampoline]` | an instruction is single-stepped, a return link or an optimised probe runs |
//! | behind a call of a function whose `ret` is a site, or that has a return link | its return is being handled: the address is the caller's already |
//!
//! A function's own work is at these addresses, too, one instruction of each call long; so it counts only while the class is attached. Where the work may be
//! longer (a loop begins behind the site, a repeated instruction stands there, a jump leads there), the sample counts in the kernel only. A thread in
//! a system call has the address behind it, which may be that of a site: that is no trap.
//!
//! Of returns through a pointer or a linkage table the function is not known. In the kernel they are taken for traps, and are not sure: a page fault, a soft
//! interrupt or a wait may have found the thread there. In user mode they are taken for work.

use crate::agent::class::{LinkState, LiveClass};
use crate::inspect::{Inspection, Module, may_be_jumped_to};
use crate::prober::Sample;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use profiler_core::class::{ClassId, ExitMode};
use profiler_core::recording::WindowKind;
use std::collections::HashMap;

/// Longest instruction, bytes.
const LONGEST: usize = 15;
/// A link is in place so long before its window begins, and after it has ended, at most, ns.
const AROUND_NS: u64 = 50_000_000;
/// Addresses remembered at most.
const MOST_CALLS: usize = 1 << 16;

/// Whose trap it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trap {
    /// `None`: that cannot be told.
    pub class: Option<ClassId>,
    /// Something else of the kernel may have found the thread there.
    pub is_sure: bool,
    /// It belongs to what a hit is charged: the kernel handles it, or the instruction is being stepped, while a window is open. In user mode the function's own
    /// instruction may be there, and around its window nobody is charged.
    pub is_charged: bool,
}

/// An address where a trap shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    address: u64,
    /// In user mode the function itself may be there for long.
    kernel_only: bool,
}

/// What stands before an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A call of this address.
    Call(u64),
    /// A call through a pointer or a linkage table.
    UnknownCall,
    /// A system call: in the kernel the thread is in it.
    SystemCall,
    /// Something else.
    Other,
}

/// The addresses of all sites so far.
#[derive(Debug, Default)]
pub struct Traps {
    /// By address: classes whose trap shows there, and whether it does in the kernel only.
    places: HashMap<u64, Vec<(ClassId, bool)>>,
    /// By address of a function: the classes whose calls show their end behind the call.
    functions: HashMap<u64, Vec<ClassId>>,
    /// How the sites of a class were found when they were last looked at: ways out and callers.
    known: HashMap<ClassId, (ExitMode, usize)>,
    before: HashMap<u64, Before>,
}

impl Traps {
    /// Modules came or went: nothing is where it was.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Finds the sites of what is attached now.
    pub fn learn(&mut self, classes: &[LiveClass], inspection: &Inspection) {
        for class in classes.iter().filter(|c| c.is_linked()) {
            let state = (class.exit, class.code.callers.found().count());
            if self.known.insert(class.id, state) != Some(state) {
                self.learn_class(class, inspection);
            }
        }
    }

    fn learn_class(&mut self, class: &LiveClass, inspection: &Inspection) {
        // It may be seen elsewhere now.
        self.places.values_mut().for_each(|of_place| of_place.retain(|(id, _)| *id != class.id));
        self.functions.values_mut().for_each(|of_function| of_function.retain(|id| *id != class.id));
        let own = class
            .sites_of(WindowKind::Trace)
            .into_iter()
            .map(|site| (class.candidate.key.module, site.offset));
        let of_callers = class.return_groups(WindowKind::Trace);
        let of_callers =
            of_callers.iter().flat_map(|g| g.sites.iter().map(|(_, site)| (g.module, site.offset)));
        for (module, offset) in own.chain(of_callers) {
            let Some(module) = inspection.modules().get(module) else { continue };
            for place in places_of(module, offset) {
                self.places.entry(place.address).or_default().push((class.id, place.kernel_only));
            }
        }
        // A pair's end is close behind its begin.
        if class.candidate.stamps_of.is_some()
            || !matches!(class.exit, ExitMode::ReturnLink | ExitMode::ExitSites)
        {
            return;
        }
        let key = class.candidate.key;
        let start = inspection.modules().get(key.module).and_then(|m| {
            let offset = m.elf().ok()?.offset_of(key.address)?;
            m.address_of_offset(offset)
        });
        if let Some(start) = start {
            self.functions.entry(start).or_default().push(class.id);
        }
    }

    /// Whether this sample fell into a trap. `is_probe_code`: its address lies in what the kernel maps for probes.
    pub fn of(
        &mut self,
        sample: &Sample<'_>,
        is_probe_code: bool,
        classes: &[LiveClass],
        inspection: &Inspection,
    ) -> Option<Trap> {
        let ip = sample.registers?.ip;
        let in_kernel = sample.kernel_ip.is_some();
        let class = |id: ClassId| classes.get(id.0 as usize);
        let watched = |id: ClassId| class(id).is_some_and(|c| is_attached(c, sample.time_ns));
        let is_open = |c: &LiveClass| {
            let (from, to) = c.span(sample.time_ns);
            from > 0 && (from..=to).contains(&sample.time_ns)
        };
        let sure = |id: Option<ClassId>| {
            let open = id.map_or_else(|| classes.iter().any(is_open), |id| class(id).is_some_and(is_open));
            Some(Trap { class: id, is_sure: true, is_charged: open && (in_kernel || id.is_none()) })
        };
        if let Some(of_place) = self.places.get(&ip) {
            let shows = |(id, kernel_only): &(ClassId, bool)| (in_kernel || !kernel_only) && watched(*id);
            if let Some(id) = of_place.iter().find(|place| shows(place)).map(|(id, _)| *id) {
                let in_call = in_kernel && self.before(ip, inspection) == Before::SystemCall;
                return if in_call { None } else { sure(Some(id)) };
            }
        }
        if is_probe_code {
            return sure(None);
        }
        let returns = |id: &ClassId| watched(*id) && class(*id).is_some_and(sees_returns);
        if !self.functions.values().flatten().any(returns) {
            return None;
        }
        match self.before(ip, inspection) {
            Before::Call(target) => {
                let of_function = self.functions.get(&target).into_iter().flatten();
                of_function.copied().find(returns).and_then(|id| sure(Some(id)))
            }
            Before::UnknownCall => {
                in_kernel.then_some(Trap { class: None, is_sure: false, is_charged: false })
            }
            Before::SystemCall | Before::Other => None,
        }
    }

    /// What stands before this address.
    fn before(&mut self, ip: u64, inspection: &Inspection) -> Before {
        if self.before.len() >= MOST_CALLS {
            self.before.clear();
        }
        *self.before.entry(ip).or_insert_with(|| {
            let found = || {
                let (module, vaddr) =
                    inspection.modules().iter().find_map(|m| Some((m, m.vaddr_of_address(ip)?)))?;
                let elf = module.elf().ok()?;
                let code = elf.read_vaddr(vaddr.checked_sub(LONGEST as u64)?, LONGEST).ok()?;
                let in_table = |target: u64| {
                    let section = elf.section_at(target.wrapping_sub(ip).wrapping_add(vaddr));
                    section.is_some_and(|s| s.name.starts_with(".plt"))
                };
                match call_before(ip, &code) {
                    Before::Call(target) if in_table(target) => Some(Before::UnknownCall),
                    before => Some(before),
                }
            };
            found().unwrap_or(Before::Other)
        })
    }
}

/// Links of the class are in place at this time, or may be.
fn is_attached(class: &LiveClass, time_ns: u64) -> bool {
    let (from, to) = class.span(u64::MAX);
    match class.state {
        LinkState::Opening(..) => true,
        LinkState::Open(_) | LinkState::Closing(..) => time_ns.saturating_add(AROUND_NS) >= from,
        LinkState::Off | LinkState::Waiting(_) => {
            to > 0 && time_ns.saturating_add(AROUND_NS) >= from && time_ns <= to.saturating_add(AROUND_NS)
        }
    }
}

/// Returns of its calls are seen in its present window; of one that is over, they may have been.
fn sees_returns(class: &LiveClass) -> bool {
    let kind = match &class.state {
        LinkState::Open(window) | LinkState::Closing(window, _) => window.kind,
        LinkState::Opening(pending, _) => pending.kind,
        LinkState::Off | LinkState::Waiting(_) => return true,
    };
    kind != WindowKind::Survey
}

/// Where a trap on the instruction at `offset` of the module's file shows.
fn places_of(module: &Module, offset: u64) -> Vec<Place> {
    let Some(address) = module.address_of_offset(offset) else { return Vec::new() };
    let Ok(elf) = module.elf() else { return Vec::new() };
    let code = elf.read_at(offset, 2 * LONGEST).unwrap_or_default();
    let vaddr = elf.vaddr_of(offset);
    places(address, &code, |to| {
        vaddr.is_none_or(|vaddr| may_be_jumped_to(module, to.wrapping_sub(address).wrapping_add(vaddr)))
    })
}

/// Where samples show a trap on the first instruction of `code`, which stands at `address`. `is_led_to`: a branch may lead to this address.
fn places(address: u64, code: &[u8], is_led_to: impl Fn(u64) -> bool) -> Vec<Place> {
    let mut places = vec![Place { address, kernel_only: false }];
    let insn = decode(address, code);
    if insn.is_invalid() {
        places.push(Place { address: address + 1, kernel_only: true });
        return places;
    }
    let next = insn.next_ip();
    if next != address + 1 {
        places.push(Place { address: address + 1, kernel_only: true });
    }
    let goes_on = !matches!(
        insn.flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
    );
    let behind = decode(next, code.get(insn.len()..).unwrap_or_default());
    let repeats = behind.has_rep_prefix() || behind.has_repne_prefix();
    places.push(Place { address: next, kernel_only: !goes_on || repeats || is_led_to(next) });
    if insn.is_call_near() || insn.is_jmp_short_or_near() || insn.is_jcc_short_or_near() {
        places.push(Place { address: insn.near_branch_target(), kernel_only: true });
    }
    places
}

/// The call that returns to `ip`, behind `code`.
fn call_before(ip: u64, code: &[u8]) -> Before {
    for length in 2..=code.len() {
        let insn = decode(ip - length as u64, &code[code.len() - length..]);
        if insn.is_invalid() || insn.len() != length {
            continue;
        }
        // It has the control flow of a call, too.
        if insn.mnemonic() == Mnemonic::Syscall {
            return Before::SystemCall;
        }
        if insn.is_call_near() {
            return Before::Call(insn.near_branch_target());
        }
        if insn.is_call_near_indirect() {
            return Before::UnknownCall;
        }
    }
    Before::Other
}

fn decode(address: u64, code: &[u8]) -> Instruction {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_shows_at_its_site_behind_it_and_where_it_jumps() {
        // Address, and whether it shows in user mode, too.
        let shows = |code: &[u8], led_to: &[u64]| -> Vec<(u64, bool)> {
            let all = places(0x100, code, |to| led_to.contains(&to));
            all.into_iter().map(|p| (p.address, !p.kernel_only)).collect()
        };
        let push_nop = [0x55, 0x90];
        assert_eq!(shows(&push_nop, &[]), [(0x100, true), (0x101, true)], "the next byte is the next one");
        let mov_nop = [0x48, 0x89, 0xe5, 0x90];
        assert_eq!(shows(&mov_nop, &[]), [(0x100, true), (0x101, false), (0x103, true)]);
        assert_eq!(shows(&mov_nop, &[0x103])[2], (0x103, false), "a loop begins behind it");
        let rep_movsb = [0x48, 0x89, 0xd1, 0xf3, 0xa4];
        assert_eq!(shows(&rep_movsb, &[])[2], (0x103, false), "all the work is there");
        let je = [0x74, 0x10, 0x90];
        assert_eq!(shows(&je, &[]), [(0x100, true), (0x101, false), (0x102, true), (0x112, false)]);
        assert_eq!(shows(&[0xc3, 0x90], &[]), [(0x100, true), (0x101, false)], "another function's");
        assert_eq!(shows(&[], &[]), [(0x100, true), (0x101, false)], "code that cannot be read");
    }

    #[test]
    fn the_call_before_a_return_address_is_found() {
        let before = |code: &[u8]| {
            let mut all = [0x90; LONGEST];
            all[LONGEST - code.len()..].copy_from_slice(code);
            call_before(0x1000, &all)
        };
        assert_eq!(before(&[0xe8, 0x10, 0, 0, 0]), Before::Call(0x1010));
        assert_eq!(before(&[0xff, 0xd0]), Before::UnknownCall, "call rax");
        assert_eq!(before(&[0x41, 0xff, 0x54, 0x24, 0x08]), Before::UnknownCall, "call [r12+8]");
        assert_eq!(before(&[0xff, 0x15, 1, 2, 3, 4]), Before::UnknownCall, "call [rip+...]");
        assert_eq!(before(&[0x0f, 0x05]), Before::SystemCall);
        assert_eq!(before(&[0x48, 0x89, 0xe5]), Before::Other);
    }
}
