//! Who is let in: hosts, origins, content types, keys, users, encryption.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tinker::local::{Builder, LocalServer, Proxy, ProxyBuilder, Upstream, UpstreamModel};

use super::Caller;
use crate::support::http::{get, request};

/// What no browser says could never be let in, and nobody would know why.
#[test]
fn names_and_sites_as_no_browser_says_them_are_refused() {
    #[derive(Debug)]
    struct Nothing;
    impl Upstream for Nothing {
        fn models(&self) -> tinker::Result<Vec<String>> {
            Ok(Vec::new())
        }
        fn open(&self, model: &str) -> tinker::Result<UpstreamModel> {
            unreachable!("nobody asks for {model}")
        }
    }
    #[track_caller]
    fn check(builder: Builder, proxy: ProxyBuilder, field: &str) {
        let errors = [builder.start().unwrap_err(), proxy.start().unwrap_err()];
        for error in errors {
            assert!(error.to_string().contains(field), "{field}: {error}");
        }
    }
    let proxy = || Proxy::builder(Nothing);
    for site in [
        "",
        "*",
        "good.example",
        "https://",
        "https://good.example/",
        "https://Good.example",
        "https://good.example\n",
        "https://me@good.example",
    ] {
        check(
            LocalServer::builder().cors(site),
            proxy().cors(site),
            "cors",
        );
    }
    for name in [
        "",
        "gpu.lan:8000",
        "http://gpu.lan",
        "gpu lan",
        "*.lan",
        "gpü.lan",
    ] {
        let builder = LocalServer::builder().allow_host(name);
        check(builder, proxy().allow_host(name), "allow_host");
    }
    let usable = [
        "null",
        "http://localhost:5173",
        "app://obsidian.md",
        "http://[::1]:80",
    ];
    let server = usable
        .iter()
        .fold(LocalServer::builder(), |builder, site| builder.cors(*site));
    server.allow_host("My_gpu-1.lan").start().unwrap();
}

#[test]
fn a_page_of_another_site_is_refused() {
    let server = LocalServer::builder()
        .cors("https://good.example")
        .allow_host("gpu.lan")
        .start()
        .unwrap();
    let url = server.base_url();
    let body = br#"{"sdk_version":"t"}"#;
    let post = |headers: &[(&str, &str)]| {
        request(&url, "POST", "/api/v1/create_session", headers, body).unwrap()
    };
    assert_eq!(post(&[]).status, 200);
    assert_eq!(post(&[("host", "gpu.lan:8000")]).status, 200);
    assert_eq!(post(&[("host", "rebound.example")]).status, 403);
    assert_eq!(post(&[("origin", "https://evil.example")]).status, 403);
    assert_eq!(post(&[("origin", "null")]).status, 403);
    assert_eq!(post(&[("sec-fetch-site", "cross-site")]).status, 403);
    assert_eq!(post(&[("content-type", "text/plain")]).status, 415);
    assert_eq!(
        post(&[("origin", url.as_str())]).status,
        200,
        "its own page"
    );
    let allowed = post(&[
        ("origin", "https://good.example"),
        ("sec-fetch-site", "cross-site"),
    ]);
    assert_eq!(allowed.status, 200);
    let origin = allowed.header("access-control-allow-origin");
    assert_eq!(origin, Some("https://good.example"));
    let preflight = |origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
        ];
        request(&url, "OPTIONS", "/api/v1/asample", &headers, b"").unwrap()
    };
    assert_eq!(preflight("https://evil.example").status, 403);
    let allowed = preflight("https://good.example");
    assert_eq!(allowed.status, 200);
    assert!(allowed.header("access-control-allow-headers").is_some());
    // What the refused pages asked for did not happen: three sessions were opened, all by others.
    let sessions = get(&url, "sessions?limit=100").json();
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 4);
}

#[test]
fn the_key_is_asked_for_before_the_body() {
    let server = LocalServer::builder().api_key("tml-k").start().unwrap();
    let url = server.base_url();
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    // The body is announced and never sent: the answer comes all the same.
    let head = "POST /api/v1/asample HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/json\r\ncontent-length: 60000000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 401");
}

#[test]
fn small_requests_do_not_wait_for_large_ones_that_trickle() {
    let server = LocalServer::builder()
        .max_request_bytes(1 << 20)
        .start()
        .unwrap();
    let url = server.base_url();
    let host = url.strip_prefix("http://").unwrap();
    // More than there is room for, each with one byte of its body.
    let trickling: Vec<TcpStream> = (0..24)
        .map(|_| {
            let mut stream = TcpStream::connect(host).unwrap();
            let head = "POST /api/v1/asample HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 1000000\r\n\r\n{";
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    let caller = Caller::new(&server);
    let beat = json!({"session_id": caller.session});
    assert_eq!(caller.post("session_heartbeat", beat).status, 200);
    drop(trickling);
}

/// A server that waits for nobody, and a connection to it.
fn impatient() -> (LocalServer, TcpStream) {
    let server = LocalServer::builder()
        .body_patience(Duration::from_millis(20))
        .start()
        .unwrap();
    let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    (server, stream)
}

#[test]
fn a_body_that_stands_still_is_given_up() {
    let (_server, mut stream) = impatient();
    let head = "POST /api/v1/asample HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 408");
}

#[test]
fn whoever_reads_no_answers_loses_their_seat() {
    let (_server, mut stream) = impatient();
    // Only a server that waits for ever lets this run out.
    stream
        .set_write_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let ask = "GET /api/v1/get_server_capabilities HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(64);
    let error = loop {
        if let Err(error) = stream.write_all(ask.as_bytes()) {
            break error.kind();
        }
    };
    let hung_up = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    assert!(hung_up.contains(&error), "{error:?}");
}

#[test]
fn an_early_refusal_reaches_whoever_is_still_sending() {
    let server = LocalServer::builder()
        .max_request_bytes(1000)
        .start()
        .unwrap();
    let body = vec![b' '; 8 << 20];
    let reply = request(&server.base_url(), "POST", "/api/v1/asample", &[], &body).unwrap();
    assert_eq!(reply.status, 413);
    assert!(reply.detail().contains("1000 bytes"));
}

#[test]
fn each_user_has_their_own_things() {
    let server = LocalServer::builder()
        .user("ann", "tml-a")
        .user("bob", "tml-b")
        .start()
        .unwrap();
    let ask = |key: &str, method: &str, path: &str, body: Value| {
        let headers = [("x-api-key", key)];
        let path = format!("/api/v1/{path}");
        let body = match method {
            "GET" => String::new(),
            _ => body.to_string(),
        };
        request(&server.base_url(), method, &path, &headers, body.as_bytes()).unwrap()
    };
    let wait = |key: &str, accepted: Value| loop {
        let body = json!({"request_id": accepted["request_id"]});
        let result = ask(key, "POST", "retrieve_future", body).json();
        if result["type"] != "try_again" {
            return result;
        }
    };
    let open = |key: &str| {
        let body = json!({"tags": [], "user_metadata": {}, "sdk_version": "t"});
        let session = ask(key, "POST", "create_session", body).json()["session_id"].clone();
        session.as_str().unwrap().to_owned()
    };
    let session = open("tml-a");
    let body = json!({"session_id": session, "model_seq_id": 0,
        "base_model": "tinker-local/tiny", "lora_config": {"rank": 2}});
    let model = wait("tml-a", ask("tml-a", "POST", "create_model", body).json());
    let run = model["model_id"].as_str().unwrap().to_owned();
    let body = json!({"model_id": run, "seq_id": 1, "path": "x"});
    wait(
        "tml-a",
        ask("tml-a", "POST", "save_weights", body.clone()).json(),
    );

    let count = |key: &str, path: &str, list: &str| {
        ask(key, "GET", path, Value::Null).json()[list]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(count("tml-a", "training_runs", "training_runs"), 1);
    assert_eq!(count("tml-b", "training_runs", "training_runs"), 0);
    assert_eq!(count("tml-a", "checkpoints", "checkpoints"), 1);
    assert_eq!(count("tml-b", "checkpoints", "checkpoints"), 0);
    assert_eq!(count("tml-b", "sessions", "sessions"), 0);
    let status =
        |key: &str, method: &str, path: &str, body: Value| ask(key, method, path, body).status;
    let beat = json!({"session_id": session});
    assert_eq!(
        status("tml-b", "POST", "session_heartbeat", beat.clone()),
        404
    );
    assert_eq!(status("tml-a", "POST", "session_heartbeat", beat), 200);
    assert_eq!(status("tml-b", "POST", "save_weights", body), 404);
    assert_eq!(
        status("tml-b", "GET", &format!("training_runs/{run}"), Value::Null),
        404
    );

    let checkpoint = format!("training_runs/{run}/checkpoints/weights/x");
    let theirs = open("tml-b");
    let load = |number: u64| {
        json!({"session_id": theirs, "model_seq_id": number,
        "path": format!("tinker://{run}/weights/x"), "optimizer": false})
    };
    assert_eq!(status("tml-b", "POST", "load_weights", load(0)), 404);
    assert_eq!(status("tml-b", "DELETE", &checkpoint, json!({})), 404);
    let publish = format!("{checkpoint}/publish");
    assert_eq!(status("tml-b", "POST", &publish, json!({})), 404);
    assert_eq!(status("tml-a", "POST", &publish, json!({})), 200);
    assert_eq!(status("tml-b", "POST", "load_weights", load(0)), 200);
    assert_eq!(status("tml-b", "DELETE", &checkpoint, json!({})), 403);
    assert_eq!(status("tml-a", "DELETE", &checkpoint, json!({})), 200);
}

/// What two users of one server say to it.
struct Users {
    server: LocalServer,
}

impl Users {
    fn start() -> Self {
        let server = LocalServer::builder()
            .user("ann", "tml-a")
            .user("bob", "tml-b");
        Self {
            server: server.start().unwrap(),
        }
    }

    #[track_caller]
    fn post(&self, key: &str, path: &str, body: Value) -> crate::support::http::Reply {
        let headers = [("x-api-key", key)];
        let path = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/api/v1/{path}"),
        };
        let body = body.to_string();
        let url = self.server.base_url();
        request(&url, "POST", &path, &headers, body.as_bytes()).unwrap()
    }

    #[track_caller]
    fn wait(&self, key: &str, id: &Value) -> Value {
        loop {
            let result = self.post(key, "retrieve_future", json!({"request_id": id}));
            let result = result.json();
            if result["type"] != "try_again" {
                return result;
            }
        }
    }

    fn session(&self, key: &str) -> String {
        let body = json!({"tags": [], "user_metadata": {}, "sdk_version": "t"});
        let session = self.post(key, "create_session", body).json();
        session["session_id"].as_str().unwrap().to_owned()
    }
}

/// Ids are no secrets: they derive from a session's, which the path of a published checkpoint has.
#[test]
fn results_belong_to_whoever_asked_for_them() {
    let users = Users::start();
    let (ann, bob) = ("tml-a", "tml-b");
    let session = users.session(ann);
    let body = json!({"session_id": session, "sampling_session_seq_id": 0,
        "base_model": "tinker-local/tiny"});
    let sampler = users.post(ann, "create_sampling_session", body).json();
    let sampler = sampler["sampling_session_id"].clone();
    let sample = |seq_id: u64, tokens: u64| {
        let body = json!({"sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
            "sampling_params": {"max_tokens": tokens}});
        users.post(ann, "asample", body).json()["request_id"].clone()
    };
    let poll = |key: &str, sampler: &Value, retrieved: &Value| {
        let target = json!({"type": "sampling_session", "sampling_session_id": sampler,
            "cloned_sampler_id": 0});
        let body = json!({"target": target, "prev_cursor": 0, "timeout": 5.0,
            "retrieved_request_ids": [retrieved]});
        users.post(key, "retrieve_futures", body)
    };
    let first = sample(0, 2);
    assert!(users.wait(ann, &first)["sequences"].is_array());
    let asked = users.post(bob, "retrieve_future", json!({"request_id": first}));
    assert_eq!(asked.status, 410, "as for one that nobody knows");
    // What bob says he has read, ann has not.
    let theirs = json!({"session_id": users.session(bob), "sampling_session_seq_id": 0,
        "base_model": "tinker-local/tiny"});
    let theirs = users.post(bob, "create_sampling_session", theirs).json();
    let body = json!({"target": {"type": "sampling_session", "cloned_sampler_id": 0,
        "sampling_session_id": theirs["sampling_session_id"]}, "prev_cursor": 0, "timeout": 0.0,
        "retrieved_request_ids": [first]});
    assert_eq!(users.post(bob, "retrieve_futures", body).status, 200);
    assert_eq!(poll(bob, &sampler, &first).status, 404);
    let told = poll(ann, &sampler, &json!("other")).json();
    assert_eq!(told["completions"].as_array().unwrap().len(), 1, "{told}");
    assert!(users.wait(ann, &first)["sequences"].is_array());
    // Nor does he stop what she waits for.
    let second = sample(1, 1000);
    users.post(bob, "cancel_future", json!({"request_id": second}));
    assert!(users.wait(ann, &second)["sequences"].is_array());
    let third = sample(2, 4000);
    users.post(ann, "cancel_future", json!({"request_id": third}));
    assert!(users.wait(ann, &third)["error"].is_string());
}

#[test]
fn usage_is_shown_to_whoever_used_it() {
    let users = Users::start();
    let (ann, bob) = ("tml-a", "tml-b");
    let body = json!({"model": "tinker-local/tiny", "prompt": "hi", "max_tokens": 2});
    assert_eq!(users.post(ann, "/v1/completions", body).status, 200);
    let used = |key: &str| {
        let hour = |offset: i64| {
            let now = tinker::types::Timestamp::now().as_second();
            let at = now - now.rem_euclid(3600) + offset * 3600;
            tinker::types::Timestamp::from_second(at).unwrap()
        };
        let (from, to) = (hour(-1), hour(2));
        let path = format!("/api/v1/billing/usage/events?starting_on={from}&ending_before={to}");
        let url = users.server.base_url();
        let reply = request(&url, "GET", &path, &[("x-api-key", key)], b"").unwrap();
        reply.json()["data"].as_array().unwrap().len()
    };
    assert_eq!((used(ann), used(bob)), (2, 0));
}

#[test]
fn connections_can_be_encrypted() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls");
    let (certificate, key) = (fixtures.join("server.pem"), fixtures.join("server.key"));
    let refused = LocalServer::builder()
        .tls(&key, &certificate)
        .start()
        .unwrap_err();
    assert!(refused.to_string().contains("server."), "{refused}");
    let server = LocalServer::builder()
        .tls(&certificate, &key)
        .start()
        .unwrap();
    assert!(server.base_url().starts_with("https://127.0.0.1:"));

    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    let ca = certificate.with_file_name("ca.pem");
    roots
        .add(rustls::pki_types::CertificateDer::from_pem_file(ca).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, socket);
    let head = "GET /api/v1/healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut reply = String::new();
    let _ = stream.read_to_string(&mut reply);
    assert!(
        reply.starts_with("HTTP/1.1 200") && reply.ends_with(r#"{"status":"ok"}"#),
        "{reply}"
    );
}

#[test]
fn metrics_and_the_request_log_say_what_happened() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tinker"))
        .args(["serve", "--port", "0", "--request-log"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut url).unwrap();
    let url = url.trim();
    let caller = Caller::at(url.to_owned());
    let model = caller.model(0);
    model.train(&mut 1, &["hello"]);
    let reply = request(url, "GET", "/metrics", &[], b"").unwrap();
    let text = String::from_utf8(reply.body).unwrap();
    for expected in [
        r#"tinker_requests_total{method="POST",endpoint="create_session",status="200"} 1"#,
        r#"tinker_request_seconds_count{method="POST",endpoint="optim_step"} 1"#,
        r#"tinker_tokens_total{kind="training"} 4"#,
        "tinker_models 1",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("POST /api/v1/create_session 200"), "{said}");
}

#[test]
fn only_the_client_that_started_a_local_server_has_its_key() {
    use base64::Engine as _;
    let service = tinker::ServiceClient::local().unwrap();
    let sampler = service.create_sampling_client("tinker-local/tiny").unwrap();
    let handle = sampler.sampler_handle().unwrap();
    let handle = base64::engine::general_purpose::URL_SAFE.decode(handle);
    let handle: Value = serde_json::from_slice(&handle.unwrap()).unwrap();
    let url = handle["holder"]["base_url"].as_str().unwrap();
    let status = |key: Option<&str>| {
        let headers: Vec<(&str, &str)> = key.map(|key| ("x-api-key", key)).into_iter().collect();
        request(url, "GET", "/api/v1/training_runs", &headers, b"")
            .unwrap()
            .status
    };
    for key in [None, Some(""), Some("tml-local"), Some("tml-")] {
        assert_eq!(status(key), 401, "{key:?}");
    }
    service.capabilities().unwrap();
}

/// The names of copies can be made to order: a run stays whose it is, whatever key a copy names.
#[test]
fn a_copy_takes_nobodys_run() {
    let users = Users::start();
    let save = |key: &str, name: &str| {
        let body = json!({"session_id": users.session(key), "model_seq_id": 0,
            "base_model": "tinker-local/tiny", "lora_config": {"rank": 2}});
        let model = users.post(key, "create_model", body).json();
        let body = json!({"model_id": model["model_id"], "seq_id": 1, "path": name});
        let saved = users.post(key, "save_weights", body).json();
        users.wait(key, &saved["request_id"])["path"].clone()
    };
    let copy = |key: &str, source: &Value, ttl: u64| {
        let headers = [("x-api-key", key), ("x-idempotency-key", "the-same")];
        let body = json!({"source_path": source, "ttl_seconds": ttl}).to_string();
        let url = users.server.base_url();
        request(
            &url,
            "POST",
            "/api/v1/copy_weights",
            &headers,
            body.as_bytes(),
        )
        .unwrap()
    };
    let (ann, bob) = (save("tml-a", "a"), save("tml-b", "b"));
    let runs = |key: &str| {
        let url = users.server.base_url();
        let headers = [("x-api-key", key)];
        let list = request(&url, "GET", "/api/v1/training_runs", &headers, b"").unwrap();
        list.json()["training_runs"].as_array().unwrap().len()
    };
    assert_eq!(copy("tml-a", &ann, 1).status, 400, "too short a life");
    assert_eq!(runs("tml-a"), 1, "what is refused leaves nothing behind");
    let copied = copy("tml-a", &ann, 7200);
    assert_eq!((copied.status, runs("tml-a")), (200, 2));
    let theirs = copy("tml-b", &bob, 7200);
    assert_eq!((theirs.status, runs("tml-b")), (200, 2));
    assert_ne!(copied.json(), theirs.json());
    assert_eq!(runs("tml-a"), 2, "they are still hers");
}

/// One of them would be taken for the other.
#[test]
fn two_users_of_one_key_are_refused() {
    let users = |key: &str| {
        LocalServer::builder()
            .user("ann", "tml-a")
            .user("bob", key)
            .start()
    };
    let error = users("tml-a").unwrap_err().to_string();
    assert!(error.contains("ann and bob"), "{error}");
    assert!(users("tml-b").is_ok());
}
