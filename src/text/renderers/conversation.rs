//! From a user's messages to layouts: tools declared, conversations split into examples.

use super::super::data::Example;
use super::super::json::Json;
use super::super::message::{Content, Message, Turn};
use super::TrainOnWhat;
use super::layout::{Codec, Family, Layout, Split, check_flags};
use crate::error::{Error, Result};
use crate::types::ModelInput;

/// A family and what it needs to lay out conversations.
pub(super) struct Conversation<'a> {
    pub(super) family: &'a dyn Family,
    pub(super) codec: &'a Codec,
    pub(super) tools: &'a [Json],
}

impl<'a> Conversation<'a> {
    pub(super) fn prompt(&self, messages: &[Message], prefill: &str) -> Result<ModelInput> {
        let turns = self.turns(messages)?;
        let survey = self.family.survey(&turns);
        self.layout(turns, survey)?.prompt(prefill)
    }

    pub(super) fn example(&self, messages: &[Message], what: TrainOnWhat) -> Result<Example> {
        let turns = self.turns(messages)?;
        let survey = self.family.survey(&turns);
        self.layout(turns, survey)?.example(what, false)
    }

    pub(super) fn examples(&self, messages: &[Message], what: TrainOnWhat) -> Result<Vec<Example>> {
        let turns = self.turns(messages)?;
        let survey = self.family.survey(&turns);
        if !self.family.facts().free_flags {
            check_flags(turns.iter().map(|turn| turn.trainable), what)?;
        }
        match self.family.split(&turns) {
            Split::Whole => {
                let turns = only_assistants(turns, what);
                Ok(vec![self.layout(turns, survey)?.example(what, true)?])
            }
            Split::UserTurns if what != TrainOnWhat::Customized => {
                self.per_user_turn(turns, survey, what)
            }
            _ => self.per_message(turns, survey, what),
        }
    }

    fn per_message(
        &self,
        turns: Vec<Turn>,
        survey: usize,
        what: TrainOnWhat,
    ) -> Result<Vec<Example>> {
        let first = match what {
            TrainOnWhat::LastAssistantMessage => turns.len().saturating_sub(1),
            TrainOnWhat::LastAssistantTurn => self.family.turn_start(&turns),
            TrainOnWhat::AllAssistantMessages | TrainOnWhat::Customized => 0,
            _ => {
                let problem = format!(
                    "{what} cannot be split into examples for a renderer that lays out earlier \
                     turns in another way than it produces them"
                );
                return Err(Error::invalid("train_on_what", problem));
            }
        };
        let custom = what == TrainOnWhat::Customized;
        let mut examples = Vec::new();
        for index in first..turns.len() {
            let wanted = !custom || turns[index].trainable == Some(true);
            if turns[index].is("assistant") && wanted {
                let mut part = turns[..=index].to_vec();
                if custom {
                    part.iter_mut().for_each(|turn| turn.trainable = None);
                }
                let what = TrainOnWhat::LastAssistantMessage;
                examples.push(self.layout(part, survey)?.example(what, true)?);
            }
        }
        Ok(examples)
    }

    fn per_user_turn(
        &self,
        turns: Vec<Turn>,
        survey: usize,
        what: TrainOnWhat,
    ) -> Result<Vec<Example>> {
        let single = match what {
            TrainOnWhat::LastAssistantMessage | TrainOnWhat::LastAssistantTurn => {
                return Ok(vec![self.layout(turns, survey)?.example(what, true)?]);
            }
            TrainOnWhat::AllAssistantMessages => TrainOnWhat::LastAssistantTurn,
            other => other,
        };
        let users = turns.iter().enumerate().filter(|(_, turn)| turn.is("user"));
        let later: Vec<usize> = users.skip(1).map(|(index, _)| index).collect();
        let ends = later.into_iter().chain([turns.len()]);
        ends.map(|end| {
            self.layout(turns[..end].to_vec(), survey)?
                .example(single, true)
        })
        .collect()
    }

    fn layout(&self, turns: Vec<Turn>, survey: usize) -> Result<Layout<'a>> {
        Layout::new(self.family, self.codec, turns, survey)
    }

    /// The messages, checked, after those that declare the tools.
    fn turns(&self, messages: &[Message]) -> Result<Vec<Turn>> {
        let read = |(index, message): (usize, &Message)| {
            let turn = message.to_turn();
            turn.map_err(|error| error.within(&format!("messages[{index}]")))
        };
        let turns: Vec<Turn> = messages
            .iter()
            .enumerate()
            .map(read)
            .collect::<Result<_>>()?;
        let turns = self.family.gather(turns);
        if self.tools.is_empty() {
            return Ok(turns);
        }
        let mut rest = turns.into_iter().peekable();
        let system = rest.next_if(|turn| turn.is("system"));
        let text = match &system {
            Some(turn) => turn.plain_text()?,
            None => "",
        };
        let mut turns = self.family.declare(self.tools, text)?;
        let flagged = rest.peek().is_some_and(|turn| turn.trainable.is_some());
        for turn in &mut turns {
            let own = system.as_ref().and_then(|system| system.trainable);
            turn.trainable = own.or(flagged.then_some(false));
        }
        turns.extend(rest);
        Ok(turns)
    }
}

/// Messages as the service's own renderers see them, which read a conversation part by part: one
/// without parts is none.
pub(super) fn by_parts(turns: Vec<Turn>) -> Vec<Turn> {
    let says = |turn: &Turn| {
        let silent = matches!(&turn.content, Content::Parts(parts) if parts.is_empty());
        !silent || !turn.calls.is_empty() || turn.tokens.is_some()
    };
    turns.into_iter().filter(says).collect()
}

/// The same, where texts next to each other of one who asks are one text.
pub(super) fn by_role(turns: Vec<Turn>) -> Vec<Turn> {
    let mut out: Vec<Turn> = Vec::with_capacity(turns.len());
    for mut turn in by_parts(turns) {
        let content = &turn.content;
        if !turn.is("assistant") && !content.has_image() && !content.has_thinking_part() {
            turn.content = Content::Text(content.text());
        }
        let asks = turn.is("user") || turn.is("system");
        if let Some(last) = out.last_mut()
            && asks
            && (&last.role, last.trainable) == (&turn.role, turn.trainable)
            && let (Content::Text(said), Content::Text(more)) = (&mut last.content, &turn.content)
        {
            said.push_str(more);
            continue;
        }
        out.push(turn);
    }
    out
}

/// Only messages of the assistant are trained on, whatever others say.
fn only_assistants(mut turns: Vec<Turn>, what: TrainOnWhat) -> Vec<Turn> {
    if what == TrainOnWhat::Customized {
        let others = turns.iter_mut().filter(|turn| !turn.is("assistant"));
        others.for_each(|turn| turn.trainable = turn.trainable.map(|_| false));
    }
    turns
}
