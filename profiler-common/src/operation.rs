//! Operations: units of the target's work with a begin and an end on one thread, and which of them are recorded.
//!
//! A thread carries its open operations in its [`ThreadState`](crate::thread::ThreadState). At the begin the programs find
//! the operation's class (by a captured argument), count it and decide with [`choose`]; at the end they add its response
//! time to the class's population and, if it is recorded, emit an [`OperationRecord`].

use crate::step::StepSpan;
use crate::wire_type;

/// Operations (names on the command line) that are told apart.
pub const MAX_OPERATIONS: usize = 16;
/// Bytes of a string argument that name a class: one cache line, so that looking it up stays cheap.
pub const NAME_BYTES: usize = 64;

/// `OperationControl::flags`: recording is on.
pub const OPERATION_MONITORING: u32 = 1;
/// `OperationControl::flags`: the balance test is made.
pub const OPERATION_BALANCE: u32 = 2;
/// `OperationControl::flags`: begin and end are matched by thread alone (pairs of functions, system calls), not by the
/// return slot. A second begin then ends the first without counting it.
pub const OPERATION_BY_THREAD: u32 = 4;
/// `OperationControl::flags`: inner calls are recorded as steps. A recorded operation that lacks some is sent with [`RECORD_INCOMPLETE`].
pub const OPERATION_STEPS: u32 = 8;
/// [`StepSpan::flags`]: steps inside it are missing, because an inner function had used up its quota, was attached anew, or the
/// ring was full. It is no part of the sample.
pub const RECORD_INCOMPLETE: u32 = 1;

/// `OperationControl::argument_kind`: the class is the operation's own.
pub const ARGUMENT_NONE: u32 = 0;
/// The argument's low 32 bits, signed.
pub const ARGUMENT_INT: u32 = 1;
/// All 64 bits of the argument, signed.
pub const ARGUMENT_LONG: u32 = 2;
/// The argument points to a string that ends with a NUL byte.
pub const ARGUMENT_STRING: u32 = 3;
/// The argument points to bytes, and the next argument is their number.
pub const ARGUMENT_SLICE: u32 = 4;

/// Helper ids that do not exist: each tracepoint that bounds an operation has a copy of the program of its own, in which the
/// loader replaces the call by one instruction. This one by `r0 = WORD`: the number of the operation, and [`TRACEPOINT_ENDS`].
pub const MARKER_TRACEPOINT_BOUND: i32 = 0x7fff_0003;
/// This one, whose argument is the context, by the load of one of the tracepoint's arguments, or by `r0 = 0`.
pub const MARKER_TRACEPOINT_ARGUMENT: i32 = 0x7fff_0004;
/// The tracepoint ends the operation; else it begins it.
pub const TRACEPOINT_ENDS: u32 = 1 << 8;

/// [`ClassControl::measure`](crate::class::ClassControl::measure): adds nothing.
pub const MEASURE_NONE: u32 = 0;
/// Adds 1 per call; 1 + k below 7 adds the argument register k.
pub const MEASURE_CALLS: u32 = 7;

/// What the programs do for one operation (map `OPERATIONS`). The agent writes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OperationControl {
    /// `OPERATION_*`.
    pub flags: u32,
    /// Slack of the balance test, in 1/65536 of a share.
    pub slack_q16: u32,
    /// `ARGUMENT_*`.
    pub argument_kind: u32,
    /// Which argument register, from 0.
    pub argument: u32,
    /// Class of operations that have no name of their own.
    pub base_class: u32,
    /// Class of names beyond the bound.
    pub other_class: u32,
    /// End of the class numbers that may be given to names.
    pub end_class: u32,
    /// Number of the attachment: operations that began under an earlier one are given up at their end, because ends and
    /// begins between may have been missed.
    pub generation: u32,
    /// Monitoring cycle.
    pub cycle: u64,
    /// The [`word_list`](crate::words::word_list) that is taken at the begin of a recorded one; 0: none.
    pub words_begin: u32,
    /// The same at its end.
    pub words_end: u32,
    /// Reserved, zero: keeps the size a power of two.
    pub reserved_words: [u64; 2],
}
wire_type!(OperationControl, size 64, align 8);

/// What all threads share of one operation (map `OPERATION_STATE`), on a cache line of its own. The programs write it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct OperationState {
    /// CPU time that recording may still cost in this window, ns. Taken by atomic subtraction.
    pub quota_ns: i64,
    /// Operations begun in the current cycle.
    pub population: u64,
    /// Of those, recorded.
    pub sample: u64,
    /// Number of the next class to be given to a name.
    pub next_class: u64,
    /// Of the first element, for all operations: how often an inner function took the last hit of its quota, so that calls after that are
    /// missing. Only the programs write it. A gate that is shut for other reasons does not count.
    pub losses: u64,
    /// Of the first element, for all operations: [`losses`](Self::losses) when the agent last knew that nothing was missing. Only the agent
    /// writes it; `u64::MAX`: inner functions are about to go. Nothing is recorded while the two differ, so that a loss that comes while the
    /// agent says so is not forgotten.
    pub losses_mended: u64,
    /// Of the first element, for all operations: number of the attachment of inner functions. A recorded operation that began under
    /// another one lacks calls. The agent counts it up (its low 16 bits are compared).
    pub details: u64,
    /// Of the first element, for all operations: histograms that were given to classes, or asked for in vain. The programs write it.
    pub histograms: u64,
}
wire_type!(OperationState, size 64, align 64);

/// [`OperationClass::histogram`] of a class that came when all were given.
pub const NO_HISTOGRAM_LEFT: u64 = u64::MAX;

/// Numbers of one class of operations (map `OPERATION_CLASSES`). The agent writes the first three.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct OperationClass {
    /// Recorded if a random 32-bit number is below.
    pub threshold: u64,
    /// What recording one is expected to cost, ns.
    pub price_ns: u64,
    /// Stretch of constant rate.
    pub stretch: u64,
    /// Operations begun in the current cycle.
    pub population: u64,
    /// Of those, recorded.
    pub sample: u64,
    /// Number of the class's histogram + 1; 0: none yet; [`NO_HISTOGRAM_LEFT`]. The programs write it when the first operation ends.
    pub histogram: u64,
    /// Keeps the line to itself.
    pub reserved: [u64; 2],
}
wire_type!(OperationClass, size 64, align 64);

/// Counters of one class of operations, kept in stripes that the agent adds up (map `OPERATION_COUNTERS`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OperationCounters {
    /// Begun and decided to be recorded.
    pub recorded: u64,
    /// Begun while recording was off.
    pub off: u64,
    /// Begun and not drawn.
    pub not_drawn: u64,
    /// Begun and drawn, but the sample had enough of the class.
    pub balanced: u64,
    /// Begun and drawn, but the quota did not pay for it.
    pub no_quota: u64,
    /// Recorded operations that were lost: the ring was full, or an inner function used up its quota meanwhile.
    pub dropped: u64,
    /// Ends without a begin, begins without room, and begins whose end was not seen. In the base class of the operation.
    pub unmatched: u64,
    /// Begins whose argument could not be read. In the base class.
    pub unread: u64,
    /// Response times of all operations that ended; their distribution is in map `OPERATION_HISTOGRAMS`.
    pub population: Sums,
    /// Response times of the recorded ones.
    pub sample: Sums,
    /// Measure of the recorded ones.
    pub measure: Sums,
    /// Monitoring cost inside the recorded ones, ns.
    pub cost_ns: u64,
    /// Inner calls of the recorded ones.
    pub calls: u64,
    /// Hits of the operation's tracepoints by the target. In the base class.
    pub screened: u64,
    /// The same of other processes, which pay.
    pub screened_other: u64,
    /// Keeps the size a power of two.
    pub reserved: [u64; 8],
}
wire_type!(OperationCounters, size 256, align 8);

/// Count, sum and sum of squares without floating point: `squares = squares_high 2^32 + squares_low`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sums {
    /// Values.
    pub n: u64,
    /// Their sum.
    pub sum: u64,
    /// Low 32 bits of their squares, added up.
    pub squares_low: u64,
    /// Their squares without those, in units of 2^32, added up.
    pub squares_high: u64,
}
wire_type!(Sums, size 32, align 8);

impl Sums {
    /// Adds another stripe.
    pub fn add(&mut self, other: &Self) {
        self.n = self.n.wrapping_add(other.n);
        self.sum = self.sum.wrapping_add(other.sum);
        self.squares_low = self.squares_low.wrapping_add(other.squares_low);
        self.squares_high = self.squares_high.wrapping_add(other.squares_high);
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            n: self.n.wrapping_sub(earlier.n),
            sum: self.sum.wrapping_sub(earlier.sum),
            squares_low: self.squares_low.wrapping_sub(earlier.squares_low),
            squares_high: self.squares_high.wrapping_sub(earlier.squares_high),
        }
    }

    /// The sum of squares.
    #[must_use]
    pub fn squares(&self) -> f64 {
        self.squares_high as f64 * 4_294_967_296.0 + self.squares_low as f64
    }
}

/// `x^2` as what is added to `squares_low` and `squares_high`. From 2^32 on the low part is left out, an error below
/// 2^-15 of the square; beyond 2^48 (78 hours, as ns) the square is that of 2^48.
#[must_use]
#[inline(always)]
pub const fn square(x: u64) -> (u64, u64) {
    if x >> 32 == 0 {
        let square = x * x;
        return (square & 0xffff_ffff, square >> 32);
    }
    let x = if x >> 48 == 0 { x >> 16 } else { 0xffff_ffff };
    (0, x * x)
}

impl OperationCounters {
    /// Adds another stripe.
    pub fn add(&mut self, other: &Self) {
        let sum = |a: &mut u64, b: u64| *a = a.wrapping_add(b);
        sum(&mut self.recorded, other.recorded);
        sum(&mut self.off, other.off);
        sum(&mut self.not_drawn, other.not_drawn);
        sum(&mut self.balanced, other.balanced);
        sum(&mut self.no_quota, other.no_quota);
        sum(&mut self.dropped, other.dropped);
        sum(&mut self.unmatched, other.unmatched);
        sum(&mut self.unread, other.unread);
        self.population.add(&other.population);
        self.sample.add(&other.sample);
        self.measure.add(&other.measure);
        sum(&mut self.cost_ns, other.cost_ns);
        sum(&mut self.calls, other.calls);
        sum(&mut self.screened, other.screened);
        sum(&mut self.screened_other, other.screened_other);
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            recorded: self.recorded.wrapping_sub(earlier.recorded),
            off: self.off.wrapping_sub(earlier.off),
            not_drawn: self.not_drawn.wrapping_sub(earlier.not_drawn),
            balanced: self.balanced.wrapping_sub(earlier.balanced),
            no_quota: self.no_quota.wrapping_sub(earlier.no_quota),
            dropped: self.dropped.wrapping_sub(earlier.dropped),
            unmatched: self.unmatched.wrapping_sub(earlier.unmatched),
            unread: self.unread.wrapping_sub(earlier.unread),
            population: self.population.since(&earlier.population),
            sample: self.sample.since(&earlier.sample),
            measure: self.measure.since(&earlier.measure),
            cost_ns: self.cost_ns.wrapping_sub(earlier.cost_ns),
            calls: self.calls.wrapping_sub(earlier.calls),
            screened: self.screened.wrapping_sub(earlier.screened),
            screened_other: self.screened_other.wrapping_sub(earlier.screened_other),
            reserved: [0; 8],
        }
    }

    /// Operations that began.
    #[must_use]
    pub const fn begun(&self) -> u64 {
        self.recorded
            .wrapping_add(self.off)
            .wrapping_add(self.not_drawn)
            .wrapping_add(self.balanced)
            .wrapping_add(self.no_quota)
    }
}

/// Key of map `OPERATION_NAMES`: the captured argument of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct OperationName {
    /// Operation.
    pub operation: u32,
    /// `ARGUMENT_*`.
    pub kind: u32,
    /// The string, cut and filled up with zeros, or a little-endian integer of 8 bytes.
    pub bytes: [u8; NAME_BYTES],
}
wire_type!(OperationName, size 72, align 4);

/// Ring `OPERATION_RECORDS`: a recorded operation that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct OperationRecord {
    /// Begin, ktime ns.
    pub begin_ns: u64,
    /// Response time, ns.
    pub duration_ns: u64,
    /// Inner calls.
    pub calls: u64,
    /// Time in timed inner calls, ns.
    pub inner_ns: u64,
    /// The measure.
    pub measure: u64,
    /// Monitoring cost inside it, ns.
    pub cost_ns: u64,
    /// Monitoring cycle in which it began.
    pub cycle: u64,
    /// Stretch of constant rate in which it began.
    pub stretch: u64,
    /// Time off CPU inside it, ns, or [`OFF_CPU_UNKNOWN`](crate::presence::OFF_CPU_UNKNOWN).
    pub off_cpu_ns: u64,
    /// Operation.
    pub operation: u32,
    /// Class.
    pub class: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The steps inside it, and whether all of them have records.
    pub steps: StepSpan,
}
wire_type!(OperationRecord, size 112, align 8);

/// Numbers of the decision that hold for all classes; computed in user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Recording is on (*isMonitoringEnabled*).
    pub monitoring: bool,
    /// The balance test is made (policy `adp` only).
    pub balance: bool,
    /// Slack of the balance test, in 1/65536 of a share; at most 65,536.
    pub slack_q16: u32,
    /// CPU time that recording may still cost in this window, ns: the governor's hard bound.
    pub quota_ns: u64,
}

/// Numbers of one class; the counts are those of the current cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassNumbers {
    /// Recorded if a random 32-bit number is below: rate x 2^32.
    pub threshold: u64,
    /// What recording one operation of the class is expected to cost, ns; taken from the quota.
    pub price_ns: u64,
    /// Operations begun (|E_p|).
    pub population: u32,
    /// Operations recorded (|E_s|).
    pub sample: u32,
}

/// Counts over all classes in the current cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Operations begun (|P|).
    pub population: u32,
    /// Operations recorded (|S|).
    pub sample: u32,
}

/// What became of an operation; every outcome has its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Recorded.
    Record,
    /// Monitoring is off.
    Off,
    /// Not drawn.
    NotDrawn,
    /// Drawn, but the sample has enough of this class.
    Balanced,
    /// Drawn, but what is left of the window's quota does not pay for it.
    NoQuota,
}

/// Algorithm 1 (Mertz and Nunes §3.2) after its first line: the operation is in `totals.population` and
/// `class.population` already. `draw` is a uniform random number. Counts nothing.
///
/// # Cost
/// Four products, no division; no floating point and no 128-bit arithmetic, which eBPF lacks.
#[must_use]
#[inline(always)]
pub const fn choose(switch: &Switch, totals: &Totals, class: &ClassNumbers, draw: u32) -> Decision {
    if !switch.monitoring {
        return Decision::Off;
    }
    if draw as u64 >= class.threshold {
        return Decision::NotDrawn;
    }
    if switch.balance && !lacks(switch.slack_q16, totals, class) {
        return Decision::Balanced;
    }
    if switch.quota_ns < class.price_ns {
        return Decision::NoQuota;
    }
    Decision::Record
}

/// `|E_p|/|P| >= |E_s|/|S| - slack`, multiplied by |P| |S| so that nothing is divided:
/// `|E_p| |S| + slack |P| |S| >= |E_s| |P|`. Counts below 2^32 keep every product below 2^64.
#[must_use]
#[inline(always)]
pub const fn lacks(slack_q16: u32, totals: &Totals, class: &ClassNumbers) -> bool {
    let (p, s) = (totals.population as u64, totals.sample as u64);
    let product = p * s;
    // Shift last while it fits, first where it would not: the slack is then below by less than 2^-31 of a share.
    let slack = if product < 1 << 47 {
        (product * slack_q16 as u64) >> 16
    } else {
        let (high, q) = (product >> 16, slack_q16 as u64);
        // `saturating_mul` needs 128 bits: slack is at most 2^16, so only one at the top can overflow.
        if q >= 1 << 16 { product } else { high * q }
    };
    let sum = (class.population as u64 * s).wrapping_add(slack);
    let sum = if sum < slack { u64::MAX } else { sum };
    sum >= class.sample as u64 * p
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_exact_below_4_seconds_and_near_above() {
        let value = |x: u64| {
            let (low, high) = square(x);
            high as f64 * 4_294_967_296.0 + low as f64
        };
        for x in [0, 1, 65_535, 1_000_000, u64::from(u32::MAX)] {
            assert_eq!(value(x), (x as f64) * (x as f64), "{x}");
        }
        for x in [1 << 32, 5_000_000_000, 3_600_000_000_000, (1 << 48) - 1] {
            assert!((value(x) / (x as f64 * x as f64) - 1.0).abs() < 4e-5, "{x}");
        }
        assert_eq!(square(u64::MAX), square(1 << 48));
    }

    #[test]
    fn sums_of_stripes_add_up() {
        let mut sums = Sums::default();
        let (low, high) = square(3_000_000_000);
        for n in 1..=3 {
            sums.add(&Sums { n: 1, sum: 3_000_000_000, squares_low: low, squares_high: high });
            assert_eq!((sums.n, sums.sum), (n, n * 3_000_000_000));
        }
        assert_eq!(sums.squares(), 27e18);
        assert_eq!(sums.since(&sums), Sums::default());
    }
}
