use super::*;
use crate::recording::WindowKind;
use crate::recording::plain_window;
use crate::run::view::{ClassView, SamplesView, TargetView, plain_class};

const MS: u64 = 1_000_000;

const SETTINGS: Settings = Settings {
    longest_ns: 5_000 * MS,
    first_plan_ns: 10_000 * MS,
    attach_s: 60e-6,
    detach_delay_s: 8e-3,
    own_links: 24,
};

const GRANT: Grant = Grant {
    funds: SurveyFunds { burst_limit_s: 1.0, most_granted_s: 1.0, least_full_s: 0.0, income: 1.0 },
    now_s: 1.0,
};

fn class(id: u32, samples: u64) -> ClassView {
    ClassView { samples, sampled_ns: samples * 10 * MS, ..plain_class(id, 1_000.0) }
}

/// Two classes; the second is in half of the samples.
fn view(now_ms: u64) -> View {
    View {
        now_ns: now_ms * MS,
        classes: vec![class(0, 5), class(1, 50)],
        target: TargetView { own_cpu: 1.0, cpus: 4, working_threads: 1, ..TargetView::default() },
        samples: SamplesView { n: 100, cpu_ns: 1_000 * MS, rate_hz: 99.0, ..SamplesView::default() },
        ..View::default()
    }
}

/// A survey of both, which began at 1 s and ends at 6 s.
fn begun() -> SurveyClient {
    let mut client = SurveyClient::new(SETTINGS);
    let price = Price::fixed(700.0);
    client.begin(&[(ClassId(0), price), (ClassId(1), price)], None, GRANT.funds, &view(1_000));
    client
}

fn step(client: &mut SurveyClient, now_ms: u64) -> (Vec<Order>, Option<Vec<RateEstimate>>) {
    let mut orders = Vec::new();
    let over = client.step(&GRANT, &view(now_ms), |rates| vec!["sample"; rates.len()], &mut orders);
    (orders, over)
}

fn ended(client: &mut SurveyClient, now_ms: u64, open: &[u32]) -> Vec<Order> {
    let mut orders = Vec::new();
    client.end_windows(now_ms * MS, |id| open.contains(&id.0), &mut orders);
    orders
}

/// The windows that were asked for: class and length, ns.
fn asked(orders: &[Order]) -> Vec<(u32, u64)> {
    let windows = |order: &Order| match order {
        Order::OpenSurvey { windows, .. } => windows.iter().map(|w| (w.0.0, w.2)).collect(),
        _ => Vec::new(),
    };
    orders.iter().flat_map(windows).collect()
}

fn opened(client: &mut SurveyClient, (id, window_ns): (u32, u64), at_ms: u64) {
    let purpose = Purpose::Survey(window_ns);
    client.heed(&Outcome { number: 0, class: ClassId(id), purpose, opened: Ok(at_ms * MS) });
}

fn row(id: u32, from_ms: u64, to_ms: u64, kept: u64) -> WindowRow {
    let row = plain_window(ClassId(id), WindowKind::Survey, (from_ms * MS, to_ms * MS), kept);
    WindowRow { tau_ns: 700.0, ..row }
}

#[test]
fn a_survey_lasts_no_longer_than_it_may() {
    let ends = |first, now_ms| {
        let mut client = SurveyClient::new(SETTINGS);
        assert!(client.is_over(0), "none runs");
        client.begin(&[(ClassId(0), Price::fixed(700.0))], first, GRANT.funds, &view(now_ms));
        (1..).find(|ms| client.is_over(ms * MS)).unwrap()
    };
    assert_eq!(ends(None, 1_000), 6_000);
    // The first plan is due so long after the start; a fourth of a survey is had in any case.
    assert_eq!(ends(Some(500 * MS), 1_000), 10_500);
    assert_eq!(ends(Some(500 * MS), 10_000), 11_250);
}

#[test]
fn a_window_ends_when_its_own_time_is_over() {
    let mut client = begun();
    let (orders, over) = step(&mut client, 1_000);
    let windows = asked(&orders);
    assert!(over.is_none() && windows.len() == 2, "{orders:?}");
    assert!(client.reserved_ns() > 0.0);
    let until =
        |order: &Order| matches!(order, Order::OpenSurvey { until_ns, .. } if *until_ns == 6_000 * MS);
    assert!(orders.iter().all(until), "{orders:?}");
    // Their clocks run from when they are open.
    for window in &windows {
        opened(&mut client, *window, 1_100);
    }
    let end_ms = 1_100 + windows[0].1 / MS;
    assert_eq!(ended(&mut client, end_ms - 1, &[0, 1]), []);
    let soon = |id| Order::Close(ClassId(id), Ending::Soon);
    let closed = ended(&mut client, end_ms, &[0, 1]);
    assert!(closed.contains(&soon(0)) && closed.contains(&soon(1)), "{closed:?}");
    assert_eq!(ended(&mut client, end_ms + 1, &[0, 1]), []);
}

#[test]
fn a_window_that_is_over_has_no_clock() {
    let mut client = begun();
    let windows = asked(&step(&mut client, 1_000).0);
    opened(&mut client, windows[0], 1_100);
    let id = windows[0].0;
    let mut orders = Vec::new();
    client.window_ended(&row(id, 1_100, 1_101, 9), (true, 1_102 * MS), 1, &mut orders);
    assert_eq!(orders, []);
    // Opened again meanwhile, for the next look.
    assert_eq!(ended(&mut client, 1_500, &[id]), []);
    // One that was over before it began is told of.
    client.window_ended(&row(id, 1_600, 1_600, 0), (true, 1_601 * MS), 1, &mut orders);
    assert!(matches!(&orders[..], [Order::Change(ChangeKind::Trial, Some(_), _)]), "{orders:?}");
}

#[test]
fn when_its_time_is_up_all_ends_and_nothing_more_is_opened() {
    let mut client = begun();
    let windows = asked(&step(&mut client, 1_000).0);
    for window in &windows {
        opened(&mut client, *window, 5_999);
    }
    let closed = ended(&mut client, 6_000, &[0, 1]);
    assert_eq!(closed.len(), 3, "{closed:?}");
    assert_eq!(closed.last(), Some(&Order::GiveUpSurvey));
    // What is open is waited for.
    assert!(!client.may_step(6_000 * MS, Links { waits: false, any: true }));
    assert!(client.may_step(6_000 * MS, Links { waits: false, any: false }));
    let (orders, rates) = step(&mut client, 6_000);
    assert_eq!((asked(&orders), rates.map(|r| r.len())), (vec![], Some(0)));
    assert!(matches!(&orders[..], [Order::Detail(text)] if text.contains("time is up")), "{orders:?}");
    assert_eq!(client.reserved_ns(), 0.0);
    // One that has not asked for anything yet asks for nothing either.
    let mut late = begun();
    let (orders, rates) = step(&mut late, 6_000);
    assert!(asked(&orders).is_empty() && rates.is_some(), "{orders:?}");
    assert_eq!(step(&mut late, 6_001), (vec![], None), "none runs");
}

#[test]
fn more_may_be_asked_for_when_what_was_asked_for_is_there() {
    let client = begun();
    assert!(!client.may_step(2_000 * MS, Links { waits: true, any: true }));
    assert!(client.may_step(2_000 * MS, Links { waits: false, any: true }));
}

#[test]
fn a_class_that_cannot_be_attached_is_not_asked_for_again() {
    let mut client = begun();
    for (id, window_ns) in asked(&step(&mut client, 1_000).0) {
        let purpose = Purpose::Survey(window_ns);
        client.heed(&Outcome { number: 0, class: ClassId(id), purpose, opened: Err(NotOpened::Refused) });
    }
    assert_eq!(client.reserved_ns(), 0.0);
    let (orders, rates) = step(&mut client, 1_100);
    assert_eq!((asked(&orders), rates.map(|r| r.len())), (vec![], Some(0)));
}

#[test]
fn what_others_asked_for_is_not_its_own() {
    let mut client = begun();
    step(&mut client, 1_000);
    let reserved_ns = client.reserved_ns();
    for (purpose, opened) in [
        (Purpose::Burst(MS), Ok(1_000 * MS)),
        (Purpose::Trace, Err(NotOpened::Refused)),
        (Purpose::Survey(MS), Err(NotOpened::Tripped)),
    ] {
        client.heed(&Outcome { number: 0, class: ClassId(0), purpose, opened });
    }
    assert_eq!(client.reserved_ns(), reserved_ns);
    assert_eq!(ended(&mut client, 2_000, &[0, 1]), []);
}

/// Both are watched until the survey is over, and nobody calls them: what is dormant then.
fn dormant_of(view_of: impl Fn(u64) -> View) -> Vec<u32> {
    let mut client = begun();
    let mut now_ms = 1_000;
    loop {
        let mut orders = Vec::new();
        let over = client.step(&GRANT, &view_of(now_ms), |rates| vec!["sample"; rates.len()], &mut orders);
        if over.is_some() {
            let of = |order: &Order| if let Order::Dormant(id) = order { Some(id.0) } else { None };
            return orders.iter().filter_map(of).collect();
        }
        let mut longest_ms = 10;
        for (id, window_ns) in asked(&orders) {
            let end_ms = now_ms + window_ns / MS;
            longest_ms = longest_ms.max(window_ns / MS);
            client.window_ended(&row(id, now_ms, end_ms, 0), (false, end_ms * MS), 1, &mut Vec::new());
        }
        now_ms += longest_ms;
    }
}

#[test]
fn what_samples_show_and_nobody_calls_is_dormant_unless_it_was_named() {
    // The other one has too few samples.
    assert_eq!(dormant_of(view), [1]);
    let named = |now_ms| {
        let mut view = view(now_ms);
        view.classes[1].traits.named = true;
        view
    };
    assert_eq!(dormant_of(named), [0u32; 0]);
}
