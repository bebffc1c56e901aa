//! What `tokenizer_config.json` says beside `tokenizer.json`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Special tokens by role, such as `eos_token`, and the chat template.
#[derive(Debug, Default)]
pub(super) struct TokenizerConfig {
    pub(super) special_tokens: BTreeMap<String, String>,
    /// By name; the only one of most models is called `default`.
    pub(super) chat_templates: BTreeMap<String, String>,
    /// Further special tokens, without a role.
    pub(super) extra_special_tokens: Vec<String>,
}

impl TokenizerConfig {
    /// Reads the parsed file; what is missing or of another shape is left out.
    pub(super) fn new(config: &Map<String, Value>) -> Self {
        let special_tokens = config
            .iter()
            .filter(|(name, _)| name.ends_with("_token"))
            .filter_map(|(name, value)| Some((name.clone(), token_text(value)?)))
            .collect();
        Self {
            special_tokens,
            chat_templates: config
                .get("chat_template")
                .map(templates)
                .unwrap_or_default(),
            extra_special_tokens: ["additional_special_tokens", "extra_special_tokens"]
                .into_iter()
                .filter_map(|name| config.get(name))
                .flat_map(all_tokens)
                .collect(),
        }
    }
}

/// A token is given as its text, or as an object with its text and how to match it.
fn token_text(value: &Value) -> Option<String> {
    let text = value.get("content").unwrap_or(value).as_str()?;
    Some(text.to_owned())
}

/// A list of tokens, or tokens by names of their own.
fn all_tokens(value: &Value) -> Vec<String> {
    match value {
        Value::Array(tokens) => tokens.iter().filter_map(token_text).collect(),
        Value::Object(tokens) => tokens.values().filter_map(token_text).collect(),
        _ => Vec::new(),
    }
}

/// A template is given as its text, or several by name.
pub(super) fn templates(value: &Value) -> BTreeMap<String, String> {
    let named = |name: &Value, template: &Value| {
        Some((name.as_str()?.to_owned(), template.as_str()?.to_owned()))
    };
    match value {
        Value::Array(entries) => entries
            .iter()
            .filter_map(|entry| named(&entry["name"], &entry["template"]))
            .collect(),
        Value::Object(entries) => entries
            .iter()
            .filter_map(|(name, template)| Some((name.clone(), template.as_str()?.to_owned())))
            .collect(),
        template => named(&"default".into(), template).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_spellings_of_tokens_and_templates() {
        #[track_caller]
        fn check(config: Value, eos: Option<&str>, template: Option<&str>) {
            let config = TokenizerConfig::new(config.as_object().unwrap());
            assert_eq!(
                config.special_tokens.get("eos_token").map(String::as_str),
                eos
            );
            let default = config.chat_templates.get("default");
            assert_eq!(default.map(String::as_str), template);
        }
        check(json!({}), None, None);
        check(
            json!({"eos_token": null, "add_bos_token": true}),
            None,
            None,
        );
        check(
            json!({"eos_token": "</s>", "chat_template": "x"}),
            Some("</s>"),
            Some("x"),
        );
        check(
            json!({"eos_token": {"content": "</s>", "lstrip": false},
                   "chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}),
            Some("</s>"),
            Some("d"),
        );
        check(json!({"chat_template": {"default": "d"}}), None, Some("d"));
        check(
            json!({"chat_template": [{"name": "tools", "template": "t"}]}),
            None,
            None,
        );
    }
}
