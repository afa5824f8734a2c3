use crate::class::ClassId;
use crate::engine::input::{Ended, Input};
use crate::engine::interval::tests::run;
use crate::engine::{Command, Phase, Run};
use crate::recording::{WindowKind, WindowRow, plain_window};
use crate::run::order::{Order, Purpose};
use crate::run::outcome::{NotOpened, Outcome};
use crate::run::view::{LinkView, TargetView, View, plain_class};
use crate::units::OverheadBudget;
use std::collections::BTreeMap;

/// A function that is called every microsecond, and a slower one every 50 us.
fn view() -> View {
    View {
        classes: (0..2).map(|id| plain_class(id, 1_000.0)).collect(),
        target: TargetView { own_cpu: 1.0, ..TargetView::default() },
        ..View::default()
    }
}

fn running() -> Run {
    let mut run = run(OverheadBudget::Share(0.02));
    run.phase = Phase::Run;
    let rates: BTreeMap<ClassId, f64> = (0..).map(ClassId).zip([1e6, 2e4]).collect();
    let spreads = (0..2).map(|id| (ClassId(id), 0.3)).collect();
    run.activities.references.choose(&rates, &spreads, 1.0, &view());
    run
}

/// A burst of the function is asked for: links, each with what is wanted on it.
fn burst(run: &mut Run, view: &View) -> Vec<Vec<(u32, Purpose)>> {
    let open = |class: u32| Order::Open {
        class: ClassId(class),
        kind: WindowKind::Burst,
        quota: 1_000,
        purpose: Purpose::Burst(5_000_000),
    };
    run.follow(vec![open(0)], view);
    let attach = |command| match command {
        Command::Attach(attach) => attach,
        other => panic!("{other:?}"),
    };
    let asked = std::mem::take(&mut run.commands).into_iter().map(attach);
    asked
        .map(|attach| {
            // One link for all of them.
            assert_eq!(attach.survey.is_some_and(|links| links.together), attach.wanted.len() > 1);
            attach.wanted.into_iter().map(|(id, _, purpose)| (id.0, purpose)).collect()
        })
        .collect()
}

const ALONE: [(u32, Purpose); 1] = [(0, Purpose::Burst(5_000_000))];
const BESIDE: [(u32, Purpose); 2] = [(0, Purpose::Burst(5_000_000)), (1, Purpose::Reference)];

#[test]
fn a_burst_has_its_reference_on_its_link_unless_that_is_elsewhere() {
    let mut run = running();
    assert_eq!(burst(&mut run, &view()), [BESIDE]);
    // Asked for, and so on another link.
    assert_eq!(burst(&mut run, &view()), [ALONE]);
    let outcome =
        Outcome { number: 1, class: ClassId(1), purpose: Purpose::Reference, opened: Err(NotOpened::NotNow) };
    run.heed(&outcome, &view());
    assert_eq!(burst(&mut run, &view()), [BESIDE]);
    // Its own burst is asked for with it, and after it.
    let open = |class: u32| Order::Open {
        class: ClassId(class),
        kind: WindowKind::Burst,
        quota: 1_000,
        purpose: Purpose::Burst(5_000_000),
    };
    for orders in [vec![open(0), open(1)], vec![open(1), open(0)]] {
        let mut run = running();
        run.follow(orders, &view());
        let all = run.commands.iter().map(|command| match command {
            Command::Attach(attach) => attach.wanted.len(),
            other => panic!("{other:?}"),
        });
        // The reference's alone: the function's waits.
        assert_eq!(all.sum::<usize>(), 1, "{:?}", run.commands);
    }
    let mut run = running();
    burst(&mut run, &view());
    run.follow(vec![open(1)], &view());
    assert!(run.commands.is_empty(), "{:?}", run.commands);
    // While it has a burst of its own, the function waits.
    let mut busy = view();
    busy.classes[1].link = LinkView::Open(WindowKind::Burst);
    assert!(burst(&mut running(), &busy).is_empty());
    // The plan traces it now.
    let mut traced = view();
    traced.classes[1].link = LinkView::Open(WindowKind::Trace);
    assert_eq!(burst(&mut running(), &traced), [ALONE]);
}

#[test]
fn a_references_window_is_told_to_nobody_and_ends_with_its_function() {
    let (mut run, mut view) = (running(), view());
    burst(&mut run, &view);
    for class in &mut view.classes {
        class.link = LinkView::Open(WindowKind::Burst);
    }
    run.close_references(&view);
    assert!(run.commands.is_empty());
    // Its function's window ended, or was never opened: nobody else would close it.
    view.classes[0].link = LinkView::Off;
    run.close_references(&view);
    assert!(matches!(run.commands[..], [Command::Close(ClassId(1), _)]), "{:?}", run.commands);
    let ended = |id: u32, kind: WindowKind| Ended {
        row: WindowRow { tripped: true, ..plain_window(ClassId(id), kind, (0, 1_000_000), 50) },
        number: 1,
        tripped_itself: true,
        watched_ns: 1_000_000,
        closed_ns: 1_000_000,
        age_ns: 1_000_000,
        expedited: false,
        remark: None,
        durations: Vec::new(),
        class: plain_class(id, 1_000.0),
    };
    run.commands.clear();
    run.step(Input::Ended(vec![ended(1, WindowKind::Burst)]), &mut view);
    assert!(!run.activities.references.is_lent(ClassId(1)));
    // No alarm of the plan: it had not asked for it.
    assert_eq!(run.trace.trips(), 0);
    run.step(Input::Ended(vec![ended(1, WindowKind::Burst)]), &mut view);
    assert_eq!(run.trace.trips(), 1, "of its own burst it is one");
}
