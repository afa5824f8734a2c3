//! What a survey asks for where tokens are few: quotas are cut, and a full bucket is enough.

use super::*;

#[test]
fn an_idle_target_waits_and_small_tokens_make_small_bursts() {
    let class = SurveyClass { class: ClassId(0), tau: Price::fixed(700.0), rho: 0.0, weight: 1.0 };
    let mut survey = Survey::new(SurveyConfig::default(), 0.0, &[class]);
    let Step::Wait { cpu_s } = survey.next_step(0, 0.0, curious) else { panic!("spent what is not there") };
    // Eight hits and the reaction time.
    assert!((cpu_s - (8.0 * 0.7e-6 + 100e-6)).abs() < 1e-12);
    let Step::Run(requests) = survey.next_step(1, 120e-6, curious) else { panic!("no burst") };
    assert_eq!(requests[0].quota_hits, 28);
    // Nothing more until the outcome is known.
    assert_eq!(survey.next_step(2, 1.0, curious), Step::Wait { cpu_s: 0.0 });
}

/// One class at 0.7 us a hit, attached for 0.1 ms and off for 20 ms.
fn class_of(rho: f64) -> SurveyClass {
    SurveyClass { class: ClassId(0), tau: Price::fixed(700.0), rho, weight: 1.0 }
}

/// How the burst went, at this rate without dilation: to its quota, or to its window.
fn ran(request: &BurstRequest, hz: f64, now_ns: u64) -> BurstOutcome {
    let window_s = request.window_ns as f64 * 1e-9;
    let quota_s = request.quota_hits as f64 * (1.0 / hz + 0.7e-6);
    let hits = request.quota_hits.min((window_s * hz) as u64);
    let stopped_by = if quota_s < window_s { StoppedBy::Quota } else { StoppedBy::Window };
    let elapsed_ns = (quota_s.min(window_s) * 1e9) as u64;
    BurstOutcome { start_ns: now_ns, ..outcome(request.class.0, hits, elapsed_ns, stopped_by) }
}

#[test]
fn a_full_bucket_is_enough_for_a_link_that_may_cost_more() {
    // An idle service: the bucket holds 0.25 ms, a link costs 0.4 at worst.
    let config = SurveyConfig {
        attach_cost_s: 0.3e-3,
        funds: SurveyFunds { burst_limit_s: 0.175e-3, most_granted_s: 0.25e-3, ..SurveyFunds::default() },
        ..SurveyConfig::default()
    };
    let mut survey = Survey::new(config, 0.05, &[class_of(0.5)]);
    let Step::Wait { cpu_s } = survey.next_step(0, 0.16e-3, curious) else { panic!("not yet full") };
    assert!((cpu_s - 0.225e-3).abs() < 1e-12, "{cpu_s}");
    let request = one_burst(&mut survey, 1, 0.23e-3).expect("it is full");
    assert_eq!(request.quota_hits, config.least_hits);
}

/// In each stage: nothing before the bucket is full, then the most hits whose reserve is there.
#[test]
fn quotas_are_cut_to_a_full_bucket_in_every_stage() {
    let config = SurveyConfig {
        attach_cost_s: 0.1e-3,
        detach_delay_s: 20e-3,
        passes: 1,
        funds: SurveyFunds { burst_limit_s: 0.49e-3, most_granted_s: 0.7e-3, ..SurveyFunds::default() },
        ..SurveyConfig::default()
    };
    let mut survey = Survey::new(config, 1.0, &[class_of(0.5)]);
    let first = one_burst(&mut survey, 0, 0.7e-3).expect("a first look");
    survey.record(ran(&first, 2e4, 0));
    for (stage, now_ns) in
        [(Stage::Second, 100_000_000), (Stage::Rounds, 200_000_000), (Stage::Rounds, 300_000_000)]
    {
        assert_eq!(one_burst(&mut survey, now_ns, 0.62e-3), None, "{stage:?}: more will come");
        let tokens_s = 0.64e-3;
        let request = one_burst(&mut survey, now_ns, tokens_s).expect("it is full");
        assert_eq!(survey.stage, stage);
        let more = BurstRequest { quota_hits: request.quota_hits + 2, ..request };
        assert!((100..400).contains(&request.quota_hits), "{stage:?}: {request:?}");
        assert!(
            survey.reserve_s(&[request]) <= tokens_s && survey.reserve_s(&[more]) > tokens_s,
            "{stage:?}"
        );
        survey.record(ran(&request, 2e4, now_ns));
    }
}

#[test]
fn what_is_counted_for_a_time_keeps_its_quota() {
    // Attaching alone is more than will ever be there.
    let config = SurveyConfig {
        attach_cost_s: 1e-3,
        funds: SurveyFunds { burst_limit_s: 0.56e-3, most_granted_s: 0.8e-3, ..SurveyFunds::default() },
        ..SurveyConfig::default()
    };
    let mut survey = Survey::new(config, 1.0, &[class_of(0.5)]);
    let first = one_burst(&mut survey, 0, 0.75e-3).expect("a first look");
    survey.record(ran(&first, 20.0, 0));
    assert_eq!(one_burst(&mut survey, 100_000_000, 0.7e-3), None, "more will come");
    let request = one_burst(&mut survey, 100_000_000, 0.75e-3).expect("it is full");
    assert_eq!((survey.stage, request.link, request.window_ns), (Stage::Second, Link::Own, 500_000_000));
    assert!(request.quota_hits > 40, "its window of 10 calls is to end it: {request:?}");
}

#[test]
fn next_to_nothing_is_not_full_where_others_leave_nothing() {
    let funds = SurveyFunds { burst_limit_s: 0.0, most_granted_s: 0.0, least_full_s: 0.5e-3, income: 0.0 };
    let config = SurveyConfig { attach_cost_s: 1e-3, ..SurveyConfig::default() };
    let mut survey = Survey::new(config, 1.0, &[class_of(0.5)]);
    let first = one_burst(&mut survey, 0, 5e-3).expect("a first look");
    survey.record(ran(&first, 20.0, 0));
    survey.set_funds(funds);
    // It is timed, and not cut: on 1 ns it would take 1.1 ms.
    for tokens_s in [1e-9, 0.44e-3] {
        assert_eq!(one_burst(&mut survey, 100_000_000, tokens_s), None, "{tokens_s}");
    }
    let request = one_burst(&mut survey, 100_000_000, 0.46e-3).expect("others spend less by now");
    assert!(survey.stage == Stage::Second && survey.is_timed(&[request]), "{request:?}");
}
