//! Dates as Python's `strftime` prints them.

use jiff::civil::DateTime;

/// Formats a time that knows no zone, as transformers' `strftime_now` does.
pub(super) fn strftime(now: DateTime, format: &str) -> Result<String, jiff::Error> {
    let mut plain = String::with_capacity(format.len());
    let mut rest = format;
    // What belongs to a zone prints as nothing, and Python counts microseconds.
    while let Some(start) = rest.find('%') {
        plain.push_str(&rest[..start]);
        let code = rest[start + 1..].chars().next();
        match code {
            Some('z' | 'Z') => {}
            Some('f') => plain.push_str(&format!("{:06}", now.subsec_nanosecond() / 1_000)),
            Some('c') => plain.push_str("%a %b %e %H:%M:%S %Y"),
            Some('x') => plain.push_str("%m/%d/%y"),
            Some('X') => plain.push_str("%H:%M:%S"),
            Some(code) => plain.extend(['%', code]),
            None => plain.push_str("%%"),
        }
        rest = &rest[start + 1 + code.map_or(0, char::len_utf8)..];
    }
    plain.push_str(rest);
    jiff::fmt::strtime::format(&plain, now)
}
