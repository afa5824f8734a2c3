//! Sampling the target: one event per thread, copied stacks to frames, frames to shares and rows.

use super::reading::{Part, Reader};
use super::shares::{FunctionKey, Shares};
use crate::inspect::{Inspection, Module};
use crate::prober::{SampleEvent, SampleReader, Sampler, ThreadSampling};
use crate::recording::WriterHandle;
use crate::unwind::{Frame, KERNEL, ModuleId, Modules, StackTable, Unwinder, UserStack};
use profiler_core::cost::{CostModel, Price};
use profiler_core::ledger::Ledger;
use profiler_core::recording::{Charge, SampleRow};
use std::collections::{HashMap, HashSet};

/// What carries the sampling events.
enum Events {
    /// One event per thread: the target pays some hundred ns more per context switch, nobody else anything.
    Threads,
    /// One event per CPU, filtered by process: whatever runs there pays for the samples, nobody for switches.
    /// Held for their drop, which ends them.
    Cpus(#[expect(dead_code, reason = "held for their drop")] Vec<SampleEvent>),
}

/// Samples of the target.
pub struct Sampling {
    mode: Events,
    sampler: Sampler,
    cpus: u32,
    events: ThreadSampling,
    /// Threads that have an event.
    sampled: HashSet<u32>,
    /// Threads that could not be sampled: why, for the receipt.
    failed: HashMap<u32, String>,
    period_ns: u64,
    reader: SampleReader,
    unwinder: Unwinder,
    stacks: StackTable,
    shares: Shares,
    pid: u32,
    stack_kib: f64,
    off_for_good: bool,
    paused: bool,
    first_period_ns: u64,
    uncharged: u64,
    /// Rows that the writer has not been given yet.
    rows: Vec<SampleRow>,
    frames: Vec<Frame>,
    /// Index in the inspection of each module of the unwinder; `None`: not there.
    module_index: HashMap<ModuleId, Option<usize>>,
}

impl Sampling {
    /// Sampling that is switched off until [`Sampling::set_period`].
    #[must_use]
    pub fn new(
        events: ThreadSampling,
        sampler: Sampler,
        cpus: u32,
        reader: SampleReader,
        unwinder: Unwinder,
        pid: u32,
        stack_bytes: u32,
    ) -> Self {
        Self {
            mode: Events::Threads,
            sampler,
            cpus,
            events,
            sampled: HashSet::new(),
            failed: HashMap::new(),
            period_ns: 0,
            reader,
            unwinder,
            stacks: StackTable::new(),
            shares: Shares::default(),
            pid,
            stack_kib: f64::from(stack_bytes) / 1024.0,
            off_for_good: false,
            paused: false,
            first_period_ns: 0,
            uncharged: 0,
            rows: Vec::new(),
            frames: Vec::new(),
            module_index: HashMap::new(),
        }
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

    /// No samples until [`Sampling::resume`].
    pub fn pause(&mut self) {
        self.paused = true;
        self.events.set_enabled(false);
        if self.is_per_cpu() {
            self.mode = Events::Cpus(Vec::new());
        }
    }

    /// Goes on after [`Sampling::pause`].
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

    /// Where samples fell.
    #[must_use]
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The distinct stacks so far.
    #[must_use]
    pub fn stacks(&self) -> &StackTable {
        &self.stacks
    }

    /// The modules that frames refer to.
    #[must_use]
    pub fn modules(&self) -> &Modules {
        self.unwinder.modules()
    }

    /// Price of one sample.
    #[must_use]
    pub fn price(&self, cost: &CostModel) -> Price {
        cost.sample_price(self.stack_kib)
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

    /// Modules came or went.
    pub fn modules_changed(&mut self) {
        self.shares.forget_addresses();
        self.module_index.clear();
        self.unwinder.invalidate(self.pid);
    }

    /// Symbols that were missing are there.
    pub fn symbols_came(&mut self) {
        self.shares.forget_addresses();
    }

    /// Takes the samples out of the ring: unwinds, counts shares, keeps rows. With `ahead` it does not wait for symbols:
    /// until they have been read, samples count for no function of their module.
    pub fn drain(&mut self, limit: usize, inspection: &Inspection, mut ahead: Option<&mut Reader>) {
        let Self { reader, unwinder, stacks, shares, frames, module_index, uncharged, rows, pid, .. } = self;
        reader.drain(limit, |sample| {
            *uncharged += 1;
            // A forked child, under an event of its CPU: it pays, and is not observed.
            if sample.pid != *pid {
                return;
            }
            frames.clear();
            let mut truncated = true;
            if let Some(r) = sample.registers {
                // OK because thread ids are positive numbers of 22 bits.
                inspection.note_stack_pointer(sample.tid as i32, r.sp);
                let stack = UserStack { pid: sample.pid, ip: r.ip, sp: r.sp, bp: r.bp, bytes: sample.stack };
                truncated = unwinder.unwind(&stack, |_, _| None, frames);
            }
            let modules = unwinder.modules();
            shares.add(sample.period_ns, frames, |frame| {
                let index = *module_index.entry(frame.module).or_insert_with(|| {
                    let name = &modules.get(frame.module).name;
                    let named = |m: &Module| m.path.as_os_str() == name.as_str();
                    // A file may have been replaced by another of its name: the one that is mapped.
                    let mapped = |m: &Module| named(m) && !m.mappings.is_empty();
                    let modules = inspection.modules();
                    modules.iter().position(mapped).or_else(|| modules.iter().rposition(named))
                });
                let module = inspection.modules().get(index?)?;
                if ahead.as_mut().is_some_and(|r| !r.is_read(module, Part::Symbols)) {
                    return None;
                }
                let function = inspection.function_in(index?, frame.address)?;
                Some(FunctionKey { module: function.module, address: function.vaddr })
            });
            if let Some(ip) = sample.kernel_ip {
                frames.insert(0, Frame { module: KERNEL, address: ip });
            }
            let stack_id = stacks.intern(frames);
            rows.push(SampleRow {
                time_ns: sample.time_ns,
                pid: sample.pid,
                tid: sample.tid,
                cpu: sample.cpu,
                stack_id,
                in_kernel: sample.kernel_ip.is_some(),
                period_ns: sample.period_ns,
                truncated,
            });
        });
    }

    /// Gives the rows to the writer: not at each drain, since each time wakes its thread.
    pub fn flush(&mut self, writer: &WriterHandle) {
        if !self.rows.is_empty() {
            writer.send(std::mem::take(&mut self.rows));
        }
    }

    /// Charges the samples since the last call; returns their cost, ns.
    pub fn charge(&mut self, ledger: &mut Ledger, cost: &CostModel) -> f64 {
        let n = std::mem::take(&mut self.uncharged);
        let price = self.price(cost);
        ledger.charge_units(Charge::Samples, None, n, price);
        n as f64 * price.ns
    }
}
