//! When open windows are to end.

use crate::class::ClassId;

/// Open windows and their ends. A clock runs from when its window is open, not from when it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clocks {
    ends: Vec<(ClassId, u64)>,
}

impl Clocks {
    /// The window of a class is open, and is to end at this time, ktime ns.
    pub fn start(&mut self, class: ClassId, end_ns: u64) {
        self.ends.push((class, end_ns));
    }

    /// The window of a class is over.
    pub fn stop(&mut self, class: ClassId) {
        self.ends.retain(|(id, _)| *id != class);
    }

    /// The classes whose windows are over at `now_ns`. They are asked for once.
    pub fn take_due(&mut self, now_ns: u64) -> Vec<ClassId> {
        let due = self.ends.iter().filter(|(_, end_ns)| now_ns >= *end_ns).map(|(id, _)| *id).collect();
        self.ends.retain(|(_, end_ns)| now_ns < *end_ns);
        due
    }

    /// Keeps the windows of these classes.
    pub fn keep(&mut self, wanted: impl Fn(ClassId) -> bool) {
        self.ends.retain(|(id, _)| wanted(*id));
    }

    /// A window ends before `until_ns`.
    #[must_use]
    pub fn end_before(&self, until_ns: u64) -> bool {
        self.ends.iter().any(|(_, end_ns)| *end_ns < until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks() -> Clocks {
        let mut clocks = Clocks::default();
        clocks.start(ClassId(0), 80);
        clocks.start(ClassId(1), 50);
        clocks
    }

    #[test]
    fn a_window_ends_once_and_on_time() {
        let mut clocks = clocks();
        assert_eq!(clocks.take_due(49), []);
        assert_eq!(clocks.take_due(50), [ClassId(1)]);
        assert_eq!(clocks.take_due(79), []);
        assert_eq!(clocks.take_due(u64::MAX), [ClassId(0)]);
        assert_eq!(clocks, Clocks::default());
    }

    #[test]
    fn a_window_that_is_over_has_no_clock() {
        let mut clocks = clocks();
        clocks.stop(ClassId(1));
        assert_eq!(clocks.take_due(60), []);
        clocks.keep(|id| id != ClassId(0));
        assert_eq!(clocks.take_due(u64::MAX), []);
    }

    #[test]
    fn a_window_that_ends_later_needs_no_short_turns() {
        assert!(
            !clocks().end_before(50) && clocks().end_before(51) && !Clocks::default().end_before(u64::MAX)
        );
    }
}
