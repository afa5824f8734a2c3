//! Numbers of class tables: what they may be, and exact scaling of units.

/// What a number may be.
#[derive(Clone, Copy)]
pub(super) enum Accept {
    NotNegative,
    Positive,
    /// Not negative, or `inf`.
    Rate,
}

impl Accept {
    pub fn holds(self, x: f64) -> bool {
        match self {
            Self::NotNegative => (0.0..=1e30).contains(&x),
            Self::Positive => x > 0.0 && x <= 1e30,
            Self::Rate => (0.0..=1e30).contains(&x) || x == f64::INFINITY,
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::NotNegative => "a number from 0 to 1e30",
            Self::Positive => "a number above 0 and at most 1e30",
            Self::Rate => "a number from 0 to 1e30, or inf for no limit",
        }
    }
}

/// `text` times `10^shift`, rounded once.
pub(super) fn scaled(text: &str, shift: i32) -> Option<f64> {
    if shift == 0 {
        return text.parse().ok();
    }
    let (digits, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], text[at + 1..].parse::<i32>().ok()?),
        None => (text, 0),
    };
    if !digits.ends_with(|c: char| c.is_ascii_digit() || c == '.') {
        // inf and nan have no exponent.
        return text.parse().ok();
    }
    format!("{digits}e{}", exponent.checked_add(shift)?).parse().ok()
}
