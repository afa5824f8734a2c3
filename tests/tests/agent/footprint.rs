//! What the agent takes of the machine's memory while it watches, and in the moment in which it names stacks.

use super::{sleep_ms, start};
use profiler_tests::program;
use profiler_tests::support::Agent;
use std::process::{Command, Stdio};

/// Maps of the kernel programs in the agent's address space, bytes, and what each CPU may add (a ring counts twice). 7.6 MiB were seen with 2 CPUs, in a
/// build without optimisation, as all figures here; without options that need more.
const MOST_OF_MAPS: u64 = 10 << 20;
/// See `MOST_OF_MAPS`.
const MAPS_OF_A_CPU: u64 = 1 << 20;
/// Heap and stacks, bytes: 10.1 MiB were seen.
const MOST_ANONYMOUS: u64 = 20 << 20;
/// All of it at its largest, bytes, code included: the aim. 44 MiB were seen; before rings followed their use and debug information was held of one module at a
/// time it was 80 MiB.
const MOST: u64 = 64 << 20;

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
    // What whoever launches the agent holds is not the agent's: the kernel's own figure of the peak begins with it.
    let ballast = vec![1_u8; 200 << 20];
    let mut agent = Agent::start_plain(target.id(), folder.path(), &["--duration", "9s", "--budget", "2%"]);
    drop(std::hint::black_box(ballast));
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
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    assert!(maps > 0 && maps < MOST_OF_MAPS + cpus * MAPS_OF_A_CPU, "maps of {} KiB", maps >> 10);
    assert!(anonymous > 0 && anonymous < MOST_ANONYMOUS, "{} KiB of heap and stacks", anonymous >> 10);
    assert!(most < MOST, "{} KiB at most", most >> 10);
}
