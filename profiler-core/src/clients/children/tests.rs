//! Children that are born, call exec, stay, storm and end, told to the client as the agent would.

use super::*;
use crate::recording::WindowKind;
use crate::run::suspension::Reason;
use crate::run::view::{ClassTraits, LinkView, plain_class};

mod bound;

const MS: u64 = 1_000_000;
/// Of a budget of 20 ms/s.
const BOUNDS: StormBounds = StormBounds { begins: 0.01, ends: 0.004 };
const OPEN: LinkView = LinkView::Open(WindowKind::Trace);

/// A class of the plan whose hits cost 1 us; it has had 1,000.
fn class(id: u32, link: LinkView, quota: u64) -> ClassView {
    let class = plain_class(id, 1e3);
    let traits = ClassTraits { held_by_plan: true, ..class.traits };
    ClassView { link, quota, attempted: 1_000, traits, ..class }
}

fn one_open() -> View {
    View { classes: vec![class(0, OPEN, 500)], ..View::default() }
}

fn runs(cpu_ns: u64) -> Found {
    Found::Runs { cpu_ns: Some(cpu_ns) }
}

/// A step in which the view is as empty as the client allows.
fn step(children: &mut Children, input: Input, view: &View) -> Vec<Order> {
    let mut orders = Vec::new();
    let empty = View::default();
    let view = if children.sees_classes(&input) { view } else { &empty };
    children.step(input, &BOUNDS, view, &mut orders);
    orders
}

fn tell(children: &mut Children, events: &[Event]) -> Vec<Order> {
    step(children, Input::Told { events: events.to_vec(), linked: true }, &View::default())
}

fn fork(child: u32, time_ns: u64) -> Event {
    Event::Forked { child, time_ns, found_before: false }
}

/// A turn while the plan runs and links are there.
fn turn(children: &mut Children, at_ns: u64, found: &[(u32, Found)]) -> Vec<Order> {
    turn_linked(children, at_ns, found, true)
}

fn turn_linked(children: &mut Children, at_ns: u64, found: &[(u32, Found)], linked: bool) -> Vec<Order> {
    let look = Look { at_ns, linked, found: found.to_vec() };
    step(children, Input::Turn { look, plan_runs: true, suspension: Suspension::NONE }, &one_open())
}

/// An interval of 100 ms in which the target used 50 ms of CPU time and hit class 0 a thousand times.
fn interval(children: &mut Children, at_ns: u64, found: &[(u32, Found)]) -> (Vec<Order>, ChildCost) {
    let look = Look { at_ns, linked: true, found: found.to_vec() };
    let hits = vec![(ClassId(0), 1_000)];
    let input = Input::Interval { look, elapsed_ns: 100 * MS, target_cpu_ns: 50 * MS, hits };
    let orders = step(children, input, &one_open());
    (orders, children.take_cost())
}

fn rearms(orders: &[Order]) -> bool {
    orders.contains(&Order::VoidComparison)
}

#[test]
fn a_child_that_calls_exec_in_time_pays_what_the_target_pays_per_cpu_second() {
    let mut children = Children::default();
    let born = 10_000 * MS;
    tell(&mut children, &[fork(7, born)]);
    assert!(turn(&mut children, born + 10 * MS, &[(7, runs(2 * MS))]).is_empty());
    let orders = tell(&mut children, &[Event::Execed { pid: 7, time_ns: born + 14 * MS }]);
    assert_eq!(orders, [Order::LetGo(vec![7])]);
    assert!(!rearms(&turn(&mut children, born + 2_000 * MS, &[])), "it is clean");
    let (orders, cost) = interval(&mut children, born + 2_001 * MS, &[]);
    // 2 ms by its clock; of the 4 ms until the exec, 2 % as of the target: 20 hits of 1 us in each ms.
    assert!(orders.is_empty() && (cost.cost_ns - (2e6 + 0.02 * 4e6)).abs() < 1.0, "{cost:?}");
    assert_eq!(cost.hits, 2_000 + 80);
    assert_eq!(children.take_cost(), ChildCost::default(), "it is charged once");
    assert!((children.claim() - 0.0208 * (1.0 - (-0.02_f64).exp())).abs() < 1e-9, "{}", children.claim());
}

#[test]
fn an_exec_is_seen_without_a_record_too() {
    let mut children = Children::default();
    tell(&mut children, &[fork(7, 10_000 * MS)]);
    let orders = turn(&mut children, 10_004 * MS, &[(7, Found::OtherProgram)]);
    assert_eq!(orders, [Order::LetGo(vec![7])]);
    let (_, cost) = interval(&mut children, 10_010 * MS, &[]);
    assert!((cost.cost_ns - 0.02 * 4e6).abs() < 1.0, "{cost:?}");
    // The record comes late.
    assert!(tell(&mut children, &[Event::Execed { pid: 7, time_ns: 10_003 * MS }]).is_empty());
    assert_eq!(interval(&mut children, 10_110 * MS, &[]).1, ChildCost::default());
}

#[test]
fn a_child_that_stays_has_the_links_made_anew_once_all_are_closed() {
    let mut children = Children::default();
    let born = 10_000 * MS;
    tell(&mut children, &[fork(7, born)]);
    assert!(turn(&mut children, born + 50 * MS, &[(7, runs(MS))]).is_empty(), "it may call exec yet");
    let not_planned = |mut c: ClassView| {
        c.traits.held_by_plan = false;
        c
    };
    let mut apart = not_planned(class(4, OPEN, 40));
    apart.traits.apart = true;
    let view = View {
        classes: vec![
            class(0, OPEN, 500),
            class(1, LinkView::Off, 0),
            class(2, LinkView::Waiting, 20),
            not_planned(class(3, OPEN, 30)),
            apart,
            class(5, LinkView::Opening, 50),
            class(6, LinkView::Closing(WindowKind::Trace), 0),
        ],
        ..View::default()
    };
    let turn_at =
        |children: &mut Children, ms: u64, linked: bool, plan_runs: bool, suspension: Suspension| {
            let found = if children.carries(7) { vec![(7, runs(ms / 10 * MS))] } else { Vec::new() };
            let look = Look { at_ns: born + ms * MS, linked, found };
            step(children, Input::Turn { look, plan_runs, suspension }, &view)
        };
    let free = Suspension::NONE;
    let compared = free.with(Reason::Comparison, true);
    assert!(
        turn_at(&mut children, 60, true, false, free).is_empty(),
        "windows of a survey end by themselves"
    );
    assert!(turn_at(&mut children, 60, true, true, compared).is_empty(), "all is off anyway");
    let orders = turn_at(&mut children, 70, true, true, free);
    let all_closed = [Order::VoidComparison, Order::HoldOperations, Order::CloseAll(Ending::AtOnce)];
    assert_eq!(orders, all_closed);
    assert!(children.is_rearming());
    // For as long as a link is there, nothing comes back, and nothing is closed again; the child pays.
    for ms in (80..2_500).step_by(10) {
        assert!(turn_at(&mut children, ms, true, true, free).is_empty(), "{ms}");
    }
    // The comparison comes first. The child is clean by now.
    assert_eq!(turn_at(&mut children, 2_500, false, true, compared), [Order::LetGo(vec![7])]);
    let orders = turn_at(&mut children, 2_510, false, true, free);
    let again = [(0, 500), (2, 20), (4, 40), (5, 50)].map(|(id, quota)| (ClassId(id), quota));
    assert_eq!(orders, [Order::Restore(again.to_vec())]);
    assert!(!children.is_rearming() && children.is_empty());
    assert!(turn_at(&mut children, 2_520, false, true, free).is_empty());
    let (_, cost) = interval(&mut children, born + 2_530 * MS, &[]);
    assert!((cost.cost_ns - 250e6).abs() < 1.0, "what it used until the links were gone: {cost:?}");
}

/// Bursts come by themselves: there is nothing to be opened again, and yet none may open before the last link is gone.
#[test]
fn bursts_wait_until_the_links_of_all_are_gone() {
    let mut children = Children::default();
    let born = 10_000 * MS;
    tell(&mut children, &[fork(7, born)]);
    let mut burst = class(0, OPEN, 500);
    burst.traits.held_by_plan = false;
    let view = View { classes: vec![burst], ..View::default() };
    let mut turn_at = |ms: u64, linked: bool| {
        let look = Look { at_ns: born + ms * MS, linked, found: vec![(7, runs(MS))] };
        let input = Input::Turn { look, plan_runs: true, suspension: Suspension::NONE };
        let orders = step(&mut children, input, &view);
        (orders, children.is_rearming())
    };
    let (orders, rearming) = turn_at(70, true);
    assert!(rearms(&orders) && rearming);
    assert_eq!(turn_at(80, true), (Vec::new(), true));
    assert_eq!(turn_at(90, false), (vec![Order::LetGo(vec![7])], false), "nothing is restored");
}

#[test]
fn links_are_made_anew_at_most_once_a_second() {
    let mut children = Children::default();
    let (mut closed, mut linked) = (Vec::new(), true);
    for ms in (0..5_000_u64).step_by(10) {
        let at_ns = (10_000 + ms) * MS;
        // A new one each time, and none of them calls exec.
        let pid = u32::try_from(ms).unwrap() + 10;
        tell(&mut children, &[fork(pid, at_ns)]);
        let found: Vec<_> = children.carrying().map(|pid| (pid, runs(0))).collect();
        let orders = turn_linked(&mut children, at_ns, &found, linked);
        if rearms(&orders) {
            closed.push(ms);
        }
        linked = !children.is_rearming();
    }
    assert_eq!(closed, [60, 1_070, 2_080, 3_090, 4_100]);
}

#[test]
fn nothing_is_restored_when_the_run_ends() {
    let mut children = Children::default();
    tell(&mut children, &[fork(7, 10_000 * MS)]);
    assert!(rearms(&turn(&mut children, 10_100 * MS, &[(7, runs(MS))])));
    assert!(step(&mut children, Input::End, &View::default()).is_empty());
    assert!(!children.is_rearming());
    // What it used until the end is charged.
    assert!((interval(&mut children, 10_150 * MS, &[(7, runs(9 * MS))]).1.cost_ns - 9e6).abs() < 1.0);
    assert!(turn(&mut children, 12_000 * MS, &[(7, runs(MS))]).is_empty(), "nor is anything closed");
}

#[test]
fn a_storm_begins_above_half_of_the_budget_and_ends_below_a_fifth() {
    let mut children = Children::default();
    let mut cpu_ns = 0;
    tell(&mut children, &[fork(7, 10_000 * MS)]);
    // It uses so much of a CPU.
    let mut tick = |children: &mut Children, used_ns: u64, tick: u64| {
        cpu_ns += used_ns;
        interval(children, (10_000 + tick * 100) * MS, &[(7, runs(cpu_ns))]).0
    };
    // A tenth of a CPU, at 2 % of one.
    let turned: Vec<u64> = (0..10).filter(|i| !tick(&mut children, 10 * MS, *i).is_empty()).collect();
    assert_eq!(turned, [1], "after 0.2 s");
    assert!(children.is_storm());
    let quiet = (10..110).find(|i| !tick(&mut children, 0, *i).is_empty());
    // From a twentieth of a CPU and more to 0.004 of it: some time constants.
    assert!(quiet.is_some_and(|tick| (25..50).contains(&tick)), "{quiet:?}");
    assert!(!children.is_storm());
    // One child now and then is none.
    let rare = |tick| if tick % 50 == 0 { 5 * MS } else { 0 };
    assert!((110..210).all(|i| tick(&mut children, rare(i), i).is_empty()));
}

#[test]
fn in_a_storm_all_is_closed_and_told_and_afterwards_planned_again() {
    let mut children = Children::default();
    let mut cpu_ns = 0;
    tell(&mut children, &[fork(7, 10_000 * MS)]);
    let mut until_it_turns = |used_ns: u64| {
        (0..1_000)
            .find_map(|_| {
                cpu_ns += used_ns;
                let (orders, _) = interval(&mut children, 10_010 * MS, &[(7, runs(cpu_ns))]);
                (!orders.is_empty()).then_some(orders)
            })
            .expect("a storm begins or ends")
    };
    let (begin, end) = (STORM_BEGINS.to_owned(), STORM_ENDS.to_owned());
    let change = |text: &String| Order::Change(ChangeKind::Children, None, text.clone());
    let begins = [
        Order::HoldOperations,
        Order::CloseAll(Ending::AtOnce),
        Order::Note(begin.clone()),
        change(&begin),
        Order::Warn(begin.clone()),
    ];
    assert_eq!(until_it_turns(20 * MS), begins);
    assert_eq!(until_it_turns(0), [change(&end), Order::Replan(Some(end.clone()))]);
    // The report warns once.
    assert_eq!(until_it_turns(20 * MS), begins[..4]);
}

#[test]
fn children_of_children_are_charged_and_have_the_links_made_anew() {
    let mut children = Children::default();
    let born = 10_000 * MS;
    tell(
        &mut children,
        &[fork(7, born), fork(8, born + MS), Event::Ended { pid: 7, time_ns: born + 3 * MS }],
    );
    assert_eq!(children.carrying().collect::<Vec<_>>(), [8]);
    tell(&mut children, &[fork(9, born + 5 * MS)]);
    let found = [(8, runs(2 * MS)), (9, runs(4 * MS))];
    assert!(rearms(&turn(&mut children, born + 60 * MS, &found)));
    let (_, cost) = interval(&mut children, born + 70 * MS, &found);
    assert!((cost.cost_ns - (3e6 + 2e6 + 4e6)).abs() < 1.0, "{cost:?}");
    assert!(children.warning().is_some_and(|text| text.contains("forked 3 times")));
    assert_eq!(Children::default().warning(), None);
}

#[test]
fn children_whose_birth_was_lost_are_found_once() {
    let mut children = Children::default();
    let now = 10_000 * MS;
    let lost = |children: &mut Children, found: &[(u32, Found)]| {
        let look = Look { at_ns: now, linked: true, found: found.to_vec() };
        step(children, Input::Lost(look), &View::default())
    };
    let found = [(7, runs(3 * MS)), (8, Found::Ended), (9, Found::OtherProgram)];
    assert_eq!(lost(&mut children, &found), [Order::LetGo(vec![8, 9])]);
    assert!(lost(&mut children, &found[..1]).is_empty());
    assert_eq!((children.carrying().collect::<Vec<_>>(), children.forks), (vec![7], 3));
    // The record of its birth was late, not lost.
    tell(&mut children, &[Event::Forked { child: 7, time_ns: now - 9 * MS, found_before: true }]);
    let (_, cost) = interval(&mut children, now + 10 * MS, &[(7, runs(5 * MS))]);
    assert!((cost.cost_ns - 5e6).abs() < 1.0, "since its birth, once: {cost:?}");
    assert_eq!(children.forks, 3);
}

#[test]
fn a_death_before_the_birth_was_read_is_charged_from_record_to_record() {
    let born = 10_000 * MS;
    // Both records are read at once: the agent could not bind to it.
    let mut children = Children::default();
    let end = Event::Ended { pid: 7, time_ns: born + 4 * MS };
    assert_eq!(tell(&mut children, &[fork(7, born), end]), [Order::LetGo(vec![7])]);
    assert!((interval(&mut children, born + 9 * MS, &[]).1.cost_ns - 4e6).abs() < 1.0);
    // The record of the end was lost: all time until the look.
    let mut children = Children::default();
    tell(&mut children, &[fork(7, born)]);
    assert_eq!(turn(&mut children, born + 6 * MS, &[(7, Found::Ended)]), [Order::LetGo(vec![7])]);
    assert!((interval(&mut children, born + 9 * MS, &[]).1.cost_ns - 6e6).abs() < 1.0);
    // An end that nobody was born for.
    assert!(tell(&mut children, &[Event::Ended { pid: 8, time_ns: born }]).is_empty());
    assert_eq!(interval(&mut children, born + 20 * MS, &[]).1, ChildCost::default());
}

#[test]
fn a_number_that_is_used_again_at_once_is_not_let_go() {
    let mut children = Children::default();
    let born = 10_000 * MS;
    tell(&mut children, &[fork(7, born)]);
    let again = [Event::Ended { pid: 7, time_ns: born + 2 * MS }, fork(7, born + 3 * MS)];
    assert!(tell(&mut children, &again).is_empty());
    // By a look: the agent was bound to the first, which is dead.
    assert!(tell(&mut children, &[fork(7, born + 4 * MS)]).is_empty());
    assert!(children.carries(7));
    let (_, cost) = interval(&mut children, born + 9 * MS, &[(7, runs(MS))]);
    assert!((cost.cost_ns - (2e6 + 1e6 + 1e6)).abs() < 1.0, "each until the next was born: {cost:?}");
}

#[test]
fn a_clock_that_cannot_be_read_makes_the_time_count() {
    let mut children = Children::default();
    let born = 10_000 * MS;
    tell(&mut children, &[fork(7, born)]);
    assert!(turn(&mut children, born + 10 * MS, &[(7, Found::Runs { cpu_ns: None })]).is_empty());
    tell(&mut children, &[Event::Ended { pid: 7, time_ns: born + 20 * MS }]);
    assert!((interval(&mut children, born + 30 * MS, &[]).1.cost_ns - 20e6).abs() < 1.0);
}

#[test]
fn who_was_born_while_nothing_was_attached_is_forgotten() {
    let mut children = Children::default();
    let born = 10_000 * MS;
    tell(&mut children, &[fork(7, born)]);
    let at = |children: &mut Children, ms: u64, linked: bool| {
        let look = Look { at_ns: born + ms * MS, linked, found: vec![(7, runs(MS))] };
        step(children, Input::Turn { look, plan_runs: false, suspension: Suspension::NONE }, &View::default())
    };
    assert!(at(&mut children, 1_000, false).is_empty());
    assert!(at(&mut children, 1_010, true).is_empty(), "links are there");
    assert_eq!(at(&mut children, 1_020, false), [Order::LetGo(vec![7])]);
    assert!(children.is_empty());
}

#[test]
fn clocks_that_jump_back_cost_nothing() {
    let mut children = Children::default();
    let now = 10_000 * MS;
    tell(&mut children, &[fork(7, now), fork(8, now)]);
    assert!(rearms(&turn(&mut children, now + 100 * MS, &[(7, runs(9 * MS)), (8, runs(9 * MS))])));
    let orders = turn_linked(&mut children, now - 5_000 * MS, &[(7, runs(4 * MS)), (8, Found::Ended)], true);
    assert_eq!(orders, [Order::LetGo(vec![8])]);
    // Time that was counted is not counted twice: 9 ms each, nothing for the end before the last reading.
    assert!((interval(&mut children, now - 4_900 * MS, &[(7, runs(9 * MS))]).1.cost_ns - 18e6).abs() < 1.0);
    tell(&mut children, &[Event::Ended { pid: 7, time_ns: now - 6_000 * MS }]);
    let (_, cost) = interval(&mut children, now - 4_800 * MS, &[]);
    assert_eq!(cost, ChildCost::default());
    // The links come back all the same.
    let orders = turn_linked(&mut children, now - 4_700 * MS, &[], false);
    assert_eq!(orders, [Order::Restore(vec![(ClassId(0), 500)])]);
}

#[test]
fn an_interval_without_length_changes_no_rate() {
    let mut children = Children::default();
    let now = 10_000 * MS;
    tell(&mut children, &[fork(7, now)]);
    let look = |cpu_ns| Look { at_ns: now, linked: true, found: vec![(7, runs(cpu_ns))] };
    let input = |cpu_ns| Input::Interval {
        look: look(cpu_ns),
        elapsed_ns: 0,
        target_cpu_ns: 0,
        hits: vec![(ClassId(0), 0)],
    };
    assert!(step(&mut children, input(50 * MS), &one_open()).is_empty());
    assert!((children.take_cost().cost_ns - 5e7).abs() < 1.0, "what was used is charged");
    assert_eq!((children.claim(), children.is_storm()), (0.0, false));
    // Nothing used, no hits, no CPU time: no number that is none.
    assert!(step(&mut children, input(50 * MS), &one_open()).is_empty());
    assert_eq!((children.take_cost(), children.claim()), (ChildCost::default(), 0.0));
}

#[test]
fn what_was_used_before_all_links_were_gone_is_charged() {
    let mut children = Children::default();
    let born = 10_000 * MS;
    let detached = |children: &mut Children, ms: u64, cpu_ms: u64| {
        let look = Look { at_ns: born + ms * MS, linked: false, found: vec![(7, runs(cpu_ms * MS))] };
        let input = Input::Interval { look, elapsed_ns: 100 * MS, target_cpu_ns: 0, hits: Vec::new() };
        step(children, input, &View::default());
        children.take_cost().cost_ns
    };
    tell(&mut children, &[fork(7, born)]);
    assert!(turn(&mut children, born + 10 * MS, &[(7, runs(4 * MS))]).is_empty());
    // They went some time between two looks.
    assert!((detached(&mut children, 20, 9) - 9e6).abs() < 1.0);
    // It is clean since.
    assert!(detached(&mut children, 120, 80) < 1.0);
    assert!(children.storm.potential > 0.0, "but would cost if something were attached");
}
