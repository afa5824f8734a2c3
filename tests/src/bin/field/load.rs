//! A client that asks and checks, step by step, on a thread of its own until it is told to stop.

use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// One that works with a program. No step may take longer than the limit for answers.
pub trait Client: Send + 'static {
    /// Does and checks one step; the first after each begin is 0.
    ///
    /// # Errors
    ///
    /// If the program does not answer, or wrongly.
    fn step(&mut self, step: u64) -> Result<()>;
}

/// A client at rest or at work.
pub struct Load<C> {
    resting: Option<C>,
    working: Option<(Arc<AtomicBool>, JoinHandle<Worked<C>>)>,
}

/// What a thread brings back.
struct Worked<C> {
    client: C,
    steps: u64,
    seconds: f64,
    result: Result<()>,
}

impl<C: Client> Load<C> {
    /// At rest.
    pub fn new(client: C) -> Load<C> {
        Load { resting: Some(client), working: None }
    }

    /// The client, while it rests.
    ///
    /// # Errors
    ///
    /// If it works.
    pub fn client(&mut self) -> Result<&mut C> {
        self.resting.as_mut().context("the client works")
    }

    /// Begins to work.
    ///
    /// # Errors
    ///
    /// If it works already.
    pub fn begin(&mut self) -> Result<()> {
        let mut client = self.resting.take().context("the client works already")?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let mut steps = 0;
            let mut result = Ok(());
            while result.is_ok() && !told.load(Ordering::Relaxed) {
                result = client.step(steps);
                steps += u64::from(result.is_ok());
            }
            Worked { client, steps, seconds: start.elapsed().as_secs_f64(), result }
        });
        self.working = Some((stop, thread));
        Ok(())
    }

    /// Ends the work: steps and the seconds they took.
    ///
    /// # Errors
    ///
    /// That of the step that failed, or if it rested.
    pub fn end(&mut self) -> Result<(u64, f64)> {
        let (stop, thread) = self.working.take().context("the client rests")?;
        stop.store(true, Ordering::Relaxed);
        let worked = thread.join().ok().context("the client panicked")?;
        self.resting = Some(worked.client);
        worked.result?;
        Ok((worked.steps, worked.seconds))
    }

    /// The client, for good.
    ///
    /// # Errors
    ///
    /// If it worked and failed.
    pub fn finish(mut self) -> Result<C> {
        if self.working.is_some() {
            self.end()?;
        }
        self.resting.context("the client is gone")
    }
}

/// A value that follows from a number, for data that can be checked again: splitmix64.
pub fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FailsAt(u64, Arc<AtomicBool>);
    impl Client for FailsAt {
        fn step(&mut self, step: u64) -> Result<()> {
            self.1.store(true, Ordering::Relaxed);
            anyhow::ensure!(step != self.0, "wrong at {step}");
            Ok(())
        }
    }

    #[test]
    fn a_failed_step_ends_the_load_with_its_error() {
        let mut load = Load::new(FailsAt(1000, Arc::default()));
        load.begin().unwrap();
        while !load.working.as_ref().unwrap().1.is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(load.end().unwrap_err().to_string(), "wrong at 1000");
        let has_worked = Arc::new(AtomicBool::new(false));
        let mut load = Load::new(FailsAt(u64::MAX, Arc::clone(&has_worked)));
        load.begin().unwrap();
        while !has_worked.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        assert!(load.end().unwrap().0 > 0);
        assert!(load.finish().is_ok());
    }
}
