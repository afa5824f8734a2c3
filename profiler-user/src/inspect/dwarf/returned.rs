//! How a value is returned: in registers, or behind an address that the caller passes before all parameters.

use super::classes;
use super::types::{
    Entry, Language, MAX_DEPTH, MAX_MEMBERS, Passing, Unsure, is_static, number, plain, slice, structure,
};
use super::units::Units;
use gimli::constants;
use std::rc::Rc;

/// Whether a function is given an address for what it returns, in place of its first parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Returned {
    pub by_address: bool,
    /// That follows from its size or from what the compiler says, and not from the members of a class.
    pub is_sure: bool,
}

impl Returned {
    /// In registers, or nothing.
    pub const IN_REGISTERS: Self = Self { by_address: false, is_sure: true };
}

/// How a function returns a value of a type.
pub(super) fn returned(of: Entry, language: Language, units: &mut Units<'_>) -> Result<Returned, Unsure> {
    /// Rust returns up to 8 bytes in a register in all versions; up to 16 in later ones. C and C++ do up to 16.
    const SURE: u64 = 8;
    const MOST: u64 = 16;
    let (entry, die) = plain(of, units)?;
    let is_structure = matches!(
        die.tag(),
        constants::DW_TAG_structure_type
            | constants::DW_TAG_class_type
            | constants::DW_TAG_union_type
            | constants::DW_TAG_array_type
    );
    if !is_structure {
        return Ok(Returned::IN_REGISTERS);
    }
    let size = number(&die, constants::DW_AT_byte_size).ok_or(Unsure::Type)?;
    let sure = |by_address| Returned { by_address, is_sure: true };
    if language == Language::Rust {
        let mut is_slice = || matches!(slice(&entry, units), Ok(Passing::Two(..)));
        return match size {
            0..=SURE => Ok(sure(false)),
            MOST if is_slice() => Ok(sure(false)),
            // Older compilers returned two scalars of up to 16 bytes each in registers (`(u128, u64)`).
            size if size > MOST => Ok(Returned {
                by_address: true,
                is_sure: size > 2 * MOST || has_no_wide_scalar(entry, units)?,
            }),
            _ => Err(Unsure::Type),
        };
    }
    if size > MOST {
        // A vector of 32 or 64 bytes is returned in a register, alone in a structure as well.
        return if begins_with_vector(entry, units)? { Err(Unsure::Type) } else { Ok(sure(true)) };
    }
    let by_address = classes::is_by_reference(&entry, &die, language, units)?;
    if !by_address {
        // Is it understood?
        structure(&entry, &die, Some(size), language, units)?;
    }
    Ok(Returned { by_address, is_sure: language == Language::C || classes::is_told(&die) })
}

/// No scalar of more than 8 bytes lies in a value of this type: two scalars have 16 bytes at most then. What is not understood may be one.
fn has_no_wide_scalar(of: Entry, units: &mut Units<'_>) -> Result<bool, Unsure> {
    let mut seen: Vec<Entry> = Vec::new();
    let mut left = vec![of];
    while let Some(next) = left.pop() {
        // Each type once: variants of an enumeration may have the same in them.
        if seen.iter().any(|own| own.at == next.at && Rc::ptr_eq(&own.unit, &next.unit)) {
            continue;
        }
        if seen.len() >= MAX_MEMBERS {
            return Ok(false);
        }
        seen.push(next.clone());
        match parts(next, units) {
            Ok(Some(parts)) => left.extend(parts),
            Ok(None) | Err(Unsure::Type) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The types of what lies in a value of a type, and the parts of an enumeration of Rust; `None`: it is a scalar of more than 8 bytes.
fn parts(of: Entry, units: &mut Units<'_>) -> Result<Option<Vec<Entry>>, Unsure> {
    const WORD: u64 = 8;
    let (entry, die) = plain(of, units)?;
    match die.tag() {
        constants::DW_TAG_pointer_type | constants::DW_TAG_reference_type => Ok(Some(Vec::new())),
        constants::DW_TAG_base_type | constants::DW_TAG_enumeration_type => {
            let size = number(&die, constants::DW_AT_byte_size).ok_or(Unsure::Type)?;
            Ok((size <= WORD).then(Vec::new))
        }
        constants::DW_TAG_array_type if !die.has_attr(constants::DW_AT_GNU_vector) => {
            let element = entry.follow(&die, constants::DW_AT_type, units)?.ok_or(Unsure::Type)?;
            Ok(Some(vec![element]))
        }
        constants::DW_TAG_structure_type
        | constants::DW_TAG_class_type
        | constants::DW_TAG_union_type
        | constants::DW_TAG_variant_part
        | constants::DW_TAG_variant => {
            let children = entry.children(MAX_MEMBERS)?;
            if children.len() >= MAX_MEMBERS {
                return Err(Unsure::Type);
            }
            let mut parts = Vec::new();
            for child in children {
                let die = child.die()?;
                match die.tag() {
                    constants::DW_TAG_variant_part | constants::DW_TAG_variant => parts.push(child),
                    constants::DW_TAG_member | constants::DW_TAG_inheritance if !is_static(&die) => {
                        parts.push(child.follow(&die, constants::DW_AT_type, units)?.ok_or(Unsure::Type)?);
                    }
                    // Types and functions that are declared in it.
                    _ => {}
                }
            }
            Ok(Some(parts))
        }
        _ => Err(Unsure::Type),
    }
}

/// The first member of a structure is a vector, or begins with one.
fn begins_with_vector(mut of: Entry, units: &mut Units<'_>) -> Result<bool, Unsure> {
    for _ in 0..MAX_DEPTH {
        let (entry, die) = plain(of, units)?;
        if die.has_attr(constants::DW_AT_GNU_vector) {
            return Ok(true);
        }
        let inner = match die.tag() {
            constants::DW_TAG_array_type => entry.follow(&die, constants::DW_AT_type, units)?,
            constants::DW_TAG_structure_type
            | constants::DW_TAG_class_type
            | constants::DW_TAG_union_type => first_member(&entry, units)?,
            _ => None,
        };
        let Some(inner) = inner else { return Ok(false) };
        of = inner;
    }
    Err(Unsure::Type)
}

/// The type of the first member or base that is no static one.
fn first_member(of: &Entry, units: &mut Units<'_>) -> Result<Option<Entry>, Unsure> {
    for member in of.children(MAX_MEMBERS)? {
        let die = member.die()?;
        if matches!(die.tag(), constants::DW_TAG_member | constants::DW_TAG_inheritance) && !is_static(&die) {
            return member.follow(&die, constants::DW_AT_type, units);
        }
    }
    Ok(None)
}
