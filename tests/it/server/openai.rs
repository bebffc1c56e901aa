//! The OpenAI-compatible endpoints.

use serde_json::{Value, json};
use tinker::local::LocalServer;

use super::Caller;
use crate::support::http::{self, Reply};

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
fn events(reply: &Reply) -> Vec<Value> {
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
    assert_eq!(reply.status, 400);
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
