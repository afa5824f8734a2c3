//! How long a thread ran between the first hit and the last of a quota.

use crate::support::*;
use profiler_user::prober::{ClassControl, ClassKind, ClassTable, FLAG_FILTER_TARGETS, Kernel, LinkKind};
use std::os::fd::AsRawFd;
use std::time::Duration;

function!(ran);

const MS: u64 = 1_000_000;

/// Keeps a CPU busy for so long by the thread's own clock, ns.
fn work(ns: u64) {
    let cpu_ns = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let until = cpu_ns() + ns;
    while cpu_ns() < until {}
}

fn calls(n: u64) {
    (0..n).for_each(|_| ran.call(None, 0));
}

/// A class that counts, and its window of 20 hits: what is known after 10 hits, `between`, 10 more.
struct Windows<'a>(&'a ClassTable);

impl Windows<'_> {
    fn ran_ns(&self, between: &dyn Fn()) -> Option<u64> {
        let classes = self.0;
        classes.forget_first(CLASS);
        classes.set_quota(CLASS, 20);
        // Before the first hit nothing counts.
        work(5 * MS);
        calls(10);
        assert_eq!(classes.ran_ns(CLASS), None, "the quota is not used up");
        between();
        calls(10);
        let seen = classes.ran_ns(CLASS);
        let tid = std::fs::read_link("/proc/thread-self").expect("a thread");
        let own = tid.file_name().and_then(|name| name.to_str()?.parse().ok());
        assert_eq!(classes.ran_tid(CLASS), seen.and(own));
        // Nor does anything behind the last.
        work(5 * MS);
        calls(3);
        assert_eq!(classes.ran_ns(CLASS), seen);
        seen
    }
}

/// Runs `test` while the function is counted, on a thread of its own that stays on CPU 0.
fn while_counted(control: ClassControl, test: impl FnOnce(&Kernel) + Send) {
    let kernel = kernel(None);
    kernel.classes().reset(CLASS);
    kernel.classes().configure(CLASS, control);
    let attached = kernel.attach(&group(LinkKind::Count, vec![ran.entry(CLASS)])).unwrap();
    let kernel: &Kernel = &kernel;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            test(kernel);
        });
    });
    drop(attached);
}

#[test]
fn time_off_cpu_between_first_and_last_hit_of_a_quota_is_left_out() {
    while_counted(ClassControl::new(ClassKind::Count), |kernel| {
        let windows = Windows(kernel.classes());
        for (slept_ms, worked_ms) in [(80, 0), (0, 40), (80, 40)] {
            let seen_ns = windows.ran_ns(&|| {
                std::thread::sleep(Duration::from_millis(slept_ms / 2));
                work(worked_ms * MS);
                std::thread::sleep(Duration::from_millis(slept_ms / 2));
            });
            // What calibration of the clocks, interrupts and the hits themselves take.
            let most_ns = worked_ms * MS + 15 * MS;
            let seen_ns = seen_ns.expect("one thread took all hits");
            assert!(
                (worked_ms * MS * 49 / 50..most_ns).contains(&seen_ns),
                "{slept_ms} {worked_ms}: {seen_ns}"
            );
        }
        assert_eq!(windows.ran_ns(&|| call_from(1, 10, ran)), None, "another thread took the last");
        pin(1);
        let several = rustix::thread::sched_getcpu() == 1;
        for back in [false, true] {
            pin(0);
            let seen_ns = windows.ran_ns(&|| {
                pin(1);
                work(10 * MS);
                pin(if back { 0 } else { 1 });
            });
            if back || !several {
                assert!(seen_ns.is_some_and(|ns| (9 * MS..25 * MS).contains(&ns)), "{seen_ns:?}");
            } else {
                assert_eq!(seen_ns, None, "clocks of two CPUs do not compare so well");
            }
        }
        // A new window: what the last one left is no first hit.
        assert!(windows.ran_ns(&|| ()).is_some_and(|ns| ns < 15 * MS));
    });
}

#[test]
fn hits_that_are_not_let_in_are_neither_first_nor_last() {
    let control = ClassControl { flags: FLAG_FILTER_TARGETS, ..ClassControl::new(ClassKind::Count) };
    while_counted(control, |kernel| {
        let classes = kernel.classes();
        let filter = |is_target: bool| {
            let me = std::process::id();
            if is_target { kernel.add_target(me, false).unwrap() } else { kernel.remove_target(me) }
        };
        let skip = |all: bool| classes.adjust(CLASS, |c| c.skip_below = if all { u32::MAX } else { 0 });
        let let_in: [&dyn Fn(bool); 2] = [&filter, &|yes| skip(!yes)];
        filter(true);
        for let_in in let_in {
            let ran_ns = |first: bool, last: bool| {
                classes.forget_first(CLASS);
                classes.set_quota(CLASS, 20);
                let_in(first);
                calls(1);
                // Between one that is turned away and the first that is let in nothing counts.
                work(20 * MS);
                let_in(true);
                calls(18);
                let_in(last);
                calls(1);
                let_in(true);
                classes.ran_ns(CLASS)
            };
            assert!(ran_ns(true, true).is_some_and(|ns| ns >= 19 * MS));
            assert_eq!(ran_ns(true, false), None, "when the target's last hit came is not known");
            assert!(
                ran_ns(false, true).is_some_and(|ns| ns < 15 * MS),
                "the first that was let in is the first"
            );
        }
    });
}

#[test]
fn sending_the_alarm_is_no_time_of_the_target() {
    while_counted(ClassControl::new(ClassKind::Count), |kernel| {
        let mut alarms = kernel.alarm_reader().unwrap();
        let classes = kernel.classes();
        for _ in 0..500 {
            classes.forget_first(CLASS);
            classes.set_quota(CLASS, 2);
            let begin_ns = ktime_ns();
            calls(2);
            assert!(readable(alarms.as_raw_fd(), 1000));
            let end_ns = alarms.try_next().unwrap().unwrap().time_ns;
            let ran_ns = classes.ran_ns(CLASS).expect("one thread took both hits");
            assert!(ran_ns < end_ns - begin_ns, "{ran_ns} of {} ns", end_ns - begin_ns);
        }
    });
}

#[test]
fn a_class_that_is_shut_knows_nothing_of_its_last_window() {
    while_counted(ClassControl::new(ClassKind::Count), |kernel| {
        let classes = kernel.classes();
        classes.set_ends_quota(CLASS, 30);
        assert!(Windows(classes).ran_ns(&|| ()).is_some());
        classes.shut(CLASS);
        // Its links are made, and trip at once: no gate was opened.
        calls(3);
        assert_eq!((classes.ran_ns(CLASS), classes.remaining_quota(CLASS)), (None, -3));
        assert_eq!(classes.remaining_ends_quota(CLASS), 0);
    });
}
