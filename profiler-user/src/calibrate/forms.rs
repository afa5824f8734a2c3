//! Which proven instruction forms hold on the running kernel.
//!
//! On the kernel and CPU model that the table was made on: all of them, and nothing is run. Elsewhere they are run again, once per boot,
//! and those that differ are dropped. The result is kept beside the prices, under the same rules.

use super::{CalibrateError, ChildCommand, cache};
use crate::conformance;
use crate::inspect::KernelRules;
use crate::inspect::forms::{self, AllowList, Form};
use crate::prober::{Kernel, KernelOptions, Tier};
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::path::Path;
use std::time::{Duration, Instant};

const FILE: &CStr = c"forms.json";

/// What is known of the forms on this kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormsHere {
    /// The table was made on it, and on this model of CPU.
    Proven,
    /// They were run again here; those that differ are the rules' dropped ones.
    RunAgain,
    /// They were not: only the baseline is probed.
    Unknown,
    /// The last attempt to run them on this kernel failed, for this reason: only the baseline is probed.
    Failed(String),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    boot_id: String,
    kernel: String,
    #[serde(default)]
    cpu: String,
    version: String,
    /// Number of forms that were run, and a sum over them.
    table: String,
    /// Samples of those that differ, in hexadecimal.
    dropped: Vec<String>,
    /// Why they could not be run; it is tried again.
    #[serde(default)]
    failed: Option<String>,
}

/// What a file says that holds for this boot, kernel, CPU and table: forms that differ, or why that could not be found out.
type Known = Result<Vec<Form>, String>;

impl Stored {
    fn here(dropped: &[Form]) -> Self {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let samples = forms::samples().filter(|s| Form::of(s).is_ok_and(|form| dropped.contains(&form)));
        Self {
            boot_id: boot_id.trim().to_owned(),
            kernel: forms::kernel_name(),
            cpu: forms::cpu_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            table: forms::table_id(),
            dropped: samples.map(|s| s.iter().map(|byte| format!("{byte:02x}")).collect()).collect(),
            failed: None,
        }
    }

    fn forms(&self) -> Vec<Form> {
        self.dropped.iter().filter_map(|hex| Form::of(&forms::bytes_of_hex(hex)?).ok()).collect()
    }
}

/// What is known without running anything: the rules, and where they come from.
#[must_use]
pub fn known_rules() -> (KernelRules, FormsHere) {
    let rules = KernelRules::host();
    if forms::proven_here() {
        return (rules, FormsHere::Proven);
    }
    match cache::default_dir().and_then(|dir| load(&dir).ok().flatten()) {
        Some(Ok(dropped)) => {
            (KernelRules { forms: AllowList::without(dropped), ..rules }, FormsHere::RunAgain)
        }
        Some(Err(why)) => (unproven(rules), FormsHere::Failed(why)),
        None => (unproven(rules), FormsHere::Unknown),
    }
}

fn load(dir: &Path) -> Result<Option<Known>, String> {
    let Some(text) = cache::read(dir, FILE)? else { return Ok(None) };
    let stored: Stored = serde_json::from_str(&text).map_err(|error| format!("damaged ({error})"))?;
    let here = Stored { dropped: stored.dropped.clone(), failed: stored.failed.clone(), ..Stored::here(&[]) };
    Ok((stored == here).then(|| stored.failed.clone().map_or_else(|| Ok(stored.forms()), Err)))
}

/// What may be probed where the forms were not run.
fn unproven(host: KernelRules) -> KernelRules {
    KernelRules { forms: AllowList::baseline(), ..host }
}

/// The rules of this kernel; forms are run again if need be. Second: how long that took.
///
/// # Errors
/// The kernel side does not load.
pub(super) fn rules(
    tier: Tier,
    refresh: bool,
    child: &ChildCommand,
    dir: Option<&Path>,
    notes: &mut Vec<String>,
) -> Result<(KernelRules, Option<Duration>), CalibrateError> {
    let host = KernelRules::host();
    if forms::proven_here() && !refresh {
        return Ok((host, None));
    }
    if let Some(dir) = dir.filter(|_| !refresh) {
        match load(dir) {
            Ok(Some(Ok(dropped))) => {
                return Ok((KernelRules { forms: AllowList::without(dropped), ..host }, None));
            }
            Ok(Some(Err(_)) | None) => {}
            Err(why) => {
                notes.push(format!("ignored the stored instruction forms in {}: {why}", dir.display()))
            }
        }
    }
    if tier == Tier::D {
        notes.push(
            "this kernel has no links of many sites, so that instructions cannot be run on it beforehand: only those \
             that every x86-64 CPU has are probed"
                .to_owned(),
        );
        return Ok((unproven(host), None));
    }
    let begin = Instant::now();
    let kernel = Kernel::load(&KernelOptions {
        forced_tier: Some(tier),
        max_classes: 1,
        histogram_classes: 1,
        events_ring_bytes: 4096,
        samples_ring_bytes: 4096,
        ..KernelOptions::default()
    })?;
    let dropped = match conformance::dropped_here(&kernel, child) {
        Ok(dropped) => dropped,
        Err(error) => {
            notes.push(format!(
                "instructions could not be run on this kernel beforehand, so that only those that every x86-64 CPU has are \
                 probed; {error}"
            ));
            store(dir, &Stored { failed: Some(error.to_string()), ..Stored::here(&[]) }, notes);
            return Ok((unproven(host), Some(begin.elapsed())));
        }
    };
    store(dir, &Stored::here(&dropped), notes);
    if !dropped.is_empty() {
        notes.push(format!(
            "{} instruction forms have another result under a probe on this kernel and are not probed; 'tithe doctor' \
             names them",
            dropped.len()
        ));
    }
    Ok((KernelRules { forms: AllowList::without(dropped), ..host }, Some(begin.elapsed())))
}

/// Keeps what was found out for later runs, and for `tithe doctor`.
fn store(dir: Option<&Path>, found: &Stored, notes: &mut Vec<String>) {
    let Some(dir) = dir else { return };
    let text = serde_json::to_vec_pretty(found).unwrap_or_default();
    if let Err(error) = cache::write(dir, FILE, &text) {
        notes.push(format!("cannot store the instruction forms in {}: {error}", dir.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_is_kept_for_this_boot_kernel_and_table() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        assert_eq!(load(&dir), Ok(None));
        let form = Form::of(&[0x48, 0x83, 0xec, 0x08]).unwrap();
        let stored = Stored::here(&[form]);
        cache::write(&dir, FILE, &serde_json::to_vec(&stored).unwrap()).unwrap();
        assert_eq!(load(&dir), Ok(Some(Ok(vec![form]))));
        for other in [
            Stored { boot_id: "another".into(), ..Stored::here(&[form]) },
            Stored { kernel: "another".into(), ..Stored::here(&[form]) },
            Stored { cpu: "another".into(), ..Stored::here(&[form]) },
            Stored { version: "another".into(), ..Stored::here(&[form]) },
            Stored { table: "another".into(), ..Stored::here(&[form]) },
        ] {
            cache::write(&dir, FILE, &serde_json::to_vec(&other).unwrap()).unwrap();
            assert_eq!(load(&dir), Ok(None), "{other:?}");
        }
        cache::write(&dir, FILE, b"{").unwrap();
        assert!(load(&dir).is_err());
    }

    /// A child that says nothing stands for a machine on which none can run.
    #[test]
    fn why_forms_could_not_be_run_is_kept_and_tried_again() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        let child = ChildCommand { program: "true".into(), args: Vec::new(), env: Vec::new() };
        for attempt in 0..2 {
            let mut notes = Vec::new();
            let (rules, took) = match rules(Tier::A, attempt == 0, &child, Some(&dir), &mut notes) {
                Ok(done) => done,
                Err(error) => {
                    assert!(std::env::var_os("REQUIRE_KERNEL").is_none(), "{error}");
                    eprintln!(
                        "SKIP why_forms_could_not_be_run_is_kept_and_tried_again: {error} (needs root)"
                    );
                    return;
                }
            };
            if took.is_none() {
                assert_eq!(attempt, 1, "on the kernel that the table was made on only --refresh runs them");
                return;
            }
            assert!(notes[0].contains("could not be run on this kernel"), "{notes:?}");
            assert_eq!(rules.forms.len(), AllowList::baseline().len());
            let why = load(&dir).unwrap().unwrap().unwrap_err();
            assert!(notes[0].ends_with(&why), "{why}; {notes:?}");
        }
    }
}
