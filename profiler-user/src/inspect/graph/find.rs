//! From what people write to a file: a path, a program in PATH, a library by its name.

use super::error::GraphError;
use crate::target_file::TargetFile;
use std::path::{Path, PathBuf};

/// Where the dynamic linker of Debian, Fedora and their like looks for libraries of x86-64.
const LIBRARIES: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// The file that is meant: the path itself where it has a slash or such a file exists, else a library (`libc.so.6`) in `LD_LIBRARY_PATH` and
/// the usual directories, else a program in `PATH`.
///
/// # Errors
/// No such file.
pub fn file_of(name: &Path) -> Result<PathBuf, GraphError> {
    let text = name.to_string_lossy();
    if text.contains('/') || name.exists() {
        return Ok(name.to_owned());
    }
    let of = |variable: &str| std::env::var_os(variable).unwrap_or_default();
    let paths = |list: &std::ffi::OsStr| std::env::split_paths(list).collect::<Vec<_>>();
    let given = paths(&of("LD_LIBRARY_PATH")).into_iter().filter(|dir| !dir.as_os_str().is_empty());
    let libraries = given.chain(LIBRARIES.iter().map(PathBuf::from));
    let programs = paths(&of("PATH"));
    let places: Vec<PathBuf> = if text.contains(".so") {
        libraries.chain(programs).collect()
    } else {
        programs.into_iter().chain(libraries).collect()
    };
    let found = places.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| GraphError::NotFound { name: text.into_owned(), directories: LIBRARIES.join(", ") })
}

/// Opens a file and looks at its first bytes.
///
/// # Errors
/// It cannot be opened, or is a script, an object file, a core dump, no ELF file, or cut.
pub(super) fn check_head(path: &Path) -> Result<(), GraphError> {
    const HEAD_BYTES: u64 = 256;
    let file = TargetFile::named_by_user(path)?;
    let head =
        file.read_all(HEAD_BYTES).map_err(|source| GraphError::Read { path: path.to_owned(), source })?;
    let wrong = GraphError::of_head(path, &head).or_else(|| GraphError::of_size(path, &head, file.len()));
    wrong.map_or(Ok(()), Err)
}
