//! Random numbers of a simulated run: small, fast, and the same for the same seed on every machine.

/// A generator (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// A generator that begins with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform between both.
    pub fn between(&mut self, (low, high): (f64, f64)) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Log-uniform between both, which are positive.
    pub fn decades(&mut self, (low, high): (f64, f64)) -> f64 {
        self.between((low.ln(), high.ln())).exp()
    }

    /// True once in `n` times; 0: never.
    pub fn one_in(&mut self, n: u32) -> bool {
        n > 0 && self.bits().is_multiple_of(u64::from(n))
    }

    /// One of so many.
    pub fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Normal with mean 0 and deviation 1, roughly: the sum of four uniform numbers.
    pub fn normal(&mut self) -> f64 {
        let sum: f64 = (0..4).map(|_| self.unit()).sum();
        (sum - 2.0) * 3f64.sqrt()
    }

    /// Events of a Poisson process of which `expected` are expected. `credit`: what is left until the next event; it begins with 0.
    pub fn events(&mut self, expected: f64, credit: &mut f64) -> u64 {
        /// Above so many a normal number does.
        const MANY: f64 = 40.0;
        if expected > MANY {
            return (expected + expected.sqrt() * self.normal()).max(0.0).round() as u64;
        }
        *credit -= expected;
        let mut events = 0;
        while *credit < 0.0 {
            *credit += self.exponential();
            events += 1;
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_as_many_as_are_expected() {
        let mut chance = Chance::new(1);
        for expected in [0.01, 3.0, 39.0, 1000.0] {
            let mut credit = chance.exponential();
            let sum: u64 = (0..200_000).map(|_| chance.events(expected, &mut credit)).sum();
            let mean = sum as f64 / 200_000.0;
            assert!((mean / expected - 1.0).abs() < 0.1, "{mean} of {expected}");
        }
    }
}
