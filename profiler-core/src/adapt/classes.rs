//! Names of operation classes, in bounded memory.

use std::collections::HashMap;

/// An operation class: an index into the tables of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationClassId(pub u32);

impl OperationClassId {
    /// The class of all names beyond the bound.
    pub const OVERFLOW: Self = Self(u32::MAX);
}

/// Longest name kept, bytes: as much as a kernel program captures of a string argument.
pub const MAX_NAME_BYTES: usize = 256;

/// Class names, each with its id. A program that puts user names or dates into its routes makes names by the
/// million: beyond the bound all further names share [`OperationClassId::OVERFLOW`], and their operations are counted.
#[derive(Debug, Clone)]
pub struct OperationClassNames {
    ids: HashMap<String, OperationClassId>,
    names: Vec<String>,
    max: usize,
    overflowed: u64,
}

impl OperationClassNames {
    /// A table for at most `max` classes besides the overflow class.
    #[must_use]
    pub fn new(max: usize) -> Self {
        // OK because the last id is the overflow class's.
        let max = max.min(u32::MAX as usize - 1);
        Self { ids: HashMap::new(), names: Vec::new(), max, overflowed: 0 }
    }

    /// The class of an operation with this name. Names are cut to [`MAX_NAME_BYTES`].
    pub fn class_of(&mut self, name: &str) -> OperationClassId {
        let name = cut(name);
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        if self.names.len() >= self.max {
            self.overflowed += 1;
            return OperationClassId::OVERFLOW;
        }
        // OK because `max` is below 2^32.
        let id = OperationClassId(self.names.len() as u32);
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }

    /// The name to show; `(other)` for the overflow class.
    #[must_use]
    pub fn name(&self, id: OperationClassId) -> &str {
        self.names.get(id.0 as usize).map_or("(other)", String::as_str)
    }

    /// Classes that are told apart.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// No class yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Operations that went to the overflow class.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }
}

fn cut(name: &str) -> &str {
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    let mut end = MAX_NAME_BYTES;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_by_the_million_share_one_class() {
        let mut table = OperationClassNames::new(100);
        for i in 0..1_000_000 {
            let id = table.class_of(&format!("GET /user/{i}"));
            assert_eq!(id == OperationClassId::OVERFLOW, i >= 100);
        }
        assert_eq!((table.len(), table.ids.len(), table.overflowed()), (100, 100, 999_900));
        assert_eq!(table.class_of("GET /user/7"), OperationClassId(7));
        assert_eq!(
            (table.name(OperationClassId(7)), table.name(OperationClassId::OVERFLOW)),
            ("GET /user/7", "(other)")
        );
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let mut table = OperationClassNames::new(10);
        let id = table.class_of(&"é".repeat(1_000));
        assert_eq!(table.name(id).len(), 256);
        let odd = table.class_of(&format!("x{}", "é".repeat(1_000)));
        assert_eq!(table.name(odd).len(), 255);
        assert_eq!(table.class_of(&"é".repeat(128)), id);
    }
}
