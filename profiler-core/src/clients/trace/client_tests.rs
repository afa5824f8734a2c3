use super::client::{EndedWindow, Seen, Trace};
use super::planning::{Planned, make};
use super::planning_tests::{class, ledger, rates, settings, view};
use super::problem::Known;
use crate::class::{ClassId, ExitMode, RecordKind};
use crate::controller::Tick;
use crate::estimate::Estimate;
use crate::recording::plain_window;
use crate::recording::{ChangeKind, WindowKind, WindowRow};
use crate::run::arbiter::{Arbiter, Claims};
use crate::run::order::{Ending, Order, Purpose};
use crate::run::outcome::{NotOpened, Outcome};
use crate::run::suspension::{Reason, Suspension};
use crate::run::view::{LinkView, View};

const S: u64 = 1_000_000_000;
const TRACED: ClassId = ClassId(0);
const BURST: ClassId = ClassId(1);
const UNKNOWN: ClassId = ClassId(2);

/// One class that is traced, one in bursts, and one of which nothing is known.
fn classes() -> View {
    let mut classes = vec![class(0), class(1), class(2)];
    classes[0].traits.named = true;
    view(classes)
}

fn planned(trace: &Trace, view: &View) -> Planned {
    let (ledger, names) = (ledger(), ["f0", "f1", "f2"]);
    let known = Known {
        view,
        names: &names,
        arbiter: Arbiter::new(&ledger, 1.0),
        claims: &Claims::default(),
        operations: false,
        bounds: None,
        settings: trace.settings(),
        shares: trace.shares(),
        timed: trace.timed(),
        spreads: trace.spreads(),
        hung: &[],
    };
    make(&known, &rates(&[1_000.0, 1e6]), trace.plans() + 1).unwrap()
}

fn orders(
    trace: &mut Trace,
    view: &View,
    suspension: Suspension,
    step: impl FnOnce(&mut Trace, &Seen<'_>, &mut Vec<Order>),
) -> Vec<Order> {
    let mut orders = Vec::new();
    let seen = Seen { view, names: &["f0", "f1", "f2"], suspension };
    step(trace, &seen, &mut orders);
    orders
}

/// A client whose first plan runs, and what it ordered.
fn started(view: &View) -> (Trace, Vec<Order>) {
    let mut trace = Trace::new(settings(), 1);
    let planned = planned(&trace, view);
    let given = orders(&mut trace, view, Suspension::NONE, |trace, seen, orders| {
        trace.adopt(&planned, 1.0, 5e6, seen, orders);
    });
    (trace, given)
}

/// A tick at `now_ns` with a full bucket.
fn tick(trace: &mut Trace, view: &View, suspension: Suspension, now_ns: u64) -> Vec<Order> {
    tick_at(trace, view, suspension, now_ns, 1.0)
}

fn tick_at(trace: &mut Trace, view: &View, suspension: Suspension, now_ns: u64, slowdown: f64) -> Vec<Order> {
    let tick = Tick {
        now_ns,
        elapsed_ns: 100_000_000,
        tokens_ns: 5e6,
        capacity_ns: 5e6,
        reserved_ns: 0.0,
        income: 0.02,
        spent: 0.0,
        other_cost: 0.0,
        sample_cost: 0.0,
        sampling_hz: 99.0,
        hits: &[(TRACED, 100)],
        target_cpu: 1.0,
        slowdown,
    };
    orders(trace, view, suspension, |trace, seen, orders| trace.tick(&tick, seen, orders))
}

/// Runs until something is opened for this purpose: the time, its class, quota and purpose.
fn until_open(
    trace: &mut Trace,
    view: &View,
    is_it: impl Fn(Purpose) -> bool,
) -> (u64, ClassId, u64, Purpose) {
    for i in 1..600 {
        let now_ns = i * S / 10;
        for order in tick(trace, view, Suspension::NONE, now_ns) {
            if let Order::Open { class, quota, purpose, .. } = order
                && is_it(purpose)
            {
                return (now_ns, class, quota, purpose);
            }
        }
    }
    panic!("nothing was opened");
}

fn is_burst(purpose: Purpose) -> bool {
    matches!(purpose, Purpose::Burst(_))
}

fn is_opened(order: &Order, id: ClassId) -> bool {
    matches!(order, Order::Open { class, kind: WindowKind::Trace, purpose: Purpose::Trace, .. } if *class == id)
}

#[test]
fn a_plan_that_is_put_to_work_opens_what_it_traces() {
    let mut view = classes();
    let (trace, given) = started(&view);
    assert!(given.iter().any(|o| is_opened(o, TRACED)), "{given:?}");
    assert!(given.iter().any(|o| matches!(o, Order::Period(ns) if *ns > 0)), "{given:?}");
    assert!(!given.iter().any(|o| is_opened(o, BURST) || is_opened(o, UNKNOWN)), "{given:?}");
    assert_eq!(trace.plans(), 1);
    // 1 ms/s is traced; bursts have what is left.
    assert!(trace.claim() > 0.001 && trace.claim() <= 0.018 + 1e-9, "{}", trace.claim());
    // What is open already goes on, with another quota.
    view.classes[0].link = LinkView::Open(WindowKind::Trace);
    let (_, given) = started(&view);
    assert!(given.iter().any(|o| matches!(o, Order::Quota(TRACED, hits) if *hits > 0)), "{given:?}");
    assert!(!given.iter().any(|o| is_opened(o, TRACED)), "{given:?}");
}

#[test]
fn a_traced_class_whose_link_is_gone_comes_back_unless_links_are_made_anew() {
    let view = classes();
    let (mut trace, _) = started(&view);
    let given = tick(&mut trace, &view, Suspension::NONE, S);
    assert!(given.iter().any(|o| is_opened(o, TRACED)), "{given:?}");
    let rearm = Suspension::NONE.with(Reason::Rearm, true);
    let given = tick(&mut trace, &view, rearm, 2 * S);
    assert!(!given.iter().any(|o| is_opened(o, TRACED)), "{given:?}");
    assert!(given.iter().any(|o| matches!(o, Order::Quota(TRACED, _))), "{given:?}");
}

#[test]
fn a_burst_ends_on_time_and_once() {
    let view = classes();
    let (mut trace, _) = started(&view);
    let (now_ns, class, _, purpose) = until_open(&mut trace, &view, is_burst);
    let Purpose::Burst(window_ns) = purpose else { panic!("{purpose:?}") };
    assert_eq!(class, BURST);
    let ends_at = |trace: &mut Trace, now_ns: u64, open: bool| {
        let mut orders = Vec::new();
        trace.end_bursts(now_ns, |_| open, &mut orders);
        orders
    };
    // No clock runs before it is open.
    assert_eq!(ends_at(&mut trace, now_ns + 10 * S, true), []);
    let start_ns = now_ns + 3_000_000;
    trace.heed(&Outcome { number: 0, class, purpose, opened: Ok(start_ns) }, start_ns);
    assert!(trace.is_quiet(start_ns + window_ns) && !trace.is_quiet(start_ns + window_ns + 1));
    assert_eq!(ends_at(&mut trace, start_ns + window_ns - 1, true), []);
    assert_eq!(ends_at(&mut trace, start_ns + window_ns, true), [Order::Close(BURST, Ending::Drain)]);
    assert_eq!(ends_at(&mut trace, start_ns + window_ns, false), []);
    // One that its quota has ended is not closed again.
    trace.heed(&Outcome { number: 0, class, purpose, opened: Ok(start_ns) }, start_ns);
    assert_eq!(ends_at(&mut trace, start_ns, false), []);
    assert_eq!(ends_at(&mut trace, u64::MAX, true), []);
}

#[test]
fn what_was_given_up_while_it_waited_is_stale() {
    let view = classes();
    let (mut trace, _) = started(&view);
    let (now_ns, class, quota, purpose) = until_open(&mut trace, &view, is_burst);
    assert!(trace.still_wants(class, quota, purpose));
    let refused = |why| Outcome { number: 0, class, purpose, opened: Err(why) };
    trace.heed(&refused(NotOpened::NotNow), now_ns);
    assert!(!trace.still_wants(class, quota, purpose), "it comes again at its next time");
    // Others' windows are not its own to give up.
    for purpose in [Purpose::Survey(1), Purpose::Operation, Purpose::Metric] {
        assert!(trace.still_wants(class, quota, purpose));
    }
    assert!(trace.still_wants(TRACED, 1, Purpose::Trace) && !trace.still_wants(BURST, 1, Purpose::Trace));
}

#[test]
fn a_trial_that_cannot_be_had_is_given_up_and_comes_again() {
    let view = classes();
    let (mut trace, _) = started(&view);
    let (now_ns, class, quota, purpose) = until_open(&mut trace, &view, |p| p == Purpose::Trial);
    assert_eq!(class, UNKNOWN);
    assert!(trace.still_wants(class, quota, purpose));
    trace.heed(&Outcome { number: 0, class, purpose, opened: Err(NotOpened::Refused) }, now_ns);
    assert!(!trace.still_wants(class, quota, purpose) && !trace.is_attached(class));
    let (_, again, ..) = until_open(&mut trace, &view, |p| p == Purpose::Trial);
    assert_eq!(again, UNKNOWN);
}

#[test]
fn a_trial_whose_last_link_is_still_being_closed_does_not_stop_all_others() {
    let mut view = classes();
    let (mut trace, _) = started(&view);
    let is_trial =
        |order: &Order| matches!(order, Order::Open { class: UNKNOWN, purpose: Purpose::Trial, .. });
    // Bursts are answered, so that they hold no tokens.
    let turn = |trace: &mut Trace, view: &View| {
        let given = tick(trace, view, Suspension::NONE, view.now_ns);
        for order in &given {
            if let Order::Open { class: BURST, purpose, .. } = *order {
                trace.heed(
                    &Outcome { number: 0, class: BURST, purpose, opened: Err(NotOpened::NotNow) },
                    view.now_ns,
                );
            }
        }
        given
    };
    view.classes[2].link = LinkView::Closing(WindowKind::Burst);
    for i in 1..100 {
        view.now_ns = i * S / 10;
        let given = turn(&mut trace, &view);
        assert!(!given.iter().any(is_trial), "{given:?}");
        assert!(!trace.is_attached(UNKNOWN), "nobody would tell what became of it");
    }
    view.classes[2].link = LinkView::Off;
    let found = (100..200).any(|i| {
        view.now_ns = i * S / 10;
        turn(&mut trace, &view).iter().any(is_trial)
    });
    assert!(found);
}

#[test]
fn a_plan_attaches_nothing_while_links_are_made_anew() {
    let view = classes();
    let mut trace = Trace::new(settings(), 1);
    let planned = planned(&trace, &view);
    let rearm = Suspension::NONE.with(Reason::Rearm, true);
    let given = orders(&mut trace, &view, rearm, |trace, seen, orders| {
        trace.adopt(&planned, 1.0, 5e6, seen, orders);
    });
    assert!(!given.iter().any(|order| is_opened(order, TRACED)), "{given:?}");
    let after = tick(&mut trace, &view, Suspension::NONE, S);
    assert!(after.iter().any(|order| is_opened(order, TRACED)), "{after:?}");
}

#[test]
fn a_traced_class_that_must_wait_keeps_its_place_and_one_that_is_refused_does_not() {
    let view = classes();
    for (why, stays) in [
        (NotOpened::NotNow, true),
        (NotOpened::Closed, true),
        (NotOpened::Tripped, true),
        (NotOpened::Refused, false),
        (NotOpened::Unmapped, false),
    ] {
        let (mut trace, _) = started(&view);
        trace.heed(&Outcome { number: 0, class: TRACED, purpose: Purpose::Trace, opened: Err(why) }, S);
        assert_eq!(trace.is_attached(TRACED), stays, "{why:?}");
        assert_eq!(trace.still_wants(TRACED, 1, Purpose::Trace), stays, "{why:?}");
    }
}

#[test]
fn a_new_plan_is_wanted_once_and_for_the_first_reason() {
    let mut trace = Trace::new(settings(), 1);
    assert_eq!(trace.take_wanted(1.0), None);
    trace.want(Some("first".to_owned()));
    trace.want(Some("second".to_owned()));
    assert_eq!(trace.take_wanted(1.0).as_deref(), Some("first"));
    assert_eq!(trace.take_wanted(1.0), None);
    trace.want(None);
    assert_eq!(trace.take_wanted(1.0).as_deref(), Some("the load has changed"));
    trace.want(None);
    assert!(trace.take_wanted(1.25).unwrap().starts_with("prices are taken 1.25 times"));
}

#[test]
fn a_plan_without_a_class_takes_it_off_without_a_word() {
    let mut view = classes();
    let (mut trace, _) = started(&view);
    view.classes[0].link = LinkView::Open(WindowKind::Trace);
    view.classes[0].traits.named = false;
    // At a rate that is far too high for all of its calls.
    let (ledger, names) = (ledger(), ["f0", "f1", "f2"]);
    let known = Known {
        view: &view,
        names: &names,
        arbiter: Arbiter::new(&ledger, 1.0),
        claims: &Claims::default(),
        operations: false,
        bounds: None,
        settings: &settings(),
        shares: trace.shares(),
        timed: trace.timed(),
        spreads: trace.spreads(),
        hung: &[],
    };
    let planned = make(&known, &rates(&[1e6, 1e6]), 2).unwrap();
    let given = orders(&mut trace, &view, Suspension::NONE, |trace, seen, orders| {
        trace.adopt(&planned, 1.0, 5e6, seen, orders);
    });
    assert!(given.contains(&Order::Close(TRACED, Ending::Drain)), "{given:?}");
    assert!(!given.iter().any(|o| matches!(o, Order::Change(ChangeKind::Stop, ..))), "{given:?}");
}

#[test]
fn rates_are_known_of_what_was_hit_or_is_watched() {
    let mut view = classes();
    let (trace, _) = started(&view);
    view.classes[2].attempted = 9;
    let known = trace.present_rates(&view);
    // The class of bursts was not hit, and nobody watches it now.
    assert_eq!(known.keys().copied().collect::<Vec<_>>(), [TRACED, UNKNOWN]);
    let rate = known[&TRACED];
    assert!(rate.hz.low < 1_000.0 && rate.hz.value == 1_000.0 && rate.hz.high > 1_000.0, "{rate:?}");
}

/// A window of `n` calls that took `mean_ns` each.
pub(super) fn timed_row(class: ClassId, n: u64, mean_ns: u64) -> WindowRow {
    let row = plain_window(class, WindowKind::Burst, (0, 1_000_000), 2 * n);
    WindowRow { returns: n, sum_ns: n * mean_ns, max_ns: 2 * mean_ns, tau_ns: 1_000.0, ..row }
}

/// Five windows that agree: the durations that were asked for are known, another plan is wanted, and there the class does not come first.
#[test]
fn durations_that_are_known_give_their_bursts_back() {
    let [before, after] = costs_around_five_windows_that_agree(RecordKind::Latency);
    assert!(after < 0.95 * before, "{before} {after}");
}

/// `--expect` of a server was given 37 bursts in 9 s and five in the 30 s after that: the mean was known, and what hung then was not seen.
#[test]
fn what_is_recorded_call_by_call_keeps_its_bursts() {
    let [before, after] = costs_around_five_windows_that_agree(RecordKind::Record);
    assert!(after > 0.99 * before, "{before} {after}");
}

/// What the bursts of a named class cost before and after, CPU s/s.
fn costs_around_five_windows_that_agree(kind: RecordKind) -> [f64; 2] {
    let mut view = classes();
    let asked = &mut view.classes[1];
    (asked.traits.named, asked.traits.exit, asked.traits.kind) = (true, ExitMode::ReturnLink, kind);
    let mut trace = Trace::new(settings(), 1);
    let cost = |trace: &Trace, view: &View| {
        let planned = planned(trace, view);
        planned.orders.iter().find(|o| o.class == BURST).unwrap().burst.unwrap().cost_per_s()
    };
    let before = cost(&trace, &view);
    let median = Estimate { value: 5_000.0, low: 4_900.0, high: 5_100.0, ..Estimate::exact(0.0, 100) };
    for i in 0..5 {
        assert!(!trace.is_plan_wanted());
        let row = timed_row(BURST, 1_000, 5_000 + i);
        let ended =
            EndedWindow { row: &row, tripped_itself: false, of: &view.classes[1], median: Some(median) };
        trace.window_ended(&ended, i * S + S / 10);
    }
    assert_eq!(trace.is_plan_wanted(), kind == RecordKind::Latency);
    if let Some(why) = trace.take_wanted(1.0) {
        assert!(why.contains("known to 10 %"), "{why}");
    }
    [before, cost(&trace, &view)]
}

/// The plan traces it, and the pair of sites that measures the price of timing it comes first.
#[test]
fn what_is_timed_and_fits_is_opened_after_its_pair() {
    let mut view = classes();
    let mut pair = class(3);
    (pair.traits.apart, pair.traits.stamps_of) = (true, Some(TRACED));
    view.classes.push(pair);
    view.names.push("[time stamps of] f0".to_owned());
    let function = &mut view.classes[0];
    (function.attempted, function.traits.kind) = (500, RecordKind::Latency);
    function.traits.exit = ExitMode::ExitSites;
    let (mut trace, given) = started(&view);
    assert!(!given.iter().any(|o| is_opened(o, TRACED)), "{given:?}");
    assert!(trace.is_attached(TRACED), "it is planned, and counts as such");
    let given = tick(&mut trace, &view, Suspension::NONE, S / 10);
    assert!(!given.iter().any(|o| is_opened(o, TRACED) || matches!(o, Order::Quota(TRACED, _))), "{given:?}");
    view.classes[3].ends = 1_000;
    let given = tick(&mut trace, &view, Suspension::NONE, S / 5);
    assert!(given.iter().any(|o| is_opened(o, TRACED)), "{given:?}");
}

#[test]
fn that_the_agents_limit_slows_samples_is_said_once() {
    let view = classes();
    let (mut trace, _) = started(&view);
    let mut said = Vec::new();
    for (i, slowdown) in [1.0, 3.0, 1.0, 3.0, 5.0, 1.0].into_iter().enumerate() {
        let given = tick_at(&mut trace, &view, Suspension::NONE, (i as u64 + 1) * S, slowdown);
        said.extend(given.into_iter().filter_map(|order| match order {
            Order::Change(ChangeKind::Sampling, _, text) => Some(text),
            _ => None,
        }));
    }
    assert!(said.len() == 1 && said[0].contains("--agent-cpu"), "{said:?}");
}
