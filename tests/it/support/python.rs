//! Virtual environments with the official Python SDK, prepared once under `target/`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// The interpreter of an environment that has `tinker` of that version, and `numpy`.
///
/// Environments are kept from run to run, and a lock on a file lets parallel tests prepare each
/// of them once. `None` means that there is no python3 with pip, or that nothing could be
/// installed; the reason is printed. Under `CI=true` that is a failure instead.
pub(crate) fn interpreter(version: &str) -> Option<PathBuf> {
    let package = format!("tinker=={version}");
    environment(&format!("tinker-{version}"), &[&package, "numpy"])
}

/// The interpreter of an environment of that name with these packages, likewise.
pub(crate) fn environment(name: &str, packages: &[&str]) -> Option<PathBuf> {
    environment_of(Path::new("python3"), name, packages)
}

/// The same with a Python of one's choice.
#[allow(clippy::print_stderr, reason = "says why a test was skipped")]
pub(crate) fn environment_of(python: &Path, name: &str, packages: &[&str]) -> Option<PathBuf> {
    match prepare(python, name, packages) {
        Ok(python) => Some(python),
        Err(reason) if is_ci() => {
            panic!("Python with {packages:?} is needed under CI: {reason}")
        }
        Err(reason) => {
            eprintln!("skipped: no Python with {packages:?} to compare with: {reason}");
            None
        }
    }
}

fn prepare(base: &Path, name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python");
    let home = root.join(name);
    let python = if cfg!(windows) {
        home.join("Scripts/python.exe")
    } else {
        home.join("bin/python")
    };
    let ready = home.join("ready");
    fs::create_dir_all(&root).map_err(|error| error.to_string())?;
    let lock = File::create(root.join(format!("{name}.lock")))
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| error.to_string())?;
    if !ready.exists() {
        run(Command::new(base)
            .args(["-m", "venv", "--clear"])
            .arg(&home))?;
        let install = |extra: &[&str]| {
            run(Command::new(&python)
                .args(["-m", "pip", "install", "--quiet"])
                .args(extra)
                .args(packages))
        };
        // The versions known to work; another Python may need others.
        let known = ["--constraint", CONSTRAINTS];
        patiently(|| install(&known).or_else(|_| install(&[])))?;
        fs::write(&ready, "").map_err(|error| error.to_string())?;
    }
    drop(lock);
    Ok(python)
}

const CONSTRAINTS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/python/constraints.txt"
);

pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Does what needs a registry. Under CI, where it must succeed, a registry that is out of order
/// is asked again for some minutes: pip and npm give up at once at some of its answers.
#[allow(clippy::print_stderr, reason = "says why a test takes long")]
pub(crate) fn patiently(fetch: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let pauses: &[u64] = if is_ci() { &[5, 20, 60, 120, 240] } else { &[] };
    for pause in pauses {
        let Err(reason) = fetch() else { return Ok(()) };
        eprintln!("again in {pause} s: {reason}");
        thread::sleep(Duration::from_secs(*pause));
    }
    fetch()
}

pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}: {}", output.status, text.trim()))
}
