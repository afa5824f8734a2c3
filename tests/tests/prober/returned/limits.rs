//! Quotas, gates, full rings and full tables, of classes with return sites.

use super::*;
use profiler_user::prober::{ALARM_REPEAT, AlarmKind, KernelOptions};

function!(returned_ends);
caller!(returned_ends_from);

#[test]
fn hits_at_return_sites_have_a_quota_of_their_own() {
    let kernel = kernel(None);
    let mut alarms = kernel.alarm_reader().unwrap();
    renew(
        &kernel,
        CLASS,
        ClassControl { flags: FLAG_LEARN_CALLERS, ..ClassControl::new(ClassKind::Latency) },
    );
    kernel.classes().set_quota(CLASS, 1_000);
    kernel.classes().set_ends_quota(CLASS, 40);
    kernel.classes().add_ends_quota(CLASS, 10);
    let attached = watch(&kernel, CLASS, returned_ends, returned_ends_from);
    let call = |n: u64| (0..n).for_each(|_| returned_ends_from.call(returned_ends, None, 0));
    call(20);
    (0..29).for_each(|_| returned_ends_from.jump());
    assert!(alarms.try_next().is_none(), "no alarm before the last hit of the quota");
    assert_eq!(
        (kernel.classes().remaining_ends_quota(CLASS), kernel.classes().remaining_quota(CLASS)),
        (1, 980)
    );
    returned_ends_from.jump();
    let alarm = alarms.try_next().unwrap().unwrap();
    assert_eq!((alarm.kind, alarm.class, alarm.remaining), (AlarmKind::EndsUsed, CLASS, 0));
    // The window ends with the alarm: nothing is let in that would be counted to it.
    call(5);
    assert!(alarms.try_next().is_none(), "one alarm");
    let mut all = timed(20);
    all.gated = 5;
    all.callers = CallerCounters { strays: 35, ends: 55, ..CallerCounters::default() };
    assert_eq!(seen(&kernel, CLASS), all);
    assert_eq!(kernel.classes().remaining_ends_quota(CLASS), -5);
    // Repeated, should the alarm have been lost.
    (0..ALARM_REPEAT).for_each(|_| returned_ends_from.jump());
    drop(attached);
    let alarm = alarms.try_next().unwrap().unwrap();
    assert_eq!((alarm.kind, alarm.remaining), (AlarmKind::StillHit, -ALARM_REPEAT - 1));
    assert!(alarms.try_next().is_none());
    assert_eq!(kernel.classes().remaining_quota(CLASS), -5);
}

function!(returned_gated);
caller!(returned_gated_from);

#[test]
fn gated_calls_of_armed_callers_end_as_strays() {
    let kernel = kernel(None);
    renew(
        &kernel,
        CLASS,
        ClassControl { flags: FLAG_LEARN_CALLERS, ..ClassControl::new(ClassKind::Latency) },
    );
    kernel.classes().set_quota(CLASS, 30);
    kernel.classes().set_ends_quota(CLASS, 1_000_000);
    let attached = watch(&kernel, CLASS, returned_gated, returned_gated_from);
    (0..100).for_each(|_| returned_gated_from.call(returned_gated, None, 0));
    let mut all = timed(30);
    (all.gated, all.callers.strays, all.callers.ends) = (70, 70, 100);
    assert_eq!(seen(&kernel, CLASS), all);
    assert_eq!(kernel.callers(CLASS), [(returned_gated_from.return_address(), 30, true)]);
    // Half of them skipped at random.
    renew(&kernel, CLASS, ClassControl { skip_below: 1 << 31, ..learning(ClassKind::Latency) });
    assert!(kernel.arm_caller(CLASS, returned_gated_from.return_address()));
    (0..2_000).for_each(|_| returned_gated_from.call(returned_gated, None, 0));
    let c = seen(&kernel, CLASS);
    assert!((800..1200).contains(&c.returns), "{c:?}");
    assert_eq!((c.kept, c.gated, c.callers.strays), (c.returns, 2_000 - c.returns, c.gated));
    // Off.
    renew(&kernel, CLASS, learning(ClassKind::Off));
    returned_gated_from.call(returned_gated, None, 0);
    drop(attached);
    assert_eq!((seen(&kernel, CLASS).gated, kernel.callers(CLASS).len()), (1, 0));
}

function!(returned_full);
caller!(returned_full_from);

#[test]
fn a_full_ring_drops_timed_and_untimed_calls_and_counts() {
    let kernel = load(&KernelOptions { events_ring_bytes: 4096, ..KernelOptions::default() });
    let mut reader = kernel.call_reader().unwrap();
    for untimed in [false, true] {
        renew(&kernel, CLASS, learning(ClassKind::Record));
        let attached = watch(&kernel, CLASS, returned_full, returned_full_from);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..250 {
                        if untimed {
                            returned_full.call(None, 0);
                        } else {
                            returned_full_from.call(returned_full, None, 0);
                        }
                    }
                });
            }
        });
        drop(attached);
        let c = kernel.classes().counters(CLASS);
        assert_eq!((c.attempted, c.kept + c.dropped), (1_000, 1_000));
        let mut n = 0;
        reader.drain(usize::MAX, |call| {
            assert_eq!(call.duration_ns.is_none(), untimed);
            n += 1;
        });
        assert_eq!(c.kept, n, "what is kept can be read");
        assert!((1..=4096 / 96).contains(&n), "{n} records");
        assert_eq!(c.callers.untimed, if untimed { n } else { 0 });
    }
}

function!(returned_crowded);
caller!(returned_crowded_from);

#[test]
fn a_full_table_of_callers_says_so() {
    // Eight cells, all of which are looked at.
    let kernel = load(&KernelOptions { callers: 8, ..KernelOptions::default() });
    let classes: Vec<ClassId> = (100..111).map(ClassId).collect();
    for class in &classes {
        renew(&kernel, *class, learning(ClassKind::Latency));
        let attached = attach(&kernel, vec![returned_crowded.entry(*class)]);
        (0..3).for_each(|_| returned_crowded_from.call(returned_crowded, None, 0));
        drop(attached);
    }
    let unlearned = |class: &ClassId| seen(&kernel, *class).callers.unlearned;
    assert_eq!(classes.iter().map(unlearned).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3]);
    assert!(classes.iter().all(|class| seen(&kernel, *class).callers.untimed == 3));
    let address = returned_crowded_from.return_address();
    assert!(!kernel.arm_caller(classes[8], address), "no room");
    // Room again, in any cell.
    kernel.forget_callers(&[classes[3]]);
    assert!(kernel.arm_caller(classes[8], address));
    assert_eq!(kernel.callers(classes[8]), [(address, 0, true)]);
    assert_eq!(kernel.callers(classes[7]), [(address, 3, false)]);
    assert!(!kernel.arm_caller(classes[9], address));
}
