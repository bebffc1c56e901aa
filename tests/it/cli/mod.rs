//! The built `tinker` binary, run as a user runs it.

mod bad_input;
mod data;
mod drop_in;
mod golden;
#[cfg(unix)]
mod proxy;
mod push;
mod sampling;
#[cfg(unix)]
mod terminal;
mod training;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A place to run the command in, with a home folder of its own and nothing else of the
/// environment.
pub(crate) struct Desk {
    pub(crate) folder: TempDir,
    env: Vec<(String, String)>,
}

/// How a command ended and what it said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) exit: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Desk {
    /// A desk whose commands talk to this server.
    pub(crate) fn at(url: &str) -> Self {
        Self::bare()
            .with("TINKER_BASE_URL", url)
            .with("TINKER_API_KEY", "tml-test")
    }

    /// A desk without server and key.
    pub(crate) fn bare() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        Self {
            folder,
            env: Vec::new(),
        }
        .with("HOME", home.to_str().unwrap())
        .with("PATH", &path)
        .with("TINKER_TELEMETRY", "0")
        .with("HF_HUB_OFFLINE", "1")
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another folder, with the same environment.
    pub(crate) fn again(&self) -> Self {
        let mut desk = Self::bare();
        let home = desk.env.clone();
        desk.env = self.env.clone();
        let home = home.into_iter().find(|(name, _)| name == "HOME");
        home.into_iter()
            .fold(desk, |desk, (name, value)| desk.with(&name, &value))
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The command, ready to run in the desk's folder.
    pub(crate) fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tinker"));
        command
            .args(args)
            .env_clear()
            .envs(self.env.iter().cloned())
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    /// The command as the arguments of a shell's script.
    #[cfg(unix)]
    pub(crate) fn shell(&self, script: &str, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "sh", env!("CARGO_BIN_EXE_tinker")])
            .args(args)
            .env_clear()
            .envs(self.env.iter().cloned())
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[impl AsRef<OsStr>]) -> Said {
        self.command(args)
            .output()
            .expect("the binary was built")
            .into()
    }

    /// The same with something on standard input.
    pub(crate) fn run_with(&self, args: &[impl AsRef<OsStr>], input: &str) -> Said {
        use std::io::Write;

        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built");
        // A command that does not read it ends before it is written.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap().into()
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            exit: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Said {
    /// What it printed, if it ended well.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.exit, Some(0), "{self:?}");
        self.stdout
    }

    /// The JSON it printed, if it ended well.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// What it complained of, if it ended like this.
    #[track_caller]
    pub(crate) fn failed(self, exit: i32) -> String {
        assert_eq!(self.exit, Some(exit), "{self:?}");
        self.stderr
    }
}

#[test]
fn version_prints_name_and_version() {
    let expected = format!("tinker {}\n", env!("CARGO_PKG_VERSION"));
    for word in ["version", "--version", "-V"] {
        assert_eq!(Desk::bare().run(&[word]).ok(), expected);
    }
}
