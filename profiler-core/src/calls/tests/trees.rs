//! Trees and their lines.

use super::*;

/// Lines as text.
fn lines(tree: &CallTree, layout: Layout) -> Vec<String> {
    let text = |line: Line| {
        let node = &tree.nodes[line.node];
        let times = if line.times > 1 { format!(" x{}", line.times) } else { String::new() };
        let hidden = if line.hidden > 0 { format!(" +{}", line.hidden) } else { String::new() };
        format!("{}{}{times}{hidden}", "  ".repeat(node.depth), node.class_id)
    };
    tree.lines(layout).into_iter().map(text).collect()
}

/// Class 0 calls class 1 three times, which calls class 2 each time, and the third time twice.
fn tree() -> CallTree {
    let outer = (1, 0xfe0, 0x10);
    let inner = (2, 0xfc0, 0x11);
    let steps = steps(&[(0, 0x1000, 0x90), outer, inner, outer, inner, outer, inner, inner]);
    let sites = vec![site(0x90, None, Some(0)), site(0x10, Some(0), Some(1)), site(0x11, Some(1), Some(2))];
    CallTree::new(&steps, &code(sites, &[]), 1_000)
}

#[test]
fn equal_calls_that_follow_one_another_are_one_line() {
    let tree = tree();
    let all = Layout { levels: usize::MAX, folds: true };
    assert_eq!(lines(&tree, all), ["0", "  1 x2", "    2", "  1", "    2 x2"]);
    let unfolded = Layout { folds: false, ..all };
    assert_eq!(lines(&tree, unfolded), ["0", "  1", "    2", "  1", "    2", "  1", "    2", "    2"]);
    assert_eq!(lines(&tree, Layout { levels: 2, ..all }), ["0", "  1 x2 +1", "  1 +2"]);
    assert_eq!(lines(&tree, Layout { levels: 1, ..all }), ["0 +7"]);
}

#[test]
fn a_call_lasted_at_least_until_the_last_one_in_it_and_at_most_until_a_step_that_it_had_to_end_before() {
    let bounds: Vec<(u64, u64)> =
        tree().nodes.iter().map(|node| (node.bounds.at_least_ns, node.bounds.at_most_ns)).collect();
    // The steps have times 100, 200, … 800; the operation ends at 1,000.
    assert_eq!(
        bounds,
        [(700, 900), (100, 200), (0, 100), (100, 200), (0, 100), (200, 400), (0, 100), (0, 200)]
    );
}

/// A thousand deep, and each level's end is known at the end.
#[test]
fn depth_does_not_matter() {
    let entries: Vec<(u32, u64, u64)> = (0..100_000).map(|i| (1, 0x4000_0000 - 0x20 * i, 0x10)).collect();
    let tree = CallTree::new(&steps(&entries), &code(vec![site(0x10, Some(1), Some(1))], &[]), u64::MAX);
    assert_eq!(tree.nodes.last().unwrap().depth, 99_999);
    assert_eq!(tree.ambiguous(), 0);
    assert_eq!(tree.lines(Layout { levels: usize::MAX, folds: true }).len(), 100_000);
}
