//! Does anything grow without bound? The agent on a program that serves 120 types of requests, for twenty minutes: its memory, the
//! kernel's maps, its files and the recording, by the minute. `soak:names` gives every request a name of its own.

use crate::Options;
use crate::measure::Table;
use crate::scratch;
use anyhow::{Context, Result, bail, ensure};
use profiler_tests::support::{Agent, Target};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Length, s.
const SECONDS: u64 = 1_200;
/// From one look to the next.
const EVERY: Duration = Duration::from_secs(5);

/// What stands at one moment.
#[derive(Clone, Copy, Default)]
struct Look {
    time_s: f64,
    /// Resident memory of the agent, bytes.
    rss: f64,
    /// Memory of its BPF maps, bytes.
    maps: f64,
    /// Files that it holds open.
    files: f64,
    /// Bytes of the recording on disk.
    recording: f64,
}

/// The value of `KEY: VALUE kB`, bytes.
fn kilobytes(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib * 1_024.0)
}

/// Memory of the maps that a process holds by file descriptor: each map once.
fn maps_bytes(pid: u32) -> Result<(f64, f64)> {
    let mut maps = std::collections::BTreeMap::new();
    let mut files = 0.0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may be closed meanwhile.
        let Ok(text) = std::fs::read_to_string(entry?.path()) else { continue };
        files += 1.0;
        let field = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
        };
        if let (Some(id), Some(bytes)) = (field("map_id"), field("memlock")) {
            maps.insert(id.to_owned(), bytes.parse::<f64>().unwrap_or(0.0));
        }
    }
    Ok((maps.values().sum(), files))
}

fn folder_bytes(folder: &Path) -> f64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.len() as f64).sum()
}

fn look(agent: &Agent, begun: Instant) -> Result<Look> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id()))?;
    let (maps, files) = maps_bytes(agent.id())?;
    Ok(Look {
        time_s: begun.elapsed().as_secs_f64(),
        rss: kilobytes(&status, "VmRSS").context("no VmRSS in the agent's status")?,
        maps,
        files,
        recording: folder_bytes(agent.recording()),
    })
}

/// Least squares of a figure over time, per hour, in the second half.
fn slope_per_hour(looks: &[Look], figure: fn(&Look) -> f64) -> f64 {
    let half = &looks[looks.len() / 2..];
    let n = half.len() as f64;
    let (mean_t, mean_y) =
        (half.iter().map(|l| l.time_s).sum::<f64>() / n, half.iter().map(figure).sum::<f64>() / n);
    let products: f64 = half.iter().map(|l| (l.time_s - mean_t) * (figure(l) - mean_y)).sum();
    let squares: f64 = half.iter().map(|l| (l.time_s - mean_t).powi(2)).sum();
    products / squares * 3_600.0
}

/// The cell.
pub fn soak(options: &Options) -> Result<String> {
    let unique = match options.part.as_deref() {
        None => false,
        Some("names") => true,
        Some(part) => bail!("no part {part} of the soak; there is names"),
    };
    let seconds = options.seconds_or(SECONDS);
    let mut command = Command::new(profiler_tests::program("page-server"));
    if unique {
        command.arg("--unique-names");
    }
    let mut target = Target::start_command(&mut command);
    let scratch = scratch::new()?;
    let mut agent = Agent::start_plain(
        target.pid(),
        scratch.path(),
        &[
            "--budget",
            "2%",
            "--operation",
            "req=serve_request..request_served,class=arg0:str",
            "--measure",
            "page_server_allocates:arg0",
        ],
    );
    // The target works from the start on: a survey wants something to see.
    target.command(&format!("run {}", seconds + 60));
    agent.wait_attached();
    let begun = Instant::now();
    let mut looks = Vec::new();
    while begun.elapsed() < Duration::from_secs(seconds) {
        ensure!(
            agent.is_alive(),
            "the agent ended after {:.0} s: {}",
            begun.elapsed().as_secs_f64(),
            agent.messages()
        );
        looks.push(look(&agent, begun)?);
        std::thread::sleep(EVERY);
    }
    ensure!(looks.len() >= 4, "a soak of {seconds} s is too short to see anything grow");
    let finished = agent.stop();
    ensure!(finished.status.success(), "the agent failed: {}", finished.messages);
    let served = target.command("stop").number("operations");

    let mut table =
        Table::new(&["minute", "agent's memory, MiB", "maps, MiB", "open files", "recording, MiB"]);
    let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
    let mut minute = 0.0;
    for (i, l) in looks.iter().enumerate() {
        if l.time_s >= minute * 60.0 || i + 1 == looks.len() {
            table.row(&[
                format!("{:.1}", l.time_s / 60.0),
                mib(l.rss),
                mib(l.maps),
                format!("{:.0}", l.files),
                mib(l.recording),
            ]);
            minute = (l.time_s / 60.0).floor() + if seconds > 600 { 2.0 } else { 1.0 };
        }
    }
    let slope = |figure| slope_per_hour(&looks, figure) / f64::from(1 << 20);
    Ok(format!(
        "{table}\nThe second half's trend: memory {:+.2} MiB an hour, maps {:+.2}, open files {:+.1}, recording {:+.1} MiB an hour. {served} \
         requests{}; n = {} looks.\n",
        slope(|l| l.rss),
        slope(|l| l.maps),
        slope_per_hour(&looks, |l| l.files),
        slope(|l| l.recording),
        if unique { ", each with a name of its own" } else { "" },
        looks.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trend_is_that_of_the_second_half() {
        let look = |i: u32| Look {
            time_s: f64::from(i),
            rss: if i < 50 { 9e9 } else { f64::from(i) * 2.0 },
            ..Look::default()
        };
        let looks: Vec<Look> = (0..100).map(look).collect();
        assert!((slope_per_hour(&looks, |l| l.rss) - 7_200.0).abs() < 1e-6);
        assert_eq!(kilobytes("VmHWM:\t 5 kB\nVmRSS:\t  12 kB\n", "VmRSS"), Some(12_288.0));
    }

    #[test]
    fn own_memory_and_files_are_seen() {
        let (maps, files) = maps_bytes(std::process::id()).unwrap();
        assert!(maps >= 0.0 && files >= 3.0, "{maps} {files}");
    }
}
