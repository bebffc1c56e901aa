//! The endpoint in front of another server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tinker::local::{LocalServer, Proxy, Upstream, UpstreamModel};
use tinker::text::Tokenizer;
use tinker::types::{SampleRequest, SampleResponse, SampledSequence, StopReason};
use tinker::{Error, Result, ServiceClient};

use super::openai::check_with_python;
use crate::support::http::{self, Reply};
use crate::support::{local, packages};

/// Everything the embedded server has, through a client.
struct Through(ServiceClient);

impl Upstream for Through {
    fn models(&self) -> Result<Vec<String>> {
        let capabilities = self.0.capabilities()?;
        Ok(capabilities.model_names().map(str::to_owned).collect())
    }

    fn open(&self, model: &str) -> Result<UpstreamModel> {
        let client = self.0.create_sampling_client(model)?;
        let tokenizer = client.tokenizer()?;
        let ask = move |asked: SampleRequest| client.sample(&asked.prompt, asked.options);
        Ok(UpstreamModel::new(model, tokenizer, ask).with_context(4096))
    }
}

fn post(url: &str, path: &str, body: &Value) -> Reply {
    http::request(url, "POST", path, &[], body.to_string().as_bytes()).unwrap()
}

#[test]
fn the_packages_are_served_from_another_server() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let model = local::base_model(&service);
    let proxy = Proxy::builder(Through(service)).start().unwrap();
    check_with_python(&proxy.base_url(), &model);
    // What the service behind has no word for is refused, not dropped.
    for (field, value) in [("min_p", json!(0.5)), ("logit_bias", json!({"1": 1}))] {
        let mut body = json!({"model": model, "prompt": "x"});
        body[field] = value;
        let reply = post(&proxy.base_url(), "/v1/completions", &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(field))
        );
    }
}

#[test]
fn a_proxy_is_guarded_as_the_server_is() {
    let server = LocalServer::start().unwrap();
    let proxy = Proxy::builder(Through(local::service(&server))).api_key("sesame");
    let proxy = proxy.start().unwrap();
    let ask = |headers: &[(&str, &str)]| {
        http::request(&proxy.base_url(), "GET", "/v1/models", headers, b"").unwrap()
    };
    let key = ("authorization", "Bearer sesame");
    assert_eq!(ask(&[key]).status, 200);
    assert_eq!(ask(&[("x-api-key", "sesame")]).status, 200);
    assert_eq!(ask(&[]).status, 401);
    assert_eq!(ask(&[key, ("host", "evil.example")]).status, 403);
    assert_eq!(ask(&[key, ("origin", "https://evil.example")]).status, 403);
    let open = Proxy::builder(Through(local::service(&server))).host([0, 0, 0, 0].into());
    assert!(matches!(open.start(), Err(Error::Invalid(_))));
}

/// A model that says what it is told to, and fails when it is told to.
struct Parrot {
    tokenizer: Tokenizer,
    says: String,
    fails: Arc<AtomicBool>,
}

impl Upstream for Parrot {
    fn models(&self) -> Result<Vec<String>> {
        Ok(vec!["Qwen/Qwen3-8B".to_owned()])
    }

    fn open(&self, model: &str) -> Result<UpstreamModel> {
        let tokens = self.tokenizer.encode_plain(&self.says)?;
        let fails = Arc::clone(&self.fails);
        let ask = move |asked: SampleRequest| {
            if fails.load(Ordering::Relaxed) {
                return Err(Error::invalid("sample", "told to fail"));
            }
            let one = || SampledSequence::new(StopReason::Stop, tokens.clone());
            let sequences = (0..asked.options.num_samples).map(|_| one()).collect();
            Ok(SampleResponse::new(sequences))
        };
        Ok(UpstreamModel::new(model, self.tokenizer.clone(), ask))
    }
}

#[test]
fn thinking_and_calls_of_tools_are_told_apart() {
    let Some(folder) = packages::npm_tokenizer("qwen3") else {
        return;
    };
    let fails = Arc::new(AtomicBool::new(false));
    let parrot = |says: &str| {
        Proxy::builder(Parrot {
            tokenizer: Tokenizer::open(&folder).unwrap(),
            says: says.to_owned(),
            fails: Arc::clone(&fails),
        })
        .start()
        .unwrap()
    };
    let proxy = parrot(
        "<think>\nhm\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": \
         {\"a\": 1}}\n</tool_call><|im_end|>",
    );
    let tool = json!({"type": "function", "function": {"name": "add", "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}});
    let mut body = json!({"model": "Qwen/Qwen3-8B", "tools": [tool],
        "messages": [{"role": "user", "content": "1?"}]});
    let whole = post(&proxy.base_url(), "/v1/chat/completions", &body).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    let message = &choice["message"];
    assert_eq!(message["reasoning_content"].as_str().unwrap().trim(), "hm");
    assert_eq!(message["content"].as_str().unwrap().trim(), "Let me see.");
    let call = &message["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["function"]["name"]),
        (&json!("function"), &json!("add"))
    );
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"a": 1}));

    body["stream"] = json!(true);
    let reply = post(&proxy.base_url(), "/v1/chat/completions", &body);
    let events = super::openai::events(&reply);
    let joined = |field: &str| -> String {
        let deltas = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"][field].as_str());
        deltas.collect()
    };
    assert_eq!(
        joined("reasoning_content"),
        message["reasoning_content"].as_str().unwrap()
    );
    assert_eq!(joined("content"), message["content"].as_str().unwrap());
    let calls = events
        .iter()
        .find(|event| event["choices"][0]["delta"]["tool_calls"].is_array());
    let streamed = &calls.unwrap()["choices"][0]["delta"]["tool_calls"][0];
    assert_eq!(
        (&streamed["index"], &streamed["function"]),
        (&json!(0), &call["function"])
    );

    let theirs = json!({"model": "Qwen/Qwen3-8B", "max_tokens": 99, "messages": [
        {"role": "user", "content": "1?"}], "tools": [{"name": "add", "input_schema": {}}]});
    let answer = post(&proxy.base_url(), "/v1/messages", &theirs).json();
    let kinds: Vec<&str> = answer["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use"], "{answer}");
    assert_eq!(
        (&answer["stop_reason"], &answer["content"][2]["input"]),
        (&json!("tool_use"), &json!({"a": 1}))
    );

    // Without tools the answer is told from the thinking as it comes.
    let plain = parrot("<think>\nwhy\n</think>\n\nso<|im_end|>");
    let body = json!({"model": "Qwen/Qwen3-8B", "messages": [{"role": "user", "content": "?"}]});
    let message = post(&plain.base_url(), "/v1/chat/completions", &body).json();
    let message = &message["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("why"), &json!("so"))
    );

    // What fails on the way is said on the way.
    fails.store(true, Ordering::Relaxed);
    let mut body = json!({"model": "Qwen/Qwen3-8B", "prompt": "x"});
    let whole = post(&proxy.base_url(), "/v1/completions", &body);
    let error = &whole.json()["error"];
    assert_eq!(
        (whole.status, &error["type"]),
        (400, &json!("invalid_request_error"))
    );
    assert_eq!(error["message"], "sample: told to fail");
    body["stream"] = json!(true);
    let reply = post(&proxy.base_url(), "/v1/completions", &body);
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(
        text.contains("sample: told to fail") && !text.contains("[DONE]"),
        "{text}"
    );
}

#[test]
fn a_full_proxy_says_so() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let model = local::base_model(&service);
    let proxy = Proxy::builder(Through(service))
        .max_pending_samples(1)
        .start()
        .unwrap();
    let body = json!({"model": model, "prompt": ["a", "b"], "max_tokens": 1});
    assert_eq!(
        post(&proxy.base_url(), "/v1/completions", &body).status,
        429
    );
    let body = json!({"model": model, "prompt": ["a"], "max_tokens": 1});
    assert_eq!(
        post(&proxy.base_url(), "/v1/completions", &body).status,
        200,
        "what was refused takes no room"
    );
}
