//! The source keeps the architecture's invariants: scans of the checkout, no root, no kernel.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the checkout").to_owned()
}

/// Rust files below a folder of the checkout, as (path from the root, text).
fn sources(folder: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
        let entries =
            std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("the folder can be listed").path()) {
            if path.is_dir() && !path.ends_with("target") {
                walk(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    let mut files = Vec::new();
    walk(&root().join(folder), &mut files);
    assert!(!files.is_empty(), "no source in {folder}");
    files
        .into_iter()
        .map(|path| {
            let text =
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            (name, text)
        })
        .collect()
}

/// Lines of code (comments left out) that have one of the words, as `file:line: word`. A word that begins or ends
/// with a letter is matched as a whole word.
fn find(name: &str, text: &str, words: &[&str]) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        for word in words {
            let hit = code.match_indices(word).any(|(start, _)| {
                let before = code[..start].chars().next_back();
                let after = code[start + word.len()..].chars().next();
                let clear_start = !word.starts_with(is_part) || !before.is_some_and(is_part);
                let clear_end = !word.ends_with(is_part) || !after.is_some_and(is_part);
                clear_start && clear_end
            });
            if hit {
                found.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    found
}

#[test]
fn the_scan_sees_code_and_leaves_comments_and_longer_words() {
    let text = "use aya::Ebpf; // aya\nlet maya = 1;\n/// aya\nlet x = aya_obj::y();\nstd::fs::read();";
    assert_eq!(find("f", text, &["aya", "aya_obj", "std::fs"]), ["f:1: aya", "f:4: aya_obj", "f:5: std::fs"]);
}

/// I2: whoever is not the prober sees bytes and actions, never the kernel's interface.
#[test]
fn only_the_prober_names_aya_and_the_bpf_system_call() {
    let found: Vec<String> = sources("profiler-user/src")
        .iter()
        .filter(|(name, _)| !name.starts_with("profiler-user/src/prober/"))
        .flat_map(|(name, text)| find(name, text, &["aya", "aya_obj", "aya_log", "SYS_bpf", "bpf_attr"]))
        .collect();
    assert!(found.is_empty(), "outside prober/:\n{}", found.join("\n"));
}

/// I8: what waiting has cut the budget by must reach all that is bounded by a part of it. The agent hands the budget to the run, which
/// alone says what may be spent.
#[test]
fn the_agent_turns_the_budget_into_nothing() {
    let found: Vec<String> = sources("profiler-user/src/agent")
        .iter()
        .flat_map(|(name, text)| {
            // Tests may name a budget to begin with.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            find(name, code, &["cpu_per_second", "OverheadBudget", "Arbiter", "TokenBucket", "ledger()"])
        })
        .collect();
    assert!(found.is_empty(), "decide it in the run:\n{}", found.join("\n"));
}

/// I1: time, randomness and data are arguments of the core, so that it replays.
#[test]
fn the_core_has_no_io_clock_threads_or_unsafe() {
    let forbidden = [
        "std::fs",
        "std::net",
        "std::thread",
        "std::process",
        "std::env",
        "std::io",
        "std::os",
        "Instant",
        "SystemTime",
        "thread_local",
        "unsafe",
        "println",
        "eprintln",
        "rand::rng",
        "from_os_rng",
    ];
    let sources = sources("profiler-core/src");
    let found: Vec<String> = sources
        .iter()
        .flat_map(|(name, text)| find(name, text, &forbidden))
        .filter(|place| !place.ends_with(": unsafe") || !place.starts_with("profiler-core/src/lib.rs"))
        .collect();
    assert!(found.is_empty(), "in the core:\n{}", found.join("\n"));
    let (_, lib) =
        sources.iter().find(|(name, _)| name == "profiler-core/src/lib.rs").expect("the core has a root");
    assert!(lib.contains("#![forbid(unsafe_code)]"), "the core forbids unsafe code");
}

/// I1: nothing that the core links to could do for it what it may not do itself.
#[test]
fn the_core_depends_on_mathematics_only() {
    let allowed: BTreeSet<&str> = [
        // statistics
        "approx",
        "num-traits",
        "statrs",
        "libm",
        // random numbers from given seeds
        "rand",
        "rand_core",
        "chacha20",
        "cfg-if",
        "cpufeatures",
        // values to and from text
        "serde",
        "serde_core",
        "serde_derive",
        "thiserror",
        "thiserror-impl",
        "toml",
        "toml_datetime",
        "toml_parser",
        "toml_writer",
        "serde_spanned",
        "winnow",
        // of the derives, at compile time
        "proc-macro2",
        "quote",
        "syn",
        "unicode-ident",
        "profiler-common",
        "profiler-core",
    ]
    .into();
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(root())
        .args(["tree", "--locked", "--offline", "-p", "profiler-core", "-e", "normal", "--prefix", "none"])
        .args(["--target", "x86_64-unknown-linux-gnu", "-f", "{p}"])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let names: BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    let extra: Vec<_> = names.difference(&allowed).collect();
    assert!(names.contains("profiler-core") && extra.is_empty(), "not allowed in the core: {extra:?}");
}

/// Reading stops at long files. A list, not a failure, up to twice the limit.
#[test]
fn files_hold_one_subject() {
    let mut long = Vec::new();
    for folder in [
        "profiler-common",
        "profiler-core",
        "profiler-ebpf",
        "profiler-user",
        "lab",
        "xtask",
        "tests",
        "bench",
    ] {
        for (name, text) in sources(folder) {
            let lines = text.lines().count();
            if lines > 500 {
                long.push((lines, name));
            }
        }
    }
    for (lines, name) in &long {
        // Not eprintln!: the harness would keep it to itself.
        let _ = writeln!(std::io::stderr(), "WARN {name}: {lines} lines; does it hold one subject?");
    }
    long.retain(|(lines, _)| *lines > 1_000);
    assert!(long.is_empty(), "over 1,000 lines: {long:?}");
}

/// Text files of the checkout as (path from the root, text): every file that git lists, but for those that are deleted or hold a
/// zero byte.
fn listed_texts() -> Vec<(String, String)> {
    // Whoever owns the checkout: git would not list that of another user.
    let output = Command::new("git")
        .current_dir(root())
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .output()
        .expect("git runs");
    assert!(
        output.status.success(),
        "this scan wants a checkout by git: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names: BTreeSet<String> = String::from_utf8_lossy(&output.stdout)
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    names
        .into_iter()
        .filter_map(|name| {
            let bytes = std::fs::read(root().join(&name)).ok()?;
            let text = (!bytes.contains(&0)).then(|| String::from_utf8_lossy(&bytes).into_owned())?;
            Some((name, text))
        })
        .collect()
}

/// Lines with a folder of one machine or one person, unless it is inside a longer path: `/proc/PID/root/` is one of every machine.
fn machine_paths(name: &str, text: &str, needles: &[String]) -> Vec<String> {
    let ends_a_path = |c: char| c.is_whitespace() || "\"'`()[]<>=,;:|".contains(c);
    let hit = |line: &str, needle: &str| {
        line.match_indices(needle).any(|(start, _)| {
            !line[..start].rsplit(ends_a_path).next().is_some_and(|path| path.contains('/'))
        })
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| needles.iter().any(|needle| hit(line, needle)))
        .map(|(number, line)| format!("{name}:{}: {}", number + 1, line.trim()))
        .collect()
}

/// The checkout's folder, and homes.
fn needles() -> Vec<String> {
    // Put together, so that they are not found here.
    let mut needles: Vec<String> = ["root", "home", "Users"].iter().map(|name| format!("/{name}/")).collect();
    needles.push(root().display().to_string());
    // A home of `/` would match everything.
    needles.extend(
        ["HOME", "CARGO_HOME", "RUSTUP_HOME"]
            .iter()
            .filter_map(|name| std::env::var(name).ok())
            .filter(|path| path.matches('/').count() >= 2)
            .map(|path| format!("{}/", path.trim_end_matches('/'))),
    );
    needles
}

#[test]
fn the_scan_for_paths_reads_every_kind_of_text() {
    let texts = listed_texts();
    let names: BTreeSet<&str> = texts.iter().map(|(name, _)| name.as_str()).collect();
    for name in [
        "README.md",
        "docs/benchmarks.md",
        "Cargo.toml",
        "Cargo.lock",
        ".gitignore",
        ".ci/run",
        "tests/programs/twins.c",
        "tests/programs/protocol.h",
        "tests/programs/entries.S",
        "tests/tests/offline.rs",
    ] {
        assert!(names.contains(name), "{name} is not read");
    }
    assert!(
        !names.contains("profiler-ebpf/tithe.bpf.o") && !names.iter().any(|name| name.starts_with("target/"))
    );
    let needles = needles();
    let home = format!("/{}/me", "home");
    let text = format!(
        "cd {home}/x\n`{home}`\ncc -L{home} PATH=/bin:{home}\n/proc/1{home} https://example.org{home}\n{}/docs",
        root().display()
    );
    let found = machine_paths("f.md", &text, &needles);
    let lines: Vec<&str> = found.iter().filter_map(|place| place.split(':').nth(1)).collect();
    assert_eq!(lines, ["1", "2", "3", "5"], "{found:?}");
}

/// What works on one machine only, in any text.
#[test]
fn no_machine_paths() {
    let needles = needles();
    let found: Vec<String> =
        listed_texts().iter().flat_map(|(name, text)| machine_paths(name, text, &needles)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Tests that nobody runs.
#[test]
fn no_ignored_tests() {
    let ignored = concat!("#[", "ignore");
    let found: Vec<String> = listed_texts()
        .iter()
        .filter(|(name, _)| name.ends_with(".rs"))
        .flat_map(|(name, text)| {
            let lines = text.lines().enumerate().filter(|(_, line)| line.contains(ignored));
            lines
                .map(move |(number, line)| format!("{name}:{}: {}", number + 1, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The tests, the agent and the object must not drift apart: one wire contract, compiled into both sides.
#[test]
fn the_object_is_licensed_for_the_kernel_and_carries_btf() {
    let object = std::fs::read(root().join("profiler-ebpf/tithe.bpf.o")).expect("the object is committed");
    let has = |needle: &[u8]| object.windows(needle.len()).any(|bytes| bytes == needle);
    assert!(object.starts_with(b"\x7fELF"));
    assert!(has(b"Dual MIT/GPL\0"), "the kernel's helpers want a GPL-compatible license");
    assert!(has(b".BTF\0") && has(b".BTF.ext\0"), "BTF is missing");
    assert!(!has(b".debug_info\0"), "DWARF was not stripped");
    let root = root().display().to_string();
    assert!(!has(root.as_bytes()), "the object names the folder it was built in");
}

/// I9: whoever opens a file of the target by its path hangs on a FIFO, follows links of others, and believes what files claim.
/// All that is opened elsewhere is of `/proc`, `/sys` or `/dev`, the user's own arguments, or the agent's own files.
#[test]
fn files_of_the_target_are_opened_in_one_place() {
    /// File, and how often it opens one: what.
    const OTHERS: &[(&str, usize, &str)] = &[
        ("agent/attach/answer.rs", 1, "/proc/stat"),
        ("agent/command.rs", 1, "/dev/tty"),
        ("agent/host.rs", 2, "facts of the kernel; what this program itself takes"),
        ("calibrate/cache.rs", 2, "the agent's own cache; /proc/sys"),
        ("calibrate/code.rs", 1, "/proc/self/maps"),
        ("calibrate/forms.rs", 1, "/proc/sys"),
        ("calibrate/found.rs", 1, "/sys/kernel/livepatch and lockdown; /proc/sys; /proc/self/status"),
        ("calibrate/worker.rs", 2, "/proc/PID/stat of the agent's own child; /dev/null"),
        ("cli/internal_mend.rs", 1, "/dev/kmsg"),
        ("cli/plan.rs", 1, "the user's class table"),
        ("conformance/child.rs", 2, "files of the agent's own, through /proc/PID/fd; /proc/self/maps"),
        ("doctor/host.rs", 1, "/proc and /sys"),
        ("governor/expedite.rs", 2, "/sys/kernel/rcu_*"),
        ("governor/priority.rs", 1, "/proc/self/status"),
        (
            "inspect/cgroup.rs",
            5,
            "/proc/PID/cgroup; /proc/self/mountinfo; /proc/meminfo; the cgroup file system",
        ),
        ("inspect/forms/mod.rs", 2, "/proc/sys; /proc/cpuinfo"),
        ("inspect/host.rs", 1, "/proc/sys"),
        ("inspect/callers/callee.rs", 1, "/proc/PID/mem"),
        ("inspect/ifunc.rs", 1, "/proc/PID/mem"),
        ("inspect/link_map.rs", 1, "/proc/PID/mem"),
        ("inspect/mappers.rs", 1, "/proc/PID/maps"),
        ("inspect/mod.rs", 1, "/proc/PID/maps"),
        ("inspect/process.rs", 3, "/proc/PID/status; /proc/PID/cmdline; /proc/PID/maps"),
        ("inspect/return_links.rs", 2, "/proc/PID/task"),
        ("inspect/verify.rs", 2, "/proc/PID/maps; /proc/PID/mem"),
        ("mend.rs", 4, "/proc/PID/maps, mem, pagemap and status"),
        ("output/file.rs", 2, "the file that the user named, itself careful"),
        ("output/file/walk.rs", 3, "the directories on the way to that file, as paths alone"),
        ("prober/child.rs", 1, "/proc/self/maps"),
        ("prober/links.rs", 2, "/sys/bus/event_source"),
        ("prober/mod.rs", 2, "/proc/self/fdinfo; /sys/devices"),
        ("prober/presence.rs", 1, "/sys/kernel"),
        ("prober/vmlinux.rs", 1, "/sys/kernel/btf"),
        ("symbolize/kernel.rs", 1, "/proc/kallsyms"),
        ("recording/dir.rs", 1, "the directory that the user named, itself careful"),
        ("recording/read.rs", 2, "the recording that the user named"),
        ("target/launch.rs", 1, "/proc/PID/auxv"),
        ("unwind/space.rs", 2, "/proc/PID/maps; /proc/PID/mem"),
        ("watchdog/mod.rs", 2, "/sys/kernel/rcu_expedited; /dev/kmsg"),
    ];
    const WORDS: &[&str] = &[
        "File::open",
        "File::options",
        "File::create",
        "OpenOptions::new",
        "fs::read",
        "fs::read_to_string",
        "fs::write",
        "fs::copy",
        "libc::open",
        "rustix::fs::open",
        "Mmap",
    ];
    let mut wrong = Vec::new();
    for (name, text) in sources("profiler-user/src") {
        let short = name.trim_start_matches("profiler-user/src/");
        if short.starts_with("target_file/") || short.ends_with("tests.rs") || short.contains("/tests/") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let found = find(&name, code, WORDS);
        let allowed = OTHERS.iter().find(|(file, ..)| *file == short).map_or(0, |(_, n, _)| *n);
        if found.len() > allowed {
            wrong.push(format!(
                "{short} opens {} files, {allowed} are known: {}",
                found.len(),
                found.join(", ")
            ));
        }
    }
    assert!(wrong.is_empty(), "use target_file, or say here what is opened:\n{}", wrong.join("\n"));
}

/// I10: names of the target reach a terminal through one place, which writes out what would act on it.
#[test]
fn only_the_terminal_module_prints() {
    let found: Vec<String> = sources("profiler-user/src")
        .iter()
        .filter(|(name, _)| !name.ends_with("/terminal.rs") && !name.ends_with("tests.rs"))
        .flat_map(|(name, text)| {
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            find(
                name,
                code,
                &[
                    "println!",
                    "eprintln!",
                    "print!",
                    "eprint!",
                    "io::stdout()",
                    "io::stderr()",
                    "stdout().write",
                ],
            )
        })
        // The calibration's child speaks to its parent through a pipe; completions have no names of the target; two ask
        // whether there is a terminal.
        .filter(|place| {
            let may = ["calibrate/child.rs", "output/mod.rs", "agent/journal.rs"];
            !may.iter().any(|file| place.contains(file))
        })
        .filter(|place| !(place.contains("cli/completions.rs") && place.ends_with("io::stdout()")))
        .collect();
    assert!(found.is_empty(), "use terminal::text, json, note or failure:\n{}", found.join("\n"));
}
