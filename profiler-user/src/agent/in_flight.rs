//! Calls in flight, as consumers may look at them: open calls of functions that are recorded, out of the threads' storage.
//!
//! Only calls whose ends are watched now: when links are closed what is kept of open calls stands still, and is forgotten with the end of the window. Whether a call goes on after
//! that is told by its thread, as long as that does not run (`consumers/expect/flight.rs`). A call that was
//! left without an end that was seen (`longjmp`, a signal handler that does not come back) is told by the stack of its thread, where that waits.

use super::Agent;
use super::attach::Attachments;
use super::class::{LinkState, LiveClass, OpenWindow};
use super::clock::now_ns;
use super::consumers::Threads;
use super::event_row::{is_pair, no_pair};
use crate::prober::{OpenCall, OpenRecord, UNKNOWN};
use crate::target::{Target, ThreadLook};
use profiler_core::class::{ClassId, RecordKind};
use profiler_core::recording::{CallContext, CallPlace, EventRow, WindowKind};

/// The threads of the target.
struct Own<'a> {
    attach: &'a Attachments,
    target: &'a Target,
}

impl Agent {
    /// Shows consumers the calls in flight, if any wants to look.
    pub(super) fn show_calls_in_flight(&mut self, now_ns: u64) {
        let Self { journal, attach, target, .. } = self;
        journal.consumers.look(&Own { attach, target }, now_ns);
    }
}

impl Threads for Own<'_> {
    fn tids(&self) -> Vec<i32> {
        self.target.threads().unwrap_or_default()
    }

    fn open_calls(&self, tids: &[i32]) -> Vec<OpenCall> {
        let mut open = self.attach.kernel().open_calls(tids);
        open.retain(|call| {
            let class = self.attach.classes().get(call.class.0 as usize);
            class.is_some_and(|class| {
                let is_recorded = |window: &OpenWindow| class.is_timed(window.kind);
                class.kind == RecordKind::Record && watching(class).is_some_and(is_recorded)
            })
        });
        open
    }

    fn are_ends_seen(&self, class: ClassId) -> bool {
        // Some are left by a throw or `longjmp`, whose thread may wait deeper in the stack.
        let is_left = self.attach.kernel().classes().counters(class).unwound > 0;
        let class = self.attach.classes().get(class.0 as usize);
        !is_left && class.and_then(watching).is_some_and(|window| !self.attach.is_tripped(window.group))
    }

    fn is_in_bursts(&self, class: ClassId) -> bool {
        let class = self.attach.classes().get(class.0 as usize);
        !class.is_some_and(|class| match &class.state {
            LinkState::Open(window) => window.kind == WindowKind::Trace,
            _ => false,
        })
    }

    fn look(&self, tid: i32) -> Option<ThreadLook> {
        self.target.look_at_thread(tid, now_ns())
    }

    fn waits_in(&self, tid: i32) -> Option<(i64, u64)> {
        // Not before it was: a call that ends in between has not waited there.
        self.target.waits_in(tid).map(|waits_in| (waits_in, now_ns()))
    }

    fn row(&self, call: &OpenCall, look: &ThreadLook) -> Option<EventRow> {
        let mut record = self.attach.kernel().open_record(call)?;
        let (outer, depth) = record.around;
        record.around = no_pair(outer, depth, |id| is_pair(self.attach.classes(), id));
        let ends_at = self.target.stack_pointer(call.tid).filter(|_| record.slot != 0);
        let is_left = ends_at.is_some_and(|stack| stack > record.slot);
        let class = self.attach.classes().get(call.class.0 as usize)?;
        let lost = class.code.lost_arguments;
        let args = record.args.map_or([None; 6], |args| lost.kept(args));
        (!is_left).then(|| row(&record, args, self.target.pid(), look))
    }
}

/// The window whose links see the ends of calls: it is open, or calls in flight are still watched to their end.
fn watching(class: &LiveClass) -> Option<&OpenWindow> {
    match &class.state {
        LinkState::Open(window) => Some(window),
        LinkState::Closing(window, _) if class.is_draining() => Some(window),
        _ => None,
    }
}

/// The row of the call, had it ended at that look. What it used is known as far as its begin and the look say.
fn row(record: &OpenRecord, args: [Option<u64>; 6], pid: i32, look: &ThreadLook) -> EventRow {
    let account = record.account.as_ref();
    // The kernel side keeps the low bits.
    let faults = |now: u64, begin: u32| Some(u64::from((now as u32).wrapping_sub(begin)));
    EventRow {
        time_ns: record.call.begin_ns,
        class_id: record.call.class.0,
        // OK because process and thread ids are positive.
        pid: pid as u32,
        tid: record.call.tid as u32,
        duration_ns: Some(look.at_ns.saturating_sub(record.call.begin_ns)),
        args,
        nested_cost_ns: Some(record.nested_cost_ns),
        place: CallPlace {
            outer_class: record.around.0.map(|class| class.0),
            depth: Some(record.around.1),
            return_address: None,
            result: None,
        },
        context: CallContext {
            runnable_ns: account
                .filter(|account| account.runnable_ns != UNKNOWN)
                .map(|account| look.waited_ns.saturating_sub(account.runnable_ns)),
            minor_faults: account.and_then(|account| faults(look.minor_faults, account.minor_faults)),
            major_faults: account.and_then(|account| faults(look.major_faults, account.major_faults)),
            ..CallContext::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_flight_has_the_row_that_it_would_have_if_it_ended_now() {
        let call = OpenCall { class: ClassId(3), tid: 7, begin_ns: 1_000 };
        let record = OpenRecord {
            call,
            slot: 0x7f00,
            args: None,
            account: None,
            around: (Some(ClassId(2)), 1),
            nested_cost_ns: 40,
        };
        let look =
            ThreadLook { at_ns: 5_000, waited_ns: 900, minor_faults: 1 << 33, ..ThreadLook::default() };
        let own = row(&record, [Some(9), None, None, None, None, None], 5, &look);
        assert_eq!((own.time_ns, own.duration_ns, own.nested_cost_ns), (1_000, Some(4_000), Some(40)));
        assert_eq!((own.pid, own.tid, own.class_id, own.place.outer_class), (5, 7, 3, Some(2)));
        assert_eq!((own.context, own.args[0]), (CallContext::default(), Some(9)));
    }
}
