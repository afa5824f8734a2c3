//! What must hold in every simulated run, whatever the ledger says of itself.

use super::state::State;
use super::target::{Forks, Life, Scenario};
use super::world::{SAMPLE_NS, START_NS, World};
use profiler_core::class::ClassId;
use profiler_core::engine::{Driver, Phase};
use profiler_core::ledger::Ledger;
use profiler_core::recording::Charge;
use profiler_core::run::arbiter::OPERATIONS_SHARE;
use profiler_core::run::order::Purpose;
use profiler_core::run::suspension::{Reason, Suspension};

/// A class that the plan has attached is asked for again by then, ns.
const MISSING_NS: u64 = 3_000_000_000;
/// A window off, and making links anew, are over by then, ns.
const SUSPENDED_NS: u64 = 8_000_000_000;
/// A child that carries breakpoints gets rid of them by then: two surveys, the time between two rounds of making links anew, slow links, ns.
const CARRYING_NS: u64 = 12_000_000_000;
/// The bucket holds so much of what comes in, s.
const BUCKET_S: f64 = 0.25;
/// A window is over so long after its time at the latest: the loop may be held up for half a second, and a drain takes 50 ms, ns.
const OVERDUE_NS: u64 = 1_500_000_000;
/// Longest window of a trial, ns.
const TRIAL_NS: u64 = 1_000_000_000;
/// The controller's lowest sampling rate, Hz of the target's CPU time.
const LOWEST_HZ: f64 = 10.0;
/// Hits by which quotas of small budgets are rounded.
const WHOLE_HITS: f64 = 16.0;
/// The same in a second in which the target begins to work: for two ticks it is sampled as before, at 199 Hz at most.
const WAKING_HZ: f64 = 50.0;
/// By then a run has gone on from its warm-up, beside the time by which the clock has jumped, s.
const WARM_S: f64 = 6.0;
/// CPU time of children with breakpoints that nobody can know of, in a run, ns.
const CHILDREN_NS: f64 = 2e5;
/// Between two looks at all classes, ns.
const LOOK_NS: u64 = 100_000_000;

/// What is looked at while a run goes on.
#[derive(Debug)]
pub struct Watcher {
    begun: u64,
    suspension: Suspension,
    /// Since when, ktime ns.
    suspended_since_ns: u64,
    looked_ns: u64,
    /// The smallest factor on calibrated prices that the run has taken, second by second.
    factors: Vec<f64>,
    /// It was said that the warm-up is not over.
    is_cold: bool,
}

impl Default for Watcher {
    fn default() -> Self {
        Self {
            begun: 0,
            suspension: Suspension::NONE,
            suspended_since_ns: 0,
            looked_ns: 0,
            factors: Vec::new(),
            is_cold: false,
        }
    }
}

impl Watcher {
    /// After each turn and each look at what waits to be attached.
    pub fn look(&mut self, driver: &Driver, world: &mut World) {
        let now = world.now_ns;
        let suspension = driver.run.suspension();
        let before = std::mem::replace(&mut self.suspension, suspension);
        let begun = std::mem::replace(&mut self.begun, world.asked.begun);
        // Not as the table of the suspension has it: that may be wrong.
        let is_held = |s: Suspension| s.is(Reason::Comparison) || s.is(Reason::Rearm);
        if is_held(before) && is_held(suspension) && begun != world.asked.begun {
            world.fault(|| format!("a link was begun while nothing may be attached: {suspension:?}"));
        }
        if is_held(suspension) {
            if !is_held(before) {
                self.suspended_since_ns = now;
            }
            if now - self.suspended_since_ns > SUSPENDED_NS {
                self.suspended_since_ns = now;
                world.fault(|| format!("nothing may be attached for too long: {suspension:?}"));
            }
        }
        let second = (now.saturating_sub(START_NS) / 1_000_000_000) as usize;
        let factor = driver.run.ledger().factor();
        if self.factors.len() <= second {
            self.factors.resize(second + 1, factor);
        }
        self.factors[second] = self.factors[second].min(factor);
        if now - self.looked_ns.min(now) >= LOOK_NS {
            self.looked_ns = now;
            self.look_at_classes(driver, world);
            self.look_at_children(driver, world);
            look_at_windows(world);
            self.look_at_phase(driver, world);
            let may = suspension == Suspension::NONE && driver.run.is_running() && world.is_alive();
            world.look_at_bounds(may);
        }
    }

    /// What the plan has attached is attached, or asked for again.
    fn look_at_classes(&self, driver: &Driver, world: &mut World) {
        let now = world.now_ns;
        let s = world.seconds();
        let may = self.suspension == Suspension::NONE && driver.run.is_running() && world.is_alive();
        let mut missing = None;
        for view in &driver.view().classes {
            let Some(class) = world.classes.get_mut(view.id.0 as usize) else { continue };
            let function = &world.scenario.target.functions[class.function];
            let is_missing = may
                && view.traits.held_by_plan
                && class.state == State::Off
                && class.refused.is_none()
                && function.is_mapped(s);
            if !is_missing {
                class.missing_since_ns = None;
            } else if now - *class.missing_since_ns.get_or_insert(now) > MISSING_NS {
                class.missing_since_ns = Some(now);
                missing = Some(view.id);
            }
        }
        if let Some(id) = missing {
            world.fault(|| format!("class {id} is to be attached, and nobody asks for it"));
        }
    }

    /// A run that never leaves its warm-up watches nothing.
    fn look_at_phase(&mut self, driver: &Driver, world: &mut World) {
        let jumped_s = world.scenario.trouble.jump_s.map_or(0.0, |(_, by_s)| by_s);
        let is_late = world.seconds() > WARM_S + jumped_s && driver.run.phase() == Phase::Warmup;
        if is_late && !std::mem::replace(&mut self.is_cold, is_late) {
            world.fault(|| "the warm-up is not over".to_owned());
        }
    }

    fn look_at_children(&self, driver: &Driver, world: &mut World) {
        let Some(since_ns) = world.children.carrying_since_ns() else { return };
        if driver.run.is_running() && world.now_ns - since_ns > CARRYING_NS {
            world.fault(|| "a child carries breakpoints for too long".to_owned());
            world.children.clean();
        }
    }

    /// How many times as dear as the run takes them hits really are in a second.
    fn dearer(&self, second: usize, price_factor: f64) -> f64 {
        let factor = self.factors.get(second).copied().unwrap_or(1.0);
        let before = second.checked_sub(1).and_then(|s| self.factors.get(s)).copied().unwrap_or(factor);
        (price_factor / factor.min(before)).max(1.0)
    }

    /// What a second may cost, ns:
    ///
    /// ```text
    /// hits through open gates + samples + switches  <=  d (allowed + bucket + floor + metric + whole) + late
    ///
    /// d        real prices over those that the run takes for true in this second or the one before
    /// allowed  what the budget allows in a second in which the target uses so much CPU time by itself; with operations also 0.8 of that in the
    ///          second before: they may take in a moment what they have not taken for a second, and how little the target does is not known then
    /// bucket   a quarter of that, or of what the second before allowed
    /// floor    samples at 10 Hz of CPU time, the controller's lowest rate, or at the rate that the user names; 50 Hz where it woke up
    /// metric   the quota of functions that count: a tenth of what a CPU is allowed, three times in a second; 100 hits twice a second
    /// whole    a quota is a whole number of hits, and at least one: 16 of the dearest
    /// late     samples of the CPU time that hits use between a trip and the closing: its rate was given for less
    /// ```
    /// A launched program is taken to use a CPU when it starts, and what it uses is smoothed over 2 s: `allowed` is not below
    /// what the budget allows at `e^(-t / 2 s)` CPUs. Not in the sum, because no gate decides on it: hits while a link is made or closed and
    /// between a trip and the closing ([`Second::turned_away_ns`](super::truth::Second)), the stalls of making and closing links, and what children pay.
    #[must_use]
    pub fn bound_ns(&self, world: &World, second: usize) -> f64 {
        let Scenario { target, watch, .. } = &world.scenario;
        let seconds = world.truth.seconds();
        let at = |second: usize| {
            let real_ns = seconds[second].allowed_ns;
            let starts = (-(second as f64) / 2.0).exp();
            if watch.launched { real_ns.max(watch.budget.cpu_per_second(starts) * 1e9) } else { real_ns }
        };
        let before_ns = at(second.saturating_sub(1));
        let bucket_ns = BUCKET_S * at(second).max(before_ns);
        let follows = target.functions.iter().any(|f| f.part.is_some());
        let allowed_ns = at(second).max(if follows { OPERATIONS_SHARE * before_ns } else { 0.0 });
        let before = &seconds[second.saturating_sub(2)..second];
        let woke = before.iter().any(|s| seconds[second].own_ns > 1.5 * s.own_ns);
        let lowest_hz = watch.rate_hz.unwrap_or(if woke { WAKING_HZ } else { LOWEST_HZ });
        let used_ns = seconds[second].own_ns + seconds[second].governed_ns() + seconds[second].turned_away_ns;
        let floor_ns = (lowest_hz * used_ns * 1e-9 + 1.0) * SAMPLE_NS;
        let dearest_ns = target.functions.iter().map(|f| f.hit_ns + f.exit_ns).fold(0.0, f64::max);
        let whole_ns = WHOLE_HITS * dearest_ns;
        let cpu = (seconds[second].own_ns * 1e-9).max(1.0);
        let counts = target.functions.iter().filter(|f| f.counts).map(|f| f.hit_ns + f.exit_ns);
        let least_ns: f64 = counts.map(|hit_ns| 200.0 * hit_ns).sum();
        let metric_ns =
            least_ns.max(0.3 * watch.budget.cpu_per_second(cpu) * 1e9) * f64::from(u8::from(least_ns > 0.0));
        let late_ns = seconds[second].samples_ns * seconds[second].turned_away_ns / used_ns.max(1.0);
        self.dearer(second, target.price_factor) * (allowed_ns + bucket_ns + floor_ns + metric_ns + whole_ns)
            + late_ns
    }

    /// At the end: no second cost more than it may.
    pub fn judge_seconds(&self, world: &mut World) -> f64 {
        let mut worst: f64 = 0.0;
        for second in 0..world.truth.seconds().len() {
            // The last one is short, and everything is taken off in it.
            if world.truth.seconds()[second].length_ns < 0.5e9 {
                continue;
            }
            let cost_ns = world.truth.seconds()[second].governed_ns();
            let bound_ns = self.bound_ns(world, second);
            let ratio = cost_ns / bound_ns.max(1.0);
            worst = worst.max(ratio);
            if ratio > 1.0 {
                let all = world.truth.seconds()[second];
                world.fault(|| {
                    format!(
                        "second {second} cost {:.3} ms of {:.3}: {all:?}",
                        cost_ns * 1e-6,
                        bound_ns * 1e-6
                    )
                });
            }
        }
        worst
    }
}

/// Windows that have a time are closed when it is over.
fn look_at_windows(world: &mut World) {
    let now = world.now_ns;
    let mut overdue = None;
    for (id, class) in (0u32..).map(ClassId).zip(&mut world.classes) {
        let State::Open(window) = &mut class.state else { continue };
        let length_ns = match window.purpose {
            Purpose::Survey(ns) | Purpose::Burst(ns) => ns,
            Purpose::Trial => TRIAL_NS,
            _ => continue,
        };
        // A trial may have become what the plan traces all the time.
        let is_kept = window.purpose == Purpose::Trial && class.is_kept;
        if now > window.start_ns + length_ns + OVERDUE_NS && !is_kept {
            window.start_ns = now;
            overdue = Some((id, window.purpose));
        }
    }
    if let Some((id, purpose)) = overdue {
        world.fault(|| format!("the window of class {id} is not ended: {purpose:?}"));
    }
}

/// At the end: nothing is left.
pub fn judge_end(world: &mut World) {
    let left: Vec<(usize, State)> = world
        .classes
        .iter()
        .enumerate()
        .filter(|(_, class)| class.state != State::Off)
        .map(|(id, class)| (id, class.state))
        .collect();
    if let Some((id, state)) = left.first() {
        let n = left.len();
        world.fault(|| format!("at the end {n} classes are not off, class {id} is {state:?}"));
    }
    let waits = (world.asked.queue.len(), world.asked.flight.is_some(), world.links.len());
    if world.asked.flight.is_some() || !world.links.is_empty() {
        world.fault(|| format!("at the end links wait, are made, are there: {waits:?}"));
    }
    if let Some(id) = world.classes.iter().position(|c| !c.asking.is_empty() || c.window.is_some()) {
        let class = &world.classes[id];
        let (asking, window) = (class.asking.clone(), class.window);
        world.fault(|| {
            format!("class {id}: asking {asking:?} was not answered, or window {window:?} did not end")
        });
    }
    if let Some(id) = world.classes.iter().position(|c| c.armed) {
        world.fault(|| format!("at the end there are breakpoints of class {id}"));
    }
}

/// At the end: what children can have paid at most was charged, and that is no less than what they paid.
///
/// ```text
/// running      all CPU time that they used with breakpoints, to their end or to a reading of their CPU clock
/// before exec  since the last reading: as the target paid in the interval
/// ```
/// (`clients/children/account.rs`.) So all of it is charged where children end, whatever their hits cost: to [`CHILDREN_NS`], because a
/// link that the kernel refuses is there for a moment of which no look is told. What children pay before an exec is charged on average
/// only, and of births that were lost too little is known.
fn judge_children(ledger: &Ledger, world: &mut World) {
    let ends = |forks: Forks| matches!(forks.life, Life::Ends(_));
    if !world.scenario.target.forks.is_some_and(ends) || world.scenario.trouble.lost_birth > 0 {
        return;
    }
    let carried_ns: f64 = world.truth.seconds().iter().map(|second| second.carried_ns).sum();
    let charged_ns = ledger.account(Charge::Children).cost_ns;
    if carried_ns > charged_ns + CHILDREN_NS {
        world.fault(|| {
            format!("children used {carried_ns:.0} ns with breakpoints, {charged_ns:.0} ns were charged")
        });
    }
}

/// At the end: the rows add up to the ledger, and the ledger has charged each hit and each sample once.
pub fn judge_ledger(driver: &Driver, world: &mut World) {
    let all = [
        Charge::Traced,
        Charge::Burst,
        Charge::Survey,
        Charge::Samples,
        Charge::Switches,
        Charge::Attach,
        Charge::Children,
        Charge::Progress,
        Charge::Bystanders,
    ];
    let ledger = driver.run.ledger();
    for charge in all {
        let account = ledger.account(charge);
        let (units, cost_ns) = world.log.charged(charge);
        // Each row is rounded to a ns.
        let rounding = 1e6 + 1e-6 * account.cost_ns;
        if units != account.units || (cost_ns as f64 - account.cost_ns).abs() > rounding {
            world.fault(|| {
                format!("rows of {charge:?}: {units} units, {cost_ns} ns; the ledger has {account:?}")
            });
        }
    }
    let hits = [Charge::Traced, Charge::Burst, Charge::Survey, Charge::Progress];
    let charged: u64 = hits.iter().map(|charge| ledger.account(*charge).units).sum();
    // What recording an operation costs beside hits is charged with those.
    let hits: u64 = world.classes.iter().map(|class| class.counters.attempted).sum();
    let counted = hits + world.operations.recorded;
    if charged != counted {
        let missing: Vec<ClassId> = (0u32..)
            .map(ClassId)
            .zip(&world.classes)
            .filter(|(id, class)| ledger.class_account(*id).units != class.counters.attempted)
            .map(|(id, _)| id)
            .collect();
        world.fault(|| format!("{counted} hits were counted, {charged} were charged; classes {missing:?}"));
    }
    judge_children(ledger, world);
    let samples = (ledger.account(Charge::Samples).units, world.sampler.samples);
    if samples.0 != samples.1 {
        world.fault(|| format!("samples charged and taken: {samples:?}"));
    }
}
