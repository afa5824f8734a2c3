//! Fills the snapshot that clients see.

use super::Session;
use super::attach::now_ns;
use super::class::{LinkState, LiveClass};
use profiler_core::run::view::{
    ClassPrices, ClassTraits, ClassView, LinkView, SamplesView, TargetView, View,
};

impl Session {
    /// What can be seen now.
    pub(super) fn view(&self) -> View {
        let mut view = View::default();
        self.fill_view(&mut view);
        view
    }

    /// What can be seen now. Reads no counters: hits are those of the last interval of the ledger.
    pub(super) fn fill_view(&self, view: &mut View) {
        view.now_ns = now_ns();
        view.target = TargetView {
            cpu_ns: self.last_cpu_ns,
            own_cpu: self.own_cpu,
            cpus: self.meta.cpus,
            working_threads: self.working_threads(),
            is_held: self.loading.is_some(),
        };
        let shares = self.sampling.shares();
        view.samples = SamplesView {
            n: shares.samples(),
            cpu_ns: shares.cpu_ns(),
            rate_hz: self.sampling.rate_hz(),
            price_s: self.sampling.price(&self.cost).seconds(),
            off: self.sampling.is_off_for_good(),
        };
        view.classes.clear();
        view.classes.extend(self.attach.classes().iter().map(|class| {
            let time = shares.of(class.candidate.key);
            ClassView {
                id: class.id,
                link: link_of(class),
                quota: self.attach.quota(class.id),
                attempted: class.charged.attempted,
                traits: ClassTraits {
                    kind: class.kind,
                    exit: class.exit,
                    weight: class.wish.weight,
                    named: class.wish.named,
                    must: class.wish.must,
                    apart: self.is_apart(class.id),
                    held_by_plan: self.trace.is_attached(class.id),
                    dormant: class.dormant,
                    refused: class.refused.is_some(),
                },
                prices: ClassPrices { hit: class.hit_price, exit: class.exit_price, cold: class.cold },
                samples: time.samples,
                sampled_ns: time.cpu_ns,
            }
        }));
    }
}

fn link_of(class: &LiveClass) -> LinkView {
    match &class.state {
        LinkState::Off => LinkView::Off,
        LinkState::Waiting(_) => LinkView::Waiting,
        LinkState::Opening(..) => LinkView::Opening,
        LinkState::Open(window) => LinkView::Open(window.kind),
        LinkState::Closing(window, _) => LinkView::Closing(window.kind),
    }
}
