//! What became of calls that were held against models of an earlier recording, in the report of the run.

use super::units::count;
use profiler_core::recording::{ExpectedFunction, ExpectedMeta, Incident};
use profiler_core::report::Report;

/// Incidents that are shown; JSON has all that were kept.
const MOST: usize = 5;

/// Its lines; those that belong to the one before begin with spaces. Empty: no calls were.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let Some(expected) = &report.expected else { return Vec::new() };
    let mut lines = vec![head(expected)];
    for incident in expected.told.iter().take(MOST) {
        lines.push(span(incident));
        lines.extend(incident.lines.iter().map(|line| format!("  {line}")));
    }
    let more = expected.incidents.saturating_sub(expected.told.len().min(MOST) as u64);
    if more > 0 {
        lines.push(format!("… and {} more", count(more as f64)));
    }
    lines
}

fn head(expected: &ExpectedMeta) -> String {
    let alarms: u64 = expected.functions.iter().map(|function| function.alarms).sum();
    let judged = judged_text(&expected.functions);
    let not = expected.functions.iter().filter(|function| function.not_judged.is_some()).count();
    let not = if not > 0 { format!("; functions not judged: {}", count(not as f64)) } else { String::new() };
    format!(
        "against {}: incidents: {}; alarms: {}; {judged}{not}",
        expected.recording,
        count(expected.incidents as f64),
        count(alarms as f64)
    )
}

/// How many calls were judged, and how many of them took long. Of functions whose inputs say nothing only the former: that many of their
/// calls take longer may be their inputs.
pub fn judged_text<'a>(functions: impl IntoIterator<Item = &'a ExpectedFunction>) -> String {
    let (mut known, mut beyond, mut of_any, mut are_known) = (0, 0, 0, false);
    for function in functions {
        if function.no_inputs.is_some() {
            of_any += function.calls;
        } else {
            are_known |= function.not_judged.is_none();
            known += function.calls;
            beyond += function.beyond;
        }
    }
    if of_any > 0 && !are_known && known == 0 {
        return format!(
            "{} calls of functions whose inputs say nothing were judged, one by one",
            count(of_any as f64)
        );
    }
    let mut text = format!(
        "{} calls were judged, {} of them took longer than 97.5 % of calls with such inputs did (1 in 40 does by chance)",
        count(known as f64),
        count(beyond as f64)
    );
    if of_any > 0 {
        text.push_str(&format!(
            "; {} of functions whose inputs say nothing were, one by one",
            count(of_any as f64)
        ));
    }
    text
}

fn span(incident: &Incident) -> String {
    let s = |ns: u64| ns as f64 / 1e9;
    format!(
        "from {:.1} to {:.1} s, alarms: {}",
        s(incident.from_ns),
        s(incident.to_ns),
        count(incident.alarms as f64)
    )
}

#[cfg(test)]
mod tests {
    use super::super::sample::report;
    use super::*;

    #[test]
    fn a_report_of_a_watched_run_tells_its_incidents() {
        let mut report = report();
        assert!(lines(&report).is_empty());
        let function =
            ExpectedFunction { calls: 4_000, beyond: 200, alarms: 9, ..ExpectedFunction::default() };
        let refused = ExpectedFunction { not_judged: Some("no model".into()), ..ExpectedFunction::default() };
        let of_any = ExpectedFunction {
            calls: 70,
            beyond: 60,
            no_inputs: Some("no model".into()),
            ..ExpectedFunction::default()
        };
        let incident = |from_s: u64| Incident {
            from_ns: from_s * 1_000_000_000,
            to_ns: (from_s + 20) * 1_000_000_000,
            alarms: 3,
            lines: vec!["longer than expected: f\u{1b}[31m".into(), "  since 3.8 s: more".into()],
        };
        report.expected = Some(ExpectedMeta {
            recording: "good.tithe".into(),
            functions: vec![function, refused, of_any.clone()],
            incidents: 9,
            told: (0..7).map(|i| incident(4 + 100 * i)).collect(),
            ..ExpectedMeta::default()
        });
        let told = lines(&report.printable());
        expect_test::expect![[r#"
            against good.tithe: incidents: 9; alarms: 9; 4,000 calls were judged, 200 of them took longer than 97.5 % of calls with such inputs did (1 in 40 does by chance); 70 of functions whose inputs say nothing were, one by one; functions not judged: 1
            from 4.0 to 24.0 s, alarms: 3
              longer than expected: f\x1b[31m
                since 3.8 s: more
            from 104.0 to 124.0 s, alarms: 3"#]]
        .assert_eq(&told[..5].join("\n"));
        assert_eq!((told.len(), told.last().map(String::as_str)), (1 + 5 * 3 + 1, Some("… and 4 more")));
    }

    #[test]
    fn of_functions_whose_inputs_say_nothing_only_calls_are_counted() {
        let of_any = ExpectedFunction {
            calls: 70,
            beyond: 60,
            no_inputs: Some("no model".into()),
            ..ExpectedFunction::default()
        };
        let refused = ExpectedFunction { not_judged: Some("no model".into()), ..ExpectedFunction::default() };
        let alone = "70 calls of functions whose inputs say nothing were judged, one by one";
        assert_eq!(judged_text([&of_any, &refused]), alone);
        let quiet = ExpectedFunction::default();
        assert!(judged_text([&of_any, &quiet]).starts_with("0 calls were judged, 0 of them took longer"));
        assert!(judged_text([&refused]).starts_with("0 calls were judged"));
    }
}
