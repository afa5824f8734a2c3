//! Numbers as plans, their reasons and their errors show them.

/// Three significant digits, with k, M, G.
pub(super) fn number(x: f64) -> String {
    let (scaled, unit) = match x.abs() {
        a if a >= 1e9 => (x / 1e9, "G"),
        a if a >= 1e6 => (x / 1e6, "M"),
        a if a >= 1e4 => (x / 1e3, "k"),
        _ => (x, ""),
    };
    let digits = match scaled.abs() {
        a if a >= 100.0 => 0,
        a if a >= 10.0 => 1,
        a if a >= 1.0 || a == 0.0 => 2,
        a if a >= 1e-3 => 4,
        _ => return format!("{x:.2e}"),
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

pub(super) fn percent(share: f64) -> String {
    format!("{}%", number(share * 100.0))
}

pub(super) fn seconds(s: f64) -> String {
    match s {
        s if !s.is_finite() => "for ever".to_owned(),
        s if s >= 1.0 => format!("{} s", number(s)),
        s if s >= 1e-3 => format!("{} ms", number(s * 1e3)),
        s if s >= 1e-6 => format!("{} us", number(s * 1e6)),
        s => format!("{} ns", number(s * 1e9)),
    }
}
