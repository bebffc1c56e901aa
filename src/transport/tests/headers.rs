//! What every request says, against the recorded ones, and where redirects carry it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;

/// Headers of the connection rather than of the protocol.
const HOP: [&str; 5] = [
    "host",
    "content-length",
    "connection",
    "accept-encoding",
    "transfer-encoding",
];

fn comparable(request: &Recorded) -> BTreeMap<String, String> {
    request
        .headers
        .iter()
        .filter(|(name, _)| !HOP.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), masked(name, value)))
        .collect()
}

/// Hides what rightly differs from the reference: who we are, and made-up values.
fn masked(name: &str, value: &str) -> String {
    match name {
        "user-agent"
        | "x-stainless-os"
        | "x-stainless-arch"
        | "x-stainless-runtime"
        | "x-stainless-runtime-version"
        | "x-stainless-async" => "<ours>".to_owned(),
        "x-idempotency-key" => "<key>".to_owned(),
        // `45` and `45.0` are the same limit.
        "x-stainless-read-timeout" => value.parse::<f64>().unwrap().to_string(),
        _ => value.to_owned(),
    }
}

#[test]
fn headers_equal_the_captured_ones() {
    let capture: Value = serde_json::from_str(include_str!(
        "../../../tests/fixtures/wire/http_capture.json"
    ))
    .unwrap();
    let mut compared = 0;
    for flow in ["service_flow", "rest_flow", "flags_flow"] {
        for captured in capture[flow].as_array().unwrap() {
            // The redirect's target: the reference sends its key there, we do not.
            if captured["path"] == "/signed" {
                continue;
            }
            compare_with_capture(captured);
            compared += 1;
        }
    }
    assert!(compared > 70, "{compared}");
}

fn compare_with_capture(captured: &Value) {
    let expected: BTreeMap<String, String> = captured["headers"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name.clone(), masked(name, value.as_str().unwrap())))
        .collect();
    let server = Server::start();
    server.otherwise(|_| hello());
    let transport = Transport::new(
        &Config::default()
            .with_base_url(format!("{}/base", server.url()))
            .with_header("X-Extra", "1")
            .with_cloudflare_access("cf-id", "cf-secret"),
    )
    .unwrap();
    let transport = if expected.contains_key("cf-access-client-id") {
        transport
    } else {
        Transport::new(&Config::default().with_base_url(format!("{}/base", server.url()))).unwrap()
    };
    let target = captured["path"]
        .as_str()
        .unwrap()
        .trim_start_matches("/base");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let method = match captured["method"].as_str().unwrap() {
        "GET" => Method::Get,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        _ => Method::Post,
    };
    let key = Secret::from(expected["x-api-key"].as_str());
    let body = if captured.get("proto").is_some() {
        let zstd = expected.contains_key("content-encoding");
        Body::Proto { bytes: b"p", zstd }
    } else if captured.get("body").is_some_and(|body| !body.is_null()) {
        Body::Json(b"{}")
    } else {
        Body::Empty
    };
    let limit: f64 = expected["x-stainless-read-timeout"].parse().unwrap();
    let mut request = Request::new(method, path, Pool::Rest)
        .with_query(query)
        .with_body(body)
        .with_key(&key)
        .with_read_timeout(Duration::from_secs_f64(limit))
        .with_accept(&expected["accept"]);
    // What one call adds.
    for (name, value) in &expected {
        if name.starts_with("x-tinker-")
            || name.starts_with("x-sdk-")
            || name == "x-stainless-raw-response"
        {
            request = request.with_header(name, value.as_str());
        }
    }
    transport.exchange(&request).unwrap();
    let sent = &server.requests()[0];
    assert_eq!(comparable(sent), expected, "{}", captured["path"]);
    assert_eq!(sent.path, format!("/base{path}"));
    assert_eq!(sent.query, query);
}

#[test]
fn headers_override_in_the_documented_order() {
    let server = Server::start();
    server.otherwise(|_| hello());
    let transport = Transport::new(
        &config(&server)
            .with_header("accept", "text/override")
            .with_header("X-Call", "client")
            .with_header("X-Api-Key", "client")
            .with_header("X-Stainless-Retry-Count", "client")
            .with_header("User-Agent", "mine"),
    )
    .unwrap();
    let key = Secret::from("key");
    let mut request = post("x").with_key(&key).with_header("x-call", "call");
    request.retry_count = 3;
    transport.exchange(&request).unwrap();
    transport
        .exchange(&post("x").with_accept("text/call"))
        .unwrap();
    let requests = server.requests();
    let first = |name| requests[0].header(name);
    assert_eq!(first("accept"), Some("text/override"));
    assert_eq!(first("x-call"), Some("call"));
    assert_eq!(first("x-api-key"), Some("key"));
    assert_eq!(first("x-stainless-retry-count"), Some("3"));
    assert_eq!(first("user-agent"), Some("mine"));
    assert_eq!(requests[1].header("accept"), Some("text/call"));
}

#[test]
fn timeouts_default_none_and_value_differ() {
    let server = Server::start();
    server.otherwise(|_| hello());
    let header = |config: Config, request: Timeout| {
        let transport = Transport::new(&config).unwrap();
        transport
            .exchange(&post("x").with_read_timeout(request))
            .unwrap();
        let requests = server.requests();
        let last = requests.last().unwrap();
        last.header("x-stainless-read-timeout").map(str::to_owned)
    };
    let after = |seconds| Timeout::After(Duration::from_secs(seconds));
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(header(config(&server), Timeout::Default), text("60"));
    assert_eq!(header(config(&server), Timeout::None), None);
    assert_eq!(header(config(&server), after(45)), text("45"));
    assert_eq!(
        header(
            config(&server).with_read_timeout(after(7)),
            Timeout::Default
        ),
        text("7")
    );
    assert_eq!(
        header(config(&server).with_read_timeout(after(7)), after(45)),
        text("45")
    );
    assert_eq!(
        header(
            config(&server).with_read_timeout(Timeout::None),
            Timeout::Default
        ),
        None
    );
}

#[test]
fn a_route_brings_its_pool_timeout_and_names() {
    let route = &crate::wire::route::SESSION_HEARTBEAT;
    let request = Request::to(route, route.fixed_path());
    assert_eq!(request.pool, Pool::Session);
    assert_eq!(request.label, "POST session_heartbeat");
    assert_eq!(
        request.read_timeout,
        Timeout::After(Duration::from_secs(10))
    );
}

#[test]
fn idempotency_keys_are_new_for_each_change_and_absent_for_reads() {
    let server = Server::start();
    server.otherwise(|_| hello());
    let transport = transport(&server);
    transport.exchange(&post("x")).unwrap();
    transport.exchange(&post("x")).unwrap();
    transport
        .exchange(&post("x").with_idempotency_key("fixed"))
        .unwrap();
    transport.exchange(&get("x")).unwrap();
    let requests = server.requests();
    let keys: Vec<_> = requests
        .iter()
        .map(|r| r.header("x-idempotency-key"))
        .collect();
    assert!(keys[0].is_some() && keys[1].is_some() && keys[0] != keys[1]);
    assert_eq!(keys[2], Some("fixed"));
    assert_eq!(keys[3], None);
}

#[test]
fn unusable_headers_say_which() {
    let refuse = |name: &str, value: &str| {
        let config = Config::default().with_header(name, value);
        Transport::new(&config).unwrap_err().to_string()
    };
    assert!(refuse("bad name", "v").contains("`bad name` is not a header name"));
    let text = refuse("X-Line", "hunter2\nX-Forged: 1");
    assert!(
        text.contains("X-Line") && !text.contains("hunter2"),
        "{text}"
    );
    let server = Server::start();
    let key = Secret::from("hunter2\n");
    let fault = transport(&server)
        .exchange(&post("x").with_key(&key))
        .unwrap_err();
    assert_eq!(fault.kind, FaultKind::Request);
    assert!(!fault.to_string().contains("hunter2"));
}

#[test]
fn another_host_sees_three_headers_only() {
    let (service, storage) = (Server::start(), Server::start());
    let signed = format!("{}/file?sig=1", storage.url());
    service.reply(
        "GET",
        "audit",
        Reply::status(302).with_header("Location", &signed),
    );
    storage.reply("GET", "/file", Reply::bytes("text/plain", "content"));
    let config = config(&service)
        .with_header("X-Extra", "1")
        .with_cloudflare_access("id", "secret");
    let key = Secret::from("tml-1");
    let request = get("audit").with_key(&key).with_header("range", "bytes=0-");
    let answer = Transport::new(&config).unwrap().exchange(&request).unwrap();
    assert_eq!(answer.body, b"content");
    let seen = &storage.requests()[0];
    let mut names: Vec<_> = comparable(seen).into_keys().collect();
    names.sort();
    assert_eq!(names, ["accept", "range", "user-agent"]);
    assert_eq!(seen.query, "sig=1");
}

#[test]
fn a_signed_url_sees_three_headers_only() {
    let (service, storage) = (Server::start(), Server::start());
    storage.always("GET", "/file", Reply::bytes("text/plain", "content"));
    let config = config(&service)
        .with_header("X-Extra", "1")
        .with_cloudflare_access("id", "secret");
    let transport = Transport::new(&config).unwrap();
    let url = format!("{}/file?sig=1", storage.url());
    transport
        .download(
            &url,
            Rest {
                from: 1,
                mark: None,
            },
            &mut Vec::new(),
        )
        .unwrap();
    // Not even a key that was asked for.
    let key = Secret::from("tml-hunter2");
    let request = Request::new(Method::Get, url.as_str(), Pool::Rest).with_key(&key);
    transport.exchange(&request).unwrap();
    let names = |request: &Recorded| comparable(request).into_keys().collect::<Vec<_>>();
    let seen = storage.requests();
    assert_eq!(names(&seen[0]), ["accept", "range", "user-agent"]);
    assert_eq!(names(&seen[1]), ["accept", "user-agent"]);
}

#[test]
fn the_same_host_sees_everything() {
    let server = Server::start();
    server.reply(
        "GET",
        "old",
        Reply::status(301).with_header("Location", "new?a=1"),
    );
    server.reply("GET", "new", hello());
    let key = Secret::from("tml-1");
    transport(&server)
        .exchange(&get("old").with_key(&key))
        .unwrap();
    let requests = server.requests();
    assert_eq!(comparable(&requests[0]), comparable(&requests[1]));
    assert_eq!(requests[1].query, "a=1");
}

#[test]
fn a_body_travels_within_its_origin_only() {
    let (first, second) = (Server::start(), Server::start());
    first.reply(
        "POST",
        "x",
        Reply::status(307).with_header("Location", "/moved"),
    );
    first.reply("POST", "/moved", hello());
    let transport = transport(&first);
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
    assert_eq!(first.requests()[1].body, b"{}");
    let elsewhere = format!("{}/moved", second.url());
    first.reply(
        "POST",
        "x",
        Reply::status(307).with_header("Location", &elsewhere),
    );
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 307);
    assert!(second.requests().is_empty());
}

#[test]
fn see_other_is_fetched_without_the_body() {
    let server = Server::start();
    server.reply(
        "POST",
        "x",
        Reply::status(303).with_header("Location", "/result"),
    );
    server.reply("GET", "/result", hello());
    transport(&server).exchange(&post("x")).unwrap();
    let second = &server.requests()[1];
    assert!(second.body.is_empty());
    assert_eq!(second.header("content-type"), None);
    assert_eq!(second.header("x-idempotency-key"), None);
}

/// A service that sends a request on to its answer may have done it, whatever lies there.
#[test]
fn what_was_sent_on_to_its_answer_may_have_counted() {
    use super::retry::error_from_response;
    use crate::error::Effect;
    let server = Server::start();
    let (stranger, known) = (transport(&server), transport(&server));
    server.reply("GET", "hello", hello());
    known.exchange(&get("hello")).unwrap();
    // Nobody listens, the way is not one, and an empty 400 is somebody's on the way.
    for location in ["http://127.0.0.1:1/result", "ftp://h/result", "/result"] {
        server.always("GET", "/result", Reply::status(400));
        for transport in [&stranger, &known] {
            for status in [301, 302, 303] {
                let reply = || Reply::status(status).with_header("Location", location);
                server.reply("POST", "x", reply());
                let fault = transport.exchange(&post("x")).unwrap_err();
                let effects = [fault.meaning().effect(), fault.to_error("POST x").effect()];
                assert_eq!(
                    effects,
                    [Effect::Unknown; 2],
                    "{status} {location}: {fault}"
                );
                // What only asks has nothing to count.
                server.reply("GET", "x", reply());
                let fault = transport.exchange(&get("x")).unwrap_err();
                assert_eq!(
                    fault.meaning().effect(),
                    Effect::None,
                    "{status} {location}"
                );
            }
        }
    }
    // An answer that is refused is none either.
    for refusal in [401, 404, 409, 410, 422, 429] {
        server.always(
            "GET",
            "/refused",
            Reply::json(&json!({})).with_status(refusal),
        );
        for (request, effect) in [(post("x"), Effect::Unknown), (get("x"), Effect::None)] {
            let reply = Reply::status(303).with_header("Location", "/refused");
            server.reply(request.method.as_str(), "x", reply);
            let response = known.exchange(&request).unwrap();
            let error = error_from_response(&response, "x", SystemTime::now());
            assert_eq!((error.status(), error.effect()), (Some(refusal), effect));
        }
    }
    // What may be final the first time is so still.
    let reply = Reply::status(303).with_header("Location", "ftp://h/result");
    server.reply("POST", "x", reply);
    let fault = stranger.exchange(&post("x")).unwrap_err();
    assert!(!fault.meaning().is_passing(), "{fault}");
    assert!(matches!(fault.to_error("POST x"), Error::Config(_)));
}

#[test]
fn redirects_end_after_five() {
    let server = Server::start();
    server.always("GET", "x", Reply::status(302).with_header("Location", "x"));
    let fault = transport(&server).exchange(&get("x")).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Redirect);
    assert_eq!(server.requests().len(), 6);
}

/// Each hop alone is within the limit; all of them are not.
#[test]
fn redirects_share_one_limit() {
    let server = Server::start();
    let reply = Reply::status(302).with_header("Location", "x");
    let place = reply.wire_len() - 20;
    server.always("GET", "x", reply.drip_from(place));
    let mut request = get("x");
    request.whole_timeout = Some(Duration::from_millis(300));
    let fault = transport(&server).exchange(&request).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Timeout { sent: true }, "{fault}");
}
