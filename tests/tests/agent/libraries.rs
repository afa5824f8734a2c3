//! A target that loads and unloads generated libraries for as long as it runs: the agent gives their files back.

use super::{sleep_ms, start};
use profiler_tests::program;
use profiler_tests::support::{Agent, Target, patience};
use std::path::Path;
use std::time::{Duration, Instant};

/// Libraries in all, and loaded at once.
const LIBRARIES: usize = 300;
const AT_ONCE: usize = 25;
/// Files that are unmapped and held at most, see `profiler-user/src/unwind/modules.rs`.
const UNMAPPED: usize = 32;

/// The agent's descriptors: all, and those of files below a folder.
fn descriptors(agent: &Agent, folder: &Path) -> (usize, usize) {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", agent.id())).expect("the agent runs");
    let links: Vec<_> = entries.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).collect();
    (links.len(), links.iter().filter(|path| path.starts_with(folder)).count())
}

#[test]
fn files_of_generated_libraries_are_given_back() {
    let Some(folder) = start("files_of_generated_libraries_are_given_back") else { return };
    let generated = tempfile::tempdir().expect("a temporary folder can be made");
    let mut target = Target::start("requests");
    // Busy: what samples name is looked up anew with each look at the mappings.
    target.command("start 0 1 1");
    let agent = Agent::start_plain(target.pid(), folder.path(), &["--verbose"]);
    sleep_ms(3_000);
    let mut first = None;
    let mut most = (0, 0);
    for round in 0..LIBRARIES / AT_ONCE {
        for i in 0..AT_ONCE {
            let library = generated.path().join(format!("generated{}.so", round * AT_ONCE + i));
            std::fs::copy(program("libplugin.so"), &library).expect("there is room");
            assert_eq!(target.command(&format!("load {}", library.display())).number("loaded"), 1);
            std::fs::remove_file(&library).expect("it is ours");
        }
        // The agent looks at the mappings once a second: each library must have been seen.
        let end = Instant::now() + patience(Duration::from_secs(20));
        let newest = format!("generated{}.so", (round + 1) * AT_ONCE - 1);
        while !held(&agent, &newest) {
            assert!(Instant::now() < end, "{newest} was not seen: {}", agent.messages());
            sleep_ms(50);
        }
        sleep_ms(200);
        let now = descriptors(&agent, generated.path());
        let first = *first.get_or_insert(now.0 - now.1);
        println!(
            "{first} others in the first round; round {round}: {} descriptors, {} of generated files",
            now.0, now.1
        );
        most = (most.0.max(now.0), most.1.max(now.1));
        for _ in 0..AT_ONCE {
            assert_eq!(target.command("unload").number("unloaded"), 1);
        }
    }
    let (mut last, mut of_generated) = descriptors(&agent, generated.path());
    let begun = Instant::now();
    let end = begun + patience(Duration::from_secs(20));
    while of_generated > UNMAPPED && Instant::now() < end {
        sleep_ms(50);
        (last, of_generated) = descriptors(&agent, generated.path());
    }
    println!(
        "{most:?} at most, {last} and {of_generated} at the end, {:.1} s after the last was unloaded",
        begun.elapsed().as_secs_f64()
    );
    let answer = target.command("stop");
    let finished = agent.stop();
    assert!(target.is_alive() && answer.number("requests") > 0, "{}", finished.messages);
    // Each mapped one is held for its functions and for unwinding; those of the round before may not have been looked at yet.
    assert!(most.1 <= 4 * AT_ONCE + UNMAPPED, "{} files of generated libraries are held", most.1);
    assert!(of_generated <= UNMAPPED, "{of_generated} of {LIBRARIES} unloaded files are held");
    let first = first.expect("there were rounds");
    assert!(last - of_generated <= first + 2 * UNMAPPED, "{first} others have become {last} in all");
}

/// The agent holds a file of this name.
fn held(agent: &Agent, name: &str) -> bool {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", agent.id())).expect("the agent runs");
    let name = format!("/{name}");
    entries
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .any(|path| path.to_string_lossy().trim_end_matches(" (deleted)").ends_with(&name))
}
