//! The brake on operations that system calls bound: their tracepoints are passed by every system call of every process of
//! the host, and no quota in the kernel stops them.

use super::super::Session;
use super::super::surveying::BYSTANDER_SHARE;
use super::window::switch;
use crate::prober::SyscallWatch;
use profiler_core::recording::{ChangeKind, Charge, NotObserved};

/// Time constant of what is spent now, ns, and time before it is judged.
const RECENT_NS: f64 = 2e9;
const JUDGED_NS: f64 = 1e9;

/// The tracepoints, and what they cost.
pub(super) struct SyscallScreen {
    _watch: SyscallWatch,
    /// Hits that are charged: of the target, of others.
    charged: (u64, u64),
    /// The target's, as last read for the price of screening.
    pub(super) seen: u64,
    rate: SpendingRate,
}

/// Exponentially weighted CPU time per second: of the target, of others.
#[derive(Debug, Default)]
struct SpendingRate {
    rate: (f64, f64),
    weight: f64,
    watched_ns: f64,
}

impl SpendingRate {
    fn push(&mut self, elapsed_ns: f64, cost_ns: (f64, f64)) {
        let elapsed_ns = elapsed_ns.max(1.0);
        let share = 1.0 - (-elapsed_ns / RECENT_NS).exp();
        self.rate.0 += share * (cost_ns.0 / elapsed_ns - self.rate.0);
        self.rate.1 += share * (cost_ns.1 / elapsed_ns - self.rate.1);
        self.weight += share * (1.0 - self.weight);
        self.watched_ns += elapsed_ns;
    }

    /// What is too dear: the sums started from 0, hence the weight.
    fn verdict(&self, allowed: (f64, f64)) -> Verdict {
        let weight = self.weight.max(1e-9);
        let (own, others) = (self.rate.0 / weight, self.rate.1 / weight);
        match () {
            () if self.watched_ns < JUDGED_NS => Verdict::Cheap,
            () if others > allowed.1 => Verdict::Others(others),
            () if own > allowed.0 => Verdict::Own(own),
            () => Verdict::Cheap,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    Cheap,
    /// To the target, CPU s/s.
    Own(f64),
    /// To other processes, CPU s/s.
    Others(f64),
}

impl SyscallScreen {
    pub(super) fn new(watch: SyscallWatch) -> Self {
        Self { _watch: watch, charged: (0, 0), seen: 0, rate: SpendingRate::default() }
    }
}

impl Session {
    /// Charges the tracepoints that system calls pass (functions are charged like all classes), and takes them off for good
    /// where they are too dear.
    pub(in crate::session) fn charge_operations(&mut self, elapsed_ns: u64) {
        let allowed = (self.operations_budget(), BYSTANDER_SHARE * f64::from(self.meta.cpus));
        // The first intervals know no CPU time yet.
        let judged = self.own_cpu > 0.0;
        let Some(operations) = &mut self.operations else { return };
        let Some(screen) = &mut operations.syscalls else { return };
        let global = self.attach.kernel().classes().global_counters();
        let now = (global.operation_syscalls, global.operation_syscalls_other);
        let (own, others) = (now.0 - screen.charged.0, now.1 - screen.charged.1);
        screen.charged = now;
        let price = self.cost.tracepoint;
        self.ledger.charge_units(Charge::Screening, None, own, price);
        self.ledger.charge_units(Charge::Bystanders, None, others, price);
        screen.rate.push(elapsed_ns as f64, (own as f64 * price.ns, others as f64 * price.ns));
        let why = match screen.rate.verdict(allowed) {
            Verdict::Own(cost) if judged => format!(
                "screening every system call of the target costs {:.2} % of a CPU, where operations may cost {:.2} %; name \
                 functions that are called rarely as bounds, or give a larger --budget",
                cost * 100.0,
                allowed.0 * 100.0
            ),
            Verdict::Others(cost) => format!(
                "screening system calls takes {:.1} % of a CPU from other processes of this host, where {:.1} % are allowed \
                 (they pass the tracepoint as well); name functions as bounds",
                cost * 100.0,
                allowed.1 * 100.0
            ),
            Verdict::Own(_) | Verdict::Cheap => return,
        };
        self.drop_syscalls(&why);
    }

    /// System calls bound no operation any more.
    fn drop_syscalls(&mut self, why: &str) {
        let Some(operations) = &mut self.operations else { return };
        operations.syscalls = None;
        let mut names = Vec::new();
        for o in operations.list.iter_mut().filter(|o| o.bounds.is_empty()) {
            switch(self.attach.kernel().operations(), o.number, false);
            o.lost = true;
            names.push(o.name.clone());
        }
        for name in names {
            let text = format!("operation '{name}' is not watched from here on: {why}");
            self.progress.note(&text);
            self.note_change(ChangeKind::Stop, None, text);
            self.meta
                .not_observed
                .push(NotObserved { what: format!("operation '{name}', later part"), why: why.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dear_for_long_is_stopped_and_a_dear_moment_is_not() {
        let allowed = (0.016, 0.02);
        let mut rate = SpendingRate::default();
        rate.push(100e6, (50e6, 0.0));
        // 50 % of a CPU, but for a tenth of a second: not judged yet.
        assert_eq!(rate.verdict(allowed), Verdict::Cheap);
        for _ in 0..10 {
            rate.push(100e6, (1e6, 1e6));
        }
        assert!(matches!(rate.verdict(allowed), Verdict::Own(cost) if cost > 0.016), "{rate:?}");
        for _ in 0..100 {
            rate.push(100e6, (1e6, 1e6));
        }
        assert_eq!(rate.verdict(allowed), Verdict::Cheap, "{rate:?}");
        for _ in 0..100 {
            rate.push(100e6, (1e6, 3e6));
        }
        assert!(matches!(rate.verdict(allowed), Verdict::Others(cost) if (cost - 0.03).abs() < 1e-3));
    }
}
