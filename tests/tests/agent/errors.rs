//! What people read when it cannot be done: exit code and text, to the letter.

use super::{sleep_ms, start};
use expect_test::{Expect, expect};
use profiler_tests::program;
use profiler_tests::support::Target;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `tithe` with these arguments in a folder, and compares exit code and standard error; `hide` are numbers that
/// differ from run to run, with what stands for them.
fn check(folder: &Path, arguments: &[&str], hide: &[(&str, &str)], expected: Expect) {
    let output = tithe(folder, arguments);
    expected.assert_eq(&shown(&output, folder, hide));
}

fn tithe(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program("tithe"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("SUDO_UID")
        .stdin(Stdio::null())
        .output()
        .expect("tithe was built")
}

fn shown(output: &Output, folder: &Path, hide: &[(&str, &str)]) -> String {
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    // Of the first run after a build, whichever test that is.
    text = text
        .lines()
        .filter(|line| !line.contains("ignored the stored prices"))
        .fold(String::new(), |text, line| text + line + "\n");
    text = without_numbers(&text, hide);
    text = text.replace(folder.to_str().expect("UTF-8"), "FOLDER");
    assert!(output.stdout.is_empty(), "an error is no result: {}", String::from_utf8_lossy(&output.stdout));
    format!("exit {}\n{text}", output.status.code().map_or("by signal".to_owned(), |c| c.to_string()))
}

/// Replaces whole numbers only: PID 51 is not the end of PID 2951.
fn without_numbers(text: &str, hide: &[(&str, &str)]) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let digits = rest.chars().take_while(char::is_ascii_digit).count();
        let (word, after) = rest.split_at(if digits > 0 { digits } else { first.len_utf8() });
        shown.push_str(hide.iter().find(|(number, _)| *number == word).map_or(word, |(_, name)| name));
        rest = after;
    }
    shown
}

#[test]
fn whole_numbers_are_hidden_and_no_parts_of_others() {
    let hide = [("51", "PID"), ("2951", "PARENT")];
    assert_eq!(without_numbers("51 of 2951, 512, 151; 51", &hide), "PID of PARENT, 512, 151; PID");
}

/// A process that has ended and whose parent, this one, has not collected it.
fn zombie() -> std::process::Child {
    let child = Command::new("true").spawn().expect("true exists");
    let stat = format!("/proc/{}/stat", child.id());
    while !std::fs::read_to_string(&stat).is_ok_and(|s| s.contains(") Z ")) {
        sleep_ms(2);
    }
    child
}

#[test]
fn targets_that_cannot_be_watched() {
    let Some(folder) = start("targets_that_cannot_be_watched") else { return };
    let folder = folder.path();
    // Reaped: nobody has this PID now, and the kernel goes round before it is given again.
    let mut gone = Command::new("true").spawn().expect("true exists");
    gone.wait().expect("it can be waited for");
    let pid = gone.id().to_string();
    check(
        folder,
        &["record", "--pid", &pid],
        &[(&pid, "PID")],
        expect![[r#"
        exit 3
        tithe: no process PID: it has ended, or it lives in another PID namespace; list processes with 'ps -e'
    "#]],
    );
    let mut dead = zombie();
    let (pid, parent) = (dead.id().to_string(), std::process::id().to_string());
    check(
        folder,
        &["record", "--pid", &pid],
        &[(&pid, "PID"), (&parent, "PARENT")],
        expect![[r#"
        exit 3
        tithe: process PID (true) is a zombie: it has ended and its parent PARENT has not collected it yet
    "#]],
    );
    dead.wait().expect("it can be waited for");
    check(
        folder,
        &["record", "--pid", "2"],
        &[],
        expect![[r#"
        exit 3
        tithe: 2 (kthreadd) is a kernel thread: it runs no program that could be traced
    "#]],
    );
    check(
        folder,
        &["record", "--", "/does/not/exist"],
        &[],
        expect![[r#"
            exit 3
            tithe: cannot run '/does/not/exist': No such file or directory (os error 2); check the name, the path and the execute permission
        "#]],
    );
    std::fs::write(folder.join("notes.txt"), "no program").expect("writable");
    check(
        folder,
        &["record", "--", "./notes.txt"],
        &[],
        expect![[r#"
        exit 3
        tithe: cannot run './notes.txt': Permission denied (os error 13); check the name, the path and the execute permission
    "#]],
    );
}

#[test]
fn a_thread_is_no_process() {
    let Some(folder) = start("a_thread_is_no_process") else { return };
    let mut target = Target::start("calls");
    target.command("burn 1");
    let process = target.pid().to_string();
    let thread = std::fs::read_dir(format!("/proc/{process}/task"))
        .expect("the target runs")
        .map(|entry| entry.expect("the target runs").file_name().to_string_lossy().into_owned())
        .find(|tid| *tid != process)
        .expect("burn started a thread");
    let hide = [(thread.as_str(), "TID"), (process.as_str(), "PID")];
    check(
        folder.path(),
        &["record", "--pid", &thread],
        &hide,
        expect![[r#"
        exit 3
        tithe: TID is a thread of process PID: use --pid PID
    "#]],
    );
}

#[test]
fn functions_that_cannot_be_listed() {
    let Some(folder) = start("functions_that_cannot_be_listed") else { return };
    let target = Target::start("calls");
    let pid = target.pid().to_string();
    let list = |arguments: &[&str], expected: Expect| {
        check(folder.path(), &[&["list"], arguments].concat(), &[(&pid, "PID")], expected);
    };
    list(
        &["--pid", &pid, "/(/"],
        expect![[r#"
            exit 2
            tithe: pattern `/(/` is no valid regular expression: unclosed group
        "#]],
    );
    list(
        &["--pid", &pid, "calls:entry_pusch"],
        expect![[r#"
            exit 2
            tithe: 'calls:entry_pusch': no function symbol matches `calls:entry_pusch`; similar: entry_push
        "#]],
    );
    list(
        &["--pid", "4194303", "main"],
        expect![[r#"
            exit 3
            tithe: no process 4194303: it has exited, or it lives in another PID namespace; list processes with `ps -e`
        "#]],
    );
    list(
        &["--pid", "2", "main"],
        expect![[r#"
            exit 3
            tithe: process 2 ([kthreadd]) is a kernel thread: it runs no user code; give the PID of a user process
        "#]],
    );
}

#[test]
fn command_lines_that_make_no_sense() {
    let Some(folder) = start("command_lines_that_make_no_sense") else { return };
    let folder = folder.path();
    let target = Target::start("calls");
    let pid = target.pid().to_string();
    let record = |more: &[&str], expected: Expect| {
        let arguments = [&["record", "--pid", &pid][..], more].concat();
        check(folder, &arguments, &[(&pid, "PID")], expected);
    };
    record(
        &["--count", "/entry_(/"],
        expect![[r#"
            exit 2
            tithe: --count '/entry_(/': pattern `/entry_(/` is no valid regular expression: unclosed group
        "#]],
    );
    record(
        &["--latency", ""],
        expect![[r#"
            exit 2
            tithe: --latency '': the pattern is empty; name a function (`sqlite3_step`), a glob (`db_*`), or a regular expression (`/^db_/`)
        "#]],
    );
    record(
        &["--weight", "entry_push"],
        expect![[r#"
        exit 2
        error: invalid value 'entry_push' for '--weight <PATTERN=WEIGHT>': write PATTERN=WEIGHT, like 'db::*=5'

        For more information, try '--help'.
    "#]],
    );
    record(
        &["--budget", "200%"],
        expect![[r#"
        exit 2
        error: invalid value '200%' for '--budget <BUDGET>': the budget '200%' is out of range: a share lies above 0% and at most 100%, CPU time above 0 and at most 1000ms/s

        For more information, try '--help'.
    "#]],
    );
    record(
        &["--duration", "10"],
        expect![[r#"
        exit 2
        error: invalid value '10' for '--duration <TIME>': write a time with its unit: '500ms', '30s', '5m', '1h'

        For more information, try '--help'.
    "#]],
    );
    record(
        &["--progress", "no_such_counter"],
        expect![[r#"
            exit 2
            tithe: --progress: nothing named 'no_such_counter' in the target: no global variable ('nm' lists them as B, D, b or d), and of functions: no function symbol matches `no_such_counter`; it may be inlined everywhere, or live in a library that is not loaded yet; events of the kernel are written syscall:NAME and tp:CATEGORY:NAME
        "#]],
    );
    check(
        folder,
        &["record", "--budget", "2%"],
        &[],
        expect![[r#"
        exit 2
        error: the following required arguments were not provided:
          <--pid <PID>|COMMAND>

        Usage: tithe record --budget <BUDGET> <--pid <PID>|COMMAND>

        For more information, try '--help'.
    "#]],
    );
    check(
        folder,
        &["plan", "--classes", "missing.toml"],
        &[],
        expect![[r#"
        exit 2
        tithe: cannot read the class table 'missing.toml': No such file or directory (os error 2)
    "#]],
    );
    check(
        folder,
        &["report", "missing.tithe"],
        &[],
        expect![[r#"
        exit 2
        tithe: cannot open the recording 'missing.tithe': No such file or directory (os error 2); a recording is the directory that 'tithe record -o' wrote
    "#]],
    );
    std::fs::write(folder.join("broken.toml"), "budget = \"2%\"\n[[class]]\nname = 3\n").expect("writable");
    check(
        folder,
        &["plan", "--classes", "broken.toml"],
        &[],
        expect![[r#"
        exit 2
        tithe: broken.toml, line 1: sample_time_us is missing; accepted: it or report_time_us, in microseconds
        broken.toml, line 2: class 1: rate_hz is missing; accepted: a number from 0 to 1e30
        broken.toml, line 2: class 1: share or duration_us or rho is missing; accepted: one of them
        broken.toml, line 2: class 1: cost_us is missing; accepted: it or the table's report_time_us, in microseconds
        broken.toml, line 3: class 1: name is 3; accepted: a name of at least one character
    "#]],
    );
    let table = "[[class]]\nname = 'hot'\nrate_hz = 30_000\nshare = 0.5\nmust_trace = true\n";
    std::fs::write(
        folder.join("dear.toml"),
        format!("budget = \"2%\"\nreport_time_us = 1\nsample_time_us = 20\n{table}"),
    )
    .expect("writable");
    check(
        folder,
        &["plan", "--classes", "dear.toml"],
        &[],
        expect![[r#"
        exit 2
        tithe: dear.toml: the rules cost more than the budget: the must-trace classes take 3.000e-2 CPU s/s, the budget is 2.000e-2 CPU s/s, 1.000e-2 CPU s/s short; the least budget that would do is 3.0000% of the target's CPU time
    "#]],
    );
    std::fs::write(folder.join("counted.toml"), format!("max_frequency = 925\n{table}")).expect("writable");
    check(
        folder,
        &["plan", "--classes", "counted.toml"],
        &[],
        expect![[r#"
        exit 2
        tithe: counted.toml: the rules cost more than the budget: the must-trace classes take 30k reports/s, the budget is 925 reports/s, 29.1k reports/s short; the least budget that would do is max_frequency = 30000
    "#]],
    );
    check(
        folder,
        &["plan", "--classes", "counted.toml", "--budget", "5%"],
        &[],
        expect![[r#"
        exit 2
        tithe: counted.toml: --budget 5% needs prices, the table has max_frequency alone; accepted: report_time_us in the table, or no --budget
    "#]],
    );
    check(
        folder,
        &["plan", "--classes", "counted.toml", "--strategy", "best"],
        &[],
        expect![[r#"
        exit 2
        tithe: there is no strategy 'best': choose from auto, certified, mixed, approximation, exhaustive, continuous, frequent, hottest, by-weight, sample-all
    "#]],
    );
    target.assert_text_original();
}

#[test]
fn places_that_cannot_be_written() {
    let Some(folder) = start("places_that_cannot_be_written") else { return };
    let folder = folder.path();
    let target = Target::start("calls");
    let pid = target.pid().to_string();
    let record = |output: &str, expected: Expect| {
        check(
            folder,
            &["record", "--pid", &pid, "--duration", "100ms", "-o", output],
            &[(&pid, "PID")],
            expected,
        );
    };
    record(
        "missing/run.tithe",
        expect![[r#"
            exit 1
            tithe: cannot open the directory 'missing' to create a recording in it: No such file or directory (os error 2); create it first: mkdir -p 'missing'
        "#]],
    );
    std::fs::write(folder.join("file"), "mine").expect("writable");
    record(
        "file",
        expect![[r#"
        exit 1
        tithe: cannot create a recording at 'file': something that is not a directory (or a symbolic link, which is not followed) is there; remove it or choose another name with -o
    "#]],
    );
    std::os::unix::fs::symlink("/etc", folder.join("link")).expect("writable");
    record(
        "link",
        expect![[r#"
        exit 1
        tithe: cannot create a recording at 'link': something that is not a directory (or a symbolic link, which is not followed) is there; remove it or choose another name with -o
    "#]],
    );
    std::fs::create_dir(folder.join("full")).expect("writable");
    std::fs::write(folder.join("full/thesis.txt"), "mine").expect("writable");
    record(
        "full",
        expect![[r#"
        exit 1
        tithe: cannot create a recording in 'full': the directory is not empty and 'thesis.txt' is not part of a recording; choose another name with -o, or use --force to write beside it
    "#]],
    );
    assert_eq!(std::fs::read_to_string(folder.join("full/thesis.txt")).expect("it is still there"), "mine");
    let first = tithe(folder, &["record", "--pid", &pid, "--duration", "100ms", "-o", "run.tithe"]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    record(
        "run.tithe",
        expect![[r#"
        exit 2
        tithe: there is a recording at 'run.tithe' already: choose another name with -o, or replace it with --force
    "#]],
    );
    profiler_user::recording::open(&folder.join("run.tithe")).expect("the first recording is still whole");
    target.assert_text_original();
}

/// Every command that needs root says so, and ends before it touches anything.
#[test]
fn without_root() {
    let Some(folder) = start("without_root") else { return };
    // A copy that the other user may execute, wherever the build lies.
    let readable = |path: &Path| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("it is ours");
    };
    readable(folder.path());
    let copy = folder.path().join("tithe");
    std::fs::copy(program("tithe"), &copy).expect("there is room for a copy");
    readable(&copy);
    let target = Target::start("calls");
    let pid = target.pid().to_string();
    let as_nobody = |arguments: &[&str], expected: Expect| {
        let output = Command::new(&copy)
            .args(arguments)
            .uid(65534)
            .gid(65534)
            .current_dir("/")
            .stdin(Stdio::null())
            .output()
            .expect("the copy can be executed");
        expected.assert_eq(&shown(&output, folder.path(), &[(&pid, "PID")]));
    };
    as_nobody(
        &["record", "--pid", &pid],
        expect![[r#"
        exit 3
        tithe: watching a process needs root, and this runs as user 65534; run it again with sudo
    "#]],
    );
    as_nobody(
        &["plan", "--pid", &pid],
        expect![[r#"
        exit 3
        tithe: watching a process needs root, and this runs as user 65534; run it again with sudo
    "#]],
    );
    as_nobody(
        &["calibrate"],
        expect![[r#"
        exit 3
        tithe: watching a process needs root, and this runs as user 65534; run it again with sudo
    "#]],
    );
    target.assert_text_original();
}
