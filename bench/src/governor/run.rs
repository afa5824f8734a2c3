//! One run of one arm: an adversarial target alone, under the agent, or under bpftrace, and what the target itself says.

use super::halves::Halves;
use crate::scratch;
use anyhow::{Context, Result, ensure};
use profiler_core::report::Report;
use profiler_tests::support::{Reply, Target};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Work before the watching begins (caches are warm, threads are up) and after it, s: what a twin does beside the target when neither
/// is watched.
const AROUND_WATCH_S: u64 = 1;
/// The target that sleeps for half of the time.
pub const IDLE: &str = "idle";
/// The same for it: a whole period, so that it has worked for as long as it has slept.
const AROUND_IDLE_S: u64 = 4;
/// The agent's start and end around the time that it was asked to watch, s; the arm without it waits as long.
const AROUND_S: f64 = 1.0;
/// The adversary with 200 threads.
const CROWD: &str = "threads200";
/// The target's slots, a second.
const SLOTS_PER_S: usize = 10;

/// Who watches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Arm {
    /// Nobody.
    Alone,
    /// The agent at this budget, percent.
    Budget(f64),
    /// bpftrace, counting the same functions.
    Bpftrace,
}

/// What a run gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Who watched.
    pub arm: Arm,
    /// Operations in each whole second from the beginning of the watching on.
    pub seconds: Vec<f64>,
    /// CPU time of an operation over the life of the agent, its own part left out, ns.
    pub cpu_ns_per_operation: f64,
    /// Operations that are due at a time: from then to their end, ns (0: not of this target).
    pub p50_ns: f64,
    /// The same, 99th percentile.
    pub p99_ns: f64,
    /// Operations whose result was wrong.
    pub errors: u64,
    /// Against a twin, where there is one.
    pub beside: Option<Beside>,
    /// The agent's own account, if it watched.
    pub receipt: Option<Receipt>,
}

/// The target against its twin: the same program, started at the same moment and never watched. What the host does to both is not in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beside {
    /// Operations fewer than the twin's, by what the two do before and after; a share. Nothing where one of them did nothing then.
    pub slowdown: Option<f64>,
    /// The same for each second in which the twin did something.
    pub seconds: Vec<f64>,
    /// CPU time more for an operation, by the same; a share.
    pub added_cpu: Option<f64>,
    /// 99th percentile of the twin's operations that are due at a time, ns.
    pub p99_ns: f64,
}

/// What the agent says of its own cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// Predicted overhead, a share.
    pub predicted: f64,
    /// Of the worst second.
    pub worst_second: f64,
    /// Classes that tripped.
    pub trips: u32,
    /// CPU time of the agent over that of one CPU.
    pub agent_cpu: f64,
    /// Share of the charge by kind.
    pub spent: Vec<(String, f64)>,
}

/// A target of the cell.
pub struct Subject {
    /// Name of the part of the cell.
    pub name: &'static str,
    /// Functions that are named to the agent and to bpftrace; none: the agent finds them.
    pub functions: &'static [&'static str],
    /// Other programs than `adversary`: program, command, operations that it stands for.
    pub driven: Option<(&'static str, &'static str, u64)>,
}

impl Subject {
    /// Work before the watching and after it, s.
    pub fn around_s(&self) -> u64 {
        if self.name == IDLE { AROUND_IDLE_S } else { AROUND_WATCH_S }
    }

    fn program(&self) -> PathBuf {
        profiler_tests::program(self.driven.map_or("adversary", |(program, ..)| program))
    }
}

/// The watcher's process; ended on drop.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        // SAFETY: kill takes plain numbers; the child has not been reaped, so that the pid is its own.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGINT) };
        // Fails only if it has been reaped.
        let _ = self.0.wait();
    }
}

/// Watches for so long, or waits as long as that takes; the agent's report.
fn watch(arm: &Arm, subject: &Subject, pid: u32, seconds: u64) -> Result<Option<Report>> {
    let functions = subject.functions;
    match arm {
        Arm::Alone => {
            std::thread::sleep(Duration::from_secs_f64(seconds as f64 + AROUND_S));
            Ok(None)
        }
        Arm::Bpftrace => {
            let path = subject.program();
            let body = |f: &&str| format!("uprobe:{}:{f} {{ @{f} = count(); }}", path.display());
            let program: Vec<String> = functions.iter().map(body).collect();
            let watcher = Watcher(
                Command::new("bpftrace")
                    .args(["-p", &pid.to_string(), "-e", &program.join(" ")])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .context("cannot start bpftrace; install it, or leave this arm out")?,
            );
            std::thread::sleep(Duration::from_secs_f64(seconds as f64 + AROUND_S));
            drop(watcher);
            Ok(None)
        }
        Arm::Budget(percent) => {
            let scratch = scratch::new()?;
            let mut command = Command::new(profiler_tests::program("tithe"));
            command
                .args(["record", "--pid", &pid.to_string(), "--format", "json", "--force"])
                .args(["--budget", &format!("{percent}%"), "--duration", &format!("{seconds}s")])
                .arg("-o")
                .arg(scratch.path().join("run.tithe"));
            for function in functions {
                command.args(["--count", function]);
            }
            // What others wait for shows in the target's own progress only.
            if subject.name == "lock" {
                command.args(["--progress", "operations"]);
            }
            let output = command.output().context("cannot start the agent")?;
            ensure!(output.status.success(), "the agent failed: {}", String::from_utf8_lossy(&output.stderr));
            Ok(Some(serde_json::from_slice(&output.stdout)?))
        }
    }
}

/// CPU time of a process's first thread, ns.
fn main_thread_cpu_ns(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    Ok(text.split_whitespace().next().context("an empty schedstat")?.parse()?)
}

/// What the target says of itself: operations by slot of 100 ms since [`Subject::around_s`] before the watching, and more.
struct Said {
    slots: Vec<f64>,
    cpu_ns_per_operation: f64,
    p50_ns: f64,
    p99_ns: f64,
    errors: u64,
    beside: Option<Beside>,
}

/// Target and twin take turns on the two CPUs, whose speeds differ by what the host does with them: thread i of the target is on one
/// while thread i of the twin is on the other.
struct Turns(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Turns {
    /// An even number of turns goes into a second, so that each has either CPU for half of it.
    const TURN: Duration = Duration::from_millis(25);
    /// More threads than this share both CPUs anyway, and moving them all costs.
    const MANY: usize = 64;

    fn start(one: u32, other: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let turns = move || {
            let begun = Instant::now();
            while !ended.load(Ordering::Relaxed) {
                let (own, its) = (tasks(one), tasks(other));
                let turn = (begun.elapsed().as_nanos() / Self::TURN.as_nanos()) as u32;
                if own.len() + its.len() > Self::MANY {
                    std::thread::sleep(Self::TURN);
                    continue;
                }
                own.into_iter().enumerate().for_each(|(i, tid)| pin(tid, (turn as usize + i) % 2));
                its.into_iter().enumerate().for_each(|(i, tid)| pin(tid, (turn as usize + i + 1) % 2));
                std::thread::sleep((Self::TURN * (turn + 1)).saturating_sub(begun.elapsed()));
            }
        };
        Self(stop, Some(std::thread::spawn(turns)))
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            // It cannot panic, and if it did the figures would show it.
            let _ = thread.join();
        }
    }
}

fn tasks(pid: u32) -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// A thread that has ended meanwhile needs no CPU.
fn pin(tid: i32, cpu: usize) {
    // SAFETY: the set is plain data of ours, and the kernel reads it only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// What was done in a span of time.
#[derive(Clone, Copy)]
struct Made {
    operations: f64,
    cpu_ns: f64,
}

impl Made {
    fn plus(self, other: Self) -> Self {
        Self { operations: self.operations + other.operations, cpu_ns: self.cpu_ns + other.cpu_ns }
    }

    /// CPU time of an operation, ns; nothing without operations.
    fn cost(self) -> Option<f64> {
        (self.operations > 0.0).then(|| self.cpu_ns / self.operations)
    }
}

/// The answer to `times`.
fn made(times: &Reply) -> Made {
    Made { operations: times.number("operations") as f64, cpu_ns: times.number("cpu_ns") as f64 }
}

/// Operations of the target and its twin: how many fewer the target's are than they were by what the two do when neither is watched; a
/// share. Nothing where there is nothing to compare with.
fn fewer((own, its): (f64, f64), usual: (Made, Made)) -> Option<f64> {
    let (usual_own, usual_its) = (usual.0.operations, usual.1.operations);
    (its > 0.0 && usual_own > 0.0 && usual_its > 0.0).then(|| 1.0 - own / its / (usual_own / usual_its))
}

/// CPU time more for an operation of the target than by its twin's and what the two take when neither is watched; a share.
fn added_cpu(watched: (Made, Made), usual: (Made, Made)) -> Option<f64> {
    let [own, its, usual_own, usual_its] =
        [watched.0.cost()?, watched.1.cost()?, usual.0.cost()?, usual.1.cost()?];
    Some(own / its / (usual_own / usual_its) - 1.0).filter(|share| share.is_finite())
}

fn slots_of(target: &mut Target) -> Vec<f64> {
    let slots = target.command("slots");
    slots.text("slots").unwrap_or("").split(',').map(|n| n.parse().unwrap_or(0.0)).collect()
}

fn run_adversary(arm: &Arm, subject: &Subject, seconds: u64) -> Result<(Said, Option<Report>)> {
    let scratch = scratch::new()?;
    // A file of its own: a probe on the target's file is none on this.
    let copy = scratch.path().join("twin");
    std::fs::copy(subject.program(), &copy)?;
    let start = |program: &Path| Target::start_command(Command::new(program).arg(subject.name));
    let (mut target, mut twin) = (start(&subject.program()), start(&copy));
    // It runs, and needs its name no more.
    drop(scratch);
    // Of few threads, `Turns` does better.
    let crowd = subject.name == CROWD;
    let _halves = crowd.then(|| Halves::start([target.pid(), twin.pid()])).transpose()?;
    // What changes at one instant changes in the middle of the watching.
    let around_s = subject.around_s();
    let line = format!("start {}", around_s * 1_000 + seconds * 500);
    target.command(&line);
    twin.command(&line);
    let turns = Turns::start(target.pid(), twin.pid());
    std::thread::sleep(Duration::from_secs(around_s));
    let before = (target.command("times"), twin.command("times"));
    let report = watch(arm, subject, target.pid(), seconds)?;
    let (times, other) = (target.command("times"), twin.command("times"));
    std::thread::sleep(Duration::from_secs(around_s));
    let after = (target.command("times"), twin.command("times"));
    let (slots, other_slots) = (slots_of(&mut target), slots_of(&mut twin));
    drop(turns);
    let end = target.command("stop");
    ensure!(target.is_alive(), "{}: the target died", subject.name);
    let both = |a: &Reply, b: &Reply| made(a).plus(made(b));
    let usual = (both(&before.0, &after.0), both(&before.1, &after.1));
    let per_s = |slots: &[f64]| -> Vec<f64> {
        let from = around_s as usize * SLOTS_PER_S;
        let watched = slots.get(from..from + seconds as usize * SLOTS_PER_S).unwrap_or(&[]);
        watched.chunks(SLOTS_PER_S).map(|second| second.iter().sum()).collect()
    };
    let watched = (made(&times), made(&other));
    let seconds = per_s(&slots).into_iter().zip(per_s(&other_slots));
    let beside = Beside {
        slowdown: fewer((watched.0.operations, watched.1.operations), usual),
        seconds: seconds.filter_map(|pair| fewer(pair, usual)).collect(),
        added_cpu: added_cpu(watched, usual),
        p99_ns: other.number("p99_ns") as f64,
    };
    let said = Said {
        slots,
        cpu_ns_per_operation: watched.0.cpu_ns / watched.0.operations.max(1.0),
        p50_ns: times.number("p50_ns") as f64,
        p99_ns: times.number("p99_ns") as f64,
        errors: times.number("errors") + end.number("errors"),
        beside: Some(beside),
    };
    Ok((said, report))
}

/// A program that is told what to do again and again.
fn run_driven(
    arm: &Arm,
    subject: &Subject,
    (program, line, each): (&str, &str, u64),
    seconds: u64,
) -> Result<(Said, Option<Report>)> {
    let mut target = Target::start(program);
    let pid = target.pid();
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let driver = scope.spawn(|| {
            let (mut slots, mut errors) = (Vec::<f64>::new(), 0);
            while !stop.load(Ordering::Relaxed) {
                let done = target.command(line).number("caught");
                errors += u64::from(done != each);
                let slot = (begun.elapsed().as_secs_f64() * SLOTS_PER_S as f64) as usize;
                slots.resize(slots.len().max(slot + 1), 0.0);
                slots[slot] += each as f64;
            }
            (slots, errors, target)
        });
        let watched = (|| {
            std::thread::sleep(Duration::from_secs(subject.around_s()));
            let (cpu, from) = (main_thread_cpu_ns(pid)?, begun.elapsed());
            let report = watch(arm, subject, pid, seconds)?;
            anyhow::Ok((report, main_thread_cpu_ns(pid)? - cpu, from, begun.elapsed()))
        })();
        stop.store(true, Ordering::Relaxed);
        let (slots, errors, _target) = driver.join().expect("the target lives");
        let (report, cpu, from, to) = watched.context("the run was not finished")?;
        let slot = |at: Duration| ((at.as_secs_f64() * SLOTS_PER_S as f64) as usize).min(slots.len());
        let operations: f64 = slots[slot(from)..slot(to)].iter().sum();
        let said = Said {
            cpu_ns_per_operation: cpu / operations.max(1.0),
            p50_ns: 0.0,
            p99_ns: 0.0,
            errors,
            slots,
            beside: None,
        };
        anyhow::Ok((said, report))
    })
}

/// One run; the target is started for it and ended after it.
pub fn run(arm: &Arm, subject: &Subject, seconds: u64) -> Result<Run> {
    let (said, report) = match subject.driven {
        None => run_adversary(arm, subject, seconds)?,
        Some(driven) => run_driven(arm, subject, driven, seconds)?,
    };
    let from = subject.around_s() as usize * SLOTS_PER_S;
    let watched = said.slots.get(from..from + seconds as usize * SLOTS_PER_S);
    let watched = watched.with_context(|| format!("{} slots only", said.slots.len()))?;
    Ok(Run {
        arm: arm.clone(),
        seconds: watched.chunks(SLOTS_PER_S).map(|second| second.iter().sum()).collect(),
        cpu_ns_per_operation: said.cpu_ns_per_operation,
        p50_ns: said.p50_ns,
        p99_ns: said.p99_ns,
        errors: said.errors,
        beside: said.beside,
        receipt: report.map(|report| Receipt {
            predicted: report.receipt.predicted,
            worst_second: report.receipt.worst_second,
            trips: report.receipt.trips,
            agent_cpu: report.receipt.agent_cpu,
            spent: {
                let cpu = report.receipt.target_cpu_s.max(1e-9);
                report.receipt.spent_s.iter().map(|(kind, s)| (format!("{kind:?}"), s / cpu)).collect()
            },
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(operations: f64, cpu_ns: f64) -> Made {
        Made { operations, cpu_ns }
    }

    #[test]
    fn what_did_nothing_is_compared_with_nothing() {
        let usual = (made(200.0, 2e7), made(100.0, 1e7));
        // The target did twice as much as its twin when neither was watched, and does as much.
        assert_eq!(fewer((100.0, 100.0), usual), Some(0.5));
        assert_eq!(fewer((0.0, 100.0), usual), Some(1.0));
        assert_eq!(fewer((100.0, 0.0), usual), None);
        let asleep = made(0.0, 1e4);
        for usual in [(asleep, usual.1), (usual.0, asleep), (asleep, asleep)] {
            assert_eq!(fewer((100.0, 100.0), usual), None);
            assert_eq!(added_cpu((made(1.0, 1.0), made(1.0, 1.0)), usual), None);
        }
        let added = added_cpu((made(100.0, 1.1e7), made(100.0, 1e7)), usual).unwrap();
        assert!((added - 0.1).abs() < 1e-12, "{added}");
        assert_eq!(added_cpu((made(1.0, 1.0), asleep), usual), None);
    }
}
