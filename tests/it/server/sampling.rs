//! Sampling sessions, samples, and the two ways to wait for them.

use serde_json::{Value, json};
use tinker::local::LocalServer;

use super::Caller;
use crate::support::http;

fn sampler(caller: &Caller, number: u64, change: Value) -> Value {
    let mut body = json!({"session_id": caller.session, "sampling_session_seq_id": number});
    for (key, value) in change.as_object().unwrap() {
        body[key] = value.clone();
    }
    caller.ok("create_sampling_session", body)["sampling_session_id"].clone()
}

fn base_sampler(caller: &Caller) -> Value {
    sampler(caller, 0, json!({"base_model": caller.base_model()}))
}

fn request(sampler: &Value, seq_id: u64) -> Value {
    json!({"sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 2,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 101, 108]}]},
        "sampling_params": {"max_tokens": 6, "seed": 5, "stop": [], "temperature": 1.0, "top_k": -1, "top_p": 1.0}})
}

#[test]
fn the_same_seed_gives_the_same_sample_and_the_same_number_the_same_request() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let sampler = base_sampler(&caller);
    let accepted = caller.ok("asample", request(&sampler, 0));
    let ids = accepted["sample_sequence_ids"].as_array().unwrap();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
    assert_eq!(accepted, caller.ok("asample", request(&sampler, 0)));
    let first = caller.wait(&accepted);
    assert_eq!(first["sequences"].as_array().unwrap().len(), 2);
    assert_eq!(first["sequences"][0]["stop_reason"], "length");
    assert_eq!(first["sequences"][0]["tokens"].as_array().unwrap().len(), 6);
    assert_ne!(
        first["sequences"][0]["tokens"],
        first["sequences"][1]["tokens"]
    );
    let second = caller.call("asample", request(&sampler, 1));
    assert_eq!(first["sequences"], second["sequences"]);
}

#[test]
fn everything_that_can_be_asked_about_a_prompt_comes_back() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let sampler = base_sampler(&caller);
    let mut body = request(&sampler, 0);
    body["prompt_logprobs"] = json!(true);
    body["topk_prompt_logprobs"] = json!(2);
    body["topk_sample_logprobs"] = json!(3);
    body["prompt_alt_tokens_k"] = json!(2);
    body["target_prompt_logprobs"] =
        json!({"data": [101, -1, 108, 7], "dtype": "int64", "shape": [2, 2]});
    let result = caller.call("asample", body);
    let prompt = result["prompt_logprobs"].as_array().unwrap();
    assert_eq!(prompt.len(), 3);
    assert!(prompt[0].is_null() && prompt[1].is_f64());
    let topk = result["topk_prompt_logprobs"].as_array().unwrap();
    assert!(topk[0].is_null());
    assert_eq!(topk[1].as_array().unwrap().len(), 2);
    let targets = &result["target_prompt_logprobs"];
    assert_eq!(targets["shape"], json!([2, 2]));
    assert_eq!(targets["data"][0], prompt[1]);
    assert_eq!(
        result["prompt_alt_tokens"]["tokens"]["shape"],
        json!([2, 2])
    );
    let sampled = result["sequences"][0]["topk_logprobs"].as_array().unwrap();
    assert_eq!(
        (sampled.len(), sampled[0].as_array().unwrap().len()),
        (6, 3)
    );
}

#[test]
fn stop_words_end_a_sample_and_an_empty_list_forbids_stopping() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let sampler = base_sampler(&caller);
    let draw = |seq_id: u64, seed: u64, stop: Option<Value>| {
        let mut body = request(&sampler, seq_id);
        body["sampling_params"]["seed"] = json!(seed);
        match stop {
            Some(stop) => body["sampling_params"]["stop"] = stop,
            None => drop(
                body["sampling_params"]
                    .as_object_mut()
                    .unwrap()
                    .remove("stop"),
            ),
        }
        caller.call("asample", body)["sequences"][0].clone()
    };
    let end = 257;
    // A sample that runs on through its own end, and one that never meets it.
    let mut seeds = 0..;
    let mut find = |wanted: &dyn Fn(&[Value]) -> bool| loop {
        let seed = seeds.next().unwrap();
        let tokens = draw(seed, seed, Some(json!([])))["tokens"].clone();
        assert_eq!(tokens.as_array().unwrap().len(), 6);
        if wanted(tokens.as_array().unwrap()) {
            break (seed, tokens);
        }
    };
    let (seed, tokens) = find(&|tokens| tokens[..2].contains(&json!(end)));
    let stopped = draw(100_000, seed, None);
    assert_eq!(stopped["stop_reason"], "stop");
    assert!(
        stopped["tokens"].as_array().unwrap().len() < 3,
        "{stopped} of {tokens}"
    );
    let (seed, tokens) =
        find(&|tokens| !tokens.contains(&json!(end)) && !tokens[..2].contains(&tokens[2]));
    let stopped = draw(100_001, seed, Some(json!([tokens[2]])));
    assert_eq!(stopped["stop_reason"], "stop");
    assert_eq!(stopped["tokens"], json!([tokens[0], tokens[1], tokens[2]]));
}

#[test]
fn samples_that_cannot_be_drawn_are_refused() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let sampler = base_sampler(&caller);
    let mut number = 0;
    let mut check = |change: &dyn Fn(&mut Value), expected: &str| {
        let mut body = request(&sampler, number);
        number += 1;
        change(&mut body);
        let result = caller.wait(&caller.ok("asample", body));
        assert_eq!(result["category"], "user", "{result}");
        let error = result["error"].as_str().unwrap();
        assert!(error.contains(expected), "{error}");
    };
    check(
        &|body| body["sampling_params"]["temperature"] = json!(-1.0),
        "temperature",
    );
    check(
        &|body| body["sampling_params"]["top_p"] = json!(0.0),
        "top_p",
    );
    check(
        &|body| body["sampling_params"]["max_tokens"] = json!(1_000_000),
        "max_tokens",
    );
    let stops = [
        json!(vec!["x"; 1025]),
        json!(vec![65; 1025]),
        json!(["x".repeat(100_000)]),
    ];
    for stop in stops {
        check(
            &|body| body["sampling_params"]["stop"] = stop.clone(),
            "stop",
        );
    }
    check(&|body| body["prompt"] = json!({"chunks": []}), "prompt");
    check(
        &|body| body["prompt"]["chunks"][0]["tokens"] = json!([5000]),
        "5000",
    );
    let unknown = caller.post("asample", request(&json!("none"), 0));
    assert_eq!(unknown.status, 404);
    let create = |change: Value| {
        let mut body = json!({"session_id": caller.session, "sampling_session_seq_id": 9});
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        caller.post("create_sampling_session", body).status
    };
    assert_eq!(create(json!({})), 422);
    assert_eq!(create(json!({"base_model": "other"})), 400);
    assert_eq!(create(json!({"model_path": "s3://x"})), 400);
    assert_eq!(
        create(json!({"model_path": "tinker://r/sampler_weights/x"})),
        404
    );
}

#[test]
fn completions_are_told_to_the_client_they_belong_to_until_it_has_them() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let sampler = base_sampler(&caller);
    let joined = caller.ok(
        "join_sampling_session",
        json!({"sampling_session_id": sampler}),
    );
    assert_eq!(joined["client_counter"], 1);
    let mine = caller.ok("asample", request(&sampler, 3));
    let other = caller.ok("asample", request(&sampler, 1_000_000_003));
    let poll = |client: u64, cursor: &Value, have: Value| {
        caller.ok(
            "retrieve_futures",
            json!({"target": {"type": "sampling_session", "sampling_session_id": sampler,
                "cloned_sampler_id": client}, "prev_cursor": cursor, "retrieved_request_ids": have}),
        )
    };
    let first = poll(0, &json!(0), json!([]));
    assert_eq!(first["completions"].as_array().unwrap().len(), 1);
    assert_eq!(first["completions"][0]["request_id"], mine["request_id"]);
    assert_eq!(first["completions"][0]["state"], "finished");
    assert!(first["completions"][0]["response_payload_uncompressed_size"].as_u64() > Some(0));
    assert_eq!(
        poll(0, &json!(0), json!([])),
        first,
        "a lost reply is repeated"
    );
    assert_eq!(
        poll(1, &json!(0), json!([]))["completions"][0]["request_id"],
        other["request_id"]
    );
    caller.wait(&mine);
    // Acknowledged, so it is dropped; the next sample is told alone.
    let next = caller.ok("asample", request(&sampler, 4));
    let second = poll(0, &first["cursor"], json!([mine["request_id"]]));
    assert_eq!(second["completions"].as_array().unwrap().len(), 1);
    assert_eq!(second["completions"][0]["request_id"], next["request_id"]);
    let body = json!({"request_id": mine["request_id"], "allow_metadata_only": false});
    assert_eq!(caller.post("retrieve_future", body).status, 410);
}

/// A poll makes nothing: what it asks about is there, or it is refused.
#[test]
fn polls_for_sampling_sessions_that_are_not_there_are_refused() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let sampler = base_sampler(&caller);
    let poll = |sampler: &Value, client: u64| {
        let body = json!({"target": {"type": "sampling_session", "sampling_session_id": sampler,
            "cloned_sampler_id": client}, "prev_cursor": 0, "timeout": 0.0,
            "retrieved_request_ids": []});
        caller.post("retrieve_futures", body)
    };
    assert_eq!(poll(&json!("x".repeat(100_000)), 0).status, 404);
    let nothing = json!({"completions": [], "cursor": 0});
    assert_eq!(poll(&sampler, 7).json(), nothing);
    let finish = format!("sessions/{}/finish", caller.session);
    caller.ok(&finish, json!({"reason": {"type": "success"}}));
    assert_eq!(poll(&sampler, 0).status, 404);
}

#[test]
fn a_cancelled_sample_ends_and_a_flood_is_held_off() {
    let server = LocalServer::builder()
        .threads(1)
        .max_pending_samples(2)
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let sampler = base_sampler(&caller);
    let mut long = request(&sampler, 0);
    long["num_samples"] = json!(64);
    long["sampling_params"]["max_tokens"] = json!(4000);
    long["sampling_params"]["stop"] = json!([]);
    let first = caller.ok("asample", long.clone());
    long["seq_id"] = json!(1);
    let second = caller.ok("asample", long.clone());
    long["seq_id"] = json!(2);
    let busy = caller.post("asample", long);
    assert_eq!(busy.status, 429);
    assert!(busy.header("retry-after-ms").is_some());
    for accepted in [&first, &second] {
        caller.ok(
            "cancel_future",
            json!({"request_id": accepted["request_id"]}),
        );
        let result = caller.wait(accepted);
        assert!(
            result["error"].as_str().unwrap().contains("cancelled"),
            "{result}"
        );
    }
}

#[test]
fn a_model_trains_while_a_long_sample_is_drawn_on_the_only_thread() {
    let server = LocalServer::builder()
        .threads(1)
        .long_poll(std::time::Duration::from_millis(1))
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let mut long = request(&base_sampler(&caller), 0);
    long["num_samples"] = json!(200);
    long["sampling_params"] = json!({"max_tokens": 4000, "stop": []});
    let sample = caller.ok("asample", long);
    let model = caller.model(0);
    let mut seq_id = 1;
    let first = model.train(&mut seq_id, &["hello hello"]);
    assert!(model.train(&mut seq_id, &["hello hello"]) < first);
    let body = json!({"request_id": sample["request_id"], "allow_metadata_only": false});
    assert_eq!(caller.ok("retrieve_future", body)["type"], "try_again");
}

#[test]
fn weights_are_sampled_as_they_were_when_saved() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let mut seq_id = 1;
    model.train(&mut seq_id, &["hello hello"]);
    let body = json!({"model_id": model.id, "seq_id": seq_id, "sampling_session_seq_id": 0});
    let ephemeral = caller.call("save_weights_for_sampler", body)["sampling_session_id"].clone();
    let body = json!({"model_id": model.id, "seq_id": seq_id + 1, "path": "now"});
    let path = caller.call("save_weights_for_sampler", body)["path"].clone();
    seq_id += 2;
    for _ in 0..3 {
        model.train(&mut seq_id, &["hello hello"]);
    }
    let named = self::sampler(&caller, 1, json!({"model_path": path}));
    let sample = |sampler: &Value| caller.call("asample", request(sampler, 0))["sequences"].clone();
    assert_eq!(sample(&ephemeral), sample(&named));
    let base = self::sampler(&caller, 2, json!({"base_model": caller.base_model()}));
    assert_ne!(sample(&base), sample(&named));
    let info = caller.get(&format!("samplers/{}", named.as_str().unwrap()));
    assert_eq!(info["model_path"], path);
    assert_eq!(info["base_model"], caller.base_model());
}

/// "copy cat", as the built-in model was taught to be asked in a chat.
fn chat_prompt() -> Vec<u32> {
    const IM_START: u32 = 259;
    let text = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let user = [vec![IM_START], text("user\ncopy cat"), vec![IM_END]].concat();
    [user, text("\n"), vec![IM_START], text("assistant\n")].concat()
}

const IM_END: u32 = 260;

fn greedy(caller: &Caller, stop: &Value, max_tokens: u64) -> Value {
    let body = json!({"base_model": caller.base_model(), "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": chat_prompt()}]},
        "sampling_params": {"max_tokens": max_tokens, "temperature": 0.0, "stop": stop}});
    caller.call("asample", body)["sequences"][0].clone()
}

/// The text of a special token never appears in a sample's text, so the token itself is looked for.
#[test]
fn a_stop_string_that_is_a_special_token_stops_there() {
    let folder = tempfile::tempdir().unwrap();
    let server = LocalServer::builder().data(folder.path()).start().unwrap();
    let by_token = greedy(&Caller::new(&server), &json!([IM_END]), 32);
    assert_eq!(by_token["stop_reason"], "stop", "it ends its answers so");
    let same = LocalServer::builder().model(folder.path().join("model"));
    // With the built-in vocabulary, and with the same one read from a file.
    for server in [server, same.start().unwrap()] {
        let caller = Caller::new(&server);
        let by_text = greedy(&caller, &json!(["<|im_end|>"]), 32);
        assert_eq!(by_text["tokens"], by_token["tokens"]);
        assert_eq!(by_text["stop_reason"], "stop");
        let prompt = "<|im_start|>user\ncopy cat<|im_end|>\n<|im_start|>assistant\n";
        let body = json!({"model": caller.base_model(), "prompt": prompt, "max_tokens": 32,
            "temperature": 0, "stop": "<|im_end|>"});
        let path = "/oai/api/v1/completions";
        let body = body.to_string();
        let reply = http::request(&caller.url, "POST", path, &[], body.as_bytes()).unwrap();
        let choice = reply.json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        assert_eq!(choice["text"], "cat");
    }
}

#[test]
fn generation_config_names_more_tokens_that_end_a_sequence() {
    let folder = tempfile::tempdir().unwrap();
    drop(LocalServer::builder().data(folder.path()).start().unwrap());
    let folder = folder.path().join("model");
    let sample = |config: &str| {
        std::fs::write(folder.join("generation_config.json"), config).unwrap();
        let server = LocalServer::builder()
            .model(folder.clone())
            .start()
            .unwrap();
        greedy(&Caller::new(&server), &Value::Null, 8)
    };
    let cat = sample("{}")["tokens"].clone();
    assert_eq!(cat, json!([99, 97, 116, IM_END]));
    let ended = sample(r#"{"eos_token_id": [257, 97], "temperature": 0.7, "top_k": 20}"#);
    assert_eq!(ended["stop_reason"], "stop");
    assert_eq!(ended["tokens"], json!([99, 97]));
    std::fs::write(folder.join("generation_config.json"), "{").unwrap();
    let refused = LocalServer::builder().model(folder).start().unwrap_err();
    assert!(
        refused.to_string().contains("generation_config.json"),
        "{refused}"
    );
}

/// Raw or tempered, the same tokens are drawn; only what is said of them differs.
#[test]
fn log_probabilities_are_the_models_own_or_those_of_the_temperature() {
    let sample = |tempered: bool, temperature: f64| {
        let server = LocalServer::builder()
            .tempered_logprobs(tempered)
            .start()
            .unwrap();
        let caller = Caller::new(&server);
        let body = json!({"base_model": caller.base_model(), "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 101, 108]}]},
            "topk_sample_logprobs": 261, "prompt_logprobs": true,
            "sampling_params": {"max_tokens": 1, "seed": 5, "temperature": temperature, "stop": []}});
        caller.call("asample", body)
    };
    let logprobs = |result: &Value| -> Vec<f64> {
        let values = result["sequences"][0]["logprobs"].as_array().unwrap();
        values.iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let all = |result: &Value| -> std::collections::BTreeMap<i64, f64> {
        let list = result["sequences"][0]["topk_logprobs"][0]
            .as_array()
            .unwrap();
        let pair = |pair: &Value| (pair[0].as_i64().unwrap(), pair[1].as_f64().unwrap());
        list.iter().map(pair).collect()
    };
    let (raw, tempered) = (sample(false, 0.5), sample(true, 0.5));
    assert_eq!(
        raw["sequences"][0]["tokens"],
        tempered["sequences"][0]["tokens"]
    );
    assert_eq!(raw["prompt_logprobs"], tempered["prompt_logprobs"]);
    // Twice the logits, made into probabilities again.
    let doubled = all(&raw)
        .into_iter()
        .map(|(token, logprob)| (token, 2.0 * logprob));
    let doubled: std::collections::BTreeMap<i64, f64> = doubled.collect();
    let total = doubled.values().map(|value| value.exp()).sum::<f64>().ln();
    for (token, logprob) in all(&tempered) {
        assert!(
            (doubled[&token] - total - logprob).abs() < 1e-3,
            "token {token}"
        );
    }
    let token = tempered["sequences"][0]["tokens"][0].as_i64().unwrap();
    assert!((logprobs(&tempered)[0] - all(&tempered)[&token]).abs() < 1e-6);
    assert!((logprobs(&raw)[0] - all(&raw)[&token]).abs() < 1e-6);
    for temperature in [0.0, 1.0] {
        let (raw, tempered) = (sample(false, temperature), sample(true, temperature));
        assert_eq!(raw["sequences"], tempered["sequences"]);
    }
    // Next to 0 the likeliest token is certain, and the others are not even likely.
    let sharp = sample(true, 1e-38);
    assert_eq!(logprobs(&sharp), [0.0]);
    assert!(all(&sharp).values().all(|logprob| logprob.is_finite()));
}
