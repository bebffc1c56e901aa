//! Conversations laid out by the chat template a model brings along.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;

use super::space::Strip;
use super::template::Template;
use super::{Json, Message};
use crate::error::{Context, Error, Result};
use crate::sync::lock;

/// What to tell the template beside the messages.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    add_generation_prompt: bool,
    continue_final_message: bool,
    template: Option<String>,
    tools: Value,
    documents: Value,
    now: Option<SystemTime>,
    variables: Vec<(String, Value)>,
}

impl ChatOptions {
    /// The conversation ends where the assistant's next turn begins: for sampling it.
    pub fn prompt() -> Self {
        Self {
            add_generation_prompt: true,
            ..Self::transcript()
        }
    }

    /// The conversation ends with its last message: for training on it.
    pub fn transcript() -> Self {
        Self {
            add_generation_prompt: false,
            continue_final_message: false,
            template: None,
            tools: Value::from(()),
            documents: Value::from(()),
            now: None,
            variables: Vec::new(),
        }
    }

    /// The conversation ends within its last message, right after its text: for sampling the
    /// rest of an answer that was begun.
    ///
    /// ```
    /// use tinker::text::{ChatOptions, Message, Tokenizer};
    ///
    /// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
    /// let messages = [Message::user("the cat"), Message::assistant("sat on")];
    /// let text = tokenizer.render_chat(&messages, &ChatOptions::continuation())?;
    /// assert!(text.ends_with("sat on"));
    /// # Ok::<(), tinker::Error>(())
    /// ```
    #[doc(alias = "continue_final_message")]
    pub fn continuation() -> Self {
        Self {
            continue_final_message: true,
            ..Self::transcript()
        }
    }

    /// Offers tools, as a JSON list of their schemas. Templates print them with their keys in
    /// the order they are written here. Default: none.
    ///
    /// # Errors
    ///
    /// If the text is not a JSON list.
    pub fn with_tools(mut self, json: &str) -> Result<Self> {
        self.tools = list("tools", json)?;
        Ok(self)
    }

    /// Gives documents to answer from, as a JSON list of objects. Default: none.
    ///
    /// # Errors
    ///
    /// If the text is not a JSON list.
    pub fn with_documents(mut self, json: &str) -> Result<Self> {
        self.documents = list("documents", json)?;
        Ok(self)
    }

    /// Chooses another template: one of the model's by its name, or the text of one. Default:
    /// the model's `tool_use` if there are tools and it has one of that name, else its `default`.
    #[doc(alias = "chat_template")]
    #[must_use]
    pub fn with_template(mut self, name_or_text: impl Into<String>) -> Self {
        self.template = Some(name_or_text.into());
        self
    }

    /// Sets a variable of the template, such as `enable_thinking`. Default: what the template
    /// takes for a missing one.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: impl Serialize) -> Self {
        self.variables
            .push((name.to_owned(), Value::from(Serde(value))));
        self
    }

    /// Tells templates that print the date what time it is; they read it in UTC. Default: the
    /// time it is, in the machine's time zone.
    #[must_use]
    pub fn with_now(mut self, now: SystemTime) -> Self {
        self.now = Some(now);
        self
    }

    fn now(&self) -> Result<DateTime> {
        let Some(now) = self.now else {
            return Ok(jiff::Zoned::now().datetime());
        };
        let now = Timestamp::try_from(now);
        let now = now.map_err(|error| Error::invalid("now", error.to_string()))?;
        Ok(TimeZone::UTC.to_datetime(now))
    }
}

fn list(field: &str, json: &str) -> Result<Value> {
    match Json::parse(json) {
        Ok(list @ Json::Array(_)) => Ok(Value::from(Serde(list))),
        Ok(_) => Err(Error::invalid(field, "must be a JSON list")),
        Err(problem) => Err(Error::invalid(field, problem)),
    }
}

/// The templates of a model, by name; the only one of most is called `default`.
pub(super) struct ChatTemplates {
    sources: BTreeMap<String, String>,
    compiled: Mutex<BTreeMap<String, Arc<Template>>>,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl ChatTemplates {
    pub(super) fn new(sources: BTreeMap<String, String>) -> Self {
        Self {
            sources,
            compiled: Mutex::default(),
        }
    }

    /// Whether a conversation without tools can be laid out.
    pub(super) fn has_default(&self) -> bool {
        self.sources.contains_key(DEFAULT)
    }

    /// The conversation as text, and where, counted in bytes, the template says that the
    /// assistant speaks.
    pub(super) fn render(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        special_tokens: &BTreeMap<String, String>,
    ) -> Result<(String, Vec<Range<usize>>)> {
        let template = self.template(options)?;
        let mut messages: Vec<Json> = messages.iter().map(Message::to_json).collect();
        let begun = match options.continue_final_message {
            true => Some(mark_end(&mut messages)?),
            false => None,
        };
        let mut variables: Vec<(String, Value)> = special_tokens
            .iter()
            .map(|(role, token)| (role.clone(), Value::from(token.as_str())))
            .collect();
        let prompt = options.add_generation_prompt;
        variables.push(("messages".into(), Value::from(Serde(messages))));
        variables.push(("tools".into(), options.tools.clone()));
        variables.push(("documents".into(), options.documents.clone()));
        variables.push(("add_generation_prompt".into(), prompt.into()));
        variables.extend(options.variables.iter().cloned());
        let (text, spans) = template
            .render(&variables, options.now()?)
            .map_err(|error| refused(&error.to_string()))?;
        match begun {
            Some(begun) => cut_at_mark(text, spans, &begun),
            None => Ok((text, spans)),
        }
    }

    fn template(&self, options: &ChatOptions) -> Result<Arc<Template>> {
        let source = self.source(options)?;
        if let Some(known) = lock(&self.compiled).get(source) {
            return Ok(Arc::clone(known));
        }
        let template = Template::new(source).map_err(|error| {
            Error::Config(Context::caused("cannot compile the chat template", error))
        })?;
        let mut compiled = lock(&self.compiled);
        // Templates given by the caller may be many; the model's own are few.
        if compiled.len() > self.sources.len() + 8 {
            compiled.clear();
        }
        let template = Arc::new(template);
        compiled.insert(source.to_owned(), Arc::clone(&template));
        Ok(template)
    }

    /// Which template transformers would take.
    fn source<'a>(&'a self, options: &'a ChatOptions) -> Result<&'a str> {
        let named = |name: &str| self.sources.get(name).map(String::as_str);
        if let Some(chosen) = &options.template {
            return Ok(named(chosen).unwrap_or(chosen));
        }
        let for_tools = match options.tools.is_none() {
            true => None,
            false => named(TOOL_USE),
        };
        for_tools.or_else(|| named(DEFAULT)).ok_or_else(|| {
            let names: Vec<&str> = self.sources.keys().map(String::as_str).collect();
            Error::Config(Context::new(match names.is_empty() {
                true => {
                    "this model has no chat template: give one with ChatOptions::with_template, \
                         or put it into chat_template.jinja beside its tokenizer"
                        .to_owned()
                }
                false => format!(
                    "this model has no default chat template: choose one of {} with \
                     ChatOptions::with_template",
                    names.join(", ")
                ),
            }))
        })
    }
}

/// Follows the text of the final message, so that its end can be found again. Ends with a space
/// that shows whether the template trims.
const END: &str = "\u{fdd0}END_OF_FINAL_MESSAGE ";

/// Marks the end of the last message's text, which is returned.
fn mark_end(messages: &mut [Json]) -> Result<String> {
    let nothing = || refused("there is no text to continue in the final message");
    let Some(Json::Object(fields)) = messages.last_mut() else {
        return Err(nothing());
    };
    let content = fields.iter_mut().find(|(name, _)| name == "content");
    let text = match content.map(|(_, content)| content) {
        Some(Json::String(text)) => Some(text),
        Some(Json::Array(parts)) => parts.iter_mut().rev().find_map(|part| match part {
            Json::Object(fields) => fields.iter_mut().find_map(|(name, value)| match value {
                Json::String(text) if name == "text" => Some(text),
                _ => None,
            }),
            _ => None,
        }),
        _ => None,
    };
    let text = text.ok_or_else(nothing)?;
    let begun = text.clone();
    text.push_str(END);
    Ok(begun)
}

fn cut_at_mark(
    mut text: String,
    mut spans: Vec<Range<usize>>,
    begun: &str,
) -> Result<(String, Vec<Range<usize>>)> {
    let found = text.rfind(END.rstrip());
    let Some(at) = found.filter(|_| text.contains(begun.strip())) else {
        return Err(refused(
            "it leaves out some of the final message, which therefore cannot be continued",
        ));
    };
    let keeps_space = text[at..].starts_with(END);
    text.truncate(at);
    if !keeps_space {
        text.truncate(text.rstrip().len());
    }
    spans.retain(|span| span.start < text.len());
    for span in &mut spans {
        span.end = span.end.min(text.len());
    }
    Ok((text, spans))
}

fn refused(reason: &str) -> Error {
    Error::invalid(
        "messages",
        format!("cannot be laid out by the chat template: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[track_caller]
    fn check(template: &str, options: ChatOptions, expected: &str) {
        let messages = [Message::user("hi"), Message::assistant("yo")];
        let templates = BTreeMap::from([(DEFAULT.to_owned(), template.to_owned())]);
        let templates = ChatTemplates::new(templates);
        let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        let (text, _) = templates.render(&messages, &options, &tokens).unwrap();
        assert_eq!(text, expected);
    }

    #[test]
    fn templates_see_what_hugging_face_gives_them() {
        let plain = ChatOptions::transcript;
        check("{{ bos_token }}{{ messages[0].content }}", plain(), "<s>hi");
        check("{{ messages[-1]['role'] }}\n", plain(), "assistant");
        check("{% if add_generation_prompt %}go{% endif %}", plain(), "");
        check(
            "{% if add_generation_prompt %}go{% endif %}",
            ChatOptions::prompt(),
            "go",
        );
        check(
            "{{ tools is none }}{{ eos_token is defined }}",
            plain(),
            "TrueFalse",
        );
        check(
            "{{ thinking }}",
            plain().with_variable("thinking", false),
            "False",
        );
        check(
            "{{ messages[0].content.upper().startswith('H') }}",
            plain(),
            "True",
        );
        check(
            "{% for m in messages[::-1] %}\n  {{ m.role }}\n{% endfor %}",
            plain(),
            "  assistant\n  user\n",
        );
        check(
            "{% generation %}a{% endgeneration %} {%- generation -%} b {%- endgeneration -%}",
            plain(),
            "ab",
        );
    }

    #[test]
    fn json_is_pythons() {
        let tools = r#"[{"type": "f<", "a": [1, 2.5, true, null], "é": {}}]"#;
        let options = || ChatOptions::transcript().with_tools(tools).unwrap();
        check(
            "{{ tools | tojson }}",
            options(),
            r#"[{"type": "f<", "a": [1, 2.5, true, null], "é": {}}]"#,
        );
        check(
            "{{ tools[0].a | tojson(indent=2) }}",
            options(),
            "[\n  1,\n  2.5,\n  true,\n  null\n]",
        );
        check(
            r#"{{ "é\n" | tojson(ensure_ascii=True) }}"#,
            options(),
            r#""\u00e9\n""#,
        );
        assert!(ChatOptions::prompt().with_tools("[").is_err());
    }

    #[test]
    fn the_date_can_be_set_and_is_known_in_any_case() {
        let template = "{{ strftime_now('%d %b %Y') }}";
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 365);
        check(template, ChatOptions::prompt().with_now(now), "01 Jan 1971");
        check(
            "{{ strftime_now('%Y')|int > 2000 }}",
            ChatOptions::prompt(),
            "True",
        );
    }

    fn templates(named: &[(&str, &str)]) -> ChatTemplates {
        let named = named.iter();
        ChatTemplates::new(
            named
                .map(|(name, text)| ((*name).into(), (*text).into()))
                .collect(),
        )
    }

    #[track_caller]
    fn fails(templates: &ChatTemplates, options: &ChatOptions, expected: &str) {
        let messages = [Message::user("hi")];
        let error = templates.render(&messages, options, &BTreeMap::new());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn refusals_reach_the_caller() {
        let prompt = ChatOptions::prompt();
        fails(&templates(&[]), &prompt, "no chat template");
        fails(
            &templates(&[(DEFAULT, "{% if %}")]),
            &prompt,
            "cannot compile",
        );
        let raising = "{{ raise_exception('roles must alternate') }}";
        fails(
            &templates(&[(DEFAULT, raising)]),
            &prompt,
            "roles must alternate",
        );
        let silent = templates(&[(DEFAULT, "{{ messages[0].role }}")]);
        fails(&silent, &ChatOptions::continuation(), "leaves out");
    }

    #[test]
    fn a_set_of_templates_has_one_for_tools() {
        #[track_caller]
        fn check(named: &[(&str, &str)], options: ChatOptions, expected: &str) {
            let rendered = templates(named).render(&[], &options, &BTreeMap::new());
            assert_eq!(rendered.unwrap().0, expected);
        }
        let both = [(DEFAULT, "d"), (TOOL_USE, "t"), ("rag", "r")];
        let plain = ChatOptions::prompt;
        let tools = || plain().with_tools("[]").unwrap();
        check(&both, plain(), "d");
        check(&both, tools(), "t");
        check(&both[..1], tools(), "d");
        check(&both, tools().with_template("rag"), "r");
        check(&both, plain().with_template("{{ 1 + 1 }}"), "2");
        fails(&templates(&both[2..]), &plain(), "choose one of rag");
    }

    #[test]
    fn an_answer_can_be_continued() {
        let options = ChatOptions::continuation;
        check("{{ messages[1].content }}<end>", options(), "yo");
        check("{{ messages[1].content|trim }}<end>", options(), "yo");
        check(
            "[{{ messages[1].content }}] {{ messages[1].content }}<end>",
            options(),
            "[yo\u{fdd0}END_OF_FINAL_MESSAGE ] yo",
        );
    }
}
