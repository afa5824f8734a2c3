//! A target that is close to its memory limit outlives being attached to.

use super::{sleep_ms, start};
use profiler_core::recording::PrivateMemory;
use profiler_tests::support::{Agent, Target};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A memory cgroup of our own; it goes when the target in it has ended.
struct Group {
    folder: PathBuf,
    limit_file: &'static str,
    usage_file: &'static str,
}

impl Group {
    /// `None` and a printed reason: this machine lets us make none.
    fn new(test: &str) -> Option<Group> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (root, limit_file, usage_file) = if v1.join("memory.limit_in_bytes").exists() {
            (v1, "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max", "memory.current")
        };
        let folder = root.join(format!("tithe-{test}-{}", std::process::id()));
        match std::fs::create_dir(&folder) {
            Ok(()) if folder.join(limit_file).exists() => Some(Group { folder, limit_file, usage_file }),
            Ok(()) => {
                std::fs::remove_dir(&folder).expect("it is empty");
                eprintln!("SKIP {test}: {} has no memory controller", root.display());
                None
            }
            Err(error) => {
                eprintln!("SKIP {test}: cannot make {}: {error}", folder.display());
                None
            }
        }
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.folder.join(file), text)
            .unwrap_or_else(|error| panic!("{text} > {file}: {error}"));
    }

    fn usage(&self) -> u64 {
        self.read(self.usage_file).trim().parse().expect("a number")
    }

    /// Leaves so much to what is in it.
    fn leave(&self, bytes: u64) {
        self.write(self.limit_file, &(self.usage() + bytes).to_string());
    }

    /// Processes that the kernel has ended because there was no memory left.
    fn killed(&self) -> u64 {
        let file = if self.folder.join("memory.oom_control").exists() {
            "memory.oom_control"
        } else {
            "memory.events"
        };
        let text = self.read(file);
        let line =
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")).expect("the kernel counts them");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.folder).is_err() && Instant::now() < end {
            sleep_ms(10);
        }
    }
}

/// Anonymous memory in the executable mappings of the target's own file, bytes.
fn private_text(target: &Target) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", target.pid())).expect("the target lives");
    let mut own = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Anonymous:").filter(|_| own) {
            bytes += 1024 * kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
        } else if line.contains(" r-xp ") {
            own = line.ends_with("/pages");
        } else if line.contains("-p ") {
            own = false;
        }
    }
    bytes
}

fn private_memory(finished: &profiler_tests::support::Finished) -> PrivateMemory {
    let report = finished.report.as_ref().unwrap_or_else(|| panic!("no report: {}", finished.messages));
    report.receipt.private_memory.clone().expect("something was attached")
}

#[test]
fn a_target_close_to_its_memory_limit_outlives_600_pages() {
    let name = "a_target_close_to_its_memory_limit_outlives_600_pages";
    let Some(folder) = start(name) else { return };
    let Some(group) = Group::new("pages") else { return };
    let mut target = Target::start("pages");
    group.write("cgroup.procs", &target.pid().to_string());
    target.command("hold 32");
    group.leave(1 << 20);
    let mut agent = Agent::start(target.pid(), folder.path(), &["--count", "page*"]);
    agent.wait_attached();
    assert_eq!(target.command("call 100").number("calls"), 100);
    let finished = agent.stop();
    assert!(target.is_alive(), "the target died; {}", finished.messages);
    assert_eq!(group.killed(), 0, "{}", finished.messages);
    target.assert_text_original();
    let memory = private_memory(&finished);
    assert!((10..=192).contains(&memory.pages), "{memory:?}");
    assert!(memory.bytes <= memory.headroom_bytes / 2, "{memory:?}");
    // What the kernel had set aside for each CPU is given back when the limit is near.
    assert!(memory.headroom_bytes <= 3 << 19, "{memory:?}");
    assert_eq!(memory.headroom_path, group.folder.display().to_string());
    assert_eq!(memory.refused, 600 - memory.pages, "{memory:?}");
    assert_eq!(finished.hits("page000"), 100);
    let report = finished.report.as_ref().expect("a report");
    let wanted = format!("> {}/{}", group.folder.display(), group.limit_file);
    let figures = |w: &&String| w.contains("600 pages") && w.contains(&wanted);
    assert!(report.warnings.iter().any(|w| figures(&w)), "{:?}", report.warnings);
    // One row for all of them.
    let refused: Vec<_> = report.receipt.not_observed.iter().filter(|n| n.what.starts_with("page")).collect();
    assert!(refused.len() == 1 && refused[0].why.starts_with("no room"), "{refused:?}");
}

#[test]
fn private_pages_are_counted_as_the_kernel_counts_them() {
    let Some(folder) = start("private_pages_are_counted_as_the_kernel_counts_them") else { return };
    let mut target = Target::start("pages");
    assert_eq!(private_text(&target), 0);
    let agent = Agent::start(target.pid(), folder.path(), &["--count", "page*"]);
    let end = Instant::now() + Duration::from_secs(30);
    while private_text(&target) < 600 * 4096 && Instant::now() < end {
        sleep_ms(50);
    }
    let attached = private_text(&target);
    let finished = agent.stop();
    assert_eq!(attached, 600 * 4096, "{}", finished.messages);
    let memory = private_memory(&finished);
    assert_eq!((memory.pages, memory.refused), (600, 0), "{memory:?}");
    assert!(target.is_alive());
    target.assert_text_original();
    target.quit();
}
