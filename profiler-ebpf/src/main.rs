//! The eBPF programs of Tithe: read control, count, measure, emit. No policy.
//!
//! What is counted, timed or recorded, at which price, for how long and for whom is decided in user space; a program
//! finds those numbers under its class (the low half of the BPF cookie) and evaluates them. Every early return bumps a
//! counter. All counters are atomic adds, because the programs are preemptible and samples interrupt them.
//!
//! | module | programs | attached as |
//! |---|---|---|
//! | `entry` | `count`, `record`, `enter`, `enter_caller` | uprobe.multi or perf-event uprobes |
//! | `step` | `step` | uprobe.multi or perf-event uprobes |
//! | `exit` | `leave`, `leave_caller` | uprobe.multi or perf-event uprobes: exit sites, returns, or return sites in callers |
//! | `session` | `session`, `session_ip` | uprobe.session |
//! | `sample` | `sample`, `sample_empty` | perf events |
//! | `lifecycle` | `fork`, `exec`, `exit_task` | raw tracepoints |
//! | `bounds` | `operation_begin`, `operation_end` | uprobe.multi or perf-event uprobes |
//! | `bounds` | `operation_sys_enter`, `operation_sys_exit`, `operation_tracepoint` | raw tracepoints |
//! | `progress` | `progress_syscall`, `progress_tracepoint` | raw tracepoints |
//! | `empty` | `empty`, `plain_enter`, `plain_leave` | any uprobe link (calibration, benchmarks) |
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "core::sync::atomic has no read-modify-write on BPF targets")]

mod atomic;
mod beside;
mod bounds;
mod callers;
mod class;
mod context;
mod details;
mod empty;
mod entry;
mod exit;
mod lifecycle;
mod maps;
mod names;
mod off_cpu;
mod operation;
mod population;
mod progress;
mod record;
mod registers;
mod returns;
mod sample;
mod session;
mod step;
mod storage;
mod task;
mod thread;
mod words;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier refuses a program from which this can be reached.
    loop {}
}

/// The kernel's helpers that we use are for GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
