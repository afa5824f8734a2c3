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
