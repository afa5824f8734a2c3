//! Instruction forms against the running kernel: those that may be probed do the same under a probe, and the run sees those
//! that do not. Needs root.

use profiler_core::class::{SiteClass, Tier};
use profiler_tests::conformance::{child_command, generate, small_kernel};
use profiler_tests::support::kernel_or_skip;
use profiler_user::calibrate::{CalibrateOptions, ChildCommand, child_main, load_or_run};
use profiler_user::conformance::{Outcome, RunOptions, STATES, dropped, relative_variants, run};
use profiler_user::inspect::forms::{self, AllowList, Form};
use profiler_user::inspect::{KernelRules, Treatment, treatment};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

const CHILD: &str = "TITHE_TEST_CONFORMANCE_CHILD";

/// Not a test by itself: the child's way into this program.
#[test]
fn conformance_child() {
    if std::env::var_os(CHILD).is_some() {
        child_main().expect("standard input is the parent's socket");
        std::process::exit(0);
    }
}

fn child() -> ChildCommand {
    child_command(&["--exact", "conformance_child", "--nocapture"], Some(CHILD))
}

#[test]
fn every_accepted_form_does_the_same_under_a_probe() {
    if !kernel_or_skip("every_accepted_form_does_the_same_under_a_probe") {
        return;
    }
    let kernel = small_kernel().unwrap();
    // Without links of many sites the others are not probed; QEMU's CPU, where such kernels are tried, ends at some of them.
    let accepted = if kernel.tier() == Tier::D { AllowList::baseline() } else { AllowList::proven() };
    let samples: Vec<Vec<u8>> =
        forms::samples().filter(|s| Form::of(s).is_ok_and(|form| accepted.contains(form))).collect();
    assert_eq!(samples.len(), accepted.len());
    assert!(AllowList::proven().len() > 5_000, "{} forms: the table is not whole", AllowList::proven().len());
    assert!(samples.len() > 500, "{}", samples.len());
    let begin = Instant::now();
    let options = RunOptions { states: STATES, watch_steps: false };
    let verdicts = run(&kernel, &child(), &samples, options).unwrap();
    println!("{} forms in {:?}", samples.len(), begin.elapsed());
    let bad: Vec<Form> = dropped(&samples, &verdicts);
    assert!(bad.is_empty(), "{} differ: {:?}", bad.len(), &bad[..bad.len().min(20)]);
    // Nearly all run to their end where the table was made; on a CPU that lacks some, those never run.
    let agree = verdicts.iter().filter(|v| v.outcome == Outcome::Agrees).count();
    assert!(agree * 2 > samples.len(), "{agree} of {} ran", samples.len());
}

/// What is relative to the next instruction is rewritten to a register that the instruction does not name.
#[test]
fn relative_operands_agree_whatever_registers_the_kernel_has_left() {
    if !kernel_or_skip("relative_operands_agree_whatever_registers_the_kernel_has_left") {
        return;
    }
    let mut groups = BTreeMap::new();
    for sample in forms::samples() {
        let variants = relative_variants(&sample);
        if !variants.is_empty() {
            groups.entry(Form::group(&sample)).or_insert(variants);
        }
    }
    let samples: Vec<Vec<u8>> = groups.into_values().flatten().collect();
    println!("{} variants", samples.len());
    assert!(samples.len() > 500, "{}", samples.len());
    let options = RunOptions { states: STATES, watch_steps: false };
    let verdicts = run(&small_kernel().unwrap(), &child(), &samples, options).unwrap();
    let differ: Vec<_> = samples
        .iter()
        .zip(&verdicts)
        .filter(|(_, v)| !matches!(v.outcome, Outcome::Agrees | Outcome::NeverRuns(_)))
        .collect();
    assert!(differ.is_empty(), "{} differ: {:x?}", differ.len(), &differ[..differ.len().min(10)]);
    let agree = verdicts.iter().filter(|v| v.outcome == Outcome::Agrees).count();
    assert!(agree * 2 > samples.len(), "{agree} of {} ran", samples.len());
}

/// The kernel reads the opcode byte of a vector instruction as if it had no VEX or EVEX prefix.
#[test]
fn vector_instructions_that_the_kernel_mistakes_are_seen_to_differ() {
    if !kernel_or_skip("vector_instructions_that_the_kernel_mistakes_are_seen_to_differ") {
        return;
    }
    let mut all = generate::Samples::new();
    generate::vex(&mut all);
    let opcode_at = |sample: &[u8]| if sample[0] == 0xc5 { 2 } else { 3 };
    let opcode = |sample: &[u8]| sample[opcode_at(sample)];
    let mut samples: Vec<Vec<u8>> = all.into_values().map(|mut kept| kept.swap_remove(0)).collect();
    for sample in &mut samples {
        // Without AVX-512 `vmovdqa ymm0, ymm0` does nothing, and so does the kernel that takes it for a jump: another source.
        let after_opcode = opcode_at(sample) + 1;
        if let Some(modrm) = sample.get_mut(after_opcode).filter(|byte| **byte == 0xc0) {
            *modrm = 0xc1;
        }
    }
    let options = RunOptions { states: STATES, watch_steps: false };
    let verdicts = run(&small_kernel().unwrap(), &child(), &samples, options).unwrap();
    let differing: BTreeSet<u8> = samples
        .iter()
        .zip(&verdicts)
        .filter(|(_, v)| matches!(v.outcome, Outcome::Differs(_) | Outcome::Kills))
        .map(|(sample, _)| opcode(sample))
        .collect();
    println!("differing opcode bytes: {differing:02x?}");
    for byte in [0x9d, 0xc2, 0xcb, 0xe8].into_iter().chain(0x70..=0x7f) {
        let of_byte = samples.iter().zip(&verdicts).filter(|(sample, _)| opcode(sample) == byte);
        // Of cb there is one instruction (vsha512rnds2), of some others none: what this CPU lacks faults either way.
        let runs = of_byte.map(|(_, v)| v.outcome).filter(|o| matches!(o, Outcome::Agrees)).count();
        assert!(runs == 0, "{byte:02x}: {runs} forms agree");
        if !differing.contains(&byte) {
            println!("opcode byte {byte:02x}: no such vector instruction runs on this CPU");
        }
    }
    assert!(
        [0x9d, 0xc2, 0xe8, 0x70, 0x77, 0x7f].iter().all(|byte| differing.contains(byte)),
        "{differing:02x?}"
    );
}

/// The price class says which instructions are emulated; the kernel has an area for single-stepping only if it needs one.
#[test]
fn what_is_priced_as_emulated_is_emulated() {
    if !kernel_or_skip("what_is_priced_as_emulated_is_emulated") {
        return;
    }
    let rules = KernelRules::host();
    let (mut emulated, stepped): (Vec<Vec<u8>>, Vec<Vec<u8>>) = forms::samples().partition(|sample| {
        !matches!(treatment(sample, 0x1000, rules), Treatment::Probe(SiteClass::Stepped))
    });
    // Nops that have five bytes only by odd prefixes are stepped once, before the kernel optimises them.
    emulated.retain(|sample| sample.len() != 5);
    emulated.push(vec![0x0f, 0x1f, 0x44, 0x00, 0x00]);
    assert!(emulated.len() > 20 && stepped.len() > 1000, "{} {}", emulated.len(), stepped.len());
    let kernel = small_kernel().unwrap();
    let options = RunOptions { states: 1, watch_steps: true };
    let verdicts = run(&kernel, &child(), &emulated, options).unwrap();
    let first = emulated.iter().zip(&verdicts).find(|(_, v)| v.first_stepped);
    assert_eq!(first.map(|(sample, _)| Form::of(sample)), None);
    // The same look does see a step.
    assert!(run(&kernel, &child(), &stepped[..1], options).unwrap()[0].first_stepped);
}

/// On a kernel that the table was not made on, calibration runs the forms again and keeps the result.
#[test]
fn calibration_runs_the_forms_again() {
    if !kernel_or_skip("calibration_runs_the_forms_again") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tier = small_kernel().unwrap().tier();
    let options = CalibrateOptions {
        refresh: false,
        prove_forms: true,
        child: child(),
        cache_dir: Some(dir.path().join("cache")),
    };
    let first = load_or_run(tier, &options).unwrap();
    println!("running the forms again took {:?}; {:?}", first.forms_took, first.notes);
    assert!(first.forms_took.is_some());
    assert_eq!(first.rules.forms.dropped().iter().collect::<Vec<_>>(), Vec::<&Form>::new());
    assert!(dir.path().join("cache/forms.json").exists());
}
