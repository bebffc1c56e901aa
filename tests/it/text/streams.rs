//! Answers read while they come: what is shown of them, and what they are in the end.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use tinker::text::{Delta, ParseStream, Parsed, Renderer, Termination};

use crate::renderers::tokenizer;

/// What a stream gives out, neighbours of a kind put together.
#[derive(Default)]
struct Shown(Vec<(&'static str, String)>);

impl Shown {
    fn add(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            let (kind, text) = match delta {
                Delta::Text(text) => ("text", text),
                Delta::Thinking(text) => ("thinking", text),
            };
            assert_ne!(text, "");
            match self.0.last_mut() {
                Some((last, said)) if *last == kind => *said += &text,
                _ => self.0.push((kind, text)),
            }
        }
    }
}

fn read(mut stream: ParseStream, ids: &[i32]) -> (Shown, Parsed) {
    let mut shown = Shown::default();
    for &id in ids {
        shown.add(stream.push(id).unwrap());
    }
    let (rest, parsed) = stream.finish().unwrap();
    shown.add(rest);
    (shown, parsed)
}

#[test]
fn answers_are_shown_as_the_cookbook_shows_them() {
    let file = File::open("tests/fixtures/text/renderers/streams.jsonl.gz").unwrap();
    let mut rows = String::new();
    GzDecoder::new(file).read_to_string(&mut rows).unwrap();
    let mut renderers = HashMap::new();
    let (mut checked, mut unended) = (0, 0);
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        let name = row["renderer"].as_str().unwrap();
        let place = format!("{name} {}", row["case"]);
        let renderer = renderers.entry(name.to_owned()).or_insert_with(|| {
            let tokenizer = tokenizer(row["tokenizer"].as_str().unwrap());
            Renderer::named(name, &tokenizer).unwrap()
        });
        let ids: Vec<i32> = serde_json::from_value(row["ids"].clone()).unwrap();
        let (shown, parsed) = read(renderer.parse_stream().unwrap(), &ids);
        let message = serde_json::to_value(&parsed.message).unwrap();
        assert_eq!(message, row["message"], "{place}");
        // What follows the stop is not read here, and refused where an answer is read whole.
        let tokens = parsed.message.tokens().unwrap();
        assert!(ids.starts_with(tokens), "{place}");
        let whole = renderer.parse(tokens).unwrap();
        assert_eq!(parsed.termination, whole.termination, "{place}");
        if whole.termination.is_clean() {
            assert_eq!(parsed, whole, "{place}");
        } else {
            assert_eq!(tokens, ids, "{place}");
        }
        let shown = json!(shown.0);
        checked += 1;
        if shown != row["deltas"] {
            // The cookbook looks ahead for the end of the thinking, and shows what has none as text.
            let said = renderer.tokenizer().decode(tokens).unwrap();
            assert!(
                !said.contains("</think>"),
                "{place}: {shown} {}",
                row["deltas"]
            );
            let text = row["deltas"][0][1].as_str().unwrap_or_default();
            let thought = [format!("\n{text}"), text.to_owned()];
            let thought = thought.map(|text| json!([["thinking", text]]));
            assert!(
                thought.contains(&shown),
                "{place}: {shown} {}",
                row["deltas"]
            );
            unended += 1;
        }
    }
    assert!(
        checked >= 600 && (1..100).contains(&unended),
        "{checked} {unended}"
    );
}

#[test]
fn nothing_is_shown_that_may_be_half_a_tag_or_a_character() {
    let tokenizer = tokenizer("qwen3");
    let renderer = Renderer::named("qwen3", &tokenizer).unwrap();
    let mut stream = renderer.parse_stream().unwrap();
    let mut push = |text: &str| {
        let mut shown = Shown::default();
        for id in tokenizer.encode_plain(text).unwrap() {
            shown.add(stream.push(id).unwrap());
        }
        shown.0
    };
    assert_eq!(push("a <"), [("text", "a ".to_owned())]);
    assert_eq!(push("think"), []);
    assert_eq!(push(" b"), [("text", "<think b".to_owned())]);
    assert_eq!(push("<think>"), []);
    assert_eq!(push("c </"), [("thinking", "c ".to_owned())]);
    assert_eq!(push("d</think>"), [("thinking", "</d".to_owned())]);
    assert_eq!(push("e<|im_end|>"), [("text", "e".to_owned())]);
    assert_eq!(push("nobody reads this<|im_end|>"), []);
    let (rest, parsed) = stream.finish().unwrap();
    assert_eq!(
        (rest.len(), parsed.termination),
        (0, Termination::StopSequence)
    );
}

#[test]
fn a_message_without_an_end_shows_all_that_was_held_back() {
    let tokenizer = tokenizer("qwen3");
    let renderer = Renderer::named("qwen3", &tokenizer).unwrap();
    let ids = tokenizer.encode_plain("<think>a</think>b <th").unwrap();
    let (shown, parsed) = read(renderer.parse_stream().unwrap(), &ids);
    let expected = [("thinking", "a".to_owned()), ("text", "b <th".to_owned())];
    assert_eq!(shown.0, expected);
    assert_eq!(parsed.termination, Termination::Malformed);
    assert_eq!(parsed.message.thinking(), "a");
    let (shown, parsed) = read(renderer.parse_stream().unwrap(), &[]);
    assert_eq!(
        (shown.0.len(), parsed.termination),
        (0, Termination::Malformed)
    );
}

#[test]
fn those_that_read_whole_messages_only_say_so() {
    for (name, file) in [
        ("gpt_oss_medium_reasoning", "gptoss"),
        ("role_colon", "llama3"),
        ("tml_v0", "O200kBaseChatTokenizer"),
    ] {
        let renderer = Renderer::named(name, &tokenizer(file)).unwrap();
        let error = renderer.parse_stream().unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("parse"), "{error}");
    }
}
