//! Root cause (§5.2): which resource's use, beyond that of normal calls, explains a call's excess time.
//!
//! The paper correlates utilisation over time with the anomaly, by eye. Here the time of a call is divided into parts that add up to it,
//! so that an excess is one part's or another's, and the part is named only if it explains most of the excess.

use super::cells::median;
use crate::stats::Interval;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Fewest normal calls with like predicted times.
const LEAST: usize = 20;
/// Part of the excess time that a resource must explain to be named.
const MOST: f64 = 0.5;
/// Lead over the next one: part of the excess.
const LEAD: f64 = 0.25;
/// Predicted times within this factor are alike.
pub(super) const ALIKE: f64 = 2.0;

/// What a call used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Used {
    /// Predicted time for its inputs, ns.
    pub predicted_ns: f64,
    /// Its own time, ns.
    pub own_ns: f64,
    /// On a CPU, ns.
    pub on_cpu_ns: f64,
    /// Able to run, without a CPU, ns.
    pub runnable_ns: f64,
    /// In system calls that read or write, blocked, ns.
    pub io_ns: f64,
    /// Blocked elsewhere (locks, sleep), ns.
    pub blocked_ns: f64,
    /// Page faults that needed no disk.
    pub minor_faults: f64,
    /// Page faults that needed one.
    pub major_faults: f64,
    /// Read and written, bytes.
    pub io_bytes: f64,
}

/// Parts of a call's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// It computed longer.
    OnCpu,
    /// It waited for a CPU.
    Runnable,
    /// It was blocked in reading or writing.
    Io,
    /// It was blocked elsewhere.
    Blocked,
}

/// What is counted of a call, beside its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// Page faults that needed no disk.
    MinorFaults,
    /// Page faults that needed one.
    MajorFaults,
    /// Bytes read and written.
    IoBytes,
}

const PARTS: [Part; 4] = [Part::OnCpu, Part::Runnable, Part::Io, Part::Blocked];
const COUNTED: [Counted; 3] = [Counted::MinorFaults, Counted::MajorFaults, Counted::IoBytes];

impl Used {
    fn part(&self, part: Part) -> f64 {
        match part {
            Part::OnCpu => self.on_cpu_ns,
            Part::Runnable => self.runnable_ns,
            Part::Io => self.io_ns,
            Part::Blocked => self.blocked_ns,
        }
    }

    fn counted(&self, counted: Counted) -> f64 {
        match counted {
            Counted::MinorFaults => self.minor_faults,
            Counted::MajorFaults => self.major_faults,
            Counted::IoBytes => self.io_bytes,
        }
    }
}

/// One resource of a call, against normal calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Against<R> {
    /// The resource.
    pub resource: R,
    /// What this call used: ns, number or bytes.
    pub used: f64,
    /// Normal calls' median, at this call's predicted time.
    pub normal: f64,
    /// 95 % of the normal calls lie in it.
    pub interval: Interval,
}

/// What explains a call's time.
#[derive(Debug, Clone, PartialEq)]
pub struct Cause {
    /// The part that explains most of the excess; `None`: unknown.
    pub part: Option<Part>,
    /// What was counted and lies above its interval: the bytes behind the time in I/O, the faults behind that on the CPU.
    pub with: Vec<Counted>,
    /// Time beyond the predicted one, ns.
    pub excess_ns: f64,
    /// Part of the excess that the named part explains, 0 to 1.
    pub explained: f64,
    /// Each part.
    pub parts: Vec<Against<Part>>,
    /// What was counted.
    pub counted: Vec<Against<Counted>>,
    /// Why no part is named.
    pub doubt: Option<Doubt>,
}

/// Why the cause of a call's time is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// It took no longer than predicted.
    NoExcess,
    /// Fewer than 20 normal calls have a predicted time that is within a factor of 2.
    FewNormal,
    /// The parts do not add up to the excess: something was not measured.
    Unmeasured,
    /// Several parts share the excess.
    Shared,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.part, self.doubt) {
            (Some(Part::OnCpu), _) if self.with.contains(&Counted::MinorFaults) => "on-CPU, with page faults",
            (Some(Part::OnCpu), _) => "on-CPU",
            (Some(Part::Runnable), _) => "waiting for a CPU",
            (Some(Part::Io), _) if self.with.contains(&Counted::IoBytes) => "I/O of more bytes",
            (Some(Part::Io), _) => "I/O, bytes as before",
            (Some(Part::Blocked), _) if self.with.contains(&Counted::MajorFaults) => "page faults from disk",
            (Some(Part::Blocked), _) => "blocked",
            (None, Some(Doubt::NoExcess)) => return write!(f, "nothing to explain"),
            (None, Some(Doubt::FewNormal)) => return write!(f, "unknown: too few normal calls like it"),
            (None, Some(Doubt::Shared)) => return write!(f, "unknown: several resources share it"),
            (None, _) => return write!(f, "unknown: no resource explains it"),
        };
        write!(f, "{name} ({:.0} % of the excess)", 100.0 * self.explained)
    }
}

/// Explains a call by normal calls of the same function.
///
/// ```text
/// normal_k = predicted · median(used_k / predicted),   excess_k = max(0, used_k - normal_k),   explained_k = excess_k / (own - predicted)
/// ```
/// over normal calls whose predicted time is within a factor of 2. A part is named if it explains at least half, a quarter more than the
/// next one, and is above what 95 % of the normal calls used.
#[must_use]
pub fn explain(call: &Used, normal: &[Used]) -> Cause {
    let is_like = |n: &&Used| {
        let ratio = n.predicted_ns / call.predicted_ns;
        (1.0 / ALIKE..=ALIKE).contains(&ratio) && n.own_ns > 0.0
    };
    let like: Vec<&Used> = normal.iter().filter(is_like).collect();
    let parts: Vec<Against<Part>> =
        PARTS.map(|part| against(part, call.part(part), call, &like, |n| n.part(part))).to_vec();
    let counted: Vec<Against<Counted>> =
        COUNTED.map(|c| against(c, call.counted(c), call, &like, |n| n.counted(c))).to_vec();
    let excess_ns = call.own_ns - call.predicted_ns;
    let above = counted.iter().filter(|c| c.used > c.interval.high && c.used > 1.1 * c.normal);
    let with = above.map(|c| c.resource).collect();
    let mut cause = Cause { part: None, with, excess_ns, explained: 0.0, parts, counted, doubt: None };
    if excess_ns <= 0.0 {
        cause.doubt = Some(Doubt::NoExcess);
        return cause;
    }
    if like.len() < LEAST {
        cause.doubt = Some(Doubt::FewNormal);
        return cause;
    }
    let mut shares: Vec<(f64, bool, Part)> = cause
        .parts
        .iter()
        .map(|p| ((p.used - p.normal).max(0.0) / excess_ns, p.used > p.interval.high, p.resource))
        .collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    let total: f64 = shares.iter().map(|s| s.0).sum();
    if let [(first, is_above, part), (second, _, _), ..] = shares.as_slice() {
        if *first >= MOST && first - second >= LEAD && *is_above {
            (cause.part, cause.explained) = (Some(*part), first.min(1.0));
        } else {
            cause.doubt = Some(if total >= MOST { Doubt::Shared } else { Doubt::Unmeasured });
        }
    }
    cause
}

/// Which of some slow calls stands for them: the first whose excess the resource explains that explains most of them (more than half of those of
/// which the cause was looked for). `None`: no resource does.
///
/// The longest call of some that are slow for one reason has mostly waited for another one, too: of calls in which memory is touched for the first time, on a
/// CPU that others want as well, those that were preempted are the longest, and page faults make up less than half of their excess.
#[must_use]
pub fn shared_cause(calls: &[Option<Cause>]) -> Option<usize> {
    let resource = |cause: &Cause| {
        let has = |counted: Counted| cause.with.contains(&counted);
        cause.part.map(|part| match part {
            Part::OnCpu => (part, has(Counted::MinorFaults)),
            Part::Blocked => (part, has(Counted::MajorFaults)),
            Part::Runnable | Part::Io => (part, false),
        })
    };
    let known = || calls.iter().flatten().filter(|cause| !matches!(cause.doubt, Some(Doubt::FewNormal)));
    let count = |call: &Option<Cause>| {
        let its = call.as_ref().and_then(resource)?;
        Some(known().filter(|cause| resource(cause) == Some(its)).count())
    };
    calls.iter().position(|call| count(call).is_some_and(|count| 2 * count > known().count()))
}

fn against<R>(resource: R, used: f64, call: &Used, like: &[&Used], of: impl Fn(&Used) -> f64) -> Against<R> {
    let mut ratios: Vec<f64> = like.iter().map(|n| of(n) / n.predicted_ns).collect();
    let normal = median(&mut ratios) * call.predicted_ns;
    // Conformal, as in `calibration`: ratios are sorted now.
    let beyond = ((ratios.len() + 1) as f64 * 0.025).floor() as usize;
    let end = |i: Option<usize>| i.and_then(|i| ratios.get(i)).map(|r| r * call.predicted_ns);
    // With fewer than 39 calls the largest bounds: at 20 calls it holds 95 %.
    let low = end(Some(beyond.saturating_sub(1))).unwrap_or(0.0);
    let high = end(ratios.len().checked_sub(beyond.max(1))).unwrap_or(f64::INFINITY);
    Against { resource, used, normal, interval: Interval { low, high } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::sim::{exponential, normal, rng};

    /// A call that computes for nine tenths of its time, and reads a byte in 10 ns.
    fn call(predicted_ns: f64, random: &mut rand::rngs::StdRng) -> Used {
        let on_cpu_ns = 0.9 * predicted_ns * f64::exp(0.1 * normal(random));
        let io_ns = 0.1 * predicted_ns * f64::exp(0.3 * normal(random));
        let runnable_ns = exponential(random, 0.01 * predicted_ns);
        Used {
            predicted_ns,
            own_ns: on_cpu_ns + io_ns + runnable_ns,
            on_cpu_ns,
            runnable_ns,
            io_ns,
            io_bytes: predicted_ns / 10.0,
            minor_faults: 2.0,
            ..Used::default()
        }
    }

    fn normal_calls() -> (Vec<Used>, rand::rngs::StdRng) {
        let mut random = rng(11);
        let calls = (0..400).map(|i| call(1e5 * f64::from(1 + i % 40), &mut random)).collect();
        (calls, random)
    }

    #[test]
    fn each_resource_is_named_when_it_is_the_one() {
        let (normal, mut random) = normal_calls();
        type Change = fn(&mut Used);
        let cases: [(Change, Option<Part>, &str); 6] = [
            (|u| u.on_cpu_ns += 3e6, Some(Part::OnCpu), "on-CPU (100 % of the excess)"),
            (|u| u.runnable_ns += 3e6, Some(Part::Runnable), "waiting for a CPU"),
            (|u| u.io_ns += 3e6, Some(Part::Io), "I/O, bytes as before"),
            (|u| (u.io_ns, u.io_bytes) = (u.io_ns + 3e6, 9e5), Some(Part::Io), "I/O of more bytes"),
            (|u| u.blocked_ns += 3e6, Some(Part::Blocked), "blocked"),
            (
                |u| (u.on_cpu_ns, u.minor_faults) = (u.on_cpu_ns + 3e6, 3_000.0),
                Some(Part::OnCpu),
                "on-CPU, with page faults",
            ),
        ];
        for (change, part, text) in cases {
            for _ in 0..50 {
                let mut one = call(2e6, &mut random);
                change(&mut one);
                one.own_ns = one.on_cpu_ns + one.runnable_ns + one.io_ns + one.blocked_ns;
                let cause = explain(&one, &normal);
                assert_eq!(cause.part, part, "{text}: {cause:?}");
                let told = cause.to_string();
                assert!(told.starts_with(text.split(" (").next().unwrap()), "{told}");
            }
        }
    }

    #[test]
    fn a_call_that_waits_and_has_some_faults_more_is_blocked() {
        let (normal, mut random) = normal_calls();
        for faults in [2.0, 4.0, 40.0] {
            let one = call(2e6, &mut random);
            let one = Used { blocked_ns: 3e6, own_ns: one.own_ns + 3e6, minor_faults: faults, ..one };
            let cause = explain(&one, &normal);
            assert_eq!(cause.part, Some(Part::Blocked));
            assert!(cause.to_string().starts_with("blocked ("), "{cause}");
        }
    }

    #[test]
    fn the_resource_of_most_calls_is_told_by_the_longest_that_it_explains() {
        let (normal, mut random) = normal_calls();
        let mut one = |on_cpu_ns: f64, runnable_ns: f64, minor_faults: f64| {
            let mut one = call(1e6, &mut random);
            (one.on_cpu_ns, one.runnable_ns) = (one.on_cpu_ns + on_cpu_ns, one.runnable_ns + runnable_ns);
            (one.own_ns, one.minor_faults) = (one.on_cpu_ns + one.io_ns + one.runnable_ns, minor_faults);
            Some(explain(&one, &normal))
        };
        // The longest has waited, too; a second one by nothing else; the others had page faults.
        let (mixed, waited) = (one(4e6, 5e6, 900.0), one(0.0, 8e6, 2.0));
        let faults = [one(3e6, 0.0, 900.0), one(2.9e6, 0.0, 900.0), one(2e6, 0.0, 900.0)];
        assert_eq!(mixed.as_ref().unwrap().doubt, Some(Doubt::Shared));
        let [a, b, c] = faults.clone();
        let calls = [mixed.clone(), waited.clone(), a.clone(), b, c];
        assert_eq!(shared_cause(&calls), Some(2));
        // One of whose resources nothing is known has no vote; half of them are not most.
        assert_eq!(shared_cause(&[None, waited.clone(), a.clone(), faults[1].clone()]), Some(2));
        assert_eq!(shared_cause(&[mixed.clone(), waited.clone(), a.clone(), faults[1].clone()]), None);
        // On the CPU without page faults is another resource.
        assert_eq!(shared_cause(&[one(3e6, 0.0, 2.0), a.clone()]), None);
        assert_eq!(shared_cause(&[waited]), Some(0));
        assert_eq!((shared_cause(&[mixed]), shared_cause(&[])), (None, None));
    }

    #[test]
    fn what_was_not_measured_or_is_shared_is_unknown() {
        let (normal, mut random) = normal_calls();
        let mut one = call(2e6, &mut random);
        one.own_ns += 5e6;
        assert_eq!(explain(&one, &normal).doubt, Some(Doubt::Unmeasured), "no part grew");
        one.on_cpu_ns += 2.5e6;
        one.blocked_ns += 2.5e6;
        assert_eq!(explain(&one, &normal).doubt, Some(Doubt::Shared));
        assert_eq!(explain(&one, &normal[..3]).doubt, Some(Doubt::FewNormal));
        let short = Used { own_ns: 1e6, ..call(2e6, &mut random) };
        assert_eq!(explain(&short, &normal).doubt, Some(Doubt::NoExcess));
    }
}
