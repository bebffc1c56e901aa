//! Virtual environments with the official Python SDK, prepared once under `target/`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter of an environment that has `tinker` of that version, and `numpy`.
///
/// Environments are kept from run to run, and a lock on a file lets parallel tests prepare each
/// of them once. `None` means that there is no python3 with pip, or that nothing could be
/// installed; the reason is printed. Under `CI=true` that is a failure instead.
pub(crate) fn interpreter(version: &str) -> Option<PathBuf> {
    match prepare(version) {
        Ok(python) => Some(python),
        Err(reason) if std::env::var("CI").is_ok_and(|value| value == "true") => {
            panic!("the Python SDK {version} is needed under CI: {reason}")
        }
        Err(reason) => {
            eprintln!("skipped: no Python SDK {version} to compare with: {reason}");
            None
        }
    }
}

fn prepare(version: &str) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python");
    let home = root.join(format!("tinker-{version}"));
    let python = if cfg!(windows) {
        home.join("Scripts/python.exe")
    } else {
        home.join("bin/python")
    };
    let ready = home.join("ready");
    fs::create_dir_all(&root).map_err(|error| error.to_string())?;
    let lock = File::create(root.join(format!("tinker-{version}.lock")))
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| error.to_string())?;
    if !ready.exists() {
        run(Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&home))?;
        let package = format!("tinker=={version}");
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", &package, "numpy"]))?;
        fs::write(&ready, "").map_err(|error| error.to_string())?;
    }
    drop(lock);
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}: {}", output.status, text.trim()))
}
