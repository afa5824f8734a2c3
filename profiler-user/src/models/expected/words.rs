//! Words that are inputs of models of an earlier recording, as a run takes them anew.

use super::super::ModelsError;
use crate::config::{InputsSpec, NamedWord, WordBase, WordsSpec};
use crate::inspect::Pattern;
use crate::prober::word::MAX_OBJECTS;
use crate::recording::Stream;
use profiler_core::recording::WordMeta;
use std::path::Path;

/// The words that these inputs are in an earlier recording, as a run takes them anew, with those from which they go on. What is `given` is taken
/// anyway, and has the place of one of that name that was taken with the same function. Those that go on from a word of an operation are left out.
///
/// # Errors
/// [`ModelsError`].
pub fn words_anew(
    path: &Path,
    inputs: &[InputsSpec],
    given: &[WordsSpec],
) -> Result<Vec<WordsSpec>, ModelsError> {
    let stream = Stream::open(path)?;
    let names = inputs.iter().flat_map(|spec| &spec.inputs).filter_map(|input| input.word.as_deref());
    let mut words: Vec<WordsSpec> = Vec::new();
    for word in names.flat_map(|name| anew(&stream.meta().words, name, given, MAX_OBJECTS)) {
        if !words.contains(&word) {
            words.push(word);
        }
    }
    Ok(words)
}

/// The words of that name, and before them what they go on from, at most so many times; none where that cannot be had.
fn anew(known: &[WordMeta], name: &str, given: &[WordsSpec], most: u32) -> Vec<WordsSpec> {
    let mut words = Vec::new();
    // There can be only one word from which others go on.
    let is_object = |spec: &WordsSpec| spec.words.iter().any(|word| goes_on_from(word, name));
    let is_object = given.iter().any(is_object) || known.iter().filter_map(anew_spec).any(|s| is_object(&s));
    if is_object && is_given(given, name) || most == 0 {
        return words;
    }
    let own = known.iter().filter(|word| word.name == name && word.operation.is_none());
    for word in own.filter(|word| !is_given_at(given, name, &word.place)) {
        let Some(spec) = anew_spec(word) else { continue };
        if let Some(WordBase::Object(object)) = spec.words.first().map(|word| &word.expression.base) {
            let before = anew(known, object, given, most - 1);
            if before.is_empty() && !is_given(given, object) {
                continue;
            }
            words.extend(before);
        }
        words.push(spec);
    }
    words
}

/// A word of an earlier recording, as a run takes it.
fn anew_spec(word: &WordMeta) -> Option<WordsSpec> {
    let end = if word.at_end { "@end" } else { "" };
    format!("{}{end}:{}={}", word.place, word.name, word.expression).parse().ok()
}

/// A word goes on from the one of that name.
fn goes_on_from(word: &NamedWord, name: &str) -> bool {
    matches!(&word.expression.base, WordBase::Object(object) if object == name)
}

/// A word of that name is taken by one of these with functions that a pattern may name as well: a run takes no two words of one name with one function.
fn is_given_at(given: &[WordsSpec], name: &str, place: &str) -> bool {
    let named = given.iter().filter(|spec| spec.words.iter().any(|word| word.name == name));
    named.into_iter().any(|spec| may_overlap(&spec.place, place))
}

/// Two patterns may name the same function. Of two with wildcards nothing more is known than their modules.
fn may_overlap(a: &str, b: &str) -> bool {
    let (Ok(one), Ok(other)) = (Pattern::parse(a), Pattern::parse(b)) else { return a == b };
    match (one.is_exact(), other.is_exact()) {
        (_, true) => one.matches_symbol(other.literal()),
        (true, false) => other.matches_symbol(one.literal()),
        (false, false) => true,
    }
}

/// A word of that name is taken by one of these.
#[must_use]
pub fn is_given(given: &[WordsSpec], name: &str) -> bool {
    given.iter().flat_map(|spec| &spec.words).any(|word| word.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_anew_with_what_they_go_on_from() {
        let word = |place: &str, name: &str, expression: &str, operation| WordMeta {
            name: name.into(),
            place: place.into(),
            expression: expression.into(),
            operation,
            ..WordMeta::default()
        };
        let known = [
            word("accept", "conn", "arg0->8:ptr", None),
            word("parse", "length", "conn->16:u32", None),
            WordMeta { at_end: true, ..word("db::put", "kept", "strlen(buffer->0+4)", None) },
            word("req", "buffer", "arg1:long", Some(0)),
            // Two that go on from each other.
            word("f", "a", "b->0:long", None),
            word("f", "b", "a->0:long", None),
        ];
        let texts = |name: &str, given: &[&str]| {
            let given: Vec<WordsSpec> = given.iter().map(|text| text.parse().unwrap()).collect();
            anew(&known, name, &given, MAX_OBJECTS).into_iter().map(|spec| spec.text).collect::<Vec<_>>()
        };
        let length = "parse:length=conn->16:u32";
        assert_eq!(texts("length", &[]), ["accept:conn=arg0->8:ptr", length]);
        assert_eq!(texts("length", &["open:conn=arg1"]), [length]);
        assert_eq!(texts("length", &["parse:length=arg1"]), [""; 0]);
        // One of that name with other functions: each has its own.
        assert_eq!(texts("length", &["open:length=arg1"]), ["accept:conn=arg0->8:ptr", length]);
        assert_eq!(texts("length", &["app:p*:length=arg1"]), [""; 0]);
        // It goes on from a word of an operation, which is there or not.
        assert_eq!(texts("kept", &[]), [""; 0]);
        assert_eq!(texts("kept", &["req:buffer=arg1"]), ["db::put@end:kept=strlen(buffer->0+4)"]);
        assert_eq!((texts("a", &[]), texts("nothing", &[])), (vec![], vec![]));
    }
}
