//! Several targets at the agent's level: windows, queue, governor and opener, as a run has them, with four processes of one program.
//!
//! One function is counted in all four, a second one is recorded in two. Each process counts its own calls.

use crate::support::*;
use profiler_core::class::{ClassId, ExitMode, RecordKind};
use profiler_core::cost::{Price, Rests};
use profiler_core::recording::WindowKind;
use profiler_core::run::view::ClassPrices;
use profiler_tests::support::{Target as Program, tiers_here};
use profiler_user::agent::attach::{
    AddTargetError, Attachments, Ended, Group, NotOpened, Opener, Outcome, TargetId,
};
use profiler_user::agent::class::{
    Candidate, Ending, EntrySite, FunctionKey, InspectedCode, LinkState, LiveClass, Purpose, Wish,
};
use profiler_user::governor::{Governor, LinkTable, unlock_memory};
use profiler_user::inspect::{Inspection, WantedArguments};
use profiler_user::prober::{CallReader, ClassCounters, KernelOptions, Tier};
use profiler_user::target::Target;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

const COUNTED: &str = "entry_push";
const RECORDED: &str = "exits_two";
const MAX_CLASSES: u32 = 64;
const QUOTA: u64 = 1 << 40;
/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(20);
/// Calls per second in the background.
const BACKGROUND_HZ: u64 = 5_000;

/// A process, and what is attached in it.
struct Watched {
    program: Program,
    process: Arc<Target>,
    target: TargetId,
    /// The argument of all its calls.
    number: u64,
    counted: ClassId,
    recorded: Option<ClassId>,
    /// Calls of the two functions that it says it made.
    told: [u64; 2],
    rows: u64,
}

impl Watched {
    fn call(&mut self, calls: [u64; 2]) {
        for (at, function) in [COUNTED, RECORDED].into_iter().enumerate() {
            self.told[at] += self.program.call_with(function, calls[at], 1, self.number).calls;
        }
    }

    /// Calls in the background one of the functions that are attached in it.
    fn start(&mut self) {
        let function = if self.recorded.is_some() { RECORDED } else { COUNTED };
        self.program.start_background(function, 1, BACKGROUND_HZ, self.number);
    }

    fn stop(&mut self) {
        let at = usize::from(self.recorded.is_some());
        self.told[at] += self.program.stop_background().calls;
    }

    fn classes(&self) -> Vec<ClassId> {
        std::iter::once(self.counted).chain(self.recorded).collect()
    }
}

struct Stage {
    attach: Attachments,
    calls: CallReader,
    all: Vec<Watched>,
    ended: Vec<Ended>,
    asked: u64,
    /// Last: until the kernel side is gone.
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    /// With the first process, in which nothing is attached yet.
    fn new(tier: Tier) -> Self {
        let options =
            KernelOptions { forced_tier: Some(tier), max_classes: MAX_CLASSES, ..KernelOptions::default() };
        let (kernel, alone) = load_shared(&options);
        let table = Arc::new(LinkTable::new(MAX_CLASSES).unwrap());
        let governor = Governor::start(kernel.alarm_reader().unwrap(), Arc::clone(&table), None).unwrap();
        let opener = Opener::start(Arc::clone(&kernel), table).unwrap();
        let calls = kernel.call_reader().unwrap();
        let (program, process) = start();
        kernel.add_target(program.pid(), false).unwrap();
        let attach = Attachments::new(kernel, governor, opener, Arc::clone(&process));
        let mut stage = Self { attach, calls, all: Vec::new(), ended: Vec::new(), asked: 0, _alone: alone };
        stage.watch(program, process, TargetId::FIRST, true);
        stage
    }

    /// One more process.
    fn add(&mut self, records: bool) -> usize {
        let (program, process) = start();
        let target = self.attach.add_target(Arc::clone(&process), false).unwrap();
        self.watch(program, process, target, records)
    }

    /// Makes the classes of a process; which it is.
    fn watch(
        &mut self,
        mut program: Program,
        process: Arc<Target>,
        target: TargetId,
        records: bool,
    ) -> usize {
        let inspection = Inspection::of(process.pid()).unwrap();
        let mut add = |function: &str, kind| {
            let id = self.attach.next_id().unwrap();
            let class = class(id, &inspection, program.address(function), kind);
            self.attach.add_to(target, class);
            assert_eq!(self.attach.target_of(id), target);
            id
        };
        let counted = add(COUNTED, RecordKind::Count);
        let recorded = records.then(|| add(RECORDED, RecordKind::Record));
        let number = 1_001 + self.all.len() as u64;
        self.all.push(Watched { program, process, target, number, counted, recorded, told: [0; 2], rows: 0 });
        self.all.len() - 1
    }

    /// Has classes attached by one asking, and waits until each has its answer.
    fn open(&mut self, classes: &[ClassId]) -> Vec<Outcome> {
        self.asked += 1;
        let wanted: Vec<_> = classes.iter().map(|id| (*id, QUOTA, Purpose::Trace)).collect();
        let group = Group {
            kind: WindowKind::Trace,
            classes: classes.to_vec(),
            patient_until_ns: ktime_ns() + LIMIT.as_nanos() as u64,
            alone: None,
            once: false,
            number: self.asked,
        };
        self.attach.ask(group, &wanted);
        self.until("all is attached", |stage| {
            if let Some(group) = stage.attach.next_group(ktime_ns()) {
                let of = stage.attach.target_of(group.classes[0]);
                assert!(group.classes.iter().all(|id| stage.attach.target_of(*id) == of), "{group:?}");
                let ready = group.classes.clone();
                stage.attach.request(group, &ready, &[]);
            }
            stage.attach.take_reports().unwrap();
            stage.attach.is_settled()
        });
        let outcomes = self.attach.take_outcomes();
        assert_eq!(outcomes.len(), classes.len(), "{outcomes:?}");
        outcomes
    }

    /// Those that count by one asking, those that record by another: what shares a link needs the same programs.
    fn open_all(&mut self, classes: &[ClassId]) {
        let counts = |id: &ClassId| self.attach.class(*id).kind == RecordKind::Count;
        let (counted, recorded): (Vec<ClassId>, Vec<ClassId>) = classes.iter().partition(|id| counts(id));
        for outcome in [self.open(&counted), self.open(&recorded)].concat() {
            assert!(outcome.opened.is_ok(), "{outcome:?}: {:?}", self.attach.class(outcome.class).refused);
        }
    }

    /// Takes what the loop of a run takes at each turn, until something is so.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + LIMIT;
        loop {
            self.ended.extend(self.attach.collect());
            self.drain();
            if is_so(self) {
                return;
            }
            assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes the rows; each is of the process that its class was attached in.
    fn drain(&mut self) {
        let Self { calls, all, .. } = self;
        calls.drain(usize::MAX, |call| {
            let owner = all.iter_mut().find(|watched| watched.recorded == Some(call.class));
            let owner = owner.expect("a class whose calls are recorded");
            assert_eq!(call.pid, owner.program.pid(), "a row of another process: {call:?}");
            assert_eq!(call.args.map(|args| args[0]), Some(owner.number), "{call:?}");
            assert!(call.duration_ns.is_some(), "{call:?}");
            owner.rows += 1;
        });
    }

    fn counters(&self, class: ClassId) -> ClassCounters {
        self.attach.kernel().classes().counters(class)
    }

    /// What was counted and recorded of these is what they say.
    fn assert_exact(&mut self, which: &[usize]) {
        self.drain();
        for watched in which.iter().map(|at| &self.all[*at]) {
            let (number, [told, told_recorded]) = (watched.number, watched.told);
            let c = self.counters(watched.counted);
            assert_eq!((c.attempted, c.kept, c.gated, c.dropped), (told, told, 0, 0), "process {number}");
            let Some(recorded) = watched.recorded else { continue };
            let c = self.counters(recorded);
            assert_eq!((c.attempted, c.kept, c.gated, c.dropped), (told_recorded, told_recorded, 0, 0));
            assert_eq!((c.returns, watched.rows), (told_recorded, told_recorded), "process {number}");
        }
    }
}

fn start() -> (Program, Arc<Target>) {
    let program = Program::start("calls");
    let process = Arc::new(Target::attach(program.pid().cast_signed()).unwrap());
    (program, process)
}

/// A class as the agent makes it.
fn class(id: ClassId, inspection: &Inspection, address: u64, kind: RecordKind) -> LiveClass {
    let function = inspection.function_at(address).unwrap();
    let sites = inspection.sites(&function);
    let module = &inspection.modules()[function.module];
    let exits = sites.exits.clone().map_err(|why| why.to_string());
    let exits =
        exits.map(|all| all.iter().map(|s| (s.file_offset, s.return_slot.unwrap(), s.class)).collect());
    let candidate = Candidate {
        key: FunctionKey { module: function.module, address: function.vaddr },
        name: function.name.clone(),
        symbol: function.symbol.clone(),
        aliases: Vec::new(),
        module: module.path.display().to_string(),
        module_path: function.attach_path.to_path_buf(),
        file: module.mappings.first().map(|mapping| (mapping.device, mapping.inode)),
        build_id: String::new(),
        size: function.size,
        entry: EntrySite::at(&sites.entry),
        semaphore_offset: 0,
        arguments: [0; 2],
        exits,
        notes: Vec::new(),
        stamps_of: None,
    };
    let records = kind == RecordKind::Record;
    let price = Price::fixed(500.0);
    LiveClass {
        last_span: (0, 0),
        id,
        candidate,
        wish: Wish {
            kind,
            weight: 1.0,
            must: false,
            named: true,
            by_kind: true,
            force_return_link: false,
            arguments: WantedArguments::NONE,
        },
        kind,
        exit: if records { ExitMode::ExitSites } else { ExitMode::None },
        prices: ClassPrices {
            hit: price,
            exit: price,
            cold: Price::fixed(0.0),
            stamps: Price::fixed(0.0),
            rests: Rests::default(),
        },
        words: Default::default(),
        lease: None,
        role: None,
        code: InspectedCode {
            function,
            sites,
            callers: Default::default(),
            entry_for_returns: None,
            lost_arguments: Default::default(),
            parameters: None,
            prototype: None,
        },
        state: LinkState::Off,
        counters: ClassCounters::default(),
        counts_metric: false,
        dormant: false,
        refused: None,
    }
}

/// Four targets, of which the first and the third record; the classes of all are asked for together.
fn four(tier: Tier) -> Stage {
    let mut stage = Stage::new(tier);
    for records in [false, true, false] {
        stage.add(records);
    }
    let classes: Vec<ClassId> = stage.all.iter().flat_map(Watched::classes).collect();
    stage.open_all(&classes);
    for id in &classes {
        // A link is in one process: each class of its kind has its own.
        let state = &stage.attach.class(*id).state;
        assert!(matches!(state, LinkState::Open(window) if window.group == *id), "class {id}: {state:?}");
    }
    stage
}

/// All call; the third one is killed meanwhile.
fn one_dies(stage: &mut Stage) {
    let dead = stage.all[2].target;
    assert!(stage.attach.note_deaths().is_empty());
    for watched in &mut stage.all {
        watched.start();
    }
    let of_dead = stage.all[2].recorded.unwrap();
    let before = stage.counters(of_dead).kept;
    stage.until("the third one calls", |stage| stage.counters(of_dead).kept > before + 100);
    let cpu_ns = stage.attach.target_mut(dead).cpu_ns();
    stage.all[2].program.signal(libc::SIGKILL);
    stage.until("its death is noted", |stage| match &stage.attach.note_deaths()[..] {
        [] => false,
        all => {
            assert_eq!(all, [dead]);
            true
        }
    });
    assert!(!stage.attach.target(dead).is_watched());
    stage.until("its links are closed", |stage| stage.attach.target(dead).is_gone());
    assert!(!stage.attach.is_linked(dead));
    assert!(stage.attach.target_mut(dead).cpu_ns() >= cpu_ns, "its CPU time is kept");
    // The others go on for as long again.
    let other = stage.all[0].recorded.unwrap();
    let then = stage.counters(other).kept;
    stage.until("the first one calls on", |stage| stage.counters(other).kept > then + 100);
    for at in [0, 1, 3] {
        stage.all[at].stop();
    }
}

/// The windows of the dead one have ended, with all that it did, and no others.
fn assert_settled(stage: &mut Stage) {
    stage.drain();
    let Watched { counted, recorded, told, rows, .. } = &stage.all[2];
    let recorded = recorded.unwrap();
    let mut ended: Vec<&Ended> = stage.ended.iter().collect();
    ended.sort_by_key(|ended| ended.row.class_id);
    assert_eq!(ended.iter().map(|e| e.row.class_id).collect::<Vec<_>>(), [counted.0, recorded.0]);
    for (ended, id) in ended.iter().zip([*counted, recorded]) {
        let c = stage.counters(id);
        assert_eq!(ended.counters, c, "nobody is counted as the dead one");
        assert_eq!((ended.row.attempted, ended.row.kept, ended.row.dropped), (c.attempted, c.kept, 0));
        assert!(!ended.row.tripped && ended.closed_ns > 0 && ended.open_calls.is_empty());
        assert!(stage.attach.class(id).is_off());
    }
    let (c, made) = (stage.counters(recorded), told[1]);
    assert_eq!(stage.counters(*counted).kept, told[0]);
    assert!(c.kept > made + 100, "it called until it was killed");
    // It was killed in the middle of one call, or between two.
    assert!(c.kept - c.returns <= 1, "{c:?}");
    assert_eq!(*rows, c.returns, "what it did is there");
    stage.ended.clear();
}

/// Nothing is attached in the dead one again, and a fifth process takes its turn.
fn a_fifth_comes(stage: &mut Stage) {
    let gone = stage.all[2].counted;
    let outcomes = stage.open(&[gone]);
    assert_eq!(outcomes[0].opened, Err(NotOpened::Closed));
    let dead = Arc::clone(&stage.all[2].process);
    assert!(matches!(stage.attach.add_target(dead, false), Err(AddTargetError::Ended { .. })));
    let there = Arc::clone(&stage.all[1].process);
    assert!(matches!(stage.attach.add_target(there, false), Err(AddTargetError::Twice { .. })));
    let fifth = stage.add(true);
    assert!(stage.all[fifth].target > stage.all[3].target);
    stage.open_all(&stage.all[fifth].classes());
    for at in [0, 1, 3, fifth] {
        stage.all[at].call([700, 70]);
    }
    // Of those that do not record, nobody sees the second function.
    stage.assert_exact(&[0, 1, 3, fifth]);
    assert!(stage.ended.is_empty());
}

/// A target that lives is removed, and comes back as another one.
fn one_is_removed(stage: &mut Stage) {
    let first = stage.all[0].target;
    stage.attach.remove_target(first, Ending::Drain);
    stage.until("its links are closed", |stage| stage.attach.target(first).is_gone());
    stage.all[0].program.assert_text_original();
    let classes = stage.all[0].classes();
    let then: Vec<ClassCounters> = classes.iter().map(|id| stage.counters(*id)).collect();
    let mut ended: Vec<u32> = stage.ended.drain(..).map(|ended| ended.row.class_id).collect();
    ended.sort_unstable();
    assert_eq!(ended, classes.iter().map(|id| id.0).collect::<Vec<_>>());
    for at in [0, 1, 3, 4] {
        stage.all[at].call([300, 30]);
    }
    stage.assert_exact(&[1, 3, 4]);
    let now: Vec<ClassCounters> = classes.iter().map(|id| stage.counters(*id)).collect();
    assert_eq!(now, then, "nothing is attached in it any more");
    let process = Arc::clone(&stage.all[0].process);
    let again = stage.attach.add_target(process, false).unwrap();
    assert_ne!(again, first);
    stage.attach.remove_target(again, Ending::AtOnce);
    stage.until("nothing was attached", |stage| stage.attach.target(again).is_gone());
}

/// Not in tier C, where [`Attachments::add_target`] refuses a second process.
#[test]
fn four_targets_have_windows_of_their_own_and_one_dies_alone() {
    let test = "four_targets_have_windows_of_their_own_and_one_dies_alone";
    for tier in tiers_here(test, &[Tier::A, Tier::B, Tier::D]) {
        let mut stage = four(tier);
        for (at, watched) in (0..).zip(&mut stage.all) {
            watched.call([1_000 + 100 * at, 200 + 10 * at]);
        }
        stage.assert_exact(&[0, 1, 2, 3]);
        one_dies(&mut stage);
        stage.assert_exact(&[0, 1, 3]);
        assert_settled(&mut stage);
        a_fifth_comes(&mut stage);
        // Of the second one links were made, and none was closed.
        let Watched { target: second, counted, .. } = stage.all[1];
        let LinkState::Open(window) = &stage.attach.class(counted).state else { panic!("it is open") };
        let made = window.links as u64;
        assert_eq!(stage.attach.target_mut(second).take_link_changes(), made);
        one_is_removed(&mut stage);
        stage.attach.close_all(Ending::AtOnce);
        stage.until("all is closed", |stage| !stage.attach.busy());
        for at in [0, 1, 3, 4] {
            stage.all[at].program.assert_text_original();
        }
        // The governor has locked the memory of this process.
        unlock_memory();
    }
}

/// Its death is not noted yet, and its PID is still its own (nobody has waited for it): the kernel makes the link. What is made for a process that
/// has ended is closed before a gate is opened.
#[test]
fn a_target_that_ends_before_its_link_is_made_has_no_window() {
    let test = "a_target_that_ends_before_its_link_is_made_has_no_window";
    for tier in tiers_here(test, &[Tier::A, Tier::B, Tier::D]) {
        let mut stage = Stage::new(tier);
        let second = stage.add(false);
        stage.all[second].program.signal(libc::SIGKILL);
        let process = Arc::clone(&stage.all[second].process);
        stage.until("it has ended", |_| !process.is_alive());
        let [first, dead] = [0, second].map(|at| stage.all[at].counted);
        let outcomes = stage.open(&[dead, first]);
        let of = |id| outcomes.iter().find(|outcome| outcome.class == id).map(|outcome| outcome.opened);
        assert_eq!(of(dead), Some(Err(NotOpened::Closed)), "{:?}", stage.attach.class(dead).refused);
        assert!(of(first).is_some_and(|opened| opened.is_ok()), "{outcomes:?}");
        assert!(stage.attach.class(dead).is_off() && stage.attach.class(dead).refused.is_none());
        stage.all[0].call([500, 0]);
        stage.assert_exact(&[0]);
        assert_eq!(stage.attach.note_deaths(), [stage.all[second].target]);
        stage.attach.close_all(Ending::AtOnce);
        stage.until("all is closed", |stage| !stage.attach.busy());
        unlock_memory();
    }
}

#[test]
fn where_probes_cannot_be_kept_to_one_process_a_second_one_is_refused() {
    let test = "where_probes_cannot_be_kept_to_one_process_a_second_one_is_refused";
    for tier in tiers_here(test, &[Tier::C]) {
        let mut stage = Stage::new(tier);
        let (_second, process) = start();
        assert!(matches!(stage.attach.add_target(process, false), Err(AddTargetError::OneAtATime)));
        unlock_memory();
    }
}
