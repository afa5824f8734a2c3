//! A connection with time limits: lines and counted bytes.

use crate::process::ANSWER_LIMIT;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

trait Stream: Read + Write + Send {}
impl Stream for UnixStream {}
impl Stream for TcpStream {}

/// A connection to a server.
pub struct Wire(BufReader<Box<dyn Stream>>);

impl Wire {
    /// To a Unix socket that comes up within the limit for answers.
    ///
    /// # Errors
    ///
    /// If it does not, or `alive` fails meanwhile.
    pub fn to_socket(path: &Path, mut alive: impl FnMut() -> Result<()>) -> Result<Wire> {
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
                    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
                    return Ok(Wire(BufReader::new(Box::new(stream))));
                }
                Err(error) => {
                    alive()?;
                    ensure!(Instant::now() < end, "cannot connect to {}: {error}", path.display());
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// To a port of this machine.
    ///
    /// # Errors
    ///
    /// If nobody listens.
    pub fn to_port(port: u16) -> Result<Wire> {
        let stream = TcpStream::connect(("127.0.0.1", port)).context("cannot connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        Ok(Wire(BufReader::new(Box::new(stream))))
    }

    /// Sends bytes.
    ///
    /// # Errors
    ///
    /// If the server has gone or does not read.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.get_mut().write_all(bytes).context("the server does not listen any more")
    }

    /// A line without its end.
    ///
    /// # Errors
    ///
    /// If the server has gone or does not answer in time.
    pub fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        let n = self.0.read_until(b'\n', &mut line).context("no answer from the server")?;
        ensure!(n > 0, "the server closed the connection");
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// So many bytes.
    ///
    /// # Errors
    ///
    /// As [`Wire::line`].
    pub fn bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).context("no answer from the server")?;
        Ok(bytes)
    }
}
