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

fn function() -> LiveFunction {
    let spec: InputsSpec = "f:n=arg1:size".parse().unwrap();
    LiveFunction::new(Some(&spec.inputs), None, None)
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

/// Groups of the functions 1 and 2, and what was told of them.
fn two() -> (LiveGroups, u64, String) {
    let mut groups = LiveGroups::of(200, 0.5, 0);
    let mut now_ns = 0;
    (1..=2).for_each(|class| record(&mut groups, class, (300, 5), 3.0, None));
    let told = turns(&mut groups, |_| true, &mut now_ns);
    assert_eq!((told.len(), groups.hz(ClassId(1)), groups.hz(ClassId(2))), (1, 80.0, 80.0), "{told:?}");
    (groups, now_ns, told[0].text.clone())
}

/// Turns, 10 s apart, until all models that are due are made.
fn turns(groups: &mut LiveGroups, is_enough: impl Fn(ClassId) -> bool, now_ns: &mut u64) -> Vec<Regrouped> {
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
    // Many more calls: models are made anew, and nothing is said.
    (0..4).for_each(|_| record(&mut groups, 1, (300, 5), 3.0, None));
    assert_eq!(groups.due(|_| true), Some(ClassId(1)));
    assert!(turns(&mut groups, |_| true, &mut now_ns).is_empty());
    // It takes three times as long by now: it leaves the group, which is one no more.
    (0..200).for_each(|_| record(&mut groups, 2, (1_500, 30), 1.9, None));
    let ended = turns(&mut groups, |_| true, &mut now_ns);
    assert_eq!([1, 2].map(|class| groups.hz(ClassId(class))), [0.0, 0.0]);
    let why = "it is in no group by the latest models";
    let text = format!("--model: f1 ({why}), f2 ({why}) share no frequency any more");
    assert_eq!(ended, [Regrouped { classes: vec![ClassId(1), ClassId(2)], text }]);
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
    let spec: InputsSpec = "f:n=length".parse().unwrap();
    words.note(ClassId(1), &row(10, 10, None), || LiveFunction::new(Some(&spec.inputs), None, None));
    let mut many = LiveGroups::of(200, 0.02, 0);
    (0..200).for_each(|class| many.note(ClassId(class), &row(10, 10, None), function));
    assert_eq!([off, words, many].map(|groups| groups.classes.len()), [0, 0, MOST_FUNCTIONS]);
}

#[test]
fn what_is_known_is_grouped_although_models_are_due_and_nothing_is_left_to_make_them() {
    let (mut groups, mut now_ns, _) = two();
    (3..=4).for_each(|class| record(&mut groups, class, (300, 5), 3.0, None));
    let until = Instant::now() + Duration::from_secs(60);
    // A model comes, another one is due, and there is a debt.
    groups.ask(ClassId(3));
    groups.allowance.charge(1_000 * S);
    let told = loop {
        now_ns += S;
        let told = groups.turn(now_ns, |_| true, named);
        if !told.is_empty() || Instant::now() > until {
            break told;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(told.len(), 1, "the model of class 4 is due");
    assert_eq!(told[0].classes, [ClassId(1), ClassId(2), ClassId(3)]);
    assert_eq!(groups.due(|_| true), Some(ClassId(4)));
}

#[test]
fn a_function_without_a_model_is_served_before_a_hot_one_that_has_one() {
    let mut groups = LiveGroups::of(200, 0.5, 0);
    let mut now_ns = 0;
    record(&mut groups, 1, (300, 5), 3.0, None);
    turns(&mut groups, |_| true, &mut now_ns);
    (0..30).for_each(|_| record(&mut groups, 1, (300, 5), 3.0, None));
    record(&mut groups, 2, (300, 5), 3.0, None);
    assert_eq!(groups.due(|_| true), Some(ClassId(2)), "1,200 calls for 36,000 new ones");
    // It was asked for in vain, and has twice as many calls by now.
    groups.classes.get_mut(&ClassId(2)).unwrap().asked_at = 600;
    assert_eq!(groups.due(|_| true), Some(ClassId(2)));
    groups.classes.get_mut(&ClassId(2)).unwrap().asked_at = 601;
    assert_eq!(groups.due(|_| true), Some(ClassId(1)), "one call too few");
    record(&mut groups, 3, (300, 5), 3.0, None);
    (0..10).for_each(|_| record(&mut groups, 2, (300, 5), 3.0, None));
    assert_eq!(groups.due(|_| true), Some(ClassId(3)), "none was ever asked for");
}

#[test]
fn a_second_context_ends_the_group_without_another_model() {
    let (mut groups, now_ns, before) = two();
    groups.note(ClassId(2), &row(10, 350, Some(9)), function);
    let ended = groups.turn(now_ns + 10 * S, |_| true, named);
    assert_eq!([1, 2].map(|class| groups.hz(ClassId(class))), [0.0, 0.0]);
    let text = "--model: f1 (it is in no group by the latest models), f2 (it is called in several contexts) share no frequency any more";
    assert_eq!(ended.iter().map(|told| told.text.as_str()).collect::<Vec<_>>(), [text]);
    assert!(groups.turn(now_ns + 20 * S, |_| true, named).is_empty(), "it is told once");
    assert!(before.contains("f1, f2 share one frequency"), "{before}");
}

#[test]
fn another_frequency_of_the_same_functions_is_told() {
    let (mut groups, mut now_ns, before) = two();
    assert!(before.contains(", 80 recorded calls"), "{before}");
    (0..100).for_each(|_| record(&mut groups, 1, (300, 5), 4.0, None));
    let told = turns(&mut groups, |_| true, &mut now_ns);
    assert_eq!([1, 2].map(|class| groups.hz(ClassId(class))), [100.0, 100.0]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].text.starts_with("--model: f1, f2 share one frequency from now on, 100 recorded"));
}

#[test]
fn one_that_leaves_a_group_of_three_is_told_beside_the_group_that_is_left() {
    let (mut groups, mut now_ns, _) = two();
    record(&mut groups, 3, (300, 5), 3.0, None);
    let told = turns(&mut groups, |_| true, &mut now_ns);
    assert!(told.len() == 1 && told[0].classes.len() == 3, "{told:?}");
    groups.note(ClassId(1), &row(10, 350, Some(9)), function);
    let told = turns(&mut groups, |_| true, &mut now_ns);
    let texts: Vec<&str> = told.iter().map(|told| told.text.as_str()).collect();
    assert_eq!(texts[0], "--model: f1 (it is called in several contexts) shares no frequency any more");
    assert!(texts[1].starts_with("--model: f2, f3 share one frequency from now on, 80"), "{texts:?}");
    assert_eq!(texts.len(), 2);
}

#[test]
fn other_inputs_begin_anew_and_functions_that_keep_theirs_go_on() {
    let (mut groups, mut now_ns, _) = two();
    groups.forget(&BTreeSet::from([ClassId(2)]));
    assert_eq!((groups.hz(ClassId(2)), groups.due(|_| true)), (0.0, None));
    assert!(groups.classes[&ClassId(1)].model.is_some(), "its inputs are the same");
    let ended = turns(&mut groups, |_| true, &mut now_ns);
    assert!(ended.len() == 1 && ended[0].text.contains("f2 (its inputs are others by now)"), "{ended:?}");
    assert_eq!(groups.hz(ClassId(1)), 0.0);
    record(&mut groups, 2, (300, 5), 1.9, None);
    let told = turns(&mut groups, |_| true, &mut now_ns);
    assert!(told.len() == 1 && told[0].text.contains("f1, f2 share one frequency"), "{told:?}");
    // All of them: nothing is left, and that is told.
    groups.forget(&BTreeSet::from([ClassId(1), ClassId(2)]));
    let ended = turns(&mut groups, |_| true, &mut now_ns);
    assert!(ended.len() == 1 && ended[0].classes.len() == 2, "{ended:?}");
}

#[test]
fn groups_end_where_models_are_made_no_more() {
    let (mut groups, mut now_ns, _) = two();
    let maker = groups.maker.as_mut().unwrap();
    maker.done = channel().1;
    maker.is_busy = true;
    let ended = turns(&mut groups, |_| true, &mut now_ns);
    assert!(ended.len() == 1 && ended[0].text.contains("because of a defect"), "{ended:?}");
    assert_eq!(groups.hz(ClassId(1)), 0.0);
    record(&mut groups, 1, (300, 5), 3.0, None);
    assert!(groups.classes.is_empty());
}

/// What a function's inputs are is worked out once, also of one that has no model: its calls may come by the ten thousand.
#[test]
fn a_function_without_a_model_is_looked_at_once() {
    let mut groups = LiveGroups::of(200, 0.5, 0);
    let asked = std::cell::Cell::new(0);
    let variadic = || {
        asked.set(asked.get() + 1);
        LiveFunction::new(None, Some(&"format=arg0:pointer,...".parse().unwrap()), None)
    };
    (0..100).for_each(|n| groups.note(ClassId(1), &row(n, 300, None), variadic));
    assert_eq!((asked.get(), groups.classes.len()), (1, 0));
    groups.forget(&BTreeSet::from([ClassId(1)]));
    groups.note(ClassId(1), &row(1, 300, None), variadic);
    assert_eq!(asked.get(), 2, "its inputs are others");
}
