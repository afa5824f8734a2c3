//! A file tree as the archive that a kernel unpacks into its first file system (cpio, "newc").
//!
//! Format: `Documentation/driver-api/early-userspace/buffer-format.rst` of the kernel.

use anyhow::{Context, Result};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_000;

/// An archive that is being written.
pub struct Archive<W: Write> {
    out: W,
    written: u64,
    entries: u32,
    /// Paths in it, without a leading slash.
    has: BTreeSet<PathBuf>,
}

impl Archive<BufWriter<File>> {
    /// Starts an archive in a new file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Archive::new(BufWriter::new(file)))
    }
}

impl<W: Write> Archive<W> {
    /// Starts an archive.
    pub fn new(out: W) -> Self {
        Archive { out, written: 0, entries: 0, has: BTreeSet::new() }
    }

    /// A folder, with those above it.
    pub fn folder(&mut self, path: &Path) -> Result<()> {
        let path = relative(path);
        if path.as_os_str().is_empty() || self.has.contains(&*path) {
            return Ok(());
        }
        if let Some(above) = path.parent() {
            self.folder(above)?;
        }
        self.entry(&path, FOLDER, &[])
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &Path, to: &str) -> Result<()> {
        self.within(path)?;
        self.entry(&relative(path), LINK, to.as_bytes())
    }

    /// A file with these bytes.
    pub fn bytes(&mut self, path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
        self.within(path)?;
        self.entry(&relative(path), FILE | mode & 0o7777, bytes)
    }

    /// A copy of a file of this machine.
    pub fn copy(&mut self, from: &Path, to: &Path) -> Result<()> {
        let bytes = std::fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let mode = std::fs::metadata(from)?.permissions().mode();
        self.bytes(to, mode, &bytes)
    }

    /// A folder of this machine with all in it; symbolic links stay such.
    pub fn tree(&mut self, from: &Path, to: &Path) -> Result<()> {
        for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
            let entry = entry?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.tree(&from, &to)?;
            } else if kind.is_symlink() {
                self.link(&to, &std::fs::read_link(&from)?.to_string_lossy())?;
            } else {
                self.copy(&from, &to)?;
            }
        }
        Ok(())
    }

    /// Writes the end mark.
    pub fn finish(mut self) -> Result<W> {
        self.header("TRAILER!!!", 0, 0)?;
        self.pad()?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn within(&mut self, path: &Path) -> Result<()> {
        relative(path).parent().map_or(Ok(()), |above| self.folder(above))
    }

    fn entry(&mut self, path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
        if !self.has.insert(path.to_owned()) {
            return Ok(());
        }
        self.header(&path.to_string_lossy(), mode, bytes.len())?;
        self.put(bytes)?;
        self.pad()
    }

    fn header(&mut self, name: &str, mode: u32, length: usize) -> Result<()> {
        self.entries += 1;
        // inode, mode, uid, gid, links, mtime, size, device (4), name's length with its end, checksum (none).
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            u32::try_from(length)?,
            0,
            0,
            0,
            0,
            u32::try_from(name.len() + 1)?,
            0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(name);
        header.push('\0');
        self.put(header.as_bytes())?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).context("cannot write the archive")?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Headers and files begin at multiples of 4.
    fn pad(&mut self) -> Result<()> {
        let gap = (4 - self.written % 4) % 4;
        self.put(&[0; 3][..usize::try_from(gap)?])
    }
}

/// Without the leading slash, and with /bin, /lib and the like in /usr, where they lie since Debian 12.
fn relative(path: &Path) -> Cow<'_, Path> {
    let path = path.strip_prefix("/").unwrap_or(path);
    let merged = ["bin", "sbin", "lib", "lib64"]
        .iter()
        .any(|folder| path.starts_with(folder) && path != Path::new(folder));
    if merged { Cow::Owned(Path::new("usr").join(path)) } else { Cow::Borrowed(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_folders_come_before_their_files() {
        let mut archive = Archive::new(Vec::new());
        archive.bytes(Path::new("/a/b/file"), 0o644, b"12345").unwrap();
        // Once more is no second entry.
        archive.bytes(Path::new("/a/b/file"), 0o644, b"other").unwrap();
        archive.link(Path::new("/a/to"), "b/file").unwrap();
        let bytes = archive.finish().unwrap();
        let mut names = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let text = std::str::from_utf8(&bytes[at..at + 110]).unwrap();
            assert_eq!(&text[..6], "070701", "an entry does not begin at {at}");
            let field = |n: usize| usize::from_str_radix(&text[6 + 8 * n..14 + 8 * n], 16).unwrap();
            let (mode, size, name) = (field(1), field(6), field(11));
            let end = at + 110 + name;
            names.push((std::str::from_utf8(&bytes[at + 110..end - 1]).unwrap().to_owned(), mode));
            at = (end.next_multiple_of(4) + size).next_multiple_of(4);
        }
        let expected = [
            ("a", 0o40755),
            ("a/b", 0o40755),
            ("a/b/file", 0o100_644),
            ("a/to", 0o120_777),
            ("TRAILER!!!", 0),
        ];
        assert_eq!(names, expected.map(|(name, mode)| (name.to_owned(), mode)));
    }
}
