//! What a plan needs is gathered here, and a plan that was made is recorded and put to work.

use super::Session;
use crate::config::RunConfig;
use crate::prober::{Kernel, Tier};
use profiler_core::burst::BurstPrices;
use profiler_core::clients::trace::planning;
use profiler_core::clients::trace::problem::{Known, Settings};
use profiler_core::clients::trace::rate::Rates;
use profiler_core::cost::CostModel;
use profiler_core::plan::PlanError;
use profiler_core::recording::Charge;
use profiler_core::run::view::View;

/// What plans of this run are made with.
pub(super) fn plan_settings(config: &RunConfig, kernel: &Kernel, cost: &CostModel, cpus: u32) -> Settings {
    Settings {
        only_named: config.experiments.only_named,
        fixed_rate_hz: config.sampling_hz,
        slow_links: kernel.tier() == Tier::D,
        prices: BurstPrices::new(cost, cpus),
    }
}

impl Session {
    /// Asks what is known for a plan, as far as `view` shows it.
    pub(super) fn with_known<T>(&self, view: &View, ask: impl FnOnce(&Known<'_>) -> T) -> T {
        let names: Vec<&str> = self.attach.classes().iter().map(|c| c.candidate.name.as_str()).collect();
        let bounds = self.thread_bounds();
        ask(&Known {
            view,
            names: &names,
            arbiter: self.arbiter(),
            claims: &self.claims(),
            operations: self.operations.is_some(),
            bounds: bounds.as_ref(),
            settings: self.trace.settings(),
            shares: self.trace.shares(),
        })
    }

    /// Makes a plan from the rates, records it (and `why` it was made) and puts it to work.
    ///
    /// # Errors
    /// The budget does not allow what must be traced.
    pub(super) fn make_plan(&mut self, rates: &Rates, why: String) -> Result<(), PlanError> {
        let view = self.view();
        if self.plan_only {
            self.problem = Some(self.with_known(&view, |known| known.problem(rates).0));
            return Ok(());
        }
        let number = self.trace.plans() + 1;
        let planned = self.with_known(&view, |known| planning::make(known, rates, number))?;
        // The first plan may come before the first tokens: half of what the bucket will hold is lent to it, or every
        // busy class would trip at once. A debt is paid back before anything else is spent.
        let (tokens, factor) = (self.arbiter().lent_ns(), self.ledger.factor());
        let orders = self.orders_of_trace(&view, |trace, seen, orders| {
            trace.adopt(&planned, factor, tokens, seen, orders);
        });
        self.note_plan(why);
        self.warn_verbose(&planned.in_words(number));
        self.save_problem(&planned.problem);
        self.writer.send(planned.rows);
        // Paid once: links closed by the survey and made for the plan say nothing about what is to come.
        let before = self.attach.take_operations();
        self.execute(orders, true);
        let closed = self.attach.take_operations();
        self.ledger.charge_units(Charge::Attach, None, before + closed, self.cost.attach);
        Ok(())
    }
}
