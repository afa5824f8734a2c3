//! The parent's end of the calibration child.

use super::CalibrateError;
use super::code::Probed;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// An order takes a fraction of a second on an idle machine; those that run many forms say how far they are meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// A socket is closed before its process can be collected.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How the child is started: by default this very program again, with a hidden subcommand.
#[derive(Debug, Clone)]
pub struct ChildCommand {
    /// The program. It must be the same file as ours: its functions are probed by our offsets.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables to add to its environment.
    pub env: Vec<(OsString, OsString)>,
}

impl Default for ChildCommand {
    fn default() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            args: vec!["internal-child".into(), "calibration".into()],
            env: Vec::new(),
        }
    }
}

/// Where output of the child goes, of which there is none: `/dev/null`, or, in a root without `/dev`, a pipe that nobody reads.
fn nowhere() -> std::io::Result<Stdio> {
    match std::fs::File::options().write(true).open("/dev/null") {
        Ok(null) => Ok(null.into()),
        Err(_) => std::io::pipe().map(|(_, end)| end.into()),
    }
}

/// The running child. Dropping it ends and collects it.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    socket: BufReader<UnixStream>,
    /// How long it may be silent.
    patience: Duration,
    /// When waiting for it ends, whatever it says.
    until: Option<Instant>,
    /// Its two threads.
    pub tids: [u32; 2],
}

impl Worker {
    pub fn start(command: &ChildCommand) -> Result<Self, CalibrateError> {
        Self::begin(command, None)
    }

    /// The same, and no answer is waited for beyond `until`.
    pub fn start_until(command: &ChildCommand, until: Instant) -> Result<Self, CalibrateError> {
        Self::begin(command, Some(until))
    }

    fn begin(command: &ChildCommand, until: Option<Instant>) -> Result<Self, CalibrateError> {
        let patience = ANSWER_TIMEOUT;
        let (ours, theirs) = UnixStream::pair().map_err(CalibrateError::Child)?;
        ours.set_read_timeout(Some(patience)).map_err(CalibrateError::Child)?;
        let child = Command::new(&command.program)
            .args(&command.args)
            .envs(command.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(nowhere().map_err(CalibrateError::Child)?)
            .spawn()
            .map_err(CalibrateError::Child)?;
        let mut worker = Self { child, socket: BufReader::new(ours), patience, until, tids: [0; 2] };
        let line = worker.read()?;
        let tids: Vec<u32> = line
            .strip_prefix("ready ")
            .unwrap_or_default()
            .split(' ')
            .filter_map(|w| w.parse().ok())
            .collect();
        worker.tids = tids.try_into().map_err(|_| CalibrateError::Answer(line))?;
        Ok(worker)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU ns per call of the unprobed twin and of the probed function.
    pub fn calls(&mut self, probed: Probed, calls: u64, threads: usize) -> Result<[f64; 2], CalibrateError> {
        self.ask(&format!("calls {} {} {calls} {threads}", probed.row, probed.column()))
    }

    /// The same of calls with work between them, and ns of the work that follows a call of the twin and of the probed function.
    pub fn cold_calls(&mut self, probed: Probed, calls: u64) -> Result<[f64; 4], CalibrateError> {
        self.ask(&format!("cold {} {} {calls}", probed.row, probed.column()))
    }

    /// ns of a call of the unprobed twin and of the probed function, right after a rest.
    pub fn rested_calls(&mut self, probed: Probed, calls: u64) -> Result<[f64; 2], CalibrateError> {
        self.ask(&format!("rested {} {} {calls}", probed.row, probed.column()))
    }

    /// CPU ns per context switch.
    pub fn ping_pong(&mut self, rounds: u64) -> Result<f64, CalibrateError> {
        self.ask(&format!("pingpong {rounds}")).map(|[x]| x)
    }

    /// CPU ns per system call (getppid).
    pub fn syscalls(&mut self, calls: u64) -> Result<f64, CalibrateError> {
        self.ask(&format!("syscalls {calls}")).map(|[x]| x)
    }

    /// Interruptions within `ms`.
    pub fn gaps(&mut self, ms: u64) -> Result<Gaps, CalibrateError> {
        self.send(&format!("gaps {ms}"))?;
        self.gaps_answer()
    }

    /// Begin a `gaps` order whose answer is read later by [`Worker::gaps_answer`].
    pub fn begin_gaps(&mut self, ms: u64) -> Result<(), CalibrateError> {
        self.send(&format!("gaps {ms}"))
    }

    pub fn gaps_answer(&mut self) -> Result<Gaps, CalibrateError> {
        let [elapsed_ns, sum_ns, longest_ns] = self.answer()?;
        Ok(Gaps { elapsed_ns, sum_ns, longest_ns })
    }

    /// Give an order that is answered with "done" and may take long: it is waited for as long as `progress` gives another number after each
    /// of our timeouts.
    pub fn long_order(&mut self, order: &str, progress: impl Fn() -> u64) -> Result<(), CalibrateError> {
        self.send(order)?;
        let mut before = progress();
        match self.read_while(|| std::mem::replace(&mut before, progress()) != before)? {
            line if line == "done" => Ok(()),
            line => Err(CalibrateError::Answer(line)),
        }
    }

    /// How the child ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if begin.elapsed() <= END_TIMEOUT => {}
                Ok(end) => return end,
                Err(_) => return None,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// CPU time that the child has used.
    pub fn cpu_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // utime and stime are fields 14 and 15; the name, field 2, may hold anything but ends in the last ')'.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
        let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
        // SAFETY: sysconf takes a number.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1).unsigned_abs();
        Some(Duration::from_millis(ticks * 1000 / per_second))
    }

    #[cfg(test)]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.socket.get_mut().set_read_timeout(Some(patience)).expect("not zero");
        self.patience = patience;
        self
    }

    /// Begin a `fade` order; its answer is read by [`Worker::fade_answer`].
    pub fn begin_fade(&mut self, probed: Probed, ms: u64, limit_ns: f64) -> Result<(), CalibrateError> {
        self.send(&format!("fade {} {} {ms} {limit_ns:.0}", probed.row, probed.column()))
    }

    /// When its calls were slow for the last time, `CLOCK_MONOTONIC` ns.
    pub fn fade_answer(&mut self) -> Result<u64, CalibrateError> {
        let line = self.read()?;
        line.parse().map_err(|_| CalibrateError::Answer(line))
    }

    fn ask<const N: usize>(&mut self, order: &str) -> Result<[f64; N], CalibrateError> {
        self.send(order)?;
        self.answer()
    }

    fn send(&mut self, order: &str) -> Result<(), CalibrateError> {
        writeln!(self.socket.get_mut(), "{order}").map_err(CalibrateError::Child)
    }

    fn answer<const N: usize>(&mut self) -> Result<[f64; N], CalibrateError> {
        let line = self.read()?;
        let numbers: Vec<f64> = line.split(' ').filter_map(|w| w.parse().ok()).collect();
        numbers.try_into().map_err(|_| CalibrateError::Answer(line))
    }

    fn read(&mut self) -> Result<String, CalibrateError> {
        self.read_while(|| false)
    }

    /// Reads a line; after each timeout `go_on` says whether to wait for more.
    fn read_while(&mut self, mut go_on: impl FnMut() -> bool) -> Result<String, CalibrateError> {
        let mut line = String::new();
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            self.patience = left.min(ANSWER_TIMEOUT).max(Duration::from_millis(1));
            self.socket.get_mut().set_read_timeout(Some(self.patience)).map_err(CalibrateError::Child)?;
        }
        loop {
            match self.socket.read_line(&mut line) {
                Ok(0) => return Err(CalibrateError::Answer("end of file".into())),
                Ok(_) => return Ok(line.trim_end().to_owned()),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if !go_on() {
                        return Err(CalibrateError::Slow(self.patience));
                    }
                }
                Err(error) => return Err(CalibrateError::Child(error)),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Fails only if it is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Interruptions that a loop saw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gaps {
    /// Time that the loop or an interruption had the CPU.
    pub elapsed_ns: f64,
    /// Of that, interruptions.
    pub sum_ns: f64,
    pub longest_ns: f64,
}
