//! The words that a class takes, and what they cost it.

use crate::prober::word_list;
use profiler_core::cost::Price;
use profiler_core::run::view::ClassPrices;

/// The words that a class takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassWords {
    /// The kernel's lists without what is lost at the site.
    pub(super) begin: u32,
    pub(super) end: u32,
    /// What the hits pay, ns.
    pub(super) begin_ns: f64,
    pub(super) end_ns: f64,
}

impl ClassWords {
    /// Lists for the kernel. `lost`: argument registers that do not hold what the caller passed.
    pub fn lists(self, lost: u8) -> (u32, u32) {
        let with = |list: u32| if list == 0 { 0 } else { list | word_list(0, 1, lost) & !0xffff };
        (with(self.begin), with(self.end))
    }

    /// Prices with those of the words.
    pub fn priced(self, prices: ClassPrices) -> ClassPrices {
        // Without an end that is seen there are no words at it.
        let end_ns = if prices.exit.ns > 0.0 { self.end_ns } else { 0.0 };
        ClassPrices {
            hit: prices.hit.plus(Price::fixed(self.begin_ns)),
            exit: prices.exit.plus(Price::fixed(end_ns)),
            ..prices
        }
    }

    /// The list that begins with that word costs so much from now on: the prices with that.
    pub fn repriced(&mut self, first: u32, price_ns: f64, mut prices: ClassPrices) -> ClassPrices {
        let is_it = |list: u32| list != 0 && list & 0xff == first;
        if is_it(self.begin) {
            prices.hit = moved(prices.hit, price_ns - self.begin_ns);
            self.begin_ns = price_ns;
        }
        if is_it(self.end) && prices.exit.ns > 0.0 {
            prices.exit = moved(prices.exit, price_ns - self.end_ns);
            self.end_ns = price_ns;
        }
        prices
    }
}

/// A price that has grown by so much, or shrunk.
fn moved(price: Price, by_ns: f64) -> Price {
    let Price { ns, min_ns, max_ns, n } = price;
    Price {
        ns: (ns + by_ns).max(0.0),
        min_ns: (min_ns + by_ns).max(0.0),
        max_ns: (max_ns + by_ns).max(0.0),
        n,
    }
}
