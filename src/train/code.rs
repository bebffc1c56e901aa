//! The state of the program's source, for `code.diff`.

use std::path::Path;
use std::process::Command;

/// The repository the process was started in, its commit and what differs from it; or a line
/// that says there is none.
pub(super) fn state() -> String {
    let folder = std::env::current_dir().unwrap_or_default();
    let program = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    let program = program.to_string_lossy();
    let Some(root) = git(&folder, &["rev-parse", "--show-toplevel"]) else {
        let path = folder.display();
        return format!("### module: {program} (not in a git repository)\nmodule_path: {path}\n");
    };
    let root = root.trim();
    let head = git(Path::new(root), &["rev-parse", "HEAD"]);
    let head = head.as_deref().map_or("UNKNOWN", str::trim);
    let changes = git(Path::new(root), &["diff", "--no-color", "HEAD"]).unwrap_or_default();
    let body = match changes.trim_end() {
        "" => "(no local changes)".to_owned(),
        changes => format!("-- repo-wide (vs HEAD, staged+unstaged) --\n{changes}"),
    };
    format!("### repo: {root} @ {head}\nmodules: {program}\n{body}\n")
}

/// What git answers; nothing if it is not installed or refuses.
fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(args)
        .output()
        .ok()?;
    let success = output.status.success();
    success.then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
