//! The agent keeps to its own limit: it samples more rarely, and says so.

use super::{recording, start};
use profiler_tests::program;
use profiler_tests::support::Agent;
use std::process::{Command, Stdio};

/// 10,000 samples a second of a thread that never rests are asked for, at 1 % of a CPU.
#[test]
fn more_samples_than_the_agent_may_pay_for_are_not_taken() {
    let Some(folder) = start("more_samples_than_the_agent_may_pay_for_are_not_taken") else { return };
    let mut target =
        Command::new(program("spins")).arg("20000000").stdout(Stdio::null()).spawn().expect("it is there");
    let arguments =
        ["--duration", "30s", "--no-ab", "--budget", "50%", "--sample-rate", "9999", "--discover", "0"];
    let agent =
        Agent::start_plain(target.id(), folder.path(), &[&arguments[..], &["--agent-cpu", "1%"]].concat());
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    // Fails only if it has ended.
    let _ = target.kill();
    let _ = target.wait();
    let receipt = &finished.report().receipt;
    let limit = receipt.agent_limit.unwrap_or_else(|| panic!("{}", finished.messages));
    println!("{limit:?}");
    assert!((limit.limit - 0.01).abs() < 1e-9, "{limit:?}");
    // The first seconds, until it has been slowed twice, are in it.
    assert!(limit.used < 0.06, "{limit:?} {}", finished.messages);
    // Of 10,000 a second in 25 s most; the CPU may be shared.
    assert!(limit.samples_cut > 100_000, "{limit:?} {}", finished.messages);
    let recording = recording(&path);
    let last_ns = recording.samples.iter().map(|s| s.time_ns).max().unwrap_or(0);
    let late = recording.samples.iter().filter(|s| s.time_ns + 5_000_000_000 > last_ns).count();
    println!("{late} samples in the last 5 s");
    assert!((1..10_000).contains(&late), "{late} {limit:?}");
    let log = finished.report().log.iter().filter(|l| l.text.contains("--agent-cpu")).count();
    assert_eq!(log, 1, "{:?}", finished.report().log);
}
