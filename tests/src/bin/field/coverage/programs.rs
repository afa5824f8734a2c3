//! The programs whose counters are the truth, and what they know of their functions.
//!
//! Each relation was checked, without Tithe, with counting uprobes (perf events) at all of these functions: in loads of 12,800 commands each function of redis
//! and memcached was hit exactly as often as its counters went up. Of SQLite, whose load does not stop at a count, the two differ over 39,249 operations by
//! no more than the calls of one operation at each edge. What did not agree is not here.

use crate::durations::clocked::slots;
use crate::durations::memcached::Memcached;
use crate::durations::subject::{Case, Judged, Running};
use crate::durations::truth::Counted;
use crate::load::Load;
use crate::place::Place;
use crate::process::{ANSWER_LIMIT, Process};
use crate::program::Program;
use crate::programs::loaded::Subject;
use crate::programs::redis::{Commands, command_statistics, socket};
use crate::programs::{self, Wire};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What a program knows of a function.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The function.
    pub function: &'static str,
    /// The program's counters whose sum is its calls.
    pub counters: &'static [&'static str],
    /// What the time of these counters is.
    pub timed: Timed,
}

/// What the time of counters says of a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Timed {
    /// Nothing: they have none, or it is that of another function.
    No,
    /// Its mean time; it leaves by a jump to another function, so that stacks do not show it all the while.
    Mean,
    /// Its mean time, and its share of CPU time.
    MeanAndShare,
}

const fn calls(function: &'static str, counters: &'static [&'static str]) -> Known {
    Known { function, counters, timed: Timed::No }
}

const fn mean(function: &'static str, counters: &'static [&'static str]) -> Known {
    Known { function, counters, timed: Timed::Mean }
}

const fn whole(function: &'static str, counters: &'static [&'static str]) -> Known {
    Known { function, counters, timed: Timed::MeanAndShare }
}

/// A program and what it knows.
pub struct Subjects {
    /// The program.
    pub program: Box<dyn Judged>,
    /// Its functions; the first is called once in each unit of its work.
    pub known: &'static [Known],
    /// Those whose calls the agent is asked to time in every other run; by itself it times none.
    pub named: &'static [&'static str],
}

/// All of them, in the order of the table.
pub fn all() -> Vec<Subjects> {
    vec![
        Subjects {
            program: Box::new(Redis),
            known: &REDIS,
            named: &["setCommand", "hsetCommand", "genericHgetallCommand", "zaddCommand"],
        },
        Subjects {
            program: Box::new(Memcached),
            known: &MEMCACHED,
            named: &["try_read_command_ascii", "complete_nread_ascii", "store_item", "item_get"],
        },
        Subjects {
            program: Box::new(Sqlite),
            known: &SQLITE,
            named: &[
                "sqlite_load::work::Worker::order",
                "sqlite_load::work::Worker::report",
                "sqlite3_exec",
                "sqlite3_reset",
            ],
        },
    ]
}

/// Sum of all commands, those that ask for the counters among them.
const ALL: &str = "(all commands)";

/// Redis times the function of a command.
static REDIS: [Known; 31] = [
    calls("processCommand", &[ALL]),
    calls("call", &[ALL]),
    calls("lookupCommandLogic", &[ALL]),
    calls("getCommandFlags", &[ALL]),
    calls("moduleCallCommandFilters", &[ALL]),
    calls("ACLCheckAllPerm", &[ALL]),
    calls("resetClient", &[ALL]),
    calls("commandProcessed", &[ALL]),
    calls("trackingHandlePendingKeyInvalidations", &[ALL]),
    whole("setCommand", &["set"]),
    calls("setGenericCommand", &["set"]),
    calls("setKey", &["set"]),
    calls("tryObjectEncoding", &["set"]),
    mean("getCommand", &["get"]),
    whole("getGenericCommand", &["get"]),
    mean("incrCommand", &["incr"]),
    whole("incrDecrCommand", &["incr"]),
    mean("lpushCommand", &["lpush"]),
    mean("pushGenericCommand", &["lpush"]),
    calls("listTypePush", &["lpush"]),
    mean("rpopCommand", &["rpop"]),
    whole("popGenericCommand", &["rpop"]),
    calls("listTypePop", &["rpop"]),
    whole("hsetCommand", &["hset"]),
    calls("hashTypeSet", &["hset"]),
    calls("hashTypeTryConversion", &["hset"]),
    mean("hgetallCommand", &["hgetall"]),
    whole("genericHgetallCommand", &["hgetall"]),
    mean("zaddCommand", &["zadd"]),
    mean("zaddGenericCommand", &["zadd"]),
    calls("zsetAdd", &["zadd"]),
];

static MEMCACHED: [Known; 24] = [
    calls("process_command_ascii", &["process_command_ascii"]),
    calls("tokenize_command.constprop.0", &["process_command_ascii"]),
    calls("resp_start", &["process_command_ascii"]),
    calls("resp_finish", &["process_command_ascii"]),
    whole("try_read_command_ascii", &["try_read_command_ascii"]),
    whole("complete_nread_ascii", &["complete_nread_ascii"]),
    whole("store_item", &["store_item"]),
    whole("item_get", &["item_get"]),
    calls("process_get_command.constprop.0", &["cmd_get"]),
    calls("limited_get", &["cmd_get"]),
    calls("do_item_bump", &["cmd_get"]),
    calls("do_item_get", &["cmd_get", "cmd_set"]),
    calls("assoc_find", &["cmd_get", "cmd_set"]),
    calls("item_remove", &["cmd_get", "cmd_set"]),
    calls("process_update_command", &["cmd_set"]),
    calls("item_alloc", &["cmd_set"]),
    calls("do_item_alloc", &["cmd_set"]),
    calls("do_item_alloc_pull", &["cmd_set"]),
    calls("slabs_alloc", &["cmd_set"]),
    calls("do_store_item", &["cmd_set"]),
    calls("do_item_link", &["cmd_set"]),
    calls("assoc_insert", &["cmd_set"]),
    calls("slabs_clsid", &["cmd_set"]),
    calls("out_string", &["cmd_set"]),
];

/// What the load keeps, in the order of its file (`tests/src/bin/sqlite-load/own.rs`), the clock itself left out.
const SQLITE_COUNTERS: [&str; 9] =
    ["operation", "order", "report", "step", "reset", "exec", "bind", "column", "sorts"];

static SQLITE: [Known; 17] = [
    mean("sqlite_load::work::Worker::operation", &["operation"]),
    // It leaves by a jump: its last call, a commit, is in no stack of its.
    mean("sqlite_load::work::Worker::order", &["order"]),
    whole("sqlite_load::work::Worker::report", &["report"]),
    calls("sqlite_load_operation_done", &["operation"]),
    calls("sqlite_load::database::Statement::rows", &["reset"]),
    calls("sqlite3_step", &["step", "exec"]),
    calls("sqlite3VdbeExec", &["step", "exec"]),
    calls("sqlite3VdbeHalt", &["reset", "exec"]),
    whole("sqlite3_reset", &["reset"]),
    calls("sqlite3_bind_int64", &["bind"]),
    calls("sqlite3_column_int64", &["column"]),
    whole("sqlite3_exec", &["exec"]),
    calls("sqlite3_prepare_v2", &["exec"]),
    calls("sqlite3LockAndPrepare", &["exec"]),
    calls("sqlite3RunParser", &["exec"]),
    calls("sqlite3VdbeMakeReady", &["exec"]),
    calls("sqlite3VdbeSorterReset", &["sorts"]),
];

/// Redis under the client of the suite: eight commands in a pipeline, each reply checked. Its own word: `INFO commandstats`.
struct Redis;

impl Judged for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn cases(&self) -> Vec<Case> {
        Vec::new()
    }

    fn missing(&self, place: &Place) -> Option<String> {
        programs::redis::Redis.missing(place)
    }

    fn version(&self, place: &Place) -> Result<String> {
        programs::redis::Redis.version(place)
    }

    fn start(&self, place: &Place, folder: &Path, _: &Case) -> Result<Box<dyn Running>> {
        let mut commands = Commands::start(place, folder)?;
        let pid = commands.process().pid();
        let asking = Wire::to_socket(&socket(folder), || commands.process().ensure_alive())?;
        Subject::begin(&mut commands)?;
        let mut load = Load::new(commands);
        load.begin()?;
        Ok(Box::new(LoadedRedis { pid, asking, load }))
    }
}

struct LoadedRedis {
    pid: u32,
    asking: Wire,
    load: Load<Commands>,
}

/// Calls and time of each command, and the calls of all.
fn commands(info: &str) -> BTreeMap<String, Counted> {
    let mut counted = BTreeMap::new();
    let mut all = 0.0;
    for (command, values) in command_statistics(info).as_object().into_iter().flatten() {
        let value = |key: &str| values.get(key).and_then(serde_json::Value::as_f64);
        let Some(calls) = value("calls") else { continue };
        all += calls;
        // It says us.
        counted.insert(command.clone(), Counted { calls, total_ns: value("usec").map(|us| us * 1e3) });
    }
    counted.insert(ALL.to_owned(), Counted { calls: all, total_ns: None });
    counted
}

impl Running for LoadedRedis {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn read(&mut self) -> Result<BTreeMap<String, Counted>> {
        self.asking.send(b"INFO commandstats\r\n")?;
        let head = self.asking.line()?;
        let length = head.strip_prefix('$').and_then(|length| length.parse::<usize>().ok());
        let bytes = self
            .asking
            .bytes(length.with_context(|| format!("INFO was answered {head}"))? + b"\r\n".len())?;
        Ok(commands(&String::from_utf8_lossy(&bytes)))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let (steps, seconds) = self.load.end()?;
        // Every command that was sent must have been counted.
        Subject::end(self.load.client()?, steps, seconds, 0.0)?;
        drop(self.asking);
        Subject::finish(self.load.finish()?)
    }
}

/// The suite's own load of SQLite, on one thread. Its own word: a file of what it counts and clocks, and SQLite's count of sorts.
struct Sqlite;

fn sqlite_load() -> PathBuf {
    // It lies beside this program; an empty path says that it is missing.
    std::env::current_exe().map(|exe| exe.with_file_name("sqlite-load")).unwrap_or_default()
}

impl Judged for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn cases(&self) -> Vec<Case> {
        Vec::new()
    }

    fn missing(&self, _: &Place) -> Option<String> {
        Place::missing(&[sqlite_load()])
    }

    fn version(&self, _: &Place) -> Result<String> {
        Ok("SQLite of libsqlite3-sys, built with the suite".to_owned())
    }

    fn start(&self, _: &Place, folder: &Path, _: &Case) -> Result<Box<dyn Running>> {
        let counters = folder.join("counters");
        let mut command = Command::new(sqlite_load());
        let mut process =
            Process::start(command.args(["--threads", "1", "--counters"]).arg(&counters), folder)?;
        let end = Instant::now() + ANSWER_LIMIT;
        while !process.log().lines().any(|line| line == "ready") {
            process.ensure_alive()?;
            ensure!(Instant::now() < end, "sqlite-load has not begun");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Box::new(LoadedSqlite { process, counters }))
    }
}

struct LoadedSqlite {
    process: Process,
    counters: PathBuf,
}

impl Running for LoadedSqlite {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn read(&mut self) -> Result<BTreeMap<String, Counted>> {
        slots(&self.counters, &SQLITE_COUNTERS)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        // It runs until it is killed, and ends by itself at a wrong result.
        self.process.ensure_alive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_says_calls_and_time_by_command_and_calls_of_all() {
        let info = "# Commandstats\r\ncmdstat_set:calls=8,usec=4,failed_calls=0\r\ncmdstat_info:calls=2,usec=90,failed_calls=0\r\n";
        let counted = commands(info);
        assert_eq!(counted["set"], Counted { calls: 8.0, total_ns: Some(4000.0) });
        assert_eq!(counted[ALL], Counted { calls: 10.0, total_ns: None });
    }

    #[test]
    fn a_function_is_known_once_and_what_is_timed_has_one_counter() {
        for subject in all() {
            let mut names: Vec<&str> = subject.known.iter().map(|known| known.function).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), subject.known.len(), "{}", subject.program.name());
            for known in subject.known {
                assert!(!known.counters.is_empty(), "{known:?}");
                assert!(known.timed == Timed::No || known.counters.len() == 1, "{known:?}");
            }
            for named in subject.named {
                let is = |known: &&Known| known.function == *named && known.timed != Timed::No;
                assert!(subject.known.iter().any(|known| is(&known)), "{named} has no mean");
            }
        }
    }
}
