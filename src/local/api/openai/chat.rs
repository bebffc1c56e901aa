//! Conversations as the tokens a model continues: its own chat template lays them out, or else the
//! renderer of its family.

use serde_json::{Map, Value};

use super::errors::Fault;
use super::speech::Reading;
use super::voice::Voice;
use crate::local::engine::builtin;
use crate::local::work::vocabulary::Vocabulary;

/// What a chat request says about the conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Map<String, Value>>,
    /// Schemas of tools the model may call.
    pub(super) tools: Option<Vec<Value>>,
    /// Variables of the template, such as `enable_thinking`.
    pub(super) kwargs: Map<String, Value>,
}

impl Conversation {
    /// The tokens up to where the assistant's answer begins.
    pub(super) fn tokens(mut self, voice: &impl Voice) -> Result<Vec<u32>, Fault> {
        self.check()?;
        #[cfg(feature = "text")]
        if self.tools.is_some() && voice.renderer().is_none() {
            let why = "the family of this model is not known, so its calls could not be read";
            return Err(Fault::unsupported("tools", why));
        }
        let vocabulary = voice.vocabulary();
        #[cfg(feature = "text")]
        if let (Some(renderer), Vocabulary::Tokenizer(tokenizer)) = (voice.renderer(), vocabulary)
            && !has_template(tokenizer)
        {
            return self.rendered(renderer);
        }
        let text = self.render(vocabulary)?;
        let tokens = vocabulary.encode(&text);
        tokens.ok_or_else(|| Fault::unsupported("messages", "this server has no tokenizer"))
    }

    /// Refuses what no model could be told.
    fn check(&mut self) -> Result<(), Fault> {
        if self.messages.is_empty() {
            return Err(Fault::bad("messages", "must not be empty"));
        }
        for (index, message) in self.messages.iter_mut().enumerate() {
            flatten(message)
                .map_err(|problem| Fault::bad(&format!("messages[{index}]"), problem))?;
        }
        Ok(())
    }

    /// The text up to where the assistant's answer begins.
    ///
    /// The built-in model's layout is known. Other models' is their template's business: without
    /// one, or without the feature that runs it, a guess could be wrong in ways that only show in
    /// the answers.
    fn render(self, vocabulary: &Vocabulary) -> Result<String, Fault> {
        let unknown = self.tools.as_ref().map(|_| "tools").or_else(|| {
            let set = !self.kwargs.is_empty();
            set.then_some("chat_template_kwargs")
        });
        match (vocabulary, unknown) {
            (Vocabulary::Bytes, None) => Ok(self.plain()),
            (Vocabulary::Bytes, Some(name)) => {
                Err(Fault::unsupported(name, "the built-in model knows none"))
            }
            #[cfg(feature = "chat")]
            (Vocabulary::Tokenizer(tokenizer), _) => self.templated(tokenizer),
            #[cfg(not(feature = "chat"))]
            _ => Err(Fault::unsupported(
                "messages",
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

    #[cfg(feature = "text")]
    fn messages(self) -> Result<Vec<crate::text::Message>, Fault> {
        let messages = self.messages.into_iter();
        messages
            .map(|message| serde_json::from_value(Value::Object(message)))
            .collect::<Result<_, _>>()
            .map_err(|error| Fault::bad("messages", error))
    }

    #[cfg(feature = "text")]
    fn rendered(mut self, renderer: &crate::text::Renderer) -> Result<Vec<u32>, Fault> {
        if !self.kwargs.is_empty() {
            let why = "this model has no chat template to give variables to";
            return Err(Fault::unsupported("chat_template_kwargs", why));
        }
        let renderer = match self.tools.take() {
            None => renderer.clone(),
            Some(tools) => renderer.with_tools(tools)?,
        };
        let prompt = renderer.generation_prompt(&self.messages()?)?;
        let tokens = prompt.to_ints()?;
        Ok(tokens.into_iter().map(i32::cast_unsigned).collect())
    }

    #[cfg(feature = "chat")]
    fn templated(mut self, tokenizer: &crate::text::Tokenizer) -> Result<String, Fault> {
        let mut options = crate::text::ChatOptions::prompt().with_now(std::time::SystemTime::now());
        if let Some(tools) = self.tools.take() {
            let tools = Value::Array(tools).to_string();
            options = options.with_tools(&tools)?;
        }
        for (name, value) in &self.kwargs {
            options = options.with_variable(name, value);
        }
        tokenizer
            .render_chat(&self.messages()?, &options)
            .map_err(|error| Fault::bad("messages", format!("{error}; completions take any text")))
    }
}

/// Whether the model's own template can be run.
#[cfg(feature = "text")]
fn has_template(tokenizer: &crate::text::Tokenizer) -> bool {
    #[cfg(feature = "chat")]
    return tokenizer.has_chat_template();
    #[cfg(not(feature = "chat"))]
    return {
        let _ = tokenizer;
        false
    };
}

/// How the answer to a prompt is to be read.
pub(super) fn reading(voice: &impl Voice, prompt: &[u32], tools: bool) -> Reading {
    let tail = &prompt[prompt.len().saturating_sub(8)..];
    let tail = voice.vocabulary().decode(tail);
    let opened = String::from_utf8_lossy(&tail)
        .trim_end()
        .ends_with("<think>");
    #[cfg(feature = "text")]
    let parsed = voice.renderer().is_some_and(|renderer| {
        // These mark what they think by special tokens, which are no text.
        let channels = ["gpt_oss", "tml"]
            .iter()
            .any(|name| renderer.name().starts_with(name));
        tools || channels
    });
    #[cfg(not(feature = "text"))]
    let parsed = tools && false;
    Reading { opened, parsed }
}

/// The tokens that end an answer, beside the model's own end of sequence.
pub(super) fn ends(voice: &impl Voice) -> Vec<u32> {
    match voice.vocabulary() {
        Vocabulary::Bytes => vec![builtin::IM_END],
        #[cfg(feature = "text")]
        Vocabulary::Tokenizer(tokenizer) => {
            let marks = ["<|im_end|>", "<|eot_id|>"];
            let marks = marks.iter().filter_map(|mark| tokenizer.token_id(mark));
            let mut ends: Vec<i32> = marks.chain(tokenizer.eos_id()).collect();
            if let Some(crate::types::Stop::Tokens(own)) = voice.renderer().map(|one| one.stop()) {
                ends.extend(own);
            }
            ends.into_iter().map(i32::cast_unsigned).collect()
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
        Conversation {
            messages: serde_json::from_value(value["messages"].clone()).unwrap(),
            tools: serde_json::from_value(value["tools"].clone()).unwrap(),
            kwargs: serde_json::from_value(value["kwargs"].clone()).unwrap_or_default(),
        }
    }

    fn render(mut talk: Conversation, vocabulary: &Vocabulary) -> Result<String, Fault> {
        talk.check()?;
        talk.render(vocabulary)
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
        assert_eq!(render(talk(), &vocabulary).unwrap(), expected);
        assert_eq!(render(talk(), &Vocabulary::Bytes).unwrap(), expected);
    }

    #[test]
    fn templates_get_everything_they_may_read() {
        let config = json!({"chat_template": "{{ tools[0].name }}/{{ mood }}/\
            {{ messages[0].name }}{{ raise_exception('no') if messages|length > 1 }}"});
        let config = config.to_string();
        let tokenizer = Tokenizer::from_json(builtin::TOKENIZER.as_bytes(), Some(&config)).unwrap();
        let vocabulary = Vocabulary::Tokenizer(tokenizer);
        let mut talk = json!({"messages": [{"role": "user", "content": "x", "name": "Ann"}],
            "tools": [{"name": "add"}], "kwargs": {"mood": "good"}});
        let text = render(conversation(talk.clone()), &vocabulary).unwrap();
        assert_eq!(text, "add/good/Ann");
        talk["messages"] = json!([{"role": "user"}, {"role": "user"}]);
        let fault = render(conversation(talk), &vocabulary).unwrap_err();
        assert_eq!(fault.status.as_u16(), 400);
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        #[track_caller]
        fn check(messages: Value, tokenizer_config: &str, expected: &str) {
            let json = builtin::TOKENIZER.as_bytes();
            let tokenizer = Tokenizer::from_json(json, Some(tokenizer_config)).unwrap();
            let talk = conversation(json!({ "messages": messages }));
            let fault = render(talk, &Vocabulary::Tokenizer(tokenizer)).unwrap_err();
            assert!(fault.message.contains(expected), "{}", fault.message);
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
