//! Records that the kernel side lost: how many, and what is looked at again because of them (`profiler_core::losses`).

use super::Session;
use super::attach::now_ns;
use super::class::LinkState;
use crate::prober::GlobalCounters;
use profiler_core::recording::Losses;

/// Copies what the kernel side counted.
fn note(global: &GlobalCounters, losses: &mut Losses) {
    losses.samples_ring_full = global.samples_dropped;
    losses.samples_no_stack = global.samples_no_stack;
    losses.samples_short_stack = global.samples_short_stack;
    losses.no_thread_state = global.no_thread_state;
    losses.alarms_dropped = global.alarms_dropped;
    losses.lifecycle_dropped = global.lifecycle_dropped.wrapping_add(global.lifecycle_unread);
}

impl Session {
    /// Ten times a second and at the end, after the rings were drained. While losses last, processes are looked at less often.
    pub(super) fn note_kernel_losses(&mut self, global: &GlobalCounters) {
        note(global, &mut self.meta.losses);
        let begun = now_ns();
        let look = self.loss_watch.look(&self.meta.losses, begun);
        if look.processes {
            self.warn_verbose("births or deaths were lost: threads and children are looked for again");
            // Threads and modules, in the next turn.
            self.last_slow_ns = 0;
            self.find_lost_children();
            self.loss_watch.took(now_ns().saturating_sub(begun));
        }
        if look.quotas {
            self.trip_unheard();
        }
    }

    /// Alarms were lost. They repeat while a class is hit, but one that is hit rarely would pay for long.
    fn trip_unheard(&mut self) {
        let table = self.attach.kernel().classes();
        let used_up: Vec<u32> = self
            .attach
            .classes()
            .iter()
            .filter(|c| matches!(&c.state, LinkState::Open(window) if window.quota > 0))
            .filter(|c| table.remaining_quota(c.id) <= 0)
            .map(|c| c.id.0)
            .collect();
        self.warn_verbose(&format!(
            "alarms were lost: the quotas of {} functions are used up",
            used_up.len()
        ));
        self.attach.governor().trip_unheard(used_up);
    }
}
