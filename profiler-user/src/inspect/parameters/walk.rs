//! The ways through one function, with what is still as its caller left it.
//!
//! A register has three lanes: bits 0 to 7, 8 to 15, and the rest. `sete %cl; movzx %cl, %ecx` reads nothing of the caller's.

use super::super::arguments::{ALL_ARGUMENTS, REGISTERS};
use super::super::flow::{self, Edge, IndirectTo, Region};
use super::super::graph::slot_of;
use super::super::sites::Body;
use super::{Callees, Summary, charge};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use std::collections::HashMap;

/// Lanes of the six registers: bits 3 k to 3 k + 2 are those of register k.
type Lanes = u32;

const ALL_LANES: Lanes = (1 << 18) - 1;
const OF_REGISTER: Lanes = 0b111;

/// The lanes of a set of registers.
fn lanes_of(set: u8) -> Lanes {
    (0..6).filter(|i| set & 1 << i != 0).fold(0, |lanes, i| lanes | OF_REGISTER << (3 * i))
}

/// The registers of which lanes are there.
fn registers_of(lanes: Lanes) -> u8 {
    (0..6).filter(|i| lanes >> (3 * i) & OF_REGISTER != 0).fold(0, |set, i| set | 1 << i)
}

/// The lanes that a register, or a part of one, covers.
fn covered(register: Register) -> Lanes {
    let full = register.full_register();
    let Some(i) = REGISTERS.iter().position(|r| *r == full) else { return 0 };
    let lanes = match register.size() {
        1 if matches!(register, Register::CH | Register::DH) => 0b010,
        1 => 0b001,
        2 => 0b011,
        _ => OF_REGISTER,
    };
    lanes << (3 * i)
}

/// What one instruction does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Access {
    read: Lanes,
    /// Surely overwritten.
    overwritten: Lanes,
    /// Perhaps written.
    touched: Lanes,
}

fn access(insn: &Instruction, factory: &mut InstructionInfoFactory) -> Access {
    let mut access = Access::default();
    // The operand of a long nop is not read.
    if matches!(insn.mnemonic(), Mnemonic::Nop | Mnemonic::Endbr64) {
        return access;
    }
    for used in factory.info(insn).used_registers() {
        let lanes = covered(used.register());
        // A write of 32 bits clears the upper half; one of fewer leaves the rest.
        match used.access() {
            OpAccess::None | OpAccess::NoMemAccess => {}
            OpAccess::Read | OpAccess::CondRead => access.read |= lanes,
            OpAccess::Write => {
                access.overwritten |= lanes;
                access.touched |= lanes;
            }
            OpAccess::CondWrite => access.touched |= lanes,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
                access.read |= lanes;
                access.touched |= lanes;
                if used.access() == OpAccess::ReadWrite {
                    access.overwritten |= lanes;
                }
            }
        }
    }
    access
}

/// See the [module](self).
pub(super) struct Walk<'a> {
    body: &'a Body,
    regions: Vec<&'a Region>,
    /// Lanes that may be as the caller left them, before an instruction: by region and number.
    held: HashMap<(usize, usize), Lanes>,
    work: Vec<(usize, usize)>,
    used: Lanes,
    written: u8,
    is_whole: bool,
}

impl<'a> Walk<'a> {
    pub fn new(body: &'a Body) -> Self {
        Self {
            body,
            regions: body.regions().collect(),
            held: HashMap::new(),
            work: Vec::new(),
            used: 0,
            written: 0,
            is_whole: true,
        }
    }

    /// Goes all ways. `depth`: how many calls deep it is called; `None`: it is the function that was asked for, of which nobody has to know what it writes.
    /// `None`: there are too many instructions.
    pub fn summary(mut self, callees: &mut Callees<'_>, depth: Option<u32>) -> Option<Summary> {
        let mut factory = InstructionInfoFactory::new();
        self.lead(self.body.main.start, ALL_LANES, callees, depth);
        while let Some(at) = self.work.pop() {
            let Some(held) = self.held.get(&at).copied() else { continue };
            // Nothing more can be learned.
            if held == 0 && (depth.is_none() || self.written == ALL_ARGUMENTS) {
                continue;
            }
            let left = if depth.is_some() { &mut callees.left } else { &mut callees.own };
            charge(left, 1)?;
            self.pass(at, held, callees, depth, &mut factory);
        }
        Some(Summary { used: registers_of(self.used), written: self.written, is_whole: self.is_whole })
    }

    /// Goes past one instruction.
    fn pass(
        &mut self,
        at: (usize, usize),
        held: Lanes,
        callees: &mut Callees<'_>,
        depth: Option<u32>,
        factory: &mut InstructionInfoFactory,
    ) {
        let Some(region) = self.regions.get(at.0).copied() else { return };
        let Some(insn) = region.insns.get(at.1) else { return };
        let edge = flow::edge(insn);
        let mut left = held;
        // What the kernel reads is not known.
        if edge == Edge::Other {
            self.used |= held;
        } else {
            let access = access(insn, factory);
            self.used |= held & access.read;
            left &= !access.overwritten;
            // A call writes what its callee does.
            self.written |= if edge == Edge::Call { 0 } else { registers_of(access.touched) };
        }
        match edge {
            Edge::Next | Edge::Other => self.go_on(at, left),
            Edge::Branch(to) => {
                self.lead(to, left, callees, depth);
                self.go_on(at, left);
            }
            Edge::Jump(to) => self.lead(to, left, callees, depth),
            Edge::Call => {
                let after = self.call(insn, left, callees, depth);
                self.go_on(at, after);
            }
            Edge::Indirect => self.indirect(insn, left, callees, depth),
            // It goes on where it has written itself (a retpoline).
            Edge::Return if at.1.checked_sub(1).is_some_and(|i| is_to_return_slot(&region.insns[i])) => {
                self.used |= left;
            }
            // A handler of SIGTRAP, or the kernel, may read the registers, and let it go on.
            Edge::Stop if insn.flow_control() == FlowControl::Interrupt => {
                self.used |= held;
                self.go_on(at, left);
            }
            Edge::Return | Edge::Stop => {}
        }
    }

    /// To the next instruction.
    fn go_on(&mut self, at: (usize, usize), held: Lanes) {
        let next = (at.0, at.1 + 1);
        if self.regions.get(at.0).is_some_and(|region| next.1 < region.insns.len()) {
            self.join(next, held);
        } else {
            // It runs into other code.
            self.used |= held;
        }
    }

    /// To an address, of the function or not.
    fn lead(&mut self, to: u64, held: Lanes, callees: &mut Callees<'_>, depth: Option<u32>) {
        if let Some(at) = self.find(to) {
            self.join(at, held);
        } else if self.body.contains(to) {
            self.used |= held;
        } else {
            self.enter(callees.at(to, next(depth)), held);
        }
    }

    fn find(&self, to: u64) -> Option<(usize, usize)> {
        let mut regions = self.regions.iter().enumerate();
        regions.find_map(|(number, region)| Some((number, region.index_of(to)?)))
    }

    fn join(&mut self, at: (usize, usize), held: Lanes) {
        let known = self.held.get(&at).copied();
        let all = known.unwrap_or(0) | held;
        if known != Some(all) {
            self.held.insert(at, all);
            self.work.push(at);
        }
    }

    /// A callee is entered.
    fn enter(&mut self, callee: Summary, held: Lanes) {
        self.used |= held & lanes_of(callee.used);
        self.written |= callee.written;
        self.is_whole &= callee.is_whole;
    }

    /// A call: what is left behind it.
    fn call(
        &mut self,
        insn: &Instruction,
        held: Lanes,
        callees: &mut Callees<'_>,
        depth: Option<u32>,
    ) -> Lanes {
        let callee = if insn.op0_kind() == OpKind::NearBranch64 {
            let to = insn.near_branch_target();
            if let Some(at) = self.find(to) {
                // What it passes to itself counts if it makes use of it, which is what is being looked for.
                self.join(at, held);
                return held;
            }
            callees.at(to, next(depth))
        } else {
            match slot_of(insn) {
                Some(slot) => callees.behind(slot, next(depth)),
                None => Summary::UNKNOWN.through_slot(),
            }
        };
        self.enter(callee, held);
        held & !lanes_of(callee.written)
    }

    /// A jump through a pointer or a table.
    fn indirect(&mut self, insn: &Instruction, held: Lanes, callees: &mut Callees<'_>, depth: Option<u32>) {
        let body = self.body;
        let leads = body.indirect.iter().find(|(at, _)| *at == insn.ip()).and_then(|(_, to)| to.as_ref());
        let inside = match leads {
            Some(IndirectTo::Table(to)) => to.as_slice(),
            Some(IndirectTo::Either(to)) => {
                self.used |= held;
                to.as_slice()
            }
            Some(IndirectTo::Out) => {
                let callee = match slot_of(insn) {
                    Some(slot) => callees.behind(slot, next(depth)),
                    None => Summary::UNKNOWN.through_slot(),
                };
                self.enter(callee, held);
                &[]
            }
            None => {
                self.used |= held;
                &[]
            }
        };
        for to in inside {
            self.lead(*to, held, callees, depth);
        }
    }
}

/// How deep a callee is called.
fn next(depth: Option<u32>) -> u32 {
    depth.map_or(0, |depth| depth + 1)
}

/// Whether an instruction in front of a `ret` writes where that returns to.
fn is_to_return_slot(insn: &Instruction) -> bool {
    let stores = insn.op_count() > 0
        && insn.op0_kind() == OpKind::Memory
        && insn.memory_base() == Register::RSP
        && insn.memory_displacement64() == 0;
    insn.mnemonic() == Mnemonic::Push || insn.mnemonic() == Mnemonic::Mov && stores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_parts_of_registers() {
        use Register::{CH, CL, CX, DH, ECX, R9, RAX, RCX, SIL};
        let of_rcx = [CL, CH, CX, ECX, RCX].map(|r| covered(r) >> 9);
        assert_eq!(of_rcx, [1, 2, 3, 7, 7]);
        assert_eq!([RAX, SIL, DH, R9].map(covered), [0, 1 << 3, 2 << 6, 7 << 15]);
        assert_eq!((lanes_of(0b10_0001), registers_of(covered(DH) | covered(R9))), (7 | 7 << 15, 0b10_0100));
    }
}
