//! Durations by bpftrace, as its users write it: entry and return, with a map by thread between them.

use anyhow::{Context, Result};
use serde_json::Value;

/// The program; F: the function.
pub const PAIR: &str = "uprobe:F { @s[tid] = nsecs } \
    uretprobe:F /@s[tid]/ { @d = stats(nsecs - @s[tid]); delete(@s[tid]); }";

/// What it tells of a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Calls that it timed.
    pub count: u64,
    /// Their mean, ns. (`average` is the same without decimals.)
    pub mean: f64,
}

/// The map `@d` in the output of `bpftrace -f json`: a JSON object a line, among empty lines.
///
/// # Errors
///
/// If it is not there, or tells of no call.
pub fn stats(text: &str) -> Result<Stats> {
    let mut found = text.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let map = line.get("data")?.get("@d")?;
        Some((map.get("count")?.as_u64()?, map.get("total")?.as_f64()?))
    });
    let last = found.next_back().filter(|(count, _)| *count > 0);
    let (count, total) = last.with_context(|| format!("bpftrace timed no call: {text}"))?;
    Ok(Stats { count, mean: total / count as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As bpftrace 0.17 writes it.
    const SAID: &str = "{\"type\": \"attached_probes\", \"data\": {\"probes\": 2}}\n\n\n\
        {\"type\": \"map\", \"data\": {\"@s\": {\"42\": 3152975}}}\n\
        {\"type\": \"stats\", \"data\": {\"@d\": {\"count\": 24400, \"average\": 759, \"total\": 18536939}}}\n";

    #[test]
    fn the_mean_is_that_of_the_total() {
        let found = stats(SAID).unwrap();
        assert_eq!(found.count, 24_400);
        assert!((found.mean - 759.71).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn no_call_is_no_mean() {
        let none = "{\"type\": \"stats\", \"data\": {\"@d\": {\"count\": 0, \"average\": 0, \"total\": 0}}}";
        for text in ["", "@d: count 2, average 3, total 6", none] {
            assert!(stats(text).unwrap_err().to_string().starts_with("bpftrace timed no call"), "{text}");
        }
    }
}
