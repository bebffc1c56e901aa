//! One file from a signed URL: attempts, resumption, and a file that is whole or not there.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::link::Link;
use super::part::{Given, Part};
use crate::error::{Context, Error, Meaning, Result};
use crate::transport::retry::{Verdict, error_from_response, http_verdict};
use crate::transport::{Auth, Download, Fault, Head, Request, Response, Rest};

/// How often a broken download is taken up again.
const RETRIES: u32 = 10;
/// An archive that is still being made: how long to wait, and how often.
const ARCHIVE_PAUSE: Duration = Duration::from_secs(30);
const ARCHIVE_TRIES: u32 = 6;

/// Hears how many bytes are there and, if known, how many there will be.
pub(crate) type Hook<'a> = &'a (dyn Fn(u64, Option<u64>) + Sync);

/// Where a file is. A signed URL works for a while only, so it may have to be asked for again.
pub(crate) trait Source: Sync {
    /// A URL that works now. `refused` says that the last one did not.
    fn url(&self, refused: bool) -> Result<String>;
}

/// An address that cannot be renewed.
impl Source for str {
    fn url(&self, _: bool) -> Result<String> {
        Ok(self.to_owned())
    }
}

/// Fetches a signed URL into a file. What a broken connection left is kept and the rest asked
/// for; the file has its name only once it is whole.
pub(crate) fn to_file(link: &Link, url: &str, file: &Path) -> Result<()> {
    fetch(link, url, Part::scratch(file)?, &|_, _| ())
}

/// The same from wherever the source says, into a part that may hold what an earlier process
/// left.
pub(crate) fn fetch<S: Source + ?Sized>(
    link: &Link,
    source: &S,
    mut part: Part,
    hook: Hook<'_>,
) -> Result<()> {
    let (mut tries, mut refused) = (0, false);
    loop {
        let url = source.url(refused)?;
        let known = part.known();
        let rest = Rest {
            from: known.resumable(),
            mark: known.mark.as_deref(),
        };
        let outcome = link.transport().download(&url, rest, &mut part.with(hook));
        if let Ok(done) = &outcome {
            match part.judge(&done.head, known.written) {
                Given::Whole => {
                    let known = part.known();
                    hook(known.written, known.total);
                    return part.finish();
                }
                Given::More => {
                    refused = false;
                    continue;
                }
                Given::Useless => {
                    // What is there belongs to something else: begin again, which is not a
                    // failure of the server but must not go on for ever either.
                    part.restart()?;
                    tries += 1;
                    if tries > RETRIES {
                        return Err(Error::Reply(Context::new(
                            "a download that changes while it is fetched",
                        )));
                    }
                    continue;
                }
                Given::Refused => {}
            }
            // A signature that has run out is renewed once.
            if Meaning::of_status(done.head.status) == Meaning::Forbidden && !refused {
                refused = true;
                continue;
            }
        }
        match settle(outcome, "download", &mut tries, RETRIES) {
            Step::Again(delay, error) => {
                if let Err(closed) = pause(link, delay, &error) {
                    return Err(part.abandon(closed));
                }
            }
            Step::Fail(error) => return Err(part.abandon(error)),
            Step::Done(_) => unreachable!("successes are judged by the part"),
        }
        refused = false;
    }
}

/// Fetches what an endpoint answers, or redirects to, into a file. An answer in JSON is no
/// archive: it is returned, and the file stays as it was. The hosted service makes archives on
/// demand: its 503 here says "not yet", and means no failure.
pub(crate) fn archive(link: &Link, request: Request<'_>, file: &Path) -> Result<Option<Vec<u8>>> {
    let mut part = Part::scratch(file)?;
    let (mut tries, mut waits) = (0, 1);
    loop {
        part.restart()?;
        let key = link.key()?;
        let mut attempt = request.clone();
        attempt.auth = Auth::Key(&key);
        attempt.retry_count = tries;
        let outcome = link
            .transport()
            .stream_into(&attempt, &mut part.with(&|_, _| ()));
        let not_yet = matches!(&outcome, Ok(answer) if answer.head.status == 503);
        match settle(outcome, &request.label, &mut tries, RETRIES) {
            Step::Done(head) if head.content_type() == "application/json" => {
                return part.read().map(Some);
            }
            Step::Done(_) => return part.finish().map(|()| None),
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
