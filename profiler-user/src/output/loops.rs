//! Models of loops, below those of their functions.

use super::units::count;
use crate::models::{FunctionModel, LoopModels, LoopOfFunction};
use profiler_core::models::{Class, LEAST_SAMPLES, LoopModel, NoLoopModel};
use serde::Serialize;

/// What the words of [`lines`] mean.
pub(super) const LEGEND: &str = "Loops: CPU time in a loop per call of its function, by samples inside recorded calls, without the loops inside of it; \
    deviance: part that the formula explains of what chance does not";

/// Samples that miss or are too many by this part are told.
const TELLING: f64 = 0.2;

/// One line, and how deep in others it lies: 0 of the outermost loops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub depth: usize,
    pub text: String,
}

impl Line {
    fn outermost(text: String) -> Self {
        Self { depth: 0, text }
    }
}

/// What is told of the loops of a function.
pub(super) fn lines(function: &FunctionModel) -> Vec<Line> {
    let Some(loops) = &function.loops else { return Vec::new() };
    let mut lines = Vec::new();
    // A loop without a model is not told, so that what lies in it moves up.
    let mut shown: Vec<(u64, usize)> = Vec::new();
    for own in &loops.loops {
        let Ok(model) = &own.found else { continue };
        let depth = depth(loops, own, &shown);
        shown.push((own.header, depth));
        lines.push(Line { depth, text: line(own, model, &loops.inputs) });
    }
    lines.extend(without(loops).map(Line::outermost));
    if !shown.is_empty() {
        lines.extend(doubts(loops).into_iter().map(Line::outermost));
    }
    lines
}

/// How deep a loop lies in those that are shown.
fn depth(loops: &LoopModels, own: &LoopOfFunction, shown: &[(u64, usize)]) -> usize {
    let up = |header: &u64| loops.loops.iter().find(|l| l.header == *header)?.inside;
    let around = std::iter::successors(own.inside, up).take(loops.loops.len());
    let of = |header: u64| shown.iter().find(|(of, _)| *of == header).map(|(_, depth)| depth + 1);
    around.filter_map(of).next().unwrap_or(0)
}

fn line(own: &LoopOfFunction, model: &LoopModel, inputs: &[String]) -> String {
    let place = source(own).map_or_else(String::new, |place| format!(", {place}"));
    let mut text = format!(
        "{} loop (depth {}{place}): {}, {}, deviance {:.3}, {} samples, n = {}",
        own.name,
        own.depth,
        model.class.name(),
        model.sum.text(inputs),
        model.explained,
        count(model.samples as f64),
        model.distinct
    );
    if model.class == Class::Unknown {
        text += "; counts change with something else than these inputs";
    }
    if !model.alternatives.is_empty() {
        let names: Vec<&str> = model.alternatives.iter().map(|class| class.name()).collect();
        text += &format!("; not ruled out: {}", names.join(", "));
    }
    text
}

/// `loops.c:31`.
fn source(own: &LoopOfFunction) -> Option<String> {
    let (file, line) = own.source.as_ref()?;
    Some(format!("{}:{line}", file.rsplit('/').next().unwrap_or(file)))
}

/// The loops without a model, in one line.
fn without(loops: &LoopModels) -> Option<String> {
    let samples =
        |n: u64| if n == 1 { "1 sample".to_owned() } else { format!("{} samples", count(n as f64)) };
    let more = |most: u64| {
        format!("some {:.0} times as many would do", (LEAST_SAMPLES as f64 / most.max(1) as f64).ceil())
    };
    if loops.samples < LEAST_SAMPLES {
        let more = if loops.samples > 0 { format!("; {}", more(loops.samples)) } else { String::new() };
        return Some(format!(
            "loops: no models: {} inside its calls, and a loop needs {LEAST_SAMPLES}{more}",
            samples(loops.samples)
        ));
    }
    let none: Vec<NoLoopModel> = loops.loops.iter().filter_map(|l| l.found.as_ref().err().copied()).collect();
    let few = |why: &NoLoopModel| match why {
        NoLoopModel::FewSamples { samples } => Some(*samples),
        _ => None,
    };
    let most = none.iter().filter_map(few).max();
    let others = none.iter().filter(|why| few(why).is_none()).count();
    let number = |n: usize| if n == 1 { "1 loop has".to_owned() } else { format!("{n} loops have") };
    let mut parts = Vec::new();
    if let Some(most) = most {
        let most_of = if none.len() - others == 1 { String::new() } else { " at most".to_owned() };
        parts.push(format!(
            "{} no model: {}{most_of}, and {LEAST_SAMPLES} are needed; {}",
            number(none.len() - others),
            samples(most),
            more(most)
        ));
    }
    if others > 0 {
        parts.push(format!(
            "{} no model: too few distinct inputs, or samples and inputs allow no fit",
            number(others)
        ));
    }
    (!parts.is_empty()).then(|| parts.join(". "))
}

/// What makes the models less sure.
fn doubts(loops: &LoopModels) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(cut) = loops.cut {
        doubts.push(format!(
            "loops: the stacks of {:.0} % of the samples are too short to reach the function, so only the code of the loops themselves counts, without what \
             they call",
            100.0 * cut
        ));
    }
    if loops.is_uncertain {
        doubts.push(
            "loops: the function's control flow is not completely known; some may be missing, or larger"
                .to_owned(),
        );
    }
    let (seen, expected) = (loops.samples as f64, loops.expected_samples);
    let beyond = (seen - expected).abs();
    if beyond > TELLING * expected && beyond > 4.0 * expected.sqrt() {
        doubts.push(format!(
            "loops: {} samples fell into calls whose CPU time explains {}: times may be wrong by as much, growth is not",
            count(seen),
            count(expected)
        ));
    }
    doubts
}

/// For programs.
#[derive(Debug, Serialize)]
pub(super) struct JsonLoops<'a> {
    samples: u64,
    expected_samples: f64,
    cut: Option<f64>,
    uncertain: bool,
    inputs: &'a [String],
    found: Vec<JsonLoop<'a>>,
}

#[derive(Debug, Serialize)]
struct JsonLoop<'a> {
    name: &'a str,
    header: u64,
    depth: u32,
    inside: Option<u64>,
    file: Option<&'a str>,
    line: Option<u32>,
    samples: u64,
    formula: Option<String>,
    model: Option<&'a LoopModel>,
    no_model: Option<NoLoopModel>,
}

/// The same for programs.
pub(super) fn json(loops: &LoopModels) -> JsonLoops<'_> {
    JsonLoops {
        samples: loops.samples,
        expected_samples: loops.expected_samples,
        cut: loops.cut,
        uncertain: loops.is_uncertain,
        inputs: &loops.inputs,
        found: loops.loops.iter().map(|own| json_loop(own, &loops.inputs)).collect(),
    }
}

fn json_loop<'a>(own: &'a LoopOfFunction, inputs: &[String]) -> JsonLoop<'a> {
    let (source, model) = (own.source.as_ref(), own.found.as_ref());
    JsonLoop {
        name: &own.name,
        header: own.header,
        depth: own.depth,
        inside: own.inside,
        file: source.map(|(file, _)| file.as_str()),
        line: source.map(|(_, line)| *line),
        samples: own.samples,
        formula: model.ok().map(|model| model.sum.text(inputs)),
        model: model.ok(),
        no_model: model.err().copied(),
    }
}
