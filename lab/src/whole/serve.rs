//! The machine as the driver sees it.

use super::state::{Counters, State};
use super::target::Metric;
use super::world::World;
use profiler_core::class::{ClassId, ExitMode, RecordKind, SiteClass};
use profiler_core::clients::children::{Event, Look};
use profiler_core::clients::operations::Operations;
use profiler_core::clients::overhead::{Mark, Reading, Wanted};
use profiler_core::clients::survey::Links;
use profiler_core::cost::{Price, Rests};
use profiler_core::engine::driver::StillWanted;
use profiler_core::engine::input::{Counted, Ended, Input, Interval, Sees, SlowLook, ThreadHits};
use profiler_core::engine::{Command, CountWanted, Machine, OperationsLook, WantedThreads};
use profiler_core::recording::{ChangeKind, WindowKind};
use profiler_core::run::order::Ending;
use profiler_core::run::outcome::Outcome;
use profiler_core::run::suspension::Suspension;
use profiler_core::run::threads::ThreadUse;
use profiler_core::run::view::{
    ClassPrices, ClassTraits, ClassView, LinkView, PointsView, SamplesView, View,
};
use std::collections::VecDeque;
use std::convert::Infallible;

/// Units of progress per s of the target's own CPU time.
const PROGRESS_HZ: f64 = 20_000.0;
/// A search for functions takes so long, ns.
const SEARCH_NS: u64 = 30_000_000;
/// First thread id.
const FIRST_TID: u32 = 1_000;

impl World {
    /// One class as the run sees it.
    #[must_use]
    pub fn class_view(&self, id: ClassId) -> ClassView {
        let class = &self.classes[id.0 as usize];
        let function = &self.scenario.target.functions[class.function];
        let (link, quota, start_ns) = match &class.state {
            State::Off => (LinkView::Off, 0, 0),
            State::Waiting(p) => (LinkView::Waiting, p.quota, 0),
            State::Opening(p, _) => (LinkView::Opening, p.quota, 0),
            State::Open(w) => (LinkView::Open(w.kind), w.quota, w.start_ns),
            State::Closing(w, _) => (LinkView::Closing(w.kind), 0, w.start_ns),
        };
        let exit = if function.exit_ns > 0.0 { ExitMode::ExitSites } else { ExitMode::None };
        let Counters { attempted, ends, .. } = class.read;
        ClassView {
            id,
            link,
            quota,
            start_ns,
            attempted,
            ends,
            timed_ns: 0,
            bystanders: 0,
            traits: ClassTraits {
                kind: if exit == ExitMode::None { RecordKind::Count } else { RecordKind::Latency },
                exit,
                weight: 1.0,
                role: self.role_of(class),
                module: 0,
                named: function.named,
                must: function.must,
                apart: function.counts || function.part.is_some(),
                stamps_of: None,
                held_by_plan: false,
                dormant: class.dormant,
                refused: class.refused.is_some(),
            },
            prices: ClassPrices {
                hit: Price::fixed(function.hit_ns),
                exit: Price::fixed(function.exit_ns),
                cold: Price::fixed(0.0),
                stamps: Price::fixed(0.0),
                rests: Rests::default(),
            },
            samples: (self.sampler.samples as f64 * function.rho) as u64,
            sampled_ns: (self.sampler.cpu_ns as f64 * function.rho) as u64,
            points: PointsView::default(),
        }
    }

    fn is_linked(&self) -> bool {
        self.classes.iter().any(|class| class.state.is_linked())
    }

    /// Classes for functions that have none: what was named, and what samples show where that is asked for.
    pub fn find(&mut self, discover: bool) -> Vec<(ClassId, SiteClass)> {
        let s = self.seconds();
        let mut found = Vec::new();
        for (index, function) in self.scenario.target.functions.iter().enumerate() {
            let is_known = self.classes.iter().any(|class| class.function == index);
            let is_seen = self.sampler.samples as f64 * function.rho >= 1.0;
            let wanted =
                !function.counts && function.part.is_none() && (function.named || discover && is_seen);
            if !is_known && wanted && function.is_mapped(s) {
                found.push((index, function.rho));
            }
        }
        found.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut classes = Vec::new();
        for (function, _) in found {
            let id = ClassId(self.classes.len() as u32);
            let credit = self.chance.exponential();
            self.classes.push(super::state::Class::new(function, credit));
            classes.push((id, self.scenario.target.functions[function].site()));
        }
        classes
    }

    /// Classes for the functions that count the metric.
    pub fn find_counting(&mut self) {
        let functions = &self.scenario.target.functions;
        let counting: Vec<usize> = (0..functions.len()).filter(|i| functions[*i].counts).collect();
        for function in counting {
            let credit = self.chance.exponential();
            self.classes.push(super::state::Class::new(function, credit));
        }
    }

    /// Nothing is attached, waits, or is on its way.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        let off = |class: &super::state::Class| class.state == State::Off;
        self.classes.iter().all(off) && self.asked.flight.is_none() && self.asked.outcomes.is_empty()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Attach(attach) => self.ask(attach),
            Command::Close(id, ending) => self.close(id, ending),
            Command::CloseAll(ending) => {
                let linked = self.classes.iter().any(|class| class.armed);
                self.asked.must_be_clear |= linked && ending == Ending::AtOnce;
                self.close_all(ending);
            }
            Command::GiveUpSurvey => self.give_up_survey(),
            Command::Quota(id, hits) => self.set_quota(id, hits),
            Command::Dormant(id) => self.classes[id.0 as usize].dormant = true,
            Command::Refuse(id, why) => self.classes[id.0 as usize].refused = Some(why),
            Command::LinksOnce => {
                let (links, once) = self.asked.links;
                self.asked.links = (0, once + links);
            }
            Command::Find { discover } => self.search.wanted = Some((discover, self.now_ns + SEARCH_NS)),
            Command::LookAgain => self.search.is_dirty = true,
            Command::LookAtThreads => self.sampler.threads = self.scenario.target.threads,
            Command::Period(period_ns) => self.sampler.period_ns = period_ns,
            Command::PauseSampling => self.sampler.is_paused = true,
            Command::ResumeSampling => self.sampler.is_paused = false,
            Command::SampleCpus(_) => (self.sampler.per_cpu, self.sampler.threads) = (true, 0),
            Command::Operation(order) => self.operate(order),
            Command::Ledger(rows) => self.log.add_rows(&rows),
            Command::Later(_) if self.done.is_held => {
                (self.start_ns, self.done.is_held) = (self.now_ns, false)
            }
            Command::Change(ChangeKind::Back, Some(id), _) => self.classes[id.0 as usize].is_kept = true,
            Command::Later(_)
            | Command::CountByThread(_)
            | Command::LetGo(_)
            | Command::NoReturnLink(..)
            | Command::Planned(..)
            | Command::Metric(_)
            // Functions here cost what they cost, however the target rests.
            | Command::Rests(_)
            | Command::Measured(_)
            | Command::Note(_)
            | Command::Detail(_)
            | Command::Progress(_)
            | Command::Warn(_)
            | Command::NotObserved(..)
            | Command::Change(..) => {}
        }
    }

    fn progress(&self) -> u64 {
        match self.scenario.watch.metric {
            Metric::Functions => {
                let counts =
                    |class: &&super::state::Class| self.scenario.target.functions[class.function].counts;
                self.classes.iter().filter(counts).map(|class| class.counters.kept).sum()
            }
            Metric::None | Metric::Variable => (self.done.own_ns * 1e-9 * PROGRESS_HZ) as u64,
        }
    }
}

impl Machine for World {
    type Error = Infallible;

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn fill(&mut self, what: Sees, view: &mut View) {
        view.now_ns = self.now_ns;
        view.samples = SamplesView {
            n: self.sampler.samples,
            cpu_ns: self.sampler.cpu_ns,
            rate_hz: if self.sampler.period_ns == 0 { 0.0 } else { 1e9 / self.sampler.period_ns as f64 },
            price_s: super::world::SAMPLE_NS * 1e-9,
            off: self.scenario.watch.only_named || self.scenario.watch.rate_hz == Some(0.0),
            threads: self.sampler.threads,
            per_cpu: self.sampler.per_cpu,
        };
        if what == Sees::Nothing {
            return;
        }
        let ids = (0..self.classes.len() as u32).map(ClassId);
        if what == Sees::Counters {
            for id in ids.clone() {
                if self.classes[id.0 as usize].state.is_linked() {
                    self.read(id);
                }
            }
        }
        for id in ids.clone().skip(view.names.len()) {
            view.names.push(format!("f{}", id.0));
        }
        view.classes.clear();
        view.classes.extend(ids.map(|id| self.class_view(id)));
    }

    fn see_operations(&mut self, look: OperationsLook, client: &Operations, view: &mut View) {
        self.show_operations(look, client, view);
    }

    fn execute(&mut self, commands: Vec<Command>, _view: &View, _told: &mut VecDeque<Input>) {
        for command in commands {
            self.log.note(self.now_ns, &command);
            self.obey(command);
        }
    }

    fn take_outcomes(&mut self) -> Result<Vec<Outcome>, Infallible> {
        Ok(self.answers())
    }

    fn attach_next(&mut self, still_wanted: StillWanted<'_>) -> bool {
        self.make_next(still_wanted)
    }

    fn is_settled(&self) -> bool {
        self.asked.queue.is_empty() && self.asked.flight.is_none()
    }

    fn drain(&mut self) -> Vec<Event> {
        self.children.take_events()
    }

    fn collect(&mut self, _view: &View) -> Vec<Ended> {
        self.ended()
    }

    fn look_at(&mut self, pids: &[u32]) -> Look {
        let found = pids.iter().map(|pid| (*pid, self.children.found(*pid))).collect();
        Look { at_ns: self.now_ns, linked: self.is_linked(), found }
    }

    fn interval(&mut self, pids: &[u32], told: &mut VecDeque<Input>) -> Interval {
        let lost = self.children.take_lost();
        if !lost.is_empty() {
            let look = Look { at_ns: self.now_ns, linked: self.is_linked(), found: lost };
            told.push_back(Input::Lost(look));
        }
        let (links, links_once) = std::mem::take(&mut self.asked.links);
        Interval {
            cpu_ns: self.done.cpu_ns as u64,
            agent_cpu_ns: 0,
            samples: std::mem::take(&mut self.sampler.new),
            in_traps: Vec::new(),
            foreign_samples: self.sampler.foreign as u64,
            links,
            links_once,
            children: self.look_at(pids),
            probed: None,
        }
    }

    fn thread_hits(&mut self, wanted: WantedThreads) -> ThreadHits {
        let mut counts = Vec::with_capacity(wanted.classes.len() * wanted.tids.len());
        for id in &wanted.classes {
            counts.extend(wanted.tids.iter().map(|tid| self.hits_by(*id, (*tid - FIRST_TID) as usize)));
        }
        ThreadHits { classes: wanted.classes, counts }
    }

    fn is_look_due(&mut self) -> bool {
        false
    }

    fn slow_look(&mut self, suspension: Suspension, told: &mut VecDeque<Input>) -> SlowLook {
        let s = self.seconds();
        let functions = &self.scenario.target.functions;
        let away = functions.iter().filter_map(|f| f.away_s);
        let times = functions.iter().map(|f| f.mapped_s).chain(away).flat_map(|(from, until)| [from, until]);
        let came = times.into_iter().any(|at| at > self.search.looked_s && at <= s);
        self.search.looked_s = s;
        self.search.is_dirty |= came;
        if self.search.is_dirty && suspension.may_discover() {
            self.search.is_dirty = false;
            told.push_back(Input::Modules);
        }
        let (last_ns, last) = self.search.switches;
        let switches = self.done.switches as u64;
        self.search.switches = (self.now_ns, switches);
        let target = &self.scenario.target;
        let threads = if self.is_alive() { target.threads } else { 0 };
        let (cpu, switches_per_s) = (self.own_cpu(s), self.switches_per_s(s));
        let of = |thread: usize| ThreadUse {
            tid: FIRST_TID + thread as u32,
            cpu_per_s: cpu * target.part_of(thread),
            switches_per_s: switches_per_s * target.part_of(thread),
        };
        if self.sampler.threads > 0 {
            self.sampler.threads = threads;
        }
        SlowLook {
            tids: Some((0..threads as u32).map(|thread| FIRST_TID + thread).collect()),
            switches: Some((switches - last, self.now_ns - last_ns)),
            uses: (0..threads).map(of).collect(),
        }
    }

    fn survey_links(&self) -> Links {
        let survey = |state: &State| state.kind() == Some(WindowKind::Survey);
        let pending = |state: &State| matches!(state, State::Waiting(_) | State::Opening(..));
        Links {
            waits: self.classes.iter().any(|c| pending(&c.state) && survey(&c.state)),
            any: self.classes.iter().any(|c| survey(&c.state)),
        }
    }

    fn read_progress(&mut self, wanted: Wanted) -> Option<Reading> {
        let (progress, cpu_ns) = (self.progress(), self.done.cpu_ns as u64);
        self.is_alive().then_some(())?;
        Some(match wanted {
            Wanted::Counts => Reading::Counts { cpu_ns, counts: vec![progress] },
            Wanted::Mark => Reading::Mark(Mark { progress, cpu_ns, time_ns: self.now_ns }),
            Wanted::Nothing | Wanted::View => return None,
        })
    }

    fn count(&mut self, _wanted: CountWanted, classes: &[ClassId]) -> Counted {
        let counts =
            |id: &ClassId| self.scenario.target.functions[self.classes[id.0 as usize].function].counts;
        let all = (0..self.classes.len() as u32).map(ClassId).filter(counts);
        let refused = all.filter_map(|id| Some((id, self.classes[id.0 as usize].refused.clone()?))).collect();
        let admitted = classes.iter().map(|id| (*id, self.classes[id.0 as usize].counters.kept)).collect();
        Counted { probed: None, admitted, refused }
    }

    fn work(&mut self, _view: &View, told: &mut VecDeque<Input>) {
        if let Some((discover, ready_ns)) = self.search.wanted
            && self.now_ns >= ready_ns
        {
            self.search.wanted = None;
            let found = self.find(discover);
            told.push_back(Input::Found(found));
        }
    }
}
