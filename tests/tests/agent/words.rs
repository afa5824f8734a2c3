//! Words of a target that knows them: with recorded calls, with recorded operations, and in what is made of a recording.

use super::{recording, sleep_ms, start};
use profiler_core::class::ExitMode;
use profiler_core::recording::{EventRow, OperationRow, WordRow, WordStatus};
use profiler_tests::support::{Agent, Finished, Target};
use profiler_user::recording::Stream;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const CALLS: u64 = 1_500;

/// The agent beside the target, which handles documents meanwhile.
fn run(folder: &Path, arguments: &[&str]) -> (Finished, PathBuf) {
    let mut target = Target::start("words");
    let always = ["--only-named", "--budget", "1000ms/s", "--no-ab"];
    let mut agent = Agent::start_plain(target.pid(), folder, &[&always[..], arguments].concat());
    agent.wait_tracing();
    sleep_ms(500);
    assert_eq!(target.command(&format!("call {CALLS}")).number("calls"), CALLS);
    sleep_ms(200);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(target.is_alive());
    target.assert_text_original();
    (finished, path)
}

/// Words by name, of each thread and begin, at the begin and at the end.
type Taken = HashMap<(u32, u64), HashMap<String, WordRow>>;

fn taken(stream: &mut Stream, of_operations: bool) -> Taken {
    let names: HashMap<u32, String> =
        stream.meta().words.iter().map(|word| (word.word, word.name.clone())).collect();
    let mut all = Taken::new();
    for row in stream.table::<WordRow>().unwrap() {
        assert!(row.from_ns <= row.until_ns);
        if row.operation.is_some() == of_operations {
            let before =
                all.entry((row.tid, row.begin_ns)).or_default().insert(names[&row.word].clone(), row);
            assert!(before.is_none(), "{row:?} and {before:?}");
        }
    }
    all
}

fn signed(row: &WordRow) -> Option<i64> {
    assert_eq!(row.value.is_some(), row.status == WordStatus::Read, "{row:?}");
    row.value.map(u64::cast_signed)
}

/// What the words of a call of document `i` must be.
fn check(i: i64, words: &HashMap<String, WordRow>, exit: ExitMode) {
    let value = |name: &str| signed(&words[name]);
    let why = |name: &str| (words[name].status, words[name].depth);
    assert_eq!(value("mixed"), Some(i ^ 0xff), "{i}");
    assert_eq!(value("kind"), Some(-(i % 100)), "{i}");
    match i % 5 {
        4 => assert_eq!(why("text"), (WordStatus::Null, 2), "{i}"),
        _ => assert_eq!(value("text"), Some(i % 200), "{i}"),
    }
    match i % 3 {
        2 => assert_eq!(why("second"), (WordStatus::Null, 3), "{i}"),
        _ => assert_eq!(value("second"), Some(i * 7), "{i}"),
    }
    // Its argument is a small number, and once 0.
    let wild = if i == 0xff { WordStatus::Null } else { WordStatus::Unreadable };
    assert_eq!(why("wild"), (wild, 1));
    if exit == ExitMode::None {
        assert!(!words.contains_key("size"), "{i}");
        return;
    }
    assert_eq!(value("size"), Some(i + 1), "after the call has counted it up");
    match exit {
        ExitMode::ReturnLink => assert_eq!(value("triple"), Some(i * 3)),
        _ => assert_eq!(why("triple"), (WordStatus::NoRegister, 0)),
    }
}

#[test]
fn words_of_recorded_calls_are_what_stood_there() {
    let Some(folder) = start("words_of_recorded_calls_are_what_stood_there") else { return };
    // Two patterns name it.
    let begin = "parse:number=arg0->0:u64,text=strlen(arg0->8),second=arg0->16->8->0";
    let more = "/^pars/:kind=arg0->24:i8,mixed=arg1,wild=arg1->0x7fffffff:u8";
    let end = "parse@end:size=arg0->26:u16,triple=result";
    let (finished, path) =
        run(folder.path(), &["--record", "parse", "--word", begin, "--word", more, "--word", end]);
    let recorded = recording(&path);
    let class = recorded.classes.iter().find(|class| class.name == "parse").expect("it is a class");
    let mut stream = Stream::open(&path).unwrap();
    let all = taken(&mut stream, false);
    let events: Vec<EventRow> = stream.table().unwrap();
    assert!(events.len() as u64 >= CALLS / 2, "{} of {CALLS}: {}", events.len(), finished.messages);
    assert_eq!(all.len(), events.len(), "{}", finished.messages);
    let mut seen: Vec<i64> = Vec::new();
    for event in &events {
        let words = &all[&(event.tid, event.time_ns)];
        let number = signed(&words["number"]).unwrap();
        check(number, words, class.exit_mode);
        assert_eq!(
            event.args[1],
            Some((number ^ 0xff).cast_unsigned()),
            "words keep the registers that they read"
        );
        seen.push(number);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), events.len(), "each call once");

    let tallies = &finished.report().words;
    let tally = tallies.iter().find(|tally| tally.word.name == "text").expect("it is in the report");
    assert_eq!(tally.taken, events.len() as u64);
    assert!(tally.null >= tally.taken / 6 && tally.read + tally.null == tally.taken, "{tally:?}");
    assert!(tally.least >= Some(0) && tally.greatest <= Some(199), "{tally:?}");
    assert_eq!(recorded.meta.losses.takings_dropped, 0);
}

#[test]
fn words_of_operations_are_at_both_ends() {
    let Some(folder) = start("words_of_operations_are_at_both_ends") else { return };
    let (finished, path) = run(
        folder.path(),
        &[
            "--operation",
            "req=handle",
            "--policy",
            "full",
            "--word",
            "req:document=arg0:ptr,before=&handled->0:u32",
            "--word",
            "req@end:number=document->0:u64,size=document->26:u16,after=&handled->0:u32",
        ],
    );
    let mut stream = Stream::open(&path).unwrap();
    let all = taken(&mut stream, true);
    let operations: Vec<OperationRow> = stream.table().unwrap();
    assert!(operations.len() as u64 >= CALLS / 2, "{}: {}", operations.len(), finished.messages);
    for operation in operations.iter().filter(|operation| !operation.censored) {
        let words = &all[&(operation.tid, operation.begin_ns)];
        let value = |name: &str| signed(&words[name]).unwrap();
        assert_eq!(value("before"), value("number"), "documents are counted from 0");
        assert_eq!(value("after"), value("number") + 1);
        assert_eq!(value("size"), value("number") + 1);
        assert!(words["document"].value.is_some_and(|at| at > 0x1000));
    }
}

/// The kernel side charges each hit of the operation the same; what its words took is added by the agent.
#[test]
fn words_of_an_operation_are_in_the_cost_of_the_call_around_it() {
    let Some(folder) = start("words_of_an_operation_are_in_the_cost_of_the_call_around_it") else { return };
    let words = [
        "--word",
        "inner:number=arg0->0:u64,text=strlen(arg0->8)",
        "--word",
        "inner@end:after=&handled->0:u32",
    ];
    let always = ["--record", "handle", "--operation", "inner=parse", "--policy", "full"];
    let (finished, path) = run(folder.path(), &[&always[..], &words].concat());
    let mut stream = Stream::open(&path).unwrap();
    let mut takings: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
    for row in stream.table::<WordRow>().unwrap() {
        // All words of a taking have its two times.
        let of_thread = takings.entry(row.tid).or_default();
        if of_thread.last() != Some(&(row.from_ns, row.until_ns)) {
            of_thread.push((row.from_ns, row.until_ns));
        }
    }
    let events: Vec<EventRow> = stream.table().unwrap();
    // Beside an operation the plan watches the function in bursts.
    assert!(events.len() >= 100, "{}: {}", events.len(), finished.messages);
    let mut around = 0;
    for event in &events {
        let (Some(duration_ns), Some(cost_ns)) = (event.duration_ns, event.nested_cost_ns) else { continue };
        let is_inside =
            |taking: &&(u64, u64)| taking.0 >= event.time_ns && taking.1 <= event.time_ns + duration_ns;
        let inside: Vec<&(u64, u64)> = takings[&event.tid].iter().filter(is_inside).collect();
        let read_ns: u64 = inside.iter().map(|(from_ns, until_ns)| (until_ns - from_ns).min(20_000)).sum();
        assert!(cost_ns >= read_ns, "{event:?}: {inside:?}");
        around += u64::from(inside.len() == 2);
    }
    assert!(around >= 50, "{around} of {} calls have an operation with words in them", events.len());
}

#[test]
fn what_is_not_in_the_target_is_refused_or_said() {
    let Some(folder) = start("what_is_not_in_the_target_is_refused_or_said") else { return };
    let mut target = Target::start("words");
    let agent = |words: &str, name: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        Agent::start_plain(target.pid(), &folder, &["--record", "parse", "--duration", "1s", "--word", words])
            .finish()
    };
    let refused = agent("parse:n=&nothing_of_that_name->0", "variable");
    assert!(refused.messages.contains("no global variable 'nothing_of_that_name'"), "{}", refused.messages);
    let clash =
        ["--record", "parse", "--duration", "1s", "--word", "parse:n=arg0", "--word", "/^pars/:n=arg1"];
    let twice = folder.path().join("twice");
    std::fs::create_dir(&twice).unwrap();
    let refused = Agent::start_plain(target.pid(), &twice, &clash).finish();
    let why = "'parse' and '/^pars/' both name 'parse', which would have two words called 'n'";
    assert!(refused.messages.contains(why), "{}", refused.messages);
    let said = agent("handle:n=arg0->0", "function");
    let reasons = &said.report().receipt.not_observed;
    assert!(reasons.iter().any(|reason| reason.what == "words at 'handle'"), "{reasons:?}");
    assert!(target.is_alive());
}
