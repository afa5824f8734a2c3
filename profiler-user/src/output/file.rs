//! A report's file, written so that nobody can lead the writer elsewhere.
//!
//! Why: reports are often written by root, and often into `/tmp`. Whoever may write there could put a symbolic link or a FIFO
//! in the way, and have root overwrite a file or wait for ever. So the path is walked name by name (`walk`), a link is
//! followed only if nobody else can have put it there, the bytes go into a new file in the directory that was found (`O_EXCL`,
//! `O_NOFOLLOW`), and that one is renamed: a reader sees the old file or the new one, never half of it.

mod walk;

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use walk::{Place, walk};

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
    /// It lies at a FIFO or a device of somebody else, or a link of somebody else leads to it.
    #[error(
        "cannot write '{path}': {at} is {what} that uid {owner} may have put there to lead the report elsewhere; remove it, or name \
         the place that it leads to"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What of its path is in the way.
        at: PathBuf,
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
    /// A container's file that is mounted from elsewhere.
    #[error(
        "cannot write '{path}': another file is mounted there, so that it cannot be replaced; write to another name in a directory \
         that is mounted, or to standard output (-o -)"
    )]
    Mounted {
        /// The file.
        path: PathBuf,
    },
}

/// Writes a file as a whole. Links that nobody else can have made are followed, our own FIFOs and devices (and root's) are written
/// to. A file that is replaced hands its permissions on, and its owner, if we are root.
///
/// # Errors
/// [`FileError`]; an existing file is as it was then.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let me = rustix::process::geteuid().as_raw();
    let system = |source| FileError::System { path: path.to_owned(), source };
    let Place { dir, name, old, is_descriptor } = walk(path, me)?;
    let Some(old) = old else { return replace(&dir, &name, None, bytes).map_err(system) };
    let metadata = old.metadata().map_err(system)?;
    // The file behind a descriptor of ours was chosen by whoever opened it.
    let Some(what) = special(&metadata).or(is_descriptor.then_some("a descriptor")) else {
        return replace(&dir, &name, Some(&metadata), bytes).map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => FileError::Mounted { path: path.to_owned() },
            _ => system(source),
        });
    };
    if metadata.is_dir() || metadata.file_type().is_socket() {
        return Err(FileError::NoFile { path: path.to_owned() });
    }
    // Devices are root's; a FIFO of root's in a directory of others was made by root.
    if metadata.uid() != me && metadata.uid() != 0 && !is_descriptor {
        let (path, at) = (path.to_owned(), PathBuf::from(name));
        return Err(FileError::Foreign { path, at, what, owner: metadata.uid() });
    }
    // By the descriptor, so that it is what was looked at.
    let mut options = File::options();
    options.write(true).truncate(true).custom_flags(libc::O_NOCTTY);
    let mut file = options.open(fd_path(&old)).map_err(system)?;
    file.write_all(bytes).map_err(system)
}

fn fd_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// What it is, unless it is a regular file.
fn special(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_file() {
        None
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

/// Writes a new file and gives it the name. The file that had it hands on who may read it.
fn replace(dir: &File, name: &OsStr, old: Option<&Metadata>, bytes: &[u8]) -> io::Result<()> {
    let at = |name: &OsStr| fd_path(dir).join(name);
    let (new, mut file) = create(dir, std::iter::repeat_with(random_name).take(MAX_NAMES))?;
    let new = new.as_os_str();
    let written = (|| {
        // Where everybody may make files, one of somebody else may lie there only to be given the report.
        if let Some(old) = old
            && (old.uid() == file.metadata()?.uid() || !walk::is_shared(&dir.metadata()?))
        {
            hand_on(&file, old)?;
        }
        file.write_all(bytes)?;
        std::fs::rename(at(new), at(name))
    })();
    if written.is_err() {
        // The first error is the one worth telling.
        let _ = std::fs::remove_file(at(new));
    }
    written
}

/// Names that are tried for the new file: one that is taken is chance, or the work of somebody who sees each before we make it.
const MAX_NAMES: usize = 16;

/// A name for the new file, which nobody can know before: what has it already cannot have been put there to be in the way. Short,
/// so that every name that the file system takes can be written.
fn random_name() -> OsString {
    // The library seeds each of these from the kernel's random numbers.
    format!(".tithe-{:016x}.tmp", RandomState::new().build_hasher().finish()).into()
}

/// Makes a new file by the first of these names that is free. What lies at the others may be another agent's, and stays.
fn create(dir: &File, names: impl Iterator<Item = OsString>) -> io::Result<(OsString, File)> {
    let mut result = Err(io::ErrorKind::AlreadyExists.into());
    for name in names {
        let mut options = File::options();
        options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW);
        result = options.open(fd_path(dir).join(&name)).map(|file| (name, file));
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            break;
        }
    }
    result
}

/// Gives a new file the owner, the group and the permissions of the old one, as far as we may.
fn hand_on(file: &File, old: &Metadata) -> io::Result<()> {
    let mine = file.metadata()?;
    let is_given = (mine.uid(), mine.gid()) == (old.uid(), old.gid())
        || std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid())).is_ok();
    // Permissions for the group mean another one where the group is not the old one.
    let kept = if is_given { 0o777 } else { 0o707 };
    file.set_permissions(std::fs::Permissions::from_mode(old.mode() & kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn mkfifo(path: &Path) {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
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
    fn long_names_and_descriptors_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join(format!("{}.svg", "x".repeat(251)));
        write(&long, b"report").unwrap();
        assert_eq!(std::fs::read(&long).unwrap(), b"report");
        let path = dir.path().join("open");
        let file = File::create(&path).unwrap();
        write(&fd_path(&file), b"through").unwrap();
        assert_eq!(
            (std::fs::read(&path).unwrap(), file.metadata().unwrap().nlink()),
            (b"through".to_vec(), 1)
        );
        write(&dir.path().join("./a/../b.txt"), b"").unwrap_err();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        write(&dir.path().join("./a/../b.txt"), b"up").unwrap();
        assert_eq!(std::fs::read(dir.path().join("b.txt")).unwrap(), b"up");
    }

    #[test]
    fn nothing_lies_in_the_way_of_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // As an agent of this number in another PID namespace has it, or somebody who guessed the name.
        let planted = format!(".tithe-{}.tmp", std::process::id());
        for plant in [|path: &Path| std::fs::create_dir(path), |path: &Path| symlink("precious", path)] {
            std::fs::write(at("precious"), "precious").unwrap();
            plant(&at(&planted)).unwrap();
            write(&at("new.svg"), b"report").unwrap();
            assert_eq!(std::fs::read(at("new.svg")).unwrap(), b"report");
            let opened = File::open(dir.path()).unwrap();
            let name = |name: &str| OsString::from(name);
            let (taken, _) = create(&opened, [name(&planted), name("free")].into_iter()).unwrap();
            assert_eq!(taken, "free");
            let error = create(&opened, [name(&planted), name("free")].into_iter()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(at("precious")).unwrap(), b"precious");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "no temporary file is left");
            std::fs::rename(at(&planted), at("free")).or_else(|_| std::fs::remove_dir(at(&planted))).unwrap();
            std::fs::remove_file(at("free")).unwrap();
        }
        assert_ne!(random_name(), random_name());
        assert_eq!(random_name().len(), 27);
    }

    /// `tracing` in a debugfs is mounted when it is gone through.
    #[test]
    fn what_is_mounted_on_demand_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let done = std::process::Command::new(program).args(arguments).arg(dir.path()).status();
            done.is_ok_and(|status| status.success())
        };
        // Asking for its metadata would mount it.
        let has = |name: &str| std::fs::read_dir(dir.path()).unwrap().any(|e| e.unwrap().file_name() == name);
        let is_there = run("mount", &["-t", "debugfs", "none"]) && has("tracing");
        let device_of = |file: &File| file.metadata().unwrap().dev();
        let below = is_there.then(|| {
            let place = walk(&dir.path().join("tracing/none.txt"), me());
            place.map(|place| device_of(&place.dir) != device_of(&File::open(dir.path()).unwrap()))
        });
        run("umount", &["-R", "-q"]);
        match below {
            Some(is_mounted) => assert!(is_mounted.unwrap()),
            None => eprintln!(
                "SKIP what_is_mounted_on_demand_is_mounted: needs root and a debugfs with tracing (CONFIG_TRACEFS_AUTOMOUNT_DEPRECATED)"
            ),
        }
    }

    /// As containers have it: one file is mounted over another.
    #[test]
    fn a_mounted_file_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mount = || {
            std::fs::write(at("from"), "old").ok()?;
            std::fs::write(at("to.txt"), "old").ok()?;
            let done =
                std::process::Command::new("mount").arg("--bind").args([at("from"), at("to.txt")]).status();
            done.is_ok_and(|status| status.success()).then_some(())
        };
        if mount().is_none() {
            assert!(
                std::env::var_os("REQUIRE_KERNEL").is_none(),
                "REQUIRE_KERNEL is set and nothing can be mounted"
            );
            eprintln!("SKIP a_mounted_file_is_told_apart: mount --bind is refused (needs root)");
            return;
        }
        let written = write(&at("to.txt"), b"report");
        let undone = std::process::Command::new("umount").arg(at("to.txt")).status();
        assert!(undone.is_ok_and(|status| status.success()));
        assert!(matches!(written, Err(FileError::Mounted { .. })), "{written:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
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
        let refused = |name: &str, expected: &str| match write(&at(name), b"report") {
            Err(FileError::Foreign { what, .. }) => assert_eq!(what, expected, "{name}"),
            other => panic!("{name}: {other:?}"),
        };
        for (name, expected) in [("link.svg", "a symbolic link"), ("fifo.svg", "a FIFO")] {
            lchown(at(name), Some(4242), None).unwrap();
            refused(name, expected);
        }
        // A link on the way, and one that our own link leads to.
        std::fs::create_dir(at("real")).unwrap();
        symlink("real", at("way")).unwrap();
        lchown(at("way"), Some(4242), None).unwrap();
        symlink("way", at("ours")).unwrap();
        refused("way/x.svg", "a symbolic link");
        refused("ours/x.svg", "a symbolic link");
        refused("real/../way/../way/x.svg", "a symbolic link");
        // Links of our own where everybody may rename them, or make them in our stead.
        for (mode, is_followed) in [(0o777, false), (0o1777, true), (0o755, true)] {
            let shared = at(&format!("shared{mode:o}"));
            std::fs::create_dir(&shared).unwrap();
            std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(mode)).unwrap();
            symlink("../real", shared.join("way")).unwrap();
            assert_eq!(write(&shared.join("way/x.svg"), b"report").is_ok(), is_followed, "{mode:o}");
        }
        assert_eq!(std::fs::read_dir(at("real")).unwrap().count(), 1);
        assert_eq!(std::fs::read(at("precious")).unwrap(), b"precious");
        // A file of somebody else's is replaced, not written, and stays theirs but where anybody can have put it there.
        std::fs::write(at("theirs.svg"), "old").unwrap();
        std::fs::hard_link(at("theirs.svg"), at("hard")).unwrap();
        for (dir_mode, mode, owner) in [(0o755, 0o604, 4242), (0o1777, 0o666, 0)] {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(dir_mode)).unwrap();
            std::os::unix::fs::chown(at("theirs.svg"), Some(4242), Some(4343)).unwrap();
            std::fs::set_permissions(at("theirs.svg"), std::fs::Permissions::from_mode(mode)).unwrap();
            write(&at("theirs.svg"), b"report").unwrap();
            let now = std::fs::metadata(at("theirs.svg")).unwrap();
            assert_eq!((now.uid(), now.gid() == 4343), (owner, owner == 4242));
            assert!(owner == 0 || now.mode() & 0o7777 == mode, "{:o}", now.mode());
        }
        assert_eq!(std::fs::read(at("hard")).unwrap(), b"old");
    }
}
