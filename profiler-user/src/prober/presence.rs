//! Where the running kernel keeps what a thread's time off CPU follows from (`profiler_common::presence`).

use super::vmlinux::{BtfError, Vmlinux};
use aya::EbpfLoader;

/// State of the scheduler that a BPF program is (`kernel/sched/ext.c`), from Linux 6.12 on.
const EXT_STATE: &str = "/sys/kernel/sched_ext/state";

/// Offsets in `task_struct`, bytes; all zero: time off CPU is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PresenceOffsets {
    /// `se.exec_start`.
    pub started: u32,
    /// `se.sum_exec_runtime`.
    pub used: u32,
    /// `sched_info.last_arrival`; 0: not known, or not kept together with the next.
    pub arrival: u32,
    /// `se.prev_sum_exec_runtime`.
    pub before: u32,
    /// `prio`.
    pub prio: u32,
}

impl PresenceOffsets {
    pub fn find(vmlinux: &Vmlinux) -> Self {
        // A kernel without one of the first fields is none that we know.
        let mut offsets = Self::always(vmlinux).unwrap_or_default();
        let ext = std::fs::read_to_string(EXT_STATE).is_ok_and(|state| state.trim() != "disabled");
        // Threads keep their ordinary policy under such a scheduler, which does not keep `before`; and without CONFIG_SCHED_INFO
        // there is no arrival.
        if !ext
            && offsets != Self::default()
            && let Ok((arrival, before)) = Self::arrivals(vmlinux)
        {
            (offsets.arrival, offsets.before) = (arrival, before);
        }
        offsets
    }

    /// Tells the programs.
    pub fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        loader
            .override_global("TASK_STARTED_OFFSET", &self.started, true)
            .override_global("TASK_USED_OFFSET", &self.used, true)
            .override_global("TASK_ARRIVAL_OFFSET", &self.arrival, true)
            .override_global("TASK_BEFORE_OFFSET", &self.before, true)
            .override_global("TASK_PRIO_OFFSET", &self.prio, true);
    }

    fn always(vmlinux: &Vmlinux) -> Result<Self, BtfError> {
        let se = vmlinux.field_offset("task_struct", "se")?;
        Ok(Self {
            started: se + vmlinux.field_offset("sched_entity", "exec_start")?,
            used: se + vmlinux.field_offset("sched_entity", "sum_exec_runtime")?,
            prio: vmlinux.field_offset("task_struct", "prio")?,
            ..Self::default()
        })
    }

    fn arrivals(vmlinux: &Vmlinux) -> Result<(u32, u32), BtfError> {
        let se = vmlinux.field_offset("task_struct", "se")?;
        let info = vmlinux.field_offset("task_struct", "sched_info")?;
        Ok((
            info + vmlinux.field_offset("sched_info", "last_arrival")?,
            se + vmlinux.field_offset("sched_entity", "prev_sum_exec_runtime")?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_keeps_what_is_needed() {
        let Ok(vmlinux) = Vmlinux::read() else {
            eprintln!("SKIP no /sys/kernel/btf/vmlinux");
            return;
        };
        let offsets = PresenceOffsets::find(&vmlinux);
        assert!(offsets.started > 0 && offsets.used > 0 && offsets.prio > 0, "{offsets:?}");
        assert!(offsets.used != offsets.started && offsets.before != offsets.used, "{offsets:?}");
    }
}
