//! Which class a code address belongs to.

use profiler_core::recording::ClassRow;
use std::collections::HashMap;

/// One class's function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassEntry {
    /// Class.
    pub class_id: u32,
    /// Its name, as shown.
    pub name: String,
    start: u64,
    size: u64,
}

/// The functions of the classes, by module and address.
#[derive(Debug, Clone, Default)]
pub struct ClassIndex {
    modules: HashMap<String, Vec<ClassEntry>>,
}

impl ClassIndex {
    /// An index of `classes`. A function without a size counts as one byte long.
    #[must_use]
    pub fn new(classes: &[ClassRow]) -> Self {
        let mut modules: HashMap<String, Vec<ClassEntry>> = HashMap::new();
        // A pair of time stamps lies inside its function, whose samples they are.
        for c in classes.iter().filter(|c| c.stamps_of.is_none()) {
            let entry = ClassEntry {
                class_id: c.class_id,
                name: c.name.clone(),
                start: c.address,
                size: c.size_bytes.max(1),
            };
            modules.entry(c.module.clone()).or_default().push(entry);
        }
        for list in modules.values_mut() {
            list.sort_by_key(|e| e.start);
        }
        Self { modules }
    }

    /// The class whose function holds `address` of `module`.
    #[must_use]
    pub fn find(&self, module: &str, address: u64) -> Option<&ClassEntry> {
        let list = self.modules.get(module)?;
        let i = list.partition_point(|e| e.start <= address).checked_sub(1)?;
        (address - list[i].start < list[i].size).then(|| &list[i])
    }
}
