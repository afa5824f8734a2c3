//! Variables of the target, by their symbols.

use super::Inspection;
use super::elf::Variable;
use super::link_map::{bias, first_of};
use super::module::Module;

/// Why a name says no variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// No module has it.
    #[error("no global variable '{0}' in the target: 'nm' lists those that it has as B, D, b or d")]
    Missing(String),
    /// Several have it, and nothing says which is meant.
    #[error("{} variables of the target are named '{name}', at {}: {why}", places.len(), places.join(" and "))]
    Several {
        /// The name.
        name: String,
        /// Run-time address and module of each.
        places: Vec<String>,
        /// Why that does not say which is meant.
        why: String,
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
    /// Index of its module, and its name.
    index: usize,
    module: String,
}

impl Inspection {
    /// Run-time address and size (bytes) of a variable. The main program's own comes before those of libraries, and one that other files see before
    /// `static` ones. Where several libraries have one that others see, it is the one that the dynamic linker gives to all of them (`first_of`).
    ///
    /// # Errors
    /// There is none, or several are left.
    pub fn variable(&self, name: &str) -> Result<(u64, u64), VariableError> {
        let found =
            self.modules.iter().enumerate().flat_map(|(index, module)| of_module(index, module, name));
        one(name, found.collect(), |modules| first_of(self, modules))
    }
}

fn of_module(index: usize, module: &Module, name: &str) -> Vec<Found> {
    let Ok(elf) = module.elf() else { return Vec::new() };
    let Some(bias) = bias(module) else { return Vec::new() };
    let found = |v: Variable| Found {
        address: v.address.wrapping_add(bias),
        size: v.size,
        rank: (u8::from(v.is_local) * LOCAL) | (u8::from(!module.main) * IN_LIBRARY),
        index,
        module: module.name.clone(),
    };
    elf.variables(name).into_iter().map(found).collect()
}

/// The one that is meant. `first`: in which of several modules the dynamic linker finds a name.
fn one(
    name: &str,
    mut found: Vec<Found>,
    first: impl FnOnce(&[usize]) -> Result<usize, String>,
) -> Result<(u64, u64), VariableError> {
    let best = found.iter().map(|f| f.rank).min();
    found.retain(|f| Some(f.rank) == best);
    // A symbol may stand in both tables.
    found.sort_by_key(|f| f.address);
    found.dedup_by_key(|f| f.address);
    let mut why = "nothing says which is meant".to_owned();
    if best == Some(IN_LIBRARY) && found.len() > 1 {
        let modules: Vec<usize> = found.iter().map(|f| f.index).collect();
        match first(&modules) {
            Ok(module) => found.retain(|f| f.index == module),
            Err(unknown) => why = format!("{why}: {unknown}"),
        }
    }
    match found.as_slice() {
        [] => Err(VariableError::Missing(name.to_owned())),
        [only] => Ok((only.address, only.size)),
        several => Err(VariableError::Several {
            name: name.to_owned(),
            places: several.iter().map(|f| format!("{:#x} ({})", f.address, f.module)).collect(),
            why,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(address: u64, rank: u8, index: usize) -> Found {
        Found { address, size: 4, rank, index, module: ["server", "liba.so", "libb.so"][index].into() }
    }

    /// The address; nobody is to ask for the dynamic linker's list.
    fn plain(found: Vec<Found>) -> Result<u64, VariableError> {
        one("busy", found, |_| panic!("the list is not needed")).map(|(address, _)| address)
    }

    #[test]
    fn a_static_variable_does_not_hide_the_global_one() {
        // `.symtab` lists local symbols first.
        assert_eq!(plain(vec![found(0x10, 1, 0), found(0x20, 0, 0), found(0x20, 0, 0)]), Ok(0x20));
        assert_eq!(plain(vec![found(0x30, 2, 1), found(0x10, 1, 0)]), Ok(0x10));
        // What the program has copied out of a library, or defines itself, is everybody's.
        assert_eq!(plain(vec![found(0x10, 2, 1), found(0x30, 0, 0), found(0x20, 2, 2)]), Ok(0x30));
        assert_eq!(plain(vec![found(0x40, 2, 1), found(0x40, 2, 1), found(0x30, 3, 2)]), Ok(0x40));
    }

    #[test]
    fn of_those_of_two_libraries_the_dynamic_linker_says_which() {
        let both = || vec![found(0x40, 2, 2), found(0x30, 2, 1), found(0x20, 3, 1)];
        let of = |module: usize| {
            one("busy", both(), |among| {
                assert_eq!(among, [1, 2]);
                Ok(module)
            })
        };
        assert_eq!((of(1), of(2)), (Ok((0x30, 4)), Ok((0x40, 4))));
        let unknown = one("busy", both(), |_| Err("it is static".to_owned())).unwrap_err().to_string();
        assert_eq!(
            unknown,
            "2 variables of the target are named 'busy', at 0x30 (liba.so) and 0x40 (libb.so): nothing says which is meant: it is static"
        );
    }

    #[test]
    fn of_two_static_ones_none_is_taken() {
        let error = plain(vec![found(0x20, 1, 0), found(0x10, 1, 0)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 variables of the target are named 'busy', at 0x10 (server) and 0x20 (server): nothing says which is meant"
        );
        assert!(plain(vec![]).unwrap_err().to_string().starts_with("no global variable 'busy'"));
    }
}
