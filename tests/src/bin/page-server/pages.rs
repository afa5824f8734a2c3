//! The routes: twelve kinds of work, ten of each, on the documents of this repository.

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use profiler_tests::requests::Kind;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use regex::Regex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{Read, Write};

/// Kinds of work.
const WORK: [&str; 12] = [
    "compress", "unpack", "search", "replace", "hash", "parse", "json", "sort", "words", "template", "table",
    "outline",
];
/// Routes of each kind.
const VARIANTS: usize = 10;
/// Exponent of the popularity: the route of rank k is asked for as often as 1 / k^EXPONENT.
const EXPONENT: f64 = 0.9;

const PATTERNS: [&str; VARIANTS] = [
    r"\b[A-Z][a-z]+\b",
    r"[0-9]+(\.[0-9]+)? %",
    r"`[^`]+`",
    r"[Oo]perations?",
    r"\b(\w+) (\w+) \w+ing\b",
    r"^\|.*\|$",
    r"[a-z_]+::[a-z_]+",
    r"(cost|price|budget)[^.]{0,40}(hit|sample)",
    r"\w+-\w+",
    r"https?://[^ )]+",
];

const TEXTS: [&str; 6] = [
    include_str!("../../../../docs/design.md"),
    include_str!("../../../../docs/formats.md"),
    include_str!("../../../../docs/benchmarks.md"),
    include_str!("../../../../docs/architecture.md"),
    include_str!("../../../../docs/limitations.md"),
    include_str!("../../../../README.md"),
];

/// What all requests read.
pub struct Site {
    patterns: Vec<Regex>,
    /// Each text, packed at each level that counts.
    packed: Vec<Vec<u8>>,
    /// Records in JSON, for `parse`.
    records: Vec<String>,
}

/// The routes with their popularity: `GET /compress/0` and so on, ranked in an order that mixes kinds and variants.
pub fn kinds() -> Vec<Kind> {
    let mut routes: Vec<String> =
        WORK.iter().flat_map(|work| (0..VARIANTS).map(move |v| format!("GET /{work}/{v}"))).collect();
    // Fisher and Yates, with a seed of its own: the ranks are the same in every run.
    let mut random = StdRng::seed_from_u64(120);
    for i in (1..routes.len()).rev() {
        routes.swap(i, random.random_range(0..=i));
    }
    let weight = |rank: usize| 1.0 / ((rank + 1) as f64).powf(EXPONENT);
    routes.iter().enumerate().map(|(rank, route)| Kind::new(route, weight(rank))).collect()
}

fn pack(text: &[u8], level: u32) -> Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(text)?;
    Ok(encoder.finish()?)
}

/// A part of a text, at most `most` bytes long, that begins and ends at line ends; how long it is varies.
fn excerpt(random: &mut StdRng, most: usize) -> &'static str {
    let text = TEXTS[random.random_range(0..TEXTS.len())];
    let length = random.random_range(most / 8..=most);
    let begin = random.random_range(0..text.len().saturating_sub(length).max(1));
    let begin = text.as_bytes()[begin..].iter().position(|b| *b == b'\n').map_or(0, |at| begin + at + 1);
    let end = (begin + length).min(text.len());
    let end = text.as_bytes()[..end].iter().rposition(|b| *b == b'\n').map_or(text.len(), |at| at + 1);
    // OK because a byte after a line end begins a character.
    if begin < end { &text[begin..end] } else { &text[..text.find('\n').unwrap_or(text.len())] }
}

impl Site {
    /// Compiles, packs and renders what requests need.
    pub fn build() -> Result<Site> {
        let patterns = PATTERNS
            .iter()
            .map(|p| Regex::new(&format!("(?m){p}")).with_context(|| format!("pattern {p}")))
            .collect::<Result<_>>()?;
        let packed = TEXTS.iter().map(|text| pack(text.as_bytes(), 6)).collect::<Result<_>>()?;
        let records = (0..VARIANTS as u64).map(|v| records(8 << (v / 2), v).to_string()).collect();
        Ok(Site { patterns, packed, records })
    }

    /// The page of a route.
    pub fn page(&self, route: &str, parameter: u64) -> Result<Vec<u8>> {
        let mut random = StdRng::seed_from_u64(parameter);
        let random = &mut random;
        let Some((work, variant)) = route.strip_prefix("GET /").and_then(|path| path.split_once('/')) else {
            bail!("no route {route}");
        };
        let v: usize = variant.parse().with_context(|| format!("no route {route}"))?;
        // Sizes grow by half from variant to variant: 1 to 38 KiB and more.
        let size = (1_024.0 * 1.5f64.powi(v as i32)) as usize;
        Ok(match work {
            "compress" => pack(excerpt(random, 12_000).as_bytes(), v as u32)?,
            "unpack" => {
                let mut page = Vec::new();
                let packed = &self.packed[v % self.packed.len()];
                ZlibDecoder::new(&packed[..]).take(size as u64).read_to_end(&mut page)?;
                page
            }
            "search" => {
                let found: Vec<&str> =
                    self.patterns[v].find_iter(excerpt(random, 8_000)).map(|m| m.as_str()).collect();
                found.join("\n").into_bytes()
            }
            "replace" => {
                self.patterns[v].replace_all(excerpt(random, 6_000), "<em>$0</em>").into_owned().into_bytes()
            }
            "hash" => {
                let mut digest = Sha256::digest(excerpt(random, size));
                for _ in 0..v * 4 {
                    digest = Sha256::digest(digest);
                }
                digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes()
            }
            "parse" => {
                let value: Value = serde_json::from_str(&self.records[v])?;
                let limit = random.random_range(0..1_000);
                let chosen: Vec<&Value> = value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter(|r| r["score"].as_u64() > Some(limit))
                    .collect();
                serde_json::to_vec(&chosen)?
            }
            "json" => serde_json::to_vec_pretty(&records(random.random_range(2..6 + v * 8), parameter))?,
            "sort" => {
                let mut lines: Vec<&str> = excerpt(random, size).split_whitespace().collect();
                lines.sort_unstable_by_key(|word| (word.to_lowercase(), word.len()));
                lines.join(" ").into_bytes()
            }
            "words" => {
                let mut counts: HashMap<String, u32> = HashMap::new();
                for word in
                    excerpt(random, size).split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty())
                {
                    *counts.entry(word.to_lowercase()).or_default() += 1;
                }
                let mut counts: Vec<_> = counts.into_iter().collect();
                counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
                counts.truncate(5 + 5 * v);
                serde_json::to_vec(&counts)?
            }
            "template" => template(random, 2 + v).into_bytes(),
            "table" => table(excerpt(random, size)).into_bytes(),
            "outline" => outline(excerpt(random, size), v),
            _ => bail!("no route {route}"),
        })
    }
}

fn records(count: usize, seed: u64) -> Value {
    let mut random = StdRng::seed_from_u64(seed);
    let record = |random: &mut StdRng, id: usize| {
        let words: Vec<&str> = excerpt(random, 200).split_whitespace().take(6).collect();
        json!({ "id": id, "title": words.join(" "), "score": random.random_range(0..1_000), "tags": words })
    };
    (0..count).map(|id| record(&mut random, id)).collect()
}

/// `{{name}}` in a page of some sections replaced by escaped text.
fn template(random: &mut StdRng, sections: usize) -> String {
    const SECTION: &str =
        "<section><h2>{{title}}</h2><p>{{body}}</p><footer>{{title}}, {{count}} words</footer></section>\n";
    let mut page = String::from("<!doctype html>\n");
    for _ in 0..random.random_range(1..=sections) {
        let body = excerpt(random, 900);
        let count = body.split_whitespace().count().to_string();
        let title: String = body.chars().take(30).collect();
        let mut rest = SECTION;
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, after) = after.split_once("}}").unwrap_or((after, ""));
            page.push_str(before);
            let value = match name {
                "title" => title.as_str(),
                "body" => body,
                _ => count.as_str(),
            };
            page.push_str(&escape(value));
            rest = after;
        }
        page.push_str(rest);
    }
    page
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Lines as rows, words as cells.
fn table(text: &str) -> String {
    let mut page = String::from("<table>\n");
    for line in text.lines() {
        page.push_str("<tr>");
        for cell in line.split('|').map(str::trim).filter(|cell| !cell.is_empty()) {
            // Writing to a string does not fail.
            let _ = write!(page, "<td>{}</td>", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page + "</table>\n"
}

/// Headings with the words below them that occur most, as JSON.
fn outline(text: &str, most: usize) -> Vec<u8> {
    let mut sections: BTreeMap<String, BTreeMap<&str, u32>> = BTreeMap::new();
    let mut heading = String::new();
    for line in text.lines() {
        match line.strip_prefix('#') {
            Some(title) => heading = title.trim_matches(['#', ' ']).to_owned(),
            None => {
                let words = sections.entry(heading.clone()).or_default();
                line.split_whitespace().for_each(|word| *words.entry(word).or_default() += 1);
            }
        }
    }
    let page: Vec<Value> = sections
        .iter()
        .map(|(heading, words)| {
            let mut words: Vec<_> = words.iter().collect();
            words.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
            json!({ "heading": heading, "words": words.iter().take(1 + most).map(|(w, _)| w).collect::<Vec<_>>() })
        })
        .collect();
    Value::from(page).to_string().into_bytes()
}
