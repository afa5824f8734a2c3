//! Which recorded calls were open on a thread at a time.

use std::collections::HashMap;

/// A recorded call of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Index of the function in its context.
    pub pile: u32,
    /// Number of the call there.
    pub call: u32,
    /// Index of the call of the same function that was open when this one began.
    outer: Option<u32>,
}

impl Span {
    pub fn new(begin_ns: u64, end_ns: u64, pile: u32, call: u32) -> Self {
        Self { begin_ns, end_ns, pile, call, outer: None }
    }
}

/// The calls of some functions, by thread.
#[derive(Debug, Default)]
pub struct OpenCalls(HashMap<u32, HashMap<u32, Vec<Span>>>);

impl OpenCalls {
    /// Calls as thread, class and span, in any order.
    pub fn new(calls: impl Iterator<Item = (u32, u32, Span)>) -> Self {
        let mut all = Self::default();
        for (tid, class, span) in calls {
            all.0.entry(tid).or_default().entry(class).or_default().push(span);
        }
        all.0.values_mut().flat_map(HashMap::values_mut).for_each(|spans| nest(spans));
        all
    }

    /// The innermost open call of each class on a thread: class, and what [`OpenCalls::outwards`] is asked with.
    pub fn at(&self, tid: u32, time_ns: u64) -> impl Iterator<Item = (u32, u32)> {
        let of_thread = self.0.get(&tid).into_iter().flatten();
        of_thread.filter_map(move |(class, spans)| {
            // OK because a recording has fewer calls of a function than u32 counts.
            let last = spans.partition_point(|span| span.begin_ns <= time_ns).checked_sub(1)? as u32;
            let open = chain(spans, last).find(|(_, span)| time_ns < span.end_ns)?;
            Some((*class, open.0))
        })
    }

    /// A call and the calls of the same function around it that were open at a time.
    pub fn outwards(
        &self,
        tid: u32,
        class: u32,
        innermost: u32,
        time_ns: u64,
    ) -> impl Iterator<Item = &Span> {
        let spans = self.0.get(&tid).and_then(|of| of.get(&class)).map_or(&[][..], Vec::as_slice);
        chain(spans, innermost).map(|(_, span)| span).filter(move |span| time_ns < span.end_ns)
    }
}

/// A call and those around it.
fn chain(spans: &[Span], from: u32) -> impl Iterator<Item = (u32, &Span)> {
    let at = |index: u32| Some((index, spans.get(index as usize)?));
    std::iter::successors(at(from), move |(_, span)| at(span.outer?))
}

/// Sorts calls by their begins, and says of each which one it began in.
fn nest(spans: &mut [Span]) {
    spans.sort_by_key(|span| (span.begin_ns, std::cmp::Reverse(span.end_ns)));
    let mut open: Vec<(u32, u64)> = Vec::new();
    for (index, span) in (0..).zip(spans) {
        while open.pop_if(|(_, end_ns)| *end_ns <= span.begin_ns).is_some() {}
        span.outer = open.last().map(|(outer, _)| *outer);
        open.push((index, span.end_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nested_calls_the_innermost_that_is_open_is_found_and_those_around_it() {
        // 10 to 100 holds 20 to 30 and 40 to 60, which holds 50 to 55; of another thread 10 to 20.
        let spans = [(10, 100), (50, 55), (20, 30), (40, 60)];
        let calls = (0..).zip(spans).map(|(call, (begin, end))| (7, 1, Span::new(begin, end, 0, call)));
        let open = OpenCalls::new(calls.chain([(8, 1, Span::new(10, 20, 0, 9))]));
        let at = |time: u64| -> Vec<u32> {
            let found: Vec<(u32, u32)> = open.at(7, time).collect();
            let of = |(class, index): &(u32, u32)| {
                open.outwards(7, *class, *index, time).map(|span| span.call).collect::<Vec<_>>()
            };
            found.iter().flat_map(of).collect()
        };
        assert_eq!(
            (at(9), at(10), at(20), at(29), at(30)),
            (vec![], vec![0], vec![2, 0], vec![2, 0], vec![0])
        );
        assert_eq!((at(52), at(55), at(60), at(99)), (vec![1, 3, 0], vec![3, 0], vec![0], vec![0]));
        assert_eq!((at(100), open.at(8, 15).count(), open.at(9, 15).count()), (vec![], 1, 0));
    }
}
