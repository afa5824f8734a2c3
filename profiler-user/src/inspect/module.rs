//! One mapped file of the target: where it is mapped, how to open it, and (lazily) its symbols and code.
//!
//! Its file is held open while it is mapped, so that what is read is what runs, whatever happens to its name. A target may
//! load and unload generated libraries for days: the file of a module that is not mapped any more is given back once nothing
//! refers to it ([`Module::release`]), and with it the room on disk of a deleted one.

use super::choice::SiteObstacle;
use super::elf::ElfInfo;
use super::error::InspectError;
use super::maps::{Backing, Mapping};
use super::return_links;
use super::sequences;
use super::symbols::{SymbolSource, Symbols};
use super::text::TextIndex;
use super::unwinding::{self, Links, Unwinding};
use crate::target_file::{FileKey, OpenError, Root, TargetFile};
use profiler_core::text::shell_word;
use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// More of `/etc/os-release` is not read.
const MAX_RELEASE_BYTES: u64 = 64 << 10;
/// Files of modules held open at once. Programs map some hundreds at most; those beyond it have no names here.
const MAX_OPEN: usize = 1024;

/// A file with executable mappings in the target.
#[derive(Debug, Clone)]
pub struct Module {
    /// File name, as used in `module:function` patterns.
    pub name: String,
    /// The path as the target sees it.
    pub path: PathBuf,
    /// The file's last name is gone or names another file now.
    pub replaced: bool,
    /// The main program.
    pub main: bool,
    /// Its executable mappings, by address.
    pub mappings: Vec<Mapping>,
    device: (u32, u32),
    inode: u64,
    key: Option<FileKey>,
    code: Arc<Code>,
    root: Option<Arc<Root>>,
    /// Bytes that were looked through for stack switches, of all modules of the process.
    searched: Arc<AtomicU64>,
    state: State,
}

/// What is there of a module's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is held open, unless it could not be opened.
    Held,
    /// It was given back; a mapping of it opens it again.
    Released,
    /// It was given back, and its place on disk was given to another file since.
    Gone,
}

/// A path that leads to a mapped file through our open descriptor, for attaching uprobes: good while this is kept. Where
/// the file could not be opened, its path.
#[derive(Debug, Clone)]
pub struct AttachPath {
    path: PathBuf,
    _open: Arc<Code>,
}

impl Deref for AttachPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl PartialEq for AttachPath {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for AttachPath {}

/// What is read from the file, once: shared by all clones of a module, so that another thread can read it ahead.
#[derive(Debug)]
struct Code {
    file: Result<Arc<TargetFile>, String>,
    elf: OnceLock<Result<Arc<ElfInfo>, String>>,
    symbols: OnceLock<Result<Symbols, String>>,
    text: OnceLock<Result<TextIndex, String>>,
    sequences: OnceLock<Result<Vec<Range<u64>>, String>>,
    return_links: OnceLock<Result<(), SiteObstacle>>,
    unwinding: OnceLock<Result<Links, Unwinding>>,
}

impl Code {
    fn of(file: Result<Arc<TargetFile>, String>) -> Arc<Self> {
        Arc::new(Self {
            file,
            elf: OnceLock::new(),
            symbols: OnceLock::new(),
            text: OnceLock::new(),
            sequences: OnceLock::new(),
            return_links: OnceLock::new(),
            unwinding: OnceLock::new(),
        })
    }
}

/// By what the mappings of one file are told from those of others: device, inode, path.
type MappedAs = ((u32, u32), u64, PathBuf);

/// The executable mappings of files, those of one file together, in order of their first addresses.
#[derive(Debug, Default)]
pub(super) struct MappedFiles {
    files: Vec<Vec<Mapping>>,
    /// Indices of `files`: a hostile target may map ten thousands of them.
    index: HashMap<MappedAs, usize>,
}

impl MappedFiles {
    pub(super) fn of(maps: &[Mapping]) -> Self {
        let mut all = Self::default();
        for map in maps.iter().filter(|m| m.exec && matches!(m.backing, Backing::File { .. })) {
            let number = all.files.len();
            let at = *all.index.entry((map.device, map.inode, path_of(map).to_owned())).or_insert(number);
            if at == number {
                all.files.push(Vec::new());
            }
            all.files[at].push(map.clone());
        }
        all
    }

    /// Takes the mappings of a module out; none where its file is not mapped, or has another module by now.
    pub(super) fn take(&mut self, module: &Module) -> Vec<Mapping> {
        if module.state == State::Gone {
            return Vec::new();
        }
        let key = (module.device, module.inode, module.path.clone());
        self.index.remove(&key).map(|at| std::mem::take(&mut self.files[at])).unwrap_or_default()
    }

    /// Those that no module has taken.
    pub(super) fn rest(mut self) -> Vec<Vec<Mapping>> {
        self.files.retain(|file| !file.is_empty());
        self.files
    }
}

fn path_of(map: &Mapping) -> &Path {
    match &map.backing {
        Backing::File { path, .. } => path,
        _ => Path::new(""),
    }
}

impl Module {
    /// The modules of a process, the main program first. Their files are opened, and read when something asks.
    #[must_use]
    pub(super) fn all(pid: i32, maps: &[Mapping]) -> Vec<Self> {
        let mut modules = Self::of_files(pid, MappedFiles::of(maps).rest(), &[]);
        modules.sort_by_key(|m| !m.main);
        modules
    }

    /// The modules of some mapped files. `known`: those of the process that there are.
    #[must_use]
    pub(super) fn of_files(pid: i32, files: Vec<Vec<Mapping>>, known: &[Self]) -> Vec<Self> {
        let exe = std::fs::metadata(format!("/proc/{pid}/exe")).ok().map(|m| (m.dev(), m.ino()));
        let root = Root::of(pid.cast_unsigned()).ok().map(Arc::new);
        // One descriptor for all modules that came while the process had this root.
        let same = |held: &&Arc<Root>| root.as_ref().is_some_and(|r| r.directory() == held.directory());
        let root =
            known.iter().rev().find_map(|m| m.root.as_ref()).filter(same).map(Arc::clone).or(root.clone());
        let mut open = known.iter().filter(|m| m.is_open()).count();
        let searched = known.first().map_or_else(Arc::default, |m| Arc::clone(&m.searched));
        let mut modules = Vec::with_capacity(files.len());
        for mappings in files {
            let mut module = Self::new(pid.cast_unsigned(), root.as_ref(), exe, mappings, open < MAX_OPEN);
            module.searched = Arc::clone(&searched);
            open += usize::from(module.is_open());
            modules.push(module);
        }
        modules
    }

    fn new(
        pid: u32,
        root: Option<&Arc<Root>>,
        exe: Option<(u64, u64)>,
        mappings: Vec<Mapping>,
        room: bool,
    ) -> Self {
        let map = &mappings[0];
        let path = path_of(map).to_owned();
        let opened = if room {
            open(pid, root.map(Arc::as_ref), map).map_err(|e| e.to_string())
        } else {
            Err(format!("{} is not opened: the files of {MAX_OPEN} modules are open", path.display()))
        };
        let identity = opened.as_ref().ok().map(TargetFile::identity);
        let by_name = root.and_then(|root| root.identity(&path));
        Self {
            name: path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            replaced: identity.is_some() && by_name != identity,
            main: exe.is_some() && exe == identity,
            device: map.device,
            inode: map.inode,
            key: opened.as_ref().ok().map(TargetFile::key),
            path,
            code: Code::of(opened.map(Arc::new)),
            root: root.map(Arc::clone),
            mappings,
            searched: Arc::default(),
            state: State::Held,
        }
    }

    /// A module that is no part of a process: a file on disk, for offline analysis and tests.
    ///
    /// # Errors
    /// The file is not a usable ELF file.
    pub fn offline(path: &Path) -> Result<Self, InspectError> {
        let elf = ElfInfo::open(path)?;
        let code = Code::of(Ok(Arc::clone(&elf.file)));
        let module = Self {
            name: path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            path: path.to_owned(),
            replaced: false,
            main: true,
            mappings: Vec::new(),
            device: (0, 0),
            inode: 0,
            key: None,
            code,
            root: None,
            searched: Arc::default(),
            state: State::Held,
        };
        let _ = module.code.elf.set(Ok(Arc::new(elf)));
        Ok(module)
    }

    /// The path for attaching.
    #[must_use]
    pub fn attach_path(&self) -> AttachPath {
        let path = self.code.file.as_ref().map_or_else(|_| self.path.clone(), |file| file.path());
        AttachPath { path, _open: Arc::clone(&self.code) }
    }

    pub(super) fn searched(&self) -> &AtomicU64 {
        &self.searched
    }

    /// Its file is held open.
    fn is_open(&self) -> bool {
        self.code.file.is_ok()
    }

    /// Gives the file of a module that is not mapped back, with what was read of it, unless something refers to it (a
    /// class, a reader): true if it did so. As long as a file is held its inode is not given to another.
    pub(super) fn release(&mut self) -> bool {
        let unused = self.mappings.is_empty() && Arc::strong_count(&self.code) == 1;
        if self.state != State::Held || !unused {
            return false;
        }
        self.state = State::Released;
        self.code = Code::of(Err(format!("{} is not mapped any more", self.path.display())));
        self.root = None;
        true
    }

    /// The file of a module that was given back is mapped again, and opened again as `again`: this module, or a new one if
    /// another file has its name and inode by now.
    ///
    /// # Errors
    /// The new module.
    pub(super) fn take_back(&mut self, again: Self) -> Result<(), Box<Self>> {
        // Of a file that could not be opened nothing is known that would have to stay true.
        if self.key.is_none() || self.key == again.key {
            *self = again;
            return Ok(());
        }
        self.state = State::Gone;
        Err(Box::new(again))
    }

    /// Its file was given back.
    pub(super) fn is_released(&self) -> bool {
        self.state == State::Released
    }

    /// Its file was not given back.
    pub(super) fn is_held(&self) -> bool {
        self.state == State::Held
    }

    /// The ELF headers; read at the first call.
    ///
    /// # Errors
    /// The file cannot be read as ELF (the text says why; kept for later calls).
    pub fn elf(&self) -> Result<&Arc<ElfInfo>, &str> {
        self.code
            .elf
            .get_or_init(|| {
                let file = Arc::clone(self.code.file.as_ref().map_err(Clone::clone)?);
                ElfInfo::read(file).map(Arc::new).map_err(|e| e.to_string())
            })
            .as_ref()
            .map_err(String::as_str)
    }

    /// The function symbols; read at the first call.
    ///
    /// # Errors
    /// The file or its symbol tables cannot be read.
    pub fn symbols(&self) -> Result<&Symbols, &str> {
        self.code
            .symbols
            .get_or_init(|| {
                let elf = self.elf().map_err(str::to_owned)?;
                let debug = if elf.symtab.is_some() { None } else { self.debug_file(elf) };
                Symbols::read(elf, debug.as_ref()).map_err(|e| format!("{}: {e}", self.path.display()))
            })
            .as_ref()
            .map_err(String::as_str)
    }

    /// The index of possible entry addresses; the code is scanned at the first call. So are the restartable sequences, so that
    /// whoever has asked for this ahead needs to read nothing more to choose sites.
    ///
    /// # Errors
    /// The file cannot be read, or has too much code.
    pub fn text(&self) -> Result<&TextIndex, &str> {
        self.code
            .text
            .get_or_init(|| {
                let elf = self.elf().map_err(str::to_owned)?;
                // An error is kept for who asks.
                let _ = self.sequences();
                TextIndex::scan(elf).map_err(|e| e.to_string())
            })
            .as_ref()
            .map_err(String::as_str)
    }

    /// The addresses of its restartable sequences; read at the first call.
    ///
    /// # Errors
    /// Where they are cannot be told ([`sequences::of`]).
    pub(crate) fn sequences(&self) -> Result<&[Range<u64>], &str> {
        self.code
            .sequences
            .get_or_init(|| sequences::of(self.elf().map_err(str::to_owned)?))
            .as_deref()
            .map_err(String::as_str)
    }

    /// Whether [`Module::symbols`] answers at once.
    #[must_use]
    pub fn has_symbols(&self) -> bool {
        self.code.symbols.get().is_some()
    }

    /// Whether [`Module::text`] answers at once.
    #[must_use]
    pub fn has_text(&self) -> bool {
        self.code.text.get().is_some()
    }

    /// Whether return links are safe as far as this module goes; all its code is looked at at the first call.
    ///
    /// # Errors
    /// What in it would crash on a replaced return address.
    pub fn return_links(&self) -> Result<(), SiteObstacle> {
        self.code.return_links.get_or_init(|| return_links::check_module(self)).clone()
    }

    /// The same, if it is known.
    #[must_use]
    pub fn return_links_known(&self) -> Option<Result<(), SiteObstacle>> {
        self.code.return_links.get().cloned()
    }

    /// What it tells the dynamic linker, looked at at the first call; or by what it can send an unwinder on its way.
    pub(super) fn unwinding(&self) -> Result<&Links, &Unwinding> {
        self.code.unwinding.get_or_init(|| unwinding::of_module(self)).as_ref()
    }

    /// The same, if it is known.
    pub(super) fn unwinding_known(&self) -> Option<Result<&Links, &Unwinding>> {
        self.code.unwinding.get().map(Result::as_ref)
    }

    /// Clones of one module.
    #[must_use]
    pub fn shares_code(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.code, &other.code)
    }

    /// The build id in hexadecimal.
    #[must_use]
    pub fn build_id(&self) -> Option<String> {
        self.elf().ok()?.debug.build_id_text()
    }

    /// Why some functions may have no names here, and what to install; `None` where all symbols are there.
    #[must_use]
    pub fn symbols_missing(&self) -> Option<String> {
        let source = self.symbols().ok()?.source;
        let left = match source {
            SymbolSource::Full | SymbolSource::DebugFile => return None,
            SymbolSource::ExportsOnly => "is stripped: only the functions that it exports have names",
            SymbolSource::None => "is stripped: none of its functions has a name",
        };
        Some(format!("{} {left}; {}", self.name, self.remedy()))
    }

    /// Which package holds the symbols: the usual names of the distribution, by `/etc/os-release` of the target.
    pub(super) fn remedy(&self) -> String {
        let read = |root: &Root| {
            let file = root.open(Path::new("/etc/os-release")).ok()?;
            Some(String::from_utf8_lossy(&file.read_all(MAX_RELEASE_BYTES).ok()?).into_owned())
        };
        let release = self.root.as_deref().and_then(read);
        let release = release.or_else(|| read(&Root::own().ok()?)).unwrap_or_default();
        package_of_symbols(&release, &self.name, &self.path)
    }

    /// The separate debug file: by build id, else by `.gnu_debuglink`, in the target's root and in ours.
    pub(super) fn debug_file(&self, elf: &ElfInfo) -> Option<ElfInfo> {
        elf.debug.find(&self.path, self.root.as_deref(), |file| {
            ElfInfo::read(Arc::new(file)).ok().filter(|debug| debug.debug.build_id == elf.debug.build_id)
        })
    }

    /// Run-time address of a file offset, if mapped executable.
    #[must_use]
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        self.mappings
            .iter()
            .find(|m| (m.offset..m.offset + (m.end - m.start)).contains(&offset))
            .map(|m| offset - m.offset + m.start)
    }

    /// Link-time address of a run-time address in one of its executable mappings.
    #[must_use]
    pub fn vaddr_of_address(&self, address: u64) -> Option<u64> {
        let map = self.mappings.iter().find(|m| m.contains(address))?;
        self.elf().ok()?.vaddr_of(address - map.start + map.offset)
    }
}

/// What to install, by the text of an `os-release`. A path that no command can hold is not put into one.
fn package_of_symbols(release: &str, name: &str, path: &Path) -> String {
    let is = |id: &str| release.lines().any(|l| l.starts_with("ID") && l.contains(id));
    let path = path.to_str().and_then(shell_word);
    if is("debian") || is("ubuntu") {
        if name.starts_with("libc.so") || name.starts_with("ld-linux") {
            return "install its symbols: `sudo apt install libc6-dbg`".to_owned();
        }
        if let Some(path) = path {
            return format!(
                "install the -dbgsym (or -dbg) package of what `dpkg -S {path}` names, or use an unstripped build"
            );
        }
    } else if (is("fedora") || is("rhel") || is("centos"))
        && let Some(path) = path
    {
        return format!("install its symbols: `sudo dnf debuginfo-install {path}`");
    }
    "install its debug package, or use an unstripped build".to_owned()
}

/// Opens the file of a mapping: by the mapping, or, without the capability for that, by its name and inode.
fn open(pid: u32, root: Option<&Root>, map: &Mapping) -> Result<TargetFile, OpenError> {
    let path = path_of(map);
    let by_map = TargetFile::mapped(pid, &map.map_files_name(), path);
    let (Err(OpenError::System { .. }), Some(root)) = (&by_map, root) else { return by_map };
    let file = root.open(path)?;
    let (device, inode) = file.identity();
    let (major, minor) = map.device;
    let same_device = (rustix::fs::major(device), rustix::fs::minor(device)) == (major, minor);
    // Of file systems without a device of their own (major 0: btrfs, overlayfs) stat and the mapping tell two numbers.
    if inode == map.inode && (same_device || major == 0) {
        Ok(file)
    } else {
        Err(OpenError::Replaced { path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests;
