//! The prices of this boot, kept in a file: calibration need not run each time.
//!
//! The file is believed only if it and its directory belong to us, nobody else may write to them, neither is a link,
//! and it was made on this boot of this kernel by this version for this tier. It is replaced by renaming, so a
//! reader sees the old one or the new one.

use profiler_core::class::Tier;
use profiler_core::cost::{CostModel, Price};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A cost model takes some KiB.
const MAX_BYTES: u64 = 1 << 20;

/// See [`Key::method`].
const METHOD: u32 = 6;

/// What the prices hold for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    /// The kernel draws it at each boot.
    boot_id: String,
    /// Release and build of the kernel.
    kernel: String,
    /// Version of this program.
    version: String,
    /// How they are measured; goes up when calibration changes.
    method: u32,
    /// Which eBPF code has these prices.
    programs: String,
    tier: Tier,
    cpus: usize,
}

impl Key {
    /// Of this machine, now.
    pub fn here(tier: Tier) -> io::Result<Self> {
        let (boot_id, kernel) = boot()?;
        Ok(Self {
            boot_id,
            kernel,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            method: METHOD,
            programs: crate::prober::programs_id(),
            tier,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        })
    }

    fn file_name(&self) -> CString {
        // OK because the tier's name is a letter.
        CString::new(format!("calibration-{:?}.json", self.tier)).unwrap_or_default()
    }
}

/// What the kernel draws at each boot, and its release and build.
pub(super) fn boot() -> io::Result<(String, String)> {
    let read = |name: &str| std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name));
    let kernel = format!("{} {}", read("osrelease")?.trim(), read("version")?.trim());
    Ok((read("random/boot_id")?.trim().to_owned(), kernel))
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    key: Key,
    model: CostModel,
}

/// Where the file lies: `/var/cache/tithe` for root, else the user's cache directory.
pub(super) fn default_dir() -> Option<PathBuf> {
    if geteuid().is_root() {
        return Some("/var/cache/tithe".into());
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|h| h.join(".cache")))?;
    Some(base.join("tithe"))
}

/// The stored prices. `Ok(None)`: there are none.
///
/// # Errors
/// Why what is there is not believed, in words.
pub(super) fn load(dir: &Path, key: &Key) -> Result<Option<CostModel>, String> {
    let refuse = |why: &str| Err(format!("ignored the stored prices in {}: {why}", dir.display()));
    let text = match read(dir, &key.file_name()) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        Err(why) => return refuse(&why),
    };
    let stored: Stored = match serde_json::from_str(&text) {
        Ok(stored) => stored,
        Err(error) => return refuse(&format!("damaged ({error})")),
    };
    if stored.key != *key {
        return refuse("they are from another boot, kernel, version or tier");
    }
    if !plausible(&stored.model) {
        return refuse("a price in it is impossible");
    }
    if stored.model.is_disturbed() {
        return refuse("cold caches add next to nothing in it: other work disturbed that calibration");
    }
    Ok(Some(stored.model))
}

/// A file of the directory that only we can have written. `Ok(None)`: there is none.
///
/// # Errors
/// Why it is not believed, in words.
pub(super) fn read(dir: &Path, name: &CStr) -> Result<Option<String>, String> {
    let handle = match open_dir(dir) {
        Ok(handle) => handle,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let file = match open_at(&handle, name, OFlags::RDONLY, Mode::empty()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    trusted(&file, libc::S_IFREG).map_err(|error| error.to_string())?;
    let mut text = String::new();
    match file.take(MAX_BYTES).read_to_string(&mut text) {
        Ok(_) => Ok(Some(text)),
        Err(_) => Err("not readable as text".to_owned()),
    }
}

/// Store the prices.
///
/// # Errors
/// The directory cannot be made or is not ours alone, or the disk is full.
pub(super) fn store(dir: &Path, key: &Key, model: &CostModel) -> io::Result<()> {
    let stored = Stored { key: key.clone(), model: model.clone() };
    write(dir, &key.file_name(), &serde_json::to_vec_pretty(&stored).map_err(io::Error::other)?)
}

/// Removes a file of the directory, if it is there.
///
/// # Errors
/// The directory is not ours alone, or the file stays.
pub(super) fn remove(dir: &Path, name: &CStr) -> io::Result<()> {
    let removed = open_dir(dir).and_then(|handle| Ok(rustix::fs::unlinkat(&handle, name, AtFlags::empty())?));
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces a file of the directory, which is made if need be.
///
/// # Errors
/// The directory cannot be made or is not ours alone, or the disk is full.
pub(super) fn write(dir: &Path, name: &CStr, text: &[u8]) -> io::Result<()> {
    match std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let handle = open_dir(dir)?;
    // OK because a number holds no NUL.
    let temporary = CString::new(format!(".calibration-{}", std::process::id())).unwrap_or_default();
    let unlink = || rustix::fs::unlinkat(&handle, &temporary, AtFlags::empty());
    // A leftover of a process that had our number.
    let _ = unlink();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = open_at(&handle, &temporary, flags, Mode::from_raw_mode(0o644))?;
    let written =
        file.write_all(text).and_then(|()| Ok(rustix::fs::renameat(&handle, &temporary, &handle, name)?));
    if written.is_err() {
        // The first error is the one worth telling.
        let _ = unlink();
    }
    written
}

fn open_dir(dir: &Path) -> io::Result<File> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    trusted(&handle, libc::S_IFDIR)?;
    Ok(handle)
}

fn open_at(dir: &File, name: &CStr, flags: OFlags, mode: Mode) -> io::Result<File> {
    // Not blocking: somebody might have put a FIFO there.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::openat(dir, name, flags, mode)?))
}

/// Of that type, ours, and writable by nobody else.
fn trusted(file: &File, kind: libc::mode_t) -> io::Result<()> {
    let meta = file.metadata()?;
    let us = geteuid().as_raw();
    if meta.mode() & libc::S_IFMT != kind {
        return Err(io::Error::other("not of the right file type"));
    }
    if meta.uid() != us {
        return Err(io::Error::other(format!("owned by user {}, not by us ({us})", meta.uid())));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!("others may write to it (mode {:o})", meta.mode() & 0o777)));
    }
    Ok(())
}

/// Positive, finite, and median within the range.
fn plausible(model: &CostModel) -> bool {
    let good = |p: &Price| {
        p.ns.is_finite()
            && p.ns >= 0.0
            && p.min_ns.is_finite()
            && p.max_ns.is_finite()
            && p.min_ns <= p.ns
            && p.ns <= p.max_ns
    };
    let behind = model.left_behind();
    let singles = [
        &model.cold,
        &behind,
        &model.rested,
        &model.sample_base,
        &model.sample_per_kib,
        &model.switch,
        &model.tracepoint,
        &model.attach,
        &model.detach_delay,
    ];
    !model.hit.is_empty()
        && model.hit.values().chain(model.pair.values()).all(|p| good(p) && p.ns > 0.0)
        && model.stamps.values().all(|s| good(&s.mean) && s.is_plausible())
        && singles.into_iter().all(good)
        // A file that is older than this price has none.
        && (model.rested.n > 0 || !model.is_calibrated())
        && !model.concurrency.is_empty()
        && model.concurrency.iter().all(|f| f.is_finite() && *f > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn key() -> Key {
        Key::here(Tier::A).unwrap()
    }

    #[test]
    fn what_is_stored_comes_back_and_belongs_to_its_key() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/b");
        assert_eq!(load(&dir, &key()), Ok(None));
        let model = CostModel::assumed();
        store(&dir, &key(), &model).unwrap();
        store(&dir, &key(), &model).unwrap();
        assert_eq!(load(&dir, &key()), Ok(Some(model)));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "no temporary file is left");
        assert_eq!(load(&dir, &Key::here(Tier::B).unwrap()), Ok(None));
        let other_boot = Key { boot_id: "another".into(), ..key() };
        let note = load(&dir, &other_boot).unwrap_err();
        assert!(note.contains("another boot"), "{note}");
    }

    #[test]
    fn damaged_and_impossible_files_are_ignored_with_a_note() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        store(&dir, &key(), &CostModel::assumed()).unwrap();
        let file = dir.join("calibration-A.json");
        let whole = std::fs::read_to_string(&file).unwrap();
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&file, &whole[..length]).unwrap();
            let note = load(&dir, &key()).unwrap_err();
            assert!(note.contains("damaged"), "{note}");
        }
        let mut model = CostModel::assumed();
        model.hit.get_mut("push/count").unwrap().ns = -1.0;
        store(&dir, &key(), &model).unwrap();
        assert!(load(&dir, &key()).unwrap_err().contains("impossible"));
        // As one was that ran beside the work of others.
        let mut model = CostModel::assumed();
        model.cold = Price { ns: 19.7, min_ns: 0.0, max_ns: 165.3, n: 14 };
        store(&dir, &key(), &model).unwrap();
        assert!(load(&dir, &key()).unwrap_err().contains("disturbed"));
    }

    #[test]
    fn what_others_could_have_written_is_not_believed() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        store(&dir, &key(), &CostModel::assumed()).unwrap();
        let file = dir.join("calibration-A.json");
        let mode =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();

        mode(&file, 0o666);
        assert!(load(&dir, &key()).unwrap_err().contains("others may write"));
        mode(&file, 0o644);
        mode(&dir, 0o777);
        assert!(load(&dir, &key()).unwrap_err().contains("others may write"));
        assert!(store(&dir, &key(), &CostModel::assumed()).is_err());
        mode(&dir, 0o755);
        assert!(load(&dir, &key()).unwrap().is_some());

        let link = parent.path().join("link");
        symlink(&dir, &link).unwrap();
        assert!(load(&link, &key()).is_err() && store(&link, &key(), &CostModel::assumed()).is_err());
        std::fs::rename(&file, dir.join("elsewhere")).unwrap();
        symlink(dir.join("elsewhere"), &file).unwrap();
        assert!(load(&dir, &key()).is_err());
        // Storing replaces the link, not what it points to.
        store(&dir, &key(), &CostModel::assumed()).unwrap();
        assert!(std::fs::symlink_metadata(&file).unwrap().is_file());
    }
}
