//! A running target program, commanded over its standard input (protocol: `programs/protocol.h`).

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A program of this crate, started and ready. Killed and reaped on drop.
pub struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What the target itself says about calls that it made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Entries of the function, counted inside it, over all threads.
    pub calls: u64,
    /// From the first thread's first call to the last thread's last.
    pub wall: Duration,
    /// CPU time of the calling threads in that time.
    pub cpu: Duration,
}

impl Calls {
    /// Mean CPU time of a call, nanoseconds (0 without calls).
    pub fn cpu_ns_per_call(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.cpu.as_nanos() as f64 / self.calls as f64 }
    }
}

/// The `key=value` pairs of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(String);

impl Reply {
    /// The text of `key`, if the answer has it.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.split_whitespace().find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
    }

    /// The number of `key`, decimal or hexadecimal with `0x`.
    ///
    /// # Panics
    ///
    /// If the answer has no such number.
    pub fn number(&self, key: &str) -> u64 {
        let text = self.text(key).unwrap_or_else(|| panic!("no {key} in the answer \"{}\"", self.0));
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        }
        .unwrap_or_else(|error| panic!("{key}={text} is no number: {error}"))
    }

    fn calls(&self) -> Calls {
        Calls {
            calls: self.number("calls"),
            wall: Duration::from_nanos(self.number("wall_ns")),
            cpu: Duration::from_nanos(self.number("cpu_ns")),
        }
    }
}

impl Target {
    /// Starts a program (see [`crate::program`]) and waits until it is ready.
    ///
    /// # Panics
    ///
    /// If it cannot be started or does not say that it is ready.
    pub fn start(program: &str) -> Target {
        Target::start_command(&mut Command::new(crate::program(program)))
    }

    /// Starts a prepared command whose program speaks the protocol: another user, a wrapper, a namespace.
    ///
    /// # Panics
    ///
    /// As [`Target::start`].
    pub fn start_command(command: &mut Command) -> Target {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let input = child.stdin.take().expect("stdin was piped");
        let output = BufReader::new(child.stdout.take().expect("stdout was piped"));
        let mut target = Target { child, input, output };
        let ready = target.read_line();
        assert!(ready.starts_with("ready "), "{command:?} said \"{ready}\" instead of ready");
        target
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line and returns the answer.
    ///
    /// # Panics
    ///
    /// If the target answers with an error, or has died: the message has its exit status.
    pub fn command(&mut self, line: &str) -> Reply {
        self.send(line);
        self.receive(line)
    }

    /// Sends a line without waiting; [`Target::receive`] must follow before the next command.
    ///
    /// # Panics
    ///
    /// If the target has died.
    pub fn send(&mut self, line: &str) {
        if let Err(error) = writeln!(self.input, "{line}").and_then(|()| self.input.flush()) {
            panic!("cannot send \"{line}\": {error}; {}", self.fate());
        }
    }

    /// The answer to what was sent (`line` is for the message only).
    ///
    /// # Panics
    ///
    /// As [`Target::command`].
    pub fn receive(&mut self, line: &str) -> Reply {
        let answer = self.read_line();
        match answer.split_once(' ') {
            Some(("ok", values)) => Reply(values.to_owned()),
            _ => panic!("\"{line}\" was answered \"{answer}\"; {}", self.fate()),
        }
    }

    /// Sends a line that the target must refuse, and returns what it says.
    ///
    /// # Panics
    ///
    /// If it does not refuse it.
    pub fn refused(&mut self, line: &str) -> String {
        self.send(line);
        let answer = self.read_line();
        match answer.split_once(' ') {
            Some(("error", text)) => text.to_owned(),
            _ => panic!("\"{line}\" was answered \"{answer}\"; {}", self.fate()),
        }
    }

    /// `calls` calls of a function on each of `threads` threads (program `calls`).
    pub fn call(&mut self, function: &str, calls: u64, threads: u32) -> Calls {
        self.command(&format!("call {function} {calls} {threads}")).calls()
    }

    /// As [`Target::call`], with the argument that every call gets.
    pub fn call_with(&mut self, function: &str, calls: u64, threads: u32, argument: u64) -> Calls {
        self.command(&format!("call {function} {calls} {threads} {argument}")).calls()
    }

    /// Calls a function in the background, `hz` times a second on each thread (0: as fast as it can), until
    /// [`Target::stop_background`].
    pub fn start_background(&mut self, function: &str, threads: u32, hz: u64, argument: u64) {
        self.command(&format!("start {function} {threads} {hz} {argument}"));
    }

    /// Changes the rate of the background calls (0: as fast as it can).
    pub fn pace(&mut self, hz: u64) {
        self.command(&format!("pace {hz}"));
    }

    /// The longest time from the end of one background call to the end of the next on the same thread, since the start
    /// or the last time this was asked. Pauses of the pace are left out.
    pub fn take_stall(&mut self) -> Duration {
        Duration::from_nanos(self.command("stall").number("stall_ns"))
    }

    /// Ends the background calls; what they were.
    pub fn stop_background(&mut self) -> Calls {
        self.command("stop").calls()
    }

    /// Calls of a function so far, by the target's own count.
    pub fn count(&mut self, function: &str) -> u64 {
        self.command(&format!("count {function}")).number("calls")
    }

    /// A forked child without exec makes the calls and ends.
    pub fn call_in_fork(&mut self, function: &str, calls: u64) -> Calls {
        self.command(&format!("fork {function} {calls}")).calls()
    }

    /// Where a function stands in the target's memory.
    pub fn address(&mut self, function: &str) -> u64 {
        self.command(&format!("address {function}")).number("address")
    }

    /// Where a function stands: a path of its file that any process can open, and its offset in that file, which is
    /// what probes are attached by.
    pub fn file_offset(&mut self, function: &str) -> (PathBuf, u64) {
        let address = self.address(function);
        super::text::file_offset(self.pid(), address).unwrap_or_else(|error| panic!("{function}: {error}"))
    }

    /// Keeps the target, with the threads that it starts from now on, on one CPU.
    pub fn pin(&self, cpu: usize) {
        super::pin(self.pid(), cpu);
    }

    /// The bytes at the start of a function, read from the target's memory by this process.
    pub fn function_bytes(&mut self, function: &str, length: usize) -> Vec<u8> {
        let address = self.address(function);
        super::text::read_memory(self.pid(), address, length).unwrap_or_else(|error| {
            panic!("cannot read {length} bytes at {address:#x} of {}: {error}", self.pid())
        })
    }

    /// Every byte of the target's executable mappings is that of its file: no breakpoint is left.
    ///
    /// # Panics
    ///
    /// If not; the message lists the first places.
    pub fn assert_text_original(&self) {
        super::assert_text_original(self.pid());
    }

    /// The target (program `hazards`) replaces itself by another program of this protocol, under the same pid.
    ///
    /// # Panics
    ///
    /// If the new program does not say that it is ready.
    pub fn exec(&mut self, program: &std::path::Path) {
        self.send(&format!("exec {}", program.display()));
        let ready = self.read_line();
        assert!(ready.starts_with("ready "), "{} said \"{ready}\" instead of ready", program.display());
    }

    /// True while the process runs (a zombie does not).
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks the target to end and waits for it.
    pub fn quit(mut self) -> ExitStatus {
        self.send("quit");
        self.child.wait().expect("the child of this process can be waited for")
    }

    /// Sends a signal to the target.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain numbers; the child has not been reaped, so that the pid is still its own.
        let result = unsafe { libc::kill(self.pid() as libc::pid_t, signal) };
        assert_eq!(result, 0, "signal {signal} to {}: {}", self.pid(), std::io::Error::last_os_error());
    }

    /// Kills the target and reaps it.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Both fail only if the process has ended and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => format!("(end of output; {})", self.fate()),
            Ok(_) => line.trim_end().to_owned(),
            Err(error) => format!("({error}; {})", self.fate()),
        }
    }

    /// How the process stands, for messages. A closing process gets a moment to become waitable.
    fn fate(&mut self) -> String {
        for _ in 0..50 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return format!("the target ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        "the target still runs".to_owned()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a command to its end and returns its standard output and error.
///
/// # Panics
///
/// If it cannot be started.
pub fn output_of<S: AsRef<OsStr>>(program: S, arguments: &[&str]) -> std::process::Output {
    Command::new(&program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.as_ref().display()))
}
