//! What the kernel counted for a thread inside recorded calls, held to callbacks that know it.

use crate::support::*;
use profiler_core::class::ClassId;
use profiler_user::prober::{
    Call, CallContext, CallReader, ClassControl, ClassKind, FLAG_ARGUMENTS, FLAG_CONTEXT, Kernel, LinkKind,
    Site, UNKNOWN,
};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

function!(contextual);
function!(contextual_outer);
function!(contextual_entry);

const PAGES: usize = 257;
const PAGE: usize = 4096;
const MS: u64 = 1_000_000;

/// Both ways to see an end, after which a call is known by different means.
fn ways(f: Function, class: ClassId) -> [(LinkKind, Vec<Site>); 2] {
    [(LinkKind::ReturnPair, vec![f.entry(class)]), (LinkKind::ExitPair, vec![f.entry(class), f.exit(class)])]
}

fn recorded(flags: u32) -> ClassControl {
    let control = ungated(ClassKind::Record);
    ClassControl { flags: control.flags | flags, ..control }
}

fn drained(reader: &mut CallReader) -> Vec<Call> {
    let mut calls = Vec::new();
    reader.drain(usize::MAX, |call| calls.push(call));
    calls
}

/// Records of one call of `contextual` with that callback, each way. The first call of a process at new sites may find pages of ours that are
/// not mapped yet, so that one goes before.
fn records(
    kernel: &Kernel,
    reader: &mut CallReader,
    callback: extern "C" fn(u64),
    argument: u64,
) -> [Call; 2] {
    ways(contextual, CLASS).map(|(kind, sites)| {
        kernel.classes().reset(CLASS);
        kernel.classes().configure(CLASS, recorded(FLAG_CONTEXT | FLAG_ARGUMENTS));
        let attached = kernel.attach(&group(kind, sites)).unwrap();
        contextual.call(None, 0);
        contextual.call(Some(callback), argument);
        drop(attached);
        let [_, call] = drained(reader)[..] else { panic!("{kind:?}: two calls have two records") };
        assert_eq!(call.args.expect("they were asked for")[1], argument);
        call
    })
}

/// Time in which the thread waited for something, ns.
fn blocked_ns(context: &CallContext) -> u64 {
    assert!(context.off_cpu_ns != UNKNOWN && context.runnable_ns != UNKNOWN, "{context:?}");
    context.off_cpu_ns.saturating_sub(context.runnable_ns)
}

extern "C" fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

extern "C" fn touch_pages(pages: u64) {
    let length = pages as usize * PAGE;
    // SAFETY: new memory of our own, touched inside its length and given back.
    unsafe {
        let memory = libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(memory, libc::MAP_FAILED);
        libc::madvise(memory, length, libc::MADV_NOHUGEPAGE);
        for page in 0..pages as usize {
            memory.cast::<u8>().add(page * PAGE).write_volatile(1);
        }
        libc::munmap(memory, length);
    }
}

static BUFFER: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Writes so many bytes into a pipe and reads one less.
extern "C" fn through_a_pipe(bytes: u64) {
    let mut ends = [0; 2];
    let buffer = BUFFER.as_ptr().cast_mut().cast::<libc::c_void>();
    // SAFETY: a pipe of our own, which holds that much; the buffer holds 8 KiB.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(libc::write(ends[1], buffer, bytes as usize), bytes as isize);
        assert_eq!(libc::read(ends[0], buffer, bytes as usize - 1), bytes as isize - 1);
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
}

/// Reads a part of this executable.
extern "C" fn from_a_file(bytes: u64) {
    let buffer = BUFFER.as_ptr().cast_mut().cast::<libc::c_void>();
    // SAFETY: a file of ours; the buffer holds 8 KiB.
    unsafe {
        let file = libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY);
        assert!(file >= 0);
        assert_eq!(libc::pread(file, buffer, bytes as usize, 0), bytes as isize);
        libc::close(file);
    }
}

/// CPU time of this thread, ns.
fn cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Time off CPU in the last `burn`, by its own clocks, ns.
static LOST_NS: AtomicU64 = AtomicU64::new(0);

/// Uses so much CPU time.
extern "C" fn burn(ms: u64) {
    let (begin_cpu, begin) = (cpu_ns(), ktime_ns());
    while cpu_ns() - begin_cpu < ms * MS {
        std::hint::spin_loop();
    }
    LOST_NS.store((ktime_ns() - begin).saturating_sub(cpu_ns() - begin_cpu), Ordering::Relaxed);
}

#[test]
fn a_call_that_sleeps_is_blocked_and_nothing_else() {
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    for call in records(&kernel, &mut reader, sleep_ms, 20) {
        let (context, duration_ns) = (call.context, call.duration_ns.unwrap());
        // The clock of the CPU may stand still for what the hypervisor takes.
        assert!(blocked_ns(&context) > 19 * MS && context.off_cpu_ns <= duration_ns, "{call:?}");
        assert_eq!((context.minor_faults, context.major_faults), (0, 0), "{call:?}");
        assert_eq!((context.read_bytes, context.written_bytes), (0, 0), "{call:?}");
    }
}

#[test]
fn a_call_that_competes_for_its_cpu_is_runnable() {
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    let over = AtomicBool::new(false);
    let calls = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let calls = scope.spawn(|| {
            pin(1);
            records(&kernel, &mut reader, burn, 60)
        });
        let calls = calls.join();
        over.store(true, Ordering::Relaxed);
        calls.unwrap()
    });
    for call in calls {
        let (context, duration_ns) = (call.context, call.duration_ns.unwrap());
        assert!(context.runnable_ns > 10 * MS && context.runnable_ns <= duration_ns, "{call:?}");
        // It never waits for anything else. Interrupts that run while it waits are in one of the two clocks only.
        assert!(blocked_ns(&context) < duration_ns / 50, "{call:?}");
        assert!(duration_ns - context.off_cpu_ns >= 59 * MS, "{call:?}");
    }
    // Of the last call its own clocks tell the same.
    let (own_ns, context) = (LOST_NS.load(Ordering::Relaxed), calls[1].context);
    assert!(context.off_cpu_ns.abs_diff(own_ns) < own_ns / 10, "{own_ns} {context:?}");
}

#[test]
fn faults_and_bytes_are_exact() {
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    for call in records(&kernel, &mut reader, touch_pages, PAGES as u64) {
        assert_eq!((call.context.minor_faults, call.context.major_faults), (PAGES as u32, 0), "{call:?}");
    }
    // Pages of the buffer, and of code, that nobody has used yet.
    through_a_pipe(5_000);
    from_a_file(7_777);
    burn(1);
    let io = std::fs::read_to_string("/proc/thread-self/io").is_ok();
    for call in records(&kernel, &mut reader, through_a_pipe, 5_000) {
        let expected = if io { (4_999, 5_000) } else { (UNKNOWN, UNKNOWN) };
        assert_eq!((call.context.read_bytes, call.context.written_bytes), expected, "{call:?}");
        assert_eq!(call.context.minor_faults, 0, "{call:?}");
    }
    for call in records(&kernel, &mut reader, from_a_file, 7_777) {
        let expected = if io { (7_777, 0) } else { (UNKNOWN, UNKNOWN) };
        assert_eq!((call.context.read_bytes, call.context.written_bytes), expected, "{call:?}");
    }
    for call in records(&kernel, &mut reader, burn, 1) {
        let CallContext { minor_faults, major_faults, read_bytes, written_bytes, .. } = call.context;
        let none = if io { 0 } else { UNKNOWN };
        assert_eq!((minor_faults, major_faults, read_bytes, written_bytes), (0, 0, none, none), "{call:?}");
    }
}

/// Waits for I/O are known of threads that were born while the kernel keeps an account of delays.
#[test]
fn io_waits_are_null_where_no_account_is_kept() {
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    let kept =
        std::fs::read_to_string("/proc/sys/kernel/task_delayacct").is_ok_and(|text| text.trim() == "1");
    let calls = std::thread::scope(|scope| scope.spawn(|| records(&kernel, &mut reader, sleep_ms, 5)).join())
        .unwrap();
    for call in calls {
        assert_eq!(call.context.io_wait_ns, if kept { 0 } else { UNKNOWN }, "{call:?}");
    }
}

/// A file of so many pages on the disk on which tests are built, and what its pages are read by.
static ON_DISK: OnceLock<File> = OnceLock::new();

/// Reads so many pages past the page cache.
extern "C" fn from_the_disk(pages: u64) {
    #[repr(align(4096))]
    struct Page([u8; PAGE]);
    let file = ON_DISK.get().expect("it was made before");
    let mut page = Page([0; PAGE]);
    for i in 0..pages {
        file.read_exact_at(&mut page.0, i * PAGE as u64).expect("it has as many pages");
    }
}

/// `kernel.task_delayacct`, put back as it was.
struct DelayAccount(String);

impl DelayAccount {
    const PATH: &str = "/proc/sys/kernel/task_delayacct";

    /// Threads that are born from now on have an account of their delays. `None`: this kernel keeps none.
    fn kept() -> Option<Self> {
        let before = std::fs::read_to_string(Self::PATH).ok()?;
        std::fs::write(Self::PATH, "1").ok()?;
        Some(Self(before))
    }
}

impl Drop for DelayAccount {
    fn drop(&mut self) {
        // It was written a moment ago.
        let _ = std::fs::write(Self::PATH, &self.0);
    }
}

/// Said also where the kernel is required: disks and settings of the system are none of its features.
fn not_here(test: &str, reason: &str) {
    // Not eprintln!: the harness would keep it to itself.
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {reason}");
}

#[test]
fn waits_for_a_disk_are_told_and_sleeps_are_none() {
    let test = "waits_for_a_disk_are_told_and_sleeps_are_none";
    let Some(_account) = DelayAccount::kept() else {
        return not_here(
            test,
            "this kernel keeps no account of delays, or lets nobody say so (kernel.task_delayacct)",
        );
    };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("on-disk-{}", std::process::id()));
    let mut file = File::create(&path).expect("the directory is there");
    file.write_all(&vec![7; 64 * PAGE]).and_then(|()| file.sync_all()).expect("the disk has room");
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    std::fs::remove_file(&path).expect("we made it");
    let Ok(direct) = direct else {
        return not_here(test, "the file system of the build directory has no reads past its cache");
    };
    assert!(ON_DISK.set(direct).is_ok(), "this test runs once");
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    // Born while the account is kept.
    let ([disk, again], sleeps) = std::thread::scope(|scope| {
        let of = || {
            (records(&kernel, &mut reader, from_the_disk, 64), records(&kernel, &mut reader, sleep_ms, 20))
        };
        scope.spawn(of).join().unwrap()
    });
    for call in [disk, again] {
        let (context, duration_ns) = (call.context, call.duration_ns.unwrap());
        // The account begins before the thread gives up its CPU and ends when it is woken: where the host is slow to switch, 64 waits are told to take up to
        // all of the call, of which the scheduler has two thirds. They hold half of what it has at least.
        assert!(context.io_wait_ns != UNKNOWN && context.io_wait_ns <= duration_ns, "{call:?}");
        assert!(context.io_wait_ns > 0 && context.io_wait_ns >= blocked_ns(&context) / 2, "{call:?}");
    }
    for call in sleeps {
        assert!(blocked_ns(&call.context) >= 19 * MS, "{call:?}");
        assert_eq!(call.context.io_wait_ns, 0, "a sleep waits for no disk: {call:?}");
    }
}

extern "C" fn touch_sleep_and_call(ms: u64) {
    touch_pages(7);
    contextual.call(Some(sleep_ms), ms);
    contextual.call(Some(touch_pages), 5);
}

#[test]
fn a_call_holds_what_the_calls_in_it_hold() {
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    let outer = ClassId(43);
    for class in [outer, CLASS] {
        kernel.classes().configure(class, recorded(FLAG_CONTEXT));
    }
    let attached = [(contextual_outer, outer), (contextual, CLASS)]
        .map(|(f, class)| kernel.attach(&group(LinkKind::ReturnPair, vec![f.entry(class)])).unwrap());
    contextual_outer.call(Some(touch_sleep_and_call), 2);
    drained(&mut reader);
    contextual_outer.call(Some(touch_sleep_and_call), 10);
    drop(attached);
    let calls = drained(&mut reader);
    let [slept, touched, around] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!((slept.class, touched.class, around.class), (CLASS, CLASS, outer));
    let faults = [slept, touched, around].map(|call| call.context.minor_faults);
    assert_eq!(faults, [0, 5, 12]);
    assert!(slept.context.off_cpu_ns > 9 * MS && around.context.off_cpu_ns >= slept.context.off_cpu_ns);
    assert_eq!((slept.args, slept.context.major_faults), (None, 0), "arguments were not asked for");
}

#[test]
fn nothing_is_said_where_it_was_not_asked_for_or_the_end_is_not_seen() {
    let kernel = kernel(None);
    let mut reader = kernel.call_reader().unwrap();
    for (kind, sites) in ways(contextual_entry, CLASS) {
        kernel.classes().configure(CLASS, recorded(FLAG_ARGUMENTS));
        let attached = kernel.attach(&group(kind, sites)).unwrap();
        contextual_entry.call(Some(touch_pages), 3);
        drop(attached);
        let [call] = drained(&mut reader)[..] else { panic!("one call has one record") };
        assert_eq!(call.context, CallContext::NOTHING);
    }
    kernel.classes().configure(CLASS, recorded(FLAG_CONTEXT));
    let attached = kernel.attach(&group(LinkKind::Record, vec![contextual_entry.entry(CLASS)])).unwrap();
    contextual_entry.call(Some(touch_pages), 3);
    drop(attached);
    let [call] = drained(&mut reader)[..] else { panic!("one call has one record") };
    assert_eq!((call.context, call.duration_ns), (CallContext::NOTHING, None));
}
