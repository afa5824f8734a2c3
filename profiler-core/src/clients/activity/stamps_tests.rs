use super::*;
use crate::class::{ExitMode, RecordKind};
use crate::cost::Price;
use crate::recording::WindowRow;
use crate::recording::plain_window;
use crate::run::outcome::{NotOpened, Outcome};
use crate::run::suspension::{Reason, Suspension};
use crate::run::view::plain_class;

const MS: u64 = 1_000_000;
const F: ClassId = ClassId(0);
const PAIR: ClassId = ClassId(1);

fn share() -> Share {
    Share { number: 3, allowed: 0.01, factor: 1.0, suspension: Suspension::NONE }
}

/// A function of which 1,000 calls took `mean_ns` each, and its pair; 2 s into the run.
fn view(mean_ns: u64) -> View {
    let mut function = plain_class(0, 600.0);
    (function.attempted, function.ends, function.timed_ns) = (1_000, 1_000, 1_000 * mean_ns);
    (function.traits.kind, function.traits.exit) = (RecordKind::Latency, ExitMode::ExitSites);
    let mut pair = plain_class(1, 600.0);
    (pair.prices.stamps, pair.prices.exit) = (Price::fixed(600.0), Price::fixed(600.0));
    (pair.traits.stamps_of, pair.traits.exit) = (Some(F), ExitMode::ExitSites);
    View { now_ns: 2_000 * MS, classes: vec![function, pair], ..View::default() }
}

fn step(client: &mut StampPairs, notice: Notice, share: &Share, view: &View) -> Vec<Order> {
    let mut orders = Vec::new();
    client.step(notice, share, view, &mut orders);
    orders
}

/// What it asks for at its first interval.
fn asked(share: &Share, view: &View) -> Vec<Order> {
    step(&mut StampPairs::new(), Notice::Interval, share, view)
}

fn opened(client: &mut StampPairs, view: &mut View) {
    let outcome = Outcome { number: 1, class: PAIR, purpose: Purpose::Activity(3), opened: Ok(view.now_ns) };
    view.classes[1].link = LinkView::Open(WindowKind::Burst);
    assert!(step(client, Notice::Outcome(outcome), &share(), view).is_empty());
}

/// A window of the pair with so many hits.
fn row(hits: u64) -> WindowRow {
    WindowRow { max_ns: 700, tau_ns: 600.0, ..plain_window(PAIR, WindowKind::Burst, (0, 10 * MS), hits) }
}

fn ended(client: &mut StampPairs, view: &mut View, returns: u64) {
    view.classes[1].link = LinkView::Off;
    let row = WindowRow {
        start_ns: view.now_ns - 10 * MS,
        end_ns: view.now_ns,
        returns,
        sum_ns: 600 * returns,
        ..row(2 * returns)
    };
    step(client, Notice::Ended(row), &share(), view);
}

#[test]
fn a_pair_is_asked_for_where_calls_are_short_and_frequent() {
    let open = asked(&share(), &view(900));
    let quota = WINDOW_HITS;
    let kind = WindowKind::Burst;
    assert_eq!(open, [Order::Open { class: PAIR, kind, quota, purpose: Purpose::Activity(3) }]);
    assert!(asked(&share(), &view(20_000)).is_empty(), "long calls");
    let mut few = view(900);
    few.classes[0].attempted = 40;
    assert!(asked(&share(), &few).is_empty(), "few calls");
    let mut attached = view(900);
    attached.classes[0].link = LinkView::Open(WindowKind::Trace);
    assert!(asked(&share(), &attached).is_empty(), "no call goes unseen for it");
    let poor = Share { allowed: 1e-7, ..share() };
    assert!(asked(&poor, &view(900)).is_empty(), "what it may not spend");
    let held = Share { suspension: Suspension::NONE.with(Reason::ForkStorm, true), ..share() };
    assert!(asked(&held, &view(900)).is_empty());
}

/// What is traced from the plan on is never idle again: the plan waits for its pair, which has windows without pauses.
#[test]
fn a_pair_that_the_plan_waits_for_comes_first_and_at_once() {
    let mut untimed = view(900);
    untimed.classes[0].ends = 5;
    assert!(asked(&share(), &untimed).is_empty(), "the survey may open it at any time");
    untimed.classes[0].traits.held_by_plan = true;
    let mut client = StampPairs::new();
    let mut windows = 0;
    while let [Order::Open { quota, .. }] = step(&mut client, Notice::Interval, &share(), &untimed)[..] {
        assert_eq!(quota, AWAITED_HITS);
        windows += 1;
        opened(&mut client, &mut untimed);
        ended(&mut client, &mut untimed, 40);
        untimed.now_ns += 100 * MS;
    }
    assert_eq!(windows, 3, "so many that the report knows how much they differ");
    untimed.classes[0].ends = 1_000;
    untimed.now_ns += 5_000 * MS;
    assert_eq!(step(&mut client, Notice::Interval, &share(), &untimed).len(), 1, "short calls want more");

    // Before another function, earlier in the list, whose calls are known to be short.
    let mut both = view(900);
    let (mut awaited, mut pair) = (view(900).classes[0].clone(), both.classes[1].clone());
    (awaited.id, awaited.ends, awaited.traits.held_by_plan) = (ClassId(2), 5, true);
    (pair.id, pair.traits.stamps_of) = (ClassId(3), Some(ClassId(2)));
    both.classes.extend([awaited, pair]);
    let open = asked(&share(), &both);
    assert!(matches!(open[..], [Order::Open { class: ClassId(3), .. }]), "{open:?}");
}

/// It has a pair because a window showed that it is called too often.
#[test]
fn the_pair_of_a_function_that_is_only_counted_is_asked_for() {
    let mut counted = view(900);
    (counted.classes[0].traits.exit, counted.classes[0].ends) = (ExitMode::None, 0);
    assert_eq!(asked(&share(), &counted).len(), 1);
    counted.classes[0].link = LinkView::Open(WindowKind::Burst);
    assert!(asked(&share(), &counted).is_empty(), "it is attached");
}

/// 100 hits at 600 ns: a fifth of 300 us.
#[test]
fn a_rate_is_hidden_where_hits_take_a_fifth_of_the_time() {
    let mut window = row(100);
    window.end_ns = window.start_ns + 299_000;
    assert!(hides_rate(&window));
    window.end_ns = window.start_ns + 301_000;
    assert!(!hides_rate(&window));
    (window.end_ns, window.kept) = (window.start_ns + 100, FEWEST_CALLS - 1);
    assert!(!hides_rate(&window), "too few to say");
}

#[test]
fn it_gives_way_to_the_function_and_ends_in_time() {
    for way_out in [false, true] {
        let mut view = view(900);
        let mut client = StampPairs::new();
        assert_eq!(step(&mut client, Notice::Interval, &share(), &view).len(), 1);
        assert!(step(&mut client, Notice::Interval, &share(), &view).is_empty(), "it waits for the answer");
        assert!(client.owns(PAIR) && !client.owns(F));
        opened(&mut client, &mut view);
        view.now_ns += 100 * MS;
        assert!(step(&mut client, Notice::Interval, &share(), &view).is_empty());
        if way_out {
            view.classes[0].link = LinkView::Opening;
        } else {
            view.now_ns += WINDOW_NS;
        }
        let close = step(&mut client, Notice::Interval, &share(), &view);
        assert_eq!(close, [Order::Close(PAIR, Ending::AtOnce)], "{way_out}");
    }
}

#[test]
fn it_stops_when_it_has_enough_or_gets_nothing() {
    for (returns, windows) in [(50, 6), (2, 3), (0, 3)] {
        let mut view = view(900);
        let mut client = StampPairs::new();
        let mut asked = 0;
        for _ in 0..200 {
            view.now_ns += 100 * MS;
            if !step(&mut client, Notice::Interval, &share(), &view).is_empty() {
                asked += 1;
                opened(&mut client, &mut view);
                ended(&mut client, &mut view, returns);
                assert!(returns == 0 || !client.recent.is_empty(), "{returns}");
            }
        }
        assert_eq!(asked, windows, "{returns} intervals in each");
        assert_eq!(client.claim(), 0.0, "nothing is spent any more");
    }
}

#[test]
fn one_that_is_refused_is_not_asked_for_again() {
    for (why, times) in [(NotOpened::Refused, 1), (NotOpened::NotNow, 5)] {
        let mut view = view(900);
        let mut client = StampPairs::new();
        let mut asked = 0;
        for _ in 0..40 {
            view.now_ns += 100 * MS;
            if !step(&mut client, Notice::Interval, &share(), &view).is_empty() {
                asked += 1;
                let purpose = Purpose::Activity(3);
                let outcome = Outcome { number: 1, class: PAIR, purpose, opened: Err(why) };
                step(&mut client, Notice::Outcome(outcome), &share(), &view);
            }
        }
        assert!(asked >= times && (times > 1 || asked == 1), "{why:?}: {asked}");
    }
}

/// Windows follow one another for longer than a pause: what the first of them took is no cost of today.
#[test]
fn only_windows_of_the_last_pause_are_claimed() {
    let mut view = view(900);
    view.classes[0].ends = 5;
    view.classes[0].traits.held_by_plan = true;
    let mut client = StampPairs::new();
    let mut claims = Vec::new();
    for _ in 0..30 {
        view.now_ns += 500 * MS;
        if let [Order::Open { .. }] = step(&mut client, Notice::Interval, &share(), &view)[..] {
            opened(&mut client, &mut view);
            ended(&mut client, &mut view, 5);
        }
        claims.push(client.claim());
    }
    let most = claims.iter().copied().fold(0.0, f64::max);
    assert!(most > 0.0 && claims[2..19].iter().all(|claim| *claim <= 2.01 * claims[1]), "{claims:?}");
}
