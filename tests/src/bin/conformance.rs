//! Makes the table of instruction forms that may be probed: `cargo xtask conformance` starts it.

use anyhow::{Context, Result};
use profiler_tests::conformance::{
    Tally, child_command, generate, narrowed, prove, small_kernel, table_text,
};
use profiler_user::calibrate::child_main;
use profiler_user::conformance::{RunOptions, STATES, run};
use profiler_user::inspect::forms;
use std::time::Instant;

/// Encodings of each form: kinds of memory operands, and registers by chance.
const ENCODINGS: usize = 4;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["child"] => Ok(child_main()?),
        ["--try", samples @ ..] => try_out(samples),
        [] => make(None, None),
        ["--write", path] => make(Some(path), None),
        ["--write", path, "--list", list] => make(Some(path), Some(list)),
        ["--narrow", path] => narrow(path),
        _ => {
            anyhow::bail!("usage: conformance [--write TABLE [--list REFUSED]] | --narrow TABLE | --try HEX…")
        }
    }
}

/// Says what becomes of single encodings.
fn try_out(samples: &[&str]) -> Result<()> {
    let bytes = |text: &&str| -> Result<Vec<u8>> {
        (0..text.len()).step_by(2).map(|i| Ok(u8::from_str_radix(&text[i..i + 2], 16)?)).collect()
    };
    let list: Vec<Vec<u8>> = samples.iter().map(bytes).collect::<Result<_>>()?;
    let options = RunOptions { states: STATES, watch_steps: true };
    for (sample, text) in list.iter().zip(samples) {
        let one = std::slice::from_ref(sample);
        let verdicts = run(&small_kernel()?, &child_command(&["child"], None), one, options)?;
        let name = forms::Form::of(sample).map_or_else(|why| format!("{why:?}"), |form| form.to_string());
        println!("{text} {name}: {:?}, stepped: {}", verdicts[0].outcome, verdicts[0].first_stepped);
    }
    Ok(())
}

/// Takes from the table what differs on this kernel and CPU. What this CPU lacks stays: it was proven elsewhere.
fn narrow(path: &str) -> Result<()> {
    let samples: generate::Samples = forms::samples()
        .map(|sample| {
            Ok((
                forms::Form::of(&sample).map_err(|why| anyhow::anyhow!("{sample:02x?}: {why:?}"))?,
                vec![sample],
            ))
        })
        .collect::<Result<_>>()?;
    let rows = prove(&small_kernel()?, &child_command(&["child"], None), &samples, ENCODINGS)?;
    let table = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let (text, dropped) = narrowed(&table, &rows, &forms::kernel_name(), &forms::cpu_name());
    println!("kernel {}\ncpu {}\n{} forms run", forms::kernel_name(), forms::cpu_name(), samples.len());
    for (reason, count) in &Tally::of(&rows).by_reason {
        println!("{reason}: {count}");
    }
    for row in dropped {
        println!(
            "dropped: {} {:02x?}, {}",
            row.form,
            row.failed.as_ref().unwrap_or(&row.sample),
            row.refused.as_deref().unwrap_or("?")
        );
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {path}"))
}

fn make(table: Option<&str>, list: Option<&str>) -> Result<()> {
    let begin = Instant::now();
    let mut samples = generate::Samples::new();
    generate::legacy(&mut samples);
    generate::vex(&mut samples);
    generate::evex(&mut samples);
    generate::without_idle(&mut samples);
    let generated = begin.elapsed();
    eprintln!("{} forms written down in {:.1} s", samples.len(), generated.as_secs_f64());
    let kernel = small_kernel()?;
    let begin = Instant::now();
    let rows = prove(&kernel, &child_command(&["child"], None), &samples, ENCODINGS)?;
    let proven = begin.elapsed();
    let tally = Tally::of(&rows);
    println!("kernel {}\ncpu {}\n", forms::kernel_name(), forms::cpu_name());
    println!("| what became of it | forms |\n|---|---|");
    for (reason, count) in &tally.by_reason {
        println!("| {reason} | {count} |");
    }
    println!("| **all** | {} |\n", rows.len());
    let [all, ran, accepted] = tally.codes;
    println!("codes of the decoder: {all} written down, {ran} run, {accepted} with an accepted form");
    println!(
        "time: {:.1} s to write them down, {:.1} s to run them ({ENCODINGS} encodings in {} states, with and without a probe)",
        generated.as_secs_f64(),
        proven.as_secs_f64(),
        STATES
    );
    if let Some(path) = list {
        let text: String = rows
            .iter()
            .filter_map(|row| {
                Some(format!(
                    "{}\t{:02x?}\t{}\n",
                    row.form,
                    row.failed.as_ref().unwrap_or(&row.sample),
                    row.refused.as_ref()?
                ))
            })
            .collect();
        std::fs::write(path, text).with_context(|| format!("cannot write {path}"))?;
    }
    if let Some(path) = table {
        std::fs::write(path, table_text(&rows, &forms::kernel_name(), &forms::cpu_name()))
            .with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}
