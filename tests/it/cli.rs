//! The built `tinker` binary.

use std::process::Command;

#[test]
fn version_prints_name_and_version() {
    let out = Command::new(env!("CARGO_BIN_EXE_tinker"))
        .arg("version")
        .output()
        .expect("the binary was built");
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        format!("tinker {}\n", env!("CARGO_PKG_VERSION"))
    );
}
