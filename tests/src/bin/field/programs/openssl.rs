//! OpenSSL's `speed`: signs and verifies, hashes and encrypts, each for a second. It fails where a signature that it
//! made does not verify.

use crate::place::{Place, first_line};
use crate::process::Process;
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What is run, in this order, and for how many seconds each as one takes.
const ALGORITHMS: [(&str, u64); 8] = [
    ("rsa2048", 2),
    ("ecdsap256", 2),
    ("sha256", 1),
    ("ecdhp256", 1),
    ("rsa3072", 2),
    ("ed25519", 2),
    ("sha512", 1),
    ("ecdsap384", 2),
];

/// The program.
pub struct Speed;

impl Program for Speed {
    fn name(&self) -> &'static str {
        "openssl"
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::plain_and([
            Mode::named(
                "latency",
                &["--latency", "libcrypto.so*:EVP_DigestVerify*", "--latency", "RSA_sign"],
            ),
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
        Ok(Box::new(Speeds { command: command(), folder: folder.to_owned(), process: None, seconds: 0 }))
    }
}

struct Speeds {
    /// The program and its environment; arguments are added for each run.
    command: Command,
    folder: std::path::PathBuf,
    process: Option<Process>,
    /// What the run takes by itself.
    seconds: u64,
}

impl Instance for Speeds {
    fn begin(&mut self, seconds: f64) -> Result<u32> {
        // The agent takes its time before and after.
        let wanted = seconds.ceil() as u64 + 2;
        self.seconds = 0;
        let mut command = Command::new(self.command.get_program());
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["speed", "-mr", "-seconds", "1", "-bytes", "4096"]);
        for (algorithm, takes) in ALGORITHMS.iter().cycle() {
            if self.seconds >= wanted {
                break;
            }
            command.arg(algorithm);
            self.seconds += takes;
        }
        let _ = std::fs::remove_file(self.folder.join("log"));
        let process = self.process.insert(Process::start(&mut command, &self.folder)?);
        Ok(process.pid())
    }

    fn end(&mut self) -> Result<Work> {
        let mut process = self.process.take().context("speed was not started")?;
        process.wait_success(Duration::from_secs(20 + 2 * self.seconds))?;
        let log = process.log();
        let failed = log.lines().find(|line| {
            let line = line.to_lowercase();
            line.contains("fail") || line.contains("error")
        });
        ensure!(failed.is_none(), "speed said {failed:?}");
        let rates = rates(&log);
        ensure!(!rates.is_empty(), "speed printed no figure: {log}");
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
            let rate = count.parse::<f64>().ok()? / seconds.parse::<f64>().ok().filter(|&s| s > 0.0)?;
            Some((format!("R{kind} {what}"), rate))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_from_the_machine_readable_lines() {
        let log = "+DTP:2048:private:rsa:1\n+R1:1000:2048:2.00\n+R:300:sha256:1.00\n+F2:2:2048:0.1:0.2\n";
        let rates = rates(log);
        assert_eq!(rates.len(), 2);
        assert_eq!((rates["R1 2048"], rates["R sha256"]), (500.0, 300.0));
    }
}
