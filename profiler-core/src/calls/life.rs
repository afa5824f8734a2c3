//! How long each frame is known to have run, and what follows from it for links that were open.

use super::nest::{Belief, Found, Kind, Link, Nesting};
use super::stacks::Index;

/// Passes over the steps, at most. Each makes more links sure; to end early leaves some ambiguous.
const PASSES: usize = 16;

/// Links from what was found of each step. A step proves that the frame that called it ran, and with it the frames that called that one; the youngest
/// frame that may have been open at an earlier step was open, then.
pub(super) fn resolve(
    found: Vec<Found>,
    gone_by: Vec<Option<Index>>,
    handed_on: &[Option<Index>],
) -> Nesting {
    let mut life = Life { alive_at: (0..found.len()).collect(), found };
    for _ in 0..PASSES {
        if !life.pass() {
            break;
        }
    }
    let links = life.found.iter().map(|found| Link {
        parent: found.parent,
        kind: found.kind,
        is_ambiguous: found.belief != Belief::Sure,
    });
    let mut nesting = Nesting { links: links.collect(), alive_at: life.alive_at, gone_by };
    hand_on(&mut nesting, handed_on);
    nesting
}

struct Life {
    found: Vec<Found>,
    alive_at: Vec<Index>,
}

impl Life {
    /// Takes up proofs from the last step to the first; says whether anything became known.
    fn pass(&mut self) -> bool {
        let mut is_changed = false;
        for index in (0..self.found.len()).rev() {
            let Some(mut found) = self.found.get(index).copied() else { continue };
            // What calls of this frame prove of it is known: they come after it.
            if let Some(caller) = found.caller {
                is_changed |= self.prove(caller, index);
            }
            if found.belief == Belief::IfAlive
                && let Some(parent) = found.parent
                && self.alive_at.get(parent).is_some_and(|alive_at| *alive_at > index)
            {
                found.belief = Belief::Sure;
                is_changed = true;
                if let Some(kept) = self.found.get_mut(index) {
                    *kept = found;
                }
            }
            if found.belief == Belief::Sure
                && let (Some(parent), Some(alive_at)) = (found.parent, self.alive_at.get(index).copied())
            {
                is_changed |= self.prove(parent, alive_at);
            }
        }
        is_changed
    }

    /// The frame ran when step `at` was taken. Says whether that is new.
    fn prove(&mut self, frame: Index, at: Index) -> bool {
        let Some(alive_at) = self.alive_at.get_mut(frame).filter(|alive_at| **alive_at < at) else {
            return false;
        };
        *alive_at = at;
        true
    }
}

/// A frame that jumped away lasts as long as the one that it jumped to; one that may have, at most as long. A frame lasts no longer than the one that
/// called it.
fn hand_on(nesting: &mut Nesting, handed_on: &[Option<Index>]) {
    for (index, to) in handed_on.iter().enumerate().rev() {
        if let Some(to) = to
            && let Some(end) = nesting.gone_by.get(*to).copied()
            && let Some(own) = nesting.gone_by.get_mut(index)
        {
            *own = end;
        }
    }
    for index in 0..nesting.links.len() {
        let Some(link) =
            nesting.links.get(index).filter(|link| !link.is_ambiguous && link.kind != Kind::Tail)
        else {
            continue;
        };
        let callers = link.parent.and_then(|parent| nesting.gone_by.get(parent).copied().flatten());
        if let (Some(end), Some(own)) = (callers, nesting.gone_by.get_mut(index)) {
            *own = Some(own.map_or(end, |own| own.min(end)));
        }
    }
}
