//! The budget receipt: what watching was allowed to cost, what it should have cost, what it did cost, and
//! what was not seen.

use super::TextOptions;
use super::table::{BOLD, RED, styled, wrap};
use super::units::{count, duration_ns, memory, percent};
use profiler_core::class::Tier;
use profiler_core::estimate::Estimate;
use profiler_core::recording::{Charge, Losses, MeasuredOverhead};
use profiler_core::report::{PlanWorth, Receipt, Report};
use profiler_core::units::OverheadBudget;

/// Width of the labels.
const LABEL: usize = 14;

/// What `charge` is called in the receipt.
pub(super) fn charge_name(charge: Charge) -> &'static str {
    match charge {
        Charge::Traced => "traced",
        Charge::Burst => "bursts",
        Charge::Survey => "survey",
        Charge::Samples => "samples",
        Charge::Switches => "context switches",
        Charge::Attach => "attach",
        Charge::Children => "forked children",
        Charge::Progress => "progress metric",
        Charge::Screening => "screened system calls and tracepoints",
        Charge::Bystanders => "other processes",
    }
}

/// What the budget comes to over the run, CPU s.
pub(super) fn allowed_s(receipt: &Receipt, duration_s: f64) -> f64 {
    match receipt.budget {
        OverheadBudget::Share(share) => share * receipt.target_cpu_s,
        OverheadBudget::CpuPerSecond(cpu) => cpu * duration_s,
    }
}

/// The lines of the receipt: label and text. The table, the HTML page and the tests share them.
pub(super) fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let r = &report.receipt;
    let spent: f64 = r.spent_s.iter().filter(|(c, _)| **c != Charge::Bystanders).map(|(_, v)| v).sum();
    let mut lines = Vec::new();

    let of = match r.budget {
        OverheadBudget::Share(_) => format!("of the target's own CPU time, {}", s(r.target_cpu_s)),
        OverheadBudget::CpuPerSecond(_) => format!("for {}", s(report.duration_s)),
    };
    lines.push(("allowed", format!("{} {of}: {}", r.budget, s(allowed_s(r, report.duration_s)))));
    lines.push((
        "predicted",
        format!(
            "{}: {} (hits, samples and switches times their prices, {}); worst second {}{}",
            percent(r.predicted),
            s(spent),
            r.prices,
            percent(r.worst_second),
            fallen(r, report.duration_s)
        ),
    ));
    lines.extend(r.plan.map(|plan| ("plan", planned(&plan))));
    lines.push(("measured", in_place(r)));
    lines.extend(r.measured.as_ref().map(|m| ("check", check(m))));
    let split: Vec<String> = r
        .spent_s
        .iter()
        .filter(|(charge, v)| **charge != Charge::Bystanders && **v > 0.0)
        .map(|(charge, v)| format!("{} {}", charge_name(*charge), s(*v)))
        .collect();
    lines.push(("spent on", if split.is_empty() { "nothing".into() } else { split.join(", ") }));
    if let Some(v) = r.spent_s.get(&Charge::Bystanders).filter(|v| **v > 0.0) {
        lines.push(("beside it", format!("{} taken from other processes (not part of the budget)", s(*v))));
    }
    lines.push(("breaker", breaker(r)));
    lines.push(("hits lost", hits_lost(r)));
    // Those in traps were taken, too.
    let samples = r.in_place.as_ref().map_or(report.samples, |m| m.samples);
    lines.push(("samples lost", samples_lost(&r.losses, samples)));
    if r.losses.samples_short_stack > 0 {
        lines.push(("short stacks", short_stacks(r.losses.samples_short_stack, samples)));
    }
    let events = events_lost(&r.losses);
    if !events.is_empty() {
        lines.push(("events lost", events));
    }
    if r.losses.rows_not_written > 0 {
        lines.push((
            "rows lost",
            format!("{} rows were not written (disk full?)", count(r.losses.rows_not_written as f64)),
        ));
    }
    lines.push((
        "agent",
        format!(
            "{} of one CPU{}, {} resident; {} in the kernel",
            percent(r.agent_cpu),
            kept(r),
            memory(r.agent_rss_bytes),
            memory(r.kernel_memory_bytes)
        ),
    ));
    lines.push(("in all", in_all(r, report.duration_s)));
    lines.extend(private_memory(r).map(|text| ("private pages", text)));
    lines.extend(forks_held(r).map(|text| ("others' forks", text)));
    lines.push(("tier", tier_text(r.tier).to_owned()));
    lines
}

/// What the last plan was worth, at best could be, and the gap between the two.
fn planned(plan: &PlanWorth) -> String {
    let gap = plan.upper_bound - plan.value;
    if plan.of_widths {
        return format!(
            "mean interval of shares and calls/s ±{} expected (none counted below ±5 %), no plan brings it below ±{} (gap {gap:.4} in its log)",
            percent((-plan.value).exp()),
            percent((-plan.upper_bound).exp())
        );
    }
    let part = if plan.upper_bound > 0.0 { gap / plan.upper_bound } else { 0.0 };
    format!(
        "{} weighted events/s expected, no plan has more than {} (gap {})",
        count(plan.value),
        count(plan.upper_bound),
        percent(part)
    )
}

/// A time in s.
fn s(seconds: f64) -> String {
    duration_ns(seconds * 1e9)
}

/// How the agent kept to its own limit.
fn kept(r: &Receipt) -> String {
    let Some(limit) = &r.agent_limit else { return String::new() };
    let of = |n: u64, what: &str| if n > 0 { format!("{} {what}", count(n as f64)) } else { String::new() };
    let parts = [of(limit.samples_cut, "samples"), of(limit.bursts_cut, "bursts")];
    let cut = match parts.iter().filter(|p| !p.is_empty()).cloned().collect::<Vec<_>>().join(" and ") {
        none if none.is_empty() => none,
        cut => format!("; {cut} were not taken to keep to that (--agent-cpu)"),
    };
    format!(" ({} of {} allowed from the fifth second on{cut})", percent(limit.used), percent(limit.limit))
}

/// What watching took from everybody.
fn in_all(r: &Receipt, duration_s: f64) -> String {
    let charged_s =
        || r.spent_s.iter().filter(|(charge, _)| **charge != Charge::Bystanders).map(|(_, s)| s).sum();
    let target_s = r.in_place.as_ref().map_or_else(charged_s, |m| m.overhead.value * m.own_s);
    let agent_s = r.agent_cpu * duration_s;
    let others_s = r.spent_s.get(&Charge::Bystanders).copied().unwrap_or(0.0);
    let others = if others_s > 0.0 { format!(", other processes' {}", s(others_s)) } else { String::new() };
    let how = if r.in_place.is_some() { "measured" } else { "predicted" };
    format!(
        "{} of CPU time: the target's {} ({how}), the agent's {}{others}",
        s(target_s + agent_s + others_s),
        s(target_s),
        s(agent_s)
    )
}

const PRICED: &str = "samples, switches and attaching at their prices";
const PRICED_AT_END: &str = "samples and switches at prices measured as the run ended, and attaching,";

/// The overhead by the samples that found the target in our traps.
fn in_place(r: &Receipt) -> String {
    let Some(m) = &r.in_place else {
        return "no (no samples were taken)".to_owned();
    };
    let all = &m.overhead;
    let part = |name: &str, e: &Estimate| {
        (e.value > 0.0)
            .then(|| format!("; {name} {} ({} to {})", percent(e.value), percent(e.low), percent(e.high)))
    };
    let parts = [
        part(if m.priced_at_end { PRICED_AT_END } else { PRICED }, &m.beside),
        part("what traps leave behind in caches, by calibration,", &m.behind),
    ];
    format!(
        "{} ({} to {}, 95 %): {} of {} samples fell into traps, {} ({} to {}){}",
        percent(all.value),
        percent(all.low),
        percent(all.high),
        count(m.in_traps as f64),
        count(m.samples as f64),
        percent(m.traps.value),
        percent(m.traps.low),
        percent(m.traps.high),
        parts.into_iter().flatten().collect::<String>()
    )
}

/// The overhead that the comparison of windows with and without monitoring found.
fn check(m: &MeasuredOverhead) -> String {
    let more: Vec<&str> =
        [m.method.as_str(), m.note.as_str()].into_iter().filter(|text| !text.is_empty()).collect();
    format!(
        "{} ({} to {}, 95 %): slowdown of {} in {} pairs of windows with and without monitoring{}",
        percent(m.value),
        percent(m.low),
        percent(m.high),
        m.metric,
        m.pairs,
        more.iter().map(|text| format!("; {text}")).collect::<String>()
    )
}

/// Why the worst second may lie above the budget: what is spent follows the CPU time that the target had just before, and it got less.
fn fallen(r: &Receipt, duration_s: f64) -> String {
    /// Of its average, or less.
    const PART: f64 = 0.6;
    let OverheadBudget::Share(budget) = r.budget else { return String::new() };
    let average = r.target_cpu_s / duration_s.max(f64::MIN_POSITIVE);
    if r.worst_second <= budget || r.worst_second_own > PART * average {
        return String::new();
    }
    format!(
        ", when the target's own CPU time had fallen to {} of a CPU ({} on average)",
        percent(r.worst_second_own),
        percent(average)
    )
}

/// Classes that tripped, and how late the latest answer to any quota was.
fn breaker(r: &Receipt) -> String {
    let tripped =
        if r.trips == 1 { "1 class tripped".into() } else { format!("{} classes tripped", r.trips) };
    let Some(slowest) = r.slowest_answer else { return tripped };
    let time = duration_ns(slowest.closing_ns as f64);
    let stolen = if slowest.stolen_ns > 0 {
        let (stolen, over) = (slowest.stolen_ns as f64, slowest.stolen_over_ns as f64);
        format!(" (the machine had {} stolen in the {} around it)", duration_ns(stolen), duration_ns(over))
    } else {
        String::new()
    };
    let of = match slowest.answers {
        0 | 1 => "1 used-up quota".into(),
        n => format!("{} used-up quotas, the slowest", count(n as f64)),
    };
    format!("{tripped}; {of} answered after {time}{stolen}")
}

/// What probes took of the memory that the target has left.
fn private_memory(r: &Receipt) -> Option<String> {
    let m = r.private_memory.as_ref()?;
    let refused = match m.refused {
        0 => String::new(),
        1 => "; 1 function had no room".to_owned(),
        n => format!("; {} functions had no room", count(n as f64)),
    };
    Some(format!(
        "{} of the target's text, {}; {} left it {}{refused}",
        count(m.pages as f64),
        memory(m.bytes),
        m.headroom_path,
        memory(m.headroom_bytes)
    ))
}

/// What other processes paid for attaching.
fn forks_held(r: &Receipt) -> Option<String> {
    let f = r.forks_held.as_ref()?;
    let refused = match f.refused {
        0 => String::new(),
        1 => "; 1 function would have taken too long".to_owned(),
        n => format!("; {} functions would have taken too long", count(n as f64)),
    };
    Some(format!(
        "held up for {} in all, {} at once, while {} sites were registered and unregistered in files that others map ({} processes map \
         {}){refused}",
        duration_ns(f.held_ns as f64),
        duration_ns(f.longest_ns as f64),
        count(f.registrations as f64),
        count(f64::from(f.mappers)),
        f.module
    ))
}

fn lost_of(lost: u64, of: u64) -> String {
    if of == 0 {
        return "0 of 0".into();
    }
    format!("{} of {} ({})", count(lost as f64), count(of as f64), percent(lost as f64 / of as f64))
}

fn hits_lost(r: &Receipt) -> String {
    let mut text = lost_of(r.hits_dropped, r.hits_attempted);
    if r.losses.no_thread_state > 0 {
        text.push_str(&format!(
            "; for {} timed calls and begins of operations the kernel had no memory to keep their thread's state: such calls are \
             among the lost hits, such operations are missing",
            count(r.losses.no_thread_state as f64)
        ));
    }
    text
}

/// Most of them are whole: the stack ended there.
fn short_stacks(short: u64, samples: u64) -> String {
    format!(
        "{}: less was there than is copied, because the stack ends there or its next page was not in memory (then it is cut)",
        lost_of(short, samples)
    )
}

/// Records that the agent acts upon, and what it did about their loss.
fn events_lost(losses: &Losses) -> String {
    let mut lost = Vec::new();
    if losses.lifecycle_dropped > 0 {
        lost.push(format!(
            "{} births and deaths of threads and children (ring full): the living were looked for again, children that ended \
             unseen are not charged",
            count(losses.lifecycle_dropped as f64)
        ));
    }
    if losses.alarms_dropped > 0 {
        lost.push(format!(
            "{} alarms of used-up quotas (ring full): all quotas were looked at",
            count(losses.alarms_dropped as f64)
        ));
    }
    if losses.takings_dropped > 0 {
        lost.push(format!(
            "{} takings of words (ring full): their calls and operations are recorded without them",
            count(losses.takings_dropped as f64)
        ));
    }
    lost.join("; ")
}

fn samples_lost(losses: &Losses, kept: u64) -> String {
    let causes = [
        (losses.samples_ring_full, "ring full"),
        (losses.samples_missed, "missed by the kernel"),
        (losses.samples_no_stack, "kept without a stack"),
        (losses.kernel_missed, "hits missed by the kernel"),
    ];
    let gone = losses.samples_ring_full + losses.samples_missed;
    let mut text = lost_of(gone, kept + gone);
    let named: Vec<String> = causes
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, cause)| format!("{} {cause}", count(*n as f64)))
        .collect();
    if !named.is_empty() {
        text.push_str(": ");
        text.push_str(&named.join(", "));
    }
    text
}

fn tier_text(tier: Tier) -> &'static str {
    match tier {
        Tier::A => "A (uprobe session links)",
        Tier::B => "B (uprobe multi links)",
        Tier::C => "C (uprobe multi links, other processes filtered in BPF)",
        Tier::D => "D (perf-event uprobes: at most 8 classes, slow detach)",
    }
}

/// The receipt as text.
#[must_use]
pub fn receipt_text(report: &Report, options: TextOptions) -> String {
    let r = &report.receipt;
    let mut out = format!("{}\n", styled("Budget receipt", BOLD, options.colours));
    let indent = " ".repeat(LABEL + 2);
    for (label, text) in lines(report) {
        // A line's own width is what the label leaves of it.
        let body =
            wrap(&text, options.width.saturating_sub(LABEL + 2), "").replace('\n', &format!("\n{indent}"));
        let over = match label {
            "predicted" => {
                r.target_cpu_s > 0.0 && r.predicted * r.target_cpu_s > allowed_s(r, report.duration_s)
            }
            "breaker" => r.trips > 0,
            "hits lost" => r.hits_dropped > 0 || r.losses.no_thread_state > 0,
            "rows lost" | "events lost" => true,
            _ => false,
        };
        out.push_str(&format!(
            "  {label:<LABEL$}{}\n",
            if over { styled(&body, RED, options.colours) } else { body }
        ));
    }
    let mut block = |title: &str, items: Vec<String>| {
        if !items.is_empty() {
            out.push_str(&format!("{}\n", styled(title, BOLD, options.colours)));
            for item in items {
                out.push_str(&format!("  {}\n", wrap(&item, options.width.saturating_sub(2), "    ")));
            }
        }
    };
    block("What changed", super::log::lines(report));
    block("Not observed", r.not_observed.iter().map(|n| format!("{}: {}", n.what, n.why)).collect());
    block("Warnings", report.warnings.clone());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worst_second_of_a_target_that_got_less_cpu_says_so() {
        let mut report = crate::output::sample::report();
        let said = |report: &Report| {
            let line = lines(report).into_iter().find(|(label, _)| *label == "predicted");
            line.map(|(_, text)| text.split_once("; ").map_or(String::new(), |(_, worst)| worst.to_owned()))
        };
        (report.receipt.budget, report.receipt.worst_second) = (OverheadBudget::Share(0.05), 0.11);
        report.receipt.worst_second_own = 0.27;
        assert_eq!(
            said(&report).unwrap(),
            "worst second 11.0 %, when the target's own CPU time had fallen to 27.0 % of a CPU (80.0 % on average)"
        );
        // One like the others, and one within the budget, have no excuse and need none.
        report.receipt.worst_second_own = 0.6;
        assert_eq!(said(&report).unwrap(), "worst second 11.0 %");
        (report.receipt.worst_second, report.receipt.worst_second_own) = (0.04, 0.1);
        assert_eq!(said(&report).unwrap(), "worst second 4.0 %");
    }
}
