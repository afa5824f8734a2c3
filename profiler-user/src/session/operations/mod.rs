//! Operations while the run goes on: which functions bound them, which of them are recorded, what is told about them.
//!
//! What: [`bounds`] and [`inner`] make classes of the functions that [`crate::config`] names, [`keep`] keeps them attached under quotas;
//! [`screens`] watches what system calls and [`tracepoints`] cost, which have none;
//! [`share`] divides the budget among operations; [`slices`] attaches inner functions for a part of the time; [`window`] reads the kernel's counts once a revision, asks the policy (`profiler_core::adapt`) and writes its
//! orders; [`hook`] runs `--on-cycle`. Why apart from planner and controller: bounds stay attached for every operation,
//! recorded or not, and inner functions follow the policy. Both keep to a share of the budget that the plan leaves alone.
//!
//! The budget of operations: screening (the bounds) comes first, then hits of inner functions outside recorded operations,
//! which pay their traps all the same; what is left records. What is too dear is attached for a part of each second: quotas come from what a
//! second leaves (`profiler_core::adapt::spending`).

mod asked;
mod bounds;
mod complete;
mod cycles;
mod hook;
mod inner;
mod keep;
mod losses;
mod probes;
mod screens;
mod share;
mod slices;
mod starving;
mod tracepoints;
mod window;

use super::Session;
use super::attach::{Gone, now_ns};
use super::class::{LiveClass, OperationRole};
use crate::config::{Bounds, OperationConfig, OperationSpec};
use crate::failure::Failure;
use crate::prober::OFF_CPU_UNKNOWN;
use crate::prober::{LinkKind, MAX_OPERATIONS, OperationCounters, OperationReader, OperationRecord};
use hook::CycleHook;
use profiler_core::adapt::portions::Demand;
use profiler_core::adapt::spending::{Span, Taken};
use profiler_core::adapt::{AdaptConfig, Adapter, PolicyKind};
use profiler_core::class::ClassId;
use profiler_core::clients::operations::slices::SliceClock;
use profiler_core::clients::operations::starved::Starved;
use profiler_core::recording::{ChangeKind, NotObserved, OperationClassRow, OperationRow};
use screens::Screen;
use std::collections::BTreeMap;
use std::ops::Range;

/// Records taken from the ring in one turn.
const DRAIN_LIMIT: usize = 100_000;
/// Classes of an operation beside those of names: its own, and `(other)`.
const RESERVED_CLASSES: u32 = 2;
/// Kernel memory bounds the classes of all operations together: 256 bytes per CPU each.
const MOST_CLASSES: usize = 65_536;

/// Classes that the kernel side must hold.
///
/// # Errors
/// They are too many.
pub fn operation_classes(asked: &OperationConfig) -> Result<u32, Failure> {
    let count = asked.operations.len();
    if count == 0 {
        return Ok(0);
    }
    if count > MAX_OPERATIONS {
        return Err(Failure::usage(format!(
            "{count} operations are asked for; at most {MAX_OPERATIONS} are followed"
        )));
    }
    let max_classes = asked.settings.max_classes;
    let all = count * (max_classes + RESERVED_CLASSES as usize);
    if all > MOST_CLASSES {
        return Err(Failure::usage(format!(
            "--adapt max_classes={max_classes} for {count} operations: at most {MOST_CLASSES} classes fit together"
        )));
    }
    // OK because it is at most 65,536.
    Ok(all as u32)
}

/// Kinds of links that follow these operations, of those that are made of functions and probes.
#[must_use]
pub fn link_kinds(operations: &[OperationSpec]) -> Vec<LinkKind> {
    let mut kinds = Vec::new();
    for operation in operations {
        match &operation.bounds {
            Bounds::One(bound) if bound.family() == 0 => {
                kinds.extend([LinkKind::OperationExits, LinkKind::OperationReturn]);
            }
            Bounds::Pair(bound, _) if bound.family() == 0 => {
                kinds.extend([LinkKind::OperationBegin, LinkKind::OperationEnd]);
            }
            Bounds::One(_) | Bounds::Pair(..) => {}
        }
    }
    kinds
}

/// One operation that is followed.
struct Operation {
    /// Number, everywhere.
    number: u32,
    name: String,
    /// Its functions: begin, then end. Empty for system calls and tracepoints.
    bounds: Vec<ClassId>,
    /// Tracepoints bound it.
    by_tracepoints: bool,
    /// Its classes: the first is its own, the second `(other)`.
    classes: Range<u32>,
    adapter: Adapter,
    /// Names of classes, as known so far.
    names: BTreeMap<u32, String>,
    /// Counters of its classes at the last cut.
    last: Vec<OperationCounters>,
    /// Start of the present window, ktime ns.
    since_ns: u64,
    /// Part of the window before the present one in which bounds were attached, ns, and until when it was looked at.
    watched_ns: u64,
    looked_ns: u64,
    /// Bounds were attached when they were last looked at.
    attached: bool,
    /// They have been detached since operations began that are still open, and ends are no longer watched for.
    stale: bool,
    /// About the longest response time, s; 0: none has ended yet.
    longest_s: f64,
    /// Recording is on in the kernel.
    monitoring: bool,
    /// Monitoring cycle and its start, ktime ns.
    cycle: u64,
    cycle_since_ns: u64,
    /// Mean cost of a recorded operation, ns, smoothed; 0: none was seen.
    record_ns: f64,
    /// Price of screening one operation with warm caches, and what they cost more as cold as they are, ns.
    screen_ns: f64,
    screen_cold_ns: f64,
    /// What it took in the last window in which it was watched.
    demand: Demand,
    starved: Starved,
    /// What screening it may cost, CPU s/s, and what its bounds took of late.
    most_screening: f64,
    span: Span,
    /// Its bounds stay off until this time, ktime ns: one of them has used up its quota. 0: none has.
    off_until_ns: u64,
    /// It is not watched any more: its system calls or tracepoints were too dear, or no begin or no end of it can be attached.
    lost: bool,
    /// For the live line: operations per second, share recorded of the last window.
    rate_hz: f64,
    recorded_share: f64,
    /// Operations and recorded ones so far.
    population: u64,
    sample: u64,
    /// Notes that were given once.
    said_dear: bool,
}

/// A class that is kept attached.
struct Kept {
    class: ClassId,
    /// Not before this time, ktime ns.
    next_ns: u64,
    /// The breaker took it off so many times in a row.
    trips: u32,
    /// So many times in a row it was not there when it was to be attached, and that was the last: it is left out until modules come.
    missed: u32,
    is_left_out: bool,
    /// Its own quota has ended its window, and that was not looked at yet.
    tripped: bool,
    /// Hits and ends when quotas were given last, and what it took.
    seen: (u64, u64),
    taken: Taken,
}

impl Kept {
    fn new(class: ClassId) -> Self {
        Self {
            class,
            next_ns: 0,
            trips: 0,
            missed: 0,
            is_left_out: false,
            tripped: false,
            seen: (0, 0),
            taken: Taken::default(),
        }
    }
}

/// Time off CPU inside an operation; its clock is not that of the response time, so that it may seem longer.
fn off_cpu_ns(record: &OperationRecord) -> Option<u64> {
    (record.off_cpu_ns != OFF_CPU_UNKNOWN).then(|| record.off_cpu_ns.min(record.duration_ns))
}

/// All operations.
pub struct Operations {
    list: Vec<Operation>,
    config: AdaptConfig,
    policy: PolicyKind,
    reader: OperationReader,
    /// Functions inside them, for details and for the measure.
    inner: Vec<Kept>,
    bounds: Vec<Kept>,
    /// Counters of inner classes at the last cut: hits, ends.
    inner_last: BTreeMap<ClassId, (u64, u64)>,
    /// Inner functions stay off, and nothing is recorded, until this time at least, ktime ns: one of them has used up its quota. 0: none has.
    inner_until_ns: u64,
    /// That happened since the last revision.
    inner_tripped: bool,
    /// Those that are being attached.
    asked: Option<asked::Asked>,
    /// All inner functions are attached; else nothing is recorded, because it would be recorded without them.
    complete: bool,
    /// That changed in the present window: the policy does not see it.
    mixed: bool,
    /// At the last revision the kernel recorded nothing because of a quota that was used up, and no inner function was off.
    lacked: bool,
    /// System calls and tracepoints that bound operations.
    screens: Vec<Screen>,
    /// When inner functions are attached, where that is not always.
    slices: SliceClock,
    /// Inner functions stay attached until this time at least, ktime ns.
    linger_ns: u64,
    hook: Option<CycleHook>,
    /// When the quotas were given last, ktime ns.
    quotas_ns: u64,
    /// What all of them took of late, what was left of it when quotas were given last, ns, and what the screens had taken by then, ns.
    span: Span,
    left_ns: f64,
    screened_ns: f64,
    /// What bounds wanted of it, ns.
    bounds_want_ns: f64,
    /// Sum of the numbers given to classes when their names were read.
    names_given: u64,
    /// CPU s/s that operations cost, of the last window.
    cost: f64,
    begun: bool,
    /// It was told that slices begin, that inner functions are too dear, and that slices wait for ever.
    said_slices: bool,
    said_inner: bool,
    said_starving: bool,
    /// Functions inside make a measure of their own, without which nothing is recorded.
    has_measure: bool,
}

impl Operations {
    /// Rows of recorded operations that are in the ring.
    fn drain(&mut self) -> Vec<OperationRow> {
        let mut rows = Vec::new();
        self.reader.drain(DRAIN_LIMIT, |r| {
            rows.push(OperationRow {
                operation: r.operation,
                class_id: r.class,
                tid: r.tid,
                begin_ns: r.begin_ns,
                duration_ns: r.duration_ns,
                calls: r.calls,
                inner_ns: r.inner_ns,
                measure: r.measure,
                cost_ns: r.cost_ns,
                off_cpu_ns: off_cpu_ns(r),
                cycle: r.cycle,
                stretch: r.stretch,
                censored: false,
            });
        });
        rows
    }

    /// Rows of classes that were given names since the last call.
    fn new_classes(&mut self) -> Vec<OperationClassRow> {
        let mut rows = Vec::new();
        for new in self.reader.new_names() {
            let Some(operation) = self.list.get_mut(new.operation as usize) else { continue };
            rows.push(OperationClassRow {
                operation: new.operation,
                class_id: new.class,
                operation_name: operation.name.clone(),
                class_name: new.name.clone(),
            });
            operation.names.insert(new.class, new.name);
        }
        rows
    }
}

impl Operation {
    /// Calibrated price of screening one operation as the ledger charges it, ns.
    fn screened_ns(&self) -> f64 {
        self.screen_ns + self.screen_cold_ns
    }

    /// On the calibrated price of screening. That of tracepoints is not compared in windows off, which leave them on.
    fn screen_factor(&self, factor: f64) -> f64 {
        if self.bounds.is_empty() { 1.0 } else { factor }
    }

    fn by_syscalls(&self) -> bool {
        self.bounds.is_empty() && !self.by_tracepoints
    }

    fn class_name(&self, class: u32) -> String {
        self.names.get(&class).cloned().unwrap_or_else(|| format!("class {class}"))
    }
}

/// Watched time by now, ns, where it was `watched_ns` when it was looked at last, with the bounds attached or not, and the bounds'
/// last window in common lasts or lasted over `span`.
fn look(watched_ns: u64, (looked_ns, attached): (u64, bool), (begin_ns, end_ns): (u64, u64)) -> u64 {
    if attached && begin_ns <= looked_ns && end_ns < looked_ns {
        // It was over when it was still thought to be open.
        return watched_ns.saturating_sub(looked_ns - end_ns);
    }
    watched_ns + end_ns.saturating_sub(begin_ns.max(looked_ns))
}

impl Session {
    /// A class that neither planner nor controller has a say in.
    pub(super) fn is_apart(&self, id: ClassId) -> bool {
        self.attach.class(id).role.is_some() || self.is_metric(id)
    }

    /// What operations may cost, CPU s/s.
    fn operations_budget(&self) -> f64 {
        self.arbiter().operations()
    }

    /// What they cost, CPU s/s.
    pub(super) fn operations_cost(&self) -> f64 {
        self.operations.as_ref().map_or(0.0, |o| o.cost)
    }

    /// Takes what was recorded out of the ring.
    pub(super) fn drain_operations(&mut self) {
        let Some(operations) = &mut self.operations else { return };
        let rows = operations.drain();
        if !rows.is_empty() {
            self.writer.send(rows);
        }
    }

    /// For the live line.
    pub(super) fn operations_line(&self) -> String {
        let Some(operations) = &self.operations else { return String::new() };
        let mut line = String::new();
        for o in &operations.list {
            let state = if o.lost || !o.attached {
                ", not watched now"
            } else if operations.is_inner_paused() {
                ", details off"
            } else if !o.monitoring {
                ", baseline"
            } else {
                ""
            };
            line.push_str(&format!(
                "; {}: {:.0}/s, {:.1} % recorded now, {} of {}{state}",
                o.name,
                o.rate_hz,
                o.recorded_share * 100.0,
                o.sample,
                o.population
            ));
        }
        line
    }

    /// Attaches what was named before a launched program runs.
    ///
    /// # Errors
    /// The opener is gone.
    pub(super) fn attach_operations(&mut self) -> Result<(), Gone> {
        if self.operations.is_some() {
            self.keep_bounds(now_ns());
            self.attach_all()?;
            // What became of it.
            self.keep_bounds(now_ns());
        }
        Ok(())
    }

    /// One turn: keeps functions attached, and once a revision asks the policy.
    pub(super) fn follow_operations(&mut self, now: u64) {
        if self.operations.is_none() || !self.sampling_started {
            return;
        }
        self.turn_slices(now);
        self.keep_bounds(now);
        self.look_at_inner();
        self.look_at_time();
        let Some(operations) = &mut self.operations else { return };
        if let Some(note) = operations.hook.as_mut().and_then(CycleHook::poll) {
            self.progress.note(&note);
        }
        // OK because `revise_s` was checked.
        let revise_ns = (operations.config.revise_s * 1e9) as u64;
        let due = operations.list.iter().any(|o| now.saturating_sub(o.since_ns) >= revise_ns);
        if due && operations.begun {
            self.revise_operations(now_ns());
        }
    }

    /// Adds up for how long all bounds of an operation were watched: from when the gate of the last one opened to when the
    /// first one ended, which of a trip is heard of later.
    fn look_at_time(&mut self) {
        let now = now_ns();
        let Some(operations) = &mut self.operations else { return };
        let mut lost = Vec::new();
        for o in &mut operations.list {
            let before = o.lost;
            // One of several places that the kernel refuses is missing, and was told.
            let bounds: Vec<_> =
                o.bounds.iter().map(|id| self.attach.class(*id)).filter(|c| c.refused.is_none()).collect();
            let ends = |class: &LiveClass| matches!(class.role, Some(OperationRole::End(_)));
            let paired = o.bounds.iter().any(|id| ends(self.attach.class(*id)));
            o.lost |= !o.bounds.is_empty()
                && (bounds.iter().all(|c| ends(c)) || (paired && !bounds.iter().any(|c| ends(c))));
            if o.lost && !before {
                lost.push(o.name.clone());
            }
            let attached = !o.lost && bounds.iter().all(|class| class.is_open());
            let draining = bounds.iter().any(|class| class.is_draining());
            let (mut begin_ns, mut end_ns) = (0, if o.lost { o.looked_ns } else { now });
            for class in bounds {
                let (begin, end) = class.span(now);
                (begin_ns, end_ns) = (begin_ns.max(begin), end_ns.min(end));
            }
            o.watched_ns = look(o.watched_ns, (o.looked_ns, o.attached), (begin_ns, end_ns));
            o.stale |= o.attached && (!attached || begin_ns > o.looked_ns);
            if o.stale && !draining {
                // What is open now may have lost its end.
                let table = self.attach.kernel().operations();
                table.adjust(o.number, |c| c.generation = c.generation.wrapping_add(1));
                o.stale = false;
            }
            (o.looked_ns, o.attached) = (now, attached);
        }
        for name in lost {
            self.note_lost(&name);
        }
    }

    /// No begin or no end of an operation can be attached: the other is of no use.
    fn note_lost(&mut self, name: &str) {
        let why = "none of its begins, or none of its ends, can be attached (see above)";
        let text = format!("operation '{name}' is not watched: {why}");
        self.progress.note(&text);
        self.note_change(ChangeKind::Stop, None, text);
        self.meta.not_observed.push(NotObserved { what: format!("operation '{name}'"), why: why.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::look;

    #[test]
    fn what_was_watched_is_counted_between_gates() {
        // Opened 30 ms before this look, which was 100 ms after the last one.
        assert_eq!(look(0, (1_000, false), (1_070, 1_100)), 30);
        // Open all the time.
        assert_eq!(look(30, (1_100, true), (1_070, 1_200)), 130);
        // Tripped since the last look, ...
        assert_eq!(look(130, (1_200, true), (1_070, 1_205)), 135);
        // ... or before it, which is heard of only now.
        assert_eq!(look(130, (1_200, true), (1_070, 1_150)), 80);
        // Looked at again later: nothing new.
        assert_eq!(look(80, (1_300, false), (1_070, 1_150)), 80);
        // Opened and tripped between two looks.
        assert_eq!(look(80, (1_300, false), (1_310, 1_315)), 85);
        // Opened again before anybody saw that it had been off.
        assert_eq!(look(80, (1_300, true), (1_350, 1_400)), 130);
        // Two bounds that were never attached together.
        assert_eq!(look(0, (1_000, false), (1_070, 1_050)), 0);
    }
}
