//! `tithe graph`: who calls whom in a program or library, from its machine code.

use super::{Outputs, PrintFormat, outputs};
use crate::failure::Failure;
use crate::inspect::graph::{CallGraph, GraphError, file_of};
use crate::inspect::{KernelRules, Pattern};
use crate::output::graph::{Query, dot, json, text};
use crate::output::{self, TextOptions};
use crate::terminal;
use clap::Args;
use profiler_core::graph::NodeId;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "Examples:
  tithe graph ./program
  tithe graph ./program --from 'handle*'
  tithe graph ./program --from main --to 'db::commit' --depth 8
  tithe graph libsqlite3.so.0 --to sqlite3_malloc64
  tithe graph libsqlite3.so.0 --from sqlite3_step -o step.dot -o step.json

Nothing runs: calls through pointers are counted, and have no callee. In a tree each function has
its calls listed once; where it is called again stands 'see above', where --depth ends 'goes on'.
docs/graph.md says what is found and what is not.";

/// `tithe graph`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GraphArgs {
    /// A program or a shared library: a path, a program in PATH, or a library by its file name ('libsqlite3.so.0')
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Show what these functions call. PATTERN: a glob on the demangled name ('handle*', 'db::*'), '/regex/', or an address ('0x4f210') for one without a name
    #[arg(help_heading = "What to show", long, value_name = "PATTERN")]
    pub from: Vec<String>,
    /// Show what calls these functions; with --from, the chains of calls from those to these
    #[arg(help_heading = "What to show", long, value_name = "PATTERN")]
    pub to: Vec<String>,
    /// Calls from the functions that were named, at most (default: 4 in a tree, 12 in a chain, all in files)
    #[arg(help_heading = "What to show", long, value_name = "N", value_parser = parse_depth)]
    pub depth: Option<usize>,
    /// Take who takes the address of a function for its caller: a guess at calls through pointers
    #[arg(help_heading = "What to show", long)]
    pub addresses_taken: bool,
    /// Write this file, too; its extension says the format: .dot (or .gv) .json .txt. '-' is standard output
    #[arg(help_heading = "Output", short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// Form on standard output
    #[arg(help_heading = "Output", long, value_enum, default_value = "text")]
    pub format: PrintFormat,
    /// Lines of a tree, or chains, at most
    #[arg(help_heading = "Output", long, value_name = "N", default_value_t = 200)]
    pub rows: usize,
}

/// What a file is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileForm {
    Dot,
    Json,
    Text,
}

impl FileForm {
    fn of(path: &Path) -> Result<Self, Failure> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
        match extension.as_str() {
            "dot" | "gv" => Ok(Self::Dot),
            "json" => Ok(Self::Json),
            "txt" => Ok(Self::Text),
            _ => Err(Failure::usage(format!(
                "cannot tell the format of '{}': the name must end in one of .dot .gv .json .txt",
                path.display()
            ))),
        }
    }
}

fn parse_depth(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(depth) if (1..=1000).contains(&depth) => Ok(depth),
        _ => Err("accepted: a whole number from 1 to 1000".to_owned()),
    }
}

/// Runs the command.
///
/// # Errors
/// A file that is no program or library, a pattern that makes no sense or names nothing, an extension that names no format: nothing is written
/// then. A file that cannot be written.
pub(super) fn run(args: &GraphArgs) -> Result<(), Failure> {
    let patterns = |texts: &[String]| -> Result<Vec<Pattern>, Failure> {
        texts.iter().map(|text| Pattern::parse(text).map_err(Failure::usage)).collect()
    };
    let (from, to) = (patterns(&args.from)?, patterns(&args.to)?);
    let Outputs { files, shown } = outputs(&args.output, FileForm::of)?;
    let path = file_of(&args.file).map_err(failure)?;
    let graph = CallGraph::of(&path, KernelRules::host()).map_err(failure)?;
    let query = Query {
        from: named(&graph, &from)?,
        to: named(&graph, &to)?,
        depth: args.depth,
        rows: args.rows,
        addresses_taken: args.addresses_taken,
    };
    if shown {
        match args.format {
            PrintFormat::Text => terminal::text(&text(&graph, &query, TextOptions::for_stdout()))?,
            PrintFormat::Json => terminal::json(&json(&graph, &query).map_err(anyhow::Error::new)?)?,
        }
    }
    for (path, form) in files {
        let bytes = match form {
            FileForm::Dot => dot(&graph, &query),
            FileForm::Json => json(&graph, &query).map_err(anyhow::Error::new)?,
            FileForm::Text => text(&graph, &query, TextOptions::default()),
        };
        output::file::write(path, bytes.as_bytes()).map_err(anyhow::Error::new)?;
        terminal::note(format_args!("wrote {}", path.display()));
    }
    Ok(())
}

/// The functions that some patterns name.
fn named(graph: &CallGraph, patterns: &[Pattern]) -> Result<Vec<NodeId>, Failure> {
    let mut all = Vec::new();
    let mut once = HashSet::new();
    for pattern in patterns {
        let found = graph.find(pattern);
        if found.is_empty() {
            return Err(Failure::usage(graph.why_nothing(pattern)));
        }
        all.extend(found.into_iter().filter(|id| once.insert(*id)));
    }
    Ok(all)
}

fn failure(error: GraphError) -> Failure {
    Failure::usage(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_says_the_format() {
        for (name, form) in [
            ("a.dot", FileForm::Dot),
            ("a.GV", FileForm::Dot),
            ("a.x.json", FileForm::Json),
            ("a.txt", FileForm::Text),
        ] {
            assert_eq!(FileForm::of(Path::new(name)).unwrap(), form, "{name}");
        }
        let error = FileForm::of(Path::new("a.svg")).unwrap_err().to_string();
        assert!(error.contains("'a.svg'") && error.contains(".dot"), "{error}");
    }
}
