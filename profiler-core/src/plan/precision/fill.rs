//! What the prices leave is given away: first for what is worth most, then for what is worth nothing by the objective and is still better to have.

use super::curve::{Curve, Offer, Pick};
use super::search::{Draft, Search, size};
use super::steps::GIVING;

/// Classes that get what is left, one after the other.
const FILLS: usize = 16;
/// Where nothing is worth more, a class gets this part of what is left at a time: many get something.
const PORTION: f64 = 0.3;
/// Gains below this are none.
const LEAST_GAIN: f64 = 1e-9;

impl Search<'_> {
    /// Gives what is left to the classes that gain most by it.
    pub fn fill(&self, draft: &mut Draft) {
        self.give(draft, &self.curves, 1.0);
        self.sample(draft, self.sampler.range.1);
    }

    /// Spends what is left where no class gains by it: exact counts instead of estimates, the heaviest first, then more windows, then samples.
    ///
    /// Worths stay those of the objective, which knows no width below its floor.
    pub fn spend(&self, draft: &mut Draft) {
        self.steps.allow(GIVING);
        let mut order: Vec<usize> = self.open().collect();
        order.sort_by(|&a, &b| self.curves[b].weight.total_cmp(&self.curves[a].weight).then(a.cmp(&b)));
        let mut left = self.left(draft).0;
        for &i in &order {
            let (curve, rate) = (&self.curves[i], self.problem.classes[i].rate_hz);
            let Some(cost) = curve.trace.filter(|_| draft.offers[i].pick != Pick::Trace) else { continue };
            // With the upper end of the rate: a plan that must be taken back tomorrow is no plan.
            let upper = cost * (rate.high / rate.value).max(1.0);
            if curve.weight > 0.0 && upper <= left + draft.offers[i].cost {
                left += draft.offers[i].cost - cost;
                draft.offers[i] = Offer::trace(curve.full(), cost);
            }
        }
        let beyond: Vec<Curve> = self.curves.iter().map(Curve::beyond).collect();
        let worth = |i: usize, offer: &Offer| match offer.pick {
            Pick::Burst(choice, per_s) => self.curves[i].burst(choice, per_s).worth,
            Pick::Sample | Pick::Trace => offer.worth,
        };
        // What is known better counts here.
        for &i in &order {
            if let Pick::Burst(choice, per_s) = draft.offers[i].pick {
                draft.offers[i] = beyond[i].burst(choice, per_s);
            }
        }
        self.give(draft, &beyond, PORTION);
        for &i in &order {
            draft.offers[i].worth = worth(i, &draft.offers[i]);
        }
        self.sample(draft, self.sampler.most_hz);
    }

    /// Classes that are not counted in full in any case.
    fn open(&self) -> impl Iterator<Item = usize> {
        (0..self.curves.len()).filter(|&i| !self.is_full[i])
    }

    /// Gives a part of what is left to the class that gains most by it, several times.
    fn give(&self, draft: &mut Draft, curves: &[Curve], part: f64) {
        let size = size(curves);
        for _ in 0..FILLS {
            if self.steps.left() < size {
                break;
            }
            self.steps.take(size);
            let (left, windows) = self.left(draft);
            let gain = |i: usize| {
                let own = draft.offers[i];
                let offer = curves[i].within(part * left + own.cost, windows + own.per_s);
                (offer.worth - own.worth, i, offer)
            };
            let open = self.open().filter(|&i| draft.offers[i].pick != Pick::Trace);
            let Some((gain, i, offer)) = open.map(gain).max_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            if left <= 0.0 || gain <= LEAST_GAIN {
                break;
            }
            draft.offers[i] = offer;
        }
    }

    /// Samples for what is left, up to this rate.
    fn sample(&self, draft: &mut Draft, most_hz: f64) {
        if self.sampler.price > 0.0 {
            let left = self.left(draft).0.max(0.0);
            draft.s = (draft.s + left / self.sampler.price).min(most_hz).max(draft.s);
        }
    }
}
