//! Links that the breaker takes while they are being opened.

use super::*;

/// Nothing was seen: the breaker took the link for this class, or for another one on it.
fn void(request: &BurstRequest, itself: bool) -> BurstOutcome {
    BurstOutcome { elapsed_ns: 0, hits: 0, ..seen(request, itself) }
}

fn seen(request: &BurstRequest, quota: bool) -> BurstOutcome {
    BurstOutcome {
        class: request.class,
        start_ns: 0,
        elapsed_ns: 50_000_000,
        hits: 3,
        extra_hits: 0,
        off_ns: 10_000,
        target_cpu_ns: 0,
        threads: 1,
        other_cost_ns: 0,
        stopped_by: if quota { StoppedBy::Quota } else { StoppedBy::Window },
    }
}

fn step(survey: &mut Survey, now_ns: u64) -> Vec<BurstRequest> {
    match survey.next_step(now_ns, 1.0, cheap) {
        Step::Run(requests) => requests,
        Step::Wait { .. } | Step::Pause { .. } | Step::Done(_) => Vec::new(),
    }
}

/// Forty that no sample showed, eight on a link; those of `hot` take theirs while it is being opened, for ever.
fn forty(hot: &[u32]) -> Survey {
    let class = |id| SurveyClass { class: ClassId(id), tau: Price::fixed(700.0), rho: 0.0, weight: 1.0 };
    let classes: Vec<SurveyClass> = (0..40).map(class).collect();
    let mut survey = Survey::new(SurveyConfig::default(), 1.0, &classes);
    let mut now_ns = 0;
    while now_ns < 100 {
        let requests = step(&mut survey, now_ns);
        if requests.is_empty() || survey.stage != Stage::First {
            break;
        }
        for on_link in requests.chunk_by(|a, b| a.link == b.link && matches!(a.link, Link::Shared(_))) {
            let by = on_link.iter().map(|r| r.class).find(|c| hot.contains(&c.0));
            for request in on_link {
                survey.record(match by {
                    Some(by) => void(request, by == request.class),
                    None => seen(request, false),
                });
            }
        }
        now_ns += 1;
    }
    assert!(now_ns < 100, "for ever");
    survey
}

#[test]
fn neighbours_of_one_that_is_too_hot_to_open_are_measured() {
    for hot in [vec![3], vec![3, 5], vec![0, 1, 2, 3, 6, 20]] {
        let survey = forty(&hot);
        let unmeasured: Vec<u32> = survey.unmeasured().iter().map(|c| c.0).collect();
        assert_eq!(unmeasured, hot);
    }
}

#[test]
fn neighbours_are_opened_together_again_without_it() {
    let class = |id| SurveyClass { class: ClassId(id), tau: Price::fixed(700.0), rho: 0.0, weight: 1.0 };
    let classes: Vec<SurveyClass> = (0..40).map(class).collect();
    let mut survey = Survey::new(SurveyConfig::default(), 1.0, &classes);
    for request in step(&mut survey, 0) {
        let lost = request.class.0 < 8;
        survey.record(if lost { void(&request, request.class.0 == 3) } else { seen(&request, false) });
    }
    let again = step(&mut survey, 1);
    let (alone, together): (Vec<BurstRequest>, Vec<BurstRequest>) =
        again.into_iter().partition(|r| r.link == Link::Alone);
    assert_eq!(alone.iter().map(|r| r.class.0).collect::<Vec<_>>(), [3]);
    assert_eq!(together.iter().map(|r| r.class.0).collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 7]);
    assert!(together.iter().all(|r| r.link == Link::Shared(5)), "a link of its own number: {together:?}");
}

#[test]
fn a_pass_of_classes_that_were_all_aborted_is_not_waited_for() {
    let mut target = Target::new(12, &[(1e5, PUSH), (2e5, PUSH)]);
    let funds = SurveyFunds { income: 0.018, burst_limit_s: 0.004, ..SurveyFunds::default() };
    let config = SurveyConfig { funds, ..SurveyConfig::default() };
    let mut survey = Survey::new(config, 1.0, &target.survey_classes());
    let Step::Run(first) = survey.next_step(0, 1.0, cheap) else { panic!("no burst") };
    target.run(&first).0.into_iter().for_each(|o| survey.record(o));
    let Step::Run(second) = survey.next_step(1, 1.0, cheap) else { panic!("no burst") };
    assert!(second.len() == 2 && !survey.later.is_empty(), "{second:?}");
    survey.record(outcome(0, 0, 0, StoppedBy::Aborted));
    assert!(survey.later.iter().all(|(_, items)| items.len() == 1) && !survey.later.is_empty());
    survey.record(outcome(1, 0, 0, StoppedBy::Aborted));
    let step = survey.next_step(2, 1.0, cheap);
    assert!(!matches!(step, Step::Pause { .. }), "{step:?}");
}
