use super::allowance::MOST_A_TURN_NS;
use super::*;
use crate::recording::sample::{meta, recording};
use crate::recording::{Overwrite, Stream, Writer, WriterOptions};
use std::cell::RefCell;
use std::rc::Rc;

const MS: u64 = 1_000_000;
const BEGAN: RunStart = RunStart { ns: 0, unix_ns: 0 };
/// Of the agent, CPU s/s: large enough for rows that a debug build looks at.
const AGENT_CPU: f64 = 0.4;

/// What a consumer saw.
#[derive(Debug, Default, Clone)]
struct Log {
    operations: Vec<u64>,
    steps: u64,
    skipped: u64,
    turns: u64,
    used_ns: u64,
}

/// Takes so long for each piece of rows, and for each turn, ns.
struct Slow {
    name: &'static str,
    rows_ns: u64,
    turn_ns: u64,
    /// Panics at the piece of rows with this number.
    panics_at: u64,
    pieces: u64,
    log: Rc<RefCell<Log>>,
}

impl Slow {
    fn new(name: &'static str, rows_ns: u64, turn_ns: u64) -> (Self, Rc<RefCell<Log>>) {
        let log = Rc::new(RefCell::new(Log::default()));
        (Self { name, rows_ns, turn_ns, panics_at: u64::MAX, pieces: 0, log: Rc::clone(&log) }, log)
    }

    fn spin(&self, ns: u64) {
        let begun = thread_cpu_ns();
        while thread_cpu_ns() < begun + ns {}
        self.log.borrow_mut().used_ns += thread_cpu_ns() - begun;
    }
}

impl Consumer for Slow {
    fn name(&self) -> &'static str {
        self.name
    }

    fn take(&mut self, rows: Rows<'_>) {
        self.pieces += 1;
        assert!(self.pieces != self.panics_at, "a consumer with a defect");
        assert!(rows.len() <= AT_ONCE);
        self.spin(self.rows_ns);
        let mut log = self.log.borrow_mut();
        match rows {
            Rows::Operations(rows) => log.operations.extend(rows.iter().map(|row| row.begin_ns)),
            Rows::Steps(rows) => log.steps += rows.len() as u64,
            _ => {}
        }
    }

    fn skipped(&mut self, rows: Rows<'_>) {
        self.log.borrow_mut().skipped += rows.len() as u64;
    }

    fn work(&mut self, turn: &mut Turn) {
        self.spin(self.turn_ns);
        self.log.borrow_mut().turns += 1;
        turn.tell(format!("{} at {}", self.name, turn.now_ns - turn.start.ns));
        turn.ask([(1, 0x10)]);
    }

    fn end(&mut self, turn: &mut Turn) -> Vec<String> {
        turn.tell(format!("{} ends", self.name));
        vec![format!("{} warns", self.name)]
    }
}

fn operations(from: u64, n: u64) -> Vec<OperationRow> {
    let row = recording().operations[0];
    (from..from + n).map(|at| OperationRow { begin_ns: at, ..row }).collect()
}

/// Rows pass a slow consumer, one that panics and a good one in 50 turns. Returns what the recording has.
#[test]
fn no_consumer_delays_or_loses_the_recording() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let writer = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    let writer = WriterHandle::spawn(writer, WriterOptions::default()).unwrap();
    let mut consumers = Consumers::default();
    let (greedy, greedy_log) = Slow::new("greedy", 3 * MS, 0);
    let (mut broken, broken_log) = Slow::new("broken", 0, 0);
    broken.panics_at = 3;
    let (good, good_log) = Slow::new("good", 0, 0);
    for consumer in [greedy, broken, good] {
        consumers.register(Box::new(consumer), AGENT_CPU, 0);
    }
    let mut longest_ns = 0;
    for turn in 0..50_u64 {
        let now = turn * 10 * MS;
        let rows = operations(turn * 1_000, 1_000);
        let before = thread_cpu_ns();
        assert!(consumers.record(&writer, rows, now));
        consumers.work(now, BEGAN);
        // Unwinding from the panic in the first one takes its time.
        if turn > 0 {
            longest_ns = longest_ns.max(thread_cpu_ns() - before);
        }
    }
    let (wants, warnings) = consumers.end(500 * MS, BEGAN, MS);
    writer.finish(&meta()).unwrap();

    let recorded: Vec<OperationRow> = Stream::open(&path).unwrap().table().unwrap();
    assert_eq!(recorded.iter().map(|row| row.begin_ns).collect::<Vec<_>>(), (0..50_000).collect::<Vec<_>>());
    // One that panics sees nothing from then on; the others go on.
    assert_eq!(broken_log.borrow().operations.len(), 2 * AT_ONCE);
    let good = good_log.borrow();
    assert_eq!((good.operations.len(), good.skipped), (50_000, 0));
    // One that takes longer than it may misses rows, each of which is counted.
    let greedy = greedy_log.borrow();
    assert!(greedy.skipped > 30_000, "{}", greedy.skipped);
    assert_eq!(greedy.operations.len() as u64 + greedy.skipped, 50_000);
    // 0.5 s, what was saved at first, and one piece.
    let income = AGENT_CPU * PART_OF_AGENT / 3.0;
    assert!((greedy.used_ns as f64) < income * 1.5e9 + 4e6, "{}", greedy.used_ns);
    // No turn took longer than what a turn may and one piece; twice, for a machine that is busy.
    assert!((longest_ns as f64) < 2.0 * (3.0 * MOST_A_TURN_NS + 3e6), "{longest_ns}");
    assert_eq!(wants.told, ["greedy ends", "good ends"]);
    let said = warnings.join("\n");
    assert!(
        said.contains("greedy warns\ngreedy did not look at ") && said.contains("good warns\nbroken failed"),
        "{said}"
    );
}

#[test]
fn a_turn_is_over_when_its_time_is_and_the_next_one_waits() {
    let mut consumers = Consumers::default();
    let (slow, log) = Slow::new("slow", 0, 40 * MS);
    consumers.register(Box::new(slow), 0.2, 0);
    let wants = consumers.work(0, BEGAN);
    assert_eq!(
        (wants.told, wants.addresses, wants.asks),
        (vec!["slow at 0".to_owned()], vec![(1, 0x10)], true)
    );
    // An income of 5 %, and 50 ms saved: 40 ms leave 10 ms for the next turn, which leave a debt of 30 ms.
    assert_eq!(consumers.work(10 * MS, BEGAN).told.len(), 1);
    assert!(consumers.work(20 * MS, BEGAN).told.is_empty());
    assert!(consumers.work(500 * MS, BEGAN).told.is_empty());
    assert_eq!(consumers.work(800 * MS, BEGAN).told, ["slow at 800000000"]);
    assert_eq!(log.borrow().turns, 3);
    let mut turn = Turn::new((0, BEGAN), 3 * MS);
    assert!(!turn.is_over());
    Slow::new("", 0, 0).0.spin(4 * MS);
    assert!(turn.is_over());
    turn.ask([]);
    assert!(turn.asks);
}

#[test]
fn steps_and_other_rows_come_in_order_and_in_pieces() {
    let (good, log) = Slow::new("good", 0, 0);
    let mut consumers = Consumers::default();
    assert!(consumers.is_empty());
    consumers.register(Box::new(good), AGENT_CPU, 0);
    let step = |number| StepRow {
        time_ns: 0,
        number,
        class_id: 0,
        pid: 1,
        tid: 1,
        slot: 0,
        return_address: 0,
        frame: 0,
    };
    let steps: Vec<StepRow> = (0..1_000).map(step).collect();
    consumers.show(Rows::Steps(&steps), 0);
    consumers.show(Rows::Operations(&operations(7, 2)), 0);
    consumers.show(Rows::Operations(&[]), 0);
    assert_eq!((log.borrow().steps, log.borrow().operations.clone()), (1_000, vec![7, 8]));
}
