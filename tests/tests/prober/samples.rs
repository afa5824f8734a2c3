//! Samples: rate, registers, stack copies, filters.

use crate::support::*;
use profiler_core::class::ClassId;
use profiler_tests::support::tiers_here;
use profiler_user::prober::{
    ClassKind, Kernel, KernelOptions, LinkKind, MIN_PERIOD_NS, SampleError, SampleKind, SampleReader,
    Settings, Tier,
};
use std::time::Duration;

function!(outside);
function!(inside);
function!(jumped_over);

/// Uses that much CPU time: the machine may be busy with other tests.
#[inline(never)]
fn spin(time: Duration) -> u64 {
    let end = thread_cpu_ns() + time.as_nanos() as u64;
    let mut x = 1u64;
    while thread_cpu_ns() < end {
        for _ in 0..1000 {
            x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
        }
    }
    x
}

fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_pid().cast_unsigned()
}

#[test]
fn the_rate_is_the_one_asked_for_and_can_be_changed() {
    let kernel = kernel(None);
    kernel.add_target(std::process::id(), false).unwrap();
    let mut reader = kernel.sample_reader().unwrap();
    let mut sampling = kernel.thread_sampling(1_000_000).unwrap();
    sampling.add(tid()).unwrap();
    for period_ns in [1_000_000, 250_000, 5_000_000] {
        sampling.set_period(period_ns).unwrap();
        reader.drain(usize::MAX, |_| ());
        let before = thread_cpu_ns();
        spin(Duration::from_millis(300));
        let expected = (thread_cpu_ns() - before) as f64 / period_ns as f64;
        let (mut n, mut stands_for) = (0u64, 0u64);
        reader.drain(usize::MAX, |s| {
            assert_eq!((s.pid, s.tid), (std::process::id(), tid()));
            n += 1;
            stands_for += u64::from(s.period_ns == period_ns);
        });
        // A tick that comes late (other threads, the hypervisor) is skipped, not made up for: too few is the machine's
        // doing, too many would be ours.
        let share = n as f64 / expected;
        assert!(share < 1.05 + 3.0 / expected && share > 0.7, "{n} samples, {expected} expected");
        assert!(stands_for + 2 >= n, "samples state their period");
    }
    sampling.set_enabled(false);
    reader.drain(usize::MAX, |_| ());
    spin(Duration::from_millis(30));
    assert_eq!(reader.drain(usize::MAX, |_| ()), 0, "disabled");
}

#[test]
fn dangerous_periods_and_dead_threads_are_refused() {
    let kernel = kernel(None);
    let sampler = kernel.sampler(SampleKind::Observe).unwrap();
    assert!(matches!(sampler.open_thread(tid(), MIN_PERIOD_NS - 1), Err(SampleError::Period(_))));
    let mut event = sampler.open_thread(tid(), MIN_PERIOD_NS).unwrap();
    assert!(matches!(event.set_period(1), Err(SampleError::Period(1))));
    assert!(sampler.open_thread(4_194_303, 1_000_000).unwrap_err().thread_gone());
}

#[test]
fn user_mode_samples_hold_registers_and_stack() {
    let kernel = kernel(None);
    kernel.add_target(std::process::id(), false).unwrap();
    let mut reader = kernel.sample_reader().unwrap();
    // A known word high on this thread's stack.
    let marks = std::hint::black_box([0x5eed_5eed_0000_0001u64; 16]);
    let marks_at = marks.as_ptr() as u64;
    let event = kernel.sampler(SampleKind::Observe).unwrap().open_thread(tid(), 500_000).unwrap();
    spin(Duration::from_millis(100));
    event.disable().unwrap();
    let (mut n, mut found) = (0, 0);
    reader.drain(usize::MAX, |s| {
        let r = s.registers.unwrap();
        if s.kernel_ip.is_none() {
            n += 1;
            assert!(s.stack.len() <= 8192 && s.stack_asked == 8192);
            if let Some(at) = marks_at.checked_sub(r.sp)
                && let Some(bytes) = s.stack.get(at as usize..at as usize + 8)
            {
                assert_eq!(bytes, marks[0].to_ne_bytes());
                found += 1;
            }
        }
    });
    assert!(n >= 100, "{n} samples in user mode");
    assert!(found * 10 >= n * 9, "{found} of {n} stacks hold the mark");
    std::hint::black_box(marks);
    let g = kernel.classes().global_counters();
    assert_eq!(g.samples_attempted, g.samples_kept + g.samples_other + g.samples_dropped);
    assert_eq!((g.samples_no_stack, g.samples_dropped), (0, 0));
}

#[test]
fn kernel_mode_samples_hold_user_registers_and_stack_in_every_size() {
    for stack_bytes in [0, 2048, 4096, 8192, 16384] {
        let options = KernelOptions { stack_bytes, ..KernelOptions::default() };
        let kernel = load(&options);
        kernel.add_target(std::process::id(), false).unwrap();
        let mut reader = kernel.sample_reader().unwrap();
        let event = kernel.sampler(SampleKind::Observe).unwrap().open_thread(tid(), 500_000).unwrap();
        let here = 0u8;
        let end = thread_cpu_ns() + 100_000_000;
        while thread_cpu_ns() < end {
            for _ in 0..1000 {
                // SAFETY: no preconditions.
                unsafe { libc::syscall(libc::SYS_getppid) };
            }
        }
        drop(event);
        let (mut in_kernel, mut with_stack) = (0, 0);
        reader.drain(usize::MAX, |s| {
            if let Some(ip) = s.kernel_ip {
                in_kernel += 1;
                assert!(ip >> 63 == 1);
                let r = s.registers.expect("user registers in kernel mode");
                assert!(r.ip >> 63 == 0 && r.ip != 0);
                assert!(
                    (&raw const here as u64).abs_diff(r.sp) < 1 << 16,
                    "the stack pointer is this thread's"
                );
                with_stack += u64::from(!s.stack.is_empty());
            }
        });
        assert!(in_kernel > 20, "{in_kernel} samples in kernel mode");
        if stack_bytes == 0 {
            assert_eq!(with_stack, 0);
        } else {
            // A page may be on the move at that moment (another test forks); failed copies are counted.
            let failed = kernel.classes().global_counters().samples_no_stack;
            assert!(
                with_stack + failed >= in_kernel && failed * 20 <= in_kernel,
                "{failed} copies of {in_kernel} failed"
            );
        }
    }
}

#[test]
fn the_stack_near_its_base_is_copied_as_far_as_it_goes() {
    let kernel = kernel(None);
    kernel.add_target(std::process::id(), false).unwrap();
    kernel.classes().set_settings(Settings { stack_bytes: 16384, ..kernel.classes().settings() });
    let mut reader = kernel.sample_reader().unwrap();
    let sampler = kernel.sampler(SampleKind::Observe).unwrap();
    // A thread's first frames lie within 16 KiB of the base of its stack; the pages above may be mapped or not, but
    // never less than to the end of the page.
    std::thread::spawn(move || {
        let _event = sampler.open_thread(tid(), 500_000).unwrap();
        spin(Duration::from_millis(50));
    })
    .join()
    .unwrap();
    let mut n = 0;
    reader.drain(usize::MAX, |s| {
        let sp = s.registers.unwrap().sp;
        assert!(s.stack.len() as u64 >= 4096 - sp % 4096 || s.stack.len() == 16384);
        assert!((sp + s.stack.len() as u64).is_multiple_of(4096));
        n += 1;
    });
    assert!(n > 20);
}

#[test]
fn other_processes_are_not_sampled_and_a_full_ring_is_counted() {
    let options =
        KernelOptions { samples_ring_bytes: 16 * 1024, stack_bytes: 8192, ..KernelOptions::default() };
    let kernel = load(&options);
    let mut reader = kernel.sample_reader().unwrap();
    let event = kernel.sampler(SampleKind::Observe).unwrap().open_thread(tid(), 500_000).unwrap();
    spin(Duration::from_millis(50));
    assert_eq!(reader.drain(usize::MAX, |_| ()), 0, "this process is no target yet");
    let g = kernel.classes().global_counters();
    assert!(g.samples_other > 20 && g.samples_kept == 0);
    kernel.add_target(std::process::id(), false).unwrap();
    spin(Duration::from_millis(50));
    drop(event);
    let g = kernel.classes().global_counters();
    assert_eq!(g.samples_attempted, g.samples_kept + g.samples_other + g.samples_dropped);
    assert_eq!(g.samples_kept, 1, "the ring has room for one");
    assert!(g.samples_dropped > 20);
    assert_eq!(reader.drain(usize::MAX, |_| ()), 1);
}

#[test]
fn a_cpu_can_be_sampled() {
    let kernel = kernel(None);
    kernel.add_target(std::process::id(), false).unwrap();
    let mut reader = kernel.sample_reader().unwrap();
    let sampler = kernel.sampler(SampleKind::Observe).unwrap();
    // SAFETY: no preconditions.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } as u32;
    let events: Vec<_> = (0..cpus).map(|cpu| sampler.open_cpu(cpu, 1_000_000).unwrap()).collect();
    spin(Duration::from_millis(200));
    drop(events);
    let mut ours = 0;
    reader.drain(usize::MAX, |s| ours += u64::from(s.tid == tid()));
    assert!(ours > 20, "{ours} samples of this thread");
}

extern "C" fn inside_again(n: u64) {
    if n > 0 {
        inside.call(Some(inside_again), n - 1);
    } else {
        std::hint::black_box(spin(Duration::from_millis(60)));
    }
    // Not a tail call.
    std::hint::black_box(n);
}

extern "C" fn into_inside(n: u64) {
    inside.call(Some(inside_again), n);
    std::hint::black_box(n);
}

/// `outside`, in it `inside` three times, in it `spin`. Answers, for each sample in `spin`, whose return slots the copied
/// stack shows and what they hold, innermost first; samples elsewhere show fewer.
fn return_addresses(kernel: &Kernel, reader: &mut SampleReader, period_ns: u64) -> Vec<Vec<(u64, u64)>> {
    let event = kernel.sampler(SampleKind::Observe).unwrap().open_thread(tid(), 500_000).unwrap();
    kernel.classes().set_settings(Settings { sample_period_ns: period_ns, ..kernel.classes().settings() });
    outside.call(Some(into_inside), 2);
    drop(event);
    let mut found = Vec::new();
    reader.drain(usize::MAX, |s| {
        let words: Vec<u64> =
            s.stack.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect();
        // The callback returns behind the `call rax`; above lie the saved rbp and the return address.
        let behind = |f: Function| f.0 as usize as u64 + 17;
        let chain: Vec<(u64, u64)> = words
            .windows(3)
            .filter(|w| [inside, outside].iter().any(|f| w[0] == behind(*f)))
            .map(|w| (w[0], w[2]))
            // Above them may lie what a call before has left in a frame.
            .take(4)
            .collect();
        let returns: Vec<u64> = chain.iter().map(|(to, _)| *to).collect();
        if returns == [behind(inside), behind(inside), behind(inside), behind(outside)] {
            found.push(chain);
        }
    });
    assert!(found.len() > 40, "{} samples inside", found.len());
    found
}

#[test]
fn replaced_return_addresses_are_put_back_into_stacks() {
    let all = [Tier::A, Tier::B, Tier::C, Tier::D];
    for tier in tiers_here("replaced_return_addresses_are_put_back_into_stacks", &all) {
        let kernel = kernel(Some(tier));
        kernel.add_target(std::process::id(), false).unwrap();
        let mut reader = kernel.sample_reader().unwrap();
        let honest = return_addresses(&kernel, &mut reader, 500_000);
        assert!(honest.iter().all(|chain| *chain == honest[0]));
        let class = |n| ClassId(60 + n);
        let attach = |n: u32, f: Function| {
            kernel.classes().configure(class(n), ungated(ClassKind::Latency));
            kernel.attach(&group(LinkKind::ReturnPair, vec![f.entry(class(n))])).unwrap()
        };
        let links = [attach(0, outside), attach(1, inside)];
        // Not kept: the trampoline is there, so the links are real.
        for chain in return_addresses(&kernel, &mut reader, 0) {
            assert!(
                chain.iter().all(|(_, word)| *word == chain[0].1),
                "{tier:?}: one trampoline: {chain:x?}"
            );
            assert!(chain[0].1.is_multiple_of(4096), "{tier:?}: the trampoline begins its page: {chain:x?}");
        }
        for chain in return_addresses(&kernel, &mut reader, 500_000) {
            assert_eq!(chain, honest[0], "{tier:?}");
        }
        drop(links);
        for (n, calls) in [(0, 2), (1, 6)] {
            let c = kernel.classes().counters(class(n));
            assert_eq!((c.kept, c.returns, c.orphans), (calls, calls, 0), "{tier:?}");
        }
    }
}

core::arch::global_asm!(
    ".pushsection .text",
    // Calls rdi with the arguments rsi and 0; it is left by a jump. Then the word rdx lies in its return slot while rcx
    // is called.
    "tithe_test_reuse_slot:",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "push r12",
    "mov rbx, rdx",
    "mov r12, rcx",
    "mov [rip + tithe_test_reuse_rbp], rbp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "xor esi, esi",
    "call rax",
    "ud2",
    "tithe_test_jump_back:",
    "mov rbp, [rip + tithe_test_reuse_rbp]",
    "lea rsp, [rbp - 16]",
    "push rbx",
    "push 0",
    "xor edi, edi",
    "call r12",
    "add rsp, 16",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".popsection",
    ".pushsection .data",
    ".p2align 3",
    "tithe_test_reuse_rbp: .quad 0",
    ".popsection",
);

unsafe extern "C" {
    fn tithe_test_jump_back(_: u64);
    fn tithe_test_reuse_slot(
        through: unsafe extern "C" fn(Option<extern "C" fn(u64)>, u64),
        back: unsafe extern "C" fn(u64),
        word: u64,
        then: extern "C" fn(u64),
    );
}

extern "C" fn spin_40_ms(_: u64) {
    std::hint::black_box(spin(Duration::from_millis(40)));
}

#[test]
fn data_in_the_slot_of_a_call_that_was_left_stay() {
    const DATA: u64 = 0x5eed_5eed_5eed_0011;
    let kernel = kernel(None);
    kernel.add_target(std::process::id(), false).unwrap();
    let mut reader = kernel.sample_reader().unwrap();
    kernel.classes().configure(CLASS, ungated(ClassKind::Latency));
    let links = kernel.attach(&group(LinkKind::ReturnPair, vec![jumped_over.entry(CLASS)])).unwrap();
    let mut sampling = kernel.thread_sampling(500_000).unwrap();
    sampling.add(tid()).unwrap();
    // SAFETY: only assembly lies between the jump and where it goes; one test at a time has a kernel side.
    unsafe { tithe_test_reuse_slot(jumped_over.0, tithe_test_jump_back, DATA, spin_40_ms) };
    sampling.stop();
    drop(links);
    let c = kernel.classes().counters(CLASS);
    assert_eq!((c.kept, c.returns), (1, 0), "the call is still on the thread's stack of open calls");
    let (mut n, mut kept) = (0, 0);
    reader.drain(usize::MAX, |s| {
        n += 1;
        kept += u32::from(s.stack.chunks_exact(8).any(|w| w == DATA.to_ne_bytes()));
    });
    // Not in those before and after.
    assert!(n > 30 && kept + 10 > n, "{kept} of {n}");
}
