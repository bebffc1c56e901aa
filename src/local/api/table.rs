//! Every endpoint once: its route, who may ask, how it is handled, and by what.

use std::future::Future;
use std::pin::Pin;

use hyper::{Method, StatusCode};

use super::openai::{PREFIXES, Style, embedded as openai};
use super::{
    Answer, Call, account, admin, checkpoints, futures, metrics, records, sampling, session,
    sessions, training, weights,
};
use crate::local::http::Refusal;
use crate::types::CheckpointKind;
use crate::types::percent::percent_decode;
use crate::wire::route::{self as wire, Method::*};

/// One endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    prefix: &'static str,
    method: wire::Method,
    /// Below the prefix. A `{name}` stands for one segment of the path, `{ckpt}` for two, `{rest}`
    /// for all that are left. What
    /// faults and latencies are keyed by.
    pub(super) template: &'static str,
    pub(super) access: Access,
    pub(super) handling: Handling,
}

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::local) enum Access {
    /// Whoever has the current credential: a key, or a token where tokens are exchanged.
    Credential,
    /// Whoever has a key, even where tokens are exchanged.
    Key,
    /// Anybody.
    Open,
}

/// How an endpoint is handled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Handling {
    /// Answered on the thread that serves the connections.
    Quick(fn(&Call) -> Answer),
    /// Reads or writes files, or computes: answered on another thread.
    Heavy(fn(&Call) -> Answer),
    /// Accepts work whose result is fetched later.
    Future(fn(&Call) -> Answer),
    /// Waits for something to happen, without a thread of its own.
    Waiting(fn(Call) -> Pin<Box<dyn Future<Output = Answer> + Send>>),
}

use Handling::{Future as Later, Heavy, Quick, Waiting};

const ADMIN: &str = "/admin/";

#[rustfmt::skip]
const ENDPOINTS: &[Endpoint] = &[
    of(wire::RETRIEVE_FUTURE, Waiting(|call| Box::pin(futures::retrieve(call)))),
    of(wire::RETRIEVE_FUTURES, Waiting(|call| Box::pin(futures::retrieve_many(call)))),
    of(wire::ASAMPLE, Later(sampling::sample)),
    of(wire::FORWARD_BACKWARD, Later(training::pass)),
    of(wire::FORWARD, Later(training::pass)),
    of(wire::OPTIM_STEP, Later(training::optim_step)),
    of(wire::SESSION_HEARTBEAT, Quick(session::heartbeat)),
    of(wire::TELEMETRY, Quick(session::telemetry)),
    of(wire::CANCEL_FUTURE, Quick(futures::cancel)),
    of(wire::HEALTH, Quick(session::healthz)).for_all(Access::Open),
    of(wire::SERVER_CAPABILITIES, Quick(session::capabilities)),
    of(wire::CLIENT_CONFIG, Quick(session::client_config)).for_all(Access::Key),
    of(wire::DYNAMIC_CONFIG, Quick(session::dynamic_config)),
    of(wire::AUTH_TOKEN, Quick(session::token)).for_all(Access::Key),
    of(wire::GET_API_KEY, Quick(account::api_key)),
    of(wire::DELETE_API_KEY, Quick(account::forget_api_key)),
    of(wire::CREATE_SESSION, Heavy(session::create)),
    of(wire::FINISH_SESSION, Heavy(session::finish)),
    of(wire::CREATE_MODEL, Later(training::create_model)),
    of(wire::GET_INFO, Quick(training::get_info)),
    of(wire::UNLOAD_MODEL, Later(training::unload)),
    of(wire::CREATE_CUSTOM_LOSS, Later(training::create_custom_loss)),
    of(wire::SAVE_WEIGHTS, Later(weights::save)),
    of(wire::SAVE_WEIGHTS_FOR_SAMPLER, Later(weights::save_for_sampler)),
    of(wire::SAVE_WEIGHTS_EXTERNAL, Later(weights::save_external)),
    of(wire::LOAD_WEIGHTS, Later(weights::load)),
    of(wire::WEIGHTS_INFO, Quick(weights::info)),
    of(wire::COPY_WEIGHTS, Heavy(checkpoints::copy)),
    of(wire::CREATE_SAMPLING_SESSION, Heavy(sampling::create)),
    of(wire::JOIN_SAMPLING_SESSION, Quick(sampling::join)),
    of(wire::GET_SAMPLER, Quick(sampling::sampler)),
    of(wire::LIST_TRAINING_RUNS, Heavy(records::runs)),
    of(wire::GET_TRAINING_RUN, Quick(records::run)),
    of(wire::LIST_CHECKPOINTS, Quick(records::run_checkpoints)),
    of(wire::LIST_USER_CHECKPOINTS, Heavy(records::checkpoints)),
    of(wire::DELETE_CHECKPOINT, Heavy(checkpoints::delete)),
    of(wire::PUBLISH_CHECKPOINT, Heavy(checkpoints::publish)),
    of(wire::UNPUBLISH_CHECKPOINT, Heavy(checkpoints::unpublish)),
    of(wire::SET_CHECKPOINT_TTL, Heavy(checkpoints::set_ttl)),
    of(wire::CHECKPOINT_ARCHIVE, Heavy(checkpoints::archive)),
    of(wire::EXTERNAL_WEIGHTS_URLS, Heavy(checkpoints::external_urls)),
    of(wire::LIST_SESSIONS, Heavy(sessions::list)),
    of(wire::SEARCH_SESSIONS, Heavy(sessions::search)),
    of(wire::GET_SESSION, Heavy(sessions::get)),
    of(wire::ASSIGN_SESSION_PROJECT, Heavy(sessions::assign_project)),
    of(wire::EXPORT_SESSION_TRACE, Heavy(sessions::trace)),
    of(wire::AUDIT_LOG, Heavy(account::audit)),
    of(wire::BILLING_USAGE, Heavy(account::usage)),
    of(wire::CHECKPOINT_STORAGE_USAGE, Heavy(account::storage)),
    // What this server adds. A signed link is its own credential.
    own(wire::API_PREFIX, Get, "download/{token}/{file}", Heavy(checkpoints::download))
        .for_all(Access::Open),
    own("/v1/", Get, "models", Waiting(|call| Box::pin(openai::models(call)))),
    own("/v1/", Get, "models/{rest}", Waiting(|call| Box::pin(openai::models(call)))),
    own("/v1/", Post, "completions",
        Waiting(|call| Box::pin(openai::complete(call, Style::Completion)))),
    own("/v1/", Post, "chat/completions",
        Waiting(|call| Box::pin(openai::complete(call, Style::Chat)))),
    own("/v1/", Post, "messages",
        Waiting(|call| Box::pin(openai::complete(call, Style::Messages)))),
    own("/", Get, "metrics", Quick(metrics::metrics)).for_all(Access::Key),
    own(ADMIN, Post, "faults", Quick(admin::add_fault)),
    own(ADMIN, Delete, "faults", Quick(admin::clear_faults)),
];

/// What the console asks; it reads templates and tokenizers.
#[cfg(feature = "chat")]
const CONSOLE: &[Endpoint] = super::console::ENDPOINTS;
#[cfg(not(feature = "chat"))]
const CONSOLE: &[Endpoint] = &[];

/// An endpoint of the service, as the wire has it.
const fn of(route: wire::Route, handling: Handling) -> Endpoint {
    own(wire::API_PREFIX, route.method, route.template, handling)
}

pub(super) const fn own(
    prefix: &'static str,
    method: wire::Method,
    template: &'static str,
    handling: Handling,
) -> Endpoint {
    Endpoint {
        prefix,
        method,
        template,
        access: Access::Credential,
        handling,
    }
}

impl Endpoint {
    pub(super) const fn for_all(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Method and path, as metrics name it.
    pub(super) fn name(&self) -> (&'static str, &'static str) {
        (self.method.as_str(), self.template)
    }

    /// Whether faults strike it. What ends a fault must not suffer from one, and a page that looks
    /// on must not take those that clients are to meet.
    pub(super) fn can_fail(&self) -> bool {
        self.prefix != ADMIN && !CONSOLE.iter().any(|own| own.template == self.template)
    }
}

/// Finds the endpoint of a request and the segments its path carries; 404 and 405 as HTTP has them.
pub(super) fn find(
    method: &Method,
    path: &str,
) -> Result<(&'static Endpoint, Vec<String>), Refusal> {
    let mut known_path = false;
    for endpoint in ENDPOINTS.iter().chain(CONSOLE) {
        // The hosted service has these endpoints in another place.
        let prefixes = match endpoint.prefix {
            "/v1/" => &PREFIXES[..],
            _ => std::slice::from_ref(&endpoint.prefix),
        };
        let Some(rest) = prefixes.iter().find_map(|prefix| path.strip_prefix(prefix)) else {
            continue;
        };
        let Some(segments) = matched(endpoint.template, rest) else {
            continue;
        };
        known_path = true;
        if method.as_str() == endpoint.method.as_str() {
            return Ok((endpoint, segments));
        }
    }
    if known_path {
        let mut refusal = Refusal::missing(format!("{path} does not take {method}"));
        refusal.status = StatusCode::METHOD_NOT_ALLOWED;
        return Err(refusal);
    }
    // A checkpoint's name alone is not its id.
    let hint = match path.split_once("/checkpoints/") {
        Some((_, rest)) if !is_kind(rest.split('/').next().unwrap_or_default()) => {
            ": a checkpoint is named by kind and name, such as checkpoints/weights/NAME or \
             checkpoints/sampler_weights/NAME"
        }
        _ => "",
    };
    Err(Refusal::missing(format!("no such path: {path}{hint}")))
}

/// Whether a segment names a kind of checkpoints.
fn is_kind(segment: &str) -> bool {
    let kinds = [
        CheckpointKind::Training,
        CheckpointKind::Sampler,
        CheckpointKind::External,
    ];
    kinds.iter().any(|kind| kind.segment() == segment)
}

/// Whether this is the path of an endpoint, as faults and latencies name it.
pub(super) fn is_endpoint(name: &str) -> bool {
    ENDPOINTS.iter().any(|endpoint| endpoint.template == name)
}

fn matched(template: &str, path: &str) -> Option<Vec<String>> {
    let mut segments = Vec::new();
    let mut actual = path.trim_end_matches('/').split('/');
    for expected in template.split('/') {
        let segment = actual.next()?;
        match expected {
            "{ckpt}" if !is_kind(segment) => return None,
            "{ckpt}" => segments.push(percent_decode(&format!("{segment}/{}", actual.next()?))),
            // A name that may have slashes of its own.
            "{rest}" => {
                let more = actual.by_ref().map(|part| format!("/{part}"));
                segments.push(percent_decode(
                    &more.fold(segment.to_owned(), |all, one| all + &one),
                ));
            }
            _ if expected.starts_with('{') => segments.push(percent_decode(segment)),
            _ if expected != segment => return None,
            _ => {}
        }
    }
    actual.next().is_none().then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: Method, path: &str, expected: Result<(&str, &[&str]), u16>) {
        match (find(&method, path), expected) {
            (Ok((endpoint, found)), Ok((template, segments))) => {
                assert_eq!(endpoint.template, template);
                assert_eq!(found, segments);
            }
            (Err(refusal), Err(status)) => assert_eq!(refusal.status.as_u16(), status),
            (found, expected) => panic!("{method} {path}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn finds_endpoints_and_their_segments() {
        check(Method::POST, "/api/v1/asample", Ok(("asample", &[])));
        check(
            Method::PUT,
            "/api/v1/training_runs/S:train:0/checkpoints/weights/0001/ttl",
            Ok((
                wire::SET_CHECKPOINT_TTL.template,
                &["S:train:0", "weights/0001"],
            )),
        );
        check(
            Method::GET,
            "/api/v1/training_runs/S%3Atrain%3A0",
            Ok((wire::GET_TRAINING_RUN.template, &["S:train:0"])),
        );
        check(
            Method::POST,
            "/api/v1/sessions/search",
            Ok(("sessions/search", &[])),
        );
        check(Method::GET, "/oai/api/v1/models", Ok(("models", &[])));
        check(Method::GET, "/v1/models", Ok(("models", &[])));
        check(
            Method::GET,
            "/v1/models/a/b%20c",
            Ok(("models/{rest}", &["a/b c"])),
        );
        check(Method::GET, "/v1/completions", Err(405));
        check(
            Method::GET,
            "/api/v1/training_runs/r/checkpoints/sw1/archive",
            Err(404),
        );
        check(Method::GET, "/api/v1/asample", Err(405));
        check(Method::GET, "/api/v1/nothing", Err(404));
        check(Method::GET, "/asample", Err(404));
    }
}
