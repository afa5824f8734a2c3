//! The command line of programs that serve requests.

use super::Phases;
use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;

/// What the command line says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub phases: Phases,
    pub think: Duration,
    pub seed: u64,
    pub seconds: Option<f64>,
    pub unique_names: bool,
    pub twins: bool,
}

const OPTIONS: &str = "  --seconds N      run for N seconds and end (default: commands on standard input: run SECONDS, wait, truth, stop, quit)
  --pattern NAME   stationary, seasonal, bursty or mixed (a third of each; default)
  --users N        typical users, each a thread (default 8); bursts have 2.5 times as many
  --think-us N     mean time between an answer and the user's next request (default 2000)
  --season N       length of a season, s (default 60)
  --burst-every N  from one burst to the next, s (default 45)
  --burst N        length of a burst, s (default 5)
  --seed N         seed of the random choices (default 1)
  --unique-names   append a number of its own to each request's type: names by the million
  --twins          every request comes twice, once through a twin of the bound function; `dump` writes all of them";

/// Reads the command line.
///
/// # Errors
///
/// An option is not known, or its value is none.
pub(super) fn parse(name: &str, mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let usage = format!("usage: {name} [OPTIONS]\n{OPTIONS}");
    let mut options = Options {
        phases: Phases::default(),
        think: Duration::from_micros(2_000),
        seed: 1,
        seconds: None,
        unique_names: false,
        twins: false,
    };
    while let Some(option) = arguments.next() {
        let flag = match option.as_str() {
            "--unique-names" => Some(&mut options.unique_names),
            "--twins" => Some(&mut options.twins),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = true;
            continue;
        }
        let value = arguments.next().with_context(|| format!("{option} wants a value\n{usage}"))?;
        let number = || -> Result<f64> {
            let n: f64 = value.parse().with_context(|| format!("{option} wants a number, not '{value}'"))?;
            ensure!(n.is_finite() && n > 0.0, "{option} wants a number above 0, not {value}");
            Ok(n)
        };
        let whole = || value.parse().with_context(|| format!("{option} wants a whole number, not '{value}'"));
        let phases = &mut options.phases;
        match option.as_str() {
            "--seconds" => options.seconds = Some(number()?.min(1e6)),
            "--pattern" => phases.pattern = value.parse()?,
            "--users" => {
                phases.users = u32::try_from(whole()?)?;
                ensure!((1..=400).contains(&phases.users), "--users lies between 1 and 400, not {value}");
            }
            "--think-us" => options.think = Duration::from_micros(whole()?),
            "--season" => phases.season_s = number()?,
            "--burst-every" => phases.burst_every_s = number()?,
            "--burst" => phases.burst_s = number()?,
            "--seed" => options.seed = whole()?,
            _ => bail!("no option {option}\n{usage}"),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::super::Pattern;
    use super::*;

    fn options(line: &str) -> Result<Options> {
        parse("test", line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_and_wrong_ones_named() {
        let o = options("--seconds 3 --pattern bursty --users 4 --think-us 100 --burst 0.5 --seed 9 --twins")
            .unwrap();
        assert_eq!((o.seconds, o.phases.pattern, o.phases.users, o.seed), (Some(3.0), Pattern::Bursty, 4, 9));
        assert_eq!((o.think, o.phases.burst_s), (Duration::from_micros(100), 0.5));
        assert!(o.twins && !o.unique_names);
        for (line, says) in [
            ("--pattern wild", "choose from stationary"),
            ("--users 0", "between 1 and 400"),
            ("--seconds -1", "above 0"),
            ("--seconds", "wants a value"),
            ("--wrong 1", "no option --wrong"),
        ] {
            let error = format!("{:#}", options(line).unwrap_err());
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
