//! Every reader of bytes from outside, fed with damaged input: the bounded form of the targets under
//! `fuzz/`, without coverage and with the same readers.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use serde_json::{Value, json};
use tinker::unversioned::fuzz::readers;

/// Damaged inputs of each reader; many more behind the flag for long runs.
fn rounds() -> usize {
    match std::env::var("TINKER_TEST_LONG").as_deref() {
        Ok("1") => 200_000,
        _ => 150,
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Good input of every kind, from what the reference implementations made.
fn seeds() -> Vec<Vec<u8>> {
    fn gather(folder: &Path, seeds: &mut Vec<Vec<u8>>) {
        let mut paths: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                gather(&path, seeds);
            } else {
                let mut bytes = Vec::new();
                let file = fs::File::open(&path).unwrap();
                file.take(64 << 10).read_to_end(&mut bytes).unwrap();
                seeds.push(bytes);
                if let Ok(value) = serde_json::from_slice(&fs::read(&path).unwrap()) {
                    parts(&value, 4, seeds);
                }
            }
        }
    }
    let mut seeds = vec![
        b"tinker://0123:train:0/sampler_weights/step-1".to_vec(),
        b"\x05event: done\ndata: {\"a\": 1}\n\ndata: two\r\n\r\n".to_vec(),
        br#"{"version": 1, "default": "a", "keys": {"a": {"api_key": "tml-x", "name": "n"}}}"#
            .to_vec(),
        b"eyJzZXNzaW9uX2lkIjoicyIsInNhbXBsaW5nX3Nlc3Npb25faWQiOiJzOnNhbXBsZTowIiwiaG9sZGVyIjp7ImJhc2VfdXJsIjoiaHR0cDovL3gifX0=".to_vec(),
        b"YQ== 0\nYg== 1\nYWI= 2\n".to_vec(),
        b"{% for m in messages %}{{ m.role + '|' + m.content | trim }}{% endfor %}".to_vec(),
        archive(),
    ];
    seeds.extend(requests());
    seeds.extend(tokenizers());
    for folder in [
        "wire",
        "text/tiny",
        "text/golden/templates",
        "engine/llama",
        "engine/qwen3",
    ] {
        gather(&fixtures().join(folder), &mut seeds);
    }
    seeds
}

/// What clients say to the server's front, whole and in pieces.
fn requests() -> Vec<Vec<u8>> {
    let body = r#"{"path": "a"}"#;
    let (length, chunks) = (body.len(), format!("d\r\n{body}\r\n0\r\n\r\n"));
    let host = "host: localhost:8000";
    let json = "content-type: application/json; charset=utf-8";
    let get = format!("GET /api/v1/healthz HTTP/1.1\r\n{host}\r\n\r\n");
    [
        format!("\u{7f}{get}{get}"),
        format!("\u{3}POST /api/v1/asample HTTP/1.1\r\n{host}\r\n{json}\r\ncontent-length: {length}\r\n\r\n{body}"),
        format!("\u{1}POST /api/v1/optim_step HTTP/1.1\r\n{host}\r\n{json}\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"),
        format!("\u{40}PUT /api/v1/training_runs/S%3Atrain%3A0/checkpoints/weights/1/ttl?limit=5 HTTP/1.1\r\n{host}\r\nexpect: 100-continue\r\n{json}\r\ncontent-length: {length}\r\n\r\n{body}"),
        format!("\u{10}OPTIONS / HTTP/1.1\r\n{host}\r\norigin: http://localhost:8000\r\naccess-control-request-method: PUT\r\nsec-fetch-site: same-origin\r\n\r\n"),
        format!("\u{9}DELETE /console/checkpoints/r/weights/a HTTP/1.0\r\n{host}\r\nconnection: upgrade, keep-alive\r\n\r\n"),
    ]
    .map(String::into_bytes)
    .into()
}

/// A tokenizer with this model and these parts besides.
fn tokenizer(model: Value, parts: Value) -> Vec<u8> {
    let mut tokenizer = json!({"version": "1.0", "added_tokens": [{"id": 0, "content": "<|end|>",
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}]});
    tokenizer["model"] = model;
    for (name, part) in parts.as_object().unwrap() {
        tokenizer[name] = part.clone();
    }
    tokenizer.to_string().into_bytes()
}

/// Every word is the same to it.
fn words() -> Value {
    json!({"type": "WordLevel", "vocab": {"<|end|>": 0, "?": 1}, "unk_token": "?"})
}

/// Tokenizers of the kinds that the recorded ones are not.
fn tokenizers() -> [Vec<u8>; 4] {
    let pieces = json!({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": {"<|end|>": 0, "?": 1, "hell": 2, "##o": 3}});
    let scores = json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
        "vocab": [["?", 0.0], ["\u{2581}He", -1.5], ["llo", -2.0], ["l", -3.0]]});
    let pairs = json!({"type": "BPE", "dropout": null, "unk_token": "?", "fuse_unk": true,
        "continuing_subword_prefix": null, "end_of_word_suffix": "</w>", "byte_fallback": true,
        "vocab": {"?": 0, "h": 1, "e": 2, "he": 3, "l</w>": 4}, "merges": [["h", "e"]]});
    let space = json!({"String": "\u{2581}"});
    [
        tokenizer(
            pieces,
            json!({
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["?", 1], "cls": ["<|end|>", 0]},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true}}),
        ),
        tokenizer(
            scores,
            json!({
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                {"type": "Strip", "strip_left": true, "strip_right": false},
                {"type": "Prepend", "prepend": "\u{2581}"}]},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}",
                "prepend_scheme": "always", "split": true},
            "post_processor": {"type": "TemplateProcessing", "pair": [],
                "single": [{"SpecialToken": {"id": "x", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {"x": {"id": "x", "ids": [0], "tokens": ["x"]}}},
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"},
                {"type": "Replace", "pattern": space, "content": " "}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}),
        ),
        tokenizer(
            words(),
            json!({
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "\\s+|\\w+"}, "behavior": "Isolated",
                    "invert": false},
                {"type": "Digits", "individual_digits": true},
                {"type": "Punctuation", "behavior": "Contiguous"},
                {"type": "CharDelimiterSplit", "delimiter": "-"}, {"type": "WhitespaceSplit"}]},
            "post_processor": {"type": "RobertaProcessing", "sep": ["?", 1], "cls": ["<|end|>", 0],
                "trim_offsets": true, "add_prefix_space": true},
            "decoder": {"type": "CTC", "pad_token": "?", "word_delimiter_token": "|",
                "cleanup": true}}),
        ),
        tokenizer(
            pairs,
            json!({
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"},
                {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Nmt"}]},
            "pre_tokenizer": {"type": "Whitespace"},
            "decoder": {"type": "BPEDecoder", "suffix": "</w>"}}),
        ),
    ]
}

/// The objects inside a recorded file: requests and answers among them.
fn parts(value: &Value, depth: usize, seeds: &mut Vec<Vec<u8>>) {
    let inner: Vec<&Value> = match value {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().take(12).collect(),
        _ => return,
    };
    if value.is_object() {
        seeds.push(serde_json::to_vec(value).unwrap());
    }
    if depth > 0 {
        inner
            .into_iter()
            .for_each(|value| parts(value, depth - 1, seeds));
    }
}

fn archive() -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..5].copy_from_slice(b"a.txt");
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(b"00000000004");
    header[156] = b'0';
    header[257..262].copy_from_slice(b"ustar");
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    [&header[..], b"good", &[0; 508 + 1024]].concat()
}

/// One of the ways in which bytes go wrong.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = rng.usize(0..=bytes.len());
    match rng.u8(0..6) {
        0 => bytes.truncate(at),
        1 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(0..8),
        2 if at + 8 <= bytes.len() => {
            let extreme = [0, 1, u64::MAX, i64::MAX as u64, 1 << 31, 0xffff_ffff];
            let value = rng.choice(extreme).unwrap();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        3 => {
            let digits = [
                "-1",
                "1e999",
                "18446744073709551616",
                "null",
                "[[[[",
                "\u{0}",
                "\u{fdd0}",
            ];
            let text = rng.choice(digits).unwrap();
            bytes.splice(at..at, text.bytes());
        }
        4 if !other.is_empty() => {
            let from = rng.usize(0..other.len());
            let piece = &other[from..(from + 64).min(other.len())];
            bytes.splice(at..at, piece.iter().copied());
        }
        _ => {
            let end = (at + rng.usize(0..64)).min(bytes.len());
            let repeated = bytes[at..end].repeat(rng.usize(1..4));
            bytes.splice(at..end, repeated);
        }
    }
}

#[test]
fn damaged_input_is_survived_by_every_reader() {
    let seeds = seeds();
    for (index, reader) in readers().into_iter().enumerate() {
        let mut rng = Rng::with_seed(index as u64);
        // What the reader accepts is a better beginning than what it does not.
        let fitting: Vec<&Vec<u8>> = seeds
            .iter()
            .filter(|seed| reader.read(seed).is_ok())
            .collect();
        for _ in 0..rounds() {
            let pool = if fitting.is_empty() || rng.u8(0..4) == 0 {
                seeds.iter().collect()
            } else {
                fitting.clone()
            };
            let mut bytes = rng.choice(pool).unwrap().clone();
            let other = rng.choice(&seeds).unwrap();
            for _ in 0..rng.usize(1..5) {
                damage(&mut rng, &mut bytes, other);
            }
            let _ = reader.read(&bytes);
        }
    }
}

/// What was found this way, and mended.
#[test]
fn findings_stay_mended() {
    let lone_surrogate = br#"{"version": "1.0", "decoder": {"type": "Fuse", "x": "\ud800"}}"#;
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    // These were read, and panicked with the first text.
    let nowhere = json!({"type": "TemplateProcessing", "pair": [], "special_tokens": {},
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}]});
    let no_length = json!({"type": "FixedLength", "length": 0});
    let astray = json!({"type": "Precompiled", "precompiled_charsmap": "CAAAAP////94VjQSYWJjAA=="});
    let [nowhere, no_length, astray] = [
        json!({ "post_processor": nowhere }),
        json!({ "pre_tokenizer": no_length }),
        json!({ "normalizer": astray }),
    ]
    .map(|part| tokenizer(words(), part));
    for (name, bytes) in [
        ("tokenizer", &lone_surrogate[..]),
        ("tokenizer", &nowhere),
        ("tokenizer", &no_length),
        ("tokenizer", &astray),
        ("template", endless.as_bytes()),
    ] {
        let readers = readers();
        let reader = readers.iter().find(|reader| reader.name == name);
        assert!(reader.unwrap().read(bytes).is_err(), "{name}");
    }
}

/// Readers that have no good input among the seeds would only ever see nonsense.
///
/// `TINKER_TEST_SEEDS=FOLDER` keeps it, a folder for each target: where a fuzzer is to begin.
#[test]
fn every_reader_has_good_input() {
    let seeds = seeds();
    let kept = std::env::var_os("TINKER_TEST_SEEDS").map(PathBuf::from);
    for reader in readers() {
        let name = reader.name;
        let good: Vec<_> = seeds
            .iter()
            .filter(|seed| reader.read(seed).is_ok())
            .collect();
        assert!(!good.is_empty(), "{name}");
        if let Some(folder) = kept.as_ref().map(|folder| folder.join(reader.target)) {
            fs::create_dir_all(&folder).unwrap();
            for (number, seed) in good.into_iter().enumerate() {
                fs::write(folder.join(format!("{name}-{number}")), seed).unwrap();
            }
        }
    }
}

#[test]
fn every_reader_has_a_target() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
    // Cargo leaves packages inside the package out of what it publishes.
    if !targets.exists() && !Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci").exists() {
        return;
    }
    let targets: BTreeSet<String> = fs::read_dir(targets)
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    let names: BTreeSet<String> = readers()
        .iter()
        .map(|reader| reader.target.to_owned())
        .collect();
    assert_eq!(targets, names);
}
