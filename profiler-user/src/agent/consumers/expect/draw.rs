//! Which calls of a function are looked at where there are too many of them. Pure: it reads no clock.
//!
//! A call is drawn when it begins, by chance, so that long calls are looked at as often as short ones. The first so many that *end* in a step would not do: where
//! the limit is reached in each step, no call that takes longer than a part of a step would ever be among those that may be bet on
//! ([`profiler_core::models::Watch::missed`]).
//!
//! ```text
//! drawn:  hash(begin, thread) < part at the begin      part = MOST / calls that end in a step      (the most of the last seconds)
//! ```

use std::collections::VecDeque;

/// Calls of a function that are drawn in a step, on average: less than the limit, which they are not to reach by chance.
const MOST: f64 = 192.0;
/// What is left of the most calls of a step with each further step: half after three seconds.
const KEEPS: f64 = 0.95;
/// A part that differs by less than this is not changed.
const NEWS: f64 = 0.1;
/// Changes that are remembered.
const REMEMBERED: usize = 256;

/// See the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Draw {
    /// From when on which part is drawn; the oldest first. Of calls that began before the first nobody knows.
    parts: VecDeque<(u64, f64)>,
    /// Calls that have ended in this step.
    in_step: u32,
    most: f64,
}

impl Default for Draw {
    fn default() -> Self {
        Self { parts: VecDeque::from([(0, 1.0)]), in_step: 0, most: 0.0 }
    }
}

impl Draw {
    /// A call has ended.
    pub fn count(&mut self) {
        self.in_step = self.in_step.saturating_add(1);
    }

    /// A call that began then on that thread is looked at.
    pub fn is_drawn(&self, begin_ns: u64, tid: u32) -> bool {
        let behind = self.parts.partition_point(|(from_ns, _)| *from_ns <= begin_ns);
        let part = behind.checked_sub(1).and_then(|at| self.parts.get(at)).map_or(0.0, |(_, part)| *part);
        part >= 1.0 || uniform(begin_ns, tid) < part
    }

    /// A step is over: what begins from now on is drawn by what the last steps had.
    pub fn end_step(&mut self, now_ns: u64) {
        self.most = (KEEPS * self.most).max(f64::from(std::mem::take(&mut self.in_step)));
        let part = (MOST / self.most.max(1.0)).min(1.0);
        let last = self.parts.back().map_or(1.0, |(_, part)| *part);
        let is_news = (part / last - 1.0).abs() > NEWS || part == 1.0 && last < 1.0;
        if is_news {
            self.parts.push_back((now_ns, part));
            if self.parts.len() > REMEMBERED {
                self.parts.pop_front();
            }
        }
    }
}

/// A number from 0 to 1 for each call (splitmix64, Steele et al. 2014).
fn uniform(begin_ns: u64, tid: u32) -> f64 {
    let mut x = begin_ns ^ u64::from(tid).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // OK because 53 bits are what the number holds.
    ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_NS: u64 = 250_000_000;

    #[test]
    fn few_calls_are_all_drawn_and_of_many_a_part_that_fits() {
        let mut draw = Draw::default();
        for step in 0..8 {
            (0..190).for_each(|_| draw.count());
            draw.end_step(step * STEP_NS);
        }
        assert!((0..1_000).all(|i| draw.is_drawn(i * 1_000, 7)));
        (0..1_920).for_each(|_| draw.count());
        draw.end_step(8 * STEP_NS);
        // What began before goes on as it was drawn.
        assert!((0..1_000).all(|i| draw.is_drawn(i * 1_000, 7)));
        let drawn = (0..10_000).filter(|i| draw.is_drawn(8 * STEP_NS + i * 1_000, 7)).count();
        assert!((900..1_100).contains(&drawn), "{drawn}");
        // A crowd once a second is expected again.
        for step in 9..12 {
            draw.end_step(step * STEP_NS);
        }
        let drawn = (0..10_000).filter(|i| draw.is_drawn(12 * STEP_NS + i * 1_000, 7)).count();
        assert!((1_000..1_300).contains(&drawn), "{drawn}");
        for step in 12..400 {
            draw.end_step(step * STEP_NS);
        }
        assert!((0..1_000).all(|i| draw.is_drawn(400 * STEP_NS + i * 1_000, 7)), "it is over");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_calls_of_before_are_not_drawn() {
        let mut draw = Draw::default();
        for step in 1..10 * REMEMBERED as u64 {
            // A crowd, and then the quiet behind it.
            (0..1_000 * (1 + step % 2 * 9)).for_each(|_| draw.count());
            draw.most = 0.0;
            draw.end_step(step * STEP_NS);
        }
        assert_eq!(draw.parts.len(), REMEMBERED);
        assert!(!(0..1_000).any(|i| draw.is_drawn(i * 1_000, 7)));
    }
}
