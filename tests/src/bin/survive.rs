//! Real programs under a default run of the agent: they must live, and their own results must be right.
//!
//! `survive redis` and `survive sqlite` start Debian's programs from `PATH`, load them, and let `tithe record` watch: first as it runs by
//! default, then with calls of a named function timed. The last line is the verdict; a failure panics.

use profiler_core::report::Report;
use profiler_tests::support::{Agent, Finished, changed_text, patience};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds of each run.
const SECONDS: u64 = 20;

/// A program under load.
trait Program {
    fn pid(&self) -> u32;
    /// Some work, of which the program's own answer is checked.
    fn round(&mut self);
    /// What it says at the end of all rounds.
    fn verify(&mut self);
}

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    match &*name {
        "redis" => survive(Redis::start(), "lookupKeyWrite"),
        "sqlite" => survive(Sqlite::start(), "sqlite3_step"),
        _ => panic!("'{name}' is no program that this knows: redis or sqlite"),
    }
}

fn survive(mut program: impl Program, function: &str) {
    program.round();
    let seconds = format!("{SECONDS}s");
    for extra in [&[][..], &["--latency", function], &["--count", function]] {
        let folder = std::env::temp_dir().join(format!("survive-{}", program.pid()));
        std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
        let mut arguments = vec!["--budget", "5%", "--duration", &seconds];
        arguments.extend(extra);
        let rounds = watched(&mut program, &folder, &arguments, |report| {
            assert!(report.receipt.target_cpu_s > 0.1 * SECONDS as f64, "{:?}", report.receipt);
            if let Some(function) = extra.get(1) {
                let row = report.rows.iter().find(|row| row.name == **function);
                let row = row.unwrap_or_else(|| panic!("no row {function}"));
                println!(
                    "  {function}: {} hits seen, {} lost, calls {:?}",
                    row.attempted, row.dropped, row.calls
                );
                assert!(row.attempted > 0, "{row:?}");
            }
        });
        program.verify();
        assert_eq!(changed_text(program.pid()).expect("it runs").len(), 0, "breakpoints were left behind");
        println!("  {rounds} rounds, all results right");
    }
    println!("survived");
}

/// Rounds while the agent watches; the report is shown and checked.
fn watched(program: &mut impl Program, folder: &Path, arguments: &[&str], check: impl Fn(&Report)) -> u32 {
    println!("tithe record {}", arguments.join(" "));
    let mut agent = Agent::start_plain(program.pid(), folder, arguments);
    let end = Instant::now() + patience(Duration::from_secs(SECONDS + 30));
    let begin = Instant::now();
    let (mut rounds, mut said) = (0, 0);
    while agent.is_alive() {
        program.round();
        rounds += 1;
        // As it comes: whoever cuts a run off wants to know how far it got.
        let messages = agent.messages();
        for line in messages[said..].lines() {
            println!("  {:.0} s, round {rounds} | {line}", begin.elapsed().as_secs_f64());
        }
        said = messages.len();
        assert!(Instant::now() < end, "the run does not end");
    }
    let finished = agent.finish();
    for line in finished.messages.get(said..).unwrap_or_default().lines() {
        println!("  at the end | {line}");
    }
    show(&finished);
    check(finished.report());
    rounds
}

fn show(finished: &Finished) {
    let report = finished.report();
    let receipt = &report.receipt;
    println!(
        "  CPU {:.2} s, predicted {:.2} %, {} rows, first: {:?}",
        receipt.target_cpu_s,
        100.0 * receipt.predicted,
        report.rows.len(),
        report.rows.iter().take(5).map(|row| &*row.name).collect::<Vec<_>>()
    );
    for warning in &report.warnings {
        println!("  warning: {warning}");
    }
}

/// A server and what its client did.
struct Redis {
    server: Child,
    socket: String,
    increments: u64,
}

impl Redis {
    /// Increments in a round, over that many counters.
    const REQUESTS: u64 = 2_000;
    const KEYS: u64 = 100;

    fn start() -> Redis {
        let socket = std::env::temp_dir().join(format!("survive-{}.sock", std::process::id()));
        let socket = socket.display().to_string();
        let server = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", &socket])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is in PATH");
        let redis = Redis { server, socket, increments: 0 };
        let end = Instant::now() + patience(Duration::from_secs(20));
        while redis.ask(&["ping"]) != "PONG" {
            assert!(Instant::now() < end, "redis does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        redis
    }

    fn ask(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-s", &self.socket])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .expect("redis-cli is in PATH");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Program for Redis {
    fn pid(&self) -> u32 {
        self.server.id()
    }

    fn round(&mut self) {
        let output = Command::new("redis-benchmark")
            .args(["-s", &self.socket, "-q", "-t", "incr", "-c", "8"])
            .args(["-n", &Self::REQUESTS.to_string(), "-r", &Self::KEYS.to_string()])
            .stdin(Stdio::null())
            .output()
            .expect("redis-benchmark is in PATH");
        assert!(output.status.success(), "redis-benchmark: {}", String::from_utf8_lossy(&output.stderr));
        self.increments += Self::REQUESTS;
    }

    fn verify(&mut self) {
        assert!(matches!(self.server.try_wait(), Ok(None)), "redis died");
        let sum = "local s = 0; for _, k in ipairs(redis.call('keys', 'counter:*')) do s = s + redis.call('get', k) end; return s";
        assert_eq!(self.ask(&["eval", sum, "0"]), self.increments.to_string(), "the counters' sum");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        end(&mut self.server);
        // It goes with its folder otherwise.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A shell that works on a table in memory.
struct Sqlite {
    shell: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    answer: Option<String>,
}

impl Sqlite {
    fn start() -> Sqlite {
        let mut shell = Command::new("sqlite3")
            .args(["-batch", ":memory:"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sqlite3 is in PATH");
        let input = shell.stdin.take().expect("stdin was piped");
        let output = BufReader::new(shell.stdout.take().expect("stdout was piped"));
        let mut sqlite = Sqlite { shell, input, output, answer: None };
        sqlite.send("create table t(a integer, b integer, c text);");
        sqlite
    }

    fn send(&mut self, text: &str) {
        writeln!(self.input, "{text}").and_then(|()| self.input.flush()).expect("the shell reads");
    }
}

impl Program for Sqlite {
    fn pid(&self) -> u32 {
        self.shell.id()
    }

    fn round(&mut self) {
        self.send(
            "delete from t; \
             with recursive n(x) as (values(1) union all select x + 1 from n where x < 3000) \
             insert into t select x, x * 7919 % 10007, hex(x * 31) from n; \
             select count(*), sum(a * b), max(c), (select sum(p.b) from t p join t q on p.a = q.b), \
             (select group_concat(c) from (select c from t order by b desc, a limit 7)) from t;",
        );
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the shell writes");
        assert!(line.starts_with("3000|"), "the shell said \"{line}\"");
        // The first round was not watched.
        let right = self.answer.get_or_insert_with(|| line.clone());
        assert_eq!(&line, right, "the table's sums");
    }

    fn verify(&mut self) {
        assert!(matches!(self.shell.try_wait(), Ok(None)), "SQLite's shell died");
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        end(&mut self.shell);
    }
}

/// Both calls fail only if it has ended and been reaped.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
