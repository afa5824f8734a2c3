//! From an address to the entry of its function: by `.debug_aranges`, else by what each unit says of its addresses.

use super::sections::Piece;
use gimli::{
    AttributeValue, DebugAddrBase, DebugInfoOffset, DebugLocListsBase, DebugRngListsBase,
    DebugStrOffsetsBase, Dwarf, DwarfFileType, EntriesTreeNode, UnitHeader, UnitOffset, UnitType, constants,
};
use std::collections::HashMap;
use std::rc::Rc;

/// A unit.
pub(super) type Unit = gimli::Unit<Piece>;

/// Address ranges and units that are kept of one file; beyond that no more is known.
const MAX_KNOWN: usize = 1 << 20;
/// Namespaces inside namespaces.
const MAX_DEPTH: usize = 64;

/// What is known of the units of one file: it stays true as long as the file is the same.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Link-time addresses (begin, end) and the unit that has them.
    ranges: Vec<(u64, u64, usize)>,
    has_aranges: bool,
    /// All units were asked for their addresses.
    is_whole: bool,
    /// Begins of the units, in order.
    starts: Vec<usize>,
    /// Of units that were looked through: entries of functions by their addresses.
    functions: HashMap<usize, HashMap<u64, usize>>,
}

/// The entry of a function.
pub(super) struct Found {
    pub unit: Rc<Unit>,
    pub entry: UnitOffset,
}

/// A file's debug information, while a question is answered.
pub(super) struct Units<'a> {
    pub dwarf: &'a Dwarf<Piece>,
    index: &'a mut Index,
    open: HashMap<usize, Rc<Unit>>,
}

impl<'a> Units<'a> {
    pub fn new(dwarf: &'a Dwarf<Piece>, index: &'a mut Index) -> Self {
        Self { dwarf, index, open: HashMap::new() }
    }

    /// The entry of the function that begins at a link-time address.
    pub fn function(&mut self, vaddr: u64) -> gimli::Result<Option<Found>> {
        if !self.index.has_aranges {
            self.index.has_aranges = true;
            self.read_aranges()?;
        }
        if let Some(found) = self.among_known(vaddr)? {
            return Ok(Some(found));
        }
        // Compilers need not write `.debug_aranges`, and some units of a file may lack them.
        if self.index.is_whole {
            return Ok(None);
        }
        // What cannot be read is not read again for each function.
        self.index.is_whole = true;
        self.read_ranges()?;
        self.among_known(vaddr)
    }

    fn among_known(&mut self, vaddr: u64) -> gimli::Result<Option<Found>> {
        let has = |(begin, end, _): &&(u64, u64, usize)| (*begin..*end).contains(&vaddr);
        let mut units: Vec<usize> = self.index.ranges.iter().filter(has).map(|(.., unit)| *unit).collect();
        units.dedup();
        for start in units {
            let unit = self.at(start)?;
            if !self.index.functions.contains_key(&start) {
                let functions = functions_of(self.dwarf, &unit)?;
                self.index.functions.insert(start, functions);
            }
            let entry = self.index.functions.get(&start).and_then(|functions| functions.get(&vaddr));
            if let Some(entry) = entry.copied() {
                return Ok(Some(Found { unit, entry: UnitOffset(entry) }));
            }
        }
        Ok(None)
    }

    fn read_aranges(&mut self) -> gimli::Result<()> {
        let mut headers = self.dwarf.debug_aranges.headers();
        while let Some(header) = headers.next()? {
            let mut entries = header.entries();
            while let Some(entry) = entries.next()? {
                self.add(entry.address(), entry.range().end, header.debug_info_offset().0);
            }
        }
        Ok(())
    }

    fn read_ranges(&mut self) -> gimli::Result<()> {
        let mut headers = self.dwarf.units();
        while let Some(header) = headers.next()? {
            let start = header.debug_info_offset().map_or(0, |offset| offset.0);
            if header.type_() != UnitType::Compilation {
                continue;
            }
            let unit = opened(self.dwarf, header)?;
            let mut ranges = self.dwarf.unit_ranges(&unit)?;
            while let Some(range) = ranges.next()? {
                self.add(range.begin, range.end, start);
            }
        }
        Ok(())
    }

    fn add(&mut self, begin: u64, end: u64, unit: usize) {
        if self.index.ranges.len() < MAX_KNOWN && begin < end {
            self.index.ranges.push((begin, end, unit));
        }
    }

    /// The unit that begins at an offset of `.debug_info`.
    fn at(&mut self, start: usize) -> gimli::Result<Rc<Unit>> {
        if let Some(unit) = self.open.get(&start) {
            return Ok(Rc::clone(unit));
        }
        let unit = Rc::new(opened(self.dwarf, self.dwarf.unit_header(DebugInfoOffset(start))?)?);
        self.open.insert(start, Rc::clone(&unit));
        Ok(unit)
    }

    /// The unit that holds an offset of `.debug_info`, and where in it that is.
    pub fn around(&mut self, offset: DebugInfoOffset) -> gimli::Result<Option<(Rc<Unit>, UnitOffset)>> {
        if self.index.starts.is_empty() {
            let mut headers = self.dwarf.units();
            while let Some(header) = headers.next()? {
                let start = header.debug_info_offset().map_or(0, |offset| offset.0);
                if self.index.starts.len() < MAX_KNOWN {
                    self.index.starts.push(start);
                }
            }
        }
        let behind = self.index.starts.partition_point(|start| *start <= offset.0);
        let Some(start) = behind.checked_sub(1).and_then(|at| self.index.starts.get(at)).copied() else {
            return Ok(None);
        };
        let unit = self.at(start)?;
        Ok(offset.to_unit_offset(&unit.header).map(|entry| (unit, entry)))
    }
}

/// Opens a unit, as `Dwarf::unit` does, but for its line table: that one is large, and nobody here asks for lines.
fn opened(dwarf: &Dwarf<Piece>, header: UnitHeader<Piece>) -> gimli::Result<Unit> {
    let (encoding, main) = (header.encoding(), DwarfFileType::Main);
    let mut unit = Unit {
        abbreviations: dwarf.abbreviations(&header)?,
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(encoding, main),
        addr_base: DebugAddrBase(0),
        loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, main),
        rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, main),
        line_program: None,
        dwo_id: None,
        header,
    };
    let root = {
        let mut entries = unit.header.entries(&unit.abbreviations);
        entries.next_dfs()?.ok_or(gimli::Error::MissingUnitDie)?.clone()
    };
    for attribute in root.attrs() {
        match attribute.value() {
            AttributeValue::DebugStrOffsetsBase(base) => unit.str_offsets_base = base,
            AttributeValue::DebugAddrBase(base) => unit.addr_base = base,
            AttributeValue::DebugLocListsBase(base) => unit.loclists_base = base,
            AttributeValue::DebugRngListsBase(base) => unit.rnglists_base = base,
            _ => {}
        }
    }
    // An address may be the number of one in a table, which the bases tell.
    if let Some(value) = root.attr_value(constants::DW_AT_low_pc) {
        unit.low_pc = dwarf.attr_address(&unit, value)?.unwrap_or(0);
    }
    Ok(unit)
}

/// The functions of a unit with code, by their addresses.
fn functions_of(dwarf: &Dwarf<Piece>, unit: &Unit) -> gimli::Result<HashMap<u64, usize>> {
    let mut functions = HashMap::new();
    let mut tree = unit.entries_tree(None)?;
    collect(dwarf, unit, tree.root()?, &mut functions, 0)?;
    Ok(functions)
}

fn collect(
    dwarf: &Dwarf<Piece>,
    unit: &Unit,
    node: EntriesTreeNode<'_, '_, Piece>,
    functions: &mut HashMap<u64, usize>,
    depth: usize,
) -> gimli::Result<()> {
    if node.entry().tag() == constants::DW_TAG_subprogram {
        let entry = node.entry();
        let low = entry.attr_value(constants::DW_AT_low_pc);
        if let Some(address) = low.map(|value| dwarf.attr_address(unit, value)).transpose()?.flatten() {
            functions.entry(address).or_insert(entry.offset().0);
        } else if entry.has_attr(constants::DW_AT_ranges) {
            // Its cold part lies apart: the hot one begins with it.
            if let Some(range) = dwarf.die_ranges(unit, entry)?.next()? {
                functions.entry(range.begin).or_insert(entry.offset().0);
            }
        }
    }
    if depth >= MAX_DEPTH || node.entry().tag() == constants::DW_TAG_subprogram {
        return Ok(());
    }
    let mut children = node.children();
    while let Some(child) = children.next()? {
        // What lies inside functions (variables, inlined calls) is most of a unit, and is skipped over.
        let holds = matches!(
            child.entry().tag(),
            constants::DW_TAG_subprogram
                | constants::DW_TAG_namespace
                | constants::DW_TAG_module
                | constants::DW_TAG_structure_type
                | constants::DW_TAG_class_type
                | constants::DW_TAG_union_type
        );
        if holds {
            collect(dwarf, unit, child, functions, depth + 1)?;
        }
    }
    Ok(())
}
