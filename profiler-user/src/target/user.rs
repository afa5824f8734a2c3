//! The user that a launched target runs as: the one who called sudo, unless told otherwise.

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;

/// A user with everything that a login gives a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchUser {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// All groups, the primary one too.
    pub groups: Vec<u32>,
    /// `HOME`.
    pub home: OsString,
    /// `USER` and `LOGNAME`.
    pub name: OsString,
}

/// Why the user to run as is not known.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// `SUDO_UID` is set to something that is no number.
    #[error("SUDO_UID is '{0}', not a user id: pass --as-root to run the program as root")]
    NotANumber(String),
    /// The user has no account here.
    #[error("user {uid} has no account on this machine: pass --as-root to run the program as root")]
    Unknown {
        /// The id asked for.
        uid: u32,
    },
    /// The account data base failed.
    #[error("cannot look up user {uid}: {source}; pass --as-root to run the program as root")]
    Lookup {
        /// The id asked for.
        uid: u32,
        /// What the C library said.
        source: io::Error,
    },
}

impl LaunchUser {
    /// The caller of sudo: from `SUDO_UID` while we run as root; `None` when we do not, or when root itself
    /// called.
    ///
    /// # Errors
    /// The variable is unreadable or names nobody: better no run than one with the wrong rights.
    pub fn from_sudo() -> Result<Option<Self>, UserError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let Some(text) = std::env::var_os("SUDO_UID") else { return Ok(None) };
        let text = text.to_string_lossy().into_owned();
        match text.trim().parse() {
            Ok(0) => Ok(None),
            Ok(uid) => Self::by_uid(uid).map(Some),
            Err(_) => Err(UserError::NotANumber(text)),
        }
    }

    /// Account data and groups of `uid`.
    ///
    /// # Errors
    /// No such account, or the account data base failed.
    pub fn by_uid(uid: u32) -> Result<Self, UserError> {
        let lookup = |errno: i32| UserError::Lookup { uid, source: io::Error::from_raw_os_error(errno) };
        let mut buffer = vec![0u8; 1024];
        loop {
            // SAFETY: passwd is plain data and pointers, for which all zero bits are a value.
            let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
            let mut found: *mut libc::passwd = std::ptr::null_mut();
            // SAFETY: entry, buffer (with its length) and found are ours and outlive the call.
            let errno = unsafe {
                libc::getpwuid_r(
                    uid,
                    &raw mut entry,
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    &raw mut found,
                )
            };
            match errno {
                0 if found.is_null() => return Err(UserError::Unknown { uid }),
                0 => {}
                libc::ERANGE if buffer.len() < 1 << 20 => {
                    buffer.resize(buffer.len() * 4, 0);
                    continue;
                }
                libc::EINTR => continue,
                _ => return Err(lookup(errno)),
            }
            // SAFETY: on success the entry's strings point into our buffer and end in NUL.
            let (name, home) = unsafe { (CStr::from_ptr(entry.pw_name), CStr::from_ptr(entry.pw_dir)) };
            return Ok(Self {
                uid,
                gid: entry.pw_gid,
                groups: group_list(name, entry.pw_gid),
                home: OsString::from_vec(home.to_bytes().to_vec()),
                name: OsString::from_vec(name.to_bytes().to_vec()),
            });
        }
    }
}

fn group_list(name: &CStr, gid: u32) -> Vec<u32> {
    let name = CString::from(name);
    let mut count: i32 = 64;
    loop {
        let asked = count;
        let mut groups = vec![0u32; usize::try_from(count).unwrap_or(64)];
        // SAFETY: the array has room for `count` ids; the name ends in NUL.
        let done = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        if done >= 0 {
            groups.truncate(usize::try_from(count).unwrap_or(0));
            return groups;
        }
        // Too small: the C library has put the right number in `count` (musl leaves it).
        if count <= asked {
            count = asked.saturating_mul(2);
        }
        if count > 65_536 {
            return vec![gid];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_an_account_with_a_home() {
        let root = LaunchUser::by_uid(0).expect("root is known everywhere");
        assert_eq!((root.uid, root.gid, root.name.to_str()), (0, 0, Some("root")));
        assert!(root.groups.contains(&0));
        assert_eq!(root.home.to_str(), Some("/root"));
    }

    #[test]
    fn an_unknown_user_is_named() {
        let error = LaunchUser::by_uid(3_999_999_999).expect_err("nobody has this id").to_string();
        assert!(error.contains("3999999999"), "{error}");
    }
}
