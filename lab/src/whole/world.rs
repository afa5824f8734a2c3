//! The simulated machine with its target: what happens by itself while time goes by.
//!
//! Time goes in slices of 10 ms at most. A slice ends where something happens: a link is made or gone, closing begins, a quota is about to be
//! used up. Hits are drawn per slice and class.

use super::chance::Chance;
use super::life::Children;
use super::log::Log;
use super::operations::{Operations, SliceHits};
use super::state::{Asked, Class, Counters, Done, LinkState, Links, Sampler, Search, State};
use super::target::{Attachable, Caller, Scenario};
use super::truth::Truth;
use profiler_core::class::ClassId;
use profiler_core::cost::CostModel;
use profiler_core::recording::WindowKind;

/// Longest slice, ns.
const SLICE_NS: u64 = 10_000_000;
/// Hits that are turned away while a link is being made raise the alarm when they are so many.
const ALARM_HITS: u64 = 2_000;
/// Programs see the last hit so long after closing began, ns.
const LAST_HIT_NS: u64 = 100_000;
/// Between two looks of the breaker at all gates, ns: it finds what an alarm that was lost would have told.
const GATES_NS: f64 = 100e6;
/// When runs begin, ktime ns.
pub const START_NS: u64 = 1_000_000_000_000;

/// Price of one sample, ns.
pub const SAMPLE_NS: f64 = 14_300.0;

/// The machine.
#[derive(Debug)]
pub struct World {
    /// What is simulated.
    pub scenario: Scenario,
    /// Everything that is left to chance.
    pub chance: Chance,
    /// Now, ktime ns.
    pub now_ns: u64,
    /// When the target began to run, ktime ns; it is held before.
    pub start_ns: u64,
    /// The classes, by id.
    pub classes: Vec<Class>,
    /// Links that are there.
    pub links: Vec<Links>,
    /// What is to be attached.
    pub asked: Asked,
    /// The sampler.
    pub sampler: Sampler,
    /// What the target has done.
    pub done: Done,
    /// The search for functions.
    pub search: Search,
    /// What the kernel side knows of operations.
    pub operations: Operations,
    /// Its children.
    pub children: Children,
    /// What watching costs.
    pub truth: Truth,
    /// What happened.
    pub log: Log,
    /// Calibrated prices.
    pub prices: CostModel,
}

/// What a slice is like, for all classes.
struct Slice {
    /// Its begin, ktime ns, and its length, ns.
    begin_ns: u64,
    length_ns: f64,
    /// Time of the target at its begin, s.
    s: f64,
    /// The target goes so many times as fast as without being watched.
    speed: f64,
}

impl World {
    /// A machine on which nothing has happened.
    #[must_use]
    pub fn new(scenario: Scenario) -> Self {
        let mut truth = Truth::new(scenario.watch.budget, START_NS);
        truth.at(START_NS);
        let prices = CostModel { cold: profiler_core::cost::Price::fixed(0.0), ..CostModel::assumed() };
        Self {
            chance: Chance::new(scenario.seed),
            now_ns: START_NS,
            start_ns: START_NS,
            classes: Vec::new(),
            links: Vec::new(),
            asked: Asked::default(),
            sampler: Sampler::default(),
            done: Done { is_held: scenario.watch.launched, ..Done::default() },
            search: Search { switches: (START_NS, 0), ..Search::default() },
            operations: Operations::default(),
            children: Children::default(),
            truth,
            log: Log::default(),
            prices,
            scenario,
        }
    }

    /// Time of the target, s.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.now_ns.saturating_sub(self.start_ns) as f64 * 1e-9
    }

    /// The target has not ended.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.done.is_held || self.seconds() < self.scenario.target.ends_s
    }

    /// Something is wrong.
    pub fn fault(&mut self, what: impl FnOnce() -> String) {
        let s = self.now_ns.saturating_sub(START_NS) as f64 * 1e-9;
        self.log.fault(s, what);
    }

    /// Time goes on to `until_ns`.
    pub fn advance_to(&mut self, until_ns: u64) {
        self.happen();
        while self.now_ns < until_ns {
            let slice = (self.now_ns / SLICE_NS + 1) * SLICE_NS;
            let mut end_ns = until_ns.min(slice).min(self.next_event_ns()).max(self.now_ns + 1);
            if !self.done.is_held && self.is_alive() {
                let slice = self.slice();
                end_ns = self.until_trip(&slice, end_ns);
                self.run(Slice { length_ns: (end_ns - self.now_ns) as f64, ..slice });
            }
            self.now_ns = end_ns;
            self.happen();
        }
    }

    /// The clock goes forward, and nothing happens meanwhile.
    pub fn jump(&mut self, by_ns: u64) {
        let until_ns = self.now_ns + by_ns;
        self.children.skip(by_ns);
        while self.now_ns < until_ns {
            // Ends of seconds are as far from each other as from the start.
            let next_ns = until_ns.min(self.now_ns + 100_000_000);
            self.truth.ran(self.now_ns, (next_ns - self.now_ns) as f64, 0.0);
            self.now_ns = next_ns;
        }
    }

    /// When the next thing happens by itself, ktime ns.
    fn next_event_ns(&self) -> u64 {
        let flight = self.asked.flight.iter().flat_map(|flight| {
            let (text, done, _) = flight.times_ns;
            [text, done]
        });
        let links = self.links.iter().filter_map(|links| match links.state {
            LinkState::Asked(begin) => Some(begin),
            LinkState::Closing(begin, gone) if self.now_ns < begin + LAST_HIT_NS => {
                Some(gone.min(begin + LAST_HIT_NS))
            }
            LinkState::Closing(_, gone) => Some(gone),
            LinkState::On | LinkState::Draining(_) | LinkState::Gone(..) => None,
        });
        flight.chain(links).filter(|ns| *ns > self.now_ns).min().unwrap_or(u64::MAX)
    }

    /// What is due by now happens.
    fn happen(&mut self) {
        self.make_links();
        let now = self.now_ns;
        let mut changed = Vec::new();
        for (index, links) in self.links.iter_mut().enumerate() {
            match links.state {
                LinkState::Asked(begin) if now >= begin => {
                    // A grace period is not waited for again shortly after an attach.
                    let fresh = now.saturating_sub(links.made_ns) < 5_000_000;
                    let ms = if fresh { 0.1 } else { self.chance.between(self.scenario.trouble.close_ms) };
                    links.state = LinkState::Closing(now, now + (ms * 1e6) as u64 + 1);
                }
                LinkState::Closing(begin, gone) if now >= gone => {
                    links.state = LinkState::Gone(begin, gone);
                    changed.push((index, false));
                }
                LinkState::Closing(begin, _) if now >= begin + LAST_HIT_NS => changed.push((index, true)),
                _ => {}
            }
        }
        for (index, only_programs) in changed {
            for id in self.links[index].members.clone() {
                let class = &mut self.classes[id.0 as usize];
                class.is_uncounted = only_programs;
                class.armed = only_programs;
            }
            if !only_programs {
                self.price_link();
                self.clean_children();
            }
        }
    }

    /// The link that is being made comes to its next point.
    fn make_links(&mut self) {
        let Some(flight) = &mut self.asked.flight else { return };
        let (text_ns, done_ns, _) = flight.times_ns;
        if self.now_ns >= text_ns && flight.made.is_none() {
            for id in &flight.group.classes {
                let class = &mut self.classes[id.0 as usize];
                (class.armed, class.gate, class.is_uncounted) = (true, 0, false);
            }
        }
        if self.now_ns < done_ns || flight.made.is_some() {
            return;
        }
        let functions = &self.scenario.target.functions;
        let by_kernel = |id: &&ClassId| {
            functions[self.classes[id.0 as usize].function].attachable == Attachable::ByKernel
        };
        flight.refused = flight.group.classes.iter().filter(by_kernel).copied().collect();
        let gone = flight.is_cancelled || flight.refused.len() == flight.group.classes.len();
        let taken: Vec<ClassId> =
            flight.group.classes.iter().filter(|id| !flight.refused.contains(id)).copied().collect();
        let base = flight.group.classes.iter().map(|id| self.classes[id.0 as usize].counters).collect();
        flight.made = Some((base, self.done.cpu_ns as u64));
        for id in &flight.refused {
            self.classes[id.0 as usize].armed = false;
        }
        let (alarmed, quotas) = (flight.is_alarmed, flight.quotas.clone());
        let all = flight.group.classes.clone();
        self.price_link();
        if gone {
            all.iter().for_each(|id| self.classes[id.0 as usize].armed = false);
            self.price_link();
            self.clean_children();
            return;
        }
        let leader = all[0];
        let mut links =
            Links { leader, members: taken.clone(), made_ns: done_ns, state: LinkState::On, tripped: None };
        if alarmed {
            (links.tripped, links.state) = (Some((leader, done_ns)), LinkState::Asked(done_ns + 1));
        } else {
            for (id, quota) in all.iter().zip(quotas).filter(|(id, _)| taken.contains(id)) {
                self.classes[id.0 as usize].gate = quota;
            }
        }
        self.links.push(links);
    }

    fn price_link(&mut self) {
        if !self.done.is_held && self.is_alive() {
            let (now, ns) = (self.now_ns, self.prices.attach.ns);
            self.truth.at(now).links_ns += ns;
        }
    }

    /// No link is left: the kernel takes the breakpoints out of the children, too.
    fn clean_children(&mut self) {
        if !self.classes.iter().any(|class| class.armed) {
            self.asked.must_be_clear = false;
            self.children.clean();
        }
    }

    /// Price of a hit with its exit, ns of the target's CPU time. A survey has no exits watched.
    fn hit_ns(&self, class: &Class) -> f64 {
        let target = &self.scenario.target;
        let function = &target.functions[class.function];
        let exit_ns = if class.state.kind() == Some(WindowKind::Survey) { 0.0 } else { function.exit_ns };
        (function.hit_ns + exit_ns) * target.price_factor
    }

    fn most_cpu(&self) -> f64 {
        f64::from(self.scenario.watch.cpus).min(self.scenario.target.threads as f64)
    }

    /// CPU s/s that the target uses by itself.
    #[must_use]
    pub fn own_cpu(&self, s: f64) -> f64 {
        let target = &self.scenario.target;
        (target.cpu * target.cpu_shape.at(s).max(0.0)).min(self.most_cpu())
    }

    /// Context switches per s: as often as it works.
    #[must_use]
    pub fn switches_per_s(&self, s: f64) -> f64 {
        self.scenario.target.switches_per_s * self.scenario.target.cpu_shape.at(s).clamp(0.0, 1.0)
    }

    /// How fast the target goes from now on.
    fn slice(&self) -> Slice {
        let s = self.seconds();
        let target = &self.scenario.target;
        let own = self.own_cpu(s);
        let of = |class: &Class| target.functions[class.function].rate_at(s) * self.hit_ns(class);
        let hits = self.classes.iter().filter(|class| class.armed).map(of).sum::<f64>() * 1e-9;
        let cpus = self.most_cpu();
        let most = if target.is_bound { own } else { own.max(cpus) };
        let speed = if own + hits > most { most / (own + hits).max(1e-12) } else { 1.0 };
        Slice { begin_ns: self.now_ns, length_ns: 0.0, s, speed }
    }

    /// The slice ends where a quota is about to be used up.
    fn until_trip(&self, slice: &Slice, end_ns: u64) -> u64 {
        let mut until_ns = end_ns;
        for class in self.classes.iter().filter(|class| class.armed && class.gate > 0) {
            let rate = self.scenario.target.functions[class.function].rate_at(slice.s) * slice.speed;
            let trip_ns = class.gate as f64 * 1e9 / rate.max(1e-9);
            if trip_ns < 1e9 {
                until_ns = until_ns.min(slice.begin_ns + (trip_ns as u64).max(20_000));
            }
        }
        until_ns.max(slice.begin_ns + 1)
    }

    /// The target runs for a slice.
    fn run(&mut self, slice: Slice) {
        let Slice { length_ns, s, speed, .. } = slice;
        let own = self.own_cpu(s);
        let own_ns = own * speed * length_ns;
        let (open_ns, away_ns) = self.hit(&slice);
        let factor = self.scenario.target.price_factor;
        let hits_ns = open_ns + away_ns;
        let samples_ns = self.sample(own_ns + hits_ns, length_ns) as f64 * SAMPLE_NS * factor;
        let switches = self.switches_per_s(s) * length_ns * 1e-9;
        self.done.switches += switches;
        let carry = !self.sampler.per_cpu && self.sampler.threads > 0;
        let switches_ns = if carry { switches * self.prices.switch.ns * factor } else { 0.0 };
        self.done.own_ns += own_ns;
        self.done.cpu_ns += own_ns + hits_ns + samples_ns + switches_ns;
        let now = self.now_ns;
        self.truth.ran(now, length_ns, own_ns);
        let linked = self.classes.iter().any(|class| class.armed);
        let forks = self.scenario.target.forks;
        let lost = self.scenario.trouble.lost_birth;
        let now_ns = now + length_ns as u64;
        let carried = self.children.advance(
            (now_ns, length_ns),
            forks.as_ref(),
            (self.start_ns, linked, lost),
            &mut self.chance,
        );
        let busy = hits_ns / (own_ns + hits_ns).max(1.0);
        let second = self.truth.at(now);
        second.open_ns += open_ns;
        second.turned_away_ns += away_ns;
        second.samples_ns += samples_ns;
        second.switches_ns += switches_ns;
        second.children_ns += carried * busy;
        second.carried_ns += carried;
    }

    /// Hits of a slice: what they cost, through open gates and turned away, ns.
    fn hit(&mut self, slice: &Slice) -> (f64, f64) {
        let (mut open_ns, mut away_ns) = (0.0, 0.0);
        let (mut alarms, mut parts) = (Vec::new(), Vec::new());
        let is_tripped = |links: &&Links| links.tripped.is_some();
        let tripped: Vec<ClassId> =
            self.links.iter().filter(is_tripped).flat_map(|l| l.members.clone()).collect();
        for index in 0..self.classes.len() {
            if !self.classes[index].armed {
                continue;
            }
            let price_ns = self.hit_ns(&self.classes[index]);
            let class = &mut self.classes[index];
            let function = &self.scenario.target.functions[class.function];
            let expected = function.rate_at(slice.s) * slice.speed * slice.length_ns * 1e-9;
            let hits = self.chance.events(expected, &mut class.credit);
            if hits == 0 {
                continue;
            }
            let kept = hits.min(class.gate);
            class.gate -= kept;
            // What comes between a trip and the closing is the breaker's, also where a quota was given anew meanwhile.
            let open = if tripped.contains(&ClassId(index as u32)) { 0 } else { kept };
            open_ns += open as f64 * price_ns;
            away_ns += (hits - open) as f64 * price_ns;
            if let Some(part) = function.part {
                let is_used_up = class.gate == 0 && kept > 0;
                parts.push(SliceHits { part, kept: open, away: hits - open, is_used_up });
            }
            if class.is_uncounted {
                continue;
            }
            let counters = &mut class.counters;
            counters.attempted += hits;
            counters.kept += kept;
            counters.gated += hits - kept;
            let exits = function.exit_ns > 0.0 && class.state.kind() != Some(WindowKind::Survey);
            counters.ends += if exits { hits } else { 0 };
            if class.gate == 0 {
                alarms.push(ClassId(index as u32));
            }
        }
        let own_ns = self.ran_operations(&parts) * self.scenario.target.price_factor;
        alarms.into_iter().for_each(|id| self.alarm(id, slice.begin_ns + slice.length_ns as u64));
        (open_ns + own_ns, away_ns)
    }

    /// A hit found no quota left, or took the last of it.
    fn alarm(&mut self, id: ClassId, now_ns: u64) {
        if let Some(flight) = &mut self.asked.flight
            && flight.made.is_none()
        {
            let counters = self.classes[id.0 as usize].counters;
            let since = match &self.classes[id.0 as usize].state {
                State::Opening(..) => counters.gated - self.classes[id.0 as usize].read.gated,
                _ => 0,
            };
            flight.is_alarmed |= flight.group.classes.contains(&id) && since > ALARM_HITS;
        }
        let of = |links: &&mut Links| links.state == LinkState::On && links.members.contains(&id);
        let Some(links) = self.links.iter_mut().find(of) else { return };
        let trouble = &self.scenario.trouble;
        let react_ns = if self.chance.one_in(trouble.lost_alarm) {
            self.chance.between((0.0, GATES_NS))
        } else if self.chance.one_in(trouble.late_react) {
            self.chance.between((1e6, 20e6))
        } else {
            self.chance.between(trouble.react_ms) * 1e6
        };
        links.tripped = Some((id, now_ns));
        links.state = LinkState::Asked(now_ns + react_ns as u64);
        self.log.trips += 1;
    }

    /// Samples of so much CPU time of the target.
    fn sample(&mut self, cpu_ns: f64, length_ns: f64) -> u64 {
        let sampler = &mut self.sampler;
        if sampler.is_paused || sampler.period_ns == 0 {
            return 0;
        }
        let period_ns = sampler.period_ns as f64;
        sampler.carry += cpu_ns / period_ns;
        let samples = sampler.carry as u64;
        sampler.carry -= samples as f64;
        sampler.samples += samples;
        sampler.new += samples;
        sampler.cpu_ns += samples * sampler.period_ns;
        if sampler.per_cpu {
            let cpus = f64::from(self.scenario.watch.cpus);
            sampler.foreign += (cpus * length_ns - cpu_ns).max(0.0) / period_ns;
        }
        samples
    }

    /// Hits of a class by one thread so far.
    #[must_use]
    pub fn hits_by(&self, id: ClassId, thread: usize) -> u64 {
        let class = &self.classes[id.0 as usize];
        match self.scenario.target.functions[class.function].caller {
            Caller::One(one) => u64::from(one == thread) * class.counters.attempted,
            Caller::All => (class.counters.attempted as f64 * self.scenario.target.part_of(thread)) as u64,
        }
    }

    /// The counters of a class now; from here on they count as read.
    pub fn read(&mut self, id: ClassId) -> Counters {
        let class = &mut self.classes[id.0 as usize];
        class.read = class.counters;
        class.read
    }
}
