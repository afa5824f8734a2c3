//! From what was named to classes.

use super::super::Session;
use super::super::attach::now_ns;
use super::super::class::{OperationRole, Wish};
use super::super::shares::FunctionKey;
use super::hook::CycleHook;
use super::screens::Screen;
use super::{Kept, Operation, Operations, RESERVED_CLASSES};
use crate::config::{Bound, Bounds, ClassArgument, DIFFERENT, MeasureSpec, OperationConfig, OperationSpec};
use crate::failure::Failure;
use crate::inspect::Function;
use crate::prober::operation::{ARGUMENT_NONE, OPERATION_BALANCE, OPERATION_BY_THREAD};
use crate::prober::{OperationControl, OperationCounters, SyscallBounds, Tier};
use crate::target::LaunchUser;
use profiler_core::adapt::decision::{slack_q16, threshold};
use profiler_core::adapt::portions::Demand;
use profiler_core::adapt::spending::Span;
use profiler_core::adapt::{Adapter, OperationClassId};
use profiler_core::class::{ClassId, ExitMode, RecordKind, SiteClass};
use profiler_core::clients::operations::slices::SliceClock;
use profiler_core::clients::operations::starved::Starved;
use profiler_core::cost::Price;
use profiler_core::recording::{OperationClassRow, OperationMeta};
use std::collections::BTreeMap;

/// Functions that one begin or end may name.
pub(super) const MOST_FUNCTIONS: usize = 16;
fn free() -> Price {
    Price::fixed(0.0)
}

impl Session {
    /// Finds what was named and makes classes of it; nothing is attached yet.
    ///
    /// # Errors
    /// Something does not exist in the target, or cannot bound an operation.
    pub(in crate::session) fn start_operations(&mut self, asked: &OperationConfig) -> Result<(), Failure> {
        if asked.operations.is_empty() {
            return Ok(());
        }
        let mut config = asked.settings.clone();
        // Detaching takes 0.1 to 0.3 s a function there: no slice is worth that.
        config.attach_share &= self.attach.kernel().tier() != Tier::D;
        let policy = asked.policy;
        let reader = self.attach.kernel().operation_reader().map_err(Failure::attach)?;
        let now = now_ns();
        let mut operations = Operations {
            list: Vec::new(),
            config: config.clone(),
            policy,
            reader,
            inner: Vec::new(),
            bounds: Vec::new(),
            inner_last: BTreeMap::new(),
            inner_until_ns: 0,
            inner_tripped: false,
            slices: SliceClock::new(now),
            asked: None,
            complete: true,
            mixed: false,
            lacked: false,
            screens: Vec::new(),
            linger_ns: 0,
            hook: None,
            quotas_ns: 0,
            span: Span::default(),
            left_ns: 0.0,
            screened_ns: 0.0,
            bounds_want_ns: 0.0,
            names_given: 0,
            cost: 0.0,
            begun: false,
            said_slices: false,
            said_inner: false,
            said_starving: false,
            has_measure: asked.measure.is_some(),
        };
        if let Some(command) = &asked.on_cycle {
            let user = LaunchUser::from_sudo().map_err(Failure::attach)?;
            operations.hook = Some(CycleHook::new(command.clone(), user, &self.output));
        }
        let per_operation = config.max_classes as u32 + RESERVED_CLASSES;
        let mut syscalls: BTreeMap<usize, SyscallBounds> = BTreeMap::new();
        for (number, spec) in (0u32..).zip(&asked.operations) {
            let usage = |why: String| Failure::usage(format!("--operation '{}': {why}", spec.text));
            if asked.operations.iter().filter(|other| other.name == spec.name).count() > 1 {
                return Err(usage(format!("there are two operations named '{}'", spec.name)));
            }
            let bounds = self.bounds_of(number, spec, &mut syscalls).map_err(usage)?;
            let classes = number * per_operation..(number + 1) * per_operation;
            let adapter =
                Adapter::new(policy, config.clone(), None).map_err(|e| Failure::usage(e.to_string()))?;
            self.configure_operation(number, spec, &adapter, &classes);
            let tracepoints = self.screen_tracepoints(number, spec, classes.start)?;
            let by_tracepoints = tracepoints.is_some();
            operations.screens.extend(tracepoints);
            let screen_ns = match bounds.as_slice() {
                [] => {
                    let calls = if matches!(spec.bounds, Bounds::One(_)) { 1.0 } else { 2.0 };
                    calls * self.cost.tracepoint.ns
                }
                bounds => self.screen_ns(bounds),
            };
            operations.bounds.extend(bounds.iter().copied().map(Kept::new));
            let own = if spec.class.is_some() { "(unnamed)".to_owned() } else { spec.name.clone() };
            let names = BTreeMap::from([(classes.start, own), (classes.start + 1, "(other)".to_owned())]);
            let rows: Vec<_> = names
                .iter()
                .map(|(class, name)| OperationClassRow {
                    operation: number,
                    class_id: *class,
                    operation_name: spec.name.clone(),
                    class_name: name.clone(),
                })
                .collect();
            self.writer.send(rows);
            operations.list.push(Operation {
                number,
                name: spec.name.clone(),
                bounds,
                by_tracepoints,
                last: vec![OperationCounters::default(); classes.len()],
                classes,
                adapter,
                names,
                since_ns: now,
                watched_ns: 0,
                looked_ns: now,
                attached: false,
                stale: false,
                longest_s: 0.0,
                monitoring: false,
                cycle: 0,
                cycle_since_ns: now,
                record_ns: 0.0,
                screen_ns,
                screen_cold_ns: 0.0,
                demand: Demand::default(),
                starved: Starved::default(),
                most_screening: f64::INFINITY,
                span: Span::default(),
                off_until_ns: 0,
                lost: false,
                rate_hz: 0.0,
                recorded_share: 0.0,
                population: 0,
                sample: 0,
                said_dear: false,
            });
        }
        let inner = self.inner_of(asked).map_err(Failure::usage)?;
        let inner_hit_ns = inner.iter().map(|id| self.attach.class(*id).hit_price.ns).sum::<f64>()
            / inner.len().max(1) as f64;
        operations.inner = inner.iter().copied().map(Kept::new).collect();
        if !syscalls.is_empty() {
            let list: Vec<(u32, SyscallBounds)> =
                // OK because numbers are below 512.
                syscalls.iter().map(|(number, bounds)| (*number as u32, *bounds)).collect();
            let watch = self.attach.kernel().watch_syscalls(&list, self.meta.pid).map_err(Failure::attach)?;
            operations.screens.push(Screen::of_syscalls(watch));
        }
        self.meta.operations = operations
            .list
            .iter()
            .zip(&asked.operations)
            .map(|(o, spec)| OperationMeta {
                operation: o.number,
                name: o.name.clone(),
                bounds: spec.text.clone(),
                policy: policy.name().to_owned(),
                config: config.clone(),
                measure: asked.measure.as_ref().map_or_else(
                    || if inner.is_empty() { String::new() } else { "calls of inner functions".to_owned() },
                    MeasureSpec::in_words,
                ),
                screen_ns: o.screen_ns,
                inner_hit_ns,
                inner_classes: inner.iter().map(|id| id.0).collect(),
            })
            .collect();
        self.operations = Some(Box::new(operations));
        Ok(())
    }

    /// Price of screening one operation: it passes one of its begins and one of its ends, however many there are, ns.
    fn screen_ns(&self, bounds: &[ClassId]) -> f64 {
        let mean = |ends: bool| {
            let prices = bounds.iter().map(|id| self.attach.class(*id));
            let prices = prices.filter(|c| matches!(c.role, Some(OperationRole::End(_))) == ends);
            let (n, sum) = prices.fold((0.0_f64, 0.0), |(n, sum), c| (n + 1.0, sum + c.tau().ns));
            sum / n.max(1.0)
        };
        mean(false) + mean(true)
    }

    /// The kernel's numbers of an operation before its first window: recording is off until bounds and inner functions are
    /// attached.
    fn configure_operation(
        &self,
        number: u32,
        spec: &OperationSpec,
        adapter: &Adapter,
        classes: &std::ops::Range<u32>,
    ) {
        let by_thread = !matches!(spec.bounds, Bounds::One(Bound::Function(_)));
        // Each place of a probe says itself where its argument lies.
        let of_probe = matches!(spec.bounds, Bounds::Pair(Bound::Usdt { .. }, _));
        let (kind, index) = spec
            .class
            .map_or((ARGUMENT_NONE, 0), |c: ClassArgument| (c.kind, if of_probe { 0 } else { c.index }));
        let mut flags = if by_thread { OPERATION_BY_THREAD } else { 0 };
        if adapter.orders().balance {
            flags |= OPERATION_BALANCE;
        }
        let control = OperationControl {
            flags,
            slack_q16: slack_q16(adapter.config().balance_slack),
            argument_kind: kind,
            argument: index,
            base_class: classes.start,
            other_class: classes.start + 1,
            end_class: classes.end,
            ..OperationControl::default()
        };
        let table = self.attach.kernel().operations();
        table.configure(number, &control, classes.start + RESERVED_CLASSES);
        table.set_quota(number, 0);
        for class in classes.clone() {
            let orders = adapter.orders().of(OperationClassId(class));
            table.order(class, threshold(orders.rate), 0, orders.stretch);
        }
    }

    /// Classes of the functions that bound an operation; system calls are entered into `syscalls`, tracepoints come later.
    fn bounds_of(
        &mut self,
        number: u32,
        spec: &OperationSpec,
        syscalls: &mut BTreeMap<usize, SyscallBounds>,
    ) -> Result<Vec<ClassId>, String> {
        let mask = spec.class.map_or(0, ClassArgument::mask);
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
                    self.pair_classes(begin, "begin", OperationRole::Begin(number), spec.class)?;
                classes.extend(self.pair_classes(end, "end", OperationRole::End(number), None)?);
                Ok(classes)
            }
        }
    }

    /// One bound of a pair of functions and probes. `class`: the argument that is read there.
    fn pair_classes(
        &mut self,
        bound: &Bound,
        which: &str,
        role: OperationRole,
        class: Option<ClassArgument>,
    ) -> Result<Vec<ClassId>, String> {
        match bound {
            Bound::Function(pattern) => {
                self.bound_classes(pattern, which, role, class.map_or(0, ClassArgument::mask))
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
    pub(super) fn apart_wish(&self, function: &Function, kind: RecordKind) -> Wish {
        let must = self.selection.wish(function).is_some_and(|wish| wish.must);
        Wish { kind, weight: 1.0, must, named: true, force_return_link: false }
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
        if self.attach.classes().iter().any(|c| c.candidate.key == key) {
            return Err("it is watched for something else already (another operation, --progress)".to_owned());
        }
        // Priced as a call that is recorded, which does about as much in the kernel.
        let wish = self.apart_wish(function, RecordKind::Record);
        let id = self.add_class(function, key, wish)?;
        let whole = matches!(role, OperationRole::Whole(_));
        let entry_only = match role {
            OperationRole::Begin(_) | OperationRole::End(_) => true,
            OperationRole::Inner { .. } => kind == RecordKind::Count,
            OperationRole::Whole(_) => false,
        };
        let class = self.attach.class_mut(id);
        class.role = Some(role);
        class.kind = kind;
        class.wish.kind = kind;
        if whole || entry_only {
            class.lease = None;
        }
        if class.exit == ExitMode::None && whole {
            return Err(format!(
                "its returns cannot be seen ({}); name the function that ends it: NAME=BEGIN..END",
                class.candidate.exits.as_ref().err().cloned().unwrap_or_default()
            ));
        }
        if entry_only {
            class.exit = ExitMode::None;
            class.exit_price = free();
        }
        let site = class
            .sites
            .entries
            .iter()
            .find(|s| s.file_offset == class.candidate.entry_offset && s.arguments & mask == mask);
        let linked = class.exit == ExitMode::ReturnLink;
        let site = site.or_else(|| {
            class.sites.entries.iter().find(|s| s.arguments & mask == mask && (s.at_entry_stack || !linked))
        });
        let Some(site) = site.copied().filter(|s| mask == 0 || s.arguments & mask == mask) else {
            if mask == 0 {
                return Ok(id);
            }
            return Err(
                "the argument is overwritten before the first instruction that can carry a probe".to_owned()
            );
        };
        let candidate = &mut class.candidate;
        candidate.entry_offset = site.file_offset;
        candidate.entry_address = site.vaddr;
        candidate.entry_class = site.class;
        candidate.entry_slot = site.return_slot.unwrap_or(crate::prober::SLOT_UNKNOWN);
        if matches!(role, OperationRole::End(_)) {
            candidate.entry_slot = crate::prober::SLOT_UNKNOWN;
        }
        let (candidate, exit) = (candidate.clone(), class.exit);
        let (hit_price, exit_price) = self.prices(&candidate, RecordKind::Record, exit);
        let class = self.attach.class_mut(id);
        class.hit_price = hit_price;
        class.exit_price = if entry_only { free() } else { exit_price };
        debug_assert!(class.hit_price.ns > 0.0 || class.candidate.entry_class == SiteClass::Stepped);
        Ok(id)
    }
}
