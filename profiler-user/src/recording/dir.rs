//! A directory that files are created in without following links.
//!
//! Why: the agent runs as root and writes where a user tells it to. Whoever owns the parent directory could
//! put a symbolic link in the way and have root overwrite a file or give one away. So the directory is
//! opened once (`O_NOFOLLOW`), everything after goes through its descriptor (`openat`), files are new
//! (`O_EXCL`), and they are handed to the caller only through descriptors (`fchown`).
//!
//! It knows nothing of Parquet.

use super::{META_FILE, RecordingError};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// What a new recording may be written over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// An empty directory, or an earlier recording, which is removed first.
    Recording,
    /// Also a directory with other files in it, which stay (`--force`).
    Anything,
}

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: File,
    path: PathBuf,
    owner: Option<(u32, u32)>,
}

impl Dir {
    /// Creates the directory `path` (mode 0700) or takes an existing one, per `overwrite`; gives it to
    /// `owner` (uid, gid).
    ///
    /// # Errors
    /// [`RecordingError`]: no such parent, not a directory, a symbolic link, somebody else's, not a recording.
    pub fn create(
        path: &Path,
        owner: Option<(u32, u32)>,
        overwrite: Overwrite,
    ) -> Result<Self, RecordingError> {
        let io = |what| move |source| RecordingError::Io { what, path: path.to_owned(), source };
        let name = path.file_name().ok_or_else(|| RecordingError::BadPath(path.to_owned()))?;
        let name = CString::new(name.as_bytes()).map_err(|_| RecordingError::BadPath(path.to_owned()))?;
        let parent = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        // The parent is the user's word: links in it are followed.
        let parent_fd = File::open(parent)
            .map_err(|source| RecordingError::Parent { path: parent.to_owned(), source })?;

        match rustix::fs::mkdirat(&parent_fd, &name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(io("create the directory")(error.into())),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = open_at(&parent_fd, &name, flags).map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP | libc::ENOTDIR) => RecordingError::NotADirectory(path.to_owned()),
            _ => io("open the directory")(error),
        })?;
        let dir = Self { fd: File::from(fd), path: path.to_owned(), owner };
        dir.take_over(overwrite)?;
        Ok(dir)
    }

    /// Checks whose directory this is and what lies in it, removes an earlier recording, sets mode and owner.
    fn take_over(&self, overwrite: Overwrite) -> Result<(), RecordingError> {
        let io = |what| move |source| RecordingError::Io { what, path: self.path.clone(), source };
        let uid = self.fd.metadata().map_err(io("inspect the directory"))?.uid();
        let me = rustix::process::geteuid().as_raw();
        if uid != me && self.owner.is_none_or(|(owner, _)| owner != uid) {
            return Err(RecordingError::ForeignOwner { path: self.path.clone(), uid });
        }
        let names = self.names().map_err(io("list the directory"))?;
        let foreign = names.iter().find(|n| !is_ours(n));
        let is_recording = names.iter().any(|n| n == META_FILE);
        match foreign.or(if is_recording { None } else { names.first() }) {
            Some(file) if overwrite == Overwrite::Recording => {
                return Err(RecordingError::NotOurs { path: self.path.clone(), file: file.clone() });
            }
            _ => {}
        }
        for name in names.iter().filter(|n| is_ours(n)) {
            self.remove(name).map_err(io("remove the earlier recording in"))?;
        }
        self.fd
            .set_permissions(std::fs::Permissions::from_mode(0o700))
            .map_err(io("protect the directory"))?;
        self.give_away(&self.fd).map_err(io("hand over the directory"))
    }

    /// The path it was opened with, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the files in it, sorted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<String>> {
        // Through the descriptor, so that a directory put in its place meanwhile is not looked at.
        let mut names: Vec<String> = std::fs::read_dir(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<_>>()?;
        names.sort();
        Ok(names)
    }

    /// Writes the file `name` as a whole: to `name.tmp` (new, mode 0600, the owner's), synced, then renamed.
    /// A reader sees the old file, the new one or none, never half of it.
    ///
    /// # Errors
    /// The system's answer (disk full, …); nothing but the old file is left then.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let tmp = format!("{name}.tmp");
        let result = self.write_tmp(&tmp, bytes).and_then(|()| self.rename(&tmp, name));
        if result.is_err() {
            // The first error is the one worth telling; the leftover is ignored by readers anyway.
            let _ = self.remove(&tmp);
        }
        result
    }

    /// Takes room on the disk for the file `name`, where its next version is written first; [`Dir::release`] gives it
    /// back. Readers pass it over.
    ///
    /// # Errors
    /// The system's answer; nothing is left then.
    pub fn reserve(&self, name: &str, bytes: usize) -> io::Result<()> {
        let tmp = format!("{name}.tmp");
        // Not zeros: some file systems store those in no space at all.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .take(bytes)
        .collect();
        let result = self.write_tmp(&tmp, &noise);
        if result.is_err() {
            // The first error is the one worth telling.
            let _ = self.remove(&tmp);
        }
        result
    }

    /// Gives back what [`Dir::reserve`] took.
    ///
    /// # Errors
    /// The system's answer, if there is no such reserve.
    pub fn release(&self, name: &str) -> io::Result<()> {
        self.remove(&format!("{name}.tmp"))
    }

    fn write_tmp(&self, tmp: &str, bytes: &[u8]) -> io::Result<()> {
        let name = file_name(tmp)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match open_at(&self.fd, &name, flags) {
            // A leftover of ours from a failed write.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.remove(tmp)?;
                open_at(&self.fd, &name, flags)?
            }
            other => other?,
        };
        let mut file = File::from(fd);
        self.give_away(&file)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (file_name(from)?, file_name(to)?);
        rustix::fs::renameat(&self.fd, from, &self.fd, to)?;
        // Some file systems refuse to sync a directory; the rename has happened all the same.
        let _ = self.fd.sync_all();
        Ok(())
    }

    /// Removes the file `name`.
    ///
    /// # Errors
    /// The system's answer.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let name = file_name(name)?;
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    fn give_away(&self, file: &File) -> io::Result<()> {
        match self.owner {
            Some((uid, gid)) => fchown(file, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }
}

fn open_at(dir: &File, name: &CStr, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?)
}

/// A name without a path in it.
fn file_name(name: &str) -> io::Result<CString> {
    if Path::new(name).file_name() != Some(OsStr::new(name)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("'{name}' is no plain file name")));
    }
    CString::new(name).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

/// A file that a recording consists of: `meta.json`, `TABLE-NNNNN.parquet`, `plan-NNNN.toml`, or an
/// unfinished one of these.
fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(".tmp").unwrap_or(name);
    if name == META_FILE {
        return true;
    }
    let stem = |extension| name.strip_suffix(extension).and_then(|stem| stem.rsplit_once('-'));
    let number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    match (stem(".parquet"), stem(".toml")) {
        (Some((table, n)), _) => number(n) && super::tables().iter().any(|t| t.name == table),
        (_, Some((stem, n))) => stem == "plan" && number(n),
        _ => false,
    }
}
