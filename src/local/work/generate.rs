//! Text from the engine, piece by piece: whole characters, nothing of a stop string.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::Workshop;
use super::samples::count;
use super::vocabulary::{Decoder, Vocabulary};
use crate::local::engine::{self, Listener, StopReason};
use crate::local::state::samplers::Sampler;
use crate::sync::lock;

/// One or more prompts, each with its samples.
#[derive(Debug)]
pub(in crate::local) struct Generation {
    pub(in crate::local) sampler: Sampler,
    /// Checked.
    pub(in crate::local) requests: Vec<engine::SampleRequest>,
    pub(in crate::local) stops: Vec<String>,
}

impl Generation {
    pub(in crate::local) fn prompt_tokens(&self) -> usize {
        self.requests.iter().map(|one| one.prompt.len()).sum()
    }
}

/// A finished sample.
#[derive(Debug)]
pub(in crate::local) struct Choice {
    pub(in crate::local) index: usize,
    pub(in crate::local) text: String,
    /// Each token with its own text.
    pub(in crate::local) tokens: Vec<(u32, String)>,
    pub(in crate::local) logprobs: Vec<f32>,
    /// Per token the likeliest tokens, best first; empty if the request did not ask.
    #[cfg_attr(
        not(feature = "chat"),
        allow(dead_code, reason = "only the console reads it")
    )]
    pub(in crate::local) topk: Vec<Vec<(u32, f32)>>,
    pub(in crate::local) reason: &'static str,
}

/// A piece of a sample. The last one has a reason.
#[derive(Debug)]
pub(in crate::local) struct Progress<'a> {
    pub(in crate::local) index: usize,
    pub(in crate::local) text: &'a str,
    pub(in crate::local) first: bool,
    pub(in crate::local) reason: Option<&'static str>,
}

/// Whoever hears of a generation; dropped before the end if the engine fails.
pub(in crate::local) trait Audience: Send + Sync {
    /// A piece of a sample; false if nobody listens any more.
    fn piece(&self, progress: &Progress<'_>) -> bool;

    /// Every sample, in order. Called once, last.
    fn end(&self, choices: Vec<Choice>);
}

/// Samples all prompts side by side, telling the audience about every piece.
pub(in crate::local) fn generate(
    workshop: &Arc<Workshop>,
    generation: Generation,
    audience: impl Audience + 'static,
) {
    let Generation {
        sampler,
        requests,
        stops,
    } = generation;
    let samples = requests.iter().map(|request| request.num_samples).sum();
    let whole = Arc::new(Whole {
        workshop: workshop.clone(),
        sampler,
        stops,
        audience: Box::new(audience),
        deserted: AtomicBool::new(false),
        choices: Mutex::new((0..samples).map(|_| None).collect()),
    });
    let mut offset = 0;
    for request in requests {
        let texts = (0..request.num_samples)
            .map(|_| Mutex::new(Text::new(workshop.vocabulary(&whole.sampler))))
            .collect();
        let part = Part {
            whole: whole.clone(),
            offset,
            texts,
        };
        offset += request.num_samples;
        workshop.sample(&whole.sampler, request, Box::new(part));
    }
}

/// What the prompts of one generation share.
struct Whole {
    workshop: Arc<Workshop>,
    sampler: Sampler,
    stops: Vec<String>,
    audience: Box<dyn Audience>,
    deserted: AtomicBool,
    /// `None` where a sample is not done.
    choices: Mutex<Vec<Option<Choice>>>,
}

impl Whole {
    fn tell(&self, index: usize, piece: &Piece, reason: Option<&'static str>) {
        if piece.text.is_empty() && reason.is_none() {
            return;
        }
        let progress = Progress {
            index,
            text: &piece.text,
            first: piece.first,
            reason,
        };
        if !self.audience.piece(&progress) {
            self.deserted.store(true, Ordering::Relaxed);
        }
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            vocabulary: self.workshop.vocabulary(&self.sampler),
            stops: &self.stops,
        }
    }

    /// Files samples; the last ones end the generation.
    fn file(&self, done: Vec<Choice>) {
        let mut choices = lock(&self.choices);
        for choice in done {
            let index = choice.index;
            choices[index] = Some(choice);
        }
        if choices.iter().all(Option::is_some) {
            let all = choices.drain(..).flatten().collect();
            drop(choices);
            self.audience.end(all);
        }
    }
}

/// One prompt and its samples.
struct Part {
    whole: Arc<Whole>,
    /// Samples of the prompts before it.
    offset: usize,
    texts: Vec<Mutex<Text>>,
}

impl Listener for Part {
    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        self.whole.reader().vocabulary.decode(tokens)
    }

    fn token(&self, sample: usize, token: u32) {
        let mut text = lock(&self.texts[sample]);
        let piece = text.push(self.whole.reader(), token);
        self.whole.tell(self.offset + sample, &piece, None);
    }

    fn is_cancelled(&self) -> bool {
        self.whole.deserted.load(Ordering::Relaxed) || self.whole.workshop.state.is_stopping()
    }

    fn finish(&self, request: &engine::SampleRequest, output: engine::SampleOutput) {
        let whole = &self.whole;
        count(&whole.workshop, &whole.sampler, request, &output);
        let mut done = Vec::new();
        for (sample, sequence) in output.sequences.into_iter().enumerate() {
            let (index, reader) = (self.offset + sample, whole.reader());
            let mut text = lock(&self.texts[sample]);
            let reason = match sequence.stop_reason {
                StopReason::Stop => "stop",
                StopReason::Length => "length",
            };
            whole.tell(index, &text.finish(reader), Some(reason));
            let spell = |token: &u32| {
                let bytes = reader.vocabulary.decode(&[*token]);
                (*token, String::from_utf8_lossy(&bytes).into_owned())
            };
            done.push(Choice {
                index,
                text: text.whole(reader),
                tokens: sequence.tokens.iter().map(spell).collect(),
                logprobs: sequence.logprobs,
                topk: sequence.topk,
                reason,
            });
        }
        whole.file(done);
    }
}

/// What turns tokens into text, and the strings that end one.
#[derive(Clone, Copy)]
struct Reader<'a> {
    vocabulary: &'a Vocabulary,
    stops: &'a [String],
}

/// The text of one sample as it grows.
struct Text {
    /// `None` once the sample is done.
    decoder: Option<Decoder>,
    bytes: Vec<u8>,
    /// How many bytes were given out.
    sent: usize,
    begun: bool,
}

#[derive(Debug, PartialEq)]
struct Piece {
    text: String,
    first: bool,
}

impl Text {
    fn new(vocabulary: &Vocabulary) -> Self {
        Self {
            decoder: Some(vocabulary.decoder()),
            bytes: Vec::new(),
            sent: 0,
            begun: false,
        }
    }

    /// Adds a token, and gives out what is certain by now.
    fn push(&mut self, reader: Reader<'_>, token: u32) -> Piece {
        if let Some(decoder) = &mut self.decoder {
            self.bytes.extend(decoder.push(token));
        }
        let bytes = &self.bytes;
        let end = match reader.stop_at(bytes, self.sent) {
            Some(end) => end,
            None => {
                let end = bytes.len() - reader.begun_stop(bytes);
                whole_characters(bytes, self.sent, end)
            }
        };
        self.give(end)
    }

    /// Gives out the rest.
    fn finish(&mut self, reader: Reader<'_>) -> Piece {
        if let Some(decoder) = self.decoder.take() {
            self.bytes.extend(decoder.finish());
        }
        let end = reader.stop_at(&self.bytes, self.sent);
        self.give(end.unwrap_or(self.bytes.len()))
    }

    /// All of it, once it is finished.
    fn whole(&self, reader: Reader<'_>) -> String {
        let end = reader.stop_at(&self.bytes, 0).unwrap_or(self.bytes.len());
        String::from_utf8_lossy(&self.bytes[..end]).into_owned()
    }

    fn give(&mut self, end: usize) -> Piece {
        let new = self.bytes.get(self.sent..end).unwrap_or_default();
        let text = String::from_utf8_lossy(new).into_owned();
        self.sent = self.sent.max(end);
        let first = !self.begun && !text.is_empty();
        self.begun |= first;
        Piece { text, first }
    }
}

impl Reader<'_> {
    /// Where the first stop string begins; none does in the bytes before `sent`, but one may have
    /// begun there.
    fn stop_at(&self, bytes: &[u8], sent: usize) -> Option<usize> {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let start = sent.saturating_sub(longest);
        let stops = self.stops.iter().filter(|stop| !stop.is_empty());
        let found = stops.filter_map(|stop| find(&bytes[start..], stop.as_bytes()));
        found.min().map(|at| start + at)
    }

    /// How many bytes at the end may be the beginning of a stop string.
    fn begun_stop(&self, bytes: &[u8]) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        (1..longest.min(bytes.len() + 1))
            .rev()
            .find(|length| {
                let end = &bytes[bytes.len() - length..];
                self.stops
                    .iter()
                    .any(|stop| stop.as_bytes().starts_with(end))
            })
            .unwrap_or(0)
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// The end of the last whole character before `end`.
fn whole_characters(bytes: &[u8], start: usize, end: usize) -> usize {
    let mut at = start;
    while let Some(rest) = bytes.get(at..end) {
        match std::str::from_utf8(rest) {
            Ok(_) => return end,
            Err(error) => {
                let valid = at + error.valid_up_to();
                match error.error_len() {
                    // An unfinished character waits for its rest.
                    None => return valid,
                    // A broken one never gets better.
                    Some(length) => at = valid + length,
                }
            }
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, stops: &[&str], expected: &[&str]) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let reader = Reader {
            vocabulary: &Vocabulary::Bytes,
            stops: &stops,
        };
        let mut growing = Text::new(&Vocabulary::Bytes);
        let mut pieces: Vec<String> = text
            .bytes()
            .map(|byte| growing.push(reader, u32::from(byte)).text)
            .collect();
        pieces.push(growing.finish(reader).text);
        pieces.retain(|piece| !piece.is_empty());
        assert_eq!(pieces, expected);
        assert_eq!(growing.whole(reader), expected.concat());
    }

    #[test]
    fn pieces_are_whole_characters() {
        check("aé\u{1F600}", &[], &["a", "é", "\u{1F600}"]);
    }

    #[test]
    fn broken_characters_do_not_spoil_their_neighbours() {
        let bytes = [0xE2, 0xD4, 0xA5, 0xFF, 0xC3, b'!', 0xF0];
        let reader = Reader {
            vocabulary: &Vocabulary::Bytes,
            stops: &[],
        };
        let mut growing = Text::new(&Vocabulary::Bytes);
        let mut text: String = bytes
            .iter()
            .map(|byte| growing.push(reader, u32::from(*byte)).text)
            .collect();
        text += &growing.finish(reader).text;
        assert_eq!(text, String::from_utf8_lossy(&bytes));
        assert_eq!(text, growing.whole(reader));
    }

    #[test]
    fn nothing_of_a_stop_string_gets_out() {
        check("ab\n\nc", &["\n\n"], &["a", "b"]);
        check("a\nb\n", &["\n\n"], &["a", "\nb", "\n"]);
        check("xENDy", &["END", "xE"], &[] as &[&str]);
        check("plain", &[], &["p", "l", "a", "i", "n"]);
    }
}
