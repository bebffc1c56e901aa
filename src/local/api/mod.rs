//! The handlers: one short function per endpoint, grouped by subject.

pub(super) mod account;
pub(super) mod admin;
pub(super) mod auth;
pub(super) mod chat;
pub(super) mod checkpoints;
pub(super) mod fault;
pub(super) mod flags;
pub(super) mod futures;
pub(super) mod openai;
pub(super) mod records;
pub(super) mod routes;
pub(super) mod sampling;
pub(super) mod service;
pub(super) mod session;
pub(super) mod sessions;
pub(super) mod training;
pub(super) mod weights;

use serde::Deserialize;

use crate::local::api::routes::query;
use crate::local::http::{Refusal, Reply, Request};
use crate::types::Cursor;
use crate::wire::reply::FutureReply;
use crate::wire::request::from_json;

/// What every handler answers.
pub(super) type Answer = Result<Reply, Refusal>;

/// Reads the body as JSON; 422 says what is wrong with it.
fn json<'a, T: Deserialize<'a>>(request: &'a Request) -> Result<T, Refusal> {
    // Structs would also be read from an array, field by field.
    if request.body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Refusal::unprocessable("the body must be a JSON object"));
    }
    Ok(from_json(&request.body)?)
}

/// Says that a request was accepted.
fn future(request_id: String, model_id: Option<String>) -> Reply {
    Reply::json(&FutureReply {
        request_id,
        model_id,
        sample_sequence_ids: None,
    })
}

/// The page of a list that the query asks for.
fn page<T>(request: &Request, list: Vec<T>, default: u64) -> Result<(Vec<T>, Cursor), Refusal> {
    let number = |name: &str, default: u64| match query(&request.query, name) {
        None => Ok(default),
        Some(text) => text
            .parse::<u64>()
            .map_err(|_| Refusal::unprocessable(format!("{name} must be a number, got {text:?}"))),
    };
    let cursor = Cursor {
        offset: number("offset", 0)?,
        limit: number("limit", default)?,
        total_count: list.len() as u64,
    };
    let (offset, limit) = (
        usize::try_from(cursor.offset).unwrap_or(usize::MAX),
        usize::try_from(cursor.limit).unwrap_or(usize::MAX),
    );
    Ok((list.into_iter().skip(offset).take(limit).collect(), cursor))
}
