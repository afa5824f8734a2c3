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
//! A thread in a system call has the address behind it, which may be that of a site (in `epoll_wait` it is): in the kernel that is no trap.
//!
//! A function's own work is at these addresses, too, one instruction of each call long; so it counts only while the class is attached. Of returns
//! through a pointer or a linkage table the function is not known: they count in the kernel, where nobody is behind a call without a trap but for a page
//! fault.

use crate::agent::class::{LinkState, LiveClass};
use crate::inspect::Inspection;
use crate::prober::Sample;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
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
}

/// What stands before an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A call of this address.
    Call(u64),
    /// A call through a pointer.
    IndirectCall,
    /// A system call: in the kernel the thread is in it.
    SystemCall,
    /// Something else.
    Other,
}

/// The addresses of all sites so far.
#[derive(Debug, Default)]
pub struct Traps {
    /// By address: classes whose trap shows there.
    places: HashMap<u64, Vec<ClassId>>,
    /// By address of a function: the class whose calls show their end behind the call.
    functions: HashMap<u64, ClassId>,
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
        let own = class
            .sites_of(WindowKind::Trace)
            .into_iter()
            .map(|site| (class.candidate.key.module, site.offset));
        let of_callers = class.return_groups(WindowKind::Trace);
        let of_callers =
            of_callers.iter().flat_map(|g| g.sites.iter().map(|(_, site)| (g.module, site.offset)));
        for (module, offset) in own.chain(of_callers) {
            let Some(module) = inspection.modules().get(module) else { continue };
            let Some(address) = module.address_of_offset(offset) else { continue };
            let Ok(elf) = module.elf() else { continue };
            let code = elf.read_at(offset, LONGEST).unwrap_or_default();
            for place in places(address, &code) {
                let of_place = self.places.entry(place).or_default();
                if !of_place.contains(&class.id) {
                    of_place.push(class.id);
                }
            }
        }
        let key = class.candidate.key;
        let start = inspection.modules().get(key.module).and_then(|m| {
            let offset = m.elf().ok()?.offset_of(key.address)?;
            m.address_of_offset(offset)
        });
        if let Some(start) =
            start.filter(|_| matches!(class.exit, ExitMode::ReturnLink | ExitMode::ExitSites))
        {
            self.functions.insert(start, class.id);
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
        let watched =
            |id: &ClassId| classes.get(id.0 as usize).is_some_and(|c| is_attached(c, sample.time_ns));
        if let Some(of_place) = self.places.get(&ip)
            && let Some(class) = of_place.iter().copied().find(|id| watched(id))
        {
            let in_call = sample.kernel_ip.is_some() && self.before(ip, inspection) == Before::SystemCall;
            return (!in_call).then_some(Trap { class: Some(class) });
        }
        if is_probe_code {
            return Some(Trap { class: None });
        }
        if self.functions.is_empty() {
            return None;
        }
        match self.before(ip, inspection) {
            Before::Call(target) => match self.functions.get(&target) {
                Some(class) => watched(class).then_some(Trap { class: Some(*class) }),
                None => self.is_unknown_return(sample, watched),
            },
            Before::IndirectCall => self.is_unknown_return(sample, watched),
            Before::SystemCall | Before::Other => None,
        }
    }

    fn is_unknown_return(&self, sample: &Sample<'_>, watched: impl Fn(&ClassId) -> bool) -> Option<Trap> {
        (sample.kernel_ip.is_some() && self.functions.values().any(watched)).then_some(Trap { class: None })
    }

    /// What stands before this address.
    fn before(&mut self, ip: u64, inspection: &Inspection) -> Before {
        if self.before.len() >= MOST_CALLS {
            self.before.clear();
        }
        *self.before.entry(ip).or_insert_with(|| {
            let code = || {
                let (module, vaddr) =
                    inspection.modules().iter().find_map(|m| Some((m, m.vaddr_of_address(ip)?)))?;
                module.elf().ok()?.read_vaddr(vaddr.checked_sub(LONGEST as u64)?, LONGEST).ok()
            };
            code().map_or(Before::Other, |code| call_before(ip, &code))
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

/// Where samples show a trap on the instruction `code` at `address`.
fn places(address: u64, code: &[u8]) -> Vec<u64> {
    let mut places = vec![address, address + 1];
    let insn = decode(address, code);
    if insn.is_invalid() {
        return places;
    }
    places.push(insn.next_ip());
    if insn.is_call_near() || insn.is_jmp_short_or_near() || insn.is_jcc_short_or_near() {
        places.push(insn.near_branch_target());
    }
    places.dedup();
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
            return Before::IndirectCall;
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
        assert_eq!(
            places(0x100, &[0x55, 0x90]),
            [0x100, 0x101],
            "push: the next byte is the next instruction"
        );
        assert_eq!(places(0x100, &[0x48, 0x89, 0xe5]), [0x100, 0x101, 0x103], "mov");
        assert_eq!(places(0x100, &[0x0f, 0x1f, 0x44, 0, 0]), [0x100, 0x101, 0x105], "nop5");
        assert_eq!(places(0x100, &[0x74, 0x10]), [0x100, 0x101, 0x102, 0x112], "je");
        assert_eq!(places(0x100, &[]), [0x100, 0x101], "code that cannot be read");
    }

    #[test]
    fn the_call_before_a_return_address_is_found() {
        let before = |code: &[u8]| {
            let mut all = [0x90; LONGEST];
            all[LONGEST - code.len()..].copy_from_slice(code);
            call_before(0x1000, &all)
        };
        assert_eq!(before(&[0xe8, 0x10, 0, 0, 0]), Before::Call(0x1010));
        assert_eq!(before(&[0xff, 0xd0]), Before::IndirectCall, "call rax");
        assert_eq!(before(&[0x41, 0xff, 0x54, 0x24, 0x08]), Before::IndirectCall, "call [r12+8]");
        assert_eq!(before(&[0xff, 0x15, 1, 2, 3, 4]), Before::IndirectCall, "call [rip+...]");
        assert_eq!(before(&[0x0f, 0x05]), Before::SystemCall);
        assert_eq!(before(&[0x48, 0x89, 0xe5]), Before::Other);
    }
}
