use super::machine::{BOTTOM, Handlers, PLAIN, STACK, Style, TRAMPOLINE, run};
use super::*;
use crate::recording::{CallSiteRow, CallerRule, CallsMeta, StepRow, TailRow};

mod census;
mod trees;

/// What nestings say of many runs.
#[derive(Default)]
struct Score {
    steps: usize,
    /// Links that are marked.
    ambiguous: usize,
    /// Of those, links that are right all the same.
    right: usize,
}

/// Nests many programs. None may have a wrong link that is not marked, or bounds that are wrong. `may_be_marked` says of a step that its link may be.
fn check(name: &str, style: Style, programs: u64, may_be_marked: impl Fn(&StepRow) -> bool) -> Score {
    let mut score = Score::default();
    for seed in 0..programs {
        let run = run(seed, style);
        let code = Code::new(&run.meta, run.sites.clone(), &run.tails);
        let nesting = nest(&run.steps, &code);
        assert_eq!(nesting.links.len(), run.steps.len());
        for (index, link) in nesting.links.iter().enumerate() {
            let is_right = (link.parent, link.kind) == run.truth[index];
            assert!(
                is_right || link.is_ambiguous,
                "{name}, seed {seed}, step {index}: {link:?}, not {:?}",
                run.truth[index]
            );
            assert!(
                !link.is_ambiguous || may_be_marked(&run.steps[index]),
                "{name}, seed {seed}, step {index} is marked"
            );
            score.ambiguous += usize::from(link.is_ambiguous);
            score.right += usize::from(link.is_ambiguous && is_right);
            let (alive, by) = (nesting.alive_at[index], nesting.gone_by[index].unwrap_or(run.steps.len()));
            let gone = run.gone[index].unwrap_or(run.steps.len());
            assert!(
                alive < gone && gone <= by,
                "{name}, seed {seed}, step {index}: it was there until {gone}, not {alive}..{by}"
            );
        }
        score.steps += run.steps.len();
    }
    score
}

#[test]
fn where_every_function_is_watched_and_jumps_are_told_apart_every_link_is_sure() {
    let styles = [
        ("calls", PLAIN),
        ("calls through pointers", Style { indirect: true, ..PLAIN }),
        ("memory from the stack", Style { alloca: 16, ..PLAIN }),
        ("exceptions", Style { throws: true, alloca: 8, indirect: true, ..PLAIN }),
        ("jumps", Style { tails: true, apart: true, throws: true, ..PLAIN }),
        ("deep recursion", Style { depth: 1_000, steps: 4_000, ..PLAIN }),
    ];
    for (name, style) in styles {
        let score = check(name, style, 100, |_| false);
        assert!(score.steps > 10_000, "{name}: {} steps", score.steps);
    }
    let all = Style { throws: true, alloca: 8, indirect: true, tails: true, apart: true, ..PLAIN };
    // Of a call through a pointer it is not known what it called first.
    let jumps = Style { indirect: false, ..all };
    let handlers = Some(Handlers::SameStack);
    check("handlers", Style { signals: handlers, ..jumps }, 100, |s| s.return_address == TRAMPOLINE);
    check("coroutines", Style { coroutines: 3, depth: 20, ..jumps }, 100, |s| s.return_address == BOTTOM);
}

#[test]
fn no_wrong_link_is_unmarked() {
    let all = Style { indirect: true, alloca: 4, throws: true, ..PLAIN };
    let far = Some(Handlers::Alternate(0x7f00_0000_0000));
    let below = Some(Handlers::Alternate(STACK - (6 << 20)));
    for watched in [16, 12, 8, 4] {
        for described in [2, 1, 0] {
            for unknown in [0, 3] {
                let base = Style { watched, described, unknown, ..all };
                let styles = [
                    ("calls", base),
                    ("jumps", Style { tails: true, ..base }),
                    ("handlers", Style { signals: Some(Handlers::SameStack), ..base }),
                    ("alternate stack", Style { signals: far, ..base }),
                    ("alternate stack near", Style { signals: below, ..base }),
                    ("coroutines", Style { coroutines: 3, depth: 20, ..base }),
                    ("all", Style { tails: true, signals: far, ..base }),
                    (
                        "all, coroutines",
                        Style { tails: true, signals: far, coroutines: 3, depth: 20, ..base },
                    ),
                ];
                for (name, style) in styles {
                    let score = check(name, style, PROGRAMS, |_| true);
                    assert!(score.right <= score.ambiguous && score.ambiguous <= score.steps, "{name}");
                }
            }
        }
    }
}

/// Programs of each style.
const PROGRAMS: u64 = 15;

/// Steps of a thread, by class, slot and return address.
fn steps(of: &[(u32, u64, u64)]) -> Vec<StepRow> {
    let step = |(index, (class_id, slot, return_address)): (usize, &(u32, u64, u64))| StepRow {
        time_ns: 100 * (1 + index as u64),
        number: 1 + index as u64,
        class_id: *class_id,
        pid: 1,
        tid: 1,
        slot: *slot,
        return_address: *return_address,
        frame: 0,
    };
    of.iter().enumerate().map(step).collect()
}

/// A call site in a function with a frame of 0x20 bytes.
fn site(return_address: u64, function_class: Option<u32>, target_class: Option<u32>) -> CallSiteRow {
    CallSiteRow {
        return_address,
        pid: 1,
        module: String::new(),
        offset: return_address,
        function: String::new(),
        function_class,
        caller: CallerRule::Sp,
        caller_value: 0x20,
        target_class,
        is_direct: target_class.map(|_| true),
        jumps_from: Some(vec![]),
        reached_from: None,
        since_ns: None,
        until_ns: None,
    }
}

fn code(sites: Vec<CallSiteRow>, tails: &[(u32, u32)]) -> Code {
    let meta =
        CallsMeta { tails_known: (0..10).collect(), stack_span_bytes: 8 << 20, ..CallsMeta::default() };
    let tails: Vec<TailRow> = tails
        .iter()
        .map(|(from_class, to_class)| TailRow { from_class: *from_class, to_class: *to_class })
        .collect();
    Code::new(&meta, sites, &tails)
}

/// Links as text: the parent's number from 0, `-` without one, `t` by a jump, `s` of a handler, `?` ambiguous.
fn links(steps: &[StepRow], code: &Code) -> String {
    let text = |link: &Link| {
        let parent = link.parent.map_or("-".to_owned(), |parent| parent.to_string());
        let kind = match link.kind {
            Kind::Call => "",
            Kind::Tail => "t",
            Kind::Signal => "s",
        };
        format!("{parent}{kind}{}", if link.is_ambiguous { "?" } else { "" })
    };
    nest(steps, code).links.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[test]
fn two_entries_at_one_slot_from_one_site_are_a_loop_or_a_jump() {
    // Class 0 calls from its site 0x10; class 1 is entered, then another one at the same slot.
    let check = |second: u32, target: Option<u32>, tails: &[(u32, u32)], expected: &str| {
        let steps = steps(&[(0, 0x1000, 0x90), (1, 0xfe0, 0x10), (second, 0xfe0, 0x10)]);
        let code = code(vec![site(0x90, None, Some(0)), site(0x10, Some(0), target)], tails);
        assert_eq!(links(&steps, &code), expected, "{second}, {target:?}, {tails:?}");
    };
    check(1, Some(1), &[], "- 0 0");
    check(2, Some(1), &[(1, 2)], "- 0 1t");
    check(2, None, &[], "- 0 0");
    check(2, None, &[(1, 2)], "- 0 0?");
    check(1, Some(1), &[(1, 1)], "- 0 0?");
    check(2, Some(2), &[(1, 2)], "- 0 0?");
    // The site calls class 1, which cannot have got to class 2: one of the two is wrong.
    check(2, Some(1), &[], "- 0 0?");
}

#[test]
fn a_frame_is_the_parent_of_what_a_function_that_is_not_watched_calls_only_if_it_still_runs() {
    // Class 0 calls class 1 and then, through a function that is not watched, class 2.
    let sites = vec![site(0x90, None, Some(0)), site(0x10, Some(0), None), site(0x20, None, None)];
    let earlier = [(0, 0x1000, 0x90), (1, 0xfe0, 0x10)];
    let inner = (2, 0xf00, 0x20);
    let run = |more: &[(u32, u64, u64)], sites: Vec<CallSiteRow>| {
        links(&steps(&[&earlier, more].concat()), &code(sites, &[]))
    };
    assert_eq!(run(&[inner], sites.clone()), "- 0 1?", "it may be of class 1, if that has not returned");
    // Class 1 calls: it had not returned.
    let calls = site(0x30, Some(1), Some(3));
    assert_eq!(run(&[inner, (3, 0xfc0, 0x30)], [&sites[..], &[calls]].concat()), "- 0 1 1");
    // Class 1 does not lead to the function that calls.
    let mut known = sites;
    known[2].reached_from = Some(vec![0]);
    let calls = site(0x40, Some(0), None);
    assert_eq!(run(&[inner, (3, 0xfe0, 0x40)], [&known[..], &[calls]].concat()), "- 0 0 0");
}

#[test]
fn a_frame_at_the_slot_of_a_caller_that_is_not_watched_has_jumped_there_or_returned() {
    let mut inner = site(0x20, None, None);
    let steps = steps(&[(1, 0xfe0, 0x10), (2, 0xfc0, 0x20)]);
    assert_eq!(links(&steps, &code(vec![site(0x10, None, None), inner.clone()], &[])), "- -");
    inner.jumps_from = Some(vec![1]);
    assert_eq!(links(&steps, &code(vec![site(0x10, None, None), inner.clone()], &[])), "- -?");
    inner.jumps_from = None;
    assert_eq!(links(&steps, &code(vec![site(0x10, None, None), inner], &[])), "- -?");
}

#[test]
fn where_stacks_may_be_switched_the_likely_link_is_that_of_one_stack() {
    // Class 1 was called deep inside class 0; class 2 is entered above both, by a function that is not watched.
    let sites = vec![site(0x90, None, None), site(0x10, Some(0), None), site(0x20, None, None)];
    let steps = steps(&[(0, 0xfe0, 0x90), (1, 0xfc0, 0x10), (2, 0xff0, 0x20)]);
    let of = |span_bytes| {
        let mut code = code(sites.clone(), &[]);
        code.span_bytes = span_bytes;
        links(&steps, &code)
    };
    assert_eq!(of(8 << 20), "- 0 -");
    assert_eq!(of(0), "- 0 -?");
}

#[test]
fn a_frame_whose_memory_is_in_the_callers_frame_has_gone() {
    // Class 1 returned; the function that calls class 2 has a frame where that of class 1 was.
    let mut wide = site(0x20, None, None);
    wide.caller_value = 0x100;
    let steps = steps(&[(1, 0xfc0, 0x10), (2, 0xf00, 0x20)]);
    assert_eq!(links(&steps, &code(vec![site(0x10, None, None), wide.clone()], &[])), "- -");
    wide.caller_value = 0xc0;
    wide.jumps_from = None;
    assert_eq!(links(&steps, &code(vec![site(0x10, None, None), wide.clone()], &[])), "- -?", "at its slot");
    wide.caller_value = 0x80;
    assert_eq!(links(&steps, &code(vec![site(0x10, None, None), wide], &[])), "- 0?", "below it");
}

#[test]
fn a_caller_that_was_entered_before_the_operation_has_nothing_above_it() {
    let sites = vec![site(0x90, None, Some(0)), site(0x10, Some(7), None)];
    assert_eq!(links(&steps(&[(1, 0xfe0, 0x10)]), &code(sites.clone(), &[])), "-");
    // What was entered above it, or at its slot, must have gone before it was entered, and then it was entered inside the operation.
    assert_eq!(links(&steps(&[(0, 0x2000, 0x90), (1, 0xfe0, 0x10)]), &code(sites.clone(), &[])), "- -?");
    assert_eq!(links(&steps(&[(0, 0x1000, 0x90), (1, 0xfe0, 0x10)]), &code(sites, &[])), "- -?");
}

#[test]
fn a_return_address_is_of_the_code_that_was_there_at_its_time() {
    // At 0x10 class 0 called until a while after step 2, then a function that is not watched, from step 4 on.
    let until = CallSiteRow { until_ns: Some(250), ..site(0x10, Some(0), None) };
    let since = CallSiteRow { since_ns: Some(350), ..site(0x10, None, None) };
    let steps = steps(&[(0, 0x1000, 0x90), (1, 0xfe0, 0x10), (1, 0xfe0, 0x10), (1, 0xfe0, 0x10)]);
    for sites in [[until.clone(), since.clone()], [since, until]] {
        let sites = [&[site(0x90, None, Some(0))][..], &sites].concat();
        assert_eq!(links(&steps, &code(sites, &[])), "- 0 0? -");
    }
    // A later row of the same time replaces an earlier one.
    let sites = vec![site(0x90, None, Some(0)), site(0x10, None, None), site(0x10, Some(0), None)];
    assert_eq!(links(&steps, &code(sites, &[])), "- 0 0 0");
}

#[test]
fn what_code_made_at_run_time_calls_is_marked() {
    // The second step's return address lies in no module.
    let sites = vec![site(0x90, None, Some(0)), site(0x10, Some(0), None)];
    let made = steps(&[(0, 0x1000, 0x90), (1, 0xf00, 0x7777), (2, 0xfe0, 0x10)]);
    assert_eq!(links(&made, &code(sites, &[])), "- 0? 0");
}

#[test]
fn a_handler_belongs_to_the_youngest_frame_that_still_runs() {
    let mut trampoline = site(0x70, None, None);
    trampoline.caller = CallerRule::Signal;
    let sites = vec![site(0x90, None, Some(0)), site(0x10, Some(0), None), trampoline];
    let before = [(0, 0x1000, 0x90), (1, 0x9000_0000, 0x70)];
    assert_eq!(links(&steps(&before), &code(sites.clone(), &[])), "- 0s?");
    let after = [&before[..], &[(2, 0xfe0, 0x10)]].concat();
    assert_eq!(links(&steps(&after), &code(sites, &[])), "- 0s 0");
}

#[test]
fn a_frame_that_calls_again_after_it_was_taken_for_gone_says_that_stacks_are_switched() {
    // Class 1 runs on another stack that lies just below, and class 0 goes on in between.
    let sites = vec![
        site(0x90, None, Some(0)),
        site(0x91, None, Some(1)),
        site(0x10, Some(0), None),
        site(0x11, Some(1), None),
    ];
    let steps = steps(&[
        (0, 0x9000, 0x90),
        (1, 0x1000, 0x91),
        (2, 0x8fe0, 0x10),
        (3, 0xfe0, 0x11),
        (2, 0x8fe0, 0x10),
    ]);
    assert_eq!(links(&steps, &code(sites, &[])), "- 0? 0 1 0");
}

#[test]
fn rows_that_make_no_sense_do_no_harm() {
    let edges = [0, 1, 8, 0x7fff_ffff_ffff_fff8, u64::MAX - 7, u64::MAX];
    for value in [i64::MIN, -8, 0, 8, i64::MAX] {
        for caller in [CallerRule::Sp, CallerRule::Frame, CallerRule::Signal, CallerRule::Unknown] {
            for span in [0, 1, 8 << 20, u64::MAX] {
                let mut rows = Vec::new();
                for slot in edges {
                    for return_address in [0, 0x10] {
                        rows.push((1, slot, return_address));
                    }
                }
                let mut rows = steps(&rows);
                rows.iter_mut().for_each(|row| row.frame = row.slot);
                let sites = [None, Some(1)].map(|class| CallSiteRow {
                    caller,
                    caller_value: value,
                    ..site(0x10, class, class)
                });
                for site in sites {
                    let meta = CallsMeta { stack_span_bytes: span, ..CallsMeta::default() };
                    let nesting = nest(&rows, &Code::new(&meta, vec![site], &[]));
                    assert!(
                        nesting.links.iter().enumerate().all(|(i, link)| link.parent.is_none_or(|p| p < i))
                    );
                }
            }
        }
    }
}
