//! From a window and its counters to the row that is recorded.

use super::class::{Closing, LiveClass, OpenWindow};
use super::clock::now_ns;
use crate::prober::ClassCounters;
use profiler_core::recording::{WindowKind, WindowRow};

/// Reads counters and the time at which they stood so; again where reading was interrupted, because what was counted
/// meanwhile would be missing in the next piece.
pub(super) fn counters_at(read: impl Fn() -> ClassCounters) -> (u64, ClassCounters) {
    /// Longer than reading takes, ns.
    const INTERRUPTED_NS: u64 = 500_000;
    let mut before = now_ns();
    let mut counters = read();
    for _ in 0..4 {
        let after = now_ns();
        if after.saturating_sub(before) < INTERRUPTED_NS {
            break;
        }
        (before, counters) = (after, read());
    }
    (before, counters)
}

/// The end of a window whose links are still there.
pub(super) fn closing(end_ns: u64, end_cpu_ns: u64, links: usize, tripped: bool) -> Closing {
    let links_left = links.max(1);
    Closing { end_ns, end_cpu_ns, links_left, tripped, draining_until_ns: None }
}

/// The row of a window from its counters at both ends.
pub(super) fn row(
    class: &LiveClass,
    window: &OpenWindow,
    closing: &Closing,
    counters: &ClassCounters,
    tripped: bool,
) -> WindowRow {
    let mut seen = counters.since(&window.base);
    if window.kind == WindowKind::Survey && closing.tripped && !tripped {
        count_turned_away(&mut seen, window.quota);
    }
    let cpu_ns = closing.end_cpu_ns.saturating_sub(window.base_cpu_ns);
    // Of a short burst the CPU clock says nothing, and a price too high would swallow all of its time: that of a tight loop.
    let traced = window.kind == WindowKind::Trace;
    // Turned away until the breaker closed its link, it saw nothing, also not that nothing was called: no time counts.
    let void = tripped && !traced && seen.kept == 0 && seen.dropped == 0;
    let end_ns = if void { window.start_ns } else { closing.end_ns.max(window.start_ns) };
    let gap_s = if traced { cpu_ns as f64 * 1e-9 / seen.attempted as f64 } else { 0.0 };
    WindowRow {
        class_id: class.id.0,
        kind: window.kind,
        start_ns: window.start_ns,
        end_ns,
        target_cpu_ns: cpu_ns,
        attempted: seen.attempted,
        kept: seen.kept,
        gated: seen.gated,
        dropped: seen.dropped,
        returns: seen.returns,
        unwound: seen.unwound,
        // Calls from callers that have no site (yet) are calls whose return is left out.
        omitted: seen.omitted + seen.callers.untimed,
        open: if class.is_timed(window.kind) { counters.since(&window.attached).open() } else { 0 },
        sum_ns: seen.sum_ns,
        nested_cost_ns: seen.nested_cost_ns,
        max_ns: seen.max_ns,
        tripped,
        // The survey counts entries, of functions whose calls are to be timed, too.
        tau_ns: if class.is_timed(window.kind) { class.tau_ns(gap_s) } else { class.entry_ns(gap_s) },
        ran_ns: None,
        ran_tid: None,
        link: None,
    }
}

/// A class on a survey's link that a neighbour's trip ended, and whose own quota was used up before the link was gone: its window goes on to
/// where the link's hits end, and what was turned away of it lies in that time.
fn count_turned_away(seen: &mut ClassCounters, quota: u64) {
    if seen.kept >= quota {
        let own = seen.gated.saturating_sub(seen.bystanders);
        seen.kept += own;
        seen.gated -= own;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_used_up_quota_turned_away_was_called_all_the_same() {
        let mut seen = ClassCounters { kept: 10, gated: 7, bystanders: 2, ..Default::default() };
        count_turned_away(&mut seen, 11);
        assert_eq!((seen.kept, seen.gated), (10, 7), "its gate was closed for another reason");
        count_turned_away(&mut seen, 10);
        assert_eq!((seen.kept, seen.gated), (15, 2));
    }
}
