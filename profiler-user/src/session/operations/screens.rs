//! The brake on operations that system calls or tracepoints bound: every process of the host runs the programs when it passes
//! them, and no quota in the kernel stops them.

use super::super::Session;
use super::window::switch;
use super::{Operation, Operations};
use crate::prober::{SyscallWatch, TracepointWatch};
use profiler_core::recording::{ChangeKind, Charge, NotObserved};
use profiler_core::run::arbiter::bystanders;

/// Time constant of what is spent now, ns, and time before it is judged.
const RECENT_NS: f64 = 2e9;
const JUDGED_NS: f64 = 1e9;

/// What is screened.
enum Screened {
    /// All system calls, for all operations that they bound.
    Syscalls { _watch: SyscallWatch },
    /// The tracepoints of one operation, counted in its base class.
    Tracepoints { _watch: TracepointWatch, operation: u32, base_class: u32 },
}

/// Programs on tracepoints, and what they cost.
pub(super) struct Screen {
    what: Screened,
    /// Hits that are charged: of the target, of others.
    charged: (u64, u64),
    /// The target's, as last read for the price of screening system calls.
    pub(super) seen: u64,
    rate: SpendingRate,
}

/// Exponentially weighted CPU time per second: of the target, of others.
#[derive(Debug, Default, Clone)]
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

    /// The sums started from 0, hence the weight.
    fn mean(&self) -> (f64, f64) {
        let weight = self.weight.max(1e-9);
        (self.rate.0 / weight, self.rate.1 / weight)
    }
}

/// What is too dear, CPU s/s.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Dear {
    /// The dearest.
    which: usize,
    /// It takes this, ...
    cost: f64,
    /// ... and all take this.
    all: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    Cheap,
    /// To the target.
    Own(Dear),
    /// To other processes.
    Others(Dear),
}

/// Whether all together are too dear, and which of them is the dearest.
fn verdict<'a>(rates: impl Iterator<Item = &'a SpendingRate> + Clone, allowed: (f64, f64)) -> Verdict {
    if rates.clone().any(|r| r.watched_ns < JUDGED_NS) {
        return Verdict::Cheap;
    }
    let dear = |cost: fn((f64, f64)) -> f64, allowed: f64| {
        let costs = rates.clone().map(|r| cost(r.mean()));
        let all: f64 = costs.clone().sum();
        let dearest = costs.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        dearest.filter(|_| all > allowed).map(|(which, cost)| Dear { which, cost, all })
    };
    match (dear(|c| c.1, allowed.1), dear(|c| c.0, allowed.0)) {
        (Some(others), _) => Verdict::Others(others),
        (None, Some(own)) => Verdict::Own(own),
        (None, None) => Verdict::Cheap,
    }
}

impl Dear {
    /// In words; `screens`: how many there are.
    fn in_words(self, screens: usize, digits: usize) -> String {
        let percent = |cost: f64| format!("{:.digits$} %", cost * 100.0);
        if screens > 1 {
            format!(
                "{} of a CPU ({} with the others that are screened)",
                percent(self.cost),
                percent(self.all)
            )
        } else {
            format!("{} of a CPU", percent(self.cost))
        }
    }
}

impl Screen {
    pub(super) fn of_syscalls(watch: SyscallWatch) -> Self {
        Self::new(Screened::Syscalls { _watch: watch })
    }

    pub(super) fn of_tracepoints(watch: TracepointWatch, operation: u32, base_class: u32) -> Self {
        Self::new(Screened::Tracepoints { _watch: watch, operation, base_class })
    }

    fn new(what: Screened) -> Self {
        Self { what, charged: (0, 0), seen: 0, rate: SpendingRate::default() }
    }

    fn is_of_syscalls(&self) -> bool {
        matches!(self.what, Screened::Syscalls { .. })
    }

    fn is_of(&self, o: &Operation) -> bool {
        match self.what {
            Screened::Syscalls { .. } => o.by_syscalls(),
            Screened::Tracepoints { operation, .. } => o.number == operation,
        }
    }

    /// Why it is taken off.
    fn own_in_words(&self, cost: &str, allowed: f64) -> String {
        let (what, instead) = match self.what {
            Screened::Syscalls { .. } => {
                ("every system call of the target", "functions that are called rarely")
            }
            Screened::Tracepoints { .. } => ("its tracepoints", "what is passed more rarely"),
        };
        format!(
            "screening {what} costs {cost}, where operations may cost {:.2} %; name {instead} as bounds, or give a larger --budget",
            allowed * 100.0
        )
    }

    fn others_in_words(&self, cost: &str, allowed: f64) -> String {
        let (what, pass) = match self.what {
            Screened::Syscalls { .. } => ("system calls", "pass the tracepoint"),
            Screened::Tracepoints { .. } => ("its tracepoints", "pass them"),
        };
        format!(
            "screening {what} takes {cost} from other processes of this host, where {:.1} % are allowed (they {pass} as well); \
             name functions as bounds",
            allowed * 100.0
        )
    }
}

impl Operations {
    /// The screen of system calls, if they bound operations.
    pub(super) fn syscall_screen(&mut self) -> Option<&mut Screen> {
        self.screens.iter_mut().find(|s| s.is_of_syscalls())
    }
}

impl Session {
    /// Charges the tracepoints that bound operations (functions are charged like all classes), and takes them off for good
    /// where they are too dear: the dearest first.
    pub(in crate::session) fn charge_operations(&mut self, elapsed_ns: u64) {
        let allowed = (self.operations_budget(), bystanders(self.meta.cpus));
        // The first intervals know no CPU time yet.
        let judged = self.own_cpu > 0.0;
        let Some(operations) = &mut self.operations else { return };
        if operations.screens.is_empty() {
            return;
        }
        let kernel = self.attach.kernel();
        let global = kernel.classes().global_counters();
        let price = self.cost.tracepoint;
        for screen in &mut operations.screens {
            let now = match screen.what {
                Screened::Syscalls { .. } => (global.operation_syscalls, global.operation_syscalls_other),
                Screened::Tracepoints { base_class, .. } => {
                    let counters = kernel.operations().counters(base_class);
                    (counters.screened, counters.screened_other)
                }
            };
            let (own, others) = (now.0 - screen.charged.0, now.1 - screen.charged.1);
            screen.charged = now;
            self.ledger.charge_units(Charge::Screening, None, own, price);
            self.ledger.charge_units(Charge::Bystanders, None, others, price);
            screen.rate.push(elapsed_ns as f64, (own as f64 * price.ns, others as f64 * price.ns));
        }
        let screens = &operations.screens;
        let (which, why) = match verdict(screens.iter().map(|s| &s.rate), allowed) {
            Verdict::Own(dear) if judged => {
                let cost = dear.in_words(screens.len(), 2);
                (dear.which, screens[dear.which].own_in_words(&cost, allowed.0))
            }
            Verdict::Others(dear) => {
                let cost = dear.in_words(screens.len(), 1);
                (dear.which, screens[dear.which].others_in_words(&cost, allowed.1))
            }
            Verdict::Own(_) | Verdict::Cheap => return,
        };
        self.drop_screen(which, &why);
    }

    /// What it screens bounds no operation any more.
    fn drop_screen(&mut self, which: usize, why: &str) {
        let Some(operations) = &mut self.operations else { return };
        let screen = operations.screens.remove(which);
        let mut names = Vec::new();
        for o in operations.list.iter_mut().filter(|o| screen.is_of(o)) {
            switch(self.attach.kernel().operations(), o.number, false);
            o.lost = true;
            names.push(o.name.clone());
        }
        drop(screen);
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

    fn of_one(rate: &SpendingRate, allowed: (f64, f64)) -> Verdict {
        verdict(std::iter::once(rate), allowed)
    }

    #[test]
    fn what_is_dear_for_long_is_stopped_and_a_dear_moment_is_not() {
        let allowed = (0.016, 0.02);
        let mut rate = SpendingRate::default();
        rate.push(100e6, (50e6, 0.0));
        // 50 % of a CPU, but for a tenth of a second: not judged yet.
        assert_eq!(of_one(&rate, allowed), Verdict::Cheap);
        for _ in 0..10 {
            rate.push(100e6, (1e6, 1e6));
        }
        assert!(matches!(of_one(&rate, allowed), Verdict::Own(dear) if dear.cost > 0.016), "{rate:?}");
        for _ in 0..100 {
            rate.push(100e6, (1e6, 1e6));
        }
        assert_eq!(of_one(&rate, allowed), Verdict::Cheap, "{rate:?}");
        for _ in 0..100 {
            rate.push(100e6, (1e6, 3e6));
        }
        assert!(matches!(of_one(&rate, allowed), Verdict::Others(dear) if (dear.cost - 0.03).abs() < 1e-3));
    }

    #[test]
    fn of_several_that_are_too_dear_together_the_dearest_goes() {
        let steady = |own: f64, others: f64| {
            let mut rate = SpendingRate::default();
            for _ in 0..20 {
                rate.push(100e6, (own * 100e6, others * 100e6));
            }
            rate
        };
        let rates = [steady(0.006, 0.0), steady(0.009, 0.001), steady(0.004, 0.004)];
        let of = |allowed| verdict(rates.iter(), allowed);
        assert_eq!(of((0.02, 0.02)), Verdict::Cheap);
        let Verdict::Own(dear) = of((0.016, 0.02)) else { panic!("{:?}", of((0.016, 0.02))) };
        assert!(dear.which == 1 && (dear.all - 0.019).abs() < 1e-9, "{dear:?}");
        assert_eq!(dear.in_words(3, 2), "0.90 % of a CPU (1.90 % with the others that are screened)");
        assert_eq!(dear.in_words(1, 1), "0.9 % of a CPU");
        // Others come first: the target has agreed to pay.
        assert!(matches!(of((0.016, 0.004)), Verdict::Others(dear) if dear.which == 2));
        assert_eq!(verdict([].iter(), (0.0, 0.0)), Verdict::Cheap);
        // One that has just begun is waited for.
        let young = SpendingRate { watched_ns: 1e8, ..steady(0.5, 0.5) };
        assert_eq!(verdict([young].iter(), (0.0, 0.0)), Verdict::Cheap);
    }
}
