//! What the watchdog says when it has killed its agent: a shell says no more than "Killed".
//!
//! In: standard error, which is the agent's. Out: one line there, if somebody takes it soon. Who does not (a full pipe, a
//! stopped terminal, a disk that hangs) holds up neither the kill, which comes before, nor mending, which comes after: a
//! process of its own says it.

use std::cell::UnsafeCell;

/// True when it is said: the agent is dead, and mending begins. What mending cannot do it tells the kernel's log.
const LAST_WORDS: &str = "tithe: killed by its own watchdog: it gave no sign of life for a second while probes were in the target \
    (it was stopped, or the machine is overloaded); what it may have left of them is looked for and taken out now; the kernel's log \
    tells if that fails\n";

/// How long it tries, in seconds.
pub(super) const PATIENCE_S: u32 = 2;

/// The speaker's stack. Static, because it speaks longer than the frame of whoever starts it lives.
#[repr(align(16))]
struct Stack(UnsafeCell<[u8; 16 << 10]>);

// SAFETY: one process uses it, once: the watchdog kills its agent at most once.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; 16 << 10]));

/// Starts the process that says it, and does not wait for it. It shares our memory: a fork would wait as long as
/// anybody registers a breakpoint (`dup_mmap_sem` in kernel/events/uprobes.c). Where there can be no process, nothing is said.
///
/// Not the other way round, the speaker going on and a new process mending: the program that mends takes its own begin for
/// the watchdog's ([`crate::mend::heirs`]).
pub(super) fn say() {
    let stack = STACK.0.get();
    // SAFETY: the stack is static, is used by that process alone and grows down from its end; our memory lives on with
    // that process when we become another program; `speak` takes no notice of its argument.
    unsafe {
        let top = stack.cast::<u8>().add(size_of::<Stack>());
        libc::clone(speak, top.cast(), libc::CLONE_VM | libc::SIGCHLD, std::ptr::null_mut());
    }
}

/// The process that says it. The descriptor's description is the agent's and others', so it stays as it is (no
/// `O_NONBLOCK`): the write may wait, and an alarm ends this process. System calls only.
extern "C" fn speak(_: *mut libc::c_void) -> libc::c_int {
    // SAFETY: each call takes integers or pointers to locals and constants that outlive it; a zeroed `sigaction` is the
    // default one.
    unsafe {
        // Whoever started the agent may have ignored or blocked it, and the watchdog blocks all.
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGALRM, &raw const default, std::ptr::null_mut());
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const signals, std::ptr::null_mut());
        libc::alarm(PATIENCE_S);
        libc::write(libc::STDERR_FILENO, LAST_WORDS.as_ptr().cast(), LAST_WORDS.len());
        libc::_exit(0)
    }
}
