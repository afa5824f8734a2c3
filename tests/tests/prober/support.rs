//! Functions with known sites in this process, and helpers.

use profiler_core::class::ClassId;
use profiler_user::prober::{
    AttachGroup, ClassControl, ClassKind, FLAG_NO_QUOTA, Kernel, KernelOptions, LinkKind, Site, Tier,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The class that tests use; any other than 0 would do, so that a cookie lost on the way shows.
pub const CLASS: ClassId = ClassId(7);

/// Defines a function for a test, as a constant of that name.
///
/// `f(callback, argument)` calls `callback(argument)` unless `callback` is null:
/// ```text
///  0  push rbp
///  1  mov rbp, rsp
///  4  test rdi, rdi
///  7  je +8
///  9  mov rax, rdi
/// 12  mov rdi, rsi
/// 15  call rax
/// 17  pop rbp
/// 18  ret
/// ```
macro_rules! function {
    ($name:ident) => {
        core::arch::global_asm!(
            ".pushsection .text",
            ".p2align 4",
            concat!(".globl tithe_test_", stringify!($name)),
            concat!(".type tithe_test_", stringify!($name), ", @function"),
            concat!("tithe_test_", stringify!($name), ":"),
            ".byte 0x55",             // push rbp
            ".byte 0x48, 0x89, 0xe5", // mov rbp, rsp
            ".byte 0x48, 0x85, 0xff", // test rdi, rdi
            ".byte 0x74, 0x08",       // je to the pop
            ".byte 0x48, 0x89, 0xf8", // mov rax, rdi
            ".byte 0x48, 0x89, 0xf7", // mov rdi, rsi
            ".byte 0xff, 0xd0",       // call rax
            ".byte 0x5d",             // pop rbp
            ".byte 0xc3",             // ret
            concat!(".size tithe_test_", stringify!($name), ", . - tithe_test_", stringify!($name)),
            ".popsection",
        );

        #[expect(non_upper_case_globals, reason = "named as the symbol is")]
        const $name: $crate::support::Function = {
            unsafe extern "C" {
                #[link_name = concat!("tithe_test_", stringify!($name))]
                fn symbol(callback: Option<extern "C" fn(u64)>, argument: u64);
            }
            $crate::support::Function(symbol)
        };
    };
}
pub(crate) use function;

/// A function made by [`function!`].
#[derive(Clone, Copy)]
pub struct Function(pub unsafe extern "C" fn(Option<extern "C" fn(u64)>, u64));

impl Function {
    /// Calls it once.
    pub fn call(self, callback: Option<extern "C" fn(u64)>, argument: u64) {
        // SAFETY: the assembly follows the C ABI.
        unsafe { (self.0)(callback, argument) }
    }

    /// Offset of its first instruction in this executable's file.
    pub fn offset(self) -> u64 {
        file_offset(self.0 as usize as u64)
    }

    pub fn entry(self, class: ClassId) -> Site {
        Site::entry(class, self.offset())
    }

    /// The `ret`.
    pub fn exit(self, class: ClassId) -> Site {
        Site::exit(class, self.offset() + 18)
    }

    /// The `pop rbp` before it, where one word lies above the return address.
    pub fn early_exit(self, class: ClassId) -> Site {
        Site { slot_delta: 1, ..Site::exit(class, self.offset() + 17) }
    }

    /// Its bytes as they are in memory.
    pub fn bytes(self) -> [u8; 19] {
        // SAFETY: 19 bytes of text, readable.
        unsafe { std::ptr::read_volatile(self.0 as usize as *const [u8; 19]) }
    }
}

/// Offset in its file of an address of this process.
pub fn file_offset(address: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (low, high) = fields.next().unwrap().split_once('-').unwrap();
        let (low, high) = (u64::from_str_radix(low, 16).unwrap(), u64::from_str_radix(high, 16).unwrap());
        if (low..high).contains(&address) {
            let offset = u64::from_str_radix(fields.nth(1).unwrap(), 16).unwrap();
            return address - low + offset;
        }
    }
    panic!("{address:#x} is not mapped");
}

/// Calls a function from several threads at once.
pub fn call_from(threads: u64, calls: u64, function: Function) {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..calls {
                    function.call(None, 0);
                }
            });
        }
    });
}

/// A loaded kernel side; one test at a time has one. Tests fork, and a forked process holds copies of the links of a
/// test that runs beside it until it execs, so that they would outlive their drop.
pub struct TestKernel {
    kernel: Kernel,
    _alone: MutexGuard<'static, ()>,
}

impl std::ops::Deref for TestKernel {
    type Target = Kernel;

    fn deref(&self) -> &Kernel {
        &self.kernel
    }
}

static ALONE: Mutex<()> = Mutex::new(());

/// Loads with options, when no other test has a kernel side.
pub fn load(options: &KernelOptions) -> TestKernel {
    load_in(options, None)
}

/// The same in a tier that is known.
pub fn load_in(options: &KernelOptions, known: Option<Tier>) -> TestKernel {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let kernel = Kernel::load_in(options, known)
        .unwrap_or_else(|error| panic!("these tests need root on a kernel with eBPF: {error}"));
    TestKernel { kernel, _alone: alone }
}

/// The same, to be shared; the guard is to be kept as long.
pub fn load_shared(options: &KernelOptions) -> (Arc<Kernel>, MutexGuard<'static, ()>) {
    let TestKernel { kernel, _alone: alone } = load(options);
    (Arc::new(kernel), alone)
}

/// Loads in a tier, or in the best one.
pub fn kernel(tier: Option<Tier>) -> TestKernel {
    load(&KernelOptions { forced_tier: tier, ..KernelOptions::default() })
}

/// Control of a class without a quota.
pub fn ungated(kind: ClassKind) -> ClassControl {
    ClassControl { flags: FLAG_NO_QUOTA, ..ClassControl::new(kind) }
}

/// A group of sites in this process.
pub fn group(kind: LinkKind, sites: Vec<Site>) -> AttachGroup {
    AttachGroup { module: "/proc/self/exe".into(), pid: std::process::id(), kind, sites }
}

/// Keeps this thread on one CPU.
pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // OK because a machine with one CPU runs on that one.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// `CLOCK_MONOTONIC`, which is the programs' clock.
pub fn ktime_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Waits until a descriptor is readable.
pub fn readable(fd: i32, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, alive during the call.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
}

/// 64 KiB that lie 1 GiB or more below this thread's stack; they stay mapped.
pub fn far_below() -> &'static mut [u8] {
    const LENGTH: usize = 64 * 1024;
    const STEP: usize = 1 << 30;
    let on_stack = 0u8;
    let here = &raw const on_stack as usize;
    for steps in 1..16 {
        let at = (here - steps * STEP) & !0xfff;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is replaced.
        let memory = unsafe {
            libc::mmap(at as *mut libc::c_void, LENGTH, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if memory != libc::MAP_FAILED {
            // SAFETY: just mapped, zeroed, and nobody else's.
            return unsafe { std::slice::from_raw_parts_mut(memory.cast(), LENGTH) };
        }
    }
    panic!("no room below the stack");
}
