//! Time off CPU inside operations, against the thread's own clocks.

use super::*;
use profiler_user::prober::OFF_CPU_UNKNOWN;

/// CPU time of this thread so far, ns.
fn thread_cpu_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn spin(ns: i64) {
    let until = thread_cpu_ns() + ns;
    while thread_cpu_ns() < until {}
}

fn renice(nice: i32) {
    // None is this thread.
    assert_eq!(rustix::process::setpriority_process(None, nice), Ok(()));
}

/// Records every operation from a call of `first` to one of `last`, while the links live.
fn follow_pair(kernel: &Kernel) -> [Attached; 2] {
    configure(kernel, 0, 0, OPERATION_MONITORING | OPERATION_BY_THREAD, 2, 1.0);
    kernel.classes().configure(BOUND_END, bound(0));
    let ends = kernel.attach(&group(LinkKind::OperationEnd, vec![last.entry(BOUND_END)])).unwrap();
    [ends, attach(kernel, LinkKind::OperationBegin, vec![first.entry(BOUND)])]
}

#[test]
fn time_off_cpu_is_wall_time_less_cpu_time_on_whatever_cpu() {
    let kernel = load(&options(64));
    let mut reader = kernel.operation_reader().unwrap();
    let _links = follow_pair(&kernel);
    let expected = std::thread::spawn(|| {
        let mut expected = Vec::new();
        // Without a wait; a wait; on another CPU after the wait; running on when it is taken to another CPU.
        for (turn, wait_ms) in [(0, 0), (0, 20), (1, 20), (2, 0)].repeat(5) {
            pin(0);
            spin(6_000_000);
            if turn == 0 {
                // Sets `prev_sum_exec_runtime` without an arrival.
                renice(if wait_ms > 0 { 1 } else { 2 });
            }
            let (wall, cpu) = (std::time::Instant::now(), thread_cpu_ns());
            first.call(None, 0);
            spin(3_000_000);
            if wait_ms > 0 {
                std::thread::sleep(std::time::Duration::from_millis(wait_ms));
            }
            if turn > 0 {
                pin(1);
            }
            spin(6_000_000);
            last.call(None, 0);
            expected.push(wall.elapsed().as_nanos() as i64 - (thread_cpu_ns() - cpu));
        }
        expected
    });
    let expected = expected.join().unwrap();
    let records = drain(&mut reader);
    assert_eq!(records.len(), expected.len());
    let known = records.iter().zip(&expected);
    let off_by: Vec<i64> = known.map(|(r, expected_ns)| r.off_cpu_ns as i64 - expected_ns).collect();
    // What the hypervisor took from a running thread is in the test's figure, and in ours only partly.
    let near = off_by.iter().filter(|ns| ns.abs() < 300_000).count();
    println!("off by {off_by:?} ns of {expected:?}");
    assert!(near * 4 >= 3 * expected.len(), "off by {off_by:?} ns of {expected:?}");
    assert!(expected.iter().filter(|ns| **ns > 19_000_000).count() >= 10, "{expected:?}");
}

#[test]
fn time_off_cpu_in_real_time_is_known_on_one_cpu_only() {
    let kernel = load(&options(64));
    let mut reader = kernel.operation_reader().unwrap();
    let _links = follow_pair(&kernel);
    std::thread::spawn(|| {
        let priority = libc::sched_param { sched_priority: 1 };
        // SAFETY: the kernel reads plain data of ours.
        assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const priority) }, 0);
        for cpu in [0, 1] {
            pin(0);
            first.call(None, 0);
            std::thread::sleep(std::time::Duration::from_millis(10));
            pin(cpu);
            last.call(None, 0);
        }
    })
    .join()
    .unwrap();
    let off_cpu: Vec<u64> = drain(&mut reader).iter().map(|r| r.off_cpu_ns).collect();
    let [stayed, moved] = off_cpu.as_slice() else { panic!("{off_cpu:?}") };
    // Between the first call and the rest the thread runs for a moment, longer beside others.
    assert!((9_000_000..1_000_000_000).contains(stayed) && *moved == OFF_CPU_UNKNOWN, "{off_cpu:?}");
}
