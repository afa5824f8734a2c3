//! What a simulated run did: its commands as a number, its ledger's rows, and what was wrong.

use profiler_core::class::ClassId;
use profiler_core::engine::Command;
use profiler_core::recording::{Charge, LedgerRow, WindowKind};
use std::collections::BTreeMap;

/// More faults of one run say no more.
const MOST_FAULTS: usize = 12;

/// What happened.
#[derive(Debug, Clone)]
pub struct Log {
    hash: u64,
    faults: Vec<String>,
    rows: BTreeMap<Charge, (u64, u64)>,
    /// Commands for classes that are not as the command takes for granted, by what they are.
    pub idle: BTreeMap<&'static str, u64>,
    /// Commands of all kinds.
    pub commands: u64,
    /// Plans that were made, windows that were opened, and trips.
    pub plans: u64,
    /// Windows that were opened.
    pub windows: u64,
    /// Windows that the breaker ended.
    pub trips: u64,
    /// Comparisons with everything detached have ended with a result.
    pub measured: bool,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            hash: 0xCBF2_9CE4_8422_2325,
            faults: Vec::new(),
            rows: BTreeMap::new(),
            idle: BTreeMap::new(),
            commands: 0,
            plans: 0,
            windows: 0,
            trips: 0,
            measured: false,
        }
    }
}

impl Log {
    /// A number made from all commands and their times.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// What was wrong.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Something is wrong.
    pub fn fault(&mut self, now_s: f64, what: impl FnOnce() -> String) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(format!("{now_s:.3} s: {}", what()));
        }
    }

    /// A command for a class that is not as the command takes for granted.
    pub fn idle(&mut self, what: &'static str) {
        *self.idle.entry(what).or_default() += 1;
    }

    fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x0100_0000_01B3).rotate_left(23);
    }

    /// Takes note of a command.
    pub fn note(&mut self, now_ns: u64, command: &Command) {
        self.commands += 1;
        self.mix(now_ns);
        let class = |id: &ClassId| u64::from(id.0) + 1;
        match command {
            Command::Attach(attach) => {
                self.mix(attach.number << 8 | kind(attach.kind));
                for (id, quota, _) in &attach.wanted {
                    self.mix(class(id));
                    self.mix(*quota);
                }
            }
            Command::Close(id, ending) => self.mix((class(id) << 8) | (16 + *ending as u64)),
            Command::CloseAll(ending) => self.mix(32 + *ending as u64),
            Command::Quota(id, hits) => {
                self.mix(class(id) << 8 | 3);
                self.mix(*hits);
            }
            Command::Period(ns) => self.mix(ns << 8 | 4),
            Command::Planned(number, ..) => {
                self.plans += 1;
                self.mix(u64::from(*number) << 8 | 5);
            }
            Command::Ledger(rows) => self.mix((rows.len() as u64) << 8 | 6),
            Command::Measured(result) => self.measured |= result.is_some(),
            other => format!("{other:?}").bytes().for_each(|byte| self.mix(u64::from(byte))),
        }
    }

    /// Adds up rows of the ledger.
    pub fn add_rows(&mut self, rows: &[LedgerRow]) {
        for row in rows {
            let (units, cost_ns) = self.rows.entry(row.charge).or_default();
            *units += row.units;
            *cost_ns += row.cost_ns;
        }
    }

    /// Units and ns of all rows of one kind.
    #[must_use]
    pub fn charged(&self, charge: Charge) -> (u64, u64) {
        self.rows.get(&charge).copied().unwrap_or_default()
    }
}

fn kind(kind: WindowKind) -> u64 {
    match kind {
        WindowKind::Survey => 1,
        WindowKind::Trace => 2,
        WindowKind::Burst => 3,
    }
}
