//! What the agent takes of the machine's memory while it watches, and in the moment in which it names stacks.

use super::{sleep_ms, start};
use profiler_tests::program;
use profiler_tests::support::Agent;
use std::process::{Command, Stdio};

/// Maps of the kernel programs in the agent's address space, bytes. 9 MiB were measured (a ring counts twice); without options that need more.
const MOST_OF_MAPS: u64 = 12 << 20;
/// Heap and stacks, bytes: 12 to 16 MiB were measured.
const MOST_ANONYMOUS: u64 = 28 << 20;
/// All of it at its largest, bytes, code included, of which a build without optimisation has more.
const MOST: u64 = 96 << 20;

/// Resident bytes of the mappings whose line in `smaps` passes, and the anonymous part of all.
fn resident(pid: u32, of: impl Fn(&str) -> bool) -> (u64, u64) {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("the agent runs");
    let (mut chosen, mut anonymous, mut counts) = (0, 0, false);
    for line in smaps.lines() {
        let kib = || line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
        match line.split_whitespace().next() {
            Some("Rss:") if counts => chosen += kib() << 10,
            Some("Anonymous:") => anonymous += kib() << 10,
            Some(word) if !word.ends_with(':') => counts = of(line),
            _ => {}
        }
    }
    (chosen, anonymous)
}

#[test]
fn a_run_on_sqlite_takes_little_memory() {
    let Some(folder) = start("a_run_on_sqlite_takes_little_memory") else { return };
    let mut target = Command::new(program("sqlite-load")).stdout(Stdio::null()).spawn().expect("it is there");
    let mut agent = Agent::start_plain(target.id(), folder.path(), &["--duration", "9s", "--budget", "2%"]);
    // The first plan stands after 4.5 s at the latest.
    sleep_ms(7000);
    assert!(agent.is_alive(), "{}", agent.messages());
    let (maps, anonymous) = resident(agent.id(), |mapping| mapping.contains("bpf-map"));
    let finished = agent.finish();
    // Fails only if it has ended.
    let _ = target.kill();
    let _ = target.wait();
    let most = finished.report().receipt.agent_rss_bytes;
    println!("maps {} KiB, anonymous {} KiB, most {} KiB", maps >> 10, anonymous >> 10, most >> 10);
    assert!(maps > 0 && maps < MOST_OF_MAPS, "maps of {} KiB", maps >> 10);
    assert!(anonymous > 0 && anonymous < MOST_ANONYMOUS, "{} KiB of heap and stacks", anonymous >> 10);
    assert!(most < MOST, "{} KiB at most", most >> 10);
}
