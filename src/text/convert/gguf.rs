//! The vocabulary and the chat template inside a GGUF file.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::{added_token, beginning_with, byte_level, bytes};
use crate::gguf::Gguf;
use crate::text::special::TokenizerConfig;

pub(super) const GPT2_DIGITS: &str = r"\p{N}";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(super) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// The `tokenizer.json` and the configuration a GGUF file amounts to.
pub(in crate::text) fn read(gguf: &Gguf) -> Result<(Value, TokenizerConfig), String> {
    let tokens = gguf
        .texts("tokenizer.ggml.tokens")
        .ok_or("it has no vocabulary")?;
    let kinds = gguf
        .numbers("tokenizer.ggml.token_type")
        .unwrap_or_default();
    let mut json = match gguf.text("tokenizer.ggml.model") {
        Some("gpt2") => byte_level_bpe(gguf, tokens)?,
        Some("llama") => sentence_pieces(gguf, tokens, kinds)?,
        other => {
            let model = other.unwrap_or("unnamed");
            return Err(format!(
                "its vocabulary is of the kind {model:?}, and gpt2 and llama are read: use the \
                 model's tokenizer.json"
            ));
        }
    };
    json["version"] = json!("1.0");
    json["added_tokens"] = added_tokens(tokens, kinds);
    let config = config(gguf, tokens);
    let adds_bos = gguf.flag("tokenizer.ggml.add_bos_token");
    // llama.cpp's default for this kind of vocabulary.
    let adds_bos = adds_bos.unwrap_or(gguf.text("tokenizer.ggml.model") == Some("llama"));
    let bos = gguf.whole("tokenizer.ggml.bos_token_id");
    if let (true, Some(id), Some(token)) = (adds_bos, bos, config.special_tokens.get("bos_token")) {
        json["post_processor"] = beginning_with(token, id);
    }
    Ok((json, config))
}

/// Control tokens are special; tokens of the user's are recognised but not special.
fn added_tokens(tokens: &[String], kinds: &[f64]) -> Value {
    let kinds = kinds.iter().map(|kind| *kind as i64);
    tokens
        .iter()
        .zip(kinds)
        .enumerate()
        .filter_map(|(id, (token, kind))| match kind {
            CONTROL => Some(added_token(id, token, true)),
            USER_DEFINED => Some(added_token(id, token, false)),
            _ => None,
        })
        .collect()
}

const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

fn vocabulary(tokens: &[String]) -> Map<String, Value> {
    let numbered = tokens.iter().enumerate();
    numbered
        .map(|(id, token)| (token.clone(), json!(id)))
        .collect()
}

fn byte_level_bpe(gguf: &Gguf, tokens: &[String]) -> Result<Value, String> {
    let merges = gguf
        .texts("tokenizer.ggml.merges")
        .ok_or("it has no merges")?;
    let merges: Vec<Value> = merges
        .iter()
        .map(|merge| match merge.split_once(' ') {
            Some((left, right)) => Ok(json!([left, right])),
            None => Err(format!("the merge {merge:?} has one part")),
        })
        .collect::<Result<_, String>>()?;
    let name = gguf.text("tokenizer.ggml.pre").unwrap_or("default");
    let (split, ignore_merges) = splitting(name).ok_or_else(|| {
        format!("how it splits words ({name:?}) is not known: use the model's tokenizer.json")
    })?;
    Ok(json!({
        "pre_tokenizer": split,
        "decoder": bytes(false),
        "model": {
            "type": "BPE",
            "vocab": vocabulary(tokens),
            "merges": merges,
            "ignore_merges": ignore_merges,
        },
    }))
}

/// llama.cpp's name for how a text is split, and whether a whole word may be a token that no
/// merges lead to.
pub(super) fn splitting(name: &str) -> Option<(Value, bool)> {
    let gpt2 = |patterns: &[&str]| {
        let mut split = byte_level(patterns);
        if let Some(last) = split["pretokenizers"]
            .as_array_mut()
            .and_then(|steps| steps.last_mut())
        {
            *last = bytes(true);
        }
        split
    };
    Some(match name {
        "default" | "gpt-2" | "gpt2" | "phi-2" | "jina-en" | "jina-es" | "jina-de" | "mpt"
        | "olmo" | "jais" | "roberta-bpe" | "gigachat" => (gpt2(&[]), false),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            (gpt2(&[GPT2_DIGITS]), false)
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2"
        | "midm-2.0" => (byte_level(&[LLAMA3]), true),
        "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4" => (byte_level(&[LLAMA3]), false),
        "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" | "mellum"
        | "solar-open" => (byte_level(&[QWEN2]), false),
        "qwen35" => (byte_level(&[QWEN35]), false),
        "gpt-4o" | "llama4" | "kanana2" => (byte_level(&[GPT4O]), false),
        "tekken" => (byte_level(&[TEKKEN]), true),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => (byte_level(&DEEPSEEK3), false),
        "kimi-k2" => (byte_level(&[super::tiktoken::KIMI_PATTERN]), true),
        _ => return None,
    })
}

/// SentencePiece's BPE: what joins first is the piece with the highest score.
fn sentence_pieces(gguf: &Gguf, tokens: &[String], kinds: &[f64]) -> Result<Value, String> {
    let scores = gguf
        .numbers("tokenizer.ggml.scores")
        .filter(|scores| scores.len() == tokens.len())
        .ok_or("it has no score for every token")?;
    let is_normal = |id: usize| kinds.get(id).is_none_or(|kind| *kind == 1.0);
    let ids: HashMap<&str, usize> = tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| is_normal(*id))
        .map(|(id, token)| (token.as_str(), id))
        .collect();
    let mut merges = Vec::new();
    for (token, id) in &ids {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(a), Some(b)) = (ids.get(left), ids.get(right)) {
                merges.push((scores[*id], (*a, *b), json!([left, right])));
            }
        }
    }
    merges.sort_by(|(a, x, _), (b, y, _)| b.total_cmp(a).then(x.cmp(y)));
    let merges: Vec<Value> = merges.into_iter().map(|(.., merge)| merge).collect();
    let unknown = gguf.whole("tokenizer.ggml.unknown_token_id").unwrap_or(0);
    let unknown = usize::try_from(unknown).ok().and_then(|id| tokens.get(id));
    let adds_space = gguf.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let mut normalizers =
        vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if adds_space {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "vocab": vocabulary(tokens),
            "merges": merges,
            "unk_token": unknown,
            "fuse_unk": true,
            "byte_fallback": true,
        },
    }))
}

/// Roles of special tokens, and the chat templates.
fn config(gguf: &Gguf, tokens: &[String]) -> TokenizerConfig {
    let roles = [
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("sep_token", "seperator_token_id"),
        ("pad_token", "padding_token_id"),
    ];
    let token = |key: &str| {
        let id = gguf.whole(&format!("tokenizer.ggml.{key}"))?;
        tokens.get(usize::try_from(id).ok()?).cloned()
    };
    let special_tokens = roles
        .iter()
        .filter_map(|(role, key)| Some(((*role).to_owned(), token(key)?)))
        .collect();
    let mut chat_templates = BTreeMap::new();
    let named = gguf.texts("tokenizer.chat_templates").unwrap_or_default();
    for name in named {
        if let Some(text) = gguf.text(&format!("tokenizer.chat_template.{name}")) {
            chat_templates.insert(name.clone(), text.to_owned());
        }
    }
    if let Some(text) = gguf.text("tokenizer.chat_template") {
        chat_templates.insert("default".to_owned(), text.to_owned());
    }
    TokenizerConfig {
        special_tokens,
        chat_templates,
        extra_special_tokens: Vec::new(),
    }
}
#[cfg(test)]
mod tests {
    use crate::text::Tokenizer;

    /// The front of a GGUF file, value by value.
    #[derive(Default)]
    struct Writer {
        count: u64,
        values: Vec<u8>,
    }

    impl Writer {
        fn text(bytes: &mut Vec<u8>, text: &str) {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        }

        fn value(mut self, name: &str, kind: u32, bytes: &[u8]) -> Self {
            Self::text(&mut self.values, name);
            self.values.extend(kind.to_le_bytes());
            self.values.extend(bytes);
            self.count += 1;
            self
        }

        fn with(self, name: &str, text: &str) -> Self {
            let mut bytes = Vec::new();
            Self::text(&mut bytes, text);
            self.value(name, 8, &bytes)
        }

        fn with_id(self, name: &str, id: u32) -> Self {
            self.value(name, 4, &id.to_le_bytes())
        }

        fn with_list<T>(
            self,
            name: &str,
            kind: u32,
            items: &[T],
            write: impl Fn(&mut Vec<u8>, &T),
        ) -> Self {
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| write(&mut bytes, item));
            self.value(name, 9, &bytes)
        }

        fn with_texts(self, name: &str, texts: &[&str]) -> Self {
            self.with_list(name, 8, texts, |bytes, text| Self::text(bytes, text))
        }

        fn open(&self) -> Result<Tokenizer, crate::Error> {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("model.gguf");
            let mut bytes = b"GGUF".to_vec();
            bytes.extend(3u32.to_le_bytes());
            bytes.extend(0u64.to_le_bytes());
            bytes.extend(self.count.to_le_bytes());
            bytes.extend(&self.values);
            std::fs::write(&file, bytes).unwrap();
            Tokenizer::open(file)
        }
    }

    const TOKENS: &str = "tokenizer.ggml.tokens";
    const KINDS: &str = "tokenizer.ggml.token_type";

    /// SentencePiece's kind: scores, bytes for what has no piece, a space put first.
    fn pieces() -> Writer {
        let tokens = [
            "<unk>", "<s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁ab", "<sys>",
        ];
        let kinds = [2i32, 3, 6, 6, 1, 1, 1, 1, 1, 4];
        let scores = [0f32, 0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -2.0, 0.0];
        Writer::default()
            .with("tokenizer.ggml.model", "llama")
            .with_texts(TOKENS, &tokens)
            .with_list(KINDS, 5, &kinds, |bytes, kind| {
                bytes.extend(kind.to_le_bytes())
            })
            .with_list("tokenizer.ggml.scores", 6, &scores, |bytes, score| {
                bytes.extend(score.to_le_bytes());
            })
            .with_id("tokenizer.ggml.bos_token_id", 1)
            .with_id("tokenizer.ggml.unknown_token_id", 0)
            .with(
                "tokenizer.chat_template",
                "{{ bos_token }}{{ messages[0].content }}",
            )
    }

    #[test]
    fn sentence_pieces_join_by_score() {
        let tokenizer = pieces().open().unwrap();
        assert_eq!(tokenizer.encode("ab ab").unwrap(), [1, 8, 8]);
        assert_eq!(tokenizer.encode_plain("ab<sys>").unwrap()[1], 9);
        assert_eq!(tokenizer.encode_plain("aéb").unwrap(), [4, 5, 2, 3, 6]);
        assert_eq!(tokenizer.decode(&[8, 8, 2, 3]).unwrap(), "ab abé");
        assert_eq!(tokenizer.special_token("bos_token"), Some("<s>"));
        let mut stream = tokenizer.decode_stream();
        let said: Vec<_> = [8, 8, 2, 3].map(|id| stream.push(id).unwrap()).to_vec();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(said, [text("ab"), text(" ab"), None, text("é")]);
    }

    /// As Gemma's are.
    #[test]
    fn sentence_pieces_may_begin_without_a_space() {
        let flag = "tokenizer.ggml.add_space_prefix";
        let tokenizer = pieces().value(flag, 7, &[0]).open().unwrap();
        assert_eq!(tokenizer.encode("ab ab").unwrap(), [1, 7, 8]);
        assert_eq!(tokenizer.encode_plain("<sys>ab").unwrap(), [9, 7]);
        assert_eq!(tokenizer.decode(&[8, 7]).unwrap(), " abab");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        #[track_caller]
        fn check(writer: &Writer, expected: &str) {
            let error = writer.open().unwrap_err();
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let cause = cause.unwrap_or_default();
            assert!(error.to_string().contains("model.gguf"), "{error}");
            assert!(cause.contains(expected), "{cause}");
        }
        let model = |name| Writer::default().with("tokenizer.ggml.model", name);
        check(&model("gpt2"), "no vocabulary");
        check(&model("bert").with_texts(TOKENS, &["a"]), "\"bert\"");
        check(&model("llama").with_texts(TOKENS, &["a"]), "no score");
        let bpe = || model("gpt2").with_texts(TOKENS, &["a", "b", "ab"]);
        check(&bpe(), "no merges");
        check(
            &bpe().with_texts("tokenizer.ggml.merges", &["ab"]),
            "has one part",
        );
        let merged = || bpe().with_texts("tokenizer.ggml.merges", &["a b"]);
        check(&merged().with("tokenizer.ggml.pre", "newest"), "\"newest\"");
        assert_eq!(merged().open().unwrap().encode("abba").unwrap(), [2, 1, 0]);
    }

    #[cfg(feature = "chat")]
    #[test]
    fn templates_come_along() {
        use crate::text::{ChatOptions, Message};
        let named = pieces()
            .with_texts("tokenizer.chat_templates", &["tool_use"])
            .with("tokenizer.chat_template.tool_use", "tools");
        let tokenizer = named.open().unwrap();
        let render = |options: &ChatOptions| tokenizer.render_chat(&[Message::user("hi")], options);
        assert_eq!(render(&ChatOptions::prompt()).unwrap(), "<s>hi");
        let tools = ChatOptions::prompt().with_tools("[]").unwrap();
        assert_eq!(render(&tools).unwrap(), "tools");
    }
}
