//! Words of the target, against a process that knows them: this one.

use crate::support::*;
use profiler_core::class::ClassId;
use profiler_tests::support::tiers_here;
use profiler_user::prober::word::{
    SOURCE_ADDRESS, SOURCE_ARGUMENT, SOURCE_OBJECT, SOURCE_RESULT, WORD_INTEGER, WORD_STRING,
};
use profiler_user::prober::{
    Attached, Call, ClassControl, ClassKind, FLAG_ARGUMENTS, FLAG_WORDS, Kernel, KernelOptions, LinkKind,
    Site, Taking, TakingReader, Tier, Word, WordSpec, word_list,
};

mod marked;
mod operations;
mod unmapped;

function!(chained);
function!(ended);
function!(remembered);
function!(crowded);

/// The second argument of functions of `function!`.
const ARGUMENT: u8 = 1;

pub(super) fn options() -> KernelOptions {
    KernelOptions { word_limit: 64, takings_ring_bytes: 4 << 20, ..KernelOptions::default() }
}

/// An integer of that width (negative: signed) behind dereferences at these offsets, from the second argument.
pub(super) fn integer(bytes: i8, offsets: &[i32]) -> WordSpec {
    let mut spec = WordSpec {
        source: SOURCE_ARGUMENT,
        number: ARGUMENT,
        dereferences: offsets.len() as u8,
        kind: WORD_INTEGER,
        bytes: bytes.unsigned_abs(),
        signed: u8::from(bytes < 0),
        ..WordSpec::default()
    };
    spec.offsets[..offsets.len()].copy_from_slice(offsets);
    spec
}

/// The length of a string; the last offset is that of its begin.
pub(super) fn length(offsets: &[i32]) -> WordSpec {
    let dereferences = offsets.len() as u8 - 1;
    WordSpec { dereferences, kind: WORD_STRING, ..integer(8, offsets) }
}

/// A class of recorded calls that takes these words at the begin.
pub(super) fn configure(kernel: &Kernel, words: &[WordSpec], lost: u8) {
    kernel.set_words(words).unwrap();
    let list = word_list(0, words.len() as u8, lost);
    kernel.classes().reset(CLASS);
    kernel.classes().configure(CLASS, recorded(list, 0));
}

fn recorded(begin: u32, end: u32) -> ClassControl {
    let control = ungated(ClassKind::Record);
    let flags = control.flags | FLAG_ARGUMENTS | FLAG_WORDS;
    ClassControl { flags, words_begin: begin, words_end: end, ..control }
}

pub(super) fn takings(reader: &mut TakingReader) -> Vec<Taking> {
    let mut all = Vec::new();
    reader.drain(usize::MAX, |taking| all.push(taking));
    all
}

/// What one call finds.
pub(super) fn found(reader: &mut TakingReader, function: Function, argument: u64) -> Vec<Word> {
    function.call(None, argument);
    let mut all = takings(reader);
    assert_eq!(all.len(), 1, "a call, a taking");
    let taking = all.remove(0);
    assert!((0..).zip(&taking.words).all(|(i, (number, _))| i == *number));
    taking.words.into_iter().map(|(_, word)| word).collect()
}

pub(super) fn attach(kernel: &Kernel, kind: LinkKind, sites: Vec<Site>) -> Attached {
    kernel.add_target(std::process::id(), false).unwrap();
    let attached = kernel.attach(&group(kind, sites)).unwrap();
    assert!(attached.refused.is_empty());
    attached
}

/// Ways to record a function, with one program each.
pub(super) fn ways(f: Function) -> Vec<(LinkKind, Vec<Site>)> {
    vec![
        (LinkKind::Record, vec![f.entry(CLASS)]),
        (LinkKind::ExitPair, vec![f.entry(CLASS), f.exit(CLASS)]),
        (LinkKind::ReturnPair, vec![f.entry(CLASS)]),
    ]
}

#[repr(C)]
struct Node {
    before: i64,
    next: *const Node,
    bits: u64,
    text: [u8; 8],
}

fn node(next: *const Node) -> Node {
    Node { before: -3, next, bits: 0xfedc_ba98_89f0_f1f9, text: *b"hello\0xy" }
}

static GLOBAL: u32 = 0xfeed_beef;

fn widths_and_depths(kernel: &Kernel, reader: &mut TakingReader) {
    let last = node(std::ptr::null());
    let third = node(&last);
    let second = node(&third);
    let first = node(&second);
    // 8: next; 16: the bits.
    let chains: [&[i32]; 4] = [&[16], &[8, 16], &[8, 8, 16], &[8, 8, 8, 16]];
    let widths = [1, 2, 4, 8, -1, -2, -4, -8];
    let mut words = Vec::new();
    let mut truth = Vec::new();
    for offsets in chains {
        for bytes in widths {
            words.push(integer(bytes, offsets));
            let value = match bytes {
                1 => 0xf9,
                2 => 0xf1f9,
                4 => 0x89f0_f1f9,
                -1 => i64::from(0xf9_u8 as i8) as u64,
                -2 => i64::from(0xf1f9_u16 as i16) as u64,
                -4 => i64::from(0x89f0_f1f9_u32 as i32) as u64,
                _ => first.bits,
            };
            truth.push(Word::Read(value));
        }
    }
    let middle = (&raw const first).cast::<u8>().wrapping_add(16) as u64;
    words.push(integer(8, &[]));
    truth.push(Word::Read(middle));
    words.push(integer(-4, &[]));
    truth.push(Word::Read(i64::from(middle as i32) as u64));
    words.push(integer(-8, &[-16]));
    truth.push(Word::Read(-3_i64 as u64));
    words.push(WordSpec { source: SOURCE_ADDRESS, address: &raw const GLOBAL as u64, ..integer(4, &[0]) });
    truth.push(Word::Read(0xfeed_beef));
    words.push(length(&[8]));
    truth.push(Word::Read(5));
    words.push(length(&[-8, 8, 24]));
    truth.push(Word::Read(5));
    // The argument is the middle of the first node: all of its offsets are 16 smaller.
    for word in words.iter_mut().take(32) {
        word.offsets[0] -= 16;
    }
    for (kind, sites) in ways(chained) {
        configure(kernel, &words, 0);
        let attached = attach(kernel, kind, sites);
        assert_eq!(found(reader, chained, middle), truth, "{kind:?}");
        drop(attached);
    }
    kernel.remove_target(std::process::id());
}

#[test]
fn every_width_sign_and_depth_is_what_stands_there() {
    let tiers = tiers_here("every_width_sign_and_depth_is_what_stands_there", &[Tier::A, Tier::B, Tier::D]);
    for tier in tiers {
        let kernel = load(&KernelOptions { forced_tier: Some(tier), ..options() });
        widths_and_depths(&kernel, &mut kernel.taking_reader().unwrap());
    }
}

/// Every taking has the begin of exactly one recorded call of its thread, and lies before it where it was taken at the begin.
fn are_joined(calls: &[Call], all: &[Taking]) {
    for taking in all {
        assert_eq!((taking.class, taking.operation), (CLASS.0, None));
        let mut own = calls.iter().filter(|c| (c.time_ns, c.tid) == (taking.begin_ns, taking.tid));
        let call = own.next().expect("a call with this begin");
        assert_eq!((own.next(), call.pid), (None, taking.pid));
        let (from, until) = taking.read_ns;
        assert!(from <= until);
        match taking.at_end {
            false if call.duration_ns.is_some() => assert!(until <= call.time_ns, "read inside the call"),
            false => assert!(call.time_ns <= from),
            true => assert!(call.time_ns + call.duration_ns.unwrap() <= from),
        }
    }
}

extern "C" fn add_one(at: u64) {
    // SAFETY: the test's own cell.
    unsafe { *(at as *mut u64) += 1 };
}

/// At the end arguments are those of the begin, memory is that of the end, and a return link knows the result.
fn at_ends(kernel: &Kernel) {
    let mut reader = kernel.taking_reader().unwrap();
    let mut calls = kernel.call_reader().unwrap();
    let result = WordSpec { source: SOURCE_RESULT, ..integer(8, &[]) };
    kernel.set_words(&[integer(8, &[0]), result, integer(8, &[])]).unwrap();
    for (kind, sites) in ways(ended) {
        kernel.classes().configure(CLASS, recorded(word_list(0, 2, 0), word_list(0, 3, 0)));
        let attached = attach(kernel, kind, sites);
        let mut cell = 40_u64;
        let at = &raw mut cell as u64;
        for _ in 0..2 {
            ended.call(Some(add_one), at);
        }
        drop(attached);
        let all = takings(&mut reader);
        let mut records = Vec::new();
        calls.drain(usize::MAX, |call| records.push(call));
        assert_eq!(records.len(), 2);
        are_joined(&records, &all);
        let words: Vec<(bool, Vec<Word>)> =
            all.iter().map(|t| (t.at_end, t.words.iter().map(|(_, word)| *word).collect())).collect();
        let begin = |value| (false, vec![Word::Read(value), Word::NoRegister]);
        let end = |value, result| (true, vec![Word::Read(value), result, Word::Read(at)]);
        let expected = match kind {
            LinkKind::Record => vec![begin(40), begin(41)],
            LinkKind::ExitPair => {
                vec![begin(40), end(41, Word::NoRegister), begin(41), end(42, Word::NoRegister)]
            }
            _ => {
                let result = |i: usize| Word::Read(records[i].result.unwrap());
                vec![begin(40), end(41, result(0)), begin(41), end(42, result(1))]
            }
        };
        assert_eq!(words, expected, "{kind:?}");
    }
    kernel.remove_target(std::process::id());
}

#[test]
fn words_at_ends_see_what_the_call_has_done() {
    for tier in tiers_here("words_at_ends_see_what_the_call_has_done", &[Tier::A, Tier::B, Tier::D]) {
        at_ends(&load(&KernelOptions { forced_tier: Some(tier), ..options() }));
    }
}

/// An object that a thread has seen is known to this thread alone, until its chain cannot be read.
#[test]
fn objects_are_those_that_this_thread_saw_last() {
    let kernel = load(&options());
    let mut reader = kernel.taking_reader().unwrap();
    let other = ClassId(8);
    // Reads the object first, so that it is the one that an earlier hit saw.
    let of_object = WordSpec { source: SOURCE_OBJECT, number: 2, ..integer(8, &[16]) };
    let object = WordSpec { object: 3, ..integer(8, &[8]) };
    kernel.set_words(&[of_object, object]).unwrap();
    kernel.classes().configure(CLASS, recorded(word_list(1, 1, 0), 0));
    kernel.classes().configure(other, recorded(word_list(0, 1, 0), 0));
    let sites = vec![remembered.entry(CLASS), chained.entry(other)];
    let attached = attach(&kernel, LinkKind::Record, sites);
    let last = node(std::ptr::null());
    let first = node(&last);
    let mut see = |function: Function, argument: *const Node| {
        function.call(None, argument as u64);
        takings(&mut reader).remove(0).words[0].1
    };
    assert_eq!(see(chained, std::ptr::null()), Word::NoObject);
    assert_eq!(see(remembered, &first), Word::Read(&raw const last as u64));
    assert_eq!(see(chained, std::ptr::null()), Word::Read(last.bits));
    std::thread::scope(|scope| scope.spawn(|| chained.call(None, 0)).join().unwrap());
    let elsewhere = takings(&mut reader);
    assert_eq!(elsewhere[0].words[0].1, Word::NoObject, "another thread");
    let mut see = |function: Function, argument: *const Node| {
        function.call(None, argument as u64);
        takings(&mut reader).remove(0).words[0].1
    };
    // The last one has no next: the object is null.
    assert_eq!(see(remembered, &last), Word::Read(0));
    assert_eq!(see(chained, std::ptr::null()), Word::Null(1));
    assert_eq!(see(remembered, &first), Word::Read(&raw const last as u64));
    assert_eq!(see(remembered, std::ptr::null()), Word::Null(1));
    assert_eq!(see(chained, std::ptr::null()), Word::NoObject, "what it is now is not known");
    drop(attached);
}

/// A full ring loses takings, each of which is counted; the calls have their records all the same.
#[test]
fn takings_that_find_the_ring_full_are_counted() {
    const CALLS: u64 = 200;
    let kernel = load(&KernelOptions { takings_ring_bytes: 4096, ..options() });
    let mut reader = kernel.taking_reader().unwrap();
    configure(&kernel, &[integer(8, &[])], 0);
    let attached = attach(&kernel, LinkKind::Record, vec![crowded.entry(CLASS)]);
    for i in 0..CALLS {
        crowded.call(None, i);
    }
    drop(attached);
    let read = takings(&mut reader).len() as u64;
    let lost = kernel.classes().global_counters().takings_dropped;
    assert!(read > 0 && lost > 0, "{read} read, {lost} lost");
    assert_eq!(read + lost, CALLS);
    let c = kernel.classes().counters(CLASS);
    assert_eq!((c.kept, c.dropped), (CALLS, 0));
}

#[test]
fn no_more_words_fit_than_there_is_room_for() {
    let kernel = load(&options());
    assert_eq!(kernel.set_words(&[integer(8, &[]); 65]), Err(64));
    assert_eq!(kernel.set_words(&[integer(8, &[]); 64]), Ok(()));
}

/// With the longest lists: what the verifier looks at then.
#[test]
fn every_program_that_takes_words_loads() {
    let kernel = load(&options());
    let mut refused = Vec::new();
    for trial in kernel.try_programs() {
        match &trial.outcome {
            Ok(n) => println!("{} ({}): {n} instructions verified", trial.name, trial.link),
            Err(error) => refused.push(format!("{} ({}): {error}", trial.name, trial.link)),
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
