use crate::class::{ClassId, SiteClass};
use crate::clients::survey::Links;
use crate::engine::input::{Doubt, Input};
use crate::engine::interval::tests::run;
use crate::engine::{Command, Phase};
use crate::run::order::Order;
use crate::run::view::{View, plain_class};
use crate::units::OverheadBudget;

const MS: u64 = 1_000_000;
const IDLE: Links = Links { waits: false, any: false };

fn finds(commands: &[Command]) -> bool {
    commands.iter().any(|command| matches!(command, Command::Find { .. }))
}

/// What was named is in a module that comes while the run warms up.
#[test]
fn what_comes_in_the_warm_up_is_surveyed_with_the_rest() {
    let mut run = run(OverheadBudget::Share(0.02));
    let mut view = View { now_ns: 100 * MS, ..View::default() };
    assert!(finds(&run.step(Input::Modules, &mut view)));
    view.classes = vec![plain_class(0, 1_000.0)];
    run.step(Input::Found(vec![(ClassId(0), SiteClass::Push)]), &mut view);
    // Another one comes before the warm-up is over.
    view.now_ns = 200 * MS;
    assert!(finds(&run.step(Input::Modules, &mut view)));
    view.classes.push(plain_class(1, 1_000.0));
    run.step(Input::Found(vec![(ClassId(1), SiteClass::Push)]), &mut view);
    assert_eq!(run.phase(), Phase::Warmup);
    view.now_ns = 1_500 * MS;
    assert!(finds(&run.step(Input::Phases(IDLE), &mut view)));
    let commands = run.step(Input::Found(vec![]), &mut view);
    assert_eq!(run.phase(), Phase::Survey);
    let surveyed =
        |command: &Command| matches!(command, Command::Progress(text) if text == "surveying 2 functions");
    assert!(commands.iter().any(surveyed), "{commands:?}");
}

/// Classes that are closed at once, and those that get no return link any more.
fn dropped(doubt: Doubt) -> (Vec<ClassId>, Vec<(ClassId, String)>) {
    let mut run = run(OverheadBudget::Share(0.02));
    let mut view = View { classes: vec![plain_class(0, 1_000.0)], ..View::default() };
    let commands = run.step(Input::UnsafeLinks { classes: vec![ClassId(0)], doubt }, &mut view);
    let (mut closed, mut without) = (Vec::new(), Vec::new());
    for command in commands {
        match command {
            Command::Close(class, _) => closed.push(class),
            Command::NoReturnLink(class, why) => without.push((class, why)),
            other => panic!("{other:?}"),
        }
    }
    (closed, without)
}

#[test]
fn return_links_that_are_in_doubt_come_back() {
    let one = ClassId(0);
    assert_eq!(dropped(Doubt::Begins), (vec![one], vec![]));
    assert_eq!(dropped(Doubt::GoesOn), (vec![one], vec![]));
    let why = "it unwinds".to_owned();
    assert_eq!(dropped(Doubt::Unsafe(why.clone())), (vec![one], vec![(one, why)]));
}

/// The second may have nothing left of what they had before they were taken off.
#[test]
fn functions_of_operations_do_not_come_back_with_old_quotas() {
    let mut run = run(OverheadBudget::Share(0.02));
    let mut bound = plain_class(0, 1_000.0);
    (bound.traits.apart, bound.traits.role) = (true, crate::run::links::Role::Begin);
    let view = View { classes: vec![bound], ..View::default() };
    run.follow(vec![Order::Restore(vec![(ClassId(0), 500)])], &view);
    assert!(!run.commands.iter().any(|command| matches!(command, Command::Attach(_))), "{:?}", run.commands);
}

/// A budget that leaves next to nothing for samples: nobody takes shares without an interval for a defect.
#[test]
fn few_samples_are_told_once() {
    let mut run = run(OverheadBudget::Share(0.02));
    let mut view = View::default();
    let mut told = |hz: f64, view: &View| {
        run.tell_slower_samples(hz, view);
        std::mem::take(&mut run.commands).len()
    };
    assert_eq!([told(19.0, &view), told(2.0, &view), told(2.0, &view)], [0, 1, 0]);
    let mut off = self::run(OverheadBudget::Share(0.02));
    view.samples.off = true;
    off.tell_slower_samples(0.0, &view);
    assert!(off.commands.is_empty());
    let mut asked = self::run(OverheadBudget::Share(0.02));
    asked.settings.trace.fixed_rate_hz = Some(300.0);
    view.samples.off = false;
    asked.tell_slower_samples(150.0, &view);
    let text = format!("{:?}", asked.commands);
    assert!(text.contains("--sample-rate 300 is more than the budget pays for"), "{text}");
    assert!(text.contains("150.0 samples/s"), "{text}");
}

/// Ends of searches for functions that nobody named, ms, in a run that samples for 1.5 s first.
fn searches(end_ns: Option<u64>) -> Vec<u64> {
    let mut run = run(OverheadBudget::Share(0.02));
    run.times.end_ns = end_ns;
    let mut view = View::default();
    let mut at = Vec::new();
    for now_ms in (100..15_000).step_by(100) {
        view.now_ns = now_ms * MS;
        let commands = run.step(Input::Phases(IDLE), &mut view);
        if commands.iter().any(|command| matches!(command, Command::Find { discover: true })) {
            at.push(now_ms);
            run.step(Input::Found(vec![]), &mut view);
        }
    }
    at
}

#[test]
fn samples_are_asked_for_functions_twice() {
    assert_eq!(searches(None), [1_500, 6_000]);
    assert_eq!(searches(Some(12_000 * MS)), [1_500, 6_000]);
    assert_eq!(searches(Some(11_000 * MS)), [1_500]);
}
