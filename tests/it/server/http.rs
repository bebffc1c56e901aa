//! Sockets, limits, credentials, faults.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use tinker::local::{Fault, LocalServer};

use super::Caller;
use crate::support::http::{get, post, request};

#[test]
fn answers_health_and_configuration() {
    let server = LocalServer::builder()
        .flag("fwdbwd_max_chunk_len", 3)
        .flag("sample_cancel_enabled", true)
        .start()
        .unwrap();
    let url = server.base_url();
    assert_eq!(get(&url, "healthz").json(), json!({"status": "ok"}));
    let config = post(&url, "client/config", json!({"sdk_version": "t"})).json();
    assert_eq!(config["fwdbwd_max_chunk_len"], 3);
    assert_eq!(config["parallel_fwdbwd_chunks"], true);
    let dynamic = post(&url, "client/dynamic_config", json!({"sdk_version": "t"})).json();
    assert_eq!(dynamic["sample_cancel_enabled"], true);
}

#[test]
fn refuses_unusable_options() {
    let refused = |builder: tinker::local::Builder| builder.start().unwrap_err().to_string();
    let message = refused(LocalServer::builder().flag("no_such_flag", 1));
    assert!(message.contains("no_such_flag"), "{message}");
    let message = refused(LocalServer::builder().fault(Fault::stalled("asampel")));
    assert!(message.contains("asampel"), "{message}");
    let message = refused(LocalServer::builder().host([0, 0, 0, 0].into()));
    assert!(message.contains("API key"), "{message}");
    let message = refused(LocalServer::builder().long_poll(Duration::from_secs(60)));
    assert!(message.contains("30 s"), "{message}");
    let message = refused(LocalServer::builder().threads(1_025));
    assert!(message.contains("threads"), "{message}");
    for value in [json!(-1), json!(0.5), json!(1e300)] {
        let message = refused(LocalServer::builder().flag("fwdbwd_max_chunk_len", value));
        assert!(message.contains("fwdbwd_max_chunk_len"), "{message}");
    }
}

#[test]
fn refusals_have_a_status_and_a_body() {
    let server = LocalServer::builder()
        .max_request_bytes(1000)
        .start()
        .unwrap();
    let url = server.base_url();
    #[track_caller]
    fn check(url: &str, method: &str, path: &str, body: &[u8], status: u16) {
        let reply = request(url, method, path, &[], body).unwrap();
        assert_eq!(reply.status, status, "{method} {path}");
        assert!(!reply.detail().is_empty());
    }
    check(&url, "GET", "/api/v1/nothing", b"", 404);
    check(&url, "GET", "/api/v1/optim_step", b"", 405);
    check(&url, "POST", "/api/v1/create_session", b"{", 422);
    check(&url, "POST", "/api/v1/create_session", b"[]", 422);
    check(&url, "POST", "/api/v1/create_session", &[b' '; 2000], 413);
    check(
        &url,
        "POST",
        "/api/v1/session_heartbeat",
        br#"{"session_id":"no"}"#,
        404,
    );
    // Clients take a 404 here for their own mistake; a promise nobody knows is a lost one.
    check(
        &url,
        "POST",
        "/api/v1/retrieve_future",
        br#"{"request_id":"no"}"#,
        410,
    );
    check(&url, "POST", "/admin/faults", b"{}", 404);
}

#[test]
fn a_key_is_demanded_where_one_is_set() {
    let server = LocalServer::builder().api_key("tml-k").start().unwrap();
    let url = server.base_url();
    let ask = |headers: &[(&str, &str)]| {
        request(&url, "GET", "/api/v1/sessions", headers, b"")
            .unwrap()
            .status
    };
    assert_eq!(ask(&[]), 401);
    assert_eq!(ask(&[("x-api-key", "tml-j")]), 401);
    assert_ne!(ask(&[("x-api-key", "tml-k")]), 401);
    assert_eq!(get(&url, "healthz").status, 200);
}

#[test]
fn keys_are_exchanged_for_tokens_when_told_so() {
    let server = LocalServer::builder()
        .api_key("tml-k")
        .flag("pjwt_auth_enabled", true)
        .start()
        .unwrap();
    let url = server.base_url();
    let send =
        |path: &str, key: &str| request(&url, "POST", path, &[("x-api-key", key)], b"{}").unwrap();
    assert_eq!(send("/api/v1/client/config", "tml-k").status, 200);
    assert_eq!(send("/api/v1/client/dynamic_config", "tml-k").status, 401);
    assert_eq!(send("/api/v1/auth/token", "tml-other").status, 401);
    let jwt = send("/api/v1/auth/token", "tml-k").json()["jwt"].clone();
    let jwt = jwt.as_str().unwrap();
    assert_eq!(send("/api/v1/client/dynamic_config", jwt).status, 200);
    assert_eq!(jwt.split('.').count(), 3);
}

#[test]
fn sessions_live_and_finish() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let beat = || {
        caller
            .post("session_heartbeat", json!({"session_id": caller.session}))
            .status
    };
    assert_eq!(beat(), 200);
    let reason = json!({"reason": {"type": "success"}, "detail": null});
    let path = format!("sessions/{}/finish", caller.session);
    // The first end counts; saying it again is fine.
    assert_eq!(caller.post(&path, reason.clone()).status, 200);
    assert_eq!(caller.post(&path, reason.clone()).status, 200);
    assert_eq!(beat(), 410);
    assert_eq!(caller.post("sessions/none/finish", reason).status, 404);
}

#[test]
fn a_silent_session_ends_with_its_models() {
    let server = LocalServer::builder()
        .session_timeout(Duration::from_millis(30))
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let search = json!({"session_id": caller.session, "statuses": [{"type": "cancelled"}]});
    // The search itself is no sign of life, so silence sets in sooner or later.
    while caller.ok("sessions/search", search.clone())["sessions"] == json!([]) {
        std::thread::yield_now();
    }
    let model = json!({"session_id": caller.session, "model_seq_id": 0,
        "base_model": caller.base_model(), "lora_config": {"rank": 4}});
    assert_eq!(caller.post("create_model", model).status, 410);
}

#[test]
fn faults_do_what_they_say() {
    let server = LocalServer::builder()
        .fault(
            Fault::status("create_session", 429)
                .with_header("retry-after-ms", "7")
                .with_times(1),
        )
        .fault(Fault::dropped_before("create_session").with_times(1))
        .fault(Fault::dropped_after("create_session").with_times(1))
        .fault(Fault::truncated("create_session").with_times(1))
        .fault(Fault::malformed("create_session").with_times(1))
        .fault(Fault::slow("create_session", Duration::from_millis(1)).with_times(1))
        .record(true)
        .start()
        .unwrap();
    let url = server.base_url();
    let send = || request(&url, "POST", "/api/v1/create_session", &[], b"{}");
    let busy = send().unwrap();
    assert_eq!(
        (busy.status, busy.header("retry-after-ms")),
        (429, Some("7"))
    );
    assert!(send().is_err(), "dropped before");
    assert!(send().is_err(), "dropped after");
    let cut = send().unwrap_err();
    assert_eq!(cut.kind(), std::io::ErrorKind::UnexpectedEof);
    let damaged = send().unwrap();
    assert_eq!(damaged.status, 200);
    assert!(serde_json::from_slice::<serde_json::Value>(&damaged.body).is_err());
    assert_eq!(send().unwrap().status, 200);
    assert_eq!(server.requests().len(), 6);
    assert_eq!(server.requests()[0].endpoint(), "create_session");
}

#[test]
fn faults_that_could_not_strike_as_told_are_refused() {
    let server = LocalServer::builder().admin(true).start().unwrap();
    let check = |fault: Fault, field: &str| {
        let error = server.add_fault(fault.clone()).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
        let body = serde_json::to_vec(&fault).unwrap();
        let reply = request(&server.base_url(), "POST", "/admin/faults", &[], &body).unwrap();
        assert_eq!(reply.status, 422, "{fault:?}");
        let error = LocalServer::builder().fault(fault).start().unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    };
    let status = |status| Fault::status("healthz", status);
    for odd in [0, 99, 101, 199, 1000, u16::MAX] {
        check(status(odd), "status");
    }
    for rate in [-0.1, 1.1] {
        check(status(503).with_rate(rate, 0), "rate");
    }
    check(status(503).with_header("a\nb", "c"), "headers");
    check(status(503).with_header("a", "b\nc"), "headers");
    assert_eq!(get(&server.base_url(), "healthz").status, 200);
    for usable in [status(999), status(200).with_rate(0.0, 0)] {
        server.add_fault(usable).unwrap();
    }
}

#[test]
fn faults_come_and_go_by_the_admin_route() {
    let server = LocalServer::builder().admin(true).start().unwrap();
    let url = server.base_url();
    let fault = br#"{"endpoint":"healthz","kind":{"type":"status","status":503,"body":"no"}}"#;
    let admin = |method, body: &[u8]| request(&url, method, "/admin/faults", &[], body).unwrap();
    assert_eq!(admin("POST", fault).status, 200);
    assert_eq!(admin("POST", b"{\"endpoint\":1}").status, 422);
    let reply = get(&url, "healthz");
    assert_eq!(
        (reply.status, reply.body.as_slice()),
        (503, b"no".as_slice())
    );
    assert_eq!(admin("DELETE", b"").status, 200);
    assert_eq!(get(&url, "healthz").status, 200);
}

#[test]
fn a_stalled_request_never_answers_and_stopping_does_not_wait_for_it() {
    let server = LocalServer::builder()
        .fault(Fault::stalled("healthz"))
        .record(true)
        .start()
        .unwrap();
    let url = server.base_url();
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let request = format!("GET /api/v1/healthz HTTP/1.1\r\nhost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    while server.requests().is_empty() {
        std::thread::yield_now();
    }
    drop(server);
    let mut rest = Vec::new();
    // Closed or reset: either way nothing was answered.
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn a_flood_of_connections_is_turned_away_and_the_rest_is_served() {
    let server = LocalServer::builder().max_connections(4).start().unwrap();
    let url = server.base_url();
    let host = url.strip_prefix("http://").unwrap().to_owned();
    // The answer to the expectation proves that the server waits for the body.
    let busy: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = TcpStream::connect(&host).unwrap();
            let head = format!(
                "POST /api/v1/client/config HTTP/1.1\r\nhost: {host}\r\n\
                 content-type: application/json\r\ncontent-length: 2\r\n\
                 expect: 100-continue\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            assert_eq!(&status, b"HTTP/1.1 100");
            stream
        })
        .collect();
    for _ in 0..20 {
        let reply = get(&url, "healthz");
        assert_eq!(reply.status, 503);
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    drop(busy);
    while get(&url, "healthz").status == 503 {}
    drop(server);
}

#[test]
fn connections_that_say_nothing_make_room() {
    let server = LocalServer::builder().max_connections(4).start().unwrap();
    let url = server.base_url();
    let host = url.strip_prefix("http://").unwrap();
    let mut silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(host).unwrap()).collect();
    while get(&url, "healthz").status == 503 {}
    assert_eq!(silent[0].read(&mut [0; 1]).unwrap(), 0, "it was closed");
    // The others have their seats still.
    for stream in &mut silent[1..] {
        let request = format!("GET /api/v1/healthz HTTP/1.1\r\nhost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_exact(&mut [0; 12]).unwrap();
    }
}

/// Files and connections share the process's limit: idle connections take neither the one nor
/// the other from those who work.
#[cfg(unix)]
#[test]
fn idle_connections_leave_descriptors_to_requests_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "ulimit -n 160; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_tinker"))
        .args(["serve", "--port", "0", "--threads", "1", "--data"])
        .arg(folder.path());
    let process = super::process::Process::spawn(command);
    let caller = Caller::at(process.url.clone());
    let model = caller.model(0);
    let host = process.url.strip_prefix("http://").unwrap();
    let silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(host).unwrap())
        .collect();
    // Until those who are turned away with an answer have left, others are without one.
    let ask = || request(&process.url, "GET", "/api/v1/healthz", &[], b"");
    while !ask().is_ok_and(|reply| reply.status == 200) {}
    let body = json!({"model_id": model.id, "seq_id": 1, "path": "a"});
    let accepted = loop {
        let reply = caller.post("save_weights", body.clone());
        if reply.status != 503 {
            break reply.json();
        }
    };
    let saved = loop {
        let reply = caller.post(
            "retrieve_future",
            json!({"request_id": accepted["request_id"]}),
        );
        if reply.status != 503 {
            break reply.json();
        }
    };
    assert!(saved["path"].is_string(), "{saved}");
    drop(silent);
    process.kill();
}
