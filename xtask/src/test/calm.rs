//! Whether others use this machine now: processes beside the tests, and the hypervisor's other guests (steal, `/proc/stat`).

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Part of the CPUs' time that is used by others, or stolen, on a calm machine.
const CALM: f64 = 0.05;
/// It is waited for no longer than that.
const LONGEST: Duration = Duration::from_secs(60);

/// Times of all CPUs together since the machine was started, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cpus {
    all: u64,
    idle: u64,
    stolen: u64,
}

impl Cpus {
    /// All zero where they cannot be read.
    pub(super) fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// `cpu  user nice system idle iowait irq softirq steal guest guest_nice` (proc_stat(5)); guests' time is in `user`, too.
    fn parse(stat: &str) -> Self {
        let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let times: Vec<u64> = line.split_whitespace().take(8).filter_map(|time| time.parse().ok()).collect();
        let at = |i: usize| times.get(i).copied().unwrap_or(0);
        Self { all: times.iter().sum(), idle: at(3) + at(4), stolen: at(7) }
    }

    /// Part of the CPUs' time since then that the hypervisor took; `None` if no time passed.
    pub(super) fn stolen_since(self) -> Option<f64> {
        self.parts_to(Self::now()).map(|(_, stolen)| stolen)
    }

    /// Parts of the time that somebody ran, or the hypervisor took, and of the latter.
    fn parts_to(self, now: Self) -> Option<(f64, f64)> {
        let of = |before: u64, after: u64| after.saturating_sub(before) as f64;
        let all = of(self.all, now.all);
        (all > 0.0).then(|| ((all - of(self.idle, now.idle)) / all, of(self.stolen, now.stolen) / all))
    }
}

/// How much others used this machine during some work of ours.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Load {
    /// The load average of a minute when it began.
    pub(super) before: f64,
    /// Part of the CPUs' time that neither was idle nor went to processes that we started (as far as they have ended and been waited for).
    pub(super) others: f64,
    /// The hypervisor's part, which is in it.
    pub(super) stolen: f64,
}

/// Measures a [`Load`].
pub(super) struct Watch {
    before: f64,
    cpus: Cpus,
    /// Ticks.
    children: u64,
}

impl Watch {
    pub(super) fn begin() -> Self {
        let average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let before = average.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN);
        Self { before, cpus: Cpus::now(), children: children(&own_stat()) }
    }

    pub(super) fn end(self) -> Load {
        self.load(Cpus::now(), children(&own_stat()))
    }

    fn load(self, cpus: Cpus, children: u64) -> Load {
        let (used, stolen) = self.cpus.parts_to(cpus).unwrap_or((0.0, 0.0));
        let own = children.saturating_sub(self.children) as f64;
        let all = cpus.all.saturating_sub(self.cpus.all).max(1) as f64;
        Load { before: self.before, others: (used - own / all).max(0.0), stolen }
    }
}

/// CPU time of this process's children that were waited for, and of theirs, ticks: `cutime` and `cstime` (proc_pid_stat(5)).
fn children(stat: &str) -> u64 {
    // The name may contain anything.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

fn own_stat() -> String {
    std::fs::read_to_string("/proc/self/stat").unwrap_or_default()
}

/// Returns when two seconds were calm, or a minute has passed.
pub(super) fn wait() {
    let began = Instant::now();
    let mut calm = 0;
    while calm < 2 && began.elapsed() < LONGEST {
        let before = Cpus::now();
        std::thread::sleep(Duration::from_secs(1));
        let used = before.parts_to(Cpus::now()).map_or(0.0, |(used, _)| used);
        calm = if used < CALM { calm + 1 } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_part_of_all_time() {
        let before = Cpus::parse("cpu  100 0 50 800 10 0 0 40 7 0\ncpu0 1 1 1 1\n");
        assert_eq!(before, Cpus { all: 1_000, idle: 810, stolen: 40 });
        let after = Cpus::parse("cpu  110 0 60 870 10 0 0 50 9 0\n");
        assert_eq!(before.parts_to(after), Some((0.3, 0.1)));
        assert_eq!(before.parts_to(before), None);
        assert_eq!(Cpus::parse("").parts_to(Cpus::parse("nonsense")), None);
    }
    #[test]
    fn what_our_children_took_is_no_load_of_others() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 11 12 130 70 20 0 1 0 99";
        assert_eq!(children(stat), 200);
        let before = Cpus { all: 1_000, idle: 810, stolen: 40 };
        let watch = Watch { before: 0.5, cpus: before, children: 100 };
        // 400 of 1,000 ticks were used: 200 by ours, 50 by the hypervisor.
        let load = watch.load(Cpus { all: 2_000, idle: 1_410, stolen: 90 }, 300);
        assert_eq!(load, Load { before: 0.5, others: 0.2, stolen: 0.05 });
    }
}
