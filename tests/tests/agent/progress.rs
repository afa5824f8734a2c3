//! The overhead is measured on what the kernel counts: a system call, a function, or what the agent finds by itself.

use super::{recording, sleep_ms, start};
use profiler_core::recording::OperationWindowRow;
use profiler_core::stats::moments::Moments;
use profiler_tests::support::{Agent, Finished, Target, Twins, monotonic_ns};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Copies zeros for ever: nothing but `read` and `write`, a MiB each.
struct Copying(Child);

impl Copying {
    fn start() -> Self {
        let child = Command::new("dd")
            .args(["if=/dev/zero", "of=/dev/null", "bs=1M"])
            .stderr(Stdio::null())
            .spawn()
            .expect("dd is everywhere");
        Self(child)
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn record(target: &Copying, folder: &TempDir, arguments: &[&str]) -> Finished {
    let mut all = vec!["--duration", "15s", "--budget", "50%"];
    all.extend(arguments);
    Agent::start_plain(target.0.id(), folder.path(), &all).finish()
}

#[test]
fn the_overhead_is_measured_on_a_system_call_that_was_named_or_found() {
    let Some(folder) = start("the_overhead_is_measured_on_a_system_call_that_was_named_or_found") else {
        return;
    };
    let target = Copying::start();
    for (arguments, metric) in
        [(&["--progress", "syscall:write"][..], "the system call write"), (&[][..], "the system call ")]
    {
        let finished = record(&target, &folder, arguments);
        let receipt = &finished.report().receipt;
        // A machine on which others make a million system calls a second is spared.
        if receipt.measured.is_none() && finished.messages.contains("from other processes") {
            eprintln!("SKIP {metric}: {}", finished.messages);
            continue;
        }
        let measured = receipt.measured.as_ref().unwrap_or_else(|| panic!("{}", finished.messages));
        assert!(measured.metric.contains(metric), "{measured:?}");
        assert!(measured.metric.ends_with("read") || measured.metric.ends_with("write"), "{measured:?}");
        assert!(
            measured.pairs >= 3 && measured.low <= measured.value && measured.value <= measured.high,
            "{measured:?}"
        );
        assert!(measured.note.contains("counting"), "{measured:?}");
        assert!(finished.messages.contains("reachable by the end: +-"), "{}", finished.messages);
    }
}

#[test]
fn without_windows_off_nothing_is_measured_and_nothing_is_counted() {
    let Some(folder) = start("without_windows_off_nothing_is_measured_and_nothing_is_counted") else {
        return;
    };
    let target = Copying::start();
    for arguments in [&["--no-ab"][..], &["--progress", "none"]] {
        let finished = record(&target, &folder, arguments);
        let receipt = &finished.report().receipt;
        assert_eq!(receipt.measured, None, "{}", finished.messages);
        assert!(!receipt.spent_s.contains_key(&profiler_core::recording::Charge::Progress), "{receipt:?}");
    }
}

/// Operations that are in flight when functions are detached for a window off are timed all the same: short ones are waited for
/// where it matters, the functions of long ones stay.
#[test]
fn windows_off_cut_no_operation() {
    let Some(folder) = start("windows_off_cut_no_operation") else { return };
    for (most_us, threads) in [(2_000, 8), (120_000, 32)] {
        let mut target = Target::start("calls");
        target.start_background("sleep_uneven_us", threads, 0, most_us / 2);
        let arguments = [
            "--budget",
            "500ms/s",
            "--operation",
            "op=sleep_uneven_us",
            "--progress",
            "syscall:clock_nanosleep",
        ];
        let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
        agent.wait_message("tithe: following operations");
        sleep_ms(13_000);
        let path = agent.recording().to_owned();
        let finished = agent.stop();
        let recorded = recording(&path);
        let sum = |of: fn(&OperationWindowRow) -> u64| recorded.operation_windows.iter().map(of).sum::<u64>();
        let (begun, ended, unmatched) = (sum(|w| w.begun), sum(|w| w.population), sum(|w| w.unmatched));
        let context = format!("{most_us} us: {begun} {ended} {unmatched}; {}", finished.messages);
        println!("{most_us} us: {begun} begun, {ended} ended, {unmatched} unmatched");
        let pairs = finished.report().receipt.measured.as_ref().map_or(0, |m| m.pairs);
        assert!(pairs >= 3, "{pairs} windows off; {context}");
        // One in hundreds may be lost where so many are short; at the end those in flight are.
        // Those that were in flight when recording began have ended, and their begin was not counted.
        assert!(ended <= begun + u64::from(threads), "{context}");
        let lost = begun.saturating_sub(ended + u64::from(threads));
        assert!(lost as f64 <= 0.005 * begun as f64, "{context}");
        assert!(ended > 100, "{context}");
        target.assert_text_original();
    }
}

/// Lengths of time over which the twin is asked, ns.
const PIECE_NS: u64 = 250_000_000;
/// Before the agent comes and after it has gone, s.
const ALONE_S: f64 = 3.0;
/// The widest half of an interval, and the largest error of the truth, that say anything of the overhead here, parts of the program's own time: 16 % of
/// overhead were told with 0.026, 0.048 and 0.083 (11 to 13 pairs of windows). The interval must lie above 0, too.
const WIDEST: f64 = 0.1;
const LARGEST_ERROR: f64 = 0.02;
/// Overhead below which the test would not tell a figure from none.
const LEAST: f64 = 0.05;

/// The overhead by the twin that nobody watches: the CPU time of all that the program does for a pair of calls, in units of the twin's in the same
/// moments, while the function is watched over that before the agent comes and after it has gone.
struct Truth {
    value: f64,
    /// Of the pieces' scatter, 95 %, and of the difference between before and after, by squares.
    error: f64,
}

/// Logarithms of the costs of pieces of these spans.
fn costs(target: &mut Twins, spans: &[(u64, u64)]) -> Moments {
    let mut costs = Moments::default();
    for (from, to) in spans {
        for i in 0..(to.saturating_sub(*from) / PIECE_NS) {
            let begin = from + i * PIECE_NS;
            costs.push(target.between(begin, begin + PIECE_NS).cost_of_a_pair().expect("it works").ln());
        }
    }
    costs
}

fn half(costs: &Moments) -> f64 {
    costs.mean_interval(0.95).map_or(f64::INFINITY, |i| 0.5 * (i.high - i.low))
}

impl Truth {
    fn of(before: &Moments, watched: &Moments, after: &Moments) -> Self {
        let alone = f64::midpoint(before.mean(), after.mean());
        let drift = 0.5 * (before.mean() - after.mean());
        let parts = [half(watched), 0.5 * half(before), 0.5 * half(after), drift];
        let error = parts.iter().map(|part| part * part).sum::<f64>().sqrt();
        let value = (watched.mean() - alone).exp_m1();
        Self { value, error: (1.0 + value) * error }
    }
}

/// One run: what the agent says and what the twin says.
fn overhead(folder: &TempDir) -> (Finished, Truth) {
    let mut target = Twins::start();
    // 100,000 hits a second; a unit of progress comes 5,000 times.
    target.work_and_call("push", 100_000, 10);
    let alone = |target: &mut Twins| {
        let begin = monotonic_ns();
        sleep_ms((ALONE_S * 1e3) as u64);
        costs(target, &[(begin, monotonic_ns())])
    };
    // The first second warms up.
    sleep_ms(1_000);
    let before = alone(&mut target);
    let [function, _] = Twins::names("push");
    let arguments = [
        "--duration",
        "20s",
        "--budget",
        "60%",
        "--count",
        &function,
        "--discover",
        "0",
        // Samples interrupt the twin as well.
        "--sample-rate",
        "20",
        "--progress",
        "syscall:getppid",
    ];
    let agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let after = alone(&mut target);
    let recorded = recording(&path);
    let class = recorded.classes.iter().find(|c| c.name == function).expect("it was asked for").class_id;
    let spans: Vec<(u64, u64)> =
        recorded.windows.iter().filter(|w| w.class_id == class).map(|w| (w.start_ns, w.end_ns)).collect();
    let watched = costs(&mut target, &spans);
    println!("{} pieces watched, {} and {} alone", watched.n(), before.n(), after.n());
    (finished, Truth::of(&before, &watched, &after))
}

/// The receipt's measured overhead against a twin that nobody watches. Runs on a machine too busy for the twin to know are made again; what the agent
/// says is no reason for that.
#[test]
fn fails_unless_the_figures_interval_holds_the_twins_overhead() {
    let Some(folder) = start("fails_unless_the_figures_interval_holds_the_twins_overhead") else { return };
    let mut runs = (0..3).map(|i| {
        let folder = TempDir::new_in(folder.path()).unwrap_or_else(|error| panic!("run {i}: {error}"));
        let (finished, truth) = overhead(&folder);
        println!("truth {:.4} +-{:.4}; {:?}", truth.value, truth.error, finished.report().receipt.measured);
        (finished, truth)
    });
    let known = runs.find(|(_, truth)| truth.error <= LARGEST_ERROR);
    let (finished, truth) = known.expect("the machine is too busy: the twin does not know the overhead");
    assert!(truth.value >= LEAST, "{} is too little to be told from none", truth.value);
    let receipt = &finished.report().receipt;
    let measured =
        receipt.measured.as_ref().unwrap_or_else(|| panic!("nothing measured; {}", finished.messages));
    assert!(measured.metric.contains("getppid"), "{measured:?}");
    let half_width = 0.5 * (measured.high - measured.low);
    let says = half_width <= WIDEST && measured.low > 0.0;
    assert!(says, "+-{half_width} says nothing: {measured:?}");
    assert!(
        measured.low - truth.error <= truth.value && truth.value <= measured.high + truth.error,
        "true {:.4} +-{:.4}, told {measured:?}; {}",
        truth.value,
        truth.error,
        finished.messages
    );
}
