//! What a sample costs the target: CPU time of the same work with sampling less that without, over the samples taken.
//!
//! At 4,999 Hz, because the cost of the usual rates drowns in the noise of the machine.

use crate::measure::{Series, Table};
use crate::scratch;
use crate::watch;
use anyhow::{Context, Result, bail, ensure};
use profiler_core::class::Tier;
use profiler_tests::support::Target;
use profiler_user::prober::{Kernel, SampleKind, SampleReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const HZ: u64 = 4_999;
/// Calls of `spin_us`, a millisecond each.
const WORK: u64 = 1_500;
/// Below six frames of the program itself.
const FUNCTION: &str = "spin_us";

/// CPU seconds that the work took, the interrupts in it included.
fn work(target: &mut Target) -> f64 {
    target.call_with(FUNCTION, WORK, 1, 1_000).cpu.as_secs_f64()
}

/// Seconds of the work, and samples taken of it.
struct Watched {
    seconds: f64,
    samples: u64,
}

/// Ours, with a reader that drains the ring as the agent does.
fn ours(
    kernel: &Kernel,
    reader: &mut SampleReader,
    target: &mut Target,
    kind: SampleKind,
) -> Result<Watched> {
    let before = kernel.classes().global_counters();
    let done = AtomicBool::new(false);
    let seconds = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                reader.drain(usize::MAX, |sample| {
                    std::hint::black_box(sample);
                });
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let event = kernel.sampler(kind)?.open_thread(target.pid(), 1_000_000_000 / HZ);
        let seconds = event.map(|_event| work(target));
        done.store(true, Ordering::Relaxed);
        anyhow::Ok(seconds?)
    })?;
    let after = kernel.classes().global_counters();
    ensure!(after.samples_dropped == before.samples_dropped, "the ring was full");
    // The empty program counts nothing: then it is the rate asked for.
    let counted = after.samples_kept - before.samples_kept;
    Ok(Watched { seconds, samples: if counted == 0 { (seconds * HZ as f64) as u64 } else { counted } })
}

/// `perf record` with that call graph; its samples are counted from its last line.
fn perf(target: &mut Target, call_graph: &str) -> Result<Watched> {
    let scratch = scratch::in_memory()?;
    let data = scratch.path().join("perf.data");
    let mut child = Command::new("perf")
        .args(["record", "-e", "cpu-clock", "-F", &HZ.to_string(), "--call-graph", call_graph])
        .args(["-p", &target.pid().to_string(), "-o"])
        .arg(&data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start perf")?;
    // It says nothing when it is ready; its file grows only later.
    std::thread::sleep(Duration::from_millis(700));
    let seconds = work(target);
    // SAFETY: kill takes plain numbers; the child has not been reaped, so that the pid is its own.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        std::io::Read::read_to_string(&mut stderr, &mut text)?;
    }
    child.wait()?;
    let samples = text.rsplit('(').next().and_then(|rest| rest.split(' ').next()?.parse().ok());
    match samples {
        Some(samples) => Ok(Watched { seconds, samples }),
        None => bail!("perf said no number of samples: {text}"),
    }
}

/// Microseconds a sample, ours and those of `perf record`.
pub fn against_perf(rounds: u32) -> Result<String> {
    let has_perf = Command::new("perf").arg("--version").output().is_ok_and(|output| output.status.success());
    let kernel = watch::kernel(Tier::A)?;
    let mut target = Target::start("calls");
    target.pin(1);
    profiler_tests::support::pin(0, 0);
    kernel.add_target(target.pid(), false)?;
    let mut reader = kernel.sample_reader()?;
    let arms = if has_perf { 4 } else { 2 };
    let mut costs = vec![Series::default(); arms];
    for round in 0..rounds as usize {
        let mut figures = vec![None; arms + 1];
        for turn in 0..=arms {
            let arm = (round + turn) % (arms + 1);
            let watched = match arm {
                0 => Watched { seconds: work(&mut target), samples: 0 },
                1 => ours(&kernel, &mut reader, &mut target, SampleKind::Empty)?,
                2 => ours(&kernel, &mut reader, &mut target, SampleKind::Observe)?,
                3 => perf(&mut target, "fp")?,
                _ => perf(&mut target, "dwarf,8192")?,
            };
            figures[arm] = Some((watched.seconds, watched.samples));
        }
        let alone = figures[0].map_or(f64::NAN, |(seconds, _)| seconds);
        for (arm, cost) in costs.iter_mut().enumerate() {
            if let Some((seconds, samples)) = figures[arm + 1] {
                cost.push((seconds - alone) / samples as f64 * 1e6);
            }
        }
    }
    let mut table = Table::new(&["sampler, 4,999 Hz", "µs per sample", "ours over it", "aim", "n"]);
    let names = [
        "ours: empty program",
        "ours: 8 KiB of stack copied",
        "perf record -g (frame pointers)",
        "perf record --call-graph dwarf,8192",
    ];
    for (arm, cost) in costs.iter().enumerate() {
        let (ratio, aim) = match arm {
            2 => (costs[1].over(cost).show(3), "<= 0.95"),
            3 => (costs[1].over(cost).show(3), "<= 0.85"),
            _ => (String::new(), ""),
        };
        table.row(&[names[arm].to_owned(), cost.show(1), ratio, aim.to_owned(), cost.n().to_string()]);
    }
    let note = if has_perf { "" } else { "\nSKIP: perf is not installed, nothing to compare with\n" };
    Ok(format!("{table}{note}"))
}
