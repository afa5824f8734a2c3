//! A pass over the bytes of code, which finds every place where an instruction that loads `rsp` can begin.

use super::super::elf::ElfInfo;
use std::io;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// Bytes around a place that the pass looks at.
pub(super) const BEFORE: usize = 4;
pub(super) const AFTER: usize = 4;
/// `leave` and `lea rsp, [rbp - ...]` are everywhere, so only those are looked at that follow a load of `rbp` within this many bytes:
/// what switches stacks is short.
const NEAR: usize = 64;

/// Calls `f` with every place in a piece of code (link-time address, file offset, size) where an instruction that loads `rsp` can
/// begin (or its opcode can stand), until it answers.
pub(super) fn each_place<T>(
    elf: &ElfInfo,
    (vaddr, offset, size): (u64, u64, u64),
    mut f: impl FnMut(u64) -> Option<T>,
) -> io::Result<Option<T>> {
    let mut found = Vec::new();
    let mut done = 0;
    let mut rbp = None;
    while done < size {
        let before = done.min(BEFORE as u64);
        let fresh = (size - done).min(CHUNK as u64);
        let after = (size - done - fresh).min(AFTER as u64);
        let mut bytes = elf.read_at(offset + done - before, (before + fresh + after) as usize)?;
        // So that every place has as many bytes on either side.
        bytes.splice(0..0, std::iter::repeat_n(0x90, BEFORE - before as usize));
        bytes.resize(BEFORE + fresh as usize + AFTER, 0x90);
        scan(&bytes, vaddr + done, &mut rbp, &mut found);
        if let Some(answer) = found.drain(..).find_map(&mut f) {
            return Ok(Some(answer));
        }
        done += fresh;
    }
    Ok(None)
}

/// Opcodes that can load `rsp`, or tell where `rbp` comes from.
const OPCODES: [bool; 256] = {
    let mut table = [false; 256];
    let all = [0x89, 0x8b, 0x8d, 0x87, 0x94, 0x5c, 0x5d, 0xc9, 0x0f, 0x8f];
    let mut i = 0;
    while i < all.len() {
        table[all[i]] = true;
        i += 1;
    }
    table
};

/// Opcodes that a ModR/M byte follows: moves, `lea`, comparisons, arithmetic.
fn takes_modrm(opcode: u8) -> bool {
    matches!(opcode, 0x88..=0x8b | 0x8d | 0x63 | 0x38..=0x3b | 0x00..=0x03 | 0x28..=0x2b | 0x30..=0x33 | 0x83 | 0x84 | 0x85 | 0xc7 | 0xff)
}

/// First bytes of what comes after `pop rbp` where a function ends: `ret`, a jump, another `pop`.
fn leaves(next: u8) -> bool {
    matches!(next, 0xc2 | 0xc3 | 0xe9 | 0xeb | 0xff | 0xf2 | 0xf3 | 0x41 | 0x58..=0x5f)
}

/// One chunk, with [`BEFORE`] bytes before it and [`AFTER`] behind. `rbp`: where `rbp` was loaded last.
pub(super) fn scan(bytes: &[u8], vaddr: u64, rbp: &mut Option<u64>, found: &mut Vec<u64>) {
    // REX prefixes: W (0x48) is 64-bit, R (4) extends the register, B (1) the operand in the ModR/M byte.
    let wide = |rex: u8, without: u8| rex & 0xf8 == 0x48 && rex & without == 0;
    const R: u8 = 4;
    const B: u8 = 1;
    for i in BEFORE..bytes.len() - AFTER {
        // Most bytes are none of these.
        if !OPCODES[usize::from(bytes[i])] {
            continue;
        }
        let (rex, modrm) = (bytes[i - 1], bytes[i + 1]);
        let at = vaddr + (i - BEFORE) as u64;
        let (register, operand, direct) = (modrm >> 3 & 7, modrm & 7, modrm >= 0xc0);
        // rsp is register 4, rbp 5.
        let (rsp, base) = match bytes[i] {
            // mov r/m, r
            0x89 if direct && wide(rex, B) && operand == 4 => (true, None),
            0x89 if direct && wide(rex, B) && operand == 5 && !(register == 4 && rex & R == 0) => {
                *rbp = Some(at);
                continue;
            }
            // mov r, r/m
            0x8b if wide(rex, R) && register == 4 => (true, None),
            0x8b if wide(rex, R) && register == 5 && !(direct && operand == 4 && rex & B == 0) => {
                *rbp = Some(at);
                continue;
            }
            // lea r, m; from rsp itself (a SIB byte without an index is 0x24 there) it is no load.
            0x8d if !direct && wide(rex, R) && register == 4 => {
                let sib = (operand == 4).then_some(bytes[i + 2]);
                if sib.is_some_and(|sib| sib & 7 == 4) && rex & B == 0 {
                    continue;
                }
                (true, (operand == 5 && rex & B == 0 && modrm >= 0x40).then_some(()))
            }
            0x8d if !direct && wide(rex, R) && register == 5 => {
                let of_rsp = operand == 4 && bytes[i + 2] & 7 == 4 && rex & B == 0;
                if !of_rsp {
                    *rbp = Some(at);
                }
                continue;
            }
            // xchg
            0x87 if wide(rex, 0) => {
                let is_rsp = |number: u8, bit: u8| number == 4 && rex & bit == 0;
                let is_rbp = |number: u8, bit: u8| number == 5 && rex & bit == 0;
                if is_rbp(register, R) || direct && is_rbp(operand, B) {
                    *rbp = Some(at);
                }
                (is_rsp(register, R) || direct && is_rsp(operand, B), None)
            }
            // xchg rax, rsp
            0x94 if wide(rex, B) => (true, None),
            // pop rsp; where it is the ModR/M byte of `mov [rsp + ...], rbx` and the like it is none
            0x5c if !(0x41..=0x4f).contains(&rex) || rex & B == 0 => {
                (!(modrm == 0x24 && takes_modrm(rex)), None)
            }
            // pop rbp, but for what every function does that leaves
            0x5d if !(0x41..=0x4f).contains(&rex) || rex & B == 0 => {
                if !leaves(modrm) && !takes_modrm(rex) {
                    *rbp = Some(at);
                }
                continue;
            }
            // cmovcc r, r/m: two bytes of opcode
            0x0f if modrm & 0xf0 == 0x40 && wide(rex, R) && bytes[i + 2] >> 3 & 7 == 4 => (true, None),
            // pop rsp, long form; behind 0f it is a jump
            0x8f if modrm == 0xc4 && rex != 0x0f && !(0x41..=0x4f).contains(&rex) => (true, None),
            // leave
            0xc9 => (true, Some(())),
            _ => continue,
        };
        let near = |from: u64| at - from <= NEAR as u64;
        if rsp && (base.is_none() || rbp.is_some_and(near)) {
            found.push(at);
        }
    }
}
