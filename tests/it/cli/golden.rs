//! What the Python command line printed, and with which code it ended, for the same service.

use serde_json::{Value, json};

use super::Desk;
use crate::support::scripted::{Recorded, Reply, Server};

/// The service the recordings were made with.
fn answer(request: &Recorded, url: &str) -> Reply {
    let path = request.path.trim_start_matches("/base");
    if let Some(file) = path.strip_prefix("/dl/") {
        assert!(!file.is_empty());
        return Reply::bytes("text/plain", "hello");
    }
    let checkpoint = json!({"checkpoint_id": "weights/0001", "checkpoint_type": "training",
        "time": "2026-01-02T03:04:05Z", "tinker_path": "tinker://R1/weights/0001",
        "size_bytes": 1234567});
    let run = json!({"training_run_id": "R1", "base_model": "Qwen/Qwen3-8B", "model_owner": "me",
        "is_lora": true, "lora_rank": 8, "last_request_time": "2025-01-02T03:04:05.123456+00:00",
        "last_checkpoint": checkpoint});
    let cursor = json!({"offset": 0, "limit": 20, "total_count": 1});
    let endpoint = path.trim_start_matches("/api/v1/");
    let value = match endpoint {
        "client/config" => json!({"pjwt_auth_enabled": true}),
        "client/dynamic_config" => json!({}),
        "auth/token" => json!({"jwt": token()}),
        "get_server_capabilities" => json!({"supported_models": [{"model_name": "Qwen/Qwen3-8B",
            "max_context_length": 32768, "trainable": true, "sampleable": true}]}),
        "training_runs" => json!({"training_runs": [run], "cursor": cursor}),
        "billing/usage/events" => json!({"data": [{"bucket_start": "2026-07-13T00:00:00Z",
            "bucket_end": "2026-07-13T01:00:00Z", "base_model": "m",
            "event_info": {"type": "training", "token_count": 5}}], "sessions": {}}),
        "billing/usage/checkpoints/current" => json!({"data": []}),
        "checkpoints" => json!({"checkpoints": [checkpoint], "cursor": cursor}),
        _ if endpoint.ends_with("/checkpoints") => {
            json!({"checkpoints": [checkpoint], "cursor": cursor})
        }
        _ if endpoint.ends_with("/external_weights_urls") => json!({
            "urls": {"a.txt": format!("{url}/dl/a.txt"), "sub/b.txt": format!("{url}/dl/b.txt")},
            "expires": "2099-01-01T00:00:00Z"}),
        _ if endpoint.ends_with("/trace_export") => {
            json!({"status": "ready", "url": format!("{url}/dl/t")})
        }
        _ if request.method == "DELETE" => json!({}),
        _ if endpoint.ends_with("/publish") || endpoint.ends_with("/ttl") => json!({}),
        "training_runs/R1" => run,
        _ => return Reply::json(&json!({"detail": "Not Found"})).with_status(404),
    };
    Reply::json(&value)
}

/// A token that says who its holder is, for an hour from any now of this century.
fn token() -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    let claims = json!({"exp": 4_000_000_000u32, "sub": "tml:user:1", "org_id": "o1",
        "email": "a@b.c"});
    let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
    format!("eyJhbGciOiJub25lIn0.{claims}.c2ln")
}

/// What differs on purpose: a wrong column is a usage error, said like every other.
fn expected_exit(args: &[String], exit: i32) -> i32 {
    match args.iter().any(|arg| arg == "--columns") {
        true => 2,
        false => exit,
    }
}

#[test]
fn every_recorded_command_ends_and_prints_as_recorded() {
    let golden = include_str!("../../fixtures/wire/cli.json");
    let golden: Vec<Value> = serde_json::from_str(golden).unwrap();
    let server = Server::start();
    let url = server.url();
    server.otherwise({
        let url = url.clone();
        move |request| answer(request, &url)
    });
    let desk = Desk::at(&format!("{url}/base"));
    let folder = desk.path().to_str().unwrap().to_owned();
    let port = url.rsplit(':').next().unwrap().to_owned();
    let clean = |text: &str| text.replace(&folder, "<cwd>").replace(&port, "<port>");
    for case in &golden {
        let args: Vec<String> = serde_json::from_value(case["args"].clone()).unwrap();
        let args: Vec<String> = args
            .iter()
            .map(|arg| arg.replace("<cwd>", &folder))
            .collect();
        let said = desk.run(&args);
        let exit = case["exit"].as_i64().unwrap() as i32;
        assert_eq!(
            said.exit,
            Some(expected_exit(&args, exit)),
            "{said:?} {case}"
        );
        let lines = case["stderr_lines"].as_u64().unwrap() as usize;
        assert_eq!(said.stderr.lines().count(), lines, "{said:?} {case}");
        let stdout = clean(&said.stdout);
        if let Some(expected) = case.get("stdout_json") {
            let found: Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!(&found, expected, "{args:?}");
            let indented = stdout.starts_with("{\n  ");
            assert_eq!(indented, !case["stdout_indent"].is_null(), "{stdout}");
        } else if args == ["version"] {
            // Each has its own.
            assert_eq!(stdout, format!("tinker {}\n", env!("CARGO_PKG_VERSION")));
        } else if let Some(expected) = case.get("stdout") {
            assert_eq!(stdout, expected.as_str().unwrap(), "{args:?}");
        } else {
            let lines = case["stdout_lines"].as_u64().unwrap() as usize;
            assert_eq!(stdout.lines().count(), lines, "{said:?} {case}");
        }
    }
}
