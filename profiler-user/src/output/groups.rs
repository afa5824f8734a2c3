//! Kernels that share a frequency, below their models.

use super::models::title;
use super::units::{count, duration_ns, percent, si};
use crate::models::{ALIKE, GroupedKernel, Groups, KernelGroup};
use profiler_core::models::{Class, PERIOD_S};
use serde::Serialize;

/// Kernels that are named of those that are alone and of an unknown class.
const NAMED: usize = 10;

/// A heading, the groups below it, and the kernels of each.
pub(super) struct Section {
    pub heading: String,
    pub groups: Vec<(String, Vec<String>)>,
}

/// Both readings, where there is anything to group.
pub(super) fn sections(groups: &Groups) -> Vec<Section> {
    let n = count(f64::from(groups.datapoints));
    let section = |heading: String, all: &[KernelGroup]| Section {
        heading,
        groups: all
            .iter()
            .filter(|group| !is_lonely(group))
            .map(|group| (line(group), kernels(group)))
            .chain(lonely(all).map(|text| (text, Vec::new())))
            .collect(),
    };
    let mut sections = vec![
        section(
            format!(
                "Groups that share a frequency, by predicted time (within a factor of {ALIKE}), for {n} data points"
            ),
            &groups.by_time,
        ),
        section(
            format!(
                "The same as the paper prints it (class and inputs, or times within 5 %; leaves only), for {n} data points"
            ),
            &groups.printed,
        ),
    ];
    if let Some(printed) = sections.last_mut().filter(|_| !groups.containers.is_empty()) {
        let names = groups.containers.join(", ");
        printed.groups.push((format!("in no group, because they contain others: {names}"), Vec::new()));
    }
    sections.retain(|section| !section.groups.is_empty());
    sections
}

/// In place of both readings where each kernel is alone.
pub(super) const ALONE: &str = "No two functions or loops share a frequency; that of each alone is in the JSON ('groups') and on the page (-o models.html).";

/// Kernels share a frequency, by one of the readings.
pub(super) fn are_shared(groups: &Groups) -> bool {
    groups.by_time.iter().chain(&groups.printed).any(|group| group.kernels.len() > 1)
}

/// One kernel that nothing is known of but its shortest call.
fn is_lonely(group: &KernelGroup) -> bool {
    matches!(group.kernels.as_slice(), [only] if only.class == Class::Unknown)
}

/// These in one line: a recording may have hundreds. The JSON has each.
fn lonely(all: &[KernelGroup]) -> Option<String> {
    let names = all.iter().filter(|group| is_lonely(group)).flat_map(|group| &group.kernels);
    let names: Vec<String> = names.map(|kernel| title(&kernel.name, kernel.context.as_deref())).collect();
    let shown = names.get(..NAMED).unwrap_or(&names).join(", ");
    let more = names.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty())
        .then(|| format!("each alone, of an unknown class, so its shortest call counts: {shown}{more}"))
}

/// What the words mean.
pub(super) const LEGEND: &str = "frequency: samples a second that give a call N data points, f = N / t, t of the kernel that takes least; in brackets at \
    the smallest and the largest inputs seen. No sampler is that fast for short calls: a recorded call is one data point, so functions of a group are \
    recorded equally often, N of each decade of their inputs on average in 10 s (rare decades get fewer), in bursts of the duty told (record --expect with --datapoints)";

fn line(group: &KernelGroup) -> String {
    let [smallest, hz, largest] = group.sampling_hz.map(|hz| format!("{}Hz", spaced(hz)));
    let inside = group.caller.as_ref().map_or_else(String::new, |caller| format!("in {caller}, "));
    let range = if smallest == largest { hz } else { format!("{hz} ({largest} to {smallest})") };
    let calls = if group.kernels.iter().all(|kernel| kernel.is_loop) {
        String::new()
    } else {
        format!("; {} recorded calls a second of each function", si(group.calls_hz))
    };
    format!("{inside}{}: {range}{calls}", group.why)
}

/// With a space before the unit.
fn spaced(hz: f64) -> String {
    let text = si(hz);
    if text.contains(' ') { text } else { text + " " }
}

fn kernels(group: &KernelGroup) -> Vec<String> {
    let one = |kernel: &GroupedKernel| {
        let [shortest, usual, longest] = kernel.ns.map(duration_ns);
        let times = if shortest == longest { usual } else { format!("{usual} ({shortest} to {longest})") };
        let title = title(&kernel.name, kernel.context.as_deref());
        format!("{title}: {}, {times}{}", kernel.class.name(), duty(group, kernel))
    };
    group.kernels.iter().map(one).collect()
}

fn duty(group: &KernelGroup, kernel: &GroupedKernel) -> String {
    match (group.duty(kernel), kernel.pace.calls_per_s) {
        _ if kernel.is_loop => "; no probe: its data points are samples".to_owned(),
        (Some(duty), Some(rate)) if duty < 1.0 => {
            format!("; {} calls/s: bursts of {} of the time", si(rate), percent(duty))
        }
        (Some(_), Some(rate)) => format!("; {} calls/s: all of them", si(rate)),
        _ => "; how often it is called is not known".to_owned(),
    }
}

/// For programs.
#[derive(Debug, Serialize)]
pub(super) struct JsonGroups<'a> {
    datapoints: u32,
    period_s: f64,
    by_time: Vec<JsonGroup<'a>>,
    printed: Vec<JsonGroup<'a>>,
    containers: &'a [String],
}

#[derive(Debug, Serialize)]
struct JsonGroup<'a> {
    caller: Option<&'a str>,
    why: &'a str,
    sampling_hz: [f64; 3],
    calls_hz: f64,
    kernels: Vec<JsonKernel<'a>>,
}

#[derive(Debug, Serialize)]
struct JsonKernel<'a> {
    name: &'a str,
    context: Option<&'a str>,
    is_loop: bool,
    class: Class,
    inputs: &'a [String],
    predicted_ns: [f64; 3],
    decades: u32,
    calls_per_s: Option<f64>,
    duty: Option<f64>,
}

/// The same for programs.
pub(super) fn json(groups: &Groups) -> JsonGroups<'_> {
    JsonGroups {
        datapoints: groups.datapoints,
        period_s: PERIOD_S,
        by_time: groups.by_time.iter().map(json_group).collect(),
        printed: groups.printed.iter().map(json_group).collect(),
        containers: &groups.containers,
    }
}

fn json_group(group: &KernelGroup) -> JsonGroup<'_> {
    JsonGroup {
        caller: group.caller.as_deref(),
        why: &group.why,
        sampling_hz: group.sampling_hz,
        calls_hz: group.calls_hz,
        kernels: group.kernels.iter().map(|own| json_kernel(own, group.duty(own))).collect(),
    }
}

fn json_kernel(kernel: &GroupedKernel, duty: Option<f64>) -> JsonKernel<'_> {
    JsonKernel {
        name: &kernel.name,
        context: kernel.context.as_deref(),
        is_loop: kernel.is_loop,
        class: kernel.class,
        inputs: &kernel.inputs,
        predicted_ns: kernel.ns,
        decades: kernel.pace.decades,
        calls_per_s: kernel.pace.calls_per_s,
        duty,
    }
}
