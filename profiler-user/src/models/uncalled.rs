//! Functions whose calls were to be recorded and of which there are none: nobody called them while they were watched.

use super::ModelsError;
use super::piles::is_modelled_by;
use crate::config::InputsSpec;
use crate::recording::{OpenError, Stream};
use profiler_core::class::RecordKind;
use profiler_core::recording::{ClassRow, WindowRow};
use std::collections::BTreeMap;
use std::path::Path;

/// Functions that are told by name: a glob may name hundreds.
const MOST: usize = 5;

fn of_others(others: usize) -> String {
    if others == 1 { "1 other function".to_owned() } else { format!("{others} other functions") }
}

/// A line for each, by name: `bsearch: watched for 12.0 s and never called`.
pub(super) fn notes(path: &Path, named: &[InputsSpec]) -> Result<Vec<String>, OpenError> {
    let mut stream = Stream::open(path)?;
    let is_modelled = is_modelled_by(stream.meta(), named);
    let classes = stream.table::<ClassRow>()?;
    let of: BTreeMap<u32, &ClassRow> = classes.iter().map(|class| (class.class_id, class)).collect();
    let wanted = |class: &ClassRow| {
        class.kind == RecordKind::Record
            && class.stamps_of.is_none()
            && class.named != Some(false)
            && is_modelled(class)
    };
    // A function with several uses has a class for each: it was called if any of them has a hit.
    let mut seen: BTreeMap<(&str, u64), (u64, u64)> = BTreeMap::new();
    // Those of two processes are watched at the same time.
    let mut by_class: BTreeMap<u32, u64> = BTreeMap::new();
    stream.each(|row: WindowRow| {
        let Some(class) = of.get(&row.class_id) else { return };
        let (hits, ns) = seen.entry((&class.module, class.address)).or_default();
        *hits += row.attempted;
        if wanted(class) {
            let own = by_class.entry(row.class_id).or_default();
            *own += row.end_ns.saturating_sub(row.start_ns);
            let own = *own;
            *ns = (*ns).max(own);
        }
    })?;
    let watched = |class: &&ClassRow| {
        let (hits, ns) = seen.get(&(class.module.as_str(), class.address)).copied()?;
        (wanted(class) && hits == 0 && ns > 0).then_some(ns)
    };
    let line = |class: &ClassRow| {
        Some(format!("{}: watched for {:.1} s and never called", class.name, watched(&class)? as f64 / 1e9))
    };
    let mut notes: Vec<String> = classes.iter().filter_map(line).collect();
    notes.sort_unstable();
    notes.dedup();
    if let Some(others) = notes.len().checked_sub(MOST).filter(|others| *others > 0) {
        notes.truncate(MOST);
        let were = if others == 1 { "was" } else { "were" };
        notes.push(format!("{} {were} watched and never called", of_others(others)));
    }
    Ok(notes)
}

/// Why there are no models, where the recording knows more of it.
pub(super) fn explain(path: &Path, named: &[InputsSpec], error: ModelsError) -> ModelsError {
    if !matches!(error, ModelsError::NoCalls | ModelsError::NoneModelled { .. }) {
        return error;
    }
    match notes(path, named) {
        Ok(notes) if !notes.is_empty() => ModelsError::NeverCalled { names: notes.join("; ") },
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Models;
    use super::*;
    use crate::output::{FileFormat, TextOptions, models_text, render_models};
    use crate::recording::sample::{classes, meta, recording};
    use crate::recording::{Overwrite, Writer};
    use profiler_core::recording::{EventRow, WindowKind};

    /// A recording of two functions to be recorded, each watched twice for 1.5 s, with so many hits in the second window and so many events of the first function.
    fn recorded(hits: [u64; 2], events: usize) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.tithe");
        let mut w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
        let record = |class: ClassRow| ClassRow { kind: RecordKind::Record, ..class };
        w.push(&classes().into_iter().map(record).collect::<Vec<_>>());
        let window = recording().windows[0].clone();
        for (class_id, hits) in (0..).zip(hits) {
            for (kind, attempted) in [(WindowKind::Survey, 0), (WindowKind::Trace, hits)] {
                let (start_ns, end_ns) = (1_000_000_000, 2_500_000_000);
                w.push(&[WindowRow { class_id, kind, start_ns, end_ns, attempted, ..window.clone() }]);
            }
        }
        let event = recording().events[0].clone();
        let rows: Vec<EventRow> = (0..events).map(|_| EventRow { class_id: 0, ..event.clone() }).collect();
        w.push(&rows);
        w.finish(&meta()).unwrap();
        (dir, path)
    }

    #[test]
    fn a_function_that_was_watched_and_never_called_is_told_as_that() {
        let told = "parse: watched for 3.0 s and never called";
        let (_dir, path) = recorded([5, 0], 5);
        let models = Models::read(&path, &[]).unwrap();
        assert_eq!(models.notes, [told]);
        assert!(models_text(&models, TextOptions::default()).contains(told));
        let page = render_models(&models, FileFormat::Html, TextOptions::default()).unwrap();
        assert!(String::from_utf8(page).unwrap().contains(told));
        let (_dir, path) = recorded([5, 7], 5);
        assert!(Models::read(&path, &[]).unwrap().notes.is_empty(), "it was called, and not recorded");
    }

    #[test]
    fn where_there_is_no_call_at_all_the_error_says_who_was_watched() {
        let name = &classes()[0].name;
        assert_eq!(
            recorded_error([0, 0]),
            format!(
                "no call was recorded that a model can be made of: {name}: watched for 3.0 s and never called; parse: watched for 3.0 s and never \
                 called"
            )
        );
        let error = recorded_error([5, 7]);
        assert!(error.contains("the recording has no recorded calls"), "{error}");
    }

    #[test]
    fn of_hundreds_of_functions_five_are_told_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.tithe");
        let mut w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
        let named = |i: u32| ClassRow {
            class_id: i,
            kind: RecordKind::Record,
            name: format!("f{i:03}"),
            address: u64::from(i),
            ..classes()[0].clone()
        };
        w.push(&(0..300).map(named).collect::<Vec<_>>());
        let window = WindowRow { attempted: 0, ..recording().windows[0].clone() };
        w.push(&(0..300).map(|class_id| WindowRow { class_id, ..window.clone() }).collect::<Vec<_>>());
        w.finish(&meta()).unwrap();
        let told = notes(&path, &[]).unwrap();
        assert_eq!((told.len(), told[5].as_str()), (6, "295 other functions were watched and never called"));
    }

    fn recorded_error(hits: [u64; 2]) -> String {
        let (_dir, path) = recorded(hits, 0);
        Models::read(&path, &[]).unwrap_err().to_string()
    }
}
