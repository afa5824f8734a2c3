//! Facts about the running kernel that inspection depends on.

/// `uname -r` as (major, minor); (0, 0) when it cannot be read, which is then treated as an old kernel.
#[must_use]
pub fn kernel_version() -> (u32, u32) {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .ok()
        .and_then(|text| parse_version(&text))
        .unwrap_or((0, 0))
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn versions() {
        assert_eq!(parse_version("6.18.44-fc-v657\n"), Some((6, 18)));
        assert_eq!(parse_version("5.15.0+"), Some((5, 15)));
        assert_eq!(parse_version("6.12-rc1"), Some((6, 12)));
        assert_eq!(parse_version("odd"), None);
    }
}
