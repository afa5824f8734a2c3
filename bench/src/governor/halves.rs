//! A fair share of the CPUs for two programs with many threads.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Target and twin each in a control group of the CPU controller: of each CPU either gets half, however many threads it has.
pub struct Halves(Vec<Half>);

struct Half {
    pid: u32,
    /// Made for it.
    group: PathBuf,
    /// Where it came from.
    home: PathBuf,
}

impl Halves {
    /// Where the controller is, and its name in `/proc/PID/cgroup`: version 1 by itself, version 2 for all.
    const ROOTS: [(&str, &str); 2] = [("/sys/fs/cgroup/cpu", "cpu"), ("/sys/fs/cgroup", "")];

    /// For programs that will have many threads. Their main threads answer at once, and not after all others had their turn.
    ///
    /// # Errors
    /// There is no such control group to be had, or a process cannot enter it.
    pub fn start(pids: [u32; 2]) -> Result<Self> {
        let mut halves = Self(Vec::new());
        for pid in pids {
            let name = format!("tithe-bench-{pid}");
            let (home, group) = Self::ROOTS
                .iter()
                .map(|(root, controller)| (home(root, controller, pid), Path::new(root).join(&name)))
                .find(|(_, group)| {
                    let made = std::fs::create_dir(group).is_ok();
                    let fair = ["cpu.shares", "cpu.weight"].iter().any(|file| group.join(file).exists());
                    if made && !fair {
                        // It is ours and empty.
                        let _ = std::fs::remove_dir(group);
                    }
                    made && fair
                })
                .context("no control group with the CPU controller can be made under /sys/fs/cgroup, which target and twin need to share the CPUs")?;
            let entry = group.join("cgroup.procs");
            // Before anything can fail: the folder goes with it.
            halves.0.push(Half { pid, group, home });
            std::fs::write(&entry, pid.to_string())
                .with_context(|| format!("cannot write {pid} to {}", entry.display()))?;
            // SAFETY: reads a plain struct of ours; the thread that the process begins with has its number.
            let result = unsafe {
                let none = libc::sched_param { sched_priority: 0 };
                // The threads that it starts are as others.
                let other = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
                libc::sched_setscheduler(pid as i32, other, &raw const none)
                    | libc::setpriority(libc::PRIO_PROCESS, pid, -20)
            };
            ensure!(result == 0, "priority of {pid}: {}", std::io::Error::last_os_error());
        }
        Ok(halves)
    }
}

impl Drop for Halves {
    fn drop(&mut self) {
        for Half { pid, group, home } in &self.0 {
            // Home may be out of sight (a container), the root is not. A target that has ended is in no group; the folder goes with its last
            // process.
            let enter = |folder: &Path| std::fs::write(folder.join("cgroup.procs"), pid.to_string()).is_ok();
            let _ = enter(home) || group.parent().is_some_and(enter);
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// The folder of the group that a process is in; the root if that is not known.
fn home(root: &str, controller: &str, pid: u32) -> PathBuf {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    // "3:cpu,cpuacct:/system.slice"; version 2: "0::/system.slice".
    let path = groups.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        names.split(',').any(|name| name == controller).then_some(path)
    });
    Path::new(root).join(path.unwrap_or_default().trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A control group of version 1 or 2 in which the tests may work, and its controller.
    fn root() -> Option<(&'static str, &'static str)> {
        let fair = |root: &&(&str, &str)| {
            let group = Path::new(root.0).join(format!("tithe-bench-test-{}", std::process::id()));
            let made = std::fs::create_dir(&group).is_ok();
            let fair = ["cpu.shares", "cpu.weight"].iter().any(|file| group.join(file).exists());
            // It is ours and empty, or was not made.
            let _ = std::fs::remove_dir(&group);
            made && fair
        };
        Halves::ROOTS.iter().find(fair).copied()
    }

    #[test]
    fn a_process_goes_back_to_the_group_that_it_came_from() {
        let Some((root, controller)) = root() else {
            eprintln!("SKIP no control group can be made");
            return;
        };
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let old = Path::new(root).join(format!("tithe-bench-home-{pid}"));
        std::fs::create_dir(&old).unwrap();
        std::fs::write(old.join("cgroup.procs"), pid.to_string()).unwrap();
        let halves = Halves::start([pid, pid]);
        let group = home(root, controller, pid);
        // The second time its folder is there already.
        assert!(halves.is_err() && group == old, "{}", group.display());
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let halves = Halves::start([pid, other.id()]).unwrap();
        let inside = home(root, controller, pid);
        assert_eq!(inside, Path::new(root).join(format!("tithe-bench-{pid}")));
        drop(halves);
        assert!(home(root, controller, pid) == old && !inside.exists());
        for child in [&mut child, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        std::fs::remove_dir(&old).unwrap();
    }

    #[test]
    fn a_process_that_is_gone_leaves_no_folder() {
        let Some((root, _)) = root() else {
            eprintln!("SKIP no control group can be made");
            return;
        };
        // The largest process id: nobody has it.
        let gone = 4_194_303;
        assert!(Halves::start([gone, gone]).is_err());
        assert!(!Path::new(root).join(format!("tithe-bench-{gone}")).exists());
    }
}
