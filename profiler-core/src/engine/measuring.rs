//! The comparison of the overhead and the counting of its metric, side by side: a metric that is given up ends the comparison.

use super::Run;
use super::command::Command;
use super::input::Counted;
use crate::clients::Client;
use crate::clients::metric::{self, Counting, ProbeHits};
use crate::clients::overhead::{self, LedgerSummary, Overhead, Reading, Subject, Wanted};
use crate::recording::Charge;
use crate::run::arbiter::bystanders;
use crate::run::view::View;

/// The measurement of a run's overhead.
#[derive(Debug)]
pub struct Measuring {
    pub(super) overhead: Overhead,
    pub(super) counting: Counting,
    is_choosing: bool,
}

impl Measuring {
    /// A comparison whose pilot begins now. `probe`: what the kernel's probe has counted so far, if one counts. The `seed` makes runs
    /// differ.
    #[must_use]
    pub fn new(subject: Subject, probe: Option<ProbeHits>, now_ns: u64, seed: u64) -> Self {
        let counting = Counting::new(subject.name.clone(), subject.classes.clone(), probe);
        let is_choosing = subject.choices.is_some();
        Self { overhead: Overhead::new(subject, now_ns, seed), counting, is_choosing }
    }
}

/// What the agent has to read of the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountWanted {
    /// What the kernel's probe has counted.
    pub probe: bool,
    /// The classes that count: what their quotas have let in.
    pub classes: bool,
}

impl Run {
    /// What a step of the comparison needs to be read; [`Wanted::Nothing`]: no step.
    pub fn wants_reading(&mut self, now_ns: u64) -> Wanted {
        let (running, suspension) = (self.is_running(), self.suspension());
        self.measuring.as_mut().map_or(Wanted::Nothing, |m| m.overhead.wants(now_ns, running, suspension))
    }

    /// What counting the metric needs to be read; `None`: nothing is counted.
    #[must_use]
    pub fn wants_count(&self) -> Option<CountWanted> {
        let counting = &self.measuring.as_ref()?.counting;
        Some(CountWanted { probe: counting.reads_probe(), classes: !counting.classes().is_empty() })
    }

    /// Classes of which the next step has to know what their quotas have let in, as far as `view` shows them.
    #[must_use]
    pub fn counted_classes(&self, view: &View) -> Vec<crate::class::ClassId> {
        self.measuring.as_ref().map_or_else(Vec::new, |m| m.counting.reads_classes(view))
    }

    /// The comparison goes on.
    pub(super) fn compare(&mut self, reading: Option<Reading>, view: &View) {
        let input = overhead::Input {
            running: self.is_running(),
            suspension: self.suspension(),
            reading,
            staying: self.operations.as_ref().map_or_else(Vec::new, |o| o.staying(self.arbiter().staying())),
            account: self.account(),
            end_ns: self.times.end_ns,
            attach_s: self.accounts.prices.attach.seconds(),
        };
        let arbiter = self.arbiter();
        let grant = overhead::Grant { allowed: arbiter.allowed(), churn: arbiter.churn() };
        let Some(measuring) = &mut self.measuring else { return };
        let mut orders = Vec::new();
        measuring.overhead.step(input, &grant, view, &mut orders);
        if let Some(number) = measuring.overhead.chosen().filter(|_| measuring.is_choosing) {
            measuring.is_choosing = false;
            measuring.counting.rename(measuring.overhead.metric());
            self.commands.push(Command::Metric(number));
        }
        self.end_if_given_up();
        self.follow(orders, view);
    }

    /// The metric is counted.
    pub(super) fn count(&mut self, counted: Counted, view: &View) {
        let input = metric::Input {
            suspension: self.suspension(),
            most_cpu: self.most_cpu(),
            probed: counted.probed,
            probe_ns: self.accounts.prices.tracepoint.ns,
            admitted: counted.admitted,
            refused: counted.refused,
        };
        let grant = metric::Grant {
            bucket: self.accounts.ledger.bucket().clone(),
            left_ns: self.arbiter().left_of_second_ns(),
            bystanders: bystanders(self.settings.cpus),
        };
        let Some(measuring) = &mut self.measuring else { return };
        let mut orders = Vec::new();
        measuring.counting.step(input, &grant, view, &mut orders);
        if let Some(why) = measuring.counting.take_failure() {
            measuring.overhead.give_up(why, &mut orders);
        }
        self.end_if_given_up();
        self.follow(orders, view);
    }

    /// Charges what counting has cost in the interval of the ledger that ends: to the target, and to the others, who pay as well.
    /// `used_ns`: CPU time that the target used in it, monitoring included.
    pub(super) fn charge_metric(&mut self, elapsed_ns: u64, used_ns: u64, probed: Option<ProbeHits>) {
        let used_ns = used_ns as f64 / (1.0 + self.accounts.ledger.predicted());
        let Some(Measuring { counting, .. }) = &mut self.measuring else { return };
        let price = self.accounts.prices.tracepoint;
        let new = counting.close_interval(elapsed_ns, used_ns, probed, price.ns);
        self.accounts.ledger.charge_units(Charge::Progress, None, new.own, price);
        self.accounts.ledger.charge_units(Charge::Bystanders, None, new.others, price);
    }

    /// A measurement that was given up ends before its orders are followed: what it had detached may be attached again.
    fn end_if_given_up(&mut self) {
        if self.measuring.as_ref().is_some_and(|m| m.overhead.is_over()) {
            self.end_measuring();
        }
    }

    /// Nothing more is counted; the result goes into the receipt.
    pub(super) fn end_measuring(&mut self) {
        let account = self.account();
        if let Some(measuring) = self.measuring.take() {
            self.commands.push(Command::Measured(measuring.overhead.result(&account).map(Box::new)));
        }
    }

    /// What the ledger says of the run so far.
    fn account(&self) -> LedgerSummary {
        let ledger = &self.accounts.ledger;
        LedgerSummary {
            own_cpu_ns: ledger.target_cpu_ns() - ledger.charged_ns(),
            metric_ns: self.measuring.as_ref().map_or(0.0, |m| m.counting.own_ns()),
            compared: ledger.compared(),
            predicted: ledger.compared_at_prices(),
        }
    }
}
