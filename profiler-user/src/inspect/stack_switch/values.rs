//! Where values come from: followed through the branches of one function, instruction by instruction.
//!
//! A register is *good* if its value came from the function's own stack pointer on every way that leads there. Registers that a
//! function must give back as it got them are another kind until it writes them: at the begin of a function they are the
//! caller's, in a cold part those of the function that jumped there.

use super::super::flow::{Edge, Region, edge};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use std::collections::HashMap;

/// Registers as bits, by their number in the instruction set.
pub(super) type Registers = u16;

pub(super) fn bit(register: Register) -> Registers {
    let full = register.full_register();
    if full.is_gpr64() { 1 << (full.number() & 15) } else { 0 }
}

/// rsp, and what a function must give back as it was.
pub(super) fn kept() -> Registers {
    use Register::{R12, R13, R14, R15, RBP, RBX, RSP};
    [RSP, RBX, RBP, R12, R13, R14, R15].into_iter().fold(0, |all, r| all | bit(r))
}

/// What the registers hold before the first instruction of some code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// A function, which is called: what it must give back is the caller's.
    Function,
    /// Perhaps a part of a function, which is jumped to: what it must give back may have come from `rsp`.
    Part,
}

/// A value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Value {
    /// It came from `rsp`.
    good: bool,
    /// Good, or as the caller left it.
    kept: bool,
}

impl Value {
    const FOREIGN: Self = Self { good: false, kept: false };
    const GOOD: Self = Self { good: true, kept: true };

    fn good(good: bool) -> Self {
        if good { Self::GOOD } else { Self::FOREIGN }
    }
}

/// The values on top of the stack, as far as they were pushed one after the other: the newest is bit 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Pushed {
    count: u32,
    good: u32,
    kept: u32,
}

impl Pushed {
    const NONE: Self = Self { count: 0, good: 0, kept: 0 };

    fn push(self, value: Value) -> Self {
        Self {
            count: (self.count + 1).min(u32::BITS - 1),
            good: self.good << 1 | u32::from(value.good),
            kept: self.kept << 1 | u32::from(value.kept),
        }
    }

    /// The newest value, where it is known, and the rest.
    fn pop(self) -> (Option<Value>, Self) {
        if self.count == 0 {
            return (None, self);
        }
        let value = Value { good: self.good & 1 != 0, kept: self.kept & 1 != 0 };
        (Some(value), Self { count: self.count - 1, good: self.good >> 1, kept: self.kept >> 1 })
    }

    /// A store to `rsp` + `offset` bytes.
    fn store(self, offset: u64, value: Value) -> Self {
        let index = offset / 8;
        if index >= u64::from(self.count) {
            return self;
        }
        let with = |bits: u32, on: bool| bits & !(1 << index) | u32::from(on) << index;
        Self { good: with(self.good, value.good), kept: with(self.kept, value.kept), ..self }
    }

    fn merged(self, other: Self) -> Self {
        let count = self.count.min(other.count);
        let mask = (1 << count) - 1;
        Self { count, good: self.good & other.good & mask, kept: self.kept & other.kept & mask }
    }
}

/// What is known before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    /// Registers with a good value.
    good: Registers,
    /// Those, and registers as the caller left them.
    kept: Registers,
    pushed: Pushed,
}

impl State {
    fn at(begin: Begin) -> Self {
        let good = match begin {
            Begin::Function => bit(Register::RSP),
            Begin::Part => kept(),
        };
        Self { good, kept: kept(), pushed: Pushed::NONE }
    }

    fn of(&self, register: Register) -> Value {
        let bit = bit(register);
        Value { good: self.good & bit != 0, kept: self.kept & bit != 0 }
    }

    fn set(&mut self, register: Register, value: Value) {
        let bit = bit(register);
        self.good = self.good & !bit | if value.good { bit } else { 0 };
        self.kept = self.kept & !bit | if value.kept { bit } else { 0 };
    }

    fn merged(self, other: Self) -> Self {
        Self {
            good: self.good & other.good,
            kept: self.kept & other.kept,
            pushed: self.pushed.merged(other.pushed),
        }
    }
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

impl Frame {
    fn store(&mut self, at: Slot, value: Value) {
        match value {
            Value { good: true, .. } => self.good.insert(at, ()),
            Value { kept: false, .. } => self.other.insert(at, ()),
            // Registers are saved there for the caller.
            Value { .. } => None,
        };
    }

    fn load(&self, at: Slot) -> Value {
        Value::good(self.good.contains_key(&at) || !self.other.contains_key(&at))
    }
}

/// Tells which registers a called function may write, by its address; all where that is not known.
pub(super) type Clobbers<'a> = dyn FnMut(u64) -> Registers + 'a;

/// Visits per instruction, over all walks through some code. A state can change some 100 times at most; compiled code needs far fewer.
const MAX_VISITS: usize = 64;
/// Visits that even the shortest code has.
const SPARE_VISITS: usize = 4096;

/// The branches of some code lead to each other so often that they are not followed to the end.
#[derive(Debug)]
pub(super) struct TooTangled;

/// The instructions, by index and in order of their addresses, that load `rsp` with a foreign value. `clobbers` is asked only where the
/// answer matters.
///
/// # Errors
/// More instructions would have to be visited than [`MAX_VISITS`] allows.
pub(super) fn foreign_loads(
    region: &Region,
    begin: Begin,
    clobbers: &mut Clobbers<'_>,
) -> Result<Vec<usize>, TooTangled> {
    let left = region.insns.len() * MAX_VISITS + SPARE_VISITS;
    let mut walk =
        Walk { region, frame: Frame::default(), info: InstructionInfoFactory::new(), begin, clobbers, left };
    let mut bad = Vec::new();
    // What stores find out may make a later load good: walk until nothing is learned, a few times at most.
    for _ in 0..4 {
        let known = |frame: &Frame| (frame.good.len(), frame.other.len(), frame.pushed);
        let before = known(&walk.frame);
        bad = walk.all()?;
        if bad.is_empty() || before == known(&walk.frame) {
            break;
        }
    }
    Ok(bad)
}

struct Walk<'a, 'b> {
    region: &'a Region,
    frame: Frame,
    info: InstructionInfoFactory,
    begin: Begin,
    clobbers: &'a mut Clobbers<'b>,
    /// Instructions that may still be visited.
    left: usize,
}

/// What is known after an instruction.
struct After {
    state: State,
    /// `rsp` was loaded with a value that is none of this stack's.
    foreign: bool,
}

impl After {
    /// A value comes into a register.
    fn load(&mut self, register: Register, value: Value) {
        self.foreign |= register.full_register() == Register::RSP && !value.good;
        self.state.set(register, value);
        if register.full_register() == Register::RSP {
            self.state.pushed = Pushed::NONE;
        }
    }
}

fn is_register(insn: &Instruction, op: u32) -> bool {
    op < insn.op_count() && insn.op_kind(op) == OpKind::Register
}

fn is_memory(insn: &Instruction, op: u32) -> bool {
    op < insn.op_count() && insn.op_kind(op) == OpKind::Memory
}

/// True if the memory operand lies in this stack.
fn in_frame(insn: &Instruction, state: &State) -> bool {
    insn.segment_prefix() == Register::None
        && insn.memory_base() != Register::RIP
        && insn.memory_base() != Register::None
        && state.of(insn.memory_base()).good
}

impl Walk<'_, '_> {
    /// Every branch; the instructions that load `rsp` with a foreign value.
    fn all(&mut self) -> Result<Vec<usize>, TooTangled> {
        let n = self.region.insns.len();
        let mut before: Vec<Option<State>> = vec![None; n];
        let mut work = vec![(0, State::at(self.begin))];
        let mut next_unreached = 0;
        // What the walk from the begin reached is not changed by what nothing leads to: padding runs into the next loop.
        let mut settled: Vec<bool> = Vec::new();
        loop {
            let Some((i, state)) = work.pop() else {
                // Reached by a jump table or an exception only: the frame is there by then.
                while next_unreached < n && before[next_unreached].is_some() {
                    next_unreached += 1;
                }
                if next_unreached == n {
                    break;
                }
                if settled.is_empty() {
                    settled = before.iter().map(Option::is_some).collect();
                }
                work.push((next_unreached, State::at(Begin::Part)));
                continue;
            };
            if i >= n || settled.get(i) == Some(&true) {
                continue;
            }
            self.left = self.left.checked_sub(1).ok_or(TooTangled)?;
            let merged = before[i].map_or(state, |old| old.merged(state));
            if before[i] == Some(merged) {
                continue;
            }
            before[i] = Some(merged);
            let region = self.region;
            let after = self.step(&region.insns[i], merged).1;
            let to = |target: u64| region.index_of(target);
            let (next, target) = match edge(&region.insns[i]) {
                Edge::Next | Edge::Call | Edge::Other => (true, None),
                Edge::Branch(target) => (true, to(target)),
                Edge::Jump(target) => (false, to(target)),
                Edge::Indirect | Edge::Return | Edge::Stop => (false, None),
            };
            work.extend(target.map(|t| (t, after)));
            if next {
                work.push((i + 1, after));
            }
        }
        let region = self.region;
        Ok((0..n).filter(|&i| before[i].is_some_and(|state| !self.step(&region.insns[i], state).0)).collect())
    }

    /// One instruction: whether what it does to `rsp` is all right, and what is known after it.
    fn step(&mut self, insn: &Instruction, state: State) -> (bool, State) {
        let mut after = After { state, foreign: false };
        if !self.moves(insn, &state, &mut after) && !self.pushes(insn, &state, &mut after) {
            self.writes(insn, &mut after);
        }
        let After { state: mut after, foreign } = after;
        if edge(insn) == Edge::Call {
            self.call(insn, &mut after);
        }
        // After a switch the new stack is this function's own: one load is enough to tell.
        after.set(Register::RSP, Value::GOOD);
        (!foreign, after)
    }

    /// Copies and sums whose values are followed. `false`: it is none.
    fn moves(&mut self, insn: &Instruction, state: &State, after: &mut After) -> bool {
        match insn.mnemonic() {
            Mnemonic::Mov if is_register(insn, 0) && is_register(insn, 1) => {
                after.load(insn.op0_register(), state.of(insn.op1_register()));
            }
            Mnemonic::Mov if is_register(insn, 0) && is_memory(insn, 1) => {
                let value = if in_frame(insn, state) { self.frame.load(slot(insn)) } else { Value::FOREIGN };
                after.load(insn.op0_register(), value);
            }
            Mnemonic::Mov if is_memory(insn, 0) && is_register(insn, 1) => {
                let whole = insn.op1_register().is_gpr64();
                let value = if whole { state.of(insn.op1_register()) } else { Value::FOREIGN };
                if in_frame(insn, state) && whole {
                    self.frame.store(slot(insn), value);
                }
                if insn.memory_base() == Register::RSP && insn.memory_index() == Register::None {
                    after.state.pushed = after.state.pushed.store(insn.memory_displacement64(), value);
                }
            }
            Mnemonic::Lea => {
                let value = state.of(insn.memory_base()).good || state.of(insn.memory_index()).good;
                after.load(insn.op0_register(), Value::good(value));
            }
            // Moved by some bytes, or rounded. Of two values one that came from rsp is enough: the other is a distance.
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::And | Mnemonic::Or | Mnemonic::Inc | Mnemonic::Dec
                if is_register(insn, 0) =>
            {
                let other = is_register(insn, 1) && state.of(insn.op1_register()).good;
                let value = state.of(insn.op0_register()).good || other;
                after.load(insn.op0_register(), Value::good(value));
            }
            Mnemonic::Xchg if is_register(insn, 0) && is_register(insn, 1) => {
                let (a, b) = (insn.op0_register(), insn.op1_register());
                after.load(a, state.of(b));
                after.load(b, state.of(a));
            }
            Mnemonic::Xchg if is_register(insn, 0) || is_register(insn, 1) => {
                let register = if is_register(insn, 0) { insn.op0_register() } else { insn.op1_register() };
                after.load(register, Value::FOREIGN);
            }
            _ => return false,
        }
        true
    }

    /// What pushes, pops, and makes or leaves a frame. `false`: it is none.
    fn pushes(&mut self, insn: &Instruction, state: &State, after: &mut After) -> bool {
        match insn.mnemonic() {
            Mnemonic::Leave => {
                after.load(Register::RSP, state.of(Register::RBP));
                after.state.set(Register::RBP, Value::GOOD);
            }
            Mnemonic::Enter => {
                after.state.set(Register::RBP, Value::GOOD);
                after.state.pushed = Pushed::NONE;
            }
            Mnemonic::Push if is_register(insn, 0) => {
                let value = state.of(insn.op0_register());
                if value.good {
                    self.frame.pushed |= bit(insn.op0_register());
                }
                after.state.pushed = after.state.pushed.push(value);
            }
            Mnemonic::Push => {
                let value = if is_memory(insn, 0) && in_frame(insn, state) {
                    self.frame.load(slot(insn))
                } else {
                    Value::FOREIGN
                };
                after.state.pushed = after.state.pushed.push(value);
            }
            Mnemonic::Pop if is_register(insn, 0) => {
                let r = insn.op0_register();
                let (value, rest) = state.pushed.pop();
                // What was pushed is not known: what functions restore before they return.
                let restored = self.frame.pushed & bit(r) != 0 || r != Register::RSP && bit(r) & kept() != 0;
                after.state.pushed = rest;
                after.load(r, value.unwrap_or(Value::good(restored)));
            }
            _ => return false,
        }
        true
    }

    /// Any other instruction: what it writes to registers is foreign.
    fn writes(&mut self, insn: &Instruction, after: &mut After) {
        for used in self.info.info(insn).used_registers() {
            let writes =
                !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
            if !writes || bit(used.register()) == 0 {
                continue;
            }
            // push, call, ret and the like move rsp by themselves.
            if used.register().full_register() == Register::RSP && insn.is_stack_instruction() {
                if edge(insn) != Edge::Call {
                    after.state.pushed = Pushed::NONE;
                }
            } else {
                after.load(used.register(), Value::FOREIGN);
            }
        }
    }

    /// What is left in the registers after a call.
    fn call(&mut self, insn: &Instruction, after: &mut State) {
        // Cryptographic assembly keeps its old stack pointer in rax, r10 or r11 over calls of its own parts, compilers in r10 or r11.
        let scratch = after.good & !kept();
        if scratch != 0 {
            let written = match insn.is_call_near().then(|| (self.clobbers)(insn.near_branch_target())) {
                // It cannot be followed. A result comes in rax.
                Some(Registers::MAX) => bit(Register::RAX),
                Some(written) => written,
                None => scratch,
            };
            after.good &= !(written & scratch);
            after.kept &= !(written & scratch);
        }
        // One that does not return is followed by any other branch of the function: nothing is held against it.
        after.good |= after.kept;
    }
}

/// What the stack pointer is loaded from, in words.
pub(super) fn source(insn: &Instruction) -> String {
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
