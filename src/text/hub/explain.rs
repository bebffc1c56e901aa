//! What the hub's refusals mean to whoever asked.

use std::time::SystemTime;

use crate::error::{Context, Error};
use crate::transport::Response;
use crate::transport::retry::error_from_response;

/// What was asked for, for the words of an error.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) endpoint: &'a str,
    /// Where a person would look at it.
    pub(super) page: &'a str,
    /// `model` or `dataset`.
    pub(super) kind: &'a str,
    pub(super) repo: &'a str,
    pub(super) revision: &'a str,
    pub(super) path: Option<&'a str>,
    pub(super) has_token: bool,
}

/// Why the hub does not give something.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The repository is there and has no such file.
    NoSuchFile(Error),
    Other(Error),
}

/// Reads a final answer that is no success.
pub(super) fn explain(response: &Response, asked: Asked<'_>) -> Refusal {
    let Asked {
        endpoint,
        kind,
        repo,
        revision,
        ..
    } = asked;
    let status = response.status();
    let code = response.header("x-error-code").unwrap_or_default();
    let context = |message: String| {
        let mut context = Context::new(message);
        context.status = Some(status);
        context.request = Some(format!("GET {repo}"));
        context
    };
    match (code, status) {
        ("EntryNotFound", _) => {
            let path = asked.path.unwrap_or_default();
            let message = format!("the {kind} {repo} has no file {path} at {revision}");
            Refusal::NoSuchFile(Error::Config(context(message)))
        }
        ("GatedRepo", _) => {
            let next = match asked.has_token {
                true => "the token in use has no access: ask for it there, or use another token",
                false => "ask for access there, then set HF_TOKEN or run `hf auth login`",
            };
            let page = asked.page;
            let message = format!("the {kind} {repo} is gated ({page}): {next}");
            Refusal::Other(Error::Credentials(context(message)))
        }
        ("RevisionNotFound", _) => {
            let message = format!("the {kind} {repo} has no revision {revision}: check its name");
            Refusal::Other(Error::Config(context(message)))
        }
        ("RepoNotFound", _) | ("", 404) => {
            let next = match asked.has_token {
                true => "check the name, and whether the token in use may see it",
                false => "check the name; a private one needs HF_TOKEN or `hf auth login`",
            };
            let message = format!("there is no {kind} {repo} at {endpoint}: {next}");
            Refusal::Other(Error::Config(context(message)))
        }
        (_, 401 | 403) => {
            let next = match asked.has_token {
                true => "the token in use was refused: set HF_TOKEN to another, or unset it",
                false => "it needs a token: set HF_TOKEN or run `hf auth login`",
            };
            let message = format!("the {kind} {repo} is not given: {next}");
            Refusal::Other(Error::Credentials(context(message)))
        }
        _ => {
            let label = format!("GET {repo}");
            Refusal::Other(error_from_response(response, &label, SystemTime::now()))
        }
    }
}
