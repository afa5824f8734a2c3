//! Numbers as people read them: three significant digits, a unit, an interval.

use profiler_core::class::Source;
use profiler_core::estimate::Estimate;

/// Three significant digits; whole numbers below 1,000 without a fraction if `whole`.
fn digits(x: f64, whole: bool) -> String {
    let a = x.abs();
    if whole && a < 1e3 && x.fract() == 0.0 {
        return format!("{x:.0}");
    }
    match a {
        // The limits are where rounding to two, one or no decimals carries into the next digit.
        a if a < 9.995 => format!("{x:.2}"),
        a if a < 99.95 => format!("{x:.1}"),
        _ => format!("{x:.0}"),
    }
}

/// A duration given in ns: `80.0 ns`, `1.30 us`, `2.40 ms`, `12.0 s`, `10.5 min`.
#[must_use]
pub fn duration_ns(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        a if !a.is_finite() => return "?".into(),
        a if a < 999.5 => (ns, "ns"),
        a if a < 999.5e3 => (ns / 1e3, "us"),
        a if a < 999.5e6 => (ns / 1e6, "ms"),
        a if a < 600e9 => (ns / 1e9, "s"),
        _ => (ns / 60e9, "min"),
    };
    format!("{} {unit}", digits(value, unit == "ns"))
}

/// When a run began, by the clock of the kernel's records and by that of the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunStart {
    /// `CLOCK_MONOTONIC`, ns.
    pub ns: u64,
    /// Since 1970, ns.
    pub unix_ns: u64,
}

impl RunStart {
    /// Seconds from then until a kernel's time.
    #[must_use]
    pub fn seconds_until(self, time_ns: u64) -> f64 {
        time_ns.saturating_sub(self.ns) as f64 / 1e9
    }

    /// A kernel's time of the day, as logs have it: `20:46:12 UTC`.
    #[must_use]
    pub fn of_day(self, time_ns: u64) -> String {
        let unix_s = self.unix_ns.saturating_add(time_ns.saturating_sub(self.ns)) / 1_000_000_000;
        let (minutes, hours) = (unix_s / 60, unix_s / 3_600);
        format!("{:02}:{:02}:{:02} UTC", hours % 24, minutes % 60, unix_s % 60)
    }
}

/// A duration with its interval: `1.30 us ±3 %`; `≤ 1.30 us` or `≥ 1.30 us` where only a limit is known, `?` where nothing is.
#[must_use]
pub fn duration(e: &Estimate) -> String {
    if e.at_most {
        return format!("≤ {}", duration_ns(e.high));
    }
    if !e.high.is_finite() {
        return if e.low > 0.0 { format!("≥ {}", duration_ns(e.low)) } else { "?".to_owned() };
    }
    let pm = plus_minus(e);
    if pm.is_empty() { duration_ns(e.value) } else { format!("{} {pm}", duration_ns(e.value)) }
}

/// The same without the interval.
#[must_use]
pub fn duration_alone(e: &Estimate) -> String {
    if e.at_most || !e.high.is_finite() { duration(e) } else { duration_ns(e.value) }
}

/// A count: `5,010` up to a thousand million, then `1.23 G`.
#[must_use]
pub fn count(n: f64) -> String {
    if n.abs() >= 1e9 || !n.is_finite() {
        return si(n);
    }
    let text = format!("{:.0}", n.abs());
    let mut out = String::from(if n < -0.5 { "-" } else { "" });
    for (i, c) in text.chars().enumerate() {
        if i > 0 && (text.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Three digits and a decimal prefix: `812`, `1.23 k`, `45.6 M`.
#[must_use]
pub fn si(x: f64) -> String {
    let (value, prefix) = match x.abs() {
        a if !a.is_finite() => return "?".into(),
        a if a < 999.5 => return digits(x, true),
        a if a < 999.5e3 => (x / 1e3, "k"),
        a if a < 999.5e6 => (x / 1e6, "M"),
        a if a < 999.5e9 => (x / 1e9, "G"),
        _ => (x / 1e12, "T"),
    };
    format!("{} {prefix}", digits(value, false))
}

/// Memory in binary units: `41.0 MiB`.
#[must_use]
pub fn memory(bytes: u64) -> String {
    let b = bytes as f64;
    match b {
        b if b < 1024.0 => format!("{bytes} B"),
        b if b < 1024.0 * 1024.0 => format!("{} KiB", digits(b / 1024.0, true)),
        b if b < 1024.0 * 1024.0 * 1024.0 => format!("{} MiB", digits(b / 1024.0 / 1024.0, true)),
        b => format!("{} GiB", digits(b / 1024.0 / 1024.0 / 1024.0, true)),
    }
}

/// A share: 0.0123 is `1.2 %`, 0.00012 is `0.012 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    let p = share * 100.0;
    match p.abs() {
        a if !a.is_finite() => "?".into(),
        0.0 => "0 %".into(),
        a if a < 0.1 => format!("{p:.3} %"),
        a if a < 0.995 => format!("{p:.2} %"),
        a if a < 99.95 => format!("{p:.1} %"),
        _ => format!("{p:.0} %"),
    }
}

/// Half-width relative to the value: `±3 %`; empty for exact numbers, `<` the upper end where the value is 0.
#[must_use]
pub fn plus_minus(e: &Estimate) -> String {
    if e.low == e.high {
        return String::new();
    }
    if e.value == 0.0 {
        return "±?".into();
    }
    let p = 100.0 * (e.half_width() / e.value).abs();
    match p {
        p if !p.is_finite() => "±?".into(),
        p if p < 0.05 => "±<0.1 %".into(),
        p if p < 0.95 => format!("±{p:.1} %"),
        p if p < 999.5 => format!("±{p:.0} %"),
        _ => "±>999 %".into(),
    }
}

/// The letter of a source in the table, explained below it.
#[must_use]
pub fn source_letter(source: Source) -> char {
    match source {
        Source::Exact => 'E',
        Source::Burst => 'B',
        Source::Sampled => 'S',
        Source::Derived => 'D',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_day_are_those_of_the_calendar() {
        // 2023-11-14 22:13:20 UTC.
        let start = RunStart { ns: 5, unix_ns: 1_700_000_000_000_000_000 };
        assert_eq!(start.of_day(5), "22:13:20 UTC");
        assert_eq!(start.of_day(5 + 6_400 * 1_000_000_000), "00:00:00 UTC");
        assert_eq!(start.seconds_until(1_500_000_005), 1.5);
        assert_eq!(start.seconds_until(0), 0.0);
    }

    #[test]
    fn durations_keep_three_digits_across_units() {
        let cases = [
            (0.0, "0 ns"),
            (80.0, "80 ns"),
            (80.4, "80.4 ns"),
            (999.4, "999 ns"),
            (999.6, "1.00 us"),
            (1_300.0, "1.30 us"),
            (9_996.0, "10.0 us"),
            (999_600.0, "1.00 ms"),
            (2.4e6, "2.40 ms"),
            (12e9, "12.0 s"),
            (630e9, "10.5 min"),
            (f64::NAN, "?"),
        ];
        for (ns, text) in cases {
            assert_eq!(duration_ns(ns), text);
        }
    }

    #[test]
    fn counts_have_thousands_and_stay_exact_below_a_thousand_million() {
        let cases = [
            (0.0, "0"),
            (999.0, "999"),
            (1_000.0, "1,000"),
            (123_456_789.0, "123,456,789"),
            (1.5e9, "1.50 G"),
        ];
        for (n, text) in cases {
            assert_eq!(count(n), text);
        }
        assert_eq!(si(12_345.0), "12.3 k");
        assert_eq!(memory(41 << 20), "41 MiB");
        assert_eq!(percent(0.000_12), "0.012 %");
        assert_eq!(percent(0.421), "42.1 %");
    }

    #[test]
    fn a_limit_is_told_as_one() {
        let known = Estimate { low: 1_200.0, high: 1_400.0, level: 0.95, ..Estimate::exact(1_300.0, 9) };
        let limit =
            Estimate { low: 0.0, high: 2_600.0, level: 0.95, at_most: true, ..Estimate::exact(0.0, 9) };
        assert_eq!((duration(&known), duration_alone(&known)), ("1.30 us ±8 %".into(), "1.30 us".into()));
        assert_eq!((duration(&limit), duration_alone(&limit)), ("≤ 2.60 us".into(), "≤ 2.60 us".into()));
        assert_eq!(duration(&Estimate::exact(80.0, 9)), "80 ns");
    }

    #[test]
    fn intervals_are_half_widths() {
        let e = |value, low, high| Estimate {
            value,
            low,
            high,
            level: 0.95,
            n: 9,
            source: Source::Sampled,
            at_most: false,
        };
        assert_eq!(plus_minus(&e(100.0, 97.0, 103.0)), "±3 %");
        assert_eq!(plus_minus(&e(1_000.0, 996.0, 1_004.0)), "±0.4 %");
        assert_eq!(plus_minus(&e(1_000.0, 999.9, 1_000.1)), "±<0.1 %");
        assert_eq!(plus_minus(&Estimate::exact(5.0, 5)), "");
        assert_eq!(plus_minus(&e(0.0, 0.0, 3.0)), "±?");
    }
}
