//! Windows in which nothing of an operation could be recorded.

/// Watched windows in a row in which nothing could be recorded, before that is said.
const STARVED_WINDOWS: u32 = 3;

/// Watched windows in which what was left did not pay for recording one operation.
#[derive(Debug, Default)]
pub struct Starved {
    in_a_row: u32,
    windows: u64,
    said: bool,
}

impl Starved {
    /// One more watched window; whether it is time to say it.
    pub fn note(&mut self, starves: bool) -> bool {
        self.in_a_row = if starves { self.in_a_row + 1 } else { 0 };
        self.windows += u64::from(starves);
        self.in_a_row >= STARVED_WINDOWS && !std::mem::replace(&mut self.said, true)
    }

    /// Windows to warn of at the end, where `sample` operations were recorded.
    pub fn worth_a_warning(&self, sample: u64) -> u64 {
        if self.said || sample == 0 { self.windows } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starves_for_some_windows_is_told_once() {
        let mut starved = Starved::default();
        // One window is no pattern.
        assert!(!starved.note(true) && !starved.note(true) && !starved.note(false));
        assert_eq!((starved.worth_a_warning(1), starved.worth_a_warning(0)), (0, 2));
        assert!(!starved.note(true) && !starved.note(true));
        assert!(starved.note(true) && !starved.note(true));
        assert_eq!(starved.worth_a_warning(1), 6);
        assert_eq!(Starved::default().worth_a_warning(0), 0);
    }
}
