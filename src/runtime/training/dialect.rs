//! Which form of `forward_backward` a server understands.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::config::{Config, Dialect};

/// What a session has learned about its server.
#[derive(Debug)]
pub(super) struct Spoken(AtomicU8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Protobuf, as far as is known.
    Unknown = 0,
    Proto = 1,
    Json = 2,
}

impl Spoken {
    pub(super) fn new(config: &Config) -> Self {
        Self(AtomicU8::new(match config.dialect {
            Dialect::Json => Form::Json,
            Dialect::Proto => Form::Proto,
            _ => Form::Unknown,
        } as u8))
    }

    pub(super) fn form(&self) -> Form {
        match self.0.load(Ordering::Relaxed) {
            1 => Form::Proto,
            2 => Form::Json,
            _ => Form::Unknown,
        }
    }

    /// Remembers what the server understood.
    pub(super) fn learned(&self, form: Form) {
        if self.0.swap(form as u8, Ordering::Relaxed) != form as u8 && form == Form::Json {
            log::info!("the server does not take protobuf: going on in JSON");
        }
    }
}
