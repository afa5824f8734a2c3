//! Where the running kernel keeps what it counts for a thread (`profiler_common::context`).

use super::vmlinux::{BtfError, Vmlinux};
use aya::EbpfLoader;

/// Offsets, bytes. 0: the kernel does not keep it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ContextOffsets {
    /// `sched_info.run_delay` in `task_struct`.
    pub runnable: u32,
    /// `delays` in `task_struct`.
    pub delays: u32,
    /// `blkio_delay` in what that points to.
    pub io: u32,
    /// `ioac.rchar` in `task_struct`.
    pub read: u32,
    /// `ioac.wchar` in `task_struct`.
    pub written: u32,
    /// `min_flt` in `task_struct`.
    pub minor_faults: u32,
    /// `maj_flt` in `task_struct`.
    pub major_faults: u32,
}

impl ContextOffsets {
    pub fn find(vmlinux: &Vmlinux) -> Self {
        let of_task = |field| vmlinux.field_offset("task_struct", field);
        let inside = |field, structure, of| Ok(of_task(field)? + vmlinux.field_offset(structure, of)?);
        let or_none = |offset: Result<u32, BtfError>| offset.unwrap_or_default();
        let mut offsets = Self {
            runnable: or_none(inside("sched_info", "sched_info", "run_delay")),
            read: or_none(inside("ioac", "task_io_accounting", "rchar")),
            written: or_none(inside("ioac", "task_io_accounting", "wchar")),
            minor_faults: or_none(of_task("min_flt")),
            major_faults: or_none(of_task("maj_flt")),
            ..Self::default()
        };
        if let (Ok(delays), Ok(io)) =
            (of_task("delays"), vmlinux.field_offset("task_delay_info", "blkio_delay"))
        {
            (offsets.delays, offsets.io) = (delays, io);
        }
        offsets
    }

    /// Tells the programs.
    pub fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        loader
            .override_global("TASK_RUNNABLE_OFFSET", &self.runnable, true)
            .override_global("TASK_DELAYS_OFFSET", &self.delays, true)
            .override_global("DELAYS_IO_OFFSET", &self.io, true)
            .override_global("TASK_READ_OFFSET", &self.read, true)
            .override_global("TASK_WRITTEN_OFFSET", &self.written, true)
            .override_global("TASK_MINOR_FAULTS_OFFSET", &self.minor_faults, true)
            .override_global("TASK_MAJOR_FAULTS_OFFSET", &self.major_faults, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_counts_page_faults() {
        let Ok(vmlinux) = Vmlinux::read() else {
            eprintln!("SKIP no /sys/kernel/btf/vmlinux");
            return;
        };
        let offsets = ContextOffsets::find(&vmlinux);
        assert!(offsets.minor_faults > 0 && offsets.major_faults == offsets.minor_faults + 8, "{offsets:?}");
        // Both or neither: `rchar` and `wchar` stand next to each other.
        assert!(
            offsets.read == 0 && offsets.written == 0 || offsets.written == offsets.read + 8,
            "{offsets:?}"
        );
    }
}
