//! Variables of the target, by their symbols.

use super::Inspection;
use super::elf::Variable;
use super::module::Module;

/// Why a name says no variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// No module has it.
    #[error("no global variable '{0}' in the target: 'nm' lists those that it has as B, D, b or d")]
    Missing(String),
    /// Several have it, and nothing says which is meant.
    #[error("{} variables of the target are named '{name}', at {}: nothing says which is meant", places.len(), places.join(" and "))]
    Several {
        /// The name.
        name: String,
        /// Run-time address and module of each.
        places: Vec<String>,
    },
}

/// Parts of a rank.
const LOCAL: u8 = 1;
const IN_LIBRARY: u8 = 2;

/// Where one was found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    address: u64,
    size: u64,
    /// What comes first: 0 is best.
    rank: u8,
    module: String,
}

impl Inspection {
    /// Run-time address and size (bytes) of a variable. The main program's own comes before those of libraries, as the dynamic linker binds
    /// names, and one that other files see before `static` ones.
    ///
    /// # Errors
    /// There is none, or several are left.
    pub fn variable(&self, name: &str) -> Result<(u64, u64), VariableError> {
        one(name, self.modules.iter().flat_map(|module| of_module(module, name)).collect())
    }
}

fn of_module(module: &Module, name: &str) -> Vec<Found> {
    let Ok(elf) = module.elf() else { return Vec::new() };
    // Code and data of a module are moved by the same distance. A mapping begins at a page, its segment may not.
    let bias = module.mappings.first().and_then(|mapping| {
        let in_mapping =
            |offset: u64| (mapping.offset..mapping.offset + (mapping.end - mapping.start)).contains(&offset);
        let segment = elf.segments.iter().find(|s| s.exec && in_mapping(s.offset))?;
        Some((mapping.start + (segment.offset - mapping.offset)).wrapping_sub(segment.vaddr))
    });
    let Some(bias) = bias else { return Vec::new() };
    let found = |v: Variable| Found {
        address: v.address.wrapping_add(bias),
        size: v.size,
        rank: (u8::from(v.is_local) * LOCAL) | (u8::from(!module.main) * IN_LIBRARY),
        module: module.name.clone(),
    };
    elf.variables(name).into_iter().map(found).collect()
}

/// The one that is meant. Of global ones that several libraries have it is the first's, as for most programs the dynamic linker has it.
fn one(name: &str, mut found: Vec<Found>) -> Result<(u64, u64), VariableError> {
    let best = found.iter().map(|f| f.rank).min();
    found.retain(|f| Some(f.rank) == best);
    if best.is_some_and(|rank| rank & LOCAL == 0) {
        found.truncate(1);
    }
    // A symbol may stand in both tables.
    found.sort_by_key(|f| f.address);
    found.dedup_by_key(|f| f.address);
    match found.as_slice() {
        [] => Err(VariableError::Missing(name.to_owned())),
        [only] => Ok((only.address, only.size)),
        several => Err(VariableError::Several {
            name: name.to_owned(),
            places: several.iter().map(|f| format!("{:#x} ({})", f.address, f.module)).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(address: u64, rank: u8) -> Found {
        Found { address, size: 4, rank, module: "server".into() }
    }

    #[test]
    fn a_static_variable_does_not_hide_the_global_one() {
        // `.symtab` lists local symbols first.
        assert_eq!(one("busy", vec![found(0x10, 1), found(0x20, 0), found(0x20, 0)]), Ok((0x20, 4)));
        assert_eq!(one("busy", vec![found(0x30, 2), found(0x10, 1)]), Ok((0x10, 4)));
        assert_eq!(one("busy", vec![found(0x40, 2), found(0x30, 2)]), Ok((0x40, 4)), "two libraries");
    }

    #[test]
    fn of_two_static_ones_none_is_taken() {
        let error = one("busy", vec![found(0x20, 1), found(0x10, 1)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 variables of the target are named 'busy', at 0x10 (server) and 0x20 (server): nothing says which is meant"
        );
        assert!(one("busy", vec![]).unwrap_err().to_string().starts_with("no global variable 'busy'"));
    }
}
