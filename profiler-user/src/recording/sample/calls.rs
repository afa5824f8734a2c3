//! Calls in order of the recording made by hand.

use profiler_core::recording::{
    BesideRow, CallSiteRow, CallerRule, CallsMeta, StepRow, WordMeta, WordRow, WordStatus, WordTally,
};

pub(super) fn meta() -> CallsMeta {
    CallsMeta {
        asked: vec!["db::*".into(), "parse".into()],
        classes: vec![0, 1],
        tails_known: vec![1],
        stack_span_bytes: 8 << 20,
        notes: Vec::new(),
    }
}

/// The calls in order of the first operation: `db::query` calls `parse` twice.
pub(crate) fn steps() -> Vec<StepRow> {
    [
        (8, 0, 0x7ffd_0000_1ff8, 0x40_1010),
        (9, 1, 0x7ffd_0000_1fc8, 0x40_1140),
        (10, 1, 0x7ffd_0000_1fc8, 0x40_1140),
    ]
    .map(|(number, class_id, slot, return_address)| StepRow {
        time_ns: 1_100_000_000 + (number - 7) * 100_000,
        number,
        class_id,
        pid: 1234,
        tid: 1235,
        slot,
        return_address,
        frame: 0x7ffd_0000_2ff0,
    })
    .to_vec()
}

/// Where those are called from.
pub(crate) fn call_sites() -> Vec<CallSiteRow> {
    let site = |return_address, function: &str, caller_value| CallSiteRow {
        return_address,
        pid: 1234,
        module: "/usr/bin/server".into(),
        offset: return_address - 0x40_0000,
        function: function.into(),
        function_class: None,
        caller: CallerRule::Sp,
        caller_value,
        target_class: None,
        is_direct: Some(false),
        jumps_from: None,
        reached_from: None,
        since_ns: None,
        until_ns: None,
    };
    vec![
        site(0x40_1010, "handle", 0x28),
        CallSiteRow {
            function_class: Some(0),
            target_class: Some(1),
            is_direct: Some(true),
            jumps_from: Some(vec![]),
            reached_from: Some(vec![0, 1]),
            since_ns: Some(1_000_000_000),
            until_ns: Some(3_000_000_000),
            ..site(0x40_1140, "db::query", 0x30)
        },
    ]
}

/// A word that was taken.
pub(super) fn word_meta() -> WordMeta {
    WordMeta {
        word: 0,
        name: "length".into(),
        place: "parse".into(),
        at_end: true,
        expression: "arg0->16:i32".into(),
        value: "i32".into(),
        operation: None,
    }
}

/// It was read once, and once it was not.
pub(crate) fn words() -> Vec<WordRow> {
    let read = WordRow {
        begin_ns: 1_200_000_000,
        class_id: 1,
        operation: None,
        pid: 1234,
        tid: 1235,
        at_end: true,
        word: 0,
        from_ns: 1_200_000_900,
        until_ns: 1_200_001_000,
        value: Some(u64::MAX - 6),
        status: WordStatus::Read,
        depth: 0,
    };
    let null = WordRow {
        begin_ns: 1_300_000_000,
        operation: Some(0),
        value: None,
        status: WordStatus::Null,
        depth: 2,
        ..read
    };
    vec![read, null]
}

pub(super) fn word_tallies() -> Vec<WordTally> {
    let mut tally = WordTally::new(word_meta());
    words().iter().for_each(|row| tally.add(row));
    vec![tally]
}

pub(super) fn beside() -> Vec<BesideRow> {
    vec![BesideRow {
        class_id: 0,
        start_ns: 1_000_000_000,
        begin_ns: 1_000_005_000,
        end_ns: 1_008_000_000,
        calls: 5_010,
        beside_id: 2,
        beside_calls: 7,
    }]
}
