//! Reads and writes for operations: fills what their client sees, executes what only they order, writes their rows. Nothing is decided
//! here.

use super::attach::Attachments;
use super::class::LiveClass;
use super::cycle_hook::CycleHook;
use super::journal::Progress;
use super::steps::{SeenStacks, SeenSteps, Steps};
use super::view::link_of;
use crate::prober::operation::{OPERATION_MONITORING, RECORD_INCOMPLETE};
use crate::prober::{
    Kernel, OFF_CPU_UNKNOWN, OPERATION_RECORDED, OpenOperation, OperationReader, OperationRecord,
    OperationTable, SyscallWatch, TracepointWatch, histogram,
};
use crate::recording::WriterHandle;
use profiler_core::class::ClassId;
use profiler_core::clients::operations::Operations;
use profiler_core::recording::{OperationClassRow, OperationHistogramRow, OperationRow, StepRow, WindowKind};
use profiler_core::run::order::operations::{EndedCycle, OperationOrder};
use profiler_core::run::view::operations::{
    Hits, Obstacle, OperationClassView, OperationsView, ScreenView, Screened,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Records taken from the ring in one turn.
const DRAIN_LIMIT: usize = 100_000;

/// Programs on tracepoints that bound operations, as long as it lives.
pub(super) enum Watch {
    /// Of all system calls.
    Syscalls { _watch: SyscallWatch },
    /// Of one operation's tracepoints, counted in its base class.
    Tracepoints { _watch: TracepointWatch, operation: u32, base_class: u32 },
}

impl Watch {
    pub fn of_syscalls(watch: SyscallWatch) -> Self {
        Self::Syscalls { _watch: watch }
    }

    pub fn of_tracepoints(watch: TracepointWatch, operation: u32, base_class: u32) -> Self {
        Self::Tracepoints { _watch: watch, operation, base_class }
    }

    /// What it screens.
    pub fn what(&self) -> Screened {
        match self {
            Self::Syscalls { .. } => Screened::Syscalls,
            Self::Tracepoints { operation, .. } => Screened::Tracepoints(*operation),
        }
    }

    fn read(&self, kernel: &Kernel) -> ScreenView {
        let (own, others) = match self {
            Self::Syscalls { .. } => {
                let global = kernel.classes().global_counters();
                (global.operation_syscalls, global.operation_syscalls_other)
            }
            Self::Tracepoints { base_class, .. } => {
                let counters = kernel.operations().counters(*base_class);
                (counters.screened, counters.screened_other)
            }
        };
        ScreenView { what: self.what(), own, others }
    }
}

/// Names of an operation and of its classes.
struct Names {
    operation: String,
    classes: Range<u32>,
    /// As known so far.
    of_classes: BTreeMap<u32, String>,
}

/// What operations are read from and written to.
pub(super) struct OperationIo {
    reader: OperationReader,
    /// Of calls in order, if they are asked for.
    steps: Option<Steps>,
    names: Vec<Names>,
    /// Sum of the numbers given to classes when their names were read.
    names_given: u64,
    watches: Vec<Watch>,
    pub hook: Option<CycleHook>,
    /// Buffers of counters that the view does not show.
    spare: Vec<Vec<crate::prober::OperationCounters>>,
}

impl OperationIo {
    pub fn new(reader: OperationReader, steps: Option<Steps>, hook: Option<CycleHook>) -> Self {
        Self {
            reader,
            steps,
            names: Vec::new(),
            names_given: 0,
            watches: Vec::new(),
            hook,
            spare: Vec::new(),
        }
    }

    /// One more operation, whose own class and `(other)` have names already.
    pub fn add(&mut self, operation: String, classes: Range<u32>, of_classes: BTreeMap<u32, String>) {
        self.names.push(Names { operation, classes, of_classes });
    }

    pub fn watch(&mut self, watch: Watch) {
        self.watches.push(watch);
    }

    /// Where classes stand.
    pub fn see_classes(client: &Operations, attach: &Attachments, now: u64, view: &mut OperationsView) {
        let table = attach.kernel().operations();
        // Before where classes stand: what is lost from here on was not seen.
        view.losses = table.losses();
        let see = |id: ClassId| see(attach, attach.class(id), now);
        view.inner.clear();
        view.inner.extend(client.inner_classes().map(see));
        view.bounds.clear();
        view.bounds.extend(client.bound_classes().map(see));
        view.lacks_details = table.lacks_details();
        view.has_hits = false;
    }

    /// Hits of the classes.
    pub fn see_hits(kernel: &Kernel, view: &mut OperationsView) {
        for class in view.inner.iter_mut().chain(&mut view.bounds) {
            let c = kernel.classes().counters(class.id);
            class.hits = Hits { begins: c.attempted, ends: c.returns.wrapping_add(c.orphans) };
        }
        view.has_hits = true;
    }

    /// What screens have counted.
    pub fn see_screens(&self, kernel: &Kernel, view: &mut OperationsView) {
        view.screens.clear();
        view.screens.extend(self.watches.iter().map(|watch| watch.read(kernel)));
    }

    /// Counters of classes of operations, as far as they were met.
    pub fn see_counts(&mut self, table: &OperationTable, view: &mut OperationsView) {
        view.counts.append(&mut self.spare);
        view.counts.resize_with(self.names.len(), Vec::new);
        for ((number, names), counts) in (0..).zip(&self.names).zip(&mut view.counts) {
            counts.clear();
            let used = u64::from(names.classes.end).min(table.next_class(number));
            // OK because class numbers are below 2^16.
            counts.extend((names.classes.start..used as u32).map(|class| table.counters(class)));
        }
    }

    /// The view shows no counters of classes of operations.
    pub fn hide_counts(&mut self, view: &mut OperationsView) {
        self.spare.append(&mut view.counts);
    }

    /// Rows of the response times of all operations, by class.
    pub fn histograms(&self, table: &OperationTable) -> Vec<OperationHistogramRow> {
        let mut rows = Vec::new();
        for (operation, names) in (0..).zip(&self.names) {
            for class_id in names.classes.clone() {
                let Some(counts) = table.histogram(class_id) else { continue };
                rows.extend((0..).zip(counts.iter()).filter(|(_, count)| **count > 0).map(
                    |(bucket, count)| {
                        let (low_ns, high_ns) = histogram::bounds(bucket);
                        OperationHistogramRow { operation, class_id, low_ns, high_ns, count: *count }
                    },
                ));
            }
        }
        rows
    }

    /// Rows of recorded operations that are in the ring.
    pub fn drain(&mut self) -> Vec<OperationRow> {
        let has_steps = self.steps.is_some();
        let mut rows = Vec::new();
        self.reader.drain(DRAIN_LIMIT, |r| rows.push(recorded_row(r, has_steps)));
        rows
    }

    /// Rows of steps that are in the ring.
    pub fn drain_steps(&mut self) -> Vec<StepRow> {
        self.steps.as_mut().map_or_else(Vec::new, Steps::drain)
    }

    /// On which stacks steps were taken.
    pub fn stacks(&self) -> Option<SeenStacks> {
        self.steps.as_ref().map(Steps::stacks)
    }

    /// Return addresses of steps that lie there, by process.
    pub fn addresses_in<'a>(&'a self, range: &'a Range<u64>) -> impl Iterator<Item = (u32, u64)> + 'a {
        self.steps.iter().flat_map(|steps| steps.addresses_in(range))
    }

    /// Names of all classes, as known so far.
    pub fn class_names(&self) -> Vec<OperationClassRow> {
        let of = |(operation, names): (u32, &Names)| {
            let row = |(class_id, name): (&u32, &String)| OperationClassRow {
                operation,
                class_id: *class_id,
                operation_name: names.operation.clone(),
                class_name: name.clone(),
            };
            names.of_classes.iter().map(row).collect::<Vec<_>>()
        };
        (0..).zip(&self.names).flat_map(of).collect()
    }

    /// What was seen of steps.
    pub fn seen_steps(&self) -> SeenSteps {
        self.steps.as_ref().map_or_else(SeenSteps::default, Steps::seen)
    }

    /// Rows of classes that were given names since the last call, if there are such, or `surely`.
    pub fn new_names(&mut self, table: &OperationTable, surely: bool) -> Vec<OperationClassRow> {
        let given: u64 = (0..).zip(&self.names).map(|(number, _)| table.next_class(number)).sum();
        if given == std::mem::replace(&mut self.names_given, given) && !surely {
            return Vec::new();
        }
        let mut rows = Vec::new();
        for new in self.reader.new_names() {
            let Some(names) = self.names.get_mut(new.operation as usize) else { continue };
            rows.push(OperationClassRow {
                operation: new.operation,
                class_id: new.class,
                operation_name: names.operation.clone(),
                class_name: new.name.clone(),
            });
            names.of_classes.insert(new.class, new.name);
        }
        rows
    }

    /// Executes what only operations order.
    pub fn execute(
        &mut self,
        order: OperationOrder,
        attach: &mut Attachments,
        writer: &WriterHandle,
        progress: &Progress,
    ) {
        let table = attach.kernel().operations();
        match order {
            OperationOrder::Monitor { operation, on } => table.adjust(operation, |c| {
                c.flags = c.flags & !OPERATION_MONITORING | if on { OPERATION_MONITORING } else { 0 };
            }),
            OperationOrder::RecordingQuota { operation, quota_ns } => table.set_quota(operation, quota_ns),
            OperationOrder::NewGeneration(operation) => {
                table.adjust(operation, |c| c.generation = c.generation.wrapping_add(1));
            }
            OperationOrder::BeginCycle { operation, cycle, classes } => {
                table.adjust(operation, |c| c.cycle = cycle);
                table.begin_cycle(operation, classes);
            }
            OperationOrder::Rates(rates) => {
                for rate in rates {
                    table.order(rate.class, rate.threshold, rate.price_ns, rate.stretch);
                }
            }
            OperationOrder::DetailsEnd => table.details_end(),
            OperationOrder::DetailsBack { losses } => table.details_are_back(losses),
            OperationOrder::DetailsLost => table.details_are_lost(),
            OperationOrder::DropScreen(what) => self.watches.retain(|watch| watch.what() != what),
            OperationOrder::TellRefused(id) => {
                let class = attach.class(id);
                if let Some(why) = &class.refused {
                    progress.note(&format!("{} cannot be attached: {why}", class.candidate.name));
                }
            }
            OperationOrder::Refuse(id, why) => attach.class_mut(id).refused = Some(why),
            OperationOrder::Allow(id) => attach.class_mut(id).refused = None,
            OperationOrder::Windows(rows) => {
                writer.send(rows);
            }
            OperationOrder::Cycle(cycle) => self.end_cycle(cycle, writer, progress),
        }
    }

    /// Writes the row of a cycle, and runs the command for it.
    fn end_cycle(&mut self, cycle: EndedCycle, writer: &WriterHandle, progress: &Progress) {
        let EndedCycle { operation, mut row, unobserved, runs_command } = cycle;
        let names = self.names.get(row.operation as usize).map(|names| &names.of_classes);
        let name = |class: &u32| names.and_then(|names| names.get(class)).cloned();
        row.unobserved =
            unobserved.iter().map(|class| name(class).unwrap_or_else(|| format!("class {class}"))).collect();
        let hook = self.hook.as_mut().filter(|_| runs_command);
        if let Some(note) = hook.and_then(|hook| hook.run(&operation, &row)) {
            progress.note(&note);
        }
        writer.send(vec![row]);
    }
}

fn see(attach: &Attachments, class: &LiveClass, now: u64) -> OperationClassView {
    let left = if class.is_bound() && class.is_open() {
        attach.kernel().classes().remaining_quota(class.id)
    } else {
        i64::MAX
    };
    OperationClassView {
        id: class.id,
        link: link_of(class),
        is_draining: class.is_draining(),
        obstacle: Obstacle {
            refused: class.refused.is_some(),
            postponed: attach.is_postponed(class.id),
            held: attach.is_held(class.id, WindowKind::Trace),
        },
        span_ns: class.span(now),
        left,
        hits: Hits::default(),
        exit: class.exit,
        prices: class.prices,
    }
}

fn recorded_row(r: &OperationRecord, has_steps: bool) -> OperationRow {
    OperationRow {
        operation: r.operation,
        class_id: r.class,
        tid: r.tid,
        begin_ns: r.begin_ns,
        duration_ns: r.duration_ns,
        calls: r.calls,
        inner_ns: r.inner_ns,
        measure: r.measure,
        cost_ns: r.cost_ns,
        // Its clock is not that of the response time, so that it may seem longer.
        off_cpu_ns: (r.off_cpu_ns != OFF_CPU_UNKNOWN).then(|| r.off_cpu_ns.min(r.duration_ns)),
        cycle: r.cycle,
        stretch: r.stretch,
        censored: false,
        pid: Some(r.pid),
        steps_before: has_steps.then_some(r.steps.before),
        steps_after: has_steps.then_some(r.steps.after),
        incomplete: has_steps.then_some(r.steps.flags & RECORD_INCOMPLETE != 0),
    }
}

/// How many of these are that operation.
pub(super) fn open_of(open: &[(i32, OpenOperation)], operation: u32) -> u64 {
    open.iter().filter(|(_, open)| open.operation == operation).count() as u64
}

/// Rows of the recorded ones among operations that have not ended at `end_ns`, by thread.
pub(super) fn open_rows(open: Vec<(i32, OpenOperation)>, end_ns: u64) -> Vec<OperationRow> {
    open.into_iter()
        .filter(|(_, o)| o.flags & OPERATION_RECORDED != 0)
        .map(|(tid, o)| OperationRow {
            operation: o.operation,
            class_id: o.class,
            // OK because thread ids are positive.
            tid: tid as u32,
            begin_ns: o.begin_ns,
            duration_ns: end_ns.saturating_sub(o.begin_ns),
            calls: 0,
            inner_ns: 0,
            measure: 0,
            cost_ns: 0,
            off_cpu_ns: None,
            cycle: o.cycle,
            stretch: o.stretch,
            censored: true,
            pid: None,
            steps_before: None,
            steps_after: None,
            incomplete: None,
        })
        .collect()
}
