//! The tables: which field is which column.
//!
//! One list per table, from which the schema, the writer and the reader are made, so that they cannot
//! disagree. `docs/formats.md` describes every column; a test compares.

use super::cell::{Cell, CellError, Column, ColumnSpec, Encoding, Table, Word};
use profiler_core::class::{ExitMode, RecordKind, SiteClass};
use profiler_core::recording::{
    BesideRow, CallSiteRow, CallerRule, ChangeKind, ChangeRow, Charge, ClassRow, EventRow, FrameRow,
    HistogramRow, LedgerRow, OpenCallRow, OperationClassRow, OperationCycleEnd, OperationCycleRow,
    OperationHistogramRow, OperationRow, OperationWindowRow, PlanRow, SampleRow, StepRow, TailRow,
    TrapSampleRow, WindowKind, WindowRow, WordRow, WordStatus,
};

/// A cell's Rust type and packing, by a short word in the lists below.
macro_rules! column_encoding {
    (dict) => {
        Encoding::Dictionary
    };
    (delta) => {
        Encoding::Delta
    };
    (plain) => {
        Encoding::Plain
    };
}

// `word` fields are u64 stored as UBIGINT; all others are stored as their own type.
macro_rules! put_cell {
    (Word, $value:expr, $column:expr) => {
        Word($value).put($column)
    };
    ($ty:ty, $value:expr, $column:expr) => {
        <$ty as Cell>::put(&$value, $column)
    };
}
macro_rules! take_cell {
    (Word, $column:expr) => {
        Word::take($column).map(|w| w.0)
    };
    ($ty:ty, $column:expr) => {
        <$ty as Cell>::take($column)
    };
}

macro_rules! table {
    ($row:ident, $name:literal, $index:literal, heap $heap:expr, { $($field:ident: $ty:tt $(<$inner:ty>)? [$enc:tt],)* }) => {
        impl Table for $row {
            const NAME: &'static str = $name;
            const INDEX: usize = $index;
            fn columns() -> Vec<ColumnSpec> {
                vec![$(ColumnSpec {
                    name: stringify!($field),
                    ty: <$ty $(<$inner>)? as Cell>::TYPE,
                    optional: <$ty $(<$inner>)? as Cell>::OPTIONAL,
                    encoding: column_encoding!($enc),
                }),*]
            }
            fn put(&self, columns: &mut [Column]) {
                let mut columns = columns.iter_mut();
                $(if let Some(column) = columns.next() { put_cell!($ty $(<$inner>)?, self.$field, column); })*
            }
            fn take(columns: &mut [Column]) -> Result<Self, (&'static str, CellError)> {
                let mut columns = columns.iter_mut();
                Ok(Self {
                    $($field: {
                        let column = columns.next().ok_or((stringify!($field), CellError::End))?;
                        take_cell!($ty $(<$inner>)?, column).map_err(|e| (stringify!($field), e))?
                    }),*
                })
            }
            fn heap_bytes(&self) -> usize {
                let heap: fn(&$row) -> usize = $heap;
                heap(self)
            }
        }
    };
}

fn lists(lists: &[&Vec<String>]) -> usize {
    lists.iter().flat_map(|l| l.iter()).map(|s| s.len() + size_of::<String>()).sum()
}

fn numbers(lists: &[&Option<Vec<u32>>]) -> usize {
    lists.iter().filter_map(|l| l.as_ref()).map(|l| size_of_val(l.as_slice())).sum()
}

table!(ClassRow, "classes", 0, heap |r| r.name.len() + r.symbol.len() + r.module.len() + r.build_id.len() + lists(&[&r.aliases, &r.notes]) + r.prototype.as_ref().map_or(0, String::len), {
    class_id: u32 [delta],
    name: String [plain],
    symbol: String [plain],
    aliases: Vec<String> [plain],
    module: String [dict],
    build_id: String [dict],
    address: Word [plain],
    size_bytes: u64 [delta],
    site: Word [plain],
    site_class: SiteClass [dict],
    exit_mode: ExitMode [dict],
    kind: RecordKind [dict],
    weight: f64 [plain],
    tau_ns: f64 [plain],
    notes: Vec<String> [dict],
    stamps_ns: Option<f64> [plain],
    stamps_of: Option<u32> [dict],
    named: Option<bool> [plain],
    parameters: Option<u32> [dict],
    prototype: Option<String> [plain],
});

table!(WindowRow, "windows", 1, heap |_| 0, {
    class_id: u32 [dict],
    kind: WindowKind [dict],
    start_ns: u64 [delta],
    end_ns: u64 [delta],
    target_cpu_ns: u64 [delta],
    attempted: u64 [delta],
    kept: u64 [delta],
    gated: u64 [delta],
    dropped: u64 [delta],
    returns: u64 [delta],
    unwound: u64 [delta],
    omitted: u64 [delta],
    open: u64 [delta],
    sum_ns: u64 [delta],
    nested_cost_ns: u64 [delta],
    max_ns: u64 [delta],
    tripped: bool [plain],
    tau_ns: f64 [dict],
    ran_ns: Option<u64> [delta],
    ran_tid: Option<u32> [dict],
    link: Option<u32> [dict],
});

table!(HistogramRow, "histograms", 2, heap |_| 0, {
    class_id: u32 [dict],
    low_ns: u64 [delta],
    high_ns: u64 [delta],
    count: u64 [delta],
});

table!(SampleRow, "samples", 4, heap |_| 0, {
    time_ns: u64 [delta],
    pid: u32 [dict],
    tid: u32 [dict],
    cpu: u32 [dict],
    stack_id: u64 [dict],
    in_kernel: bool [plain],
    period_ns: u64 [dict],
    truncated: bool [plain],
});

table!(FrameRow, "stacks", 5, heap |r| r.module.len() + r.function.len() + r.file.len(), {
    stack_id: u64 [dict],
    depth: u32 [delta],
    address: Word [dict],
    module: String [dict],
    function: String [dict],
    file: String [dict],
    line: u32 [dict],
    inlined: bool [plain],
    class_id: Option<u32> [dict],
});

table!(LedgerRow, "ledger", 6, heap |_| 0, {
    time_ns: u64 [delta],
    interval_ns: u64 [delta],
    charge: Charge [dict],
    class_id: Option<u32> [dict],
    units: u64 [delta],
    cost_ns: u64 [delta],
    target_cpu_ns: u64 [delta],
    allowed_ns: u64 [delta],
});

table!(PlanRow, "plans", 7, heap |r| r.decision.len() + r.reason.len(), {
    time_ns: u64 [delta],
    plan: u32 [delta],
    class_id: u32 [dict],
    decision: String [dict],
    duty: f64 [plain],
    rate_hz: f64 [plain],
    rate_low_hz: f64 [plain],
    rate_high_hz: f64 [plain],
    rho: f64 [plain],
    weight: f64 [dict],
    tau_s: f64 [dict],
    cost: f64 [plain],
    reason: String [dict],
    sampling_hz: f64 [dict],
    value: f64 [dict],
    upper_bound: f64 [dict],
    of_widths: Option<bool> [plain],
});

table!(OpenCallRow, "open_calls", 8, heap |_| 0, {
    time_ns: u64 [delta],
    class_id: u32 [dict],
    tid: u32 [dict],
    elapsed_ns: u64 [delta],
});

table!(OperationClassRow, "operation_classes", 9, heap |r| r.operation_name.len() + r.class_name.len(), {
    operation: u32 [dict],
    class_id: u32 [delta],
    operation_name: String [dict],
    class_name: String [plain],
});

table!(OperationRow, "operations", 10, heap |_| 0, {
    operation: u32 [dict],
    class_id: u32 [dict],
    tid: u32 [dict],
    begin_ns: u64 [delta],
    duration_ns: u64 [delta],
    calls: u64 [delta],
    inner_ns: u64 [delta],
    measure: u64 [delta],
    cost_ns: u64 [delta],
    off_cpu_ns: Option<u64> [delta],
    cycle: u64 [dict],
    stretch: u64 [dict],
    censored: bool [plain],
    pid: Option<u32> [dict],
    steps_before: Option<u64> [delta],
    steps_after: Option<u64> [delta],
    incomplete: Option<bool> [plain],
});

table!(OperationWindowRow, "operation_windows", 11, heap |_| 0, {
    operation: u32 [dict],
    class_id: u32 [dict],
    start_ns: u64 [dict],
    end_ns: u64 [dict],
    watched_ns: u64 [delta],
    monitoring: bool [plain],
    rate: f64 [dict],
    stretch: u64 [dict],
    cycle: u64 [dict],
    population: u64 [delta],
    population_sum_ns: f64 [plain],
    population_squares_ns2: f64 [plain],
    sample: u64 [delta],
    sample_sum_ns: f64 [plain],
    sample_squares_ns2: f64 [plain],
    measure_sum: f64 [plain],
    measure_squares: f64 [plain],
    cost_ns: u64 [delta],
    begun: u64 [delta],
    recorded: u64 [delta],
    off: u64 [delta],
    not_drawn: u64 [delta],
    balanced: u64 [delta],
    no_quota: u64 [delta],
    unmatched: u64 [delta],
    dropped: u64 [delta],
    sliced: Option<bool> [plain],
});

table!(OperationHistogramRow, "operation_histograms", 14, heap |_| 0, {
    operation: u32 [dict],
    class_id: u32 [dict],
    low_ns: u64 [delta],
    high_ns: u64 [delta],
    count: u64 [delta],
});

table!(OperationCycleRow, "operation_cycles", 12, heap |r| lists(&[&r.unobserved]), {
    operation: u32 [dict],
    number: u64 [delta],
    start_ns: u64 [delta],
    end_ns: u64 [delta],
    end: OperationCycleEnd [dict],
    population: u64 [delta],
    sample: u64 [delta],
    z: f64 [plain],
    needed: f64 [plain],
    large_enough: bool [plain],
    same_times: bool [plain],
    difference_ns: f64 [plain],
    same_shares: bool [plain],
    largest_share_difference: f64 [plain],
    unobserved: Vec<String> [plain],
});

table!(ChangeRow, "changes", 13, heap |r| r.text.len(), {
    time_ns: u64 [delta],
    kind: ChangeKind [dict],
    class_id: Option<u32> [dict],
    plan: Option<u32> [dict],
    text: String [dict],
});

table!(TrapSampleRow, "trap_samples", 15, heap |_| 0, {
    time_ns: u64 [delta],
    tid: u32 [dict],
    cpu: u32 [dict],
    class_id: Option<u32> [dict],
    in_kernel: bool [plain],
    is_sure: bool [plain],
    period_ns: u64 [dict],
});

table!(StepRow, "steps", 16, heap |_| 0, {
    time_ns: u64 [delta],
    number: u64 [delta],
    class_id: u32 [dict],
    pid: u32 [dict],
    tid: u32 [dict],
    slot: Word [delta],
    return_address: Word [dict],
    frame: Word [delta],
});

table!(CallSiteRow, "call_sites", 17, heap |r| r.module.len() + r.function.len() + numbers(&[&r.jumps_from, &r.reached_from]), {
    return_address: Word [plain],
    pid: u32 [dict],
    module: String [dict],
    offset: Word [plain],
    function: String [dict],
    function_class: Option<u32> [dict],
    caller: CallerRule [dict],
    caller_value: i64 [dict],
    target_class: Option<u32> [dict],
    is_direct: Option<bool> [plain],
    jumps_from: Option<Vec<u32>> [dict],
    reached_from: Option<Vec<u32>> [dict],
    since_ns: Option<u64> [dict],
    until_ns: Option<u64> [dict],
});

table!(TailRow, "tails", 18, heap |_| 0, {
    from_class: u32 [dict],
    to_class: u32 [dict],
});

table!(WordRow, "words", 19, heap |_| 0, {
    begin_ns: u64 [delta],
    class_id: u32 [dict],
    operation: Option<u32> [dict],
    pid: u32 [dict],
    tid: u32 [dict],
    at_end: bool [plain],
    word: u32 [dict],
    from_ns: u64 [delta],
    until_ns: u64 [delta],
    value: Option<u64> [delta],
    status: WordStatus [dict],
    depth: u32 [dict],
});

/// Name and columns of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSpec {
    /// Name of the table and of its segments.
    pub name: &'static str,
    /// Columns, in order.
    pub columns: Vec<ColumnSpec>,
}

table!(BesideRow, "beside", 20, heap |_| 0, {
    class_id: u32 [dict],
    start_ns: u64 [delta],
    begin_ns: u64 [delta],
    end_ns: u64 [delta],
    calls: u64 [delta],
    beside_id: u32 [dict],
    beside_calls: u64 [delta],
});

/// Every table of a recording; a table's position is its [`Table::INDEX`].
#[must_use]
pub fn tables() -> Vec<TableSpec> {
    fn spec<R: Table>() -> TableSpec {
        TableSpec { name: R::NAME, columns: R::columns() }
    }
    vec![
        spec::<ClassRow>(),
        spec::<WindowRow>(),
        spec::<HistogramRow>(),
        spec::<EventRow>(),
        spec::<SampleRow>(),
        spec::<FrameRow>(),
        spec::<LedgerRow>(),
        spec::<PlanRow>(),
        spec::<OpenCallRow>(),
        spec::<OperationClassRow>(),
        spec::<OperationRow>(),
        spec::<OperationWindowRow>(),
        spec::<OperationCycleRow>(),
        spec::<ChangeRow>(),
        spec::<OperationHistogramRow>(),
        spec::<TrapSampleRow>(),
        spec::<StepRow>(),
        spec::<CallSiteRow>(),
        spec::<TailRow>(),
        spec::<WordRow>(),
        spec::<BesideRow>(),
    ]
}
