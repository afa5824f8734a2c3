//! What a request-serving target knows of its own work, and how it is told in one line.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

/// Sums over the requests of one type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requests served.
    pub operations: u64,
    /// Sum of their response times, ns.
    pub response_ns: u64,
    /// Sum of the measure.
    pub measure: u64,
    /// Sum of its squares.
    pub squares: u128,
}

impl Sums {
    /// One more request.
    pub fn add(&mut self, response_ns: u64, measure: u64) {
        self.operations += 1;
        self.response_ns += response_ns;
        self.measure += measure;
        self.squares += u128::from(measure) * u128::from(measure);
    }

    /// Those of another thread.
    pub fn merge(&mut self, other: &Sums) {
        self.operations += other.operations;
        self.response_ns += other.response_ns;
        self.measure += other.measure;
        self.squares += other.squares;
    }

    /// Mean measure of a request; NaN without requests.
    pub fn mean_measure(&self) -> f64 {
        self.measure as f64 / self.operations as f64
    }
}

/// Sums by type of request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Truth(pub BTreeMap<String, Sums>);

impl Truth {
    /// Over all types.
    pub fn total(&self) -> Sums {
        let mut total = Sums::default();
        self.0.values().for_each(|sums| total.merge(sums));
        total
    }

    /// `NAME|operations|response_ns|measure|squares,...` without white space; a space in a name becomes `%20`.
    pub fn to_line(&self) -> String {
        let one = |(name, s): (&String, &Sums)| {
            let name = name.replace(' ', "%20");
            format!("{name}|{}|{}|{}|{}", s.operations, s.response_ns, s.measure, s.squares)
        };
        self.0.iter().map(one).collect::<Vec<_>>().join(",")
    }

    /// Reads [`Truth::to_line`].
    ///
    /// # Errors
    ///
    /// Another form; the message has the part that is wrong.
    pub fn parse(line: &str) -> Result<Truth> {
        let mut truth = BTreeMap::new();
        for part in line.split(',').filter(|part| !part.is_empty()) {
            let fields: Vec<&str> = part.split('|').collect();
            ensure!(fields.len() == 5, "'{part}' has {} fields in place of 5", fields.len());
            let number = |i: usize| fields[i].parse::<u64>().with_context(|| format!("in '{part}'"));
            let sums = Sums {
                operations: number(1)?,
                response_ns: number(2)?,
                measure: number(3)?,
                squares: fields[4].parse().with_context(|| format!("in '{part}'"))?,
            };
            truth.insert(fields[0].replace("%20", " "), sums);
        }
        Ok(Truth(truth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_and_a_broken_one_is_refused() {
        let mut truth = Truth::default();
        truth.0.entry("GET /a".to_owned()).or_default().add(5, 3_000_000_000);
        truth.0.entry("GET /a".to_owned()).or_default().add(7, 4_000_000_000);
        truth.0.entry("b".to_owned()).or_default().add(1, 0);
        let line = truth.to_line();
        assert_eq!(line, "GET%20/a|2|12|7000000000|25000000000000000000,b|1|1|0|0");
        assert_eq!(Truth::parse(&line).unwrap(), truth);
        assert_eq!((truth.total().operations, truth.total().response_ns), (3, 13));
        assert!(Truth::parse("a|1|2").is_err() && Truth::parse("a|1|2|3|x").is_err());
    }
}
