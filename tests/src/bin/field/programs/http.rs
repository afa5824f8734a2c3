//! Two servers of HTTP, one in Go and one in Java (`tests/field`). They add up hashes of a text; the client knows the sums.

use super::wire::Wire;
use crate::load::{Client, Load, mixed};
use crate::place::{Place, first_line};
use crate::process::{Talker, family_cpu_s};
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Clients of a server, each with a connection of its own.
const CLIENTS: usize = 2;

/// A server that prints `ready PORT`.
pub struct Server {
    name: &'static str,
    modes: fn() -> Vec<Mode>,
    files: fn(&Place) -> Vec<PathBuf>,
    command: fn(&Place) -> Command,
    version: fn(&Place) -> Command,
}

fn java(place: &Place) -> Command {
    let mut command = Command::new(place.root("java", "usr/lib/jvm/java-17-openjdk-amd64/bin/java"));
    command.env_remove("JAVA_TOOL_OPTIONS");
    command
}

impl Server {
    /// net/http.
    pub fn go() -> Server {
        Server {
            name: "go",
            modes: || {
                Mode::plain_and([
                    Mode::named("latency", &["--latency", "main.digest"]),
                    Mode::named("operation", &["--operation", "req=syscall:read..syscall:write"]),
                ])
            },
            files: |place| vec![place.built("own/server-go")],
            command: |place| Command::new(place.built("own/server-go")),
            version: |place| {
                let mut command = Command::new(place.root("go", "usr/lib/go-1.19/bin/go"));
                command.arg("version").env("GOROOT", place.root("go", "usr/lib/go-1.19"));
                command.env("GOFLAGS", "").env("HOME", &place.base);
                command
            },
        }
    }

    /// com.sun.net.httpserver.
    pub fn java() -> Server {
        Server {
            name: "java",
            modes: || {
                Mode::plain_and([
                    Mode::named("latency", &["--latency", "libnio.so:Java_sun_nio_ch_*"]),
                    Mode::named("operation", &["--operation", "read=syscall:read"]),
                ])
            },
            files: |place| vec![java(place).get_program().into(), place.built("own/Server.class")],
            command: |place| {
                let mut command = java(place);
                command.args(["-Xmx256m", "-cp"]).arg(place.built("own")).arg("Server");
                command
            },
            version: |place| {
                let mut command = java(place);
                command.arg("--version");
                command
            },
        }
    }
}

impl Program for Server {
    fn name(&self) -> &str {
        self.name
    }

    fn modes(&self) -> Vec<Mode> {
        (self.modes)()
    }

    fn may_be_unseen(&self, mode: &str) -> Option<&'static str> {
        let plain = self.name == "java" && mode.ends_with('%');
        plain.then_some("what the JVM compiles has no symbols")
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&(self.files)(place))
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(&mut (self.version)(place))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>> {
        let mut server = Talker::start(&mut (self.command)(place), folder)?;
        let line = server.line()?;
        let port = line.strip_prefix("ready ").and_then(|port| port.parse().ok());
        let port: u16 = port.with_context(|| format!("the server said \"{line}\""))?;
        let clients = (0..CLIENTS).map(|_| Ok(Load::new(Requests { wire: Wire::to_port(port)? })));
        let clients = clients.collect::<Result<_>>()?;
        Ok(Box::new(Serving { server, clients, before: (0.0, Instant::now()) }))
    }
}

struct Serving {
    server: Talker,
    clients: Vec<Load<Requests>>,
    /// CPU time before the run, and when it began.
    before: (f64, Instant),
}

struct Requests {
    wire: Wire,
}

/// What the servers answer: FNV-1a over the decimal numbers below `n`, 64 bits.
fn digest(n: u64) -> u64 {
    (0..n).fold(FNV_BASIS, |hash, number| fnv(hash, number.to_string().as_bytes()))
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Client for Requests {
    fn step(&mut self, step: u64) -> Result<()> {
        let n = 100 + mixed(step) % 400;
        self.wire.send(format!("GET /digest?n={n} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let status = self.wire.line()?;
        ensure!(status.starts_with("HTTP/1.1 200"), "the server answered {status}");
        let mut length = None;
        loop {
            let header = self.wire.line()?;
            if header.is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse::<usize>().ok();
            }
        }
        let body = self.wire.bytes(length.context("an answer without its length")?)?;
        let expected = format!("{:016x}", digest(n));
        ensure!(
            body == expected.as_bytes(),
            "digest of {n} is {}, not {expected}",
            String::from_utf8_lossy(&body)
        );
        Ok(())
    }
}

impl Instance for Serving {
    fn begin(&mut self, _: f64) -> Result<u32> {
        self.server.process().ensure_alive()?;
        self.before = (family_cpu_s(self.server.process().pid()), Instant::now());
        for client in &mut self.clients {
            client.begin()?;
        }
        Ok(self.server.process().pid())
    }

    fn end(&mut self) -> Result<Work> {
        // All of them, so that each rests also after another's error.
        let ended: Vec<Result<(u64, f64)>> = self.clients.iter_mut().map(Load::end).collect();
        self.server.process().ensure_alive()?;
        let cpu_s = family_cpu_s(self.server.process().pid()) - self.before.0;
        let seconds = self.before.1.elapsed().as_secs_f64();
        let mut requests = 0;
        for ended in ended {
            requests += ended?.0;
        }
        Ok(Work::of("requests", requests as f64, seconds, cpu_s))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        for client in self.clients {
            client.finish()?;
        }
        // Both servers end with their standard input.
        self.server.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_fnv_1a() {
        // The algorithm's published vectors.
        assert_eq!(fnv(FNV_BASIS, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(FNV_BASIS, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(digest(11), fnv(FNV_BASIS, b"012345678910"));
    }
}
