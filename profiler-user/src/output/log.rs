//! The log of a run as text: what changed, when and why, in at most [`LINES`] lines.

use super::units::count;
use profiler_core::recording::ChangeKind;
use profiler_core::report::{LogEntry, Report};

/// Entries shown; JSON has all of them.
const LINES: usize = 20;

/// What the kind of a change is called.
fn kind_name(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Plan => "planned",
        ChangeKind::Trip => "tripped the breaker",
        ChangeKind::Stop => "taken off",
        ChangeKind::Trial => "tried again",
        ChangeKind::Back => "traced again",
        ChangeKind::Refused => "cannot be attached",
        ChangeKind::Modules => "modules",
        ChangeKind::Sampling => "sampling",
        ChangeKind::Thread => "thread budget",
        ChangeKind::Cycle => "sample",
        ChangeKind::Children => "forked children",
        ChangeKind::Group => "group",
    }
}

fn line(entry: &LogEntry) -> String {
    let what = match (entry.kind, entry.subject.as_str()) {
        (ChangeKind::Plan, subject) => subject.to_owned(),
        (kind, "") => kind_name(kind).to_owned(),
        (kind, subject) => format!("{subject} {}", kind_name(kind)),
    };
    let often = if entry.times > 1 {
        format!(" {} times, last at {:.1} s", count(entry.times as f64), entry.last_s)
    } else {
        String::new()
    };
    format!("{:.1} s: {what}{often}: {}", entry.time_s, entry.text)
}

/// The lines: the first and the last changes, and how many lie between.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let log = &report.log;
    if log.len() <= LINES {
        return log.iter().map(line).collect();
    }
    let half = LINES / 2;
    let between = log.len() - 2 * half;
    let mut lines: Vec<String> = log[..half].iter().map(line).collect();
    lines.push(format!("… {between} more entries between (tithe report -o log.json has all)"));
    lines.extend(log[log.len() - half..].iter().map(line));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::sample::report;
    use super::*;

    #[test]
    fn a_long_log_is_cut_in_the_middle() {
        let mut r = report();
        let entry = r.log[0].clone();
        r.log = (0..57).map(|i| LogEntry { time_s: f64::from(i), ..entry.clone() }).collect();
        let lines = lines(&r);
        assert_eq!(lines.len(), LINES + 1);
        assert!(lines[9].starts_with("9.0 s") && lines[11].starts_with("47.0 s"), "{lines:#?}");
        assert!(lines[10].contains("37 more"), "{}", lines[10]);
    }
}
