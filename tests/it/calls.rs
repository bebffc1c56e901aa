//! The low-level call, for endpoints that have no method yet.

use std::time::Duration;

use serde_json::{Value, json};
use tinker::Error;
use tinker::client::{CallBody, CopyOptions, Load, RawCall, Resume};
use tinker::config::Timeout;

use crate::support::fake::{Fake, route, train};
use crate::support::scripted::{Recorded, Reply};

/// A service that answers any call to `x` with its own words.
fn echoing() -> Fake {
    let fake = Fake::start();
    for method in ["GET", "POST", "PUT", "DELETE"] {
        let reply = Reply::json(&json!({"method": method})).with_header("x-note", "hello");
        fake.server.always(method, &route("x/y"), reply);
    }
    fake
}

fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

fn calls(fake: &Fake) -> Vec<Recorded> {
    fake.server.requests_to("x/y")
}

#[test]
fn answers_come_typed_or_as_they_are() {
    let fake = echoing();
    let service = fake.service();
    for (call, method) in [
        (RawCall::get("x/y"), "GET"),
        (RawCall::post("/x/y"), "POST"),
        (RawCall::put("x/y"), "PUT"),
        (RawCall::delete("x/y"), "DELETE"),
    ] {
        let call = call
            .with_query("name", "a b&c")
            .with_header("x-mine", "yes");
        let typed: Value = service.call(&call).unwrap();
        assert_eq!(typed, json!({ "method": method }));
        let raw = service.call_raw(&call).unwrap();
        assert_eq!((raw.status(), raw.header("X-Note")), (200, Some("hello")));
        assert_eq!(raw.json::<Value>().unwrap(), typed);
    }
    for request in calls(&fake) {
        assert_eq!(request.query, "name=a+b%26c");
        assert_eq!(request.header("x-mine"), Some("yes"));
        assert_eq!(request.header("x-api-key"), Some("tml-secret-key"));
    }
}

#[test]
fn bytes_files_and_forms_are_sent_and_sent_again_whole() {
    let content: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let file = file(&content);
    let path = || file.path().to_owned();
    let octets = || "application/octet-stream".to_owned();
    for body in [
        CallBody::Raw {
            content_type: octets(),
            bytes: content.clone(),
        },
        CallBody::File {
            content_type: octets(),
            path: path(),
        },
        CallBody::Form(vec![("one".into(), path()), ("two".into(), path())]),
    ] {
        let fake = echoing();
        fake.reply("x/y", Reply::hang_up());
        let call = RawCall::post("x/y").with_body(body.clone());
        fake.service().call_raw(&call).unwrap();
        let sent = calls(&fake);
        assert_eq!(sent.len(), 2);
        let key = |request: &Recorded| request.header("x-idempotency-key").map(str::to_owned);
        assert_eq!(key(&sent[0]), key(&sent[1]));
        for request in &sent {
            let kind = request.header("content-type").unwrap();
            match &body {
                CallBody::Form(_) => {
                    assert!(kind.starts_with("multipart/form-data; boundary="), "{kind}");
                    let found = request
                        .body
                        .windows(content.len())
                        .filter(|window| *window == content)
                        .count();
                    assert_eq!(found, 2);
                }
                _ => {
                    assert_eq!(kind, "application/octet-stream");
                    assert!(request.body == content);
                }
            }
        }
    }
}

#[test]
fn a_limit_in_time_is_the_client_s_none_or_its_own() {
    let fake = echoing();
    let service = fake.client(fake.config().with_read_timeout(Duration::from_secs(20)));
    for limit in [
        Timeout::Default,
        Timeout::None,
        Timeout::After(Duration::from_secs(3)),
    ] {
        let call = RawCall::get("x/y").with_timeout(limit);
        service.call_raw(&call).unwrap();
    }
    let limits: Vec<_> = calls(&fake)
        .iter()
        .map(|request| {
            let limit = request.header("x-stainless-read-timeout");
            limit.map(str::to_owned)
        })
        .collect();
    assert_eq!(limits, [Some("20".into()), None, Some("3".into())]);
}

#[test]
fn what_cannot_be_sent_is_refused_before_anything_is() {
    let fake = Fake::start();
    let service = fake.service();
    for path in ["", "/", "https://elsewhere/x", "x?y=1", "x#y"] {
        let error = service.call_raw(&RawCall::get(path)).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{path}: {error}");
    }
    assert_eq!(fake.server.requests().len(), 0);
    let missing = CallBody::File {
        content_type: "text/plain".into(),
        path: "no/such/file".into(),
    };
    let error = service
        .call_raw(&RawCall::post("x/y").with_body(missing))
        .unwrap_err();
    assert!(error.to_string().contains("no/such/file"), "{error}");
    assert_eq!(calls(&fake).len(), 0);
}

/// Refuses a request and quotes all of it, as FastAPI quotes a body it does not like.
fn quote(request: &Recorded) -> Reply {
    let Recorded {
        query,
        headers,
        body,
        ..
    } = request;
    let body = String::from_utf8_lossy(body);
    let detail = json!([{"loc": ["body"], "msg": body, "input": [query, headers]}]);
    Reply::json(&json!({ "detail": detail })).with_status(422)
}

#[track_caller]
fn check_hidden(error: &Error, secret: &str) {
    assert_eq!(error.status(), Some(422), "{error}");
    let shown = format!("{error} {error:?} {:?}", error.body());
    assert!(!shown.contains(secret), "{shown}");
    assert!(shown.contains("***"), "{shown}");
}

#[test]
fn a_token_for_weights_is_hidden_where_a_server_quotes_it() {
    const TOKEN: &str = "tml-hunter2-token";
    const PATH: &str = "tinker://r:train:0/weights/x";
    for via_load in [false, true] {
        let fake = Fake::with_flags(json!({"create_model_via_load_weights": via_load}));
        let info = json!({"base_model": "m", "is_lora": true, "lora_rank": 4});
        let info = Reply::json(&info);
        fake.server.always("POST", &route("weights_info"), info);
        for name in ["load_weights", "copy_weights"] {
            fake.server.on("POST", &route(name), quote);
        }
        // A client each, which has not seen the token before.
        let resume = Resume::from_checkpoint(PATH).with_weights_access_token(TOKEN);
        let resumed = fake.service().create_training_client_from_state(resume);
        check_hidden(&resumed.unwrap_err(), TOKEN);
        let load = Load::from_checkpoint(PATH).with_weights_access_token(TOKEN);
        #[allow(deprecated, reason = "it still sends the token")]
        let loaded = train(&fake.service()).load_state(load).unwrap().join();
        check_hidden(&loaded.unwrap_err(), TOKEN);
        let copy = CopyOptions::to_project("p").with_weights_access_token(TOKEN);
        let copied = fake.service().rest().copy_weights(PATH, copy);
        check_hidden(&copied.unwrap_err(), TOKEN);
    }
}

#[test]
fn what_a_streamed_answer_or_a_download_quotes_is_hidden_too() {
    const SIGNATURE: &str = "hunter2-hunter2-hunter2";
    let fake = Fake::start();
    let (folder, service) = (tempfile::tempdir().unwrap(), fake.service());
    fake.server.on("GET", &route("x/y"), quote);
    let streamed = service.call_stream(&RawCall::get("x/y"));
    check_hidden(&streamed.unwrap_err(), "tml-secret-key");
    let archive = route("training_runs/R/checkpoints/weights/a/archive");
    fake.server.on("GET", &archive, quote);
    let path = "tinker://R/weights/a";
    let saved = (service.rest()).download_checkpoint_archive(path, folder.path().join("a"));
    check_hidden(&saved.unwrap_err(), "tml-secret-key");
    let links = route("training_runs/R/checkpoints/external_weights/a/external_weights_urls");
    let signed = format!("{}/file?X-Amz-Signature={SIGNATURE}", fake.server.url());
    let urls = json!({"urls": {"a.bin": signed}, "expires": "2026-01-02T03:04:05Z"});
    fake.server.always("GET", &links, Reply::json(&urls));
    fake.server.on("GET", "/file", quote);
    let path = "tinker://R/external_weights/a";
    let saved = service
        .rest()
        .download_external_weights(path, folder.path());
    check_hidden(&saved.unwrap_err(), SIGNATURE);
}

/// A byte at a time: each read is quick, and the whole is not.
#[test]
fn a_deadline_holds_while_bytes_trickle_in() {
    let capabilities = Reply::json(&json!({"supported_models": [], "note": "x".repeat(400)}));
    for from in [0, 20, capabilities.wire_len() - 380] {
        let fake = Fake::start();
        let config = fake.config().with_call_deadline(Duration::from_millis(300));
        let service = tinker::ServiceClient::new(config).unwrap();
        let get = route("get_server_capabilities");
        let dripping = capabilities.clone().drip_from(from);
        fake.server.always("GET", &get, dripping);
        let error = service.capabilities().unwrap_err();
        assert!(error.is_timeout(), "{from}: {error}");
    }
}
