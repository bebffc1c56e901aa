//! Numbers and times as people read them; the same words as the Python command line.

use tinker::types::Timestamp;

/// A size in powers of 1024: `1.2 MB`.
pub(crate) fn size(bytes: u64) -> String {
    scaled(bytes as f64)
}

fn scaled(mut size: f64) -> String {
    if size < 0.0 {
        return "N/A".into();
    }
    if size < 1024.0 {
        return format!("{size:.0} B");
    }
    for unit in ["KB", "MB", "GB", "TB", "PB"] {
        size /= 1024.0;
        if size < 1024.0 {
            return format!("{size:.1} {unit}");
        }
    }
    format!("{:.1} EB", size / 1024.0)
}

/// How long ago or ahead, up to 30 days; then the day.
pub(crate) fn when(time: Timestamp, now: Timestamp) -> String {
    let ahead = now < time;
    let age = (now.as_nanosecond() - time.as_nanosecond()).unsigned_abs() / 1_000_000_000;
    let (count, unit) = match age {
        _ if age / 86_400 > 30 => return time.strftime("%Y-%m-%d").to_string(),
        _ if age / 86_400 > 7 => (age / 86_400 / 7, "week"),
        _ if age >= 86_400 => (age / 86_400, "day"),
        _ if age > 3_600 => (age / 3_600, "hour"),
        _ if age > 60 => (age / 60, "minute"),
        _ if ahead => return "in less than a minute".into(),
        _ => return "just now".into(),
    };
    let plural = if count == 1 { "" } else { "s" };
    match ahead {
        true => format!("in {count} {unit}{plural}"),
        false => format!("{count} {unit}{plural} ago"),
    }
}

/// The same from now.
pub(crate) fn since(time: Timestamp) -> String {
    when(time, Timestamp::now())
}

/// `Yes` or `No`.
pub(crate) fn yes(value: bool) -> String {
    if value { "Yes" } else { "No" }.into()
}

/// A count with its noun: `1 run`, `2 runs`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// A duration in its two largest units: `1h 02m`, `3m 04s`, `5s`.
pub(crate) fn duration(seconds: f64) -> String {
    let total = seconds.max(0.0).round() as u64;
    let (hours, minutes, seconds) = (total / 3_600, total / 60 % 60, total % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m {seconds:02}s"),
        _ => format!("{hours}h {minutes:02}m"),
    }
}

/// A number that may be large: `1.2k`, `3.4M`.
pub(crate) fn short(number: f64) -> String {
    match number.abs() {
        size if size >= 1e9 => format!("{:.1}G", number / 1e9),
        size if size >= 1e6 => format!("{:.1}M", number / 1e6),
        size if size >= 1e4 => format!("{:.1}k", number / 1e3),
        _ => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const GOLDEN: &str = include_str!("../../../tests/fixtures/wire/cli_formatting.json");

    #[test]
    fn sizes_and_times_are_those_of_the_reference() {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        for case in golden["size"].as_array().unwrap() {
            assert_eq!(
                scaled(case["bytes"].as_f64().unwrap()),
                case["text"],
                "{case}"
            );
        }
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let at = |second| Timestamp::from_second(now.as_second() + second).unwrap();
        for case in golden["relative_time"].as_array().unwrap() {
            let age = case["age_seconds"].as_i64().unwrap();
            assert_eq!(when(at(-age), now), case["past"], "{case}");
            assert_eq!(when(at(age), now), case["future"], "{case}");
        }
        let old = when(at(-40 * 86_400), now);
        let form: String = old
            .chars()
            .map(|c| if c == '-' { c } else { '#' })
            .collect();
        assert_eq!(form, "####-##-##");
    }

    #[test]
    fn durations_and_numbers_are_short() {
        for (seconds, text) in [(5.4, "5s"), (64.0, "1m 04s"), (3_725.0, "1h 02m")] {
            assert_eq!(duration(seconds), text);
        }
        for (number, text) in [(999.0, "999"), (12_345.0, "12.3k"), (3.45e6, "3.5M")] {
            assert_eq!(short(number), text);
        }
    }
}
