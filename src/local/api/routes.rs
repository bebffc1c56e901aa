//! Every route the server knows, once.

use hyper::Method;

use crate::local::http::Refusal;
use crate::wire::route as wire;

/// What a path and a method ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::local) enum Route {
    Healthz,
    Capabilities,
    ClientConfig,
    DynamicConfig,
    AuthToken,
    ApiKey,
    ForgetApiKey,
    CreateSession,
    Heartbeat,
    FinishSession,
    Telemetry,
    CreateModel,
    GetInfo,
    UnloadModel,
    Forward,
    ForwardBackward,
    OptimStep,
    CreateCustomLoss,
    SaveWeights,
    SaveForSampler,
    SaveExternal,
    LoadWeights,
    WeightsInfo,
    CopyWeights,
    CreateSamplingSession,
    JoinSamplingSession,
    Sample,
    Sampler,
    RetrieveFuture,
    RetrieveFutures,
    CancelFuture,
    Runs,
    Run,
    RunCheckpoints,
    Checkpoints,
    DeleteCheckpoint,
    Publish,
    Unpublish,
    SetTtl,
    Archive,
    ExternalUrls,
    Sessions,
    Session,
    SessionProject,
    TraceExport,
    SearchSessions,
    Audit,
    UsageEvents,
    StorageUsage,
    Download,
    OpenAiModels,
    OpenAiCompletions,
    OpenAiChat,
    AddFault,
    ClearFaults,
}

impl Route {
    /// Whether the endpoint accepts work and answers with a future.
    pub(in crate::local) fn makes_future(self) -> bool {
        matches!(
            self,
            Self::CreateModel
                | Self::UnloadModel
                | Self::Forward
                | Self::ForwardBackward
                | Self::OptimStep
                | Self::CreateCustomLoss
                | Self::SaveWeights
                | Self::SaveForSampler
                | Self::SaveExternal
                | Self::LoadWeights
                | Self::Sample
        )
    }

    /// Whether the handler reads or writes files, or decodes much.
    pub(in crate::local) fn is_heavy(self) -> bool {
        matches!(
            self,
            Self::CreateSession
                | Self::FinishSession
                | Self::CreateSamplingSession
                | Self::Archive
                | Self::ExternalUrls
                | Self::CopyWeights
                | Self::DeleteCheckpoint
                | Self::Publish
                | Self::Unpublish
                | Self::SetTtl
                | Self::SessionProject
                | Self::Download
        )
    }
}

const OPENAI: &str = "/oai/api/v1/";
const ADMIN: &str = "/admin/";

/// The service's own endpoints, as the wire has them.
const SERVICE: &[(wire::Route, Route)] = &[
    (wire::RETRIEVE_FUTURE, Route::RetrieveFuture),
    (wire::RETRIEVE_FUTURES, Route::RetrieveFutures),
    (wire::ASAMPLE, Route::Sample),
    (wire::FORWARD_BACKWARD, Route::ForwardBackward),
    (wire::FORWARD, Route::Forward),
    (wire::OPTIM_STEP, Route::OptimStep),
    (wire::SESSION_HEARTBEAT, Route::Heartbeat),
    (wire::TELEMETRY, Route::Telemetry),
    (wire::CANCEL_FUTURE, Route::CancelFuture),
    (wire::HEALTH, Route::Healthz),
    (wire::SERVER_CAPABILITIES, Route::Capabilities),
    (wire::CLIENT_CONFIG, Route::ClientConfig),
    (wire::DYNAMIC_CONFIG, Route::DynamicConfig),
    (wire::AUTH_TOKEN, Route::AuthToken),
    (wire::GET_API_KEY, Route::ApiKey),
    (wire::DELETE_API_KEY, Route::ForgetApiKey),
    (wire::CREATE_SESSION, Route::CreateSession),
    (wire::FINISH_SESSION, Route::FinishSession),
    (wire::CREATE_MODEL, Route::CreateModel),
    (wire::GET_INFO, Route::GetInfo),
    (wire::UNLOAD_MODEL, Route::UnloadModel),
    (wire::CREATE_CUSTOM_LOSS, Route::CreateCustomLoss),
    (wire::SAVE_WEIGHTS, Route::SaveWeights),
    (wire::SAVE_WEIGHTS_FOR_SAMPLER, Route::SaveForSampler),
    (wire::SAVE_WEIGHTS_EXTERNAL, Route::SaveExternal),
    (wire::LOAD_WEIGHTS, Route::LoadWeights),
    (wire::WEIGHTS_INFO, Route::WeightsInfo),
    (wire::COPY_WEIGHTS, Route::CopyWeights),
    (wire::CREATE_SAMPLING_SESSION, Route::CreateSamplingSession),
    (wire::JOIN_SAMPLING_SESSION, Route::JoinSamplingSession),
    (wire::GET_SAMPLER, Route::Sampler),
    (wire::LIST_TRAINING_RUNS, Route::Runs),
    (wire::GET_TRAINING_RUN, Route::Run),
    (wire::LIST_CHECKPOINTS, Route::RunCheckpoints),
    (wire::LIST_USER_CHECKPOINTS, Route::Checkpoints),
    (wire::DELETE_CHECKPOINT, Route::DeleteCheckpoint),
    (wire::PUBLISH_CHECKPOINT, Route::Publish),
    (wire::UNPUBLISH_CHECKPOINT, Route::Unpublish),
    (wire::SET_CHECKPOINT_TTL, Route::SetTtl),
    (wire::CHECKPOINT_ARCHIVE, Route::Archive),
    (wire::EXTERNAL_WEIGHTS_URLS, Route::ExternalUrls),
    (wire::LIST_SESSIONS, Route::Sessions),
    (wire::SEARCH_SESSIONS, Route::SearchSessions),
    (wire::GET_SESSION, Route::Session),
    (wire::ASSIGN_SESSION_PROJECT, Route::SessionProject),
    (wire::EXPORT_SESSION_TRACE, Route::TraceExport),
    (wire::AUDIT_LOG, Route::Audit),
    (wire::BILLING_USAGE, Route::UsageEvents),
    (wire::CHECKPOINT_STORAGE_USAGE, Route::StorageUsage),
];

/// What this server adds: prefix, method, path.
const OWN: &[(&str, wire::Method, &str, Route)] = &[
    (
        wire::API_PREFIX,
        wire::Method::Get,
        "download/{token}/{file}",
        Route::Download,
    ),
    (OPENAI, wire::Method::Get, "models", Route::OpenAiModels),
    (
        OPENAI,
        wire::Method::Post,
        "completions",
        Route::OpenAiCompletions,
    ),
    (
        OPENAI,
        wire::Method::Post,
        "chat/completions",
        Route::OpenAiChat,
    ),
    (ADMIN, wire::Method::Post, "faults", Route::AddFault),
    (ADMIN, wire::Method::Delete, "faults", Route::ClearFaults),
];

/// Prefix, method, template and meaning of every route. A `{name}` in a template stands for one
/// segment of the path, `{ckpt}` for two.
fn table() -> impl Iterator<Item = (&'static str, wire::Method, &'static str, Route)> {
    let service = SERVICE
        .iter()
        .map(|(route, meaning)| (wire::API_PREFIX, route.method, route.template, *meaning));
    service.chain(OWN.iter().copied())
}

/// A route with the segments its path carries.
#[derive(Debug)]
pub(in crate::local) struct Found {
    pub(in crate::local) route: Route,
    /// The template of its path: what faults and latencies are keyed by.
    pub(in crate::local) endpoint: &'static str,
    pub(in crate::local) segments: Vec<String>,
}

/// Finds the route of a request; 404 and 405 as HTTP has them.
pub(in crate::local) fn find(method: &Method, path: &str) -> Result<Found, Refusal> {
    let mut known_path = false;
    for (prefix, wanted, pattern, route) in table() {
        let Some(rest) = path.strip_prefix(prefix) else {
            continue;
        };
        let Some(segments) = matched(pattern, rest) else {
            continue;
        };
        known_path = true;
        if method.as_str() == wanted.as_str() {
            return Ok(Found {
                route,
                endpoint: pattern,
                segments,
            });
        }
    }
    if known_path {
        let mut refusal = Refusal::missing(format!("{path} does not take {method}"));
        refusal.status = hyper::StatusCode::METHOD_NOT_ALLOWED;
        return Err(refusal);
    }
    Err(Refusal::missing(format!("no such path: {path}")))
}

/// Whether this is the path of a route, as faults and latencies name it.
pub(in crate::local) fn is_endpoint(name: &str) -> bool {
    table().any(|(_, _, template, _)| template == name)
}

fn matched(pattern: &str, path: &str) -> Option<Vec<String>> {
    let mut segments = Vec::new();
    let mut actual = path.trim_end_matches('/').split('/');
    for expected in pattern.split('/') {
        let segment = actual.next()?;
        match expected {
            "{ckpt}" => segments.push(percent_decode(&format!("{segment}/{}", actual.next()?))),
            _ if expected.starts_with('{') => segments.push(percent_decode(segment)),
            _ if expected != segment => return None,
            _ => {}
        }
    }
    actual.next().is_none().then_some(segments)
}

/// Undoes `%3A` and its like; what does not decode is taken as it stands.
pub(in crate::local) fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The value of a query parameter, form-decoded.
pub(in crate::local) fn query<'q>(query: &'q str, name: &str) -> Option<String> {
    query
        .split('&')
        .filter_map(|pair: &'q str| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| percent_decode(&value.replace('+', " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: Method, path: &str, expected: Result<(Route, &[&str]), u16>) {
        match (find(&method, path), expected) {
            (Ok(found), Ok((route, segments))) => {
                assert_eq!(found.route, route);
                assert_eq!(found.segments, segments);
            }
            (Err(refusal), Err(status)) => assert_eq!(refusal.status.as_u16(), status),
            (found, expected) => panic!("{method} {path}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn finds_routes_and_their_segments() {
        check(Method::POST, "/api/v1/asample", Ok((Route::Sample, &[])));
        check(
            Method::PUT,
            "/api/v1/training_runs/S:train:0/checkpoints/weights/0001/ttl",
            Ok((Route::SetTtl, &["S:train:0", "weights/0001"])),
        );
        check(
            Method::GET,
            "/api/v1/training_runs/S%3Atrain%3A0",
            Ok((Route::Run, &["S:train:0"])),
        );
        check(
            Method::POST,
            "/api/v1/sessions/search",
            Ok((Route::SearchSessions, &[])),
        );
        check(
            Method::GET,
            "/oai/api/v1/models",
            Ok((Route::OpenAiModels, &[])),
        );
        check(Method::GET, "/api/v1/asample", Err(405));
        check(Method::GET, "/api/v1/nothing", Err(404));
        check(Method::GET, "/asample", Err(404));
    }

    #[test]
    fn decodes_queries() {
        let text = "limit=5&starting_on=2026-01-01T00%3A00%3A00Z&name=a+b";
        assert_eq!(query(text, "limit").as_deref(), Some("5"));
        assert_eq!(
            query(text, "starting_on").as_deref(),
            Some("2026-01-01T00:00:00Z")
        );
        assert_eq!(query(text, "name").as_deref(), Some("a b"));
        assert_eq!(query(text, "absent"), None);
    }
}
