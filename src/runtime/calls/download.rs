//! Downloads to disk: attempts, resumption, and files that are whole or not there.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::link::Link;
use crate::error::{Context, Error, Result};
use crate::transport::retry::{Verdict, error_from_response, http_verdict};
use crate::transport::{Auth, Download, Fault, Head, Request, Response};

/// How often a broken download is taken up again.
const RETRIES: u32 = 10;
/// An archive that is still being made: how long to wait, and how often.
const ARCHIVE_PAUSE: Duration = Duration::from_secs(30);
const ARCHIVE_TRIES: u32 = 6;

/// Fetches a signed URL into a file. What a broken connection left is kept and the rest asked
/// for; the file has its name only once it is whole.
pub(crate) fn to_file(link: &Link, url: &str, file: &Path) -> Result<()> {
    let mut part = Part::create(file)?;
    let mut tries = 0;
    loop {
        let from = part.written;
        let outcome = link.transport().download(url, from, &mut part);
        // Asked for the rest, some servers send the whole again.
        let whole_again = matches!(&outcome, Ok(done) if from > 0 && done.head.status == 200);
        if whole_again {
            part.restart()?;
            continue;
        }
        match settle(outcome, "download", &mut tries, RETRIES) {
            Step::Done(_) => return part.finish(),
            Step::Again(delay, error) => pause(link, delay, &error)?,
            Step::Fail(error) => return Err(error),
        }
    }
}

/// Fetches what an endpoint answers, or redirects to, into a file. Archives are made on demand:
/// a 503 says "not yet".
pub(crate) fn archive(link: &Link, request: Request<'_>, file: &Path) -> Result<Head> {
    let mut part = Part::create(file)?;
    let (mut tries, mut waits) = (0, 1);
    loop {
        part.restart()?;
        let key = link.key()?;
        let mut attempt = request.clone();
        attempt.auth = Auth::Key(&key);
        attempt.retry_count = tries;
        let outcome = link.transport().stream_into(&attempt, &mut part);
        let not_yet = matches!(&outcome, Ok(answer) if answer.head.status == 503);
        match settle(outcome, &request.label, &mut tries, RETRIES) {
            Step::Done(head) => return part.finish().map(|()| head),
            Step::Again(_, error) if not_yet => {
                if waits == ARCHIVE_TRIES {
                    return Err(error);
                }
                waits += 1;
                pause(link, ARCHIVE_PAUSE, &error)?;
            }
            Step::Again(delay, error) => pause(link, delay, &error)?,
            Step::Fail(error) => return Err(error),
        }
    }
}

/// An input/output error as one of ours.
pub(crate) fn cannot(what: &str, file: &Path, error: io::Error) -> Error {
    Error::Internal(Context::caused(
        format!("cannot {what} {}", file.display()),
        error,
    ))
}

enum Step {
    Done(Head),
    Again(Duration, Error),
    Fail(Error),
}

/// What an attempt means by the rules of the HTTP layer.
fn settle(outcome: Result<Download, Fault>, label: &str, tries: &mut u32, retries: u32) -> Step {
    let now = SystemTime::now();
    let outcome = match outcome {
        Ok(done) if done.head.is_success() => return Step::Done(done.head),
        Ok(done) => Ok(Response {
            head: done.head,
            body: done.error_body,
        }),
        Err(fault) => Err(fault),
    };
    let error = match &outcome {
        Ok(response) => error_from_response(response, label, now),
        Err(fault) => fault.to_error(label),
    };
    match http_verdict(&outcome, *tries, retries, now, fastrand::f64()) {
        Verdict::Retry(delay) => {
            *tries += 1;
            Step::Again(delay, error)
        }
        Verdict::Done | Verdict::Fail => Step::Fail(error),
    }
}

fn pause(link: &Link, delay: Duration, cause: &Error) -> Result<()> {
    log::debug!("going on with the download in {delay:?}: {cause}");
    match link.clock().pause(link.stop(), delay) {
        true => Err(Error::Closed(Context::caused(
            "the client was closed during a download",
            cause.clone(),
        ))),
        false => Ok(()),
    }
}

/// A file in the making, beside its final place. Removed again unless finished.
struct Part {
    target: PathBuf,
    path: PathBuf,
    out: Option<BufWriter<File>>,
    written: u64,
}

impl Part {
    fn create(target: &Path) -> Result<Self> {
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(|error| cannot("make", folder, error))?;
        }
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}.{}.part", fastrand::u64(..)));
        let mut part = Self {
            target: target.to_owned(),
            path,
            out: None,
            written: 0,
        };
        part.restart()?;
        Ok(part)
    }

    /// Empties the file.
    fn restart(&mut self) -> Result<()> {
        // Dropped as it is, the buffer would go to the file after all.
        drop(self.out.take().map(BufWriter::into_parts));
        let file = File::create(&self.path).map_err(|error| cannot("write", &self.path, error))?;
        self.out = Some(BufWriter::with_capacity(256 << 10, file));
        self.written = 0;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        let flushed = match self.out.take() {
            Some(out) => out.into_inner().map_err(io::IntoInnerError::into_error),
            None => Err(io::Error::other("the file is not open")),
        };
        flushed
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&self.path, &self.target))
            .map_err(|error| cannot("write", &self.target, error))
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = match &mut self.out {
            Some(out) => out.write(bytes)?,
            None => return Err(io::Error::other("the file is not open")),
        };
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.out.take());
        // After `finish` there is nothing left to remove.
        let _ = fs::remove_file(&self.path);
    }
}
