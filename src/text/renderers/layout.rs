//! The one machine behind all renderers: a [`Family`] lays out single messages, and this puts
//! them together into prompts and weighted examples.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, RwLock};

use super::super::data::Example;
use super::super::json::Json;
use super::super::message::Turn;
use super::super::tokenizer::Tokenizer;
use super::{Parsed, TrainOnWhat};
use crate::error::{Error, Result};
use crate::sync::{read, write};
use crate::types::{Chunk, ModelInput};

/// The rules of one model family.
pub(super) trait Family: Send + Sync {
    fn facts(&self) -> Facts;

    /// The family with another date than today, if it writes one.
    fn dated(&self, _date: &str) -> Option<Box<dyn Family>> {
        None
    }

    /// What every sequence starts with.
    fn begins(&self, _codec: &Codec) -> Result<Vec<Piece>> {
        Ok(Vec::new())
    }

    /// What a whole conversation, of which examples may show only the start, tells about how to
    /// lay it out; handed to [`prepare`](Self::prepare).
    fn survey(&self, _turns: &[Turn]) -> usize {
        0
    }

    /// The messages as the family counts them, before all else.
    fn gather(&self, turns: Vec<Turn>) -> Vec<Turn> {
        turns
    }

    /// Changes that concern all messages, done once before any is laid out. The second value is
    /// handed to [`Place::mark`].
    fn prepare(&self, turns: Vec<Turn>, survey: usize) -> Result<(Vec<Turn>, usize)> {
        Ok((turns, survey))
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered>;

    /// What the prompt for the model's turn ends with.
    fn suffix(&self, place: &Place<'_>) -> Result<Vec<Piece>> {
        Ok(self.render(&Turn::new("assistant", ""), place)?.header)
    }

    /// What [`prepare`](Self::prepare) would have marked when only these messages were there.
    fn mark_before(&self, _before: &[Turn], mark: usize) -> usize {
        mark
    }

    /// The text to start the model's turn with, given what the caller wants it to start with.
    fn prefill(&self, _before: &[Turn], prefill: &str) -> Result<String> {
        Ok(prefill.to_owned())
    }

    /// Where the turn starts that the model is to produce.
    fn turn_start(&self, turns: &[Turn]) -> usize {
        after_last_user(turns)
    }

    /// Whether what the model says in this message is trained on.
    fn trains(&self, turn: &Turn, place: &Place<'_>, what: TrainOnWhat) -> Result<bool> {
        let assistant = turn.is("assistant");
        Ok(match what {
            TrainOnWhat::LastAssistantMessage => place.is_last && assistant,
            TrainOnWhat::LastAssistantTurn => place.in_last_turn && assistant,
            TrainOnWhat::AllAssistantMessages => assistant,
            TrainOnWhat::AllMessages | TrainOnWhat::AllTokens => true,
            TrainOnWhat::AllUserAndSystemMessages => turn.is("user") || turn.is("system"),
            TrainOnWhat::Customized => turn.trainable == Some(true),
        })
    }

    /// How a conversation is cut into examples that each show the model what it would have seen.
    fn split(&self, _turns: &[Turn]) -> Split {
        match self.facts().extends {
            true => Split::Whole,
            false => Split::Messages,
        }
    }

    /// The messages that declare tools, before the conversation.
    fn declare(&self, _tools: &[Json], _system: &str) -> Result<Vec<Turn>> {
        Err(Error::invalid(
            "tools",
            "this renderer has no way to declare them",
        ))
    }

    /// How the prompt ends for a model that is to think first: with a block it goes on in.
    fn opening(&self) -> Option<&'static str> {
        None
    }

    /// Reads an answer, from the [opening](Self::opening) on.
    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed>;
}

/// What is always true of a family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Every prompt is a prefix of the prompt of a later turn.
    pub(super) extends: bool,
    /// The prompt tells the model not to think.
    pub(super) disables_thinking: bool,
    /// What ends the model's turn: special tokens by their spelling, or one text.
    pub(super) stop: &'static [&'static str],
    /// The stop is text, not a token.
    pub(super) stop_is_text: bool,
    /// What to put after a sampled message that ended without a stop.
    pub(super) close: &'static str,
    /// `trainable` may stand on messages, or be missing, whatever is trained on.
    pub(super) free_flags: bool,
    /// An answer is text and `<think>` blocks, to be shown as they come.
    pub(super) streams: bool,
}

impl Facts {
    /// A family whose turns end with one special token.
    pub(super) const fn ending(stop: &'static [&'static str]) -> Self {
        Self {
            extends: false,
            disables_thinking: false,
            stop,
            stop_is_text: false,
            close: stop[0],
            free_flags: false,
            streams: true,
        }
    }
}

/// See [`Family::split`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    /// One example shows everything.
    Whole,
    /// One example for every assistant message.
    Messages,
    /// One example for every turn of the user.
    UserTurns,
}

/// Where a message stands.
pub(super) struct Place<'a> {
    /// The messages laid out; the one at `index` may be beyond them (the turn to produce).
    pub(super) turns: &'a [Turn],
    pub(super) index: usize,
    pub(super) is_last: bool,
    /// The message belongs to the turn the model is asked to produce.
    pub(super) in_last_turn: bool,
    /// What [`Family::prepare`] found out about the conversation.
    pub(super) mark: usize,
    /// The example is to start with the very prompt the model would be given, rather than to
    /// show one layout whatever is trained on.
    pub(super) as_produced: bool,
}

impl<'a> Place<'a> {
    pub(super) fn previous(&self) -> Option<&'a Turn> {
        self.turns.get(self.index.checked_sub(1)?)
    }

    pub(super) fn next(&self) -> Option<&'a Turn> {
        self.turns.get(self.index + 1)
    }

    pub(super) fn last_user(&self) -> Option<usize> {
        self.turns.iter().rposition(|turn| turn.is("user"))
    }

    /// The message comes after the last of the user, or there is none of the user.
    pub(super) fn after_last_user(&self) -> bool {
        self.last_user().is_none_or(|user| self.index > user)
    }

    /// A line break before every message but the first.
    pub(super) fn newline(&self) -> &'static str {
        if self.index > 0 { "\n" } else { "" }
    }
}

/// One message laid out.
#[derive(Default)]
pub(super) struct Rendered {
    /// What the model sees but does not produce.
    pub(super) header: Vec<Piece>,
    /// What it produces.
    pub(super) output: Vec<Part>,
    /// What belongs to the end of the turn but to the next message too: only put after the last.
    pub(super) overlap: Vec<Piece>,
    /// Header and output are one text to the tokenizer; a token across the border is header.
    pub(super) joined: bool,
}

/// A chunk of the model input.
pub(super) enum Part {
    Text(Vec<Piece>),
    Image(Chunk),
}

impl Part {
    pub(super) fn markup(text: impl Into<String>) -> Self {
        Self::Text(vec![Piece::Markup(text.into())])
    }
}

/// Text on its way to tokens.
#[derive(Debug)]
pub(super) enum Piece {
    /// Text of the format, in which special tokens are tokens. Few different ones: kept.
    Fixed(Cow<'static, str>),
    /// Text in which special tokens are tokens.
    Markup(String),
    /// Text in which special tokens are only text.
    Plain(String),
    /// Text in which no added token is more than text.
    Spelled(String),
    /// Tokens as they are.
    Tokens(Vec<i32>),
}

impl Piece {
    pub(super) fn fixed(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Fixed(text.into())
    }
}

/// A tokenizer with a memory for the texts of the format.
pub(super) struct Codec {
    pub(super) tokenizer: Tokenizer,
    fixed: RwLock<HashMap<String, Arc<[i32]>>>,
}

/// More texts than any family's format has.
const MAX_FIXED: usize = 256;

impl Codec {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            fixed: RwLock::default(),
        }
    }

    pub(super) fn fixed(&self, text: &str) -> Result<Arc<[i32]>> {
        let known = read(&self.fixed);
        if let Some(tokens) = known.get(text) {
            return Ok(Arc::clone(tokens));
        }
        drop(known);
        let tokens: Arc<[i32]> = self.tokenizer.encode_plain(text)?.into();
        let mut known = write(&self.fixed);
        if known.len() < MAX_FIXED {
            known.insert(text.to_owned(), Arc::clone(&tokens));
        }
        Ok(tokens)
    }

    /// The one token a text of the format is.
    pub(super) fn token(&self, text: &str) -> Result<i32> {
        match *self.fixed(text)? {
            [token] => Ok(token),
            _ => Err(Error::invalid(
                "tokenizer",
                format!(
                    "{text} is no token of {}: another renderer fits it",
                    self.tokenizer.name()
                ),
            )),
        }
    }

    pub(super) fn decode(&self, tokens: &[i32]) -> Result<String> {
        self.tokenizer.decode(tokens)
    }
}

/// Texts, with special tokens recognised or not, and their tokens.
type Memory = HashMap<(bool, String), Rc<[i32]>>;

/// The tokens of texts seen in one call, which lays out the same messages up to twice.
struct Encoder<'a> {
    codec: &'a Codec,
    memory: RefCell<Memory>,
}

impl<'a> Encoder<'a> {
    fn new(codec: &'a Codec) -> Self {
        Self {
            codec,
            memory: RefCell::default(),
        }
    }

    fn pieces(&self, pieces: Vec<Piece>) -> Result<Vec<i32>> {
        let mut tokens = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Fixed(text) if text.is_empty() => {}
                Piece::Fixed(text) => tokens.extend_from_slice(&self.codec.fixed(&text)?),
                Piece::Markup(text) => tokens.extend_from_slice(&self.text(true, text)?),
                Piece::Plain(text) => tokens.extend_from_slice(&self.text(false, text)?),
                Piece::Spelled(text) => tokens.extend(self.codec.tokenizer.encode_spelled(&text)?),
                Piece::Tokens(more) => tokens.extend_from_slice(&more),
            }
        }
        Ok(tokens)
    }

    fn text(&self, special: bool, text: String) -> Result<Rc<[i32]>> {
        let key = (special, text);
        if let Some(tokens) = self.memory.borrow().get(&key) {
            return Ok(Rc::clone(tokens));
        }
        let tokens: Rc<[i32]> = match special {
            true => self.codec.tokenizer.encode_plain(&key.1)?,
            false => self.codec.tokenizer.encode_ordinary(&key.1)?,
        }
        .into();
        self.memory.borrow_mut().insert(key, Rc::clone(&tokens));
        Ok(tokens)
    }

    /// Both as one text, cut where the first ends.
    fn joined(&self, header: &str, output: &str) -> Result<(Vec<i32>, Vec<i32>)> {
        let tokens = self.text(true, format!("{header}{output}"))?;
        let mut cut = 0;
        let wanted = header.chars().count();
        while cut < tokens.len() && self.codec.decode(&tokens[..cut])?.chars().count() < wanted {
            cut += 1;
        }
        Ok((tokens[..cut].to_vec(), tokens[cut..].to_vec()))
    }
}

/// Chunks with the weight of all their tokens.
#[derive(Default)]
struct Sequence {
    chunks: Vec<(Chunk, f32)>,
}

impl Sequence {
    fn push(&mut self, tokens: Vec<i32>, weight: f32) {
        if !tokens.is_empty() {
            self.chunks.push((Chunk::tokens(tokens), weight));
        }
    }

    /// The sampled tokens before end with what the next message would start with.
    fn ends_with(&self, tokens: &[i32]) -> bool {
        match self.chunks.last() {
            Some((Chunk::EncodedText(text), _)) => text.tokens.ends_with(tokens),
            _ => false,
        }
    }

    fn tokens(&self) -> Option<Vec<i32>> {
        let mut all = Vec::new();
        for (chunk, _) in &self.chunks {
            let Chunk::EncodedText(text) = chunk else {
                return None;
            };
            all.extend_from_slice(&text.tokens);
        }
        Some(all)
    }

    fn into_input(self) -> ModelInput {
        ModelInput::from_chunks(self.chunks.into_iter().map(|(c, _)| c).collect::<Vec<_>>())
    }

    fn into_example(self, silent: usize) -> Result<Example> {
        let mut weights = Vec::new();
        for (chunk, weight) in &self.chunks {
            weights.extend(std::iter::repeat_n(*weight, chunk.length()?));
        }
        weights[..silent].fill(0.0);
        Example::new(self.into_input(), weights)
    }
}

/// A family at work on one conversation.
pub(super) struct Layout<'a> {
    family: &'a dyn Family,
    encoder: Encoder<'a>,
    turns: Vec<Turn>,
    mark: usize,
}

impl<'a> Layout<'a> {
    pub(super) fn new(
        family: &'a dyn Family,
        codec: &'a Codec,
        turns: Vec<Turn>,
        survey: usize,
    ) -> Result<Self> {
        let (turns, mark) = family.prepare(turns, survey)?;
        Ok(Self {
            family,
            encoder: Encoder::new(codec),
            turns,
            mark,
        })
    }

    pub(super) fn prompt(&self, prefill: &str) -> Result<ModelInput> {
        let prompt = self.prompt_before(self.turns.len(), prefill)?;
        Ok(prompt.into_input())
    }

    /// The prompt for the message at `end`.
    fn prompt_before(&self, end: usize, prefill: &str) -> Result<Sequence> {
        let turns = &self.turns[..end];
        let start = self.family.turn_start(turns);
        let mut sequence = Sequence::default();
        sequence.push(
            self.encoder
                .pieces(self.family.begins(self.encoder.codec)?)?,
            0.0,
        );
        for index in 0..end {
            let place = self.place(turns, index, index >= start, false);
            self.add(&mut sequence, &place, |_| Ok(Weights::default()))?;
        }
        let place = Place {
            is_last: true,
            ..self.place(turns, end, true, true)
        };
        let mut tokens = self.encoder.pieces(self.family.suffix(&place)?)?;
        drop_shared(&sequence, &mut tokens, place.previous());
        sequence.push(tokens, 0.0);
        let prefill = self.family.prefill(turns, prefill)?;
        sequence.push(self.encoder.pieces(vec![Piece::Markup(prefill)])?, 0.0);
        Ok(sequence)
    }

    /// One sequence with the weights of a mode.
    pub(super) fn example(&self, what: TrainOnWhat, as_produced: bool) -> Result<Example> {
        let turns = &self.turns;
        if turns.is_empty() {
            return Err(Error::invalid("messages", "must not be empty"));
        }
        if !as_produced && !self.family.facts().free_flags {
            check_flags(turns.iter().map(|turn| turn.trainable), what)?;
        }
        let start = self.family.turn_start(&turns[..turns.len() - 1]);
        let mut sequence = Sequence::default();
        sequence.push(
            self.encoder
                .pieces(self.family.begins(self.encoder.codec)?)?,
            0.0,
        );
        for index in 0..turns.len() {
            let place = self.place(turns, index, index >= start, as_produced);
            self.add(&mut sequence, &place, |turn| {
                let trained = self.family.trains(turn, &place, what)?;
                Ok(Weights {
                    header: f32::from(what == TrainOnWhat::AllTokens),
                    output: f32::from(trained),
                    with_overlap: place.is_last,
                })
            })?;
        }
        let silent = self.given_by_the_prompt(&sequence, what)?;
        sequence.into_example(silent)
    }

    fn place<'t>(
        &self,
        turns: &'t [Turn],
        index: usize,
        in_last_turn: bool,
        as_produced: bool,
    ) -> Place<'t> {
        Place {
            turns,
            index,
            is_last: index + 1 == turns.len(),
            in_last_turn,
            mark: self.mark,
            as_produced,
        }
    }

    fn add(
        &self,
        sequence: &mut Sequence,
        place: &Place<'_>,
        weights: impl Fn(&Turn) -> Result<Weights>,
    ) -> Result<()> {
        let turn = &place.turns[place.index];
        let named = |error: Error| error.within(&format!("messages[{}]", place.index));
        let weights = weights(turn).map_err(named)?;
        let rendered = match (turn.is("assistant"), &turn.tokens) {
            (true, Some(tokens)) => self.sampled(tokens, place),
            _ => self.family.render(turn, place),
        };
        let Rendered {
            header,
            output,
            overlap,
            joined,
        } = rendered.map_err(named)?;
        if joined {
            let (header, output) = self
                .encoder
                .joined(&text_of(header), &text_of_parts(output))?;
            sequence.push(header, weights.header);
            sequence.push(output, weights.output);
            return Ok(());
        }
        let mut header = self.encoder.pieces(header)?;
        drop_shared(sequence, &mut header, place.previous());
        sequence.push(header, weights.header);
        for part in output {
            match part {
                Part::Text(pieces) => sequence.push(self.encoder.pieces(pieces)?, weights.output),
                Part::Image(chunk) => sequence.chunks.push((chunk, weights.output)),
            }
        }
        if weights.with_overlap {
            sequence.push(self.encoder.pieces(overlap)?, weights.output);
        }
        Ok(())
    }

    /// A message the model sampled: the prompt it was given, and exactly what it said.
    fn sampled(&self, tokens: &[i32], place: &Place<'_>) -> Result<Rendered> {
        let before = &place.turns[..place.index];
        let prompt = Place {
            turns: before,
            index: place.index,
            is_last: true,
            in_last_turn: true,
            mark: self.family.mark_before(before, self.mark),
            as_produced: true,
        };
        let mut header = self.family.suffix(&prompt)?;
        header.push(Piece::Markup(self.family.prefill(before, "")?));
        let facts = self.family.facts();
        let mut output = vec![Piece::Tokens(tokens.to_vec())];
        if !self.is_closed(tokens, facts)? {
            output.push(Piece::fixed(facts.close));
        }
        Ok(Rendered {
            header,
            output: vec![Part::Text(output)],
            ..Rendered::default()
        })
    }

    fn is_closed(&self, tokens: &[i32], facts: Facts) -> Result<bool> {
        if facts.stop_is_text {
            let text = self.encoder.codec.decode(tokens)?;
            return Ok(facts.stop.iter().any(|stop| text.ends_with(stop)));
        }
        let Some(last) = tokens.last() else {
            return Ok(false);
        };
        for stop in facts.stop.iter().chain([&facts.close]) {
            if self.encoder.codec.token(stop)? == *last {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How many tokens at the start carry no loss because the prompt gives them.
    ///
    /// # Errors
    ///
    /// If the prompt tells the model not to think and the message thinks.
    fn given_by_the_prompt(&self, sequence: &Sequence, what: TrainOnWhat) -> Result<usize> {
        let end = match what {
            TrainOnWhat::LastAssistantMessage => self.turns.len() - 1,
            TrainOnWhat::LastAssistantTurn => after_last_user(&self.turns),
            _ => return Ok(0),
        };
        let Some(turn) = self.turns.get(end).filter(|turn| turn.is("assistant")) else {
            return Ok(0);
        };
        let Some(tokens) = sequence.tokens() else {
            return Ok(0);
        };
        let prompt = self.prompt_before(end, "")?.tokens().unwrap_or_default();
        if tokens.starts_with(&prompt) {
            return Ok(prompt.len());
        }
        if self.family.facts().disables_thinking {
            let problem = "the renderer tells the model not to think, and this message thinks: \
                           use the thinking variant of the renderer, or leave the thinking out";
            let problem = match turn.content.has_thinking() {
                true => problem,
                false => "does not follow the prompt of this renderer",
            };
            return Err(Error::invalid(format!("messages[{end}]"), problem));
        }
        Ok(0)
    }
}

#[derive(Default)]
struct Weights {
    header: f32,
    output: f32,
    with_overlap: bool,
}

/// What a sampled message ended with is not repeated by the message after it.
fn drop_shared(sequence: &Sequence, header: &mut Vec<i32>, previous: Option<&Turn>) {
    let sampled = previous.is_some_and(|turn| turn.tokens.is_some());
    if sampled && !header.is_empty() && sequence.ends_with(header) {
        header.clear();
    }
}

/// Refuses messages that say what is trained on where it does not count, or do not where it does.
pub(super) fn check_flags(
    flags: impl IntoIterator<Item = Option<bool>>,
    what: TrainOnWhat,
) -> Result<()> {
    let custom = what == TrainOnWhat::Customized;
    let mut flags = flags.into_iter();
    let Some(index) = flags.position(|flag| flag.is_some() != custom) else {
        return Ok(());
    };
    let problem = match custom {
        true => {
            "must be given for every message when messages say what is trained on; in one \
             sequence, also for the system message that the renderer would otherwise put in"
        }
        false => "only counts when messages say what is trained on (TrainOnWhat::Customized)",
    };
    Err(Error::invalid(
        format!("messages[{index}].trainable"),
        problem,
    ))
}

pub(super) fn after_last_user(turns: &[Turn]) -> usize {
    let user = turns.iter().rposition(|turn| turn.is("user"));
    user.map_or(0, |user| user + 1)
}

fn text_of(pieces: Vec<Piece>) -> String {
    let text = |piece| match piece {
        Piece::Fixed(text) => text.into_owned(),
        Piece::Markup(text) | Piece::Plain(text) | Piece::Spelled(text) => text,
        Piece::Tokens(_) => String::new(),
    };
    pieces.into_iter().map(text).collect()
}

fn text_of_parts(parts: Vec<Part>) -> String {
    let text = |part| match part {
        Part::Text(pieces) => text_of(pieces),
        Part::Image(_) => String::new(),
    };
    parts.into_iter().map(text).collect()
}
