//! One return address after the other, of one module: who holds it, does a call end there, and what may be probed.

use super::super::elf::ElfInfo;
use super::super::flow::{self, Edge, Region, Unknown};
use super::super::insn::KernelRules;
use super::super::resolve::{self, Function};
use super::super::sites::{self, Body};
use super::super::{Module, TraceRefusal, landing};
use super::callee::{self, Memory};
use super::place::{self, Entries, Places};
use super::{CallerBudget, CallerError, CallerSite, ReturnSite};
use iced_x86::Instruction;
use std::time::Instant;

/// What a search has taken.
pub(super) struct Spent {
    begun: Instant,
    left: u64,
    budget: CallerBudget,
}

impl Spent {
    pub fn of(budget: CallerBudget) -> Self {
        Self { begun: Instant::now(), left: budget.bytes, budget }
    }

    /// Another caller of this size is decoded.
    fn take(&mut self, bytes: u64) -> Result<(), CallerError> {
        if self.begun.elapsed() >= self.budget.time {
            let ms = self.budget.time.as_millis();
            return Err(CallerError::NotLookedAt(format!("the {ms} ms for callers are over")));
        }
        let over =
            || CallerError::NotLookedAt(format!("{} KiB of callers were decoded", self.budget.bytes >> 10));
        self.left = self.left.checked_sub(bytes).ok_or_else(over)?;
        Ok(())
    }
}

/// A caller, decoded.
struct Caller {
    /// Link-time address by which it was looked for: of its symbol, or of its entry in the unwind table.
    key: u64,
    function: Function,
    body: Body,
    /// Why not all of its jumps are known.
    unknown: Option<String>,
    refused: Result<(), TraceRefusal>,
}

/// A return address that was looked at.
pub(super) struct Judged {
    pub call: Instruction,
    pub places: Places,
    /// Why not all jumps of the caller are known.
    pub unknown: Option<String>,
}

/// The callers of one module.
pub(super) struct Judge<'a> {
    module: &'a Module,
    index: usize,
    rules: KernelRules,
    /// The one that was looked at last: addresses come sorted.
    last: Option<Caller>,
}

impl<'a> Judge<'a> {
    pub fn new(module: &'a Module, index: usize, rules: KernelRules) -> Self {
        Self { module, index, rules, last: None }
    }

    /// Judges an address in the process.
    pub fn at_address(
        &mut self,
        address: u64,
        memory: &Memory<'_>,
        spent: &mut Spent,
    ) -> Result<CallerSite, CallerError> {
        let elf = self.elf()?;
        let vaddr = self.module.vaddr_of_address(address).ok_or(CallerError::NotMapped(address))?;
        let Judged { call, places, .. } = self.judge(vaddr, spent)?;
        Ok(CallerSite {
            return_address: address,
            module: self.index,
            call_vaddr: call.ip(),
            direct: callee::of_call(elf, memory, &call, address.wrapping_sub(vaddr)),
            site: places.first,
            cheaper: places.cheaper,
        })
    }

    /// Judges a link-time address.
    pub fn judge(&mut self, vaddr: u64, spent: &mut Spent) -> Result<Judged, CallerError> {
        let elf = self.elf()?;
        let before = vaddr.wrapping_sub(1);
        if !elf.is_code(before) {
            return Err(CallerError::NotMapped(vaddr));
        }
        let (module, rules) = (self.module, self.rules);
        let caller = self.caller_of(elf, before, spent)?;
        let Caller { function, body, unknown, refused, .. } = caller;
        refused.clone().map_err(CallerError::Refused)?;
        let offset = vaddr.wrapping_sub(function.vaddr);
        let no_call = || CallerError::NoCall { function: function.name.clone(), offset };
        let region = body.regions().find(|region| region.contains(before)).ok_or_else(no_call)?;
        let at = behind_call(region, body, vaddr).map_err(|why| match why {
            Some(why) => CallerError::Undecoded { function: function.name.clone(), offset, why },
            None => no_call(),
        })?;
        let call = region.insns[at - 1];
        let extent = region.start..region.end();
        let to = |at: u64| sites::entered_in(module, extent.clone(), body, at, at);
        let entries = Entries { known: unknown.is_none(), to: &to };
        let no_site = |why| CallerError::NoSite {
            function: function.name.clone(),
            offset: call.ip().wrapping_sub(function.vaddr),
            why,
        };
        let Places { first, cheaper } =
            place::places(region, at, function.vaddr, rules, &entries).map_err(no_site)?;
        let in_file = |site: ReturnSite| {
            let file_offset = elf.offset_of(site.vaddr);
            file_offset
                .map(|file_offset| ReturnSite { file_offset, ..site })
                .ok_or_else(|| no_site("its code is not in the file".to_owned()))
        };
        let places = Places { first: in_file(first)?, cheaper: cheaper.map(in_file).transpose()? };
        Ok(Judged { call, places, unknown: unknown.clone() })
    }

    fn elf(&self) -> Result<&'a ElfInfo, CallerError> {
        let unreadable = |why: &str| CallerError::Refused(TraceRefusal::Unreadable(why.to_owned()));
        self.module.elf().map(|elf| &**elf).map_err(unreadable)
    }

    /// The function that holds a byte of a call.
    fn caller_of(&mut self, elf: &ElfInfo, at: u64, spent: &mut Spent) -> Result<&Caller, CallerError> {
        let symbols = self.module.symbols().ok();
        let symbol = symbols.and_then(|symbols| symbols.covering(at).first()).map(|entry| entry.vaddr);
        let unwound = || landing::function_at(elf, at).ok().flatten();
        let (key, size) = match symbol {
            Some(start) => (start, None),
            None => unwound().map(|(start, size)| (start, Some(size))).ok_or(CallerError::NoFunction)?,
        };
        if self.last.as_ref().is_none_or(|last| last.key != key) {
            self.last = None;
            let function = match size {
                None => resolve::function_of(self.module, self.index, key),
                Some(size) => resolve::without_name(self.module, self.index, key, size),
            };
            let caller = self.read(key, function.ok_or(CallerError::NoFunction)?, at, spent)?;
            self.last = Some(caller);
        }
        self.last.as_ref().ok_or(CallerError::NoFunction)
    }

    /// Decodes a caller: of a cold part, the function that it belongs to.
    fn read(&self, key: u64, function: Function, at: u64, spent: &mut Spent) -> Result<Caller, CallerError> {
        let unreadable = |why| CallerError::Refused(TraceRefusal::Unreadable(why));
        spent.take(function.size)?;
        if let Some(owner) = self.owner_of(&function) {
            spent.take(owner.size)?;
            let body = Body::read(self.module, &owner).map_err(unreadable)?;
            if body.contains(at) {
                return Ok(self.caller(key, owner, body, None));
            }
        }
        let apart = function.cold.then(|| "the function that it is a cold part of is not known".to_owned());
        let body = Body::read(self.module, &function).map_err(unreadable)?;
        Ok(self.caller(key, function, body, apart))
    }

    /// The function that a cold part belongs to: the part has its name, and jumps back into it.
    fn owner_of(&self, part: &Function) -> Option<Function> {
        let (stem, _) = part.symbol.split_once(".cold").filter(|_| part.cold)?;
        let (elf, symbols) = (self.module.elf().ok()?, self.module.symbols().ok()?);
        let region = Region::decode(elf, part.vaddr, part.size);
        let start = sites::outside_targets(&region).into_iter().find_map(|to| {
            symbols.covering(to).iter().find(|entry| symbols.name(entry) == stem).map(|entry| entry.vaddr)
        })?;
        resolve::function_of(self.module, self.index, start)
    }

    fn caller(&self, key: u64, function: Function, body: Body, unknown: Option<String>) -> Caller {
        let unknown = unknown
            .or_else(|| body.unknown.as_ref().map(ToString::to_string))
            .or_else(|| self.module.text().err().map(str::to_owned));
        let refused = sites::sequence(self.module, &function, &body);
        Caller { key, function, body, unknown, refused }
    }
}

/// Index of the instruction that begins at `vaddr`, right behind a call; else why that cannot be told, or nothing where it is no
/// return address. Data between the instructions could be what stands behind a call that does not come back, so there must be none.
fn behind_call(region: &Region, body: &Body, vaddr: u64) -> Result<usize, Option<String>> {
    let out_of_step = body.unknown.as_ref().filter(|why| matches!(why, Unknown::MidInstruction(_)));
    if let Some(why) = region.unknown.as_ref().or(out_of_step) {
        return Err(Some(why.to_string()));
    }
    let at = match region.index_of(vaddr) {
        Some(at) => at,
        None if vaddr == region.end() => return Err(Some("nothing stands behind its last call".to_owned())),
        None => return Err(None),
    };
    let call = at.checked_sub(1).map(|i| &region.insns[i]);
    let is_call = call.is_some_and(|call| flow::edge(call) == Edge::Call && call.next_ip() == vaddr);
    if is_call { Ok(at) } else { Err(None) }
}
