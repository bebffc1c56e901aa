//! Errors of this room: files, settings, and what a user's own code returned.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Context, Error};

/// A setting or a file that cannot be used.
pub(super) fn setup(message: impl Into<String>) -> Error {
    Error::Config(Context::new(message))
}

/// A file that could not be read or written.
pub(super) fn file(path: &Path, verb: &str, error: io::Error) -> Error {
    let message = format!("cannot {verb} {}", path.display());
    Error::Config(Context::caused(message, error))
}

/// What an environment, a reward or an evaluator returned; an error of this crate passes as it is.
pub(super) fn callback(what: &str, error: anyhow::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::Callback(Box::new(Context {
            message: format!("{what} failed"),
            source: Some(Arc::from(error.into_boxed_dyn_error())),
            ..Context::default()
        })),
    }
}

/// A success without what was asked for.
pub(super) fn reply(message: impl Into<String>) -> Error {
    Error::Reply(Context::new(message))
}
