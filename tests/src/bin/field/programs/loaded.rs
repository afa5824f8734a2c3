//! A program with a client of ours that loads it: what all of these do before, after and at the end of a run.

use crate::load::{Client, Load};
use crate::process::{Process, family_cpu_s};
use crate::program::{Instance, Work};
use anyhow::Result;

/// A client, and the process that it asks.
pub trait Subject: Client {
    /// The process.
    fn process(&mut self) -> &mut Process;

    /// Before a run.
    ///
    /// # Errors
    ///
    /// If it does not answer as it should.
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// After a run of so many steps: its results are checked.
    ///
    /// # Errors
    ///
    /// If they are wrong.
    fn end(&mut self, steps: u64, seconds: f64, cpu_s: f64) -> Result<Work>;

    /// Ends it.
    ///
    /// # Errors
    ///
    /// If it does not end well.
    fn finish(self) -> Result<()>;
}

/// An instance of the program.
pub struct Loaded<S> {
    load: Load<S>,
    /// CPU time before the run.
    cpu_s: f64,
}

impl<S: Subject> Loaded<S> {
    /// Starts the client's thread; the load begins with the run.
    pub fn boxed(subject: S) -> Box<dyn Instance> {
        Box::new(Self { load: Load::new(subject), cpu_s: 0.0 })
    }
}

impl<S: Subject> Instance for Loaded<S> {
    fn begin(&mut self, _: f64) -> Result<u32> {
        let subject = self.load.client()?;
        subject.process().ensure_alive()?;
        subject.begin()?;
        let pid = subject.process().pid();
        self.cpu_s = family_cpu_s(pid);
        self.load.begin()?;
        Ok(pid)
    }

    fn end(&mut self) -> Result<Work> {
        let (steps, seconds) = self.load.end()?;
        let subject = self.load.client()?;
        let cpu_s = family_cpu_s(subject.process().pid()) - self.cpu_s;
        subject.process().ensure_alive()?;
        subject.end(steps, seconds, cpu_s)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.load.finish()?.finish()
    }
}
