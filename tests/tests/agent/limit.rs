//! The agent keeps to its own limit: it samples more rarely, and says so.

use super::start;
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
    let finished =
        Agent::start_plain(target.id(), folder.path(), &[&arguments[..], &["--agent-cpu", "1%"]].concat())
            .finish();
    // Fails only if it has ended.
    let _ = target.kill();
    let _ = target.wait();
    let receipt = &finished.report().receipt;
    let limit = receipt.agent_limit.unwrap_or_else(|| panic!("{}", finished.messages));
    println!("{limit:?}");
    assert!((limit.limit - 0.01).abs() < 1e-9, "{limit:?}");
    // The first seconds, until it has been slowed twice, are in it.
    assert!(limit.used < 0.08, "{limit:?} {}", finished.messages);
    assert!(limit.samples_cut > 10_000, "{limit:?} {}", finished.messages);
    let log = finished.report().log.iter().filter(|l| l.text.contains("--agent-cpu")).count();
    assert_eq!(log, 1, "{:?}", finished.report().log);
}
