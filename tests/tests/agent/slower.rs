//! `--slower`: what is said of slow operations while the run goes on, against a target that knows how many there were.

use super::operations::{follow, stop};
use super::{sleep_ms, start};
use profiler_tests::support::Target;

/// Each takes some 100 ms, the others some microseconds.
const SLOW: usize = 3;
const LONG: &str = "20ms";

#[test]
fn slow_operations_are_told_with_their_calls_while_the_run_goes_on() {
    let Some(folder) = start("slow_operations_are_told_with_their_calls_while_the_run_goes_on") else {
        return;
    };
    let mut target = Target::start("requests");
    let mut arguments =
        vec!["--operation", "req=handle", "--policy", "full", "--adapt", "attach_share=false"];
    arguments.extend(["--calls", "requests:step", "--calls", "requests:query", "--slower", LONG]);
    let agent = follow(&target, &folder, &arguments);
    target.command("serve 300 1 1");
    target.command("slower 1000000");
    target.command(&format!("serve {SLOW} 1 1"));
    target.command("slower 1");
    target.command("serve 300 1 1");
    // Two seconds is the longest that one waits for its calls and for the code.
    sleep_ms(3_000);
    let live = agent.messages();
    let (finished, recorded) = stop(agent);
    assert_eq!(recorded.operations.len(), 600 + SLOW, "{}", finished.messages);
    let told: Vec<&str> = live.split("slow: req,").skip(1).collect();
    assert_eq!(told.len(), SLOW, "{live}");
    for text in told {
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains(", complete, 3 calls"), "{text}");
        // A step, and a query with a step below it: name, and how deep it stands.
        let calls: Vec<(usize, &str)> = lines[1..4]
            .iter()
            .map(|line| {
                let name = line.split_whitespace().last().expect("a line of a tree names a function");
                (line.rfind(name).expect("it is there"), name)
            })
            .collect();
        let names: Vec<&str> = calls.iter().map(|(_, name)| *name).collect();
        assert_eq!(names, ["step", "query", "step"], "{text}");
        assert!(calls[0].0 == calls[1].0 && calls[2].0 > calls[1].0, "{text}");
    }
    let summary =
        format!("{SLOW} of {} recorded operations took longer, {SLOW} of these were told", 600 + SLOW);
    assert!(finished.messages.contains(&summary), "{}", finished.messages);
    target.assert_text_original();
}
