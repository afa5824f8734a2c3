//! Started processes: each the head of its own group, with a log, spoken to with time limits, ended on drop.

use crate::place::text_of;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a program may take for one answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// A started program. Killed with all that it started, and reaped, on drop.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command in a folder. Standard output and error go into `folder/log`, unless they are set.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(command: &mut Command, folder: &Path) -> Result<Process> {
        let log = folder.join("log");
        let file = File::options().create(true).append(true).open(&log).context("cannot create a log")?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Process::start_prepared(command, folder)
    }

    fn start_prepared(command: &mut Command, folder: &Path) -> Result<Process> {
        command.current_dir(folder).process_group(0);
        die_with_us(command, libc::SIGKILL);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Process { child, log: folder.join("log") })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        text_of(&self.log)
    }

    /// An error if it has ended.
    ///
    /// # Errors
    ///
    /// If it has ended; the message has how, and the end of its log.
    pub fn ensure_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the program ended with {status}: {}", tail(&self.log())),
        }
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes plain numbers; the child has not been reaped through us, so that the pid is its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// If it goes on for longer than `limit`; it is then killed on drop.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < end, "the program did not end within {limit:?}: {}", tail(&self.log()));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for an end with exit status 0.
    ///
    /// # Errors
    ///
    /// As [`Process::wait`], or if it ends otherwise.
    pub fn wait_success(&mut self, limit: Duration) -> Result<()> {
        let status = self.wait(limit)?;
        ensure!(status.success(), "the program ended with {status}: {}", tail(&self.log()));
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            for pid in descendants(self.child.id()).into_iter().chain([self.child.id()]) {
                // These are this process and its descendants of this moment; one that has ended is no error.
                if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            // It was killed.
            let _ = self.child.wait();
        }
    }
}

/// What this command starts gets a signal when this thread ends, so that nothing outlives a suite that was stopped.
pub fn die_with_us(command: &mut Command, signal: i32) {
    // SAFETY: between fork and exec only prctl is called, which is a plain system call.
    unsafe {
        command.pre_exec(move || match libc::prctl(libc::PR_SET_PDEATHSIG, signal) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// How a program ended, in words.
fn told(fate: Result<ExitStatus>) -> String {
    fate.map_or("it still runs".to_owned(), |status| format!("it ended with {status}"))
}

/// The last lines of a text, for messages.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join(" | ")
}

/// All processes below this one, parents first.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = text_of(&entry.path().join("stat"));
        // pid (comm) state ppid: the name may have spaces and brackets.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (parent, child)));
    }
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let above = found[next];
        found.extend(parents.iter().filter(|(parent, _)| *parent == above).map(|(_, child)| *child));
        next += 1;
    }
    found.split_off(1)
}

/// CPU time that a process has used, in clock ticks.
pub fn cpu_ticks(pid: u32) -> u64 {
    let stat = text_of(Path::new(&format!("/proc/{pid}/stat")));
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    // Fields 14 and 15 of the line, the third of which is the first here.
    fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// CPU time that a process and all below it have used, s, in steps of 10 ms. Children that have ended do not count.
pub fn family_cpu_s(pid: u32) -> f64 {
    let ticks: u64 = descendants(pid).into_iter().chain([pid]).map(cpu_ticks).sum();
    // 100 a second on every x86-64.
    ticks as f64 / 100.0
}

/// A program that is spoken to line by line.
pub struct Talker {
    process: Process,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Talker {
    /// Starts it; standard error goes into `folder/log`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(command: &mut Command, folder: &Path) -> Result<Talker> {
        let log = File::options().create(true).append(true).open(folder.join("log"))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut process = Process::start_prepared(command, folder)?;
        let input = process.child.stdin.take();
        let output = process.child.stdout.take().context("stdout was piped")?;
        let (sender, lines) = channel();
        // Ends with the program's output, or when nobody listens.
        std::thread::spawn(move || {
            let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
            for line in lines {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Talker { process, input, lines })
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends text.
    ///
    /// # Errors
    ///
    /// If the program has gone.
    pub fn send(&mut self, text: &str) -> Result<()> {
        let input = self.input.as_mut().context("the program's input is closed")?;
        if let Err(error) = input.write_all(text.as_bytes()).and_then(|()| input.flush()) {
            // A closing process gets a moment to become waitable.
            let fate = self.process.wait(Duration::from_secs(2));
            bail!("cannot send to the program: {error}; {}; {}", told(fate), tail(&self.process.log()));
        }
        Ok(())
    }

    /// The next line.
    ///
    /// # Errors
    ///
    /// If there is none within the limit for answers, or the program has gone.
    pub fn line(&mut self) -> Result<String> {
        match self.lines.recv_timeout(ANSWER_LIMIT) {
            Ok(line) => Ok(line),
            Err(_) => {
                let fate = self.process.wait(Duration::from_millis(500));
                bail!("no answer from the program: {}; {}", told(fate), tail(&self.process.log()))
            }
        }
    }

    /// The next line, if there is one by now.
    pub fn line_if_any(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Closes its input, and reads until it says nothing more or nothing within the limit for answers.
    pub fn last_lines(&mut self) -> Vec<String> {
        self.input = None;
        std::iter::from_fn(|| self.lines.recv_timeout(ANSWER_LIMIT).ok()).collect()
    }

    /// Closes its input and waits for its end with exit status 0.
    ///
    /// # Errors
    ///
    /// As [`Process::wait_success`].
    pub fn finish(mut self) -> Result<()> {
        self.input = None;
        self.process.wait_success(ANSWER_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_dies_between_two_answers_is_an_error_with_its_signal() {
        let folder = tempfile::tempdir().unwrap();
        let mut talker =
            Talker::start(Command::new("sh").args(["-c", "read x; echo $x; kill -SEGV $$"]), folder.path())
                .unwrap();
        talker.send("one\n").unwrap();
        assert_eq!(talker.line().unwrap(), "one");
        let error = format!("{:#}", talker.line().unwrap_err());
        assert!(error.contains("signal: 11"), "{error}");
    }

    #[test]
    fn what_a_program_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sleep 600 & echo begun; wait"]);
        let mut talker = Talker::start(&mut command, folder.path()).unwrap();
        talker.line().unwrap();
        let below = descendants(talker.process().pid());
        assert_eq!(below.len(), 1, "{below:?}");
        drop(talker);
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            let state = text_of(Path::new(&format!("/proc/{}/stat", below[0])));
            // Nobody reaps it at once: gone, or a zombie.
            if state.is_empty() || state.contains(") Z ") {
                break;
            }
            assert!(Instant::now() < end, "{state}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
