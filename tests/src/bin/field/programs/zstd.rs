//! zstd: compresses a stream for as long as the run lasts. What it wrote must decompress to what it was given.

use crate::load::mixed;
use crate::place::{Place, first_line, text_of};
use crate::process::{ANSWER_LIMIT, die_with_us, family_cpu_s, tail};
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// Bytes of a block of input.
const BLOCK: usize = 1 << 17;

/// The program.
pub struct Zstd;

fn path(place: &Place) -> PathBuf {
    place.built("libzstd/programs/zstd")
}

impl Program for Zstd {
    fn name(&self) -> &'static str {
        "zstd"
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::plain_and([
            Mode::named("latency", &["--latency", "ZSTD_compressBlock*", "--latency", "HUF_compress*"]),
            Mode::named(
                "operation",
                &["--operation", "stream=ZSTD_compressStream2", "--detail", "ZSTD_build*"],
            ),
        ])
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[path(place)])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(Command::new(path(place)).arg("--version"))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>> {
        Ok(Box::new(Stream { zstd: path(place), folder: folder.to_owned(), work: None }))
    }
}

struct Stream {
    zstd: PathBuf,
    folder: PathBuf,
    work: Option<Compressing>,
}

/// What was written until the end, and what that took.
struct Fed {
    blocks: u64,
    seconds: f64,
    cpu_s: f64,
    result: std::io::Result<()>,
}

/// Killed and reaped on drop.
struct Compressing {
    child: Child,
    stop: Arc<AtomicBool>,
    feeder: Option<JoinHandle<Fed>>,
}

impl Drop for Compressing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Both fail only if it has ended and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Block `number` of the input: words of a small vocabulary, and some noise.
fn block(number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK + 16);
    let mut state = mixed(number);
    while bytes.len() < BLOCK {
        state = mixed(state);
        // The square prefers small words, as languages do.
        let word = (state % 64) * (state >> 8) % 64;
        bytes.extend(format!("{:x} ", mixed(word) >> (word % 48)).bytes());
        if state.is_multiple_of(11) {
            bytes.extend(state.to_le_bytes());
        }
    }
    bytes.truncate(BLOCK);
    bytes
}

impl Instance for Stream {
    fn begin(&mut self, _: f64) -> Result<u32> {
        let output = File::create(self.folder.join("out.zst"))?;
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        let mut command = Command::new(&self.zstd);
        die_with_us(&mut command, libc::SIGKILL);
        let mut child = command
            .args(["-q", "-6", "--check", "-c"])
            .current_dir(&self.folder)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(log)
            .spawn()
            .context("cannot start zstd")?;
        let pid = child.id();
        let mut input = child.stdin.take().context("stdin was piped")?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        // A vocabulary of blocks: making them anew would cost more than compressing.
        let blocks: Vec<Vec<u8>> = (0..64).map(block).collect();
        let feeder = std::thread::spawn(move || {
            let start = Instant::now();
            let mut n = 0;
            let mut result = Ok(());
            while result.is_ok() && !told.load(Ordering::Relaxed) {
                result = input.write_all(&blocks[order(n)]);
                n += u64::from(result.is_ok());
            }
            // Before its input is closed, for then it ends.
            Fed { blocks: n, seconds: start.elapsed().as_secs_f64(), cpu_s: family_cpu_s(pid), result }
        });
        self.work = Some(Compressing { child, stop, feeder: Some(feeder) });
        Ok(pid)
    }

    fn end(&mut self) -> Result<Work> {
        let mut work = self.work.take().context("zstd was not started")?;
        work.stop.store(true, Ordering::Relaxed);
        let end = Instant::now() + ANSWER_LIMIT;
        let status = loop {
            if let Some(status) = work.child.try_wait()? {
                break status;
            }
            // On drop it is killed, and with it the pipe that the feeder may wait for.
            ensure!(Instant::now() < end, "zstd did not end within {ANSWER_LIMIT:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let log = text_of(&self.folder.join("log"));
        ensure!(status.success(), "zstd ended with {status}: {}", tail(&log));
        let feeder = work.feeder.take().context("there was a feeder")?;
        let fed = feeder.join().ok().context("the feeder panicked")?;
        fed.result.context("zstd did not read any more")?;
        self.compare(fed.blocks)?;
        Ok(Work::of("MB", fed.blocks as f64 * BLOCK as f64 / 1e6, fed.seconds, fed.cpu_s))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The blocks come in another order each time around, so that no window holds the whole input.
fn order(n: u64) -> usize {
    (mixed(n) % 64) as usize
}

impl Stream {
    /// Decompresses what was written, and compares.
    fn compare(&self, blocks: u64) -> Result<()> {
        let file = self.folder.join("out.zst");
        let mut child =
            Command::new(&self.zstd).args(["-q", "-dc"]).arg(&file).stdout(Stdio::piped()).spawn()?;
        let mut output = child.stdout.take().context("stdout was piped")?;
        let expected: Vec<Vec<u8>> = (0..64).map(block).collect();
        let mut got = vec![0; BLOCK];
        let mut result = Ok(());
        for n in 0..blocks {
            if output.read_exact(&mut got).is_err() || got != expected[order(n)] {
                result = Err(anyhow::anyhow!("block {n} of {blocks} is not what it was before compression"));
                break;
            }
        }
        let rest = if result.is_ok() { output.read(&mut got)? } else { 0 };
        drop(output);
        let status = child.wait()?;
        result?;
        ensure!(rest == 0, "there is more than the {blocks} blocks that were written");
        ensure!(status.success(), "decompression ended with {status}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_same_each_time_and_differ() {
        assert_eq!(block(3), block(3));
        assert_ne!(block(3), block(4));
        assert_eq!(block(5).len(), BLOCK);
    }
}
