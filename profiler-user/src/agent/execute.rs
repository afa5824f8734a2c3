//! Doing what the run commands.

use super::Agent;
use super::attach::{Group, TargetId};
use super::sampling::SamplingEvents;
use profiler_core::class::ClassId;
use profiler_core::engine::Input;
use profiler_core::engine::command::{Attach, Command, SurveyLinks};
use profiler_core::run::view::View;
use std::collections::VecDeque;

impl Agent {
    /// Executes commands, in their order. What came of them at once goes to `told`.
    pub(super) fn execute_all(&mut self, commands: Vec<Command>, view: &View, told: &mut VecDeque<Input>) {
        for command in commands {
            self.execute_one(command, view, told);
        }
    }

    fn execute_one(&mut self, command: Command, view: &View, told: &mut VecDeque<Input>) {
        match command {
            Command::Attach(attach) => self.ask(&attach),
            Command::Close(class, ending) => self.attach.close(class, ending),
            Command::CloseAll(ending) => self.attach.close_all(ending),
            Command::GiveUpSurvey => self.attach.give_up_survey(),
            Command::Quota(class, hits) => self.attach.set_quota(class, hits),
            Command::Dormant(class) => self.attach.class_mut(class).dormant = true,
            Command::Refuse(class, why) => self.attach.class_mut(class).refused = Some(why),
            Command::NoReturnLink(class, why) => self.without_return_link(class, &why),
            Command::LinksOnce => self.attach.target_mut(TargetId::FIRST).count_links_once(),
            Command::Find { discover } => self.begin_search(discover, view, told),
            Command::LookAgain => self.catalog.modules_dirty = true,
            Command::LookAtThreads => {
                if let Ok(tids) = self.target.threads() {
                    self.sampling.events.keep_threads(&tids);
                }
            }
            Command::CountByThread(on) => self.attach.count_by_thread(TargetId::FIRST, on),
            Command::Period(period_ns) => self.switch_sampling(|events| events.set_period(period_ns)),
            Command::Rests(rests) => {
                self.catalog.rests = rests;
                self.attach.classes_mut().for_each(|class| class.prices.rests = rests);
            }
            Command::PauseSampling => self.switch_sampling(SamplingEvents::pause),
            Command::ResumeSampling => self.switch_sampling(SamplingEvents::resume),
            Command::SampleCpus(text) => self.sample_cpus(text),
            Command::Operation(order) => {
                let Self { operation_io, attach, journal, .. } = self;
                if let Some(io) = operation_io {
                    io.execute(order, attach, &journal.writer, &journal.progress);
                }
            }
            Command::LetGo(pids) => {
                for pid in &pids {
                    self.attach.kernel().remove_target(*pid);
                }
                self.processes.let_go(&pids);
            }
            Command::Metric(number) => {
                if let Some(metric) = &mut self.meters.metric {
                    metric.choose(number);
                }
            }
            Command::Measured(result) => {
                self.meters.metric = None;
                self.journal.meta.measured = result.map(|result| *result);
            }
            Command::Later(later_ns) => {
                self.meters.begin(&self.target);
                self.journal.meta.start_ns += later_ns;
                self.journal.meta.start_unix_ns += later_ns;
            }
            other => self.write(other),
        }
    }

    /// Changes what takes samples, and accounts for the target's CPU time with and without them.
    pub(super) fn switch_sampling(&mut self, change: impl FnOnce(&mut SamplingEvents)) {
        self.account_sampling();
        change(&mut self.sampling.events);
        self.account_sampling();
    }

    fn account_sampling(&mut self) {
        let cpu_ns = self.attach.target_mut(TargetId::FIRST).cpu_ns();
        self.journal.meta.agent.sampled_cpu_ns = Some(self.sampling.events.account(cpu_ns));
    }

    /// What is recorded and said.
    fn write(&mut self, command: Command) {
        let journal = &mut self.journal;
        match command {
            Command::Planned(number, why, planned) => {
                journal.plan(number, why);
                let name = format!("plan-{number:04}.toml");
                let problem = profiler_core::plan::table::to_toml(&planned.problem);
                // So that `tithe plan --classes` can solve it again.
                journal.writer.write_file(name, problem.into_bytes());
                journal.writer.send(planned.rows);
            }
            Command::Ledger(rows) => drop(journal.writer.send(rows)),
            Command::Note(text) => journal.progress.note(&text),
            Command::Detail(text) => journal.detail(&text),
            Command::Progress(text) => journal.progress.set(text),
            Command::Warn(text) => journal.meta.warnings.push(text),
            Command::NotObserved(what, why) => journal.not_observed(what, why),
            Command::Change(kind, class, text) => journal.change(kind, class, text),
            _ => {}
        }
    }

    /// Has classes attached, link by link, when their turn comes.
    fn ask(&mut self, asked: &Attach) {
        let quotas: Vec<(ClassId, u64)> = asked.wanted.iter().map(|(id, quota, _)| (*id, *quota)).collect();
        let groups = match asked.survey {
            None => self.attach.groups(asked.kind, &quotas),
            Some(SurveyLinks { together: true, .. }) => self.attach.shared(asked.kind, &quotas),
            Some(_) => quotas.iter().map(|one| vec![*one]).collect(),
        };
        let last = groups.len().saturating_sub(1);
        let alone_ns = asked.survey.and_then(|survey| survey.alone_ns);
        let ids: Vec<ClassId> = quotas.iter().map(|(id, _)| *id).collect();
        for (i, group) in groups.into_iter().enumerate() {
            let group = Group {
                kind: asked.kind,
                classes: group.into_iter().map(|(id, _)| id).collect(),
                patient_until_ns: asked.survey.map_or(0, |survey| survey.until_ns),
                alone: alone_ns.filter(|_| i == last).map(|ns| (ids.clone(), ns)),
                once: asked.once,
                number: asked.number,
            };
            self.attach.ask(group, &asked.wanted);
        }
    }

    /// One event per CPU from now on.
    fn sample_cpus(&mut self, text: String) {
        match self.sampling.events.use_cpus() {
            Ok(()) => {
                let kind = profiler_core::recording::ChangeKind::Sampling;
                self.journal.change(kind, None, text.clone());
                self.journal.meta.warnings.push(text);
            }
            Err(why) => self.journal.progress.note(&format!("cannot sample per CPU: {why}")),
        }
    }
}
