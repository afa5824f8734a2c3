//! The agent's part of ending windows, as the real agent has it: gates shut, drains, links closed, rows.

use super::state::{Ends, LinkState, Links, State, Window};
use super::world::World;
use profiler_core::class::ClassId;
use profiler_core::engine::input::Ended;
use profiler_core::recording::{WindowKind, WindowRow};
use profiler_core::run::order::{Ending, Purpose};
use profiler_core::run::outcome::NotOpened;

/// So long the links of a window that has ended wait for calls in flight at most, ns.
const DRAIN_NS: f64 = 50e6;
/// The same where forks of others have been held up enough.
const STAY_NS: f64 = 5e9;

impl World {
    fn members(&self, leader: ClassId) -> Vec<ClassId> {
        let ids = (0u32..).map(ClassId).zip(&self.classes);
        ids.filter(|(_, class)| class.state.leader() == Some(leader)).map(|(id, _)| id).collect()
    }

    fn links_of(&mut self, leader: ClassId) -> Option<&mut Links> {
        self.links.iter_mut().find(|links| links.leader == leader)
    }

    /// Ends the windows of a class and of all that share its links.
    pub fn close(&mut self, id: ClassId, ending: Ending) {
        let leader = match &mut self.classes[id.0 as usize].state {
            State::Off => return self.log.idle("end of a class that is off"),
            State::Waiting(_) => return self.put_back(&[id], NotOpened::Closed),
            State::Opening(_, closed) => {
                if *closed != Some(Ending::AtOnce) {
                    *closed = Some(ending);
                }
                if let Some(flight) = &mut self.asked.flight {
                    flight.is_cancelled = true;
                }
                return;
            }
            State::Closing(window, _) => {
                let leader = window.leader;
                if ending == Ending::AtOnce {
                    self.end_drain(leader);
                } else {
                    self.log.idle("end of a class whose link is being closed");
                }
                return;
            }
            State::Open(window) => window.leader,
        };
        let (now, cpu_ns) = (self.now_ns, self.done.cpu_ns as u64);
        let members = self.members(leader);
        let timed = members
            .iter()
            .any(|id| self.scenario.target.functions[self.classes[id.0 as usize].function].exit_ns > 0.0);
        let mut drains = ending == Ending::Drain && timed && self.chance.one_in(4);
        let mut longest_ns = DRAIN_NS;
        if ending != Ending::AtOnce && self.chance.one_in(self.scenario.trouble.slow_close) {
            (drains, longest_ns) = (true, STAY_NS);
        }
        let until_ns = now + if drains { self.chance.between((0.0, longest_ns)) as u64 } else { 0 };
        for member in members {
            let class = &mut self.classes[member.0 as usize];
            class.gate = 0;
            if let State::Open(window) = class.state {
                class.state = State::Closing(window, Ends { end_ns: now, cpu_ns, tripped: false });
            }
        }
        let counted = if let Some(links) = self.links_of(leader)
            && links.state == LinkState::On
        {
            links.state = if drains { LinkState::Draining(until_ns) } else { LinkState::Asked(now) };
            !drains
        } else {
            true
        };
        self.asked.links.0 += u64::from(counted);
    }

    fn end_drain(&mut self, leader: ClassId) {
        let now = self.now_ns;
        if let Some(links) = self.links_of(leader)
            && matches!(links.state, LinkState::Draining(_))
        {
            links.state = LinkState::Asked(now);
            self.asked.links.0 += 1;
        }
    }

    /// Ends every window, and what waits.
    pub fn close_all(&mut self, ending: Ending) {
        for index in 0..self.classes.len() {
            if self.classes[index].state != State::Off {
                self.close(ClassId(index as u32), ending);
            }
        }
    }

    /// Windows that have ended with their links.
    pub fn ended(&mut self) -> Vec<Ended> {
        let now = self.now_ns;
        let over: Vec<ClassId> = self
            .links
            .iter()
            .filter(|links| matches!(links.state, LinkState::Draining(until) if now >= until))
            .map(|links| links.leader)
            .collect();
        over.into_iter().for_each(|leader| self.end_drain(leader));
        let flight = self.asked.flight.as_ref().map(|flight| (flight.group.classes[0], flight.times_ns.1));
        let early = |links: &Links| flight == Some((links.leader, links.made_ns));
        let gone = |links: &mut Links| matches!(links.state, LinkState::Gone(..)) && !early(links);
        let gone: Vec<Links> = self.links.extract_if(.., |links| gone(links)).collect();
        let mut ended = Vec::new();
        for links in gone {
            self.end(&links, &mut ended);
        }
        ended
    }

    fn end(&mut self, links: &Links, ended: &mut Vec<Ended>) {
        let LinkState::Gone(began_ns, gone_ns) = links.state else { return };
        let cpu_ns = self.done.cpu_ns as u64;
        let members: Vec<ClassId> = self.members(links.leader);
        let open = |id: &ClassId| matches!(self.classes[id.0 as usize].state, State::Open(_));
        self.asked.links.0 += u64::from(members.iter().any(open));
        for id in members {
            let state = self.classes[id.0 as usize].state;
            let own = links.tripped.is_some_and(|(by, _)| by == id);
            let trip_ns = |window: &Window| match links.tripped {
                Some((_, ns)) if own => ns.max(window.start_ns),
                _ => began_ns.max(window.start_ns),
            };
            let (window, mut ends) = match state {
                State::Open(w) => (w, Ends { end_ns: trip_ns(&w), cpu_ns, tripped: true }),
                State::Closing(w, ends) => (w, ends),
                State::Off | State::Waiting(_) | State::Opening(..) => continue,
            };
            if links.tripped.is_some() && trip_ns(&window) < ends.end_ns {
                (ends.tripped, ends.end_ns) = (true, trip_ns(&window));
            }
            let itself = ends.tripped && own;
            let row = self.row(id, &window, &ends, itself);
            let counters = self.classes[id.0 as usize].counters;
            let class = &mut self.classes[id.0 as usize];
            class.state = State::Off;
            class.read = counters;
            self.operations.spans.insert(id, (window.start_ns, ends.end_ns));
            let class = &mut self.classes[id.0 as usize];
            let told = class.window.take();
            if told != Some(window.number) {
                self.fault(|| {
                    format!("the window of class {id} ended, its outcome was not told once: {told:?}")
                });
            }
            let class = self.class_view(id);
            ended.push(Ended {
                row,
                number: window.number,
                tripped_itself: itself,
                watched_ns: began_ns,
                closed_ns: gone_ns,
                age_ns: began_ns.saturating_sub(links.made_ns),
                expedited: false,
                durations: Vec::new(),
                remark: None,
                class,
            });
        }
    }

    fn row(&self, id: ClassId, window: &Window, ends: &Ends, tripped: bool) -> WindowRow {
        let class = &self.classes[id.0 as usize];
        let mut seen = class.counters.since(window.base);
        if window.kind == WindowKind::Survey && ends.tripped && !tripped && seen.kept >= window.quota {
            (seen.kept, seen.gated) = (seen.kept + seen.gated, 0);
        }
        let void = tripped && window.kind != WindowKind::Trace && seen.kept == 0;
        let function = &self.scenario.target.functions[class.function];
        WindowRow {
            class_id: id.0,
            kind: window.kind,
            start_ns: window.start_ns,
            end_ns: if void { window.start_ns } else { ends.end_ns.max(window.start_ns) },
            target_cpu_ns: ends.cpu_ns.saturating_sub(window.base_cpu_ns),
            attempted: seen.attempted,
            kept: seen.kept,
            gated: seen.gated,
            dropped: 0,
            returns: seen.ends,
            unwound: 0,
            omitted: 0,
            open: 0,
            sum_ns: 0,
            nested_cost_ns: 0,
            max_ns: 0,
            tripped,
            tau_ns: function.hit_ns + function.exit_ns,
            ran_ns: None,
            ran_tid: None,
            link: (window.purpose == Purpose::Reference).then_some(window.leader.0),
        }
    }
}
