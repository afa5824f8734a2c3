//! Debian's redis under `redis-benchmark -t set`. Its own word: `INFO commandstats`. What it calls the time of a command is that of the
//! command's function (`call` reads the clock around it), one reading of the clock included.

use super::subject::{Case, Judged, Running};
use super::truth::Counted;
use crate::place::{Place, first_line};
use crate::process::{ANSWER_LIMIT, Process};
use crate::programs::Wire;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// Its set of packages.
const SET: &str = "debian-redis";
/// Connections of the load.
const CLIENTS: &str = "10";
/// Keys in use.
const KEYS: u64 = 10_000;

/// The program.
pub struct Redis;

impl Judged for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn cases(&self) -> Vec<Case> {
        let named = Case {
            name: "5%",
            budget: "5%",
            latency: &["call", "setCommand"],
            functions: &["setCommand", "call"],
        };
        vec![
            named.clone(),
            Case { name: "20%", budget: "20%", ..named },
            Case {
                name: "processCommand",
                latency: &["processCommand", "addReply*"],
                functions: &["processCommand", "addReply*"],
                ..named
            },
        ]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        let file = |name| place.root(SET, name);
        Place::missing(&[file("usr/bin/redis-check-rdb"), file("usr/bin/redis-benchmark")])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(place.command(SET, "usr/bin/redis-server").arg("--version"))
    }

    fn start(&self, place: &Place, folder: &Path, _: &Case) -> Result<Box<dyn Running>> {
        let socket = folder.join("s");
        let mut command = place.command(SET, "usr/bin/redis-server");
        command.args(["--port", "0", "--unixsocket"]).arg(&socket);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        let mut server = Process::start(&mut command, folder)?;
        let wire = Wire::to_socket(&socket, || server.ensure_alive())?;
        let mut command = place.command(SET, "usr/bin/redis-benchmark");
        command.args(["-t", "set", "-c", CLIENTS, "-q", "-n", "1000000000", "-s"]).arg(&socket);
        command.args(["-r", &KEYS.to_string()]);
        let load_folder = folder.join("load");
        std::fs::create_dir(&load_folder)?;
        let load = Process::start(&mut command, &load_folder)?;
        Ok(Box::new(Loaded { server, wire, load }))
    }
}

struct Loaded {
    server: Process,
    wire: Wire,
    load: Process,
}

impl Loaded {
    /// The text that a request is answered with.
    fn ask(&mut self, request: &str) -> Result<String> {
        self.wire.send(format!("{request}\r\n").as_bytes())?;
        let head = self.wire.line()?;
        let Some(length) = head.strip_prefix('$') else { return Ok(head) };
        let length: usize = length.parse().with_context(|| format!("{request} was answered {head}"))?;
        let mut bytes = self.wire.bytes(length + 2)?;
        bytes.truncate(length);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// A value of `cmdstat_set:calls=5,usec=7,...`.
fn value(line: &str, key: &str) -> Option<f64> {
    let pairs = line.split_once(':')?.1.trim().split(',');
    pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == key)?.1.parse().ok()
}

/// What `INFO commandstats` says of functions: each command is one call of `processCommand` and of `call`, each SET one of `setCommand`.
fn counted(info: &str) -> Option<BTreeMap<String, Counted>> {
    let mut all = 0.0;
    let mut set = Counted { calls: 0.0, total_ns: Some(0.0) };
    for line in info.lines().filter(|line| line.starts_with("cmdstat_")) {
        let calls = value(line, "calls")?;
        all += calls;
        if line.starts_with("cmdstat_set:") {
            set = Counted { calls, total_ns: Some(value(line, "usec")? * 1000.0) };
        }
    }
    let each = Counted { calls: all, total_ns: None };
    let names = [("setCommand", set), ("call", each), ("processCommand", each)];
    Some(names.into_iter().map(|(name, counted)| (name.to_owned(), counted)).collect())
}

impl Running for Loaded {
    fn pid(&self) -> u32 {
        self.server.pid()
    }

    fn read(&mut self) -> Result<BTreeMap<String, Counted>> {
        self.load.ensure_alive()?;
        let info = self.ask("INFO commandstats")?;
        counted(&info).with_context(|| format!("no statistics of commands: {info}"))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.server.ensure_alive()?;
        self.load.ensure_alive()?;
        let info = self.ask("INFO commandstats")?;
        for line in info.lines().filter(|line| line.starts_with("cmdstat_")) {
            let bad = |key| value(line, key).context("no such value").map(|count| count > 0.0);
            ensure!(!bad("failed_calls")? && !bad("rejected_calls")?, "{line}");
        }
        // redis-benchmark gives all keys the same value.
        let keys = self.ask("DBSIZE")?;
        ensure!(keys == format!(":{KEYS}"), "there are {keys} keys");
        let mut values = Vec::new();
        for key in 0..KEYS {
            values.push(self.ask(&format!("GET key:{key:012}"))?);
        }
        values.dedup();
        ensure!(values.len() == 1 && values[0].len() == 3, "the keys have {} values", values.len());
        drop(self.load);
        drop(self.wire);
        self.server.signal(libc::SIGTERM);
        self.server.wait_success(ANSWER_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_word_is_read_by_function() {
        let info = "# Commandstats\r\ncmdstat_set:calls=8,usec=4,usec_per_call=0.50,rejected_calls=0,failed_calls=0\r\n\
                    cmdstat_info:calls=2,usec=90,usec_per_call=45.00,rejected_calls=0,failed_calls=0\r\n";
        let counted = counted(info).unwrap();
        assert_eq!(counted["setCommand"], Counted { calls: 8.0, total_ns: Some(4000.0) });
        assert_eq!(counted["call"], Counted { calls: 10.0, total_ns: None });
        assert_eq!(counted["processCommand"].calls, 10.0);
        assert_eq!(value("cmdstat_set:calls=8,failed_calls=0", "failed_calls"), Some(0.0));
        assert_eq!(value("cmdstat_set:calls=8", "failed_calls"), None);
    }
}
