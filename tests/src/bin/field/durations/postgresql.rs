//! Debian's PostgreSQL under pgbench, one backend. Its own word: `pg_stat_statements`, whose time of a statement is what passes inside of
//! `standard_ExecutorRun` and `standard_ExecutorFinish` (they start and stop the same stopwatch), one reading of the clock for each included. A
//! prepared `SELECT` of pgbench is one call each of `PortalRun`, `ExecutorRun` and these two.

use super::subject::{Case, Judged, Running};
use super::truth::Counted;
use crate::place::{Place, first_line, text_of};
use crate::process::{ANSWER_LIMIT, Process, Talker, tail};
use crate::programs::postgresql::{USER, serving};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Its set of packages.
const SET: &str = "debian-postgresql";
/// How long making a cluster may take.
const MAKING: Duration = Duration::from_secs(120);

/// What is between start and stop of the stopwatch.
const STOPWATCH: &str = "standard_ExecutorRun + standard_ExecutorFinish";

/// The program.
pub struct PostgreSql;

fn tool(place: &Place, name: &str) -> Command {
    let mut command = place.command(SET, &format!("usr/lib/postgresql/15/bin/{name}"));
    command.uid(USER).gid(USER).env_remove("PGDATA").env("PGDATABASE", "postgres").env("PGUSER", "bench");
    command
}

fn owned(path: &Path) -> Result<()> {
    std::os::unix::fs::chown(path, Some(USER), Some(USER)).context("cannot give the folder away")
}

fn succeed(command: &mut Command, folder: &Path) -> Result<()> {
    Process::start(command, folder)?.wait_success(MAKING)
}

impl Judged for PostgreSql {
    fn name(&self) -> &'static str {
        "postgresql"
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            Case {
                name: "5%",
                budget: "5%",
                latency: &["ExecutorRun", "PortalRun", "standard_ExecutorRun", "standard_ExecutorFinish"],
                functions: &[STOPWATCH, "ExecutorRun", "PortalRun", "standard_ExecutorRun"],
            },
            Case { name: "XLogFlush", budget: "5%", latency: &["XLogFlush"], functions: &["XLogFlush"] },
        ]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        let file = |name: &str| place.root(SET, &format!("usr/lib/postgresql/15/{name}"));
        Place::missing(&[file("bin/postgres"), file("bin/pgbench"), file("lib/pg_stat_statements.so")])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(tool(place, "postgres").arg("--version"))
    }

    fn start(&self, place: &Place, folder: &Path, case: &Case) -> Result<Box<dyn Running>> {
        let (data, load) = (folder.join("data"), folder.join("load"));
        owned(folder)?;
        for path in [&data, &load] {
            std::fs::create_dir(path)?;
            owned(path)?;
        }
        std::fs::write(load.join("log"), "")?;
        let mut init = tool(place, "initdb");
        succeed(init.args(["--no-sync", "-A", "trust", "-U", "bench", "-D"]).arg(&data), &load)?;
        let mut command = serving(tool(place, "postgres"), &data, folder);
        let mut server = Process::start(&mut command, folder)?;
        wait_ready(place, folder, &load, &mut server)?;
        let mut psql = tool(place, "psql");
        psql.arg("-h").arg(folder).args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
        let mut sql = Talker::start(&mut psql, &load)?;
        sql.send("CREATE EXTENSION pg_stat_statements;\n")?;
        let bench = || {
            let mut command = tool(place, "pgbench");
            command.arg("-h").arg(folder);
            command
        };
        succeed(bench().args(["-i", "-q", "-s", "2"]), &load)?;
        std::fs::remove_file(load.join("log"))?;
        let script: &[&str] = if case.name == "XLogFlush" { &["-N"] } else { &["-S"] };
        let mut command = bench();
        command.args(["-n", "-c", "1", "-M", "prepared", "-T", "600"]).args(script);
        let load = Process::start(&mut command, &load)?;
        let folder = folder.to_owned();
        let mut cluster = Cluster { server, sql, load, backend: 0, folder };
        cluster.find_backend()?;
        Ok(Box::new(cluster))
    }
}

fn wait_ready(place: &Place, folder: &Path, load: &Path, server: &mut Process) -> Result<()> {
    let end = Instant::now() + ANSWER_LIMIT;
    loop {
        server.ensure_alive()?;
        let mut ready = tool(place, "pg_isready");
        if succeed(ready.arg("-q").arg("-h").arg(folder), load).is_ok() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "the server is not ready: {}", tail(&server.log()));
        std::thread::sleep(Duration::from_millis(50));
    }
}

struct Cluster {
    server: Process,
    sql: Talker,
    load: Process,
    /// The process of pgbench's connection.
    backend: u32,
    folder: PathBuf,
}

impl Cluster {
    /// The one line that a query is answered with.
    fn ask(&mut self, query: &str) -> Result<String> {
        self.sql.send(&format!("{query};\n"))?;
        self.sql.line()
    }

    fn find_backend(&mut self) -> Result<()> {
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            // pgbench's first connection, by which it looks around, is gone when statements are counted.
            let said = self.ask(
                "SELECT count(*) || ' ' || coalesce(min(pid), 0) || ' ' || (SELECT count(*) FROM pg_stat_statements \
                 WHERE query LIKE 'SELECT abalance%' AND calls > 100) \
                 FROM pg_stat_activity WHERE application_name = 'pgbench'",
            )?;
            if let [one, pid, _] = said.split(' ').collect::<Vec<_>>()[..]
                && one == "1"
                && said.ends_with(" 1")
            {
                self.backend = pid.parse().with_context(|| format!("backends \"{said}\""))?;
                return Ok(());
            }
            self.load.ensure_alive()?;
            ensure!(Instant::now() < end, "pgbench has no one backend: \"{said}\"");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// `calls|total_exec_time` in ms, by function.
fn counted(said: &str) -> Option<BTreeMap<String, Counted>> {
    let (calls, total_ms) = said.split_once('|')?;
    let calls = calls.parse().ok()?;
    let total_ns = Some(total_ms.parse::<f64>().ok()? * 1e6);
    let each = Counted { calls, total_ns: None };
    let names = [
        (STOPWATCH, Counted { total_ns, ..each }),
        ("ExecutorRun", each),
        ("PortalRun", each),
        ("standard_ExecutorRun", each),
    ];
    Some(names.into_iter().map(|(name, counted)| (name.to_owned(), counted)).collect())
}

impl Running for Cluster {
    fn pid(&self) -> u32 {
        self.backend
    }

    fn read(&mut self) -> Result<BTreeMap<String, Counted>> {
        self.load.ensure_alive()?;
        let said = self.ask(
            "SELECT sum(calls), sum(total_exec_time) FROM pg_stat_statements WHERE query LIKE 'SELECT abalance%'",
        )?;
        counted(&said).with_context(|| format!("pg_stat_statements says \"{said}\""))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.server.ensure_alive()?;
        self.load.signal(libc::SIGALRM);
        self.load.wait_success(ANSWER_LIMIT)?;
        let said = self.load.log();
        let number = |key: &str| -> Result<f64> {
            let line = said.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|rest| rest.split_whitespace().next()?.split('/').next()?.parse().ok());
            word.with_context(|| format!("pgbench printed no \"{key}\": {}", tail(&said)))
        };
        let done = number("number of transactions actually processed: ")?;
        ensure!(number("number of failed transactions: ")? == 0.0, "transactions failed: {}", tail(&said));
        // Each transaction has one such statement; of either script.
        let counted: f64 = self
            .ask("SELECT sum(calls) FROM pg_stat_statements WHERE query LIKE 'SELECT abalance%'")?
            .parse()?;
        ensure!(counted == done, "pgbench counts {done} transactions, pg_stat_statements {counted}");
        let log = text_of(&self.folder.join("log"));
        let is_bad = |line: &&str| {
            let words = ["ERROR:", "FATAL:", "PANIC:"];
            // Who asks too early is told so.
            words.iter().any(|word| line.contains(word)) && !line.ends_with("is starting up")
        };
        if let Some(line) = log.lines().find(is_bad) {
            bail!("the server logged {line}");
        }
        // SIGINT is the fast shutdown: sessions are closed.
        self.server.signal(libc::SIGINT);
        self.server.wait_success(ANSWER_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stopwatch_is_that_of_both_functions() {
        let said = counted("250|12.5").unwrap();
        assert_eq!(said[STOPWATCH], Counted { calls: 250.0, total_ns: Some(12.5e6) });
        assert_eq!(said["PortalRun"], Counted { calls: 250.0, total_ns: None });
        assert!(counted("|").is_none());
    }
}
