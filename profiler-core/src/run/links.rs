//! Who gets links where they are few, and who gets them back.

use crate::class::ClassId;

/// Who goes first where links are few: an operation without its bounds is nothing, one with some of its details is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// It begins or ends operations.
    Bound,
    /// It is called inside operations.
    Inner,
    /// Anything else.
    Other,
}

/// Whether a class is attached again that was taken off for a while. `kept`: somebody still wants it; `inner`: functions inside
/// operations are wanted now. Between slices they would be attached to be detached at once.
#[must_use]
pub fn comes_back(need: Need, kept: bool, inner: bool) -> bool {
    kept && (inner || need != Need::Inner)
}

/// Those of `asked` for which `free` links are not enough. `waiting` are off now and will be asked for: they are not pushed out by
/// what is needed less.
#[must_use]
pub fn surplus(asked: &[(ClassId, Need)], free: usize, waiting: &[Need]) -> Vec<ClassId> {
    let mut asked = asked.to_vec();
    asked.sort_by_key(|(_, need)| *need);
    let mut left = free;
    asked.retain(|(_, need)| {
        let fits = left > waiting.iter().filter(|other| *other < need).count();
        left -= usize::from(fits);
        !fits
    });
    asked.into_iter().map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_inside_come_back_with_their_slice() {
        for need in [Need::Bound, Need::Inner, Need::Other] {
            assert!(comes_back(need, true, true) && !comes_back(need, false, true));
            assert_eq!(comes_back(need, true, false), need != Need::Inner, "{need:?}");
        }
    }

    fn of(needs: &[Need], free: usize, waiting: &[Need]) -> Vec<u32> {
        let asked: Vec<_> = (0u32..).map(ClassId).zip(needs.iter().copied()).collect();
        surplus(&asked, free, waiting).into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn few_links_go_to_the_bounds_of_operations_first() {
        use Need::{Bound, Inner, Other};
        // Inner functions are asked for first: no operation begins that lacks its calls.
        assert_eq!(of(&[Inner, Inner, Inner, Bound, Bound], 4, &[]), [2]);
        assert_eq!(of(&[Other, Inner, Bound], 1, &[]), [1, 0]);
        assert_eq!(of(&[Other, Other], 2, &[]), [0u32; 0]);
        // What is off for a while keeps its place.
        assert_eq!(of(&[Other, Inner], 2, &[Bound]), [0]);
        assert_eq!(of(&[Other, Bound], 2, &[Inner, Other]), [0]);
        assert_eq!(of(&[Bound, Bound], 1, &[Inner]), [1]);
    }
}
