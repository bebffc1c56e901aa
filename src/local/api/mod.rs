//! The handlers: one short function per endpoint, grouped by subject.

pub(super) mod admin;
pub(super) mod futures;
pub(super) mod session;

use serde::de::DeserializeOwned;

use super::http::{Refusal, Request};

/// What every handler answers.
pub(super) type Answer = Result<super::http::Reply, Refusal>;

/// Reads the body as JSON; 422 says what is wrong with it.
fn json<T: DeserializeOwned>(request: &Request) -> Result<T, Refusal> {
    // Structs would also be read from an array, field by field.
    if request.body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Refusal::unprocessable("the body must be a JSON object"));
    }
    serde_json::from_slice(&request.body)
        .map_err(|error| Refusal::unprocessable(format!("the body cannot be read: {error}")))
}
