//! Chat templates: the Jinja programs that models bring along to lay out conversations.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::Message;
use crate::error::{Context, Error, Result};

/// What to tell the template beside the messages.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    add_generation_prompt: bool,
    tools: Value,
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
            tools: Value::from(()),
            now: None,
            variables: Vec::new(),
        }
    }

    /// Offers tools, as a JSON list of their schemas. Templates print them with their keys in
    /// the order they are written here. Default: none.
    ///
    /// # Errors
    ///
    /// If the text is not JSON.
    pub fn with_tools(mut self, json: &str) -> Result<Self> {
        self.tools = serde_json::from_str(json)
            .map_err(|error| Error::invalid("tools", error.to_string()))?;
        Ok(self)
    }

    /// Sets a variable of the template, such as `enable_thinking`. Default: what the template
    /// takes for a missing one.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: impl Serialize) -> Self {
        self.variables
            .push((name.to_owned(), Value::from(Serde(value))));
        self
    }

    /// Tells templates that print the date what time it is; they read it in UTC. Default: not
    /// told, and most print a fixed date then.
    #[must_use]
    pub fn with_now(mut self, now: SystemTime) -> Self {
        self.now = Some(now);
        self
    }
}

/// A compiled template.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles with the settings and additions that Hugging Face tools give templates.
    pub(super) fn new(source: &str) -> Result<Self> {
        let uncompiled =
            |error| Error::Config(Context::caused("cannot compile the chat template", error));
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        let mut environment = Environment::new();
        environment.set_syntax(syntax.map_err(uncompiled)?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| {
            Err::<Value, _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, plain_blocks(source).into_owned())
            .map_err(uncompiled)?;
        Ok(Self { environment })
    }

    pub(super) fn render(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        special_tokens: &BTreeMap<String, String>,
    ) -> Result<String> {
        let mut variables: BTreeMap<String, Value> = special_tokens
            .iter()
            .map(|(role, token)| (role.clone(), Value::from(token.as_str())))
            .collect();
        let messages: Value = messages.iter().map(|m| Value::from(Serde(m))).collect();
        variables.insert("messages".into(), messages);
        variables.insert("tools".into(), options.tools.clone());
        variables.insert("documents".into(), Value::from(()));
        let prompt = options.add_generation_prompt;
        variables.insert("add_generation_prompt".into(), prompt.into());
        if let Some(now) = options.now {
            let clock = Value::from_function(move |format: String| strftime(now, &format));
            variables.insert("strftime_now".into(), clock);
        }
        variables.extend(options.variables.iter().cloned());
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(Value::from(variables)))
            .map_err(|error| {
                Error::invalid(
                    "messages",
                    format!("cannot be laid out by the chat template: {error}"),
                )
            })
    }
}

/// Turns `{% generation %}` blocks, which only mark what the assistant said, into plain ones.
fn plain_blocks(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        let Some(end) = tag.find("%}") else { break };
        let (tag, after) = tag.split_at(end);
        let is_sign = |c: char| matches!(c, '-' | '+');
        out.push_str(before);
        match tag[2..].trim_matches(is_sign).trim() {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn strftime(now: SystemTime, format: &str) -> Result<String, minijinja::Error> {
    let refuse =
        |error: jiff::Error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string());
    let now = jiff::Timestamp::try_from(now).map_err(refuse)?;
    let now = now.to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now).map_err(refuse)
}

/// Python's `json.dumps`, which templates expect: spaces after separators, no escaping of HTML.
fn to_json(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let indent = indent.map(|width| " ".repeat(width));
    let json = match &indent {
        Some(indent) => dump(value, PrettyFormatter::with_indent(indent.as_bytes())),
        None => dump(value, Spaced),
    };
    let json = json
        .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(match ascii {
        Some(true) => escape_non_ascii(&json),
        _ => json,
    })
}

fn dump(value: &Value, formatter: impl Formatter) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
    Ok(String::from_utf8(out).expect("JSON is written as UTF-8"))
}

fn escape_non_ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// `{"a": 1, "b": [2, 3]}`
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[track_caller]
    fn check(template: &str, options: ChatOptions, expected: &str) {
        let messages = [Message::user("hi"), Message::assistant("yo")];
        let template = ChatTemplate::new(template).unwrap();
        let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        assert_eq!(
            template.render(&messages, &options, &tokens).unwrap(),
            expected
        );
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
    fn the_date_is_given_or_unknown() {
        let template = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'then' }}";
        check(template, ChatOptions::prompt(), "then");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 365);
        check(template, ChatOptions::prompt().with_now(now), "01 Jan 1971");
    }

    #[test]
    fn refusals_reach_the_caller() {
        assert!(ChatTemplate::new("{% if %}").is_err());
        let template = ChatTemplate::new("{{ raise_exception('roles must alternate') }}").unwrap();
        let error = template
            .render(&[], &ChatOptions::prompt(), &BTreeMap::new())
            .unwrap_err();
        assert!(
            error.to_string().contains("roles must alternate"),
            "{error}"
        );
    }
}
