//! The handlers: one short function per endpoint, a file per noun. Here, and only here, what the
//! other rooms say becomes a reply.

pub(super) mod account;
pub(super) mod admin;
pub(super) mod auth;
pub(super) mod checkpoints;
#[cfg(feature = "chat")]
mod console;
pub(super) mod fault;
mod faults;
pub(super) mod flags;
pub(super) mod futures;
pub(super) mod janitor;
mod metrics;
pub(super) mod openai;
pub(super) mod records;
pub(super) mod sampling;
pub(super) mod service;
pub(super) mod session;
pub(super) mod sessions;
pub(super) mod table;
pub(super) mod training;
pub(crate) mod trial;
pub(super) mod weights;

use std::sync::Arc;

use serde::Deserialize;

use super::http::{Refusal, Reply, Request, query};
use super::state::catalogue::{Checkpoint, Run};
use super::state::models::Model;
use super::state::samplers::Sampler;
use super::state::{State, StateError};
use super::work::Workshop;
use crate::error::Error;
use crate::types::{CheckpointKind, Cursor, TinkerPath};
use crate::wire::reply::FutureReply;
use crate::wire::request::from_json;
use service::Service;
use table::{Endpoint, Handling};

/// Bodies beyond this are decoded away from the thread that serves the connections.
const INLINE_BYTES: usize = 16 << 10;

/// What the ids of samplers have between their session's and their number.
const SAMPLER: &str = ":sample:";

/// What every handler answers.
type Answer = Result<Reply, Refusal>;

/// One request to one endpoint.
#[derive(Debug)]
struct Call {
    service: Arc<Service>,
    /// The template of the endpoint's path.
    endpoint: &'static str,
    segments: Vec<String>,
    /// Who asks.
    user: Arc<str>,
    request: Request,
}

impl Call {
    fn state(&self) -> &State {
        &self.service.state
    }

    fn work(&self) -> &Arc<Workshop> {
        &self.service.work
    }

    /// What stands in the path at the template's placeholder of this number.
    fn segment(&self, index: usize) -> &str {
        &self.segments[index]
    }

    /// The value of a query parameter.
    fn query(&self, name: &str) -> Option<String> {
        query(&self.request.query, name)
    }

    /// Reads the body as JSON; 422 says what is wrong with it.
    fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Refusal> {
        let body = &self.request.body;
        // Structs would also be read from an array, field by field.
        if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Err(Refusal::unprocessable("the body must be a JSON object"));
        }
        Ok(from_json(body)?)
    }

    /// The address the request was sent to, as its sender knows it.
    fn server(&self) -> String {
        let host = self.request.header("host").unwrap_or("127.0.0.1");
        format!("{}://{host}", self.service.options.scheme)
    }

    /// Notes a sign of life of a session of whoever asks.
    fn touch(&self, session_id: &str) -> Result<(), Refusal> {
        self.own_session(session_id)?;
        Ok(self.state().sessions.touch(session_id)?)
    }

    /// Refuses a session of somebody else as if it did not exist.
    fn own_session(&self, id: &str) -> Result<(), Refusal> {
        match self.state().sessions.owner(id) {
            Some(owner) if owner != *self.user => {
                Err(Refusal::missing(format!("no such session: {id}")))
            }
            // What does not exist is refused by whoever looks for it.
            _ => Ok(()),
        }
    }

    /// A model of whoever asks.
    fn model(&self, id: &str) -> Result<Arc<Model>, Refusal> {
        let model = self.state().models.get(id);
        let model = model.map_err(|error| self.ended_model(id).unwrap_or(error.into()))?;
        match self.own_session(&model.session_id) {
            Ok(()) => Ok(model),
            Err(_) => Err(Refusal::missing(format!("no such model: {id}"))),
        }
    }

    /// What to say of a model that was in training once: clients take it for lost, and restore.
    fn ended_model(&self, id: &str) -> Option<Refusal> {
        self.run(id).ok()?;
        let catalogue = &self.state().catalogue;
        let newest = catalogue.last_checkpoint(id, CheckpointKind::Training);
        let from = newest.map_or("a checkpoint".to_owned(), |one| one.path.to_string());
        Some(Refusal::gone(format!(
            "{id} is no longer in training: it was unloaded, its session ended, or the server was \
             restarted without what it did last; go on from {from}"
        )))
    }

    /// A sampling session of whoever asks.
    fn sampler(&self, id: &str) -> Result<Arc<Sampler>, Refusal> {
        self.own_sampler(id)?;
        let alive = self.state().samplers.get(id);
        alive.or_else(|_| sampling::wake(self, id))
    }

    /// Refuses a sampling session that is not there, or somebody else's.
    fn own_sampler(&self, id: &str) -> Result<(), Refusal> {
        let session = self.state().samplers.session_of(id);
        match session.is_some_and(|session| self.own_session(&session).is_ok()) {
            true => Ok(()),
            false => Err(Refusal::missing(format!("no such sampling session: {id}"))),
        }
    }

    /// Whether a checkpoint may have to be read from disk: one that is named, or that of a sampler
    /// of an earlier process.
    fn may_read_weights(&self) -> bool {
        let body = &self.request.body;
        let names_sampler = || {
            let mut segments = self.segments.iter();
            contains(body, SAMPLER.as_bytes()) || segments.any(|one| one.contains(SAMPLER))
        };
        contains(body, TinkerPath::PREFIX.as_bytes())
            || self.state().samplers.any_rests() && names_sampler()
    }

    /// A training run of whoever asks.
    fn run(&self, id: &str) -> Result<Run, Refusal> {
        let run = self.state().catalogue.run(id)?;
        match run.owner == *self.user {
            true => Ok(run),
            false => Err(Refusal::missing(format!("no such training run: {id}"))),
        }
    }

    /// A checkpoint that whoever asks may read: their own, or one that was published.
    fn checkpoint(&self, path: &TinkerPath) -> Result<Checkpoint, Refusal> {
        let checkpoint = self.state().catalogue.find(path)?;
        match checkpoint.owner == *self.user || checkpoint.public {
            true => Ok(checkpoint),
            false => Err(Refusal::missing(format!("no such checkpoint: {path}"))),
        }
    }

    /// A checkpoint that whoever asks may change.
    fn own_checkpoint(&self, path: &TinkerPath) -> Result<Checkpoint, Refusal> {
        let checkpoint = self.checkpoint(path)?;
        match checkpoint.owner == *self.user {
            true => Ok(checkpoint),
            false => Err(Refusal::forbidden(format!(
                "{path} belongs to {}",
                checkpoint.owner
            ))),
        }
    }

    /// The page of a list that the query asks for.
    fn page<T>(&self, list: Vec<T>, default: u64) -> Result<(Vec<T>, Cursor), Refusal> {
        let number = |name: &str, default: u64| match self.query(name) {
            None => Ok(default),
            Some(text) => text.parse::<u64>().map_err(|_| {
                Refusal::unprocessable(format!("{name} must be a number, got {text:?}"))
            }),
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
}

/// Runs the handler where it belongs.
async fn dispatch(endpoint: &'static Endpoint, call: Call) -> Reply {
    let makes_future = matches!(endpoint.handling, Handling::Future(_));
    // What makes a future is late with its result instead.
    if let Some(latency) = call
        .state()
        .latency(endpoint.template)
        .filter(|_| !makes_future)
    {
        tokio::time::sleep(latency).await;
    }
    let body = &call.request.body;
    let large = body.len() > INLINE_BYTES || call.may_read_weights();
    let answer = match endpoint.handling {
        Handling::Waiting(handler) => handler(call).await,
        Handling::Quick(handler) | Handling::Future(handler) if !large => handler(&call),
        Handling::Quick(handler) | Handling::Future(handler) | Handling::Heavy(handler) => {
            tokio::task::spawn_blocking(move || handler(&call))
                .await
                .unwrap_or_else(|_| Err(Refusal::internal("the handler failed")))
        }
    };
    answer.unwrap_or_else(Reply::from)
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

impl From<StateError> for Refusal {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Missing(detail) => Self::missing(detail),
            StateError::Ended(detail) => Self::gone(detail),
            StateError::Refused(detail) => Self::bad(detail),
            StateError::Conflict(detail) => Self::conflict(detail),
            StateError::Full(detail) => Self::busy(detail),
            StateError::Other(error) => error.into(),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match &error {
            Error::Invalid(_) => Self::unprocessable(error.to_string()),
            // What failed here is for whoever runs the server; it may name their files.
            _ => {
                log::error!("local server: {error}");
                Self::internal("the server failed; its log says why")
            }
        }
    }
}

/// Says that a request was accepted.
fn future(request_id: String, model_id: Option<String>) -> Reply {
    Reply::json(&FutureReply {
        request_id,
        model_id,
        sample_sequence_ids: None,
    })
}
