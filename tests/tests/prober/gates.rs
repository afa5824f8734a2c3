//! Quotas, alarms, full rings: attempted = kept + gated + dropped under every condition.

use crate::support::*;
use profiler_core::class::ClassId;
use profiler_user::prober::{ALARM_REPEAT, AlarmKind, ClassControl, ClassKind, KernelOptions, LinkKind};
use std::os::fd::AsRawFd;

function!(quota);
function!(full);
function!(skipped);
function!(refilled);
function!(stray);
function!(ran);

#[test]
fn a_quota_stops_the_count_and_raises_the_alarm() {
    let kernel = kernel(None);
    let mut alarms = kernel.alarm_reader().unwrap();
    for kind in [LinkKind::Count, LinkKind::ReturnPair] {
        kernel.classes().reset(CLASS);
        kernel.classes().configure(CLASS, ClassControl::new(ClassKind::Latency));
        kernel.classes().set_quota(CLASS, 100);
        let attached = kernel.attach(&group(kind, vec![quota.entry(CLASS)])).unwrap();
        call_from(1, 99, quota);
        assert!(alarms.try_next().is_none(), "no alarm before the last hit of the quota");
        assert_eq!(kernel.classes().remaining_quota(CLASS), 1);
        let before = ktime_ns();
        call_from(1, 1, quota);
        assert!(readable(alarms.as_raw_fd(), 1000), "the alarm wakes its reader");
        let alarm = alarms.try_next().unwrap().unwrap();
        assert_eq!((alarm.kind, alarm.class, alarm.remaining), (AlarmKind::QuotaUsed, CLASS, 0));
        assert_eq!(alarm.pid, std::process::id());
        assert!(alarm.time_ns >= before && alarm.time_ns <= ktime_ns());

        let more = 3 * ALARM_REPEAT as u64;
        call_from(8, more / 8, quota);
        drop(attached);
        let c = kernel.classes().counters(CLASS);
        assert_eq!((c.attempted, c.kept, c.gated, c.dropped), (100 + more, 100, more, 0));
        assert_eq!(kernel.classes().remaining_quota(CLASS), -(more as i64));
        if kind == LinkKind::ReturnPair {
            assert_eq!((c.returns, c.open()), (100, 0));
        }
        let mut repeats = 0;
        while let Some(alarm) = alarms.try_next() {
            assert_eq!(alarm.unwrap().kind, AlarmKind::StillHit);
            repeats += 1;
        }
        assert_eq!(repeats, 2, "after 1,024 and 2,048 gated hits, the 3,072nd is one short");
    }
}

#[test]
fn a_class_without_a_quota_given_is_gated() {
    let kernel = kernel(None);
    kernel.classes().configure(CLASS, ClassControl::new(ClassKind::Count));
    let attached = kernel.attach(&group(LinkKind::Count, vec![refilled.entry(CLASS)])).unwrap();
    call_from(1, 10, refilled);
    assert_eq!(kernel.classes().counters(CLASS).kept, 0, "quotas start at zero");
    kernel.classes().set_quota(CLASS, 5);
    call_from(1, 10, refilled);
    kernel.classes().add_quota(CLASS, 12);
    call_from(1, 10, refilled);
    drop(attached);
    let c = kernel.classes().counters(CLASS);
    // -5 + 12 leave 7.
    assert_eq!((c.attempted, c.kept, c.gated), (30, 12, 18));
}

#[test]
fn a_full_ring_drops_and_counts() {
    let options = KernelOptions { events_ring_bytes: 4096, ..KernelOptions::default() };
    let kernel = load(&options);
    let mut reader = kernel.call_reader().unwrap();
    // A record takes 88 bytes and an 8-byte header.
    let room = 4096 / 96;
    for (kind, sites) in [
        (LinkKind::Record, vec![full.entry(CLASS)]),
        (LinkKind::ReturnPair, vec![full.entry(CLASS)]),
        (LinkKind::ExitPair, vec![full.entry(CLASS), full.exit(CLASS)]),
    ] {
        kernel.classes().reset(CLASS);
        kernel.classes().configure(CLASS, ungated(ClassKind::Record));
        let attached = kernel.attach(&group(kind, sites)).unwrap();
        call_from(4, 250, full);
        drop(attached);
        let c = kernel.classes().counters(CLASS);
        assert_eq!(c.attempted, 1000);
        assert_eq!(c.attempted, c.kept + c.gated + c.dropped, "{c:?}");
        let mut n = 0;
        reader.drain(usize::MAX, |_| n += 1);
        assert_eq!(c.kept, n, "{kind:?}: what is kept can be read");
        assert!((1..=room).contains(&n), "{kind:?}: {n} records in a ring with room for {room}");
    }
}

#[test]
fn random_skipping_gates_the_share_asked_for() {
    let kernel = kernel(None);
    let quarter = ClassControl { skip_below: u32::MAX / 4, ..ungated(ClassKind::Count) };
    kernel.classes().configure(CLASS, quarter);
    let attached = kernel.attach(&group(LinkKind::Count, vec![skipped.entry(CLASS)])).unwrap();
    call_from(1, 10_000, skipped);
    drop(attached);
    let c = kernel.classes().counters(CLASS);
    assert_eq!(c.attempted, 10_000);
    assert_eq!(c.attempted, c.kept + c.gated);
    // 2,500 expected, standard deviation 43: seven of them on either side.
    assert!((2200..2800).contains(&c.gated), "{} of 10,000 gated at 1/4", c.gated);
}

#[test]
fn a_hit_of_no_class_is_counted_and_logged() {
    let options = KernelOptions { verbose: true, ..KernelOptions::default() };
    let kernel = load(&options);
    let mut log = kernel.log().unwrap();
    let nobody = ClassId(kernel.classes().max_classes());
    let attached = kernel.attach(&group(LinkKind::Count, vec![stray.entry(nobody)])).unwrap();
    call_from(1, 3, stray);
    drop(attached);
    assert_eq!(kernel.classes().global_counters().unknown_class, 3);
    let lines = log.take();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains(&format!("class {}", nobody.0)), "{lines:?}");

    drop(kernel);
    // Silent unless asked.
    let kernel = self::kernel(None);
    let attached = kernel.attach(&group(LinkKind::Count, vec![stray.entry(nobody)])).unwrap();
    call_from(1, 3, stray);
    drop(attached);
    assert_eq!(kernel.classes().global_counters().unknown_class, 3);
    assert!(kernel.log().unwrap().take().is_empty());
}

/// Keeps a CPU busy for so long by the thread's own clock, ns.
fn work(ns: u64) {
    let cpu_ns = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let until = cpu_ns() + ns;
    while cpu_ns() < until {}
}

#[test]
fn time_off_cpu_between_first_and_last_hit_of_a_quota_is_left_out() {
    const MS: u64 = 1_000_000;
    let kernel = kernel(None);
    let classes = kernel.classes();
    classes.reset(CLASS);
    classes.configure(CLASS, ClassControl::new(ClassKind::Count));
    let attached = kernel.attach(&group(LinkKind::Count, vec![ran.entry(CLASS)])).unwrap();
    let calls = |n: u64| (0..n).for_each(|_| ran.call(None, 0));
    let ran_ns = |between: &dyn Fn()| {
        classes.forget_first(CLASS);
        classes.set_quota(CLASS, 20);
        // Before the first hit nothing counts.
        work(5 * MS);
        calls(10);
        assert_eq!(classes.ran_ns(CLASS), None, "the quota is not used up");
        between();
        calls(10);
        let seen = classes.ran_ns(CLASS);
        // Nor does anything behind the last.
        work(5 * MS);
        calls(3);
        assert_eq!(classes.ran_ns(CLASS), seen);
        seen
    };
    for (slept_ms, worked_ms) in [(80, 0), (0, 40), (80, 40)] {
        let seen_ns = ran_ns(&|| {
            std::thread::sleep(std::time::Duration::from_millis(slept_ms / 2));
            work(worked_ms * MS);
            std::thread::sleep(std::time::Duration::from_millis(slept_ms / 2));
        });
        // What calibration of the clocks, interrupts and the hits themselves take.
        let most_ns = worked_ms * MS + 15 * MS;
        let seen_ns = seen_ns.expect("one thread took all hits");
        assert!((worked_ms * MS * 49 / 50..most_ns).contains(&seen_ns), "{slept_ms} {worked_ms}: {seen_ns}");
    }
    assert_eq!(ran_ns(&|| call_from(1, 10, ran)), None, "another thread took the last");
    // A new window: what the last one left is no first hit.
    assert!(ran_ns(&|| ()).is_some_and(|ns| ns < 15 * MS));
    drop(attached);
}
