//! The reports as text for a terminal.

use super::{HostReport, Requirement, RequirementState, TargetReport};
use std::fmt::Write as _;

/// Modules that forbid return links that are listed.
const FORBIDDING: usize = 6;

/// Renders one or both reports; lines end in a newline.
#[must_use]
pub fn render_text(host: Option<&HostReport>, target: Option<&TargetReport>) -> String {
    let target = target.map(TargetReport::printable);
    let target = target.as_ref();
    let mut text = String::new();
    if let Some(host) = host {
        text.push_str("This host\n");
        let width = host.requirements.iter().map(|r| r.name.len()).max().unwrap_or(0);
        for requirement in &host.requirements {
            line(&mut text, requirement, width);
        }
        let verdict = if host.usable() { "Tithe can run here" } else { "Tithe cannot run here as you are" };
        let _ = writeln!(text, "{verdict}.");
    }
    if let Some(target) = target {
        if host.is_some() {
            text.push('\n');
        }
        process(&mut text, target);
    }
    text
}

fn line(text: &mut String, requirement: &Requirement, width: usize) {
    let mark = match requirement.ok {
        RequirementState::Ok => "ok     ",
        RequirementState::Limited => "limited",
        RequirementState::Missing => "MISSING",
    };
    let _ = writeln!(text, "  {mark}  {:width$}  {}", requirement.name, requirement.found);
    if let Some(remedy) = &requirement.remedy {
        let _ = writeln!(text, "           {:width$}  needed for {}", "", requirement.needed_for);
        let _ = writeln!(text, "           {:width$}  {remedy}", "");
    }
}

fn process(text: &mut String, t: &TargetReport) {
    let _ = writeln!(text, "Process {} ({})", t.pid, t.name);
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<14}{value}");
    };
    row("program", &t.exe);
    row("kind", &format!("{}: {}", t.runtime, t.advice));
    row("threads", &t.threads.to_string());
    row("user", &t.uid.to_string());
    let links = match &t.return_links_refused {
        None => "allowed".to_owned(),
        Some(why) => {
            format!(
                "refused: {why}; exit sites and return sites are used, or --return-links CLASS at your risk"
            )
        }
    };
    row("return links", &links);
    for line in unwinding(t) {
        row("", &line);
    }
    row("seccomp", if t.seccomp { "a filter is active" } else { "no filter" });
    if t.jit_kib > 0 {
        row("run-time code", &format!("{} KiB", t.jit_kib));
    }
    if !t.other_namespaces.is_empty() {
        row("namespaces", &format!("its own: {}", t.other_namespaces.join(", ")));
    }
    let _ = writeln!(text, "  modules");
    let mut others = 0;
    for m in &t.modules {
        if m.looked_at == 0 {
            others += 1;
            continue;
        }
        let replaced = if m.replaced { ", file replaced on disk" } else { "" };
        let _ =
            writeln!(text, "    {}: {} functions (symbols: {}{replaced})", m.name, m.functions, m.symbols);
        let sites: Vec<String> = m
            .sites
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(class, n)| format!("{class} {}", percent(*n, m.looked_at)))
            .collect();
        let _ = writeln!(
            text,
            "      cheapest sites of {} looked at: {}; refused {}; all ways out known {}",
            m.looked_at,
            sites.join(", "),
            percent(m.refused, m.looked_at),
            percent(m.exits_known, m.looked_at)
        );
        if let Some(remark) = &m.remark {
            let _ = writeln!(text, "      {remark}");
        }
    }
    if others > 0 {
        let _ = writeln!(text, "    and {others} more");
    }
    for note in &t.notes {
        let _ = writeln!(text, "  note: {note}");
    }
}

/// Which modules forbid return links beside an unwinder, and what would change that.
fn unwinding(t: &TargetReport) -> Vec<String> {
    let mut all: Vec<_> = t.modules.iter().filter_map(|m| Some((&m.name, m.unwinding.as_ref()?))).collect();
    all.sort_by_key(|(_, unwinding)| unwinding.kind);
    let shown = all.iter().take(FORBIDDING);
    let mut lines: Vec<_> = shown.map(|(name, u)| format!("{name} {}: {}", u.why, u.remedy)).collect();
    if all.len() > FORBIDDING {
        lines.push(format!("and {} more modules forbid them (--json has all)", all.len() - FORBIDDING));
    }
    lines
}

fn percent(part: usize, of: usize) -> String {
    if of == 0 {
        return "-".to_owned();
    }
    format!("{:.0} %", 100.0 * part as f64 / of as f64)
}
