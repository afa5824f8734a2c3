//! What the run has cost so far: the ledger, and what is told to it.

use super::input::{Ended, Interval};
use crate::burst::{FRESH_DELAY_NS, FRESH_NS};
use crate::class::ClassId;
use crate::cost::{CostModel, Price, Rests};
use crate::ledger::{InTraps, Ledger, Merger};
use crate::recording::{Charge, WindowKind};
use crate::run::agent_limit::AgentLimit;
use crate::run::threads::ThreadUse;
use crate::run::view::{ClassView, LinkView};

/// Time constant of the cost of attaching, ns.
const MISC_TIME_NS: f64 = 5e9;
/// Time for which a breakpoint outlives the trip while grace periods are short, ns: 0.36 ms (0.24 to 4.9; n = 7) on an idle
/// machine, 0.24 (0 to 0.35) on a busy one.
const EXPEDITED_DELAY_NS: f64 = 400_000.0;

/// Counters of a class when it was charged last, and when that was.
#[derive(Debug, Clone, Copy, Default)]
struct Charged {
    attempted: u64,
    ends: u64,
    bystanders: u64,
    at_ns: u64,
}

/// How often the target is switched.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Switches {
    /// Not yet charged.
    pub new: u64,
    /// Per second, at the last look.
    pub per_s: f64,
    /// Since when a program runs that was held before, ktime ns.
    pub since_ns: u64,
}

/// How the target rests.
#[derive(Debug, Default)]
struct Resting {
    /// Entries and ends of each class at the last look, and how many there are per second, smoothed.
    seen: Vec<((u64, u64), (f64, f64))>,
    /// What was told last.
    told: Rests,
}

/// Cost that comes in lumps: neither hits nor samples nor switches nor children.
#[derive(Debug, Clone, Copy, Default)]
struct Misc {
    /// Of the open interval, ns.
    ns: f64,
    /// Smoothed over some seconds, CPU s/s.
    cost: f64,
}

/// Where a charge of hits goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payer {
    /// The metric counts the class.
    Metric,
    /// The class stays attached while the overhead is compared.
    Staying,
    /// Neither.
    Other,
}

/// The ledger, and what has to be remembered between its intervals.
#[derive(Debug)]
pub struct Accounts {
    pub(super) ledger: Ledger,
    pub(super) merger: Merger,
    pub(super) prices: CostModel,
    charged: Vec<Charged>,
    /// `U`: CPU s per wall s that the target uses by itself, smoothed.
    pub(super) own_cpu: f64,
    pub(super) switches: Switches,
    resting: Resting,
    misc: Misc,
    foreign_samples: u64,
    /// End of the last interval, ktime ns; CPU time used by then, and what was charged, ns.
    pub(super) last_ns: u64,
    pub(super) last_cpu_ns: u64,
    last_charged_ns: f64,
    in_traps: InTraps,
    pub(super) agent: AgentLimit,
}

impl Accounts {
    /// An account that begins now. `cpu_ns`: what the target has used so far.
    pub(super) fn new(
        ledger: Ledger,
        prices: CostModel,
        now_ns: u64,
        cpu_ns: u64,
        agent: AgentLimit,
    ) -> Self {
        Self {
            ledger,
            merger: Merger::default(),
            prices,
            charged: Vec::new(),
            own_cpu: 0.0,
            switches: Switches::default(),
            resting: Resting::default(),
            misc: Misc::default(),
            foreign_samples: 0,
            last_ns: now_ns,
            last_cpu_ns: cpu_ns,
            last_charged_ns: 0.0,
            in_traps: InTraps::default(),
            agent,
        }
    }

    /// How the target rested since the last look, `elapsed_s` s ago, by its switches, what its threads used, and the hits of its classes. `None`: as before.
    pub(super) fn note_rests(
        &mut self,
        elapsed_s: f64,
        (switches, threads): (u64, &[ThreadUse]),
        cpus: u32,
    ) -> Option<Rests> {
        let Self { charged, resting, .. } = self;
        resting.seen.resize(charged.len(), ((0, 0), (0.0, 0.0)));
        let new = charged.iter().zip(&mut resting.seen).map(|(now, seen)| {
            let now = (now.attempted.saturating_sub(now.bystanders), now.ends);
            let (last, before) = *seen;
            // Over two looks: bursts come in one, and not in the next.
            let per_s = |now: u64, last: u64, before: f64| {
                f64::midpoint(before, now.saturating_sub(last) as f64 / elapsed_s)
            };
            let rate = (per_s(now.0, last.0, before.0), per_s(now.1, last.1, before.1));
            *seen = (now, rate);
            rate
        });
        let threads = threads.iter().map(|thread| (thread.cpu_per_s, thread.switches_per_s));
        let used = (self.own_cpu, cpus, switches as f64 / elapsed_s);
        let rests = Rests::of(&self.prices, used, threads, new);
        let is_news = rests.differs(&self.resting.told);
        is_news.then(|| {
            self.resting.told = rests;
            rests
        })
    }

    /// Hits of a class that have been charged.
    pub(super) fn attempted(&self, class: ClassId) -> u64 {
        self.charged.get(class.0 as usize).map_or(0, |charged| charged.attempted)
    }

    /// Charges what a class has been hit since the last time. `ended`: kind and start, ktime ns, of the window that has just ended, of
    /// which the class itself knows nothing any more. Returns the cost in ns and the hits, others' included.
    pub(super) fn charge_hits(
        &mut self,
        class: &ClassView,
        now_ns: u64,
        ended: Option<(WindowKind, u64)>,
        surveying: bool,
        payer: Payer,
    ) -> (f64, u64) {
        let index = class.id.0 as usize;
        if self.charged.len() <= index {
            self.charged.resize(index + 1, Charged::default());
        }
        let now = Charged {
            attempted: class.attempted,
            ends: class.ends,
            bystanders: class.bystanders,
            at_ns: now_ns,
        };
        let last = std::mem::replace(&mut self.charged[index], now);
        let new = now.attempted.wrapping_sub(last.attempted);
        let ends = now.ends.wrapping_sub(last.ends);
        let others = now.bystanders.wrapping_sub(last.bystanders);
        let window = match class.link {
            LinkView::Open(kind) | LinkView::Closing(kind) => Some((kind, class.start_ns)),
            LinkView::Off | LinkView::Waiting | LinkView::Opening => ended,
        };
        let charge = match window.map(|w| w.0) {
            _ if payer == Payer::Metric => Charge::Progress,
            Some(WindowKind::Survey) => Charge::Survey,
            Some(WindowKind::Burst) => Charge::Burst,
            // The last hits of a window that has just ended belong to the phase that we are in.
            Some(WindowKind::Trace) => Charge::Traced,
            None if surveying => Charge::Survey,
            None => Charge::Traced,
        };
        let own = new.saturating_sub(others);
        let since_ns = last.at_ns.max(window.map_or(last.at_ns, |w| w.1));
        let elapsed_s = now_ns.saturating_sub(since_ns) as f64 * 1e-9;
        let cold_ns = class.prices.cold_ns(self.own_cpu * elapsed_s / own as f64);
        let cost_ns = own as f64 * class.prices.hit.ns
            + ends as f64 * class.prices.exit.ns
            + own.saturating_add(ends) as f64 * cold_ns;
        if payer == Payer::Staying {
            self.ledger.charge_staying(charge, class.id, own, cost_ns);
        } else {
            self.ledger.charge(charge, Some(class.id), own, cost_ns);
        }
        let bystanders_ns = others as f64 * class.prices.hit.ns;
        self.ledger.charge(Charge::Bystanders, Some(class.id), others, bystanders_ns);
        (cost_ns, new)
    }

    /// The breakpoint outlives the program: until the kernel has taken it out of the text, calls pay the trap and nobody
    /// counts them. They are taken to pay what they paid in the window:
    ///
    /// `cost = max(kept / window, hits / watched) x tau x delay`
    ///
    /// Hits that were turned away after the quota was used up are among them, so they are held against the time until the program was off
    /// ([`paid_ns`]).
    ///
    /// The delay is a grace period of the kernel's `dup_mmap_sem`, which is not waited for again shortly after an attach
    /// (kernel/rcu/sync.c): a class that is hot from the start is off within 0.1 ms. It is short where the governor made it so
    /// ([`tail_ns`]).
    pub(super) fn charge_tail(&mut self, ended: &Ended, cpus: u32, surveying: bool) {
        let row = &ended.row;
        let paid_ns = paid_ns(row.start_ns, row.end_ns, ended.watched_ns);
        let delay_ns = tail_ns(ended.age_ns, ended.expedited, self.prices.detach_delay.ns);
        // Between the end and the going of the links the target may not have run: those who take them off are real-time threads.
        let in_window = row.kept as f64 / row.end_ns.saturating_sub(row.start_ns).max(1) as f64;
        let busy = ended.class.prices.hit.ns * in_window.max(row.attempted as f64 / paid_ns as f64);
        let cost_ns = busy.min(f64::from(cpus)) * delay_ns;
        self.ledger.charge(Charge::Attach, Some(ended.class.id), 0, cost_ns);
        self.note_recurring(cost_ns, surveying);
    }

    /// A cost that is to be expected again: not that of a survey, which ends.
    fn note_recurring(&mut self, cost_ns: f64, surveying: bool) {
        if !surveying {
            self.misc.ns += cost_ns;
        }
    }

    /// Charges samples, switches and links of an interval. `sample`: price of a sample. Returns what samples of the target cost, ns.
    pub(super) fn charge_interval(&mut self, seen: &Interval, sample: Price, surveying: bool) -> f64 {
        let factor = self.ledger.factor();
        self.ledger.charge_units(Charge::Samples, None, seen.samples, sample);
        let switches = std::mem::take(&mut self.switches.new);
        self.ledger.charge_units(Charge::Switches, None, switches, self.prices.switch);
        // Events per CPU interrupt whatever runs there.
        let foreign = seen.foreign_samples.saturating_sub(self.foreign_samples);
        self.foreign_samples = seen.foreign_samples;
        self.ledger.charge_units(Charge::Bystanders, None, foreign, sample);
        self.ledger.charge_units(Charge::Attach, None, seen.links, self.prices.attach);
        self.note_recurring(seen.links as f64 * self.prices.attach.ns, surveying);
        // Links made for a plan say nothing about what is to come.
        self.ledger.charge_units(Charge::Attach, None, seen.links_once, self.prices.attach);
        seen.samples as f64 * sample.ns * factor
    }

    /// Prices of hits follow the samples in traps, of which there were `seen` among `samples` in `used_ns` of CPU time. Returns the new factor if there is one.
    pub(super) fn compare_with_samples(&mut self, seen: u64, samples: u64, used_ns: u64) -> Option<f64> {
        let charged_ns = self.ledger.take_hits_ns();
        let factor = self.in_traps.note(charged_ns, used_ns as f64, (samples, seen))?;
        self.ledger.set_trap_factor(factor);
        Some(factor)
    }

    /// Smooths what recurs beside hits, samples, switches and children: links that are made anew after forks. It comes
    /// in lumps, so that a single one must not look like a flood.
    pub(super) fn note_misc(&mut self, elapsed_ns: u64) {
        let cost = std::mem::take(&mut self.misc.ns) / elapsed_ns.max(1) as f64;
        let weight = 1.0 - (-(elapsed_ns as f64) / MISC_TIME_NS).exp();
        self.misc.cost += weight * (cost - self.misc.cost);
    }

    /// What recurs beside hits, samples, switches and children, smoothed, CPU s/s.
    pub(super) fn misc_cost(&self) -> f64 {
        self.misc.cost
    }

    /// What was charged since the last call, ns.
    pub(super) fn take_spent_ns(&mut self) -> f64 {
        let charged_ns = self.ledger.charged_ns();
        charged_ns - std::mem::replace(&mut self.last_charged_ns, charged_ns)
    }

    /// Smooths `U` over about two seconds. `used_ns` of CPU time in `elapsed_ns`, monitoring included.
    pub(super) fn note_cpu(&mut self, elapsed_ns: u64, used_ns: u64) {
        let charged = self.ledger.predicted();
        let own = used_ns as f64 / elapsed_ns.max(1) as f64 / (1.0 + charged);
        let weight = (elapsed_ns as f64 * 1e-9 / 2.0).min(1.0);
        self.own_cpu = if self.own_cpu == 0.0 { own } else { self.own_cpu + weight * (own - self.own_cpu) };
    }
}

/// For how long the hits of a window came, those that were turned away after its end too, ns: until its links began to go. At least 1.
fn paid_ns(start_ns: u64, end_ns: u64, watched_ns: u64) -> u64 {
    let watched = watched_ns.saturating_sub(start_ns);
    // One that saw nothing has no length, its links had.
    if end_ns > start_ns { watched.max(end_ns - start_ns) } else { watched.max(FRESH_NS) }
}

/// For how long calls pay a breakpoint after its link was closed, ns: it was attached `age_ns` before, however short its window was, and a
/// grace period of the kernel takes `grace_ns` where it is not made short.
fn tail_ns(age_ns: u64, expedited: bool, grace_ns: f64) -> f64 {
    match (expedited, age_ns < FRESH_NS) {
        (true, _) => EXPEDITED_DELAY_NS,
        (false, true) => FRESH_DELAY_NS,
        (false, false) => grace_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_of_a_window_came_until_its_links_went() {
        // A quota of 8 was used up after 41 us; 623 more hits were turned away in the 3 ms until the program was off.
        assert_eq!(paid_ns(1_000_000, 1_041_000, 4_041_000), 3_041_000);
        // One piece of a long window, whose links go at its end or were released before it.
        assert_eq!(paid_ns(1_000_000, 9_000_000, 9_000_000), 8_000_000);
        assert_eq!(paid_ns(1_000_000, 9_000_000, 500_000), 8_000_000);
        assert_eq!(paid_ns(1_000_000, 1_000_000, 1_000_000), FRESH_NS);
    }

    #[test]
    fn calls_pay_for_as_long_as_the_grace_period_takes() {
        assert_eq!(tail_ns(FRESH_NS, false, 17e6), 17e6);
        assert_eq!(tail_ns(FRESH_NS, true, 17e6), EXPEDITED_DELAY_NS);
        assert_eq!(tail_ns(FRESH_NS - 1, false, 17e6), FRESH_DELAY_NS);
    }
}
