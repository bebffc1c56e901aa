//! Keys and signed URLs stay out of sight.

use super::*;

#[test]
fn labels_never_show_a_signed_url() {
    let label = |path: &'static str| Request::new(Method::Get, path, Pool::Rest).label;
    assert_eq!(label("https://storage/file?sig=hunter2"), "GET storage");
    assert_eq!(label("/api/v1/audit?x=1"), "GET audit");
    let request = Request::new(Method::Get, "/x", Pool::Rest);
    let key = Secret::from("hunter2");
    let shown = format!(
        "{:?}",
        request.with_key(&key).with_body(Body::Json(b"hunter2"))
    );
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn whatever_was_configured_as_a_secret_is_hidden_for_ever() {
    let config = Config::default()
        .with_base_url("http://127.0.0.1:1")
        .with_header("X-Extra", "header-value")
        .with_header("Authorization", "Bearer bearer-token")
        .with_proxy("http://user:proxy-password@127.0.0.1:2")
        .with_cloudflare_access("cloudflare-id", "cloudflare-secret");
    let transport = Transport::new(&config).unwrap();
    // Tokens come and go.
    for index in 0..200 {
        transport.remember(&Secret::from(format!("token-{index}")));
    }
    let text = "header-value proxy-password cloudflare-secret bearer-token token-199";
    assert_eq!(transport.redact(text), "*** *** *** *** ***");
    let damaged = [b"\xff token-199 ", text.as_bytes()].concat();
    let shown = transport.redact_body(&damaged);
    assert_eq!(
        String::from_utf8(shown).unwrap(),
        "\u{fffd} *** *** *** *** *** ***"
    );
    let source = std::io::Error::other("got cloudflare-secret");
    let mut context = crate::error::Context::caused("bad header-value", source);
    context.body = Some(json!({"echo": ["token-199"]}));
    let error = transport.redact_error(Error::Status(context));
    let shown = format!("{error} {error:?}");
    for secret in text.split(' ') {
        assert!(!shown.contains(secret), "{shown}");
    }
    assert!(shown.contains("got ***"), "{shown}");
}

/// Set in the process of its own in which a test prints what it logs.
const CHILD: &str = "TINKER_TEST_LOGGING";

/// Runs one test of this binary in a process of its own and returns what it printed.
fn in_child(test: &str) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn logs_show_requests_and_no_secrets() {
    if std::env::var_os(CHILD).is_some() {
        return log_everything();
    }
    let text = in_child("transport::tests::secrets::logs_show_requests_and_no_secrets");
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
/// It sets the process's logger, so it needs one of its own.
fn log_everything() {
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
    transport
        .download(&signed, Rest::default(), &mut Vec::new())
        .unwrap();
    let malformed = format!("{}/fi le?sig=hunter2", server.url());
    let fault = transport
        .download(&malformed, Rest::default(), &mut Vec::new())
        .unwrap_err();
    println!("{fault} {fault:?}");
}

/// A key is hidden while its request is under way, however many files are fetched meanwhile.
#[test]
fn signatures_are_hidden_as_written_and_as_meant_and_drive_out_no_key() {
    let config = Config::default().with_base_url("http://127.0.0.1:1");
    let transport = Transport::new(&config).unwrap();
    transport.remember(&Secret::from("the-key-in-use"));
    for index in 0..200 {
        transport.remember_signature(&format!("https://s/f?sig=signature%2B{index:03}%2F0%3D"));
    }
    let text = "the-key-in-use signature%2B199%2F0%3D signature+199/0=";
    assert_eq!(transport.redact(text), "*** *** ***");
}

/// A server shows what it was sent inside texts of its own, which have their own ways of writing.
#[test]
fn secrets_are_hidden_however_they_are_written() {
    let config = Config::default()
        .with_base_url("http://127.0.0.1:1")
        .with_proxy("http://user:proxy%40password@127.0.0.1:2");
    let transport = Transport::new(&config).unwrap();
    transport.remember(&Secret::from(r#"a/b+c"d\e=f"#));
    for text in [
        r#"a/b+c"d\e=f"#,
        r#"a/b+c\"d\\e=f"#,
        r#"a\/b+c\"d\\e=f"#,
        r#"a\u002fb\u002Bc\u0022d\u005ce=f"#,
        "a%2Fb%2Bc%22d%5Ce%3Df",
        "a%2fb%2bc%22d%5ce%3df",
        "proxy@password",
        "proxy%40password",
    ] {
        let shown = transport.redact(&format!("é <{text}>{text}, a/b+c"));
        assert_eq!(shown, "é <***>***, a/b+c", "{text}");
    }
    let mut context = crate::error::Context::new("bad");
    context.body = Some(json!({"detail": [r#"bad key a/b+c"d\e=f"#]}));
    let error = transport.redact_error(Error::Status(context));
    let body = error.context().and_then(|context| context.body.clone());
    assert_eq!(body, Some(json!({"detail": ["bad key ***"]})));
}
