//! What classes take, and what it costs them.

use super::*;
use crate::prober::word_list;
use profiler_core::cost::{Price, Rests};
use profiler_core::run::view::ClassPrices;

#[test]
fn lists_carry_what_is_lost_at_the_site() {
    let words = ClassWords { begin: word_list(3, 2, 0), ..ClassWords::default() };
    assert_eq!(words.lists(0b100), (word_list(3, 2, 0b100), 0));
    assert_eq!(words.lists(0), (word_list(3, 2, 0), 0));
}

#[test]
fn a_list_that_is_known_better_changes_the_price_of_its_own_hits() {
    let prices = ClassPrices {
        hit: Price::fixed(1_000.0),
        exit: Price::fixed(500.0),
        cold: Price::fixed(0.0),
        stamps: Price::fixed(10.0),
        rests: Rests::default(),
    };
    let mut words =
        ClassWords { begin: word_list(0, 2, 0), end: word_list(2, 1, 0), begin_ns: 300.0, end_ns: 200.0 };
    let of = |prices: ClassPrices| (prices.hit.ns, prices.exit.ns);
    let all = words.priced(prices);
    assert_eq!(of(all), (1_300.0, 700.0));
    let all = words.repriced(0, 450.0, all);
    assert_eq!(of(all), (1_450.0, 700.0));
    let all = words.repriced(2, 150.0, all);
    assert_eq!(of(all), (1_450.0, 650.0));
    assert_eq!(of(words.repriced(7, 1.0, all)), (1_450.0, 650.0));
    // No end is seen: nothing is taken there.
    let unseen = ClassPrices { exit: Price::fixed(0.0), ..prices };
    assert_eq!(of(words.priced(unseen)), (1_450.0, 0.0));
}
