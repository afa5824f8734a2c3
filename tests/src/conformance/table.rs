//! Runs forms and sorts them by what became of them.

use super::generate::{self, Samples};
use profiler_user::calibrate::{CalibrateError, ChildCommand};
use profiler_user::conformance::{self, Outcome, RunOptions, STATES};
use profiler_user::inspect::forms::Form;
use profiler_user::prober::Kernel;
use rand::SeedableRng;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const FAULTS: &str = "faults in every state";
const KERNEL_REFUSES: &str = "the kernel refuses it";

/// A form, its sample, and why it is refused.
#[derive(Debug, Clone)]
pub struct Row {
    /// The form.
    pub form: Form,
    /// One encoding of it.
    pub sample: Vec<u8>,
    /// `None`: accepted.
    pub refused: Option<String>,
    /// The encoding that was refused, if it is not the sample.
    pub failed: Option<Vec<u8>>,
    /// What differed, as in [`Outcome::Differs`].
    pub differs: Option<u32>,
}

/// How many forms met which end.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// By reason; accepted ones under "accepted".
    pub by_reason: BTreeMap<String, usize>,
    /// Codes of the decoder among all, run, and accepted.
    pub codes: [usize; 3],
}

/// Runs each form in `encodings` encodings, each in all states.
///
/// # Errors
/// The kernel or the child fails.
pub fn prove(
    kernel: &Kernel,
    child: &ChildCommand,
    samples: &Samples,
    encodings: usize,
) -> Result<Vec<Row>, CalibrateError> {
    let mut rng = rand::rngs::StdRng::seed_from_u64(13);
    let mut rows: Vec<Row> = samples
        .iter()
        .map(|(form, sample)| Row {
            form: *form,
            sample: sample[0].clone(),
            refused: generate::decode(&sample[0])
                .and_then(|i| generate::never(&i))
                .map(|why| format!("never: {why}")),
            failed: None,
            differs: None,
        })
        .collect();
    let mut agreed: BTreeSet<Form> = BTreeSet::new();
    let mut unrun: BTreeMap<Form, String> = BTreeMap::new();
    for round in 0..encodings {
        let (which, list): (Vec<usize>, Vec<Vec<u8>>) = rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.refused.is_none())
            .map(|(i, row)| match round {
                0 => (i, row.sample.clone()),
                _ => {
                    let kept = &samples[&row.form];
                    let sample = &kept[round % kept.len()];
                    let bytes = generate::variant(sample, &mut rng).unwrap_or_else(|| sample.clone());
                    (i, bytes)
                }
            })
            .unzip();
        let options = RunOptions { states: STATES, watch_steps: false };
        eprintln!("encoding {} of {encodings}: {} forms", round + 1, list.len());
        let verdicts = conformance::run(kernel, child, &list, options)?;
        for ((&i, sample), verdict) in which.iter().zip(&list).zip(verdicts) {
            let row = &mut rows[i];
            match verdict.outcome {
                Outcome::Agrees => {
                    agreed.insert(row.form);
                }
                Outcome::NeverRuns(signal) => {
                    unrun.insert(row.form, never_runs(signal));
                }
                Outcome::Unrun => {
                    unrun.insert(row.form, "no place for its operand".into());
                }
                Outcome::KernelRefuses => row.refused = Some(KERNEL_REFUSES.into()),
                Outcome::Kills => {
                    row.refused = Some("differs: ends the process".into());
                    row.differs = Some(0);
                }
                Outcome::Differs(bits) => {
                    row.refused = Some(format!("differs: {}", what_differs(bits)));
                    row.differs = Some(bits);
                }
            }
            if row.refused.is_some() {
                row.failed = Some(sample.clone());
            }
        }
    }
    for row in rows.iter_mut().filter(|row| row.refused.is_none() && !agreed.contains(&row.form)) {
        row.refused = unrun.get(&row.form).cloned().or_else(|| Some("not run".into()));
    }
    Ok(rows)
}

fn never_runs(signal: u32) -> String {
    match signal.cast_signed() {
        libc::SIGILL => "this CPU lacks it".to_owned(),
        libc::SIGSEGV => FAULTS.to_owned(),
        other => format!("signal {other} in every state"),
    }
}

fn what_differs(bits: u32) -> String {
    let names = ["way out or signal", "flags", "registers", "extended state", "memory"];
    let parts: Vec<&str> =
        names.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, n)| *n).collect();
    parts.join(", ")
}

impl Tally {
    /// Counts rows.
    #[must_use]
    pub fn of(rows: &[Row]) -> Self {
        let mut tally = Self::default();
        for row in rows {
            let reason = row.refused.clone().unwrap_or_else(|| "accepted".to_owned());
            *tally.by_reason.entry(reason).or_default() += 1;
        }
        let codes = |keep: &dyn Fn(&Row) -> bool| {
            let set: BTreeSet<usize> =
                rows.iter().filter(|r| keep(r)).map(|r| r.form.code() as usize).collect();
            set.len()
        };
        let ran = |row: &Row| {
            !row.refused.as_deref().is_some_and(|why| why.starts_with("never") || why == "this CPU lacks it")
        };
        tally.codes = [codes(&|_| true), codes(&ran), codes(&|row| row.refused.is_none())];
        tally
    }
}

/// The table without what differs, or is refused, on this kernel and CPU, which its head names from now on; and what was taken out.
#[must_use]
pub fn narrowed<'a>(table: &str, rows: &'a [Row], kernel: &str, cpu: &str) -> (String, Vec<&'a Row>) {
    // What never ran to its end here although the CPU has it was not proven here.
    let unproven = [Some(KERNEL_REFUSES), Some(FAULTS)];
    let differs = |row: &&Row| row.differs.is_some() || unproven.contains(&row.refused.as_deref());
    let dropped: Vec<&Row> = rows.iter().filter(differs).collect();
    let hex = |row: &&Row| row.sample.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let gone: BTreeSet<String> = dropped.iter().map(hex).collect();
    let mut text = String::new();
    let mut head = true;
    for line in table.lines() {
        if line.starts_with('#') {
            text.push_str(line);
        } else {
            if std::mem::take(&mut head) {
                let number = dropped.len();
                // OK to ignore: writing to a string does not fail.
                let _ =
                    write!(text, "# kernel: {kernel}\n# cpu: {cpu}\n# forms: {number} of those dropped\n");
            }
            let mut fields = line.split_ascii_whitespace();
            let name = fields.next().unwrap_or_default();
            let kept: Vec<&str> = fields.filter(|sample| !gone.contains(*sample)).collect();
            if kept.is_empty() {
                continue;
            }
            let _ = write!(text, "{name} {}", kept.join(" "));
        }
        text.push('\n');
    }
    (text, dropped)
}

/// The table as it is committed.
#[must_use]
pub fn table_text(rows: &[Row], kernel: &str, cpu: &str) -> String {
    let accepted: Vec<&Row> = rows.iter().filter(|row| row.refused.is_none()).collect();
    let mut text = format!(
        "# Made by `cargo xtask conformance`; do not edit. A line: the decoder's code, then a sample of each form of it.\n\
         # kernel: {kernel}\n# cpu: {cpu}\n# forms: {} run or refused, {} accepted\n",
        rows.len(),
        accepted.len()
    );
    let mut last = None;
    for row in accepted {
        if last != Some(row.form.code()) {
            let end = if last.is_some() { "\n" } else { "" };
            // OK to ignore: writing to a string does not fail.
            let _ = write!(text, "{end}{:?}", row.form.code());
            last = Some(row.form.code());
        }
        text.push(' ');
        for byte in &row.sample {
            let _ = write!(text, "{byte:02x}");
        }
    }
    text.push('\n');
    text
}
