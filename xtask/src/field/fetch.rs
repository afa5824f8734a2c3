//! Packages by name, unpacked below a folder: Debian's (with an apt state of our own, so that no lock of the machine is
//! taken and nothing is installed), wheels from Python's registry, archives from npm's.

use crate::shell;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An apt of our own: its sources, lists and cache lie below a folder, and it thinks that nothing is installed.
pub struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Set up below this folder, with its lists fetched once. A download that fails renews them.
    ///
    /// # Errors
    ///
    /// If the machine has no Debian sources, or the lists cannot be fetched.
    pub fn new(base: &Path) -> Result<Apt> {
        let apt = Apt { folder: base.join("apt") };
        if apt.folder.join("complete").exists() {
            return Ok(apt);
        }
        for folder in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(apt.folder.join(folder))?;
        }
        let sources = debian_sources(&configured_sources()).context(
            "no source of Debian packages in /etc/apt: the programs of the suite come from Debian 12",
        )?;
        std::fs::write(apt.folder.join("debian.sources"), sources)?;
        std::fs::write(apt.folder.join("status"), "")?;
        let folder = apt.folder.display();
        std::fs::write(
            apt.folder.join("apt.conf"),
            format!(
                "Dir::Etc::sourcelist \"{folder}/debian.sources\";\nDir::Etc::sourceparts \"-\";\n\
                 Dir::State \"{folder}\";\nDir::State::lists \"{folder}/lists\";\n\
                 Dir::State::status \"{folder}/status\";\nDir::Cache \"{folder}/cache\";\n\
                 Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\nAcquire::Languages \"none\";\n\
                 Acquire::Retries \"3\";\nAPT::Sandbox::User \"\";\n"
            ),
        )?;
        apt.renew_lists()?;
        std::fs::write(apt.folder.join("complete"), "")?;
        Ok(apt)
    }

    fn renew_lists(&self) -> Result<()> {
        shell::run(self.get(&self.folder).args(["update", "-q"]))
    }

    /// Downloads into `archives`, emptied.
    fn download(&self, archives: &Path, arguments: &[&str]) -> Result<()> {
        let once = || {
            empty(archives)?;
            shell::run(self.get(archives).args(arguments))
        };
        once_more_after(once, || {
            eprintln!("The download failed: Debian may have newer packages. The package lists are renewed.");
            self.renew_lists()
        })
    }

    fn get(&self, folder: &Path) -> Command {
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", self.folder.join("apt.conf")).current_dir(folder);
        command.stdin(std::process::Stdio::null());
        command
    }

    /// Downloads packages and unpacks them into `root`, anew.
    ///
    /// # Errors
    ///
    /// If one cannot be had.
    pub fn unpack(&self, packages: &[&str], root: &Path) -> Result<()> {
        let archives = root.with_extension("debs");
        self.download(&archives, &[&["download", "-q"], packages].concat())?;
        empty(root)?;
        for archive in files(&archives)? {
            shell::run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(root))?;
        }
        std::fs::remove_dir_all(&archives)?;
        relink(root, root)
    }

    /// Downloads a source package and unpacks it into `folder`, anew, with Debian's patches.
    ///
    /// # Errors
    ///
    /// If it cannot be had.
    pub fn source(&self, package: &str, folder: &Path) -> Result<()> {
        ensure!(
            shell::find_in_path("dpkg-source").is_some(),
            "no dpkg-source to unpack {package}: apt-get install dpkg-dev"
        );
        let archives = folder.with_extension("src");
        self.download(&archives, &["source", "-q", "--download-only", package])?;
        let description = files(&archives)?
            .into_iter()
            .find(|path| path.extension().is_some_and(|extension| extension == "dsc"))
            .with_context(|| format!("no description of {package} was downloaded"))?;
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
        shell::run(
            Command::new("dpkg-source")
                .current_dir(&archives)
                .args(["--no-copy", "--no-check", "-q", "-x"])
                .args([&description, folder]),
        )?;
        std::fs::remove_dir_all(&archives)?;
        Ok(())
    }
}

/// Does `work`; if that fails, `renew` and then `work` once more.
fn once_more_after(work: impl Fn() -> Result<()>, renew: impl FnOnce() -> Result<()>) -> Result<()> {
    work().or_else(|error| match renew() {
        Ok(()) => work(),
        Err(renewal) => Err(error.context(format!("{renewal:#}"))),
    })
}

/// The newest wheel of a package for CPython 3.11, unpacked into `root`, anew.
///
/// # Errors
///
/// If it cannot be had.
pub fn wheel(package: &str, root: &Path) -> Result<()> {
    let archives = empty(&root.with_extension("wheels"))?;
    shell::run(
        Command::new("python3")
            .args(["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"])
            .args(["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"])
            .args(["--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64", "-d"])
            .arg(&archives)
            .arg(package),
    )?;
    empty(root)?;
    for archive in files(&archives)? {
        shell::run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&archive).arg(root))?;
    }
    Ok(std::fs::remove_dir_all(&archives)?)
}

/// A package of npm, `NAME@VERSION`, unpacked into `root`, anew.
///
/// # Errors
///
/// If it cannot be had.
pub fn npm(package: &str, root: &Path) -> Result<()> {
    let archives = empty(&root.with_extension("npm"))?;
    shell::run(Command::new("npm").current_dir(&archives).args(["pack", "--silent", package]))?;
    empty(root)?;
    for archive in files(&archives)? {
        shell::run(Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(root))?;
    }
    Ok(std::fs::remove_dir_all(&archives)?)
}

fn empty(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder.to_owned())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Links to absolute paths that were unpacked, too, lead there.
fn relink(folder: &Path, root: &Path) -> Result<()> {
    for path in files(folder)? {
        let kind = std::fs::symlink_metadata(&path)?.file_type();
        if kind.is_dir() {
            relink(&path, root)?;
        } else if kind.is_symlink()
            && let Ok(inner) = std::fs::read_link(&path)?.strip_prefix("/")
            && root.join(inner).exists()
        {
            let inner = root.join(inner);
            std::fs::remove_file(&path)?;
            std::os::unix::fs::symlink(inner, &path)?;
        }
    }
    Ok(())
}

/// The text of all files that name package sources.
fn configured_sources() -> Vec<String> {
    let mut paths = vec![PathBuf::from("/etc/apt/sources.list")];
    paths.extend(files(Path::new("/etc/apt/sources.list.d")).unwrap_or_default());
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect()
}

/// A source of binary and source packages like the first of Debian's own that the machine has: its main suite, whose
/// packages stay available (those of the suites for updates are replaced by newer ones).
fn debian_sources(texts: &[String]) -> Result<String> {
    for text in texts {
        for stanza in text.split("\n\n") {
            let field = |name: &str| {
                stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
            };
            let (uri, suite) = if let (Some(uris), Some(suites)) = (field("URIs"), field("Suites")) {
                (uris.split_whitespace().next(), suites.split_whitespace().find(|suite| !suite.contains('-')))
            } else {
                let words = |line: &'_ str| -> Vec<String> {
                    let line = line.split_once('[').map_or(line.to_owned(), |(before, rest)| {
                        format!("{before}{}", rest.split_once(']').map_or("", |(_, after)| after))
                    });
                    line.split_whitespace().map(str::to_owned).collect()
                };
                let found = stanza.lines().map(words).find(|words| {
                    words.len() > 3 && words[0] == "deb" && is_debian(&words[1]) && !words[2].contains('-')
                });
                match found {
                    Some(words) => return Ok(stanza_of(&words[1], &words[2], None)),
                    None => continue,
                }
            };
            if let (Some(uri), Some(suite)) = (uri, suite)
                && is_debian(uri)
            {
                return Ok(stanza_of(uri, suite, field("Signed-By")));
            }
        }
    }
    bail!("none of {} files names one", texts.len())
}

fn is_debian(uri: &str) -> bool {
    uri.trim_end_matches('/').ends_with("/debian")
}

fn stanza_of(uri: &str, suite: &str, key: Option<&str>) -> String {
    let key = key.map_or(String::new(), |key| format!("Signed-By: {key}\n"));
    format!("Types: deb deb-src\nURIs: {uri}\nSuites: {suite}\nComponents: main\n{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_suite_of_debian_is_taken_in_either_form() {
        let new = "Types: deb\n# a remark\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n\
                   Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n\nTypes: deb\n\
                   URIs: http://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n";
        let expected = "Types: deb deb-src\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n\
                        Signed-By: /usr/share/keyrings/k.gpg\n";
        let other = "Types: deb\nURIs: https://other.example/node\nSuites: nodistro\nComponents: main\n";
        assert_eq!(debian_sources(&[other.to_owned(), new.to_owned()]).unwrap(), expected);
        let old = "deb http://mirror.example/debian-security bookworm-security main\n\
                   deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian/ bookworm main contrib\n";
        let found = debian_sources(&[old.to_owned()]).unwrap();
        assert!(found.contains("URIs: http://mirror.example/debian/\nSuites: bookworm\n"), "{found}");
        assert!(debian_sources(&[other.to_owned()]).is_err());
    }

    #[test]
    fn a_download_that_fails_renews_the_lists_once() {
        use std::cell::Cell;
        let tried = |works_after: u32, renewal: bool| {
            let (works, renewals) = (Cell::new(0), Cell::new(0));
            let result = once_more_after(
                || {
                    works.set(works.get() + 1);
                    ensure!(renewals.get() >= works_after, "404");
                    Ok(())
                },
                || {
                    renewals.set(renewals.get() + 1);
                    ensure!(renewal, "no network");
                    Ok(())
                },
            );
            (result.map_err(|error| format!("{error:#}")), works.get(), renewals.get())
        };
        assert_eq!(tried(0, true), (Ok(()), 1, 0));
        assert_eq!(tried(1, true), (Ok(()), 2, 1));
        assert_eq!(tried(9, true), (Err("404".to_owned()), 2, 1));
        assert_eq!(tried(1, false), (Err("no network: 404".to_owned()), 1, 1));
    }

    #[test]
    fn links_stay_inside_what_was_unpacked() {
        let root = std::env::temp_dir().join(format!("xtask-field-{}", std::process::id()));
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::write(root.join("etc/tithe-field.cfg"), "inner").unwrap();
        std::os::unix::fs::symlink("/etc/tithe-field.cfg", root.join("usr/lib/cfg")).unwrap();
        std::os::unix::fs::symlink("/proc/self", root.join("usr/lib/outer")).unwrap();
        relink(&root, &root).unwrap();
        assert_eq!(std::fs::read_to_string(root.join("usr/lib/cfg")).unwrap(), "inner");
        assert_eq!(std::fs::read_link(root.join("usr/lib/outer")).unwrap(), Path::new("/proc/self"));
        std::fs::remove_dir_all(root).unwrap();
    }
}
