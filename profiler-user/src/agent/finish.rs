//! The end of a run: detach everything, write what is left, make the report.

use super::attach::TargetId;
use super::class::Ending;
use super::clock::now_ns;
use super::host::{self, agent_cpu_ns, agent_use, helpers_cpu_ns};
use super::journal::Journal;
use super::{Agent, EndReason, Session};
use crate::calibrate::{self, ChildCommand};
use crate::failure::Failure;
use crate::governor::unlock_memory;
use crate::prober::histogram;
use crate::symbolize::{ClassIndex, Detail, Symbolizer};
use crate::unwind::{Modules, StackTable};
use crate::watchdog::Heartbeat;
use profiler_core::class::RecordKind;
use profiler_core::engine::Input;
use profiler_core::recording::{AgentUse, ClassRow, HistogramRow, NotObserved, Recording};
use profiler_core::report::Report;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Detaching 1,000 classes takes below 0.2 s; eight perf-event uprobes take 2.4 s (0.3 s each, one after the other), and
/// a machine under load several times that.
const DETACH_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at what has been closed.
const WAIT: Duration = Duration::from_millis(2);
/// Links of files that many processes map are closed in pauses, for no longer than this; then all at once.
const LONGEST_PAUSES: Duration = Duration::from_secs(60);
/// The pauses may take so much longer than was computed: calls in flight are waited for, and somebody may map the file meanwhile.
const PAUSES_SLACK: Duration = Duration::from_secs(2);

/// Functions that were refused for one reason have a row each if they are no more than two above this.
const SINGLE_ROWS: usize = 8;

/// A finished run.
pub struct Finished {
    /// Where the recording lies.
    pub path: PathBuf,
    /// The recording.
    pub recording: Recording,
    /// The report made from it.
    pub report: Report,
    /// Exit status of the command that was launched; `None`: none was, or it goes on.
    pub status: Option<u8>,
}

/// A second Ctrl-C ends the agent: nothing is attached any more, and what is recorded is on disk or lost with the last
/// seconds.
fn restore_interrupts() {
    for number in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the default disposition; no handler of ours is called any more, and nothing waits for one.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
}

/// What was not attached, and why: where many share a reason, one row for all of them.
fn together<'a>(refused: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<NotObserved> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (what, why) in refused {
        match reasons.iter_mut().find(|(other, _)| *other == why) {
            Some((_, names)) => names.push(what),
            None => reasons.push((why, vec![what])),
        }
    }
    let row = |what: String, why: &str| NotObserved { what, why: why.to_owned() };
    let rows = |(why, names): (&str, Vec<&str>)| match &names[..] {
        [first, second, rest @ ..] if rest.len() > SINGLE_ROWS => {
            vec![row(format!("{first}, {second} and {} more", rest.len()), why)]
        }
        all => all.iter().map(|name| row((*name).to_owned(), why)).collect(),
    };
    reasons.into_iter().flat_map(rows).collect()
}

impl Session {
    /// Ends the run, however it ended.
    pub(super) fn finish(
        mut self,
        heartbeat: &Heartbeat,
        reason: Option<EndReason>,
        failed: Option<&Failure>,
    ) -> Result<Finished, Failure> {
        super::command::count_interrupts();
        self.agent.journal.progress.set("detaching".to_owned());
        let end_ns = now_ns();
        self.agent.journal.meta.agent.until_end_ns = Some(agent_cpu_ns(helpers_cpu_ns()));
        let limit = self.driver.run.agent_limit();
        self.agent.journal.meta.agent.samples_cut = limit.samples_cut();
        self.agent.journal.meta.agent.bursts_cut = limit.bursts_cut();
        // A command that ran for less than an interval of the ledger has not been asked before.
        if let (Some(_), Some(cpu_ns)) = (&self.agent.child, self.agent.target.cpu_time_of_child_ns()) {
            self.agent.attach.target_mut(TargetId::FIRST).note_last_cpu(cpu_ns);
        }
        let begun = Instant::now();
        self.tell(Input::Ends);
        self.detach(reason);
        self.settle();
        let agent = &mut self.agent;
        if agent.attach.busy() {
            agent.journal.meta.warnings.push(format!(
                "some links were still being detached {:.0} s after the end",
                begun.elapsed().as_secs_f64()
            ));
            // A writer that lags and naming the stacks of a large program take their time; the closers go on meanwhile.
            agent.attach.governor().excuse();
        } else {
            // From here on nothing can harm the target, and nobody may kill us over a slow disk or a long look at debug information.
            heartbeat.disarm();
            // Nor does anybody wait for an answer of the governor's, so the kernel may take pages.
            unlock_memory();
        }
        let steps = self.end_run(end_ns);
        let agent = &mut self.agent;
        agent.excuse_closers();
        // Decoding what called takes seconds where the program is large.
        agent.describe_calls(&steps);
        // The last interval of the ledger: what comes now is no part of the run, and samples of our own child are no losses of it.
        self.agent.end_loss_pause();
        self.agent.wait_for_writer();
        self.driver.close_interval(&mut self.agent);
        self.agent.journal.writer.send_patiently(self.driver.run.last_rows());
        let agent = &mut self.agent;
        // Before the command is ended, so that the machine is as busy as it was in the run.
        if failed.is_none() && !agent.attach.busy() {
            agent.price_samples();
        }
        let helpers_ns = helpers_cpu_ns();
        let status = agent.end_command(reason);
        if !agent.attach.busy() {
            restore_interrupts();
        }
        let end_reason = match (reason, failed) {
            (Some(reason), _) => reason.text().to_owned(),
            (None, Some(failure)) => format!("failed: {failure}"),
            (None, None) => "failed".to_owned(),
        };
        self.agent.write_report(end_ns, end_reason, helpers_ns, status)
    }

    /// Heeds what has been made and closed, without having anything new made: at the end, and before a program runs.
    pub(super) fn settle(&mut self) {
        self.agent.pulse();
        // What is still being made is closed when it is there; where the opener is gone, it was given up.
        let _ = self.agent.attach.take_reports();
        self.driver.collect(&mut self.agent);
    }

    /// Has all links closed, and waits for it: those of files that many processes map in pauses as long as the target lives, then the rest
    /// at once. A target that has ended waits for nothing, while whoever launched it waits for us.
    fn detach(&mut self, reason: Option<EndReason>) {
        self.agent.switch_sampling(|events| events.set_period(0));
        let lives = |agent: &Agent| reason != Some(EndReason::TargetExited) && agent.target.is_alive();
        if lives(&self.agent) {
            let agent = &mut self.agent;
            agent.attach.close_all(Ending::Drain);
            let in_pauses = agent.attach.closing_time().min(LONGEST_PAUSES);
            if in_pauses > Duration::from_secs(1) {
                let s = in_pauses.as_secs();
                agent.journal.progress.set(format!(
                    "detaching in pauses for some {s} s, because many other processes map the same file"
                ));
            }
            let begun = Instant::now();
            while self.agent.attach.any_draining()
                && begun.elapsed() < in_pauses + PAUSES_SLACK
                && lives(&self.agent)
            {
                self.settle();
                std::thread::sleep(WAIT);
            }
        }
        self.agent.attach.close_all(Ending::AtOnce);
        let begun = Instant::now();
        while self.agent.attach.busy() && begun.elapsed() < DETACH_LIMIT {
            self.settle();
            std::thread::sleep(WAIT);
        }
    }
}

impl Agent {
    /// Measures what samples and switches cost here and now.
    fn price_samples(&mut self) {
        if self.sampling.events.first_period_ns() == 0 {
            return;
        }
        self.journal.progress.set("measuring what samples cost".to_owned());
        match calibrate::at_end(self.attach.kernel(), &ChildCommand::default(), || {
            !super::command::is_interrupted()
        }) {
            Ok(prices) => self.journal.meta.agent.prices_at_end = prices,
            Err(error) => self.journal.meta.warnings.push(format!(
                "what samples cost was not measured again at the end, the calibrated price counts: {error}"
            )),
        }
    }

    /// Writes what is left, and makes the report.
    fn write_report(
        mut self,
        end_ns: u64,
        end_reason: String,
        helpers_ns: u64,
        status: Option<u8>,
    ) -> Result<Finished, Failure> {
        self.send_histograms();
        self.send_classes();
        self.note_losses();
        self.note_private_memory();
        self.journal.meta.end_ns = Some(end_ns);
        self.journal.meta.end_reason = Some(end_reason);
        self.journal.meta.slowest_answer = self.attach.slowest_answer();
        self.journal.meta.forks_held = self.attach.target(TargetId::FIRST).forks_held();
        let class_rows: Vec<_> = self.attach.classes().iter().map(super::class::LiveClass::row).collect();
        let (modules, stacks) = self.sampling.into_stacks();
        // What was read in the run is read no more: debug information and the recording take its place in memory. Links may still be
        // closing; without any, what classes hold of modules goes as well.
        drop((self.inspection, self.catalog, self.rings, self.operation_io));
        let _closing = self.attach.busy().then_some(self.attach);
        host::give_memory_back();
        let mut journal = self.journal;
        journal.send_stacks(modules, &stacks, &class_rows);
        drop((stacks, class_rows));
        host::give_memory_back();
        let now = agent_use(helpers_ns);
        let agent = &mut journal.meta.agent;
        *agent = AgentUse { cpu_ns: now.cpu_ns, max_rss_bytes: now.max_rss_bytes, ..*agent };
        let Journal { writer, meta, progress, output: path, .. } = journal;
        for notice in writer.take_notices() {
            progress.note(&notice);
        }
        progress.set("writing the report".to_owned());
        writer.finish(&meta).map_err(anyhow::Error::new)?;
        progress.end();
        let recording = crate::recording::open_for_report(&path).map_err(anyhow::Error::new)?;
        let report = Report::from_recording(&recording);
        Ok(Finished { path, recording, report, status })
    }

    fn send_histograms(&mut self) {
        let mut rows = Vec::new();
        for class in self.attach.classes() {
            let Some(lease) = &class.lease else { continue };
            for (bucket, count) in (0u32..).zip(self.attach.kernel().classes().histogram(lease).iter()) {
                if *count == 0 {
                    continue;
                }
                let (low_ns, high_ns) = histogram::bounds(bucket);
                rows.push(HistogramRow { class_id: class.id.0, low_ns, high_ns, count: *count });
            }
        }
        self.journal.writer.send_patiently(rows);
    }

    fn send_classes(&mut self) {
        let rows: Vec<_> = self.attach.classes().iter().map(super::class::LiveClass::row).collect();
        self.journal.writer.send_patiently(rows);
        let refused =
            self.attach.classes().iter().filter_map(|c| Some((&*c.candidate.name, c.refused.as_deref()?)));
        self.journal.meta.not_observed.extend(together(refused));
        let never = self.attach.never_attached();
        self.journal.meta.not_observed.extend(together(never.iter().map(|(name, why)| (*name, &**why))));
        for class in self.attach.classes().iter().filter(|c| c.refused.is_none()) {
            if class.kind != class.wish.kind && class.wish.kind != RecordKind::Count {
                self.journal.meta.not_observed.push(NotObserved {
                    what: format!("durations of {}", class.candidate.name),
                    why: class.candidate.exits.as_ref().err().cloned().unwrap_or_default(),
                });
            }
        }
    }

    fn note_private_memory(&mut self) {
        let (memory, warnings) = self.attach.target(TargetId::FIRST).private_memory();
        self.journal.meta.warnings.extend(warnings);
        self.journal.meta.private_memory = (!memory.headroom_path.is_empty()).then_some(memory);
    }

    fn note_losses(&mut self) {
        self.journal.meta.losses.kernel_missed = self.attach.kernel().kernel_misses();
        self.journal.meta.sample_period_ns = self.sampling.events.first_period_ns();
        if let Some((threads, why)) = self.sampling.events.failures() {
            self.journal
                .meta
                .not_observed
                .push(NotObserved { what: format!("samples of {threads} threads"), why: why.into() });
        }
        let unmatched = self.catalog.selection.unmatched().into_iter();
        for (what, why) in unmatched.chain(self.words_without_place()).chain(self.inputs_without_function()) {
            self.journal.meta.not_observed.push(NotObserved { what, why });
        }
    }
}

impl Journal {
    /// Names the stacks: with lines and inlined calls, which the run had no time for.
    fn send_stacks(&mut self, modules: Modules, stacks: &StackTable, classes: &[ClassRow]) {
        let mut symbolizer = Symbolizer::new(modules, Detail::Lines);
        symbolizer.set_classes(ClassIndex::new(classes));
        let stacks = stacks.all();
        symbolizer.prepare(stacks.iter().flat_map(|(_, frames)| frames.iter().copied()));
        for chunk in stacks.chunks(256) {
            let rows: Vec<_> = chunk.iter().flat_map(|(id, frames)| symbolizer.rows(*id, frames)).collect();
            self.writer.send_patiently(rows);
        }
        self.meta.warnings.extend(symbolizer.take_notes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_functions_that_share_a_reason_have_one_row() {
        let names: Vec<String> = (0..600).map(|i| format!("f{i}")).collect();
        let all = names.iter().map(|n| (n.as_str(), "no room")).chain([("g", "patched"), ("h", "patched")]);
        let rows: Vec<String> = together(all).into_iter().map(|r| format!("{}: {}", r.what, r.why)).collect();
        assert_eq!(rows, ["f0, f1 and 598 more: no room", "g: patched", "h: patched"]);
    }
}
