//! Commands that sample, against the embedded engine.

use std::fs;

use serde_json::Value;
use tinker::local::LocalServer;

use super::Desk;

const MODEL: &str = "tinker-local/tiny";

fn lines(text: &str) -> Vec<Value> {
    let mut lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    lines.sort_by_key(|line| line["id"].to_string());
    lines
}

/// A session that nobody ends stays open on the server until its heartbeat is missed.
#[test]
fn sessions_end_with_their_command() {
    let server = LocalServer::builder().record(true).start().unwrap();
    let desk = Desk::at(&server.base_url());
    fs::copy(
        concat!(env!("CARGO_MANIFEST_DIR"), "/examples/chats.jsonl"),
        desk.path().join("chats.jsonl"),
    )
    .unwrap();
    let train = [
        "train",
        "sft",
        "chats.jsonl",
        "-m",
        MODEL,
        "-o",
        "run",
        "--learning-rate",
    ];
    for (args, reason) in [
        (&["sample", MODEL, "x", "--max-tokens", "1"][..], "success"),
        (&["sample", MODEL, "x", "--max-tokens", "9999"], "errored"),
        (&["logprobs", MODEL, "xy"], "success"),
        (&["score", MODEL, "chats.jsonl"], "success"),
        (&["chat", MODEL], "success"),
        (
            &[
                &train[..],
                &["1e-3", "--load-checkpoint", "tinker://x/weights/y"],
            ]
            .concat(),
            "errored",
        ),
        (
            &[&train[..], &["1e-3", "--max-steps", "1"]].concat(),
            "success",
        ),
    ] {
        let said = desk.run(args);
        let requests = server.requests();
        let count = |end: &str| {
            requests
                .iter()
                .filter(|one| one.path.ends_with(end))
                .count()
        };
        assert_eq!(
            count("/finish"),
            count("/create_session"),
            "{args:?}: {said:?}"
        );
        let last = requests.iter().rfind(|one| one.path.ends_with("/finish"));
        let body: Value = serde_json::from_slice(&last.unwrap().body).unwrap();
        assert_eq!(body["reason"]["type"], reason, "{args:?}: {said:?}");
    }
}

#[test]
fn one_prompt_or_many_are_sampled() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let common = ["--max-tokens", "5", "--temperature", "0"];
    let args = |more: &[&'static str]| [&["sample", MODEL], more, &common].concat();
    let text = desk.run(&args(&["English: hello"])).ok();
    assert!(!text.trim().is_empty());
    let one = desk
        .run(&args(&[
            "English: hello",
            "-n",
            "2",
            "--logprobs",
            "-f",
            "json",
        ]))
        .json();
    assert_eq!(one["samples"].as_array().unwrap().len(), 2);
    assert_eq!(one["samples"][0]["text"], text.trim_end_matches('\n'));
    let count = one["samples"][0]["tokens"].as_array().unwrap().len();
    assert_eq!(
        one["samples"][0]["logprobs"].as_array().unwrap().len(),
        count
    );

    let said = desk.run_with(&args(&[]), "English: hello\n\nEnglish: dog\n");
    let found = lines(&said.ok());
    assert_eq!(found.len(), 2);
    assert_eq!(found[0]["prompt"], "English: hello");
    assert_eq!(found[0]["samples"][0]["text"], one["samples"][0]["text"]);
    assert_eq!(found[1]["id"], 1);

    // Packed, and marked as some editors do.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let prompts = "\u{feff}{\"prompt\": \"English: hello\"}\r\n";
    std::io::Write::write_all(&mut packed, prompts.as_bytes()).unwrap();
    fs::write(desk.path().join("p.jsonl.gz"), packed.finish().unwrap()).unwrap();
    let packed = lines(&desk.run(&args(&["--prompts", "p.jsonl.gz"])).ok());
    assert_eq!(packed, found[..1]);
}

#[test]
fn a_second_run_samples_only_what_is_missing() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let prompts = concat!(
        r#"{"id": "a", "prompt": "English: hello"}"#,
        "\n",
        r#"{"id": "b", "messages": [{"role": "user", "content": "Hi"}]}"#,
        "\n",
        r#"{"id": "c", "tokens": [72, 105]}"#,
        "\n",
        r#"{"id": "d", "tokens": [-5]}"#,
        "\n",
    );
    fs::write(desk.path().join("p.jsonl"), prompts).unwrap();
    let args = [
        "sample",
        MODEL,
        "--prompts",
        "p.jsonl",
        "-o",
        "out.jsonl",
        "--max-tokens",
        "3",
    ];
    let said = desk.run(&args).failed(1);
    assert!(said.contains("1 prompt(s) failed"), "{said}");
    let out = || fs::read_to_string(desk.path().join("out.jsonl")).unwrap();
    let first = lines(&out());
    let ids: Vec<&str> = first
        .iter()
        .map(|line| line["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["a", "b", "c", "d"]);
    assert!(first[3]["error"].is_string(), "{}", first[3]);

    // A crash in the middle of a line, even of a letter, and a prompt that has been mended since.
    let mut kept: Vec<String> = out().lines().map(str::to_owned).collect();
    kept.retain(|line| !line.contains("\"c\"") && !line.contains("\"d\""));
    let torn = format!("{}\n{{\"id\": \"c\", \"prompt\": \"", kept.join("\n"));
    let torn = [torn.as_bytes(), &"é".as_bytes()[..1]].concat();
    fs::write(desk.path().join("out.jsonl"), torn).unwrap();
    let mended = prompts.replace("[-5]", "[5]");
    fs::write(desk.path().join("p.jsonl"), mended).unwrap();
    let said = desk.run(&args);
    assert!(said.stderr.contains("Skipped 2"), "{said:?}");
    assert_eq!(said.ok(), "");
    let second = lines(&out());
    assert_eq!(second.len(), 4, "{}", out());
    assert_eq!(second[0], first[0]);
    assert!(second.iter().all(|line| line.get("error").is_none()));
    // All done: nothing is sampled, not even a line is added.
    let before = out();
    assert!(desk.run(&args).ok().is_empty());
    assert_eq!(out(), before);
    // A whole result that lacks its line's end is one.
    fs::write(desk.path().join("out.jsonl"), before.trim_end()).unwrap();
    assert!(desk.run(&args).ok().is_empty());
    assert_eq!(out(), before);
    // What somebody else wrote there stays.
    for mine in ["my notes", "{\"model\": \"mine\"}", "{\"model\": "] {
        fs::write(desk.path().join("out.jsonl"), mine).unwrap();
        desk.run(&args).ok();
        assert!(out().starts_with(&format!("{mine}\n{{")), "{}", out());
    }
}

#[test]
fn training_weights_are_told_from_sampler_weights() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    for command in ["sample", "chat", "score"] {
        fs::write(desk.path().join("text"), "some text").unwrap();
        let said = desk.run(&[command, "tinker://run/weights/final", "text"]);
        // `chat` takes no prompt.
        let exit = if command == "chat" { 2 } else { 1 };
        let text = said.failed(exit);
        if exit == 1 {
            assert!(text.contains("training state"), "{text}");
            assert!(text.contains("tinker://run/sampler_weights/NAME"), "{text}");
        }
    }
    let said = desk.run(&["chat", "tinker://run/weights/final"]).failed(1);
    assert!(said.contains("cannot be sampled from"), "{said}");
}

#[test]
fn texts_are_scored_and_compared() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let nothing = desk.run(&["logprobs", MODEL, ""]).failed(1);
    assert!(!nothing.contains("Try again"), "{nothing}");
    let tokens = desk
        .run(&["-f", "json", "logprobs", MODEL, "hello there"])
        .json();
    let tokens = tokens.as_array().unwrap();
    assert_eq!(tokens[0]["logprob"], Value::Null);
    let sum: f64 = tokens
        .iter()
        .filter_map(|token| token["logprob"].as_f64())
        .sum();
    fs::write(desk.path().join("text.txt"), "hello there").unwrap();
    let whole = desk.run(&["-f", "json", "score", MODEL, "text.txt"]).json();
    let mean = whole["mean_logprob"].as_f64().unwrap();
    let expected = sum / (tokens.len() - 1) as f64;
    assert!((mean - expected).abs() < 1e-4, "{mean} {expected}");
    let bits = whole["bits_per_byte"].as_f64().unwrap();
    assert!(
        (bits + sum / std::f64::consts::LN_2 / 11.0).abs() < 1e-4,
        "{whole}"
    );
    // In windows every token is still scored, with less before it.
    let parts = desk
        .run(&["-f", "json", "score", MODEL, "text.txt", "--context", "4"])
        .json();
    assert_eq!(parts["scored_tokens"], whole["scored_tokens"]);
    for few in ["0", "1"] {
        let said = desk.run(&["score", MODEL, "text.txt", "--context", few]);
        assert!(said.failed(2).contains("--context"), "{few}");
    }
    assert!(
        desk.run(&["score", MODEL, "text.txt"])
            .ok()
            .contains("Perplexity")
    );

    fs::write(desk.path().join("p.txt"), "a\nb\n").unwrap();
    let args = [
        "compare",
        MODEL,
        MODEL,
        "--prompts",
        "p.txt",
        "--max-tokens",
        "3",
        "--temperature",
        "0",
    ];
    let pairs = lines(&desk.run(&[&args[..], &["-f", "json"]].concat()).ok());
    assert_eq!(pairs.len(), 2);
    assert!(pairs.iter().all(|pair| pair["same"] == true), "{pairs:?}");
    assert!(desk.run(&args).ok().contains("2 of 2 the same"));
}

#[test]
fn text_and_tokens_are_turned_into_each_other() {
    let desk = Desk::bare();
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/text/tiny");
    let found = desk
        .run(&["-f", "json", "tokenize", tiny, "the cat sat"])
        .json();
    let ids: Vec<String> = found["ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    assert_eq!(found["count"], ids.len());
    let text = desk
        .run(&["tokenize", tiny, "--decode", &ids.join(",")])
        .ok();
    assert_eq!(text.trim(), "<|begin|>the cat sat");
    assert_eq!(
        desk.run_with(&["tokenize", tiny, "--count"], "the cat sat")
            .ok(),
        format!("{}\n", ids.len())
    );
    assert!(
        desk.run(&["tokenize", tiny, "--decode", "1,x"])
            .failed(2)
            .contains("\"x\"")
    );
    let unknown = desk.run(&["tokenize", "no/such-model", "a"]).failed(1);
    assert!(unknown.contains("no/such-model"), "{unknown}");
}

#[test]
fn the_doctor_finds_what_is_wrong_and_says_what_to_do() {
    let server = LocalServer::builder().api_key("tml-right").start().unwrap();
    let verdicts = |desk: &Desk| {
        let said = desk.run(&["-f", "json", "doctor"]);
        let report: Value = serde_json::from_str(&said.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().clone();
        let failed: Vec<String> = checks
            .iter()
            .filter(|check| check["verdict"] == "failed")
            .map(|check| check["check"].as_str().unwrap().to_owned())
            .collect();
        assert!(
            checks
                .iter()
                .all(|check| check["verdict"] == "ok" || check["remedy"].is_string())
        );
        (failed, said.exit)
    };
    let right = Desk::at(&server.base_url()).with("TINKER_API_KEY", "tml-right");
    assert_eq!(verdicts(&right), (vec![], Some(0)));
    let wrong = Desk::at(&server.base_url()).with("TINKER_API_KEY", "tml-wrong");
    assert_eq!(verdicts(&wrong), (vec!["credentials".to_owned()], Some(1)));
    let none = Desk::bare().with("TINKER_BASE_URL", &server.base_url());
    assert_eq!(verdicts(&none), (vec!["credentials".to_owned()], Some(1)));
    let nowhere = Desk::at("http://127.0.0.1:1");
    assert_eq!(
        verdicts(&nowhere),
        (vec!["reachability".to_owned()], Some(1))
    );
    let no_url = Desk::at("ftp://x");
    assert_eq!(verdicts(&no_url), (vec!["base URL".to_owned()], Some(1)));
    let table = right.run(&["doctor"]).ok();
    assert!(
        table.contains("reachability") && table.contains("clock"),
        "{table}"
    );
    assert!(!table.contains("tml-right"), "{table}");
}

#[test]
fn shells_and_man_learn_every_command() {
    let desk = Desk::bare();
    for shell in ["bash", "zsh", "fish"] {
        let text = desk.run(&["completions", shell]).ok();
        assert!(text.contains("checkpoint") && text.contains("push-hf") || text.contains("doctor"));
    }
    assert!(desk.run(&["man"]).ok().starts_with(".ie"));
    desk.run(&["man", "pages"]).ok();
    assert!(desk.path().join("pages/tinker-run-list.1").exists());
}
