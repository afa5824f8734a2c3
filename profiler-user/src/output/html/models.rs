//! Execution-time models as one self-contained page: a table that sorts and searches, and of each model a plot of calls beside its curves.

use super::{SCRIPT, SCRIPT_SHA256, STYLE, escape, items};
use crate::models::{FunctionModel, Models, Plot};
use crate::output::models::{class_text, fit_text, legends, paragraph, title};
use crate::output::units::{count, duration_ns};
use crate::output::{groups, loops};
use profiler_core::models::Model;

/// What plots have beside the style of all pages.
const PLOT_STYLE: &str = "figure{margin:.6em 0}figure svg{width:100%;max-width:640px;height:auto;border:1px solid var(--line);border-radius:6px}\
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}svg .grid{stroke:var(--line);stroke-width:1}svg circle{fill:var(--f1);fill-opacity:.55}\
svg polyline{fill:none;stroke:var(--accent);stroke-width:2}td.text,th.text{white-space:normal;text-align:left;min-width:16em}";

/// Of the table.
const HEADINGS: [&str; 9] = [
    "FUNCTION",
    "FORMULA",
    "CLASS",
    "FIT (R²)",
    "CEILING",
    "INPUTS (n)",
    "CALLS",
    "TOTAL TIME",
    "SLOW CALLS",
];

/// Size of a plot and of its margins at the left and below.
const SIZE: (f64, f64) = (640.0, 300.0);
const MARGIN: (f64, f64) = (70.0, 34.0);

/// The page.
pub(in crate::output) fn models_page(models: &Models) -> String {
    let heading = format!("Execution-time models of {} (pid {})", models.meta.exe, models.meta.pid);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{SCRIPT_SHA256}'; \
         base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title>\n<style>{STYLE}{PLOT_STYLE}</style></head>\n<body>\n<h1>{0}</h1>\n\
         <div id=\"find\" hidden><input type=\"search\" placeholder=\"Search functions and modules\" aria-label=\"Search functions and modules\">\
         <output class=\"dim\"></output></div>\n",
        escape(&heading)
    );
    out.push_str(&table(&models.functions));
    for legend in legends(models, models.datapoints > 0) {
        out.push_str(&format!("<p class=\"dim\">{}</p>\n", escape(legend)));
    }
    for function in &models.functions {
        out.push_str(&details(function));
    }
    out.push_str(&grouped(models));
    if !models.notes.is_empty() {
        out.push_str(&format!("<h2>Notes</h2>\n{}", items(&models.notes)));
    }
    if !models.damage.is_empty() {
        out.push_str(&format!("<h2>Not readable</h2>\n{}", items(&models.damage)));
    }
    out.push_str(&format!("<script>{SCRIPT}</script>\n</body></html>\n"));
    out
}

fn table(functions: &[FunctionModel]) -> String {
    let mut out = "<div class=\"wide\"><table class=\"rows\" id=\"models\"><thead><tr>".to_owned();
    for heading in HEADINGS {
        let class = if ["FORMULA", "CLASS"].contains(&heading) { " class=\"text\"" } else { "" };
        out.push_str(&format!("<th{class}>{heading}</th>"));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for function in functions {
        let ((module, _), _) = &function.key;
        out.push_str(&format!(
            "<tr><td title=\"{}\">{}<small>{}</small></td>",
            escape(&function.name),
            escape(&title(&function.name, function.context.as_deref())),
            escape(module)
        ));
        out.push_str(&cells(function));
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn cells(function: &FunctionModel) -> String {
    let number = |value: Option<f64>, text: String| {
        let key = value.map(|value| value.to_string()).unwrap_or_default();
        format!("<td data-v=\"{key}\">{}</td>", escape(&text))
    };
    let words = |lines: &[String]| {
        let lines: Vec<String> = lines.iter().map(|line| escape(line)).collect();
        format!("<td class=\"text\">{}</td>", lines.join("<br>"))
    };
    let total = function.total_ns as f64;
    let mut out = match &function.found {
        Ok(model) => {
            let g = &model.goodness;
            words(&model.formula())
                + &words(&[class_text(model)])
                + &number(Some(g.adjusted_r2), fit_text(g.adjusted_r2))
                + &number(Some(g.ceiling), fit_text(g.ceiling))
                + &number(Some(model.basis.distinct as f64), count(model.basis.distinct as f64))
        }
        Err(none) => {
            let nothing = number(None, String::new());
            let why: Vec<String> = std::iter::once(none.to_string()).chain(function.advice.clone()).collect();
            words(&["none".to_owned()]) + &words(&why) + &nothing + &nothing + &nothing
        }
    };
    out += &number(Some(function.calls as f64), count(function.calls as f64));
    out += &number(Some(total), duration_ns(total));
    out + &number(Some(function.slow.calls as f64), count(function.slow.calls as f64))
}

/// Groups that share a frequency.
fn grouped(models: &Models) -> String {
    let sections = groups::sections(&models.groups(models.datapoints));
    let group =
        |(text, kernels): &(String, Vec<String>)| format!("<li>{}{}</li>\n", escape(text), items(kernels));
    let section = |section: &groups::Section| {
        let all: String = section.groups.iter().map(group).collect();
        format!("<h2>{}</h2>\n<ul>\n{all}</ul>\n", escape(&section.heading))
    };
    sections.iter().map(section).collect()
}

/// What the terminal says of it, and the plot.
fn details(function: &FunctionModel) -> String {
    let mut lines = paragraph(function).into_iter();
    let heading = lines.next().unwrap_or_default();
    let lines: Vec<String> = lines.map(|line| line.trim_start_matches("- ").to_owned()).collect();
    let plot = function.found.as_ref().ok().zip(function.plot.as_ref());
    let plot = plot.map(|(model, plot)| figure(model, plot)).unwrap_or_default();
    let loops: Vec<String> = loops::lines(function)
        .iter()
        .map(|line| {
            let indent = 2 * line.depth;
            format!("<li style=\"margin-left:{indent}em\">{}</li>\n", escape(&line.text))
        })
        .collect();
    let loops = if loops.is_empty() { String::new() } else { format!("<ul>\n{}</ul>\n", loops.concat()) };
    format!("<h2>{}</h2>\n{plot}{}{loops}", escape(&heading), items(&lines))
}

/// Where values of a logarithmic axis lie.
#[derive(Debug, Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Self {
        let logs = values.map(|value| value.max(1.0).log10());
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low.is_finite() && high.is_finite() { (low, high) } else { (0.0, 1.0) };
        Self { low: low - 0.05, high: high.max(low + 0.3) + 0.05, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.max(1.0).log10() - self.low) / (self.high - self.low);
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Powers of ten in it; where there are fewer than two, its ends.
    fn ticks(&self) -> Vec<f64> {
        // OK because they are logarithms of 64-bit numbers.
        let (first, last) = (self.low.ceil() as i32, self.high.floor() as i32);
        if last > first {
            (first..=last).map(|power| 10_f64.powi(power)).collect()
        } else {
            vec![10_f64.powf(self.low + 0.05), 10_f64.powf(self.high - 0.05)]
        }
    }
}

/// Calls as points, curves as lines, both axes logarithmic.
fn figure(model: &Model, plot: &Plot) -> String {
    let all = || plot.points.iter().chain(plot.curves.iter().flat_map(|curve| &curve.places));
    let x = Axis::new(all().map(|(x, _)| *x), (MARGIN.0, SIZE.0 - 10.0));
    let y = Axis::new(all().map(|(_, ns)| *ns), (SIZE.1 - MARGIN.1, 10.0));
    let mut out = format!(
        "<figure><svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
        SIZE.0,
        SIZE.1,
        escape(&format!("time of a call over {}: {}", plot.input, model.formula().join("; ")))
    );
    for tick in x.ticks() {
        let at = x.at(tick);
        out.push_str(&format!(
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"10\" y2=\"{0:.1}\"/><text x=\"{at:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{2}</text>\n",
            SIZE.1 - MARGIN.1,
            SIZE.1 - MARGIN.1 + 14.0,
            escape(&count(tick.round()))
        ));
    }
    for tick in y.ticks() {
        let at = y.at(tick);
        out.push_str(&format!(
            "<line class=\"grid\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            MARGIN.0,
            SIZE.0 - 10.0,
            MARGIN.0 - 6.0,
            at + 4.0,
            escape(&duration_ns(tick))
        ));
    }
    out.push_str(&format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
        SIZE.0 - 10.0,
        SIZE.1 - 4.0,
        escape(&plot.input)
    ));
    for (value, ns) in &plot.points {
        out.push_str(&format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.2\"/>", x.at(*value), y.at(*ns)));
    }
    for curve in &plot.curves {
        let places: Vec<String> =
            curve.places.iter().map(|(value, ns)| format!("{:.1},{:.1}", x.at(*value), y.at(*ns))).collect();
        let of =
            model.categories.iter().zip(&curve.category).map(|(name, value)| format!("{name} = {value}"));
        let of = escape(&of.collect::<Vec<String>>().join(", "));
        out.push_str(&format!("\n<polyline points=\"{}\"><title>{of}</title></polyline>", places.join(" ")));
    }
    out.push_str("\n</svg></figure>\n");
    out
}
