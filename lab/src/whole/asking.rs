//! The agent's part of attaching, as the real agent has it: a queue of groups, one request in flight, reports.

use super::state::{Class, Flight, Group, State, Window};
use super::target::Attachable;
use super::world::World;
use profiler_core::class::ClassId;
use profiler_core::engine::command::Attach;
use profiler_core::engine::driver::StillWanted;
use profiler_core::recording::WindowKind;
use profiler_core::run::order::{Ending, Purpose};
use profiler_core::run::outcome::{NotOpened, Outcome};
use std::collections::BTreeMap;

/// Classes that get a link of their own; the others share.
pub const OWN_LINKS: usize = 24;
/// Functions on a shared link.
const SHARED_LINK: usize = 200;
/// Between two tries where links cannot be made now, and between two looks at classes that are to trip first, ns.
const RETRY_NS: (u64, u64) = (2_000_000, 500_000);

impl World {
    /// Takes an asking: its classes wait for their turn.
    pub fn ask(&mut self, attach: Attach) {
        let Attach { number, kind, wanted, once, survey } = attach;
        let mut classes = Vec::with_capacity(wanted.len());
        for (id, quota, purpose) in wanted {
            let class = &mut self.classes[id.0 as usize];
            if class.state != State::Off || class.refused.is_some() {
                let state = class.state;
                self.fault(|| format!("class {id} was asked for ({purpose:?}) while it was {state:?}"));
                continue;
            }
            // An answer that is there may be heeded after the next asking, in the same turn.
            let answered = self.asked.outcomes.iter().filter(|o| o.class == id).count();
            if class.asking.len() > answered || class.window.is_some() {
                let open = (class.asking.clone(), class.window);
                self.fault(|| format!("class {id} was asked for, and asking or window {open:?} is not over"));
            }
            let watch = self.scenario.watch;
            let is_burst = matches!(purpose, Purpose::Burst(_));
            if is_burst && (watch.slow_links || watch.only_named) {
                self.fault(|| {
                    format!("a burst of class {id}, where links are slow or nothing else may be attached")
                });
            }
            let class = &mut self.classes[id.0 as usize];
            class.state = State::Waiting(super::state::Pending { kind, quota, purpose, number });
            class.asking.push_back(number);
            class.is_kept = false;
            classes.push(id);
        }
        let all = classes.clone();
        let groups = match survey {
            Some(survey) if survey.together => self.shared(&classes),
            Some(_) => classes.iter().map(|id| vec![*id]).collect(),
            None => {
                let own = classes.len().min(OWN_LINKS);
                let mut groups: Vec<Vec<ClassId>> = classes[..own].iter().map(|id| vec![*id]).collect();
                groups.extend(self.shared(&classes[own..]));
                groups
            }
        };
        let last = groups.len().saturating_sub(1);
        for (i, classes) in groups.into_iter().enumerate() {
            let alone = survey.and_then(|s| s.alone_ns).filter(|_| i == last).map(|ns| (all.clone(), ns));
            let patient_until_ns = survey.map_or(0, |s| s.until_ns);
            self.asked.queue.push_back(Group { kind, classes, number, patient_until_ns, alone, once });
        }
    }

    /// As few links as there are modules, and not too long ones.
    fn shared(&self, classes: &[ClassId]) -> Vec<Vec<ClassId>> {
        let mut modules: BTreeMap<u8, Vec<ClassId>> = BTreeMap::new();
        for id in classes {
            let function = self.classes[id.0 as usize].function;
            modules.entry(self.scenario.target.functions[function].module).or_default().push(*id);
        }
        modules
            .into_values()
            .flat_map(|all| all.chunks(SHARED_LINK).map(<[_]>::to_vec).collect::<Vec<_>>())
            .collect()
    }

    /// The next group whose turn has come.
    fn next_group(&mut self) -> Option<Group> {
        let now = self.now_ns;
        if self.asked.flight.is_some() || now < self.asked.retry_ns {
            return None;
        }
        if let Some((ids, until_ns)) = self.asked.alone.take()
            && now < until_ns
            && ids.iter().all(|id| {
                let class = &self.classes[id.0 as usize];
                matches!(class.state, State::Open(_)) && class.gate > 0
            })
        {
            self.asked.alone = Some((ids, until_ns));
            self.asked.retry_ns = now + RETRY_NS.1;
            return None;
        }
        while let Some(mut group) = self.asked.queue.pop_front() {
            let waits = |id: &ClassId| matches!(&self.classes[id.0 as usize].state, State::Waiting(p) if p.number == group.number);
            let classes: Vec<ClassId> = group.classes.iter().copied().filter(waits).collect();
            group.classes = classes;
            if group.classes.is_empty() {
                continue;
            }
            if self.chance.one_in(self.scenario.trouble.not_now) {
                if now < group.patient_until_ns {
                    self.asked.retry_ns = now + RETRY_NS.0;
                    self.asked.queue.push_front(group);
                    return None;
                }
                self.put_back(&group.classes, NotOpened::NotNow);
                continue;
            }
            return Some(group);
        }
        None
    }

    /// Has the next group's links made. True: it may be asked again.
    pub fn make_next(&mut self, still_wanted: StillWanted<'_>) -> bool {
        let Some(mut group) = self.next_group() else { return false };
        let mut stale = Vec::new();
        group.classes.retain(|id| {
            let State::Waiting(pending) = &self.classes[id.0 as usize].state else { return false };
            let wanted = still_wanted(*id, pending.quota, pending.purpose);
            if !wanted {
                stale.push(*id);
            }
            wanted
        });
        self.put_back(&stale, NotOpened::Closed);
        let s = self.seconds();
        let functions = &self.scenario.target.functions;
        let function = |id: &ClassId| &functions[self.classes[id.0 as usize].function];
        let (mapped, unmapped): (Vec<_>, Vec<_>) =
            group.classes.iter().partition(|id| function(id).is_mapped(s));
        let (ready, patched): (Vec<_>, Vec<_>) =
            mapped.into_iter().partition(|id| function(id).attachable != Attachable::Patched);
        for id in &patched {
            self.classes[id.0 as usize].refused = Some("its code is patched".to_owned());
        }
        self.put_back(&unmapped, NotOpened::Unmapped);
        self.put_back(&patched, NotOpened::Refused);
        if !ready.is_empty() {
            self.begin(Group { classes: ready, ..group });
        }
        true
    }

    fn begin(&mut self, group: Group) {
        let mut quotas = Vec::with_capacity(group.classes.len());
        for id in &group.classes {
            let class = &mut self.classes[id.0 as usize];
            let State::Waiting(pending) = class.state else { continue };
            quotas.push(pending.quota);
            class.state = State::Opening(pending, None);
            class.read = class.counters;
        }
        if self.asked.must_be_clear {
            self.fault(|| "a link is made before all links are gone that were closed together".to_owned());
        }
        let trouble = self.scenario.trouble;
        let slow = self.chance.one_in(trouble.slow_open);
        let ms = if slow { 500.0 } else { self.chance.between(trouble.open_ms) };
        let late = self.chance.one_in(trouble.late_report);
        let report_ms = if late { self.chance.between((1.0, 100.0)) } else { 0.05 };
        let ns = |ms: f64| self.now_ns + (ms * 1e6) as u64;
        let times_ns = (ns(0.7 * ms), ns(ms), ns(ms + report_ms));
        self.asked.begun += 1;
        self.asked.flight = Some(Flight {
            group,
            times_ns,
            made: None,
            is_cancelled: false,
            is_alarmed: false,
            refused: Vec::new(),
            quotas,
        });
    }

    /// These are off again.
    pub fn put_back(&mut self, ids: &[ClassId], why: NotOpened) {
        for id in ids {
            let class = &mut self.classes[id.0 as usize];
            if let State::Waiting(pending) | State::Opening(pending, _) = class.state {
                class.state = State::Off;
                class.read = class.counters;
                self.asked.outcomes.push(Outcome {
                    number: pending.number,
                    class: *id,
                    purpose: pending.purpose,
                    opened: Err(why),
                });
            }
        }
    }

    /// When the agent hears of what is being made, ktime ns.
    #[must_use]
    pub fn report_ns(&self) -> Option<u64> {
        self.asked.flight.as_ref().map(|flight| flight.times_ns.2)
    }

    /// When the next group is to be looked at again, ktime ns.
    #[must_use]
    pub fn retry_ns(&self) -> Option<u64> {
        (self.asked.flight.is_none() && !self.asked.queue.is_empty()).then_some(self.asked.retry_ns)
    }

    /// Takes note of the report of the links that were being made, if it is there.
    pub fn take_report(&mut self) {
        let now = self.now_ns;
        let due = |flight: &Flight| flight.made.is_some() && now >= flight.times_ns.2;
        if !self.asked.flight.as_ref().is_some_and(due) {
            return;
        }
        let Some(flight) = self.asked.flight.take() else { return };
        let Flight { group, made, refused, quotas, times_ns, .. } = flight;
        let Some((base, base_cpu_ns)) = made else { return };
        let leader = group.classes[0];
        let there = self.links.iter().any(|links| links.leader == leader && links.made_ns == times_ns.1);
        for id in &refused {
            self.classes[id.0 as usize].refused = Some("the kernel refuses the site".to_owned());
        }
        self.put_back(&refused, NotOpened::Refused);
        if !there {
            // Made and closed, or not made at all.
            self.asked.links.0 += if refused.len() == group.classes.len() { 0 } else { 2 };
            self.put_back(&group.classes, NotOpened::Closed);
            return;
        }
        let tripped = flight.is_alarmed;
        let links = if tripped { 2 } else { 1 };
        *(if group.once { &mut self.asked.links.1 } else { &mut self.asked.links.0 }) += links;
        let mut closed_before = Vec::new();
        for ((id, quota), base) in group.classes.iter().zip(&quotas).zip(&base) {
            let class = &mut self.classes[id.0 as usize];
            let State::Opening(pending, closed) = class.state else { continue };
            let window = Window {
                kind: group.kind,
                start_ns: times_ns.1,
                quota: *quota,
                purpose: pending.purpose,
                number: pending.number,
                base: *base,
                base_cpu_ns,
                leader,
            };
            let ends = super::state::Ends { end_ns: times_ns.1, cpu_ns: base_cpu_ns, tripped: true };
            class.state = if tripped { State::Closing(window, ends) } else { State::Open(window) };
            closed_before.extend(closed.map(|ending| (*id, ending)));
            let opened = if tripped { Err(NotOpened::Tripped) } else { Ok(window.start_ns) };
            let (number, purpose) = (pending.number, pending.purpose);
            self.asked.outcomes.push(Outcome { number, class: *id, purpose, opened });
            if !tripped && pending.quota < *quota {
                self.set_quota(*id, pending.quota);
            }
        }
        for (id, ending) in closed_before {
            self.close(id, ending);
        }
        if let Some((mut ids, most_ns)) = group.alone {
            ids.retain(|id| matches!(self.classes[id.0 as usize].state, State::Open(_)));
            self.asked.alone = (!ids.is_empty()).then_some((ids, now + most_ns));
        }
    }

    /// Takes what became of what was asked for. Each class is answered once for each asking.
    pub fn answers(&mut self) -> Vec<Outcome> {
        self.take_report();
        let outcomes = std::mem::take(&mut self.asked.outcomes);
        for outcome in &outcomes {
            let class: &mut Class = &mut self.classes[outcome.class.0 as usize];
            let number = class.asking.pop_front();
            let opened = matches!(outcome.opened, Ok(_) | Err(NotOpened::Tripped));
            if opened {
                class.window = number;
                self.log.windows += 1;
            }
            if number != Some(outcome.number) {
                self.fault(|| format!("asking {number:?} was answered by {outcome:?}"));
            }
        }
        outcomes
    }

    /// Windows of the survey that are not open are not opened any more.
    pub fn give_up_survey(&mut self) {
        for index in 0..self.classes.len() {
            let waits = match &self.classes[index].state {
                State::Waiting(pending) | State::Opening(pending, None) => pending.kind == WindowKind::Survey,
                _ => false,
            };
            if waits {
                self.close(ClassId(index as u32), Ending::Soon);
            }
        }
    }

    /// Hits that a class may take from now on.
    pub fn set_quota(&mut self, id: ClassId, hits: u64) {
        let class = &mut self.classes[id.0 as usize];
        match &mut class.state {
            State::Open(window) => {
                window.quota = hits;
                // Also where the breaker has the link by now, and nobody has heard of it.
                class.gate = hits;
            }
            State::Waiting(pending) | State::Opening(pending, _) => pending.quota = hits,
            State::Off => self.log.idle("quota of a class that is off"),
            State::Closing(..) => self.log.idle("quota of a class whose link is being closed"),
        }
    }
}
