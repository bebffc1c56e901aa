//! Tokenizers of real models against recorded results of the package `tokenizers`.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tinker::text::{ChatOptions, Message, Specials, Tokenizer};

use crate::support::packages;

/// One tokenizer's results, from the reference package.
#[derive(Deserialize)]
struct Vectors {
    sha256: String,
    vocab_size: usize,
    special: BTreeMap<String, i32>,
    encode: Vec<Encoded>,
    streams: Vec<Streamed>,
    cut_streams: Vec<Streamed>,
}

#[derive(Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<i32>,
    ids_special_as_text: Option<Vec<i32>>,
    ids_with_added: Option<Vec<i32>>,
    decoded: Option<String>,
    decoded_skipping_special: Option<String>,
}

/// The text given out after each id (none: waiting), then what is left at the end.
#[derive(Deserialize)]
struct Streamed {
    ids: Vec<i32>,
    pieces: Vec<Option<String>>,
}

fn vectors(name: &str) -> Vectors {
    let text = include_str!("../../fixtures/text/golden/tokenizer_vectors.json");
    let mut all: BTreeMap<String, Vectors> = serde_json::from_str(text).unwrap();
    all.remove(name).unwrap()
}

fn check_file(path: &Path, vectors: &Vectors) {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(
        packages::sha256(&bytes),
        vectors.sha256,
        "{}",
        path.display()
    );
}

fn check(tokenizer: &Tokenizer, vectors: &Vectors) {
    assert_eq!(tokenizer.vocab_size(), vectors.vocab_size);
    for (token, id) in &vectors.special {
        assert_eq!(tokenizer.token_id(token), Some(*id));
        assert_eq!(tokenizer.token(*id).as_ref(), Some(token));
        assert!(tokenizer.special_tokens().contains(&(*id, token.clone())));
    }
    for row in &vectors.encode {
        check_text(tokenizer, row);
    }
    let texts = || vectors.encode.iter().map(|row| row.text.as_str());
    let batch = tokenizer
        .encode_batch(texts(), Specials::Recognised)
        .unwrap();
    let one_by_one: Vec<_> = vectors.encode.iter().map(|row| row.ids.clone()).collect();
    assert_eq!(batch, one_by_one);
    for stream in vectors.streams.iter().chain(&vectors.cut_streams) {
        assert_eq!(streamed(tokenizer, &stream.ids), stream.pieces);
    }
}

#[track_caller]
fn check_text(tokenizer: &Tokenizer, row: &Encoded) {
    let (text, ids) = (&row.text, &row.ids);
    let or_ids = |other: &Option<Vec<i32>>| other.clone().unwrap_or_else(|| ids.clone());
    assert_eq!(&tokenizer.encode_plain(text).unwrap(), ids, "{text:?}");
    let ordinary = tokenizer.encode_ordinary(text).unwrap();
    assert_eq!(ordinary, or_ids(&row.ids_special_as_text), "{text:?}");
    let with_added = tokenizer.encode(text).unwrap();
    assert_eq!(with_added, or_ids(&row.ids_with_added), "{text:?}");
    let decoded = row.decoded.as_ref().unwrap_or(text);
    assert_eq!(&tokenizer.decode(ids).unwrap(), decoded);
    let plain = row.decoded_skipping_special.as_ref().unwrap_or(decoded);
    assert_eq!(&tokenizer.decode_plain(ids).unwrap(), plain);
}

fn streamed(tokenizer: &Tokenizer, ids: &[i32]) -> Vec<Option<String>> {
    let mut stream = tokenizer.decode_stream();
    let mut pieces: Vec<_> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    pieces.push(Some(stream.finish().unwrap()));
    pieces
}

fn check_package(name: &str) {
    let Some(folder) = packages::npm_tokenizer(name) else {
        return;
    };
    let vectors = vectors(name);
    check_file(&folder.join("tokenizer.json"), &vectors);
    check(&Tokenizer::open(&folder).unwrap(), &vectors);
}

#[test]
fn gpt2() {
    check_package("gpt2");
}

#[test]
fn llama3() {
    check_package("llama3");
}

#[test]
fn qwen3() {
    check_package("qwen3");
}

#[test]
fn gpt_oss() {
    check_package("gptoss");
}

#[test]
fn deepseek_v3() {
    check_package("deepseek_v3");
}

#[test]
fn smollm_from_its_gguf_file() {
    let Some(file) = packages::smollm_gguf() else {
        return;
    };
    let vectors = vectors("smollm");
    check_file(&file, &vectors);
    let tokenizer = Tokenizer::open(&file).unwrap();
    check(&tokenizer, &vectors);
    assert_eq!(tokenizer.special_token("eos_token"), Some("<|im_end|>"));
    let folder = Tokenizer::open(file.parent().unwrap()).unwrap();
    assert_eq!(folder.vocab_size(), tokenizer.vocab_size());
    let chat = tokenizer
        .render_chat(&[Message::user("hi")], &ChatOptions::prompt())
        .unwrap();
    assert!(
        chat.ends_with("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        "{chat}"
    );
}

/// A vocabulary that the package `tiktoken` carries, and what that package makes of texts.
#[test]
fn tiktoken_vocabularies_encode_as_tiktoken_does() {
    const PATTERN: &str = concat!(
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+",
        r"|\s+(?!\S)|\s+",
    );
    let oracle = tiktoken::get_encoding("r50k_base").unwrap();
    let line = |rank: u32| format!("{} {rank}\n", STANDARD.encode(oracle.decode(&[rank])));
    let ranks: String = (0..50_256).map(line).collect();
    let special = [("<|endoftext|>", 50_256)];
    let tokenizer = Tokenizer::from_tiktoken(ranks.as_bytes(), PATTERN, &special).unwrap();
    for row in vectors("gpt2").encode {
        let expected: Vec<i32> = oracle
            .encode(&row.text)
            .into_iter()
            .map(u32::cast_signed)
            .collect();
        assert_eq!(
            tokenizer.encode_ordinary(&row.text).unwrap(),
            expected,
            "{:?}",
            row.text
        );
        check_text(&tokenizer, &row);
    }
}

/// A folder as Moonshot's models have it: ranks, and special tokens that only the configuration
/// names.
#[test]
fn kimi_folders_load() {
    let folder = tempfile::tempdir().unwrap();
    let letters = (0..=255u8).map(|byte| vec![byte]);
    let words = ["你好", "hello", "he", "ll", "hell", " w"].map(|word| word.as_bytes().to_vec());
    let ranks: String = letters
        .chain(words)
        .enumerate()
        .map(|(rank, bytes)| format!("{} {rank}\n", STANDARD.encode(bytes)))
        .collect();
    std::fs::write(folder.path().join("tiktoken.model"), ranks).unwrap();
    let config = r#"{"eos_token": "[EOS]", "added_tokens_decoder": {
        "262": {"content": "[BOS]", "special": true}, "263": {"content": "[EOS]", "special": true},
        "300": {"content": "<think>", "special": false}}}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    assert_eq!(
        tokenizer.encode_plain("hello你好[EOS]<think>").unwrap(),
        [257, 256, 263, 300]
    );
    assert_eq!(tokenizer.eos_id(), Some(263));
    assert_eq!(tokenizer.token_id("<|reserved_token_264|>"), Some(264));
    assert_eq!(
        tokenizer.decode_plain(&[257, 263, 300]).unwrap(),
        "hello<think>"
    );
    assert_eq!(tokenizer.vocab_size(), 262 + 256);

    std::fs::write(folder.path().join("tiktoken.model"), "YQ== 0\nnonsense\n").unwrap();
    let error = Tokenizer::open(folder.path()).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        error.to_string().contains("tiktoken.model") && cause.contains("line 2"),
        "{error}: {cause}"
    );
}

#[test]
fn a_long_stream_costs_its_length() {
    let tokenizer = super::tiny();
    let words = tokenizer
        .encode_plain(&"the cat sat on the mat. ".repeat(2_000))
        .unwrap();
    let halves = tokenizer.encode_plain("é").unwrap()[..1].repeat(5_000);
    for tokens in [words, halves] {
        let mut stream = tokenizer.decode_stream();
        let mut text = String::new();
        for token in &tokens {
            text += &stream.push(*token).unwrap().unwrap_or_default();
        }
        let work = stream.decoded_tokens();
        text += &stream.finish().unwrap();
        assert_eq!(text, tokenizer.decode(&tokens).unwrap());
        assert!(
            work <= 60 * tokens.len() as u64,
            "{work} for {}",
            tokens.len()
        );
    }
}

#[test]
fn ids_of_no_token_are_refused_and_a_stream_goes_on() {
    let tokenizer = super::tiny();
    let beyond = i32::try_from(tokenizer.vocab_size()).unwrap();
    let error = tokenizer.decode(&[1, beyond]).unwrap_err().to_string();
    assert!(
        error.contains("tokens[1]") && error.contains("no token"),
        "{error}"
    );
    let mut stream = tokenizer.decode_stream();
    assert!(stream.push(beyond).is_err());
    assert!(stream.push(-1).is_err());
    let the = tokenizer.encode_plain("the").unwrap();
    let pieces: Vec<_> = the
        .iter()
        .map(|id| stream.push(*id).unwrap().unwrap())
        .collect();
    assert_eq!(pieces.concat(), "the");
}
