//! How late the breaker answered, and what the hypervisor took from the machine meanwhile.
//!
//! Nothing of ours runs on a virtual CPU that the hypervisor has taken away, at whatever priority: a governor or a closer that sleeps on
//! it wakes up when the CPU is given back. That cannot be mended from inside; it is said where it happened.

use crate::governor::{CloseReason, ClosedLink};
use profiler_core::recording::SlowestAnswer;

/// Answers that took no longer are nothing to talk about, ns.
const NOTED_NS: u64 = 1_000_000;
/// The machine's steal is read at this interval, ns: on machines with many CPUs the kernel works on `/proc/stat` for up to a millisecond.
const WATCH_NS: u64 = 1_000_000_000;
/// What was read so short ago is good enough, ns: the kernel shows ticks of 10 ms.
const RECENT_NS: u64 = 10_000_000;

/// CPU time that the hypervisor has taken from the machine's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Steal {
    /// When it was read, ktime ns.
    time_ns: u64,
    /// Since boot, all CPUs, ns.
    stolen_ns: u64,
}

/// The answer to a quota that was used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// From the trip to its being heeded by the governor, ns.
    pub taken_ns: u64,
    /// From the trip to the beginning of `close`, ns: about then hits stop.
    pub closing_ns: u64,
    /// What the hypervisor took from all CPUs, ns, and in what time, ns: from before the trip until the link was known to be gone. Not
    /// asked for where the answer was quick.
    pub stolen: Option<(u64, u64)>,
}

impl Answer {
    /// What is to be said of one that was slow.
    pub fn remark(&self) -> Option<String> {
        (self.closing_ns > NOTED_NS).then(|| {
            let ms = |ns: u64| ns as f64 * 1e-6;
            let stolen = self.stolen.map_or_else(String::new, |(stolen, over)| {
                format!(
                    "; the hypervisor took {:.0} ms from the machine's CPUs in the {:.1} s around it",
                    ms(stolen),
                    over as f64 * 1e-9
                )
            });
            format!(
                "the breaker took {:.1} ms to answer ({:.1} ms until the governor ran){stolen}",
                ms(self.closing_ns),
                ms(self.taken_ns)
            )
        })
    }
}

/// The answers of a run.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Read at least [`WATCH_NS`] apart, the older one first.
    read: [Option<Steal>; 2],
    /// Read for a slow answer; good for others that came with it.
    latest: Option<Steal>,
    slowest: Option<Answer>,
}

impl Answers {
    /// Keeps a reading of the machine's steal that is not too old. `read`: it as of now, ns.
    pub fn watch(&mut self, now_ns: u64, read: impl FnOnce() -> Option<u64>) {
        if self.read[1].is_some_and(|last| now_ns < last.time_ns + WATCH_NS) {
            return;
        }
        if let Some(stolen_ns) = read() {
            self.read = [self.read[1], Some(Steal { time_ns: now_ns, stolen_ns })];
        }
    }

    /// The answer that closed a link; `None`: no quota was used up.
    pub fn note(
        &mut self,
        closed: &ClosedLink,
        now_ns: u64,
        read: impl FnOnce() -> Option<u64>,
    ) -> Option<Answer> {
        if closed.reason != CloseReason::Tripped {
            return None;
        }
        let since = |time_ns: u64| time_ns.saturating_sub(closed.trip_ns);
        let mut answer = Answer {
            taken_ns: since(closed.taken_ns),
            closing_ns: since(closed.close_began_ns),
            stolen: None,
        };
        if answer.closing_ns > NOTED_NS {
            // OK to take the older one where the trip is older than the last.
            let before = self.read.iter().rev().flatten().find(|r| r.time_ns <= closed.trip_ns);
            let recent = |r: &&Steal| r.time_ns >= closed.close_began_ns && now_ns < r.time_ns + RECENT_NS;
            let now = [self.latest, self.read[1]].iter().flatten().find(recent).copied();
            let now = now.or_else(|| read().map(|stolen_ns| Steal { time_ns: now_ns, stolen_ns }));
            self.latest = now.or(self.latest);
            answer.stolen = before
                .zip(now)
                .map(|(b, n)| (n.stolen_ns.saturating_sub(b.stolen_ns), n.time_ns.saturating_sub(b.time_ns)));
        }
        if self.slowest.is_none_or(|s| s.closing_ns < answer.closing_ns) {
            self.slowest = Some(answer);
        }
        Some(answer)
    }

    /// The slowest of so many.
    pub fn slowest(&self, answers: u64) -> Option<SlowestAnswer> {
        let slowest = self.slowest?;
        let (stolen_ns, stolen_over_ns) = slowest.stolen.unwrap_or((0, 0));
        Some(SlowestAnswer {
            answers,
            governor_ns: slowest.taken_ns,
            closing_ns: slowest.closing_ns,
            stolen_ns,
            stolen_over_ns,
        })
    }
}

/// What the hypervisor has taken from all CPUs since boot, ns; `None`: the kernel does not say.
pub(super) fn read_steal() -> Option<u64> {
    // SAFETY: sysconf has no preconditions.
    let per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|n| *n > 0)?;
    steal_ticks(&std::fs::read_to_string("/proc/stat").ok()?).map(|ticks| ticks * (1_000_000_000 / per_s))
}

/// The eighth figure of the line of all CPUs (proc_stat(5)).
fn steal_ticks(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("cpu "))?.split_ascii_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn closed(reason: CloseReason, trip_ms: u64, taken_ms: u64, began_ms: u64) -> ClosedLink {
        ClosedLink {
            class: 3,
            reason,
            tripped_by: 3,
            trip_ns: trip_ms * MS,
            attached_ns: 0,
            taken_ns: taken_ms * MS,
            close_began_ns: began_ms * MS,
            closed_ns: (began_ms + 20) * MS,
            expedited: false,
        }
    }

    #[test]
    fn a_slow_answer_names_what_was_stolen_since_before_the_trip() {
        let mut answers = Answers::default();
        answers.watch(1_000 * MS, || Some(500 * MS));
        answers.watch(1_500 * MS, || panic!("not yet"));
        answers.watch(2_000 * MS, || Some(510 * MS));
        // The trip was before the second reading: the first one counts.
        let late = closed(CloseReason::Tripped, 1_990, 2_050, 2_051);
        let answer = answers.note(&late, 2_080 * MS, || Some(580 * MS)).unwrap();
        assert_eq!(
            answer,
            Answer { taken_ns: 60 * MS, closing_ns: 61 * MS, stolen: Some((80 * MS, 1_080 * MS)) }
        );
        assert_eq!(
            answer.remark().unwrap(),
            "the breaker took 61.0 ms to answer (60.0 ms until the governor ran); the hypervisor took 80 ms from the machine's CPUs in \
             the 1.1 s around it"
        );
        // After it: the second one.
        let late = closed(CloseReason::Tripped, 2_010, 2_020, 2_030);
        assert_eq!(
            answers.note(&late, 2_090 * MS, || Some(580 * MS)).unwrap().stolen,
            Some((70 * MS, 90 * MS))
        );
        let slowest = answers.slowest(7).unwrap();
        assert_eq!((slowest.answers, slowest.closing_ns, slowest.stolen_ns), (7, 61 * MS, 80 * MS));
    }

    #[test]
    fn slow_answers_that_come_together_share_a_reading() {
        let mut answers = Answers::default();
        answers.watch(1_000 * MS, || Some(500 * MS));
        let mut stolen = |began_ms, now_ms: u64, read: &dyn Fn() -> Option<u64>| {
            answers
                .note(&closed(CloseReason::Tripped, 1_990, 1_991, began_ms), now_ms * MS, read)
                .unwrap()
                .stolen
        };
        assert_eq!(stolen(2_000, 2_020, &|| Some(580 * MS)), Some((80 * MS, 1_020 * MS)));
        assert_eq!(stolen(2_010, 2_021, &|| panic!("asked again")), Some((80 * MS, 1_020 * MS)));
        // It does not cover this one, and is too old for that one.
        assert_eq!(stolen(2_022, 2_025, &|| Some(590 * MS)), Some((90 * MS, 1_025 * MS)));
        assert_eq!(stolen(2_022, 2_035, &|| Some(600 * MS)), Some((100 * MS, 1_035 * MS)));
    }

    #[test]
    fn a_quick_answer_is_kept_and_not_talked_about() {
        let mut answers = Answers::default();
        assert_eq!(answers.note(&closed(CloseReason::Released, 0, 5, 9), 10 * MS, || panic!("asked")), None);
        assert_eq!(
            answers.note(&closed(CloseReason::TrippedWhileAttaching, 1, 5, 9), 10 * MS, || panic!("asked")),
            None
        );
        assert_eq!(answers.slowest(0), None);
        let quick = ClosedLink { close_began_ns: 5 * MS + 90_000, ..closed(CloseReason::Tripped, 5, 5, 5) };
        let answer = answers.note(&quick, 10 * MS, || panic!("asked")).unwrap();
        assert_eq!((answer.remark(), answer.stolen), (None, None));
        assert_eq!(answers.slowest(1).unwrap().closing_ns, 90_000);
        // A kernel that says nothing of steal.
        let late = answers.note(&closed(CloseReason::Tripped, 5, 8, 9), 10 * MS, || None).unwrap();
        assert_eq!(
            late.remark().unwrap(),
            "the breaker took 4.0 ms to answer (3.0 ms until the governor ran)"
        );
    }

    #[test]
    fn steal_is_the_eighth_figure_of_all_cpus() {
        let stat = "cpu  10 20 30 40 50 60 70 81 90 100\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n";
        assert_eq!(steal_ticks(stat), Some(81));
        assert_eq!(steal_ticks("cpu  10 20 30 40\n"), None);
        // This machine says something, and it does not go back.
        let first = read_steal().unwrap();
        assert!(read_steal().unwrap() >= first);
    }
}
