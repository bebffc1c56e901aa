//! What the console asks of this server beside run folders: checkpoints, chats, its own state.
//!
//! Whoever has a key may ask, also where other clients exchange it for tokens. The key comes in a
//! header that only scripts of this server's own page can set, so pages of other sites can neither
//! read nor change anything, and the layer below refuses them besides.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::sampling::new_sampler;
use super::table::{Access, Endpoint, Handling, own};
use super::training::offer;
use super::{Answer, Call, checkpoints, records};
use crate::error::Error;
use crate::local::console::{self, Event};
use crate::local::engine;
use crate::local::http::{self, Pieces, Refusal, Reply};
use crate::local::state::ledger::Kind;
use crate::local::state::samplers::Sampler;
use crate::local::state::{memory, now};
use crate::local::work::generate::{Hearer, generate};
use crate::local::work::text::{Reader as Stops, Text};
use crate::plot::sparkline_svg;
use crate::sync::lock;
use crate::text::{Message, Renderer, Tokenizer};
use crate::types::{Stop, TinkerPath};
use crate::wire::route::Method::{Delete, Get, Post, Put};
use Handling::{Heavy, Quick, Waiting};

/// What the paths of its endpoints begin with.
pub(super) const PREFIX: &str = "console/";

#[rustfmt::skip]
pub(super) const ENDPOINTS: &[Endpoint] = &[
    own("/", Get, "", Quick(|_| Ok(console::page()))).for_all(Access::Open),
    own("/", Get, "console/assets/{file}", Quick(|call| console::asset(call.segment(0))))
        .for_all(Access::Open),
    own("/", Get, "console/hello", Quick(hello)).for_all(Access::Key),
    own("/", Get, "console/events", Waiting(|call| Box::pin(events(call)))).for_all(Access::Key),
    own("/", Get, "console/runs", Heavy(folders)).for_all(Access::Key),
    own("/", Get, "console/run", Heavy(folders)).for_all(Access::Key),
    own("/", Get, "console/plot", Heavy(folders)).for_all(Access::Key),
    own("/", Get, "console/spans", Heavy(folders)).for_all(Access::Key),
    own("/", Get, "console/rollouts", Heavy(folders)).for_all(Access::Key),
    own("/", Post, "console/data", Heavy(folders)).for_all(Access::Key),
    own("/", Post, "console/chat", Waiting(|call| Box::pin(chat(call)))).for_all(Access::Key),
    own("/", Get, "console/checkpoints", Heavy(records::checkpoints)).for_all(Access::Key),
    own("/", Delete, "console/checkpoints/{run}/{ckpt}", Heavy(checkpoints::delete)).for_all(Access::Key),
    own("/", Put, "console/checkpoints/{run}/{ckpt}/ttl", Heavy(checkpoints::set_ttl)).for_all(Access::Key),
    own("/", Get, "console/checkpoints/{run}/{ckpt}/archive", Heavy(checkpoints::archive_link))
        .for_all(Access::Key),
];

fn hello(call: &Call) -> Answer {
    let offers = call.work().library.offers().iter();
    let models = offers.map(|offer| offer.name.as_str()).collect();
    Ok(Reply::json(&call.service.console.hello(models, &call.user)))
}

fn folders(call: &Call) -> Answer {
    let endpoint = call.endpoint.strip_prefix(PREFIX).unwrap_or_default();
    call.service.console.answer(endpoint, &call.request)
}

/// What changes: runs in their folders, and this server's own figures.
async fn events(call: Call) -> Answer {
    let call = Arc::new(call);
    let service = call.service.clone();
    let mut runs = service.console.watch();
    let (mut rate, mut last) = (Rate::default(), String::new());
    let look = move || {
        let mut events = runs();
        let figures = figures(&call, &mut rate);
        // A still server sends nothing; its clock alone is no news.
        let text = figures["figures"].to_string();
        if text != last {
            events.push(Event::of("server", &figures));
            last = text;
        }
        events
    };
    Ok(console::stream(look, async move {
        service.state.stopping().await
    }))
}

/// Tokens a second over the last minutes.
#[derive(Debug, Default)]
struct Rate {
    last: Option<(i64, u64)>,
    rates: Vec<f64>,
}

impl Rate {
    /// How many values are kept: a few minutes of looks.
    const KEPT: usize = 240;

    /// Takes in a total at a time in milliseconds.
    fn note(&mut self, millis: i64, total: u64) -> f64 {
        let (then, before) = self
            .last
            .replace((millis, total))
            .unwrap_or((millis, total));
        let rate = match millis - then {
            passed if passed > 0 => total.saturating_sub(before) as f64 * 1000.0 / passed as f64,
            _ => 0.0,
        };
        self.rates.push(rate);
        if self.rates.len() > Self::KEPT {
            self.rates.remove(0);
        }
        // Work is counted when it ends, so one look says little: the mean of some seconds.
        let recent = &self.rates[self.rates.len().saturating_sub(10)..];
        recent.iter().sum::<f64>() / recent.len() as f64
    }
}

/// The server in figures.
fn figures(call: &Call, rate: &mut Rate) -> serde_json::Value {
    #[derive(Serialize)]
    struct Line {
        id: String,
        base_model: String,
        rank: u32,
        queued: usize,
        running: bool,
    }
    let (state, work) = (call.state(), call.work());
    let totals = state.ledger.totals();
    let total = |wanted: Kind| {
        totals
            .iter()
            .find(|one| one.0 == wanted)
            .map_or(0, |one| one.1)
    };
    let (training, prefill, sample) = (
        total(Kind::Training),
        total(Kind::Prefill),
        total(Kind::Sample),
    );
    let per_second = rate.note(now().as_millisecond(), training + prefill + sample);
    let models = state.models.all().into_iter();
    let models = models.filter(|model| call.own_session(&model.session_id).is_ok());
    let mut models: Vec<Line> = models
        .map(|model| {
            let queue = lock(&model.queue);
            Line {
                id: model.id.clone(),
                base_model: model.base_model.clone(),
                rank: model.lora.rank,
                queued: queue.len(),
                running: queue.running,
            }
        })
        .collect();
    models.sort_by(|a, b| a.id.cmp(&b.id));
    let (adapters, adapter_bytes) = work.adapters.resident();
    let (results, result_bytes) = state.futures.kept();
    json!({
        "time": now().as_millisecond(),
        "spark": sparkline_svg(&rate.rates, 240, 36),
        "figures": {
            "base_model": work.library.first().name,
            "rate": per_second.round(),
            "models": models,
            "queued": state.models.queued(),
            "sessions": state.sessions.active(),
            "samplers": state.samplers.len(),
            "pending_samples": state.samplers.pending(),
            "adapters": adapters,
            "adapter_bytes": adapter_bytes,
            "results": results,
            "result_bytes": result_bytes,
            "reserved_bytes": work.memory.used(),
            "memory_limit_bytes": work.memory.limit(),
            // In steps, so that a still server is still.
            "resident_bytes": memory::resident() >> 20 << 20,
            "training": training,
            "prefill": prefill,
            "sample": sample,
            "checkpoints": total(Kind::Checkpoint),
            "requests": call.service.metrics.requests(|path| !path.is_empty() && !path.starts_with(PREFIX)),
        },
    })
}

/// What a chat asks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// The base model or a checkpoint.
    model: String,
    messages: Vec<Message>,
    /// What the answer is to begin with.
    #[serde(default)]
    prefill: String,
    #[serde(default = "one")]
    n: usize,
    max_tokens: usize,
    #[serde(default)]
    temperature: Option<f64>,
    #[serde(default)]
    top_p: Option<f64>,
    #[serde(default)]
    top_k: Option<usize>,
    #[serde(default)]
    seed: Option<u64>,
    #[serde(default)]
    stop: Vec<String>,
}

fn one() -> usize {
    1
}

/// How many alternatives are shown beside each sampled token.
const ALTERNATIVES: usize = 5;

/// Samples answers and sends them piece by piece, then each token's probability and what else was
/// likely in its place.
async fn chat(call: Call) -> Answer {
    let call = Arc::new(call);
    let asked = call.clone();
    // Conversations are laid out and adapters read: not on the thread of the connections.
    let prepared = tokio::task::spawn_blocking(move || prepare(&asked));
    let (sampler, request, reader) = prepared
        .await
        .unwrap_or_else(|_| Err(Refusal::internal("the handler failed")))?;
    let (sender, chunks) = http::stream();
    let prompt_tokens = request.prompt.len();
    let start = Event::of("start", &json!({"prompt_tokens": prompt_tokens}));
    // The page may have been closed already; the first piece will tell.
    let _ = sender.send(start.into_bytes());
    let texts =
        (0..request.num_samples).map(|_| Mutex::new(Text::new(call.work().vocabulary(&sampler))));
    let listener = Listener {
        sender: Mutex::new(Some(sender)),
        reader,
        stops: request.stop.strings.clone(),
        texts: texts.collect(),
    };
    let sampler = Arc::new(sampler);
    generate(call.work(), &sampler, vec![request], Arc::new(listener));
    Ok(Reply::stream("text/event-stream", chunks))
}

/// What turns sampled tokens into a message.
struct Reader {
    renderer: Renderer,
    prefill: Vec<i32>,
}

fn prepare(call: &Call) -> Result<(Sampler, engine::SampleRequest, Reader), Refusal> {
    let bad = |error: Error| Refusal::bad(error.to_string());
    let wanted: Wanted = call.json()?;
    let is_path = wanted.model.starts_with(TinkerPath::PREFIX);
    let (base, path) = match is_path {
        true => (None, Some(wanted.model.as_str())),
        false => (Some(wanted.model.as_str()), None),
    };
    let id = uuid::Uuid::new_v4().to_string();
    let sampler = new_sampler(call, id, "console".to_owned(), base, path)?;
    let offer = offer(call, &sampler.base_model)?;
    let renderer = match offer.name == call.work().library.first().name {
        true => call.service.console.renderer(),
        false => Tokenizer::open(&offer.tokenizer)
            .and_then(|tokenizer| Renderer::for_model(&offer.name, &tokenizer)),
    };
    let renderer = renderer.map_err(bad)?;
    let prompt = renderer.generation_prompt_with(&wanted.messages, &wanted.prefill);
    let prompt = prompt.and_then(|prompt| prompt.to_ints()).map_err(bad)?;
    let prompt: Vec<u32> = prompt.into_iter().map(i32::cast_unsigned).collect();
    let config = &offer.config;
    let room = (config.max_positions + 1).saturating_sub(prompt.len());
    let mut request = engine::SampleRequest::new(prompt, wanted.max_tokens.min(room));
    request.num_samples = wanted.n;
    request.temperature = wanted.temperature.unwrap_or(1.0);
    request.top_p = wanted.top_p.unwrap_or(1.0);
    request.top_k = wanted.top_k;
    request.seed = wanted.seed;
    request.topk_sample_logprobs = ALTERNATIVES;
    request.stop.tokens = config.eos.clone();
    request.stop.strings = wanted.stop;
    match renderer.stop() {
        Stop::Tokens(tokens) => {
            let tokens = tokens.into_iter().map(i32::cast_unsigned);
            request.stop.tokens.extend(tokens);
        }
        Stop::Texts(texts) => request.stop.strings.extend(texts),
        Stop::Text(text) => request.stop.strings.push(text),
    }
    request.check(config).map_err(bad)?;
    let prefill = renderer.tokenizer().encode_ordinary(&wanted.prefill);
    let prefill = prefill.map_err(bad)?;
    Ok((sampler, request, Reader { renderer, prefill }))
}

/// Sends what it hears. A stream that ends without `done` has failed.
struct Listener {
    sender: Mutex<Option<Pieces>>,
    reader: Reader,
    stops: Vec<String>,
    /// What each answer says so far.
    texts: Vec<Mutex<Text>>,
}

impl Listener {
    fn send(&self, event: Event) -> bool {
        let sender = lock(&self.sender);
        sender
            .as_ref()
            .is_some_and(|sender| sender.send(event.into_bytes()))
    }
}

impl Listener {
    fn piece(&self, index: usize, text: &str) -> bool {
        text.is_empty() || self.send(Event::of("piece", &json!({"index": index, "text": text})))
    }
}

impl Hearer for Listener {
    fn token(&self, _: usize, sample: usize, so_far: &engine::SampledSequence) -> bool {
        let stops = Stops { stops: &self.stops };
        let Some(token) = so_far.tokens.last() else {
            return true;
        };
        let new = lock(&self.texts[sample]).push(stops, *token);
        self.piece(sample, &new)
    }

    fn done(&self, _: usize, output: engine::SampleOutput) {
        let stops = Stops { stops: &self.stops };
        let sequences = output.sequences.into_iter().enumerate();
        let answers = sequences.map(|(index, sequence)| {
            let mut text = lock(&self.texts[index]);
            self.piece(index, &text.finish(stops));
            self.reader.read(index, &text.whole(stops), &sequence)
        });
        let answers: Vec<Answered> = answers.collect();
        self.send(Event::of("done", &json!({ "answers": answers })));
        lock(&self.sender).take();
    }
}

/// A finished answer: its message, and its tokens with their probabilities.
#[derive(Debug, Serialize)]
struct Answered {
    index: usize,
    content: String,
    thinking: String,
    reason: &'static str,
    tokens: usize,
    heat: Vec<Heat>,
}

/// A piece's text, its log-probability, and the likeliest tokens in its place with theirs.
type Heat = (String, f32, Vec<(String, f32)>);

impl Reader {
    fn read(&self, index: usize, text: &str, sequence: &engine::SampledSequence) -> Answered {
        let tokens = sequence.tokens.iter().map(|token| token.cast_signed());
        let tokens: Vec<i32> = tokens.collect();
        let whole: Vec<i32> = self.prefill.iter().chain(&tokens).copied().collect();
        let (content, thinking) = match self.renderer.parse(&whole) {
            Ok(parsed) => (parsed.message.text(), parsed.message.thinking()),
            Err(_) => (text.to_owned(), String::new()),
        };
        Answered {
            index,
            content,
            thinking,
            reason: match sequence.stop_reason {
                engine::StopReason::Stop => "stop",
                engine::StopReason::Length => "length",
            },
            tokens: tokens.len(),
            heat: self.heat(sequence, &tokens),
        }
    }

    fn heat(&self, sequence: &engine::SampledSequence, tokens: &[i32]) -> Vec<Heat> {
        let tokenizer = self.renderer.tokenizer();
        let spell = |&(token, logprob): &(u32, f32)| {
            let text = tokenizer.decode(&[token.cast_signed()]).unwrap_or_default();
            (text, logprob)
        };
        let pieces = console::pieces(tokenizer, tokens).unwrap_or_default();
        let pieces = pieces.into_iter().map(|piece| {
            let logprob = sequence.logprobs[piece.tokens.clone()].iter().sum();
            let others = sequence.topk.get(piece.tokens.start);
            let others = others.map_or_else(Vec::new, |top| top.iter().map(spell).collect());
            (piece.text, logprob, others)
        });
        pieces.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_time() {
        let mut rate = Rate::default();
        assert_eq!(rate.note(0, 1000), 0.0);
        assert_eq!(rate.note(500, 1600), 600.0);
        assert_eq!(rate.note(500, 1700), 400.0);
        for step in 0..Rate::KEPT as i64 {
            rate.note(600 + step, 0);
        }
        assert_eq!(rate.rates.len(), Rate::KEPT);
    }
}
