//! Words at begins and ends of recorded operations.

use super::{integer, takings};
use crate::support::*;
use profiler_core::adapt::decision;
use profiler_core::class::ClassId;
use profiler_user::prober::operation::{OPERATION_BY_THREAD, OPERATION_MONITORING};
use profiler_user::prober::word::{SOURCE_ADDRESS, SOURCE_OBJECT};
use profiler_user::prober::{
    ClassControl, ClassKind, Kernel, KernelOptions, LinkKind, OperationControl, OperationRecord, Site,
    SyscallBounds, Word, WordSpec, word_list,
};
use std::sync::atomic::{AtomicU64, Ordering};

function!(whole);
function!(begins);
function!(ends);

const END: ClassId = ClassId(8);
static SERVED: AtomicU64 = AtomicU64::new(0);

/// A counter of the target, an object that the begin saw, and an argument.
fn words() -> [WordSpec; 3] {
    let address = SERVED.as_ptr() as u64;
    [
        WordSpec { source: SOURCE_ADDRESS, address, ..integer(8, &[0]) },
        WordSpec { object: 1, ..integer(8, &[]) },
        WordSpec { source: SOURCE_OBJECT, number: 0, ..integer(-2, &[6]) },
    ]
}

fn load_with(rate: f64, flags: u32, lost_at_begin: u8) -> TestKernel {
    let kernel =
        load(&KernelOptions { operation_classes: 4, operations_ring_bytes: 1 << 20, ..super::options() });
    kernel.set_words(&words()).unwrap();
    let control = OperationControl {
        flags: OPERATION_MONITORING | flags,
        other_class: 1,
        end_class: 4,
        words_begin: word_list(0, 2, lost_at_begin),
        words_end: word_list(0, 3, 0x3f),
        ..OperationControl::default()
    };
    kernel.operations().configure(0, &control, 2);
    kernel.operations().set_quota(0, u64::MAX);
    kernel.operations().order(0, decision::threshold(rate), 0, 7);
    kernel
}

fn records(kernel: &Kernel) -> Vec<OperationRecord> {
    let mut all = Vec::new();
    kernel.operation_reader().unwrap().drain(usize::MAX, |r| all.push(*r));
    all
}

extern "C" fn serve(at: u64) {
    SERVED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the test's own array.
    unsafe { *(at as *mut i16).add(3) -= 1 };
}

/// Each recorded operation has two takings, which tell where the counter stood; one that is not recorded has none.
#[test]
fn recorded_operations_have_words_at_both_ends_and_others_none() {
    let bound = ClassControl { operation: 0, ..ungated(ClassKind::Count) };
    for (kind, sites) in [
        (LinkKind::OperationReturn, vec![whole.entry(CLASS)]),
        (LinkKind::OperationExits, vec![whole.entry(CLASS), whole.exit(CLASS)]),
    ] {
        let kernel = load_with(0.5, 0, 0);
        let mut reader = kernel.taking_reader().unwrap();
        kernel.classes().configure(CLASS, bound);
        let attached = kernel.attach(&group(kind, sites)).unwrap();
        SERVED.store(0, Ordering::Relaxed);
        let mut numbers = [0_i16, 0, 0, 500];
        let at = numbers.as_mut_ptr() as u64;
        for _ in 0..400 {
            whole.call(Some(serve), at);
        }
        drop(attached);
        let all = takings(&mut reader);
        let recorded = records(&kernel);
        assert!((100..300).contains(&recorded.len()), "{}", recorded.len());
        assert_eq!(all.len(), 2 * recorded.len());
        for (record, both) in recorded.iter().zip(all.chunks_exact(2)) {
            let [begin, end] = both else { unreachable!() };
            for taking in [begin, end] {
                assert_eq!((taking.begin_ns, taking.tid), (record.begin_ns, record.tid));
                assert_eq!((taking.operation, taking.class), (Some(0), 0));
            }
            assert!(!begin.at_end && end.at_end && begin.read_ns.1 <= record.begin_ns);
            let Word::Read(served) = begin.words[0].1 else { panic!("{:?}", begin.words) };
            assert_eq!(begin.words[1].1, Word::Read(at));
            let number = (500 - served as i64 - 1) as u64;
            let expected = [Word::Read(served + 1), Word::NoRegister, Word::NoObject];
            let found: Vec<Word> = end.words.iter().map(|(_, word)| *word).collect();
            // The end has no arguments; the list gives the object up there, and reads it after that.
            assert_eq!(found, expected, "{kind:?}; {number}");
        }
    }
}

/// What the begin has seen is there at the end, on the same thread.
#[test]
fn an_object_of_the_begin_is_read_at_the_end() {
    let kernel = load_with(1.0, OPERATION_BY_THREAD, 0);
    let mut reader = kernel.taking_reader().unwrap();
    kernel.operations().adjust(0, |control| control.words_end = word_list(2, 1, 0x3f));
    let bound = ClassControl { operation: 0, ..ungated(ClassKind::Count) };
    for class in [CLASS, END] {
        kernel.classes().configure(class, bound);
    }
    let begin = kernel.attach(&group(LinkKind::OperationBegin, vec![begins.entry(CLASS)])).unwrap();
    let end = kernel.attach(&group(LinkKind::OperationEnd, vec![Site::entry(END, ends.offset())])).unwrap();
    let mut numbers = [0_i16, 0, 0, -7];
    begins.call(None, numbers.as_mut_ptr() as u64);
    numbers[3] = -8;
    std::hint::black_box(&mut numbers);
    ends.call(None, 0);
    drop((begin, end));
    let all = takings(&mut reader);
    assert_eq!(all.len(), 2);
    assert_eq!(all[1].words, [(2, Word::Read(-8_i64 as u64))]);
    assert_eq!(records(&kernel)[0].begin_ns, all[1].begin_ns);
}

/// System calls have no arguments here, and addresses and objects all the same.
#[test]
fn operations_of_system_calls_have_words_too() {
    let kernel = load_with(1.0, OPERATION_BY_THREAD, 0x3f);
    let mut reader = kernel.taking_reader().unwrap();
    let getpriority = libc::SYS_getpriority as u32;
    let bounds =
        SyscallBounds { begins_at_entry: Some(0), ends_at_exit: Some(0), ..SyscallBounds::default() };
    let watch = kernel.watch_syscalls(&[(getpriority, bounds)], std::process::id()).unwrap();
    SERVED.store(77, Ordering::Relaxed);
    // SAFETY: changes nothing.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    drop(watch);
    let all = takings(&mut reader);
    let words: Vec<Vec<Word>> = all.iter().map(|t| t.words.iter().map(|(_, w)| *w).collect()).collect();
    let begin = vec![Word::Read(77), Word::NoRegister];
    assert_eq!(words, [begin.clone(), [begin, vec![Word::NoObject]].concat()]);
}
