//! Where a form is run: cells of code at fixed addresses, and scratch memory.
//!
//! All addresses lie below 2 GiB, so that 32-bit displacements and addresses reach them, and are the same in every run,
//! so that a result that depends on them can be compared. A cell holds the instruction, behind it a jump to the exit
//! "fell through", and at [`TAKEN_AT`] one to the exit "taken", where branches of the cell lead.

use crate::inspect::forms::{Decoded, Form};
use iced_x86::{Code, FlowControl, Mnemonic, OpKind};

/// Bytes of a cell; a page holds a whole number of them.
pub(super) const CELL: usize = 32;
/// Where in a cell the branches lead.
pub(super) const TAKEN_AT: usize = 24;
/// Where the cells are mapped.
pub(super) const CODE: usize = 0x2000_0000;
/// The page with the two exits, [`EXIT_TAKEN_AT`] apart.
pub(super) const EXITS: usize = 0x1ff0_0000;
pub(super) const EXIT_TAKEN_AT: usize = 64;
/// Scratch memory: [`SCRATCH_BYTES`] that are compared.
pub(super) const SCRATCH: usize = 0x1000_0000;
pub(super) const SCRATCH_BYTES: usize = 4096;
/// Where explicit memory operands point; at least 1 KiB on either side belongs to them.
pub(super) const OPERAND: usize = SCRATCH + 1024;
/// The stack pointer.
pub(super) const STACK: usize = SCRATCH + 3072;

/// Address of a cell.
pub(super) fn address(index: usize) -> usize {
    CODE + index * CELL
}

/// The cell of a sample, with displacements that lead where they should.
///
/// `None` for samples that fit into no cell.
pub(super) fn cell(sample: &[u8], index: usize) -> Option<[u8; CELL]> {
    let at = address(index);
    let mut bytes = sample.to_vec();
    place(&mut bytes, at)?;
    // Where it leads must not have changed what it is.
    if bytes.len() > 15 || Form::of(&bytes) != Form::of(sample) {
        return None;
    }
    let mut cell = [0xcc; CELL];
    cell[..bytes.len()].copy_from_slice(&bytes);
    jump(&mut cell, bytes.len(), at, EXITS)?;
    jump(&mut cell, TAKEN_AT, at, EXITS + EXIT_TAKEN_AT)?;
    Some(cell)
}

fn jump(cell: &mut [u8; CELL], from: usize, at: usize, to: usize) -> Option<()> {
    let distance = i32::try_from(to as i64 - (at + from + 5) as i64).ok()?;
    cell[from] = 0xe9;
    cell[from + 1..from + 5].copy_from_slice(&distance.to_le_bytes());
    Some(())
}

/// Sets displacements: of branches to the exit, of operands without a base to the scratch memory.
fn place(bytes: &mut [u8], at: usize) -> Option<()> {
    let decoded = Decoded::of(bytes, at as u64).ok()?;
    let insn = decoded.insn;
    let len = bytes.len();
    match insn.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call
            if insn.op0_kind() == OpKind::NearBranch64 =>
        {
            let distance = (TAKEN_AT - len) as u8;
            // Relative branches end in their displacement, of one byte or four.
            let wide = !matches!(decoded.encoding.opcode, 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)
                || decoded.encoding.map != 0;
            let from = len - if wide { 4 } else { 1 };
            bytes[from..].fill(0);
            bytes[from] = distance;
            return Some(());
        }
        _ => {}
    }
    if !insn.op_kinds().any(|kind| kind == OpKind::Memory) || insn.mnemonic() == Mnemonic::Xlatb {
        return Some(());
    }
    let modrm_at = decoded.encoding.modrm_at;
    let moffs = matches!(
        insn.code(),
        Code::Mov_AL_moffs8
            | Code::Mov_AX_moffs16
            | Code::Mov_EAX_moffs32
            | Code::Mov_RAX_moffs64
            | Code::Mov_moffs8_AL
            | Code::Mov_moffs16_AX
            | Code::Mov_moffs32_EAX
            | Code::Mov_moffs64_RAX
    );
    if moffs {
        let from = modrm_at;
        let width = len - from;
        bytes[from..].copy_from_slice(&(OPERAND as u64).to_le_bytes()[..width]);
        return Some(());
    }
    let modrm = *bytes.get(modrm_at)?;
    let (mode, rm) = (modrm >> 6, modrm & 7);
    if mode == 0 && rm == 5 {
        let to = OPERAND as i64 - (at + len) as i64;
        bytes[modrm_at + 1..modrm_at + 5].copy_from_slice(&i32::try_from(to).ok()?.to_le_bytes());
    } else if mode == 0 && rm == 4 && bytes.get(modrm_at + 1)? & 7 == 5 {
        bytes[modrm_at + 2..modrm_at + 6].copy_from_slice(&(OPERAND as u32).to_le_bytes());
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn operands_and_branches_lead_where_they_should() {
        let decode = |sample: &[u8], index| {
            let cell = cell(sample, index).expect("it fits");
            let insn = Decoder::with_ip(64, &cell, address(index) as u64, DecoderOptions::NONE).decode();
            assert_eq!(insn.len(), sample.len());
            (insn, cell)
        };
        let (insn, cell) = decode(&[0x8b, 0x05, 0, 0, 0, 0], 7);
        assert_eq!(insn.memory_displacement64(), OPERAND as u64);
        let next = Decoder::with_ip(64, &cell[6..], (address(7) + 6) as u64, DecoderOptions::NONE).decode();
        assert_eq!(next.near_branch_target(), EXITS as u64);
        let taken = (address(3) + TAKEN_AT) as u64;
        for branch in [&[0x74, 0][..], &[0x0f, 0x84, 0, 0, 0, 0], &[0xe8, 0, 0, 0, 0], &[0xe3, 0]] {
            assert_eq!(decode(branch, 3).0.near_branch_target(), taken, "{branch:x?}");
        }
        assert_eq!(
            decode(&[0x64, 0x8b, 0x04, 0x25, 0, 0, 0, 0], 0).0.memory_displacement64(),
            OPERAND as u64
        );
        let far = [0x48, 0xa1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(decode(&far, 0).0.memory_displacement64(), OPERAND as u64);
    }
}
