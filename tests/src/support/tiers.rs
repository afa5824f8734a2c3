//! Which capability tiers the running kernel has. A tier may be missing only where the kernel is older than it.

use super::skip;
use profiler_core::class::Tier;
use profiler_user::inspect::host::kernel_version;
use profiler_user::prober::{Kernel, KernelOptions};
use std::sync::OnceLock;

/// The best tier that works here.
///
/// # Panics
///
/// If none does: the test needs root on a kernel with eBPF.
pub fn best_tier() -> Tier {
    static BEST: OnceLock<Tier> = OnceLock::new();
    *BEST.get_or_init(|| {
        let kernel = Kernel::load(&KernelOptions::default());
        kernel.unwrap_or_else(|error| panic!("needs root on a kernel with eBPF: {error}")).tier()
    })
}

/// Those of these tiers that the running kernel has. The others are named; none at all is a skip.
///
/// # Panics
///
/// If this kernel is new enough for a tier that does not work.
pub fn tiers_here(test: &str, wanted: &[Tier]) -> Vec<Tier> {
    let (best, version) = (best_tier(), kernel_version());
    let (here, lacking): (Vec<Tier>, Vec<Tier>) = wanted.iter().partition(|tier| **tier >= best);
    for tier in &lacking {
        assert!(
            version < since(*tier),
            "{test}: Linux {version:?} should have tier {tier:?} and has {best:?}"
        );
    }
    let reason = format!("not in tier {lacking:?}: Linux {}.{} has {best:?}", version.0, version.1);
    if here.is_empty() {
        skip(test, &reason);
    } else if !lacking.is_empty() {
        println!("{test}: {reason}");
    }
    here
}

/// False, and a skip, where the kernel is older than this.
pub fn linux_or_skip(test: &str, since: (u32, u32), what: &str) -> bool {
    let version = kernel_version();
    if version < since {
        let (major, minor) = since;
        skip(test, &format!("{what} came with Linux {major}.{minor}, this is {}.{}", version.0, version.1));
    }
    version >= since
}

/// The first kernel that has a tier.
fn since(tier: Tier) -> (u32, u32) {
    match tier {
        Tier::A => (6, 13),
        Tier::B => (6, 10),
        Tier::C => (6, 6),
        Tier::D => (5, 15),
    }
}
