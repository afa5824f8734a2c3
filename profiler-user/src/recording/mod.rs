//! The recording on disk: Parquet segments and meta.json.
