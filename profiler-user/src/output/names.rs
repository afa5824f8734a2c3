//! Names that do not fit their column.

use profiler_core::report::names::path;

/// Parts that are put together again, at most: a name may have thousands.
const MOST: usize = 8;

/// Less of a type's name says nothing.
const ROOM: usize = 6;

/// Cuts a name to `width` characters, in the middle. Its last part stays whole where it fits, then the part before it, then the first one:
/// `core::…::Iterator::for_each`. Of a last part that does not fit, beginning and end are left.
pub(crate) fn shorten(name: &str, width: usize) -> String {
    if length(name) <= width {
        return name.to_owned();
    }
    let parts = path(name);
    let (first, rest) = (parts[0], &parts[1..]);
    // The last `n` parts, behind the first one or not.
    let tail = |n: usize| rest[rest.len() - n..].join("::");
    let behind_first = |n: usize| format!("{first}::…::{}", tail(n));
    // A type in brackets is long: of that as much as there is room for.
    let alone = |n: usize| {
        let tail = format!("…::{}", tail(n));
        let room =
            width.saturating_sub(length(&tail)).min(if first.starts_with('<') { length(first) } else { 0 });
        name.chars().take(if room < ROOM { 0 } else { room }).chain(tail.chars()).collect::<String>()
    };
    let most = rest.len().min(MOST);
    let several = (2..most).rev().map(behind_first).chain((2..=most).rev().map(alone));
    let one = (1..most.min(2)).map(behind_first).chain((1..=most.min(1)).map(alone));
    let last = parts[parts.len() - 1];
    let mut all = several.chain(one).chain([last.to_owned()]);
    all.find(|short| length(short) <= width).unwrap_or_else(|| middle(last, width))
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Beginning and end.
fn middle(name: &str, width: usize) -> String {
    let n = length(name);
    let head = width.saturating_sub(1) / 2;
    let tail = width.saturating_sub(1) - head;
    let mut out: String = name.chars().take(head).collect();
    out.push('…');
    out.extend(name.chars().skip(n - tail));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_stays_whole_then_the_one_before_it() {
        let name = "core::iter::traits::iterator::Iterator::for_each";
        for (width, want) in [
            (48, name),
            (47, "core::…::traits::iterator::Iterator::for_each"),
            (30, "core::…::Iterator::for_each"),
            (26, "…::Iterator::for_each"),
            (20, "core::…::for_each"),
            (11, "…::for_each"),
            (7, "for…ach"),
        ] {
            assert_eq!(shorten(name, width), want, "{width}");
            assert!(length(want) <= width);
        }
        assert_eq!(
            shorten("v8::internal::JsonParser::ParseJsonValue", 34),
            "v8::…::JsonParser::ParseJsonValue"
        );
        let method =
            "<rand::distr::uniform::UniformInt as rand::distr::uniform::UniformSampler>::sample_single";
        assert_eq!(shorten(method, 37), "<rand::distr::uniform…::sample_single");
        assert_eq!(shorten(method, 21), "…::sample_single");
        assert_eq!(shorten("sqlite3VdbeExecuteAndSoOn", 11), "sqlit…dSoOn");
        assert_eq!(shorten("db::fetch_all_the_rows", 21), "…::fetch_all_the_rows");
        assert_eq!(shorten("db::fetch_all_the_rows", 20), "fetch_all_the_rows");
    }
}
