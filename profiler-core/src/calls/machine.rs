//! A machine that runs random programs and takes steps as the kernel side would, with the truth about each: for the tests.

use crate::recording::{CallSiteRow, CallerRule, CallsMeta, StepRow, TailRow};

/// What programs do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// Functions of 16 that are watched.
    pub watched: u64,
    /// Functions leave by jumps.
    pub tails: bool,
    /// What is jumped to is never called.
    pub apart: bool,
    /// Calls go through pointers.
    pub indirect: bool,
    /// Functions of 16 that take memory from the stack while they run.
    pub alloca: u64,
    /// Frames are left all at once.
    pub throws: bool,
    /// Where handlers of signals run; `None`: there are none.
    pub signals: Option<Handlers>,
    /// Stacks that the program switches between.
    pub coroutines: usize,
    /// Call sites of 16 without unwinding rules, and calls of 16 whose return address cannot be read.
    pub unknown: u64,
    /// Call sites of 2 that are described in full: jumps and callers.
    pub described: u64,
    /// Frames, at most.
    pub depth: usize,
    /// Steps.
    pub steps: usize,
}

/// Where handlers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handlers {
    SameStack,
    /// On a stack that begins at this address.
    Alternate(u64),
}

/// All of it plain: every function is watched, nothing but calls and returns.
pub(super) const PLAIN: Style = Style {
    watched: 16,
    tails: false,
    apart: false,
    indirect: false,
    alloca: 0,
    throws: false,
    signals: None,
    coroutines: 0,
    unknown: 0,
    described: 2,
    depth: 40,
    steps: 300,
};

/// Where the thread's stack begins.
pub(super) const STACK: u64 = 0x7ffd_1000_0000;
const COROUTINES: u64 = 0x7f12_0000_0000;
const COROUTINE_BYTES: u64 = 64 << 10;
const PID: u32 = 7;
/// Return address of handlers.
pub(super) const TRAMPOLINE: u64 = 0x10;
/// Return address at the bottom of a coroutine's stack.
pub(super) const BOTTOM: u64 = 0x20;

/// Steps and the truth.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub steps: Vec<StepRow>,
    /// The step whose function each was called in, and whether it got there by jumps.
    pub truth: Vec<(Option<usize>, super::Kind)>,
    /// Of each step, the number of steps when its function had gone.
    pub gone: Vec<Option<usize>>,
    pub sites: Vec<CallSiteRow>,
    pub tails: Vec<TailRow>,
    pub meta: CallsMeta,
}

/// Random numbers from a seed (splitmix64).
#[derive(Debug)]
pub(super) struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn of(&mut self, n: usize) -> usize {
        self.roll(n as u64) as usize
    }
}

#[derive(Debug, Clone)]
struct Site {
    address: u64,
    args: u64,
    targets: Vec<usize>,
    is_direct: bool,
    is_unknown: bool,
}

#[derive(Debug, Clone)]
struct Function {
    is_watched: bool,
    frame: u64,
    by_frame: bool,
    sites: Vec<Site>,
    tails: Vec<usize>,
    /// Its callers are not all known.
    is_taken: bool,
}

/// A frame.
#[derive(Debug, Clone)]
struct Act {
    function: usize,
    slot: u64,
    return_address: u64,
    rsp: u64,
    saved_rbp: u64,
    nearest: Option<usize>,
    /// Steps of the functions that ran in it, one after the other by jumps.
    chain: Vec<usize>,
}

struct Machine {
    style: Style,
    dice: Dice,
    functions: Vec<Function>,
    /// The thread's stack, the coroutines', and the handlers' alternate one.
    stacks: Vec<Vec<Act>>,
    /// Stacks that run or wait for the one after them.
    running: Vec<usize>,
    /// Register rbp of each stack.
    rbp: Vec<u64>,
    is_recorded: bool,
    run: Run,
}

/// Runs a random program.
pub(super) fn run(seed: u64, style: Style) -> Run {
    let mut dice = Dice(seed);
    let functions = program(&mut dice, style);
    let stacks = vec![Vec::new(); style.coroutines + 2];
    let mut machine = Machine {
        style,
        dice,
        functions,
        stacks,
        running: vec![0],
        rbp: vec![0x1234_5678; style.coroutines + 2],
        is_recorded: false,
        run: Run::default(),
    };
    machine.enter(0, STACK, 0x30, None, Vec::new(), false);
    let before = machine.dice.of(60);
    for _ in 0..before {
        machine.act();
    }
    machine.is_recorded = true;
    // Some programs come by nothing that is watched.
    for _ in 0..20 * style.steps {
        if machine.run.steps.len() >= style.steps {
            break;
        }
        machine.act();
    }
    machine.describe();
    machine.run
}

fn program(dice: &mut Dice, style: Style) -> Vec<Function> {
    let n = 3 + dice.of(10);
    let callable = if style.apart { n / 2 + 1 } else { n };
    let mut address = 0x1000;
    let mut functions: Vec<Function> = (0..n)
        .map(|_| {
            let by_frame = dice.roll(3) == 0;
            let words = if dice.roll(4) == 0 { 500 } else { 20 };
            let sites = (0..1 + dice.of(3))
                .map(|_| {
                    address += 0x10;
                    let is_direct = !style.indirect || dice.roll(3) > 0;
                    let targets = (0..if is_direct { 1 } else { 3 }).map(|_| dice.of(callable)).collect();
                    let is_unknown = dice.roll(16) < style.unknown;
                    Site { address, args: 16 * dice.roll(3), targets, is_direct, is_unknown }
                })
                .collect();
            let mut tail = || if style.apart { callable + dice.of(n - callable) } else { dice.of(n) };
            let tails = [tail(), tail()];
            let tails = if style.tails && dice.roll(2) == 0 { tails.to_vec() } else { Vec::new() };
            Function {
                is_watched: dice.roll(16) < style.watched,
                frame: 8 * dice.roll(words),
                by_frame,
                sites,
                tails,
                is_taken: false,
            }
        })
        .collect();
    let indirect: Vec<usize> = functions
        .iter()
        .flat_map(|f| f.sites.iter().filter(|s| !s.is_direct).flat_map(|s| s.targets.iter().copied()))
        .collect();
    indirect.into_iter().for_each(|f| functions[f].is_taken = true);
    // Handlers and what coroutines begin with.
    if style.signals.is_some() || style.coroutines > 0 {
        functions[n - 1].is_taken = true;
    }
    functions
}

impl Machine {
    fn top(&mut self) -> &mut Act {
        let stack = *self.running.last().unwrap();
        self.stacks[stack].last_mut().unwrap()
    }

    /// Enters a function on the running stack.
    fn enter(
        &mut self,
        function: usize,
        slot: u64,
        return_address: u64,
        nearest: Option<usize>,
        mut chain: Vec<usize>,
        is_signal: bool,
    ) {
        let f = self.functions[function].clone();
        let stack = *self.running.last().unwrap();
        let mut nearest = nearest;
        if f.is_watched && self.is_recorded {
            let index = self.run.steps.len();
            let kind = match nearest {
                _ if is_signal => super::Kind::Signal,
                Some(nearest) if chain.last() == Some(&nearest) => super::Kind::Tail,
                _ => super::Kind::Call,
            };
            // A frame that has gone cannot be where a coroutine was called.
            let parent = nearest.filter(|step| self.run.gone[*step].is_none());
            self.run.truth.push((parent, kind));
            self.run.gone.push(None);
            let unread = self.dice.roll(64) < self.style.unknown;
            self.run.steps.push(StepRow {
                time_ns: 1_000 + 10 * index as u64,
                number: 1 + index as u64,
                class_id: function as u32,
                pid: PID,
                tid: PID,
                slot,
                return_address: if unread { 0 } else { return_address },
                frame: self.rbp[stack],
            });
            nearest = Some(index);
            chain.push(index);
        }
        let saved_rbp = self.rbp[stack];
        if f.by_frame {
            self.rbp[stack] = slot - 8;
        }
        let act = Act { function, slot, return_address, rsp: slot - f.frame, saved_rbp, nearest, chain };
        self.stacks[stack].push(act);
    }

    /// The innermost frame goes.
    fn leave(&mut self) {
        let stack = *self.running.last().unwrap();
        let act = self.stacks[stack].pop().unwrap();
        self.rbp[stack] = act.saved_rbp;
        let now = self.run.steps.len();
        act.chain.iter().for_each(|step| self.run.gone[*step] = Some(now));
        if self.stacks[stack].is_empty() {
            self.running.pop();
        }
    }

    fn depth(&self) -> usize {
        self.running.iter().map(|stack| self.stacks[*stack].len()).sum()
    }

    /// One thing that the program does.
    fn act(&mut self) {
        let at_bottom = self.running.len() == 1 && self.stacks[0].len() == 1;
        let is_deep = self.depth() >= self.style.depth;
        match self.dice.roll(100) {
            0..50 if !is_deep => self.call(),
            50..58 if self.style.tails && !at_bottom => self.jump(),
            58..62 if self.style.signals.is_some() && !is_deep => self.signal(),
            62..70 if self.style.coroutines > 0 && !is_deep => self.switch(),
            70..73 if self.style.throws && !at_bottom => {
                for _ in 0..self.dice.of(6) {
                    if self.running.len() > 1 || self.stacks[0].len() > 1 {
                        self.leave();
                    }
                }
            }
            73..78 => {
                let act = self.top().clone();
                if self.functions[act.function].by_frame && self.dice.roll(16) < self.style.alloca {
                    let bytes = 16 * self.dice.roll(40);
                    self.top().rsp -= bytes;
                }
            }
            // Now and then far up: what was called before lies above what is called next.
            78.. if !at_bottom => {
                let n = if self.dice.roll(8) == 0 { 1 + self.dice.of(6) } else { 1 };
                for _ in 0..n {
                    if self.running.len() > 1 || self.stacks[0].len() > 1 {
                        self.leave();
                    }
                }
            }
            _ => {}
        }
    }

    fn call(&mut self) {
        let act = self.top().clone();
        let sites = &self.functions[act.function].sites;
        let site = sites[self.dice.of(sites.len())].clone();
        let target = site.targets[self.dice.of(site.targets.len())];
        // Loops: the same call several times, each with what it does left out.
        let times = if self.dice.roll(6) == 0 { 3 } else { 1 };
        for time in 1..=times {
            self.enter(target, act.rsp - site.args - 8, site.address, act.nearest, Vec::new(), false);
            if time < times {
                self.leave();
            }
        }
    }

    fn jump(&mut self) {
        let act = self.top().clone();
        let tails = self.functions[act.function].tails.clone();
        if tails.is_empty() || act.return_address == TRAMPOLINE || act.return_address == BOTTOM {
            return;
        }
        let target = tails[self.dice.of(tails.len())];
        let stack = *self.running.last().unwrap();
        self.stacks[stack].pop();
        self.rbp[stack] = act.saved_rbp;
        self.enter(target, act.slot, act.return_address, act.nearest, act.chain, false);
    }

    fn signal(&mut self) {
        let act = self.top().clone();
        let alternate = self.stacks.len() - 1;
        let mut rsp = act.rsp - 128;
        if let Some(Handlers::Alternate(base)) = self.style.signals
            && !self.running.contains(&alternate)
        {
            self.rbp[alternate] = self.rbp[*self.running.last().unwrap()];
            self.running.push(alternate);
            rsp = base;
        }
        let slot = (rsp - 512 - 8 * self.dice.roll(100)) / 16 * 16 + 8;
        self.enter(self.functions.len() - 1, slot, TRAMPOLINE, act.nearest, Vec::new(), true);
    }

    /// To another stack, or back.
    fn switch(&mut self) {
        let act = self.top().clone();
        let stack = 1 + self.dice.of(self.style.coroutines);
        if self.running.len() > 1 && self.dice.roll(2) == 0 {
            if self.running.last() != Some(&(self.stacks.len() - 1)) {
                self.running.pop();
            }
        } else if !self.running.contains(&stack) {
            self.running.push(stack);
            if self.stacks[stack].is_empty() {
                let slot = COROUTINES + COROUTINE_BYTES * (stack as u64 + 1) - 8 - 16;
                self.enter(self.functions.len() - 1, slot, BOTTOM, act.nearest, Vec::new(), false);
            }
        }
    }

    /// Classes from which `function` can be reached through functions that are not watched; `None`: not all callers are known.
    fn reached_from(&self, function: usize, with_calls: bool) -> Option<Vec<u32>> {
        let mut found = Vec::new();
        let mut seen = vec![function];
        let mut next = 0;
        while let Some(&to) = seen.get(next) {
            next += 1;
            if with_calls && self.functions[to].is_taken {
                return None;
            }
            for (from, f) in self.functions.iter().enumerate() {
                let calls = with_calls && f.sites.iter().any(|s| s.targets.contains(&to));
                if !calls && !f.tails.contains(&to) {
                    continue;
                }
                let list = if f.is_watched { &mut found } else { &mut seen };
                if f.is_watched && !list.contains(&from) || !f.is_watched && !list.contains(&from) {
                    list.push(from);
                }
            }
        }
        Some(found.into_iter().map(|f| f as u32).collect())
    }

    /// What a recording says of the program.
    fn describe(&mut self) {
        let functions = self.functions.clone();
        let row = |address, function: Option<usize>| CallSiteRow {
            return_address: address,
            pid: PID,
            module: "program".into(),
            offset: address,
            function: function.map(|f| format!("f{f}")).unwrap_or_default(),
            function_class: function.filter(|f| functions[*f].is_watched).map(|f| f as u32),
            caller: CallerRule::Unknown,
            caller_value: 0,
            target_class: None,
            is_direct: None,
            jumps_from: None,
            reached_from: None,
            since_ns: None,
            until_ns: None,
        };
        for (index, f) in functions.iter().enumerate() {
            for site in &f.sites {
                let mut row = row(site.address, Some(index));
                if !site.is_unknown {
                    row.caller = if f.by_frame { CallerRule::Frame } else { CallerRule::Sp };
                    row.caller_value = if f.by_frame { 16 } else { (f.frame + site.args + 8) as i64 };
                }
                if self.dice.roll(2) < self.style.described {
                    row.is_direct = Some(site.is_direct);
                    let target = site.targets[0];
                    row.target_class =
                        (site.is_direct && functions[target].is_watched).then_some(target as u32);
                    row.jumps_from = self.reached_from(index, false);
                    row.reached_from = self.reached_from(index, true);
                }
                self.run.sites.push(row);
            }
        }
        self.run.sites.push(CallSiteRow { caller: CallerRule::Signal, ..row(TRAMPOLINE, None) });
        self.run.meta.stack_span_bytes = if self.style.coroutines > 0 { 0 } else { 8 << 20 };
        for to in 0..functions.len() {
            for from in self.reached_from(to, false).unwrap_or_default() {
                self.run.tails.push(TailRow { from_class: from, to_class: to as u32 });
            }
        }
        for class in 0..functions.len() as u32 {
            if self.dice.roll(2) < self.style.described {
                self.run.meta.tails_known.push(class);
            }
        }
    }
}
