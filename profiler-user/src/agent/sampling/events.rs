//! The events that take samples: one per thread, or one per CPU; their period, and when they rest.

use crate::prober::{SampleEvent, Sampler, ThreadSampling};
use std::collections::{HashMap, HashSet};

/// What carries the sampling events.
enum Events {
    /// One event per thread: the target pays some hundred ns more per context switch, nobody else anything.
    Threads,
    /// One event per CPU, filtered by process: whatever runs there pays for the samples, nobody for switches.
    /// Held for their drop, which ends them.
    Cpus(#[expect(dead_code, reason = "held for their drop")] Vec<SampleEvent>),
}

/// The events of a run.
pub struct SamplingEvents {
    mode: Events,
    sampler: Sampler,
    cpus: u32,
    events: ThreadSampling,
    /// Threads that have an event.
    sampled: HashSet<u32>,
    /// Threads that could not be sampled: why, for the receipt.
    failed: HashMap<u32, String>,
    period_ns: u64,
    first_period_ns: u64,
    off_for_good: bool,
    paused: bool,
    sampled_time: SampledTime,
}

/// CPU time of the target while samples were taken.
#[derive(Debug, Default)]
struct SampledTime {
    /// Of the target so far, ns.
    cpu_ns: u64,
    is_sampled: bool,
    /// Of that, while it was sampled, ns.
    sampled_ns: u64,
}

impl SamplingEvents {
    /// Events that are switched off until [`SamplingEvents::set_period`].
    #[must_use]
    pub fn new(events: ThreadSampling, sampler: Sampler, cpus: u32) -> Self {
        Self {
            mode: Events::Threads,
            sampler,
            cpus,
            events,
            sampled: HashSet::new(),
            failed: HashMap::new(),
            period_ns: 0,
            first_period_ns: 0,
            off_for_good: false,
            paused: false,
            sampled_time: SampledTime::default(),
        }
    }

    /// Adds the target's CPU time since the last call, if it was sampled: to be called before and after samples are switched on or off. Returns
    /// what it used while it was sampled, ns.
    pub fn account(&mut self, target_cpu_ns: u64) -> u64 {
        let is_sampled = self.period_ns > 0 && !self.paused;
        let time = &mut self.sampled_time;
        if time.is_sampled {
            time.sampled_ns += target_cpu_ns.saturating_sub(time.cpu_ns);
        }
        (time.cpu_ns, time.is_sampled) = (target_cpu_ns, is_sampled);
        time.sampled_ns
    }

    /// Samples per second of target CPU time; 0 while off.
    #[must_use]
    pub fn rate_hz(&self) -> f64 {
        if self.period_ns == 0 { 0.0 } else { 1e9 / self.period_ns as f64 }
    }

    /// Changes the period of every thread; 0 ends sampling.
    pub fn set_period(&mut self, period_ns: u64) {
        if period_ns == self.period_ns || self.off_for_good {
            return;
        }
        if self.first_period_ns == 0 {
            self.first_period_ns = period_ns;
        }
        self.period_ns = period_ns;
        if period_ns == 0 {
            self.events.stop();
            self.sampled.clear();
        }
        if matches!(self.mode, Events::Cpus(_)) {
            // The common period is what samples state, in either mode.
            if period_ns > 0 && self.events.set_period(period_ns).is_err() {
                self.period_ns = self.events.period_ns();
            }
            self.open_cpus();
        } else if period_ns == 0 {
            // Stopped above.
        } else if let Err(error) = self.events.set_period(period_ns) {
            // OK to go on at the old period: the plan never asks for one that is too short.
            debug_assert!(false, "{error}");
            self.period_ns = self.events.period_ns();
        }
    }

    /// Goes over from one event per thread to one per CPU, for good.
    ///
    /// # Errors
    /// The kernel refuses; nothing is changed then.
    pub fn use_cpus(&mut self) -> Result<(), String> {
        if self.period_ns > 0 {
            self.sampler.open_cpu(0, self.period_ns).map_err(|e| e.to_string())?;
        }
        for tid in self.sampled.drain() {
            self.events.remove(tid);
        }
        self.mode = Events::Cpus(Vec::new());
        self.open_cpus();
        Ok(())
    }

    /// One event per CPU rather than per thread.
    #[must_use]
    pub fn is_per_cpu(&self) -> bool {
        matches!(self.mode, Events::Cpus(_))
    }

    fn open_cpus(&mut self) {
        let mut events = Vec::new();
        if self.period_ns > 0 {
            for cpu in 0..self.cpus {
                match self.sampler.open_cpu(cpu, self.period_ns) {
                    Ok(event) => events.push(event),
                    Err(error) => drop(self.failed.insert(u32::MAX - cpu, error.to_string())),
                }
            }
        }
        self.mode = Events::Cpus(events);
    }

    /// No samples until [`SamplingEvents::resume`].
    pub fn pause(&mut self) {
        self.paused = true;
        self.events.set_enabled(false);
        if self.is_per_cpu() {
            self.mode = Events::Cpus(Vec::new());
        }
    }

    /// Goes on after [`SamplingEvents::pause`].
    pub fn resume(&mut self) {
        self.paused = false;
        self.events.set_enabled(true);
        if self.is_per_cpu() {
            self.open_cpus();
        }
    }

    /// Takes a thread under observation.
    pub fn add_thread(&mut self, tid: u32) {
        let known = self.sampled.contains(&tid) || self.failed.contains_key(&tid);
        if self.period_ns == 0 || self.paused || self.is_per_cpu() || known {
            return;
        }
        match self.events.add(tid) {
            Ok(()) => drop(self.sampled.insert(tid)),
            Err(error) if error.thread_gone() => {}
            Err(error) => drop(self.failed.insert(tid, error.to_string())),
        }
    }

    /// A thread has ended.
    pub fn remove_thread(&mut self, tid: u32) {
        self.events.remove(tid);
        self.sampled.remove(&tid);
        self.failed.remove(&tid);
    }

    /// Takes all of these threads under observation and lets go of those that are not among them.
    pub fn keep_threads(&mut self, tids: &[i32]) {
        let alive: HashSet<u32> = tids.iter().filter_map(|t| u32::try_from(*t).ok()).collect();
        for gone in self.sampled.extract_if(|tid| !alive.contains(tid)) {
            self.events.remove(gone);
        }
        self.failed.retain(|tid, _| alive.contains(tid));
        for tid in alive {
            self.add_thread(tid);
        }
    }

    /// Threads under observation.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.sampled.len()
    }

    /// One reason why threads could not be sampled, and how many.
    #[must_use]
    pub fn failures(&self) -> Option<(usize, &str)> {
        self.failed.values().next().map(|why| (self.failed.len(), why.as_str()))
    }

    /// Switched off by the user, not by the plan.
    #[must_use]
    pub fn is_off_for_good(&self) -> bool {
        self.off_for_good
    }

    /// No sampling in this run.
    pub fn switch_off_for_good(&mut self) {
        self.off_for_good = true;
        self.events.stop();
    }

    /// The longest period that was in force, ns; 0: no sampling.
    #[must_use]
    pub fn first_period_ns(&self) -> u64 {
        self.first_period_ns
    }
}
