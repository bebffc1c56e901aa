//! Tokenizers and chat templates against what Hugging Face's own tools make of the same files.

mod hub;
mod streams;
mod templates;
mod tokenizers;
mod uploads;

use serde::Deserialize;
use tinker::text::{ChatOptions, Message, Tokenizer};

/// Recorded by `tests/fixtures/text/generate.py`.
#[derive(Deserialize)]
struct Cases {
    texts: Vec<TextCase>,
    chats: Vec<ChatCase>,
    vocab_size: usize,
    bos_id: i32,
    eos_id: i32,
}

#[derive(Deserialize)]
struct TextCase {
    text: String,
    encode: Vec<i32>,
    encode_plain: Vec<i32>,
    decode: String,
    decode_plain: String,
}

#[derive(Deserialize)]
struct ChatCase {
    messages: String,
    tools: Option<String>,
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
    rendered: String,
    tokens: Vec<i32>,
}

fn cases() -> Cases {
    serde_json::from_str(include_str!("../../fixtures/text/cases.json")).unwrap()
}

fn tiny() -> Tokenizer {
    Tokenizer::open("tests/fixtures/text/tiny").unwrap()
}

#[test]
fn texts_agree_with_hugging_face() {
    let (tokenizer, cases) = (tiny(), cases());
    for case in &cases.texts {
        assert_eq!(tokenizer.encode(&case.text).unwrap(), case.encode);
        assert_eq!(
            tokenizer.encode_plain(&case.text).unwrap(),
            case.encode_plain
        );
        assert_eq!(tokenizer.decode(&case.encode).unwrap(), case.decode);
        assert_eq!(
            tokenizer.decode_plain(&case.encode).unwrap(),
            case.decode_plain
        );
    }
    assert_eq!(tokenizer.vocab_size(), cases.vocab_size);
    assert_eq!(tokenizer.bos_id(), Some(cases.bos_id));
    assert_eq!(tokenizer.eos_id(), Some(cases.eos_id));
}

#[test]
fn chats_agree_with_hugging_face() {
    let tokenizer = tiny();
    for case in &cases().chats {
        let messages: Vec<Message> = serde_json::from_str(&case.messages).unwrap();
        let mut options = match case.add_generation_prompt {
            true => ChatOptions::prompt(),
            false => ChatOptions::transcript(),
        };
        if let Some(tools) = &case.tools {
            options = options.with_tools(tools).unwrap();
        }
        if let Some(enabled) = case.enable_thinking {
            options = options.with_variable("enable_thinking", enabled);
        }
        assert_eq!(
            tokenizer.render_chat(&messages, &options).unwrap(),
            case.rendered
        );
        assert_eq!(
            tokenizer.encode_chat(&messages, &options).unwrap(),
            case.tokens
        );
    }
}

#[test]
fn a_template_can_refuse_a_conversation() {
    let error = tiny()
        .render_chat(&[Message::new("pirate", "arr")], &ChatOptions::prompt())
        .unwrap_err();
    assert!(error.to_string().contains("unknown role pirate"), "{error}");
}

#[test]
fn a_tokenizer_without_a_template_says_so() {
    let bytes = std::fs::read("tests/fixtures/text/tiny/tokenizer.json").unwrap();
    let tokenizer = Tokenizer::from_json(&bytes, None).unwrap();
    let error = tokenizer
        .encode_chat(&[Message::user("hi")], &ChatOptions::prompt())
        .unwrap_err();
    assert!(
        error.to_string().contains("has no chat template"),
        "{error}"
    );
}
