//! What the kernel side cannot send or keep: it is counted, and what it hides can be found.

use crate::lifecycle::collect;
use crate::support::*;
use profiler_tests::support::skip;
use profiler_user::prober::{ClassKind, KernelOptions, LinkKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

function!(stateless);

#[test]
fn a_child_whose_birth_found_the_ring_full_is_in_the_set() {
    const THREADS: u64 = 200;
    let kernel = load(&KernelOptions { lifecycle_ring_bytes: 4096, ..KernelOptions::default() });
    let mut reader = kernel.watch_lifecycle().unwrap();
    kernel.add_target(std::process::id(), true).unwrap();
    for _ in 0..THREADS {
        std::thread::spawn(|| ()).join().unwrap();
    }
    let mut child = Command::new("/bin/sleep").arg("60").spawn().unwrap();
    // join() returns a little before the thread is gone.
    std::thread::sleep(Duration::from_millis(50));
    let read = collect(&mut reader).len() as u64;
    let lost = kernel.classes().global_counters().lifecycle_dropped;
    println!("{read} records read, {lost} lost");
    // A record takes 32 bytes and an 8-byte header.
    assert!((90..=4096 / 40).contains(&read), "{read}");
    // The begin and end of each thread, the child's fork and exec; the test harness may have threads of its own.
    assert!(read + lost >= 2 * THREADS + 2, "{read} and {lost}");
    let found = kernel.targets();
    assert!(found.contains(&child.id()), "{found:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    kernel.remove_target(child.id());
    assert_eq!(kernel.targets(), [std::process::id()]);
}

/// A memory cgroup. This process leaves it, and it is removed, in the end.
struct Group {
    folder: PathBuf,
    before: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

impl Group {
    /// A group below this process's own (version 1), or below the root (version 2).
    fn make() -> Result<Self, String> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (before, parent, limit, usage) = if v1.join("memory.limit_in_bytes").exists() {
            let text = std::fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
            let own = text.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, path)| path);
            let own = v1.join(own.trim_start_matches('/'));
            (own.clone(), own, "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            let root = Path::new("/sys/fs/cgroup");
            let text = std::fs::read_to_string(root.join("cgroup.subtree_control"));
            if !text.is_ok_and(|text| text.contains("memory")) {
                return Err("no memory controller in /sys/fs/cgroup".to_owned());
            }
            let text = std::fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
            let own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
            (root.join(own), root.to_owned(), "memory.max", "memory.current")
        };
        let folder = parent.join(format!("tithe-test-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Self { folder, before, limit, usage })
    }

    fn join(folder: &Path) {
        std::fs::write(folder.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }

    /// Not one page more than it has now.
    fn close(&self) {
        let usage = std::fs::read_to_string(self.folder.join(self.usage)).unwrap();
        std::fs::write(self.folder.join(self.limit), usage.trim()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        Self::join(&self.before);
        // What it was charged goes with the kernel side; OK if the directory is removed later.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// The state of a thread is charged to the group of whoever loaded the kernel side.
#[test]
fn calls_of_threads_without_state_are_lost_hits() {
    const TEST: &str = "calls_of_threads_without_state_are_lost_hits";
    const THREADS: usize = 400;
    let group_of_memory = match Group::make() {
        Ok(group) => group,
        Err(why) => return skip(TEST, &why),
    };
    Group::join(&group_of_memory.folder);
    let kernel = kernel(None);
    Group::join(&group_of_memory.before);
    kernel.classes().configure(CLASS, ungated(ClassKind::Latency));
    let attached = kernel.attach(&group(LinkKind::ReturnPair, vec![stateless.entry(CLASS)])).unwrap();
    group_of_memory.close();
    // All at once: the state of a thread is free again when it has ended.
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                stateless.call(None, 0);
                barrier.wait();
            });
        }
    });
    drop(attached);
    let counters = kernel.classes().counters(CLASS);
    let without = kernel.classes().global_counters().no_thread_state;
    println!("{without} of {THREADS} calls without state: {counters:?}");
    assert!(without > 0, "the kernel found memory for {THREADS} threads");
    assert_eq!(counters.attempted, THREADS as u64);
    assert_eq!(counters.attempted, counters.kept + counters.gated + counters.dropped);
    assert_eq!(counters.dropped, without, "each such call is a lost hit of its class");
    assert_eq!(counters.returns, counters.kept, "the others are timed");
}
