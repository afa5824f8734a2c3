//! From a path to the directory and the name that are written, by descriptors alone.
//!
//! Why: the kernel follows a link whoever has made it. Here each name is opened as a path alone, without following; what was
//! looked at is what is gone through.

use super::{FileError, fd_path};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Links that are followed on one path; the kernel's own limit (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// Longest text of a link, bytes (`PATH_MAX`).
const LONGEST_TARGET: usize = 4096;

/// Where a path leads.
#[derive(Debug)]
pub(super) struct Place {
    /// Its directory.
    pub dir: File,
    /// Its name in there.
    pub name: OsString,
    /// What lies there, as a path alone; never a link.
    pub old: Option<File>,
    /// It was reached through a link of `/proc` that has no name behind it, such as `/proc/self/fd/1`.
    pub is_descriptor: bool,
}

/// Everybody may make files in this directory.
pub(super) fn is_shared(dir: &Metadata) -> bool {
    dir.mode() & libc::S_IWOTH != 0
}

/// Whether nobody but `me` and root can have put a link there. In a directory that everybody may write to, as the kernel has it
/// (`fs.protected_symlinks`): the sticky bit must keep others from renaming it, and it must be ours or the directory's owner's.
fn is_trusted(link: &Metadata, dir: &Metadata, me: u32) -> bool {
    let is_known = link.uid() == me || link.uid() == 0;
    let is_sticky = dir.mode() & libc::S_ISVTX != 0;
    is_known && (!is_shared(dir) || (is_sticky && (link.uid() == me || link.uid() == dir.uid())))
}

/// Walks a path for the user `me`.
///
/// # Errors
/// A directory is missing, the path has no file name, or a link is in the way that somebody else may have put there.
pub(super) fn walk(path: &Path, me: u32) -> Result<Place, FileError> {
    let system = |source| FileError::System { path: path.to_owned(), source };
    let mut names = parts(path);
    let mut dir = directory(Path::new(if path.is_absolute() { "/" } else { "." })).map_err(system)?;
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        let is_last = names.is_empty();
        let entry = match open(&dir, &name, is_last) {
            Err(error) if is_last && error.kind() == io::ErrorKind::NotFound => {
                return Ok(Place { dir, name, old: None, is_descriptor: false });
            }
            entry => entry.map_err(system)?,
        };
        let metadata = entry.metadata().map_err(system)?;
        let mut next = entry;
        let mut is_descriptor = false;
        if metadata.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(system(io::Error::from_raw_os_error(libc::ELOOP)));
            }
            if !is_trusted(&metadata, &dir.metadata().map_err(system)?, me) {
                let (path, at) = (path.to_owned(), PathBuf::from(name));
                return Err(FileError::Foreign { path, at, what: "a symbolic link", owner: metadata.uid() });
            }
            if !is_of_proc(&next).map_err(system)? {
                let target = target(&next).map_err(system)?;
                if target.is_absolute() {
                    dir = directory(Path::new("/")).map_err(system)?;
                }
                for part in parts(&target).into_iter().rev() {
                    names.push_front(part);
                }
                continue;
            }
            // The kernel alone makes them, and what they lead to may have no name.
            let path = fd_path(&dir).join(&name);
            next = File::options().read(true).custom_flags(libc::O_PATH).open(path).map_err(system)?;
            is_descriptor = true;
        }
        if is_last && name != ".." {
            return Ok(Place { dir, name, old: Some(next), is_descriptor });
        }
        dir = next;
    }
    Err(FileError::NoFile { path: path.to_owned() })
}

/// The names of a path, without those that say nothing.
fn parts(path: &Path) -> VecDeque<OsString> {
    let says = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(says).map(|part| part.as_os_str().to_owned()).collect()
}

fn directory(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)
}

/// An entry of a directory, as a path alone; a link is not followed. Asked for as a directory, the kernel mounts what is to be
/// mounted there (autofs; `O_PATH` alone does not, open(2)).
fn open(dir: &File, name: &OsStr, is_last: bool) -> io::Result<File> {
    let path = fd_path(dir).join(name);
    let open =
        |more| File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW | more).open(&path);
    if !is_last && let Ok(entry) = open(libc::O_DIRECTORY) {
        return Ok(entry);
    }
    // A link, or an error to be told.
    open(0)
}

/// What a link holds, by its descriptor.
fn target(link: &File) -> io::Result<PathBuf> {
    let mut bytes = vec![0_u8; LONGEST_TARGET];
    let len = rustix::fs::readlinkat_raw(link, c"", &mut bytes[..])?;
    bytes.truncate(len);
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

/// Whether a descriptor is of a file in `/proc`.
fn is_of_proc(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type == rustix::fs::PROC_SUPER_MAGIC)
}
