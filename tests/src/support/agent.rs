//! The agent, watching a target: started, waited for, stopped, and its report read.

use super::{Target, changed_text, patience};
use profiler_core::report::{Report, Row};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// `tithe record` on a target. Killed on drop.
pub struct Agent {
    child: Child,
    pid: u32,
    recording: PathBuf,
    messages: Messages,
    /// Reads standard output.
    output: Option<JoinHandle<String>>,
}

/// Standard error so far, followed by a thread of its own.
struct Messages {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// How a run of the agent ended.
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// The report of standard output, if there was one.
    pub report: Option<Report>,
    /// Standard error.
    pub messages: String,
}

impl Agent {
    /// Starts `tithe record --pid PID --budget 1000ms/s --only-named` with more arguments, writing into `folder`. (A
    /// share would be little of a target that waits for commands, and the breaker would stop the counting.)
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn start(pid: u32, folder: &Path, arguments: &[&str]) -> Agent {
        let mut all = vec!["--budget", "1000ms/s", "--only-named"];
        all.extend(arguments);
        Agent::start_plain(pid, folder, &all)
    }

    /// Starts `tithe record --pid PID` with these arguments only.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn start_plain(pid: u32, folder: &Path, arguments: &[&str]) -> Agent {
        let recording = folder.join(format!("run-{pid}.tithe"));
        Agent::start_command(Command::new(crate::program("tithe")), pid, &recording, arguments)
    }

    /// Starts a prepared command that is `tithe`, or that becomes it and passes arguments on, as
    /// `COMMAND record --pid PID` with these arguments, writing into `recording`.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn start_command(mut command: Command, pid: u32, recording: &Path, arguments: &[&str]) -> Agent {
        let mut child = command
            .args(["record", "--pid", &pid.to_string()])
            .args(["--format", "json", "--rows", "1000", "--force", "-o"])
            .arg(recording)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tithe was built");
        let messages = Messages::follow(child.stderr.take().expect("stderr was piped"));
        // From the start: a report larger than a pipe holds would keep the agent from ending.
        let output = child.stdout.take().expect("stdout was piped");
        let output = Some(std::thread::spawn(move || read_all(output)));
        Agent { child, pid, recording: recording.to_owned(), messages, output }
    }

    /// Where it writes its recording.
    pub fn recording(&self) -> &Path {
        &self.recording
    }

    /// The agent's process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a breakpoint stands in the target's text, and gives everything else a moment to be attached too.
    ///
    /// # Panics
    ///
    /// If none does in time, or the agent ends before; the message has what it said.
    pub fn wait_attached(&mut self) {
        let end = Instant::now() + patience(Duration::from_secs(20));
        loop {
            // A target that changes its own mappings meanwhile may not be readable: then once more.
            if changed_text(self.pid).is_ok_and(|changes| !changes.is_empty()) {
                std::thread::sleep(Duration::from_millis(300));
                return;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the agent ended with {status} before it attached: {}", self.said());
            }
            if Instant::now() > end {
                self.signal(libc::SIGTERM);
                panic!("nothing attached in time: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the agent has said this on standard error.
    ///
    /// # Panics
    ///
    /// If it does not in time, or ends before; the message has what it said.
    pub fn wait_message(&mut self, text: &str) {
        let end = Instant::now() + patience(Duration::from_secs(20));
        while !self.messages.so_far().contains(text) {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the agent ended with {status} and never said \"{text}\": {}", self.said());
            }
            assert!(Instant::now() < end, "no \"{text}\" in time: {}", self.messages.so_far());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until everything that was named with `--only-named` is attached: from then on each call is counted.
    ///
    /// # Panics
    ///
    /// As [`Agent::wait_message`].
    pub fn wait_tracing(&mut self) {
        self.wait_message("tithe: tracing ");
    }

    /// What it has said on standard error until now.
    pub fn messages(&self) -> String {
        self.messages.so_far()
    }

    /// True while it runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal to the agent.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain numbers; the child has not been reaped, so that the pid is its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// As Ctrl-C does, then waits for the report.
    ///
    /// # Panics
    ///
    /// As [`Agent::finish`].
    pub fn stop(self) -> Finished {
        self.signal(libc::SIGINT);
        self.finish()
    }

    /// Waits for the agent's own end.
    ///
    /// # Panics
    ///
    /// If it does not end in time, or prints something else than a report.
    pub fn finish(mut self) -> Finished {
        let end = Instant::now() + patience(Duration::from_secs(60));
        let status = loop {
            match self.child.try_wait().expect("the child of this process can be waited for") {
                Some(status) => break status,
                None if Instant::now() > end => panic!("the agent did not end in time"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let output = self.output.take().expect("it is taken here only");
        let text = output.join().expect("the reader does not panic");
        let messages = self.said();
        let report = (!text.trim().is_empty()).then(|| {
            serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{error} in the report {text}; {messages}"))
        });
        Finished { status, report, messages }
    }

    /// What it said on standard error; waits for its end.
    fn said(&mut self) -> String {
        self.messages.all()
    }
}

impl Messages {
    fn follow(from: impl Read + Send + 'static) -> Messages {
        let text = Arc::new(Mutex::new(String::new()));
        let into = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut lines = BufReader::new(from);
            let mut line = Vec::new();
            // An error ends it like the end: what came before is worth showing.
            while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let mut text = into.lock().unwrap_or_else(PoisonError::into_inner);
                text.push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Messages { text, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything; waits for the end of the output.
    fn all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            // It does not panic: it only moves bytes.
            let _ = reader.join();
        }
        self.so_far()
    }
}

fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What came before an error is worth showing.
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// The report of a run that ended well.
    ///
    /// # Panics
    ///
    /// If it did not, or printed none; the message has what it said.
    pub fn report(&self) -> &Report {
        assert!(self.status.success(), "the agent ended with {}: {}", self.status, self.messages);
        self.report.as_ref().unwrap_or_else(|| panic!("no report: {}", self.messages))
    }

    /// The row of a function.
    ///
    /// # Panics
    ///
    /// If the report has none.
    pub fn row(&self, function: &str) -> &Row {
        let rows = &self.report().rows;
        rows.iter().find(|row| row.name == function).unwrap_or_else(|| {
            let names: Vec<_> = rows.iter().map(|row| &row.name).collect();
            panic!("no row {function}, there are {names:?}; {}", self.messages)
        })
    }

    /// Entries of a function seen while it was attached; none was lost.
    ///
    /// # Panics
    ///
    /// If the report has no such row, or hits were lost.
    pub fn hits(&self, function: &str) -> u64 {
        let row = self.row(function);
        assert_eq!(row.dropped, 0, "{row:?}; {}", self.messages);
        row.attempted
    }
}

/// Waits until the target's text is that of its files again, and returns how long that took.
///
/// # Panics
///
/// If it is not within `limit`.
pub fn wait_text_original(target: &Target, limit: Duration) -> Duration {
    let start = Instant::now();
    loop {
        match changed_text(target.pid()) {
            Ok(changes) if changes.is_empty() => return start.elapsed(),
            Ok(changes) => assert!(start.elapsed() < limit, "still changed after {limit:?}: {changes:?}"),
            Err(error) => panic!("cannot read the text of {}: {error}", target.pid()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
