//! The only way to files that belong to the target.
//!
//! Why: a target's owner chooses what lies at a path. A FIFO would hang the agent, a device may act when it is opened,
//! a link may lead out of the target's root, and an ELF file may claim any size. So a file is opened below a descriptor
//! of the target's root (`openat2`, `RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS`) or through `/proc/PID/map_files`, first
//! as a path alone (`O_PATH`: nothing acts, nothing waits); only a regular file is then opened for reading. Where the
//! kernel or a library wants a path, [`TargetFile::path`] gives one that leads through the open descriptor.
//!
//! What is read of a file is bounded by what its owner has paid for on disk, see [`TargetFile::most`].

mod debug;
mod headers;
#[cfg(test)]
mod hostile;
#[cfg(test)]
pub(crate) mod tests;

pub use debug::DebugLink;
pub use headers::Headers;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// So much may be read of any file, however little of it lies on disk. File systems that compress may tell of no
/// blocks at all until a file is written back.
const FLOOR_BYTES: u64 = 16 << 20;
/// File systems that compress (btrfs, erofs, squashfs, ZFS) keep a file in fewer blocks than its size: programs take a half
/// to a fifth.
const COMPRESSION: u64 = 8;
/// `st_blocks` counts these, whatever the file system's block size.
const BLOCK_BYTES: u64 = 512;
/// A directory that is renamed while the kernel walks below it makes `openat2` ask for another try.
const TRIES: usize = 16;

/// Why a file of the target was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot open {path}: {source}")]
    System {
        /// The path as the target sees it.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A FIFO, a device, a socket, a directory.
    #[error("{path} is {what}, not a regular file: it is not opened")]
    NotRegular {
        /// The path as the target sees it.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The system call is missing or filtered.
    #[error(
        "openat2(2) is refused ({source}), so files of the target cannot be opened safely; it needs Linux 5.6 and a \
         seccomp profile that allows it"
    )]
    NoOpenat2 {
        /// The system's answer.
        source: io::Error,
    },
    /// The path leads to another file by now.
    #[error("{path} is another file than the one that the target has mapped")]
    Replaced {
        /// The path as the target sees it.
        path: PathBuf,
    },
    /// It belongs to a third party.
    #[error("{path} belongs to uid {owner}, and the process runs as uid {expected}: it is not read")]
    ForeignOwner {
        /// The path as the target sees it.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Whose it may be, besides root's.
        expected: u32,
    },
}

impl OpenError {
    /// There is no such file.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// The root directory of a process, held open: paths below it can be opened after the process has ended.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// The root of a process.
    ///
    /// # Errors
    /// The process is gone, or may not be looked into.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::at(&format!("/proc/{pid}/root"))
    }

    /// Our own root.
    ///
    /// # Errors
    /// The system's answer.
    pub fn own() -> io::Result<Self> {
        Self::at("/")
    }

    fn at(path: &str) -> io::Result<Self> {
        let file = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)?;
        Ok(Self(file.into()))
    }

    /// Opens a regular file by the path that the process would use. Links are followed, but not out of the root.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, path: &Path) -> Result<TargetFile, OpenError> {
        TargetFile::of(self.find(path)?, path)
    }

    /// Device and inode of the directory itself.
    #[must_use]
    pub fn directory(&self) -> Option<(u64, u64)> {
        self.identity(Path::new("/"))
    }

    /// Device and inode of what lies at a path; it is not opened.
    #[must_use]
    pub fn identity(&self, path: &Path) -> Option<(u64, u64)> {
        let metadata = File::from(self.find(path).ok()?).metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    }

    /// A descriptor of the path alone.
    fn find(&self, path: &Path) -> Result<OwnedFd, OpenError> {
        let system = |source| OpenError::System { path: path.to_owned(), source };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| system(Errno::INVAL.into()))?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..TRIES {
            match rustix::fs::openat2(&self.0, &name, flags, Mode::empty(), resolve) {
                Ok(fd) => return Ok(fd),
                Err(Errno::AGAIN) => {}
                Err(error @ (Errno::NOSYS | Errno::PERM)) => {
                    return Err(OpenError::NoOpenat2 { source: error.into() });
                }
                Err(error) => return Err(system(error.into())),
            }
        }
        Err(system(Errno::AGAIN.into()))
    }
}

/// What tells a file from others that have its device and inode numbers later: those of a file that is gone are given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileKey {
    device: u64,
    inode: u64,
    /// When it was made; where the file system does not say that, when something of its inode was last changed.
    born: SystemTime,
}

/// An open regular file of the target.
#[derive(Debug)]
pub struct TargetFile {
    file: File,
    metadata: Metadata,
    shown: PathBuf,
}

impl TargetFile {
    /// The file that a process has mapped at `map` (`START-END`), by the mapping and not by a name. `shown` is how
    /// messages call it.
    ///
    /// # Errors
    /// [`OpenError`]; the kernel allows it with CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
    pub fn mapped(pid: u32, map: &str, shown: &Path) -> Result<Self, OpenError> {
        Self::through(&format!("/proc/{pid}/map_files/{map}"), shown)
    }

    /// The program file of a process.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn program(pid: u32, shown: &Path) -> Result<Self, OpenError> {
        Self::through(&format!("/proc/{pid}/exe"), shown)
    }

    /// A file that the user named, no process: links are followed as usual.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn named_by_user(path: &Path) -> Result<Self, OpenError> {
        Self::follow(path, path)
    }

    /// Through a link that the kernel resolves without any name.
    fn through(link: &str, shown: &Path) -> Result<Self, OpenError> {
        Self::follow(Path::new(link), shown)
    }

    fn follow(path: &Path, shown: &Path) -> Result<Self, OpenError> {
        let opened = File::options().read(true).custom_flags(libc::O_PATH).open(path);
        let fd = opened.map_err(|source| OpenError::System { path: shown.to_owned(), source })?;
        Self::of(fd.into(), shown)
    }

    /// Looks at what a descriptor of a path leads to, and opens it for reading if it is a regular file.
    fn of(path_only: OwnedFd, shown: &Path) -> Result<Self, OpenError> {
        let system = |source| OpenError::System { path: shown.to_owned(), source };
        let path_only = File::from(path_only);
        let before = path_only.metadata().map_err(system)?;
        if let Some(what) = irregular(&before) {
            return Err(OpenError::NotRegular { path: shown.to_owned(), what });
        }
        // O_NONBLOCK: a file under a lease of its owner would make us wait for that owner.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(fd_path(&path_only))
            .map_err(system)?;
        let metadata = file.metadata().map_err(system)?;
        Ok(Self { file, metadata, shown: shown.to_owned() })
    }

    /// A path that leads to this very file, for the kernel and for libraries, while this descriptor is open and in this
    /// process alone.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        fd_path(&self.file)
    }

    /// The path as the target sees it, for messages.
    #[must_use]
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// The device and the inode.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.metadata.dev(), self.metadata.ino())
    }

    /// The device and the inode, and since when they are this file's.
    #[must_use]
    pub fn key(&self) -> FileKey {
        let (device, inode) = self.identity();
        // OK because times before 1970 are taken for 1970, and nanoseconds are below 10^9.
        let seconds = u64::try_from(self.metadata.ctime()).unwrap_or(0);
        let nanoseconds = u32::try_from(self.metadata.ctime_nsec()).unwrap_or(0);
        let changed = UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        FileKey { device, inode, born: self.metadata.created().unwrap_or(changed) }
    }

    /// Whether its length or the time of its last change is not what it was when it was opened: `cp` over a file keeps its
    /// inode.
    ///
    /// # Errors
    /// It cannot be looked at any more.
    pub fn is_changed(&self) -> io::Result<bool> {
        let now = self.file.metadata()?;
        let of = |m: &Metadata| (m.len(), m.mtime(), m.mtime_nsec());
        Ok(of(&now) != of(&self.metadata))
    }

    /// What it takes on disk, bytes.
    #[must_use]
    pub fn on_disk(&self) -> u64 {
        self.metadata.blocks().saturating_mul(BLOCK_BYTES)
    }

    /// The owner's uid.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.metadata.uid()
    }

    /// Its length when it was opened, bytes. Sparse files cost nothing to make long: see [`TargetFile::most`].
    #[must_use]
    pub fn len(&self) -> u64 {
        self.metadata.len()
    }

    /// Whether it had no contents when it was opened. Files of `/proc` and `/sys` are like that.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The longest table that is read from it, bytes: no more than 8 times what it takes on disk (file systems may
    /// compress), but 16 MiB of any file.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.len().min(self.on_disk().saturating_mul(COMPRESSION).max(FLOOR_BYTES))
    }

    /// Reads `len` bytes at `offset`. Room is taken only for what the file can have.
    ///
    /// # Errors
    /// The file is shorter, or more is asked for than [`TargetFile::most`].
    pub fn read_at(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{len} bytes at offset {offset} lie behind the end of the file at {}", self.len()),
            ));
        }
        if len > self.most() {
            return Err(self.too_much(&format!("a table of {len} bytes is")));
        }
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(len, 0);
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// The error for `what` (with its verb) beyond [`TargetFile::most`]. It names the file system: some (FUSE, 9p) tell of far
    /// fewer blocks than there are.
    #[must_use]
    pub fn too_much(&self, what: &str) -> io::Error {
        let kind = rustix::fs::fstatfs(&self.file)
            .map_or_else(|_| String::new(), |statfs| format!(" (type {:#x})", statfs.f_type));
        let text = format!(
            "{what} more than this file takes on disk can hold: its file system{kind} tells of {} KiB",
            self.on_disk() >> 10
        );
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// The file ends before, or cannot be read.
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Reads what there is from `offset` on, up to the length of `bytes`; 0 at the end of the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_some_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, offset)
    }

    /// All of it, cut off after `most` bytes.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_all(&self, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&self.file).take(most.min(self.most())).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The same open file once more.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        let file = self.file.try_clone()?;
        let metadata = file.metadata()?;
        Ok(Self { file, metadata, shown: self.shown.clone() })
    }

    /// Refuses a file that belongs neither to root nor to `uid`.
    ///
    /// # Errors
    /// [`OpenError::ForeignOwner`].
    pub fn of_owner(self, uid: u32) -> Result<Self, OpenError> {
        match self.owner() {
            owner if owner == 0 || owner == uid => Ok(self),
            owner => Err(OpenError::ForeignOwner { path: self.shown, owner, expected: uid }),
        }
    }
}

/// `/proc/self` is the process, so that it holds in every thread that shares its descriptors.
fn fd_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// What it is, if it is no regular file.
fn irregular(metadata: &Metadata) -> Option<&'static str> {
    // OK because the constants are small and positive.
    match metadata.mode() & libc::S_IFMT {
        libc::S_IFREG => None,
        libc::S_IFIFO => Some("a FIFO"),
        libc::S_IFCHR => Some("a character device"),
        libc::S_IFBLK => Some("a block device"),
        libc::S_IFSOCK => Some("a socket"),
        libc::S_IFDIR => Some("a directory"),
        libc::S_IFLNK => Some("a symbolic link"),
        _ => Some("of an unknown kind"),
    }
}
