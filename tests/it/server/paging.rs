//! Memory for keys and values: taken by use, shared by prompts, given back by the youngest.

use serde_json::{Value, json};
use tinker::local::LocalServer;

use super::Caller;

/// A server whose keys and values do not hold one whole context of its model, as a real model's
/// do not on a laptop.
fn short_of_memory() -> LocalServer {
    // An eighth of it is for keys and values: the least there is, 512 positions of 4,096.
    let server = LocalServer::builder().max_memory(4 << 20);
    server.start().unwrap()
}

/// A prompt that leaves 129 tokens of the context.
const LONG: [u8; 3968] = [b'x'; 3968];

fn sampler(caller: &Caller) -> Value {
    let body = json!({"session_id": caller.session, "sampling_session_seq_id": 0,
        "base_model": caller.base_model()});
    caller.ok("create_sampling_session", body)["sampling_session_id"].clone()
}

/// A request that nothing ends but the context, unless `max_tokens` says so.
fn request(sampler: &Value, seq_id: u64, prompt: &[u8], max_tokens: Option<u64>) -> Value {
    json!({"sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
        "sampling_params": {"max_tokens": max_tokens, "seed": seq_id, "stop": [], "temperature": 1.0,
            "top_k": -1, "top_p": 1.0}})
}

fn tokens(result: &Value) -> usize {
    result["sequences"][0]["tokens"].as_array().unwrap().len()
}

#[test]
fn beside_a_request_without_max_tokens_a_short_one_is_answered() {
    let server = short_of_memory();
    let caller = Caller::new(&server);
    let sampler = sampler(&caller);
    let long = caller.ok("asample", request(&sampler, 0, &LONG, None));
    for seq_id in 1..6 {
        let short = caller.call("asample", request(&sampler, seq_id, b"short", Some(4)));
        assert_eq!(tokens(&short), 4);
    }
    assert_eq!(tokens(&caller.wait(&long)), 4096 + 1 - LONG.len());
}

#[test]
fn many_requests_without_max_tokens_finish_as_they_would_alone() {
    let server = short_of_memory();
    let caller = Caller::new(&server);
    let sampler = sampler(&caller);
    let requests = 0..4;
    let accepted: Vec<Value> = requests
        .clone()
        .map(|seq_id| caller.ok("asample", request(&sampler, seq_id, &LONG, None)))
        .collect();
    let crowd: Vec<Value> = accepted.iter().map(|one| caller.wait(one)).collect();

    let other = LocalServer::start().unwrap();
    let caller = Caller::new(&other);
    let sampler = self::sampler(&caller);
    for (seq_id, crowd) in requests.zip(&crowd) {
        assert_eq!(tokens(crowd), 4096 + 1 - LONG.len());
        let alone = caller.call("asample", request(&sampler, seq_id, &LONG, None));
        assert_eq!(alone["sequences"], crowd["sequences"], "request {seq_id}");
    }
}

#[test]
fn a_group_of_requests_reads_its_prompt_once() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let sampler = sampler(&caller);
    let prompt = [b'y'; 256];
    let accepted: Vec<Value> = (0..16)
        .map(|seq_id| caller.ok("asample", request(&sampler, seq_id, &prompt, Some(8))))
        .collect();
    let read: i64 = accepted
        .iter()
        .map(|one| {
            let cached = caller.wait(one)["prompt_cache_hit_tokens"].as_i64();
            256 - cached.unwrap_or(0)
        })
        .sum();
    assert_eq!(read, 256, "by all of them together");
}
