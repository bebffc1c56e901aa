//! Tokens: what a streamed decode costs as it gets longer, and a batch on all cores against one.
//!
//! `cargo bench --bench tokens [folder]`, where the folder has a tokenizer; without one a small one
//! of our own is measured.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints, and stops at the first problem"
)]

use std::time::Instant;

use tinker::text::{Specials, Tokenizer};

fn main() {
    let mut folders = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'));
    let folder = folders
        .next()
        .unwrap_or_else(|| "tests/fixtures/text/tiny".to_owned());
    let tokenizer = Tokenizer::open(&folder).unwrap();
    println!("tokenizer: {folder}, {} tokens", tokenizer.vocab_size());
    let line = "the cat sat on the mat, and 12 naïve 日本 birds flew over it.\n";
    let tokens = tokenizer.encode_plain(&line.repeat(20_000)).unwrap();

    println!("streamed decode:");
    for count in [8_000, 16_000, 32_000, 64_000] {
        let start = Instant::now();
        let mut stream = tokenizer.decode_stream();
        let mut text = String::new();
        for token in &tokens[..count] {
            text += &stream.push(*token).unwrap().unwrap_or_default();
        }
        let work = stream.decoded_tokens();
        text += &stream.finish().unwrap();
        let taken = start.elapsed();
        assert_eq!(text, tokenizer.decode(&tokens[..count]).unwrap());
        println!(
            "  {count:>6} tokens: {:>7.1} ms, {:.2} us and {:.2} decoded tokens each",
            taken.as_secs_f64() * 1e3,
            taken.as_secs_f64() * 1e6 / count as f64,
            work as f64 / count as f64
        );
    }

    let texts: Vec<String> = (0..20_000).map(|n| format!("{n} {line}")).collect();
    let start = Instant::now();
    let single: usize = texts
        .iter()
        .map(|text| tokenizer.encode_plain(text).unwrap().len())
        .sum();
    let one = start.elapsed();
    let start = Instant::now();
    let batch = tokenizer.encode_batch(texts, Specials::Recognised).unwrap();
    let all = start.elapsed();
    assert_eq!(batch.iter().map(Vec::len).sum::<usize>(), single);
    println!(
        "20000 texts, {single} tokens: {:.0} ms one by one, {:.0} ms as a batch ({:.2} times as fast)",
        one.as_secs_f64() * 1e3,
        all.as_secs_f64() * 1e3,
        one.as_secs_f64() / all.as_secs_f64()
    );
}
