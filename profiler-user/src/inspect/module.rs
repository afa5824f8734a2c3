//! One mapped file of the target: where it is mapped, how to open it, and (lazily) its symbols and code.

use super::elf::ElfInfo;
use super::error::InspectError;
use super::maps::{Backing, Mapping};
use super::symbols::{SymbolSource, Symbols};
use super::text::TextIndex;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// A file with executable mappings in the target.
#[derive(Debug, Clone)]
pub struct Module {
    /// File name, as used in `module:function` patterns.
    pub name: String,
    /// The path as the target sees it.
    pub path: PathBuf,
    /// A path that *we* can open and that leads to the mapped inode: the plain path, the path under
    /// `/proc/PID/root`, `/proc/PID/exe`, or an entry of `/proc/PID/map_files`. Usable for attaching uprobes.
    pub attach_path: PathBuf,
    /// The file's last name is gone or names another file now.
    pub replaced: bool,
    /// The main program.
    pub main: bool,
    /// Its executable mappings, by address.
    pub mappings: Vec<Mapping>,
    code: Arc<Code>,
    root: PathBuf,
}

/// What is read from the file, once: shared by all clones of a module, so that another thread can read it ahead.
#[derive(Debug, Default)]
struct Code {
    elf: OnceLock<Result<Arc<ElfInfo>, String>>,
    symbols: OnceLock<Result<Symbols, String>>,
    text: OnceLock<Result<TextIndex, String>>,
}

impl Module {
    /// Groups the executable file mappings of a process into modules, the main program first.
    #[must_use]
    pub(super) fn all(pid: i32, maps: &[Mapping]) -> Vec<Self> {
        let proc_dir = PathBuf::from(format!("/proc/{pid}"));
        let exe = std::fs::metadata(proc_dir.join("exe")).ok().map(|m| (m.dev(), m.ino()));
        let mut modules: Vec<Self> = Vec::new();
        for map in maps.iter().filter(|m| m.exec) {
            let Backing::File { path, .. } = &map.backing else { continue };
            let same = |m: &&mut Self| {
                m.mappings[0].inode == map.inode && m.mappings[0].device == map.device && m.path == *path
            };
            if let Some(module) = modules.iter_mut().find(same) {
                module.mappings.push(map.clone());
            } else {
                modules.push(Self::new(&proc_dir, exe, map, path));
            }
        }
        modules.sort_by_key(|m| !m.main);
        modules
    }

    fn new(proc_dir: &Path, exe: Option<(u64, u64)>, map: &Mapping, path: &Path) -> Self {
        // stat through the mapping tells the inode without trusting any name.
        let through_map = proc_dir.join("map_files").join(map.map_files_name());
        let mapped = std::fs::metadata(&through_map).ok().map(|m| (m.dev(), m.ino()));
        let identity = |p: &Path| std::fs::metadata(p).ok().map(|m| (m.dev(), m.ino()));
        let is_mapped = |p: &Path| match mapped {
            Some(id) => identity(p) == Some(id),
            // Without CAP_CHECKPOINT_RESTORE map_files cannot be followed; compare the inode number.
            None => identity(p).is_some_and(|(_, inode)| inode == map.inode),
        };
        let root = proc_dir.join("root");
        let in_root = root.join(path.strip_prefix("/").unwrap_or(path));
        let main =
            exe.is_some() && (exe == mapped || mapped.is_none() && exe.map(|e| e.1) == Some(map.inode));
        let (attach_path, replaced) = if is_mapped(path) {
            (path.to_owned(), false)
        } else if is_mapped(&in_root) {
            (in_root, false)
        } else if main {
            (proc_dir.join("exe"), true)
        } else {
            (through_map, true)
        };
        Self {
            name: path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            path: path.to_owned(),
            attach_path,
            replaced,
            main,
            mappings: vec![map.clone()],
            code: Arc::default(),
            root,
        }
    }

    /// A module that is no part of a process: a file on disk, for offline analysis and tests.
    ///
    /// # Errors
    /// The file is not a usable ELF file.
    pub fn offline(path: &Path) -> Result<Self, InspectError> {
        let elf = ElfInfo::open(path)?;
        let module = Self {
            name: path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            path: path.to_owned(),
            attach_path: path.to_owned(),
            replaced: false,
            main: true,
            mappings: Vec::new(),
            code: Arc::default(),
            root: PathBuf::from("/"),
        };
        let _ = module.code.elf.set(Ok(Arc::new(elf)));
        Ok(module)
    }

    /// The ELF headers; read at the first call.
    ///
    /// # Errors
    /// The file cannot be read as ELF (the text says why; kept for later calls).
    pub fn elf(&self) -> Result<&Arc<ElfInfo>, &str> {
        self.code
            .elf
            .get_or_init(|| ElfInfo::open(&self.attach_path).map(Arc::new).map_err(|e| e.to_string()))
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
                Symbols::read(elf, debug.as_ref()).map_err(|e| format!("{}: {e}", self.attach_path.display()))
            })
            .as_ref()
            .map_err(String::as_str)
    }

    /// The index of possible entry addresses; the code is scanned at the first call.
    ///
    /// # Errors
    /// The file cannot be read, or has too much code.
    pub fn text(&self) -> Result<&TextIndex, &str> {
        self.code
            .text
            .get_or_init(|| {
                let elf = self.elf().map_err(str::to_owned)?;
                TextIndex::scan(elf).map_err(|e| e.to_string())
            })
            .as_ref()
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

    /// Clones of one module.
    #[must_use]
    pub fn shares_code(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.code, &other.code)
    }

    /// The build id in hexadecimal.
    #[must_use]
    pub fn build_id(&self) -> Option<String> {
        let id = self.elf().ok()?.build_id.as_ref()?;
        Some(id.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
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
    fn remedy(&self) -> String {
        let release = std::fs::read_to_string(self.root.join("etc/os-release"))
            .or_else(|_| std::fs::read_to_string("/etc/os-release"))
            .unwrap_or_default();
        let is = |id: &str| release.lines().any(|l| l.starts_with("ID") && l.contains(id));
        if is("debian") || is("ubuntu") {
            if self.name.starts_with("libc.so") || self.name.starts_with("ld-linux") {
                return "install its symbols: `sudo apt install libc6-dbg`".to_owned();
            }
            return format!(
                "install the -dbgsym (or -dbg) package of what `dpkg -S {}` names, or use an unstripped build",
                self.path.display()
            );
        }
        if is("fedora") || is("rhel") || is("centos") {
            return format!("install its symbols: `sudo dnf debuginfo-install {}`", self.path.display());
        }
        "install its debug package, or use an unstripped build".to_owned()
    }

    /// The separate debug file: by build id, else by `.gnu_debuglink`, in the target's root and in ours.
    fn debug_file(&self, elf: &ElfInfo) -> Option<ElfInfo> {
        let mut candidates = Vec::new();
        for root in [self.root.as_path(), Path::new("/")] {
            if let Some(id) = self.build_id().filter(|id| id.len() > 2) {
                let file = format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
                candidates.push(root.join(file));
            }
            if let Some(link) = elf.debug_link.as_deref().filter(|l| !l.contains('/')) {
                let dir = self.path.parent().unwrap_or(Path::new("/"));
                let dir = dir.strip_prefix("/").unwrap_or(dir);
                candidates.push(root.join(dir).join(link));
                candidates.push(root.join(dir).join(".debug").join(link));
                candidates.push(root.join("usr/lib/debug").join(dir).join(link));
            }
        }
        candidates
            .iter()
            .filter(|path| path.exists())
            .filter_map(|path| ElfInfo::open(path).ok())
            // A debug file of another build has other addresses; a missing id proves nothing and is not trusted.
            .find(|debug| debug.build_id.is_some() && debug.build_id == elf.build_id)
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

    /// Whether two entries stand for the same mapped file.
    #[must_use]
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        match (self.mappings.first(), other.mappings.first()) {
            (Some(a), Some(b)) => a.inode == b.inode && a.device == b.device && self.path == other.path,
            _ => self.path == other.path,
        }
    }
}
