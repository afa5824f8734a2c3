use super::*;

const S: u64 = 1_000_000_000;

/// An agent at a limit of 2 % that uses `fixed(second) + varying(second) / slowdown` CPU s/s for so long: it, what it used from the fifth second
/// on, CPU s/s, and its largest slowdown.
fn agent(fixed: impl Fn(u64) -> f64, varying: impl Fn(u64) -> f64, seconds: u64) -> (AgentLimit, f64, f64) {
    let mut agent = AgentLimit::new(0.02);
    let (mut cpu_s, mut since_s, mut slowest) = (0.3, 0.0, 1.0_f64);
    for tick in 1..=seconds * 10 {
        let second = tick / 10;
        cpu_s += 0.1 * (fixed(second) + varying(second) / agent.slowdown());
        if tick == 50 {
            since_s = cpu_s;
        }
        agent.note((cpu_s * 1e9) as u64, tick * S / 10);
        slowest = slowest.max(agent.slowdown());
    }
    (agent, (cpu_s - since_s) / (seconds as f64 - 5.0), slowest)
}

fn is_as_planned(agent: &AgentLimit) -> bool {
    (agent.slowdown() - 1.0).abs() < 1e-9
}

#[test]
fn an_agent_within_its_limit_is_as_fast_as_planned() {
    let (_, used, slowest) = agent(|_| 0.005, |_| 0.012, 60);
    assert!(slowest == 1.0 && used < 0.02, "{slowest}, {used}");
}

#[test]
fn the_start_is_not_counted() {
    let (_, _, slowest) = agent(|_| 0.005, |second| if second < 5 { 0.5 } else { 0.01 }, 20);
    assert_eq!(slowest, 1.0);
}

#[test]
fn a_target_that_keeps_32_cpus_busy_is_sampled_more_rarely() {
    let (agent, used, _) = agent(|_| 0.005, |_| 0.12, 180);
    assert!(used < 0.023 && used > 0.012, "{used}");
    // 0.12 / 8 + 0.005 is the limit.
    assert!(agent.slowdown() > 6.0 && agent.slowdown() < 16.0, "{agent:?}");
}

#[test]
fn half_too_much_keeps_to_the_limit_over_its_first_seconds() {
    // As in the demo: 20 s, of which the last 15 count.
    for fixed in [0.004, 0.008, 0.012] {
        let (_, used, _) = agent(|_| fixed, |_| 0.03 - fixed, 20);
        assert!(used < 0.0202, "{fixed}: {used}");
    }
}

#[test]
fn what_slowing_can_mend_is_mended_however_much_it_cannot() {
    for (fixed, varying) in [(0.016, 0.012), (0.017, 0.010), (0.018, 0.010), (0.014, 0.02)] {
        let (_, used, _) = agent(|_| fixed, |_| varying, 600);
        assert!(used < 0.0205, "{fixed} {varying}: {used}");
    }
}

#[test]
fn ten_times_too_many_samples_are_slowed_within_seconds() {
    let (_, used, _) = agent(|_| 0.002, |_| 0.6, 60);
    // Two or three seconds of 60 % are 2 to 3 of the 55.
    assert!(used < 0.05, "{used}");
}

#[test]
fn it_is_fast_again_when_there_is_less_to_do() {
    let (agent, _, _) = agent(|_| 0.005, |second| if second < 60 { 0.12 } else { 0.006 }, 120);
    assert!(is_as_planned(&agent), "{agent:?}");
}

#[test]
fn lumps_within_the_limit_slow_it_for_a_while_at_most() {
    // 100 ms every 10 s, 60 ms every 5 s: 1.6 and 1.8 % on average. 50 ms in each of two seconds of ten.
    for (every, seconds, lump) in [(10, 1, 0.1), (5, 1, 0.06), (10, 2, 0.05)] {
        let fixed = |second: u64| 0.003 + if second % every < seconds { lump } else { 0.0 };
        let (agent, _, slowest) = agent(fixed, |_| 0.003, 300);
        assert!(slowest < 4.0 && agent.slowdown() < 2.0, "{every} {seconds}: {slowest} {agent:?}");
    }
}

#[test]
fn a_library_that_is_read_for_two_seconds_is_forgotten_within_half_a_minute() {
    let fixed = |second| if second == 20 || second == 21 { 1.0 } else { 0.006 };
    let (agent, _, slowest) = agent(fixed, |_| 0.006, 50);
    assert!(slowest < 32.0 && is_as_planned(&agent), "{slowest} {agent:?}");
}

#[test]
fn what_slowing_does_not_mend_is_given_up_and_told() {
    for (fixed, samples) in [(0.05, 0.003), (0.021, 0.003), (0.023, 0.003), (0.025, 0.003)] {
        let (agent, used, _) = agent(|_| fixed, |_| samples, 120);
        assert!(agent.slowdown() < 2.0, "{fixed}: {agent:?}");
        let told = agent.overshoot().unwrap_or_else(|| panic!("{fixed}: {used}"));
        assert!((told.used - used).abs() < 0.002 && !told.is_mended, "{fixed}: {told:?} {used}");
    }
    assert_eq!(agent(|_| 0.005, |_| 0.012, 60).0.overshoot(), None);
}

#[test]
fn what_was_too_much_until_it_was_slowed_is_told_as_that() {
    let told = agent(|_| 0.002, |_| 0.6, 60).0.overshoot();
    assert!(told.is_some_and(|told| told.is_mended && told.used > 0.022), "{told:?}");
}

#[test]
fn a_load_that_comes_later_is_not_taken_for_what_slowing_does_not_mend() {
    for high in [0.05, 0.2, 0.3, 0.5] {
        let (_, used, _) = agent(|_| 0.004, |second| if second < 40 { 0.006 } else { high }, 140);
        assert!(used < 0.05, "{high}: {used}");
    }
    // Ten seconds of work, ten of rest: 10.5 % unslowed.
    let (_, used, _) = agent(|_| 0.004, |second| if second % 20 < 10 { 0.2 } else { 0.001 }, 200);
    assert!(used < 0.045, "{used}");
}

#[test]
fn a_load_that_comes_while_slowing_is_on_trial_is_slowed() {
    for at in 5..16 {
        let (agent, used, _) = agent(|_| 0.004, |second| if second < at { 0.04 } else { 0.2 }, 70);
        assert!(used < 0.055, "{at}: {used}");
        assert!(agent.slowdown() > 6.0, "{at}: {agent:?}");
    }
}

#[test]
fn it_is_not_stuck_at_the_slowest_where_slowing_brings_nothing_any_more() {
    // A minute of much work; then 2.1 % whatever is done, and 0.2 % more at full speed.
    let (agent, used, _) = agent(|_| 0.021, |second| if second < 60 { 0.12 } else { 0.002 }, 330);
    assert!(agent.slowdown() < 2.0, "{agent:?}");
    assert!(used < 0.03 && agent.overshoot().is_some(), "{used}");
}

#[test]
fn the_limit_that_would_do_is_what_full_speed_would_take() {
    for (fixed, varying) in [(0.005, 0.12), (0.015, 0.06), (0.0, 0.3), (0.012, 0.03)] {
        let (agent, _, slowest) = agent(|_| fixed, |_| varying, 60);
        assert!(slowest > 1.5);
        let (would, truly) = (agent.would_do(), fixed + varying);
        assert!((would / truly - 1.0).abs() < 0.15, "{fixed} {varying}: {would}, not {truly}");
    }
    // A load that comes when it is slow already.
    let (agent, ..) = agent(|_| 0.004, |second| if second < 40 { 0.06 } else { 0.24 }, 120);
    assert!((agent.would_do() / 0.244 - 1.0).abs() < 0.2, "{agent:?}");
    let (agent, ..) = self::agent(|_| 0.005, |_| 0.012, 60);
    assert_eq!(agent.would_do(), 0.02, "the limit does");
}

#[test]
fn another_plan_ends_what_was_on_trial() {
    let mut agent = AgentLimit::new(0.02);
    for used in [0.05, 0.05] {
        agent.judge(used);
    }
    assert!(agent.trial.is_some());
    agent.bound(60.0);
    assert!(agent.trial.is_some(), "next to the same");
    agent.bound(20.0);
    assert!(agent.trial.is_none() && agent.uses.is_empty());
}

#[test]
fn it_is_tried_whether_it_may_be_faster() {
    // 1.85 % at full speed, 1.66 % at the slowest: never far below the limit.
    let (agent, _, _) = agent(|_| 0.0165, |second| if second < 120 { 0.12 } else { 0.002 }, 1_200);
    assert!(agent.slowdown() < 1.5, "{agent:?}");
}

#[test]
fn it_is_slowed_no_further_than_samples_can_be() {
    let mut agent = AgentLimit::new(0.02);
    agent.bound(9.9);
    for second in 5..60 {
        let used = 0.005 + 0.19 / agent.slowdown();
        let before = agent.judged.map_or(0, |(cpu_ns, _)| cpu_ns);
        agent.note(before + (used * 1e9) as u64 + 1, second * S);
        assert!(agent.slowdown() <= 9.9 + 1e-9);
    }
    let slow = agent.slowdown();
    assert!(slow > 9.8 && agent.overshoot().is_some_and(|told| told.used > 0.022), "{agent:?}");
    // A plan that samples more rarely.
    agent.bound(4.0);
    assert_eq!(agent.slowdown(), 4.0);
}

#[test]
fn without_a_clock_nothing_is_slowed() {
    let mut agent = AgentLimit::new(0.02);
    (0..100).for_each(|second| agent.note(0, second * S));
    assert!(is_as_planned(&agent));
}
