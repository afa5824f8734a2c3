//! Table `events`: which field of a recorded call is which column.
//!
//! By hand, because parts of the row are structs and arrays, and the table has columns only.

use super::cell::{Cell, CellError, Column, ColumnSpec, Encoding, Table, Word};
use profiler_core::recording::{CallContext, CallPlace, EventRow};

/// Columns of the argument registers.
const ARGS: [&str; 6] = ["arg0", "arg1", "arg2", "arg3", "arg4", "arg5"];
/// Columns of the context, in the order of [`context`].
const CONTEXT: [&str; 8] = [
    "off_cpu_ns",
    "runnable_ns",
    "blocked_ns",
    "io_wait_ns",
    "minor_faults",
    "major_faults",
    "read_bytes",
    "written_bytes",
];

/// The fields of a context, by column.
fn context(context: &mut CallContext) -> [&mut Option<u64>; 8] {
    let CallContext {
        off_cpu_ns,
        runnable_ns,
        blocked_ns,
        io_wait_ns,
        minor_faults,
        major_faults,
        read_bytes,
        written_bytes,
    } = context;
    [off_cpu_ns, runnable_ns, blocked_ns, io_wait_ns, minor_faults, major_faults, read_bytes, written_bytes]
}

/// A register or an address that may be null.
fn word(column: &mut Column) -> Result<Option<u64>, CellError> {
    Ok(<Option<Word> as Cell>::take(column)?.map(|word| word.0))
}

impl Table for EventRow {
    const NAME: &'static str = "events";
    const INDEX: usize = 3;

    fn columns() -> Vec<ColumnSpec> {
        let column = |name, ty, optional, encoding| ColumnSpec { name, ty, optional, encoding };
        let mut columns = vec![
            column("time_ns", u64::TYPE, false, Encoding::Delta),
            column("class_id", u32::TYPE, false, Encoding::Dictionary),
            column("pid", u32::TYPE, false, Encoding::Dictionary),
            column("tid", u32::TYPE, false, Encoding::Dictionary),
            column("duration_ns", Option::<u64>::TYPE, true, Encoding::Delta),
        ];
        columns.extend(ARGS.map(|name| column(name, Word::TYPE, true, Encoding::Plain)));
        columns.extend([
            column("nested_cost_ns", Option::<u64>::TYPE, true, Encoding::Delta),
            column("outer_class", Option::<u32>::TYPE, true, Encoding::Dictionary),
            column("depth", Option::<u32>::TYPE, true, Encoding::Dictionary),
            column("return_address", Word::TYPE, true, Encoding::Dictionary),
            column("result", Word::TYPE, true, Encoding::Plain),
        ]);
        columns.extend(CONTEXT.map(|name| column(name, Option::<u64>::TYPE, true, Encoding::Delta)));
        columns
    }

    fn put(&self, columns: &mut [Column]) {
        let [
            time,
            class,
            pid,
            tid,
            duration,
            a,
            b,
            c,
            d,
            e,
            f,
            nested,
            outer,
            depth,
            returns,
            result,
            rest @ ..,
        ] = columns
        else {
            return;
        };
        self.time_ns.put(time);
        self.class_id.put(class);
        self.pid.put(pid);
        self.tid.put(tid);
        self.duration_ns.put(duration);
        for (arg, column) in self.args.iter().zip([a, b, c, d, e, f]) {
            arg.map(Word).put(column);
        }
        self.nested_cost_ns.put(nested);
        self.place.outer_class.put(outer);
        self.place.depth.put(depth);
        self.place.return_address.map(Word).put(returns);
        self.place.result.map(Word).put(result);
        for (value, column) in context(&mut self.context.clone()).into_iter().zip(rest) {
            value.put(column);
        }
    }

    fn take(columns: &mut [Column]) -> Result<Self, (&'static str, CellError)> {
        let [
            time,
            class,
            pid,
            tid,
            duration,
            a,
            b,
            c,
            d,
            e,
            f,
            nested,
            outer,
            depth,
            returns,
            result,
            rest @ ..,
        ] = columns
        else {
            return Err(("time_ns", CellError::End));
        };
        let mut row = Self {
            time_ns: u64::take(time).map_err(|e| ("time_ns", e))?,
            class_id: u32::take(class).map_err(|e| ("class_id", e))?,
            pid: u32::take(pid).map_err(|e| ("pid", e))?,
            tid: u32::take(tid).map_err(|e| ("tid", e))?,
            duration_ns: <Option<u64> as Cell>::take(duration).map_err(|e| ("duration_ns", e))?,
            args: [None; 6],
            nested_cost_ns: <Option<u64> as Cell>::take(nested).map_err(|e| ("nested_cost_ns", e))?,
            place: CallPlace {
                outer_class: <Option<u32> as Cell>::take(outer).map_err(|e| ("outer_class", e))?,
                depth: <Option<u32> as Cell>::take(depth).map_err(|e| ("depth", e))?,
                return_address: word(returns).map_err(|e| ("return_address", e))?,
                result: word(result).map_err(|e| ("result", e))?,
            },
            context: CallContext::default(),
        };
        for ((arg, column), name) in row.args.iter_mut().zip([a, b, c, d, e, f]).zip(ARGS) {
            *arg = word(column).map_err(|e| (name, e))?;
        }
        for ((value, column), name) in context(&mut row.context).into_iter().zip(rest).zip(CONTEXT) {
            *value = <Option<u64> as Cell>::take(column).map_err(|e| (name, e))?;
        }
        Ok(row)
    }
}
