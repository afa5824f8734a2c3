//! Which classes of C++ are passed by the address of a copy: those that are not trivial for the purposes of calls (Itanium C++ ABI, section 1.1).
//!
//! Some compilers say so (`DW_AT_calling_convention` of the class; clang does, GCC 12 does not). Of others the members tell it: a destructor, a copy or a move
//! constructor that somebody has written, virtual functions or bases, or a member or base of that kind. What the compiler has added (`DW_AT_artificial`) tells
//! nothing: it is trivial where all members and bases are.

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

/// The compiler says which classes are passed by the address of a copy: nothing is concluded.
pub(super) fn is_told(die: &Die) -> bool {
    convention(die).is_some()
}

fn convention(die: &Die) -> Option<bool> {
    match die.attr_value(constants::DW_AT_calling_convention) {
        Some(AttributeValue::CallingConvention(constants::DW_CC_pass_by_value)) => Some(false),
        Some(AttributeValue::CallingConvention(constants::DW_CC_pass_by_reference)) => Some(true),
        _ => None,
    }
}

/// A class: its entry, and that of its declaration if it is defined outside the class that declares it.
struct Class<'a> {
    entry: &'a Entry,
    declaration: Option<Entry>,
    name: String,
}

impl Class<'_> {
    fn is(&self, other: &Entry) -> bool {
        let same = |own: &Entry| own.at == other.at && Rc::ptr_eq(&own.unit, &other.unit);
        same(self.entry) || self.declaration.as_ref().is_some_and(same)
    }
}

fn is_not_trivial(of: &Entry, die: &Die, units: &mut Units<'_>, depth: u32) -> Result<bool, Unsure> {
    if let Some(is_by_reference) = convention(die) {
        return Ok(is_by_reference);
    }
    let children = of.children(MAX_MEMBERS)?;
    if depth > MAX_DEPTH || die.has_attr(constants::DW_AT_declaration) || children.len() >= MAX_MEMBERS {
        return Err(Unsure::Type);
    }
    let declaration = of.follow(die, constants::DW_AT_specification, units)?;
    let mut name = of.text(die, constants::DW_AT_name, units)?;
    if let (None, Some(declaration)) = (&name, &declaration) {
        name = declaration.text(&declaration.die()?, constants::DW_AT_name, units)?;
    }
    let class = Class { entry: of, declaration, name: name.unwrap_or_default() };
    let mut is_unsure = false;
    for child in children {
        let member = child.die()?;
        let found = match member.tag() {
            constants::DW_TAG_member | constants::DW_TAG_inheritance => {
                is_such_member(&child, &member, units, depth)
            }
            constants::DW_TAG_subprogram => is_such_function(&class, &child, &member, units),
            _ => Ok(false),
        };
        match found {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // Another one may decide it.
            Err(Unsure::Type) => is_unsure = true,
            Err(error) => return Err(error),
        }
    }
    if is_unsure { Err(Unsure::Type) } else { Ok(false) }
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
    class: &Class<'_>,
    function: &Entry,
    die: &Die,
    units: &mut Units<'_>,
) -> Result<bool, Unsure> {
    if virtuality(die) {
        return Ok(true);
    }
    // Members and bases decide: of those that are trivial the compiler makes trivial ones.
    if die.has_attr(constants::DW_AT_artificial) {
        return Ok(false);
    }
    // A template's constructors have no arguments of it in their names.
    let plain = |name: &str| name.split('<').next().unwrap_or_default().to_owned();
    let own = function.text(die, constants::DW_AT_name, units)?.unwrap_or_default();
    let copies = if own.starts_with('~') {
        Copies::Yes
    } else if plain(&own) == plain(&class.name) {
        copies(class, function, units)?
    } else {
        Copies::No
    };
    match copies {
        Copies::No => Ok(false),
        Copies::Yes if !die.has_attr(constants::DW_AT_deleted) => {
            // Made by the compiler, as it says in the class.
            Ok(number(die, constants::DW_AT_defaulted) != Some(1))
        }
        Copies::Yes | Copies::Perhaps => Err(Unsure::Type),
    }
}

fn virtuality(die: &Die) -> bool {
    match die.attr_value(constants::DW_AT_virtuality) {
        None | Some(AttributeValue::Virtuality(constants::DW_VIRTUALITY_none)) => false,
        Some(_) => true,
    }
}

/// A constructor copies or moves an object of its class, or a destructor ends one.
enum Copies {
    No,
    Yes,
    /// It does if the parameters behind the first have defaults, of which debug information says nothing.
    Perhaps,
}

/// Whether a constructor is given a reference to another object of its class.
fn copies(class: &Class<'_>, function: &Entry, units: &mut Units<'_>) -> Result<Copies, Unsure> {
    let (mut first, mut has_more) = (None, false);
    for child in function.children(MAX_MEMBERS)? {
        let die = child.die()?;
        match die.tag() {
            // What a template makes is never a copy constructor.
            constants::DW_TAG_template_type_parameter
            | constants::DW_TAG_template_value_parameter
            | constants::DW_TAG_GNU_template_parameter_pack => return Ok(Copies::No),
            constants::DW_TAG_formal_parameter if die.has_attr(constants::DW_AT_artificial) => {}
            constants::DW_TAG_formal_parameter if first.is_none() => {
                first = Some(child.follow(&die, constants::DW_AT_type, units)?.ok_or(Unsure::Type)?);
            }
            constants::DW_TAG_formal_parameter | constants::DW_TAG_unspecified_parameters => has_more = true,
            _ => {}
        }
    }
    let Some(first) = first else { return Ok(Copies::No) };
    let (entry, die) = plain(first, units)?;
    if !matches!(die.tag(), constants::DW_TAG_reference_type | constants::DW_TAG_rvalue_reference_type) {
        return Ok(Copies::No);
    }
    let Some(behind) = entry.follow(&die, constants::DW_AT_type, units)? else { return Ok(Copies::No) };
    let (behind, die) = plain(behind, units)?;
    if class.is(&behind) {
        return Ok(if has_more { Copies::Perhaps } else { Copies::Yes });
    }
    // Another entry may be of the same class.
    let name = behind.text(&die, constants::DW_AT_name, units)?;
    let is_same = die.has_attr(constants::DW_AT_specification) || name.is_some_and(|name| name == class.name);
    Ok(if is_same { Copies::Perhaps } else { Copies::No })
}
