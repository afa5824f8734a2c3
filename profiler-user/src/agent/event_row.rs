//! From the kernel's record of a call to its row.

use super::class::LiveClass;
use crate::prober::{self, Call, UNKNOWN, UNKNOWN_COUNT};
use profiler_core::class::ClassId;
use profiler_core::recording::{CallContext, CallPlace, EventRow};

/// The row of a call of one of these classes.
pub(super) fn event_row(call: &Call, classes: &[LiveClass]) -> EventRow {
    let class = classes.get(call.class.0 as usize);
    let args = class.zip(call.args).map_or([None; 6], |(class, args)| class.code.lost_arguments.kept(args));
    let around = call.around.map(|(depth, outer)| no_pair(outer, depth, |id| is_pair(classes, id)));
    EventRow {
        time_ns: call.time_ns,
        class_id: call.class.0,
        pid: call.pid,
        tid: call.tid,
        duration_ns: call.duration_ns,
        args,
        nested_cost_ns: call.duration_ns.map(|_| call.nested_cost_ns),
        place: CallPlace {
            outer_class: around.and_then(|(outer, _)| outer).map(|class| class.0),
            depth: around.map(|(_, depth)| depth),
            return_address: call.return_address,
            result: call.result,
        },
        context: context(&call.context),
    }
}

/// A pair of sites that measures what lies between two time stamps.
pub(super) fn is_pair(classes: &[LiveClass], id: ClassId) -> bool {
    classes.get(id.0 as usize).is_some_and(|class| class.candidate.stamps_of.is_some())
}

/// The call around a call, and how many there are. A pair of sites lies a few instructions apart, and nothing is called between them: one that seems to be
/// around a call was open when its sites were taken off, and what is around it is not known.
pub(super) fn no_pair(
    outer: Option<ClassId>,
    depth: u32,
    is_pair: impl Fn(ClassId) -> bool,
) -> (Option<ClassId>, u32) {
    match outer {
        Some(id) if is_pair(id) => (None, depth.saturating_sub(1)),
        outer => (outer, depth),
    }
}

/// What is known of a context. Time off CPU falls short by what interrupts and the hypervisor took from the CPU, and time on a run queue
/// does not: the rest is never below nothing.
fn context(seen: &prober::CallContext) -> CallContext {
    let known = |value: u64| (value != UNKNOWN).then_some(value);
    let count = |value: u32| (value != UNKNOWN_COUNT).then_some(u64::from(value));
    let (off_cpu_ns, runnable_ns) = (known(seen.off_cpu_ns), known(seen.runnable_ns));
    CallContext {
        off_cpu_ns,
        runnable_ns,
        blocked_ns: off_cpu_ns.zip(runnable_ns).map(|(off, runnable)| off.saturating_sub(runnable)),
        io_wait_ns: known(seen.io_wait_ns),
        minor_faults: count(seen.minor_faults),
        major_faults: count(seen.major_faults),
        read_bytes: known(seen.read_bytes),
        written_bytes: known(seen.written_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_time_stamps_is_around_no_call() {
        let (pair, outer) = (ClassId(2), ClassId(1));
        assert_eq!(no_pair(Some(pair), 1, |id| id == pair), (None, 0));
        assert_eq!(no_pair(Some(outer), 1, |id| id == pair), (Some(outer), 1));
        assert_eq!(no_pair(None, 0, |_| true), (None, 0));
    }

    #[test]
    fn the_blocked_part_is_what_is_left_and_unknown_where_a_term_is() {
        let seen = prober::CallContext {
            off_cpu_ns: 900,
            runnable_ns: 200,
            minor_faults: 0,
            read_bytes: 7,
            ..prober::CallContext::NOTHING
        };
        let expected = CallContext {
            off_cpu_ns: Some(900),
            runnable_ns: Some(200),
            blocked_ns: Some(700),
            minor_faults: Some(0),
            read_bytes: Some(7),
            ..CallContext::default()
        };
        assert_eq!(context(&seen), expected);
        let stolen = prober::CallContext { off_cpu_ns: 100, ..seen };
        assert_eq!(context(&stolen).blocked_ns, Some(0));
        let unknown = prober::CallContext { off_cpu_ns: UNKNOWN, ..seen };
        assert_eq!((context(&unknown).blocked_ns, context(&unknown).runnable_ns), (None, Some(200)));
        assert_eq!(context(&prober::CallContext::NOTHING), CallContext::default());
    }
}
