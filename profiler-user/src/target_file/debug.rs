//! Where the separate debug file of a module may lie.

use super::{Root, TargetFile};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What a module says of its debug file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DebugLink {
    /// GNU build id.
    pub build_id: Option<Vec<u8>>,
    /// `.gnu_debuglink`: the file's name.
    pub name: Option<String>,
}

impl DebugLink {
    /// The build id in hexadecimal.
    #[must_use]
    pub fn build_id_text(&self) -> Option<String> {
        let id = self.build_id.as_ref()?;
        Some(id.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    /// Paths of the debug file of the module at `path`, the likeliest first.
    pub(super) fn candidates(&self, path: &Path) -> Vec<PathBuf> {
        let mut candidates = Vec::new();
        let debug = Path::new("/usr/lib/debug");
        if let Some(id) = self.build_id_text().filter(|id| id.len() > 2) {
            candidates.push(debug.join(format!(".build-id/{}/{}.debug", &id[..2], &id[2..])));
        }
        // A name, no path: one with a slash would lead anywhere.
        if let Some(link) = self.name.as_deref().filter(|l| !l.is_empty() && !l.contains('/')) {
            let dir = path.parent().unwrap_or(Path::new("/"));
            candidates.push(dir.join(link));
            candidates.push(dir.join(".debug").join(link));
            candidates.push(debug.join(dir.strip_prefix("/").unwrap_or(dir)).join(link));
        }
        candidates
    }

    /// Opens the debug file of the module at `path`: in the target's root, then in ours; the first that `read` takes.
    /// A debug file of another build has other addresses, and a missing build id proves nothing: `read` compares it.
    pub fn find<T>(
        &self,
        path: &Path,
        target: Option<&Root>,
        mut read: impl FnMut(TargetFile) -> Option<T>,
    ) -> Option<T> {
        self.build_id.as_ref()?;
        let own = Root::own().ok();
        let candidates = self.candidates(path);
        [target, own.as_ref()]
            .into_iter()
            .flatten()
            .flat_map(|root| candidates.iter().map(move |path| (root, path)))
            .find_map(|(root, path)| read(root.open(path).ok()?))
    }
}
