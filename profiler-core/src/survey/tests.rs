use super::*;
use crate::cost::Price;
use crate::ledger::TokenBucket;
use crate::stats::sim::{exponential, rng};
use crate::units::OverheadBudget;
use rand::rngs::StdRng;

mod drift;
mod funds;
mod voids;

/// A burst while it runs.
struct LiveBurst {
    request: BurstRequest,
    start_ns: u64,
    next_own_s: f64,
    hits: u64,
    extra: u64,
    /// Wall time of the trip, s.
    tripped_s: Option<f64>,
    done: Option<BurstOutcome>,
}

impl LiveBurst {
    fn outcome(&self, elapsed_s: f64, stopped_by: StoppedBy) -> BurstOutcome {
        BurstOutcome {
            class: self.request.class,
            start_ns: self.start_ns,
            elapsed_ns: (elapsed_s * 1e9).round() as u64,
            hits: self.hits,
            extra_hits: 0,
            off_ns: 50_000,
            target_cpu_ns: (elapsed_s * 1e9).round() as u64,
            threads: 1,
            other_cost_ns: 0,
            stopped_by,
        }
    }
}

/// A busy single-threaded target whose classes are Poisson processes of its *own* time: each hit delays all.
struct Target {
    rng: StdRng,
    now_ns: f64,
    reaction_s: f64,
    attach_s: f64,
    classes: BTreeMap<ClassId, (f64, f64)>,
    /// Speed from its first instant on, slot by slot, over and over; none: 1.
    speeds: Vec<f64>,
}

impl Target {
    /// `classes`: (rate per own second, price of a hit in s).
    fn new(seed: u64, classes: &[(f64, f64)]) -> Self {
        let classes = classes.iter().enumerate().map(|(i, c)| (ClassId(i as u32), *c)).collect();
        Self { rng: rng(seed), now_ns: 1e9, reaction_s: 50e-6, attach_s: 1e-3, classes, speeds: Vec::new() }
    }

    fn survey_classes(&self) -> Vec<SurveyClass> {
        let class = |(class, (_, tau)): (&ClassId, &(f64, f64))| SurveyClass {
            class: *class,
            tau: Price::fixed(tau * 1e9),
            rho: 0.01,
            weight: 1.0,
        };
        self.classes.iter().map(class).collect()
    }

    /// Opens bursts in their order, runs each to its end; outcomes and the monitoring cost in s.
    fn run(&mut self, requests: &[BurstRequest]) -> (Vec<BurstOutcome>, f64) {
        let (mut outcomes, mut cost_s) = (Vec::new(), 0.0);
        let alone = |r: &BurstRequest| r.link == Link::Alone;
        for part in requests.chunk_by(|a, b| !alone(a) && !alone(b)) {
            let (ended, cost) = self.run_together(part);
            outcomes.extend(ended);
            cost_s += cost;
        }
        (outcomes, cost_s)
    }

    fn run_together(&mut self, requests: &[BurstRequest]) -> (Vec<BurstOutcome>, f64) {
        let mut live: Vec<LiveBurst> = requests
            .iter()
            .map(|r| LiveBurst {
                request: *r,
                start_ns: self.now_ns as u64,
                next_own_s: self.gap_s(0.0, self.classes[&r.class].0),
                hits: 0,
                extra: 0,
                tripped_s: None,
                done: None,
            })
            .collect();
        // Wall time = own time + cost of the hits so far.
        let (mut cost_s, mut own_s) = (0.0, 0.0);
        loop {
            // The next hit of any class that is still attached.
            let next = live
                .iter()
                .enumerate()
                .filter(|(_, l)| l.done.is_none())
                .map(|(i, l)| (i, l.next_own_s))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            let Some((i, hit_own_s)) = next else { break };
            let wall_s = hit_own_s + cost_s;
            let (rate, tau) = self.classes[&live[i].request.class];
            let gap = self.gap_s(wall_s, rate);
            // A link goes as a whole, when one of its classes has tripped.
            let link = live[i].request.link;
            let shared = matches!(link, Link::Shared(_));
            let cut_s = live
                .iter()
                .filter(|l| shared && l.request.link == link)
                .filter_map(|l| l.tripped_s)
                .fold(f64::INFINITY, f64::min)
                + self.reaction_s;
            let l = &mut live[i];
            l.next_own_s += gap;
            let window_s = l.request.window_ns as f64 * 1e-9;
            if let Some(at) = l.tripped_s {
                if wall_s > at + self.reaction_s {
                    let mut o = l.outcome(at, StoppedBy::Quota);
                    o.extra_hits = l.extra;
                    l.done = Some(o);
                    continue;
                }
                l.extra += 1;
            } else if wall_s > cut_s.min(window_s) {
                let window_s = cut_s.min(window_s);
                l.done = Some(l.outcome(window_s, StoppedBy::Window));
                continue;
            } else if l.hits == l.request.quota_hits {
                l.extra += 1;
            } else {
                l.hits += 1;
            }
            cost_s += tau;
            own_s = hit_own_s;
            if l.tripped_s.is_none() && l.hits == l.request.quota_hits && cut_s.is_infinite() {
                l.tripped_s = Some(own_s + cost_s);
            }
        }
        // Windows that a quota ended are over.
        let ended = |l: &LiveBurst| l.done.map_or(0.0, |o| (o.elapsed_ns + o.off_ns) as f64);
        let longest = live.iter().map(ended).fold(0.0, f64::max);
        self.now_ns += longest.max((own_s + cost_s) * 1e9).max(self.attach_s * 1e9 * requests.len() as f64);
        (live.into_iter().filter_map(|l| l.done).collect(), cost_s)
    }
}

struct Finished {
    survey: Survey,
    links: usize,
    ended: Ended,
    seconds: f64,
}

/// Runs a survey against a token bucket; checks that no batch costs more than the tokens that were there.
fn run<D: PartialEq>(
    target: &mut Target,
    config: SurveyConfig,
    budget: f64,
    plan: impl FnMut(&[RateEstimate]) -> Vec<D>,
) -> Finished {
    let classes = target.survey_classes();
    run_with(target, &classes, config, budget, plan)
}

fn run_with<D: PartialEq>(
    target: &mut Target,
    classes: &[SurveyClass],
    config: SurveyConfig,
    budget: f64,
    mut plan: impl FnMut(&[RateEstimate]) -> Vec<D>,
) -> Finished {
    let mut survey = Survey::new(config, 1.0, classes);
    let mut links = 0;
    let mut bucket = TokenBucket::new(OverheadBudget::Share(budget));
    let begin = target.now_ns;
    loop {
        let available = bucket.available_ns() * 1e-9;
        let from = target.now_ns;
        let cost_s = match survey.next_step(target.now_ns as u64, available, &mut plan) {
            Step::Done(ended) => {
                let seconds = (target.now_ns - begin) * 1e-9;
                let allowed = budget * seconds;
                assert!(survey.spent_s() <= allowed, "{} of {allowed} s", survey.spent_s());
                return Finished { survey, links, ended, seconds };
            }
            Step::Wait { cpu_s } => {
                assert!(cpu_s > available, "asked to wait for what is there");
                target.now_ns += 10e6;
                0.0
            }
            Step::Pause { until_ns } => {
                assert!(until_ns as f64 > target.now_ns, "asked to wait for what is over");
                target.now_ns = until_ns as f64;
                0.0
            }
            Step::Run(requests) => {
                assert!(!requests.is_empty());
                let distinct: BTreeSet<ClassId> = requests.iter().map(|r| r.class).collect();
                assert_eq!(distinct.len(), requests.len(), "one burst of a class at a time");
                links +=
                    requests.chunk_by(|a, b| a.link == b.link && matches!(a.link, Link::Shared(_))).count();
                let (outcomes, cost_s) = target.run(&requests);
                // What is open for long may take what the bucket earns meanwhile.
                let seconds = (target.now_ns - from) * 1e-9;
                assert!(
                    cost_s <= available + budget * seconds,
                    "spent {cost_s} of {available} in {seconds} s"
                );
                outcomes.into_iter().for_each(|o| survey.record(o));
                cost_s
            }
        };
        bucket.spend(cost_s * 1e9);
        bucket.accrue(target.now_ns - from, target.now_ns - from, cost_s * 1e9);
    }
}

/// A planner for which every change of a rate changes the plan: nothing but a tight interval will do.
fn curious(rates: &[RateEstimate]) -> Vec<u64> {
    rates.iter().map(|r| r.rate_hz.value.to_bits()).collect()
}

/// Traces what costs less than 0.2 % of a CPU.
fn cheap(rates: &[RateEstimate]) -> Vec<bool> {
    rates.iter().map(|r| r.rate_hz.value * r.tau_s < 0.002).collect()
}

const PUSH: f64 = 0.7e-6;
const STEPPED: f64 = 9.3e-6;

#[test]
fn unbiased_from_1e2_to_1e7_calls_a_second() {
    // One class of each decade and price, all at once: they slow each other.
    let truth: Vec<(f64, f64)> =
        (2..=7).flat_map(|d| [(10f64.powi(d), PUSH), (10f64.powi(d), STEPPED)]).collect();
    let runs = 150;
    let mut mean = vec![0.0; truth.len()];
    let mut held = 0;
    for seed in 0..runs {
        let mut target = Target::new(1_000 + seed, &truth);
        let config = SurveyConfig { time_limit_ns: 8_000_000_000, ..SurveyConfig::default() };
        let done = run(&mut target, config, 0.02, curious);
        for r in done.survey.rates() {
            let (rate, _) = truth[r.class.0 as usize];
            mean[r.class.0 as usize] += r.rate_hz.value / rate / runs as f64;
            held += u32::from(r.rate_hz.low <= rate && rate <= r.rate_hz.high);
        }
    }
    for ((rate, tau), m) in truth.iter().zip(&mean) {
        assert!((m - 1.0).abs() < 0.03, "rate {rate}, tau {tau}: bias {:.1} %", (m - 1.0) * 100.0);
    }
    let coverage = f64::from(held) / (runs as f64 * truth.len() as f64);
    assert!((0.93..=0.995).contains(&coverage), "{coverage}");
}

/// What a hundred classes over seven decades come to, of which the samples show every tenth.
struct Hundred {
    near: u32,
    all: u32,
    held: u32,
    good: u32,
    affordable: u32,
}

fn a_hundred(price: impl Fn(i32) -> f64) -> Hundred {
    let runs = 8;
    let truth: Vec<(f64, f64)> =
        (0..100).map(|i| (10f64.powf(-1.0 + 7.0 * f64::from(i) / 99.0), price(i))).collect();
    let mut sum = Hundred { near: 0, all: 0, held: 0, good: 0, affordable: 0 };
    for seed in 0..runs {
        let mut target = Target::new(2_000 + seed, &truth);
        let config = SurveyConfig {
            time_limit_ns: 5_000_000_000,
            // What 2 % of a CPU brings, and what the bucket holds.
            funds: SurveyFunds { income: 0.018, burst_limit_s: 0.004, ..SurveyFunds::default() },
            ..SurveyConfig::default()
        };
        let mut classes = target.survey_classes();
        classes.iter_mut().filter(|c| c.class.0 % 10 != 5).for_each(|c| c.rho = 0.0);
        let done = run_with(&mut target, &classes, config, 0.02, cheap);
        assert!(done.seconds <= 5.2, "{} s", done.seconds);
        assert!(done.survey.unmeasured().is_empty());
        // The hottest half four times, nobody of the others alone.
        assert!(done.links < 240, "{} links", done.links);
        for r in done.survey.rates() {
            let rate = truth[r.class.0 as usize].0;
            sum.all += 1;
            sum.near += u32::from((0.1..10.0).contains(&(r.rate_hz.value / rate)));
            sum.held += u32::from(r.rate_hz.low <= rate && rate <= r.rate_hz.high);
            if r.rate_hz.n >= 400 {
                sum.affordable += 1;
                sum.good += u32::from((r.rate_hz.value / rate - 1.0).abs() < 0.1);
            }
        }
    }
    sum.affordable /= runs as u32;
    sum.good /= runs as u32;
    sum
}

#[test]
fn a_hundred_classes_over_seven_decades_in_five_seconds_at_two_percent() {
    let cheap_sites = a_hundred(|_| PUSH);
    assert!(cheap_sites.affordable >= 38, "{} with 400 hits", cheap_sites.affordable);
    for sum in [cheap_sites, a_hundred(|i| if i % 3 == 0 { STEPPED } else { PUSH })] {
        let part = |n: u32, of: u32| f64::from(n) / f64::from(of);
        assert!(part(sum.near, sum.all) >= 0.95, "order of magnitude: {} of {}", sum.near, sum.all);
        assert!(part(sum.held, sum.all) >= 0.93, "truth in the interval: {} of {}", sum.held, sum.all);
        assert!(part(sum.good, sum.affordable) >= 0.93, "{} of {}", sum.good, sum.affordable);
    }
}

#[test]
fn unknown_classes_share_links_and_the_hot_one_leaves_them() {
    let truth: Vec<(f64, f64)> = (0..40).map(|i| (if i == 7 { 1e6 } else { 0.5 }, PUSH)).collect();
    let mut target = Target::new(9, &truth);
    let mut classes = target.survey_classes();
    classes.iter_mut().for_each(|c| c.rho = 0.0);
    let mut survey = Survey::new(SurveyConfig::default(), 1.0, &classes);
    let Step::Run(first) = survey.next_step(0, 1.0, cheap) else { panic!("no burst") };
    // Five links for forty classes.
    let links: BTreeSet<String> = first.iter().map(|r| format!("{:?}", r.link)).collect();
    assert_eq!((first.len(), links.len()), (40, 5));
    target.run(&first).0.into_iter().for_each(|o| survey.record(o));
    // Seven neighbours were cut short and not seen: they are looked at again, now on links of their own.
    let Step::Run(again) = survey.next_step(1, 1.0, cheap) else { panic!("no burst") };
    assert!(again.iter().all(|r| r.link == Link::Own && r.class.0 < 8 && r.class.0 != 7), "{again:?}");
    target.run(&again).0.into_iter().for_each(|o| survey.record(o));
    // The hot one alone, the others all together for long.
    let Step::Run(second) = survey.next_step(2, 1.0, cheap) else { panic!("no burst") };
    let hot: Vec<_> = second.iter().filter(|r| !matches!(r.link, Link::Shared(_))).collect();
    assert!(hot.len() == 1 && hot[0].class.0 == 7 && hot[0].link == Link::Alone);
    // 120, times what was drawn.
    assert!((80..=160).contains(&hot[0].quota_hits), "{hot:?}");
    assert!(second.iter().all(|r| r.class.0 == 7 || r.link == second[0].link && r.window_ns == 800_000_000));
    // Never seen is not never.
    let rates = survey.rates();
    let unseen = rates.iter().find(|r| r.rate_hz.n == 0).unwrap();
    assert!((unseen.rate_hz.value - 0.5 / 0.05).abs() < 1.0 && unseen.rate_hz.low == 0.0);
}

#[test]
fn effort_goes_to_the_classes_that_decide() {
    // The border is at 2,857 calls/s for a push; one class lies on it, the others far off.
    let truth = [(30.0, PUSH), (2_857.0, PUSH), (1e6, PUSH), (50.0, STEPPED), (1e5, STEPPED)];
    let mut target = Target::new(3, &truth);
    let done = run(&mut target, SurveyConfig::default(), 0.02, cheap);
    let bursts: Vec<u32> = done.survey.rates().iter().map(|r| r.bursts).collect();
    assert!(bursts[1] >= 7, "{bursts:?}");
    assert!([0, 2, 4].iter().all(|&i| bursts[i] <= 4), "{bursts:?}");
    // Without a class on the border the plan is stable soon.
    let truth = [(30.0, PUSH), (1e6, PUSH), (20.0, STEPPED)];
    let done = run(&mut Target::new(4, &truth), SurveyConfig::default(), 0.02, cheap);
    assert_eq!(done.ended, Ended::Stable);
    assert!(done.seconds < 2.0, "{} s", done.seconds);
}

#[test]
fn limits_end_it() {
    let truth = [(1e5, PUSH), (1e4, STEPPED)];
    let time = SurveyConfig { time_limit_ns: 200_000_000, ..SurveyConfig::default() };
    let done = run(&mut Target::new(5, &truth), time, 0.02, curious);
    assert_eq!(done.ended, Ended::Time);
    let rounds = SurveyConfig { rounds: 2, tight: 0.0, ..SurveyConfig::default() };
    let done = run(&mut Target::new(5, &truth), rounds, 0.02, curious);
    assert_eq!((done.ended, done.survey.round()), (Ended::Rounds, 2));
    let poor = SurveyConfig { cpu_limit_s: 1e-3, tight: 0.0, ..SurveyConfig::default() };
    let done = run(&mut Target::new(5, &truth), poor, 0.02, curious);
    assert_eq!(done.ended, Ended::Budget);
    assert!(done.survey.spent_s() <= 1e-3);
    let nobody = run(&mut Target::new(5, &[]), SurveyConfig::default(), 0.02, curious);
    assert_eq!(nobody.ended, Ended::Stable);
}

#[test]
fn aborted_classes_are_left_out_and_strangers_ignored() {
    let class = |id| SurveyClass { class: ClassId(id), tau: Price::fixed(700.0), rho: 0.0, weight: 1.0 };
    let mut survey = Survey::new(SurveyConfig::default(), 1.0, &[class(0), class(1)]);
    let Step::Run(requests) = survey.next_step(0, 1.0, curious) else { panic!("no burst") };
    assert_eq!(requests.len(), 2);
    let outcome = |class, stopped_by| BurstOutcome {
        class: ClassId(class),
        start_ns: 0,
        elapsed_ns: 50_000_000,
        hits: 50,
        extra_hits: 0,
        off_ns: 0,
        target_cpu_ns: 50_000_000,
        threads: 1,
        other_cost_ns: 0,
        stopped_by,
    };
    survey.record(outcome(9, StoppedBy::Window));
    survey.record(outcome(0, StoppedBy::Aborted));
    survey.record(outcome(1, StoppedBy::Window));
    assert_eq!(survey.unmeasured(), [ClassId(0)]);
    let rates = survey.rates();
    assert_eq!((rates.len(), rates[0].class, rates[0].rate_hz.n), (1, ClassId(1), 50));
    // The aborted burst's 50 hits slowed the other: 50 ms less 100 hits.
    assert!((rates[0].rate_hz.value - 50.0 / (0.05 - 100.0 * 0.7e-6)).abs() < 1e-6);
    let Step::Run(requests) = survey.next_step(1, 1.0, curious) else { panic!("no burst") };
    assert_eq!(requests.iter().map(|r| r.class.0).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_window_without_length_is_no_rate_and_is_opened_again() {
    let class = SurveyClass { class: ClassId(0), tau: Price::fixed(700.0), rho: 0.5, weight: 1.0 };
    let mut survey = Survey::new(SurveyConfig::default(), 1.0, &[class]);
    let Step::Run(requests) = survey.next_step(0, 1.0, curious) else { panic!("no burst") };
    assert_eq!(requests.len(), 1);
    // The breaker took the link while the window was being opened.
    survey.record(BurstOutcome { extra_hits: 1_024, ..outcome(0, 0, 0, StoppedBy::Quota) });
    assert!(survey.rates().is_empty() && survey.unmeasured() == [ClassId(0)]);
    let Step::Run(requests) = survey.next_step(1, 1.0, curious) else { panic!("not opened again") };
    assert_eq!(requests[0].class, ClassId(0));
}

#[test]
fn many_classes_are_decided_together() {
    let truth: Vec<(f64, f64)> = (0..400).map(|i| (10.0 + f64::from(i), PUSH)).collect();
    let mut calls = 0;
    let config = SurveyConfig { time_limit_ns: 1_000_000_000, ..SurveyConfig::default() };
    let _ = run(&mut Target::new(6, &truth), config, 0.5, |rates: &[RateEstimate]| {
        calls += 1;
        cheap(rates)
    });
    assert!(calls <= 3 * 6, "{calls} plans");
}

/// One burst of the only class: `None` if none is asked for.
fn one_burst(survey: &mut Survey, now_ns: u64, tokens_s: f64) -> Option<BurstRequest> {
    match survey.next_step(now_ns, tokens_s, curious) {
        Step::Run(requests) => requests.first().copied(),
        Step::Wait { .. } | Step::Pause { .. } | Step::Done(_) => None,
    }
}

/// How a burst on one thread ended that nobody disturbed.
fn outcome(class: u32, hits: u64, elapsed_ns: u64, stopped_by: StoppedBy) -> BurstOutcome {
    BurstOutcome {
        class: ClassId(class),
        start_ns: 0,
        elapsed_ns,
        hits,
        extra_hits: 0,
        off_ns: 10_000,
        target_cpu_ns: 0,
        threads: 1,
        other_cost_ns: 0,
        stopped_by,
    }
}

#[test]
fn windows_without_length_do_not_take_a_rate_away() {
    let class = SurveyClass { class: ClassId(0), tau: Price::fixed(700.0), rho: 0.5, weight: 1.0 };
    let mut survey = Survey::new(SurveyConfig::default(), 1.0, &[class]);
    let first = one_burst(&mut survey, 0, 1.0).expect("a first look");
    let outcome = |hits, elapsed_ns| outcome(0, hits, elapsed_ns, StoppedBy::Quota);
    survey.record(outcome(first.quota_hits, 1_000_000));
    let known = survey.rates()[0].rate_hz.value;
    // From now on the breaker takes every link while its window is being opened.
    let mut asked = 0;
    while one_burst(&mut survey, 1_000_000 * asked, 1.0).is_some() && asked < 100 {
        survey.record(outcome(0, 0));
        asked += 1;
    }
    assert!((3..100).contains(&asked), "asked {asked} times: never, or for ever");
    let rates = survey.rates();
    assert!(rates.len() == 1 && rates[0].seen, "{rates:?}");
    assert!((rates[0].rate_hz.value / known - 1.0).abs() < 1e-9, "{rates:?}, {known}");
}

#[test]
fn a_link_is_paid_for_once_however_many_share_it() {
    for n in [9, 30, 500] {
        let class = |i| SurveyClass { class: ClassId(i), tau: Price::fixed(700.0), rho: 0.0, weight: 1.0 };
        let classes: Vec<SurveyClass> = (0..n).map(class).collect();
        let config = SurveyConfig { attach_cost_s: 1e-3, own_links: 0, batch: 1, ..SurveyConfig::default() };
        let mut survey = Survey::new(config, 1.0, &classes);
        let Step::Run(requests) = survey.next_step(0, 1e3, curious) else { panic!("no burst") };
        assert!(requests.len() > 1 && requests.iter().all(|r| r.link == requests[0].link), "{requests:?}");
        for request in &requests {
            survey.record(outcome(request.class.0, 0, request.window_ns, StoppedBy::Window));
        }
        assert!(
            (survey.spent_s() - 1e-3).abs() < 1e-12,
            "{} s for {} classes",
            survey.spent_s(),
            requests.len()
        );
    }
}
