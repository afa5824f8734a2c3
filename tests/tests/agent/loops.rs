//! Models of loops, from samples inside recorded calls.

use super::{recording, sleep_ms, start};
use profiler_core::models::{Class, LoopModel};
use profiler_tests::program;
use profiler_tests::support::{Agent, Target};
use profiler_user::models::{LoopOfFunction, Models};
use std::process::Command;

/// The class is told, or not ruled out: beside other programs counts scatter.
fn may_be(model: &LoopModel, class: Class) -> bool {
    model.class == class || model.alternatives.contains(&class)
}

/// How many times as long the loop takes for 1,000 as for 100.
fn growth(model: &LoopModel) -> f64 {
    model.sum.at(&[1_000.0]) / model.sum.at(&[100.0])
}

/// `twofold(data, n)` calls `step` n times in one loop, and adds up n^2 words in two others.
#[test]
fn loops_that_grow_with_n_and_with_its_square_are_told_apart() {
    let Some(folder) = start("loops_that_grow_with_n_and_with_its_square_are_told_apart") else { return };
    let mut target = Target::start("loops");
    target.command("start 2000");
    let path = folder.path().join("a.tithe");
    // Calls of `step` are counted too, and it takes seconds until there is a plan: of the samples a part falls into recorded calls.
    let asked = ["--budget", "1000ms/s", "--agent-cpu", "50%", "--sample-rate", "3999", "--no-ab"];
    let model = ["--model", "loops:twofold", "--input", "twofold:n=arg1:size"];
    let agent = Agent::start_command(
        Command::new(program("tithe")),
        target.pid(),
        &path,
        &[&asked[..], &model[..]].concat(),
    );
    sleep_ms(25_000);
    let finished = agent.stop();
    assert!(finished.status.success(), "{}", finished.messages);
    let models = Models::read(&path, &[]).expect("calls were recorded");
    let function = models.functions.iter().find(|f| f.name == "twofold").expect("it was modelled");
    let model = function.found.as_ref().expect("16 sizes");
    let loops = function.loops.as_ref().unwrap_or_else(|| panic!("{:?}", models.notes));
    let samples = recording(&path).samples.len();
    assert!(loops.cut.is_none() && !loops.is_uncertain, "{loops:?}");
    // Samples stand for the CPU time of the calls that they fell into.
    let part = loops.samples as f64 / loops.expected_samples;
    assert!((0.8..1.2).contains(&part), "{part} of {samples} samples; {loops:?}");

    let found = |depth: u32| -> Vec<(&LoopOfFunction, &LoopModel)> {
        let modelled = loops.loops.iter().filter_map(|own| Some((own, own.found.as_ref().ok()?)));
        modelled.filter(|(own, _)| own.depth == depth).collect()
    };
    let first =
        |depth: u32| *found(depth).first().unwrap_or_else(|| panic!("none of depth {depth}: {loops:?}"));
    let ((calling, linear), (inner, square)) = (first(1), first(2));
    assert!(may_be(linear, Class::Linear) && (7.0..14.0).contains(&growth(linear)), "{linear:?}");
    assert!(may_be(square, Class::Polynomial) && (60.0..160.0).contains(&growth(square)), "{square:?}");
    for own in [calling, inner] {
        let source = own.source.as_ref().map(|(file, _)| file.ends_with("loops.c"));
        assert!(source == Some(true) && own.name.starts_with("twofold+0x"), "{own:?}");
    }
    // The loop in `step` is none of `twofold`, and its time is that of the loop that calls it.
    assert!(inner.inside.is_some_and(|around| around != calling.header), "{loops:?}");
    let both = linear.sum.at(&[500.0]) + square.sum.at(&[500.0]);
    let whole = model.curves[0].shape.at(&[500.0]);
    assert!((0.7..1.3).contains(&(both / whole)), "{both} of {whole} ns; {loops:?}");
}
