//! The modules that frames refer to, for as long as the session lasts.
//!
//! A module is a file by device and inode, so that it is one module in all processes that map it. The file
//! is held open from the moment that it is first seen: it can be read after the process has ended, or the file
//! has lost its name. Of those that a process has unmapped the last ones are held, so that names can be had of samples that
//! are still under way; then they are given back, with the room on disk of a deleted one.

use super::elf::ElfInfo;
use crate::target_file::{FileKey, Root, TargetFile};
use std::collections::{HashMap, VecDeque};
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
/// Files held open that were mapped and are not: so many, of so many bytes on disk.
const MAX_UNMAPPED: usize = 32;
const MAX_UNMAPPED_BYTES: u64 = 64 << 20;
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
    File(ModuleFile),
    /// An ELF image in memory (the vDSO).
    Image(Arc<[u8]>),
    /// Executable memory of this process without a file; addresses are absolute.
    Jit {
        /// The process, whose perf map may name it.
        pid: u32,
    },
}

/// A module's file.
#[derive(Debug)]
pub struct ModuleFile {
    /// Its path as the target sees it.
    path: PathBuf,
    /// Holds it open.
    held: Option<Arc<TargetFile>>,
    /// Which file it is; `None`: it could not be opened when it was first seen.
    key: Option<FileKey>,
    /// The root that its path begins at.
    root: Option<Arc<Root>>,
}

impl ModuleFile {
    /// The open file; opened again by its path where too many are held.
    ///
    /// # Errors
    /// It cannot be opened, or another file has its name now; in words.
    pub fn open(&self) -> Result<Arc<TargetFile>, String> {
        if let Some(file) = &self.held {
            return Ok(Arc::clone(file));
        }
        let root = self.root.as_ref().ok_or("its process is gone")?;
        let file = root.open(&self.path).map_err(|e| e.to_string())?;
        if Some(file.key()) != self.key {
            return Err(format!("{} is another file now", self.path.display()));
        }
        Ok(Arc::new(file))
    }

    /// The path as the target sees it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The root that the path begins at, if the process could be looked into.
    #[must_use]
    pub fn root(&self) -> Option<&Root> {
        self.root.as_deref()
    }
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
            ModuleKind::File(file) => ElfInfo::read(&*file.open()?),
            ModuleKind::Image(bytes) => ElfInfo::read_bytes(bytes),
            _ => Err("it is not an ELF file".to_owned()),
        };
        self.elf.get_or_init(read).as_ref().map_err(String::as_str)
    }
}

#[derive(Debug)]
struct Inner {
    list: Vec<Arc<ModuleInfo>>,
    files: HashMap<FileKey, ModuleId>,
    named: HashMap<(String, u32), ModuleId>,
    roots: HashMap<(u64, u64), Arc<Root>>,
    open_files: usize,
    /// Held open, and not mapped any more: the last one behind.
    unmapped: VecDeque<ModuleId>,
    table_bytes: usize,
}

impl Inner {
    fn file_of(&self, id: ModuleId) -> Option<&ModuleFile> {
        match &self.list.get(usize::try_from(id.0).ok()?)?.kind {
            ModuleKind::File(file) => Some(file),
            _ => None,
        }
    }

    /// What is held of a module, bytes on disk; `None`: nothing.
    fn held_bytes(&self, id: ModuleId) -> Option<u64> {
        Some(self.file_of(id)?.held.as_ref()?.on_disk())
    }

    /// Holds the file of a module open, or no longer; what was read of it goes with it.
    fn hold(&mut self, id: ModuleId, file: Option<Arc<TargetFile>>) {
        let Some(old) = self.file_of(id) else { return };
        let open = self.open_files - usize::from(old.held.is_some()) + usize::from(file.is_some());
        let kind = ModuleKind::File(ModuleFile {
            path: old.path.clone(),
            held: file,
            key: old.key,
            root: old.root.clone(),
        });
        self.open_files = open;
        // OK because the list has it: its file was found above.
        let info = &mut self.list[id.0 as usize];
        *info = ModuleInfo::new(&info.name, kind);
    }
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
            roots: HashMap::new(),
            open_files: 0,
            unmapped: VecDeque::new(),
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

    /// Gives back what was booked.
    pub(super) fn return_tables(&self, bytes: usize) {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        inner.table_bytes = inner.table_bytes.saturating_sub(bytes);
    }

    /// A process has unmapped a module. Its file is held for now; those that were unmapped before it may go. Where another
    /// process still maps one, it is opened by its name from then on.
    pub(super) fn unmapped(&self, id: ModuleId) {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if inner.held_bytes(id).is_none() || inner.unmapped.contains(&id) {
            return;
        }
        inner.unmapped.push_back(id);
        let mut bytes: u64 = inner.unmapped.iter().filter_map(|id| inner.held_bytes(*id)).sum();
        while inner.unmapped.len() > MAX_UNMAPPED || bytes > MAX_UNMAPPED_BYTES {
            let Some(first) = inner.unmapped.pop_front() else { return };
            bytes -= inner.held_bytes(first).unwrap_or(0);
            inner.hold(first, None);
        }
    }

    /// The module of a file that `pid` maps at `map` (`START-END`) and calls `path`.
    pub(super) fn file(&self, pid: u32, map: &str, path: &str, deleted: bool) -> ModuleId {
        let shown = Path::new(path);
        let root = Root::of(pid).ok();
        // Through map_files it is the very inode that is mapped, whatever has happened to the path.
        let by_map = TargetFile::mapped(pid, map, shown).ok();
        let by_name = || root.as_ref().filter(|_| !deleted).and_then(|root| root.open(shown).ok());
        let Some(file) = by_map.or_else(by_name) else {
            let kind =
                || ModuleKind::File(ModuleFile { path: shown.to_owned(), held: None, key: None, root: None });
            return self.named(path, 0, kind);
        };
        let key = file.key();
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = inner.files.get(&key).copied() {
            inner.unmapped.retain(|other| *other != id);
            if inner.held_bytes(id).is_none() && inner.open_files < MAX_OPEN {
                inner.hold(id, Some(Arc::new(file)));
            }
            return id;
        }
        // Processes of one container share their root.
        let root = root.map(Arc::new).map(|root| match root.directory() {
            Some(directory) => Arc::clone(inner.roots.entry(directory).or_insert(root)),
            None => root,
        });
        let held = inner.open_files < MAX_OPEN;
        inner.open_files += usize::from(held);
        let kind = ModuleKind::File(ModuleFile {
            path: shown.to_owned(),
            held: held.then(|| Arc::new(file)),
            key: Some(key),
            root,
        });
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
