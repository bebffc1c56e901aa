//! Points in time as the service writes them.

use std::fmt;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::de::{Deserializer, Visitor};
use serde::ser::Serializer;

/// A point in time, from the `jiff` crate.
pub use jiff::Timestamp;
/// A day, from the `jiff` crate.
pub use jiff::civil::Date;

/// Above this many units a number counts milliseconds, below it seconds.
const MILLISECOND_WATERSHED: f64 = 2e10;

/// RFC 3339 in UTC, with six digits of fraction only where there is one.
pub(crate) fn format(time: Timestamp) -> String {
    if time.subsec_nanosecond() == 0 {
        time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    } else {
        time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    }
}

/// Reads RFC 3339 with `Z` or an offset, and times without a zone as UTC.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    text.parse::<Timestamp>()
        .ok()
        .or_else(|| {
            let naive: DateTime = text.parse().ok()?;
            Some(naive.to_zoned(TimeZone::UTC).ok()?.timestamp())
        })
        .or_else(|| from_epoch(text.parse().ok()?))
}

fn from_epoch(number: f64) -> Option<Timestamp> {
    let seconds = if number.abs() > MILLISECOND_WATERSHED {
        number / 1000.0
    } else {
        number
    };
    let micros = (seconds * 1e6).round();
    if !micros.is_finite() || micros.abs() >= i64::MAX as f64 {
        return None;
    }
    Timestamp::from_microsecond(micros as i64).ok()
}

pub(crate) fn serialize<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*time))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Timestamp, D::Error> {
    deserializer.deserialize_any(TimeVisitor)
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time: RFC 3339 text or seconds since 1970")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Timestamp, E> {
        parse(text).ok_or_else(|| E::custom(format_args!("not a time: {text:?}")))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Timestamp, E> {
        from_epoch(number).ok_or_else(|| E::custom(format_args!("not a time: {number}")))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Timestamp, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Timestamp, E> {
        self.visit_f64(number as f64)
    }
}

/// The same for a time that may be absent.
pub(crate) mod option {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Timestamp;

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::serialize(time, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        #[derive(Deserialize)]
        struct Time(#[serde(with = "super")] Timestamp);
        Ok(Option::<Time>::deserialize(deserializer)?.map(|time| time.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form_the_service_uses() {
        #[track_caller]
        fn check(text: &str, expected: &str) {
            assert_eq!(parse(text).map(format).as_deref(), Some(expected), "{text}");
        }
        check("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z");
        check("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.678000Z");
        check("2026-01-02T03:04:05+02:00", "2026-01-02T01:04:05Z");
        check("2026-01-02T03:04:05", "2026-01-02T03:04:05Z");
        check("2026-01-02 03:04:05.5", "2026-01-02T03:04:05.500000Z");
        check("1767323045", "2026-01-02T03:04:05Z");
        check("1767323045000", "2026-01-02T03:04:05Z");
        for text in ["", "soon", "2026-13-01T00:00:00Z", "NaN", "1e300"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
