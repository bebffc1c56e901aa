//! Which tokenizer belongs to a model.

use std::fmt;

use crate::error::{Context, Error, Result};

/// A tokenizer on the Hugging Face hub.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenizerId {
    repo: String,
    revision: Option<&'static str>,
}

/// Models whose tokenizer is pinned to a commit.
const PINNED: [(&str, &str); 4] = [
    (
        "moonshotai/Kimi-K2-Thinking",
        "612681931a8c906ddb349f8ad0f582cb552189cd",
    ),
    (
        "moonshotai/Kimi-K2.5",
        "4d01dfe0332d63057c186e0b262165819efb6611",
    ),
    (
        "moonshotai/Kimi-K2.6",
        "b5aabbfb20227ed42becbf5541dbffd213942c58",
    ),
    (
        "moonshotai/Kimi-K3",
        "f831ab66814297da540d832a5235f8e904f29d06",
    ),
];

impl TokenizerId {
    /// The tokenizer of a model, by the rules of the Python SDK.
    ///
    /// `tokenizer_id` is what the service says about the model, if it says anything. Otherwise
    /// the name decides: a `:suffix` and a third part (`org/model/variant`) are dropped, and
    /// the Llama 3 family uses a copy that needs no permission.
    ///
    /// # Errors
    ///
    /// For Thinking Machines' own models, whose tokenizers are not on the hub.
    ///
    /// ```
    /// use tinker::text::TokenizerId;
    ///
    /// let id = TokenizerId::select("Qwen/Qwen3-8B/thinking", None)?;
    /// assert_eq!(id.repo(), "Qwen/Qwen3-8B");
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn select(model_name: &str, tokenizer_id: Option<&str>) -> Result<Self> {
        let base = |name: &'_ str| name.split(':').next().unwrap_or_default().to_owned();
        let repo = match tokenizer_id {
            Some(id) => base(id),
            None => by_name(&base(model_name)),
        };
        if repo.starts_with("TML/") || repo.starts_with("thinkingmachines/") {
            return Err(Error::Config(Context::new(format!(
                "the tokenizer of {repo} is not published: load one with Tokenizer::open, or work \
                 with token ids"
            ))));
        }
        let repo = match repo.as_str() {
            "moonshotai/Kimi-K2.5-Text-Only" => "moonshotai/Kimi-K2.5".to_owned(),
            _ => repo,
        };
        let pin = PINNED.iter().find(|(name, _)| *name == repo);
        Ok(Self {
            revision: pin.map(|(_, revision)| *revision),
            repo,
        })
    }

    /// The repository, as `org/name`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The commit it is pinned to, if it is.
    pub fn revision(&self) -> Option<&str> {
        self.revision
    }
}

fn by_name(model: &str) -> String {
    if model.starts_with("meta-llama/Llama-3") {
        return "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer".to_owned();
    }
    match model.split('/').collect::<Vec<_>>()[..] {
        [org, name, _variant] => format!("{org}/{name}"),
        _ => model.to_owned(),
    }
}

impl fmt::Display for TokenizerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        match self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The Python SDK's choices, recorded.
    #[test]
    fn selection_agrees_with_the_python_sdk() {
        let text = include_str!("../../tests/fixtures/wire/tokenizer_selection.json");
        let cases: Vec<Value> = serde_json::from_str(text).unwrap();
        for case in &cases {
            let model = case["model_name"].as_str().unwrap();
            let chosen = TokenizerId::select(model, case["tokenizer_id"].as_str());
            match case["load"].as_str() {
                None => assert!(chosen.is_err(), "{model}"),
                Some(repo) => {
                    let chosen = chosen.unwrap();
                    assert_eq!(chosen.repo(), repo, "{model}");
                    let revision = case["kwargs"]["revision"].as_str();
                    assert_eq!(chosen.revision(), revision, "{model}");
                }
            }
        }
    }

    #[test]
    fn a_suffix_of_the_services_id_is_cut() {
        let id = TokenizerId::select("x/y", Some("my/tok:4")).unwrap();
        assert_eq!(id.to_string(), "my/tok");
    }
}
