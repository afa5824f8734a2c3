//! What a timed call costs the target, by the way in which its end is seen, beside bpftrace and perf: arms of one run, interleaved.
//! The part `mean` is about what their means are worth.

mod bpftrace;
mod mean;
mod perf;

use crate::Options;
use crate::measure::{Table, interleave};
use crate::watch::{self, Bpftrace, Place};
use anyhow::{Context, Result, bail, ensure};
use perf::{Events, Perf, Use};
use profiler_core::class::{ClassId, Tier};
use profiler_tests::support::Target;
use profiler_user::inspect::{Inspection, ReturnSite};
use profiler_user::prober::{
    AttachGroup, ClassControl, ClassKind, FLAG_LEARN_CALLERS, FLAG_NO_QUOTA, Kernel, Link, LinkKind, Site,
};
use std::path::{Path, PathBuf};

const CLASS: ClassId = ClassId(1);
const CALLS: u64 = 20_000;
/// Before these, to warm up.
const WARM_UP: u64 = CALLS / 20;
const RET: u8 = 0xc3;
/// The part about means.
pub const MEAN: &str = "mean";
/// Title, function, and bytes before the site that we choose: bpftrace and perf take the first instruction.
const SUBJECTS: [(&str, &str, u64); 4] = [
    ("push", "entry_push", 0),
    ("endbr64; push", "entry_endbr_push", 4),
    ("nop5", "entry_nop5", 0),
    ("sub (single-stepped)", "entry_sub", 0),
];

/// A function, with all that its ends can be seen at.
struct Subject {
    function: &'static str,
    entry: Place,
    exit: Site,
    return_address: u64,
    caller_module: PathBuf,
    /// Holds the caller's file open.
    _inspection: Inspection,
    site: ReturnSite,
    cheaper: Option<ReturnSite>,
}

fn configure(kernel: &Kernel) {
    let flags = FLAG_NO_QUOTA | FLAG_LEARN_CALLERS;
    kernel.classes().reset(CLASS);
    kernel.classes().configure(CLASS, ClassControl { flags, ..ClassControl::new(ClassKind::Latency) });
}

fn attach(kernel: &Kernel, target: &Target, kind: LinkKind, module: &Path, sites: Vec<Site>) -> Result<Link> {
    let group = AttachGroup { module: module.to_path_buf(), pid: target.pid(), kind, sites };
    let attached = kernel.attach(&group)?;
    ensure!(attached.refused.is_empty(), "the kernel refused {} sites", attached.refused.len());
    Ok(attached.link)
}

/// Its exit is the first `ret`; its caller is learned from a call.
fn subject(kernel: &Kernel, target: &mut Target, function: &'static str, skip: u64) -> Result<Subject> {
    let entry = watch::place(target, function, skip);
    let bytes = target.function_bytes(function, 64);
    // The counter's address may hold the byte of a `ret`, what stands before these does not.
    let end = bytes.windows(2).position(|w| w[1] == RET && [0x5d, 0x18, 0x01].contains(&w[0]));
    let end = end.with_context(|| format!("no end of {function} in {bytes:x?}"))? as u64 + 1;
    kernel.forget_callers(&[CLASS]);
    configure(kernel);
    let sites = vec![Site::entry(CLASS, entry.offset)];
    let link = attach(kernel, target, LinkKind::ReturnSites, &entry.path, sites)?;
    target.call(function, 100, 1);
    drop(link);
    let [(return_address, 100, false)] = kernel.callers(CLASS)[..] else {
        bail!("{function} has other callers: {:?}", kernel.callers(CLASS));
    };
    let inspection = Inspection::of(i32::try_from(target.pid())?)?;
    let caller = inspection.callers(&[return_address]).remove(0)?;
    Ok(Subject {
        function,
        exit: Site::exit(CLASS, entry.offset - skip + end),
        entry,
        return_address,
        caller_module: inspection.modules()[caller.module].attach_path().to_path_buf(),
        site: caller.site,
        cheaper: caller.cheaper,
        _inspection: inspection,
    })
}

impl Subject {
    fn watch(&self, kernel: &Kernel, target: &mut Target, way: &Way) -> Result<Watch> {
        let entry = Site::entry(CLASS, self.entry.offset);
        let attach = |kind, module, sites| attach(kernel, target, kind, module, sites);
        configure(kernel);
        Ok(Watch::Ours(match way {
            Way::None => return Ok(Watch::None),
            Way::Bpftrace => {
                let path = profiler_tests::program("calls");
                return Ok(Watch::Bpftrace(Bpftrace::start(target, &path, self.function, bpftrace::PAIR)?));
            }
            Way::Perf(events, what) => return Ok(Watch::Perf(Perf::start(events, target, *what)?)),
            Way::ReturnLink => vec![attach(LinkKind::ReturnPair, &self.entry.path, vec![entry])?],
            Way::ExitSite => vec![attach(LinkKind::ExitPair, &self.entry.path, vec![entry, self.exit])?],
            Way::ReturnSite(site) => {
                let popped = -1 - site.return_slot;
                let behind = Site::returned(CLASS, site.file_offset, popped).behind(site.distance);
                let links = vec![
                    attach(LinkKind::ReturnSites, &self.entry.path, vec![entry])?,
                    attach(LinkKind::ReturnSites, &self.caller_module, vec![behind])?,
                ];
                ensure!(kernel.arm_caller(CLASS, self.return_address), "no room for a caller");
                links
            }
        }))
    }

    /// Nobody, and the return link, come first.
    fn ways<'a>(&self, bpftrace: Option<&String>, events: Option<&'a Events>) -> Vec<(String, Way<'a>)> {
        let site = |s: &ReturnSite| {
            (format!("return site, {} ({} bytes on)", s.class.name(), s.distance), Way::ReturnSite(*s))
        };
        let mut ways = vec![
            (String::new(), Way::None),
            ("return link (session)".to_owned(), Way::ReturnLink),
            ("exit site, stepped".to_owned(), Way::ExitSite),
            site(&self.site),
        ];
        ways.extend(self.cheaper.as_ref().map(site));
        ways.extend(bpftrace.map(|version| (format!("{version}: uprobe, uretprobe, map"), Way::Bpftrace)));
        if let Some(events) = events {
            ways.push(("perf record: entry, %return".to_owned(), Way::Perf(events, Use::Record)));
            ways.push(("perf stat: entry, %return (counts only)".to_owned(), Way::Perf(events, Use::Count)));
        }
        ways
    }
}

/// How the end of a call is seen.
enum Way<'a> {
    /// Not watched.
    None,
    ReturnLink,
    ExitSite,
    ReturnSite(ReturnSite),
    Bpftrace,
    Perf(&'a Events, Use),
}

/// Who watches.
enum Watch {
    None,
    Ours(Vec<Link>),
    Bpftrace(Bpftrace),
    Perf(Perf),
}

impl Watch {
    /// Ends it: calls whose end it saw, unless nobody watched.
    fn finish(self, kernel: &Kernel) -> Result<Option<u64>> {
        Ok(match self {
            Watch::None => None,
            Watch::Ours(links) => {
                drop(links);
                Some(kernel.classes().counters(CLASS).returns)
            }
            Watch::Bpftrace(bpftrace) => Some(bpftrace::stats(&bpftrace.finish()?)?.count),
            // Of two events a call.
            Watch::Perf(perf) => Some(perf.finish()? / 2),
        })
    }
}

/// The cell.
pub fn ways(options: &Options) -> Result<String> {
    match options.part.as_deref() {
        None => cost(options.rounds),
        Some(MEAN) => mean::means(options),
        Some(_) => bail!("ways has the part {MEAN}"),
    }
}

/// CPU time of a call with entry and end watched, less that of a call that nobody watches, by way.
fn cost(rounds: u32) -> Result<String> {
    let kernel = watch::kernel(Tier::A)?;
    let mut target = Target::start("calls");
    target.pin(1);
    profiler_tests::support::pin(0, 0);
    let bpftrace = Bpftrace::version();
    let mut table = Table::new(&["entry", "end", "ns per call", "over the return link", "n"]);
    let mut skipped = String::new();
    for (title, function, skip) in SUBJECTS {
        let subject = subject(&kernel, &mut target, function, skip)?;
        let events = match Events::add(&mut target, &profiler_tests::program("calls"), function) {
            Ok(events) => Some(events),
            Err(error) => {
                skipped.push_str(&format!("\nSKIP perf on {title}: {error:#}\n"));
                None
            }
        };
        let ways = subject.ways(bpftrace.as_ref(), events.as_ref());
        let series = interleave(rounds, ways.len(), |arm| {
            let watch = subject.watch(&kernel, &mut target, &ways[arm].1)?;
            target.call(function, WARM_UP, 1);
            let ns = target.call(function, CALLS, 1).cpu_ns_per_call();
            if let Some(seen) = watch.finish(&kernel)? {
                let all = CALLS + WARM_UP;
                ensure!(seen == all, "{title}, {}: {seen} of {all} calls seen", ways[arm].0);
            }
            anyhow::Ok(ns)
        })?;
        let cost = |arm: usize| series[arm].less(&series[0]);
        for (arm, (way, _)) in ways.iter().enumerate().skip(1) {
            table.row(&[
                title.to_owned(),
                way.clone(),
                cost(arm).show(0),
                cost(arm).over(&cost(1)).show(2),
                cost(arm).n().to_string(),
            ]);
        }
    }
    target.assert_text_original();
    let mut text = table.to_string();
    if bpftrace.is_none() {
        text.push_str("\nSKIP bpftrace: it is not installed\n");
    }
    text.push_str(&skipped);
    Ok(text)
}
