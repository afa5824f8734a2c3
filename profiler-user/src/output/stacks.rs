//! The samples of a recording as stacks, for all formats that show stacks.

use profiler_core::recording::{FrameRow, Recording, SampleRow};
use profiler_core::text::printable;
use std::collections::{BTreeMap, HashMap};

/// Name of the frame that stands for a stack that could not be had.
pub(super) const NO_STACK: &str = "[no stack]";
/// Name of the outermost frame of a stack that was cut off.
pub(super) const TRUNCATED: &str = "[truncated]";
/// Module name of kernel frames.
pub(super) const KERNEL: &str = "[kernel]";

/// The frames of each stack, innermost first.
pub(super) struct Stacks<'a> {
    by_id: HashMap<u64, Vec<&'a FrameRow>>,
}

impl<'a> Stacks<'a> {
    pub(super) fn of(recording: &'a Recording) -> Self {
        let mut by_id: HashMap<u64, Vec<&FrameRow>> = HashMap::new();
        for frame in &recording.stacks {
            by_id.entry(frame.stack_id).or_default().push(frame);
        }
        for frames in by_id.values_mut() {
            frames.sort_by_key(|f| f.depth);
        }
        Self { by_id }
    }

    /// The frames of a sample, innermost first; empty if there are none.
    pub(super) fn frames(&self, sample: &SampleRow) -> &[&'a FrameRow] {
        self.by_id.get(&sample.stack_id).map_or(&[], Vec::as_slice)
    }
}

/// The name of a frame as shown; a nameless one by its address.
pub(super) fn name(frame: &FrameRow) -> String {
    if frame.function.is_empty() { format!("0x{:x}", frame.address) } else { frame.function.clone() }
}

/// All samples of one period: counts are enough. Otherwise samples must be weighted with CPU time.
pub(super) fn one_period(recording: &Recording) -> bool {
    recording.samples.windows(2).all(|w| w[0].period_ns == w[1].period_ns)
}

/// A frame as folded stacks have it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Frame<'a> {
    /// Kernel frames end in `_[k]`, inlined ones in `_[i]`, as flame graph tools expect; no `;`.
    pub(super) text: String,
    /// Empty for what stands for frames that could not be had.
    pub(super) module: &'a str,
}

/// Folded stacks with their weights: `outer;inner` to samples, or, where periods differ, to microseconds of
/// CPU time.
pub(super) fn folded(recording: &Recording) -> BTreeMap<String, u64> {
    let mut lines = BTreeMap::new();
    for (frames, weight) in folded_frames(recording) {
        let frames: Vec<&str> = frames.iter().map(|frame| frame.text.as_str()).collect();
        *lines.entry(frames.join(";")).or_default() += weight;
    }
    lines
}

/// The same stacks, frame by frame, callers first.
pub(super) fn folded_frames(recording: &Recording) -> BTreeMap<Vec<Frame<'_>>, u64> {
    let stacks = Stacks::of(recording);
    let count = one_period(recording);
    let mut weights: BTreeMap<(u64, bool), u64> = BTreeMap::new();
    let mut sample_of: HashMap<(u64, bool), &SampleRow> = HashMap::new();
    for sample in &recording.samples {
        let key = (sample.stack_id, sample.truncated);
        *weights.entry(key).or_default() += if count { 1 } else { sample.period_ns };
        sample_of.entry(key).or_insert(sample);
    }
    let mut lines = BTreeMap::new();
    for (key, weight) in weights {
        let frames = frames(stacks.frames(sample_of[&key]), key.1);
        *lines.entry(frames).or_default() += if count { weight } else { weight.div_ceil(1_000) };
    }
    lines
}

fn frames<'a>(frames: &[&'a FrameRow], truncated: bool) -> Vec<Frame<'a>> {
    let no_frame = |text: &str| Frame { text: text.to_owned(), module: "" };
    if frames.is_empty() {
        return vec![no_frame(NO_STACK)];
    }
    let mut parts = Vec::with_capacity(frames.len() + 1);
    if truncated {
        parts.push(no_frame(TRUNCATED));
    }
    for frame in frames.iter().rev() {
        // The separators of the format must not be in a name.
        let mut text = printable(&name(frame)).replace(';', ":");
        if frame.module == KERNEL {
            text.push_str("_[k]");
        } else if frame.inlined {
            text.push_str("_[i]");
        }
        parts.push(Frame { text, module: &frame.module });
    }
    parts
}
