//! Calls that are timed at their return addresses, because a return link is refused and the ways out cannot be found.

use super::{exact_calls, recording, sleep_ms, start};
use profiler_core::class::ExitMode;
use profiler_core::recording::{ClassRow, WindowKind, WindowRow};
use profiler_tests::support::{Agent, Finished, Target};
use tempfile::TempDir;

/// How long each call waits, ns: far more than what a trap takes.
const WAIT_NS: f64 = 50_000.0;
/// The same where the function is to be called too often to be traced all the time, on a machine where hits cost little as well.
const SHORT_WAIT_NS: f64 = 10_000.0;

/// The agent on `waits_oddly` of target `waits`, attached, with calls of its own budget.
fn timing(target: &Target, folder: &TempDir, more: &[&str]) -> Agent {
    let mut arguments = vec!["--only-named", "--budget", "1000ms/s", "--latency", "waits_oddly"];
    arguments.extend(more);
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    agent
}

/// Has a caller call `calls` times. All calls so far.
fn run(target: &mut Target, caller: &str, calls: u64) -> u64 {
    target.command(&format!("run {caller} {calls} {WAIT_NS}")).number("calls")
}

/// What a run left of the one function that it was asked about.
struct Outcome {
    class: ClassRow,
    windows: Vec<WindowRow>,
    function: &'static str,
    finished: Finished,
}

impl Outcome {
    /// Stops the agent, which was asked about `function`.
    fn of(agent: Agent, function: &'static str) -> Self {
        let path = agent.recording().to_owned();
        let finished = agent.stop();
        let recorded = recording(&path);
        let class = recorded.classes.iter().find(|class| class.name == function).unwrap().clone();
        let its = |w: &&WindowRow| w.class_id == class.class_id;
        let windows = recorded.windows.iter().filter(its).cloned().collect();
        Self { class, windows, function, finished }
    }

    /// All its calls, which must be known exactly.
    fn exact_calls(&self) -> u64 {
        exact_calls(&self.finished, self.function)
    }

    /// Calls that were counted and not timed. Fails unless each call that was counted while calls were timed is somewhere.
    fn not_timed(&self) -> u64 {
        for w in self.windows.iter().filter(|w| w.kind != WindowKind::Survey) {
            assert_eq!(w.kept, w.returns + w.unwound + w.omitted + w.open, "{w:?}");
        }
        self.windows.iter().map(|w| w.omitted).sum()
    }

    /// Calls whose return was seen.
    fn timed(&self) -> u64 {
        self.windows.iter().map(|w| w.returns).sum()
    }

    /// What is known of it, for people.
    fn said(&self) -> String {
        let start_ns = self.windows.first().map_or(0, |w| w.start_ns);
        let in_words = |w: &WindowRow| {
            let (at, length) = ((w.start_ns - start_ns) as f64 * 1e-6, (w.end_ns - w.start_ns) as f64 * 1e-6);
            format!("{:?} at {at:.0} ms for {length:.1} ms: {} calls, {} timed", w.kind, w.kept, w.returns)
        };
        let windows: Vec<String> = self.windows.iter().map(in_words).collect();
        format!(
            "{} timed; {:?}; {:?}\n{}",
            self.timed(),
            self.class.notes,
            self.finished.messages,
            windows.join("\n")
        )
    }

    /// Fails unless one note says all of this.
    fn assert_note(&self, parts: &[&str]) {
        let says = |note: &String| parts.iter().all(|part| note.contains(part));
        assert!(self.class.notes.iter().any(says), "{:?}", self.class.notes);
    }

    /// Half of the calls take what the program waits, but for `error` of it: less than a single-stepped trap takes. (Others are preempted meanwhile, on a
    /// busy machine many.)
    fn assert_median(&self, wait_ns: f64, error: f64) {
        let row = self.finished.row(self.function);
        let median =
            row.quantiles_ns.iter().find(|(p, _)| *p == 0.5).unwrap_or_else(|| panic!("no P50: {row:?}")).1;
        assert!((median.value / wait_ns - 1.0).abs() < error, "{median:?}");
    }
}

#[test]
fn calls_are_timed_where_they_return_to() {
    let Some(folder) = start("calls_are_timed_where_they_return_to") else { return };
    let mut target = Target::start("waits");
    let agent = timing(&target, &folder, &[]);
    // The first calls tell who calls.
    for caller in ["one", "two", "beyond", "pointer"] {
        run(&mut target, caller, 20);
    }
    sleep_ms(500);
    let learned = run(&mut target, "one", 0);
    for caller in ["one", "two", "beyond", "pointer"] {
        run(&mut target, caller, 500);
    }
    let calls = run(&mut target, "one", 0);
    let outcome = Outcome::of(agent, "waits_oddly");
    assert_eq!(outcome.class.exit_mode, ExitMode::ReturnSites, "{}", outcome.said());
    assert_eq!(outcome.exact_calls(), calls);
    let timed = outcome.timed();
    assert!(timed >= calls - learned, "of {calls} calls the first {learned} may not; {}", outcome.said());
    outcome.assert_note(&["5 return addresses"]);
    outcome.assert_median(WAIT_NS, 0.1);
    assert!(target.is_alive());
    target.assert_text_original();
}

/// Code that was made at run time is not touched; its calls count, and are not timed, which is said.
#[test]
fn calls_from_code_made_at_run_time_are_counted_and_not_timed() {
    let Some(folder) = start("calls_from_code_made_at_run_time_are_counted_and_not_timed") else { return };
    let mut target = Target::start("waits");
    let agent = timing(&target, &folder, &[]);
    run(&mut target, "one", 20);
    sleep_ms(300);
    run(&mut target, "one", 500);
    let before = run(&mut target, "one", 0);
    let calls = target.command(&format!("jit 300 {WAIT_NS}")).number("calls");
    assert_eq!(calls, before + 300);
    sleep_ms(200);
    let outcome = Outcome::of(agent, "waits_oddly");
    assert_eq!(outcome.exact_calls(), calls);
    let timed = outcome.timed();
    assert!((500..=before).contains(&timed), "{}", outcome.said());
    let not_timed = outcome.not_timed();
    assert!(not_timed >= 300 && not_timed + timed == calls, "{not_timed} not timed; {}", outcome.said());
    outcome.assert_note(&["not timed", "made at run time"]);
    target.assert_text_original();
}

/// What a `longjmp` leaves is no return: its time counts for nobody.
#[test]
fn calls_that_are_left_by_a_jump_do_not_count_as_returned() {
    let Some(folder) = start("calls_that_are_left_by_a_jump_do_not_count_as_returned") else { return };
    let mut target = Target::start("waits");
    let agent = timing(&target, &folder, &[]);
    run(&mut target, "one", 20);
    sleep_ms(300);
    run(&mut target, "one", 200);
    let before = run(&mut target, "one", 0);
    target.command(&format!("leap 100 {WAIT_NS}"));
    let calls = run(&mut target, "one", 200);
    assert_eq!(calls, before + 300);
    let outcome = Outcome::of(agent, "waits_oddly");
    assert_eq!(outcome.exact_calls(), calls);
    let timed = outcome.timed();
    assert!((400..=before + 200).contains(&timed), "of {calls} {}", outcome.said());
    outcome.assert_median(WAIT_NS, 0.1);
    target.assert_text_original();
}

/// Bursts of a function under a share of the target's CPU time. `caller` has had it called since before the agent came: a survey of a
/// target that waits for commands would plan for a function that is hardly called, and the next plan comes seconds later.
fn of_bursts(folder: &TempDir, function: &'static str, caller: &str) -> Outcome {
    let mut target = Target::start("waits");
    let calls = format!("run {caller} 500000 {SHORT_WAIT_NS}");
    target.send(&calls);
    let agent = Agent::start_plain(target.pid(), folder.path(), &["--budget", "5%", "--latency", function]);
    target.receive(&calls);
    let outcome = Outcome::of(agent, function);
    target.assert_text_original();
    outcome
}

/// Fails unless bursts came again and again, and nearly all calls in them were timed. (Where hits cost three times as much there are fewer calls
/// in each, and as many bursts.)
fn assert_timed_in_bursts(outcome: &Outcome) {
    let bursts = || outcome.windows.iter().filter(|w| w.kind == WindowKind::Burst && w.kept > 0);
    let (calls, timed) = bursts().fold((0, 0), |(calls, timed), w| (calls + w.kept, timed + w.returns));
    assert!(bursts().count() >= 3, "{}", outcome.said());
    assert!(timed >= 40 && timed * 10 >= calls * 9, "{timed} of {calls} in bursts; {}", outcome.said());
    outcome.assert_median(SHORT_WAIT_NS, 0.3);
}

/// Windows come and go; each has the sites of all callers that are known by then.
#[test]
fn bursts_time_calls_of_callers_that_were_learned_before() {
    let Some(folder) = start("bursts_time_calls_of_callers_that_were_learned_before") else { return };
    let outcome = of_bursts(&folder, "waits_oddly", "one");
    assert_timed_in_bursts(&outcome);
}

/// A `ret` is single-stepped, which costs ten times as much here. Where callers are known from the survey, bursts see returns behind the calls.
#[test]
fn bursts_of_a_function_with_exit_sites_see_its_returns_in_its_callers() {
    let Some(folder) = start("bursts_of_a_function_with_exit_sites_see_its_returns_in_its_callers") else {
        return;
    };
    let outcome = of_bursts(&folder, "waits_plainly", "plain");
    assert_eq!(outcome.class.exit_mode, ExitMode::ReturnSites, "{}", outcome.said());
    assert_timed_in_bursts(&outcome);
}

/// Nobody is left out where every call is watched from the first on.
#[test]
fn a_function_that_is_traced_whole_keeps_its_exit_sites() {
    let Some(folder) = start("a_function_that_is_traced_whole_keeps_its_exit_sites") else { return };
    let mut target = Target::start("waits");
    let arguments = ["--only-named", "--budget", "1000ms/s", "--latency", "waits_plainly"];
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_tracing();
    let calls = target.command("run plain 500 50000").number("calls");
    let outcome = Outcome::of(agent, "waits_plainly");
    assert_eq!(outcome.class.exit_mode, ExitMode::ExitSites, "{}", outcome.said());
    assert_eq!((outcome.exact_calls(), outcome.timed()), (calls, calls));
    target.assert_text_original();
}
