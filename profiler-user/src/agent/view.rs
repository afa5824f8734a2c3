//! Fills the snapshot that the run sees.

use super::Agent;
use super::class::{LinkState, LiveClass, OperationRole};
use super::clock::now_ns;
use crate::prober::ClassCounters;
use profiler_core::engine::Sees;
use profiler_core::run::links::Role;
use profiler_core::run::view::{ClassTraits, ClassView, LinkView, SamplesView, View};

impl Agent {
    /// Fills time and samples, and so much of the rest. The buffers are reused.
    pub(super) fn fill_view(&mut self, what: Sees, view: &mut View) {
        view.now_ns = now_ns();
        let shares = self.sampling.shares();
        view.samples = SamplesView {
            n: shares.samples(),
            cpu_ns: shares.cpu_ns(),
            rate_hz: self.sampling.events.rate_hz(),
            price_s: view.samples.price_s,
            off: self.sampling.events.is_off_for_good(),
            threads: self.sampling.events.threads(),
            per_cpu: self.sampling.events.is_per_cpu(),
        };
        if what == Sees::Nothing {
            return;
        }
        if what == Sees::Counters {
            self.attach.read_counters();
        }
        self.take_frequencies();
        let classes = self.attach.classes();
        let new = classes.iter().skip(view.names.len());
        view.names.extend(new.map(|class| class.candidate.name.clone()));
        view.classes.clear();
        view.classes.extend(classes.iter().map(|class| self.view_of(class)));
    }

    /// One class as the run sees it.
    pub(super) fn view_of(&self, class: &LiveClass) -> ClassView {
        let time = self.sampling.shares().of(class.candidate.key);
        ClassView {
            id: class.id,
            link: link_of(class),
            quota: self.attach.quota(class.id),
            start_ns: start_of(class),
            attempted: class.counters.attempted,
            ends: ends(&class.counters),
            timed_ns: class.counters.sum_ns,
            bystanders: class.counters.bystanders,
            traits: ClassTraits {
                kind: class.kind,
                exit: class.exit,
                weight: class.wish.weight,
                role: role_of(class),
                // OK because a process maps fewer.
                module: class.candidate.key.module as u32,
                named: class.wish.named,
                must: class.wish.must,
                apart: class.is_apart(),
                stamps_of: class.candidate.stamps_of,
                // The run knows.
                held_by_plan: false,
                dormant: class.dormant,
                refused: class.refused.is_some(),
            },
            prices: class.prices,
            samples: time.samples,
            sampled_ns: time.cpu_ns,
            points: self.data_points.of(class.id),
        }
    }
}

/// Hits of all sites that see ends, whatever kind they are of: a class may change from one to the other, and the count must not go back.
fn ends(counters: &ClassCounters) -> u64 {
    counters.returns.wrapping_add(counters.orphans).wrapping_add(counters.callers.strays)
}

fn start_of(class: &LiveClass) -> u64 {
    match &class.state {
        LinkState::Open(window) | LinkState::Closing(window, _) => window.start_ns,
        LinkState::Off | LinkState::Waiting(_) | LinkState::Opening(..) => 0,
    }
}

fn role_of(class: &LiveClass) -> Role {
    match class.role {
        None => Role::None,
        Some(OperationRole::Inner { .. }) => Role::Inner,
        Some(OperationRole::End(_)) => Role::End,
        Some(OperationRole::Begin(_) | OperationRole::Whole(_)) => Role::Begin,
    }
}

pub(super) fn link_of(class: &LiveClass) -> LinkView {
    match &class.state {
        LinkState::Off => LinkView::Off,
        LinkState::Waiting(_) => LinkView::Waiting,
        LinkState::Opening(..) => LinkView::Opening,
        LinkState::Open(window) => LinkView::Open(window.kind),
        LinkState::Closing(window, _) => LinkView::Closing(window.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_never_go_back_when_they_are_seen_elsewhere() {
        // 50,000 returns at exit sites; then at return addresses, where `callers.ends` begins at 0.
        let mut counters = ClassCounters { returns: 50_000, ..Default::default() };
        let before = ends(&counters);
        (counters.returns, counters.orphans) = (50_010, 2);
        (counters.callers.ends, counters.callers.strays) = (15, 3);
        assert_eq!(ends(&counters) - before, 15);
    }
}
