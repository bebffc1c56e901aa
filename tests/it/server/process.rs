//! The server as a process of its own: to be killed, stopped and measured.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};

pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
}

impl Process {
    /// Starts `tinker serve` on any port, with these arguments; it serves when this returns.
    #[track_caller]
    pub(crate) fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tinker"));
        command
            .args(["serve", "--port", "0", "--threads", "1"])
            .args(arguments);
        Self::spawn(command)
    }

    /// Starts a command that ends up as `tinker serve`.
    #[track_caller]
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        Self { child, url }
    }

    /// Ends it without warning; gives back what it had to say.
    #[track_caller]
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.end().1
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    #[cfg(unix)]
    #[track_caller]
    pub(crate) fn stop(mut self) {
        let told = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        assert!(told.unwrap().success());
        let (status, said) = self.end();
        assert!(status.success(), "a clean end: {said}");
    }

    /// Waits for the end of one that was told to end.
    #[track_caller]
    fn end(&mut self) -> (ExitStatus, String) {
        let mut said = Vec::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_end(&mut said).unwrap();
        let said = String::from_utf8_lossy(&said).into_owned();
        (self.child.wait().unwrap(), said)
    }

    /// Its number in the system.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The processor time it has used, in the system's ticks.
    #[cfg(target_os = "linux")]
    pub(crate) fn ticks(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // After the name, which may have spaces: the 12th and 13th field.
        let fields = text.rsplit_once(')').unwrap().1.split_whitespace();
        let times = fields
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u64>().unwrap());
        times.sum()
    }

    /// The memory it has, in KiB, where the system says.
    pub(crate) fn memory(&self) -> Option<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
