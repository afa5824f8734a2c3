//! The lines that `record --expect` writes while it runs.

/// What stands before each alarm.
const HEAD: &str = "longer than expected: ";

/// An alarm as it was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The function; `None`: all of them together, the machine.
    pub function: Option<String>,
    /// When the call began that took longest for its inputs, s since the recording's start.
    pub call_s: Option<f64>,
    /// What that call took, s; of one in flight: so far.
    pub took_s: Option<f64>,
    /// The resource in its words; `None`: it is unknown.
    pub resource: Option<String>,
}

/// The alarm of a line; `None`: it is none. The second line of an alarm, and that the machine is back, are none.
pub fn told(line: &str) -> Option<Told> {
    let (_, text) = line.split_once(HEAD)?;
    if text.starts_with("the machine is back") {
        return None;
    }
    if text.starts_with("the machine:") {
        return Some(Told { function: None, call_s: None, took_s: None, resource: None });
    }
    let (name, rest) = text.split_once(", thread ")?;
    let function = name.split(" in ").next().unwrap_or(name).to_owned();
    let (_, at) = rest.split_once(", at ")?;
    let call_s = at.split_once(" s").and_then(|(seconds, _)| seconds.parse().ok());
    let so_far = || rest.rsplit_once(" and has run for ")?.1.split_once(" so far: ");
    let (took, cause) =
        rest.rsplit_once(" and took ").map_or_else(so_far, |(_, after)| after.split_once(": "))?;
    let resource =
        (!cause.starts_with("unknown")).then(|| cause.split(" (").next().unwrap_or(cause).to_owned());
    Some(Told { function: Some(function), call_s, took_s: seconds(took), resource })
}

/// A time in the words of the agent, s.
fn seconds(text: &str) -> Option<f64> {
    let (value, unit) = text.split_once(' ')?;
    let unit = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        _ => return None,
    };
    Some(value.replace(',', "").parse::<f64>().ok()? * unit)
}

/// Alarms that were not told, by the agent's last line. `None`: it is another line.
pub fn untold(line: &str) -> Option<u64> {
    let (_, after) = line.split_once("; alarms: ")?;
    let (alarms, after) = after.split_once(", told: ")?;
    let (told, _) = after.split_once(';')?;
    let number = |text: &str| text.replace(',', "").parse::<u64>().ok();
    Some(number(alarms)?.saturating_sub(number(told)?))
}

/// A call that took longer than any that was recorded, which is no alarm.
pub fn is_note(line: &str) -> bool {
    line.contains("tithe: slowest so far: ")
}

/// The line with which models are there, and whether all of so many functions have one.
pub fn models_are_there(line: &str, functions: usize) -> Option<bool> {
    let (before, _) = line.split_once(" functions have a model")?;
    let (_, counts) = before.rsplit_once(": ")?;
    Some(counts == format!("{functions} of {functions}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_names_function_call_and_resource() {
        let line = "tithe: longer than expected: compress2, thread 3331, at 13.077123 s, n = 1359, level = 6: should have taken 77.9 us (49.8 us to 136 us) and took 20.2 ms: off CPU, blocked (99 % of the excess)";
        let expected = Told {
            function: Some("compress2".to_owned()),
            call_s: Some(13.077_123),
            took_s: Some(0.0202),
            resource: Some("off CPU, blocked".to_owned()),
        };
        assert_eq!(told(line), Some(expected.clone()));
        let inside = line
            .replace("compress2, thread", "compress2 in store, thread")
            .replace("off CPU, blocked (99 % of the excess)", "unknown: several resources share it");
        assert_eq!(told(&inside), Some(Told { resource: None, ..expected.clone() }));
        let running = line.replace("and took 20.2 ms:", "and has run for 1.25 s so far:");
        assert_eq!(told(&running), Some(Told { took_s: Some(1.25), ..expected.clone() }));
        let also = line.replace("longer than", "also longer than");
        assert_eq!(told(&also), Some(expected.clone()));
        let note = line.replace("longer than expected", "slowest so far");
        assert!(is_note(&note) && !is_note(line) && told(&note).is_none());
        let unknown = inside.replace("and took 20.2 ms:", "and has run for 1.25 s so far:");
        assert_eq!(told(&unknown), Some(Told { took_s: Some(1.25), resource: None, ..expected }));
    }

    #[test]
    fn the_machine_is_an_alarm_without_a_function_and_what_follows_an_alarm_is_none() {
        let machine = "tithe: longer than expected: the machine: 5 of 6 functions take about 1.31 times what was expected; from here on each is held against the others";
        assert_eq!(told(machine), Some(Told { function: None, call_s: None, took_s: None, resource: None }));
        assert_eq!(told("tithe: longer than expected: the machine is back to what it was"), None);
        assert_eq!(
            told(
                "  since 13.0 s: of the last 15 calls 6 took longer than 97.5 % of calls with such inputs did; their median took 1.13 times what was expected"
            ),
            None
        );
        assert_eq!(told("tithe: attached"), None);
    }

    #[test]
    fn times_are_read_as_they_are_told() {
        for ns in [7.0, 900.0, 77_900.0, 1_410_000.0, 20_200_000.0, 3_310_000_000.0, 6e11] {
            let told = seconds(&profiler_user::output::duration_ns(ns)).unwrap();
            assert!((told * 1e9 / ns - 1.0).abs() < 0.01, "{ns}: {told}");
        }
        assert_eq!(seconds("?"), None);
    }

    #[test]
    fn the_last_line_says_how_many_alarms_were_not_told() {
        let line = "tithe: --expect b.tithe: incidents: 3; alarms: 1,207, told: 12; 6,036 calls were judged, 282 of them took longer";
        assert_eq!(untold(line), Some(1_195));
        assert_eq!(untold("tithe: --expect b.tithe: 3 of 3 functions have a model"), None);
    }

    #[test]
    fn models_are_there_when_each_function_has_one() {
        assert_eq!(
            models_are_there("tithe: --expect /a: b.tithe: 3 of 3 functions have a model", 3),
            Some(true)
        );
        assert_eq!(
            models_are_there("tithe: --expect b.tithe: 2 of 3 functions have a model", 3),
            Some(false)
        );
        assert_eq!(models_are_there("tithe: recording", 3), None);
    }
}
