//! Text from the engine, piece by piece: whole characters, nothing of a stop string.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::engine::{self, Hooks, StopReason};
use super::jobs;
use super::ledger::Kind;
use super::samplers::Sampler;
use super::service::Service;
use super::vocabulary::Vocabulary;
use crate::error::Result;

/// One or more prompts, each with its samples.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) sampler: Sampler,
    pub(super) requests: Vec<engine::SampleRequest>,
    pub(super) stops: Vec<String>,
}

impl Generation {
    pub(super) fn prompt_tokens(&self) -> usize {
        self.requests.iter().map(|one| one.prompt.len()).sum()
    }
}

/// A finished sample.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) index: usize,
    pub(super) text: String,
    /// Each token with its own text.
    pub(super) tokens: Vec<(u32, String)>,
    pub(super) logprobs: Vec<f32>,
    pub(super) reason: &'static str,
}

/// A piece of a sample. The last one has a reason.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    pub(super) index: usize,
    pub(super) text: &'a str,
    pub(super) first: bool,
    pub(super) reason: Option<&'static str>,
}

/// Samples, telling `listener` about every piece; one that declines ends the work early.
pub(super) fn generate(
    service: &Service,
    generation: &Generation,
    cancelled: &AtomicBool,
    listener: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Vec<Choice>> {
    let mut choices = Vec::new();
    for request in &generation.requests {
        let offset = choices.len();
        let texts: Vec<Mutex<Text<'_>>> = (0..request.num_samples)
            .map(|_| Mutex::new(Text::new(&service.vocabulary, &generation.stops)))
            .collect();
        let tell = |index: usize, piece: Piece, reason: Option<&'static str>| {
            if piece.text.is_empty() && reason.is_none() {
                return;
            }
            let heard = listener(Progress {
                index: offset + index,
                text: &piece.text,
                first: piece.first,
                reason,
            });
            if !heard || service.is_stopping() {
                cancelled.store(true, Ordering::Relaxed);
            }
        };
        let on_token = |index: usize, token: u32, _: f32| {
            let mut text = texts[index].lock().unwrap_or_else(PoisonError::into_inner);
            tell(index, text.push(token), None);
        };
        let decode = |tokens: &[u32]| service.vocabulary.decode(tokens);
        let hooks = Hooks {
            decode: Some(&decode),
            on_token: Some(&on_token),
            cancel: Some(cancelled),
        };
        let adapter = generation.sampler.adapter.as_deref();
        let output = engine::sample(&service.base, adapter, request, hooks)?;
        let sampled: usize = output.sequences.iter().map(|one| one.tokens.len()).sum();
        let session = &generation.sampler.session_id;
        let count = |kind, tokens: usize| {
            service
                .ledger
                .count(jobs::now(), session, kind, tokens as u64);
        };
        count(Kind::Prefill, request.prompt.len());
        count(Kind::Sample, sampled);
        for (index, sequence) in output.sequences.into_iter().enumerate() {
            let mut text = texts[index].lock().unwrap_or_else(PoisonError::into_inner);
            let reason = match sequence.stop_reason {
                StopReason::Stop => "stop",
                StopReason::Length => "length",
            };
            tell(index, text.finish(), Some(reason));
            let one = |token: &u32| {
                let bytes = service.vocabulary.decode(&[*token]);
                (*token, String::from_utf8_lossy(&bytes).into_owned())
            };
            choices.push(Choice {
                index: offset + index,
                text: text.whole(),
                tokens: sequence.tokens.iter().map(one).collect(),
                logprobs: sequence.logprobs,
                reason,
            });
        }
    }
    Ok(choices)
}

/// The text of one sample as it grows.
struct Text<'a> {
    vocabulary: &'a Vocabulary,
    stops: &'a [String],
    tokens: Vec<u32>,
    /// How many bytes were given out.
    sent: usize,
    begun: bool,
}

#[derive(Debug, PartialEq)]
struct Piece {
    text: String,
    first: bool,
}

impl<'a> Text<'a> {
    fn new(vocabulary: &'a Vocabulary, stops: &'a [String]) -> Self {
        Self {
            vocabulary,
            stops,
            tokens: Vec::new(),
            sent: 0,
            begun: false,
        }
    }

    /// Adds a token, and gives out what is certain by now.
    fn push(&mut self, token: u32) -> Piece {
        self.tokens.push(token);
        let bytes = self.vocabulary.decode(&self.tokens);
        let end = match self.stop_at(&bytes) {
            Some(end) => end,
            None => whole_characters(&bytes, self.sent, bytes.len() - self.begun_stop(&bytes)),
        };
        self.give(&bytes, end)
    }

    /// Gives out the rest.
    fn finish(&mut self) -> Piece {
        let bytes = self.vocabulary.decode(&self.tokens);
        let end = self.stop_at(&bytes).unwrap_or(bytes.len());
        self.give(&bytes, end)
    }

    fn whole(&self) -> String {
        let bytes = self.vocabulary.decode(&self.tokens);
        let end = self.stop_at(&bytes).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    fn give(&mut self, bytes: &[u8], end: usize) -> Piece {
        let new = bytes.get(self.sent..end).unwrap_or_default();
        let text = String::from_utf8_lossy(new).into_owned();
        self.sent = self.sent.max(end);
        let first = !self.begun && !text.is_empty();
        self.begun |= first;
        Piece { text, first }
    }

    /// Where the first stop string begins.
    fn stop_at(&self, bytes: &[u8]) -> Option<usize> {
        let stops = self.stops.iter().filter(|stop| !stop.is_empty());
        stops.filter_map(|stop| find(bytes, stop.as_bytes())).min()
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
        let mut growing = Text::new(&Vocabulary::Bytes, &stops);
        let mut pieces: Vec<String> = text
            .bytes()
            .map(|byte| growing.push(u32::from(byte)).text)
            .collect();
        pieces.push(growing.finish().text);
        pieces.retain(|piece| !piece.is_empty());
        assert_eq!(pieces, expected);
        assert_eq!(growing.whole(), expected.concat());
    }

    #[test]
    fn pieces_are_whole_characters() {
        check("aé\u{1F600}", &[], &["a", "é", "\u{1F600}"]);
    }

    #[test]
    fn broken_characters_do_not_spoil_their_neighbours() {
        let bytes = [0xE2, 0xD4, 0xA5, 0xFF, 0xC3, b'!', 0xF0];
        let mut growing = Text::new(&Vocabulary::Bytes, &[]);
        let mut text: String = bytes
            .iter()
            .map(|byte| growing.push(u32::from(*byte)).text)
            .collect();
        text += &growing.finish().text;
        assert_eq!(text, String::from_utf8_lossy(&bytes));
        assert_eq!(text, growing.whole());
    }

    #[test]
    fn nothing_of_a_stop_string_gets_out() {
        check("ab\n\nc", &["\n\n"], &["a", "b"]);
        check("a\nb\n", &["\n\n"], &["a", "\nb", "\n"]);
        check("xENDy", &["END", "xE"], &[] as &[&str]);
        check("plain", &[], &["p", "l", "a", "i", "n"]);
    }
}
