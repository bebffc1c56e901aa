//! What `tokenizer_config.json` says beside `tokenizer.json`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Special tokens by role, such as `eos_token`, and the chat template.
#[derive(Debug, Default)]
pub(super) struct TokenizerConfig {
    pub(super) special_tokens: BTreeMap<String, String>,
    pub(super) chat_template: Option<String>,
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
            chat_template: config.get("chat_template").and_then(default_template),
        }
    }
}

/// A token is given as its text, or as an object with its text and how to match it.
fn token_text(value: &Value) -> Option<String> {
    let text = value.get("content").unwrap_or(value).as_str()?;
    Some(text.to_owned())
}

/// A template is given as its text, or several by name, of which `default` is the plain one.
fn default_template(value: &Value) -> Option<String> {
    let template = match value {
        Value::Array(named) => named
            .iter()
            .find(|entry| entry["name"] == "default")
            .map(|entry| &entry["template"])?,
        Value::Object(named) => named.get("default")?,
        template => template,
    };
    template.as_str().map(str::to_owned)
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
            assert_eq!(config.chat_template.as_deref(), template);
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
