//! What a throw or `longjmp` does, in assembly: the stack pointer goes back past the ends of all functions between.

unsafe extern "C" {
    /// Calls `through(first, second, third)` and saves its stack pointer.
    pub fn tithe_test_catch(through: usize, first: usize, second: u64, third: u64);
    /// Puts the stack pointer of the thread's last `tithe_test_catch` back and goes on behind the call in it, as an exception would.
    pub fn tithe_test_throw();
}

core::arch::global_asm!(
    ".pushsection .text",
    ".globl tithe_test_catch",
    "tithe_test_catch:",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rbx",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov fs:[tithe_test_saved@tpoff], rsp",
    "call rax",
    "5:",
    "pop rbx",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".globl tithe_test_throw",
    "tithe_test_throw:",
    "mov rsp, fs:[tithe_test_saved@tpoff]",
    "lea rbp, [rsp + 48]",
    "jmp 5b",
    ".popsection",
    ".pushsection .tbss, \"awT\", @nobits",
    "tithe_test_saved: .zero 8",
    ".popsection",
);
