//! Terms by which a form only bends.
//!
//! Caches and allocation change the time of real functions by 5 to 15 % over three decades, evenly from size to size (docs/log.md M48). The criterion takes
//! each size for a witness of its own, and finds a second term that follows the bend: `n log n + 1e-9 n^3` for `qsort`. So such a term is left
//! out where the form without it is within [`BENT`] in every part. The class of what was left out remains one that is not ruled out.

use super::search::{Choice, Searched};
use super::shape::Shape;
use super::sum::Sum;
use super::term::Term;

/// Spread of relative errors within which a form only bends.
const BENT: f64 = 0.05;

impl Choice {
    /// It is not more than [`BENT`] off, and has one growing term at most: what it lacks is no switching point.
    pub fn only_bends(&self) -> bool {
        let one = |shape: &Shape| matches!(shape, Shape::Sum(sum) if sum.growing() <= 1);
        self.is_near() && self.shapes.iter().all(one)
    }

    fn is_near(&self) -> bool {
        self.misfit <= BENT * BENT
    }

    fn sums(&self) -> impl Iterator<Item = &Sum> {
        self.shapes.iter().filter_map(|shape| match shape {
            Shape::Sum(sum) => Some(sum),
            _ => None,
        })
    }

    /// Terms that grow in any part, each once.
    fn growing(&self) -> Vec<&Term> {
        let mut terms: Vec<&Term> =
            self.sums().flat_map(|sum| &sum.terms).filter(|(_, a)| *a > 0.0).map(|(t, _)| t).collect();
        terms.sort_unstable();
        terms.dedup();
        terms
    }

    /// The input and twice its power, if all terms are that, whatever their logarithms.
    fn one_power(&self) -> Option<(u8, u8)> {
        let mut powers = self.growing().into_iter().map(|term| match term.0.as_slice() {
            [factor] => Some((factor.input, factor.half_powers)),
            _ => None,
        });
        let first = powers.next()??;
        powers.all(|power| power == Some(first)).then_some(first)
    }
}

impl Searched<'_> {
    /// The same without terms by which it only bends. `single`: the best of one term.
    pub(super) fn unbent(&self, best: Choice, single: Option<Choice>) -> Choice {
        let mut best = best;
        // `n` and `n log n`: one of them.
        if best.growing().len() > 1
            && let (Some(power), Some(single)) = (best.one_power(), single)
            && single.is_near()
            && single.one_power() == Some(power)
        {
            return single;
        }
        while let Some(rest) = self.without_faint(&best).filter(Choice::is_near) {
            best = rest;
        }
        best
    }

    /// Refitted without its fastest term, if that is faint in every part.
    fn without_faint(&self, choice: &Choice) -> Option<Choice> {
        let terms = choice.growing();
        let fastest = terms.iter().max_by_key(|term| term.order())?;
        let is_faint = choice.sums().count() == self.parts.len()
            && self.parts.iter().zip(choice.sums()).all(|(part, sum)| part.is_faint(sum, fastest));
        let place = |term: &&Term| self.whole.terms.iter().position(|t| t == *term);
        let rest: Option<Vec<usize>> = terms.iter().filter(|t| *t != fastest).map(place).collect();
        if is_faint { self.fitted(&rest?) } else { None }
    }
}
