//! memcached, built unstripped from Debian's source, under values that are set and read. `item_get` and others are counted and timed by functions that
//! are linked in their place (`tests/field/memcached-item.c`); `process_command_ascii` is counted by the server's own `stats`: one call a command.

use super::clocked::slots;
use super::subject::{Case, Judged, Running};
use super::truth::Counted;
use crate::load::{Client, Load, mixed};
use crate::place::{Place, first_line};
use crate::process::{ANSWER_LIMIT, Process};
use crate::programs::Wire;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Values set and read in a step.
const BATCH: u64 = 16;
/// Keys in use.
const KEYS: u64 = 5_000;

/// Functions that are clocked, in the order of the file of slots.
const CLOCKED: [&str; 4] = ["item_get", "store_item", "complete_nread_ascii", "try_read_command_ascii"];

/// The program.
pub struct Memcached;

fn memcached(place: &Place) -> Command {
    let mut command = Command::new(path(place));
    command.env("LD_LIBRARY_PATH", place.root("memcached", "usr/lib/x86_64-linux-gnu"));
    command
}

fn path(place: &Place) -> PathBuf {
    place.built("memcached-clocked/memcached")
}

impl Judged for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn cases(&self) -> Vec<Case> {
        let functions = &["item_get", "process_command_ascii"];
        vec![Case { name: "5%", budget: "5%", latency: functions, functions }]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[path(place)])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(memcached(place).arg("-V"))
    }

    fn start(&self, place: &Place, folder: &Path, _: &Case) -> Result<Box<dyn Running>> {
        let (socket, slots) = (folder.join("s"), folder.join("slots"));
        let mut command = memcached(place);
        // One worker: nobody else adds to the slots.
        command.args(["-u", "root", "-t", "1", "-m", "64", "-s"]).arg(&socket).env("CLOCKED", &slots);
        let mut server = Process::start(&mut command, folder)?;
        let asking = Wire::to_socket(&socket, || server.ensure_alive())?;
        let mut load = Load::new(Values(Wire::to_socket(&socket, || server.ensure_alive())?));
        load.begin()?;
        Ok(Box::new(Loaded { server, asking, asked: 0.0, load, slots }))
    }
}

/// Sets values and reads them back.
struct Values(Wire);

impl Client for Values {
    fn step(&mut self, step: u64) -> Result<()> {
        let pairs: BTreeMap<u64, String> = (0..BATCH)
            .map(|index| mixed(step * BATCH + index) % KEYS)
            .map(|key| (key, format!("{:016x}", mixed(key ^ step)).repeat(1 + key as usize % 32)))
            .collect();
        let set = |(key, value): (&u64, &String)| format!("set k{key} 0 0 {}\r\n{value}\r\n", value.len());
        self.0.send(pairs.iter().map(set).collect::<String>().as_bytes())?;
        for key in pairs.keys() {
            let answer = self.0.line()?;
            ensure!(answer == "STORED", "set of k{key} was answered {answer}");
        }
        self.0.send(pairs.keys().map(|key| format!("get k{key}\r\n")).collect::<String>().as_bytes())?;
        for (key, value) in &pairs {
            let (head, data, end) = (self.0.line()?, self.0.line()?, self.0.line()?);
            let expected = format!("VALUE k{key} 0 {}", value.len());
            ensure!(head == expected && data == *value && end == "END", "get of k{key}: {head} {data} {end}");
        }
        Ok(())
    }
}

struct Loaded {
    server: Process,
    asking: Wire,
    /// Commands of `asking`.
    asked: f64,
    load: Load<Values>,
    slots: PathBuf,
}

impl Loaded {
    /// The server's counters of sets, reads and hits.
    fn statistics(&mut self) -> Result<[f64; 3]> {
        self.asked += 1.0;
        self.asking.send(b"stats\r\n")?;
        let mut found = [None; 3];
        loop {
            let line = self.asking.line()?;
            if line == "END" {
                break;
            }
            for (name, value) in ["cmd_set", "cmd_get", "get_hits"].iter().zip(&mut found) {
                if let Some(number) = line.strip_prefix(&format!("STAT {name} ")) {
                    *value = Some(number.parse::<f64>()?);
                }
            }
        }
        match found {
            [Some(set), Some(get), Some(hits)] => Ok([set, get, hits]),
            _ => anyhow::bail!("stats lacks counters: {found:?}"),
        }
    }
}

impl Running for Loaded {
    fn pid(&self) -> u32 {
        self.server.pid()
    }

    fn read(&mut self) -> Result<BTreeMap<String, Counted>> {
        self.server.ensure_alive()?;
        let [set, get, _] = self.statistics()?;
        let mut counted = slots(&self.slots, &CLOCKED)?;
        let own = [("process_command_ascii", set + get + self.asked), ("cmd_set", set), ("cmd_get", get)];
        counted.extend(own.map(|(name, calls)| (name.to_owned(), Counted { calls, total_ns: None })));
        Ok(counted)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.load.end().context("the client")?;
        let [set, get, hits] = self.statistics()?;
        let clocked = slots(&self.slots, &CLOCKED)?["item_get"].calls;
        ensure!(set == get && get == hits, "{set} values were set, {get} read, {hits} found");
        ensure!(clocked >= get, "{get} values were read, and item_get was called {clocked} times");
        drop(self.asking);
        drop(self.load);
        self.server.signal(libc::SIGTERM);
        self.server.wait_success(ANSWER_LIMIT)
    }
}
