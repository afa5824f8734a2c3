//! memcached: values set and read back over its text protocol. Each value is checked, and the server's own counts of
//! sets and hits must be those of the client.

use super::loaded::{Loaded, Subject};
use super::wire::Wire;
use crate::load::{Client, mixed};
use crate::place::{Place, first_line};
use crate::process::{ANSWER_LIMIT, Process};
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Values set and read in a step.
const BATCH: u64 = 16;
/// Keys in use.
const KEYS: u64 = 5_000;

/// The program.
pub struct Memcached;

fn memcached(place: &Place) -> Command {
    let mut command = Command::new(place.built("memcached/memcached"));
    command.env("LD_LIBRARY_PATH", place.root("memcached", "usr/lib/x86_64-linux-gnu"));
    command
}

impl Program for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::plain_and([
            Mode::named("latency", &["--latency", "process_command_ascii", "--latency", "item_get"]),
            Mode::named("operation", &["--operation", "cmd=process_command_ascii", "--detail", "do_item_*"]),
        ])
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[place.built("memcached/memcached")])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(memcached(place).arg("-V"))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>> {
        let mut command = memcached(place);
        command.args(["-u", "root", "-t", "2", "-m", "64", "-s"]).arg(folder.join("s"));
        let mut server = Process::start(&mut command, folder)?;
        let wire = Wire::to_socket(&folder.join("s"), || server.ensure_alive())?;
        Ok(Loaded::boxed(Values { server, wire }))
    }
}

struct Values {
    server: Process,
    wire: Wire,
}

impl Values {
    fn ask(&mut self, request: &str) -> Result<String> {
        self.wire.send(request.as_bytes())?;
        self.wire.line()
    }

    /// The server's counters.
    fn statistics(&mut self) -> Result<serde_json::Map<String, Value>> {
        let mut values = serde_json::Map::new();
        let mut line = self.ask("stats\r\n")?;
        while line != "END" {
            let mut words = line.split(' ').skip(1);
            let (name, value) = (words.next().context("no name")?, words.next().context("no value")?);
            values.insert(name.to_owned(), value.parse::<f64>().map_or_else(|_| value.into(), Value::from));
            line = self.wire.line()?;
        }
        Ok(values)
    }
}

impl Client for Values {
    fn step(&mut self, step: u64) -> Result<()> {
        let pairs: Vec<(u64, String)> = (0..BATCH)
            .map(|index| mixed(step * BATCH + index) % KEYS)
            .map(|key| (key, format!("{:016x}", mixed(key ^ step)).repeat(1 + key as usize % 32)))
            .collect();
        let sets: String = pairs
            .iter()
            .map(|(key, value)| format!("set k{key} 0 0 {}\r\n{value}\r\n", value.len()))
            .collect();
        let gets: String = pairs.iter().map(|(key, _)| format!("get k{key}\r\n")).collect();
        self.wire.send(sets.as_bytes())?;
        for (key, _) in &pairs {
            let answer = self.wire.line()?;
            ensure!(answer == "STORED", "set of k{key} was answered {answer}");
        }
        self.wire.send(gets.as_bytes())?;
        for (key, _) in &pairs {
            // The last one set: a key may come twice.
            let value = &pairs.iter().rfind(|(other, _)| other == key).context("the key is there")?.1;
            let head = self.wire.line()?;
            ensure!(head == format!("VALUE k{key} 0 {}", value.len()), "get of k{key} was answered {head}");
            let data = self.wire.line()?;
            ensure!(data == *value, "k{key} is {data} and not {value}");
            let end = self.wire.line()?;
            ensure!(end == "END", "get of k{key} ended with {end}");
        }
        Ok(())
    }
}

impl Subject for Values {
    fn process(&mut self) -> &mut Process {
        &mut self.server
    }

    fn begin(&mut self) -> Result<()> {
        let answer = self.ask("stats reset\r\n")?;
        ensure!(answer == "RESET", "stats reset was answered {answer}");
        Ok(())
    }

    fn end(&mut self, steps: u64, seconds: f64, cpu_s: f64) -> Result<Work> {
        let statistics = self.statistics()?;
        for counter in ["cmd_set", "cmd_get", "get_hits"] {
            let counted = statistics.get(counter).and_then(Value::as_f64);
            ensure!(
                counted == Some((steps * BATCH) as f64),
                "{} values were set and read, and {counter} is {counted:?}",
                steps * BATCH
            );
        }
        let work = Work::of("commands", (steps * BATCH * 2) as f64, seconds, cpu_s);
        Ok(Work { statistics: Value::Object(statistics), ..work })
    }

    fn finish(mut self) -> Result<()> {
        drop(self.wire);
        self.server.signal(libc::SIGTERM);
        self.server.wait_success(ANSWER_LIMIT)
    }
}
