//! Calls in order against what the target itself logged: which functions were entered, in which order, and in which call.

use super::{recording, sleep_ms, start};
use profiler_core::calls::{Code, Kind, nest};
use profiler_core::recording::{
    CallSiteRow, OperationMeta, OperationRow, OperationWindowRow, Recording, StepRow, TailRow,
};
use profiler_tests::support::{Agent, Finished, Target};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Functions of the target by the numbers of its log.
const FUNCTIONS: [&str; 11] = [
    "small",
    "middle",
    "large",
    "many",
    "leaf",
    "deep",
    "hop",
    "leaves",
    "interrupted",
    "handler",
    "carries",
];
/// Every operation is recorded, and the rows have its number.
const RICH: [&str; 6] = ["--policy", "full", "--adapt", "attach_share=false", "--measure", "tree:mark:arg0"];

/// An entry that the target logged.
#[derive(Clone, Copy, Debug)]
struct Entry {
    thread: u32,
    operation: u64,
    function: usize,
    /// Number of an earlier entry of the operation.
    parent: Option<usize>,
}

fn log(path: &Path) -> BTreeMap<u64, Vec<Entry>> {
    let bytes = std::fs::read(path).expect("the target wrote its log");
    let mut operations: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
    for record in bytes.chunks_exact(16) {
        let word = |at: usize| u32::from_le_bytes(record[4 * at..4 * at + 4].try_into().expect("4 bytes"));
        let entry = Entry {
            thread: word(0),
            operation: u64::from(word(1)),
            function: word(2) as usize,
            parent: usize::try_from(word(3).cast_signed()).ok(),
        };
        operations.entry(entry.operation).or_default().push(entry);
    }
    operations
}

fn follow(target: &Target, folder: &tempfile::TempDir, more: &[&str]) -> Agent {
    let calls: Vec<String> = FUNCTIONS.iter().map(|name| format!("--calls=tree:{name}")).collect();
    let mut arguments = vec!["--operation", "req=handle"];
    arguments.extend(calls.iter().map(String::as_str));
    arguments.extend(RICH.iter().chain(more));
    let mut agent = Agent::start(target.pid(), folder.path(), &arguments);
    agent.wait_message("tithe: following operations");
    agent
}

/// What a run recorded, with the tables that are read a row group at a time.
struct Recorded {
    all: Recording,
    windows: Vec<OperationWindowRow>,
    steps: Vec<StepRow>,
    call_sites: Vec<CallSiteRow>,
    tails: Vec<TailRow>,
}

fn stop(agent: Agent) -> (Finished, Recorded) {
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(finished.status.success(), "{}", finished.messages);
    let mut stream = profiler_user::recording::Stream::open(&path).expect("the agent wrote it");
    let recorded = Recorded {
        all: recording(&path),
        windows: stream.table().expect("it is of this format"),
        steps: stream.table().expect("it is of this format"),
        call_sites: stream.table().expect("it is of this format"),
        tails: stream.table().expect("it is of this format"),
    };
    assert_eq!(stream.damage(), &[] as &[String]);
    (finished, recorded)
}

/// What comparing came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Compared {
    complete: usize,
    incomplete: usize,
    steps: usize,
    ambiguous: usize,
    tails: usize,
    signals: usize,
}

/// Compares every recorded operation with the log; wrong orders, and wrong calls that are not marked, fail.
fn compare(recorded: &Recorded, log: &BTreeMap<u64, Vec<Entry>>) -> Compared {
    let meta = recorded.all.meta.calls.as_ref().expect("calls were asked for");
    let code = Code::new(meta, recorded.call_sites.clone(), &recorded.tails);
    let name = |class: u32| {
        let row = recorded.all.classes.iter().find(|c| c.class_id == class).expect("steps have classes");
        FUNCTIONS.iter().position(|f| *f == row.symbol).unwrap_or_else(|| panic!("{row:?}"))
    };
    let mut by_thread: HashMap<(u32, u32), BTreeMap<u64, StepRow>> = HashMap::new();
    for step in &recorded.steps {
        let of_thread = by_thread.entry((step.pid, step.tid)).or_default();
        assert!(of_thread.insert(step.number, *step).is_none(), "a number comes twice: {step:?}");
    }
    let mut compared = Compared::default();
    for row in &recorded.all.operations {
        let (true, Some(steps)) = (row.is_sampled(), steps_of(row, &by_thread)) else {
            compared.incomplete += 1;
            continue;
        };
        // `mark` adds the number of the operation.
        let entries = log.get(&row.measure).map_or(&[][..], Vec::as_slice);
        let seen: Vec<usize> = steps.iter().map(|step| name(step.class_id)).collect();
        let logged: Vec<usize> = entries.iter().map(|entry| entry.function).collect();
        assert_eq!(seen, logged, "operation {}: order", row.measure);
        assert!(entries.iter().all(|entry| entry.thread == row.tid));
        assert!(steps.is_sorted_by_key(|step| step.time_ns));
        let nesting = nest(&steps, &code);
        for (index, (entry, link)) in entries.iter().zip(&nesting.links).enumerate() {
            compared.steps += 1;
            compared.ambiguous += usize::from(link.is_ambiguous);
            compared.tails += usize::from(link.kind == Kind::Tail);
            compared.signals += usize::from(link.kind == Kind::Signal);
            assert!(
                link.is_ambiguous || link.parent == entry.parent,
                "operation {}, step {index} ({}): lies in {:?}, said {link:?}\n{:#?}",
                row.measure,
                FUNCTIONS[entry.function],
                entry.parent,
                steps
                    .iter()
                    .zip(&seen)
                    .map(|(s, f)| (FUNCTIONS[*f], s.slot, code.site(s)))
                    .collect::<Vec<_>>(),
            );
        }
        compared.complete += 1;
    }
    compared
}

fn steps_of(
    row: &OperationRow,
    by_thread: &HashMap<(u32, u32), BTreeMap<u64, StepRow>>,
) -> Option<Vec<StepRow>> {
    let (before, after) = (row.steps_before?, row.steps_after?);
    let steps: Vec<StepRow> = match by_thread.get(&(row.pid?, row.tid)) {
        Some(steps) => steps.range(before + 1..=after).map(|(_, step)| *step).collect(),
        None => Vec::new(),
    };
    (steps.len() as u64 == after - before).then_some(steps)
}

/// What the kernel side began to record is there and complete, or it is counted: as lost, as open when the run ended, or as without an end.
fn accounted(recorded: &Recorded, compared: Compared) {
    let sum = |of: fn(&OperationWindowRow) -> u64| recorded.windows.iter().map(of).sum::<u64>();
    let (begun, lost) = (sum(|row| row.recorded), sum(|row| row.dropped));
    let open = recorded.all.operations.iter().filter(|row| row.censored).count() as u64;
    let missing = begun.checked_sub(compared.complete as u64 + lost + open);
    // Of all operations, recorded or not.
    let open_at_end = |operation: &OperationMeta| operation.open_at_end.expect("few threads were asked");
    let all_open: u64 = recorded.all.meta.operations.iter().map(open_at_end).sum();
    let without_end = sum(|row| row.begun).checked_sub(sum(|row| row.population) + all_open);
    assert!(
        missing.zip(without_end).is_some_and(|(missing, without_end)| missing <= without_end),
        "{begun} begun to be recorded, {lost} lost, {open} open; of all {without_end:?} without an end; {compared:?}"
    );
}

/// Runs one command of the target under the agent, and compares.
fn run(test: &str, command: &str, more: &[&str]) -> Option<(Compared, Finished)> {
    let folder = start(test)?;
    let mut target = Target::start("tree");
    let agent = follow(&target, &folder, more);
    let path = folder.path().join("log");
    target.command(&format!("{command} {}", path.display()));
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    let compared = compare(&recorded, &log(&path));
    println!("{test}: {compared:?}");
    assert!(target.is_alive());
    target.assert_text_original();
    Some((compared, finished))
}

#[test]
fn calls_of_one_thread_are_in_order_and_nested_as_the_target_logged_them() {
    let name = "calls_of_one_thread_are_in_order_and_nested_as_the_target_logged_them";
    let Some((compared, finished)) = run(name, "tree 200 1 7", &[]) else { return };
    assert!(compared.complete >= 150 && compared.steps > 1_000, "{compared:?}; {}", finished.messages);
    assert!(compared.tails > 0, "{compared:?}");
    assert!(compared.ambiguous * 100 < 85 * compared.steps, "{compared:?}");
}

#[test]
fn calls_of_two_and_of_sixteen_threads_are_in_order() {
    let name = "calls_of_two_and_of_sixteen_threads_are_in_order";
    for threads in [2, 16] {
        let Some((compared, finished)) = run(name, &format!("tree 20 {threads} 11"), &[]) else { return };
        let all = 20 * threads;
        assert!(compared.complete * 2 >= all, "{threads}: {compared:?}; {}", finished.messages);
    }
}

#[test]
fn a_recursion_of_a_thousand_calls_is_nested_a_thousand_deep() {
    let name = "a_recursion_of_a_thousand_calls_is_nested_a_thousand_deep";
    let Some((compared, _)) = run(name, "recurse 1000", &[]) else { return };
    assert_eq!((compared.complete, compared.steps, compared.ambiguous), (1, 1_000, 0));
}

#[test]
fn throws_jumps_signals_and_stacks_that_are_switched_are_in_order() {
    let name = "throws_jumps_signals_and_stacks_that_are_switched_are_in_order";
    for way in ["loops", "tails", "jumps", "throws", "signals", "altstack", "coroutines", "made"] {
        let Some((compared, finished)) = run(name, &format!("only {way} 10"), &[]) else { return };
        assert!(compared.complete >= 5, "{way}: {compared:?}; {}", finished.messages);
        // Functions that are not named call most of the others here: three of four links are open, and not all.
        assert!(compared.ambiguous * 100 < 88 * compared.steps, "{way}: {compared:?}");
        let interrupts = matches!(way, "signals" | "altstack");
        assert_eq!(compared.signals > 0, interrupts, "{way}: {compared:?}");
        // Call sites that call one function directly leave nothing open.
        if way == "loops" {
            assert_eq!(compared.ambiguous, 0, "{way}: {compared:?}");
        }
    }
}

/// Two libraries take turns at one place, with frames of different sizes: each return address is that of the library of its time.
#[test]
fn return_addresses_are_of_the_library_that_was_there_then() {
    let name = "return_addresses_are_of_the_library_that_was_there_then";
    let Some(folder) = start(name) else { return };
    let mut target = Target::start("tree");
    let agent = follow(&target, &folder, &[]);
    let path = folder.path().join("log");
    let libraries = ["libthrough4.so", "libthrough12.so"].map(profiler_tests::program);
    let [a, b] = libraries.each_ref().map(|library| library.display());
    let reply = target.command(&format!("swap {a} {b} 20 {}", path.display()));
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    let compared = compare(&recorded, &log(&path));
    println!("{name}: {compared:?}, same place: {}", reply.number("same"));
    assert!(compared.complete >= 20, "{compared:?}; {}", finished.messages);
    let of = |library: &str| {
        let rows = recorded.call_sites.iter().filter(|site| site.module.ends_with(library));
        rows.map(|site| (site.return_address, site.since_ns, site.until_ns)).collect::<Vec<_>>()
    };
    let (first, second) = (of("libthrough4.so"), of("libthrough12.so"));
    assert!(!first.is_empty() && first.iter().all(|(_, _, until)| until.is_some()), "{first:?}");
    assert!(!second.is_empty(), "{:?}", recorded.call_sites);
    if reply.number("same") == 1 {
        assert_eq!(first[0].0, second[0].0);
        assert!(second.iter().all(|(_, since, _)| since.is_some_and(|since| Some(since) > first[0].2)));
    }
}

#[test]
fn a_forked_child_adds_nothing_to_its_parents_calls() {
    let name = "a_forked_child_adds_nothing_to_its_parents_calls";
    let Some((compared, finished)) = run(name, "forked 20 5", &[]) else { return };
    assert!(compared.complete > 0, "{compared:?}; {}", finished.messages);
}

/// How many calls fall into the half second is the machine's affair: some of four times they are more than the ring holds.
#[test]
fn operations_that_lost_calls_while_the_agent_was_stopped_are_marked() {
    let name = "operations_that_lost_calls_while_the_agent_was_stopped_are_marked";
    let Some(folder) = start(name) else { return };
    let marked: usize = (1..=4).map(|seed| marked_while_stopped(&folder, seed)).find(|n| *n > 0).unwrap_or(0);
    assert!(marked > 0, "the kernel side knows when the ring was full");
}

/// Operations that are marked after the agent was stopped for half a second.
fn marked_while_stopped(folder: &tempfile::TempDir, seed: u32) -> usize {
    let mut target = Target::start("tree");
    let agent = follow(&target, folder, &[]);
    let path = folder.path().join("log");
    let pid = agent.id();
    // SAFETY: a signal to a process that is our child.
    let send = move |signal| assert_eq!(unsafe { libc::kill(pid.cast_signed(), signal) }, 0);
    let stopping = std::thread::spawn(move || {
        sleep_ms(200);
        send(libc::SIGSTOP);
        // The watchdog waits for a second; the ring holds 116,000 steps.
        sleep_ms(500);
        send(libc::SIGCONT);
    });
    target.command(&format!("tree 60000 1 {seed} {}", path.display()));
    stopping.join().expect("it does not panic");
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    let compared = compare(&recorded, &log(&path));
    println!("{compared:?}");
    assert!(compared.complete > 100, "{compared:?}; {}", finished.messages);
    accounted(&recorded, compared);
    recorded.all.operations.iter().filter(|row| row.incomplete == Some(true)).count()
}

#[test]
fn operations_under_a_budget_too_small_for_their_calls_are_marked_or_not_recorded() {
    let test = "operations_under_a_budget_too_small_for_their_calls_are_marked_or_not_recorded";
    let Some(folder) = start(test) else { return };
    let mut target = Target::start("tree");
    let calls: Vec<String> = FUNCTIONS.iter().map(|name| format!("--calls=tree:{name}")).collect();
    let mut arguments = vec!["--budget", "10%", "--only-named", "--operation", "req=handle"];
    arguments.extend(calls.iter().map(String::as_str));
    arguments.extend(["--measure", "tree:mark:arg0"]);
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_message("tithe: following operations");
    let path = folder.path().join("log");
    target.command(&format!("tree 400000 1 5 {}", path.display()));
    let (finished, recorded) = stop(agent);
    let compared = compare(&recorded, &log(&path));
    println!("{compared:?} {}", finished.messages);
    assert!(compared.complete > 0, "{compared:?}; {}", finished.messages);
    accounted(&recorded, compared);
}
