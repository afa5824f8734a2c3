//! What the controller decides in scripted runs, tick by tick, as text: a change of the policy shows as a difference in a file that people
//! can read. A line has the time, tokens and what of them is spoken for, the rates as the controller takes them, and what it does.

use super::*;
use crate::burst::BurstOrder;
use crate::ledger::ThreadOver;
use expect_test::expect_file;
use std::fmt::Write as _;

const TICK_NS: u64 = 100_000_000;
/// The bucket holds so much of what comes in, s.
const BUCKET_S: f64 = 0.25;
const SAMPLE_NS: f64 = 14_000.0;
/// Hits that are let through after a trip.
const EXTRA: u64 = 50;

/// A link of a class, as the kernel and the agent would hold it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Link {
    Off,
    Traced { quota: u64 },
    Window { quota: u64, taken: u64, begun_ns: u64, until_ns: u64 },
}

/// A target and an agent that obey.
struct Player {
    controller: Controller,
    now_ns: u64,
    elapsed_ns: u64,
    income: f64,
    tokens_ns: f64,
    other_cost: f64,
    target_cpu: f64,
    period_ns: u64,
    /// Real rates, events/s.
    rates: Vec<f64>,
    orders: Vec<ClassOrder>,
    links: Vec<Link>,
    log: String,
    /// The last line of a tick, without time and tokens.
    last: String,
    /// Bursts that ended since the last tick.
    ended: String,
}

impl Player {
    fn new(income: f64, orders: &[ClassOrder], rates: &[f64]) -> Self {
        let controller = Controller::new(ControllerConfig { seed: 7, ..ControllerConfig::default() });
        let mut player = Self {
            controller,
            now_ns: TICK_NS,
            elapsed_ns: TICK_NS,
            income,
            tokens_ns: 0.5 * BUCKET_S * income * 1e9,
            other_cost: 0.0,
            target_cpu: 1.0,
            period_ns: 10_000_000,
            rates: rates.to_vec(),
            orders: orders.to_vec(),
            links: vec![Link::Off; rates.len()],
            log: String::new(),
            last: String::new(),
            ended: String::new(),
        };
        player.plan();
        player
    }

    /// The present orders, as a plan.
    fn plan(&mut self) {
        let tokens_ns = self.tokens_ns;
        let actions = self.controller.take_plan(self.now_ns, &self.orders.clone(), 10_000_000, tokens_ns);
        let words = self.obey(actions);
        let _ = writeln!(self.log, "{:>5.2} s  plan: {words}", self.now_ns as f64 * 1e-9);
    }

    /// Does what is asked for; says what.
    fn obey(&mut self, actions: Vec<Action>) -> String {
        let mut words: Vec<String> = Vec::new();
        let now_ns = self.now_ns;
        for action in actions {
            let window = |quota, window_ns| Link::Window {
                quota,
                taken: 0,
                begun_ns: now_ns,
                until_ns: now_ns + window_ns,
            };
            words.push(match action {
                Action::Trace { class, quota } => {
                    self.links[class.0 as usize] = Link::Traced { quota };
                    format!("trace {class} {quota}")
                }
                Action::Trial { class, quota, window_ns } => {
                    self.controller.opened(class, now_ns);
                    self.links[class.0 as usize] = window(quota, window_ns);
                    format!("try {class} {quota} in {:.1} ms", window_ns as f64 * 1e-6)
                }
                Action::Burst { class, quota, window_ns } => {
                    self.links[class.0 as usize] = window(quota, window_ns);
                    format!("burst {class} {quota} in {:.1} ms", window_ns as f64 * 1e-6)
                }
                Action::Detach { class, reason } => {
                    self.links[class.0 as usize] = Link::Off;
                    format!("take off {class}: {reason:?}")
                }
                Action::Quota { class, hits } => {
                    self.links[class.0 as usize] = Link::Traced { quota: hits };
                    format!("{class}={hits}")
                }
                Action::Period { period_ns } => {
                    self.period_ns = period_ns;
                    format!("sample each {:.2} ms", period_ns as f64 * 1e-6)
                }
                Action::Resumed { class } => {
                    self.links[class.0 as usize] = Link::Traced { quota: u64::MAX };
                    format!("keep {class}")
                }
                Action::Replan { why } => format!("new plan: {why:.4?}"),
            });
        }
        words.join(", ")
    }

    /// The hits of a class since the last tick; windows that are over are ended.
    fn hits(&mut self, class: usize) -> u64 {
        let due = (self.rates[class] * self.elapsed_ns as f64 * 1e-9) as u64;
        let id = ClassId(class as u32);
        let per_ns = self.rates[class].max(1e-3) * 1e-9;
        match self.links[class] {
            Link::Off => 0,
            Link::Traced { quota } if due < quota => due,
            Link::Traced { quota } => {
                self.links[class] = Link::Off;
                let lasted_ns = (quota as f64 / per_ns) as u64;
                self.controller.window_ended(id, self.now_ns, quota + EXTRA, lasted_ns, true);
                quota + EXTRA
            }
            Link::Window { quota, taken, begun_ns, until_ns } => {
                let end_ns = self.now_ns.min(until_ns);
                let from_ns = (self.now_ns - self.elapsed_ns).max(begun_ns);
                let due = (per_ns * end_ns.saturating_sub(from_ns) as f64) as u64;
                let tripped = taken + due >= quota;
                let hits = if tripped { quota - taken + EXTRA } else { due };
                let lasted_ns = if tripped { (quota as f64 / per_ns) as u64 } else { end_ns - begun_ns };
                let over = tripped || self.now_ns >= until_ns;
                self.links[class] = if over {
                    Link::Off
                } else {
                    Link::Window { quota, taken: taken + hits, begun_ns, until_ns }
                };
                // Who tries a class closes its window by itself, unless its quota ended it.
                if over && self.controller.window_ended(id, self.now_ns, taken + hits, lasted_ns, tripped) {
                    let _ = write!(self.ended, "[{id} ended] ");
                } else if over && !tripped {
                    self.links[class] = Link::Window { quota, taken: taken + hits, begun_ns, until_ns };
                }
                hits
            }
        }
    }

    /// One tick later.
    fn tick(&mut self) {
        self.now_ns += self.elapsed_ns;
        self.ended.clear();
        let hits: Vec<(ClassId, u64)> =
            (0..self.rates.len()).map(|class| (ClassId(class as u32), self.hits(class))).collect();
        let dt_ns = self.elapsed_ns as f64;
        let taken_ns: f64 = hits.iter().map(|(id, n)| *n as f64 * self.orders[id.0 as usize].tau_ns).sum();
        let sample_cost = self.target_cpu * SAMPLE_NS / self.period_ns as f64;
        let other_cost = self.other_cost + sample_cost;
        let capacity_ns = BUCKET_S * self.income * 1e9;
        let earned_ns = (self.income - other_cost) * dt_ns;
        self.tokens_ns = (self.tokens_ns + earned_ns - taken_ns).min(capacity_ns);
        let tick = Tick {
            now_ns: self.now_ns,
            elapsed_ns: self.elapsed_ns,
            tokens_ns: self.tokens_ns,
            capacity_ns,
            reserved_ns: 0.0,
            income: self.income,
            spent: taken_ns / dt_ns + other_cost,
            other_cost,
            sample_cost,
            sampling_hz: 1e9 / self.period_ns as f64,
            hits: &hits,
            target_cpu: self.target_cpu,
            slowdown: 1.0,
        };
        let actions = self.controller.tick(&tick);
        let words = self.obey(actions);
        // Zero has no sign.
        let held = self.controller.held_ns(self.now_ns) * 1e-6 + 0.0;
        let rates: Vec<String> = (0..self.rates.len())
            .map(|i| self.controller.rate_hz(ClassId(i as u32)).map_or("-".into(), |hz| format!("{hz:.4e}")))
            .collect();
        let (tokens, slowed) =
            (self.tokens_ns * 1e-6, if self.controller.slowed().is_some() { " slowed" } else { "" });
        let rates = rates.join(" ");
        let line = format!("held {held:.3}{slowed}; {rates}; {words}");
        // What goes on as before is not said again.
        if line != self.last || !self.ended.is_empty() {
            let (s, ended) = (self.now_ns as f64 * 1e-9, &self.ended);
            let _ = writeln!(self.log, "{s:>5.2} s  {ended}{tokens:.3} ms, {line}");
        }
        self.last = line;
        if words.contains("new plan") {
            self.plan();
        }
    }

    fn ticks(&mut self, n: usize) {
        (0..n).for_each(|_| self.tick());
    }

    /// What the script does is said.
    fn says(&mut self, what: &str) {
        let _ = writeln!(self.log, "         -- {what}");
    }
}

/// A class of a plan: price 0.7 µs, weight 1, traced.
fn traced(class: u32, rate: f64) -> ClassOrder {
    order(class, rate, 700.0)
}

fn burst(class: u32, rate: f64, (quota, window_ms, every_ms): (u64, f64, f64)) -> ClassOrder {
    let cost_ns = (quota as f64 * 0.8).min(rate * window_ms * 1e-3) * 700.0 + 60_000.0;
    let (window_ns, every_ns) = ((window_ms * 1e6) as u64, (every_ms * 1e6) as u64);
    let burst = BurstOrder { quota, window_ns, every_ns, cost_ns, duty: window_ms / every_ms };
    ClassOrder { trace: false, trial: false, burst: Some(burst), ..traced(class, rate) }
}

#[test]
fn a_class_explodes_is_tried_and_calms_down() {
    let weights = [1.0, 2.0, 0.3];
    let rates = [4_000.0, 900.0, 6_000.0];
    let orders: Vec<_> = (0..3)
        .map(|i| ClassOrder { weight: weights[i], rho: 0.01 * i as f64, ..traced(i as u32, rates[i]) })
        .collect();
    let mut player = Player::new(0.02, &orders, &rates);
    player.ticks(5);
    player.says("class 0 explodes");
    player.rates[0] = 3e6;
    player.ticks(50);
    player.says("it calms down");
    player.rates[0] = 4_500.0;
    player.ticks(60);
    player.says("a late tick, then all grow within their intervals");
    player.elapsed_ns = 4 * TICK_NS;
    player.tick();
    player.elapsed_ns = TICK_NS;
    player.rates = vec![4_700.0, 1_000.0, 7_500.0];
    player.ticks(25);
    expect_file!["decisions/explodes.txt"].assert_eq(&player.log);
}

#[test]
fn a_class_of_unknown_rate_is_tried_and_may_fit() {
    let unknown = |class, hz| ClassOrder { trace: false, ..traced(class, hz) };
    let orders = [traced(0, 2_000.0), unknown(1, 0.0), unknown(2, 50_000.0), unknown(3, 0.0)];
    let mut player = Player::new(0.02, &orders, &[2_000.0, 300.0, 40_000.0, 8_000.0]);
    player.ticks(60);
    player.says("the plan takes class 1, and class 2 in bursts");
    player.orders[1] = ClassOrder { trace: true, ..traced(1, 300.0) };
    player.orders[2] = burst(2, 40_000.0, (400, 12.0, 700.0));
    player.plan();
    player.ticks(40);
    player.says("class 3 cannot be attached, class 0 lost its module");
    player.controller.lost(ClassId(3), player.now_ns);
    player.controller.lost(ClassId(0), player.now_ns);
    player.links[0] = Link::Off;
    player.ticks(40);
    expect_file!["decisions/tried.txt"].assert_eq(&player.log);
}

#[test]
fn bursts_wait_for_tokens_and_for_the_time_drawn() {
    let orders = [
        traced(0, 5_000.0),
        burst(1, 200_000.0, (800, 4.5, 400.0)),
        burst(2, 20_000.0, (600, 25.0, 900.0)),
        burst(3, 1_000.0, (900, 600.0, 2_000.0)),
        burst(4, 5_000.0, (30_000, 800.0, 3_000.0)),
    ];
    let mut player = Player::new(0.02, &orders, &[5_000.0, 150_000.0, 20_000.0, 1_200.0, 5_000.0]);
    player.ticks(50);
    player.says("something else takes what comes in");
    player.other_cost = 0.018;
    player.ticks(20);
    player.other_cost = 0.0;
    player.says("class 2 is held back, class 1 is planned to be traced in the middle of a burst");
    player.controller.held_back(ClassId(2), player.now_ns);
    player.orders[1] = ClassOrder { trace: true, ..traced(1, 4_000.0) };
    player.rates[1] = 4_000.0;
    player.plan();
    player.ticks(50);
    expect_file!["decisions/bursts.txt"].assert_eq(&player.log);
}

#[test]
fn the_sampler_is_slowed_before_classes_go() {
    let mut orders: Vec<_> = (0..8).map(|i| traced(i, 1_500.0 + 300.0 * f64::from(i))).collect();
    orders[2].must = true;
    orders[5].weight = 0.2;
    orders[6].rho = 5.0;
    let rates: Vec<f64> = orders.iter().map(|o| o.rate_hz.1).collect();
    let mut player = Player::new(0.02, &orders, &rates);
    player.ticks(10);
    for other_cost in [0.006, 0.012, 0.03, 0.0] {
        player.says(&format!("others take {other_cost}"));
        player.other_cost = other_cost;
        player.ticks(25);
    }
    player.says("the target uses three CPUs");
    (player.target_cpu, player.income) = (3.0, 0.06);
    player.ticks(80);
    expect_file!["decisions/slowed.txt"].assert_eq(&player.log);
}

#[test]
fn one_thread_loses_too_much() {
    let mut orders = vec![traced(0, 3_000.0), traced(1, 3_000.0), traced(2, 2_000.0)];
    orders.push(burst(3, 40_000.0, (300, 8.0, 500.0)));
    (orders[0].weight, orders[1].weight) = (0.5, 3.0);
    let mut player = Player::new(0.02, &orders, &[3_000.0, 3_000.0, 2_000.0, 40_000.0]);
    player.ticks(40);
    let costs = |list: &[(u32, f64)]| list.iter().map(|(id, cost)| (ClassId(*id), *cost)).collect::<Vec<_>>();
    let over = [
        (0.03, 0.001, 0.004, costs(&[(0, 0.002), (1, 0.002), (2, 0.001)])),
        (0.06, 0.004, 0.002, costs(&[(1, 0.001), (2, 0.0025), (3, 0.01)])),
        (0.09, 0.009, 0.004, costs(&[(3, 0.013)])),
    ];
    for (overhead, excess, allowed, classes) in over {
        player.says(&format!("a thread loses {overhead}, {excess} more than it may"));
        let over = ThreadOver { tid: 7, overhead, excess, allowed, classes };
        let actions = player.controller.relieve(player.now_ns, 100.0, &[over]);
        let words = player.obey(actions);
        player.says(&words);
        player.ticks(33);
    }
    expect_file!["decisions/thread.txt"].assert_eq(&player.log);
}
