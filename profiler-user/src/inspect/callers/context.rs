//! What return addresses tell of calls: who made them, where the caller's frame begins, and where the call leads; and which functions hand
//! over to which by jumps alone. From this calls that are known by their entries alone are put into order (docs/calls.md).

use super::super::flow::IndirectTo;
use super::super::insn::KernelRules;
use super::super::maps::Mapping;
use super::super::sites::{Body, outside_targets};
use super::super::{Inspection, Module, resolve};
use super::callee::{self, Memory};
use super::frame_rule::{FrameRule, FrameTable};
use super::judge::{Judge, Spent};
use super::{CallerBudget, place_of};
use iced_x86::OpKind;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

/// Functions that are decoded to find where others can go by jumps.
const MOST_JUMPED_TO: usize = 20_000;

/// A function, by the number of its module and its link-time address.
pub type FunctionAt = (usize, u64);

/// What is known of a return address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallContext {
    /// The address in the process.
    pub return_address: u64,
    /// The module that holds it.
    pub module: Option<usize>,
    /// Link-time address in it; 0 without a module.
    pub vaddr: u64,
    /// The function that holds it: of a part, the one that it belongs to.
    pub function: Option<(FunctionAt, String)>,
    /// How the caller's frame is found.
    pub rule: FrameRule,
    /// Where the call leads, as an address in the process: by its displacement, or through a bound slot of the linkage tables.
    pub direct: Option<u64>,
    /// The function there.
    pub target: Option<FunctionAt>,
    /// It is a direct call; `None`: not known.
    pub is_direct: Option<bool>,
}

/// Where functions can go by jumps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Jumps {
    /// One of the functions that were asked for can hand over to another (or to itself), through functions that were not.
    pub pairs: Vec<(FunctionAt, FunctionAt)>,
    /// All pairs of these are known.
    pub known: Vec<FunctionAt>,
}

/// The code of a process as it is mapped now, with all that is needed to look at it, so that another thread can do it.
///
/// A module that is unmapped later is held with it: it can still be read, as long as this is kept.
#[derive(Debug, Clone)]
pub struct CodeSnapshot {
    pid: i32,
    rules: KernelRules,
    maps: Vec<Mapping>,
    modules: Vec<Module>,
    executable: Vec<(u64, u64)>,
    /// What the dynamic linker wrote is read from the process's memory.
    has_memory: bool,
}

impl Inspection {
    /// The code as [`Inspection::refresh`] saw it last.
    #[must_use]
    pub fn code_snapshot(&self) -> CodeSnapshot {
        let mut maps = self.maps().to_vec();
        maps.sort_by_key(|map| map.start);
        let executable = maps.iter().filter(|map| map.exec).map(|map| (map.start, map.end)).collect();
        CodeSnapshot {
            pid: self.pid(),
            rules: self.rules(),
            maps,
            modules: self.modules().to_vec(),
            executable,
            has_memory: true,
        }
    }
}

impl CodeSnapshot {
    /// The modules, by the numbers of [`Inspection::modules`].
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The same of code that may be unmapped by now: the process's memory is not read, since other code may be there.
    #[must_use]
    pub fn without_memory(self) -> Self {
        Self { has_memory: false, ..self }
    }

    fn memory(&self) -> Memory<'_> {
        match self.has_memory {
            true => Memory::of(self.pid, &self.executable),
            false => Memory::none(&self.executable),
        }
    }

    pub(super) fn rules(&self) -> KernelRules {
        self.rules
    }

    /// What return addresses tell, in their order.
    ///
    /// # Cost
    /// As [`Inspection::callers`], and the unwind tables of the modules that hold them.
    #[must_use]
    pub fn contexts(&self, addresses: &[u64], budget: CallerBudget) -> Vec<CallContext> {
        let by_start = self.by_start();
        let maps: Vec<&Mapping> = self.maps.iter().collect();
        let memory = self.memory();
        let mut spent = Spent::of(budget);
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut found: Vec<CallContext> =
            addresses.iter().map(|&address| CallContext::unknown(address)).collect();
        for (position, &address) in addresses.iter().enumerate() {
            if let Ok(module) = place_of(&maps, &by_start, address) {
                groups.entry(module).or_default().push(position);
            }
        }
        for (index, mut positions) in groups {
            let Some(module) = self.modules.get(index) else { continue };
            positions.sort_by_key(|&position| addresses[position]);
            let table = module.elf().ok().and_then(|elf| FrameTable::of(elf));
            let mut judge = Judge::new(module, index, self.rules);
            for position in positions {
                let context = &mut found[position];
                let Some(vaddr) = module.vaddr_of_address(context.return_address) else { continue };
                (context.module, context.vaddr) = (Some(index), vaddr);
                context.rule = table.as_ref().map_or(FrameRule::Unknown, |table| table.rule(vaddr));
                context.judge(&mut judge, module, &memory, &mut spent);
                context.target = context.direct.and_then(|to| self.function_at(to));
            }
        }
        found
    }

    /// Where these functions can go by jumps alone. What is not looked at before `deadline` is not known.
    #[must_use]
    pub fn jumps(&self, functions: &[FunctionAt], deadline: Instant) -> Jumps {
        let memory = self.memory();
        let asked: HashSet<FunctionAt> = functions.iter().copied().collect();
        let mut seen = HashMap::new();
        let mut jumps = Jumps::default();
        for &function in functions {
            let mut work = vec![function];
            let mut visited = HashSet::new();
            let mut known = true;
            while let Some(at) = work.pop() {
                if !visited.insert(at) {
                    continue;
                }
                if seen.len() > MOST_JUMPED_TO || Instant::now() > deadline {
                    known = false;
                    break;
                }
                let targets = seen.entry(at).or_insert_with(|| self.jumps_of(at, &memory));
                let Some(targets) = targets else {
                    known = false;
                    continue;
                };
                for &to in targets.iter() {
                    if asked.contains(&to) {
                        jumps.pairs.push((function, to));
                    } else {
                        work.push(to);
                    }
                }
            }
            if known {
                jumps.known.push(function);
            }
        }
        jumps.pairs.sort_unstable();
        jumps.pairs.dedup();
        jumps
    }

    /// The functions to which one jumps; `None`: not all are known.
    fn jumps_of(&self, (index, vaddr): FunctionAt, memory: &Memory<'_>) -> Option<Vec<FunctionAt>> {
        let module = self.modules.get(index)?;
        let elf = module.elf().ok()?;
        let function = resolve::function_of(module, index, vaddr)?;
        let body = Body::read(module, &function).ok()?;
        let leaves = |to: &Option<IndirectTo>| !matches!(to, Some(IndirectTo::Table(_)));
        if body.unknown.is_some() || body.indirect.iter().any(|(_, to)| leaves(to)) {
            return None;
        }
        let bias = function.address.map(|address| address.wrapping_sub(vaddr));
        let outside = body.regions().flat_map(outside_targets).filter(|to| !body.contains(*to));
        // A jump to its own start: a call of itself that ends it, or a loop, whose every round is an entry to us.
        let again = body.leaders.contains(&vaddr).then_some(Some((index, vaddr)));
        let others = outside.map(|to| match callee::is_stub(elf, to) {
            true => {
                let bias = bias?;
                let address = callee::bound(elf, memory, callee::slot_of_stub(elf, to)?, bias)?;
                self.function_at(address)
            }
            false => start_of(module, to).map(|start| (index, start)),
        });
        others.chain(again).collect()
    }

    fn function_at(&self, address: u64) -> Option<FunctionAt> {
        resolve::function_at(&self.modules, address).map(|function| (function.module, function.vaddr))
    }

    fn by_start(&self) -> HashMap<u64, usize> {
        let modules = self.modules.iter().enumerate();
        modules
            .flat_map(|(index, module)| module.mappings.iter().map(move |map| (map.start, index)))
            .collect()
    }
}

/// Link-time address at which the function begins that holds another.
fn start_of(module: &Module, vaddr: u64) -> Option<u64> {
    module.symbols().ok()?.covering(vaddr).first().map(|entry| entry.vaddr)
}

impl CallContext {
    fn unknown(return_address: u64) -> Self {
        Self {
            return_address,
            module: None,
            vaddr: 0,
            function: None,
            rule: FrameRule::Unknown,
            direct: None,
            target: None,
            is_direct: None,
        }
    }

    fn judge(&mut self, judge: &mut Judge<'_>, module: &Module, memory: &Memory<'_>, spent: &mut Spent) {
        let Ok((function, call)) = judge.call_before(self.vaddr, spent) else {
            // A name is known without decoding.
            let start = start_of(module, self.vaddr.wrapping_sub(1));
            let named = start.and_then(|start| resolve::function_of(module, self.module?, start));
            self.function = named.map(|function| ((function.module, function.vaddr), function.name));
            return;
        };
        self.function = Some(((function.module, function.vaddr), function.name));
        if let (Some(call), Ok(elf)) = (call, module.elf()) {
            self.direct = callee::of_call(elf, memory, &call, self.return_address.wrapping_sub(self.vaddr));
            // A stub whose slot is not bound yet, or that can no longer be read, leads to one function all the same.
            let by_displacement = call.op0_kind() == OpKind::NearBranch64;
            self.is_direct = match (self.direct, by_displacement) {
                (Some(_), _) => Some(true),
                (None, true) => None,
                (None, false) => Some(false),
            };
        }
    }
}
