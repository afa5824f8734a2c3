//! Inputs that are named as parameters of a function: their registers by debug information, which the test programs have.

use super::{recording, sleep_ms, start};
use profiler_tests::program;
use profiler_tests::support::{Agent, Target};
use profiler_user::models::Models;
use std::process::{Command, Output};

const ASKED: [&str; 5] = ["--budget", "1000ms/s", "--only-named", "--agent-cpu", "50%"];

/// `grow(data, n)`: named on the command line, and not named at all.
#[test]
fn parameters_are_inputs_by_their_names() {
    let Some(folder) = start("parameters_are_inputs_by_their_names") else { return };
    for (name, input) in [("named.tithe", &["--input", "grow:n"][..]), ("plain.tithe", &[])] {
        let mut target = Target::start("growing");
        target.command("start 500");
        let path = folder.path().join(name);
        let asked = [&ASKED[..], &["--model", "growing:grow"], input].concat();
        let mut agent = Agent::start_command(Command::new(program("tithe")), target.pid(), &path, &asked);
        agent.wait_tracing();
        sleep_ms(4_000);
        let finished = agent.stop();
        assert!(finished.status.success(), "{}", finished.messages);
        let recorded = recording(&path);
        let class = recorded.classes.iter().find(|class| class.symbol == "grow").expect("it is recorded");
        assert_eq!(class.prototype.as_deref(), Some("data=arg0:pointer,n=arg1:size"), "{name}");
        let meta = recorded.meta.models.expect("models were asked for");
        let expected: &[&str] = if input.is_empty() { &[] } else { &["growing:=grow:n=arg1:size"] };
        assert_eq!(meta.inputs, expected, "{name}");
        assert!(recorded.events.iter().all(|row| row.args[1].is_some()), "{name}");
        let models = Models::read(&path, &[]).expect("calls were recorded");
        let model = models.functions[0].found.as_ref().expect("16 sizes over three decades");
        let critical: Vec<&str> = model.critical.iter().map(|critical| critical.name.as_str()).collect();
        assert_eq!(critical, ["n"], "{name}: {:?}", model.formula());
    }
}

#[test]
fn a_parameter_that_there_is_not_is_refused_with_those_that_there_are() {
    let Some(folder) = start("a_parameter_that_there_is_not_is_refused_with_those_that_there_are") else {
        return;
    };
    let refused = |target: &str, function: &str, input: &str| {
        let target = Target::start(target);
        let pid = target.pid().to_string();
        let output = Command::new(program("tithe"))
            .args(["record", "--pid", &pid, "--model", function, "--input", input, "-o"])
            .arg(folder.path().join(function))
            .output()
            .expect("tithe was built");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = refused("growing", "grow", "grow:size");
    let expected = "grow has no parameter 'size', nor is there a --word of that name; its parameters are data (arg0, pointer), n (arg1, size)";
    assert!(text.contains(expected), "{text}");
    // A program that is launched does not begin: it would say that it is ready.
    let launched = |input: &str| {
        Command::new(program("tithe"))
            .args(["record", "--model", "grow", "--input", input, "-o"])
            .arg(folder.path().join(input))
            .arg("--")
            .arg(program("growing"))
            .output()
            .expect("tithe was built")
    };
    let has_begun = |output: &Output| String::from_utf8_lossy(&output.stdout).contains("ready pid=");
    let output = launched("grow:size");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains(expected), "{output:?}");
    assert!(!has_begun(&output), "{output:?}");
    let output = launched("grow:n");
    assert!(has_begun(&output), "{output:?}");
    // Where there is none, unless somebody has installed it.
    let text = refused("growing", "libc:qsort", "qsort:nothing");
    let has_none =
        text.contains("libc.so.6 has no debug information (DWARF)") && text.contains("name it by its number");
    assert!(has_none || text.contains("qsort has no parameter 'nothing'"), "{text}");
}
