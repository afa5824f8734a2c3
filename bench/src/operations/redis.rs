//! Commands of a real redis as operations, with the functions that look keys up inside: does the worst second hold the budget? Debian's
//! `redis-server` and `redis-benchmark`, installed or unpacked; the folder that holds both is asked for in `TITHE_REDIS`, then in `PATH`.

use crate::Options;
use crate::measure::Table;
use crate::scratch;
use anyhow::{Context, Result, bail};
use profiler_core::report::Report;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Name of the part.
pub const NAME: &str = "redis";
/// The budget, percent, where none is asked for.
const BUDGET: f64 = 5.0;
/// Time for the server to listen, and for the load to get going.
const START: Duration = Duration::from_secs(2);

/// A process; ended on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn folder() -> Option<PathBuf> {
    let named = std::env::var_os("TITHE_REDIS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let holds =
        |folder: &PathBuf| ["redis-server", "redis-benchmark"].iter().all(|p| folder.join(p).exists());
    named.into_iter().chain(std::env::split_paths(&path)).find(holds)
}

fn start(folder: &Path, program: &str, arguments: &[&str]) -> Result<Running> {
    let mut command = Command::new(folder.join(program));
    // Where it was unpacked, its libraries lie beside it.
    if let Some(root) = folder.parent() {
        command.env("LD_LIBRARY_PATH", root.join("lib").join("x86_64-linux-gnu"));
    }
    let command = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Running(command.spawn().with_context(|| format!("cannot start {program}"))?))
}

/// One run: the agent's report.
fn run(folder: &Path, budget: f64, seconds: u64) -> Result<Report> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let server = start(
        folder,
        "redis-server",
        &["--port", &port, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"],
    )?;
    std::thread::sleep(START);
    let load = ["-p", &port, "-n", "1000000000", "-r", "10000", "-c", "20", "-t", "get", "-q"];
    let _load = start(folder, "redis-benchmark", &load)?;
    std::thread::sleep(START);
    let kept = scratch::new()?;
    let output = Command::new(profiler_tests::program("tithe"))
        .args(["record", "--pid", &server.0.id().to_string(), "--budget", &format!("{budget}%")])
        .args(["--operation", "cmd=call", "--detail", "lookupKey*", "--format", "json", "--force"])
        .args(["--duration", &format!("{seconds}s"), "-o"])
        .arg(kept.path().join("run.tithe"))
        .output()
        .context("cannot start the agent")?;
    if !output.status.success() {
        bail!("the agent failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The part.
pub fn redis(options: &Options) -> Result<String> {
    let Some(folder) = folder() else {
        return Ok(
            "skipped: no folder in TITHE_REDIS or PATH holds redis-server and redis-benchmark\n".to_owned()
        );
    };
    let mut table = Table::new(&[
        "budget, %",
        "run",
        "worst second, %",
        "of the run, %",
        "commands seen",
        "watched, %",
        "recorded",
        "commands/s",
    ]);
    for budget in options.budgets.clone().unwrap_or_else(|| vec![BUDGET]) {
        for round in 1..=options.rounds {
            let report = run(&folder, budget, options.seconds_or(20))?;
            let operation = report.operations.first().context("no operation in the report")?;
            table.row(&[
                format!("{budget}"),
                round.to_string(),
                format!("{:.2}", report.receipt.worst_second * 100.0),
                format!("{:.2}", report.receipt.predicted * 100.0),
                operation.population.to_string(),
                format!("{:.1}", operation.watched_share * 100.0),
                operation.recorded.to_string(),
                format!("{:.0}", operation.rate_hz),
            ]);
        }
    }
    Ok(format!(
        "{table}\n`--operation cmd=call --detail 'lookupKey*'` on redis under `redis-benchmark -c 20 -t get`, {} s a run.\n",
        options.seconds_or(20)
    ))
}
