//! What is written as words, and what is not.

use super::*;

fn expression(text: &str) -> Result<WordExpression, String> {
    text.parse()
}

fn integer(base: WordBase, dereferences: &[i32], of_type: &str) -> WordExpression {
    let kind = WordKind::of_type(of_type).unwrap();
    WordExpression { base, dereferences: dereferences.to_vec(), behind: 0, kind }
}

#[test]
fn words_stand_behind_the_place_that_they_are_taken_at() {
    let spec: WordsSpec = "parse:length=strlen(arg0), kind=arg1+8->16:u8".parse().unwrap();
    assert_eq!((spec.place.as_str(), spec.at_end, spec.words.len()), ("parse", false, 2));
    assert_eq!(spec.words[1].name, "kind");
    assert_eq!(spec.words[1].expression, integer(WordBase::Argument(1), &[24], "u8"));
    let place = |text: &str| {
        let spec: WordsSpec = text.parse().unwrap();
        (spec.place, spec.at_end)
    };
    assert_eq!(place("libc.so.6:malloc@end:p=result:ptr"), ("libc.so.6:malloc".to_owned(), true));
    assert_eq!(place("db::put:n=arg1:int"), ("db::put".to_owned(), false));
    assert_eq!(place("db::put@begin:n=arg1"), ("db::put".to_owned(), false));
    assert_eq!(place("db::operator==:n=arg1"), ("db::operator==".to_owned(), false));
    assert_eq!(place("q<int, 3>::f:n=arg1"), ("q<int, 3>::f".to_owned(), false));
    assert_eq!(place("memcpy@GLIBC_2.14:n=arg2"), ("memcpy@GLIBC_2.14".to_owned(), false));
}

#[test]
fn expressions_are_chains_of_offsets_and_dereferences() {
    let argument = WordBase::Argument(0);
    assert_eq!(expression("arg0"), Ok(integer(argument.clone(), &[], "long")));
    assert_eq!(expression("arg0:u16"), Ok(integer(argument.clone(), &[], "u16")));
    assert_eq!(expression("arg0->8->0x10->-4:i32"), Ok(integer(argument.clone(), &[8, 16, -4], "i32")));
    assert_eq!(expression("arg0 + 8 - 2 -> 4"), Ok(integer(argument.clone(), &[10], "long")));
    assert_eq!(expression("arg0->8+4->2"), Ok(integer(argument.clone(), &[8, 6], "long")));
    let address = WordBase::Address(0xffff_ffff_ffff_fff0);
    assert_eq!(expression("0xfffffffffffffff0->0:int"), Ok(integer(address, &[0], "int")));
    let variable = WordBase::Variable("db::state".to_owned());
    assert_eq!(expression("&db::state->4:u8"), Ok(integer(variable.clone(), &[4], "u8")));
    assert_eq!(expression("&db::state->4"), Ok(integer(variable, &[4], "long")));
    assert_eq!(expression("conn->8:ptr"), Ok(integer(WordBase::Object("conn".to_owned()), &[8], "ptr")));
    let length = |dereferences: &[i32], behind| {
        let dereferences = dereferences.to_vec();
        Ok(WordExpression { base: argument.clone(), dereferences, behind, kind: WordKind::Length })
    };
    assert_eq!(expression("strlen(arg0)"), length(&[], 0));
    assert_eq!(expression("strlen(arg0->16+3)"), length(&[16], 3));
    assert_eq!(expression("strlen(arg0-3)"), length(&[], -3));
}

#[test]
fn what_is_wrong_is_said_with_a_form_that_is_right() {
    let cases = [
        ("parse", "write WHERE:NAME=EXPRESSION"),
        ("parse:n", "write WHERE:NAME=EXPRESSION"),
        (":n=arg0", "nothing stands before the colon"),
        ("f:n=", "'' is nothing that a word begins with"),
        ("f:n=arg6", "arg0 to arg5"),
        ("f:n=arg0:float", "there is no type 'float'"),
        ("f:n=arg0->0:str", "write strlen(arg0)"),
        ("f:n=arg0->x", "'x' behind '->' is no number of bytes"),
        ("f:n=arg0->", "'' behind '->' is no number of bytes"),
        ("f:n=arg0->1->2->3->4->5", "more than 4 dereferences"),
        ("f:n=arg0+8", "write '->8'"),
        ("f:n=0x1000", "write '0x1000->0'"),
        ("f:n=&state", "write '&state->0'"),
        ("f:n=&->0", "'&' without a name"),
        ("f:n=0xzz->0", "is no address"),
        ("f:n=arg0->4294967295", "within 2 GiB"),
        ("f:n=strlen(arg0", "has no ')'"),
        ("f:n=strlen(arg0):int", "which has no type"),
        ("f:n=result", "write 'f@end:n=result'"),
        ("f:n=arg0,n=arg1", "two words are called 'n'"),
        ("f:n=arg0,", "write NAME=EXPRESSION"),
        ("f:n=arg0,2x=arg1", "'2x' is no name of a word"),
        ("f:n=arg0,arg7=arg1", "cannot be called 'arg7'"),
        ("f:n=arg0->+8", "is no number of bytes"),
    ];
    for (text, part) in cases {
        let error = text.parse::<WordsSpec>().unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// Numbers that look random and are the same each time (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn random_expression(random: &mut Random) -> WordExpression {
    let base = match random.below(5) {
        0 => WordBase::Argument(random.below(6) as u8),
        1 => WordBase::Result,
        2 => WordBase::Address(random.below(u64::MAX)),
        3 => WordBase::Variable(["state", "db::state", "a.b$c"][random.below(3) as usize].to_owned()),
        _ => WordBase::Object(["conn", "_x1"][random.below(2) as usize].to_owned()),
    };
    let mut offset = || (random.below(1 << 32) as i64 - (1 << 31)) as i32;
    let four = [offset(), offset(), offset(), offset()];
    let behind = offset();
    let is_length = random.below(3) == 0;
    let least = u64::from(!is_length);
    let dereferences = four[..(least + random.below(5 - least)) as usize].to_vec();
    let kind = if is_length {
        WordKind::Length
    } else {
        WordKind::of_type(TYPES[random.below(11) as usize].0).unwrap()
    };
    WordExpression { base, dereferences, behind: if is_length { behind } else { 0 }, kind }
}

#[test]
fn every_expression_is_read_back_from_its_text() {
    let mut random = Random(1);
    for _ in 0..20_000 {
        let one = random_expression(&mut random);
        let text = one.to_string();
        assert_eq!(expression(&text), Ok(one), "{text}");
    }
}

/// Whatever is typed is read or refused in words, and what is read means the same when it is written again.
#[test]
fn no_text_breaks_the_reader() {
    let pieces = [
        "arg0",
        "arg9",
        "result",
        "strlen(",
        ")",
        "->",
        "+",
        "-",
        "0x",
        "8",
        "99999999999",
        "&x",
        ":",
        "::",
        "u8",
        "int",
        "=",
        ",",
        "@end",
        "f",
        " ",
        "é",
        "->8",
        "name",
    ];
    let mut random = Random(2);
    let mut read = 0;
    for _ in 0..100_000 {
        let n = random.below(9) + 1;
        let tail: String = (0..n).map(|_| pieces[random.below(pieces.len() as u64) as usize]).collect();
        match format!("f:w={tail}").parse::<WordsSpec>() {
            Ok(spec) => {
                read += 1;
                for word in &spec.words {
                    let again = word.expression.to_string();
                    assert_eq!(expression(&again).as_ref(), Ok(&word.expression), "{tail} as {again}");
                }
            }
            Err(why) => assert!(!why.is_empty()),
        }
    }
    assert!(read > 1_000, "{read}");
}
