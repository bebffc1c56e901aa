//! A tokenizer as the values of a GGUF file, and back as the files of a folder.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::gguf::{self, GPT2_DIGITS, splitting};
use crate::error::{Context, Error, Result};
use crate::gguf::{Gguf, Value};
use crate::text::special::TokenizerConfig;
use crate::text::tokenizer::read_config;

/// Values of a GGUF file by name.
pub(crate) type Values = Vec<(String, Value)>;

/// The vocabulary and the templates of a folder, for a model that knows so many tokens.
///
/// # Errors
///
/// If files cannot be read, or the vocabulary is of a kind that llama.cpp has no name for.
pub(crate) fn of_folder(folder: &Path, tokens: usize) -> Result<Values> {
    let path = folder.join("tokenizer.json");
    let cannot = |what: &str| format!("cannot {what} {}", path.display());
    let text =
        fs::read(&path).map_err(|error| Error::Config(Context::caused(cannot("read"), error)))?;
    let json: Json = serde_json::from_slice(&text)
        .map_err(|error| Error::Config(Context::caused(cannot("read"), error)))?;
    let (_, config) = read_config(folder)?;
    values(&json, &config, tokens)
}

/// The same of the files' contents.
///
/// # Errors
///
/// As [`of_folder`].
pub(crate) fn of_text(tokenizer: &str, config: &str, tokens: usize) -> Result<Values> {
    let damaged = |error| Error::Config(Context::caused("cannot read the tokenizer", error));
    let json: Json = serde_json::from_str(tokenizer).map_err(damaged)?;
    let config: Map<String, Json> = serde_json::from_str(config).map_err(damaged)?;
    values(&json, &TokenizerConfig::new(&config), tokens)
}

/// The `tokenizer.json` and the `tokenizer_config.json` that a GGUF file amounts to.
///
/// # Errors
///
/// If the file's vocabulary is of a kind that is not read.
pub(crate) fn files_of(file: &Gguf) -> Result<(Json, Json)> {
    let (tokenizer, config) =
        gguf::read(file).map_err(|problem| Error::invalid("tokenizer", problem))?;
    let mut settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
    });
    for (role, token) in config.special_tokens {
        settings[role] = token.into();
    }
    let templates = config.chat_templates;
    match templates.get("default") {
        Some(template) if templates.len() == 1 => {
            settings["chat_template"] = template.as_str().into();
        }
        _ => {
            let named =
                |(name, template): (&String, &String)| json!({"name": name, "template": template});
            settings["chat_template"] = templates.iter().map(named).collect();
        }
    }
    Ok((tokenizer, settings))
}

/// What llama.cpp calls the kinds of tokens.
const NORMAL: f64 = 1.0;
const UNKNOWN: f64 = 2.0;
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;
const UNUSED: f64 = 5.0;
const BYTE: f64 = 6.0;

fn values(json: &Json, config: &TokenizerConfig, tokens: usize) -> Result<Values> {
    described(json, config, tokens).map_err(|problem| Error::invalid("tokenizer.json", problem))
}

fn described(json: &Json, config: &TokenizerConfig, count: usize) -> Result<Values, String> {
    let model = &json["model"];
    let merges = merges(model)?;
    let pieces = model["byte_fallback"] == true;
    let unknown = model["unk_token"].as_str();
    let (tokens, kinds) = tokens(json, count, unknown.filter(|_| pieces))?;
    let ids: HashMap<&str, u64> = (0..)
        .zip(&tokens)
        .map(|(id, one)| (one.as_str(), id))
        .collect();
    let mut out = Values::new();
    let mut put = |name: &str, value: Value| out.push((format!("tokenizer.{name}"), value));
    if pieces {
        put("ggml.model", Value::Text("llama".into()));
        put("ggml.pre", Value::Text("default".into()));
        put("ggml.scores", Value::Numbers(scores(&tokens, &merges)));
        put("ggml.add_space_prefix", Value::Bool(puts_space(json)));
    } else {
        let split = match merges.is_empty() {
            // Where nothing is joined, splitting changes nothing.
            true => Some("gpt-2"),
            false => split_name(json),
        };
        let split = split.ok_or("splits texts in a way that llama.cpp has no name for")?;
        put("ggml.model", Value::Text("gpt2".into()));
        put("ggml.pre", Value::Text(split.into()));
        let merges = merges.iter().map(|(left, right)| format!("{left} {right}"));
        put("ggml.merges", Value::Texts(merges.collect()));
    }
    let roles = [
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("pad_token", "padding_token_id"),
    ];
    for (role, name) in roles {
        let token = config.special_tokens.get(role).map(String::as_str);
        let token = token.or(unknown.filter(|_| role == "unk_token"));
        if let Some(id) = token.and_then(|token| ids.get(token)) {
            put(&format!("ggml.{name}"), Value::Uint(*id));
        }
    }
    let bos = config.special_tokens.get("bos_token");
    put(
        "ggml.add_bos_token",
        Value::Bool(bos.is_some_and(|bos| begins_with(json, bos))),
    );
    put("ggml.token_type", Value::Numbers(kinds));
    put("ggml.tokens", Value::Texts(tokens));
    templates(config, &mut put);
    Ok(out)
}

fn templates(config: &TokenizerConfig, put: &mut impl FnMut(&str, Value)) {
    let mut others = Vec::new();
    for (name, template) in &config.chat_templates {
        let template = Value::Text(template.clone());
        match name.as_str() {
            "default" => put("chat_template", template),
            name => {
                put(&format!("chat_template.{name}"), template);
                others.push(name.to_owned());
            }
        }
    }
    if !others.is_empty() {
        put("chat_templates", Value::Texts(others));
    }
}

/// Every token in the order of ids, and its kind. Ids without a token get a name of their own.
fn tokens(
    json: &Json,
    count: usize,
    unknown: Option<&str>,
) -> Result<(Vec<String>, Vec<f64>), String> {
    let mut tokens: Vec<Option<(String, f64)>> = vec![None; count];
    let mut place = |id: Option<u64>, token: &str, kind: f64| {
        let slot = id.and_then(|id| tokens.get_mut(usize::try_from(id).ok()?));
        match slot {
            Some(slot) => {
                *slot = Some((token.to_owned(), kind));
                Ok(())
            }
            None => Err(format!(
                "has a token, {token:?}, beyond the model's {count}"
            )),
        }
    };
    let vocabulary = json["model"]["vocab"].as_object();
    for (token, id) in vocabulary.ok_or("has no vocabulary by name")? {
        let is_byte = unknown.is_some() && token.len() == 6 && token.starts_with("<0x");
        let kind = match token {
            token if Some(token.as_str()) == unknown => UNKNOWN,
            _ if is_byte => BYTE,
            _ => NORMAL,
        };
        place(id.as_u64(), token, kind)?;
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let content = added["content"].as_str().unwrap_or_default();
        let kind = match added["special"] == true {
            _ if Some(content) == unknown => UNKNOWN,
            true => CONTROL,
            false => USER_DEFINED,
        };
        place(added["id"].as_u64(), content, kind)?;
    }
    let named = |(id, token): (usize, Option<(String, f64)>)| {
        token.unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED))
    };
    Ok(tokens.into_iter().enumerate().map(named).unzip())
}

/// Which pairs are joined, the first first.
fn merges(model: &Json) -> Result<Vec<(&str, &str)>, String> {
    let kind = model["type"].as_str().unwrap_or("BPE");
    if kind != "BPE" {
        return Err(format!("is of the kind {kind}, and GGUF files take BPE"));
    }
    let all = model["merges"].as_array().ok_or("has no merges")?;
    all.iter()
        .map(|merge| {
            let pair = match merge {
                Json::String(text) => text.split_once(' '),
                other => other[0].as_str().zip(other[1].as_str()),
            };
            pair.ok_or_else(|| format!("has a merge of no two parts: {merge}"))
        })
        .collect()
}

/// A score for each token, so that the pair that is joined first makes the highest.
fn scores(tokens: &[String], merges: &[(&str, &str)]) -> Vec<f64> {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let score = |token: &String| -(*ranks.get(token).unwrap_or(&merges.len()) as f64);
    tokens.iter().map(score).collect()
}

/// Whether a text gets a space before it.
fn puts_space(json: &Json) -> bool {
    let steps = |key: &str, list: &str| match &json[key][list] {
        Json::Array(steps) => steps.clone(),
        _ => vec![json[key].clone()],
    };
    let prepends = |step: &Json| step["type"] == "Prepend" && step["prepend"] == "▁";
    let marks = |step: &Json| {
        step["type"] == "Metaspace"
            && step["prepend_scheme"] != "never"
            && step["add_prefix_space"] != false
    };
    steps("normalizer", "normalizers").iter().any(prepends)
        || steps("pre_tokenizer", "pretokenizers").iter().any(marks)
}

/// Whether this token is put before every text.
fn begins_with(json: &Json, token: &str) -> bool {
    let processor = &json["post_processor"];
    let steps = match &processor["processors"] {
        Json::Array(steps) => steps.as_slice(),
        _ => std::slice::from_ref(processor),
    };
    steps
        .iter()
        .any(|step| step["single"][0]["SpecialToken"]["id"] == token)
}

/// llama.cpp's name for how a tokenizer splits texts.
fn split_name(json: &Json) -> Option<&'static str> {
    const NAMES: [&str; 10] = [
        "llama-bpe",
        "smaug-bpe",
        "qwen2",
        "smollm",
        "gpt-2",
        "qwen35",
        "gpt-4o",
        "tekken",
        "deepseek-v3",
        "kimi-k2",
    ];
    let steps = steps(&json["pre_tokenizer"])?;
    let ignores = json["model"]["ignore_merges"] == true;
    let same = |name: &str, exactly: bool| {
        splitting(name).is_some_and(|(split, ignore)| {
            self::steps(&split).as_ref() == Some(&steps) && (ignore == ignores || !exactly)
        })
    };
    // Some names share their patterns and differ in whether whole words win over merges.
    let mut all = [true, false]
        .into_iter()
        .flat_map(|exactly| NAMES.map(|name| (name, exactly)));
    all.find(|(name, exactly)| same(name, *exactly))
        .map(|(name, _)| name)
}

/// The patterns a text is split by, and whether GPT-2's follows. `None` for any other way.
fn steps(split: &Json) -> Option<(Vec<String>, bool)> {
    let all = match &split["pretokenizers"] {
        Json::Array(all) => all.as_slice(),
        _ => std::slice::from_ref(split),
    };
    let (last, patterns) = all.split_last()?;
    if last["type"] != "ByteLevel" || last["add_prefix_space"] == true {
        return None;
    }
    let pattern = |step: &Json| match step["type"].as_str()? {
        "Split" if step["behavior"] == "Isolated" && step["invert"] != true => {
            Some(step["pattern"]["Regex"].as_str()?.to_owned())
        }
        "Digits" if step["individual_digits"] == true => Some(GPT2_DIGITS.to_owned()),
        _ => None,
    };
    let patterns = patterns.iter().map(pattern).collect::<Option<_>>()?;
    Some((patterns, last["use_regex"] != false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::write::Header;
    use crate::text::Tokenizer;

    /// Written and read again, a tokenizer gives the same tokens.
    #[track_caller]
    fn round_trip(json: &Json, config: &str, tokens: usize, texts: &[&str]) -> Gguf {
        let text = json.to_string();
        let before = Tokenizer::from_json(text.as_bytes(), Some(config)).unwrap();
        let mut header = Header::default();
        for (name, value) in of_text(&text, config, tokens).unwrap() {
            header.put(&name, &value);
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        fs::write(&file, header.finish()).unwrap();
        let after = Tokenizer::open(&file).unwrap();
        for text in texts {
            assert_eq!(
                after.encode(text).unwrap(),
                before.encode(text).unwrap(),
                "{text:?}"
            );
        }
        Gguf::open(&file).unwrap()
    }

    fn byte_level(split: Json) -> Json {
        let vocabulary: Map<String, Json> = super::super::letters()
            .iter()
            .map(char::to_string)
            .chain(["he".into(), "ll".into(), "hell".into(), "Ġhe".into()])
            .zip(0..)
            .map(|(token, id): (String, u64)| (token, id.into()))
            .collect();
        json!({
            "version": "1.0",
            "added_tokens": [
                super::super::added_token(260, "<|end|>", true),
                super::super::added_token(261, "<think>", false),
            ],
            "pre_tokenizer": split,
            "decoder": super::super::bytes(false),
            "post_processor": super::super::beginning_with("<|end|>", 260),
            "model": {
                "type": "BPE",
                "vocab": vocabulary,
                "merges": [["h", "e"], ["l", "l"], ["he", "ll"], ["Ġ", "he"]],
            },
        })
    }

    #[test]
    fn byte_level_tokenizers_survive() {
        let config = r#"{"bos_token": "<|end|>", "eos_token": {"content": "<|end|>"},
            "chat_template": "{{ messages[0].content }}"}"#;
        let texts = ["hello hell<|end|>", "a <think> 12 Grüße\n", ""];
        for name in ["qwen2", "smollm", "gpt-2", "smaug-bpe"] {
            let split = splitting(name).unwrap().0;
            let file = round_trip(&byte_level(split), config, 264, &texts);
            assert_eq!(file.text("tokenizer.ggml.pre"), Some(name));
            assert_eq!(file.whole("tokenizer.ggml.eos_token_id"), Some(260));
            assert_eq!(file.flag("tokenizer.ggml.add_bos_token"), Some(true));
            assert_eq!(
                file.texts("tokenizer.ggml.tokens").unwrap()[262],
                "[PAD262]"
            );
            let kinds = file.numbers("tokenizer.ggml.token_type").unwrap();
            assert_eq!(kinds[259..263], [NORMAL, CONTROL, USER_DEFINED, UNUSED]);
        }
    }

    #[test]
    fn pieces_survive_with_scores_from_their_merges() {
        let pieces = [
            "<unk>", "<s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁ab",
        ];
        let vocabulary: Map<String, Json> = (0u64..)
            .zip(pieces)
            .map(|(id, piece)| (piece.to_owned(), id.into()))
            .collect();
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        for space in [true, false] {
            let mut normalizers = vec![replace.clone()];
            if space {
                normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
            }
            let json = json!({
                "version": "1.0",
                "added_tokens": [
                    super::super::added_token(0, "<unk>", true),
                    super::super::added_token(1, "<s>", true),
                ],
                "normalizer": {"type": "Sequence", "normalizers": normalizers},
                "decoder": {"type": "Fuse"},
                "model": {
                    "type": "BPE", "vocab": vocabulary, "merges": ["a b", "▁ ab"],
                    "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true,
                },
            });
            let config = r#"{"bos_token": "<s>"}"#;
            let file = round_trip(&json, config, 9, &["ab ab", "ba é<s>ab"]);
            assert_eq!(file.text("tokenizer.ggml.model"), Some("llama"));
            assert_eq!(file.flag("tokenizer.ggml.add_space_prefix"), Some(space));
            let kinds = file.numbers("tokenizer.ggml.token_type").unwrap();
            assert_eq!(kinds[..5], [UNKNOWN, CONTROL, BYTE, BYTE, NORMAL]);
        }
    }

    #[test]
    fn what_llama_cpp_has_no_name_for_is_refused() {
        #[track_caller]
        fn check(json: &Json, tokens: usize, expected: &str) {
            let error = of_text(&json.to_string(), "{}", tokens).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let split = |regex: &str| super::super::byte_level(&[regex]);
        check(&byte_level(split("[0-9]")), 264, "no name for");
        check(&byte_level(split(super::super::gguf::QWEN2)), 200, "beyond");
        let unigram = json!({"model": {"type": "Unigram", "vocab": []}});
        check(&unigram, 264, "Unigram");
    }
}
