//! The trigamma function and its inverse, for the spread of logarithms of variances. (The digamma function is `statrs`'s.)
//!
//! The logarithm of a chi-square variable with d degrees of freedom has the mean `digamma(d/2) + ln 2` and the variance
//! `trigamma(d/2)` (Abramowitz and Stegun 1964, §6.4 and §26.4).

/// Arguments are raised to this, where the asymptotic series is exact to 1e-14.
const LARGE: f64 = 15.0;

/// Second derivative of the logarithm of the gamma function, for `x` > 0; NaN otherwise.
///
/// ```text
/// trigamma(x) = 1/x^2 + trigamma(x + 1)
/// trigamma(x) ~ 1/x + 1/2x^2 + 1/6x^3 - 1/30x^5 + 1/42x^7 - 1/30x^9 + 5/66x^11
/// ```
/// Abramowitz and Stegun 1964, 6.4.6 and 6.4.12.
#[must_use]
pub fn trigamma(x: f64) -> f64 {
    if x.is_nan() || x <= 0.0 {
        return f64::NAN;
    }
    let (mut z, mut sum) = (x, 0.0);
    while z < LARGE {
        sum += 1.0 / (z * z);
        z += 1.0;
    }
    let r = 1.0 / (z * z);
    let series = 1.0 / 6.0 - r * (1.0 / 30.0 - r * (1.0 / 42.0 - r * (1.0 / 30.0 - r * 5.0 / 66.0)));
    sum + 1.0 / z + r * (0.5 + series / z)
}

/// Third derivative, negative, for `x` > 0 (Abramowitz and Stegun 1964, 6.4.6 and 6.4.13).
fn tetragamma(x: f64) -> f64 {
    let (mut z, mut sum) = (x, 0.0);
    while z < LARGE {
        sum -= 2.0 / (z * z * z);
        z += 1.0;
    }
    let r = 1.0 / (z * z);
    let series = 0.5 - r * (1.0 / 6.0 - r * (1.0 / 6.0 - r * (0.3 - r * 5.0 / 6.0)));
    sum - r * (1.0 + 1.0 / z + r * series)
}

/// The `x` > 0 whose trigamma is `y`, to 1e-8 of it; infinite for `y` = 0, NaN below.
///
/// Newton's method on 1 / trigamma, which is convex and nearly linear, from 1/2 + 1/y: it converges monotonously (Smyth 2004, appendix).
#[must_use]
pub fn trigamma_inverse(y: f64) -> f64 {
    /// Ends at which the first term of a series is exact to 1e-7.
    const ENDS: (f64, f64) = (1e-6, 1e7);
    /// Far more than it takes.
    const MOST_STEPS: u32 = 50;
    if y.is_nan() || y < 0.0 {
        return f64::NAN;
    }
    if y <= ENDS.0 {
        return 1.0 / y;
    }
    if y >= ENDS.1 {
        return 1.0 / y.sqrt();
    }
    let mut x = 0.5 + 1.0 / y;
    for _ in 0..MOST_STEPS {
        let at = trigamma(x);
        let step = at * (1.0 - at / y) / tetragamma(x);
        x += step;
        if step.abs() < 1e-10 * x {
            break;
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use statrs::function::gamma::digamma;
    use std::f64::consts::PI;

    #[test]
    fn known_values() {
        let euler = 0.577_215_664_901_532_9;
        assert!((digamma(1.0) + euler).abs() < 1e-12, "{}", digamma(1.0));
        assert!((digamma(0.5) + euler + 4.0_f64.ln()).abs() < 1e-12, "{}", digamma(0.5));
        for (x, y) in [
            (1.0, PI * PI / 6.0),
            (0.5, PI * PI / 2.0),
            (2.0, PI * PI / 6.0 - 1.0),
            (1.5, PI * PI / 2.0 - 4.0),
            (10.0, 0.105_166_335_681_685_75),
            (100.0, 0.010_050_166_663_333_571),
        ] {
            assert!((trigamma(x) / y - 1.0).abs() < 1e-13, "trigamma({x}) = {}", trigamma(x));
        }
        // -2 zeta(3).
        assert!((tetragamma(1.0) + 2.404_113_806_319_188_6).abs() < 1e-12, "{}", tetragamma(1.0));
        assert!(trigamma(0.0).is_nan() && trigamma(-1.0).is_nan());
    }

    #[test]
    fn the_inverse_is_one_over_decades() {
        for tenth in -90..=90 {
            let x = 10f64.powf(f64::from(tenth) / 10.0);
            let back = trigamma_inverse(trigamma(x));
            assert!((back / x - 1.0).abs() < 1e-6, "{x}: {back}");
        }
        assert!(trigamma_inverse(0.0).is_infinite() && trigamma_inverse(-1.0).is_nan());
    }
}
