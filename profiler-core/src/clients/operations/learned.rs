//! What a window says of prices.

use super::moment::Moment;
use super::operation::Operation;
use super::window::Cut;
use super::{Charged, Operations};
use crate::recording::Charge;
use crate::run::view::operations::{OperationsView, Screened};

/// What all operations did in a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Its length, s.
    pub elapsed_s: f64,
    /// On the calibrated prices.
    pub factor: f64,
    /// Cost of the hits of inner functions, ns, as the ledger charges it, and over that with warm caches.
    pub inner_ns: f64,
    pub inner_over_warm: f64,
    /// Cost of the tracepoints of system calls, ns.
    pub syscalls_ns: f64,
    /// What writing recorded operations costs, ns.
    pub writing_ns: f64,
    /// Operations per second.
    pub begun_hz: f64,
    /// CPU s/s of hits of inner functions outside recorded operations.
    pub outside: f64,
}

impl Operations {
    /// The sums of a window. Charges what writing took.
    pub(super) fn sum_up(&mut self, at: &Moment<'_>, cuts: &[Cut], elapsed_s: f64) -> Window {
        let factor = at.grant.factor;
        let (inner_ns, inner_over_warm) = self.inner_cost_ns(at);
        let syscalls_ns = self.screened_syscalls_ns(at.seen());
        let recorded_ns: u64 = cuts.iter().map(|c| c.cost_ns).sum();
        let recorded: Vec<u64> = cuts.iter().map(|c| c.recorded).collect();
        let writing_ns = self.charge_writing(at.seen(), &recorded);
        // The kernel adds up warm prices.
        let outside_ns = (inner_ns - recorded_ns as f64 * inner_over_warm).max(0.0);
        Window {
            elapsed_s,
            factor,
            inner_ns,
            inner_over_warm,
            syscalls_ns,
            writing_ns,
            begun_hz: cuts.iter().map(|c| c.begun).sum::<u64>() as f64 / elapsed_s,
            outside: outside_ns * 1e-9 / elapsed_s * factor,
        }
    }

    /// Charges what writing so many recorded ones of each operation took. Returns it, ns.
    pub(super) fn charge_writing(&mut self, seen: &OperationsView, recorded: &[u64]) -> f64 {
        let of = |(number, recorded): (u32, &u64)| *recorded as f64 * self.record_own_ns(seen, number);
        let cost_ns: f64 = (0..).zip(recorded).map(of).sum();
        let units = recorded.iter().sum();
        self.charges.push(Charged { charge: Charge::Traced, units, cost_ns });
        cost_ns
    }

    /// Cost of the hits of inner functions since the last call, ns, as the ledger charges it, and over that with warm caches.
    fn inner_cost_ns(&mut self, at: &Moment<'_>) -> (f64, f64) {
        let (mut warm_ns, mut more_ns) = (0.0, 0.0);
        let cpu_s = at.view.target.own_cpu * self.inner.slices.attached_s();
        for (kept, class) in self.inner.kept.iter_mut().zip(&at.seen().inner) {
            let (hits, ends) = class.hits.since(std::mem::replace(&mut kept.revised, class.hits));
            warm_ns += hits * class.prices.hit.ns + ends * class.prices.exit.ns;
            more_ns += (hits + ends) * class.prices.cold_ns(cpu_s / hits);
        }
        let over = if warm_ns > 0.0 { 1.0 + more_ns / warm_ns } else { 1.0 };
        (warm_ns + more_ns, over)
    }

    /// Cost of the tracepoints of system calls since the last call, ns.
    fn screened_syscalls_ns(&mut self, seen: &OperationsView) -> f64 {
        let Some(screen) = self.screens.iter_mut().find(|s| s.what == Screened::Syscalls) else { return 0.0 };
        let Some(now) = screen.counted(seen) else { return 0.0 };
        let new = now.own.saturating_sub(std::mem::replace(&mut screen.seen, now.own));
        new as f64 * self.settings.tracepoint_ns
    }

    /// Learns what screening and recording one operation costs, and with it what operations cost.
    pub(super) fn learn_prices(&mut self, at: &Moment<'_>, cuts: &[Cut], window: &Window) {
        let by_syscalls: u64 =
            self.list.iter().zip(cuts).filter(|(o, _)| o.by_syscalls()).map(|(_, c)| c.begun).sum();
        let Window { elapsed_s, factor, .. } = *window;
        let mut screening = 0.0;
        let cold = |(o, cut): (&Operation, &Cut)| self.screen_cold_ns(at, o, cut);
        let colds = self.list.iter().zip(cuts).map(cold);
        let own = self.list.iter().map(|o| self.record_own_ns(at.seen(), o.number));
        let more: Vec<(f64, f64)> = colds.zip(own).collect();
        for ((o, cut), (cold_ns, own_ns)) in self.list.iter_mut().zip(cuts).zip(more) {
            if o.by_syscalls() && by_syscalls > 0 {
                o.prices.screen_ns = window.syscalls_ns / by_syscalls as f64;
            } else if o.by_tracepoints() && cut.begun > 0 {
                o.prices.screen_ns = cut.screened as f64 * self.settings.tracepoint_ns / cut.begun as f64;
            }
            if o.by_functions() {
                o.prices.screen_cold_ns = cold_ns;
            }
            screening += cut.begun as f64 * o.screened_ns() * 1e-9 / elapsed_s * o.screen_factor(factor);
            if cut.ended_recorded > 0 {
                // Half of the screening lies between the time stamps, and is not recording.
                let mean = cut.cost_ns as f64 / cut.ended_recorded as f64 - 0.5 * o.prices.screen_ns;
                let mean = mean.max(0.0) + own_ns;
                let record_ns = &mut o.prices.record_ns;
                *record_ns = if *record_ns == 0.0 { mean } else { 0.5 * (*record_ns + mean) };
            }
        }
        self.is_revised = true;
        self.cost = (window.inner_ns + window.writing_ns) * 1e-9 / elapsed_s * factor + screening;
    }

    /// What cold caches add to screening one operation at its rate in this window, ns.
    fn screen_cold_ns(&self, at: &Moment<'_>, o: &Operation, cut: &Cut) -> f64 {
        let gap_s = at.view.target.own_cpu * cut.summary.length_s / cut.begun as f64;
        let bounds = self.bounds.iter().zip(&at.seen().bounds).filter(|(kept, _)| kept.bounds(o.number));
        // A begin and an end.
        2.0 * bounds.map(|(_, class)| class.prices.cold_ns(gap_s)).fold(0.0, f64::max)
    }
}
