//! One return address after the other, of one module: who holds it, does a call end there, and what may be probed.

use super::super::elf::ElfInfo;
use super::super::flow::{self, Edge, Region, Unknown};
use super::super::insn::KernelRules;
use super::super::resolve::{self, Function};
use super::super::sites::{self, Body};
use super::super::{Module, TraceRefusal, landing};
use super::callee::{self, Memory};
use super::place::{self, Entries, Places};
use super::{CallerBudget, CallerError, CallerSite, ReturnSite, reached};
use iced_x86::Instruction;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Larger callers are not looked at: decoded at some 100 MiB a second, 1 MiB takes 10 ms, and one that is being decoded is not left. The
/// largest function of the programs in docs/benchmarks-conformance.md has 76 KiB.
pub(super) const MOST_CALLER_BYTES: u64 = 1 << 20;

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

    /// Whether there is time left.
    fn in_time(&self) -> Result<(), CallerError> {
        if self.begun.elapsed() < self.budget.time {
            return Ok(());
        }
        let ms = self.budget.time.as_millis();
        Err(CallerError::NotLookedAt(format!("the {ms} ms for callers are over")))
    }

    /// Another function of this size is decoded.
    fn take(&mut self, bytes: u64) -> Result<(), CallerError> {
        self.in_time()?;
        let over =
            || CallerError::NotLookedAt(format!("{} KiB of callers were decoded", self.budget.bytes >> 10));
        self.left = self.left.checked_sub(bytes).ok_or_else(over)?;
        Ok(())
    }
}

/// A caller, decoded.
struct Caller {
    function: Function,
    body: Body,
    /// Link-time addresses behind the calls that control comes to.
    behind_calls: HashSet<u64>,
    /// Link-time addresses of the code that was decoded.
    proof: Arc<[Range<u64>]>,
    /// Why not all of its jumps are known.
    unknown: Option<String>,
    refused: Result<(), TraceRefusal>,
}

/// A return address that was looked at.
pub(super) struct Judged {
    pub call: Instruction,
    pub places: Places,
    /// Link-time addresses of the code by which it was judged: the caller's, its begin first.
    pub proof: Arc<[Range<u64>]>,
    /// Why not all jumps of the caller are known.
    pub unknown: Option<String>,
}

/// The callers of one module.
pub(super) struct Judge<'a> {
    module: &'a Module,
    index: usize,
    rules: KernelRules,
    /// The one that was looked at last (addresses come sorted), or why it could not be, by the link-time address of its symbol or of
    /// its entry in the unwind table.
    last: Option<(u64, Result<Caller, CallerError>)>,
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
        let Judged { call, places, proof, .. } = self.judge(vaddr, spent)?;
        Ok(CallerSite {
            return_address: address,
            module: self.index,
            call_vaddr: call.ip(),
            direct: callee::of_call(elf, memory, &call, address.wrapping_sub(vaddr)),
            site: places.first,
            cheaper: places.cheaper,
            proof,
        })
    }

    /// Judges a link-time address.
    pub fn judge(&mut self, vaddr: u64, spent: &mut Spent) -> Result<Judged, CallerError> {
        spent.in_time()?;
        let elf = self.elf()?;
        let before = vaddr.wrapping_sub(1);
        if !elf.is_code(before) {
            return Err(CallerError::NotMapped(vaddr));
        }
        let (module, rules) = (self.module, self.rules);
        let caller = self.caller_of(elf, before, spent)?;
        let Caller { function, body, unknown, refused, behind_calls, proof } = caller;
        refused.clone().map_err(CallerError::Refused)?;
        let offset = vaddr.wrapping_sub(function.vaddr);
        let no_call = || CallerError::NoCall { function: function.name.clone(), offset };
        let region = body.regions().find(|region| region.contains(before)).ok_or_else(no_call)?;
        let at = behind_call(region, body, vaddr).map_err(|why| match why {
            Some(why) => CallerError::Undecoded { function: function.name.clone(), offset, why },
            None => no_call(),
        })?;
        if !behind_calls.contains(&vaddr) {
            return Err(CallerError::Unreached { function: function.name.clone(), offset });
        }
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
        // Its neighbours are decoded, too.
        spent.in_time()?;
        Ok(Judged { call, places, proof: Arc::clone(proof), unknown: unknown.clone() })
    }

    /// The function that makes the call before a link-time address, and the call, where it is certain that one ends there.
    pub fn call_before(
        &mut self,
        vaddr: u64,
        spent: &mut Spent,
    ) -> Result<(Function, Option<Instruction>), CallerError> {
        spent.in_time()?;
        let elf = self.elf()?;
        let before = vaddr.wrapping_sub(1);
        let Caller { function, body, behind_calls, .. } = self.caller_of(elf, before, spent)?;
        let region = body.regions().find(|region| region.contains(before));
        let at =
            region.and_then(|region| behind_call(region, body, vaddr).ok().map(|at| region.insns[at - 1]));
        Ok((function.clone(), at.filter(|_| behind_calls.contains(&vaddr))))
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
        if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
            self.last = None;
            let function = match size {
                None => resolve::function_of(self.module, self.index, key),
                Some(size) => resolve::without_name(self.module, self.index, key, size),
            };
            let caller = function
                .ok_or(CallerError::NoFunction)
                .and_then(|function| self.read(function, size.is_some(), at, spent));
            self.last = Some((key, caller));
        }
        match &self.last {
            Some((_, caller)) => caller.as_ref().map_err(Clone::clone),
            None => Err(CallerError::NoFunction),
        }
    }

    /// Decodes a caller: of a cold part, the function that it belongs to.
    fn read(
        &self,
        function: Function,
        nameless: bool,
        at: u64,
        spent: &mut Spent,
    ) -> Result<Caller, CallerError> {
        // Without a name, the unwind data tell a part that is jumped to when its frame is there already.
        let part = function.cold || nameless && self.is_jumped_to(&function);
        if part && let Some(owner) = self.owner_of(&function, nameless, spent)? {
            let body = self.body(&owner, at, spent)?;
            if body.contains(at) {
                return Ok(self.caller(owner, body, None));
            }
        }
        let apart = part.then(|| "the function that it is a part of is not known".to_owned());
        let body = self.body(&function, at, spent)?;
        Ok(self.caller(function, body, apart))
    }

    fn is_jumped_to(&self, function: &Function) -> bool {
        let called =
            self.module.elf().ok().and_then(|elf| landing::is_called(elf, function.vaddr).ok().flatten());
        called == Some(false)
    }

    fn body(&self, function: &Function, at: u64, spent: &mut Spent) -> Result<Body, CallerError> {
        if function.size > MOST_CALLER_BYTES {
            return Err(CallerError::Undecoded {
                function: function.name.clone(),
                offset: (at + 1).wrapping_sub(function.vaddr),
                why: Unknown::TooLarge(function.size).to_string(),
            });
        }
        spent.take(function.size)?;
        let body = Body::read(self.module, function);
        body.map_err(|why| CallerError::Refused(TraceRefusal::Unreadable(why)))
    }

    /// The function that a part belongs to, as the part tells: it jumps back into it. Its name or its unwind data say that it is a
    /// part. Whether that function jumps into the part is for the caller to see.
    fn owner_of(
        &self,
        part: &Function,
        nameless: bool,
        spent: &mut Spent,
    ) -> Result<Option<Function>, CallerError> {
        let stem = part.symbol.split_once(".cold").filter(|_| part.cold).map(|(stem, _)| stem);
        let (true, Ok(elf), Ok(symbols)) =
            (stem.is_some() || nameless, self.module.elf(), self.module.symbols())
        else {
            return Ok(None);
        };
        if part.size > MOST_CALLER_BYTES {
            return Ok(None);
        }
        spent.take(part.size)?;
        let region = Region::decode(elf, part.vaddr, part.size);
        Ok(sites::outside_targets(&region).into_iter().find_map(|to| {
            let covering = symbols.covering(to);
            let named = |stem| covering.iter().find(|entry| symbols.name(entry) == stem);
            match (stem, covering.first()) {
                (Some(stem), _) => resolve::function_of(self.module, self.index, named(stem)?.vaddr),
                (None, Some(entry)) => resolve::function_of(self.module, self.index, entry.vaddr),
                (None, None) => {
                    let (start, size) = landing::function_at(elf, to).ok().flatten()?;
                    let called = landing::is_called(elf, start).ok().flatten() == Some(true);
                    called.then(|| resolve::without_name(self.module, self.index, start, size)).flatten()
                }
            }
        }))
    }

    /// `apart`: why it is a part of which the rest is not known.
    fn caller(&self, function: Function, body: Body, apart: Option<String>) -> Caller {
        let behind_calls = reached::behind_calls(self.module, &body, apart.is_none());
        let unknown = apart
            .or_else(|| body.unknown.as_ref().map(ToString::to_string))
            .or_else(|| self.module.text().err().map(str::to_owned));
        let refused = sites::sequence(self.module, &function, &body);
        let proof = body.regions().map(|region| region.start..region.end()).collect();
        Caller { function, body, behind_calls, proof, unknown, refused }
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
