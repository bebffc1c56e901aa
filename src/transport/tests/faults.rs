//! What can go wrong with one attempt: one case per row.

use std::net::TcpListener;

use super::retry::Meaning;
use super::*;

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
    assert_eq!(error.effect(), Meaning::of_fault(expected).effect());
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
    assert_eq!(fault.kind, FaultKind::Refused);
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
    assert!(!fault.meaning().is_passing());
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

/// The limit for each write alone would be a minute.
#[test]
fn fault_an_upload_that_nobody_reads_ends_with_the_limit_for_all_of_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let transport = Transport::new(&Config::default().with_base_url(url)).unwrap();
    let body = vec![b' '; 32 << 20];
    let mut request = post("x").with_body(Body::Json(&body));
    request.whole_timeout = Some(Duration::from_millis(50));
    let fault = transport.exchange(&request).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Timeout { sent: true }, "{fault}");
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
