//! What a request asks for. What is not supported is refused by name, never ignored.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Style;
use super::chat::Conversation;
use super::errors::Fault;
use crate::local::engine::{Adjust, SampleRequest};

/// Fields that say something about the caller, not about the answer.
const HARMLESS: [&str; 6] = [
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "verbosity",
];
/// As many as OpenAI gives.
const MOST_TOP: usize = 20;
const MOST_STOPS: usize = 16;

/// A request of either kind.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) model: String,
    pub(super) input: Input,
    pub(super) max_tokens: Option<usize>,
    pub(super) n: usize,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    /// -1 for all.
    pub(super) top_k: Option<i64>,
    pub(super) adjust: Adjust,
    pub(super) seed: Option<u64>,
    pub(super) stops: Vec<String>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// How many alternatives to each token's log-probability; `None` for no log-probabilities.
    pub(super) logprobs: Option<usize>,
    /// Whether the prompt comes back with the answer.
    pub(super) echo: bool,
}

#[derive(Debug)]
pub(super) enum Input {
    Prompts(Vec<Prompt>),
    Chat(Conversation),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    One(Prompt),
    Many(Vec<Prompt>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// A JSON object whose fields are taken one by one; what is left was not understood.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn of(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    pub(super) fn read(body: &[u8]) -> Result<Self, Fault> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(Fault::bad("body", "must be a JSON object")),
            Err(error) => Err(Fault::bad("body", format!("is not JSON: {error}"))),
        }
    }

    /// A field's value; null is as good as none.
    pub(super) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| Fault::bad(name, error)),
        }
    }

    pub(super) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Fault> {
        self.take(name)?
            .ok_or_else(|| Fault::bad(name, "is required"))
    }

    /// Refuses a field unless it says what is done anyway.
    fn only(&mut self, name: &str, same: &[Value], why: &str) -> Result<(), Fault> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if same.contains(&value) => Ok(()),
            Some(value) => Err(Fault::unsupported(name, format!("{value} {why}"))),
        }
    }

    /// Refuses whatever is left.
    pub(super) fn end(self) -> Result<(), Fault> {
        let mut left = self.0.into_iter();
        let unknown =
            left.find(|(name, value)| !value.is_null() && !HARMLESS.contains(&name.as_str()));
        match unknown {
            Some((name, _)) => Err(Fault::unsupported(&name, "is not supported")),
            None => Ok(()),
        }
    }
}

impl Wanted {
    pub(super) fn read(mut fields: Fields, style: Style) -> Result<Self, Fault> {
        let fields = &mut fields;
        let input = match style {
            Style::Completion => Input::Prompts(prompts(fields)?),
            Style::Chat | Style::Messages => Input::Chat(conversation(fields)?),
        };
        let stops = match fields.take::<OneOrMany>("stop")? {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text],
            Some(OneOrMany::Many(texts)) => texts,
        };
        if stops.len() > MOST_STOPS {
            return Err(Fault::bad(
                "stop",
                format!("may be {MOST_STOPS} texts at most"),
            ));
        }
        let longer: Option<usize> = fields.take("max_completion_tokens")?;
        let options: Option<StreamOptions> = fields.take("stream_options")?;
        let wanted = Self {
            model: fields.need("model")?,
            max_tokens: fields.take("max_tokens")?.or(longer),
            n: fields.take("n")?.unwrap_or(1),
            temperature: fields.take("temperature")?,
            top_p: fields.take("top_p")?,
            top_k: top_k(fields)?,
            adjust: adjust(fields)?,
            seed: fields.take::<i64>("seed")?.map(i64::cast_unsigned),
            stops,
            stream: fields.take("stream")?.unwrap_or(false),
            include_usage: options.is_some_and(|options| options.include_usage),
            logprobs: logprobs(fields, style)?,
            echo: fields.take("echo")?.unwrap_or(false),
            input,
        };
        refuse_the_rest(fields, &wanted)?;
        std::mem::replace(fields, Fields(Map::new())).end()?;
        Ok(wanted)
    }

    /// How many choices there will be, if they are not too many.
    pub(super) fn choices(&self, prompts: usize) -> Result<usize, Fault> {
        let most = SampleRequest::MAX_SAMPLES;
        match self.n.saturating_mul(prompts) {
            0 => Err(Fault::bad("n", "must be at least 1")),
            choices if choices > most => Err(Fault::bad(
                "n",
                format!("a request may ask for {most} choices at most"),
            )),
            choices => Ok(choices),
        }
    }
}

fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, Fault> {
    let prompts = match fields.need::<Prompts>("prompt")? {
        Prompts::One(prompt) => vec![prompt],
        Prompts::Many(prompts) => prompts,
    };
    let is_empty = |prompt: &Prompt| matches!(prompt, Prompt::Tokens(tokens) if tokens.is_empty());
    match prompts.is_empty() || prompts.iter().any(is_empty) {
        true => Err(Fault::bad("prompt", "must not be empty")),
        false => Ok(prompts),
    }
}

fn conversation(fields: &mut Fields) -> Result<Conversation, Fault> {
    let choice: Option<Value> = fields.take("tool_choice")?;
    let mut tools: Option<Vec<Value>> = fields.take("tools")?;
    match choice
        .as_ref()
        .map(|choice| choice.as_str().unwrap_or("a named one"))
    {
        None | Some("auto") => {}
        Some("none") => tools = None,
        Some(_) => {
            let why = "the model cannot be made to call a tool: only auto and none are supported";
            return Err(Fault::unsupported("tool_choice", why));
        }
    }
    Ok(Conversation {
        messages: fields.need("messages")?,
        tools: tools.filter(|tools| !tools.is_empty()),
        kwargs: fields.take("chat_template_kwargs")?.unwrap_or_default(),
    })
}

/// -1 means all, as elsewhere in the service.
fn top_k(fields: &mut Fields) -> Result<Option<i64>, Fault> {
    match fields.take("top_k")? {
        Some(k) if k < 1 && k != -1 => Err(Fault::bad(
            "top_k",
            "must be at least 1, or -1 for no limit",
        )),
        k => Ok(k),
    }
}

fn adjust(fields: &mut Fields) -> Result<Adjust, Fault> {
    let mut number = |name: &str, usual: f64| Ok::<_, Fault>(fields.take(name)?.unwrap_or(usual));
    let mut adjust = Adjust {
        min_p: number("min_p", 0.0)?,
        presence: number("presence_penalty", 0.0)?,
        frequency: number("frequency_penalty", 0.0)?,
        repetition: number("repetition_penalty", 1.0)?,
        bias: Vec::new(),
    };
    let bias: Option<Map<String, Value>> = fields.take("logit_bias")?;
    for (token, bias) in bias.unwrap_or_default() {
        let (Ok(token), Some(bias)) = (token.parse(), bias.as_f64()) else {
            let problem = format!("must give numbers to token ids, not {bias} to {token:?}");
            return Err(Fault::bad("logit_bias", problem));
        };
        adjust.bias.push((token, bias as f32));
    }
    Ok(adjust)
}

/// A number for completions, a switch and a number for chats.
fn logprobs(fields: &mut Fields, style: Style) -> Result<Option<usize>, Fault> {
    let (name, count) = match style {
        Style::Completion => match fields.take::<Value>("logprobs")? {
            None | Some(Value::Bool(false)) => return Ok(None),
            Some(Value::Bool(true)) => ("logprobs", Some(0)),
            Some(value) => ("logprobs", value.as_u64()),
        },
        Style::Chat | Style::Messages => {
            let on = fields.take::<bool>("logprobs")?.unwrap_or(false);
            let top: Option<u64> = fields.take("top_logprobs")?;
            match (on, top) {
                (false, None | Some(0)) => return Ok(None),
                (false, Some(_)) => return Err(Fault::bad("top_logprobs", "needs logprobs")),
                (true, top) => ("top_logprobs", Some(top.unwrap_or(0))),
            }
        }
    };
    let count = count.and_then(|count| usize::try_from(count).ok());
    match count.filter(|count| *count <= MOST_TOP) {
        Some(count) => Ok(Some(count)),
        None => Err(Fault::bad(
            name,
            format!("must be a whole number up to {MOST_TOP}"),
        )),
    }
}

/// What would change the answer and cannot be done.
fn refuse_the_rest(fields: &mut Fields, wanted: &Wanted) -> Result<(), Fault> {
    let text = serde_json::json!({"type": "text"});
    let free =
        "cannot be promised: the engine draws freely; only {\"type\": \"text\"} is supported";
    fields.only("response_format", &[text], free)?;
    let n = Value::from(wanted.n);
    fields.only(
        "best_of",
        &[n, Value::from(1)],
        "is not supported: only as many as n",
    )?;
    fields.only("suffix", &[Value::from("")], "is not supported")?;
    fields.only(
        "parallel_tool_calls",
        &[true.into()],
        "is not supported: a model may make several",
    )?;
    fields.only(
        "store",
        &[false.into()],
        "is not supported: nothing is kept",
    )?;
    let tiers = ["auto".into(), "default".into()];
    fields.only("service_tier", &tiers, "is not supported")?;
    if wanted.echo && wanted.stream && wanted.logprobs.is_some() {
        let problem = "with logprobs cannot be streamed: the prompt is scored as a whole";
        return Err(Fault::unsupported("echo", problem));
    }
    if wanted.echo && matches!(wanted.input, Input::Chat(_)) {
        return Err(Fault::unsupported("echo", "is for completions"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value, style: Style) -> Result<Wanted, Fault> {
        Wanted::read(Fields::read(value.to_string().as_bytes())?, style)
    }

    #[test]
    fn what_is_not_supported_is_named() {
        #[track_caller]
        fn check(style: Style, field: &str, value: Value) {
            let mut body = match style {
                Style::Completion => json!({"model": "m", "prompt": "x"}),
                _ => json!({"model": "m", "messages": [{"role": "user", "content": "x"}]}),
            };
            assert!(read(body.clone(), style).is_ok());
            body[field] = value;
            let fault = read(body, style).unwrap_err();
            assert_eq!(fault.status.as_u16(), 400);
            assert!(fault.message.starts_with(field), "{}", fault.message);
            assert_eq!(fault.body("/v1/x")["error"]["param"], field);
        }
        let (chat, plain) = (Style::Chat, Style::Completion);
        check(chat, "response_format", json!({"type": "json_object"}));
        check(chat, "tool_choice", json!("required"));
        check(chat, "parallel_tool_calls", json!(false));
        check(chat, "audio", json!({}));
        check(chat, "functions", json!([]));
        check(chat, "echo", json!(true));
        check(chat, "n", json!("two"));
        check(chat, "n", json!(-1));
        check(chat, "max_tokens", json!(1e300));
        check(chat, "top_logprobs", json!(2));
        check(chat, "logit_bias", json!({"x": 1}));
        check(chat, "top_k", json!(0));
        check(plain, "suffix", json!("end"));
        check(plain, "best_of", json!(7));
        check(plain, "logprobs", json!(4_000_000_000u64));
        check(plain, "stop", json!(vec!["a"; 17]));
        check(plain, "prompt", json!([]));
        check(plain, "prompt", json!({}));
        check(plain, "temperature", json!("hot"));
    }

    #[test]
    fn fields_mean_what_they_say() {
        let wanted = read(
            json!({"model": "m", "prompt": [[1, 2], [3]], "n": 2, "logprobs": 3, "echo": true,
                "stop": "x", "top_k": -1, "logit_bias": {"5": -100}, "user": "me",
                "presence_penalty": null, "min_p": 0.1, "best_of": 2}),
            Style::Completion,
        );
        let wanted = wanted.unwrap();
        assert!(matches!(&wanted.input, Input::Prompts(prompts) if prompts.len() == 2));
        assert_eq!(
            (wanted.logprobs, wanted.top_k, wanted.echo),
            (Some(3), Some(-1), true)
        );
        assert_eq!(
            (wanted.adjust.min_p, wanted.adjust.bias.as_slice()),
            (0.1, &[(5, -100.0)][..])
        );
        assert_eq!(wanted.choices(2).unwrap(), 4);
        assert!(wanted.choices(usize::MAX).is_err());
        let chat = read(
            json!({"model": "m", "messages": [], "logprobs": true, "top_logprobs": 2,
                "max_completion_tokens": 9, "tools": [{}], "tool_choice": "none"}),
            Style::Chat,
        );
        let chat = chat.unwrap();
        assert_eq!((chat.logprobs, chat.max_tokens), (Some(2), Some(9)));
        assert!(matches!(
            chat.input,
            Input::Chat(Conversation { tools: None, .. })
        ));
    }
}
