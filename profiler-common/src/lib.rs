//! The wire contract between the eBPF programs (`profiler-ebpf`) and the agent (`profiler-user`), written once.
//!
//! Every type is `#[repr(C)]`, has no `bool`, no implicit padding and an asserted size, so that both sides read the
//! same bytes whatever compiler built them. Kernel bytes become enums only through `TryFrom`. The crate holds
//! data and pure functions on it (cookie packing, histogram buckets, the decision on an operation); it has no policy and does no I/O.
#![no_std]
#![warn(missing_docs)]

pub mod caller;
pub mod class;
pub mod context;
pub mod cookie;
pub mod event;
pub mod histogram;
pub mod operation;
pub mod presence;
pub mod settings;
pub mod step;
pub mod thread;
pub mod words;

/// Version of the layout below; the object carries it in `WIRE_VERSION` and the agent refuses another one.
pub const WIRE_VERSION: u32 = 9;

/// A number from the kernel that names no variant of the enum it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownValue {
    /// What was being read.
    pub what: &'static str,
    /// The number seen.
    pub value: u32,
}

impl core::fmt::Display for UnknownValue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "unknown {} {} from the kernel programs: the object and the agent are of different builds, run 'cargo xtask build-ebpf'",
            self.what, self.value
        )
    }
}

impl core::error::Error for UnknownValue {}

/// Declares a fieldless `u32` enum with `TryFrom<u32>`.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident, $what:literal { $($(#[$vmeta:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)+ }

        impl TryFrom<u32> for $name {
            type Error = $crate::UnknownValue;
            fn try_from(value: u32) -> Result<Self, Self::Error> {
                match value {
                    $($value => Ok(Self::$variant),)+
                    _ => Err($crate::UnknownValue { what: $what, value }),
                }
            }
        }
    };
}
pub(crate) use wire_enum;

/// Asserts size and alignment of a wire type and makes it `aya::Pod` for the agent.
macro_rules! wire_type {
    ($name:ty, size $size:literal, align $align:literal) => {
        const _: () =
            assert!(core::mem::size_of::<$name>() == $size && core::mem::align_of::<$name>() == $align);
        // SAFETY: `repr(C)`, `Copy`, integers only, and the asserted size is the sum of the fields: no padding.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}
    };
}
pub(crate) use wire_type;
