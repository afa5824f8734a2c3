//! Runs one instruction with every register given, and takes every register afterwards.
//!
//! Not reentrant: one thread of one process, the child, uses it. General registers, flags and the extended state
//! (x87, SSE, AVX, mask registers, AVX-512) are loaded, the FS base is 0 where the CPU lets us set it, and control goes to the
//! cell. It comes back by one of two exits or by a signal.

use super::cell::{EXIT_TAKEN_AT, EXITS};
use std::arch::{asm, global_asm};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15, as they are encoded.
pub(super) type Registers = [u64; 16];

/// What the assembly below reads and writes; offsets are written there.
#[repr(C)]
struct Context {
    own_rsp: u64,
    /// 1: fell through, 2: taken; 256 and above: see [`Seen::how`].
    how: u64,
    target: u64,
    components: u64,
    state_in: u64,
    state_out: u64,
    state_clean: u64,
    flags_in: u64,
    flags_out: u64,
    own_fs: u64,
    set_fs: u64,
    registers_in: Registers,
    registers_out: Registers,
}

static mut CONTEXT: Context = Context {
    own_rsp: 0,
    how: 0,
    target: 0,
    components: 0,
    state_in: 0,
    state_out: 0,
    state_clean: 0,
    flags_in: 0,
    flags_out: 0,
    own_fs: 0,
    set_fs: 0,
    registers_in: [0; 16],
    registers_out: [0; 16],
};

global_asm!(
    ".pushsection .text.tithe_form_run,\"ax\",@progbits",
    ".globl tithe_form_run",
    ".globl tithe_form_fell",
    ".globl tithe_form_taken",
    ".globl tithe_form_abandoned",
    "tithe_form_run:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15; pushfq",
    "mov [rip + {c} + 0], rsp",
    "cmp qword ptr [rip + {c} + 80], 0",
    "je 2f",
    "rdfsbase rax",
    "mov [rip + {c} + 72], rax",
    "xor eax, eax",
    "wrfsbase rax",
    "2:",
    "mov eax, [rip + {c} + 24]",
    "mov edx, [rip + {c} + 28]",
    "mov rcx, [rip + {c} + 32]",
    "xrstor64 [rcx]",
    "push qword ptr [rip + {c} + 56]",
    "popfq",
    "mov rax, [rip + {c} + 88]",
    "mov rcx, [rip + {c} + 96]",
    "mov rdx, [rip + {c} + 104]",
    "mov rbx, [rip + {c} + 112]",
    "mov rsp, [rip + {c} + 120]",
    "mov rbp, [rip + {c} + 128]",
    "mov rsi, [rip + {c} + 136]",
    "mov rdi, [rip + {c} + 144]",
    "mov r8, [rip + {c} + 152]",
    "mov r9, [rip + {c} + 160]",
    "mov r10, [rip + {c} + 168]",
    "mov r11, [rip + {c} + 176]",
    "mov r12, [rip + {c} + 184]",
    "mov r13, [rip + {c} + 192]",
    "mov r14, [rip + {c} + 200]",
    "mov r15, [rip + {c} + 208]",
    "jmp qword ptr [rip + {c} + 16]",
    // Moves change no flags.
    "tithe_form_fell:",
    "mov qword ptr [rip + {c} + 8], 1",
    "jmp 3f",
    "tithe_form_taken:",
    "mov qword ptr [rip + {c} + 8], 2",
    "3:",
    "mov [rip + {c} + 216], rax",
    "mov [rip + {c} + 224], rcx",
    "mov [rip + {c} + 232], rdx",
    "mov [rip + {c} + 240], rbx",
    "mov [rip + {c} + 248], rsp",
    "mov [rip + {c} + 256], rbp",
    "mov [rip + {c} + 264], rsi",
    "mov [rip + {c} + 272], rdi",
    "mov [rip + {c} + 280], r8",
    "mov [rip + {c} + 288], r9",
    "mov [rip + {c} + 296], r10",
    "mov [rip + {c} + 304], r11",
    "mov [rip + {c} + 312], r12",
    "mov [rip + {c} + 320], r13",
    "mov [rip + {c} + 328], r14",
    "mov [rip + {c} + 336], r15",
    "mov rsp, [rip + {c} + 0]",
    "pushfq",
    "pop qword ptr [rip + {c} + 64]",
    "cld",
    "mov eax, [rip + {c} + 24]",
    "mov edx, [rip + {c} + 28]",
    "mov rcx, [rip + {c} + 40]",
    "xsave64 [rcx]",
    "tithe_form_abandoned:",
    "mov rsp, [rip + {c} + 0]",
    "cmp qword ptr [rip + {c} + 80], 0",
    "je 4f",
    "mov rax, [rip + {c} + 72]",
    "wrfsbase rax",
    "4:",
    "mov eax, [rip + {c} + 24]",
    "mov edx, [rip + {c} + 28]",
    "mov rcx, [rip + {c} + 48]",
    "xrstor64 [rcx]",
    "popfq; pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
    "ret",
    ".popsection",
    c = sym CONTEXT,
);

unsafe extern "C" {
    fn tithe_form_run();
    fn tithe_form_fell();
    fn tithe_form_taken();
    fn tithe_form_abandoned();
}

/// The thread that runs forms; 0 while none runs. Signals elsewhere are none of ours.
static RUNNING: AtomicI64 = AtomicI64::new(0);
/// Timer ticks since the instruction was started.
static TICKS: AtomicU32 = AtomicU32::new(0);
static FAULT_ADDRESS: AtomicU64 = AtomicU64::new(0);
static STATE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Components of the extended state that are given and taken: x87, SSE, AVX, mask registers, both parts of AVX-512.
const COMPONENTS: u64 = 0b1110_0111;
/// Bits of the flags that are compared: all but RF, which says whether a fault came before the instruction.
const COMPARED_FLAGS: u64 = !0x1_0000;
/// Timer ticks of 50 ms after which an instruction is taken for a loop.
const MAX_TICKS: u32 = 4;

/// A block of memory for `xsave`.
#[repr(C, align(64))]
pub(super) struct State(pub [u8; 8192]);

/// What one run left behind.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seen {
    /// 1: fell through, 2: taken, else `256 + signal`, with the signal's code in the upper half.
    pub how: u64,
    /// Of a signal: where, and about which address.
    pub address: u64,
    pub flags: u64,
    pub registers: u64,
    pub vectors: u64,
    pub memory: u64,
}

impl Seen {
    /// The instruction ran to its end.
    pub fn clean(&self) -> bool {
        matches!(self.how, 1 | 2)
    }

    /// What differs, as bits: 1 way out or signal, 2 flags, 4 general registers, 8 extended state, 16 memory.
    pub fn differs(&self, other: &Self) -> u32 {
        u32::from(self.how != other.how || self.address != other.address)
            | u32::from(self.flags != other.flags) << 1
            | u32::from(self.registers != other.registers) << 2
            | u32::from(self.vectors != other.vectors) << 3
            | u32::from(self.memory != other.memory) << 4
    }
}

/// The machine: its buffers, and where parts of the extended state lie.
pub(super) struct Machine {
    pub state: Box<State>,
    out: Box<State>,
    clean: Box<State>,
    pub components: u64,
    /// Offset and size of components 2, 5, 6 and 7; size 0 where the CPU lacks it.
    pub parts: [(usize, usize); 4],
}

impl Machine {
    /// Maps the exits, takes over the signals.
    ///
    /// # Errors
    /// The CPU has no `xsave`, or an address is taken.
    pub fn new() -> io::Result<Self> {
        if !std::arch::is_x86_feature_detected!("xsave") {
            return Err(io::Error::other("this CPU has no xsave"));
        }
        let (low, high): (u32, u32);
        // SAFETY: xgetbv of register 0 is there where xsave is enabled.
        unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
        let components = (u64::from(high) << 32 | u64::from(low)) & COMPONENTS;
        let parts = [2, 5, 6, 7].map(|component: u32| {
            if components >> component & 1 == 0 {
                return (0, 0);
            }
            let leaf = std::arch::x86_64::__cpuid_count(0xd, component);
            (leaf.ebx as usize, leaf.eax as usize)
        });
        let end = parts.iter().map(|(offset, size)| offset + size).max().unwrap_or(0).max(576);
        if end > size_of::<State>() {
            return Err(io::Error::other(format!("this CPU's extended state takes {end} bytes")));
        }
        STATE_BYTES.store(end as u64, Ordering::Relaxed);
        let mut machine = Self {
            state: Box::new(State([0; 8192])),
            out: Box::new(State([0; 8192])),
            clean: Box::new(State([0; 8192])),
            components,
            parts,
        };
        map_exits()?;
        catch_signals()?;
        machine.wire();
        Ok(machine)
    }

    fn wire(&mut self) {
        let context = &raw mut CONTEXT;
        // SAFETY: only this thread uses the context, and no instruction is being run.
        unsafe {
            (*context).components = self.components;
            (*context).state_in = (&raw const self.state.0) as u64;
            (*context).state_out = (&raw mut self.out.0) as u64;
            (*context).state_clean = (&raw const self.clean.0) as u64;
            // AT_HWCAP2, HWCAP2_FSGSBASE: the kernel lets programs set the base.
            (*context).set_fs = libc::getauxval(libc::AT_HWCAP2) >> 1 & 1;
            asm!("xsave64 [{}]", in(reg) (*context).state_clean, in("eax") self.components as u32, in("edx") 0);
        }
    }

    /// An operand may be addressed through FS.
    pub fn sets_fs() -> bool {
        // SAFETY: read by the thread that wrote it.
        unsafe { CONTEXT.set_fs != 0 }
    }

    /// Runs the instruction at an address. [`Seen::memory`] is the caller's.
    pub fn run(&mut self, target: usize, registers: &Registers, flags: u64) -> Seen {
        let context = &raw mut CONTEXT;
        self.out.0[..576].fill(0);
        TICKS.store(0, Ordering::Relaxed);
        FAULT_ADDRESS.store(0, Ordering::Relaxed);
        // SAFETY: gettid has no arguments.
        RUNNING.store(unsafe { libc::syscall(libc::SYS_gettid) }, Ordering::Release);
        // SAFETY: the context is ours alone. The code comes back by one of its exits, or the signal handler goes to one;
        // every register is restored. What it does meanwhile is the business of a process that was made for this.
        let mut seen = unsafe {
            (*context).target = target as u64;
            (*context).registers_in = *registers;
            (*context).flags_in = flags;
            (*context).how = 0;
            tithe_form_run();
            Seen {
                how: ptr::read_volatile(&raw const (*context).how),
                address: FAULT_ADDRESS.load(Ordering::Relaxed),
                flags: (*context).flags_out & COMPARED_FLAGS,
                registers: hash(&*(&raw const (*context).registers_out).cast::<[u8; 128]>()),
                ..Seen::default()
            }
        };
        RUNNING.store(0, Ordering::Release);
        seen.vectors = self.vectors();
        seen
    }

    fn vectors(&self) -> u64 {
        let out = &self.out.0;
        // Not bytes 8 to 15, the address of the last x87 instruction: a stepped one ran elsewhere. Not what software keeps behind 416.
        let mut sum = hash(&out[..8]) ^ hash(&out[16..416]).rotate_left(1);
        for (offset, size) in self.parts {
            sum = sum.rotate_left(1) ^ hash(&out[offset..offset + size]);
        }
        sum
    }
}

/// Of whole 8-byte words.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mut sum = 0x9e37_79b9_7f4a_7c15_u64;
    for word in bytes.chunks_exact(8) {
        // OK because chunks have 8 bytes.
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        sum = (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    sum
}

fn map_exits() -> io::Result<()> {
    let page = super::child::map(EXITS, 4096, libc::PROT_READ | libc::PROT_WRITE, -1)?;
    for (at, to) in
        [(0, tithe_form_fell as *const () as u64), (EXIT_TAKEN_AT, tithe_form_taken as *const () as u64)]
    {
        // jmp [rip]; then the address.
        let mut code = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        code[6..].copy_from_slice(&to.to_le_bytes());
        // SAFETY: inside the page that was just mapped.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), page.add(at), code.len()) };
    }
    // SAFETY: our own page.
    match unsafe { libc::mprotect(page.cast(), 4096, libc::PROT_READ | libc::PROT_EXEC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn catch_signals() -> io::Result<()> {
    const STACK_BYTES: usize = 256 << 10;
    let stack = libc::stack_t {
        ss_sp: Box::leak(vec![0_u8; STACK_BYTES].into_boxed_slice()).as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: STACK_BYTES,
    };
    // SAFETY: the stack lives as long as the process.
    if unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for signal in [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGTRAP,
        libc::SIGSYS,
        libc::SIGVTALRM,
    ] {
        // SAFETY: all-zero is a valid sigaction; the handler has the three arguments that SA_SIGINFO gives.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigaction(signal, &raw const action, ptr::null_mut())
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let every = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: a live timer value. Ticks while this process uses the CPU.
    unsafe { libc::syscall(libc::SYS_setitimer, 1, &raw const timer, ptr::null::<u8>()) };
    Ok(())
}

/// Keeps what the signal says and goes to the exit. No thread-local data here: the FS base is not ours.
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: gettid has no arguments and does not fail.
    let ours = RUNNING.load(Ordering::Acquire) == unsafe { libc::syscall(libc::SYS_gettid) };
    if signal == libc::SIGVTALRM {
        if !ours || TICKS.fetch_add(1, Ordering::Relaxed) < MAX_TICKS {
            return;
        }
    } else if !ours {
        // SAFETY: the next time it is the end of this process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the kernel gives pointers to what it saved on our stack; the extended state has at least the size that
    // the CPU says, and both buffers have more.
    unsafe {
        let saved = &mut *context.cast::<libc::ucontext_t>();
        let g = &mut saved.uc_mcontext.gregs;
        let own = &raw mut CONTEXT;
        let order = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
        let mut i = 0;
        while i < 16 {
            (*own).registers_out[i] = g[order[i]].cast_unsigned();
            i += 1;
        }
        (*own).flags_out = g[libc::REG_EFL as usize].cast_unsigned();
        ptr::copy_nonoverlapping(
            saved.uc_mcontext.fpregs.cast::<u8>(),
            (*own).state_out as *mut u8,
            STATE_BYTES.load(Ordering::Relaxed) as usize,
        );
        let code = u64::from((*info).si_code.cast_unsigned());
        (*own).how = 256 | u64::from(signal.cast_unsigned()) | code << 32;
        let about = if signal == libc::SIGVTALRM { 0 } else { (*info).si_addr() as u64 };
        let rip = g[libc::REG_RIP as usize].cast_unsigned();
        FAULT_ADDRESS.store(rip.rotate_left(32) ^ about, Ordering::Relaxed);
        g[libc::REG_RIP as usize] = (tithe_form_abandoned as *const () as u64).cast_signed();
        g[libc::REG_EFL as usize] = 0x202;
    }
}
