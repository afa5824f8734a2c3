//! How a value of a type is passed: the classes of the System V ABI for x86-64 (version 1.0, section 3.2.3), and of Rust scalars, references and slices.
//!
//! Of each type only what matters here is told: how many integer registers it takes. Where that is not sure, nothing is told of it, nor of what is passed
//! behind it.

use super::super::prototype::ParameterKind;
use super::classes;
use super::sections::Piece;
use super::units::{Unit, Units};
use gimli::{AttributeValue, DebuggingInformationEntry, DwAt, Reader, UnitOffset, constants};
use std::rc::Rc;

/// Types behind types that are followed: `typedef`, `const`, members.
pub(super) const MAX_DEPTH: u32 = 32;
/// Members of a structure that are looked at; one of 16 bytes has no more.
pub(super) const MAX_MEMBERS: usize = 256;

/// How a value is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passing {
    /// In one integer register.
    Register(ParameterKind),
    /// A structure: in so many integer registers and so many vector registers if all of them are left, else in memory.
    Registers(u8, u8),
    /// A pointer and a length, or two pointers: each by itself.
    Two(ParameterKind, ParameterKind),
    /// In no integer register: in vector registers if they are left, or in memory.
    Elsewhere(ParameterKind, Vectors),
    /// It has no bytes.
    Nothing,
    /// Of Rust: a pointer to a function takes a register, a function itself nothing, and both may be called the same.
    Function,
}

/// How many vector registers something takes, or has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Vectors {
    /// At least.
    pub least: u8,
    /// At most.
    pub most: u8,
}

impl Vectors {
    /// None or one: that is not known.
    const PERHAPS: Self = Self { least: 0, most: 1 };
    /// Those that hold parameters (System V ABI, figure 3.4).
    const ALL: u8 = 8;

    /// So many.
    pub fn of(number: u8) -> Self {
        Self { least: number, most: number }
    }

    /// Whether so many are left behind those that are taken; `None`: that is not known.
    pub fn fit(self, number: u8) -> Option<bool> {
        if number == 0 || self.most + number <= Self::ALL {
            Some(true)
        } else if self.least + number > Self::ALL {
            Some(false)
        } else {
            None
        }
    }

    /// Something takes them: all, or none if there are too few.
    pub fn take(&mut self, taken: Self) {
        let fit = self.fit(taken.most);
        if fit != Some(false) {
            self.least += if fit == Some(true) { taken.least } else { 0 };
            self.most = (self.most + taken.most).min(Self::ALL);
        }
    }
}

/// Why nothing is told.
#[derive(Debug)]
pub(super) enum Unsure {
    /// That is not known.
    Type,
    /// The debug information cannot be read.
    Read(gimli::Error),
}

impl From<gimli::Error> for Unsure {
    fn from(error: gimli::Error) -> Self {
        Self::Read(error)
    }
}

/// Of which language a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    C,
    Cpp,
    Rust,
}

/// An entry of debug information: its unit, and where in it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub unit: Rc<Unit>,
    pub at: UnitOffset,
}

pub(super) type Die = DebuggingInformationEntry<Piece>;

impl Entry {
    pub fn die(&self) -> gimli::Result<Die> {
        self.unit.entry(self.at)
    }

    /// What an attribute refers to.
    pub fn follow(&self, die: &Die, name: DwAt, units: &mut Units<'_>) -> Result<Option<Self>, Unsure> {
        let Some(value) = die.attr_value(name) else { return Ok(None) };
        match value {
            AttributeValue::UnitRef(at) => Ok(Some(Self { unit: Rc::clone(&self.unit), at })),
            AttributeValue::DebugInfoRef(offset) => {
                let (unit, at) = units.around(offset)?.ok_or(Unsure::Type)?;
                Ok(Some(Self { unit, at }))
            }
            // In another file (`dwz`), or in a unit of types.
            _ => Err(Unsure::Type),
        }
    }

    /// The entries directly below, up to `most`.
    pub fn children(&self, most: usize) -> gimli::Result<Vec<Self>> {
        let mut tree = self.unit.entries_tree(Some(self.at))?;
        let mut children = tree.root()?.children();
        let mut found = Vec::new();
        while let Some(child) = children.next()? {
            if found.len() >= most {
                break;
            }
            found.push(Self { unit: Rc::clone(&self.unit), at: child.entry().offset() });
        }
        Ok(found)
    }

    /// The text of an attribute.
    pub fn text(&self, die: &Die, name: DwAt, units: &Units<'_>) -> gimli::Result<Option<String>> {
        let Some(value) = die.attr_value(name) else { return Ok(None) };
        let piece = units.dwarf.attr_string(&self.unit, value)?;
        Ok(Some(piece.to_string_lossy()?.into_owned()))
    }
}

pub(super) fn number(die: &Die, name: DwAt) -> Option<u64> {
    die.attr_value(name).and_then(|value| value.udata_value())
}

/// The type itself: without names and qualifiers.
pub(super) fn plain(mut of: Entry, units: &mut Units<'_>) -> Result<(Entry, Die), Unsure> {
    for _ in 0..MAX_DEPTH {
        let die = of.die()?;
        let is_name = matches!(
            die.tag(),
            constants::DW_TAG_typedef
                | constants::DW_TAG_const_type
                | constants::DW_TAG_volatile_type
                | constants::DW_TAG_restrict_type
                | constants::DW_TAG_atomic_type
                | constants::DW_TAG_immutable_type
        );
        if !is_name {
            return Ok((of, die));
        }
        of = of.follow(&die, constants::DW_AT_type, units)?.ok_or(Unsure::Type)?;
    }
    Err(Unsure::Type)
}

/// How a parameter of a type is passed.
pub(super) fn passing(of: Entry, language: Language, units: &mut Units<'_>) -> Result<Passing, Unsure> {
    let (entry, die) = plain(of, units)?;
    let size = number(&die, constants::DW_AT_byte_size);
    match die.tag() {
        constants::DW_TAG_base_type => of_base(&die, size.ok_or(Unsure::Type)?),
        constants::DW_TAG_pointer_type if language == Language::Rust => rust_pointer(&entry, &die, units),
        constants::DW_TAG_pointer_type
        | constants::DW_TAG_reference_type
        | constants::DW_TAG_rvalue_reference_type
        | constants::DW_TAG_unspecified_type => Ok(Passing::Register(ParameterKind::Pointer)),
        constants::DW_TAG_enumeration_type => match size.ok_or(Unsure::Type)? {
            0 => Ok(Passing::Nothing),
            // OK because it is 4 at most.
            bytes @ (1 | 2 | 4) => Ok(Passing::Register(ParameterKind::Enumeration(bytes as u8))),
            8 => Ok(Passing::Register(ParameterKind::Signed(8))),
            _ => Err(Unsure::Type),
        },
        constants::DW_TAG_structure_type | constants::DW_TAG_class_type | constants::DW_TAG_union_type => {
            match language {
                Language::Rust => slice(&entry, units),
                Language::C | Language::Cpp => structure(&entry, &die, size, language, units),
            }
        }
        _ => Err(Unsure::Type),
    }
}

/// A pointer of Rust: to a function it may be a function itself, which has no bytes. Some versions tell its name (`fn(u64) -> u64 {crate::name}`).
fn rust_pointer(of: &Entry, die: &Die, units: &mut Units<'_>) -> Result<Passing, Unsure> {
    let Some(behind) = of.follow(die, constants::DW_AT_type, units)? else {
        return Ok(Passing::Register(ParameterKind::Pointer));
    };
    if behind.die()?.tag() != constants::DW_TAG_subroutine_type {
        return Ok(Passing::Register(ParameterKind::Pointer));
    }
    let name = of.text(die, constants::DW_AT_name, units)?.unwrap_or_default();
    Ok(if name.contains('{') { Passing::Nothing } else { Passing::Function })
}

/// A member of its class, and of no object.
pub(super) fn is_static(member: &Die) -> bool {
    member.has_attr(constants::DW_AT_external) || member.has_attr(constants::DW_AT_declaration)
}

fn of_base(die: &Die, size: u64) -> Result<Passing, Unsure> {
    let Some(AttributeValue::Encoding(encoding)) = die.attr_value(constants::DW_AT_encoding) else {
        return Err(Unsure::Type);
    };
    if size == 0 {
        return Ok(Passing::Nothing);
    }
    let bytes = u8::try_from(size).ok().filter(|bytes| [1, 2, 4, 8].contains(bytes));
    match encoding {
        constants::DW_ATE_float | constants::DW_ATE_complex_float | constants::DW_ATE_decimal_float => {
            let vectors = match (size, encoding) {
                (..=8, _) => Vectors::of(1),
                (16, constants::DW_ATE_complex_float) => Vectors::of(2),
                // `long double` is in memory, `_Float128` in a register.
                _ => Vectors::PERHAPS,
            };
            Ok(Passing::Elsewhere(ParameterKind::Float, vectors))
        }
        constants::DW_ATE_signed | constants::DW_ATE_signed_char => {
            bytes.map(|bytes| Passing::Register(ParameterKind::Signed(bytes))).ok_or(Unsure::Type)
        }
        constants::DW_ATE_unsigned
        | constants::DW_ATE_unsigned_char
        | constants::DW_ATE_boolean
        | constants::DW_ATE_UTF => {
            bytes.map(|bytes| Passing::Register(ParameterKind::Unsigned(bytes))).ok_or(Unsure::Type)
        }
        _ => Err(Unsure::Type),
    }
}

/// A slice, a string or a reference to a trait object of Rust: two words. Of other structures Rust promises nothing.
pub(super) fn slice(of: &Entry, units: &mut Units<'_>) -> Result<Passing, Unsure> {
    let mut names = Vec::new();
    for member in of.children(MAX_MEMBERS)? {
        let die = member.die()?;
        if die.tag() == constants::DW_TAG_member {
            names.push(member.text(&die, constants::DW_AT_name, units)?.unwrap_or_default());
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match names.as_slice() {
        ["data_ptr", "length"] => Ok(Passing::Two(ParameterKind::Pointer, ParameterKind::Unsigned(8))),
        ["pointer", "vtable"] => Ok(Passing::Two(ParameterKind::Pointer, ParameterKind::Pointer)),
        _ => Err(Unsure::Type),
    }
}

/// The class of eight bytes of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Nothing lies there.
    None,
    Integer,
    /// A vector register.
    Other,
}

pub(super) fn structure(
    entry: &Entry,
    die: &Die,
    size: Option<u64>,
    language: Language,
    units: &mut Units<'_>,
) -> Result<Passing, Unsure> {
    let size = size.ok_or(Unsure::Type)?;
    // Its address is passed.
    if classes::is_by_reference(entry, die, language, units)? {
        return Ok(Passing::Registers(1, 0));
    }
    if size == 0 {
        return Ok(Passing::Nothing);
    }
    if size > 16 {
        // In memory, or it is a vector and nothing else.
        return Ok(Passing::Elsewhere(ParameterKind::Structure, Vectors::PERHAPS));
    }
    let mut classes = [Class::None; 2];
    classify(entry, 0, &mut classes, units, 0)?;
    let number = |wanted| classes.iter().map(|class| u8::from(*class == wanted)).sum::<u8>();
    match (number(Class::Integer), number(Class::Other)) {
        // An empty class of C++ has a byte.
        (0, 0) => Err(Unsure::Type),
        (0, vectors) => Ok(Passing::Elsewhere(ParameterKind::Structure, Vectors::of(vectors))),
        (integers, vectors) => Ok(Passing::Registers(integers, vectors)),
    }
}

/// Notes the classes of what lies `offset` bytes behind the begin of a structure.
fn classify(
    of: &Entry,
    offset: u64,
    classes: &mut [Class; 2],
    units: &mut Units<'_>,
    depth: u32,
) -> Result<(), Unsure> {
    if depth > MAX_DEPTH {
        return Err(Unsure::Type);
    }
    let (entry, die) = plain(of.clone(), units)?;
    let size = number(&die, constants::DW_AT_byte_size);
    let mut note = |class, size: u64| {
        // What is not aligned puts the whole into memory.
        if size == 0 || !offset.is_multiple_of(size.min(8)) || offset + size > 16 {
            return Err(Unsure::Type);
        }
        for eight in offset / 8..(offset + size).div_ceil(8) {
            // OK because it is below 2.
            let own = &mut classes[eight as usize];
            *own = if *own == Class::Integer { Class::Integer } else { class };
        }
        Ok(())
    };
    match die.tag() {
        constants::DW_TAG_base_type => {
            let size = size.ok_or(Unsure::Type)?;
            match of_base(&die, size)? {
                Passing::Register(_) => note(Class::Integer, size),
                // What shares its bytes with a `long double` is in memory or not, by rules of its own.
                Passing::Elsewhere(..) if size <= 8 => note(Class::Other, size),
                _ => Err(Unsure::Type),
            }
        }
        constants::DW_TAG_pointer_type
        | constants::DW_TAG_reference_type
        | constants::DW_TAG_rvalue_reference_type => note(Class::Integer, 8),
        constants::DW_TAG_enumeration_type => note(Class::Integer, size.ok_or(Unsure::Type)?),
        constants::DW_TAG_array_type => elements(&entry, &die, offset, classes, units, depth),
        constants::DW_TAG_structure_type | constants::DW_TAG_class_type | constants::DW_TAG_union_type => {
            members(&entry, offset, classes, units, depth)
        }
        _ => Err(Unsure::Type),
    }
}

fn members(
    of: &Entry,
    offset: u64,
    classes: &mut [Class; 2],
    units: &mut Units<'_>,
    depth: u32,
) -> Result<(), Unsure> {
    for member in of.children(MAX_MEMBERS)? {
        let die = member.die()?;
        let is_part = matches!(die.tag(), constants::DW_TAG_member | constants::DW_TAG_inheritance);
        if !is_part || is_static(&die) {
            continue;
        }
        if let Some(bit) = number(&die, constants::DW_AT_data_bit_offset) {
            let bits = number(&die, constants::DW_AT_bit_size).ok_or(Unsure::Type)?;
            if bit % 64 + bits > 64 || !offset.is_multiple_of(8) {
                return Err(Unsure::Type);
            }
            let own = classes.get_mut(usize::try_from(offset / 8 + bit / 64).unwrap_or(2));
            *own.ok_or(Unsure::Type)? = Class::Integer;
            continue;
        }
        // Older forms of bit fields count from the other end.
        if die.has_attr(constants::DW_AT_bit_offset) || die.has_attr(constants::DW_AT_bit_size) {
            return Err(Unsure::Type);
        }
        let within = match die.attr_value(constants::DW_AT_data_member_location) {
            // Members of a union have none.
            None => 0,
            Some(value) => value.udata_value().ok_or(Unsure::Type)?,
        };
        let kind = member.follow(&die, constants::DW_AT_type, units)?.ok_or(Unsure::Type)?;
        classify(&kind, offset.saturating_add(within), classes, units, depth + 1)?;
    }
    Ok(())
}

fn elements(
    of: &Entry,
    die: &Die,
    offset: u64,
    classes: &mut [Class; 2],
    units: &mut Units<'_>,
    depth: u32,
) -> Result<(), Unsure> {
    // A vector is an array that lies in one vector register, whatever its elements are.
    if die.has_attr(constants::DW_AT_GNU_vector) {
        return Err(Unsure::Type);
    }
    let element = of.follow(die, constants::DW_AT_type, units)?.ok_or(Unsure::Type)?;
    let mut count = 1_u64;
    for child in of.children(MAX_MEMBERS)? {
        let die = child.die()?;
        let bound = number(&die, constants::DW_AT_upper_bound).map(|bound| bound.saturating_add(1));
        count = count.saturating_mul(number(&die, constants::DW_AT_count).or(bound).ok_or(Unsure::Type)?);
    }
    let (_, element_die) = plain(element.clone(), units)?;
    let size = match element_die.tag() {
        constants::DW_TAG_pointer_type => 8,
        _ => number(&element_die, constants::DW_AT_byte_size).ok_or(Unsure::Type)?,
    };
    if size == 0 || count.saturating_mul(size) > 16 || count == 0 {
        return Err(Unsure::Type);
    }
    for i in 0..count {
        classify(&element, offset + i * size, classes, units, depth + 1)?;
    }
    Ok(())
}
