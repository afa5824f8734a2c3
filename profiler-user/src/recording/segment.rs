//! One Parquet segment: rows to bytes, and a file back to rows.
//!
//! A segment is encoded in memory (zstd, one row group per [`ROW_GROUP`] rows), because it must be written
//! whole or not at all, and because a full disk then costs nothing but memory until there is room again.
//! Every segment carries the format version and a copy of the run's first `meta.json`, so that a recording
//! whose `meta.json` is lost still opens.

use super::cell::{Column, ColumnSpec, ColumnType, Data, Encoding, Table};
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{BoolType, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use profiler_core::recording::FORMAT_VERSION;
use std::fs::File;
use std::sync::Arc;

/// Rows of a row group: at 88 bytes an event, 5.5 MiB of buffers, and enough rows for zstd to work on.
pub(super) const ROW_GROUP: usize = 65_536;
/// Key of the copy of `meta.json` in a segment's metadata.
pub(super) const META_KEY: &str = "tithe.meta";
/// Key of the format version in a segment's metadata.
pub(super) const VERSION_KEY: &str = "tithe.format_version";

/// The Parquet schema of a table.
pub(super) fn schema(name: &str, columns: &[ColumnSpec]) -> TypePtr {
    let fields = columns
        .iter()
        .map(|c| {
            let (physical, logical) = match c.ty {
                ColumnType::Bigint => (Physical::INT64, None),
                ColumnType::Ubigint => (Physical::INT64, Some(LogicalType::integer(64, false))),
                ColumnType::Double => (Physical::DOUBLE, None),
                ColumnType::Boolean => (Physical::BOOLEAN, None),
                // JSON is annotated as text: some engines show annotated JSON as raw bytes.
                ColumnType::Text | ColumnType::Json => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            };
            let repetition = if c.optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
            let ty = Type::primitive_type_builder(c.name, physical)
                .with_repetition(repetition)
                .with_logical_type(logical)
                .build()
                .expect("OK because the schemas are constants that the tests build");
            Arc::new(ty)
        })
        .collect();
    let group = Type::group_type_builder(name).with_fields(fields).build();
    Arc::new(group.expect("OK because a group of primitive fields is always valid"))
}

/// How the columns are packed.
pub(super) fn properties(columns: &[ColumnSpec], meta_json: &str) -> WriterPropertiesPtr {
    let mut props = WriterProperties::builder()
        .set_compression(Compression::ZSTD(Default::default()))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_created_by(format!("tithe {}", env!("CARGO_PKG_VERSION")))
        .set_key_value_metadata(Some(vec![
            KeyValue::new(VERSION_KEY.to_owned(), FORMAT_VERSION.to_string()),
            KeyValue::new(META_KEY.to_owned(), meta_json.to_owned()),
        ]));
    for c in columns {
        let path = ColumnPath::from(c.name);
        props = match c.encoding {
            Encoding::Dictionary => props.set_column_dictionary_enabled(path, true),
            Encoding::Delta => props
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, parquet::basic::Encoding::DELTA_BINARY_PACKED),
            Encoding::Plain => props.set_column_dictionary_enabled(path, false),
        };
    }
    Arc::new(props.build())
}

/// Appends `columns` (each as long as the row group) to `writer` as one row group.
pub(super) fn write_group(
    writer: &mut SerializedFileWriter<Vec<u8>>,
    columns: &[Column],
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    for column in columns {
        let Some(mut out) = group.next_column()? else {
            return Err(ParquetError::General("the schema has fewer columns than the rows".into()));
        };
        let levels = (!column.present.is_empty()).then_some(column.present.as_slice());
        match &column.data {
            Data::Int(v) => out.typed::<Int64Type>().write_batch(v, levels, None)?,
            Data::Real(v) => out.typed::<DoubleType>().write_batch(v, levels, None)?,
            Data::Bool(v) => out.typed::<BoolType>().write_batch(v, levels, None)?,
            Data::Text(v) => out.typed::<ByteArrayType>().write_batch(v, levels, None)?,
        };
        out.close()?;
    }
    group.close()?;
    Ok(())
}

/// What a segment says about itself.
#[derive(Debug, Default)]
pub(super) struct SegmentInfo {
    /// Its format version; `None` if it says none.
    pub version: Option<u32>,
    /// Its copy of `meta.json`.
    pub meta_json: Option<String>,
}

/// Opens a segment and reads what it says about itself.
pub(super) fn open(file: File) -> Result<(SerializedFileReader<File>, SegmentInfo), ParquetError> {
    let reader = SerializedFileReader::new(file)?;
    let mut info = SegmentInfo::default();
    for kv in reader.metadata().file_metadata().key_value_metadata().into_iter().flatten() {
        match (kv.key.as_str(), &kv.value) {
            (VERSION_KEY, Some(v)) => info.version = v.parse().ok(),
            (META_KEY, Some(v)) => info.meta_json = Some(v.clone()),
            _ => {}
        }
    }
    Ok((reader, info))
}

/// Reads all rows of a segment, in order, into `sink`. On an error the rows before the bad row have been delivered.
pub(super) fn read_rows<R: Table>(
    reader: &SerializedFileReader<File>,
    sink: &mut Vec<R>,
) -> Result<(), String> {
    (0..reader.num_row_groups()).try_for_each(|group| read_group(reader, group, sink))
}

/// Reads the rows of one row group, in order, into `sink`. On an error those before the bad row have been delivered.
pub(super) fn read_group<R: Table>(
    reader: &SerializedFileReader<File>,
    group: usize,
    sink: &mut Vec<R>,
) -> Result<(), String> {
    let specs = R::columns();
    let descriptor = reader.metadata().file_metadata().schema_descr_ptr();
    let group = reader.get_row_group(group).map_err(|e| e.to_string())?;
    let rows = usize::try_from(group.metadata().num_rows()).map_err(|_| "negative row count".to_owned())?;
    let mut columns = Vec::with_capacity(specs.len());
    for spec in &specs {
        let found = descriptor.columns().iter().position(|c| c.path().string() == spec.name);
        let column = match found {
            Some(i) => {
                let reader = group.get_column_reader(i).map_err(|e| e.to_string())?;
                let may_be_null = descriptor.column(i).max_def_level() > 0;
                read_column(reader, rows, spec, may_be_null)
                    .map_err(|e| format!("column '{}': {e}", spec.name))?
            }
            // A column of a later minor version that may be null.
            None if spec.optional => all_null(spec, rows),
            None => return Err(format!("the column '{}' is missing", spec.name)),
        };
        columns.push(column);
    }
    // Not reserved by `rows`, which a damaged file may put at 2^60.
    for row in 0..rows {
        let value = R::take(&mut columns).map_err(|(name, e)| format!("row {row}, column '{name}': {e}"))?;
        sink.push(value);
    }
    Ok(())
}

fn all_null(spec: &ColumnSpec, rows: usize) -> Column {
    let mut column = Column::new(spec.ty);
    column.present = vec![0; rows];
    column
}

/// `may_be_null`: the file says so.
fn read_column(
    reader: ColumnReader,
    rows: usize,
    spec: &ColumnSpec,
    may_be_null: bool,
) -> Result<Column, String> {
    let mut column = Column::new(spec.ty);
    let present = &mut column.present;
    let may_be_null = spec.optional && may_be_null;
    match (&mut column.data, reader) {
        (Data::Int(v), ColumnReader::Int64ColumnReader(r)) => {
            read_all(r, rows, (spec, may_be_null), v, present)
        }
        (Data::Real(v), ColumnReader::DoubleColumnReader(r)) => {
            read_all(r, rows, (spec, may_be_null), v, present)
        }
        (Data::Bool(v), ColumnReader::BoolColumnReader(r)) => {
            read_all(r, rows, (spec, may_be_null), v, present)
        }
        (Data::Text(v), ColumnReader::ByteArrayColumnReader(r)) => {
            read_all(r, rows, (spec, may_be_null), v, present)
        }
        _ => Err(format!("it is not stored as {}", spec.ty.name())),
    }?;
    Ok(column)
}

fn read_all<D: DataType>(
    mut reader: ColumnReaderImpl<D>,
    rows: usize,
    (spec, may_be_null): (&ColumnSpec, bool),
    values: &mut Vec<D::T>,
    present: &mut Vec<i16>,
) -> Result<(), String> {
    let mut done = 0;
    while done < rows {
        let wanted = (rows - done).min(ROW_GROUP);
        let levels = may_be_null.then_some(&mut *present);
        let (read, _, _) = reader.read_records(wanted, levels, None, values).map_err(|e| e.to_string())?;
        if read == 0 {
            return Err(format!("{done} rows instead of {rows}"));
        }
        done += read;
        // Nulls are allowed now, and were not when the file was written: each value is one.
        if spec.optional && !may_be_null {
            present.resize(done, 1);
        }
    }
    Ok(())
}
