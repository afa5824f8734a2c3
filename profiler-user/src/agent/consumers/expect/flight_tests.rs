//! Calls that have not ended, as looks find them.

use super::tests::*;
use super::*;
use crate::prober::OpenCall;
use crate::target::ThreadLook;
use profiler_core::class::ClassId;
use std::cell::{Cell, RefCell};

/// A call of 800 bytes hangs on this thread from this time on.
const TID: i32 = 77;

/// Threads of which one may be in a call.
#[derive(Default)]
struct Fake {
    now_ns: Cell<u64>,
    /// When the call began.
    begin_ns: Cell<Option<u64>>,
    /// It takes the CPU.
    computes: bool,
    others: Vec<i32>,
    /// Calls of old on threads of their own, whose inputs the model does not know; if not `are_known`.
    old: Vec<i32>,
    /// When they began, after the start.
    old_ns: u64,
    are_known: bool,
    in_bursts: bool,
    /// The burst is over: nothing is open any more.
    is_over: Cell<bool>,
    is_tripped: bool,
    /// How often threads were given a CPU since.
    runs: Cell<u64>,
    counts_no_runs: bool,
    /// Rows that were asked for, by thread.
    rows: RefCell<Vec<i32>>,
    asked: RefCell<Vec<Vec<i32>>>,
}

impl Threads for Fake {
    fn tids(&self) -> Vec<i32> {
        [&self.others[..], &self.old[..], &[TID]].concat()
    }

    fn open_calls(&self, tids: &[i32]) -> Vec<OpenCall> {
        self.asked.borrow_mut().push(tids.to_vec());
        if self.is_over.get() {
            return Vec::new();
        }
        let begin_ns = self.begin_ns.get().filter(|_| tids.contains(&TID));
        let own = begin_ns.map(|begin_ns| OpenCall { class: ClassId(NEW), tid: TID, begin_ns });
        let old = self.old.iter().filter(|tid| tids.contains(tid) && self.now_ns.get() > self.old_ns);
        own.into_iter()
            .chain(old.map(|tid| OpenCall { class: ClassId(NEW), tid: *tid, begin_ns: START + self.old_ns }))
            .collect()
    }

    fn is_in_bursts(&self, _: ClassId) -> bool {
        self.in_bursts
    }

    fn are_ends_seen(&self, _: ClassId) -> bool {
        !self.is_tripped
    }

    fn look(&self, tid: i32) -> Option<ThreadLook> {
        assert!(tid == TID || self.old.contains(&tid), "the others are in no call");
        let at_ns = START + self.now_ns.get();
        let cpu_ns = if self.computes { at_ns } else { 5 };
        let arrivals = if self.counts_no_runs { 0 } else { 1 + self.runs.get() };
        Some(ThreadLook { at_ns, cpu_ns, is_runnable: self.computes, arrivals, ..ThreadLook::default() })
    }

    fn waits_in(&self, _: i32) -> Option<(i64, u64)> {
        (!self.computes).then_some((libc::SYS_futex, START + self.now_ns.get()))
    }

    fn row(&self, call: &OpenCall, look: &ThreadLook) -> Option<EventRow> {
        self.rows.borrow_mut().push(call.tid);
        let duration_ns = Some(look.at_ns - call.begin_ns);
        let mut row = super::tests::call(NEW, 3, 0, 0);
        if call.tid != TID && !self.are_known {
            row.args[1] = Some(1 << 40);
        }
        Some(EventRow {
            time_ns: call.begin_ns,
            tid: call.tid as u32,
            duration_ns,
            context: CallContext::default(),
            ..row
        })
    }
}

/// Turns every 10 ms up to a time, in which other calls go on. What was told, and when.
fn go_on(expect: &mut Expectations, fake: &Fake, ms: std::ops::Range<u64>) -> Vec<(u64, String)> {
    let mut told = Vec::new();
    for i in ms.start / 10..ms.end / 10 {
        let at_ns = i * 10 * MS;
        fake.now_ns.set(at_ns);
        expect.take(Rows::Calls(&[call(NEW, i * 3, at_ns, 0)]));
        if i % 13 == 0 {
            expect.look(fake, 40 * MS);
        }
        told.extend(turn(expect, at_ns).into_iter().map(|text| (i * 10, text)));
    }
    told
}

/// Between the look at the open calls and that at their threads a call may end, and its thread wait for the next one.
#[test]
fn what_a_thread_waits_in_after_the_end_of_a_call_is_not_the_calls() {
    let of = |duration_ns: u64| {
        let (mut flights, fake) = (Flights::default(), Fake::default());
        fake.begin_ns.set(Some(START));
        fake.now_ns.set(5 * MS);
        flights.look(&fake, 40 * MS, |_| Some(false), |_| Hold::Never);
        // OK because the thread's id is positive.
        let row = EventRow { tid: TID as u32, duration_ns: Some(duration_ns), ..call(NEW, 0, 0, 0) };
        flights.end(&row).map(|(_, (waits_in, _))| waits_in)
    };
    assert_eq!(of(5 * MS), Some(libc::SYS_futex));
    assert_eq!(of(5 * MS - 1), None);
}

#[test]
fn a_call_that_hangs_is_told_once_while_it_runs_with_its_resource_and_counts_once() {
    for (computes, resource) in [(false, "off CPU, blocked ("), (true, "CPU (")] {
        let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
        let fake = Fake { computes, ..Fake::default() };
        assert_eq!(go_on(&mut expect, &fake, 1_000..20_000), []);
        fake.begin_ns.set(Some(START + 20_001 * MS));
        let told = go_on(&mut expect, &fake, 20_010..30_000);
        let [(at_ms, line)] = told.as_slice() else { panic!("{told:?}") };
        assert!(
            line.contains("longer than expected: ")
                && line.contains(", thread 77, at 20.001000 s (00:00:20 UTC), n = 800"),
            "{line}"
        );
        assert!(line.contains(" so far: ") && line.contains(resource), "{line}");
        assert_eq!(line.contains("\n  seen to wait in, of such calls: futex (1)"), !computes, "{line}");
        assert!(
            line.contains("\n  this call is the evidence, ") && (20_140..20_500).contains(at_ms),
            "{at_ms}: {line}"
        );
        // It ends after all.
        fake.begin_ns.set(None);
        let row = EventRow { time_ns: START + 20_001 * MS, tid: TID as u32, ..call(NEW, 3, 0, 9_990 * MS) };
        expect.take(Rows::Calls(&[row]));
        assert_eq!(go_on(&mut expect, &fake, 30_000..31_000), []);
        let (_, noted) = end(&mut expect, 31_000 * MS);
        let function = &noted.functions[0];
        assert_eq!(
            (function.calls, function.alarms, function.told),
            (1_900 + 999 + 100 + 1, 1, 1),
            "{noted:?}"
        );
    }
}

#[test]
fn a_call_is_believed_when_it_is_seen_a_second_time() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    let fake = Fake::default();
    assert_eq!(go_on(&mut expect, &fake, 1_000..5_000), []);
    // As if each look found another one that had begun long ago.
    for i in 0..40 {
        fake.now_ns.set(10_000 * MS + i * 250 * MS);
        fake.begin_ns.set(Some(START + i));
        expect.look(&fake, 40 * MS);
        assert!(expect.flights.take_running().is_empty());
        assert_eq!(turn(&mut expect, fake.now_ns.get()), Vec::<String>::new());
    }
    expect.look(&fake, 40 * MS);
    assert_eq!([1, 2].map(|_| expect.flights.take_running().len()), [1, 0]);
}

#[test]
fn with_little_time_threads_are_asked_in_turns_and_those_with_calls_each_time() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    let fake = Fake { others: (1_000..1_100).collect(), begin_ns: Cell::new(Some(START)), ..Fake::default() };
    fake.now_ns.set(60 * MS);
    // Ten at a look, half of which are for calls.
    for _ in 0..48 {
        expect.look(&fake, 60_000);
    }
    let asked = fake.asked.borrow();
    assert!(asked.iter().all(|tids| tids.len() <= 5), "{asked:?}");
    let all: std::collections::BTreeSet<i32> = asked.iter().flatten().copied().collect();
    assert_eq!(all.len(), 101);
    let first = asked.iter().position(|tids| tids.contains(&TID)).unwrap();
    assert!(first == 20 && asked[first..].iter().all(|tids| tids.contains(&TID)), "{asked:?}");
}

#[test]
fn calls_that_go_on_have_their_threads_asked_in_turns_whether_they_are_due_or_not() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    let old: Vec<i32> = (200..212).collect();
    let fake =
        Fake { others: (1_000..1_100).collect(), old: old.clone(), are_known: true, ..Fake::default() };
    for i in 0..200 {
        fake.now_ns.set((10_000 + i) * MS);
        expect.look(&fake, 60_000);
    }
    fake.asked.borrow_mut().clear();
    // Two of the five threads of a look are for them. A millisecond a look: those that were judged are not due again.
    for i in 200..260 {
        fake.now_ns.set((10_000 + i) * MS);
        expect.look(&fake, 60_000);
    }
    let asked = fake.asked.borrow();
    for looks in asked.windows(8) {
        let all: std::collections::BTreeSet<i32> = looks.iter().flatten().copied().collect();
        assert!(old.iter().all(|tid| all.contains(tid)), "{looks:?}");
    }
}

/// A call that hangs begins in a burst, which is over before anybody looks a second time.
#[test]
fn a_call_that_hangs_is_told_though_its_burst_is_over_as_long_as_its_thread_has_not_run() {
    let hangs_after = |mut expect: Expectations, fake: Fake, runs_at_ms: u64| {
        assert_eq!(go_on(&mut expect, &fake, 1_000..5_000), []);
        fake.begin_ns.set(Some(START + 5_001 * MS));
        fake.now_ns.set(5_010 * MS);
        expect.look(&fake, 40 * MS);
        fake.is_over.set(true);
        let mut told = go_on(&mut expect, &fake, 5_020..runs_at_ms);
        fake.runs.set(1);
        told.extend(go_on(&mut expect, &fake, runs_at_ms..12_000));
        (told, expect.flights.kept())
    };
    let hangs = |fake: Fake, runs_at_ms: u64| {
        let (expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
        hangs_after(expect, fake, runs_at_ms)
    };
    let new = || Fake { in_bursts: true, ..Fake::default() };
    let (told, kept) = hangs(new(), 9_000);
    let [(at_ms, line)] = told.as_slice() else { panic!("{told:?}") };
    assert!(*at_ms < 9_000 && line.contains("has run for") && line.contains("off CPU, blocked"), "{told:?}");
    assert_eq!(kept, 0, "it may have ended");
    // It ran before that was too long; it was on the CPU; the links had gone when it was looked at.
    assert_eq!(hangs(new(), 5_150), (vec![], 0));
    assert_eq!(hangs(Fake { computes: true, ..new() }, 9_000), (vec![], 0));
    assert_eq!(hangs(Fake { is_tripped: true, ..new() }, 9_000), (vec![], 0));
    assert_eq!(hangs(Fake { counts_no_runs: true, ..new() }, 9_000), (vec![], 0));
    // The models know no call that was longer than the bursts of their recording. At the end of a run one may be open anyhow.
    assert_eq!(hangs_after(consumer_of_bursts(&[5, 5, 9]), new(), 9_000), (vec![], 0));
    assert_eq!(hangs_after(consumer_of_bursts(&[9, 9]), new(), 9_000).0.len(), 1);
}

#[test]
fn a_call_beyond_its_burst_stands_until_a_step_has_taken_it() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    let fake = Fake { begin_ns: Cell::new(Some(START)), in_bursts: true, ..Fake::default() };
    let look = |expect: &mut Expectations, at_ms: u64| {
        fake.now_ns.set(at_ms * MS);
        expect.look(&fake, 40 * MS);
    };
    look(&mut expect, 10);
    fake.is_over.set(true);
    // Due at the first of these, and then again at 313 ms.
    [250, 260, 270].into_iter().for_each(|at_ms| look(&mut expect, at_ms));
    let running = expect.flights.take_running();
    assert!(matches!(running.as_slice(), [one] if one.row.duration_ns == Some(250 * MS)), "{running:?}");
    // It may have ended since.
    look(&mut expect, 280);
    assert!(expect.flights.take_running().is_empty());
    look(&mut expect, 320);
    assert_eq!(expect.flights.take_running().len(), 1);
}

#[test]
fn calls_of_threads_that_have_exited_are_forgotten() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    let fake = Fake { old: (200..212).collect(), are_known: true, ..Fake::default() };
    fake.now_ns.set(1_000 * MS);
    expect.look(&fake, 40 * MS);
    assert_eq!(expect.flights.kept(), 12);
    // Nobody has seen the calls end.
    let fake = Fake { old: vec![200], are_known: true, ..Fake::default() };
    fake.now_ns.set(1_125 * MS);
    expect.look(&fake, 40 * MS);
    assert_eq!(expect.flights.kept(), 1);
}

#[test]
fn calls_of_old_do_not_keep_a_younger_one_from_being_seen() {
    for are_known in [false, true] {
        let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
        let fake = Fake { old: (200..212).collect(), are_known, ..Fake::default() };
        // 26 units at a look, as at 2 % of a CPU.
        let look = |expect: &mut Expectations, at_ms: u64| {
            fake.now_ns.set(at_ms * MS);
            expect.look(&fake, 26 * 6_000);
            expect.flights.take_running().iter().map(|call| call.row.tid as i32).collect::<Vec<i32>>()
        };
        (0..80).for_each(|i| {
            look(&mut expect, 10_000 + i * 125);
        });
        let before = fake.rows.borrow().len();
        // Those without a model are held against none a second time, the others seldom.
        let most = if are_known { 12 * 6 } else { 12 };
        assert!((12..=most).contains(&before), "{before}");
        fake.begin_ns.set(Some(START + 20_001 * MS));
        let seen = (0..8).position(|i| look(&mut expect, 20_100 + i * 125).contains(&TID));
        assert!(seen.is_some_and(|at| at <= 3), "{are_known}: {seen:?}");
        // All that go on are part of the test at each look that asks their threads.
        let running = look(&mut expect, 21_200);
        assert_eq!(running.iter().any(|tid| *tid != TID), are_known, "{running:?}");
    }
}

#[test]
fn a_call_that_ended_since_the_look_is_not_running() {
    let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
    let fake = Fake { begin_ns: Cell::new(Some(START)), in_bursts: true, ..Fake::default() };
    for at_ms in [100, 250] {
        fake.now_ns.set(at_ms * MS);
        expect.look(&fake, 40 * MS);
    }
    assert!(matches!(expect.flights.take_running().as_slice(), [one] if one.waits));
    // Looked at again with little time past it is as it was.
    expect.look(&fake, 40 * MS);
    let row = EventRow { time_ns: START, tid: TID as u32, ..call(NEW, 3, 0, 260 * MS) };
    expect.take(Rows::Calls(&[EventRow { tid: 1, ..row.clone() }]));
    assert_eq!(expect.flights.take_running().len(), 1);
    expect.look(&fake, 40 * MS);
    expect.take(Rows::Calls(std::slice::from_ref(&row)));
    assert!(expect.flights.take_running().is_empty());
    // Nor is one of which there was no time to look at the row.
    fake.now_ns.set(400 * MS);
    expect.look(&fake, 40 * MS);
    expect.look(&fake, 40 * MS);
    assert!(!expect.flights.take_running().is_empty());
    expect.look(&fake, 40 * MS);
    expect.skipped(Rows::Calls(&[row]));
    assert!(expect.flights.take_running().is_empty());
}

#[test]
fn calls_in_flight_are_bet_on_where_all_calls_are_seen_to_end() {
    for (in_bursts, skips) in [(false, false), (true, false), (false, true)] {
        let (mut expect, _) = consumer(&ClassRow { class_id: NEW, ..class() });
        let old = (200..212).collect();
        let fake = Fake { old, old_ns: 20_001 * MS, are_known: true, in_bursts, ..Fake::default() };
        assert_eq!(go_on(&mut expect, &fake, 1_000..20_000), []);
        let mut told = Vec::new();
        for ms in (20_000..22_000).step_by(100) {
            if skips {
                expect.skipped(Rows::Calls(&[call(NEW, 3, ms * MS, 0)]));
            }
            told.extend(go_on(&mut expect, &fake, ms..ms + 100));
        }
        let (_, noted) = end(&mut expect, 22_000 * MS);
        assert!(noted.functions[0].alarms >= 1 && !told.is_empty(), "{noted:?}");
        let together = told.iter().filter(|(_, line)| !line.contains("this call is the evidence")).count();
        assert_eq!(together > 0, !in_bursts && !skips, "{told:?}");
    }
}
