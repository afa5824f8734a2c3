//! What the agent may use of a CPU, and how far it slows down to keep to that.
//!
//! The budget is what the *target* may lose. The agent runs beside it, on CPUs that the target could use: it has a limit of its own
//! (`--agent-cpu`). What it can do less of is sampling and bursts; breaker and watchdog have threads of their own and wait for nothing.
//!
//! ```text
//! m: mean use of the seconds since the last change, ten at most, without the largest
//! 2 s after it became faster, or 5 s after it became slower:
//!     m > limit:               slow := slow k,  k = clamp(m / limit, 1.1, 16)
//!         but where m fell by less than 0.3 of what k >= 1.5 would bring, were all of it slowed:  slow := slow / k, and no slower for a minute
//!     m < 0.8 limit, slow > 1: slow := slow max(0.25, m / (0.9 limit))
//!     m <= limit for 10 s:     slow := 0.7 slow, once a minute
//! ```
//! Several seconds and not the largest, because the agent's work comes in lumps (a block of the recording is packed, a library is read), which samples have no part
//! in; and what slowing does not mend is not sampling. Small steps are judged together.
//!
//! What it does not do: it knows no clock and no process; the engine tells it.

use std::collections::VecDeque;

/// The limit holds from here on, ns of the run: a run begins with reading files and with a survey, which are paid for once.
pub const FROM_NS: u64 = 5_000_000_000;
/// Between two judgements, ns.
const JUDGE_NS: u64 = 1_000_000_000;
/// Judgements that the mean looks back on at most, that it needs, and that it needs to see what slowing brought.
const LOOK_BACK: usize = 10;
const LEAST: usize = 2;
const TRIAL: usize = 5;
/// Judgements for which it is not slowed again where that brought nothing.
const HOLD: u32 = 60;
/// Slowing brought something where use fell by this part of what it would have, were all of it slowed. Small steps show nothing.
const BROUGHT: f64 = 0.3;
const SMALL_STEP: f64 = 1.5;
/// Largest step.
const STEP: f64 = 16.0;
/// Nothing is slowed further: what is left is not sampling.
const SLOWEST: f64 = 64.0;
/// It is tried whether it could be faster, where it is slow and within the limit.
const FASTER: f64 = 0.7;
/// More than this many times the limit is told.
const OVER: f64 = 1.1;

/// What slowing by `factor` is to bring, where `before` CPU s/s were used.
#[derive(Debug, Clone, Copy)]
struct Trial {
    factor: f64,
    before: f64,
}

impl Trial {
    fn brought_nothing(&self, after: f64) -> bool {
        let most = self.before * (1.0 - 1.0 / self.factor);
        self.factor >= SMALL_STEP && self.before - after < BROUGHT * most
    }
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct AgentLimit {
    limit: f64,
    /// CPU time of the agent at the last judgement, ns, and when that was, ns of the run. `None`: the limit does not hold yet.
    judged: Option<(u64, u64)>,
    /// CPU s/s of each second since the last change.
    uses: VecDeque<f64>,
    trial: Option<Trial>,
    /// For so many judgements it is not slowed, and it is not tried whether it could be faster.
    hold: u32,
    patience: u32,
    slowdown: f64,
    /// See [`AgentLimit::bound`].
    most: f64,
    /// CPU time of the agent when the limit began to hold, ns, and when that was.
    since: Option<(u64, u64)>,
    cut: f64,
}

impl AgentLimit {
    /// `limit`: CPU s/s.
    #[must_use]
    pub fn new(limit: f64) -> Self {
        Self {
            limit,
            judged: None,
            uses: VecDeque::new(),
            trial: None,
            hold: 0,
            patience: 0,
            slowdown: 1.0,
            most: SLOWEST,
            since: None,
            cut: 0.0,
        }
    }

    /// The agent has used `cpu_ns` of CPU time so far, `run_ns` after the run began. 0 is "not known", and nothing follows from it.
    pub fn note(&mut self, cpu_ns: u64, run_ns: u64) {
        if run_ns < FROM_NS || cpu_ns == 0 {
            return;
        }
        self.since.get_or_insert((cpu_ns, run_ns));
        let (last_cpu_ns, last_ns) = *self.judged.get_or_insert((cpu_ns, run_ns));
        let elapsed_ns = run_ns.saturating_sub(last_ns);
        if elapsed_ns < JUDGE_NS {
            return;
        }
        self.judged = Some((cpu_ns, run_ns));
        self.judge(cpu_ns.saturating_sub(last_cpu_ns) as f64 / elapsed_ns as f64);
    }

    /// `used`: CPU s/s since the last judgement.
    fn judge(&mut self, used: f64) {
        self.hold = self.hold.saturating_sub(1);
        self.patience = self.patience.saturating_sub(1);
        if self.uses.len() == LOOK_BACK {
            self.uses.pop_front();
        }
        self.uses.push_back(used);
        let needed = if self.trial.is_some() { TRIAL } else { LEAST };
        if self.uses.len() < needed {
            return;
        }
        let largest = self.uses.iter().copied().fold(0.0, f64::max);
        let mean = (self.uses.iter().sum::<f64>() - largest) / (self.uses.len() - 1) as f64;
        let change = match self.trial.take() {
            Some(trial) if mean > self.limit && trial.brought_nothing(mean) => {
                self.hold = HOLD;
                1.0 / trial.factor
            }
            carried if mean > self.limit && self.hold == 0 && self.slowdown < self.most => {
                let factor = (mean / self.limit).clamp(1.1, STEP).min(self.most / self.slowdown);
                // A load that has just come is not what slowing failed to mend.
                let now = self.uses.iter().rev().take(2).copied().fold(f64::INFINITY, f64::min);
                self.trial = Some(match carried {
                    Some(small) if small.factor < SMALL_STEP => {
                        Trial { factor: small.factor * factor, ..small }
                    }
                    _ => Trial { factor, before: mean.max(now) },
                });
                factor
            }
            _ if mean < 0.8 * self.limit && self.slowdown > 1.0 => (mean / (0.9 * self.limit)).max(0.25),
            _ if self.slowdown > 1.0 && mean <= self.limit && self.may_be_tried() => {
                self.patience = HOLD;
                FASTER
            }
            _ => return,
        };
        self.slowdown = (self.slowdown * change).max(1.0);
        self.uses.clear();
    }

    /// How many times as rarely samples are taken as planned, and from a factor on bursts begun; at least 1.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }

    fn may_be_tried(&self) -> bool {
        self.uses.len() == LOOK_BACK && self.patience == 0
    }

    /// It cannot be slowed further than `most` times: samples have a longest period.
    pub fn bound(&mut self, most: f64) {
        self.most = most.clamp(1.0, SLOWEST);
        self.slowdown = self.slowdown.min(self.most);
    }

    /// What it used since the limit began to hold, CPU s/s, where that is more than it may.
    #[must_use]
    pub fn overshoot(&self) -> Option<f64> {
        /// Less says nothing, ns.
        const LEAST_NS: u64 = 10_000_000_000;
        let ((from_cpu_ns, from_ns), (cpu_ns, ns)) = (self.since?, self.judged?);
        let used = cpu_ns.saturating_sub(from_cpu_ns) as f64 / ns.saturating_sub(from_ns).max(1) as f64;
        (ns - from_ns >= LEAST_NS && used > OVER * self.limit).then_some(used)
    }

    /// So many samples were not taken for the limit's sake.
    pub fn cut(&mut self, samples: f64) {
        self.cut += samples.max(0.0);
    }

    /// Samples that were planned and not taken for the limit's sake.
    #[must_use]
    pub fn samples_cut(&self) -> u64 {
        // OK because a float beyond the type's range becomes its end.
        self.cut.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// An agent at a limit of 2 % that uses `fixed(second) + varying(second) / slowdown` CPU s/s for so long: it, what it used from the fifth second
    /// on, CPU s/s, and its largest slowdown.
    fn agent(
        fixed: impl Fn(u64) -> f64,
        varying: impl Fn(u64) -> f64,
        seconds: u64,
    ) -> (AgentLimit, f64, f64) {
        let mut agent = AgentLimit::new(0.02);
        let (mut cpu_s, mut since_s, mut slowest) = (0.3, 0.0, 1.0_f64);
        for tick in 1..=seconds * 10 {
            let second = tick / 10;
            cpu_s += 0.1 * (fixed(second) + varying(second) / agent.slowdown());
            if tick == 50 {
                since_s = cpu_s;
            }
            agent.note((cpu_s * 1e9) as u64, tick * S / 10);
            slowest = slowest.max(agent.slowdown());
        }
        (agent, (cpu_s - since_s) / (seconds as f64 - 5.0), slowest)
    }

    fn is_as_planned(agent: &AgentLimit) -> bool {
        (agent.slowdown() - 1.0).abs() < 1e-9
    }

    #[test]
    fn an_agent_within_its_limit_is_as_fast_as_planned() {
        let (_, used, slowest) = agent(|_| 0.005, |_| 0.012, 60);
        assert!(slowest == 1.0 && used < 0.02, "{slowest}, {used}");
    }

    #[test]
    fn the_start_is_not_counted() {
        let (_, _, slowest) = agent(|_| 0.005, |second| if second < 5 { 0.5 } else { 0.01 }, 20);
        assert_eq!(slowest, 1.0);
    }

    #[test]
    fn a_target_that_keeps_32_cpus_busy_is_sampled_more_rarely() {
        let (agent, used, _) = agent(|_| 0.005, |_| 0.12, 180);
        assert!(used < 0.023 && used > 0.012, "{used}");
        // 0.12 / 8 + 0.005 is the limit.
        assert!(agent.slowdown() > 6.0 && agent.slowdown() < 16.0, "{agent:?}");
    }

    #[test]
    fn ten_times_too_many_samples_are_slowed_within_seconds() {
        let (_, used, _) = agent(|_| 0.002, |_| 0.6, 60);
        // Two or three seconds of 60 % are 2 to 3 of the 55.
        assert!(used < 0.05, "{used}");
    }

    #[test]
    fn it_is_fast_again_when_there_is_less_to_do() {
        let (agent, _, _) = agent(|_| 0.005, |second| if second < 60 { 0.12 } else { 0.006 }, 120);
        assert!(is_as_planned(&agent), "{agent:?}");
    }

    #[test]
    fn lumps_within_the_limit_slow_it_for_a_while_at_most() {
        // 100 ms every 10 s, 60 ms every 5 s: 1.6 and 1.8 % on average. 50 ms in each of two seconds of ten.
        for (every, seconds, lump) in [(10, 1, 0.1), (5, 1, 0.06), (10, 2, 0.05)] {
            let fixed = |second: u64| 0.003 + if second % every < seconds { lump } else { 0.0 };
            let (agent, _, slowest) = agent(fixed, |_| 0.003, 300);
            assert!(slowest < 4.0 && agent.slowdown() < 2.0, "{every} {seconds}: {slowest} {agent:?}");
        }
    }

    #[test]
    fn a_library_that_is_read_for_two_seconds_is_forgotten_within_half_a_minute() {
        let fixed = |second| if second == 20 || second == 21 { 1.0 } else { 0.006 };
        let (agent, _, slowest) = agent(fixed, |_| 0.006, 50);
        assert!(slowest < 32.0 && is_as_planned(&agent), "{slowest} {agent:?}");
    }

    #[test]
    fn what_slowing_does_not_mend_is_given_up_and_told() {
        for (fixed, samples) in [(0.05, 0.003), (0.021, 0.003), (0.023, 0.003), (0.025, 0.003)] {
            let (agent, used, _) = agent(|_| fixed, |_| samples, 120);
            assert!(agent.slowdown() < 2.0, "{fixed}: {agent:?}");
            assert_eq!(agent.overshoot().is_some(), used > 0.022, "{fixed}: {used}");
        }
        assert_eq!(agent(|_| 0.005, |_| 0.012, 60).0.overshoot(), None);
    }

    #[test]
    fn a_load_that_comes_later_is_not_taken_for_what_slowing_does_not_mend() {
        for high in [0.05, 0.2, 0.3, 0.5] {
            let (_, used, _) = agent(|_| 0.004, |second| if second < 40 { 0.006 } else { high }, 140);
            assert!(used < 0.05, "{high}: {used}");
        }
        // Ten seconds of work, ten of rest: 10.5 % unslowed.
        let (_, used, _) = agent(|_| 0.004, |second| if second % 20 < 10 { 0.2 } else { 0.001 }, 200);
        assert!(used < 0.07, "{used}");
    }

    #[test]
    fn it_is_tried_whether_it_may_be_faster() {
        // 1.85 % at full speed, 1.66 % at the slowest: never far below the limit.
        let (agent, _, _) = agent(|_| 0.0165, |second| if second < 120 { 0.12 } else { 0.002 }, 1_200);
        assert!(agent.slowdown() < 1.5, "{agent:?}");
    }

    #[test]
    fn it_is_slowed_no_further_than_samples_can_be() {
        let mut agent = AgentLimit::new(0.02);
        agent.bound(9.9);
        for second in 5..60 {
            let used = 0.005 + 0.19 / agent.slowdown();
            let before = agent.judged.map_or(0, |(cpu_ns, _)| cpu_ns);
            agent.note(before + (used * 1e9) as u64 + 1, second * S);
            assert!(agent.slowdown() <= 9.9 + 1e-9);
        }
        let slow = agent.slowdown();
        assert!(slow > 9.8 && agent.overshoot().is_some_and(|used| used > 0.022), "{agent:?}");
        // A plan that samples more rarely.
        agent.bound(4.0);
        assert_eq!(agent.slowdown(), 4.0);
    }

    #[test]
    fn without_a_clock_nothing_is_slowed() {
        let mut agent = AgentLimit::new(0.02);
        (0..100).for_each(|second| agent.note(0, second * S));
        assert!(is_as_planned(&agent));
    }
}
