//! The memory cgroups of a process, and how much memory they leave it.
//!
//! What: `/proc/PID/cgroup` and the agent's own mount table are joined to the folders of the process's memory cgroup and
//! of those above it, v1 or v2; the least of what they leave is the headroom. The machine's available memory counts as the
//! uppermost one. Both files are written for the reader's cgroup namespace, so they fit together.
//! What it does not do: decide what may be taken of it (`profiler_core::surroundings`).

use profiler_core::surroundings::private_pages::Headroom;
use profiler_core::text::shell_word;
use std::io;
use std::path::{Component, Path, PathBuf};

/// From here on a limit is none: v1 writes 9223372036854771712 where no limit is set.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// The two interfaces of the kernel (cgroup-v1/memory.rst, cgroup-v2.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The folders of a process's memory cgroup and of those above it that can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryCgroups {
    version: Version,
    /// The process's own first.
    folders: Vec<PathBuf>,
}

impl MemoryCgroups {
    /// The memory cgroups of a process. `None`: the kernel has no memory controller, or it is mounted nowhere.
    ///
    /// # Errors
    /// `/proc` cannot be read, or the process's cgroup lies outside of what is mounted here (another cgroup namespace).
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        find(&cgroups, &mounts).map_err(io::Error::other)
    }

    /// The least that any of them, or the machine, leaves.
    ///
    /// # Errors
    /// A file cannot be read or says something else than a number.
    pub fn headroom(&self) -> io::Result<Headroom> {
        let mut least = machine(Path::new("/proc/meminfo"))?;
        for folder in &self.folders {
            for level in self.levels(folder)? {
                if level.bytes() < least.bytes() {
                    least = level;
                }
            }
        }
        Ok(least)
    }

    /// The limits of one folder; those of v1 with swap and without.
    fn levels(&self, folder: &Path) -> io::Result<Vec<Headroom>> {
        let files: &[(&str, &str)] = match self.version {
            Version::V1 => &[
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
            ],
            // Above `memory.high` the kernel stops the processes of the cgroup again and again.
            Version::V2 => &[("memory.max", "memory.current"), ("memory.high", "memory.current")],
        };
        let mut found = Vec::new();
        for (limit_file, usage_file) in files {
            // The root has none, and kernels without swap accounting have no memsw.
            let Some(limit_bytes) = read_number(&folder.join(limit_file))? else { continue };
            let Some(usage_bytes) = read_number(&folder.join(usage_file))? else { continue };
            let stat = std::fs::read_to_string(folder.join("memory.stat"))?;
            found.push(Headroom {
                path: folder.display().to_string(),
                limit_file: (*limit_file).to_owned(),
                limit_bytes,
                usage_bytes,
                reclaimable_bytes: reclaimable(&stat, self.version),
            });
        }
        Ok(found)
    }
}

/// What the machine has available.
///
/// # Errors
/// The file cannot be read or lacks its figures.
pub fn machine(meminfo: &Path) -> io::Result<Headroom> {
    let text = std::fs::read_to_string(meminfo)?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        let missing = || io::Error::other(format!("{} has no {name}", meminfo.display()));
        kib.and_then(|kib| kib.checked_mul(1024)).ok_or_else(missing)
    };
    let (total, available) = (field("MemTotal")?, field("MemAvailable")?);
    Ok(Headroom {
        path: meminfo.display().to_string(),
        limit_file: String::new(),
        limit_bytes: total,
        usage_bytes: total.saturating_sub(available),
        reclaimable_bytes: 0,
    })
}

/// The command that gives a cgroup room for `more` bytes; for the machine, advice.
#[must_use]
pub fn remedy(headroom: &Headroom, more_bytes: u64) -> String {
    if headroom.limit_file.is_empty() {
        return "free memory (ps aux --sort=-rss)".to_owned();
    }
    let wanted = headroom.limit_bytes.saturating_add(more_bytes);
    let file = format!("{}/{}", headroom.path, headroom.limit_file);
    match shell_word(&file) {
        Some(file) => format!("echo {wanted} > {file}"),
        None => format!("write {wanted} to its {}", headroom.limit_file),
    }
}

/// File cache that the kernel can give back without taking what is in use: not mapped, not to be written first. A mapped page
/// that goes has to be read again at the next touch.
fn reclaimable(stat: &str, version: Version) -> u64 {
    let prefix = if version == Version::V1 { "total_" } else { "" };
    let names = match version {
        Version::V1 => ["inactive_file", "active_file", "mapped_file", "dirty", "writeback"],
        Version::V2 => ["inactive_file", "active_file", "file_mapped", "file_dirty", "file_writeback"],
    };
    let value = |name: &str| {
        stat.lines()
            .filter_map(|line| line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' '))
            .find_map(|value| value.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    let [inactive, active, kept @ ..] = names.map(value);
    inactive.saturating_add(active).saturating_sub(kept.into_iter().fold(0, u64::saturating_add))
}

/// The number in a file; `None`: there is no such file, or it says that there is no limit.
fn read_number(path: &Path) -> io::Result<Option<u64>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let bad = || io::Error::other(format!("{} says {:?} instead of a number", path.display(), text.trim()));
    match text.trim() {
        "max" => Ok(None),
        number => {
            let number: u64 = number.parse().map_err(|_| bad())?;
            Ok((number < NO_LIMIT_BYTES).then_some(number))
        }
    }
}

/// Joins `/proc/PID/cgroup` and a mount table.
fn find(cgroups: &str, mounts: &str) -> Result<Option<MemoryCgroups>, String> {
    // number:controllers:path; v2 has the number 0 and no controllers.
    let lines = || cgroups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let v1 = lines().find(|(controllers, _)| controllers.split(',').any(|c| c == "memory"));
    let v2 = lines().find(|(controllers, _)| controllers.is_empty());
    // In a hybrid layout the controller is in one of the two hierarchies: v1, if it is listed there.
    let Some((version, path)) = v1.map(|(_, p)| (Version::V1, p)).or(v2.map(|(_, p)| (Version::V2, p)))
    else {
        return Ok(None);
    };
    let of_kind = mounts.lines().filter_map(Mount::parse).filter(|mount| mount.has_memory(version));
    let mut is_mounted = false;
    let mut best: Option<Vec<PathBuf>> = None;
    for mount in of_kind {
        is_mounted = true;
        let Some(folders) = mount.folders(Path::new(path)) else { continue };
        // The one that shows most of those above.
        if best.as_ref().is_none_or(|other| other.len() < folders.len()) {
            best = Some(folders);
        }
    }
    match best {
        Some(folders) => Ok(Some(MemoryCgroups { version, folders })),
        None if is_mounted => Err(format!(
            "the memory cgroup {path} of the process lies outside of what is mounted here: another cgroup namespace"
        )),
        None => Ok(None),
    }
}

/// A line of a mount table (proc_pid_mountinfo(5)).
struct Mount {
    root: PathBuf,
    point: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        Some(Self {
            root: unescape(root),
            point: unescape(point),
            kind: kind.to_owned(),
            options: options.to_owned(),
        })
    }

    fn has_memory(&self, version: Version) -> bool {
        match version {
            Version::V1 => self.kind == "cgroup" && self.options.split(',').any(|o| o == "memory"),
            Version::V2 => self.kind == "cgroup2",
        }
    }

    /// The folders from the cgroup `path` up to the mount point; `None`: it is not below this mount.
    fn folders(&self, path: &Path) -> Option<Vec<PathBuf>> {
        let below = path.strip_prefix(&self.root).ok()?;
        // A way up leads out of the namespace, and on the file system somewhere else.
        if below.components().any(|c| c == Component::ParentDir) {
            return None;
        }
        let all = below
            .ancestors()
            .map(|part| if part == Path::new("") { self.point.clone() } else { self.point.join(part) });
        Some(all.collect())
    }
}

/// `\040` for a space, and so on.
fn unescape(text: &str) -> PathBuf {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|octal| u8::from_str_radix(octal, 8).ok());
        match code {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    PathBuf::from(out)
}

#[cfg(test)]
#[path = "cgroup/tests.rs"]
mod tests;
