//! What the first two looks ask for: which classes share a link, and how many hits each gets.
//!
//! The first tells the orders of magnitude: a short window, a small quota. The second gives every class as many hits as
//! the budget affords, up to what makes its rate good for any plan:
//!
//! | by its pilot rate | second look |
//! |---|---|
//! | would need more than 0.6 of the long window | all together on shared links, for the long window: attaching is paid once |
//! | else | a link of its own, a quota, a window that the quota ends |
//! | the quota ends it within 20 ms | the same, with no other burst opened meanwhile |
//!
//! What is over in a quarter of the long window is counted in several bursts (`passes`), as many as the budget affords: first all
//! classes once, then all again, spread over the long window.

use super::{BurstRequest, Link, Survey};
use crate::burst::{FRESH_DELAY_NS, FRESH_NS, MEAN_QUOTA_PART, quota_part};
use crate::class::ClassId;
use crate::stats::Interval;
use std::collections::BTreeMap;

/// Part of the quota of an own link that a class of unknown rate gets on a shared one: an order of magnitude is enough,
/// and all of its neighbours may use up theirs.
const SHARED_QUOTA: f64 = 0.25;
/// Bursts that end sooner are of hot classes, s.
pub(super) const HOT_S: f64 = 20e-3;
/// Long window of the quiet: so much for each class, s, ...
const LONG_PER_CLASS_S: f64 = 20e-3;
/// ... and so much at least, s.
const LEAST_LONG_S: f64 = 0.5;
/// A class gets a link of its own if this part of the long window is enough for it.
const OWN_PART: f64 = 0.6;
/// Quiet classes that need no shared link.
const FEW: usize = 8;
/// Longer than this part of the long window: it is one burst.
const LONG_PART: f64 = 0.25;
/// Fewest hits of each of several bursts.
const LEAST_PASS_HITS: u64 = 30;
/// Classes on a shared link of the quiet.
const QUIET_PER_LINK: usize = 100;
/// Left at the end of the time for closing what is open, ns.
const CLOSING_NS: u64 = 200_000_000;
/// Part of what the time brings that the second look plans with.
const PLANNED: f64 = 0.9;
/// What the bucket earns meanwhile need not be reserved: a burst's cost over this time, s.
const HORIZON_S: f64 = 0.1;
/// Links at most that classes share in a first look.
const MOST_LINKS: usize = 48;

impl Survey {
    /// Bursts, link by link, that tell of each of these classes how often it happens at all.
    pub(super) fn first_look(&mut self, classes: &[ClassId]) -> Vec<Vec<BurstRequest>> {
        let window_ns = self.config.first_window_ns;
        let request = |class: ClassId, link: Link, part: f64| BurstRequest {
            class,
            quota_hits: self.quota_hits(class, part),
            window_ns,
            link,
        };
        let seen = |c: &&ClassId| self.states.get(c).is_some_and(|s| s.class.rho > 0.0);
        let own = if classes.len() <= self.config.own_links {
            classes.len()
        } else {
            // Most time first, so that these are at the front.
            classes.iter().take(self.config.own_links).take_while(seen).count()
        };
        let (own, rest) = classes.split_at(own);
        let mut items: Vec<Vec<BurstRequest>> =
            own.iter().map(|c| vec![request(*c, Link::Own, 1.0)]).collect();
        // Of a thousand the first look must not take all of the time.
        let per_link = self.config.unknown_per_link.max(rest.len().div_ceil(MOST_LINKS)).max(1);
        for chunk in rest.chunks(per_link) {
            let link = self.next_link();
            let request = |class: &ClassId| BurstRequest {
                class: *class,
                quota_hits: self.quota_hits(*class, SHARED_QUOTA),
                window_ns,
                link,
            };
            items.push(chunk.iter().map(request).collect());
        }
        items
    }

    /// Bursts, link by link, that make the rates good: long ones first. Those of later passes go into `later`.
    pub(super) fn second_look(&mut self, now_ns: u64) -> Vec<Vec<BurstRequest>> {
        let left_ns = self.left_ns(now_ns).saturating_sub(CLOSING_NS);
        let long_s = (self.states.len() as f64 * LONG_PER_CLASS_S).max(LEAST_LONG_S);
        let long_ns = ((long_s * 1e9) as u64).min(self.config.longest_window_ns).min(left_ns);
        let long_ns = long_ns.max(self.config.first_window_ns);
        let long_s = long_ns as f64 * 1e-9;
        let mut chosen: Vec<(ClassId, Interval, f64)> = Vec::new();
        for state in self.states.values().filter(|s| !s.aborted) {
            let Some(rate) = state.rate(self.config.level) else { continue };
            if state.bursts.is_empty() || rate.rate_hz.n < self.config.wanted_hits {
                let hz = rate.rate_hz;
                chosen.push((state.class.class, Interval { low: hz.low, high: hz.high }, hz.value));
            }
        }
        let left_s = left_ns as f64 * 1e-9;
        let passes = self.affordable_passes(&chosen, left_s, long_s);
        let quota_s = self.common_quota_s(&chosen, left_s, long_s, passes);
        let (mut quiet, mut own) = (Vec::new(), Vec::new());
        for (class, hz, value) in &chosen {
            let hits = self.hits(*class, quota_s);
            if hits as f64 > OWN_PART * long_s * value {
                quiet.push((*class, hz.high));
            } else {
                own.push((*class, *value, hz.low, hits));
            }
        }
        // The first look was a pilot: two bursts so unlike say nothing of how much bursts differ.
        for (class, _, _) in chosen {
            if let Some(state) = self.states.get_mut(&class) {
                let pilot = std::mem::take(&mut state.bursts);
                state.rough = if pilot.is_empty() { std::mem::take(&mut state.rough) } else { pilot };
                // Beside seven others most first bursts of hot classes were disturbed; now they are alone.
                state.repeats = 0;
            }
        }
        // Long ones first, they overlap with all others; then those that a plan may trace or not; what is too hot for any plan last.
        let rank = |(_, value, _, hits): &(ClassId, f64, f64, u64)| {
            let length_s = *hits as f64 / value;
            if length_s > LONG_PART * long_s { 0 } else { 1 + u32::from(length_s < HOT_S) }
        };
        own.sort_by(|a, b| rank(a).cmp(&rank(b)).then(a.1.total_cmp(&b.1)).then(a.0.cmp(&b.0)));
        let mut items = self.quiet_items(&quiet, long_ns);
        let mut later = vec![Vec::new(); passes.saturating_sub(1) as usize];
        for (class, value, low, hits) in own {
            let tau_s = self.tau_s(class);
            let length_s = hits as f64 / value;
            let bursts = bursts_of(hits, length_s, long_s, passes);
            let each = hits.div_ceil(bursts);
            let link = if length_s < HOT_S { Link::Alone } else { Link::Own };
            // The quota is to end it, also where the pilot's luck was good.
            let window_s = (1.5 * hits as f64 / low.max(0.1 * value)).clamp(HOT_S, long_s);
            let window_ns = ((window_s * 1e9) as u64).max(self.config.first_window_ns);
            if let Some(state) = self.states.get_mut(&class) {
                state.quota_s = hits as f64 * tau_s;
                state.window_ns = window_ns;
            }
            let request = BurstRequest { class, quota_hits: each, window_ns, link };
            items.push(vec![self.with_drawn_quota(request)]);
            for pass in later.iter_mut().take(bursts as usize - 1) {
                pass.push(vec![self.with_drawn_quota(request)]);
            }
        }
        let apart_ns = long_ns / u64::from(passes.max(1));
        self.apart_s = apart_ns as f64 * 1e-9;
        let due = (1..).map(|pass| now_ns + pass * apart_ns);
        self.later = due.zip(later).filter(|(_, pass)| !pass.is_empty()).collect();
        items
    }

    /// Seldom things are counted together: their quotas must not end it, what they cost is known. It is known of the first look only: where
    /// calls come in bursts, a quota far above what was seen would let a second's budget through in a moment.
    fn quiet_items(&mut self, quiet: &[(ClassId, f64)], window_ns: u64) -> Vec<Vec<BurstRequest>> {
        let least = self.config.least_hits;
        let largest: BTreeMap<ClassId, f64> =
            quiet.iter().map(|(class, _)| (*class, self.largest_s(*class) / self.tau_s(*class))).collect();
        let hits = |class: ClassId, seen: f64| (4.0 * seen).min(seen.max(largest[&class]));
        let request = |class: ClassId, high_hz: f64, link: Link| BurstRequest {
            class,
            quota_hits: hits(class, high_hz * window_ns as f64 * 1e-9) as u64 + least,
            window_ns,
            link,
        };
        let mut items = Vec::new();
        if quiet.len() <= FEW {
            items.extend(quiet.iter().map(|(class, high)| vec![request(*class, *high, Link::Own)]));
        } else {
            let mut item: Vec<BurstRequest> = Vec::new();
            let mut link = self.next_link();
            let mut reserve_s = self.fixed_s();
            for (class, high) in quiet {
                let one = request(*class, *high, link);
                reserve_s += self.reserve_of_s(&one);
                item.push(one);
                // One more and the bucket would never hold what it may cost.
                if item.len() == QUIET_PER_LINK || reserve_s > 0.5 * self.config.funds.burst_limit_s {
                    items.push(std::mem::take(&mut item));
                    link = self.next_link();
                    reserve_s = self.fixed_s();
                }
            }
            items.extend(Some(item).filter(|item| !item.is_empty()));
        }
        for (class, _) in quiet {
            if let Some(state) = self.states.get_mut(class) {
                state.window_ns = window_ns;
            }
        }
        items
    }

    /// Hits that such a quota in time gives a class in its second look.
    fn hits(&self, class: ClassId, quota_s: f64) -> u64 {
        let hits = (quota_s.min(self.largest_s(class)) / self.tau_s(class)) as u64;
        hits.min(self.config.wanted_hits).max(self.config.least_hits)
    }

    /// Most passes with which all classes get what they get in one.
    fn affordable_passes(&self, classes: &[(ClassId, Interval, f64)], left_s: f64, long_s: f64) -> u32 {
        let budget_s = self.second_look_s(left_s);
        let quota_s = self.common_quota_s(classes, left_s, long_s, 1);
        let fits = |passes: &u32| self.cost_s(classes, long_s, quota_s, *passes) <= budget_s;
        (2..=self.config.passes).rev().find(fits).unwrap_or(1)
    }

    /// What there is for a second look, CPU s.
    fn second_look_s(&self, left_s: f64) -> f64 {
        let earned_s = PLANNED * self.config.funds.income * left_s;
        (self.config.cpu_limit_s - self.spent_s).min(earned_s)
    }

    /// What a second look costs with this quota in time, CPU s.
    fn cost_s(&self, classes: &[(ClassId, Interval, f64)], long_s: f64, quota_s: f64, passes: u32) -> f64 {
        let one = |(class, _, hz): &(ClassId, Interval, f64)| {
            let tau_s = self.tau_s(*class);
            let hits = self.hits(*class, quota_s);
            let length_s = hits as f64 / hz;
            // Of the quiet, what they show in the long window.
            if length_s > OWN_PART * long_s {
                return hz * long_s * tau_s;
            }
            let bursts = bursts_of(hits, length_s, long_s, passes) as f64;
            let after_s = self.tail_s(hz * tau_s, length_s / bursts) + self.config.attach_cost_s;
            hits as f64 * tau_s + bursts * after_s
        };
        classes.iter().map(one).sum()
    }

    /// The quota in time that all classes can have, so that together they cost what there will be.
    fn common_quota_s(
        &self,
        classes: &[(ClassId, Interval, f64)],
        left_s: f64,
        long_s: f64,
        passes: u32,
    ) -> f64 {
        let budget_s = self.second_look_s(left_s);
        let cost_s = |quota_s: f64| self.cost_s(classes, long_s, quota_s, passes);
        // Cost grows with the quota: halve the interval.
        let (mut low, mut high) = (0.0, self.config.largest_quota_s);
        if cost_s(high) <= budget_s {
            return high;
        }
        for _ in 0..30 {
            let middle = 0.5 * (low + high);
            if cost_s(middle) <= budget_s { low = middle } else { high = middle }
        }
        low
    }

    /// What calls go on to pay until the breakpoint of a burst of `length_s` s is out of the text, CPU s; they took `load`
    /// CPU s/s. (See `FRESH_NS`: shortly after an attach that takes 0.1 ms, later a grace period of the kernel.)
    pub(super) fn tail_s(&self, load: f64, length_s: f64) -> f64 {
        let fresh = length_s * 1e9 < FRESH_NS as f64;
        let delay_s = if fresh { FRESH_DELAY_NS * 1e-9 } else { self.config.detach_delay_s };
        load.clamp(0.0, f64::from(self.config.parallel.max(1))) * delay_s.min(self.config.detach_delay_s)
    }

    /// The most that the bursts of a link take from the target in the next moments, CPU s: quotas at the dearest price (for
    /// classes whose rate is known, what they can show), and every running thread hitting without pause until it is off.
    pub(super) fn reserve_s(&self, item: &[BurstRequest]) -> f64 {
        item.iter().map(|r| self.reserve_of_s(r)).sum::<f64>() + self.fixed_s()
    }

    /// The part of one class in that.
    fn reserve_of_s(&self, r: &BurstRequest) -> f64 {
        let Some(state) = self.states.get(&r.class) else { return 0.0 };
        let tau_max_s = state.class.tau.max_ns * 1e-9;
        let Some(rate) = state.rate(self.config.level) else { return r.quota_hits as f64 * tau_max_s };
        let hz = rate.rate_hz;
        let window_s = r.window_ns as f64 * 1e-9;
        // Many together are not all at the ends of their intervals.
        let shared = matches!(r.link, Link::Shared(_));
        let highest_hz = if shared { hz.high.min(2.0 * hz.value) } else { hz.high };
        let hits = (r.quota_hits as f64).min(window_s.min(HORIZON_S) * highest_hz);
        let length_s = (r.quota_hits as f64 / hz.value.max(1e-9)).min(window_s);
        hits * tau_max_s + self.tail_s(hz.value * self.tau_s(r.class), length_s)
    }

    /// The largest quota whose burst keeps to its limit, s, at the price's value.
    fn largest_s(&self, class: ClassId) -> f64 {
        let Some(state) = self.states.get(&class) else { return 0.0 };
        let dearer = state.class.tau.max_ns / state.class.tau.ns.max(1e-9);
        ((self.config.funds.burst_limit_s - self.fixed_s()) / dearer.max(1.0)).max(0.0)
    }

    fn fixed_s(&self) -> f64 {
        self.config.reaction_s * f64::from(self.config.parallel.max(1)) + self.config.attach_cost_s
    }

    /// `Q = q / tau_i` of the class's present quota, or a part of it; not more than its burst may cost.
    pub(super) fn quota_hits(&self, class: ClassId, part: f64) -> u64 {
        let least = self.config.least_hits;
        let Some(state) = self.states.get(&class) else { return least };
        let quota_s = (part * state.quota_s).min(self.largest_s(class));
        // Casts saturate; a quota of u64::MAX hits is never affordable.
        ((quota_s / self.tau_s(class)) as u64).max(least)
    }

    /// The burst with a quota around its own ([`quota_part`]), between the least and what its burst may cost.
    pub(super) fn with_drawn_quota(&mut self, request: BurstRequest) -> BurstRequest {
        let Some(state) = self.states.get_mut(&request.class) else { return request };
        let part = quota_part(state.drawn) / MEAN_QUOTA_PART;
        state.drawn += 1;
        let largest = (self.largest_s(request.class) / self.tau_s(request.class)) as u64;
        let drawn = (part * request.quota_hits as f64) as u64;
        let least = self.config.least_hits.min(request.quota_hits);
        BurstRequest { quota_hits: drawn.clamp(least, largest.max(request.quota_hits)), ..request }
    }

    pub(super) fn tau_s(&self, class: ClassId) -> f64 {
        self.states.get(&class).map_or(0.0, |s| s.class.tau.seconds()).max(1e-9)
    }

    pub(super) fn next_link(&mut self) -> Link {
        self.links += 1;
        Link::Shared(self.links - 1)
    }

    /// Time left for the survey, ns.
    pub(super) fn left_ns(&self, now_ns: u64) -> u64 {
        let begun = self.begin_ns.unwrap_or(now_ns);
        self.config.time_limit_ns.saturating_sub(now_ns.saturating_sub(begun))
    }
}

/// Into how many bursts a class's hits are divided that take `length_s` s.
fn bursts_of(hits: u64, length_s: f64, long_s: f64, passes: u32) -> u64 {
    if length_s > LONG_PART * long_s {
        1
    } else {
        (hits / LEAST_PASS_HITS).clamp(1, u64::from(passes.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use crate::class::ClassId;
    use crate::cost::Price;
    use crate::survey::{BurstOutcome, Step, StoppedBy, Survey, SurveyClass, SurveyConfig, SurveyFunds};

    /// CPU s that the second look at a class wants to have before it begins, and the rate it goes by: 142 hits at 700 ns in `elapsed_ns`.
    fn wanted_s(detach_delay_s: f64, elapsed_ns: u64) -> (f64, f64) {
        let class = SurveyClass { class: ClassId(0), tau: Price::fixed(700.0), rho: 0.5, weight: 1.0 };
        let mut survey =
            Survey::new(SurveyConfig { detach_delay_s, ..SurveyConfig::default() }, 1.0, &[class]);
        let never = |_: &[_]| vec![0; 1];
        let Step::Run(requests) = survey.next_step(0, 1.0, never) else { panic!("no first look") };
        survey.record(BurstOutcome {
            class: ClassId(0),
            start_ns: 0,
            elapsed_ns,
            hits: requests[0].quota_hits,
            extra_hits: 0,
            off_ns: 0,
            target_cpu_ns: 0,
            threads: 1,
            other_cost_ns: 0,
            stopped_by: StoppedBy::Quota,
        });
        let hz = survey.rates()[0].rate_hz.value;
        match survey.next_step(elapsed_ns, 0.0, never) {
            Step::Wait { cpu_s } => (cpu_s, hz),
            other => panic!("without tokens: {other:?}"),
        }
    }

    #[test]
    fn what_calls_pay_after_the_end_of_a_burst_is_reserved() {
        // 5 kHz: 480 hits take 0.1 s, after which a breakpoint stays for a grace period of 20 ms.
        let ((with, hz), (without, _)) = (wanted_s(20e-3, 30_000_000), wanted_s(0.0, 30_000_000));
        let tail_s = hz * 700e-9 * 20e-3;
        assert!((with - without - tail_s).abs() < 1e-9, "{with} {without} {tail_s}");
        // 350 kHz: it ends within 1.4 ms, and the breakpoint goes within 0.1 ms.
        let ((with, hz), (without, _)) = (wanted_s(20e-3, 500_000), wanted_s(0.0, 500_000));
        let tail_s = hz * 700e-9 * 0.1e-3;
        assert!((with - without - tail_s).abs() < 1e-9, "{with} {without} {tail_s}");
    }

    /// It is counted up to four times what was seen, unless that is more than a burst may take.
    #[test]
    fn what_was_called_seldom_cannot_take_a_second_at_once() {
        let quota = |burst_limit_s: f64| {
            let class = SurveyClass { class: ClassId(0), tau: Price::fixed(9_300.0), rho: 0.5, weight: 1.0 };
            let funds = SurveyFunds { burst_limit_s, ..SurveyFunds::default() };
            let mut survey = Survey::new(SurveyConfig { funds, ..SurveyConfig::default() }, 1.0, &[class]);
            survey.quiet_items(&[(ClassId(0), 74.0)], 500_000_000)[0][0].quota_hits
        };
        let least = SurveyConfig::default().least_hits;
        assert_eq!(quota(f64::INFINITY), 148 + least);
        assert_eq!(quota(0.0), 37 + least);
    }
}
