//! Text in and out in one call.

use tinker::local::LocalServer;
use tinker::text::{Message, Renderer};
use tinker::{ModelInput, SamplingClient, SamplingParams};

use crate::support::local::{base_model, service};

fn sampler(server: &LocalServer) -> SamplingClient {
    let service = service(server);
    service
        .create_sampling_client(base_model(&service))
        .unwrap()
}

#[test]
fn a_conversation_goes_on_with_the_tokens_that_were_sampled() {
    let server = LocalServer::builder().record(true).start().unwrap();
    let sampler = sampler(&server);
    let tokenizer = sampler.tokenizer().unwrap();
    let renderer = Renderer::named("role_colon", &tokenizer).unwrap();
    let mut messages = vec![Message::user("Hi")];
    let params = SamplingParams::max_tokens(5).with_temperature(0.0);
    let answer = sampler.chat(&renderer, &messages, &params).unwrap();
    let tokens = answer.message.tokens().unwrap().to_vec();
    assert!(!tokens.is_empty());

    let mut before = renderer
        .generation_prompt(&messages)
        .unwrap()
        .to_ints()
        .unwrap();
    before.extend(tokens);
    messages.extend([answer.message, Message::user("And?")]);
    sampler.chat(&renderer, &messages, &params).unwrap();
    let sent = server.requests();
    let last = sent.iter().rfind(|r| r.endpoint() == "asample").unwrap();
    let body = last.json().unwrap();
    let chunks = body["prompt"]["chunks"].as_array().unwrap();
    let ids: Vec<i32> = chunks
        .iter()
        .flat_map(|chunk| serde_json::from_value::<Vec<i32>>(chunk["tokens"].clone()).unwrap())
        .collect();
    assert!(ids.starts_with(&before));
    assert_eq!(
        body["sampling_params"]["stop"],
        serde_json::json!(["\n\nUser:"])
    );

    let text = sampler.sample_text(&tokenizer, "Hi", &params).unwrap();
    let prompt = ModelInput::from_ints(tokenizer.encode("Hi").unwrap());
    let response = sampler.sample(&prompt, &params).unwrap();
    assert_eq!(response.text(&tokenizer).unwrap(), text);
}
