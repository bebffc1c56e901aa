//! Conversations as the text a model continues: its own chat template lays them out.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::local::engine::builtin;
use crate::local::http::Refusal;
use crate::local::work::vocabulary::Vocabulary;

/// What a chat request says about the conversation.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Conversation {
    #[serde(default)]
    messages: Vec<Map<String, Value>>,
    /// Schemas of tools the model may call; only templates know how to put them.
    #[serde(default)]
    tools: Option<Vec<Value>>,
    /// Variables of the template, such as `enable_thinking`.
    #[cfg(feature = "chat")]
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
}

impl Conversation {
    /// The text up to where the assistant's answer begins.
    ///
    /// The built-in model's layout is known. Other models' is their template's business: without
    /// one, or without the feature that runs it, a guess could be wrong in ways that only show in
    /// the answers.
    pub(super) fn render(mut self, vocabulary: &Vocabulary) -> Result<String, Refusal> {
        if self.messages.is_empty() {
            return Err(Refusal::unprocessable("messages must not be empty"));
        }
        for (index, message) in self.messages.iter_mut().enumerate() {
            flatten(message)
                .map_err(|problem| Refusal::bad(format!("messages[{index}]: {problem}")))?;
        }
        match vocabulary {
            Vocabulary::Bytes if self.tools.is_none() => Ok(self.plain()),
            Vocabulary::Bytes => Err(Refusal::bad("the built-in model knows no tools")),
            #[cfg(feature = "chat")]
            Vocabulary::Tokenizer(tokenizer) => self.templated(tokenizer),
            #[cfg(not(feature = "chat"))]
            _ => Err(Refusal::bad(
                "this server was built without the feature `chat`, so it cannot run the model's \
                 chat template: use completions",
            )),
        }
    }

    /// What the built-in model's own template writes.
    fn plain(&self) -> String {
        let text = |message: &Map<String, Value>, field: &str| {
            let value = message.get(field).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let turns = self.messages.iter().map(|message| {
            let (role, content) = (text(message, "role"), text(message, "content"));
            format!("<|im_start|>{role}\n{content}<|im_end|>\n")
        });
        turns.collect::<String>() + "<|im_start|>assistant\n"
    }

    #[cfg(feature = "chat")]
    fn templated(self, tokenizer: &crate::text::Tokenizer) -> Result<String, Refusal> {
        let bad = |error: &dyn std::fmt::Display| Refusal::bad(error.to_string());
        let messages: Vec<crate::text::Message> = self
            .messages
            .into_iter()
            .map(|message| serde_json::from_value(Value::Object(message)))
            .collect::<Result<_, _>>()
            .map_err(|error| bad(&error))?;
        let mut options = crate::text::ChatOptions::prompt().with_now(std::time::SystemTime::now());
        if let Some(tools) = self.tools {
            let tools = Value::Array(tools).to_string();
            options = options.with_tools(&tools).map_err(|error| bad(&error))?;
        }
        for (name, value) in &self.chat_template_kwargs {
            options = options.with_variable(name, value);
        }
        tokenizer
            .render_chat(&messages, &options)
            .map_err(|error| bad(&format!("{error}; completions take any text")))
    }
}

/// The tokens that end an answer, beside the model's own end of sequence.
pub(super) fn ends(vocabulary: &Vocabulary) -> Vec<u32> {
    match vocabulary {
        Vocabulary::Bytes => vec![builtin::IM_END],
        #[cfg(feature = "text")]
        Vocabulary::Tokenizer(tokenizer) => {
            let marks = ["<|im_end|>", "<|eot_id|>"];
            let marks = marks.iter().filter_map(|mark| tokenizer.token_id(mark));
            let ends = marks.chain(tokenizer.eos_id());
            ends.map(i32::cast_unsigned).collect()
        }
        #[cfg(not(feature = "text"))]
        Vocabulary::Numbers => Vec::new(),
    }
}

/// Joins the parts of a message's content, which must be text.
fn flatten(message: &mut Map<String, Value>) -> Result<(), String> {
    match message.get("role") {
        Some(Value::String(_)) => {}
        _ => return Err("role must be a string".into()),
    }
    let Some(Value::Array(parts)) = message.get("content") else {
        return Ok(());
    };
    let mut text = String::new();
    for part in parts {
        match (&part["type"], &part["text"]) {
            (Value::String(kind), Value::String(piece)) if kind == "text" => text += piece,
            (Value::Null, Value::String(piece)) => text += piece,
            (kind, _) => return Err(format!("content of type {kind} is not text")),
        }
    }
    message.insert("content".into(), Value::String(text));
    Ok(())
}

#[cfg(test)]
#[cfg(feature = "chat")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::Tokenizer;

    fn conversation(value: Value) -> Conversation {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_built_in_layout_is_its_templates() {
        let config = Some(builtin::TOKENIZER_CONFIG);
        let tokenizer = Tokenizer::from_json(builtin::TOKENIZER.as_bytes(), config).unwrap();
        let talk = || {
            conversation(
                json!({"messages": [{"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Hi "}, {"text": "you"}]}]}),
            )
        };
        let expected = "<|im_start|>system\nBe brief.<|im_end|>\n\
            <|im_start|>user\nHi you<|im_end|>\n<|im_start|>assistant\n";
        let vocabulary = Vocabulary::Tokenizer(tokenizer);
        assert_eq!(talk().render(&vocabulary).unwrap(), expected);
        assert_eq!(talk().render(&Vocabulary::Bytes).unwrap(), expected);
        assert!(ends(&vocabulary).contains(&builtin::IM_END));
    }

    #[test]
    fn templates_get_everything_they_may_read() {
        let config = json!({"chat_template": "{{ tools[0].name }}/{{ mood }}/\
            {{ messages[0].name }}{{ raise_exception('no') if messages|length > 1 }}"});
        let config = config.to_string();
        let tokenizer = Tokenizer::from_json(builtin::TOKENIZER.as_bytes(), Some(&config)).unwrap();
        let vocabulary = Vocabulary::Tokenizer(tokenizer);
        let mut talk = json!({"messages": [{"role": "user", "content": "x", "name": "Ann"}],
            "tools": [{"name": "add"}], "chat_template_kwargs": {"mood": "good"}});
        let text = conversation(talk.clone()).render(&vocabulary).unwrap();
        assert_eq!(text, "add/good/Ann");
        talk["messages"] = json!([{"role": "user"}, {"role": "user"}]);
        let refusal = conversation(talk).render(&vocabulary).unwrap_err();
        assert_eq!(refusal.status.as_u16(), 400);
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        #[track_caller]
        fn check(messages: Value, tokenizer_config: &str, expected: &str) {
            let json = builtin::TOKENIZER.as_bytes();
            let tokenizer = Tokenizer::from_json(json, Some(tokenizer_config)).unwrap();
            let talk = conversation(json!({ "messages": messages }));
            let refusal = talk.render(&Vocabulary::Tokenizer(tokenizer)).unwrap_err();
            assert!(refusal.detail.contains(expected), "{}", refusal.detail);
        }
        let hi = json!([{"role": "user", "content": "hi"}]);
        check(hi, "{}", "has no chat template");
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
        check(
            image,
            "{}",
            "messages[0]: content of type \"image_url\" is not text",
        );
        check(json!([{"content": "hi"}]), "{}", "messages[0]: role");
        check(json!([]), "{}", "must not be empty");
    }
}
