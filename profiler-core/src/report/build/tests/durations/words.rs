//! Words of operations and the mean.

use super::*;
use crate::recording::WordMeta;

/// What words of operations took stands at the calls alone, not in the kernel's sum: it is taken off the mean as well. `hidden`: ns in a call of 10.
fn with_words(hidden_ns: u64, has_words: bool, binned: bool) -> Row {
    let mut r = timed(0.0);
    r.classes[0].kind = RecordKind::Record;
    let mut w = window(WindowKind::Trace, 0.0, 10.0, 1_000);
    let duration_ns = |i: u64| 1_600 + if i.is_multiple_of(10) { hidden_ns } else { 0 };
    (w.returns, w.max_ns, w.nested_cost_ns) = (1_000, 1_600 + hidden_ns, 600_000);
    w.sum_ns = (0..1_000).map(duration_ns).sum();
    r.windows = vec![w];
    r.events = (0..1_000)
        .map(|i| EventRow {
            time_ns: START + i,
            class_id: 1,
            pid: 42,
            tid: 42,
            duration_ns: Some(duration_ns(i)),
            args: [None; 6],
            nested_cost_ns: Some(duration_ns(i) - 1_000),
            place: CallPlace::default(),
            context: CallContext::default(),
        })
        .collect();
    if binned {
        let own_ns = CallDurations::own_ns(&r.classes)[&1];
        let events = std::mem::take(&mut r.events);
        events.iter().for_each(|call| r.event_durations.add(call, own_ns));
    }
    let word = WordMeta {
        word: 0,
        name: "conn".to_owned(),
        place: "req".to_owned(),
        at_end: false,
        expression: "arg0".to_owned(),
        value: "long".to_owned(),
        operation: Some(0),
    };
    r.meta.words = Vec::from_iter(has_words.then_some(word));
    row_of(&r)
}

#[test]
fn what_words_of_operations_took_is_taken_off_the_mean() {
    for binned in [false, true] {
        let f = with_words(4_000, true, binned);
        let mean = f.mean_ns.unwrap();
        // A bucket above 4 us is 2 ns wide.
        let known_to_ns = if binned { 0.1 } else { 1e-6 };
        assert!((mean.value - 1_000.0).abs() < known_to_ns, "{mean:?}");
        assert!((f.correction_ns - 1_000.0).abs() < known_to_ns, "{}", f.correction_ns);
        // Without takings inside, the two sums are the same.
        let [with, without] = [true, false].map(|has| with_words(0, has, binned).mean_ns.unwrap().value);
        assert!((with - 1_000.0).abs() < 1e-6 && with == without, "{with} {without}");
    }
}
