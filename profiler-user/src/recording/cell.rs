//! Cells and columns: how a field of a row becomes a Parquet column, and back.
//!
//! What: [`Cell`] maps a Rust type to one of five column types that every SQL engine knows; [`Column`] holds
//! the cells of one row group; [`Table`] lists a row's columns. Integers are stored signed (`BIGINT`), since
//! differences of unsigned times overflow in SQL and some engines lack unsigned types; only addresses and
//! argument registers, which use all 64 bits, are `UBIGINT`. Enums are strings, lists are one JSON string. It does no I/O.

use profiler_core::class::{ExitMode, RecordKind, SiteClass};
use profiler_core::recording::{CallerRule, ChangeKind, Charge, OperationCycleEnd, WindowKind, WordStatus};
use serde::Deserialize;
use serde::de::IntoDeserializer;

/// SQL type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    /// 64-bit signed integer.
    Bigint,
    /// 64-bit unsigned integer.
    Ubigint,
    /// 64-bit float.
    Double,
    /// True or false.
    Boolean,
    /// UTF-8.
    Text,
    /// UTF-8 that holds a JSON array of strings or of numbers.
    Json,
}

impl ColumnType {
    /// The name used in `docs/formats.md`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bigint => "BIGINT",
            Self::Ubigint => "UBIGINT",
            Self::Double => "DOUBLE",
            Self::Boolean => "BOOLEAN",
            Self::Text => "TEXT",
            Self::Json => "JSON",
        }
    }
}

/// How a column is packed before compression. A matter of speed and size only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Few distinct values: a dictionary.
    Dictionary,
    /// Integers that grow or lie close together: differences, bit-packed.
    Delta,
    /// As they are.
    Plain,
}

/// One column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Name, with its unit.
    pub name: &'static str,
    /// Type.
    pub ty: ColumnType,
    /// May be null.
    pub optional: bool,
    /// Packing.
    pub encoding: Encoding,
}

/// The values of a [`Column`], by physical type.
#[derive(Debug, Clone)]
pub(super) enum Data {
    /// `BIGINT`, and `UBIGINT` bit by bit.
    Int(Vec<i64>),
    /// `DOUBLE`.
    Real(Vec<f64>),
    /// `BOOLEAN`.
    Bool(Vec<bool>),
    /// `TEXT`, `JSON`.
    Text(Vec<parquet::data_type::ByteArray>),
}

/// The cells of one column in one row group.
#[derive(Debug, Clone)]
pub struct Column {
    /// Values that are present.
    pub(super) data: Data,
    /// For optional columns: 1 where a value is present, 0 where it is null (Parquet's definition levels).
    pub(super) present: Vec<i16>,
    /// Where [`Cell::take`] reads next: value, row.
    cursor: (usize, usize),
}

/// A cell that cannot be what its column says.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// The file's type is another.
    #[error("a value has another type than the column's")]
    Type,
    /// The column ended early.
    #[error("the column is shorter than the row group says")]
    End,
    /// A null where none may be.
    #[error("a value is missing")]
    Null,
    /// A number that does not fit.
    #[error("the number {0} is out of range")]
    Range(i64),
    /// A string that is no member of the enum, no JSON, or no UTF-8.
    #[error("the text '{0}' is not one of the values that this version knows")]
    Text(String),
}

impl Column {
    /// An empty column of type `ty`.
    #[must_use]
    pub fn new(ty: ColumnType) -> Self {
        let data = match ty {
            ColumnType::Bigint | ColumnType::Ubigint => Data::Int(Vec::new()),
            ColumnType::Double => Data::Real(Vec::new()),
            ColumnType::Boolean => Data::Bool(Vec::new()),
            ColumnType::Text | ColumnType::Json => Data::Text(Vec::new()),
        };
        Self { data, present: Vec::new(), cursor: (0, 0) }
    }

    /// Forgets the cells, keeps the memory.
    pub fn clear(&mut self) {
        match &mut self.data {
            Data::Int(v) => v.clear(),
            Data::Real(v) => v.clear(),
            Data::Bool(v) => v.clear(),
            Data::Text(v) => v.clear(),
        }
        self.present.clear();
        self.cursor = (0, 0);
    }

    // The four `put`s ignore a value of another type: `Table::columns` and `Table::put` come from one list,
    // and the round-trip test covers every column.
    fn put_int(&mut self, value: i64) {
        if let Data::Int(v) = &mut self.data {
            v.push(value);
        }
    }

    fn put_text(&mut self, value: &[u8]) {
        if let Data::Text(v) = &mut self.data {
            v.push(value.to_vec().into());
        }
    }

    fn take_int(&mut self) -> Result<i64, CellError> {
        let Data::Int(v) = &self.data else { return Err(CellError::Type) };
        let value = *v.get(self.cursor.0).ok_or(CellError::End)?;
        self.cursor.0 += 1;
        Ok(value)
    }

    fn take_text(&mut self) -> Result<String, CellError> {
        let Data::Text(v) = &self.data else { return Err(CellError::Type) };
        let bytes = v.get(self.cursor.0).ok_or(CellError::End)?.data();
        self.cursor.0 += 1;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(CellError::Text(String::from_utf8_lossy(bytes).into_owned())),
        }
    }
}

/// A Rust type that is one cell of a column.
pub trait Cell: Sized {
    /// SQL type.
    const TYPE: ColumnType;
    /// May be null.
    const OPTIONAL: bool = false;
    /// Appends the cell.
    fn put(&self, column: &mut Column);
    /// Reads the next cell.
    ///
    /// # Errors
    /// The column ended, has another type, or holds a value that this version does not know.
    fn take(column: &mut Column) -> Result<Self, CellError>;
}

impl Cell for u64 {
    const TYPE: ColumnType = ColumnType::Bigint;
    fn put(&self, column: &mut Column) {
        // Bit by bit: a value above 2^63 shows as negative in SQL and comes back whole here.
        column.put_int(self.cast_signed());
    }
    fn take(column: &mut Column) -> Result<Self, CellError> {
        column.take_int().map(i64::cast_unsigned)
    }
}

impl Cell for i64 {
    const TYPE: ColumnType = ColumnType::Bigint;
    fn put(&self, column: &mut Column) {
        column.put_int(*self);
    }
    fn take(column: &mut Column) -> Result<Self, CellError> {
        column.take_int()
    }
}

/// An address, or a register: all 64 bits in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Cell for Word {
    const TYPE: ColumnType = ColumnType::Ubigint;
    fn put(&self, column: &mut Column) {
        self.0.put(column);
    }
    fn take(column: &mut Column) -> Result<Self, CellError> {
        u64::take(column).map(Self)
    }
}

impl Cell for u32 {
    const TYPE: ColumnType = ColumnType::Bigint;
    fn put(&self, column: &mut Column) {
        column.put_int(i64::from(*self));
    }
    fn take(column: &mut Column) -> Result<Self, CellError> {
        let value = column.take_int()?;
        Self::try_from(value).map_err(|_| CellError::Range(value))
    }
}

impl Cell for f64 {
    const TYPE: ColumnType = ColumnType::Double;
    fn put(&self, column: &mut Column) {
        if let Data::Real(v) = &mut column.data {
            v.push(*self);
        }
    }
    fn take(column: &mut Column) -> Result<Self, CellError> {
        let Data::Real(v) = &column.data else { return Err(CellError::Type) };
        let value = *v.get(column.cursor.0).ok_or(CellError::End)?;
        column.cursor.0 += 1;
        Ok(value)
    }
}

impl Cell for bool {
    const TYPE: ColumnType = ColumnType::Boolean;
    fn put(&self, column: &mut Column) {
        if let Data::Bool(v) = &mut column.data {
            v.push(*self);
        }
    }
    fn take(column: &mut Column) -> Result<Self, CellError> {
        let Data::Bool(v) = &column.data else { return Err(CellError::Type) };
        let value = *v.get(column.cursor.0).ok_or(CellError::End)?;
        column.cursor.0 += 1;
        Ok(value)
    }
}

impl Cell for String {
    const TYPE: ColumnType = ColumnType::Text;
    fn put(&self, column: &mut Column) {
        column.put_text(self.as_bytes());
    }
    fn take(column: &mut Column) -> Result<Self, CellError> {
        column.take_text()
    }
}

// Lists: a JSON array.
macro_rules! list_cells {
    ($($ty:ty),*) => {$(
        impl Cell for Vec<$ty> {
            const TYPE: ColumnType = ColumnType::Json;
            fn put(&self, column: &mut Column) {
                let json = serde_json::to_string(self)
                    .expect("OK because an array of strings or numbers always has a JSON form");
                column.put_text(json.as_bytes());
            }
            fn take(column: &mut Column) -> Result<Self, CellError> {
                let text = column.take_text()?;
                serde_json::from_str(&text).map_err(|_| CellError::Text(text))
            }
        }
    )*};
}
list_cells!(String, u32);

impl<T: Cell> Cell for Option<T> {
    const TYPE: ColumnType = T::TYPE;
    const OPTIONAL: bool = true;
    fn put(&self, column: &mut Column) {
        column.present.push(i16::from(self.is_some()));
        if let Some(value) = self {
            value.put(column);
        }
    }
    fn take(column: &mut Column) -> Result<Self, CellError> {
        let present = *column.present.get(column.cursor.1).ok_or(CellError::End)?;
        column.cursor.1 += 1;
        if present == 0 { Ok(None) } else { T::take(column).map(Some) }
    }
}

// Enums: the same words as in JSON, from one definition (serde's).
macro_rules! text_cells {
    ($($ty:ty),*) => {$(
        impl Cell for $ty {
            const TYPE: ColumnType = ColumnType::Text;
            fn put(&self, column: &mut Column) {
                match serde_json::to_value(self) {
                    Ok(serde_json::Value::String(text)) => column.put_text(text.as_bytes()),
                    // OK because these enums have unit variants only, which serde writes as strings.
                    other => unreachable!("an enum cell became {other:?}"),
                }
            }
            fn take(column: &mut Column) -> Result<Self, CellError> {
                let text = column.take_text()?;
                let de: serde::de::value::StrDeserializer<'_, serde::de::value::Error> = text.as_str().into_deserializer();
                Self::deserialize(de).map_err(|_| CellError::Text(text.clone()))
            }
        }
    )*};
}
text_cells!(
    SiteClass,
    RecordKind,
    ExitMode,
    WindowKind,
    Charge,
    OperationCycleEnd,
    ChangeKind,
    CallerRule,
    WordStatus
);

/// A row type that is one Parquet table.
pub trait Table: Sized + Clone + Send + 'static {
    /// Name of the table and of its segments.
    const NAME: &'static str;
    /// Position in [`super::tables`].
    const INDEX: usize;
    /// Its columns, in order.
    fn columns() -> Vec<ColumnSpec>;
    /// Appends the row to `columns`, one cell each.
    fn put(&self, columns: &mut [Column]);
    /// Reads the next row.
    ///
    /// # Errors
    /// The name of the column and what is wrong in it.
    fn take(columns: &mut [Column]) -> Result<Self, (&'static str, CellError)>;
    /// Memory behind pointers, bytes (for the bound on queued rows).
    fn heap_bytes(&self) -> usize {
        0
    }
}
