//! Which classes of C++ are passed by the address of a copy: those that are not trivial for the purposes of calls (Itanium C++ ABI, section 1.1).
//!
//! Some compilers say so (`DW_AT_calling_convention` of the class). Of others the members tell it: a destructor, a copy or a move constructor that somebody has
//! written, virtual functions or bases, or a member or base of that kind.

use super::types::{Die, Entry, Language, Unsure, number, plain};
use super::units::Units;
use gimli::{AttributeValue, constants};
use std::rc::Rc;

/// Members of a class that are looked at; `std::string` has some 250.
const MAX_MEMBERS: usize = 1 << 12;
/// Classes inside classes.
const MAX_DEPTH: u32 = 32;

/// Whether the address of a value is passed, and not the value.
pub(super) fn is_by_reference(
    of: &Entry,
    die: &Die,
    language: Language,
    units: &mut Units<'_>,
) -> Result<bool, Unsure> {
    match language {
        Language::C => Ok(false),
        Language::Cpp => is_not_trivial(of, die, units, 0),
        Language::Rust => Err(Unsure::Type),
    }
}

fn is_not_trivial(of: &Entry, die: &Die, units: &mut Units<'_>, depth: u32) -> Result<bool, Unsure> {
    match die.attr_value(constants::DW_AT_calling_convention) {
        Some(AttributeValue::CallingConvention(constants::DW_CC_pass_by_value)) => return Ok(false),
        Some(AttributeValue::CallingConvention(constants::DW_CC_pass_by_reference)) => return Ok(true),
        _ => {}
    }
    let children = of.children(MAX_MEMBERS)?;
    if depth > MAX_DEPTH || die.has_attr(constants::DW_AT_declaration) || children.len() >= MAX_MEMBERS {
        return Err(Unsure::Type);
    }
    let name = of.text(die, constants::DW_AT_name, units)?.unwrap_or_default();
    // A template's constructors have no arguments of it in their names.
    let name = name.split('<').next().unwrap_or_default();
    for child in children {
        let member = child.die()?;
        let found = match member.tag() {
            constants::DW_TAG_member | constants::DW_TAG_inheritance => {
                is_such_member(&child, &member, units, depth)?
            }
            constants::DW_TAG_subprogram => is_such_function(of, name, &child, &member, units)?,
            _ => false,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A member or a base makes its class one that is not trivial.
fn is_such_member(child: &Entry, member: &Die, units: &mut Units<'_>, depth: u32) -> Result<bool, Unsure> {
    if member.has_attr(constants::DW_AT_external) || member.has_attr(constants::DW_AT_declaration) {
        // A static one.
        return Ok(false);
    }
    let name = child.text(member, constants::DW_AT_name, units)?.unwrap_or_default();
    if virtuality(member) || name.starts_with("_vptr") {
        return Ok(true);
    }
    let mut kind = child.follow(member, constants::DW_AT_type, units)?.ok_or(Unsure::Type)?;
    for _ in 0..MAX_DEPTH {
        let (entry, die) = plain(kind, units)?;
        match die.tag() {
            constants::DW_TAG_array_type => {
                kind = entry.follow(&die, constants::DW_AT_type, units)?.ok_or(Unsure::Type)?;
            }
            constants::DW_TAG_structure_type
            | constants::DW_TAG_class_type
            | constants::DW_TAG_union_type => {
                return is_not_trivial(&entry, &die, units, depth + 1);
            }
            _ => return Ok(false),
        }
    }
    Err(Unsure::Type)
}

/// A function makes its class one that is not trivial.
fn is_such_function(
    class: &Entry,
    name: &str,
    function: &Entry,
    die: &Die,
    units: &mut Units<'_>,
) -> Result<bool, Unsure> {
    if virtuality(die) {
        return Ok(true);
    }
    let own = function.text(die, constants::DW_AT_name, units)?.unwrap_or_default();
    let own = own.split('<').next().unwrap_or_default();
    let copies = own.starts_with('~') || own == name && takes_its_own_kind(class, function, units)?;
    if !copies {
        return Ok(false);
    }
    if die.has_attr(constants::DW_AT_deleted) {
        return Err(Unsure::Type);
    }
    // Made by the compiler, as it says in the class.
    Ok(number(die, constants::DW_AT_defaulted) != Some(1))
}

fn virtuality(die: &Die) -> bool {
    match die.attr_value(constants::DW_AT_virtuality) {
        None | Some(AttributeValue::Virtuality(constants::DW_VIRTUALITY_none)) => false,
        Some(_) => true,
    }
}

/// A constructor that is given a reference to another object of its class, and nothing else.
fn takes_its_own_kind(class: &Entry, function: &Entry, units: &mut Units<'_>) -> Result<bool, Unsure> {
    let mut taken = Vec::new();
    for child in function.children(MAX_MEMBERS)? {
        let die = child.die()?;
        let is_parameter = die.tag() == constants::DW_TAG_formal_parameter;
        if is_parameter && !die.has_attr(constants::DW_AT_artificial) {
            taken.push(child.follow(&die, constants::DW_AT_type, units)?.ok_or(Unsure::Type)?);
        }
    }
    let [only] = &taken[..] else { return Ok(false) };
    let (entry, die) = plain(only.clone(), units)?;
    if !matches!(die.tag(), constants::DW_TAG_reference_type | constants::DW_TAG_rvalue_reference_type) {
        return Ok(false);
    }
    let Some(behind) = entry.follow(&die, constants::DW_AT_type, units)? else { return Ok(false) };
    let (behind, _) = plain(behind, units)?;
    Ok(behind.at == class.at && Rc::ptr_eq(&behind.unit, &class.unit))
}
