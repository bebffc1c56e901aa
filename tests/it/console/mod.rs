//! The console: over HTTP, and as people see it in a browser.

mod browser;
mod looks;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tinker::local::LocalServer;

use crate::cli::Desk;
use crate::support::http::{Reply, request};

const COOKBOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/train/runfiles");

fn get(url: &str, path: &str) -> Reply {
    request(url, "GET", path, &[], b"").unwrap()
}

#[test]
fn folders_of_the_cookbook_are_shown_without_a_server() {
    let desk = Desk::bare();
    let mut child = desk
        .command(&["console", "--port", "0", COOKBOOK])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut url).unwrap();
    let url = url.trim();

    let page = get(url, "/");
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    let hello = get(url, "/console/hello").json();
    assert_eq!(hello["server"], false);

    let runs = get(url, "/console/runs").json();
    let row = |run: &Value| {
        (
            run["id"].clone(),
            run["kind"].clone(),
            run["metric"].clone(),
        )
    };
    let rows: Vec<_> = runs["runs"].as_array().unwrap().iter().map(row).collect();
    let expected = [
        ("0/dpo", "dpo", "dpo_loss"),
        ("0/rl", "rl", "env/all/reward/total"),
        ("0/sl", "sl", "train_mean_nll"),
    ];
    let expected = expected.map(|(id, kind, metric)| (json!(id), json!(kind), json!(metric)));
    assert_eq!(rows, expected);

    let run = get(url, "/console/run?run=0%2Frl").json();
    assert_eq!(
        run["iterations"][2],
        json!({"iteration": 2, "labels": ["train"]})
    );
    let rollouts = get(url, "/console/rollouts?run=0/rl&iteration=2&label=train").json();
    assert!(
        rollouts["rollouts"][0]["total_reward"].is_number(),
        "{rollouts}"
    );
    let plot = get(
        url,
        "/console/plot?run=0/sl&over=0/dpo&metric=learning_rate&smooth=0.5&x=time",
    );
    let plot = plot.json();
    assert_eq!(plot["series"].as_array().unwrap().len(), 2);
    assert_eq!(
        plot["svg"]
            .as_str()
            .unwrap()
            .matches("class=\"curve ")
            .count(),
        2
    );
    let spans = get(url, "/console/spans?run=0/sl").json();
    assert_eq!(
        (&spans["step"], spans["steps"].as_array().unwrap().len()),
        (&json!(5), 6)
    );
    assert!(spans["spans"][0]["duration"].is_number());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn nothing_outside_the_folders_can_be_read() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("runs/a");
    fs::create_dir_all(run.join("iteration_000000")).unwrap();
    fs::write(run.join("metrics.jsonl"), "{\"step\": 0, \"loss\": NaN}\n").unwrap();
    fs::write(
        root.path().join("secret_rollout_summaries.jsonl"),
        "{\"x\": 1}\n",
    )
    .unwrap();
    let server = LocalServer::builder()
        .runs(root.path().join("runs"))
        .start()
        .unwrap();
    let url = server.base_url();
    assert_eq!(get(&url, "/console/run?run=0/a").status, 200);
    for (path, status) in [
        ("/console/run?run=0/../a", 404),
        ("/console/run?run=0/a/..", 404),
        ("/console/run?run=%2Fetc", 404),
        ("/console/run", 400),
        (
            "/console/rollouts?run=0/a&iteration=0&label=..%2F..%2F..%2Fsecret",
            404,
        ),
        ("/console/assets/..%2Fmod.rs", 404),
        ("/console/assets/%2Fetc%2Fpasswd", 404),
        ("/console/plot?run=0/a&metric=loss&smooth=much", 400),
        ("/console/nothing", 404),
    ] {
        assert_eq!(get(&url, path).status, status, "{path}");
    }
}

#[test]
fn a_key_is_wanted_for_everything_but_the_page() {
    let server = LocalServer::builder()
        .api_key("tml-secret")
        .start()
        .unwrap();
    let url = server.base_url();
    let with = |method: &str, path: &str, headers: &[(&str, &str)]| {
        request(&url, method, path, headers, b"").unwrap().status
    };
    assert_eq!(with("GET", "/", &[]), 200);
    assert_eq!(with("GET", "/console/assets/app.js", &[]), 200);
    for path in [
        "hello",
        "runs",
        "checkpoints",
        "events",
        "plot?run=0/a&metric=loss",
    ] {
        let path = format!("/console/{path}");
        assert_eq!(with("GET", &path, &[]), 401, "{path}");
        // A key in the address would end up in histories and logs.
        let asked = format!(
            "{path}{}x-api-key=tml-secret",
            if path.contains('?') { "&" } else { "?" }
        );
        assert_eq!(with("GET", &asked, &[]), 401, "{asked}");
    }
    let key = ("x-api-key", "tml-secret");
    assert_eq!(with("GET", "/console/hello", &[key]), 200);
    let path = "/console/checkpoints/r/weights/w";
    assert_eq!(with("DELETE", path, &[]), 401);
    assert_eq!(with("DELETE", path, &[key]), 404);
    let other = ("origin", "http://evil.example");
    assert_eq!(with("DELETE", path, &[key, other]), 403);
    assert_eq!(
        with("DELETE", path, &[key, ("sec-fetch-site", "cross-site")]),
        403
    );
}

#[test]
fn chats_stream_pieces_then_probabilities() {
    let server = LocalServer::start().unwrap();
    let ask = |body: Value| {
        let body = body.to_string();
        request(
            &server.base_url(),
            "POST",
            "/console/chat",
            &[],
            body.as_bytes(),
        )
        .unwrap()
    };
    let wanted = json!({"model": "tinker-local/tiny", "max_tokens": 12, "n": 2, "seed": 7,
        "messages": [{"role": "user", "content": "reverse: abc"}], "prefill": "c"});
    let reply = ask(wanted.clone());
    let events = events(&reply.body);
    assert_eq!(events[0].0, "start");
    let (kind, done) = events.last().unwrap();
    assert_eq!(kind, "done");
    for (index, answer) in done["answers"].as_array().unwrap().iter().enumerate() {
        let pieces = events
            .iter()
            .filter(|(kind, value)| kind == "piece" && value["index"] == index);
        let text: String = pieces
            .map(|(_, value)| value["text"].as_str().unwrap())
            .collect();
        assert_eq!(answer["content"], format!("c{text}"), "{answer}");
        let heat = answer["heat"].as_array().unwrap();
        assert!(!heat.is_empty());
        for token in heat {
            assert!(token[1].as_f64().unwrap() <= 0.0 && token[2].as_array().unwrap().len() == 5);
        }
    }
    let mut thinking = wanted.clone();
    thinking["prefill"] = json!("<think>hm</think>c");
    let reply = ask(thinking);
    let (_, done) = self::events(&reply.body).pop().unwrap();
    let answer = &done["answers"][0];
    assert_eq!(answer["thinking"], "hm", "{answer}");
    assert!(
        answer["content"].as_str().unwrap().starts_with('c'),
        "{answer}"
    );

    let refused = |field: &str, value: Value, expected: &str| {
        let mut body = wanted.clone();
        body[field] = value;
        let reply = ask(body);
        assert!((400..500).contains(&reply.status), "{}", reply.status);
        assert!(reply.detail().contains(expected), "{}", reply.detail());
    };
    refused("model", json!("tinker://none/weights/a"), "tinker://none");
    refused("temperature", json!(-1), "temperature");
    refused("n", json!(0), "num_samples");
    refused("mesages", json!([]), "mesages");
}

/// The events of a stream, by kind. Lines between them say how long the next chunk is.
fn events(body: &[u8]) -> Vec<(String, Value)> {
    let text = String::from_utf8(body.to_vec()).unwrap();
    let (mut kind, mut events) = ("", Vec::new());
    for line in text.lines() {
        kind = line.strip_prefix("event: ").unwrap_or(kind);
        if let Some(data) = line.strip_prefix("data: ") {
            events.push((kind.to_owned(), serde_json::from_str(data).unwrap()));
        }
    }
    events
}

#[test]
fn data_is_shown_as_it_would_be_trained_on() {
    let server = LocalServer::start().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/chats.jsonl");
    let text = fs::read_to_string(file).unwrap();
    let body = json!({"text": text, "train_on": "all_assistant_messages", "from": 3, "count": 2});
    let body = body.to_string();
    let reply = request(
        &server.base_url(),
        "POST",
        "/console/data",
        &[],
        body.as_bytes(),
    )
    .unwrap();
    let report = reply.json();
    assert_eq!(report["refused"], 0, "{}", report["problems"]);
    assert_eq!(report["examples"], text.lines().count());
    let shown = report["shown"].as_array().unwrap();
    assert_eq!((shown.len(), &shown[0]["line"]), (2, &json!(4)));
}

/// A server that shows a run with these metrics.
fn showing(metrics: &str) -> (tempfile::TempDir, LocalServer) {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("a");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("metrics.jsonl"), metrics).unwrap();
    let server = LocalServer::builder().runs(root.path()).start().unwrap();
    (root, server)
}

#[test]
fn points_are_those_of_the_part_that_is_shown() {
    let line = |step| format!("{{\"step\": {step}, \"loss\": {step}.5}}\n");
    let (_root, server) = showing(&(0..9_000).map(line).collect::<String>());
    let points = |range: &str| {
        let path = format!("/console/plot?run=0/a&metric=loss{range}");
        let plot = get(&server.base_url(), &path).json();
        plot["series"][0]["points"].as_array().unwrap().clone()
    };
    let all = points("");
    assert!(all.len() < 4_100, "{}", all.len());
    assert_eq!(all.last(), Some(&json!([8_999.0, 8_999.5])));
    let near = points("&from=10&to=13");
    let steps: Vec<_> = near.iter().map(|point| point[0].clone()).collect();
    assert_eq!(steps, [10.0, 11.0, 12.0, 13.0].map(|step| json!(step)));
}

#[test]
fn a_loss_that_is_no_number_any_more_is_said() {
    let (_root, server) =
        showing("{\"step\": 0, \"train_mean_nll\": 2.0}\n{\"step\": 1, \"train_mean_nll\": NaN}\n");
    let runs = get(&server.base_url(), "/console/runs").json();
    assert_eq!(runs["runs"][0]["value"], "NaN", "{runs}");
    let run = get(&server.base_url(), "/console/run?run=0/a").json();
    let metric = &run["metrics"][0];
    assert_eq!(
        (&metric["first"], &metric["last"], &metric["count"]),
        (&json!(2.0), &json!("NaN"), &json!(2)),
        "{metric}"
    );
}

#[cfg(unix)]
#[test]
fn rollouts_are_not_read_through_links_that_lead_outside() {
    let (root, server) = showing("{\"step\": 0, \"loss\": 1.0}\n");
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "{\"total_reward\": 1.0}\n").unwrap();
    let folder = root.path().join("a/iteration_000000");
    fs::create_dir(&folder).unwrap();
    let link = folder.join("train_rollout_summaries.jsonl");
    std::os::unix::fs::symlink(&secret, &link).unwrap();
    let path = "/console/rollouts?run=0/a&iteration=0&label=train";
    assert_eq!(get(&server.base_url(), path).status, 404);
}
