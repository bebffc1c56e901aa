//! What an answer says in words: errors, waits it asks for, notes about versions.

use std::time::{Duration, SystemTime};

use jiff::fmt::rfc2822::DateTimeParser;
use serde_json::Value;

use super::super::request::{Head, Response};
use crate::error::{Context, Error};

/// How long the server asks to wait.
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
    let delay = Duration::try_from_secs_f64(seconds).ok()?;
    (!delay.is_zero()).then_some(delay)
}

fn seconds_until(date: &str, now: SystemTime) -> Option<f64> {
    let date = DateTimeParser::new().parse_timestamp(date.trim()).ok()?;
    let now = jiff::Timestamp::try_from(now).ok()?;
    Some(date.duration_since(now).as_secs_f64())
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
        effect: response.head.effect(),
        ..Context::default()
    }))
}

/// The server's own words: `detail`, a list of them, or the body as it is; never very long.
fn message_of(body: &Value) -> String {
    let text = match body.get("detail").unwrap_or(body) {
        Value::Null => String::new(),
        Value::String(text) => page(text).unwrap_or_else(|| text.trim().to_owned()),
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

/// A page instead of an answer, as gateways and other servers give it, is known by its title.
fn page(text: &str) -> Option<String> {
    if !text.trim_start().starts_with('<') {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let start = lower.find("<title>")? + "<title>".len();
    let end = start + lower[start..].find("</title>")?;
    let title: Vec<&str> = text[start..end].split_whitespace().collect();
    Some(format!("a web page, \"{}\"", title.join(" ")))
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
