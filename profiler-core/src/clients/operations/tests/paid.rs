//! What is paid for: quotas, charges, screens, and what is said where nothing can be recorded.

use super::*;

#[test]
fn the_quotas_of_all_groups_together_stay_within_what_is_left() {
    let mut world = World::begun(3, 4);
    for (i, hz) in [900, 30, 1, 0, 400, 2].into_iter().enumerate() {
        world.bounds[i].hz = hz;
    }
    for (i, hz) in [0, 5, 50, 1].into_iter().enumerate() {
        world.inner[i].hz = hz;
    }
    let mut given = 0;
    for i in 0..2_000 {
        // Others have taken some of the second.
        world.grant.left_of_second_ns = if i % 300 < 30 { 2e5 } else { f64::INFINITY };
        world.turn();
        let is_given = |order: &Order| matches!(order, Order::Quota(..) | Order::Open { .. });
        if !world.orders.iter().any(is_given) {
            continue;
        }
        given += 1;
        let left_ns = world.client.quotas.left_ns;
        assert!(left_ns <= world.grant.left_of_second_ns);
        // Everyone has one hit at least.
        let (granted_ns, least_ns) = (world.granted_ns(), 10.0 * 1e3);
        assert!(granted_ns <= left_ns + least_ns, "{granted_ns} of {left_ns}: {:?}", world.orders);
    }
    assert!(given > 150, "{given}");
}

#[test]
fn no_second_takes_more_than_operations_may() {
    let mut world = World::begun(2, 3);
    for thing in world.bounds.iter_mut().chain(&mut world.inner) {
        thing.hz = 300;
    }
    let mut taken = vec![0];
    for _ in 0..3_000 {
        world.turn();
        taken.push(world.bounds.iter().chain(&world.inner).map(|thing| thing.hits).sum());
        // 110 turns.
        let second = taken.len().checked_sub(111).map_or(0, |i| taken[taken.len() - 1] - taken[i]);
        let (took_ns, most_ns) = (second as f64 * 1e3, 1.15 * 1.1 * 0.01 * 1e9);
        assert!(took_ns <= most_ns + 1e5, "{took_ns} of {most_ns}");
    }
}

/// Plan and survey spend what operations leave of the budget: also in the first second, of which no window says yet what they cost.
#[test]
fn what_operations_take_is_claimed_before_their_first_revision() {
    let mut world = World::begun(1, 1);
    assert_eq!(world.client.claim(), 0.0);
    (world.bounds[0].hz, world.bounds[1].hz) = (100, 100);
    world.turns(25);
    // 200 hits of 1 us in each of 20 turns or more: the claim is of the last look.
    let claim = world.client.claim();
    assert!((0.003..=0.005).contains(&claim), "{claim}");
    // From then on it is what the window showed (nothing was counted in it), or what the last second took, if that is more.
    while !world.client.is_revised {
        world.turn();
    }
    world.turns(150);
    let claim = world.client.claim();
    assert!((0.01..=0.022).contains(&claim), "{claim}");
    (world.bounds[0].hz, world.bounds[1].hz) = (0, 0);
    world.turns(350);
    assert_eq!(world.client.claim(), 0.0);
}

#[test]
fn hits_are_read_when_quotas_are_due_and_counters_once_a_revision() {
    let mut world = World::begun(1, 1);
    let (mut hits, mut counts) = (0, 0);
    for _ in 0..1_000 {
        world.turn();
        hits += u32::from(world.wants.hits);
        counts += u32::from(world.wants.counts);
    }
    // In ten seconds.
    assert!((90..=112).contains(&hits) && (9..=11).contains(&counts), "{hits}, {counts}");
}

#[test]
fn starving_is_said_once() {
    let mut world = World::begun(1, 1);
    // Nearly nothing is left, and one takes 2 us.
    (world.grant.allowed, world.grant.allowed_in_second) = (1e-9, 1e-9);
    for i in 1..=10 {
        world.counts[0][0] = counted(1_000 * i, i);
        world.inner[0].hits += 1;
        world.turns(100);
    }
    let said = world.said.iter().filter(|text| text.contains("nothing of operation 'op0' can be recorded"));
    assert_eq!(said.count(), 1, "{:?}", world.said);
    world.see();
    world.view.operations.counts.clone_from(&world.counts);
    let end_ns = world.now();
    world.tell(Input::End { end_ns });
    let warned = |order: &&Order| matches!(order, Order::Warn(text) if text.contains("windows in which requests were counted"));
    assert_eq!(world.orders.iter().filter(warned).count(), 1, "{:?}", world.orders);
}

#[test]
fn recorded_operations_are_charged_and_become_rows() {
    let mut world = World::begun(1, 0);
    world.counts[0][0] = counted(1_000, 40);
    let mut rows = Vec::new();
    let mut charged = Vec::new();
    for _ in 0..110 {
        world.turn();
        for order in &world.orders {
            if let Order::Operation(OperationOrder::Windows(windows)) = order {
                rows.extend(windows.clone());
            }
        }
        charged.extend(world.client.take_charges());
    }
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].begun, rows[0].recorded, rows[0].population), (1_000, 40, 1_000));
    assert!(rows[0].watched_ns > 900 * MS && rows[0].monitoring, "{:?}", rows[0]);
    assert_eq!(charged, [Charged { charge: Charge::Traced, units: 40, cost_ns: 20_000.0 }]);
    // 2 us of screening each.
    assert!(world.client.claim() > 0.0018, "{}", world.client.claim());
}

/// Each operation pays for its own words, and for what they are known to take now.
#[test]
fn words_are_charged_as_they_are_known_to_cost() {
    let mut world = World::begun(2, 0);
    let charged = |world: &mut World, words_ns: &[f64], recorded: u64| {
        let _ = world.client.take_charges();
        world.view.operations.words_ns = words_ns.to_vec();
        for (operation, counts) in world.counts.iter_mut().enumerate() {
            counts[0].add(&counted(100, recorded * (operation as u64 + 1)));
        }
        world.turns(110);
        world.client.take_charges().iter().map(|charged| charged.cost_ns).sum::<f64>()
    };
    // 10 of the first and 20 of the second.
    let of = |first_ns: f64, second_ns: f64| 10.0 * (500.0 + first_ns) + 20.0 * (500.0 + second_ns);
    for (words_ns, expected) in
        [(&[][..], of(0.0, 0.0)), (&[0.0, 300.0], of(0.0, 300.0)), (&[200.0], of(200.0, 0.0))]
    {
        let cost_ns = charged(&mut world, words_ns, 10);
        assert!((cost_ns - expected).abs() < 1e-6, "{words_ns:?}: {cost_ns}, not {expected}");
    }
    // What recording one is expected to cost follows as well: half of it a window.
    let before_ns = world.client.list[0].prices.record_ns;
    let _ = charged(&mut world, &[900.0], 10);
    let grown_ns = world.client.list[0].prices.record_ns - before_ns;
    assert!((300.0..=700.0).contains(&grown_ns), "{grown_ns}");
}

/// An operation that system calls bound, of which the screen counts so many hits in 100 ms: of the target, of others.
fn screened(own: u64, others: u64) -> World {
    let mut world = World::new(0, 0);
    world.client.follow(followed("io", 0, BoundBy::Syscalls, PolicyKind::Full), Vec::new(), 0);
    world.client.screen(Screened::Syscalls);
    world.recording.push(true);
    world.screens = vec![ScreenView { what: Screened::Syscalls, own: 0, others: 0 }];
    for _ in 0..15 {
        world.screens[0].own += own;
        world.screens[0].others += others;
        world.see();
        world.tell(Input::Interval { elapsed_ns: 100 * MS });
        if !world.orders.is_empty() {
            break;
        }
    }
    world
}

#[test]
fn screens_that_are_too_expensive_are_dropped_for_good_and_all_of_them_are_charged() {
    // 0.8 % of a CPU, where 1 % are allowed.
    let mut cheap = screened(8_000, 0);
    assert_eq!(cheap.orders, []);
    let cost_ns: f64 = cheap.client.take_charges().iter().map(|charged| charged.cost_ns).sum();
    assert!((cost_ns - 15.0 * 8e5).abs() < 1.0, "{cost_ns}");
    for (own, others, why) in
        [(12_000, 0, "screening every system call"), (0, 12_000, "from other processes")]
    {
        let world = screened(own, others);
        assert!(world.orders.contains(&Order::Operation(OperationOrder::DropScreen(Screened::Syscalls))));
        assert!(!world.recording[0] && world.said[0].contains(why), "{:?}", world.said);
        assert!(world.client.list[0].watch.lost);
        assert!(
            matches!(world.orders.last(), Some(Order::NotObserved(what, _)) if what == "operation 'io', later part")
        );
    }
}

/// What was recorded since the last revision is charged at the end.
#[test]
fn the_last_operations_are_paid_for() {
    let mut world = World::begun(1, 0);
    let _ = world.client.take_charges();
    world.counts[0][0] = counted(10, 4);
    world.wants = Wants { hits: true, counts: true };
    world.see();
    world.see_more();
    let end_ns = world.now();
    world.tell(Input::End { end_ns });
    let charges = world.client.take_charges();
    let [Charged { charge: Charge::Traced, units: 4, cost_ns }] = charges[..] else { panic!("{charges:?}") };
    assert!((cost_ns - 4.0 * 500.0).abs() < 1e-9, "{cost_ns}");
}

#[test]
fn less_is_recorded_where_steps_cost_the_agent_more_than_it_may_use() {
    let quota = |has_steps: bool, slower: f64| {
        let mut world = World::begun(1, 1);
        world.client.settings.has_steps = has_steps;
        world.grant.agent = (slower, 0.08);
        let mut last = None;
        let mut said = Vec::new();
        for _ in 0..500 {
            world.turn();
            for order in &world.orders {
                if let Order::Operation(OperationOrder::RecordingQuota { quota_ns, .. }) = order {
                    last = Some(*quota_ns);
                }
            }
            said.append(&mut world.said);
        }
        let end_ns = world.now();
        world.wants = Wants { hits: true, counts: true };
        world.see();
        world.see_more();
        world.tell(Input::End { end_ns });
        let is_it = |text: &&String| text.contains("--agent-cpu 8.0%");
        let warned = world.orders.iter().filter_map(|order| match order {
            Order::Warn(text) => Some(text),
            _ => None,
        });
        (last.unwrap() as f64, (said.iter().filter(is_it).count(), warned.filter(is_it).count()))
    };
    let (all, quiet) = quota(true, 1.0);
    assert!(all > 0.0 && quiet == (0, 0));
    let (quarter, told) = quota(true, 4.0);
    assert!((quarter - all / 4.0).abs() <= 1.0, "{quarter} of {all}");
    assert_eq!(told, (1, 1), "said once, and once more at the end");
    assert_eq!(quota(false, 4.0), (all, (0, 0)), "counters cost the agent nothing");
}
