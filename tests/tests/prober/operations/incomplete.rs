//! Operations whose calls in order are not all there: each is marked, and counted as lost.

use super::*;
use profiler_user::prober::StepRecord;
use profiler_user::prober::operation::OPERATION_STEPS;
use std::collections::BTreeSet;

const OPERATIONS: u64 = 100;
const INSIDE: u64 = 3;

/// What came of [`OPERATIONS`] operations with [`INSIDE`] calls each.
struct Ran {
    records: Vec<OperationRecord>,
    steps: Vec<StepRecord>,
    begun: u64,
    lost: u64,
}

impl Ran {
    /// Numbers of steps that have a record.
    fn numbers(&self) -> BTreeSet<u64> {
        self.steps.iter().map(|step| step.number).collect()
    }

    fn is_marked(record: &OperationRecord) -> bool {
        record.steps.flags != 0
    }

    fn marked(&self) -> usize {
        self.records.iter().filter(|record| Self::is_marked(record)).count()
    }

    /// One that is not marked has all of its calls, in order; each that began is complete or counted as lost.
    fn check(&self) {
        let numbers = self.numbers();
        for record in &self.records {
            let there =
                (record.steps.before + 1..=record.steps.after).filter(|n| numbers.contains(n)).count();
            if !Self::is_marked(record) {
                assert_eq!(there as u64, INSIDE, "{record:?}");
                assert_eq!(record.steps.after - record.steps.before, INSIDE, "{record:?}");
            }
        }
        let complete = self.records.len() - self.marked();
        assert_eq!(
            self.begun,
            complete as u64 + self.lost,
            "{} records, {} marked",
            self.records.len(),
            self.marked()
        );
    }
}

/// Nothing is read until all have ended.
fn run(steps_ring_bytes: u32, quota: Option<i64>) -> Ran {
    let kernel = load(&KernelOptions { steps_ring_bytes, ..options(8) });
    let mut operations = kernel.operation_reader().unwrap();
    let mut steps = kernel.step_reader().unwrap();
    configure(&kernel, 0, 0, OPERATION_MONITORING | OPERATION_STEPS, 4, 1.0);
    let bounds = attach(&kernel, LinkKind::OperationReturn, vec![request.entry(BOUND)]);
    let whole = ungated(ClassKind::Step);
    let flags = FLAG_INSIDE | FLAG_INNER_CALL | if quota.is_none() { whole.flags } else { 0 };
    kernel.classes().configure(INNER, ClassControl { flags, ..whole });
    let link = kernel.attach(&group(LinkKind::Step, vec![inside_call.entry(INNER)])).unwrap();
    if let Some(quota) = quota {
        kernel.classes().set_quota(INNER, quota);
    }
    kernel.operations().details_are_back(0);
    for _ in 0..OPERATIONS {
        request.call(Some(three_inner), 0);
    }
    drop((bounds, link));
    let mut taken = Vec::new();
    steps.drain(usize::MAX, |step| taken.push(*step));
    let counters = kernel.operations().counters(BASE);
    Ran { records: drain(&mut operations), steps: taken, begun: counters.recorded, lost: counters.dropped }
}

/// The smallest ring that a kernel gives is a page.
#[test]
fn a_ring_of_one_page_marks_each_operation_whose_calls_did_not_fit() {
    let ran = run(1, None);
    ran.check();
    assert_eq!((ran.begun, ran.records.len() as u64), (OPERATIONS, OPERATIONS));
    // A record of the ring has a header of 8 bytes.
    let fits = 4096 / (8 + size_of::<StepRecord>() as u64);
    assert!((fits - 2..=fits).contains(&(ran.steps.len() as u64)), "{} of {fits} steps", ran.steps.len());
    let complete = ran.records.len() - ran.marked();
    assert_eq!(complete as u64, ran.steps.len() as u64 / INSIDE);
    // Those that fitted are the first.
    assert!(ran.records.is_sorted_by_key(Ran::is_marked));
}

#[test]
fn a_quota_of_ten_marks_the_operation_in_which_it_ends_and_records_none_after_it() {
    let ran = run(1 << 20, Some(10));
    ran.check();
    assert_eq!((ran.records.len(), ran.marked()), (4, 1), "{:?}", ran.records);
    assert!(Ran::is_marked(&ran.records[3]));
    assert_eq!(ran.steps.len(), 10);
    assert_eq!((ran.begun, ran.lost), (4, 1));
}
