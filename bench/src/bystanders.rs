//! What attaching costs processes that are not the target: a stranger's fork and wait, beside many processes that map the same
//! library.

use crate::Options;
use crate::explosion;
use crate::measure::{Series, Table};
use crate::scratch;
use crate::watch::{self, Ours, Place};
use anyhow::{Context, Result, ensure};
use profiler_core::class::Tier;
use profiler_tests::support::{Agent, Reply, Target};
use profiler_user::inspect::{Inspection, Pattern};
use profiler_user::prober::Kernel;
use std::time::Duration;

/// Functions of the C library that are attached to.
const FUNCTIONS: usize = 135;
/// Processes that sleep and map it.
const SLEEPERS: [u32; 3] = [0, 300, 1_500];
/// The stranger forks for so long before and after, s.
const MARGIN_S: u64 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Arm {
    Nothing,
    OneLink,
    LinkEach,
    Record,
}

impl Arm {
    const ALL: [Arm; 4] = [Arm::Nothing, Arm::OneLink, Arm::LinkEach, Arm::Record];

    fn name(self) -> &'static str {
        match self {
            Arm::Nothing => "nothing attached",
            Arm::OneLink => "one link of all, made and closed once",
            Arm::LinkEach => "a link each, made and closed one after the other",
            Arm::Record => "`tithe record`",
        }
    }
}

#[derive(Default)]
struct Figures {
    p50: Series,
    p99: Series,
    worst: Series,
    max: Series,
}

impl Figures {
    fn push(&mut self, reply: &Reply) {
        let ms = |key| reply.number(key) as f64 * 1e-6;
        self.p50.push(ms("p50_ns"));
        self.p99.push(ms("p99_ns"));
        self.worst.push(ms("worst_p99_ns"));
        self.max.push(ms("max_ns"));
    }
}

/// A real-time stranger's fork and wait, ms, while nothing, links without a limit, and the agent attach to functions of the C library.
pub fn bystanders(options: &Options) -> Result<String> {
    let seconds = options.seconds_or(20);
    let kernel = watch::kernel(Tier::A)?;
    let scratch = scratch::new()?;
    let mut table = Table::new(&[
        "processes that sleep",
        "135 functions of libc",
        "median, ms",
        "99th percentile, ms",
        "of the worst second, ms",
        "worst second over nothing's",
        "longest, ms",
        "n",
    ]);
    let only = options.part.as_deref().map(str::parse::<u32>).transpose().context("bystanders:NUMBER")?;
    for sleepers in SLEEPERS.into_iter().filter(|&sleepers| only.is_none_or(|only| only == sleepers)) {
        let mut crowd = Target::start("crowd");
        crowd.command(&format!("sleepers {sleepers}"));
        let target = Target::start("crowd");
        // The places' paths name its descriptors.
        let inspection = Inspection::of(i32::try_from(target.pid())?)?;
        let (places, names) = functions(&inspection)?;
        let mut stranger = Target::start("crowd");
        // In real time it waits for locks that attaching holds, and not for a CPU.
        explosion::schedule(i32::try_from(stranger.pid())?, libc::SCHED_FIFO, 1)?;
        let mut all: [Figures; 4] = Default::default();
        for _ in 0..options.rounds {
            for (arm, figures) in Arm::ALL.into_iter().zip(&mut all) {
                let line = format!("fork {}", 1000 * (seconds + 2 * MARGIN_S));
                stranger.send(&line);
                std::thread::sleep(Duration::from_secs(MARGIN_S));
                deed(arm, &kernel, &target, &places, &names, scratch.path(), seconds)?;
                figures.push(&stranger.receive(&line));
            }
        }
        for (arm, figures) in Arm::ALL.into_iter().zip(&all) {
            table.row(&[
                sleepers.to_string(),
                arm.name().to_owned(),
                figures.p50.show(2),
                figures.p99.show(2),
                figures.worst.show(2),
                figures.worst.over(&all[0].worst).show(2),
                figures.max.show(1),
                figures.p50.n().to_string(),
            ]);
        }
    }
    Ok(table.to_string())
}

fn deed(
    arm: Arm,
    kernel: &Kernel,
    target: &Target,
    places: &[Place],
    names: &[String],
    folder: &std::path::Path,
    seconds: u64,
) -> Result<()> {
    match arm {
        Arm::Nothing => {}
        Arm::OneLink => drop(watch::attach(kernel, target, Ours::Count, places)?),
        Arm::LinkEach => {
            let links: Vec<_> = places
                .iter()
                .map(|place| watch::attach(kernel, target, Ours::Count, std::slice::from_ref(place)))
                .collect::<Result<_>>()?;
            drop(links);
        }
        Arm::Record => {
            let arguments: Vec<&str> = names.iter().flat_map(|name| ["--count", name.as_str()]).collect();
            let agent = Agent::start(target.pid(), folder, &arguments);
            std::thread::sleep(Duration::from_secs(seconds / 2));
            let finished = agent.stop();
            let report = finished.report.with_context(|| finished.messages.clone())?;
            eprintln!("record: {:?}", report.receipt.forks_held);
        }
    }
    Ok(())
}

/// Functions of the target's C library that can be attached to: places and patterns.
fn functions(inspection: &Inspection) -> Result<(Vec<Place>, Vec<String>)> {
    let pattern = Pattern::parse("libc.so.6:*").context("a pattern")?;
    let found = inspection.resolve(&[pattern]);
    let mut chosen = Vec::new();
    // From all over the library: neighbours share pages.
    let step = (found.functions.len() / (2 * FUNCTIONS)).max(1);
    for function in found.functions.iter().step_by(step).filter(|f| !f.name.contains(['*', '?', '[', '('])) {
        let sites = inspection.sites(function);
        if sites.trace.is_ok() && inspection.verify(function, &sites).is_ok() && chosen.len() < FUNCTIONS {
            // The file's name: the inspection and its descriptors are gone when it is attached to.
            let path = std::fs::canonicalize(&*function.attach_path)?;
            let place = Place { path, offset: sites.entry.file_offset, pushed: 0 };
            chosen.push((place, format!("libc.so.6:{}", function.name)));
        }
    }
    ensure!(chosen.len() == FUNCTIONS, "only {} functions of libc.so.6 can be attached to", chosen.len());
    Ok(chosen.into_iter().unzip())
}
