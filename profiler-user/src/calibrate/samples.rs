//! Prices of a sample and of a context switch of a sampled thread.
//!
//! A sample is an interrupt: it takes the CPU away from the thread, whether or not the kernel books that time on the
//! thread (it depends on `CONFIG_IRQ_TIME_ACCOUNTING`). So the child reads the clock over and over and adds up the jumps
//! of 1.5 to 300 us: interrupts, but not other threads.
//!
//! price = (jumps with samples - jumps per second without x time) / samples taken
//!
//! Between two readings it does work that uses the caches, which makes the interrupt itself dearer (25 to 40 us instead of 17 to 27 here).
//! How much slower that work is afterwards was measured, too, and lies within the noise (0 +- 3 us per sample).

use super::CalibrateError;
use super::worker::{Gaps, Worker};
use crate::prober::{Kernel, Sampler, Settings};
use profiler_core::cost::Price;

/// Between the rates of real sessions, where caches are colder and each sample dearer, and a rate that gives enough
/// samples in a few ms.
const PERIOD_NS: u64 = 333_333;
/// The period for which a switch is priced, 99 Hz. At a switch the event's timer is set to what is left of its period.
/// If that lies before the next timer tick, the timer hardware must be written, which is dear on virtual machines
/// (0.5 us become 5 to 20), else not. So the price depends on the period, and the runs must see all phases of it.
const SWITCH_PERIOD_NS: u64 = 10_101_010;
/// Phases per round.
const PHASES: u64 = 4;
const WINDOW_MS: u64 = 8;
const STACK_BYTES: u32 = 16_384;
const PING_PONGS: u64 = 150;

/// Collects runs, round by round.
pub(super) struct SampleRuns<'a> {
    kernel: &'a Kernel,
    sampler: Sampler,
    settings: Settings,
    base: Vec<f64>,
    per_kib: Vec<f64>,
    switch: Vec<f64>,
}

impl<'a> SampleRuns<'a> {
    pub fn new(kernel: &'a Kernel) -> Result<Self, CalibrateError> {
        let sampler = kernel.sampler(crate::prober::SampleKind::Observe)?;
        let settings = kernel.classes().settings();
        Ok(Self { kernel, sampler, settings, base: Vec::new(), per_kib: Vec::new(), switch: Vec::new() })
    }

    /// One round of each. Takes about 25 ms.
    pub fn round(&mut self, worker: &mut Worker) -> Result<(), CalibrateError> {
        let off = worker.gaps(WINDOW_MS / 2)?;
        let without = self.sample(worker, off, 0)?;
        let with = self.sample(worker, off, STACK_BYTES)?;
        // No sample within the window: the thread did not get the CPU.
        if let (Some(without), Some(with)) = (without, with) {
            self.base.push(without.max(0.0));
            self.per_kib.push(((with - without) / f64::from(STACK_BYTES / 1024)).max(0.0));
        }
        self.kernel.classes().set_settings(Settings { stack_bytes: 0, ..self.settings });
        self.switch.push(self.switch(worker)?.max(0.0));
        Ok(())
    }

    /// One round of samples as the settings have them, and of switches. Takes about 20 ms.
    pub fn round_as_set(&mut self, worker: &mut Worker) -> Result<(), CalibrateError> {
        self.kernel.classes().set_settings(self.settings);
        let off = worker.gaps(WINDOW_MS / 2)?;
        self.base.extend(self.sample(worker, off, self.settings.stack_bytes)?.map(|ns| ns.max(0.0)));
        self.switch.push(self.switch(worker)?.max(0.0));
        Ok(())
    }

    /// Medians: a sample without stack, a KiB of stack, a context switch.
    pub fn prices(&self) -> [Option<Price>; 3] {
        [&self.base, &self.per_kib, &self.switch].map(|runs| Price::from_runs(runs))
    }

    /// ns per sample.
    fn sample(
        &self,
        worker: &mut Worker,
        off: Gaps,
        stack_bytes: u32,
    ) -> Result<Option<f64>, CalibrateError> {
        self.kernel.classes().set_settings(Settings { stack_bytes, ..self.settings });
        let before = self.kernel.classes().global_counters().samples_kept;
        let event = self.sampler.open_thread(worker.tids[0], PERIOD_NS)?;
        let on = worker.gaps(WINDOW_MS)?;
        drop(event);
        let samples = self.kernel.classes().global_counters().samples_kept.wrapping_sub(before);
        let taken_ns = on.sum_ns - off.sum_ns / off.elapsed_ns * on.elapsed_ns;
        Ok((samples > 0).then(|| taken_ns / samples as f64))
    }

    /// ns that a context switch costs more when both threads carry an event, mean over the phases of the period. Samples are taken as the settings
    /// have them, and cost what the round's cost.
    fn switch(&self, worker: &mut Worker) -> Result<f64, CalibrateError> {
        let off = worker.ping_pong(PING_PONGS)?;
        let tids = worker.tids;
        let mut sum = 0.0;
        for phase in 0..PHASES {
            // A run is short against the period, so an event that is opened with what would be left of it stands for
            // that phase. Rounds are shifted against each other.
            let steps = PHASES * super::hits::ROUNDS as u64;
            let step =
                phase * super::hits::ROUNDS as u64 + self.switch.len() as u64 % super::hits::ROUNDS as u64;
            let left = (SWITCH_PERIOD_NS * (2 * step + 1) / (2 * steps)).max(crate::prober::MIN_PERIOD_NS);
            let before = self.kernel.classes().global_counters().samples_kept;
            let events = tids
                .into_iter()
                .map(|tid| self.sampler.open_thread(tid, left))
                .collect::<Result<Vec<_>, _>>()?;
            let on = worker.ping_pong(PING_PONGS)?;
            drop(events);
            let samples = self.kernel.classes().global_counters().samples_kept.wrapping_sub(before);
            let sample_ns = self.base.last().copied().unwrap_or(0.0) * samples as f64;
            sum += on - off - sample_ns / (2 * PING_PONGS) as f64;
        }
        Ok(sum / PHASES as f64)
    }
}
