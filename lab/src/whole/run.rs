//! The loop of the agent, with simulated time.

use super::checks::{self, Watcher};
use super::target::{Metric, Scenario};
use super::world::{SAMPLE_NS, START_NS, World};
use profiler_core::burst::BurstPrices;
use profiler_core::class::ClassId;
use profiler_core::clients::overhead::Subject;
use profiler_core::clients::survey::Settings as SurveySettings;
use profiler_core::clients::trace::problem::Settings as TraceSettings;
use profiler_core::cost::Price;
use profiler_core::engine::{Driver, Input, Machine, Measuring, Run, Settings};
use profiler_core::ledger::HOLD_S;
use profiler_core::run::order::Ending;

/// Turn of the loop, and one where nothing has to end on time, ns.
const TURN_NS: (u64, u64) = (10_000_000, 25_000_000);
/// Least time between two looks at what waits to be attached, ns.
const LEAST_WAIT_NS: u64 = 500_000;
/// Links are waited for at the end, ns.
const DETACH_NS: u64 = 10_000_000_000;
/// Warm-up where functions were named, ns.
const NAMED_NS: u64 = 200_000_000;

/// What became of a simulated run.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// Name of the scenario.
    pub name: String,
    /// Its seed.
    pub seed: u64,
    /// A number made from all commands and their times.
    pub hash: u64,
    /// What was wrong.
    pub faults: Vec<String>,
    /// What the worst second cost over what it may.
    pub worst: f64,
    /// Plans, windows, trips, commands.
    pub counts: [u64; 4],
    /// Commands for classes that are not as the command takes for granted.
    pub idle: std::collections::BTreeMap<&'static str, u64>,
    /// A comparison has ended with a result.
    pub is_measured: bool,
}

/// Simulates a run, and judges it.
#[must_use]
pub fn simulate(scenario: &Scenario) -> Judgement {
    simulate_with(scenario, |_, _| ())
}

/// The same of a run to which something is added before it begins.
#[must_use]
pub fn simulate_with(scenario: &Scenario, prepare: impl FnOnce(&mut Run, &mut World)) -> Judgement {
    let mut world = World::new(scenario.clone());
    let mut run = new_run(&mut world);
    prepare(&mut run, &mut world);
    let mut driver = Driver::new(run, START_NS);
    let mut watcher = Watcher::default();
    if scenario.watch.launched {
        launch(&mut driver, &mut world);
    }
    turns(&mut driver, &mut world, &mut watcher);
    finish(&mut driver, &mut world);
    let worst = watcher.judge_seconds(&mut world);
    checks::judge_end(&mut world);
    checks::judge_ledger(&driver, &mut world);
    let log = &world.log;
    Judgement {
        name: scenario.name.clone(),
        seed: scenario.seed,
        hash: log.hash(),
        faults: log.faults().to_vec(),
        worst,
        counts: [log.plans, log.windows, log.trips, log.commands],
        idle: log.idle.clone(),
        is_measured: log.measured,
    }
}

fn new_run(world: &mut World) -> Run {
    let watch = world.scenario.watch;
    let ns = |s: f64| (s * 1e9) as u64;
    let prices = world.prices.clone();
    let settings = Settings {
        budget: watch.budget,
        cpus: watch.cpus,
        thread_share: watch.thread_share,
        agent_cpu: 0.02,
        sample: Price::fixed(SAMPLE_NS),
        plan_only: watch.plan_only,
        trace: TraceSettings {
            only_named: watch.only_named,
            fixed_rate_hz: watch.rate_hz,
            slow_links: watch.slow_links,
            links_wait: true,
            prices: BurstPrices::new(&prices, watch.cpus),
            objective: watch.objective,
            horizon_s: watch.seconds,
        },
        survey: SurveySettings {
            longest_ns: ns((watch.seconds * 0.3).min(3.0)),
            first_plan_ns: ns((watch.seconds * 0.45).min(4.5)),
            attach_s: prices.attach.seconds(),
            detach_delay_s: prices.detach_delay.seconds(),
            own_links: super::asking::OWN_LINKS,
        },
        seed: world.scenario.seed,
    };
    let warmup_ns = if watch.only_named { ns(1.2 * HOLD_S) } else { ns((0.15 * watch.seconds).min(1.5)) };
    let names = world.scenario.target.functions.iter().any(|f| f.named);
    let first_ns = if names { NAMED_NS.min(warmup_ns) } else { warmup_ns };
    let times = profiler_core::engine::Times {
        start_ns: START_NS,
        end_ns: Some(START_NS + ns(watch.seconds)),
        warmup_until_ns: START_NS + first_ns,
        discover_ns: START_NS + warmup_ns,
    };
    let mut run = Run::new(settings, times, prices, 0);
    if watch.metric != Metric::None {
        let is_counted = watch.metric == Metric::Functions;
        if is_counted {
            // Those that count are known before the run begins.
            world.find_counting();
        }
        let classes =
            if is_counted { (0..world.classes.len() as u32).map(ClassId).collect() } else { Vec::new() };
        let subject = Subject { name: "progress".to_owned(), is_counted, classes, choices: None };
        run.measure(Measuring::new(subject, None, START_NS, world.scenario.seed));
    }
    if !watch.launched {
        follow_operations(&mut run, world);
    }
    run
}

fn follow_operations(run: &mut Run, world: &mut World) {
    if let Some(operations) = world.follow_operations() {
        run.follow_operations(operations);
    }
}

/// A launched program is held until what is named is attached: first that of the program, then operations, then that of libraries.
fn launch(driver: &mut Driver, world: &mut World) {
    attach_before_start(driver, world);
    follow_operations(&mut driver.run, world);
    if driver.run.operations().is_some() {
        driver.tell(world, Input::Operations);
        attach_all(driver, world);
        // What became of it.
        driver.tell(world, Input::Operations);
    }
    attach_before_start(driver, world);
    world.asked.links = (0, 0);
    driver.tell(world, Input::Begins);
}

fn attach_before_start(driver: &mut Driver, world: &mut World) {
    driver.tell(world, Input::BeforeStart);
    world.search.wanted = None;
    let found = world.find(false);
    driver.tell(world, Input::Found(found));
    attach_all(driver, world);
}

fn attach_all(driver: &mut Driver, world: &mut World) {
    loop {
        let Ok(()) = driver.attach(world);
        if world.is_settled() {
            break;
        }
        world.advance_to(world.now_ns + LEAST_WAIT_NS);
    }
}

/// Until the run or the target ends.
fn turns(driver: &mut Driver, world: &mut World, watcher: &mut Watcher) {
    let mut next_ns = world.now_ns;
    let mut jump_s = world.scenario.trouble.jump_s;
    loop {
        let mut wake_ns = next_ns.min(world.report_ns().unwrap_or(u64::MAX));
        if driver.run.suspension().may_attach() {
            let retry_ns = world.retry_ns().map_or(u64::MAX, |ns| ns.max(world.now_ns + LEAST_WAIT_NS));
            wake_ns = wake_ns.min(retry_ns);
        }
        world.advance_to(wake_ns);
        if !world.is_alive() {
            return;
        }
        if world.now_ns < next_ns {
            let Ok(()) = driver.attach(world);
            watcher.look(driver, world);
            if world.is_settled() {
                next_ns = world.now_ns;
            }
            continue;
        }
        if world.chance.one_in(world.scenario.trouble.late_turn) {
            let held_ns = (world.chance.between((0.0, 0.5)) * 1e9) as u64;
            world.advance_to(world.now_ns + held_ns);
        }
        if let Some((_, by_s)) = jump_s.take_if(|(at_s, _)| world.seconds() >= *at_s) {
            world.jump((by_s * 1e9) as u64);
            world.advance_to(world.now_ns);
        }
        let Ok(goes_on) = driver.turn(world);
        watcher.look(driver, world);
        // The agent ends there and says why.
        if !goes_on || driver.run.take_failure().is_some() {
            return;
        }
        let quiet = driver.run.is_quiet(world.now_ns + TURN_NS.1)
            && world.is_settled()
            && world.links.iter().all(|l| l.state == super::state::LinkState::On);
        next_ns = world.now_ns + if quiet { TURN_NS.1 } else { TURN_NS.0 };
    }
}

/// The end of a run, as the agent has it.
fn finish(driver: &mut Driver, world: &mut World) {
    let end_ns = world.now_ns;
    driver.tell(world, Input::Ends);
    world.close_all(Ending::Soon);
    let until_ns = world.now_ns + DETACH_NS;
    loop {
        world.advance_to(world.now_ns + 2_000_000);
        let outcomes = world.answers();
        if !outcomes.is_empty() {
            driver.tell(world, Input::Outcomes(outcomes));
        }
        driver.collect(world);
        if world.is_detached() || world.now_ns >= until_ns {
            break;
        }
    }
    driver.tell(world, Input::Over { end_ns });
    driver.close_interval(world);
    let rows = driver.run.last_rows();
    world.log.add_rows(&rows);
}
