//! SQLite's shell: SQL by its standard input. Each batch ends with sums that the client can reckon, and the file's
//! integrity is checked at the end.

use super::loaded::{Loaded, Subject};
use crate::load::{Client, mixed};
use crate::place::{Place, first_line};
use crate::process::{Process, Talker};
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Result, ensure};
use std::path::Path;

/// Rows of a batch.
const ROWS: u64 = 200;

/// The program.
pub struct Shell;

impl Program for Shell {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::plain_and([
            Mode::named("latency", &["--latency", "sqlite3_step"]),
            Mode::named("operation", &["--operation", "stmt=sqlite3_step", "--detail", "sqlite3_column_*"]),
        ])
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[place.root("sqlite", "usr/bin/sqlite3")])
    }

    fn version(&self, place: &Place) -> Result<String> {
        Ok(format!("SQLite {}", first_line(place.command("sqlite", "usr/bin/sqlite3").arg("--version"))?))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>> {
        let mut command = place.command("sqlite", "usr/bin/sqlite3");
        let talker = Talker::start(command.args(["-batch", "-bail", "data.db"]), folder)?;
        let mut client = Sql { talker, rows: 0, sum: 0 };
        client.talker.send(
            "PRAGMA synchronous=off;\n\
             CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);\nCREATE INDEX i ON t(k);\n",
        )?;
        Ok(Loaded::boxed(client))
    }
}

struct Sql {
    talker: Talker,
    /// What the table holds.
    rows: u64,
    sum: u64,
}

impl Sql {
    fn ask(&mut self, sql: &str, expected: &str) -> Result<()> {
        self.talker.send(sql)?;
        let answer = self.talker.line()?;
        ensure!(answer == expected, "the shell answered {answer} and not {expected} to {}", sql.trim_end());
        Ok(())
    }
}

impl Client for Sql {
    fn step(&mut self, step: u64) -> Result<()> {
        let mut batch = "BEGIN;\n".to_owned();
        for row in 0..ROWS {
            let value = mixed(step * ROWS + row) % 10_000;
            batch += &format!("INSERT INTO t(k,v) VALUES({value},printf('%08d-%s',{value},hex({row})));\n");
            self.sum += value;
        }
        self.rows += ROWS;
        batch += "COMMIT;\n";
        self.talker.send(&batch)?;
        let expected = format!("{}|{}", self.rows, self.sum);
        self.ask("SELECT count(*), sum(CAST(substr(v,1,8) AS INTEGER)) FROM t;\n", &expected)?;
        self.ask(
            "SELECT count(*) FROM (SELECT a.k FROM t a JOIN t b ON a.k = b.k GROUP BY a.id) WHERE k < 0;\n",
            "0",
        )?;
        // The table stays small: a batch should take milliseconds.
        if self.rows >= 20 * ROWS {
            self.talker.send("DELETE FROM t;\n")?;
            (self.rows, self.sum) = (0, 0);
        }
        Ok(())
    }
}

impl Subject for Sql {
    fn process(&mut self) -> &mut Process {
        self.talker.process()
    }

    fn end(&mut self, steps: u64, seconds: f64, cpu_s: f64) -> Result<Work> {
        self.ask("PRAGMA integrity_check;\n", "ok")?;
        Ok(Work::of("rows", (steps * ROWS) as f64, seconds, cpu_s))
    }

    fn finish(self) -> Result<()> {
        self.talker.finish()
    }
}
