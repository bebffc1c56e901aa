//! The OpenAI-compatible endpoints: what a request means and how its answer looks.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::chat::{self, Conversation};
use super::sampling::new_sampler;
use super::training::offer;
use super::{Answer, Call};
use crate::local::engine;
use crate::local::http::{Refusal, Reply};
use crate::local::state::now;
use crate::local::work::generate::{Audience, Choice, Generation, Progress, generate};
use crate::local::work::library::Offer;
use crate::sync::lock;
use crate::types::{CheckpointKind, TinkerPath};

/// What both endpoints take. Unknown fields are ignored, as other servers do.
#[derive(Debug, Deserialize)]
struct Wanted {
    model: String,
    #[serde(default)]
    prompt: Option<Prompt>,
    #[serde(flatten)]
    conversation: Conversation,
    #[serde(default, alias = "max_completion_tokens")]
    max_tokens: Option<usize>,
    #[serde(default)]
    temperature: Option<f64>,
    #[serde(default)]
    top_p: Option<f64>,
    #[serde(default)]
    n: Option<usize>,
    #[serde(default)]
    seed: Option<i64>,
    #[serde(default)]
    stop: Option<OneOrMany>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    /// A number for completions, a switch for chats.
    #[serde(default)]
    logprobs: Value,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    Lists(Vec<Vec<u32>>),
}

/// Which of the two endpoints was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::local) enum Style {
    Completion,
    Chat,
}

/// The base and everything saved for sampling.
pub(super) fn models(call: &Call) -> Answer {
    let model = |id: String, created: i64| json!({"id": id, "object": "model", "created": created, "owned_by": "local"});
    let offers = call.work().library.offers().iter();
    let mut data: Vec<Value> = offers.map(|offer| model(offer.name.clone(), 0)).collect();
    for checkpoint in call.state().catalogue.checkpoints(None) {
        let visible = checkpoint.owner == *call.user || checkpoint.public;
        if visible && checkpoint.path.kind() == CheckpointKind::Sampler {
            let id = checkpoint.path.to_string();
            data.push(model(id, checkpoint.time.as_second()));
        }
    }
    Ok(Reply::json(&json!({"object": "list", "data": data})))
}

/// `completions` and `chat/completions`, whole or streamed. Errors have OpenAI's shape.
pub(super) async fn complete(call: Call, style: Style) -> Answer {
    match try_complete(Arc::new(call), style).await {
        Ok(reply) => Ok(reply),
        Err(Refusal { status, detail }) => {
            let error = json!({"message": detail, "type": "invalid_request_error"});
            Ok(Reply::json(&json!({ "error": error })).with_status(status))
        }
    }
}

async fn try_complete(call: Arc<Call>, style: Style) -> Answer {
    let asked = call.clone();
    // Templates run, texts are tokenised and adapters read: not on the thread of the connections.
    let prepare = move || {
        let wanted: Wanted = asked.json()?;
        let shape = Shape::new(&wanted, style);
        Ok((shape, generation(&asked, wanted, style)?))
    };
    let (shape, generation) = tokio::task::spawn_blocking(prepare)
        .await
        .unwrap_or_else(|_| Err(Refusal::internal("the handler failed")))?;
    let prompt_tokens = generation.prompt_tokens();
    if shape.stream {
        let (sender, chunks) = mpsc::unbounded_channel();
        let stream = Stream {
            sender,
            shape,
            prompt_tokens,
        };
        generate(call.work(), generation, stream);
        return Ok(Reply::stream("text/event-stream", chunks));
    }
    let (sender, result) = oneshot::channel();
    generate(call.work(), generation, Whole(Mutex::new(Some(sender))));
    let choices = result
        .await
        .map_err(|_| Refusal::internal("the engine failed"))?;
    let tokens = choices.iter().map(|choice| choice.tokens.len()).sum();
    let mut answer = shape.envelope(false, choices.iter().map(|c| shape.whole(c)).collect());
    answer["usage"] = usage(prompt_tokens, tokens);
    Ok(Reply::json(&answer))
}

/// Sends every piece as a server-sent event.
struct Stream {
    sender: mpsc::UnboundedSender<Bytes>,
    shape: Shape,
    prompt_tokens: usize,
}

impl Stream {
    fn send(&self, data: &str) -> bool {
        self.sender.send(format!("data: {data}\n\n").into()).is_ok()
    }
}

impl Audience for Stream {
    fn piece(&self, progress: &Progress<'_>) -> bool {
        self.send(&self.shape.chunk(progress).to_string())
    }

    fn end(&self, choices: Vec<Choice>) {
        if self.shape.include_usage {
            let tokens = choices.iter().map(|choice| choice.tokens.len()).sum();
            let mut last = self.shape.envelope(true, vec![]);
            last["usage"] = usage(self.prompt_tokens, tokens);
            self.send(&last.to_string());
        }
        self.send("[DONE]");
    }
}

/// Waits for the end; hung up on, it has no more use for the rest.
struct Whole(Mutex<Option<oneshot::Sender<Vec<Choice>>>>);

impl Audience for Whole {
    fn piece(&self, _: &Progress<'_>) -> bool {
        let sender = lock(&self.0);
        sender.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    fn end(&self, choices: Vec<Choice>) {
        let mut sender = lock(&self.0);
        if let Some(sender) = sender.take() {
            // The client may have left.
            let _ = sender.send(choices);
        }
    }
}

fn usage(prompt: usize, completion: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    })
}

/// What is to be sampled.
fn generation(call: &Call, wanted: Wanted, style: Style) -> Result<Generation, Refusal> {
    let id = uuid::Uuid::new_v4().to_string();
    let (base, path) = if wanted.model.starts_with(TinkerPath::PREFIX) {
        (None, Some(wanted.model.as_str()))
    } else {
        (Some(wanted.model.as_str()), None)
    };
    let sampler = new_sampler(call, id, "openai".to_owned(), base, path)?;
    let Offer {
        vocabulary, config, ..
    } = offer(call, &sampler.base_model)?;
    let encode = |text: &str| {
        let tokens = vocabulary.encode(text);
        tokens.ok_or_else(|| Refusal::bad("this server has no tokenizer: send tokens"))
    };
    let begin = |text: &str| {
        let tokens = vocabulary.encode_start(text);
        tokens.ok_or_else(|| Refusal::bad("this server has no tokenizer: send tokens"))
    };
    let prompts = match (style, wanted.prompt) {
        (Style::Chat, _) => vec![encode(&wanted.conversation.render(vocabulary)?)?],
        (Style::Completion, Some(Prompt::Text(text))) => vec![begin(&text)?],
        (Style::Completion, Some(Prompt::Texts(texts))) => texts
            .iter()
            .map(|text| begin(text))
            .collect::<Result<_, _>>()?,
        (Style::Completion, Some(Prompt::Tokens(tokens))) => vec![tokens],
        (Style::Completion, Some(Prompt::Lists(lists))) => lists,
        (Style::Completion, None) => return Err(Refusal::unprocessable("prompt is required")),
    };
    let choices = wanted.n.unwrap_or(1).saturating_mul(prompts.len());
    if choices > engine::SampleRequest::MAX_SAMPLES {
        let most = engine::SampleRequest::MAX_SAMPLES;
        return Err(Refusal::bad(format!(
            "n: a request may ask for {most} choices at most"
        )));
    }
    let stops = match wanted.stop {
        None => Vec::new(),
        Some(OneOrMany::One(text)) => vec![text],
        Some(OneOrMany::Many(texts)) => texts,
    };
    let mut end = config.eos.clone();
    if style == Style::Chat {
        end.extend(chat::ends(vocabulary));
    }
    let requests = prompts
        .into_iter()
        .map(|prompt| {
            let room = (config.max_positions + 1).saturating_sub(prompt.len());
            let usual = if style == Style::Chat { room } else { 16 };
            let max_tokens = wanted.max_tokens.unwrap_or(usual);
            let mut request = engine::SampleRequest::new(prompt, max_tokens);
            request.num_samples = wanted.n.unwrap_or(1);
            request.temperature = wanted.temperature.unwrap_or(1.0);
            request.top_p = wanted.top_p.unwrap_or(1.0);
            request.seed = wanted.seed.map(i64::cast_unsigned);
            request.stop = engine::Stop {
                tokens: end.clone(),
                strings: stops.clone(),
            };
            request.check(config).map(|()| request)
        })
        .collect::<crate::Result<_>>()
        .map_err(|error| Refusal::bad(error.to_string()))?;
    Ok(Generation {
        sampler,
        requests,
        stops,
    })
}

/// How answers to one request look.
struct Shape {
    style: Style,
    id: String,
    model: String,
    created: i64,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
}

impl Shape {
    fn new(wanted: &Wanted, style: Style) -> Self {
        let prefix = match style {
            Style::Completion => "cmpl",
            Style::Chat => "chatcmpl",
        };
        Self {
            style,
            id: format!("{prefix}-{}", uuid::Uuid::new_v4().simple()),
            model: wanted.model.clone(),
            created: now().as_second(),
            stream: wanted.stream,
            include_usage: wanted
                .stream_options
                .as_ref()
                .is_some_and(|o| o.include_usage),
            logprobs: !matches!(wanted.logprobs, Value::Null | Value::Bool(false)),
        }
    }

    fn envelope(&self, chunk: bool, choices: Vec<Value>) -> Value {
        let object = match (self.style, chunk) {
            (Style::Completion, _) => "text_completion",
            (Style::Chat, false) => "chat.completion",
            (Style::Chat, true) => "chat.completion.chunk",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn whole(&self, choice: &Choice) -> Value {
        let mut value = json!({
            "index": choice.index,
            "finish_reason": choice.reason,
            "logprobs": self.logprobs.then(|| self.scores(choice)),
        });
        match self.style {
            Style::Completion => value["text"] = json!(choice.text),
            Style::Chat => {
                value["message"] = json!({"role": "assistant", "content": choice.text});
            }
        }
        value
    }

    fn scores(&self, choice: &Choice) -> Value {
        let tokens = choice.tokens.iter().zip(&choice.logprobs);
        match self.style {
            Style::Completion => json!({
                "tokens": choice.tokens.iter().map(|(_, text)| text).collect::<Vec<_>>(),
                "token_logprobs": choice.logprobs,
                "top_logprobs": null,
                "text_offset": [],
            }),
            Style::Chat => json!({
                "content": tokens.map(|((_, text), logprob)| json!({
                    "token": text,
                    "bytes": text.as_bytes(),
                    "logprob": logprob,
                    "top_logprobs": [],
                })).collect::<Vec<_>>(),
            }),
        }
    }

    fn chunk(&self, progress: &Progress<'_>) -> Value {
        let mut value = json!({
            "index": progress.index,
            "finish_reason": progress.reason,
            "logprobs": null,
        });
        match self.style {
            Style::Completion => value["text"] = json!(progress.text),
            Style::Chat if progress.first => {
                value["delta"] = json!({"role": "assistant", "content": progress.text});
            }
            Style::Chat if progress.text.is_empty() => value["delta"] = json!({}),
            Style::Chat => value["delta"] = json!({"content": progress.text}),
        }
        self.envelope(true, vec![value])
    }
}
