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

/// What a class is to operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Nothing.
    None,
    /// It is called inside them.
    Inner,
    /// It ends them.
    End,
    /// It begins them, or is one from its begin to its end.
    Begin,
}

impl Role {
    /// What it is needed for.
    #[must_use]
    pub fn need(self) -> Need {
        match self {
            Self::None => Need::Other,
            Self::Inner => Need::Inner,
            Self::End | Self::Begin => Need::Bound,
        }
    }
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
