//! The brake on operations that system calls or tracepoints bound: every process of the host runs the programs when it passes
//! them, and no quota in the kernel stops them.

use super::brake::{ScreenVerdict, SpendingRate, verdict};
use super::moment::Moment;
use super::operation::Operation;
use super::{Charged, Operations};
use crate::recording::{ChangeKind, Charge};
use crate::run::order::Order;
use crate::run::order::operations::OperationOrder;
use crate::run::view::operations::{OperationsView, ScreenView, Screened};

/// Programs on tracepoints, and what they cost.
#[derive(Debug)]
pub(super) struct Screen {
    pub what: Screened,
    /// Hits that are charged: of the target, of others.
    charged: (u64, u64),
    /// The target's, as last read for the price of screening system calls.
    pub seen: u64,
    rate: SpendingRate,
}

impl Screen {
    pub fn new(what: Screened) -> Self {
        Self { what, charged: (0, 0), seen: 0, rate: SpendingRate::default() }
    }

    /// What it has counted so far.
    pub fn counted(&self, view: &OperationsView) -> Option<ScreenView> {
        view.screens.iter().find(|screen| screen.what == self.what).copied()
    }

    fn is_of(&self, o: &Operation) -> bool {
        match self.what {
            Screened::Syscalls => o.by_syscalls(),
            Screened::Tracepoints(operation) => o.number == operation,
        }
    }

    /// Why it is taken off.
    fn own_in_words(&self, cost: &str, allowed: f64) -> String {
        let (what, instead) = match self.what {
            Screened::Syscalls => ("every system call of the target", "functions that are called rarely"),
            Screened::Tracepoints(_) => ("its tracepoints", "what is passed more rarely"),
        };
        format!(
            "screening {what} costs {cost}, where operations may cost {:.2} %; name {instead} as bounds, or give a larger --budget",
            allowed * 100.0
        )
    }

    fn others_in_words(&self, cost: &str, allowed: f64) -> String {
        let (what, pass) = match self.what {
            Screened::Syscalls => ("system calls", "pass the tracepoint"),
            Screened::Tracepoints(_) => ("its tracepoints", "pass them"),
        };
        format!(
            "screening {what} takes {cost} from other processes of this host, where {:.1} % are allowed (they {pass} as well); \
             name functions as bounds",
            allowed * 100.0
        )
    }
}

impl Operations {
    /// Charges the tracepoints that bound operations (functions are charged like all classes), and takes them off for good
    /// where they are too expensive: the most expensive first.
    pub(super) fn charge_screens(&mut self, elapsed_ns: u64, at: &mut Moment<'_>) {
        let allowed = (at.grant.allowed, at.grant.bystanders);
        // The first intervals know no CPU time yet.
        let judged = at.view.target.own_cpu > 0.0;
        let price_ns = self.settings.tracepoint_ns;
        for screen in &mut self.screens {
            let Some(now) = screen.counted(at.seen()) else { continue };
            let (own, others) =
                (now.own.saturating_sub(screen.charged.0), now.others.saturating_sub(screen.charged.1));
            screen.charged = (now.own, now.others);
            let cost_ns = (own as f64 * price_ns, others as f64 * price_ns);
            self.charges.push(Charged { charge: Charge::Screening, units: own, cost_ns: cost_ns.0 });
            self.charges.push(Charged { charge: Charge::Bystanders, units: others, cost_ns: cost_ns.1 });
            screen.rate.push(elapsed_ns as f64, cost_ns);
        }
        let screens = &self.screens;
        let (which, why) = match verdict(screens.iter().map(|s| &s.rate), allowed) {
            ScreenVerdict::Own(dear) if judged => {
                let cost = dear.in_words(screens.len(), 2);
                (dear.which, screens[dear.which].own_in_words(&cost, allowed.0))
            }
            ScreenVerdict::Others(dear) => {
                let cost = dear.in_words(screens.len(), 1);
                (dear.which, screens[dear.which].others_in_words(&cost, allowed.1))
            }
            ScreenVerdict::Own(_) | ScreenVerdict::Cheap => return,
        };
        self.drop_screen(at, which, &why);
    }

    /// What it screens bounds no operation any more.
    fn drop_screen(&mut self, at: &mut Moment<'_>, which: usize, why: &str) {
        let screen = self.screens.remove(which);
        let mut names = Vec::new();
        for o in self.list.iter_mut().filter(|o| screen.is_of(o)) {
            at.order(OperationOrder::Monitor { operation: o.number, on: false });
            o.watch.lost = true;
            names.push(o.name.clone());
        }
        at.order(OperationOrder::DropScreen(screen.what));
        for name in names {
            let text = format!("operation '{name}' is not watched from here on: {why}");
            at.note_change(ChangeKind::Stop, None, text);
            at.orders.push(Order::NotObserved(format!("operation '{name}', later part"), why.to_owned()));
        }
    }
}
