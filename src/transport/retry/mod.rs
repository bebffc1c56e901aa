//! What to make of an outcome: pure functions from values to a verdict. Time and chance are
//! parameters; the loops that sleep live in the runtime.
//!
//! Every status and every fault is read in one place, as a [`Meaning`]; whoever loops matches
//! meanings.

mod answer;
mod backoff;
mod billing;
mod meaning;

use std::time::{Duration, SystemTime};

use super::fault::Fault;
use super::request::Response;
use crate::error::Error;

pub(crate) use self::answer::{deprecation, error_from_response, server_delay};
pub(crate) use self::backoff::Backoff;
pub(crate) use self::billing::{Billing, BillingWindow};
pub(crate) use crate::error::Meaning;

/// The longest wait a server can ask of a loop, as in the reference; asked for more, a loop waits as
/// long as it would have anyway.
const MAX_SERVER_DELAY: Duration = Duration::from_secs(60);

/// The wait a server asks for, if a loop is to obey it.
pub(crate) fn wish(error: &Error) -> Option<Duration> {
    error.retry_after().filter(|wait| *wait <= MAX_SERVER_DELAY)
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It succeeded.
    Done,
    /// Wait this long, then try again.
    Retry(Duration),
    /// Give up with what there is.
    Fail,
}

/// The HTTP layer's rule for one attempt. `tries` counts the attempts before this one; `chance`
/// is between 0 and 1 and shortens the wait by up to a quarter.
pub(crate) fn http_verdict(
    outcome: &Result<Response, Fault>,
    tries: u32,
    max_retries: u32,
    now: SystemTime,
    chance: f64,
) -> Verdict {
    let meaning = Meaning::of(outcome);
    if meaning == Meaning::Success {
        return Verdict::Done;
    }
    // The server's word goes before its status.
    let word = match outcome {
        Ok(response) => match response.header("x-should-retry") {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => None,
        },
        Err(_) => None,
    };
    if !word.unwrap_or(meaning.is_passing()) || tries >= max_retries {
        return Verdict::Fail;
    }
    let wish = match outcome {
        Ok(response) => server_delay(&response.head, now).filter(|wait| *wait <= MAX_SERVER_DELAY),
        Err(_) => None,
    };
    Verdict::Retry(wish.unwrap_or_else(|| Backoff::HTTP.delay(tries, chance)))
}

/// The outer layer's rule: go on until `limit`. `tries` counts its earlier waits, `elapsed` is
/// the time since the call began.
pub(crate) fn outer_verdict(
    meaning: Meaning,
    tries: u32,
    elapsed: Duration,
    limit: Duration,
    chance: f64,
) -> Verdict {
    if !meaning.is_passing() || elapsed >= limit {
        return Verdict::Fail;
    }
    Verdict::Retry(Backoff::OUTAGE.delay(tries, chance).min(limit - elapsed))
}

#[cfg(test)]
mod tests;
