mod target;

use super::*;
use crate::stats::sim;
use target::{BOUND, EACH, METRIC, PLANNED, Sim, TURN_NS, Trouble, subject};

/// The states of one comparison.
const STATES: [&str; 6] = ["Waiting", "Before", "Detaching", "Off", "Settling", "After"];

/// A comparison in this state, after some that are whole.
fn in_state(state: &str) -> Sim {
    let mut sim = Sim::new(3);
    sim.run_s(20.0);
    sim.until("After");
    sim.until("Waiting");
    sim.until(state);
    assert!(sim.comparisons() >= 5);
    sim
}

#[test]
fn the_target_is_read_when_something_may_be_over() {
    let mark = Mark { progress: 0, cpu_ns: 0, time_ns: 0 };
    let before = window(mark, mark);
    let mut client = Overhead::new(subject(), 0, 0);
    for state in [
        State::Waiting { until_ns: 100 },
        State::Before { mark, until_ns: 100 },
        State::Off { before, since_ns: 0, mark, until_ns: 100 },
    ] {
        client.state = state;
        assert_eq!(
            (client.wanted_at(99), client.wanted_at(100)),
            (Wanted::Nothing, Wanted::Mark),
            "{state:?}"
        );
    }
    // When the links will be gone is not known.
    client.state = State::Detaching { before, since_ns: 50 };
    assert_eq!(client.wanted_at(50), Wanted::Mark);
    // What is made anew is looked at, and nothing is read.
    client.state = State::Settling { before, off: before, since_ns: 50, until_ns: None };
    assert_eq!(client.wanted_at(50), Wanted::View);
}

#[test]
fn a_steady_target_is_measured_and_the_truth_lies_in_the_interval() {
    let truth = EACH * f64::from(PLANNED + 1);
    let mut held = sim::Coverage::default();
    for seed in 0..10 {
        let mut sim = Sim::new(seed);
        sim.run_s(60.0);
        let result = sim.client.result(&sim.account()).unwrap();
        assert!((30..50).contains(&result.pairs), "{result:?}");
        assert!(result.high - result.low < 0.01, "{result:?}");
        held.note(crate::stats::Interval { low: result.low, high: result.high }, truth);
        assert_eq!(result.metric, "CPU time per unit of calls of step");
        assert!(result.note.contains("costs 0.10 %") && result.note.contains("operations"), "{result:?}");
        let notes = sim.orders.iter().filter(|o| matches!(o, Order::Note(_))).count();
        assert_eq!(notes, 1, "{:?}", sim.orders);
        assert!(!sim.orders.iter().any(
            |o| matches!(o, Order::Prices(factor) if *factor != 1.0) || matches!(o, Order::CutBudget(_))
        ));
        assert!(sim.client.leaves(METRIC) && sim.client.leaves(BOUND) && !sim.client.leaves(ClassId(0)));
        // A tenth of the run is off; 3 links of 50 us, twice, per cycle.
        assert!((1e-4..3e-4).contains(&sim.client.claim()), "{}", sim.client.claim());
    }
    held.check(0.8, 1.0, "steady targets");
}

#[test]
fn the_pilot_says_what_can_be_reached_before_the_plan_and_judges_with_it() {
    let mut sim = Sim::new(1);
    sim.trouble.survey = true;
    sim.run_s(10.0);
    assert_eq!((sim.state(), sim.orders.len()), ("Pilot".to_owned(), 0));
    sim.trouble.survey = false;
    sim.run_s(0.2);
    let Some(Order::Note(text)) = sim.orders.first() else { panic!("{:?}", sim.orders) };
    assert!(
        text.starts_with("overhead is checked on calls of step: windows of 100 ms off, one per 1.4 s"),
        "{text}"
    );
    assert!(text.contains("reachable after a minute: +-0."), "{text}");
}

#[test]
fn a_system_call_is_found_and_named() {
    let mut client = Overhead::new(
        Subject {
            name: "system calls".to_owned(),
            choices: Some(vec![None, Some("write".to_owned())]),
            ..Subject::default()
        },
        0,
        0,
    );
    let grant = Grant { allowed: 0.02, churn: 0.002 };
    let (mut orders, mut view) = (Vec::new(), View::default());
    view.target.own_cpu = 1.0;
    for i in 0..20 {
        view.now_ns = i * WINDOW_NS;
        assert_eq!(client.chosen(), None);
        let reading = Some(Reading::Counts { cpu_ns: i * 50_000_000, counts: vec![i * 99, i * 1_000] });
        let input = Input { running: i == 19, reading, end_ns: Some(60_000_000_000), ..Input::default() };
        client.step(input, &grant, &view, &mut orders);
    }
    assert_eq!((client.chosen(), client.metric()), (Some(1), "the system call write"));
    let [Order::Note(text)] = &orders[..] else { panic!("{orders:?}") };
    assert!(
        text.contains("on the system call write (found by itself)") && text.contains("by the end"),
        "{text}"
    );
}

#[test]
fn what_ends_in_the_middle_keeps_what_is_whole() {
    for state in STATES {
        let sim = in_state(state);
        let whole = estimate::measured("x", &sim.client.comparisons).unwrap();
        let result = sim.client.result(&sim.account()).unwrap();
        assert_eq!((result.pairs, result.value), (whole.pairs, whole.value), "{state}");
    }
    let mut early = Sim::new(3);
    early.run_s(2.0);
    assert_eq!(early.client.result(&early.account()), None);
}

#[test]
fn a_metric_that_stands_from_the_begin_is_given_up_in_words() {
    let mut sim = Sim::new(1);
    sim.trouble.stands = true;
    sim.run_s(8.0);
    assert!(sim.client.is_over());
    let why = "calls of step makes too little progress for windows of 0.8 s";
    assert_eq!(
        sim.orders,
        [
            Order::Note(format!("the overhead is not checked by a progress metric: {why}")),
            Order::NotObserved("check of the overhead".to_owned(), why.to_owned()),
            Order::Close(METRIC, Ending::Drain),
        ]
    );
}

#[test]
fn a_metric_that_stands_later_adds_nothing_and_leaves_nothing_off() {
    let mut sim = in_state("Waiting");
    let before = sim.client.result(&sim.account()).unwrap();
    sim.trouble.stands = true;
    sim.run_s(10.0);
    let after = sim.client.result(&sim.account()).unwrap();
    assert!(after.pairs <= before.pairs + 1 && !sim.client.is_over(), "{before:?} {after:?}");
    sim.until("Waiting");
    assert!(!sim.paused && sim.closed.is_empty());
}

#[test]
fn links_that_never_go_end_the_window_off() {
    let mut sim = in_state("Before");
    let whole = sim.comparisons();
    sim.trouble.stuck = true;
    sim.until("Detaching");
    let begun = sim.now;
    sim.until("Waiting");
    assert!((DETACH_LIMIT_NS..DETACH_LIMIT_NS + 5 * TURN_NS).contains(&(sim.now - begun)));
    assert_eq!(sim.comparisons(), whole);
    sim.trouble.stuck = false;
    sim.run_s(1.0);
    sim.open_all();
    sim.run_s(10.0);
    assert!(sim.comparisons() > whole);
}

/// Disturbs a comparison in each state for a second: what was begun does not count, and later ones do.
fn disturbed(begin: impl Fn(&mut Sim), end: impl Fn(&mut Sim)) {
    for state in STATES {
        let mut sim = in_state(state);
        let whole = sim.comparisons();
        begin(&mut sim);
        sim.run_s(1.0);
        assert!(!sim.client.is_off(), "{state}");
        assert_eq!((sim.comparisons(), sim.state()), (whole, "Waiting".to_owned()), "{state}");
        end(&mut sim);
        sim.run_s(20.0);
        assert!(sim.comparisons() >= whole + 5, "{state}");
        sim.until("After");
        assert!((0..PLANNED).all(|id| sim.is_open(ClassId(id))), "{state}");
    }
}

#[test]
fn a_storm_of_forks_voids_what_was_begun_in_each_state() {
    let begin = |sim: &mut Sim| {
        sim.close_all();
        sim.trouble.storm = true;
    };
    disturbed(begin, |sim| {
        sim.trouble.storm = false;
        sim.open_all();
    });
}

#[test]
fn a_survey_voids_what_was_begun_in_each_state() {
    disturbed(
        |sim| sim.trouble.survey = true,
        |sim| {
            sim.trouble.survey = false;
            sim.open_all();
        },
    );
}

#[test]
fn links_made_anew_void_what_was_begun_in_each_state() {
    for state in ["Waiting", "Before", "Settling", "After"] {
        let mut sim = in_state(state);
        let whole = sim.comparisons();
        sim.trouble.rearm = true;
        sim.close_all();
        sim.run_s(3.0);
        assert_eq!((sim.comparisons(), sim.state()), (whole, "Waiting".to_owned()), "{state}");
        sim.trouble.rearm = false;
        sim.open_all();
        sim.run_s(20.0);
        assert!(sim.comparisons() >= whole + 5, "{state}");
    }
}

#[test]
fn what_is_void_while_everything_is_off_goes_on_to_its_end() {
    for state in ["Detaching", "Off"] {
        let mut sim = in_state(state);
        sim.client.void(sim.now);
        assert_eq!(sim.state(), state);
    }
}

#[test]
fn a_window_off_waits_for_what_is_being_attached() {
    let mut sim = in_state("Before");
    sim.close(ClassId(1));
    sim.run_s(0.05);
    sim.open(ClassId(1), 7);
    // The opener is busy for longer than the window.
    sim.trouble.busy = true;
    sim.run_s(0.5);
    assert_eq!(sim.state(), "Before");
    sim.trouble.busy = false;
    sim.until("Detaching");
    assert_eq!(sim.closed.get(&ClassId(1)), Some(&7));
    sim.until("After");
    assert!(sim.is_open(ClassId(1)));
}

#[test]
fn a_clock_that_jumps_leaves_nothing_off() {
    for state in STATES {
        // The machine slept for an hour.
        let mut sim = in_state(state);
        sim.now += 3_600_000_000_000;
        sim.run_s(3.0);
        let whole = sim.comparisons();
        sim.run_s(20.0);
        assert!(sim.comparisons() >= whole + 5, "{state}");
        // It went back by half a minute and by a little.
        for back_ns in [30_000_000_000, 25_000_000] {
            let mut sim = in_state(state);
            let whole = sim.comparisons();
            sim.now -= back_ns;
            sim.turn();
            sim.turn();
            assert!(!sim.client.is_off(), "{state}");
            assert_eq!((sim.comparisons(), sim.state()), (whole, "Waiting".to_owned()), "{state}");
            sim.run_s(20.0);
            assert!(sim.comparisons() >= whole + 5, "{state}");
        }
    }
    let mut pilot = Sim::new(1);
    pilot.run_s(0.5);
    pilot.now -= 30_000_000_000;
    pilot.run_s(3.0);
    assert_ne!(pilot.state(), "Pilot");
}

#[test]
fn a_target_that_cannot_be_read_is_not_left_without_watching() {
    for state in STATES {
        let mut sim = in_state(state);
        sim.trouble.unread = true;
        sim.run_s(5.0);
        assert!(!sim.client.is_off() && !sim.paused, "{state}");
    }
}

#[test]
fn what_is_given_up_is_put_back_in_each_state() {
    for state in STATES {
        let mut sim = in_state(state);
        let whole = sim.comparisons();
        sim.orders.clear();
        let mut orders = Vec::new();
        sim.client.give_up("the breaker stopped calls of step".to_owned(), &mut orders);
        assert!(sim.client.is_over() && !sim.client.is_off());
        sim.execute(orders);
        let Some(Order::Note(text)) = sim.orders.first() else { panic!("{:?}", sim.orders) };
        assert_eq!(
            text,
            "the overhead is not checked by a progress metric: the breaker stopped calls of step"
        );
        let given = sim.orders.len();
        sim.run_s(2.0);
        assert_eq!(sim.orders.len(), given, "{state}: nothing more is ordered");
        assert!(!sim.paused && sim.is_off(METRIC), "{state}");
        // What was still being closed is asked for by the controller.
        (0..PLANNED).for_each(|id| sim.open(ClassId(id), 1_000));
        sim.run_s(0.1);
        assert!((0..PLANNED).all(|id| sim.is_open(ClassId(id))), "{state}");
        // What is whole is kept.
        assert_eq!(sim.client.result(&sim.account()).unwrap().pairs as usize, whole);
        sim.client.give_up("again".to_owned(), &mut Vec::new());
        assert_eq!(
            (sim.client.wants(sim.now, true, Suspension::NONE), sim.client.claim()),
            (Wanted::Nothing, 0.0)
        );
    }
}

#[test]
fn prices_follow_what_was_measured() {
    let mut sim = Sim::new(5);
    // Half of what it costs.
    sim.compared = 0.01;
    sim.run_s(40.0);
    let prices = sim.orders.iter().position(|o| matches!(o, Order::Prices(_))).unwrap();
    let Order::Prices(factor) = sim.orders[prices] else { unreachable!() };
    assert!((1.5..2.5).contains(&factor), "{factor}");
    assert_eq!(sim.orders[prices + 1], Order::Replan(None));
    let Order::Detail(text) = &sim.orders[prices + 2] else { panic!("{:?}", sim.orders) };
    assert!(text.starts_with("prices are taken "), "{text}");
}

#[test]
fn a_target_whose_threads_wait_for_each_other_has_its_budget_cut() {
    let mut sim = Sim::new(5);
    // 4 % of wall time beside the 2 % of CPU time.
    sim.waits = 0.04;
    sim.run_s(60.0);
    let cuts: Vec<f64> = sim
        .orders
        .iter()
        .filter_map(|o| if let Order::CutBudget(cut) = o { Some(*cut) } else { None })
        .collect();
    assert!(cuts.last().is_some_and(|cut| (2.0..4.0).contains(cut)), "{cuts:?}");
    assert!(cuts.len() < 5, "small changes are noise: {cuts:?}");
    let why = |o: &Order| matches!(o, Order::Replan(Some(why)) if why.contains("the budget is cut by that"));
    assert_eq!(sim.orders.iter().filter(|o| why(o)).count(), cuts.len());
    assert!(sim.client.result(&sim.account()).unwrap().note.starts_with("wall time per unit grew by"));
}

#[test]
fn what_hits_cost_more_than_calibrated_is_in_the_prediction_that_waiting_is_compared_with() {
    let last_cut = |prices| {
        let mut sim = Sim::new(5);
        (sim.waits, sim.prices) = (0.04, prices);
        sim.run_s(60.0);
        let cut = |o: &Order| if let Order::CutBudget(cut) = o { Some(*cut) } else { None };
        sim.orders.iter().filter_map(cut).next_back().unwrap()
    };
    let (alone, dear) = (last_cut(1.0), last_cut(2.0));
    // 1 + e / P, and P is twice as much.
    assert!(((alone - 1.0) / (dear - 1.0) / 2.0 - 1.0).abs() < 0.2, "{alone} {dear}");
}

#[test]
fn nothing_open_and_nothing_to_put_back_is_compared_as_well() {
    let mut sim = in_state("Waiting");
    sim.close_all();
    sim.run_s(1.0);
    let whole = sim.comparisons();
    // Only samples are taken.
    sim.run_s(20.0);
    assert!(sim.comparisons() >= whole + 5);
}

/// One of the things that happen to a run.
fn happen(sim: &mut Sim, what: u32) {
    let off = sim.client.is_off();
    match what {
        0 => {
            sim.trouble.storm = !sim.trouble.storm;
            if sim.trouble.storm { sim.close_all() } else { sim.open_all() }
        }
        1 if !off && !sim.trouble.rearm => {
            sim.trouble.rearm = true;
            sim.close_all();
        }
        2 => sim.trouble.rearm = false,
        3 => sim.trouble.survey = !sim.trouble.survey && !off,
        4 => sim.trouble.stuck = !sim.trouble.stuck,
        5 => sim.trouble.unread = !sim.trouble.unread,
        6 => sim.trouble.stands = !sim.trouble.stands,
        7 => sim.now += 5_000_000_000,
        8 => sim.now -= 1_000_000_000,
        9 if !off => drop(sim.close(ClassId(0))),
        10 if !off => sim.open_all(),
        _ => {}
    }
}

#[test]
fn whatever_happens_nothing_is_opened_while_off_and_nothing_stays_off() {
    use rand::RngExt as _;
    for seed in 0..40 {
        let mut sim = Sim::new(seed);
        let mut random = sim::rng(seed);
        for _ in 0..3_000 {
            if random.random_range(0..40) == 0 {
                let what = random.random_range(0..12);
                happen(&mut sim, what);
            }
            // The checks of each turn are in the target.
            sim.turn();
        }
        sim.trouble = Trouble::default();
        sim.run_s(1.0);
        if !sim.client.is_off() {
            sim.open_all();
        }
        let whole = sim.comparisons();
        sim.run_s(30.0);
        assert!(sim.client.is_over() || sim.comparisons() > whole, "{seed}: {:?}", sim.client.state);
        let mut orders = Vec::new();
        sim.client.give_up("the end".to_owned(), &mut orders);
        sim.execute(orders);
        assert!(!sim.paused && sim.closed.is_empty(), "{seed}");
    }
}
