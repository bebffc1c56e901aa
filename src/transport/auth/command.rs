//! The credential command: a child process with a deadline.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::config::Secret;
use crate::error::{Context, Error, Result};

/// Runs the command through the shell and takes what it prints, trimmed.
///
/// This is the one place of the transport that waits by a clock: nothing else tells a child
/// process that takes its time from one that hangs. It costs no thread.
///
/// # Errors
///
/// [`Error::Credentials`] when the command fails, prints nothing or takes longer than `deadline`,
/// and [`Error::Closed`] when the client is `closed` meanwhile; in both cases it is killed with
/// everything it started.
pub(super) fn run(
    command: &Secret,
    deadline: Duration,
    closed: &dyn Fn() -> bool,
) -> Result<Secret> {
    let end = End {
        time: Instant::now() + deadline,
        closed,
    };
    let (mut child, output) = start(command).map_err(|error| {
        Error::Credentials(Context::caused(
            "the shell for TINKER_CREDENTIAL_CMD could not be started",
            error,
        ))
    })?;
    let outcome = collect(&mut child, output, &end);
    if outcome.is_err() {
        kill(&mut child);
    }
    let text = outcome.map_err(|error| {
        if closed() {
            return Error::Closed(Context::new("while TINKER_CREDENTIAL_CMD ran"));
        }
        if error.kind() == io::ErrorKind::TimedOut {
            let seconds = deadline.as_secs_f64();
            return problem(&format!(
                "did not finish within {seconds} s and was stopped: it must not ask for anything"
            ));
        }
        let message = "the output of TINKER_CREDENTIAL_CMD could not be read";
        Error::Credentials(Context::caused(message, error))
    })?;
    match text.trim() {
        "" => Err(problem("printed no credential: run it by hand and see why")),
        text => Ok(Secret::from(text)),
    }
}

fn problem(what: &str) -> Error {
    Error::Credentials(Context::new(format!("TINKER_CREDENTIAL_CMD {what}")))
}

/// A socket instead of a pipe, because reading from one can have a time limit.
#[cfg(unix)]
fn start(command: &Secret) -> io::Result<(Child, std::os::unix::net::UnixStream)> {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new("/bin/sh")
        .arg("-c")
        .arg(command.expose())
        .stdin(Stdio::null())
        .stdout(OwnedFd::from(theirs))
        .stderr(Stdio::null())
        // Its own group, so that what the shell started can be ended with it.
        .process_group(0)
        .spawn()?;
    Ok((child, ours))
}

#[cfg(unix)]
fn collect(
    child: &mut Child,
    mut output: std::os::unix::net::UnixStream,
    end: &End<'_>,
) -> io::Result<String> {
    use io::ErrorKind::{Interrupted, WouldBlock};
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        output.set_read_timeout(Some(end.remaining()?.min(LOOK)))?;
        match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), Interrupted | WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    wait(child, end)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(not(unix))]
fn start(command: &Secret) -> io::Result<(Child, io::PipeReader)> {
    let (ours, theirs) = io::pipe()?;
    let child = Command::new("cmd")
        .arg("/C")
        .arg(command.expose())
        .stdin(Stdio::null())
        .stdout(theirs)
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, ours))
}

/// A credential fits into the pipe's buffer, so it can be read after the end.
#[cfg(not(unix))]
fn collect(child: &mut Child, mut output: io::PipeReader, end: &End<'_>) -> io::Result<String> {
    wait(child, end)?;
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn wait(child: &mut Child, end: &End<'_>) -> io::Result<()> {
    // As in the reference, the exit status does not matter, only what was printed.
    while child.try_wait()?.is_none() {
        thread::sleep(end.remaining()?.min(Duration::from_millis(5)));
    }
    Ok(())
}

/// How often a client that closes is noticed.
#[cfg(unix)]
const LOOK: Duration = Duration::from_millis(50);

/// When to give up.
struct End<'a> {
    time: Instant,
    closed: &'a dyn Fn() -> bool,
}

impl End<'_> {
    fn remaining(&self) -> io::Result<Duration> {
        let left = self.time.saturating_duration_since(Instant::now());
        if left.is_zero() || (self.closed)() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}

/// Ends the shell and, where groups exist, what it started; the child is reaped.
fn kill(child: &mut Child) {
    #[cfg(unix)]
    {
        let group = format!("kill -KILL -{}", child.id());
        let _ = Command::new("/bin/sh")
            .args(["-c", &group])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
    let _ = child.kill();
    let _ = child.wait();
}
