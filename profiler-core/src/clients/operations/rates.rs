//! The policies' orders: rates, quotas of recording, slices.

use super::Operations;
use super::cycles::Cycle;
use super::learned::Window;
use super::moment::Moment;
use super::operation::Operation;
use super::window::Cut;
use crate::adapt::attach::{InnerCost, Slices};
use crate::adapt::budget::OperationBudget;
use crate::adapt::decision::threshold;
use crate::adapt::portions::Portion;
use crate::adapt::spending::SPAN_S;
use crate::adapt::{OperationClassId, PolicyKind};
use crate::run::agent_limit::percent_up;
use crate::run::arbiter::SLICE_SHARE;
use crate::run::order::Order;
use crate::run::order::operations::{ClassRate, OperationOrder};

/// Inner functions stay attached for so long after recording was switched off, so that operations in flight end with all
/// their calls, ns.
const LINGER_NS: u64 = 50_000_000;

/// `are`: are, or were. `would_do`: a limit of the agent, CPU s/s.
fn slowed_in_words(are: &str, would_do: f64) -> String {
    format!(
        "fewer operations {are} recorded than the budget pays for, because the agent used more than --agent-cpu allows: some \
         --agent-cpu {} would do, or fewer functions under --calls",
        percent_up(would_do)
    )
}

/// What one revision comes to.
pub(super) struct Revision {
    pub window: Window,
    /// What functions inside cost, if attaching them in slices saves something.
    pub inner: Option<InnerCost>,
    /// Recording was neither stopped nor resumed within the window for the sake of inner functions.
    pub is_comparable: bool,
    /// What the user is told.
    pub said: Vec<String>,
    /// What recording may cost in the next window, by operation, s.
    pub quotas: Vec<(u32, f64)>,
}

impl Operation {
    /// Rates (of what is attached), prices and stretches.
    fn rates(&self, slices: &Slices) -> Vec<ClassRate> {
        let orders = self.adapter.orders();
        let rate = |class: u32| {
            let of_class = orders.of(OperationClassId(class));
            ClassRate {
                class,
                threshold: threshold(slices.draw(of_class.rate)),
                // OK because the cast saturates.
                price_ns: (of_class.price_s * 1e9) as u64,
                stretch: of_class.stretch,
            }
        };
        self.classes.clone().map(rate).collect()
    }

    /// What it may cost, where that is its `portion`, and what recording one costs, ns.
    fn budget(
        &self,
        portion: &Portion,
        cut: &Cut,
        revision: &Revision,
        own_ns: f64,
    ) -> (OperationBudget, f64) {
        let Window { factor, elapsed_s, inner_over_warm, begun_hz, .. } = revision.window;
        // Its rate is that of the watched time, and nothing costs anything in the rest.
        let watched = (cut.summary.length_s / elapsed_s).clamp(0.0, 1.0);
        let record_ns = (self.prices.record_ns * inner_over_warm).max(own_ns) * factor;
        // In a slice all operations pay, and what is hit outside operations, too.
        let of_slice_ns =
            revision.inner.map_or(0.0, |i| i.attached / begun_hz.max(1.0) * 1e9 + own_ns * factor);
        let screen_s = self.screened_ns() * 1e-9 * self.screen_factor(factor) * watched;
        let budget = OperationBudget {
            cpu_per_s: portion.recording + screen_s * cut.summary.throughput_hz(),
            record_s: record_ns.max(of_slice_ns) * 1e-9 * watched,
            screen_s,
        };
        (budget, record_ns)
    }
}

impl Operations {
    /// One step of each policy, where they may cost `allowed` CPU s/s. Returns the cycles that have ended.
    pub(super) fn ask_policies(
        &mut self,
        at: &mut Moment<'_>,
        cuts: &[Cut],
        revision: &mut Revision,
        allowed: f64,
    ) -> Vec<Cycle> {
        let mut cycles = Vec::new();
        let mut portions = self.portions(allowed).into_iter();
        for (i, cut) in cuts.iter().enumerate() {
            let portion = (!self.list[i].watch.lost).then(|| portions.next()).flatten();
            match portion {
                Some(portion) => cycles.extend(self.ask_policy(at, i, cut, revision, &portion)),
                None => self.list[i].monitoring = false,
            }
        }
        cycles
    }

    fn ask_policy(
        &mut self,
        at: &mut Moment<'_>,
        i: usize,
        cut: &Cut,
        revision: &mut Revision,
        portion: &Portion,
    ) -> Option<Cycle> {
        let now = at.now();
        let own_ns = self.list.get(i).map_or(0.0, |o| self.record_own_ns(at.seen(), o.number));
        let revise_s = self.settings.config.revise_s;
        let policy: PolicyKind = self.settings.policy;
        let crowding = self.inner.slices.crowding(revise_s);
        let o = &mut self.list[i];
        let (budget, record_ns) = o.budget(portion, cut, revision, own_ns);
        let left_s = portion.recording * revise_s;
        revision.said.extend(o.note_quota(policy, &cut.summary, left_s * crowding, record_ns * 1e-9));
        o.portion.most_screening = portion.most_screening;
        // Only `adp` compares windows on with windows off; to the others, and to the cycle, a window in which less was recorded is a
        // window with a smaller sample.
        o.adapter.set_inner(revision.inner);
        let step = if revision.is_comparable {
            o.adapter.step(&cut.summary, Some(&budget))
        } else {
            o.adapter.step_apart(&cut.summary, Some(&budget))
        };
        let cycle = o.follow(&step, now, at);
        if portion.is_dear && !std::mem::replace(&mut o.portion.said_expensive, true) {
            revision.said.push(o.expensive_in_words(portion, cut.summary.throughput_hz()));
        }
        revision.quotas.push((o.number, o.adapter.orders().quota_s.unwrap_or(left_s)));
        let wanted = o.adapter.orders().monitoring;
        if !wanted && o.monitoring {
            at.order(OperationOrder::Monitor { operation: o.number, on: false });
            self.inner.linger_ns = self.inner.linger_ns.max(now + LINGER_NS);
        }
        o.monitoring = wanted;
        cycle
    }

    /// All share their inner functions: the operation that wants most of the time says when they are attached. What recording may cost in
    /// the next window, and the rates, follow from that.
    pub(super) fn follow_slices(&mut self, at: &mut Moment<'_>, revision: &mut Revision) {
        let clock = &mut self.inner.slices;
        let plans = self.list.iter().filter(|o| o.monitoring && !o.watch.lost);
        let plans = plans.map(|o| o.adapter.orders().slices);
        let slices = plans.max_by(|a, b| a.share.total_cmp(&b.share)).unwrap_or(clock.plan());
        if clock.plan().are_always()
            && !slices.are_always()
            && !std::mem::replace(&mut self.said.slices, true)
        {
            revision.said.push(format!(
                "functions inside operations are attached for {:.0} % of the time, in slices at random, and operations are recorded in these: \
                 those that are not recorded do not pay for them (--adapt attach_share=false keeps them attached)",
                slices.share * 100.0
            ));
        }
        clock.follow(slices);
        let crowding = clock.crowding(self.settings.config.revise_s);
        // All of a slice is recorded: it is paid for, and the quotas of inner functions end what is too expensive.
        let slice_s = if clock.plan().are_always() { 0.0 } else { SLICE_SHARE * SPAN_S * at.grant.allowed };
        let slower = self.slower(at, revision);
        for (operation, quota_s) in &revision.quotas {
            // OK because the cast saturates.
            let quota_ns = ((quota_s * crowding).max(slice_s) / slower * 1e9) as u64;
            at.order(OperationOrder::RecordingQuota { operation: *operation, quota_ns });
        }
        for o in &self.list {
            at.order(OperationOrder::Rates(o.rates(&slices)));
        }
    }

    /// By what factor less is recorded, because calls in order cost the agent more than it may use. Said once, with the limit that would do, and once more when the
    /// run is over.
    fn slower(&mut self, at: &Moment<'_>, revision: &mut Revision) -> f64 {
        let (slower, would_do) = at.grant.agent;
        if !self.settings.has_steps || slower <= 1.0 {
            return 1.0;
        }
        self.said.slowest = self.said.slowest.max(slower);
        if !std::mem::replace(&mut self.said.agent, true) {
            revision.said.push(slowed_in_words("are", would_do));
        }
        slower
    }

    /// What the report says of it.
    pub(super) fn warn_of_agent(&self, at: &mut Moment<'_>) {
        if self.said.agent {
            let (_, would_do) = at.grant.agent;
            let text = format!(
                "{}; at times one in {:.0} of those that the budget pays for",
                slowed_in_words("were", would_do),
                self.said.slowest.ceil()
            );
            at.orders.push(Order::Warn(text));
        }
    }
}
