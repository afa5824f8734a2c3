//! SQLite's own C code, built with the suite (`tests/src/bin/sqlite-kernels`): its static functions have symbols, which Debian's library has not.

use super::subject::{Program, Running, Slice};
use crate::place::Place;
use crate::process::Talker;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program.
pub struct Sqlite;

const VDBE: &str =
    "sqlite-kernels:/^(sqlite3Vdbe|vdbe|sqlite3Mem|sqlite3Value|value|apply|numeric|serial|record)/";
const STORAGE: &str = "sqlite-kernels:/^(sqlite3Btree|btree|balance|cell|page|sqlite3Pager|pager|sqlite3Pcache|pcache|mem(db|jrnl)|ptrmap|allocate|defragment|drop|fill|free|insertCell|move|zero|sqlite3Bitvec)/";
const PARSER: &str = "sqlite-kernels:/^(sqlite3(Expr|Select|Where|Src|Resolve|Run|Code|Walk|Id|Token|Add|Create|Start|End|Insert|Update|Delete|Generate|Multi|Find|Locate|Key|Get|Parser|Finish|Open|Table|Index|Name)|expr|select|where|resolve|lookup|yy|code|analyze|multi|generate|term)/";
const INTERFACE: &str = "sqlite-kernels:/^(sqlite3_|sqlite3(Malloc|Db|Str|Hash|Realloc|Ato|Put|Var|Utf8|Read|Dequote|Oom|Api|Safety|Mutex))/";
/// What the load does not use: it would only be attached.
const UNUSED: &str = "sqlite-kernels:/^(fts|sqlite3Fts|rtree|json|geopoly|unix|dotlock|nolock|stat[A-Z]|rename|wal|sqlite3Wal|porter|unicode|node[A-Z]|dbstat|dbpage|simple|sqlite3Alter|sqlite3Backup|backup|blob|sqlite3Vtab|vtab|trigger|sqlite3Trigger|fk[A-Z]|sqlite3Fk|window|sqlite3Window|pragma)/";

const SLICES: [Slice; 5] = [
    Slice { name: "vdbe", pattern: VDBE, never: &[] },
    Slice { name: "storage", pattern: STORAGE, never: &[] },
    Slice { name: "parser", pattern: PARSER, never: &[] },
    Slice { name: "interface", pattern: INTERFACE, never: &[] },
    Slice {
        name: "rest",
        pattern: "sqlite-kernels:/^[a-z][A-Za-z0-9_.]*$/",
        never: &[VDBE, STORAGE, PARSER, INTERFACE, UNUSED],
    },
];

fn load() -> PathBuf {
    // It lies beside this program; an empty path says that it is missing.
    std::env::current_exe().map(|exe| exe.with_file_name("sqlite-kernels")).unwrap_or_default()
}

impl Program for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn language(&self) -> &'static str {
        "C"
    }

    fn slices(&self) -> &'static [Slice] {
        &SLICES
    }

    fn variables(&self) -> &'static [&'static str] {
        &[
            "SQLITE_KERNELS_ROWS",
            "SQLITE_KERNELS_COLUMNS",
            "SQLITE_KERNELS_TEXT",
            "SQLITE_KERNELS_INDEXES",
            "SQLITE_KERNELS_KIND",
        ]
    }

    fn missing(&self, _: &Place) -> Option<String> {
        Place::missing(&[load()])
    }

    fn version(&self, _: &Place) -> Result<String> {
        // OK because it ends with a zero byte.
        Ok(format!("SQLite {}", libsqlite3_sys::SQLITE_VERSION.to_string_lossy()))
    }

    fn start(&self, _: &Place, folder: &Path) -> Result<Box<dyn Running>> {
        let mut talker = Talker::start(&mut Command::new(load()), folder)?;
        ensure!(talker.line()? == "ready", "sqlite-kernels does not run");
        Ok(Box::new(Runs(talker)))
    }
}

struct Runs(Talker);

impl Running for Runs {
    fn pid(&mut self) -> u32 {
        self.0.process().pid()
    }

    fn runs(&mut self) -> Result<Vec<u64>> {
        self.0.send("\n")?;
        let line = self.0.line()?;
        line.split(' ')
            .map(|word| word.parse().with_context(|| format!("no count of runs: {line}")))
            .collect()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.0.finish()
    }
}
