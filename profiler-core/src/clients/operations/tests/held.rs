//! What goes off together, what comes back together, and when nothing is recorded.

use super::*;

/// Slices of a fifth of the time.
const FIFTH: Slices = Slices { share: 0.2, period_s: 1.0, linger_s: 0.01 };

fn orders(world: &World) -> Vec<&OperationOrder> {
    fn own(order: &Order) -> Option<&OperationOrder> {
        if let Order::Operation(order) = order { Some(order) } else { None }
    }
    world.orders.iter().filter_map(own).collect()
}

#[test]
fn everything_is_asked_for_before_anything_is_recorded() {
    let mut world = World::new(1, 2);
    world.grant.may_begin = false;
    world.turn();
    assert_eq!(world.orders, []);
    world.grant.may_begin = true;
    world.turn();
    // Inner functions, the end, the begin: no operation begins that lacks its calls or its end.
    assert_eq!(world.asked(), [100, 101, 1, 0]);
    assert!(!world.is_recorded());
    world.turn();
    assert!(
        world.is_recorded() && world.said[0].starts_with("following operations: op0;"),
        "{:?}",
        world.said
    );
}

#[test]
fn recording_does_not_begin_with_an_inner_function_that_has_used_up_its_quota() {
    let mut world = World::new(1, 2);
    world.turn();
    assert_eq!(world.asked(), [100, 101, 1, 0]);
    world.turn();
    // While the others were being attached.
    world.inner[0].link = LinkView::Closing(WindowKind::Trace);
    world.client.begun = false;
    world.client.inner.complete = true;
    world.recording = vec![false];
    world.turn();
    assert!(world.client.begun && (!world.is_recorded() || world.lacks_details()), "{:?}", world.orders);
}

#[test]
fn bounds_of_an_operation_go_off_together_and_come_back_together() {
    let mut world = World::begun(2, 0);
    // More than a second may take: 10 hits/us of 1 us.
    world.bounds[0].hz = 100_000;
    world.turn();
    let closed = world.orders.contains(&Order::Close(ClassId(1), Ending::AtOnce));
    assert!(closed && world.bounds[1].link == LinkView::Off, "{:?}", world.orders);
    // What is open now has lost its end.
    let is_stale = |order: &&OperationOrder| matches!(order, OperationOrder::NewGeneration(_));
    let stale: Vec<_> = orders(&world).into_iter().filter(is_stale).collect();
    assert_eq!(stale, [&OperationOrder::NewGeneration(0)]);
    // The other operation is not concerned.
    assert!(world.bounds[2].link == OPEN && world.bounds[3].link == OPEN);
    let trips = |order: &&Order| matches!(order, Order::Change(ChangeKind::Trip, Some(ClassId(0)), _));
    assert_eq!(world.orders.iter().filter(trips).count(), 1);
    let off_ns = world.now();
    world.bounds[0].hz = 1;
    while world.asked().is_empty() {
        world.turn();
        assert!(world.now() < off_ns + 6_000 * MS, "they never came back");
    }
    assert!(world.now() >= off_ns + 100 * MS);
    assert_eq!(world.asked(), [1, 0]);
}

#[test]
fn what_is_granted_less_than_one_operation_costs_is_not_attached() {
    let mut world = World::begun(1, 0);
    world.bounds[0].link = LinkView::Off;
    // Screening one costs 2 us.
    world.grant.left_of_second_ns = 1_000.0;
    for turn in 0..50 {
        world.turn();
        assert!(world.asked().is_empty());
        // The other bound by itself would be paid for in vain.
        assert_eq!(world.bounds[1].link == OPEN, turn == 0, "turn {turn}");
    }
    world.grant.left_of_second_ns = 1e8;
    let paused_ns = world.now();
    while world.asked().is_empty() {
        world.turn();
        assert!(world.now() < paused_ns + 6_000 * MS, "they never came back");
    }
    assert_eq!(world.asked(), [1, 0]);
    world.turns(2);
    assert!(world.bounds[0].link == OPEN && world.bounds[1].link == OPEN);
}

#[test]
fn an_inner_function_that_trips_ends_the_slice_and_nothing_is_recorded_meanwhile() {
    let mut world = World::begun(1, 2);
    world.client.inner.slices.follow(FIFTH);
    // The policy, which records all, would attach them always.
    world.client.settings.config.revise_s = 1e6;
    world.inner[0].hz = 100_000;
    world.turn();
    assert!(!world.is_recorded() && world.client.inner.is_paused());
    assert!(!world.client.inner.slices.are_wanted());
    // The other goes, too: it would be paid for in vain.
    assert_eq!(world.inner[1].link, LinkView::Off);
    world.inner[0].hz = 1;
    let (mut off, mut on) = (0, 0);
    for _ in 0..600 {
        world.turn();
        let all_open = world.inner.iter().all(|thing| thing.link == OPEN);
        assert!(!world.is_recorded() || all_open && !world.lacks_details(), "{:?}", world.orders);
        *(if world.is_recorded() { &mut on } else { &mut off }) += 1;
    }
    // A fifth of the time from when they came back on.
    assert!(on > 30 && off > 400, "{on} on, {off} off");
}

/// Bounds come back, and one of their links takes seconds. Meanwhile an inner function uses up its quota: no alarm was lost.
#[test]
fn nothing_is_recorded_without_an_inner_function_while_others_are_being_attached() {
    let mut world = World::begun(2, 1);
    world.bounds[2].link = LinkView::Off;
    world.bounds[3].link = LinkView::Off;
    let off_ns = world.now();
    while world.asked().is_empty() {
        world.turn();
        assert!(world.now() < off_ns + 6_000 * MS, "they never came back");
    }
    world.bounds[2].link = LinkView::Opening;
    world.inner[0].hz = 100_000;
    for _ in 0..400 {
        world.turn();
        world.inner[0].hz = 1;
        let may_record = world.recording.contains(&true) && !world.lacks_details();
        assert!(world.inner[0].link == OPEN || !may_record, "{:?}", world.orders);
    }
    world.bounds[2].link = OPEN;
    world.turns(300);
    assert!(world.inner[0].link == OPEN && world.is_recorded() && !world.lacks_details());
}

/// A quota is used up while others are being attached, and its link is gone before anybody hears of it: the class is still taken for open.
#[test]
fn nothing_is_recorded_without_an_inner_function_that_tripped_and_nobody_has_heard_of_it() {
    let mut world = World::begun(1, 2);
    world.tell(Input::Hold);
    world.inner[1].link = LinkView::Opening;
    world.turn();
    assert!(world.lacks_details());
    world.losses += 1;
    world.inner[1].link = OPEN;
    for _ in 0..5 {
        world.turn();
        assert!(world.lacks_details(), "{:?}", world.orders);
    }
    world.inner[0].link = LinkView::Off;
    world.tell(Input::Tripped(ClassId(100)));
    for _ in 0..300 {
        world.turn();
        let all_open = world.inner.iter().all(|thing| thing.link == OPEN);
        assert!(all_open || world.lacks_details() || !world.is_recorded(), "{:?}", world.orders);
    }
    assert!(world.is_recorded() && !world.lacks_details());
}

/// One that closes for longer than the pause: there is no turn in which all are off.
#[test]
fn recording_comes_back_where_inner_functions_are_never_all_off_at_once() {
    let mut world = World::begun(1, 2);
    world.client.settings.config.revise_s = 1e6;
    world.inner[0].hz = 100_000;
    world.turn();
    assert!(world.inner[0].link == LinkView::Off && world.lacks_details());
    world.inner[0].hz = 1;
    world.inner[1].link = LinkView::Closing(WindowKind::Trace);
    for turn in 0.. {
        assert!(turn < 600, "it never came back");
        if world.inner[0].link == OPEN {
            break;
        }
        world.turn();
        world.inner[1].link = LinkView::Closing(WindowKind::Trace);
    }
    assert!(world.lacks_details());
    world.inner[1].link = LinkView::Off;
    world.turns(10);
    assert!(
        world.inner[1].link == OPEN && world.is_recorded() && !world.lacks_details(),
        "{:?}",
        world.orders
    );
}

#[test]
fn calls_that_are_missing_are_forgotten_in_the_order_that_loses_no_operation() {
    let mut world = World::begun(1, 1);
    world.client.inner.slices.follow(FIFTH);
    world.inner[0].hz = 100_000;
    world.turn();
    world.inner[0].hz = 1;
    while world.lacks_details() {
        world.turn();
    }
    let stop = OperationOrder::Monitor { operation: 0, on: false };
    assert_eq!(
        orders(&world),
        [&stop, &OperationOrder::DetailsEnd, &OperationOrder::DetailsBack { losses: 1 }]
    );
}

#[test]
fn nothing_is_recorded_while_an_inner_function_is_missing_and_in_the_end_it_is_left_out() {
    let mut world = World::begun(1, 2);
    // Its library is closed: the agent holds operations before it detaches it.
    world.tell(Input::Hold);
    assert!(!world.is_recorded() && world.lacks_details());
    (world.inner[0].link, world.inner[0].is_here) = (LinkView::Off, false);
    let begun_ns = world.now();
    while !world.inner[0].is_refused {
        world.turn();
        assert!(world.inner[0].is_refused || !world.is_recorded(), "{:?}", world.orders);
        assert!(world.now() < begun_ns + 20_000 * MS);
    }
    // Five times, two seconds apart.
    assert!(world.now() - begun_ns > 8_000 * MS);
    assert!(world.is_recorded() && !world.lacks_details());
    let told = |text: &str| world.said.iter().filter(|said| said.contains(text)).count();
    assert_eq!((told("f100 cannot be attached now"), told("f100 is left out")), (1, 1));
    // Modules come, and with them the function: nothing is recorded until it is attached.
    world.inner[0].is_here = true;
    world.tell(Input::ModulesCame);
    assert!(!world.is_recorded() && !world.inner[0].is_refused);
    world.turns(4);
    assert!(world.is_recorded() && world.inner[0].link == OPEN);
}

#[test]
fn a_function_that_makes_the_measure_is_never_left_out() {
    let mut world = World::begun(1, 2);
    world.tell(Input::Hold);
    (world.inner[1].link, world.inner[1].is_here) = (LinkView::Off, false);
    world.turns(2_000);
    assert!(!world.inner[1].is_refused && !world.is_recorded());
    world.inner[1].is_here = true;
    world.turns(300);
    assert!(world.is_recorded());
}

#[test]
fn a_comparison_holds_recording_and_asks_for_nothing() {
    let mut world = World::begun(1, 1);
    world.grant.suspension = Suspension::NONE.with(Reason::Comparison, true);
    for thing in world.inner.iter_mut().chain(&mut world.bounds) {
        thing.link = LinkView::Off;
    }
    for _ in 0..50 {
        world.turn();
        assert!(!world.is_recorded() && world.lacks_details() && world.asked().is_empty());
    }
    world.grant.suspension = Suspension::NONE;
    world.turns(3);
    assert!(world.is_recorded() && !world.lacks_details());
}

#[test]
fn an_operation_without_ends_is_not_watched() {
    let mut world = World::begun(2, 0);
    world.bounds[1].link = LinkView::Off;
    world.bounds[1].is_refused = true;
    world.turns(2);
    assert!(world.orders.contains(&Order::Close(ClassId(0), Ending::Soon)), "{:?}", world.orders);
    assert_eq!(world.said.iter().filter(|text| text.contains("'op0' is not watched")).count(), 1);
    assert!(world.client.line().starts_with("; op0: 0/s, 0.0 % recorded now, 0 of 0, not watched now; op1"));
    assert_eq!(world.client.waiting(&world.view), []);
}

#[test]
fn long_operations_stay_attached_while_the_overhead_is_compared() {
    let mut world = World::begun(2, 0);
    // None has ended yet.
    assert_eq!(world.client.staying(1.0).len(), 4);
    for (o, longest_s) in world.client.list.iter_mut().zip([0.5, 0.001]) {
        (o.tally.longest_s, o.tally.rate_hz) = (longest_s, 100.0);
    }
    assert_eq!(world.client.staying(1.0), [ClassId(0), ClassId(1)]);
    // 100 a second at 2 us.
    assert_eq!(world.client.staying(1e-4), []);
}
