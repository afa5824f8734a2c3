//! Which argument registers the records of a class cannot have, and what is said of it.

use crate::inspect::{ALL_ARGUMENTS, register_names};

/// Argument registers that do not hold what the caller passed, as [`crate::inspect::Site::arguments`] names them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostArguments {
    set: u8,
    none_at_all: Option<&'static str>,
}

impl LostArguments {
    /// At a site that has these; `none_at_all`: why no register holds an argument of the function at any site.
    #[must_use]
    pub fn at(arguments: u8, none_at_all: Option<&'static str>) -> Self {
        let mut lost = Self { set: 0, none_at_all };
        lost.add(arguments);
        lost
    }

    /// Calls are seen to begin at another site from now on, which has these. A record of the earlier one may still lie in the ring: what one of the two
    /// has lost is lost.
    pub fn add(&mut self, arguments: u8) {
        self.set |= if self.none_at_all.is_some() { ALL_ARGUMENTS } else { !arguments & ALL_ARGUMENTS };
    }

    /// Those that are lost, as [`crate::inspect::Site::arguments`] names them.
    #[must_use]
    pub fn set(self) -> u8 {
        self.set
    }

    /// Why no register holds an argument of the function at any site.
    #[must_use]
    pub fn none_at_all(self) -> Option<&'static str> {
        self.none_at_all
    }

    /// The arguments of a recorded call.
    #[must_use]
    pub fn kept(self, registers: [u64; 6]) -> [Option<u64>; 6] {
        let mut bit = 1;
        registers.map(|value| {
            let lost = self.set & bit != 0;
            bit <<= 1;
            (!lost).then_some(value)
        })
    }

    /// What is to be said of the records; nothing where none is lost.
    #[must_use]
    pub fn note(self) -> Option<String> {
        if self.set == 0 {
            return None;
        }
        Some(match self.none_at_all {
            Some(why) => format!("arguments are null in its records: {why}"),
            None => format!(
                "null in its records, because they are overwritten before its site: {}",
                register_names(self.set)
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_of_the_sites_has_lost_is_lost() {
        let mut lost = LostArguments::at(0b11_1110, None);
        assert_eq!(lost.kept([1, 2, 3, 4, 5, 6]), [None, Some(2), Some(3), Some(4), Some(5), Some(6)]);
        lost.add(0b01_1111);
        assert_eq!(lost.kept([1, 2, 3, 4, 5, 6]), [None, Some(2), Some(3), Some(4), Some(5), None]);
        assert!(lost.note().unwrap().ends_with(": rdi, r9"));
        assert_eq!(LostArguments::at(ALL_ARGUMENTS, None).note(), None);
    }

    #[test]
    fn where_no_register_holds_any_all_are_null_whatever_the_site() {
        let mut lost = LostArguments::at(ALL_ARGUMENTS, Some("of Go"));
        lost.add(ALL_ARGUMENTS);
        assert_eq!(lost.kept([7; 6]), [None; 6]);
        assert!(lost.note().unwrap().ends_with(": of Go"));
    }
}
