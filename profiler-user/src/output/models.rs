//! Execution-time models, for people and for programs.

use super::expected::inputs_text;
use super::table::{BOLD, styled, wrap};
use super::units::{count, duration_ns};
use super::{FileFormat, OutputError, TextOptions, groups, html, loops};
use crate::models::{Changed, FunctionModel, Groups, Models, SlowCall};
use profiler_core::models::{Class, Comparison, Critical, Model, NoModel, Value};
use profiler_core::text::{printable, printable_json, printable_text};
use serde::Serialize;

/// Formula, context and doubts stand below the function, so far to the right.
const INDENT: &str = "    ";

/// What the words below mean.
pub(super) const LEGEND: &str = "class: how the time grows with the largest input; in brackets the class as the paper prints it. fit: adjusted R2 on medians that \
    the model was not fitted to, and what an exact model would reach (noise). n: distinct inputs. Times are without what watching cost";

/// What the interval of a comparison does not know.
const TWO_RUNS: &str = "the interval knows how calls scatter, not how the machine's speed wanders between two runs, nor that what the time depends on beside these inputs may be another: record each side more than once";

/// Calls that take longer than their inputs explain are told to be more than before from this part of all calls on, and so many standard errors.
const MORE_SLOW: f64 = 0.01;
const CHANCE: f64 = 4.0;

/// Writes the models of a recording in `format`.
///
/// # Errors
/// The format is none that has a place for them.
pub fn render_models(
    models: &Models,
    format: FileFormat,
    options: TextOptions,
) -> Result<Vec<u8>, OutputError> {
    match format {
        FileFormat::Text => Ok(printable_text(&models_text(models, options), &[]).into_owned().into_bytes()),
        FileFormat::Json => {
            let text = models_json(models)
                .map_err(|e| OutputError::Encode { what: "models", message: e.to_string() })?;
            Ok((printable_json(&text).into_owned() + "\n").into_bytes())
        }
        FileFormat::Html => Ok(html::models_page(models).into_bytes()),
        _ => Err(OutputError::NoModels),
    }
}

/// The models of a recording, a paragraph for each function and context.
#[must_use]
pub fn models_text(models: &Models, options: TextOptions) -> String {
    let with = models.functions.iter().filter(|f| f.found.is_ok()).count();
    let title = format!(
        "Execution-time models of {} (pid {}): {with} of {} functions in contexts",
        models.meta.exe,
        models.meta.pid,
        models.functions.len()
    );
    let mut out = styled(&printable(&title), BOLD, options.colours);
    out.push('\n');
    for function in &models.functions {
        out.push('\n');
        for (i, line) in paragraph(function).iter().enumerate() {
            // `wrap` drops what stands before the first word.
            let (before, indent) = if i == 0 { ("", INDENT) } else { (INDENT, "      ") };
            let width = options.width.saturating_sub(before.len());
            out.push_str(before);
            out.push_str(&wrap(&printable(line), width, indent));
            out.push('\n');
        }
        for line in loops::lines(function) {
            let before = INDENT.repeat(line.depth + 1);
            let width = options.width.saturating_sub(before.len());
            out.push_str(&before);
            out.push_str(&wrap(&printable(&line.text), width, &format!("{before}  ")));
            out.push('\n');
        }
    }
    let groups = models.groups(models.datapoints);
    let are_shared = groups::are_shared(&groups);
    out.push_str(&groups_text(&groups, are_shared, options));
    out.push('\n');
    for text in legends(models, are_shared) {
        out.push_str(&wrap(text, options.width, ""));
        out.push('\n');
    }
    for text in models.notes.iter().chain(&models.damage) {
        out.push_str(&wrap(&printable(text), options.width, "  "));
        out.push('\n');
    }
    out
}

/// Groups that share a frequency; where each has one member, a line: of a recording with one function they are longer than its model.
fn groups_text(groups: &Groups, are_shared: bool, options: TextOptions) -> String {
    let mut out = String::new();
    let sections = groups::sections(groups);
    if !are_shared {
        if !sections.is_empty() {
            out = format!("\n{}\n", wrap(groups::ALONE, options.width, "  "));
        }
        return out;
    }
    let mut push = |text: &str, depth: usize| {
        let before = INDENT.repeat(depth);
        out.push_str(&before);
        let width = options.width.saturating_sub(before.len());
        out.push_str(&wrap(&printable(text), width, &format!("{before}  ")));
        out.push('\n');
    };
    for section in sections {
        push("", 0);
        push(&section.heading, 0);
        for (group, kernels) in &section.groups {
            push(group, 1);
            kernels.iter().for_each(|kernel| push(kernel, 2));
        }
    }
    out
}

/// What the words mean that are there.
pub(super) fn legends(models: &Models, has_groups: bool) -> Vec<&'static str> {
    let has_loops = models.functions.iter().filter_map(|f| f.loops.as_ref());
    let has_loops = has_loops.flat_map(|loops| &loops.loops).any(|own| own.found.is_ok());
    let more = has_loops.then_some(loops::LEGEND).into_iter().chain(has_groups.then_some(groups::LEGEND));
    std::iter::once(LEGEND).chain(more).collect()
}

/// The name with its context.
pub(super) fn title(name: &str, context: Option<&str>) -> String {
    context.map_or_else(|| name.to_owned(), |outer| format!("{name} in {outer}"))
}

pub(super) fn paragraph(function: &FunctionModel) -> Vec<String> {
    let title = title(&function.name, function.context.as_deref());
    match &function.found {
        Ok(model) => with_model(&title, function, model),
        Err(none) => {
            let first = format!("{title}: {}", without(none));
            let slow = slow_lines(function, "than is usual, whatever their inputs");
            std::iter::once(first).chain(function.advice.clone()).chain(slow).collect()
        }
    }
}

fn without(none: &NoModel) -> String {
    let shortest =
        none.shortest_ns.map_or_else(String::new, |ns| format!("; shortest call {}", duration_ns(ns)));
    format!("{none}{shortest}")
}

/// Ours, and in brackets the paper's.
pub(super) fn class_text(model: &Model) -> String {
    let class = if model.class == Class::Unknown && model.form != Class::Unknown {
        format!("unknown, perhaps {}", model.form.name())
    } else {
        model.class.name().to_owned()
    };
    format!("{class} [{}]", model.printed.name())
}

/// A measure of fit. Below 0 the model predicts worse than the mean does; how much worse says nothing.
pub(super) fn fit_text(value: f64) -> String {
    if value < 0.0 { "below 0".to_owned() } else { format!("{value:.3}") }
}

fn with_model(title: &str, function: &FunctionModel, model: &Model) -> Vec<String> {
    let g = &model.goodness;
    let mut lines = vec![format!(
        "{title}: {}, fit {} of {}, {} calls, n = {}",
        class_text(model),
        fit_text(g.adjusted_r2),
        fit_text(g.ceiling),
        count(function.calls as f64),
        model.basis.distinct
    )];
    lines.extend(model.formula());
    lines.push(depends(model));
    if let Some(doubt) = model.doubt_text() {
        lines.push(format!("not sure: {doubt}"));
    }
    if !model.alternatives.is_empty() {
        let names: Vec<&str> = model.alternatives.iter().map(|class| class.name()).collect();
        lines.push(format!("the calls do not rule out: {}", names.join(", ")));
    }
    let unusable: Vec<String> = model.unusable().iter().map(|(name, why)| format!("{name}: {why}")).collect();
    if !unusable.is_empty() {
        lines.push(format!("no predictors: {}", unusable.join("; ")));
    }
    let left = &model.basis.left_out;
    if left.short > 0 {
        lines.push(format!(
            "left out: {} calls with inputs for which a call takes less than twice what the cost of timing it is known to",
            left.short
        ));
    }
    if left.not_returned + left.unreadable + left.few > 0 {
        lines.push(format!(
            "left out: {} calls that did not return, {} with an input that could not be read, {} with inputs that are too rare ({:.1} % of the \
             time)",
            left.not_returned,
            left.unreadable,
            left.few,
            100.0 * left.share_of_time
        ));
    }
    lines.extend(slow_lines(function, "than their inputs explain"));
    lines
}

/// How many calls took longer than that, and the worst of them.
fn slow_lines(function: &FunctionModel, than: &str) -> Vec<String> {
    let slow = &function.slow;
    if slow.worst.is_empty() {
        return Vec::new();
    }
    let (of, all) = (count(slow.calls as f64), count(function.calls as f64));
    let head = format!("{of} of {all} calls took longer {than}; the worst:");
    std::iter::once(head).chain(slow.worst.iter().map(slow_call)).collect()
}

fn slow_call(call: &SlowCall) -> String {
    let cause = call
        .call
        .cause
        .as_ref()
        .map_or_else(|| "what it used was not recorded".to_owned(), ToString::to_string);
    let inputs = inputs_text(&call.inputs);
    let inputs = if inputs.is_empty() { inputs } else { format!(", {inputs}") };
    format!(
        "- at {:.6} s{inputs}: {} where {} were expected and {} are normal at most: {cause}",
        call.at_ns as f64 / 1e9,
        duration_ns(call.call.own_ns),
        duration_ns(call.call.predicted_ns),
        duration_ns(call.call.most_ns)
    )
}

/// Which inputs the time depends on, and over which range that was seen.
fn depends(model: &Model) -> String {
    let range = |name: &String| {
        let at = model.inputs.iter().position(|input| input == name)?;
        model.range.get(at).map(|(low, high)| format!("seen from {} to {}", count(*low), count(*high)))
    };
    let of = |critical: &Critical| {
        let range = range(&critical.name).unwrap_or_default();
        format!("{}, {range} (x {:.1})", critical.name, critical.influence)
    };
    let critical: Vec<String> = model.critical.iter().map(of).collect();
    if critical.is_empty() {
        format!("time depends on none of {}", model.inputs.join(", "))
    } else {
        format!("time depends on {}", critical.join("; "))
    }
}

/// What changed from one recording to another.
#[must_use]
pub fn changes_text(changes: &[Changed], options: TextOptions) -> String {
    if changes.is_empty() {
        return "No function was recorded in both, in the same context.\n".to_owned();
    }
    let mut out = String::new();
    for change in changes {
        let title = title(&change.name, change.context.as_deref());
        let line = change.comparison.as_ref().map_or_else(
            || format!("{title}: cannot be compared: one of the recordings has no model of it"),
            |found| format!("{title}: {}{}", difference(found), more_slow(change.slow).unwrap_or_default()),
        );
        out.push_str(&wrap(&printable(&line), options.width, INDENT));
        out.push('\n');
    }
    if changes.iter().any(Changed::is_told) {
        out.push('\n');
        out.push_str(&wrap(TWO_RUNS, options.width, ""));
        out.push('\n');
    }
    out
}

/// Calls that took longer than their inputs explain, where they are more than before by more than chance.
fn more_slow([before, now]: [(usize, u64); 2]) -> Option<String> {
    let part = |(slow, calls): (usize, u64)| slow as f64 / calls.max(1) as f64;
    let variance =
        |of: (usize, u64)| (part(of) * (1.0 - part(of)) + 1.0 / of.1.max(1) as f64) / of.1.max(1) as f64;
    let more = part(now) - part(before);
    let is_news = more > MORE_SLOW && more > CHANCE * (variance(before) + variance(now)).sqrt();
    let text = |(slow, calls): (usize, u64)| format!("{} of {}", count(slow as f64), count(calls as f64));
    is_news.then(|| {
        format!(
            ". Calls that took longer than their inputs explain: {} before, {} now",
            text(before),
            text(now)
        )
    })
}

fn difference(found: &Comparison) -> String {
    let (before, after) = found.classes;
    let mut text = format!("{} ({} before, {} now", found.change, before.name(), after.name());
    if let Some((place, ratio)) = found.telling() {
        text += &format!(
            "; at the {place} common inputs {:.2} times as long, {:.2} to {:.2}",
            ratio.factor(),
            ratio.low,
            ratio.high
        );
    }
    text + ")"
}

#[derive(Debug, Serialize)]
struct Json<'a> {
    functions: Vec<JsonFunction<'a>>,
    groups: groups::JsonGroups<'a>,
    notes: &'a [String],
    damage: &'a [String],
}

#[derive(Debug, Serialize)]
struct JsonFunction<'a> {
    function: &'a str,
    context: Option<&'a str>,
    calls: u64,
    total_ns: u64,
    formula: Vec<String>,
    model: Option<&'a Model>,
    no_model: Option<&'a NoModel>,
    advice: Option<&'a str>,
    slow_calls: usize,
    worst: Vec<JsonSlow<'a>>,
    loops: Option<loops::JsonLoops<'a>>,
}

#[derive(Debug, Serialize)]
struct JsonSlow<'a> {
    at_ns: u64,
    inputs: &'a [(String, Value)],
    own_ns: f64,
    predicted_ns: f64,
    most_ns: f64,
    cause: Option<String>,
}

fn json_slow(call: &SlowCall) -> JsonSlow<'_> {
    JsonSlow {
        at_ns: call.at_ns,
        inputs: &call.inputs,
        own_ns: call.call.own_ns,
        predicted_ns: call.call.predicted_ns,
        most_ns: call.call.most_ns,
        cause: call.call.cause.as_ref().map(ToString::to_string),
    }
}

/// The same for programs.
///
/// # Errors
/// A figure has no form in JSON; none is made.
pub fn models_json(models: &Models) -> serde_json::Result<String> {
    let functions = models
        .functions
        .iter()
        .map(|f| JsonFunction {
            function: &f.name,
            context: f.context.as_deref(),
            calls: f.calls,
            total_ns: f.total_ns,
            formula: f.found.as_ref().map(Model::formula).unwrap_or_default(),
            model: f.found.as_ref().ok(),
            no_model: f.found.as_ref().err(),
            advice: f.advice.as_deref(),
            slow_calls: f.slow.calls,
            worst: f.slow.worst.iter().map(json_slow).collect(),
            loops: f.loops.as_ref().map(loops::json),
        })
        .collect();
    let found = models.groups(models.datapoints);
    let groups = groups::json(&found);
    serde_json::to_string_pretty(&Json { functions, groups, notes: &models.notes, damage: &models.damage })
}

#[derive(Debug, Serialize)]
struct JsonChange<'a> {
    function: &'a str,
    context: Option<&'a str>,
    worse: bool,
    comparison: Option<&'a Comparison>,
    slow_calls: [usize; 2],
    calls: [u64; 2],
}

/// What changed, for programs.
///
/// # Errors
/// As [`models_json`].
pub fn changes_json(changes: &[Changed]) -> serde_json::Result<String> {
    let rows: Vec<JsonChange<'_>> = changes
        .iter()
        .map(|c| JsonChange {
            function: &c.name,
            context: c.context.as_deref(),
            worse: c.is_worse(),
            comparison: c.comparison.as_ref(),
            slow_calls: c.slow.map(|(slow, _)| slow),
            calls: c.slow.map(|(_, calls)| calls),
        })
        .collect();
    serde_json::to_string_pretty(&rows)
}
