//! The OpenAI-compatible endpoints.

use std::process::Command;

use serde_json::{Value, json};
use tinker::ModelInput;
use tinker::local::LocalServer;

use super::Caller;
use crate::support::http::{self, Reply};
use crate::support::{local, python};

fn post(caller: &Caller, path: &str, body: Value) -> Reply {
    let path = format!("/oai/api/v1/{path}");
    let headers = [
        ("content-type", "application/json"),
        ("authorization", "Bearer tml-x"),
    ];
    http::request(
        &caller.url,
        "POST",
        &path,
        &headers,
        body.to_string().as_bytes(),
    )
    .unwrap()
}

/// The chunks of a stream, without the frame HTTP puts around them.
pub(crate) fn events(reply: &Reply) -> Vec<Value> {
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    let lines: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(lines.last(), Some(&"[DONE]"), "{text}");
    lines[..lines.len() - 1]
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn completions_come_whole_or_in_pieces_with_the_same_text() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let mut body = json!({"model": caller.base_model(), "prompt": "hello", "max_tokens": 12,
        "seed": 3, "n": 2, "logprobs": 1});
    let whole = post(&caller, "completions", body.clone()).json();
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["usage"]["prompt_tokens"], 5);
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert!(choices[0]["logprobs"]["token_logprobs"][0].as_f64() < Some(0.0));
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let reply = post(&caller, "completions", body);
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let events = events(&reply);
    for (index, choice) in choices.iter().enumerate() {
        let mine = events
            .iter()
            .flat_map(|event| event["choices"].as_array().unwrap());
        let mine: Vec<&Value> = mine.filter(|choice| choice["index"] == index).collect();
        let text: String = mine
            .iter()
            .map(|piece| piece["text"].as_str().unwrap())
            .collect();
        assert_eq!(json!(text), choice["text"]);
        assert_eq!(
            mine.last().unwrap()["finish_reason"],
            choice["finish_reason"]
        );
    }
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
}

#[test]
fn chats_answer_as_the_assistant() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let mut body = json!({"model": caller.base_model(), "max_tokens": 5, "seed": 1, "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]}]});
    let whole = post(&caller, "chat/completions", body.clone()).json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(
        (&whole["object"], &message["role"]),
        (&json!("chat.completion"), &json!("assistant"))
    );
    body["stream"] = json!(true);
    let events = events(&post(&caller, "chat/completions", body));
    let deltas: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"])
        .collect();
    let text: String = deltas
        .iter()
        .filter_map(|delta| delta["content"].as_str())
        .collect();
    assert_eq!(json!(text), message["content"]);
}

#[test]
fn saved_weights_are_models_too_and_others_are_refused() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let body = json!({"model_id": model.id, "seq_id": 1, "path": "s"});
    let path = caller.call("save_weights_for_sampler", body)["path"].clone();
    let listed = http::request(&caller.url, "GET", "/oai/api/v1/models", &[], b"")
        .unwrap()
        .json();
    let ids: Vec<&Value> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["id"])
        .collect();
    assert_eq!(ids, [&caller.base_model(), &path]);
    let reply = post(
        &caller,
        "completions",
        json!({"model": path, "prompt": [1, 2], "max_tokens": 2}),
    );
    assert_eq!(reply.status, 200);
    let reply = post(
        &caller,
        "completions",
        json!({"model": "other", "prompt": "x"}),
    );
    assert_eq!(reply.status, 404);
    assert!(
        reply.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("other")
    );
    let reply = post(
        &caller,
        "completions",
        json!({"model": path, "prompt": "x", "top_p": 7}),
    );
    assert_eq!(reply.status, 400);
}

#[test]
fn a_folder_s_own_chat_template_lays_conversations_out() {
    let data = tempfile::tempdir().unwrap();
    drop(LocalServer::builder().data(data.path()).start().unwrap());
    let folder = data.path().join("model");
    let file = folder.join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut ask = |template: Value, messages: Value| {
        config["chat_template"] = template;
        std::fs::write(&file, config.to_string()).unwrap();
        let named = format!("model={}", folder.display());
        let server = LocalServer::builder()
            .model(named.as_str())
            .start()
            .unwrap();
        let body = json!({"model": "model", "max_tokens": 1, "messages": messages});
        post(&Caller::new(&server), "chat/completions", body).json()
    };
    let hi = json!([{"role": "user", "content": "hi"}]);
    let answer = ask(json!("{{ messages[0].content }}<|im_end|>"), hi.clone());
    assert_eq!(
        answer["usage"]["prompt_tokens"], 3,
        "two bytes and a marker"
    );
    let refused = |answer: Value, expected: &str| {
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    };
    refused(ask(Value::Null, hi.clone()), "has no chat template");
    refused(
        ask(json!("{{ raise_exception('no system') }}"), hi),
        "no system",
    );
    let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
    refused(ask(json!(""), image), "\"image_url\" is not text");
}

#[test]
fn a_folder_says_how_to_sample_where_nobody_else_does() {
    let data = tempfile::tempdir().unwrap();
    drop(LocalServer::builder().data(data.path()).start().unwrap());
    let folder = data.path().join("model");
    let draw = |extra: Value| {
        let named = format!("model={}", folder.display());
        let server = LocalServer::builder()
            .model(named.as_str())
            .start()
            .unwrap();
        let mut body =
            json!({"model": "model", "prompt": "copy: tree ->", "max_tokens": 12, "seed": 5});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        let reply = post(&Caller::new(&server), "completions", body).json();
        reply["choices"][0]["text"].clone()
    };
    let greedy = draw(json!({"temperature": 0}));
    std::fs::write(folder.join("generation_config.json"), r#"{"top_k": 1}"#).unwrap();
    assert_eq!(draw(json!({})), greedy);
    assert_ne!(draw(json!({"top_k": -1, "temperature": 3})), greedy);
}

#[test]
fn models_are_found_in_both_places_and_errors_look_alike() {
    let server = LocalServer::builder().api_key("right").start().unwrap();
    let url = server.base_url();
    let ask = |method: &str, path: &str, key: &str| {
        http::request(&url, method, path, &[("x-api-key", key)], b"").unwrap()
    };
    for prefix in ["/v1", "/oai/api/v1"] {
        let listed = ask("GET", &format!("{prefix}/models"), "right").json();
        let id = listed["data"][0]["id"].as_str().unwrap();
        for id in [id.to_owned(), id.replace('/', "%2F")] {
            let one = ask("GET", &format!("{prefix}/models/{id}"), "right").json();
            assert_eq!(one, listed["data"][0]);
        }
        for (method, path, key, status) in [
            ("GET", "models/none", "right", 404),
            ("GET", "models", "wrong", 401),
            ("GET", "completions", "right", 405),
            ("POST", "embeddings", "right", 404),
            ("POST", "chat/completions", "right", 400),
        ] {
            let reply = ask(method, &format!("{prefix}/{path}"), key);
            assert_eq!(reply.status, status, "{method} {path}");
            let error = &reply.json()["error"];
            assert!(
                error["message"].is_string() && error["type"].is_string(),
                "{error}"
            );
        }
        let theirs = ask("POST", &format!("{prefix}/messages"), "wrong");
        assert_eq!(theirs.json()["error"]["type"], "authentication_error");
    }
    let strange = [("host", "evil.example")];
    let refused = http::request(&url, "GET", "/v1/models", &strange, b"").unwrap();
    assert_eq!(
        (refused.status, refused.json()["error"]["type"].as_str()),
        (403, Some("permission_error"))
    );
}

#[test]
fn an_echoed_prompt_is_scored_as_the_service_scores_it() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let caller = Caller::new(&server);
    let text = "copy: tree -> tree";
    let tokens: Vec<i32> = text.bytes().map(i32::from).collect();
    let sampler = service
        .create_sampling_client(local::base_model(&service))
        .unwrap();
    let expected = sampler
        .compute_logprobs(ModelInput::from_ints(tokens.clone()))
        .unwrap();
    let expected: Vec<Option<f32>> = expected.iter().collect();
    for prompt in [json!(text), json!(tokens), json!([tokens])] {
        // As evaluations of likelihoods ask: the prompt back, one token more.
        let body = json!({"model": caller.base_model(), "prompt": prompt, "echo": true,
            "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1});
        let choice = post(&caller, "completions", body).json()["choices"][0].clone();
        assert!(
            choice["text"].as_str().unwrap().starts_with(text),
            "{choice}"
        );
        let scores = &choice["logprobs"];
        let found: Vec<Option<f32>> =
            serde_json::from_value(scores["token_logprobs"].clone()).unwrap();
        assert_eq!(found.len(), tokens.len() + 1);
        for (found, expected) in found.iter().zip(&expected) {
            match (found, expected) {
                (Some(found), Some(expected)) => assert!((found - expected).abs() < 1e-4),
                (found, expected) => assert_eq!(found, expected),
            }
        }
        let tops = scores["top_logprobs"].as_array().unwrap();
        assert!(tops[0].is_null(), "nothing comes before the first token");
        for (top, own) in tops.iter().zip(&found).skip(1) {
            let best = top.as_object().unwrap().values().filter_map(Value::as_f64);
            let best = best.fold(f64::MIN, f64::max);
            assert!(best as f32 >= own.unwrap(), "{top}");
        }
        assert_eq!(scores["text_offset"][3], 3);
        let none = json!({"model": caller.base_model(), "prompt": prompt, "echo": true,
            "logprobs": 0, "max_tokens": 0});
        let choice = post(&caller, "completions", none).json()["choices"][0].clone();
        assert_eq!(choice["text"], text);
        assert_eq!(
            choice["logprobs"]["tokens"].as_array().unwrap().len(),
            tokens.len()
        );
    }
}

#[test]
fn scores_are_the_same_streamed_and_whole() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let mut body = json!({"model": caller.base_model(), "max_tokens": 6, "temperature": 0,
        "logprobs": true, "top_logprobs": 3, "messages": [{"role": "user", "content": "spell cat"}]});
    let whole = post(&caller, "chat/completions", body.clone()).json();
    body["stream"] = json!(true);
    let events = events(&post(&caller, "chat/completions", body));
    let first = &events[0]["choices"][0]["delta"];
    assert_eq!(
        *first,
        json!({"role": "assistant", "content": ""}),
        "who speaks, and nothing else"
    );
    let pieces = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    let pieces: Vec<Value> = pieces.flatten().cloned().collect();
    assert_eq!(json!(pieces), whole["choices"][0]["logprobs"]["content"]);
    assert_eq!(pieces[0]["top_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(
        pieces[0]["top_logprobs"][0]["logprob"], pieces[0]["logprob"],
        "the likeliest was drawn"
    );
}

#[test]
fn settings_change_what_is_drawn() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let draw = |extra: Value| {
        let mut body = json!({"model": caller.base_model(), "prompt": "copy: tree ->", "seed": 5,
            "max_tokens": 12});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        let reply = post(&caller, "completions", body);
        assert_eq!(
            reply.status,
            200,
            "{extra}: {}",
            String::from_utf8_lossy(&reply.body)
        );
        reply.json()["choices"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(draw(json!({"logit_bias": {"97": 100}})), "a".repeat(12));
    let greedy = draw(json!({"temperature": 0}));
    assert_eq!(draw(json!({"min_p": 1.0})), greedy);
    assert_eq!(draw(json!({"top_k": 1})), greedy);
    let letters = draw(
        json!({"logit_bias": {"97": 50, "98": 49.5}, "temperature": 0,
        "frequency_penalty": 2}),
    );
    assert!(letters.contains('a') && letters.contains('b'), "{letters}");
    let once =
        draw(json!({"logit_bias": {"97": 50, "98": 49}, "temperature": 0, "presence_penalty": 2}));
    assert!(once.starts_with("ab"), "{once}");
    draw(json!({"repetition_penalty": 1.3}));
}

#[test]
fn what_is_not_supported_is_refused_by_name_and_a_full_server_says_so() {
    let server = LocalServer::builder()
        .max_pending_samples(0)
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let chat = |extra: Value| {
        let mut body = json!({"model": caller.base_model(), "max_tokens": 2,
            "messages": [{"role": "user", "content": "x"}]});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        post(&caller, "chat/completions", body)
    };
    for (field, value) in [
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {}}),
        ),
        ("tools", json!([{"type": "function"}])),
        ("tool_choice", json!("required")),
        ("frequency_penalty", json!(9)),
        ("logit_bias", json!({"999999": 1})),
        ("modalities", json!(["audio"])),
        ("n", json!(1_000_000_000)),
        ("max_tokens", json!(4_000_000_000u64)),
    ] {
        let reply = chat(json!({ field: value }));
        let error = reply.json()["error"].clone();
        assert_eq!(
            (reply.status, &error["param"]),
            (400, &json!(field)),
            "{error}"
        );
    }
    let choice = json!({"type": "auto", "disable_parallel_tool_use": true});
    let body = json!({"model": caller.base_model(), "max_tokens": 2, "tool_choice": choice,
        "messages": [{"role": "user", "content": "x"}]});
    let theirs = post(&caller, "messages", body);
    assert_eq!(theirs.status, 400, "{}", theirs.json());
    for stream in [true, false] {
        let full = chat(json!({ "stream": stream }));
        assert_eq!(full.status, 429);
        assert_eq!(full.json()["error"]["type"], "rate_limit_error");
        assert_eq!(full.header("retry-after"), Some("1"));
    }
}

/// What OpenAI's, Anthropic's and LiteLLM's own packages make of an endpoint.
pub(crate) fn check_with_python(base_url: &str, model: &str) {
    let packages = ["openai==2.54.0", "anthropic==2.8.0", "litellm==1.106.2"];
    let Some(python) = python::environment("openai-clients-1", &packages) else {
        return;
    };
    let output = Command::new(python)
        .arg("tests/it/server/openai_clients.py")
        .args([base_url, model])
        .env("NO_PROXY", "127.0.0.1,localhost")
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert!(
        String::from_utf8_lossy(&output.stdout).ends_with("all is well\n"),
        "{errors}"
    );
}

#[test]
fn openai_s_and_anthropic_s_packages_are_served() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    check_with_python(&server.base_url(), caller.base_model().as_str().unwrap());
}

/// Asks for a long stream of log-probabilities and never reads it.
fn ask_and_ignore(url: &str) -> std::net::TcpStream {
    use std::io::Write;
    let host = url.strip_prefix("http://").unwrap();
    let body = json!({"model": "tinker-local/tiny", "prompt": "hi", "max_tokens": 1500, "n": 64,
        "logprobs": 20, "stream": true, "logit_bias": {"257": -100}})
    .to_string();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// A stream that nobody reads is given up: it neither grows nor keeps the engine.
#[test]
fn a_stream_that_is_not_read_ends() {
    let process = super::process::Process::start(["--log", "error"]);
    let pending = || {
        let reply = http::request(&process.url, "GET", "/metrics", &[], b"").unwrap();
        let text = String::from_utf8(reply.body).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("tinker_pending_samples "));
        line.unwrap().parse::<f64>().unwrap()
    };
    let mut unread = ask_and_ignore(&process.url);
    while pending() == 0.0 {}
    let (start, mut most) = (process.memory(), 0.0_f64);
    while pending() > 0.0 {
        most = most.max(process.memory().unwrap_or(0.0));
    }
    if let Some(start) = start {
        let grown = (most - start) / 1024.0;
        println!("{grown:.0} MiB while nobody read");
        // All of it would be some 200 MiB, beside what the batch takes.
        assert!(grown < 120.0, "{grown} MiB");
    }
    let mut read = Vec::new();
    // Closed or reset: either way it broke off.
    let _ = std::io::Read::read_to_end(&mut unread, &mut read);
    assert!(read.starts_with(b"HTTP/1.1 200"));
    assert!(!read.ends_with(b"\r\n0\r\n\r\n"), "{} bytes", read.len());
    process.kill();
}

/// Log-probabilities take memory as they come, and end where there is none left.
#[test]
fn log_probabilities_count_as_memory() {
    let server = LocalServer::builder().max_memory(2 << 20).start().unwrap();
    let caller = Caller::new(&server);
    let ask = |tokens: u64, choices: u64| {
        let body = json!({"model": "tinker-local/tiny", "prompt": "hi", "max_tokens": tokens,
            "n": choices, "logprobs": 5, "logit_bias": {"97": 100}});
        post(&caller, "completions", body)
    };
    let answer = ask(20, 2).json();
    let choice = &answer["choices"][1];
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 20);
    // The five likeliest, and the token itself, which is none of them.
    let likeliest = choice["logprobs"]["top_logprobs"][0].as_object();
    assert_eq!(likeliest.unwrap().len(), 6, "{answer}");
    assert_eq!(ask(1000, 8).status, 429);
    let body = json!({"model": "tinker-local/tiny", "prompt": "hi", "max_tokens": 1000, "n": 8,
        "logprobs": 5, "logit_bias": {"97": 100}, "stream": true});
    let text = String::from_utf8(post(&caller, "completions", body).body).unwrap();
    assert!(text.contains("rate_limit_error"), "it broke off: {text}");
    assert!(!text.contains("\"length\"") && !text.contains("[DONE]"));
    assert_eq!(ask(20, 2).status, 200, "the room is free again");
}

/// An answer that a stopping server breaks off has not come to its end.
#[test]
fn what_is_broken_off_is_no_answer() {
    let server = LocalServer::start().unwrap();
    let url = server.base_url();
    let stream = ask_and_ignore(&url);
    let mut reader = std::io::BufReader::new(stream);
    let mut text = String::new();
    // It has begun.
    while !text.contains("data: ") {
        assert!(std::io::BufRead::read_line(&mut reader, &mut text).unwrap() > 0);
    }
    let stopped = std::thread::spawn(move || drop(server));
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut reader, &mut rest);
    stopped.join().unwrap();
    let rest = String::from_utf8_lossy(&rest);
    let (reason, last) = (
        "\"finish_reason\":\"length\"",
        rest.len().saturating_sub(400),
    );
    assert!(!rest.contains(reason), "{}", &rest[last..]);
    assert!(!rest.contains("[DONE]"));
}
