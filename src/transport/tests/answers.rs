//! Bodies in and out, whole and streamed.

use super::*;

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
    assert_eq!(fault.kind, FaultKind::File);
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
        transport.download(&url, Rest::default(), &mut out).unwrap();
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
    let fault = transport
        .download(&url, Rest::default(), &mut out)
        .unwrap_err();
    assert_eq!(fault.kind, FaultKind::Truncated);
    assert_eq!(out, b"012345");
    server.reply("GET", "/file", Reply::bytes("a/b", "6789").with_status(206));
    let done = transport
        .download(
            &url,
            Rest {
                from: 6,
                mark: None,
            },
            &mut out,
        )
        .unwrap();
    assert_eq!(done.head.status, 206);
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
    let done = transport(&server)
        .download(&url, Rest::default(), &mut out)
        .unwrap();
    assert_eq!(done.head.status, 403);
    assert_eq!(done.error_body, b"<Expired/>");
    assert!(out.is_empty());
}
