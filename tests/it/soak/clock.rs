//! A wall clock that jumps, for the processes of a bad day.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::program::Usage;

/// A library that makes the clock of whatever loads it jump, where one can be built.
pub(super) struct Clock(Option<PathBuf>);

impl Clock {
    pub(super) fn build(folder: &Path) -> Self {
        let known = cfg!(all(
            target_os = "linux",
            target_env = "gnu",
            any(target_arch = "x86_64", target_arch = "aarch64")
        ));
        if !known {
            super::say("skipped: clocks that jump are for Linux only");
            return Self(None);
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clock/clock.rs");
        let library = folder.join("clock.so");
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let built = Command::new(compiler)
            .args(["--edition", "2024", "--crate-type", "cdylib", "-o"])
            .args([&library, &source])
            .status();
        match built {
            Ok(status) => assert!(status.success(), "the clock cannot be built"),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "no rustc: {error}");
                super::say(&format!("skipped: clocks that jump want rustc: {error}"));
                return Self(None);
            }
        }
        Self(Some(library))
    }

    /// Gives a process this clock.
    pub(super) fn set(&self, command: &mut Command) {
        if let Some(library) = &self.0 {
            command.env("LD_PRELOAD", library);
        }
    }

    /// What a process said of the time was not so.
    #[track_caller]
    pub(super) fn check(&self, said: &[Usage]) {
        if self.0.is_some() {
            let wrong = said.iter().any(|usage| usage.clock_off > 60);
            assert!(wrong, "the clock did not jump: {said:?}");
        }
    }
}
