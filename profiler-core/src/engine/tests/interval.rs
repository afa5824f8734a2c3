use crate::burst::BurstPrices;
use crate::class::{ClassId, SiteClass};
use crate::clients::overhead::Subject;
use crate::clients::survey::Settings as SurveySettings;
use crate::clients::trace::problem::Settings as TraceSettings;
use crate::cost::{CostModel, Price};
use crate::engine::input::{Ended, Input, Interval, SlowLook};
use crate::engine::{Command, Measuring, Run, Settings, Times};
use crate::plan::Objective;
use crate::recording::{Charge, WindowKind, WindowRow, plain_window};
use crate::run::order::{Order, Purpose};
use crate::run::threads::ThreadUse;
use crate::run::view::{LinkView, View, plain_class};
use crate::units::OverheadBudget;

const MS: u64 = 1_000_000;

/// A run that begins at 0 at such a budget, where a sample costs 10 us.
pub(in crate::engine) fn run(budget: OverheadBudget) -> Run {
    let prices = CostModel::assumed();
    let settings = Settings {
        budget,
        cpus: 4,
        thread_share: None,
        agent_cpu: 0.02,
        sample: Price::fixed(10_000.0),
        plan_only: false,
        trace: TraceSettings {
            only_named: false,
            fixed_rate_hz: None,
            slow_links: false,
            links_wait: true,
            prices: BurstPrices::new(&prices, 4),
            objective: Objective::Information,
            horizon_s: 60.0,
        },
        survey: SurveySettings {
            longest_ns: 3_000 * MS,
            first_plan_ns: 4_500 * MS,
            attach_s: 1e-4,
            detach_delay_s: 1e-2,
            own_links: 24,
        },
        seed: 1,
    };
    let times = Times { start_ns: 0, end_ns: None, warmup_until_ns: 1_500 * MS, discover_ns: 1_500 * MS };
    Run::new(settings, times, prices, 0)
}

/// The end of an interval in which the target has worked so far on one CPU.
fn interval(run: &mut Run, view: &mut View, now_ms: u64) -> Vec<Command> {
    view.now_ns = now_ms * MS;
    run.step(Input::Interval(Box::new(Interval { cpu_ns: now_ms * MS, ..Interval::default() })), view)
}

#[test]
fn hits_of_a_link_that_was_given_up_while_it_was_made_are_charged_once() {
    let mut run = run(OverheadBudget::Share(0.02));
    let mut view = View { classes: vec![plain_class(0, 1_000.0)], ..View::default() };
    view.classes[0].link = LinkView::Opening;
    view.classes[0].attempted = 100;
    interval(&mut run, &mut view, 100);
    // 50 more hits, and it is off again.
    view.classes[0].link = LinkView::Off;
    view.classes[0].attempted = 150;
    interval(&mut run, &mut view, 200);
    interval(&mut run, &mut view, 300);
    assert_eq!(run.ledger().account(Charge::Traced).units, 150);
    assert_eq!(run.ledger().class_account(ClassId(0)).cost_ns, 150e3);
}

#[test]
fn samples_are_within_the_budget_before_there_is_a_plan() {
    let period = |budget| {
        let commands = interval(&mut run(budget), &mut View::default(), 100);
        commands.iter().find_map(|command| match command {
            Command::Period(ns) => Some(*ns),
            _ => None,
        })
    };
    // 99 Hz take 0.99 ms/s.
    assert_eq!(period(OverheadBudget::Share(0.02)), Some(10_101_010));
    // 0.25 of 0.5 ms/s.
    assert_eq!(period(OverheadBudget::CpuPerSecond(0.0005)), Some(40_000_000));
    // A rate that was asked for, too: 10 of 20 ms/s.
    let mut asked = run(OverheadBudget::Share(0.02));
    asked.settings.trace.fixed_rate_hz = Some(5_000.0);
    let commands = interval(&mut asked, &mut View::default(), 100);
    assert!(commands.iter().any(|c| matches!(c, Command::Period(1_000_000))), "{commands:?}");
    // One that was planned stays.
    let mut held = run(OverheadBudget::Share(0.02));
    let mut view = View { classes: vec![plain_class(0, 1_000.0)], ..View::default() };
    view.classes[0].traits.named = true;
    held.step(Input::BeforeStart, &mut view);
    held.step(Input::Found(vec![(ClassId(0), SiteClass::Push)]), &mut view);
    assert_eq!(held.trace.plans(), 1);
    held.step(Input::Begins, &mut view);
    let commands = interval(&mut held, &mut view, 200);
    assert!(!commands.iter().any(|c| matches!(c, Command::Period(_))), "{commands:?}");
}

/// What a run that was asked for `asked_hz` says of events per CPU in each second, at these rates in force: its target uses one of four CPUs.
fn per_cpu_at(
    asked_hz: Option<f64>,
    rates_hz: &[f64],
    (switches, threads): (u64, u32),
) -> Vec<Option<String>> {
    let mut run = run(OverheadBudget::Share(0.02));
    run.settings.trace.fixed_rate_hz = asked_hz;
    run.finding.sampling_started = true;
    run.accounts.own_cpu = 1.0;
    let mut view = View::default();
    let mut told = Vec::new();
    for (rate_hz, second) in rates_hz.iter().zip(1_u64..) {
        view.now_ns = second * 1_000 * MS;
        view.samples.rate_hz = *rate_hz;
        let (tids, switches) = (Some((1..=threads).collect()), Some((switches, 1_000 * MS)));
        let commands = run.step(Input::Slow(SlowLook { tids, switches, ..SlowLook::default() }), &mut view);
        let text = commands.into_iter().find_map(|command| match command {
            Command::SampleCpus(text) => Some(text),
            _ => None,
        });
        view.samples.per_cpu |= text.is_some();
        told.push(text);
    }
    told
}

#[test]
fn events_go_per_cpu_by_the_rate_in_force() {
    let goes = |asked_hz, rates_hz: &[f64], of| -> Vec<bool> {
        per_cpu_at(asked_hz, rates_hz, of).iter().map(Option::is_some).collect()
    };
    // 4,000 switches/s take 8 ms/s, a quarter of the budget is 5. At 5,000 Hz others would pay 15 % of a CPU where 4 % are allowed, at 300 Hz 0.9 %.
    assert_eq!(goes(Some(5_000.0), &[5_000.0, 300.0, 300.0], (4_000, 1)), [false, true, false], "once");
    // A later plan may have a higher rate, to that bound.
    let told = per_cpu_at(Some(5_000.0), &[300.0], (4_000, 1));
    assert!(told[0].as_ref().unwrap().contains("up to 4.000 %"), "{told:?}");
    // Whatever was asked for.
    assert_eq!(goes(None, &[300.0], (4_000, 1)), [true]);
    // The bound of others: 1,333 Hz.
    assert_eq!(goes(None, &[1_340.0, 1_330.0], (4_000, 1)), [false, true]);
    // 2 ms/s are bearable; of too many threads nothing else is.
    assert_eq!(goes(Some(5_000.0), &[300.0], (1_000, 500)), [false]);
    assert_eq!(goes(Some(5_000.0), &[5_000.0], (0, 501)), [true]);
}

/// A target that uses a twentieth of a CPU and is switched 950 times a second: each hit of 1 us is the first after a rest of 1 ms.
#[test]
fn hits_after_a_rest_are_charged_what_they_cost() {
    let mut run = run(OverheadBudget::Share(0.02));
    run.accounts.prices.rested = Price::fixed(2_400.0);
    run.accounts.own_cpu = 0.05;
    let mut view = View { classes: vec![plain_class(0, 1_000.0)], ..View::default() };
    view.classes[0].link = LinkView::Open(WindowKind::Trace);
    let rests = |run: &mut Run, view: &mut View, switches: u64| {
        let uses = vec![ThreadUse { tid: 1, cpu_per_s: 0.05, switches_per_s: switches as f64 }];
        let switches = Some((switches, 1_000 * MS));
        let look = SlowLook { switches, uses, ..SlowLook::default() };
        let commands = run.step(Input::Slow(look), view);
        commands.into_iter().find_map(|command| match command {
            Command::Rests(rests) => Some(rests),
            _ => None,
        })
    };
    view.now_ns = 1_000 * MS;
    let told = rests(&mut run, &mut view, 950).expect("it rests from now on");
    view.now_ns = 2_000 * MS;
    assert_eq!(rests(&mut run, &mut view, 951), None, "as before");
    // 1 ms of rest before each of 950 of them.
    assert!((told.added_ns(0.05 / 1_000.0) - 2_400.0 * 0.95).abs() < 1.0, "{told:?}");
    view.classes[0].prices.rests = told;
    view.classes[0].attempted = 950;
    interval(&mut run, &mut view, 2_100);
    let charged = run.ledger().account(Charge::Traced).cost_ns;
    assert!((charged - 950.0 * 3_400.0).abs() < 1_000.0, "{charged}");
}

#[test]
fn a_program_that_was_held_is_not_taken_to_be_switched_seldom() {
    let mut run = run(OverheadBudget::Share(0.02));
    let mut view = View::default();
    run.step(Input::BeforeStart, &mut view);
    view.now_ns = 900 * MS;
    run.step(Input::Begins, &mut view);
    view.now_ns = 1_000 * MS;
    // 3,000 in the 100 ms in which it ran; the machine counts since it was made.
    let switches = Some((3_000, 1_000 * MS));
    run.step(Input::Slow(SlowLook { switches, ..SlowLook::default() }), &mut view);
    assert!((run.accounts.switches.per_s - 30_000.0).abs() < 1e-6, "{}", run.accounts.switches.per_s);
    // A burst of a moment is no rate.
    view.now_ns = 1_010 * MS;
    let switches = Some((4_000, 10 * MS));
    run.step(Input::Slow(SlowLook { switches, ..SlowLook::default() }), &mut view);
    assert!((run.accounts.switches.per_s - 30_000.0).abs() < 1e-6, "{}", run.accounts.switches.per_s);
}

#[test]
fn a_program_that_was_held_earns_from_its_start_on() {
    let mut run = run(OverheadBudget::Share(0.02));
    let mut view = View::default();
    run.step(Input::BeforeStart, &mut view);
    view.now_ns = 2_000 * MS;
    let commands = run.step(Input::Begins, &mut view);
    // Nobody knows yet how often it is switched, which would be paid for.
    assert!(!commands.iter().any(|command| matches!(command, Command::Period(_))), "{commands:?}");
    view.now_ns = 2_100 * MS;
    let interval_seen = Interval { cpu_ns: 100 * MS, ..Interval::default() };
    run.step(Input::Interval(Box::new(interval_seen)), &mut view);
    // 20 ms/s, of which the bucket holds a quarter of a second.
    let bucket = run.ledger().bucket();
    assert!((bucket.rate() - 0.02).abs() < 1e-12 && (bucket.available_ns() - 2e6).abs() < 1.0, "{bucket:?}");
}

/// Of a class that is hit 10,000 times a second at 1 us each, and another one that counts the progress metric: `seen` samples of an interval of 10, at
/// 100 Hz, lie in traps of the class `of`. What is charged for the last interval, ns, and whether the run said so.
fn charged_with(of: Option<ClassId>, seen: impl Fn(u64) -> u64) -> (f64, bool) {
    let mut run = run(OverheadBudget::Share(0.05));
    let subject = Subject { name: "calls".to_owned(), classes: vec![METRIC], ..Subject::default() };
    run.measure(Measuring::new(subject, None, 0, 1));
    let mut view =
        View { classes: vec![plain_class(0, 1_000.0), plain_class(1, 1_000.0)], ..View::default() };
    view.classes[0].link = LinkView::Open(crate::recording::WindowKind::Trace);
    view.samples.rate_hz = 100.0;
    let mut said = false;
    let mut before = 0.0;
    for i in 1..=400 {
        view.classes[0].attempted = i * 1_000;
        view.now_ns = i * 100 * MS;
        before = run.ledger().account(Charge::Traced).cost_ns;
        let in_traps = vec![(of, seen(i))];
        let interval = Interval { cpu_ns: i * 100 * MS, samples: 10, in_traps, ..Interval::default() };
        let commands = run.step(Input::Interval(Box::new(interval)), &mut view);
        said |=
            commands.iter().any(|c| matches!(c, Command::Detail(text) if text.contains("samples in traps")));
    }
    (run.ledger().account(Charge::Traced).cost_ns - before, said)
}

const METRIC: ClassId = ClassId(1);

#[test]
fn hits_are_charged_what_samples_in_traps_say_that_they_take() {
    // 1 % of the CPU time, so one sample in ten intervals.
    let (as_calibrated, said) = charged_with(Some(ClassId(0)), |i| u64::from(i % 10 == 0));
    assert!((as_calibrated - 1e6).abs() < 1.0 && !said, "{as_calibrated} {said}");
    let (three_times, said) = charged_with(Some(ClassId(0)), |i| 3 * u64::from(i % 10 == 0));
    assert!(three_times > 2.0e6 && three_times <= 3e6 && said, "{three_times} {said}");
}

#[test]
fn samples_that_may_be_the_metrics_say_nothing_of_hits() {
    for of in [Some(METRIC), None] {
        let (charged, said) = charged_with(of, |i| 3 * u64::from(i % 10 == 0));
        assert!((charged - 1e6).abs() < 1.0 && !said, "{of:?}: {charged} {said}");
    }
}

/// Cost of the breakpoint that outlives a window of 41 us with 8 hits, after which `gated` more came in the 3 ms until the links went, ms.
fn tail_ms(gated: u64) -> f64 {
    let seen = plain_window(ClassId(0), WindowKind::Survey, (10 * MS, 10 * MS + 41_000), 8 + gated);
    let ended = Ended {
        row: WindowRow { kept: 8, gated, tripped: true, ..seen },
        number: 1,
        tripped_itself: true,
        watched_ns: 13 * MS + 41_000,
        closed_ns: 20 * MS,
        age_ns: 9 * MS,
        expedited: false,
        remark: None,
        durations: Vec::new(),
        class: plain_class(0, 1_000.0),
    };
    let mut run = run(OverheadBudget::Share(0.2));
    let mut view = View { classes: vec![plain_class(0, 1_000.0)], now_ns: 21 * MS, ..View::default() };
    run.step(Input::Ended(vec![ended]), &mut view);
    run.ledger().account(Charge::Attach).cost_ns * 1e-6
}

#[test]
fn a_breakpoint_that_outlives_its_window_costs_what_hits_cost_until_the_program_was_off() {
    // For a grace period of 10 ms: 631 us of 3.041 ms, not of 41 us.
    assert!((tail_ms(623) - 631.0 / 3_041.0 * 10.0).abs() < 0.01, "{}", tail_ms(623));
    // The target was kept from running for these 3 ms: it goes on as in the window.
    assert!((tail_ms(0) - 8.0 / 41.0 * 10.0).abs() < 0.01, "{}", tail_ms(0));
}

/// A burst of a function waits while its pair of sites measures, and while that is asked for; another function's does not.
#[test]
fn no_burst_runs_between_the_stamps_of_a_pair() {
    let asked = |pair_is: LinkView, asks_pair: bool| {
        let mut run = run(OverheadBudget::Share(0.02));
        let mut view =
            View { classes: (0..3).map(|id| plain_class(id, 1_000.0)).collect(), ..View::default() };
        view.classes[1].traits.stamps_of = Some(ClassId(0));
        view.classes[1].link = pair_is;
        let burst = |id: u32| Order::Open {
            class: ClassId(id),
            kind: WindowKind::Burst,
            quota: 100,
            purpose: Purpose::Burst(5 * MS),
        };
        let pair = Order::Open {
            class: ClassId(1),
            kind: WindowKind::Burst,
            quota: 100,
            purpose: Purpose::Activity(0),
        };
        let orders = asks_pair.then_some(pair).into_iter().chain([burst(0), burst(2)]).collect();
        run.follow(orders, &view);
        let wanted = run.commands.iter().filter_map(|command| match command {
            Command::Attach(attach) => Some(attach.wanted.iter().map(|w| w.0.0).collect::<Vec<u32>>()),
            _ => None,
        });
        wanted.flatten().collect::<Vec<u32>>()
    };
    assert_eq!(asked(LinkView::Off, false), [0, 2]);
    assert_eq!(asked(LinkView::Off, true), [1, 2]);
    for is in [LinkView::Opening, LinkView::Closing(WindowKind::Burst)] {
        assert_eq!(asked(is, false), [2]);
    }
}
