//! What an instruction starts with: registers, flags, extended state and memory, the same for each run of a form.

use super::cell::{OPERAND, SCRATCH_BYTES, STACK, TAKEN_AT};
use super::machine::{Machine, Registers};
use crate::inspect::forms::Decoded;
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

/// States that a form may be run in.
pub const STATES: usize = 3;

/// CF, PF, AF, ZF, SF, DF, OF; bit 1 and IF are always set.
const FLAGS: u64 = 0xcd5;
const FLAGS_ALWAYS: u64 = 0x202;
/// What an index register holds: aligned, so that an aligned operand stays so.
const INDEX: u64 = 64;
const RSP: usize = 4;

/// The numbers of Sebastiano Vigna's splitmix64: the same each time.
pub(super) struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The start of a run.
pub(super) struct Start {
    pub registers: Registers,
    pub flags: u64,
    /// A word of the scratch memory that is not the template's: its address and value.
    pub words: [Option<(usize, u64)>; 2],
}

/// The scratch memory in a state: small numbers, or anything.
pub(super) fn template(state: usize) -> Vec<u8> {
    let mut bytes = vec![0; SCRATCH_BYTES];
    let mut numbers = Numbers(state as u64);
    numbers.fill(&mut bytes);
    if state == 0 {
        for word in bytes.chunks_exact_mut(4) {
            word.copy_from_slice(&[word[0] & 0x7f | 1, 0, 0, 0]);
        }
    }
    bytes
}

/// Chooses all values; the extended state goes into the machine's.
pub(super) fn start(
    decoded: &Decoded,
    bytes: &[u8],
    at: usize,
    state: usize,
    machine: &mut Machine,
) -> Start {
    let insn = &decoded.insn;
    let seed = bytes.iter().fold(state as u64, |sum, &b| sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(b));
    let mut numbers = Numbers(seed);
    let mut registers = [0; 16];
    for register in &mut registers {
        let any = numbers.next();
        *register = match state {
            0 => any & 0x7f | 1,
            1 => any & 0xffff_ffff,
            _ => any,
        };
    }
    extended(machine, &mut numbers, state);
    let flags = FLAGS_ALWAYS
        | match state {
            0 => numbers.next() & FLAGS & !0x400,
            1 => FLAGS,
            _ => 0,
        };
    let [_, _, rdx, rbx, _, rbp, rsi, rdi] = [0, 1, 2, 3, RSP, 5, 6, 7];
    registers[RSP] = STACK as u64;
    registers[rbp] = STACK as u64 + 128;
    registers[rsi] = OPERAND as u64;
    registers[rdi] = OPERAND as u64 + 512;
    registers[rbx] = OPERAND as u64;
    if state == 0 && matches!(insn.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) {
        // A quotient that fits, whatever the width.
        registers[0] = 100;
        registers[rdx] = 0;
    }
    let taken = (at + TAKEN_AT) as u64;
    let mut words = [None; 2];
    let mut at_operand = OPERAND;
    let operand = insn.op_kinds().any(|kind| kind == OpKind::Memory) && insn.mnemonic() != Mnemonic::Xlatb;
    if operand {
        address(insn, &mut registers, machine);
        if insn.memory_base() == Register::None && general(insn.memory_index()).is_some() {
            at_operand += INDEX as usize * insn.memory_index_scale() as usize;
        }
    }
    match insn.flow_control() {
        FlowControl::Return => words[0] = Some((registers[RSP] as usize, taken)),
        FlowControl::IndirectBranch | FlowControl::IndirectCall if operand => {
            words[0] = Some((at_operand, taken));
        }
        FlowControl::IndirectBranch | FlowControl::IndirectCall => {
            if let Some(register) = general(insn.op0_register()) {
                registers[register] = taken;
            }
        }
        _ => {}
    }
    Start { registers, flags, words }
}

/// Number of a general register; whole or in part.
fn general(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register().number())
}

/// Makes the operand point at [`OPERAND`].
fn address(insn: &Instruction, registers: &mut Registers, machine: &mut Machine) {
    let mut to = (OPERAND as u64).wrapping_sub(insn.memory_displacement64());
    let index = insn.memory_index();
    if let Some(register) = general(index) {
        registers[register] = INDEX;
        to = to.wrapping_sub(INDEX * u64::from(insn.memory_index_scale()));
    } else if index.is_vector_register() {
        fill_vector(machine, index.number());
    }
    if let Some(register) = general(insn.memory_base()) {
        registers[register] = to;
    }
}

/// Gives each element of an index vector a small number.
fn fill_vector(machine: &mut Machine, number: usize) {
    let [avx, _, high, more] = machine.parts;
    let state = &mut machine.state.0;
    let mut fill = |from: usize, bytes: usize| {
        for (i, word) in state[from..from + bytes].chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(i as u64 % 4 * 16).to_le_bytes());
        }
    };
    if number >= 16 {
        fill(more.0 + 64 * (number - 16), if more.1 > 0 { 64 } else { 0 });
        return;
    }
    fill(160 + 16 * number, 16);
    fill(avx.0 + 16 * number, if avx.1 > 0 { 16 } else { 0 });
    fill(high.0 + 32 * number, if high.1 > 0 { 32 } else { 0 });
}

/// x87, SSE and what comes after them; all exceptions masked.
fn extended(machine: &mut Machine, numbers: &mut Numbers, state: usize) {
    let parts = machine.parts;
    let bytes = &mut machine.state.0;
    bytes[..576].fill(0);
    numbers.fill(&mut bytes[32..416]);
    for register in 0..8 {
        // Normal numbers near 1.
        let at = 32 + 16 * register;
        bytes[at + 7] |= 0x80;
        bytes[at + 8..at + 16].copy_from_slice(&[0xfe + (numbers.next() as u8 & 1), 0x3f, 0, 0, 0, 0, 0, 0]);
    }
    let top = numbers.next() as u16 & 7;
    bytes[..2].copy_from_slice(&0x037f_u16.to_le_bytes());
    bytes[2..4].copy_from_slice(&(top << 11).to_le_bytes());
    bytes[4] = [0xff, 0, 0x3c][state % STATES];
    let mxcsr: u32 = [0x1f80, 0x1f80 | 0x6000, 0x1f80 | 0x8040][state % STATES];
    bytes[24..28].copy_from_slice(&mxcsr.to_le_bytes());
    bytes[28..32].copy_from_slice(&0xffff_u32.to_le_bytes());
    for (offset, size) in parts {
        numbers.fill(&mut bytes[offset..offset + size]);
    }
    let (masks, size) = parts[1];
    if state == 0 {
        bytes[masks..masks + size].fill(0xff);
    }
    // The header: all components are here, in the standard format.
    bytes[512..520].copy_from_slice(&machine.components.to_le_bytes());
}
