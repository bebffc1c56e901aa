//! The REST client: the requests the Python SDK makes, downloads, pages.

use std::time::Duration;

use serde_json::{Value, json};
use tinker::client::{CopyOptions, ListOptions, Pages};
use tinker::config::Config;
use tinker::types::{AccessScope, AuditEventType, Date, SessionSearch, TrainingRun};
use tinker::unversioned::Clock;
use tinker::{Error, LoraConfig, RestClient, ServiceClient};

use crate::support::scripted::{Recorded, Reply, Server};

const WEIGHTS: &str = "tinker://R1/weights/0001";

fn client(server: &Server) -> (RestClient, Clock) {
    let clock = Clock::recorded();
    let config = Config::default()
        .with_base_url(format!("{}/base", server.url()))
        .with_api_key("tml-golden");
    let service = tinker::unversioned::client_with_clock(config, clock.clone()).unwrap();
    (service.rest(), clock)
}

/// Answers every endpoint with records from the recorded replies.
fn script(server: &Server) {
    let run = json!({"training_run_id": "R1", "base_model": "m", "model_owner": "o",
        "is_lora": true, "last_request_time": "2026-01-02T03:04:05Z"});
    let cursor = json!({"offset": 0, "limit": 20, "total_count": 1});
    let checkpoints = json!({"checkpoints": [{"checkpoint_id": "weights/0001",
        "checkpoint_type": "training", "time": "2026-01-02T03:04:05Z", "tinker_path": WEIGHTS}]});
    let checkpoint = "training_runs/R1/checkpoints/weights/0001";
    let publish = &format!("{checkpoint}/publish");
    for (method, route, answer) in [
        ("POST", "client/config", json!({})),
        ("GET", "training_runs/R1", run.clone()),
        (
            "GET",
            "training_runs",
            json!({"training_runs": [run], "cursor": cursor}),
        ),
        ("GET", "training_runs/R1/checkpoints", checkpoints.clone()),
        ("GET", "checkpoints", checkpoints),
        (
            "GET",
            "sessions/S1",
            json!({"training_run_ids": ["R1"], "sampler_ids": []}),
        ),
        ("GET", "sessions", json!({"sessions": ["S1"]})),
        (
            "GET",
            "samplers/S1:sample:0",
            json!({"sampler_id": "S1:sample:0", "base_model": "m"}),
        ),
        ("POST", publish, Value::Null),
        ("DELETE", publish, Value::Null),
        ("PUT", &format!("{checkpoint}/ttl"), Value::Null),
        ("DELETE", checkpoint, Value::Null),
        ("PUT", "sessions/S1/project", Value::Null),
        (
            "GET",
            "training_runs/R1/checkpoints/external_weights/a/external_weights_urls",
            json!({"urls": {}, "expires": "2026-01-02T03:04:05Z"}),
        ),
        (
            "GET",
            "sessions/S1/trace_export",
            json!({"status": "ready", "url": "https://x/y"}),
        ),
        (
            "POST",
            "copy_weights",
            json!({"tinker_path": "tinker://R2/weights/0001"}),
        ),
        ("POST", "sessions/search", json!({"sessions": []})),
        ("GET", "/signed", json!({"entries": []})),
        ("GET", "billing/usage/events", json!({"data": []})),
        (
            "GET",
            "billing/usage/checkpoints/current",
            json!({"data": []}),
        ),
    ] {
        server.always(method, route, Reply::json(&answer));
    }
    server.always(
        "GET",
        "audit",
        Reply::status(302).with_header("location", "/signed"),
    );
}

/// What the Python SDK sent for the same calls: method, path with query, public method, body.
fn golden() -> Vec<(String, String, Value, Value)> {
    let text = include_str!("../fixtures/wire/http_capture.json");
    let capture: Value = serde_json::from_str(text).unwrap();
    let flow = capture["rest_flow"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut flow: Vec<_> = flow
        .iter()
        .map(|request| {
            (
                text(&request["method"]),
                text(&request["path"]),
                request["headers"]["x-sdk-method"].clone(),
                request["body"].clone(),
            )
        })
        .collect();
    flow.retain(|(_, path, ..)| !path.contains("/client/"));
    flow
}

fn sent(request: &Recorded) -> (String, String, Value, Value) {
    let path = match request.query.as_str() {
        "" => request.path.clone(),
        query => format!("{}?{query}", request.path),
    };
    let body = match request.body.is_empty() {
        true => Value::Null,
        false => request.json(),
    };
    let method = request.header("x-sdk-method").into();
    (request.method.clone(), path, method, body)
}

#[test]
fn every_call_is_the_one_the_python_sdk_makes() {
    let server = Server::start();
    script(&server);
    let (rest, _) = client(&server);
    let owned = AccessScope::Owned;
    let accessible = ListOptions::default().with_access_scope(AccessScope::Accessible);
    rest.training_run("R1", owned).unwrap();
    let runs = rest.list_training_runs(ListOptions::default().with_project("p"));
    assert_eq!(runs.unwrap().training_runs.len(), 1);
    assert_eq!(rest.list_checkpoints("R1").unwrap().len(), 1);
    rest.list_user_checkpoints(ListOptions::default()).unwrap();
    rest.session("S1", owned).unwrap();
    rest.list_sessions(&accessible).unwrap();
    rest.sampler("S1:sample:0").unwrap();
    rest.publish_checkpoint(WEIGHTS).unwrap();
    rest.unpublish_checkpoint(WEIGHTS).unwrap();
    rest.set_checkpoint_ttl(WEIGHTS, None).unwrap();
    rest.delete_checkpoint(WEIGHTS).unwrap();
    rest.assign_session_project("S1", "P2").unwrap();
    rest.external_weights_urls("tinker://R1/external_weights/a")
        .unwrap();
    assert_eq!(rest.export_session_trace("S1").unwrap(), "https://x/y");
    let options = CopyOptions::to_project("PP")
        .with_ttl(Duration::from_secs(3600))
        .with_weights_access_token("tml-other");
    let copy = rest.copy_weights(WEIGHTS, options).unwrap();
    assert_eq!(copy, "tinker://R2/weights/0001");
    rest.search_sessions(&SessionSearch::default()).unwrap();
    let day = Date::constant(2026, 1, 15);
    rest.audit_log(AuditEventType::All, Some(day)).unwrap();
    let at = |text: &str| text.parse().unwrap();
    rest.billing_usage(at("2026-07-13T00:00:00Z"), at("2026-07-14T00:00:00Z"))
        .unwrap();
    rest.storage_usage(Some("P1")).unwrap();

    let requests = server.requests();
    let made: Vec<_> = requests[1..].iter().map(sent).collect();
    assert_eq!(made, golden());
    let copied = &server.requests_to("copy_weights")[0];
    assert_eq!(
        copied.header("x-tinker-weights-access-token"),
        Some("tml-other")
    );
}

#[test]
fn a_conflict_is_an_answer() {
    let server = Server::start();
    script(&server);
    let route = "training_runs/R1/checkpoints/weights/0001/publish";
    let conflict = Reply::json(&json!({"detail": "already public"})).with_status(409);
    server.reply("POST", route, Reply::status(503));
    server.reply("POST", route, conflict);
    let (rest, clock) = client(&server);
    let error = rest.publish_checkpoint(WEIGHTS).unwrap_err();
    assert_eq!(error.status(), Some(409));
    assert_eq!(clock.pauses().len(), 1, "only the 503 was repeated");
}

#[test]
fn a_trace_is_asked_for_every_five_seconds() {
    let server = Server::start();
    script(&server);
    for _ in 0..3 {
        let pending = json!({"status": "pending"});
        server.reply("GET", "sessions/S1/trace_export", Reply::json(&pending));
    }
    let (rest, clock) = client(&server);
    rest.export_session_trace("S1").unwrap();
    assert_eq!(clock.pauses(), [Duration::from_secs(5); 3]);

    let failed = json!({"status": "failed", "error": "too long"});
    server.reply("GET", "sessions/S1/trace_export", Reply::json(&failed));
    let error = rest.export_session_trace("S1").unwrap_err();
    assert!(matches!(error, Error::Failed(_)), "{error}");
    assert!(error.to_string().contains("too long"), "{error}");
}

#[test]
fn searches_go_on_where_the_last_page_ended() {
    let server = Server::start();
    script(&server);
    let session = |id: &str| {
        json!({"session_id": id, "created_at": "2026-01-02T03:04:05Z", "owner": "o",
            "project_id": "p", "checkpoints_count": 0})
    };
    let cursor = json!({"last_created_at": "2026-01-02T03:04:05Z", "last_session_id": "S1"});
    let first = json!({"sessions": [session("S1")], "next_cursor": cursor});
    let second = json!({"sessions": [session("S2")]});
    server.reply("POST", "sessions/search", Reply::json(&first));
    server.reply("POST", "sessions/search", Reply::json(&second));
    let (rest, _) = client(&server);
    let found = rest.matching_sessions(SessionSearch::default());
    let ids: Vec<String> = found.map(|s| s.unwrap().session_id.to_string()).collect();
    assert_eq!(ids, ["S1", "S2"]);
    assert_eq!(
        server.requests_to("sessions/search")[1].json()["cursor"],
        cursor
    );
}

/// Lists one file at the scripted server's `/file`.
fn offer(server: &Server, name: &str) -> &'static str {
    let urls = json!({"urls": {name: format!("{}/file?signed=1", server.url())},
        "expires": "2026-01-02T03:04:05Z"});
    let route = "training_runs/R1/checkpoints/external_weights/a/external_weights_urls";
    server.always("GET", route, Reply::json(&urls));
    "tinker://R1/external_weights/a"
}

/// As in the reference, before anything is asked.
#[test]
fn only_external_weights_have_links() {
    let server = Server::start();
    script(&server);
    let (rest, _) = client(&server);
    let folder = tempfile::tempdir().unwrap();
    for path in [WEIGHTS, "tinker://R1/sampler_weights/a", "tinker://R1/a"] {
        let errors = [
            rest.external_weights_urls(path).unwrap_err(),
            rest.download_external_weights(path, folder.path())
                .unwrap_err(),
        ];
        for error in errors {
            let expected = format!(
                "invalid path: must be tinker://<run>/external_weights/<name>, got {path:?}"
            );
            assert_eq!(error.to_string(), expected);
        }
    }
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn downloads_are_taken_up_where_they_broke() {
    let server = Server::start();
    script(&server);
    let path = offer(&server, "deep/adapter.bin");
    let body: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let bytes = |body: &[u8]| Reply::bytes("application/octet-stream", body);
    server.reply("GET", "/file", Reply::status(503));
    server.reply("GET", "/file", bytes(&body).cut_before_end(40_000));
    server.reply(
        "GET",
        "/file",
        bytes(&body[60_000..])
            .with_status(206)
            .with_header("content-range", "bytes 60000-99999/100000"),
    );
    let (rest, _) = client(&server);
    let folder = tempfile::tempdir().unwrap();
    let files = rest.download_external_weights(path, folder.path()).unwrap();
    assert_eq!(files, [folder.path().join("deep/adapter.bin")]);
    assert!(std::fs::read(&files[0]).unwrap() == body);
    let ranges: Vec<_> = server
        .requests_to("/file")
        .iter()
        .map(|request| request.header("range").map(str::to_owned))
        .collect();
    assert_eq!(ranges, [None, None, Some("bytes=60000-".to_owned())]);
    let asked = &server.requests_to("/file")[0];
    assert_eq!(asked.header("x-api-key"), None, "signed URLs get no key");
}

#[test]
fn a_download_that_begins_again_is_not_appended() {
    let server = Server::start();
    script(&server);
    let path = offer(&server, "a.bin");
    let body = vec![7u8; 50_000];
    let whole = Reply::bytes("application/octet-stream", body.clone());
    server.reply("GET", "/file", whole.clone().cut_before_end(10));
    server.always("GET", "/file", whole);
    let (rest, _) = client(&server);
    let folder = tempfile::tempdir().unwrap();
    let files = rest.download_external_weights(path, folder.path()).unwrap();
    assert!(std::fs::read(&files[0]).unwrap() == body);
}

#[test]
fn nothing_is_written_outside_the_folder_or_left_behind() {
    let server = Server::start();
    script(&server);
    let (rest, _) = client(&server);
    let folder = tempfile::tempdir().unwrap();
    let path = offer(&server, "../evil");
    let error = rest
        .download_external_weights(path, folder.path())
        .unwrap_err();
    assert!(matches!(error, Error::Reply(_)), "{error}");
    offer(&server, "a.bin");
    server.always("GET", "/file", Reply::status(403));
    let error = rest
        .download_external_weights(path, folder.path())
        .unwrap_err();
    assert_eq!(error.status(), Some(403));
    assert!(!error.to_string().contains("signed=1"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn archives_are_waited_for_and_followed() {
    let server = Server::start();
    script(&server);
    let route = "training_runs/R1/checkpoints/weights/0001/archive";
    server.reply("GET", route, Reply::status(503));
    server.reply(
        "GET",
        route,
        Reply::status(302).with_header("location", "/file"),
    );
    let address =
        json!({"url": format!("{}/file", server.url()), "expires": "2026-01-02T03:04:05Z"});
    server.reply("GET", route, Reply::json(&address));
    server.always("GET", "/file", Reply::bytes("application/x-tar", "archive"));
    let (rest, clock) = client(&server);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.tar");
    for _ in ["redirect", "named address"] {
        rest.download_checkpoint_archive(WEIGHTS, &file).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"archive");
    }
    assert_eq!(clock.pauses(), [Duration::from_secs(30)]);
}

#[test]
fn wrong_arguments_are_refused_before_sending() {
    let server = Server::start();
    script(&server);
    let (rest, _) = client(&server);
    let hour = |text: &str| text.parse().unwrap();
    let refused = [
        rest.delete_checkpoint("R1/weights/0001"),
        rest.publish_checkpoint("tinker://R1/weights/.."),
        rest.set_checkpoint_ttl(WEIGHTS, Some(Duration::from_secs(60))),
        rest.copy_weights(WEIGHTS, CopyOptions::default()).map(drop),
        rest.billing_usage(hour("2026-01-01T00:30:00Z"), hour("2026-01-02T00:00:00Z"))
            .map(drop),
        rest.billing_usage(hour("2026-01-01T00:00:00Z"), hour("2026-01-16T00:00:00Z"))
            .map(drop),
        rest.search_sessions(&SessionSearch::default().with_limit(0))
            .map(drop),
    ];
    for (index, result) in refused.into_iter().enumerate() {
        assert!(
            matches!(result, Err(Error::Invalid(_))),
            "{index}: {result:?}"
        );
    }
    assert!(server.requests().is_empty());
}

#[test]
fn lists_what_the_embedded_server_keeps() {
    let service = ServiceClient::local().unwrap();
    let models = service.capabilities().unwrap().supported_models;
    let model = models[0].model_name.clone().unwrap();
    let mut paths = Vec::new();
    for _ in 0..3 {
        let training = service
            .create_lora_training_client(&model, LoraConfig::rank(2))
            .unwrap();
        let saved = training.save_state("a").unwrap();
        paths.push(saved.join().unwrap().path);
    }
    let rest = service.rest();
    // Pages that hold nothing would pass for a list that does.
    let first = |mut pages: Pages<TrainingRun>| pages.next().unwrap();
    let error = first(rest.training_runs(0)).unwrap_err();
    assert!(error.to_string().contains("limit"), "{error}");
    let two = || ListOptions::default().with_limit(2);
    assert_eq!(
        rest.training_runs(two())
            .collect::<Result<Vec<_>, _>>()
            .unwrap()
            .len(),
        3
    );
    let mut found: Vec<String> = rest
        .user_checkpoints(two())
        .map(|checkpoint| checkpoint.unwrap().tinker_path)
        .collect();
    found.sort();
    paths.sort();
    assert_eq!(found, paths);
    let run = rest
        .training_run_by_tinker_path(&paths[0], AccessScope::Owned)
        .unwrap();
    assert_eq!(run.last_checkpoint.unwrap().tinker_path, paths[0]);
    assert_eq!(rest.weights_info(&paths[0]).unwrap().lora_rank, Some(2));
}

#[test]
fn both_clients_know_the_tokenizer() {
    let service = ServiceClient::local().unwrap();
    let models = service.capabilities().unwrap().supported_models;
    let model = models[0].model_name.clone().unwrap();
    let training = service
        .create_lora_training_client(&model, LoraConfig::rank(2))
        .unwrap();
    let sampler = training.save_weights_and_get_sampling_client().unwrap();
    let expected = training
        .tokenizer()
        .unwrap()
        .encode("igpay atinlay")
        .unwrap();
    assert_eq!(
        sampler
            .tokenizer()
            .unwrap()
            .encode("igpay atinlay")
            .unwrap(),
        expected
    );
}

#[test]
fn an_archive_that_cannot_be_followed_leaves_the_file_as_it_was() {
    let server = Server::start();
    script(&server);
    let route = "training_runs/R1/checkpoints/weights/0001/archive";
    let address = json!({"url": format!("{}/file", server.url())});
    server.always("GET", route, Reply::json(&address));
    server.always("GET", "/file", Reply::status(400));
    let (rest, _) = client(&server);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.tar");
    std::fs::write(&file, "mine").unwrap();
    let error = rest
        .download_checkpoint_archive(WEIGHTS, &file)
        .unwrap_err();
    assert_eq!(error.status(), Some(400));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
