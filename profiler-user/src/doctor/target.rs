//! One process: what it is, what of it can be traced, and why the rest cannot.

use crate::inspect::{Function, InspectError, Inspection, Module, SymbolSource, Unwinding};
use profiler_core::class::SiteClass;
use profiler_core::text::make_printable;
use serde::Serialize;
use std::collections::BTreeMap;

/// Functions whose sites are looked at in a module; the shares stand for the whole.
const SAMPLE: usize = 400;
/// Modules whose sites are looked at.
const MODULES: usize = 6;

/// What was found about a process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TargetReport {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Its program.
    pub exe: String,
    /// Language runtime, in words.
    pub runtime: String,
    /// What of such a program can be traced.
    pub advice: String,
    /// Number of threads.
    pub threads: usize,
    /// Its effective user.
    pub uid: u32,
    /// PID of a debugger or other tracer that is attached; 0 for none.
    pub tracer: i32,
    /// It has a seccomp filter.
    pub seccomp: bool,
    /// Namespaces that differ from ours (`mnt`, `pid`, `user`, …).
    pub other_namespaces: Vec<String>,
    /// Executable memory made at run time, KiB: sampled, not traced.
    pub jit_kib: u64,
    /// Return links are allowed.
    pub return_links: bool,
    /// Why not.
    pub return_links_refused: Option<String>,
    /// Its modules, the main program first, then by number of functions.
    pub modules: Vec<ModuleReport>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// What was found about one mapped file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModuleReport {
    /// File name.
    pub name: String,
    /// The path as the target sees it.
    pub path: String,
    /// The file was deleted or replaced; it is read through `/proc`.
    pub replaced: bool,
    /// Build id.
    pub build_id: Option<String>,
    /// Where its symbols come from.
    pub symbols: &'static str,
    /// Functions with a symbol and a size.
    pub functions: usize,
    /// Functions looked at for the counts below (0: the module was not looked at).
    pub looked_at: usize,
    /// How many of them have their cheapest site in each price class.
    pub sites: BTreeMap<&'static str, usize>,
    /// How many must not be traced.
    pub refused: usize,
    /// How many have all their ways out known.
    pub exits_known: usize,
    /// The file cannot be used, and why; or what to install.
    pub remark: Option<String>,
    /// By what it forbids return links beside the unwinder that is mapped, and what would change that.
    pub unwinding: Option<Unwinding>,
}

impl TargetReport {
    /// A copy whose texts are one line each, without characters that act on a terminal. JSON has them as they are.
    #[must_use]
    pub fn printable(&self) -> Self {
        let mut report = self.clone();
        let Self {
            name, exe, runtime, advice, other_namespaces, return_links_refused, modules, notes, ..
        } = &mut report;
        let texts = [name, exe, runtime, advice].into_iter().chain(other_namespaces).chain(notes);
        texts.chain(return_links_refused).for_each(make_printable);
        for ModuleReport { name, path, remark, unwinding, .. } in modules {
            let why = unwinding.as_mut().map(|u| &mut u.why);
            [name, path].into_iter().chain(remark).chain(why).for_each(make_printable);
        }
        report
    }
}

/// Looks at a process.
///
/// # Errors
/// As [`Inspection::of`].
pub fn check_target(pid: i32) -> Result<TargetReport, InspectError> {
    let mut inspection = Inspection::of(pid)?;
    inspection.use_rules(crate::calibrate::known_rules().0);
    let status = inspection.status();
    let runtime = inspection.runtime();
    let return_links = inspection.return_links();
    // The main program, and the libraries with the most functions.
    let mut order: Vec<usize> = (0..inspection.modules().len()).collect();
    order.sort_by_key(|&i| {
        let module = &inspection.modules()[i];
        std::cmp::Reverse((module.main, module.function_count()))
    });
    let mut modules: Vec<ModuleReport> = order
        .iter()
        .enumerate()
        .map(|(rank, &i)| look(&inspection, &inspection.modules()[i], i, rank < MODULES))
        .collect();
    for (index, unwinding) in inspection.unwinding() {
        if let Some(rank) = order.iter().position(|&i| Some(i) == index) {
            modules[rank].unwinding = Some(unwinding);
        }
    }
    let other_namespaces = namespaces(pid);
    let mut notes = Vec::new();
    if status.tracer != 0 {
        notes.push(format!(
            "process {} traces it (a debugger?): functions that hold its breakpoints are refused",
            status.tracer
        ));
    }
    let writable = inspection.maps().iter().filter(|m| m.exec && m.write).count();
    if writable > 0 {
        notes.push(format!("{writable} mappings are writable and executable: code there is never traced"));
    }
    if inspection.jit_bytes() > 0 {
        notes.push("it makes code at run time, which is sampled, not traced".to_owned());
    }
    if let Some(evidence) = inspection.return_link_evidence() {
        notes.push(format!("return links are allowed: {evidence}"));
    }
    if other_namespaces.iter().any(|n| n == "mnt") {
        notes.push(
            "it lives in another mount namespace: its files are read through /proc/PID/root".to_owned(),
        );
    }
    if let Some(remark) = modules.first().and_then(|m| m.remark.clone()) {
        notes.push(remark);
    }
    Ok(TargetReport {
        pid,
        name: status.name.clone(),
        exe: inspection.exe().display().to_string(),
        runtime: runtime.name().to_owned(),
        advice: runtime.advice().to_owned(),
        threads: status.threads,
        uid: status.uid,
        tracer: status.tracer,
        seccomp: status.seccomp != 0,
        other_namespaces,
        jit_kib: inspection.jit_bytes() / 1024,
        return_links: return_links.is_ok(),
        return_links_refused: return_links.err().map(|r| r.0),
        modules,
        notes,
    })
}

fn look(inspection: &Inspection, module: &Module, index: usize, sites: bool) -> ModuleReport {
    let mut report = ModuleReport {
        name: module.name.clone(),
        path: module.path.display().to_string(),
        replaced: module.replaced,
        build_id: module.build_id(),
        symbols: "none",
        functions: 0,
        looked_at: 0,
        sites: SiteClass::ALL.iter().map(|c| (c.name(), 0)).collect(),
        refused: 0,
        exits_known: 0,
        remark: module.symbols_missing(),
        unwinding: None,
    };
    match module.symbols() {
        Ok(symbols) => {
            report.symbols = match symbols.source {
                SymbolSource::Full => "full",
                SymbolSource::DebugFile => "separate debug file",
                SymbolSource::ExportsOnly => "exports only",
                SymbolSource::None => "none",
            };
        }
        Err(why) => report.remark = Some(why.to_owned()),
    }
    report.functions = module.function_count();
    if !sites {
        return report;
    }
    let step = report.functions.div_ceil(SAMPLE).max(1);
    let chosen: Vec<Function> = module.functions_step(index, step);
    for function in chosen.iter().filter(|f| !f.ifunc && !f.cold) {
        let choice = inspection.sites(function);
        report.looked_at += 1;
        if choice.trace.is_err() {
            report.refused += 1;
        } else {
            *report.sites.entry(choice.entry.class.name()).or_default() += 1;
        }
        report.exits_known += usize::from(choice.exits.is_ok());
    }
    report
}

/// Namespaces in which the process lives apart from us.
fn namespaces(pid: i32) -> Vec<String> {
    ["mnt", "pid", "user", "net", "ipc", "uts", "cgroup", "time"]
        .iter()
        .filter(|ns| {
            let link = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/{ns}")).ok();
            let (ours, theirs) = (link("self"), link(&pid.to_string()));
            ours.is_some() && theirs.is_some() && ours != theirs
        })
        .map(|ns| (*ns).to_owned())
        .collect()
}
