//! What the agent may use of a CPU, and how far it slows down to keep to that.
//!
//! The budget is what the *target* may lose. The agent runs beside it, on CPUs that the target could use: it has a limit of its own
//! (`--agent-cpu`). What it can do less of is sampling and bursts; breaker and watchdog have threads of their own and wait for nothing.
//!
//! ```text
//! debt  += used - limit dt          within [-2 s, 60 s] of the limit; from the fifth second of the run on
//! slow  := slow x clamp(used / (limit dt), 1.1, 8)           where used > limit dt and debt > 0
//!          slow x max(0.8, used / (0.9 limit dt))            where used < 0.8 limit dt and debt < -limit x 1 s
//! ```
//! judged once a second: the agent's work comes in lumps (a block of the recording is packed, a link is made).
//!
//! What it does not do: it knows no clock and no process; the engine tells it.

/// The limit holds from here on, ns of the run: a run begins with reading files and with a survey, which are paid for once.
pub const FROM_NS: u64 = 5_000_000_000;
/// Between two judgements, ns.
const JUDGE_NS: u64 = 1_000_000_000;
/// Credit is kept for so long, s.
const CREDIT_S: f64 = 2.0;
/// A debt is remembered for so long, s: after a lump of work the agent is not slow for ever.
const DEBT_S: f64 = 60.0;
/// Nothing is slowed further: what is left is not sampling.
const SLOWEST: f64 = 64.0;

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct AgentLimit {
    limit: f64,
    /// CPU time of the agent at the last judgement, ns, and when that was, ns of the run. `None`: the limit does not hold yet.
    judged: Option<(u64, u64)>,
    debt_s: f64,
    slowdown: f64,
    cut: f64,
}

impl AgentLimit {
    /// `limit`: CPU s/s.
    #[must_use]
    pub fn new(limit: f64) -> Self {
        Self { limit, judged: None, debt_s: 0.0, slowdown: 1.0, cut: 0.0 }
    }

    /// The agent has used `cpu_ns` of CPU time so far, `run_ns` after the run began. 0 is "not known", and nothing follows from it.
    pub fn note(&mut self, cpu_ns: u64, run_ns: u64) {
        if run_ns < FROM_NS || cpu_ns == 0 {
            return;
        }
        let (last_cpu_ns, last_ns) = *self.judged.get_or_insert((cpu_ns, run_ns));
        let elapsed_ns = run_ns.saturating_sub(last_ns);
        if elapsed_ns < JUDGE_NS {
            return;
        }
        self.judged = Some((cpu_ns, run_ns));
        let earned_s = self.limit * elapsed_ns as f64 * 1e-9;
        self.judge(cpu_ns.saturating_sub(last_cpu_ns) as f64 * 1e-9, earned_s);
    }

    fn judge(&mut self, used_s: f64, earned_s: f64) {
        let (credit_s, most_s) = (CREDIT_S * self.limit, DEBT_S * self.limit);
        self.debt_s = (self.debt_s + used_s - earned_s).clamp(-credit_s, most_s);
        let used = used_s / earned_s.max(f64::MIN_POSITIVE);
        if used > 1.0 && self.debt_s > 0.0 {
            self.slowdown = (self.slowdown * used.clamp(1.1, 8.0)).min(SLOWEST);
        } else if used < 0.8 && self.debt_s < -0.5 * credit_s {
            self.slowdown = (self.slowdown * (used / 0.9).max(0.8)).max(1.0);
        }
    }

    /// How many times as rarely samples are taken as planned, and from a factor on bursts begun; at least 1.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.slowdown
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

    /// The limit, CPU s/s.
    #[must_use]
    pub fn limit(&self) -> f64 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Runs an agent that uses `fixed + varying / slowdown` CPU s/s for so long; returns it and what it used from the fifth second on, CPU s/s.
    fn agent(limit: f64, fixed: f64, varying: impl Fn(u64) -> f64, seconds: u64) -> (AgentLimit, f64) {
        let mut agent = AgentLimit::new(limit);
        let (mut cpu_s, mut since_s) = (0.3, 0.0);
        for tick in 1..=seconds * 10 {
            let second = tick / 10;
            cpu_s += 0.1 * (fixed + varying(second) / agent.slowdown());
            if tick == 50 {
                since_s = cpu_s;
            }
            agent.note((cpu_s * 1e9) as u64, tick * S / 10);
        }
        (agent, (cpu_s - since_s) / (seconds as f64 - 5.0))
    }

    #[test]
    fn an_agent_within_its_limit_is_as_fast_as_planned() {
        let (agent, used) = agent(0.02, 0.005, |_| 0.012, 60);
        assert!((agent.slowdown() - 1.0).abs() < 1e-12 && used < 0.02, "{agent:?}, {used}");
    }

    #[test]
    fn the_start_is_not_counted() {
        let (agent, _) = agent(0.02, 0.005, |second| if second < 5 { 0.5 } else { 0.01 }, 8);
        assert!((agent.slowdown() - 1.0).abs() < 1e-12, "{agent:?}");
    }

    #[test]
    fn a_target_that_keeps_32_cpus_busy_is_sampled_more_rarely() {
        let (agent, used) = agent(0.02, 0.005, |_| 0.12, 120);
        assert!(used < 0.021 && used > 0.015, "{used}");
        // 0.12 / 8 + 0.005 is the limit.
        assert!(agent.slowdown() > 7.0 && agent.slowdown() < 12.0, "{agent:?}");
    }

    #[test]
    fn it_is_fast_again_when_there_is_less_to_do() {
        let (agent, used) = agent(0.02, 0.005, |second| if second < 60 { 0.12 } else { 0.006 }, 120);
        assert!((agent.slowdown() - 1.0).abs() < 1e-12 && used < 0.02, "{agent:?}, {used}");
    }

    #[test]
    fn what_cannot_be_slowed_does_not_slow_it_without_end() {
        let (agent, _) = agent(0.02, 0.05, |_| 0.01, 120);
        assert!((agent.slowdown() - SLOWEST).abs() < 1e-12, "{agent:?}");
    }

    #[test]
    fn one_lump_of_work_is_paid_for_with_credit() {
        // 30 ms in one second, of 20 that are earned, after seconds of 5.
        let (agent, _) = agent(0.02, 0.005, |second| if second == 30 { 0.025 } else { 0.0 }, 60);
        assert!((agent.slowdown() - 1.0).abs() < 1e-12, "{agent:?}");
    }

    #[test]
    fn without_a_clock_nothing_is_slowed() {
        let mut agent = AgentLimit::new(0.02);
        (0..100).for_each(|second| agent.note(0, second * S));
        assert!((agent.slowdown() - 1.0).abs() < 1e-12);
    }
}
