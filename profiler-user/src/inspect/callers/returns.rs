//! Does a function come back to the return address that its caller left on the stack?
//!
//! A call is matched at its return address by the word of the stack that held it. That works whatever the function does with
//! its stack and however it is entered and left, if only it returns through that word, and takes nothing else off the stack.
//! Nothing is replaced, so the target is safe in any case; where a function does it otherwise its calls would not be matched,
//! and it is better not to promise it.
//!
//! Found by its name (`setjmp`, `longjmp`, `vfork`), and by its code: no way out at all (`abort`), `ret n`, a return with something above the return address
//! (a retpoline), the return address taken off the stack or written over, the stack pointer loaded from elsewhere. How far the
//! stack pointer lies below the return address is followed through the branches; where that is lost (`and rsp, -32`, a
//! variable-length array) nothing is held against the function. A call is taken to leave the stack pointer as it was.

use super::super::choice::{Site, SiteChoice, SiteObstacle};
use super::super::exits::{self, Oddity};
use super::super::flow::{self, Edge, IndirectTo, Region};
use super::super::resolve::Function;
use super::super::sites::Body;
use super::super::{Module, stack_switch};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use std::collections::HashMap;

/// As [`super::Inspection::returns_to_its_callers`], by name and code.
pub(super) fn check(module: &Module, function: &Function) -> Result<(), SiteObstacle> {
    // Who only looks at the return address finds the right one.
    let odd = exits::oddity(&function.symbol, &function.aliases).filter(|odd| *odd != Oddity::Reads);
    if let Some(odd) = odd {
        return Err(SiteObstacle(odd.words().into()));
    }
    let Ok(body) = Body::read(module, function) else { return Ok(()) };
    leaves_as_it_came(&body).map_err(SiteObstacle)?;
    if never_returns(&body) {
        return Err(SiteObstacle("it has no way out: it never returns".into()));
    }
    let (Ok(elf), Ok(symbols)) = (module.elf(), module.symbols()) else { return Ok(()) };
    // One that cannot be followed to its end is not shown to switch stacks.
    let switch = stack_switch::find_in(elf, symbols, &body.main, module.searched()).ok().flatten();
    switch.map_or(Ok(()), |found| {
        let at = found.vaddr.wrapping_sub(function.vaddr);
        Err(SiteObstacle(format!(
            "it loads the stack pointer from {} at +{at:#x}: it may come back on another stack",
            found.from
        )))
    })
}

/// The cheapest site of a function at which its return address can be found, once a call.
///
/// # Errors
/// There is none; why.
pub(super) fn entry(sites: &SiteChoice) -> Result<Site, SiteObstacle> {
    sites.trace.as_ref().map_err(|why| SiteObstacle(why.to_string()))?;
    if sites.iterations {
        return Err(SiteObstacle(
            "its start is the head of a loop: each iteration would begin a call".into(),
        ));
    }
    let known = sites.entries.iter().find(|site| site.return_slot.is_some());
    let unknown =
        || SiteObstacle("how far its stack pointer has moved is not known at any of its sites".into());
    known.copied().ok_or_else(unknown)
}

/// Whether all of its control flow is known, and none of it leaves the function.
fn never_returns(body: &Body) -> bool {
    let leaves = |insn: &Instruction| match flow::edge(insn) {
        Edge::Return => true,
        Edge::Jump(to) | Edge::Branch(to) => !body.contains(to),
        Edge::Indirect => {
            let of = body.indirect.iter().find(|(at, _)| *at == insn.ip());
            !matches!(of, Some((_, Some(IndirectTo::Table(_)))))
        }
        // A system call may be the last thing that it does (`exit`), and is not told from others.
        Edge::Next | Edge::Call | Edge::Stop | Edge::Other => false,
    };
    let runs_on = |region: &Region| {
        region.insns.last().is_some_and(|last| matches!(flow::edge(last), Edge::Next | Edge::Branch(_)))
    };
    body.unknown.is_none() && !body.regions().any(|region| runs_on(region) || region.insns.iter().any(leaves))
}

/// Where `rsp` and `rbp` point, as far as it is known: bytes below the word that holds the return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Depth {
    rsp: Option<i64>,
    rbp: Option<i64>,
}

impl Depth {
    const ENTRY: Self = Self { rsp: Some(0), rbp: None };
    const UNKNOWN: Self = Self { rsp: None, rbp: None };

    /// What holds on both ways.
    fn merged(self, other: Self) -> Self {
        let same = |a: Option<i64>, b: Option<i64>| a.filter(|a| Some(*a) == b);
        Self { rsp: same(self.rsp, other.rsp), rbp: same(self.rbp, other.rbp) }
    }
}

/// Judges the code alone.
///
/// # Errors
/// What it does with its return address, in words.
pub(super) fn leaves_as_it_came(body: &Body) -> Result<(), String> {
    let depths = follow(body);
    let mut factory = InstructionInfoFactory::new();
    for region in body.regions() {
        for insn in &region.insns {
            let depth = depths.get(&insn.ip()).copied().unwrap_or(Depth::UNKNOWN);
            let what = match flow::edge(insn) {
                Edge::Return => returns_oddly(insn, depth),
                Edge::Call => calls_itself_inside(body, insn, &mut factory).map(str::to_owned),
                _ => takes_it_away(insn, depth, &mut factory).map(str::to_owned),
            };
            if let Some(what) = what {
                return Err(format!("it {what} at +{:#x}", insn.ip().wrapping_sub(body.main.start)));
            }
        }
    }
    Ok(())
}

fn returns_oddly(insn: &Instruction, depth: Depth) -> Option<String> {
    if insn.mnemonic() != Mnemonic::Ret {
        return Some(format!("leaves by `{:?}`", insn.mnemonic()).to_lowercase());
    }
    let taken = if insn.op_count() == 1 { insn.immediate(0) } else { 0 };
    match (taken, depth.rsp) {
        (1.., _) => Some(format!("takes {taken} bytes off its caller's stack (`ret {taken}`)")),
        (0, Some(above)) if above != 0 => {
            Some("returns to another address than the one that its caller left (a retpoline?)".to_owned())
        }
        _ => None,
    }
}

/// A call to a place inside that takes the address that it has just pushed off the stack again, or writes over it. (Other calls of a
/// place inside are calls of a part that returns.)
fn calls_itself_inside(
    body: &Body,
    insn: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> Option<&'static str> {
    let to = insn.is_call_near().then(|| insn.near_branch_target()).filter(|to| *to != body.main.start)?;
    let region = body.regions().find(|region| region.contains(to))?;
    let mut depth = Depth::ENTRY;
    for insn in &region.insns[region.index_of(to)?..] {
        if flow::edge(insn) != Edge::Next {
            break;
        }
        if takes_it_away(insn, depth, factory).is_some() {
            return Some("calls into its own middle, where the return address is changed (a retpoline?)");
        }
        depth = behind(insn, depth);
    }
    None
}

fn takes_it_away(
    insn: &Instruction,
    depth: Depth,
    factory: &mut InstructionInfoFactory,
) -> Option<&'static str> {
    // Only its own word counts: what a function stores further up are arguments that its caller has left there.
    if stores_at(insn, depth, factory) {
        return Some("writes over its return address");
    }
    let before = depth.rsp?;
    let after = before - flow::stack_change(insn)?;
    (before >= 0 && after < 0).then_some("takes its return address off the stack")
}

/// Whether it stores to the word that holds the return address.
fn stores_at(insn: &Instruction, depth: Depth, factory: &mut InstructionInfoFactory) -> bool {
    if insn.stack_pointer_increment() != 0 {
        return false;
    }
    factory.info(insn).used_memory().iter().any(|memory| {
        let writes = !matches!(
            memory.access(),
            OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
        );
        let from = match memory.base() {
            Register::RSP => depth.rsp,
            Register::RBP => depth.rbp,
            _ => None,
        };
        let own = memory.index() == Register::None && memory.segment() == Register::SS;
        writes && own && from.is_some_and(|from| memory.displacement().cast_signed() == from)
    })
}

/// The depth before each instruction that a way is known to.
fn follow(body: &Body) -> HashMap<u64, Depth> {
    let mut depths = HashMap::new();
    let mut work = vec![(body.main.start, Depth::ENTRY)];
    walk(body, &mut depths, &mut work);
    // Landing pads, and what unresolved jumps lead to: nothing is known there.
    for region in body.regions() {
        for leader in body.leaders.iter().filter(|a| region.contains(**a)) {
            if !depths.contains_key(leader) {
                walk(body, &mut depths, &mut vec![(*leader, Depth::UNKNOWN)]);
            }
        }
    }
    depths
}

/// Each instruction is passed three times at most: what is known of it only becomes less.
fn walk(body: &Body, depths: &mut HashMap<u64, Depth>, work: &mut Vec<(u64, Depth)>) {
    while let Some((at, depth)) = work.pop() {
        let Some(insn) = instruction(body, at) else { continue };
        let merged = depths.get(&at).map_or(depth, |known| known.merged(depth));
        if depths.insert(at, merged) == Some(merged) {
            continue;
        }
        let after = behind(insn, merged);
        match flow::edge(insn) {
            Edge::Next | Edge::Call | Edge::Other => work.push((insn.next_ip(), after)),
            Edge::Branch(to) => work.extend([(to, after), (insn.next_ip(), after)]),
            Edge::Jump(to) => work.push((to, after)),
            Edge::Indirect => {
                let targets = body.indirect.iter().find(|(ip, _)| *ip == insn.ip());
                if let Some((_, Some(IndirectTo::Table(to) | IndirectTo::Either(to)))) = targets {
                    work.extend(to.iter().map(|to| (*to, after)));
                }
            }
            Edge::Return | Edge::Stop => {}
        }
    }
}

fn instruction(body: &Body, at: u64) -> Option<&Instruction> {
    let region: &Region = body.regions().find(|region| region.contains(at))?;
    region.index_of(at).map(|i| &region.insns[i])
}

/// What an instruction makes of the two.
fn behind(insn: &Instruction, depth: Depth) -> Depth {
    let to =
        |r: Register| insn.op_count() > 0 && insn.op0_kind() == OpKind::Register && insn.op0_register() == r;
    let from = |r: Register| insn.op1_kind() == OpKind::Register && insn.op1_register() == r;
    // Below the frame pointer by as much as the displacement says.
    let of_rbp = || {
        let plain = insn.memory_base() == Register::RBP && insn.memory_index() == Register::None;
        plain.then_some(()).and(depth.rbp).map(|rbp| rbp - insn.memory_displacement64().cast_signed())
    };
    // A call leaves both as they were.
    if flow::edge(insn) == Edge::Call {
        return depth;
    }
    let rsp = match insn.mnemonic() {
        // rsp = rbp, then the old rbp is taken off.
        Mnemonic::Leave => depth.rbp.map(|rbp| rbp - 8),
        Mnemonic::Mov if to(Register::RSP) && from(Register::RBP) => depth.rbp,
        Mnemonic::Lea if to(Register::RSP) && insn.memory_base() == Register::RBP => of_rbp(),
        _ => depth.rsp.zip(flow::stack_change(insn)).map(|(rsp, change)| rsp - change),
    };
    let rbp = match insn.mnemonic() {
        Mnemonic::Leave => None,
        Mnemonic::Mov if to(Register::RBP) && from(Register::RSP) => depth.rsp,
        Mnemonic::Lea
            if to(Register::RBP)
                && insn.memory_base() == Register::RSP
                && insn.memory_index() == Register::None =>
        {
            depth.rsp.map(|rsp| rsp - insn.memory_displacement64().cast_signed())
        }
        Mnemonic::Push | Mnemonic::Cmp | Mnemonic::Test => depth.rbp,
        Mnemonic::Xchg | Mnemonic::Enter => None,
        _ if insn.op0_kind() == OpKind::Register && insn.op0_register().full_register() == Register::RBP => {
            None
        }
        _ => depth.rbp,
    };
    Depth { rsp, rbp }
}
