//! The tier of this boot, kept in a file beside the prices, under the same rules: it need not be tried each time.

use super::cache;
use crate::prober::{Kernel, KernelError, KernelOptions, LinkKind, Tier, programs_id};
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::io;
use std::path::Path;

const FILE: &CStr = c"tier.json";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    boot_id: String,
    kernel: String,
    version: String,
    /// Which eBPF code was tried.
    programs: String,
    /// See [`conditions`].
    conditions: Vec<String>,
    tier: Tier,
}

impl Stored {
    fn here(tier: Tier) -> Option<Self> {
        let (boot_id, kernel) = cache::boot().ok()?;
        Some(Self {
            boot_id,
            kernel,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            programs: programs_id(),
            conditions: conditions(),
            tier,
        })
    }
}

/// What decides, beside kernel and programs, which tier works, and may change in a boot: live patches and whether they are in place, lockdown, the JIT
/// (calls of kernel functions need it; its setting is seen in the first network namespace only), and of this process its capabilities, seccomp mode and namespaces.
fn conditions() -> Vec<String> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let names = std::fs::read_dir("/sys/kernel/livepatch").into_iter().flatten().flatten();
    let mut patches: Vec<String> =
        names.map(|patch| patch.file_name().to_string_lossy().into_owned()).collect();
    patches.sort_unstable();
    let state = |name: &String, what: &str| text(&format!("/sys/kernel/livepatch/{name}/{what}"));
    let mut all: Vec<String> = patches
        .iter()
        .map(|name| format!("{name} {} {}", state(name, "enabled"), state(name, "transition")))
        .collect();
    all.push(text("/sys/kernel/security/lockdown"));
    all.push(text("/proc/sys/net/core/bpf_jit_enable"));
    let status = text("/proc/self/status");
    all.extend(
        status.lines().filter(|l| l.starts_with("CapEff:") || l.starts_with("Seccomp:")).map(str::to_owned),
    );
    let namespace =
        |name: &str| std::fs::read_link(Path::new("/proc/self/ns").join(name)).unwrap_or_default();
    all.extend(["pid", "user", "net"].map(|name| namespace(name).to_string_lossy().into_owned()));
    all
}

/// What was found on this boot; anything that is not believed is as good as nothing, for it can be tried.
fn load(dir: &Path) -> Option<Tier> {
    let stored: Stored = serde_json::from_str(&cache::read(dir, FILE).ok()??).ok()?;
    let tier = stored.tier;
    (Stored::here(tier)? == stored).then_some(tier)
}

fn store(dir: &Path, tier: Tier) -> io::Result<()> {
    let Some(stored) = Stored::here(tier) else { return cache::remove(dir, FILE) };
    cache::write(dir, FILE, &serde_json::to_vec_pretty(&stored).map_err(io::Error::other)?)
}

/// [`Kernel::load`] with the tier that was found on this boot, if that is known, else it is kept for the next one.
///
/// Saves 0.09 s of CPU time: the kernel looks at the largest program only where something needs it, and no process is started for the
/// trial. Where the kernel refuses by now the program that counts, the tier is tried again. `tithe doctor` and `tithe calibrate` always try.
///
/// # Errors
/// As [`Kernel::load`].
pub fn load_kernel(options: &KernelOptions) -> Result<Kernel, KernelError> {
    load_kernel_in(cache::default_dir().as_deref(), options)
}

fn load_kernel_in(dir: Option<&Path>, options: &KernelOptions) -> Result<Kernel, KernelError> {
    let known = dir.filter(|_| options.forced_tier.is_none()).and_then(load);
    if let Some(tier) = known {
        let kernel = Kernel::load_in(options, Some(tier))?;
        if kernel.load_programs(&[LinkKind::Count]) {
            return Ok(kernel);
        }
    }
    let kernel = Kernel::load(options);
    if let Some(dir) = dir.filter(|_| options.forced_tier.is_none()) {
        // OK to ignore: then it is tried the next time, too. Whoever stores prices says what is wrong with the directory.
        let _ = keep(dir, kernel.as_ref().ok());
    }
    kernel
}

/// Keeps what was found by trying, for later runs; forgets what was, if nothing was found that will last.
fn keep(dir: &Path, tried: Option<&Kernel>) -> io::Result<()> {
    match tried.and_then(Kernel::lasting_tier) {
        Some(tier) => store(dir, tier),
        None => cache::remove(dir, FILE),
    }
}

/// The same for whoever tries in any case.
///
/// # Errors
/// What is kept could not be replaced, and is believed as before; in words.
pub fn keep_tier(tried: Option<&Kernel>) -> Result<(), String> {
    let Some(dir) = cache::default_dir() else { return Ok(()) };
    keep(&dir, tried).map_err(|error| {
        let file = dir.join("tier.json");
        format!(
            "cannot keep what this kernel can do in {}: {error}; remove it if it is there",
            file.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_known_on_its_boot_to_its_programs() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        assert_eq!(load(&dir), None);
        for tier in [Tier::A, Tier::B] {
            store(&dir, tier).unwrap();
            assert_eq!(load(&dir), Some(tier));
            let here = || Stored::here(tier).unwrap();
            for other in [
                Stored { boot_id: "another".into(), ..here() },
                Stored { kernel: "another".into(), ..here() },
                Stored { version: "another".into(), ..here() },
                Stored { programs: "another".into(), ..here() },
                Stored { conditions: vec!["patch 1 0".into()], ..here() },
            ] {
                cache::write(&dir, FILE, &serde_json::to_vec(&other).unwrap()).unwrap();
                assert_eq!(load(&dir), None, "{other:?}");
            }
        }
        cache::write(&dir, FILE, b"{").unwrap();
        assert_eq!(load(&dir), None);
    }

    #[test]
    fn a_tier_is_found_once_and_a_forced_one_is_not_kept() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        let load_with = |options: &KernelOptions| load_kernel_in(Some(&dir), options);
        let forced = KernelOptions { forced_tier: Some(Tier::D), ..KernelOptions::default() };
        match load_with(&forced) {
            Ok(kernel) => {
                assert_eq!((kernel.tier(), kernel.lasting_tier(), load(&dir)), (Tier::D, None, None))
            }
            Err(error) => {
                assert!(std::env::var_os("REQUIRE_KERNEL").is_none(), "{error}");
                eprintln!("SKIP a_tier_is_found_once_and_a_forced_one_is_not_kept: {error} (needs root)");
                return;
            }
        }
        let tried = load_with(&KernelOptions::default()).unwrap();
        let tier = tried.tier();
        assert_eq!(load(&dir), tried.lasting_tier());
        // On a kernel whose better tiers fail for another reason than that it lacks them, each start tries.
        if tried.lasting_tier().is_none() {
            return;
        }
        let loaded =
            |kernel: &Kernel| -> Vec<&str> { kernel.program_info().iter().map(|(name, _)| *name).collect() };
        assert!(tier != Tier::A || loaded(&tried).contains(&"session"), "{:?}", loaded(&tried));
        drop(tried);
        let known = load_with(&KernelOptions::default()).unwrap();
        assert_eq!((known.tier(), loaded(&known)), (tier, vec!["count"]));
        drop(known);
        // Whatever is kept, another tier is tried when it is forced, and nothing is left of what no trial found.
        assert_eq!(load_with(&forced).unwrap().tier(), Tier::D);
        assert_eq!(load(&dir), Some(tier));
        keep(&dir, None).unwrap();
        keep(&dir, None).unwrap();
        assert_eq!(load(&dir), None);
    }
}
