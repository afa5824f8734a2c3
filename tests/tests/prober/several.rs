//! Several targets at once: one function of one file in four processes, of which each has a class of its own.

use crate::support::*;
use profiler_core::class::ClassId;
use profiler_tests::support::tiers_here;
use profiler_user::prober::{
    AttachGroup, Attached, ClassControl, ClassKind, FLAG_ARGUMENTS, Kernel, LinkKind, Tier,
};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;

function!(in_four);

/// What a child is told that is to call until it is killed.
const WITHOUT_END: u32 = u32::MAX;

/// A forked process that calls [`in_four`] as often as it is told, each time with its own number as an argument.
struct Child {
    pid: u32,
    number: u64,
    class: ClassId,
    orders: File,
    answers: File,
}

fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

impl Child {
    fn start(number: u64) -> Self {
        let (orders, answers) = (pipe(), pipe());
        // SAFETY: the child calls nothing but what a signal handler may call, too.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            // SAFETY: as above; both ends are open.
            unsafe {
                libc::close(orders[1]);
                libc::close(answers[0]);
            }
            serve(number, orders[0], answers[1]);
        }
        // SAFETY: the ends are this process's own.
        let (orders, answers) = unsafe {
            libc::close(orders[0]);
            libc::close(answers[1]);
            (File::from_raw_fd(orders[1]), File::from_raw_fd(answers[0]))
        };
        let class = ClassId(10 + number as u32);
        Self { pid: pid as u32, number, class, orders, answers }
    }

    fn order(&mut self, calls: u32) {
        self.orders.write_all(&calls.to_ne_bytes()).unwrap();
    }

    fn wait_for_answer(&mut self) {
        self.answers.read_exact(&mut [0]).unwrap();
    }

    fn kill(&self) {
        // SAFETY: a child of this process that has not been waited for.
        unsafe {
            libc::kill(self.pid as i32, libc::SIGKILL);
            libc::waitpid(self.pid as i32, std::ptr::null_mut(), 0);
        }
    }
}

/// The child: never returns.
fn serve(number: u64, orders: i32, answers: i32) -> ! {
    let mut calls = 0_u32;
    // SAFETY: four bytes are read, one is written; the descriptors are open.
    unsafe {
        while libc::read(orders, (&raw mut calls).cast(), 4) == 4 {
            let mut left = calls;
            while left > 0 {
                in_four.call(None, number);
                if calls == WITHOUT_END {
                    // The ring has room for the others' rows however late this one is killed.
                    libc::usleep(100);
                } else {
                    left -= 1;
                }
            }
            libc::write(answers, [1_u8].as_ptr().cast(), 1);
        }
        libc::_exit(0)
    }
}

/// Two of the four are timed as well, at an exit site.
fn group_of(child: &Child) -> AttachGroup {
    let (kind, sites) = if child.number.is_multiple_of(2) {
        (LinkKind::Record, vec![in_four.entry(child.class)])
    } else {
        (LinkKind::ExitPair, vec![in_four.entry(child.class), in_four.exit(child.class)])
    };
    AttachGroup { pid: child.pid, ..group(kind, sites) }
}

/// Four children, and the links of each.
fn attached(kernel: &Kernel) -> (Vec<Child>, Vec<Option<Attached>>) {
    let children: Vec<Child> = (0..4).map(Child::start).collect();
    let mut links = Vec::new();
    for child in &children {
        kernel.add_target(child.pid, false).unwrap();
        kernel.classes().reset(child.class);
        let control = ungated(ClassKind::Record);
        let control = ClassControl { flags: control.flags | FLAG_ARGUMENTS, ..control };
        kernel.classes().configure(child.class, control);
        let attached = kernel.attach(&group_of(child)).unwrap();
        assert!(attached.refused.is_empty());
        links.push(Some(attached));
    }
    (children, links)
}

fn four_targets(kernel: &Kernel) {
    let (mut children, mut links) = attached(kernel);
    let mut reader = kernel.call_reader().unwrap();
    let calls_of = |i: usize| 1_000 + 100 * i as u32;
    let mut rows = [0_u64; 4];
    let mut take = |children: &[Child]| {
        reader.drain(usize::MAX, |call| {
            let child = children.iter().find(|c| c.class == call.class).expect("a class of one of them");
            assert_eq!((call.pid, call.tid), (child.pid, child.pid), "a row of another process");
            assert_eq!(call.args.map(|args| args[1]), Some(child.number));
            assert_eq!(call.duration_ns.is_some(), !child.number.is_multiple_of(2));
            rows[child.number as usize] += 1;
        });
        rows
    };

    // All at once.
    for (i, child) in children.iter_mut().enumerate() {
        child.order(calls_of(i));
    }
    children.iter_mut().for_each(Child::wait_for_answer);
    let seen = take(&children);
    for (i, child) in children.iter().enumerate() {
        let c = kernel.classes().counters(child.class);
        let told = u64::from(calls_of(i));
        assert_eq!((c.attempted, c.kept, c.dropped, c.orphans), (told, told, 0, 0), "child {i}");
        assert_eq!(seen[i], told, "rows of child {i}");
    }

    // One dies while it calls, and the others call on.
    children[2].order(WITHOUT_END);
    for i in [0, 1, 3] {
        children[i].order(calls_of(i));
    }
    let has_begun = || kernel.classes().attempted(children[2].class) > u64::from(calls_of(2)) + 10;
    for _ in 0..10_000 {
        if has_begun() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    children[2].kill();
    for i in [0, 1, 3] {
        children[i].wait_for_answer();
    }
    let of_the_dead = kernel.classes().counters(children[2].class);
    assert!(of_the_dead.attempted > u64::from(calls_of(2)), "it called until it was killed");
    take(&children);

    // Its links go, and nothing changes for the others.
    links[2] = None;
    for i in [0, 1, 3] {
        children[i].order(calls_of(i));
        children[i].wait_for_answer();
    }
    let seen = take(&children);
    for i in [0, 1, 3] {
        let c = kernel.classes().counters(children[i].class);
        let told = 3 * u64::from(calls_of(i));
        assert_eq!((c.attempted, c.kept, c.dropped, c.orphans), (told, told, 0, 0), "child {i}");
        assert_eq!(seen[i], told, "rows of child {i}");
    }
    let after = kernel.classes().counters(children[2].class);
    assert_eq!(after, of_the_dead, "nobody is counted as the dead one");
    assert_eq!(seen[2], after.kept, "what it did before is there");
    drop(links);
    for i in [0, 1, 3] {
        children[i].order(10);
        children[i].wait_for_answer();
        assert_eq!(kernel.classes().counters(children[i].class).attempted, 3 * u64::from(calls_of(i)));
        kernel.remove_target(children[i].pid);
        children[i].kill();
    }
}

/// Not in tier C, where the kernel runs every program for every process, and a class does not know its own.
#[test]
fn of_four_targets_one_dies_and_no_row_crosses() {
    for tier in tiers_here("of_four_targets_one_dies_and_no_row_crosses", &[Tier::A, Tier::B, Tier::D]) {
        four_targets(&kernel(Some(tier)));
    }
}
