//! PostgreSQL under pgbench. One of its two backends is watched. What pgbench counts must be the rows of its history,
//! and the sums of all balances must agree.

use crate::place::{Place, first_line, text_of};
use crate::process::{ANSWER_LIMIT, Process, family_cpu_s, tail};
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// PostgreSQL does not run as root: `nobody`.
pub const USER: u32 = 65534;

/// The program.
pub struct PostgreSql;

fn tool(place: &Place, name: &str) -> Command {
    let mut command = Command::new(place.root("postgresql", &format!("usr/bin/{name}")));
    command.uid(USER).gid(USER).env_remove("PGDATA");
    command
}

/// The server on a cluster in `data`, with its socket in `folder`: small, and with the extension that counts statements.
pub fn serving(mut postgres: Command, data: &Path, folder: &Path) -> Command {
    postgres.arg("-D").arg(data).arg("-k").arg(folder);
    for setting in [
        "listen_addresses=",
        "fsync=off",
        "max_connections=20",
        "shared_buffers=32MB",
        "shared_preload_libraries=pg_stat_statements",
    ] {
        postgres.args(["-c", setting]);
    }
    postgres
}

impl Program for PostgreSql {
    fn name(&self) -> &'static str {
        "postgresql"
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::plain_and([
            Mode::named("latency", &["--latency", "ExecutorRun", "--latency", "pg_parse_query"]),
            Mode::named("operation", &["--operation", "query=exec_simple_query", "--detail", "heap_*"]),
        ])
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[
            place.root("postgresql", "usr/bin/pgbench"),
            place.root("postgresql", "usr/lib/pg_stat_statements.so"),
        ])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(tool(place, "postgres").arg("--version"))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>> {
        let data = folder.join("data");
        for path in [&data, &folder.join("log")] {
            if *path == data {
                std::fs::create_dir(path)?;
            } else {
                std::fs::write(path, "")?;
            }
            std::os::unix::fs::chown(path, Some(USER), Some(USER))?;
        }
        std::os::unix::fs::chown(folder, Some(USER), Some(USER))?;
        let mut init = tool(place, "initdb");
        init.args(["--no-sync", "-A", "trust", "-U", "bench", "-D"]).arg(&data);
        run(&mut init, folder, Duration::from_secs(60))?;

        let mut command = serving(tool(place, "postgres"), &data, folder);
        let server = Process::start(&mut command, folder)?;
        let tool = |name| tool(place, name).get_program().to_owned();
        let mut cluster = Cluster {
            psql: tool("psql").into(),
            pgbench: tool("pgbench").into(),
            server,
            folder: folder.to_owned(),
            load: None,
            history: 0,
            cpu_s: 0.0,
        };
        cluster.wait_ready()?;
        cluster.ask("CREATE EXTENSION pg_stat_statements")?;
        let mut load = cluster.bench();
        run(load.args(["-i", "-q", "-s", "2"]), folder, Duration::from_secs(60))?;
        Ok(Box::new(cluster))
    }
}

/// Runs a command to its end and returns what it printed.
fn run(command: &mut Command, folder: &Path, limit: Duration) -> Result<String> {
    let _ = std::fs::remove_file(folder.join("tool.log"));
    // A log of its own: the server's is read for errors.
    let file = std::fs::File::create(folder.join("tool.log"))?;
    command.current_dir(folder).stdin(std::process::Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = command.process_group(0).spawn().with_context(|| format!("cannot start {command:?}"))?;
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            bail!("{command:?} did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = text_of(&folder.join("tool.log"));
    ensure!(status.success(), "{command:?} ended with {status}: {}", tail(&text));
    Ok(text)
}

struct Cluster {
    psql: PathBuf,
    pgbench: PathBuf,
    server: Process,
    folder: PathBuf,
    load: Option<Process>,
    /// Rows of pgbench's history before this run.
    history: u64,
    /// CPU time of the whole cluster before this run.
    cpu_s: f64,
}

impl Cluster {
    fn as_user(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.uid(USER).gid(USER).arg("-h").arg(&self.folder).args(["-U", "bench"]);
        command
    }

    fn bench(&self) -> Command {
        let mut command = self.as_user(&self.pgbench);
        command.env("PGDATABASE", "postgres");
        command
    }

    /// The answer to a query, unaligned.
    fn ask(&self, query: &str) -> Result<String> {
        let mut command = self.as_user(&self.psql);
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", query]);
        Ok(run(&mut command, &self.folder, ANSWER_LIMIT)?.trim().to_owned())
    }

    fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + ANSWER_LIMIT;
        while !self.folder.join(".s.PGSQL.5432").exists() || self.ask("SELECT 1").is_err() {
            self.server.ensure_alive()?;
            ensure!(Instant::now() < end, "the server is not ready: {}", tail(&self.server.log()));
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn history(&self) -> Result<u64> {
        Ok(self.ask("SELECT count(*) FROM pgbench_history")?.parse()?)
    }
}

impl Instance for Cluster {
    fn begin(&mut self, _: f64) -> Result<u32> {
        self.server.ensure_alive()?;
        self.history = self.history()?;
        self.cpu_s = family_cpu_s(self.server.pid());
        self.ask("SELECT pg_stat_statements_reset()")?;
        let folder = self.folder.join("load");
        if !folder.exists() {
            std::fs::create_dir(&folder)?;
            std::os::unix::fs::chown(&folder, Some(USER), Some(USER))?;
        }
        let _ = std::fs::remove_file(folder.join("log"));
        let mut command = self.bench();
        // It is told to end by SIGALRM, as its own clock tells it.
        command.args(["-n", "-c", "2", "-j", "2", "-T", "600"]);
        self.load = Some(Process::start(&mut command, &folder)?);
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            // Both have done something: pgbench's first connection, by which it looks around, is gone.
            let backends = self.ask(
                "SELECT count(*) || ' ' || min(pid) FROM pg_stat_activity \
                 WHERE application_name = 'pgbench' AND xact_start IS NOT NULL",
            )?;
            if let Some(pid) = backends.strip_prefix("2 ") {
                return pid.parse().with_context(|| format!("backends \"{backends}\""));
            }
            ensure!(Instant::now() < end, "pgbench has no two backends: \"{backends}\"");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(&mut self) -> Result<Work> {
        let mut load = self.load.take().context("pgbench was not started")?;
        // Now, for the backends end with pgbench.
        let cpu_s = family_cpu_s(self.server.pid()) - self.cpu_s;
        load.signal(libc::SIGALRM);
        load.wait_success(ANSWER_LIMIT)?;
        self.server.ensure_alive()?;
        let said = load.log();
        let number = |key: &str| -> Result<f64> {
            let line = said.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|rest| rest.split_whitespace().next()?.split('/').next()?.parse().ok());
            word.with_context(|| format!("pgbench printed no \"{key}\": {}", tail(&said)))
        };
        let transactions = number("number of transactions actually processed: ")?;
        let failed = number("number of failed transactions: ")?;
        ensure!(failed == 0.0, "{failed} transactions failed");
        let rows = self.history()? - self.history;
        ensure!(
            rows as f64 == transactions,
            "pgbench counts {transactions} transactions, its history {rows} rows"
        );
        let sums = self.ask(
            "SELECT (SELECT sum(delta) FROM pgbench_history) || ' ' || (SELECT sum(abalance) FROM pgbench_accounts) \
             || ' ' || (SELECT sum(bbalance) FROM pgbench_branches) || ' ' || (SELECT sum(tbalance) FROM pgbench_tellers)",
        )?;
        let mut each = sums.split(' ');
        let first = each.next();
        ensure!(each.all(|sum| Some(sum) == first), "the sums of history and balances differ: {sums}");
        let statistics = self.ask(
            "SELECT coalesce(json_agg(s), '[]') FROM (SELECT query, calls, total_exec_time, mean_exec_time, \
             stddev_exec_time, rows FROM pg_stat_statements WHERE calls > 10 ORDER BY calls DESC LIMIT 20) s",
        )?;
        let rate = number("tps = ")?;
        Ok(Work {
            statistics: serde_json::from_str::<Value>(&statistics).context("statistics are no JSON")?,
            ..Work::of("transactions", transactions, transactions / rate, cpu_s)
        })
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.load = None;
        // SIGINT is the fast shutdown: sessions are closed.
        self.server.signal(libc::SIGINT);
        self.server.wait_success(ANSWER_LIMIT)
    }
}
