//! Conversations to datums, against the raw tokenizer on the same texts.
//!
//! ```text
//! cargo bench --bench text [conversations]
//! ```
//!
//! Prints both times and their ratio from one run: how much of the speed of `tokenizers`' own
//! batch encoding is left when messages are laid out, weighted, shifted and put into datums. The
//! vocabulary is the one of the test fixtures; tokenizers take about the same time with a whole
//! one. Then the peak memory of processes that stream a file of so many conversations, and a tenth.

#![allow(clippy::print_stdout, reason = "the figures are this program's output")]

use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::time::Instant;

use flate2::read::GzDecoder;
use tinker::text::data::{Conversation, Reader, RenderOptions};
use tinker::text::{Message, Renderer, Tokenizer};

const QUESTIONS: [&str; 4] = [
    "What is the weather in Paris today, and will it rain tomorrow?",
    "Name a colour that is neither red nor blue, and say why you like it.",
    "Write hello in Rust, then explain what the macro does in one sentence.",
    "Weather and time? Use the tools when needed, and answer in French.",
];
const ANSWERS: [&str; 4] = [
    "It is 18 degrees and cloudy in Paris. Tomorrow it will rain a little in the morning.",
    "Green: it is the colour of the first leaves, and it is easy on the eyes.",
    "fn main() { println!(\"hi\"); } The macro formats its arguments and prints a line.",
    "Il fait beau, et il est midi. Demain il va pleuvoir.",
];

/// Says that this process only streams.
const STREAMED: &str = "--streamed";

fn main() {
    let count = std::env::args().filter_map(|a| a.parse().ok()).next();
    let count: usize = count.unwrap_or(100_000);
    if std::env::args().any(|argument| argument == STREAMED) {
        return stream(count);
    }
    let (tokenizer, raw) = tokenizers();
    let renderer = Renderer::named("qwen3_instruct", &tokenizer).expect("a renderer");
    let conversations: Vec<Conversation> = (0..count).map(conversation).collect();
    let texts: Vec<String> = conversations
        .iter()
        .flat_map(|c| c.messages.iter().map(Message::text))
        .collect();
    let file: String = conversations
        .iter()
        .map(|c| serde_json::to_string(c).expect("a line") + "\n")
        .collect();

    let mut best = [f64::INFINITY; 3];
    for _ in 0..3 {
        best[0] = best[0].min(seconds(|| {
            let encoded = raw.encode_batch_fast(texts.clone(), false).expect("tokens");
            assert_eq!(encoded.len(), texts.len());
        }));
        best[1] = best[1].min(seconds(|| {
            let data = renderer.datums(conversations.clone(), RenderOptions::default());
            assert_eq!(data.expect("datums").len(), count);
        }));
        best[2] = best[2].min(seconds(|| {
            let rows = Reader::<Conversation>::new("bench", std::io::Cursor::new(file.clone()));
            let datums = rows.datums(&renderer, RenderOptions::default());
            assert_eq!(datums.filter_map(Result::ok).count(), count);
        }));
    }
    let [raw, rows, lines] = best;
    println!("{count} conversations, {} texts", texts.len());
    println!("raw batch encoding   {raw:.2} s");
    println!(
        "messages to datums   {rows:.2} s, {:.0} % of raw",
        100.0 * raw / rows
    );
    println!(
        "JSON lines to datums {lines:.2} s, {:.0} % of raw",
        100.0 * raw / lines
    );
    for count in [count / 10, count] {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        let status = child.args([STREAMED, &count.to_string()]).status();
        assert!(status.expect("a process").success());
    }
}

/// Reads a file as it would be trained on, keeping nothing, and says what that took.
fn stream(count: usize) {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    for n in 0..count {
        let line = serde_json::to_string(&conversation(n)).expect("a line");
        writeln!(file, "{line}").expect("room");
    }
    let (tokenizer, _) = tokenizers();
    let renderer = Renderer::named("qwen3_instruct", &tokenizer).expect("a renderer");
    let before = peak_memory();
    let rows = Reader::<Conversation>::open(file.path()).expect("rows");
    let datums = rows.datums(&renderer, RenderOptions::default());
    assert_eq!(datums.filter_map(Result::ok).count(), count);
    println!(
        "streaming {count:>7}: peak {} KiB more",
        peak_memory() - before
    );
}

/// In KiB; 0 where the system does not say.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

fn conversation(n: usize) -> Conversation {
    let question = format!("{} ({n})", QUESTIONS[n % 4]);
    let answer = format!("{} ({n})", ANSWERS[n / 4 % 4]);
    Conversation::new([Message::user(&question), Message::assistant(&answer)])
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn tokenizers() -> (Tokenizer, tokenizers::Tokenizer) {
    let file = File::open("tests/fixtures/text/renderers/qwen3.json.gz").expect("the fixture");
    let mut text = String::new();
    GzDecoder::new(file)
        .read_to_string(&mut text)
        .expect("text");
    let parts: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let json = serde_json::to_vec(&parts["tokenizer"]).expect("JSON");
    let ours = Tokenizer::from_json(&json, None).expect("a tokenizer");
    (
        ours,
        tokenizers::Tokenizer::from_bytes(&json).expect("a tokenizer"),
    )
}
