//! Beginning to follow operations: classes are made of what was named, programs are set up, and the client gets all of it.

use super::super::Agent;
use super::super::class::{LiveClass, OperationRole};
use super::super::clock::now_ns;
use super::super::cycle_hook::CycleHook;
use super::super::operation_io::{OperationIo, Watch};
use super::super::steps::{STACK_SPAN_BYTES, Steps, is_stepped};
use super::RESERVED_CLASSES;
use crate::config::{Bound, Bounds, ClassArgument, MeasureSpec, OperationConfig, OperationSpec};
use crate::failure::Failure;
use crate::prober::operation::{
    ARGUMENT_NONE, MEASURE_NONE, OPERATION_BALANCE, OPERATION_BY_THREAD, OPERATION_STEPS,
};
use crate::prober::{OperationControl, SyscallBounds, Tier};
use crate::target::LaunchUser;
use profiler_core::adapt::decision::{slack_q16, threshold};
use profiler_core::adapt::spending::record_own_ns;
use profiler_core::adapt::{Adapter, OperationClassId};
use profiler_core::class::{ClassId, RecordKind, SiteClass};
use profiler_core::clients::operations::{BoundBy, Followed, OperationClass, Operations, Role, Settings};
use profiler_core::recording::{CallsMeta, OperationClassRow, OperationMeta};
use profiler_core::run::view::operations::Screened;
use std::collections::BTreeMap;
use std::ops::Range;

/// Operations that are being made.
struct Making<'a> {
    asked: &'a OperationConfig,
    settings: Settings,
    client: Operations,
    io: OperationIo,
    /// What system calls bound, by their number.
    syscalls: BTreeMap<usize, SyscallBounds>,
    /// Price of screening one operation, ns, and whether traps bound it; by operation.
    screening: Vec<(f64, bool)>,
}

impl Agent {
    /// Finds what was named and makes classes of it; nothing is attached yet.
    ///
    /// # Errors
    /// Something does not exist in the target, or cannot bound an operation.
    pub(in crate::agent) fn start_operations(
        &mut self,
        asked: &OperationConfig,
    ) -> Result<Option<Operations>, Failure> {
        if asked.operations.is_empty() {
            return Ok(None);
        }
        let settings = self.operation_settings(asked);
        let reader = self.attach.kernel().operation_reader().map_err(Failure::attach)?;
        let steps = match asked.calls.is_empty() {
            true => None,
            false => Some(Steps::new(self.attach.kernel().step_reader().map_err(Failure::attach)?)),
        };
        let hook = self.cycle_hook(asked)?;
        let mut making = Making {
            asked,
            client: Operations::new(settings.clone(), now_ns()),
            settings,
            io: OperationIo::new(reader, steps, hook),
            syscalls: BTreeMap::new(),
            screening: Vec::new(),
        };
        for (number, spec) in (0u32..).zip(&asked.operations) {
            self.add_operation(&mut making, number, spec)?;
        }
        let inner = self.inner_of(asked).map_err(Failure::usage)?;
        let has_measure = asked.measure.is_some();
        making.client.look_inside(inner.iter().map(|id| self.operation_class(*id, has_measure)).collect());
        self.watch_syscalls(&mut making)?;
        self.journal.meta.operations = self.operations_meta(&making, &inner);
        self.journal.meta.calls = self.calls_meta(asked);
        self.operation_io = Some(Box::new(making.io));
        self.add_consumers(asked);
        Ok(Some(making.client))
    }

    fn calls_meta(&self, asked: &OperationConfig) -> Option<CallsMeta> {
        let stepped = self.attach.classes().iter().filter(|class| is_stepped(class));
        (!asked.calls.is_empty()).then(|| CallsMeta {
            asked: asked.calls.clone(),
            classes: stepped.map(|class| class.id.0).collect(),
            tails_known: Vec::new(),
            stack_span_bytes: STACK_SPAN_BYTES,
            notes: self.notes_of_stepped_modules(),
        })
    }

    fn operation_settings(&self, asked: &OperationConfig) -> Settings {
        let mut config = asked.settings.clone();
        // Detaching takes 0.1 to 0.3 s a function there: no slice is worth that.
        config.attach_share &= self.attach.kernel().tier() != Tier::D;
        Settings {
            config,
            policy: asked.policy,
            budget: self.journal.meta.budget,
            tracepoint_ns: self.prices.tracepoint.ns,
            attach_s: self.prices.attach.seconds(),
            record_own_ns: record_own_ns(self.prices.hit_price(SiteClass::Push, RecordKind::Count).ns),
            has_steps: !asked.calls.is_empty(),
        }
    }

    fn cycle_hook(&self, asked: &OperationConfig) -> Result<Option<CycleHook>, Failure> {
        let Some(command) = &asked.on_cycle else { return Ok(None) };
        let user = LaunchUser::from_sudo().map_err(Failure::attach)?;
        Ok(Some(CycleHook::new(command.clone(), user, &self.journal.output)))
    }

    /// One operation: its classes, its programs, its numbers in the kernel.
    fn add_operation(
        &mut self,
        making: &mut Making<'_>,
        number: u32,
        spec: &OperationSpec,
    ) -> Result<(), Failure> {
        let usage = |why: String| Failure::usage(format!("--operation '{}': {why}", spec.text));
        if making.asked.operations.iter().filter(|other| other.name == spec.name).count() > 1 {
            return Err(usage(format!("there are two operations named '{}'", spec.name)));
        }
        let bounds = self.bounds_of(number, spec, &mut making.syscalls).map_err(usage)?;
        let Settings { config, policy, .. } = &making.settings;
        // OK because classes of all operations are at most 65,536.
        let per_operation = config.max_classes as u32 + RESERVED_CLASSES;
        let classes = number * per_operation..(number + 1) * per_operation;
        let adapter =
            Adapter::new(*policy, config.clone(), None).map_err(|e| Failure::usage(e.to_string()))?;
        self.configure_operation(number, spec, &adapter, &classes, !making.asked.calls.is_empty());
        let tracepoints = self.screen_tracepoints(number, spec)?;
        let (bound_by, screen_ns) = match (&tracepoints, bounds.as_slice()) {
            (None, [_, ..]) => (BoundBy::Functions, self.screen_ns(&bounds)),
            (tracepoints, _) => {
                let calls = if matches!(spec.bounds, Bounds::One(_)) { 1.0 } else { 2.0 };
                let by = if tracepoints.is_some() { BoundBy::Tracepoints } else { BoundBy::Syscalls };
                (by, calls * self.prices.tracepoint.ns)
            }
        };
        if let Some(watch) = tracepoints {
            making.io.watch(Watch::of_tracepoints(watch, number, classes.start));
            making.client.screen(Screened::Tracepoints(number));
        }
        let names = self.name_classes(number, spec, &classes);
        making.io.add(spec.name.clone(), classes.clone(), names);
        let bounds = bounds.iter().map(|id| self.operation_class(*id, false)).collect();
        making.screening.push((screen_ns, matches!(bound_by, BoundBy::Functions)));
        let followed = Followed { name: spec.name.clone(), bound_by, classes, adapter, screen_ns };
        making.client.follow(followed, bounds, now_ns());
        Ok(())
    }

    /// Names of the operation's own class and of `(other)`, which the recording gets, too.
    fn name_classes(&self, number: u32, spec: &OperationSpec, classes: &Range<u32>) -> BTreeMap<u32, String> {
        let own = if spec.class.is_some() { "(unnamed)".to_owned() } else { spec.name.clone() };
        let names = BTreeMap::from([(classes.start, own), (classes.start + 1, "(other)".to_owned())]);
        let row = |(class, name): (&u32, &String)| OperationClassRow {
            operation: number,
            class_id: *class,
            operation_name: spec.name.clone(),
            class_name: name.clone(),
        };
        self.journal.writer.send(names.iter().map(row).collect::<Vec<_>>());
        names
    }

    /// A class as the client knows it.
    fn operation_class(&self, id: ClassId, has_measure: bool) -> OperationClass {
        let class = self.attach.class(id);
        let role = match class.role {
            Some(OperationRole::Whole(operation) | OperationRole::Begin(operation)) => {
                Role::Bound { operation, ends: false }
            }
            Some(OperationRole::End(operation)) => Role::Bound { operation, ends: true },
            Some(OperationRole::Inner { measure, .. }) => {
                Role::Inner { measures: has_measure && measure != MEASURE_NONE }
            }
            None => Role::Inner { measures: false },
        };
        OperationClass { id, name: class.candidate.name.clone(), role }
    }

    /// Lets system calls bound operations from now on.
    fn watch_syscalls(&self, making: &mut Making<'_>) -> Result<(), Failure> {
        if making.syscalls.is_empty() {
            return Ok(());
        }
        // OK because numbers are below 512.
        let list: Vec<(u32, SyscallBounds)> =
            making.syscalls.iter().map(|(number, bounds)| (*number as u32, *bounds)).collect();
        let watch =
            self.attach.kernel().watch_syscalls(&list, self.journal.meta.pid).map_err(Failure::attach)?;
        making.io.watch(Watch::of_syscalls(watch));
        making.client.screen(Screened::Syscalls);
        Ok(())
    }

    fn operations_meta(&self, making: &Making<'_>, inner: &[ClassId]) -> Vec<OperationMeta> {
        let hit_ns = |id: &ClassId| self.attach.class(*id).prices.hit.ns;
        let inner_hit_ns = inner.iter().map(hit_ns).sum::<f64>() / inner.len().max(1) as f64;
        let Making { asked, settings, screening, .. } = making;
        let no_measure = if inner.is_empty() { "" } else { "calls of inner functions" };
        let meta = |((number, spec), &(screen_ns, by_functions)): ((u32, &OperationSpec), &(f64, bool))| {
            OperationMeta {
                operation: number,
                name: spec.name.clone(),
                bounds: spec.text.clone(),
                policy: settings.policy.name().to_owned(),
                config: settings.config.clone(),
                measure: asked.measure.as_ref().map_or_else(|| no_measure.to_owned(), MeasureSpec::in_words),
                screen_ns,
                by_functions,
                inner_hit_ns,
                inner_classes: inner.iter().map(|id| id.0).collect(),
                open_at_end: None,
            }
        };
        (0u32..).zip(&asked.operations).zip(screening).map(meta).collect()
    }

    /// Price of screening one operation: it passes one of its begins and one of its ends, however many there are, ns.
    fn screen_ns(&self, bounds: &[ClassId]) -> f64 {
        let ends = |class: &LiveClass| matches!(class.role, Some(OperationRole::End(_)));
        let mean = |of_ends: bool| {
            let prices = bounds.iter().map(|id| self.attach.class(*id));
            let prices = prices.filter(|class| ends(class) == of_ends);
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
        classes: &Range<u32>,
        has_steps: bool,
    ) {
        let by_thread = !matches!(spec.bounds, Bounds::One(Bound::Function(_)));
        // Each place of a probe says itself where its argument lies.
        let of_probe = matches!(spec.bounds, Bounds::Pair(Bound::Usdt { .. }, _));
        let (kind, index) = spec
            .class
            .map_or((ARGUMENT_NONE, 0), |c: ClassArgument| (c.kind, if of_probe { 0 } else { c.index }));
        let mut flags = if by_thread { OPERATION_BY_THREAD } else { 0 };
        if has_steps {
            flags |= OPERATION_STEPS;
        }
        if adapter.orders().balance {
            flags |= OPERATION_BALANCE;
        }
        let begin = match &spec.bounds {
            Bounds::One(bound) | Bounds::Pair(bound, _) => bound,
        };
        let (words_begin, words_end) =
            self.words.lists.of_operation(number, matches!(begin, Bound::Function(_)));
        let control = OperationControl {
            flags,
            words_begin,
            words_end,
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
}
