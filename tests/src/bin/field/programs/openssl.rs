//! OpenSSL's `speed`: signs and verifies, hashes and encrypts, each for a second. It fails where a signature that it
//! made does not verify.

use crate::place::{Place, first_line};
use crate::process::{ANSWER_LIMIT, Process};
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// What is run, for a second each (signatures: two), each once: 26 s.
const ALGORITHMS: &str = "md5 sha1 sha256 sha512 rsa2048 rsa3072 rsa4096 dsa2048 ecdsap256 ecdsap384 ecdsap521 ecdhp256 \
                          ecdhp384 ecdhp521 ecdhx25519 ed25519 ed448";

/// It may be watched for so long where each measurement takes a second: all 26 of them take some 26 s, and the agent takes some seconds more to begin and to report (in runs of 60 s 78 s were too few).
const WATCHED_S: f64 = 15.0;

/// The program.
pub struct Speed;

impl Program for Speed {
    fn name(&self) -> &'static str {
        "openssl"
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::plain_and([
            // Digests come first, and signatures not within every slice.
            Mode::named("latency", &["--latency", "libcrypto.so*:EVP_Digest*", "--latency", "RSA_sign"]),
            Mode::named("operation", &["--operation", "bn=libcrypto.so*:BN_mod_exp_mont*"]),
        ])
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[place.root("openssl", "usr/bin/openssl")])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(place.command("openssl", "usr/bin/openssl").arg("version"))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>> {
        let command = || place.command("openssl", "usr/bin/openssl");
        Ok(Box::new(Speeds { command: command(), folder: folder.to_owned(), process: None }))
    }
}

struct Speeds {
    /// The program and its environment; arguments are added for each run.
    command: Command,
    folder: std::path::PathBuf,
    process: Option<Process>,
}

impl Instance for Speeds {
    fn begin(&mut self, seconds: f64) -> Result<u32> {
        // All measurements together must last longer than it is watched.
        let each = (seconds / WATCHED_S).ceil().max(1.0);
        let mut command = Command::new(self.command.get_program());
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["speed", "-mr", "-seconds", &each.to_string(), "-bytes", "4096"]);
        command.args(ALGORITHMS.split_whitespace());
        let _ = std::fs::remove_file(self.folder.join("log"));
        let process = self.process.insert(Process::start(&mut command, &self.folder)?);
        Ok(process.pid())
    }

    fn end(&mut self) -> Result<Work> {
        let mut process = self.process.take().context("speed was not started")?;
        process.ensure_alive()?;
        let end = Instant::now() + ANSWER_LIMIT;
        // SIGALRM is its own clock's word that a second is over: each measurement then ends at once.
        while process.ensure_alive().is_ok() && Instant::now() < end {
            process.signal(libc::SIGALRM);
            std::thread::sleep(Duration::from_millis(5));
        }
        process.wait_success(Duration::from_secs(1))?;
        let log = process.log();
        let failed = log.lines().find(|line| {
            let line = line.to_lowercase();
            line.contains("fail") || line.contains("error")
        });
        ensure!(failed.is_none(), "speed said {failed:?}");
        let rates = rates(&log);
        ensure!(log.contains("+R"), "speed printed no figure: {log}");
        // By the time of its own CPU clock.
        Ok(Work { cpu_rates: rates, ..Work::default() })
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Runs by second: `+R1:1234:2048:1.00` is 1234 in 1.00 s, `+R:5:sha256:1.0` likewise.
fn rates(log: &str) -> std::collections::BTreeMap<String, f64> {
    log.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.strip_prefix("+R")?.split(':').collect();
            let [kind, count, what, seconds] = fields[..] else { return None };
            // Its clock has steps of 10 ms: one that was cut short says nothing.
            let rate = count.parse::<f64>().ok()? / seconds.parse::<f64>().ok().filter(|&s| s >= 0.1)?;
            Some((format!("R{kind} {what}"), rate))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_from_the_machine_readable_lines() {
        let log = "+DTP:2048:private:rsa:1\n+R1:1000:2048:2.00\n+R:300:sha256:1.00\n+R:3:sha512:0.00\n+F2:2:2048:0.1:0.2\n";
        let rates = rates(log);
        assert_eq!(rates.len(), 2);
        assert_eq!((rates["R1 2048"], rates["R sha256"]), (500.0, 300.0));
    }
}
