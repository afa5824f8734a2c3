//! What the agent may use of a CPU, and how far it slows down to keep to that.
//!
//! The budget is what the *target* may lose. The agent runs beside it, on CPUs that the target could use: it has a limit of its own
//! (`--agent-cpu`). What it can do less of is sampling and bursts; breaker and watchdog have threads of their own and wait for nothing.
//!
//! ```text
//! m: mean use of the seconds since the last change, ten at most, without the largest; n: the larger of m and the smaller of the last two seconds
//! 2 s after a change:
//!     m > limit:               slow := slow k,  k = clamp((n - base) / (aim limit - base), 1.1, 16);   on trial:
//!         where m fell by less than 0.3 of what k >= 1.5 would bring, were all of it bursts (1 - 1 / sqrt k), and still does after 5 s:
//!                                                                                             slow := slow / k, and no slower for a minute
//!         but where m then rises by more than 0.3 of that:                                    slow := slow k
//!     m < (aim - 0.1) limit, slow > 1: slow := slow max(0.25, m / (aim limit))
//!     10 s that bring no change, slow > 1, and m <= limit, or nothing may be slower:  slow := 0.7 slow, once a minute;   on trial for 5 s:
//!         where m rose by less than 0.3 of what that would bring:  it goes on at once, above the limit where base is, too
//! ```
//! aim = 0.9. While more was used since the limit began to hold than it allows (up to 4 s of it), aim = 0.75, and m > 0.85 limit is too much: a short run keeps to
//! it on average, too.
//! What would do, were nothing slowed:  base + (m - base) slow,  where base, what slowing does not lessen, follows from what the last step brought.
//! Until one did, steps are chosen for a base of 0.4 limit: a step for none leaves the agent above its limit, and each takes seconds.
//!
//! Several seconds and not the largest, because the agent's work comes in lumps (a block of the recording is packed, a library is read), which samples have no part
//! in; and what slowing does not mend is not sampling. Small steps are judged together. A load that comes while something is on trial is not what slowing failed to
//! mend: undoing it is judged, too.
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
/// Steps aim at this part of the limit, and at the second while more was used since the limit began to hold than it allows.
const AIM: f64 = 0.9;
const AIM_IN_DEBT: f64 = 0.75;
/// Then it is slowed above this part of it, too.
const OVER_IN_DEBT: f64 = 0.85;
/// What was used too much counts as so many seconds of the limit at most: a library that was read is forgotten.
const MOST_DEBT_S: f64 = 4.0;
/// ... with a base of this part of it before one was seen, and of that one at most.
const ASSUMED_BASE: f64 = 0.4;
const LARGEST_BASE: f64 = 0.6;
/// Largest step.
const STEP: f64 = 16.0;
/// Nothing is slowed further: what is left is not sampling.
const SLOWEST: f64 = 64.0;
/// It is tried whether it could be faster, where it is slow and within the limit.
const FASTER: f64 = 0.7;
/// A share of a CPU, CPU s/s, as --agent-cpu reads it: in tenths of a percent, upwards.
#[must_use]
pub fn percent_up(share: f64) -> String {
    format!("{:.1}%", (share * 1000.0 - 1e-6).ceil() / 10.0)
}

/// More than this many times the limit is told.
const OVER: f64 = 1.1;

/// A change whose effect is looked at; `before`: CPU s/s that were used.
#[derive(Debug, Clone, Copy)]
enum Trial {
    Slower { factor: f64, before: f64 },
    Faster { before: f64 },
}

/// Use changed by `change`, and would have by `of`, were all of it sampling: enough of it is.
fn brought(change: f64, of: f64) -> bool {
    change >= BROUGHT * of
}

/// What the agent used, CPU s/s, where it was more than it may.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overshoot {
    /// Since the limit began to hold.
    pub used: f64,
    /// By now it keeps to the limit.
    pub is_mended: bool,
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
    /// By what factor it was slowed in vain, and what it used then, CPU s/s.
    undone: Option<(f64, f64)>,
    /// For so many judgements it is not slowed, and it is not tried whether it could be faster.
    hold: u32,
    patience: u32,
    slowdown: f64,
    /// See [`AgentLimit::bound`].
    most: f64,
    /// What slowing does not lessen, CPU s/s, as far as steps have shown it.
    base: Option<f64>,
    /// See [`AgentLimit::would_do`].
    wanted: f64,
    /// CPU time of the agent when the limit began to hold, ns, and when that was.
    since: Option<(u64, u64)>,
    /// What was used beyond the limit and not made up for, CPU s.
    debt_s: f64,
    cut: f64,
    bursts_cut: f64,
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
            undone: None,
            hold: 0,
            patience: 0,
            slowdown: 1.0,
            most: SLOWEST,
            base: None,
            wanted: limit,
            since: None,
            debt_s: 0.0,
            cut: 0.0,
            bursts_cut: 0.0,
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
        let used = cpu_ns.saturating_sub(last_cpu_ns) as f64;
        let over_s = (used - self.limit * elapsed_ns as f64) * 1e-9;
        self.debt_s = (self.debt_s + over_s).clamp(0.0, MOST_DEBT_S * self.limit);
        self.judge(used / elapsed_ns as f64);
    }

    /// `used`: CPU s/s since the last judgement.
    fn judge(&mut self, used: f64) {
        self.hold = self.hold.saturating_sub(1);
        self.patience = self.patience.saturating_sub(1);
        if self.uses.len() == LOOK_BACK {
            self.uses.pop_front();
        }
        self.uses.push_back(used);
        let needed = if matches!(self.trial, Some(Trial::Faster { .. })) { TRIAL } else { LEAST };
        if self.uses.len() < needed {
            return;
        }
        let largest = self.uses.iter().copied().fold(0.0, f64::max);
        let mean = (self.uses.iter().sum::<f64>() - largest) / (self.uses.len() - 1) as f64;
        let now = self.uses.iter().rev().take(2).copied().fold(f64::INFINITY, f64::min);
        self.learn_need(mean, mean.max(now));
        let Some(change) = self.change(mean, mean.max(now)) else { return };
        self.slowdown = (self.slowdown * change).max(1.0);
        self.uses.clear();
    }

    /// What would be used at full speed, at a use of `mean` of late and a need of `need`, CPU s/s.
    fn learn_need(&mut self, mean: f64, need: f64) {
        if let Some(Trial::Slower { factor, before }) = self.trial
            && factor >= SMALL_STEP
        {
            let varying = (before - mean) / (1.0 - 1.0 / factor);
            self.base = Some((before - varying).clamp(0.0, mean));
        }
        let base = self.base.unwrap_or(0.0).min(mean);
        let at_full_speed = if self.slowdown <= 1.0 { need } else { base + (mean - base) * self.slowdown };
        self.wanted = self.wanted.max(at_full_speed);
    }

    /// By what factor it is to be slower, if it is, at a use of `mean` of late and a need of `need`, CPU s/s.
    fn change(&mut self, mean: f64, need: f64) -> Option<f64> {
        let is_over = mean > if self.debt_s > 0.0 { OVER_IN_DEBT } else { 1.0 } * self.limit;
        if let Some(Trial::Slower { factor, before }) = self.trial
            && is_over
            && factor >= SMALL_STEP
            && self.uses.len() < TRIAL
            && !brought(before - mean, before * (1.0 - 1.0 / factor.sqrt()))
        {
            // Lumps may hide what it brought.
            return None;
        }
        let carried = self.trial.take();
        match carried {
            Some(Trial::Slower { factor, before })
                if mean > self.limit
                    && factor >= SMALL_STEP
                    && !brought(before - mean, before * (1.0 - 1.0 / factor.sqrt())) =>
            {
                self.hold = HOLD;
                self.undone = Some((factor, mean));
                return Some(1.0 / factor);
            }
            Some(Trial::Faster { before }) if !brought(mean - before, before * (1.0 / FASTER - 1.0)) => {
                self.patience = 0;
                let is_in_vain = mean > self.limit && self.base.is_some_and(|base| base > self.limit);
                if is_in_vain && self.slowdown > 1.0 {
                    // Being slow was no help: slower again would be none either.
                    self.trial = Some(Trial::Faster { before: mean });
                    return Some(FASTER);
                }
            }
            _ => {}
        }
        if is_over
            && let Some((factor, slow)) = self.undone
            && brought(mean - slow, slow * (factor - 1.0))
        {
            (self.hold, self.undone) = (0, None);
        }
        let room = self.most / self.slowdown;
        if is_over && self.hold == 0 && room > 1.0 {
            let factor = self.step(need).min(room);
            self.trial = Some(match carried {
                Some(Trial::Slower { factor: small, before }) if small < SMALL_STEP => {
                    Trial::Slower { factor: small * factor, before }
                }
                _ => Trial::Slower { factor, before: need },
            });
            return Some(factor);
        }
        if self.slowdown <= 1.0 {
            return None;
        }
        if mean < (self.aim() - 0.1) * self.limit {
            return Some((mean / (self.aim() * self.limit)).max(0.25));
        }
        let may_be_tried = self.uses.len() == LOOK_BACK && self.patience == 0;
        may_be_tried.then(|| {
            self.patience = HOLD;
            self.trial = Some(Trial::Faster { before: mean });
            FASTER
        })
    }

    /// By what factor to be slower at a need of `need`, CPU s/s, so that it uses [its aim](Self::aim) of the limit.
    fn step(&self, need: f64) -> f64 {
        let base = self.base.unwrap_or(ASSUMED_BASE * self.limit).min(LARGEST_BASE * self.limit);
        ((need - base) / (self.aim() * self.limit - base)).clamp(1.1, STEP)
    }

    /// The part of the limit that it is to use.
    fn aim(&self) -> f64 {
        if self.debt_s > 0.0 { AIM_IN_DEBT } else { AIM }
    }

    /// What the agent may use, CPU s/s.
    #[must_use]
    pub fn limit(&self) -> f64 {
        self.limit
    }

    /// A limit that would do, CPU s/s: what the agent would have used at full speed, in the seconds in which that was most.
    #[must_use]
    pub fn would_do(&self) -> f64 {
        self.wanted
    }

    /// How many times as rarely samples are taken as planned, at least 1; bursts begin by its root more rarely, at most 8 times.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }

    /// It cannot be slowed further than `most` times: samples have a longest period.
    pub fn bound(&mut self, most: f64) {
        let most = most.clamp(1.0, SLOWEST);
        if (most / self.most - 1.0).abs() > 0.1 {
            // Another plan: what was on trial was the last one's.
            (self.trial, self.undone) = (None, None);
            self.uses.clear();
        }
        self.most = most;
        self.slowdown = self.slowdown.min(most);
    }

    /// What it used, where that is more than it may.
    #[must_use]
    pub fn overshoot(&self) -> Option<Overshoot> {
        /// Less says nothing, ns.
        const LEAST_NS: u64 = 10_000_000_000;
        let ((from_cpu_ns, from_ns), (cpu_ns, ns)) = (self.since?, self.judged?);
        let used = cpu_ns.saturating_sub(from_cpu_ns) as f64 / ns.saturating_sub(from_ns).max(1) as f64;
        let of_late = self.uses.iter().sum::<f64>() / self.uses.len().max(1) as f64;
        let is_mended = of_late <= OVER * self.limit;
        (ns - from_ns >= LEAST_NS && used > OVER * self.limit).then_some(Overshoot { used, is_mended })
    }

    /// So many samples and bursts were not taken for the limit's sake.
    pub fn cut(&mut self, samples: f64, bursts: f64) {
        self.cut += samples.max(0.0);
        self.bursts_cut += bursts.max(0.0);
    }

    /// Samples that were planned and not taken for the limit's sake.
    #[must_use]
    pub fn samples_cut(&self) -> u64 {
        // OK because a float beyond the type's range becomes its end.
        self.cut.round() as u64
    }

    /// Bursts, likewise.
    #[must_use]
    pub fn bursts_cut(&self) -> u64 {
        // OK because a float beyond the type's range becomes its end.
        self.bursts_cut.round() as u64
    }
}

#[cfg(test)]
mod tests;
