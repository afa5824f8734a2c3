//! Classes of the functions that bound operations.

use super::super::Agent;
use super::super::class::{LiveClass, OperationRole, Wish};
use super::super::shares::FunctionKey;
use crate::config::{Bound, Bounds, ClassArgument, DIFFERENT, OperationSpec};
use crate::inspect::{Function, Site, WantedArguments};
use crate::prober::SyscallBounds;
use profiler_core::class::{ClassId, ExitMode, RecordKind, SiteClass};
use profiler_core::cost::Price;
use profiler_core::run::view::ClassPrices;
use std::collections::BTreeMap;

/// Functions that one begin or end may name.
pub(super) const MOST_FUNCTIONS: usize = 16;
fn free() -> Price {
    Price::fixed(0.0)
}

impl Agent {
    /// Classes of the functions that bound an operation; system calls are entered into `syscalls`, tracepoints come later.
    pub(super) fn bounds_of(
        &mut self,
        number: u32,
        spec: &OperationSpec,
        syscalls: &mut BTreeMap<usize, SyscallBounds>,
    ) -> Result<Vec<ClassId>, String> {
        let words = self.words.lists.arguments_of_operation(number);
        let mask = spec.class.map_or(0, ClassArgument::mask) | words;
        let mut taken = |call: usize, set: fn(&mut SyscallBounds, u32) -> bool| {
            if set(syscalls.entry(call).or_default(), number) {
                Ok(())
            } else {
                Err(format!(
                    "another operation has the same bound, the system call {}",
                    crate::target::syscalls::name(call)
                ))
            }
        };
        match &spec.bounds {
            Bounds::One(Bound::Syscall(call)) => {
                taken(*call, |b, n| b.begins_at_entry.replace(n).is_none())?;
                taken(*call, |b, n| b.ends_at_exit.replace(n).is_none())?;
                Ok(Vec::new())
            }
            Bounds::Pair(Bound::Syscall(begin), Bound::Syscall(end)) => {
                taken(*begin, |b, n| b.begins_at_exit.replace(n).is_none())?;
                taken(*end, |b, n| b.ends_at_exit.replace(n).is_none())?;
                Ok(Vec::new())
            }
            Bounds::One(Bound::Function(pattern)) => {
                self.bound_classes(pattern, "begin", OperationRole::Whole(number), mask)
            }
            // The parser refuses these.
            Bounds::One(Bound::Usdt { .. }) => Err("a USDT probe has no end".to_owned()),
            Bounds::One(Bound::Tracepoint { .. }) => Err("a tracepoint has no end".to_owned()),
            Bounds::Pair(Bound::Tracepoint { .. }, Bound::Tracepoint { .. }) => Ok(Vec::new()),
            Bounds::Pair(Bound::Syscall(_) | Bound::Tracepoint { .. }, _)
            | Bounds::Pair(_, Bound::Syscall(_) | Bound::Tracepoint { .. }) => Err(DIFFERENT.to_owned()),
            Bounds::Pair(begin, end) => {
                let mut classes =
                    self.pair_classes(begin, "begin", OperationRole::Begin(number), spec.class, words)?;
                classes.extend(self.pair_classes(end, "end", OperationRole::End(number), None, 0)?);
                Ok(classes)
            }
        }
    }

    /// One bound of a pair of functions and probes. `class`: the argument that is read there; `words`: argument registers that words read.
    fn pair_classes(
        &mut self,
        bound: &Bound,
        which: &str,
        role: OperationRole,
        class: Option<ClassArgument>,
        words: u8,
    ) -> Result<Vec<ClassId>, String> {
        match bound {
            Bound::Function(pattern) => {
                self.bound_classes(pattern, which, role, class.map_or(0, ClassArgument::mask) | words)
            }
            Bound::Usdt { provider, name } => self
                .probe_classes(provider, name, role, class)
                .map_err(|why| format!("its {which} 'usdt:{provider}:{name}': {why}")),
            // The parser refuses it.
            Bound::Syscall(_) | Bound::Tracepoint { .. } => Err(DIFFERENT.to_owned()),
        }
    }

    fn bound_classes(
        &mut self,
        pattern: &str,
        which: &str,
        role: OperationRole,
        mask: u8,
    ) -> Result<Vec<ClassId>, String> {
        let functions =
            self.functions_of(pattern).map_err(|why| format!("its {which} '{pattern}': {why}"))?;
        if functions.len() > MOST_FUNCTIONS {
            return Err(format!(
                "its {which} '{pattern}' names {} functions; at most {MOST_FUNCTIONS} bound an operation",
                functions.len()
            ));
        }
        functions
            .iter()
            .map(|function| {
                self.apart_class(function, role, mask, RecordKind::Record)
                    .map_err(|why| format!("its {which} '{}': {why}", function.name))
            })
            .collect()
    }

    /// To be named here is no leave to make other processes pay (tier C): that is `--trace`.
    /// `mask`: argument registers that the kernel side reads.
    pub(super) fn apart_wish(&self, function: &Function, kind: RecordKind, mask: u8) -> Wish {
        let must = self.catalog.selection.wish(function).is_some_and(|wish| wish.must);
        let arguments = WantedArguments::These(mask);
        Wish { kind, weight: 1.0, must, named: true, by_kind: false, force_return_link: false, arguments }
    }

    /// A function, or a place of a probe, may be that beside what it is already.
    pub(super) fn may_be(&self, key: FunctionKey, role: OperationRole) -> Result<(), String> {
        let roles = self.attach.classes().iter().filter(|c| c.candidate.key == key).filter_map(|c| c.role);
        let both = |a, b| match (a, b) {
            (OperationRole::Begin(one), OperationRole::End(other)) => one == other,
            _ => false,
        };
        for other in roles {
            if other == role {
                return Err("it is named twice".to_owned());
            }
            if both(other, role) || both(role, other) {
                return Err(
                    "it would both begin and end the operation, and the kernel may run either program first"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    /// A class that neither planner nor controller knows. `mask`: argument registers that the kernel side reads.
    pub(super) fn apart_class(
        &mut self,
        function: &Function,
        role: OperationRole,
        mask: u8,
        kind: RecordKind,
    ) -> Result<ClassId, String> {
        if mask != 0 && self.inspection.is_go(function) {
            return Err("it is a function of Go, which does not pass arguments in the registers of C: they cannot be read".to_owned());
        }
        let key = FunctionKey { module: function.module, address: function.vaddr };
        self.may_be(key, role)?;
        // Priced as a call that is recorded, which does about as much in the kernel.
        let wish = self.apart_wish(function, RecordKind::Record, mask);
        let id = self.add_class(function, key, wish)?;
        let whole = matches!(role, OperationRole::Whole(_));
        let entry_only = match role {
            OperationRole::Begin(_) | OperationRole::End(_) => true,
            OperationRole::Inner { .. } => matches!(kind, RecordKind::Count | RecordKind::Step),
            OperationRole::Whole(_) => false,
        };
        let class = self.attach.class_mut(id);
        class.role = Some(role);
        class.kind = kind;
        class.wish.kind = kind;
        self.attach.join(id);
        let class = self.attach.class_mut(id);
        if whole || entry_only {
            class.lease = None;
        }
        no_callers(class);
        if class.exit == ExitMode::None && whole {
            return Err(format!(
                "its returns cannot be seen ({}); name the function that ends it: NAME=BEGIN..END",
                class.candidate.exits.as_ref().err().cloned().unwrap_or_default()
            ));
        }
        if entry_only {
            class.exit = ExitMode::None;
            class.prices.exit = free();
        }
        let linked = class.exit == ExitMode::ReturnLink;
        // Which call lies in which follows from the place of the return address and from the caller's rbp.
        let steps = kind == RecordKind::Step;
        let may =
            |s: &&Site| s.arguments & mask == mask && (!steps || s.return_slot.is_some() && s.keeps_frame);
        let entries = || class.code.sites.entries.iter().filter(may);
        let site = entries().find(|s| s.file_offset == class.candidate.entry.offset);
        let site = site.or_else(|| entries().find(|s| s.at_entry_stack || !linked));
        if steps && site.is_none() {
            return Err("its stack is set up in a way that is not followed before the first instruction that can carry a probe".to_owned());
        }
        let Some(site) = site.copied().filter(|s| mask == 0 || s.arguments & mask == mask) else {
            if mask == 0 {
                return Ok(id);
            }
            return Err(match class.code.lost_arguments.none_at_all() {
                Some(why) => format!("its argument cannot be read: {why}"),
                None => "the argument is overwritten before the first instruction that can carry a probe"
                    .to_owned(),
            });
        };
        class.move_entry(&site);
        let candidate = &mut class.candidate;
        if matches!(role, OperationRole::End(_)) {
            candidate.entry.slot = crate::prober::SLOT_UNKNOWN;
        }
        let (candidate, exit) = (candidate.clone(), class.exit);
        let prices = self.prices(&candidate, RecordKind::Record, exit);
        let class = self.attach.class_mut(id);
        class.prices = if entry_only { ClassPrices { exit: free(), ..prices } } else { prices };
        debug_assert!(class.prices.hit.ns > 0.0 || class.candidate.entry.class == SiteClass::Stepped);
        Ok(id)
    }
}

/// Inside operations nobody learns callers.
fn no_callers(class: &mut LiveClass) {
    class.code.entry_for_returns = None;
    if class.exit == ExitMode::ReturnSites {
        class.exit = ExitMode::None;
        class.prices.exit = free();
    }
}
