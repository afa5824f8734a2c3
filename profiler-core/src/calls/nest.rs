//! Which call each step was made in.
//!
//! Where the function that calls is watched, its frame is the latest entry at the caller's slot: a slot that a function returns through is nobody
//! else's while it runs. That needs no assumption on stacks. Where it is not watched, the call was made, through functions that are not watched, by
//! the youngest frame that is still open. Exits are not seen, so that a frame that may be open need not be. It is where a later step proves that
//! it still runs; and it is not where code says that it cannot have led here. Else the link is ambiguous.

use super::code::{Code, DEFAULT_SPAN_BYTES, caller_slot, is_signal};
use super::life;
use super::stacks::{Index, Stacks};
use crate::recording::{CallSiteRow, StepRow};

/// How a step came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// By a call.
    #[default]
    Call,
    /// The function above handed over to it by a jump, and has left.
    Tail,
    /// It is the handler of a signal.
    Signal,
}

/// What a step belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link {
    /// The step that entered the function that it was called in; `None`: it was called in none that was entered inside the operation.
    pub parent: Option<usize>,
    /// How.
    pub kind: Kind,
    /// Parent and kind are the likely ones among several that are possible.
    pub is_ambiguous: bool,
}

/// Steps of an operation with what they belong to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Nesting {
    /// One for each step.
    pub links: Vec<Link>,
    /// The last step that proves that the function still ran: one that was called in it, or in such a one.
    pub alive_at: Vec<usize>,
    /// The step that proves that it had returned; `None`: none does.
    pub gone_by: Vec<Option<usize>>,
}

/// How far a parent that was found is to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Belief {
    Sure,
    /// It is right if it still ran then.
    IfAlive,
    Unsure,
}

/// What is found of a step when it is come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub parent: Option<Index>,
    pub kind: Kind,
    pub belief: Belief,
    /// The frame that called, however the step is linked: it ran.
    pub caller: Option<Index>,
}

impl Found {
    fn new(parent: Option<Index>, belief: Belief) -> Self {
        Self { parent, kind: Kind::Call, belief, caller: None }
    }
}

/// Nests the steps of an operation, in the order of their numbers. All of them must be there ([`super::Census`]): where one is missing, links that are
/// not marked may be wrong.
#[must_use]
pub fn nest(steps: &[StepRow], code: &Code) -> Nesting {
    let mut pass = Pass::new(code, code.span_bytes);
    pass.run(steps);
    // A frame that was taken for gone called again: the process switches stacks, or they lie closer together than said.
    if pass.is_refuted && code.span_bytes > 0 {
        pass = Pass::new(code, 0);
        pass.run(steps);
        return pass.resolve();
    }
    let mut nesting = pass.resolve();
    if code.span_bytes == 0 && nesting.links.iter().any(|link| link.is_ambiguous) {
        guess_by_distance(&mut nesting, steps, code);
    }
    nesting
}

/// A process that may switch stacks seldom does. Where a link is ambiguous the likely one is that of a thread that keeps to one.
fn guess_by_distance(nesting: &mut Nesting, steps: &[StepRow], code: &Code) {
    let mut pass = Pass::new(code, DEFAULT_SPAN_BYTES);
    pass.run(steps);
    if pass.is_refuted {
        return;
    }
    let guesses = pass.resolve().links;
    for (link, guess) in nesting.links.iter_mut().zip(guesses).filter(|(link, _)| link.is_ambiguous) {
        *link = Link { is_ambiguous: true, ..guess };
    }
}

/// One pass over the steps.
struct Pass<'a> {
    code: &'a Code,
    stacks: Stacks,
    found: Vec<Found>,
    /// Of a frame at whose slot another one took over, or may have: that one.
    handed_on: Vec<Option<Index>>,
    /// A frame that had been closed called again.
    is_refuted: bool,
}

/// What is known of a frame at a step's own slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It returned, or there was none.
    Returned,
    /// It jumped to the step's function.
    Jumped(Index),
    /// One of the two.
    Either(Index),
    /// None was there, which the call site does not agree with.
    Contradiction,
}

impl<'a> Pass<'a> {
    fn new(code: &'a Code, span: u64) -> Self {
        Self { code, stacks: Stacks::new(span), found: Vec::new(), handed_on: Vec::new(), is_refuted: false }
    }

    fn resolve(self) -> Nesting {
        life::resolve(self.found, self.stacks.gone_by, &self.handed_on)
    }

    fn run(&mut self, steps: &[StepRow]) {
        for (index, step) in steps.iter().enumerate() {
            let site = self.code.site(step);
            let found = if is_signal(site) { self.signal() } else { self.call(index, steps, step, site) };
            self.found.push(found);
            self.stacks.enter(step.slot);
            self.handed_on.push(None);
        }
    }

    /// A handler: it interrupted the youngest frame, or one that is not watched below it.
    fn signal(&self) -> Found {
        let parent = self.stacks.youngest_first().next().map(|(index, _)| index);
        let belief = match parent {
            None => Belief::Sure,
            Some(_) if self.stacks.ignores_distances() => Belief::Unsure,
            Some(_) => Belief::IfAlive,
        };
        Found { kind: Kind::Signal, ..Found::new(parent, belief) }
    }

    fn call(&mut self, index: Index, steps: &[StepRow], step: &StepRow, site: Option<&CallSiteRow>) -> Found {
        let before = self.before(steps, step, site);
        let caller_slot = caller_slot(step, site);
        // What lies in the caller's frame is no frame of another; one that is larger than a stack is none.
        let frame = caller_slot.filter(|slot| slot - step.slot < DEFAULT_SPAN_BYTES);
        if let Some(end) = frame {
            self.stacks.close_in(step.slot.saturating_add(1)..end, index);
        }
        self.stacks.close_below(step.slot, index);
        self.stacks.close(step.slot, index);
        let class = site.and_then(|site| site.function_class);
        let mut found = match (class, caller_slot) {
            (Some(class), Some(slot)) => self.called_by_watched(index, steps, class, slot),
            (Some(class), None) => self.called_by_class(steps, class),
            (None, slot) => self.called_by_unwatched(index, steps, slot.ok_or(step.slot), site),
        };
        // It may be the handler of a signal.
        if site.is_none() {
            found.belief = Belief::Unsure;
        }
        match before {
            Before::Returned => {}
            Before::Jumped(earlier) => {
                found = Found { parent: Some(earlier), kind: Kind::Tail, belief: Belief::Sure, ..found };
                self.hand_on(earlier, index);
            }
            Before::Either(earlier) => {
                found.belief = Belief::Unsure;
                self.hand_on(earlier, index);
            }
            Before::Contradiction => found.belief = Belief::Unsure,
        }
        found
    }

    /// What became of the frame at the step's own slot: its caller called again, or it jumped here.
    fn before(&self, steps: &[StepRow], step: &StepRow, site: Option<&CallSiteRow>) -> Before {
        let target = site.and_then(|site| site.target_class);
        // The call before the return address goes elsewhere: something jumped here.
        let was_jumped_to = target.is_some_and(|class| class != step.class_id);
        let earlier = self.stacks.latest(step.slot).and_then(|index| Some((index, steps.get(index)?)));
        let Some((index, earlier)) = earlier else { return Before::Returned };
        let is_same = earlier.return_address == step.return_address;
        let is_known = earlier.return_address != 0 && step.return_address != 0;
        if is_known && !is_same || !self.stacks.is_open(index) {
            return if was_jumped_to { Before::Contradiction } else { Before::Returned };
        }
        let may_jump = self.code.may_jump(earlier.class_id, step.class_id);
        match (may_jump, was_jumped_to) {
            // Whatever was called first was entered through this slot, so that the latest entry there belongs to the same call.
            (true, true) if is_known => Before::Jumped(index),
            (false, false) => Before::Returned,
            (false, true) => Before::Contradiction,
            _ => Before::Either(index),
        }
    }

    /// The end of one frame is that of another.
    fn hand_on(&mut self, from: Index, to: Index) {
        if let Some(handed_on) = self.handed_on.get_mut(from) {
            *handed_on = Some(to);
        }
    }

    /// Called by a function of a class, whose frame has this slot.
    fn called_by_watched(&mut self, index: Index, steps: &[StepRow], class: u32, slot: u64) -> Found {
        let latest = self.stacks.latest(slot).filter(|latest| class_of(steps, *latest) == Some(class));
        let Some(caller) = latest else {
            // It was entered before the operation began. Then nothing was entered at its slot since, and nothing above it is open.
            // A function that bounds the operation may have been entered again inside it, which is no step.
            let asks = self.code.bounds_the_operation(class) || !self.stacks.ignores_distances();
            let is_above = asks && self.stacks.next_above(slot).is_some();
            let is_odd = is_above || self.stacks.latest(slot).is_some();
            self.stacks.close(slot, index);
            return Found::new(None, if is_odd { Belief::Unsure } else { Belief::Sure });
        };
        if !self.stacks.is_open(caller) {
            self.is_refuted = true;
            return Found::new(Some(caller), Belief::Unsure);
        }
        self.stacks.close_younger(caller, index);
        Found { caller: Some(caller), ..Found::new(Some(caller), Belief::Sure) }
    }

    /// Called by a function of a class; where its frame is is not known.
    fn called_by_class(&self, steps: &[StepRow], class: u32) -> Found {
        let parent = self.stacks.youngest_first().map(|(index, _)| index);
        let parent = parent.into_iter().find(|index| class_of(steps, *index) == Some(class));
        let belief = match parent {
            None if self.stacks.nothing_is_open() => Belief::Sure,
            Some(_) if !self.stacks.ignores_distances() => Belief::IfAlive,
            _ => Belief::Unsure,
        };
        Found::new(parent, belief)
    }

    /// Called by a function that is not watched. `slot`: its own, or else the step's.
    fn called_by_unwatched(
        &mut self,
        index: Index,
        steps: &[StepRow],
        slot: Result<u64, u64>,
        site: Option<&CallSiteRow>,
    ) -> Found {
        let jumper = slot.ok().and_then(|slot| self.jumper(index, steps, slot, site));
        if self.stacks.ignores_distances() {
            let (Ok(slot) | Err(slot)) = slot;
            let near = self.stacks.next_above(slot);
            let any =
                || self.stacks.youngest_first().map(|(frame, _)| frame).find(|frame| Some(*frame) != jumper);
            let belief = if self.stacks.nothing_is_open() { Belief::Sure } else { Belief::Unsure };
            return Found::new(near.or_else(any), belief);
        }
        self.youngest(index, steps, site, jumper)
    }

    /// The frame at the slot of a caller that is not watched, if it may have jumped there; else it has returned.
    fn jumper(
        &mut self,
        index: Index,
        steps: &[StepRow],
        slot: u64,
        site: Option<&CallSiteRow>,
    ) -> Option<Index> {
        let frame = self.stacks.at(slot)?;
        let class = class_of(steps, frame)?;
        let may_jump = |from: &Vec<u32>| from.contains(&class);
        if site.and_then(|site| site.jumps_from.as_ref()).is_none_or(may_jump) {
            return Some(frame);
        }
        self.stacks.close(slot, index);
        None
    }

    /// The youngest frame that can have led to the call site's function. `jumper` may have, too.
    fn youngest(
        &mut self,
        index: Index,
        steps: &[StepRow],
        site: Option<&CallSiteRow>,
        jumper: Option<Index>,
    ) -> Found {
        let reached_from = site.and_then(|site| site.reached_from.as_deref());
        let may_lead = |frame: Index| {
            reached_from.is_none_or(|from| class_of(steps, frame).is_some_and(|class| from.contains(&class)))
        };
        // It may be the frame that led here, so that nothing follows for older ones.
        if let Some(jumper) = jumper {
            let frames = self.stacks.youngest_first().map(|(frame, _)| frame);
            let parent = frames.into_iter().find(|frame| *frame != jumper && may_lead(*frame));
            return Found::new(parent, Belief::Unsure);
        }
        loop {
            let youngest = self.stacks.youngest_first().next();
            let Some((frame, slot)) = youngest else { return Found::new(None, Belief::Sure) };
            if may_lead(frame) {
                return Found::new(Some(frame), Belief::IfAlive);
            }
            // The youngest open frame led here: this one is not open.
            self.stacks.close(slot, index);
        }
    }
}

fn class_of(steps: &[StepRow], index: Index) -> Option<u32> {
    steps.get(index).map(|step| step.class_id)
}
