//! Where to put the breakpoint: the cheapest instruction that every call executes exactly once.
//!
//! The instruction under a breakpoint sets its price: `push`, `nop` and branches are emulated by the kernel,
//! everything else is single-stepped, ten times as dear on virtual machines. Among the instructions of the entry
//! block (up to and including the first branch) the cheapest class wins, the first one on a tie.
//!
//! An instruction past the first is allowed only if
//! - (a) the function decodes without gaps,
//! - (b) nothing leads past the function's start up to and including the site: no branch or call of the module
//!   ([`super::text`]), no short jump of the neighbourhood, no symbol, landing pad, or address held in data,
//! - (c) the function has no indirect jump that cannot be resolved.
//!
//! Otherwise the site is the first instruction. x86-64 only.

use super::arguments::{ALL_ARGUMENTS, Passed};
use super::choice::{ExitObstacle, Site, SiteChoice, SiteObstacle, TraceRefusal};
use super::exits;
use super::flow::{self, Edge, IndirectTo, Region, Unknown};
use super::insn::{self, KernelRules, Treatment};
use super::landing;
use super::module::Module;
use super::names::{self, Clone as CloneKind};
use super::resolve::Function;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedRegister};
use profiler_core::class::SiteClass;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

/// Parts of one function that are decoded. GCC makes one of a function, an optimiser of layouts some.
const MOST_PARTS: usize = 64;

/// The function's code, its cold parts, and where its own branches lead.
pub(super) struct Body {
    pub main: Region,
    pub parts: Vec<Region>,
    /// All addresses that branches, tables and landing pads of the function lead to.
    pub leaders: BTreeSet<u64>,
    /// Set when the control flow is not completely known.
    pub unknown: Option<Unknown>,
    /// (address of the jump, where it may lead), for each indirect jump.
    pub indirect: Vec<(u64, Option<IndirectTo>)>,
}

impl Body {
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        std::iter::once(&self.main).chain(&self.parts)
    }

    pub fn contains(&self, vaddr: u64) -> bool {
        self.regions().any(|r| r.contains(vaddr))
    }

    /// Decodes the function and its parts.
    pub fn read(module: &Module, function: &Function) -> Result<Self, String> {
        Self::at(module, function.vaddr, function.size)
    }

    /// The same by link-time address and size, bytes.
    pub fn at(module: &Module, vaddr: u64, size: u64) -> Result<Self, String> {
        let elf = module.elf()?;
        let symbols = module.symbols()?;
        let main = Region::decode(elf, vaddr, size);
        let mut parts: Vec<Region> = Vec::new();
        // A cold part is known by its name, or by unwind data where it has none, *and* by a jump from the function into it.
        let mut queue: Vec<u64> = outside_targets(&main);
        let mut tried = HashSet::new();
        let (mut bytes, mut unknown) = (size, None);
        while let Some(to) = queue.pop() {
            if !tried.insert(to) || main.contains(to) || parts.iter().any(|p| p.contains(to)) {
                continue;
            }
            let covering = symbols.covering(to);
            let cold = covering
                .iter()
                .find(|e| names::clone_kind(&symbols.name(e)) == CloneKind::Cold && e.size > 0);
            let part = match cold {
                Some(cold) => Some((cold.vaddr, cold.size)),
                None if covering.is_empty() => landing::part_at(elf, to),
                None => None,
            };
            let Some((start, size)) = part.filter(|(start, _)| !main.contains(*start)) else { continue };
            // A hostile file may hold any number of parts that overlap.
            bytes = bytes.saturating_add(size);
            if bytes > flow::MAX_FUNCTION_BYTES {
                unknown = Some(Unknown::TooLarge(bytes));
                break;
            }
            if parts.len() == MOST_PARTS {
                unknown = Some(Unknown::TooManyParts(MOST_PARTS));
                break;
            }
            let part = Region::decode(elf, start, size);
            queue.extend(outside_targets(&part));
            parts.push(part);
        }
        let mut body = Self { main, parts, leaders: BTreeSet::new(), unknown: None, indirect: Vec::new() };
        let undecoded = body.regions().find_map(|r| r.unknown.clone());
        body.unknown = undecoded.or(unknown);
        body.find_targets(module, elf);
        Ok(body)
    }

    fn find_targets(&mut self, module: &Module, elf: &super::elf::ElfInfo) {
        let mut leaders = BTreeSet::new();
        let mut indirect = Vec::new();
        // What a table seems to hold between two instructions is not its own: its bound was taken for too large.
        let inside = |to: u64| self.regions().any(|region| region.index_of(to).is_some());
        let mut taken: Option<Vec<u64>> = None;
        for region in self.regions() {
            for (i, insn) in region.insns.iter().enumerate() {
                match flow::edge(insn) {
                    Edge::Jump(to) | Edge::Branch(to) => {
                        leaders.insert(to);
                    }
                    Edge::Indirect => {
                        let taken = taken.get_or_insert_with(|| self.held_addresses(module));
                        let to = flow::resolve_indirect(elf, region, i, &inside, taken);
                        if let Some(IndirectTo::Table(t) | IndirectTo::Either(t)) = &to {
                            leaders.extend(t);
                        }
                        indirect.push((insn.ip(), to));
                    }
                    _ => {}
                }
            }
        }
        let mut pads_unknown = false;
        for region in self.regions() {
            match landing::pads(elf, region.start) {
                Ok(pads) => leaders.extend(pads),
                Err(_) => pads_unknown = true,
            }
        }
        if pads_unknown {
            self.unknown = self.unknown.take().or(Some(Unknown::LandingPads));
        }
        let unresolved = indirect.iter().find(|(_, to)| to.is_none()).map(|(at, _)| *at);
        self.leaders = leaders;
        self.indirect = indirect;
        if let Some(at) = unresolved {
            let offset = at.wrapping_sub(self.main.start);
            self.unknown = self.unknown.take().or(Some(Unknown::IndirectJump(offset)));
        }
        // Branches between the regions must meet instructions as well.
        let mid = self.leaders.iter().find(|&&to| {
            self.regions().any(|r| r.unknown.is_none() && r.contains(to) && r.index_of(to).is_none())
        });
        if let Some(&to) = mid {
            self.unknown =
                self.unknown.take().or(Some(Unknown::MidInstruction(to - self.main.start.min(to))));
        }
    }

    /// Addresses inside the function that are held somewhere in the file, or carry a symbol; not its start, which
    /// everybody may call.
    fn held_addresses(&self, module: &Module) -> Vec<u64> {
        let mut held = Vec::new();
        for region in self.regions() {
            let from = region.start + u64::from(region.start == self.main.start);
            if let Ok(text) = module.text() {
                held.extend(text.all_taken(from, region.end()));
            }
        }
        // Only whole instructions can be meant; other hits of the byte scan are chance.
        held.retain(|&a| self.regions().any(|r| r.index_of(a).is_some()));
        held
    }
}

/// Where the jumps of a region lead that leave it.
pub(super) fn outside_targets(region: &Region) -> Vec<u64> {
    region
        .insns
        .iter()
        .filter_map(|insn| match flow::edge(insn) {
            Edge::Jump(to) | Edge::Branch(to) if !region.contains(to) => Some(to),
            _ => None,
        })
        .collect()
}

/// Chooses the sites of one function.
#[must_use]
pub(super) fn choose(module: &Module, function: &Function, rules: KernelRules) -> SiteChoice {
    let body = match Body::read(module, function) {
        Ok(body) => body,
        Err(why) => return unusable(function, TraceRefusal::Unreadable(why)),
    };
    if body.main.bytes.is_empty() && !matches!(body.main.unknown, Some(Unknown::TooLarge(_))) {
        let why = body.main.unknown.map_or_else(|| "it is empty".to_owned(), |u| u.to_string());
        return unusable(function, TraceRefusal::Unreadable(why));
    }
    let iterations = body.leaders.contains(&function.vaddr);
    let (entries, limit) = entry_sites(module, function, &body, rules, iterations);
    let trace = static_refusal(function, &entries, &limit).and_then(|()| sequence(module, function, &body));
    let first = entries.first().copied().unwrap_or_else(|| site_at(function, 0, SiteClass::Stepped));
    let why = explain(&body.main, first, &limit);
    let return_link = return_link(function, &entries, iterations);
    let exits = if iterations {
        Err(ExitObstacle::NoCalls("its start is the head of a loop, so entries and exits do not pair".into()))
    } else {
        // Whichever of these the caller takes as the entry, exits stand behind it.
        let all_arguments = entries.iter().find(|s| s.arguments == ALL_ARGUMENTS);
        let at_entry_stack = entries.iter().find(|s| s.at_entry_stack);
        let floor =
            [Some(&first), all_arguments, at_entry_stack].into_iter().flatten().map(|s| s.vaddr).max();
        exits::find(module, function, &body, rules, floor.unwrap_or(function.vaddr))
    };
    SiteChoice {
        entry: first,
        return_link_override: entries.iter().copied().find(|s| s.at_entry_stack),
        entries,
        why,
        iterations,
        exits,
        parts: body.parts.iter().map(|part| part.start..part.end()).collect(),
        return_link,
        trace,
        notes: function.remarks.clone(),
    }
}

pub(super) fn unusable(function: &Function, refusal: TraceRefusal) -> SiteChoice {
    let why = refusal.to_string();
    SiteChoice {
        entry: site_at(function, 0, SiteClass::Stepped),
        entries: Vec::new(),
        exits: Err(ExitObstacle::NoCalls(why.clone())),
        parts: Vec::new(),
        return_link_override: None,
        return_link: Err(SiteObstacle(why.clone())),
        why,
        iterations: false,
        trace: Err(refusal),
        notes: function.remarks.clone(),
    }
}

fn static_refusal(function: &Function, entries: &[Site], limit: &str) -> Result<(), TraceRefusal> {
    if function.ifunc {
        return Err(TraceRefusal::IfuncResolver);
    }
    if function.cold {
        return Err(TraceRefusal::ColdPart);
    }
    if function.size == 0 {
        return Err(TraceRefusal::NoSize);
    }
    if entries.is_empty() {
        return Err(TraceRefusal::NoSite(limit.to_owned()));
    }
    Ok(())
}

/// Refuses a function that overlaps a restartable sequence. Where those cannot be read, any address inside a function that
/// is held in data may be the begin of one. (None begins at a function's start: its begin is announced before.)
pub(super) fn sequence(module: &Module, function: &Function, body: &Body) -> Result<(), TraceRefusal> {
    let begin = match module.sequences() {
        Ok(ranges) => {
            let overlaps = |range: &&Range<u64>| {
                let inside = |from: u64, to: u64| from < range.end && range.start < to;
                inside(function.vaddr, function.vaddr.saturating_add(function.size))
                    || body.parts.iter().any(|part| inside(part.start, part.end()))
            };
            ranges.iter().find(overlaps).map(|range| range.start)
        }
        Err(_) => {
            let text = module.text().map_err(|why| TraceRefusal::Unreadable(why.to_owned()))?;
            body.regions().find_map(|region| text.all_taken(region.start + 1, region.end()).next())
        }
    };
    begin.map_or(Ok(()), |at| Err(TraceRefusal::RestartableSequence(at.wrapping_sub(function.vaddr))))
}

fn site_at(function: &Function, offset: u64, class: SiteClass) -> Site {
    Site {
        vaddr: function.vaddr + offset,
        file_offset: function.file_offset + offset,
        offset,
        class,
        arguments: ALL_ARGUMENTS,
        unread: 0,
        at_entry_stack: offset == 0,
        return_slot: (offset == 0).then_some(0),
        keeps_frame: offset == 0,
    }
}

/// The admissible entry sites, cheapest first, and what ended the search.
fn entry_sites(
    module: &Module,
    function: &Function,
    body: &Body,
    rules: KernelRules,
    iterations: bool,
) -> (Vec<Site>, String) {
    let mut sites = Vec::new();
    let mut limit = String::from("the function ends");
    let mut state = EntryState::new();
    let mut refused = None;
    let only_first = only_first(module, body);
    // The first instruction can be judged even where the rest does not decode.
    for insn in &body.main.insns {
        let offset = insn.ip() - function.vaddr;
        if offset > 0 {
            if let Some(why) = &only_first {
                limit.clone_from(why);
                break;
            }
            let extent = function.vaddr..function.vaddr + function.size;
            if let Some(why) = entered_in(module, extent, body, function.vaddr + 1, insn.ip()) {
                limit = why;
                break;
            }
        }
        match insn::treatment(body.main.bytes_of(insn), insn.ip(), rules) {
            Treatment::Refused(why) => refused = refused.or(Some(format!("+{offset:#x}: {why}"))),
            // The optimised five-byte nop pushes onto the stack and overwrites the red zone (fixed in 2026 by the
            // ten-byte nop). At the first instruction of a call nothing lives there; at a loop's head it may.
            Treatment::Probe(_)
                if (state.red_zone_used || iterations)
                    && insn::overwrites_red_zone(body.main.bytes_of(insn), insn.ip(), rules) => {}
            Treatment::Probe(class) => sites.push(Site {
                // What a loop comes round with is not what the caller has passed.
                arguments: if iterations { 0 } else { state.arguments.kept() },
                unread: state.arguments.unread(),
                at_entry_stack: state.depth == Some(0),
                return_slot: state.depth.and_then(|bytes| i16::try_from(bytes / 8).ok()),
                keeps_frame: state.keeps_frame,
                ..site_at(function, offset, class)
            }),
        }
        if !matches!(flow::edge(insn), Edge::Next) {
            limit = format!("`{}` at +{offset:#x} ends the entry block", mnemonic(insn));
            break;
        }
        state.pass(insn);
    }
    sites.sort_by_key(|s| (s.class, s.offset));
    match refused {
        Some(why) if sites.is_empty() => (sites, format!("{why}; {limit}")),
        _ => (sites, limit),
    }
}

/// Rules (a) and (c): why only the first instruction may be used.
fn only_first(module: &Module, body: &Body) -> Option<String> {
    if let Some(unknown) = &body.unknown {
        return Some(unknown.to_string());
    }
    module.text().err().map(str::to_owned)
}

/// Rule (b): what leads into `from ..= to` otherwise than from the instruction before. `extent`: the function or the part of it
/// that holds them; offsets are from its begin.
pub(super) fn entered_in(
    module: &Module,
    extent: Range<u64>,
    body: &Body,
    from: u64,
    to: u64,
) -> Option<String> {
    let at = |a: u64| a.wrapping_sub(extent.start);
    if let Some(&a) = body.leaders.range(from..=to).next() {
        return Some(format!("a branch of its own leads to +{:#x}", at(a)));
    }
    let (text, symbols) = (module.text().ok()?, module.symbols().ok()?);
    if let Some(a) = text.branch_into(from, to) {
        return Some(format!("a branch of the module leads to +{:#x}", at(a)));
    }
    if let Some(a) = text.taken_in(from, to) {
        return Some(format!("the address of +{:#x} is held somewhere", at(a)));
    }
    if symbols.any_label(from, to) {
        return Some(if from == to {
            format!("a symbol stands at +{:#x}", at(to))
        } else {
            format!("a symbol stands in its first {} bytes", at(to))
        });
    }
    super::neighbours::short_jump_into(module, extent.clone(), from, to).map(|a| {
        if from == to {
            format!("a short jump from {a:#x} may lead to +{:#x}", at(to))
        } else {
            format!("a short jump from {a:#x} may lead into its first {} bytes", at(to))
        }
    })
}

/// What the instructions passed so far have done.
struct EntryState {
    /// Bytes between the stack pointer and the return address.
    depth: Option<i64>,
    red_zone_used: bool,
    keeps_frame: bool,
    arguments: Passed,
    factory: InstructionInfoFactory,
}

impl EntryState {
    fn new() -> Self {
        Self {
            depth: Some(0),
            red_zone_used: false,
            keeps_frame: true,
            arguments: Passed::default(),
            factory: InstructionInfoFactory::new(),
        }
    }

    fn pass(&mut self, insn: &Instruction) {
        self.depth = self.depth.zip(flow::stack_change(insn)).map(|(depth, change)| depth - change);
        self.arguments.pass(insn, &mut self.factory);
        let info = self.factory.info(insn);
        let writes = |r: &UsedRegister| {
            r.register().full_register() == Register::RBP
                && !matches!(
                    r.access(),
                    OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
                )
        };
        self.keeps_frame &= !info.used_registers().iter().any(writes);
        // A store to the stack other than push may be below the stack pointer.
        let stores = info.used_memory().iter().any(|m| {
            !matches!(
                m.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
            )
        });
        if stores && insn.mnemonic() != Mnemonic::Push && insn.op0_kind() == OpKind::Memory {
            self.red_zone_used = true;
        }
    }
}

fn return_link(function: &Function, entries: &[Site], iterations: bool) -> Result<Site, SiteObstacle> {
    if iterations {
        return Err(SiteObstacle(
            "its start is the head of a loop: each iteration would add a return link".into(),
        ));
    }
    if let Some(odd) = exits::oddity(&function.symbol, &function.aliases) {
        return Err(SiteObstacle(odd.words().into()));
    }
    entries
        .iter()
        .copied()
        .find(|s| s.at_entry_stack)
        .ok_or_else(|| SiteObstacle("no admissible site before the stack pointer moves".into()))
}

fn explain(main: &Region, entry: Site, limit: &str) -> String {
    let Some(first) = main.insns.first() else { return limit.to_owned() };
    let chosen = main.index_of(entry.vaddr).map_or_else(String::new, |i| mnemonic(&main.insns[i]));
    if entry.offset == 0 {
        return match entry.class {
            SiteClass::Stepped => {
                format!("`{chosen}` at +0 is single-stepped, and nothing cheaper is safe: {limit}")
            }
            class => format!("`{chosen}` at +0 is cheap ({})", class.name()),
        };
    }
    format!(
        "`{chosen}` at +{:#x} ({}) instead of `{}` at +0",
        entry.offset,
        entry.class.name(),
        mnemonic(first)
    )
}

fn mnemonic(insn: &Instruction) -> String {
    format!("{:?}", insn.mnemonic()).to_lowercase()
}
