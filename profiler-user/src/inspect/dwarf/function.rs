//! The parameters of one function: their names, and the registers that the calling convention gives them.
//!
//! Whether a structure takes registers, and how many, is concluded from members of types, where much may be overlooked. So nothing is told of what lies
//! behind a structure unless the debug information says of a parameter behind it that it is in the register that is expected. It does in optimised code; in
//! other code (`-O0`) it says the place on the stack where a parameter is kept.

use super::super::prototype::{Parameter, ParameterKind, Prototype};
use super::returned::{Returned, returned};
use super::types::{Die, Entry, Language, Passing, Unsure, Vectors, passing};
use super::units::{Found, Unit, Units};
use gimli::{AttributeValue, Operation, constants};
use std::rc::Rc;

/// Entries below a function that are looked at: parameters come first.
const MAX_CHILDREN: usize = 1 << 12;
/// More parameters than anybody writes.
const MAX_PARAMETERS: usize = 256;
/// A longer name is cut off, characters.
const MAX_NAME: usize = 64;
/// Numbers of `rdi`, `rsi`, `rdx`, `rcx`, `r8`, `r9` in debug information (System V ABI, figure 3.36).
const REGISTERS: [u16; 6] = [5, 4, 1, 2, 8, 9];

/// Why a function has no prototype.
#[derive(Debug)]
pub(super) enum Unknown {
    /// Its language passes arguments in its own way.
    Language,
    /// The compiler has changed what it takes, or how.
    Changed,
    /// It is not sure how it takes or returns something.
    Unsure,
    /// The debug information is of lines alone.
    OnlyLines,
    /// The debug information cannot be read.
    Read(gimli::Error),
}

impl From<gimli::Error> for Unknown {
    fn from(error: gimli::Error) -> Self {
        Self::Read(error)
    }
}

impl From<Unsure> for Unknown {
    fn from(unsure: Unsure) -> Self {
        match unsure {
            Unsure::Type => Self::Unsure,
            Unsure::Read(error) => Self::Read(error),
        }
    }
}

/// A parameter as it is declared.
struct Declared {
    name: String,
    kind: Option<Entry>,
    is_artificial: bool,
    /// Number of the register that holds it where the function begins, if the debug information says that of one.
    found: Option<u16>,
}

/// A function as it is declared.
struct Signature {
    parameters: Vec<Declared>,
    is_variadic: bool,
    returns: Option<Entry>,
    /// The entry that declares it.
    origin: Entry,
}

/// Parameters that were given their registers, from the first on.
#[derive(Debug, Default)]
struct Layout {
    prototype: Prototype,
    /// Integer registers that are taken.
    next: u8,
    /// Vector registers that are taken.
    vectors: Vectors,
    /// The first structure behind which no parameter was found where it is expected: how many parameters and integer registers came before it.
    doubt: Option<(usize, u8)>,
}

/// Reads the parameters of a function.
pub(super) fn prototype(found: Found, vaddr: u64, units: &mut Units<'_>) -> Result<Prototype, Unknown> {
    let function = Entry { unit: found.unit, at: found.entry };
    let Signature { parameters, is_variadic, returns, origin } = signature(&function, vaddr, units)?;
    // A link-time optimizer puts functions of several languages into one unit.
    let language = match language(&origin.unit)? {
        Some(language) => language,
        None => language(&function.unit)?.ok_or(Unknown::Language)?,
    };
    if parameters.is_empty() && !has_types(&function.unit)? && !has_types(&origin.unit)? {
        return Err(Unknown::OnlyLines);
    }
    let returned = match returns {
        None => Returned::IN_REGISTERS,
        Some(kind) => returned(kind, language, units)?,
    };
    // An address for what it returns comes first.
    let mut layout = Layout { next: u8::from(returned.by_address), ..Layout::default() };
    layout.prototype.is_variadic = is_variadic;
    layout.doubt = (!returned.is_sure).then_some((0, 0));
    for (i, own) in parameters.into_iter().enumerate() {
        let passed = match own.kind {
            None => Err(Unsure::Type),
            Some(ref kind) => passing(kind.clone(), language, units),
        };
        let passed = match passed {
            Err(Unsure::Read(error)) => return Err(Unknown::Read(error)),
            Err(Unsure::Type) => None,
            Ok(passed) => Some(passed),
        };
        // What a compiler adds (`__vtt_parm`), but for the object of a method.
        let is_added = own.is_artificial && (i > 0 || own.name != "this");
        // Rust promises nothing of what it does with a structure, whatever comes before it.
        if language == Language::Rust && (is_added || passed.is_none()) {
            return Err(Unknown::Unsure);
        }
        layout.place(own, passed.filter(|_| !is_added), passed)?;
    }
    Ok(layout.into_prototype())
}

impl Layout {
    /// Gives a parameter its registers. `known`: how it is passed, if that is sure; `passed`: if it is only likely.
    fn place(
        &mut self,
        own: Declared,
        known: Option<Passing>,
        passed: Option<Passing>,
    ) -> Result<(), Unknown> {
        let known = match known {
            // It is a pointer if it is in a register.
            Some(Passing::Function) => {
                let is_here =
                    own.found.is_some() && own.found == REGISTERS.get(usize::from(self.next)).copied();
                is_here.then_some(Passing::Register(ParameterKind::Pointer))
            }
            known => known,
        };
        let known = known.filter(|_| self.prototype.unknown_from.is_none());
        let Some((passed, fits)) = known.and_then(|passed| Some((passed, self.fits(passed)?))) else {
            self.prototype.unknown_from.get_or_insert(self.next);
            let kind = match passed {
                Some(Passing::Register(kind) | Passing::Elsewhere(kind, _)) => kind,
                Some(Passing::Function) => ParameterKind::Pointer,
                _ => ParameterKind::Structure,
            };
            self.prototype.parameters.push(Parameter { name: own.name, kind, register: None });
            return Ok(());
        };
        let before = (self.prototype.parameters.len(), self.next);
        self.add(own.name, passed, fits);
        let expected =
            (self.next > before.1).then(|| REGISTERS.get(usize::from(before.1)).copied()).flatten();
        if own.found.is_some_and(|found| is_elsewhere(found, expected, passed)) {
            return Err(Unknown::Changed);
        }
        if expected.is_some() && own.found == expected {
            self.doubt = None;
        }
        let is_concluded = matches!(
            passed,
            Passing::Registers(..) | Passing::Elsewhere(ParameterKind::Structure, _) | Passing::Nothing
        );
        if is_concluded {
            self.doubt.get_or_insert(before);
        }
        Ok(())
    }

    /// Whether there are registers for it; `None`: that is not known.
    fn fits(&self, passed: Passing) -> Option<bool> {
        let Passing::Registers(integers, vectors) = passed else { return Some(true) };
        if self.next + integers > 6 { Some(false) } else { self.vectors.fit(vectors) }
    }

    /// A parameter takes its registers.
    fn add(&mut self, name: String, passed: Passing, fits: bool) {
        let Self { prototype: Prototype { parameters, .. }, next, vectors, .. } = self;
        let one = |next: &mut u8| {
            let register = (*next < 6).then_some(*next);
            *next += u8::from(register.is_some());
            register
        };
        match passed {
            Passing::Nothing | Passing::Function => {}
            Passing::Elsewhere(kind, taken) => {
                vectors.take(taken);
                parameters.push(Parameter { name, kind, register: None });
            }
            Passing::Register(kind) => parameters.push(Parameter { name, kind, register: one(next) }),
            Passing::Registers(integers, taken) => {
                if fits {
                    *next += integers;
                    vectors.take(Vectors::of(taken));
                }
                parameters.push(Parameter { name, kind: ParameterKind::Structure, register: None });
            }
            Passing::Two(first, second) => {
                let of = |part| if name.is_empty() { String::new() } else { format!("{name}.{part}") };
                let second_name = of(if second == ParameterKind::Pointer { "vtable" } else { "len" });
                parameters.push(Parameter { name: of("ptr"), kind: first, register: one(next) });
                parameters.push(Parameter { name: second_name, kind: second, register: one(next) });
            }
        }
    }

    /// What is sure of it.
    fn into_prototype(self) -> Prototype {
        let mut prototype = self.prototype;
        if let Some((at, from)) = self.doubt {
            let behind = prototype.parameters.get_mut(at..).unwrap_or_default();
            let may_be_in_register = |parameter: &Parameter| {
                !matches!(parameter.kind, ParameterKind::Float | ParameterKind::Structure)
            };
            if prototype.unknown_from.is_some() || behind.iter().any(may_be_in_register) {
                behind.iter_mut().for_each(|parameter| parameter.register = None);
                prototype.unknown_from = Some(from);
            }
        }
        if prototype.unknown_from == Some(6) {
            prototype.unknown_from = None;
        }
        prototype
    }
}

/// The debug information has a parameter in another register than its type says, so the function is not called as others are.
fn is_elsewhere(found: u16, expected: Option<u16>, passed: Passing) -> bool {
    // A structure may begin with what a vector register holds.
    let counts = matches!(passed, Passing::Register(_)) && expected.is_some() || REGISTERS.contains(&found);
    counts && Some(found) != expected
}

/// The language of a unit, if its functions are called as the System V ABI says, or as Rust does. `None`: the unit does not say it.
fn language(unit: &Unit) -> Result<Option<Language>, Unknown> {
    let mut entries = unit.entries();
    let root = entries.next_dfs()?.ok_or(Unknown::Language)?;
    let Some(value) = root.attr_value(constants::DW_AT_language) else { return Ok(None) };
    let AttributeValue::Language(language) = value else { return Err(Unknown::Language) };
    let language = match language {
        constants::DW_LANG_C
        | constants::DW_LANG_C89
        | constants::DW_LANG_C99
        | constants::DW_LANG_C11
        | constants::DW_LANG_C17 => Language::C,
        constants::DW_LANG_C_plus_plus
        | constants::DW_LANG_C_plus_plus_03
        | constants::DW_LANG_C_plus_plus_11
        | constants::DW_LANG_C_plus_plus_14
        | constants::DW_LANG_C_plus_plus_17
        | constants::DW_LANG_C_plus_plus_20 => Language::Cpp,
        constants::DW_LANG_Rust => Language::Rust,
        _ => return Err(Unknown::Language),
    };
    Ok(Some(language))
}

/// A unit tells of types. With lines alone (`-g1`, `line-tables-only`) no function seems to have a parameter.
fn has_types(unit: &Unit) -> gimli::Result<bool> {
    let mut tree = unit.entries_tree(None)?;
    let mut children = tree.root()?.children();
    while let Some(child) = children.next()? {
        let is_type = matches!(
            child.entry().tag(),
            constants::DW_TAG_base_type
                | constants::DW_TAG_pointer_type
                | constants::DW_TAG_structure_type
                | constants::DW_TAG_class_type
                | constants::DW_TAG_typedef
        );
        if is_type {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a function with code takes and returns.
fn signature(function: &Entry, vaddr: u64, units: &mut Units<'_>) -> Result<Signature, Unknown> {
    let mut die = function.die()?;
    let mut of = function.clone();
    let mut returns = of.follow(&die, constants::DW_AT_type, units)?;
    check_convention(&die)?;
    let (own, mut is_variadic) = below(function)?;
    // A copy of a function that was inlined elsewhere refers to that function, one of a class to its declaration.
    for i in 0..4 {
        let origin = match of.follow(&die, constants::DW_AT_abstract_origin, units)? {
            Some(origin) => {
                let (parameters, variadic) = below(&origin)?;
                is_variadic |= variadic;
                if i == 0 && !is_same(&own, &parameters, units)? {
                    return Err(Unknown::Changed);
                }
                Some(origin)
            }
            None => of.follow(&die, constants::DW_AT_specification, units)?,
        };
        let Some(origin) = origin else { break };
        die = origin.die()?;
        check_convention(&die)?;
        if returns.is_none() {
            returns = origin.follow(&die, constants::DW_AT_type, units)?;
        }
        of = origin;
    }
    let parameters =
        own.iter().map(|own| parameter(own, vaddr, units)).collect::<Result<Vec<_>, Unknown>>()?;
    Ok(Signature { parameters, is_variadic, returns, origin: of })
}

/// A copy of a function has the parameters of its origin, in the same order: what it no longer takes is missing, or comes last.
fn is_same(own: &[Entry], origins: &[Entry], units: &mut Units<'_>) -> Result<bool, Unknown> {
    for (own, expected) in own.iter().zip(origins) {
        let origin = own.follow(&own.die()?, constants::DW_AT_abstract_origin, units)?;
        let is_it = |origin: &Entry| origin.at == expected.at && Rc::ptr_eq(&origin.unit, &expected.unit);
        if !origin.as_ref().is_some_and(is_it) {
            return Ok(false);
        }
    }
    Ok(own.len() == origins.len())
}

/// The function is called as its ABI says: LLVM marks those of which it has changed that.
fn check_convention(die: &Die) -> Result<(), Unknown> {
    match die.attr_value(constants::DW_AT_calling_convention) {
        None
        | Some(AttributeValue::CallingConvention(constants::DW_CC_normal | constants::DW_CC_program)) => {
            Ok(())
        }
        Some(_) => Err(Unknown::Changed),
    }
}

/// The parameters below the entry of a function, and whether there are variable ones.
fn below(function: &Entry) -> Result<(Vec<Entry>, bool), Unknown> {
    let (mut parameters, mut is_variadic) = (Vec::new(), false);
    for child in function.children(MAX_CHILDREN)? {
        match child.die()?.tag() {
            constants::DW_TAG_formal_parameter => parameters.push(child),
            // Those that stand for `...` in a template, in their order.
            constants::DW_TAG_GNU_formal_parameter_pack => parameters.append(&mut below(&child)?.0),
            constants::DW_TAG_unspecified_parameters => is_variadic = true,
            _ => {}
        }
    }
    if parameters.len() > MAX_PARAMETERS {
        return Err(Unknown::Unsure);
    }
    Ok((parameters, is_variadic))
}

fn parameter(own: &Entry, vaddr: u64, units: &mut Units<'_>) -> Result<Declared, Unknown> {
    let mut die = own.die()?;
    // A value that is always the same is not passed any more.
    if die.has_attr(constants::DW_AT_const_value) {
        return Err(Unknown::Changed);
    }
    let found = place(&own.unit, &die, vaddr, units)?;
    let mut of = own.clone();
    let (mut name, mut kind, mut is_artificial) = (None, None, false);
    for _ in 0..4 {
        name = name.or(of.text(&die, constants::DW_AT_name, units)?);
        if kind.is_none() {
            kind = of.follow(&die, constants::DW_AT_type, units)?;
        }
        is_artificial |= die.has_attr(constants::DW_AT_artificial);
        let Some(origin) = of.follow(&die, constants::DW_AT_abstract_origin, units)? else { break };
        die = origin.die()?;
        of = origin;
    }
    Ok(Declared { name: name.map(plain_name).unwrap_or_default(), kind, is_artificial, found })
}

/// A name that can be told and written; else none.
fn plain_name(name: String) -> String {
    let is_plain = name.chars().all(|c| c.is_alphanumeric() || c == '_') && name.len() <= MAX_NAME;
    if is_plain { name } else { String::new() }
}

/// Number of the register that a parameter is in where the function begins; `None`: the debug information says another place, or nothing.
fn place(unit: &Unit, die: &Die, vaddr: u64, units: &Units<'_>) -> Result<Option<u16>, Unknown> {
    let Some(value) = die.attr_value(constants::DW_AT_location) else { return Ok(None) };
    let expression = match value {
        AttributeValue::Exprloc(expression) => Some(expression),
        value => {
            let mut found = None;
            if let Some(mut list) = units.dwarf.attr_locations(unit, value)? {
                while let Some(entry) = list.next()? {
                    if (entry.range.begin..entry.range.end).contains(&vaddr) {
                        found = Some(entry.data);
                        break;
                    }
                }
            }
            found
        }
    };
    let Some(expression) = expression else { return Ok(None) };
    // An operation that gimli does not know says no register.
    Ok(match expression.operations(unit.encoding()).next() {
        Ok(Some(Operation::Register { register })) => Some(register.0),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_written_are_none() {
        let of = |name: &str| plain_name(name.to_owned());
        assert_eq!((of("n_1").as_str(), of("größe").as_str()), ("n_1", "größe"));
        assert_eq!((of("a,b").as_str(), of(&"n".repeat(65)).as_str()), ("", ""));
    }

    #[test]
    fn a_structure_that_does_not_fit_leaves_its_registers_to_others() {
        let mut layout = Layout { next: 4, ..Layout::default() };
        for (name, passed) in [
            ("a", Passing::Register(ParameterKind::Signed(8))),
            ("pair", Passing::Registers(2, 0)),
            ("b", Passing::Register(ParameterKind::Unsigned(4))),
            ("c", Passing::Register(ParameterKind::Pointer)),
        ] {
            let fits = layout.fits(passed).unwrap();
            layout.add(name.to_owned(), passed, fits);
        }
        assert_eq!(layout.prototype.to_string(), "a=arg4:long,pair=-:structure,b=arg5:u32,c=-:pointer");
    }

    #[test]
    fn vector_registers_are_counted() {
        let fits = |least, most, vectors| {
            let layout = Layout { vectors: Vectors { least, most }, ..Layout::default() };
            layout.fits(Passing::Registers(1, vectors))
        };
        assert_eq!((fits(7, 7, 1), fits(8, 8, 1), fits(8, 8, 0)), (Some(true), Some(false), Some(true)));
        // One of them may be a `long double`, which takes none.
        assert_eq!((fits(7, 8, 1), fits(7, 8, 0)), (None, Some(true)));
    }
}
