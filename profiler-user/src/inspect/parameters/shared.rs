//! Which names several modules of a process define: the dynamic linker binds all slots of a name to one of them, mostly.

use super::super::graph::defined_names;
use super::super::module::Module;
use std::collections::{HashMap, HashSet};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Shared {
    names: HashSet<String>,
    /// All modules could be read.
    is_whole: bool,
}

impl Shared {
    /// # Cost
    /// Reads the dynamic symbols of all modules: some 50 ns for each.
    pub fn of(modules: &[Module]) -> Self {
        let mut first = HashMap::new();
        let mut shared = Self { names: HashSet::new(), is_whole: true };
        for (number, module) in modules.iter().enumerate().filter(|(_, module)| module.is_held()) {
            let Some(names) = module.elf().ok().and_then(|elf| defined_names(elf)) else {
                shared.is_whole = false;
                continue;
            };
            for name in names {
                if first.get(&name).is_some_and(|other| *other != number) {
                    shared.names.insert(name);
                } else {
                    first.insert(name, number);
                }
            }
        }
        shared
    }

    /// Whether more than one module defines a name, or may.
    pub fn holds(&self, name: &str) -> bool {
        !self.is_whole || self.names.contains(name)
    }
}
