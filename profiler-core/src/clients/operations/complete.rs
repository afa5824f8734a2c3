//! Whether all functions inside operations can be attached for a slice: operations are recorded with all their calls or not at all.

/// Whether inner functions can all be attached for a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// They can.
    Now,
    /// Links of the last slice are still being closed, or those of bounds that have used up their quota.
    Soon,
    /// One of them pauses: the others would be paid for, and nothing could be recorded.
    Later,
}

/// What matters of one inner function for that.
#[derive(Debug, Clone, Copy)]
pub struct Inner {
    /// It is attached.
    pub is_open: bool,
    /// Its link is being made or closed.
    pub is_closing: bool,
    /// Its quota has ended its window, or it stays off for a while because of that.
    pub pauses: bool,
    /// Nobody waits for it.
    pub is_refused: bool,
}

/// Of all of them.
#[must_use]
pub fn ready(list: impl Iterator<Item = Inner>) -> Ready {
    let mut all = Ready::Now;
    for one in list.filter(|one| !one.is_refused) {
        if one.pauses {
            return Ready::Later;
        }
        if !one.is_open && one.is_closing {
            all = Ready::Soon;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: Inner = Inner { is_open: false, is_closing: false, pauses: false, is_refused: false };
    const OPEN: Inner = Inner { is_open: true, ..OFF };

    #[test]
    fn a_slice_begins_when_all_inner_functions_can_be_attached() {
        assert_eq!(ready([].into_iter()), Ready::Now);
        assert_eq!(ready([OFF, OPEN].into_iter()), Ready::Now);
        assert_eq!(ready([OFF, Inner { is_closing: true, ..OFF }, OPEN].into_iter()), Ready::Soon);
        let pauses = Inner { pauses: true, ..OFF };
        assert_eq!(ready([OFF, pauses, OPEN].into_iter()), Ready::Later);
        // Its quota is used up, and its link has not gone yet.
        assert_eq!(
            ready([Inner { is_closing: true, ..OFF }, Inner { pauses: true, ..OPEN }].into_iter()),
            Ready::Later
        );
        assert_eq!(ready([OFF, Inner { is_refused: true, ..pauses }].into_iter()), Ready::Now);
    }
}
