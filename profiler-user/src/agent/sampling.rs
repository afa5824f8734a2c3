//! Samples of the target: copied stacks to frames, frames to shares and rows. What takes them is [`SamplingEvents`].

mod events;
mod traps;

use super::class::LiveClass;
use super::reading::{Part, Reader};
use super::shares::{FunctionKey, Shares};
use crate::inspect::{Inspection, Module};
use crate::prober::SampleReader;
use crate::recording::WriterHandle;
use crate::unwind::{Frame, KERNEL, ModuleId, Modules, StackTable, Unwinder, UserStack};
pub use events::SamplingEvents;
use profiler_core::class::ClassId;
use profiler_core::recording::{SampleRow, TrapSampleRow};
use std::collections::{BTreeMap, HashMap};
use traps::Traps;

/// Samples of the target.
pub struct Sampling {
    /// What takes them.
    pub events: SamplingEvents,
    reader: SampleReader,
    unwinder: Unwinder,
    stacks: StackTable,
    shares: Shares,
    pid: u32,
    uncharged: u64,
    /// Rows that the writer has not been given yet.
    rows: Vec<SampleRow>,
    in_traps: Vec<TrapSampleRow>,
    /// Samples in traps that were charged as hits, by class, since they were asked for.
    traps_of: BTreeMap<Option<ClassId>, u64>,
    traps: Traps,
    frames: Vec<Frame>,
    /// Index in the inspection of each module of the unwinder; `None`: not there.
    module_index: HashMap<ModuleId, Option<usize>>,
}

impl Sampling {
    /// No samples so far.
    #[must_use]
    pub fn new(events: SamplingEvents, reader: SampleReader, unwinder: Unwinder, pid: u32) -> Self {
        Self {
            events,
            reader,
            unwinder,
            stacks: StackTable::new(),
            shares: Shares::default(),
            pid,
            uncharged: 0,
            rows: Vec::new(),
            in_traps: Vec::new(),
            traps_of: BTreeMap::new(),
            traps: Traps::default(),
            frames: Vec::new(),
            module_index: HashMap::new(),
        }
    }

    /// Where samples fell.
    #[must_use]
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The modules that frames refer to and the distinct stacks; what else there is goes.
    #[must_use]
    pub fn into_stacks(self) -> (Modules, StackTable) {
        (self.unwinder.modules().clone(), self.stacks)
    }

    /// Modules came or went.
    pub fn modules_changed(&mut self) {
        self.shares.forget_addresses();
        self.module_index.clear();
        self.traps.forget();
        self.unwinder.invalidate(self.pid);
        // Not with the next sample: where the target rests or samples are rare, files that it has unmapped would be held until then.
        self.unwinder.prepare(self.pid);
    }

    /// Symbols that were missing are there.
    pub fn symbols_came(&mut self) {
        self.shares.forget_addresses();
    }

    /// Takes the samples out of the ring: unwinds, counts shares, keeps rows. With `ahead` it does not wait for symbols:
    /// until they have been read, samples count for no function of their module.
    ///
    /// What fell into a trap of one of the `classes` is kept apart.
    pub fn drain(
        &mut self,
        limit: usize,
        inspection: &Inspection,
        classes: &[LiveClass],
        mut ahead: Option<&mut Reader>,
    ) {
        let Self { reader, unwinder, stacks, shares, frames, module_index, uncharged, rows, pid, .. } = self;
        let (traps, in_traps, traps_of) = (&mut self.traps, &mut self.in_traps, &mut self.traps_of);
        traps.learn(classes, inspection);
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
            }
            let is_probe_code = sample.registers.is_some_and(|r| unwinder.is_probe_code(sample.pid, r.ip));
            if let Some(trap) = traps.of(&sample, is_probe_code, classes, inspection) {
                if trap.is_charged {
                    *traps_of.entry(trap.class).or_default() += 1;
                }
                in_traps.push(TrapSampleRow {
                    time_ns: sample.time_ns,
                    tid: sample.tid,
                    cpu: sample.cpu,
                    class_id: trap.class.map(|class| class.0),
                    in_kernel: sample.kernel_ip.is_some(),
                    is_sure: trap.is_sure,
                    period_ns: sample.period_ns,
                });
                return;
            }
            if let Some(r) = sample.registers {
                let stack = UserStack { pid: sample.pid, ip: r.ip, sp: r.sp, bp: r.bp, bytes: sample.stack };
                truncated = unwinder.unwind(&stack, |_, _| None, frames);
            }
            let modules = unwinder.modules();
            shares.add(sample.period_ns, (frames, !truncated), |frame| {
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
        if !self.in_traps.is_empty() {
            writer.send(std::mem::take(&mut self.in_traps));
        }
    }

    /// Samples in traps that are charged as hits, by class where that can be told, since the last call.
    pub fn take_in_traps(&mut self) -> Vec<(Option<ClassId>, u64)> {
        std::mem::take(&mut self.traps_of).into_iter().collect()
    }

    /// Samples since the last call.
    pub fn take_uncharged(&mut self) -> u64 {
        std::mem::take(&mut self.uncharged)
    }
}
