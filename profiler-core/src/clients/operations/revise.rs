//! Once a revision: what was seen goes into rows and to the policy, and its orders go to the kernel.

use super::Operations;
use super::learned::Window;
use super::moment::Moment;
use super::rates::Revision;
use super::slices::InnerAllowed;
use super::window::Cut;
use crate::adapt::attach::InnerCost;
use crate::adapt::spending::slice_most_s;
use crate::run::order::operations::OperationOrder;

/// Operations are taken to be watched for this part of the time at least.
const LEAST_WATCHED: f64 = 0.01;

impl Operations {
    /// One revision of all operations.
    pub(super) fn revise(&mut self, at: &mut Moment<'_>) {
        if at.seen().counts.is_empty() || !at.seen().has_hits {
            return;
        }
        let now = at.now();
        let since_ns = self.list.first().map_or(0, |o| o.watch.since_ns);
        let elapsed_s = (now.saturating_sub(since_ns) as f64 * 1e-9).max(1e-3);
        // Its orders are those of the window that ends here.
        let sliced = !self.inner.slices.plan().are_always();
        let counts = self.list.iter_mut().zip(&at.seen().counts);
        let mut cuts: Vec<Cut> = counts.map(|(o, counts)| o.cut(counts, now, sliced)).collect();
        let rows = cuts.iter_mut().flat_map(|cut| std::mem::take(&mut cut.rows)).collect();
        let window = self.sum_up(at, &cuts, elapsed_s);
        self.learn_prices(at, &cuts, &window);
        let is_comparable = self.look_for_lost_alarms(at);
        let times = cuts.iter().flat_map(|cut| cut.summary.classes.iter().map(|c| &c.population));
        self.inner.slices.learn(window.inner_ns * 1e-9, times);
        self.learn_demands(&cuts, &window);
        let inner = self.price_inside(at, &cuts, &window);
        // In slices all that is attached records, unless not all could be attached.
        let gave_up = self.inner.slices.take_gave_up();
        let outside_fixed = if inner.is_some() && !gave_up { 0.0 } else { window.outside };
        let mut revision = Revision { window, inner, is_comparable, said: Vec::new(), quotas: Vec::new() };
        self.say_expensive_inside(at, &mut revision);
        let cycles = self.ask_policies(at, &cuts, &mut revision, at.grant.allowed - outside_fixed);
        self.follow_slices(at, &mut revision);
        revision.said.extend(self.say_starving(at));
        at.order(OperationOrder::Windows(rows));
        for text in revision.said {
            at.note(text);
        }
        for cycle in cycles {
            at.end_cycle(cycle);
        }
        // Inner functions first: an operation is recorded with all its calls or not at all.
        self.inner.revised = true;
    }

    /// Where the kernel records nothing and no inner function is off, twice in a row, an alarm was lost: the link has never gone. True:
    /// recording was neither stopped nor resumed within the window.
    fn look_for_lost_alarms(&mut self, at: &mut Moment<'_>) -> bool {
        let unmixed = !std::mem::take(&mut self.inner.mixed);
        let complete = self.inner.complete;
        // While others are being attached nobody has looked whether an inner function has gone.
        let here = at.inner().iter().all(|now| now.is_open() || now.is_refused());
        let losses = at.seen().losses;
        let lacks = (complete && here && unmixed && at.lacks_details).then_some(losses);
        // Twice in a row it was no trip of which nobody has heard yet.
        if std::mem::replace(&mut self.inner.lacked, lacks) == Some(losses) && lacks.is_some() {
            at.details_end();
            at.details_back();
            self.inner.lacked = None;
            self.inner.kept.iter_mut().for_each(|kept| kept.losses = losses);
        }
        unmixed && complete
    }

    /// What functions inside operations cost, and may.
    fn price_inside(&self, at: &Moment<'_>, cuts: &[Cut], window: &Window) -> Option<InnerCost> {
        let allowed = at.grant.allowed;
        // What screening costs does not depend on what is left for recording.
        let portions = self.portions(allowed);
        let screens: f64 = portions.iter().map(|p| p.screening).sum();
        // Slices are cut from the time in which operations are watched.
        let watched_s = cuts.iter().map(|cut| cut.summary.length_s).fold(0.0, f64::max);
        let watched = (watched_s / window.elapsed_s).clamp(LEAST_WATCHED, 1.0);
        // Those that pause come back when a slice has room.
        let pausing = portions.iter().any(|p| p.is_dear);
        let inner_allowed = InnerAllowed {
            inner: (allowed - screens).max(0.0),
            all: allowed,
            slice_s: if pausing { f64::INFINITY } else { slice_most_s(screens, allowed) },
        };
        self.inner_cost(window.factor, inner_allowed, watched)
    }

    fn say_expensive_inside(&mut self, at: &Moment<'_>, revision: &mut Revision) {
        let allowed = at.grant.allowed;
        let attached = self.inner.slices.attached() * revision.window.factor;
        let is_expensive = std::mem::take(&mut self.inner.tripped) && attached > allowed;
        if is_expensive && !std::mem::replace(&mut self.said.inner, true) {
            revision.said.push(format!(
                "inner functions cost {:.2} % of a CPU while they are attached, where operations may cost {:.2} %: they are \
                 attached for a part of the time, and nothing is recorded meanwhile; name fewer or rarer ones with --detail",
                attached * 100.0,
                allowed * 100.0
            ));
        }
    }
}
