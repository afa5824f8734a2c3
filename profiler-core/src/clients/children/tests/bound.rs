//! Property: what is charged is never below the CPU time that children used while they carried breakpoints, whatever is born, ends, calls
//! exec, is closed or made anew in between. A child that calls exec is charged by rate, so what it used since the last look does not count;
//! nor does what a child used that was born unseen and was gone before it was found.

use super::*;
use proptest::prelude::*;

/// A process that was forked.
#[derive(Debug, Default)]
struct Kid {
    /// It was born while a link was there, and since then links were there all the time.
    carries: bool,
    ended: bool,
    execed: bool,
    /// Part of a CPU that it uses, in tenths.
    share: u64,
    cpu_ns: u64,
    /// Of that, since the last look, while it carried.
    unread_ns: u64,
    /// The agent is bound to it.
    bound: bool,
    /// The client was told of it.
    known: bool,
    /// The kernel need not tell of it any more.
    let_go: bool,
}

impl Kid {
    /// What it used since the last look, as far as it is to be charged in full, ns.
    fn read(&mut self) -> u64 {
        if self.known { std::mem::take(&mut self.unread_ns) } else { 0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Off,
    On,
    Closing,
}

/// What happens next.
#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Fork(u64),
    Exec(usize),
    End(usize),
    LoseRecords,
    FindLost,
    Attach,
    Close,
    Turn { closed: bool, plan_runs: bool },
    Interval { closed: bool },
}

fn any_step() -> impl Strategy<Value = Step> {
    let closed = any::<bool>;
    prop_oneof![
        5 => (0..120_u64).prop_map(|ms| Step::Pass(ms * MS)),
        3 => (0..11_u64).prop_map(Step::Fork),
        1 => any::<usize>().prop_map(Step::Exec),
        2 => any::<usize>().prop_map(Step::End),
        1 => Just(Step::LoseRecords),
        1 => Just(Step::FindLost),
        2 => Just(Step::Attach),
        1 => Just(Step::Close),
        5 => (closed(), any::<bool>()).prop_map(|(closed, plan_runs)| Step::Turn { closed, plan_runs }),
        3 => closed().prop_map(|closed| Step::Interval { closed }),
    ]
}

/// A target that forks, with the agent around the client.
#[derive(Debug)]
struct World {
    now_ns: u64,
    children: Children,
    kids: Vec<Kid>,
    links: Links,
    /// What was closed is to be attached again.
    wanted: bool,
    ring: Vec<Event>,
    last_interval_ns: u64,
    last_rearm_ns: Option<u64>,
    /// What has to be charged at least, ns.
    used_ns: u64,
    charged_ns: f64,
}

impl World {
    fn new() -> Self {
        Self {
            now_ns: 10_000 * MS,
            children: Children::default(),
            kids: Vec::new(),
            links: Links::Off,
            wanted: false,
            ring: Vec::new(),
            last_interval_ns: 10_000 * MS,
            last_rearm_ns: None,
            used_ns: 0,
            charged_ns: 0.0,
        }
    }

    fn is_linked(&self) -> bool {
        self.links != Links::Off
    }

    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        for kid in self.kids.iter_mut().filter(|kid| !kid.ended) {
            let used_ns = ns * kid.share / 10;
            kid.cpu_ns += used_ns;
            kid.unread_ns += if kid.carries { used_ns } else { 0 };
        }
    }

    fn living(&mut self, pick: usize) -> Option<(u32, &mut Kid)> {
        let living: Vec<usize> = (0..self.kids.len()).filter(|i| !self.kids[*i].ended).collect();
        let i = *living.get(pick % living.len().max(1))?;
        Some((u32::try_from(i).unwrap(), &mut self.kids[i]))
    }

    fn found(&mut self, pids: Vec<u32>) -> Look {
        let at_ns = self.now_ns;
        let mut seen = Vec::new();
        for pid in pids {
            let kid = &mut self.kids[pid as usize];
            let found = match (kid.bound && !kid.ended, kid.execed) {
                (false, _) => Found::Ended,
                (true, true) => Found::OtherProgram,
                (true, false) => runs(kid.cpu_ns),
            };
            kid.known |= found != Found::Ended;
            self.used_ns += kid.read();
            seen.push((pid, found));
        }
        // Reading takes its time.
        self.pass(MS / 10);
        Look { at_ns, linked: self.is_linked(), found: seen }
    }

    fn look(&mut self) -> Look {
        let pids = self.children.carrying().collect();
        self.found(pids)
    }

    /// Reads the ring and collects closed links, as each turn and each interval begin.
    fn begin(&mut self, closed: bool) {
        if self.wanted && self.links == Links::Off && !self.children.is_storm() {
            (self.links, self.wanted) = (Links::On, false);
        }
        let mut events = std::mem::take(&mut self.ring);
        for event in &mut events {
            match event {
                Event::Forked { child, found_before, .. } => {
                    let kid = &mut self.kids[*child as usize];
                    *found_before = kid.bound && !kid.ended;
                    (kid.bound, kid.known) = (!kid.ended, true);
                }
                Event::Ended { pid, .. } => self.used_ns += self.kids[*pid as usize].read(),
                Event::Execed { .. } => {}
            }
        }
        if !events.is_empty() {
            let linked = self.is_linked();
            self.tell(Input::Told { events, linked });
        }
        if closed && self.links == Links::Closing {
            self.links = Links::Off;
            self.kids.iter_mut().for_each(|kid| kid.carries = false);
        }
    }

    fn tell(&mut self, input: Input) {
        for order in step(&mut self.children, input, &one_open()) {
            match order {
                Order::CloseAll(_) if self.links == Links::On => self.links = Links::Closing,
                Order::VoidComparison => {
                    let since_ns = self.last_rearm_ns.map_or(u64::MAX, |last| self.now_ns - last);
                    assert!(since_ns > REARM_NS, "made anew after {since_ns} ns");
                    self.last_rearm_ns = Some(self.now_ns);
                }
                Order::Restore(again) => {
                    assert!(!self.is_linked() && !again.is_empty(), "restored while {:?}", self.links);
                    self.wanted = true;
                }
                Order::LetGo(pids) => {
                    for pid in pids {
                        assert!(!self.children.carries(pid));
                        let kid = &mut self.kids[pid as usize];
                        (kid.bound, kid.let_go) = (false, true);
                    }
                }
                _ => {}
            }
        }
    }

    fn interval(&mut self, closed: bool) {
        self.begin(closed);
        let look = self.look();
        let elapsed_ns = self.now_ns - self.last_interval_ns;
        self.last_interval_ns = self.now_ns;
        let hits = if self.is_linked() { vec![(ClassId(0), 10)] } else { Vec::new() };
        self.tell(Input::Interval { look, elapsed_ns, target_cpu_ns: elapsed_ns / 2, hits });
        let cost = self.children.take_cost();
        assert!(cost.cost_ns >= 0.0 && cost.cost_ns.is_finite(), "{cost:?}");
        assert!(self.children.claim() >= 0.0);
        self.charged_ns += cost.cost_ns;
    }

    fn turn(&mut self, closed: bool, plan_runs: bool) {
        self.begin(closed);
        let look = self.look();
        self.tell(Input::Turn { look, plan_runs, suspension: Suspension::NONE });
    }

    fn find_lost(&mut self) {
        self.begin(false);
        let all = 0..u32::try_from(self.kids.len()).unwrap();
        let is_watched = |pid: &u32| {
            let kid = &self.kids[*pid as usize];
            !kid.ended && !kid.let_go && !self.children.carries(*pid)
        };
        let watched: Vec<u32> = all.filter(is_watched).collect();
        watched.iter().for_each(|pid| self.kids[*pid as usize].bound = true);
        let look = self.found(watched);
        self.tell(Input::Lost(look));
    }

    fn do_step(&mut self, next: Step) {
        let time_ns = self.now_ns;
        match next {
            Step::Pass(ns) => self.pass(ns),
            Step::Fork(share) => {
                let child = u32::try_from(self.kids.len()).unwrap();
                self.kids.push(Kid { carries: self.is_linked(), share, ..Kid::default() });
                self.ring.push(fork(child, time_ns));
            }
            Step::Exec(pick) => {
                if let Some((pid, kid)) = self.living(pick) {
                    (kid.execed, kid.carries, kid.unread_ns) = (true, false, 0);
                    self.ring.push(Event::Execed { pid, time_ns });
                }
            }
            Step::End(pick) => {
                if let Some((pid, kid)) = self.living(pick) {
                    kid.ended = true;
                    self.ring.push(Event::Ended { pid, time_ns });
                }
            }
            Step::LoseRecords => self.ring.clear(),
            Step::FindLost => self.find_lost(),
            Step::Attach => {
                if self.links == Links::Off {
                    self.wanted = true;
                }
                self.turn(false, true);
            }
            Step::Close => {
                if self.links == Links::On {
                    self.links = Links::Closing;
                }
            }
            Step::Turn { closed, plan_runs } => self.turn(closed, plan_runs),
            Step::Interval { closed } => self.interval(closed),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_is_charged_is_never_below_what_children_used_that_carried_breakpoints(
        steps in prop::collection::vec(any_step(), 1..120),
    ) {
        let mut world = World::new();
        for next in steps {
            world.do_step(next);
        }
        world.interval(true);
        let World { charged_ns, used_ns, .. } = world;
        prop_assert!(charged_ns + 1.0 >= used_ns as f64, "{charged_ns} of {used_ns} ns");
    }
}
