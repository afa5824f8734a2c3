//! What is run in the guest.

use anyhow::{Result, bail};

/// One step.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub name: &'static str,
    pub about: &'static str,
    pub what: What,
}

/// How a step is done.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// The tests of a binary of the tests crate whose names contain the text, each in a process of its own.
    Tests { binary: &'static str, filter: &'static str },
    /// Commands of the guest's shell; each stands for one test.
    Commands(&'static [Command]),
}

/// A command that must succeed. `$TITHE` is the agent, `$BIN` the folder of this workspace's binaries.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    pub name: &'static str,
    pub shell: &'static str,
}

/// A step that was asked for.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub step: Step,
    /// Only tests with this in their name.
    pub test: Option<String>,
}

const fn tests(name: &'static str, about: &'static str, binary: &'static str, filter: &'static str) -> Step {
    Step { name, about, what: What::Tests { binary, filter } }
}

const STEPS: [Step; 11] = [
    tests(
        "programs",
        "every eBPF program of the object loads, with the tiers that this kernel has",
        "prober",
        "programs::",
    ),
    Step {
        name: "doctor",
        about: "`tithe doctor` ends well, and says what is missing",
        what: What::Commands(&[Command { name: "doctor", shell: "$TITHE doctor" }]),
    },
    tests("prober", "kernel side: counts, calls, samples, operations, lifecycle", "prober", ""),
    tests(
        "forms",
        "the accepted instruction forms do the same under a probe here",
        "conformance",
        "every_accepted_form",
    ),
    tests("hazards", "programs that a careless tracer breaks", "hazards", ""),
    tests("agent", "the whole agent, end to end", "agent", ""),
    tests("calibrate", "prices of this kernel and CPU", "calibrate", ""),
    tests("governor", "the breaker", "governor", ""),
    tests("guard", "death and stop of the agent", "guard", ""),
    tests("inspect", "sites and symbols of real modules", "inspect", ""),
    Step {
        name: "survive",
        about: "real programs survive a default run, with right results",
        what: What::Commands(&[
            Command { name: "redis", shell: "$BIN/survive redis" },
            Command { name: "sqlite", shell: "$BIN/survive sqlite" },
        ]),
    },
];

/// All steps, in the order in which they are run.
pub fn all() -> &'static [Step] {
    &STEPS
}

/// The steps that these arguments ask for; none asks for all.
///
/// # Errors
///
/// If one names no step.
pub fn choose(only: &[String]) -> Result<Vec<Chosen>> {
    if only.is_empty() {
        return Ok(STEPS.iter().map(|&step| Chosen { step, test: None }).collect());
    }
    let mut chosen = Vec::new();
    for text in only {
        let (name, test) =
            text.split_once(':').map_or((&**text, None), |(name, test)| (name, Some(test.to_owned())));
        let Some(&step) = STEPS.iter().find(|step| step.name == name) else {
            let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
            bail!("no step {name}: choose from {}", names.join(", "));
        };
        chosen.push(Chosen { step, test });
    }
    Ok(chosen)
}

/// The calls of `init.sh`'s functions that run these steps.
pub fn script(chosen: &[Chosen], test_binary: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut script = String::new();
    for Chosen { step, test } in chosen {
        script.push_str(&format!("begin {}\n", step.name));
        match step.what {
            What::Tests { binary, filter } => {
                let path = test_binary(binary)?;
                let more = test.as_deref().unwrap_or_default();
                script.push_str(&format!("tests {} '{filter}' '{more}'\n", quoted(&path)));
            }
            What::Commands(commands) => {
                for command in commands {
                    if test.as_ref().is_none_or(|test| command.name.contains(&**test)) {
                        script.push_str(&format!("command {} {}\n", command.name, quoted(command.shell)));
                    }
                }
            }
        }
        script.push_str(&format!("end {}\n", step.name));
    }
    Ok(script)
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name_and_test() {
        assert_eq!(choose(&[]).unwrap().len(), STEPS.len());
        let chosen = choose(&["agent:counts".to_owned(), "survive:redis".to_owned()]).unwrap();
        let script = script(&chosen, |name| Ok(format!("/deps/{name}'s"))).unwrap();
        assert_eq!(
            script,
            "begin agent\ntests '/deps/agent'\\''s' '' 'counts'\nend agent\n\
             begin survive\ncommand redis '$BIN/survive redis'\nend survive\n"
        );
        assert!(choose(&["nothing".to_owned()]).unwrap_err().to_string().contains("choose from programs"));
    }
}
