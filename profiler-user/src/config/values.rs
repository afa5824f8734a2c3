//! Single values as people write them: a process ID, a duration, a rate, a share, a size, a weight. Pure functions; the errors say
//! what is accepted.

use profiler_core::adapt::{AdaptConfig, PolicyKind};
use profiler_core::class::Tier;
use profiler_core::plan::{Objective, UnknownObjective};
use std::time::Duration;

/// Reads a process ID, 1 to 2^22.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_pid(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(pid) if (1..=4_194_304).contains(&pid) => Ok(pid),
        Ok(_) => Err("a process ID lies between 1 and 4194304".to_owned()),
        Err(_) => Err("not a process ID; 'pgrep NAME' finds one".to_owned()),
    }
}

/// Reads `500ms`, `30s`, `5m`, `1h`; 100 ms to 30 days.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let t = text.trim();
    let (digits, unit_s) = if let Some(d) = t.strip_suffix("ms") {
        (d, 1e-3)
    } else if let Some(d) = t.strip_suffix('s') {
        (d, 1.0)
    } else if let Some(d) = t.strip_suffix('m') {
        (d, 60.0)
    } else if let Some(d) = t.strip_suffix('h') {
        (d, 3600.0)
    } else {
        return Err("write a time with its unit: '500ms', '30s', '5m', '1h'".to_owned());
    };
    let value: f64 = digits.trim().parse().map_err(|_| "not a number before the unit".to_owned())?;
    checked_duration_s(value * unit_s).map(Duration::from_secs_f64)
}

/// Reads a time after the start of a recording, `3.25s`, `850ms`, `1200us` or `2m`, as ns.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_moment_ns(text: &str) -> Result<u64, String> {
    let t = text.trim();
    let units = [("ms", 1e6), ("us", 1e3), ("s", 1e9), ("m", 60e9)];
    let found = units.iter().find_map(|(unit, ns)| t.strip_suffix(unit).map(|digits| (digits, ns)));
    let (digits, unit_ns) =
        found.ok_or_else(|| "write a time with its unit: '3.25s', '850ms', '1200us', '2m'".to_owned())?;
    let value: f64 = digits.trim().parse().map_err(|_| "not a number before the unit".to_owned())?;
    let ns = value * unit_ns;
    if !(0.0..=365.0 * 86_400e9).contains(&ns) {
        return Err("a time after the start of a recording lies between 0 and a year".to_owned());
    }
    // OK because it is neither negative nor above 2^53.
    Ok(ns.round() as u64)
}

/// Reads the response time above which operations are told, as ns: `10ms`, `250us`, `1.5s`; 1 us to 1 h.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_slower_ns(text: &str) -> Result<u64, String> {
    let t = text.trim();
    let units = [("ms", 1e6), ("us", 1e3), ("s", 1e9), ("m", 60e9)];
    let found = units.iter().find_map(|(unit, ns)| t.strip_suffix(unit).map(|digits| (digits, ns)));
    let (digits, unit_ns) =
        found.ok_or_else(|| "write a time with its unit: '10ms', '250us', '1.5s', '2m'".to_owned())?;
    let value: f64 = digits.trim().parse().map_err(|_| "not a number before the unit".to_owned())?;
    // OK because a float beyond the type's range becomes its end, and one that is no number 0.
    checked_slower_ns((value * unit_ns).round() as u64)
}

pub(super) fn checked_slower_ns(ns: u64) -> Result<u64, String> {
    if !(1_000..=3_600_000_000_000).contains(&ns) {
        return Err("a response time above which operations are told lies between 1us and 1 hour".to_owned());
    }
    Ok(ns)
}

pub(super) fn checked_duration_s(seconds: f64) -> Result<f64, String> {
    if !(0.1..=30.0 * 86_400.0).contains(&seconds) {
        return Err("a duration lies between 100ms and 30 days".to_owned());
    }
    Ok(seconds)
}

/// Reads a sampling rate in Hz: 0, or 1 to 10,000.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_hz(text: &str) -> Result<f64, String> {
    let hz: f64 = text
        .trim_end_matches("Hz")
        .trim()
        .parse()
        .map_err(|_| "not a number of samples per second".to_owned())?;
    checked_hz(hz)
}

pub(super) fn checked_hz(hz: f64) -> Result<f64, String> {
    // 100 us is the shortest period that the sampler accepts: above it the timer eats the target.
    if !(hz == 0.0 || (1.0..=10_000.0).contains(&hz)) {
        return Err("a sampling rate is 0, or lies between 1 and 10000 Hz".to_owned());
    }
    Ok(hz)
}

/// A part: `4%` or `0.04`.
fn part(text: &str) -> Option<f64> {
    match text.trim().strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok().map(|percent| percent / 100.0),
        None => text.trim().parse().ok(),
    }
}

/// Reads what plans of a run are to bring: `precision` or `information`.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_objective(text: &str) -> Result<Objective, String> {
    text.parse().map_err(|error: UnknownObjective| error.to_string()).and_then(checked_objective)
}

/// Reads what a plan is to bring: any objective.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_any_objective(text: &str) -> Result<Objective, String> {
    text.parse().map_err(|error: UnknownObjective| error.to_string())
}

/// Accepts what a run can be planned for.
///
/// # Errors
/// What is accepted, in words.
pub fn checked_objective(objective: Objective) -> Result<Objective, String> {
    match objective {
        Objective::Precision | Objective::Information => Ok(objective),
        Objective::Variance => {
            Err("'variance' is for tables of `tithe plan --classes`: choose from precision, information"
                .to_owned())
        }
    }
}

/// Reads the share of its CPU time that a thread may lose: `4%`, `0.04`; 0.01 % to 100 %.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_share(text: &str) -> Result<f64, String> {
    checked_share(part(text).ok_or("write a share: '4%' or '0.04'")?)
}

pub(super) fn checked_share(share: f64) -> Result<f64, String> {
    if !(1e-4..=1.0).contains(&share) {
        return Err("a thread may lose between 0.01% and 100% of its CPU time".to_owned());
    }
    Ok(share)
}

/// Reads what the agent may use of a CPU: `2%` or `0.02`; up to 64 CPUs.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_agent_cpu(text: &str) -> Result<f64, String> {
    checked_agent_cpu(part(text).ok_or("write a share of one CPU: '2%' or '0.02'")?)
}

pub(super) fn checked_agent_cpu(share: f64) -> Result<f64, String> {
    if !(1e-3..=64.0).contains(&share) {
        return Err("the agent may use between 0.1% and 6400% of one CPU".to_owned());
    }
    Ok(share)
}

/// Reads a size of kernel memory in bytes: `64MiB`; 4 MiB to 4 GiB.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let t = text.trim();
    let (digits, unit) = if let Some(d) = t.strip_suffix("GiB") {
        (d, 1u64 << 30)
    } else if let Some(d) = t.strip_suffix("MiB") {
        (d, 1 << 20)
    } else if let Some(d) = t.strip_suffix("KiB") {
        (d, 1 << 10)
    } else {
        return Err("write a size with its unit: '64MiB'".to_owned());
    };
    let n: u64 = digits.trim().parse().map_err(|_| "not a whole number before the unit".to_owned())?;
    checked_size(n.checked_mul(unit).ok_or_else(|| "too large".to_owned())?)
}

pub(super) fn checked_size(bytes: u64) -> Result<u64, String> {
    if !(4 << 20..=4 << 30).contains(&bytes) {
        return Err("kernel memory lies between 4MiB and 4GiB".to_owned());
    }
    Ok(bytes)
}

/// Reads `PATTERN=WEIGHT`, the weight 0 to 1e9.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_weight(text: &str) -> Result<(String, f64), String> {
    // The last '=' separates: names hold operators ('operator==').
    let (pattern, weight) =
        text.rsplit_once('=').ok_or_else(|| "write PATTERN=WEIGHT, like 'db::*=5'".to_owned())?;
    let w: f64 = weight.trim().parse().map_err(|_| format!("'{weight}' is not a number"))?;
    if pattern.is_empty() {
        return Err("the pattern before '=' is empty".to_owned());
    }
    Ok((pattern.to_owned(), checked_weight(w)?))
}

pub(super) fn checked_weight(weight: f64) -> Result<f64, String> {
    if !(0.0..=1e9).contains(&weight) {
        return Err("a weight lies between 0 and 1e9".to_owned());
    }
    Ok(weight)
}

/// Reads the letter of a capability tier.
///
/// # Errors
/// What is accepted, in words.
pub fn parse_tier(text: &str) -> Result<Tier, String> {
    match text {
        "A" | "a" => Ok(Tier::A),
        "B" | "b" => Ok(Tier::B),
        "C" | "c" => Ok(Tier::C),
        "D" | "d" => Ok(Tier::D),
        _ => Err("tiers are A, B, C and D".to_owned()),
    }
}

/// Reads the name of a policy for operations.
///
/// # Errors
/// Which there are, in words.
pub fn parse_policy(text: &str) -> Result<PolicyKind, String> {
    text.parse().map_err(|error: profiler_core::adapt::orders::UnknownPolicy| error.to_string())
}

/// Reads the settings of a policy, each `KEY=VALUE` (`--adapt`); the others have their defaults.
///
/// # Errors
/// An unknown setting, or a value out of its range.
pub fn parse_settings(settings: &[String]) -> Result<AdaptConfig, String> {
    let mut text = String::new();
    for setting in settings {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| format!("--adapt '{setting}': write KEY=VALUE, like 'max_rate=0.2'"))?;
        let (key, value) = (key.trim(), value.trim());
        if key.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') || value.contains('\n') {
            return Err(format!("--adapt '{setting}': '{key}' is no setting"));
        }
        // Settings with fractions are often whole numbers, and TOML tells the two apart.
        let fraction = !matches!(key, "table_records" | "paired_least_classes" | "max_classes");
        let dot = if fraction && value.parse::<i64>().is_ok() { ".0" } else { "" };
        text.push_str(&format!("{key} = {value}{dot}\n"));
    }
    let config: AdaptConfig = toml::from_str(&text).map_err(|e| format!("--adapt: {}", e.message()))?;
    config.check().map_err(|e| format!("--adapt: {e}"))?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_may_name_an_operator() {
        assert_eq!(parse_weight("A::operator===2").unwrap(), ("A::operator==".to_owned(), 2.0));
    }

    #[test]
    fn durations_and_sizes_have_units() {
        assert_eq!(parse_duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(parse_duration("5m").unwrap(), Duration::from_secs(300));
        assert_eq!(parse_size("64MiB").unwrap(), 64 << 20);
    }

    #[test]
    fn response_times_that_are_told_lie_between_a_microsecond_and_an_hour() {
        let read = |text: &str| parse_slower_ns(text);
        assert_eq!(
            [read("1us"), read(" 2.5 ms"), read("60m")],
            [Ok(1_000), Ok(2_500_000), Ok(3_600_000_000_000)]
        );
        for (wrong, part) in [
            ("5", "with its unit"),
            ("ms", "not a number"),
            ("5ns", "not a number"),
            ("0.9us", "between 1us"),
            ("-1s", "between 1us"),
            ("61m", "1 hour"),
            ("nanms", "between 1us"),
            ("infs", "1 hour"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(part), "{wrong}: {error}");
        }
    }

    #[test]
    fn every_setting_can_be_reached_and_wrong_ones_are_named() {
        let config =
            |settings: &[&str]| parse_settings(&settings.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(config(&[]).unwrap(), AdaptConfig::default());
        let set = config(&["max_rate=1", "rate=0.25", "max_classes=7", "correct_for_price=false"]).unwrap();
        assert_eq!((set.max_rate, set.rate, set.max_classes, set.correct_for_price), (1.0, 0.25, 7, false));
        assert!(config(&["speed=1"]).unwrap_err().contains("speed"));
        assert!(config(&["rate"]).unwrap_err().contains("KEY=VALUE"));
        assert!(config(&["rate=2"]).unwrap_err().contains("between min_rate and max_rate"));
    }
}
