//! Which instruction behind a call its return is seen at.
//!
//! The first one that may be probed, from the return address on, in the straight run that every return passes: no branch,
//! call or system call between, nothing that something else is known to lead to, and each change of the stack pointer known.
//! Such a run holds instructions, whatever else the function holds. The word that held the return address lies right below the stack pointer at the return address; `push`, `pop` and `sub rsp`
//! behind it are followed.
//!
//! Input: decoded code and who else leads where. Judges nothing but the run.

use super::super::flow::{self, Edge, Region};
use super::super::insn::{self, KernelRules, Treatment};
use super::ReturnSite;
use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};
use profiler_core::class::SiteClass;

/// The run is followed this far, bytes: some thirty instructions, ten nanoseconds at one a cycle. What the caller does
/// there counts as the call's, so it must stay below what a time stamp resolves (docs/design.md).
pub(super) const MOST_BYTES: u64 = 120;
/// A cheaper instruction is looked for among this many, as for exit sites.
const NEAR: usize = 8;

/// Who else leads to places of the run.
pub(super) struct Entries<'a> {
    /// All jumps of the caller are known; else any place of the run may be led to.
    pub known: bool,
    /// What leads to an address besides the instruction before it, as far as it is known, in words.
    pub to: &'a dyn Fn(u64) -> Option<String>,
}

/// The sites of one return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    pub first: ReturnSite,
    pub cheaper: Option<ReturnSite>,
}

/// Looks from the instruction at index `at`, which stands at the return address, on. File offsets are left 0.
///
/// # Errors
/// Why no instruction can be probed, in words, offsets from `origin`.
pub(super) fn places(
    region: &Region,
    at: usize,
    origin: u64,
    rules: KernelRules,
    entries: &Entries<'_>,
) -> Result<Places, String> {
    let start = region.insns[at].ip();
    let mut run = Run { slot: -8, joined: !entries.known, factory: InstructionInfoFactory::new() };
    let mut first: Option<ReturnSite> = None;
    let mut refused: Option<String> = None;
    let mut limit = "the code ends".to_owned();
    for (number, insn) in region.insns[at..].iter().enumerate() {
        let (distance, offset) = (insn.ip() - start, insn.ip().wrapping_sub(origin));
        if distance > MOST_BYTES || first.is_some() && number > NEAR {
            limit = format!("what stands {distance} bytes behind the return address is too far away");
            break;
        }
        let lead = (entries.to)(insn.ip());
        run.joined |= lead.is_some();
        match treatment(region, insn, rules) {
            Err(why) => refused = refused.or_else(|| Some(format!("+{offset:#x}: {why}"))),
            Ok(class) => {
                let site = run.site(insn, class, distance);
                match &first {
                    None if class < SiteClass::Stepped => return Ok(Places { first: site, cheaper: None }),
                    None => first = Some(site),
                    // More hits would be no returns.
                    Some(_) if lead.is_some() => {}
                    Some(first) if class < first.class => {
                        return Ok(Places { first: *first, cheaper: Some(site) });
                    }
                    Some(_) => {}
                }
            }
        }
        if let (Some(why), 1..) = (lead, distance) {
            limit = why;
            break;
        }
        if let Err(why) = run.pass(insn) {
            limit = format!("`{}` at +{offset:#x} {why}", name(insn));
            break;
        }
    }
    match (first, refused) {
        (Some(first), _) => Ok(Places { first, cheaper: None }),
        (None, Some(refused)) => Err(format!("{refused}; {limit}")),
        (None, None) => Err(limit),
    }
}

/// As everywhere but for nops of five bytes: the kernel may put a call there, which writes below the stack pointer, and what
/// jumps into its middle would break.
fn treatment(region: &Region, insn: &Instruction, rules: KernelRules) -> Result<SiteClass, String> {
    let bytes = region.bytes_of(insn);
    match insn::treatment(bytes, insn.ip(), rules) {
        Treatment::Refused(why) => Err(why.to_string()),
        Treatment::Probe(_) if insn::overwrites_red_zone(bytes, insn.ip(), rules) => {
            Err("a nop of five bytes may become a call, which is safe at a function's begin only".to_owned())
        }
        Treatment::Probe(class) => Ok(class),
    }
}

/// What is known at one instruction of the run.
struct Run {
    /// Bytes from the stack pointer to the word that held the return address.
    slot: i64,
    joined: bool,
    factory: InstructionInfoFactory,
}

impl Run {
    fn site(&self, insn: &Instruction, class: SiteClass, distance: u64) -> ReturnSite {
        ReturnSite {
            vaddr: insn.ip(),
            file_offset: 0,
            // OK because an instruction has at most 15 bytes, and `pass` has looked at the slot.
            length: insn.len() as u8,
            class,
            distance: distance as u8, // OK because it is at most `MOST_BYTES`.
            return_slot: (self.slot / 8) as i16,
            joined: self.joined,
        }
    }

    /// Goes behind an instruction.
    fn pass(&mut self, insn: &Instruction) -> Result<(), &'static str> {
        if flow::edge(insn) != Edge::Next {
            return Err("ends the straight run");
        }
        if insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix()) {
            return Err("may take long");
        }
        let change = self.moved(insn).ok_or("moves the stack pointer in a way that is not followed")?;
        self.slot -= change;
        if self.slot % 8 != 0 || i16::try_from(self.slot / 8).is_err() {
            return Err("moves the stack pointer by a distance that is not followed");
        }
        Ok(())
    }

    /// Bytes that an instruction adds to the stack pointer; `None` if that cannot be told.
    fn moved(&mut self, insn: &Instruction) -> Option<i64> {
        let writes = self.factory.info(insn).used_registers().iter().any(|used| {
            used.register().full_register() == Register::RSP
                && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
        });
        if !writes {
            return Some(0);
        }
        let operand =
            (insn.op_count() > 0 && insn.op0_kind() == OpKind::Register).then(|| insn.op0_register());
        let part = operand.is_some_and(|r| r != Register::RSP && r.full_register() == Register::RSP);
        // `xadd` and its like write their second operand.
        let other = insn.stack_pointer_increment() == 0 && operand != Some(Register::RSP);
        if part || other { None } else { flow::stack_change(insn) }
    }
}

fn name(insn: &Instruction) -> String {
    format!("{:?}", insn.mnemonic()).to_lowercase()
}
