//! The recorded traffic of whole programs: every request went to a route written down here, with
//! its timeout and its method name, and carries a body that reads and writes the same.

use serde_json::Value;

use super::golden::{list, request_case, text};
use super::plain::assert_same;
use crate::wire::route::{self, Route};

/// Which endpoint a recorded request went to, and what its body reads as.
fn captured(method: &str, path: &str, body: &Value) -> Option<(Route, String, Option<Value>)> {
    let path = path.strip_prefix("/base")?.split('?').next()?;
    let name = path.strip_prefix(route::API_PREFIX)?;
    let parts: Vec<&str> = name.split('/').collect();
    let (route, values): (Route, Vec<String>) = match (method, parts.as_slice()) {
        ("GET", ["get_server_capabilities"]) => (route::SERVER_CAPABILITIES, vec![]),
        ("GET", ["samplers", id]) => (route::GET_SAMPLER, vec![(*id).into()]),
        ("POST", ["sessions", "search"]) => (route::SEARCH_SESSIONS, vec![]),
        ("POST", ["sessions", id, "finish"]) => (route::FINISH_SESSION, vec![(*id).into()]),
        ("PUT", ["sessions", id, "project"]) => (route::ASSIGN_SESSION_PROJECT, vec![(*id).into()]),
        ("GET", ["sessions", id, "trace_export"]) => {
            (route::EXPORT_SESSION_TRACE, vec![(*id).into()])
        }
        ("GET", ["sessions", id]) => (route::GET_SESSION, vec![(*id).into()]),
        ("GET", ["sessions"]) => (route::LIST_SESSIONS, vec![]),
        ("GET", ["training_runs"]) => (route::LIST_TRAINING_RUNS, vec![]),
        ("GET", ["training_runs", id]) => (route::GET_TRAINING_RUN, vec![(*id).into()]),
        ("GET", ["training_runs", id, "checkpoints"]) => {
            (route::LIST_CHECKPOINTS, vec![(*id).into()])
        }
        (method, ["training_runs", id, "checkpoints", kind, name, rest @ ..]) => {
            let route = match (method, rest) {
                ("DELETE", []) => route::DELETE_CHECKPOINT
                    .with_sdk_method(Some("delete_checkpoint_from_tinker_path")),
                ("POST", ["publish"]) => route::PUBLISH_CHECKPOINT,
                ("DELETE", ["publish"]) => route::UNPUBLISH_CHECKPOINT,
                ("PUT", ["ttl"]) => route::SET_CHECKPOINT_TTL,
                ("GET", ["external_weights_urls"]) => route::EXTERNAL_WEIGHTS_URLS,
                other => panic!("no route for {other:?}"),
            };
            (route, vec![(*id).into(), format!("{kind}/{name}")])
        }
        ("GET", ["checkpoints"]) => (route::LIST_USER_CHECKPOINTS, vec![]),
        ("GET", ["audit"]) => (route::AUDIT_LOG, vec![]),
        ("GET", ["billing", "usage", "events"]) => (route::BILLING_USAGE, vec![]),
        ("GET", ["billing", "usage", "checkpoints", "current"]) => {
            (route::CHECKPOINT_STORAGE_USAGE, vec![])
        }
        ("POST", ["forward_backward"]) => (route::FORWARD_BACKWARD, vec![]),
        ("POST", ["client", "dynamic_config"]) => (route::DYNAMIC_CONFIG, vec![]),
        ("POST", _) => {
            let kind = match name {
                "client/config" => "ClientConfigRequest",
                "auth/token" => "auth_token",
                "create_session" => "CreateSessionRequest",
                "create_model" => "CreateModelRequest",
                "get_info" => "GetInfoRequest",
                "optim_step" => "OptimStepRequest",
                "save_weights" => "SaveWeightsRequest",
                "save_weights_for_sampler" => "SaveWeightsForSamplerRequest",
                "save_weights_external" => "SaveWeightsExternalRequest",
                "load_weights" => "LoadWeightsRequest",
                "weights_info" => "weights_info",
                "create_sampling_session" => "CreateSamplingSessionRequest",
                "join_sampling_session" => "JoinSamplingSessionRequest",
                "asample" => "SampleRequest",
                "retrieve_future" => "FutureRetrieveRequest",
                "retrieve_futures" => "FuturesRetrieveRequest",
                "copy_weights" => "CopyWeightsRequest",
                other => panic!("no struct for {other}"),
            };
            let (route, written) = request_case(kind, body);
            return Some((route, path.to_owned(), Some(written)));
        }
        other => panic!("no route for {other:?}"),
    };
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let built = route.path(&values).unwrap();
    assert_eq!(built, path);
    Some((route, built, None))
}

#[test]
fn recorded_traffic_goes_to_the_routes_written_down() {
    let golden = include_str!("../../../tests/fixtures/wire/http_capture.json");
    let golden: Value = serde_json::from_str(golden).unwrap();
    let flows = ["service_flow", "rest_flow", "flags_flow"];
    for request in flows.iter().flat_map(|flow| list(&golden[flow])) {
        let path = text(request, "path");
        let Some((route, built, body)) = captured(text(request, "method"), path, &request["body"])
        else {
            assert_eq!(path, "/signed");
            continue;
        };
        assert_eq!(route.method.as_str(), text(request, "method"), "{path}");
        assert_eq!(
            built.split('?').next(),
            path.strip_prefix("/base").unwrap().split('?').next()
        );
        if let Some(body) = body {
            assert_same(&body, &request["body"], path);
        }
        let headers = &request["headers"];
        let timeout: f64 = text(headers, "x-stainless-read-timeout").parse().unwrap();
        assert_eq!(route.timeout.as_secs_f64(), timeout, "{path}");
        let method = headers.get("x-sdk-method").and_then(Value::as_str);
        if method.is_some() {
            assert_eq!(route.sdk_method, method, "{path}");
        } else {
            // A sampling client asks for its sampler without naming a method.
            assert!(
                route.sdk_method.is_none() || route == route::GET_SAMPLER,
                "{path}"
            );
        }
    }
}
