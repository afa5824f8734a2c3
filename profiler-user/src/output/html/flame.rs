//! The flame graph inside the page: the stacks that `flame.svg` draws, as boxes that a style sheet places.
//!
//! Each box has its place as numbers (`--x` and `--w`: shares of the whole width, `--y`: callers above it), so that zooming is a change of two
//! numbers. Without script it is a picture with tooltips.

use super::escape;
use crate::output::stacks::{folded, one_period};
use crate::output::units::{count, percent};
use profiler_core::recording::Recording;
use profiler_core::report::{Report, names};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Narrowest box, as a share of the samples: a fifth of a pixel.
const NARROWEST: f64 = 0.000_2;

/// Functions on the stack of the samples below a caller.
#[derive(Default)]
struct Node {
    /// Samples, or us of CPU time.
    weight: u64,
    inner: BTreeMap<String, Node>,
}

impl Node {
    fn add(&mut self, stack: &str, weight: u64) {
        self.weight += weight;
        let mut node = self;
        for frame in stack.split(';') {
            node = node.inner.entry(frame.to_owned()).or_default();
            node.weight += weight;
        }
    }
}

/// What all boxes have in common.
struct Drawing {
    all: f64,
    unit: &'static str,
    /// Short names by whole ones.
    short: HashMap<String, String>,
    out: String,
    deepest: usize,
    /// Boxes that are too narrow to be drawn.
    left_out: usize,
}

impl Drawing {
    fn draw(&mut self, frame: &str, node: &Node, x: f64, depth: usize) {
        let width = node.weight as f64 / self.all;
        if width < NARROWEST {
            self.left_out += 1;
            return;
        }
        self.deepest = self.deepest.max(depth);
        let (name, class, what) = match (frame.strip_suffix("_[k]"), frame.strip_suffix("_[i]")) {
            (Some(name), _) => (name, "k", ", kernel"),
            (_, Some(name)) => (name, "i", ", inlined"),
            _ => (frame, shade(frame), ""),
        };
        let short = self.short.get(name).map_or(name, String::as_str);
        self.out.push_str(&format!(
            "<span class=\"{class}\" style=\"--x:{};--w:{};--y:{depth}\" title=\"{}{what}: {} of {} {}, {}\">{}</span>\n",
            short_number(x),
            short_number(width),
            escape(name),
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
fn short_names<'a>(report: &Report, stacks: impl Iterator<Item = &'a String>) -> HashMap<String, String> {
    // As a frame is written in a folded stack.
    let mut short: HashMap<String, String> =
        report.rows.iter().map(|row| (row.name.replace(';', ":"), row.shown_name().to_owned())).collect();
    let bare = |frame: &'a str| frame.strip_suffix("_[k]").or(frame.strip_suffix("_[i]")).unwrap_or(frame);
    let others: BTreeSet<&str> = stacks
        .flat_map(|stack| stack.split(';').map(bare))
        .filter(|name| !short.contains_key(*name))
        .collect();
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
    let stacks = folded(recording);
    let mut root = Node::default();
    for (stack, weight) in &stacks {
        root.add(stack, *weight);
    }
    let short = short_names(report, stacks.keys());
    let by_count = one_period(recording);
    let mut drawing = Drawing {
        all: (root.weight as f64).max(1.0),
        unit: if by_count { "samples" } else { "us of CPU time" },
        short,
        out: String::new(),
        deepest: 0,
        left_out: 0,
    };
    drawing.draw("all", &root, 0.0, 0);
    let narrow = match drawing.left_out {
        0 => String::new(),
        n => format!(" Boxes below {} are left out ({}).", percent(NARROWEST), count(n as f64)),
    };
    format!(
        "<h2 id=\"stacks\">Flame graph of the samples</h2>\n\
         <p class=\"dim\">Estimates: n = {} samples in {:.1} s; a box of k samples has a relative error of about 1/sqrt(k). Callers stand above what they \
         call; width is CPU time. A click on a box makes it as wide as the page, a second one (or Escape) shows all again; the search marks boxes. \
         <span class=\"key\"></span> user code <span class=\"key i\"></span> inlined <span class=\"key k\"></span> kernel.{narrow}</p>\n\
         <div id=\"flame\"><div id=\"frames\" style=\"--rows:{}\">\n{}</div></div>\n",
        count(recording.samples.len() as f64),
        report.duration_s,
        drawing.deepest + 1,
        drawing.out
    )
}
