//! Redis: strings, counters, lists, hashes and sorted sets through a pipeline. Each reply is checked; at the end the
//! server's own count of each command must be that of the client.

use super::loaded::{Loaded, Subject};
use super::wire::Wire;
use crate::load::{Client, mixed};
use crate::place::{Place, first_line};
use crate::process::{ANSWER_LIMIT, Process};
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Requests of a step.
const PIPELINE: u64 = 32;
/// Keys in use.
const KEYS: u64 = 5_000;

/// The program.
pub struct Redis;

impl Program for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::plain_and([
            Mode::named("latency", &["--latency", "processCommand"]),
            Mode::named("operation", &["--operation", "cmd=call", "--detail", "lookupKey*"]),
        ])
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[place.built("redis/src/redis-server")])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(Command::new(place.built("redis/src/redis-server")).arg("--version"))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>> {
        Ok(Loaded::boxed(Commands::start(place, folder)?))
    }
}

/// A server of its own, and the client that loads it.
pub struct Commands {
    server: Process,
    wire: Wire,
    /// Commands of this run.
    sent: BTreeMap<&'static str, u64>,
    /// What the counters must be.
    counters: BTreeMap<u64, i64>,
}

/// A reply of the server.
#[derive(Debug, PartialEq)]
enum Reply {
    Text(String),
    Number(i64),
    Nothing,
    List(Vec<Reply>),
}

/// The socket of the server of a folder.
pub fn socket(folder: &Path) -> PathBuf {
    folder.join("s")
}

impl Commands {
    /// Starts a server that keeps what it writes in `folder`.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start(place: &Place, folder: &Path) -> Result<Commands> {
        let mut command = Command::new(place.built("redis/src/redis-server"));
        command.args(["--port", "0", "--unixsocket"]).arg(socket(folder));
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        let mut server = Process::start(&mut command, folder)?;
        let wire = Wire::to_socket(&socket(folder), || server.ensure_alive())?;
        Ok(Commands { server, wire, sent: BTreeMap::new(), counters: BTreeMap::new() })
    }

    fn reply(&mut self) -> Result<Reply> {
        let line = self.wire.line()?;
        let (kind, rest) = line.split_at_checked(1).context("an empty reply")?;
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            ":" => Reply::Number(rest.parse()?),
            "$" if rest == "-1" => Reply::Nothing,
            "$" => {
                let length: usize = rest.parse()?;
                let mut bytes = self.wire.bytes(length + 2)?;
                bytes.truncate(length);
                Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            "*" => {
                let length: usize = rest.parse()?;
                Reply::List((0..length).map(|_| self.reply()).collect::<Result<_>>()?)
            }
            _ => bail!("redis replied {line}"),
        })
    }

    fn ask(&mut self, words: &[&str]) -> Result<Reply> {
        let mut request = Vec::new();
        put(&mut request, words);
        self.wire.send(&request)?;
        self.reply()
    }
}

impl Client for Commands {
    fn step(&mut self, step: u64) -> Result<()> {
        let mut request = Vec::new();
        let mut expected = Vec::new();
        let mut add = |command: &'static str, words: &[&str], reply: Option<Reply>| {
            put(&mut request, words);
            *self.sent.entry(command).or_insert(0) += 1;
            expected.push((words.join(" "), reply));
        };
        for index in 0..PIPELINE / 8 {
            let key = mixed(step * PIPELINE + index) % KEYS;
            let (name, list, hash) = (format!("k{key}"), format!("l{key}"), format!("h{key}"));
            let value = format!("{:016x}", mixed(key ^ step)).repeat(4);
            let counter = self.counters.entry(key).or_insert(0);
            *counter += 1;
            let text = |text: &str| Some(Reply::Text(text.to_owned()));
            let fields = vec![Reply::Text("f".to_owned()), Reply::Text(value.clone())];
            add("set", &["SET", &name, &value], text("OK"));
            add("get", &["GET", &name], text(&value));
            add("incr", &["INCR", &format!("c{key}")], Some(Reply::Number(*counter)));
            add("lpush", &["LPUSH", &list, &value], Some(Reply::Number(1)));
            add("rpop", &["RPOP", &list], text(&value));
            add("hset", &["HSET", &hash, "f", &value], None);
            add("hgetall", &["HGETALL", &hash], Some(Reply::List(fields)));
            add("zadd", &["ZADD", "z", &(key % 100).to_string(), &name], None);
        }
        self.wire.send(&request)?;
        for (command, expected) in expected {
            let reply = self.reply()?;
            if let Some(expected) = expected {
                ensure!(reply == expected, "{command} gave {reply:?} and not {expected:?}");
            }
        }
        Ok(())
    }
}

impl Subject for Commands {
    fn process(&mut self) -> &mut Process {
        &mut self.server
    }

    fn begin(&mut self) -> Result<()> {
        self.sent.clear();
        let reply = self.ask(&["CONFIG", "RESETSTAT"])?;
        ensure!(reply == Reply::Text("OK".to_owned()), "CONFIG RESETSTAT gave {reply:?}");
        Ok(())
    }

    fn end(&mut self, steps: u64, seconds: f64, cpu_s: f64) -> Result<Work> {
        let Reply::Text(info) = self.ask(&["INFO", "commandstats"])? else { bail!("INFO gave no text") };
        let statistics = command_statistics(&info);
        for (command, sent) in &self.sent {
            let calls = statistics[command]["calls"].as_f64();
            ensure!(calls == Some(*sent as f64), "{sent} {command} were sent, and redis counts {calls:?}");
            let failed = statistics[command]["failed_calls"].as_f64();
            ensure!(failed == Some(0.0), "{command} failed {failed:?} times");
        }
        let work = Work::of("commands", (steps * PIPELINE) as f64, seconds, cpu_s);
        Ok(Work { statistics, ..work })
    }

    fn finish(mut self) -> Result<()> {
        drop(self.wire);
        self.server.signal(libc::SIGTERM);
        self.server.wait_success(ANSWER_LIMIT)
    }
}

fn put(into: &mut Vec<u8>, words: &[&str]) {
    into.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        into.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
}

/// `cmdstat_get:calls=5,usec=7,...` by command.
pub fn command_statistics(info: &str) -> Value {
    let lines = info.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
    lines
        .map(|(command, pairs)| {
            let values: serde_json::Map<String, Value> = pairs
                .split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| {
                    (key.to_owned(), value.trim().parse::<f64>().map_or(Value::Null, Value::from))
                })
                .collect();
            (command.to_owned(), Value::Object(values))
        })
        .collect::<serde_json::Map<String, Value>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_counts_are_read() {
        let info = "# Commandstats\r\ncmdstat_get:calls=5,usec=7,usec_per_call=1.40,failed_calls=0\r\n";
        let statistics = command_statistics(info);
        assert_eq!(statistics["get"]["calls"], 5.0);
        assert_eq!(statistics["get"]["usec_per_call"], 1.4);
        assert_eq!(statistics["set"]["calls"], Value::Null);
    }

    #[test]
    fn a_request_is_an_array_of_counted_strings() {
        let mut request = Vec::new();
        put(&mut request, &["GET", "k1"]);
        assert_eq!(request, b"*2\r\n$3\r\nGET\r\n$2\r\nk1\r\n");
    }
}
