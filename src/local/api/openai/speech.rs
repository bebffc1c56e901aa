//! What a model says, told apart: thinking, answer, calls of tools.

use serde_json::{Value, json};

use super::voice::Voice;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A whole message.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Said {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<ToolUse>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ToolUse {
    pub(super) id: String,
    pub(super) name: String,
    /// JSON.
    pub(super) arguments: String,
}

impl ToolUse {
    pub(super) fn openai(&self) -> Value {
        let function = json!({"name": self.name, "arguments": self.arguments});
        json!({"id": self.id, "type": "function", "function": function})
    }
}

/// Tells thinking between `<think>` and `</think>` from what follows, as the text grows.
#[derive(Debug)]
pub(super) struct Speech {
    state: State,
    /// Not given out: it may be part of a mark.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Nothing but space so far.
    Start,
    /// Thinking begins, after a line break that does not count.
    Opened,
    Thinking,
    /// The first letters of the answer, before which space does not count.
    Answering,
    Answer,
}

impl Speech {
    /// `opened` says that the prompt ends within thinking.
    pub(super) fn new(opened: bool) -> Self {
        Self {
            state: if opened {
                State::Thinking
            } else {
                State::Start
            },
            held: String::new(),
        }
    }

    /// Adds a piece, and gives out what is certain by now.
    pub(super) fn push(&mut self, piece: &str) -> Said {
        self.held.push_str(piece);
        let mut said = Said::default();
        while self.step(&mut said) {}
        said
    }

    /// Gives out the rest.
    pub(super) fn finish(&mut self) -> Said {
        let rest = std::mem::take(&mut self.held);
        let mut said = Said::default();
        match self.state {
            State::Opened | State::Thinking => said.reasoning = rest,
            _ => said.content = rest,
        }
        said
    }

    /// One step; false if more text is needed.
    fn step(&mut self, said: &mut Said) -> bool {
        match self.state {
            State::Start => {
                let begun = self.held.trim_start();
                if let Some(rest) = begun.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.state = State::Opened;
                    return true;
                }
                if OPEN.starts_with(begun) {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            State::Opened => {
                let Some(first) = self.held.chars().next() else {
                    return false;
                };
                if first == '\n' {
                    self.held.remove(0);
                }
                self.state = State::Thinking;
                true
            }
            State::Thinking => {
                if let Some(at) = self.held.find(CLOSE) {
                    said.reasoning
                        .push_str(self.held[..at].trim_end_matches('\n'));
                    self.held.drain(..at + CLOSE.len());
                    self.state = State::Answering;
                    return true;
                }
                let keep = begun(&self.held);
                let given = self.held.len() - keep;
                said.reasoning.extend(self.held.drain(..given));
                false
            }
            State::Answering => {
                let space = self.held.len() - self.held.trim_start_matches('\n').len();
                self.held.drain(..space);
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            State::Answer => {
                said.content.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }
}

/// How many bytes at the end may belong to the closing mark or the line breaks before it.
fn begun(text: &str) -> usize {
    let lengths = (1..CLOSE.len()).rev();
    let mut ends = lengths.filter(|length| text.ends_with(&CLOSE[..*length]));
    let mark = ends.next().unwrap_or(0);
    let before = &text[..text.len() - mark];
    mark + before.len() - before.trim_end_matches('\n').len()
}

/// The message that these tokens are. The family's own parser reads calls of tools, and the
/// families that mark their thinking by special tokens; other text is told apart by its marks.
pub(super) fn read(voice: &impl Voice, tokens: &[u32], text: &str, how: Reading) -> Said {
    #[cfg(feature = "text")]
    if how.parsed
        && let Some(said) = parsed(voice, tokens, how.opened)
    {
        return said;
    }
    let _ = (voice, tokens);
    apart(text, how.opened)
}

/// How an answer is to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// The prompt ends within thinking.
    pub(super) opened: bool,
    /// The family's parser is needed, so nothing can be said before the end.
    pub(super) parsed: bool,
}

fn apart(text: &str, opened: bool) -> Said {
    let mut speech = Speech::new(opened);
    let mut said = speech.push(text);
    let rest = speech.finish();
    said.reasoning.push_str(&rest.reasoning);
    said.content.push_str(&rest.content);
    said
}

#[cfg(feature = "text")]
fn parsed(voice: &impl Voice, tokens: &[u32], opened: bool) -> Option<Said> {
    let tokens: Vec<i32> = tokens.iter().map(|token| token.cast_signed()).collect();
    let parsed = voice.renderer()?.parse(&tokens).ok()?;
    if !parsed.termination.is_clean() {
        return None;
    }
    let calls = parsed.message.tool_calls().unwrap_or_default();
    let mut said = Said {
        reasoning: parsed.message.thinking(),
        content: parsed.message.text(),
        calls: Vec::new(),
    };
    if said.reasoning.is_empty() && opened && said.content.contains(CLOSE) {
        said = apart(&said.content, true);
    }
    for call in parsed.message.unparsed_tool_calls() {
        // What cannot be read is shown as it was said.
        if !said.content.contains(&call.raw_text) {
            said.content.push_str(&call.raw_text);
        }
    }
    said.calls = calls
        .into_iter()
        .map(|call| ToolUse {
            id: call.id.unwrap_or_else(new_id),
            name: call.name,
            arguments: call.arguments,
        })
        .collect();
    Some(said)
}

#[cfg(feature = "text")]
fn new_id() -> String {
    format!("call_{}", uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, opened: bool, reasoning: &str, content: &str) {
        let whole = apart(text, opened);
        assert_eq!(
            (whole.reasoning.as_str(), whole.content.as_str()),
            (reasoning, content)
        );
        // At any split of the text.
        for size in 1..text.len().max(2) {
            let (mut speech, mut said) = (Speech::new(opened), Said::default());
            let letters: Vec<char> = text.chars().collect();
            let pieces = letters
                .chunks(size)
                .map(|piece| piece.iter().collect::<String>());
            let mut add = |piece: Said| {
                said.reasoning.push_str(&piece.reasoning);
                said.content.push_str(&piece.content);
            };
            pieces.for_each(|piece| add(speech.push(&piece)));
            add(speech.finish());
            assert_eq!(said, whole, "{size}");
        }
    }

    #[test]
    fn thinking_is_told_apart_at_any_split() {
        check("plain <b>text</b>", false, "", "plain <b>text</b>");
        check("<think>\nwhy\n</think>\n\nso", false, "why", "so");
        check("  <think>a</think>b", false, "a", "b");
        check("a <think> later", false, "", "a <think> later");
        check("why\n\n</think>\n\nso", true, "why", "so");
        check("<think>cut off", false, "cut off", "");
        check("<think>x</thin", false, "x</thin", "");
        check("<thi", false, "", "<thi");
        check("é</think>ü", true, "é", "ü");
        check("", false, "", "");
    }
}
