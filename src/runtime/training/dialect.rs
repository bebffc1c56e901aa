//! Which form of `forward_backward` a server understands: a small machine, asked before the first
//! submissions and told what came of them.
//!
//! Protobuf is tried first. An answer that may mean "not understood" is followed by one attempt in
//! JSON under the same number; unless that is accepted, the first answer stands as it is. SkyRL 0.3.0
//! reads every body as JSON and its framework stumbles over protobuf with a bare 500; but any server
//! can have a bad moment, so that must happen to protobuf and not to JSON for two operations before
//! the session goes over to JSON.

use std::sync::Mutex;

use crate::config;
use crate::sync::lock;
use crate::transport::Response;
use crate::transport::retry::{Meaning, error_from_response};

/// What to write the next body in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// Protobuf, as far as is known.
    Unknown,
    Proto,
    Json,
}

/// What an answer to a protobuf body says about the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    /// It understood.
    Understood,
    /// It read the body as something else, perhaps as JSON.
    Misread,
    /// It stumbled before any of its own code ran, or had a bad moment.
    Stumbled,
    /// Nothing either way.
    Silent,
}

/// Operations that only JSON got past a stumbling server before it is believed to know no other.
const CONFIRMED: u32 = 2;

/// The machine. One per session.
#[derive(Debug)]
pub(crate) struct Dialect(Mutex<State>);

#[derive(Debug)]
struct State {
    spoken: Spoken,
    stumbles: u32,
}

impl Dialect {
    pub(crate) fn new(configured: config::Dialect) -> Self {
        let spoken = match configured {
            config::Dialect::Json => Spoken::Json,
            config::Dialect::Proto => Spoken::Proto,
            _ => Spoken::Unknown,
        };
        Self(Mutex::new(State {
            spoken,
            stumbles: 0,
        }))
    }

    pub(crate) fn spoken(&self) -> Spoken {
        lock(&self.0).spoken
    }

    /// Protobuf was accepted.
    pub(crate) fn proto_worked(&self) {
        let mut state = lock(&self.0);
        if state.spoken == Spoken::Unknown {
            state.spoken = Spoken::Proto;
        }
    }

    /// JSON was accepted where protobuf had left this hint.
    pub(crate) fn json_worked(&self, hint: Hint) {
        let mut state = lock(&self.0);
        if state.spoken != Spoken::Unknown {
            return;
        }
        state.stumbles += 1;
        if hint == Hint::Misread || state.stumbles >= CONFIRMED {
            state.spoken = Spoken::Json;
            log::info!("the server does not take protobuf: going on in JSON");
        }
    }
}

/// Reads an answer to a protobuf body.
pub(crate) fn hint(response: &Response) -> Hint {
    let text = || String::from_utf8_lossy(&response.body).to_ascii_lowercase();
    match Meaning::of_status(response.status()) {
        Meaning::Success => Hint::Understood,
        // FastAPI's answer to a body that does not fit its model, and what a strict server says of
        // a content type it does not know.
        Meaning::Misread => Hint::Misread,
        Meaning::BadRequest => {
            let error = error_from_response(response, "", std::time::UNIX_EPOCH);
            let detail = error.to_string().to_ascii_lowercase();
            let words = ["json", "decode", "parse", "utf-8"];
            match words.iter().any(|word| detail.contains(word)) {
                true => Hint::Misread,
                false => Hint::Silent,
            }
        }
        // Starlette's own page for an exception nobody caught: what SkyRL 0.3.0 answers.
        Meaning::Failing
            if response.content_type() == "text/plain"
                && text().contains("internal server error") =>
        {
            Hint::Stumbled
        }
        _ => Hint::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stumble_needs_confirmation_and_a_misreading_does_not() {
        let auto = || Dialect::new(config::Dialect::Auto);
        let dialect = auto();
        dialect.json_worked(Hint::Stumbled);
        assert_eq!(dialect.spoken(), Spoken::Unknown);
        dialect.json_worked(Hint::Stumbled);
        assert_eq!(dialect.spoken(), Spoken::Json);

        let dialect = auto();
        dialect.json_worked(Hint::Stumbled);
        dialect.proto_worked();
        dialect.json_worked(Hint::Stumbled);
        assert_eq!(dialect.spoken(), Spoken::Proto, "it was a bad moment");

        let dialect = auto();
        dialect.json_worked(Hint::Misread);
        assert_eq!(dialect.spoken(), Spoken::Json);
        dialect.proto_worked();
        assert_eq!(dialect.spoken(), Spoken::Json, "settled once");
    }
}
