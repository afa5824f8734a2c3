//! A program that is run instruction by instruction (`PTRACE_SINGLESTEP`), and where each instruction of its own file led.
//!
//! One thread is followed: the first that the program starts, or its only one.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// An instruction that was executed; addresses are those of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Executed {
    pub at: u64,
    pub next: u64,
    pub flow: FlowControl,
}

/// Where an instruction led: to an address of the file, or out of it.
pub type Step = (Executed, Option<u64>);

/// Runs a program for at most `most` instructions; the different steps that began in its file, and how many instructions ran.
pub fn run(program: &Path, arguments: &[&str], stdin: &[u8], most: u64) -> (HashSet<Step>, u64) {
    let mut input = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut input, stdin).unwrap();
    std::io::Seek::rewind(&mut input).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).env("LD_BIND_NOW", "1").stdin(Stdio::from(input)).stdout(Stdio::null());
    let trace_me = || {
        // SAFETY: asks that the parent traces this process; touches no memory, and is a system call alone, as is allowed after fork.
        let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
        if result == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: `trace_me` makes one system call and allocates nothing.
    unsafe { command.pre_exec(trace_me) };
    let mut traced = Traced::new(command.spawn().unwrap(), program);
    traced.run_to_entry();
    let mut steps = HashSet::new();
    let mut before: Option<Executed> = None;
    let mut ran = 0;
    while ran < most {
        let now = traced.inside();
        if let Some(executed) = before {
            steps.insert((executed, now));
        }
        before = now.and_then(|at| traced.decode(at));
        if !traced.step() {
            break;
        }
        if std::mem::take(&mut traced.other_thread) {
            before = None;
        }
        ran += 1;
    }
    (steps, ran)
}

struct Traced {
    child: Child,
    thread: libc::pid_t,
    memory: File,
    /// Address in memory minus address in the file.
    bias: u64,
    /// Where the file is mapped.
    mapped: std::ops::Range<u64>,
    /// Address in memory of its entry point.
    entry: u64,
    decoded: HashMap<u64, Option<Executed>>,
    /// The last step ended in another thread.
    other_thread: bool,
}

/// Whether a thread was stopped, and by which signal and event.
fn wait(thread: libc::pid_t) -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is valid for writing while the call lasts.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    (waited == thread && libc::WIFSTOPPED(status)).then(|| (libc::WSTOPSIG(status), status >> 16))
}

fn order(request: libc::c_uint, thread: libc::pid_t, data: i64) {
    // SAFETY: the requests used here (options, steps, detaching) take a number as their data, and write to no memory of ours.
    unsafe { libc::ptrace(request, thread, 0_i64, data) };
}

impl Traced {
    fn new(child: Child, program: &Path) -> Self {
        let thread = child.id() as libc::pid_t;
        assert_eq!(wait(thread), Some((libc::SIGTRAP, 0)), "it stops behind exec");
        order(
            libc::PTRACE_SETOPTIONS,
            thread,
            i64::from(libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL),
        );
        let maps = std::fs::read_to_string(format!("/proc/{thread}/maps")).unwrap();
        let path = std::fs::canonicalize(program).unwrap();
        let own = maps.lines().filter(|line| line.ends_with(path.to_str().unwrap()));
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let ranges: Vec<(u64, u64)> = own
            .map(|line| line.split(' ').next().unwrap().split_once('-').unwrap())
            .map(|(start, end)| (hex(start), hex(end)))
            .collect();
        let mapped = ranges.first().unwrap().0..ranges.last().unwrap().1;
        // e_type: 2 has a fixed address. e_entry is at 24.
        let file = std::fs::read(program).unwrap();
        let bias = if file[16] == 2 { 0 } else { mapped.start };
        let entry = u64::from_le_bytes(file[24..32].try_into().unwrap()) + bias;
        let memory = File::options().read(true).write(true).open(format!("/proc/{thread}/mem")).unwrap();
        Self { child, thread, memory, bias, mapped, entry, decoded: HashMap::new(), other_thread: false }
    }

    /// Lets the loader do its work, which takes millions of instructions, without stepping through it.
    fn run_to_entry(&mut self) {
        let mut there = [0];
        self.memory.read_exact_at(&mut there, self.entry).unwrap();
        self.memory.write_all_at(&[0xcc], self.entry).unwrap();
        order(libc::PTRACE_CONT, self.thread, 0);
        assert_eq!(wait(self.thread), Some((libc::SIGTRAP, 0)), "it stops at its entry point");
        self.memory.write_all_at(&there, self.entry).unwrap();
        let rip = std::mem::offset_of!(libc::user_regs_struct, rip) as i64;
        // SAFETY: writes a word of the registers that the kernel saved.
        unsafe { libc::ptrace(libc::PTRACE_POKEUSER, self.thread, rip, self.entry.cast_signed()) };
        assert_eq!(self.inside(), Some(self.entry - self.bias));
    }

    /// The address in the file of the next instruction, if it is one of the file.
    fn inside(&self) -> Option<u64> {
        let offset = std::mem::offset_of!(libc::user_regs_struct, rip) as i64;
        // SAFETY: reads a word of the registers that the kernel saved; the result is the word.
        let at = unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.thread, offset, 0_i64) }.cast_unsigned();
        self.mapped.contains(&at).then(|| at - self.bias)
    }

    fn decode(&mut self, at: u64) -> Option<Executed> {
        let (memory, bias) = (&self.memory, self.bias);
        *self.decoded.entry(at).or_insert_with(|| {
            let mut bytes = [0; 15];
            let read = memory.read_at(&mut bytes, at + bias).ok()?;
            let insn: Instruction = Decoder::with_ip(64, &bytes[..read], at, DecoderOptions::NONE).decode();
            Some(Executed { at, next: insn.next_ip(), flow: insn.flow_control() })
        })
    }

    /// Executes one instruction; false: there are no more.
    fn step(&mut self) -> bool {
        let mut signal = 0;
        loop {
            order(libc::PTRACE_SINGLESTEP, self.thread, signal);
            let Some((stopped_by, event)) = wait(self.thread) else { return false };
            match (stopped_by, event) {
                (libc::SIGTRAP, libc::PTRACE_EVENT_CLONE) => return self.follow(),
                (libc::SIGTRAP, _) => return true,
                (other, _) => signal = i64::from(other),
            }
        }
    }

    /// Leaves this thread to itself and goes on with the one that it has started.
    fn follow(&mut self) -> bool {
        let mut started: libc::c_ulong = 0;
        // SAFETY: the kernel writes the thread's number into `started`, which lives until the call is over.
        unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, self.thread, 0_i64, &raw mut started) };
        let first = std::mem::replace(&mut self.thread, started as libc::pid_t);
        let stopped = wait(self.thread).is_some();
        order(libc::PTRACE_DETACH, first, 0);
        self.other_thread = true;
        stopped
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        wait(self.thread);
        let _ = self.child.wait();
    }
}
