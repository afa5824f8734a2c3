//! The Rust files of the checkout, parsed.

use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders of a crate that the rules are about.
const PARTS: &[&str] = &["src", "tests"];

/// One file.
pub struct Source {
    /// From the root of the checkout.
    pub path: String,
    /// Number of its lines.
    pub lines: usize,
    /// What it says.
    pub syntax: syn::File,
}

impl Source {
    /// The file at `path` that says `text`.
    ///
    /// # Errors
    ///
    /// If it is not Rust.
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        let syntax = syn::parse_file(text)
            .map_err(|error| anyhow!("{path}:{}: cannot be parsed: {error}", error.span().start().line))?;
        Ok(Self { path: path.to_owned(), lines: text.lines().count(), syntax })
    }
}

/// All files by path. A crate is a folder of `root` with a `Cargo.toml`.
///
/// # Errors
///
/// If one cannot be read or parsed, or there are none.
pub fn read(root: &Path) -> Result<BTreeMap<String, Source>> {
    let mut sources = BTreeMap::new();
    for folder in entries(root)?.into_iter().filter(|folder| folder.join("Cargo.toml").is_file()) {
        for part in PARTS.iter().map(|part| folder.join(part)).filter(|part| part.is_dir()) {
            read_below(root, &part, &mut sources)?;
        }
    }
    ensure!(!sources.is_empty(), "no Rust file below {}", root.display());
    Ok(sources)
}

fn read_below(root: &Path, folder: &Path, sources: &mut BTreeMap<String, Source>) -> Result<()> {
    for path in entries(folder)? {
        if path.is_dir() {
            read_below(root, &path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            sources.insert(name.clone(), Source::parse(&name, &text)?);
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = || std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>();
    list().with_context(|| format!("list {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_folders_with_a_manifest_and_examples_are_left_out() {
        let root = std::env::temp_dir().join(format!("xtask-house-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("one/Cargo.toml", "");
        write("one/src/lib.rs", "fn f() {}\n");
        write("one/src/deep/er.rs", "fn g() {}\n\n");
        write("one/tests/t.rs", "fn t() {}");
        write("one/examples/e.rs", "fn e() {}");
        write("one/src/text.txt", "no Rust");
        write("notes/src/lib.rs", "no crate");
        let sources = read(&root);
        std::fs::remove_dir_all(&root).unwrap();
        let found: Vec<_> = sources.unwrap().into_values().map(|s| (s.path, s.lines)).collect();
        let path = |path: &str, lines| (path.to_owned(), lines);
        assert_eq!(
            found,
            [path("one/src/deep/er.rs", 2), path("one/src/lib.rs", 1), path("one/tests/t.rs", 1)]
        );
    }

    #[test]
    fn what_is_not_rust_is_named_with_its_line() {
        let error = Source::parse("a.rs", "fn f() {}\nfn g( {}\n").err().unwrap().to_string();
        assert!(error.starts_with("a.rs:2: cannot be parsed: "), "{error}");
    }
}
