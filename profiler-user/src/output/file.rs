//! A report's file, written so that nobody can lead the writer elsewhere.
//!
//! Why: reports are often written by root, and often into `/tmp`. Whoever may write there could put a symbolic link or a FIFO
//! in the way, and have root overwrite a file or wait for ever. So the directory is opened once, the bytes go into a new file
//! in it (`O_EXCL`, `O_NOFOLLOW`), and that one is renamed: a link of somebody else is refused, and a reader sees the old file
//! or the new one, never half of it.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Links of our own that lead to each other are followed so often.
const MAX_LINKS: usize = 8;

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused.
    #[error("cannot write '{path}': {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It lies at a link, a FIFO or a device of somebody else.
    #[error(
        "cannot write '{path}': it is {what} of uid {owner}, who could lead the report elsewhere; remove it or choose another name"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What lies there.
        what: &'static str,
        /// Whose it is.
        owner: u32,
    },
    /// The path has no file name, or names a directory or a socket.
    #[error("cannot write '{path}': it is no file; give a file name")]
    NoFile {
        /// The path.
        path: PathBuf,
    },
}

/// Writes a file as a whole. Our own links are followed, and our own FIFOs and devices (and root's) written to.
///
/// # Errors
/// [`FileError`]; an existing file is as it was then.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let me = unsafe { libc::geteuid() };
    write_as(path, bytes, me)
}

fn write_as(path: &Path, bytes: &[u8], me: u32) -> Result<(), FileError> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let system = |source| FileError::System { path: path.clone(), source };
        let name = path.file_name().ok_or_else(|| FileError::NoFile { path: path.clone() })?.to_owned();
        let parent = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        // The directory is the user's word: links in its path are followed. All that comes after goes through its descriptor.
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let dir = File::options().read(true).custom_flags(flags).open(parent).map_err(system)?;
        let at = |name: &OsStr| PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
        let old = match std::fs::symlink_metadata(at(&name)) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(system(error)),
        };
        let Some((what, old)) = old.as_ref().and_then(|old| Some((special(old)?, old))) else {
            return replace(&at, &name, old.as_ref().filter(|old| old.uid() == me), bytes).map_err(system);
        };
        // Devices are root's; a link or a FIFO of root's in a directory of others was made by root.
        if old.uid() != me && old.uid() != 0 {
            return Err(FileError::Foreign { path, what, owner: old.uid() });
        }
        if old.is_symlink() {
            let target = std::fs::read_link(at(&name)).map_err(system)?;
            path = parent.join(target);
            continue;
        }
        if old.is_dir() || old.file_type().is_socket() {
            return Err(FileError::NoFile { path });
        }
        let flags = libc::O_NOFOLLOW | libc::O_NOCTTY;
        let mut file = File::options().write(true).custom_flags(flags).open(at(&name)).map_err(system)?;
        let opened = file.metadata().map_err(system)?;
        if (opened.dev(), opened.ino()) != (old.dev(), old.ino()) {
            return Err(FileError::Foreign { path, what, owner: opened.uid() });
        }
        return file.write_all(bytes).map_err(system);
    }
    Err(FileError::System { path, source: io::Error::from_raw_os_error(libc::ELOOP) })
}

/// What it is, unless it is a regular file.
fn special(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_file() {
        None
    } else if kind.is_symlink() {
        Some("a symbolic link")
    } else if kind.is_fifo() {
        Some("a FIFO")
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

/// Writes a new file and gives it the name. A file of ours that had it hands its permissions on.
fn replace(
    at: &impl Fn(&OsStr) -> PathBuf,
    name: &OsStr,
    ours: Option<&Metadata>,
    bytes: &[u8],
) -> io::Result<()> {
    let mut new = OsStr::new(".").to_owned();
    new.push(name);
    new.push(format!(".{}.tmp", std::process::id()));
    let create =
        || File::options().write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(at(&new));
    let mut file = match create() {
        // Left by an earlier process of this number, or put there to be in the way: it is not written to.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(at(&new))?;
            create()?
        }
        other => other?,
    };
    let written = (|| {
        if let Some(old) = ours {
            file.set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o777))?;
        }
        file.write_all(bytes)?;
        std::fs::rename(at(&new), at(name))
    })();
    if written.is_err() {
        // The first error is the one worth telling.
        let _ = std::fs::remove_file(at(&new));
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{lchown, symlink};

    fn me() -> u32 {
        // SAFETY: geteuid has no preconditions and cannot fail.
        unsafe { libc::geteuid() }
    }

    fn mkfifo(path: &Path) {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is NUL-terminated and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.txt");
        write(&path, b"first").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let hard = dir.path().join("hard");
        std::fs::hard_link(&path, &hard).unwrap();
        write(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read(&hard).unwrap(), b"first", "what another name leads to is not written");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
        assert!(matches!(write(dir.path(), b""), Err(FileError::NoFile { .. })));
        assert!(matches!(write(&dir.path().join("none/x.txt"), b""), Err(FileError::System { .. })));
    }

    #[test]
    fn our_own_links_and_fifos_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink("real.txt", at("link.txt")).unwrap();
        write(&at("link.txt"), b"text").unwrap();
        assert_eq!(std::fs::read(at("real.txt")).unwrap(), b"text");
        assert!(std::fs::symlink_metadata(at("link.txt")).unwrap().is_symlink());
        symlink("loop.txt", at("loop.txt")).unwrap();
        assert!(write(&at("loop.txt"), b"").is_err());
        mkfifo(&at("fifo.txt"));
        let fifo = at("fifo.txt");
        let reader = std::thread::spawn(move || std::fs::read(fifo).unwrap());
        write(&at("fifo.txt"), b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        write(Path::new("/dev/null"), b"nothing").unwrap();
    }

    #[test]
    fn what_others_put_in_the_way_is_refused() {
        if me() != 0 {
            eprintln!("SKIP what_others_put_in_the_way_is_refused: giving a link away needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("precious"), "precious").unwrap();
        symlink("precious", at("link.svg")).unwrap();
        mkfifo(&at("fifo.svg"));
        for (name, expected) in [("link.svg", "a symbolic link"), ("fifo.svg", "a FIFO")] {
            lchown(at(name), Some(4242), None).unwrap();
            match write(&at(name), b"report") {
                Err(FileError::Foreign { what, owner: 4242, .. }) => assert_eq!(what, expected),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert_eq!(std::fs::read(at("precious")).unwrap(), b"precious");
        // In the way of the temporary file: not written to either.
        let planted = at(&format!(".new.svg.{}.tmp", std::process::id()));
        symlink("precious", &planted).unwrap();
        lchown(&planted, Some(4242), None).unwrap();
        write(&at("new.svg"), b"report").unwrap();
        assert_eq!(std::fs::read(at("new.svg")).unwrap(), b"report");
        assert_eq!(std::fs::read(at("precious")).unwrap(), b"precious");
        // A file of somebody else's is replaced, not written.
        std::fs::write(at("theirs.svg"), "old").unwrap();
        std::os::unix::fs::chown(at("theirs.svg"), Some(4242), None).unwrap();
        write(&at("theirs.svg"), b"report").unwrap();
        assert_eq!(std::fs::metadata(at("theirs.svg")).unwrap().uid(), 0);
    }
}
