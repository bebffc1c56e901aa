//! What one attempt does, against a scripted server.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::*;
use crate::config::Timeout;
use crate::scripted::{Gate, Recorded, Reply, Server};
use crate::wire::route::API_PREFIX;

fn config(server: &Server) -> Config {
    Config::default().with_base_url(server.url())
}

fn transport(server: &Server) -> Transport {
    Transport::new(&config(server)).unwrap()
}

fn post(name: &str) -> Request<'_> {
    Request::new(Method::Post, format!("{API_PREFIX}{name}"), Pool::Session)
        .with_body(Body::Json(b"{}"))
}

fn get(name: &str) -> Request<'_> {
    Request::new(Method::Get, format!("{API_PREFIX}{name}"), Pool::Rest)
}

fn hello() -> Reply {
    Reply::json(&json!({"greeting": "hé"}))
}

// ---- the fault matrix -------------------------------------------------------------------------

/// One scripted answer in, one kind of fault out; the next attempt must work.
#[track_caller]
fn check_fault(reply: Reply, expected: FaultKind) {
    let server = Server::start();
    server.reply("POST", "x", reply);
    server.always("POST", "x", hello());
    let transport = transport(&server);
    let fault = transport.exchange(&post("x")).unwrap_err();
    assert_eq!(fault.kind, expected, "{fault}");
    let error = fault.to_error("POST x");
    assert!(error.to_string().contains("POST x"), "{error}");
    assert_eq!(error.is_timeout(), fault.is_timeout());
    let answer = transport.exchange(&post("x")).unwrap();
    assert_eq!(answer.status(), 200);
}

#[test]
fn fault_hang_up_after_effect() {
    check_fault(Reply::hang_up(), FaultKind::Dropped);
}

#[test]
fn fault_hang_up_before_effect() {
    check_fault(Reply::hang_up().before_effect(), FaultKind::Dropped);
}

#[test]
fn fault_not_http() {
    check_fault(Reply::raw("SMTP ready\r\n\r\n"), FaultKind::Malformed);
}

#[test]
fn fault_status_line_cut() {
    check_fault(hello().cut_at(7), FaultKind::Dropped);
}

#[test]
fn fault_headers_cut() {
    check_fault(hello().cut_at(30), FaultKind::Dropped);
}

#[test]
fn fault_body_cut() {
    check_fault(hello().cut_before_end(1), FaultKind::Truncated);
}

#[test]
fn fault_body_missing() {
    let body = hello();
    let head = body.wire_len() - json!({"greeting": "hé"}).to_string().len();
    check_fault(body.cut_at(head), FaultKind::Truncated);
}

#[test]
fn fault_chunks_cut() {
    check_fault(hello().chunked(3).cut_before_end(9), FaultKind::Truncated);
}

#[test]
fn fault_last_chunk_missing() {
    check_fault(hello().chunked(3).cut_before_end(5), FaultKind::Truncated);
}

#[test]
fn fault_chunk_size_garbled() {
    let text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n";
    check_fault(Reply::raw(text), FaultKind::Malformed);
}

#[test]
fn fault_headers_too_large() {
    let reply = hello().with_header("x-long", &"a".repeat(200_000));
    check_fault(reply, FaultKind::Dropped);
}

#[test]
fn fault_empty_400_is_a_proxys() {
    check_fault(Reply::status(400), FaultKind::Rejected);
}

#[test]
fn fault_connection_closed_on_accept() {
    let server = Server::start();
    server.drop_connections(1);
    server.always("POST", "x", hello());
    let transport = transport(&server);
    let fault = transport.exchange(&post("x")).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Dropped);
    assert!(transport.exchange(&post("x")).is_ok());
}

#[test]
fn fault_nobody_listens() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = Config::default().with_base_url(format!("http://127.0.0.1:{port}"));
    let fault = Transport::new(&config)
        .unwrap()
        .exchange(&get("x"))
        .unwrap_err();
    assert_eq!(fault.kind, FaultKind::Connect);
    assert!(!fault.may_have_arrived());
    assert!(
        fault
            .to_error("GET x")
            .to_string()
            .contains("check the base URL")
    );
}

#[test]
fn fault_unknown_host() {
    let config = Config::default().with_base_url("http://no-such-host.invalid");
    let fault = Transport::new(&config)
        .unwrap()
        .exchange(&get("x"))
        .unwrap_err();
    assert_eq!(fault.kind, FaultKind::Resolve);
}

#[test]
fn fault_plain_server_for_https() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let config = Config::default().with_base_url(format!("https://127.0.0.1:{port}"));
    let fault = Transport::new(&config)
        .unwrap()
        .exchange(&get("x"))
        .unwrap_err();
    assert_eq!(fault.kind, FaultKind::Tls, "{fault}");
    assert!(!fault.is_retryable());
    server.join().unwrap();
}

#[test]
fn fault_silent_server_times_out_before_the_answer() {
    let server = Server::start();
    let gate = Gate::new();
    server.reply("POST", "x", hello().after(&gate));
    let request = post("x").with_read_timeout(Duration::from_millis(20));
    let fault = transport(&server).exchange(&request).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Timeout { sent: true });
    assert!(fault.to_error("POST x").is_timeout());
}

#[test]
fn fault_silent_server_times_out_within_the_answer() {
    let server = Server::start();
    let gate = Gate::new();
    let reply = hello();
    let place = reply.wire_len() - 1;
    server.reply("POST", "x", reply.stall_at(place, &gate));
    let request = post("x").with_read_timeout(Duration::from_millis(20));
    let fault = transport(&server).exchange(&request).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Timeout { sent: true });
}

#[test]
fn empty_400s_surface_when_the_budget_is_spent_and_successes_refill_it() {
    let server = Server::start();
    let transport = transport(&server);
    for _ in 0..16 {
        server.reply("POST", "x", Reply::status(400));
        let fault = transport.exchange(&post("x")).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Rejected);
    }
    assert_eq!(
        server.connections(),
        16,
        "a declined connection is not used again"
    );
    server.reply("POST", "x", Reply::status(400));
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 400);
    server.reply("POST", "x", hello());
    assert!(transport.exchange(&post("x")).is_ok());
    server.reply("POST", "x", Reply::status(400));
    assert!(transport.exchange(&post("x")).is_err());
    server.reply("POST", "x", Reply::status(400));
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 400);
    // Other pools have budgets of their own.
    server.reply("GET", "x", Reply::status(400));
    assert!(transport.exchange(&get("x")).is_err());
}

#[test]
fn a_400_with_a_body_is_the_services() {
    let server = Server::start();
    server.reply(
        "POST",
        "x",
        Reply::json(&json!({"detail": "no"})).with_status(400),
    );
    let answer = transport(&server).exchange(&post("x")).unwrap();
    assert_eq!(
        (answer.status(), answer.body.as_slice()),
        (400, br#"{"detail":"no"}"#.as_slice())
    );
}

// ---- stopping ---------------------------------------------------------------------------------

#[test]
fn stopping_wakes_blocked_calls_and_refuses_new_ones() {
    let server = Server::start();
    let gate = Gate::new();
    server.always("POST", "x", hello().after(&gate));
    let transport = transport(&server);
    thread::scope(|scope| {
        let blocked: Vec<_> = (0..8)
            .map(|_| {
                let transport = transport.clone();
                scope.spawn(move || {
                    let request = post("x").with_read_timeout(Timeout::None);
                    transport.exchange(&request).unwrap_err().kind
                })
            })
            .collect();
        gate.wait_for(8);
        transport.stop_pool(Pool::Session);
        for call in blocked {
            assert_eq!(call.join().unwrap(), FaultKind::Stopped);
        }
    });
    assert_eq!(
        transport.exchange(&post("x")).unwrap_err().kind,
        FaultKind::Stopped
    );
    server.always("GET", "y", hello());
    assert!(transport.exchange(&get("y")).is_ok(), "other pools go on");
    transport.stop();
    assert_eq!(
        transport.exchange(&get("y")).unwrap_err().kind,
        FaultKind::Stopped
    );
}

// ---- connections ------------------------------------------------------------------------------

#[test]
fn connections_are_reused_within_a_pool_and_never_between_pools() {
    let server = Server::start();
    server.always("POST", "x", hello());
    let transport = transport(&server);
    for pool in Pool::ALL {
        for _ in 0..5 {
            let mut request = post("x");
            request.pool = pool;
            transport.exchange(&request).unwrap();
        }
    }
    assert_eq!(server.connections(), Pool::ALL.len());
}

#[test]
fn a_wide_pool_keeps_its_connections() {
    const WIDTH: usize = 64;
    let server = Server::start();
    let transport = transport(&server);
    for round in 0..3 {
        let gate = Gate::new();
        server.always("POST", "x", hello().after(&gate));
        thread::scope(|scope| {
            for _ in 0..WIDTH {
                scope.spawn(|| {
                    let mut request = post("x");
                    request.pool = Pool::Retrieve;
                    transport.exchange(&request).unwrap();
                });
            }
            gate.wait_for(WIDTH);
            gate.open();
        });
        assert_eq!(server.connections(), WIDTH, "round {round}");
    }
}

#[test]
fn a_connection_the_server_closed_is_replaced() {
    let server = Server::start();
    server.reply("POST", "x", hello().then_close());
    server.reply("POST", "x", hello().until_close());
    server.reply("POST", "x", hello());
    let transport = transport(&server);
    for _ in 0..2 {
        assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
        server.wait_open(0);
    }
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
    assert_eq!(server.connections(), 3);
}

#[test]
fn bytes_beyond_the_announced_length_do_not_reach_the_next_answer() {
    let server = Server::start();
    let text = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 500 Forged\r\n\r\n";
    server.reply("POST", "x", Reply::raw(text));
    server.reply("POST", "x", hello());
    let transport = transport(&server);
    assert_eq!(transport.exchange(&post("x")).unwrap().body, b"{}");
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
}

// ---- answers ----------------------------------------------------------------------------------

#[test]
fn answers_are_the_same_however_their_bytes_are_split() {
    let server = Server::start();
    let transport = transport(&server);
    let whole = json!({"text": "grüße, 世界 🌍"}).to_string();
    let plain = || Reply::bytes("application/json; charset=utf-8", whole.as_bytes());
    let check = |reply: Reply| {
        server.reply("POST", "x", reply);
        let answer = transport.exchange(&post("x")).unwrap();
        assert_eq!(answer.body, whole.as_bytes());
        assert_eq!(answer.content_type(), "application/json");
    };
    check(plain());
    check(plain().byte_by_byte());
    check(plain().until_close());
    for size in 1..8 {
        check(plain().chunked(size));
        check(plain().chunked(size).byte_by_byte());
    }
    for place in 1..plain().wire_len() {
        check(plain().split_at(&[place]));
    }
}

#[test]
fn a_recycled_buffer_is_cleared_and_kept() {
    let server = Server::start();
    server.always("POST", "x", Reply::bytes("text/plain", "new"));
    let mut buffer = Vec::with_capacity(100_000);
    buffer.extend_from_slice(b"old");
    let answer = transport(&server)
        .exchange_into(&post("x"), buffer)
        .unwrap();
    assert_eq!(answer.body, b"new");
    assert!(answer.body.capacity() >= 100_000);
}

#[test]
fn bodies_above_ten_megabytes_are_read_whole() {
    let server = Server::start();
    let body = vec![b'x'; 11 << 20];
    server.reply("POST", "x", Reply::bytes("application/x-protobuf", body));
    assert_eq!(
        transport(&server).exchange(&post("x")).unwrap().body.len(),
        11 << 20
    );
}

#[test]
fn error_statuses_keep_body_and_headers_and_hide_an_echoed_key() {
    let server = Server::start();
    let reply = Reply::json(&json!({"detail": "bad key tml-hunter2"}))
        .with_status(401)
        .with_header("Retry-After", "3");
    server.reply("POST", "x", reply);
    let key = Secret::from("tml-hunter2");
    let transport = transport(&server);
    let answer = transport.exchange(&post("x").with_key(&key)).unwrap();
    assert_eq!(answer.header("retry-after"), Some("3"));
    let error = retry::error_from_response(&answer, "POST x", SystemTime::UNIX_EPOCH);
    let text = format!("{error} {error:?} {answer:?}");
    assert!(
        text.contains("bad key ***") && !text.contains("hunter2"),
        "{text}"
    );
    assert_eq!(transport.redact("tml-hunter2!"), "***!");
}

#[test]
fn an_answer_can_be_read_as_it_arrives() {
    let server = Server::start();
    let gate = Gate::new();
    let reply = Reply::bytes("text/plain", "firstsecond");
    let place = reply.wire_len() - 6;
    server.reply("GET", "x", reply.stall_at(place, &gate));
    let (head, mut body) = transport(&server).stream(&get("x")).unwrap();
    assert_eq!(head.status, 200);
    let mut first = [0; 5];
    body.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"first");
    gate.open();
    let mut rest = String::new();
    body.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "second");
}

// ---- headers ----------------------------------------------------------------------------------

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
    let capture: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/wire/http_capture.json")).unwrap();
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

// ---- redirects --------------------------------------------------------------------------------

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

#[test]
fn redirects_end_after_five() {
    let server = Server::start();
    server.always("GET", "x", Reply::status(302).with_header("Location", "x"));
    let fault = transport(&server).exchange(&get("x")).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Redirect);
    assert_eq!(server.requests().len(), 6);
}

// ---- bodies -----------------------------------------------------------------------------------

#[test]
fn raw_bytes_and_files_are_sent_as_they_are() {
    let server = Server::start();
    server.otherwise(|_| hello());
    let transport = transport(&server);
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    for source in [Source::Bytes(&bytes), Source::File(file.path())] {
        let body = Body::Raw {
            content_type: "application/octet-stream",
            source,
        };
        transport.exchange(&post("x").with_body(body)).unwrap();
    }
    for request in server.requests() {
        assert_eq!(
            request.header("content-type"),
            Some("application/octet-stream")
        );
        assert_eq!(request.header("content-length"), Some("300000"));
        assert!(request.body == bytes);
    }
    let body = Body::Raw {
        content_type: "a/b",
        source: Source::File("no/such/file".as_ref()),
    };
    let fault = transport.exchange(&post("x").with_body(body)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Request);
}

#[test]
fn forms_have_their_parts_in_order() {
    let server = Server::start();
    server.otherwise(|_| hello());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"in a file").unwrap();
    let part = |name, source| Part {
        name,
        file_name: None,
        content_type: None,
        source,
    };
    let parts = [
        part("note", Source::Bytes("grüße".as_bytes())),
        Part {
            file_name: Some("a.bin"),
            content_type: Some("application/octet-stream"),
            ..part("data", Source::File(file.path()))
        },
    ];
    let transport = transport(&server);
    transport
        .exchange(&post("x").with_body(Body::Multipart(&parts)))
        .unwrap();
    let request = &server.requests()[0];
    let kind = request.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
    let text = String::from_utf8(request.body.clone()).unwrap();
    let parts: Vec<_> = text.split(&format!("--{boundary}")).collect();
    assert_eq!(parts.len(), 4, "{text}");
    assert!(
        parts[1].contains("name=\"note\"") && parts[1].ends_with("\r\n\r\ngrüße\r\n"),
        "{text}"
    );
    assert!(
        parts[2].contains("filename=\"a.bin\"") && parts[2].contains("in a file"),
        "{text}"
    );
    assert_eq!(parts[3].trim(), "--");
}

#[test]
fn a_change_without_a_body_announces_none() {
    let server = Server::start();
    server.otherwise(|_| hello());
    let transport = transport(&server);
    for method in [Method::Post, Method::Put, Method::Delete] {
        let request = Request::new(method, "/x", Pool::Rest);
        transport.exchange(&request).unwrap();
    }
    let lengths: Vec<_> = server
        .requests()
        .iter()
        .map(|request| request.header("content-length").map(str::to_owned))
        .collect();
    assert_eq!(lengths[..2], [Some("0".to_owned()), Some("0".to_owned())]);
}

// ---- downloads --------------------------------------------------------------------------------

#[test]
fn downloads_arrive_whole_however_they_are_split() {
    let server = Server::start();
    let transport = transport(&server);
    let content: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let url = format!("{}/file?sig=hunter2", server.url());
    for reply in [
        Reply::bytes("application/x-tar", content.as_slice()),
        Reply::bytes("application/x-tar", content.as_slice()).chunked(7_777),
        Reply::bytes("application/x-tar", content.as_slice()).split_at(&[1, 50, 100_001]),
    ] {
        server.reply("GET", "/file", reply);
        let mut out = Vec::new();
        let done = transport.download(&url, 0, &mut out).unwrap();
        assert_eq!(done.written, 200_000);
        assert!(out == content);
    }
    let seen = &server.requests()[0];
    assert_eq!(seen.header("x-api-key"), None);
    assert_eq!(seen.query, "sig=hunter2");
}

#[test]
fn a_download_that_ends_early_can_be_resumed() {
    let server = Server::start();
    let transport = transport(&server);
    let url = format!("{}/file", server.url());
    server.reply(
        "GET",
        "/file",
        Reply::bytes("a/b", "0123456789").cut_before_end(4),
    );
    let mut out = Vec::new();
    let fault = transport.download(&url, 0, &mut out).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Truncated);
    assert_eq!(out, b"012345");
    server.reply("GET", "/file", Reply::bytes("a/b", "6789").with_status(206));
    let done = transport.download(&url, 6, &mut out).unwrap();
    assert_eq!((done.head.status, done.written), (206, 4));
    assert_eq!(out, b"0123456789");
    assert_eq!(server.requests()[1].header("range"), Some("bytes=6-"));
}

#[test]
fn a_refused_download_writes_nothing() {
    let server = Server::start();
    server.reply(
        "GET",
        "/file",
        Reply::bytes("text/xml", "<Expired/>").with_status(403),
    );
    let mut out = Vec::new();
    let url = format!("{}/file", server.url());
    let done = transport(&server).download(&url, 0, &mut out).unwrap();
    assert_eq!(done.head.status, 403);
    assert_eq!(done.error_body, b"<Expired/>");
    assert!(out.is_empty());
}

// ---- proxies ----------------------------------------------------------------------------------

/// A CONNECT proxy that joins each tunnel to `target` and reports what it was asked.
fn connect_proxy(target: u16) -> (u16, mpsc::Receiver<String>, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, heard) = mpsc::channel();
    let proxy = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        asked.send(String::from_utf8(head).unwrap()).unwrap();
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", target)).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let upstream = thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        let _ = std::io::copy(&mut server, &mut client);
        let _ = client.shutdown(std::net::Shutdown::Both);
        upstream.join().unwrap();
    });
    (port, heard, proxy)
}

#[test]
fn an_explicit_proxy_carries_everything() {
    let server = Server::start();
    server.always("POST", "x", hello());
    let (port, heard, proxy) = connect_proxy(server.port());
    let config = Config::default()
        .with_base_url("http://service.invalid:8080")
        .with_proxy(format!("http://me:hunter2@127.0.0.1:{port}"));
    let transport = Transport::new(&config).unwrap();
    assert!(!format!("{transport:?}").contains("hunter2"));
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
    let head = heard.recv().unwrap();
    assert!(
        head.starts_with("CONNECT service.invalid:8080 HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(head.contains("Proxy-Authorization: Basic"), "{head}");
    assert_eq!(
        server.requests()[0].header("host"),
        Some("service.invalid:8080")
    );
    drop(transport);
    proxy.join().unwrap();
}

#[test]
fn a_proxy_that_declines_is_a_failed_connection() {
    let server = Server::start();
    server.otherwise(|_| Reply::status(407));
    let config = Config::default()
        .with_base_url("http://service.invalid")
        .with_proxy(server.url());
    let fault = Transport::new(&config)
        .unwrap()
        .exchange(&post("x"))
        .unwrap_err();
    assert_eq!(fault.kind, FaultKind::Connect);
}

#[test]
fn without_a_proxy_the_environment_is_ignored() {
    let server = Server::start();
    server.always("POST", "x", hello());
    let config = Config::from_lookup(|name| {
        (name == "HTTP_PROXY" || name == "ALL_PROXY").then(|| "http://proxy.invalid:1".into())
    })
    .unwrap()
    .with_base_url(format!("http://localhost:{}", server.port()))
    .without_proxy();
    assert!(
        Transport::new(&config)
            .unwrap()
            .exchange(&post("x"))
            .is_ok()
    );
}

// ---- secrets ----------------------------------------------------------------------------------

#[test]
fn labels_never_show_a_signed_url() {
    let label = |path: &'static str| Request::new(Method::Get, path, Pool::Rest).label;
    assert_eq!(label("https://storage/file?sig=hunter2"), "GET storage");
    assert_eq!(label("/api/v1/audit?x=1"), "GET audit");
    let request = Request::new(Method::Get, "/x", Pool::Rest);
    let key = Secret::from("hunter2");
    let mut shown = format!(
        "{:?}",
        request.with_key(&key).with_body(Body::Json(b"hunter2"))
    );
    shown.push_str(&format!("{:?}", Cow::Borrowed("end")));
    assert!(!shown.contains("hunter2"), "{shown}");
}

/// Runs one ignored test of this binary in a process of its own and returns what it printed.
fn in_child(test: &str) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            test,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn logs_show_requests_and_no_secrets() {
    let text = in_child("transport::tests::logging_child");
    for words in [
        "tinker::transport POST x: status 200",
        "tinker::transport POST x: status 401",
        "tinker::transport POST x: the connection broke",
        "tinker::transport GET 127.0.0.1",
    ] {
        assert!(text.contains(words), "{words} is missing in {text}");
    }
    assert!(text.contains("ureq::"), "the level below is looked at too");
    assert!(!text.contains("hunter2"), "{text}");
}

/// Prints every log line: ours at all levels, ureq's down to debug, as the crate advises.
#[test]
#[ignore = "sets the process's logger; run by `logs_show_requests_and_no_secrets`"]
fn logging_child() {
    struct Print;
    impl log::Log for Print {
        fn enabled(&self, about: &log::Metadata<'_>) -> bool {
            about.target().starts_with("tinker") || about.level() <= log::Level::Debug
        }
        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                println!("{} {}", record.target(), record.args());
            }
        }
        fn flush(&self) {}
    }
    log::set_boxed_logger(Box::new(Print)).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let server = Server::start();
    let signed = format!("{}/file?sig=hunter2", server.url());
    server.reply("POST", "x", hello());
    let echo = Reply::json(&json!({"detail": "hunter2"})).with_status(401);
    server.reply("POST", "x", echo.with_header("x-echo", "hunter2"));
    server.reply("POST", "x", Reply::hang_up());
    server.reply(
        "GET",
        "audit",
        Reply::status(302).with_header("location", &signed),
    );
    server.always("GET", "/file", hello());
    let config = config(&server)
        .with_header("X-Extra", "hunter2")
        .with_cloudflare_access("hunter2", "hunter2");
    let transport = Transport::new(&config).unwrap();
    println!("{transport:?}");
    let key = Secret::from("hunter2");
    for _ in 0..3 {
        let request = post("x").with_key(&key).with_body(Body::Json(b"hunter2"));
        match transport.exchange(&request) {
            Ok(answer) => println!("{answer:?} {}", String::from_utf8_lossy(&answer.body)),
            Err(fault) => println!("{fault} {fault:?} {:?}", fault.to_error("POST x")),
        }
    }
    transport.exchange(&get("audit").with_key(&key)).unwrap();
    transport.download(&signed, 0, &mut Vec::new()).unwrap();
    let malformed = format!("{}/fi le?sig=hunter2", server.url());
    let fault = transport
        .download(&malformed, 0, &mut Vec::new())
        .unwrap_err();
    println!("{fault} {fault:?}");
}
