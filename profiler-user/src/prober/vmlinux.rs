//! The running kernel's BTF, read for two things: ids of kernel functions, and offsets of fields of `task_struct`.
//!
//! Input: the bytes of `/sys/kernel/btf/vmlinux`; format: `Documentation/bpf/btf.rst`. One pass, no tables: the file has
//! some 150,000 types and we want nine numbers.

use std::io;

/// Why the kernel's BTF could not be used.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error(
        "cannot read /sys/kernel/btf/vmlinux: {0}; the kernel needs CONFIG_DEBUG_INFO_BTF=y (distribution kernels have it)"
    )]
    Unreadable(#[from] io::Error),
    /// The bytes are not BTF as documented.
    #[error("/sys/kernel/btf/vmlinux is malformed at byte {0}")]
    Malformed(usize),
    /// A type that we need is not there.
    #[error("the kernel's BTF has no {0}")]
    Missing(&'static str),
}

const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_FUNC: u32 = 12;

/// BTF bytes.
pub(super) struct Vmlinux {
    bytes: Vec<u8>,
    types: usize,
    types_end: usize,
    strings: usize,
}

#[derive(Clone, Copy)]
struct Type {
    id: u32,
    at: usize,
    kind: u32,
    members: usize,
    kind_flag: bool,
}

impl Vmlinux {
    /// Reads the running kernel's BTF.
    ///
    /// # Errors
    /// Not there, or not BTF.
    pub fn read() -> Result<Self, BtfError> {
        Self::parse(std::fs::read("/sys/kernel/btf/vmlinux")?)
    }

    fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        let mut this = Self { bytes, types: 0, types_end: 0, strings: 0 };
        if this.word(0)? & 0xffff != 0xeb9f {
            return Err(BtfError::Malformed(0));
        }
        let header = this.word(4)? as usize;
        this.types = header + this.word(8)? as usize;
        this.types_end = this.types + this.word(12)? as usize;
        this.strings = header + this.word(16)? as usize;
        Ok(this)
    }

    fn word(&self, at: usize) -> Result<u32, BtfError> {
        let bytes = self.bytes.get(at..at + 4).ok_or(BtfError::Malformed(at))?;
        // OK because the slice has four bytes.
        Ok(u32::from_ne_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn name_is(&self, offset: u32, name: &str) -> bool {
        let at = self.strings + offset as usize;
        self.bytes
            .get(at..at + name.len() + 1)
            .is_some_and(|s| s[name.len()] == 0 && &s[..name.len()] == name.as_bytes())
    }

    /// Calls `visit` on each type until it returns something.
    fn find<T>(
        &self,
        mut visit: impl FnMut(&Self, Type) -> Result<Option<T>, BtfError>,
    ) -> Result<Option<T>, BtfError> {
        let mut at = self.types;
        let mut id = 1;
        while at < self.types_end {
            let info = self.word(at + 4)?;
            let kind = (info >> 24) & 0x1f;
            let members = (info & 0xffff) as usize;
            if let Some(found) = visit(self, Type { id, at, kind, members, kind_flag: info >> 31 != 0 })? {
                return Ok(Some(found));
            }
            // Bytes after the common 12, by kind: INT 4, ARRAY 12, STRUCT and UNION 12 each, ENUM 8 each,
            // FUNC_PROTO 8 each, VAR 4, DATASEC 12 each, DECL_TAG 4, ENUM64 12 each, all others none.
            at += 12
                + match kind {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    4 | 5 | 15 | 19 => 12 * members,
                    6 | 13 => 8 * members,
                    _ => 0,
                };
            id += 1;
        }
        Ok(None)
    }

    /// BTF id of a kernel function; `None` if the kernel has none of that name.
    ///
    /// # Errors
    /// Malformed BTF.
    pub fn function(&self, name: &str) -> Result<Option<u32>, BtfError> {
        self.find(|this, t| Ok((t.kind == KIND_FUNC && this.name_is(this.word(t.at)?, name)).then_some(t.id)))
    }

    /// Byte offset of a field of a struct, also inside anonymous members.
    ///
    /// # Errors
    /// Malformed BTF, or no such struct or field.
    pub fn field_offset(&self, structure: &'static str, field: &'static str) -> Result<u32, BtfError> {
        let found = self.find(|this, t| {
            if t.kind == KIND_STRUCT && t.members > 0 && this.name_is(this.word(t.at)?, structure) {
                return this.member_offset(t, field, 0);
            }
            Ok(None)
        })?;
        let bits = found.ok_or(BtfError::Missing(structure))?;
        if bits % 8 == 0 { Ok(bits / 8) } else { Err(BtfError::Missing(field)) }
    }

    fn member_offset(&self, t: Type, field: &str, depth: u32) -> Result<Option<u32>, BtfError> {
        for i in 0..t.members {
            let at = t.at + 12 + 12 * i;
            let (name, member_type, offset) = (self.word(at)?, self.word(at + 4)?, self.word(at + 8)?);
            // With the kind flag the upper byte is the width of a bit field.
            let bits = if t.kind_flag { offset & 0x00ff_ffff } else { offset };
            if self.name_is(name, field) {
                return Ok(Some(bits));
            }
            // Fields may lie in an anonymous member (CONFIG_RANDSTRUCT puts all of task_struct's there).
            if self.name_is(name, "") && depth < 4 {
                let inner = self.find(|_, t| Ok((t.id == member_type).then_some(t)))?;
                if let Some(inner) = inner.filter(|t| matches!(t.kind, KIND_STRUCT | KIND_UNION))
                    && let Some(found) = self.member_offset(inner, field, depth + 1)?
                {
                    return Ok(Some(bits + found));
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_has_task_struct_pids() {
        let Ok(btf) = Vmlinux::read() else {
            eprintln!("SKIP no /sys/kernel/btf/vmlinux");
            return;
        };
        let pid = btf.field_offset("task_struct", "pid").unwrap();
        let tgid = btf.field_offset("task_struct", "tgid").unwrap();
        // include/linux/sched.h declares them next to each other.
        assert_eq!(tgid, pid + 4);
        assert!(btf.function("schedule").unwrap().is_some());
        assert!(btf.function("no_such_function_in_any_kernel").unwrap().is_none());
        assert!(matches!(btf.field_offset("task_struct", "no_such_field"), Err(BtfError::Missing(_))));
    }

    #[test]
    fn garbage_is_refused() {
        assert!(matches!(Vmlinux::parse(vec![1, 2, 3, 4]), Err(BtfError::Malformed(_))));
        assert!(matches!(Vmlinux::parse(Vec::new()), Err(BtfError::Malformed(_))));
    }
}
