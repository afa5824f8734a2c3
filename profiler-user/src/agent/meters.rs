//! Clocks and counters: what an interval of the ledger was like, who of the threads used what, which records were lost.

use super::Agent;
use super::attach::TargetId;
use super::class::LinkState;
use super::clock::now_ns;
use super::host::{agent_cpu_ns, helpers_cpu_ns};
use super::metric::{Metric, hits};
use crate::prober::{ClassCounters, GlobalCounters};
use crate::target::{SwitchMeter, Target};
use profiler_core::class::{ClassId, ExitMode};
use profiler_core::clients::overhead::{Mark, Reading, Wanted};
use profiler_core::engine::input::{Counted, Interval, SlowLook, ThreadHits};
use profiler_core::engine::{CountWanted, Input, WantedThreads};
use profiler_core::losses::LossWatch;
use profiler_core::recording::Losses;
use profiler_core::run::agent_limit::FROM_NS;
use profiler_core::run::threads::ThreadUse;
use std::collections::VecDeque;

/// A reading of CPU time and progress that took longer was interrupted and is taken again, ns of target CPU time.
const TORN_NS: u64 = 20_000;

/// What is read time and again.
pub(super) struct Meters {
    switches: Option<SwitchMeter>,
    /// When switches were counted last, ktime ns.
    counted_ns: u64,
    losses: LossWatch,
    /// Something came that the slow looks wait for.
    pub(super) look_now: bool,
    /// What counts the target's work, while the overhead is measured.
    pub(super) metric: Option<Metric>,
}

impl Meters {
    /// Meters that start now.
    pub fn new(target: &Target, now_ns: u64) -> Self {
        Self {
            switches: SwitchMeter::new(target).ok(),
            counted_ns: now_ns,
            losses: LossWatch::default(),
            look_now: false,
            metric: None,
        }
    }

    /// Switches so far say nothing of the run: it begins now.
    pub fn begin(&mut self, target: &Target) {
        // A target that cannot be read now is told of at the next look.
        let _ = self.switches.as_mut().map(|meter| meter.advance(target));
        self.counted_ns = now_ns();
    }

    /// A slow look took so long, ns: it may be a part of the look after lost births.
    pub fn look_took(&mut self, ns: u64) {
        self.losses.turn_took(ns);
    }
}

/// Copies what the kernel side counted.
fn note(global: &GlobalCounters, losses: &mut Losses) {
    losses.samples_ring_full = global.samples_dropped;
    losses.samples_no_stack = global.samples_no_stack;
    losses.samples_short_stack = global.samples_short_stack;
    losses.no_thread_state = global.no_thread_state;
    losses.alarms_dropped = global.alarms_dropped;
    losses.lifecycle_dropped = global.lifecycle_dropped.wrapping_add(global.lifecycle_unread);
    losses.takings_dropped = global.takings_dropped;
}

impl Agent {
    /// What the interval of the ledger that ends was like. `pids`: the children that are looked at.
    pub(super) fn read_interval(&mut self, pids: &[u32], told: &mut VecDeque<Input>) -> Interval {
        let cpu_ns = self.attach.target_mut(TargetId::FIRST).cpu_ns();
        let global = self.attach.kernel().classes().global_counters();
        self.note_kernel_losses(&global, pids, told);
        self.sampling.flush(&self.journal.writer);
        let target = self.attach.target_mut(TargetId::FIRST);
        let (links, links_once) = (target.take_link_changes(), target.take_links_once());
        Interval {
            cpu_ns,
            agent_cpu_ns: self.note_agent_use(),
            samples: self.sampling.take_uncharged(),
            in_traps: self.sampling.take_in_traps(),
            foreign_samples: global.samples_other,
            links,
            links_once,
            children: self.processes.look(pids.iter().copied(), self.attach.busy()),
            probed: self.meters.metric.as_ref().and_then(Metric::kernel_probe).map(hits),
        }
    }

    /// CPU time that the agent has used so far, ns.
    fn note_agent_use(&mut self) -> u64 {
        let meta = &mut self.journal.meta;
        let used_ns = agent_cpu_ns(helpers_cpu_ns());
        // The last interval is read after the end.
        if meta.agent.until_end_ns.is_none() && now_ns().saturating_sub(meta.start_ns) >= FROM_NS {
            meta.agent.until_limit_ns.get_or_insert(used_ns);
        }
        used_ns
    }

    /// Ten times a second and at the end, after the rings were drained. While losses last, processes are looked at less often.
    pub(super) fn note_kernel_losses(
        &mut self,
        global: &GlobalCounters,
        known: &[u32],
        told: &mut VecDeque<Input>,
    ) {
        note(global, &mut self.journal.meta.losses);
        let begun = now_ns();
        let look = self.meters.losses.look(&self.journal.meta.losses, begun);
        if look.processes {
            self.journal.detail("births or deaths were lost: threads and children are looked for again");
            // Threads and modules, in this turn.
            self.meters.look_now = true;
            told.push_back(Input::Lost(self.find_lost_children(known)));
            self.meters.losses.took(now_ns().saturating_sub(begun));
        }
        if look.quotas {
            self.trip_unheard();
        }
    }

    /// The next look at what was lost comes at once: the run ends.
    pub(super) fn end_loss_pause(&mut self) {
        self.meters.losses.end_pause();
    }

    /// Alarms were lost. They repeat while a class is hit, but one that is hit rarely would pay for long.
    fn trip_unheard(&mut self) {
        let table = self.attach.kernel().classes();
        let used_up: Vec<u32> = self
            .attach
            .classes()
            .iter()
            .filter(|c| matches!(&c.state, LinkState::Open(window) if window.quota > 0))
            .filter(|c| {
                let ends = c.exit == ExitMode::ReturnSites && table.remaining_ends_quota(c.id) <= 0;
                ends || table.remaining_quota(c.id) <= 0
            })
            .map(|c| c.id.0)
            .collect();
        self.journal
            .detail(&format!("alarms were lost: the quotas of {} functions are used up", used_up.len()));
        self.attach.governor().trip_unheard(used_up);
    }

    /// Threads that are alive, and what they used since the last look.
    pub(super) fn look_at_threads(&mut self) -> SlowLook {
        let tids = self.target.threads().ok();
        if let Some(tids) = &tids {
            self.sampling.events.keep_threads(tids);
        }
        let tids: Option<Vec<u32>> =
            tids.map(|tids| tids.iter().filter_map(|tid| u32::try_from(*tid).ok()).collect());
        let now = now_ns();
        let elapsed_ns = now.saturating_sub(self.meters.counted_ns);
        let Meters { switches, counted_ns, .. } = &mut self.meters;
        let counted = switches.as_mut().and_then(|meter| meter.advance(&self.target).ok());
        let mut uses = Vec::new();
        if counted.is_some() {
            *counted_ns = now;
            let used = |tid: &u32| {
                let used = switches.as_ref()?.use_of(*tid)?;
                Some(ThreadUse { tid: *tid, cpu_per_s: used.cpu_per_s, switches_per_s: used.switches_per_s })
            };
            uses = tids.iter().flatten().filter_map(used).collect();
        }
        SlowLook { tids, switches: counted.map(|n| (n, elapsed_ns)), uses }
    }

    /// Hits by thread.
    pub(super) fn read_thread_hits(&self, wanted: WantedThreads) -> ThreadHits {
        let table = self.attach.kernel().classes();
        let WantedThreads { tids, classes } = wanted;
        let pairs = classes.iter().flat_map(|class| tids.iter().map(move |tid| (*tid, *class)));
        let counts = pairs.map(|(tid, class)| table.thread_hits(tid, class).1).collect();
        ThreadHits { classes, counts }
    }

    /// What the comparison asked for. `None`: the target is ending.
    pub(super) fn read_reading(&self, wanted: Wanted) -> Option<Reading> {
        let metric = self.meters.metric.as_ref()?;
        match wanted {
            Wanted::Nothing | Wanted::View => None,
            Wanted::Mark => self.mark(metric).map(Reading::Mark),
            Wanted::Counts => {
                let cpu_ns = self.target.cpu_time_ns().ok()?;
                let counts = match metric {
                    Metric::Syscall(probe, None) => probe.counts(),
                    metric => metric.read(self.attach.kernel()).into_iter().collect(),
                };
                Some(Reading::Counts { cpu_ns, counts })
            }
        }
    }

    /// CPU time and progress at one moment. `None`: the target is ending.
    fn mark(&self, metric: &Metric) -> Option<Mark> {
        let mut mark = None;
        for _ in 0..4 {
            let before = self.target.cpu_time_ns().ok()?;
            let progress = metric.read(self.attach.kernel())?;
            let after = self.target.cpu_time_ns().ok()?;
            mark = Some(Mark { progress, cpu_ns: u64::midpoint(before, after), time_ns: now_ns() });
            if after - before <= TORN_NS {
                break;
            }
        }
        mark
    }

    /// What counting the metric needs. `classes`: those whose quotas' hits are asked for.
    pub(super) fn read_count(&self, wanted: CountWanted, classes: &[ClassId]) -> Counted {
        let Some(metric) = &self.meters.metric else { return Counted::default() };
        let table = self.attach.kernel().classes();
        let probe = metric.kernel_probe().filter(|_| wanted.probe);
        let refused = |id: &ClassId| Some((*id, self.attach.class(*id).refused.clone()?));
        Counted {
            probed: probe.map(|probe| probe.counts().iter().sum()),
            admitted: classes.iter().map(|id| (*id, admitted(&table.counters(*id)))).collect(),
            refused: metric.classes().iter().filter_map(refused).collect(),
        }
    }
}

/// Hits of a class that its quotas have let in so far.
fn admitted(counters: &ClassCounters) -> u64 {
    // The quota comes before the question whose hit it is.
    counters.kept.wrapping_add(counters.dropped).wrapping_add(counters.bystanders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_gate_turned_away_took_no_quota() {
        let counters =
            ClassCounters { kept: 5_990, dropped: 8, bystanders: 2, gated: 700, ..Default::default() };
        assert_eq!(admitted(&counters), 6_000);
    }
}
