//! What is asked of a program whose calls are judged.

use super::truth::Counted;
use crate::place::Place;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// A way to watch a program.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name in `--only PROGRAM:CASE` and in the table.
    pub name: &'static str,
    /// The agent's budget.
    pub budget: &'static str,
    /// What is given to `--latency`.
    pub latency: &'static [&'static str],
    /// Functions that are judged, as [`super::figure::figures`] takes them.
    pub functions: &'static [&'static str],
}

impl Case {
    /// The agent's arguments.
    pub fn arguments(&self) -> Vec<String> {
        let latency = self.latency.iter().flat_map(|name| ["--latency", name]);
        ["--budget", self.budget].into_iter().chain(latency).map(str::to_owned).collect()
    }
}

/// A program that counts and times its own calls.
pub trait Judged {
    /// Its name in the table and in `--only`.
    fn name(&self) -> &'static str;

    /// How it is watched.
    fn cases(&self) -> Vec<Case>;

    /// What is missing, if it cannot run here.
    fn missing(&self, place: &Place) -> Option<String>;

    /// Its version, by its own word.
    ///
    /// # Errors
    ///
    /// If it cannot be asked.
    fn version(&self, place: &Place) -> Result<String>;

    /// Starts it with its load, which goes on until the end.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    fn start(&self, place: &Place, folder: &Path, case: &Case) -> Result<Box<dyn Running>>;
}

/// A started program under load.
pub trait Running: Send {
    /// The process to watch.
    fn pid(&self) -> u32;

    /// What it has counted so far, by function.
    ///
    /// # Errors
    ///
    /// If it does not answer or has died.
    fn read(&mut self) -> Result<BTreeMap<String, Counted>>;

    /// Ends it and checks its results.
    ///
    /// # Errors
    ///
    /// If it ends badly, or its results are wrong.
    fn finish(self: Box<Self>) -> Result<()>;
}
