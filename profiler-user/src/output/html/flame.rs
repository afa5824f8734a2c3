//! The flame graph inside the page: the stacks that `flame.svg` draws, as boxes that a style sheet places.
//!
//! Each box has its place as numbers (`--x` and `--w`: shares of the whole width, `--y`: callers above it), so that zooming is a change of two
//! numbers. Without script it is a picture with tooltips. A tooltip has three lines: name, module, figures; the search reads the first two.

use super::escape;
use crate::output::stacks::{Frame, folded_frames, one_period};
use crate::output::units::{count, percent};
use profiler_core::recording::Recording;
use profiler_core::report::{Report, names};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Narrowest box, as a share of the samples: a fifth of a pixel.
const NARROWEST: f64 = 0.000_2;

/// Most boxes of a page: some 4 MB.
const MOST: usize = 20_000;

/// Functions on the stack of the samples below a caller.
#[derive(Default)]
struct Node<'a> {
    /// Samples, or us of CPU time.
    weight: u64,
    /// Those that have a function of that name here; one as a rule.
    modules: BTreeSet<&'a str>,
    inner: BTreeMap<&'a str, Node<'a>>,
}

impl<'a> Node<'a> {
    fn add(&mut self, stack: &'a [Frame<'a>], weight: u64) {
        self.weight += weight;
        let mut node = self;
        for frame in stack {
            node = node.inner.entry(&frame.text).or_default();
            node.weight += weight;
            if !frame.module.is_empty() {
                node.modules.insert(frame.module);
            }
        }
    }

    /// Ranks of this box and those below it.
    fn ranks(&self, depth: usize, out: &mut Vec<Rank>) {
        out.push((self.weight, Reverse(depth)));
        for inner in self.inner.values() {
            inner.ranks(depth + 1, out);
        }
    }
}

/// Which boxes go first: the wide ones, of those the outer ones. A caller ranks above what it calls.
type Rank = (u64, Reverse<usize>);

/// The boxes, and what they have in common.
struct Drawing {
    all: f64,
    unit: &'static str,
    /// Short names by whole ones.
    short: HashMap<String, String>,
    out: String,
    deepest: usize,
    drawn: usize,
    /// Boxes that are too narrow, or one too many.
    left_out: usize,
    /// The lowest rank that is drawn, and how many boxes of just that rank are.
    least: Rank,
    ties: usize,
}

impl Drawing {
    /// Draws the `most` widest boxes.
    fn of(root: &Node, unit: &'static str, short: HashMap<String, String>, most: usize) -> Self {
        let all = (root.weight as f64).max(1.0);
        let mut ranks = Vec::new();
        root.ranks(0, &mut ranks);
        let boxes = ranks.len();
        ranks.retain(|(weight, _)| *weight as f64 / all >= NARROWEST);
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        ranks.truncate(most);
        let least = ranks.last().copied().unwrap_or((0, Reverse(0)));
        let ties = ranks.iter().filter(|rank| **rank == least).count();
        let (out, short) = (String::new(), short);
        let mut drawing = Self { all, unit, short, out, deepest: 0, drawn: 0, left_out: 0, least, ties };
        drawing.draw("all", root, 0.0, 0);
        drawing.left_out = boxes - drawing.drawn;
        drawing
    }

    /// True if a box of this rank is drawn, which uses up one of the ties.
    fn takes(&mut self, rank: Rank) -> bool {
        if rank == self.least && self.ties > 0 {
            self.ties -= 1;
            return true;
        }
        rank > self.least
    }

    fn draw(&mut self, frame: &str, node: &Node, x: f64, depth: usize) {
        if !self.takes((node.weight, Reverse(depth))) {
            return;
        }
        let width = node.weight as f64 / self.all;
        self.drawn += 1;
        self.deepest = self.deepest.max(depth);
        let (name, class, what) = match (frame.strip_suffix("_[k]"), frame.strip_suffix("_[i]")) {
            (Some(name), _) => (name, "k", ", kernel"),
            (_, Some(name)) => (name, "i", ", inlined"),
            _ => (frame, shade(frame), ""),
        };
        let short = self.short.get(name).map_or(name, String::as_str);
        let modules: Vec<&str> = node.modules.iter().copied().collect();
        self.out.push_str(&format!(
            "<span class=\"{class}\" style=\"--x:{};--w:{};--y:{depth}\" title=\"{}&#10;{}&#10;{} of {} {}, {}{what}\">{}</span>\n",
            short_number(x),
            short_number(width),
            escape(name),
            escape(&modules.join(", ")),
            count(node.weight as f64),
            count(self.all),
            self.unit,
            percent(width),
            escape(short)
        ));
        let mut x = x;
        for (frame, inner) in &node.inner {
            self.draw(frame, inner, x, depth + 1);
            x += inner.weight as f64 / self.all;
        }
    }
}

/// Short names of frames: those of the report's rows, and the others as rows would have them.
fn short_names<'a>(report: &Report, frames: impl Iterator<Item = &'a Frame<'a>>) -> HashMap<String, String> {
    // As a frame is written in a folded stack.
    let mut short: HashMap<String, String> =
        report.rows.iter().map(|row| (row.name.replace(';', ":"), row.shown_name().to_owned())).collect();
    let bare = |text: &'a str| text.strip_suffix("_[k]").or(text.strip_suffix("_[i]")).unwrap_or(text);
    let others: BTreeSet<&str> =
        frames.map(|frame| bare(&frame.text)).filter(|name| !short.contains_key(*name)).collect();
    let others: Vec<&str> = others.into_iter().collect();
    let names = names::short_names(&others);
    short.extend(others.into_iter().map(str::to_owned).zip(names));
    short
}

/// A share with six digits behind the point, without zeros at the end.
fn short_number(share: f64) -> String {
    let text = format!("{share:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// One of four shades, by the name, so that neighbours differ and a function looks the same everywhere.
fn shade(name: &str) -> &'static str {
    let sum = name.bytes().fold(0_u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(b)));
    ["a", "b", "c", "d"][(sum % 4) as usize]
}

/// The graph with its heading; empty without samples.
pub(super) fn graph(report: &Report, recording: &Recording) -> String {
    if recording.samples.is_empty() {
        return String::new();
    }
    let stacks = folded_frames(recording);
    let mut root = Node::default();
    for (stack, weight) in &stacks {
        root.add(stack, *weight);
    }
    let short = short_names(report, stacks.keys().flatten());
    // What a box is wide by, of what a search tells a share, and what is said of its error.
    let (unit, of, error) = if one_period(recording) {
        ("samples", "samples", "a box of k samples has a relative error of about 1/sqrt(k)")
    } else {
        (
            "us of CPU time",
            "CPU time",
            "samples stand for different CPU times; a box that k samples fell into has a relative error of 1/sqrt(k) or somewhat more",
        )
    };
    let drawing = Drawing::of(&root, unit, short, MOST);
    let (cut, left_out) = match drawing.left_out {
        0 => ("", String::new()),
        n => (
            " data-cut",
            format!(
                " {} narrow boxes are left out: all below {}, and all but the {} widest.",
                count(n as f64),
                percent(NARROWEST),
                count(MOST as f64)
            ),
        ),
    };
    format!(
        "<h2 id=\"stacks\">Flame graph of the samples</h2>\n\
         <p class=\"dim\">Estimates: n = {} samples in {:.1} s; {error}. Callers stand above what they call; width is CPU time. \
         <span id=\"how\" hidden>A click on a box makes it as wide as the page, a second one (or Escape) shows all again; the search marks boxes. </span>\
         <span class=\"key\"></span> user code <span class=\"key i\"></span> inlined <span class=\"key k\"></span> kernel.{left_out}</p>\n\
         <div id=\"flame\"><div id=\"frames\" data-of=\"{of}\"{cut} style=\"--rows:{}\">\n{}</div></div>\n",
        count(recording.samples.len() as f64),
        report.duration_s,
        drawing.deepest + 1,
        drawing.out
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `stacks` stacks that share their outermost function and are `deep` functions deep.
    fn tree(stacks: usize, deep: usize) -> Vec<Vec<Frame<'static>>> {
        let frame = |text: String| Frame { text, module: "server" };
        let stack = |i| {
            let inner = (0..deep).map(move |d| frame(format!("f{i}::{d}")));
            std::iter::once(frame("main".into())).chain(inner).collect()
        };
        (0..stacks).map(stack).collect()
    }

    fn drawn(stacks: &[Vec<Frame<'static>>], weight: impl Fn(usize) -> u64, most: usize) -> Drawing {
        let mut root = Node::default();
        for (i, stack) in stacks.iter().enumerate() {
            root.add(stack, weight(i));
        }
        Drawing::of(&root, "samples", HashMap::new(), most)
    }

    #[test]
    fn a_page_has_a_bound_and_keeps_the_widest_boxes() {
        let stacks = tree(4_000, 25);
        let drawing = drawn(&stacks, |_| 1, MOST);
        assert_eq!((drawing.drawn, drawing.drawn + drawing.left_out), (MOST, 2 + 4_000 * 25));
        assert_eq!(drawing.out.lines().count(), MOST);
        assert!(drawing.out.len() < 5 << 20, "{} bytes", drawing.out.len());
        // Among boxes of one width the outer ones stay.
        assert_eq!((drawing.deepest, drawing.out.matches("::0&#10;").count()), (6, 4_000));
        // Wide ones stay to their end.
        let drawing = drawn(&tree(40, 25), |i| if i == 7 { 100 } else { 1 }, 30);
        assert_eq!((drawing.drawn, drawing.out.matches("\"f7::").count()), (30, 25));
        // Below the narrowest width nothing is drawn, however few there are.
        let drawing = drawn(&tree(3, 2), |i| if i == 0 { 1 } else { 5_000 }, MOST);
        assert_eq!((drawing.drawn, drawing.left_out), (6, 2));
    }
}
