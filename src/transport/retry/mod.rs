//! What to make of an outcome: pure functions from values to a verdict. Time and chance are
//! parameters; the loops that sleep live in the runtime.

use std::time::{Duration, Instant, SystemTime};

use jiff::fmt::rfc2822::DateTimeParser;
use serde_json::Value;

use super::fault::Fault;
use super::request::{Head, Response};
use crate::error::{Context, Error, is_retryable_status};

/// The longest wait a server can ask of the HTTP layer; more is ignored.
const MAX_SERVER_DELAY: Duration = Duration::from_secs(60);

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
    let (again, wish) = match outcome {
        Ok(response) if response.is_success() => return Verdict::Done,
        Ok(response) => (
            should_retry(&response.head),
            server_delay(&response.head, now),
        ),
        Err(fault) => (fault.is_retryable(), None),
    };
    if !again || tries >= max_retries {
        return Verdict::Fail;
    }
    Verdict::Retry(wish.unwrap_or_else(|| http_delay(tries, chance)))
}

/// Whether an error status is worth another attempt: the server's word, else the status.
fn should_retry(head: &Head) -> bool {
    match head.header("x-should-retry") {
        Some("true") => true,
        Some("false") => false,
        _ => is_retryable_status(head.status),
    }
}

/// `min(0.5 * 2^tries, 10)` seconds, less up to a quarter.
pub(crate) fn http_delay(tries: u32, chance: f64) -> Duration {
    let whole = f64::min(0.5 * f64::from(2_u32.saturating_pow(tries)), 10.0);
    Duration::from_secs_f64(whole * (1.0 - 0.25 * chance.clamp(0.0, 1.0)))
}

/// How long the server asks to wait, if it says so and means at most a minute.
///
/// `retry-after-ms` hides `retry-after` even when it is out of range, as in the reference; only
/// one that is no number lets the other through.
pub(crate) fn server_delay(head: &Head, now: SystemTime) -> Option<Duration> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let seconds = match head.header("retry-after-ms").and_then(number) {
        Some(milliseconds) => milliseconds / 1000.0,
        None => {
            let text = head.header("retry-after")?;
            number(text).or_else(|| seconds_until(text, now))?
        }
    };
    let in_range = seconds > 0.0 && seconds <= MAX_SERVER_DELAY.as_secs_f64();
    in_range.then(|| Duration::from_secs_f64(seconds))
}

fn seconds_until(date: &str, now: SystemTime) -> Option<f64> {
    let date = DateTimeParser::new().parse_timestamp(date.trim()).ok()?;
    let now = jiff::Timestamp::try_from(now).ok()?;
    Some(date.duration_since(now).as_secs_f64())
}

/// The outer layer's rule: go on until `limit`. `tries` counts its earlier waits, `elapsed` is
/// the time since the call began.
pub(crate) fn outer_verdict(
    error: &Error,
    tries: u32,
    elapsed: Duration,
    limit: Duration,
) -> Verdict {
    let passing = match error {
        Error::Connection(_) | Error::Timeout(_) => true,
        Error::Status(context) => context.status.is_some_and(is_retryable_status),
        _ => false,
    };
    if !passing || elapsed >= limit {
        return Verdict::Fail;
    }
    Verdict::Retry(doubling_delay(tries).min(limit - elapsed))
}

/// 1, 2, 4, … at most 30 seconds: the outer layer's and the future loop's waits.
pub(crate) fn doubling_delay(tries: u32) -> Duration {
    Duration::from_secs(u64::from(2_u32.saturating_pow(tries).min(30)))
}

/// The sampling handler's wait: `min(0.5 * 2^tries, 10)` seconds, a quarter more or less, at most
/// 10. `chance` is between 0 and 1.
pub(crate) fn sampling_delay(tries: u32, chance: f64) -> Duration {
    let whole = f64::min(0.5 * f64::from(2_u32.saturating_pow(tries)), 10.0);
    let spread = 0.75 + 0.5 * chance.clamp(0.0, 1.0);
    Duration::from_secs_f64(f64::min(whole * spread, 10.0))
}

/// The window in which a 402 pauses a job instead of ending it.
///
/// It opens at the first 402 and closes after the service's limit; five minutes without a logged
/// 402 mean that the next one is a new incident.
#[derive(Debug, Clone)]
pub(crate) struct BillingWindow {
    limit: Duration,
    first: Option<Instant>,
    logged: Option<Instant>,
}

/// What a 402 means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Billing {
    /// Wait a little and try again; `log` says that the user should hear of it now.
    Pause { log: bool },
    /// It has lasted too long.
    GiveUp,
}

impl BillingWindow {
    const LOG_INTERVAL: Duration = Duration::from_secs(60);
    const RESET: Duration = Duration::from_secs(300);

    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            first: None,
            logged: None,
        }
    }

    /// Notes a 402.
    pub(crate) fn refused(&mut self, now: Instant) -> Billing {
        let since = |then: Option<Instant>| then.map(|then| now.saturating_duration_since(then));
        if since(self.logged).is_some_and(|quiet| quiet > Self::RESET) {
            self.first = None;
            self.logged = None;
        }
        if since(self.first).is_some_and(|open| open > self.limit) {
            return Billing::GiveUp;
        }
        let log = since(self.logged).is_none_or(|quiet| quiet > Self::LOG_INTERVAL);
        if log {
            self.logged = Some(now);
        }
        self.first.get_or_insert(now);
        Billing::Pause { log }
    }
}

/// The error an answer with an error status stands for.
pub(crate) fn error_from_response(response: &Response, request: &str, now: SystemTime) -> Error {
    let text = String::from_utf8_lossy(&response.body);
    let text = text.trim();
    let body = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    Error::Status(Box::new(Context {
        message: message_of(&body),
        request: Some(request.to_owned()),
        request_id: response.header("x-request-id").map(str::to_owned),
        status: Some(response.status()),
        body: Some(body),
        retry_after: server_delay(&response.head, now),
        ..Context::default()
    }))
}

/// The server's own words: `detail`, a list of them, or the body as it is; never very long.
fn message_of(body: &Value) -> String {
    let text = match body.get("detail").unwrap_or(body) {
        Value::Null => String::new(),
        Value::String(text) => text.trim().to_owned(),
        Value::Array(items) => {
            // FastAPI's validation errors: where, and what is wrong there.
            let lines: Vec<String> = items.iter().map(validation_line).collect();
            lines.join("; ")
        }
        Value::Object(fields) if fields.is_empty() => String::new(),
        other => other.to_string(),
    };
    match text.char_indices().nth(1_000) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

fn validation_line(item: &Value) -> String {
    let (Some(place), Some(problem)) = (item["loc"].as_array(), item["msg"].as_str()) else {
        return match item {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
    };
    let place: Vec<String> = place
        .iter()
        .map(|step| match step {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
        .collect();
    format!("{}: {problem}", place.join("."))
}

/// What the service has to say about the caller's version, and how urgently.
pub(crate) fn deprecation(head: &Head) -> Option<(log::Level, &str)> {
    let note = head.header("x-deprecation-note")?;
    let level = match head.header("x-deprecation-level") {
        Some("error") => log::Level::Error,
        _ => log::Level::Warn,
    };
    Some((level, note))
}

#[cfg(test)]
mod tests;
