//! The tier of this boot, kept in a file beside the prices, under the same rules: it need not be tried each time.

use super::cache;
use crate::prober::{FoundTier, Kernel, KernelError, KernelOptions, programs_id};
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::path::Path;

const FILE: &CStr = c"tier.json";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    boot_id: String,
    kernel: String,
    version: String,
    /// Which eBPF code was tried.
    programs: String,
    /// What of the kernel may change in a boot: live patches that are in place, and lockdown.
    changes: Vec<String>,
    found: FoundTier,
}

impl Stored {
    fn here(found: FoundTier) -> Option<Self> {
        let (boot_id, kernel) = cache::boot().ok()?;
        Some(Self {
            boot_id,
            kernel,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            programs: programs_id(),
            changes: changes(),
            found,
        })
    }
}

/// Empty where the kernel has neither.
fn changes() -> Vec<String> {
    let patches = std::fs::read_dir("/sys/kernel/livepatch").into_iter().flatten();
    let mut all: Vec<String> =
        patches.flatten().map(|patch| patch.file_name().to_string_lossy().into_owned()).collect();
    all.sort_unstable();
    all.extend(std::fs::read_to_string("/sys/kernel/security/lockdown").map(|text| text.trim().to_owned()));
    all
}

/// What was found on this boot; anything that is not believed is as good as nothing, for it can be tried.
fn load(dir: &Path) -> Option<FoundTier> {
    let stored: Stored = serde_json::from_str(&cache::read(dir, FILE).ok()??).ok()?;
    let found = stored.found;
    (Stored::here(found)? == stored).then_some(found)
}

fn store(dir: &Path, found: FoundTier) {
    let Some(stored) = Stored::here(found) else { return };
    // OK to ignore: then it is tried the next time, too. Whoever stores prices says what is wrong with the directory.
    let _ = serde_json::to_vec_pretty(&stored).map(|text| cache::write(dir, FILE, &text));
}

/// [`Kernel::load`] with the tier that was found on this boot, if that is known, else it is kept.
///
/// Saves 0.15 s of CPU time: the kernel looks at the largest program only where something needs it, and no process is started for the
/// trial. A policy that changes later in the same boot shows when something is attached; `tithe doctor` tries again.
///
/// # Errors
/// As [`Kernel::load`].
pub fn load_kernel(options: &KernelOptions) -> Result<Kernel, KernelError> {
    let dir = cache::default_dir();
    let known = dir.as_deref().and_then(load);
    let tries = known.is_none() && options.forced_tier.is_none();
    let kernel = Kernel::load_in(options, known)?;
    if tries {
        keep_tier(&kernel);
    }
    Ok(kernel)
}

/// Keeps what was found, for later runs.
pub fn keep_tier(kernel: &Kernel) {
    if let Some(dir) = cache::default_dir() {
        store(&dir, kernel.found_tier());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prober::Tier;

    #[test]
    fn a_tier_is_known_on_its_boot_to_its_programs() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        assert_eq!(load(&dir), None);
        for found in [
            FoundTier { tier: Tier::A, without_kernel_functions: true },
            FoundTier { tier: Tier::B, without_kernel_functions: false },
        ] {
            store(&dir, found);
            assert_eq!(load(&dir), Some(found));
            let here = || Stored::here(found).unwrap();
            for other in [
                Stored { boot_id: "another".into(), ..here() },
                Stored { kernel: "another".into(), ..here() },
                Stored { version: "another".into(), ..here() },
                Stored { programs: "another".into(), ..here() },
                Stored { changes: vec!["patch".into()], ..here() },
            ] {
                cache::write(&dir, FILE, &serde_json::to_vec(&other).unwrap()).unwrap();
                assert_eq!(load(&dir), None, "{other:?}");
            }
        }
        cache::write(&dir, FILE, b"{").unwrap();
        assert_eq!(load(&dir), None);
    }
}
