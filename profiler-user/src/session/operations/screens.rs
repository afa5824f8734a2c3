//! The brake on operations that system calls or tracepoints bound: every process of the host runs the programs when it passes
//! them, and no quota in the kernel stops them.

use super::super::Session;
use super::window::switch;
use super::{Operation, Operations};
use crate::prober::{SyscallWatch, TracepointWatch};
use profiler_core::clients::operations::brake::{SpendingRate, Verdict, verdict};
use profiler_core::recording::{ChangeKind, Charge, NotObserved};
use profiler_core::run::arbiter::bystanders;

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
