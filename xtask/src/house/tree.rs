//! The modules of a crate as a tree, what a path means in it, and who names whom.
//!
//! A simplification of the compiler's rules that does for this checkout: names that come by a glob import of a module's own
//! are not followed, except through the module whose children are looked at.

use super::outline::{self, Kind, Outline, Reference};
use super::source::Source;
use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// Imports by (who, whom), with path and line of each.
pub type Edges = BTreeMap<(String, String), Vec<(String, usize)>>;

/// All modules of one crate: of a library, a program or a test.
pub struct Tree {
    /// The root is the first.
    pub modules: Vec<Module>,
}

/// One module.
pub struct Module {
    /// Its name; that of the root is empty.
    pub name: String,
    /// The file that it stands in.
    pub path: String,
    /// The folder of its children's files.
    pub folder: String,
    /// What it says.
    pub outline: Outline,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
}

/// What a path means: a module, and the first word after it, which is no module.
struct Target<'a> {
    module: usize,
    name: Option<&'a str>,
}

/// The trees of all crates, from their roots among `sources`.
///
/// # Errors
///
/// If a module has no file.
pub fn grow(sources: &BTreeMap<String, Source>) -> Result<Vec<Tree>> {
    sources.keys().filter(|path| is_root(path)).map(|path| Tree::of(path, sources)).collect()
}

/// True for the first file of a library, program or test.
fn is_root(path: &str) -> bool {
    match path.split('/').collect::<Vec<_>>()[..] {
        [_, "src", file] => ["lib.rs", "main.rs"].contains(&file),
        [_, "src", "bin", _] | [_, "tests", _] => true,
        [_, "src", "bin", _, file] | [_, "tests", _, file] => file == "main.rs",
        _ => false,
    }
}

impl Tree {
    fn of(root: &str, sources: &BTreeMap<String, Source>) -> Result<Self> {
        let mut tree = Self { modules: Vec::new() };
        let (folder, _) = root.rsplit_once('/').unwrap_or_default();
        let outline = outline::of(&sources[root].syntax);
        tree.add(sources, None, Module::new("", root, folder, outline))?;
        Ok(tree)
    }

    fn add(
        &mut self,
        sources: &BTreeMap<String, Source>,
        parent: Option<usize>,
        module: Module,
    ) -> Result<()> {
        let index = self.modules.len();
        if let Some(parent) = parent {
            self.modules[parent].children.insert(module.name.clone(), index);
        }
        self.modules.push(Module { parent, ..module });
        let Module { path, folder, outline, .. } = &mut self.modules[index];
        let (path, folder) = (path.clone(), folder.clone());
        let (inline, files) = (std::mem::take(&mut outline.inline), outline.files.clone());
        for (name, outline) in inline {
            let below = format!("{folder}/{name}");
            self.add(sources, Some(index), Module::new(&name, &path, &below, outline))?;
        }
        for (name, file) in files {
            let (file, below) = if let Some(file) = file {
                let file = joined(&path, &file);
                let below = file.rsplit_once('/').map_or(String::new(), |(below, _)| below.to_owned());
                // Outside of the folders that are read.
                if !sources.contains_key(&file) {
                    continue;
                }
                (file, below)
            } else {
                let below = format!("{folder}/{name}");
                let candidates = [format!("{below}.rs"), format!("{below}/mod.rs")];
                let Some(file) = candidates.into_iter().find(|file| sources.contains_key(file)) else {
                    bail!("{path}: module {name} has no file {below}.rs; write it, or delete the line");
                };
                (file, below)
            };
            let outline = outline::of(&sources[&file].syntax);
            self.add(sources, Some(index), Module::new(&name, &file, &below, outline))?;
        }
        Ok(())
    }

    /// What `segments` mean in the module `from`. `None`: something outside of the crate, or a name of the module's own.
    fn resolve<'a>(&self, from: usize, segments: &'a [String]) -> Option<Target<'a>> {
        let mut module = from;
        let mut rest = segments;
        match rest.first()?.as_str() {
            "crate" => (module, rest) = (0, &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {}
            name if self.modules[from].children.contains_key(name) => {}
            _ => return None,
        }
        while let Some((word, after)) = rest.split_first() {
            module = match (word.as_str(), self.modules[module].children.get(word)) {
                ("super", _) => self.modules[module].parent?,
                (_, Some(&child)) => child,
                (name, None) => return Some(Target { module, name: Some(name) }),
            };
            rest = after;
        }
        Some(Target { module, name: None })
    }

    /// The child of `group` that `module` is or is below of.
    fn child(&self, group: usize, module: usize) -> Option<usize> {
        let parent = self.modules[module].parent?;
        if parent == group { Some(module) } else { self.child(group, parent) }
    }

    /// The child of `group` that a path names. What `group` itself only passes on counts as its owner's.
    fn owner(&self, group: usize, from: usize, segments: &[String], depth: usize) -> Option<usize> {
        let target = self.resolve(from, segments)?;
        if target.module != group {
            return self.child(group, target.module);
        }
        let name = target.name?;
        // Imports that name each other in a circle would not compile; globs may.
        if depth > 8 || self.modules[group].outline.definitions.contains(name) {
            return None;
        }
        let references = &self.modules[group].outline.references;
        let by_name = |r: &&Reference| matches!(&r.kind, Kind::Use { name: own, .. } if own == name);
        if let Some(import) = references.iter().find(by_name) {
            return self.owner(group, group, &import.segments, depth + 1);
        }
        references.iter().filter(|r| matches!(r.kind, Kind::Glob { .. })).find_map(|glob| {
            let module = self.resolve(group, &glob.segments).filter(|target| target.name.is_none())?.module;
            let outline = &self.modules[module].outline;
            let is_there = outline.definitions.contains(name)
                || outline.references.iter().any(|r| by_name(&r))
                || self.modules[module].children.contains_key(name);
            if is_there { self.child(group, module) } else { None }
        })
    }

    /// Which child of `group` names which other, and where. The module `group` itself, which declares them all, is none of them.
    pub fn edges(&self, group: usize) -> Edges {
        let mut edges = Edges::new();
        for (index, module) in self.modules.iter().enumerate() {
            let Some(from) = self.child(group, index) else { continue };
            for reference in &module.outline.references {
                if let Some(to) = self.owner(group, index, &reference.segments, 0).filter(|to| *to != from) {
                    let key = (self.modules[from].name.clone(), self.modules[to].name.clone());
                    edges.entry(key).or_default().push((module.path.clone(), reference.line));
                }
            }
        }
        edges
    }
}

impl Module {
    fn new(name: &str, path: &str, folder: &str, outline: Outline) -> Self {
        let [name, path, folder] = [name, path, folder].map(str::to_owned);
        Self { name, path, folder, outline, parent: None, children: BTreeMap::new() }
    }
}

/// `relative` to the folder of the file `path`.
fn joined(path: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in relative.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Trees of files that a test writes down, as (path, text).
#[cfg(test)]
pub fn planted(files: &[(&str, &str)]) -> Vec<Tree> {
    let parse = |(path, text): &(&str, &str)| ((*path).to_owned(), Source::parse(path, text).unwrap());
    grow(&files.iter().map(parse).collect()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `from -> to: references`, of the children of the root.
    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let edges = planted(files).first().unwrap().edges(0);
        edges.iter().map(|((from, to), at)| format!("{from} -> {to}: {}", at.len())).collect()
    }

    #[test]
    fn imports_count_for_the_top_module_of_both_ends() {
        let found = edges(&[
            ("c/src/lib.rs", "mod a; mod b;"),
            ("c/src/a.rs", "mod inner; use crate::b::deep::X;"),
            ("c/src/a/inner.rs", "use super::super::b; fn f() { crate::b::g(); self::h(); super::i() }"),
            ("c/src/b/mod.rs", "pub mod deep;"),
            ("c/src/b/deep.rs", "use super::Y; use std::fs;"),
        ]);
        assert_eq!(found, ["a -> b: 3"]);
    }

    #[test]
    fn what_the_root_passes_on_is_its_owners() {
        let root = "mod a; mod b; mod c; mod d; pub use b::X as Y; pub use c::*; struct Own; use d::Z;";
        let found = edges(&[
            ("c/src/lib.rs", root),
            ("c/src/a.rs", "use crate::{Y, Own, InC, Nowhere}; fn f(z: super::Z) {}"),
            ("c/src/b.rs", ""),
            ("c/src/c.rs", "pub struct InC;"),
            ("c/src/d.rs", ""),
        ]);
        assert_eq!(found, ["a -> b: 1", "a -> c: 1", "a -> d: 1"]);
    }

    #[test]
    fn inline_modules_and_paths_by_attribute_are_modules_too() {
        let found = edges(&[
            ("c/src/main.rs", "mod a { pub fn f() { super::b::g() } } #[path = \"x/y.rs\"] mod b;"),
            ("c/src/x/y.rs", "mod z; pub fn g() {}"),
            ("c/src/x/z.rs", "fn h() { crate::a::f() }"),
        ]);
        assert_eq!(found, ["a -> b: 1", "b -> a: 1"]);
    }

    #[test]
    fn each_library_program_and_test_is_a_tree() {
        let roots =
            ["c/src/lib.rs", "c/src/main.rs", "c/src/bin/x.rs", "c/src/bin/y/main.rs", "c/tests/t.rs"];
        let others = ["c/src/a.rs", "c/src/a/main.rs", "c/src/bin/y/a.rs", "c/tests/agent/a.rs"];
        assert!(roots.iter().all(|path| is_root(path)) && !others.iter().any(|path| is_root(path)));
    }

    #[test]
    fn a_module_without_a_file_is_an_error() {
        let source = Source::parse("c/src/lib.rs", "mod gone;").unwrap();
        let error = grow(&[(source.path.clone(), source)].into()).err().unwrap().to_string();
        assert_eq!(
            error,
            "c/src/lib.rs: module gone has no file c/src/gone.rs; write it, or delete the line"
        );
    }
}
