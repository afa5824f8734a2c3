//! A function that is called 10 times a second and then 10 million times: how long until it is off, what the target loses
//! meanwhile, with the machine idle and busy, with a governor in real time and without, and with a target in real time.

use crate::measure::{Series, Table};
use anyhow::{Context, Result, ensure};
use profiler_core::class::ClassId;
use profiler_tests::support::Target;
use profiler_user::governor::{CloseReason, ClosedLink, Governor, LinkTable};
use profiler_user::prober::{AttachGroup, ClassControl, ClassKind, Kernel, KernelOptions, LinkKind, Site};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Hits of a class that may explode: about half a millisecond of target time.
const QUOTA: i64 = 1000;
/// Beyond that a link is taken for lost; on an overloaded machine closing has taken more than 5 s.
const CLOSED: Duration = Duration::from_secs(30);
/// Hits for each of the classes that trip together: a pass over all of them takes less than 0.1 ms.
const SMALL_QUOTA: i64 = 5;
const TOGETHER: u32 = 20;
/// From the start of the work to the explosion, ms.
const QUIET_MS: u64 = 200;
/// The target's time after the explosion that is looked at, ms; and after it, for what is usual.
const LOOK_MS: usize = 30;
const USUAL_MS: usize = 100;
/// A real-time target must not starve the machine: the kernel leaves 5 % to others, and it works for half a second.
const REALTIME_TARGET: i32 = 10;

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    busy: usize,
    realtime_governor: bool,
    realtime_target: bool,
}

const CASES: [Case; 6] = [
    Case { name: "idle machine", busy: 0, realtime_governor: true, realtime_target: false },
    Case { name: "both cores busy", busy: 2, realtime_governor: true, realtime_target: false },
    Case {
        name: "idle machine, governor at nice -20",
        busy: 0,
        realtime_governor: false,
        realtime_target: false,
    },
    Case {
        name: "both cores busy, governor at nice -20",
        busy: 2,
        realtime_governor: false,
        realtime_target: false,
    },
    Case {
        name: "idle machine, target in real time",
        busy: 0,
        realtime_governor: true,
        realtime_target: true,
    },
    Case {
        name: "both cores busy, target in real time",
        busy: 2,
        realtime_governor: true,
        realtime_target: true,
    },
];

/// Processes that use up CPU time; ended on drop.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start(count: usize) -> Result<Self> {
        let start = |_| Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        Ok(Self((0..count).map(start).collect::<Result<_, _>>().context("cannot start a busy loop")?))
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only if it has ended and been reaped.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Takes the governor's threads out of real time, as a kernel that refuses it would leave them; or puts them back.
fn schedule_governor(realtime: bool) -> Result<()> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let tid: i32 = task?.file_name().to_string_lossy().parse()?;
        let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm"))?;
        if !name.starts_with("tithe-") {
            continue;
        }
        if realtime {
            schedule(tid, libc::SCHED_FIFO, 1)?;
        } else {
            schedule(tid, libc::SCHED_OTHER, 0)?;
            // SAFETY: plain numbers; for PRIO_PROCESS Linux takes a thread's id.
            let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.cast_unsigned(), -20) };
            ensure!(result == 0, "nice -20 for {name}: {}", std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Gives a thread a policy and a priority.
pub fn schedule(tid: i32, policy: i32, priority: i32) -> Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter is read only, the rest are plain numbers.
    let result = unsafe { libc::sched_setscheduler(tid, policy, &raw const param) };
    ensure!(result == 0, "cannot schedule thread {tid}: {}", std::io::Error::last_os_error());
    Ok(())
}

struct Stage {
    kernel: Kernel,
    governor: Governor,
}

/// A tripped class: what is known of it.
struct Outcome {
    closed: ClosedLink,
    extra_hits: u64,
    last_hit_us: f64,
    trap_gone_us: f64,
}

impl Stage {
    fn new() -> Result<Self> {
        let kernel = Kernel::load(&KernelOptions { max_classes: 64, ..KernelOptions::default() })?;
        let governor =
            Governor::start(kernel.alarm_reader()?, Arc::new(LinkTable::new(64)?.expedited()), None)?;
        Ok(Self { kernel, governor })
    }

    /// A class of one function, on a link of its own, with a quota that is not yet used.
    fn attach(&self, target: &mut Target, class: ClassId, function: &str, quota: i64) -> Result<()> {
        let (module, offset) = target.file_offset(function);
        let table = self.governor.table();
        table.begin(class.0);
        self.kernel.classes().reset(class);
        self.kernel.classes().configure(class, ClassControl::new(ClassKind::Count));
        self.kernel.classes().set_quota(class, quota);
        let sites = vec![Site::entry(class, offset)];
        let group = AttachGroup { module, pid: target.pid(), kind: LinkKind::Count, sites };
        let link = self.kernel.attach(&group)?.link;
        table.register_all(class.0, link.into_parts());
        Ok(())
    }

    /// Follows hits and breakpoint of a class until its link is closed.
    fn follow(&self, target: &mut Target, class: ClassId, address: u64) -> Result<Outcome> {
        let memory = std::fs::File::open(format!("/proc/{}/mem", target.pid()))?;
        let begun = Instant::now();
        let (mut seen, mut last_hit, mut last_trap) = (0, 0, 0);
        let closed = loop {
            let attempted = self.kernel.classes().attempted(class);
            if attempted != seen {
                (seen, last_hit) = (attempted, now_ns());
            }
            let mut byte = [0];
            memory.read_exact_at(&mut byte, address)?;
            if byte == [0xcc] {
                last_trap = now_ns();
            }
            if let Some(closed) = self.governor.table().drain_closed().first() {
                break *closed;
            }
            ensure!(begun.elapsed() < CLOSED, "not closed within {CLOSED:?}, {attempted} hits");
            std::thread::sleep(Duration::from_micros(20));
        };
        ensure!(closed.reason == CloseReason::Tripped, "the link was closed for {:?}", closed.reason);
        let counters = self.kernel.classes().counters(class);
        let since = |t: u64| t.saturating_sub(closed.trip_ns) as f64 / 1e3;
        Ok(Outcome {
            extra_hits: counters.attempted - counters.kept,
            last_hit_us: since(last_hit),
            trap_gone_us: since(last_trap),
            closed,
        })
    }
}

/// CPU time of the target lost after the explosion, ms: calls that were not made against the usual rate, by its own count.
fn lost_ms(target: &mut Target) -> Result<f64> {
    let begun = Instant::now();
    loop {
        let answer = target.command("history");
        let calls: Vec<f64> =
            answer.text("calls").unwrap_or("").split(',').map(|n| n.parse().unwrap_or(0.0)).collect();
        if let Some(usual) = calls.get(LOOK_MS..LOOK_MS + USUAL_MS) {
            let usual = usual.iter().sum::<f64>() / USUAL_MS as f64;
            return Ok(LOOK_MS as f64 - calls[..LOOK_MS].iter().sum::<f64>() / usual);
        }
        ensure!(begun.elapsed() < Duration::from_secs(20), "{} ms of CPU time in 20 s", calls.len());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One explosion; alone if there is no stage.
fn explode(stage: Option<&Stage>, target: &mut Target) -> Result<(Option<Outcome>, f64)> {
    let class = ClassId(1);
    let address = target.address("adv_call");
    if let Some(stage) = stage {
        stage.attach(target, class, "adv_call", QUOTA)?;
    }
    target.command(&format!("start {QUIET_MS}"));
    let outcome = stage.map(|stage| stage.follow(target, class, address)).transpose()?;
    let lost = lost_ms(target)?;
    let end = target.command("stop");
    ensure!(end.number("errors") == 0, "the target's results are wrong");
    target.assert_text_original();
    Ok((outcome, lost))
}

fn one_class(stage: &Stage, target: &mut Target, rounds: u32, table: &mut Table) -> Result<()> {
    for case in CASES {
        eprintln!("explosion: {}", case.name);
        let _load = BusyLoops::start(case.busy)?;
        schedule_governor(case.realtime_governor)?;
        let mut series = [const { Vec::new() }; 6].map(|_: Vec<f64>| Series::default());
        let mut refused = None;
        if case.realtime_target {
            // Its threads inherit both; the machine keeps a core for the rest. In turns, so that the thread that answers is not
            // starved by the one that works.
            target.pin(1);
            refused = schedule(target.pid().cast_signed(), libc::SCHED_RR, REALTIME_TARGET).err();
        }
        for _ in 0..if refused.is_none() { rounds } else { 0 } {
            let (_, alone) = explode(None, target)?;
            let watched = explode(Some(stage), target)?;
            let (Some(outcome), lost) = watched else { continue };
            let since = |t: u64| t.saturating_sub(outcome.closed.trip_ns) as f64 / 1e3;
            let figures = [
                since(outcome.closed.taken_ns),
                outcome.last_hit_us,
                outcome.extra_hits as f64,
                outcome.trap_gone_us / 1e3,
                lost,
                alone,
            ];
            series.iter_mut().zip(figures).for_each(|(series, figure)| series.push(figure));
        }
        let [taken, last_hit, extra, gone, lost, alone] = &series;
        table.row(&[
            refused.map_or(case.name.to_owned(), |why| format!("{}: SKIP: {why:#}", case.name)),
            taken.show(0),
            last_hit.show(0),
            extra.show(0),
            gone.show(1),
            lost.show(2),
            alone.show(2),
            lost.n().to_string(),
        ]);
    }
    schedule_governor(true)
}

/// Twenty functions explode at once, each on a link of its own.
fn together(stage: &Stage, rounds: u32) -> Result<String> {
    let mut table = Table::new(&[
        "20 classes tripping together",
        "first to last trip, us",
        "last class taken after its trip, us",
        "extra hits of all",
        "last breakpoint gone after the first trip, ms",
        "n",
    ]);
    for busy in [0, 2] {
        let _load = BusyLoops::start(busy)?;
        let mut series = [const { Vec::new() }; 4].map(|_: Vec<f64>| Series::default());
        for _ in 0..rounds {
            let mut target = Target::start("calls");
            for i in 0..TOGETHER {
                stage.attach(&mut target, ClassId(1 + i), &format!("big{i}"), SMALL_QUOTA)?;
            }
            let addresses: Vec<u64> = (0..TOGETHER).map(|i| target.address(&format!("big{i}"))).collect();
            let memory = std::fs::File::open(format!("/proc/{}/mem", target.pid()))?;
            target.start_background("big", 1, 0, 1);
            let (mut closed, begun) = (Vec::new(), Instant::now());
            let mut last_trap = 0;
            while closed.len() < TOGETHER as usize {
                for address in &addresses {
                    let mut byte = [0];
                    memory.read_exact_at(&mut byte, *address)?;
                    if byte == [0xcc] {
                        last_trap = now_ns();
                        break;
                    }
                }
                closed.extend(stage.governor.table().drain_closed());
                ensure!(begun.elapsed() < Duration::from_secs(10), "{} of {TOGETHER} closed", closed.len());
                std::thread::sleep(Duration::from_micros(100));
            }
            target.stop_background();
            target.assert_text_original();
            let first = closed.iter().map(|c| c.trip_ns).min().unwrap_or(0);
            let last = closed.iter().map(|c| c.trip_ns).max().unwrap_or(0);
            let taken = closed.iter().map(|c| c.taken_ns.saturating_sub(c.trip_ns)).max().unwrap_or(0);
            let gone = last_trap.saturating_sub(first);
            let extra: u64 = (1..=TOGETHER)
                .map(|i| stage.kernel.classes().counters(ClassId(i)))
                .map(|counters| counters.attempted - counters.kept)
                .sum();
            let figures = [(last - first) as f64 / 1e3, taken as f64 / 1e3, extra as f64, gone as f64 / 1e6];
            series.iter_mut().zip(figures).for_each(|(series, figure)| series.push(figure));
        }
        let [spread, taken, extra, gone] = &series;
        table.row(&[
            if busy == 0 { "idle machine" } else { "both cores busy" }.to_owned(),
            spread.show(0),
            taken.show(0),
            extra.show(0),
            gone.show(1),
            gone.n().to_string(),
        ]);
    }
    Ok(table.to_string())
}

/// The cell.
pub fn explosion(rounds: u32) -> Result<String> {
    // Before the governor: it puts a limit on the real-time threads of this process and of its later children.
    let mut target =
        Target::start_command(Command::new(profiler_tests::program("adversary")).arg("exploding"));
    let stage = Stage::new()?;
    let mut table = Table::new(&[
        "10 calls/s, then 10 million",
        "taken after the trip, us",
        "last hit after the trip, us",
        "hits over the quota",
        "breakpoint gone after the trip, ms",
        "target time lost, ms (aim <= 2)",
        "the same with nothing attached, ms",
        "n",
    ]);
    one_class(&stage, &mut target, rounds, &mut table)?;
    let many = together(&stage, rounds)?;
    let status = stage.governor.status();
    Ok(format!(
        "{table}\nQuota {QUOTA} hits, a link of its own, governor at {}. Time lost is CPU time, by the target's own count in the {LOOK_MS} ms after \
         the explosion, against the {USUAL_MS} ms after that; quota, traps and agent included.\n\n{many}",
        status.priority.name()
    ))
}
