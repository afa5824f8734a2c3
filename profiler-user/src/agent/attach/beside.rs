//! Functions that several classes watch: an operation's bound that lies inside another operation, or that is recorded as well.
//!
//! Each use is a class of its own, with its own links, quota and prices. A call runs the programs of all of them; what they must know of one
//! another is in their controls.

use super::{Attachments, TargetId};
use crate::agent::class::{LinkState, LiveClass, OperationRole};
use crate::inspect::Breakpoints;
use profiler_core::class::ClassId;

/// What a class must know of the others of its function, as `ClassControl` has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Beside {
    /// [`ClassControl::function`](crate::prober::ClassControl::function).
    pub function: u32,
    /// [`ClassControl::bounds`](crate::prober::ClassControl::bounds).
    pub bounds: u32,
}

/// Classes that watch the same function. `classes`: each with its number and what it is to operations.
fn beside(classes: &[(u32, Option<OperationRole>)]) -> Vec<Beside> {
    let [first, _, ..] = classes else { return vec![Beside::default(); classes.len()] };
    let bounded = classes.iter().filter_map(|(_, role)| match role {
        Some(OperationRole::Whole(n) | OperationRole::Begin(n) | OperationRole::End(n)) => Some(1 << n),
        Some(OperationRole::Inner { .. }) | None => None,
    });
    let all = bounded.fold(0, |all, one: u32| all | one);
    let is_inner = |role: &Option<OperationRole>| matches!(role, Some(OperationRole::Inner { .. }));
    classes
        .iter()
        .map(|(_, role)| Beside { function: first.0 + 1, bounds: if is_inner(role) { all } else { 0 } })
        .collect()
}

impl Attachments {
    /// A class has come, or its role: it and the others of its function learn of one another.
    pub fn join(&mut self, id: ClassId) {
        let key = self.class(id).candidate.key;
        let target = self.targets.of(id);
        let is_same = |c: &&LiveClass| {
            self.targets.of(c.id) == target && c.candidate.key == key && c.candidate.stamps_of.is_none()
        };
        let same: Vec<_> = self.classes.iter().filter(is_same).map(|c| (c.id.0, c.role)).collect();
        for ((of, _), beside) in same.iter().zip(beside(&same)) {
            let of = ClassId(*of);
            if self.beside_of(of) == beside {
                continue;
            }
            self.beside.insert(of, beside);
            if self.class(of).is_linked() {
                self.adjust(of);
            }
        }
    }

    /// What a class must know of others of its function.
    pub(super) fn beside_of(&self, id: ClassId) -> Beside {
        self.beside.get(&id).copied().unwrap_or_default()
    }

    /// Where breakpoints of these classes of a target stand, but for those in callers: of each window the sites of its kind and no others, so that a
    /// debugger's breakpoint at an exit is not taken for ours while the function is surveyed.
    #[must_use]
    pub fn breakpoints(&self, target: TargetId, of: impl Fn(&LiveClass) -> bool) -> Breakpoints {
        let mut all = Breakpoints::new();
        for class in self.classes.iter().filter(|c| self.targets.of(c.id) == target && of(c)) {
            let kind = match &class.state {
                LinkState::Open(window) | LinkState::Closing(window, _) => window.kind,
                LinkState::Opening(pending, _) => pending.kind,
                LinkState::Off | LinkState::Waiting(_) => continue,
            };
            let entry = class.candidate.entry;
            // The same in all of a segment.
            let shift = entry.address.wrapping_sub(entry.offset);
            let sites = class.sites_of(kind).into_iter();
            let of_module = all.entry(class.candidate.key.module).or_default();
            of_module.extend(sites.map(|site| site.offset.wrapping_add(shift)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_one_class_watches_has_no_number() {
        assert_eq!(beside(&[]), []);
        assert_eq!(beside(&[(7, Some(OperationRole::Whole(2)))]), [Beside::default()]);
    }

    #[test]
    fn an_inner_function_knows_the_operations_that_it_bounds() {
        let inner = OperationRole::Inner { measure: 0, counts: true };
        let classes = [
            (3, Some(OperationRole::Whole(0))),
            (4, Some(OperationRole::End(2))),
            (8, Some(inner)),
            (9, None),
        ];
        let of = |bounds| Beside { function: 4, bounds };
        assert_eq!(beside(&classes), [of(0), of(0), of(0b101), of(0)]);
        // Number 0 is one, too.
        assert_eq!(beside(&[(0, None), (5, Some(inner))])[1], Beside { function: 1, bounds: 0 });
    }
}
