//! What a timed call costs the target, by the way in which its end is seen: arms of one run, interleaved.

use crate::measure::{Table, interleave};
use crate::watch::{self, Place};
use anyhow::{Context, Result, bail, ensure};
use profiler_core::class::{ClassId, Tier};
use profiler_tests::support::Target;
use profiler_user::inspect::{Inspection, ReturnSite};
use profiler_user::prober::{
    AttachGroup, ClassControl, ClassKind, FLAG_LEARN_CALLERS, FLAG_NO_QUOTA, Kernel, Link, LinkKind, Site,
};
use std::path::{Path, PathBuf};

const CLASS: ClassId = ClassId(1);
const CALLS: u64 = 20_000;
const RET: u8 = 0xc3;

/// A function, with all that its ends can be seen at.
struct Subject {
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
fn subject(kernel: &Kernel, target: &mut Target, function: &str) -> Result<Subject> {
    let entry = watch::place(target, function, 0);
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
        exit: Site::exit(CLASS, entry.offset + end),
        entry,
        return_address,
        caller_module: inspection.modules()[caller.module].attach_path().to_path_buf(),
        site: caller.site,
        cheaper: caller.cheaper,
        _inspection: inspection,
    })
}

impl Subject {
    fn links(&self, kernel: &Kernel, target: &Target, way: &Way) -> Result<Vec<Link>> {
        let entry = Site::entry(CLASS, self.entry.offset);
        let attach = |kind, module, sites| attach(kernel, target, kind, module, sites);
        configure(kernel);
        Ok(match way {
            Way::None => Vec::new(),
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
        })
    }

    fn ways(&self) -> Vec<(String, Way)> {
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
        ways
    }
}

/// How the end of a call is seen.
enum Way {
    /// Not watched.
    None,
    ReturnLink,
    ExitSite,
    ReturnSite(ReturnSite),
}

/// CPU time of a call with entry and end watched, less that of a call that nobody watches, by way.
pub fn ways(rounds: u32) -> Result<String> {
    let kernel = watch::kernel(Tier::A)?;
    let mut target = Target::start("calls");
    target.pin(1);
    profiler_tests::support::pin(0, 0);
    let mut table = Table::new(&["entry", "end", "ns per call", "over the return link", "n"]);
    for (title, function) in
        [("push", "entry_push"), ("nop5", "entry_nop5"), ("sub (single-stepped)", "entry_sub")]
    {
        let subject = subject(&kernel, &mut target, function)?;
        let ways = subject.ways();
        let series = interleave(rounds, ways.len(), |arm| {
            let links = subject.links(&kernel, &target, &ways[arm].1)?;
            target.call(function, CALLS / 20, 1);
            let ns = target.call(function, CALLS, 1).cpu_ns_per_call();
            drop(links);
            let c = kernel.classes().counters(CLASS);
            let timed = if arm == 0 { 0 } else { CALLS + CALLS / 20 };
            ensure!(c.returns == timed, "{}: {} of {timed} calls timed", ways[arm].0, c.returns);
            Ok(ns)
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
    Ok(table.to_string())
}
