//! Text that must never be shown.

use std::fmt;
use std::sync::Arc;

/// A key, token or other text that logs, errors and `Debug` must not show.
///
/// ```
/// let key = tinker::config::Secret::from("tml-123");
/// assert_eq!(format!("{key} {key:?}"), "*** Secret(***)");
/// assert_eq!(key.expose(), "tml-123");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// The text itself. Every use is a place where it could leak.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
