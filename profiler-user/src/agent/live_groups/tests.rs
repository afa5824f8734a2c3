use super::*;
use crate::config::InputsSpec;
use profiler_core::recording::{CallContext, CallPlace};
use std::time::{Duration, Instant};

const S: u64 = 1_000_000_000;

/// A call with `n` in `arg1`, in this context.
fn row(n: u64, ns: u64, outer: Option<u32>) -> EventRow {
    EventRow {
        time_ns: 1,
        class_id: 0,
        pid: 1,
        tid: 1,
        duration_ns: Some(ns),
        args: [None, Some(n), None, None, None, None],
        nested_cost_ns: Some(0),
        place: CallPlace { outer_class: outer, ..CallPlace::default() },
        context: CallContext::default(),
    }
}

fn function() -> Option<LiveFunction> {
    let spec: InputsSpec = "f:n=arg1:size".parse().unwrap();
    Some(LiveFunction { inputs: Some(spec.inputs), unused: 0 })
}

/// Calls of a class, `start + each * n` ns, with 12 sizes over `decades` decades from 10 on.
fn record(groups: &mut LiveGroups, class: u32, (start, each): (u64, u64), decades: f64, outer: Option<u32>) {
    for i in 0..1_200_u64 {
        let n = (10.0 * 10_f64.powf(decades * (i % 12) as f64 / 11.0)) as u64;
        groups.note(ClassId(class), &row(n, start + each * n + i % 7, outer), function);
    }
}

fn named(class: ClassId) -> Option<Named> {
    let name = format!("f{}", class.0);
    Some(Named { name: name.clone(), key: ("/lib/libwork.so".to_owned(), name) })
}

/// Turns, 10 s apart, until all models that are due are made.
fn turns(groups: &mut LiveGroups, is_enough: impl Fn(ClassId) -> bool, now_ns: &mut u64) -> Vec<Formed> {
    let until = Instant::now() + Duration::from_secs(60);
    let mut formed = Vec::new();
    loop {
        *now_ns += 10 * S;
        formed.extend(groups.turn(*now_ns, &is_enough, named));
        let is_busy = groups.maker.as_ref().is_some_and(|maker| maker.is_busy);
        if !is_busy && !groups.is_new && groups.due(&is_enough).is_none() {
            return formed;
        }
        assert!(Instant::now() < until, "no model is made");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn functions_of_like_times_share_the_frequency_of_the_widest_and_that_is_said_once() {
    let mut groups = LiveGroups::of(200, 0.5, 0);
    let mut now_ns = 0;
    record(&mut groups, 1, (300, 5), 3.0, None);
    record(&mut groups, 2, (400, 6), 1.9, None);
    record(&mut groups, 3, (300_000, 500), 3.0, None);
    record(&mut groups, 4, (300, 5), 3.0, Some(9));
    let formed = turns(&mut groups, |_| true, &mut now_ns);
    assert_eq!(formed.len(), 1, "{formed:?}");
    assert_eq!(formed[0].classes, [ClassId(1), ClassId(2)]);
    // 10 to 10,000: 4 decades, of which one has one size of 12.
    let hz = [1, 2, 3, 4].map(|class| groups.hz(ClassId(class)));
    assert_eq!(hz, [80.0, 80.0, 0.0, 0.0], "one alone and one of another caller keep their own bounds");
    assert!(
        formed[0]
            .text
            .starts_with("--model: f1, f2 share one frequency from now on, 80 recorded calls a second each"),
        "{formed:?}"
    );
    assert!(formed[0].text.contains("times within a factor of 1.3"), "{formed:?}");
    // Four times as many calls: models are made anew, and nothing is said.
    (0..4).for_each(|_| record(&mut groups, 1, (300, 5), 3.0, None));
    assert_eq!(groups.due(|_| true), Some(ClassId(1)));
    assert!(turns(&mut groups, |_| true, &mut now_ns).is_empty());
    // It takes three times as long by now: it leaves the group, which is one no more.
    (0..200).for_each(|_| record(&mut groups, 2, (1_500, 30), 1.9, None));
    assert!(turns(&mut groups, |_| true, &mut now_ns).is_empty());
    assert_eq!([1, 2].map(|class| groups.hz(ClassId(class))), [0.0, 0.0]);
}

#[test]
fn a_function_joins_once_it_has_its_data_points_and_its_context_is_one() {
    let mut groups = LiveGroups::of(200, 0.5, 0);
    let mut now_ns = 0;
    (1..=3).for_each(|class| record(&mut groups, class, (300, 5), 3.0, None));
    // Class 3 is called inside another function, too.
    record(&mut groups, 3, (300, 5), 3.0, Some(1));
    assert!(turns(&mut groups, |class| class.0 != 2, &mut now_ns).is_empty());
    assert_eq!((1..=3).map(|class| groups.hz(ClassId(class))).sum::<f64>(), 0.0);
    let formed = turns(&mut groups, |_| true, &mut now_ns);
    assert_eq!(formed.iter().map(|f| f.classes.clone()).collect::<Vec<_>>(), [[ClassId(1), ClassId(2)]]);
}

#[test]
fn making_models_keeps_to_its_part_of_the_agents_cpu() {
    let mut groups = LiveGroups::of(200, 0.02, 0);
    (1..=4).for_each(|class| record(&mut groups, class, (300, 5), 3.0, None));
    let until = Instant::now() + Duration::from_secs(60);
    // The first one at once; what it took is owed.
    let mut now_ns = S;
    while groups.classes[&ClassId(4)].model.is_none() && Instant::now() < until {
        now_ns += S;
        groups.turn(now_ns, |class| class.0 == 4, named);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(groups.classes[&ClassId(4)].model.is_some());
    // However long the first one took, all that came in meanwhile is had.
    groups.allowance.left_ns(now_ns);
    groups.allowance.charge(50_000_000);
    groups.turn(now_ns + S, |_| true, named);
    assert!(!groups.maker.as_ref().unwrap().is_busy, "a debt of 50 ms is 20 s of an eighth of 2 %");
    groups.turn(now_ns + 1_000 * S, |_| true, named);
    assert!(groups.maker.as_ref().unwrap().is_busy);
}

#[test]
fn what_is_not_wanted_is_not_kept() {
    let mut off = LiveGroups::of(0, 0.02, 0);
    record(&mut off, 1, (300, 5), 3.0, None);
    let mut words = LiveGroups::of(200, 0.02, 0);
    words.note(ClassId(1), &row(10, 10, None), || None);
    let mut many = LiveGroups::of(200, 0.02, 0);
    (0..200).for_each(|class| many.note(ClassId(class), &row(10, 10, None), function));
    assert_eq!([off, words, many].map(|groups| groups.classes.len()), [0, 0, MOST_FUNCTIONS]);
}

#[test]
fn other_inputs_begin_anew() {
    let mut groups = LiveGroups::of(200, 0.5, 0);
    let mut now_ns = 0;
    (1..=2).for_each(|class| record(&mut groups, class, (300, 5), 3.0, None));
    assert_eq!(turns(&mut groups, |_| true, &mut now_ns).len(), 1);
    assert_eq!(groups.hz(ClassId(1)), 80.0);
    groups.forget();
    assert_eq!((groups.hz(ClassId(1)), groups.due(|_| true)), (0.0, None));
    (1..=2).for_each(|class| record(&mut groups, class, (300, 5), 1.9, None));
    assert!(turns(&mut groups, |_| true, &mut now_ns).is_empty(), "the group was told");
    assert_eq!(groups.hz(ClassId(1)), 40.0);
}
