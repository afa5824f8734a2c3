//! The modules that frames refer to, for as long as the session lasts.
//!
//! A module is a file by device and inode, so that it is one module in all processes that map it. The file
//! is held open from the moment that it is first seen: it can be read after the process has ended, unmapped
//! it or lost its name.

use super::elf::ElfInfo;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Number of a module in its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u32);

/// No module is known for the address.
pub const UNKNOWN: ModuleId = ModuleId(0);
/// The kernel; addresses are absolute.
pub const KERNEL: ModuleId = ModuleId(1);

/// Name of executable memory without a file.
pub const JIT: &str = "[jit]";

/// Files held open at most; more are opened by their path when needed.
const MAX_OPEN: usize = 256;
/// Unwind tables held at most, bytes, of all modules together.
const MAX_TABLE_BYTES: usize = 96 << 20;

/// What a module is.
#[derive(Debug)]
pub enum ModuleKind {
    /// Nothing known.
    Unknown,
    /// The kernel.
    Kernel,
    /// A file.
    File {
        /// A path that opens it here and now: its own where that leads to the same file, else one through our
        /// open descriptor or `/proc/PID`.
        open: PathBuf,
        /// Holds it open.
        file: Option<File>,
    },
    /// An ELF image in memory (the vDSO).
    Image(Arc<[u8]>),
    /// Executable memory of this process without a file; addresses are absolute.
    Jit {
        /// The process, whose perf map may name it.
        pid: u32,
    },
}

/// One module.
#[derive(Debug)]
pub struct ModuleInfo {
    /// Path as the target sees it; `[kernel]`, `[vdso]`, `[jit]`, `[uprobes]`; empty: unknown.
    pub name: String,
    /// What it is.
    pub kind: ModuleKind,
    /// Segments and tables, read when first needed.
    elf: OnceLock<Result<ElfInfo, String>>,
}

impl ModuleInfo {
    fn new(name: &str, kind: ModuleKind) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), kind, elf: OnceLock::new() })
    }

    /// Segments and unwind tables.
    ///
    /// # Errors
    /// Why the file cannot be read, in words.
    pub fn elf(&self) -> Result<&ElfInfo, &str> {
        let read = || match &self.kind {
            ModuleKind::File { file: Some(file), .. } => {
                ElfInfo::read(file.try_clone().map_err(|e| e.to_string())?)
            }
            ModuleKind::File { open, .. } => ElfInfo::read(File::open(open).map_err(|e| e.to_string())?),
            ModuleKind::Image(bytes) => ElfInfo::read_bytes(bytes),
            _ => Err("it is not an ELF file".to_owned()),
        };
        self.elf.get_or_init(read).as_ref().map_err(String::as_str)
    }

    /// The path that opens the file; `None` for what is no file.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.kind {
            ModuleKind::File { open, .. } => Some(open),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Inner {
    list: Vec<Arc<ModuleInfo>>,
    files: HashMap<(u64, u64), ModuleId>,
    named: HashMap<(String, u32), ModuleId>,
    open_files: usize,
    table_bytes: usize,
}

/// The modules of a session; clones share one list, so that a symbolizer on another thread can read it.
#[derive(Debug, Clone)]
pub struct Modules(Arc<RwLock<Inner>>);

impl Default for Modules {
    fn default() -> Self {
        let list =
            vec![ModuleInfo::new("", ModuleKind::Unknown), ModuleInfo::new("[kernel]", ModuleKind::Kernel)];
        Self(Arc::new(RwLock::new(Inner {
            list,
            files: HashMap::new(),
            named: HashMap::new(),
            open_files: 0,
            table_bytes: 0,
        })))
    }
}

impl Modules {
    /// A module by its number; [`UNKNOWN`]'s for one that does not exist.
    #[must_use]
    pub fn get(&self, id: ModuleId) -> Arc<ModuleInfo> {
        let inner = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let index = usize::try_from(id.0).unwrap_or(0);
        Arc::clone(inner.list.get(index).unwrap_or(&inner.list[0]))
    }

    /// Number of modules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).list.len()
    }

    /// Never: the kernel is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Books `bytes` of unwind tables; false if there is no room for them.
    pub(super) fn book_tables(&self, bytes: usize) -> bool {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let room = inner.table_bytes + bytes <= MAX_TABLE_BYTES;
        if room {
            inner.table_bytes += bytes;
        }
        room
    }

    /// The module of a file that `pid` maps at `map` (`START-END`) and calls `path`.
    pub(super) fn file(&self, pid: u32, map: &str, path: &str, deleted: bool) -> ModuleId {
        // Through map_files it is the very inode that is mapped, whatever has happened to the path.
        let through = [
            PathBuf::from(format!("/proc/{pid}/map_files/{map}")),
            PathBuf::from(format!("/proc/{pid}/root{path}")),
        ];
        let usable = if deleted { &through[..1] } else { &through[..] };
        let Some((file, metadata)) = usable.iter().find_map(|p| {
            let file = File::open(p).ok()?;
            let metadata = file.metadata().ok()?;
            metadata.is_file().then_some((file, metadata))
        }) else {
            return self.named(path, 0, || ModuleKind::File { open: PathBuf::from(path), file: None });
        };
        let key = (metadata.dev(), metadata.ino());
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = inner.files.get(&key) {
            return *id;
        }
        // The plain path is best where it leads to the same file: debug files are looked for beside it.
        let same = std::fs::metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == key);
        let held = inner.open_files < MAX_OPEN;
        let open = match (same, held) {
            (true, _) => PathBuf::from(path),
            (false, true) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            (false, false) => through[1].clone(),
        };
        inner.open_files += usize::from(held);
        let kind = ModuleKind::File { open, file: held.then_some(file) };
        let id = push(&mut inner, ModuleInfo::new(path, kind));
        inner.files.insert(key, id);
        id
    }

    /// A module without a file, by its name and process.
    pub(super) fn named(&self, name: &str, pid: u32, kind: impl FnOnce() -> ModuleKind) -> ModuleId {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = inner.named.get(&(name.to_owned(), pid)) {
            return *id;
        }
        let id = push(&mut inner, ModuleInfo::new(name, kind()));
        inner.named.insert((name.to_owned(), pid), id);
        id
    }
}

fn push(inner: &mut Inner, info: Arc<ModuleInfo>) -> ModuleId {
    // OK because a process has far fewer than 2^32 modules; were it not so, the last ones would share a number.
    let id = ModuleId(u32::try_from(inner.list.len()).unwrap_or(u32::MAX));
    inner.list.push(info);
    id
}
