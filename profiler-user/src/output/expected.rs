//! What is told of calls that take longer than their inputs explain, while the run goes on.

use super::units::{RunStart, count, duration_ns};
use profiler_core::models::{Against, Cause, CauseDoubt, Counted, Event, Part, Seen, Slower, Value};
use profiler_core::stats::Interval;
use profiler_core::text::printable;

/// Least part of the excess that time off CPU explains to be named, where its parts share it.
const MOST: f64 = 0.5;

/// What an alarm is in its incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InIncident {
    /// It begins one.
    First,
    /// Its function was not told in it before.
    Also,
    /// It was.
    Still,
}

/// The call by which it is told that a function takes longer than its inputs explain.
#[derive(Debug)]
pub(crate) struct SlowerCall<'a> {
    /// Name of the function.
    pub function: &'a str,
    /// The timed call around it.
    pub context: Option<&'a str>,
    /// Thread of the call.
    pub tid: u32,
    /// Values of the inputs that its time depends on.
    pub inputs: &'a [(String, Value)],
    /// The call.
    pub call: Seen,
    /// 95 % of calls with such inputs lie in it, ns.
    pub expected_ns: Interval,
    /// It has not ended.
    pub is_running: bool,
    /// What is expected is that of all recorded calls, whatever their inputs.
    pub is_of_any_inputs: bool,
    /// The resource behind the excess; `None`: nobody knows what it used.
    pub cause: Option<&'a Cause>,
    /// System calls in which calls of the function that took too long were seen to wait, and how many.
    pub seen_in: &'a [(String, usize)],
}

/// Inputs as they are told: `n = 65536, level = 6`.
pub(crate) fn inputs_text(inputs: &[(String, Value)]) -> String {
    let value = |(name, value): &(String, Value)| match value {
        Value::Signed(x) => Some(format!("{name} = {x}")),
        Value::Unsigned(x) | Value::Category(x) => Some(format!("{name} = {x}")),
        Value::Missing => None,
    };
    inputs.iter().filter_map(value).collect::<Vec<String>>().join(", ")
}

/// What is said of the call. `start`: when the recording began.
fn call_text(told: &SlowerCall<'_>, start: RunStart) -> String {
    let SlowerCall { call, expected_ns, .. } = told;
    let context = told.context.map_or_else(String::new, |outer| format!(" in {outer}"));
    let inputs = inputs_text(told.inputs);
    let inputs = if inputs.is_empty() { inputs } else { format!(", {inputs}") };
    let text = format!(
        "{}{context}, thread {}, at {:.6} s ({}){inputs}: should have taken {} ({} to {}{}) and {}: {}",
        told.function,
        told.tid,
        start.seconds_until(call.time_ns),
        start.of_day(call.time_ns),
        duration_ns(call.predicted_ns),
        duration_ns(expected_ns.low.max(0.0)),
        if expected_ns.high.is_finite() { duration_ns(expected_ns.high) } else { "any time".to_owned() },
        if told.is_of_any_inputs { ", whatever its inputs" } else { "" },
        if told.is_running {
            format!("has run for {} so far", duration_ns(call.own_ns))
        } else {
            format!("took {}", duration_ns(call.own_ns))
        },
        told.cause.map_or_else(|| "unknown: what it used was not recorded".to_owned(), cause_text),
    );
    printable(&text).into_owned()
}

/// The lines of an alarm: the call, the evidence, what it is in its incident, and how many alarms were not told since the last that was. `start`: when the recording
/// began.
pub(crate) fn slower_call_text(
    told: &SlowerCall<'_>,
    slower: &Slower,
    (place, untold): (InIncident, u64),
    start: RunStart,
) -> String {
    let head = match place {
        InIncident::First => "",
        InIncident::Also => "also ",
        InIncident::Still => "still ",
    };
    let mut text = format!("{head}longer than expected: {}", call_text(told, start));
    text.push_str(&if slower.is_alone {
        let others = slower.calls.saturating_sub(1);
        let others = if others > 0 { format!("; {} more took too long to be chance", count(others as f64)) } else { String::new() };
        format!("\n  this call is the evidence, {} times what was expected{others}", count(slower.factor.round()))
    } else {
        format!(
            "\n  since {:.1} s: of the last {} calls {} took longer than 97.5 % of calls with such inputs did; their median took {:.2} times what was expected",
            start.seconds_until(slower.since_ns),
            count(slower.of as f64),
            count(slower.beyond as f64),
            slower.factor,
        )
    });
    text.push_str(&seen_in_text(told.seen_in));
    if untold > 0 {
        text.push_str(&format!(
            "\n  ({} more alarms since the last one that was told)",
            count(untold as f64)
        ));
    }
    text
}

/// A line, if there is anything to say.
fn seen_in_text(seen_in: &[(String, usize)]) -> String {
    let one = |(name, calls): &(String, usize)| format!("{name} ({})", count(*calls as f64));
    let all: Vec<String> = seen_in.iter().map(one).collect();
    if all.is_empty() {
        String::new()
    } else {
        format!("\n  seen to wait in, of such calls: {}", all.join(", "))
    }
}

/// The lines of a call that took longer than any of the `recorded` ones, which is no alarm.
pub(crate) fn slowest_call_text(told: &SlowerCall<'_>, recorded: u64, start: RunStart) -> String {
    format!(
        "slowest so far: {}\n  no alarm yet: {} recorded calls cannot say how rare one such call is{}",
        call_text(told, start),
        count(recorded as f64),
        seen_in_text(told.seen_in)
    )
}

/// The whole machine has changed, or is back. Empty: neither.
pub(crate) fn machine_text(event: &Event) -> String {
    match event {
        Event::Machine { factor, moved, of } => format!(
            "longer than expected: the machine: {moved} of {of} functions take about {factor:.2} times what was expected; from here on each is held \
             against the others"
        ),
        Event::MachineBack => "longer than expected: the machine is back to what it was".to_owned(),
        Event::Slower(_) => String::new(),
    }
}

/// The resource behind a call's excess, in words.
fn cause_text(cause: &Cause) -> String {
    let percent = |part: f64| format!("{:.0} % of the excess", 100.0 * part.min(1.0));
    let has = |counted: Counted| cause.with.contains(&counted);
    let name = match cause.part {
        Some(Part::OnCpu) if has(Counted::MinorFaults) => "page faults",
        Some(Part::OnCpu) => "CPU",
        Some(Part::Runnable) => "off CPU, waiting for one",
        Some(Part::Io) if has(Counted::IoBytes) => "I/O, of more bytes",
        Some(Part::Io) => "I/O",
        Some(Part::Blocked) if has(Counted::MajorFaults) => "page faults from disk",
        Some(Part::Blocked) => "off CPU, blocked",
        None => {
            return match (cause.doubt, off_cpu(cause)) {
                (Some(CauseDoubt::Shared), Some(part)) => format!("off CPU ({})", percent(part)),
                (Some(CauseDoubt::Shared), None) => "unknown: several resources share it".to_owned(),
                (Some(CauseDoubt::FewNormal), _) => "unknown: too few normal calls like it".to_owned(),
                (Some(CauseDoubt::NoExcess), _) => "unknown: it took no longer".to_owned(),
                (Some(CauseDoubt::Unmeasured) | None, _) => "unknown: no resource explains it".to_owned(),
            };
        }
    };
    format!("{name} ({})", percent(cause.explained))
}

/// Part of the excess that was spent off CPU, where that is most of it.
fn off_cpu(cause: &Cause) -> Option<f64> {
    let excess = |against: &Against<Part>| (against.used - against.normal).max(0.0) / cause.excess_ns;
    let off = cause.parts.iter().filter(|against| against.resource != Part::OnCpu).map(excess).sum::<f64>();
    (off >= MOST).then_some(off)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use profiler_core::models::{Seen, Used, explain};
    use profiler_core::stats::Interval;

    fn slower(own_ns: f64) -> Slower {
        Slower {
            kernel: 0,
            since_ns: 13_800_000_000,
            calls: 60,
            beyond: 5,
            of: 41,
            factor: 1.02,
            longest: Seen { kernel: 0, time_ns: 14_345_678_000, predicted_ns: 2e6, own_ns },
            expected_ns: Interval { low: 1.8e6, high: 2.4e6 },
            false_alarms_per_hour: 1.0,
            is_alone: false,
        }
    }

    fn cause(change: impl Fn(&mut Used)) -> Cause {
        let normal = |i: u32| {
            let own_ns = 2e6 + f64::from(i) * 1e3;
            Used { predicted_ns: 2e6, own_ns, on_cpu_ns: own_ns, ..Used::default() }
        };
        let mut one = normal(0);
        change(&mut one);
        one.own_ns = one.on_cpu_ns + one.runnable_ns + one.io_ns + one.blocked_ns;
        explain(&one, &(0..60).map(normal).collect::<Vec<Used>>())
    }

    #[test]
    fn an_alarm_names_the_call_what_was_expected_and_the_resource() {
        let inputs = [("n".to_owned(), Value::Unsigned(65_536)), ("level".to_owned(), Value::Category(6))];
        let cause = cause(|used| used.blocked_ns += 38e6);
        let of = |slower: &Slower| SlowerCall {
            function: "compress2",
            context: None,
            tid: 1234,
            inputs: &inputs,
            call: slower.longest,
            expected_ns: slower.expected_ns,
            is_running: false,
            is_of_any_inputs: false,
            cause: Some(&cause),
            seen_in: &[],
        };
        let (start, first) =
            (RunStart { ns: 10_000_000_000, unix_ns: 1_700_000_000_000_000_000 }, (InIncident::First, 0));
        let usual = slower(40.3e6);
        expect![[r#"
            longer than expected: compress2, thread 1234, at 4.345678 s (22:13:24 UTC), n = 65536, level = 6: should have taken 2.00 ms (1.80 ms to 2.40 ms) and took 40.3 ms: off CPU, blocked (100 % of the excess)
              since 3.8 s: of the last 41 calls 5 took longer than 97.5 % of calls with such inputs did; their median took 1.02 times what was expected"#]]
        .assert_eq(&slower_call_text(&of(&usual), &usual, first, start));
        let alone = Slower { is_alone: true, factor: 13_255.3, calls: 1, ..slower(26.5e9) };
        let running = SlowerCall { is_running: true, ..of(&alone) };
        expect![[r#"
            still longer than expected: compress2, thread 1234, at 4.345678 s (22:13:24 UTC), n = 65536, level = 6: should have taken 2.00 ms (1.80 ms to 2.40 ms) and has run for 26.5 s so far: off CPU, blocked (100 % of the excess)
              this call is the evidence, 13,255 times what was expected"#]]
        .assert_eq(&slower_call_text(&running, &alone, (InIncident::Still, 0), start));
        let of_any = SlowerCall { inputs: &[], is_of_any_inputs: true, ..of(&alone) };
        expect![[r#"
            longer than expected: compress2, thread 1234, at 4.345678 s (22:13:24 UTC): should have taken 2.00 ms (1.80 ms to 2.40 ms, whatever its inputs) and took 26.5 s: off CPU, blocked (100 % of the excess)
              this call is the evidence, 13,255 times what was expected"#]]
        .assert_eq(&slower_call_text(&of_any, &alone, first, start));
        let seen_in = [("futex".to_owned(), 12), ("read".to_owned(), 1)];
        let text = slower_call_text(&SlowerCall { seen_in: &seen_in, ..of(&usual) }, &usual, first, start);
        assert!(text.ends_with("\n  seen to wait in, of such calls: futex (12), read (1)"), "{text}");
        let several = Slower { calls: 4, ..alone };
        let text = slower_call_text(&running, &several, first, start);
        assert!(text.ends_with("what was expected; 3 more took too long to be chance"), "{text}");
        let other = SlowerCall {
            function: "f\u{1b}[31m",
            context: Some("parse"),
            inputs: &[],
            cause: None,
            ..of(&usual)
        };
        let text = slower_call_text(&other, &usual, (InIncident::Also, 3), start);
        assert!(text.starts_with("also longer than expected: f"), "{text}");
        assert!(text.contains(" in parse, thread 1234") && !text.contains('\u{1b}'), "{text}");
        assert!(text.ends_with("(3 more alarms since the last one that was told)"), "{text}");
        assert!(text.contains("unknown: what it used was not recorded"), "{text}");
        expect![[r#"
            slowest so far: compress2, thread 1234, at 4.345678 s (22:13:24 UTC), n = 65536, level = 6: should have taken 2.00 ms (1.80 ms to 2.40 ms) and has run for 26.5 s so far: off CPU, blocked (100 % of the excess)
              no alarm yet: 1,393 recorded calls cannot say how rare one such call is"#]]
        .assert_eq(&slowest_call_text(&running, 1_393, start));
    }

    #[test]
    fn each_resource_has_its_words() {
        type Change = fn(&mut Used);
        let cases: [(Change, &str); 8] = [
            (|u| u.on_cpu_ns += 9e6, "CPU (100 % of the excess)"),
            (|u| u.runnable_ns += 9e6, "off CPU, waiting for one (100 % of the excess)"),
            (|u| u.blocked_ns += 9e6, "off CPU, blocked (100 % of the excess)"),
            (|u| u.io_ns += 9e6, "I/O (100 % of the excess)"),
            (
                |u| (u.on_cpu_ns, u.minor_faults) = (u.on_cpu_ns + 9e6, 900.0),
                "page faults (100 % of the excess)",
            ),
            (|u| (u.blocked_ns, u.major_faults) = (9e6, 9.0), "page faults from disk (100 % of the excess)"),
            (|u| (u.blocked_ns, u.runnable_ns) = (9e6, 9e6), "off CPU (100 % of the excess)"),
            (
                |u| (u.on_cpu_ns, u.runnable_ns) = (u.on_cpu_ns + 11e6, 9e6),
                "unknown: several resources share it",
            ),
        ];
        for (change, text) in cases {
            assert_eq!(cause_text(&cause(change)), text);
        }
    }

    #[test]
    fn the_machine_is_told_in_a_line() {
        let event = Event::Machine { factor: 1.31, moved: 5, of: 6 };
        assert!(machine_text(&event).contains("5 of 6 functions take about 1.31 times"));
        assert!(machine_text(&Event::MachineBack).ends_with("back to what it was"));
    }
}
