//! Endpoints for programs that speak OpenAI's or Anthropic's language: what a request means and how
//! its answer looks. The models behind them are a [`Backend`]'s: those of the
//! embedded engine, or of a server elsewhere.

mod anthropic;
mod chat;
pub(super) mod embedded;
mod errors;
#[cfg(feature = "text")]
pub(in crate::local) mod remote;
mod request;
mod shape;
mod speech;
mod talk;
#[cfg(feature = "text")]
pub(in crate::local) mod upstream;
mod voice;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::local::engine::{SampleRequest, Stop};
use crate::local::http::{self, JSON, Refusal, Reply};
use crate::local::state::now;
use request::{Fields, Input, Prompt, Wanted};
use shape::Shape;
use speech::Reading;
use talk::{Asked, Sink, Talk};
use voice::Voice;

pub(in crate::local) use errors::{Fault, is_ours};
pub(in crate::local) use voice::{Backend, Card};

/// Where these endpoints are; the second place is the hosted service's.
pub(in crate::local) const PREFIXES: [&str; 2] = ["/v1/", "/oai/api/v1/"];

/// How many tokens a completion has if nobody says.
const USUAL_TOKENS: usize = 16;

/// Which endpoint was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::local) enum Style {
    Completion,
    Chat,
    /// Anthropic's.
    Messages,
}

/// All models, or the one of this name.
pub(in crate::local) async fn models<B: Backend>(
    backend: Arc<B>,
    path: &str,
    wanted: Option<String>,
) -> Reply {
    let listed = blocking(move || backend.models()).await;
    let entry = |card: &Card| json!({"id": card.id, "object": "model", "created": card.created, "owned_by": "tinker"});
    let answer = listed.and_then(|cards| match wanted {
        None => {
            let data: Vec<Value> = cards.iter().map(entry).collect();
            Ok(json!({"object": "list", "data": data}))
        }
        Some(id) => {
            let found = cards.iter().find(|card| card.id == id);
            found.map(entry).ok_or_else(|| no_model(&id))
        }
    });
    match answer {
        Ok(answer) => Reply::json(&answer),
        Err(fault) => fault.reply(path),
    }
}

/// `completions`, `chat/completions` and `messages`, whole or streamed.
pub(in crate::local) async fn complete<B: Backend>(
    backend: Arc<B>,
    path: &str,
    body: Bytes,
    style: Style,
) -> Reply {
    match answer(backend, body, style).await {
        Ok(reply) => reply,
        Err(fault) => fault.reply(path),
    }
}

async fn answer<B: Backend>(backend: Arc<B>, body: Bytes, style: Style) -> Result<Reply, Fault> {
    // Templates run, texts are tokenised and adapters read: not on the thread of the connections.
    let plan = blocking(move || plan(&*backend, &body, style)).await?;
    let Plan {
        voice,
        shape,
        stops,
        asked,
        requests,
        stream,
    } = plan;
    if stream {
        let (sender, chunks) = http::stream();
        let talk = Talk::new(voice.clone(), shape, stops, asked, Sink::Events(sender));
        voice.sample(requests, Arc::new(talk))?;
        return Ok(Reply::stream("text/event-stream", chunks));
    }
    let (sender, result) = oneshot::channel();
    let sink = Sink::Whole(Mutex::new(Some(sender)));
    let talk = Talk::new(voice.clone(), shape, stops, asked, sink);
    voice.sample(requests, Arc::new(talk))?;
    let answer = result.await.unwrap_or_else(|_| Err(engine_failed()))?;
    Ok(Reply::new(JSON, answer))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Refusal::internal("the handler failed").into()))
}

fn engine_failed() -> Fault {
    Refusal::internal("the model failed while it answered; ask again").into()
}

fn no_model(id: &str) -> Fault {
    Refusal::missing(format!("there is no model {id:?} here")).into()
}

/// What is to be sampled, and how the answer will look.
struct Plan<V> {
    voice: Arc<V>,
    shape: Shape,
    stops: Vec<String>,
    asked: Vec<Asked>,
    requests: Vec<SampleRequest>,
    stream: bool,
}

fn plan<B: Backend>(backend: &B, body: &[u8], style: Style) -> Result<Plan<B::Voice>, Fault> {
    let mut fields = Fields::read(body)?;
    if style == Style::Messages {
        fields = anthropic::translate(fields)?;
    }
    let mut wanted = Wanted::read(fields, style)?;
    let voice = backend.open(&wanted.model)?;
    let input = std::mem::replace(&mut wanted.input, Input::Prompts(Vec::new()));
    let asked = asked(&*voice, input, &wanted)?;
    wanted.choices(asked.len())?;
    let mut ends = voice.ends();
    if style != Style::Completion {
        ends.extend(chat::ends(&*voice));
        ends.sort_unstable();
        ends.dedup();
    }
    let requests = asked.iter().map(|one| {
        let request = request(&*voice, &wanted, one, &ends, style);
        voice.check(&request).map(|()| request)
    });
    let requests = requests.collect::<Result<_, _>>()?;
    let prefix = match style {
        Style::Completion => "cmpl-",
        Style::Chat => "chatcmpl-",
        Style::Messages => "msg_",
    };
    let shape = Shape {
        style,
        id: format!("{prefix}{}", uuid::Uuid::new_v4().simple()),
        model: wanted.model,
        created: now().as_second(),
        include_usage: wanted.include_usage,
        logprobs: wanted.logprobs,
    };
    Ok(Plan {
        voice,
        shape,
        stops: wanted.stops,
        asked,
        requests,
        stream: wanted.stream,
    })
}

/// The prompts as tokens.
fn asked(voice: &impl Voice, input: Input, wanted: &Wanted) -> Result<Vec<Asked>, Fault> {
    let plain = Reading {
        opened: false,
        parsed: false,
    };
    let prompts = match input {
        Input::Chat(conversation) => {
            let tools = conversation.tools.is_some();
            let tokens = conversation.tokens(voice)?;
            let reading = chat::reading(voice, &tokens, tools);
            return Ok(vec![Asked {
                tokens,
                samples: wanted.n,
                reading,
                echo: None,
            }]);
        }
        Input::Prompts(prompts) => prompts,
    };
    let vocabulary = voice.vocabulary();
    let one = |prompt: Prompt| {
        let (tokens, text) = match prompt {
            Prompt::Text(text) => {
                let tokens = vocabulary.encode_start(&text);
                let missing = || Fault::unsupported("prompt", "must be tokens: no tokenizer");
                (tokens.ok_or_else(missing)?, Some(text))
            }
            Prompt::Tokens(tokens) => (tokens, None),
        };
        let echo = wanted.echo.then(|| match text {
            Some(text) => text,
            None => String::from_utf8_lossy(&vocabulary.decode(&tokens)).into_owned(),
        });
        Ok(Asked {
            tokens,
            samples: wanted.n,
            reading: plain,
            echo,
        })
    };
    prompts.into_iter().map(one).collect()
}

fn request(
    voice: &impl Voice,
    wanted: &Wanted,
    asked: &Asked,
    ends: &[u32],
    style: Style,
) -> SampleRequest {
    let used = asked.tokens.len();
    let room = voice
        .positions()
        .map_or(usize::MAX, |most| (most + 1).saturating_sub(used));
    let tokens = wanted.max_tokens.unwrap_or(match style {
        Style::Completion => USUAL_TOKENS.min(room),
        _ => room,
    });
    let mut request = SampleRequest::new(asked.tokens.clone(), tokens);
    request.num_samples = wanted.n;
    let usual = voice.usual();
    request.temperature = wanted.temperature.or(usual.temperature).unwrap_or(1.0);
    request.top_p = wanted.top_p.or(usual.top_p).unwrap_or(1.0);
    let k = wanted.top_k.or(usual.top_k).filter(|k| *k > 0);
    request.top_k = k.and_then(|k| usize::try_from(k).ok());
    request.adjust = wanted.adjust.clone();
    request.seed = wanted.seed;
    request.stop = Stop {
        tokens: ends.to_vec(),
        strings: wanted.stops.clone(),
    };
    let top = wanted.logprobs.unwrap_or(0);
    request.topk_sample_logprobs = top;
    if wanted.echo && wanted.logprobs.is_some() {
        request.prompt_logprobs = true;
        request.topk_prompt_logprobs = top;
    }
    request
}
