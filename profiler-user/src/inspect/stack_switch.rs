//! Functions that switch stacks: they load the stack pointer with a value that did not come from it.
//!
//! Input: the code of one module. Output: the first function that loads `rsp` from memory or from a register, where the value
//! is neither the function's own stack pointer moved nor a word of its own frame. Compilers restore `rsp` from registers
//! and frame slots all the time (`leave`, variable-length arrays, realigned frames); those values came from `rsp`. Coroutines
//! and user-level threads load it from an argument or from a context in memory.
//!
//! Two steps, because decoding everything would take ten times as long: a pass over the bytes finds every place where such an
//! instruction can begin; only the functions that hold one are decoded, from their first instruction on. Values are followed
//! through the function's branches: a register counts as good if it does on every way that leads there.
//!
//! Not seen: `rsp` loaded through a vector register or by the kernel (`sigreturn`), code that is made at run time. Samples
//! show those ([`super::stacks`]).

use super::elf::ElfInfo;
use super::flow::{Edge, Region, edge};
use super::landing;
use super::symbols::Symbols;
use super::text::code_of;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use std::collections::HashMap;
use std::io;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// Bytes around a place that the pass looks at.
const BEFORE: usize = 4;
const AFTER: usize = 4;
/// `leave` and its like load `rsp` from `rbp`. They are everywhere, so only those are looked at that follow a load of `rbp`
/// within this many bytes: what switches stacks is short.
const NEAR: usize = 64;
/// Most code that is looked at without a symbol or an unwind table that says where it begins, bytes.
const MAX_GAP: u64 = 64 << 10;
/// Most of one function that is decoded at once, bytes; of a larger one the code around each place.
const MAX_AT_ONCE: u64 = 1 << 20;
/// Bytes that may be decoded beyond twice the code.
const SPARE: u64 = 16 << 20;
/// What one try to decode costs besides its bytes: reading them.
const PLACE_PRICE: u64 = 64;

/// `longjmp` and its like go back to a frame of the same stack. The frames that they leave behind the kernel forgets by itself.
const SAME_STACK: [&str; 9] = [
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__longjmp",
    "__longjmp_chk",
    "____longjmp_chk",
    "__libc_longjmp",
    "__libc_siglongjmp",
    "__libc_unwind_longjmp",
];

/// A function that switches stacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackSwitch {
    /// Its name; its address where it has none.
    pub function: String,
    /// Link-time address of the instruction.
    pub vaddr: u64,
    /// Where the stack pointer comes from, in words.
    pub from: String,
}

/// Looks at all code of a module.
///
/// # Errors
/// The file cannot be read.
///
/// # Cost
/// The pass takes 2.3 to 2.6 ns of CPU time per byte (libcrypto 6 ms, Node 67 ms, LLVM 139 ms, one run each on a busy machine); decoding comes on top.
pub fn find(elf: &ElfInfo, symbols: &Symbols) -> io::Result<Option<StackSwitch>> {
    let mut looked_at = (0, 0);
    let code = code_of(elf)?;
    // Functions that overlap are decoded again and again; ordinary files need a fraction of this.
    let mut budget = 2 * code.iter().map(|c| c.2).sum::<u64>() + SPARE;
    for piece in code {
        let mut error = None;
        let found = each_place(elf, piece, |vaddr| {
            if (looked_at.0..looked_at.1).contains(&vaddr) {
                return None;
            }
            match look_at(elf, symbols, vaddr, &mut looked_at, &mut budget) {
                Ok(found) => found.map(Some),
                Err(why) => {
                    error = Some(why);
                    Some(None)
                }
            }
        })?;
        if let Some(why) = error {
            return Err(why);
        }
        if let Some(found) = found {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The function, or the gap between functions, around one place. `looked_at`: the code that was decoded last, without a gap.
fn look_at(
    elf: &ElfInfo,
    symbols: &Symbols,
    vaddr: u64,
    looked_at: &mut (u64, u64),
    budget: &mut u64,
) -> io::Result<Option<StackSwitch>> {
    let Some(Around { start, end, known }) = function_around(elf, symbols, vaddr) else { return Ok(None) };
    // What was decoded of it already ended in bytes that are no instruction.
    let same = looked_at.0 >= start && looked_at.1 > start && looked_at.1 <= vaddr;
    let from = if same { behind(looked_at.1, vaddr) } else { start };
    let Some(region) = decode_to(elf, from, end, vaddr, budget)? else { return Ok(None) };
    *looked_at = (region.start, region.insns.last().map_or(vaddr + 1, Instruction::next_ip));
    let Some((at, from)) = foreign_load(&region) else { return Ok(None) };
    // Data between functions look like short instructions now and then.
    if !known && region.index_of(at).is_none_or(|i| region.insns[i].len() < 3) {
        return Ok(None);
    }
    let names: Vec<String> = symbols.covering(at).iter().map(|e| symbols.name(e)).collect();
    if names.iter().any(|name| SAME_STACK.contains(&name.as_str())) {
        return Ok(None);
    }
    let function = names.into_iter().next().or_else(|| label_before(elf, at));
    let function = function.unwrap_or_else(|| format!("the code at {at:#x}"));
    Ok(Some(StackSwitch { function, vaddr: at, from }))
}

/// Where decoding goes on behind bytes that are no instruction: what comes after data is taken to be aligned, as assemblers do;
/// where the place itself lies before that, at its prefix.
fn behind(reached: u64, vaddr: u64) -> u64 {
    let aligned = (reached + 1).next_multiple_of(16);
    if aligned <= vaddr { aligned } else { vaddr.saturating_sub(1).max(reached) }
}

/// The code from `start` on, decoded until it holds `vaddr`; none where no instruction can be made of that.
///
/// # Errors
/// The file cannot be read, or too much of it was decoded already.
fn decode_to(
    elf: &ElfInfo,
    start: u64,
    end: u64,
    vaddr: u64,
    budget: &mut u64,
) -> io::Result<Option<Region>> {
    // A piece of a function that is too large to be decoded at once.
    let mut start = if end - start > MAX_AT_ONCE { start.max(vaddr.saturating_sub(MAX_GAP)) } else { start };
    let end = end.min(start + MAX_AT_ONCE);
    let all = elf.read_vaddr(start, (end - start) as usize)?;
    let begin = start;
    loop {
        let spent = budget.checked_sub(PLACE_PRICE);
        *budget = spent.ok_or_else(|| io::Error::other("its functions overlap too often to be decoded"))?;
        let region = Region::decode_bytes(start, all[(start - begin) as usize..].to_vec());
        let reached = region.insns.last().map_or(start, Instruction::next_ip);
        *budget = budget.saturating_sub(reached - start);
        if reached > vaddr {
            return Ok(Some(region));
        }
        // Neither with its prefix nor without.
        if start >= vaddr {
            return Ok(None);
        }
        start = behind(reached, vaddr).max(start + 1);
    }
}

/// The last name in the symbol table at an address or before it, of a function without a size or a label.
fn label_before(elf: &ElfInfo, vaddr: u64) -> Option<String> {
    const ENTRY: usize = 24;
    let table = elf.symtab?;
    let mut best: Option<(u64, u32)> = None;
    for done in (0..table.size).step_by(ENTRY * 4096) {
        let bytes =
            elf.read_at(table.offset + done, (table.size - done).min(ENTRY as u64 * 4096) as usize).ok()?;
        // Elf64_Sym: name u32, info u8, other u8, section u16, value u64, size u64.
        for symbol in bytes.chunks_exact(ENTRY) {
            let name = u32::from_le_bytes(symbol[..4].try_into().ok()?);
            let value = u64::from_le_bytes(symbol[8..16].try_into().ok()?);
            let kind = symbol[4] & 15;
            let near = value <= vaddr && vaddr - value <= MAX_GAP;
            if near && name != 0 && matches!(kind, 0 | 2) && best.is_none_or(|(old, _)| value >= old) {
                best = Some((value, name));
            }
        }
    }
    let at = u64::from(best?.1);
    let bytes =
        elf.read_at(table.names_offset + at, table.names_size.checked_sub(at)?.min(256) as usize).ok()?;
    let name = bytes.split(|&b| b == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// A function, or code that may be one.
struct Around {
    start: u64,
    /// One past the last address.
    end: u64,
    /// A symbol or an unwind table tells; else it is the code between two functions.
    known: bool,
}

/// The function that holds an address: by symbol, by unwind table, else from the last address at which something begins or ends.
fn function_around(elf: &ElfInfo, symbols: &Symbols, vaddr: u64) -> Option<Around> {
    if let Some(entry) = symbols.covering(vaddr).iter().max_by_key(|e| e.size) {
        return Some(Around { start: entry.vaddr, end: entry.vaddr + entry.size, known: true });
    }
    let section = elf.section_at(vaddr).filter(|s| s.exec).map(|s| (s.vaddr, s.vaddr + s.size));
    let segment = || elf.segments.iter().filter(|s| s.exec).map(|s| (s.vaddr, s.vaddr + s.file_size));
    let (first, last) = section.or_else(|| segment().find(|s| (s.0..s.1).contains(&vaddr)))?;
    let table = landing::function_before(elf, vaddr).ok().flatten();
    if let Some((start, size)) = table
        && vaddr - start < size
    {
        return Some(Around { start, end: start + size, known: true });
    }
    let after_table = table.map_or(first, |(start, size)| start + size);
    let (end, next) = symbols.gap_around(vaddr);
    let start = first.max(after_table).max(end).max(vaddr.saturating_sub(MAX_GAP));
    Some(Around { start, end: last.min(next).min(vaddr + MAX_GAP), known: false })
}

/// Calls `f` with every place in a piece of code (link-time address, file offset, size) where an instruction that loads `rsp` can
/// begin (or its opcode can stand), until it answers.
fn each_place<T>(
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
    let all = [0x89, 0x8b, 0x8d, 0x87, 0x94, 0x5c, 0xc9, 0x0f, 0x8f];
    let mut i = 0;
    while i < all.len() {
        table[all[i]] = true;
        i += 1;
    }
    table
};

/// One chunk, with [`BEFORE`] bytes before it and [`AFTER`] behind. `rbp`: where `rbp` was loaded last.
fn scan(bytes: &[u8], vaddr: u64, rbp: &mut Option<u64>, found: &mut Vec<u64>) {
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
            0x89 if direct && wide(rex, B) && operand == 4 => {
                (true, (register == 5 && rex & R == 0).then_some(()))
            }
            0x89 if direct && wide(rex, B) && operand == 5 && !(register == 4 && rex & R == 0) => {
                *rbp = Some(at);
                continue;
            }
            // mov r, r/m
            0x8b if wide(rex, R) && register == 4 => {
                (true, (direct && operand == 5 && rex & B == 0).then_some(()))
            }
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
            // pop rsp, before something that often follows: ret, pop, jmp, a REX prefix, leave
            0x5c if !(0x41..=0x4f).contains(&rex) || rex & B == 0 => {
                (matches!(modrm, 0xc3 | 0x58..=0x5f | 0x41 | 0xff | 0xe9 | 0xeb | 0x48 | 0xc9 | 0xf3), None)
            }
            // cmovcc r, r/m: two bytes of opcode
            0x0f if modrm & 0xf0 == 0x40 && wide(rex, R) && bytes[i + 2] >> 3 & 7 == 4 => (true, None),
            // pop rsp, long form; behind 0f it is a jump
            0x8f if modrm == 0xc4 && rex != 0x0f && !(0x41..=0x4f).contains(&rex) => (true, None),
            // pop rbp tells nothing: it is what every function does that leaves.
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

/// Registers as bits, by their number in the instruction set.
type Registers = u16;

fn bit(register: Register) -> Registers {
    let full = register.full_register();
    if full.is_gpr64() { 1 << (full.number() & 15) } else { 0 }
}

/// rsp, and what a function must give back as it was: where these still hold what they held at the begin, they are the
/// caller's, or (in a cold part) those of the function that jumped here.
fn kept() -> Registers {
    use Register::{R12, R13, R14, R15, RBP, RBX, RSP};
    [RSP, RBX, RBP, R12, R13, R14, R15].into_iter().fold(0, |all, r| all | bit(r))
}

/// A place in memory as an instruction names it: base, index, scale, displacement.
type Slot = (Register, Register, u32, u64);

fn slot(insn: &Instruction) -> Slot {
    (insn.memory_base(), insn.memory_index(), insn.memory_index_scale(), insn.memory_displacement64())
}

/// What a function stores in its frame; filled while it is walked.
#[derive(Default)]
struct Frame {
    /// Values that came from `rsp`.
    good: HashMap<Slot, ()>,
    /// Others.
    other: HashMap<Slot, ()>,
    /// Registers that were pushed while they held a good value.
    pushed: Registers,
}

/// The first instruction that loads `rsp` with a foreign value, and from what.
fn foreign_load(region: &Region) -> Option<(u64, String)> {
    let n = region.insns.len();
    if n == 0 {
        return None;
    }
    let mut frame = Frame::default();
    let mut info = InstructionInfoFactory::new();
    // What stores find out may make a later load good: walk until nothing is learned, a few times at most.
    let mut bad = None;
    for _ in 0..4 {
        let known = (frame.good.len(), frame.other.len(), frame.pushed);
        bad = walk(region, &mut frame, &mut info);
        if bad.is_none() || known == (frame.good.len(), frame.other.len(), frame.pushed) {
            break;
        }
    }
    bad.map(|i| (region.insns[i].ip(), source(&region.insns[i])))
}

/// Walks every branch; the index of the first instruction, by address, that loads `rsp` with a foreign value.
fn walk(region: &Region, frame: &mut Frame, info: &mut InstructionInfoFactory) -> Option<usize> {
    let n = region.insns.len();
    // Good registers before each instruction; not reached yet: all.
    let mut before: Vec<Option<Registers>> = vec![None; n];
    let mut work = vec![(0, kept())];
    let mut next_unreached = 0;
    // What the walk from the begin reached is not changed by what nothing leads to: padding runs into the next loop.
    let mut settled: Vec<bool> = Vec::new();
    loop {
        let Some((i, good)) = work.pop() else {
            // Reached by a jump table or an exception only: registers that a function keeps are taken to be good there.
            while next_unreached < n && before[next_unreached].is_some() {
                next_unreached += 1;
            }
            if next_unreached == n {
                break;
            }
            if settled.is_empty() {
                settled = before.iter().map(Option::is_some).collect();
            }
            work.push((next_unreached, kept()));
            continue;
        };
        if settled.get(i) == Some(&true) {
            continue;
        }
        let merged = before[i].map_or(good, |old| old & good);
        if before[i] == Some(merged) {
            continue;
        }
        before[i] = Some(merged);
        let after = step(&region.insns[i], merged, frame, info).1;
        let to = |target: u64| region.index_of(target);
        let (next, target) = match edge(&region.insns[i]) {
            Edge::Next | Edge::Call | Edge::Other => (true, None),
            Edge::Branch(target) => (true, to(target)),
            Edge::Jump(target) => (false, to(target)),
            Edge::Indirect | Edge::Return | Edge::Stop => (false, None),
        };
        work.extend(target.map(|t| (t, after)));
        if next && i + 1 < n {
            work.push((i + 1, after));
        }
    }
    (0..n).find(|&i| before[i].is_some_and(|good| !step(&region.insns[i], good, frame, info).0))
}

/// One instruction: whether what it does to `rsp` is all right, and the good registers after it.
fn step(
    insn: &Instruction,
    good: Registers,
    frame: &mut Frame,
    info: &mut InstructionInfoFactory,
) -> (bool, Registers) {
    let is_register = |op: u32| op < insn.op_count() && insn.op_kind(op) == OpKind::Register;
    let is_memory = |op: u32| op < insn.op_count() && insn.op_kind(op) == OpKind::Memory;
    let is_good = |r: Register| bit(r) & good != 0;
    let rsp = bit(Register::RSP);
    let set = |r: Register, value: bool| if value { good | bit(r) } else { good & !bit(r) };
    let in_frame = || {
        insn.segment_prefix() == Register::None
            && insn.memory_base() != Register::RIP
            && insn.memory_base() != Register::None
            && is_good(insn.memory_base())
    };
    let (ok, mut after) = match insn.mnemonic() {
        Mnemonic::Mov if is_register(0) && is_register(1) => {
            let value = is_good(insn.op1_register());
            (value, set(insn.op0_register(), value))
        }
        Mnemonic::Mov if is_register(0) && is_memory(1) => {
            let at = slot(insn);
            let value = in_frame() && (frame.good.contains_key(&at) || !frame.other.contains_key(&at));
            (value, set(insn.op0_register(), value))
        }
        Mnemonic::Mov if is_memory(0) && is_register(1) => {
            if in_frame() && insn.op1_register().is_gpr64() {
                let kind = if is_good(insn.op1_register()) { &mut frame.good } else { &mut frame.other };
                kind.insert(slot(insn), ());
            }
            (true, good)
        }
        Mnemonic::Lea => {
            let value = is_good(insn.memory_base()) || is_good(insn.memory_index());
            (value, set(insn.op0_register(), value))
        }
        // Moved by some bytes, or rounded. Of two values one that came from rsp is enough: the other is a distance.
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::And | Mnemonic::Or | Mnemonic::Inc | Mnemonic::Dec
            if is_register(0) =>
        {
            let value = is_good(insn.op0_register()) || is_register(1) && is_good(insn.op1_register());
            (true, set(insn.op0_register(), value))
        }
        Mnemonic::Xchg if is_register(0) && is_register(1) => {
            let (a, b) = (insn.op0_register(), insn.op1_register());
            let (was_a, was_b) = (is_good(a), is_good(b));
            let swapped = good & !bit(a) & !bit(b);
            (was_a && was_b, swapped | if was_b { bit(a) } else { 0 } | if was_a { bit(b) } else { 0 })
        }
        Mnemonic::Xchg if is_register(0) || is_register(1) => {
            let register = if is_register(0) { insn.op0_register() } else { insn.op1_register() };
            (false, set(register, false))
        }
        Mnemonic::Leave => (is_good(Register::RBP), good | bit(Register::RBP)),
        Mnemonic::Enter => (true, good | bit(Register::RBP)),
        Mnemonic::Push if is_register(0) => {
            if is_good(insn.op0_register()) {
                frame.pushed |= bit(insn.op0_register());
            }
            (true, good)
        }
        Mnemonic::Pop if is_register(0) => {
            let r = insn.op0_register();
            let value = frame.pushed & bit(r) != 0 || r != Register::RSP && bit(r) & kept() != 0;
            (value, set(r, value))
        }
        _ => {
            let mut after = good;
            let mut ok = true;
            for used in info.info(insn).used_registers() {
                let writes =
                    !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
                if writes && bit(used.register()) != 0 {
                    // push, call, ret and the like move rsp by themselves.
                    if used.register().full_register() == Register::RSP {
                        ok &= insn.is_stack_instruction();
                    } else {
                        after &= !bit(used.register());
                    }
                }
            }
            (ok, after)
        }
    };
    // Cryptographic assembly keeps its old stack pointer in r10 or r11 over calls of its own parts; a result comes in rax.
    if edge(insn) == Edge::Call {
        after &= if insn.is_call_near() { !bit(Register::RAX) } else { kept() };
    }
    let loads = after & rsp == 0 || !ok;
    let touches = insn.op_count() > 0
        && (is_register(0) && insn.op0_register().full_register() == Register::RSP
            || insn.mnemonic() == Mnemonic::Xchg
                && is_register(1)
                && insn.op1_register().full_register() == Register::RSP)
        || insn.mnemonic() == Mnemonic::Leave;
    // After a switch the new stack is this function's own: one load is enough to tell.
    (!(loads && touches), after | rsp)
}

/// What the stack pointer is loaded from, in words.
fn source(insn: &Instruction) -> String {
    let register = |r: Register| format!("{r:?}").to_lowercase();
    match insn.mnemonic() {
        Mnemonic::Leave => "rbp, which is not its frame's".to_owned(),
        Mnemonic::Pop => "the stack".to_owned(),
        _ if insn.op_count() == 2
            && insn.op0_kind() == OpKind::Register
            && insn.op1_kind() == OpKind::Register =>
        {
            let of =
                if insn.op0_register() == Register::RSP { insn.op1_register() } else { insn.op0_register() };
            register(of)
        }
        Mnemonic::Lea => register(insn.memory_base()),
        _ => match insn.memory_base() {
            Register::RIP => "a global variable".to_owned(),
            Register::None => "thread-local or absolute memory".to_owned(),
            base => format!("memory at {}", register(base)),
        },
    }
}

#[cfg(test)]
#[path = "stack_switch/tests.rs"]
mod tests;
