//! A target whose owner wishes the agent ill: files that hang, files that claim gigabytes, names that speak to a terminal.

use super::start;
use profiler_core::text::is_hidden;
use profiler_tests::support::{Agent, output_of};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the agent may have in memory; with the largest of these files believed, it had 8 GiB.
const MEMORY_BYTES: u64 = 512 << 20;
/// Address space that it is given, KiB.
const ADDRESS_SPACE_KIB: &str = "6291456";

/// Killed on drop.
struct Hostile(Child);

impl Drop for Hostile {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &str, arguments: &[&str], folder: &Path) {
    let status = Command::new(program).args(arguments).current_dir(folder).status();
    assert!(
        status.as_ref().is_ok_and(|s| s.success()),
        "{program} {arguments:?}: {status:?} (needs build-essential)"
    );
}

/// A stripped program whose debug link names a FIFO beside it, and which maps an ELF file of 16 KiB with a symbol table of
/// 8 GiB.
fn hostile(folder: &Path) -> Hostile {
    std::fs::copy(profiler_tests::program("hostile"), folder.join("a")).unwrap();
    run("objcopy", &["--only-keep-debug", "a", "a.debug"], folder);
    run("strip", &["a"], folder);
    run("objcopy", &["--add-gnu-debuglink=a.debug", "a"], folder);
    run("rm", &["a.debug"], folder);
    run("mkfifo", &["a.debug"], folder);
    let sparse = sparse(folder);
    let mut command = Command::new(folder.join("a"));
    let mut child = command.arg(&sparse).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let hostile = Hostile(child);
    assert_eq!(line, "ready\n");
    hostile
}

/// An ELF file whose sections `.symtab` and `.strtab` have 8 GiB each, by its section headers.
fn sparse(folder: &Path) -> PathBuf {
    let path = folder.join("sparse.so");
    let names = b"\0.symtab\0.strtab\0.shstrtab\0";
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend([3, 0, 62, 0, 1, 0, 0, 0]);
    // Entry, program headers, section headers, flags, sizes and numbers of them.
    for word in [0_u64, 64, 256] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0; 4]);
    for half in [64_u16, 56, 1, 64, 4, 3] {
        bytes.extend(half.to_le_bytes());
    }
    for word in [1 | 5 << 32, 0, 0, 0, 4096, 4096, 4096_u64] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(names);
    bytes.resize(256, 0);
    let gib = 1_u64 << 30;
    // Name, type, offset, size, the section that its names are in.
    let sections = [(0, 0, 0, 0, 0), (1, 2, 4096, 8 * gib, 2), (9, 3, 4096, 8 * gib, 0), (17, 3, 120, 27, 0)];
    for (name, kind, offset, size, link) in sections {
        for word in [name | kind << 32, 0, 0, offset, size, link, 8, 24_u64] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.resize(16 << 10, 0);
    std::fs::write(&path, bytes).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(17 * gib).unwrap();
    path
}

/// No character that acts on a terminal, but newlines.
fn assert_harmless(what: &str, text: &str) {
    let bad: Vec<char> = text.chars().filter(|c| is_hidden(*c) && *c != '\n').collect();
    assert!(bad.is_empty(), "{what}: {bad:?} in {text:?}");
}

#[test]
fn doctor_neither_hangs_nor_believes_nor_is_spoken_through() {
    let Some(folder) = start("doctor_neither_hangs_nor_believes_nor_is_spoken_through") else { return };
    let target = hostile(folder.path());
    let tithe = profiler_tests::program("tithe");
    for format in ["text", "json"] {
        let script = format!(
            "ulimit -v {ADDRESS_SPACE_KIB}; exec timeout 60 '{}' doctor --pid {} --format {format}",
            tithe.display(),
            target.0.id()
        );
        let begun = Instant::now();
        let output = output_of("sh", &["-c", &script]);
        let (text, messages) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{:?} after {:?}: {messages}{text}", output.status, begun.elapsed());
        assert_harmless("standard output", &text);
        assert_harmless("standard error", &messages);
        if format == "text" {
            // `status` shows a newline as two characters already.
            let title = text.lines().find(|l| l.starts_with("Process ")).unwrap();
            assert!(title.ends_with(r"(x\x1b]0;y\x07\nz)"), "{title}");
            println!("{text}");
        } else {
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let name = value["target"]["name"].as_str().unwrap();
            assert!(name.starts_with("x\x1b]0;y\x07"), "{name:?}");
        }
    }
}

#[test]
fn a_recording_ends_on_time_within_memory_and_names_are_written_out() {
    let Some(folder) = start("a_recording_ends_on_time_within_memory_and_names_are_written_out") else {
        return;
    };
    let target = hostile(folder.path());
    let agent = Agent::start_plain(target.0.id(), folder.path(), &["--duration", "3s", "--count", "evil*"]);
    let path = agent.recording().to_owned();
    let begun = Instant::now();
    let finished = agent.finish();
    let report = finished.report();
    let rss = report.receipt.agent_rss_bytes;
    println!("{:?}, agent {} MiB; {}", begun.elapsed(), rss >> 20, finished.messages);
    assert!(rss < MEMORY_BYTES, "{} MiB", rss >> 20);
    assert_harmless("messages", &finished.messages);
    let evil =
        report.rows.iter().find(|row| row.name.starts_with("evil\x1b]0;")).expect("the name is kept in JSON");
    assert!(evil.calls.is_some_and(|calls| calls.value > 0.0), "{evil:?}");

    let path = path.to_str().unwrap();
    let tithe = profiler_tests::program("tithe");
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let at = |name: &str| out.join(name).to_str().unwrap().to_owned();
    let output = output_of(&tithe, &["report", path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_harmless("table", &text);
    // The table shortens long names.
    assert!(text.contains(r"evil\x1b]0;"), "{text}");
    let formats = ["r.txt", "r.html", "r.folded", "r.json", "r.speedscope.json"];
    for name in formats {
        let output = output_of(&tithe, &["report", path, "-o", &at(name)]);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(at(name)).unwrap();
        assert_harmless(name, &text);
        assert!(text.contains("evil"), "{name}");
    }
    // As root, over what another user put there.
    std::os::unix::fs::symlink("/etc/passwd", at("planted.txt")).unwrap();
    std::os::unix::fs::lchown(at("planted.txt"), Some(4242), None).unwrap();
    let before = std::fs::read("/etc/passwd").unwrap();
    let output = output_of(&tithe, &["report", path, "-o", &at("planted.txt")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("a symbolic link that uid 4242 may have put there"),
        "{said}"
    );
    assert_eq!(std::fs::read("/etc/passwd").unwrap(), before);
    // Standard output by its names.
    for name in ["-", "/dev/stdout"] {
        let output = output_of(&tithe, &["report", path, "-o", name]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("evil"), "{name}");
    }
}

#[test]
fn ctrl_c_is_served() {
    let Some(folder) = start("ctrl_c_is_served") else { return };
    let target = hostile(folder.path());
    let agent = Agent::start_plain(target.0.id(), folder.path(), &[]);
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    let finished = agent.stop();
    assert!(finished.status.success(), "{}: {}", finished.status, finished.messages);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}
