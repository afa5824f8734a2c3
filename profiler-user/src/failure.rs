//! How a command fails: an exit code for programs, a chain of causes for people.

use std::fmt;

/// What kind of failure it is; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Anything that is not one of the others: 1.
    Failed,
    /// The command or its input makes no sense: 2.
    Usage,
    /// The kernel, the permissions or the target do not allow attaching: 3.
    CannotAttach,
    /// Attaching could harm the target: 4.
    Unsafe,
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// The kind.
    pub kind: FailureKind,
    /// The causes, outermost first.
    pub error: anyhow::Error,
}

impl Failure {
    /// A failure of a kind, from any error.
    pub fn new(kind: FailureKind, error: impl Into<anyhow::Error>) -> Self {
        Self { kind, error: error.into() }
    }

    /// Wrong usage, with this text.
    pub fn usage(text: impl fmt::Display) -> Self {
        Self::new(FailureKind::Usage, anyhow::anyhow!("{text}"))
    }

    /// Cannot attach, for this reason.
    pub fn attach(error: impl Into<anyhow::Error>) -> Self {
        Self::new(FailureKind::CannotAttach, error)
    }

    /// The exit code: 1 failed, 2 usage, 3 cannot attach, 4 unsafe.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            FailureKind::Failed => 1,
            FailureKind::Usage => 2,
            FailureKind::CannotAttach => 3,
            FailureKind::Unsafe => 4,
        }
    }

    /// Standard output was closed by its reader.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        self.error.chain().any(|cause| {
            cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The whole chain on one line; a cause that the text before it has named already is not said twice.
        let mut said = String::new();
        for cause in self.error.chain() {
            let cause = cause.to_string();
            if said.contains(&cause) {
                continue;
            }
            if !said.is_empty() {
                said.push_str(": ");
            }
            said.push_str(&cause);
        }
        f.write_str(&said)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(FailureKind::Failed, error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(FailureKind::Failed, error)
    }
}
