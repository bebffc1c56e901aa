//! One request on its way: what is heard of its samples becomes pieces and an answer.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::oneshot;

use super::Style;
use super::anthropic::Blocks;
use super::errors::Fault;
use super::shape::{Choice, Score, Shape, Usage};
use super::speech::{self, Reading, Said, Speech};
use super::voice::Voice;
use crate::error::Error;
use crate::local::engine::{SampleOutput, SampledSequence, StopReason};
use crate::local::http::Pieces;
use crate::local::state::memory::Promise;
use crate::local::work::generate::Hearer;
use crate::local::work::text::{Reader, Text};
use crate::sync::lock;

/// What is known of a prompt beside its tokens.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) tokens: Vec<u32>,
    pub(super) samples: usize,
    pub(super) reading: Reading,
    /// Its text, if it is to come back.
    pub(super) echo: Option<String>,
}

/// Where the answer goes.
pub(super) enum Sink {
    /// Server-sent events as they come.
    Events(Pieces),
    Whole(Mutex<Option<oneshot::Sender<Result<Bytes, Fault>>>>),
}

/// A request and its samples.
pub(super) struct Talk<V: Voice> {
    voice: Arc<V>,
    shape: Shape,
    stops: Vec<String>,
    asked: Vec<Asked>,
    samples: Vec<Mutex<Sample>>,
    /// `None` where a prompt is not done.
    choices: Mutex<Vec<Option<Vec<Choice>>>>,
    room: Mutex<Room>,
    /// Why a stream is going to break off.
    fault: Mutex<Option<Fault>>,
    sink: Sink,
}

/// The memory that scores take, as they come.
#[derive(Default)]
struct Room {
    /// How many more there is room for.
    left: usize,
    held: Vec<Promise>,
}

impl Room {
    /// How many scores room is taken for at a time.
    const BLOCK: usize = 4096;
    /// What each takes: as a number, and spelt out in the answer.
    const BYTES: usize = 128;
}

/// A sample as it grows.
struct Sample {
    text: Text,
    speech: Speech,
    /// What the client has of it.
    sent: Said,
    letters: usize,
    begun: bool,
    blocks: Blocks,
}

impl<V: Voice> Talk<V> {
    pub(super) fn new(
        voice: Arc<V>,
        shape: Shape,
        stops: Vec<String>,
        asked: Vec<Asked>,
        sink: Sink,
    ) -> Self {
        let sample = |asked: &Asked| {
            Mutex::new(Sample {
                text: Text::new(voice.vocabulary()),
                speech: Speech::new(asked.reading.opened),
                sent: Said::default(),
                letters: 0,
                begun: false,
                blocks: Blocks::default(),
            })
        };
        let samples = asked
            .iter()
            .flat_map(|one| (0..one.samples).map(|_| sample(one)));
        Self {
            samples: samples.collect(),
            choices: Mutex::new(asked.iter().map(|_| None).collect()),
            room: Mutex::default(),
            fault: Mutex::default(),
            voice,
            shape,
            stops,
            asked,
            sink,
        }
    }

    /// Takes room for the scores of one more token; false, and the end, if there is none.
    fn has_room(&self, score: &Score) -> bool {
        if self.shape.logprobs.is_none() {
            return true;
        }
        let (mut room, scores) = (lock(&self.room), 1 + score.top.len());
        while room.left < scores {
            match self.voice.promise(Room::BLOCK * Room::BYTES) {
                Ok(promise) => room.held.extend(promise),
                Err(fault) => {
                    self.give_up(fault);
                    return false;
                }
            }
            room.left += Room::BLOCK;
        }
        room.left -= scores;
        true
    }

    /// Ends it with a fault, which whoever listens is told: of a stream when its last piece goes.
    fn give_up(&self, fault: Fault) {
        match &self.sink {
            Sink::Events(_) => drop(lock(&self.fault).get_or_insert(fault)),
            Sink::Whole(sender) => {
                if let Some(sender) = lock(sender).take() {
                    // The client may have left.
                    let _ = sender.send(Err(fault));
                }
            }
        }
    }

    fn reader(&self) -> Reader<'_> {
        Reader { stops: &self.stops }
    }

    fn prompt_tokens(&self) -> usize {
        self.asked.iter().map(|asked| asked.tokens.len()).sum()
    }

    /// The number of a sample among all prompts'.
    fn index(&self, prompt: usize, sample: usize) -> usize {
        let before = self.asked[..prompt].iter().map(|asked| asked.samples);
        before.sum::<usize>() + sample
    }

    /// Sends an event; false if nobody listens any more.
    fn send(&self, event: &str, data: &Value) -> bool {
        let Sink::Events(sender) = &self.sink else {
            return true;
        };
        let text = match self.shape.style {
            Style::Messages => format!("event: {event}\ndata: {data}\n\n"),
            _ => format!("data: {data}\n\n"),
        };
        sender.send(text)
    }

    fn send_all(&self, events: Vec<(&'static str, Value)>) -> bool {
        events.iter().all(|(event, data)| self.send(event, data))
    }

    /// Sends what is new of a sample, after who speaks.
    fn tell(
        &self,
        index: usize,
        sample: &mut Sample,
        text: &str,
        said: &Said,
        score: Option<Score>,
    ) -> bool {
        if let Sink::Whole(sender) = &self.sink {
            return lock(sender)
                .as_ref()
                .is_some_and(|sender| !sender.is_closed());
        }
        let mut alive = true;
        if !sample.begun {
            sample.begun = true;
            alive = self.begin(index, sample);
        }
        let silent = match self.shape.style {
            Style::Completion => text.is_empty(),
            _ => *said == Said::default(),
        };
        sample.sent.reasoning.push_str(&said.reasoning);
        sample.sent.content.push_str(&said.content);
        let scored = self.shape.logprobs.is_some() && score.is_some();
        if silent && !scored {
            return alive;
        }
        if self.shape.style == Style::Messages {
            return alive && self.send_all(sample.blocks.say(said));
        }
        let scores: Vec<Score> = score.into_iter().collect();
        let scores = self
            .shape
            .scores(self.voice.vocabulary(), &scores, sample.letters);
        sample.letters += text.chars().count();
        alive && self.send("", &self.shape.delta(index, text, said, scores))
    }

    /// The first pieces: who speaks, and the prompt if it is to come back.
    fn begin(&self, index: usize, sample: &mut Sample) -> bool {
        if self.shape.style == Style::Messages {
            return self.send_all(Blocks::start(&self.shape, self.prompt_tokens()));
        }
        let first = self.shape.first(index);
        let alive = first.is_none_or(|first| self.send("", &first));
        let mut before = 0;
        let prompt = self.asked.iter().find(|asked| {
            before += asked.samples;
            index < before
        });
        match prompt.and_then(|asked| asked.echo.as_deref()) {
            Some(echo) => {
                sample.letters = echo.chars().count();
                alive
                    && self.send(
                        "",
                        &self.shape.delta(index, echo, &Said::default(), Value::Null),
                    )
            }
            None => alive,
        }
    }

    /// A finished sample; what was not sent of it is.
    fn finish(
        &self,
        prompt: usize,
        number: usize,
        sequence: &SampledSequence,
        before: &[Score],
    ) -> Choice {
        let index = self.index(prompt, number);
        let asked = &self.asked[prompt];
        let mut sample = lock(&self.samples[index]);
        let sample = &mut *sample;
        let tail = sample.text.finish(self.reader());
        let text = sample.text.whole(self.reader());
        let stop = sample.text.stopped_by(self.reader()).map(str::to_owned);
        let said = match (self.shape.style, &stop) {
            (Style::Completion, _) => Said::default(),
            // What a stop string cut off is not the family's whole message.
            (_, Some(_)) => speech::read(
                &*self.voice,
                &[],
                &text,
                Reading {
                    parsed: false,
                    ..asked.reading
                },
            ),
            (_, None) => speech::read(&*self.voice, &sequence.tokens, &text, asked.reading),
        };
        let rest = Said {
            reasoning: unsent(&said.reasoning, &sample.sent.reasoning),
            content: unsent(&said.content, &sample.sent.content),
            calls: said.calls.clone(),
        };
        self.tell(index, sample, &tail, &rest, None);
        let mut scores = before.to_vec();
        scores.extend((0..sequence.tokens.len()).map(|at| score(sequence, at)));
        let choice = Choice {
            index,
            text: asked.echo.clone().unwrap_or_default() + &text,
            said,
            scores,
            tokens: sequence.tokens.len(),
            reason: match (sequence.stop_reason, &stop) {
                (StopReason::Length, None) => "length",
                _ => "stop",
            },
            stop,
        };
        match self.shape.style {
            Style::Messages => self.send_all(sample.blocks.end(&choice)),
            _ => self.send("", &self.shape.last(&choice)),
        };
        choice
    }

    /// Everything is there.
    fn end(&self, choices: &[Choice]) {
        let usage = Usage {
            prompt: self.prompt_tokens(),
            completion: choices.iter().map(|choice| choice.tokens).sum(),
        };
        match &self.sink {
            Sink::Events(sender) if self.shape.style != Style::Messages => {
                if let Some(last) = self.shape.usage(usage) {
                    self.send("", &last);
                }
                // The client may have left.
                sender.send("data: [DONE]\n\n");
            }
            Sink::Events(_) => {}
            Sink::Whole(sender) => {
                let answer = match self.shape.style {
                    Style::Messages => {
                        let answer = super::anthropic::whole(&self.shape, &choices[0], usage);
                        serde_json::to_vec(&answer)
                    }
                    _ => self.shape.whole(self.voice.vocabulary(), choices, usage),
                };
                let answer = answer.map(Bytes::from).map_err(|_| super::engine_failed());
                if let Some(sender) = lock(sender).take() {
                    let _ = sender.send(answer);
                }
            }
        }
    }
}

/// What of a text was not sent; nothing, if something else was.
fn unsent(whole: &str, sent: &str) -> String {
    whole.strip_prefix(sent).unwrap_or_default().to_owned()
}

fn score(sequence: &SampledSequence, at: usize) -> Score {
    Score {
        token: sequence.tokens[at],
        logprob: sequence.logprobs.get(at).copied(),
        top: sequence.topk.get(at).cloned().unwrap_or_default(),
    }
}

/// The scores of an echoed prompt.
fn echoed(tokens: &[u32], output: &SampleOutput) -> Vec<Score> {
    let logprobs = output.prompt_logprobs.as_deref().unwrap_or_default();
    let tops = output.topk_prompt_logprobs.as_deref().unwrap_or_default();
    let tokens = tokens.iter().enumerate();
    tokens
        .map(|(at, token)| Score {
            token: *token,
            logprob: logprobs.get(at).copied().flatten(),
            top: tops.get(at).cloned().flatten().unwrap_or_default(),
        })
        .collect()
}

impl<V: Voice> Hearer for Talk<V> {
    fn token(&self, prompt: usize, sample: usize, so_far: &SampledSequence) -> bool {
        let index = self.index(prompt, sample);
        let at = so_far.tokens.len() - 1;
        let mut sample = lock(&self.samples[index]);
        let sample = &mut *sample;
        let text = sample.text.push(self.reader(), so_far.tokens[at]);
        let said = match (self.shape.style, self.asked[prompt].reading.parsed) {
            (Style::Completion, _) | (_, true) => Said::default(),
            _ => sample.speech.push(&text),
        };
        let score = score(so_far, at);
        self.has_room(&score) && self.tell(index, sample, &text, &said, Some(score))
    }

    fn done(&self, prompt: usize, output: SampleOutput) {
        let asked = &self.asked[prompt];
        let before = match asked.echo {
            Some(_) => echoed(&asked.tokens, &output),
            None => Vec::new(),
        };
        let sequences = output.sequences.iter().enumerate();
        let choices = sequences.map(|(number, one)| self.finish(prompt, number, one, &before));
        let choices = choices.collect();
        let mut all = lock(&self.choices);
        all[prompt] = Some(choices);
        if all.iter().all(Option::is_some) {
            let done: Vec<Choice> = all.drain(..).flatten().flatten().collect();
            drop(all);
            self.end(&done);
        }
    }

    fn fail(&self, reason: Error) {
        self.give_up(self.voice.fault(reason));
    }
}

impl<V: Voice> Drop for Talk<V> {
    /// Dropped before its end, it has failed; whoever listens is told.
    fn drop(&mut self) {
        let failed = !lock(&self.choices).is_empty();
        if failed && matches!(self.sink, Sink::Events(_)) {
            let path = match self.shape.style {
                Style::Messages => "/messages",
                _ => "",
            };
            let fault = lock(&self.fault).take();
            let fault = fault.unwrap_or_else(super::engine_failed);
            self.send("error", &fault.body(path));
        }
    }
}
